//! The answers of a journal: what it takes, what it refuses and why, and its counts.

use std::fmt;
use std::io;

use super::WishToken;

/// The reason why a journal takes nothing more. No acknowledgement follows. `Journal::locate`
/// still finds what is on the disk.
///
/// The first failure is final, and only a restart recovers. A sync is never tried again: the kernel
/// reports lost pages once, and then calls them clean. Nor are the blocks written to another
/// segment. Their buffers serve other blocks as soon as the kernel has taken them. Readers and the
/// index of the segment already know the places of their runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write has failed. The kernel still has everything that it took before.
    Write(io::ErrorKind),
    /// A sync has failed. The disk may have lost what it should have covered.
    Sync(io::ErrorKind),
}

impl Fault {
    /// The fault of a failed wish; `None` if the journal goes on without it.
    pub(super) fn of(token: WishToken, kind: io::ErrorKind, synced: bool) -> Option<Fault> {
        match token {
            WishToken::Sync => Some(Fault::Sync(kind)),
            // Its sync may be the part that failed, and that covers earlier blocks.
            WishToken::Block(_) if synced => Some(Fault::Sync(kind)),
            WishToken::Block(_) | WishToken::Index => Some(Fault::Write(kind)),
            WishToken::Prepare | WishToken::Remove => None,
        }
    }
}

/// Running totals of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Chunks that were appended.
    pub chunks: u64,
    /// Payload bytes of these.
    pub bytes: u64,
    /// Chunks that were published and not kept.
    pub missed_chunks: u64,
    /// Blocks that were written.
    pub blocks: u64,
    /// Bytes of these.
    pub block_bytes: u64,
    /// Syncs, also those of a write.
    pub syncs: u64,
    /// Segments that were begun.
    pub segments: u64,
    /// Segments that were removed.
    pub removed_segments: u64,
    /// Appends that found the present segment full and the next one not ready.
    pub roll_waits: u64,
    /// Segments that could not be made or removed.
    pub failures: u64,
}

/// The result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Append {
    /// The chunk will reach the disk.
    Kept,
    /// There was no room. The chunk counts as missing.
    Missed,
}

/// The reason why an execution is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The journal has as many executions as it can.
    TooMany,
    /// The description is too long.
    TooLong,
    /// The disk takes nothing at the moment, or has no room.
    Full,
    /// The disk has failed.
    Broken,
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Refused::TooMany => "the journal has as many executions as it can keep",
            Refused::TooLong => "the description of the execution is too long for the journal",
            Refused::Full => "the journal has no room now",
            Refused::Broken => "the disk of the journal has failed",
        })
    }
}

impl std::error::Error for Refused {}
