//! Tasks: executions, as clients of A2A know them.

use serde_json::{Value, json};

use super::held;
use crate::base::{ExecutionId, Principal};
use crate::endpoint::front::{Channels, Front, FrontFormat, TaskAnswer};
use crate::endpoint::{
    A2A_VERSION, Answer, ApiError, DeliveryOptions, Follow, FrontOptions, ListAsk, StreamFormat,
    TASK_STATES, TaskAsk, TaskCall, TaskSearch,
};
use crate::engine::From;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::{ServerShard, executions, hub, streams, workers};
use crate::tool::AGENT;
use crate::wire::durable::parse_time;
use crate::wire::http1::Status;

const TASK: FrontFormat = FrontFormat::A2a { answer: TaskAnswer::Task };

/// Carries out a request about a task.
pub(in crate::server) fn ask_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: TaskCall,
) -> Answered {
    let TaskCall { execution, ask, reply_to, history_max } = call;
    shard.pump();
    let status = match shard.inspect(execution) {
        Ok(status) => status,
        Err(error) => return hub::answer_error(shard, id, &error.into()),
    };
    let is_over = status.state.is_over();
    let refuse = |code, text: &str| ApiError::new(Status::BAD_REQUEST, code, text);
    let options = FrontOptions { reply_to, history_max, ..FrontOptions::default() };
    let error = match ask {
        TaskAsk::Get if held::is_on_disk(shard, &status) => {
            return held::follow(shard, id, execution, (TASK, options));
        }
        TaskAsk::Get => {
            let front = front_of(shard, execution, TASK, history_max);
            let task = held::document_of(shard, &status, front);
            return hub::answer(shard, id, &Answer::json(Status::OK, &task));
        }
        TaskAsk::Cancel if is_over => refuse("not_cancelable", "the task has ended"),
        TaskAsk::Cancel => {
            let _ = shard.cancel(execution); // It may have ended just now.
            return held::follow(shard, id, execution, (TASK, options));
        }
        TaskAsk::Subscribe { .. } if is_over => {
            refuse("unsupported_operation", "the task has ended; GetTask returns it")
        }
        TaskAsk::Subscribe { since } => {
            let format = FrontFormat::A2a { answer: TaskAnswer::Events };
            let follow = Follow {
                executions: smallvec::smallvec![(execution, From::Live)],
                is_combined: false,
                seen_ends: smallvec::SmallVec::new(),
                format: StreamFormat::Front(format),
                delivery_options: DeliveryOptions::default(),
                front: FrontOptions { since, ..options },
            };
            return streams::follow(shard, id, &follow);
        }
        TaskAsk::Continue => {
            let text = "a task takes no further messages; send one with the contextId of the task";
            refuse("unsupported_operation", text)
        }
    };
    hub::answer_error(shard, id, &error)
}

/// Answers with a task that was just begun.
pub(super) fn answer_begun<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    history_max: Option<usize>,
) -> Answered {
    let status = shard.inspect(execution).expect("it was just begun");
    let format = FrontFormat::A2a { answer: TaskAnswer::Sent };
    let front = front_of(shard, execution, format, history_max);
    let answer = Answer::json(Status::OK, &held::document_of(shard, &status, front));
    executions::answer_when_kept(shard, id, execution, answer)
}

fn front_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execution: ExecutionId,
    format: FrontFormat,
    history_max: Option<usize>,
) -> Front {
    let mut front = streams::front_of(shard, execution, format, &Channels::default());
    front.reply_to(None, history_max);
    front
}

/// Returns the executions of this shard that may be tasks of an answer.
pub(in crate::server) fn list_part<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    principal: Principal,
) -> Value {
    let ask = ListAsk { limit: limits::TASKS_LISTED_MAX, ..ListAsk::default() };
    executions::list(shard, &ask, principal)
}

/// Returns a page of tasks, from the executions of all shards.
pub(in crate::server) fn page(search: &TaskSearch, list: &[Value]) -> Answer {
    if list.len() > limits::TASKS_LISTED_MAX as usize {
        let most = limits::TASKS_LISTED_MAX;
        let text = format!("there are more than {most} executions: GET /v1/executions lists them");
        let error = ApiError::new(Status::BAD_REQUEST, "unsupported_operation", text);
        return Answer::error(&error);
    }
    let mut found: Vec<((u64, ExecutionId), Value)> =
        list.iter().filter_map(|item| task_of(item, search)).collect();
    let total = found.len();
    found.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
    let is_behind = |place: &(u64, ExecutionId)| search.after.is_none_or(|after| *place < after);
    let mut rest = found.into_iter().filter(|(place, _)| is_behind(place)).peekable();
    let page: Vec<_> = rest.by_ref().take(search.page_size).collect();
    let next = match (page.last(), rest.peek()) {
        (Some(((us, execution), _)), Some(_)) => format!("{us}-{execution}"),
        _ => String::new(),
    };
    let tasks: Vec<&Value> = page.iter().map(|(_, task)| task).collect();
    let page = json!({
        "tasks": tasks, "nextPageToken": next, "pageSize": tasks.len(), "totalSize": total,
    });
    Answer::json(Status::OK, &page)
}

/// Returns an execution of a list as a task, with its place, if it is wanted.
fn task_of(item: &Value, search: &TaskSearch) -> Option<((u64, ExecutionId), Value)> {
    let text = |name: &str| item[name].as_str();
    let id = text("execution")?;
    let context = text("thread").unwrap_or(id);
    let state = match text("state")? {
        "queued" => TASK_STATES[0],
        "running" | "draining" => TASK_STATES[1],
        "completed" => TASK_STATES[2],
        "cancelled" => TASK_STATES[4],
        _ => TASK_STATES[3],
    };
    let changed_at = text("ended_at").or(text("created_at"))?;
    let changed_us = parse_time(changed_at)?;
    let is_wanted = search.context.as_deref().is_none_or(|wanted| wanted == context)
        && search.state.is_none_or(|wanted| wanted == state)
        && search.since_us.is_none_or(|since_us| changed_us >= since_us);
    let task = json!({
        "id": id, "contextId": context, "status": { "state": state, "timestamp": changed_at },
        "metadata": { "tool": item["tool"] },
    });
    is_wanted.then(|| Some(((changed_us, id.parse().ok()?), task)))?
}

/// Returns the agent card of this server.
pub(in crate::server) fn card<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    origin: &str,
    has_models: bool,
    principal: Principal,
) -> Answer {
    let is_guarded = shard.guests.access.is_guarded();
    let scheme = if shard.guests.tls.is_some() { "https" } else { "http" };
    let url = match origin.strip_prefix("://") {
        Some(host) => format!("{scheme}://{host}/a2a"),
        None => format!("{origin}/a2a"),
    };
    let interface = |binding: &str| -> Value {
        json!({ "url": url, "protocolBinding": binding, "protocolVersion": A2A_VERSION })
    };
    let skill = |name: &str, about: &str, modes: [&str; 2]| {
        json!({
            "id": name, "name": name, "description": about, "tags": [modes[0]],
            "inputModes": [modes[1]], "outputModes": ["text/plain"],
        })
    };
    let mut skills = Vec::new();
    if has_models {
        let about = "An agent with a model and tools. A context remembers its conversation.";
        skills.push(skill(AGENT, about, ["agent", "text/plain"]));
    }
    let specs = workers::tool_specs(shard, principal).filter(|spec| spec.name != AGENT);
    skills.extend(specs.map(|spec| {
        let about = if spec.description.is_empty() { &spec.name } else { &spec.description };
        skill(&spec.name, about, ["tool", "application/json"])
    }));
    let mut card = json!({
        "name": env!("CARGO_PKG_NAME"),
        "description": "Runs agents and tools, and streams their results while they still run. A \
                        data part {\"tool\": NAME, \"arguments\": {…}} runs a tool. Any other \
                        message runs an agent.",
        "version": env!("CARGO_PKG_VERSION"),
        "supportedInterfaces": [interface("JSONRPC"), interface("HTTP+JSON")],
        "capabilities": {
            "streaming": true, "pushNotifications": false, "extendedAgentCard": true,
        },
        "defaultInputModes": ["text/plain", "application/json"],
        "defaultOutputModes": ["text/plain", "application/json"],
        "skills": skills,
    });
    if is_guarded {
        let scheme = json!({ "httpAuthSecurityScheme": { "scheme": "Bearer" } });
        card["securitySchemes"] = json!({ "bearer": scheme });
        card["securityRequirements"] = json!([{ "schemes": { "bearer": { "list": [] } } }]);
    }
    Answer::json(Status::OK, &card)
}
