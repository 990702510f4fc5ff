//! One subscriber as the engine sees it, and what it is to be told next.
//!
//! [`Local`] lives on the engine's thread (a closure, a poll handle, a connection), [`Remote`] on
//! another thread. The part of a local one that a delivery touches is kept small and lies beside
//! its neighbours of the same execution.

use crate::base::planted::{Planted, planted};
use crate::base::{Instant, SubscriberId};
use crate::engine::action::{DetachReason, End, EndState, Outcome};
use crate::engine::chunk::{Gap, GapReason, Totals};
use crate::engine::event::{Coalesce, RingFacts, SubscribeSpec};
use crate::engine::exit::Exit;
use crate::engine::log::ChunkLog;
use crate::engine::policy::{Cursor, Log, Owed, Policy, Terms, owed, pending};
use crate::engine::reserve::Replay;
use crate::engine::resume::Heir;
use crate::engine::wheel::TimerId;

/// A subscriber of the engine's own thread.
#[derive(Debug)]
pub(super) struct Local {
    pub id: SubscriberId,
    pub cursor: Cursor,
    /// That many pending chunks are given at once without a look at the terms; 0: always look.
    pub plain_chunks: u64,
    pub terms: Terms,
    /// Chunks that it can take now; `u32::MAX` is any number, and stays so.
    pub demand: u32,
    pub connection: Connection,
    /// Nothing was given yet: a first gap may be for coming late. `block` is so until its first
    /// chunk.
    pub fresh: bool,
    /// It has wishes in `detail.coalesce`.
    pub coalesces: bool,
    /// Coalescing has waited long enough for what is there.
    pub flush: bool,
    /// It may come back for what it was given last.
    pub replays: bool,
    /// It was removed; the place is taken back after the present scan.
    pub gone: bool,
    /// Which progress report it was told last.
    pub progress_told: u64,
    /// With acknowledgements: one past the last chunk it may be given.
    pub acked_until_seq: u64,
    pub detail: Box<Detail>,
}

/// What no delivery without special wishes touches.
#[derive(Debug)]
pub(super) struct Detail {
    pub start: Totals,
    /// Chunks of its kinds that were gone when it came.
    pub gone: Totals,
    pub missed: Totals,
    pub since: Instant,
    /// When its connection last took a part of what it was given.
    pub moved_at: Instant,
    /// The window of acknowledgements that it asked for, in chunks.
    pub ack_window: Option<u32>,
    /// The window that it has: smaller where the ring has to keep what is in it.
    pub window: Option<Window>,
    /// It has dealt with everything through this chunk.
    pub acked_seq: u64,
    /// The last chunk of its kinds that it was given or told of in a gap.
    pub told_seq: u64,
    pub coalesce: Option<Coalesce>,
    pub coalesce_timer: Option<TimerId>,
    pub grace_timer: Option<TimerId>,
    pub heir: Option<Heir>,
}

/// The chunks that a subscriber may be given and has not acknowledged, at most. The first one is
/// always within the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub chunks: u32,
    /// In the payload area of the ring, `u64::MAX` where the ring need not keep them.
    pub bytes: u64,
}

impl Window {
    /// The window that is asked for, within what the ring can keep.
    pub fn of(ack_window: Option<u32>, replay: Option<Replay>) -> Option<Window> {
        let chunks = ack_window?;
        Some(match replay {
            Some(Replay { chunks, bytes, .. }) => Window { chunks, bytes: bytes.into() },
            None => Window { chunks, bytes: u64::MAX },
        })
    }
}

/// Can it be reached?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Up,
    /// It keeps its place until the grace timer fires.
    Lost,
}

/// What a local subscriber is to be told next.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    Nothing,
    /// Its chunks wait for company; wake it after this delay at the latest.
    Coalesce,
    /// With `is_cut` there is more for it than one delivery takes.
    Deliver {
        from_seq: u64,
        until_seq: u64,
        is_cut: bool,
    },
    Gap(Gap),
    Disconnect,
    /// It has everything there is.
    CaughtUp,
}

impl Local {
    /// What [`Local::plain_chunks`] has to be, now that something about it has changed.
    pub fn set_plain(&mut self) {
        let looks = self.gone
            || self.connection == Connection::Lost
            || self.demand != u32::MAX
            || self.coalesces
            || self.acked_until_seq != u64::MAX
            || (self.cursor.catches_up() && self.terms.policy != Policy::Block)
            || !self.terms.kinds.is_all();
        self.plain_chunks = match self.terms.policy {
            _ if looks => 0,
            Policy::Block => u64::MAX,
            Policy::Conflate => 1,
            _ if self.terms.limit.bytes != u64::MAX => 1, // One chunk always fits.
            _ => u64::from(self.terms.limit.chunks),
        };
    }

    /// Is it owed all chunks before `end_seq`, without a look at the terms?
    #[inline]
    pub fn takes_all(&self, end_seq: u64) -> bool {
        // Nothing pending wraps around to a very large number.
        let pending = end_seq.wrapping_sub(self.cursor.next_seq);
        pending.wrapping_sub(1) < self.plain_chunks && !self.cursor.is_tripped()
    }

    /// Moves the cursor over what is to be told next, if it can be reached at all. `ended`: nothing
    /// more will be published.
    #[inline]
    pub fn next(&mut self, log: &ChunkLog, ended: bool) -> Next {
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
        // What is left of them has waited as long: it comes as soon as it can be taken.
        self.flush = self.coalesces && until_seq <= log.head_seq();
        if self.demand != u32::MAX {
            self.demand -= count;
        }
        if self.acked_until_seq != u64::MAX {
            let wanted = |&seq: &u64| self.terms.kinds.contains(log.meta(seq).kind);
            let last_seq = (from_seq..until_seq).rev().find(wanted);
            self.detail.told_seq = last_seq.unwrap_or(self.detail.told_seq);
        }
        self.cursor.give(self.terms.kinds, until_seq, log);
        self.fresh = false;
        let is_cut = is_cut && until_seq == delivery_end;
        Next::Deliver { from_seq, until_seq, is_cut }
    }

    /// How far its window of acknowledgements takes it, at most to `until_seq`. Of chunks that it
    /// does not want it can not know: the window begins at one that it wants while nothing is to
    /// be acknowledged, and the others pass.
    fn reach_of_window(&mut self, until_seq: u64, log: &ChunkLog) -> u64 {
        let from_seq = self.cursor.next_seq;
        let Detail { window, acked_seq, told_seq, .. } = *self.detail;
        let Window { chunks, bytes } = window.expect("there is a bound");
        let next_wanted = |seq: u64| {
            let wanted = |&seq: &u64| self.terms.kinds.contains(log.meta(seq).kind);
            (seq..until_seq).find(wanted).unwrap_or(until_seq)
        };
        let mut first_seq = log.first_unacked(acked_seq, from_seq, self.terms.kinds);
        if told_seq <= acked_seq {
            first_seq = next_wanted(from_seq);
            let bound_seq = first_seq + u64::from(chunks);
            self.acked_until_seq = self.acked_until_seq.max(bound_seq);
        }
        let mut reach_seq = self.acked_until_seq.max(from_seq).min(until_seq);
        if bytes != u64::MAX {
            // All that is under way is kept: behind its first chunk only as much as that allows.
            let fits =
                |&seq: &u64| seq <= first_seq || log.ring_bytes_max(first_seq..seq + 1) <= bytes;
            reach_seq = (from_seq..reach_seq).find(|seq| !fits(seq)).unwrap_or(reach_seq);
        }
        next_wanted(reach_seq)
    }

    /// How far its demand takes it, at most to `until_seq`, and how many chunks of its kinds that
    /// is: what it does not want costs it nothing.
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
        (until_seq, count)
    }

    fn waits_for_company(&self, log: &ChunkLog) -> bool {
        let coalesce = self.detail.coalesce.expect("the flag says so");
        let pending = pending(&self.terms, &self.cursor, log);
        pending.bytes < coalesce.bytes_max && pending.chunks < u64::from(self.terms.limit.chunks)
    }

    fn skip(&mut self, until_seq: u64, reason: GapReason, log: &ChunkLog, ended: bool) -> Next {
        // Of `block` the gate takes care, once it stands; what went before that, also unknown to
        // the engine, went before it came.
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
                self.detail.told_seq = gap.to_seq;
                if self.demand != u32::MAX {
                    self.demand -= 1; // Word of a gap is a delivery, too.
                }
                let missed = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
                self.detail.missed = self.detail.missed + missed;
                Next::Gap(gap)
            }
            // Nothing of its kinds was skipped: look again from where it is now.
            None => self.next(log, ended),
        }
    }

    /// True while it is still to be told of chunks that were gone when it came.
    fn is_late(&self) -> bool {
        self.fresh && self.cursor.seen.chunks < self.detail.gone.chunks
    }

    /// True if the ring has overwritten what `disconnect` owes it. Chunks that were gone when it
    /// came are not owed: it is told of them.
    fn is_overtaken(&self, log: &ChunkLog) -> bool {
        let owed_from = if self.is_late() { self.detail.gone } else { self.cursor.seen };
        let gone_now = log.totals_before_tail(self.terms.kinds);
        self.terms.policy == Policy::Disconnect && gone_now.chunks > owed_from.chunks
    }

    /// Does it lag further than `disconnect` allows?
    pub fn is_over(&mut self, log: &ChunkLog) -> bool {
        match owed(&self.terms, &mut self.cursor, log) {
            Owed::Disconnect => true,
            Owed::Skip { .. } => self.is_overtaken(log),
            Owed::Give { .. } | Owed::Nothing => false,
        }
    }

    /// Does it hold its producer back?
    pub fn gates(&self) -> bool {
        self.terms.policy == Policy::Block && !self.gone
    }

    /// With acknowledgements: it has dealt with everything through this chunk.
    pub fn acked_seq(&self) -> Option<u64> {
        self.detail.window.map(|_| self.detail.acked_seq)
    }

    /// Is its connection broken?
    pub fn is_lost(&self) -> bool {
        self.connection == Connection::Lost
    }

    /// What it was told that it missed.
    pub fn missed(&self) -> Totals {
        self.detail.missed
    }

    /// When it came.
    pub fn since(&self) -> Instant {
        self.detail.since
    }

    /// So many chunks at once keep it within its limit, if it has taken everything before. Of a
    /// limit in bytes nobody knows how many chunks that is, and who waits for company has not
    /// taken everything.
    pub fn burst_chunks(&self) -> u32 {
        match self.coalesces || self.terms.limit.bytes != u64::MAX {
            true => 1,
            false => self.terms.limit.chunks,
        }
    }

    /// Its last word.
    pub fn end(&self, state: EndState, now: Instant) -> End {
        let given = self.cursor.seen - self.detail.start - self.detail.missed;
        let duration_us = now.since(self.detail.since).as_micros() as u64;
        let (missed, published) = (self.detail.missed, self.cursor.seen);
        End { state, given, missed, published, duration_us, exit: None }
    }

    /// Its own end, before the execution's.
    pub fn detached(&self, reason: DetachReason, now: Instant) -> End {
        self.end(EndState::Detached { reason, resume_from: self.cursor.next_seq }, now)
    }

    /// The execution's end.
    pub fn ended(&self, outcome: Outcome, exit: Option<Exit>, now: Instant) -> End {
        End { exit, ..self.end(EndState::Ended(outcome), now) }
    }

    /// Takes the window that this ring can keep, if it acknowledges.
    pub fn set_window(&mut self, ring: RingFacts) {
        let ack_window = self.detail.ack_window;
        let replay = self.replays.then(|| Replay::of(ring, ack_window));
        self.detail.window = Window::of(ack_window, replay);
        self.acked_until_seq = match self.detail.window {
            Some(window) => self.detail.acked_seq + 1 + u64::from(window.chunks),
            None => u64::MAX,
        };
        self.set_plain();
    }

    /// How far it may be given chunks, after it has acknowledged those through `seq`.
    pub fn acknowledge(&mut self, seq: u64) {
        if let Some(window) = self.detail.window {
            self.detail.acked_seq = self.detail.acked_seq.max(seq);
            let until_seq = seq + 1 + u64::from(window.chunks);
            self.acked_until_seq = self.acked_until_seq.max(until_seq);
        }
    }
}

/// A subscriber of another thread: it looks after itself, and the engine only watches where it
/// stands.
#[derive(Debug)]
pub(super) struct Remote {
    pub id: SubscriberId,
    pub terms: Terms,
    /// Where it stood when last looked at; it can only be further by now.
    pub next_seq: u64,
    pub since: Instant,
    pub gone: bool,
    /// It may come back for what it was given last.
    pub replays: bool,
    /// With acknowledgements: it has dealt with everything through this chunk.
    pub acked_seq: Option<u64>,
    /// Its connection broke: it keeps its place until this timer fires.
    pub grace_timer: Option<TimerId>,
    pub heir: Option<Heir>,
}

impl Remote {
    /// As agreed; `next_seq` is the first chunk for it.
    pub fn new(
        id: SubscriberId,
        spec: &SubscribeSpec,
        terms: Terms,
        next_seq: u64,
        since: Instant,
    ) -> Remote {
        Remote {
            id,
            terms,
            next_seq,
            since,
            gone: false,
            replays: spec.replays && spec.policy == Policy::Block,
            acked_seq: spec.ack_window.map(|_| next_seq - 1),
            grace_timer: None,
            heir: None,
        }
    }

    /// Is its connection broken?
    pub fn is_lost(&self) -> bool {
        self.grace_timer.is_some()
    }

    pub fn gates(&self) -> bool {
        self.terms.policy == Policy::Block && !self.gone
    }
}
