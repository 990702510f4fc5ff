//! What a server says of tools and executions, as values.

use std::time::Duration;

use serde_json::Value;

use super::error::ClientError;
use super::event::{Progress, exit_if, outcome, progress};
use super::fields::Fields;
use crate::base::{ExecutionId, ProgressToken};
use crate::engine::{Exit, LagLimit, Policy, State, Timeouts};
use crate::wire::base64;

/// A tool of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON schema of its arguments.
    pub arguments: Value,
    /// How long it may be silent, and may take, unless an execution says otherwise.
    pub timeouts: Timeouts,
}

/// An execution that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Its id.
    pub execution: ExecutionId,
    /// What its progress is told under.
    pub token: Option<ProgressToken>,
    /// Where it is in its life.
    pub state: State,
}

/// An execution, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its id.
    pub execution: ExecutionId,
    /// Which tool.
    pub tool: String,
    /// Where it is in its life.
    pub state: State,
    /// Chunks published.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many follow it.
    pub subscribers: u64,
    /// How old it is, in ms.
    pub age_ms: u64,
}

/// How far an execution is that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressOf {
    /// Which.
    pub execution: ExecutionId,
    /// What it is told under.
    pub token: Option<ProgressToken>,
    /// What it said last, if anything.
    pub progress: Option<Progress>,
}

/// What an execution is doing.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Its id.
    pub execution: ExecutionId,
    /// Which tool.
    pub tool: String,
    /// What its progress is told under.
    pub token: Option<ProgressToken>,
    /// Where it is in its life.
    pub state: State,
    /// What it said of its progress last, if anything.
    pub progress: Option<Progress>,
    /// Chunks published.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The newest chunk; 0 if there is none.
    pub head_seq: u64,
    /// The oldest chunk that is still held.
    pub tail_seq: u64,
    /// How many chunks there will be, if the tool said so.
    pub total_chunks: Option<u64>,
    /// It waits for subscribers.
    pub held_back: bool,
    /// The subscribers that hold it back; `hold` while it waits for its first one.
    pub held_back_by: Vec<String>,
    /// How old it is, in ms.
    pub age_ms: u64,
    /// Who follows it.
    pub subscribers: Vec<SubscriberStatus>,
    /// What went wrong, if something did.
    pub error: Option<String>,
    /// How the command ended, if the tool ran one.
    pub exit: Option<Exit>,
}

/// How a subscriber is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriberStatus {
    /// Its name.
    pub subscriber: String,
    /// It has a ring of its own to read from, on another thread or in another process.
    pub is_remote: bool,
    /// What happens when it lags.
    pub policy: Policy,
    /// How far it may lag.
    pub limit: LagLimit,
    /// The next chunk that it will be given.
    pub next_seq: u64,
    /// How far it lags, in chunks.
    pub lag_chunks: u64,
    /// How far it lags, in bytes.
    pub lag_bytes: u64,
    /// Chunks that it was not given.
    pub missed_chunks: u64,
    /// Their bytes.
    pub missed_bytes: u64,
    /// The execution waits for it.
    pub holds_back: bool,
    /// Its connection broke; its place is kept for a while.
    pub lost: bool,
    /// How long it has been there, in ms.
    pub age_ms: u64,
}

/// What was asked for with [`super::Client::result`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// It has ended.
    Ended(Output),
    /// It has not ended yet.
    Running(State),
}

/// How an execution ended, and what it gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub state: State,
    /// Chunks published.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// All of these bytes are there; else only the newest.
    pub is_complete: bool,
    /// What is still held of them.
    pub data: Vec<u8>,
    /// How the command ended, if the tool ran one.
    pub exit: Option<Exit>,
    /// What went wrong, if something did.
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

/// The object that an answer is.
pub(super) fn answer(value: Value) -> Result<Fields, ClientError> {
    Fields::new("the answer", value)
}

/// Where an execution is, of an answer that says no more.
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

/// `{"chunks": 10, "bytes": 1000}`: how far a subscriber may lag.
pub(super) fn limit(mut fields: Fields) -> Result<LagLimit, ClientError> {
    let bytes = fields.number_if("bytes")?.unwrap_or(u64::MAX);
    Ok(LagLimit { chunks: fields.small("chunks")?, bytes })
}

/// A payload, as `encoding` says that it is spelled.
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
