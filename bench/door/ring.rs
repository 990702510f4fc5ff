//! The floor of `bench door`: a bare ring in memory that two processes share. It has one writer,
//! plain cursors, and a futex for readers that block.
//!
//! The ring works as that of `bench/floor/ring.rs`. A slot is `number, length` and then the
//! payload. The writer fills a slot and stores its number. A reader polls the slot at its cursor
//! until the number is there. Readers store their cursors in cache lines of their own. The writer
//! looks at all of them once it has used up the space that it knew to be free. The memory is a
//! memfd, which the producer's process inherits across fork and exec. Both sides touch all of it
//! before the run.
//!
//! A blocking reader sleeps on a [`Bell`] in the same memory. In a polled run, the bell is not
//! used. Nothing is checked: both sides trust each other, which a usable implementation must not
//! do.
//!
//! Invariants:
//! - R1: a slot is written only when every cursor has passed its old number.
//! - R2: a payload is read only after its slot's number was seen.
//!
//! Together they make payload access exclusive. Each `unsafe` here relies on that.
//! Tests: every run checks what was received.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::door::carrier::{Carrier, Produce, Read, Run};
use crate::common::door::load::{Load, READERS_MAX, Wait};
use crate::common::drive::Setup;
use crate::common::receive::Receive;
use crate::common::{BATCH_CHUNKS, Failure};
use crate::floor::bell::Bell;

/// The floor: payloads of `SIZE` bytes, or of any length if that is [`ANY_SIZE`].
pub struct Bare<const SIZE: usize>;

/// Stands for no fixed size: lengths are read from the slots.
pub const ANY_SIZE: usize = 0;

impl<const SIZE: usize> Carrier for Bare<SIZE> {
    type Host = Arc<Ring>;
    type Producer = Writer<SIZE>;
    type Reader = Reader<SIZE>;

    fn host(load: &Load) -> Result<Arc<Ring>, Failure> {
        // SAFETY: the name is a string that ends with a zero, and the other argument is a number.
        let descriptor = unsafe { libc::memfd_create(c"bench-door".as_ptr(), 0) };
        if descriptor < 0 {
            return Err(lacking("memfd_create"));
        }
        // SAFETY: it was just opened, and nothing else owns it. It has to survive exec.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let size_bytes = Shape::of(load).bytes as libc::off_t;
        // SAFETY: takes numbers only; the descriptor is open.
        let result = unsafe { libc::posix_fallocate(descriptor.as_raw_fd(), 0, size_bytes) };
        if result != 0 {
            return Err(lacking("posix_fallocate"));
        }
        Ok(Arc::new(Ring::map(load, descriptor)?))
    }

    fn words(host: &Arc<Ring>) -> Vec<String> {
        vec![host.descriptor.as_raw_fd().to_string()]
    }

    fn producer(load: &Load, words: &[String]) -> Result<(Writer<SIZE>, String), Failure> {
        let number = words.first().and_then(|word| word.parse().ok());
        let number = number.ok_or_else(|| Failure::Usage("--word: a descriptor".into()))?;
        // SAFETY: the parent process left it open for exactly this use.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        let ring = Ring::map(load, descriptor)?;
        let wakes = load.wait == Wait::Blocked;
        Ok((Writer { ring, next_seq: 1, free_until_seq: 0, wakes }, "mapped".into()))
    }

    fn reader(host: &Arc<Ring>, _: &Load, run: &Run<'_>) -> Result<Reader<SIZE>, String> {
        Ok(Reader { ring: Arc::clone(host), next_seq: 1, index: run.index as usize })
    }
}

fn lacking(call: &str) -> Failure {
    Failure::Environment(format!("{call}: {}", std::io::Error::last_os_error()))
}

/// The layout of the memory.
#[derive(Clone, Copy)]
struct Shape {
    stride_bytes: usize,
    room_bytes: usize,
    capacity_chunks: u64,
    readers: usize,
    bytes: usize,
}

#[repr(C, align(16))]
struct Head {
    seq: AtomicU64, // 0: never written.
    length_bytes: AtomicU64,
}

#[repr(align(128))] // Two lines, because the processor fetches them in pairs.
struct Line(AtomicU64);

/// The lines in front of the cursors. `DONE_LINE` is the number of chunks plus one, once known.
/// `ASLEEP_LINE` is the number of sleeping readers, and `HEAD_LINE` is the head on which they
/// sleep.
const DONE_LINE: usize = 0;
const ASLEEP_LINE: usize = 1;
const HEAD_LINE: usize = 2;
const CURSOR_LINES: usize = 3;
const LINE_BYTES: usize = std::mem::size_of::<Line>();
const HEAD_BYTES: usize = std::mem::size_of::<Head>();
const SLOT_ALIGN_BYTES: usize = 64;
/// Bytes in front of the slots; whole pages.
const FRONT_BYTES: usize =
    ((CURSOR_LINES + READERS_MAX as usize) * LINE_BYTES).next_multiple_of(4_096);

impl Shape {
    fn of(load: &Load) -> Shape {
        let setup = Setup::new(load.plan.subscribers, load.plan.size_bytes);
        assert!(setup.ring_chunks.is_power_of_two());
        let stride_bytes = (HEAD_BYTES + setup.size_bytes).next_multiple_of(SLOT_ALIGN_BYTES);
        Shape {
            stride_bytes,
            room_bytes: setup.size_bytes,
            capacity_chunks: setup.ring_chunks as u64,
            readers: setup.subscribers as usize,
            bytes: FRONT_BYTES + stride_bytes * setup.ring_chunks,
        }
    }
}

/// The memory, as one process maps it.
pub struct Ring {
    start: NonNull<u8>, // `shape.bytes` mapped bytes, until drop.
    shape: Shape,
    descriptor: OwnedFd,
}

// SAFETY: the bytes at `start` are shared under R1 and R2; the rest is atomics or never changes.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn map(load: &Load, descriptor: OwnedFd) -> Result<Ring, Failure> {
        let shape = Shape::of(load);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let (none, fd) = (std::ptr::null_mut(), descriptor.as_raw_fd());
        // SAFETY: a new mapping of a file that has these bytes, at an address of the kernel's
        // choice.
        let start = unsafe { libc::mmap(none, shape.bytes, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(lacking("mmap"));
        }
        let start = NonNull::new(start.cast()).expect("a mapping is not at 0");
        Ok(Ring { start, shape, descriptor })
    }

    #[inline(always)]
    fn line(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < CURSOR_LINES + READERS_MAX as usize);
        // SAFETY: a line in front of the slots, so inside of the mapping.
        let line = unsafe { self.start.add(index * LINE_BYTES) };
        // SAFETY: aligned as the mapping is, initially zero, and used only as an atomic.
        unsafe { &line.cast::<Line>().as_ref().0 }
    }

    #[inline(always)]
    fn slot(&self, seq: u64) -> NonNull<u8> {
        let index = (seq & (self.shape.capacity_chunks - 1)) as usize;
        // SAFETY: `index` is below the capacity, so the slot lies inside of the mapping.
        unsafe { self.start.add(FRONT_BYTES + index * self.shape.stride_bytes) }
    }

    #[inline(always)]
    fn head(&self, slot: NonNull<u8>) -> &Head {
        // SAFETY: `slot` is the start of a slot, aligned to 64, initially zero, alive as long as
        // `self`, and a head consists of atomics only.
        unsafe { slot.cast::<Head>().as_ref() }
    }

    /// # Safety
    /// The caller is the only writer, and every cursor has passed `seq - capacity` (R1).
    #[inline(always)]
    unsafe fn write<const SIZE: usize>(&self, seq: u64, payload: &[u8]) {
        let length_bytes = if SIZE == ANY_SIZE { payload.len() } else { SIZE };
        assert!(length_bytes <= self.shape.room_bytes);
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

    fn bell(&self) -> Bell<'_> {
        let (head, asleep) = (self.line(HEAD_LINE), self.line(ASLEEP_LINE));
        Bell { head, asleep, is_private: false }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and not unmapped since.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.shape.bytes) };
    }
}

/// The only writer.
pub struct Writer<const SIZE: usize> {
    ring: Ring,
    next_seq: u64,
    free_until_seq: u64, // The limit at the last look at the cursors.
    wakes: bool,
}

impl<const SIZE: usize> Writer<SIZE> {
    #[cold]
    fn look_at_cursors(&mut self, last_seq: u64) {
        while last_seq > self.free_until_seq {
            let cursors = CURSOR_LINES..CURSOR_LINES + self.ring.shape.readers;
            // acquire: pairs with release in `Reader::poll`.
            let passed = cursors.map(|line| self.ring.line(line).load(Ordering::Acquire));
            let slowest_seq = passed.min().expect("there is a reader");
            self.free_until_seq = slowest_seq + self.ring.shape.capacity_chunks;
        }
    }
}

impl<const SIZE: usize> Produce for Writer<SIZE> {
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32) -> Result<(), String> {
        let last_seq = self.next_seq + u64::from(count) - 1;
        if last_seq > self.free_until_seq {
            self.look_at_cursors(last_seq);
        }
        // Last to first: readers wait at the first of a batch. They thus leave the other lines
        // alone until all of them are written.
        for seq in (self.next_seq..=last_seq).rev() {
            // SAFETY: `Writer` is neither shared nor cloned; the cursors were checked (R1).
            unsafe { self.ring.write::<SIZE>(seq, payload) };
        }
        self.next_seq = last_seq + 1;
        if self.wakes {
            self.ring.bell().ring(last_seq);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        // release: pairs with acquire in `Reader::poll`.
        self.ring.line(DONE_LINE).store(self.next_seq, Ordering::Release);
        self.ring.bell().ring(self.next_seq); // No chunk, but the head moves once more.
        Ok(())
    }
}

/// One cursor.
pub struct Reader<const SIZE: usize> {
    ring: Arc<Ring>,
    next_seq: u64,
    index: usize,
}

impl<const SIZE: usize> Read for Reader<SIZE> {
    #[inline(always)]
    fn poll<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        let first_seq = self.next_seq;
        while self.next_seq < first_seq + u64::from(BATCH_CHUNKS) {
            // SAFETY: this reader's cursor is moved below, after the slice is gone (R1).
            let Some(payload) = (unsafe { self.ring.read::<SIZE>(self.next_seq) }) else { break };
            receiver.deliver(payload);
            self.next_seq += 1;
        }
        if self.next_seq > first_seq {
            // release: pairs with acquire in `Writer::look_at_cursors`.
            self.ring.line(CURSOR_LINES + self.index).store(self.next_seq - 1, Ordering::Release);
            return Ok(Some((self.next_seq - first_seq) as u32));
        }
        // acquire: pairs with release in `Writer::finish`.
        let done = self.ring.line(DONE_LINE).load(Ordering::Acquire);
        Ok((done != self.next_seq).then_some(0))
    }

    fn wait<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        loop {
            match self.poll(receiver)? {
                Some(0) => {}
                other => return Ok(other),
            }
            let (ring, next_seq) = (&self.ring, self.next_seq);
            let is_done = || ring.line(DONE_LINE).load(Ordering::Acquire) == next_seq;
            ring.bell().sleep_unless(|| is_done() || ring.is_there(next_seq));
        }
    }
}
