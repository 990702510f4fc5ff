//! The state of a shard's journal, and the reason why there is none.

use std::fmt;

use crate::journal::{Counters, Fault, Scrubbed};

/// The reason why a shard could not open its journal, in the error of a shard that did not start.
///
/// ```
/// use streamdoor::options::JournalError;
/// # let error = std::io::Error::other("");
/// let is_about_the_journal = error.get_ref().is_some_and(|inner| inner.is::<JournalError>());
/// assert!(!is_about_the_journal);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalError(pub(super) String);

impl fmt::Display for JournalError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for JournalError {}

/// The state of a shard's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalStatus {
    /// Number of executions that are kept.
    pub executions: u64,
    /// Number of executions that were running when their process ended. They have failed.
    pub restarted: u64,
    /// Number of segments that were found at the start.
    pub segments_found: u64,
    /// Number of bytes that a crash had left half written.
    pub torn_bytes: u64,
    /// Number of stretches that were damaged at the start.
    pub corrupt_stretches: u64,
    /// The failure of the disk, if it has failed. Nothing more is kept then.
    pub fault: Option<Fault>,
    /// Running totals since the start.
    pub counters: Counters,
    /// Running totals of the scrubs since the start.
    pub scrubbed: Scrubbed,
}
