//! The source of private rings: windows in one arena per size class.
//!
//! One shard thread owns the pool. An arena is a memfd that never leaves the process. It is mapped
//! once over reserved address space and bought step by step. It is sealed against shrinking only,
//! since it grows and gives pages back.
//!
//! The life cycle of a window is: bought → leased → idle → leased …, or idle → released (its pages
//! belong to the kernel again) → bought. The most recently used idle window is leased first,
//! because it is warm. A mapping lives as long as any reader of one of its windows.
//!
//! [`RingPool::new`] buys and touches `prealloc_bytes`: half for the most common class, an eighth
//! for each other class. More is bought when a lease needs it, up to `bytes_max` for all classes
//! together. An idle shard also buys ahead ([`RingPool::restock_step`]), in the class that was
//! leased from last.
//!
//! While memory is short ([`RingPool::set_pressure`]), no window above the largest allowed class is
//! leased, and nothing is bought ahead. Idle windows go back to the kernel, step by step
//! ([`RingPool::release_step`]).
//!
//! A lower limit ([`RingPool::set_bytes_max`]) takes no leased window away. Nothing is bought or
//! leased above it, and idle windows are released until the rest is below it. A class of which not
//! one window fits is not leased from.
//!
//! The sift seed calls `madvise(MADV_SEQUENTIAL)` on open; this pool does not. It controls the
//! read-ahead of files, and the pages of a memfd are in memory or in swap. They are never read
//! ahead from a file (shmem faults ignore it). Pages are touched when they are bought instead.
//!
//! Invariants ([`RingPool::audit`]):
//! - P1: per arena, the windows that were ever bought are its idle, released and leased ones, and
//!   the one that is being released
//! - P2: `committed_bytes` is the sum of idle and leased windows, and of the rest of one that is
//!   being released. It is at most `bytes_max` once all idle windows were released. No purchase and
//!   no lease ever goes above that limit.
//! - P3: no generation is given twice to the same window
//!
//! Tests: `pool_tests.rs`.

use std::ops::RangeInclusive;
use std::{fmt, io};

use super::arena::Arena;
use super::layout::Geometry;
use super::lease::{Lease, WindowPosition};
use super::pressure::Pressure;
use crate::limits::{
    RING_CLASS_BYTES, RING_GROWTH_STEP_BYTES, RING_NEED_BYTES_DEFAULT, RING_RELEASE_STEP_BYTES,
    RING_RESERVE_BYTES, RING_RESTOCK_STEP_BYTES, RINGS_BYTES_MAX, RINGS_PREALLOC_BYTES,
};

const CLASS_COUNT: usize = RING_CLASS_BYTES.len();

/// The divisors of the memory that is bought at the start: the share of the most common class, and
/// that of each other class.
const SHARE_OF_COMMON: u64 = 2;
const SHARE_OF_OTHER: u64 = 8;

const _: () = {
    let whole = SHARE_OF_OTHER;
    let mut sum = 0;
    sum += whole / SHARE_OF_COMMON; // The windows that most executions ask for.
    // One share of each other class: its first rings need no system call either, if they fit.
    sum += CLASS_COUNT as u64 - 1;
    assert!(sum <= whole); // All shares together are no more than `prealloc_bytes`.
    assert!(RINGS_BYTES_MAX >= RING_CLASS_BYTES[CLASS_COUNT - 1] as u64); // Each class fits.
    assert!(RING_NEED_BYTES_DEFAULT <= RING_CLASS_BYTES[CLASS_COUNT - 1]);
    assert!(RING_RESTOCK_STEP_BYTES <= RING_RESERVE_BYTES); // A step does not go beyond its aim.
};

/// The amount of memory that a pool may use.
#[derive(Clone, Copy, Debug)]
pub struct RingPoolConfig {
    /// Number of bytes that are bought and touched at start.
    pub prealloc_bytes: u64,
    /// Number of bytes that are bought at most, for all classes together.
    pub bytes_max: u64,
    /// Number of bytes that most rings will hold. Half of the memory that is bought at start is
    /// windows for these. The default is the size for a tool that declares nothing. A server sets
    /// `limits::RING_SERVED_BYTES`.
    pub common_bytes: u32,
}

impl Default for RingPoolConfig {
    fn default() -> RingPoolConfig {
        RingPoolConfig {
            prealloc_bytes: RINGS_PREALLOC_BYTES,
            bytes_max: RINGS_BYTES_MAX,
            common_bytes: RING_NEED_BYTES_DEFAULT,
        }
    }
}

/// The current contents of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPoolUsage {
    /// Number of leased windows.
    pub leased_count: u32,
    /// Size of the leased windows, in bytes.
    pub leased_bytes: u64,
    /// Number of bytes bought from the kernel, leased and idle.
    pub committed_bytes: u64,
    /// Size of the reserved address space, in bytes.
    pub reserved_bytes: u64,
    /// Number of leases since start.
    pub leases_total: u64,
    /// Number of purchases since start, each a system call or two on the control path.
    pub purchases_total: u64,
    /// Number of bytes given back to the kernel since start.
    pub released_bytes_total: u64,
}

/// The reason why a lease failed.
#[derive(Debug)]
pub enum LeaseError {
    /// No allowed class takes chunks of this length: fix the call, or wait until larger classes are
    /// allowed.
    TooLarge {
        /// Length of the longest declared chunk, in bytes.
        chunk_bytes: u32,
        /// Length of the longest chunk that the largest allowed class takes, in bytes.
        chunk_bytes_max: u32,
    },
    /// All bytes are leased: wait until a window is given back, or evict.
    Exhausted {
        /// Size of the smallest window that would have sufficed, in bytes.
        window_bytes: u32,
        /// Number of leased bytes.
        leased_bytes: u64,
        /// Number of bytes that may be leased.
        bytes_max: u64,
    },
    /// The kernel has no more memory: wait, or give up.
    Os(io::Error),
}

/// Windows for rings, in one arena per size class.
pub struct RingPool {
    arenas: [Arena; CLASS_COUNT],
    /// The largest class that the pressure allows.
    pressure_class_index: usize,
    /// The largest class with a window of at most `bytes_max`.
    fitting_class_index: usize,
    /// True while memory is short: idle windows are released, and nothing is bought ahead.
    frugal: bool,
    /// True if the kernel has refused to take a window back. It is not asked again until something
    /// changes.
    release_refused: bool,
    /// The class of the last lease, if few bytes of it are idle.
    scarce_class_index: Option<usize>,
    bytes_max: u64,
    /// The upper bound of `bytes_max`, for which address space was reserved.
    bytes_ceiling: u64,
    generation_next: u64,
    usage: RingPoolUsage,
}

impl RingPool {
    /// Creates a pool with `config.prealloc_bytes` bought and touched.
    ///
    /// # Errors
    /// The kernel's error, or `InvalidInput` if `bytes_max` is below one window of the smallest
    /// class or below `prealloc_bytes`.
    pub fn new(config: RingPoolConfig) -> io::Result<RingPool> {
        let RingPoolConfig { prealloc_bytes, bytes_max, common_bytes } = config;
        let window_bytes_min = u64::from(RING_CLASS_BYTES[0]);
        if bytes_max < window_bytes_min || bytes_max < prealloc_bytes {
            let text = format!(
                "rings_bytes_max is {bytes_max}, less than one window of {window_bytes_min} bytes \
                 or than the {prealloc_bytes} bytes allocated at the start"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut arenas = Vec::with_capacity(CLASS_COUNT);
        for class_index in 0..CLASS_COUNT {
            arenas.push(Arena::new(class_index, bytes_max)?);
        }
        let reserved_bytes = arenas.iter().map(|arena| arena.segment.bytes() as u64).sum();
        let Ok(arenas) = arenas.try_into() else { unreachable!("one arena per class") };
        let mut pool = RingPool {
            arenas,
            pressure_class_index: CLASS_COUNT - 1,
            fitting_class_index: fitting_class(bytes_max),
            frugal: false,
            release_refused: false,
            scarce_class_index: None,
            bytes_max,
            bytes_ceiling: bytes_max,
            generation_next: 1,
            usage: RingPoolUsage { reserved_bytes, ..RingPoolUsage::default() },
        };
        let holds_common = |class_bytes: &u32| *class_bytes >= common_bytes;
        let common = RING_CLASS_BYTES.iter().position(holds_common).unwrap_or(CLASS_COUNT - 1);
        for (class_index, class_bytes) in RING_CLASS_BYTES.into_iter().enumerate() {
            let share = if class_index == common { SHARE_OF_COMMON } else { SHARE_OF_OTHER };
            let window_count = prealloc_bytes / share / u64::from(class_bytes);
            pool.buy(class_index, window_count as u32)?;
        }
        assert!(pool.usage.committed_bytes <= prealloc_bytes); // The sum of the shares.
        assert!(pool.usage.reserved_bytes <= CLASS_COUNT as u64 * bytes_max);
        Ok(pool)
    }

    /// Leases a window for a ring that holds `need_bytes` in all and chunks of up to `chunk_bytes`
    /// each. It is of the smallest class that fits, or of the largest allowed one if none does. A
    /// ring holds only the newest chunks, so a small one serves a long result too. If not enough
    /// memory is left, the window may be of a smaller class, but never of one that cannot take the
    /// declared chunks.
    ///
    /// # Errors
    /// [`LeaseError`]; the pool is then unchanged.
    pub fn lease(&mut self, need_bytes: u32, chunk_bytes: u32) -> Result<Lease, LeaseError> {
        let (smallest, wanted) = self.classes_for(need_bytes, chunk_bytes)?;
        self.lease_of(smallest..=wanted)
    }

    /// Leases a window like [`RingPool::lease`], but never a smaller one because all others are
    /// leased.
    ///
    /// # Errors
    /// [`LeaseError`]; the pool is then unchanged.
    pub fn lease_whole(&mut self, need_bytes: u32, chunk_bytes: u32) -> Result<Lease, LeaseError> {
        let (_, wanted) = self.classes_for(need_bytes, chunk_bytes)?;
        self.lease_of(wanted..=wanted)
    }

    /// Returns the smallest class that takes the chunks, and the requested class as far as the
    /// pressure allows it.
    fn classes_for(&self, need_bytes: u32, chunk_bytes: u32) -> Result<(usize, usize), LeaseError> {
        let takes_chunks =
            |class: usize| Geometry::of_class(RING_CLASS_BYTES[class]).length_max() >= chunk_bytes;
        let largest = self.largest_class_index();
        let Some(smallest) = (0..=largest).find(|class| takes_chunks(*class)) else {
            let chunk_bytes_max = Geometry::of_class(RING_CLASS_BYTES[largest]).length_max();
            return Err(LeaseError::TooLarge { chunk_bytes, chunk_bytes_max });
        };
        let wanted = (smallest..=largest)
            .find(|class| RING_CLASS_BYTES[*class] >= need_bytes)
            .unwrap_or(largest);
        assert!(smallest <= wanted);
        assert!(wanted <= largest);
        Ok((smallest, wanted))
    }

    /// Leases a window of one of these classes, the largest that is available.
    fn lease_of(&mut self, classes: RangeInclusive<usize>) -> Result<Lease, LeaseError> {
        let smallest = *classes.start();
        assert!(*classes.end() <= self.largest_class_index());
        let mut refusal = None;
        for class_index in classes.rev() {
            match self.ready_window(class_index) {
                Ok(Some(window_index)) => return Ok(self.hand_out(class_index, window_index)),
                Ok(None) => {}
                Err(error) => refusal = Some(error),
            }
        }
        Err(match refusal {
            Some(error) => LeaseError::Os(error),
            None => LeaseError::Exhausted {
                window_bytes: RING_CLASS_BYTES[smallest],
                leased_bytes: self.usage.leased_bytes,
                bytes_max: self.bytes_max,
            },
        })
    }

    /// Takes a window back. Its readers can still copy from it until the header of its next ring is
    /// written. Then they see that it is gone.
    ///
    /// # Panics
    /// If the lease is not from this pool.
    pub fn give_back(&mut self, lease: Lease) {
        let place = lease.place.expect("the lease is from a pool");
        let arena = &mut self.arenas[place.class_index as usize];
        assert!(arena.segment.shares_backing(&lease.segment));
        assert!(place.window_index < arena.window_count);
        assert!(arena.window(place.window_index).is(&lease.segment)); // As it was handed out.
        assert!(lease.geometry == Geometry::of_class(arena.class_bytes));
        assert!(lease.generation > 0);
        arena.take_back(place.window_index);
        self.release_refused = false;
        self.usage.leased_count -= 1;
        self.usage.leased_bytes -= u64::from(arena.class_bytes);
        self.generation_next = self.generation_next.max(lease.generation + 1);
        assert!(self.generation_next > lease.generation); // P3
    }

    /// Gives the pages of all idle windows back to the kernel. They are bought again when they are
    /// needed. Returns the number of bytes.
    pub fn release_idle(&mut self) -> u64 {
        (0..CLASS_COUNT).map(|class_index| self.release_idle_of(class_index, u64::MAX)).sum()
    }

    /// Sets the pressure. From now on no window is leased that is larger than it allows. Unless the
    /// pressure is normal, idle windows have to be released. Leased windows stay.
    pub fn set_pressure(&mut self, pressure: Pressure) {
        self.set_largest_class(pressure.largest_class_bytes());
        self.frugal = pressure != Pressure::Normal;
        self.release_refused = false;
    }

    /// Sets the largest class, as the pressure state says. From now on no window larger than
    /// `class_bytes` is leased. Leased windows stay.
    ///
    /// # Panics
    /// If no class has `class_bytes`.
    pub fn set_largest_class(&mut self, class_bytes: u32) {
        let class_index = RING_CLASS_BYTES.iter().position(|bytes| *bytes == class_bytes);
        self.pressure_class_index = class_index.expect("one of the classes");
    }

    /// Sets the limit for purchases and leases, and returns the new one. It is at least one window
    /// of the smallest class, and at most the limit that the pool was created with. Leased windows
    /// stay.
    pub fn set_bytes_max(&mut self, bytes_max: u64) -> u64 {
        self.bytes_max = bytes_max.clamp(u64::from(RING_CLASS_BYTES[0]), self.bytes_ceiling);
        self.fitting_class_index = fitting_class(self.bytes_max);
        self.release_refused = false;
        assert!(self.bytes_max <= self.bytes_ceiling); // Address space is reserved up to there.
        self.bytes_max
    }

    /// The current limit for purchases and leases, in bytes.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Size of the largest window that may be leased now, in bytes.
    pub fn largest_class_bytes(&self) -> u32 {
        RING_CLASS_BYTES[self.largest_class_index()]
    }

    fn largest_class_index(&self) -> usize {
        let class_index = self.pressure_class_index.min(self.fitting_class_index);
        assert!(u64::from(RING_CLASS_BYTES[class_index]) <= self.bytes_max);
        class_index
    }

    /// True if [`RingPool::release_step`] has idle windows that it should release.
    #[inline]
    pub fn has_excess(&self) -> bool {
        let idle_bytes = self.usage.committed_bytes - self.usage.leased_bytes;
        let wanted = self.frugal || self.usage.committed_bytes > self.bytes_max;
        idle_bytes > 0 && wanted && !self.release_refused
    }

    /// Releases one step's worth of idle windows, the largest first. Returns the number of bytes,
    /// which is 0 if the kernel takes nothing. Call it once a turn while [`RingPool::has_excess`].
    pub fn release_step(&mut self) -> u64 {
        let has_idle = |class_index: &usize| self.arenas[*class_index].has_idle();
        let Some(class_index) = (0..CLASS_COUNT).rev().find(has_idle) else { return 0 };
        let released_bytes = self.release_idle_of(class_index, RING_RELEASE_STEP_BYTES.into());
        self.release_refused = released_bytes == 0;
        assert!(released_bytes <= u64::from(RING_RELEASE_STEP_BYTES)); // One step a turn.
        released_bytes
    }

    /// True if the class of the last lease is running out, so that [`RingPool::restock_step`]
    /// should buy ahead.
    #[inline]
    pub fn is_scarce(&self) -> bool {
        self.scarce_class_index.is_some()
    }

    /// Buys one step ahead if necessary, so that a lease then needs no system call. Call it while
    /// [`RingPool::is_scarce`] and nobody waits. Returns whether it bought anything.
    pub fn restock_step(&mut self) -> bool {
        let Some(class_index) = self.scarce_class_index.take() else { return false };
        let class_bytes = u64::from(RING_CLASS_BYTES[class_index]);
        let step_bytes = u64::from(RING_RESTOCK_STEP_BYTES).max(class_bytes);
        assert!(step_bytes.is_multiple_of(class_bytes)); // Whole windows.
        let has_room = self.usage.committed_bytes + step_bytes <= self.bytes_max;
        if self.frugal || !has_room || !self.is_running_out(class_index) {
            return false;
        }
        if self.buy(class_index, (step_bytes / class_bytes) as u32).is_err() {
            return false; // A later lease reports the error.
        }
        self.scarce_class_index = self.is_running_out(class_index).then_some(class_index);
        true
    }

    /// True if few bytes of a class are idle. Large windows are never bought ahead, because a
    /// caller may need only one of them.
    fn is_running_out(&self, class_index: usize) -> bool {
        let class_bytes = u64::from(RING_CLASS_BYTES[class_index]);
        let idle_bytes = self.arenas[class_index].idle.len() as u64 * class_bytes;
        class_bytes <= u64::from(RING_RESTOCK_STEP_BYTES)
            && idle_bytes < u64::from(RING_RESERVE_BYTES)
    }

    /// The current contents of the pool.
    pub fn usage(&self) -> RingPoolUsage {
        self.usage
    }

    /// Takes a window of the class that can be leased now. Returns `None` if none is idle and the
    /// limit does not permit a purchase.
    fn ready_window(&mut self, class_index: usize) -> io::Result<Option<u32>> {
        let class_bytes = u64::from(RING_CLASS_BYTES[class_index]);
        if self.usage.leased_bytes + class_bytes > self.bytes_max {
            return Ok(None); // The limit was lowered: idle windows may not be leased any more.
        }
        if let Some(window_index) = self.arenas[class_index].idle.pop() {
            return Ok(Some(window_index));
        }
        self.release_idle_of(class_index, u64::MAX); // Also one in progress, to be bought anew.
        for other_index in 0..CLASS_COUNT {
            let wanted_bytes = self.usage.committed_bytes + class_bytes;
            let Some(excess_bytes) = wanted_bytes.checked_sub(self.bytes_max) else { break };
            self.release_idle_of(other_index, excess_bytes);
        }
        let room_bytes = self.bytes_max.saturating_sub(self.usage.committed_bytes);
        let room_count = room_bytes / class_bytes;
        if room_count == 0 {
            return Ok(None);
        }
        let step_count = match self.frugal {
            true => 1,
            false => u64::from(RING_GROWTH_STEP_BYTES).div_ceil(class_bytes),
        };
        self.buy(class_index, step_count.min(room_count) as u32)?;
        let window_index = self.arenas[class_index].idle.pop();
        assert!(window_index.is_some()); // One was just bought.
        Ok(window_index)
    }

    /// Buys `window_count` windows, some of which may have been bought before.
    fn buy(&mut self, class_index: usize, window_count: u32) -> io::Result<()> {
        let arena = &mut self.arenas[class_index];
        let mut bought_count = 0;
        let mut result = Ok(());
        while bought_count < window_count && result.is_ok() {
            self.usage.purchases_total += 1;
            match arena.buy(window_count - bought_count) {
                Ok(count) => bought_count += count,
                Err(error) => result = Err(error),
            }
        }
        let bought_bytes = u64::from(bought_count) * u64::from(arena.class_bytes);
        self.usage.committed_bytes += bought_bytes;
        assert!(self.usage.committed_bytes <= self.bytes_max);
        if bought_count > 0 { Ok(()) } else { result }
    }

    fn hand_out(&mut self, class_index: usize, window_index: u32) -> Lease {
        let arena = &mut self.arenas[class_index];
        arena.hand_out(window_index);
        self.usage.leased_count += 1;
        self.usage.leased_bytes += u64::from(arena.class_bytes);
        self.usage.leases_total += 1;
        assert!(self.usage.leased_bytes <= self.bytes_max); // P2
        assert!(self.usage.leased_bytes <= self.usage.committed_bytes);
        assert!(u64::from(self.usage.leased_count) <= self.usage.leases_total);
        let generation = self.generation_next;
        self.generation_next += 1;
        let lease = Lease {
            segment: arena.window(window_index),
            geometry: Geometry::of_class(arena.class_bytes),
            generation,
            place: Some(WindowPosition { class_index: arena.class_index, window_index }),
        };
        self.scarce_class_index = self.is_running_out(class_index).then_some(class_index);
        lease
    }

    /// Releases idle windows of one class, at least `bytes` bytes if that many are idle.
    fn release_idle_of(&mut self, class_index: usize, bytes: u64) -> u64 {
        let arena = &mut self.arenas[class_index];
        let released_bytes = arena.release_idle(bytes);
        self.usage.committed_bytes -= released_bytes;
        self.usage.released_bytes_total += released_bytes;
        assert!(self.usage.committed_bytes >= self.usage.leased_bytes); // Leased ones stay.
        released_bytes
    }

    /// Number of bytes that the kernel holds for the arenas, by its own count. For tests.
    #[cfg(all(test, not(loom)))]
    pub(super) fn file_bytes(&self) -> u64 {
        self.arenas.iter().map(|arena| arena.memfd.allocated_bytes().unwrap()).sum()
    }

    /// Checks P1 and P2.
    pub fn audit(&self) {
        let mut committed_bytes = 0;
        let mut leased_bytes = 0;
        for arena in &self.arenas {
            let idle_count = arena.idle.len() as u32;
            let absent_count = arena.released.len() as u32 + u32::from(arena.partial.is_some());
            assert_eq!(idle_count + absent_count + arena.leased_count, arena.window_count);
            let left_bytes = arena.partial.map_or(0, |(_, gone)| arena.class_bytes - gone);
            committed_bytes += u64::from(left_bytes);
            leased_bytes += u64::from(arena.leased_count) * u64::from(arena.class_bytes);
            committed_bytes +=
                u64::from(idle_count + arena.leased_count) * u64::from(arena.class_bytes);
        }
        assert_eq!(committed_bytes, self.usage.committed_bytes);
        assert_eq!(leased_bytes, self.usage.leased_bytes);
        let has_more = committed_bytes > self.bytes_max && committed_bytes > leased_bytes;
        assert!(!has_more || self.has_excess() || self.release_refused);
        assert!(self.bytes_max <= self.bytes_ceiling);
        assert!(u64::from(self.largest_class_bytes()) <= self.bytes_max);
    }
}

/// Returns the index of the largest class with a window of at most `bytes_max`.
fn fitting_class(bytes_max: u64) -> usize {
    let fits = |class_bytes: &u32| u64::from(*class_bytes) <= bytes_max;
    assert!(bytes_max >= u64::from(RING_CLASS_BYTES[0])); // `new` and `set_bytes_max` keep it so.
    RING_CLASS_BYTES.iter().rposition(fits).expect("one window of the smallest class fits")
}

impl fmt::Display for LeaseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseError::TooLarge { chunk_bytes, chunk_bytes_max } => {
                write!(
                    out,
                    "chunks of {chunk_bytes} bytes are too long; a ring now takes at most \
                     {chunk_bytes_max}"
                )
            }
            LeaseError::Exhausted { window_bytes, leased_bytes, bytes_max } => write!(
                out,
                "no room for a ring of {window_bytes} bytes: {leased_bytes} of {bytes_max} are in \
                 use"
            ),
            LeaseError::Os(error) => write!(out, "no memory for rings: {error}"),
        }
    }
}

impl std::error::Error for LeaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LeaseError::Os(error) => Some(error),
            LeaseError::TooLarge { .. } | LeaseError::Exhausted { .. } => None,
        }
    }
}
