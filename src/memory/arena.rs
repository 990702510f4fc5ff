//! All windows of one size: one memfd, mapped once over reserved address space, allocated in steps.
//!
//! The life cycle of a window is: bought → leased → idle → leased …, or idle → released (its pages
//! belong to the kernel again) → bought. A window larger than one release step is released in
//! parts. The pool decides when each of these happens and keeps the totals over all arenas
//! (`pool.rs`, with the tests).

use std::io;

use super::atomic::{Ordering, fence};
use super::layout::GENERATION_WORD;
use super::memfd::{ARENA_SEALS, Memfd};
use super::segment::{self, Segment};
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
}

impl Arena {
    pub(super) fn new(class_index: usize, bytes_max: u64) -> io::Result<Arena> {
        let class_bytes = RING_CLASS_BYTES[class_index];
        let memfd = Memfd::create(c"streamdoor-arena")?;
        memfd.seal(ARENA_SEALS)?;
        let reserved_bytes = bytes_max / u64::from(class_bytes) * u64::from(class_bytes);
        let segment = match reserved_bytes {
            0 => Segment::heap(0), // Not one window fits, so none is ever bought.
            bytes => memfd.map(bytes as usize)?,
        };
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
        }
        self.idle.extend((first..first + count).rev()); // The lowest is leased first.
        Ok(count)
    }

    pub(super) fn window(&self, window_index: u32) -> Segment {
        let class_bytes = self.class_bytes as usize;
        self.segment.part(window_index as usize * class_bytes, class_bytes)
    }

    /// Releases idle memory: `bytes` bytes or a little more, if that much is idle. Returns the
    /// number of released bytes.
    pub(super) fn release_idle(&mut self, bytes: u64) -> u64 {
        match self.class_bytes > RING_RELEASE_STEP_BYTES {
            true => self.release_parts(bytes),
            false => self.release_windows(bytes),
        }
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
        self.window(window_index).word(GENERATION_WORD).store(0, Ordering::Relaxed);
        fence(Ordering::Release); // ring:generation
    }
}
