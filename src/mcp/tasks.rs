//! Tasks: calls whose result is fetched later. In the handshake era they are a part of the
//! protocol, in the stateless era an extension, in other words.

use serde_json::{Map, Value, json};

use super::client::TASKS_EXTENSION;
use super::{Context, Era, Fault, Version};
use crate::limits;
use crate::tool::TaskSupport;
use crate::trace::rfc3339;

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// It runs.
    Working,
    /// It has asked something.
    InputRequired,
    /// Its result is there.
    Completed,
    /// There is none.
    Failed,
    /// Somebody has stopped it.
    Cancelled,
}

impl TaskState {
    /// As it is spelled.
    pub fn name(self) -> &'static str {
        match self {
            TaskState::Working => "working",
            TaskState::InputRequired => "input_required",
            TaskState::Completed => "completed",
            TaskState::Failed => "failed",
            TaskState::Cancelled => "cancelled",
        }
    }

    /// It will not change any more.
    pub fn is_terminal(self) -> bool {
        matches!(self, TaskState::Completed | TaskState::Failed | TaskState::Cancelled)
    }

    /// Of a task whose call has a result: a tool that could not do its work has failed in the one
    /// era (A47), and is complete in the other (B38).
    pub fn of_result(version: Version, is_error: bool) -> TaskState {
        match version.era() {
            Era::Handshake if is_error => TaskState::Failed,
            Era::Handshake | Era::Stateless => TaskState::Completed,
        }
    }

    /// May it become `next` (A47)?
    pub fn may_become(self, next: TaskState) -> bool {
        !self.is_terminal() && (self != next)
    }
}

/// What there is to say of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task<'a> {
    /// What it is called by: nobody can guess it.
    pub id: &'a str,
    /// Where it is.
    pub state: TaskState,
    /// More of that, for people.
    pub message: Option<&'a str>,
    /// When it began, in µs since 1970.
    pub created_us: u64,
    /// When its state changed last, in µs since 1970.
    pub updated_us: u64,
    /// How long it is kept from its beginning; `None`: for ever.
    pub ttl_ms: Option<u64>,
}

/// What a task of the stateless era has beside its state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Detail<'a> {
    /// Nothing.
    None,
    /// What it has asked: [`super::questions::requests`].
    Questions(&'a Value),
    /// Its result.
    Result(&'a Value),
    /// Why there is none.
    Fault(&'a Fault),
}

impl Task<'_> {
    /// The members of the document, in the words of this version.
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

    /// The same with what a task of the stateless era has beside its state.
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

/// How a call is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Its answer is its result.
    Direct,
    /// Its answer is a task.
    Task,
}

/// How a call is to be run, by what its tool allows and its client wants.
///
/// In the stateless era the server chooses, among what the client knows: a tool that only may be a
/// task is none, because then nothing of it could be seen while it runs.
///
/// # Errors
/// Both cannot be had (A38, B37).
pub fn placement(context: &Context, support: TaskSupport) -> Result<Placement, Fault> {
    if context.version.era() == Era::Stateless {
        return match (support, context.client.tasks) {
            (TaskSupport::Required, false) => {
                let text = format!("this tool needs the extension {TASKS_EXTENSION}");
                Err(Fault::missing_capability(text, required_capability()))
            }
            (TaskSupport::Required | TaskSupport::Preferred, true) => Ok(Placement::Task),
            _ => Ok(Placement::Direct),
        };
    }
    let has_tasks = context.version == Version::V2025_11_25;
    let refused = |text: &str| Err(Fault::new(super::codes::METHOD_NOT_FOUND, text));
    match (support, context.task.is_some()) {
        (TaskSupport::Required, false) if has_tasks => refused("this tool runs as a task only"),
        (TaskSupport::Forbidden, true) => refused("this tool does not run as a task"),
        (_, true) => Ok(Placement::Task),
        (_, false) => Ok(Placement::Direct),
    }
}

/// What who wants to use tasks has to declare.
pub fn required_capability() -> Value {
    json!({ "extensions": { TASKS_EXTENSION: {} } })
}

/// How long a task is kept: what its client wishes, within limits.
pub fn ttl_ms(context: &Context) -> u64 {
    let default_ms = limits::MCP_TASK_TTL_DEFAULT.as_millis() as u64;
    let wished = context.task.and_then(|wish| wish.ttl_ms).unwrap_or(default_ms);
    wished.min(limits::MCP_TASK_TTL_MAX.as_millis() as u64)
}
