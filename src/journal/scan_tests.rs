//! Damage, exhaustively: every flipped bit, every truncation, every subset of un-synced sectors.

use std::collections::BTreeMap;

use super::block::Run;
use super::format::{
    BLOCK_HEADER_BYTES, CHUNK_ENTRY_BYTES, ChunkEntry, Lsn, RUN_HEADER_BYTES, RunHeader, RunKind,
    SumKey, chunk_bytes, encode_chunk, encode_run, kinds_of,
};
use super::locate::Found;
use super::model_tests::{Disk, SECTOR};
use super::recovery::{Contents, Files, Recovered, recover};
use super::{Append, Journal, KeptId, Moment, Place, Setup, Wish};
use crate::base::{Instant, Random};
use crate::limits::{JOURNAL_PAGE_BYTES, JOURNAL_SEGMENT_BYTES_MIN, JOURNAL_UNSYNCED_BYTES_MAX};
use crate::stream::{Durability, Kind, KindTotals};

const SETUP: Setup = Setup {
    journal: 0xABCD << 64 | 0x1234_5678,
    shard: 0,
    segment_bytes: JOURNAL_SEGMENT_BYTES_MIN,
    bytes_max: 1 << 30,
    age_us_max: u64::MAX / 2,
    unsynced_bytes_max: JOURNAL_UNSYNCED_BYTES_MAX,
};
const JOURNAL_BYTES: usize = 64 << 10;

/// The chunks of each execution.
type Truth = BTreeMap<u128, Vec<Vec<u8>>>;

struct Small {
    disk: Disk,
    journal: Journal,
    truth: Truth,
    names: Vec<KeptId>,
    moment: Moment,
    random: Random,
}

impl Small {
    fn new(durability: Durability) -> Small {
        let mut disk = Disk::default();
        let moment = Moment { now: Instant::from_nanos(1), wall_us: 7 };
        let Recovered { mut journal, .. } = recover(&mut disk, &SETUP, moment).unwrap();
        let open = |id: u128| journal.open(id, durability, b"details", moment).unwrap();
        let names: Vec<KeptId> = (1..=4).map(open).collect();
        let truth = (1..=4).map(|id| (id, Vec::new())).collect();
        Small { disk, journal, truth, names, moment, random: Random::new(11) }
    }

    fn append(&mut self, length: usize) {
        let at = self.random.below(4) as usize;
        let mut payload = vec![0; length];
        self.random.fill(&mut payload);
        self.append_to(at, payload);
    }

    fn append_to(&mut self, at: usize, payload: Vec<u8>) {
        let chunks = self.truth.get_mut(&(at as u128 + 1)).unwrap();
        let entry = ChunkEntry {
            seq: chunks.len() as u64 + 1,
            mono_ns: 5,
            length: payload.len() as u32,
            kind: Kind::ALL[chunks.len() / 10 % 3],
            key: 0,
            flags: 0,
        };
        chunks.push(payload);
        let (name, payload) = (self.names[at], chunks.last().unwrap());
        assert_eq!(self.journal.append(name, &entry, payload, self.moment), Append::Kept);
    }

    /// Carries out all wishes at once. A sync is left out if `syncs` is false.
    fn drive(&mut self, syncs: bool) {
        self.journal.turn(self.moment);
        while let Some(wish) = self.journal.poll_wish(self.moment) {
            let token = wish.token();
            match wish {
                Wish::Write { lsn, buffer, bytes, sync, .. } => {
                    self.disk.write(lsn, &buffer[..bytes as usize]).unwrap();
                    if !syncs {
                        return; // It stays under way.
                    }
                    if sync {
                        self.disk.sync(lsn.segment_number()).unwrap();
                    }
                    self.journal.on_done(token, Ok(()), Some(buffer), sync, self.moment);
                }
                Wish::Sync { segment_number } => {
                    assert!(syncs);
                    self.disk.sync(segment_number).unwrap();
                    self.journal.on_done(token, Ok(()), None, true, self.moment);
                }
                Wish::Prepare { header } => {
                    self.disk.create(&header, None).unwrap();
                    self.journal.on_done(token, Ok(()), None, true, self.moment);
                }
                Wish::Remove { .. } => unreachable!("there is room"),
            }
            self.journal.turn(self.moment);
        }
    }

    fn wait(&mut self, nanos: u64) {
        self.moment.now = Instant::from_nanos(self.moment.now.nanos() + nanos);
        self.drive(true);
    }

    /// A journal of 64 KiB, all of it on the disk, and a mark behind it.
    fn filled() -> Small {
        let mut small = Small::new(Durability::Synced);
        let is_short = |small: &Small| {
            let used = small.journal.commit.next_lsn().offset_bytes() as usize;
            used < JOURNAL_BYTES - 4 * JOURNAL_PAGE_BYTES as usize
        };
        while is_short(&small) {
            for _ in 0..20 + small.random.below(8) {
                let length = 10 + small.random.below(500) as usize;
                small.append(length);
            }
            small.drive(true);
        }
        small.wait(20_000_000);
        let used = small.journal.commit.next_lsn().offset_bytes() as usize;
        assert!(used <= JOURNAL_BYTES && used > JOURNAL_BYTES / 2, "{used}");
        assert!(small.journal.is_all_synced());
        small
    }
}

/// Reads the runs of all segments that were walked. Returns the number of chunks; each is as it
/// was appended, and none comes twice.
fn check_walked(disk: &mut Disk, truth: &Truth) -> usize {
    let contents = Contents::read(disk, &SETUP).unwrap();
    let mut seen: BTreeMap<(u32, u64), ()> = BTreeMap::new();
    for row in contents.walked_rows() {
        let lsn = Lsn::new(row.0, row.1.offset_bytes);
        let mut bytes = vec![0; row.1.bytes as usize];
        disk.read(lsn, &mut bytes).unwrap();
        let Ok(run) = Run::decode(SETUP.journal, lsn, &bytes) else { continue };
        for chunk in run.chunks().flatten() {
            let chunks = &truth[&u128::from(run.header.execution)];
            assert_eq!(chunk.payload, chunks[chunk.entry.seq as usize - 1]);
            let before = seen.insert((run.header.execution, chunk.entry.seq), ());
            assert!(before.is_none());
        }
    }
    seen.len()
}

/// Recovers the journal and reads each execution from its first to its last chunk. Returns the
/// numbers of chunks that were given and that are reported as corrupt.
fn check_whole(mut disk: Disk, truth: &Truth, moment: Moment) -> (usize, usize) {
    let Recovered { mut journal, .. } = recover(&mut disk, &SETUP, moment).unwrap();
    let (mut given, mut corrupt) = (0, 0);
    for (id, chunks) in truth {
        let Some(name) = journal.find(*id) else { continue };
        let (next_seq, _) = journal.get(name).unwrap().published();
        assert!(next_seq <= chunks.len() as u64 + 1);
        let mut seq = 1;
        while seq < next_seq {
            let until_seq = match found(&mut journal, &mut disk, name, seq) {
                Place::Run { segment_number, row } => {
                    let lsn = Lsn::new(segment_number, row.offset_bytes);
                    let mut bytes = vec![0; row.bytes as usize];
                    disk.read(lsn, &mut bytes).unwrap();
                    let run =
                        Run::decode(SETUP.journal, lsn, &bytes).expect("its head was checked");
                    for chunk in run.chunks() {
                        match chunk {
                            Ok(chunk) => {
                                assert_eq!(chunk.payload, chunks[chunk.entry.seq as usize - 1]);
                                given += 1;
                            }
                            Err(bad) => corrupt += (bad.until_seq - bad.from_seq) as usize,
                        }
                    }
                    row.until_seq()
                }
                Place::Corrupt { until_seq } => {
                    corrupt += (until_seq - seq) as usize;
                    until_seq
                }
                other => panic!("{id} chunk {seq} is at {other:?}"),
            };
            assert!(until_seq > seq);
            seq = until_seq;
        }
    }
    (given, corrupt)
}

fn found(journal: &mut Journal, disk: &mut Disk, name: KeptId, seq: u64) -> Place {
    let mut place = journal.locate(name, seq).unwrap();
    while let Place::Search(mut search) = place {
        let mut page = vec![0; JOURNAL_PAGE_BYTES as usize];
        disk.read(search.page(), &mut page).unwrap();
        place = match search.on_page(&page) {
            Found::Place(place) => place,
            Found::Again => Place::Search(search),
        };
    }
    place
}

fn chunk_count(truth: &Truth) -> usize {
    truth.values().map(Vec::len).sum()
}

fn copy(disk: &Disk) -> Disk {
    let mut copied = Disk::default();
    for (number, file) in &disk.files {
        copied.files.insert(*number, file.copy());
    }
    copied
}

#[test]
fn a_flipped_bit_is_never_given_and_costs_a_run_or_a_description() {
    let Small { mut disk, truth, moment, .. } = Small::filled();
    let all = chunk_count(&truth);
    assert_eq!(check_walked(&mut disk, &truth), all);
    assert_eq!(check_whole(copy(&disk), &truth, moment), (all, 0));
    // A run, or all of an execution whose description is damaged.
    let lost_max = truth.values().map(Vec::len).max().unwrap();
    assert!(lost_max < all / 2);
    let (mut walks, mut recoveries, mut lost) = (0, 0, 0);
    for bit in 0..8 * JOURNAL_BYTES {
        let flip = |disk: &mut Disk| {
            disk.files.get_mut(&1).unwrap().cache[bit / 8] ^= 1 << (bit % 8);
        };
        flip(&mut disk);
        let given = check_walked(&mut disk, &truth);
        assert!(given + lost_max >= all, "bit {bit}: {given} of {all}");
        walks += 1;
        lost += usize::from(given < all);
        if bit % 997 == 0 {
            let (given, corrupt) = check_whole(copy(&disk), &truth, moment);
            assert!(given + lost_max >= all, "bit {bit}: {given} of {all}");
            // An execution whose description is damaged is not found.
            let is_found = given + corrupt == all || corrupt == 0;
            assert!(is_found, "bit {bit}: {given} and {corrupt} of {all}");
            recoveries += 1;
        }
        flip(&mut disk);
    }
    println!("{walks} flipped bits, {lost} of them in chunks or heads; {recoveries} recoveries");
    assert!(lost > walks / 2);
}

#[test]
fn a_truncated_segment_gives_what_it_still_has() {
    let Small { disk, truth, .. } = Small::filled();
    let (all, whole) = (chunk_count(&truth), &disk.files[&1].cache);
    let mut shorter = copy(&disk);
    let mut before = all;
    // Behind the last page nothing but zeros is lost.
    for length in (0..JOURNAL_BYTES).rev() {
        shorter.files.get_mut(&1).unwrap().cache.truncate(length);
        let given = check_walked(&mut shorter, &truth);
        assert!(given <= before, "{length} bytes: {given} after {before}");
        before = given;
    }
    assert_eq!(before, 0);
    assert_eq!(whole.len(), JOURNAL_SEGMENT_BYTES_MIN as usize);
    println!("{JOURNAL_BYTES} truncations of {all} chunks");
}

#[test]
fn every_subset_of_sectors_that_were_not_synced_keeps_what_was_acknowledged() {
    const SECTORS: usize = 12;
    let mut small = Small::filled();
    small.disk.sync(1).unwrap(); // The mark.
    let acknowledged = chunk_count(&small.truth);
    let from = small.journal.commit.next_lsn().offset_bytes() as usize / SECTOR;
    for _ in 0..2 {
        for _ in 0..8 {
            small.append(320); // Six sectors of a page.
        }
        small.journal.flush(small.moment);
        small.drive(false);
    }
    let Small { disk, truth, moment, .. } = small;
    let mut dirty = disk.files[&1].dirty.clone();
    dirty.sort_unstable();
    dirty.dedup();
    dirty.retain(|sector| {
        let bytes = &disk.files[&1].cache[sector * SECTOR..(sector + 1) * SECTOR];
        *sector >= from && bytes.iter().any(|byte| *byte != 0)
    });
    assert!(dirty.len() >= SECTORS, "{dirty:?}");
    dirty.truncate(SECTORS);
    let (mut kept_all, mut kept_none) = (0, 0);
    for subset in 0..1 << SECTORS {
        let mut cut = Disk::default();
        let mut file = disk.files[&1].copy();
        for (at, sector) in dirty.iter().enumerate() {
            if subset >> at & 1 == 1 {
                let range = sector * SECTOR..(sector + 1) * SECTOR;
                file.durable[range.clone()].copy_from_slice(&file.cache[range]);
            }
        }
        file.cache = file.durable.clone();
        cut.files.insert(1, file);
        let given = check_walked(&mut cut, &truth);
        assert!(given >= acknowledged, "subset {subset:#x}: {given} of {acknowledged}");
        kept_all += usize::from(given > acknowledged);
        kept_none += usize::from(given == acknowledged);
        if subset % 64 == 0 {
            let (given, corrupt) = check_whole(cut, &truth, moment);
            assert!(given >= acknowledged && corrupt == 0, "subset {subset:#x}: {corrupt}");
        }
    }
    println!("{} subsets: {kept_all} with more than was acknowledged", kept_all + kept_none);
    assert!(kept_all > 0 && kept_none > kept_all);
}

/// A chunk of eight bytes, for a payload.
fn forged_chunk(journal: u128, seq: u64) -> Vec<u8> {
    let (kind, key, flags) = (Kind::ALL[0], 0, 0);
    let entry = ChunkEntry { seq, mono_ns: 5, length: 8, kind, key, flags };
    let mut bytes = vec![0; chunk_bytes(8) as usize];
    encode_chunk(SumKey::new(journal), &entry, b"forged!!", &mut bytes);
    bytes
}

/// A run of execution 1 with chunk 2, for a payload that will stand at `lsn`.
fn forged_run(journal: u128, lsn: Lsn) -> Vec<u8> {
    let chunk = forged_chunk(journal, 2);
    let mut before = KindTotals::default();
    before.count(Kind::ALL[0], 4);
    let header = RunHeader {
        kind: RunKind::Chunks,
        bytes: RUN_HEADER_BYTES + chunk.len() as u32,
        execution: 1,
        count: 1,
        first_seq: 2,
        bytes_before: 4,
        kinds_before: kinds_of(&before),
    };
    let mut run = vec![0; RUN_HEADER_BYTES as usize];
    run.extend(chunk);
    encode_run(SumKey::new(journal), &header, lsn, &before, &mut run);
    run
}

/// A journal with two blocks, both on the disk. `payload` makes chunk 2 of execution 1, the first
/// one of the second block, from its place. Returns the place of the second block.
fn with_payload(payload: impl Fn(Lsn) -> Vec<u8>) -> (Small, Lsn) {
    let mut small = Small::new(Durability::Synced);
    small.append_to(0, b"true".to_vec());
    small.drive(true);
    let block = small.journal.commit.next_lsn();
    let at = block.after(BLOCK_HEADER_BYTES + RUN_HEADER_BYTES + CHUNK_ENTRY_BYTES);
    small.append_to(0, payload(at));
    small.append_to(0, b"the third".to_vec());
    small.append_to(0, b"the fourth".to_vec());
    small.drive(true);
    small.wait(20_000_000);
    assert!(small.journal.is_all_synced());
    (small, block)
}

fn flip(disk: &mut Disk, lsn: Lsn, bit: u32) {
    let at = lsn.offset_bytes() as usize + bit as usize / 8;
    disk.files.get_mut(&1).unwrap().cache[at] ^= 1 << (bit % 8);
}

#[test]
fn a_run_inside_of_a_payload_counts_only_if_the_journal_has_written_it() {
    // The forger knows everything but the random number.
    let is_taken = |journal: u128, damaged: fn(Lsn) -> Lsn| {
        let (mut small, block) = with_payload(|at| forged_run(journal, at));
        flip(&mut small.disk, damaged(block), 70);
        let forged_at = block.after(BLOCK_HEADER_BYTES + RUN_HEADER_BYTES + CHUNK_ENTRY_BYTES);
        let contents = Contents::read(&mut small.disk, &SETUP).unwrap();
        let rows = contents.walked_rows();
        let is_taken = rows.iter().any(|(_, row)| row.offset_bytes == forged_at.offset_bytes());
        if !is_taken {
            check_whole(copy(&small.disk), &small.truth, small.moment);
        }
        is_taken
    };
    let run_header = |block: Lsn| block.after(BLOCK_HEADER_BYTES);
    assert!(is_taken(SETUP.journal, run_header)); // It is found, so it has to be refused.
    let mut refused = 0;
    for journal in [0, 1, u128::MAX, SETUP.journal ^ 1, SETUP.journal as u64 as u128] {
        assert!(!is_taken(journal, run_header), "{journal:x}");
        assert!(!is_taken(journal, |block| block), "{journal:x}");
        refused += 2;
    }
    println!("{refused} forged runs were refused");
}

#[test]
fn a_chunk_inside_of_a_payload_counts_only_if_the_journal_has_written_it() {
    let given = |journal: u128| {
        // A flipped bit of its length makes it end where the forged chunk begins.
        let payload = |_| [vec![0; 8], forged_chunk(journal, 3), vec![0; 1024 - 32]].concat();
        let (mut small, block) = with_payload(payload);
        let run = block.after(BLOCK_HEADER_BYTES);
        let length = run.after(RUN_HEADER_BYTES + 4);
        flip(&mut small.disk, length, 10);
        let mut bytes = vec![0; JOURNAL_PAGE_BYTES as usize];
        small.disk.read(run, &mut bytes).unwrap();
        let run = Run::decode(SETUP.journal, run, &bytes).expect("its head is sound");
        run.chunks().flatten().map(|chunk| chunk.payload.to_vec()).collect::<Vec<_>>()
    };
    assert!(given(SETUP.journal).contains(&b"forged!!".to_vec()));
    for journal in [0, 1, u128::MAX, SETUP.journal ^ 1] {
        assert!(given(journal).is_empty(), "{journal:x}");
    }
}

#[test]
fn a_tail_that_was_dropped_stays_dropped_if_the_index_is_lost() {
    let mut small = Small::new(Durability::Synced);
    small.append_to(0, b"kept".to_vec());
    small.drive(true);
    let first_end = small.journal.commit.next_lsn();
    // Two blocks that no sync covers. The power cut loses the first and keeps the second.
    for payload in [vec![b'l'; 3 * JOURNAL_PAGE_BYTES as usize], b"left".to_vec()] {
        small.append_to(0, payload);
        small.journal.flush(small.moment);
        small.drive(false);
    }
    let end = small.journal.commit.next_lsn().offset_bytes();
    let left_at = (end - JOURNAL_PAGE_BYTES) as usize;
    let Small { mut disk, moment, .. } = small;
    let at = first_end.offset_bytes() as usize;
    let cache = |disk: &mut Disk| std::mem::take(&mut disk.files.get_mut(&1).unwrap().cache);
    let mut bytes = cache(&mut disk);
    bytes[at..left_at].fill(0);
    disk.files.get_mut(&1).unwrap().cache = bytes.clone();
    // The first recovery drops both.
    let Recovered { journal, findings, .. } = recover(&mut disk, &SETUP, moment).unwrap();
    assert_eq!(findings.torn_bytes, (end as usize - at) as u64);
    assert_eq!(journal.get(journal.find(1).unwrap()).unwrap().published().0, 2);
    // The disk loses the index that it has written. The next one walks again.
    assert!(cache(&mut disk) != bytes);
    disk.files.get_mut(&1).unwrap().cache = bytes;
    let Recovered { journal, findings, .. } = recover(&mut disk, &SETUP, moment).unwrap();
    assert_eq!((findings.walked, findings.corrupt), (2, Vec::new()));
    assert_eq!(journal.get(journal.find(1).unwrap()).unwrap().published().0, 2);
}
