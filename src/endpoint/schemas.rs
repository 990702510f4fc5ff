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
    all
}
