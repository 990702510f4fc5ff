//! The memory of conversations: a run goes on with the messages of the one before.
//!
//! The Responses API names the previous response, and a thread of LangGraph has a newest run. The
//! server keeps the conversation with which a run began, if it is short. The words of the run
//! itself are in its log: in its ring, or on the disk, from which they are read first. If its
//! beginning is lost, only the last words of the run are remembered. If those are lost, too, the
//! next run is refused.

use serde_json::{Value, json};

use super::held;
use super::threads::{last_words, words_of};
use crate::agent::RunPart;
use crate::base::{ExecutionId, Principal};
use crate::endpoint::front::{Channels, FrontFormat, FrontItem, bodies};
use crate::endpoint::{ApiError, Execute, FrontProtocol};
use crate::engine::{NotFound, Status as ExecutionStatus};
use crate::reactor::Reactor;
use crate::server::hub::stream::Gathered;
use crate::server::{ServerShard, executions, streams};
use crate::tool::AGENT;
use crate::wire::http1::Status;

/// Finds the run that a new one on a thread follows.
///
/// # Errors
/// `busy` if that run has not ended, and `no_longer_held` if another shard has it.
fn find_thread<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execute: &mut Execute,
    owner: Principal,
) -> Result<(), ApiError> {
    let Some(thread) = execute.remembering_thread() else { return Ok(()) };
    let conversations = &shard.guests.conversations;
    if conversations.is_busy(owner, thread) {
        let text = "the last run of this thread has not ended";
        return Err(ApiError::new(Status::CONFLICT, "busy", text));
    }
    let newest = conversations.newest(owner, thread);
    // The call has come to the shard of the newest run, unless another one has begun meanwhile.
    if newest.is_some_and(|newest| !executions::is_owned(shard, newest, owner)) {
        return Err(forgotten());
    }
    execute.front.as_mut().expect("it has a thread").previous = newest;
    Ok(())
}

/// Puts the conversation of the previous run before that of a new one. Returns the state of the
/// previous run if that has to be read from the disk first.
///
/// # Errors
/// The previous run is not found, has not ended, or is not remembered.
pub(super) fn go_on<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execute: &mut Execute,
    owner: Principal,
) -> Result<Option<ExecutionStatus>, ApiError> {
    find_thread(shard, execute, owner)?;
    let Some(front) = execute.front.as_mut() else { return Ok(None) };
    let Some(previous) = front.previous else { return Ok(None) };
    let field = match front.protocol {
        FrontProtocol::Response => "previous_response_id",
        FrontProtocol::Task => "contextId",
        _ => "thread_id",
    };
    let said = front.remembered.take();
    let mut messages = match conversation(shard, previous, owner, said) {
        Ok(Conversation::Whole(messages)) => messages,
        Ok(Conversation::OnDisk(status)) => return Ok(Some(*status)),
        Err(error) => return Err(error.field(field)),
    };
    if execute.tool == AGENT {
        let own = execute.arguments["messages"].as_array_mut().expect("a request has messages");
        messages.append(own);
        own.clone_from(&messages);
    } else if let Some(own) = front.kept.as_mut().and_then(|kept| kept["messages"].as_array_mut()) {
        messages.append(own); // A tool has no use for a conversation, but an agent goes on with it.
    }
    if let Some(kept) = &mut front.kept {
        kept["messages"] = messages.into();
    }
    Ok(None)
}

/// A conversation that goes on.
enum Conversation {
    /// All messages.
    Whole(Vec<Value>),
    /// Part of it is on the disk.
    OnDisk(Box<ExecutionStatus>),
}

/// Returns the conversation of a run that has ended. `said` is what the run itself added, if that
/// was read from the disk.
fn conversation<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    run: ExecutionId,
    owner: Principal,
    said: Option<Vec<Value>>,
) -> Result<Conversation, ApiError> {
    if !executions::is_owned(shard, run, owner) {
        return Err(NotFound.into());
    }
    let status = shard.inspect(run)?;
    if !status.state.is_over() {
        let text = "the previous run has not ended";
        return Err(ApiError::new(Status::CONFLICT, "running", text));
    }
    let arguments = shard.run_of(run).and_then(|run| run.guest.arguments.as_ref());
    let messages = arguments.and_then(|kept| kept["messages"].as_array().cloned());
    let mut messages = messages.ok_or_else(forgotten)?;
    let mut said = match said {
        Some(said) => said,
        None if held::is_on_disk(shard, &status) => return Ok(Conversation::OnDisk(status.into())),
        None if status.tail_seq <= 1 => {
            let mut object = held::document(shard, &status, DOCUMENT);
            bodies::messages_of(object["output"].take())
        }
        None => last_words(shard, run).map(last_message).ok_or_else(forgotten)?,
    };
    messages.append(&mut said);
    Ok(Conversation::Whole(messages))
}

/// Returns the error for a conversation that the server does not have.
pub(super) fn forgotten() -> ApiError {
    let text = "the server does not have the whole conversation any more; send its messages in a \
                new one";
    ApiError::new(Status::GONE, "no_longer_held", text)
}

const DOCUMENT: FrontFormat = FrontFormat::Responses { is_document: true };

/// Returns the text of a run's last part as messages.
fn last_message(text: String) -> Vec<Value> {
    let message = json!({ "role": "assistant", "content": text });
    if text.is_empty() { Vec::new() } else { vec![message] }
}

/// Returns the messages of a run that were read from the disk. `None` if the disk has not even its
/// last words.
pub(super) fn messages_in<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    gathered: &Gathered,
) -> Option<Vec<Value>> {
    let lines = gathered.data().split(|byte| *byte == b'\n');
    let parts: Vec<RunPart> = lines.filter_map(|line| RunPart::parse(line).ok()).collect();
    let head_seq = gathered.status.head_seq;
    let last = parts.last().filter(|part| part.seq == head_seq)?;
    if parts.len() as u64 != head_seq {
        return words_of(last).map(last_message);
    }
    let id = gathered.status.id;
    let mut front = streams::front_of(shard, id, DOCUMENT, &Channels::default());
    let mut out = Vec::new();
    for part in &parts {
        front.write(FrontItem::Part(part), &mut out);
    }
    let mut object = match out.is_empty() {
        true => front.document("failed"), // Its end was lost.
        false => serde_json::from_slice(&out).unwrap_or_default(),
    };
    Some(bodies::messages_of(object["output"].take()))
}
