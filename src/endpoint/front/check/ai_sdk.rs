//! The client `ai`, generations 5 to 7.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{SeenCall, SeenEnd, SeenStep, SeenStream, arguments, require, some_text, text};
use crate::endpoint::front::SdkVersion;

/// The chunks of each version and their fields. A `!` marks required fields.
const KNOWN: [(SdkVersion, &str, &[&str]); 19] = {
    use SdkVersion::{V5, V6, V7};
    [
        (V5, "start", &["messageId", "messageMetadata"]),
        (V5, "start-step", &[]),
        (V5, "finish-step", &[]),
        (V5, "text-start", &["id!", "providerMetadata"]),
        (V5, "text-delta", &["id!", "delta!", "providerMetadata"]),
        (V5, "text-end", &["id!", "providerMetadata"]),
        (V5, "reasoning-start", &["id!", "providerMetadata"]),
        (V5, "reasoning-delta", &["id!", "delta!", "providerMetadata"]),
        (V5, "reasoning-end", &["id!", "providerMetadata"]),
        (V5, "tool-input-start", &["toolCallId!", "toolName!", "providerExecuted", "dynamic"]),
        (V5, "tool-input-delta", &["toolCallId!", "inputTextDelta!"]),
        (V5, "tool-input-available", &["toolCallId!", "toolName!", "input!", "dynamic"]),
        (V5, "tool-input-error", &["toolCallId!", "toolName!", "input!", "errorText!", "dynamic"]),
        (V5, "tool-output-available", &["toolCallId!", "output!", "dynamic", "preliminary"]),
        (V5, "tool-output-error", &["toolCallId!", "errorText!", "dynamic"]),
        (V5, "error", &["errorText!"]),
        (V6, "finish", &["finishReason", "messageMetadata"]),
        (V5, "finish", &["messageMetadata"]),
        (V7, "abort", &["reason"]),
    ]
};
const FINISH_REASONS: [&str; 6] =
    ["stop", "length", "content-filter", "tool-calls", "error", "other"];

pub struct AiSdkClient {
    sdk: SdkVersion,
    seen: SeenStream,
    has_started: bool,
    is_in_step: bool,
    /// The blocks that are open.
    open: Vec<(String, String)>,
    used: Vec<String>,
    /// The input received so far, of calls whose input is incomplete.
    inputs: BTreeMap<String, String>,
    /// Calls whose input was invalid.
    wrong: BTreeSet<String>,
    has_failed: bool,
    has_finished: bool,
    is_done: bool,
}

impl AiSdkClient {
    pub fn new(sdk: SdkVersion) -> AiSdkClient {
        AiSdkClient {
            sdk,
            seen: SeenStream::default(),
            has_started: false,
            is_in_step: false,
            open: Vec::new(),
            used: Vec::new(),
            inputs: BTreeMap::new(),
            wrong: BTreeSet::new(),
            has_failed: false,
            has_finished: false,
            is_done: false,
        }
    }

    pub fn reconnect(&mut self) {
        *self = AiSdkClient::new(self.sdk); // The message is created anew.
    }

    pub fn done(&mut self) -> Result<(), String> {
        require(!self.is_done, "[DONE] comes twice")?;
        self.is_done = true;
        Ok(())
    }

    pub fn chunk(&mut self, chunk: &Value) -> Result<(), String> {
        require(!self.is_done, "a chunk comes after [DONE]")?;
        require(!self.has_finished, "a chunk comes after the end")?;
        let name = some_text(chunk, "type")?;
        self.check_fields(name, chunk)?;
        require(self.has_started || name == "start", "a chunk comes before the start")?;
        require(!self.has_failed || name == "finish", "a chunk comes after an error")?;
        if let Some(data) = name.strip_prefix("data-") {
            return self.data(data, chunk);
        }
        match name {
            "start" => {
                require(!self.has_started, "the start comes twice")?;
                self.has_started = true;
                some_text(chunk, "messageId").map(drop)
            }
            "error" => {
                self.has_failed = true;
                if self.seen.end == SeenEnd::None {
                    self.seen.end = SeenEnd::Failed(some_text(chunk, "errorText")?.to_owned());
                }
                Ok(())
            }
            "finish" | "abort" => self.end(name, chunk),
            "start-step" => {
                require(!self.is_in_step, "a step begins within a step")?;
                self.is_in_step = true;
                self.seen.steps.push(SeenStep::default());
                Ok(())
            }
            _ => {
                require(self.is_in_step, "no step is open")?;
                self.in_step(name, chunk)
            }
        }
    }

    fn check_fields(&self, name: &str, chunk: &Value) -> Result<(), String> {
        let all = ["id", "data!", "transient"];
        let fields: &[&str] = match name {
            _ if name.starts_with("data-") => &all,
            "abort" if self.sdk < SdkVersion::V7 => &[],
            _ => {
                let known = KNOWN.iter().find(|known| known.0 <= self.sdk && known.1 == name);
                known.ok_or("the chunk is unknown")?.2
            }
        };
        for field in chunk.as_object().expect("a chunk is an object").keys() {
            let is_known = fields.iter().any(|known| known.trim_end_matches('!') == field);
            require(field == "type" || is_known, &format!("the field `{field}` is unknown"))?;
        }
        for needed in fields.iter().filter_map(|field| field.strip_suffix('!')) {
            require(chunk.get(needed).is_some(), &format!("`{needed}` is missing"))?;
            let is_free = ["input", "output", "data"].contains(&needed);
            require(is_free || chunk[needed].is_string(), &format!("`{needed}` is not a string"))?;
        }
        Ok(())
    }

    fn in_step(&mut self, name: &str, chunk: &Value) -> Result<(), String> {
        if name == "finish-step" {
            require(self.open.is_empty(), "a block is open")?;
            self.is_in_step = false;
            return Ok(());
        }
        if let Some((prose, what)) = name.split_once('-')
            && ["text", "reasoning"].contains(&prose)
        {
            let id = some_text(chunk, "id")?.to_owned();
            let at = self.open.iter().position(|open| *open == (prose.to_owned(), id.clone()));
            return self.block(prose, what, &id, at, chunk);
        }
        let id = some_text(chunk, "toolCallId")?;
        // Some generations look among dynamic calls only if the chunk says so.
        require(name == "tool-input-delta" || chunk["dynamic"] == true, "the call is not dynamic")?;
        match name {
            "tool-input-start" => {
                require(self.seen.call(id).is_none(), "the call has already begun")?;
                self.inputs.insert(id.to_owned(), String::new());
                let name = some_text(chunk, "toolName")?.to_owned();
                let step = self.seen.steps.last_mut().expect("a step is open");
                step.calls.push(SeenCall { id: id.to_owned(), name, ..SeenCall::default() });
            }
            "tool-input-delta" => {
                let input = self.inputs.get_mut(id).ok_or("the input has not begun")?;
                input.push_str(some_text(chunk, "inputTextDelta")?);
            }
            "tool-input-available" | "tool-input-error" => {
                let told = self.inputs.remove(id).ok_or("the input has not begun")?;
                let told = arguments(&told);
                let input = chunk["input"].as_str().map_or(chunk["input"].clone(), arguments);
                // Input that is not an object was not sent to its end.
                require(!told.is_object() || told == input, "the input differs from its deltas")?;
                let call = self.seen.known(&chunk["toolCallId"])?;
                some_text(chunk, "toolName")?.clone_into(&mut call.name);
                call.arguments = input;
                if name == "tool-input-error" {
                    let error = some_text(chunk, "errorText")?;
                    call.result = Some(Err(error.to_owned()));
                    self.wrong.insert(id.to_owned());
                }
            }
            "tool-output-available" | "tool-output-error" => {
                require(!self.inputs.contains_key(id), "the input of the call is not complete")?;
                let call = self.seen.known(&chunk["toolCallId"])?;
                // The fault of its arguments may be repeated in another text.
                let is_error = name == "tool-output-error";
                let was_wrong = matches!(call.result, Some(Err(_))) && self.wrong.contains(id);
                let is_first = call.result.is_none() || is_error && was_wrong;
                require(is_first, "the call has a result already")?;
                if chunk["preliminary"] == true {
                    let output = some_text(chunk, "output")?;
                    require(
                        call.pieces.starts_with(output),
                        "the snapshot differs from the output so far",
                    )?;
                } else if is_error {
                    call.result = Some(Err(some_text(chunk, "errorText")?.to_owned()));
                } else {
                    call.result = Some(Ok(text(chunk, "output")?.to_owned()));
                }
            }
            _ => return Err("the chunk is not valid in a step".to_owned()),
        }
        Ok(())
    }

    fn block(
        &mut self,
        prose: &str,
        what: &str,
        id: &str,
        at: Option<usize>,
        chunk: &Value,
    ) -> Result<(), String> {
        match (what, at) {
            ("start", None) => {
                require(
                    !self.used.iter().any(|used| used == id),
                    "the id of the block was used before",
                )?;
                self.used.push(id.to_owned());
                self.open.push((prose.to_owned(), id.to_owned()));
            }
            ("delta", Some(_)) => {
                let step = self.seen.steps.last_mut().expect("a step is open");
                let told = if prose == "text" { &mut step.text } else { &mut step.reasoning };
                told.push_str(some_text(chunk, "delta")?);
            }
            ("end", Some(at)) => drop(self.open.remove(at)),
            _ => {
                return Err(
                    "the block must not be open at its start, and must be open later".to_owned()
                );
            }
        }
        Ok(())
    }

    fn data(&mut self, name: &str, chunk: &Value) -> Result<(), String> {
        let data = &chunk["data"];
        let is_kept = name == "tool";
        require(
            (chunk["transient"] == true) != is_kept,
            "only data of tools may stay in the message",
        )?;
        match name {
            "tool-output" => {
                let call = self.seen.known(&data["toolCallId"])?;
                require(call.result.is_none(), "output comes after the result")?;
                call.pieces.push_str(some_text(data, "delta")?);
            }
            "gap" => self.seen.gap_count += 1,
            "detached" => self.seen.end = SeenEnd::Detached,
            "tool" => drop(self.seen.known(&chunk["id"])?),
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, name: &str, chunk: &Value) -> Result<(), String> {
        require(!self.is_in_step, "a step is open")?;
        self.has_finished = true;
        if name == "abort" {
            self.seen.end = SeenEnd::Cancelled;
            return Ok(());
        }
        if self.sdk >= SdkVersion::V6 {
            let reason = some_text(chunk, "finishReason")?;
            require(FINISH_REASONS.contains(&reason), "the reason is unknown")?;
            require(
                (reason == "error") == self.has_failed,
                "the reason must be an error only after an error",
            )?;
        }
        if !self.has_failed {
            self.seen.end = SeenEnd::Completed;
        }
        Ok(())
    }

    pub fn finish(self) -> Result<SeenStream, String> {
        require(self.is_done, "[DONE] is missing")?;
        require(self.open.is_empty(), "a block is open")?;
        if self.seen.end != SeenEnd::Detached {
            require(self.has_finished, "the stream has no end")?;
            let mut calls = self.seen.steps.iter().flat_map(|step| &step.calls);
            require(calls.all(|call| call.result.is_some()), "a call has no result")?;
        }
        Ok(self.seen)
    }
}
