//! The chunk path: from the publication of a chunk to the local subscribers.
//!
//! A publish does O(1) work. A delivery is computed when the shard requests the next action, by
//! walking the subscribers of one execution in order. Each walk starts one subscriber further, so
//! that none is always last.

use crate::base::planted::{Planted, planted};
use crate::base::{Handle, SubscriberId};
use crate::engine::Engine;
use crate::engine::action::Action;
use crate::engine::event::{ChunkFacts, SubscriberPlace};
use crate::engine::execution::Producer;
use crate::engine::gate::Gate;
use crate::engine::policy::{Cursor, Log};
use crate::engine::subscriber::{ConnectionState, Next};
use crate::engine::timers::{Timer, note};
use crate::stream::{DetachReason, End, ExecutionState, Gap, GapReason, Policy, Totals};

/// A walk over the local subscribers of one execution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan {
    pub execution: Handle,
    at: u32,
    remaining: u32,
}

impl Scan {
    #[inline]
    fn advance(&mut self, count: u32) {
        assert!(self.at < count); // No subscriber leaves the list during a walk.
        self.at += 1;
        if self.at == count {
            self.at = 0;
        }
        self.remaining -= 1;
    }
}

/// The content of an [`Action::Deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanOut {
    /// The execution that published the chunks.
    pub execution: Handle,
    /// The first chunk.
    pub from_seq: u64,
    /// One past the last chunk.
    pub until_seq: u64,
    /// True if some recipient does not want all kinds.
    pub filters: bool,
}

impl FanOut {
    /// Describes the delivery of a range of chunks to subscribers that take all kinds. `end_seq` is
    /// one past the newest chunk.
    #[inline]
    fn of(execution: Handle, range: (u64, u64), end_seq: u64) -> FanOut {
        let (from_seq, until_seq) = range;
        assert!(from_seq < until_seq);
        assert!(until_seq <= end_seq); // Nothing that is not published is given.
        FanOut { execution, from_seq, until_seq, filters: false }
    }
}

/// The work for the next execution whose subscribers have something pending.
enum NextScan {
    /// No execution has anything pending.
    Nothing,
    /// All subscribers are given the same chunks: `Engine::fan_out`, `Engine::recipients`.
    Delivery,
    /// Each subscriber has to be asked.
    Walk,
}

/// The result of one step of a walk.
enum Walk {
    /// Recipients of the same chunks were found: `Engine::fan_out`, `Engine::recipients`.
    Deliver,
    /// A subscriber has another action queued in `actions`, or nothing. The walk continues.
    Told,
    /// A subscriber gets nothing now, for a reason that has consequences.
    Rest(SubscriberId, NoDelivery),
    /// All subscribers were asked.
    Done,
}

/// The reason why a subscriber gets nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoDelivery {
    Coalesce,
    Disconnect,
    CaughtUp,
}

impl Engine {
    #[inline(always)] // The number of chunks, most often one, is known at the call site.
    pub(super) fn published(&mut self, execution: Handle, chunks: &[ChunkFacts]) {
        let e = self.executions.get_mut(execution).expect("a publishing execution lives");
        assert!(matches!(e.producer, Producer::Active | Producer::Stopping)); // E1
        e.active_at = self.effects.now;
        let bytes_before = e.log.total_bytes();
        for &facts in chunks {
            e.log.push(facts);
        }
        self.effects.counters.chunks_published += chunks.len() as u64;
        self.effects.counters.bytes_published += e.log.total_bytes() - bytes_before;
        if !e.dirty && !e.locals.is_empty() {
            e.dirty = true;
            self.dirty.push_back(execution);
        }
        if e.log.head_seq() >= e.trip_seq {
            self.trip(execution);
        }
    }

    /// Handles the rare consequences of a chunk. Ends `disconnect` subscribers that are over their
    /// limit, even if they request nothing; notes the first chunk; and counts chunks as progress.
    #[cold]
    fn trip(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("a publishing execution lives");
        assert!(e.log.head_seq() >= e.trip_seq);
        let derives_progress = e.derives_progress();
        if !e.has_reported {
            self.note_first_report(execution);
        }
        if derives_progress {
            self.progress_derived(execution);
        }
        let e = self.executions.get_mut(execution).expect("as above");
        let mut over = Vec::new();
        for local in e.locals.apart().iter_mut().filter(|local| !local.gone) {
            if local.terms.policy == Policy::Disconnect && local.is_over(&e.log) {
                over.push(local.id);
            }
        }
        for subscriber in over {
            self.detach(subscriber, DetachReason::Lag);
        }
        let e = self.executions.get_mut(execution).expect("as above");
        assert!(e.has_reported); // Its first chunk is noted from here on.
        e.trip_seq = e.next_trip_seq();
    }

    /// Notes that the execution's local subscribers may have something pending.
    pub(super) fn mark_dirty(&mut self, execution: Handle) {
        let Some(e) = self.executions.get_mut(execution) else { return };
        if !e.dirty && !e.locals.is_empty() {
            e.dirty = true;
            self.dirty.push_back(execution);
        }
    }

    /// Returns true if the next action is a delivery, which is then in [`Engine::fan_out`]. It is
    /// the fast path of [`Engine::next_action`] for the one action that occurs with every chunk.
    #[inline]
    pub fn next_fan_out(&mut self) -> bool {
        (self.scan.is_some() || !self.dirty.is_empty()) && self.make_up_delivery()
    }

    /// The delivery that [`Engine::next_fan_out`] has found.
    #[inline]
    pub fn fan_out(&self) -> &FanOut {
        &self.fan_out
    }

    #[inline]
    fn make_up_delivery(&mut self) -> bool {
        while self.effects.is_empty() {
            if self.scan.is_none() {
                match self.begin_scan() {
                    NextScan::Nothing => return false,
                    NextScan::Delivery => return true,
                    NextScan::Walk => {}
                }
            }
            match self.walk() {
                Walk::Deliver => return true,
                Walk::Told => {}
                Walk::Rest(subscriber, next) => self.rest(subscriber, next),
                Walk::Done => self.finish_scan(),
            }
        }
        false
    }

    #[inline]
    fn begin_scan(&mut self) -> NextScan {
        loop {
            let Some(execution) = self.dirty.pop_front() else { return NextScan::Nothing };
            let Some(e) = self.executions.get_mut(execution) else { continue };
            assert!(e.dirty); // It is in the list once.
            e.dirty = false;
            let count = e.locals.len() as u32;
            if count == 0 {
                continue;
            }
            e.turn = if e.turn + 1 < count { e.turn + 1 } else { 0 };
            if e.outcome.is_none()
                && !e.gated()
                && let Some((from_seq, until_seq)) = e.locals.advance(&e.log)
            {
                let range = (from_seq, until_seq);
                self.fan_out = FanOut::of(execution, range, e.log.head_seq() + 1);
                self.abreast_from = Some(e.turn);
                if until_seq <= e.log.head_seq() {
                    e.dirty = true; // The rest follows in a later turn.
                    self.dirty.push_back(execution);
                }
                return NextScan::Delivery;
            }
            self.scan = Some(Scan { execution, at: e.turn, remaining: count });
            return NextScan::Walk;
        }
    }

    /// Asks the subscribers one by one, and gathers those that are owed the same chunks. Stops at
    /// one that is owed something else, or when all were asked.
    fn walk(&mut self) -> Walk {
        let scan = self.scan.as_mut().expect("the caller began it");
        let execution = scan.execution;
        let Some(e) = self.executions.get_mut(execution) else { return Walk::Done };
        let ended = e.outcome.is_some();
        let count = e.locals.len() as u32;
        let (tail_seq, end_seq) = (e.log.tail_seq(), e.log.head_seq() + 1);
        // The walk may pass a subscriber at once only if nothing else is pending for it.
        let progress_to_report = if ended { u64::MAX } else { e.progress_to_report };
        self.recipients.clear();
        self.abreast_from = None;
        let locals = e.locals.apart();
        // The chunks that were gathered for, and the new cursor of a subscriber that takes all of
        // them.
        let mut gathered = (0, 0);
        let (mut plain_from, mut plain_end) = (0, Cursor::new(0, Totals::ZERO));
        let mut filters = false;
        while scan.remaining > 0 {
            let local = &mut locals[scan.at as usize];
            let next_seq = local.cursor.next_seq;
            let is_cut;
            let given = if local.takes_all(end_seq) && next_seq >= tail_seq {
                if plain_from != next_seq {
                    plain_from = next_seq;
                    plain_end = e.log.cursor_before(e.log.delivery_end(next_seq));
                }
                let range = (next_seq, plain_end.next_seq);
                if !self.recipients.is_empty() && range != gathered {
                    break;
                }
                local.cursor = plain_end;
                local.fresh = false;
                is_cut = range.1 < end_seq;
                range
            } else if local.gone || local.connection == ConnectionState::Lost {
                scan.advance(count); // It is given nothing now, not even the end.
                continue;
            } else if !self.recipients.is_empty() {
                break; // The gathered ones come first. The slow path needs a walk of its own.
            } else {
                match local.next(&e.log, ended) {
                    Next::Deliver { from_seq, until_seq, is_cut: has_rest } => {
                        filters = !local.terms.kinds.is_all();
                        is_cut = has_rest;
                        (from_seq, until_seq)
                    }
                    // A walk of its own asks the subscriber behind it.
                    next => return self.deliver_queued(next),
                }
            };
            gathered = given;
            self.recipients.push(local.id);
            let has_more = given.1 < end_seq || local.progress_reported < progress_to_report;
            if has_more && !is_cut {
                break; // It is asked again after this delivery.
            }
            if is_cut && !e.dirty {
                e.dirty = true; // The rest follows when all others have had their turn.
                self.dirty.push_back(execution);
            }
            scan.advance(count);
        }
        if self.recipients.is_empty() {
            return Walk::Done;
        }
        assert!(self.recipients.len() <= count as usize);
        if scan.remaining == 0 && !ended && !e.gated() && !e.removed {
            self.scan = None; // The end of this walk has no consequences.
            // A subscriber that was given only a part was not told of progress.
            if gathered.1 == end_seq && self.recipients.len() == count as usize {
                e.locals.align();
            }
        }
        self.fan_out = FanOut { filters, ..FanOut::of(execution, gathered, end_seq) };
        Walk::Deliver
    }

    /// Queues the action, other than a delivery, for the subscriber that the walk is at.
    fn deliver_queued(&mut self, next: Next) -> Walk {
        let scan = self.scan.as_mut().expect("a walk goes on");
        let execution = scan.execution;
        let e = self.executions.get_mut(execution).expect("it is being walked over");
        let local = &mut e.locals.apart()[scan.at as usize];
        let subscriber = local.id;
        if let Next::Gap(gap) = next {
            self.effects.count_gap(&gap);
            self.effects.push(Action::Gap(subscriber, execution, gap));
            return Walk::Told;
        }
        if local.progress_reported < e.progress_to_report
            && let Some(progress) = e.tracker.progress()
        {
            assert!(progress.report_count >= e.progress_to_report); // Reports are only ever added.
            local.progress_reported = progress.report_count; // It may be ahead of the others.
            self.effects.push(Action::Progress(subscriber, execution, progress));
            return Walk::Told;
        }
        scan.advance(e.locals.len() as u32);
        match next {
            Next::Coalesce => Walk::Rest(subscriber, NoDelivery::Coalesce),
            Next::Disconnect => Walk::Rest(subscriber, NoDelivery::Disconnect),
            Next::CaughtUp => Walk::Rest(subscriber, NoDelivery::CaughtUp),
            Next::Nothing | Next::Deliver { .. } | Next::Gap(_) => Walk::Told,
        }
    }

    /// Handles a subscriber that gets no chunk and no gap now.
    fn rest(&mut self, subscriber: SubscriberId, rest: NoDelivery) {
        match rest {
            NoDelivery::Coalesce => {
                let local = self.local_mut(subscriber).expect("it is being walked over");
                if local.detail.coalesce_timer.is_none() {
                    let delay_max = local.detail.coalesce.expect("it coalesces").delay_max;
                    let timer = self.effects.arm(delay_max, Timer::Coalesce(subscriber));
                    let local = self.local_mut(subscriber).expect("as above");
                    note(&mut local.detail.coalesce_timer, timer);
                }
            }
            NoDelivery::Disconnect => self.detach(subscriber, DetachReason::Lag),
            NoDelivery::CaughtUp => self.end(subscriber),
        }
    }

    /// Ends a subscriber that has everything, after the execution's end.
    pub(super) fn end(&mut self, subscriber: SubscriberId) {
        let seat = *self.seats.get(subscriber.0).expect("it is being walked over");
        let execution = self.executions.get(seat.execution).expect("a seat's execution lives");
        let outcome = execution.outcome.expect("only after the end is one caught up");
        let exit = execution.exit;
        let kinds = self.local(subscriber).expect("as above").terms.kinds;
        // Not the totals that the cursor has passed: a client that came back may have supplied
        // those.
        let published = execution.log.totals_through_head(kinds);
        let now = self.effects.now;
        let end_seq = execution.log.head_seq() + 1;
        let local = self.local_mut(subscriber).expect("as above");
        let has_all = local.cursor.next_seq == end_seq;
        assert!(has_all || planted(Planted::EndBeforeLastChunk)); // The end comes last.
        let end = End { published, ..local.ended(outcome, exit, now) };
        self.effects.count_end();
        self.effects.push(Action::End(subscriber, seat.execution, end));
        self.remove(subscriber);
    }

    fn finish_scan(&mut self) {
        let scan = self.scan.take().expect("the caller began it");
        if let Some(e) = self.executions.get(scan.execution) {
            let (gated, closed, removed) = (e.gated(), e.closed(), e.removed);
            if removed {
                self.compact(scan.execution);
            }
            if gated || closed {
                self.update_gate(scan.execution);
                self.settle(scan.execution);
            }
        }
    }

    /// Turns chunks that were overwritten before their delivery into a gap `from_seq..=to_seq`. The
    /// subscriber continues behind it.
    pub(super) fn overtaken(&mut self, subscriber: SubscriberId, from_seq: u64, to_seq: u64) {
        let Some(seat) = self.seats.get(subscriber.0).copied() else { return };
        if seat.place != SubscriberPlace::Local {
            return;
        }
        let e = self.executions.get_mut(seat.execution).expect("a seat's execution lives");
        let local = &mut e.locals.apart()[seat.at as usize];
        let next_seq = local.cursor.next_seq;
        assert!(local.id == subscriber);
        assert!(from_seq <= to_seq && to_seq < next_seq);
        assert!(from_seq >= e.log.tail_seq());
        // The engine still knows the metadata of these chunks: it was not yet told that they are
        // gone.
        let kinds = local.terms.kinds;
        let sum = |seqs: std::ops::Range<u64>| {
            let metas = seqs.map(|seq| e.log.meta(seq)).filter(|meta| kinds.contains(meta.kind));
            metas.fold(Totals::ZERO, |mut sum, meta| {
                sum.count(meta.length);
                sum
            })
        };
        let missed = sum(from_seq..to_seq + 1);
        if local.terms.policy == Policy::Disconnect && missed.chunks > 0 {
            let seen = local.cursor.seen - sum(from_seq..next_seq);
            local.cursor = Cursor::new(from_seq, seen);
            self.detach(subscriber, DetachReason::Lag);
            return;
        }
        let seen = local.cursor.seen - sum(to_seq + 1..next_seq);
        local.cursor = match missed.chunks {
            0 => local.cursor.moved_to(to_seq + 1, seen),
            _ => local.cursor.jumped_to(to_seq + 1, seen),
        };
        local.detail.missed = local.detail.missed + missed;
        local.detail.reported_seq = to_seq;
        if missed.chunks > 0 {
            // Once a `block` subscriber is attached, the gate protects its chunks.
            let reason = match local.terms.policy {
                Policy::Block => GapReason::Late,
                _ => GapReason::Overtaken,
            };
            let Totals { chunks: chunk_count, bytes: byte_count } = missed;
            let gap = Gap { from_seq, to_seq, chunk_count, byte_count, reason };
            self.effects.count_gap(&gap);
            self.effects.push_first(Action::Gap(subscriber, seat.execution, gap));
        }
        self.mark_dirty(seat.execution);
    }

    /// Handles a producer that cannot continue. If its gate does not move now, the slowest reader
    /// gets a deadline.
    pub(super) fn gated(&mut self, execution: Handle) {
        let now = self.effects.now;
        let Some(e) = self.executions.get_mut(execution) else { return };
        if e.closed() {
            return;
        }
        if self.update_gate(execution) {
            return;
        }
        let e = self.executions.get_mut(execution).expect("as above");
        if !e.is_held_back() {
            self.repeat_gate(execution);
            return;
        }
        // A stall deadline that was armed without a gating reader does not count against one.
        let vain = e.gate_repeated_at.take().and_then(|_| e.timers.stall.take());
        self.effects.disarm(vain);
        let e = self.executions.get_mut(execution).expect("as above");
        assert!(e.ring.is_some()); // Only the writer of a ring waits for room.
        if e.gated_at.is_none() {
            e.gated_at = Some(now);
            self.effects.counters.producers_paused += 1;
        }
        if !planted(Planted::InactivityWhileGated) {
            let silence = e.timers.silence.take(); // The timeout is paused.
            self.effects.disarm(silence);
        }
        self.wait_for_readers(execution);
    }

    /// Handles a producer that waits although no reader holds it back: sets its gate again. The
    /// execution fails at the block deadline if the producer still waits behind the same chunk.
    fn repeat_gate(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("a living execution");
        let (head_seq, gate) = (e.log.head_seq(), e.gate);
        if e.gate_repeated_at != Some(head_seq) {
            e.gate_repeated_at = Some(head_seq);
            self.set_gate(execution, gate);
        } else if e.timers.stall.is_none() {
            let deadline = e.spec.block_deadline;
            let timer = self.effects.arm(deadline, Timer::Stall(execution));
            self.with(execution, |e| note(&mut e.timers.stall, timer));
        }
    }

    /// Sets a deadline for the slowest reader, and turns on reports of readers on other threads.
    pub(super) fn wait_for_readers(&mut self, execution: Handle) {
        let now = self.effects.now;
        let e = self.executions.get_mut(execution).expect("a living execution");
        // Nobody else waits for a reader.
        assert!(e.gated() || e.state == ExecutionState::Draining);
        if e.timers.stall.is_none() {
            let deadline = e.stall_deadline();
            e.timers.stall_from = (e.slowest_gating_seq().unwrap_or(0), now);
            let timer = self.effects.arm(deadline, Timer::Stall(execution));
            self.with(execution, |e| note(&mut e.timers.stall, timer));
        }
        self.watch_readers(execution, true);
    }

    /// Computes the gate from the gating subscribers. Sets it and returns true if it has changed.
    pub(super) fn update_gate(&mut self, execution: Handle) -> bool {
        let Some(e) = self.executions.get_mut(execution) else { return false };
        if e.ring.is_none() {
            return false;
        }
        let gate = e.move_reserve();
        if gate == e.gate {
            if e.gated() && !e.is_held_back() {
                self.stop_waiting(execution);
            }
            return false;
        }
        e.gate = gate;
        e.gate_repeated_at = None;
        let closed = e.closed();
        self.stop_waiting(execution);
        if !closed {
            self.set_gate(execution, gate);
        }
        true
    }

    /// Notes that the readers have read what the producer waited for, or that it may look again.
    fn stop_waiting(&mut self, execution: Handle) {
        let now = self.effects.now;
        let e = self.executions.get_mut(execution).expect("a living execution");
        let was_gated = e.ungate(now);
        assert!(!e.gated());
        let is_left = planted(Planted::BlockDeadlineLeftArmed);
        // A reader has moved: the deadline starts anew.
        let stall = if is_left { None } else { e.timers.stall.take() };
        self.effects.disarm(stall);
        if was_gated {
            self.watch_readers(execution, false);
            self.listen(execution);
        }
    }

    pub(super) fn set_gate(&mut self, execution: Handle, gate: Gate) {
        gate.assert_sound(); // E2
        self.effects.push(Action::SetGate(execution, gate));
    }

    pub(super) fn watch_readers(&mut self, execution: Handle, watch: bool) {
        if let Some(e) = self.executions.get_mut(execution)
            && e.watching != watch
        {
            e.watching = watch;
            self.effects.push(Action::WatchReaders(execution, watch));
        }
    }
}
