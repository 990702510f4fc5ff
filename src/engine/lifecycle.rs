//! The life cycle of an execution: opened, given a ring, started, ended, drained, retained,
//! forgotten.
//!
//! The states are `Queued → Running → Draining → Ended`. The outcome is decided once, when the
//! producer is known to be gone. Until then a cancellation is only a request, so that no reader on
//! any thread sees a chunk after the end.

use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Handle, Instant, ProgressToken};
use crate::engine::Engine;
use crate::engine::action::{
    Action, CancelError, OpenError, Reply, RingFit, SuspendError, Verdict,
};
use crate::engine::event::{Hold, OpenSpec, ProducerEnd, RingFacts, Start};
use crate::engine::execution::{Execution, Producer};
use crate::engine::gating::Stalled;
use crate::engine::progress::{ReportNews, Reported};
use crate::engine::timers::{Timeout, Timer, fired, note};
use crate::limits;
use crate::stream::{DetachReason, ExecutionState, Exit, KindTotals, Outcome, ProgressReport};

impl Engine {
    pub(super) fn open(&mut self, spec: OpenSpec) {
        match self.try_open(spec) {
            Ok(id) => {
                self.effects.counters.executions_opened += 1;
                self.line.join(id.slot);
                self.request_lease();
                self.effects.reply(Reply::Opened(Ok(id)));
            }
            Err(error) => {
                self.effects.counters.executions_refused += 1;
                self.effects.reply(Reply::Opened(Err(error)));
            }
        }
    }

    /// Puts an execution back that has ended and is on disk.
    pub(super) fn revive(&mut self, spec: OpenSpec, verdict: &Verdict) {
        assert!(spec.kept);
        let result = match self.shutting_down {
            true => Err(OpenError::ShuttingDown),
            false => self.find_place(spec),
        };
        if let Ok(id) = result {
            let e = self.registry.executions.get_mut(id.slot).expect("it was just put there");
            e.revive(verdict);
            self.settle(id.slot);
        }
        self.effects.reply(Reply::Opened(result));
    }

    /// Opens an execution that goes on where the disk ends. It has no progress token, because its
    /// clients know it by another id.
    pub(super) fn resume(&mut self, spec: OpenSpec, before: &KindTotals) {
        assert!(spec.kept);
        let result = self.try_open(spec);
        if let Ok(id) = result {
            self.effects.counters.executions_opened += 1;
            let e = self.registry.living_mut(id.slot);
            e.token = None;
            e.pass_kept(before);
            self.line.join(id.slot);
            self.request_lease();
        }
        self.effects.reply(Reply::Opened(result));
    }

    /// Forgets an execution that goes on, if nobody follows it.
    pub(super) fn suspend(&mut self, id: ExecutionId) {
        let goes_on = |e: &&Execution| {
            e.spec.kept && matches!(e.producer, Producer::Waiting | Producer::Active)
        };
        let result = match self.registry.find(id).filter(goes_on) {
            None => Err(SuspendError::NotFound),
            Some(e) if e.audience.count() > 0 => Err(SuspendError::Followed),
            Some(_) => Ok(()),
        };
        if result.is_ok() {
            self.line.leave(id.slot);
            let e = self.registry.living_mut(id.slot);
            e.disarm(&mut self.effects);
            assert!(e.timers.is_empty()); // E4: no timer outlives its execution.
            let removed = self.registry.executions.remove(id.slot);
            assert!(removed.is_some());
            self.effects.push(Action::Release(id.slot));
            self.request_lease();
        }
        self.effects.reply(Reply::Suspended(result));
    }

    fn try_open(&mut self, spec: OpenSpec) -> Result<ExecutionId, OpenError> {
        if self.shutting_down {
            return Err(OpenError::ShuttingDown);
        }
        if let Start::AfterSubscribers { count, .. } = spec.start
            && count > self.limits.subscribers_per_execution_max
        {
            return Err(OpenError::Invalid { field: "start.count" });
        }
        if self.line.is_full() {
            let retry_after_ms = limits::BUSY_RETRY_AFTER.as_millis() as u32;
            return Err(OpenError::Busy { retry_after_ms });
        }
        let id = self.find_place(spec)?;
        let slot = id.slot;
        let start = match spec.start {
            Start::Now => None,
            Start::AfterSubscribers { deadline, .. } => {
                Some(self.effects.arm(deadline, Timer::Start(slot)))
            }
        };
        let hold = match spec.hold {
            Hold::Newest => None,
            Hold::UntilRead { deadline } => Some(self.effects.arm(deadline, Timer::Hold(slot))),
        };
        let execution = self.registry.executions.get_mut(slot).expect("it was just put there");
        let (shard, secret) = (id.shard, spec.secret.token);
        execution.token = Some(ProgressToken { shard, slot, secret });
        execution.timers.start = start;
        execution.timers.hold = hold;
        Ok(id)
    }

    /// Puts a new execution into the pool. An ended one makes room for it.
    fn find_place(&mut self, spec: OpenSpec) -> Result<ExecutionId, OpenError> {
        if self.registry.executions.count() >= self.limits.executions_max {
            let unread = self.ended.find_unread(&self.registry.executions, |_| true);
            match unread.or(self.ended.oldest()) {
                Some(index) => self.evict(index),
                None => {
                    let executions_max = self.limits.executions_max;
                    return Err(OpenError::TooMany { executions_max });
                }
            }
        }
        assert!(self.registry.executions.count() < self.limits.executions_max);
        let nonce = spec.secret.nonce;
        let shard = self.limits.shard;
        let now = self.effects.now;
        let unnamed = Handle { index: 0, generation: 0 };
        let id = ExecutionId { shard, slot: unnamed, nonce };
        let Ok(slot) = self.registry.executions.insert(Execution::new(id, spec, now)) else {
            let executions_max = self.limits.executions_max; // Slots were retired.
            return Err(OpenError::TooMany { executions_max });
        };
        assert!(slot.index < self.limits.executions_max); // The shard's tables have this size.
        let id = ExecutionId { slot, ..id };
        self.registry.executions.get_mut(slot).expect("it was just put there").id = id;
        Ok(id)
    }

    /// Requests a ring for the first execution in the queue, unless a request is in progress. The
    /// request is for a whole ring as long as an ended execution can give its own without a loss
    /// for a reader.
    pub(super) fn request_lease(&mut self) {
        if let Some(execution) = self.line.unserved() {
            let e = self.registry.living(execution);
            assert!(e.state == ExecutionState::Queued);
            assert!(e.ring.is_none());
            let fit = if self.can_spare_a_ring() { RingFit::Whole } else { RingFit::Any };
            self.line.requested(fit);
            self.effects.push(Action::Lease(execution, fit));
        }
    }

    pub(super) fn leased(&mut self, execution: Handle, ring: RingFacts) {
        ring.assert_sound();
        self.line.answered();
        if !self.line.is_first(execution) {
            // It was cancelled while the ring was requested.
            self.effects.push(Action::Release(execution));
            self.request_lease();
            return;
        }
        self.line.pop();
        let e = self.registry.living_mut(execution);
        e.set_ring(ring);
        e.begin_gating(&mut self.effects);
        self.start_if_due(execution);
        self.request_lease();
    }

    /// Takes note of a ring that has grown. The producer may be allowed more now.
    pub(super) fn grown(&mut self, execution: Handle, ring: RingFacts) {
        ring.assert_sound();
        let Some(e) = self.registry.executions.get_mut(execution) else { return };
        e.grow_ring(ring);
        e.end_wait_for_gate(&mut self.effects);
    }

    /// True if an ended execution can give its ring to a new one without a loss for a reader.
    pub fn can_spare_a_ring(&self) -> bool {
        let executions = &self.registry.executions;
        self.ended.find_unread(executions, |e| e.ring.is_some()).is_some()
    }

    pub(super) fn lease_failed(&mut self, execution: Handle) {
        let fit = self.line.answered();
        assert!(fit.is_some());
        let (executions, has_ring) = (&self.registry.executions, |e: &Execution| e.ring.is_some());
        let unread = self.ended.find_unread(executions, has_ring);
        if !self.line.is_first(execution) {
            self.request_lease();
        } else if let Some(index) = unread.or_else(|| match fit {
            Some(RingFit::Whole) => None, // A smaller one is requested first.
            _ => self.ended.find(executions, has_ring),
        }) {
            self.evict(index); // This requests a ring again.
        } else if fit == Some(RingFit::Whole) {
            self.request_lease();
        }
    }

    pub(super) fn lease_refused(&mut self, execution: Handle, text: &str) {
        let fit = self.line.answered();
        assert!(fit.is_some());
        if self.line.is_first(execution) {
            self.registry.living_mut(execution).error = Some(shortened(text).into());
            self.stop(execution, Outcome::Failed);
        }
        self.request_lease();
    }

    pub(super) fn start_if_due(&mut self, execution: Handle) {
        let e = self.registry.living_mut(execution);
        if e.ring.is_some() && e.producer == Producer::Waiting && !e.closed() && e.start_is_due() {
            e.set_producer(Producer::Active);
            self.effects.disarm(e.timers.start.take());
            e.start_timeouts(&mut self.effects);
            self.effects.push(Action::StartProducer(execution));
        }
    }

    /// Handles a producer that cannot continue.
    pub(super) fn gated(&mut self, execution: Handle) {
        if let Some(e) = self.registry.executions.get_mut(execution) {
            e.wait_for_gate(&mut self.effects);
        }
    }

    /// Handles a producer that waits for the disk.
    pub(super) fn held_by_disk(&mut self, execution: Handle) {
        if let Some(e) = self.registry.executions.get_mut(execution) {
            e.wait_for_disk(&mut self.effects);
        }
    }

    /// Handles a disk that has moved.
    pub(super) fn disk_moved(&mut self, execution: Handle) {
        if let Some(e) = self.registry.executions.get_mut(execution) {
            e.end_wait_for_disk(&mut self.effects);
        }
    }

    /// Computes the gate of an execution again, if it still exists.
    pub(super) fn update_gate(&mut self, execution: Handle) {
        if let Some(e) = self.registry.executions.get_mut(execution) {
            e.update_gate(&mut self.effects);
        }
    }

    /// Notes how far back the disk goes.
    pub(super) fn kept_from(&mut self, execution: Handle, seq: u64, before: &KindTotals) {
        if let Some(e) = self.registry.executions.get_mut(execution) {
            e.log.keep_from(seq, before);
        }
    }

    pub(super) fn note_earlier_activity(&mut self, execution: Handle, at: Instant) {
        if let Some(e) = self.registry.executions.get_mut(execution) {
            e.note_earlier_activity(at, self.effects.now);
        }
    }

    pub(super) fn progressed(&mut self, execution: Handle, report: &ProgressReport) {
        let Some(e) = self.registry.executions.get_mut(execution) else { return };
        if e.closed() {
            return;
        }
        e.active_at = self.effects.now;
        let (news, is_backward) = e.progress.take(report);
        self.effects.counters.progress_backward += u64::from(is_backward);
        if !e.has_reported {
            e.note_first_report(&mut self.effects);
        }
        let reported = match news {
            ReportNews::Nothing => Reported::Nothing,
            ReportNews::Number => e.conflate_progress(&mut self.effects),
            ReportNews::Words => {
                self.effects.disarm(e.timers.progress.take());
                e.report_progress(&mut self.effects)
            }
        };
        if reported == Reported::ToSubscribers {
            self.deliveries.mark(execution, e);
        }
    }

    /// Handles the end of the interval: the next report may go out.
    fn progress_due(&mut self, execution: Handle) {
        let e = self.registry.living_mut(execution);
        fired(&mut e.timers.progress);
        e.derive_progress();
        e.trip_seq = e.next_trip_seq();
        if e.report_progress(&mut self.effects) == Reported::ToSubscribers {
            self.deliveries.mark(execution, e);
        }
    }

    pub(super) fn total_expected(&mut self, execution: Handle, count: u64) {
        if let Some(e) = self.registry.executions.get_mut(execution) {
            e.progress.expect_chunks(count);
        }
    }

    pub(super) fn exited(&mut self, execution: Handle, exit: Exit) {
        if let Some(e) = self.registry.executions.get_mut(execution)
            && !e.closed()
        {
            e.exit = Some(exit); // After the end it would reach no subscriber.
        }
    }

    pub(super) fn sleeping(&mut self, execution: Handle, until: Instant) {
        let Some(e) = self.registry.executions.get_mut(execution) else { return };
        if e.producer != Producer::Active {
            return; // It was stopped in the meantime.
        }
        self.effects.disarm(e.timers.sleep.take());
        let timer = self.effects.arm_at(until, Timer::Sleep(execution));
        note(&mut e.timers.sleep, timer);
    }

    pub(super) fn cancel(&mut self, id: ExecutionId) {
        let result = match self.registry.find(id) {
            None => Err(CancelError::NotFound),
            Some(e) => match (e.outcome, e.producer) {
                (Some(outcome), _) | (None, Producer::Leaving(outcome)) => {
                    Err(CancelError::Ended(outcome))
                }
                (None, _) => Ok(()),
            },
        };
        if result.is_ok() {
            self.stop(id.slot, Outcome::Cancelled);
        }
        self.effects.reply(Reply::Cancelled(result));
    }

    /// Stops the producer, or closes an execution that has none yet. The execution ends with
    /// `outcome`, whatever the producer reports.
    pub(super) fn stop(&mut self, execution: Handle, outcome: Outcome) {
        let e = self.registry.living_mut(execution);
        match e.producer {
            Producer::Waiting => {
                self.line.leave(execution);
                self.close(execution, outcome);
            }
            Producer::Active => {
                assert!(e.stop_outcome.is_none()); // It is told to stop once.
                e.stop_outcome = Some(outcome);
                e.set_producer(Producer::Stopping);
                self.effects.disarm(e.timers.sleep.take());
                self.effects.push(Action::StopProducer(execution));
            }
            Producer::Stopping => assert!(e.stop_outcome.is_some()),
            Producer::Leaving(_) => assert!(!e.closed()), // Its outcome is decided.
            Producer::Gone => assert!(e.closed()),
        }
    }

    pub(super) fn producer_ended(&mut self, execution: Handle, end: ProducerEnd) {
        let Some(e) = self.registry.executions.get_mut(execution) else { return };
        let has_left = e.closed() || matches!(e.producer, Producer::Leaving(_));
        if has_left && !planted(Planted::EndTwiceInCancelRace) {
            return;
        }
        if e.producer == Producer::Waiting {
            self.line.leave(execution); // Its producer left before the start.
        }
        let by_itself = match end {
            ProducerEnd::Done => Outcome::Completed,
            ProducerEnd::Stopped => Outcome::Cancelled,
            ProducerEnd::TimedOut => Outcome::TimedOut,
            ProducerEnd::Failed(text) => {
                e.error.get_or_insert_with(|| shortened(text).into());
                Outcome::Failed
            }
        };
        // A producer that was told to stop does not decide how the execution ends.
        assert!(e.closed() || e.stop_outcome.is_some() == (e.producer == Producer::Stopping));
        let outcome = e.stop_outcome.unwrap_or(by_itself);
        // Nothing contradicts the end of an execution that never ran.
        let has_run = matches!(e.producer, Producer::Active | Producer::Stopping);
        let is_awaited = e.spec.kept && has_run && !planted(Planted::EndToldTooEarly);
        if is_awaited && !self.shutting_down {
            e.leave(outcome, &mut self.effects);
        } else {
            self.close(execution, outcome);
        }
    }

    /// Closes an execution whose end is on disk.
    pub(super) fn end_kept(&mut self, execution: Handle) {
        let Some(e) = self.registry.executions.get(execution) else { return };
        if let Producer::Leaving(outcome) = e.producer {
            self.close(execution, outcome);
        }
    }

    /// Fails an execution of which the disk keeps nothing more.
    pub(super) fn not_kept(&mut self, execution: Handle, text: &str) {
        let kept = self.registry.executions.get(execution).map(|e| e.spec.kept);
        assert!(kept != Some(false)); // The others were promised nothing.
        self.fail(execution, text);
    }

    /// Fails an execution with this text, unless its end is decided.
    pub(super) fn fail(&mut self, execution: Handle, text: &str) {
        let Some(e) = self.registry.executions.get_mut(execution) else { return };
        if e.closed() {
            return;
        }
        match e.producer {
            Producer::Leaving(_) => {
                e.error = Some(shortened(text).into());
                self.close(execution, Outcome::Failed);
            }
            Producer::Stopping => {} // It ends anyway, for another reason.
            Producer::Waiting | Producer::Active | Producer::Gone => {
                e.error = Some(shortened(text).into());
                self.stop(execution, Outcome::Failed);
            }
        }
    }

    /// Closes the execution: nothing more will be published.
    fn close(&mut self, execution: Handle, outcome: Outcome) {
        let e = self.registry.living_mut(execution);
        e.close(outcome, &mut self.effects);
        self.deliveries.mark(execution, e);
        self.settle(execution);
    }

    /// Ends a draining execution once every `block` subscriber has read everything. Until then
    /// these readers have a deadline.
    pub(super) fn settle(&mut self, execution: Handle) {
        let Some(e) = self.registry.executions.get_mut(execution) else { return };
        if e.state != ExecutionState::Draining {
            return;
        }
        if !e.drained() {
            e.wait_for_readers(&mut self.effects);
            return;
        }
        let outcome = e.outcome.expect("draining begins with an outcome");
        e.enter(ExecutionState::Ended(outcome));
        e.ended_at = Some(self.effects.now);
        self.effects.disarm(e.timers.stall.take());
        e.watch_readers(false, &mut self.effects);
        let timer = self.effects.arm(e.spec.retention, Timer::Retention(execution));
        note(&mut e.timers.retention, timer);
        self.ended.push(&mut self.registry.executions, execution.index);
        self.request_lease(); // An execution in the queue may wait for this ring.
    }

    /// Forgets an ended execution before its retention ends, because its ring or its slot is
    /// needed.
    fn evict(&mut self, index: u32) {
        let handle = self.registry.executions.handle_at(index).expect("listed executions live");
        self.effects.counters.executions_evicted += 1;
        self.forget(handle);
    }

    pub(super) fn forget(&mut self, execution: Handle) {
        let e = self.registry.living(execution);
        assert!(matches!(e.state, ExecutionState::Ended(_)));
        if !planted(Planted::RetentionFreesLeasedRing) {
            self.detach_all(execution, DetachReason::Evicted);
        }
        let e = self.registry.living_mut(execution);
        let retention = e.timers.retention.take();
        assert!(e.timers.is_empty()); // E4: no timer outlives its execution.
        self.effects.disarm(retention);
        self.ended.unlink(&mut self.registry.executions, execution.index);
        let removed = self.registry.executions.remove(execution);
        assert!(removed.is_some());
        self.effects.push(Action::Release(execution));
        self.request_lease();
    }

    pub(super) fn fire_timers(&mut self) {
        while let Some(timer) = self.effects.pop_expired() {
            match timer {
                Timer::Coalesce(subscriber) => self.coalesced(subscriber),
                Timer::Grace(subscriber) => self.grace_over(subscriber),
                Timer::Start(execution) => {
                    fired(&mut self.registry.living_mut(execution).timers.start);
                    self.start_if_due(execution);
                }
                Timer::Hold(execution) => {
                    fired(&mut self.registry.living_mut(execution).timers.hold);
                    self.update_gate(execution);
                }
                Timer::Stall(execution) => self.stalled(execution),
                Timer::Sleep(execution) => {
                    fired(&mut self.registry.living_mut(execution).timers.sleep);
                    self.effects.push(Action::WakeProducer(execution));
                }
                Timer::Silence(execution) => {
                    let e = self.registry.living_mut(execution);
                    if let Some(timeout) = e.silent(&mut self.effects) {
                        self.time_out(execution, timeout);
                    }
                }
                Timer::Total(execution) => {
                    fired(&mut self.registry.living_mut(execution).timers.total);
                    self.time_out(execution, Timeout::Total);
                }
                Timer::Retention(execution) => self.retained(execution),
                Timer::Progress(execution) => self.progress_due(execution),
            }
        }
        assert!(self.next_deadline().is_none_or(|deadline| deadline > self.effects.now));
    }

    /// Forgets an execution whose retention is over. One that the disk has for its readers stays
    /// while they read, unless its place is needed.
    fn retained(&mut self, execution: Handle) {
        let e = self.registry.living_mut(execution);
        fired(&mut e.timers.retention);
        if e.spec.kept && e.audience.count() > 0 {
            let again = e.spec.retention.max(limits::RETENTION_LOOK);
            let timer = self.effects.arm(again, Timer::Retention(execution));
            note(&mut e.timers.retention, timer);
            return;
        }
        self.effects.counters.executions_forgotten += 1;
        self.forget(execution);
    }

    fn time_out(&mut self, execution: Handle, timeout: Timeout) {
        let e = self.registry.living_mut(execution);
        if e.producer != Producer::Active {
            return; // It is being stopped for another reason.
        }
        e.error = Some(e.timeout_text(timeout).into());
        self.stop(execution, Outcome::TimedOut);
    }

    /// Handles the stall deadline: detaches the slowest gating readers, or fails the execution.
    fn stalled(&mut self, execution: Handle) {
        let e = self.registry.living_mut(execution);
        match e.stalled(&mut self.effects) {
            Stalled::Nobody => {}
            Stalled::Stuck => {
                e.error = Some("the producer waited for room, and nobody held it back".into());
                self.effects.counters.producers_stuck += 1;
                self.stop(execution, Outcome::Failed);
            }
            Stalled::Fails => {
                e.error = Some("a block subscriber held the producer past its deadline".into());
                self.stop(execution, Outcome::Failed);
            }
            Stalled::Readers { stalled, next } => {
                for subscriber in stalled {
                    self.detach(subscriber, DetachReason::Stall);
                }
                self.update_gate(execution);
                if let Some(next) = next
                    && let Some(e) = self.registry.executions.get_mut(execution)
                {
                    e.move_stall_deadline(next, &mut self.effects);
                }
                self.settle(execution);
            }
        }
    }

    pub(super) fn shut_down(&mut self) {
        self.shutting_down = true;
        let all: Vec<Handle> = self.registry.executions.iter().map(|(handle, _)| handle).collect();
        for execution in all {
            self.detach_all(execution, DetachReason::Shutdown);
            self.end_kept(execution); // Nobody is left who could be told too early.
            self.stop(execution, Outcome::Cancelled);
            self.settle(execution);
        }
        assert!(self.line.is_empty()); // No execution begins any more.
    }
}

/// Cuts a tool's error text to [`limits::ERROR_TEXT_BYTES_MAX`] bytes, between characters.
fn shortened(text: &str) -> &str {
    let text = &text[..text.floor_char_boundary(limits::ERROR_TEXT_BYTES_MAX)];
    assert!(text.len() <= limits::ERROR_TEXT_BYTES_MAX); // The control page has room for it.
    text
}
