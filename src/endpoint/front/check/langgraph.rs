//! Clients of LangGraph: `langchain-protocol`, and the packages that use it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Seen, SeenCall, SeenEnd, SeenStep, require, some_text, text};

pub struct Client {
    is_camel: bool,
    seen: Seen,
    seq: Option<u64>,
    ids: BTreeSet<String>,
    message: Option<Message>,
    /// The tools that have started, with their names, inputs and results.
    tools: BTreeMap<String, Tool>,
    lifecycle: Option<String>,
}

#[derive(Default)]
struct Message {
    next_index: u64,
    open: Option<Open>,
}

#[derive(Default)]
struct Tool {
    name: String,
    input: Option<Value>,
    pieces: String,
    result: Option<Result<String, String>>,
}

/// A block that is open.
#[derive(Default)]
struct Open {
    kind: String,
    told: String,
}

impl Client {
    pub fn new(is_camel: bool) -> Client {
        Client {
            is_camel,
            seen: Seen::default(),
            seq: None,
            ids: BTreeSet::new(),
            message: None,
            tools: BTreeMap::new(),
            lifecycle: None,
        }
    }

    fn name(&self, snake: &'static str, camel: &'static str) -> &'static str {
        if self.is_camel { camel } else { snake }
    }

    pub fn event(&mut self, name: &str, id: &str, event: &Value) -> Result<(), String> {
        require(event["type"] == "event", "no event")?;
        let told = some_text(event, self.name("event_id", "eventId"))?;
        require(told == id, "two ids")?;
        require(self.ids.insert(id.to_owned()), "an id twice")?;
        let seq = event["seq"].as_u64().filter(|seq| *seq < 1 << 53).ok_or("no number")?;
        require(self.seq.is_none_or(|last| last < seq), "numbers that do not grow")?;
        self.seq = Some(seq);
        let method = some_text(event, "method")?;
        require(name == method, "two methods")?;
        let params = &event["params"];
        require(params["namespace"] == serde_json::json!([]), "not the root")?;
        require(params["timestamp"].is_u64(), "no time")?;
        let data = &params["data"];
        let has_ended = self.lifecycle.as_deref().is_some_and(|event| event != "started");
        require(!has_ended, "behind the end")?;
        require(self.lifecycle.is_some() || method == "lifecycle", "before the start")?;
        match method {
            "lifecycle" => self.lifecycle(data),
            "messages" => self.message(data),
            "tools" => self.tool(data),
            "custom" => {
                match some_text(data, "name")? {
                    "gap" => self.seen.gap_count += 1,
                    "detached" => self.seen.end = SeenEnd::Detached,
                    _ => {}
                }
                require(data["payload"].is_object(), "no payload")
            }
            _ => Err("an unknown method".to_owned()),
        }
    }

    fn lifecycle(&mut self, data: &Value) -> Result<(), String> {
        let event = some_text(data, "event")?;
        some_text(data, self.name("graph_name", "graphName"))?;
        match event {
            "started" => require(self.lifecycle.is_none(), "a second start")?,
            "completed" | "failed" => {
                let mut tools = self.tools.values();
                require(tools.all(|tool| tool.result.is_some()), "a tool is running")?;
                require(self.message.is_none(), "a message is open")?;
                let failed = data["error"].as_str().map(str::to_owned);
                require(failed.is_some() == (event == "failed"), "an error, or none")?;
                self.seen.end = match failed {
                    None => SeenEnd::Completed,
                    Some(text) if text == "the run was cancelled" => SeenEnd::Cancelled,
                    Some(text) => SeenEnd::Failed(text),
                };
            }
            _ => return Err("an unknown event".to_owned()),
        }
        self.lifecycle = Some(event.to_owned());
        Ok(())
    }

    fn message(&mut self, data: &Value) -> Result<(), String> {
        let event = some_text(data, "event")?;
        if event == "message-start" {
            require(self.message.is_none(), "a message in a message")?;
            require(data["role"] == "ai", "an unknown role")?;
            some_text(data, "id")?;
            self.message = Some(Message::default());
            self.seen.steps.push(SeenStep::default());
            return Ok(());
        }
        let message = self.message.as_mut().ok_or("outside of a message")?;
        if event == "message-finish" || event == "error" {
            require(message.open.is_none(), "a block is open")?;
            require(event != "error" || some_text(data, "message").is_ok(), "no reason")?;
            self.message = None;
            return Ok(());
        }
        let index = data["index"].as_u64().ok_or("no index")?;
        require(index == message.next_index, "a block that is not open, or interleaves")?;
        let step = self.seen.steps.last_mut().expect("a message is one");
        match event {
            "content-block-start" => {
                let kind = some_text(&data["content"], "type")?.to_owned();
                let fits = ["text", "reasoning", "tool_call_chunk"].contains(&&*kind);
                require(fits, "an unknown block")?;
                if kind == "tool_call_chunk" {
                    some_text(&data["content"], "id")?;
                    some_text(&data["content"], "name")?;
                }
                let is_open = message.open.replace(Open { kind, told: String::new() });
                require(is_open.is_none(), "a block in a block")
            }
            "content-block-delta" => {
                let open = message.open.as_mut().ok_or("no block is open")?;
                let (name, field) = match &*open.kind {
                    "text" => ("text-delta", "text"),
                    "reasoning" => ("reasoning-delta", "reasoning"),
                    _ => ("tool-call-delta", "args"),
                };
                require(data["delta"]["type"] == name, "of another block")?;
                open.told.push_str(some_text(&data["delta"], field)?);
                Ok(())
            }
            "content-block-finish" => {
                let open = message.open.take().ok_or("no block is open")?;
                message.next_index += 1;
                finish_block(&open, &data["content"], step)
            }
            _ => Err("an unknown event".to_owned()),
        }
    }

    fn tool(&mut self, data: &Value) -> Result<(), String> {
        let id = some_text(data, self.name("tool_call_id", "toolCallId"))?;
        let event = some_text(data, "event")?;
        if event == "tool-started" {
            let name = some_text(data, self.name("tool_name", "toolName"))?.to_owned();
            let input = data.get("input").cloned();
            let tool = Tool { name, input, ..Tool::default() };
            let known = self.tools.insert(id.to_owned(), tool);
            return require(known.is_none(), "it has started already");
        }
        let tool = self.tools.get_mut(id).ok_or("it has not started")?;
        require(tool.result.is_none(), "it has ended")?;
        match event {
            "tool-output-delta" => tool.pieces.push_str(some_text(data, "delta")?),
            "tool-finished" => tool.result = Some(Ok(text(data, "output")?.to_owned())),
            "tool-error" => tool.result = Some(Err(some_text(data, "message")?.to_owned())),
            _ => return Err("an unknown event".to_owned()),
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<Seen, String> {
        for (id, tool) in std::mem::take(&mut self.tools) {
            let call = self.seen.known(&id.into())?;
            require(call.name == tool.name, "another name")?;
            require(tool.input.is_none_or(|input| input == call.arguments), "another input")?;
            (call.pieces, call.result) = (tool.pieces, tool.result);
        }
        if self.seen.end != SeenEnd::Detached {
            require(self.seen.end != SeenEnd::None, "no end")?;
            let mut calls = self.seen.steps.iter().flat_map(|step| &step.calls);
            require(calls.all(|call| call.result.is_some()), "a call without a result")?;
        }
        Ok(self.seen)
    }
}

fn finish_block(open: &Open, content: &Value, step: &mut SeenStep) -> Result<(), String> {
    let kind = some_text(content, "type")?;
    match (&*open.kind, kind) {
        ("text", "text") | ("reasoning", "reasoning") => {
            let whole = text(content, kind)?;
            require(whole.is_empty() || whole == open.told, "it is not what was told")?;
            let told = if kind == "text" { &mut step.text } else { &mut step.reasoning };
            told.push_str(&open.told);
        }
        ("tool_call_chunk", "tool_call" | "invalid_tool_call") => {
            let arguments = content["args"].clone();
            let is_valid = kind == "tool_call";
            require(arguments.is_object() == is_valid, "no arguments")?;
            let told = super::arguments(&open.told); // No object: it was not finished.
            let spelled = arguments.as_str().map_or(arguments.clone(), super::arguments);
            require(!told.is_object() || told == spelled, "other arguments")?;
            require(is_valid || some_text(content, "error").is_ok(), "no error")?;
            step.calls.push(SeenCall {
                id: some_text(content, "id")?.to_owned(),
                name: some_text(content, "name")?.to_owned(),
                arguments,
                ..SeenCall::default()
            });
        }
        _ => return Err("it ends as another block".to_owned()),
    }
    Ok(())
}
