//! A walk over the blocks of a segment that has no sound index.

use std::io;

use super::block::{Rot, Run, is_padded, runs};
use super::format::{BLOCK_HEADER_BYTES, BlockHeader, Lsn, RunKind};
use super::index::is_page;
use super::recovery::{Contents, Files, RecoveryError, whole_pages};
use super::table::Table;
use crate::base::PageBuffer;
use crate::base::planted::{Planted, planted};
use crate::limits::{JOURNAL_BLOCK_BYTES_MAX, JOURNAL_PAGE_BYTES};

/// A segment, and those behind it.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub number: u64,
    pub bytes: u32,
    /// Its end, if a later recovery has noted it.
    pub end: Option<Lsn>,
    /// The numbers and sizes of later ones.
    pub later: &'a [(u64, u64)],
}

/// The content of a segment from a place on, which no walk has reached.
#[derive(Clone, Copy)]
pub(super) struct Rest {
    from_bytes: u32,
    /// Everything before this place was on the disk, according to the blocks in the rest.
    synced: Lsn,
    /// The end of the last page that is not zero.
    used_bytes: u32,
}

/// A walk over the blocks of one segment.
pub(super) struct Walk<'a> {
    contents: &'a mut Contents,
    pub table: Table,
    number: u64,
    segment_bytes: u32,
    noted_end: Option<Lsn>,
    later: &'a [(u64, u64)],
    /// Everything before this place was on the disk, according to later segments.
    synced: Lsn,
    /// The end of the last block that was taken without its header.
    headless_end: u32,
    pub end_bytes: u32,
    /// True if the segment has nothing but zeros behind its header.
    pub is_blank: bool,
    window: Window,
}

/// A part of a segment in memory.
struct Window {
    bytes: Vec<u8>,
    from_bytes: u32,
}

/// Bytes that are read at once: eight of the longest blocks, which are read at the same time.
const STEP_BYTES: u32 = 8 * JOURNAL_BLOCK_BYTES_MAX;
const ZEROS: [u8; JOURNAL_PAGE_BYTES as usize] = [0; JOURNAL_PAGE_BYTES as usize];

impl Window {
    const EMPTY: Window = Window { bytes: Vec::new(), from_bytes: 0 };

    /// The bytes from an offset on: `wanted` or more, if there are that many before `until`. Those
    /// behind them are expected.
    fn at(
        &mut self,
        files: &mut impl Files,
        lsn: Lsn,
        wanted: u32,
        until: u32,
    ) -> io::Result<&[u8]> {
        let at = lsn.offset_bytes();
        let end = self.from_bytes + self.bytes.len() as u32;
        if at < self.from_bytes || at + wanted.min(until - at) > end {
            // What is there is not read again.
            let kept_bytes = if at < self.from_bytes { 0 } else { end.saturating_sub(at) };
            self.bytes.drain(..self.bytes.len() - kept_bytes as usize);
            let (kept, next) = (kept_bytes as usize, at + kept_bytes);
            let step = STEP_BYTES.min(until - next);
            for at in [next, next + step] {
                let bytes = STEP_BYTES.min(until - at) as usize;
                if bytes > 0 {
                    files.expect(Lsn::new(lsn.segment_number(), at), bytes);
                }
            }
            self.bytes.resize(kept + step as usize, 0);
            self.from_bytes = at;
            let read = read_with_holes(files, lsn.after(kept_bytes), &mut self.bytes[kept..])?;
            self.bytes.truncate(kept + read);
        }
        Ok(self.bytes.get((at - self.from_bytes) as usize..).unwrap_or(&[]))
    }
}

impl<'a> Walk<'a> {
    pub fn new(contents: &'a mut Contents, place: Place<'a>, synced: Lsn) -> Walk<'a> {
        let mut table = Table::new();
        table.begin(place.number);
        Walk {
            contents,
            table,
            number: place.number,
            segment_bytes: place.bytes,
            noted_end: place.end,
            later: place.later,
            synced,
            headless_end: 0,
            end_bytes: JOURNAL_PAGE_BYTES,
            is_blank: false,
            window: Window::EMPTY,
        }
    }

    pub fn run(&mut self, files: &mut impl Files) -> Result<(), RecoveryError> {
        let known_end = self.known_end(files)?;
        let until = known_end.unwrap_or(self.segment_bytes);
        let journal = self.contents.journal;
        let mut at = JOURNAL_PAGE_BYTES;
        while at < until {
            let lsn = Lsn::new(self.number, at);
            let bytes = self.block_at(files, lsn)?;
            let header = BlockHeader::decode(journal, lsn, bytes);
            let header = header.ok().filter(|header| header.bytes as usize <= bytes.len());
            let whole = header.filter(|header| is_whole(journal, header, bytes));
            let is_cut =
                self.contents.is_cut || header.is_some_and(|head| self.is_behind_cut(&head));
            if is_cut || whole.is_none() && !self.was_synced(files, lsn)? {
                self.contents.is_cut |= is_cut;
                self.note_torn(files, at)?;
                break;
            }
            match header {
                Some(header) => {
                    self.take_block(files, &header)?;
                    at += header.bytes;
                }
                None if self.take_headless(files, lsn)? > 0 => {
                    at = self.headless_end;
                    self.contents.findings.corrupt.push((lsn, lsn.after(BLOCK_HEADER_BYTES)));
                }
                None => {
                    let next = self.next_block(files, at + JOURNAL_PAGE_BYTES, until)?;
                    let Some(next) = next.or(known_end).or_else(|| self.synced_end()) else {
                        break; // Nobody says that there is anything.
                    };
                    let damaged = (lsn, Lsn::new(self.number, next));
                    self.contents.findings.corrupt.push(damaged);
                    at = next;
                }
            }
            self.end_bytes = at.min(self.segment_bytes);
        }
        Ok(())
    }

    /// True if the segment before this first block does not end where the block says.
    fn is_behind_cut(&self, header: &BlockHeader) -> bool {
        let Some((number, end_bytes)) = self.contents.last_end else { return false };
        header.previous_pages > 0
            && number + 1 == self.number
            && end_bytes != u32::from(header.previous_pages) * JOURNAL_PAGE_BYTES
    }

    /// True if some later block or header says that the block at `lsn` was on the disk.
    fn was_synced(&mut self, files: &mut impl Files, lsn: Lsn) -> Result<bool, RecoveryError> {
        if planted(Planted::RotTakenForTail) {
            return Ok(false);
        }
        if self.synced <= lsn {
            let rest = self.rest(files, lsn, self.segment_bytes, lsn)?;
            self.synced = self.synced.max(rest.synced);
        }
        if self.synced <= lsn {
            for &(number, file_bytes) in self.later {
                let first = Lsn::new(number, JOURNAL_PAGE_BYTES);
                let rest = self.rest(files, first, whole_pages(file_bytes), Lsn(u64::MAX))?;
                self.synced = self.synced.max(rest.synced);
            }
        }
        Ok(self.synced > lsn)
    }

    /// The content of a segment from a place on. No block further away was written while the one
    /// there was not on the disk (C5). A block that says that it was is no further away, if there
    /// is one: it begins where one ends that does not say so. The look ends at a block that says
    /// that more than `enough` was on the disk. A segment is read through once, although the walks
    /// of earlier ones look at it too.
    fn rest(
        &mut self,
        files: &mut impl Files,
        from: Lsn,
        segment_bytes: u32,
        enough: Lsn,
    ) -> Result<Rest, RecoveryError> {
        let (number, from_bytes) = (from.segment_number(), from.offset_bytes());
        let known = self.contents.rests.get(&number);
        if let Some(rest) = known.filter(|rest| rest.from_bytes == from_bytes) {
            return Ok(*rest);
        }
        let mut rest = Rest { from_bytes, synced: Lsn(0), used_bytes: 0 };
        let mut window = match number == self.number {
            true => std::mem::replace(&mut self.window, Window::EMPTY),
            false => Window::EMPTY,
        };
        let until = from_bytes + self.contents.unsynced_bytes_max + 2 * JOURNAL_PAGE_BYTES;
        let until = segment_bytes.min(until);
        for at in (from_bytes..until).step_by(JOURNAL_PAGE_BYTES as usize) {
            let lsn = Lsn::new(number, at);
            let bytes = window.at(files, lsn, JOURNAL_PAGE_BYTES, until)?;
            let page = &bytes[..bytes.len().min(ZEROS.len())];
            if *page == ZEROS[..page.len()] {
                continue;
            }
            rest.used_bytes = at + JOURNAL_PAGE_BYTES;
            if let Ok(header) = BlockHeader::decode(self.contents.journal, lsn, bytes) {
                rest.synced = rest.synced.max(header.synced);
                if planted(Planted::TailTakenForRot) {
                    rest.synced = rest.synced.max(lsn);
                }
            }
            if rest.synced > enough {
                return Ok(rest); // It is not kept, because it is not all.
            }
        }
        self.contents.rests.insert(number, rest);
        Ok(rest)
    }

    /// The end of the segment, if a later recovery or the first block of the next one tells it.
    fn known_end(&mut self, files: &mut impl Files) -> Result<Option<u32>, RecoveryError> {
        let is_inside = |end_bytes: &u32| *end_bytes <= self.segment_bytes;
        if let Some(end) = self.noted_end {
            return Ok(Some(end.offset_bytes()).filter(is_inside));
        }
        let next = self.later.first().filter(|(number, _)| *number == self.number + 1);
        let Some(&(number, _)) = next else { return Ok(None) };
        let mut page = PageBuffer::new(JOURNAL_PAGE_BYTES as usize);
        let lsn = Lsn::new(number, JOURNAL_PAGE_BYTES);
        read_whole(files, lsn, &mut page)?;
        let first = BlockHeader::decode(self.contents.journal, lsn, &page).ok();
        let pages = first.map(|first| u32::from(first.previous_pages)).filter(|pages| *pages > 0);
        let end_bytes = pages.map(|pages| pages * JOURNAL_PAGE_BYTES);
        Ok(end_bytes.filter(|end_bytes| *end_bytes <= self.segment_bytes))
    }

    /// The end of what was on the disk of this segment, if later blocks of it tell that.
    fn synced_end(&self) -> Option<u32> {
        let is_here = self.synced.segment_number() == self.number;
        is_here.then(|| self.synced.offset_bytes())
    }

    /// The offset of the next block whose header is sound.
    fn next_block(
        &mut self,
        files: &mut impl Files,
        from: u32,
        until: u32,
    ) -> Result<Option<u32>, RecoveryError> {
        let (mut at, journal) = (from, self.contents.journal);
        while at < until {
            let lsn = Lsn::new(self.number, at);
            let bytes = self.block_at(files, lsn)?;
            if BlockHeader::decode(journal, lsn, bytes).is_ok() {
                return Ok(Some(at));
            }
            if is_page(lsn, bytes) {
                return Ok(None); // Blocks behind an index never counted.
            }
            at += JOURNAL_PAGE_BYTES;
        }
        Ok(None)
    }

    /// Counts what stands behind the end.
    fn note_torn(&mut self, files: &mut impl Files, from: u32) -> Result<(), RecoveryError> {
        let whole = Lsn(u64::MAX);
        let rest = self.rest(files, Lsn::new(self.number, from), self.segment_bytes, whole)?;
        let last = rest.used_bytes.max(from);
        self.contents.findings.torn_bytes += u64::from(last - from);
        // Behind a cut, anything may follow anywhere.
        self.is_blank = last == JOURNAL_PAGE_BYTES && !self.contents.is_cut;
        Ok(())
    }

    /// Takes the runs of a block whose header is damaged: the first one stands at its place, and
    /// each other one behind the one before. Returns their number.
    fn take_headless(&mut self, files: &mut impl Files, lsn: Lsn) -> Result<u32, RecoveryError> {
        let Walk { contents, table, number, window, .. } = self;
        let bytes = window.at(files, lsn, JOURNAL_BLOCK_BYTES_MAX, self.segment_bytes)?;
        let (mut at, mut count) = (BLOCK_HEADER_BYTES, 0);
        while let Some(rest) = bytes.get(at as usize..)
            && let Ok(run) = Run::decode(contents.journal, lsn.after(at), rest)
        {
            contents.take_run(table, *number, &run);
            at += run.header.bytes;
            count += 1;
        }
        self.headless_end = lsn.offset_bytes() + at.next_multiple_of(JOURNAL_PAGE_BYTES);
        Ok(count)
    }

    /// The bytes of the block at `lsn`.
    fn block_at(&mut self, files: &mut impl Files, lsn: Lsn) -> io::Result<&[u8]> {
        self.window.at(files, lsn, JOURNAL_BLOCK_BYTES_MAX, self.segment_bytes)
    }

    fn take_block(
        &mut self,
        files: &mut impl Files,
        header: &BlockHeader,
    ) -> Result<(), RecoveryError> {
        self.table.last_us = self.table.last_us.max(header.wall_us);
        let Walk { contents, table, number, .. } = self;
        let (wanted, until) = (JOURNAL_BLOCK_BYTES_MAX, self.segment_bytes);
        let bytes = self.window.at(files, header.lsn, wanted, until)?;
        for found in runs(contents.journal, header, bytes) {
            match found {
                Ok(run) => contents.take_run(table, *number, &run),
                Err(Rot { from, until, .. }) => contents.findings.corrupt.push((from, until)),
            }
        }
        Ok(())
    }
}

/// True if all of a block is as it was written.
pub(super) fn is_whole(journal: u128, header: &BlockHeader, bytes: &[u8]) -> bool {
    let Some(block) = bytes.get(..header.bytes as usize) else { return false };
    let mut run_count = 0;
    for found in runs(journal, header, block) {
        let Ok(run) = found else { return false };
        run_count += 1;
        let is_sound = match run.header.kind {
            RunKind::Chunks => run.chunks().all(|chunk| chunk.is_ok()),
            _ => run.body().is_ok(),
        };
        if !is_sound {
            return false;
        }
    }
    run_count == header.run_count && is_padded(header, block)
}

/// Reads as many bytes as there should be; missing ones are zeros.
pub(super) fn read_whole(files: &mut impl Files, lsn: Lsn, buffer: &mut [u8]) -> io::Result<()> {
    let read = read_with_holes(files, lsn, buffer)?;
    buffer[read..].fill(0);
    Ok(())
}

/// Reads, page by page if the disk cannot read some of them. These then are zeros, which nothing
/// of a journal is.
pub(super) fn read_with_holes(
    files: &mut impl Files,
    lsn: Lsn,
    buffer: &mut [u8],
) -> io::Result<usize> {
    if let Ok(read) = files.read(lsn, buffer) {
        return Ok(read);
    }
    let (mut at, mut failed) = (0_u32, 0);
    for page in buffer.chunks_mut(JOURNAL_PAGE_BYTES as usize) {
        if at.is_multiple_of(STRETCH_BYTES) {
            failed = 0;
        }
        match files.read(lsn.after(at), page) {
            Ok(read) if read < page.len() => return Ok(at as usize + read),
            Ok(_) => {}
            Err(error) if failed == UNREADABLE_PAGES_MAX => return Err(error),
            Err(_) => {
                page.fill(0);
                failed += 1;
            }
        }
        at += page.len() as u32;
    }
    Ok(buffer.len())
}

/// Number of pages that may be unreadable in one stretch before the disk counts as broken.
const UNREADABLE_PAGES_MAX: u32 = 64;
const STRETCH_BYTES: u32 = 1 << 20;
