//! The questions of tools, in the form of each era. They are requests on the stream of a call, or
//! the `inputRequests` of an incomplete result.

use serde_json::{Map, Value, json};

use super::{ClientCapabilities, Era, McpFault, Version};
use crate::limits;
use crate::tool::{Question, QuestionMethod};

/// Checks that this client can be asked all of the questions.
///
/// # Errors
/// The client has not declared the capability (A44, B5). The tool asks too many questions, or two
/// under one key (B16). The handshake era has no code for a missing capability, so it reports
/// invalid parameters.
pub fn check(
    version: Version,
    client: &ClientCapabilities,
    questions: &[Question],
) -> Result<(), McpFault> {
    if questions.len() > limits::MCP_QUESTIONS_MAX {
        return Err(McpFault::internal("the tool asks too many questions at once"));
    }
    for (at, question) in questions.iter().enumerate() {
        if questions[..at].iter().any(|other| other.key == question.key) {
            return Err(McpFault::internal("the tool asks two questions with the same key"));
        }
    }
    let denied: Vec<&Question> =
        questions.iter().filter(|question| !client.abilities.allow(question)).collect();
    if denied.is_empty() {
        return Ok(());
    }
    let mut required = json!({});
    for question in &denied {
        let (name, part) = capability(question);
        if required.get(name).is_none() {
            required[name] = json!({});
        }
        if let Some(part) = part {
            required[name][part] = json!({});
        }
    }
    let names: Vec<&str> = denied.iter().map(|question| question.method.name()).collect();
    let text = format!("the client has not declared that it supports {}", names.join(", "));
    match version.era() {
        Era::Stateless => Err(McpFault::missing_capability(text, required)),
        Era::Handshake => Err(McpFault::invalid_params(text)),
    }
}

/// Returns the capability that a question needs, and the part of it.
fn capability(question: &Question) -> (&'static str, Option<&'static str>) {
    let has = |field: &str| question.params.get(field).is_some_and(|value| !value.is_null());
    match question.method {
        QuestionMethod::Elicit if question.params["mode"] == "url" => ("elicitation", Some("url")),
        QuestionMethod::Elicit => ("elicitation", Some("form")),
        QuestionMethod::Sample if has("tools") || has("toolChoice") => ("sampling", Some("tools")),
        QuestionMethod::Sample => ("sampling", None),
        QuestionMethod::Roots => ("roots", None),
    }
}

/// The `inputRequests` of a result, or of a task.
pub fn requests(questions: &[Question]) -> Value {
    let request = |question: &Question| {
        let mut request = json!({ "method": question.method.name() });
        if !question.params.is_null() {
            request["params"] = question.params.clone();
        }
        (question.key.clone(), request)
    };
    questions.iter().map(request).collect::<Map<_, _>>().into()
}

/// Returns the questions of such `inputRequests`; `None` if one of them is no question.
pub fn parse_requests(requests: &Map<String, Value>) -> Option<Vec<Question>> {
    let question = |(key, request): (&String, &Value)| {
        let method = QuestionMethod::parse(request["method"].as_str()?)?;
        let params = request.get("params").cloned().unwrap_or_default();
        Some(Question { key: key.clone(), method, params })
    };
    requests.iter().map(question).collect()
}

/// The parameters of a question sent as a request in the handshake era, in the form of this
/// version. Forms had no `mode` before 2025-11-25.
pub fn params(version: Version, question: &Question) -> Value {
    let mut params = question.params.clone();
    if version < Version::V2025_11_25
        && question.method == QuestionMethod::Elicit
        && let Some(members) = params.as_object_mut()
    {
        members.shift_remove("mode");
    }
    params
}
