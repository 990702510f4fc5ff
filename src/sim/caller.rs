//! Callers: they open executions, and feed some of them by hand.

use crate::base::ExecutionId;
use crate::engine::{Hold, RingFacts};
use crate::limits;
use crate::memory::Geometry;
use crate::shard::{ExecuteError, ExecuteOptions, PublishError};
#[cfg(feature = "server")]
use crate::sim::between::note_relay;
use crate::sim::between::set_writing;
use crate::sim::model::{FAILURE_TEXT, Producer, ReportedEnd, fill_payload};
#[cfg(feature = "server")]
use crate::sim::process::Process;
use crate::sim::producer::{Script, SimTool, ring_of};
use crate::sim::scene::{Opening, Scene};
use crate::sim::stage::Stage;
#[cfg(feature = "server")]
use crate::sim::thread::{Hand, ThreadActor};
use crate::stream::Policy;
use crate::tool::{Need, Prepared, Work};

/// Chunks published by hand.
struct Feed {
    execution: usize,
    id: ExecutionId,
    script: Script,
}

/// The executions whose work is done by actors.
#[derive(Default)]
pub(super) struct Callers {
    feeds: Vec<Feed>,
    /// The scripts that will run on threads, by execution.
    scripts: Vec<Option<Script>>,
}

/// The ring that an execution may grow to, if it starts with a small one.
fn whole_ring(producer: Producer, options: &ExecuteOptions, need: Need) -> Option<RingFacts> {
    let stays = !matches!(producer, Producer::Steps | Producer::Feed);
    if !options.grows || stays {
        return None;
    }
    let fits = |class: &Geometry| {
        class.length_max() >= need.chunk_bytes && class.window_bytes() >= need.ring_bytes as usize
    };
    let whole = limits::RING_CLASS_BYTES.map(Geometry::of_class).into_iter().find(fits)?;
    Some(ring_of(whole.length_max()))
}

impl Callers {
    /// True if an execution is fed by hand.
    pub fn has_feeds(&self) -> bool {
        !self.feeds.is_empty()
    }

    /// Takes out the script of an execution whose thread starts.
    pub fn take_script(&mut self, execution: usize) -> Script {
        self.scripts[execution].take().expect("it is started once")
    }

    /// Opens an execution.
    pub fn open(&mut self, stage: &mut Stage) {
        let producer = stage.plan.producer(&mut stage.random);
        let options = stage.plan.options(&mut stage.random);
        let script = Script::draw(&mut stage.random, &stage.plan);
        let need = stage.plan.need(&mut stage.random, producer);
        let index = stage.shared.lock().executions.len();
        stage.shared.lock().opening = Some(Opening {
            producer,
            on_stall: options.on_stall,
            holds: matches!(options.hold, Hold::UntilRead { .. }),
            block_deadline: options.block_deadline,
            chunk_bytes: need.chunk_bytes,
            whole: whole_ring(producer, &options, need),
            timeouts: options.timeouts.unwrap_or(producer.timeouts()),
        });
        let result = self.start(stage, producer, script, need, options);
        stage.shared.lock().opening = None;
        match result {
            Ok(()) => stage.opened(index, need),
            Err(error) => stage.check_open_refused(&error, &options, need),
        }
    }

    fn start(
        &mut self,
        stage: &mut Stage,
        producer: Producer,
        script: Script,
        need: Need,
        options: ExecuteOptions,
    ) -> Result<(), ExecuteError> {
        let index = stage.shared.lock().executions.len();
        let work = match producer {
            Producer::Steps => Work::Steps(Box::new(SimTool {
                script: script.clone(),
                execution: index,
                shared: stage.shared.clone(),
                buffer: Vec::new(),
            })),
            Producer::Feed => Work::Feed,
            // An actor does the work; this closure is never called.
            Producer::Thread => Work::Thread(Box::new(|_| Ok(()))),
            #[cfg(feature = "server")]
            Producer::Process => return start_process(stage, index, script, need, options),
        };
        let prepared = Prepared { need, ..Prepared::new(work) };
        let id = stage.shard.execute_prepared(prepared, options)?;
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

    /// Publishes some chunks by hand.
    pub fn feed(&mut self, stage: &mut Stage) {
        let at = stage.random.below(self.feeds.len() as u64) as usize;
        let count = stage.random.between(1, self.feeds[at].script.burst_max);
        for _ in 0..count {
            if self.feeds[at].script.left == 0 {
                self.finish(stage, at);
                return;
            }
            match self.feed_one(stage, at) {
                Ok(()) | Err(PublishError::TooLarge { .. }) => {}
                Err(PublishError::Blocked) => return,
                Err(PublishError::NotFound) => {
                    self.feeds.swap_remove(at);
                    return;
                }
            }
        }
    }

    fn feed_one(&mut self, stage: &mut Stage, at: usize) -> Result<(), PublishError> {
        let Feed { execution, id, .. } = self.feeds[at];
        stage.look_for_ring(execution);
        let (seq, chunk_bytes_max) = {
            let scene = stage.shared.lock();
            let model = &scene.executions[execution];
            let ring = model.whole.or(model.ring);
            (model.head_seq() + 1, ring.map_or(512, |ring| ring.chunk_bytes_max))
        };
        let draft = self.feeds[at].script.chunk(chunk_bytes_max);
        let mut payload = vec![0; draft.length];
        fill_payload(execution as u32, seq, &mut payload);
        let now = stage.now();
        // Subscribers receive the chunk before this returns, so the model has to know it by then.
        stage.shared.lock().publishing = Some((execution, seq, draft.model(draft.length, now)));
        set_writing(execution);
        let result = stage.shard.publish_at(id, draft.kind, draft.key, &payload, now);
        stage.look_for_ring(execution);
        let mut guard = stage.shared.lock();
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
    fn finish(&mut self, stage: &mut Stage, at: usize) {
        let Feed { execution, id, script } = self.feeds.swap_remove(at);
        let (told, result) = match script.end {
            ReportedEnd::Done | ReportedEnd::Stopped => (ReportedEnd::Done, Ok(())),
            ReportedEnd::Failed | ReportedEnd::Panicked => (ReportedEnd::Failed, Err(FAILURE_TEXT)),
        };
        let verdict_before = {
            let mut scene = stage.shared.lock();
            scene.told(execution, told);
            scene.executions[execution].verdict.is_some()
        };
        let finished = stage.shard.finish(id, result);
        let mut scene = stage.shared.lock();
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
    pub fn finish_feeds(&mut self, stage: &mut Stage) {
        for at in (0..self.feeds.len()).rev() {
            self.finish(stage, at);
        }
    }
}

/// Starts an execution whose chunks come from a simulated process.
#[cfg(feature = "server")]
fn start_process(
    stage: &mut Stage,
    index: usize,
    script: Script,
    need: Need,
    options: ExecuteOptions,
) -> Result<(), ExecuteError> {
    let (_, granted) = stage.shard.produce_by_hand(need.ring_bytes, options)?;
    note_relay(index); // Its ring is copied into the shard's.
    if let Some(granted) = granted {
        let process = Box::new(Process::new(granted, &stage.lines));
        let actor = ThreadActor::new(index, script, Hand::Process(process));
        stage.shared.lock().threads.push(actor);
    }
    Ok(())
}

impl Scene {
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
