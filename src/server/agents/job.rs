//! The work of a run, built from a tool's arguments or by a Rust program.

use std::time::Duration;

use serde_json::Value;

use crate::agent::model::Effort;
use crate::agent::{
    AssistantMessage, CallMade, Config, Hooks, Message, NoHooks, Strategy, ToolDescription,
    ToolResult,
};
use crate::base::{Guarded, Principal};
use crate::limits;
use crate::reactor::Reactor;
use crate::server::agents::{Agent, ToolChoice};
use crate::server::{ServerShard, workers};
use crate::shard::ExecuteError;
use crate::tool::{AGENT, AgentCall, ArgumentError, Arguments, StartError, ToolSpec};

/// A run that has not started.
pub(in crate::server) struct Job {
    pub config: Config,
    pub conversation: Vec<Message>,
    pub hooks: Guarded<Box<dyn Hooks + Send>>,
    /// Number of levels of agents that the run may start below itself.
    pub depth: u32,
    /// True if only the model's text is published.
    pub is_plain: bool,
}
/// Returns the run that a call of this owner describes.
///
/// # Errors
/// [`ExecuteError::Start`] with the argument that is wrong.
pub(in crate::server) fn agent_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    call: &AgentCall,
    owner: Principal,
) -> Result<Agent, ExecuteError> {
    let job = match call {
        AgentCall::Run(arguments) => run_of(shard, arguments, owner),
        AgentCall::Generate(arguments) => generation_of(shard, arguments),
    };
    let job = job.map_err(|error| ExecuteError::Start(StartError::Argument(error)))?;
    Ok(Agent::Waiting(Box::new(job)))
}

fn run_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    arguments: &Value,
    owner: Principal,
) -> Result<Job, ArgumentError> {
    let mut given = Arguments::new(arguments)?;
    let mut config = config_of(shard, &mut given)?;
    let depth = given.number("depth", 0, 0..=limits::AGENT_DEPTH_MAX.into())? as u32;
    let tools = tool_choice(given.value("tools"))?;
    let tools = tools.as_ref().unwrap_or(&shard.guests.agents.settings.tools);
    config.tools = describe_tools(shard, tools, owner, depth)?;
    if let Some(name) = given.optional_text("strategy")? {
        let strategy: Result<Strategy, _> = name.parse();
        config.strategy = strategy.map_err(|e| ArgumentError::new("strategy", e.to_string()))?;
    }
    let calls_max = u64::from(limits::AGENT_CALLS_PER_STEP_MAX);
    let default = config.parallel_calls_max.into();
    config.parallel_calls_max = given.number("parallel", default, 1..=calls_max)? as u32;
    let steps_max = u64::from(limits::AGENT_STEPS_MAX);
    let default = config.steps_max.into();
    config.steps_max = given.number("max_steps", default, 1..=steps_max)? as u32;
    let tokens_max = given.number("max_total_tokens", 0, 0..=u64::MAX)?;
    config.tokens_max = (tokens_max > 0).then_some(tokens_max);
    let duration_max = limits::AGENT_DURATION_MAX.as_millis() as u64;
    let default = config.duration_max.as_millis() as u64;
    let duration_ms = given.number("timeout_ms", default, 1..=duration_max)?;
    config.duration_max = Duration::from_millis(duration_ms);
    config.accumulate = given.flag("accumulate")?;
    let conversation = conversation(&mut given)?;
    given.finish()?;
    checked(&config)?;
    Ok(Job { config, conversation, hooks: Guarded::new(Box::new(NoHooks)), depth, is_plain: false })
}

/// Returns a run of one turn without tools, of which only the text is published.
fn generation_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    arguments: &Value,
) -> Result<Job, ArgumentError> {
    let mut given = Arguments::new(arguments)?;
    let mut config = config_of(shard, &mut given)?;
    config.steps_max = 1;
    given.flag("stream")?; // Ignored: the output always streams.
    let conversation = vec![Message::User(given.text("prompt")?)];
    given.finish()?;
    checked(&config)?;
    Ok(Job {
        config,
        conversation,
        hooks: Guarded::new(Box::new(NoHooks)),
        depth: 0,
        is_plain: true,
    })
}

/// Returns the config that both tools share: the model and its sampling options.
fn config_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    given: &mut Arguments,
) -> Result<Config, ArgumentError> {
    let settings = &shard.guests.agents.settings;
    let name = given.optional_text("model")?;
    let Some(model) = settings.model(name.as_deref()) else {
        let known: Vec<&str> = settings.models.iter().map(|model| &*model.name).collect();
        let problem = match known.is_empty() {
            true => "the server has no models".to_owned(),
            false => format!("is not one of {}", known.join(", ")),
        };
        return Err(ArgumentError::new("model", problem));
    };
    // `agent_id` is set from the execution's id when the run starts.
    let mut config = Config::new("", model.endpoint.clone());
    config.system = given.optional_text("system")?;
    let tokens = given.number("max_tokens", 0, 0..=u32::MAX.into())? as u32;
    config.max_tokens = (tokens > 0).then_some(tokens);
    config.temperature = match given.value("temperature") {
        None | Some(Value::Null) => None,
        Some(value) => Some(value.as_f64().ok_or_else(|| {
            ArgumentError::new("temperature", format!("must be a number, not {value}"))
        })?),
    };
    if let Some(name) = given.optional_text("reasoning_effort")? {
        config.reasoning_effort = Some(match name.as_str() {
            "low" => Effort::Low,
            "medium" => Effort::Medium,
            "high" => Effort::High,
            _ => {
                return Err(ArgumentError::new("reasoning_effort", "is not low, medium or high"));
            }
        });
    }
    Ok(config)
}

/// Returns the descriptions, for the model, of the chosen tools that this owner may call.
fn describe_tools<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    choice: &ToolChoice,
    owner: Principal,
    depth: u32,
) -> Result<Vec<ToolDescription>, ArgumentError> {
    let described = |spec: &ToolSpec| ToolDescription {
        name: spec.name.clone(),
        description: spec.description.clone(),
        schema: spec.arguments.clone(),
    };
    match choice {
        ToolChoice::None => Ok(Vec::new()),
        ToolChoice::All => {
            let all = workers::tool_specs(shard, owner).filter(|spec| spec.name != AGENT);
            Ok(all.map(|spec| described(spec)).collect())
        }
        ToolChoice::These(names) => names
            .iter()
            .map(|name| {
                if name == AGENT && depth == 0 {
                    let problem = "has `agent`, which needs a `depth` of at least 1";
                    return Err(ArgumentError::new("tools", problem));
                }
                let found = workers::tool_specs(shard, owner).find(|spec| spec.name == *name);
                let problem = || format!("unknown tool `{name}`");
                let spec = found.ok_or_else(|| ArgumentError::new("tools", problem()))?;
                Ok(described(spec))
            })
            .collect(),
    }
}

/// Parses the argument `tools`: `"all"` or a list of names.
fn tool_choice(value: Option<Value>) -> Result<Option<ToolChoice>, ArgumentError> {
    let wrong = || ArgumentError::new("tools", "must be \"all\" or a list of names");
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(word)) if word == "all" => Ok(Some(ToolChoice::All)),
        Some(Value::Array(names)) => {
            let name = |name: Value| match name {
                Value::String(name) => Ok(name),
                _ => Err(wrong()),
            };
            let names: Result<Vec<String>, _> = names.into_iter().map(name).collect();
            Ok(Some(ToolChoice::These(names?)))
        }
        Some(_) => Err(wrong()),
    }
}

/// Returns the messages so far, with the task as the last one.
fn conversation(given: &mut Arguments) -> Result<Vec<Message>, ArgumentError> {
    let mut conversation = match given.value("messages") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(messages)) => {
            messages.iter().map(message).collect::<Result<Vec<Message>, _>>()?
        }
        Some(_) => return Err(ArgumentError::new("messages", "must be a list")),
    };
    if conversation.len() > limits::AGENT_MESSAGES_MAX {
        let problem = format!("has more than {} messages", limits::AGENT_MESSAGES_MAX);
        return Err(ArgumentError::new("messages", problem));
    }
    conversation.extend(given.optional_text("task")?.map(Message::User));
    check_results(&conversation)?;
    match conversation.last() {
        Some(Message::User(_) | Message::Tool(_)) => Ok(conversation),
        Some(_) => {
            Err(ArgumentError::new("messages", "must end with a message of the role user or tool"))
        }
        None => Err(ArgumentError::new("task", "is missing, and `messages` is empty")),
    }
}

/// Checks that each call is followed directly by its result, and each result has a call. No model
/// accepts anything else.
fn check_results(conversation: &[Message]) -> Result<(), ArgumentError> {
    let wrong = |problem: String| Err(ArgumentError::new("messages", problem));
    let mut open: Vec<&str> = Vec::new();
    for message in conversation {
        match message {
            Message::Tool(result) => {
                let Some(at) = open.iter().position(|id| *id == result.call_id) else {
                    let id = &result.call_id;
                    return wrong(format!("have a result of `{id}` without a call before it"));
                };
                open.remove(at);
            }
            _ if !open.is_empty() => break,
            Message::Assistant(said) => open.extend(said.calls.iter().map(|call| &*call.id)),
            Message::User(_) | Message::System(_) => {}
        }
    }
    match open.first() {
        Some(id) => wrong(format!("have no result directly after the call `{id}`")),
        None => Ok(()),
    }
}

fn message(value: &Value) -> Result<Message, ArgumentError> {
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    let wrong = |problem: &str| Err(ArgumentError::new("messages", problem));
    let content = text("content").unwrap_or_default();
    let (calls, role) = (calls(&value["tool_calls"])?, text("role"));
    if !calls.is_empty() && role.as_deref() != Some("assistant") {
        return wrong("have tool calls in a message that is not the assistant's");
    }
    match role.as_deref() {
        Some("tool") => match text("tool_call_id").filter(|id| !id.is_empty()) {
            Some(call_id) => {
                let is_error = value["is_error"].as_bool().unwrap_or_default();
                Ok(Message::Tool(ToolResult { call_id, output: content, is_error }))
            }
            None => wrong("must name in `tool_call_id` the call of a result"),
        },
        _ if content.is_empty() && calls.is_empty() => wrong("must have a text as `content`"),
        Some("user") => Ok(Message::User(content)),
        Some("system") => Ok(Message::System(content)),
        Some("assistant") => {
            Ok(Message::Assistant(AssistantMessage { text: content, calls, ..<_>::default() }))
        }
        _ => wrong("must be of the role user, assistant, system or tool"),
    }
}

/// Parses the calls of one message.
fn calls(value: &Value) -> Result<Vec<CallMade>, ArgumentError> {
    let wrong = |problem: &str| ArgumentError::new("messages", problem.to_owned());
    let calls = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(calls) => calls,
        _ => return Err(wrong("must have a list as `tool_calls`")),
    };
    if calls.len() > limits::AGENT_CALLS_PER_STEP_MAX as usize {
        let calls_max = limits::AGENT_CALLS_PER_STEP_MAX;
        return Err(wrong(&format!("have more than {calls_max} tool calls in one message")));
    }
    let call = |call: &Value| {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let function = &call["function"];
        let (id, name) = (text(&call["id"])?, text(&function["name"])?);
        let arguments = text(&function["arguments"])?;
        let fits = (1..=limits::MODEL_NAME_BYTES_MAX).contains(&id.len()) && !name.is_empty();
        fits.then_some(CallMade { id, name, arguments, extra: None })
    };
    let calls: Option<Vec<CallMade>> = calls.iter().map(call).collect();
    calls.ok_or_else(|| {
        wrong("must have `id`, `function.name` and `function.arguments` in each of `tool_calls`")
    })
}

pub(in crate::server) fn checked(config: &Config) -> Result<(), ArgumentError> {
    config.check().map_err(|error| ArgumentError::new("arguments", error.to_string()))
}
