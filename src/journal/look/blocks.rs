//! A walk over the blocks of a segment that may be written meanwhile.
//!
//! The judgement is that of [`super::super::recovery`]: a bad block is damage if something later
//! says that it was on the disk, and else the end. One thing is added. The place may have been
//! written after it was read, and before it was vouched for. It is therefore read again then.

use std::io;

use super::{ReadFiles, Segment};
use crate::journal::block::{Rot, Run, runs};
use crate::journal::format::{BLOCK_HEADER_BYTES, BlockHeader, Damage, Lsn};
use crate::journal::index::is_page;
use crate::journal::walk::is_whole;
use crate::limits::{JOURNAL_BLOCK_BYTES_MAX, JOURNAL_PAGE_BYTES};

/// A part of a segment, in the order of places.
pub(super) enum Piece<'a> {
    /// A block with a sound header. Its runs may be damaged.
    Block { journal: u128, header: BlockHeader, bytes: &'a [u8] },
    /// A run of a block whose header is damaged.
    Run(&'a Run<'a>),
    /// A stretch that should be a block, or a header.
    Rot(Rot),
}

impl<'a> Piece<'a> {
    /// Shows all runs, and the stretches that are none.
    pub(super) fn each_run(&self, take: &mut dyn FnMut(Result<Run<'a>, Rot>)) {
        match self {
            Piece::Block { journal, header, bytes } => runs(*journal, header, bytes).for_each(take),
            Piece::Run(run) => take(Ok(**run)),
            Piece::Rot(rot) => take(Err(*rot)),
        }
    }

    /// True for the damaged header of a block whose runs follow.
    pub(super) fn is_header(&self) -> bool {
        matches!(self, Piece::Rot(rot) if rot.from.after(BLOCK_HEADER_BYTES) == rot.until)
    }
}

/// The end of a walk.
#[derive(Clone, Copy, Default)]
pub(super) struct Walked {
    /// The offset behind the last block that counts.
    pub end_bytes: u32,
    /// Bytes behind it that are not zero: the torn end of the last writes, or writes under way.
    pub torn_bytes: u64,
    /// True if the segment before has lost its end, so that this one does not count.
    pub is_cut: bool,
}

/// A segment and its surroundings.
pub(super) struct Scope<'a> {
    pub journal: u128,
    pub segment: &'a Segment,
    /// The segments behind it.
    pub later: &'a [Segment],
    /// The number and the end of the segment before.
    pub last_end: Option<(u64, u32)>,
    /// The end of the blocks, if the segment is sealed. All of them were on the disk then.
    pub sealed_end: Option<u32>,
}

/// Walks over the blocks of a segment, and shows them.
pub(super) fn walk(
    files: &mut impl ReadFiles,
    scope: Scope<'_>,
    take: &mut dyn FnMut(Piece<'_>),
) -> io::Result<Walked> {
    let headers = scope.later.iter().filter_map(|segment| segment.header.ok());
    let synced = headers.map(|header| header.synced).max().unwrap_or(Lsn(0));
    let window = Window::new(scope.segment);
    Walker { files, scope, window, synced, has_looked: false }.run(take)
}

struct Walker<'a, F> {
    files: &'a mut F,
    scope: Scope<'a>,
    window: Window,
    /// Everything before this place was on the disk, according to what stands behind.
    synced: Lsn,
    /// True once the blocks behind were looked at for such places.
    has_looked: bool,
}

impl<F: ReadFiles> Walker<'_, F> {
    fn run(mut self, take: &mut dyn FnMut(Piece<'_>)) -> io::Result<Walked> {
        let until = match self.scope.sealed_end {
            Some(end_bytes) => end_bytes,
            None => self.known_end()?.unwrap_or(self.scope.segment.bytes()),
        };
        let mut at = JOURNAL_PAGE_BYTES;
        let mut walked = Walked { end_bytes: at, ..Walked::default() };
        while at < until {
            let (mut header, is_whole) = self.judge(at)?;
            if header.is_ok_and(|header| self.is_behind_cut(&header)) {
                (walked.is_cut, walked.torn_bytes) = (true, self.used_bytes(at)?);
                break;
            }
            if !is_whole {
                if self.scope.sealed_end.is_none() {
                    if self.ends_at(at)? {
                        break;
                    }
                    if !self.was_synced(at)? {
                        walked.torn_bytes = self.used_bytes(at)?;
                        break;
                    }
                }
                self.window.forget();
                header = self.judge(at)?.0;
            }
            let next = match header {
                Ok(header) => {
                    let bytes = self.window.at(self.files, at, header.bytes)?;
                    let journal = self.scope.journal;
                    let bytes = &bytes[..header.bytes as usize];
                    take(Piece::Block { journal, header, bytes });
                    Some(at + header.bytes)
                }
                Err(damage) => self.take_damaged(at, until, damage, take)?,
            };
            let Some(next) = next else { break };
            at = next;
            walked.end_bytes = at.min(self.scope.segment.bytes());
        }
        Ok(walked)
    }

    fn lsn(&self, at: u32) -> Lsn {
        Lsn::new(self.scope.segment.number, at)
    }

    /// The header of the block at an offset, and true if all of the block is sound. The runs of a
    /// sealed segment do not matter for that: none of them was written after it was sealed.
    fn judge(&mut self, at: u32) -> io::Result<(Result<BlockHeader, Damage>, bool)> {
        let (journal, lsn) = (self.scope.journal, self.lsn(at));
        let head = self.window.at(self.files, at, BLOCK_HEADER_BYTES)?;
        let header = match BlockHeader::decode(journal, lsn, head) {
            Ok(header) => header,
            Err(damage) => return Ok((Err(damage), false)),
        };
        let bytes = self.window.at(self.files, at, header.bytes)?;
        if header.bytes as usize > bytes.len() {
            return Ok((Err(Damage::Short), false));
        }
        let is_sealed = self.scope.sealed_end.is_some();
        Ok((Ok(header), is_sealed || is_whole(journal, &header, bytes)))
    }

    /// True if the segment before this first block does not end where the block says.
    fn is_behind_cut(&self, header: &BlockHeader) -> bool {
        let Some((number, end_bytes)) = self.scope.last_end else { return false };
        header.previous_pages > 0
            && number + 1 == self.scope.segment.number
            && end_bytes != u32::from(header.previous_pages) * JOURNAL_PAGE_BYTES
    }

    /// True if no block begins at an offset: the index does, or the next segment says so.
    fn ends_at(&mut self, at: u32) -> io::Result<bool> {
        let lsn = self.lsn(at);
        let is_index = is_page(lsn, self.window.at(self.files, at, JOURNAL_PAGE_BYTES)?);
        Ok(is_index || self.known_end()?.is_some_and(|end_bytes| at >= end_bytes))
    }

    /// The end of the segment, if the first block of the next one tells it.
    fn known_end(&mut self) -> io::Result<Option<u32>> {
        let Some(next) = self.scope.later.first() else { return Ok(None) };
        if next.number != self.scope.segment.number + 1 {
            return Ok(None);
        }
        let mut head = [0; BLOCK_HEADER_BYTES as usize];
        let lsn = Lsn::new(next.number, JOURNAL_PAGE_BYTES);
        read_whole(self.files, lsn, &mut head)?;
        let first = BlockHeader::decode(self.scope.journal, lsn, &head).ok();
        let pages = first.map(|first| u32::from(first.previous_pages)).filter(|pages| *pages > 0);
        let end_bytes = pages.map(|pages| pages * JOURNAL_PAGE_BYTES);
        Ok(end_bytes.filter(|end_bytes| *end_bytes <= self.scope.segment.bytes()))
    }

    /// True if some later block or header says that the block at an offset was on the disk.
    fn was_synced(&mut self, at: u32) -> io::Result<bool> {
        let lsn = self.lsn(at);
        if self.synced <= lsn && !self.has_looked {
            self.has_looked = true;
            self.look_at(*self.scope.segment, at + JOURNAL_PAGE_BYTES)?;
            for segment in self.scope.later {
                self.look_at(*segment, JOURNAL_PAGE_BYTES)?;
            }
        }
        Ok(self.synced > lsn)
    }

    /// Looks at all blocks from an offset to the end of a segment.
    fn look_at(&mut self, segment: Segment, from: u32) -> io::Result<()> {
        let mut window = Window::new(&segment);
        let mut at = from;
        while at < segment.bytes() {
            let lsn = Lsn::new(segment.number, at);
            let bytes = window.at(self.files, at, BLOCK_HEADER_BYTES)?;
            if let Ok(header) = BlockHeader::decode(self.scope.journal, lsn, bytes) {
                self.synced = self.synced.max(header.synced);
            }
            at += JOURNAL_PAGE_BYTES;
        }
        Ok(())
    }

    /// Takes what a block without a header has left. Returns the offset behind it; `None` if
    /// nothing tells how long it is.
    fn take_damaged(
        &mut self,
        at: u32,
        until: u32,
        damage: Damage,
        take: &mut dyn FnMut(Piece<'_>),
    ) -> io::Result<Option<u32>> {
        let lsn = self.lsn(at);
        let bytes = self.window.at(self.files, at, JOURNAL_BLOCK_BYTES_MAX)?;
        let first = lsn.after(BLOCK_HEADER_BYTES);
        let journal = self.scope.journal;
        if Run::decode(journal, first, bytes.get(BLOCK_HEADER_BYTES as usize..).unwrap_or(&[]))
            .is_ok()
        {
            take(Piece::Rot(Rot { from: lsn, until: first, damage }));
            let mut run_at = BLOCK_HEADER_BYTES;
            while let Some(rest) = bytes.get(run_at as usize..)
                && let Ok(run) = Run::decode(journal, lsn.after(run_at), rest)
            {
                take(Piece::Run(&run));
                run_at += run.header.bytes;
            }
            let end_bytes = run_at.next_multiple_of(JOURNAL_PAGE_BYTES);
            let rest = bytes.get(run_at as usize..end_bytes as usize);
            if !rest.is_some_and(|rest| rest.iter().all(|byte| *byte == 0)) {
                let (from, until) = (lsn.after(run_at), lsn.after(end_bytes));
                take(Piece::Rot(Rot { from, until, damage: Damage::Magic }));
            }
            return Ok(Some(at + end_bytes));
        }
        let known_end = self.scope.sealed_end.or(self.known_end()?);
        let next = self.next_block(at + JOURNAL_PAGE_BYTES, until)?.or(known_end);
        let next = next.or_else(|| self.synced_end()).filter(|next| *next > at);
        if let Some(next) = next {
            take(Piece::Rot(Rot { from: lsn, until: self.lsn(next), damage }));
        }
        Ok(next)
    }

    /// The end of what was on the disk of this segment, if later blocks of it tell that.
    fn synced_end(&self) -> Option<u32> {
        let is_here = self.synced.segment_number() == self.scope.segment.number;
        is_here.then(|| self.synced.offset_bytes())
    }

    /// The offset of the next block whose header is sound.
    fn next_block(&mut self, from: u32, until: u32) -> io::Result<Option<u32>> {
        let mut at = from;
        while at < until {
            let lsn = self.lsn(at);
            let bytes = self.window.at(self.files, at, JOURNAL_PAGE_BYTES)?;
            if BlockHeader::decode(self.scope.journal, lsn, bytes).is_ok() {
                return Ok(Some(at));
            }
            if is_page(lsn, bytes) {
                return Ok(None); // Blocks behind an index never counted.
            }
            at += JOURNAL_PAGE_BYTES;
        }
        Ok(None)
    }

    /// Number of bytes from an offset to the last one that is not zero, in whole pages.
    fn used_bytes(&mut self, from: u32) -> io::Result<u64> {
        let (mut last, mut at) = (from, from);
        while at < self.scope.segment.bytes() {
            let bytes = self.window.at(self.files, at, JOURNAL_PAGE_BYTES)?;
            let page = &bytes[..bytes.len().min(JOURNAL_PAGE_BYTES as usize)];
            at += JOURNAL_PAGE_BYTES;
            if page.iter().any(|byte| *byte != 0) {
                last = at;
            }
        }
        Ok(u64::from(last - from))
    }
}

/// A part of a segment in memory.
struct Window {
    bytes: Vec<u8>,
    from_bytes: u32,
    segment_number: u64,
    segment_bytes: u32,
}

/// Size of the window: the longest block.
const WINDOW_BYTES: u32 = JOURNAL_BLOCK_BYTES_MAX;

impl Window {
    fn new(segment: &Segment) -> Window {
        let (segment_number, segment_bytes) = (segment.number, segment.bytes());
        Window { bytes: Vec::new(), from_bytes: 0, segment_number, segment_bytes }
    }

    /// Drops the bytes, so that they are read again.
    fn forget(&mut self) {
        self.bytes.clear();
    }

    /// The bytes from an offset on: at least so many, if the segment has them.
    fn at(&mut self, files: &mut impl ReadFiles, at: u32, bytes: u32) -> io::Result<&[u8]> {
        let left = self.segment_bytes.saturating_sub(at);
        let until = self.from_bytes + self.bytes.len() as u32;
        if at < self.from_bytes || at + bytes.min(left) > until {
            self.bytes.resize(WINDOW_BYTES.min(left) as usize, 0);
            self.from_bytes = at;
            let lsn = Lsn::new(self.segment_number, at);
            let read = read_pages(files, lsn, &mut self.bytes)?;
            self.bytes.truncate(read);
        }
        Ok(self.bytes.get((at - self.from_bytes) as usize..).unwrap_or(&[]))
    }
}

/// Reads as many bytes as there should be; missing ones are zeros.
pub(super) fn read_whole(
    files: &mut impl ReadFiles,
    lsn: Lsn,
    buffer: &mut [u8],
) -> io::Result<()> {
    let read = read_pages(files, lsn, buffer)?;
    buffer[read..].fill(0);
    Ok(())
}

/// Reads, page by page if the disk cannot read some of them. These then are zeros, which nothing
/// of a journal is.
fn read_pages(files: &mut impl ReadFiles, lsn: Lsn, buffer: &mut [u8]) -> io::Result<usize> {
    match files.read(lsn, buffer) {
        Err(error) if is_of_disk(&error) => {}
        result => return result,
    }
    let (mut at, mut failed) = (0, 0);
    for page in buffer.chunks_mut(JOURNAL_PAGE_BYTES as usize) {
        match files.read(lsn.after(at), page) {
            Ok(read) if read < page.len() => return Ok(at as usize + read),
            Ok(_) => {}
            Err(error) if failed == UNREADABLE_PAGES_MAX || !is_of_disk(&error) => {
                return Err(error);
            }
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

/// True if the disk has failed, and not the access to the file.
fn is_of_disk(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}
