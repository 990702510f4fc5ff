//! One run of one seed: faults first, then calm, in which everything has to drain.
//!
//! The shard is a real one over the simulated reactor. In one step an actor acts, the shard takes
//! some turns, and some virtual time passes. The shard gets a turn at each of its deadlines, unless
//! it is late on purpose. After each step the shard's own invariants are checked.

use std::time::Duration;

use crate::base::Instant;
use crate::limits;
use crate::sim::between::watch_between;
use crate::sim::caller::Callers;
use crate::sim::coverage::Coverage;
use crate::sim::plan::{Plan, pick};
use crate::sim::stage::Stage;
use crate::sim::thread::{Hand, ThreadActor};
use crate::sim::watcher::{Watchers, check_ends};
use crate::trace::Counters;

/// Steps in which a seed has to reach the number of events that it drew.
const STEPS_MAX: u64 = 20_000;
/// Turns after which a shard that is never at rest is left alone.
const TURNS_MAX: u32 = 64;
/// Deadlines of the shard that are met while one pause passes.
const DEADLINES_MAX: u32 = 200;
/// Rounds of calm in which everything has to end.
const CALM_ROUNDS_MAX: u32 = 400;

/// The result of one run. Equal for equal seeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The seed.
    pub seed: u64,
    /// Hash of all actions of the engine, in order.
    pub actions_hash: u64,
    /// Hash of all deliveries to subscribers, those on other threads included.
    pub given_hash: u64,
    /// Actions of the engine.
    pub action_count: u64,
    /// Steps of the run.
    pub step_count: u64,
    /// Executions opened.
    pub execution_count: u64,
    /// Subscriptions granted.
    pub subscriber_count: u64,
    /// The shard's own numbers.
    pub counters: Counters,
    /// The events of the run.
    pub coverage: Coverage,
    /// Virtual time that passed.
    pub elapsed: Duration,
}

/// A shard and its actors.
pub(super) struct Sim {
    stage: Stage,
    callers: Callers,
    watchers: Watchers,
    step_count: u64,
}

impl Sim {
    pub fn new(seed: u64, verbose: bool) -> Sim {
        Sim {
            stage: Stage::new(seed, verbose),
            callers: Callers::default(),
            watchers: Watchers::default(),
            step_count: 0,
        }
    }

    /// Runs the whole seed.
    ///
    /// # Panics
    /// A check fails.
    pub fn run(mut self, seed: u64) -> Summary {
        watch_between();
        while !self.has_enough() {
            assert!(self.step_count < STEPS_MAX, "it gets nowhere: {:?}", self.stage.shard);
            self.step_count += 1;
            self.step();
            if self.stage.random.chance(1, 8) {
                self.stage.check_queue();
            }
            self.check();
        }
        if self.stage.plan.shuts_down {
            self.shut_down();
        }
        self.calm_down();
        let counters = self.stage.shard.counters();
        let mut scene = self.stage.shared.lock();
        if counters.ring_growths_refused > 0 {
            scene.coverage.count("ring growth refused");
        }
        Summary {
            seed,
            actions_hash: std::hash::Hasher::finish(&scene.actions_hash),
            given_hash: std::hash::Hasher::finish(&scene.given_hash),
            action_count: scene.actions_count,
            step_count: self.step_count,
            execution_count: scene.executions.len() as u64,
            subscriber_count: scene.followers.len() as u64,
            counters,
            coverage: scene.coverage.clone(),
            elapsed: scene.now.since(Instant::ZERO),
        }
    }

    fn has_enough(&self) -> bool {
        let scene = self.stage.shared.lock();
        scene.actions_count >= self.stage.plan.actions_min
            && scene.executions.len() >= self.stage.plan.executions_min
            && scene.followers.len() >= self.stage.plan.subscribers_min
    }

    fn step(&mut self) {
        let (executions, living, followers) = {
            let scene = self.stage.shared.lock();
            let living = scene.executions.iter().filter(|each| each.verdict.is_none()).count();
            (scene.executions.len(), living, scene.followers.len())
        };
        // Actors whose number is too low come sooner.
        let opens = if living < 3 || executions < self.stage.plan.executions_min { 6 } else { 1 };
        let joins = if followers < self.stage.plan.subscribers_min { 12 } else { 4 };
        let weights = [opens, joins, 20, 20, 40, 8];
        match pick(&mut self.stage.random, &weights) {
            0 => self.callers.open(&mut self.stage),
            1 if executions > 0 => self.watchers.list.extend(self.stage.subscribe()),
            2 if self.callers.has_feeds() => self.callers.feed(&mut self.stage),
            3 => self.run_threads(),
            4 if !self.watchers.list.is_empty() => {
                let at = self.stage.random.below(self.watchers.list.len() as u64) as usize;
                self.watchers.visit(&mut self.stage, at);
            }
            5 if executions > 0 => self.stage.interfere(),
            _ => {}
        }
        if self.step_count.is_multiple_of(200) {
            self.stage.make_room();
        }
        self.stage.cancel_long();
        if self.stage.random.chance(self.stage.plan.memory, 1_000) {
            self.stage.change_memory();
        }
        self.turn();
        self.let_time_pass();
    }

    /// Takes turns of the shard, until it is at rest or has had `TURNS_MAX` of them.
    fn turn(&mut self) {
        for _ in 0..TURNS_MAX {
            self.stage.sync_clock();
            self.stage.shared.lock().executions.iter_mut().for_each(|each| each.patience.turn());
            #[cfg(feature = "server")]
            self.stage.hear_lines();
            let worked = self.stage.shard.turn();
            self.take_jobs();
            if !worked {
                break;
            }
        }
        self.stage.sync_clock();
    }

    /// Gives each job of the shard to a simulated thread.
    fn take_jobs(&mut self) {
        while let Some(job) = self.stage.shard.next_job() {
            let mut scene = self.stage.shared.lock();
            let execution = scene.jobs_expected.pop_front().expect("it was told to start");
            let script = self.callers.take_script(execution);
            let actor =
                ThreadActor::new(execution, script, Hand::Thread(Box::new(job.output), job.done));
            scene.executions[execution].note_ring(actor.ring());
            scene.threads.push(actor);
        }
    }

    /// True if a long pause is due. A plan may draw only short pauses, and a wait for a deadline
    /// would then never end.
    fn is_tedious(&self) -> bool {
        self.step_count > STEPS_MAX / 2 && self.step_count.is_multiple_of(16)
    }

    fn let_time_pass(&mut self) {
        let is_long =
            self.stage.random.chance(self.stage.plan.long_pause, 1_000) || self.is_tedious();
        let pause = match self.stage.random.below(4) {
            _ if is_long => Duration::from_millis(1 << self.stage.random.between(4, 15)),
            0 => Duration::ZERO,
            1 => self.stage.plan.pause_max * 8,
            _ => self.stage.plan.pause_max,
        };
        let nanos = self.stage.random.below(pause.as_nanos() as u64 + 1);
        self.pass(Duration::from_nanos(nanos));
    }

    /// Lets time pass, with a turn at each deadline of the shard.
    pub fn pass(&mut self, duration: Duration) {
        let until = self.stage.now() + duration;
        if self.stage.plan.is_late && self.stage.random.chance(1, 4) {
            self.stage.world.advance_to(until.max(self.stage.now()));
            self.turn();
            return;
        }
        for count in 0.. {
            let due = self.stage.shard.next_deadline().filter(|&due| due <= until);
            let Some(due) = due else { break };
            if count == DEADLINES_MAX {
                return; // So much to do makes this time enough.
            }
            if self.stage.random.chance(1, 4) {
                self.stage.shard.park(Some(due)); // As a loop does it.
            }
            self.stage.world.advance_to(due.max(self.stage.now()));
            self.turn();
        }
        self.stage.world.advance_to(until.max(self.stage.now()));
        self.turn();
    }

    /// Runs one of the threads.
    fn run_threads(&mut self) {
        #[cfg(feature = "server")]
        self.stage.let_processes_begin();
        let mut scene = self.stage.shared.lock();
        if scene.threads.is_empty() {
            return;
        }
        let at = self.stage.random.below(scene.threads.len() as u64) as usize;
        if self.stage.random.chance(self.stage.plan.thread_stuck, 10_000) {
            let pause = Duration::from_millis(1 << self.stage.random.between(0, 20));
            scene.threads[at].stuck_until = self.stage.world.now() + pause;
            return;
        }
        for _ in 0..self.stage.random.between(1, self.stage.plan.burst_max) {
            scene.step_thread(at);
        }
    }

    /// Checks all that must hold between two steps.
    fn check(&mut self) {
        if let Err(text) = self.watchers.check_between() {
            self.stage.shared.lock().fail(text);
        }
        self.stage.raise(self.step_count);
        self.stage.shard.audit();
        let counters = self.stage.shard.counters();
        assert_eq!(counters.gates_told_late, 0, "a producer waited for a gate");
        assert_eq!(counters.producers_stuck, 0, "a producer waited for nobody");
        let mut guard = self.stage.shared.lock();
        let scene = &mut *guard;
        let now = scene.now;
        let mut wrong = None;
        // A panic of the observer would be caught as well.
        let panicked_count = scene.coverage.counted("closure panicked");
        assert_eq!(self.stage.shard.counters().callbacks_panicked, panicked_count);
        for follower in scene.followers.iter().filter(|follower| follower.is_attached()) {
            let execution = &scene.executions[follower.execution];
            if follower.is_plain() && !execution.is_apart() && follower.pending.chunks > 0 {
                wrong = Some(format!("closure {follower:?} was not given what is there"));
            }
            let is_closure = follower.habitat == super::follower::Habitat::Closure;
            if is_closure
                && !self.stage.plan.is_late
                && !execution.is_apart()
                && let Err(text) = follower.check_coalescing(execution, now)
            {
                wrong = Some(format!("closure {follower:?}: {text}"));
            }
        }
        let living = scene.executions.iter().filter(|each| each.verdict.is_none());
        for execution in living.filter(|each| !self.stage.plan.is_late && !each.is_apart()) {
            if let Some(text) = execution.patience.overdue(now) {
                wrong = Some(format!("execution {}: {text}", execution.number));
            }
        }
        if let Some(text) = wrong {
            scene.fail(text);
        }
        drop(guard);
        self.stage.raise(self.step_count);
    }

    fn shut_down(&mut self) {
        self.stage.shared.lock().shutting_down = true;
        self.stage.shared.lock().say(|| "shutdown".into());
        self.stage.shard.shut_down();
        self.turn();
        self.callers.open(&mut self.stage);
        self.watchers.list.extend(self.stage.subscribe());
        self.check();
    }

    /// Ends the faults: all executions end, all subscribers receive that, and all memory is
    /// returned.
    fn calm_down(&mut self) {
        let mut scene = self.stage.shared.lock();
        scene.has_faults = false;
        scene.preempt = 0;
        scene.say(|| "calm".into());
        drop(scene);
        self.stage.plan = Plan { misuse: 0, is_late: false, ..self.stage.plan.clone() };
        self.stage.calm_memory();
        self.callers.finish_feeds(&mut self.stage);
        for round in 0..CALM_ROUNDS_MAX {
            #[cfg(feature = "server")]
            self.stage.let_processes_begin();
            let mut scene = self.stage.shared.lock();
            for at in (0..scene.threads.len()).rev() {
                scene.threads[at].stuck_until = Instant::ZERO;
                scene.threads[at].script.left = scene.threads[at].script.left.min(20);
                scene.step_thread(at);
            }
            drop(scene);
            self.turn();
            if round == 10 {
                self.stage.cancel_endless();
            }
            while self.watchers.visit_all(&mut self.stage) {
                self.turn();
                self.stage.raise(self.step_count);
                self.stage.cancel_long();
            }
            self.callers.finish_feeds(&mut self.stage);
            self.pass(Duration::from_millis(1 << (round % 12)));
            self.stage.check_queue();
            self.check();
            self.stage.shard.audit();
            let scene = self.stage.shared.lock();
            let over = scene.executions.iter().all(|each| each.verdict.is_some());
            if over && scene.threads.is_empty() && round > 60 {
                break;
            }
        }
        let scene = self.stage.shared.lock();
        let open = scene.executions.iter().find(|each| each.verdict.is_none());
        assert!(
            open.is_none(),
            "execution never ended: {:?}",
            open.map(|each| (each.number, each.producer, each.told))
        );
        let left = scene.threads.iter().map(|actor| actor.execution);
        assert!(
            scene.threads.is_empty(),
            "threads of {:?} never returned",
            left.collect::<Vec<_>>()
        );
        drop(scene);
        while self.watchers.visit_all(&mut self.stage) {
            self.turn();
        }
        // Subscribers that hold an ended execution up have lost their places by now.
        self.pass(limits::BLOCK_DEADLINE * 4 + limits::RECONNECT_GRACE);
        while self.watchers.visit_all(&mut self.stage) {}
        self.pass(limits::RETENTION + limits::BLOCK_DEADLINE);
        while self.watchers.visit_all(&mut self.stage) {}
        check_ends(&self.stage.shared);
        self.check();
        assert_eq!(self.stage.shard.execution_count(), 0, "an execution is never forgotten");
        let usage = self.stage.shard.ring_usage();
        assert_eq!(usage.leased_count, 0, "a ring is never given back: {usage:?}");
        assert_eq!(self.stage.shard.next_deadline(), None, "a timer is left over");
    }
}
