//! A shard with a journal on a simulated disk: producers, subscribers under every policy, crashes
//! of the process and of the power, and an oracle.
//!
//! The payload of a chunk follows from its execution and its number. Each subscriber checks that
//! it is given consecutive chunks of its kinds, that each gap is exact, and that one end comes.
//! After a crash, another shard opens the same disk. Everything that was acknowledged has to be
//! there, and no end may differ from one that was told. Chunks that are given only when they are
//! durable have to be there, too.

mod follower;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::base::{ExecutionId, Random, SubscriberId};
use crate::engine::{EngineLimits, From, SubscribeSpec};
use crate::limits::{
    JOURNAL_RETENTION, JOURNAL_SEGMENT_BYTES_MIN, JOURNAL_SETTLING_TIME, RETENTION,
};
use crate::memory::RingPoolConfig;
use crate::shard::{
    ExecuteOptions, JournalConfig, MemoryWatch, PublishError, Recall, Shard, ShardConfig,
    Subscriber,
};
use crate::sim::disk::{Crash, DiskFaults, SimDisk};
use crate::sim::journal::JournalSummary;
use crate::sim::reactor::{SimReactor, wait_for_deadline};
use crate::sim::twice::run_twice;
use crate::sim::world::{SimFaults, SimWorld};
use crate::stream::{Deliver, Durability, Kind, Kinds, OnFull, Outcome, Policy, Totals};
use crate::tool::{Need, Prepared, Work};
use follower::KeptFollower;

/// Runs a seed twice, and compares the two runs.
///
/// # Errors
/// The failure, and the command that runs the seed again.
pub fn run_kept_seed(seed: u64, verbose: bool) -> Result<JournalSummary, String> {
    let options = format!("--kept --seed {seed}");
    let difference = |first: &JournalSummary, second: &JournalSummary| {
        format!("{:x} and {:x}", first.hash, second.hash)
    };
    run_twice(&options, verbose, |verbose| Ok(Trial::new(seed, verbose).run()), difference)
}

const STEPS: u32 = 250;
/// Number of executions after which no other one is opened.
const EXECUTIONS_MAX: usize = 24;
/// Number of subscribers of the shard's own thread at a time.
const FOLLOWERS_MAX: usize = 40;
/// Number of subscribers on other threads at a time.
const ELSEWHERE_MAX: usize = 20;
const DIRECTORY: &str = "/kept";

/// The events of a seed, each with its count.
#[derive(Debug, Default)]
struct Counts {
    chunks: u64,
    given: u64,
    unwritten: u64,
    expired: u64,
    corrupt: u64,
    lag: u64,
    elsewhere: u64,
    ends: u64,
    detached: u64,
    crashes: u64,
    power_cuts: u64,
    disk_failures: u64,
    restarted: u64,
    recalled: u64,
    lies: u64,
    lost: u64,
    scrubbed: u64,
    rotten: u64,
    gated: u64,
    /// Segments that were removed while nobody published.
    aged: u64,
}

/// An execution as the oracle knows it.
struct Model {
    id: ExecutionId,
    number: u64,
    durability: Durability,
    waits: Waits,
    /// Number of chunks that were published.
    published: u64,
    /// The last chunk that was acknowledged.
    durable_seq: Option<u64>,
    /// True while it is fed.
    runs: bool,
    /// The end that was told to anybody, and the number of chunks.
    told: Option<(Outcome, u64)>,
}

/// The wait of an execution for its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Never,
    /// Its producer waits for room, and goes on without it after a while.
    Briefly,
    /// Its producer waits for room.
    ForRoom,
    /// Its subscribers wait, too.
    ForDurable,
}

impl Waits {
    /// True if no chunk is told that the disk lacks.
    fn keeps_all(self) -> bool {
        matches!(self, Waits::ForRoom | Waits::ForDurable)
    }
}

/// The news of all subscribers.
#[derive(Default)]
struct Heard {
    hash: u64,
    counts: Counts,
    ends: Vec<Told>,
    failure: Option<String>,
    /// The newest chunk of each execution, by its number. If the engine is told late, it is the
    /// newest that anybody was given.
    heads: BTreeMap<u64, u64>,
    /// The disk, if it lies.
    liar: Option<SimDisk>,
}

/// An end that was told to a subscriber.
struct Told {
    number: u64,
    outcome: Outcome,
    kinds: Kinds,
    from_seq: u64,
    /// Totals of what it was given and missed.
    all: Totals,
}

struct Trial {
    seed: u64,
    verbose: bool,
    random: Random,
    world: SimWorld,
    disk: SimDisk,
    faults: DiskFaults,
    scrub: Option<Duration>,
    shard: Shard<SimReactor>,
    models: Vec<Model>,
    followers: Vec<SubscriberId>,
    /// Subscribers on other threads, which run between two turns.
    elsewhere: Vec<(Subscriber, KeptFollower)>,
    heard: Rc<RefCell<Heard>>,
    counts: Counts,
    fault_count: usize,
    next_number: u64,
}

/// The payload of a chunk.
fn payload(number: u64, seq: u64) -> (Kind, Vec<u8>) {
    let mut random = Random::new(number ^ seq.rotate_left(24));
    let length = random.below(600);
    let mut bytes = vec![0; length as usize];
    random.fill(&mut bytes);
    (Kind::ALL[random.below(3) as usize], bytes)
}

/// Totals of the chunks of these kinds.
fn totals(number: u64, kinds: Kinds, seqs: impl Iterator<Item = u64>) -> Totals {
    let mut totals = Totals::ZERO;
    for seq in seqs {
        let (kind, bytes) = payload(number, seq);
        if kinds.contains(kind) {
            totals.count(bytes.len() as u32);
        }
    }
    totals
}

impl Heard {
    /// True if the disk was made to lie about something.
    fn is_damaged(&self) -> bool {
        self.liar.as_ref().is_some_and(|disk| !disk.planted().is_empty())
    }

    /// Notes that a chunk of an execution was given or told of.
    fn see(&mut self, number: u64, seq: u64) {
        let head_seq = self.heads.entry(number).or_default();
        *head_seq = seq.max(*head_seq);
    }

    fn note(&mut self, number: u64) {
        self.hash = (self.hash.rotate_left(7) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

fn open_shard(
    world: &SimWorld,
    seed: u64,
    scrub: Option<Duration>,
) -> std::io::Result<Shard<SimReactor>> {
    // In a small journal, chunks of running executions expire.
    let (segments, segments_max) = if seed.is_multiple_of(8) { (1, 4) } else { (4, 12) };
    let is_short = seed % 4 == 1;
    let journal = JournalConfig {
        scrub,
        retention: if is_short { RETENTION } else { JOURNAL_RETENTION },
        segment_bytes: segments * JOURNAL_SEGMENT_BYTES_MIN,
        bytes_max: segments_max * u64::from(JOURNAL_SEGMENT_BYTES_MIN),
        ..JournalConfig::at(DIRECTORY)
    };
    let config = ShardConfig {
        engine: EngineLimits { executions_max: 12, subscribers_max: 64, ..Default::default() },
        rings: RingPoolConfig { prealloc_bytes: 0, bytes_max: 1 << 20, ..Default::default() },
        memory: MemoryWatch::ByHand,
        journal: Some(journal),
        seed: Some(seed),
        ..Default::default()
    };
    Shard::with_reactor(SimReactor::new(world), config)
}

impl Trial {
    fn new(seed: u64, verbose: bool) -> Trial {
        let mut random = Random::new(seed);
        let world = SimWorld::new(random.next_u64(), SimFaults::NONE);
        let disk = SimDisk::new(random.next_u64());
        world.put_disk(&Path::new(DIRECTORY).join("shard-00"), &disk);
        let lies = random.chance(1, 2);
        let faults = match lies {
            true => DiskFaults::drawn(&mut random),
            false if random.chance(1, 2) => DiskFaults::SLOW,
            false => DiskFaults::NONE,
        };
        let scrub = random.chance(2, 3).then(|| Duration::from_micros(1 << random.between(18, 26)));
        let shard = open_shard(&world, random.next_u64(), scrub).expect("the disk is empty");
        disk.set_faults(faults.clone());
        let liar = lies.then(|| disk.clone());
        Trial {
            seed,
            verbose,
            random,
            world,
            disk,
            faults,
            scrub,
            shard,
            models: Vec::new(),
            followers: Vec::new(),
            elsewhere: Vec::new(),
            heard: Rc::new(RefCell::new(Heard { liar, ..Default::default() })),
            counts: Counts::default(),
            fault_count: 0,
            next_number: 1,
        }
    }

    fn say(&self, words: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>14} ns: {}", self.world.now().nanos(), words());
        }
    }

    fn run(mut self) -> JournalSummary {
        for _ in 0..STEPS {
            self.step();
            self.turn();
            self.read_elsewhere();
            self.hear();
        }
        self.crash();
        self.finish();
        self.check_scrub();
        let image = self.disk.image_hash();
        let mut heard = self.heard.borrow_mut();
        heard.note(image);
        heard.note(self.world.now().nanos());
        self.counts.lies = self.disk.planted().len() as u64;
        let Counts { chunks, crashes, power_cuts, disk_failures, restarted, .. } = self.counts;
        let Counts { recalled, lies, lost, gated, scrubbed, rotten, aged, .. } = self.counts;
        let Counts { given, unwritten, expired, corrupt, lag, ends, detached, .. } = heard.counts;
        let Counts { elsewhere, .. } = heard.counts;
        let happened = vec![
            ("chunks", chunks),
            ("given", given),
            ("unwritten", unwritten),
            ("expired", expired),
            ("corrupt", corrupt),
            ("other gaps", lag),
            ("given elsewhere", elsewhere),
            ("ends", ends),
            ("detached", detached),
            ("crashes", crashes),
            ("power cuts", power_cuts),
            ("disk failures", disk_failures),
            ("restarted", restarted),
            ("recalled", recalled),
            ("faults", lies),
            ("lost executions", lost),
            ("scrubbed bytes", scrubbed),
            ("damage found by a scrub", rotten),
            ("gated", gated),
            ("removed by age", aged),
        ];
        JournalSummary { hash: heard.hash, happened }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..8 => self.open(),
            8..45 => self.publish(),
            45..50 => self.end(),
            50..72 => self.follow(),
            72..75 => self.leave(),
            75..97 => {
                let micros_max = 1 << self.random.below(18);
                let micros = self.random.between(1, micros_max);
                self.pass(Duration::from_micros(micros));
            }
            97..99 => self.crash(),
            _ if self.random.chance(1, 8) => self.grow_old(),
            _ => self.pass(RETENTION / 2),
        }
    }

    /// Lets segments become too old for a short retention. Nobody publishes meanwhile.
    fn grow_old(&mut self) {
        self.pass(Duration::from_secs(1));
        let before = self.removed_segments();
        self.pass(JOURNAL_SETTLING_TIME);
        self.counts.aged += self.removed_segments() - before;
    }

    fn turn(&mut self) {
        while self.shard.turn() {}
        self.shard.audit();
    }

    /// Lets time pass. The shard gets a turn at each of its deadlines.
    fn pass(&mut self, time: Duration) {
        let until = self.world.now() + time;
        while self.world.now() < until {
            self.turn();
            wait_for_deadline(&mut self.shard, until);
        }
        self.turn();
    }

    fn open(&mut self) {
        if self.models.len() >= EXECUTIONS_MAX {
            return;
        }
        let durability =
            if self.random.chance(1, 2) { Durability::Written } else { Durability::Synced };
        let ring_bytes = 4 << (10 + 2 * self.random.below(2));
        let need = Need { ring_bytes, ..Default::default() };
        let prepared = Prepared { need, ..Prepared::new(Work::Feed) };
        let (deliver, on_full, waits) = match self.random.below(5) {
            0 => (Deliver::WhenDurable, OnFull::Gap, Waits::ForDurable),
            1 => (Deliver::AtOnce, OnFull::Wait, Waits::ForRoom),
            2 => (Deliver::AtOnce, OnFull::Pause, Waits::Briefly),
            _ => (Deliver::AtOnce, OnFull::Gap, Waits::Never),
        };
        let is_impatient = waits != Waits::Never && self.random.chance(1, 2);
        let options = ExecuteOptions {
            durability: Some(durability),
            deliver,
            on_full,
            block_deadline: is_impatient.then(|| Duration::from_micros(1 << self.random.below(18))),
            grows: self.random.chance(1, 3),
            ..Default::default()
        };
        let Ok(id) = self.shard.execute_prepared(prepared, options) else { return };
        let number = self.next_number;
        self.next_number += 1;
        self.say(|| format!("{number} is opened, {durability}, waits: {waits:?}"));
        let (published, durable_seq, told) = (0, None, None);
        self.models.push(Model {
            id,
            number,
            durability,
            waits,
            published,
            durable_seq,
            runs: true,
            told,
        });
    }

    fn drawn(&mut self, fits: impl Fn(&Model) -> bool) -> Option<usize> {
        let all: Vec<usize> = (0..self.models.len()).filter(|at| fits(&self.models[*at])).collect();
        let at = self.random.below(all.len().max(1) as u64) as usize;
        all.get(at).copied()
    }

    fn publish(&mut self) {
        let Some(at) = self.drawn(|model| model.runs) else { return self.open() };
        for _ in 0..=self.random.below(40) {
            let model = &mut self.models[at];
            let seq = model.published + 1;
            let (kind, bytes) = payload(model.number, seq);
            model.published = seq; // Subscribers are given it before this returns.
            let is_told = model.waits == Waits::Never;
            if is_told {
                self.heard.borrow_mut().heads.insert(model.number, seq);
            }
            match self.shard.publish(model.id, kind, &bytes) {
                Ok(published) => assert_eq!(published, seq),
                Err(error) => {
                    let model = &mut self.models[at];
                    model.published = seq - 1;
                    if is_told {
                        self.heard.borrow_mut().heads.insert(model.number, seq - 1);
                    }
                    self.counts.gated += u64::from(error == PublishError::Blocked);
                    model.runs = error != PublishError::NotFound;
                    return;
                }
            }
            self.counts.chunks += 1;
        }
    }

    fn end(&mut self) {
        let Some(at) = self.drawn(|model| model.runs) else { return };
        let model = &mut self.models[at];
        model.runs = false;
        let (id, number) = (model.id, model.number);
        self.say(|| format!("{number} ends"));
        // It may have ended by itself: its disk has failed, or it still waits for a ring.
        let _ = match self.random.below(3) {
            0 => self.shard.cancel(id).map_err(|_| ()),
            1 => self.shard.finish(id, Err("as it happens")).map_err(|_| ()),
            _ => self.shard.finish(id, Ok(())).map_err(|_| ()),
        };
    }

    fn follow(&mut self) {
        let Some(at) = self.drawn(|_| true) else { return };
        let id = self.models[at].id;
        match self.shard.recall(id) {
            Ok(Recall::Here) => {}
            Ok(Recall::Soon | Recall::Later) => return self.counts.recalled += 1,
            Err(_) => return,
        }
        let policy = Policy::ALL[self.random.below(7) as usize];
        let mut kinds = Kinds::ALL;
        if self.random.chance(1, 3) {
            kinds = Kinds::NONE.with(Kind::ALL[self.random.below(3) as usize]);
        }
        let Ok(status) = self.shard.inspect(id) else { return };
        // A subscriber can be ahead of what a power cut has left.
        let ahead = if status.state.is_over() { 5 } else { 0 };
        let from_seq = match self.random.below(3) {
            0 => self.random.between(1, status.head_seq + 1 + ahead),
            _ => 1,
        };
        match self.random.chance(1, 3) {
            true => self.follow_elsewhere(at, (policy, kinds, from_seq)),
            false => self.follow_from(at, (policy, kinds, from_seq)),
        }
    }

    /// Adds a subscriber on another thread. There is none while an execution waits for a ring, and
    /// none that could see what is not durable.
    fn follow_elsewhere(&mut self, at: usize, terms @ (policy, _, from_seq): (Policy, Kinds, u64)) {
        if self.elsewhere.len() >= ELSEWHERE_MAX {
            return;
        }
        let (spec, follower) = self.subscription(at, terms);
        let Model { id, number, waits, runs, .. } = self.models[at];
        self.say(|| format!("{number} is followed elsewhere from {from_seq} under {policy}"));
        let subscribed = self.shard.subscribe_remote(id, spec);
        assert!(subscribed.is_err() || waits != Waits::ForDurable || !runs);
        self.elsewhere.extend(subscribed.map(|subscriber| (subscriber, follower)));
    }

    /// Lets the subscribers on other threads take some of what is due to them.
    fn read_elsewhere(&mut self) {
        let now = self.world.now();
        let mut heard = self.heard.borrow_mut();
        for (subscriber, follower) in &mut self.elsewhere {
            for _ in 0..self.random.below(100) {
                let Some((delivery, _)) = subscriber.poll_at(now) else { break };
                heard.counts.elsewhere += 1;
                if let Err(text) = follower.hear(&delivery, &mut heard) {
                    let policy = subscriber.terms().policy;
                    heard.failure.get_or_insert(format!("elsewhere, under {policy}: {text}"));
                }
            }
        }
        self.elsewhere.retain(|(_, follower)| !follower.has_ended);
    }

    fn follow_from(&mut self, at: usize, terms @ (policy, _, from_seq): (Policy, Kinds, u64)) {
        if self.followers.len() >= FOLLOWERS_MAX {
            return;
        }
        let (spec, mut follower) = self.subscription(at, terms);
        let heard = Rc::clone(&self.heard);
        let Model { id, number, .. } = self.models[at];
        self.say(|| format!("{number} is followed from {from_seq} under {policy}"));
        let subscribed = self.shard.subscribe(id, spec, move |delivery| {
            let mut heard = heard.borrow_mut();
            if let Err(text) = follower.hear(delivery, &mut heard) {
                heard.failure.get_or_insert(format!("under {policy}: {text}"));
            }
        });
        self.followers.extend(subscribed);
    }

    /// Draws the rest of a subscription, and makes its follower.
    fn subscription(
        &mut self,
        at: usize,
        (policy, kinds, from_seq): (Policy, Kinds, u64),
    ) -> (SubscribeSpec, KeptFollower) {
        let limit_chunks = self.random.chance(1, 3).then(|| self.random.between(1, 14) as u32);
        let from = From::Seq { seq: from_seq, seen: None };
        let spec = SubscribeSpec { policy, kinds, limit_chunks, from, ..Default::default() };
        let limit_chunks = match policy {
            Policy::Drop => limit_chunks.unwrap_or(10).into(),
            Policy::Buffer => limit_chunks.unwrap_or(100).into(),
            Policy::Disconnect => limit_chunks.unwrap_or(1_000).into(),
            Policy::Replay | Policy::Block => 0, // They never lag.
            Policy::DropOldest | Policy::Conflate => u64::MAX, // They want only the newest.
        };
        let mut follower = KeptFollower::new(&self.models[at], kinds, from_seq, limit_chunks);
        follower.look_at_lag(&self.heard.borrow());
        (spec, follower)
    }

    fn leave(&mut self) {
        if !self.elsewhere.is_empty() && self.random.chance(1, 3) {
            let at = self.random.below(self.elsewhere.len() as u64) as usize;
            drop(self.elsewhere.swap_remove(at));
        }
        if !self.followers.is_empty() {
            let at = self.random.below(self.followers.len() as u64) as usize;
            let _ = self.shard.unsubscribe(self.followers.swap_remove(at)); // It may have ended.
        }
    }

    /// Takes what subscribers were told, and what was acknowledged.
    fn hear(&mut self) {
        let Trial { models, shard, heard, .. } = self;
        let mut heard = heard.borrow_mut();
        if let Some(text) = &heard.failure {
            panic!("seed {}: {text}", self.seed);
        }
        assert_eq!(shard.counters().door_readers_evicted, 0, "seed {}", self.seed);
        for model in models.iter_mut() {
            if let Some(seq) = shard.durable_seq(model.id) {
                let before = model.durable_seq.unwrap_or(0);
                assert!(seq >= before, "{}: {seq} after {before}", model.number);
                assert!(seq <= model.published);
                model.durable_seq = Some(seq);
            }
        }
        let is_damaged = heard.is_damaged();
        for Told { number, outcome, kinds, from_seq, all } in heard.ends.drain(..) {
            let model = models.iter_mut().find(|model| model.number == number).expect("it is ours");
            let Some(published) = Self::head_at_end(shard, model, outcome) else {
                model.runs = false; // It is forgotten already.
                continue;
            };
            let told = model.told.get_or_insert((outcome, published));
            // The record of an end that cannot be read says no outcome.
            let is_unreadable = is_damaged && published == told.1;
            let is_unreadable = is_unreadable && [outcome, told.0].contains(&Outcome::Failed);
            assert!(
                *told == (outcome, published) || is_unreadable,
                "two ends of {number}: {told:?}, {outcome:?} with {published}"
            );
            let exact = totals(number, kinds, from_seq..=published);
            let may_be_bound = is_damaged || from_seq > 1;
            assert!(all == exact || may_be_bound, "{number} from {from_seq}: {all:?}, {exact:?}");
            model.runs = false;
        }
    }

    /// Number of chunks of an execution that has ended.
    fn head_at_end(shard: &mut Shard<SimReactor>, model: &Model, outcome: Outcome) -> Option<u64> {
        if model.waits == Waits::Never {
            return Some(model.published);
        }
        // What was given up was not told.
        let head_seq = shard.inspect(model.id).ok()?.head_seq;
        assert!(head_seq <= model.published);
        assert!(outcome != Outcome::Completed || head_seq == model.published);
        Some(head_seq)
    }

    /// Ends the process or the power, and starts again.
    fn crash(&mut self) {
        let is_power = self.random.chance(1, 2) || self.fault().is_some();
        self.counts.crashes += 1;
        self.counts.power_cuts += u64::from(is_power);
        self.counts.disk_failures += u64::from(self.fault().is_some());
        self.say(|| format!("crash, power: {is_power}"));
        self.followers.clear();
        self.elsewhere.clear();
        self.check_scrub();
        self.disk.crash(if is_power { Crash::Power } else { Crash::Process });
        self.disk.set_faults(DiskFaults::NONE);
        let has_lied = self.disk.planted().len() > self.fault_count;
        self.fault_count = self.disk.planted().len();
        let seed = self.random.next_u64();
        let mut opened = open_shard(&self.world, seed, self.scrub);
        for _ in 0..STEPS {
            if opened.is_ok() {
                break;
            }
            self.disk.heal_sectors();
            self.disk.crash(Crash::Process); // The attempt may have stopped anywhere.
            opened = open_shard(&self.world, seed, self.scrub);
        }
        let shard = opened.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        // The old one writes nothing more: its process is gone.
        self.shard.keeping = None;
        self.shard = shard;
        self.heard.borrow_mut().ends.clear();
        self.counts.restarted += self.shard.journal().expect("it has one").restarted;
        self.check(is_power || has_lied);
        self.disk.set_faults(self.faults.clone());
    }

    fn fault(&self) -> Option<crate::journal::Fault> {
        self.shard.journal().expect("it has one").fault
    }

    fn is_damaged(&self) -> bool {
        self.heard.borrow().is_damaged()
    }

    /// A scrub finds damage only if the disk was made to lie.
    fn check_scrub(&mut self) {
        let scrubbed = self.shard.journal().expect("it has one").scrubbed;
        let is_sound = (scrubbed.corrupt_chunks, scrubbed.corrupt_places) == (0, 0);
        assert!(is_sound || self.is_damaged(), "no fault was planted: {scrubbed:?}");
        assert!(scrubbed.bytes == 0 || self.scrub.is_some());
        self.counts.scrubbed += scrubbed.bytes;
        self.counts.rotten += scrubbed.corrupt_places;
    }

    /// True if the journal has removed a segment since the shard was opened, or does so now.
    fn removes_a_segment(&mut self) -> bool {
        (0..100).any(|_| {
            self.pass(Duration::from_millis(100));
            self.removed_segments() > 0
        })
    }

    fn removed_segments(&self) -> u64 {
        self.shard.journal().expect("it has one").counters.removed_segments
    }

    /// Compares what is kept with what was acknowledged and told.
    fn check(&mut self, has_lost_cache: bool) {
        let kept = self.shard.kept_executions();
        for at in (0..self.models.len()).rev() {
            let model = &self.models[at];
            let (id, number) = (model.id, model.number);
            let is_promised = model.durability == Durability::Synced || !has_lost_cache;
            let may_be_lost = !is_promised || self.is_damaged();
            if !kept.contains(&id) {
                // What has ended may have expired, for want of room as soon as the shard is open.
                let was_promised = model.durable_seq > Some(0) && model.told.is_none();
                let may_be_gone = !was_promised || may_be_lost || !model.runs;
                assert!(may_be_gone || self.removes_a_segment(), "{number} is gone");
                self.counts.lost += 1;
                self.models.swap_remove(at);
                continue;
            }
            while self.shard.recall(id) == Ok(Recall::Soon) {
                self.pass(Duration::from_micros(100));
            }
            let Ok(status) = self.shard.inspect(id) else {
                assert!(self.shard.recall(id).is_err()); // It has expired meanwhile.
                self.models.swap_remove(at);
                continue;
            };
            let model = &mut self.models[at];
            let Some(outcome) = status.outcome else { panic!("{number} goes on") };
            assert!(status.head_seq <= model.published, "{number} has chunks of its own");
            let shown_seq = self.heard.borrow().heads.get(&number).copied().unwrap_or(0);
            if !may_be_lost {
                let is_kept = model.waits != Waits::ForDurable || status.head_seq >= shown_seq;
                assert!(is_kept, "{number} has lost chunks that were shown"); // O7
                assert!(status.head_seq >= model.durable_seq.unwrap_or(0), "{number} lost chunks");
                if let Some(told) = model.told {
                    assert_eq!(told, (outcome, status.head_seq), "{number} has another end");
                }
            }
            (model.runs, model.told) = (false, Some((outcome, status.head_seq)));
            (model.published, model.durable_seq) = (status.head_seq, Some(status.head_seq));
            self.heard.borrow_mut().heads.insert(number, status.head_seq);
        }
    }

    /// Lets everything come to its end without faults: each execution is read from its beginning.
    fn finish(&mut self) {
        self.disk.set_faults(DiskFaults::NONE);
        self.disk.heal_sectors();
        for at in 0..self.models.len() {
            let (id, number) = (self.models[at].id, self.models[at].number);
            while self.shard.recall(id) == Ok(Recall::Soon) {
                self.pass(Duration::from_micros(100));
            }
            self.followers.clear();
            let ends_before = self.heard.borrow().counts.ends;
            self.follow_from(at, (Policy::Replay, Kinds::ALL, 1));
            let is_followed = !self.followers.is_empty();
            for _ in 0..STEPS {
                if !is_followed || self.heard.borrow().counts.ends > ends_before {
                    break;
                }
                self.pass(Duration::from_millis(1));
            }
            self.hear();
            let ends = self.heard.borrow().counts.ends;
            assert!(!is_followed || ends > ends_before, "{number} never comes to its end");
        }
    }
}
