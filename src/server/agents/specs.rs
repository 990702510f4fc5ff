//! The descriptions of the tools `agent` and `llm_generate`, which list the configured models.

use serde_json::{Value, json};

use crate::endpoint::{agent_schema, generate_schema};
use crate::engine::Timeouts;
use crate::limits;
use crate::server::agents::AgentSettings;
use crate::stream::Policy;
use crate::tool::{
    AGENT, AgentCall, GENERATE, Need, SpecError, SubscribeDefaults, ToolSpec, Tools, Work,
};

/// Adds both tools to `tools`.
fn insert(tools: &mut Tools, settings: &AgentSettings) -> Result<(), SpecError> {
    tools.insert(agent(settings), |arguments, need| {
        Ok((Work::Agent(Box::new(AgentCall::Run(arguments.clone()))), need))
    })?;
    tools.insert(generate(settings), |arguments, need| {
        Ok((Work::Agent(Box::new(AgentCall::Generate(arguments.clone()))), need))
    })
}

/// Adds both tools if at least one model is configured.
pub(in crate::server) fn add_to(tools: &mut Tools, settings: &AgentSettings) {
    if !settings.models.is_empty() {
        insert(tools, settings).expect("both specs are valid");
    }
}

/// Returns the description of the tool `agent`.
pub(in crate::server) fn agent(settings: &AgentSettings) -> ToolSpec {
    let text = "Runs a model on a task. The model thinks, calls tools and uses their results \
                until the task is done.";
    ToolSpec {
        title: Some("Agent".to_owned()),
        arguments: with_models(agent_schema(), settings),
        has_parts: true,
        ..hosted(AGENT, text)
    }
}

fn generate(settings: &AgentSettings) -> ToolSpec {
    let text = "Runs a model on a prompt and streams its text.";
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
        // The first part comes at once. After that, the run's own limits are shorter.
        timeouts: Timeouts { inactivity: Some(limits::AGENT_INACTIVITY), ..Timeouts::default() },
        // A text with gaps is useless.
        subscribers: SubscribeDefaults { policy: Policy::Block, ..SubscribeDefaults::default() },
        ..ToolSpec::new(name, description)
    }
}

/// Lists the models as the values that the property `model` of the schema accepts.
fn with_models(mut schema: Value, settings: &AgentSettings) -> Value {
    let names: Vec<&str> = settings.models.iter().map(|model| model.name.as_str()).collect();
    if !names.is_empty() {
        schema["properties"]["model"]["enum"] = names.into();
    }
    schema
}
