//! The journal on a simulated disk: appends, readers, faults, crashes, and an oracle.
//!
//! Half of the seeds have a disk that is slow, gets full and fails aloud. There, nothing that was
//! acknowledged may be lost, and nothing may be reported as corrupt. In the other half the disk
//! also lies: bits flip, writes get lost or reach other places. There, every chunk that is given is
//! right, and something is missing only if a fault was planted.
//!
//! The payload of a chunk follows from its execution and its number. Bytes of another chunk, or of
//! an earlier use of a place, therefore never pass.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::base::{Instant, PageBuffer, Random};
use crate::journal::block::Run;
use crate::journal::format::{ChunkEntry, Lsn};
use crate::journal::recovery::{Findings, Recovered};
use crate::journal::{Append, Found, Journal, KeptId, Moment, Place, Search, Setup};
use crate::limits::{JOURNAL_BLOCK_BYTES_MAX, JOURNAL_PAGE_BYTES, JOURNAL_SEGMENT_BYTES_MIN};
use crate::reactor::{DiskSetup, Reactor};
use crate::shard::journal::{Completed, JournalFiles, open_journal};
use crate::sim::disk::{Crash, DiskFaults, FailingOperation, SimDisk};
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
    run_twice(&options, verbose, |verbose| Ok(Trial::new(seed, verbose).run()), difference)
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
}

/// An execution as the oracle knows it.
#[derive(Default)]
struct Model {
    durability: Durability,
    /// For each chunk, true if it was kept.
    kept: Vec<bool>,
    /// One past the last chunk that was acknowledged; 0 if nothing was.
    acknowledged: u64,
    has_ended: bool,
    is_end_acknowledged: bool,
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
}

struct Trial {
    seed: u64,
    verbose: bool,
    random: Random,
    world: SimWorld,
    disk: SimDisk,
    faults: DiskFaults,
    /// True if the disk lies.
    lies: bool,
    /// Number of faults that were planted before the last start.
    fault_count: usize,
    process: Process,
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
    }
}

/// The payload of a chunk.
fn payload(id: u128, seq: u64) -> (Kind, Vec<u8>) {
    let mut random = Random::new(id as u64 ^ seq.rotate_left(24));
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
    fn open(world: &SimWorld, seed: u64) -> Result<(Process, Rest), String> {
        let mut reactor = SimReactor::new(world);
        let disk = DiskSetup::at(Path::new(DIRECTORY));
        let opened = open_journal(&mut reactor, disk, &setup(seed));
        let (recovered, files) = opened.map_err(|error| error.to_string())?;
        let Recovered { journal, unfinished, findings } = recovered;
        let process = Process { reactor, journal, files, read: None, running: Vec::new() };
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
        self.files.read(1, lsn, bytes, buffer, &mut self.reactor);
        while self.read.is_none() {
            self.pass(Duration::from_micros(200));
        }
        let (result, buffer) = self.read.take().expect("it was just there");
        (result == Ok(bytes)).then_some(buffer)
    }
}

impl Trial {
    fn new(seed: u64, verbose: bool) -> Trial {
        let mut random = Random::new(seed);
        let world = SimWorld::new(random.next_u64(), SimFaults::NONE);
        let disk = SimDisk::new(random.next_u64());
        world.put_disk(Path::new(DIRECTORY), &disk);
        let lies = random.chance(1, 2);
        let faults = match lies {
            true => DiskFaults::drawn(&mut random),
            false if random.chance(1, 2) => DiskFaults::SLOW,
            false => DiskFaults::NONE,
        };
        let (process, _) = Process::open(&world, seed).expect("the disk is empty");
        disk.set_faults(faults.clone());
        Trial {
            seed,
            verbose,
            random,
            world,
            disk,
            faults,
            lies,
            fault_count: 0,
            process,
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
            self.process.turn();
            self.hear();
            if self.process.journal.fault().is_some() {
                self.counts.disk_failures += 1;
                self.crash();
            }
        }
        self.crash();
        self.note("image", self.disk.image_hash());
        self.counts.lies = self.disk.planted().len() as u64;
        let Counts { chunks, missed, acknowledged, given, corrupt, expired, .. } = self.counts;
        let Counts { ends, crashes, power_cuts, disk_failures, full, lies, .. } = self.counts;
        let Counts { torn_bytes, walked_segments, index_searches, .. } = self.counts;
        let Counts { sealed_segments, lost_executions, .. } = self.counts;
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
        ];
        JournalSummary { hash: self.hash, happened }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..5 => self.open(),
            5..55 => self.append(),
            55..59 => self.end(),
            59..61 => self.read_one(),
            61 if !self.lies && self.random.chance(1, 2) => {
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
            let (kind, bytes) = payload(id, seq);
            let moment = self.process.moment();
            let (mono_ns, length) = (moment.now.nanos(), bytes.len() as u32);
            let entry = ChunkEntry { seq, mono_ns, length, kind, key: 0, flags: 0 };
            let appended = self.process.journal.append(name, &entry, &bytes, moment);
            model.kept.push(appended == Append::Kept);
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

    /// Ends the process or the power, and starts again.
    fn crash(&mut self) {
        let is_power = self.random.chance(1, 2) || self.process.journal.fault().is_some();
        self.counts.crashes += 1;
        self.counts.power_cuts += u64::from(is_power);
        self.counts.sealed_segments += self.process.journal.counters().segments;
        self.disk.crash(if is_power { Crash::Power } else { Crash::Process });
        let may_fail = self.random.chance(1, 2);
        if !may_fail {
            self.disk.set_faults(DiskFaults::NONE);
        }
        let mut opened = Process::open(&self.world, self.seed);
        // Each operation that was asked to fail does that once.
        for _ in 0..STEPS {
            if opened.is_ok() {
                break;
            }
            self.disk.set_faults(DiskFaults::NONE);
            self.disk.heal_sectors();
            self.disk.crash(Crash::Process); // The attempt may have stopped anywhere.
            opened = Process::open(&self.world, self.seed);
        }
        let (process, recovered) = opened.unwrap_or_else(|error| panic!("{error}"));
        self.process = process;
        self.disk.set_faults(DiskFaults::NONE);
        let (unfinished, findings) = recovered;
        let is_sound = findings.corrupt.is_empty() || self.is_damaged();
        assert!(is_sound, "no fault was planted: {findings:?}");
        self.counts.torn_bytes += findings.torn_bytes;
        self.counts.walked_segments += findings.walked;
        // What the kernel had and could not write is gone, even if only the process has ended.
        let has_failed = self.disk.planted().len() > self.fault_count;
        self.fault_count = self.disk.planted().len();
        self.check(is_power || has_failed);
        for name in unfinished {
            let Some(id) = self.process.journal.get(name).map(|kept| kept.id) else { continue };
            if let Some(model) = self.models.get_mut(&id) {
                assert!(!model.is_end_acknowledged || self.lies);
                (model.has_ended, model.is_end_acknowledged) = (false, false);
                self.process.running.push((id, name));
            }
        }
        self.note("restarted", self.models.len() as u64);
        self.disk.set_faults(self.faults.clone());
    }

    /// True if the disk was made to lie about something.
    fn is_damaged(&self) -> bool {
        self.lies && !self.disk.planted().is_empty()
    }

    /// Compares what is kept with what was acknowledged, and goes on from what is kept.
    fn check(&mut self, has_lost_cache: bool) {
        let ids: Vec<u128> = self.models.keys().copied().collect();
        for id in ids {
            let model = &self.models[&id];
            let is_promised = model.durability == Durability::Synced || !has_lost_cache;
            let Some(name) = self.process.journal.find(id) else {
                let may_be_gone = model.has_ended || model.acknowledged == 0;
                let is_lost = is_promised && !may_be_gone;
                assert!(!is_lost || self.is_damaged(), "execution {id} is gone");
                self.counts.lost_executions += u64::from(is_lost);
                self.models.remove(&id);
                continue;
            };
            let kept = self.process.journal.get(name).expect("it was found");
            let (next_seq, has_ended) = (kept.published().0, kept.ended.is_some());
            if is_promised && !self.is_damaged() {
                assert!(next_seq >= model.acknowledged, "{id}: {next_seq}");
                assert!(!model.is_end_acknowledged || has_ended, "{id}");
            }
            assert!(next_seq <= model.kept.len() as u64 + 1, "{id} has chunks of its own");
            assert!(!has_ended || model.has_ended, "{id} has ended by itself");
            self.read_all(id, name);
            let model = self.models.get_mut(&id).expect("it was opened");
            model.kept.truncate(next_seq as usize - 1);
            (model.acknowledged, model.is_end_acknowledged) = (next_seq, has_ended);
        }
    }

    /// Reads an execution from its first to its last chunk.
    fn read_all(&mut self, id: u128, name: KeptId) {
        let mut seq = 1;
        loop {
            let Some(kept) = self.process.journal.get(name) else { return };
            if seq >= kept.published().0 {
                return;
            }
            let place = self.process.journal.locate(name, seq).expect("it was published");
            let place = match place {
                Place::Search(search) => self.search(name, search),
                place => place,
            };
            let before = seq;
            seq = match place {
                Place::Soon => {
                    self.process.pass(Duration::from_millis(3));
                    self.hear();
                    if self.process.journal.fault().is_some() {
                        return; // It never comes.
                    }
                    continue;
                }
                Place::Hole { until_seq } => {
                    let kept = &self.models[&id].kept[seq as usize - 1..until_seq as usize - 1];
                    assert!(kept.iter().all(|kept| !kept), "{id}: {seq} is no hole");
                    until_seq
                }
                Place::Expired { until_seq } => {
                    self.counts.expired += until_seq - seq;
                    until_seq
                }
                Place::Run { segment_number, row } => {
                    let lsn = Lsn::new(segment_number, row.offset_bytes);
                    self.read_run(id, name, lsn, row.bytes, (seq, row.until_seq()));
                    row.until_seq()
                }
                Place::Corrupt { until_seq } => {
                    self.note_corrupt(id, seq, until_seq);
                    until_seq
                }
                Place::Search(_) => unreachable!("it was searched for"),
            };
            assert!(seq > before);
        }
    }

    fn search(&mut self, name: KeptId, mut search: Search) -> Place {
        loop {
            self.counts.index_searches += 1;
            let Some(page) = self.process.read(search.page(), JOURNAL_PAGE_BYTES) else {
                let seq = search.seq();
                return match self.process.journal.locate(name, seq) {
                    Some(place @ Place::Expired { .. }) => place,
                    None => Place::Expired { until_seq: seq + 1 },
                    Some(_) => search.give_up(),
                };
            };
            match search.on_page(&page) {
                Found::Place(place) => return place,
                Found::Again => {}
            }
        }
    }

    fn note_corrupt(&mut self, id: u128, from_seq: u64, until_seq: u64) {
        assert!(self.is_damaged(), "{id}: {from_seq} to {until_seq} is corrupt without a fault");
        self.counts.corrupt += until_seq - from_seq;
        self.note("corrupt", id as u64 ^ from_seq << 20);
    }

    fn read_run(&mut self, id: u128, name: KeptId, lsn: Lsn, bytes: u32, seqs: (u64, u64)) {
        let read = self.process.read(lsn, bytes);
        let run = read.as_ref().and_then(|read| Run::decode(lsn, &read[..bytes as usize]).ok());
        let run = run.filter(|run| run.header.execution == name.number);
        let Some(run) = run else {
            // Its segment may have been removed meanwhile.
            return match self.process.journal.locate(name, seqs.0) {
                None | Some(Place::Expired { .. }) => self.counts.expired += seqs.1 - seqs.0,
                _ => self.note_corrupt(id, seqs.0, seqs.1),
            };
        };
        for chunk in run.chunks() {
            match chunk {
                Ok(chunk) => {
                    let (kind, bytes) = payload(id, chunk.entry.seq);
                    assert!(chunk.payload == bytes, "{id}: chunk {} is wrong", chunk.entry.seq);
                    assert_eq!(chunk.entry.kind, kind);
                    assert!(self.models[&id].kept[chunk.entry.seq as usize - 1]);
                    self.counts.given += 1;
                }
                Err(bad) => self.note_corrupt(id, bad.from_seq, bad.until_seq),
            }
        }
    }
}
