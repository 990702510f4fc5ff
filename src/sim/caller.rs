//! Callers: they open executions, feed some of them by hand, cancel, and make invalid requests.

use std::time::Duration;

use crate::base::{ExecutionId, Handle};
use crate::engine::{CancelError, Hold, OnStall, OpenError, Start, Status};
use crate::limits;
use crate::memory::Geometry;
use crate::shard::{ExecuteError, ExecuteOptions, PublishError};
#[cfg(feature = "server")]
use crate::sim::between::note_relay;
use crate::sim::between::set_writing;
use crate::sim::model::{ExecutionModel, Producer, ReportedEnd, fill_payload};
#[cfg(feature = "server")]
use crate::sim::process::Process;
use crate::sim::producer::{Script, SimTool};
use crate::sim::run::{Feed, Sim};
use crate::sim::scene::Opening;
#[cfg(feature = "server")]
use crate::sim::thread::{Hand, ThreadActor};
use crate::stream::{ExecutionState, Kind, Policy};
use crate::tool::{Need, Prepared, Work};

impl Sim {
    /// Opens an execution.
    pub fn open(&mut self) {
        let producer = self.draw_producer();
        let options = self.draw_options();
        let script = Script::draw(&mut self.random, &self.plan);
        let need = self.draw_need(producer);
        let index = self.shared.lock().executions.len();
        self.shared.lock().opening = Some(Opening {
            producer,
            on_stall: options.on_stall,
            holds: matches!(options.hold, Hold::UntilRead { .. }),
            block_deadline: options.block_deadline,
            chunk_bytes: need.chunk_bytes,
            timeouts: options.timeouts.unwrap_or(producer.timeouts()),
        });
        let result = self.start(producer, script, need, options);
        self.shared.lock().opening = None;
        match result {
            Ok(()) => self.opened(index, need),
            Err(error) => self.check_open_refused(&error, &options, need),
        }
    }

    fn draw_need(&mut self, producer: Producer) -> Need {
        let class = self.random.below(self.plan.class_max as u64 + 1) as usize;
        let ring_bytes = limits::RING_CLASS_BYTES[class];
        let mut need = Need { ring_bytes, chunk_bytes: 0, ..Default::default() };
        if self.random.chance(1, 4) {
            need.chunk_bytes = self.random.below(u64::from(need.ring_bytes / 8)) as u32;
        }
        if self.random.chance(self.plan.misuse, 1_000) {
            need.chunk_bytes = u32::MAX;
        }
        if producer.is_in_process() {
            need.chunk_bytes = Geometry::of_class(need.ring_bytes).length_max();
        }
        need
    }

    fn start(
        &mut self,
        producer: Producer,
        script: Script,
        need: Need,
        options: ExecuteOptions,
    ) -> Result<(), ExecuteError> {
        let index = self.shared.lock().executions.len();
        let work = match producer {
            Producer::Steps => Work::Steps(Box::new(SimTool {
                script: script.clone(),
                execution: index,
                shared: self.shared.clone(),
                buffer: Vec::new(),
            })),
            Producer::Feed => Work::Feed,
            // An actor does the work; this closure is never called.
            Producer::Thread => Work::Thread(Box::new(|_| Ok(()))),
            #[cfg(feature = "server")]
            Producer::Process => return self.start_process(index, script, need, options),
        };
        let prepared = Prepared { need, ..Prepared::new(work) };
        let id = self.shard.execute_prepared(prepared, options)?;
        match producer {
            Producer::Feed => self.feeds.push(Feed { execution: index, id, script }),
            Producer::Thread => {
                self.scripts.resize_with(index + 1, || None);
                self.scripts[index] = Some(script);
            }
            _ => {}
        }
        Ok(())
    }

    #[cfg(feature = "server")]
    fn start_process(
        &mut self,
        index: usize,
        script: Script,
        need: Need,
        options: ExecuteOptions,
    ) -> Result<(), ExecuteError> {
        let (_, granted) = self.shard.produce_by_hand(need.ring_bytes, options)?;
        note_relay(index); // Its ring is copied into the shard's.
        if let Some(granted) = granted {
            let process = Box::new(Process::new(granted, &self.lines));
            let actor = ThreadActor::new(index, script, Hand::Process(process));
            self.shared.lock().threads.push(actor);
        }
        Ok(())
    }

    fn draw_options(&mut self) -> ExecuteOptions {
        let plan = self.plan.clone();
        let random = &mut self.random;
        let mut options = ExecuteOptions {
            retention: Some(plan.retention(random)),
            block_deadline: Some(plan.block_deadline(random)),
            ..Default::default()
        };
        let deadline = Duration::from_millis(1 << random.between(0, 14));
        if random.chance(plan.start_waits, 1_000) {
            options.start = Start::AfterSubscribers { count: random.below(5) as u32, deadline };
        }
        if random.chance(plan.holds, 1_000) {
            options.hold = Hold::UntilRead { deadline };
        }
        if random.chance(plan.timeouts, 1_000) {
            options.timeouts = Some(plan.timeouts(random));
        }
        if random.chance(plan.stall_fails, 1_000) {
            options.on_stall = OnStall::Fail;
        }
        if random.chance(plan.misuse, 1_000) {
            options.start = Start::AfterSubscribers { count: u32::MAX, deadline };
        }
        options
    }

    fn opened(&mut self, execution: usize, need: Need) {
        self.look_for_ring(execution);
        let mut scene = self.shared.lock();
        let model = &scene.executions[execution];
        let Some(ring) = model.ring else {
            scene.coverage.count("ring waited for");
            return;
        };
        let class_bytes = ring.slot_count * 256;
        if class_bytes < need.ring_bytes {
            scene.coverage.count("ring smaller than asked for");
        }
        scene.coverage.count(&format!("ring {} KiB", class_bytes / 1_024));
        if ring.chunk_bytes_max < need.chunk_bytes {
            scene.fail(format!("{need:?} got {ring:?}"));
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

    fn check_open_refused(&mut self, error: &ExecuteError, options: &ExecuteOptions, need: Need) {
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
            ExecuteError::Start(_) | ExecuteError::NoRandomness => ("invalid", false),
        };
        scene.say(|| format!("open refused: {error}"));
        scene.coverage.count(&format!("open refused: {name}"));
        if !fits {
            scene.fail(format!("{options:?} was refused: {error:?} ({queued} queued)"));
        }
    }

    /// Publishes some chunks by hand.
    pub fn feed(&mut self) {
        let at = self.random.below(self.feeds.len() as u64) as usize;
        let count = self.random.between(1, self.feeds[at].script.burst_max);
        for _ in 0..count {
            if self.feeds[at].script.left == 0 {
                self.finish(at);
                return;
            }
            match self.feed_one(at) {
                Ok(()) | Err(PublishError::TooLarge { .. }) => {}
                Err(PublishError::Blocked) => return,
                Err(PublishError::NotFound) => {
                    self.feeds.swap_remove(at);
                    return;
                }
            }
        }
    }

    fn feed_one(&mut self, at: usize) -> Result<(), PublishError> {
        let Feed { execution, id, .. } = self.feeds[at];
        self.look_for_ring(execution);
        let (seq, chunk_bytes_max) = {
            let scene = self.shared.lock();
            let model = &scene.executions[execution];
            (model.head_seq() + 1, model.ring.map_or(512, |ring| ring.chunk_bytes_max))
        };
        let draft = self.feeds[at].script.chunk(chunk_bytes_max);
        let mut payload = vec![0; draft.length];
        fill_payload(execution as u32, seq, &mut payload);
        let now = self.now();
        // Subscribers receive the chunk before this returns, so the model has to know it by then.
        self.shared.lock().publishing = Some((execution, seq, draft.model(draft.length, now)));
        set_writing(execution);
        let result = self.shard.publish_at(id, draft.kind, draft.key, &payload, now);
        let mut guard = self.shared.lock();
        let scene = &mut *guard;
        let unseen = scene.publishing.take();
        let (name, fits) = match result {
            Ok(published) => {
                if let Some((execution, seq, chunk)) = unseen {
                    scene.published(execution, seq, chunk);
                }
                self.feeds[at].script.count();
                if published != seq {
                    scene.fail(format!("chunk {published} of {execution} was to be {seq}"));
                }
                return Ok(());
            }
            Err(PublishError::Blocked) => {
                let now = scene.now;
                scene.executions[execution].patience.hold(now);
                ("blocked", scene.may_block(execution))
            }
            Err(PublishError::NotFound) => {
                ("not found", scene.executions[execution].verdict.is_some())
            }
            Err(PublishError::TooLarge { .. }) => {
                let ring = scene.executions[execution].ring;
                let fits = ring.is_some_and(|ring| draft.length > ring.chunk_bytes_max as usize);
                ("too large", fits)
            }
        };
        scene.coverage.count(&format!("publish refused: {name}"));
        if !fits {
            scene.fail(format!("a chunk of {execution} was refused: {result:?}"));
        }
        result.map(|_| ())
    }

    /// Ends an execution that is fed by hand.
    fn finish(&mut self, at: usize) {
        let Feed { execution, id, script } = self.feeds.swap_remove(at);
        let (told, result) = match script.end {
            ReportedEnd::Done | ReportedEnd::Stopped => (ReportedEnd::Done, Ok(())),
            ReportedEnd::Failed | ReportedEnd::Panicked => {
                (ReportedEnd::Failed, Err(crate::sim::model::FAILURE_TEXT))
            }
        };
        let verdict_before = {
            let mut scene = self.shared.lock();
            scene.told(execution, told);
            scene.executions[execution].verdict.is_some()
        };
        let finished = self.shard.finish(id, result);
        let mut scene = self.shared.lock();
        if finished.is_err() {
            scene.coverage.count("finish refused");
            scene.executions[execution].told = None;
            if !verdict_before && scene.executions[execution].ring.is_some() {
                let waits = scene.executions[execution].chunks.is_empty();
                if !waits {
                    scene.fail(format!("execution {execution} could not be finished"));
                }
            }
        }
        drop(scene);
        if finished.is_err() && !verdict_before {
            // It has not begun: it waits for a ring, or for subscribers.
            self.feeds.push(Feed { execution, id, script });
        }
    }

    /// Finishes all executions that are fed by hand, as far as they have begun.
    pub fn finish_feeds(&mut self) {
        for at in (0..self.feeds.len()).rev() {
            self.finish(at);
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
            let has_ended = status.is_some_and(|status| {
                matches!(status.state, ExecutionState::Ended(_) | ExecutionState::Draining)
            });
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

    fn cancel(&mut self, execution: usize) {
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

impl crate::sim::scene::Scene {
    /// True if a chunk by hand may have to wait.
    fn may_block(&mut self, execution: usize) -> bool {
        let model = &self.executions[execution];
        let has_not_begun = model.chunks.is_empty();
        let gating = model.followers.iter().any(|&follower| {
            let follower = &self.followers[follower];
            follower.policy == Policy::Block && follower.gone.is_none()
        });
        has_not_begun || gating || model.holds && !model.was_read
    }
}
