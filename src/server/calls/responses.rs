//! Responses: executions, as clients of OpenAI's Responses API know them.
//!
//! The server keeps no conversation but the input of each response, as far as it is short. A
//! response that follows another one has that input, and the answer, before its own.

use serde_json::{Value, json};

use crate::base::{ExecutionId, Principal};
use crate::endpoint::front::{Channels, Front, FrontFormat, FrontItem};
use crate::endpoint::{
    Answer, ApiError, DeliveryOptions, Execute, FrontOptions, ResponseAsk, ResponseCall,
    StreamFormat,
};
use crate::engine::{NotFound, Status as ExecutionStatus};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::calls::threads::last_words;
use crate::server::hub::Answered;
use crate::server::{ServerShard, executions, hub, streams};
use crate::stream::{ExecutionState, Kinds};
use crate::wire::events::{self, EndState};
use crate::wire::http1::Status;

/// Carries out a request about a response.
pub(in crate::server) fn ask_response<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    ResponseCall { execution, ask }: ResponseCall,
) -> Answered {
    match ask {
        ResponseAsk::Retrieve => retrieve(shard, id, execution),
        ResponseAsk::Follow { after, is_plain } => {
            let action = FrontOptions { since: after, is_plain, ..FrontOptions::default() };
            follow(shard, id, execution, (false, action))
        }
        ResponseAsk::Cancel => {
            let _ = shard.cancel(execution); // It may have ended.
            follow(shard, id, execution, (true, FrontOptions::default()))
        }
        ResponseAsk::InputItems { is_ascending } => {
            let answer = match input_items(shard, execution, is_ascending) {
                Ok(items) => Answer::json(Status::OK, &items),
                Err(error) => Answer::error(&error),
            };
            hub::answer(shard, id, &answer)
        }
    }
}

/// Follows a response from its beginning, to its events or to the object at its end.
fn follow<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    (is_document, action): (bool, FrontOptions),
) -> Answered {
    let format = StreamFormat::Front(FrontFormat::Responses { is_document });
    let stream = (format, DeliveryOptions::default());
    streams::follow_new(shard, id, execution, stream, action)
}

fn retrieve<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
) -> Answered {
    shard.pump();
    let status = match shard.inspect(execution) {
        Ok(status) => status,
        Err(error) => return hub::answer_error(shard, id, &error.into()),
    };
    let is_on_disk = shard.run_of(execution).is_some_and(|run| run.has_history());
    if status.state.is_over() && status.tail_seq > 1 && is_on_disk {
        // The disk has its beginning.
        return follow(shard, id, execution, (true, FrontOptions::default()));
    }
    let answer = Answer::json(Status::OK, &document(shard, &status));
    hub::answer(shard, id, &answer)
}

/// Returns the object of a response, from what its ring holds.
fn document<R: Reactor + 'static>(shard: &mut ServerShard<R>, status: &ExecutionStatus) -> Value {
    let format = FrontFormat::Responses { is_document: true };
    let mut front: Front = streams::front_of(shard, status.id, format, &Channels::default());
    let (mut out, until_seq) = (Vec::new(), status.head_seq + 1);
    streams::give_held(shard, status, until_seq, Kinds::ALL, |item| front.write(item, &mut out));
    let state = match status.state {
        ExecutionState::Queued => "queued",
        ExecutionState::Running | ExecutionState::Draining => "in_progress",
        ExecutionState::Ended(_) => {
            front.write(FrontItem::End(&end_of(status)), &mut out);
            "failed" // Each end has an object.
        }
    };
    serde_json::from_slice(&out).unwrap_or_else(|_| front.document(state))
}

/// Returns the end of an execution, as its followers are told.
fn end_of(status: &ExecutionStatus) -> events::EndEvent<'_> {
    events::EndEvent {
        execution: "",
        state: EndState::Ended(status.state.name()),
        chunks: 0,
        bytes: 0,
        missed_chunks: 0,
        missed_bytes: 0,
        execution_chunks: status.totals.chunks,
        execution_bytes: status.totals.bytes,
        duration_us: 0,
        exit: status.exit,
        error: status.error.as_deref(),
    }
}

/// Answers with a response that was begun in the background.
pub(super) fn answer_begun<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
) -> Answered {
    let status = shard.inspect(execution).expect("it was just begun");
    let answer = Answer::json(Status::OK, &document(shard, &status));
    executions::answer_when_kept(shard, id, execution, answer)
}

/// Puts the conversation of the previous response before that of a new one.
pub(super) fn go_on<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execute: &mut Execute,
    principal: Principal,
) -> Result<(), ApiError> {
    let Some(front) = execute.front.as_mut() else { return Ok(()) };
    let Some(previous) = front.previous else { return Ok(()) };
    let of_field = |error: ApiError| error.field("previous_response_id");
    if !executions::is_owned(shard, previous, principal) {
        return Err(of_field(NotFound.into()));
    }
    let status = shard.inspect(previous)?;
    if !status.state.is_over() {
        let text = "the previous response has not ended";
        return Err(of_field(ApiError::new(Status::CONFLICT, "running", text)));
    }
    let arguments = shard.run_of(previous).and_then(|run| run.guest.arguments.as_ref());
    let messages = arguments.and_then(|kept| kept["messages"].as_array().cloned());
    let (Some(mut messages), Some(text)) = (messages, last_words(shard, previous)) else {
        let text = "the server does not have the whole previous response any more; send its items";
        return Err(of_field(ApiError::new(Status::GONE, "no_longer_held", text)));
    };
    if !text.is_empty() {
        messages.push(json!({ "role": "assistant", "content": text }));
    }
    let own = execute.arguments["messages"].as_array_mut().expect("a request has messages");
    messages.append(own);
    *own = messages;
    if let Some(kept) = &mut front.kept {
        kept["messages"].clone_from(&execute.arguments["messages"]);
    }
    Ok(())
}

/// Returns the items of the input of a response.
fn input_items<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execution: ExecutionId,
    is_ascending: bool,
) -> Result<Value, ApiError> {
    let arguments = shard.run_of(execution).and_then(|run| run.guest.arguments.as_ref());
    let Some(messages) = arguments.and_then(|kept| kept["messages"].as_array()) else {
        let text = "the server keeps short inputs only, and this one is not among them";
        return Err(ApiError::new(Status::GONE, "no_longer_held", text));
    };
    let mut items: Vec<Value> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        items_of(&format!("msg_{execution}_in_{at}"), message, &mut items);
    }
    if !is_ascending {
        items.reverse();
    }
    let id_of = |item: Option<&Value>| item.map(|item| item["id"].clone());
    let (first_id, last_id) = (id_of(items.first()), id_of(items.last()));
    Ok(json!({
        "object": "list", "data": items, "first_id": first_id, "last_id": last_id,
        "has_more": false,
    }))
}

/// Adds the items of a message.
fn items_of(id: &str, message: &Value, items: &mut Vec<Value>) {
    let text = message["content"].as_str().unwrap_or_default();
    let role = message["role"].as_str().unwrap_or("user");
    if role == "tool" {
        return items.push(json!({
            "type": "function_call_output", "id": id, "call_id": message["tool_call_id"],
            "output": text, "status": "completed",
        }));
    }
    if !text.is_empty() {
        let content = match role {
            "assistant" => json!({ "type": "output_text", "text": text, "annotations": [] }),
            _ => json!({ "type": "input_text", "text": text }),
        };
        items.push(json!({
            "type": "message", "id": id, "role": role, "status": "completed", "content": [content],
        }));
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        items.push(json!({
            "type": "function_call", "id": format!("fc_{}", call["id"].as_str().unwrap_or("")),
            "call_id": call["id"], "name": call["function"]["name"],
            "arguments": call["function"]["arguments"], "status": "completed",
        }));
    }
}
