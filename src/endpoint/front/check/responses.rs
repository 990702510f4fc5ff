//! A client of the Responses API: the rules of the accumulators of the packages `openai`, and what
//! the specification says of events and items.

use serde_json::{Value, json};

use super::{SeenCall, SeenEnd, SeenStep, SeenStream, arguments, require, some_text, text};

/// The ends of a response.
const ENDS: [&str; 3] = ["response.completed", "response.incomplete", "response.failed"];

#[derive(Default)]
pub struct ResponsesClient {
    seen: SeenStream,
    /// The number of the last event.
    number: Option<u64>,
    has_started: bool,
    is_in_progress: bool,
    has_ended: bool,
    /// The items as they were added and ended.
    items: Vec<Value>,
    /// The text, or the arguments, that came for each.
    told: Vec<String>,
}

impl ResponsesClient {
    pub fn event(&mut self, name: &str, event: &Value) -> Result<(), String> {
        let kind = some_text(event, "type")?;
        require(kind == name, "the event has another name than its data")?;
        require(!self.has_ended, "an event comes after the end")?;
        let number = event["sequence_number"].as_u64().ok_or("it has no number")?;
        require(self.number.is_none_or(|last| number > last), "the numbers do not grow")?;
        self.number = Some(number);
        let is_first = kind == "response.created";
        require(is_first != self.has_started, "the first event must be the creation")?;
        match kind {
            "response.created" => {
                self.has_started = true;
                // One that comes later has what was there before.
                self.items = event["response"]["output"].as_array().cloned().unwrap_or_default();
                self.told = vec![String::new(); self.items.len()];
                response(&event["response"], "in_progress")
            }
            "response.in_progress" => {
                require(!self.is_in_progress, "it is in progress already")?;
                self.is_in_progress = true;
                response(&event["response"], "in_progress")
            }
            "error" => {
                self.has_ended = true;
                require(event["code"] == "detached", "the error is another one")?;
                some_text(event, "message")?;
                self.seen.end = SeenEnd::Detached;
                Ok(())
            }
            "streamdoor:gap" => {
                self.seen.gap_count += 1;
                require(event["chunkCount"].is_u64(), "the gap has no count")
            }
            "streamdoor:progress" => require(event["progress"].is_number(), "it has no progress"),
            "response.output_item.added" => self.added(event),
            "response.output_item.done" => self.done(event),
            _ if ENDS.contains(&kind) => self.ended(kind, event),
            _ => self.of_item(kind, event),
        }
    }

    fn added(&mut self, event: &Value) -> Result<(), String> {
        let item = &event["item"];
        let index = event["output_index"].as_u64().ok_or("it has no index")?;
        require(index == self.items.len() as u64, "it is not the next item")?;
        require(item["status"] == "in_progress", "the item is not in progress")?;
        let id = some_text(item, "id")?;
        require(self.items.iter().all(|other| other["id"] != id), "the item is there already")?;
        let step = match some_text(item, "type")? {
            "message" => {
                require(item["role"] == "assistant", "the role is wrong")?;
                require(item["content"] == json!([]), "the content is not empty")?;
                id.split('_').nth(2)
            }
            "reasoning" => {
                require(item["summary"] == json!([]), "the summary is not empty")?;
                id.split('_').nth(2)
            }
            "mcp_call" => {
                some_text(item, "server_label")?;
                require(item["arguments"] == "", "the arguments are not empty")?;
                id.split('_').nth(1)
            }
            _ => return Err("the item is unknown".to_owned()),
        };
        let step: usize = step.and_then(|step| step.parse().ok()).ok_or("the id has no step")?;
        while self.seen.steps.len() < step {
            self.seen.steps.push(SeenStep::default());
        }
        if item["type"] == "mcp_call" {
            let name = some_text(item, "name")?.to_owned();
            let id = id.splitn(3, '_').nth(2).ok_or("the id has no call")?.to_owned();
            let call = SeenCall { id, name, ..SeenCall::default() };
            self.seen.steps[step.max(1) - 1].calls.push(call);
        }
        self.items.push(item.clone());
        self.told.push(String::new());
        Ok(())
    }

    /// The index of the item of an event, which has to be open.
    fn open(&self, event: &Value) -> Result<usize, String> {
        let index = event["output_index"].as_u64().ok_or("it has no index")? as usize;
        let item = self.items.get(index).ok_or("there is no such item")?;
        require(item["id"] == event["item_id"], "the id is that of another item")?;
        require(item["status"] == "in_progress", "the item has ended")?;
        Ok(index)
    }

    fn of_item(&mut self, kind: &str, event: &Value) -> Result<(), String> {
        let index = self.open(event)?;
        let of = self.items[index]["type"].as_str().unwrap_or_default().to_owned();
        let has_type = |wanted: &str| require(of == wanted, "the item has another type");
        match kind {
            "response.content_part.added" => {
                require(event["content_index"] == 0, "it is not the first part")?;
                require(event["part"]["text"] == "", "the part is not empty")
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                let is_text = kind == "response.output_text.delta";
                has_type(if is_text { "message" } else { "reasoning" })?;
                require(!is_text || event["logprobs"] == json!([]), "it has no logprobs")?;
                let delta = some_text(event, "delta")?;
                self.told[index].push_str(delta);
                let step = step_of(&self.items[index]);
                let step = &mut self.seen.steps[step];
                let told = if is_text { &mut step.text } else { &mut step.reasoning };
                told.push_str(delta);
                Ok(())
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                require(event["text"] == self.told[index], "the text is another one")
            }
            "response.content_part.done" => {
                require(event["part"]["text"] == self.told[index], "the part is another one")?;
                self.items[index]["content"] = json!([event["part"]]);
                Ok(())
            }
            "response.mcp_call.in_progress" => has_type("mcp_call"),
            "response.mcp_call_arguments.delta" => {
                has_type("mcp_call")?;
                self.told[index].push_str(some_text(event, "delta")?);
                Ok(())
            }
            "response.mcp_call_arguments.done" => {
                has_type("mcp_call")?;
                let whole = text(event, "arguments")?;
                require(whole == self.told[index], "the arguments are others")?;
                self.items[index]["arguments"] = whole.into();
                self.call(index)?.arguments = arguments(whole);
                Ok(())
            }
            "streamdoor:tool_output.delta" => {
                let delta = some_text(event, "delta")?.to_owned();
                self.call(index)?.pieces.push_str(&delta);
                Ok(())
            }
            "response.mcp_call.completed" | "response.mcp_call.failed" => has_type("mcp_call"),
            _ => Err("the event is unknown".to_owned()),
        }
    }

    fn call(&mut self, index: usize) -> Result<&mut SeenCall, String> {
        let id = self.items[index]["id"].as_str().unwrap_or_default();
        let id = id.splitn(3, '_').nth(2).unwrap_or_default().to_owned();
        self.seen.known(&id.into())
    }

    fn done(&mut self, event: &Value) -> Result<(), String> {
        let item = &event["item"];
        let index = event["output_index"].as_u64().ok_or("it has no index")? as usize;
        let before = self.items.get(index).ok_or("there is no such item")?.clone();
        require(before["status"] == "in_progress", "the item has ended already")?;
        for name in ["id", "type", "content", "arguments", "name"] {
            require(item[name] == before[name], &format!("`{name}` is another one"))?;
        }
        let status = some_text(item, "status")?;
        if item["type"] == "mcp_call" {
            let result = match (&item["error"], status) {
                (Value::Null, "completed") => Ok(text(item, "output")?.to_owned()),
                (Value::String(error), "failed") => Err(error.clone()),
                _ => return Err("the error does not fit the status".to_owned()),
            };
            self.call(index)?.result = Some(result);
        } else {
            require(status == "completed", "the status is another one")?;
        }
        self.items[index] = item.clone();
        Ok(())
    }

    fn ended(&mut self, kind: &str, event: &Value) -> Result<(), String> {
        self.has_ended = true;
        let found = &event["response"];
        let status = some_text(found, "status")?;
        response(found, status)?;
        let all = found["output"].as_array().ok_or("there is no output")?;
        require(*all == self.items, "the items are others")?;
        require(all.iter().all(|item| item["status"] != "in_progress"), "an item is open")?;
        let error = found["error"]["message"].as_str();
        self.seen.end = match (kind, status, error) {
            ("response.completed", "completed", None) => SeenEnd::Completed,
            ("response.incomplete", "cancelled", None) => SeenEnd::Cancelled,
            ("response.failed", "failed", Some(error)) => SeenEnd::Failed(error.to_owned()),
            ("response.incomplete", "incomplete", None) => {
                some_text(&found["incomplete_details"], "reason")?;
                SeenEnd::Completed
            }
            _ => return Err("the end does not fit the status".to_owned()),
        };
        Ok(())
    }

    pub fn finish(self) -> Result<SeenStream, String> {
        require(self.has_ended, "the stream has no end")?;
        if self.seen.end != SeenEnd::Detached {
            let mut calls = self.seen.steps.iter().flat_map(|step| &step.calls);
            require(calls.all(|call| call.result.is_some()), "a call has no result")?;
        }
        Ok(self.seen)
    }
}

/// The index of the step of an item with prose.
fn step_of(item: &Value) -> usize {
    let id = item["id"].as_str().unwrap_or_default();
    id.split('_').nth(2).and_then(|step| step.parse().ok()).unwrap_or(1_usize).max(1) - 1
}

/// Checks the members that clients rely on.
fn response(found: &Value, status: &str) -> Result<(), String> {
    require(found["object"] == "response", "it is no response")?;
    require(some_text(found, "id")?.starts_with("resp_"), "the id is not that of a response")?;
    require(found["status"] == status, "the status is another one")?;
    require(found["created_at"].is_u64(), "it has no time")?;
    some_text(found, "model")?;
    for name in ["output", "tools"] {
        require(found[name].is_array(), &format!("`{name}` is not a list"))?;
    }
    let members = found.as_object().ok_or("it is not an object")?;
    for name in ["error", "incomplete_details", "instructions", "usage", "previous_response_id"] {
        require(members.contains_key(name), &format!("`{name}` is missing"))?;
    }
    Ok(())
}
