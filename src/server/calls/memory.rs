//! The memory of conversations: a run goes on with the messages of the one before.
//!
//! The Responses API names the previous response, and a thread of LangGraph has a newest run. The
//! server keeps the conversation with which a run began, if it is short. What the run itself said
//! is in its log. If the ring has lost the log's beginning, only the last words of the run are
//! remembered. Nothing is remembered silently by half: without them, the next run is refused.

use serde_json::{Value, json};

use super::held;
use super::threads::last_words;
use crate::base::{ExecutionId, Principal};
use crate::endpoint::front::{FrontFormat, bodies};
use crate::endpoint::{ApiError, Execute, FrontProtocol};
use crate::engine::NotFound;
use crate::reactor::Reactor;
use crate::server::{ServerShard, executions};
use crate::wire::http1::Status;

/// Finds the run that a new one on a thread follows.
///
/// # Errors
/// `busy` if that run has not ended.
pub(super) fn find_thread<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execute: &mut Execute,
    owner: Principal,
) -> Result<(), ApiError> {
    let Some(front) = execute.front.as_mut().filter(|front| front.protocol.has_threads()) else {
        return Ok(());
    };
    let Some(thread) = &front.thread_id else { return Ok(()) };
    let conversations = &shard.guests.conversations;
    if conversations.is_busy(owner, thread) {
        let text = "the last run of this thread has not ended";
        return Err(ApiError::new(Status::CONFLICT, "busy", text));
    }
    let newest = conversations.newest(owner, thread);
    // One of another shard is not found here, and the thread begins anew.
    front.previous = newest.filter(|newest| executions::is_owned(shard, *newest, owner));
    Ok(())
}

/// Puts the conversation of the previous run before that of a new one.
///
/// # Errors
/// The previous run is not found, has not ended, or is not remembered.
pub(super) fn go_on<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execute: &mut Execute,
    owner: Principal,
) -> Result<(), ApiError> {
    let Some(front) = execute.front.as_mut() else { return Ok(()) };
    let Some(previous) = front.previous else { return Ok(()) };
    let field = match front.protocol {
        FrontProtocol::Response => "previous_response_id",
        _ => "thread_id",
    };
    let mut messages = conversation(shard, previous, owner).map_err(|error| error.field(field))?;
    let own = execute.arguments["messages"].as_array_mut().expect("a request has messages");
    messages.append(own);
    *own = messages;
    if let Some(kept) = &mut front.kept {
        kept["messages"].clone_from(&execute.arguments["messages"]);
    }
    Ok(())
}

/// Returns the conversation of a run that has ended.
fn conversation<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    run: ExecutionId,
    owner: Principal,
) -> Result<Vec<Value>, ApiError> {
    if !executions::is_owned(shard, run, owner) {
        return Err(NotFound.into());
    }
    let status = shard.inspect(run)?;
    if !status.state.is_over() {
        let text = "the previous run has not ended";
        return Err(ApiError::new(Status::CONFLICT, "running", text));
    }
    let forgotten = || {
        let text = "the server does not have the whole conversation any more; send its messages \
                    in a new one";
        ApiError::new(Status::GONE, "no_longer_held", text)
    };
    let arguments = shard.run_of(run).and_then(|run| run.guest.arguments.as_ref());
    let messages = arguments.and_then(|kept| kept["messages"].as_array().cloned());
    let mut messages = messages.ok_or_else(forgotten)?;
    if status.tail_seq <= 1 && status.head_seq > 0 {
        let format = FrontFormat::Responses { is_document: true };
        let mut object = held::document(shard, &status, format);
        messages.append(&mut bodies::messages_of(object["output"].take()));
        return Ok(messages);
    }
    let text = last_words(shard, run).ok_or_else(forgotten)?;
    if !text.is_empty() {
        messages.push(json!({ "role": "assistant", "content": text }));
    }
    Ok(messages)
}
