//! The client `@ag-ui/client`: the checks of its `verify`, and the effects of its reducer.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{SeenCall, SeenEnd, SeenStep, SeenStream, arguments, require, some_text, text};

#[derive(Default)]
pub struct AgUiClient {
    seen: SeenStream,
    has_started: bool,
    has_ended: bool,
    steps: BTreeSet<String>,
    /// Names of the steps seen so far, and the index of the one that began last.
    names: Vec<String>,
    current: usize,
    messages: BTreeSet<String>,
    reasoning: BTreeSet<String>,
    spans: BTreeSet<String>,
    calls: BTreeSet<String>,
    /// The arguments received so far, by call.
    told: BTreeMap<String, String>,
    activities: BTreeSet<String>,
}

impl AgUiClient {
    /// Starts the checks of the order anew. The application keeps what it has.
    pub fn reconnect(&mut self) {
        *self = AgUiClient {
            seen: std::mem::take(&mut self.seen),
            names: std::mem::take(&mut self.names),
            told: std::mem::take(&mut self.told),
            activities: std::mem::take(&mut self.activities),
            ..AgUiClient::default()
        };
    }

    pub fn event(&mut self, event: &Value) -> Result<(), String> {
        let name = some_text(event, "type")?;
        require(!self.has_ended, "an event comes after the end")?;
        require(
            self.has_started != (name == "RUN_STARTED"),
            "the start must be the first event and the only start",
        )?;
        if let Some(time) = event.get("timestamp") {
            require(time.is_u64(), "the timestamp is not a number")?;
        }
        let nulls = event.as_object().expect("an event is an object").values().any(Value::is_null);
        require(!nulls, "a field is null")?;
        match name {
            "RUN_STARTED" => {
                self.has_started = true;
                require(event["protocolVersion"] == "1.0", "the version is not 1.0")?;
                some_text(event, "threadId")?;
                some_text(event, "runId").map(drop)
            }
            "RUN_FINISHED" => self.finished(event),
            "RUN_ERROR" => {
                self.has_ended = true;
                let message = some_text(event, "message")?.to_owned();
                self.seen.end = match event["code"].as_str() {
                    Some("detached") => SeenEnd::Detached,
                    _ => SeenEnd::Failed(message),
                };
                Ok(())
            }
            "STEP_STARTED" => {
                let step = some_text(event, "stepName")?.to_owned();
                let known = self.names.iter().position(|name| *name == step);
                self.current = known.unwrap_or(self.names.len());
                if known.is_none() {
                    self.names.push(step.clone());
                    self.seen.steps.push(SeenStep::default());
                }
                require(self.steps.insert(step), "the step is already open")
            }
            "STEP_FINISHED" => {
                require(self.steps.remove(some_text(event, "stepName")?), "the step is not open")
            }
            "CUSTOM" => {
                let name = some_text(event, "name")?;
                self.seen.gap_count += usize::from(name == "streamdoor.gap");
                require(name.starts_with("streamdoor."), "the name has no prefix")?;
                require(event["value"].is_object(), "the value is not an object")
            }
            _ if name.starts_with("TOOL_CALL") => self.call(name, event),
            _ if name.starts_with("ACTIVITY") => self.activity(name, event),
            _ => self.prose(name, event),
        }
    }

    fn prose(&mut self, name: &str, event: &Value) -> Result<(), String> {
        let id = some_text(event, "messageId")?;
        // The id of a message names its step. The message may have been begun before.
        let number = id.split('-').nth(2).and_then(|number| number.parse::<usize>().ok());
        require(number.is_some(), "the message id names no step")?;
        let (open, is_opening) = match name {
            "TEXT_MESSAGE_START" => (&mut self.messages, Some(true)),
            "TEXT_MESSAGE_END" => (&mut self.messages, Some(false)),
            "TEXT_MESSAGE_CONTENT" => (&mut self.messages, None),
            "REASONING_START" => (&mut self.spans, Some(true)),
            "REASONING_END" => (&mut self.spans, Some(false)),
            "REASONING_MESSAGE_START" => (&mut self.reasoning, Some(true)),
            "REASONING_MESSAGE_END" => (&mut self.reasoning, Some(false)),
            "REASONING_MESSAGE_CONTENT" => (&mut self.reasoning, None),
            _ => return Err("the event is unknown".to_owned()),
        };
        match is_opening {
            Some(true) => require(open.insert(id.to_owned()), "it is already open"),
            Some(false) => require(open.remove(id), "it is not open"),
            None => {
                require(open.contains(id), "it is not open")?;
                let step = self.seen.steps.get_mut(self.current).ok_or("no step is open")?;
                let is_text = name == "TEXT_MESSAGE_CONTENT";
                let told = if is_text { &mut step.text } else { &mut step.reasoning };
                told.push_str(some_text(event, "delta")?);
                Ok(())
            }
        }
    }

    fn call(&mut self, name: &str, event: &Value) -> Result<(), String> {
        let id = some_text(event, "toolCallId")?;
        match name {
            "TOOL_CALL_START" => {
                require(self.calls.insert(id.to_owned()), "it is already open")?;
                let name = some_text(event, "toolCallName")?.to_owned();
                some_text(event, "parentMessageId")?;
                if self.seen.call(id).is_none() {
                    let step = self.seen.steps.get_mut(self.current).ok_or("no step is open")?;
                    step.calls.push(SeenCall { id: id.to_owned(), name, ..SeenCall::default() });
                }
            }
            "TOOL_CALL_ARGS" => {
                require(self.calls.contains(id), "it is not open")?;
                let told = self.told.entry(id.to_owned()).or_default();
                told.push_str(some_text(event, "delta")?);
            }
            "TOOL_CALL_END" => {
                require(self.calls.remove(id), "it is not open")?;
                let told = self.told.get(id).map(String::as_str);
                self.seen.known(&event["toolCallId"])?.arguments =
                    arguments(told.unwrap_or_default());
            }
            "TOOL_CALL_RESULT" => {
                require(!self.calls.contains(id), "the arguments of the call are not complete")?;
                some_text(event, "messageId")?;
                let call = self.seen.known(&event["toolCallId"])?;
                require(call.result.is_none(), "the call has a result already")?;
                call.result = Some(Ok(text(event, "content")?.to_owned()));
            }
            _ => return Err("the event is unknown".to_owned()),
        }
        Ok(())
    }

    fn activity(&mut self, name: &str, event: &Value) -> Result<(), String> {
        let id = some_text(event, "messageId")?;
        let call = id.strip_suffix("-output").ok_or("the activity belongs to no call")?;
        some_text(event, "activityType")?;
        if name == "ACTIVITY_SNAPSHOT" {
            let is_known = !self.activities.insert(id.to_owned());
            require(event["content"]["pieces"] == json!([]), "the activity is not empty")?;
            let is_kept = is_known && event["replace"] == false;
            if !is_kept {
                self.seen.known(&call.into())?.pieces.clear();
            }
            return Ok(());
        }
        require(name == "ACTIVITY_DELTA", "the event is unknown")?;
        require(self.activities.contains(id), "the activity is unknown")?;
        for change in event["patch"].as_array().ok_or("the patch is not a list")? {
            require(change["op"] == "add", "the patch must only add")?;
            if change["path"] == "/pieces/-" {
                let piece = some_text(change, "value")?;
                self.seen.known(&call.into())?.pieces.push_str(piece);
            }
        }
        Ok(())
    }

    fn finished(&mut self, event: &Value) -> Result<(), String> {
        self.has_ended = true;
        some_text(event, "threadId")?;
        some_text(event, "runId")?;
        for open in [&self.steps, &self.messages, &self.reasoning, &self.spans, &self.calls] {
            require(open.is_empty(), &format!("{open:?} is open"))?;
        }
        // Strict: no other fields.
        self.seen.end = match &event["outcome"] {
            outcome if *outcome == json!({"type": "success"}) => SeenEnd::Completed,
            outcome if *outcome == json!({"type": "cancelled"}) => SeenEnd::Cancelled,
            _ => return Err("the outcome is unknown".to_owned()),
        };
        let has_result = event.get("result").is_some();
        require(has_result == (self.seen.end == SeenEnd::Completed), "the result is wrong")?;
        for usage in event.get("usage").and_then(Value::as_array).into_iter().flatten() {
            for (name, value) in usage.as_object().ok_or("a usage is not an object")? {
                require(name == "model" || value.is_u64(), "a count is not a number")?;
            }
        }
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
