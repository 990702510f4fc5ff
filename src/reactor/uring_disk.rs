//! The disk of the io_uring backend: reads, writes and syncs go through the ring, all else through
//! threads, the keeper.
//!
//! Owned by one shard thread. Like `uring_net.rs` this module builds entries and takes answers; the
//! ring is in `uring.rs`. A write with a sync is two linked entries: the kernel begins the second
//! when the first has written everything. Invariants:
//! - K1 a flight keeps its buffer and its file until the kernel has answered all its entries.
//! - K2 a sync entry counts only if it began after its write had ended. A pair that may have been
//!   split between two system calls is therefore followed by a sync of its own.
//! - K3 a sync that failed is never repeated.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use smallvec::{SmallVec, smallvec};

use crate::base::{Handle, Pool};
use crate::limits::{DISK_ATTEMPTS_MAX, DISK_KEEPER_THREADS};
use crate::reactor::Waker;
use crate::reactor::disk::{Disk, DiskDone, DiskRequest, DiskSetup};
use crate::reactor::disk_files::Directory;
use crate::reactor::disk_table::{Answer, DiskTable, Job, Outcome, Step};
use crate::reactor::disk_thread::{Answers, Lane, LaneContext, SharedFile};
use crate::reactor::uring_wakes::{Purpose, user_data};

/// The entries of one operation, to be pushed together.
pub type Entries = SmallVec<[squeue::Entry; 2]>;

/// An operation of the ring.
struct Flight {
    job: Job<SharedFile>,
    /// Number of bytes that were moved.
    moved: u32,
    /// Attempts that moved nothing.
    attempt_count: u32,
    /// Entries that the kernel has not answered.
    armed_count: u32,
    /// The answer to the read or write of this attempt.
    moving: Option<i32>,
    /// The answer to the sync of this attempt.
    syncing: Option<i32>,
    /// True if the sync may have begun before its write had ended (K2).
    is_split: bool,
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

    /// The entries of the next owed operation, at most `room`; `None` if nothing is owed. The
    /// caller pushes them.
    pub fn next_entries(&mut self, room: usize) -> Option<Entries> {
        assert!(room > 0);
        let handle = self.owed.pop_front()?;
        let flight = self.flights.get_mut(handle).expect("an owed flight is not over");
        assert!(flight.armed_count == 0);
        let entries = flight.entries(handle, room);
        flight.armed_count = entries.len() as u32;
        Some(entries)
    }

    /// Takes note that the kernel took fewer entries than were pushed (K2).
    #[cold]
    pub fn on_split(&mut self) {
        for index in 0..self.flights.capacity() {
            if let Some(flight) = self.flights.at_mut(index) {
                flight.is_split |= flight.armed_count > 1;
            }
        }
    }

    /// Takes one answer of the kernel. Returns false if it belongs to no operation.
    #[must_use]
    pub fn on_answer(&mut self, purpose: Purpose, handle: Handle, result: i32) -> bool {
        let Some(flight) = self.flights.get_mut(handle) else { return false };
        if flight.armed_count == 0 {
            return false;
        }
        flight.armed_count -= 1;
        match purpose {
            Purpose::DiskSync => flight.syncing = Some(result),
            _ => flight.moving = Some(result),
        }
        if flight.armed_count > 0 {
            return true;
        }
        match flight.next() {
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
        Flight {
            job,
            moved: 0,
            attempt_count: 0,
            armed_count: 0,
            moving: None,
            syncing: None,
            is_split: false,
        }
    }

    /// The entries that the operation needs now.
    fn entries(&mut self, handle: Handle, room: usize) -> Entries {
        let moved = self.moved;
        match &self.job.step {
            Step::Read { file, offset, bytes } => {
                let into = self.job.buffer.as_mut().expect("a read has a buffer");
                let rest = &mut into[moved as usize..*bytes as usize];
                let fd = types::Fd(file.read_fd());
                let read = opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32);
                let read = read.offset(offset + u64::from(moved)).build();
                smallvec![read.user_data(user_data(Purpose::DiskRead, handle))]
            }
            Step::Write { bytes, .. } if moved == *bytes => smallvec![self.sync(handle)],
            Step::Write { file, offset, bytes, sync } => {
                let from = self.job.buffer.as_ref().expect("a write has a buffer");
                let rest = &from[moved as usize..*bytes as usize];
                let offset = offset + u64::from(moved);
                let fd = types::Fd(file.write_fd(offset, rest.len()));
                let write = opcode::Write::new(fd, rest.as_ptr(), rest.len() as u32);
                let write = write.offset(offset).build();
                let write = write.user_data(user_data(Purpose::DiskWrite, handle));
                match *sync && room >= 2 {
                    true => {
                        smallvec![write.flags(squeue::Flags::IO_LINK), self.sync(handle)]
                    }
                    false => smallvec![write],
                }
            }
            Step::Sync { .. } => smallvec![self.sync(handle)],
            step => unreachable!("the keeper's: {step:?}"),
        }
    }

    fn sync(&self, handle: Handle) -> squeue::Entry {
        let (Step::Write { file, .. } | Step::Sync { file }) = &self.job.step else {
            unreachable!("only these sync");
        };
        let sync = opcode::Fsync::new(types::Fd(file.read_fd()));
        let sync = sync.flags(types::FsyncFlags::DATASYNC).build();
        sync.user_data(user_data(Purpose::DiskSync, handle))
    }

    /// Takes the answers of this attempt, all of which have come.
    fn next(&mut self) -> Next {
        let (moving, syncing) = (self.moving.take(), self.syncing.take());
        let is_split = std::mem::take(&mut self.is_split);
        let (bytes, is_read, must_sync) = match self.job.step {
            Step::Read { bytes, .. } => (bytes, true, false),
            Step::Write { bytes, sync, .. } => (bytes, false, sync),
            _ => (0, false, true),
        };
        if let Some(result) = moving {
            match self.moved_by(result, bytes - self.moved) {
                Err(error) => return Next::Over(Err(error)),
                Ok(false) if is_read => return Next::Over(Ok(Outcome::Bytes(self.moved))),
                Ok(_) => {}
            }
        }
        // The kernel cancels the sync of a write that is not whole: it did not begin.
        let is_cancelled = syncing == Some(-libc::ECANCELED) && self.moved < bytes;
        match syncing {
            Some(code) if code < 0 && !is_cancelled => {
                return Next::Over(Err(io::Error::from_raw_os_error(-code)));
            }
            _ if self.moved < bytes => return Next::Again,
            _ if is_read => return Next::Over(Ok(Outcome::Bytes(bytes))),
            Some(_) if !is_split => {}
            _ if must_sync => return Next::Again,
            _ => {}
        }
        Next::Over(Ok(Outcome::Done))
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
        match job.step {
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
    use super::*;
    use crate::base::PageBuffer;
    use crate::reactor::waker::WakeListener;
    use crate::reactor::{DiskAnswer, DiskWork, FileId, FileName};

    const PAGE: u32 = 4_096;

    /// A disk with one open file. No ring is there: the tests are the kernel.
    struct Kernel {
        disk: UringDisk,
        file: FileId,
        _listener: WakeListener,
    }

    impl Kernel {
        fn new(test: &str) -> Kernel {
            let name = format!("streamdoor-uring-disk-{}-{test}", std::process::id());
            let path = std::env::temp_dir().join(name);
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

        /// Takes the next entries, each by its opcode and its name.
        fn take(&mut self, room: usize) -> Vec<(u8, u64)> {
            let entries = self.disk.next_entries(room).expect("something is owed");
            let named = |entry: &squeue::Entry| (entry.get_opcode() as u8, entry.get_user_data());
            entries.iter().map(named).collect()
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

    #[test]
    fn a_write_and_its_sync_are_two_entries_or_two_steps() {
        let mut kernel = Kernel::new("steps");
        kernel.write(true);
        let pair = kernel.take(2);
        assert_eq!(pair.len(), 2);
        kernel.answer(pair[0], 8_192);
        assert_eq!(kernel.result(), None);
        kernel.answer(pair[1], 0);
        assert_eq!(kernel.result(), Some(Ok(DiskAnswer::Done)));
        kernel.write(true);
        let write = kernel.take(1);
        assert_eq!((write.len(), write[0].0), (1, opcode::Write::CODE));
        kernel.answer(write[0], 8_192);
        assert_eq!(kernel.result(), None);
        let sync = kernel.take(2);
        assert_eq!((sync.len(), sync[0].0), (1, opcode::Fsync::CODE));
        kernel.answer(sync[0], 0);
        assert_eq!(kernel.result(), Some(Ok(DiskAnswer::Done)));
    }

    #[test]
    fn a_partial_write_goes_on_and_its_sync_that_was_cancelled_is_asked_for_again() {
        for moved in [-libc::EINTR, -libc::EAGAIN, 1, 4_096] {
            let mut kernel = Kernel::new(&format!("partial{moved}"));
            kernel.write(true);
            let pair = kernel.take(8);
            kernel.answer(pair[0], moved);
            kernel.answer(pair[1], -libc::ECANCELED);
            assert_eq!(kernel.result(), None);
            let pair = kernel.take(8);
            kernel.answer(pair[0], 8_192 - moved.max(0));
            kernel.answer(pair[1], 0);
            assert_eq!(kernel.result(), Some(Ok(DiskAnswer::Done)));
        }
    }

    #[test]
    fn a_sync_that_failed_is_never_repeated() {
        let mut kernel = Kernel::new("failed");
        for (moved, synced, expected) in [
            (8_192, -libc::EIO, libc::EIO),
            (8_192, -libc::ECANCELED, libc::ECANCELED),
            (8_192, -libc::EINTR, libc::EINTR),
            (100, -libc::EIO, libc::EIO), // It ran, although its write was not whole.
            (-libc::ENOSPC, -libc::ECANCELED, libc::ENOSPC),
            (-libc::EIO, -libc::ECANCELED, libc::EIO),
        ] {
            kernel.write(true);
            let pair = kernel.take(2);
            kernel.answer(pair[0], moved);
            kernel.answer(pair[1], synced);
            assert_eq!(kernel.result(), Some(Err(expected)));
        }
        let file = kernel.file;
        kernel.disk.submit(DiskRequest { token: 1, work: DiskWork::Sync { file } }).unwrap();
        let sync = kernel.take(2);
        kernel.answer(sync[0], -libc::EINTR);
        assert_eq!(kernel.result(), Some(Err(libc::EINTR)));
    }

    #[test]
    fn a_pair_that_may_have_been_split_is_followed_by_a_sync_of_its_own() {
        let mut kernel = Kernel::new("split");
        kernel.write(true);
        let pair = kernel.take(2);
        kernel.disk.on_split();
        kernel.answer(pair[1], 0); // Before its write.
        kernel.answer(pair[0], 8_192);
        assert_eq!(kernel.result(), None);
        let sync = kernel.take(2);
        assert_eq!((sync.len(), sync[0].0), (1, opcode::Fsync::CODE));
        kernel.disk.on_split(); // One entry cannot be split.
        kernel.answer(sync[0], 0);
        assert_eq!(kernel.result(), Some(Ok(DiskAnswer::Done)));
    }

    #[test]
    fn what_moves_nothing_for_ever_is_an_error() {
        let mut kernel = Kernel::new("nothing");
        kernel.write(false);
        let entry = kernel.take(1);
        kernel.answer(entry[0], 0);
        assert_eq!(kernel.result(), Some(Err(0)));
        kernel.write(false);
        for _ in 1..DISK_ATTEMPTS_MAX {
            let entry = kernel.take(1);
            kernel.answer(entry[0], -libc::EAGAIN);
            assert_eq!(kernel.result(), None);
        }
        let entry = kernel.take(1);
        kernel.answer(entry[0], -libc::EAGAIN);
        assert_eq!(kernel.result(), Some(Err(libc::EAGAIN)));
        kernel.write(false);
        let entry = kernel.take(1);
        kernel.answer(entry[0], 8_193); // More than there was.
        assert_eq!(kernel.result(), Some(Err(0)));
    }

    #[test]
    fn an_answer_that_belongs_to_no_operation_is_refused() {
        let mut kernel = Kernel::new("stale");
        kernel.write(false);
        let entry = kernel.take(1);
        kernel.answer(entry[0], 8_192);
        let (_, handle) = crate::reactor::uring_wakes::parse_user_data(entry[0].1).unwrap();
        assert!(!kernel.disk.on_answer(Purpose::DiskWrite, handle, 8_192));
        assert_eq!(kernel.result(), Some(Ok(DiskAnswer::Done)));
    }

    #[test]
    fn a_read_goes_on_until_the_end_of_the_file() {
        let mut kernel = Kernel::new("read");
        let (file, buffer) = (kernel.file, PageBuffer::new(2 * PAGE as usize));
        let work = DiskWork::Read { file, offset: 5, buffer, bytes: 2 * PAGE };
        kernel.disk.submit(DiskRequest { token: 1, work }).unwrap();
        for moved in [100, -libc::EINTR, 1_000] {
            let entry = kernel.take(1);
            kernel.answer(entry[0], moved);
            assert_eq!(kernel.result(), None);
        }
        let entry = kernel.take(1);
        kernel.answer(entry[0], 0);
        assert_eq!(kernel.result(), Some(Ok(DiskAnswer::Bytes(1_100))));
    }
}
