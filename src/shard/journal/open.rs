//! Opens the journal of a shard, while nothing else runs on its reactor.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use super::files::{
    JournalFiles, is_unfinished, prepared_name, segment_name, segment_of, zeros_for,
};
use crate::base::PageBuffer;
use crate::journal::format::{Lsn, SegmentHeader};
use crate::journal::recovery::{Files, Recovered, RecoveryError, recover};
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
    let recovered = recover(&mut waiting, setup, moment).map_err(OpenJournalError::Files)?;
    let first = recovered.journal.current_segment();
    let files = waiting.keep_only(first).map_err(OpenJournalError::Directory)?;
    Ok((recovered, files))
}

/// A reactor whose owner waits for its operations.
struct Waiting<'a, R> {
    reactor: &'a mut R,
    open: BTreeMap<u64, FileId>,
    /// Buffers for reads.
    buffers: Vec<PageBuffer>,
}

/// Number of reads that are under way at the same time.
const READS_MAX: usize = 8;
/// Size of one read.
const READ_BYTES: usize = JOURNAL_BLOCK_BYTES_MAX as usize;
const _: () = assert!(READS_MAX <= DISK_OPERATIONS_MAX as usize);

impl<'a, R: Reactor> Waiting<'a, R> {
    fn on(reactor: &'a mut R) -> Waiting<'a, R> {
        Waiting { reactor, open: BTreeMap::new(), buffers: Vec::new() }
    }

    fn carry_out(&mut self, work: DiskWork) -> DiskDone {
        self.submit(0, work);
        self.next_done()
    }

    fn submit(&mut self, token: u64, work: DiskWork) {
        let request = DiskRequest { token, work };
        self.reactor.submit_disk(request).expect("there is room for it");
    }

    fn next_done(&mut self) -> DiskDone {
        loop {
            self.reactor.poll();
            if let Some(done) = self.reactor.next_disk_event() {
                return done;
            }
            self.reactor.wait(None);
        }
    }

    /// Reads at most [`READS_MAX`] pieces at the same time, of whole pages.
    fn read_pieces(&mut self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut pieces: Vec<&mut [u8]> = into.chunks_mut(READ_BYTES).collect();
        for (at, piece) in pieces.iter().enumerate() {
            let offset = offset + (at * READ_BYTES) as u64;
            let buffer = self.buffers.pop().unwrap_or_else(|| PageBuffer::new(READ_BYTES));
            let bytes = piece.len().next_multiple_of(JOURNAL_PAGE_BYTES as usize) as u32;
            self.submit(at as u64, DiskWork::Read { file, offset, buffer, bytes, is_fresh: true });
        }
        let mut taken = [0; READS_MAX];
        let mut failure = None;
        for _ in 0..pieces.len() {
            let DiskDone { token, result, buffer } = self.next_done();
            let (at, buffer) = (token as usize, buffer.expect("a read has one"));
            match result {
                Ok(DiskAnswer::Bytes(bytes)) => {
                    taken[at] = pieces[at].len().min(bytes as usize);
                    pieces[at][..taken[at]].copy_from_slice(&buffer[..taken[at]]);
                }
                Ok(answer) => panic!("a file was read, and the answer is {answer:?}"),
                Err(error) => failure = Some(error),
            }
            self.buffers.push(buffer);
        }
        if let Some(error) = failure {
            return Err(error);
        }
        // What follows a short piece is behind the end of the file.
        let whole = taken.iter().take_while(|bytes| **bytes == READ_BYTES).count();
        Ok(whole * READ_BYTES + taken.get(whole).unwrap_or(&0))
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
        for (_, file) in std::mem::take(&mut self.open) {
            self.done(DiskWork::Close { file })?;
        }
        files.add(segment_number, file);
        Ok(files)
    }
}

impl<R: Reactor> Files for Waiting<'_, R> {
    fn segments(&mut self) -> io::Result<Vec<(u64, u64)>> {
        let names = self.names()?.into_iter();
        Ok(names.filter_map(|(name, bytes)| Some((segment_of(&name)?, bytes))).collect())
    }

    fn read(&mut self, lsn: Lsn, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.file(lsn.segment_number())?;
        let offset = u64::from(lsn.offset_bytes());
        let inside = (offset % u64::from(JOURNAL_PAGE_BYTES)) as usize;
        if inside > 0 {
            // A run, which begins within a page.
            let mut pages = vec![0; inside + buffer.len()];
            let taken = self.read_pieces(file, offset - inside as u64, &mut pages)?;
            let taken = &pages[inside.min(taken)..taken];
            buffer[..taken.len()].copy_from_slice(taken);
            return Ok(taken.len());
        }
        let mut read = 0;
        for group in buffer.chunks_mut(READS_MAX * READ_BYTES) {
            let taken = self.read_pieces(file, offset + read as u64, group)?;
            read += taken;
            if taken < group.len() {
                break;
            }
        }
        Ok(read)
    }

    fn write(&mut self, lsn: Lsn, bytes: &[u8]) -> io::Result<()> {
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
