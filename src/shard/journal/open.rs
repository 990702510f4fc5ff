//! Opens the journal of a shard, while nothing else runs on its reactor.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;

use super::files::{
    JournalFiles, is_unfinished, prepared_name, segment_name, segment_of, zeros_for,
};
use crate::base::PageBuffer;
use crate::journal::format::{Lsn, SegmentHeader};
use crate::journal::recovery::{Files, Recovered, RecoveryError, recover, whole_pages};
use crate::journal::{Moment, Setup};
use crate::limits::{
    DISK_FILES_MAX, DISK_OPERATIONS_MAX, JOURNAL_BLOCK_BYTES_MAX, JOURNAL_PAGE_BYTES,
};
use crate::reactor::{
    DiskAnswer, DiskDone, DiskRequest, DiskSetup, DiskWork, FileId, FileName, Reactor,
};

/// The reason why a journal could not be opened.
#[derive(Debug)]
pub enum OpenJournalError {
    /// The directory cannot be used.
    Directory(io::Error),
    /// The files cannot be used.
    Files(RecoveryError),
}

/// Opens the disk of `reactor` and the journal on it. Returns the journal and its files.
///
/// # Errors
/// [`OpenJournalError`].
pub fn open_journal<R: Reactor>(
    reactor: &mut R,
    disk: DiskSetup,
    setup: &Setup,
) -> Result<(Recovered, JournalFiles), OpenJournalError> {
    reactor.open_disk(disk).map_err(OpenJournalError::Directory)?;
    let mut waiting = Waiting::on(reactor);
    waiting.remove_unfinished().map_err(OpenJournalError::Directory)?;
    let moment = Moment { now: waiting.reactor.now(), wall_us: waiting.reactor.wall_us() };
    let recovered = recover(&mut waiting, setup, moment);
    waiting.forget_expected();
    let recovered = recovered.map_err(OpenJournalError::Files)?;
    let first = recovered.journal.current_segment();
    let files = waiting.keep_only(first).map_err(OpenJournalError::Directory)?;
    Ok((recovered, files))
}

/// A reactor whose owner waits for its operations.
struct Waiting<'a, R> {
    reactor: &'a mut R,
    open: BTreeMap<u64, FileId>,
    /// Number of operations so far. It is the token of the next one.
    count: u64,
    /// Operations that are over and were not waited for yet, by their tokens.
    over: BTreeMap<u64, DiskDone>,
    /// Reads that were begun because they are expected, in the order in which they are.
    expected: VecDeque<Reading>,
    /// The first and the last pages of segments, until they are wanted or something is written.
    pages: BTreeMap<Lsn, PageBuffer>,
    /// Buffers for reads.
    buffers: Vec<PageBuffer>,
}

/// A read that was begun: pieces of [`READ_BYTES`], and the last one may be shorter.
struct Reading {
    file: FileId,
    offset: u64,
    bytes: usize,
    first_token: u64,
}

/// Size of one read.
const READ_BYTES: usize = JOURNAL_BLOCK_BYTES_MAX as usize;
/// Number of reads that are expected at the same time.
const EXPECTED_MAX: usize = 2;
/// Number of pieces of one read.
const PIECES_MAX: usize = 8;
/// Number of operations on several files that are under way at the same time.
const FILES_AT_ONCE: usize = 8;
const _: () = assert!(PIECES_MAX * (EXPECTED_MAX + 1) <= DISK_OPERATIONS_MAX as usize);

impl<'a, R: Reactor> Waiting<'a, R> {
    fn on(reactor: &'a mut R) -> Waiting<'a, R> {
        Waiting {
            reactor,
            open: BTreeMap::new(),
            count: 0,
            over: BTreeMap::new(),
            expected: VecDeque::new(),
            pages: BTreeMap::new(),
            buffers: Vec::new(),
        }
    }

    fn carry_out(&mut self, work: DiskWork) -> DiskDone {
        let token = self.submit(work);
        self.wait_for(token)
    }

    /// Begins an operation. Returns its token.
    fn submit(&mut self, work: DiskWork) -> u64 {
        let token = self.count;
        self.count += 1;
        let request = DiskRequest { token, work };
        self.reactor.submit_disk(request).expect("there is room for it");
        token
    }

    fn wait_for(&mut self, token: u64) -> DiskDone {
        loop {
            if let Some(done) = self.over.remove(&token) {
                return done;
            }
            self.reactor.poll();
            let mut has_news = false;
            while let Some(done) = self.reactor.next_disk_event() {
                has_news = true;
                self.over.insert(done.token, done);
            }
            if !has_news {
                self.reactor.wait(None);
            }
        }
    }

    /// Begins to read at the beginning of a page.
    fn begin_read(&mut self, file: FileId, offset: u64, bytes: usize) -> Reading {
        let first_token = self.count;
        for at in (0..bytes).step_by(READ_BYTES) {
            let buffer = self.buffers.pop().unwrap_or_else(|| PageBuffer::new(READ_BYTES));
            let piece = (bytes - at).min(READ_BYTES).next_multiple_of(JOURNAL_PAGE_BYTES as usize);
            let (offset, bytes) = (offset + at as u64, piece as u32);
            self.submit(DiskWork::Read { file, offset, buffer, bytes, is_fresh: true });
        }
        Reading { file, offset, bytes, first_token }
    }

    /// Waits for a read, and copies as much of it as `into` takes.
    fn end_read(&mut self, reading: &Reading, into: &mut [u8]) -> io::Result<usize> {
        let piece_count = reading.bytes.div_ceil(READ_BYTES) as u64;
        let (mut read, mut is_at_end, mut failure) = (0, false, None);
        for token in reading.first_token..reading.first_token + piece_count {
            let DiskDone { result, buffer, .. } = self.wait_for(token);
            let buffer = buffer.expect("a read has one");
            match result {
                Ok(DiskAnswer::Bytes(bytes)) => {
                    let left = if is_at_end { 0 } else { into.len() - read };
                    let copied = left.min(bytes as usize);
                    into[read..read + copied].copy_from_slice(&buffer[..copied]);
                    read += copied;
                    is_at_end |= (bytes as usize) < READ_BYTES; // Of the file, or of the read.
                }
                Ok(answer) => panic!("a file was read, and the answer is {answer:?}"),
                Err(error) => failure = Some(error),
            }
            self.buffers.push(buffer);
        }
        failure.map_or(Ok(read), Err)
    }

    /// Reads from the beginning of a page on.
    fn read_pages(&mut self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let first = self.expected.front();
        let is_expected = first.is_some_and(|first| {
            (first.file, first.offset) == (file, offset) && first.bytes >= into.len()
        });
        if is_expected && let Some(reading) = self.expected.pop_front() {
            return self.end_read(&reading, into);
        }
        self.forget_expected();
        let mut read = 0;
        for group in into.chunks_mut(PIECES_MAX * READ_BYTES) {
            let reading = self.begin_read(file, offset + read as u64, group.len());
            let taken = self.end_read(&reading, group)?;
            read += taken;
            if taken < group.len() {
                break;
            }
        }
        Ok(read)
    }

    /// Waits for the reads that nobody has wanted.
    fn forget_expected(&mut self) {
        while let Some(reading) = self.expected.pop_front() {
            let _ = self.end_read(&reading, &mut []); // The error is nobody's either.
        }
    }

    /// Carries out operations on several files at the same time. Returns their ends in order.
    fn carry_out_all(&mut self, works: Vec<DiskWork>) -> Vec<DiskDone> {
        let mut done = Vec::with_capacity(works.len());
        let mut tokens = VecDeque::with_capacity(FILES_AT_ONCE);
        for work in works {
            if tokens.len() == FILES_AT_ONCE
                && let Some(token) = tokens.pop_front()
            {
                done.push(self.wait_for(token));
            }
            tokens.push_back(self.submit(work));
        }
        done.extend(tokens.into_iter().map(|token| self.wait_for(token)));
        done
    }

    /// Opens segments and reads their first and last pages, unless they are too many. A failure is
    /// found again when the file or the page is needed.
    fn open_all(&mut self, segments: &[(u64, u64)]) {
        if segments.len() + self.open.len() + 1 >= DISK_FILES_MAX as usize {
            return;
        }
        let names = segments.iter().map(|(number, _)| segment_name(*number));
        let opened = self.carry_out_all(names.map(|name| DiskWork::Open { name }).collect());
        let (mut places, mut reads) = (Vec::new(), Vec::new());
        for (&(number, file_bytes), done) in segments.iter().zip(opened) {
            let Ok(DiskAnswer::File { file, .. }) = done.result else { continue };
            self.open.insert(number, file);
            let last = whole_pages(file_bytes) - JOURNAL_PAGE_BYTES;
            for at in [0, last] {
                let buffer = PageBuffer::new(JOURNAL_PAGE_BYTES as usize);
                let (offset, bytes) = (at.into(), JOURNAL_PAGE_BYTES);
                reads.push(DiskWork::Read { file, offset, buffer, bytes, is_fresh: true });
                places.push(Lsn::new(number, at));
            }
        }
        for (lsn, done) in places.into_iter().zip(self.carry_out_all(reads)) {
            if let (Ok(DiskAnswer::Bytes(JOURNAL_PAGE_BYTES)), Some(page)) =
                (done.result, done.buffer)
            {
                self.pages.insert(lsn, page);
            }
        }
    }

    /// Forgets all that was read for later, before something is written.
    fn forget(&mut self) {
        self.forget_expected();
        self.pages.clear();
    }

    fn done(&mut self, work: DiskWork) -> io::Result<()> {
        self.carry_out(work).result.map(|_| ())
    }

    fn file(&mut self, segment_number: u64) -> io::Result<FileId> {
        if let Some(file) = self.open.get(&segment_number) {
            return Ok(*file);
        }
        if self.open.len() + 1 >= DISK_FILES_MAX as usize
            && let Some((_, file)) = self.open.pop_first()
        {
            self.done(DiskWork::Close { file })?;
        }
        let name = segment_name(segment_number);
        let answer = self.carry_out(DiskWork::Open { name }).result?;
        let DiskAnswer::File { file, .. } = answer else {
            panic!("a file was opened, and the answer is {answer:?}");
        };
        self.open.insert(segment_number, file);
        Ok(file)
    }

    fn names(&mut self) -> io::Result<Vec<(FileName, u64)>> {
        match self.carry_out(DiskWork::List).result? {
            DiskAnswer::Names(names) => Ok(names),
            other => panic!("files were listed, and the answer is {other:?}"),
        }
    }

    /// Removes what a crash has left of segments that were being made.
    fn remove_unfinished(&mut self) -> io::Result<()> {
        for (name, _) in self.names()? {
            if is_unfinished(&name) {
                self.done(DiskWork::Remove { name })?;
            }
        }
        Ok(())
    }

    /// Makes the file of a segment, full of zeros.
    fn create_zeros(&mut self, header: &SegmentHeader) -> io::Result<FileId> {
        let name = prepared_name(header.segment_number);
        let work = DiskWork::Create { name, bytes: header.segment_bytes.into() };
        let DiskAnswer::File { file, .. } = self.carry_out(work).result? else {
            panic!("a file was made");
        };
        let mut buffer = zeros_for(header.segment_bytes);
        let mut filled_bytes = 0;
        while filled_bytes < header.segment_bytes {
            let bytes = (header.segment_bytes - filled_bytes).min(buffer.len() as u32);
            let offset = filled_bytes.into();
            let done = self.carry_out(DiskWork::Write { file, offset, buffer, bytes, sync: true });
            done.result?;
            buffer = done.buffer.expect("a write has one");
            filled_bytes += bytes;
        }
        Ok(file)
    }

    /// Closes all files but that of one segment.
    fn keep_only(mut self, segment_number: u64) -> io::Result<JournalFiles> {
        let mut files = JournalFiles::default();
        let file = self.file(segment_number)?;
        self.open.remove(&segment_number);
        let others = std::mem::take(&mut self.open).into_values();
        for closed in self.carry_out_all(others.map(|file| DiskWork::Close { file }).collect()) {
            closed.result?;
        }
        files.add(segment_number, file);
        Ok(files)
    }
}

impl<R: Reactor> Files for Waiting<'_, R> {
    fn segments(&mut self) -> io::Result<Vec<(u64, u64)>> {
        let names = self.names()?.into_iter();
        let segments = names.filter_map(|(name, bytes)| Some((segment_of(&name)?, bytes)));
        let segments: Vec<(u64, u64)> = segments.collect();
        let closed = segments.iter().filter(|(number, _)| !self.open.contains_key(number));
        let closed: Vec<(u64, u64)> = closed.copied().collect();
        self.open_all(&closed);
        Ok(segments)
    }

    fn read(&mut self, lsn: Lsn, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.len() == JOURNAL_PAGE_BYTES as usize
            && let Some(page) = self.pages.remove(&lsn)
        {
            buffer.copy_from_slice(&page);
            return Ok(buffer.len());
        }
        let file = self.file(lsn.segment_number())?;
        let offset = u64::from(lsn.offset_bytes());
        let inside = (offset % u64::from(JOURNAL_PAGE_BYTES)) as usize;
        if inside > 0 {
            // A run, which begins within a page.
            let mut pages = vec![0; inside + buffer.len()];
            let taken = self.read_pages(file, offset - inside as u64, &mut pages)?;
            let taken = &pages[inside.min(taken)..taken];
            buffer[..taken.len()].copy_from_slice(taken);
            return Ok(taken.len());
        }
        self.read_pages(file, offset, buffer)
    }

    fn expect(&mut self, lsn: Lsn, bytes: usize) {
        assert!(bytes <= PIECES_MAX * READ_BYTES);
        let Ok(file) = self.file(lsn.segment_number()) else { return };
        let offset = u64::from(lsn.offset_bytes());
        if self.expected.iter().any(|other| (other.file, other.offset) == (file, offset)) {
            return;
        }
        let follows = |last: &Reading| (last.file, last.offset + last.bytes as u64);
        if self.expected.back().is_some_and(|last| follows(last) != (file, offset)) {
            self.forget_expected();
        }
        if self.expected.len() < EXPECTED_MAX {
            let reading = self.begin_read(file, offset, bytes);
            self.expected.push_back(reading);
        }
    }

    fn write(&mut self, lsn: Lsn, bytes: &[u8]) -> io::Result<()> {
        self.forget();
        let file = self.file(lsn.segment_number())?;
        let mut buffer = PageBuffer::new(bytes.len());
        buffer.copy_from_slice(bytes);
        let (offset, bytes) = (u64::from(lsn.offset_bytes()), bytes.len() as u32);
        self.done(DiskWork::Write { file, offset, buffer, bytes, sync: false })
    }

    fn sync(&mut self, segment_number: u64) -> io::Result<()> {
        let file = self.file(segment_number)?;
        self.done(DiskWork::Sync { file })
    }

    fn create(&mut self, header: &SegmentHeader, empty: Option<u64>) -> io::Result<()> {
        self.forget();
        let (number, bytes) = (header.segment_number, JOURNAL_PAGE_BYTES);
        let file = match empty {
            Some(empty) => {
                let file = self.file(empty)?;
                self.open.remove(&empty);
                let (from, to) = (segment_name(empty), prepared_name(number));
                self.done(DiskWork::Rename { from, to })?;
                file
            }
            None => self.create_zeros(header)?,
        };
        let mut buffer = PageBuffer::new(bytes as usize);
        header.encode(&mut buffer);
        self.done(DiskWork::Write { file, offset: 0, buffer, bytes, sync: true })?;
        self.done(DiskWork::Rename { from: prepared_name(number), to: segment_name(number) })?;
        self.open.insert(number, file);
        Ok(())
    }

    fn remove(&mut self, segment_number: u64) -> io::Result<()> {
        self.forget();
        if let Some(file) = self.open.remove(&segment_number) {
            self.done(DiskWork::Close { file })?;
        }
        self.done(DiskWork::Remove { name: segment_name(segment_number) })
    }
}

impl fmt::Display for OpenJournalError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenJournalError::Directory(error) => write!(out, "the directory: {error}"),
            OpenJournalError::Files(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for OpenJournalError {}
