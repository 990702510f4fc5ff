//! The journal on a simulated disk: appends, readers, faults, crashes, and an oracle.
//!
//! Seeds differ in the manners of their disk:
//!
//! - A quarter has a disk that is slow, gets full and fails aloud. There, nothing that was
//!   acknowledged may be lost, and nothing may be reported as corrupt. Every chunk that is served
//!   after a failure is there after the next start too.
//! - A quarter has a disk that flips a bit now and then, at a place that a mark vouches for. It may
//!   cost the run or the record that has the bit, and nothing else.
//! - Half of them have a disk that also lies: bits flip, writes get lost or reach other places.
//!   There, every chunk that is given is right, and something is missing only if a fault was
//!   planted.
//!
//! The payload of a chunk follows from its execution, its number, and the start of the process that
//! has published it. Bytes of another chunk, or of an earlier use of a place, therefore never pass.
//! The oracle is in `journal/oracle.rs`.

#[cfg(test)]
mod failing_tests;
mod oracle;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::base::{Instant, PageBuffer, Random};
use crate::journal::format::{ChunkEntry, Lsn};
use crate::journal::recovery::{Findings, Recovered};
use crate::journal::{Append, Journal, KeptId, Moment, Setup, Wish};
use crate::limits::{JOURNAL_BLOCK_BYTES_MAX, JOURNAL_SEGMENT_BYTES_MIN};
use crate::reactor::{DiskSetup, Reactor};
use crate::shard::journal::{Completed, JournalFiles, PartRead, open_journal};
use crate::sim::disk::{DiskFaults, FailingOperation, SimDisk};
use crate::sim::reactor::SimReactor;
use crate::sim::twice::run_twice;
use crate::sim::world::{SimFaults, SimWorld};
use crate::stream::{Durability, Kind};

/// The counts of one seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalSummary {
    /// A hash of everything that was given, and of the disk at the end.
    pub hash: u64,
    /// The events, each with its count.
    pub happened: Vec<(&'static str, u64)>,
}

/// Runs a seed twice, and compares the two runs.
///
/// # Errors
/// The failure, and the command that runs the seed again.
pub fn run_journal_seed(seed: u64, verbose: bool) -> Result<JournalSummary, String> {
    let options = format!("--journal --seed {seed}");
    let difference = |first: &JournalSummary, second: &JournalSummary| {
        format!("{:x} and {:x}", first.hash, second.hash)
    };
    run_twice(&options, verbose, |verbose| Ok(Trial::drawn(seed, verbose).run()), difference)
}

const STEPS: u32 = 300;
const DIRECTORY: &str = "/journal";

#[derive(Debug, Default)]
struct Counts {
    chunks: u64,
    missed: u64,
    acknowledged: u64,
    given: u64,
    corrupt: u64,
    expired: u64,
    ends: u64,
    crashes: u64,
    power_cuts: u64,
    disk_failures: u64,
    full: u64,
    lies: u64,
    torn_bytes: u64,
    walked_segments: u64,
    index_searches: u64,
    sealed_segments: u64,
    lost_executions: u64,
    rotten: u64,
    served_broken: u64,
}

/// The manners of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// It is slow, gets full, and fails aloud.
    Loud,
    /// It flips a bit at rest now and then.
    Rots,
    /// It does all of this, and lies.
    Lies,
}

/// An execution as the oracle knows it.
#[derive(Default)]
struct Model {
    durability: Durability,
    /// For each chunk, the number of the start that has published it if it was kept.
    kept: Vec<Option<u64>>,
    /// One past the last chunk that was acknowledged; 0 if nothing was.
    acknowledged: u64,
    has_ended: bool,
    is_end_acknowledged: bool,
    /// Runs that a flipped bit may have cost: the first chunk, and one past the last.
    spoiled: Vec<(u64, u64)>,
    /// True if a flipped bit may have cost the record of its beginning or of its end.
    is_spoiled: bool,
    /// Chunks that were given after the last failure of the disk, although it was known.
    served: Vec<u64>,
}

/// The findings of a recovery, beside the journal.
type Rest = (Vec<KeptId>, Findings);

/// A journal that runs.
struct Process {
    reactor: SimReactor,
    journal: Journal,
    files: JournalFiles,
    read: Option<(Result<u32, io::ErrorKind>, PageBuffer)>,
    running: Vec<(u128, KeptId)>,
    /// True once a segment was to be removed.
    has_removed: bool,
}

struct Trial {
    setup: Setup,
    verbose: bool,
    random: Random,
    world: SimWorld,
    disk: SimDisk,
    faults: DiskFaults,
    manner: Manner,
    /// Number of faults that were planted before the last start.
    fault_count: usize,
    process: Process,
    has_removed: bool,
    models: BTreeMap<u128, Model>,
    last_id: u128,
    counts: Counts,
    hash: u64,
}

fn setup(seed: u64) -> Setup {
    Setup {
        journal: u128::from(seed) << 64 | 0x5eed,
        shard: 0,
        segment_bytes: 4 * JOURNAL_SEGMENT_BYTES_MIN,
        bytes_max: 24 * u64::from(JOURNAL_SEGMENT_BYTES_MIN),
        age_us_max: u64::MAX / 2,
        unsynced_bytes_max: JOURNAL_SEGMENT_BYTES_MIN,
    }
}

/// The payload of a chunk that the `start`th process has published.
fn payload(id: u128, seq: u64, start: u64) -> (Kind, Vec<u8>) {
    let mut random = Random::new(id as u64 ^ seq.rotate_left(24) ^ start.rotate_left(48));
    let length = match random.below(24) {
        0 => random.below(12_000),
        1..4 => random.below(2_000),
        _ => random.below(150),
    };
    let mut bytes = vec![0; length as usize];
    random.fill(&mut bytes);
    (Kind::ALL[random.below(3) as usize], bytes)
}

impl Process {
    fn open(world: &SimWorld, setup: &Setup) -> Result<(Process, Rest), String> {
        let mut reactor = SimReactor::new(world);
        let disk = DiskSetup::at(Path::new(DIRECTORY));
        let opened = open_journal(&mut reactor, disk, setup);
        let (recovered, files) = opened.map_err(|error| error.to_string())?;
        let Recovered { journal, unfinished, findings } = recovered;
        let (read, running, has_removed) = (None, Vec::new(), false);
        let process = Process { reactor, journal, files, read, running, has_removed };
        Ok((process, (unfinished, findings)))
    }

    fn moment(&mut self) -> Moment {
        Moment { now: self.reactor.now(), wall_us: self.reactor.wall_us() }
    }

    /// Takes what the disk has done, and asks it for more.
    fn turn(&mut self) {
        self.reactor.poll();
        let moment = self.moment();
        while let Some(done) = self.reactor.next_disk_event() {
            self.files.hurry(self.journal.is_next_urgent());
            for completed in self.files.on_done(done, &mut self.reactor) {
                match completed {
                    Completed::Wish { token, result, buffer, synced } => {
                        self.journal.on_done(token, result, buffer, synced, moment);
                    }
                    Completed::Read { result, buffer, .. } => {
                        self.read = Some((result, buffer.expect("a read has one")));
                    }
                }
            }
        }
        self.journal.turn(moment);
        while let Some(wish) = self.journal.poll_wish(moment) {
            self.has_removed |= matches!(wish, Wish::Remove { .. });
            self.files.carry_out(wish, &mut self.reactor);
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.reactor.now() + time;
        while self.reactor.now() < until {
            self.turn();
            let deadline = self.journal.deadline().unwrap_or(Instant::FAR);
            let now = self.reactor.now();
            self.reactor.wait(Some(until.min(deadline.max(now + Duration::from_micros(1)))));
        }
        self.turn();
    }

    /// Reads a part of a segment; `None` if the disk cannot.
    fn read(&mut self, lsn: Lsn, bytes: u32) -> Option<PageBuffer> {
        assert!(bytes <= JOURNAL_BLOCK_BYTES_MAX);
        let buffer = PageBuffer::new(JOURNAL_BLOCK_BYTES_MAX as usize);
        let read = PartRead { name: 1, lsn, bytes, buffer, is_fresh: false };
        self.files.read(read, &mut self.reactor);
        while self.read.is_none() {
            self.pass(Duration::from_micros(200));
        }
        let (result, buffer) = self.read.take().expect("it was just there");
        (result == Ok(bytes)).then_some(buffer)
    }
}

impl Trial {
    /// Draws everything from a seed.
    fn drawn(seed: u64, verbose: bool) -> Trial {
        let mut random = Random::new(seed);
        let (world, disk) = (random.next_u64(), random.next_u64());
        let manner = [Manner::Loud, Manner::Rots, Manner::Lies, Manner::Lies];
        let manner = manner[random.below(4) as usize];
        let faults = match manner {
            Manner::Lies => DiskFaults::drawn(&mut random),
            Manner::Loud | Manner::Rots if random.chance(1, 2) => DiskFaults::SLOW,
            Manner::Loud | Manner::Rots => DiskFaults::NONE,
        };
        let mut trial = Trial::new(setup(seed), manner, [world, disk], random);
        trial.disk.set_faults(faults.clone());
        (trial.faults, trial.verbose) = (faults, verbose);
        trial
    }

    /// Opens a journal on an empty disk that makes no mistakes. `seeds` are those of the world and
    /// of the disk.
    fn new(setup: Setup, manner: Manner, seeds: [u64; 2], random: Random) -> Trial {
        let world = SimWorld::new(seeds[0], SimFaults::NONE);
        let disk = SimDisk::new(seeds[1]);
        world.put_disk(Path::new(DIRECTORY), &disk);
        let (process, _) = Process::open(&world, &setup).expect("the disk is empty");
        Trial {
            setup,
            verbose: false,
            random,
            world,
            disk,
            faults: DiskFaults::NONE,
            manner,
            fault_count: 0,
            process,
            has_removed: false,
            models: BTreeMap::new(),
            last_id: 0,
            counts: Counts::default(),
            hash: 0,
        }
    }

    fn note(&mut self, word: &str, number: u64) {
        if self.verbose {
            println!("{:>14} ns: {word} {number}", self.world.now().nanos());
        }
        let word = word.bytes().fold(number, |hash, byte| hash.rotate_left(5) ^ u64::from(byte));
        self.hash = (self.hash.rotate_left(7) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn run(mut self) -> JournalSummary {
        for _ in 0..STEPS {
            self.step();
            self.settle();
        }
        self.crash();
        self.summary()
    }

    /// Ends a step: hears what was acknowledged, and starts again if the disk has failed.
    fn settle(&mut self) {
        self.process.turn();
        self.hear();
        if self.process.journal.fault().is_some() {
            self.counts.disk_failures += 1;
            self.go_on_broken();
            self.crash();
        }
    }

    fn summary(mut self) -> JournalSummary {
        self.note("image", self.disk.image_hash());
        self.counts.lies = self.disk.planted().len() as u64;
        let Counts { chunks, missed, acknowledged, given, corrupt, expired, .. } = self.counts;
        let Counts { ends, crashes, power_cuts, disk_failures, full, lies, .. } = self.counts;
        let Counts { torn_bytes, walked_segments, index_searches, .. } = self.counts;
        let Counts { sealed_segments, lost_executions, rotten, served_broken, .. } = self.counts;
        let happened = vec![
            ("chunks", chunks),
            ("missed", missed),
            ("acknowledged", acknowledged),
            ("given", given),
            ("corrupt", corrupt),
            ("expired", expired),
            ("ends", ends),
            ("crashes", crashes),
            ("power cuts", power_cuts),
            ("disk failures", disk_failures),
            ("full", full),
            ("faults", lies),
            ("torn bytes", torn_bytes),
            ("walked segments", walked_segments),
            ("index searches", index_searches),
            ("sealed segments", sealed_segments),
            ("lost executions", lost_executions),
            ("rotten bits", rotten),
            ("served by a broken journal", served_broken),
        ];
        JournalSummary { hash: self.hash, happened }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..5 => self.open(),
            5..55 => self.append(),
            55..59 => self.end(),
            59..61 => self.read_one(),
            61 if self.manner == Manner::Rots => self.rot(),
            61 if self.manner == Manner::Loud && self.random.chance(1, 2) => {
                let operation = [FailingOperation::Write, FailingOperation::Sync];
                let operation = operation[self.random.below(2) as usize];
                self.disk.fail_nth(operation, 1 + self.random.below(6));
            }
            62 => self.disk.fail_nth(FailingOperation::Create, 1),
            63 if self.random.chance(1, 3) => self.disk.drop_cache(),
            64..66 => self.crash(),
            66..68 => self.process.pass(Duration::from_millis(1_200)),
            68..80 => {
                let micros = self.random.below(20_000);
                self.process.pass(Duration::from_micros(micros));
            }
            _ => {
                let micros = self.random.below(300);
                self.process.pass(Duration::from_micros(micros));
            }
        }
    }

    fn open(&mut self) {
        let id = self.last_id + 1;
        let durability =
            if self.random.chance(1, 2) { Durability::Written } else { Durability::Synced };
        let moment = self.process.moment();
        let details = vec![7; self.random.below(200) as usize];
        match self.process.journal.open(id, durability, &details, moment) {
            Ok(name) => {
                self.last_id = id;
                self.models.insert(id, Model { durability, ..Model::default() });
                self.process.running.push((id, name));
            }
            Err(_) => self.counts.full += 1,
        }
    }

    fn append(&mut self) {
        if self.process.running.is_empty() {
            return self.open();
        }
        let at = self.random.below(self.process.running.len() as u64) as usize;
        let (id, name) = self.process.running[at];
        for _ in 0..=self.random.below(30) {
            let model = self.models.get_mut(&id).expect("it was opened");
            let seq = model.kept.len() as u64 + 1;
            let start = self.counts.crashes;
            let (kind, bytes) = payload(id, seq, start);
            let moment = self.process.moment();
            let (mono_ns, length) = (moment.now.nanos(), bytes.len() as u32);
            let entry = ChunkEntry { seq, mono_ns, length, kind, key: 0, flags: 0 };
            let appended = self.process.journal.append(name, &entry, &bytes, moment);
            model.kept.push((appended == Append::Kept).then_some(start));
            self.counts.chunks += 1;
            self.counts.missed += u64::from(appended == Append::Missed);
        }
    }

    fn end(&mut self) {
        if self.process.running.is_empty() {
            return;
        }
        let at = self.random.below(self.process.running.len() as u64) as usize;
        let (id, name) = self.process.running[at];
        let moment = self.process.moment();
        if self.process.journal.end(name, b"completed", moment) {
            self.process.running.swap_remove(at);
            self.models.get_mut(&id).expect("it was opened").has_ended = true;
        }
    }

    /// Takes the acknowledgements.
    fn hear(&mut self) {
        while let Some(name) = self.process.journal.poll_news() {
            let Some(id) = self.process.journal.get(name).map(|kept| kept.id) else { continue };
            let until = self.process.journal.durable_until(name).expect("it is kept");
            let is_end = self.process.journal.is_end_kept(name);
            self.note("acknowledged", id as u64 ^ until << 20);
            let model = self.models.get_mut(&id).expect("it was opened");
            assert!(until >= model.acknowledged);
            assert!(until <= model.kept.len() as u64 + 1);
            self.counts.acknowledged += until - model.acknowledged.max(1).min(until);
            model.acknowledged = until;
            if is_end {
                assert!(model.has_ended);
                model.is_end_acknowledged = true;
                self.counts.ends += 1;
            }
        }
    }

    fn read_one(&mut self) {
        if self.process.journal.fault().is_some() || self.models.is_empty() {
            return;
        }
        let at = self.random.below(self.models.len() as u64) as usize;
        let id = *self.models.keys().nth(at).expect("there are so many");
        if let Some(name) = self.process.journal.find(id) {
            self.read_all(id, name);
        }
    }
}
