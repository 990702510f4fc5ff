//! The part of a disk that all backends share: open files, the count of operations, and completions
//! that wait to be taken. `F` is the backend's kind of an open file.
//!
//! Owned by one shard thread. Absent: system calls. Invariants:
//! - F1 an operation counts from its admission until its completion is taken, so no queue grows
//!   beyond `in_flight_max`.
//! - F2 files that are open or being opened are never more than `files_max`.

use std::collections::VecDeque;
use std::io;

use crate::base::{PageBuffer, Pool};
use crate::reactor::disk::{
    DiskAnswer, DiskDone, DiskRequest, DiskSetup, DiskWork, FileId, FileName, check_range,
    too_many_files, unknown_file,
};

/// One operation, with the file instead of its name.
#[derive(Debug)]
pub struct Job<F> {
    pub token: u64,
    pub step: Step<F>,
    /// The buffer of a read or write.
    pub buffer: Option<PageBuffer>,
}

/// The work of a [`Job`].
#[derive(Debug)]
pub enum Step<F> {
    Read { file: F, offset: u64, bytes: u32, is_fresh: bool },
    Write { file: F, offset: u64, bytes: u32, sync: bool },
    Sync { file: F },
    List,
    Open { name: FileName },
    Create { name: FileName, bytes: u64 },
    Rename { from: FileName, to: FileName },
    Remove { name: FileName },
    Close { file: F },
}

impl<F> Step<F> {
    /// True if it opens a file.
    pub fn is_opening(&self) -> bool {
        matches!(self, Step::Open { .. } | Step::Create { .. })
    }
}

/// The outcome of a [`Job`] that succeeded.
#[derive(Debug)]
pub enum Outcome<F> {
    Done,
    Bytes(u32),
    /// The file, and its size in bytes.
    Opened(F, u64),
    Names(Vec<(FileName, u64)>),
}

/// The answer to a [`Job`].
#[derive(Debug)]
pub struct Answer<F> {
    pub token: u64,
    pub result: io::Result<Outcome<F>>,
    pub buffer: Option<PageBuffer>,
    /// True if the job was to open or create a file.
    pub was_opening: bool,
}

/// Open files and completions.
#[derive(Debug)]
pub struct DiskTable<F> {
    files: Pool<F>,
    files_max: u32,
    opening_count: u32,
    in_flight_count: u32,
    in_flight_max: u32,
    done: VecDeque<DiskDone>,
}

impl<F: Clone> DiskTable<F> {
    pub fn new(setup: &DiskSetup) -> DiskTable<F> {
        DiskTable {
            files: Pool::new(setup.files_max),
            files_max: setup.files_max,
            opening_count: 0,
            in_flight_count: 0,
            in_flight_max: setup.in_flight_max,
            done: VecDeque::with_capacity(setup.in_flight_max as usize),
        }
    }

    /// Counts a request, and looks up its file. Returns `None` if its completion is an error that
    /// is known already.
    ///
    /// # Errors
    /// Too many operations are in flight; the request comes back.
    pub fn admit(&mut self, request: DiskRequest) -> Result<Option<Job<F>>, DiskRequest> {
        if self.in_flight_count == self.in_flight_max {
            return Err(request);
        }
        self.in_flight_count += 1;
        let DiskRequest { token, work } = request;
        let (step, buffer) = self.resolve(work);
        match step {
            Ok(step) => Ok(Some(Job { token, step, buffer })),
            Err(error) => {
                self.done.push_back(DiskDone { token, result: Err(error), buffer });
                Ok(None)
            }
        }
    }

    fn resolve(&mut self, work: DiskWork) -> (io::Result<Step<F>>, Option<PageBuffer>) {
        match work {
            DiskWork::Read { file, offset, buffer, bytes, is_fresh } => {
                let file = self.file_for(file, offset, &buffer, bytes);
                (file.map(|file| Step::Read { file, offset, bytes, is_fresh }), Some(buffer))
            }
            DiskWork::Write { file, offset, buffer, bytes, sync } => {
                let file = self.file_for(file, offset, &buffer, bytes);
                (file.map(|file| Step::Write { file, offset, bytes, sync }), Some(buffer))
            }
            DiskWork::Sync { file } => (self.file(file).map(|file| Step::Sync { file }), None),
            DiskWork::List => (Ok(Step::List), None),
            DiskWork::Open { name } => (self.reserve().map(|()| Step::Open { name }), None),
            DiskWork::Create { name, bytes } => {
                (self.reserve().map(|()| Step::Create { name, bytes }), None)
            }
            DiskWork::Rename { from, to } => (Ok(Step::Rename { from, to }), None),
            DiskWork::Remove { name } => (Ok(Step::Remove { name }), None),
            DiskWork::Close { file } => {
                let file = self.files.remove(file.0).ok_or_else(unknown_file);
                (file.map(|file| Step::Close { file }), None)
            }
        }
    }

    fn file(&self, file: FileId) -> io::Result<F> {
        self.files.get(file.0).cloned().ok_or_else(unknown_file)
    }

    fn file_for(
        &self,
        file: FileId,
        offset: u64,
        buffer: &PageBuffer,
        bytes: u32,
    ) -> io::Result<F> {
        let file = self.file(file)?;
        check_range(offset, bytes, buffer)?;
        Ok(file)
    }

    /// Keeps a place for a file that is about to be opened.
    fn reserve(&mut self) -> io::Result<()> {
        if self.files.count() + self.opening_count >= self.files_max {
            return Err(too_many_files());
        }
        self.opening_count += 1;
        Ok(())
    }

    /// Takes the outcome of a job.
    pub fn complete(&mut self, answer: Answer<F>) {
        let Answer { token, result, buffer, was_opening } = answer;
        self.opening_count -= u32::from(was_opening);
        let result = result.and_then(|outcome| match outcome {
            Outcome::Done => Ok(DiskAnswer::Done),
            Outcome::Bytes(count) => Ok(DiskAnswer::Bytes(count)),
            Outcome::Names(names) => Ok(DiskAnswer::Names(names)),
            Outcome::Opened(file, bytes) => {
                // A place was kept, but a slot may be retired after 2^32 files.
                let file = self.files.insert(file).map_err(|_| too_many_files())?;
                Ok(DiskAnswer::File { file: FileId(file), bytes })
            }
        });
        self.done.push_back(DiskDone { token, result, buffer });
        assert!(self.done.len() <= self.in_flight_count as usize);
    }

    /// Number of completions that wait to be taken.
    #[inline]
    pub fn event_count(&self) -> usize {
        self.done.len()
    }

    /// Takes all files that are open: for the drop of a backend that counts them itself.
    #[cfg(any(test, fuzzing))]
    pub fn close_all(&mut self) -> Vec<F> {
        let open: Vec<_> = self.files.iter().map(|(handle, _)| handle).collect();
        open.into_iter().filter_map(|handle| self.files.remove(handle)).collect()
    }

    pub fn next_event(&mut self) -> Option<DiskDone> {
        let done = self.done.pop_front()?;
        self.in_flight_count -= 1;
        Some(done)
    }
}
