//! JSON Schemas of answers: the `components` of `/openapi.json`. Those of our own documents come
//! from their rows ([`crate::api`]). This file adds events, MCP, and the documents of front ends.
//! Tests check the documents and the events against them.

use serde_json::{Map, Value, json};

use crate::api::{self, Document, Encoding, Limits, Member, Progress, Row};
use crate::base::{ExecutionId, ProgressToken, SubscriberId};
use crate::endpoint::fields::object_schema;
use crate::endpoint::mcp::MESSAGE;
use crate::stream::{Exit, Kind, Policy};
use crate::wire::events;

/// Returns all schemas by name.
pub(super) fn all() -> Map<String, Value> {
    let others = [
        ("McpError", mcp_error()),
        ("Description", json!({"type": "object", "description": "An OpenAPI document."})),
        ("Event", event()),
        ("McpMessage", object_schema(MESSAGE)),
        ("Thread", thread()),
        ("ThreadState", thread_state()),
        ("CommandAnswer", command_answer()),
        (
            "LangGraphInfo",
            object(&[("version", text()), ("flags", json!({"type": "object"}))], &[]),
        ),
    ];
    let mut all = api::schemas();
    all.extend(others.map(|(name, schema)| (name.to_owned(), schema)));
    all
}

/// Returns the schema of an object with all members of `always`, any of `perhaps`, and no others.
fn object(always: &[(&str, Value)], perhaps: &[(&str, Value)]) -> Value {
    let fields = always.iter().chain(perhaps);
    let properties: Map<String, Value> =
        fields.map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    let required: Vec<Value> = always.iter().map(|(name, _)| (*name).into()).collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// Returns the schema of a thread as LangGraph clients know it.
fn thread() -> Value {
    let any = json!({"type": "object"});
    let status = json!({"enum": ["idle", "busy"]});
    object(
        &[
            ("thread_id", text()),
            ("status", status),
            ("metadata", any.clone()),
            ("values", any.clone()),
            ("interrupts", any),
        ],
        &[],
    )
}

fn thread_state() -> Value {
    let any = json!({"type": "object"});
    let names = array(&text());
    object(
        &[
            ("values", any.clone()),
            ("next", names),
            ("tasks", array(&any)),
            ("interrupts", array(&any)),
            ("metadata", any),
        ],
        &[],
    )
}

/// Returns the schema of the answer to a LangGraph command.
fn command_answer() -> Value {
    let id = json!({"type": ["integer", "null"]});
    let result = json!({"type": "object"});
    object(
        &[("type", json!({"enum": ["success", "error"]})), ("id", id)],
        &[("result", result), ("error", text()), ("message", text())],
    )
}

fn array(of: &Value) -> Value {
    json!({"type": "array", "items": of})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn count() -> Value {
    u64::schema()
}

fn choice(names: &[&str]) -> Value {
    json!({"type": "string", "enum": names})
}

/// Returns the schema of a JSON-RPC error. Without an id it belongs to no request, because none
/// could be read.
fn mcp_error() -> Value {
    let code = json!({"type": "integer"});
    let error = object(&[("code", code), ("message", text())], &[("data", json!({}))]);
    let id = json!({"type": ["string", "integer"]});
    object(&[("jsonrpc", json!({"const": "2.0"})), ("error", error)], &[("id", id)])
}

/// Returns the schema of a part of an agent's run, which replaces a chunk. Each type has further
/// members.
fn part() -> Value {
    json!({
        "type": "object",
        "title": "part",
        "properties": {
            "type": {"type": "string", "pattern": "^[A-Z][A-Za-z]+$"},
            "seq": count(),
            "agent_id": ExecutionId::schema(),
            "step_number": count(),
            "timestamp_us": count(),
        },
        "required": ["type", "seq", "agent_id", "step_number", "timestamp_us"],
    })
}

/// Returns the schema of an event for a subscriber: `wire/events.rs`.
fn event() -> Value {
    let named = |name: &str, always: &[(&str, Value)], perhaps: &[(&str, Value)]| {
        let execution = ("execution", ExecutionId::schema());
        let mut fields = vec![("event", json!({ "const": name })), execution];
        fields.extend_from_slice(always);
        object(&fields, perhaps)
    };
    let started = [
        ("subscriber", SubscriberId::schema()),
        ("tool", text()),
        ("policy", Policy::schema()),
        ("limits", Limits::schema()),
        ("from_seq", count()),
    ];
    let replay = [
        ("chunks", count()),
        ("bytes", count()),
        ("of", choice(&events::Replay::OF)),
        ("grace_ms", count()),
    ];
    let chunk = [
        ("seq", count()),
        ("kind", Kind::schema()),
        ("offset", count()),
        ("encoding", Encoding::schema()),
        ("data", text()),
        ("timestamp_us", count()),
        ("mono_ns", count()),
    ];
    let gap = [
        ("from_seq", count()),
        ("to_seq", count()),
        ("chunk_count", count()),
        ("byte_count", count()),
        ("reason", text()),
    ];
    let end = [
        ("state", choice(&["completed", "failed", "cancelled", "timed_out", "detached"])),
        ("chunks", count()),
        ("bytes", count()),
        ("missed_chunks", count()),
        ("missed_bytes", count()),
        ("execution_chunks", count()),
        ("execution_bytes", count()),
        ("duration_us", count()),
    ];
    let of_end =
        [("reason", text()), ("resume_from", count()), ("exit", Exit::schema()), ("error", text())];
    let token = || ("token", ProgressToken::schema());
    let (optional, required): (Vec<&Row>, Vec<&Row>) =
        Progress::ROWS.iter().partition(|row| row.is_optional);
    let described = |row: &Row| (row.name, row.described());
    let progress: Vec<_> = required.into_iter().map(described).collect();
    let of_progress: Vec<_> = optional.into_iter().map(described).chain([token()]).collect();
    json!({"oneOf": [
        named("started", &started, &[token(), ("replay", object(&replay, &[]))]),
        named("chunk", &chunk, &[("total_chunks", count()), ("key", count())]),
        part(),
        named("gap", &gap, &[]),
        named("progress", &progress, &of_progress),
        named("end", &end, &of_end),
    ]})
}
