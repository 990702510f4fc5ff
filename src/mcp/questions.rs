//! What tools ask, in the words of both eras: as requests on the stream of a call, or as the
//! `inputRequests` of an answer that is none yet.

use serde_json::{Map, Value, json};

use super::{ClientCapabilities, Era, Fault, Version};
use crate::limits;
use crate::tool::{Question, QuestionMethod};

/// Can this client be asked all of that?
///
/// # Errors
/// It has not said that it can (A44, B5); or a tool has asked too much, or two things under one
/// key (B16). In the handshake era there is no code for the first: the tool has failed.
pub fn check(
    version: Version,
    client: &ClientCapabilities,
    questions: &[Question],
) -> Result<(), Fault> {
    if questions.len() > limits::MCP_QUESTIONS_MAX {
        return Err(Fault::internal("the tool asks too much at once"));
    }
    for (at, question) in questions.iter().enumerate() {
        if questions[..at].iter().any(|other| other.key == question.key) {
            return Err(Fault::internal("the tool asks two things under one key"));
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
    let text = format!("the client has not declared that it answers {}", names.join(", "));
    match version.era() {
        Era::Stateless => Err(Fault::missing_capability(text, required)),
        Era::Handshake => Err(Fault::invalid_params(text)),
    }
}

/// Which capability a question needs, and which part of it.
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

/// The `inputRequests` of an answer, or of a task.
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

/// The parameters of a request of ours in the handshake era, as this version has them. Forms had
/// no `mode` before 2025-11-25.
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
