//! A journal whose disk has failed: what it still serves, what it still takes, and what it says.

use std::collections::VecDeque;
use std::io;

use super::catalogue::Missing;
use super::format::ChunkEntry;
use super::model_tests::Disk;
use super::records::Terms;
use super::recovery::{Files, Recovered, recover};
use super::{Append, Fault, Journal, KeptId, Moment, Place, Refused, Setup, Wish};
use crate::base::Instant;
use crate::limits::{JOURNAL_ROWS_MAX, JOURNAL_UNSYNCED_BYTES_MAX, JOURNAL_WRITE_DELAY};
use crate::stream::{Durability, Kind, Kinds, Totals};

const SETUP: Setup = Setup {
    journal: 0xFA01 << 64 | 0x17,
    shard: 0,
    segment_bytes: 4 << 20,
    bytes_max: 1 << 30,
    age_us_max: u64::MAX / 2,
    unsynced_bytes_max: JOURNAL_UNSYNCED_BYTES_MAX,
};
const EIO: Result<(), io::ErrorKind> = Err(io::ErrorKind::Other);

/// A journal whose wishes wait until the test completes them.
pub(super) struct Bench {
    pub journal: Journal,
    pub disk: Disk,
    pub moment: Moment,
    pub wishes: VecDeque<Wish>,
}

impl Bench {
    fn new() -> Bench {
        let moment = Moment { now: Instant::from_nanos(1), wall_us: 7 };
        Bench::on(Disk::default(), &SETUP, moment)
    }

    pub fn on(mut disk: Disk, setup: &Setup, moment: Moment) -> Bench {
        let Recovered { journal, .. } = recover(&mut disk, setup, moment).unwrap();
        Bench { journal, disk, moment, wishes: VecDeque::new() }
    }

    pub fn open(&mut self, id: u128, terms: impl Into<Terms>) -> KeptId {
        self.journal.open(id, terms, b"details", self.moment).unwrap()
    }

    fn append(&mut self, name: KeptId) -> Append {
        self.append_payload(name, b"text")
    }

    pub fn append_payload(&mut self, name: KeptId, payload: &[u8]) -> Append {
        self.append_kind(name, Kind::Output, payload)
    }

    pub fn append_kind(&mut self, name: KeptId, kind: Kind, payload: &[u8]) -> Append {
        let (seq, _) = self.journal.get(name).unwrap().published();
        let (length, key, flags) = (payload.len() as u32, 0, 0);
        let entry = ChunkEntry { seq, mono_ns: 5, length, kind, key, flags };
        self.journal.append(name, &entry, payload, self.moment)
    }

    pub fn turn(&mut self) {
        self.journal.turn(self.moment);
        while let Some(wish) = self.journal.poll_wish(self.moment) {
            self.wishes.push_back(wish);
        }
    }

    /// Completes the oldest wish.
    pub fn complete(&mut self, result: Result<(), io::ErrorKind>) {
        let wish = self.wishes.pop_front().expect("a wish is under way");
        let token = wish.token();
        let (buffer, synced) = match wish {
            Wish::Write { lsn, buffer, bytes, sync, .. } => {
                if result.is_ok() {
                    self.disk.write(lsn, &buffer[..bytes as usize]).unwrap();
                }
                (Some(buffer), sync)
            }
            Wish::Prepare { header } => {
                self.disk.create(&header, None).unwrap();
                (None, false)
            }
            Wish::Remove { segment_number } => {
                self.disk.remove(segment_number).unwrap();
                (None, false)
            }
            Wish::Sync { .. } => (None, true),
        };
        self.journal.on_done(token, result, buffer, synced, self.moment);
    }

    /// Completes everything until nothing is under way.
    pub fn settle(&mut self) {
        self.turn();
        while !self.wishes.is_empty() {
            self.complete(Ok(()));
            self.turn();
        }
    }

    /// Closes the open block. Returns true if its write is synced too.
    fn write(&mut self) -> bool {
        self.journal.flush(self.moment);
        self.turn();
        matches!(self.wishes.back(), Some(Wish::Write { sync: true, .. }))
    }

    fn pass(&mut self, time: std::time::Duration) {
        self.moment.now += time;
    }

    fn is_served(&mut self, name: KeptId, seq: u64) -> bool {
        match self.journal.locate(name, seq).expect("it was published") {
            Place::Run { row, .. } => {
                assert!((row.first_seq..row.until_seq()).contains(&seq));
                true
            }
            Place::Hole { until_seq, .. } => {
                assert_eq!(until_seq, self.journal.get(name).unwrap().published().0);
                false
            }
            other => panic!("chunk {seq} is at {other:?}"),
        }
    }
}

/// Two executions, each with a synced chunk, one that is written, and one in an open block.
fn three_levels() -> (Bench, [KeptId; 2]) {
    let mut bench = Bench::new();
    let names = [bench.open(1, Durability::Synced), bench.open(2, Durability::Written)];
    let _ = names.map(|name| assert_eq!(bench.append(name), Append::Kept));
    bench.write();
    bench.settle();
    assert!(bench.journal.is_all_synced());
    let _ = names.map(|name| bench.append(name));
    // A write that is not the last one is not synced with itself.
    bench.journal.flush(bench.moment);
    let _ = names.map(|name| bench.append(name));
    bench.journal.flush(bench.moment);
    bench.turn();
    assert!(matches!(bench.wishes[0], Wish::Write { sync: false, .. }));
    (bench, names)
}

#[test]
fn after_a_failed_sync_only_what_an_earlier_one_covered_is_served() {
    let (mut bench, names) = three_levels();
    bench.complete(Ok(()));
    bench.complete(Ok(()));
    bench.turn();
    assert!(matches!(bench.wishes[0], Wish::Sync { .. }));
    for name in names {
        assert!([1, 2, 3].into_iter().all(|seq| bench.is_served(name, seq)));
    }
    bench.complete(EIO);
    assert_eq!(bench.journal.fault(), Some(Fault::Sync(io::ErrorKind::Other)));
    for name in names {
        let served = [1, 2, 3].map(|seq| bench.is_served(name, seq));
        assert_eq!(served, [true, false, false]);
    }
}

#[test]
fn after_a_failed_write_an_execution_is_served_as_far_as_it_was_promised() {
    let (mut bench, [synced, written]) = three_levels();
    bench.complete(Ok(()));
    bench.complete(EIO);
    assert_eq!(bench.journal.fault(), Some(Fault::Write(io::ErrorKind::Other)));
    assert_eq!([1, 2, 3].map(|seq| bench.is_served(synced, seq)), [true, false, false]);
    assert_eq!([1, 2, 3].map(|seq| bench.is_served(written, seq)), [true, true, false]);
    assert_eq!(bench.journal.durable_until(synced), Some(2));
    assert_eq!(bench.journal.durable_until(written), Some(3));
}

#[test]
fn a_failed_sync_counts_as_one_even_with_its_write_or_after_another_failure() {
    // A write that is synced with itself: its sync may have lost what was written before.
    let mut bench = Bench::new();
    let name = bench.open(1, Durability::Written);
    bench.append(name);
    assert!(bench.write());
    bench.complete(EIO);
    assert_eq!(bench.journal.fault(), Some(Fault::Sync(io::ErrorKind::Other)));

    // A sync that fails while the failure of a write is known already.
    let mut bench = Bench::new();
    let name = bench.open(1, Durability::Written);
    bench.append(name);
    bench.pass(JOURNAL_WRITE_DELAY);
    bench.turn();
    bench.complete(Ok(())); // Written, not synced.
    bench.journal.await_sync();
    bench.turn();
    bench.append(name);
    bench.pass(JOURNAL_WRITE_DELAY);
    bench.turn();
    let is_sync = |wish: &Wish| matches!(wish, Wish::Sync { .. });
    assert!(bench.wishes.len() == 2 && is_sync(&bench.wishes[0]));
    bench.wishes.rotate_left(1);
    bench.complete(EIO);
    assert_eq!(bench.journal.fault(), Some(Fault::Write(io::ErrorKind::Other)));
    assert_eq!([1, 2].map(|seq| bench.is_served(name, seq)), [true, false]);
    bench.complete(EIO);
    assert_eq!(bench.journal.fault(), Some(Fault::Sync(io::ErrorKind::Other)));
    assert_eq!([1, 2].map(|seq| bench.is_served(name, seq)), [false, false]);
}

#[test]
fn after_a_fault_nothing_is_taken_and_everything_that_is_missing_counts() {
    let (mut bench, names) = three_levels();
    let _ = names.map(|name| assert_eq!(bench.append(name), Append::Kept)); // In an open block.
    bench.complete(Ok(()));
    bench.complete(EIO);
    while bench.journal.poll_news().is_some() {}
    let durable = names.map(|name| bench.journal.durable_until(name));
    let missed = bench.journal.counters().missed_chunks;
    for round in 1..=5 {
        for name in names {
            assert_eq!(bench.append(name), Append::Missed);
            assert_eq!(bench.journal.get(name).unwrap().published().0, 5 + round);
            assert!(!bench.is_served(name, 3) && !bench.is_served(name, 4 + round));
            assert!(!bench.journal.end(name, b"done", bench.moment));
            assert!(!bench.journal.is_end_kept(name));
        }
        let opened = bench.journal.open(9, Durability::Written, b"", bench.moment);
        assert_eq!(opened, Err(Refused::Broken));
        bench.journal.flush(bench.moment);
        bench.pass(JOURNAL_WRITE_DELAY);
        bench.turn();
        assert!(bench.wishes.is_empty());
        assert_eq!(bench.journal.deadline(), None);
        assert_eq!(bench.journal.poll_news(), None);
    }
    assert_eq!(bench.journal.counters().missed_chunks, missed + 10);
    assert_eq!(names.map(|name| bench.journal.durable_until(name)), durable);
}

#[test]
fn a_success_after_a_fault_is_not_believed() {
    let (mut bench, names) = three_levels();
    bench.wishes.rotate_left(1);
    bench.complete(EIO);
    let durable = names.map(|name| bench.journal.durable_until(name));
    bench.complete(Ok(()));
    assert_eq!(names.map(|name| bench.journal.durable_until(name)), durable);
    assert_eq!(names.map(|name| bench.is_served(name, 2)), [false, false]);
}

#[test]
fn a_reader_of_an_open_block_waits_for_one_write_and_no_timer() {
    let mut bench = Bench::new();
    let name = bench.open(1, Durability::Written);
    bench.append(name);
    bench.turn();
    assert!(bench.wishes.is_empty()); // It would wait for more.
    assert_eq!(bench.journal.locate(name, 1), Some(Place::Soon));
    assert!(bench.journal.deadline().unwrap() <= bench.moment.now);
    bench.turn();
    assert!(matches!(bench.wishes[0], Wish::Write { .. }));
    assert_eq!(bench.journal.locate(name, 1), Some(Place::Soon));
    bench.complete(Ok(()));
    assert!(bench.is_served(name, 1));
}

#[test]
fn a_hole_of_more_chunks_than_a_record_counts_is_told_by_several() {
    const LOST: u64 = 3 * u32::MAX as u64 + 17;
    let mut bench = Bench::new();
    let name = bench.open(1, Durability::Synced);
    bench.append(name);
    let kept = bench.journal.catalogue.get_mut(name).unwrap();
    let living = kept.living.as_mut().unwrap();
    let before = living.position;
    let position = &mut living.position;
    for (at, kind) in [Kind::Output, Kind::Stderr, Kind::Row].into_iter().enumerate() {
        let chunks = LOST / 3 + u64::from(at == 0) * (LOST % 3);
        position.totals.add(kind, Totals { chunks, bytes: 7 * chunks });
    }
    position.all = position.totals.of(Kinds::ALL);
    let after = *position;
    assert_eq!(after.next_seq() - before.next_seq(), LOST);
    living.missing = Some(Missing { before, count: LOST });
    assert_eq!(bench.append(name), Append::Kept);
    bench.settle();
    // The records tell of all of it, one behind the other.
    let (mut seq, mut holes) = (before.next_seq(), 0);
    while seq < after.next_seq() {
        let place = bench.journal.locate(name, seq).unwrap();
        let Place::Hole { until_seq, .. } = place else { panic!("{seq} is at {place:?}") };
        (seq, holes) = (until_seq, holes + 1);
    }
    assert_eq!((seq, holes), (after.next_seq(), 4));
    assert!(bench.is_served(name, seq));
    // A restart reads the same, with the totals of all kinds.
    let moment = bench.moment;
    let Recovered { journal, .. } = recover(&mut bench.disk, &SETUP, moment).unwrap();
    let found = journal.get(journal.find(1).unwrap()).unwrap();
    let mut totals = after.totals;
    totals.count(Kind::Output, 4);
    assert_eq!(found.living.as_ref().unwrap().position.totals, totals);
}

#[test]
fn a_segment_whose_index_is_full_before_its_blocks_are_has_a_successor_in_time() {
    let setup = Setup { segment_bytes: 64 << 20, ..SETUP };
    let moment = Moment { now: Instant::from_nanos(1), wall_us: 7 };
    let mut bench = Bench::on(Disk::default(), &setup, moment);
    let names = [bench.open(1, Durability::Synced), bench.open(2, Durability::Written)];
    let first = bench.journal.current_segment();
    // Each chunk is a run of its own, because the one before belongs to the other execution.
    for at in 0..3 * JOURNAL_ROWS_MAX / 2 {
        assert_eq!(bench.append(names[at % 2]), Append::Kept, "chunk {at}");
        if at % 500 == 0 {
            bench.write();
            bench.settle();
        }
    }
    assert_eq!(bench.journal.current_segment(), first + 1);
}
