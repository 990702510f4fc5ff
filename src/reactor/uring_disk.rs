//! The disk of the io_uring backend: reads, writes and syncs go through the ring, all else through
//! threads, the keeper.
//!
//! Owned by one shard thread. Like `uring_net.rs` this module builds entries and takes answers; the
//! ring is in `uring.rs`. Each operation has one entry at a time. Invariants:
//! - K1 a flight keeps its buffer and its file until the kernel has answered its entry.
//! - K2 a sync begins after its write has ended.
//! - K3 a sync that failed is never repeated.
//!
//! A write that has to be durable has a sync of its own (K2), and not `RWF_DSYNC`, as a thread's
//! has. The kernel ends such a write of a ring in a worker on the processor that has the interrupt
//! of the disk. Next to a busy program there, the worker waits for a tick of the scheduler: 4.0 ms
//! at the median instead of 0.17 (`bench/runs/2026-11-29-ring`). The sync has a worker of the ring,
//! which the scheduler can put elsewhere. On an idle processor this takes 0.13 ms instead of 0.11.
//! A sync that is linked to its write takes as long.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use io_uring::{opcode, squeue, types};

use crate::base::{Handle, Pool};
use crate::limits::{DISK_ATTEMPTS_MAX, DISK_KEEPER_THREADS};
use crate::reactor::Waker;
use crate::reactor::disk::{Disk, DiskDone, DiskRequest, DiskSetup};
use crate::reactor::disk_files::Directory;
use crate::reactor::disk_table::{Answer, DiskTable, Job, Outcome, Step};
use crate::reactor::disk_thread::{Answers, Lane, LaneContext, SharedFile};
use crate::reactor::uring_wakes::{Purpose, user_data};

/// An operation of the ring.
struct Flight {
    job: Job<SharedFile>,
    /// Number of bytes that were moved.
    moved: u32,
    /// Attempts that moved nothing.
    attempt_count: u32,
    /// The entry that the kernel has not answered.
    armed: Option<Purpose>,
}

/// The next step of an operation.
enum Next {
    /// It needs more entries.
    Again,
    Over(io::Result<Outcome<SharedFile>>),
}

/// The disk of a [`crate::reactor::UringReactor`].
pub struct UringDisk {
    table: DiskTable<SharedFile>,
    answers: Arc<Answers>,
    keeper: Lane,
    flights: Pool<Flight>,
    /// Flights whose entries have to be pushed, in the order in which they are wanted.
    owed: VecDeque<Handle>,
}

impl UringDisk {
    /// Opens the directory and starts the keeper's threads.
    ///
    /// # Errors
    /// The kernel's error; nothing is left behind then.
    pub fn open(setup: DiskSetup, waker: Waker) -> io::Result<UringDisk> {
        let table = DiskTable::new(&setup);
        let flights = Pool::new(setup.in_flight_max);
        let owed = VecDeque::with_capacity(setup.in_flight_max as usize);
        let directory = Arc::new(Directory::open(setup.directory, setup.is_direct)?);
        let answers = Arc::default();
        let context = LaneContext { directory, answers, waker };
        let keeper = Lane::start("disk-keeper", DISK_KEEPER_THREADS, &context)?;
        Ok(UringDisk { table, answers: context.answers, keeper, flights, owed })
    }

    /// Takes the answers of the keeper. Called when a wake-up was taken.
    pub fn collect(&mut self) {
        for answer in self.answers.take() {
            self.table.complete(answer);
        }
    }

    /// Number of completions that wait to be taken.
    #[inline]
    pub fn event_count(&self) -> usize {
        self.table.event_count()
    }

    /// True if entries have to be pushed.
    #[inline]
    pub fn is_owing(&self) -> bool {
        !self.owed.is_empty()
    }

    /// True if an operation of the ring is not over.
    pub fn is_in_use(&self) -> bool {
        self.flights.count() > 0
    }

    /// The entry of the next owed operation; `None` if nothing is owed. The caller pushes it.
    pub fn next_entry(&mut self) -> Option<squeue::Entry> {
        let handle = self.owed.pop_front()?;
        let flight = self.flights.get_mut(handle).expect("an owed flight is not over");
        assert!(flight.armed.is_none());
        let (entry, purpose) = flight.entry();
        flight.armed = Some(purpose);
        Some(entry.user_data(user_data(purpose, handle)))
    }

    /// Takes one answer of the kernel. Returns false if it belongs to no operation.
    #[must_use]
    pub fn on_answer(&mut self, purpose: Purpose, handle: Handle, result: i32) -> bool {
        let Some(flight) = self.flights.get_mut(handle) else { return false };
        if flight.armed != Some(purpose) {
            return false;
        }
        flight.armed = None;
        match flight.next(purpose, result) {
            Next::Again => self.owed.push_back(handle),
            Next::Over(result) => {
                let Flight { job, .. } = self.flights.remove(handle).expect("found above");
                let Job { token, step, buffer } = job;
                drop(step); // With its hold on the file.
                self.table.complete(Answer { token, result, buffer, was_opening: false });
            }
        }
        true
    }
}

impl Flight {
    fn new(job: Job<SharedFile>) -> Flight {
        Flight { job, moved: 0, attempt_count: 0, armed: None }
    }

    /// The entry that the operation needs now.
    fn entry(&mut self) -> (squeue::Entry, Purpose) {
        let moved = self.moved;
        match &self.job.step {
            Step::Read { file, offset, bytes, is_fresh } => {
                let into = self.job.buffer.as_mut().expect("a read has a buffer");
                let rest = &mut into[moved as usize..*bytes as usize];
                let offset = offset + u64::from(moved);
                let fd = types::Fd(file.read_fd(offset, rest.len(), *is_fresh));
                let read = opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32);
                (read.offset(offset).build(), Purpose::DiskRead)
            }
            Step::Write { file, offset, bytes, sync } if moved < *bytes => {
                let from = self.job.buffer.as_ref().expect("a write has a buffer");
                let rest = &from[moved as usize..*bytes as usize];
                let offset = offset + u64::from(moved);
                let fd = types::Fd(file.way(offset, rest.len(), *sync).fd);
                let write = opcode::Write::new(fd, rest.as_ptr(), rest.len() as u32);
                (write.offset(offset).build(), Purpose::DiskWrite)
            }
            Step::Write { file, .. } | Step::Sync { file } => {
                let sync = opcode::Fsync::new(types::Fd(file.sync_fd()));
                (sync.flags(types::FsyncFlags::DATASYNC).build(), Purpose::DiskSync)
            }
            step => unreachable!("the keeper's: {step:?}"),
        }
    }

    /// Takes the answer of the kernel.
    fn next(&mut self, purpose: Purpose, result: i32) -> Next {
        if purpose == Purpose::DiskSync {
            return Next::Over(match result {
                code if code < 0 => Err(io::Error::from_raw_os_error(-code)), // K3
                _ => Ok(Outcome::Done),
            });
        }
        let (Step::Read { bytes, .. } | Step::Write { bytes, .. }) = self.job.step else {
            unreachable!("only these move bytes");
        };
        let is_read = purpose == Purpose::DiskRead;
        let must_sync = matches!(self.job.step, Step::Write { sync: true, .. });
        match self.moved_by(result, bytes - self.moved) {
            Err(error) => Next::Over(Err(error)),
            Ok(false) => Next::Over(Ok(Outcome::Bytes(self.moved))), // The end of the file.
            Ok(true) if self.moved < bytes => Next::Again,
            Ok(true) if is_read => Next::Over(Ok(Outcome::Bytes(bytes))),
            Ok(true) if must_sync => Next::Again, // K2
            Ok(true) => Next::Over(Ok(Outcome::Done)),
        }
    }

    /// Counts the bytes that one entry has moved. Returns false at the end of the file.
    fn moved_by(&mut self, result: i32, wanted: u32) -> io::Result<bool> {
        match result {
            code if code < 0 => {
                self.attempt_count += 1;
                let is_passing = matches!(-code, libc::EINTR | libc::EAGAIN);
                match is_passing && self.attempt_count < DISK_ATTEMPTS_MAX {
                    true => Ok(true),
                    false => Err(io::Error::from_raw_os_error(-code)),
                }
            }
            0 if matches!(self.job.step, Step::Write { .. }) => {
                Err(io::ErrorKind::WriteZero.into())
            }
            0 => Ok(false),
            count if count as u32 <= wanted => {
                self.moved += count as u32;
                Ok(true)
            }
            _ => Err(io::Error::other("the kernel moved more bytes than it was asked for")),
        }
    }
}

impl Disk for UringDisk {
    fn submit(&mut self, request: DiskRequest) -> Result<(), DiskRequest> {
        let Some(job) = self.table.admit(request)? else { return Ok(()) };
        match &job.step {
            // The pages that the cache has are dropped first, which the ring may not do.
            Step::Read { file, offset, bytes, is_fresh: true }
                if !file.reads_past_cache(*offset, *bytes as usize) =>
            {
                self.keeper.push(job);
            }
            Step::Read { .. } | Step::Write { .. } | Step::Sync { .. } => {
                let flight = self.flights.insert(Flight::new(job));
                let handle = flight.map_err(|_| ()).expect("as many as may be in flight");
                self.owed.push_back(handle);
            }
            _ => self.keeper.push(job),
        }
        Ok(())
    }

    fn next_event(&mut self) -> Option<DiskDone> {
        self.table.next_event()
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::base::PageBuffer;
    use crate::reactor::waker::WakeListener;
    use crate::reactor::{DiskAnswer, DiskWork, FileId, FileName, FileSystem, FileSystemKind};

    const PAGE: u32 = 4_096;

    /// A disk with one open file. No ring is there: the tests are the kernel.
    struct Kernel {
        disk: UringDisk,
        file: FileId,
        _listener: WakeListener,
    }

    impl Kernel {
        fn new(test: &str) -> Kernel {
            Kernel::within(&std::env::temp_dir(), test)
        }

        fn within(folder: &Path, test: &str) -> Kernel {
            let name = format!("streamdoor-uring-disk-{}-{test}", std::process::id());
            let path = folder.join(name);
            std::fs::create_dir(&path).unwrap();
            let listener = WakeListener::with_doorbell().unwrap();
            let mut disk = UringDisk::open(DiskSetup::at(&path), listener.waker()).unwrap();
            let name = FileName::new("a").unwrap();
            let work = DiskWork::Create { name, bytes: 0 };
            disk.submit(DiskRequest { token: 0, work }).unwrap();
            let done = loop {
                disk.collect();
                match disk.next_event() {
                    Some(done) => break done,
                    None => std::thread::yield_now(),
                }
            };
            std::fs::remove_dir_all(&path).unwrap();
            let Ok(DiskAnswer::File { file, .. }) = done.result else { panic!("{done:?}") };
            Kernel { disk, file, _listener: listener }
        }

        fn write(&mut self, sync: bool) {
            let buffer = PageBuffer::new(2 * PAGE as usize);
            let (file, bytes) = (self.file, 2 * PAGE);
            let work = DiskWork::Write { file, offset: 0, buffer, bytes, sync };
            self.disk.submit(DiskRequest { token: 1, work }).unwrap();
        }

        /// Takes the next entry: its opcode and its name.
        fn take(&mut self) -> (u8, u64) {
            let entry = self.disk.next_entry().expect("something is owed");
            assert!(self.disk.next_entry().is_none());
            (entry.get_opcode() as u8, entry.get_user_data())
        }

        /// Takes the next entry, and answers it.
        fn give(&mut self, opcode: u8, result: i32) {
            let entry = self.take();
            assert_eq!(entry.0, opcode);
            self.answer(entry, result);
        }

        fn answer(&mut self, (opcode, bits): (u8, u64), result: i32) {
            let (purpose, handle) = crate::reactor::uring_wakes::parse_user_data(bits).unwrap();
            let expected = match opcode {
                opcode::Write::CODE => Purpose::DiskWrite,
                opcode::Read::CODE => Purpose::DiskRead,
                _ => Purpose::DiskSync,
            };
            assert_eq!(purpose, expected);
            assert!(self.disk.on_answer(purpose, handle, result));
        }

        /// The result of the only operation; `None` if it is not over.
        fn result(&mut self) -> Option<Result<DiskAnswer, i32>> {
            let done = self.disk.next_event()?;
            assert!(!self.disk.is_in_use() && !self.disk.is_owing());
            assert!(done.token == 1);
            Some(done.result.map_err(|error| error.raw_os_error().unwrap_or(0)))
        }
    }

    const WRITE: u8 = opcode::Write::CODE;
    const READ: u8 = opcode::Read::CODE;
    const FSYNC: u8 = opcode::Fsync::CODE;

    /// A directory on a disk, and one in memory, as far as they are there.
    fn folders() -> impl Iterator<Item = PathBuf> {
        let folders = [std::env::temp_dir(), PathBuf::from("/dev/shm")].into_iter();
        folders.filter(|path| {
            let file = std::fs::File::open(path);
            let system = file.and_then(|file| FileSystem::of(&file));
            system.is_ok_and(|system| system.kind != FileSystemKind::Network)
        })
    }

    #[test]
    fn a_durable_write_has_a_sync_of_its_own() {
        for folder in folders() {
            let mut kernel = Kernel::within(&folder, "durable");
            kernel.write(true);
            kernel.give(WRITE, 8_192);
            assert_eq!(kernel.result(), None);
            kernel.give(FSYNC, 0);
            assert_eq!(kernel.result(), Some(Ok(DiskAnswer::Done)));
            kernel.write(false);
            kernel.give(WRITE, 8_192);
            assert_eq!(kernel.result(), Some(Ok(DiskAnswer::Done)));
        }
    }

    #[test]
    fn a_partial_write_goes_on_with_the_rest() {
        for folder in folders() {
            for moved in [100, 4_096, -libc::EINTR, -libc::EAGAIN] {
                let mut kernel = Kernel::within(&folder, "partial");
                kernel.write(true);
                kernel.give(WRITE, moved);
                assert_eq!(kernel.result(), None);
                kernel.give(WRITE, 8_192 - moved.max(0));
                kernel.give(FSYNC, 0);
                assert_eq!(kernel.result(), Some(Ok(DiskAnswer::Done)));
            }
        }
    }

    #[test]
    fn a_sync_that_failed_is_never_repeated() {
        for folder in folders() {
            let mut kernel = Kernel::within(&folder, "failed");
            for error in [libc::EIO, libc::ECANCELED, libc::ENOSPC, libc::EINTR] {
                if error != libc::EINTR {
                    kernel.write(true);
                    kernel.give(WRITE, -error);
                    assert_eq!(kernel.result(), Some(Err(error)));
                }
                kernel.write(true);
                kernel.give(WRITE, 8_192);
                kernel.give(FSYNC, -error);
                assert_eq!(kernel.result(), Some(Err(error)));
                let file = kernel.file;
                let request = DiskRequest { token: 1, work: DiskWork::Sync { file } };
                kernel.disk.submit(request).unwrap();
                kernel.give(FSYNC, -error);
                assert_eq!(kernel.result(), Some(Err(error)));
            }
        }
    }

    #[test]
    fn what_moves_nothing_for_ever_is_an_error() {
        let mut kernel = Kernel::new("nothing");
        kernel.write(false);
        kernel.give(WRITE, 0);
        assert_eq!(kernel.result(), Some(Err(0)));
        kernel.write(false);
        for _ in 1..DISK_ATTEMPTS_MAX {
            kernel.give(WRITE, -libc::EAGAIN);
            assert_eq!(kernel.result(), None);
        }
        kernel.give(WRITE, -libc::EAGAIN);
        assert_eq!(kernel.result(), Some(Err(libc::EAGAIN)));
        kernel.write(false);
        kernel.give(WRITE, 8_193); // More than there was.
        assert_eq!(kernel.result(), Some(Err(0)));
    }

    #[test]
    fn an_answer_that_belongs_to_no_operation_is_refused() {
        let mut kernel = Kernel::new("stale");
        kernel.write(false);
        let entry = kernel.take();
        let (_, handle) = crate::reactor::uring_wakes::parse_user_data(entry.1).unwrap();
        assert!(!kernel.disk.on_answer(Purpose::DiskSync, handle, 0));
        kernel.answer(entry, 8_192);
        assert!(!kernel.disk.on_answer(Purpose::DiskWrite, handle, 8_192));
        assert_eq!(kernel.result(), Some(Ok(DiskAnswer::Done)));
    }

    #[test]
    fn a_read_goes_on_until_the_end_of_the_file() {
        let mut kernel = Kernel::new("read");
        let (file, buffer) = (kernel.file, PageBuffer::new(2 * PAGE as usize));
        let work = DiskWork::Read { file, offset: 5, buffer, bytes: 2 * PAGE, is_fresh: false };
        kernel.disk.submit(DiskRequest { token: 1, work }).unwrap();
        for moved in [100, -libc::EINTR, 1_000] {
            kernel.give(READ, moved);
            assert_eq!(kernel.result(), None);
        }
        kernel.give(READ, 0);
        assert_eq!(kernel.result(), Some(Ok(DiskAnswer::Bytes(1_100))));
    }
}
