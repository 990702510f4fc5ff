//! The state that all actors of a run share: the models, the oracle's verdict so far, and the
//! simulated threads. These may write in the middle of any other step.
//!
//! It is behind a mutex only because a tool has to be `Send`. One thread uses it, and never calls
//! into the shard while it holds the lock. The shard catches the panics of closures and tools, so a
//! violation is noted here and raised by the driver of the run.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::base::{ExecutionId, Handle, Instant, Random, SubscriberId};
use crate::engine::{Action, Coalesce, OnStall, Reply, RingFacts, Subscribed, Timeouts, Verdict};
use crate::limits;
use crate::shard::Delivery;
use crate::sim::coverage::{Coverage, Fnv};
use crate::sim::follower::{Follower, Gone, Habitat};
use crate::sim::model::{ChunkModel, ExecutionModel, Producer, ReportedEnd};
use crate::sim::patience::Patience;
use crate::sim::stage::REFUSED_TEXT;
use crate::sim::thread::ThreadActor;
use crate::stream::{EndState, GapReason, Outcome, Policy};

/// The shared state.
pub(super) struct Scene {
    pub now: Instant,
    pub random: Random,
    pub verbose: bool,
    pub executions: Vec<ExecutionModel>,
    pub followers: Vec<Follower>,
    pub threads: Vec<ThreadActor>,
    /// Executions whose job comes out of the shard next.
    pub jobs_expected: VecDeque<usize>,
    /// Chance of a preemption at each action of the engine, per mille.
    pub preempt: u64,
    /// True while a thread has the processor in the middle of the shard's turn.
    pub is_preempting: bool,
    pub has_faults: bool,
    pub shutting_down: bool,
    pub coverage: Coverage,
    pub actions_hash: Fnv,
    pub actions_count: u64,
    /// Hash of all deliveries to subscribers, those on other threads included.
    pub given_hash: Fnv,
    pub failure: Option<String>,
    /// The execution that is being requested.
    pub opening: Option<Opening>,
    pub joining: Option<Joining>,
    /// The subscriber whose place was taken over last.
    pub taken_over: Option<usize>,
    /// A chunk that is on its way into the shard by hand.
    pub publishing: Option<(usize, u64, ChunkModel)>,
    by_seat: Vec<Option<usize>>,
    scratch: Vec<u8>,
}

/// An execution that is being requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    pub producer: Producer,
    pub on_stall: OnStall,
    pub holds: bool,
    pub block_deadline: Option<std::time::Duration>,
    pub chunk_bytes: u32,
    /// The ring that it may grow to, if it starts with a small one.
    pub whole: Option<RingFacts>,
    pub timeouts: Timeouts,
}

/// A subscription that is being requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joining {
    pub execution: usize,
    pub habitat: Habitat,
    pub ack_window: Option<u32>,
    /// True if it may lag by as much as the ring holds, and needs nothing else of it.
    pub wants_whole_ring: bool,
    pub coalesce: Option<Coalesce>,
    pub replays: bool,
    pub is_promised: bool,
    /// The tail of the log when it came: everything before was gone.
    pub came_tail_seq: u64,
}

/// The scene as its actors hold it.
#[derive(Clone)]
pub(super) struct SharedScene(Arc<Mutex<Scene>>);

impl SharedScene {
    pub fn new(scene: Scene) -> SharedScene {
        SharedScene(Arc::new(Mutex::new(scene)))
    }

    pub fn lock(&self) -> MutexGuard<'_, Scene> {
        self.0.try_lock().expect("one thread, and nobody holds it across a call")
    }
}

impl Scene {
    pub fn new(random: Random, preempt: u64, verbose: bool) -> Scene {
        Scene {
            now: Instant::ZERO,
            random,
            verbose,
            executions: Vec::new(),
            followers: Vec::new(),
            threads: Vec::new(),
            jobs_expected: VecDeque::new(),
            preempt,
            is_preempting: false,
            has_faults: true,
            shutting_down: false,
            coverage: Coverage::default(),
            actions_hash: Fnv::default(),
            actions_count: 0,
            given_hash: Fnv::default(),
            failure: None,
            opening: None,
            joining: None,
            taken_over: None,
            publishing: None,
            by_seat: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Prints an event, if the run is verbose.
    pub fn say(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>14} {}", self.now.nanos(), text());
        }
    }

    /// Notes a failure; the first one counts.
    pub fn fail(&mut self, text: String) {
        self.say(|| format!("WRONG: {text}"));
        self.failure.get_or_insert(text);
    }

    fn check(&mut self, who: impl FnOnce() -> String, result: Result<(), String>) {
        if let Err(text) = result {
            self.fail(format!("{}: {text}", who()));
        }
    }

    /// Observes an action of the engine before the shard carries it out.
    pub fn observe(&mut self, action: &Action, recipients: &[SubscriberId]) {
        self.say(|| format!("  {action:?}"));
        (action, recipients).hash(&mut self.actions_hash);
        self.actions_count += 1;
        self.coverage.action(number_of(action));
        self.see_publication(action);
        match action {
            Action::Reply(Reply::Opened(Ok(id))) => self.opened(*id),
            Action::Reply(Reply::Subscribed(Ok(subscribed))) => self.joined(subscribed),
            Action::StartProducer(execution) => {
                let index = self.execution_at(*execution);
                self.executions[index].patience.start(self.now);
                if self.executions[index].is_thread() {
                    self.jobs_expected.push_back(index);
                }
            }
            Action::StopProducer(execution) => {
                let index = self.execution_at(*execution);
                self.executions[index].patience.stop(self.now);
            }
            Action::SetGate(execution, _) => {
                let index = self.execution_at(*execution);
                self.executions[index].patience.let_go(self.now);
            }
            Action::Verdict(execution, verdict) => self.judged(*execution, verdict),
            Action::Release(execution) => self.released(*execution),
            Action::End(subscriber, _, end) => {
                let gone = match end.state {
                    EndState::Ended(_) => Gone::Ended,
                    EndState::Detached { reason, .. } => Gone::Detached(reason),
                };
                self.leaves(*subscriber, gone);
            }
            Action::DetachReader(subscriber, _, reason) => {
                self.leaves(*subscriber, Gone::Detached(*reason));
            }
            Action::Forget(subscriber, _) => self.leaves(*subscriber, Gone::Left),
            _ => {}
        }
        if self.preempt > 0 && self.random.chance(self.preempt, 1_000) {
            self.preempt();
        }
    }

    /// Publishes a chunk by hand in the model before its first delivery, which comes before the
    /// publish returns.
    fn see_publication(&mut self, action: &Action) {
        let Some((index, seq, chunk)) = self.publishing else { return };
        let is_seen = matches!(
            action,
            Action::Deliver { .. } | Action::Gap(..) | Action::End(..) // Caused by it.
        );
        if is_seen {
            self.publishing = None;
            self.published(index, seq, chunk);
        }
    }

    /// Gives a tool's thread the processor.
    pub fn preempt(&mut self) {
        let count = self.threads.len() as u64;
        if count > 0 {
            let index = self.random.below(count) as usize;
            let steps = self.random.between(1, 12);
            self.coverage.count("thread wrote in the middle of a turn");
            self.is_preempting = true;
            for _ in 0..steps {
                self.step_thread(index);
            }
            self.is_preempting = false;
        }
    }

    fn opened(&mut self, id: ExecutionId) {
        let opening = self.opening.take().expect("somebody asks");
        let index = self.executions.len();
        let mut execution = ExecutionModel::new(index as u32, id, opening.producer);
        execution.on_stall = opening.on_stall;
        execution.holds = opening.holds;
        execution.chunk_bytes = opening.chunk_bytes;
        execution.whole = opening.whole;
        execution.block_deadline = opening.block_deadline.unwrap_or(limits::BLOCK_DEADLINE);
        execution.patience = Patience::new(opening.timeouts);
        self.executions.push(execution);
        self.coverage.count(match opening.producer {
            Producer::Steps => "producer steps",
            Producer::Feed => "producer feed",
            Producer::Thread => "producer thread",
            #[cfg(feature = "server")]
            Producer::Process => "producer in another process",
        });
    }

    fn joined(&mut self, subscribed: &Subscribed) {
        let joining = self.joining.take().expect("somebody asks");
        let index = self.followers.len();
        let mut follower =
            Follower::new(index, joining.execution, joining.habitat, subscribed, self.now);
        follower.ack_window = joining.ack_window;
        follower.coalesce = joining.coalesce;
        follower.replays = joining.replays;
        let grows = self.executions[joining.execution].whole.is_some();
        follower.grows_with_ring = joining.wants_whole_ring && grows;
        follower.is_promised = joining.is_promised;
        follower.came_tail_seq = joining.came_tail_seq;
        let execution = &mut self.executions[joining.execution];
        let result = follower.begin(execution);
        execution.followers.push(index);
        execution.was_read = true;
        execution.was_gated |= follower.policy == Policy::Block;
        put(&mut self.by_seat, subscribed.subscriber.0.index, index);
        self.followers.push(follower);
        self.check(|| format!("subscriber {index}"), result);
    }

    /// The index of the execution that the engine calls `handle`.
    pub fn execution_at(&self, handle: Handle) -> usize {
        // Its generation counts, too: the next execution in a slot is opened before the last one
        // goes.
        let found = self.executions.iter().rposition(|execution| execution.id.slot == handle);
        found.expect("the engine was asked to open it")
    }

    fn judged(&mut self, execution: Handle, verdict: &Verdict) {
        let index = self.execution_at(execution);
        self.drop_untaken(index, verdict.head_seq);
        let model = &mut self.executions[index];
        let mut result = model.check_verdict(verdict, self.shutting_down);
        if model.verdict.replace((verdict.outcome, verdict.error.clone())).is_some() {
            result = Err("it ended twice".into());
        }
        self.coverage.count(match verdict.outcome {
            Outcome::Completed => "outcome completed",
            Outcome::Cancelled => "outcome cancelled",
            Outcome::Failed => "outcome failed",
            Outcome::TimedOut => "outcome timed_out",
        });
        if verdict.outcome == Outcome::Failed && self.executions[index].told.is_none() {
            let text = verdict.error.as_deref().unwrap_or("");
            self.coverage.count(match text.contains(REFUSED_TEXT) {
                true => "ring refused",
                false => "producer failed for a stall",
            });
        }
        self.check(|| format!("execution {index}"), result);
    }

    /// Removes the chunks that the shard did not take before it stopped a producer in another
    /// process.
    fn drop_untaken(&mut self, index: usize, head_seq: u64) {
        let execution = &mut self.executions[index];
        if !execution.is_in_process() || execution.head_seq() <= head_seq {
            return;
        }
        for &follower in &execution.followers {
            let follower = &mut self.followers[follower];
            let untaken = execution.totals(follower.kinds, head_seq + 1, u64::MAX);
            follower.pending = follower.pending - untaken;
        }
        execution.truncate(head_seq);
        self.coverage.count("chunks of a process not taken");
    }

    fn released(&mut self, execution: Handle) {
        let index = self.execution_at(execution);
        self.executions[index].is_forgotten = true;
        let followers = &self.executions[index].followers;
        let left = followers.iter().copied().find(|&each| self.followers[each].gone.is_none());
        if let Some(follower) = left {
            self.fail(format!("execution {index} is forgotten, and subscriber {follower} is not"));
        }
        if self.executions[index].verdict.is_none() {
            self.fail(format!("execution {index} is forgotten before its end"));
        }
    }

    /// Acknowledges everything through `seq` for a follower.
    pub fn acknowledge(&mut self, index: usize, seq: u64, now: Instant) {
        let follower = &mut self.followers[index];
        follower.acknowledge(seq, &self.executions[follower.execution], now);
    }

    fn leaves(&mut self, subscriber: SubscriberId, gone: Gone) {
        let index = self.by_seat[subscriber.0.index as usize].expect("it was granted");
        let follower = &mut self.followers[index];
        assert!(follower.subscriber == subscriber);
        let before = follower.gone.replace(gone);
        let is_taken_over = gone == Gone::Left && follower.lost_at.is_some();
        follower.has_left |= is_taken_over;
        if before.is_some() {
            self.fail(format!("subscriber {index} is let go twice: {before:?}, {gone:?}"));
        }
        if is_taken_over {
            self.taken_over = Some(index);
            self.coverage.count("lost place taken over");
        }
    }

    /// Notes that a producer has published the next chunk, under its number.
    pub fn published(&mut self, index: usize, seq: u64, chunk: ChunkModel) {
        let execution = &mut self.executions[index];
        if execution.is_in_process() && execution.verdict.is_some() {
            return; // The producer does not know yet, and the chunk is not taken.
        }
        execution.push(ChunkModel { known_at: self.now, ..chunk });
        match self.is_preempting {
            true => execution.patience.hear_in_turn(self.now),
            false => execution.patience.hear(self.now),
        }
        let mut result = match (execution.head_seq() == seq, &execution.verdict) {
            (true, None) => Ok(()),
            (_, verdict) => Err(format!("chunk {seq} was published after {verdict:?}")),
        };
        let execution = &self.executions[index];
        for &follower in &execution.followers {
            let told = self.followers[follower].published(execution);
            result = result.and(told.map_err(|text| format!("subscriber {follower}: {text}")));
        }
        self.check(|| format!("execution {index}"), result);
    }

    /// Checks a delivery to a subscriber.
    pub fn given(&mut self, index: usize, delivery: &Delivery<'_>) {
        let now = self.now;
        let follower = &mut self.followers[index];
        let execution = &self.executions[follower.execution];
        let result = follower.take(delivery, execution, now, &mut self.scratch);
        let (policy, habitat) = (follower.policy, follower.habitat);
        let (filters, coalesces) = (!follower.kinds.is_all(), follower.coalesce.is_some());
        let number = execution.number;
        self.say(|| format!("    {index} of {number} is given {}", words(delivery)));
        self.check(|| format!("subscriber {index} of execution {number}"), result);
        self.given_hash.write_u64(index as u64);
        match delivery {
            Delivery::Chunk(chunk) => {
                self.given_hash.write_u64(chunk.seq);
                self.coverage.given(policy, habitat as usize);
                if filters {
                    self.coverage.count("filtered");
                }
                if coalesces {
                    self.coverage.count("coalesced");
                }
            }
            Delivery::Gap(gap) => {
                gap.hash(&mut self.given_hash);
                self.coverage.count(match gap.reason {
                    GapReason::Lag => "gap lag",
                    GapReason::Conflated => "gap conflated",
                    GapReason::Overtaken => "gap overtaken",
                    GapReason::Late => "gap late",
                    GapReason::Corrupt | GapReason::Expired | GapReason::Unwritten => {
                        unreachable!("nothing is kept on disk")
                    }
                });
            }
            Delivery::Progress(progress) => {
                (progress.progress, progress.message, progress.context).hash(&mut self.given_hash);
                self.coverage.count("progress");
            }
            Delivery::End(ended) => {
                ended.end.state.hash(&mut self.given_hash);
                self.coverage.count(&match ended.end.state {
                    EndState::Ended(outcome) => format!("end {outcome}"),
                    EndState::Detached { reason, .. } => format!("end detached: {}", reason.name()),
                });
            }
        }
    }

    /// Notes the end that a producer reports.
    pub fn told(&mut self, index: usize, told: ReportedEnd) {
        self.say(|| format!("execution {index} says {told:?}"));
        self.executions[index].told.get_or_insert(told);
        self.coverage.count(match told {
            ReportedEnd::Done => "producer done",
            ReportedEnd::Failed => "producer failed",
            ReportedEnd::Panicked => "producer panicked",
            ReportedEnd::Stopped => "producer stopped",
        });
    }
}

fn words(delivery: &Delivery<'_>) -> String {
    match delivery {
        Delivery::Chunk(chunk) => format!("chunk {} ({} bytes)", chunk.seq, chunk.data.len()),
        Delivery::Gap(gap) => format!("{gap:?}"),
        Delivery::Progress(progress) => format!("{progress:?}"),
        Delivery::End(ended) => format!("{:?} {:?}", ended.end, ended.error),
    }
}

fn put(table: &mut Vec<Option<usize>>, at: u32, index: usize) {
    if table.len() <= at as usize {
        table.resize(at as usize + 1, None);
    }
    table[at as usize] = Some(index);
}

/// The index of the action in the list of coverage.
fn number_of(action: &Action) -> usize {
    match action {
        Action::Lease(..) => 0,
        Action::Release(_) => 1,
        Action::SetGate(..) => 2,
        Action::WatchReaders(..) => 3,
        Action::StartProducer(_) => 4,
        Action::WakeProducer(_) => 5,
        Action::StopProducer(_) => 6,
        Action::Deliver { .. } => 7,
        Action::Fetch { .. } | Action::KeepEnd(..) | Action::Reply(Reply::Suspended(_)) => {
            unreachable!("nothing is kept on disk")
        }
        Action::Gap(..) => 8,
        Action::Progress(..) => 9,
        Action::End(..) => 10,
        Action::Forget(..) => 11,
        Action::Report(..) => 12,
        Action::Verdict(..) => 13,
        Action::DetachReader(..) => 14,
        Action::Reply(Reply::Opened(_)) => 15,
        Action::Reply(Reply::Subscribed(_)) => 16,
        Action::Reply(Reply::Unsubscribed(_)) => 17,
        Action::Reply(Reply::Cancelled(_)) => 18,
        Action::Reply(Reply::Acknowledged(_)) => 19,
        Action::Reply(Reply::Reattached(_)) => 20,
        Action::Reply(Reply::Inspected(_)) => 21,
        Action::Reply(Reply::TokenForgotten(_)) => 22,
    }
}
