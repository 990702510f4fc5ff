//! The terms of a subscription: its policy, its lag limit and the kinds that it wants.

use std::fmt;
use std::str::FromStr;

use crate::limits;
use crate::stream::{Kinds, Totals};

/// The consequence when a subscriber's lag reaches its limit.
///
/// ```
/// use streamdoor::Policy;
///
/// assert_eq!("drop_oldest".parse(), Ok(Policy::DropOldest));
/// assert_eq!(Policy::default(), Policy::Block);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The subscriber is owed `limit` chunks from its cursor. After these, one gap covers
    /// everything up to the head at that moment, and the subscriber continues live.
    Drop,
    /// The subscriber is owed the newest `limit` chunks. The chunks before them are one gap in
    /// front.
    DropOldest,
    /// The same as [`Policy::Drop`], with a larger default limit.
    Buffer,
    /// The subscriber is owed everything, and the producer waits for it. It is the default, so that
    /// nothing is lost unless somebody chooses it.
    #[default]
    Block,
    /// The subscriber is owed the newest chunk of each key. The skipped chunks are gaps.
    Conflate,
    /// The subscriber is owed everything. If it lags too far, it is detached.
    Disconnect,
    /// The subscriber is owed everything that the ring or the disk holds, and nobody waits for it.
    /// Chunks that neither of them holds are gaps. On an execution that is not kept on disk only
    /// the ring holds chunks.
    Replay,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 7] = [
        Policy::Drop,
        Policy::DropOldest,
        Policy::Buffer,
        Policy::Block,
        Policy::Conflate,
        Policy::Disconnect,
        Policy::Replay,
    ];

    /// The name on every wire and in every option.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Drop => "drop",
            Policy::DropOldest => "drop_oldest",
            Policy::Buffer => "buffer",
            Policy::Block => "block",
            Policy::Conflate => "conflate",
            Policy::Disconnect => "disconnect",
            Policy::Replay => "replay",
        }
    }

    /// Returns the limit for a subscriber that names none, in a ring that holds `ring_chunks`.
    pub fn default_limit(self, ring_chunks: u32) -> LagLimit {
        let chunks = match self {
            Policy::Drop | Policy::DropOldest => limits::DROP_LIMIT_CHUNKS,
            Policy::Buffer => limits::BUFFER_LIMIT_CHUNKS,
            Policy::Disconnect => limits::DISCONNECT_LIMIT_CHUNKS,
            Policy::Block | Policy::Conflate | Policy::Replay => ring_chunks,
        };
        LagLimit { chunks: chunks.min(ring_chunks), bytes: u64::MAX }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// The error for a name that no policy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("unknown policy; known are:")?;
        Policy::ALL.iter().try_for_each(|policy| write!(out, " {policy}"))
    }
}

impl std::error::Error for UnknownPolicy {}

impl FromStr for Policy {
    type Err = UnknownPolicy;
    fn from_str(text: &str) -> Result<Policy, UnknownPolicy> {
        Policy::ALL.into_iter().find(|policy| policy.name() == text).ok_or(UnknownPolicy)
    }
}

/// The lag limit of a subscriber, in chunks and in bytes, whichever is reached first. One chunk is
/// always within the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LagLimit {
    /// Number of chunks, at least 1.
    pub chunks: u32,
    /// Number of payload bytes; `u64::MAX` where only chunks count.
    pub bytes: u64,
}

impl LagLimit {
    #[inline]
    pub(crate) fn holds(self, lag: Totals) -> bool {
        lag.chunks <= u64::from(self.chunks) && (lag.bytes <= self.bytes || lag.chunks <= 1)
    }
}

/// The terms of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The policy for a subscriber that lags.
    pub policy: Policy,
    /// The lag limit.
    pub limit: LagLimit,
    /// The kinds of chunks that the subscriber wants.
    pub kinds: Kinds,
}
