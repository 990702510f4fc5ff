//! A scrub on files with flipped bits, with pages that cannot be read, and with time that passes.

use std::io;
use std::time::Duration;

use super::block::Run;
use super::fault_tests::Bench;
use super::format::Lsn;
use super::index::RunRow;
use super::locate::Found;
use super::model_tests::Disk;
use super::recovery::Files;
use super::scrub::{Scrub, ScrubRead, Scrubbed};
use super::{Moment, Place, Setup};
use crate::base::{Instant, PageBuffer, Random};
use crate::limits::{
    JOURNAL_PAGE_BYTES, JOURNAL_SCRUB_RATE, JOURNAL_SEGMENT_BYTES_MIN, JOURNAL_UNSYNCED_BYTES_MAX,
};
use crate::stream::Durability;

const SETUP: Setup = Setup {
    journal: 0x5C0B << 64 | 0x77,
    shard: 0,
    segment_bytes: 2 * JOURNAL_SEGMENT_BYTES_MIN,
    bytes_max: 1 << 30,
    age_us_max: u64::MAX / 2,
    unsynced_bytes_max: JOURNAL_UNSYNCED_BYTES_MAX,
};
const PERIOD: Duration = Duration::from_secs(10);

/// A journal with some sealed segments, and the runs in them.
struct Sealed {
    bench: Bench,
    rows: Vec<(u64, RunRow)>,
}

impl Sealed {
    fn new() -> Sealed {
        let moment = Moment { now: Instant::from_nanos(1), wall_us: 7 };
        let mut bench = Bench::on(Disk::default(), &SETUP, moment);
        let mut random = Random::new(3);
        let names = [1, 2, 3].map(|id| bench.open(id, Durability::Written));
        while bench.journal.segments.sealed.len() < 3 {
            let name = names[random.below(3) as usize];
            // No checksum covers the padding of a chunk.
            let words_max = if random.chance(1, 9) { 1_100 } else { 25 };
            let mut payload = vec![0; 8 * random.below(words_max) as usize];
            random.fill(&mut payload);
            bench.append_payload(name, &payload);
            if random.chance(1, 20) {
                bench.settle();
            }
        }
        let mut rows = Vec::new();
        for name in names {
            let until_seq = bench.journal.get(name).unwrap().published().0;
            let mut seq = 1;
            while seq < until_seq {
                let mut place = bench.journal.locate(name, seq).unwrap();
                while let Place::Search(mut search) = place {
                    let mut page = vec![0; JOURNAL_PAGE_BYTES as usize];
                    bench.disk.read(search.page(), &mut page).unwrap();
                    place = match search.on_page(&page) {
                        Found::Place(place) => place,
                        Found::Again => Place::Search(search),
                    };
                }
                let Place::Run { segment_number, row } = place else { break };
                rows.push((segment_number, row));
                seq = row.until_seq();
            }
        }
        Sealed { bench, rows }
    }

    /// The chunks of sealed segments that a reader would not be given.
    fn lost_chunks(&mut self) -> u64 {
        let mut lost = 0;
        for (number, row) in &self.rows {
            if self.bench.journal.segments.find(*number).is_none() {
                continue;
            }
            let lsn = Lsn::new(*number, row.offset_bytes);
            let mut bytes = vec![0; row.bytes as usize];
            self.bench.disk.read(lsn, &mut bytes).unwrap();
            lost += match Run::decode(SETUP.journal, lsn, &bytes) {
                Ok(run) => {
                    let bad = run.chunks().filter_map(Result::err);
                    bad.map(|bad| bad.until_seq - bad.from_seq).sum()
                }
                Err(_) => u64::from(row.count),
            };
        }
        lost
    }

    fn flip(&mut self, number: u64, offset: u32, bit: u32) {
        let file = self.bench.disk.files.get_mut(&number).unwrap();
        file.cache[offset as usize] ^= 1 << bit;
    }

    /// Lets time pass to the next read of a scrub, and does it. `unreadable` is a page.
    fn read_next(&mut self, scrub: &mut Scrub, unreadable: Option<Lsn>) -> Option<(Instant, u32)> {
        let journal = &self.bench.journal;
        let now = scrub.deadline(journal)?;
        if let Some(before) = now.nanos().checked_sub(1) {
            assert!(scrub.poll(journal, Instant::from_nanos(before)).is_none());
        }
        let ScrubRead { lsn, bytes, mut buffer } = scrub.poll(journal, now).expect("it is due");
        assert!(scrub.poll(journal, Instant::FAR).is_none() && scrub.deadline(journal).is_none());
        let is_hit = unreadable.is_some_and(|page| lsn <= page && page < lsn.after(bytes));
        let result = match is_hit {
            true => Err(io::ErrorKind::Other),
            false => {
                let read = self.bench.disk.read(lsn, &mut buffer[..bytes as usize]);
                read.map(|count| count as u32).map_err(|error| error.kind())
            }
        };
        scrub.on_read(result, buffer, &self.bench.journal);
        Some((now, bytes))
    }

    fn pass(&mut self, scrub: &mut Scrub, unreadable: Option<Lsn>) -> Scrubbed {
        let passes = scrub.scrubbed().passes;
        while scrub.scrubbed().passes == passes {
            self.read_next(scrub, unreadable).expect("it is not over");
        }
        scrub.scrubbed()
    }
}

#[test]
fn a_flipped_bit_is_found_wherever_a_checksum_covers_it() {
    let mut sealed = Sealed::new();
    let mut random = Random::new(17);
    let sound = sealed.pass(&mut Scrub::new(PERIOD, Instant::ZERO), None);
    assert_eq!((sound.corrupt_chunks, sound.corrupt_places, sound.passes), (0, 0, 1));
    let all: Vec<super::segments::Sealed> =
        sealed.bench.journal.segments.sealed.iter().copied().collect();
    let index = |it: &super::segments::Sealed| it.index_pages * JOURNAL_PAGE_BYTES;
    let expected: u32 =
        all.iter().map(|it| it.data_end_bytes + index(it) + JOURNAL_PAGE_BYTES).sum();
    assert_eq!(sound.bytes, u64::from(expected));
    let mut chunks = 0;
    for _ in 0..1_500 {
        let one = all[random.below(all.len() as u64) as usize];
        let end_bytes = one.data_end_bytes + index(&one);
        let at = match random.below(20) {
            0 => random.below(96) as u32,
            1 => SETUP.segment_bytes - JOURNAL_PAGE_BYTES + random.below(80) as u32,
            _ => random.between(JOURNAL_PAGE_BYTES.into(), u64::from(end_bytes) - 1) as u32,
        };
        let bit = random.below(8) as u32;
        sealed.flip(one.number, at, bit);
        let found = sealed.pass(&mut Scrub::new(PERIOD, Instant::ZERO), None);
        assert!(found.corrupt_places > 0, "segment {} {at} {bit}: {found:?}", one.number);
        assert_eq!(found.corrupt_chunks, sealed.lost_chunks(), "segment {} {at} {bit}", one.number);
        chunks += found.corrupt_chunks;
        sealed.flip(one.number, at, bit);
    }
    assert!(chunks > 1_000, "{chunks}");
}

#[test]
fn a_page_that_cannot_be_read_costs_what_is_on_it() {
    let mut sealed = Sealed::new();
    let one = sealed.bench.journal.segments.sealed[1];
    for page in 0..one.data_end_bytes / JOURNAL_PAGE_BYTES {
        let lsn = Lsn::new(one.number, page * JOURNAL_PAGE_BYTES);
        let found = sealed.pass(&mut Scrub::new(PERIOD, Instant::ZERO), Some(lsn));
        let at = lsn.offset_bytes() as usize;
        let file = &mut sealed.bench.disk.files.get_mut(&one.number).unwrap().cache;
        let range = at..at + JOURNAL_PAGE_BYTES as usize;
        let before = file[range.clone()].to_vec();
        file[range.clone()].fill(0);
        let zeros = sealed.pass(&mut Scrub::new(PERIOD, Instant::ZERO), None);
        assert_eq!((found.corrupt_chunks, found.corrupt_places), {
            (zeros.corrupt_chunks, zeros.corrupt_places)
        });
        assert!(found.corrupt_places > 0);
        let file = &mut sealed.bench.disk.files.get_mut(&one.number).unwrap().cache;
        file[range].copy_from_slice(&before);
    }
}

#[test]
fn a_pass_keeps_its_pace_and_counts_each_damage_once() {
    let mut sealed = Sealed::new();
    let start = Instant::from_nanos(5);
    let mut scrub = Scrub::new(PERIOD, start);
    let number = sealed.bench.journal.segments.sealed[0].number;
    sealed.flip(number, JOURNAL_PAGE_BYTES + 70, 3);
    let mut begins = Vec::new();
    let mut last: Option<(Instant, u32)> = None;
    for passes in 0..3 {
        while scrub.scrubbed().passes == passes {
            let (now, bytes) = sealed.read_next(&mut scrub, None).unwrap();
            if let Some((before, bytes)) = last {
                let nanos = u64::from(bytes) * 1_000_000_000 / JOURNAL_SCRUB_RATE;
                assert!(now >= before + Duration::from_nanos(nanos));
            }
            if begins.len() as u64 == passes {
                begins.push(now);
            }
            last = Some((now, bytes));
        }
        assert!(scrub.scrubbed().corrupt_places == 1, "{:?}", scrub.scrubbed());
    }
    assert_eq!(begins, [0, 1, 2].map(|pass| start + PERIOD / 24 + PERIOD * pass));
}

#[test]
fn a_segment_that_is_removed_during_its_pass_is_passed_over() {
    let mut sealed = Sealed::new();
    let mut scrub = Scrub::new(PERIOD, Instant::ZERO);
    sealed.read_next(&mut scrub, None).unwrap();
    let front = sealed.bench.journal.segments.sealed.pop_front().unwrap();
    let journal = &sealed.bench.journal;
    let now = scrub.deadline(journal).unwrap();
    let read = scrub.poll(journal, now).unwrap();
    assert_eq!(read.lsn.segment_number(), front.number);
    let gone = PageBuffer::new(read.buffer.len());
    scrub.on_read(Err(io::ErrorKind::NotFound), gone, journal);
    let found = sealed.pass(&mut scrub, None);
    assert_eq!((found.corrupt_chunks, found.corrupt_places), (0, 0));
    sealed.bench.journal.segments.sealed.clear();
    assert_eq!(scrub.deadline(&sealed.bench.journal), None);
}
