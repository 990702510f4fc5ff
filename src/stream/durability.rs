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
}

/// The error for a word that names no durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownDurability;

impl Durability {
    /// Every durability.
    pub const ALL: [Durability; 3] = [Durability::None, Durability::Written, Durability::Synced];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Written => "written",
            Durability::Synced => "synced",
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
        out.write_str("the durability must be none, written or synced")
    }
}

impl std::error::Error for UnknownDurability {}
