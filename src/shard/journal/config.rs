//! The settings of a shard's journal.

use std::path::PathBuf;
use std::time::Duration;

use crate::limits;
use crate::stream::Durability;

/// The settings of a shard's journal: a log on disk under its executions.
///
/// ```no_run
/// use streamdoor::options::{Durability, JournalConfig};
/// use streamdoor::{ExecuteOptions, Shard, ShardConfig};
///
/// let journal = JournalConfig::at("/var/lib/app");
/// let config = ShardConfig { journal: Some(journal), ..Default::default() };
/// let (mut shard, report) = Shard::new(config)?;
/// println!("{report}");
///
/// let options = ExecuteOptions { durability: Some(Durability::Synced), ..Default::default() };
/// let id = shard.execute("slow_data_processor", &serde_json::json!({"chunks": 2}), options)?;
/// while shard.durable_seq(id) < Some(2) {
///     assert!(shard.journal().unwrap().fault.is_none(), "the disk has failed");
///     if !shard.turn() {
///         shard.park(None);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// The directory. It is made if it does not exist. Each shard has a directory of its own in it,
    /// `shard-00` and so on, which one process at a time can use.
    pub directory: PathBuf,
    /// The promise for the chunks of executions whose options name none.
    pub durability: Durability,
    /// Maximum size of all segments of a shard together, in bytes. The oldest are removed.
    pub bytes_max: u64,
    /// Time for which ended executions are kept. The segments behind it are removed.
    pub retention: Duration,
    /// Size of a segment, in bytes: a power of two.
    pub segment_bytes: u32,
    /// True if all writes go past the page cache (`O_DIRECT`), where the file system can. Those
    /// that somebody waits for do so anyway. The page cache takes the others twice as fast.
    pub is_direct: bool,
    /// Time between two scrubs, which read all sealed segments and check each checksum. Damage is
    /// thus found early. [`JournalStatus::scrubbed`](crate::shard::JournalStatus) has the counts.
    /// `None` for no scrubs.
    pub scrub: Option<Duration>,
}

impl JournalConfig {
    /// Creates the settings of a journal in this directory: `written`, at most 10 GiB, kept for a
    /// day, and scrubbed once a day.
    pub fn at(directory: impl Into<PathBuf>) -> JournalConfig {
        JournalConfig {
            directory: directory.into(),
            durability: Durability::Written,
            bytes_max: limits::JOURNAL_BYTES_MAX,
            retention: limits::JOURNAL_RETENTION,
            segment_bytes: limits::JOURNAL_SEGMENT_BYTES,
            is_direct: false,
            scrub: Some(limits::JOURNAL_SCRUB_PERIOD),
        }
    }

    /// The directory of one shard.
    pub(super) fn directory_of(&self, shard: u8) -> PathBuf {
        self.directory.join(format!("shard-{shard:02}"))
    }
}
