//! A scrub: sealed segments are read in the background, and each checksum is checked.
//!
//! Damage at rest is thus found before somebody needs the bytes. Nothing is repaired, because there
//! is one copy. A pass goes from the oldest sealed segment to the newest, and through each of them
//! from its header to its trailer. [`Scrub::poll`] says what to read next, one piece at a time and
//! not faster than [`JOURNAL_SCRUB_RATE`], and [`Scrub::on_read`] checks it.
//!
//! The blocks do not tell how many chunks a damaged stretch had. The index behind them does.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use super::block::{Rot, Run, runs};
use super::format::{BLOCK_HEADER_BYTES, BlockHeader, Lsn, RunKind, SegmentHeader};
use super::index::{ExecutionRow, RunRow, Trailer, decode_page};
use super::machine::Journal;
use super::segments::Sealed;
use super::walk::is_whole;
use crate::base::{Instant, PageBuffer};
use crate::limits::{
    JOURNAL_BLOCK_BYTES_MAX, JOURNAL_PAGE_BYTES, JOURNAL_SCRUB_BYTES, JOURNAL_SCRUB_RATE,
};

/// Running totals of the scrubs of a journal. Damage counts once, however often it is seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Passes over all sealed segments that are over.
    pub passes: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Chunks that were found damaged.
    pub corrupt_chunks: u64,
    /// Places that were found damaged: chunks, records, headers, padding and pages of an index.
    pub corrupt_places: u64,
}

/// A read that a scrub asks for.
#[derive(Debug)]
pub struct ScrubRead {
    /// The place.
    pub lsn: Lsn,
    /// Number of bytes.
    pub bytes: u32,
    /// The place for the bytes. It comes back with the result.
    pub buffer: PageBuffer,
}

/// The scrub of one journal.
#[derive(Debug)]
pub struct Scrub {
    period: Duration,
    /// The time of the next piece, or of the next pass.
    next_at: Instant,
    pass: Option<Pass>,
    /// The read that is under way.
    reading: Option<Reading>,
    done: Scrubbed,
    /// The damage that was counted, by segment.
    known: BTreeMap<u64, Damaged>,
}

/// A pass over the sealed segments.
#[derive(Debug)]
struct Pass {
    begun_at: Instant,
    segment: Sealed,
    /// Size of the segment, if its header could be read.
    segment_bytes: Option<u32>,
    /// The next place that is checked, as an offset in the segment.
    at_bytes: u32,
    /// Size of the next piece, unless the segment ends before.
    piece_bytes: u32,
    /// Number of bytes of a piece that are read page by page, because the disk cannot read all.
    patched_bytes: Option<u32>,
    /// True unless nothing of the segment could be read.
    is_open: bool,
    /// The buffers for a piece and for a page, unless they are with the disk.
    piece: Option<PageBuffer>,
    page: Option<PageBuffer>,
    damaged: Damaged,
    /// Stretches of the segment that no run was found in, as offsets.
    lost: Vec<(u32, u32)>,
}

/// The read that is under way.
#[derive(Clone, Copy, Debug)]
struct Reading {
    bytes: u32,
    asked_at: Instant,
}

/// The damage of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct Damaged {
    chunks: u64,
    places: u64,
}

/// Number of lost stretches of one segment that are told apart.
const LOST_MAX: usize = 64;
/// The part of a period after which the first pass begins.
const FIRST_PASS: u32 = 24;

impl Scrub {
    /// Creates a scrub that begins a pass in each `period`, if it has ended the one before.
    pub fn new(period: Duration, now: Instant) -> Scrub {
        Scrub {
            period,
            next_at: now + period / FIRST_PASS,
            pass: None,
            reading: None,
            done: Scrubbed::default(),
            known: BTreeMap::new(),
        }
    }

    /// The running totals.
    pub fn scrubbed(&self) -> Scrubbed {
        self.done
    }

    /// The time at which [`Scrub::poll`] has something to read.
    pub fn deadline(&self, journal: &Journal) -> Option<Instant> {
        let is_waiting = self.reading.is_none() && journal.fault().is_none();
        (is_waiting && !journal.segments.sealed.is_empty()).then_some(self.next_at)
    }

    /// The next read, if it is due. Its result goes to [`Scrub::on_read`].
    pub fn poll(&mut self, journal: &Journal, now: Instant) -> Option<ScrubRead> {
        if self.deadline(journal).is_none_or(|deadline| now < deadline) {
            return None;
        }
        if self.pass.is_none() {
            let first = journal.segments.sealed.front()?;
            self.pass = Some(Pass::new(*first, now));
        }
        let pass = self.pass.as_mut().expect("it was just begun");
        let (at_bytes, bytes, buffer) = match pass.patched_bytes {
            Some(patched_bytes) => {
                (pass.at_bytes + patched_bytes, JOURNAL_PAGE_BYTES, pass.page.take())
            }
            None => (pass.at_bytes, pass.next_bytes(), pass.piece.take()),
        };
        self.reading = Some(Reading { bytes, asked_at: now });
        let lsn = Lsn::new(pass.segment.number, at_bytes);
        Some(ScrubRead { lsn, bytes, buffer: buffer.expect("no read is under way") })
    }

    /// Takes the result of a read: the number of bytes, and the buffer.
    pub fn on_read(
        &mut self,
        result: Result<u32, io::ErrorKind>,
        buffer: PageBuffer,
        journal: &Journal,
    ) {
        let Reading { bytes, asked_at } = self.reading.take().expect("a read was under way");
        let pass = self.pass.as_mut().expect("a read belongs to a pass");
        let is_there = journal.segments.find(pass.segment.number).is_some();
        let is_whole = result == Ok(bytes);
        match pass.patched_bytes {
            None if is_whole || !is_there => pass.piece = Some(buffer),
            None => {
                (pass.piece, pass.patched_bytes, pass.is_open) =
                    (Some(buffer), Some(0), pass.at_bytes > 0);
                return;
            }
            Some(patched_bytes) => {
                pass.patch(patched_bytes, is_whole, buffer);
                if is_there && pass.patched_bytes.is_some() {
                    return;
                }
            }
        }
        // A file that cannot be opened says nothing about the disk.
        let is_there = is_there && pass.is_open;
        if is_there {
            self.done.bytes += pass.check(journal.setup().journal);
            let nanos = u64::from(bytes) * 1_000_000_000 / JOURNAL_SCRUB_RATE;
            self.next_at = asked_at + Duration::from_nanos(nanos);
        }
        if !is_there || pass.is_over() {
            self.end_segment(journal);
        }
    }

    /// Counts the damage of a segment, and goes on with the next one.
    fn end_segment(&mut self, journal: &Journal) {
        let pass = self.pass.as_mut().expect("it was read");
        let Damaged { chunks, places } = pass.damaged;
        if places > 0 {
            let known = self.known.entry(pass.segment.number).or_default();
            self.done.corrupt_chunks += chunks.saturating_sub(known.chunks);
            self.done.corrupt_places += places.saturating_sub(known.places);
            *known = Damaged { chunks: chunks.max(known.chunks), places: places.max(known.places) };
        }
        let number = pass.segment.number;
        match journal.segments.sealed.iter().find(|sealed| sealed.number > number) {
            Some(next) => pass.begin(*next),
            None => {
                self.next_at = self.next_at.max(pass.begun_at + self.period);
                self.pass = None;
                self.done.passes += 1;
                self.known = self.known.split_off(&journal.segments.oldest);
            }
        }
    }
}

impl Pass {
    fn new(segment: Sealed, begun_at: Instant) -> Pass {
        Pass {
            begun_at,
            segment,
            segment_bytes: None,
            at_bytes: 0,
            piece_bytes: JOURNAL_SCRUB_BYTES,
            patched_bytes: None,
            is_open: true,
            piece: Some(PageBuffer::new(JOURNAL_BLOCK_BYTES_MAX as usize)),
            page: Some(PageBuffer::new(JOURNAL_PAGE_BYTES as usize)),
            damaged: Damaged::default(),
            lost: Vec::with_capacity(LOST_MAX),
        }
    }

    fn begin(&mut self, segment: Sealed) {
        (self.segment, self.segment_bytes, self.at_bytes) = (segment, None, 0);
        (self.patched_bytes, self.is_open, self.damaged) = (None, true, Damaged::default());
        self.lost.clear();
    }

    /// The offset behind the index.
    fn index_end(&self) -> u32 {
        self.segment.data_end_bytes + self.segment.index_pages * JOURNAL_PAGE_BYTES
    }

    fn next_bytes(&self) -> u32 {
        match self.index_end().saturating_sub(self.at_bytes) {
            0 => JOURNAL_PAGE_BYTES, // The trailer.
            left_bytes => left_bytes.min(self.piece_bytes),
        }
    }

    fn is_over(&self) -> bool {
        self.at_bytes >= self.segment_bytes.unwrap_or(self.index_end())
    }

    /// Takes a page of a piece. One that cannot be read is zeros, which nothing of a journal is.
    fn patch(&mut self, at: u32, is_read: bool, page: PageBuffer) {
        let piece = self.piece.as_mut().expect("it waits for the page");
        let place = &mut piece[at as usize..(at + JOURNAL_PAGE_BYTES) as usize];
        match is_read {
            true => place.copy_from_slice(&page),
            false => place.fill(0),
        }
        self.page = Some(page);
        self.is_open |= is_read;
        let patched_bytes = at + JOURNAL_PAGE_BYTES;
        self.patched_bytes = (patched_bytes < self.next_bytes()).then_some(patched_bytes);
    }

    /// Checks the piece that was read, as far as it has whole blocks. Returns the number of bytes.
    fn check(&mut self, journal: u128) -> u64 {
        let piece = self.piece.take().expect("it was read");
        let bytes = &piece[..self.next_bytes() as usize];
        let mut checked = 0;
        self.piece_bytes = JOURNAL_SCRUB_BYTES;
        while checked < bytes.len() {
            let Some(step) = self.check_one(journal, &bytes[checked..]) else { break };
            checked += step as usize;
            self.at_bytes += step;
        }
        if self.at_bytes == self.index_end()
            && let Some(segment_bytes) = self.segment_bytes
        {
            self.at_bytes = segment_bytes - JOURNAL_PAGE_BYTES;
        }
        self.piece = Some(piece);
        checked as u64
    }

    /// Checks the block or page at the next place. Returns the number of its bytes, or `None` if
    /// more of them are needed.
    fn check_one(&mut self, journal: u128, bytes: &[u8]) -> Option<u32> {
        let lsn = Lsn::new(self.segment.number, self.at_bytes);
        let Sealed { number, data_end_bytes, .. } = self.segment;
        let page = &bytes[..JOURNAL_PAGE_BYTES as usize];
        let is_sound = match self.at_bytes {
            0 => {
                let header = SegmentHeader::decode(page).ok();
                let is_own = |header: &SegmentHeader| {
                    (header.journal, header.segment_number) == (journal, number)
                        && header.segment_bytes > self.index_end()
                };
                self.segment_bytes = header.filter(is_own).map(|header| header.segment_bytes);
                self.segment_bytes.is_some()
            }
            at if at < data_end_bytes => {
                let bytes = &bytes[..bytes.len().min((data_end_bytes - at) as usize)];
                return self.check_block(journal, lsn, bytes);
            }
            at if at < self.index_end() => self.check_index_page(lsn, page),
            at => Trailer::decode(journal, number, at + JOURNAL_PAGE_BYTES, page).is_ok(),
        };
        self.damaged.places += u64::from(!is_sound);
        Some(JOURNAL_PAGE_BYTES)
    }

    fn check_block(&mut self, journal: u128, lsn: Lsn, bytes: &[u8]) -> Option<u32> {
        let left_bytes = self.segment.data_end_bytes - self.at_bytes;
        let header = BlockHeader::decode(journal, lsn, bytes).ok();
        let header = header.filter(|header| header.bytes <= left_bytes);
        let longest_bytes = left_bytes.min(JOURNAL_BLOCK_BYTES_MAX);
        let needed_bytes = header.map_or(longest_bytes, |header| header.bytes);
        if (bytes.len() as u32) < needed_bytes {
            self.piece_bytes = needed_bytes;
            return None;
        }
        let Some(header) = header else {
            return Some(self.check_headless(journal, lsn, bytes));
        };
        let block = &bytes[..header.bytes as usize];
        if !is_whole(journal, &header, block) {
            let places = self.damaged.places;
            for found in runs(journal, &header, block) {
                match found {
                    Ok(run) => self.check_run(&run),
                    Err(Rot { from, until, .. }) => self.lose(from, (until.0 - from.0) as u32),
                }
            }
            // It may be the padding, or the number of runs.
            self.damaged.places = self.damaged.places.max(places + 1);
        }
        Some(header.bytes)
    }

    /// Checks what a block without a header has left. Returns the number of its bytes.
    fn check_headless(&mut self, journal: u128, lsn: Lsn, bytes: &[u8]) -> u32 {
        let mut at = BLOCK_HEADER_BYTES;
        while let Some(rest) = bytes.get(at as usize..)
            && let Ok(run) = Run::decode(journal, lsn.after(at), rest)
        {
            self.check_run(&run);
            at += run.header.bytes;
        }
        if at > BLOCK_HEADER_BYTES {
            self.damaged.places += 1;
            return at.next_multiple_of(JOURNAL_PAGE_BYTES);
        }
        let mut next = JOURNAL_PAGE_BYTES;
        while let Some(rest) = bytes.get(next as usize..).filter(|rest| !rest.is_empty())
            && BlockHeader::decode(journal, lsn.after(next), rest).is_err()
        {
            next += JOURNAL_PAGE_BYTES;
        }
        self.lose(lsn, next);
        next
    }

    fn check_run(&mut self, run: &Run<'_>) {
        if run.header.kind != RunKind::Chunks {
            self.damaged.places += u64::from(run.body().is_err());
            return;
        }
        for lost in run.chunks().filter_map(Result::err) {
            self.damaged.places += 1;
            self.damaged.chunks += lost.until_seq - lost.from_seq;
        }
    }

    /// Notes a stretch in which no run was found.
    fn lose(&mut self, from: Lsn, bytes: u32) {
        self.damaged.places += 1;
        let (first, until) = (from.offset_bytes(), from.offset_bytes() + bytes);
        let is_full = self.lost.len() == LOST_MAX;
        match self.lost.last_mut().filter(|_| is_full) {
            Some(last) => last.1 = until,
            None => self.lost.push((first, until)),
        }
    }

    /// Checks a page of the index, and counts the chunks of its runs that are lost. Returns false
    /// if the page is damaged.
    fn check_index_page(&mut self, lsn: Lsn, page: &[u8]) -> bool {
        let page_at = (self.at_bytes - self.segment.data_end_bytes) / JOURNAL_PAGE_BYTES;
        if page_at < self.segment.execution_pages {
            let rows = decode_page::<ExecutionRow>(lsn, page);
            return rows.is_ok_and(|mut rows| rows.all(|row| row.is_ok()));
        }
        let Ok(rows) = decode_page::<RunRow>(lsn, page) else { return false };
        let mut is_sound = true;
        for row in rows {
            let Ok(row) = row else {
                is_sound = false;
                continue;
            };
            let at = row.offset_bytes;
            let is_lost = |(first, until): &(u32, u32)| (*first..*until).contains(&at);
            if !row.is_hole && self.lost.iter().any(is_lost) {
                self.damaged.chunks += u64::from(row.count);
            }
        }
        is_sound
    }
}

const _: () = {
    assert!(JOURNAL_SCRUB_BYTES.is_multiple_of(JOURNAL_PAGE_BYTES));
    assert!(JOURNAL_SCRUB_BYTES <= JOURNAL_BLOCK_BYTES_MAX);
};
