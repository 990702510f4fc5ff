//! A look at the files of a journal that changes nothing.
//!
//! It works while a server writes the journal, after the server is gone, and on damaged files. It
//! takes no lock. A server may seal, begin and remove segments meanwhile. A place that seems wrong
//! is therefore read a second time before it counts as damaged.
//!
//! - `blocks.rs` walks over the blocks of a segment, and tells a torn end from damage as
//!   [`super::recovery`] does. `rows.rs` reads the index of a sealed segment.
//! - `list.rs` sums up each execution, `output.rs` gives the chunks of one, and `verify.rs` checks
//!   every byte that counts.
//!
//! Absent: writes, and knowledge of the details of records.
//!
//! Tests: `tests.rs`, and `tests/journal` with the program.

mod blocks;
mod list;
mod output;
mod rows;
#[cfg(test)]
mod tests;
mod verify;

use std::fmt;
use std::io;

pub use list::{Listed, Listing, Missing};
pub use output::{Loss, Lost, Output, Sink, Summary};
pub use verify::{Fault, Sums, Wrong, verify};

use super::block::Run;
use super::format::{Damage, Lsn, SegmentHeader};
use super::recovery::whole_pages;
use crate::limits::{JOURNAL_PAGE_BYTES, JOURNAL_SEGMENT_BYTES};
use blocks::{Piece, Scope, Walked, walk};
use rows::{Index, read_index};

/// The files of a journal, for a reader.
pub trait ReadFiles {
    /// The numbers and sizes of all segments, in any order. Unfinished ones are not among them.
    ///
    /// # Errors
    /// The error of the directory.
    fn segments(&mut self) -> io::Result<Vec<(u64, u64)>>;

    /// Reads into `buffer`. Returns fewer bytes only at the end of the segment.
    ///
    /// # Errors
    /// The error of the file. [`io::ErrorKind::NotFound`] if the segment was removed.
    fn read(&mut self, lsn: Lsn, buffer: &mut [u8]) -> io::Result<usize>;
}

/// The reason why a journal cannot be looked at.
#[derive(Debug)]
pub enum LookError {
    /// The directory or a file cannot be read.
    Io {
        /// The segment; `None` for the directory.
        segment_number: Option<u64>,
        /// The error.
        error: io::Error,
    },
    /// The directory has no segments.
    Empty,
    /// No header can be read, although there are segments.
    NoHeader,
    /// A segment belongs to another journal, or to another shard.
    Foreign {
        /// The number of the segment.
        segment_number: u64,
    },
    /// A newer version of this program has written a segment.
    Version {
        /// The number of the segment.
        segment_number: u64,
        /// Its version.
        version: u16,
    },
}

/// A segment that was there when the look began.
#[derive(Clone, Copy, Debug)]
struct Segment {
    number: u64,
    file_bytes: u64,
    header: Result<SegmentHeader, Damage>,
}

impl Segment {
    /// Size of the segment. The size of its file has the say if its header cannot be read.
    fn bytes(&self) -> u32 {
        self.header.map_or_else(|_| whole_pages(self.file_bytes), |header| header.segment_bytes)
    }
}

/// The journal of one shard, seen from outside.
pub struct Look<F> {
    files: F,
    /// The random number of the journal.
    journal: u128,
    segments: Vec<Segment>,
}

/// A part of the look that takes what the segments have, in their order.
trait Visitor<F> {
    /// Takes a sealed segment from its index.
    fn index(&mut self, files: &mut F, index: &Index) -> io::Result<()>;

    /// Takes a piece of a segment without an index.
    fn piece(&mut self, piece: &Piece<'_>);

    /// Takes notice that a segment was removed meanwhile, so that its chunks have expired.
    fn gone(&mut self);

    /// True if nothing more is wanted.
    fn is_done(&self) -> bool {
        false
    }
}

impl<F: ReadFiles> Look<F> {
    /// Begins to look at the files of a journal.
    ///
    /// # Errors
    /// [`LookError`].
    pub fn open(mut files: F) -> Result<Look<F>, LookError> {
        let in_directory = |error| LookError::Io { segment_number: None, error };
        let mut found = files.segments().map_err(in_directory)?;
        found.retain(|(number, _)| *number < SEGMENT_NUMBERS); // No other number has places.
        found.sort_unstable();
        let mut segments: Vec<Segment> = Vec::with_capacity(found.len());
        for (number, file_bytes) in found {
            let header = match read_header(&mut files, number) {
                Ok(header) => header,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    segments.clear(); // It was just removed, and with it all older ones.
                    continue;
                }
                Err(error) => {
                    return Err(LookError::Io { segment_number: Some(number), error });
                }
            };
            if let Err(Damage::Version(version)) = header {
                return Err(LookError::Version { segment_number: number, version });
            }
            segments.push(Segment { number, file_bytes, header });
        }
        if segments.is_empty() {
            return Err(LookError::Empty);
        }
        let headers = || segments.iter().filter_map(|segment| segment.header.ok());
        let first = headers().next().ok_or(LookError::NoHeader)?;
        let is_foreign =
            |header: &SegmentHeader| header.journal != first.journal || header.shard != first.shard;
        if let Some(foreign) = headers().find(is_foreign) {
            return Err(LookError::Foreign { segment_number: foreign.segment_number });
        }
        let oldest = headers().map(|header| header.oldest_segment).max().unwrap_or(0);
        segments.retain(|segment| segment.number >= oldest);
        Ok(Look { files, journal: first.journal, segments })
    }

    /// Number of segments that count, and the size of their files together.
    pub fn size(&self) -> (u64, u64) {
        let bytes = self.segments.iter().map(|segment| segment.file_bytes).sum();
        (self.segments.len() as u64, bytes)
    }

    /// True if no segment was ever removed, so that no chunk has expired.
    fn is_complete(&self) -> bool {
        self.segments.first().is_some_and(|segment| segment.number <= 1)
    }

    /// Shows all segments to `visitor`.
    fn visit(&mut self, visitor: &mut impl Visitor<F>) -> Result<(), LookError> {
        let mut last_end = None;
        for at in 0..self.segments.len() {
            if visitor.is_done() {
                break;
            }
            let number = self.segments[at].number;
            match self.visit_one(at, last_end, visitor) {
                Ok(walked) if walked.is_cut => break,
                Ok(walked) => last_end = Some((number, walked.end_bytes)),
                Err(error) if self.is_gone(number, &error) => visitor.gone(),
                Err(error) => return Err(LookError::Io { segment_number: Some(number), error }),
            }
        }
        Ok(())
    }

    fn visit_one(
        &mut self,
        at: usize,
        last_end: Option<(u64, u32)>,
        visitor: &mut impl Visitor<F>,
    ) -> io::Result<Walked> {
        let Look { files, journal, segments } = self;
        let segment = &segments[at];
        if let Ok(index) = read_index(files, *journal, segment)? {
            visitor.index(files, &index)?;
            return Ok(Walked { end_bytes: index.trailer.data_end_bytes, ..Walked::default() });
        }
        let later = &segments[at + 1..];
        let scope = Scope { journal: *journal, segment, later, last_end, sealed_end: None };
        walk(files, scope, &mut |piece| visitor.piece(&piece))
    }

    /// True if a segment was removed since the look began: its chunks have expired.
    fn is_gone(&mut self, number: u64, error: &io::Error) -> bool {
        if error.kind() != io::ErrorKind::NotFound {
            return false;
        }
        let found = self.files.segments().unwrap_or_default();
        found.iter().all(|(found, _)| *found != number)
    }
}

/// Number of segments that have a place in the numbers of 64 bits.
const SEGMENT_NUMBERS: u64 = u64::MAX / JOURNAL_SEGMENT_BYTES as u64;

fn read_header(
    files: &mut impl ReadFiles,
    number: u64,
) -> io::Result<Result<SegmentHeader, Damage>> {
    let mut page = [0; JOURNAL_PAGE_BYTES as usize];
    blocks::read_whole(files, Lsn::new(number, 0), &mut page)?;
    Ok(SegmentHeader::decode(&page).and_then(|header| {
        let is_here = header.segment_number == number;
        is_here.then_some(header).ok_or(Damage::Place)
    }))
}

/// Reads the run at a place. `bytes` is its size.
fn read_run<T>(
    files: &mut impl ReadFiles,
    journal: u128,
    lsn: Lsn,
    bytes: u32,
    use_run: impl FnOnce(Option<Run<'_>>) -> T,
) -> io::Result<T> {
    let mut run = vec![0; bytes.min(crate::limits::JOURNAL_BLOCK_BYTES_MAX) as usize];
    blocks::read_whole(files, lsn, &mut run)?;
    let decoded = Run::decode(journal, lsn, &run).ok();
    Ok(use_run(decoded.filter(|run| run.header.bytes == bytes)))
}

impl fmt::Display for LookError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LookError::Io { segment_number: None, error } => error.fmt(out),
            LookError::Io { segment_number: Some(number), error } => {
                write!(out, "segment {number}: {error}")
            }
            LookError::Empty => out.write_str("no journal is there: it has no segments"),
            LookError::NoHeader => out.write_str("no segment has a readable header"),
            LookError::Foreign { segment_number } => {
                write!(out, "segment {segment_number} belongs to another journal")
            }
            LookError::Version { segment_number, version } => {
                let text = "was written by a newer version of this program";
                write!(out, "segment {segment_number} {text} (format {version})")
            }
        }
    }
}

impl std::error::Error for LookError {}
