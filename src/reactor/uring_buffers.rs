//! Receive buffers that the kernel chooses from when bytes arrive. A connection that receives
//! nothing therefore holds none. One ring of them serves all connections of a reactor.
//!
//! The kernel takes the buffers in turn, so all that it has are soon written. It is given
//! [`RECEIVE_BUFFERS_STEP`] at the start, and more once it has none left. A reactor that receives
//! little takes little memory.
//!
//! Invariants: B1 a buffer is the kernel's from [`ReceiveBuffers::give_back`] until an answer names
//! it, and ours from there. Only buffers of ours are read. B2 the kernel's numbers are checked
//! first.

use std::io;

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use memmap2::MmapMut;

use crate::limits::{RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS, RECEIVE_BUFFERS_STEP};
use crate::memory::atomic::{Ordering, fence};

/// The id of the buffer group with the kernel: the only one.
pub const GROUP: u16 = 0;
const ENTRY_BYTES: usize = size_of::<BufRingEntry>();
/// Offset of the tail, in the unused end of the first entry: io_uring_register_buf_ring(3).
const TAIL_OFFSET: usize = 14;
const _: () = assert!(ENTRY_BYTES == 16);

pub struct ReceiveBuffers {
    /// Addresses, sizes and numbers, for the kernel to read.
    entries: MmapMut,
    /// The buffers themselves.
    data: MmapMut,
    tail: u16,
    is_ours: Box<[bool]>,
    /// Number of buffers that are in use. Those behind them are ours.
    used_count: u16,
    /// Number of buffers in use that are ours.
    ours_count: u16,
}

impl ReceiveBuffers {
    /// Makes the buffers and gives the first ones to the kernel.
    ///
    /// # Errors
    /// No memory, or a kernel before 5.19.
    pub fn register(ring: &IoUring) -> io::Result<ReceiveBuffers> {
        let count = usize::from(RECEIVE_BUFFERS);
        let mut buffers = ReceiveBuffers {
            entries: MmapMut::map_anon(count * ENTRY_BYTES)?, // Page-aligned, as required.
            data: MmapMut::map_anon(count * RECEIVE_BUFFER_BYTES as usize)?,
            tail: 0,
            is_ours: vec![true; count].into_boxed_slice(),
            used_count: 0,
            ours_count: 0,
        };
        let address = buffers.entries.as_mut_ptr() as u64;
        let submitter = ring.submitter();
        // SAFETY: the entries stay mapped until `unregister`, or for ever if that fails.
        unsafe { submitter.register_buf_ring_with_flags(address, RECEIVE_BUFFERS, GROUP, 0) }?;
        buffers.use_more();
        Ok(buffers)
    }

    /// Gives the kernel buffers that were not in use, if there are any.
    #[cold]
    fn use_more(&mut self) {
        let first = self.used_count;
        self.used_count = RECEIVE_BUFFERS.min(first + RECEIVE_BUFFERS_STEP);
        self.ours_count += self.used_count - first;
        for number in first..self.used_count {
            self.give_back(number);
        }
    }

    /// Takes all buffers back from the kernel; nothing may be in flight. Memory that the kernel
    /// does not give back is leaked.
    pub fn unregister(self, ring: &IoUring) {
        if ring.submitter().unregister_buf_ring(GROUP).is_err() {
            std::mem::forget(self);
        }
    }

    /// Takes a buffer that an answer named. Returns false if the kernel cannot have had it.
    pub fn take(&mut self, number: u16) -> bool {
        match self.is_ours.get_mut(usize::from(number)) {
            Some(is_ours) if !*is_ours => {
                *is_ours = true;
                self.ours_count += 1;
                if self.ours_count == self.used_count {
                    self.use_more();
                }
                true
            }
            _ => false,
        }
    }

    /// The first bytes of a buffer that is ours.
    pub fn bytes(&self, number: u16, size_bytes: u32) -> &[u8] {
        assert!(self.is_ours[usize::from(number)]); // B1
        assert!(size_bytes <= RECEIVE_BUFFER_BYTES);
        let offset = usize::from(number) * RECEIVE_BUFFER_BYTES as usize;
        // SAFETY: `number` is below the count of buffers, as the index above has shown.
        let start = unsafe { self.data.as_ptr().add(offset) };
        // SAFETY: mapped, initialized by the kernel or zero, and ours until it is given back.
        unsafe { std::slice::from_raw_parts(start, size_bytes as usize) }
    }

    /// Gives a buffer to the kernel.
    pub fn give_back(&mut self, number: u16) {
        assert!(std::mem::replace(&mut self.is_ours[usize::from(number)], false)); // B1
        self.ours_count -= 1;
        let offset = usize::from(number) * RECEIVE_BUFFER_BYTES as usize;
        let address = (self.data.as_ptr() as u64) + offset as u64;
        let place = usize::from(self.tail & (RECEIVE_BUFFERS - 1)) * ENTRY_BYTES;
        let entry = &mut self.entries[place..place + TAIL_OFFSET];
        entry[..8].copy_from_slice(&address.to_ne_bytes());
        entry[8..12].copy_from_slice(&RECEIVE_BUFFER_BYTES.to_ne_bytes());
        entry[12..14].copy_from_slice(&number.to_ne_bytes());
        self.tail = self.tail.wrapping_add(1);
        fence(Ordering::Release); // The kernel's acquire load of the tail is the other side.
        // SAFETY: inside of the first entry.
        let tail = unsafe { self.entries.as_mut_ptr().add(TAIL_OFFSET) }.cast::<u16>();
        // SAFETY: mapped, aligned to two bytes, and written by this thread alone.
        unsafe { tail.write_volatile(self.tail) };
    }

    /// True if the kernel has a buffer.
    pub fn has_free(&self) -> bool {
        self.ours_count < self.used_count
    }
}
