//! Chunks as the engine knows them: numbers, never bytes.
//!
//! Kinds are a closed set, because running totals are kept for each kind. With these totals a gap
//! is counted exactly after the fact, even under a filter, although its chunks are gone.

use std::fmt;
use std::ops::{Add, Index, IndexMut, Sub};
use std::str::FromStr;

use crate::limits::KINDS_MAX;

/// The kind of a chunk. A subscriber can ask for some kinds only.
///
/// ```
/// use streamdoor::Kind;
///
/// assert_eq!("stderr".parse(), Ok(Kind::Stderr));
/// assert_eq!(Kind::ToolCall.name(), "tool_call");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The plain result of a tool.
    #[default]
    Output = 0,
    /// Standard output of a command.
    Stdout = 1,
    /// Standard error of a command.
    Stderr = 2,
    /// Rows of a query.
    Row = 3,
    /// A hit of a search.
    Match = 4,
    /// A sample of a series.
    Sample = 5,
    /// Text of a model.
    Text = 6,
    /// A model's call of a tool: its name and id.
    ToolCall = 7,
    /// A piece of the arguments of a model's call.
    ToolArguments = 8,
    /// A JSON value.
    Json = 9,
    /// A line of a log: text, or JSON with `level`, `data` and perhaps `logger`, as MCP has them.
    Log = 10,
    /// Data in a format that the tool and its subscribers agree on.
    Custom = 11,
    /// A part of an answer that is not only text: a content block of MCP, as JSON.
    Content = 12,
    /// The result once more, as one JSON value. Raw output leaves it out, unless it is asked for.
    Structured = 13,
}

impl Kind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Kind; 14] = [
        Kind::Output,
        Kind::Stdout,
        Kind::Stderr,
        Kind::Row,
        Kind::Match,
        Kind::Sample,
        Kind::Text,
        Kind::ToolCall,
        Kind::ToolArguments,
        Kind::Json,
        Kind::Log,
        Kind::Custom,
        Kind::Content,
        Kind::Structured,
    ];

    /// Returns the kind with number `raw`, which may come from another process.
    #[inline]
    pub fn new(raw: u8) -> Option<Kind> {
        Kind::ALL.get(raw as usize).copied()
    }

    /// The name on every wire.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Output => "output",
            Kind::Stdout => "stdout",
            Kind::Stderr => "stderr",
            Kind::Row => "row",
            Kind::Match => "match",
            Kind::Sample => "sample",
            Kind::Text => "text",
            Kind::ToolCall => "tool_call",
            Kind::ToolArguments => "tool_arguments",
            Kind::Json => "json",
            Kind::Log => "log",
            Kind::Custom => "custom",
            Kind::Content => "content",
            Kind::Structured => "structured",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// The error for a name that no kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownKind;

impl fmt::Display for UnknownKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("unknown kind; known are:")?;
        Kind::ALL.iter().try_for_each(|kind| write!(out, " {kind}"))
    }
}

impl std::error::Error for UnknownKind {}

impl FromStr for Kind {
    type Err = UnknownKind;
    fn from_str(text: &str) -> Result<Kind, UnknownKind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == text).ok_or(UnknownKind)
    }
}

/// A set of kinds, used as a subscriber's filter.
///
/// ```
/// use streamdoor::{Kind, Kinds};
///
/// let kinds = Kinds::NONE.with(Kind::Stdout).with(Kind::Stderr);
/// assert!(kinds.contains(Kind::Stdout));
/// assert!(!kinds.contains(Kind::Row));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kinds(u16);

impl Kinds {
    /// The set of all kinds, which filters nothing.
    pub const ALL: Kinds = Kinds(u16::MAX);
    /// The empty set, to start with for [`Kinds::with`].
    pub const NONE: Kinds = Kinds(0);

    /// The kinds of raw output: all but [`Kind::Structured`], which repeats others.
    pub const RAW: Kinds = Kinds(!(1 << Kind::Structured as u16));

    /// Returns this set with `kind` added.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Kinds {
        Kinds(self.0 | 1 << kind as u16)
    }

    /// True if `kind` is in the set.
    #[inline]
    pub const fn contains(self, kind: Kind) -> bool {
        self.0 >> kind as u16 & 1 == 1
    }

    /// True if the set filters nothing.
    #[inline]
    pub const fn is_all(self) -> bool {
        self.0 == u16::MAX
    }

    /// True if the set filters everything.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Default for Kinds {
    fn default() -> Kinds {
        Kinds::ALL
    }
}

impl FromIterator<Kind> for Kinds {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> Kinds {
        kinds.into_iter().fold(Kinds::NONE, Kinds::with)
    }
}

/// A number of chunks and of their bytes.
///
/// ```
/// use streamdoor::Totals;
///
/// let mut totals = Totals::ZERO;
/// totals.count(100);
/// assert_eq!(totals, Totals { chunks: 1, bytes: 100 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Totals {
    /// Number of chunks.
    pub chunks: u64,
    /// Number of payload bytes.
    pub bytes: u64,
}

impl Totals {
    /// No chunks and no bytes.
    pub const ZERO: Totals = Totals { chunks: 0, bytes: 0 };

    /// Counts one more chunk of `length` bytes.
    #[inline]
    pub fn count(&mut self, length: u32) {
        self.chunks = self.chunks.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(u64::from(length));
    }
}

// Wrapping on purpose: a reader in another thread computes with numbers that may be torn, and
// discards the result when it detects that. For the engine's own numbers, `audit` compares the
// sums.
impl Add for Totals {
    type Output = Totals;
    #[inline]
    fn add(self, other: Totals) -> Totals {
        Totals {
            chunks: self.chunks.wrapping_add(other.chunks),
            bytes: self.bytes.wrapping_add(other.bytes),
        }
    }
}

impl Totals {
    /// Returns `self - other`; `None` if either number of `other` is larger.
    pub fn checked_sub(self, other: Totals) -> Option<Totals> {
        let chunks = self.chunks.checked_sub(other.chunks)?;
        Some(Totals { chunks, bytes: self.bytes.checked_sub(other.bytes)? })
    }
}

impl Sub for Totals {
    type Output = Totals;
    #[inline]
    fn sub(self, other: Totals) -> Totals {
        Totals {
            chunks: self.chunks.wrapping_sub(other.chunks),
            bytes: self.bytes.wrapping_sub(other.bytes),
        }
    }
}

/// [`Totals`] for each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KindTotals([Totals; KINDS_MAX]);

impl KindTotals {
    /// Creates the totals from one sum per kind number, as a reader of a ring finds them.
    pub fn new(totals: [Totals; KINDS_MAX]) -> KindTotals {
        KindTotals(totals)
    }

    /// Counts one more chunk.
    #[inline]
    pub fn count(&mut self, kind: Kind, length: u32) {
        self.0[kind as usize].count(length);
    }

    /// Counts several more chunks of one kind.
    pub fn add(&mut self, kind: Kind, totals: Totals) {
        let sum = &mut self.0[kind as usize];
        *sum = *sum + totals;
    }

    /// Returns the sum over `kinds`.
    pub fn of(&self, kinds: Kinds) -> Totals {
        Kind::ALL
            .into_iter()
            .filter(|&kind| kinds.contains(kind))
            .fold(Totals::ZERO, |sum, kind| sum + self.0[kind as usize])
    }

    /// Returns `self - other`; `None` if any number of `other` is larger.
    pub fn checked_sub(&self, other: &KindTotals) -> Option<KindTotals> {
        let mut rest = *self;
        for (rest, other) in rest.0.iter_mut().zip(other.0) {
            *rest = rest.checked_sub(other)?;
        }
        Some(rest)
    }

    /// The sums, indexed by the number of the kind.
    pub fn each(&self) -> &[Totals; KINDS_MAX] {
        &self.0
    }

    /// The sums, to be changed.
    #[inline]
    pub(crate) fn each_mut(&mut self) -> &mut [Totals; KINDS_MAX] {
        &mut self.0
    }

    /// Number of payload bytes of all kinds.
    pub(crate) fn byte_count(&self) -> u64 {
        self.0.iter().map(|totals| totals.bytes).sum()
    }
}

/// The totals of the kind with this number, below [`KINDS_MAX`].
impl Index<usize> for KindTotals {
    type Output = Totals;
    #[inline]
    fn index(&self, kind: usize) -> &Totals {
        &self.0[kind]
    }
}

impl IndexMut<usize> for KindTotals {
    #[inline]
    fn index_mut(&mut self, kind: usize) -> &mut Totals {
        &mut self.0[kind]
    }
}

/// The metadata of one chunk, for the engine and the policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Payload bytes of all chunks of the execution through and including this one.
    pub total_bytes: u64,
    /// Payload bytes of this chunk.
    pub length: u32,
    /// The kind of the chunk.
    pub kind: Kind,
    /// The key of the chunk, below 64. `conflate` keeps the newest chunk of each key.
    pub key: u8,
}

/// A run of chunks that a subscriber will not be given. It is reported in its place in the order.
///
/// ```
/// use streamdoor::{Gap, GapReason};
///
/// let reason = GapReason::Lag;
/// let gap = Gap { from_seq: 4, to_seq: 6, chunk_count: 3, byte_count: 90, reason };
/// assert_eq!(gap.to_seq + 1 - gap.from_seq, gap.chunk_count); // No filter skipped any.
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gap {
    /// The first chunk missed.
    pub from_seq: u64,
    /// The last chunk missed.
    pub to_seq: u64,
    /// Number of missed chunks of the subscriber's kinds.
    pub chunk_count: u64,
    /// Number of payload bytes of these chunks.
    pub byte_count: u64,
    /// The reason why they were missed.
    pub reason: GapReason,
}

/// The reason why chunks were missed.
///
/// ```
/// use streamdoor::GapReason;
///
/// assert_eq!(GapReason::Overtaken.to_string(), "overtaken");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GapReason {
    /// The subscriber's lag reached its limit, and its policy drops chunks.
    Lag,
    /// Newer chunks of the same keys took their place.
    Conflated,
    /// The ring had to overwrite the chunks before the subscriber read them.
    Overtaken,
    /// The chunks were gone before the subscriber attached.
    Late,
    /// The disk holds the chunks no longer as they were written. They were found damaged, and not
    /// given.
    Corrupt,
    /// The chunks were kept on disk, and were removed when their retention was over.
    Expired,
    /// The chunks were never written to the disk, because it was full or broken.
    Unwritten,
}

impl GapReason {
    /// Every reason.
    pub const ALL: [GapReason; 7] = [
        GapReason::Lag,
        GapReason::Conflated,
        GapReason::Overtaken,
        GapReason::Late,
        GapReason::Corrupt,
        GapReason::Expired,
        GapReason::Unwritten,
    ];

    /// The name on every wire.
    pub fn name(self) -> &'static str {
        match self {
            GapReason::Lag => "lag",
            GapReason::Conflated => "conflated",
            GapReason::Overtaken => "overtaken",
            GapReason::Late => "late",
            GapReason::Corrupt => "corrupt",
            GapReason::Expired => "expired",
            GapReason::Unwritten => "unwritten",
        }
    }
}

impl fmt::Display for GapReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_as_they_are_listed_and_found_by_name() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            assert_eq!(Kind::new(number as u8), Some(kind));
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!(Kind::new(Kind::ALL.len() as u8), None);
        assert!("".parse::<Kind>().is_err());
    }

    #[test]
    fn totals_of_a_filter_are_the_sum_of_its_kinds() {
        let mut totals = KindTotals::default();
        totals.count(Kind::Stdout, 3);
        totals.count(Kind::Stdout, 4);
        totals.count(Kind::Stderr, 5);
        assert_eq!(totals.of(Kinds::ALL), Totals { chunks: 3, bytes: 12 });
        let stdout = Kinds::NONE.with(Kind::Stdout);
        assert_eq!(totals.of(stdout), Totals { chunks: 2, bytes: 7 });
        assert_eq!(totals.of(Kinds::NONE), Totals::ZERO);
    }
}
