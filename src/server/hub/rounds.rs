//! The line of followers of streams with something to send.
//!
//! A send takes microseconds, so that a chunk for a thousand followers takes milliseconds. A turn
//! sends to [`limits::FOLLOWERS_PER_TURN`] of them at most, in the order in which they got
//! something. After every [`limits::FOLLOWERS_PER_LOOK`] it looks if something else has come, which
//! the next turn then takes first. A turn that has written to other connections ends after the
//! first look: their next requests are probably there, or on the disk. Chunks for a follower in the
//! line go with its send. A server with too much to do thus sends less often, and more at a time.
//!
//! A round is a line as it was at one moment. At its end, everything was sent that had been queued
//! when it began. Invariants:
//! - R1: a touched connection that follows a stream has one entry in the line. Entries of others
//!   are skipped.
//! - R2: a round covers the first entries of the line.

use std::collections::VecDeque;

use crate::limits;

/// Amounts that wait to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::server) struct Queued {
    /// Number of chunks. One that several connections get counts once.
    pub events: u32,
    /// Number of bytes of their frames.
    pub bytes: usize,
}

/// The line, and the round that goes through it. See the module's text.
#[derive(Debug)]
pub(super) struct Rounds {
    line: VecDeque<u32>,
    /// Number of entries of the present round that are left.
    left: usize,
    /// The amounts that were queued when the present round began.
    queued: Queued,
    /// Number of deliveries that were noted when the present round began.
    noted_count: usize,
    /// Number of noted deliveries that were sent.
    sent_count: usize,
    sends_per_look: u32,
    /// Number of sends of this turn, so far and at most.
    sends: u32,
    sends_max: u32,
}

/// Number of followers that are sent to between two looks. Tests have other numbers, too.
pub(super) fn sends_per_look(seed: u64) -> u32 {
    match cfg!(any(test, fuzzing)) {
        true => [1, limits::FOLLOWERS_PER_LOOK, limits::FOLLOWERS_PER_TURN][(seed % 3) as usize],
        false => limits::FOLLOWERS_PER_LOOK,
    }
}

impl Rounds {
    pub fn new(sends_per_look: u32) -> Rounds {
        Rounds {
            line: VecDeque::with_capacity(256),
            left: 0,
            queued: Queued::default(),
            noted_count: 0,
            sent_count: 0,
            sends_per_look,
            sends: 0,
            sends_max: limits::FOLLOWERS_PER_TURN,
        }
    }

    /// Puts a connection at the end of the line.
    #[inline]
    pub fn append(&mut self, index: u32) {
        self.line.push_back(index);
    }

    /// Makes room for this many entries.
    pub fn reserve(&mut self, entry_count: usize) {
        self.line.reserve(entry_count.saturating_sub(self.line.len()));
    }

    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// True if this turn may send to the first one.
    #[inline]
    pub fn may_send(&self) -> bool {
        !self.line.is_empty() && self.sends < self.sends_max
    }

    /// Takes the first entry of a line that is not empty.
    pub fn next(&mut self) -> Option<u32> {
        let index = self.line.pop_front()?;
        self.left = self.left.saturating_sub(1);
        Some(index)
    }

    /// Ends the sends of this turn at the next look.
    pub fn be_brief(&mut self) {
        let look_at = (self.sends + 1).next_multiple_of(self.sends_per_look);
        self.sends_max = self.sends_max.min(look_at);
    }

    /// Counts a send of this turn. `may_have_news` says if something else may have come.
    pub fn count_send(&mut self, may_have_news: impl FnOnce() -> bool) {
        self.sends += 1;
        if self.sends.is_multiple_of(self.sends_per_look) && may_have_news() {
            self.sends_max = self.sends;
        }
    }

    /// True if no round is under way.
    pub fn is_between(&self) -> bool {
        self.left == 0
    }

    /// Begins a round with everything in the line.
    pub fn begin(&mut self, queued: Queued, noted_count: usize) {
        assert!(self.is_between());
        (self.left, self.queued, self.noted_count) = (self.line.len(), queued, noted_count);
    }

    /// Ends a round. Returns what is still queued of `queued`.
    pub fn end(&mut self, queued: Queued) -> Queued {
        self.left = 0;
        self.sent_count = self.noted_count;
        let before = std::mem::take(&mut self.queued);
        Queued {
            events: queued.events.saturating_sub(before.events),
            bytes: queued.bytes.saturating_sub(before.bytes),
        }
    }

    /// Ends the turn.
    pub fn end_turn(&mut self) {
        (self.sends, self.sends_max) = (0, limits::FOLLOWERS_PER_TURN);
    }

    /// Forgets how many deliveries were noted, because all of them are recorded.
    pub fn forget_noted(&mut self) {
        (self.noted_count, self.sent_count) = (0, 0);
    }

    /// Takes the number of deliveries that were sent, of this many that were noted.
    pub fn take_sent(&mut self, noted_count: usize) -> usize {
        let sent_count = match self.line.is_empty() {
            true => noted_count,
            false => self.sent_count,
        };
        self.sent_count = 0;
        self.noted_count = self.noted_count.saturating_sub(sent_count);
        sent_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;

    /// A chunk is queued for a follower, with a number.
    struct Pending {
        follower: u32,
        event: u32,
    }

    #[test]
    fn a_round_sends_in_order_what_was_queued_before_it() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let sends_per_look = 1 + random.below(5) as u32;
            let mut rounds = Rounds::new(sends_per_look);
            let (mut pending, mut in_line): (Vec<Pending>, Vec<u32>) = Default::default();
            let (mut queued, mut event_count, mut round_from) = (Queued::default(), 0, 0);
            for _ in 0..500 {
                for _ in 0..random.below(4) {
                    let follower = random.below(20) as u32;
                    event_count += 1;
                    queued.events += 1;
                    pending.push(Pending { follower, event: event_count });
                    if !in_line.contains(&follower) {
                        in_line.push(follower);
                        rounds.append(follower);
                    }
                }
                let (mut sent_count, mut has_news, is_brief) = (0, false, random.chance(1, 3));
                if is_brief {
                    rounds.be_brief();
                }
                while rounds.may_send() {
                    if rounds.is_between() {
                        rounds.begin(queued, event_count as usize);
                        round_from = event_count;
                    }
                    let follower = rounds.next().unwrap();
                    assert_eq!(follower, in_line.remove(0), "SEED={seed}");
                    pending.retain(|pending| pending.follower != follower);
                    has_news |= random.chance(1, 3);
                    rounds.count_send(|| has_news);
                    sent_count += 1;
                    if rounds.is_between() {
                        queued = rounds.end(queued);
                        let behind = pending.iter().all(|pending| pending.event > round_from);
                        assert!(behind, "SEED={seed}: something from before the round is not sent");
                        assert_eq!(queued.events, event_count - round_from, "SEED={seed}");
                    }
                }
                let is_at_look = sent_count % sends_per_look == 0 && (has_news || is_brief);
                assert!(in_line.is_empty() || is_at_look, "SEED={seed}");
                assert!(!is_brief || sent_count <= sends_per_look, "SEED={seed}");
                assert_eq!(rounds.is_empty(), in_line.is_empty(), "SEED={seed}");
                rounds.end_turn();
            }
        }
    }

    #[test]
    fn deliveries_count_as_sent_when_their_round_ends() {
        let mut rounds = Rounds::new(1);
        (0..2).for_each(|index| rounds.append(index));
        rounds.begin(Queued::default(), 3); // Three were noted, and one more in the next turn.
        rounds.next();
        rounds.count_send(|| true);
        assert_eq!(rounds.take_sent(3), 0);
        rounds.end_turn();
        rounds.append(0);
        rounds.next();
        rounds.end(Queued::default());
        assert_eq!((rounds.take_sent(4), rounds.take_sent(1)), (3, 0));
        rounds.next();
        assert_eq!(rounds.take_sent(1), 1);
    }
}
