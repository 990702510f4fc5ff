//! What the engine knows of a chunk: numbers, never bytes.
//!
//! Kinds are a closed set, because running totals are kept for each of them: with those, a gap can
//! be counted exactly after the fact, filter and all, although the chunks are gone.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;

use crate::limits::KINDS_MAX;

/// What a chunk is. A subscriber can ask for some kinds only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A tool's plain result.
    #[default]
    Output = 0,
    /// A command's standard output.
    Stdout = 1,
    /// A command's standard error.
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
    /// Whatever the tool and its subscribers agree upon.
    Custom = 11,
    /// A part of an answer that is more than text: a content block of MCP, as JSON.
    Content = 12,
}

impl Kind {
    /// Every kind, by number.
    pub const ALL: [Kind; 13] = [
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
    ];

    /// The kind of number `raw`, which may come from another process.
    #[inline]
    pub fn new(raw: u8) -> Option<Kind> {
        Kind::ALL.get(raw as usize).copied()
    }

    /// The name, as every wire spells it.
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
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// No kind has that name.
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

/// A set of kinds: a subscriber's filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kinds(u16);

impl Kinds {
    /// No filter.
    pub const ALL: Kinds = Kinds(u16::MAX);
    /// Nothing at all. A start for [`Kinds::with`].
    pub const NONE: Kinds = Kinds(0);

    /// This set and `kind`.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Kinds {
        Kinds(self.0 | 1 << kind as u16)
    }

    /// Is `kind` in the set?
    #[inline]
    pub const fn contains(self, kind: Kind) -> bool {
        self.0 >> kind as u16 & 1 == 1
    }

    /// Does nothing get filtered out?
    #[inline]
    pub const fn is_all(self) -> bool {
        self.0 == u16::MAX
    }

    /// Does everything get filtered out?
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Totals {
    /// How many chunks.
    pub chunks: u64,
    /// How many payload bytes.
    pub bytes: u64,
}

impl Totals {
    /// Nothing.
    pub const ZERO: Totals = Totals { chunks: 0, bytes: 0 };

    /// Counts one more chunk of `length` bytes.
    #[inline]
    pub fn count(&mut self, length: u32) {
        self.chunks = self.chunks.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(u64::from(length));
    }
}

// Wrapping on purpose: a reader in another thread computes with numbers that may be torn, and
// throws the result away when it finds out. Where the numbers are our own, `audit` compares them.
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KindTotals([Totals; KINDS_MAX]);

impl KindTotals {
    /// From the sums of the kinds by number, as a reader of a ring finds them.
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

    /// The sum over `kinds`.
    pub fn of(&self, kinds: Kinds) -> Totals {
        Kind::ALL
            .into_iter()
            .filter(|&kind| kinds.contains(kind))
            .fold(Totals::ZERO, |sum, kind| sum + self.0[kind as usize])
    }

    /// The sums, by the kinds' numbers.
    pub fn each(&self) -> &[Totals; KINDS_MAX] {
        &self.0
    }
}

/// One chunk as the engine and the policies see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Payload bytes of the execution through and including this chunk.
    pub total_bytes: u64,
    /// Payload bytes of this chunk.
    pub length: u32,
    /// What it is.
    pub kind: Kind,
    /// What it is about: `conflate` keeps the newest chunk of each key. Below 64.
    pub key: u8,
}

/// A run of chunks that a subscriber will not be given, in its place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gap {
    /// The first chunk missed.
    pub from_seq: u64,
    /// The last chunk missed.
    pub to_seq: u64,
    /// How many chunks of the subscriber's kinds that is.
    pub chunk_count: u64,
    /// How many payload bytes they had.
    pub byte_count: u64,
    /// Why.
    pub reason: GapReason,
}

/// Why chunks were missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GapReason {
    /// The subscriber's lag reached its limit, and its policy gives chunks up.
    Lag,
    /// A newer chunk of the same key took their place.
    Conflated,
    /// The ring had to overwrite them before the subscriber came for them.
    Overtaken,
    /// They were gone before the subscriber came.
    Late,
}

impl GapReason {
    /// The name, as every wire spells it.
    pub fn name(self) -> &'static str {
        match self {
            GapReason::Lag => "lag",
            GapReason::Conflated => "conflated",
            GapReason::Overtaken => "overtaken",
            GapReason::Late => "late",
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
