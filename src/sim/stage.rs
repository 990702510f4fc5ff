//! The stage: a shard in its world, and the scene that all actors share.
//!
//! The world's part is here: its time, and its memory, which becomes short and plentiful again by
//! made-up readings. The requests of actors are in `joins.rs` and `requests.rs`.

use crate::base::{ExecutionId, Instant, Random};
use crate::engine::Status;
use crate::limits;
use crate::memory::{Geometry, Pressure, Readings, RingPoolConfig};
use crate::shard::ShardConfig;
#[cfg(feature = "server")]
use crate::sim::door::LifeLines;
use crate::sim::plan::Plan;
use crate::sim::reactor::SimReactor;
use crate::sim::scene::{Scene, SharedScene};
#[cfg(feature = "server")]
use crate::sim::thread::Hand;
use crate::sim::world::{SimFaults, SimWorld};
use crate::stream::ExecutionState;

/// The text that only the error of an execution with a refused ring contains.
pub(super) const REFUSED_TEXT: &str = "this tool declares";

/// A shard in its world, and the scene.
pub(super) struct Stage {
    pub plan: Plan,
    pub random: Random,
    pub world: SimWorld,
    pub shard: super::SimShard,
    pub shared: SharedScene,
    /// The lines of readers at the door.
    #[cfg(feature = "server")]
    pub lines: LifeLines,
}

impl Stage {
    pub fn new(seed: u64, verbose: bool) -> Stage {
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
        Stage {
            plan,
            random,
            world,
            shard,
            shared,
            #[cfg(feature = "server")]
            lines: LifeLines::default(),
        }
    }

    /// The virtual time, which all actors share.
    pub fn now(&self) -> Instant {
        self.world.now()
    }

    /// Tells the scene the time.
    pub fn sync_clock(&self) {
        self.shared.lock().now = self.world.now();
    }

    /// Lets the processes begin whose executions have a ring.
    #[cfg(feature = "server")]
    pub fn let_processes_begin(&mut self) {
        let mut guard = self.shared.lock();
        let scene = &mut *guard;
        for actor in &mut scene.threads {
            let Hand::Process(process) = &mut actor.hand else { continue };
            if let Some(line) = process.waits_on()
                && self.shard.has_begun_by_hand(line)
            {
                process.begin();
            }
            if self.shard.has_passed_by_hand(process.line()) {
                scene.coverage.count("chunks of a process passed over");
            }
        }
    }

    /// Delivers the signals of readers and processes to the shard, unless they are late.
    #[cfg(feature = "server")]
    pub fn hear_lines(&mut self) {
        let has_faults = self.shared.lock().has_faults;
        if has_faults && self.random.chance(1, 4) {
            return;
        }
        self.lines.deliver(&mut self.shard);
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
        if (known.is_none() || self.shared.lock().executions[execution].whole.is_some())
            && let Ok(status) = self.shard.inspect(id)
        {
            self.note_ring(execution, Some(&status));
        }
    }

    /// Notes the ring of an execution, if it was not known yet or has grown.
    pub fn note_ring(&mut self, execution: usize, status: Option<&Status>) {
        let mut scene = self.shared.lock();
        let model = &mut scene.executions[execution];
        let before = model.ring;
        if let Some(ring) = status.and_then(|status| status.ring) {
            model.note_ring(ring);
            match before {
                Some(before) if before.slot_count > ring.slot_count => {
                    scene.fail(format!("the ring of {execution} has shrunk: {before:?}, {ring:?}"));
                }
                Some(before) if before.slot_count < ring.slot_count => {
                    scene.coverage.count("ring grown");
                    let Scene { executions, followers, .. } = &mut *scene;
                    let model = &executions[execution];
                    let all = followers.iter_mut().filter(|each| each.execution == execution);
                    all.for_each(|follower| follower.learn_ring(model));
                }
                _ => {}
            }
        }
    }

    /// Reports a failure of the oracle.
    ///
    /// # Panics
    /// The oracle has found a failure.
    pub fn raise(&self, step_count: u64) {
        let failure = self.shared.lock().failure.take();
        if let Some(text) = failure {
            panic!("step {step_count}: {text}");
        }
    }

    /// Changes the kernel's readings about memory.
    pub fn change_memory(&mut self) {
        if self.waits_with_chunks() {
            // The ring memory that is left takes none of its chunks.
            let readings = Readings { cgroup_limit_bytes: Some(0), ..Readings::default() };
            self.tell_memory(&readings);
            return;
        }
        if self.random.chance(1, 3) {
            self.calm_memory();
            return;
        }
        let random = &mut self.random;
        // Thresholds and the values just below them; the others are in the tests of the table.
        let percent = [0.0, 9.9, 10.0, 30.0, 60.0, 100.0][random.below(6) as usize];
        // A tenth of it is for rings: hardly any, or up to more than the machine has.
        let limit_bytes = match random.below(4) {
            0 => Some(random.between(0, self.plan.rings_bytes_max)),
            1 => Some(random.between(0, 20 * self.plan.rings_bytes_max)),
            _ => None,
        };
        let readings = Readings {
            memory_some_avg10: random.chance(3, 4).then_some(percent as f32),
            cgroup_limit_bytes: limit_bytes,
            ..Readings::default()
        };
        self.tell_memory(&readings);
    }

    /// True if an execution waits for a ring that a smaller one cannot replace.
    fn waits_with_chunks(&mut self) -> bool {
        let queued =
            self.statuses().into_iter().filter(|status| status.state == ExecutionState::Queued);
        let queued: Vec<ExecutionId> = queued.map(|status| status.id).collect();
        let smallest = Geometry::of_class(limits::RING_CLASS_BYTES[0]).length_max();
        let scene = self.shared.lock();
        let mut models = scene.executions.iter().filter(|model| model.chunk_bytes > smallest);
        models.any(|model| queued.contains(&model.id))
    }

    /// Reports plenty of memory, for long enough to be believed.
    pub fn calm_memory(&mut self) {
        // The first few may end an earlier calm that was not as calm.
        for _ in 0..2 * limits::PRESSURE_CALM_SAMPLES {
            self.tell_memory(&Readings::default());
        }
        assert_eq!(self.shard.memory().pressure, Pressure::Normal);
        assert_eq!(self.shard.memory().rings_bytes_max, self.plan.rings_bytes_max);
    }

    fn tell_memory(&mut self, readings: &Readings) {
        self.shared.lock().say(|| format!("memory: {readings:?}"));
        let leased_bytes = self.shard.ring_usage().leased_bytes;
        let pressure = self.shard.set_readings(readings);
        let memory = self.shard.memory();
        let mut scene = self.shared.lock();
        scene.coverage.count(&format!("memory {pressure}"));
        let is_above = memory.usage.leased_bytes > memory.rings_bytes_max;
        if is_above && memory.usage.leased_bytes > leased_bytes {
            scene.fail(format!("a ring was leased above the limit: {memory:?}"));
        }
        if is_above {
            scene.coverage.count("memory limit below what is leased");
        }
    }
}
