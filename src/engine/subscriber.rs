//! One local subscriber, and the next thing that it is given.
//!
//! A [`Local`] lives on the engine's thread (a closure, a poll handle, a connection). The part of
//! it that a delivery touches is kept small, and lies beside its neighbours of the same execution.
//! `remote.rs` has the subscriber on another thread.

use std::ops::Range;

use crate::base::planted::{Planted, planted};
use crate::base::{Handle, Instant, SubscriberId};
use crate::engine::action::{AcknowledgeError, Action, Subscribed};
use crate::engine::event::{Coalesce, Fetched, RingFacts, SubscribeSpec, SubscriberPlace};
use crate::engine::log::ChunkLog;
use crate::engine::policy::{Cursor, Log, Owed, fetches, is_near, owed, pending, totals_before};
use crate::engine::reserve::Replay;
use crate::engine::resume::Successor;
use crate::engine::wheel::TimerId;
use crate::limits;
use crate::stream::{
    DetachReason, End, EndState, Exit, Gap, GapReason, Outcome, Policy, Terms, Totals,
};

/// A subscriber of the engine's own thread.
#[derive(Debug)]
pub(super) struct Local {
    pub id: SubscriberId,
    pub cursor: Cursor,
    /// Maximum number of pending chunks that are given at once without evaluating the terms; 0 if
    /// the terms always have to be evaluated.
    pub plain_chunks: u64,
    pub terms: Terms,
    /// Number of chunks that it can take now. `u32::MAX` is any number, and is not counted down.
    pub demand: u32,
    pub connection: ConnectionState,
    /// True while nothing was given: a first gap may have the reason `Late`. Under `block` gaps
    /// leave it set.
    pub fresh: bool,
    /// True if `detail.coalescing` is set.
    pub coalesces: bool,
    /// True if the pending chunks have waited long enough for coalescing.
    pub flush: bool,
    /// True if its client may come back for the chunks that it was given last.
    pub replays: bool,
    /// True if it was removed. Its place is reclaimed after the current scan.
    pub gone: bool,
    /// The number of the last progress report that it was given.
    pub progress_reported: u64,
    /// With acknowledgements, one past the last chunk that it may be given.
    pub acked_until_seq: u64,
    /// One past the last chunk that the disk was asked for, until it answers; 0 otherwise. Nothing
    /// but the answer moves the cursor meanwhile.
    pub fetch_until_seq: u64,
    pub detail: Box<Detail>,
}

/// The part of a local subscriber that a plain delivery does not touch.
#[derive(Debug)]
pub(super) struct Detail {
    pub start: Totals,
    /// Totals of the chunks of its kinds that were no longer held when it attached.
    pub gone: Totals,
    pub missed: Totals,
    pub since: Instant,
    /// The time at which it came level, if it read from the disk, or at which it attached.
    pub level_at: Instant,
    /// The time at which its connection last accepted a part of what it was given.
    pub moved_at: Instant,
    /// The window of acknowledgements in the subscription, in chunks.
    pub ack_window: Option<u32>,
    /// The window in force. It is smaller where the ring has to keep the chunks within it.
    pub window: Option<Window>,
    /// The last acknowledged chunk.
    pub acked_seq: u64,
    /// The last chunk of its kinds that it was given or told of in a gap.
    pub reported_seq: u64,
    pub grace_timer: Option<TimerId>,
    // Few subscribers have these.
    pub coalescing: Option<Box<Coalescing>>,
    pub successor: Option<Box<Successor>>,
}

/// The state of a subscriber that coalesces.
#[derive(Debug)]
pub(super) struct Coalescing {
    pub spec: Coalesce,
    pub timer: Option<TimerId>,
}

/// The maximum of chunks that a subscriber may be given and has not acknowledged. The first one is
/// always within the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub chunks: u32,
    /// Number of bytes in the payload area of the ring; `u64::MAX` where the ring need not keep
    /// them.
    pub bytes: u64,
}

impl Window {
    /// Returns the window for `ack_window`, within what the ring can keep.
    pub fn of(ack_window: Option<u32>, replay: Option<Replay>) -> Option<Window> {
        let asked = ack_window?;
        let window = match replay {
            Some(Replay { chunks, bytes, .. }) => Window { chunks, bytes: bytes.into() },
            None => Window { chunks: asked, bytes: u64::MAX },
        };
        assert!(window.chunks > 0); // The first chunk is always within it.
        assert!(window.chunks <= asked);
        Some(window)
    }
}

/// The state of a local subscriber's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Up,
    /// The connection broke. The subscriber keeps its place until the grace timer fires.
    Lost,
}

/// The next thing that a local subscriber is given.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    Nothing,
    /// Chunks wait for others to be coalesced with, for `delay_max` at the longest.
    Coalesce,
    /// A run of chunks. `is_cut` is true if one delivery could not take everything that is owed.
    Deliver {
        from_seq: u64,
        until_seq: u64,
        is_cut: bool,
    },
    /// A run of chunks that the disk is asked for.
    Fetch(Fetch),
    Gap(Gap),
    Disconnect,
    /// The subscriber has come level. It is asked again.
    Level,
    /// The subscriber was given everything, and the execution is over.
    CaughtUp,
}

impl Detail {
    /// Makes sure that no more was passed than there was. A damaged disk can contradict itself. The
    /// totals at the end are then those of the execution, and not those of the deliveries.
    fn fit(&mut self, seen: Totals) {
        let passed = self.start + self.missed;
        if passed.chunks > seen.chunks || passed.bytes > seen.bytes {
            let Totals { chunks, bytes } = self.missed;
            self.start = Totals::ZERO;
            self.missed = Totals { chunks: chunks.min(seen.chunks), bytes: bytes.min(seen.bytes) };
        }
    }
}

/// The chunks that the disk is asked for: see [`crate::engine::Action::Fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    pub from_seq: u64,
    pub until_seq: u64,
    pub chunks_max: u32,
}

impl Fetch {
    /// The question to the shard.
    pub fn action(self, subscriber: SubscriberId, execution: Handle) -> Action {
        let Fetch { from_seq, until_seq, chunks_max } = self;
        Action::Fetch { subscriber, execution, from_seq, until_seq, chunks_max }
    }
}

/// The consequence of chunks that were overwritten before their delivery.
#[derive(Debug)]
pub(super) enum Overtaken {
    /// No chunk of its kinds was among them.
    NothingMissed,
    Gap(Gap),
    /// The disk has them.
    Fetch(Fetch),
    Disconnect,
}

const _: () = {
    assert!(size_of::<Local>() <= 128); // A pair of cache lines, which are fetched together.
    assert!(size_of::<Detail>() <= 152); // Ten thousand subscribers may be idle at once.
    assert!(limits::DROP_LIMIT_CHUNKS > 0);
    assert!(limits::BUFFER_LIMIT_CHUNKS >= limits::DROP_LIMIT_CHUNKS);
    assert!(limits::DISCONNECT_LIMIT_CHUNKS >= limits::BUFFER_LIMIT_CHUNKS);
};

impl Local {
    /// Creates a subscriber that was given nothing. `gone` are the totals before the tail. The
    /// caller sets the window.
    pub fn new(subscribed: &Subscribed, spec: &SubscribeSpec, gone: Totals, now: Instant) -> Local {
        let Subscribed { subscriber, terms, cursor, replay, .. } = *subscribed;
        assert!(spec.place == SubscriberPlace::Local);
        assert!(terms.limit.chunks > 0);
        assert!(replay.is_none() || terms.policy == Policy::Block); // Others do not hold the ring.
        let detail = Box::new(Detail {
            start: cursor.seen,
            gone,
            missed: Totals::ZERO,
            since: now,
            level_at: now,
            moved_at: now,
            ack_window: spec.ack_window,
            window: None,
            acked_seq: cursor.next_seq - 1,
            reported_seq: cursor.next_seq - 1,
            grace_timer: None,
            coalescing: spec.coalesce.map(|spec| Box::new(Coalescing { spec, timer: None })),
            successor: None,
        });
        Local {
            id: subscriber,
            cursor,
            plain_chunks: 0,
            terms,
            demand: spec.demand,
            coalesces: spec.coalesce.is_some(),
            connection: ConnectionState::Up,
            fresh: true,
            flush: false,
            replays: replay.is_some(),
            gone: false,
            progress_reported: 0,
            acked_until_seq: u64::MAX,
            fetch_until_seq: 0,
            detail,
        }
    }

    /// Computes [`Local::plain_chunks`] again after a change.
    pub fn set_plain(&mut self) {
        let looks = self.gone
            || self.connection == ConnectionState::Lost
            || self.demand != u32::MAX
            || self.coalesces
            || self.acked_until_seq != u64::MAX
            || self.cursor.is_away()
            || (self.cursor.catches_up() && self.terms.policy != Policy::Block)
            || !self.terms.kinds.is_all();
        self.plain_chunks = match self.terms.policy {
            _ if looks => 0,
            Policy::Block | Policy::Replay => u64::MAX,
            Policy::Conflate => 1,
            _ if self.terms.limit.bytes != u64::MAX => 1, // One chunk always fits.
            _ => u64::from(self.terms.limit.chunks),
        };
        assert!(looks || self.plain_chunks > 0);
    }

    /// True if all chunks before `end_seq` are owed, without evaluating the terms.
    #[inline]
    pub fn takes_all(&self, end_seq: u64) -> bool {
        // With nothing pending this wraps around to a very large number.
        let pending = end_seq.wrapping_sub(self.cursor.next_seq);
        pending.wrapping_sub(1) < self.plain_chunks && !self.cursor.is_tripped()
    }

    /// Moves the cursor over the next thing to be given. The connection has to be up. `ended` says
    /// that nothing more will be published.
    #[inline]
    pub fn next(&mut self, log: &ChunkLog, ended: bool) -> Next {
        assert!(self.connection == ConnectionState::Up);
        if self.cursor.is_away() {
            if self.fetch_until_seq != 0 {
                return Next::Nothing; // The answer moves the cursor, and nothing else does.
            }
            if is_near(&self.terms, &self.cursor, log) {
                self.cursor = self.cursor.come_level();
                self.set_plain();
                return Next::Level;
            }
        }
        let early = planted(Planted::EndBeforeLastChunk) && ended;
        if self.cursor.next_seq + u64::from(early) > log.head_seq() {
            self.flush = false;
            return if ended { Next::CaughtUp } else { Next::Nothing };
        }
        if self.cursor.has_caught_up() {
            self.cursor = self.cursor.caught_up();
            self.set_plain();
        }
        if self.demand == 0 {
            return Next::Nothing;
        }
        match owed(&self.terms, &mut self.cursor, log) {
            Owed::Nothing => Next::Nothing,
            Owed::Give { until_seq } => self.give(until_seq, log, ended),
            Owed::Skip { reason: GapReason::Overtaken, .. } if self.is_overtaken(log) => {
                Next::Disconnect
            }
            Owed::Skip { until_seq, reason } => self.skip(until_seq, reason, log, ended),
            Owed::Fetch { until_seq } => self.fetch(until_seq).map_or(Next::Nothing, Next::Fetch),
            Owed::Disconnect => Next::Disconnect,
        }
    }

    #[inline]
    fn give(&mut self, until_seq: u64, log: &ChunkLog, ended: bool) -> Next {
        let from_seq = self.cursor.next_seq;
        let delivery_end = log.delivery_end(from_seq);
        let is_cut = delivery_end < until_seq;
        let mut until_seq = until_seq.min(delivery_end);
        if self.acked_until_seq != u64::MAX {
            until_seq = self.reach_of_window(until_seq, log);
        }
        let mut count = 0;
        if self.demand != u32::MAX {
            (until_seq, count) = self.reach_of_demand(until_seq, log);
        }
        if until_seq <= from_seq {
            return Next::Nothing;
        }
        if self.coalesces && !self.flush && !ended && self.waits_for_company(log) {
            return Next::Coalesce;
        }
        assert!(until_seq <= log.head_seq() + 1);
        // What is left has waited as long. It is given as soon as it can be taken.
        self.flush = self.coalesces && until_seq <= log.head_seq();
        if self.demand != u32::MAX {
            self.demand -= count;
        }
        if self.acked_until_seq != u64::MAX {
            let wanted = |&seq: &u64| self.terms.kinds.contains(log.meta(seq).kind);
            let last_seq = (from_seq..until_seq).rev().find(wanted);
            self.detail.reported_seq = last_seq.unwrap_or(self.detail.reported_seq);
        }
        self.cursor.give(self.terms.kinds, until_seq, log);
        self.fresh = false;
        let is_cut = is_cut && until_seq == delivery_end;
        Next::Deliver { from_seq, until_seq, is_cut }
    }

    /// Returns one past the last chunk that the window of acknowledgements allows, at most
    /// `until_seq`. The client does not see chunks of other kinds. While everything is
    /// acknowledged, the window therefore begins at the next chunk of its kinds, and the others
    /// pass.
    fn reach_of_window(&mut self, until_seq: u64, log: &ChunkLog) -> u64 {
        let from_seq = self.cursor.next_seq;
        let Detail { window, acked_seq, reported_seq, .. } = *self.detail;
        let Window { chunks, bytes } = window.expect("there is a bound");
        let next_wanted = |seq: u64| {
            let wanted = |&seq: &u64| self.terms.kinds.contains(log.meta(seq).kind);
            (seq..until_seq).find(wanted).unwrap_or(until_seq)
        };
        let mut first_seq = log.first_unacked(acked_seq, from_seq, self.terms.kinds);
        if reported_seq <= acked_seq {
            first_seq = next_wanted(from_seq);
            let bound_seq = first_seq + u64::from(chunks);
            self.acked_until_seq = self.acked_until_seq.max(bound_seq);
        }
        let mut reach_seq = self.acked_until_seq.max(from_seq).min(until_seq);
        if bytes != u64::MAX {
            // The ring keeps everything unacknowledged: behind the first such chunk only as much as
            // fits.
            let fits =
                |&seq: &u64| seq <= first_seq || log.ring_bytes_max(first_seq..seq + 1) <= bytes;
            reach_seq = (from_seq..reach_seq).find(|seq| !fits(seq)).unwrap_or(reach_seq);
        }
        let reach_seq = next_wanted(reach_seq);
        assert!(reach_seq >= from_seq);
        assert!(reach_seq <= until_seq);
        reach_seq
    }

    /// Returns one past the last chunk that the demand allows, at most `until_seq`, and the number
    /// of chunks of its kinds up to there. Chunks of other kinds use no demand.
    fn reach_of_demand(&self, until_seq: u64, log: &ChunkLog) -> (u64, u32) {
        let from_seq = self.cursor.next_seq;
        let kinds = self.terms.kinds;
        if kinds.is_all() {
            let reach_seq = until_seq.min(from_seq + u64::from(self.demand));
            return (reach_seq, reach_seq.saturating_sub(from_seq) as u32);
        }
        let mut count = 0;
        for seq in from_seq..until_seq {
            if kinds.contains(log.meta(seq).kind) {
                if count == self.demand {
                    return (seq, count);
                }
                count += 1;
            }
        }
        assert!(count <= self.demand);
        (until_seq, count)
    }

    fn waits_for_company(&self, log: &ChunkLog) -> bool {
        let coalesce = self.detail.coalescing.as_ref().expect("the flag says so").spec;
        let pending = pending(&self.terms, &self.cursor, log);
        pending.bytes < coalesce.bytes_max && pending.chunks < u64::from(self.terms.limit.chunks)
    }

    fn skip(&mut self, until_seq: u64, reason: GapReason, log: &ChunkLog, ended: bool) -> Next {
        // Once a `block` subscriber is attached, the gate protects its chunks. Whatever it misses
        // was gone before it attached, perhaps without the engine's knowledge.
        let blocks = self.terms.policy == Policy::Block;
        let late = reason == GapReason::Overtaken && (self.is_late() || blocks);
        let reason = if late { GapReason::Late } else { reason };
        self.fresh &= blocks;
        match self.cursor.skip(self.terms.kinds, until_seq, reason, log) {
            Some(_) if planted(Planted::GapLostAtEnd) && ended => self.next(log, ended),
            Some(gap)
                if planted(Planted::ConflatedWithoutGap) && gap.reason == GapReason::Conflated =>
            {
                self.next(log, ended)
            }
            Some(gap) => {
                assert!(gap.to_seq + 1 == self.cursor.next_seq); // P1
                self.detail.reported_seq = gap.to_seq;
                if self.demand != u32::MAX {
                    self.demand -= 1; // A gap counts as a delivery.
                }
                let missed = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
                self.detail.missed = self.detail.missed + missed;
                Next::Gap(gap)
            }
            // No chunk of its kinds was skipped: evaluate again from the new cursor.
            None => self.next(log, ended),
        }
    }

    /// Asks the disk for the chunks from the cursor to before `until_seq`, within the demand and
    /// the window of acknowledgements. From now on the subscriber is not level.
    fn fetch(&mut self, until_seq: u64) -> Option<Fetch> {
        assert!(self.fetch_until_seq == 0); // One at a time.
        let from_seq = self.cursor.next_seq;
        let (mut until_seq, mut chunks_max) = (until_seq, self.demand);
        if let Some(Window { chunks, .. }) = self.detail.window {
            chunks_max = chunks_max.min(chunks);
            // While everything is acknowledged, the window begins at the next chunk of its kinds.
            if self.detail.reported_seq > self.detail.acked_seq {
                until_seq = until_seq.min(self.acked_until_seq);
            }
        }
        if chunks_max == 0 || until_seq <= from_seq {
            return None;
        }
        if !self.cursor.is_away() {
            self.cursor = self.cursor.going_away(false);
            self.set_plain();
        }
        self.fetch_until_seq = until_seq;
        assert!(self.plain_chunks == 0); // Nothing is given to it in passing.
        Some(Fetch { from_seq, until_seq, chunks_max })
    }

    /// Takes the answer of the disk, and moves behind it. Returns the gap to report, if there is
    /// one.
    pub fn fetched(&mut self, seqs: Range<u64>, result: Fetched, log: &ChunkLog) -> Option<Gap> {
        let is_settled = seqs.end >= log.tail_seq();
        let gap = self.take_fetched(seqs, result, log);
        if is_settled {
            self.detail.fit(self.cursor.seen);
        }
        gap
    }

    fn take_fetched(&mut self, seqs: Range<u64>, result: Fetched, log: &ChunkLog) -> Option<Gap> {
        let asked_until_seq = std::mem::take(&mut self.fetch_until_seq);
        let Range { start: from_seq, end: until_seq } = seqs;
        assert!(self.cursor.is_away());
        assert!(from_seq == self.cursor.next_seq); // P1: nothing has moved it meanwhile.
        // It was asked for, or the ring holds it no longer.
        assert!(from_seq < until_seq && until_seq <= asked_until_seq.max(log.tail_seq()));
        let (Fetched::Given { totals, .. } | Fetched::Lost { totals, .. }) = result;
        self.cursor.pass(until_seq, totals);
        if until_seq >= log.tail_seq() {
            let seen = totals_before(self.terms.kinds, until_seq, log);
            self.detail.start = self.detail.start + self.cursor.settle(seen);
        }
        if totals.chunks == 0 {
            return None;
        }
        self.fresh = false;
        let taken = match result {
            Fetched::Given { .. } => totals.chunks.min(u32::MAX.into()) as u32,
            Fetched::Lost { .. } => 1, // A gap counts as a delivery.
        };
        if self.demand != u32::MAX {
            self.demand = self.demand.saturating_sub(taken); // It may have become less meanwhile.
        }
        if let Some(Window { chunks, .. }) = self.detail.window {
            let is_acked = self.detail.reported_seq <= self.detail.acked_seq;
            let bound_seq = if is_acked { from_seq + u64::from(chunks) } else { 0 };
            self.acked_until_seq = self.acked_until_seq.max(bound_seq);
        }
        match result {
            Fetched::Given { last_seq, .. } => {
                assert!((from_seq..until_seq).contains(&last_seq));
                self.detail.reported_seq = last_seq;
                None
            }
            Fetched::Lost { reason, .. } => {
                self.detail.reported_seq = until_seq - 1;
                self.detail.missed = self.detail.missed + totals;
                let Totals { chunks: chunk_count, bytes: byte_count } = totals;
                Some(Gap { from_seq, to_seq: until_seq - 1, chunk_count, byte_count, reason })
            }
        }
    }

    /// True if it is given chunks from the disk where the ring holds them no longer, and its next
    /// chunk is `next_seq`.
    fn reads_from_disk(&self, next_seq: u64, log: &ChunkLog) -> bool {
        let cursor = self.cursor.moved_to(next_seq, self.cursor.seen);
        log.is_kept() && fetches(&self.terms, &cursor)
    }

    /// Takes back what was not given from chunk `from_seq` on, and asks the disk for the chunks
    /// through `to_seq`, which the ring holds no longer. The log does not know that yet.
    fn fetch_overtaken(&mut self, from_seq: u64, to_seq: u64, log: &ChunkLog) -> Option<Fetch> {
        let kinds = self.terms.kinds;
        let wanted = |&seq: &u64| kinds.contains(log.meta(seq).kind);
        let mut back = Totals::ZERO;
        let seqs = (from_seq..self.cursor.next_seq).filter(wanted);
        seqs.for_each(|seq| back.count(log.meta(seq).length));
        self.cursor = Cursor::new(from_seq, self.cursor.seen - back).going_away(false);
        self.set_plain();
        if self.demand != u32::MAX {
            self.demand = self.demand.saturating_add(back.chunks as u32).min(u32::MAX - 1);
        }
        self.detail.reported_seq = self.last_reported_before(from_seq, log);
        self.fetch(to_seq + 1)
    }

    /// Returns the last chunk of its kinds before `seq` that it was told of. If the ring holds
    /// none, everything counts as acknowledged.
    fn last_reported_before(&self, seq: u64, log: &ChunkLog) -> u64 {
        let wanted = |&seq: &u64| self.terms.kinds.contains(log.meta(seq).kind);
        let last_seq = (log.tail_seq()..seq).rev().find(wanted);
        last_seq.unwrap_or(self.detail.acked_seq.min(seq - 1))
    }

    /// True while the subscriber has not been told of all chunks that were gone when it attached.
    fn is_late(&self) -> bool {
        self.fresh && self.cursor.seen.chunks < self.detail.gone.chunks
    }

    /// True if the ring has overwritten chunks that `disconnect` owes the subscriber. Chunks that
    /// were gone when it attached are not owed; they become a gap.
    fn is_overtaken(&self, log: &ChunkLog) -> bool {
        let owed_from = if self.is_late() { self.detail.gone } else { self.cursor.seen };
        let gone_now = log.totals_before_tail(self.terms.kinds);
        self.terms.policy == Policy::Disconnect && gone_now.chunks > owed_from.chunks
    }

    /// True if it lags further than `disconnect` allows.
    pub fn is_over(&mut self, log: &ChunkLog) -> bool {
        match owed(&self.terms, &mut self.cursor, log) {
            Owed::Disconnect => true,
            Owed::Skip { reason: GapReason::Overtaken, .. } => self.is_overtaken(log),
            Owed::Give { .. } | Owed::Skip { .. } | Owed::Fetch { .. } | Owed::Nothing => false,
        }
    }

    /// True if it may hold its producer back.
    pub fn gates(&self) -> bool {
        self.terms.policy == Policy::Block && !self.gone && !self.cursor.is_away()
    }

    /// The last acknowledged chunk; `None` without acknowledgements.
    pub fn acked_seq(&self) -> Option<u64> {
        self.detail.window.map(|_| self.detail.acked_seq)
    }

    /// True if its connection is broken.
    pub fn is_lost(&self) -> bool {
        self.connection == ConnectionState::Lost
    }

    /// Totals of its gaps.
    pub fn missed(&self) -> Totals {
        self.detail.missed
    }

    /// The time at which it attached.
    pub fn since(&self) -> Instant {
        self.detail.since
    }

    /// The number of chunks that it can get at once and stay within its limit, if it has taken
    /// everything before. It is 1 under a limit in bytes, whose number of chunks is unknown. It is
    /// 1 as well for a subscriber that coalesces, because that one has not taken everything.
    pub fn burst_chunks(&self) -> u32 {
        match self.coalesces || self.terms.limit.bytes != u64::MAX {
            true => 1,
            false => self.terms.limit.chunks,
        }
    }

    /// Creates the final report.
    pub fn end(&self, state: EndState, now: Instant) -> End {
        let passed = self.detail.start + self.detail.missed;
        assert!(passed.chunks <= self.cursor.seen.chunks); // P2
        assert!(passed.bytes <= self.cursor.seen.bytes);
        let given = self.cursor.seen - passed;
        let duration_us = now.since(self.detail.since).as_micros() as u64;
        let (missed, published) = (self.detail.missed, self.cursor.seen);
        End { state, given, missed, published, duration_us, exit: None }
    }

    /// Creates the final report for a subscriber that is detached before the execution's end.
    pub fn detached(&self, reason: DetachReason, now: Instant) -> End {
        self.end(EndState::Detached { reason, resume_from: self.cursor.next_seq }, now)
    }

    /// Creates the final report for a subscriber that stays to the execution's end.
    pub fn ended(&self, outcome: Outcome, exit: Option<Exit>, now: Instant) -> End {
        End { exit, ..self.end(EndState::Ended(outcome), now) }
    }

    /// Sets the window that this ring can keep, if the subscriber acknowledges.
    pub fn set_window(&mut self, ring: RingFacts) {
        let ack_window = self.detail.ack_window;
        let replay = self.replays.then(|| Replay::of(ring, ack_window));
        self.detail.window = Window::of(ack_window, replay);
        self.acked_until_seq = match self.detail.window {
            Some(window) => self.detail.acked_seq + 1 + u64::from(window.chunks),
            None => u64::MAX,
        };
        assert!(self.acked_until_seq > self.detail.acked_seq);
        self.set_plain();
    }

    /// Takes an acknowledgement of all chunks through `seq`, which moves the window.
    ///
    /// # Errors
    /// If the subscriber does not acknowledge, or was not given that chunk.
    pub fn acknowledge(&mut self, seq: u64) -> Result<(), AcknowledgeError> {
        if self.detail.ack_window.is_none() {
            return Err(AcknowledgeError::NotAsked);
        }
        let next_seq = self.cursor.next_seq;
        if seq >= next_seq {
            return Err(AcknowledgeError::NotGiven { next_seq });
        }
        if let Some(window) = self.detail.window {
            self.detail.acked_seq = self.detail.acked_seq.max(seq);
            let until_seq = seq + 1 + u64::from(window.chunks);
            self.acked_until_seq = self.acked_until_seq.max(until_seq);
        }
        Ok(())
    }

    /// Goes on at the disk, because the ring begins anew behind its next chunk.
    pub fn leave_ring(&mut self) {
        let wants_newest = matches!(self.terms.policy, Policy::DropOldest | Policy::Conflate);
        if !wants_newest && !self.cursor.is_away() {
            self.cursor = self.cursor.going_away(false);
            self.set_plain();
        }
    }

    /// Takes back chunks that were overwritten before their delivery, and continues behind them.
    pub fn overtaken(&mut self, from_seq: u64, to_seq: u64, log: &ChunkLog) -> Overtaken {
        let next_seq = self.cursor.next_seq;
        assert!(from_seq <= to_seq && to_seq < next_seq);
        assert!(from_seq >= log.tail_seq());
        // The engine still knows the metadata of these chunks: it was not yet told that they are
        // gone.
        let kinds = self.terms.kinds;
        let sum = |seqs: std::ops::Range<u64>| {
            let metas = seqs.map(|seq| log.meta(seq)).filter(|meta| kinds.contains(meta.kind));
            metas.fold(Totals::ZERO, |mut sum, meta| {
                sum.count(meta.length);
                sum
            })
        };
        assert!(self.fetch_until_seq == 0); // It was given chunks of the ring.
        let reads_from_disk = self.reads_from_disk(from_seq, log);
        let kept_from_seq = if reads_from_disk { log.kept_from_seq() } else { u64::MAX };
        if kept_from_seq <= from_seq && sum(from_seq..to_seq + 1).chunks > 0 {
            let fetch = self.fetch_overtaken(from_seq, to_seq, log);
            return fetch.map_or(Overtaken::NothingMissed, Overtaken::Fetch);
        }
        // The rest, which the disk still holds, will be found to be overwritten in its turn.
        let to_seq = if kept_from_seq <= from_seq { to_seq } else { to_seq.min(kept_from_seq - 1) };
        let missed = sum(from_seq..to_seq + 1);
        let is_cut = self.terms.policy == Policy::Disconnect && !reads_from_disk;
        if is_cut && missed.chunks > 0 {
            let seen = self.cursor.seen - sum(from_seq..next_seq);
            self.cursor = Cursor::new(from_seq, seen);
            return Overtaken::Disconnect;
        }
        let seen = self.cursor.seen - sum(to_seq + 1..next_seq);
        self.cursor = match missed.chunks {
            0 => self.cursor.moved_to(to_seq + 1, seen),
            _ => self.cursor.jumped_to(to_seq + 1, seen),
        };
        self.detail.missed = self.detail.missed + missed;
        if missed.chunks == 0 {
            self.detail.reported_seq = self.last_reported_before(from_seq, log);
            return Overtaken::NothingMissed;
        }
        self.detail.reported_seq = to_seq;
        // Once a `block` subscriber is attached, the gate protects its chunks.
        let reason = match self.terms.policy {
            _ if reads_from_disk => GapReason::Expired,
            Policy::Block => GapReason::Late,
            _ => GapReason::Overtaken,
        };
        let Totals { chunks: chunk_count, bytes: byte_count } = missed;
        Overtaken::Gap(Gap { from_seq, to_seq, chunk_count, byte_count, reason })
    }
}
