//! The page of a reader in another thread or process: its cursor, what it missed, and whether it
//! sleeps.
//!
//! Written by the reader only ([`ReaderPage`]); to the shard it is a hint ([`ReaderPageView`]): an
//! honest cursor only grows and is at most one beyond the head. A reader with any other is evicted.
//!
//! - `page:cursor`: who sees a cursor may overwrite what is before it: the reader has finished;
//! - `page:asleep`: both sides store, pass a full fence, then look at the other's word.
//!
//! Tests: below; the handshake in `loom_tests.rs`.

use std::fmt;

use super::atomic::{Ordering, full_fence, load_acquire};
use super::control::PAGE_VERSION;
use super::segment::Segment;

const CURSOR: usize = 0;
const ASLEEP: usize = 1;
const MISSED_CHUNKS: usize = 2;
const MISSED_BYTES: usize = 3;
const LEFT: usize = 4;
const MAGIC: usize = 8;
const VERSION: usize = 9;
/// "sdread".
const READER_MAGIC: u64 = 0x0102_6461_6572_6473;
/// Asleep on the head of the ring. On a descriptor: an odd number, another one each time.
const ON_FUTEX: u64 = 2;
const PAGE_WORDS: usize = 16; // A pair of cache lines: nobody else's words are near.

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

/// A cursor that no honest reader stores: evict the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WildCursor {
    /// What it stored.
    pub cursor: u64,
    /// Where it had been before.
    pub cursor_before: u64,
}

impl ReaderPage {
    /// A page of this process, and the shard's view of it. `cursor` is the first chunk that the
    /// reader wants.
    pub fn new(cursor: u64) -> (ReaderPage, ReaderPageView) {
        let segment = Segment::heap(PAGE_WORDS);
        segment.word(CURSOR).store(cursor, Ordering::Relaxed);
        let view = ReaderPageView::at(segment.clone(), cursor);
        (ReaderPage { segment }, view)
    }

    /// What stands in a fresh page that a reader in another process is to be given.
    pub(super) fn fresh(cursor: u64) -> [u64; PAGE_WORDS] {
        let mut words = [0; PAGE_WORDS];
        (words[CURSOR], words[MAGIC], words[VERSION]) = (cursor, READER_MAGIC, PAGE_VERSION);
        words
    }

    /// At the start of `segment`, which was made by another process. `None`: it is none.
    pub(super) fn at(segment: &Segment) -> Option<ReaderPage> {
        let is_ours = segment.bytes() >= PAGE_WORDS * 8
            && load_acquire(segment.word(MAGIC)) == READER_MAGIC
            && segment.word(VERSION).load(Ordering::Relaxed) == PAGE_VERSION;
        is_ours.then(|| ReaderPage { segment: segment.part(0, PAGE_WORDS * 8) })
    }

    /// All chunks before `cursor` have been read and may be overwritten.
    #[inline]
    pub fn set_cursor(&self, cursor: u64) {
        self.segment.word(CURSOR).store(cursor, Ordering::Release); // page:cursor
    }

    /// So many chunks and bytes it was told that it missed.
    pub fn set_missed(&self, chunks: u64, bytes: u64) {
        self.segment.word(MISSED_CHUNKS).store(chunks, Ordering::Relaxed);
        self.segment.word(MISSED_BYTES).store(bytes, Ordering::Relaxed);
    }

    /// Says that this reader is about to sleep. It then has to look at the head once more: the
    /// fence in here and the one in [`ReaderPageView::is_asleep`]'s contract make it impossible
    /// that this look misses the chunk and the writer misses the flag.
    #[inline]
    pub fn set_asleep(&self) {
        self.segment.word(ASLEEP).store(ON_FUTEX, Ordering::Relaxed);
        full_fence(); // page:asleep
    }

    /// As [`ReaderPage::set_asleep`], on a descriptor that the server is to make readable.
    /// `watch_count`: which sleep of that kind this is; 1 is the first.
    pub fn set_watching(&self, watch_count: u64) {
        self.segment.word(ASLEEP).store(watch_count << 1 | 1, Ordering::Relaxed);
        full_fence(); // page:asleep
    }

    /// Says that this reader wants no more: its connection does not break, it is closed.
    pub fn set_left(&self) {
        self.segment.word(LEFT).store(1, Ordering::Release);
    }

    /// Says that this reader looks by itself again.
    #[inline]
    pub fn set_awake(&self) {
        self.segment.word(ASLEEP).store(0, Ordering::Relaxed);
    }
}

impl ReaderPageView {
    /// Of a reader that begins with chunk `cursor`.
    pub(super) fn at(segment: Segment, cursor: u64) -> ReaderPageView {
        ReaderPageView { segment, cursor_seen: cursor, ended_watch: 0 }
    }

    /// Does the reader sleep on its descriptor, and was not woken from this sleep yet? Then it has
    /// to be: for this sleep, the answer is given once. To be asked as
    /// [`ReaderPageView::is_asleep`].
    pub fn take_watch(&mut self) -> bool {
        let asleep = self.segment.word(ASLEEP).load(Ordering::Relaxed); // page:asleep
        if asleep & 1 == 0 || asleep == self.ended_watch {
            return false;
        }
        self.ended_watch = asleep;
        true
    }

    /// As [`ReaderPageView::take_watch`], but the answer is given again.
    pub fn has_watch(&self) -> bool {
        let asleep = self.segment.word(ASLEEP).load(Ordering::Relaxed); // page:asleep
        asleep & 1 == 1 && asleep != self.ended_watch
    }

    /// Did the reader say that it wants no more?
    pub fn has_left(&self) -> bool {
        load_acquire(self.segment.word(LEFT)) != 0
    }

    /// The reader's cursor, clamped to `[tail_seq, head_seq + 1]` (a reader that was overtaken is
    /// behind the tail; that is no fault).
    ///
    /// # Errors
    /// [`WildCursor`] if it went backwards or beyond what exists.
    #[inline]
    pub fn sample(&mut self, tail_seq: u64, head_seq: u64) -> Result<u64, WildCursor> {
        self.sample_if(|read_seq| read_seq <= head_seq).map(|cursor| cursor.max(tail_seq))
    }

    /// The reader's cursor. `has_been` says whether there ever was a chunk of this number.
    ///
    /// # Errors
    /// As [`ReaderPageView::sample`].
    pub fn sample_if(&mut self, has_been: impl Fn(u64) -> bool) -> Result<u64, WildCursor> {
        let cursor = load_acquire(self.segment.word(CURSOR)); // page:cursor
        let cursor_before = self.cursor_seen;
        if cursor < cursor_before || cursor > cursor_before && !has_been(cursor - 1) {
            return Err(WildCursor { cursor, cursor_before });
        }
        self.cursor_seen = cursor;
        Ok(cursor)
    }

    /// Where the reader was when it was last looked at, as far as that could be.
    pub fn cursor_seen(&self) -> u64 {
        self.cursor_seen
    }

    /// What the reader says that it missed, in chunks and bytes: for people, and perhaps the one
    /// from before and the other from behind its newest gap.
    pub fn missed(&self) -> (u64, u64) {
        let load = |word: usize| self.segment.word(word).load(Ordering::Relaxed);
        (load(MISSED_CHUNKS), load(MISSED_BYTES))
    }

    /// True if the reader sleeps and has to be woken. To be asked after a publish and one
    /// [`full_fence`] (one for all readers), or the flag can be missed.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.segment.word(ASLEEP).load(Ordering::Relaxed) != 0 // page:asleep
    }
}

impl fmt::Display for WildCursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WildCursor { cursor, cursor_before } = self;
        write!(out, "a reader's cursor went from {cursor_before} to {cursor}, where it cannot be")
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
        assert_eq!(view.sample(7, 9), Ok(10)); // It has read everything.
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
