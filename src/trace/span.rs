//! One request as a part of a trace, for whoever follows it through several programs.
//!
//! Plain values: `wire::otlp` spells them, `shard` makes them, and somebody else sends them away.

/// A request that was answered, or given up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The trace that it is a part of; never 0.
    pub trace_id: u128,
    /// Its own name there; never 0.
    pub span_id: u64,
    /// What it was a part of, if the client has said so.
    pub parent_id: Option<u64>,
    /// When it came, and when it was answered: microseconds since 1970.
    pub begun_us: u64,
    /// See `begun_us`.
    pub ended_us: u64,
    /// What was asked: `tools/call`.
    pub method: &'static str,
    /// The tool that was called, or the prompt that was wanted.
    pub target: Option<String>,
    /// The client's id of the request.
    pub request: String,
    /// The session that it was asked in.
    pub session: Option<String>,
    /// The version of the protocol.
    pub version: &'static str,
    /// What it came over: `pipe` or `tcp`.
    pub transport: &'static str,
    /// What went wrong, in a word: an error's code, `tool_error`, `cancelled`.
    pub error: Option<String>,
}
