//! The life cycle of an execution: opened, given a ring, started, ended, drained, retained,
//! forgotten.
//!
//! The states are `Queued → Running → Draining → Ended`. The outcome is decided once, when the
//! producer is known to be gone. Until then a cancellation is only a request, so that no reader on
//! any thread sees a chunk after the end.

use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Handle, Instant, ProgressToken};
use crate::engine::action::{Action, CancelError, OpenError, Reply, RingFit, Verdict};
use crate::engine::event::{Hold, OpenSpec, ProducerEnd, RingFacts, Start};
use crate::engine::execution::{Execution, Producer, Timers};
use crate::engine::log::ChunkLog;
use crate::engine::reserve::Reserve;
use crate::engine::timers::{Timer, note};
use crate::engine::{Engine, Log};
use crate::limits;
use crate::stream::{DetachReason, ExecutionState, Exit, Outcome};

impl Engine {
    /// Returns the execution of an id that came from outside. Its nonce must match, too.
    pub(super) fn find(&self, id: ExecutionId) -> Option<&Execution> {
        self.executions.get(id.slot).filter(|execution| execution.id == id)
    }

    pub(super) fn open(&mut self, spec: OpenSpec) {
        match self.try_open(spec) {
            Ok(id) => {
                self.effects.counters.executions_opened += 1;
                self.queue.push_back(id.slot);
                assert!(self.queue.len() as u32 <= self.limits.queued_max);
                self.request_lease();
                self.effects.reply(Reply::Opened(Ok(id)));
            }
            Err(error) => {
                self.effects.counters.executions_refused += 1;
                self.effects.reply(Reply::Opened(Err(error)));
            }
        }
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
        if self.queue.len() as u32 >= self.limits.queued_max {
            let retry_after_ms = limits::BUSY_RETRY_AFTER.as_millis() as u32;
            return Err(OpenError::Busy { retry_after_ms });
        }
        if self.executions.count() >= self.limits.executions_max {
            match self.find_ended_unread(|_| true).or(self.oldest_ended) {
                Some(index) => self.evict(index),
                None => {
                    let executions_max = self.limits.executions_max;
                    return Err(OpenError::TooMany { executions_max });
                }
            }
        }
        assert!(self.executions.count() < self.limits.executions_max);
        let nonce = spec.secret.nonce;
        let shard = self.limits.shard;
        let now = self.effects.now;
        let unnamed = Handle { index: 0, generation: 0 };
        let id = ExecutionId { shard, slot: unnamed, nonce };
        let Ok(slot) = self.executions.insert(Execution::new(id, spec, now)) else {
            let executions_max = self.limits.executions_max; // Slots were retired.
            return Err(OpenError::TooMany { executions_max });
        };
        assert!(slot.index < self.limits.executions_max); // The shard's tables have this size.
        let id = ExecutionId { slot, ..id };
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
        let execution = self.executions.get_mut(slot).expect("it was just put there");
        execution.id = id;
        let secret = spec.secret.token;
        execution.token = Some(ProgressToken { shard, slot, secret });
        execution.timers.start = start;
        execution.timers.hold = hold;
        Ok(id)
    }

    /// Requests a ring for the first execution in the queue, unless a request is in progress. The
    /// request is for a whole ring as long as an ended execution can give its own without a loss
    /// for a reader.
    pub(super) fn request_lease(&mut self) {
        if let Some(&execution) = self.queue.front()
            && self.leasing.is_none()
        {
            let e = self.executions.get(execution).expect("what is queued lives");
            assert!(e.state == ExecutionState::Queued);
            assert!(e.ring.is_none());
            let fit = if self.can_spare_a_ring() { RingFit::Whole } else { RingFit::Any };
            self.leasing = Some(fit);
            self.effects.push(Action::Lease(execution, fit));
        }
    }

    pub(super) fn leased(&mut self, execution: Handle, ring: RingFacts) {
        ring.assert_sound();
        self.leasing = None;
        if self.queue.front() != Some(&execution) {
            // It was cancelled while the ring was requested.
            self.effects.push(Action::Release(execution));
            self.request_lease();
            return;
        }
        self.queue.pop_front();
        let e = self.executions.get_mut(execution).expect("what is queued lives");
        assert!(e.ring.is_none()); // Each execution has one ring.
        assert!(e.log.head_seq() == 0); // Without a ring nothing was published (E1).
        e.ring = Some(ring);
        e.log = ChunkLog::new(ring.slot_count);
        e.enter(ExecutionState::Running);
        let filters = e.locals.positions().any(|(local, _)| !local.terms.kinds.is_all());
        if filters {
            e.log.keep_kind_totals();
        }
        for local in e.locals.apart() {
            // Where memory is short, the ring may be smaller than expected.
            local.terms.limit.chunks = local.terms.limit.chunks.min(ring.chunks_max);
            assert!(local.terms.limit.chunks > 0);
            local.set_window(ring);
        }
        e.audience_changed();
        e.reserve = Reserve::of(ring);
        e.gate = e.move_reserve();
        let gate = e.gate;
        self.set_gate(execution, gate);
        self.start_if_due(execution);
        self.request_lease();
    }

    /// True if an ended execution can give its ring to a new one without a loss for a reader.
    pub fn can_spare_a_ring(&self) -> bool {
        self.find_ended_unread(|e| e.ring.is_some()).is_some()
    }

    pub(super) fn lease_failed(&mut self, execution: Handle) {
        let fit = self.leasing.take();
        assert!(fit.is_some());
        let has_ring = |e: &Execution| e.ring.is_some();
        let unread = self.find_ended_unread(has_ring);
        if self.queue.front() != Some(&execution) {
            self.request_lease();
        } else if let Some(index) = unread.or_else(|| match fit {
            Some(RingFit::Whole) => None, // A smaller one is requested first.
            _ => self.find_ended(has_ring),
        }) {
            self.evict(index); // This requests a ring again.
        } else if fit == Some(RingFit::Whole) {
            self.request_lease();
        }
    }

    /// Returns the oldest ended execution that fits and has no subscriber.
    fn find_ended_unread(&self, fits: impl Fn(&Execution) -> bool) -> Option<u32> {
        self.find_ended(|e| e.subscriber_count() == 0 && fits(e))
    }

    /// Returns the oldest ended execution that fits.
    fn find_ended(&self, fits: impl Fn(&Execution) -> bool) -> Option<u32> {
        let mut next = self.oldest_ended;
        while let Some(index) = next {
            let e = self.executions.at(index).expect("listed executions live");
            assert!(matches!(e.state, ExecutionState::Ended(_)));
            if fits(e) {
                return Some(index);
            }
            next = e.newer;
        }
        None
    }

    pub(super) fn lease_refused(&mut self, execution: Handle, text: &str) {
        assert!(self.leasing.is_some());
        self.leasing = None;
        if self.queue.front() == Some(&execution) {
            let e = self.executions.get_mut(execution).expect("what is queued lives");
            e.error = Some(shortened(text).into());
            self.stop(execution, Outcome::Failed);
        }
        self.request_lease();
    }

    pub(super) fn start_if_due(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("a living execution");
        if e.ring.is_some() && e.producer == Producer::Waiting && !e.closed() && e.start_is_due() {
            e.set_producer(Producer::Active);
            let timer = e.timers.start.take();
            self.effects.disarm(timer);
            self.start_timeouts(execution);
            self.effects.push(Action::StartProducer(execution));
        }
    }

    pub(super) fn total_expected(&mut self, execution: Handle, count: u64) {
        if let Some(e) = self.executions.get_mut(execution) {
            e.chunks_expected = Some(count);
        }
    }

    pub(super) fn exited(&mut self, execution: Handle, exit: Exit) {
        if let Some(e) = self.executions.get_mut(execution)
            && !e.closed()
        {
            e.exit = Some(exit); // After the end it would reach no subscriber.
        }
    }

    pub(super) fn sleeping(&mut self, execution: Handle, until: Instant) {
        let Some(e) = self.executions.get_mut(execution) else { return };
        if e.producer != Producer::Active {
            return; // It was stopped in the meantime.
        }
        let before = e.timers.sleep.take();
        self.effects.disarm(before);
        let timer = self.effects.arm_at(until, Timer::Sleep(execution));
        self.with(execution, |e| note(&mut e.timers.sleep, timer));
    }

    pub(super) fn cancel(&mut self, id: ExecutionId) {
        let result = match self.find(id) {
            None => Err(CancelError::NotFound),
            Some(e) => match e.outcome {
                Some(outcome) => Err(CancelError::Ended(outcome)),
                None => Ok(()),
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
        let e = self.executions.get_mut(execution).expect("a living execution");
        match e.producer {
            Producer::Waiting => {
                self.queue.retain(|&queued| queued != execution);
                self.close(execution, outcome);
            }
            Producer::Active => {
                assert!(e.stop_outcome.is_none()); // It is told to stop once.
                e.stop_outcome = Some(outcome);
                e.set_producer(Producer::Stopping);
                let sleep = e.timers.sleep.take();
                self.effects.disarm(sleep);
                self.effects.push(Action::StopProducer(execution));
            }
            Producer::Stopping => assert!(e.stop_outcome.is_some()),
            Producer::Gone => assert!(e.closed()),
        }
    }

    pub(super) fn producer_ended(&mut self, execution: Handle, end: ProducerEnd) {
        let Some(e) = self.executions.get_mut(execution) else { return };
        if e.closed() && !planted(Planted::EndTwiceInCancelRace) {
            return;
        }
        if e.producer == Producer::Waiting {
            self.queue.retain(|&queued| queued != execution); // Its producer left before the start.
        }
        let by_itself = match end {
            ProducerEnd::Done => Outcome::Completed,
            ProducerEnd::Stopped => Outcome::Cancelled,
            ProducerEnd::Failed(text) => {
                e.error.get_or_insert_with(|| shortened(text).into());
                Outcome::Failed
            }
        };
        // A producer that was told to stop does not decide how the execution ends.
        assert!(e.closed() || e.stop_outcome.is_some() == (e.producer == Producer::Stopping));
        let outcome = e.stop_outcome.unwrap_or(by_itself);
        self.close(execution, outcome);
    }

    /// Closes the execution: nothing more will be published.
    fn close(&mut self, execution: Handle, outcome: Outcome) {
        let e = self.executions.get_mut(execution).expect("a living execution");
        assert!(e.outcome.is_none() || planted(Planted::EndTwiceInCancelRace)); // E3
        e.outcome = Some(outcome);
        e.set_producer(Producer::Gone);
        e.enter(ExecutionState::Draining);
        e.gated_at = None;
        e.locals.apart(); // Each of them has its end pending.
        e.derive_progress();
        let progress = e.tracker.progress();
        let report_count = progress.map_or(0, |progress| progress.report_count);
        assert!(e.progress_to_report <= report_count); // Reports are only ever added.
        e.progress_to_report = report_count;
        let last_report = progress.filter(|_| !e.remotes.is_empty());
        let verdict = Verdict {
            outcome,
            head_seq: e.log.head_seq(),
            totals: e.log.kind_totals(),
            error: e.error.clone(),
            exit: e.exit,
        };
        // An error text belongs to a failure, or to the reason of a stop.
        assert!(outcome == Outcome::Failed || e.error.is_none() || e.stop_outcome.is_some());
        let timers = std::mem::take(&mut e.timers);
        let Timers { start, hold, stall, sleep, progress, silence, total, retention, .. } = timers;
        assert!(retention.is_none());
        for timer in [start, hold, stall, sleep, progress, silence, total] {
            self.effects.disarm(timer);
        }
        if let Some(progress) = last_report {
            self.effects.push(Action::Report(execution, progress));
        }
        self.effects.push(Action::Verdict(execution, Box::new(verdict)));
        self.effects.count_outcome(outcome);
        self.mark_dirty(execution);
        self.settle(execution);
    }

    /// Ends a draining execution once every `block` subscriber has read everything. Until then
    /// these readers have a deadline.
    pub(super) fn settle(&mut self, execution: Handle) {
        let Some(e) = self.executions.get_mut(execution) else { return };
        if e.state != ExecutionState::Draining {
            return;
        }
        if !e.drained() {
            self.wait_for_readers(execution);
            return;
        }
        let outcome = e.outcome.expect("draining begins with an outcome");
        e.enter(ExecutionState::Ended(outcome));
        let stall = e.timers.stall.take();
        let retention = e.spec.retention;
        assert!(e.older.is_none()); // It is not in the list yet.
        assert!(e.newer.is_none());
        e.older = self.newest_ended;
        self.effects.disarm(stall);
        self.watch_readers(execution, false);
        let timer = self.effects.arm(retention, Timer::Retention(execution));
        self.with(execution, |e| note(&mut e.timers.retention, timer));
        match self.newest_ended {
            Some(index) => {
                let older = self.executions.at_mut(index).expect("listed executions live");
                assert!(older.newer.is_none()); // It was the newest.
                older.newer = Some(execution.index);
            }
            None => {
                assert!(self.oldest_ended.is_none()); // The list was empty, at both ends.
                self.oldest_ended = Some(execution.index);
            }
        }
        self.newest_ended = Some(execution.index);
        self.request_lease(); // An execution in the queue may wait for this ring.
    }

    /// Forgets an ended execution before its retention ends, because its ring or its slot is
    /// needed.
    fn evict(&mut self, index: u32) {
        let handle = self.executions.handle_at(index).expect("listed executions live");
        self.effects.counters.executions_evicted += 1;
        self.forget(handle);
    }

    pub(super) fn forget(&mut self, execution: Handle) {
        let e = self.executions.get(execution).expect("a living execution");
        assert!(matches!(e.state, ExecutionState::Ended(_)));
        if !planted(Planted::RetentionFreesLeasedRing) {
            self.detach_all(execution, DetachReason::Evicted);
        }
        let e = self.executions.get_mut(execution).expect("as above");
        let (older, newer) = (e.older, e.newer);
        let retention = e.timers.retention.take();
        assert!(e.timers.is_empty()); // E4: no timer outlives its execution.
        self.effects.disarm(retention);
        self.unlist(execution.index, older, newer);
        let removed = self.executions.remove(execution);
        assert!(removed.is_some());
        self.effects.push(Action::Release(execution));
        self.request_lease();
    }

    /// Takes an execution out of the list of ended ones, between its two neighbours.
    fn unlist(&mut self, index: u32, older: Option<u32>, newer: Option<u32>) {
        match older {
            Some(older_index) => {
                let neighbour = self.executions.at_mut(older_index).expect("a neighbour lives");
                let next = std::mem::replace(&mut neighbour.newer, newer);
                assert!(next == Some(index));
            }
            None => {
                assert!(self.oldest_ended == Some(index));
                self.oldest_ended = newer;
            }
        }
        match newer {
            Some(newer_index) => {
                let neighbour = self.executions.at_mut(newer_index).expect("a neighbour lives");
                let previous = std::mem::replace(&mut neighbour.older, older);
                assert!(previous == Some(index));
            }
            None => {
                assert!(self.newest_ended == Some(index));
                self.newest_ended = older;
            }
        }
    }

    pub(super) fn shut_down(&mut self) {
        self.shutting_down = true;
        let all: Vec<Handle> = self.executions.iter().map(|(handle, _)| handle).collect();
        for execution in all {
            self.detach_all(execution, DetachReason::Shutdown);
            self.stop(execution, Outcome::Cancelled);
            self.settle(execution);
        }
        assert!(self.queue.is_empty()); // No execution begins any more.
    }
}

/// Cuts a tool's error text to [`limits::ERROR_TEXT_BYTES_MAX`] bytes, between characters.
fn shortened(text: &str) -> &str {
    let text = &text[..text.floor_char_boundary(limits::ERROR_TEXT_BYTES_MAX)];
    assert!(text.len() <= limits::ERROR_TEXT_BYTES_MAX); // The control page has room for it.
    text
}

impl Engine {
    /// The outcome that an execution will have once its producer, which was told to stop, has
    /// stopped.
    pub fn stop_outcome(&self, execution: Handle) -> Option<Outcome> {
        self.executions.get(execution)?.stop_outcome
    }

    /// The time of the last event.
    pub fn now(&self) -> Instant {
        self.effects.now
    }
}
