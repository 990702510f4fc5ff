//! A server with a journal on a simulated disk, clients of the Durable Streams protocol, and
//! crashes of the process and of the power. Another server starts on the same disk after each.
//!
//! - `record.rs`: what is known of a stream.
//! - `writer.rs` and `reader.rs`: the clients.
//! - `audit.rs`: the comparison of all streams with their records.
//!
//! Each append has bytes of its own. An audit can therefore tell which appends are in a stream,
//! each once and whole. Between audits, the readers compare everything that they read with what
//! others have read.

mod audit;
mod reader;
mod record;
#[cfg(test)]
mod tests;
mod writer;

use std::hash::Hasher;
use std::path::Path;
use std::time::Duration;

use self::reader::Reader;
use self::record::Record;
use self::writer::Writer;
use super::SeedSummary;
use super::actions::ActionsHash;
use super::timed_play::TimedPlay;
use crate::base::{Instant, Random};
use crate::engine::EngineLimits;
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::reactor::{ListenAddress, ListenOptions, SocketLimits};
use crate::server::{ServerShard, ServerShardConfig};
use crate::shard::{JournalConfig, MemoryWatch, ShardConfig};
use crate::sim::coverage::Fnv;
use crate::sim::disk::{Crash, DiskFaults, SimDisk};
use crate::sim::reactor::SimReactor;
use crate::sim::twice::run_twice;
use crate::sim::world::{SimFaults, SimWorld};
use crate::stream::Durability;
use crate::trace::Counters;

const STEPS: u64 = 500;
/// Time until everybody has an answer, and until the disk has everything. A request may wait for
/// two segments, one after the other. Each is made with ten syncs, of five seconds at most.
const CALM_SECONDS_MAX: u64 = 120;
const DIRECTORY: &str = "/streams";
/// Size of the journal. Nothing is removed for want of room.
const BYTES_MAX: u64 = 64 << 20;

/// Runs one seed twice.
///
/// # Errors
/// The failure, and the command that runs the seed again.
pub(in crate::sim) fn run_streams_seed(seed: u64, verbose: bool) -> Result<SeedSummary, String> {
    let run = |verbose| Play::new(seed, verbose).run(seed);
    let difference = |first: &_, second: &_| format!("{first:?} and {second:?}");
    let both = run_twice(&format!("--streams --seed {seed}"), verbose, run, difference);
    both.map_err(|text| format!("streams seed {seed}: {text}"))
}

/// The things that all clients share.
struct Grounds {
    world: SimWorld,
    random: Random,
    address: ListenAddress,
    writer_count: usize,
    /// Number of steps so far.
    moment: u64,
    /// True once nobody begins anything.
    is_calm: bool,
    counts: Counts,
    verbose: bool,
}

impl Grounds {
    fn say(&self, words: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>14} ns: {}", self.world.now().nanos(), words());
        }
    }
}

/// The events of a seed, each with its count.
#[derive(Default)]
struct Counts {
    creations: u64,
    forks: u64,
    appends: u64,
    repeated: u64,
    closings: u64,
    removals: u64,
    doubtful: u64,
    busy: u64,
    cuts: u64,
    replies: u64,
    polled: u64,
    waited: u64,
    events: u64,
    descriptions: u64,
    missing: u64,
    crashes: u64,
    power_cuts: u64,
    audits: u64,
    settled: u64,
    lost: u64,
    offsets: u64,
    kept_for_forks: u64,
}

struct Play {
    grounds: Grounds,
    disk: SimDisk,
    faults: SimFaults,
    disk_faults: DiskFaults,
    durability: Durability,
    segment_bytes: u32,
    /// There is none between a crash and the next start.
    shard: Option<ServerShard<SimReactor>>,
    actions_hash: ActionsHash,
    counters: Counters,
    records: Vec<Record>,
    writers: Vec<Writer>,
    readers: Vec<Reader>,
    /// The last moment at which the disk had synced everything.
    safe: u64,
    cut_chance: u64,
}

impl TimedPlay for Play {
    fn world(&mut self) -> &SimWorld {
        &self.grounds.world
    }

    fn turn_once(&mut self) -> bool {
        self.shard().turn()
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.shard().next_deadline()
    }

    fn park(&mut self, until: Instant) {
        self.shard().park(Some(until));
    }
}

fn config(random: &mut Random, durability: Durability, segment_bytes: u32) -> ServerShardConfig {
    let journal = JournalConfig {
        durability,
        segment_bytes,
        bytes_max: BYTES_MAX,
        ..JournalConfig::at(DIRECTORY)
    };
    ShardConfig {
        engine: EngineLimits {
            executions_max: 32,
            subscribers_max: 64,
            subscribers_per_execution_max: 16,
            ..EngineLimits::default()
        },
        rings: RingPoolConfig { prealloc_bytes: 0, bytes_max: 1 << 20, ..Default::default() },
        memory: MemoryWatch::ByHand,
        sockets: Some(SocketLimits { connections_max: 64, ..SocketLimits::default() }),
        journal: Some(journal),
        seed: Some(random.next_u64()),
        ..ShardConfig::default()
    }
}

/// Starts a server on the disk of the world.
fn start(
    grounds: &mut Grounds,
    (durability, segment_bytes): (Durability, u32),
    actions_hash: &ActionsHash,
) -> Result<ServerShard<SimReactor>, String> {
    let config = config(&mut grounds.random, durability, segment_bytes);
    let shard = ServerShard::over(SimReactor::new(&grounds.world), config);
    let mut shard = shard.map_err(|error| format!("a server does not start: {error}"))?;
    actions_hash.observe(&mut shard);
    let listens = shard.listen(&grounds.address, ListenOptions { shares_port: true });
    grounds.address = listens.map_err(|error| format!("{error}"))?;
    Ok(shard)
}

impl Play {
    fn new(seed: u64, verbose: bool) -> Play {
        let mut random = Random::new(seed);
        let faults = if random.chance(1, 3) { SimFaults::NONE } else { SimFaults::ALL };
        let world = SimWorld::new(random.next_u64(), faults.clone());
        let disk = SimDisk::new(random.next_u64());
        world.put_disk(&Path::new(DIRECTORY).join("shard-00"), &disk);
        let writer_count = random.between(2, 5) as usize;
        let reader_count = random.between(1, 5);
        let durability = [Durability::Written, Durability::Synced][random.below(2) as usize];
        let segment_bytes = limits::JOURNAL_SEGMENT_BYTES_MIN << random.below(3);
        let millis = |random: &mut Random, max: u64| Duration::from_millis(random.below(max));
        // No segment can be made while the disk is full.
        let full_chance = if random.chance(1, 3) { random.between(1, 500) } else { 0 };
        let disk_faults = match random.below(4) {
            0 => DiskFaults::NONE,
            1 => DiskFaults::SLOW,
            _ => DiskFaults {
                full_chance,
                delay_max: millis(&mut random, 5),
                sync_delay_max: millis(&mut random, 30),
                ..DiskFaults::NONE
            },
        };
        let cut_chance = if random.chance(1, 4) { 0 } else { random.between(1, 30) };
        let address = "127.0.0.1:0".parse().expect("an address");
        let counts = Counts::default();
        let mut grounds = Grounds {
            world,
            random,
            address,
            writer_count,
            moment: 0,
            is_calm: false,
            counts,
            verbose,
        };
        let actions_hash = ActionsHash::default();
        let shard = start(&mut grounds, (durability, segment_bytes), &actions_hash);
        let shard = Some(shard.expect("the disk is empty"));
        disk.set_faults(disk_faults.clone());
        Play {
            grounds,
            disk,
            faults,
            disk_faults,
            durability,
            segment_bytes,
            shard,
            actions_hash,
            counters: Counters::default(),
            records: Vec::new(),
            writers: (0..writer_count).map(|number| Writer { number, task: None }).collect(),
            readers: (0..reader_count).map(|_| Reader::default()).collect(),
            safe: 0,
            cut_chance,
        }
    }

    fn run(mut self, seed: u64) -> Result<SeedSummary, String> {
        for step in 0..STEPS {
            self.act().map_err(|text| format!("step {step}: {text}"))?;
            self.wait();
            if self.grounds.random.chance(1, 120) {
                let crash = self.draw_crash();
                self.crash(crash).map_err(|text| format!("step {step}, {crash:?}: {text}"))?;
            }
        }
        self.calm_down().map_err(|text| format!("calm: {text}"))?;
        self.audit(false).map_err(|text| format!("calm: {text}"))?;
        for crash in [self.draw_crash(), self.draw_crash()] {
            self.crash(crash).map_err(|text| format!("at the end, {crash:?}: {text}"))?;
        }
        Ok(self.summary(seed))
    }

    fn summary(&mut self, seed: u64) -> SeedSummary {
        let mut hash = Fnv::default();
        hash.write_u64(self.actions_hash.get());
        hash.write_u64(self.disk.image_hash());
        hash.write_u64(self.grounds.world.now().nanos());
        for record in &self.records {
            hash.write(&record.known);
        }
        let of_last = self.shard().counters();
        self.counters.merge(&of_last);
        let counts = &self.grounds.counts;
        let happened = vec![
            ("streams", counts.creations),
            ("forks", counts.forks),
            ("appends", counts.appends),
            ("repetitions", counts.repeated),
            ("closings", counts.closings),
            ("removals", counts.removals),
            ("requests in doubt", counts.doubtful),
            ("requests to repeat later", counts.busy),
            ("cuts", counts.cuts),
            ("replies", counts.replies),
            ("long polls with something", counts.polled),
            ("long polls with nothing", counts.waited),
            ("events", counts.events),
            ("descriptions", counts.descriptions),
            ("missing", counts.missing),
            ("crashes", counts.crashes),
            ("power cuts", counts.power_cuts),
            ("audits", counts.audits),
            ("requests settled by an audit", counts.settled),
            ("lost by a power cut", counts.lost),
            ("offsets checked", counts.offsets),
            ("kept for forks", counts.kept_for_forks),
        ];
        let counters = std::mem::take(&mut self.counters);
        SeedSummary { seed, actions_hash: hash.finish(), happened, counters }
    }

    fn act(&mut self) -> Result<(), String> {
        self.grounds.moment += 1;
        for at in 0..self.writers.len() {
            if self.grounds.random.chance(self.cut_chance, 2_000) {
                self.writers[at].cut(&mut self.grounds, &mut self.records);
            }
            for _ in 0..=self.grounds.random.below(4) {
                self.writers[at].step(&mut self.grounds, &mut self.records)?;
            }
        }
        for at in 0..self.readers.len() {
            if self.grounds.random.chance(self.cut_chance, 1_000) {
                self.readers[at].cut(&mut self.grounds);
            }
            for _ in 0..=self.grounds.random.below(4) {
                self.readers[at].step(&mut self.grounds, &mut self.records)?;
            }
        }
        if self.disk.unsynced_count() == 0 {
            self.safe = self.grounds.moment;
        }
        Ok(())
    }

    /// Lets time pass, sometimes so much that streams leave the engine.
    fn wait(&mut self) {
        let random = &mut self.grounds.random;
        let pause = match random.below(60) {
            0 => (limits::DURABLE_IDLE + Duration::from_secs(1)).as_nanos() as u64,
            1 => 1 << random.between(28, 31),
            _ => 1 << random.between(8, 24),
        };
        self.turn();
        self.pass(pause);
        self.shard().audit();
    }

    fn shard(&mut self) -> &mut ServerShard<SimReactor> {
        self.shard.as_mut().expect("it runs")
    }

    fn draw_crash(&mut self) -> Crash {
        [Crash::Process, Crash::Power][self.grounds.random.below(2) as usize]
    }

    /// Ends the process or the power, and starts another server. Compares everything.
    fn crash(&mut self, crash: Crash) -> Result<(), String> {
        self.grounds.say(|| format!("{crash:?}"));
        self.grounds.counts.crashes += 1;
        self.grounds.counts.power_cuts += u64::from(crash == Crash::Power);
        for writer in &mut self.writers {
            writer.cut(&mut self.grounds, &mut self.records);
        }
        for reader in &mut self.readers {
            reader.cut(&mut self.grounds);
        }
        self.disk.crash(crash);
        self.disk.set_faults(DiskFaults::NONE);
        let mut old = self.shard.take().expect("it runs");
        self.counters.merge(&old.counters());
        old.keeping = None; // It writes nothing more: its process is gone.
        drop(old);
        let place = (self.durability, self.segment_bytes);
        self.shard = Some(start(&mut self.grounds, place, &self.actions_hash)?);
        self.audit(crash == Crash::Power && self.durability == Durability::Written)
    }

    /// Lets all clients come to an end.
    fn calm_down(&mut self) -> Result<(), String> {
        (self.cut_chance, self.grounds.is_calm) = (0, true);
        let until = self.grounds.world.now() + Duration::from_secs(CALM_SECONDS_MAX);
        let mut steps = (12..28).cycle();
        while self.grounds.world.now() < until {
            self.act()?;
            self.turn();
            self.pass(1 << steps.next().expect("it has no end"));
            let are_idle = self.readers.iter().all(Reader::is_idle);
            if are_idle && self.writers.iter().all(|writer| writer.task.is_none()) {
                for reader in &mut self.readers {
                    reader.cut(&mut self.grounds);
                }
                return self.await_disk();
            }
        }
        Err("somebody never comes to the end".to_owned())
    }

    /// Waits until the disk has everything, also what nobody waits for any more.
    fn await_disk(&mut self) -> Result<(), String> {
        for _ in 0..CALM_SECONDS_MAX {
            let is_at_rest = self.disk.in_flight_count() == 0 && self.disk.unsynced_count() == 0;
            self.pass(1_000_000_000);
            if is_at_rest {
                return Ok(());
            }
        }
        Err("the disk never has everything".to_owned())
    }
}
