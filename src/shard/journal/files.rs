//! Wishes of a journal as operations on files.
//!
//! A segment is one file. Its name is its number, as in `000000000017.seg`. A segment that is being
//! made has the ending `.prep`, so that a crash leaves no half a segment under a good name.
//!
//! A new segment is filled with zeros piece by piece. A sync of a block changes no metadata then.
//! Once the segment before is half full, the new one gets its name without the rest of the zeros. A
//! journal that is written at full speed thus does not wait for them.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use slab::Slab;
use smallvec::{SmallVec, smallvec};

use crate::base::PageBuffer;
use crate::journal::format::{Lsn, SegmentHeader};
use crate::journal::{Wish, WishToken};
use crate::limits::{
    DISK_FILES_MAX, DISK_OPERATIONS_MAX, JOURNAL_FILL_BYTES, JOURNAL_PAGE_BYTES,
    JOURNAL_SEGMENT_BYTES,
};
use crate::reactor::{DiskAnswer, DiskDone, DiskRequest, DiskWork, FileId, FileName, Reactor};

/// The files of a journal, and the operations on them that are under way.
#[derive(Debug)]
pub struct JournalFiles {
    files: BTreeMap<u64, Segment>,
    steps: Slab<Step>,
    /// Operations that the reactor did not take yet.
    refused: VecDeque<DiskRequest>,
    /// True if the next segment is wanted soon, and zeros would be too late.
    is_urgent: bool,
}

/// A segment whose file is open, or is being opened.
#[derive(Debug)]
enum Segment {
    Open { file: FileId, read_count: u32 },
    Opening { reads: Vec<PartRead> },
}

/// A read of a part of a segment.
#[derive(Debug)]
pub struct PartRead {
    /// A number that the reader chooses.
    pub name: u64,
    /// The place of the first byte.
    pub lsn: Lsn,
    /// Number of bytes.
    pub bytes: u32,
    /// The place for them.
    pub buffer: PageBuffer,
    /// True if they come from the disk, although the page cache may have them.
    pub is_fresh: bool,
}

/// An operation that is under way.
#[derive(Debug)]
enum Step {
    Write { token: WishToken, sync: bool },
    Sync,
    Create { header: SegmentHeader },
    Fill { header: SegmentHeader, file: FileId, filled_bytes: u32 },
    Header { header: SegmentHeader, file: FileId },
    Rename { header: SegmentHeader, file: FileId },
    Remove,
    Close,
    Open { segment_number: u64 },
    Read { name: u64, segment_number: u64 },
}

/// A result for the journal, or for a reader.
#[derive(Debug)]
pub enum Completed {
    /// A wish of the journal, for [`crate::journal::Journal::on_done`].
    Wish {
        /// The name of the wish.
        token: WishToken,
        /// The result.
        result: Result<(), io::ErrorKind>,
        /// The buffer of a write.
        buffer: Option<PageBuffer>,
        /// True if a write was synced too.
        synced: bool,
    },
    /// A read.
    Read {
        /// The number that the reader has chosen.
        name: u64,
        /// Number of bytes that were read.
        result: Result<u32, io::ErrorKind>,
        /// The bytes.
        buffer: Option<PageBuffer>,
    },
}

/// The results of one completion: hardly ever more than one.
pub type Finished = SmallVec<[Completed; 1]>;

/// The name of a segment's file.
pub fn segment_name(segment_number: u64) -> FileName {
    FileName::new(&format!("{segment_number:012}{SEGMENT_ENDING}")).expect("digits and a dot")
}

/// The name of the file while the segment is being made.
pub fn prepared_name(segment_number: u64) -> FileName {
    FileName::new(&format!("{segment_number:012}{PREPARED_ENDING}")).expect("digits and a dot")
}

/// The number of the segment with this name.
pub fn segment_of(name: &FileName) -> Option<u64> {
    let digits = name.as_str().strip_suffix(SEGMENT_ENDING)?;
    let is_plain = digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_plain.then(|| digits.parse().ok()).flatten();
    number.filter(|number| *number < SEGMENT_NUMBERS) // Others have no places.
}

/// True if a file with this name is the rest of a segment that was never finished.
pub fn is_unfinished(name: &FileName) -> bool {
    name.as_str().ends_with(PREPARED_ENDING)
}

/// Zeros for a new segment of this size: an eighth of it, or [`JOURNAL_FILL_BYTES`].
pub(super) fn zeros_for(segment_bytes: u32) -> PageBuffer {
    let piece_bytes = (segment_bytes / 8).min(JOURNAL_FILL_BYTES);
    PageBuffer::new(piece_bytes.next_multiple_of(JOURNAL_PAGE_BYTES) as usize)
}

/// Number of segments that have a place in the numbers of 64 bits.
const SEGMENT_NUMBERS: u64 = u64::MAX / JOURNAL_SEGMENT_BYTES as u64;
const SEGMENT_ENDING: &str = ".seg";
const PREPARED_ENDING: &str = ".prep";
/// Number of files that stay open for later reads.
const OPEN_FILES_MAX: usize = DISK_FILES_MAX as usize / 4;

impl Default for JournalFiles {
    /// No files. There is memory for all operations that may be under way.
    fn default() -> JournalFiles {
        let operations = DISK_OPERATIONS_MAX as usize;
        JournalFiles {
            files: BTreeMap::new(),
            steps: Slab::with_capacity(operations),
            refused: VecDeque::with_capacity(operations),
            is_urgent: false,
        }
    }
}

impl JournalFiles {
    /// Takes a segment whose file is open.
    pub fn add(&mut self, segment_number: u64, file: FileId) {
        let before = self.files.insert(segment_number, Segment::Open { file, read_count: 0 });
        assert!(before.is_none()); // A segment is opened once.
    }

    /// Carries out a wish of the journal.
    pub fn carry_out(&mut self, wish: Wish, reactor: &mut impl Reactor) {
        let (step, work) = match wish {
            Wish::Write { token, lsn, buffer, bytes, sync } => {
                let file = self.file(lsn.segment_number());
                let offset = u64::from(lsn.offset_bytes());
                let work = DiskWork::Write { file, offset, buffer, bytes, sync };
                (Step::Write { token, sync }, work)
            }
            Wish::Sync { segment_number } => {
                (Step::Sync, DiskWork::Sync { file: self.file(segment_number) })
            }
            Wish::Prepare { header } => {
                let name = prepared_name(header.segment_number);
                let bytes = u64::from(header.segment_bytes);
                (Step::Create { header }, DiskWork::Create { name, bytes })
            }
            Wish::Remove { segment_number } => {
                self.close(segment_number, reactor);
                (Step::Remove, DiskWork::Remove { name: segment_name(segment_number) })
            }
        };
        self.submit(step, work, reactor);
    }

    /// Reads a part of a segment. [`Completed::Read`] has the same `name`. The page cache has
    /// nothing of a sealed segment that the disk had not when it was sealed.
    pub fn read(&mut self, read: PartRead, reactor: &mut impl Reactor) {
        let segment_number = read.lsn.segment_number();
        match self.files.get_mut(&segment_number) {
            Some(Segment::Open { file, read_count }) => {
                *read_count += 1;
                let file = *file;
                self.begin_read(read, file, reactor);
            }
            Some(Segment::Opening { reads }) => reads.push(read),
            None => {
                self.make_room(reactor);
                self.files.insert(segment_number, Segment::Opening { reads: vec![read] });
                let work = DiskWork::Open { name: segment_name(segment_number) };
                self.submit(Step::Open { segment_number }, work, reactor);
            }
        }
    }

    /// Notes if the next segment is wanted soon.
    pub fn hurry(&mut self, is_urgent: bool) {
        self.is_urgent = is_urgent;
    }

    /// Takes a completion of the reactor's disk. Returns what is finished by it.
    pub fn on_done(&mut self, done: DiskDone, reactor: &mut impl Reactor) -> Finished {
        let DiskDone { token, result, buffer } = done;
        let step = self.steps.remove(token as usize);
        let kind = result.as_ref().err().map(io::Error::kind);
        let outcome = kind.map_or(Ok(()), Err);
        let wish = |token, synced, buffer| {
            smallvec![Completed::Wish { token, result: outcome, buffer, synced }]
        };
        let completed = match step {
            Step::Write { token, sync } => wish(token, sync, buffer),
            Step::Sync => wish(WishToken::Sync, true, None),
            Step::Remove => wish(WishToken::Remove, true, None),
            Step::Close => Finished::new(),
            Step::Read { name, segment_number } => {
                self.end_read(segment_number);
                smallvec![Completed::Read { name, result: bytes_of(result), buffer }]
            }
            Step::Open { segment_number } => self.opened(segment_number, result, reactor),
            Step::Create { .. } | Step::Fill { .. } | Step::Header { .. } | Step::Rename { .. } => {
                self.prepared(step, result, buffer, reactor)
            }
        };
        while let Some(request) = self.refused.pop_front() {
            if let Err(request) = reactor.submit_disk(request) {
                self.refused.push_front(request);
                break;
            }
        }
        completed
    }

    /// Number of operations that are under way.
    pub fn under_way(&self) -> usize {
        self.steps.len()
    }

    /// The file of a segment that is being written.
    fn file(&self, segment_number: u64) -> FileId {
        match self.files.get(&segment_number) {
            Some(Segment::Open { file, .. }) => *file,
            other => panic!("segment {segment_number} is written, and its file is {other:?}"),
        }
    }

    fn submit(&mut self, step: Step, work: DiskWork, reactor: &mut impl Reactor) {
        let token = self.steps.insert(step) as u64;
        let request = DiskRequest { token, work };
        if !self.refused.is_empty() {
            self.refused.push_back(request);
        } else if let Err(request) = reactor.submit_disk(request) {
            self.refused.push_back(request);
        }
    }

    fn begin_read(&mut self, read: PartRead, file: FileId, reactor: &mut impl Reactor) {
        let PartRead { name, lsn, bytes, buffer, is_fresh } = read;
        let (segment_number, offset) = (lsn.segment_number(), u64::from(lsn.offset_bytes()));
        let work = DiskWork::Read { file, offset, buffer, bytes, is_fresh };
        self.submit(Step::Read { name, segment_number }, work, reactor);
    }

    fn end_read(&mut self, segment_number: u64) {
        if let Some(Segment::Open { read_count, .. }) = self.files.get_mut(&segment_number) {
            *read_count = read_count.saturating_sub(1); // It may have been closed meanwhile.
        }
    }

    /// Begins the reads that have waited for their file.
    fn opened(
        &mut self,
        segment_number: u64,
        result: Result<DiskAnswer, io::Error>,
        reactor: &mut impl Reactor,
    ) -> Finished {
        let Some(Segment::Opening { reads }) = self.files.remove(&segment_number) else {
            panic!("segment {segment_number} was being opened");
        };
        match result {
            Ok(DiskAnswer::File { file, .. }) => {
                let read_count = reads.len() as u32;
                self.files.insert(segment_number, Segment::Open { file, read_count });
                reads.into_iter().for_each(|read| self.begin_read(read, file, reactor));
                Finished::new()
            }
            Ok(other) => panic!("a file was opened, and the answer is {other:?}"),
            Err(error) => {
                let failed = |PartRead { name, buffer, .. }| {
                    let (result, buffer) = (Err(error.kind()), Some(buffer));
                    Completed::Read { name, result, buffer }
                };
                reads.into_iter().map(failed).collect()
            }
        }
    }

    /// Goes on with a segment that is being made: zeros, header, name.
    fn prepared(
        &mut self,
        step: Step,
        result: Result<DiskAnswer, io::Error>,
        buffer: Option<PageBuffer>,
        reactor: &mut impl Reactor,
    ) -> Finished {
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => return self.not_prepared(step, &error, reactor),
        };
        match (step, answer) {
            (Step::Create { header }, DiskAnswer::File { file, .. }) => {
                self.fill(header, file, 0, zeros_for(header.segment_bytes), reactor);
                Finished::new()
            }
            (Step::Fill { header, file, filled_bytes }, DiskAnswer::Done) => {
                let zeros = buffer.expect("a write has one");
                self.fill(header, file, filled_bytes, zeros, reactor);
                Finished::new()
            }
            (Step::Header { header, file }, DiskAnswer::Done) => {
                let from = prepared_name(header.segment_number);
                let to = segment_name(header.segment_number);
                self.submit(Step::Rename { header, file }, DiskWork::Rename { from, to }, reactor);
                Finished::new()
            }
            (Step::Rename { header, file }, DiskAnswer::Done) => {
                self.add(header.segment_number, file);
                let (token, result) = (WishToken::Prepare, Ok(()));
                smallvec![Completed::Wish { token, result, buffer: None, synced: true }]
            }
            (step, answer) => panic!("the answer to {step:?} is {answer:?}"),
        }
    }

    /// Writes the next zeros of a segment, or its header if it is full of them or wanted soon.
    fn fill(
        &mut self,
        header: SegmentHeader,
        file: FileId,
        filled_bytes: u32,
        mut buffer: PageBuffer,
        reactor: &mut impl Reactor,
    ) {
        let left_bytes = header.segment_bytes - filled_bytes;
        let (offset, bytes, step) = if left_bytes == 0 || self.is_urgent {
            header.encode(&mut buffer[..JOURNAL_PAGE_BYTES as usize]);
            (0, JOURNAL_PAGE_BYTES, Step::Header { header, file })
        } else {
            let bytes = left_bytes.min(buffer.len() as u32);
            let (offset, filled_bytes) = (u64::from(filled_bytes), filled_bytes + bytes);
            (offset, bytes, Step::Fill { header, file, filled_bytes })
        };
        let work = DiskWork::Write { file, offset, buffer, bytes, sync: true };
        self.submit(step, work, reactor);
    }

    /// Gives up a segment that could not be made. Its file may stay, and is removed when the next
    /// attempt or the next start finds it.
    fn not_prepared(
        &mut self,
        step: Step,
        error: &io::Error,
        reactor: &mut impl Reactor,
    ) -> Finished {
        let (header, file) = match step {
            Step::Fill { header, file, .. }
            | Step::Header { header, file }
            | Step::Rename { header, file } => (header, Some(file)),
            Step::Create { header } => (header, None),
            step => panic!("{step:?} makes no segment"),
        };
        if let Some(file) = file {
            self.submit(Step::Close, DiskWork::Close { file }, reactor);
        }
        // One that could not be made at all may be there, from an attempt before.
        if file.is_some() || error.kind() == io::ErrorKind::AlreadyExists {
            let name = prepared_name(header.segment_number);
            self.submit(Step::Close, DiskWork::Remove { name }, reactor);
        }
        let (token, result) = (WishToken::Prepare, Err(error.kind()));
        smallvec![Completed::Wish { token, result, buffer: None, synced: false }]
    }

    fn close(&mut self, segment_number: u64, reactor: &mut impl Reactor) {
        if let Some(Segment::Open { file, .. }) = self.files.get(&segment_number) {
            let file = *file;
            self.files.remove(&segment_number);
            self.submit(Step::Close, DiskWork::Close { file }, reactor);
        }
    }

    /// Closes the oldest segment without a read under way, if many are open. The two newest ones
    /// are being written.
    fn make_room(&mut self, reactor: &mut impl Reactor) {
        if self.files.len() < OPEN_FILES_MAX {
            return;
        }
        let old = self.files.iter().take(self.files.len() - WRITTEN_FILES_MAX);
        let is_idle = |segment: &Segment| matches!(segment, Segment::Open { read_count: 0, .. });
        let idle = old.filter(|(_, segment)| is_idle(segment)).map(|(number, _)| *number).next();
        if let Some(number) = idle {
            self.close(number, reactor);
        }
    }
}

/// Number of segments that are written at the same time: one sealed, one filled, one prepared.
const WRITTEN_FILES_MAX: usize = 3;

const _: () = assert!(OPEN_FILES_MAX > 2 * WRITTEN_FILES_MAX);

fn bytes_of(result: Result<DiskAnswer, io::Error>) -> Result<u32, io::ErrorKind> {
    match result {
        Ok(DiskAnswer::Bytes(bytes)) => Ok(bytes),
        Ok(other) => panic!("a file was read, and the answer is {other:?}"),
        Err(error) => Err(error.kind()),
    }
}
