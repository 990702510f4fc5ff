//! Responses: executions, as clients of OpenAI's Responses API know them.
//!
//! `memory.rs` has what a response remembers of the one before.

use serde_json::{Value, json};

use super::{held, runs};
use crate::base::ExecutionId;
use crate::endpoint::front::FrontFormat;
use crate::endpoint::{Answer, ApiError, FrontOptions, ResponseAsk, ResponseCall};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::{ServerShard, executions, hub};
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
        ResponseAsk::Run => match runs::describe(shard, execution) {
            Ok(run) => hub::answer(shard, id, &run),
            Err(error) => hub::answer_error(shard, id, &error),
        },
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
    held::follow(shard, id, execution, (FrontFormat::Responses { is_document }, action))
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
    if held::is_on_disk(shard, &status) {
        return follow(shard, id, execution, (true, FrontOptions::default()));
    }
    let document = held::document(shard, &status, DOCUMENT);
    hub::answer(shard, id, &Answer::json(Status::OK, &document))
}

const DOCUMENT: FrontFormat = FrontFormat::Responses { is_document: true };

/// Answers with a response that was begun in the background.
pub(super) fn answer_begun<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
) -> Answered {
    let status = shard.inspect(execution).expect("it was just begun");
    let answer = Answer::json(Status::OK, &held::document(shard, &status, DOCUMENT));
    executions::answer_when_kept(shard, id, execution, answer)
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
