//! Runs of models as tools: what one of their calls takes along. The shard hosts them, between its
//! sockets and its other tools.

use serde_json::Value;

/// What the tool is called that runs an agent: a model which calls tools, turn after turn.
pub const AGENT: &str = "agent";
/// What the tool is called that has a model say something, once.
pub const GENERATE: &str = "llm_generate";

/// A call of one of them, with its arguments, which fit the tool's schema.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentCall {
    /// Of [`AGENT`]. Its chunks are the run's parts.
    Run(Value),
    /// Of [`GENERATE`]. Its chunks are text.
    Generate(Value),
}
