//! The response of a shard to little memory. It leases smaller rings, gives idle memory back, and
//! returns an error if no ring is available.
//!
//! The shard reads no file. An [`Outlook`] comes from the watch of the process (by an atomic word
//! and the signals), or from readings by hand. The shard passes it on to the pool of rings. It
//! gives idle memory back one step a turn, so that no turn grows long.
//!
//! Nothing in use is taken away. Leased rings stay, and ended executions are kept for their
//! retention. An ended execution goes early only for a ring that another one needs, as without
//! pressure. The oldest one without a reader goes for a ring as large as the new tool asked for.
//! One with a reader goes only if the new tool would otherwise get no ring at all.
//!
//! An execution whose declared chunks fit into no ring that is allowed now gets an error, because
//! it would hold up the queue. It gets the error when it is opened or, if it waits already, when
//! its turn comes. An execution for which only space is lacking waits in the queue until a ring
//! comes back. The queue is bounded, and beyond it the answer is `Busy`. If no ring is leased that
//! could come back, it gets an error, too.
//!
//! Tests: `memory_tests.rs`; the simulator changes the pressure at random.

use std::{fmt, io};

use super::act::facts_of;
use super::config::{MemoryWatch, ShardConfig};
use super::outlet::{Outlet, ShardEvent};
use super::{ExecuteError, Shard, act};
use crate::engine::{Event, RingFacts, RingFit};
use crate::limits;
use crate::memory::pressure::{Decisive, Diagnosis};
use crate::memory::{Gauge, Geometry, LeaseError, Pressure, Readings, RingPoolUsage};
use crate::reactor::{Member, Outlook, Reactor, Waker, Watch};
use crate::trace::Code;

/// The state of the machine's memory, as far as a shard knows it.
pub(super) struct Memory {
    /// The membership in a watch; `None` if readings come by hand.
    member: Option<Member>,
    gauge: Gauge,
    outlook: Outlook,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { member: None, gauge: Gauge::default(), outlook: Outlook::CALM }
    }
}

impl Memory {
    /// The present memory pressure.
    pub(super) fn pressure(&self) -> Pressure {
        self.outlook.diagnosis.pressure
    }
}

/// The memory pressure, and the memory that the rings take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStatus {
    /// The memory pressure.
    pub pressure: Pressure,
    /// The reading that decided the pressure, as it was at the last change.
    pub decided_by: Option<Decisive>,
    /// The reading about disks that has reached its threshold. It alone does not shrink rings.
    pub busy_disks: Option<Decisive>,
    /// Maximum number of bytes that the rings of this shard may take together.
    pub rings_bytes_max: u64,
    /// The largest ring that a new execution gets, in bytes.
    pub largest_class_bytes: u32,
    /// The memory that the rings take.
    pub usage: RingPoolUsage,
}

/// Lets the allocator get memory from the kernel now, while nothing waits for it. The allocator
/// hands out the freed memory next, and the call that takes it has no page fault.
pub(super) fn warm_heap() {
    let mut ahead: Vec<u8> = Vec::with_capacity(limits::HEAP_AHEAD_BYTES);
    for page in ahead.spare_capacity_mut().chunks_mut(PAGE_BYTES) {
        page[0].write(0);
    }
    std::hint::black_box(&mut ahead);
}

/// Number of bytes of a page. At least one byte of each page is written.
const PAGE_BYTES: usize = 4096;

/// The reason why no ring that is allowed now takes the declared chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The memory pressure.
    pub pressure: Pressure,
    /// Maximum number of bytes that all rings may take together.
    pub rings_bytes_max: u64,
    /// The longest chunk that the tool declares, in bytes.
    pub chunk_bytes: u32,
    /// The longest chunk that the largest allowed ring takes, in bytes.
    pub chunk_bytes_max: u32,
    /// The largest allowed ring, in bytes.
    pub largest_class_bytes: u32,
}

/// Joins the watch that `config` names. Lowers the memory that `config` buys at the start to what
/// the shard may keep.
pub(super) fn join<G>(config: &mut ShardConfig<G>, waker: Waker) -> io::Result<Option<Member>> {
    let watch = match &config.memory {
        MemoryWatch::ByHand => return Ok(None),
        MemoryWatch::System => Watch::of_process(),
        MemoryWatch::Of(watch) => watch.clone(),
    };
    let member = watch.join(waker)?;
    let outlook = member.outlook();
    let rings = &mut config.rings;
    if outlook.rings_bytes_max < rings.bytes_max {
        let prealloc_bytes_max = outlook.rings_bytes_max / limits::RINGS_PREALLOC_FRACTION_MIN;
        rings.prealloc_bytes = rings.prealloc_bytes.min(prealloc_bytes_max);
    }
    if outlook.diagnosis.pressure != Pressure::Normal {
        rings.prealloc_bytes = 0; // It would go back at once.
    }
    Ok(Some(member))
}

/// Returns the memory pressure and the memory that the rings take.
pub(super) fn memory<R: Reactor + 'static, O: Outlet<R>>(shard: &Shard<R, O>) -> MemoryStatus {
    MemoryStatus {
        pressure: shard.memory.outlook.diagnosis.pressure,
        decided_by: shard.memory.outlook.diagnosis.decided_by,
        busy_disks: shard.memory.outlook.diagnosis.busy_disks,
        rings_bytes_max: shard.rings.bytes_max(),
        largest_class_bytes: shard.rings.largest_class_bytes(),
        usage: shard.rings.usage(),
    }
}

/// Takes one sample of the kernel's readings, for a shard without a watch. The pressure rises
/// at once, and falls after [`limits::PRESSURE_CALM_SAMPLES`] better samples. Returns the
/// pressure.
pub(super) fn set_readings<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    readings: &Readings,
) -> Pressure {
    let pressure = shard.memory.gauge.observe(readings);
    adapt(shard, Outlook::new(shard.memory.gauge.diagnosis(), readings, 1));
    act::pump(shard);
    pressure
}

/// Uses `member` as the source of outlooks from now on.
pub(super) fn watch_memory<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    member: Option<Member>,
) {
    shard.memory.member = member;
    look_at_memory(shard);
    act::pump(shard);
}

/// Adapts to the watch's outlook, if it has changed. Called when the signals rings.
pub(super) fn look_at_memory<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    if let Some(member) = &shard.memory.member {
        let outlook = member.outlook();
        adapt(shard, outlook);
    }
}

pub(super) fn adapt<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, outlook: Outlook) {
    if outlook == shard.memory.outlook {
        return;
    }
    let before = std::mem::replace(&mut shard.memory.outlook, outlook).diagnosis;
    let Diagnosis { pressure, busy_disks, .. } = outlook.diagnosis;
    if pressure != before.pressure {
        shard.counters.memory_pressure_changes += 1;
        O::report(shard, &ShardEvent::Pressure(before.pressure, outlook.diagnosis));
    }
    if busy_disks.is_some() != before.busy_disks.is_some() {
        O::report(shard, &ShardEvent::Disks(busy_disks));
    }
    shard.rings.set_pressure(pressure);
    let bytes_max = shard.rings.set_bytes_max(outlook.rings_bytes_max);
    shard.record(Code::MemoryChanged, pressure as u64, bytes_max);
    // A waiting execution may get a ring now, or has to get an error.
    shard.tell(Event::RingReturned);
}

/// Gives back one step's worth of idle memory.
#[cold]
pub(super) fn give_back_step<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    if shard.rings.release_step() > 0 {
        shard.worked = true; // There may be more.
    }
}

/// Returns the ring that a tool gets if memory stays as it is.
pub(super) fn expected_ring<R: Reactor + 'static, O: Outlet<R>>(
    shard: &Shard<R, O>,
    ring_bytes: u32,
    chunk_bytes: u32,
) -> Result<RingFacts, ExecuteError> {
    let largest_bytes = *limits::RING_CLASS_BYTES.last().expect("the list of classes is not empty");
    let chunk_bytes_max = Geometry::of_class(largest_bytes).length_max();
    if chunk_bytes > chunk_bytes_max {
        return Err(ExecuteError::ChunkTooLarge { chunk_bytes, chunk_bytes_max });
    }
    let largest_bytes = shard.rings.largest_class_bytes();
    let chunk_bytes_max = Geometry::of_class(largest_bytes).length_max();
    if chunk_bytes > chunk_bytes_max {
        return Err(ExecuteError::MemoryShort(shortage(shard, chunk_bytes, chunk_bytes_max)));
    }
    let allowed = limits::RING_CLASS_BYTES.iter().filter(|bytes| **bytes <= largest_bytes);
    let fits = |ring: &Geometry| {
        ring.length_max() >= chunk_bytes && ring.window_bytes() as u32 >= ring_bytes
    };
    let found = allowed.map(|bytes| Geometry::of_class(*bytes)).find(fits);
    Ok(facts_of(found.unwrap_or_else(|| Geometry::of_class(largest_bytes))))
}

/// Returns an error text if waiting for another ring would not help after this refusal.
pub(super) fn never_leased<R: Reactor + 'static, O: Outlet<R>>(
    shard: &Shard<R, O>,
    error: &LeaseError,
    fit: RingFit,
) -> Option<String> {
    match *error {
        LeaseError::TooLarge { chunk_bytes, chunk_bytes_max } => {
            Some(shortage(shard, chunk_bytes, chunk_bytes_max).to_string())
        }
        // No ring is leased that could come back.
        LeaseError::Exhausted { .. } | LeaseError::Os(_)
            if fit == RingFit::Any && shard.rings.usage().leased_count == 0 =>
        {
            Some(error.to_string())
        }
        LeaseError::Exhausted { .. } | LeaseError::Os(_) => None,
    }
}

pub(super) fn shortage<R: Reactor + 'static, O: Outlet<R>>(
    shard: &Shard<R, O>,
    chunk_bytes: u32,
    chunk_bytes_max: u32,
) -> Shortage {
    let MemoryStatus { pressure, rings_bytes_max, largest_class_bytes, .. } = memory(shard);
    Shortage { pressure, rings_bytes_max, chunk_bytes, chunk_bytes_max, largest_class_bytes }
}

impl fmt::Display for Shortage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { pressure, rings_bytes_max, chunk_bytes, chunk_bytes_max, .. } = *self;
        let class_bytes = self.largest_class_bytes;
        if pressure.largest_class_bytes() > class_bytes {
            write!(out, "memory limit: all rings together take at most {rings_bytes_max} bytes")?;
        } else {
            write!(out, "memory pressure is {pressure}")?;
        }
        write!(
            out,
            ", so a ring now has at most {class_bytes} bytes and takes chunks of at most \
             {chunk_bytes_max}; this tool declares {chunk_bytes}"
        )
    }
}

impl std::error::Error for Shortage {}
