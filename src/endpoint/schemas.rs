//! JSON Schemas of answers: the `components` of `/openapi.json`. Tests check the documents and the
//! events against them.

use serde_json::{Map, Value, json};

use crate::endpoint::fields::{POLICIES, Shape, object_schema};
use crate::endpoint::mcp::MESSAGE;
use crate::stream::Kind;
use crate::wire::events;

/// Returns all schemas by name.
pub(super) fn all() -> Map<String, Value> {
    [
        ("Error", error()),
        ("McpError", mcp_error()),
        ("Tools", list("tools", &tool())),
        ("Created", created()),
        ("State", object(&[("execution", id()), ("state", state())], &[])),
        ("Executions", gathered("executions", &execution_line())),
        ("Execution", execution()),
        ("Subscriber", subscriber()),
        ("Result", result()),
        ("Progress", progress()),
        ("TokenProgress", token_progress(true)),
        ("AllProgress", gathered("progress", &token_progress(false))),
        ("Health", object(&[("status", text())], &[])),
        ("Description", json!({"type": "object", "description": "An OpenAPI document."})),
        ("Exit", exit()),
        ("Event", event()),
        ("VirtualTool", virtual_tool()),
        ("VirtualTools", list("virtual_tools", &reference("VirtualTool"))),
        ("Delivered", delivered()),
        ("WorkerEvent", worker_event()),
        ("DoorLine", door_line()),
        ("McpMessage", object_schema(MESSAGE)),
        ("Thread", thread()),
        ("ThreadState", thread_state()),
        ("CommandAnswer", command_answer()),
        (
            "LangGraphInfo",
            object(&[("version", text()), ("flags", json!({"type": "object"}))], &[]),
        ),
    ]
    .into_iter()
    .map(|(name, schema)| (name.to_owned(), schema))
    .collect()
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

fn list(name: &str, of: &Value) -> Value {
    object(&[(name, array(of))], &[])
}

/// Returns the schema of a list that all shards contribute to, with the numbers of dead shards.
fn gathered(name: &str, of: &Value) -> Value {
    object(&[(name, array(of))], &[("dead_shards", array(&count()))])
}

fn array(of: &Value) -> Value {
    json!({"type": "array", "items": of})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn number() -> Value {
    json!({"type": "number"})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

fn choice(names: &[&str]) -> Value {
    json!({"type": "string", "enum": names})
}

fn id() -> Value {
    Shape::Execution.schema()
}

fn token() -> Value {
    Shape::Token.schema()
}

fn policy() -> Value {
    choice(POLICIES)
}

fn encoding() -> Value {
    choice(&["text", "base64"])
}

fn state() -> Value {
    choice(&["queued", "running", "draining", "completed", "failed", "cancelled", "timed_out"])
}

fn bounds() -> Value {
    object(&[("chunks", count())], &[("bytes", count())])
}

fn error() -> Value {
    let error =
        object(&[("code", text()), ("message", text())], &[("field", text()), ("limit", count())]);
    object(&[("error", error)], &[])
}

/// Returns the schema of a JSON-RPC error. Without an id it belongs to no request, because none
/// could be read.
fn mcp_error() -> Value {
    let code = json!({"type": "integer"});
    let error = object(&[("code", code), ("message", text())], &[("data", json!({}))]);
    let id = json!({"type": ["string", "integer"]});
    object(&[("jsonrpc", json!({"const": "2.0"})), ("error", error)], &[("id", id)])
}

fn tool() -> Value {
    let ms = json!({"type": ["integer", "null"], "minimum": 0});
    let timeouts = object(
        &[("first_chunk_ms", ms.clone()), ("inactivity_ms", ms.clone()), ("total_ms", ms.clone())],
        &[],
    );
    let subscribers =
        object(&[("policy", policy()), ("limit_chunks", ms.clone()), ("limit_bytes", ms)], &[]);
    // Further members may be added to tools later.
    json!({
        "type": "object",
        "properties": {
            "name": text(),
            "description": text(),
            "title": text(),
            "input_schema": {"type": "object"},
            "output_schema": {"type": ["object", "boolean"]},
            "annotations": {"type": "object"},
            "task_support": {"enum": ["forbidden", "optional", "required"]},
            "timeouts": timeouts,
            "subscribers": subscribers,
        },
        "required": ["name", "description", "input_schema"],
    })
}

fn virtual_tool() -> Value {
    let mut schema = tool();
    let coalesce = object(&[("delay_ms", count()), ("max_bytes", count())], &[]);
    schema["properties"]["coalesce"] = coalesce;
    schema
}

/// Returns the schema of the answer to one part of a result, or to many.
fn delivered() -> Value {
    let perhaps = [("duplicate", flag()), ("parts", count()), ("duplicates", count())];
    object(&[("success", json!({ "const": true }))], &perhaps)
}

/// Returns the schema of what a worker receives: the data of an event.
fn worker_event() -> Value {
    let timeouts =
        json!({"type": "object", "description": "The timeouts of the tool that are set."});
    let call = [
        ("id", id()),
        ("name", text()),
        ("arguments", json!({"type": "object"})),
        ("execution", id()),
        ("next_seq", count()),
    ];
    let described = |text: &str| json!({"type": "string", "description": text});
    let perhaps = [
        ("timeouts", timeouts),
        ("traceparent", described("The trace context of the call (W3C Trace Context).")),
        ("tracestate", described("The vendor-specific trace state (W3C Trace Context).")),
        ("baggage", described("The baggage of the call (W3C Baggage).")),
    ];
    let named = |name: &str, mut schema: Value| {
        schema["title"] = name.into();
        schema
    };
    json!({"oneOf": [
        named("tool_call", object(&call, &perhaps)),
        named("cancel", object(&[("id", id()), ("reason", text())], &[])),
    ]})
}

/// Returns the schema of a line for another process that shares memory.
fn door_line() -> Value {
    let version = || ("door", json!({ "const": 1 }));
    let clock = object(&[("wall_us", count()), ("mono_ns", count())], &[]);
    let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    let terms = [("policy", policy()), ("limits", bounds())];
    let terms = object(&terms, &[("kinds", array(&choice(&kinds)))]);
    let to_reader = [
        version(),
        ("execution", id()),
        ("tool", text()),
        ("subscriber", Shape::Subscriber.schema()),
        ("terms", terms),
        ("next_seq", count()),
        ("seen", object(&[("chunks", count()), ("bytes", count())], &[])),
        ("slot", count()),
        ("clock", clock),
    ];
    let to_producer = [version(), ("execution", id()), ("tool", text())];
    let states = ["completed", "failed", "cancelled", "timed_out", "detached"].as_slice();
    let of_end = [("reason", text()), ("error", text()), ("exit", reference("Exit"))];
    let end = object(&[("state", choice(states))], &of_end);
    json!({"oneOf": [
        object(&to_reader, &[("token", token())]),
        object(&to_producer, &[("token", token())]),
        object(&[("go", json!({ "const": true }))], &[]),
        object(&[("end", end)], &[]),
    ]})
}

fn links() -> Value {
    let names = ["self", "events", "result", "output"];
    object(&names.map(|name| (name, text())), &[("progress", text())])
}

fn created() -> Value {
    object(
        &[("execution", id()), ("tool", text()), ("state", state()), ("links", links())],
        &[("token", token())],
    )
}

fn execution_line() -> Value {
    object(
        &[
            ("execution", id()),
            ("tool", text()),
            ("state", state()),
            ("chunks", count()),
            ("bytes", count()),
            ("subscribers", count()),
            ("age_ms", count()),
        ],
        &[],
    )
}

fn execution() -> Value {
    object(
        &[
            ("execution", id()),
            ("tool", text()),
            ("state", state()),
            ("chunks", count()),
            ("bytes", count()),
            ("head_seq", count()),
            ("tail_seq", count()),
            ("held_back", flag()),
            ("held_back_by", array(&holder())),
            ("age_ms", count()),
            ("subscribers", array(&reference("Subscriber"))),
            ("links", links()),
        ],
        &[
            ("token", token()),
            ("progress", reference("Progress")),
            ("total_chunks", count()),
            ("error", text()),
            ("exit", reference("Exit")),
        ],
    )
}

/// Returns the schema of the id of a subscriber, or of the name of the hold.
fn holder() -> Value {
    json!({"anyOf": [Shape::Subscriber.schema(), {"const": super::documents::HELD_BY_HOLD}]})
}

fn subscriber() -> Value {
    object(
        &[
            ("subscriber", Shape::Subscriber.schema()),
            ("place", choice(&["local", "remote"])),
            ("policy", policy()),
            ("limits", bounds()),
            ("next_seq", count()),
            ("lag_chunks", count()),
            ("lag_bytes", count()),
            ("missed_chunks", count()),
            ("missed_bytes", count()),
            ("holds_back", flag()),
            ("lost", flag()),
            ("age_ms", count()),
        ],
        &[],
    )
}

fn result() -> Value {
    object(
        &[
            ("execution", id()),
            ("state", state()),
            ("chunks", count()),
            ("bytes", count()),
            ("complete", flag()),
            ("encoding", encoding()),
            ("data", text()),
        ],
        &[("exit", reference("Exit")), ("error", text())],
    )
}

/// Returns the fields of a progress report besides the amount.
fn progress_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("total", number()),
        ("percentage", json!({"type": "number", "minimum": 0, "maximum": 100})),
        ("message", text()),
        ("context", json!({"description": "Further values that the tool reported."})),
    ]
}

fn progress() -> Value {
    object(&[("progress", number())], &progress_fields())
}

fn token_progress(has_state: bool) -> Value {
    let mut always = vec![("token", token()), ("execution", id())];
    if has_state {
        always.push(("state", state()));
    }
    object(&always, &[("progress", reference("Progress"))])
}

fn exit() -> Value {
    let whole = || json!({"type": "integer"});
    json!({"oneOf": [object(&[("code", whole())], &[]), object(&[("signal", whole())], &[])]})
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
            "agent_id": id(),
            "step_number": count(),
            "timestamp_us": count(),
        },
        "required": ["type", "seq", "agent_id", "step_number", "timestamp_us"],
    })
}

/// Returns the schema of an event for a subscriber: `wire/events.rs`.
fn event() -> Value {
    let named = |name: &str, always: &[(&str, Value)], perhaps: &[(&str, Value)]| {
        let mut fields = vec![("event", json!({ "const": name })), ("execution", id())];
        fields.extend_from_slice(always);
        object(&fields, perhaps)
    };
    let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    let started = [
        ("subscriber", Shape::Subscriber.schema()),
        ("tool", text()),
        ("policy", policy()),
        ("limits", bounds()),
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
        ("kind", choice(&kinds)),
        ("offset", count()),
        ("encoding", encoding()),
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
    let of_end = [
        ("reason", text()),
        ("resume_from", count()),
        ("exit", reference("Exit")),
        ("error", text()),
    ];
    let mut of_progress = progress_fields();
    of_progress.push(("token", token()));
    json!({"oneOf": [
        named("started", &started, &[("token", token()), ("replay", object(&replay, &[]))]),
        named("chunk", &chunk, &[("total_chunks", count()), ("key", count())]),
        part(),
        named("gap", &gap, &[]),
        named("progress", &[("progress", number())], &of_progress),
        named("end", &end, &of_end),
    ]})
}
