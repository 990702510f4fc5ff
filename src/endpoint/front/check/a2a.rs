//! A client of A2A: the rules of `a2a-sdk`, and what the specification says of streams.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{SeenCall, SeenEnd, SeenStep, SeenStream, require, some_text, text};

#[derive(Default)]
pub struct A2aClient {
    seen: SeenStream,
    /// The number of the last event.
    number: Option<u64>,
    task: Option<(String, String)>,
    has_ended: bool,
    /// The artifacts that began.
    artifacts: BTreeMap<String, bool>,
}

impl A2aClient {
    pub fn event(&mut self, id: &str, event: &Value) -> Result<(), String> {
        require(!self.has_ended, "an event comes after the end")?;
        let number: u64 = id.parse().map_err(|_| "the id is not a number")?;
        require(self.number.is_none_or(|last| number > last), "the numbers do not grow")?;
        self.number = Some(number);
        let (name, event) = event.as_object().and_then(|all| all.iter().next()).ok_or("empty")?;
        require((name == "task") == self.task.is_none(), "the task must come first, once")?;
        match &**name {
            "task" => {
                let (id, context) = (some_text(event, "id")?, some_text(event, "contextId")?);
                self.task = Some((id.to_owned(), context.to_owned()));
                for artifact in event["artifacts"].as_array().ok_or("there are no artifacts")? {
                    self.artifact(artifact, false, false)?;
                }
                self.status(&event["status"])
            }
            "artifactUpdate" => {
                self.is_of_task(event)?;
                let is_last = event["lastChunk"] == true;
                self.artifact(&event["artifact"], event["append"] == true, is_last)
            }
            "statusUpdate" => {
                self.is_of_task(event)?;
                let metadata = &event["metadata"];
                if metadata["gap"].is_object() {
                    self.seen.gap_count += 1;
                }
                if metadata["detached"].is_object() {
                    require(metadata["detached"]["resumeFrom"].is_u64(), "there is no place")?;
                    self.seen.end = SeenEnd::Detached;
                }
                self.status(&event["status"])
            }
            _ => Err("the event is unknown".to_owned()),
        }
    }

    fn is_of_task(&self, event: &Value) -> Result<(), String> {
        let (task, context) = self.task.as_ref().ok_or("there is no task")?;
        let is_it = event["taskId"] == **task && event["contextId"] == **context;
        require(is_it, "the event is of another task")
    }

    fn status(&mut self, status: &Value) -> Result<(), String> {
        some_text(status, "timestamp")?;
        let said = status["message"]["parts"][0]["text"].as_str().unwrap_or_default().to_owned();
        let end = match some_text(status, "state")? {
            "TASK_STATE_SUBMITTED" | "TASK_STATE_WORKING" => return Ok(()),
            "TASK_STATE_COMPLETED" => SeenEnd::Completed,
            "TASK_STATE_CANCELED" => SeenEnd::Cancelled,
            "TASK_STATE_FAILED" => SeenEnd::Failed(said),
            _ => return Err("the state is unknown".to_owned()),
        };
        (self.has_ended, self.seen.end) = (true, end);
        Ok(())
    }

    fn artifact(&mut self, artifact: &Value, is_more: bool, is_last: bool) -> Result<(), String> {
        let id = some_text(artifact, "artifactId")?.to_owned();
        let has_ended = self.artifacts.get(&id).copied();
        require(has_ended != Some(true), "the artifact has ended")?;
        require(is_more == has_ended.is_some(), "it is not its beginning, or not more of it")?;
        self.artifacts.insert(id.clone(), is_last);
        let parts = artifact["parts"].as_array().filter(|parts| !parts.is_empty());
        for part in parts.ok_or("there are no parts")? {
            match id.split_once('-').ok_or("the id is unknown")? {
                ("call", call) => {
                    let (step, call) = call.split_once('-').ok_or("the id has no step")?;
                    self.of_call(call, step.parse().map_err(|_| "the step is wrong")?, part)?;
                }
                (kind, step) => {
                    let step = step.split('-').next().and_then(|step| step.parse().ok());
                    let step = self.step(step.ok_or("the id has no step")?);
                    let told = if kind == "text" { &mut step.text } else { &mut step.reasoning };
                    told.push_str(text(part, "text")?);
                }
            }
        }
        Ok(())
    }

    /// Returns the step of this number.
    fn step(&mut self, number: usize) -> &mut SeenStep {
        while self.seen.steps.len() < number.max(1) {
            self.seen.steps.push(SeenStep::default());
        }
        &mut self.seen.steps[number.max(1) - 1]
    }

    fn of_call(&mut self, id: &str, step: usize, part: &Value) -> Result<(), String> {
        let data = &part["data"];
        if data["toolCallId"].is_string() {
            require(data["toolCallId"] == id, "the call is another one")?;
            let name = some_text(data, "name")?.to_owned();
            let call = SeenCall { id: id.to_owned(), name, ..SeenCall::default() };
            self.step(step).calls.push(call);
            return Ok(());
        }
        let call = self.seen.known(&id.into())?;
        if let Some(arguments) = data.get("arguments") {
            call.arguments = arguments.clone();
            return Ok(());
        }
        if let Some(piece) = part["text"].as_str() {
            call.pieces.push_str(piece);
            return Ok(());
        }
        call.result = Some(match (some_text(data, "outcome")?, data["error"].as_str()) {
            ("completed", None) => Ok(data["output"].as_str().unwrap_or(&call.pieces).to_owned()),
            (_, Some(problem)) => Err(problem.to_owned()),
            _ => return Err("the outcome has no reason".to_owned()),
        });
        Ok(())
    }

    /// A stream without an end tells that the task goes on.
    pub fn finish(mut self) -> Result<SeenStream, String> {
        if !self.has_ended {
            self.seen.end = SeenEnd::Detached;
            return Ok(self.seen);
        }
        let mut calls = self.seen.steps.iter().flat_map(|step| &step.calls);
        require(calls.all(|call| call.result.is_some()), "a call has no result")?;
        Ok(self.seen)
    }
}
