//! Memory for whole pages of a file.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Size and alignment of a page, in bytes.
pub const PAGE_BYTES: usize = 4 << 10;

/// A buffer of whole pages, aligned to a page. It begins with zeros.
pub struct PageBuffer {
    bytes: Box<[u8]>,
    start: usize,
    length: usize,
}

impl PageBuffer {
    /// Allocates a buffer of `length` bytes.
    ///
    /// # Panics
    /// If `length` is not a multiple of a page, or zero.
    pub fn new(length: usize) -> PageBuffer {
        assert!(length > 0);
        assert!(length.is_multiple_of(PAGE_BYTES));
        let bytes = vec![0; length + PAGE_BYTES].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        assert!(start < PAGE_BYTES); // The offset is found for every address of a byte.
        PageBuffer { bytes, start, length }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

impl fmt::Debug for PageBuffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PageBuffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_zero() {
        for pages in [1, 3, 128] {
            let mut buffer = PageBuffer::new(pages * PAGE_BYTES);
            assert_eq!(buffer.as_ptr().addr() % PAGE_BYTES, 0);
            assert_eq!(buffer.len(), pages * PAGE_BYTES);
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(7);
            assert_eq!(buffer[pages * PAGE_BYTES - 1], 7);
        }
    }
}
