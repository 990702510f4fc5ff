//! Reads a request to a model in any of the three wires, as far as a turn depends on it.

use serde_json::{Map, Value};

use crate::agent::model::Wire;

/// A request to a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRequest {
    /// The wire of the request.
    pub wire: Wire,
    /// The name of the model.
    pub model: String,
    /// True if a stream is requested.
    pub stream: bool,
    /// True if a stream of Chat Completions has to end with the token counts.
    pub includes_usage: bool,
    /// Number of the model's answers in the conversation, plus one.
    pub step: u64,
    /// Number of tool results in the conversation.
    pub tool_results: u64,
    /// The last text of the user.
    pub user: String,
    /// All system texts.
    pub system: String,
    /// The last tool result.
    pub result: String,
    /// Number of times that this request has come, this time included.
    pub attempt: u64,
    /// The number of the request to this server, from 1.
    pub request: u64,
    /// Size of the request's body in bytes.
    pub body_bytes: u64,
}

impl ModelRequest {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// A message that names the wrong field.
    pub fn read(wire: Wire, body: &[u8]) -> Result<ModelRequest, String> {
        let body_bytes = body.len() as u64;
        let body: Value = serde_json::from_slice(body).map_err(|e| format!("body: {e}"))?;
        let Value::Object(fields) = body else { return Err("body: must be an object".into()) };
        let model = fields.get("model").and_then(Value::as_str).ok_or("model: must be a string")?;
        let mut asked = ModelRequest {
            wire,
            model: model.to_owned(),
            stream: fields.get("stream").and_then(Value::as_bool).unwrap_or(false),
            includes_usage: fields
                .get("stream_options")
                .is_some_and(|options| options["include_usage"] == true),
            step: 1,
            tool_results: 0,
            user: String::new(),
            system: String::new(),
            result: String::new(),
            attempt: 1,
            request: 1,
            body_bytes,
        };
        match wire {
            Wire::ChatCompletions => asked.read_chat(&fields)?,
            Wire::Responses => asked.read_responses(&fields)?,
            Wire::Messages => asked.read_messages(&fields)?,
        }
        Ok(asked)
    }

    fn read_chat(&mut self, fields: &Map<String, Value>) -> Result<(), String> {
        for message in list(fields, "messages")? {
            match message["role"].as_str() {
                Some("user") => self.user = texts_of(&message["content"]),
                Some("system" | "developer") => self.add_system(&message["content"]),
                Some("assistant") => self.step += 1,
                Some("tool") => self.add_result(&message["content"]),
                _ => return Err("messages: role: must be a known role".to_owned()),
            }
        }
        Ok(())
    }

    fn read_responses(&mut self, fields: &Map<String, Value>) -> Result<(), String> {
        if fields.get("previous_response_id").is_some_and(|id| !id.is_null()) {
            return Err("previous_response_id: this server keeps no answers".to_owned());
        }
        self.add_system(fields.get("instructions").unwrap_or(&Value::Null));
        if let Some(Value::String(text)) = fields.get("input") {
            self.user = text.clone();
            return Ok(());
        }
        // Consecutive items of the model belong to one answer.
        let mut is_models = false;
        for item in list(fields, "input")? {
            let kind = item["type"].as_str().unwrap_or("message");
            let role = item["role"].as_str();
            let was_models = is_models;
            is_models = matches!(
                (kind, role),
                ("message", Some("assistant")) | ("function_call" | "reasoning", _)
            );
            self.step += u64::from(is_models && !was_models);
            match (kind, role) {
                ("message", Some("user")) => self.user = texts_of(&item["content"]),
                ("message", Some("system" | "developer")) => self.add_system(&item["content"]),
                ("function_call_output", _) => self.add_result(&item["output"]),
                _ => {}
            }
        }
        Ok(())
    }

    fn read_messages(&mut self, fields: &Map<String, Value>) -> Result<(), String> {
        if !fields.get("max_tokens").is_some_and(Value::is_u64) {
            return Err("max_tokens: Field required".to_owned());
        }
        self.add_system(fields.get("system").unwrap_or(&Value::Null));
        for message in list(fields, "messages")? {
            let content = &message["content"];
            match message["role"].as_str() {
                Some("assistant") => self.step += 1,
                Some("user") => {
                    let blocks = content.as_array().map_or(&[][..], Vec::as_slice);
                    let results = blocks.iter().filter(|block| block["type"] == "tool_result");
                    results.for_each(|block| self.add_result(&block["content"]));
                    let text = texts_of(content);
                    if !text.is_empty() {
                        self.user = text;
                    }
                }
                _ => return Err("messages: role: must be user or assistant".to_owned()),
            }
        }
        Ok(())
    }

    fn add_system(&mut self, content: &Value) {
        self.system += &texts_of(content);
    }

    fn add_result(&mut self, content: &Value) {
        self.tool_results += 1;
        self.result = texts_of(content);
    }

    /// Replaces the variables in `text` by values of the request and by the time.
    pub(super) fn fill(&self, text: &str, wall_us: u64) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, from)) = rest.split_once("${") {
            out += before;
            let Some((name, after)) = from.split_once('}') else {
                rest = &rest[before.len()..];
                break;
            };
            match name {
                "user" => out += &self.user,
                "result" => out += beginning(&self.result),
                "step" => out += &self.step.to_string(),
                "attempt" => out += &self.attempt.to_string(),
                "now_us" => out += &wall_us.to_string(),
                _ => out.extend(["${", name, "}"]),
            }
            rest = after;
        }
        out + rest
    }
}

/// Returns the beginning of a result, at most 200 bytes.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(200)]
}

fn list<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<&'a [Value], String> {
    match fields.get(name) {
        Some(Value::Array(values)) if !values.is_empty() => Ok(values),
        _ => Err(format!("{name}: must be a list with at least one item")),
    }
}

/// Returns a text, or the joined texts of parts.
fn texts_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(wire: Wire, body: Value) -> ModelRequest {
        ModelRequest::read(wire, body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_same_conversation_is_the_same_in_all_wires() {
        let chat = json!({"model": "m", "stream": true, "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "look"}]},
            {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]},
            {"role": "tool", "tool_call_id": "a", "content": "one"},
            {"role": "tool", "tool_call_id": "b", "content": "two"},
        ]});
        let responses = json!({"model": "m", "stream": true, "instructions": "be brief", "input": [
            {"role": "user", "content": "look"},
            {"type": "reasoning", "id": "r"},
            {"type": "function_call", "call_id": "a"},
            {"type": "function_call", "call_id": "b"},
            {"type": "function_call_output", "call_id": "a", "output": "one"},
            {"type": "function_call_output", "call_id": "b", "output": "two"},
        ]});
        let messages = json!({"model": "m", "stream": true, "max_tokens": 9, "system": "be brief",
            "messages": [
                {"role": "user", "content": "look"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "one"},
                    {"type": "tool_result", "tool_use_id": "b",
                        "content": [{"type": "text", "text": "two"}]},
                ]},
            ],
        });
        for (wire, body) in [
            (Wire::ChatCompletions, chat),
            (Wire::Responses, responses),
            (Wire::Messages, messages),
        ] {
            let asked = read(wire, body);
            assert_eq!((asked.step, asked.tool_results), (2, 2), "{wire:?}");
            let texts = (asked.user.as_str(), asked.system.as_str(), asked.result.as_str());
            assert_eq!(texts, ("look", "be brief", "two"), "{wire:?}");
            assert!(asked.stream && asked.model == "m");
        }
    }

    #[test]
    fn what_is_wrong_with_a_request_is_named() {
        for (wire, body, problem) in [
            (Wire::ChatCompletions, "[]", "object"),
            (Wire::ChatCompletions, "{", "body: "),
            (Wire::ChatCompletions, "{\"messages\":[]}", "model"),
            (Wire::ChatCompletions, "{\"model\":\"m\"}", "messages"),
            (Wire::Messages, "{\"model\":\"m\",\"messages\":[{}]}", "max_tokens"),
            (
                Wire::Responses,
                "{\"model\":\"m\",\"previous_response_id\":\"x\"}",
                "keeps no answers",
            ),
        ] {
            let error = ModelRequest::read(wire, body.as_bytes()).unwrap_err();
            assert!(error.contains(problem), "{body}: {error}");
        }
    }

    #[test]
    fn texts_are_filled_with_what_was_asked() {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "you ${step}"}]});
        let asked = read(Wire::ChatCompletions, body);
        assert_eq!(asked.fill("a ${user} ${step}${now_us} ${x} ${", 7), "a you ${step} 17 ${x} ${");
    }
}
