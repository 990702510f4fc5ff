//! Tasks: calls whose result is fetched later. They are a part of the protocol in the handshake
//! era. In the stateless era they are an extension, with a different spelling.

use serde_json::{Map, Value, json};

use super::client::TASKS_EXTENSION;
use super::{Context, Era, McpFault, Version};
use crate::limits;
use crate::tool::TaskSupport;
use crate::trace::rfc3339;

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// The call is running.
    Working,
    /// The call has asked a question.
    InputRequired,
    /// The result is available.
    Completed,
    /// The call has failed.
    Failed,
    /// The task was cancelled.
    Cancelled,
}

impl TaskState {
    /// The name of the state in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            TaskState::Working => "working",
            TaskState::InputRequired => "input_required",
            TaskState::Completed => "completed",
            TaskState::Failed => "failed",
            TaskState::Cancelled => "cancelled",
        }
    }

    /// True if the state cannot change any more.
    pub fn is_terminal(self) -> bool {
        matches!(self, TaskState::Completed | TaskState::Failed | TaskState::Cancelled)
    }

    /// The state of a task whose call has a result. If the tool reports an error, the task has
    /// failed in the handshake era (A47). It is completed in the stateless era (B38).
    pub fn of_result(version: Version, is_error: bool) -> TaskState {
        match version.era() {
            Era::Handshake if is_error => TaskState::Failed,
            Era::Handshake | Era::Stateless => TaskState::Completed,
        }
    }

    /// True if the state may change to `next` (A47).
    pub fn may_become(self, next: TaskState) -> bool {
        !self.is_terminal() && (self != next)
    }
}

/// The data of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task<'a> {
    /// The id, which cannot be guessed.
    pub id: &'a str,
    /// The state.
    pub state: TaskState,
    /// A text for people about the state.
    pub message: Option<&'a str>,
    /// The time of its creation, in µs since 1970.
    pub created_us: u64,
    /// The time of the last change of its state, in µs since 1970.
    pub updated_us: u64,
    /// The time from its creation during which it is kept, in ms; `None` is forever.
    pub ttl_ms: Option<u64>,
}

/// The data that a task of the stateless era holds in addition to its state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Detail<'a> {
    /// No data.
    None,
    /// The open questions, as `questions::requests` returns them.
    Questions(&'a Value),
    /// The result of the call.
    Result(&'a Value),
    /// The error of the call.
    Fault(&'a McpFault),
}

impl Task<'_> {
    /// The members of the document in this version.
    pub fn to_json(&self, version: Version) -> Map<String, Value> {
        let mut document = Map::new();
        let mut add = |name: &str, value: Value| document.insert(name.to_owned(), value);
        add("taskId", self.id.into());
        add("status", self.state.name().into());
        if let Some(message) = self.message {
            add("statusMessage", message.into());
        }
        add("createdAt", rfc3339(self.created_us).into());
        add("lastUpdatedAt", rfc3339(self.updated_us).into());
        let (ttl, poll) = match version.era() {
            Era::Handshake => ("ttl", "pollInterval"),
            Era::Stateless => ("ttlMs", "pollIntervalMs"),
        };
        add(ttl, self.ttl_ms.into());
        if !self.state.is_terminal() {
            add(poll, (limits::MCP_TASK_POLL.as_millis() as u64).into());
        }
        document
    }

    /// The members of the document, with `detail` in the stateless era.
    pub fn to_json_with(&self, version: Version, detail: Detail<'_>) -> Map<String, Value> {
        let mut document = self.to_json(version);
        if version.era() == Era::Stateless {
            let (name, value) = match detail {
                Detail::None => return document,
                Detail::Questions(questions) => ("inputRequests", questions.clone()),
                Detail::Result(result) => ("result", result.clone()),
                Detail::Fault(fault) => ("error", fault.to_json()),
            };
            document.insert(name.to_owned(), value);
        }
        document
    }
}

/// The way in which a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The reply to the call is its result.
    Direct,
    /// The reply to the call is a task.
    Task,
}

/// Decides how a call runs, from the tool's support for tasks and the client's request.
///
/// In the stateless era the server decides, within the capabilities of the client. A tool with
/// optional support runs directly, because a task would hide its output while it runs.
///
/// # Errors
/// The tool's support and the client's request are incompatible (A38, B37).
pub fn placement(context: &Context, support: TaskSupport) -> Result<Placement, McpFault> {
    if context.version.era() == Era::Stateless {
        return match (support, context.client.tasks) {
            (TaskSupport::Required, false) => {
                let text = format!("this tool needs the extension {TASKS_EXTENSION}");
                Err(McpFault::missing_capability(text, required_capability()))
            }
            (TaskSupport::Required | TaskSupport::Preferred, true) => Ok(Placement::Task),
            _ => Ok(Placement::Direct),
        };
    }
    let has_tasks = context.version == Version::V2025_11_25;
    let refused = |text: &str| Err(McpFault::new(super::codes::METHOD_NOT_FOUND, text));
    match (support, context.task.is_some()) {
        (TaskSupport::Required, false) if has_tasks => refused("this tool runs only as a task"),
        (TaskSupport::Forbidden, true) => refused("this tool does not run as a task"),
        (_, true) => Ok(Placement::Task),
        (_, false) => Ok(Placement::Direct),
    }
}

/// The capability that a client has to declare before it can use tasks.
pub fn required_capability() -> Value {
    json!({ "extensions": { TASKS_EXTENSION: {} } })
}

/// The time in ms for which a task is kept: the client's request, within limits.
pub fn ttl_ms(context: &Context) -> u64 {
    let default_ms = limits::MCP_TASK_TTL_DEFAULT.as_millis() as u64;
    let wished = context.task.and_then(|wish| wish.ttl_ms).unwrap_or(default_ms);
    wished.min(limits::MCP_TASK_TTL_MAX.as_millis() as u64)
}
