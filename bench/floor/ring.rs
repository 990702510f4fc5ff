//! A bare ring for one thread and for two: numbered slots, one writer, plain cursors.
//!
//! A slot is `number, length` and then the payload, so that a small chunk takes two cache lines.
//! For the usual sizes, the compiler knows the length ([`Bare`]), as it does for peers that move
//! `[u8; SIZE]`. Flat out, a copy of unknown length costs a third of the throughput.
//!
//! The writer fills a slot and stores its number. A reader polls the slot at its cursor until the
//! number is there. Only the gate protects against overwriting: every reader stores its cursor in a
//! cache line of its own. The writer looks at all cursors once it has used up the space that it
//! knew to be free, at most once a lap.
//!
//! [`Sleeping`] is the same with a thread of readers that sleeps on a [`Bell`] while no chunk is
//! ready.
//!
//! Invariants:
//! - R1: a slot is written only when every cursor has passed its old number.
//! - R2: a payload is read only after its slot's number was seen.
//!
//! Together they make payload access exclusive. Each `unsafe` here relies on that.
//! Tests: below, and every run checks what was received.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::bell::Bell;
use crate::common::drive::{
    self, Gone, Poll, Polled, Produce, Setup, Stop, Subscribe, Threads, run_threads,
};
use crate::common::params::{Fanout, Mode};
use crate::common::receive::Receive;
use crate::common::report::Outcome;
use crate::common::{BATCH_CHUNKS, Failure};

/// The floor: payloads of `SIZE` bytes, or of any length if that is [`ANY_SIZE`].
pub struct Bare<const SIZE: usize>;

/// Stands for no fixed size: lengths are read from the slots.
pub const ANY_SIZE: usize = 0;

/// Runs the floor that fits `params`.
///
/// # Errors
/// See [`drive::run`].
pub fn measure(params: &Fanout) -> Result<Outcome, Failure> {
    match params.size_bytes {
        100 => measure_as::<100>(params),
        1_024 => measure_as::<1_024>(params),
        32_768 => measure_as::<32_768>(params),
        _ => measure_as::<ANY_SIZE>(params),
    }
}

fn measure_as<const SIZE: usize>(params: &Fanout) -> Result<Outcome, Failure> {
    match params.mode {
        Mode::Inline | Mode::Threads => drive::run::<Bare<SIZE>>(params),
        Mode::Blocked => run_threads::<Sleeping<SIZE>>(params),
    }
}

impl<const SIZE: usize> Polled for Bare<SIZE> {
    type Producer = Writer<SIZE>;
    type Subscribers = Readers<SIZE>;

    fn open(setup: &Setup) -> Result<(Writer<SIZE>, Readers<SIZE>), String> {
        assert!(SIZE == ANY_SIZE || SIZE == setup.size_bytes);
        let ring = Arc::new(Ring::new(setup));
        let writer = Writer { ring: Arc::clone(&ring), next_seq: 1, free_until_seq: 0 };
        let next_seqs = vec![1; setup.subscribers as usize].into_boxed_slice();
        Ok((writer, Readers { ring, next_seqs }))
    }
}

#[repr(C, align(16))]
struct Head {
    seq: AtomicU64, // 0: never written.
    length_bytes: AtomicU64,
}

#[derive(Default)]
#[repr(align(128))] // Two lines, because the processor fetches them in pairs.
struct Line(AtomicU64);

struct Ring {
    slots: NonNull<u8>, // `layout.size()` zeroed bytes, until drop.
    layout: Layout,
    stride_bytes: usize,
    room_bytes: usize,
    capacity_chunks: u64,
    cursors: Box<[Line]>, // The last number that each reader has finished with.
    done: Line,           // Number of chunks plus one, once known; for sleeping readers.
    head: Line,
    asleep: Line,
}

// SAFETY: the bytes at `slots` are shared under R1 and R2; the rest is atomics or never changes.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

const HEAD_BYTES: usize = std::mem::size_of::<Head>();
const SLOT_ALIGN_BYTES: usize = 64;

impl Ring {
    fn new(setup: &Setup) -> Ring {
        assert!(setup.ring_chunks.is_power_of_two());
        let stride_bytes = (HEAD_BYTES + setup.size_bytes).next_multiple_of(SLOT_ALIGN_BYTES);
        let layout = Layout::from_size_align(stride_bytes * setup.ring_chunks, 4_096)
            .expect("`params` and `Setup` keep rings far below the address space");
        // SAFETY: the layout is not empty: at least one slot of at least a head.
        let slots = unsafe { alloc_zeroed(layout) };
        let Some(slots) = NonNull::new(slots) else { handle_alloc_error(layout) };
        // SAFETY: exactly the bytes of the allocation, which is not shared yet. They are written so
        // that no page is touched for the first time during the run.
        unsafe { slots.as_ptr().write_bytes(0, layout.size()) };
        let cursors = (0..setup.subscribers).map(|_| Line::default()).collect();
        Ring {
            slots,
            layout,
            stride_bytes,
            room_bytes: setup.size_bytes,
            capacity_chunks: setup.ring_chunks as u64,
            cursors,
            done: Line::default(),
            head: Line::default(),
            asleep: Line::default(),
        }
    }

    fn bell(&self) -> Bell<'_> {
        Bell { head: &self.head.0, asleep: &self.asleep.0, is_private: true }
    }

    #[inline(always)]
    fn slot(&self, seq: u64) -> NonNull<u8> {
        let index = (seq & (self.capacity_chunks - 1)) as usize;
        // SAFETY: `index` is below the capacity, so the slot lies inside of the allocation.
        unsafe { self.slots.add(index * self.stride_bytes) }
    }

    #[inline(always)]
    fn head(&self, slot: NonNull<u8>) -> &Head {
        // SAFETY: `slot` is the start of a slot, aligned to 64, zeroed, alive as long as `self`,
        // and a head consists of atomics only.
        unsafe { slot.cast::<Head>().as_ref() }
    }

    /// # Safety
    /// The caller is the only writer, and every cursor has passed `seq - capacity` (R1).
    #[inline(always)]
    unsafe fn write<const SIZE: usize>(&self, seq: u64, payload: &[u8]) {
        let length_bytes = if SIZE == ANY_SIZE { payload.len() } else { SIZE };
        assert!(length_bytes <= self.room_bytes);
        let payload = &payload[..length_bytes];
        let slot = self.slot(seq);
        // SAFETY: the head is the front of the slot, so this is still inside of it.
        let room = unsafe { slot.add(HEAD_BYTES) };
        // SAFETY: `room_bytes` are there, `payload` is not in the ring, and no reader is here (R1).
        unsafe { room.copy_from_nonoverlapping(NonNull::from(payload).cast(), length_bytes) };
        let head = self.head(slot);
        if SIZE == ANY_SIZE {
            head.length_bytes.store(length_bytes as u64, Ordering::Relaxed);
        }
        // release: pairs with acquire in `is_there`.
        head.seq.store(seq, Ordering::Release);
    }

    #[inline(always)]
    fn is_there(&self, seq: u64) -> bool {
        // acquire: pairs with release in `write`.
        self.head(self.slot(seq)).seq.load(Ordering::Acquire) == seq
    }

    /// # Safety
    /// The cursor that the caller holds has not passed `seq` while the slice is alive (R1).
    #[inline(always)]
    unsafe fn read<const SIZE: usize>(&self, seq: u64) -> Option<&[u8]> {
        if !self.is_there(seq) {
            return None;
        }
        let slot = self.slot(seq);
        let length_bytes = match SIZE {
            ANY_SIZE => self.head(slot).length_bytes.load(Ordering::Relaxed) as usize,
            _ => SIZE,
        };
        // SAFETY: the head is the front of the slot, so this is still inside of it.
        let room = unsafe { slot.add(HEAD_BYTES) };
        // SAFETY: `write` wrote that many bytes, at most `room_bytes`; it will not write here
        // before the caller's cursor moves on (R1).
        Some(unsafe { std::slice::from_raw_parts(room.as_ptr(), length_bytes) })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and not freed since.
        unsafe { dealloc(self.slots.as_ptr(), self.layout) };
    }
}

/// The only writer.
pub struct Writer<const SIZE: usize> {
    ring: Arc<Ring>,
    next_seq: u64,
    free_until_seq: u64, // The limit at the last look at the gate.
}

impl<const SIZE: usize> Writer<SIZE> {
    #[cold]
    fn look_at_gate(&mut self, last_seq: u64, stop: &Stop) -> Result<(), Gone> {
        loop {
            // acquire: pairs with release in `Readers::poll`.
            let passed = self.ring.cursors.iter().map(|cursor| cursor.0.load(Ordering::Acquire));
            let slowest_seq = passed.min().expect("there is a subscriber");
            self.free_until_seq = slowest_seq + self.ring.capacity_chunks;
            if last_seq <= self.free_until_seq {
                return Ok(());
            }
            stop.full()?;
        }
    }
}

impl<const SIZE: usize> Produce for Writer<SIZE> {
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32, stop: &Stop) -> Result<(), Gone> {
        let last_seq = self.next_seq + u64::from(count) - 1;
        if last_seq > self.free_until_seq {
            self.look_at_gate(last_seq, stop)?;
        }
        // Last to first: readers wait at the first of a batch. They thus leave the other lines
        // alone until all of them are written.
        for seq in (self.next_seq..=last_seq).rev() {
            // SAFETY: `Writer` is neither shared nor cloned; the gate was checked (R1).
            unsafe { self.ring.write::<SIZE>(seq, payload) };
        }
        self.next_seq = last_seq + 1;
        Ok(())
    }
}

/// All cursors, on one thread.
pub struct Readers<const SIZE: usize> {
    ring: Arc<Ring>,
    next_seqs: Box<[u64]>,
}

impl<const SIZE: usize> Poll for Readers<SIZE> {
    #[inline(always)]
    fn poll<R: Receive>(&mut self, receiver: &R) -> u32 {
        let mut delivered = 0;
        for (next_seq, cursor) in self.next_seqs.iter_mut().zip(&self.ring.cursors) {
            let first_seq = *next_seq;
            while *next_seq < first_seq + u64::from(BATCH_CHUNKS) {
                // SAFETY: this reader's cursor is moved below, after the slice is gone (R1).
                let Some(payload) = (unsafe { self.ring.read::<SIZE>(*next_seq) }) else { break };
                receiver.deliver(payload);
                *next_seq += 1;
            }
            if *next_seq > first_seq {
                // release: pairs with acquire in `Writer::look_at_gate`.
                cursor.0.store(*next_seq - 1, Ordering::Release);
                delivered += (*next_seq - first_seq) as u32;
            }
        }
        delivered
    }
}

/// The floor with readers that sleep.
pub struct Sleeping<const SIZE: usize>;

impl<const SIZE: usize> Threads for Sleeping<SIZE> {
    type Producer = Waking<SIZE>;
    type Subscribers = Sleepers<SIZE>;

    fn open(setup: &Setup) -> Result<(Waking<SIZE>, Sleepers<SIZE>), String> {
        let (writer, readers) = <Bare<SIZE> as Polled>::open(setup)?;
        Ok((Waking(writer), Sleepers(readers)))
    }
}

/// The only writer, for readers that sleep.
pub struct Waking<const SIZE: usize>(Writer<SIZE>);

impl<const SIZE: usize> Produce for Waking<SIZE> {
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32, stop: &Stop) -> Result<(), Gone> {
        self.0.publish(payload, count, stop)?;
        self.0.ring.bell().ring(self.0.next_seq - 1);
        Ok(())
    }
}

impl<const SIZE: usize> Drop for Waking<SIZE> {
    fn drop(&mut self) {
        let (ring, next_seq) = (&self.0.ring, self.0.next_seq);
        // release: pairs with acquire in `Sleepers::run`.
        ring.done.0.store(next_seq, Ordering::Release);
        ring.bell().ring(next_seq); // No chunk, but the head moves once more.
    }
}

/// All cursors, on a thread that sleeps.
pub struct Sleepers<const SIZE: usize>(Readers<SIZE>);

impl<const SIZE: usize> Subscribe for Sleepers<SIZE> {
    fn run<R: Receive>(mut self, _: &Setup, receiver: Rc<R>, _: &Stop) -> Result<(), String> {
        let ring = Arc::clone(&self.0.ring);
        loop {
            if self.0.poll(&*receiver) > 0 {
                continue;
            }
            let next_seq = self.0.next_seqs[0]; // All cursors are here, or one would have read.
            // acquire: pairs with release in `Waking::drop`.
            let is_done = || ring.done.0.load(Ordering::Acquire) == next_seq;
            if is_done() {
                return Ok(());
            }
            ring.bell().sleep_unless(|| is_done() || ring.is_there(next_seq));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::params::Rate;
    use crate::common::report::Measured;
    use std::time::Duration;

    #[test]
    fn everything_arrives_through_many_laps_of_a_small_ring() {
        // 64 slots each; the compiler knows the second size.
        for (mode, subscribers, size_bytes) in [
            (Mode::Inline, 3, 100_000),
            (Mode::Threads, 1, 32_768),
            (Mode::Threads, 3, 100_000),
            (Mode::Blocked, 1, 32_768),
            (Mode::Blocked, 3, 100_000),
        ] {
            let mut params = Fanout::new("floor").unwrap();
            if mode != Mode::Inline && params.producer_cpu == params.subscribers_cpu {
                continue; // With one cpu, no line has to cross.
            }
            params.size_bytes = size_bytes;
            (params.mode, params.subscribers, params.rate) = (mode, subscribers, Rate::Max);
            (params.warmup, params.duration) = (Duration::ZERO, Duration::from_millis(5));
            // A lost, duplicated or torn chunk fails the run.
            let outcome = measure(&params).unwrap();
            let Measured::Throughput { chunks, deliveries, .. } = outcome.measured else {
                panic!("{mode:?}: flat out measures throughput");
            };
            assert_eq!(deliveries, chunks * u64::from(subscribers));
        }
    }
}
