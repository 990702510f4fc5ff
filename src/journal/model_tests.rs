//! The machine against a disk that is slow, fails and is cut from its power, from a seed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;

use super::block::Run;
use super::format::{ChunkEntry, Lsn, SegmentHeader};
use super::locate::Found;
use super::recovery::{Files, Recovered, recover};
use super::{Append, Journal, KeptId, Moment, Place, Setup, Wish, WishToken};
use crate::base::{Instant, PageBuffer, Random};
use crate::limits::{JOURNAL_LANDMARK_BYTES, JOURNAL_PAGE_BYTES};
use crate::stream::{Durability, Kind};

const SEGMENT: u32 = 4 << 20;
pub(super) const SECTOR: usize = 512;

/// A disk with a volatile cache.
#[derive(Default)]
pub(super) struct Disk {
    pub files: BTreeMap<u64, File>,
    flying: Vec<Flying>,
}

pub(super) struct File {
    pub durable: Vec<u8>,
    pub cache: Vec<u8>,
    /// Sectors whose cache is newer.
    pub dirty: Vec<usize>,
}

pub(super) struct Flying {
    wish: Wish,
    /// The dirty sectors that a sync covers.
    covered: Vec<usize>,
}

impl File {
    fn new(header: &SegmentHeader) -> File {
        let mut durable = vec![0; header.segment_bytes as usize];
        header.encode(&mut durable[..JOURNAL_PAGE_BYTES as usize]);
        File { cache: durable.clone(), durable, dirty: Vec::new() }
    }

    pub fn copy(&self) -> File {
        let File { durable, cache, dirty } = self;
        File { durable: durable.clone(), cache: cache.clone(), dirty: dirty.clone() }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let length = self.cache.len().max(at + bytes.len());
        self.cache.resize(length, 0);
        self.durable.resize(length, 0);
        self.cache[at..at + bytes.len()].copy_from_slice(bytes);
        self.dirty.extend((at / SECTOR)..(at + bytes.len()).div_ceil(SECTOR));
    }

    fn sync(&mut self, sectors: &[usize]) {
        for &sector in sectors {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            self.durable[range.clone()].copy_from_slice(&self.cache[range]);
        }
        self.dirty.retain(|sector| !sectors.contains(sector));
    }

    /// Loses or keeps each sector that was not synced.
    fn cut(&mut self, random: &mut Random) {
        let all_lost = random.chance(1, 4);
        for sector in std::mem::take(&mut self.dirty) {
            if !all_lost && random.chance(1, 2) {
                let range = sector * SECTOR..(sector + 1) * SECTOR;
                self.durable[range.clone()].copy_from_slice(&self.cache[range]);
            }
        }
        self.cache = self.durable.clone();
    }
}

impl Files for Disk {
    fn segments(&mut self) -> io::Result<Vec<(u64, u64)>> {
        let files = self.files.iter();
        Ok(files.map(|(number, file)| (*number, file.cache.len() as u64)).collect())
    }

    fn read(&mut self, lsn: Lsn, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.files.get(&lsn.segment_number()).ok_or(io::ErrorKind::NotFound)?;
        let rest = file.cache.get(lsn.offset_bytes() as usize..).unwrap_or(&[]);
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write(&mut self, lsn: Lsn, bytes: &[u8]) -> io::Result<()> {
        let file = self.files.get_mut(&lsn.segment_number()).ok_or(io::ErrorKind::NotFound)?;
        file.write(lsn.offset_bytes() as usize, bytes);
        Ok(())
    }

    fn sync(&mut self, segment_number: u64) -> io::Result<()> {
        let file = self.files.get_mut(&segment_number).ok_or(io::ErrorKind::NotFound)?;
        let dirty = file.dirty.clone();
        file.sync(&dirty);
        Ok(())
    }

    fn create(&mut self, header: &SegmentHeader, empty: Option<u64>) -> io::Result<()> {
        let file = match empty.and_then(|number| self.files.remove(&number)) {
            Some(mut file) => {
                assert!(file.cache[JOURNAL_PAGE_BYTES as usize..].iter().all(|byte| *byte == 0));
                file.write(0, &File::new(header).cache[..JOURNAL_PAGE_BYTES as usize]);
                file.sync(&file.dirty.clone());
                file
            }
            None => File::new(header),
        };
        let before = self.files.insert(header.segment_number, file);
        assert!(before.is_none(), "segment {} is made twice", header.segment_number);
        Ok(())
    }

    fn remove(&mut self, segment_number: u64) -> io::Result<()> {
        self.files.remove(&segment_number).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }
}

/// The knowledge of the test about an execution.
#[derive(Default)]
struct Model {
    durability: Durability,
    /// The chunks; a missing one is `None`.
    chunks: Vec<Option<(Kind, Vec<u8>)>>,
    /// One past the last chunk that was acknowledged.
    acked: u64,
    has_ended: bool,
    is_end_acked: bool,
    is_deleted: bool,
}

struct World {
    random: Random,
    disk: Disk,
    journal: Journal,
    models: HashMap<u128, Model>,
    running: Vec<(u128, KeptId)>,
    moment: Moment,
    next_id: u128,
    seed: u64,
    has_removed: bool,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    chunks: u64,
    missed: u64,
    crashes: u64,
    power_cuts: u64,
    reads: u64,
    searches: u64,
    sought: u64,
    /// Rows that were known from the page of another one.
    claimed: u64,
    faults: u64,
    expired: u64,
    torn_bytes: u64,
    walked: u64,
}

fn setup(seed: u64) -> Setup {
    Setup {
        journal: u128::from(seed) << 64 | 1,
        shard: 0,
        segment_bytes: SEGMENT,
        bytes_max: 4 * u64::from(SEGMENT),
        age_us_max: u64::MAX / 2,
        unsynced_bytes_max: SEGMENT / 4,
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut disk = Disk::default();
        let moment = Moment { now: Instant::from_nanos(1), wall_us: 1_000_000 };
        let Recovered { journal, unfinished, .. } =
            recover(&mut disk, &setup(seed), moment).expect("an empty disk");
        assert!(unfinished.is_empty());
        World {
            random: Random::new(seed),
            disk,
            journal,
            models: HashMap::new(),
            running: Vec::new(),
            moment,
            next_id: 1,
            seed,
            has_removed: false,
            counts: Counts::default(),
        }
    }

    fn pass_time(&mut self, nanos: u64) {
        self.moment.now = Instant::from_nanos(self.moment.now.nanos() + nanos);
        self.moment.wall_us += nanos / 1_000;
    }

    fn open(&mut self) {
        let id = self.next_id;
        self.next_id += 1;
        let durability = *[Durability::Written, Durability::Synced]
            .get(self.random.below(2) as usize)
            .expect("two");
        let details = vec![id as u8; self.random.below(300) as usize];
        let Ok(name) = self.journal.open(id, durability, &details, self.moment) else { return };
        self.models.insert(id, Model { durability, ..Model::default() });
        self.running.push((id, name));
    }

    fn append(&mut self) {
        if self.running.is_empty() {
            return self.open();
        }
        let (id, name) = self.running[self.random.below(self.running.len() as u64) as usize];
        for _ in 0..=self.random.below(20) {
            let model = self.models.get_mut(&id).expect("it was opened");
            let length = match self.random.below(20) {
                0 => self.random.below(100_000),
                1..4 => self.random.below(9_000),
                _ => self.random.below(200),
            };
            let seq = model.chunks.len() as u64 + 1;
            let mut payload = vec![0; length as usize];
            Random::new(id as u64 ^ seq << 20).fill(&mut payload);
            let kind = Kind::ALL[self.random.below(2) as usize + (id % 3) as usize];
            let entry = ChunkEntry {
                seq,
                mono_ns: self.moment.now.nanos(),
                length: length as u32,
                kind,
                key: 0,
                flags: 0,
            };
            let appended = self.journal.append(name, &entry, &payload, self.moment);
            self.counts.chunks += 1;
            self.counts.missed += u64::from(appended == Append::Missed);
            model.chunks.push((appended == Append::Kept).then_some((kind, payload)));
        }
    }

    fn end(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let at = self.random.below(self.running.len() as u64) as usize;
        let (id, name) = self.running[at];
        if self.journal.end(name, b"done", self.moment) {
            self.running.swap_remove(at);
            self.models.get_mut(&id).expect("it was opened").has_ended = true;
        }
    }

    fn delete(&mut self) {
        let ended: Vec<u128> = self
            .models
            .iter()
            .filter(|(_, model)| model.is_end_acked && !model.is_deleted)
            .map(|(id, _)| *id)
            .collect();
        let Some(id) = ended.into_iter().min() else { return };
        let Some(name) = self.journal.find(id) else { return };
        if self.journal.delete(name, self.moment) {
            self.models.get_mut(&id).expect("it was opened").is_deleted = true;
            assert!(self.journal.find(id).is_none());
        }
    }

    fn turn(&mut self) {
        self.journal.turn(self.moment);
        while let Some(wish) = self.journal.poll_wish(self.moment) {
            let covered = match &wish {
                Wish::Sync { segment_number } => self.disk.files[segment_number].dirty.clone(),
                _ => Vec::new(),
            };
            self.disk.flying.push(Flying { wish, covered });
        }
        while let Some(name) = self.journal.poll_news() {
            self.hear(name);
        }
    }

    fn hear(&mut self, name: KeptId) {
        let Some(id) = self.journal.get(name).map(|kept| kept.id) else { return };
        let until = self.journal.durable_until(name).expect("it is kept");
        let model = self.models.get_mut(&id).expect("it was opened");
        assert!(until >= model.acked, "seed {}", self.seed);
        assert!(until <= model.chunks.len() as u64 + 1);
        model.acked = until;
        if self.journal.is_end_kept(name) {
            assert!(model.has_ended);
            model.is_end_acked = true;
            model.acked = model.chunks.len() as u64 + 1;
        }
    }

    /// Completes one of the operations under way.
    fn complete(&mut self, may_fail: bool) {
        if self.disk.flying.is_empty() {
            return;
        }
        let at = self.random.below(self.disk.flying.len() as u64) as usize;
        let Flying { wish, covered } = self.disk.flying.swap_remove(at);
        let is_failure = may_fail && self.random.chance(1, 60);
        self.pass_time(20_000);
        let token = wish.token();
        let result = if is_failure { Err(io::ErrorKind::Other) } else { Ok(()) };
        self.counts.faults += u64::from(is_failure);
        let (mut back, mut synced) = (None, false);
        match wish {
            Wish::Write { lsn, buffer, bytes, sync, .. } => {
                if !is_failure {
                    self.write(lsn, &buffer, bytes, sync);
                }
                (back, synced) = (Some(buffer), sync);
            }
            Wish::Sync { segment_number } => {
                let file = self.disk.files.get_mut(&segment_number).expect("it is there");
                match is_failure {
                    // The pages count as clean, and the disk has the old bytes.
                    true => file.dirty.retain(|sector| !covered.contains(sector)),
                    false => file.sync(&covered),
                }
                synced = true;
            }
            Wish::Prepare { header } if !is_failure => {
                self.disk.create(&header, None).expect("it is new");
            }
            Wish::Remove { segment_number } if !is_failure => {
                self.disk.remove(segment_number).expect("it was there");
                self.has_removed = true;
            }
            _ => {}
        }
        self.journal.on_done(token, result, back, synced, self.moment);
    }

    fn write(&mut self, lsn: Lsn, buffer: &PageBuffer, bytes: u32, sync: bool) {
        let bytes = &buffer[..bytes as usize];
        let at = lsn.offset_bytes() as usize;
        let file = self.disk.files.get_mut(&lsn.segment_number()).expect("it is there");
        assert!(file.cache[at..at + bytes.len()].iter().all(|byte| *byte == 0)); // D1
        file.write(at, bytes);
        if sync {
            let own: Vec<usize> = (at / SECTOR..(at + bytes.len()) / SECTOR).collect();
            file.sync(&own);
        }
    }

    /// Ends the process, or the power, and begins again.
    fn crash(&mut self, is_power: bool) {
        self.counts.crashes += 1;
        self.counts.power_cuts += u64::from(is_power);
        for Flying { wish, .. } in std::mem::take(&mut self.disk.flying) {
            // The kernel may have it already.
            match wish {
                _ if self.random.chance(1, 2) => {}
                Wish::Write { lsn, buffer, bytes, .. } => self.write(lsn, &buffer, bytes, false),
                Wish::Prepare { header } => self.disk.create(&header, None).expect("it is new"),
                Wish::Sync { .. } | Wish::Remove { .. } => {}
            }
        }
        if is_power {
            for file in self.disk.files.values_mut() {
                file.cut(&mut self.random);
            }
        }
        let recovered = recover(&mut self.disk, &setup(self.seed), self.moment);
        let Recovered { journal, mut unfinished, findings } =
            recovered.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        assert!(findings.corrupt.is_empty(), "seed {}: {findings:?}", self.seed);
        // The rest of an execution whose beginning was removed.
        let may_have_orphans = self.has_removed || self.disk.files.keys().next() > Some(&1);
        assert!(findings.orphan_runs == 0 || may_have_orphans, "seed {}", self.seed);
        self.counts.torn_bytes += findings.torn_bytes;
        self.counts.walked += findings.walked;
        self.journal = journal;
        self.running.clear();
        self.check(is_power);
        unfinished.sort_by_key(|name| name.number);
        for name in unfinished {
            let id = self.journal.get(name).expect("it is kept").id;
            let model = self.models.get_mut(&id).expect("it was opened");
            assert!(!model.is_end_acked, "seed {}: the end of {id} is gone", self.seed);
            (model.has_ended, model.is_deleted) = (false, false);
            self.running.push((id, name)); // Here it may go on; a server ends it.
        }
    }

    /// Compares everything that is kept with the model, and cuts the model to it.
    fn check(&mut self, is_power: bool) {
        let ids: Vec<u128> = self.models.keys().copied().collect();
        for id in ids {
            let model = &self.models[&id];
            let is_promised = model.durability == Durability::Synced || !is_power;
            let Some(name) = self.journal.find(id) else {
                // It was deleted, it has expired after its end, or it was never acknowledged.
                let may_be_gone = model.has_ended || model.acked == 0;
                assert!(may_be_gone || !is_promised, "seed {}: {id} is gone", self.seed);
                self.counts.expired += 1;
                self.models.remove(&id);
                continue;
            };
            let kept = self.journal.get(name).expect("it was found");
            let (next_seq, _) = kept.published();
            let seed = self.seed;
            if is_promised {
                assert!(next_seq >= model.acked, "seed {seed}: {id} has {next_seq}");
                let is_kept = !model.is_end_acked || kept.ended.is_some();
                let (durability, end) = (model.durability, model.chunks.len());
                assert!(is_kept, "seed {seed}: {id} {durability} {is_power} {end} {kept:?}");
            }
            assert!(next_seq <= model.chunks.len() as u64 + 1, "seed {seed}");
            self.read_all(id, name, next_seq);
            let has_ended = self.journal.get(name).is_some_and(|kept| kept.ended.is_some());
            let model = self.models.get_mut(&id).expect("it was opened");
            model.chunks.truncate(next_seq as usize - 1);
            model.acked = next_seq;
            assert!(!has_ended || model.has_ended);
            model.is_end_acked = has_ended;
        }
    }

    /// Reads all chunks of an execution and compares them.
    fn read_all(&mut self, id: u128, name: KeptId, next_seq: u64) {
        let model = &self.models[&id];
        let (mut seq, mut stuck, seed) = (1, 0, self.seed);
        let mut behind = VecDeque::new(); // Rows that have to come next.
        let mut starts = Vec::new();
        while seq < next_seq {
            let mut place = self.journal.locate(name, seq).expect("it was published");
            while let Place::Search(mut search) = place {
                self.counts.searches += 1;
                let mut page = vec![0; JOURNAL_PAGE_BYTES as usize];
                self.disk.read(search.page(), &mut page).expect("it is there");
                place = match search.on_page(&page) {
                    Found::Place(place) => place,
                    Found::Again => Place::Search(search),
                };
                if let Place::Run { row, .. } = place {
                    let rows = search.runs_from(&page, &row, 5);
                    assert_eq!(rows.first(), Some(&row));
                    let claimed = behind.pop_front();
                    assert!(claimed.is_none_or(|claimed| claimed == row), "seed {seed}: {row:?}");
                    self.counts.claimed += u64::from(claimed.is_some());
                    behind = rows.into();
                }
            }
            if let Place::Run { row, .. } | Place::Hole { record: Some((_, row)), .. } = place {
                let claimed = behind.pop_front();
                assert!(claimed.is_none_or(|claimed| claimed == row), "seed {seed}: {row:?}");
            }
            match place {
                Place::Soon => {
                    stuck += 1;
                    assert!(stuck < 3, "seed {seed}: nothing is under way after a recovery");
                    return;
                }
                Place::Hole { until_seq, .. } => {
                    for missing in seq..until_seq {
                        let chunk = &model.chunks[missing as usize - 1];
                        assert!(chunk.is_none(), "seed {seed}: {id} chunk {missing}");
                    }
                    seq = until_seq;
                }
                Place::Expired { until_seq } => {
                    assert!(until_seq > seq);
                    seq = until_seq;
                }
                Place::Run { segment_number, row } => {
                    let lsn = Lsn::new(segment_number, row.offset_bytes);
                    let mut bytes = vec![0; row.bytes as usize];
                    self.disk.read(lsn, &mut bytes).expect("it is there");
                    let run =
                        Run::decode(setup(seed).journal, lsn, &bytes).expect("the disk is sound");
                    assert_eq!(run.header.execution, name.number);
                    starts.push(row.bytes_before);
                    self.journal.note_read(name, row.first_seq, row.bytes_before);
                    for chunk in run.chunks() {
                        let chunk = chunk.expect("the disk is sound");
                        let at = chunk.entry.seq as usize - 1;
                        let (kind, payload) = model.chunks[at].as_ref().expect("it was kept");
                        assert!(chunk.payload == payload, "seed {seed}: {id} chunk {at}");
                        assert_eq!(chunk.entry.kind, *kind);
                        self.counts.reads += 1;
                    }
                    seq = run.header.first_seq + u64::from(run.header.count);
                }
                Place::Corrupt { .. } | Place::Search(_) => {
                    let is_missing = model.chunks[seq as usize - 1].is_none();
                    panic!("seed {seed}: {id} chunk {seq} is at {place:?}; missing: {is_missing}")
                }
            }
        }
        self.seek_all(name, &starts);
    }

    /// Looks for the first bytes of runs that were read: a landmark is near each of them.
    fn seek_all(&mut self, name: KeptId, starts: &[u64]) {
        let seed = self.seed;
        for &start in starts {
            let (_, near) = self.journal.seek(name, start).expect("it was just read");
            let is_near = near <= start && start - near < JOURNAL_LANDMARK_BYTES;
            assert!(is_near, "seed {seed}: {name:?} byte {start}: {near}");
            self.counts.sought += 1;
        }
    }
}

fn run(seed: u64) -> Counts {
    let mut world = World::new(seed);
    let may_fail = world.random.chance(1, 4);
    let is_slow = world.random.chance(1, 3);
    // The disk stands still at first, for longer than a segment and all buffers last.
    let held_steps = if world.random.chance(1, 8) { 250 } else { 0 };
    for step in 0..600 {
        let is_held = step < held_steps;
        match world.random.below(100) {
            0..4 => world.open(),
            4..50 if is_held => (0..3).for_each(|_| world.append()),
            4..50 => world.append(),
            50..53 => world.end(),
            53 => world.delete(),
            54..56 if !is_slow => world.pass_time(3_000_000),
            56 => world.pass_time(1_100_000_000),
            57..95 if !is_held => {
                for _ in 0..world.random.below(if is_slow { 2 } else { 8 }) {
                    world.complete(may_fail);
                    world.turn();
                }
            }
            95 if world.random.chance(1, 2) => {
                let is_power = world.random.chance(1, 2);
                world.crash(is_power);
            }
            _ => world.pass_time(10_000),
        }
        world.turn();
        if world.journal.fault().is_some() {
            world.crash(true);
        }
    }
    world.crash(true);
    let token = WishToken::Sync;
    assert_eq!(Wish::Sync { segment_number: 1 }.token(), token);
    world.counts
}

#[test]
fn nothing_that_was_acknowledged_is_lost_and_nothing_else_is_given() {
    let first = std::env::var("SIM_FIRST_SEED").ok().and_then(|text| text.parse().ok());
    let seeds = std::env::var("SIM_SEEDS").ok().and_then(|text| text.parse().ok());
    let mut sum = Counts::default();
    for seed in first.unwrap_or(1)..first.unwrap_or(1) + seeds.unwrap_or(70u64) {
        let counts = run(seed);
        sum.chunks += counts.chunks;
        sum.missed += counts.missed;
        sum.crashes += counts.crashes;
        sum.power_cuts += counts.power_cuts;
        sum.reads += counts.reads;
        sum.searches += counts.searches;
        sum.sought += counts.sought;
        sum.claimed += counts.claimed;
        sum.faults += counts.faults;
        sum.expired += counts.expired;
        sum.torn_bytes += counts.torn_bytes;
        sum.walked += counts.walked;
    }
    println!("{sum:?}");
    assert!(
        sum.missed > 0 && sum.claimed > 0 && sum.sought > 0 && sum.torn_bytes > 0 && sum.faults > 0
    );
    assert!(sum.expired > 0 && sum.power_cuts > 0 && sum.reads > sum.chunks / 10);
}
