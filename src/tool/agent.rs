//! Runs of models as tools: the contents of one call. The shard hosts these runs, between its
//! sockets and its other tools.

use serde_json::Value;

/// The name of the tool that runs an agent: a model that calls tools, turn after turn.
pub const AGENT: &str = "agent";
/// The name of the tool that lets a model generate one reply.
pub const GENERATE: &str = "llm_generate";

/// A call of one of them, with arguments that fit the tool's schema.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentCall {
    /// A call of [`AGENT`]. Its chunks are the parts of the run.
    Run(Value),
    /// A call of [`GENERATE`]. Its chunks are text.
    Generate(Value),
}
