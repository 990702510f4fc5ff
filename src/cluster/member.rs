//! Members: the lease of this node, and those of the others.
//!
//! A lease is a key of a bucket with a time to live. The bucket's clock alone says when a lease is
//! over: no node judges another one by its own clock. [`Lease`] keeps the lease of this node,
//! and [`Watch`] notes which nodes were lost.
//!
//! Tests: below; `sim/cluster` has nodes that freeze, die and come back.

use std::collections::BTreeMap;
use std::time::Duration;

use super::mirror::Attempt;
use super::record::Incarnation;
use super::retry::Pauses;
use crate::base::Instant;
use crate::base::planted::{Planted, planted};
use crate::limits::{
    CLUSTER_ANSWER_WAIT, CLUSTER_LEASE_MARGIN, CLUSTER_RENEWALS, CLUSTER_RETRY_MAX,
};

/// A lease that moves this often belongs to a node that lives.
const MOVES_OF_THE_LIVING: u32 = 2;

/// Something that a lease wants of the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Create the key, if it does not exist.
    Create,
    /// Write the key again, if it has this revision.
    Renew {
        /// The revision.
        revision: u64,
    },
    /// Read the key.
    Read,
}

/// A key of the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its revision.
    pub revision: u64,
    /// The life of the node that holds it.
    pub by: Incarnation,
}

/// Something that a node tells the others, beside its lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The URL at which clients reach it, if it knows one.
    pub url: Option<Box<str>>,
    /// The version of its program; `None`: it is too old to say so.
    pub version: Option<Box<str>>,
    /// True if its clients need tokens; `None`: it is too old to say so.
    pub is_guarded: Option<bool>,
}

impl About {
    /// True if one of the two nodes has tokens, and the other has none. Neither finds an execution
    /// of the other then: none of them has a principal that the other one knows.
    pub fn is_apart_from(&self, other: &About) -> bool {
        self.is_guarded.zip(other.is_guarded).is_some_and(|(one, other)| one != other)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Due {
        at: Instant,
        wish: Wish,
    },
    Out {
        until: Instant,
        wish: Wish,
        sent_at: Instant,
    },
    /// The name belongs to another node that lives.
    Taken {
        by: Incarnation,
    },
}

/// The lease of this node. See the module's text.
pub struct Lease {
    incarnation: Incarnation,
    time: Duration,
    state: State,
    attempt: Attempt,
    pauses: Pauses,
    /// The time at which the newest renewal that has succeeded was sent.
    held_since: Option<Instant>,
    /// The time since which renewals have followed each other without a long pause.
    steady_since: Option<Instant>,
    /// The time of the first attempt whose fate is unknown.
    unknown_since: Option<Instant>,
    /// The lease of another life with the name of this node, and how often it was seen to move. It
    /// may be left from an earlier life, of which one renewal may have been on its way.
    other: Option<(Held, u32)>,
}

impl Lease {
    /// Begins to ask for the lease. Each renewal makes it last `time`.
    pub fn new(incarnation: Incarnation, time: Duration, now: Instant) -> Lease {
        Lease {
            incarnation,
            time,
            state: State::Due { at: now, wish: Wish::Create },
            attempt: Attempt::default(),
            pauses: Pauses::default(),
            held_since: None,
            steady_since: None,
            unknown_since: None,
            other: None,
        }
    }

    /// The other node that has this name, if it lives. The lease asks for nothing more then.
    pub fn taken_by(&self) -> Option<Incarnation> {
        match self.state {
            State::Taken { by } => Some(by),
            _ => None,
        }
    }

    /// The revision of the key of the bucket, while it is held.
    pub fn revision(&self) -> Option<u64> {
        match self.state {
            State::Due { wish: Wish::Renew { revision }, .. } => Some(revision),
            _ => None,
        }
    }

    /// The time after which other nodes may count this one as lost, less a margin. `None` if it has
    /// no lease. Only the time of sending counts: an answer may take long.
    pub fn safe_until(&self) -> Option<Instant> {
        Some(self.held_since? + self.time.saturating_sub(CLUSTER_LEASE_MARGIN))
    }

    /// True if this node may count others as lost whose leases are over.
    ///
    /// While the bucket is away, the leases of all nodes end, and nobody can renew one. Behind such
    /// a pause the living need time to renew theirs: to connect again, and to ask again. A lease of
    /// another node ends after three of four of its renewals were not possible. That is longer than
    /// half of the time that this one lasts.
    pub fn may_judge(&self, now: Instant) -> bool {
        let is_fresh = self.held_since.is_some_and(|since| now <= since + self.time / 2);
        let grace = self.time + 2 * CLUSTER_RETRY_MAX;
        is_fresh && self.steady_since.is_some_and(|since| now >= since + grace)
    }

    /// The time at which [`Lease::poll`] has something to do without another cause.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Due { at, .. } => Some(at),
            State::Out { until, .. } => Some(until),
            State::Taken { .. } => None,
        }
    }

    /// Returns the next wish, and the number of the attempt.
    pub fn poll(&mut self, now: Instant) -> Option<(Attempt, Wish)> {
        if let State::Out { until, sent_at, .. } = self.state
            && now >= until
        {
            self.fail(sent_at, now);
        }
        match self.state {
            State::Due { at, wish } if now >= at => {
                self.attempt.0 += 1;
                self.state = State::Out { until: now + CLUSTER_ANSWER_WAIT, wish, sent_at: now };
                Some((self.attempt, wish))
            }
            _ => None,
        }
    }

    /// The connection is back, or is another one. A question that waits for its pause is asked.
    pub fn on_connection(&mut self, now: Instant) {
        if let State::Due { at, wish: Wish::Read } = &mut self.state {
            *at = now.min(*at);
            self.pauses.reset();
        }
    }

    fn fail(&mut self, sent_at: Instant, now: Instant) {
        self.unknown_since.get_or_insert(sent_at);
        self.state = State::Due { at: self.pauses.after(now), wish: Wish::Read };
    }

    /// The key was written, and has this revision.
    pub fn on_written(&mut self, attempt: Attempt, revision: u64) {
        if let State::Out { sent_at, .. } = self.state
            && attempt == self.attempt
        {
            self.hold(revision, sent_at);
        }
    }

    fn hold(&mut self, revision: u64, sent_at: Instant) {
        self.pauses.reset();
        if self.held_since.is_none_or(|since| sent_at > since + self.time / 2) {
            self.steady_since = Some(sent_at);
        }
        (self.held_since, self.unknown_since, self.other) = (Some(sent_at), None, None);
        let at = sent_at + self.time / CLUSTER_RENEWALS;
        self.state = State::Due { at, wish: Wish::Renew { revision } };
    }

    /// The bucket has refused, or nobody answers.
    pub fn on_failed(&mut self, attempt: Attempt, now: Instant) {
        if let State::Out { sent_at, .. } = self.state
            && attempt == self.attempt
        {
            self.fail(sent_at, now);
        }
    }

    /// The bucket has answered what the key has.
    pub fn on_read(&mut self, attempt: Attempt, held: Option<Held>, now: Instant) {
        if attempt != self.attempt || !matches!(self.state, State::Out { .. }) {
            return;
        }
        match held {
            None => self.state = State::Due { at: now, wish: Wish::Create },
            Some(Held { revision, by }) if by == self.incarnation => {
                // An attempt of unknown fate has written it. It may be as old as the first one.
                let since = self.held_since.or(self.unknown_since).unwrap_or(now);
                self.hold(revision, since);
                self.state = State::Due { at: now, wish: Wish::Renew { revision } };
            }
            Some(held) => {
                let moves = match self.other {
                    Some((other, moves)) => moves + u32::from(other != held),
                    None => 0,
                };
                self.other = Some((held, moves));
                self.state = match moves >= MOVES_OF_THE_LIVING {
                    true => State::Taken { by: held.by },
                    false => State::Due { at: self.pauses.after(now), wish: Wish::Read },
                };
            }
        }
    }
}

/// The leases of other nodes, and the nodes that were lost.
#[derive(Default)]
pub struct Watch {
    /// The living nodes, and the time at which each was last heard of.
    alive: BTreeMap<Box<str>, (Incarnation, Instant)>,
    lost: Vec<(Box<str>, Incarnation)>,
}

impl Watch {
    /// The key of a node was written.
    pub fn on_lease(&mut self, node: &str, incarnation: Incarnation, now: Instant) {
        let before = self.alive.insert(node.into(), (incarnation, now));
        if let Some((before, _)) = before
            && before != incarnation
        {
            self.lost.push((node.into(), before)); // It has begun anew.
        }
    }

    /// The key of a node is gone: the bucket's clock says so.
    pub fn on_gone(&mut self, node: &str) {
        if let Some((incarnation, _)) = self.alive.remove(node) {
            self.lost.push((node.into(), incarnation));
        }
    }

    /// True if this life of a node has a lease.
    pub fn is_alive(&self, node: &str, incarnation: Incarnation) -> bool {
        self.alive.get(node).is_some_and(|(alive, _)| *alive == incarnation)
    }

    /// The living nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, Incarnation)> {
        self.alive.iter().map(|(node, (incarnation, _))| (&**node, *incarnation))
    }

    /// Takes a node that was lost, and that life of it.
    pub fn take_lost(&mut self, time: Duration, now: Instant) -> Option<(Box<str>, Incarnation)> {
        if planted(Planted::LeaseByOwnClock)
            && let Some(node) = self.silent_one(time, now)
        {
            self.on_gone(&node);
        }
        self.lost.pop()
    }

    fn silent_one(&self, time: Duration, now: Instant) -> Option<Box<str>> {
        let is_silent = |heard_at: Instant| now > heard_at + time;
        let mut all = self.alive.iter();
        all.find(|(_, (_, heard_at))| is_silent(*heard_at)).map(|(node, _)| node.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Incarnation = Incarnation(1);
    const TIME: Duration = Duration::from_secs(6);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn take(lease: &mut Lease, now: Instant) -> (Attempt, Wish) {
        lease.poll(now).expect("it wants something")
    }

    #[test]
    fn a_lease_is_created_and_renewed_four_times_while_it_lasts() {
        let mut lease = Lease::new(OURS, TIME, at(0));
        assert_eq!(lease.safe_until(), None);
        let (attempt, wish) = take(&mut lease, at(0));
        assert_eq!(wish, Wish::Create);
        lease.on_written(attempt, 10);
        // The answer took 300 ms. Only the sending counts.
        assert_eq!(lease.safe_until(), Some(at(5_000)));
        assert_eq!((lease.poll(at(1_499)), lease.deadline()), (None, Some(at(1_500))));
        let (attempt, wish) = take(&mut lease, at(1_500));
        assert_eq!(wish, Wish::Renew { revision: 10 });
        lease.on_written(attempt, 11);
        assert_eq!(lease.safe_until(), Some(at(6_500)));
    }

    #[test]
    fn a_renewal_of_unknown_fate_makes_it_last_no_longer() {
        let mut lease = Lease::new(OURS, TIME, at(0));
        let (attempt, _) = take(&mut lease, at(0));
        lease.on_written(attempt, 10);
        let (attempt, _) = take(&mut lease, at(1_500));
        lease.on_failed(attempt, at(2_500));
        let (attempt, wish) = take(&mut lease, at(2_550));
        assert_eq!(wish, Wish::Read);
        lease.on_read(attempt, Some(Held { revision: 11, by: OURS }), at(2_600));
        assert_eq!(lease.safe_until(), Some(at(5_000)));
        let (attempt, wish) = take(&mut lease, at(2_600));
        assert_eq!(wish, Wish::Renew { revision: 11 });
        lease.on_written(attempt, 12);
        assert_eq!(lease.safe_until(), Some(at(7_600)));
        // It was lost in the bucket, and is created again.
        let (attempt, _) = take(&mut lease, at(4_100));
        lease.on_failed(attempt, at(4_200));
        let (attempt, _) = take(&mut lease, at(4_250));
        lease.on_read(attempt, None, at(4_260));
        assert_eq!(take(&mut lease, at(4_260)).1, Wish::Create);
    }

    #[test]
    fn others_are_lost_only_for_a_node_that_was_in_touch_for_longer_than_a_lease() {
        let mut lease = Lease::new(OURS, TIME, at(0));
        let mut renew = |ms: u64| {
            let (attempt, _) = take(&mut lease, at(ms));
            lease.on_written(attempt, ms);
            lease.may_judge(at(ms))
        };
        // A lease, and two pauses of two seconds.
        for ms in [0, 1_500, 3_000, 4_500, 6_000, 7_500, 9_000] {
            assert!(!renew(ms), "{ms}");
        }
        assert!(renew(10_500));
        // Nothing could be renewed for as long as a lease of another can need to end.
        assert!(!renew(15_000));
        assert!([16_500, 18_000, 19_500, 21_000, 22_500, 24_000].into_iter().all(|ms| !renew(ms)));
        assert!(renew(25_500));
        assert!(lease.may_judge(at(28_500)));
        assert!(!lease.may_judge(at(28_501)), "the bucket may be away");
    }

    #[test]
    fn a_lease_asks_again_at_once_when_the_connection_is_back() {
        let mut lease = Lease::new(OURS, TIME, at(0));
        for _ in 0..8 {
            let now = lease.deadline().unwrap();
            let (attempt, _) = take(&mut lease, now);
            lease.on_failed(attempt, now);
        }
        let due = lease.deadline().unwrap();
        let now = Instant::from_nanos(due.nanos() - 1_000_000_000);
        assert_eq!(lease.poll(now), None);
        lease.on_connection(now);
        let (attempt, wish) = take(&mut lease, now);
        assert_eq!(wish, Wish::Read);
        lease.on_connection(now);
        assert_eq!(lease.poll(now), None, "one is on its way");
        lease.on_read(attempt, None, now);
        let (attempt, _) = take(&mut lease, now);
        lease.on_written(attempt, 1);
        lease.on_connection(now);
        assert_eq!(lease.poll(now), None, "it is not due");
    }

    #[test]
    fn the_lease_of_an_earlier_life_is_waited_for_and_a_living_node_is_not() {
        for lives in [false, true] {
            let mut lease = Lease::new(OURS, TIME, at(0));
            let (attempt, _) = take(&mut lease, at(0));
            lease.on_failed(attempt, at(1));
            let other = Held { revision: 5, by: Incarnation(9) };
            let (attempt, wish) = take(&mut lease, at(60));
            assert_eq!(wish, Wish::Read);
            lease.on_read(attempt, Some(other), at(61));
            for revision in [5, 6, 6, 7] {
                assert_eq!(lease.taken_by(), None);
                let now = lease.deadline().unwrap();
                let (attempt, _) = take(&mut lease, now);
                let held = (lives || revision < 7).then_some(Held { revision, ..other });
                lease.on_read(attempt, held, now);
            }
            assert_eq!(lease.taken_by(), lives.then_some(Incarnation(9)));
            let wish = lease.poll(at(60_000)).map(|(_, wish)| wish);
            assert_eq!(wish, (!lives).then_some(Wish::Create));
        }
    }

    #[test]
    fn a_node_is_lost_when_the_bucket_says_so_or_when_it_has_begun_anew() {
        let mut watch = Watch::default();
        watch.on_lease("a", Incarnation(1), at(0));
        watch.on_lease("b", Incarnation(2), at(0));
        watch.on_lease("a", Incarnation(1), at(1_500));
        assert_eq!(watch.take_lost(TIME, at(60_000)), None, "no clock of our own");
        watch.on_gone("a");
        watch.on_gone("c");
        assert_eq!(watch.take_lost(TIME, at(60_000)), Some(("a".into(), Incarnation(1))));
        watch.on_lease("b", Incarnation(3), at(60_001));
        assert_eq!(watch.take_lost(TIME, at(60_001)), Some(("b".into(), Incarnation(2))));
        assert!(watch.is_alive("b", Incarnation(3)) && !watch.is_alive("b", Incarnation(2)));
        assert_eq!(watch.nodes().collect::<Vec<_>>(), [("b", Incarnation(3))]);
    }
}
