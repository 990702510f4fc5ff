//! The public description of a tool: its name, its arguments, its limits.

use serde_json::{Map, Value, json};

use crate::engine::{ProgressSource, Timeouts};
use crate::limits;
use crate::stream::Policy;
use crate::tool::complete::{Completion, complete};

/// The needs of a tool for its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Size of the ring in bytes. The smallest class of at least this size is used.
    pub ring_bytes: u32,
    /// The longest chunk that the ring has to hold, or 0.
    pub chunk_bytes: u32,
    /// The estimated number of payload bytes, if it is known before the start.
    pub estimated_bytes: Option<u64>,
}

impl Default for Need {
    fn default() -> Need {
        let ring_bytes = limits::RING_NEED_BYTES_DEFAULT;
        Need { ring_bytes, chunk_bytes: 0, estimated_bytes: None }
    }
}

/// The terms of subscribers that state none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscribeDefaults {
    /// The lag policy.
    pub policy: Policy,
    /// The limit of the lag in chunks. `None`: the default of the policy.
    pub limit_chunks: Option<u32>,
    /// The limit of the lag in bytes. `None`: only chunks count.
    pub limit_bytes: Option<u64>,
}

/// The use of a tool as an MCP task: started by one request, its result fetched by another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskSupport {
    /// The tool never runs as a task.
    Forbidden,
    /// The tool runs as a task if the client asks for one.
    #[default]
    Optional,
    /// The tool runs as a task if the client asks for one, or if the client supports tasks and the
    /// server decides. Otherwise it is an ordinary call. The questions of the tool are asked within
    /// the task.
    Preferred,
    /// The tool only runs as a task. Its questions are asked before the task exists.
    Required,
}

impl TaskSupport {
    /// The name in MCP, which has three values.
    pub fn name(self) -> &'static str {
        match self {
            TaskSupport::Forbidden => "forbidden",
            TaskSupport::Optional | TaskSupport::Preferred => "optional",
            TaskSupport::Required => "required",
        }
    }
}

/// The public description of a tool.
///
/// ```
/// use serde_json::json;
/// use streamdoor::ToolSpec;
/// let spec = ToolSpec {
///     arguments: json!({"type": "object", "properties": {"up_to": {"type": "integer"}}}),
///     ..ToolSpec::new("count", "Counts.")
/// };
/// assert_eq!(spec.name, "count");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// The name: at most 64 letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// The purpose of the tool, for a person or a model that chooses one.
    pub description: String,
    /// The name for display. Without a title, `name` is displayed.
    pub title: Option<String>,
    /// The JSON Schema (2020-12) of the arguments, which are an object.
    pub arguments: Value,
    /// The JSON Schema (2020-12) of the whole output, which is then one JSON value.
    pub output_schema: Option<Value>,
    /// The hints of MCP about its effects (`readOnlyHint`, `destructiveHint`, …): an object, or
    /// `null`.
    pub annotations: Value,
    /// The use of the tool as an MCP task.
    pub task_support: TaskSupport,
    /// True if an MCP client polls for the result. The server then closes the response stream once
    /// the tool runs, if the protocol version supports that.
    pub polls: bool,
    /// The needs for the ring, unless an execution derives others from its arguments.
    pub need: Need,
    /// The limits for silence and for the whole duration.
    pub timeouts: Timeouts,
    /// The terms of subscribers that state none.
    pub subscribers: SubscribeDefaults,
    /// The source of progress.
    pub progress: ProgressSource,
    /// True if each chunk is a part of an agent's run: an event by itself, as one JSON object.
    pub has_parts: bool,
    /// True if the chunks are the result of a call of another MCP server. Each text is a block of
    /// its own: it ends with a chunk without the flag `more`. A chunk of kind `json` is the
    /// structured content.
    pub is_relayed: bool,
}

impl ToolSpec {
    /// A tool that takes any object, with the defaults of `limits.rs`.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> ToolSpec {
        ToolSpec {
            name: name.into(),
            description: description.into(),
            title: None,
            arguments: json!({"type": "object"}),
            output_schema: None,
            annotations: Value::Null,
            task_support: TaskSupport::default(),
            polls: false,
            need: Need::default(),
            timeouts: Timeouts::default(),
            subscribers: SubscribeDefaults::default(),
            progress: ProgressSource::default(),
            has_parts: false,
            is_relayed: false,
        }
    }

    /// Returns values of `argument` that begin with `prefix` and fit the other arguments. A nested
    /// argument is written with dots. An empty `argument` completes the names of arguments.
    ///
    /// ```
    /// use serde_json::{Map, json};
    /// use streamdoor::ToolSpec;
    /// let mut spec = ToolSpec::new("paint", "Paints.");
    /// let color = json!({"enum": ["red", "blue"]});
    /// spec.arguments = json!({"type": "object", "properties": {"color": color}});
    /// assert_eq!(spec.complete("color", "b", &Map::new()).values, ["blue"]);
    /// ```
    pub fn complete(
        &self,
        argument: &str,
        prefix: &str,
        others: &Map<String, Value>,
    ) -> Completion {
        complete(&self.arguments, argument, prefix, others)
    }
}
