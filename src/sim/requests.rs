//! Requests of clients about executions: status, tokens, cancellation, and invalid ones.

use crate::base::{ExecutionId, Handle};
use crate::engine::{CancelError, OpenError, Start, Status};
use crate::limits;
use crate::memory::Geometry;
use crate::shard::{ExecuteError, ExecuteOptions};
use crate::sim::model::{ExecutionModel, Producer};
use crate::sim::stage::Stage;
use crate::stream::{ExecutionState, Kind};
use crate::tool::Need;

impl Stage {
    /// Checks the ring of an execution that was opened.
    pub fn opened(&mut self, execution: usize, need: Need) {
        self.look_for_ring(execution);
        let mut scene = self.shared.lock();
        let model = &scene.executions[execution];
        let Some(ring) = model.ring else {
            scene.coverage.count("ring waited for");
            return;
        };
        let class_bytes = ring.slot_count * 256;
        if model.whole.is_none() && class_bytes < need.ring_bytes {
            scene.coverage.count("ring smaller than asked for");
        }
        scene.coverage.count(&format!("ring {} KiB", class_bytes / 1_024));
        if ring.chunk_bytes_max < need.chunk_bytes {
            scene.fail(format!("{need:?} got {ring:?}"));
        }
    }

    /// Checks the reason for which an execution was not opened.
    pub fn check_open_refused(
        &mut self,
        error: &ExecuteError,
        options: &ExecuteOptions,
        need: Need,
    ) {
        let statuses = self.statuses();
        let is_queued = |state| state == ExecutionState::Queued;
        let queued = statuses.iter().filter(|status| is_queued(status.state)).count();
        let ended = statuses.iter().any(|status| matches!(status.state, ExecutionState::Ended(_)));
        let engine = self.plan.engine;
        let mut scene = self.shared.lock();
        let (name, fits) = match error {
            ExecuteError::Open(OpenError::Busy { .. }) => {
                ("busy", queued as u32 >= engine.queued_max)
            }
            ExecuteError::Open(OpenError::TooMany { executions_max }) => {
                let is_full = statuses.len() as u32 == engine.executions_max;
                ("too many", is_full && !ended && *executions_max == engine.executions_max)
            }
            ExecuteError::Open(OpenError::Invalid { .. }) => {
                let fits = matches!(options.start, Start::AfterSubscribers { count, .. }
                    if count > engine.subscribers_per_execution_max);
                ("invalid", fits)
            }
            ExecuteError::Open(OpenError::ShuttingDown) => ("shutting down", scene.shutting_down),
            ExecuteError::ChunkTooLarge { chunk_bytes, chunk_bytes_max } => {
                let fits = chunk_bytes > chunk_bytes_max && *chunk_bytes == need.chunk_bytes;
                ("chunk too large", fits)
            }
            ExecuteError::MemoryShort(shortage) => {
                let memory = self.shard.memory();
                let allowed = Geometry::of_class(memory.largest_class_bytes).length_max();
                let fits = need.chunk_bytes > allowed && shortage.chunk_bytes_max == allowed;
                ("memory short", fits && shortage.chunk_bytes == need.chunk_bytes)
            }
            ExecuteError::Start(_)
            | ExecuteError::NoRandomness
            | ExecuteError::NoJournal { .. }
            | ExecuteError::NoCluster
            | ExecuteError::NothingKept { .. }
            | ExecuteError::NotKept(_) => ("invalid", false),
        };
        scene.say(|| format!("open refused: {error}"));
        scene.coverage.count(&format!("open refused: {name}"));
        if !fits {
            scene.fail(format!("{options:?} was refused: {error:?} ({queued} queued)"));
        }
    }

    /// Checks that no execution waits for a ring while one is free, or an ended execution could
    /// give its own.
    pub fn check_queue(&mut self) {
        let statuses = self.statuses(); // In the order in which they were opened.
        let is_queued = |status: &&Status| status.state == ExecutionState::Queued;
        let Some(first) = statuses.iter().find(is_queued).map(|status| status.id) else { return };
        let mut scene = self.shared.lock();
        let model = scene.executions.iter().find(|each| each.id == first).expect("it was opened");
        let (number, chunk_bytes) = (model.number, model.chunk_bytes);
        let classes = limits::RING_CLASS_BYTES.into_iter();
        let takes = |bytes: &u32| Geometry::of_class(*bytes).length_max() >= chunk_bytes;
        let memory = self.shard.memory();
        let allowed = classes.filter(|bytes| *bytes <= memory.largest_class_bytes);
        let needed_bytes = allowed.filter(takes).min().expect("it was not refused");
        let free_bytes = memory.rings_bytes_max.saturating_sub(memory.usage.leased_bytes);
        // An execution that ended without ever having had a ring has none to give.
        let gives = |status: &&Status| {
            matches!(status.state, ExecutionState::Ended(_)) && status.ring.is_some()
        };
        let ended = statuses.iter().find(gives);
        if free_bytes >= u64::from(needed_bytes) || ended.is_some() {
            scene.fail(format!(
                "execution {number} waits for a ring of {needed_bytes} bytes; {free_bytes} are \
                 free, and it could have the one of {ended:?}"
            ));
        }
    }

    /// Cancels an execution, or makes an invalid request.
    pub fn interfere(&mut self) {
        let count = self.shared.lock().executions.len() as u64;
        let execution = self.random.below(count) as usize;
        if self.random.chance(self.plan.cancel, 1_000) {
            self.cancel(execution);
        }
        if self.random.chance(self.plan.misuse, 1_000) {
            self.ask_nonsense(execution);
        }
        if self.random.chance(self.plan.progress, 1_000) {
            self.look_up_token(execution);
        }
        if self.random.chance(self.plan.looks, 1_000) {
            self.ask_for_readers(execution);
        }
    }

    /// Requests the status of an execution, as a client does: the shard takes its chunks over to
    /// answer.
    fn ask_for_readers(&mut self, execution: usize) {
        let id = self.shared.lock().executions[execution].id;
        let readers = self.shard.subscribers(id);
        let status = self.shard.inspect(id);
        let mut scene = self.shared.lock();
        scene.coverage.count("readers asked for");
        let fits = match (&readers, &status) {
            (Ok(readers), Ok(status)) if status.gated => {
                let is_held = readers.iter().any(|reader| reader.gates);
                scene.coverage.count(match is_held {
                    true => "held back by a reader",
                    false => "held back by the hold",
                });
                is_held || status.holds
            }
            (Ok(_), Ok(_)) => true,
            (Err(_), Err(_)) => scene.executions[execution].is_forgotten,
            _ => false,
        };
        if !fits {
            scene.fail(format!("execution {execution}: {status:?} with {readers:?}"));
        }
    }

    /// Checks that a progress token finds its execution while that lives, and nothing once
    /// forgotten.
    fn look_up_token(&mut self, execution: usize) {
        let id = self.shared.lock().executions[execution].id;
        let status = self.shard.inspect(id).ok();
        let mut wrong = None;
        if let Some(token) = status.as_ref().and_then(|status| status.token) {
            let listed = self.shard.tokens().find(|&(listed, ..)| listed == token);
            let has_ended = status.is_some_and(|status| status.state.is_over());
            let forgets = self.random.chance(1, 4);
            let forgot = forgets.then(|| self.shard.forget_token(token).is_ok());
            let found = self.shard.find_token(token).ok();
            let fits = listed.is_some() != has_ended
                && forgot != Some(false)
                && found == (!forgets).then_some(id);
            wrong = (!fits).then(|| format!("token of {execution}: {listed:?}, {found:?}"));
        }
        let mut scene = self.shared.lock();
        scene.coverage.count("token looked up");
        if let Some(text) = wrong {
            scene.fail(text);
        }
    }

    /// Cancels one of the endless tools now and then, so that their world makes progress.
    pub fn make_room(&mut self) {
        self.cancel_first(|_| true);
    }

    /// Cancels an execution that has published too many chunks.
    pub fn cancel_long(&mut self) {
        self.cancel_first(|each| each.is_too_long() && !each.is_cancelled);
    }

    fn cancel_first(&mut self, is_meant: impl Fn(&ExecutionModel) -> bool) {
        let scene = self.shared.lock();
        let mut living = scene.executions.iter().filter(|each| each.verdict.is_none());
        let found = living.find(|each| is_meant(each)).map(|each| each.number as usize);
        drop(scene);
        if let Some(execution) = found {
            self.cancel(execution);
        }
    }

    pub(super) fn cancel(&mut self, execution: usize) {
        let id = self.shared.lock().executions[execution].id;
        let mut scene = self.shared.lock();
        scene.say(|| format!("cancel {execution}"));
        let was_cancelled = scene.executions[execution].is_cancelled;
        scene.executions[execution].is_cancelled = true; // The end may come before the reply.
        drop(scene);
        let result = self.shard.cancel(id);
        let mut scene = self.shared.lock();
        let model = &scene.executions[execution];
        let fits = match result {
            Ok(()) => true,
            Err(CancelError::NotFound) => model.is_forgotten,
            Err(CancelError::Ended(outcome)) => {
                model.verdict.as_ref().is_some_and(|(verdict, _)| *verdict == outcome)
            }
        };
        if result.is_err() {
            scene.executions[execution].is_cancelled = was_cancelled;
        }
        match result {
            Ok(()) => {}
            Err(CancelError::NotFound) => scene.coverage.count("cancel refused: not found"),
            Err(CancelError::Ended(_)) => scene.coverage.count("cancel refused: ended"),
        }
        if !fits {
            scene.fail(format!("execution {execution} was cancelled: {result:?}"));
        }
    }

    /// Cancels the executions that would never end by themselves, in the calm phase.
    pub fn cancel_endless(&mut self) {
        let scene = self.shared.lock();
        let living = scene.executions.iter().filter(|each| each.verdict.is_none());
        let living: Vec<usize> = living.map(|each| each.number as usize).collect();
        drop(scene);
        living.into_iter().for_each(|execution| self.cancel(execution));
    }

    /// Uses ids that are guessed, stale, or of another kind.
    fn ask_nonsense(&mut self, execution: usize) {
        let id = self.shared.lock().executions[execution].id;
        let slot = Handle { index: self.random.below(40) as u32, generation: id.slot.generation };
        let nonce = self.random.next_u64();
        let guessed = [ExecutionId { nonce, ..id }, ExecutionId { slot, nonce, ..id }];
        for id in guessed {
            let refusals = [
                self.shard.inspect(id).is_err(),
                self.shard.cancel(id).is_err(),
                self.shard.publish(id, Kind::Output, b"nonsense").is_err(),
                self.shard.finish(id, Ok(())).is_err(),
            ];
            let mut scene = self.shared.lock();
            scene.coverage.count("inspect refused");
            if refusals.contains(&false) {
                scene.fail(format!("a guessed id was taken for somebody's: {refusals:?}"));
            }
        }
        let producer = self.shared.lock().executions[execution].producer;
        if producer != Producer::Feed && self.shard.publish(id, Kind::Output, b"no").is_ok() {
            self.shared.lock().fail("a tool's execution was fed by hand".into());
        }
    }
}
