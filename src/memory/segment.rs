//! A range of shared memory, accessed word by word through atomics.
//!
//! The memory of a segment is a mapping, a part of one, or the heap. The heap serves tests, miri,
//! loom and pages that stay in the process. The memory stays alive as long as any clone does. The
//! level above decides which side may store what: writers own a [`crate::memory::Lease`], readers
//! never store. Bytes are copied in and out by `copy.rs` only.
//!
//! Invariants:
//! - S1: `base` is valid for `word_count` words for as long as `backing` lives.
//! - S2: `base` is aligned to 128 bytes for whole segments, to 64 for parts.

#[cfg(not(loom))]
use std::alloc::Layout;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use memmap2::{Advice, MmapRaw, UncheckedAdvice};

use super::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use super::guard::Guarded;

/// Size of a page, in bytes: the unit of mappings.
pub(super) const PAGE_BYTES: usize = 4096;

/// A range of memory. It is cheap to clone, and clones refer to the same memory.
#[derive(Clone)]
pub struct Segment {
    base: NonNull<AtomicU64>,
    word_count: usize,
    backing: Arc<Backing>,
}

// SAFETY: `base` points into `backing`, which is Send and Sync. The memory is only accessed as
// atomics, or through the functions of `copy.rs`, whose callers say why nothing tears.
unsafe impl Send for Segment {}
// SAFETY: as for Send: a shared segment gives out nothing but `&AtomicU64`.
unsafe impl Sync for Segment {}

enum Backing {
    Heap(#[expect(dead_code, reason = "held for its Drop; reached through `base`")] HeapBlocks),
    Mapped(MmapRaw),
    /// The mapping of a file that others can truncate.
    #[cfg(not(loom))]
    Guarded(Guarded),
}

/// A weak reference to a segment.
pub(super) struct WeakSegment {
    base: NonNull<AtomicU64>,
    word_count: usize,
    backing: Weak<Backing>,
}

// SAFETY: as for `Segment`. The memory is only accessible through one.
unsafe impl Send for WeakSegment {}

impl WeakSegment {
    /// Returns the segment, if it still exists.
    pub fn upgrade(&self) -> Option<Segment> {
        let WeakSegment { base, word_count, ref backing } = *self;
        backing.upgrade().map(|backing| Segment { base, word_count, backing })
    }

    /// True if the segment still exists.
    pub fn is_alive(&self) -> bool {
        self.backing.strong_count() > 0
    }
}

/// Two cache lines, which keep words of different writers apart on the heap too.
#[repr(align(128))]
struct Block(
    #[expect(dead_code, reason = "reached through the base of a segment")] [AtomicU64; BLOCK_WORDS],
);
const BLOCK_WORDS: usize = 16;
const _: () = {
    assert!(size_of::<Block>() == BLOCK_WORDS * size_of::<AtomicU64>());
    assert!(align_of::<Block>() == 128); // S2
    assert!(PAGE_BYTES.is_multiple_of(align_of::<Block>())); // S2 holds for mappings, too.
};

/// A boxed slice, held by its raw pointer. A `Box` that moves would claim to be the only access.
struct HeapBlocks(NonNull<[Block]>);

// SAFETY: a pointer to atomics, which only its own Drop dereferences.
unsafe impl Send for HeapBlocks {}
// SAFETY: as for Send.
unsafe impl Sync for HeapBlocks {}

impl Drop for HeapBlocks {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `zeroed_blocks`, which allocates as a box does. Only this
        // code turns it into a box. No segment is left, or `backing` would not be dropped.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Segment {
    /// Allocates zeroed words on the heap.
    pub fn heap(word_count: usize) -> Segment {
        let blocks = zeroed_blocks(word_count.div_ceil(BLOCK_WORDS).max(1));
        assert!(blocks.len() * BLOCK_WORDS >= word_count); // S1
        let backing = Arc::new(Backing::Heap(HeapBlocks(blocks)));
        Segment { base: blocks.cast(), word_count, backing }
    }

    /// Makes a segment of all of `mapping`.
    pub(super) fn mapped(mapping: MmapRaw) -> Segment {
        if cfg!(loom) {
            panic!("loom's atomics do not lie in memory as such");
        }
        let (base, word_count) = base_of(&mapping);
        Segment { base, word_count, backing: Arc::new(Backing::Mapped(mapping)) }
    }

    /// Makes a segment of all of `mapping`, whose file others can truncate (see `guard.rs`).
    ///
    /// # Errors
    /// If too many guarded mappings exist, or the handler cannot be installed.
    #[cfg(not(loom))]
    pub(super) fn guarded(mapping: MmapRaw) -> io::Result<Segment> {
        let (base, word_count) = base_of(&mapping);
        let backing = Arc::new(Backing::Guarded(Guarded::new(mapping)?));
        Ok(Segment { base, word_count, backing })
    }

    /// True if an access to the mapping faulted. It has read as zeros since, and nobody else sees
    /// what is written to it.
    #[cfg(not(loom))]
    pub(super) fn is_lost(&self) -> bool {
        matches!(&*self.backing, Backing::Guarded(guarded) if guarded.is_lost())
    }

    /// True if processes that are not trusted can write to the memory, or cut its file off.
    pub(super) fn is_open_to_others(&self) -> bool {
        match &*self.backing {
            Backing::Heap(_) | Backing::Mapped(_) => false,
            #[cfg(not(loom))]
            Backing::Guarded(_) => true,
        }
    }

    /// Returns `bytes` bytes from `offset_bytes` on, as a segment of its own.
    pub(super) fn part(&self, offset_bytes: usize, bytes: usize) -> Segment {
        assert!(offset_bytes.is_multiple_of(64));
        assert!(bytes.is_multiple_of(8));
        assert!(bytes / 8 <= self.word_count);
        assert!(offset_bytes / 8 <= self.word_count - bytes / 8);
        // SAFETY: in bounds of the segment by the assertions above (S1).
        let base = unsafe { self.base.add(offset_bytes / 8) };
        Segment { base, word_count: bytes / 8, backing: Arc::clone(&self.backing) }
    }

    /// Returns a weak reference, which does not keep the memory alive.
    pub(super) fn downgrade(&self) -> WeakSegment {
        let backing = Arc::downgrade(&self.backing);
        WeakSegment { base: self.base, word_count: self.word_count, backing }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.word_count * 8
    }

    /// Returns the mapping under this segment, and the offset of the range in it. `None` on the
    /// heap.
    fn place_in_mapping(&self, offset_bytes: usize, bytes: usize) -> Option<(&MmapRaw, usize)> {
        assert!(bytes <= self.bytes());
        assert!(offset_bytes <= self.bytes() - bytes);
        let mapping = match &*self.backing {
            Backing::Heap(_) => return None,
            Backing::Mapped(mapping) => mapping,
            #[cfg(not(loom))]
            Backing::Guarded(guarded) => &guarded.mapping,
        };
        let base_offset = self.base.as_ptr().addr() - mapping.as_ptr().addr();
        assert!(base_offset + self.bytes() <= mapping.len()); // S1
        Some((mapping, base_offset + offset_bytes))
    }

    /// True if both refer to the same memory.
    pub(super) fn shares_backing(&self, other: &Segment) -> bool {
        Arc::ptr_eq(&self.backing, &other.backing)
    }

    /// True if both are the same range of memory.
    pub(super) fn is(&self, other: &Segment) -> bool {
        self.base == other.base && self.word_count == other.word_count
    }

    /// Returns one word.
    #[inline]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.word_count);
        // SAFETY: in bounds by the line above (S1).
        let word = unsafe { self.base.add(index) };
        // SAFETY: valid and aligned by S1, initialized (zeroed when allocated), and only accessed
        // as an atomic.
        unsafe { word.as_ref() }
    }

    /// A copy of the first `count` words.
    pub(super) fn words(&self, count: usize) -> Vec<u64> {
        (0..count).map(|index| self.word(index).load(Ordering::Relaxed)).collect()
    }

    /// Writes words as their owner or a hostile process would, for fuzzers.
    #[cfg(any(test, fuzzing))]
    #[doc(hidden)]
    pub fn overwrite(&self, first: usize, words: &[u64]) {
        for (at, word) in words.iter().enumerate() {
            self.word(first + at).store(*word, Ordering::Release);
        }
    }

    /// Returns `N` words from word `first` on.
    #[inline]
    pub(super) fn words_at<const N: usize>(&self, first: usize) -> &[AtomicU64; N] {
        assert!(N <= self.word_count);
        assert!(first <= self.word_count - N);
        // SAFETY: in bounds by the lines above (S1).
        let words = unsafe { self.base.add(first) };
        // SAFETY: as in `word`, for all of them.
        unsafe { words.cast::<[AtomicU64; N]>().as_ref() }
    }

    /// Returns the address of `length` bytes from `offset` on, for `copy.rs` and for the borrows of
    /// the ring.
    #[inline]
    pub(super) fn byte_address(&self, offset: usize, length: usize) -> NonNull<u8> {
        if cfg!(loom) {
            panic!("loom's atomics have no bytes");
        }
        let bytes = self.bytes();
        assert!(length <= bytes);
        assert!(offset <= bytes - length);
        // SAFETY: in bounds by the lines above (S1).
        unsafe { self.base.cast::<u8>().add(offset) }
    }
}

/// Allocates zeroed blocks, one at least, as the contents of a box.
#[cfg(not(loom))]
fn zeroed_blocks(count: usize) -> NonNull<[Block]> {
    assert!(count > 0);
    let layout = Layout::array::<Block>(count).expect("a segment fits into memory");
    // SAFETY: the layout has a size above 0, by the line above.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    let Some(first) = NonNull::new(memory.cast::<Block>()) else {
        std::alloc::handle_alloc_error(layout)
    };
    // Zeroed memory is a valid block: it has atomic integers only.
    NonNull::slice_from_raw_parts(first, count)
}

/// The same for loom, whose atomics are objects.
#[cfg(loom)]
fn zeroed_blocks(count: usize) -> NonNull<[Block]> {
    let blocks: Box<[Block]> =
        (0..count).map(|_| Block(std::array::from_fn(|_| AtomicU64::new(0)))).collect();
    NonNull::from(Box::leak(blocks))
}

/// Returns the start of a mapping and its number of words.
fn base_of(mapping: &MmapRaw) -> (NonNull<AtomicU64>, usize) {
    let base = NonNull::new(mapping.as_mut_ptr()).expect("mmap never gives address 0");
    assert!(base.as_ptr().addr().is_multiple_of(PAGE_BYTES));
    assert!(mapping.len().is_multiple_of(8)); // No byte lies behind the last word.
    (base.cast(), mapping.len() / 8)
}

/// Faults in all pages of an unused range, so that no chunk pays for it later.
pub(super) fn populate(segment: &Segment, offset_bytes: usize, bytes: usize) {
    assert!(offset_bytes.is_multiple_of(PAGE_BYTES));
    assert!(bytes > 0);
    let Some((mapping, start)) = segment.place_in_mapping(offset_bytes, bytes) else { return };
    if mapping.advise_range(Advice::PopulateWrite, start, bytes).is_ok() {
        return;
    }
    // Before Linux 5.14: page by page.
    for offset in (offset_bytes..offset_bytes + bytes).step_by(PAGE_BYTES) {
        segment.word(offset / 8).fetch_add(0, Ordering::Relaxed);
    }
}

/// Gives the pages of a range back to the kernel. The range then reads as zeros, and has to be
/// allocated again before it is touched.
pub(super) fn release(segment: &Segment, offset_bytes: usize, bytes: usize) -> io::Result<()> {
    // The pages of a neighbour stay.
    assert!(offset_bytes.is_multiple_of(PAGE_BYTES));
    assert!(bytes.is_multiple_of(PAGE_BYTES));
    assert!(bytes > 0);
    let Some((mapping, start)) = segment.place_in_mapping(offset_bytes, bytes) else {
        return Ok(());
    };
    // SAFETY: all access to this memory is atomic or re-checked, so it may become zero at any
    // moment. The range is not leased, so nobody holds a borrow.
    unsafe { mapping.unchecked_advise_range(UncheckedAdvice::Remove, start, bytes) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_part_outlives_the_whole_and_is_the_same_memory() {
        let whole = Segment::heap(64);
        let part = whole.part(64, 128);
        whole.word(9).store(7, Ordering::Relaxed);
        assert!(part.shares_backing(&whole));
        assert_eq!(part.bytes(), 128);
        drop(whole);
        assert_eq!(part.word(1).load(Ordering::Relaxed), 7);
        assert_eq!(part.words_at::<8>(0)[1].load(Ordering::Relaxed), 7);
    }

    #[test]
    #[should_panic(expected = "index < self.word_count")]
    fn no_word_beyond_the_end_can_be_named() {
        let part = Segment::heap(64).part(0, 64);
        part.word(8);
    }
}
