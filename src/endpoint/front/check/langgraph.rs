//! Clients of LangGraph: `langchain-protocol`, and the packages that use it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{SeenCall, SeenEnd, SeenStep, SeenStream, require, some_text, text};

pub struct LangGraphClient {
    is_camel: bool,
    seen: SeenStream,
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

impl LangGraphClient {
    pub fn new(is_camel: bool) -> LangGraphClient {
        LangGraphClient {
            is_camel,
            seen: SeenStream::default(),
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
        require(event["type"] == "event", "the type is not event")?;
        let told = some_text(event, self.name("event_id", "eventId"))?;
        require(told == id, "the event has two ids")?;
        require(self.ids.insert(id.to_owned()), "the id comes twice")?;
        let seq = event["seq"]
            .as_u64()
            .filter(|seq| *seq < 1 << 53)
            .ok_or("the event has no valid number")?;
        require(self.seq.is_none_or(|last| last < seq), "the numbers must grow")?;
        self.seq = Some(seq);
        let method = some_text(event, "method")?;
        require(name == method, "the event has two methods")?;
        let params = &event["params"];
        require(params["namespace"] == serde_json::json!([]), "the namespace is not the root")?;
        require(params["timestamp"].is_u64(), "the timestamp is not a number")?;
        let data = &params["data"];
        let has_ended = self.lifecycle.as_deref().is_some_and(|event| event != "started");
        require(!has_ended, "an event comes after the end")?;
        require(
            self.lifecycle.is_some() || method == "lifecycle",
            "an event comes before the start",
        )?;
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
                require(data["payload"].is_object(), "the payload is not an object")
            }
            _ => Err("the method is unknown".to_owned()),
        }
    }

    fn lifecycle(&mut self, data: &Value) -> Result<(), String> {
        let event = some_text(data, "event")?;
        some_text(data, self.name("graph_name", "graphName"))?;
        match event {
            "started" => require(self.lifecycle.is_none(), "the start comes twice")?,
            "completed" | "failed" => {
                let mut tools = self.tools.values();
                require(tools.all(|tool| tool.result.is_some()), "a tool is still running")?;
                require(self.message.is_none(), "a message is still open")?;
                let failed = data["error"].as_str().map(str::to_owned);
                require(failed.is_some() == (event == "failed"), "only a failed run has an error")?;
                self.seen.end = match failed {
                    None => SeenEnd::Completed,
                    Some(text) if text == "the run was cancelled" => SeenEnd::Cancelled,
                    Some(text) => SeenEnd::Failed(text),
                };
            }
            _ => return Err("the event is unknown".to_owned()),
        }
        self.lifecycle = Some(event.to_owned());
        Ok(())
    }

    fn message(&mut self, data: &Value) -> Result<(), String> {
        let event = some_text(data, "event")?;
        if event == "message-start" {
            require(self.message.is_none(), "a message begins within a message")?;
            require(data["role"] == "ai", "the role is unknown")?;
            some_text(data, "id")?;
            self.message = Some(Message::default());
            self.seen.steps.push(SeenStep::default());
            return Ok(());
        }
        let message = self.message.as_mut().ok_or("no message is open")?;
        if event == "message-finish" || event == "error" {
            require(message.open.is_none(), "a block is open")?;
            require(
                event != "error" || some_text(data, "message").is_ok(),
                "the error has no message",
            )?;
            self.message = None;
            return Ok(());
        }
        let index = data["index"].as_u64().ok_or("the block has no index")?;
        require(index == message.next_index, "the index is not that of the open block")?;
        let step = self.seen.steps.last_mut().expect("an open message has a step");
        match event {
            "content-block-start" => {
                let kind = some_text(&data["content"], "type")?.to_owned();
                let fits = ["text", "reasoning", "tool_call_chunk"].contains(&&*kind);
                require(fits, "the type of the block is unknown")?;
                if kind == "tool_call_chunk" {
                    some_text(&data["content"], "id")?;
                    some_text(&data["content"], "name")?;
                }
                let is_open = message.open.replace(Open { kind, told: String::new() });
                require(is_open.is_none(), "a block begins within a block")
            }
            "content-block-delta" => {
                let open = message.open.as_mut().ok_or("no block is open")?;
                let (name, field) = match &*open.kind {
                    "text" => ("text-delta", "text"),
                    "reasoning" => ("reasoning-delta", "reasoning"),
                    _ => ("tool-call-delta", "args"),
                };
                require(
                    data["delta"]["type"] == name,
                    "the delta belongs to another type of block",
                )?;
                open.told.push_str(some_text(&data["delta"], field)?);
                Ok(())
            }
            "content-block-finish" => {
                let open = message.open.take().ok_or("no block is open")?;
                message.next_index += 1;
                finish_block(&open, &data["content"], step)
            }
            _ => Err("the event is unknown".to_owned()),
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
            return require(known.is_none(), "the tool has already started");
        }
        let tool = self.tools.get_mut(id).ok_or("the tool has not started")?;
        require(tool.result.is_none(), "the tool has ended")?;
        match event {
            "tool-output-delta" => tool.pieces.push_str(some_text(data, "delta")?),
            "tool-finished" => tool.result = Some(Ok(text(data, "output")?.to_owned())),
            "tool-error" => tool.result = Some(Err(some_text(data, "message")?.to_owned())),
            _ => return Err("the event is unknown".to_owned()),
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<SeenStream, String> {
        for (id, tool) in std::mem::take(&mut self.tools) {
            let call = self.seen.known(&id.into())?;
            require(call.name == tool.name, "the tool has two names")?;
            require(
                tool.input.is_none_or(|input| input == call.arguments),
                "the tool has two inputs",
            )?;
            (call.pieces, call.result) = (tool.pieces, tool.result);
        }
        if self.seen.end != SeenEnd::Detached {
            require(self.seen.end != SeenEnd::None, "the stream has no end")?;
            let mut calls = self.seen.steps.iter().flat_map(|step| &step.calls);
            require(calls.all(|call| call.result.is_some()), "a call has no result")?;
        }
        Ok(self.seen)
    }
}

fn finish_block(open: &Open, content: &Value, step: &mut SeenStep) -> Result<(), String> {
    let kind = some_text(content, "type")?;
    match (&*open.kind, kind) {
        ("text", "text") | ("reasoning", "reasoning") => {
            let whole = text(content, kind)?;
            require(whole.is_empty() || whole == open.told, "the text differs from its deltas")?;
            let told = if kind == "text" { &mut step.text } else { &mut step.reasoning };
            told.push_str(&open.told);
        }
        ("tool_call_chunk", "tool_call" | "invalid_tool_call") => {
            let arguments = content["args"].clone();
            let is_valid = kind == "tool_call";
            require(
                arguments.is_object() == is_valid,
                "the arguments do not fit the type of the call",
            )?;
            let told = super::arguments(&open.told); // No object: it was not finished.
            let spelled = arguments.as_str().map_or(arguments.clone(), super::arguments);
            require(
                !told.is_object() || told == spelled,
                "the arguments differ from their deltas",
            )?;
            require(
                is_valid || some_text(content, "error").is_ok(),
                "an invalid call has no error",
            )?;
            step.calls.push(SeenCall {
                id: some_text(content, "id")?.to_owned(),
                name: some_text(content, "name")?.to_owned(),
                arguments,
                ..SeenCall::default()
            });
        }
        _ => return Err("the block ends as another type".to_owned()),
    }
    Ok(())
}
