//! A client of LangGraph's runs that wants every stream mode: the rules of `langgraph-sdk`, and
//! what the modes say of each other.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{SeenCall, SeenEnd, SeenStep, SeenStream, arguments, require, some_text, text};

#[derive(Default)]
pub struct GraphClient {
    seen: SeenStream,
    /// The number of the last event.
    number: Option<u64>,
    run: Option<String>,
    has_ended: bool,
    problem: Option<String>,
    /// The state, as updates lead to it from the first one that came.
    state: Option<Vec<Value>>,
    /// The arguments of each call, in pieces.
    told: BTreeMap<String, String>,
    /// The output of each call in the mode `custom`.
    grown: BTreeMap<String, String>,
    /// The messages whose metadata came, with the last copy of each.
    copies: BTreeMap<String, Value>,
}

impl GraphClient {
    pub fn event(&mut self, name: &str, id: &str, data: &Value) -> Result<(), String> {
        require(!self.has_ended, "an event comes after the end")?;
        let number: u64 = id.parse().map_err(|_| "the id is not a number")?;
        require(self.number.is_none_or(|last| number > last), "the numbers do not grow")?;
        self.number = Some(number);
        require(self.run.is_some() != (name == "metadata"), "the metadata must come first, once")?;
        require(self.problem.is_none() || name == "end", "only the end may follow an error")?;
        match name {
            "metadata" => {
                some_text(data, "thread_id")?;
                self.run = Some(some_text(data, "run_id")?.to_owned());
                Ok(())
            }
            "values" => self.values(data),
            "updates" => self.update(data),
            "messages" => self.piece(&data[0], &data[1]),
            "messages/metadata" => {
                let (id, data) =
                    data.as_object().and_then(|all| all.iter().next()).ok_or("empty")?;
                some_text(&data["metadata"], "langgraph_node")?;
                require(!self.copies.contains_key(id), "the metadata come twice")?;
                self.copies.insert(id.clone(), Value::Null);
                Ok(())
            }
            "messages/partial" | "messages/complete" => self.copy(&data[0]),
            "tools" => self.tool(data),
            "custom" => self.custom(data),
            "error" => {
                some_text(data, "error")?;
                self.problem = Some(some_text(data, "message")?.to_owned());
                Ok(())
            }
            "end" => self.end(data),
            _ => Err("the event is unknown".to_owned()),
        }
    }

    fn values(&mut self, data: &Value) -> Result<(), String> {
        let messages = data["messages"].as_array().ok_or("there are no messages")?;
        for message in messages {
            message_id(message)?;
        }
        match &self.state {
            Some(state) => require(state == messages, "the state is another one")?,
            None => self.state = Some(messages.clone()),
        }
        Ok(())
    }

    fn update(&mut self, data: &Value) -> Result<(), String> {
        let (node, update) = data.as_object().and_then(|all| all.iter().next()).ok_or("empty")?;
        let message = &update["messages"][0];
        let id = message_id(message)?;
        require((node == "tools") == (message["type"] == "tool"), "the node is another one")?;
        require(self.copies.get(id) == Some(message), "the complete copy is another one")?;
        let state = self.state.as_mut().ok_or("an update comes before the state")?;
        match state.iter_mut().find(|other| other["id"] == id) {
            Some(other) => *other = message.clone(),
            None => state.push(message.clone()),
        }
        Ok(())
    }

    fn copy(&mut self, message: &Value) -> Result<(), String> {
        let id = message_id(message)?.to_owned();
        let before = self.copies.get(&id).ok_or("the metadata did not come")?;
        let so_far = before["content"].as_str().unwrap_or_default();
        require(text(message, "content")?.starts_with(so_far), "the text is another one")?;
        self.copies.insert(id, message.clone());
        Ok(())
    }

    fn piece(&mut self, message: &Value, about: &Value) -> Result<(), String> {
        let (id, content) = (message_id(message)?, text(message, "content")?);
        require(about["tags"].is_array(), "there are no tags")?;
        let node = some_text(about, "langgraph_node")?;
        if message["type"] == "tool" {
            require(node == "tools", "the node is another one")?;
            let call = self.seen.known(&message["tool_call_id"])?;
            let is_right = match (text(message, "status")?, &call.result) {
                ("success", Some(Ok(output))) => output == content,
                ("error", Some(Err(problem))) => content.ends_with(problem),
                _ => false,
            };
            return require(is_right, "the result is another one");
        }
        require(message["type"] == "AIMessageChunk" && node == "agent", "the type is wrong")?;
        let step: usize = id.rsplit('-').next().and_then(|at| at.parse().ok()).ok_or("no step")?;
        require(about["langgraph_step"] == step, "the step is another one")?;
        while self.seen.steps.len() < step {
            self.seen.steps.push(SeenStep::default());
        }
        let step = &mut self.seen.steps[step.max(1) - 1];
        step.text.push_str(content);
        let reasoning = message["additional_kwargs"]["reasoning_content"].as_str();
        step.reasoning.push_str(reasoning.unwrap_or_default());
        for piece in message["tool_call_chunks"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().ok_or("the call has no index")? as usize;
            if let Some(id) = piece["id"].as_str() {
                require(index == step.calls.len(), "it is not the next call")?;
                let (id, name) = (id.to_owned(), some_text(piece, "name")?.to_owned());
                self.told.insert(id.clone(), String::new());
                step.calls.push(SeenCall { id, name, ..SeenCall::default() });
            }
            let call = step.calls.get_mut(index).ok_or("the call is unknown")?;
            let told = self.told.entry(call.id.clone()).or_default();
            told.push_str(text(piece, "args")?);
            call.arguments = arguments(told);
        }
        Ok(())
    }

    fn tool(&mut self, data: &Value) -> Result<(), String> {
        let call = self.seen.known(&data["toolCallId"])?;
        require(call.name == some_text(data, "name")?, "the tool is another one")?;
        require(call.result.is_none(), "the tool has ended")?;
        match some_text(data, "event")? {
            "on_tool_start" => {
                let input = &data["input"];
                if input.is_object() {
                    // Pieces of them may have been lost before.
                    let is_same = *input == call.arguments || call.arguments.is_string();
                    require(is_same, "the input is another one")?;
                    call.arguments = input.clone();
                }
                Ok(())
            }
            "on_tool_event" => {
                call.pieces.push_str(some_text(data, "data")?);
                Ok(())
            }
            "on_tool_end" => {
                call.result = Some(Ok(text(data, "output")?.to_owned()));
                Ok(())
            }
            "on_tool_error" => {
                call.result = Some(Err(text(data, "error")?.to_owned()));
                Ok(())
            }
            _ => Err("the event is unknown".to_owned()),
        }
    }

    fn custom(&mut self, data: &Value) -> Result<(), String> {
        match some_text(data, "type")? {
            "tool_output" => {
                let id = some_text(data, "tool_call_id")?.to_owned();
                let grown = self.grown.entry(id.clone()).or_default();
                grown.push_str(some_text(data, "delta")?);
                require(*self.seen.known(&id.into())?.pieces == **grown, "the modes differ")
            }
            "gap" => {
                self.seen.gap_count += 1;
                require(data["chunkCount"].is_u64(), "the gap has no count")
            }
            "detached" => require(data["resumeFrom"].is_u64(), "there is no place to resume from"),
            "progress" => require(data["progress"].is_number(), "it has no progress"),
            _ => Err("the event is unknown".to_owned()),
        }
    }

    fn end(&mut self, data: &Value) -> Result<(), String> {
        self.has_ended = true;
        require(data["run_id"].as_str() == self.run.as_deref(), "the run is another one")?;
        self.seen.end = match (some_text(data, "status")?, self.problem.take()) {
            ("success", None) => SeenEnd::Completed,
            ("interrupted", Some(_)) => SeenEnd::Cancelled,
            ("error" | "timeout", Some(problem)) => SeenEnd::Failed(problem),
            _ => return Err("the status does not fit".to_owned()),
        };
        let mut calls = self.seen.steps.iter().flat_map(|step| &step.calls);
        require(calls.all(|call| call.result.is_some()), "a call has no result")
    }

    /// A stream without an end tells that the run goes on.
    pub fn finish(mut self) -> Result<SeenStream, String> {
        if !self.has_ended {
            self.seen.end = SeenEnd::Detached;
        }
        Ok(self.seen)
    }
}

/// Checks the members that clients rely on, and returns the id.
fn message_id(message: &Value) -> Result<&str, String> {
    let kind = some_text(message, "type")?;
    require(message["content"].is_string(), "the content is not a text")?;
    match kind {
        "ai" => require(message["tool_calls"].is_array(), "there are no calls")?,
        "tool" => {
            some_text(message, "tool_call_id")?;
            require(message["artifact"] == json!(null), "there is an artifact")?;
        }
        "human" | "system" | "AIMessageChunk" => {}
        _ => return Err("the type is unknown".to_owned()),
    }
    some_text(message, "id")
}
