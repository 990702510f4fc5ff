//! The tools that are runs of a model, as everybody is told of them: with the models that there
//! are.

use serde_json::{Value, json};

use super::AgentSettings;
use crate::endpoint::{agent_schema, generate_schema};
use crate::engine::{Policy, Timeouts};
use crate::limits;
use crate::tool::{
    AGENT, AgentCall, GENERATE, Need, SpecError, SubscribeDefaults, ToolSpec, Tools, Work,
};

/// Adds both tools.
fn insert(tools: &mut Tools, settings: &AgentSettings) -> Result<(), SpecError> {
    tools.insert(agent(settings), |arguments, need| {
        Ok((Work::Agent(Box::new(AgentCall::Run(arguments.clone()))), need))
    })?;
    tools.insert(generate(settings), |arguments, need| {
        Ok((Work::Agent(Box::new(AgentCall::Generate(arguments.clone()))), need))
    })
}

/// With a model there are its tools.
pub(in crate::shard) fn add_to(tools: &mut Tools, settings: &AgentSettings) {
    if !settings.models.is_empty() {
        insert(tools, settings).expect("ours are right");
    }
}

/// An agent, as a tool.
pub(super) fn agent(settings: &AgentSettings) -> ToolSpec {
    let text = "Has a model work on a task: it thinks, calls tools, and goes on with what they \
                give, until it is done.";
    ToolSpec {
        title: Some("Agent".to_owned()),
        arguments: with_models(agent_schema(), settings),
        has_parts: true,
        ..hosted(AGENT, text)
    }
}

fn generate(settings: &AgentSettings) -> ToolSpec {
    let text = "Has a model answer a prompt, and streams its text.";
    ToolSpec {
        title: Some("Generate text".to_owned()),
        arguments: with_models(generate_schema(), settings),
        ..hosted(GENERATE, text)
    }
}

fn hosted(name: &str, description: &str) -> ToolSpec {
    ToolSpec {
        annotations: json!({"openWorldHint": true}),
        need: Need {
            ring_bytes: limits::AGENT_RING_BYTES,
            chunk_bytes: limits::AGENT_PART_BYTES_MIN as u32,
            ..Need::default()
        },
        // Its first word comes at once; after that its own limits are closer.
        timeouts: Timeouts { inactivity: Some(limits::AGENT_INACTIVITY), ..Timeouts::default() },
        // A text with holes is no text.
        subscribers: SubscribeDefaults { policy: Policy::Block, ..SubscribeDefaults::default() },
        ..ToolSpec::new(name, description)
    }
}

/// Which models there are is said where one is asked for.
fn with_models(mut schema: Value, settings: &AgentSettings) -> Value {
    let names: Vec<&str> = settings.models.iter().map(|model| model.name.as_str()).collect();
    if !names.is_empty() {
        schema["properties"]["model"]["enum"] = names.into();
    }
    schema
}
