//! A look at journals on a disk in memory: sound, cut, damaged, and written meanwhile.

use std::collections::BTreeMap;
use std::io;

use super::{Fault, Listing, Look, Loss, Lost, Output, ReadFiles, Sink, Summary, Sums, verify};
use crate::base::{Instant, Random};
use crate::journal::format::{ChunkEntry, KeptChunk, Lsn};
use crate::journal::model_tests::Disk;
use crate::journal::recovery::{Contents, Files, Recovered, recover};
use crate::journal::{Append, Journal, KeptId, Moment, Setup, Wish};
use crate::limits::{JOURNAL_PAGE_BYTES, JOURNAL_SEGMENT_BYTES_MIN, JOURNAL_UNSYNCED_BYTES_MAX};
use crate::stream::{Durability, Kind, Kinds};

const SETUP: Setup = Setup {
    journal: 0xFEED << 64 | 0x8765_4321,
    shard: 2,
    segment_bytes: JOURNAL_SEGMENT_BYTES_MIN,
    bytes_max: 1 << 30,
    age_us_max: u64::MAX / 2,
    unsynced_bytes_max: JOURNAL_UNSYNCED_BYTES_MAX,
};

/// The files of a journal that nobody writes.
#[derive(Clone, Default)]
struct Image(BTreeMap<u64, Vec<u8>>);

impl ReadFiles for Image {
    fn segments(&mut self) -> io::Result<Vec<(u64, u64)>> {
        Ok(self.0.iter().map(|(number, bytes)| (*number, bytes.len() as u64)).collect())
    }

    fn read(&mut self, lsn: Lsn, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.0.get(&lsn.segment_number()).ok_or(io::ErrorKind::NotFound)?;
        let rest = file.get(lsn.offset_bytes() as usize..).unwrap_or(&[]);
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

/// The chunks of an execution, and its name while it runs.
struct Truth {
    chunks: Vec<Option<(Kind, Vec<u8>)>>,
    running: Option<KeptId>,
    is_deleted: bool,
}

/// A journal and its writer.
struct Writer {
    disk: Disk,
    journal: Journal,
    truth: BTreeMap<u128, Truth>,
    moment: Moment,
    random: Random,
    /// A write of which only a part has arrived, and the number of bytes of that.
    half: Option<(Wish, usize)>,
}

impl Writer {
    fn new(seed: u64, setup: &Setup) -> Writer {
        let mut disk = Disk::default();
        let moment = Moment { now: Instant::from_nanos(1), wall_us: 1_000 };
        let Recovered { journal, .. } = recover(&mut disk, setup, moment).unwrap();
        let random = Random::new(seed);
        Writer { disk, journal, truth: BTreeMap::new(), moment, random, half: None }
    }

    fn open(&mut self, durability: Durability) {
        let id = self.truth.len() as u128 + 1;
        let opened = self.journal.open(id, durability, b"details", self.moment);
        let Ok(name) = opened else { return };
        let running = Some(name);
        self.truth.insert(id, Truth { chunks: Vec::new(), running, is_deleted: false });
    }

    fn append(&mut self, length: u64) {
        let at = self.random.below(self.truth.len() as u64) as u128 + 1;
        let truth = self.truth.get_mut(&at).unwrap();
        let Some(name) = truth.running else { return };
        let seq = truth.chunks.len() as u64 + 1;
        let mut payload = vec![0; length as usize];
        Random::new(at as u64 ^ seq << 20).fill(&mut payload);
        let kind = [Kind::Output, Kind::Stdout, Kind::Structured][seq as usize / 5 % 3];
        let length = length as u32;
        let entry = ChunkEntry { seq, mono_ns: 5, length, kind, key: 0, flags: 0 };
        let appended = self.journal.append(name, &entry, &payload, self.moment);
        truth.chunks.push((appended == Append::Kept).then_some((kind, payload)));
    }

    fn end(&mut self, id: u128) {
        let truth = self.truth.get_mut(&id).unwrap();
        let Some(name) = truth.running else { return };
        if self.journal.end(name, b"end", self.moment) {
            truth.running = None;
        }
    }

    fn delete(&mut self, id: u128) {
        let name = self.journal.find(id).unwrap();
        assert!(self.journal.delete(name, self.moment));
        self.truth.get_mut(&id).unwrap().is_deleted = true;
    }

    /// Carries out the next wish. Returns false if there is none.
    fn step(&mut self, may_halve: bool) -> bool {
        if let Some((wish, done)) = self.half.take() {
            self.finish(wish, done);
            return true;
        }
        self.journal.turn(self.moment);
        let Some(wish) = self.journal.poll_wish(self.moment) else { return false };
        if let Wish::Write { lsn, buffer, bytes, .. } = &wish
            && may_halve
            && self.random.chance(1, 2)
        {
            let part = self.random.below(u64::from(*bytes)) as usize / 512 * 512;
            self.disk.write(*lsn, &buffer[..part]).unwrap();
            self.half = Some((wish, part));
            return true;
        }
        self.finish(wish, 0);
        true
    }

    fn finish(&mut self, wish: Wish, done: usize) {
        let token = wish.token();
        let (mut back, mut synced) = (None, true);
        match wish {
            Wish::Write { lsn, buffer, bytes, sync, .. } => {
                self.disk.write(lsn.after(done as u32), &buffer[done..bytes as usize]).unwrap();
                (back, synced) = (Some(buffer), sync);
            }
            Wish::Sync { .. } => {}
            Wish::Prepare { header } => self.disk.create(&header, None).unwrap(),
            Wish::Remove { segment_number } => self.disk.remove(segment_number).unwrap(),
        }
        self.journal.on_done(token, Ok(()), back, synced, self.moment);
    }

    fn drive(&mut self) {
        while self.step(false) {}
        let nanos = self.moment.now.nanos() + 20_000_000; // A mark is due.
        self.moment = Moment { now: Instant::from_nanos(nanos), wall_us: nanos / 1_000 };
        while self.step(false) {}
    }

    fn image(&self) -> Image {
        let files = self.disk.files.iter();
        Image(files.map(|(number, file)| (*number, file.cache.clone())).collect())
    }
}

/// A journal of several segments with everything in it.
fn filled(seed: u64) -> Writer {
    let mut writer = Writer::new(seed, &SETUP);
    for durability in [Durability::Synced, Durability::Written, Durability::Synced] {
        writer.open(durability);
    }
    for round in 0..12 {
        for _ in 0..60 {
            let length = writer.random.below(900);
            writer.append(length);
        }
        if round == 3 {
            // The disk stands still, and there is no room for all of it.
            (0..400).for_each(|_| writer.append(1_500));
        }
        writer.drive();
        match round {
            5 => writer.open(Durability::Synced),
            8 => writer.end(1),
            9 => {
                writer.end(4);
                writer.open(Durability::Written);
            }
            10 => writer.delete(4),
            _ => {}
        }
    }
    writer.drive();
    writer
}

/// The chunks that were given, and the losses.
#[derive(Default)]
struct Given {
    chunks: Vec<(u64, Kind, Vec<u8>)>,
    losses: Vec<Loss>,
}

impl Sink for Given {
    fn chunk(&mut self, chunk: &KeptChunk<'_>) {
        self.chunks.push((chunk.entry.seq, chunk.entry.kind, chunk.payload.to_vec()));
    }

    fn loss(&mut self, loss: &Loss) {
        self.losses.push(loss.clone());
    }

    fn is_closed(&self) -> bool {
        false
    }
}

fn output<F: ReadFiles>(look: &mut Look<F>, number: u32, kinds: Kinds) -> (Given, Summary) {
    let mut given = Given::default();
    let summary = look.output(Output { number, kinds }, &mut given).unwrap();
    (given, summary)
}

fn checked<F: ReadFiles>(look: &mut Look<F>) -> (Sums, Vec<Fault>) {
    let mut faults = Vec::new();
    let sums = verify(look, &mut |fault| faults.push(*fault)).unwrap();
    assert_eq!(sums.faults, faults.len() as u64);
    (sums, faults)
}

/// Compares what is given of an execution with the truth. Each chunk is given or lost, once.
fn compare(truth: &Truth, given: &Given, kinds: Kinds, what: &str) -> u64 {
    let mut known: BTreeMap<u64, bool> = BTreeMap::new();
    for (seq, kind, payload) in &given.chunks {
        let kept = truth.chunks[*seq as usize - 1].as_ref();
        assert!(kept.is_some_and(|kept| *kept == (*kind, payload.clone())), "{what}: {seq}");
        assert!(kinds.contains(*kind));
        assert!(known.insert(*seq, true).is_none(), "{what}: {seq} twice");
        assert_eq!(known.last_key_value().map(|(last, _)| last), Some(seq), "{what}: order");
    }
    for loss in &given.losses {
        let mut count = 0;
        for (from, until) in &loss.stretches {
            for seq in *from..*until {
                let is_given = known.insert(seq, false);
                assert!(is_given.is_none(), "{what}: {seq} is lost, and given");
                let kept = truth.chunks[seq as usize - 1].as_ref();
                // The kind of a chunk that was not kept is not in this model.
                count += u64::from(kept.is_none_or(|(kind, _)| kinds.contains(*kind)));
                assert_eq!(loss.reason == Lost::Unwritten, kept.is_none(), "{what}: {seq}");
            }
        }
        if loss.is_exact && loss.reason == Lost::Corrupt {
            assert_eq!(loss.chunks, count, "{what}: {loss:?}");
        }
    }
    known.last_key_value().map_or(0, |(last, _)| *last)
}

fn list<F: ReadFiles>(look: &mut Look<F>) -> Listing {
    look.list().unwrap()
}

#[test]
fn a_sound_journal_is_listed_given_and_verified() {
    let writer = filled(1);
    let mut look = Look::open(writer.image()).unwrap();
    assert!(look.size().0 > 3);
    let (sums, faults) = checked(&mut look);
    assert_eq!(faults, []);
    assert_eq!(sums.torn_bytes, 0);
    let listing = list(&mut look);
    let kept = writer.truth.iter().filter(|(_, truth)| !truth.is_deleted);
    assert_eq!(listing.executions.len(), kept.clone().count());
    let (mut chunk_count, mut unwritten) = (0, 0);
    for ((id, truth), listed) in kept.zip(&listing.executions) {
        assert_eq!(*id, listed.id);
        assert_eq!(listed.chunks, truth.chunks.len() as u64);
        let missing = truth.chunks.iter().filter(|chunk| chunk.is_none()).count() as u64;
        assert_eq!((listed.missing.unwritten, listed.missing.all()), (missing, missing));
        assert_eq!(listed.ended_us.is_some(), truth.running.is_none());
        let details = look.end_details(listed, |details| details.to_vec()).unwrap();
        assert_eq!(details, truth.running.is_none().then(|| b"end".to_vec()));
        assert!(listed.terms.is_some() && listed.opened_us.is_some());
        for kinds in [Kinds::ALL, Kinds::RAW, Kinds::NONE.with(Kind::Stdout)] {
            let (given, summary) = output(&mut look, listed.number, kinds);
            assert_eq!(summary.has_ended, truth.running.is_none());
            assert!(!summary.is_end_unsure);
            let until = compare(truth, &given, kinds, "sound");
            assert!(!kinds.is_all() || until == truth.chunks.len() as u64);
            let wanted = truth.chunks.iter().flatten().filter(|(kind, _)| kinds.contains(*kind));
            assert_eq!(given.chunks.len(), wanted.count());
            assert!(given.losses.iter().all(|loss| loss.is_exact && loss.bytes.is_some()));
            if kinds.is_all() {
                let lost: u64 = given.losses.iter().map(|loss| loss.chunks).sum();
                assert_eq!(lost, missing);
                let bytes: u64 = given.losses.iter().filter_map(|loss| loss.bytes).sum();
                assert_eq!(bytes + summary.given.bytes, listed.bytes);
            }
        }
        (chunk_count, unwritten) = (chunk_count + listed.chunks - missing, unwritten + missing);
    }
    assert!(unwritten > 10, "no hole was made");
    assert!(sums.chunks >= chunk_count);
}

#[test]
fn a_cut_journal_is_judged_as_recovery_does() {
    let whole = filled(2).image();
    let (&last, file) = whole.0.iter().rfind(|(_, file)| file[4_096] != 0).unwrap();
    let used = file.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let mut random = Random::new(5);
    let writer = filled(2);
    for round in 0..60 {
        let at = random.below(used as u64) as usize;
        let mut image = whole.clone();
        let file = image.0.get_mut(&last).unwrap();
        match round % 2 {
            0 => file.truncate(at.max(JOURNAL_PAGE_BYTES as usize)),
            _ => file[at.max(JOURNAL_PAGE_BYTES as usize)..].fill(0),
        }
        let mut disk = Disk::default();
        for (number, bytes) in &image.0 {
            let header = super::SegmentHeader::decode(bytes).unwrap();
            disk.create(&header, None).unwrap();
            disk.write(Lsn::new(*number, 0), bytes).unwrap();
            disk.files.get_mut(number).unwrap().cache.truncate(bytes.len());
        }
        let contents = Contents::read(&mut disk, &SETUP).unwrap();
        let recovered: BTreeMap<u128, (u64, u64, bool)> = contents
            .executions()
            .map(|(_, kept)| (kept.id, (kept.next_seq - 1, kept.bytes, kept.ended.is_some())))
            .collect();
        let mut look = Look::open(image).unwrap();
        let listing = list(&mut look);
        let mut listed = BTreeMap::new();
        for each in &listing.executions {
            let bytes = recovered[&each.id].1;
            // Recovery does not count the bytes of a last run with damage in it.
            let has_rot = !contents.findings.corrupt.is_empty();
            assert!(each.bytes == bytes || has_rot && each.bytes > bytes, "cut at {at}");
            listed.insert(each.id, (each.chunks, bytes, each.ended_us.is_some()));
        }
        assert_eq!(listed, recovered, "cut at {at} of segment {last}");
        for each in &listing.executions {
            let (given, summary) = output(&mut look, each.number, Kinds::ALL);
            let until = compare(&writer.truth[&each.id], &given, Kinds::ALL, "cut");
            assert_eq!(until, each.chunks);
            let has_rot = !contents.findings.corrupt.is_empty();
            let is_torn = |loss: &Loss| has_rot || loss.reason == Lost::Unwritten;
            assert!(given.losses.iter().all(is_torn));
            assert!(has_rot || !summary.is_end_unsure);
            let is_whole = until == writer.truth[&each.id].chunks.len() as u64;
            assert!(!has_rot || is_whole || summary.is_end_unsure, "cut at {at}: {until}");
        }
        let (_, faults) = checked(&mut look);
        let is_cut_file = |fault: &Fault| matches!(fault.wrong, super::Wrong::FileLength { .. });
        assert_eq!(faults.iter().any(is_cut_file), round % 2 == 0, "cut at {at}: {faults:?}");
        let damage_count = faults.iter().filter(|fault| !is_cut_file(fault)).count();
        let has_rot = !contents.findings.corrupt.is_empty();
        assert_eq!(damage_count > 0, has_rot, "cut at {at}: {faults:?}");
    }
}

#[test]
fn every_flipped_bit_is_found_and_what_is_given_is_right() {
    let writer = filled(3);
    let whole = writer.image();
    let mut places: Vec<(u64, usize)> = Vec::new();
    for (number, file) in &whole.0 {
        let used = file.iter().enumerate().filter(|(_, byte)| **byte != 0);
        places.extend(used.map(|(at, _)| (*number, at)));
    }
    // Nothing vouches for the last block, which is a mark.
    let page = JOURNAL_PAGE_BYTES as usize;
    let is_block = |(_, at): &&(u64, usize)| *at >= page;
    let (last, end) = *places.iter().rfind(is_block).unwrap();
    places.retain(|(number, at)| *number != last || at / page < end / page);
    let rounds = std::env::var("LOOK_FLIPS").ok().and_then(|text| text.parse().ok());
    let (mut random, mut unsure, mut lossy) = (Random::new(9), 0, 0);
    for _ in 0..rounds.unwrap_or(600) {
        let (number, at) = places[random.below(places.len() as u64) as usize];
        let mut image = whole.clone();
        image.0.get_mut(&number).unwrap()[at] ^= 1 << random.below(8);
        let what = format!("segment {number}, byte {at}");
        let Ok(mut look) = Look::open(image) else { panic!("{what}") };
        let (_, faults) = checked(&mut look);
        assert!(faults.iter().any(|fault| fault.segment_number == number), "{what}: {faults:?}");
        assert!(faults.len() <= 2, "{what}: {faults:?}");
        let listing = list(&mut look);
        for each in &listing.executions {
            let truth = &writer.truth[&each.id];
            for kinds in [Kinds::ALL, Kinds::RAW] {
                let (given, summary) = output(&mut look, each.number, kinds);
                let until = compare(truth, &given, kinds, &what);
                let is_whole = until == truth.chunks.len() as u64;
                assert!(!kinds.is_all() || is_whole || summary.is_end_unsure, "{what} {until}");
                unsure += u64::from(summary.is_end_unsure);
                lossy += u64::from(given.losses.iter().any(|loss| loss.reason == Lost::Corrupt));
            }
        }
    }
    assert!(lossy > 50, "{lossy} losses, {unsure} unsure");
}

/// A journal whose writer goes on between two reads.
struct Live<'a> {
    writer: &'a mut Writer,
    reads: u64,
}

impl ReadFiles for Live<'_> {
    fn segments(&mut self) -> io::Result<Vec<(u64, u64)>> {
        self.writer.image().segments()
    }

    fn read(&mut self, lsn: Lsn, buffer: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        for _ in 0..self.writer.random.below(12) {
            let writer = &mut *self.writer;
            let length = writer.random.below(3_000);
            writer.append(length);
            if writer.random.chance(1, 60) {
                writer.open(Durability::Synced);
            }
            if writer.random.chance(1, 80) {
                let id = writer.random.below(writer.truth.len() as u64) as u128 + 1;
                writer.end(id);
            }
            writer.moment.now = Instant::from_nanos(writer.moment.now.nanos() + 3_000_000);
            for _ in 0..writer.random.below(6) {
                writer.step(true);
            }
        }
        self.writer.disk.read(lsn, buffer)
    }
}

#[test]
fn a_journal_that_is_written_meanwhile_has_no_fault() {
    for seed in 1..=8 {
        let setup = Setup { bytes_max: 12 * u64::from(SETUP.segment_bytes), ..SETUP };
        let mut writer = Writer::new(seed, &setup);
        writer.open(Durability::Synced);
        writer.open(Durability::Written);
        let (mut segments, mut chunks) = (0, 0);
        for _ in 0..12 {
            let mut look = Look::open(Live { writer: &mut writer, reads: 0 }).unwrap();
            let (sums, faults) = checked(&mut look);
            assert_eq!(faults, [], "seed {seed}");
            (segments, chunks) = (segments.max(sums.segments), chunks + sums.chunks);
            let mut look = Look::open(Live { writer: &mut writer, reads: 0 }).unwrap();
            let listing = list(&mut look);
            for each in listing.executions.iter().take(3) {
                let (given, summary) = output(&mut look, each.number, Kinds::ALL);
                assert!(!summary.is_end_unsure, "seed {seed}");
                let truth = &look.files.writer.truth[&each.id];
                let until = check_live(truth, &given, seed);
                assert!(until <= truth.chunks.len() as u64);
            }
        }
        assert!(segments > 5 && chunks > 1_000, "seed {seed}: {segments} {chunks}");
    }
}

/// All chunks are given or told to be missing. Old ones may have expired.
fn check_live(truth: &Truth, given: &Given, seed: u64) -> u64 {
    let is_told = |loss: &Loss| matches!(loss.reason, Lost::Expired | Lost::Unwritten);
    assert!(given.losses.iter().all(is_told), "seed {seed}: {:?}", given.losses);
    let mut seqs: Vec<u64> = given.chunks.iter().map(|(seq, ..)| *seq).collect();
    for loss in &given.losses {
        seqs.extend(loss.stretches.iter().flat_map(|(from, until)| *from..*until));
    }
    seqs.sort_unstable();
    assert!(seqs.iter().zip(1..).all(|(seq, at)| *seq == at), "seed {seed}");
    for (seq, kind, payload) in &given.chunks {
        let kept = truth.chunks[*seq as usize - 1].as_ref();
        assert!(kept.is_some_and(|kept| *kept == (*kind, payload.clone())), "seed {seed}: {seq}");
    }
    seqs.len() as u64
}
