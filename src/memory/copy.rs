//! Payload bytes into and out of a segment: the only place that copies them.
//!
//! A reader may copy while the writer already overwrites: the copy can be torn, and its caller
//! throws it away when the re-check of the tail says so (`reader.rs`). In production that copy is
//! one `memcpy` of memory that another core may be writing. The language calls this a data race;
//! the bytes are never looked at before the re-check, and no compiler can see the other side.
//! Under miri and loom the same function moves relaxed words, so that these tools see a program
//! without a race and check the fences around it.
//! Tests: `writer.rs`, `reader.rs`, the models in `loom_tests.rs`.

use super::segment::Segment;

/// True where bytes move as relaxed words: the tools that know about data races.
const BY_WORDS: bool = cfg!(any(loom, miri));

/// Copies `bytes` to `offset` (a multiple of 8); the last word is filled up with zeros by words.
///
/// # Safety
/// The caller is the only writer of this stretch.
#[inline]
pub(super) unsafe fn copy_in(segment: &Segment, offset: usize, bytes: &[u8]) {
    if BY_WORDS {
        return words_in(segment, offset, bytes);
    }
    let target = segment.byte_address(offset, bytes.len());
    // SAFETY: `byte_address` checked the bounds; `bytes` is private memory, so they are apart; the
    // caller is the only writer.
    unsafe { target.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Copies `bytes.len()` bytes out from `offset` (a multiple of 8).
///
/// # Safety
/// Somebody may be writing there. The caller must not look at `bytes` until a re-check has told
/// that nobody did.
#[inline]
pub(super) unsafe fn copy_out(segment: &Segment, offset: usize, bytes: &mut [u8]) {
    if BY_WORDS {
        return words_out(segment, offset, bytes);
    }
    let source = segment.byte_address(offset, bytes.len());
    // SAFETY: `byte_address` checked the bounds; `bytes` is private memory, so they are apart; what
    // a race does to the copy is the caller's business by contract.
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
