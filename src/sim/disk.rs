//! A disk of the simulated world. It outlives the reactors that use it, so a test can restart a
//! shard on what a crash has left.
//!
//! A file has three layers (`disk/image.rs`): the durable image, the page cache, and the writes
//! that were not synced, in order. Names have an un-synced list of their own. Operations in flight
//! are in `disk/flight.rs`, crashes in `disk/crash.rs`, and a reactor's side in `disk/port.rs`.
//!
//! All faults come from one seed or were asked for, and each is noted ([`PlantedFault`]). An oracle
//! can therefore ask if the disk was made to lie at a place ([`SimDisk::is_touched`]). Absent: the
//! contents that a power cut may leave of writes that were not synced. These are no faults.

mod crash;
mod flight;
mod image;
mod port;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use crate::base::Random;
use crate::reactor::FileName;
use crate::reactor::disk_table::Answer;

use flight::Flight;
use image::{Inode, InodeId, Names};

pub use crash::Crash;
pub(super) use port::SimPort;

/// Bytes that a disk writes whole or not at all.
pub const SECTOR_BYTES: u64 = 512;

/// The faults of a disk. Chances are per mille of the operations that they concern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFaults {
    /// The longest time that an operation takes.
    pub delay_max: Duration,
    /// The longest time that a sync takes.
    pub sync_delay_max: Duration,
    /// Chance of EIO from a read.
    pub read_error_chance: u64,
    /// Chance of EIO from a write. Some first sectors may have been written.
    pub write_error_chance: u64,
    /// Chance of EIO from a sync. The writes that it should have covered are given up: the cache
    /// has the new bytes, the disk the old ones. The next sync succeeds.
    pub sync_error_chance: u64,
    /// Chance of ENOSPC from making a file.
    pub full_chance: u64,
    /// Chance that a write reaches another place of its file instead.
    pub misdirect_chance: u64,
    /// Chance that a write never reaches the disk, although its sync succeeds.
    pub lost_chance: u64,
    /// Chance that a sync is followed by one bit that flips at rest.
    pub flip_chance: u64,
    /// Chance that a sync is followed by a sector that cannot be read any more.
    pub unreadable_chance: u64,
}

impl DiskFaults {
    /// A disk that does everything at once and rightly.
    pub const NONE: DiskFaults = DiskFaults {
        delay_max: Duration::ZERO,
        sync_delay_max: Duration::ZERO,
        read_error_chance: 0,
        write_error_chance: 0,
        sync_error_chance: 0,
        full_chance: 0,
        misdirect_chance: 0,
        lost_chance: 0,
        flip_chance: 0,
        unreadable_chance: 0,
    };
    /// A slow disk without errors: operations take up to 50 ms, and syncs up to 5 s.
    pub const SLOW: DiskFaults = DiskFaults {
        delay_max: Duration::from_millis(50),
        sync_delay_max: Duration::from_secs(5),
        ..DiskFaults::NONE
    };
    /// All faults at once, and a slow disk.
    pub const ALL: DiskFaults = DiskFaults {
        read_error_chance: 10,
        write_error_chance: 10,
        sync_error_chance: 20,
        full_chance: 50,
        misdirect_chance: 5,
        lost_chance: 5,
        flip_chance: 10,
        unreadable_chance: 10,
        ..DiskFaults::SLOW
    };

    /// A disk with about half of all faults, each as often as [`DiskFaults::ALL`] has it or more
    /// rarely. Runs with few kinds of faults find what runs with all of them hide.
    pub fn drawn(random: &mut Random) -> DiskFaults {
        let mut chance = |max: u64| match random.chance(1, 2) {
            true => random.between(1, max),
            false => 0,
        };
        let all = DiskFaults::ALL;
        let millis = |duration: Duration| duration.as_millis() as u64;
        DiskFaults {
            delay_max: Duration::from_millis(chance(millis(all.delay_max))),
            sync_delay_max: Duration::from_millis(chance(millis(all.sync_delay_max))),
            read_error_chance: chance(all.read_error_chance),
            write_error_chance: chance(all.write_error_chance),
            sync_error_chance: chance(all.sync_error_chance),
            full_chance: chance(all.full_chance),
            misdirect_chance: chance(all.misdirect_chance),
            lost_chance: chance(all.lost_chance),
            flip_chance: chance(all.flip_chance),
            unreadable_chance: chance(all.unreadable_chance),
        }
    }
}

/// The kind of an operation that a test lets fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailingOperation {
    /// A read, with EIO.
    Read,
    /// A write, with EIO.
    Write,
    /// A sync, or the sync of a write, with EIO.
    Sync,
    /// The making of a file, with ENOSPC.
    Create,
    /// The opening of a file, with EIO. Only tests ask for it, as for those that follow.
    Open,
    /// Another name for a file, with EIO.
    Rename,
    /// The removal of a file, with EIO.
    Remove,
    /// The list of all files, with EIO.
    List,
}

impl FailingOperation {
    /// Every kind.
    pub const ALL: [FailingOperation; 8] = [
        FailingOperation::Read,
        FailingOperation::Write,
        FailingOperation::Sync,
        FailingOperation::Create,
        FailingOperation::Open,
        FailingOperation::Rename,
        FailingOperation::Remove,
        FailingOperation::List,
    ];
}

/// The kind of a fault that was planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A read failed. The bytes are as they were.
    ReadError,
    /// A write failed. The bytes may be old, new, or both.
    WriteError,
    /// A sync failed. The bytes on the disk are the old ones.
    SyncError,
    /// A write went to another place: its own place has the old bytes.
    Absent,
    /// A write came to this place, from another one.
    Overwritten,
    /// A write never reached the disk.
    Lost,
    /// A bit flipped.
    Flipped,
    /// The bytes cannot be read.
    Unreadable,
}

/// One fault that was planted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlantedFault {
    /// The file, by a number that stays when it is renamed.
    pub file: u64,
    /// The bytes of the file.
    pub range: Range<u64>,
    /// The kind.
    pub kind: FaultKind,
}

/// The disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Rc<RefCell<State>>,
}

struct State {
    random: Random,
    faults: DiskFaults,
    inodes: BTreeMap<InodeId, Inode>,
    inode_count: u64,
    names: Names,
    flights: BTreeMap<u64, Flight>,
    flight_count: u64,
    /// Answers that were not taken yet, with the ports that they are for.
    answers: Vec<(u64, Answer<InodeId>)>,
    /// Number of writes that reached the page cache. It is the name of the next one.
    write_count: u64,
    port_count: u64,
    /// Number of crashes. Reactors from before the last one have no disk any more.
    crash_count: u64,
    is_held: bool,
    capacity_bytes: u64,
    /// Operations that will fail: the kind, and how many of these come before it.
    failing: Vec<(FailingOperation, u64)>,
    planted: Vec<PlantedFault>,
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SimDisk")
    }
}

impl SimDisk {
    /// An empty disk that does everything at once and rightly.
    pub fn new(seed: u64) -> SimDisk {
        let state = State {
            random: Random::new(seed),
            faults: DiskFaults::NONE,
            inodes: BTreeMap::new(),
            inode_count: 0,
            names: Names::default(),
            flights: BTreeMap::new(),
            flight_count: 0,
            answers: Vec::new(),
            write_count: 0,
            port_count: 0,
            crash_count: 0,
            is_held: false,
            capacity_bytes: u64::MAX,
            failing: Vec::new(),
            planted: Vec::new(),
        };
        SimDisk { state: Rc::new(RefCell::new(state)) }
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.state.borrow_mut().faults = faults;
    }

    /// Sets the bytes that all files together may have. Making more is ENOSPC.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.borrow_mut().capacity_bytes = bytes;
    }

    /// Lets the disk stand still: nothing completes until [`SimDisk::release`].
    pub fn hold(&self) {
        self.state.borrow_mut().is_held = true;
    }

    /// Ends [`SimDisk::hold`].
    pub fn release(&self) {
        self.state.borrow_mut().is_held = false;
    }

    /// Lets the `nth` operation of this kind from now on fail; 1 is the next one.
    ///
    /// # Panics
    /// `nth` is zero.
    pub fn fail_nth(&self, operation: FailingOperation, nth: u64) {
        self.state.borrow_mut().failing.push((operation, nth.checked_sub(1).expect("from 1")));
    }

    /// Number of operations that were asked to fail and did not come yet.
    pub fn failing_count(&self) -> usize {
        self.state.borrow().failing.len()
    }

    /// Flips a bit of the durable image at rest. Returns false if there is no such byte.
    pub fn flip_bit(&self, name: &FileName, offset: u64, bit: u32) -> bool {
        let state = &mut *self.state.borrow_mut();
        let Some(file) = state.names.cached.get(name).copied() else { return false };
        state.flip(file, offset, bit)
    }

    /// Lets reads of the sector at `offset` fail, until it is written. Returns false if there is no
    /// such byte.
    pub fn make_unreadable(&self, name: &FileName, offset: u64) -> bool {
        let state = &mut *self.state.borrow_mut();
        let Some(file) = state.names.cached.get(name).copied() else { return false };
        state.make_unreadable(file, offset)
    }

    /// Lets all reads work again, for a phase without faults. Flipped bits stay.
    pub fn heal_sectors(&self) {
        for inode in self.state.borrow_mut().inodes.values_mut() {
            inode.unreadable.clear();
        }
    }

    /// Puts a file with these bytes on the disk, durably. A file of that name is replaced.
    pub fn put(&self, name: &FileName, bytes: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        let file = state.new_inode();
        let inode = state.inodes.get_mut(&file).expect("just made");
        inode.put(bytes);
        state.names.put(name, file);
        state.free_unused();
    }

    /// The bytes of a file as a process reads them, whatever sectors cannot be read; `None` if
    /// there is no such file.
    pub fn bytes(&self, name: &FileName) -> Option<Vec<u8>> {
        let state = self.state.borrow();
        Some(state.inodes[state.names.cached.get(name)?].visible())
    }

    /// The names of all files, as a process sees them.
    pub fn names(&self) -> Vec<FileName> {
        self.state.borrow().names.cached.keys().cloned().collect()
    }

    /// Drops the page cache of all that is synced or was given up, as a machine short of memory
    /// does.
    pub fn drop_cache(&self) {
        for inode in self.state.borrow_mut().inodes.values_mut() {
            inode.drop_clean();
        }
    }

    /// Number of operations in flight.
    pub fn in_flight_count(&self) -> usize {
        self.state.borrow().flights.len()
    }

    /// Number of writes that no sync has covered yet.
    pub fn unsynced_count(&self) -> usize {
        self.state.borrow().inodes.values().map(|inode| inode.unsynced.len()).sum()
    }

    /// The faults that were planted so far, in order.
    pub fn planted(&self) -> Vec<PlantedFault> {
        self.state.borrow().planted.clone()
    }

    /// True if a fault was planted that touches these bytes of the file with this name.
    pub fn is_touched(&self, name: &FileName, range: Range<u64>) -> bool {
        let state = self.state.borrow();
        let Some(file) = state.names.cached.get(name) else { return false };
        let touches = |fault: &PlantedFault| {
            fault.file == file.0 && fault.range.start < range.end && range.start < fault.range.end
        };
        state.planted.iter().any(touches)
    }

    /// A hash of all names and bytes, those on the disk and those in the page cache.
    pub fn image_hash(&self) -> u64 {
        self.state.borrow().image_hash()
    }

    /// Ends the process or the power in the midst of everything. Reactors that had the disk have
    /// none from now on.
    pub fn crash(&self, crash: Crash) {
        self.state.borrow_mut().crash(crash);
    }
}

impl State {
    fn new_inode(&mut self) -> InodeId {
        let file = InodeId(self.inode_count);
        self.inode_count += 1;
        self.inodes.insert(file, Inode::default());
        file
    }

    fn used_bytes(&self) -> u64 {
        self.inodes.values().map(|inode| inode.bytes).sum()
    }

    /// Frees the files that have neither a name nor a user.
    fn free_unused(&mut self) {
        let (names, flights) = (&self.names, &self.flights);
        self.inodes.retain(|file, inode| {
            inode.open_count > 0
                || names.has(*file)
                || flights.values().any(|flight| flight.uses(*file))
        });
    }

    /// True if this operation has to fail.
    fn must_fail(&mut self, operation: FailingOperation) -> bool {
        let mut must_fail = false;
        self.failing.retain_mut(|(kind, before)| {
            let is_due = *kind == operation && *before == 0;
            *before -= u64::from(*kind == operation && !is_due);
            must_fail |= is_due;
            !is_due
        });
        let chance = match operation {
            FailingOperation::Read => self.faults.read_error_chance,
            FailingOperation::Write => self.faults.write_error_chance,
            FailingOperation::Sync => self.faults.sync_error_chance,
            FailingOperation::Create => self.faults.full_chance,
            FailingOperation::Open
            | FailingOperation::Rename
            | FailingOperation::Remove
            | FailingOperation::List => return must_fail,
        };
        self.random.chance(chance, 1_000) || must_fail
    }

    fn plant(&mut self, file: InodeId, range: Range<u64>, kind: FaultKind) {
        self.planted.push(PlantedFault { file: file.0, range, kind });
    }

    fn flip(&mut self, file: InodeId, offset: u64, bit: u32) -> bool {
        let Some(inode) = self.inodes.get_mut(&file) else { return false };
        if offset >= inode.durable_bytes {
            return false;
        }
        inode.flip(offset, bit);
        self.plant(file, offset..offset + 1, FaultKind::Flipped);
        true
    }

    fn make_unreadable(&mut self, file: InodeId, offset: u64) -> bool {
        let Some(inode) = self.inodes.get_mut(&file) else { return false };
        if offset >= inode.durable_bytes {
            return false;
        }
        let sector = offset / SECTOR_BYTES;
        inode.unreadable.insert(sector);
        let start = sector * SECTOR_BYTES;
        self.plant(file, start..start + SECTOR_BYTES, FaultKind::Unreadable);
        true
    }

    /// The time that an operation takes.
    fn delay(&mut self, max: Duration) -> Duration {
        Duration::from_nanos(self.random.between(0, max.as_nanos() as u64))
    }

    fn image_hash(&self) -> u64 {
        let mut hash = image::Hash::default();
        for (which, names) in [&self.names.cached, &self.names.durable].into_iter().enumerate() {
            for (name, file) in names {
                hash.add(name.as_str().as_bytes());
                self.inodes[file].add_to(&mut hash, which == 0);
            }
            hash.add(b"/"); // No name has this character.
        }
        hash.0
    }
}
