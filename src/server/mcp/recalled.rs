//! Tasks and outputs that only the disk has: they are ready before a request is carried out.
//!
//! A request that names a task waits until the records of its execution were read, like any other
//! request (`turn/recall.rs`). Then it waits until the output was read, too: the task is a keep
//! again, with the result that it had. The output of an execution, as a resource, waits likewise.
//!
//! Such a keep needs no client, so it can go at any time, and is made again for the next request.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::{ExecutionId, Handle, Principal};
use crate::endpoint::McpRequest;
use crate::engine::{Event, From};
use crate::limits;
use crate::mcp::results::ExecutionUri;
use crate::mcp::tasks::{self as shapes, TaskState};
use crate::reactor::Reactor;
use crate::server::archive::{Entry, KeptTask};
use crate::server::mcp::kept_output::{KeptOutput, Role};
use crate::server::mcp::tasks::{self, Task};
use crate::server::mcp::{Due, settle, tools};
use crate::server::places::{Place, PlaceKind};
use crate::server::{ServerShard, executions, records};
use crate::shard::Recall;
use crate::stream::{Outcome, Totals};
use crate::tool::ToolSpec;

/// Returns the execution that a request names, itself or as a task that is not in memory.
pub(in crate::server) fn named_execution<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    request: &McpRequest,
    owner: Principal,
) -> Option<ExecutionId> {
    let Some(name) = request.task() else { return request.execution() };
    if tasks::find_task(shard, owner, name).is_ok() {
        return None;
    }
    let (id, _) = shard.guests.archive.task(name, records::wall_us(shard))?;
    Some(id)
}

/// Has the output read that a request needs. Its execution is here, or will not be found.
pub(in crate::server) fn recall_mcp<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    request: &McpRequest,
    owner: Principal,
) -> Recall {
    if let Some(name) = request.task() {
        return recall_task(shard, name, owner);
    }
    match request.read_uri().and_then(ExecutionUri::parse) {
        Some(ExecutionUri::Output(id)) => recall_output(shard, id, owner),
        _ => Recall::Here,
    }
}

fn recall_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: &str,
    owner: Principal,
) -> Recall {
    let handle = match tasks::find_task(shard, owner, name) {
        Ok(handle) => handle,
        Err(_) => {
            let now_us = records::wall_us(shard);
            let found = shard.guests.archive.task(name, now_us);
            let found = found.map(|(id, task)| (id, Rc::clone(task)));
            let own = found.filter(|(id, _)| executions::is_owned(shard, *id, owner));
            let Some((id, task)) = own else { return Recall::Here };
            match keep_task_again(shard, id, &task, (owner, now_us)) {
                Some(handle) => handle,
                None => return Recall::Later,
            }
        }
    };
    tasks::settle_task(shard, handle);
    let task = shard.guests.mcp.task(handle).expect("it was just found");
    match task.is_recalled() && task.reply.is_none() {
        true => Recall::Soon,
        false => Recall::Here,
    }
}

/// Keeps the result of a task again, for what is left of its time. `None` without room.
fn keep_task_again<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    task: &KeptTask,
    (owner, now_us): (Principal, u64),
) -> Option<Handle> {
    let place = place_for_task(shard, owner)?;
    let left = Duration::from_micros(task.left_us(now_us)?);
    let document = document(shard.guests.archive.get(id)?, task);
    let was = (document.state, document.updated_us);
    let role = Role::Task(Box::new(Task::recalled(task, was)));
    let handle = keep_again(shard, id, (owner, role), From::Start, left)?;
    shard.guests.mcp.keeps.get_mut(handle).expect("it was just made").place = Some(place);
    Some(handle)
}

/// Takes a place for a task of this principal. If all are taken, the oldest one from the disk goes.
pub(super) fn place_for_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
) -> Option<Place> {
    let take = |shard: &ServerShard<R>| {
        shard.guests.mcp.places.take(PlaceKind::Tasks, owner, limits::MCP_TASKS_MAX)
    };
    let place = take(shard);
    if place.is_some() {
        return place;
    }
    let is_spare = |keep: &KeptOutput| match &keep.role {
        Role::Task(task) => keep.owner == owner && task.is_recalled() && task.reply.is_some(),
        _ => false,
    };
    let spare = shard.guests.mcp.keeps.iter().filter(|(_, keep)| is_spare(keep));
    let (oldest, _) = spare.min_by_key(|(_, keep)| keep.idle_until)?;
    settle::forget_keep(shard, oldest);
    take(shard)
}

fn recall_output<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    owner: Principal,
) -> Recall {
    if !executions::is_owned(shard, id, owner) || !is_on_disk(shard, id) {
        return Recall::Here;
    }
    if let Some((handle, _)) = find_output(shard, id) {
        return if is_read(shard, id, handle) { Recall::Here } else { Recall::Soon };
    }
    let total_bytes = shard.inspect(id).map_or(0, |status| status.totals.bytes);
    let first_byte = total_bytes.saturating_sub(limits::RESULT_KEPT_BYTES_MAX as u64);
    let from = match shard.seek_kept(id, first_byte) {
        None | Some((1, _)) => From::Start,
        Some((seq, bytes)) => From::Seq { seq, seen: Some(Totals { chunks: seq - 1, bytes }) },
    };
    match keep_again(shard, id, (owner, Role::Resource), from, limits::RETENTION) {
        Some(_) => Recall::Soon,
        None => Recall::Later,
    }
}

/// True if the ring of the execution has lost some of its output. The disk has it once the
/// execution has ended, or the log of another node has it.
fn is_on_disk<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExecutionId) -> bool {
    let Ok(status) = shard.inspect(id) else { return false };
    let Some(run) = shard.run_of(id).filter(|_| status.tail_seq > 1) else { return false };
    run.is_replica || (run.kept.is_some() && status.outcome.is_some())
}

/// True if a keep has the whole output, or all that has come from another node so far.
fn is_read<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    handle: Handle,
) -> bool {
    let Some(keep) = shard.guests.mcp.keeps.get(handle) else { return false };
    let (is_over, subscriber) = (keep.over.is_some(), keep.subscriber);
    if is_over || shard.run_of(id).is_none_or(|run| !run.is_replica) {
        return is_over;
    }
    let head_seq = shard.inspect(id).map_or(0, |status| status.head_seq);
    let all = shard.subscribers(id).unwrap_or_default();
    all.iter().any(|status| Some(status.id) == subscriber && status.next_seq > head_seq)
}

fn find_output<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
) -> Option<(Handle, &KeptOutput)> {
    let is_it =
        |keep: &KeptOutput| matches!(keep.role, Role::Resource) && keep.execution == Some(id);
    let found = shard.guests.mcp.keeps.iter().find(|(_, keep)| is_it(keep))?;
    Some((found.0, found.1))
}

/// Takes the output of an execution that was read for a request.
pub(in crate::server) fn take_output<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
) -> Option<Vec<u8>> {
    let (handle, _) = find_output(shard, id)?;
    if !is_read(shard, id, handle) {
        return None;
    }
    let keep = shard.guests.mcp.keeps.get_mut(handle).expect("it was just found");
    let output = keep.take_end();
    settle::forget_keep(shard, handle);
    Some(output)
}

/// Keeps the output of an execution, from the disk or from the log. `None` without room.
fn keep_again<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    (owner, role): (Principal, Role),
    from: From,
    left: Duration,
) -> Option<Handle> {
    let now = shard.now;
    let until = now + left.min(limits::RETENTION);
    let spec = shard.tool_of(id).cloned();
    let spec = spec.unwrap_or_else(|| Arc::new(ToolSpec::new("", "")));
    let run = shard.run_of(id)?;
    let keep = KeptOutput {
        execution: Some(id),
        has_panicked: run.has_panicked,
        idle_until: until,
        ..KeptOutput::new(owner, spec, role)
    };
    let mcp = &mut shard.guests.mcp;
    mcp.begin_use(now);
    let handle = mcp.keeps.insert(Box::new(keep)).ok()?;
    let timer = mcp.set_timer(None, Some((Due::Output(handle), until)));
    mcp.keeps.get_mut(handle).expect("it was just made").timer = timer;
    shard.pump();
    tools::attach_keep(shard, handle, id, from);
    let keep = shard.guests.mcp.keeps.get(handle).expect("as above");
    if keep.subscriber.is_none() {
        settle::forget_keep(shard, handle); // The execution has no room for a subscriber.
        return None;
    }
    shard.pump();
    Some(handle)
}

/// Ends the output of a task from the disk that is longer than a result.
pub(in crate::server) fn cut_short<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    let Some(keep) = shard.guests.mcp.keeps.get(handle) else { return };
    let run = keep.execution.and_then(|id| shard.run_of(id));
    let verdict = run.and_then(|run| shard.engine.verdict(run.handle));
    let Some(verdict) = verdict else { return };
    let (outcome, error) = (verdict.outcome, verdict.error.clone());
    let keep = shard.guests.mcp.keeps.get_mut(handle).expect("as above");
    if let Some(subscriber) = keep.stop(outcome, error) {
        shard.pump(); // Earlier actions come first.
        shard.ask_at_once(Event::Unsubscribe(subscriber));
    }
}

/// Returns the document of a task that only the disk has. Its output was not read.
pub(in crate::server) fn document<'a>(entry: &Entry, task: &'a KeptTask) -> shapes::Task<'a> {
    let state = match entry.outcome {
        Outcome::Completed => TaskState::Completed,
        Outcome::Cancelled => TaskState::Cancelled,
        _ if entry.is_fault || matches!(task.reply, Some(Err(_))) => TaskState::Failed,
        _ => TaskState::of_result(task.version, true),
    };
    let updated_us = entry.dates.ended_us.unwrap_or(0).max(task.created_us);
    let (created_us, ttl_ms) = (task.created_us, Some(task.ttl_ms));
    shapes::Task { id: &task.name, state, message: None, created_us, updated_us, ttl_ms }
}
