//! A reader of old records that is told how many parts its user has room for.
//!
//! A part is the answer to one pull. Several can be on their way, so that the engine reads while
//! the user gives.

use super::follow::{Follow, Landmark};
use super::record::Incarnation;
use crate::base::Instant;
use crate::limits::CLUSTER_PARTS_AHEAD;

/// A reader of old records.
pub struct History {
    /// The reader.
    pub follow: Follow,
    /// Number of parts for which there is room.
    room: u32,
}

impl History {
    /// Makes a reader of the records up to before number `until`. It has no place yet, and room for
    /// [`CLUSTER_PARTS_AHEAD`].
    pub fn new(owner: Incarnation, until: u64, now: Instant) -> History {
        let mut follow = Follow::of_history(owner, Landmark::start(), until, now);
        follow.set_room(false, now);
        History { follow, room: CLUSTER_PARTS_AHEAD }
    }

    /// Begins at a place.
    pub fn begin(&mut self, at: Landmark, now: Instant) {
        self.follow.move_to(at);
        self.follow.set_room(self.room > 0, now);
    }

    /// The user has room for one part more.
    pub fn add_room(&mut self, now: Instant) {
        self.room += 1;
        self.follow.set_room(true, now);
    }

    /// A part was given to the user.
    pub fn take_room(&mut self, now: Instant) {
        self.room = self.room.saturating_sub(1);
        self.follow.set_room(self.room > 0, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::follow::Wish;

    #[test]
    fn it_pulls_as_long_as_there_is_room() {
        let now = Instant::from_nanos(1_000_000_000);
        let mut history = History::new(Incarnation(1), 100, now);
        assert!(history.follow.poll(now).is_none(), "it has no place");
        history.begin(Landmark::start(), now);
        for _ in 0..CLUSTER_PARTS_AHEAD {
            let (attempt, wish) = history.follow.poll(now).expect("there is room");
            assert!(matches!(wish, Wish::Pull { .. }));
            history.follow.on_pulled(attempt, [], false, now, &mut |_| {});
            history.take_room(now);
        }
        assert!(history.follow.poll(now).is_none(), "there is no room");
        history.add_room(now);
        assert!(history.follow.poll(now).is_some());
    }
}
