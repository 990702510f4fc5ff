//! Operations in flight: when they change something, and when they are over.
//!
//! An operation changes the cache at one time and completes at a later one. In between, a crash
//! finds it half done. Invariant: what a sync covers is fixed when it is submitted.

use std::io;

use super::image::{Change, Fate, Inode, InodeId};
use super::{FailingOperation, FaultKind, SECTOR_BYTES, State};
use crate::base::Instant;
use crate::reactor::FileName;
use crate::reactor::disk_table::{Answer, Job, Outcome, Step};

/// One operation in flight.
#[derive(Debug)]
pub struct Flight {
    pub port: u64,
    pub job: Job<InodeId>,
    /// The time of the change, until it is made.
    change_at: Option<Instant>,
    due: Instant,
    /// The result of the change.
    changed: Result<Changed, i32>,
    /// Number of the first write that a sync does not cover.
    covered: u64,
}

/// The result of a change in the cache.
#[derive(Clone, Copy, Debug)]
enum Changed {
    Nothing,
    /// A write, by its number.
    Written(u64),
    Made(InodeId),
}

impl Flight {
    /// True if the operation needs the file.
    pub fn uses(&self, file: InodeId) -> bool {
        self.made() == Some(file)
            || matches!(
                self.job.step,
                Step::Read { file: used, .. }
                | Step::Write { file: used, .. }
                | Step::Sync { file: used }
                | Step::Close { file: used }
                    if used == file
            )
    }

    /// The file that it has made, and not filled with zeros yet.
    pub fn made(&self) -> Option<InodeId> {
        match self.changed {
            Ok(Changed::Made(file)) => Some(file),
            _ => None,
        }
    }

    /// The time of its next step.
    pub fn next_at(&self) -> Instant {
        self.change_at.unwrap_or(self.due)
    }

    /// True if it has not changed anything yet.
    pub fn is_unchanged(&self) -> bool {
        self.change_at.is_some()
    }
}

fn syncs(step: &Step<InodeId>) -> bool {
    match step {
        Step::Write { sync, .. } => *sync,
        Step::Sync { .. } | Step::Create { .. } | Step::Rename { .. } | Step::Remove { .. } => true,
        Step::Read { .. } | Step::List | Step::Open { .. } | Step::Close { .. } => false,
    }
}

/// True if something is changed before the completion.
fn changes(step: &Step<InodeId>) -> bool {
    matches!(
        step,
        Step::Write { .. } | Step::Create { .. } | Step::Rename { .. } | Step::Remove { .. }
    )
}

impl State {
    /// Takes an operation of a reactor.
    pub fn begin(&mut self, port: u64, job: Job<InodeId>, now: Instant) {
        let change_at = now + self.delay(self.faults.delay_max);
        let sync_delay = self.delay(self.faults.sync_delay_max);
        let due = if syncs(&job.step) { change_at + sync_delay } else { change_at };
        let change_at = changes(&job.step).then_some(change_at);
        let (changed, covered) = (Ok(Changed::Nothing), self.write_count);
        let flight = Flight { port, job, change_at, due, changed, covered };
        self.flights.insert(self.flight_count, flight);
        self.flight_count += 1;
    }

    /// The time of the next step of any operation; `None` if the disk stands still.
    pub fn next_at(&self) -> Option<Instant> {
        let times = self.flights.values().map(Flight::next_at);
        times.min().filter(|_| !self.is_held)
    }

    /// Makes the steps that are due at `now`. Returns the answers, with the reactors they are for.
    pub fn step(&mut self, now: Instant) -> Vec<(u64, Answer<InodeId>)> {
        let mut answers = Vec::new();
        while let Some(at) = self.next_at().filter(|at| *at <= now) {
            let first = self.flights.iter().find(|(_, flight)| flight.next_at() == at);
            let (&name, flight) = first.expect("one has this time");
            match flight.is_unchanged() {
                true => self.change(name),
                false => answers.push(self.finish(name)),
            }
        }
        answers
    }

    /// Makes the change of an operation in the cache.
    pub fn change(&mut self, name: u64) {
        let mut flight = self.flights.remove(&name).expect("in flight");
        flight.change_at = None;
        flight.changed = match &flight.job.step {
            Step::Write { file, offset, bytes, .. } => {
                let buffer = flight.job.buffer.as_ref().expect("a write has a buffer");
                self.write(*file, *offset, &buffer[..*bytes as usize])
            }
            Step::Create { name, bytes } => self.make(name, *bytes),
            Step::Rename { from, to } => self.rename(from, to),
            Step::Remove { name } => self.remove(name),
            step => unreachable!("it changes nothing: {step:?}"),
        };
        self.flights.insert(name, flight);
    }

    fn write(&mut self, file: InodeId, offset: u64, bytes: &[u8]) -> Result<Changed, i32> {
        let number = self.write_count;
        self.write_count += 1;
        let range = offset..offset + bytes.len() as u64;
        if self.must_fail(FailingOperation::Write) {
            let sectors = self.random.below(bytes.len() as u64 / SECTOR_BYTES + 1);
            let written = &bytes[..(sectors * SECTOR_BYTES) as usize];
            if !written.is_empty() {
                self.inode(file).write(number, offset, written, Fate::Right);
            }
            self.plant(file, range, FaultKind::WriteError);
            return Err(libc::EIO);
        }
        let fate = self.fate(file, offset, bytes.len() as u64);
        self.inode(file).write(number, offset, bytes, fate);
        Ok(Changed::Written(number))
    }

    fn inode(&mut self, file: InodeId) -> &mut Inode {
        self.inodes.get_mut(&file).expect("a file in use is kept")
    }

    /// Draws the way of a write to the disk.
    fn fate(&mut self, file: InodeId, offset: u64, bytes: u64) -> Fate {
        let range = offset..offset + bytes;
        if self.random.chance(self.faults.lost_chance, 1_000) {
            self.plant(file, range, FaultKind::Lost);
            return Fate::Lost;
        }
        let is_misdirected = self.random.chance(self.faults.misdirect_chance, 1_000);
        let first = offset / SECTOR_BYTES;
        let last = (offset + bytes - 1) / SECTOR_BYTES;
        let place_count =
            (self.inode(file).durable_bytes / SECTOR_BYTES).saturating_sub(last - first);
        let target = self.random.below(place_count);
        if !is_misdirected || place_count == 0 || target == first {
            return Fate::Right;
        }
        self.plant(file, range, FaultKind::Absent);
        let victim = target * SECTOR_BYTES..(target + last - first + 1) * SECTOR_BYTES;
        self.plant(file, victim, FaultKind::Overwritten);
        Fate::Misdirected(target as i64 - first as i64)
    }

    fn make(&mut self, name: &FileName, bytes: u64) -> Result<Changed, i32> {
        if self.names.cached.contains_key(name) {
            return Err(libc::EEXIST);
        }
        let is_too_much = self.used_bytes().saturating_add(bytes) > self.capacity_bytes;
        if self.must_fail(FailingOperation::Create) || is_too_much {
            return Err(libc::ENOSPC);
        }
        let file = self.new_inode();
        let inode = self.inode(file);
        inode.bytes = bytes;
        inode.open_count = 1;
        self.names.change(Change::Link(name.clone(), file));
        Ok(Changed::Made(file))
    }

    fn rename(&mut self, from: &FileName, to: &FileName) -> Result<Changed, i32> {
        if !self.names.cached.contains_key(from) {
            return Err(libc::ENOENT);
        }
        if self.must_fail(FailingOperation::Rename) {
            return Err(libc::EIO);
        }
        if from != to {
            self.names.change(Change::Rename(from.clone(), to.clone()));
        }
        Ok(Changed::Nothing)
    }

    fn remove(&mut self, name: &FileName) -> Result<Changed, i32> {
        if !self.names.cached.contains_key(name) {
            return Err(libc::ENOENT);
        }
        if self.must_fail(FailingOperation::Remove) {
            return Err(libc::EIO);
        }
        self.names.change(Change::Unlink(name.clone()));
        Ok(Changed::Nothing)
    }

    /// Ends an operation.
    pub fn finish(&mut self, name: u64) -> (u64, Answer<InodeId>) {
        let Flight { port, job, changed, covered, .. } =
            self.flights.remove(&name).expect("in flight");
        let Job { token, step, mut buffer } = job;
        let was_opening = step.is_opening();
        let outcome = changed.and_then(|changed| match step {
            Step::Read { file, offset, bytes, is_fresh } => {
                let into = &mut buffer.as_mut().expect("a read has a buffer")[..bytes as usize];
                self.read(file, offset, into, is_fresh)
            }
            Step::Write { file, sync, .. } => match (sync, changed) {
                (true, Changed::Written(own)) => self.sync(file, 0, Some(own)),
                _ => Ok(Outcome::Done),
            },
            Step::Sync { file } => self.sync(file, covered, None),
            Step::List => self.list(),
            Step::Open { name } => self.open(&name),
            Step::Create { bytes, .. } => {
                let Changed::Made(file) = changed else { unreachable!("made or failed") };
                self.inode(file).durable_bytes = bytes;
                self.names.sync();
                Ok(Outcome::Opened(file, bytes))
            }
            Step::Rename { .. } | Step::Remove { .. } => {
                self.names.sync();
                Ok(Outcome::Done)
            }
            Step::Close { file } => {
                self.inode(file).open_count -= 1;
                Ok(Outcome::Done)
            }
        });
        self.free_unused();
        let result = outcome.map_err(io::Error::from_raw_os_error);
        (port, Answer { token, result, buffer, was_opening })
    }

    fn read(
        &mut self,
        file: InodeId,
        offset: u64,
        into: &mut [u8],
        is_fresh: bool,
    ) -> Result<Outcome<InodeId>, i32> {
        let must_fail = self.must_fail(FailingOperation::Read);
        if must_fail {
            self.plant(file, offset..offset + into.len() as u64, FaultKind::ReadError);
            return Err(libc::EIO);
        }
        let inode = self.inode(file);
        if is_fresh {
            inode.drop_clean();
        }
        let count = inode.read(offset, into).ok_or(libc::EIO)?;
        Ok(Outcome::Bytes(count as u32))
    }

    /// Syncs the writes before `covered` (a sync), or `own` (a write that is durable by itself).
    pub fn sync(
        &mut self,
        file: InodeId,
        covered: u64,
        own: Option<u64>,
    ) -> Result<Outcome<InodeId>, i32> {
        let must_fail = self.must_fail(FailingOperation::Sync);
        let writes = self.inode(file).take_unsynced(covered, own);
        if must_fail {
            // The pages count as clean from now on, and stay in the cache.
            for write in &writes {
                let first = write.sectors.first().map_or(0, |(sector, _)| sector * SECTOR_BYTES);
                self.plant(file, first..write.end, FaultKind::SyncError);
            }
            return Err(libc::EIO);
        }
        let inode = self.inode(file);
        for write in &writes {
            for (sector, bytes) in &write.sectors {
                inode.store(*sector, bytes, write.fate);
            }
            inode.durable_bytes = inode.durable_bytes.max(write.end);
        }
        inode.settle(&writes);
        self.age(file);
        Ok(Outcome::Done)
    }

    /// Lets a bit flip or a sector go bad, at random.
    fn age(&mut self, file: InodeId) {
        let bytes = self.inode(file).durable_bytes;
        let (flips, fails) = (
            self.random.chance(self.faults.flip_chance, 1_000),
            self.random.chance(self.faults.unreadable_chance, 1_000),
        );
        let (offset, bit) = (self.random.below(bytes), self.random.below(8));
        if flips {
            self.flip(file, offset, bit as u32);
        }
        if fails {
            self.make_unreadable(file, offset);
        }
    }

    fn list(&mut self) -> Result<Outcome<InodeId>, i32> {
        if self.must_fail(FailingOperation::List) {
            return Err(libc::EIO);
        }
        let names = self.names.cached.iter();
        let names = names.map(|(name, file)| (name.clone(), self.inodes[file].bytes));
        Ok(Outcome::Names(names.collect()))
    }

    fn open(&mut self, name: &FileName) -> Result<Outcome<InodeId>, i32> {
        let file = *self.names.cached.get(name).ok_or(libc::ENOENT)?;
        if self.must_fail(FailingOperation::Open) {
            return Err(libc::EIO);
        }
        let inode = self.inode(file);
        inode.open_count += 1;
        Ok(Outcome::Opened(file, inode.bytes))
    }
}
