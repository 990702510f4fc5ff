//! One run of one seed: faults first, then calm, in which everything has to drain.
//!
//! The shard is a real one over the simulated reactor. In one step an actor acts, the shard takes
//! some turns, and some virtual time passes. The shard gets a turn at each of its deadlines, unless
//! it is late on purpose. After each step the shard's own invariants are checked.

use std::time::Duration;

use crate::base::{ExecutionId, Instant, Random};
use crate::engine::Status;
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::shard::ShardConfig;
use crate::sim::coverage::Coverage;
#[cfg(feature = "server")]
use crate::sim::door::LifeLines;
use crate::sim::model::Producer;
use crate::sim::plan::{Plan, pick};
use crate::sim::producer::Script;
use crate::sim::reactor::SimReactor;
use crate::sim::scene::{Scene, SharedScene};
use crate::sim::thread::{Hand, ThreadActor};
use crate::sim::watcher::Watcher;
use crate::sim::world::{SimFaults, SimWorld};
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
    pub plan: Plan,
    pub random: Random,
    pub world: SimWorld,
    pub shard: super::SimShard,
    pub shared: SharedScene,
    pub watchers: Vec<Watcher>,
    pub feeds: Vec<Feed>,
    /// The scripts that will run on threads, by execution.
    pub scripts: Vec<Option<Script>>,
    /// The lines of readers at the door.
    #[cfg(feature = "server")]
    pub lines: LifeLines,
    pub step_count: u64,
}

/// Chunks published by hand.
pub(super) struct Feed {
    pub execution: usize,
    pub id: ExecutionId,
    pub script: Script,
}

impl Sim {
    pub fn new(seed: u64, verbose: bool) -> Sim {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random);
        if verbose {
            println!("{plan:#?}");
        }
        let world = SimWorld::new(random.next_u64(), SimFaults::NONE);
        let rings = RingPoolConfig {
            prealloc_bytes: 0,
            bytes_max: plan.rings_bytes_max,
            ..RingPoolConfig::default()
        };
        let config = ShardConfig {
            engine: plan.engine,
            rings,
            seed: Some(random.next_u64()),
            guests: super::guests(),
            ..Default::default()
        };
        let reactor = SimReactor::new(&world);
        let mut shard = super::shard(reactor, config).expect("memory for small rings");
        shard.run_jobs_by_hand();
        let scene = Scene::new(Random::new(random.next_u64()), plan.preempt, verbose);
        let shared = SharedScene::new(scene);
        let observer = shared.clone();
        let clock = world.clone();
        shard.observe(move |action, recipients| {
            let mut scene = observer.lock();
            scene.now = clock.now(); // A poll of the reactor takes time.
            scene.observe(action, recipients);
        });
        Sim {
            plan,
            random,
            world,
            shard,
            shared,
            watchers: Vec::new(),
            feeds: Vec::new(),
            scripts: Vec::new(),
            #[cfg(feature = "server")]
            lines: LifeLines::default(),
            step_count: 0,
        }
    }

    /// Runs the whole seed.
    ///
    /// # Panics
    /// A check fails.
    pub fn run(mut self, seed: u64) -> Summary {
        self.watch_between();
        while !self.has_enough() {
            assert!(self.step_count < STEPS_MAX, "it gets nowhere: {:?}", self.shard);
            self.step_count += 1;
            self.step();
            if self.random.chance(1, 8) {
                self.check_queue();
            }
            self.check();
        }
        if self.plan.shuts_down {
            self.shut_down();
        }
        self.calm_down();
        let scene = self.shared.lock();
        Summary {
            seed,
            actions_hash: std::hash::Hasher::finish(&scene.actions_hash),
            given_hash: std::hash::Hasher::finish(&scene.given_hash),
            action_count: scene.actions_count,
            step_count: self.step_count,
            execution_count: scene.executions.len() as u64,
            subscriber_count: scene.followers.len() as u64,
            counters: self.shard.counters(),
            coverage: scene.coverage.clone(),
            elapsed: scene.now.since(Instant::ZERO),
        }
    }

    fn has_enough(&self) -> bool {
        let scene = self.shared.lock();
        scene.actions_count >= self.plan.actions_min
            && scene.executions.len() >= self.plan.executions_min
            && scene.followers.len() >= self.plan.subscribers_min
    }

    fn step(&mut self) {
        let (executions, living, followers) = {
            let scene = self.shared.lock();
            let living = scene.executions.iter().filter(|each| each.verdict.is_none()).count();
            (scene.executions.len(), living, scene.followers.len())
        };
        // Actors whose number is too low come sooner.
        let opens = if living < 3 || executions < self.plan.executions_min { 6 } else { 1 };
        let joins = if followers < self.plan.subscribers_min { 12 } else { 4 };
        let weights = [opens, joins, 20, 20, 40, 8];
        match pick(&mut self.random, &weights) {
            0 => self.open(),
            1 if executions > 0 => self.subscribe(),
            2 if !self.feeds.is_empty() => self.feed(),
            3 => self.run_threads(),
            4 if !self.watchers.is_empty() => {
                let at = self.random.below(self.watchers.len() as u64) as usize;
                self.visit(at);
            }
            5 if executions > 0 => self.interfere(),
            _ => {}
        }
        if self.step_count.is_multiple_of(200) {
            self.make_room();
        }
        self.cancel_long();
        if self.random.chance(self.plan.memory, 1_000) {
            self.change_memory();
        }
        self.turn();
        self.let_time_pass();
    }

    /// The virtual time, which all actors share.
    pub fn now(&self) -> Instant {
        self.world.now()
    }

    fn sync_clock(&self) {
        self.shared.lock().now = self.world.now();
    }

    /// Takes turns of the shard, until it is at rest or has had `TURNS_MAX` of them.
    fn turn(&mut self) {
        for _ in 0..TURNS_MAX {
            self.sync_clock();
            self.shared.lock().executions.iter_mut().for_each(|each| each.patience.turn());
            #[cfg(feature = "server")]
            self.hear_lines();
            let worked = self.shard.turn();
            self.take_jobs();
            if !worked {
                break;
            }
        }
        self.sync_clock();
    }

    /// Gives each job of the shard to a simulated thread.
    fn take_jobs(&mut self) {
        while let Some(job) = self.shard.next_job() {
            let mut scene = self.shared.lock();
            let execution = scene.jobs_expected.pop_front().expect("it was told to start");
            let script = self.scripts[execution].take().expect("it is started once");
            let actor =
                ThreadActor::new(execution, script, Hand::Thread(Box::new(job.output), job.done));
            scene.executions[execution].ring = Some(actor.ring());
            scene.threads.push(actor);
        }
    }

    /// True if a long pause is due. A plan may draw only short pauses, and a wait for a deadline
    /// would then never end.
    fn is_tedious(&self) -> bool {
        self.step_count > STEPS_MAX / 2 && self.step_count.is_multiple_of(16)
    }

    fn let_time_pass(&mut self) {
        let is_long = self.random.chance(self.plan.long_pause, 1_000) || self.is_tedious();
        let pause = match self.random.below(4) {
            _ if is_long => Duration::from_millis(1 << self.random.between(4, 15)),
            0 => Duration::ZERO,
            1 => self.plan.pause_max * 8,
            _ => self.plan.pause_max,
        };
        let nanos = self.random.below(pause.as_nanos() as u64 + 1);
        self.pass(Duration::from_nanos(nanos));
    }

    /// Lets time pass, with a turn at each deadline of the shard.
    pub fn pass(&mut self, duration: Duration) {
        let until = self.now() + duration;
        if self.plan.is_late && self.random.chance(1, 4) {
            self.world.advance_to(until.max(self.now()));
            self.turn();
            return;
        }
        for count in 0.. {
            let due = self.shard.next_deadline().filter(|&due| due <= until);
            let Some(due) = due else { break };
            if count == DEADLINES_MAX {
                return; // So much to do makes this time enough.
            }
            if self.random.chance(1, 4) {
                self.shard.park(Some(due)); // As a loop does it.
            }
            self.world.advance_to(due.max(self.now()));
            self.turn();
        }
        self.world.advance_to(until.max(self.now()));
        self.turn();
    }

    /// Runs one of the threads.
    fn run_threads(&mut self) {
        #[cfg(feature = "server")]
        self.let_processes_begin();
        let mut scene = self.shared.lock();
        if scene.threads.is_empty() {
            return;
        }
        let at = self.random.below(scene.threads.len() as u64) as usize;
        if self.random.chance(self.plan.thread_stuck, 10_000) {
            let pause = Duration::from_millis(1 << self.random.between(0, 20));
            scene.threads[at].stuck_until = self.world.now() + pause;
            return;
        }
        for _ in 0..self.random.between(1, self.plan.burst_max) {
            scene.step_thread(at);
        }
    }

    #[cfg(feature = "server")]
    fn let_processes_begin(&mut self) {
        for actor in &mut self.shared.lock().threads {
            if let Hand::Process(process) = &mut actor.hand
                && let Some(line) = process.waits_on()
                && self.shard.has_begun_by_hand(line)
            {
                process.begin();
            }
        }
    }

    /// The shard's status of each execution that it still knows.
    pub fn statuses(&mut self) -> Vec<Status> {
        let scene = self.shared.lock();
        let living = scene.executions.iter().filter(|each| !each.is_forgotten);
        let ids: Vec<ExecutionId> = living.map(|each| each.id).collect();
        drop(scene);
        ids.into_iter().filter_map(|id| self.shard.inspect(id).ok()).collect()
    }

    /// Asks for the ring of an execution, if that is not known yet.
    pub fn look_for_ring(&mut self, execution: usize) {
        let scene = self.shared.lock();
        let (id, known) = (scene.executions[execution].id, scene.executions[execution].ring);
        drop(scene);
        if known.is_none()
            && let Ok(status) = self.shard.inspect(id)
        {
            self.shared.lock().executions[execution].ring = status.ring;
        }
    }

    /// Checks all that must hold between two steps.
    fn check(&mut self) {
        if let Err(text) = self.check_between() {
            self.shared.lock().fail(text);
        }
        self.raise();
        self.shard.audit();
        let counters = self.shard.counters();
        assert_eq!(counters.gates_told_late, 0, "a producer waited for a gate");
        assert_eq!(counters.producers_stuck, 0, "a producer waited for nobody");
        let mut guard = self.shared.lock();
        let scene = &mut *guard;
        let now = scene.now;
        let mut wrong = None;
        // A panic of the observer would be caught as well.
        let panicked_count = scene.coverage.counted("closure panicked");
        assert_eq!(self.shard.counters().callbacks_panicked, panicked_count);
        for follower in scene.followers.iter().filter(|follower| follower.is_attached()) {
            let execution = &scene.executions[follower.execution];
            if follower.is_plain() && !execution.is_apart() && follower.pending.chunks > 0 {
                wrong = Some(format!("closure {follower:?} was not given what is there"));
            }
            let is_closure = follower.habitat == super::follower::Habitat::Closure;
            if is_closure
                && !self.plan.is_late
                && !execution.is_apart()
                && let Err(text) = follower.check_coalescing(execution, now)
            {
                wrong = Some(format!("closure {follower:?}: {text}"));
            }
        }
        let living = scene.executions.iter().filter(|each| each.verdict.is_none());
        for execution in living.filter(|each| !self.plan.is_late && !each.is_apart()) {
            if let Some(text) = execution.patience.overdue(now) {
                wrong = Some(format!("execution {}: {text}", execution.number));
            }
        }
        if let Some(text) = wrong {
            scene.fail(text);
        }
        drop(guard);
        self.raise();
    }

    /// Reports a failure of the oracle.
    ///
    /// # Panics
    /// The oracle has found a failure.
    fn raise(&self) {
        let failure = self.shared.lock().failure.take();
        if let Some(text) = failure {
            panic!("step {}: {text}", self.step_count);
        }
    }

    fn shut_down(&mut self) {
        self.shared.lock().shutting_down = true;
        self.shared.lock().say(|| "shutdown".into());
        self.shard.shut_down();
        self.turn();
        self.open();
        self.subscribe();
        self.check();
    }

    /// Ends the faults: all executions end, all subscribers receive that, and all memory is
    /// returned.
    fn calm_down(&mut self) {
        let mut scene = self.shared.lock();
        scene.has_faults = false;
        scene.preempt = 0;
        scene.say(|| "calm".into());
        drop(scene);
        self.plan = Plan { misuse: 0, is_late: false, ..self.plan.clone() };
        self.calm_memory();
        self.finish_feeds();
        for round in 0..CALM_ROUNDS_MAX {
            #[cfg(feature = "server")]
            self.let_processes_begin();
            let mut scene = self.shared.lock();
            for at in (0..scene.threads.len()).rev() {
                scene.threads[at].stuck_until = Instant::ZERO;
                scene.threads[at].script.left = scene.threads[at].script.left.min(20);
                scene.step_thread(at);
            }
            drop(scene);
            self.turn();
            if round == 10 {
                self.cancel_endless();
            }
            while self.visit_all() {
                self.turn();
                self.raise();
                self.cancel_long();
            }
            self.finish_feeds();
            self.pass(Duration::from_millis(1 << (round % 12)));
            self.check_queue();
            self.check();
            self.shard.audit();
            let scene = self.shared.lock();
            let over = scene.executions.iter().all(|each| each.verdict.is_some());
            if over && scene.threads.is_empty() && round > 60 {
                break;
            }
        }
        let scene = self.shared.lock();
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
        while self.visit_all() {
            self.turn();
        }
        // Subscribers that hold an ended execution up have lost their places by now.
        self.pass(limits::BLOCK_DEADLINE * 4 + limits::RECONNECT_GRACE);
        while self.visit_all() {}
        self.pass(limits::RETENTION + limits::BLOCK_DEADLINE);
        while self.visit_all() {}
        self.check_ends();
        self.check();
        assert_eq!(self.shard.execution_count(), 0, "an execution is never forgotten");
        let usage = self.shard.ring_usage();
        assert_eq!(usage.leased_count, 0, "a ring is never given back: {usage:?}");
        assert_eq!(self.shard.next_deadline(), None, "a timer is left over");
    }
}

impl Sim {
    /// Draws the kind of an execution's producer.
    pub fn draw_producer(&mut self) -> Producer {
        #[cfg(feature = "server")]
        let producers = [Producer::Steps, Producer::Feed, Producer::Thread, Producer::Process];
        #[cfg(not(feature = "server"))]
        let producers = [Producer::Steps, Producer::Feed, Producer::Thread];
        producers[pick(&mut self.random, &self.plan.producers)]
    }
}
