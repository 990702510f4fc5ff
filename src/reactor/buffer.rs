//! Bytes that are lent to the kernel and come back.
//!
//! A `Buffer` is a `Box<[u8]>` behind a plain pointer: while the kernel writes through its address,
//! moving the value around claims nothing about the bytes, which a `Box` would. A slice of them
//! exists only between [`Deref`] and its end, and nobody derefs a buffer that is in flight.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// An owned run of bytes whose address never changes.
pub struct Buffer {
    start: NonNull<u8>,
    size_bytes: u32,
}

// SAFETY: the bytes are owned as those of a `Box<[u8]>` are; the pointer is the only way to them.
unsafe impl Send for Buffer {}

impl Buffer {
    /// `size_bytes` bytes, all zero.
    pub fn zeroed(size_bytes: u32) -> Buffer {
        Buffer::from(vec![0; size_bytes as usize].into_boxed_slice())
    }

    /// How many bytes there are.
    pub fn size(&self) -> u32 {
        self.size_bytes
    }

    /// Where they start. Valid until the buffer is dropped, wherever it is moved.
    pub(crate) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The same bytes as a box.
    pub fn into_box(self) -> Box<[u8]> {
        let buffer = std::mem::ManuallyDrop::new(self);
        let slice = NonNull::slice_from_raw_parts(buffer.start, buffer.size_bytes as usize);
        // SAFETY: came from `Box::into_raw` of this length; `ManuallyDrop` gives up our claim.
        unsafe { Box::from_raw(slice.as_ptr()) }
    }
}

impl From<Box<[u8]>> for Buffer {
    /// # Panics
    /// If there are 4 GiB or more.
    fn from(bytes: Box<[u8]>) -> Buffer {
        let size_bytes = u32::try_from(bytes.len()).expect("a buffer of 4 GiB or more");
        let start = NonNull::from(Box::leak(bytes)).cast();
        Buffer { start, size_bytes }
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Buffer {
        Buffer::from(Box::<[u8]>::from(bytes))
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: owned, initialized and of this size since `From<Box<[u8]>>`; not in flight,
        // because the backends keep what is in flight and never deref it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.size_bytes as usize) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only way to the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.size_bytes as usize) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let slice = NonNull::slice_from_raw_parts(self.start, self.size_bytes as usize);
        // SAFETY: came from a box of this length, is dropped once, and is not in flight: a
        // reactor forgets what the kernel does not give back.
        drop(unsafe { Box::from_raw(slice.as_ptr()) });
    }
}

impl std::fmt::Debug for Buffer {
    /// The size only: the bytes may be in flight, and they are other people's data.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_keeps_its_bytes_and_its_address_when_moved() {
        let mut buffer = Buffer::from(&b"seven b"[..]);
        buffer[0] = b'S';
        let address = buffer.address();
        let moved = Box::new(buffer);
        assert_eq!(moved.address(), address);
        assert_eq!(&moved.into_box()[..], b"Seven b");
        assert_eq!(Buffer::zeroed(0).size(), 0);
        assert!(Buffer::zeroed(3).iter().all(|byte| *byte == 0));
    }
}
