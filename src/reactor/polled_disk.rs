//! The disk of the mio backend: threads for everything, because epoll calls files always ready.
//!
//! Owned by one shard thread, which never waits for a file. The threads are in `disk_thread.rs`.

use std::io;
use std::sync::Arc;

use crate::limits::{DISK_KEEPER_THREADS, DISK_SYNC_THREADS};
use crate::reactor::Waker;
use crate::reactor::disk::{Disk, DiskDone, DiskRequest, DiskSetup};
use crate::reactor::disk_files::Directory;
use crate::reactor::disk_table::{DiskTable, Job, Step};
use crate::reactor::disk_thread::{Answers, Lane, LaneContext, SharedFile};

/// The disk of a [`crate::reactor::PolledReactor`].
pub struct PolledDisk {
    table: DiskTable<SharedFile>,
    answers: Arc<Answers>,
    reads: Lane,
    writes: Lane,
    syncs: Lane,
    keeper: Lane,
}

impl PolledDisk {
    /// Opens the directory and starts the threads.
    ///
    /// # Errors
    /// The kernel's error; nothing is left behind then.
    pub fn open(setup: DiskSetup, waker: Waker) -> io::Result<PolledDisk> {
        let table = DiskTable::new(&setup);
        let directory = Arc::new(Directory::open(setup.directory, setup.is_direct)?);
        let answers = Arc::default();
        let context = LaneContext { directory, answers, waker };
        Ok(PolledDisk {
            table,
            reads: Lane::start("disk-reads", 1, &context)?,
            writes: Lane::start("disk-writes", 1, &context)?,
            syncs: Lane::start("disk-syncs", DISK_SYNC_THREADS, &context)?,
            keeper: Lane::start("disk-keeper", DISK_KEEPER_THREADS, &context)?,
            answers: context.answers,
        })
    }

    /// Takes the answers of the threads. Called when a wake-up was taken.
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

    fn lane_for(&self, job: &Job<SharedFile>) -> &Lane {
        match job.step {
            Step::Read { .. } => &self.reads,
            Step::Write { sync: false, .. } => &self.writes,
            Step::Write { sync: true, .. } | Step::Sync { .. } => &self.syncs,
            _ => &self.keeper,
        }
    }
}

impl Disk for PolledDisk {
    fn submit(&mut self, request: DiskRequest) -> Result<(), DiskRequest> {
        if let Some(job) = self.table.admit(request)? {
            self.lane_for(&job).push(job);
        }
        Ok(())
    }

    fn next_event(&mut self) -> Option<DiskDone> {
        self.table.next_event()
    }
}
