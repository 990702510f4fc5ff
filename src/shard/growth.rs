//! Rings that start small and grow.
//!
//! An execution with `grows` begins in the smallest window that takes the chunks that its tool
//! declares. The ring grows fourfold, up to the size that the tool needs:
//! - while all rings together take little memory, instead of giving up old chunks;
//! - when the producer finds no room, because readers or its own newest chunks are in the way, or
//!   because a chunk is too long;
//! - at once to its whole size, before a subscriber comes that needs more than the next chunks.
//!
//! Such a subscriber is on another thread, comes back for chunks, or has a limit of its own.
//!
//! A growth leases the next window, copies what is held, and gives the old window back. If no
//! window can be leased, or memory is short, the ring stays small for good. A producer then waits
//! for its readers or splits its chunks, as in any small ring. No write fails for want of memory.
//!
//! Readers on other threads look at one window for as long as they live. A ring that they read
//! therefore stays where it is.
//!
//! Tests: `growth_tests.rs`; the simulator lets some of its executions grow.

use super::Shard;
use super::act::{self, facts_of};
use super::outlet::{GuestRun, Outlet};
use super::run::{Producer, Ring, Run};
use crate::base::ExecutionId;
use crate::engine::{Event, SubscribeSpec, SubscriberPlace};
use crate::limits;
use crate::memory::growth::{can_move, continued_in};
use crate::memory::{Pressure, RingWriter};
use crate::reactor::Reactor;
use crate::stream::{Policy, Totals};
use crate::trace::Duty;

/// The factor from one class of rings to the next.
const STEP: u32 = 4;

const _: () = {
    let mut class = 1;
    while class < limits::RING_CLASS_BYTES.len() {
        assert!(limits::RING_CLASS_BYTES[class] == STEP * limits::RING_CLASS_BYTES[class - 1]);
        class += 1;
    }
};

impl<X: GuestRun> Run<X> {
    /// True if the ring may still grow.
    #[inline]
    pub fn may_grow(&self) -> bool {
        match &self.ring {
            Ring::Here(writer) => writer.geometry().length_max() < self.chunk_bytes_max,
            _ => false,
        }
    }

    /// True if the chunks behind `before` take half of the ring or more.
    pub fn is_filled_since(&self, before: Totals) -> bool {
        let Ring::Here(writer) = &self.ring else { return false };
        let (geometry, chunks) = (writer.geometry(), writer.head_seq() - before.chunks);
        let bytes = writer.total_bytes() - before.bytes + chunks * limits::CHUNK_HEADER_BYTES;
        2 * chunks >= u64::from(geometry.slot_count())
            || 2 * bytes >= u64::from(geometry.data_bytes())
    }

    /// Returns the writer of a ring that may grow now.
    fn growing(&self) -> Option<&RingWriter> {
        let Ring::Here(writer) = &self.ring else { return None };
        let may = self.may_grow() && !self.has_readers_elsewhere() && can_move(writer);
        may.then_some(writer)
    }
}

/// True if a subscriber needs nothing of the ring but the chunks to come.
fn is_modest(spec: &SubscribeSpec) -> bool {
    let is_simple = spec.limit_chunks.is_none() && spec.ack_window.is_none() && !spec.replays;
    let policies = [Policy::Block, Policy::Drop];
    spec.place == SubscriberPlace::Local && is_simple && policies.contains(&spec.policy)
}

/// Lets a ring grow by one step, because its producer finds no room. Returns false if the ring
/// stays as it is.
pub(super) fn grow<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
) -> bool {
    let run = shard.runs[index as usize].as_ref();
    let begun = run.filter(|run| matches!(run.producer, Producer::Steps(_) | Producer::Feed));
    let Some(writer) = begun.and_then(Run::growing) else { return false };
    let wanted_bytes = writer.geometry().window_bytes() as u32 * STEP;
    grow_to(shard, index, wanted_bytes)
}

/// Lets a ring grow by one step instead of giving up old chunks, while all rings together take
/// little memory. Otherwise its old chunks are given up from now on. Returns true if the producer
/// may look again.
pub(super) fn grow_for_history<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
) -> bool {
    let usage = shard.rings.usage();
    let is_cheap = usage.leased_bytes < shard.rings.bytes_max() / limits::RINGS_HISTORY_FRACTION;
    let Some(run) = &mut shard.runs[index as usize] else { return false };
    let has_begun = matches!(run.producer, Producer::Steps(_) | Producer::Feed);
    if !has_begun || !run.keeps_history {
        return false;
    }
    if is_cheap && run.may_grow() && grow(shard, index) {
        return true;
    }
    if let Some(run) = &mut shard.runs[index as usize] {
        run.keeps_history = false;
    }
    true
}

/// Lets a ring grow until it takes a chunk of `length` bytes, if it ever can. Returns false if it
/// stays as it is.
pub(super) fn grow_for_chunk<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    length: usize,
) -> bool {
    let is_too_long = |run: &Run<O::Run>| match &run.ring {
        Ring::Here(writer) => length > writer.geometry().length_max() as usize,
        _ => false,
    };
    let mut has_grown = false;
    loop {
        let run = shard.runs.get(index as usize).and_then(Option::as_ref);
        let grows = run.is_some_and(|run| run.may_grow() && is_too_long(run));
        if !grows || !grow(shard, index) {
            return has_grown;
        }
        has_grown = true;
    }
}

/// Lets a ring grow to its whole size, before a subscriber comes that needs it.
pub(super) fn grow_for_reader<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    spec: &SubscribeSpec,
) {
    if !is_modest(spec) {
        grow_whole(shard, id);
    }
}

/// Lets a ring grow to its whole size. From then on it stays as it is.
pub(crate) fn grow_whole<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
) {
    let index = id.slot.index;
    let run = shard.runs.get_mut(index as usize).and_then(Option::as_mut);
    let Some(run) = run.filter(|run| run.id == id) else { return };
    if let Ring::None = run.ring {
        (run.grows, run.keeps_history) = (false, false); // It will be leased whole.
        return;
    }
    if !run.may_grow() {
        return;
    }
    let wanted_bytes = run.ring_bytes;
    if run.growing().is_some() && !matches!(run.producer, Producer::Gone) {
        grow_to(shard, index, wanted_bytes);
    }
    // A subscriber is promised what the ring is now.
    let run = shard.runs[index as usize].as_mut().filter(|run| run.id == id);
    run.into_iter().for_each(Run::stay);
}

impl<X: GuestRun> Run<X> {
    /// Keeps the ring as it is from now on.
    fn stay(&mut self) {
        self.keeps_history = false;
        if let Ring::Here(writer) = &self.ring {
            self.chunk_bytes_max = writer.geometry().length_max();
        }
    }
}

/// Moves a ring to a window of this size. If there is none, the ring stays as it is for good.
#[cold]
fn grow_to<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    wanted_bytes: u32,
) -> bool {
    shard.did.note(Duty::Rings);
    let run = shard.runs[index as usize].as_mut().expect("the caller looked");
    let Ring::Here(writer) = &mut run.ring else { unreachable!("the caller looked") };
    let window_bytes = writer.geometry().window_bytes();
    let is_calm = shard.memory.pressure() == Pressure::Normal;
    let leased = is_calm.then(|| shard.rings.lease_whole(wanted_bytes, 0).ok()).flatten();
    let lease = match leased {
        Some(lease) if lease.window_bytes() > window_bytes => lease,
        smaller => {
            if let Some(lease) = smaller {
                shard.rings.give_back(lease);
            }
            run.stay();
            shard.counters.ring_growths_refused += 1;
            return false;
        }
    };
    let facts = facts_of(lease.geometry());
    let larger = continued_in(writer, lease);
    let smaller = std::mem::replace(writer, larger);
    run.blocked = false;
    let handle = run.handle;
    shard.rings.give_back(smaller.into_lease());
    shard.counters.rings_grown += 1;
    shard.tell(Event::Grown(handle, facts));
    shard.tell(Event::RingReturned);
    act::pump_if_due(shard);
    true
}
