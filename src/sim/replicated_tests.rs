//! Replicated executions in a simulated world. A real shard has a journal. Its real sources and
//! mirrors write a log that is away, refuses, loses answers, and gets ends from others.
//!
//! Some executions only wait for the disk: they are given when they are durable. Their log never
//! has more than was given.
//!
//! The oracle knows what the log has. The engine of a replicated execution never knows a chunk that
//! the log does not have. It knows no end but that of the log, unless the execution has failed.
//! After a crash of the process, the log decides about what was running. Once the faults are over,
//! each log has one end: the one that was told.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::disk::{Crash, DiskFaults, SimDisk};
use super::reactor::{SimReactor, wait_for_deadline};
use super::replica::SimLine;
use super::world::{SimFaults, SimWorld};
use crate::base::{ExecutionId, Instant, Random};
use crate::cluster::closer::Closer;
use crate::cluster::mirror::{Attempt, Last, Mirror, Standing, Wish};
use crate::cluster::record::{Incarnation, Record};
use crate::memory::RingPoolConfig;
use crate::nats::source::{EndGiven, Source};
use crate::server::{FromCluster, GuestConfig, Mirrored, ServerShard, ToCluster};
use crate::shard::journal::{EndedDetails, LogNews};
use crate::shard::{ExecuteOptions, JournalConfig, MemoryWatch, ShardConfig};
use crate::stream::{Deliver, Durability, ExecutionState, Kind, Outcome};
use crate::tool::{Need, Prepared, ToolSpec, Work};

const SEEDS: u64 = 60;
const STEPS: u32 = 250;
const EXECUTIONS_MAX: usize = 8;
const DIRECTORY: &str = "/replicated";
/// Time in which everything ends, once the faults are over.
const PATIENCE: Duration = Duration::from_secs(60);
const LINGER: Duration = Duration::from_micros(500);

/// An execution, as its producer and the oracle know it.
struct Model {
    id: ExecutionId,
    is_open: bool,
    /// The end that was told.
    told: Option<Outcome>,
    /// True if it was running when its process ended.
    is_left: bool,
    durability: Durability,
    /// True if a disk without power may have lost chunks that were given.
    has_lost: bool,
}

impl Model {
    fn is_replicated(&self) -> bool {
        self.durability == Durability::Replicated
    }
}

/// The log of one execution.
#[derive(Default)]
struct Log {
    records: Vec<Vec<u8>>,
}

impl Log {
    fn last(&self) -> Option<Last> {
        let record = self.records.last()?;
        Some(Last::read(self.records.len() as u64, record))
    }

    fn chunks(&self) -> u64 {
        let last = self.last().and_then(|last| last.record);
        last.map_or(0, |(_, after)| after.all.chunks)
    }

    /// The end, and whether there is exactly one, at the end.
    fn end(&self) -> Option<Outcome> {
        let ends = |bytes: &&Vec<u8>| Record::decode(bytes).unwrap().end().is_some();
        assert!(self.records.iter().filter(ends).count() <= 1, "an execution ends once");
        let last = Record::decode(self.records.last()?).unwrap();
        Some(EndedDetails::decode(last.end()?).outcome)
    }

    fn store(&mut self, expected: u64, bytes: &[u8]) -> Option<u64> {
        (expected == self.records.len() as u64).then(|| {
            self.records.push(bytes.to_vec());
            self.records.len() as u64
        })
    }
}

/// An answer on its way back.
enum Answer {
    Failed,
    Stored(u64),
    Looked(Option<Box<Last>>),
}

struct Trial {
    random: Random,
    world: SimWorld,
    disk: SimDisk,
    line: Arc<SimLine>,
    shard: ServerShard<SimReactor>,
    models: Vec<Model>,
    logs: BTreeMap<ExecutionId, Log>,
    life: Incarnation,
    sources: BTreeMap<ExecutionId, (Source, Mirror)>,
    closers: BTreeMap<ExecutionId, Closer>,
    answers: VecDeque<(ExecutionId, bool, Attempt, Answer)>,
    outbox: VecDeque<FromCluster>,
    is_away: bool,
    is_healed: bool,
    counts: BTreeMap<&'static str, u64>,
}

fn open_shard(world: &SimWorld, line: &Arc<SimLine>, seed: u64) -> ServerShard<SimReactor> {
    let config = ShardConfig {
        rings: RingPoolConfig { prealloc_bytes: 0, bytes_max: 4 << 20, ..Default::default() },
        memory: MemoryWatch::ByHand,
        journal: Some(JournalConfig::at(DIRECTORY)),
        seed: Some(seed),
        guests: GuestConfig { cluster: Some(Arc::clone(line) as _), ..GuestConfig::default() },
        ..ShardConfig::default()
    };
    ServerShard::over(SimReactor::new(world), config).expect("there is memory")
}

impl Trial {
    fn new(seed: u64) -> Trial {
        let mut random = Random::new(seed);
        let world = SimWorld::new(random.next_u64(), SimFaults::NONE);
        let disk = SimDisk::new(random.next_u64());
        world.put_disk(&Path::new(DIRECTORY).join("shard-00"), &disk);
        let line = Arc::new(SimLine::new(random.between(1, 12) as usize));
        let shard = open_shard(&world, &line, random.next_u64());
        disk.set_faults(DiskFaults::SLOW);
        Trial {
            life: Incarnation(random.next_u64()),
            random,
            world,
            disk,
            line,
            shard,
            models: Vec::new(),
            logs: BTreeMap::new(),
            sources: BTreeMap::new(),
            closers: BTreeMap::new(),
            answers: VecDeque::new(),
            outbox: VecDeque::new(),
            is_away: false,
            is_healed: false,
            counts: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn run(mut self) -> BTreeMap<&'static str, u64> {
        for _ in 0..STEPS {
            match self.random.below(100) {
                0..6 => self.open(),
                6..40 => self.publish(),
                40..46 => self.end(),
                46..48 => self.cancel(),
                48..50 => self.is_away = !self.is_away,
                50 if self.random.chance(1, 3) => self.judge_lost(),
                51 if self.random.chance(1, 4) => self.crash(),
                _ => {
                    let micros = 1 << self.random.below(18);
                    self.pass(Duration::from_micros(micros));
                }
            }
            self.work();
            self.check();
        }
        (self.is_away, self.is_healed) = (false, true);
        for at in 0..self.models.len() {
            if self.models[at].is_open {
                let _ = self.shard.finish(self.models[at].id, Ok(())); // It may be over.
            }
        }
        let until = self.world.now() + PATIENCE;
        while self.world.now() < until && !self.is_over() {
            self.pass(Duration::from_millis(2));
            self.work();
            self.check();
        }
        for model in &self.models {
            let end = self.logs.get(&model.id).and_then(Log::end);
            assert!(end.is_some(), "the log of {} has no end", model.id);
            // An owner that others believed to be lost goes on for those who are with it.
            let is_alone = !model.is_replicated() && self.closers.contains_key(&model.id);
            let is_same = model.told == end || model.is_left || is_alone;
            assert!(is_same, "{}: {:?} {end:?}", model.id, model.told);
        }
        self.counts
    }

    fn is_over(&self) -> bool {
        let is_told = |model: &Model| model.is_left || model.told.is_some();
        self.models.iter().all(|model| is_told(model) && self.logs[&model.id].end().is_some())
    }

    fn open(&mut self) {
        if self.models.iter().filter(|model| model.told.is_none()).count() >= EXECUTIONS_MAX {
            return;
        }
        let tool = Some(Arc::new(ToolSpec::new("far", "Publishes.")));
        let need = Need { ring_bytes: 4 << 10, ..Need::default() };
        let prepared = Prepared { tool, need, ..Prepared::new(Work::Feed) };
        let is_impatient = self.random.chance(1, 3);
        let all = [Durability::Replicated, Durability::Written, Durability::Synced];
        let durability = all[self.random.below(3) as usize];
        let options = ExecuteOptions {
            durability: Some(durability),
            deliver: Deliver::WhenDurable,
            block_deadline: is_impatient.then_some(Duration::from_millis(200)),
            grows: self.random.chance(1, 3),
            ..ExecuteOptions::default()
        };
        if let Ok(id) = self.shard.execute_prepared(prepared, options) {
            let (is_open, told, is_left, has_lost) = (true, None, false, false);
            self.models.push(Model { id, is_open, told, is_left, durability, has_lost });
            self.logs.insert(id, Log::default());
        }
    }

    fn drawn(&mut self) -> Option<usize> {
        let open = (0..self.models.len()).filter(|at| self.models[*at].is_open);
        let open: Vec<usize> = open.collect();
        let at = self.random.below(open.len().max(1) as u64) as usize;
        open.get(at).copied()
    }

    fn publish(&mut self) {
        let Some(at) = self.drawn() else { return self.open() };
        for _ in 0..=self.random.below(30) {
            let bytes = vec![b'x'; self.random.between(1, 300) as usize];
            if self.shard.publish(self.models[at].id, Kind::Output, &bytes).is_err() {
                self.count("had to wait");
                break; // The log has to move first, or it is over.
            }
        }
    }

    fn end(&mut self) {
        let Some(at) = self.drawn() else { return };
        let result = if self.random.chance(1, 4) { Err("it broke") } else { Ok(()) };
        let _ = self.shard.finish(self.models[at].id, result); // It may be over.
        self.models[at].is_open = false;
    }

    fn cancel(&mut self) {
        if let Some(at) = self.drawn() {
            let _ = self.shard.cancel(self.models[at].id); // It may be over.
        }
    }

    /// Another node believes that this one is lost.
    fn judge_lost(&mut self) {
        if let Some(at) = self.drawn() {
            self.close(self.models[at].id);
            self.count("judged");
        }
    }

    fn close(&mut self, id: ExecutionId) {
        let details = EndedDetails {
            outcome: Outcome::Failed,
            error: Some("its node was lost".into()),
            exit: None,
            has_panicked: false,
        };
        let (other, now) = (Incarnation(!self.life.0), self.world.now());
        self.closers.entry(id).or_insert_with(|| Closer::new(other, details.encode(), now));
    }

    /// The process ends, and another one begins on the same disk.
    fn crash(&mut self) {
        self.count("crashes");
        self.sources.clear();
        self.answers.retain(|(_, is_closer, ..)| *is_closer);
        self.outbox.clear();
        self.line.take();
        let has_no_power = self.random.chance(1, 2);
        self.disk.crash(if has_no_power { Crash::Power } else { Crash::Process });
        let seed = self.random.next_u64();
        let shard = open_shard(&self.world, &self.line, seed);
        self.shard.keeping = None; // The old one writes nothing more.
        self.shard = shard;
        self.life = Incarnation(self.random.next_u64());
        self.disk.set_faults(DiskFaults::SLOW);
        for at in 0..self.models.len() {
            let model = &mut self.models[at];
            model.is_open = false;
            // An end that was told is on the disk, and the log of a replicated one has it.
            assert!(model.told.is_none() || !self.shard.is_left_to_log(model.id));
            model.has_lost |= has_no_power && model.durability == Durability::Written;
            model.is_left |= model.told.is_none();
            let id = model.id;
            if self.logs[&id].end().is_none() {
                self.close(id);
            }
        }
    }

    /// Lets everybody do something.
    fn work(&mut self) {
        self.turn();
        self.take_requests();
        let now = self.world.now();
        let mut tell = Vec::new();
        for (id, (source, mirror)) in &mut self.sources {
            source.look(mirror, LINGER, now);
            if let Some(seq) = source.news_of(mirror) {
                tell.push((*id, LogNews::Has(seq)));
            }
        }
        let is_over = |mirror: &Mirror| mirror.standing() != Standing::Open;
        let over = self.sources.extract_if(.., |_, (_, mirror)| is_over(mirror));
        for (id, (_, mirror)) in over.filter(|(_, (source, _))| source.is_replicated()) {
            tell.push(match mirror.standing() {
                Standing::Fenced => (id, LogNews::HasAnotherEnd),
                _ => (id, LogNews::HasEnd),
            });
        }
        for (execution, news) in tell {
            self.outbox.push_back(FromCluster::Logged { execution, news });
        }
        self.poll_machines(now);
        for _ in 0..self.answers.len() {
            if self.is_healed || self.random.chance(2, 3) {
                self.answer(now);
            }
        }
        while self.is_healed || self.random.chance(2, 3) {
            let Some(message) = self.outbox.pop_front() else { break };
            if let Some(message) = self.shard.tell_cluster(message) {
                self.outbox.push_front(message);
                break;
            }
        }
        self.turn();
    }

    fn take_requests(&mut self) {
        for request in self.line.take() {
            match request {
                ToCluster::Mirror(mirrored) => {
                    let Mirrored { execution, subscriber, is_replicated, through_seq, .. } =
                        *mirrored;
                    assert!(is_replicated || through_seq.is_some() || subscriber.is_none());
                    let terms = (is_replicated, through_seq);
                    let source = Source::new(execution, subscriber, terms, self.world.now());
                    self.sources.insert(execution, (source, Mirror::new(self.life)));
                }
                ToCluster::End { execution, details, published } => {
                    if let Some((source, mirror)) = self.sources.get_mut(&execution) {
                        source.end(mirror, EndGiven { details, published });
                    }
                }
                ToCluster::Show { execution, through_seq } => {
                    if let Some((source, _)) = self.sources.get_mut(&execution) {
                        source.show(through_seq, self.world.now());
                    }
                }
                _ => {} // Nobody asks for others.
            }
        }
    }

    fn poll_machines(&mut self, now: Instant) {
        let mut answers = Vec::new();
        let Trial { sources, closers, logs, random, is_away, is_healed, .. } = self;
        let mut serve = |id: ExecutionId, wish: Wish<'_>| {
            let log = logs.get_mut(&id).expect("it has one");
            let (strikes, late) = (!*is_healed && random.chance(1, 12), random.chance(1, 2));
            match wish {
                _ if *is_away || (strikes && late) => None,
                Wish::Look => Some(Answer::Looked(log.last().map(Box::new))),
                Wish::Store { expected, record } => {
                    let stored = log.store(expected, record);
                    let answer = stored.map_or(Answer::Failed, Answer::Stored);
                    (!strikes).then_some(answer) // The answer is lost.
                }
            }
        };
        for (id, (_, mirror)) in sources.iter_mut() {
            while let Some((attempt, wish)) = mirror.poll(now) {
                answers.extend(serve(*id, wish).map(|answer| (*id, false, attempt, answer)));
            }
        }
        for (id, closer) in closers.iter_mut() {
            while let Some((attempt, wish)) = closer.poll(now) {
                answers.extend(serve(*id, wish).map(|answer| (*id, true, attempt, answer)));
            }
        }
        self.answers.extend(answers);
    }

    fn answer(&mut self, now: Instant) {
        let Some((id, is_closer, attempt, answer)) = self.answers.pop_front() else { return };
        if is_closer {
            let closer = self.closers.get_mut(&id).expect("closers stay");
            match answer {
                Answer::Failed => closer.on_failed(attempt, now),
                Answer::Stored(_) => closer.on_stored(),
                Answer::Looked(last) => closer.on_looked(attempt, last.as_deref()),
            }
        } else if let Some((_, mirror)) = self.sources.get_mut(&id) {
            match answer {
                Answer::Failed => mirror.on_failed(attempt, now),
                Answer::Stored(place) => mirror.on_stored(attempt, place),
                Answer::Looked(last) => mirror.on_looked(attempt, last.as_deref()),
            }
        }
    }

    fn check(&mut self) {
        self.shard.audit();
        for at in 0..self.models.len() {
            let Model { id, told, is_left, has_lost, .. } = self.models[at];
            let is_replicated = self.models[at].is_replicated();
            let Ok(status) = self.shard.inspect(id) else { continue };
            let log = &self.logs[&id];
            let (head_seq, has) = (status.head_seq, log.chunks());
            let is_given = has_lost || has <= head_seq;
            assert!(is_replicated || is_given, "the log of {id} has chunk {has} of {head_seq}");
            if is_left {
                continue; // The disk says how far it had come. Nobody is given that.
            }
            assert!(!is_replicated || head_seq <= has, "{id} has told chunk {head_seq} of {has}");
            if status.state == ExecutionState::Running || told.is_some() {
                continue;
            }
            let Some(outcome) = status.outcome.filter(|_| status.ended_at.is_some()) else {
                continue;
            };
            let end = log.end();
            self.models[at].told = Some(outcome);
            if !is_replicated {
                self.count("told late");
                continue;
            }
            assert!(outcome == Outcome::Failed || end == Some(outcome), "{outcome:?} {end:?}");
            assert!(outcome != Outcome::Failed || end.is_none_or(|end| end == outcome));
            self.count(if end.is_some() { outcome.name() } else { "given up" });
        }
    }

    fn turn(&mut self) {
        while self.shard.turn() {}
    }

    fn pass(&mut self, time: Duration) {
        let until = self.world.now() + time;
        while self.world.now() < until {
            self.turn();
            wait_for_deadline(&mut self.shard, until);
        }
        self.turn();
    }
}

#[test]
fn nobody_is_told_what_the_log_does_not_have() {
    let mut counts = BTreeMap::new();
    for seed in 0..SEEDS {
        println!("seed {seed}"); // It is shown if this one fails.
        for (what, count) in Trial::new(seed).run() {
            *counts.entry(what).or_default() += count;
        }
    }
    println!("{counts:?}");
    let ends = ["completed", "failed", "cancelled", "given up", "told late"];
    for what in ends.into_iter().chain(["judged", "crashes", "had to wait"]) {
        assert!(counts.get(what).is_some_and(|count: &u64| *count > 0), "{what}: {counts:?}");
    }
}

#[test]
fn an_execution_that_is_over_before_its_mirror_comes_is_in_the_log() {
    let mut trial = Trial::new(1);
    let tool = Some(Arc::new(ToolSpec::new("far", "Publishes.")));
    let prepared = Prepared { tool, ..Prepared::new(Work::Feed) };
    let options = ExecuteOptions { durability: Some(Durability::None), ..Default::default() };
    let id = trial.shard.execute_prepared(prepared, options).unwrap();
    trial.shard.cancel(id).unwrap(); // It is over before the mirror comes.
    let mut requests = Vec::new();
    for _ in 0..3 {
        trial.pass(Duration::from_millis(50)); // The line may have room for one.
        requests.extend(trial.line.take());
    }
    let [ToCluster::Mirror(mirrored), ToCluster::End { execution, details, published }] =
        &requests[..]
    else {
        panic!("{} requests", requests.len());
    };
    assert_eq!((mirrored.execution, *execution), (id, id));
    assert!(mirrored.subscriber.is_none() && !mirrored.is_replicated);
    assert_eq!(EndedDetails::decode(details).outcome, Outcome::Cancelled);
    assert_eq!(**published, crate::stream::KindTotals::default());
}
