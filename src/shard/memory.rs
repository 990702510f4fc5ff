//! How a shard lives with less memory: which rings it still gives, what it gives back, what it says
//! to those who get none.
//!
//! The shard reads no file. It is told an [`Outlook`] (by the watch of the process through an
//! atomic word and its bell, or readings by hand), passes it on to the pool of rings, and gives
//! idle memory back one step a turn, so that no turn grows long. Nothing is taken away from
//! anybody: what is leased stays, and what has ended is kept for its retention as ever. An ended
//! execution goes early only for a ring that another one needs, as without pressure: the oldest
//! that nobody reads goes for a ring as large as the new tool asked for; one that is read goes only
//! where the new tool would get none at all.
//!
//! Who gets no ring: one whose declared chunks fit into no ring that is allowed now is told so,
//! when it asks or, if it waits already, when its turn comes; it would hold up all who wait behind
//! it. One for which there is merely no room now waits in line (which is bounded; then it is
//! `Busy`) until a ring comes back. If none is out that could come back, it is told so, too.
//!
//! Tests: `memory_tests.rs`; the simulator changes the pressure at random.

use std::fmt;
use std::io;

use super::act::facts_of;
use super::config::{MemoryWatch, ShardConfig};
use super::{ExecuteError, Shard};
use crate::engine::{Event, RingFacts, RingFit};
use crate::limits;
use crate::memory::pressure::{Decisive, Diagnosis};
use crate::memory::{Gauge, Geometry, LeaseError, Pressure, Readings, RingPoolUsage};
use crate::reactor::{Member, Outlook, Reactor, Waker, Watch};
use crate::trace::Code;

/// What a shard knows of the machine's memory.
pub(super) struct Memory {
    /// Who says; `None`: readings come by hand.
    member: Option<Member>,
    gauge: Gauge,
    outlook: Outlook,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { member: None, gauge: Gauge::default(), outlook: Outlook::CALM }
    }
}

/// How short memory is, and what the rings take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStatus {
    /// How short it is.
    pub pressure: Pressure,
    /// The reading that decided this, as it was at the last change.
    pub decided_by: Option<Decisive>,
    /// What the rings of this shard may take together.
    pub rings_bytes_max: u64,
    /// The largest ring that a new execution gets.
    pub largest_class_bytes: u32,
    /// What the rings take.
    pub usage: RingPoolUsage,
}

/// Has the allocator get memory from the kernel now, while nobody waits: what is freed it hands
/// out next, and the call that takes it has no page to wait for.
pub(super) fn warm_heap() {
    let mut ahead: Vec<u8> = Vec::with_capacity(limits::HEAP_AHEAD_BYTES);
    for page in ahead.spare_capacity_mut().chunks_mut(PAGE_BYTES) {
        page[0].write(0);
    }
    std::hint::black_box(&mut ahead);
}

/// At least one byte of each page is written.
const PAGE_BYTES: usize = 4096;

/// Why no ring that is allowed now takes the declared chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// How short memory is.
    pub pressure: Pressure,
    /// What all rings may take together.
    pub rings_bytes_max: u64,
    /// The longest chunk that was declared.
    pub chunk_bytes: u32,
    /// The longest that the largest allowed ring takes.
    pub chunk_bytes_max: u32,
    /// The largest allowed ring.
    pub largest_class_bytes: u32,
}

/// Joins whoever is to say how short memory is, and makes `config` buy no more at the start than it
/// may keep.
pub(super) fn join(config: &mut ShardConfig, waker: Waker) -> io::Result<Option<Member>> {
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

impl<R: Reactor + 'static> Shard<R> {
    /// How short memory is, and what the rings take.
    pub fn memory(&self) -> MemoryStatus {
        MemoryStatus {
            pressure: self.memory.outlook.diagnosis.pressure,
            decided_by: self.memory.outlook.diagnosis.decided_by,
            rings_bytes_max: self.rings.bytes_max(),
            largest_class_bytes: self.rings.largest_class_bytes(),
            usage: self.rings.usage(),
        }
    }

    /// Tells a shard that is not told by a watch what the kernel says of memory: one sample. It
    /// goes up at once and down after [`limits::PRESSURE_CALM_SAMPLES`] better samples. Returns the
    /// state.
    ///
    /// ```
    /// use streamdoor::memory::{Pressure, Readings};
    /// use streamdoor::shard::{MemoryWatch, Shard, ShardConfig};
    ///
    /// let config = ShardConfig { memory: MemoryWatch::ByHand, ..Default::default() };
    /// let (mut shard, _report) = Shard::new(config)?;
    /// let readings = Readings { memory_some_avg10: Some(40.0), ..Default::default() };
    /// assert_eq!(shard.set_readings(&readings), Pressure::Critical);
    /// assert_eq!(shard.memory().largest_class_bytes, 64 << 10);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_readings(&mut self, readings: &Readings) -> Pressure {
        let pressure = self.memory.gauge.observe(readings);
        self.adapt(Outlook::new(self.memory.gauge.diagnosis(), readings, 1));
        self.pump();
        pressure
    }

    /// From now on `member` says how short memory is.
    pub(super) fn watch_memory(&mut self, member: Option<Member>) {
        self.memory.member = member;
        self.look_at_memory();
        self.pump();
    }

    /// The bell was rung: has the watch left a new outlook?
    pub(super) fn look_at_memory(&mut self) {
        if let Some(member) = &self.memory.member {
            let outlook = member.outlook();
            self.adapt(outlook);
        }
    }

    fn adapt(&mut self, outlook: Outlook) {
        if outlook == self.memory.outlook {
            return;
        }
        let before = std::mem::replace(&mut self.memory.outlook, outlook).diagnosis.pressure;
        let Diagnosis { pressure, .. } = outlook.diagnosis;
        if pressure != before {
            self.counters.memory_pressure_changes += 1;
            #[cfg(feature = "server")]
            self.log_pressure(before, outlook.diagnosis);
        }
        self.rings.set_pressure(pressure);
        let bytes_max = self.rings.set_bytes_max(outlook.rings_bytes_max);
        self.record(Code::MemoryChanged, pressure as u64, bytes_max);
        // Who waits may get a ring now, or is to hear that there is none.
        self.tell(Event::RingReturned);
    }

    /// Gives back one step's worth of memory that nobody uses.
    #[cold]
    pub(super) fn give_back_step(&mut self) {
        if self.rings.release_step() > 0 {
            self.worked = true; // There may be more.
        }
    }

    /// The ring that a tool gets if memory stays as it is.
    pub(super) fn expected_ring(
        &self,
        ring_bytes: u32,
        chunk_bytes: u32,
    ) -> Result<RingFacts, ExecuteError> {
        let largest_bytes = *limits::RING_CLASS_BYTES.last().expect("there are classes");
        let chunk_bytes_max = Geometry::of_class(largest_bytes).length_max();
        if chunk_bytes > chunk_bytes_max {
            return Err(ExecuteError::ChunkTooLarge { chunk_bytes, chunk_bytes_max });
        }
        let largest_bytes = self.rings.largest_class_bytes();
        let chunk_bytes_max = Geometry::of_class(largest_bytes).length_max();
        if chunk_bytes > chunk_bytes_max {
            return Err(ExecuteError::MemoryShort(self.shortage(chunk_bytes, chunk_bytes_max)));
        }
        let allowed = limits::RING_CLASS_BYTES.iter().filter(|bytes| **bytes <= largest_bytes);
        let fits = |ring: &Geometry| {
            ring.length_max() >= chunk_bytes && ring.window_bytes() as u32 >= ring_bytes
        };
        let found = allowed.map(|bytes| Geometry::of_class(*bytes)).find(fits);
        Ok(facts_of(found.unwrap_or_else(|| Geometry::of_class(largest_bytes))))
    }

    /// Why waiting for another ring would not help after this refusal; `None` if it may.
    pub(super) fn never_leased(&self, error: &LeaseError, fit: RingFit) -> Option<String> {
        match *error {
            LeaseError::TooLarge { chunk_bytes, chunk_bytes_max } => {
                Some(self.shortage(chunk_bytes, chunk_bytes_max).to_string())
            }
            // Nothing is out that could come back.
            LeaseError::Exhausted { .. } | LeaseError::Os(_)
                if fit == RingFit::Any && self.rings.usage().leased_count == 0 =>
            {
                Some(error.to_string())
            }
            LeaseError::Exhausted { .. } | LeaseError::Os(_) => None,
        }
    }

    fn shortage(&self, chunk_bytes: u32, chunk_bytes_max: u32) -> Shortage {
        let MemoryStatus { pressure, rings_bytes_max, largest_class_bytes, .. } = self.memory();
        Shortage { pressure, rings_bytes_max, chunk_bytes, chunk_bytes_max, largest_class_bytes }
    }
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
