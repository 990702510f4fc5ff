//! A writer of a journal, on real files.

use std::path::Path;
use std::time::Duration;

use streamdoor::base::{ExecutionId, Instant};
use streamdoor::journal::format::ChunkEntry;
use streamdoor::journal::recovery::Recovered;
use streamdoor::journal::{Append, Journal, KeptId, Moment, Setup};
use streamdoor::limits::JOURNAL_UNSYNCED_BYTES_MAX;
use streamdoor::reactor::{AnyReactor, Choice, DiskSetup, Reactor, open};
use streamdoor::shard::journal::{Completed, JournalFiles, open_journal};
use streamdoor::stream::{Durability, Kind};

pub const SEGMENT_BYTES: u32 = 128 << 10;
pub const JOURNAL: u128 = 77 << 64 | 5;

pub struct Keeper {
    reactor: AnyReactor,
    pub journal: Journal,
    files: JournalFiles,
    pub running: Vec<(u128, KeptId)>,
}

/// The payload of a chunk: a line that differs for each.
pub fn payload(id: u128, seq: u64) -> Vec<u8> {
    let length = (seq * 7_919 + id as u64 * 31) % 600;
    let mut line = format!("<{id} {seq}>").into_bytes();
    line.extend((0..length).map(|at| b'a' + ((at + seq) % 26) as u8));
    line.push(b'\n');
    line
}

/// The payloads of chunks up to and with one.
pub fn payloads(id: u128, until: u64) -> Vec<u8> {
    (1..=until).flat_map(|seq| payload(id, seq)).collect()
}

pub fn text_of(id: u128) -> String {
    ExecutionId::from_bits(id).to_string()
}

impl Keeper {
    /// Opens the journal in the directory of a shard, with segments of at most `segments_max`.
    pub fn open(shard: &Path, segments_max: u64) -> Keeper {
        Keeper::open_with(shard, segments_max, SEGMENT_BYTES)
    }

    /// Opens it with segments of another size.
    pub fn open_with(shard: &Path, segments_max: u64, segment_bytes: u32) -> Keeper {
        let (mut reactor, _) = open(Choice::Mio).unwrap();
        let setup = Setup {
            journal: JOURNAL,
            shard: 0,
            segment_bytes,
            bytes_max: segments_max * u64::from(segment_bytes),
            age_us_max: u64::MAX / 2,
            unsynced_bytes_max: JOURNAL_UNSYNCED_BYTES_MAX,
        };
        let (recovered, files) = open_journal(&mut reactor, DiskSetup::at(shard), &setup).unwrap();
        let Recovered { journal, .. } = recovered;
        Keeper { reactor, journal, files, running: Vec::new() }
    }

    fn moment(&mut self) -> Moment {
        Moment { now: self.reactor.now(), wall_us: self.reactor.wall_us() }
    }

    pub fn begin(&mut self, id: u128) {
        let moment = self.moment();
        let name = self.journal.open(id, Durability::Synced, b"details", moment).unwrap();
        self.running.push((id, name));
    }

    /// Appends the next chunk of each running execution.
    pub fn append(&mut self) {
        for at in 0..self.running.len() {
            let (id, name) = self.running[at];
            let seq = self.journal.get(name).unwrap().published().0;
            let payload = payload(id, seq);
            let length = payload.len() as u32;
            let (kind, key, flags) = (Kind::Output, 0, 0);
            let entry = ChunkEntry { seq, mono_ns: 9, length, kind, key, flags };
            let moment = self.moment();
            let appended = self.journal.append(name, &entry, &payload, moment);
            assert_eq!(appended, Append::Kept);
        }
    }

    pub fn end_all(&mut self) {
        for (_, name) in std::mem::take(&mut self.running) {
            self.end(name, br#"{"outcome":"completed","error":null}"#);
        }
    }

    /// Ends an execution with these details, which may be anything.
    pub fn end(&mut self, name: KeptId, details: &[u8]) {
        let mut moment = self.moment();
        while !self.journal.end(name, details, moment) {
            self.turn(); // There is no room yet.
            moment = self.moment();
        }
    }

    fn turn(&mut self) {
        let moment = self.moment();
        self.reactor.poll();
        while let Some(done) = self.reactor.next_disk_event() {
            for completed in self.files.on_done(done, &mut self.reactor) {
                let Completed::Wish { token, result, buffer, synced } = completed else { continue };
                result.unwrap();
                self.journal.on_done(token, result, buffer, synced, moment);
            }
        }
        self.journal.turn(moment);
        while let Some(wish) = self.journal.poll_wish(moment) {
            self.files.carry_out(wish, &mut self.reactor);
        }
    }

    /// Waits until everything is on the disk, and until the next segment is ready.
    pub fn sync(&mut self) {
        self.journal.await_sync();
        let is_level = |keeper: &Keeper| {
            keeper.journal.is_all_synced()
                && !keeper.journal.is_preparing()
                && keeper.files.under_way() == 0
        };
        loop {
            self.turn();
            if is_level(self) {
                return;
            }
            let until = self.journal.deadline();
            self.reactor.wait(until);
        }
    }

    /// Waits until nothing is left to do: the mark behind the last block is written.
    pub fn rest(&mut self) {
        self.sync();
        while self.next_at().is_some() || self.files.under_way() > 0 {
            self.turn();
            let until = self.next_at();
            if until.is_some() || self.files.under_way() > 0 {
                self.reactor.wait(until);
            }
        }
    }

    /// The time of the next write or sync. The age of segments is looked at later.
    fn next_at(&mut self) -> Option<Instant> {
        let now = self.reactor.now();
        self.journal.deadline().filter(|at| at.since(now) < Duration::from_secs(10))
    }
}

/// Makes a journal of several segments: executions 1 and 2 with an end, 3 without. Returns the
/// number of chunks of each.
pub fn filled(shard: &Path) -> u64 {
    let mut keeper = Keeper::open(shard, 1_000);
    (1..=3).for_each(|id| keeper.begin(id));
    let chunk_count = 600;
    for seq in 1..=chunk_count {
        keeper.append();
        if seq % 10 == 0 {
            keeper.sync();
        }
    }
    let unfinished = keeper.running.pop().unwrap();
    keeper.end_all();
    keeper.running.push(unfinished);
    keeper.rest();
    chunk_count
}
