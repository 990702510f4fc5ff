//! What everybody may know of a tool before it runs: its name, what it takes, how long it may take.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::engine::{Policy, ProgressSource, Timeouts};
use crate::limits;
use crate::tool::complete::{Completion, complete};

/// What a tool needs of its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Bytes of the window; the smallest class that has them is taken.
    pub ring_bytes: u32,
    /// The longest chunk that must fit, or 0.
    pub chunk_bytes: u32,
    /// About how many payload bytes there will be in all, if that can be known before it starts.
    pub estimated_bytes: Option<u64>,
}

impl Default for Need {
    fn default() -> Need {
        let ring_bytes = limits::RING_NEED_BYTES_DEFAULT;
        Need { ring_bytes, chunk_bytes: 0, estimated_bytes: None }
    }
}

/// What a subscriber of a tool gets that does not say what it wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscribeDefaults {
    /// What happens when it lags.
    pub policy: Policy,
    /// How far it may lag, in chunks; `None`: what the policy says.
    pub limit_chunks: Option<u32>,
    /// How far it may lag, in bytes; `None`: only chunks count.
    pub limit_bytes: Option<u64>,
}

/// May a tool be run as a task of MCP: called now, its result fetched later?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskSupport {
    /// Never.
    Forbidden,
    /// If the caller asks for it.
    #[default]
    Optional,
    /// Wherever the caller can deal with tasks; elsewhere it is an ordinary call. What the tool
    /// asks, the task asks.
    Preferred,
    /// It is not run in any other way. What the tool asks is asked before there is a task.
    Required,
}

impl TaskSupport {
    /// As MCP spells it, which knows three.
    pub fn name(self) -> &'static str {
        match self {
            TaskSupport::Forbidden => "forbidden",
            TaskSupport::Optional | TaskSupport::Preferred => "optional",
            TaskSupport::Required => "required",
        }
    }
}

/// What everybody may know of a tool.
///
/// ```
/// use serde_json::json;
/// use streamdoor::tool::ToolSpec;
/// let spec = ToolSpec {
///     arguments: json!({"type": "object", "properties": {"up_to": {"type": "integer"}}}),
///     ..ToolSpec::new("count", "Counts.")
/// };
/// assert_eq!(spec.name, "count");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Letters, digits, `_`, `-` and `.`, at most 64 of them.
    pub name: String,
    /// What it does, for a reader who has to choose: a person or a model.
    pub description: String,
    /// What it is called where people read; without one its name.
    pub title: Option<String>,
    /// A JSON Schema (2020-12) of its arguments, which are an object.
    pub arguments: Value,
    /// A JSON Schema (2020-12) of all of its output together, which is then one JSON value.
    pub output_schema: Option<Value>,
    /// Hints of MCP on what it does (`readOnlyHint`, `destructiveHint`, …): an object, or `null`.
    pub annotations: Value,
    /// May it be run as a task of MCP?
    pub task_support: TaskSupport,
    /// Over MCP its caller does not sit on an open stream: he is sent away once it runs, and comes
    /// back for the result (where his version can).
    pub polls: bool,
    /// What it needs of its ring, unless an execution finds out more from its arguments.
    pub need: Need,
    /// How long it may be silent, and how long it may take.
    pub timeouts: Timeouts,
    /// What its subscribers get that do not say what they want.
    pub subscribers: SubscribeDefaults,
    /// Where its progress comes from.
    pub progress: ProgressSource,
    /// Each of its chunks is a part of an agent's run: an event by itself, as one JSON object.
    pub has_parts: bool,
    /// Its chunks are the result of a call of another MCP server, unit by unit: each text (up to a
    /// chunk behind which no more of it follows) is a block of its own, and a chunk of kind `json`
    /// is its structured content.
    pub is_relayed: bool,
}

impl ToolSpec {
    /// A tool that takes any object, with the defaults of [`crate::limits`].
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

    /// Values of one argument (of a nested one with dots; of none: the names of all) that begin
    /// with `prefix` and fit the arguments that are there already.
    ///
    /// ```
    /// use serde_json::{Map, json};
    /// use streamdoor::tool::ToolSpec;
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

    /// As `streamdoor tools --json` prints it. Durations are in milliseconds.
    pub fn to_json(&self) -> Value {
        let ms = |duration: Option<Duration>| duration.map(|d| d.as_millis() as u64);
        let mut document = json!({
            "name": self.name,
            "description": self.description,
            "input_schema": self.arguments,
            "task_support": self.task_support.name(),
            "timeouts": {
                "first_chunk_ms": ms(self.timeouts.first_chunk),
                "inactivity_ms": ms(self.timeouts.inactivity),
                "total_ms": ms(self.timeouts.total),
            },
            "subscribers": {
                "policy": self.subscribers.policy.name(),
                "limit_chunks": self.subscribers.limit_chunks,
                "limit_bytes": self.subscribers.limit_bytes,
            },
        });
        if let Some(title) = &self.title {
            document["title"] = title.as_str().into();
        }
        if let Some(schema) = &self.output_schema {
            document["output_schema"] = schema.clone();
        }
        if !self.annotations.is_null() {
            document["annotations"] = self.annotations.clone();
        }
        document
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_says_only_what_is_known() {
        let mut spec = ToolSpec::new("t", "Tests.");
        let document = spec.to_json();
        for field in ["title", "output_schema", "annotations"] {
            assert_eq!(document.get(field), None, "{field}");
        }
        assert_eq!(document["task_support"], "optional");
        spec.title = Some("The test".to_owned());
        spec.output_schema = Some(json!({"type": "object"}));
        spec.annotations = json!({"readOnlyHint": true});
        spec.task_support = TaskSupport::Required;
        let document = spec.to_json();
        assert_eq!(document["title"], "The test");
        assert_eq!(document["output_schema"], json!({"type": "object"}));
        assert_eq!(document["annotations"], json!({"readOnlyHint": true}));
        assert_eq!(document["task_support"], "required");
    }
}
