//! The journal of a shard on the disk of its reactor.
//!
//! [`crate::journal`] decides what is written where, and the reactor does it. This module is the
//! way between the two: `files.rs` turns wishes into operations on files, `open.rs` opens a journal
//! while nothing else runs.

mod files;
mod open;
#[cfg(all(test, not(loom)))]
mod tests;

pub use files::{Completed, JournalFiles};
pub use open::{OpenJournalError, open_journal};
