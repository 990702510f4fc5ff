//! The producer of one execution, and the readers that hold it back.
//!
//! The gate says how far the producer may go. A producer that waits for the gate gives the slowest
//! reader a deadline.

use std::time::Duration;

use crate::base::planted::{Planted, planted};
use crate::base::{Instant, SubscriberId};
use crate::engine::action::Action;
use crate::engine::effects::Effects;
use crate::engine::event::{Hold, OnStall, RingFacts};
use crate::engine::execution::{Execution, Producer};
use crate::engine::gate::Gate;
use crate::engine::policy::Log;
use crate::engine::reserve::Reserve;
use crate::engine::subscriber::Local;
use crate::engine::timers::{Timer, fired, note};
use crate::limits;
use crate::stream::{ExecutionState, Outcome};

/// The gate of a producer, and its wait for the gate to move.
#[derive(Debug)]
pub(super) struct Gating {
    /// The gate that was last set.
    gate: Gate,
    /// The chunks that are kept for subscribers that replay.
    reserve: Reserve,
    /// The time since which the producer has waited for the gate to move, if it waits.
    gated_at: Option<Instant>,
    /// The newest chunk when the gate was set again for a producer that no reader held back.
    repeated_at: Option<u64>,
    /// True while the producer waits for the disk.
    waits_for_disk: bool,
    /// True if the shard was asked to report the cursors of readers on other threads.
    is_watching: bool,
}

impl Default for Gating {
    /// An open gate at which nobody waits.
    fn default() -> Gating {
        Gating {
            gate: Gate::OPEN,
            reserve: Reserve::default(),
            gated_at: None,
            repeated_at: None,
            waits_for_disk: false,
            is_watching: false,
        }
    }
}

impl Gating {
    /// Takes note of a larger ring. Nothing is kept for a subscriber that replays, so the reserve
    /// begins anew.
    pub fn grow_ring(&mut self, ring: RingFacts) {
        self.reserve = Reserve::of(ring);
    }
}

/// The consequence of a stall deadline.
#[derive(Debug)]
pub(super) enum Stalled {
    /// Nobody is to blame.
    Nobody,
    /// The producer waits, and no reader holds it back: the execution fails.
    Stuck,
    /// A reader held the producer for too long, and the execution fails for it.
    Fails,
    /// These readers held the producer for too long, and are detached. The others have until the
    /// time in `next`.
    Readers { stalled: Vec<SubscriberId>, next: Option<Instant> },
}

impl Execution {
    /// True if the producer waits for the gate to move.
    #[inline]
    pub fn gated(&self) -> bool {
        self.gating.gated_at.is_some()
    }

    /// True if the ring keeps its oldest chunks until the first subscriber attaches.
    pub fn holds(&self) -> bool {
        let can_hold = matches!(self.spec.hold, Hold::UntilRead { .. });
        assert!(can_hold || self.timers.hold.is_none()); // E4
        can_hold && self.timers.hold.is_some()
    }

    /// True if every `block` subscriber has read everything.
    pub fn drained(&self) -> bool {
        let slowest_seq = self.audience.slowest_gating_seq();
        slowest_seq.is_none_or(|next_seq| next_seq > self.log.head_seq())
    }

    /// True if a reader, the hold or the disk may keep the producer waiting. Otherwise one more
    /// chunk of any length fits (V2 of the reserve).
    pub fn is_held_back(&self) -> bool {
        self.gating.waits_for_disk
            || self.holds()
            || !self.drained()
            || self.audience.has_unacknowledged(&self.log)
    }

    /// Computes the gate from the gating subscribers. Moves `reserve` to their slowest cursor.
    fn allowed(&self, reserve: &mut Reserve) -> Gate {
        let gate = if self.holds() { Gate::HELD } else { Gate::OPEN };
        self.audience.gate(gate, reserve, &self.log)
    }

    /// Computes the gate, and stores how far the reserve has moved.
    fn move_reserve(&mut self) -> Gate {
        assert!(self.ring.is_some()); // Without a ring nothing is kept.
        let mut reserve = self.gating.reserve;
        let gate = self.allowed(&mut reserve);
        self.gating.reserve = reserve;
        gate
    }

    /// Sets the first gate, as soon as there is a ring.
    pub fn begin_gating(&mut self, effects: &mut Effects) {
        self.gating.reserve = Reserve::of(self.ring.expect("it was just given one"));
        self.gating.gate = self.move_reserve();
        self.set_gate(effects);
    }

    /// Handles a producer that cannot continue. If its gate does not move now, the slowest reader
    /// gets a deadline.
    pub fn wait_for_gate(&mut self, effects: &mut Effects) {
        if self.closed() || self.update_gate(effects) {
            return;
        }
        if !self.is_held_back() {
            self.repeat_gate(effects);
            return;
        }
        self.pause(effects);
        self.wait_for_readers(effects);
    }

    /// Handles a producer that waits for the disk. No reader gets a deadline.
    pub fn wait_for_disk(&mut self, effects: &mut Effects) {
        if !self.closed() && !matches!(self.producer, Producer::Leaving(_)) {
            self.pause(effects);
            self.gating.waits_for_disk = true;
        }
    }

    /// Lets a producer look again that may have waited for the disk.
    pub fn end_wait_for_disk(&mut self, effects: &mut Effects) {
        if std::mem::take(&mut self.gating.waits_for_disk) {
            self.stop_waiting(effects);
        }
    }

    /// Notes that the producer waits.
    fn pause(&mut self, effects: &mut Effects) {
        // A stall deadline that was armed without a gating reader does not count against one.
        let vain = self.gating.repeated_at.take().and_then(|_| self.timers.stall.take());
        effects.disarm(vain);
        assert!(self.ring.is_some()); // Only the writer of a ring waits for room.
        if self.gating.gated_at.is_none() {
            self.gating.gated_at = Some(effects.now);
            effects.counters.producers_paused += 1;
        }
        if !planted(Planted::InactivityWhileGated) {
            effects.disarm(self.timers.silence.take()); // The timeout is paused.
        }
    }

    /// Handles a producer that waits although no reader holds it back: sets its gate again. The
    /// execution fails at the block deadline if the producer still waits behind the same chunk.
    fn repeat_gate(&mut self, effects: &mut Effects) {
        let head_seq = self.log.head_seq();
        if self.gating.repeated_at != Some(head_seq) {
            self.gating.repeated_at = Some(head_seq);
            self.set_gate(effects);
        } else if self.timers.stall.is_none() {
            let timer = effects.arm(self.spec.block_deadline, Timer::Stall(self.handle()));
            note(&mut self.timers.stall, timer);
        }
    }

    /// Sets a deadline for the slowest reader, and turns on reports of readers on other threads.
    pub fn wait_for_readers(&mut self, effects: &mut Effects) {
        // Nobody else waits for a reader.
        assert!(self.gated() || self.state == ExecutionState::Draining);
        if self.timers.stall.is_none() {
            let slowest_seq = self.audience.slowest_gating_seq().unwrap_or(0);
            self.timers.stall_from = (slowest_seq, effects.now);
            let timer = effects.arm(self.stall_deadline(), Timer::Stall(self.handle()));
            note(&mut self.timers.stall, timer);
        }
        self.watch_readers(true, effects);
    }

    /// Computes the gate from the gating subscribers. Sets it and returns true if it has changed.
    pub fn update_gate(&mut self, effects: &mut Effects) -> bool {
        if self.ring.is_none() {
            return false;
        }
        let gate = self.move_reserve();
        if gate == self.gating.gate {
            if self.gated() && !self.is_held_back() {
                self.stop_waiting(effects);
            }
            return false;
        }
        self.gating.gate = gate;
        self.gating.repeated_at = None;
        self.stop_waiting(effects);
        if !self.closed() {
            self.set_gate(effects);
        }
        true
    }

    /// Ends the wait of a producer whose ring has grown. There is room under the same gate, too.
    pub fn end_wait_for_gate(&mut self, effects: &mut Effects) {
        if !self.update_gate(effects) && self.gated() {
            self.stop_waiting(effects);
        }
    }

    /// Notes that the readers have read what the producer waited for, or that it may look again.
    fn stop_waiting(&mut self, effects: &mut Effects) {
        let was_gated = self.ungate(effects.now);
        self.gating.waits_for_disk = false;
        assert!(!self.gated());
        // A reader has moved: the deadline starts anew.
        if !planted(Planted::BlockDeadlineLeftArmed) {
            effects.disarm(self.timers.stall.take());
        }
        if was_gated {
            self.watch_readers(false, effects);
            self.listen(effects);
        }
    }

    /// Notes that the producer waits no longer. The time for which it waited does not count as
    /// silence. Returns false if it did not wait.
    fn ungate(&mut self, now: Instant) -> bool {
        let Some(gated_at) = self.gating.gated_at.take() else { return false };
        if planted(Planted::InactivityWhileGated) {
            return true;
        }
        let (held_from, active_at) = (gated_at.max(self.active_at), self.active_at);
        self.active_at += now.since(held_from);
        assert!(self.active_at >= active_at); // The producer's time only gets longer.
        true
    }

    /// Notes that the producer is gone, and waits for nothing.
    pub fn stop_gating(&mut self) {
        assert!(matches!(self.producer, Producer::Leaving(_) | Producer::Gone));
        (self.gating.gated_at, self.gating.waits_for_disk) = (None, false);
    }

    fn set_gate(&self, effects: &mut Effects) {
        self.gating.gate.assert_sound(); // E2
        effects.push(Action::SetGate(self.handle(), self.gating.gate));
    }

    /// Turns the reports of readers on other threads on or off.
    pub fn watch_readers(&mut self, watch: bool, effects: &mut Effects) {
        if self.gating.is_watching != watch {
            self.gating.is_watching = watch;
            effects.push(Action::WatchReaders(self.handle(), watch));
        }
    }

    /// Time for which a gating reader may stand still. It is short after a cancellation.
    fn stall_deadline(&self) -> Duration {
        let deadline = match self.outcome {
            Some(Outcome::Cancelled) => self.spec.block_deadline.min(limits::CANCELLED_STALL),
            _ => self.spec.block_deadline,
        };
        assert!(deadline <= self.spec.block_deadline);
        deadline
    }

    /// Handles the stall deadline: finds the slowest gating readers that have not moved for too
    /// long. A reader that came to the same place while the deadline ran has a deadline of its own.
    pub fn stalled(&mut self, effects: &mut Effects) -> Stalled {
        let now = effects.now;
        fired(&mut self.timers.stall);
        if !self.gated() && !self.closed() {
            let is_same_chunk = self.gating.repeated_at == Some(self.log.head_seq());
            let is_stuck = is_same_chunk && self.producer == Producer::Active;
            return if is_stuck { Stalled::Stuck } else { Stalled::Nobody };
        }
        // The hold for the first reader has a deadline of its own, and no reader is to blame.
        let Some(slowest_seq) = self.audience.slowest_gating_seq() else { return Stalled::Nobody };
        let (from_seq, from) = self.timers.stall_from;
        if self.closed() && slowest_seq > from_seq {
            self.wait_for_readers(effects);
            return Stalled::Nobody;
        }
        let deadline = self.stall_deadline();
        // During the drain a reader also moves within a chunk, but for at most `block_deadline`.
        let until = from + self.spec.block_deadline;
        let closed = self.closed();
        let moves = |l: &Local| closed && now < until && now.since(l.detail.moved_at) < deadline;
        let since = |l: &Local| if moves(l) { l.detail.moved_at } else { l.detail.level_at };
        let slowest = self.audience.slowest(slowest_seq, since);
        let (stalled, others): (Vec<_>, Vec<_>) =
            slowest.partition(|(_, since)| now.since(*since) >= deadline);
        assert!(!stalled.is_empty() || !others.is_empty()); // Some reader has the slowest cursor.
        let is_active = self.producer == Producer::Active; // One that stops may still publish.
        if self.spec.on_stall == OnStall::Fail && is_active && !stalled.is_empty() {
            return Stalled::Fails;
        }
        let next = others.into_iter().map(|(_, since)| since + deadline).min();
        Stalled::Readers { stalled: stalled.into_iter().map(|(id, _)| id).collect(), next }
    }

    /// Moves the deadline of the slowest reader, if something still waits for one.
    pub fn move_stall_deadline(&mut self, deadline: Instant, effects: &mut Effects) {
        if self.gated() || self.closed() {
            effects.disarm(self.timers.stall.take());
            let timer = effects.arm_at(deadline, Timer::Stall(self.handle()));
            note(&mut self.timers.stall, timer);
        }
    }

    /// Checks E2, E5, E6 and E7.
    pub fn audit_gate(&self) {
        assert!(!self.gated() || self.is_held_back()); // E5
        let gate = self.allowed(&mut { self.gating.reserve });
        let gate_seq = self.gating.gate.gate_seq;
        assert!(gate_seq <= gate.gate_seq || self.closed() || self.ring.is_none());
        for (local, next_seq) in self.audience.locals.positions() {
            // Unread chunks of a gating reader are still held, unless the reader attached late.
            assert!(!local.gates() || local.fresh || next_seq >= self.log.tail_seq());
            assert!(next_seq <= self.log.head_seq() + 1);
            // E7: the disk is asked only for what lies before a subscriber that is not level.
            assert!(local.fetch_until_seq == 0 || local.cursor.is_away());
            assert!(local.fetch_until_seq == 0 || next_seq < local.fetch_until_seq);
            assert!(local.demand == u32::MAX || local.demand <= 1 << 30);
            if let (true, true, Some(acked_seq)) = (local.replays, local.gates(), local.acked_seq())
            {
                let kept_seq = self.log.first_unacked(acked_seq, next_seq, local.terms.kinds);
                let is_kept = gate.gate_seq <= kept_seq && gate_seq <= kept_seq;
                assert!(self.ring.is_none() || self.closed() || is_kept); // E6
            }
        }
    }
}
