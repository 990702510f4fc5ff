//! Runs, threads and assistants, as clients of LangGraph's ordinary API know them.

use serde_json::{Map, Value, json};

use super::held;
use super::threads::is_under_way;
use crate::api;
use crate::base::{ExecutionId, Principal};
use crate::endpoint::front::{Channels, FrontFormat, GraphAnswer};
use crate::endpoint::{Answer, ApiError, AssistantsAsk, FrontOptions, ThreadSearch};
use crate::engine::{NotFound, Status as ExecutionStatus};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::{ServerShard, executions, hub, streams};
use crate::stream::{ExecutionState, Outcome};
use crate::tool::AGENT;
use crate::trace::rfc3339;
use crate::wire::http1::Status;

/// Answers with a run that was just begun.
pub(super) fn answer_begun<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
) -> Answered {
    let status = shard.inspect(execution).expect("it was just begun");
    let format = FrontFormat::Graph { answer: GraphAnswer::Values };
    let front = streams::front_of(shard, execution, format, &Channels::default());
    let mut answer = Answer::json(Status::OK, &run_of(shard, &status));
    if let Some((_, location)) = front.headers().into_iter().next() {
        answer = answer.about(location);
    }
    executions::answer_when_kept(shard, id, execution, answer)
}

/// Returns a run.
///
/// # Errors
/// [`NotFound`].
pub(super) fn describe<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) -> Result<Answer, ApiError> {
    shard.pump();
    let status = shard.inspect(execution)?;
    Ok(Answer::json(Status::OK, &run_of(shard, &status)))
}

/// Returns the runs that the server knows of a thread, which is the newest one.
pub(super) fn list<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    newest: Option<ExecutionId>,
    (offset, wanted): (u64, Option<&str>),
) -> Answer {
    let status = newest.and_then(|execution| shard.inspect(execution).ok());
    let runs = status.map(|status| run_of(shard, &status));
    let is_wanted = |run: &api::Run| wanted.is_none_or(|wanted| run.status == wanted);
    let runs = runs.filter(|run| offset == 0 && is_wanted(run));
    Answer::json(Status::OK, &runs.into_iter().collect::<Vec<_>>())
}

/// Returns a run as clients know it.
fn run_of<R: Reactor + 'static>(shard: &ServerShard<R>, status: &ExecutionStatus) -> api::Run {
    let run_id = status.id.to_string();
    let run = shard.run_of(status.id).expect("the caller found it");
    let thread = run.guest.thread.as_ref().map(|seat| seat.thread_id().to_owned());
    let kept = run.guest.arguments.as_deref().unwrap_or(&Value::Null);
    let assistant = kept["assistant"].as_str().unwrap_or(AGENT).to_owned();
    let created_us = match shard.guests.archive.get(status.id) {
        Some(entry) => entry.dates.created_us,
        None => shard.anchor.wall_us_at(run.opened_at.nanos()),
    };
    let created_at = rfc3339(created_us);
    let state = match status.state {
        ExecutionState::Queued => "pending",
        ExecutionState::Running | ExecutionState::Draining => "running",
        ExecutionState::Ended(Outcome::Completed) => "success",
        ExecutionState::Ended(Outcome::Failed) => "error",
        ExecutionState::Ended(Outcome::Cancelled) => "interrupted",
        ExecutionState::Ended(Outcome::TimedOut) => "timeout",
    };
    api::Run {
        thread_id: thread.unwrap_or_else(|| run_id.clone()),
        run_id,
        assistant_id: assistant,
        updated_at: created_at.clone(),
        created_at,
        status: state.to_owned(),
        metadata: kept["metadata"].as_object().cloned().unwrap_or_default(),
        multitask_strategy: "reject".to_owned(),
    }
}

/// Answers with the state of a thread, alone or in a list.
pub(super) fn answer_state<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    (thread, newest): (&str, Option<ExecutionId>),
    is_listed: bool,
) -> Answered {
    let status = newest.and_then(|execution| shard.inspect(execution).ok());
    let answer = if is_listed { GraphAnswer::History } else { GraphAnswer::State };
    let format = FrontFormat::Graph { answer };
    let document = match status {
        Some(status) if held::is_on_disk(shard, &status) => {
            return held::follow(shard, id, status.id, (format, FrontOptions::default()));
        }
        Some(status) => held::document(shard, &status, format),
        None if is_listed => json!([]),
        None => {
            let checkpoint = json!({ "thread_id": thread, "checkpoint_ns": "" });
            api::spelled(&api::ThreadState {
                values: Map::new(),
                next: Vec::new(),
                tasks: Vec::new(),
                interrupts: Vec::new(),
                metadata: Map::new(),
                created_at: None,
                checkpoint: checkpoint.as_object().cloned().unwrap_or_default(),
                parent_checkpoint: None,
            })
        }
    };
    hub::answer(shard, id, &Answer::json(Status::OK, &document))
}

/// Returns the messages of a thread, as its newest run has them.
pub(super) fn values_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    newest: Option<ExecutionId>,
) -> Map<String, Value> {
    let status = newest.and_then(|execution| shard.inspect(execution).ok());
    let Some(status) = status else { return Map::new() };
    let format = FrontFormat::Graph { answer: GraphAnswer::State };
    match held::document(shard, &status, format)["values"].take() {
        Value::Object(values) => values,
        _ => Map::new(),
    }
}

/// Removes what is kept of the newest run of a thread, and with it the thread.
pub(super) fn forget_thread<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    newest: Option<ExecutionId>,
) -> Answered {
    match newest {
        None => hub::answer_error(shard, id, &NotFound.into()),
        Some(execution) if is_under_way(shard, execution) => {
            let text = "the last run of this thread has not ended; cancel it first";
            hub::answer_error(shard, id, &ApiError::new(Status::CONFLICT, "busy", text))
        }
        Some(execution) => executions::forget(shard, id, execution),
    }
}

/// Returns the threads of this owner, or their number.
pub(super) fn search<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    search: &ThreadSearch,
    owner: Principal,
) -> Answer {
    let (count, found) = shard.guests.conversations.search(owner, search);
    if search.limit.is_none() {
        return Answer::json(Status::OK, &count);
    }
    let found: Vec<api::FoundThread> = found
        .into_iter()
        .map(|(name, begun_us, is_busy)| {
            let at = rfc3339(begun_us);
            api::FoundThread {
                thread_id: name.into(),
                status: if is_busy { "busy" } else { "idle" }.to_owned(),
                created_at: at.clone(),
                updated_at: at,
                metadata: Map::new(),
                values: None,
                interrupts: Map::new(),
            }
        })
        .collect();
    Answer::json(Status::OK, &found)
}

/// Returns assistants, or their number. There is one for each of the models.
///
/// # Errors
/// [`NotFound`] if one was asked for, and there is none of its name.
pub(in crate::server) fn assistants<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    models: &[String],
    ask: &AssistantsAsk,
) -> Result<Answer, ApiError> {
    let at = rfc3339(shard.anchor.wall_us);
    let spelled = |name: &str, description: String| api::Assistant {
        assistant_id: name.to_owned(),
        graph_id: name.to_owned(),
        name: name.to_owned(),
        description,
        config: Map::new(),
        context: Map::new(),
        metadata: Map::new(),
        version: 1,
        created_at: at.clone(),
        updated_at: at.clone(),
    };
    let first = models
        .first()
        .map(|model| spelled(AGENT, format!("An agent of the model `{model}`, the first one.")));
    let named = models.iter().filter(|model| *model != AGENT);
    let named = named.map(|model| spelled(model, format!("An agent of the model `{model}`.")));
    let mut all = first.into_iter().chain(named);
    match ask {
        AssistantsAsk::Get(name) => {
            let found = all.find(|assistant| *assistant.name == **name);
            Ok(Answer::json(Status::OK, &found.ok_or(NotFound)?))
        }
        AssistantsAsk::Search { name, offset, limit } => {
            let is_it = |assistant: &api::Assistant| {
                name.as_ref().is_none_or(|name| *assistant.name == **name)
            };
            let found = all.filter(is_it);
            Ok(match limit {
                None => Answer::json(Status::OK, &found.count()),
                Some(limit) => {
                    let page: Vec<_> = found.skip(*offset).take(*limit).collect();
                    Answer::json(Status::OK, &page)
                }
            })
        }
    }
}
