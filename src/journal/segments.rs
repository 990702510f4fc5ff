//! The lives of segments: prepared ahead, filled, sealed, removed.

use std::collections::VecDeque;

use super::Setup;
use super::age::AgeClock;
use super::format::Lsn;
use crate::base::Instant;
use crate::limits::JOURNAL_RETRY_DELAY;

/// A segment that gets no more blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Its number.
    pub number: u64,
    /// The time of its last block, in microseconds since 1970.
    pub last_us: u64,
    /// Number of pages of executions in its index.
    pub execution_pages: u32,
    /// Number of pages of its index.
    pub index_pages: u32,
    /// The offset of the index.
    pub data_end_bytes: u32,
}

/// The segment after the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is not needed yet.
    Absent,
    /// It is being made.
    Preparing,
    /// It can be used.
    Ready,
    /// It could not be made.
    Failed {
        /// The time of the next attempt.
        retry_at: Instant,
    },
}

/// A segment that will be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacating {
    /// Its number.
    pub number: u64,
    /// It may go when everything before this place is on the disk.
    pub until: Lsn,
}

/// The segments of a journal.
#[derive(Debug)]
pub struct Segments {
    /// Those that are sealed, oldest first.
    pub sealed: VecDeque<Sealed>,
    /// The number of the present one.
    pub current: u64,
    /// The one after it.
    pub next: Next,
    /// The oldest one that counts.
    pub oldest: u64,
    /// The time after which the oldest of the sealed ones is too old, in microseconds since 1970.
    pub until_us: u64,
    /// The one that will be removed next.
    pub vacating: Option<Vacating>,
    /// True while one is being removed.
    pub is_removing: bool,
    /// The one to ask the disk to remove.
    pub to_remove: Option<u64>,
}

impl Segments {
    /// Begins in the segment `first`, behind those that are sealed.
    pub fn new(sealed: VecDeque<Sealed>, first: u64) -> Segments {
        Segments {
            oldest: sealed.front().map_or(first, |front| front.number),
            until_us: 0,
            sealed,
            current: first,
            next: Next::Absent,
            vacating: None,
            is_removing: false,
            to_remove: None,
        }
    }

    /// Size of all segments on the disk. The next one always counts, so that there is room for it
    /// when it is made. One that is being removed counts until that is done.
    pub fn bytes(&self, setup: &Setup) -> u64 {
        let is_leaving = self.is_removing || self.to_remove.is_some();
        let count = self.sealed.len() as u64 + 2 + u64::from(is_leaving);
        count * u64::from(setup.segment_bytes)
    }

    /// True if the oldest segment has to go.
    pub fn is_over(&self, setup: &Setup, ages: &AgeClock) -> bool {
        let is_over = || ages.is_past(self.until_us) || self.bytes(setup) > setup.bytes_max;
        !self.sealed.is_empty() && is_over()
    }

    /// True while the oldest segment is on its way out. The disk decides when that goes on.
    pub fn is_shrinking(&self) -> bool {
        self.vacating.is_some() || self.to_remove.is_some() || self.is_removing
    }

    /// True if the next segment should be made now. `is_used`: a part of the present one is used.
    pub fn wants_next(&self, is_used: bool, now: Instant) -> bool {
        match self.next {
            Next::Absent => is_used,
            Next::Failed { retry_at } => now >= retry_at,
            Next::Preparing | Next::Ready => false,
        }
    }

    /// Notes that the next segment could not be made.
    pub fn failed(&mut self, now: Instant) {
        self.next = Next::Failed { retry_at: now + JOURNAL_RETRY_DELAY };
    }

    /// The sealed segment with this number.
    pub fn find(&self, number: u64) -> Option<&Sealed> {
        let at = self.sealed.binary_search_by_key(&number, |sealed| sealed.number).ok()?;
        self.sealed.get(at)
    }
}
