//! One request as a part of a distributed trace.
//!
//! Spans are plain values. `shard` creates them, `wire::otlp` encodes them, and an exporter sends
//! them.

/// A request that was answered, or given up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The trace that the request is a part of; never 0.
    pub trace_id: u128,
    /// The id of this span; never 0.
    pub span_id: u64,
    /// The parent span, if the client has named one.
    pub parent_id: Option<u64>,
    /// The time of the request, in microseconds since 1970.
    pub begun_us: u64,
    /// The time of the answer, in microseconds since 1970.
    pub ended_us: u64,
    /// The method of the request, for example `tools/call`.
    pub method: &'static str,
    /// The tool or the prompt that was requested.
    pub target: Option<String>,
    /// The client's id of the request.
    pub request: String,
    /// The session of the request.
    pub session: Option<String>,
    /// The version of the protocol.
    pub version: &'static str,
    /// The transport of the request: `pipe` or `tcp`.
    pub transport: &'static str,
    /// The kind of failure: an error's code, `tool_error`, or `cancelled`.
    pub error: Option<String>,
}
