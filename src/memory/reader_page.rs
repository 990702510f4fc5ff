//! The page of a reader in another thread or process: its cursor, its missed chunks, its sleep
//! state.
//!
//! Only the reader writes it ([`ReaderPage`]); to the shard it is a hint ([`ReaderPageView`]). An
//! honest cursor only grows and is at most one beyond the head. A reader with any other is evicted.
//!
//! - `page:cursor`: the shard may overwrite all chunks before a cursor that it sees, as the reader
//!   has finished them;
//! - `page:asleep`: both sides store, pass a full fence, then look at the other's word.
//!
//! Tests: below; the handshake in `loom_tests.rs`.

use std::fmt;

use super::atomic::{Ordering, full_fence, load_acquire};
use super::control::{CONTROL_MAGIC, PAGE_VERSION, PRODUCER_MAGIC};
use super::layout::assert_ascending;
use super::segment::Segment;

const CURSOR: usize = 0;
const ASLEEP: usize = 1;
const MISSED_CHUNKS: usize = 2;
const MISSED_BYTES: usize = 3;
const LEFT: usize = 4;
const MAGIC: usize = 8;
const VERSION: usize = 9;
/// The text "sdread".
const READER_MAGIC: u64 = 0x0102_6461_6572_6473;
/// The value for a sleep on the head of the ring. For a sleep on a descriptor the value is odd, and
/// differs each time.
const ON_FUTEX: u64 = 2;
const PAGE_WORDS: usize = 16; // A pair of cache lines, so that no other word is near.

const _: () = {
    assert_ascending(&[CURSOR, ASLEEP, MISSED_CHUNKS, MISSED_BYTES, LEFT, MAGIC]);
    assert_ascending(&[MAGIC, VERSION, PAGE_WORDS]);
    assert!((PAGE_WORDS * 8).is_multiple_of(128));
    assert!(ON_FUTEX != 0); // 0 means awake.
    assert!(ON_FUTEX.is_multiple_of(2)); // An odd value is a sleep on a descriptor.
    assert!(READER_MAGIC != CONTROL_MAGIC); // A page of one kind is not taken for another.
    assert!(READER_MAGIC != PRODUCER_MAGIC);
};

/// The reader's side: the one writer of the page.
pub struct ReaderPage {
    segment: Segment,
}

/// The shard's side.
pub struct ReaderPageView {
    segment: Segment,
    cursor_seen: u64,
    /// The last sleep on a descriptor that was ended.
    ended_watch: u64,
}

/// The error of a cursor that no honest reader stores. The reader has to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WildCursor {
    /// The stored cursor.
    pub cursor: u64,
    /// The cursor before it.
    pub cursor_before: u64,
}

impl ReaderPage {
    /// Creates a page within this process, and the shard's view of it. `cursor` is the first chunk
    /// that the reader wants.
    pub fn new(cursor: u64) -> (ReaderPage, ReaderPageView) {
        assert!(cursor > 0); // Chunks begin at 1.
        let segment = Segment::heap(PAGE_WORDS);
        segment.word(CURSOR).store(cursor, Ordering::Relaxed);
        let view = ReaderPageView::at(segment.clone(), cursor);
        (ReaderPage { segment }, view)
    }

    /// Returns the content of a fresh page for a reader in another process.
    pub(super) fn fresh(cursor: u64) -> [u64; PAGE_WORDS] {
        assert!(cursor > 0);
        let mut words = [0; PAGE_WORDS];
        (words[CURSOR], words[MAGIC], words[VERSION]) = (cursor, READER_MAGIC, PAGE_VERSION);
        words
    }

    /// Takes the page at the start of `segment`, which another process made. Returns `None` if none
    /// is there.
    pub(super) fn at(segment: &Segment) -> Option<ReaderPage> {
        let is_ours = segment.bytes() >= PAGE_WORDS * 8
            && load_acquire(segment.word(MAGIC)) == READER_MAGIC
            && segment.word(VERSION).load(Ordering::Relaxed) == PAGE_VERSION;
        is_ours.then(|| ReaderPage { segment: segment.part(0, PAGE_WORDS * 8) })
    }

    /// Stores that all chunks before `cursor` have been read and may be overwritten.
    #[inline]
    pub fn set_cursor(&self, cursor: u64) {
        self.segment.word(CURSOR).store(cursor, Ordering::Release); // page:cursor
    }

    /// Stores the number of chunks and bytes that were reported to the reader as missed.
    pub fn set_missed(&self, chunks: u64, bytes: u64) {
        self.segment.word(MISSED_CHUNKS).store(chunks, Ordering::Relaxed);
        self.segment.word(MISSED_BYTES).store(bytes, Ordering::Relaxed);
    }

    /// Announces that this reader is about to sleep. It then has to look at the head once more. The
    /// fence in here pairs with the one that [`ReaderPageView::is_asleep`] requires. It cannot
    /// happen that this look misses the chunk and the writer misses the flag.
    #[inline]
    pub fn set_asleep(&self) {
        self.segment.word(ASLEEP).store(ON_FUTEX, Ordering::Relaxed);
        full_fence(); // page:asleep
    }

    /// Announces a sleep on a descriptor that the server makes readable, like
    /// [`ReaderPage::set_asleep`]. `watch_count` is the number of this sleep of that kind, from 1.
    pub fn set_watching(&self, watch_count: u64) {
        assert!(watch_count > 0);
        assert!(watch_count < 1 << 63); // The lowest bit marks the kind of sleep.
        self.segment.word(ASLEEP).store(watch_count << 1 | 1, Ordering::Relaxed);
        full_fence(); // page:asleep
    }

    /// Announces that this reader wants no more, so the end of its connection is not a failure.
    pub fn set_left(&self) {
        self.segment.word(LEFT).store(1, Ordering::Release);
    }

    /// Announces that this reader is awake again.
    #[inline]
    pub fn set_awake(&self) {
        self.segment.word(ASLEEP).store(0, Ordering::Relaxed);
    }
}

impl ReaderPageView {
    /// Makes the view of a reader that begins with chunk `cursor`.
    pub(super) fn at(segment: Segment, cursor: u64) -> ReaderPageView {
        assert!(segment.bytes() >= PAGE_WORDS * 8);
        assert!(cursor > 0);
        ReaderPageView { segment, cursor_seen: cursor, ended_watch: 0 }
    }

    /// True if the reader sleeps on its descriptor and was not woken from this sleep yet. The
    /// caller then has to wake it: the result is true once for each sleep. Call it like
    /// [`ReaderPageView::is_asleep`].
    pub fn take_watch(&mut self) -> bool {
        let asleep = self.segment.word(ASLEEP).load(Ordering::Relaxed); // page:asleep
        if asleep & 1 == 0 || asleep == self.ended_watch {
            return false;
        }
        self.ended_watch = asleep;
        true
    }

    /// True if [`ReaderPageView::take_watch`] would return true. It may be called repeatedly.
    pub fn has_watch(&self) -> bool {
        let asleep = self.segment.word(ASLEEP).load(Ordering::Relaxed); // page:asleep
        asleep & 1 == 1 && asleep != self.ended_watch
    }

    /// True if the reader announced that it wants no more.
    pub fn has_left(&self) -> bool {
        load_acquire(self.segment.word(LEFT)) != 0
    }

    /// The reader's cursor, clamped to `[tail_seq, head_seq + 1]`. A reader that was overtaken is
    /// behind the tail, which is not an error.
    ///
    /// # Errors
    /// [`WildCursor`] if it went backwards or beyond the existing chunks.
    #[inline]
    pub fn sample(&mut self, tail_seq: u64, head_seq: u64) -> Result<u64, WildCursor> {
        self.sample_if(|read_seq| read_seq <= head_seq).map(|cursor| cursor.max(tail_seq))
    }

    /// The reader's cursor. `has_been` tells whether a chunk of this number ever existed.
    ///
    /// # Errors
    /// [`WildCursor`], as in [`ReaderPageView::sample`].
    pub fn sample_if(&mut self, has_been: impl Fn(u64) -> bool) -> Result<u64, WildCursor> {
        let cursor = load_acquire(self.segment.word(CURSOR)); // page:cursor
        let cursor_before = self.cursor_seen;
        if cursor < cursor_before || cursor > cursor_before && !has_been(cursor - 1) {
            return Err(WildCursor { cursor, cursor_before });
        }
        assert!(cursor >= self.cursor_seen); // Others were refused above.
        self.cursor_seen = cursor;
        Ok(cursor)
    }

    /// The last valid cursor that was sampled.
    pub fn cursor_seen(&self) -> u64 {
        self.cursor_seen
    }

    /// Number of missed chunks and bytes that the reader reports. They are for display: one may be
    /// of the moment before its newest gap, the other of the moment after it.
    pub fn missed(&self) -> (u64, u64) {
        let load = |word: usize| self.segment.word(word).load(Ordering::Relaxed);
        (load(MISSED_CHUNKS), load(MISSED_BYTES))
    }

    /// True if the reader sleeps and has to be woken. Call it after a publish and one
    /// [`full_fence`] (one for all readers), or the flag can be missed.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.segment.word(ASLEEP).load(Ordering::Relaxed) != 0 // page:asleep
    }
}

impl fmt::Display for WildCursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WildCursor { cursor, cursor_before } = self;
        write!(out, "a reader's cursor went from {cursor_before} to {cursor}, which is impossible")
    }
}

impl std::error::Error for WildCursor {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wild_cursor_is_told_from_a_slow_one() {
        let (page, mut view) = ReaderPage::new(1);
        assert_eq!(view.sample(1, 0), Ok(1));
        page.set_cursor(5);
        assert_eq!(view.sample(3, 9), Ok(5));
        page.set_missed(2, 30);
        assert_eq!(view.missed(), (2, 30));
        assert_eq!(view.sample(7, 9), Ok(7)); // Overtaken: clamped.
        page.set_cursor(10);
        assert_eq!(view.sample(7, 9), Ok(10)); // The reader has read everything.
        page.set_cursor(11);
        assert_eq!(view.sample(7, 9), Err(WildCursor { cursor: 11, cursor_before: 10 }));
        page.set_cursor(9);
        assert!(view.sample(7, 9).is_err());
        page.set_cursor(u64::MAX);
        assert!(view.sample(7, 9).is_err());
    }

    #[test]
    fn a_sleeper_can_be_seen() {
        let (page, view) = ReaderPage::new(1);
        assert!(!view.is_asleep());
        page.set_asleep();
        assert!(view.is_asleep());
        page.set_awake();
        assert!(!view.is_asleep());
    }
}
