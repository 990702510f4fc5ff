//! The journal of a shard on the disk of its reactor.
//!
//! [`crate::journal`] decides what is written where, and the reactor does it. This module is the
//! way between the two: `files.rs` turns wishes into operations on files, `open.rs` opens a journal
//! while nothing else runs. `keeping.rs` is the shard's side: what is kept, and when. `late.rs`
//! is for executions that wait for the disk. `fetch.rs` gives old chunks with the reads of
//! `reads.rs` and the runs of `held.rs`, and `lost.rs` tells of those that cannot be given.
//! `recall.rs` brings ended executions back, and `goes_on.rs` those that a restart does not end.
//! `details.rs` is what their records say.

mod config;
mod details;
mod fetch;
mod files;
mod goes_on;
#[cfg(all(test, not(loom)))]
mod goes_on_tests;
mod held;
mod keeping;
#[cfg(all(test, not(loom)))]
mod keeping_tests;
mod late;
mod logged;
mod lost;
mod open;
mod promise;
mod reads;
mod recall;
#[cfg(all(test, not(loom)))]
mod refill_tests;
mod status;
#[cfg(all(test, not(loom)))]
mod tests;

pub use config::JournalConfig;
pub use details::{EndedDetails, GoesOn, OpenedDetails, RESTARTED};
pub(crate) use fetch::{begin as fetch, give_all, refill, tell as tell_fetched};
pub use files::{Completed, JournalFiles, PartRead};
pub(crate) use goes_on::{
    AmendError, OpenKept, ResumeError, amend, is_amended, leave_open, open_kept, published_bytes,
    resume, suspend,
};
pub(crate) use keeping::{
    Claimed, Keeping, Telling, await_sync, claim, end_turn, keep_chunks, keep_end, on_disk_events,
    record_end, shut_down,
};
pub use late::Late;
pub(crate) use late::{audit_late, end_late, has_recorded, ingest_late, shows_only_durable};
pub use logged::LogNews;
pub(crate) use logged::on_logged;
pub use open::{OpenJournalError, open_journal};
pub(crate) use promise::{has_failed, hurry, is_durable_to, promises_sync};
pub use recall::Recall;
pub(crate) use recall::{Described, forgotten_ring, recall, spec_of};
pub use status::{JournalError, JournalStatus};
