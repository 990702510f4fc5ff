//! A buffer for disks: whole pages of 4 KiB, aligned to 4 KiB, as writes past the page cache need.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::limits::DISK_PAGE_BYTES;

/// Bytes on the heap that begin at a multiple of 4 KiB. Their address never changes.
///
/// No unsafe code is needed: one page more is allocated, and the bytes begin inside of it.
pub struct PageBuffer {
    /// One page more than the buffer has.
    memory: Vec<u8>,
    start: usize,
}

impl PageBuffer {
    /// Creates a buffer of `bytes` bytes, all zero.
    ///
    /// # Panics
    /// `bytes` is zero, or no multiple of 4 KiB.
    pub fn new(bytes: usize) -> PageBuffer {
        assert!(bytes > 0);
        assert!(bytes.is_multiple_of(DISK_PAGE_BYTES));
        let memory = vec![0; bytes + DISK_PAGE_BYTES];
        let start = memory.as_ptr().align_offset(DISK_PAGE_BYTES);
        assert!(start < DISK_PAGE_BYTES);
        PageBuffer { memory, start }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.memory.len() - DISK_PAGE_BYTES]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.memory.len() - DISK_PAGE_BYTES;
        &mut self.memory[self.start..][..bytes]
    }
}

impl fmt::Debug for PageBuffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PageBuffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zeroed_and_stays_where_it_is() {
        for pages in [1, 2, 17, 256] {
            let mut buffer = PageBuffer::new(pages * DISK_PAGE_BYTES);
            assert_eq!(buffer.len(), pages * DISK_PAGE_BYTES);
            assert!(buffer.iter().all(|&byte| byte == 0));
            let address = buffer.as_ptr();
            assert_eq!(address.align_offset(DISK_PAGE_BYTES), 0);
            buffer.fill(7);
            let moved = Box::new(buffer);
            assert_eq!(moved.as_ptr(), address);
            assert!(moved.iter().all(|&byte| byte == 7));
            assert_eq!(format!("{moved:?}"), format!("PageBuffer({} bytes)", pages * 4_096));
        }
    }

    #[test]
    #[should_panic]
    fn a_part_of_a_page_is_no_buffer() {
        PageBuffer::new(DISK_PAGE_BYTES + 512);
    }
}
