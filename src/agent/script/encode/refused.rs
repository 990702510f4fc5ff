//! Writes the wires' errors and the list of models.

use serde_json::{Value, json};

use crate::agent::model::Wire;

/// Returns the body of a refusal. Without `kind`, the error's type follows from the status.
pub fn refused(wire: Wire, status: u16, kind: Option<&str>, message: &str) -> Value {
    let kind = kind.unwrap_or_else(|| kind_of(status));
    match wire {
        Wire::ChatCompletions | Wire::Responses => openai(kind, message),
        Wire::Messages => anthropic(kind, message),
    }
}

pub(super) fn openai(kind: &str, message: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": kind}})
}

pub(super) fn anthropic(kind: &str, message: &str) -> Value {
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

const KINDS: [(u16, &str); 9] = [
    (400, "invalid_request_error"),
    (401, "authentication_error"),
    (403, "permission_error"),
    (404, "not_found_error"),
    (413, "request_too_large"),
    (429, "rate_limit_error"),
    (500, "api_error"),
    (503, "service_unavailable"),
    (529, "overloaded_error"),
];

fn kind_of(status: u16) -> &'static str {
    let known = KINDS.iter().find(|(code, _)| *code == status);
    known.map_or(if status < 500 { "invalid_request_error" } else { "api_error" }, |(_, kind)| kind)
}

/// Returns the status of a document that fails with this type of error.
pub fn status_of(kind: &str) -> u16 {
    KINDS.iter().find(|(_, known)| *known == kind).map_or(500, |(status, _)| *status)
}

/// Returns the reply to `GET /v1/models`.
pub fn models(is_anthropic: bool, names: &[String]) -> Value {
    let default = ["scripted".to_owned()];
    let names = if names.is_empty() { &default[..] } else { names };
    if !is_anthropic {
        let model =
            |name| json!({"id": name, "object": "model", "created": 0, "owned_by": "streamdoor"});
        let data: Vec<Value> = names.iter().map(model).collect();
        return json!({"object": "list", "data": data});
    }
    let created_at = "1970-01-01T00:00:00Z";
    let model =
        |name| json!({"type": "model", "id": name, "display_name": name, "created_at": created_at});
    let data: Vec<Value> = names.iter().map(model).collect();
    json!({
        "data": data, "has_more": false, "first_id": names.first(), "last_id": names.last(),
    })
}
