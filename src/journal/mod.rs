//! Stratum 2: the journal, a log on disk under the executions of one shard.
//!
//! *The journal remembers.* It gets each chunk when the engine is told of it, and keeps it in
//! files. No crash, power cut or bad disk turns them into wrong answers. It makes no system call
//! and reads no clock: `now` is an argument. [`Journal::poll_wish`] returns what it wants of the
//! disk, and [`Journal::on_done`] takes the results.
//!
//! Absent: knowledge of subscribers and of what chunks mean. A reader asks [`Journal::locate`] for
//! the place of a chunk, reads there by itself, and checks the bytes with [`block`].
//!
//! Reading order:
//!
//! - [`format`], [`runs`] and [`block`]: the bytes of segments, blocks, runs and chunks; [`index`]
//!   those of the index, [`records`] those of records.
//! - `commit.rs`: group commit. `table.rs`: the runs of the present segment.
//! - `catalogue.rs`: the executions. `segments.rs`: the lives of segments, and retention.
//! - `machine.rs`: the machine; `answers.rs`: its answers. `seal.rs` writes the index of a full
//!   segment, `locate.rs` finds chunks, `landmarks.rs` helps it, `retain.rs` removes them.
//!   `age.rs`: the clock for that.
//! - [`recovery`]: the state of a journal from its files alone. `walk.rs` walks over blocks.
//! - [`scrub`]: a check of sealed segments in the background.
//!
//! Invariants:
//! - D1: no page is written twice.
//! - D2: nothing is acknowledged as synced but by a sync that was submitted after its write was
//!   completed.
//! - D3: the place in each block up to which everything is on disk was true when the block was
//!   closed. It alone tells a torn end from damage in the middle.
//! - D4: a chunk that was not kept is recorded as missing before anything else of its execution is
//!   appended.
//! - D5: a chunk is given only if its checksum, its place, its number and its execution are right.
//! - D6: an execution has one record of its end.
//! - D7: a segment is removed only after the descriptions of running executions in it are on disk
//!   elsewhere.
//!
//! Tests: beside the code. `model_tests.rs` runs the machine against a model of a disk that fails.
//! `fault_tests.rs` uses it after a failure, and `age_tests.rs` with clocks that jump.

mod age;
#[cfg(test)]
mod age_tests;
mod answers;
pub mod block;
mod catalogue;
mod commit;
#[cfg(test)]
mod fault_tests;
pub mod format;
pub mod index;
mod landmarks;
mod locate;
pub mod look;
mod machine;
#[cfg(test)]
mod model_tests;
pub mod records;
pub mod recovery;
mod retain;
pub mod runs;
#[cfg(test)]
mod scan_tests;
pub mod scrub;
#[cfg(test)]
mod scrub_tests;
mod seal;
mod segments;
mod table;
mod walk;

pub use answers::{Append, Counters, Fault, Refused};
pub use catalogue::{Extent, Kept, KeptId, Living, Record};
pub use locate::{Found, Place, Search, place_of};
pub use machine::Journal;
pub use scrub::{Scrub, Scrubbed};

use crate::base::{Instant, PageBuffer};
use crate::limits::{
    JOURNAL_BLOCK_BYTES_MAX, JOURNAL_PAGE_BYTES, JOURNAL_SEGMENT_BYTES, JOURNAL_SEGMENT_BYTES_MIN,
};
use format::{Lsn, SegmentHeader, is_segment_size};

/// The time on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The time of the shard's clock.
    pub now: Instant,
    /// The wall-clock time, in microseconds since 1970.
    pub wall_us: u64,
}

/// The properties of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The random number of the journal.
    pub journal: u128,
    /// The number of the shard's journal in its directory.
    pub shard: u16,
    /// Size of a segment.
    pub segment_bytes: u32,
    /// Size of all segments together, if that leaves two of them.
    pub bytes_max: u64,
    /// Executions that ended longer ago than this are removed, with their segments. In
    /// microseconds.
    pub age_us_max: u64,
    /// Maximum size of the blocks that are not on the disk. A start looks no further behind a torn
    /// one, so it never gets smaller for the same files.
    pub unsynced_bytes_max: u32,
}

impl Setup {
    /// Checks the setup.
    ///
    /// # Panics
    /// If a size is out of bounds.
    pub fn assert_sound(&self) {
        assert!(is_segment_size(self.segment_bytes));
        let block_bytes_max = JOURNAL_BLOCK_BYTES_MAX.min(self.segment_bytes / 4);
        assert!(self.unsynced_bytes_max >= block_bytes_max); // Each block finds room.
        assert!(self.unsynced_bytes_max.is_multiple_of(JOURNAL_PAGE_BYTES));
        const { assert!(JOURNAL_SEGMENT_BYTES_MIN <= JOURNAL_SEGMENT_BYTES) };
    }
}

/// The name of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WishToken {
    /// A block, with its number.
    Block(u64),
    /// A sync of blocks.
    Sync,
    /// A part of an index.
    Index,
    /// A segment that is made.
    Prepare,
    /// A segment that is removed.
    Remove,
}

/// A wish for the disk. [`Journal::on_done`] is told of its result, once.
#[derive(Debug)]
pub enum Wish {
    /// Write `bytes` of `buffer` at a place.
    Write {
        /// The name of the wish.
        token: WishToken,
        /// The place.
        lsn: Lsn,
        /// The bytes. They come back with the result.
        buffer: PageBuffer,
        /// Number of bytes, a multiple of a page.
        bytes: u32,
        /// True if these bytes have to be on the disk when the write is completed. Everything
        /// before them is there already.
        sync: bool,
    },
    /// Sync a segment. It has to cover all writes that were completed before.
    Sync {
        /// The number of the segment.
        segment_number: u64,
    },
    /// Make a segment of zeros with this header, and sync it, and its name. Room for all of it is
    /// reserved. Zeros that were written make later syncs faster, and are not needed otherwise.
    Prepare {
        /// The header.
        header: SegmentHeader,
    },
    /// Remove a segment.
    Remove {
        /// The number of the segment.
        segment_number: u64,
    },
}

impl Wish {
    /// The name of the wish.
    pub fn token(&self) -> WishToken {
        match self {
            Wish::Write { token, .. } => *token,
            Wish::Sync { .. } => WishToken::Sync,
            Wish::Prepare { .. } => WishToken::Prepare,
            Wish::Remove { .. } => WishToken::Remove,
        }
    }
}
