//! Requests of OpenAI's Responses API: `{model, input, instructions, tools, stream, …}`.
//!
//! Members that would change the result, and have no meaning here, are refused by their names.
//! Others are ignored, because each release of a client sends more. Options of a run that the API
//! does not have, such as `max_steps`, may be members, too.

use serde_json::{Map, Value, json};

use super::{AskError, Conversation, FrontRequest, error, text_if};
use crate::agent::CallMade;

/// The value of `include` for events that the specification does not have.
pub(in crate::endpoint) const EXTENSIONS: &str = "streamdoor:events";

/// The label by which a request names the server's own tools.
const SERVER: &str = "streamdoor";

/// The members that an answer repeats.
const REPEATED: [&str; 12] = [
    "background",
    "instructions",
    "max_output_tokens",
    "metadata",
    "model",
    "parallel_tool_calls",
    "previous_response_id",
    "safety_identifier",
    "store",
    "temperature",
    "tools",
    "user",
];

/// A request, as far as it is about the answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::endpoint) struct ResponseRequest {
    /// The conversation, and the options of the run.
    pub run: FrontRequest,
    /// True if the answer is a stream of events.
    pub is_stream: bool,
    /// True if the stream has only the events of the specification.
    pub is_plain: bool,
    /// True if the answer does not wait for the end of the response.
    pub is_background: bool,
    /// The response that this one follows.
    pub previous: Option<String>,
    /// The members that each answer repeats.
    pub repeated: Value,
}

/// Reads the members of a request.
pub(in crate::endpoint) fn of_responses(
    mut members: Map<String, Value>,
) -> Result<ResponseRequest, AskError> {
    members.retain(|_, value| !value.is_null());
    refuse(&members)?;
    let repeated = REPEATED.iter().filter_map(|name| Some((*name, members.get(*name)?.clone())));
    let repeated = repeated.map(|(name, value)| (name.to_owned(), value)).collect();
    let mut flag = |name: &str| match members.remove(name) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(flag)),
        Some(_) => error(name, "must be true or false"),
    };
    let is_stream = flag("stream")?.unwrap_or(false);
    let is_background = flag("background")?.unwrap_or(false);
    let is_stored = flag("store")?.unwrap_or(true);
    let is_parallel = flag("parallel_tool_calls")?.unwrap_or(true);
    let previous = text_if(&mut members, "previous_response_id")?;
    if members.get("metadata").is_some_and(|metadata| !metadata.is_object()) {
        return error("metadata", "must be an object");
    }
    let is_plain = members.remove("include").is_none_or(|included| included == json!([]));
    let messages = read_input(members.remove("input"))?;
    let mut options = Map::new();
    if let Some(tools) = read_tools(members.remove("tools"))? {
        options.insert("tools".to_owned(), tools);
    }
    for (name, own) in [
        ("instructions", "system"),
        ("max_output_tokens", "max_tokens"),
        ("temperature", "temperature"),
        ("model", "model"),
    ] {
        if let Some(value) = members.remove(name) {
            options.insert(own.to_owned(), value);
        }
    }
    // The words of the API for little effort have no equals here.
    let effort = members.remove("reasoning").map(|mut reasoning| reasoning["effort"].take());
    if let Some(effort @ ("low" | "medium" | "high")) = effort.as_ref().and_then(Value::as_str) {
        options.insert("reasoning_effort".to_owned(), effort.into());
    }
    if !is_parallel {
        options.insert("parallel".to_owned(), 1.into());
    }
    if !is_stored {
        options.insert("durability".to_owned(), "none".into()); // Memory forgets it soon.
    }
    members.retain(|name, _| !options.contains_key(name));
    options.append(&mut members);
    let run = FrontRequest { messages, options, ..FrontRequest::default() };
    Ok(ResponseRequest { run, is_stream, is_plain, is_background, previous, repeated })
}

/// Refuses members that would change the result, and cannot.
fn refuse(members: &Map<String, Value>) -> Result<(), AskError> {
    let has_other = |name: &str, harmless: &[Value]| {
        members.get(name).is_some_and(|value| !harmless.contains(value))
    };
    let text = json!({ "format": { "type": "text" } });
    let one = [json!(1), json!(1.0)];
    for (name, harmless, problem) in [
        ("conversation", &[][..], "is not supported: send the items, or previous_response_id"),
        ("prompt", &[], "is not supported: send instructions and input"),
        (
            "include",
            &[json!([]), json!([EXTENSIONS])],
            "can have streamdoor:events only: a response has all that there is",
        ),
        ("text", &[json!({}), text], "has a format that is not supported: only text is"),
        ("tool_choice", &[json!("auto")], "must be auto: the model chooses"),
        ("truncation", &[json!("disabled")], "must be disabled"),
        ("top_p", &one, "is not supported"),
        ("top_logprobs", &[json!(0)], "is not supported"),
        ("max_tool_calls", &[], "is not supported: max_steps limits the turns of the model"),
    ] {
        if has_other(name, harmless) {
            return error(name, problem);
        }
    }
    Ok(())
}

/// Reads the tools, which are those of the server.
fn read_tools(tools: Option<Value>) -> Result<Option<Value>, AskError> {
    let tools = match tools {
        None => return Ok(None),
        Some(Value::Array(tools)) => tools,
        Some(_) => return error("tools", "must be a list"),
    };
    let mut names = Vec::new();
    for (at, tool) in tools.iter().enumerate() {
        if tool["type"] != "mcp" || tool["server_label"] != SERVER {
            let problem = "must be mcp with the server_label streamdoor: the server carries out \
                           its own tools, and no others";
            return error(format!("tools[{at}].type"), problem);
        }
        match &tool["allowed_tools"] {
            Value::Null => return Ok(Some("all".into())),
            Value::Array(allowed) => names.extend(allowed.iter().cloned()),
            _ => {
                return error(format!("tools[{at}].allowed_tools"), "must be a list of names");
            }
        }
    }
    Ok(Some(names.into()))
}

/// Reads the items of a response.
pub(in crate::endpoint) fn read_items(
    items: Value,
) -> Result<Vec<crate::agent::Message>, AskError> {
    read_input(Some(items))
}

fn read_input(input: Option<Value>) -> Result<Vec<crate::agent::Message>, AskError> {
    let mut conversation = Conversation::default();
    let items = match input {
        Some(Value::String(text)) => {
            conversation.user(text);
            return Ok(conversation.end());
        }
        Some(Value::Array(items)) => items,
        None => return error("input", "is missing"),
        Some(_) => return error("input", "must be a text or a list of items"),
    };
    let mut at = 0;
    while at < items.len() {
        let item = &items[at];
        match item["type"].as_str() {
            None | Some("message") => read_message(item, at, &mut conversation)?,
            // One turn of the model may have several calls.
            Some("function_call" | "mcp_call") => {
                let is_call = |item: &&Value| {
                    matches!(item["type"].as_str(), Some("function_call" | "mcp_call"))
                };
                let calls: Vec<&Value> = items[at..].iter().take_while(is_call).collect();
                at += calls.len() - 1;
                read_calls(&calls, &mut conversation);
            }
            Some("function_call_output") => {
                let call_id = item["call_id"].as_str().unwrap_or_default();
                conversation.result(call_id, output_of(&item["output"]), false);
            }
            // The model does not get its own reasoning again.
            Some("reasoning") => {}
            Some(_) => return error(format!("input[{at}].type"), "is not supported"),
        }
        at += 1;
    }
    Ok(conversation.end())
}

fn read_message(item: &Value, at: usize, conversation: &mut Conversation) -> Result<(), AskError> {
    let Some(text) = text_of(&item["content"]) else {
        return error(format!("input[{at}].content"), "must be a text, or parts with texts only");
    };
    match item["role"].as_str() {
        Some("system" | "developer") => conversation.system(text),
        Some("user") => conversation.user(text),
        Some("assistant") => conversation.assistant(text, Vec::new()),
        _ => return error(format!("input[{at}].role"), "is not a known role"),
    }
    Ok(())
}

/// The texts of a content. `None` if it has something else, which a model would have to see.
fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let text = |part: &Value| match part["type"].as_str()? {
                "input_text" | "output_text" | "text" => part["text"].as_str().map(str::to_owned),
                "refusal" => part["refusal"].as_str().map(str::to_owned),
                _ => None,
            };
            parts.iter().map(text).collect()
        }
        _ => None,
    }
}

fn read_calls(calls: &[&Value], conversation: &mut Conversation) {
    let id_of = |item: &Value| {
        let id = item["call_id"].as_str().or(item["id"].as_str()).unwrap_or_default();
        id.to_owned()
    };
    let made = calls.iter().map(|item| CallMade {
        id: id_of(item),
        name: item["name"].as_str().unwrap_or_default().to_owned(),
        arguments: item["arguments"].as_str().unwrap_or("{}").to_owned(),
        extra: None,
    });
    conversation.calls(made.collect());
    for item in calls.iter().filter(|item| item["type"] == "mcp_call") {
        match item["error"].as_str() {
            Some(problem) => conversation.result(&id_of(item), problem.to_owned(), true),
            None => conversation.result(&id_of(item), output_of(&item["output"]), false),
        }
    }
}

fn output_of(output: &Value) -> String {
    text_of(output).unwrap_or_else(|| output.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{AssistantMessage, Message, ToolResult};

    fn read(body: Value) -> Result<ResponseRequest, AskError> {
        let Value::Object(members) = body else { panic!() };
        of_responses(members)
    }

    #[test]
    fn a_request_is_a_conversation_and_options() {
        let read = read(json!({
            "model": "m", "instructions": "Be short.", "stream": true, "background": null,
            "store": false, "parallel_tool_calls": false, "temperature": 0.5,
            "max_output_tokens": 9, "reasoning": { "effort": "low" }, "metadata": { "a": "b" },
            "include": ["streamdoor:events"],
            "max_steps": 3, "something_new": { "x": 1 }, "text": { "format": { "type": "text" } },
            "tools": [{ "type": "mcp", "server_label": "streamdoor", "allowed_tools": ["t"] }],
            "input": [
                { "role": "user", "content": [{ "type": "input_text", "text": "Hello" }] },
                { "type": "reasoning", "summary": [] },
                { "type": "message", "role": "assistant", "id": "x",
                  "content": [{ "type": "output_text", "text": "Hi", "annotations": [] }] },
                { "type": "mcp_call", "id": "mcp_1_c", "name": "t", "arguments": "{}",
                  "output": "done", "error": null },
                { "type": "function_call", "call_id": "d", "name": "u", "arguments": "{\"a\":1}" },
                { "type": "function_call_output", "call_id": "d", "output": "two" },
                { "role": "user", "content": "Go on" },
            ],
        }))
        .unwrap();
        assert!(read.is_stream && !read.is_plain && !read.is_background && read.previous.is_none());
        let call = |id: &str, name: &str, arguments: &str| CallMade {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
            extra: None,
        };
        let assistant = |text: &str, calls| {
            let (text, reasoning) = (text.to_owned(), Vec::new());
            Message::Assistant(AssistantMessage { text, calls, reasoning })
        };
        let result = |call_id: &str, output: &str| {
            let (call_id, output) = (call_id.to_owned(), output.to_owned());
            Message::Tool(ToolResult { call_id, output, is_error: false })
        };
        let calls = vec![call("mcp_1_c", "t", "{}"), call("d", "u", "{\"a\":1}")];
        let expected = [
            Message::User("Hello".to_owned()),
            assistant("Hi", calls),
            result("mcp_1_c", "done"),
            result("d", "two"),
            Message::User("Go on".to_owned()),
        ];
        assert_eq!(read.run.messages, expected);
        let options = json!({
            "tools": ["t"], "system": "Be short.", "max_tokens": 9, "temperature": 0.5,
            "model": "m", "reasoning_effort": "low", "parallel": 1, "durability": "none",
            "max_steps": 3, "something_new": { "x": 1 }, "metadata": { "a": "b" },
            "text": { "format": { "type": "text" } },
        });
        assert_eq!(Value::Object(read.run.options), options);
        assert_eq!(read.repeated["metadata"], json!({ "a": "b" }));
        assert_eq!(read.repeated.get("something_new"), None);
    }

    #[test]
    fn what_has_no_meaning_here_is_refused_by_its_name() {
        for (members, field) in [
            (json!({}), "input"),
            (json!({ "input": 7 }), "input"),
            (json!({ "input": "x", "stream": "yes" }), "stream"),
            (json!({ "input": "x", "tool_choice": "required" }), "tool_choice"),
            (json!({ "input": "x", "text": { "format": { "type": "json_object" } } }), "text"),
            (json!({ "input": "x", "conversation": "c" }), "conversation"),
            (json!({ "input": "x", "include": ["file_search_call.results"] }), "include"),
            (json!({ "input": "x", "top_p": 0.5 }), "top_p"),
            (json!({ "input": "x", "metadata": [] }), "metadata"),
            (json!({ "input": "x", "previous_response_id": 1 }), "previous_response_id"),
            (json!({ "input": "x", "tools": [{ "type": "function" }] }), "tools[0].type"),
            (json!({ "input": "x", "tools": {} }), "tools"),
            (json!({ "input": [{ "role": "robot", "content": "x" }] }), "input[0].role"),
            (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0].type"),
            (
                json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }),
                "input[0].content",
            ),
        ] {
            assert_eq!(read(members.clone()).unwrap_err().field, field, "{members}");
        }
        for harmless in [
            json!({ "input": "x", "tool_choice": "auto", "truncation": "disabled", "top_p": 1 }),
            json!({ "input": "x", "tools": [], "include": [], "text": {} }),
        ] {
            assert!(read(harmless).is_ok());
        }
    }
}
