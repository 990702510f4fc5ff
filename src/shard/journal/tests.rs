//! The journal on real files, over both backends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Completed, JournalFiles, PartRead, open_journal};
use crate::base::{PageBuffer, Random};
use crate::journal::block::Run;
use crate::journal::format::{ChunkEntry, Lsn};
use crate::journal::recovery::Recovered;
use crate::journal::{Append, Found, Journal, KeptId, Moment, Place, Setup};
use crate::limits::{
    JOURNAL_BLOCK_BYTES_MAX, JOURNAL_PAGE_BYTES, JOURNAL_SEGMENT_BYTES_MIN,
    JOURNAL_UNSYNCED_BYTES_MAX,
};
use crate::reactor::{AnyReactor, Choice, DiskSetup, Reactor};
use crate::stream::{Durability, Kind};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("streamdoor-journal-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A remaining folder does no harm.
    }
}

/// A journal and its reactor.
struct Kept {
    reactor: AnyReactor,
    journal: Journal,
    files: JournalFiles,
    read: Option<PageBuffer>,
}

fn setup() -> Setup {
    Setup {
        journal: 77 << 64 | 5,
        shard: 3,
        segment_bytes: 8 * JOURNAL_SEGMENT_BYTES_MIN,
        bytes_max: 1 << 30,
        age_us_max: u64::MAX / 2,
        unsynced_bytes_max: JOURNAL_UNSYNCED_BYTES_MAX,
    }
}

impl Kept {
    fn open(choice: Choice, folder: &Path, is_direct: bool) -> (Kept, Vec<KeptId>) {
        let (mut reactor, _) = crate::reactor::open(choice).unwrap();
        let disk = DiskSetup { is_direct, ..DiskSetup::at(folder) };
        let (recovered, files) = open_journal(&mut reactor, disk, &setup()).unwrap();
        let Recovered { journal, unfinished, findings } = recovered;
        assert!(findings.corrupt.is_empty());
        (Kept { reactor, journal, files, read: None }, unfinished)
    }

    fn moment(&mut self) -> Moment {
        Moment { now: self.reactor.now(), wall_us: self.reactor.wall_us() }
    }

    fn turn(&mut self) {
        let moment = self.moment();
        self.reactor.poll();
        while let Some(done) = self.reactor.next_disk_event() {
            self.files.hurry(self.journal.is_next_urgent());
            for completed in self.files.on_done(done, &mut self.reactor) {
                match completed {
                    Completed::Wish { token, result, buffer, synced } => {
                        result.unwrap();
                        self.journal.on_done(token, result, buffer, synced, moment);
                    }
                    Completed::Read { result, buffer, .. } => {
                        result.unwrap();
                        self.read = buffer;
                    }
                }
            }
        }
        self.journal.turn(moment);
        while let Some(wish) = self.journal.poll_wish(moment) {
            self.files.carry_out(wish, &mut self.reactor);
        }
    }

    fn turn_until(&mut self, is_done: impl Fn(&Kept) -> bool) {
        while !is_done(self) {
            self.turn();
            if !is_done(self) {
                let until = self.journal.deadline();
                self.reactor.wait(until);
            }
        }
    }

    fn read(&mut self, lsn: Lsn, bytes: u32) -> PageBuffer {
        let buffer = PageBuffer::new(JOURNAL_BLOCK_BYTES_MAX as usize);
        let read = PartRead { name: 1, lsn, bytes, buffer, is_fresh: false };
        self.files.read(read, &mut self.reactor);
        self.turn_until(|kept| kept.read.is_some());
        self.read.take().unwrap()
    }

    /// Reads all chunks of an execution.
    fn read_all(&mut self, name: KeptId) -> Vec<Vec<u8>> {
        let (next_seq, _) = self.journal.get(name).unwrap().published();
        let mut chunks = Vec::new();
        while (chunks.len() as u64) < next_seq - 1 {
            match self.journal.locate(name, chunks.len() as u64 + 1).unwrap() {
                Place::Soon => self.turn(),
                Place::Search(mut search) => {
                    let found = loop {
                        let page = self.read(search.page(), JOURNAL_PAGE_BYTES);
                        match search.on_page(&page) {
                            Found::Again => {}
                            Found::Place(found) => break found,
                        }
                    };
                    self.read_run(name, found, &mut chunks);
                }
                place => self.read_run(name, place, &mut chunks),
            }
        }
        chunks
    }

    fn read_run(&mut self, name: KeptId, place: Place, chunks: &mut Vec<Vec<u8>>) {
        let Place::Run { segment_number, row } = place else { panic!("{place:?}") };
        let lsn = Lsn::new(segment_number, row.offset_bytes);
        let bytes = self.read(lsn, row.bytes);
        let run = Run::decode(setup().journal, lsn, &bytes[..row.bytes as usize]).unwrap();
        assert_eq!(run.header.execution, name.number);
        for chunk in run.chunks().map(Result::unwrap) {
            if chunk.entry.seq > chunks.len() as u64 {
                assert_eq!(chunk.entry.seq, chunks.len() as u64 + 1);
                chunks.push(chunk.payload.to_vec());
            }
        }
    }
}

fn is_whole_after_its_process_is_gone(choice: Choice, is_direct: bool, name: &str) {
    let folder = Folder::new(name);
    let mut random = Random::new(3);
    let mut truth: BTreeMap<u128, Vec<Vec<u8>>> = BTreeMap::new();
    let (mut kept, unfinished) = Kept::open(choice, &folder.0, is_direct);
    assert!(unfinished.is_empty());
    let moment = kept.moment();
    let names: Vec<KeptId> = [Durability::Written, Durability::Synced, Durability::Written]
        .into_iter()
        .zip(1..)
        .map(|(durability, id)| kept.journal.open(id, durability, b"it", moment).unwrap())
        .collect();
    for _ in 0..4_000 {
        let at = random.below(3) as usize;
        let chunks = truth.entry(at as u128 + 1).or_default();
        let mut payload = vec![0; 1 + random.below(2_000) as usize];
        random.fill(&mut payload);
        let (seq, length) = (chunks.len() as u64 + 1, payload.len() as u32);
        let entry = ChunkEntry { seq, mono_ns: 9, length, kind: Kind::Output, key: 0, flags: 0 };
        let moment = kept.moment();
        let append = |kept: &mut Kept| kept.journal.append(names[at], &entry, &payload, moment);
        assert_eq!(append(&mut kept), Append::Kept);
        chunks.push(payload.clone());
        if random.chance(1, 4) {
            kept.turn();
        }
        if seq.is_multiple_of(32) {
            // The disk keeps pace, or chunks would be missing.
            kept.journal.await_sync();
            let is_level =
                |kept: &Kept| kept.journal.is_all_synced() && !kept.journal.is_preparing();
            kept.turn_until(is_level);
        }
    }
    let moment = kept.moment();
    assert!(kept.journal.end(names[0], b"end", moment));
    kept.turn_until(|kept| kept.journal.is_end_kept(names[0]));
    kept.journal.await_sync();
    kept.turn_until(|kept| kept.journal.is_all_synced());
    assert!(kept.journal.counters().segments > 3);
    for (id, chunks) in &truth {
        assert!(kept.read_all(names[*id as usize - 1]) == *chunks);
    }
    drop(kept);
    for _ in 0..2 {
        let (mut kept, unfinished) = Kept::open(choice, &folder.0, is_direct);
        assert_eq!(unfinished.len(), 2);
        for (id, chunks) in &truth {
            let name = kept.journal.find(*id).unwrap();
            assert!(kept.read_all(name) == *chunks, "execution {id}");
            assert_eq!(kept.journal.is_end_kept(name), *id == 1);
        }
    }
}

#[test]
fn a_journal_over_mio_is_whole_after_its_process_is_gone() {
    is_whole_after_its_process_is_gone(Choice::Mio, false, "mio");
}

#[test]
fn a_journal_over_io_uring_is_whole_after_its_process_is_gone() {
    let Ok((reactor, _)) = crate::reactor::open(Choice::Uring) else {
        println!("not run: no io_uring here");
        return;
    };
    drop(reactor);
    is_whole_after_its_process_is_gone(Choice::Uring, false, "uring");
    is_whole_after_its_process_is_gone(Choice::Uring, true, "direct");
}
