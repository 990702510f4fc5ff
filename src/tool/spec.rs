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
    /// A JSON Schema (2020-12) of its arguments, which are an object.
    pub arguments: Value,
    /// What it needs of its ring, unless an execution finds out more from its arguments.
    pub need: Need,
    /// How long it may be silent, and how long it may take.
    pub timeouts: Timeouts,
    /// What its subscribers get that do not say what they want.
    pub subscribers: SubscribeDefaults,
    /// Where its progress comes from.
    pub progress: ProgressSource,
}

impl ToolSpec {
    /// A tool that takes any object, with the defaults of [`crate::limits`].
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> ToolSpec {
        ToolSpec {
            name: name.into(),
            description: description.into(),
            arguments: json!({"type": "object"}),
            need: Need::default(),
            timeouts: Timeouts::default(),
            subscribers: SubscribeDefaults::default(),
            progress: ProgressSource::default(),
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
        json!({
            "name": self.name,
            "description": self.description,
            "input_schema": self.arguments,
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
        })
    }
}
