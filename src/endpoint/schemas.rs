//! JSON Schemas: the `components` of `/openapi.json`. Those of documents and events come from their
//! rows ([`crate::api`]), and that of MCP messages from the table that reads them. Tests check what
//! is written against them.

use serde_json::{Map, Value, json};

use crate::api;
use crate::endpoint::fields::object_schema;
use crate::endpoint::mcp::MESSAGE;

/// Returns all schemas by name.
pub(super) fn all() -> Map<String, Value> {
    let mut all = api::schemas();
    let description = json!({"type": "object", "description": "An OpenAPI document."});
    all.insert("Description".to_owned(), description);
    all.insert("McpMessage".to_owned(), object_schema(MESSAGE));
    for (name, of) in [
        ("Assistants", "Assistant"),
        ("Threads", "FoundThread"),
        ("ThreadStates", "ThreadState"),
        ("Runs", "Run"),
    ] {
        let items = json!({"$ref": format!("#/components/schemas/{of}")});
        all.insert(name.to_owned(), json!({"type": "array", "items": items}));
    }
    for (name, about) in [
        ("AgentCard", "The agent card of A2A."),
        ("Task", "A task of A2A: `id`, `contextId`, `status`, `artifacts`, `history`."),
        ("SentTask", "The task of a message of A2A: `task`."),
        ("Tasks", "A page of tasks of A2A: `tasks`, `nextPageToken`, `pageSize`, `totalSize`."),
        ("A2aMessage", "An answer of A2A over JSON-RPC: `jsonrpc`, `id`, `result` or `error`."),
    ] {
        all.insert(name.to_owned(), json!({"type": "object", "description": about}));
    }
    let error = json!({
        "type": "object",
        "description": "An error of A2A: over HTTP a status, over JSON-RPC an answer.",
        "properties": {"error": {
            "type": "object",
            "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
            "required": ["code", "message"],
        }},
        "required": ["error"],
    });
    all.insert("A2aError".to_owned(), error);
    let count = json!({"type": "integer", "minimum": 0, "description": "A number of entries."});
    all.insert("Count".to_owned(), count);
    let values = json!({
        "type": "object",
        "description": "The state of a thread: its messages, or the reason of a failure.",
        "properties": {
            "messages": {"type": "array", "items": {"type": "object"}},
            "__error__": {"type": "object"},
        },
    });
    all.insert("Values".to_owned(), values);
    all
}
