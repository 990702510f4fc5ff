//! All windows of one size: one memfd, mapped once over reserved address space, allocated in steps.
//!
//! The life cycle of a window is: bought → leased → idle → leased …, or idle → released (its pages
//! belong to the kernel again) → bought. A window larger than one release step is released in
//! parts. The pool decides when each of these happens and keeps the totals over all arenas
//! (`pool.rs`, with the tests). Each step asserts P1 of the pool: every window is in one place. It
//! also asserts M3: a window is handed out to one holder, and returned once.

use std::io;

use super::atomic::{Ordering, fence};
use super::layout::GENERATION_WORD;
use super::memfd::{ARENA_SEALS, Memfd};
use super::segment::{self, PAGE_BYTES, Segment};
use crate::limits::{RING_CLASS_BYTES, RING_RELEASE_STEP_BYTES};

/// The arena of one size class.
pub(super) struct Arena {
    pub(super) class_bytes: u32,
    pub(super) class_index: u8,
    pub(super) memfd: Memfd,
    /// All of the reserved address space. Only the windows below `window_count` are in the file.
    pub(super) segment: Segment,
    pub(super) window_count: u32,
    pub(super) leased_count: u32,
    /// Windows that are bought and not leased. The last one was used last.
    pub(super) idle: Vec<u32>,
    /// Windows whose pages were given back to the kernel.
    pub(super) released: Vec<u32>,
    /// The window that is being released in several steps, because it is larger than one, and the
    /// number of its bytes that are released. It is in no list meanwhile.
    pub(super) partial: Option<(u32, u32)>,
    /// Scratch space of one release, kept for the next one.
    candidates: Vec<u32>,
    /// True for each window that is leased. A window has one holder at a time (M3).
    is_leased: Vec<bool>,
}

const _: () = {
    assert!(RING_CLASS_BYTES.len() <= 1 << 8); // The class of a lease is a byte.
    assert!(RING_RELEASE_STEP_BYTES as usize >= PAGE_BYTES); // The kernel takes whole pages.
    let mut class = 0;
    while class < RING_CLASS_BYTES.len() {
        let class_bytes = RING_CLASS_BYTES[class];
        assert!((class_bytes as usize).is_multiple_of(PAGE_BYTES)); // Windows share no page.
        // A window is released in whole steps, or several windows in one.
        assert!(
            class_bytes.is_multiple_of(RING_RELEASE_STEP_BYTES)
                || RING_RELEASE_STEP_BYTES.is_multiple_of(class_bytes)
        );
        class += 1;
    }
};

impl Arena {
    pub(super) fn new(class_index: usize, bytes_max: u64) -> io::Result<Arena> {
        let class_bytes = RING_CLASS_BYTES[class_index];
        let memfd = Memfd::create(c"streamdoor-arena")?;
        memfd.seal(ARENA_SEALS)?;
        let reserved_bytes = bytes_max / u64::from(class_bytes) * u64::from(class_bytes);
        assert!(reserved_bytes <= bytes_max);
        let segment = match reserved_bytes {
            0 => Segment::heap(0), // Not one window fits, so none is ever bought.
            bytes => memfd.map(bytes as usize)?,
        };
        assert!(segment.bytes() as u64 == reserved_bytes);
        Ok(Arena {
            class_bytes,
            class_index: class_index as u8,
            memfd,
            segment,
            window_count: 0,
            leased_count: 0,
            idle: Vec::new(),
            released: Vec::new(),
            partial: None,
            candidates: Vec::new(),
            is_leased: Vec::new(),
        })
    }

    /// Buys up to `window_count` windows and returns their number. They are new ones in one piece
    /// at the end, or a single one that was released.
    pub(super) fn buy(&mut self, window_count: u32) -> io::Result<u32> {
        assert!(window_count > 0);
        let (first, count) = match self.released.last() {
            Some(window_index) => (*window_index, 1),
            None => (self.window_count, window_count),
        };
        let offset_bytes = first as usize * self.class_bytes as usize;
        let bytes = count as usize * self.class_bytes as usize;
        assert!(offset_bytes + bytes <= self.segment.bytes());
        self.memfd.allocate(offset_bytes as u64, bytes as u64)?;
        segment::populate(&self.segment, offset_bytes, bytes);
        if self.released.pop().is_none() {
            self.window_count += count;
            self.is_leased.resize(self.window_count as usize, false);
        }
        self.idle.extend((first..first + count).rev()); // The lowest is leased first.
        assert!(count <= window_count);
        self.assert_counted();
        Ok(count)
    }

    /// Checks P1 of the pool: each window that was ever bought is in one place.
    fn assert_counted(&self) {
        let absent_count = self.released.len() + usize::from(self.partial.is_some());
        let present_count = self.idle.len() + self.leased_count as usize;
        assert!(present_count + absent_count == self.window_count as usize);
        assert!(self.is_leased.len() == self.window_count as usize);
    }

    /// Notes that an idle window is handed out. The other half of [`Arena::take_back`].
    pub(super) fn hand_out(&mut self, window_index: u32) {
        let was_leased = std::mem::replace(&mut self.is_leased[window_index as usize], true);
        assert!(!was_leased); // M3: no window has two writers.
        self.leased_count += 1;
        self.assert_counted();
    }

    /// Takes a window back, and lets it be leased again.
    pub(super) fn take_back(&mut self, window_index: u32) {
        let was_leased = std::mem::replace(&mut self.is_leased[window_index as usize], false);
        assert!(was_leased); // A lease is returned once.
        assert!(self.leased_count > 0);
        self.leased_count -= 1;
        self.idle.push(window_index);
        self.assert_counted();
    }

    pub(super) fn window(&self, window_index: u32) -> Segment {
        assert!(window_index < self.window_count); // Others have no pages yet.
        let class_bytes = self.class_bytes as usize;
        self.segment.part(window_index as usize * class_bytes, class_bytes)
    }

    /// Releases idle memory: `bytes` bytes or a little more, if that much is idle. Returns the
    /// number of released bytes.
    pub(super) fn release_idle(&mut self, bytes: u64) -> u64 {
        let released_bytes = match self.class_bytes > RING_RELEASE_STEP_BYTES {
            true => self.release_parts(bytes),
            false => self.release_windows(bytes),
        };
        assert!(
            released_bytes.is_multiple_of(self.class_bytes.min(RING_RELEASE_STEP_BYTES).into())
        );
        self.assert_counted();
        released_bytes
    }

    /// True if [`Arena::release_idle`] could release anything.
    pub(super) fn has_idle(&self) -> bool {
        !self.idle.is_empty() || self.partial.is_some()
    }

    /// Releases the pages of idle windows, `bytes` bytes or a little more. Windows that were unused
    /// for longest come first, and neighbours share one call. A window that the kernel does not
    /// take stays idle.
    fn release_windows(&mut self, bytes: u64) -> u64 {
        let window_count = bytes.div_ceil(u64::from(self.class_bytes));
        let window_count = window_count.min(self.idle.len() as u64) as usize;
        self.candidates.clear();
        self.candidates.extend(self.idle.drain(..window_count));
        self.candidates.sort_unstable();
        let candidates = std::mem::take(&mut self.candidates);
        let mut released_count = 0;
        for run in candidates.chunk_by(|a, b| a + 1 == *b) {
            for window_index in run {
                self.disown(*window_index);
            }
            let offset_bytes = run[0] as usize * self.class_bytes as usize;
            let bytes = run.len() * self.class_bytes as usize;
            match segment::release(&self.segment, offset_bytes, bytes) {
                Ok(()) => {
                    self.released.extend(run.iter().rev());
                    released_count += run.len() as u64;
                }
                Err(_) => self.idle.extend(run.iter().rev()),
            }
        }
        assert!(released_count <= candidates.len() as u64);
        self.candidates = candidates;
        released_count * u64::from(self.class_bytes)
    }

    /// Releases windows that are larger than one step, one part at a time. It otherwise works like
    /// [`Arena::release_windows`].
    fn release_parts(&mut self, bytes: u64) -> u64 {
        let mut released_bytes = 0;
        while released_bytes < bytes {
            let (window_index, gone_bytes) = match self.partial.take() {
                Some(partial) => partial,
                None if self.idle.is_empty() => break,
                None => {
                    let window_index = self.idle.remove(0); // Only a few windows are that large.
                    self.disown(window_index);
                    (window_index, 0)
                }
            };
            assert!(gone_bytes < self.class_bytes); // Something of it is left.
            let part_bytes = RING_RELEASE_STEP_BYTES.min(self.class_bytes - gone_bytes);
            let offset_bytes = window_index as usize * self.class_bytes as usize;
            let offset_bytes = offset_bytes + gone_bytes as usize;
            let result = segment::release(&self.segment, offset_bytes, part_bytes as usize);
            if result.is_err() && gone_bytes == 0 {
                self.idle.push(window_index);
                break;
            }
            let gone_bytes = if result.is_ok() { gone_bytes + part_bytes } else { gone_bytes };
            match gone_bytes == self.class_bytes {
                true => self.released.push(window_index),
                false => self.partial = Some((window_index, gone_bytes)),
            }
            if result.is_err() {
                break;
            }
            released_bytes += u64::from(part_bytes);
        }
        released_bytes
    }

    /// Clears the generation of a window before its pages go. Otherwise readers of its last ring
    /// could take zeros for payload bytes.
    fn disown(&self, window_index: u32) {
        assert!(!self.is_leased[window_index as usize]); // Its holder would lose its ring.
        self.window(window_index).word(GENERATION_WORD).store(0, Ordering::Relaxed);
        fence(Ordering::Release); // ring:generation
    }
}
