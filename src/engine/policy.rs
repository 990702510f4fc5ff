//! Backpressure as one pure function: [`owed`] takes the [`Terms`] of a subscriber, its [`Cursor`]
//! and the [`Log`].
//!
//! It is evaluated when the subscriber is about to be given something, on the thread on which the
//! subscriber lives. The engine evaluates it for its own thread and for connections; a reader on
//! another thread or in another process evaluates it by itself. A publish therefore costs the same
//! for one subscriber and for ten thousand.
//!
//! Invariants:
//! - P1: given and skipped chunks follow each other without a hole. Each step starts at
//!   `cursor.next_seq` and moves it forward.
//! - P2: `seen` is what the subscriber was given plus what its gaps counted, after its filter. It
//!   is exact even where the skipped chunks are no longer held.
//! - P3: `block` never skips a chunk that is still held. Only `drop` and `buffer` skip the newest
//!   chunk, after their reader has read everything that it was owed.
//! - P4: a chunk that only the disk holds is fetched, and not skipped. Under `drop`, `buffer` and
//!   `disconnect` this ends when the subscriber is *level* and has its backlog.
//!
//! A subscriber is level once its lag is within its own limit. Under `block` it is level once the
//! ring holds its next chunk. Until then it is given everything and gates nobody. `replay` has no
//! limit, so that it needs no level. `drop_oldest` and `conflate` want the newest chunks only, and
//! never read from the disk.
//!
//! Tests: below against a log that forgets nothing; `sim/campaigns.rs` against the running engine.

use crate::base::planted::{Planted, planted};
use crate::limits;
use crate::stream::{Gap, GapReason, Kinds, Meta, Policy, Terms, Totals};

/// The position of a subscriber in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The next chunk that it will be given or told of in a gap.
    pub next_seq: u64,
    /// Under `drop` and `buffer`, after the limit was reached, the first chunk that is no longer
    /// owed.
    stop_seq: u64,
    /// The first chunk that was not yet published when the subscriber attached; 0 once the cursor
    /// has passed it. The backlog is not lag: the subscriber is given as much of it as is held.
    /// [`AWAY`] or [`AWAY_CLAIMED`] for one that is not level.
    lag_from_seq: u64,
    /// Totals of all chunks of its kinds before `next_seq`, given or missed.
    pub seen: Totals,
}

const NO_STOP: u64 = u64::MAX;
/// [`Cursor::lag_from_seq`] of a subscriber that is not level: everything is its backlog.
const AWAY: u64 = u64::MAX;
/// Like [`AWAY`], for one whose `seen` is the word of its client, or begins at zero.
const AWAY_CLAIMED: u64 = u64::MAX - 1;
/// [`Log::kept_from_seq`] where the disk holds nothing.
pub const NOT_KEPT: u64 = u64::MAX;

const _: () = {
    assert!(limits::KEYS_MAX == u64::BITS as usize); // `conflate` marks keys in one word.
    assert!(limits::KEYS_MAX <= u8::MAX as usize); // A key is a byte.
    assert!(AWAY_CLAIMED < AWAY); // Both are behind every chunk.
};

/// The log as a policy sees it. Numbers may be torn where another thread writes them. An
/// implementation must not panic, and its user must check afterwards that nothing moved.
pub trait Log {
    /// The newest chunk; 0 if none was published.
    fn head_seq(&self) -> u64;
    /// The oldest chunk held; `head_seq + 1` if none is.
    fn tail_seq(&self) -> u64;
    /// The metadata of a chunk in `tail_seq..=head_seq`.
    fn meta(&self, seq: u64) -> Meta;
    /// Totals of all chunks of `kinds` ever published.
    fn totals_through_head(&self, kinds: Kinds) -> Totals;
    /// Totals of all chunks of `kinds` that are no longer held.
    fn totals_before_tail(&self, kinds: Kinds) -> Totals;
    /// The oldest chunk on disk, which holds everything from there to the tail; [`NOT_KEPT`] if
    /// nothing is there. It may be a chunk that the ring holds, too.
    #[inline]
    fn kept_from_seq(&self) -> u64 {
        NOT_KEPT
    }
    /// Totals of all chunks of `kinds` before the oldest one on disk. It is asked for only if the
    /// disk holds something.
    fn totals_before_kept(&self, kinds: Kinds) -> Totals {
        self.totals_before_tail(kinds)
    }
}

/// The decision of a policy: what a subscriber is owed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owed {
    /// The subscriber has everything.
    Nothing,
    /// The chunks of its kinds from `next_seq` to before `until_seq`.
    Give {
        /// One past the last chunk.
        until_seq: u64,
    },
    /// A gap from `next_seq` to before `until_seq`. Under `disconnect` it is the subscriber's end,
    /// unless the subscriber has just attached. The caller has to make that distinction.
    Skip {
        /// One past the last chunk.
        until_seq: u64,
        /// The reason for the gap.
        reason: GapReason,
    },
    /// The chunks of its kinds from `next_seq` to before `until_seq`, which only the disk holds.
    Fetch {
        /// One past the last chunk: the tail of the ring.
        until_seq: u64,
    },
    /// The subscriber's end, because it lags too far.
    Disconnect,
}

/// Decides what a subscriber is owed. The caller then calls [`Cursor::give`] or [`Cursor::skip`].
#[inline]
pub fn owed(terms: &Terms, cursor: &mut Cursor, log: &impl Log) -> Owed {
    let head_seq = log.head_seq();
    if cursor.next_seq > head_seq {
        return Owed::Nothing;
    }
    let tail_seq = log.tail_seq();
    if cursor.next_seq < tail_seq {
        return owed_behind(terms, cursor, log, tail_seq);
    }
    let end_seq = head_seq + 1;
    match terms.policy {
        Policy::Block | Policy::Replay => Owed::Give { until_seq: end_seq },
        Policy::Drop | Policy::Buffer => owed_under_drop(terms, cursor, log, end_seq),
        Policy::Conflate => owed_under_conflate(terms, cursor, log, end_seq),
        Policy::DropOldest if terms.limit.holds(lag(terms, cursor, log)) => {
            Owed::Give { until_seq: end_seq }
        }
        Policy::DropOldest => owed_under_drop_oldest(terms, cursor, log, end_seq),
        Policy::Disconnect if terms.limit.holds(lag(terms, cursor, log)) => {
            Owed::Give { until_seq: end_seq }
        }
        Policy::Disconnect => Owed::Disconnect,
    }
}

/// Decides what a subscriber is owed whose next chunk is no longer in the ring.
#[cold]
fn owed_behind(terms: &Terms, cursor: &Cursor, log: &impl Log, tail_seq: u64) -> Owed {
    let kept_from_seq = log.kept_from_seq();
    if kept_from_seq == NOT_KEPT || !fetches(terms, cursor) {
        return Owed::Skip { until_seq: tail_seq, reason: GapReason::Overtaken };
    }
    // Without the totals before its cursor the engine could not count that gap. The disk does.
    if cursor.next_seq < kept_from_seq && !cursor.is_claimed() {
        return Owed::Skip { until_seq: kept_from_seq.min(tail_seq), reason: GapReason::Expired };
    }
    Owed::Fetch { until_seq: tail_seq }
}

/// True if the subscriber is given chunks of an execution on disk from there, where the ring holds
/// them no longer.
pub fn fetches(terms: &Terms, cursor: &Cursor) -> bool {
    match terms.policy {
        Policy::Block | Policy::Replay => true,
        // It is not level, or the chunks are from before it attached.
        Policy::Drop | Policy::Buffer | Policy::Disconnect => cursor.catches_up(),
        Policy::DropOldest | Policy::Conflate => false,
    }
}

/// True if a subscriber that is away has come level: see the module's text.
pub fn is_near(terms: &Terms, cursor: &Cursor, log: &impl Log) -> bool {
    assert!(cursor.is_away());
    if cursor.next_seq < log.tail_seq() {
        return false;
    }
    match terms.policy {
        Policy::Block | Policy::Replay => true,
        _ => terms.limit.holds(pending(terms, cursor, log)) || planted(Planted::LevelAtTail),
    }
}

/// Totals of the pending chunks, in the subscriber's kinds.
#[inline]
pub fn pending(terms: &Terms, cursor: &Cursor, log: &impl Log) -> Totals {
    log.totals_through_head(terms.kinds) - cursor.seen
}

/// The lag of a subscriber, in its kinds, without the backlog from before it attached.
#[inline]
pub fn lag(terms: &Terms, cursor: &Cursor, log: &impl Log) -> Totals {
    log.totals_through_head(terms.kinds) - cursor.before_lag(terms.kinds, log)
}

#[inline]
fn owed_under_drop(terms: &Terms, cursor: &mut Cursor, log: &impl Log, end_seq: u64) -> Owed {
    if cursor.stop_seq == NO_STOP {
        if terms.limit.holds(lag(terms, cursor, log)) {
            return Owed::Give { until_seq: end_seq };
        }
        let lag_from_seq = cursor.lag_begins(cursor.next_seq);
        cursor.stop_seq = window_end(terms, lag_from_seq, log, end_seq);
    }
    if cursor.next_seq < cursor.stop_seq {
        return Owed::Give { until_seq: cursor.stop_seq.min(end_seq) };
    }
    Owed::Skip { until_seq: end_seq, reason: GapReason::Lag }
}

/// One past the last of the chunks from `from_seq` that fit within the limit.
fn window_end(terms: &Terms, from_seq: u64, log: &impl Log, end_seq: u64) -> u64 {
    let mut window = Totals::ZERO;
    let mut seq = from_seq;
    while seq < end_seq {
        let meta = log.meta(seq);
        if terms.kinds.contains(meta.kind) {
            window.count(meta.length);
            if !terms.limit.holds(window) {
                break;
            }
        }
        seq += 1;
    }
    seq
}

fn owed_under_drop_oldest(
    terms: &Terms,
    cursor: &mut Cursor,
    log: &impl Log,
    end_seq: u64,
) -> Owed {
    let mut window = Totals::ZERO;
    let mut seq = end_seq;
    while seq > cursor.next_seq {
        let meta = log.meta(seq - 1);
        if terms.kinds.contains(meta.kind) {
            window.count(meta.length);
            if !terms.limit.holds(window) {
                break;
            }
        }
        seq -= 1;
    }
    if seq == cursor.next_seq {
        return Owed::Give { until_seq: end_seq }; // Only where another thread tears the numbers.
    }
    Owed::Skip { until_seq: seq, reason: GapReason::Lag }
}

fn owed_under_conflate(terms: &Terms, cursor: &mut Cursor, log: &impl Log, end_seq: u64) -> Owed {
    // From the newest chunk back, the last one that adds a key is the first one owed.
    let mut keys_seen = 0u64;
    let mut first_owed_seq = end_seq;
    let mut seq = end_seq;
    while seq > cursor.next_seq {
        seq -= 1;
        let meta = log.meta(seq);
        let key_bit = 1u64 << (meta.key % limits::KEYS_MAX as u8);
        if terms.kinds.contains(meta.kind) && keys_seen & key_bit == 0 {
            keys_seen |= key_bit;
            first_owed_seq = seq;
        }
    }
    if first_owed_seq > cursor.next_seq {
        Owed::Skip { until_seq: first_owed_seq, reason: GapReason::Conflated }
    } else {
        Owed::Give { until_seq: first_owed_seq + 1 }
    }
}

impl Cursor {
    /// Creates a cursor before chunk `next_seq`, with `seen` as the totals before it.
    pub fn new(next_seq: u64, seen: Totals) -> Cursor {
        Cursor { next_seq, stop_seq: NO_STOP, lag_from_seq: 0, seen }
    }

    /// Returns the same cursor for a subscriber that attaches now: the backlog does not count as
    /// its lag.
    #[must_use]
    pub fn coming_at(self, head_seq: u64) -> Cursor {
        let is_behind = self.next_seq <= head_seq;
        let lag_from_seq = if is_behind { head_seq.saturating_add(1) } else { 0 };
        Cursor { lag_from_seq, ..self }
    }

    /// Returns the same cursor for a subscriber that is not level. `is_claimed` says that `seen`
    /// may be wrong.
    #[must_use]
    pub fn going_away(self, is_claimed: bool) -> Cursor {
        let lag_from_seq = if is_claimed { AWAY_CLAIMED } else { AWAY };
        Cursor { lag_from_seq, stop_seq: NO_STOP, ..self }
    }

    /// True if the subscriber is not level: it is given everything, and gates nobody.
    #[inline]
    pub fn is_away(&self) -> bool {
        self.lag_from_seq >= AWAY_CLAIMED
    }

    /// True if `seen` is the word of a client. It is corrected where the ring knows better.
    pub fn is_claimed(&self) -> bool {
        self.lag_from_seq == AWAY_CLAIMED
    }

    /// Returns the same cursor for a subscriber that is level.
    #[must_use]
    pub fn come_level(self) -> Cursor {
        assert!(self.is_away());
        assert!(!self.is_claimed()); // Its lag was counted.
        Cursor { lag_from_seq: 0, ..self }
    }

    /// Corrects `seen` to what the ring knows. Returns the difference.
    pub fn settle(&mut self, seen: Totals) -> Totals {
        assert!(self.is_away());
        self.lag_from_seq = AWAY;
        seen - std::mem::replace(&mut self.seen, seen)
    }

    /// True while the subscriber is given the backlog.
    #[inline]
    pub fn catches_up(&self) -> bool {
        self.next_seq < self.lag_from_seq
    }

    /// True if it has been given all of the backlog, and [`Cursor::caught_up`] was not called.
    #[inline]
    pub fn has_caught_up(&self) -> bool {
        self.lag_from_seq != 0 && !self.catches_up()
    }

    /// The first chunk that counts as lag of a subscriber at `next_seq`.
    pub fn lag_begins(&self, next_seq: u64) -> u64 {
        next_seq.max(self.lag_from_seq)
    }

    /// Returns the same cursor after the backlog.
    #[must_use]
    pub fn caught_up(self) -> Cursor {
        assert!(!self.catches_up());
        Cursor { lag_from_seq: 0, ..self }
    }

    /// Totals of the chunks of `kinds` that do not count as lag.
    #[inline]
    fn before_lag(&self, kinds: Kinds, log: &impl Log) -> Totals {
        match self.catches_up() {
            false => self.seen,
            true => totals_before(kinds, self.lag_from_seq, log),
        }
    }

    /// Returns the cursor behind a gap, at `next_seq`. It resets the stop of `drop`.
    #[must_use]
    pub fn jumped_to(self, next_seq: u64, seen: Totals) -> Cursor {
        Cursor { next_seq, seen, stop_seq: NO_STOP, ..self }
    }

    /// True if `drop` has stopped taking chunks for the subscriber.
    #[inline]
    pub fn is_tripped(&self) -> bool {
        self.stop_seq != NO_STOP
    }

    /// Returns the cursor at `next_seq` when only chunks of other kinds lie between.
    #[must_use]
    pub fn moved_to(self, next_seq: u64, seen: Totals) -> Cursor {
        Cursor { next_seq, seen, ..self }
    }

    /// Notes that the subscriber was given the chunks of `kinds` before `until_seq`.
    #[inline]
    pub fn give(&mut self, kinds: Kinds, until_seq: u64, log: &impl Log) {
        assert!(until_seq > self.next_seq); // P1
        if kinds.is_all() {
            let total_bytes = log.meta(until_seq - 1).total_bytes;
            self.seen = Totals { chunks: until_seq - 1, bytes: total_bytes };
        } else {
            for seq in self.next_seq..until_seq {
                let meta = log.meta(seq);
                if kinds.contains(meta.kind) {
                    self.seen.count(meta.length);
                }
            }
        }
        self.next_seq = until_seq;
    }

    /// Moves the cursor to `until_seq` behind chunks that were given from the disk, or told of in a
    /// gap. `passed` are the totals of those of its kinds.
    pub fn pass(&mut self, until_seq: u64, passed: Totals) {
        assert!(until_seq > self.next_seq); // P1
        assert!(passed.chunks <= until_seq - self.next_seq); // P2
        self.seen = self.seen + passed;
        self.next_seq = until_seq;
    }

    /// Notes that the subscriber was given the next chunk, of `length` bytes. `None` means that the
    /// next chunk is not of its kinds.
    #[inline]
    pub fn step(&mut self, length: Option<u32>) {
        if let Some(length) = length {
            self.seen.count(length);
        }
        self.next_seq += 1;
    }

    /// Moves the cursor to `until_seq`. Returns `None` if no chunk of `kinds` was between.
    pub fn skip(
        &mut self,
        kinds: Kinds,
        until_seq: u64,
        reason: GapReason,
        log: &impl Log,
    ) -> Option<Gap> {
        assert!(until_seq > self.next_seq); // P1
        let from_seq = self.next_seq;
        let seen_before = self.seen;
        self.seen = totals_before(kinds, until_seq, log);
        self.next_seq = until_seq;
        let missed = self.seen - seen_before;
        if missed.chunks > 0 || reason != GapReason::Overtaken {
            self.stop_seq = NO_STOP;
        }
        (missed.chunks > 0).then_some(Gap {
            from_seq,
            to_seq: until_seq - 1,
            chunk_count: missed.chunks,
            byte_count: missed.bytes,
            reason,
        })
    }
}

/// Totals of all chunks of `kinds` before `seq`, which is in `tail_seq..=head_seq + 1`, or is the
/// oldest chunk on disk.
pub fn totals_before(kinds: Kinds, seq: u64, log: &impl Log) -> Totals {
    let tail_seq = log.tail_seq();
    if seq > log.head_seq() {
        log.totals_through_head(kinds)
    } else if seq < tail_seq && seq == log.kept_from_seq() {
        log.totals_before_kept(kinds)
    } else if seq <= tail_seq {
        log.totals_before_tail(kinds)
    } else if kinds.is_all() {
        Totals { chunks: seq - 1, bytes: log.meta(seq - 1).total_bytes }
    } else {
        let mut totals = log.totals_before_tail(kinds);
        for held_seq in tail_seq..seq {
            let meta = log.meta(held_seq);
            if kinds.contains(meta.kind) {
                totals.count(meta.length);
            }
        }
        totals
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
