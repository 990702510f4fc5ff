//! The server's replies about tools and executions, as values.

use std::time::Duration;

use serde_json::Value;

use super::error::ClientError;
use super::event::{Progress, exit_if, outcome, progress};
use super::fields::Fields;
use crate::base::{ExecutionId, ProgressToken};
use crate::engine::Timeouts;
use crate::stream::{Exit, LagLimit, Policy, State};
use crate::wire::base64;

/// A tool of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The description of the tool.
    pub description: String,
    /// The JSON schema of its arguments.
    pub arguments: Value,
    /// The limits for its silence and duration, unless an execution sets its own.
    pub timeouts: Timeouts,
}

/// An execution that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Its id.
    pub execution: ExecutionId,
    /// The token of its progress reports.
    pub token: Option<ProgressToken>,
    /// The state of the execution.
    pub state: State,
}

/// A short description of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its id.
    pub execution: ExecutionId,
    /// The name of the tool.
    pub tool: String,
    /// The state of the execution.
    pub state: State,
    /// Number of published chunks.
    pub chunks: u64,
    /// Number of their bytes.
    pub bytes: u64,
    /// Number of subscribers.
    pub subscribers: u64,
    /// The age of the execution in ms.
    pub age_ms: u64,
}

/// The progress of an execution that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressOf {
    /// The execution.
    pub execution: ExecutionId,
    /// The token of its progress reports.
    pub token: Option<ProgressToken>,
    /// The last progress report, if there was one.
    pub progress: Option<Progress>,
}

/// The status of an execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Its id.
    pub execution: ExecutionId,
    /// The name of the tool.
    pub tool: String,
    /// The token of its progress reports.
    pub token: Option<ProgressToken>,
    /// The state of the execution.
    pub state: State,
    /// The last progress report, if there was one.
    pub progress: Option<Progress>,
    /// Number of published chunks.
    pub chunks: u64,
    /// Number of their bytes.
    pub bytes: u64,
    /// The newest chunk. 0 if there is none.
    pub head_seq: u64,
    /// The oldest chunk that is still held.
    pub tail_seq: u64,
    /// Number of chunks that the tool expects to publish, if it said so.
    pub total_chunks: Option<u64>,
    /// True if it waits for subscribers.
    pub held_back: bool,
    /// The subscribers that hold it back. `hold` while it waits for its first subscriber.
    pub held_back_by: Vec<String>,
    /// The age of the execution in ms.
    pub age_ms: u64,
    /// The subscribers.
    pub subscribers: Vec<SubscriberStatus>,
    /// The error of the execution, if it failed.
    pub error: Option<String>,
    /// The exit of the command, if the tool ran one.
    pub exit: Option<Exit>,
}

/// The status of a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriberStatus {
    /// Its name.
    pub subscriber: String,
    /// True if it reads from its own ring, on another thread or in another process.
    pub is_remote: bool,
    /// Its lag policy.
    pub policy: Policy,
    /// The limit of its lag.
    pub limit: LagLimit,
    /// The next chunk that it will receive.
    pub next_seq: u64,
    /// Its lag in chunks.
    pub lag_chunks: u64,
    /// Its lag in bytes.
    pub lag_bytes: u64,
    /// Number of chunks that it did not receive.
    pub missed_chunks: u64,
    /// Number of their bytes.
    pub missed_bytes: u64,
    /// True if the execution waits for it.
    pub holds_back: bool,
    /// True if its connection broke. Its place is kept for a while.
    pub lost: bool,
    /// The age of the subscription in ms.
    pub age_ms: u64,
}

/// The reply to [`super::Client::result`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The execution has ended.
    Ended(Output),
    /// The execution has not ended yet.
    Running(State),
}

/// The outcome of an execution, and its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The final state.
    pub state: State,
    /// Number of published chunks.
    pub chunks: u64,
    /// Number of their bytes.
    pub bytes: u64,
    /// True if `data` holds all of these bytes. Otherwise it holds only the newest.
    pub is_complete: bool,
    /// The bytes that the server still holds.
    pub data: Vec<u8>,
    /// The exit of the command, if the tool ran one.
    pub exit: Option<Exit>,
    /// The error of the execution, if it failed.
    pub error: Option<String>,
}

fn state(fields: &mut Fields) -> Result<State, ClientError> {
    fields.named("state", |name| match name {
        "queued" => Some(State::Queued),
        "running" => Some(State::Running),
        "draining" => Some(State::Draining),
        _ => outcome(name).map(State::Ended),
    })
}

/// The JSON object of a reply.
pub(super) fn answer(value: Value) -> Result<Fields, ClientError> {
    Fields::new("the answer", value)
}

/// The state of an execution, from a reply that holds nothing else.
pub(super) fn state_of(value: Value) -> Result<State, ClientError> {
    state(&mut answer(value)?)
}

fn progress_if(fields: &mut Fields) -> Result<Option<Progress>, ClientError> {
    fields.object_if("progress")?.map(|mut fields| progress(&mut fields)).transpose()
}

impl Tool {
    pub(super) fn read(mut fields: Fields) -> Result<Tool, ClientError> {
        Ok(Tool {
            name: fields.text("name")?,
            description: fields.text("description")?,
            arguments: fields.take("input_schema").unwrap_or(Value::Null),
            timeouts: timeouts(fields.object("timeouts")?)?,
        })
    }
}

fn timeouts(mut fields: Fields) -> Result<Timeouts, ClientError> {
    let mut ms = |name| fields.number_if(name);
    Ok(Timeouts {
        first_chunk: ms("first_chunk_ms")?.map(Duration::from_millis),
        inactivity: ms("inactivity_ms")?.map(Duration::from_millis),
        total: ms("total_ms")?.map(Duration::from_millis),
    })
}

impl Created {
    pub(super) fn read(mut fields: Fields) -> Result<Created, ClientError> {
        Ok(Created {
            execution: fields.parsed("execution")?,
            token: fields.parsed_if("token")?,
            state: state(&mut fields)?,
        })
    }
}

impl Summary {
    pub(super) fn read(mut fields: Fields) -> Result<Summary, ClientError> {
        Ok(Summary {
            execution: fields.parsed("execution")?,
            tool: fields.text("tool")?,
            state: state(&mut fields)?,
            chunks: fields.number("chunks")?,
            bytes: fields.number("bytes")?,
            subscribers: fields.number("subscribers")?,
            age_ms: fields.number("age_ms")?,
        })
    }
}

impl ProgressOf {
    pub(super) fn read(mut fields: Fields) -> Result<ProgressOf, ClientError> {
        Ok(ProgressOf {
            execution: fields.parsed("execution")?,
            token: fields.parsed_if("token")?,
            progress: progress_if(&mut fields)?,
        })
    }
}

impl Status {
    pub(super) fn read(mut fields: Fields) -> Result<Status, ClientError> {
        let names = fields.list("held_back_by")?.into_iter().map(|name| match name {
            Value::String(name) => Ok(name),
            _ => Err(ClientError::protocol("`held_back_by` is not an array of strings")),
        });
        Ok(Status {
            held_back_by: names.collect::<Result<_, _>>()?,
            execution: fields.parsed("execution")?,
            tool: fields.text("tool")?,
            token: fields.parsed_if("token")?,
            state: state(&mut fields)?,
            progress: progress_if(&mut fields)?,
            chunks: fields.number("chunks")?,
            bytes: fields.number("bytes")?,
            head_seq: fields.number("head_seq")?,
            tail_seq: fields.number("tail_seq")?,
            total_chunks: fields.number_if("total_chunks")?,
            held_back: fields.flag("held_back")?,
            age_ms: fields.number("age_ms")?,
            subscribers: fields.each("subscribers", SubscriberStatus::read)?,
            error: fields.text_if("error")?,
            exit: exit_if(&mut fields)?,
        })
    }
}

impl SubscriberStatus {
    fn read(mut fields: Fields) -> Result<SubscriberStatus, ClientError> {
        Ok(SubscriberStatus {
            subscriber: fields.text("subscriber")?,
            is_remote: fields.named("place", |name| match name {
                "local" => Some(false),
                "remote" => Some(true),
                _ => None,
            })?,
            policy: fields.parsed("policy")?,
            limit: limit(fields.object("limits")?)?,
            next_seq: fields.number("next_seq")?,
            lag_chunks: fields.number("lag_chunks")?,
            lag_bytes: fields.number("lag_bytes")?,
            missed_chunks: fields.number("missed_chunks")?,
            missed_bytes: fields.number("missed_bytes")?,
            holds_back: fields.flag("holds_back")?,
            lost: fields.flag("lost")?,
            age_ms: fields.number("age_ms")?,
        })
    }
}

/// The limit of a subscriber's lag: `{"chunks": 10, "bytes": 1000}`.
pub(super) fn limit(mut fields: Fields) -> Result<LagLimit, ClientError> {
    let bytes = fields.number_if("bytes")?.unwrap_or(u64::MAX);
    Ok(LagLimit { chunks: fields.small("chunks")?, bytes })
}

/// A payload, decoded by its `encoding`.
pub(super) fn data(fields: &mut Fields) -> Result<Vec<u8>, ClientError> {
    let text = fields.text("data")?;
    let is_text = fields.named("encoding", |name| match name {
        "text" => Some(true),
        "base64" => Some(false),
        _ => None,
    })?;
    match is_text {
        true => Ok(text.into_bytes()),
        false => base64::read(&text).ok_or_else(|| fields.wrong("data", "base 64")),
    }
}

impl Awaited {
    pub(super) fn read(mut fields: Fields, has_ended: bool) -> Result<Awaited, ClientError> {
        let state = state(&mut fields)?;
        if !has_ended {
            return Ok(Awaited::Running(state));
        }
        Ok(Awaited::Ended(Output {
            state,
            chunks: fields.number("chunks")?,
            bytes: fields.number("bytes")?,
            is_complete: fields.flag("complete")?,
            data: data(&mut fields)?,
            exit: exit_if(&mut fields)?,
            error: fields.text_if("error")?,
        }))
    }
}
