//! Fields of requests: in the query, in the head and in the body alike. Requests are read by tables
//! of fields, and `/openapi.json` is written from the same tables.

use serde_json::{Map, Value, json};

use crate::api::Member;
use crate::base::{ExecutionId, ProgressToken, SubscriberId};
use crate::limits;
use crate::stream::{Kind, Policy};

/// A field of a request.
#[derive(Debug)]
pub(super) struct Field {
    pub name: &'static str,
    /// The purpose of the field: a sentence.
    pub about: &'static str,
    pub shape: Shape,
    /// The value that applies if the field is absent, if that is one value.
    pub preset: Option<Preset>,
    pub is_required: bool,
}

/// The set of values that a field may have.
#[derive(Debug)]
pub(super) enum Shape {
    /// A whole number.
    Number { min: u64, max: u64 },
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// A text that is not empty and has at most this many bytes.
    Text { bytes_max: u64 },
    /// The id of an execution.
    Execution,
    /// The id of a response.
    Response,
    /// The id of a subscriber.
    Subscriber,
    /// A progress token.
    Token,
    /// A ticket, which opens a stream instead of a token.
    Ticket,
    /// Several ids of executions, separated by commas.
    Executions,
    /// Several kinds of chunks, separated by commas.
    Kinds,
    /// The cursors of executions that a client has followed.
    Cursors,
    /// Any object.
    Anything,
    /// Any value at all.
    Any,
    /// A boolean.
    Flag,
    /// A number, whole or not.
    Real,
    /// Any whole number.
    Whole,
    /// The name of a tool.
    ToolName,
    /// Several names of tools, separated by commas.
    ToolNames,
    /// Names of tools that an agent may call.
    AgentTools,
    /// The messages of a conversation with a model.
    Messages,
    /// A list of texts.
    Texts,
    /// The parts of a message of A2A.
    Parts,
    /// A stream mode of LangGraph.
    StreamMode,
    /// Several stream modes of LangGraph, separated by commas.
    StreamModes,
    /// The name that a worker gives itself.
    Session,
    /// An object with these members.
    Members(&'static [Field]),
    /// One of several shapes, each of another JSON type.
    Either(&'static [Shape]),
    /// The place in a list where the next part begins.
    Place,
    /// An explicit `null`.
    Null,
}

/// A default value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Preset {
    Number(u64),
    Text(&'static str),
}

/// The names of all policies.
pub(super) const POLICIES: &[&str] =
    &["drop", "drop_oldest", "buffer", "block", "conflate", "disconnect", "replay"];

/// The names of the stream modes of LangGraph that have a meaning here.
const STREAM_MODES: &[&str] =
    &["values", "updates", "messages", "messages-tuple", "tools", "custom"];

impl Field {
    pub const fn new(name: &'static str, shape: Shape, about: &'static str) -> Field {
        Field { name, about, shape, preset: None, is_required: false }
    }

    /// Creates a field for milliseconds, from `min` to the longest duration that anything may take.
    pub const fn ms(name: &'static str, min: u64, about: &'static str) -> Field {
        Field::new(name, milliseconds(min), about)
    }

    pub const fn required(self) -> Field {
        Field { is_required: true, ..self }
    }

    pub const fn or(self, preset: Preset) -> Field {
        Field { preset: Some(preset), ..self }
    }

    /// Returns a value that the field may have. Names are those of tools that every server has.
    pub fn example(&self) -> Value {
        match self.name {
            "tool" => "slow_data_processor".into(),
            "arguments" => json!({"chunks": 5, "delay_ms": 10}),
            "task" | "prompt" => "Say hello.".into(),
            "assistant_id" => crate::tool::AGENT.into(),
            "Range" => "bytes=0-99".into(),
            "If-Range" | "If-None-Match" => "\"example\"".into(),
            "traceparent" => "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into(),
            _ => match self.preset {
                Some(Preset::Number(number)) => number.into(),
                Some(Preset::Text(text)) => text.into(),
                None => self.shape.example(),
            },
        }
    }

    /// Returns the JSON Schema of the field, with its purpose.
    pub fn schema(&self) -> Value {
        let mut schema = self.shape.schema();
        let object = schema.as_object_mut().expect("a schema is an object");
        object.insert("description".into(), self.about.into());
        match self.preset {
            Some(Preset::Number(number)) => object.insert("default".into(), number.into()),
            Some(Preset::Text(text)) => object.insert("default".into(), text.into()),
            None => None,
        };
        schema
    }
}

pub(super) const fn milliseconds(min: u64) -> Shape {
    Shape::Number { min, max: limits::EXECUTION_DURATION_MAX.as_millis() as u64 }
}

impl Shape {
    /// Returns the bounds of a number: of this shape, or of one of its alternatives.
    pub fn number(&self) -> Option<(u64, u64)> {
        match self {
            Shape::Number { min, max } => Some((*min, *max)),
            Shape::Either(shapes) => shapes.iter().find_map(Shape::number),
            _ => None,
        }
    }

    /// Returns the choices of this shape, or of one of its alternatives.
    pub fn choices(&self) -> Option<&'static [&'static str]> {
        match self {
            Shape::Choice(choices) => Some(choices),
            Shape::Either(shapes) => shapes.iter().find_map(Shape::choices),
            _ => None,
        }
    }

    /// Returns the members of this shape, or of one of its alternatives.
    pub fn members(&self) -> Option<&'static [Field]> {
        match self {
            Shape::Members(fields) => Some(fields),
            Shape::Either(shapes) => shapes.iter().find_map(Shape::members),
            _ => None,
        }
    }

    /// Returns a value of the shape.
    pub fn example(&self) -> Value {
        const EXECUTION: &str = "0123456789abcdefghjkmnpqrs";
        match self {
            Shape::Number { min, .. } => (*min).max(1).into(),
            Shape::Choice(choices) => choices[0].into(),
            Shape::Text { .. } | Shape::ToolName | Shape::Session => "example".into(),
            Shape::Execution => EXECUTION.into(),
            Shape::Response => format!("resp_{EXECUTION}").into(),
            Shape::Executions => json!([EXECUTION]),
            Shape::Subscriber => "s0.1".into(),
            Shape::Token => "0".repeat(39).into(),
            Shape::Ticket => "0".repeat(56).into(),
            Shape::Kinds => json!([Kind::Output.name()]),
            Shape::Cursors => "1".into(),
            Shape::Place => format!("20260102030405678901{EXECUTION}").into(),
            Shape::Anything => json!({"type": "object"}), // A schema, too.
            Shape::Any => "example".into(),
            Shape::Flag => true.into(),
            Shape::Real => 0.5.into(),
            Shape::Whole => 1.into(),
            Shape::AgentTools | Shape::ToolNames => json!(["example"]),
            Shape::Texts => json!(["messages"]),
            Shape::Parts => json!([{"text": "Say hello."}]),
            Shape::StreamMode => STREAM_MODES[0].into(),
            Shape::StreamModes => json!([STREAM_MODES[0]]),
            Shape::Messages => json!([{"role": "user", "content": "Say hello."}]),
            Shape::Members(fields) => example_of(fields),
            Shape::Either(shapes) => shapes[0].example(),
            Shape::Null => Value::Null,
        }
    }

    /// Returns the JSON Schema of the shape.
    pub fn schema(&self) -> Value {
        match self {
            Shape::Number { min, max } => {
                json!({"type": "integer", "minimum": min, "maximum": max})
            }
            Shape::Choice(choices) => json!({"type": "string", "enum": choices}),
            Shape::Text { bytes_max } => {
                json!({"type": "string", "minLength": 1, "maxLength": bytes_max})
            }
            Shape::Execution => ExecutionId::schema(),
            Shape::Response => {
                json!({"type": "string", "pattern": "^resp_[0-9a-hjkmnp-tv-z]{26}$"})
            }
            Shape::Token => ProgressToken::schema(),
            Shape::Subscriber => SubscriberId::schema(),
            Shape::Ticket => json!({"type": "string", "pattern": "^[0-9A-Za-z_-]{56}$"}),
            Shape::Executions => json!({
                "type": "array",
                "items": Shape::Execution.schema(),
                "minItems": 1,
                "maxItems": limits::STREAM_CURSORS_MAX,
                "uniqueItems": true,
            }),
            Shape::Kinds => {
                json!({"type": "array", "items": Kind::schema(), "minItems": 1})
            }
            Shape::Place => json!({"type": "string", "pattern": "^[0-9]{20}[0-9a-z]{26}$"}),
            Shape::Cursors => json!({"type": "string"}),
            Shape::Anything => json!({"type": "object", "additionalProperties": true}),
            Shape::Any => json!({}),
            Shape::Flag => json!({"type": "boolean"}),
            Shape::Real => json!({"type": "number"}),
            Shape::Whole => json!({"type": "integer"}),
            Shape::ToolName => json!({
                "type": "string",
                "pattern": "^[0-9A-Za-z_.-]+$",
                "maxLength": limits::TOOL_NAME_CHARS_MAX,
            }),
            Shape::ToolNames => json!({
                "type": "array",
                "items": Shape::ToolName.schema(),
                "minItems": 1,
                "maxItems": limits::WORKER_TOOLS_MAX,
                "uniqueItems": true,
            }),
            Shape::AgentTools => agent_tools_schema(),
            Shape::Messages => messages_schema(),
            Shape::Texts => json!({"type": "array", "items": {"type": "string"}}),
            Shape::Parts => json!({"type": "array", "items": {"type": "object"}, "minItems": 1}),
            Shape::StreamMode => json!({"type": "string", "enum": STREAM_MODES}),
            Shape::StreamModes => {
                json!({"type": "array", "items": Shape::StreamMode.schema(), "minItems": 1})
            }
            Shape::Session => json!({
                "type": "string",
                "pattern": "^[!-~]+$",
                "maxLength": limits::SESSION_CHARS_MAX,
            }),
            Shape::Members(fields) => object_schema(fields),
            Shape::Either(shapes) => {
                let schemas: Vec<Value> = shapes.iter().map(Shape::schema).collect();
                json!({ "oneOf": schemas })
            }
            Shape::Null => json!({"type": "null"}),
        }
    }
}

fn agent_tools_schema() -> Value {
    json!({
        "type": "array",
        "items": Shape::ToolName.schema(),
        "maxItems": limits::AGENT_TOOLS_MAX,
        "uniqueItems": true,
    })
}

fn messages_schema() -> Value {
    let call = json!({
        "type": "object",
        "properties": {
            "id": {"type": "string", "minLength": 1},
            "type": {"enum": ["function"]},
            "function": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1},
                    "arguments": {"type": "string"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            },
        },
        "required": ["id", "function"],
        "additionalProperties": false,
    });
    json!({
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "role": {"enum": ["user", "assistant", "system", "tool"]},
                "content": {
                    "type": "string",
                    "description": "The text. It may be empty in messages with calls and in \
                                    results.",
                },
                "tool_calls": {
                    "type": "array",
                    "items": call,
                    "maxItems": limits::AGENT_CALLS_PER_STEP_MAX,
                    "description": "The calls of the assistant. Their results are the next \
                                    messages.",
                },
                "tool_call_id": {
                    "type": "string",
                    "description": "The id of the call that a message with the role `tool` replies \
                                    to.",
                },
                "is_error": {"type": "boolean", "description": "The content is the text of an \
                                                                error."},
            },
            "required": ["role"],
            "additionalProperties": false,
        },
        "maxItems": limits::AGENT_MESSAGES_MAX,
    })
}

/// Returns an object with the fields that are required, and with those that show what it is for.
pub(super) fn example_of(fields: &[Field]) -> Value {
    const SHOWN: &[&str] = &["arguments", "task", "content"];
    let is_shown = |field: &&Field| field.is_required || SHOWN.contains(&field.name);
    let shown = fields.iter().filter(is_shown);
    shown.map(|field| (field.name.to_owned(), field.example())).collect()
}

/// Returns the schema of an object that has these fields and no others.
pub(super) fn object_schema(fields: &[Field]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), field.schema())).collect();
    let required: Vec<Value> =
        fields.iter().filter(|field| field.is_required).map(|field| field.name.into()).collect();
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// Returns the policy of this name, which must be one of [`POLICIES`].
pub(super) fn policy_named(name: &str) -> Policy {
    name.parse().expect("every choice is a policy")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::front::StreamModes;

    #[test]
    fn the_choices_are_all_policies_and_all_stream_modes() {
        assert!(Policy::ALL.iter().map(|policy| policy.name()).eq(POLICIES.iter().copied()));
        let all = StreamModes::parse(STREAM_MODES.iter().copied());
        assert_eq!(all, Ok(StreamModes::ALL));
    }
}
