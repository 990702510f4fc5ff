//! The promise for the chunks of an execution: what survives a crash.

use std::fmt;
use std::str::FromStr;

/// The promise for the chunks of an execution.
///
/// ```
/// use streamdoor::stream::Durability;
///
/// assert_eq!("synced".parse(), Ok(Durability::Synced));
/// assert_eq!(Durability::default(), Durability::None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Nothing is kept on disk. The chunks end with the process.
    #[default]
    None,
    /// The kernel gets the chunks within milliseconds. They survive a crash of the process. A power
    /// cut may lose the last second.
    Written,
    /// The chunks are synced to the disk at once. The acknowledged ones survive a power cut.
    Synced,
    /// The chunks are synced, and the log of the cluster has them, too. They survive the loss of
    /// the node. Subscribers are given a chunk once the log has it, as under
    /// [`Deliver::WhenDurable`], and are told the end once the log has the end. A tool whose chunks
    /// the log does not take waits, as under [`OnFull::Wait`].
    Replicated,
}

/// The time at which subscribers are given a chunk that is kept.
///
/// ```
/// use streamdoor::ExecuteOptions;
/// use streamdoor::options::{Deliver, Durability};
///
/// // Nothing that a subscriber has seen is lost in a power cut.
/// let options = ExecuteOptions {
///     durability: Some(Durability::Synced),
///     deliver: Deliver::WhenDurable,
///     ..Default::default()
/// };
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Deliver {
    /// At once. A crash can lose chunks that were given already.
    #[default]
    AtOnce,
    /// When the promise of its [`Durability`] is kept: one write later under `written`, one sync
    /// later under `synced`. The ring keeps the chunk until then, and a full ring makes the
    /// producer wait. A chunk for which the journal has no room waits as under [`OnFull::Wait`].
    WhenDurable,
}

/// The consequence if the journal has no room for a chunk.
///
/// ```
/// use streamdoor::ExecuteOptions;
/// use streamdoor::options::OnFull;
///
/// // The producer waits for the disk, and nothing is missing on it.
/// let options = ExecuteOptions { on_full: OnFull::Wait, ..Default::default() };
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFull {
    /// The chunk is not kept. A subscriber that reads from the disk later is told a gap with the
    /// reason `unwritten`. The producer never waits for the disk.
    #[default]
    Gap,
    /// The chunk waits in the ring for as long as the disk moves, and a full ring makes the
    /// producer wait. After two seconds without room, and when the disk fails, it goes on as under
    /// [`OnFull::Gap`]. A producer that is faster than the disk thus loses nothing, and a disk that
    /// hangs stops nobody. It is the default of a server.
    Pause,
    /// The chunk waits in the ring until there is room, and a full ring makes the producer wait.
    /// After the execution's `block_deadline` without room, the execution fails with a text that
    /// begins with `journal_full`. It fails when the disk fails, too. A stream of the Durable
    /// Streams protocol waits for as long as it takes, because its end would be for good.
    Wait,
}

/// The error for a word that names no durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownDurability;

impl Durability {
    /// Every durability.
    pub const ALL: [Durability; 4] =
        [Durability::None, Durability::Written, Durability::Synced, Durability::Replicated];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Written => "written",
            Durability::Synced => "synced",
            Durability::Replicated => "replicated",
        }
    }

    /// True if each chunk is synced to the disk.
    pub const fn is_synced(self) -> bool {
        matches!(self, Durability::Synced | Durability::Replicated)
    }
}

impl Deliver {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Deliver::AtOnce => "at_once",
            Deliver::WhenDurable => "when_durable",
        }
    }
}

impl OnFull {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            OnFull::Gap => "gap",
            OnFull::Pause => "pause",
            OnFull::Wait => "wait",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(text: &str) -> Result<Durability, UnknownDurability> {
        Durability::ALL
            .into_iter()
            .find(|durability| durability.name() == text)
            .ok_or(UnknownDurability)
    }
}

impl fmt::Display for UnknownDurability {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the durability must be none, written, synced or replicated")
    }
}

impl std::error::Error for UnknownDurability {}
