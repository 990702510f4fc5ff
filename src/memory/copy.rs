//! Copies of payload bytes into and out of a segment. No other module copies them.
//!
//! A reader may copy while the writer already overwrites, so the copy can be torn. Its caller
//! discards it if the re-check of the tail fails (`reader.rs`). In production the copy is one
//! `memcpy` of memory that another core may be writing, which the language calls a data race. The
//! bytes are never read before the re-check, and no compiler can see the other side.
//!
//! Under miri and loom the same function moves relaxed words. These tools then see a program
//! without a race and check the fences around it.
//! Tests: `writer.rs`, `reader.rs`, the models in `loom_tests.rs`.

use super::segment::Segment;

/// True if bytes move as relaxed words, for the tools that detect data races.
const BY_WORDS: bool = cfg!(any(loom, miri));

/// Copies `bytes` to `offset` (a multiple of 8). A copy by words fills the last word up with zeros.
///
/// # Safety
/// The caller is the only writer of this range.
#[inline]
pub(super) unsafe fn copy_in(segment: &Segment, offset: usize, bytes: &[u8]) {
    assert!(offset.is_multiple_of(8)); // Each payload starts on a word.
    if BY_WORDS {
        return words_in(segment, offset, bytes);
    }
    let target = segment.byte_address(offset, bytes.len());
    // SAFETY: `byte_address` checked the bounds. `bytes` is private memory, so the ranges do not
    // overlap. The caller is the only writer.
    unsafe { target.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Copies `bytes.len()` bytes out from `offset` (a multiple of 8).
///
/// # Safety
/// Another thread or process may be writing there. The caller must not read `bytes` before a
/// re-check has shown that none did.
#[inline]
pub(super) unsafe fn copy_out(segment: &Segment, offset: usize, bytes: &mut [u8]) {
    if BY_WORDS {
        return words_out(segment, offset, bytes);
    }
    let source = segment.byte_address(offset, bytes.len());
    // SAFETY: `byte_address` checked the bounds. `bytes` is private memory, so the ranges do not
    // overlap. The caller handles a torn copy by contract.
    unsafe { source.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
}

pub(super) fn words_in(segment: &Segment, offset: usize, bytes: &[u8]) {
    assert!(offset.is_multiple_of(8));
    for (index, piece) in bytes.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        let target = segment.word(offset / 8 + index);
        target.store(u64::from_le_bytes(word), super::atomic::Ordering::Relaxed);
    }
}

pub(super) fn words_out(segment: &Segment, offset: usize, bytes: &mut [u8]) {
    assert!(offset.is_multiple_of(8));
    for (index, piece) in bytes.chunks_mut(8).enumerate() {
        let word = segment.word(offset / 8 + index).load(super::atomic::Ordering::Relaxed);
        piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
    }
}
