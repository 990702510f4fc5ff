//! The records of tasks without an execution, on the disk.
//!
//! While the tool of a task has questions, nothing runs yet. An execution without chunks keeps the
//! task's record meanwhile. It has the tool and its arguments, the open questions, the answers, and
//! the state that the tool wants back. A restart finds the task as it was, and its client goes on
//! answering. Once the tool runs, its own execution is the task's, and the record is removed. If
//! the task ends before, the record ends with it, and has the reply.
//!
//! The record leaves the engine as soon as the disk has it, so it takes no place there.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::base::{ExecutionId, Handle, Principal};
use crate::engine::{SuspendError, Timeouts};
use crate::journal::Refused;
use crate::mcp::{Context, McpFault, questions};
use crate::reactor::Reactor;
use crate::server::archive::KeptTask;
use crate::server::guests::Guests;
use crate::server::mcp::kept_output::{KeptOutput, Role};
use crate::server::mcp::tasks::{Asked, Task};
use crate::server::mcp::{Due, recalled};
use crate::server::{ServerShard, executions};
use crate::shard::journal::{OpenKept, RESTARTED};
use crate::shard::{ExecuteError, ExecuteOptions, Outlet};
use crate::stream::{Durability, Outcome};
use crate::tool::{Abilities, Prepared, ToolSpec, Work};

/// The member of a record that has the questions of a tool.
const MEMBER: &str = "asks";

/// Selects one of the abilities.
type Part = fn(&mut Abilities) -> &mut bool;

/// The names of abilities in a record.
const ABILITIES: [(&str, Part); 5] = [
    ("forms", |abilities| &mut abilities.forms),
    ("urls", |abilities| &mut abilities.urls),
    ("sampling", |abilities| &mut abilities.sampling),
    ("sampling_tools", |abilities| &mut abilities.sampling_tools),
    ("roots", |abilities| &mut abilities.roots),
];

fn describe_abilities(mut abilities: Abilities) -> Value {
    let named = ABILITIES.iter().filter(|(_, part)| *part(&mut abilities));
    named.map(|(name, _)| *name).collect()
}

fn parse_abilities(names: &Value) -> Abilities {
    let mut abilities = Abilities::default();
    let has = |name: &str| names.as_array().is_some_and(|names| names.iter().any(|n| n == name));
    for (_, part) in ABILITIES.iter().filter(|(name, _)| has(name)) {
        *part(&mut abilities) = true;
    }
    abilities
}

fn describe(context: &Context, arguments: &Value, asked: &Asked) -> Value {
    let Asked { open, answers, remembers, rounds } = asked;
    let open: Vec<_> = open.iter().map(|(_, question)| question.clone()).collect();
    json!({
        "arguments": arguments,
        "questions": questions::requests(&open),
        "answers": answers,
        "state": remembers,
        "rounds": rounds,
        "abilities": describe_abilities(context.client.abilities),
    })
}

/// Reads a record: the abilities of the client, the arguments, and the questions without numbers.
fn parse(asks: &Value) -> Option<(Abilities, Value, Asked)> {
    let questions = questions::parse_requests(asks["questions"].as_object()?)?;
    let asked = Asked {
        open: questions.into_iter().map(|question| (0, question)).collect(),
        answers: asks["answers"].as_object()?.clone(),
        remembers: Some(asks["state"].clone()).filter(|state| !state.is_null()),
        rounds: asks["rounds"].as_u64().and_then(|rounds| u32::try_from(rounds).ok())?,
    };
    Some((parse_abilities(&asks["abilities"]), asks["arguments"].clone(), asked))
}

/// Returns the members of a record, without questions if there are none.
fn members<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    owner: Principal,
    task: &KeptTask,
    asks: Option<Value>,
) -> Value {
    let mut members = json!({"task": task.to_json()});
    if let Some(name) = shard.guests.access.name_of(owner) {
        members["owner"] = name.into();
    }
    if let Some(asks) = asks {
        members[MEMBER] = asks;
    }
    members
}

fn options_of(owner: Principal) -> ExecuteOptions {
    ExecuteOptions {
        timeouts: Some(Timeouts::NONE),
        grows: true,
        goes_on: true,
        owner,
        ..ExecuteOptions::default()
    }
}

/// Writes down the questions of a task and the answers so far. Without a journal it does nothing.
///
/// # Errors
/// The task has no record yet, and there is no room for one.
pub(super) fn keep<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) -> Result<(), ExecuteError> {
    let Some((owner, task)) = task_of(shard, handle) else { return Ok(()) };
    let asks = describe(&task.context, &task.arguments, &task.asked);
    let (kept, record) = (task.kept(), task.record);
    if let Some(record) = record {
        let members = members(shard, owner, &kept, Some(asks));
        let _ = shard.amend(record, members); // Without room, a restart asks again.
        shard.write_kept_soon();
        return Ok(());
    }
    match open(shard, handle, &kept, Some(asks)) {
        // A restart ends this task: its questions are not there then.
        Err(ExecuteError::NotKept(Refused::TooLong)) => open(shard, handle, &kept, None),
        opened => opened,
    }
}

fn task_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    handle: Handle,
) -> Option<(Principal, &Task)> {
    let keep = shard.guests.mcp.keeps.get(handle)?;
    match &keep.role {
        Role::Task(task) => Some((keep.owner, task)),
        Role::Answer(_) | Role::Stream | Role::Resource => None,
    }
}

/// Opens the record of a task.
fn open<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    task: &KeptTask,
    asks: Option<Value>,
) -> Result<(), ExecuteError> {
    if shard.durability_of(None) == Durability::None {
        return Ok(());
    }
    let Some(keep) = shard.guests.mcp.keeps.get(handle) else { return Ok(()) };
    let (owner, tool) = (keep.owner, Arc::clone(&keep.tool));
    let mut prepared = Prepared::new(Work::Feed);
    prepared.tool = Some(tool);
    let options = options_of(owner);
    let mut guest = Guests::prepare(shard, &prepared.work, &options)?;
    guest.task = Some(Rc::new(task.clone()));
    guest.described = Some(Box::new(members(shard, owner, task, asks)));
    let record = shard.open_execution(prepared, options, guest)?;
    shard.write_kept_soon(); // The client is told the id of the task.
    let mcp = &mut shard.guests.mcp;
    if let Some(task) = mcp.task_mut(handle) {
        task.record = Some(record);
    }
    mcp.resting.push(record);
    Ok(())
}

/// Takes records out of the engine that the disk has.
pub(in crate::server) fn rest<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let mut resting = std::mem::take(&mut shard.guests.mcp.resting);
    // Somebody may follow it: then it stays in the engine.
    resting.retain(|record| shard.suspend(*record) == Err(SuspendError::NotDurable));
    shard.guests.mcp.resting = resting;
}

/// Ends the record of a task that has ended before its tool ran. Returns the wall-clock time of the
/// end, in microseconds since 1970. A task without a record gets one.
pub(super) fn end<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    reply: &Result<Value, McpFault>,
    outcome: Outcome,
) -> Option<u64> {
    let keep = shard.guests.mcp.keeps.get(handle).filter(|keep| keep.execution.is_none())?;
    let owner = keep.owner;
    let (_, task) = task_of(shard, handle)?;
    let kept = KeptTask { reply: Some(reply.clone()), ..task.kept() };
    if task.record.is_none() {
        open(shard, handle, &kept, None).ok()?; // It is in memory only.
    }
    let record = shard.guests.mcp.task(handle)?.record?;
    shard.resume(record, &options_of(owner)).ok()?;
    let described = members(shard, owner, &kept, None);
    let _ = shard.amend(record, described); // Without it, the text of the end is left.
    if let Some(run) = shard.run_of_mut(record) {
        run.guest.task = Some(Rc::new(kept));
    }
    let text = match reply {
        Ok(result) => result["content"][0]["text"].as_str().unwrap_or_default().to_owned(),
        Err(fault) => fault.message.clone(),
    };
    let ended = match outcome {
        Outcome::Cancelled => shard.cancel(record).is_ok(),
        _ => shard.finish(record, Err(&text)).is_ok(),
    };
    shard.write_kept_soon();
    shard.kept_ended_us(record).filter(|_| ended)
}

/// Removes the record of a task whose tool runs, or whose time is up.
pub(super) fn remove<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let Some(keep) = shard.guests.mcp.keeps.get_mut(handle) else { return };
    let (owner, Role::Task(task)) = (keep.owner, &mut keep.role) else { return };
    if let Some(record) = task.record.take() {
        remove_record(shard, record, owner);
    }
}

/// Removes a record. If that fails, the next start does it.
fn remove_record<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    record: ExecutionId,
    owner: Principal,
) {
    if shard.resume(record, &options_of(owner)).is_ok() {
        let _ = shard.finish(record, Ok(())); // It was just brought back.
        let _ = executions::erase(shard, record);
    }
}

/// Takes up the tasks that had open questions when the last process ended.
pub(in crate::server) fn take_up<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    open: &[OpenKept],
) {
    for kept in open {
        let guest = &kept.opened.guest;
        if let Some(task) = KeptTask::parse(&guest["task"]) {
            take_up_one(shard, kept, &task);
        }
    }
}

fn take_up_one<R: Reactor + 'static>(shard: &mut ServerShard<R>, kept: &OpenKept, task: &KeptTask) {
    let (id, guest) = (kept.id, &kept.opened.guest);
    let owner = shard.guests.access.principal_of(guest["owner"].as_str());
    let now_us = shard.reactor.wall_us();
    let left_us = task.left_us(now_us);
    let (Some(left_us), None) = (left_us, shard.guests.archive.task(&task.name, now_us)) else {
        return remove_record(shard, id, owner); // Its time is over, or its tool was run.
    };
    let asked = parse(&guest[MEMBER]).filter(|_| owner != Principal::NOBODY);
    let tool = kept.opened.tool.as_deref().unwrap_or_default();
    let left = Duration::from_micros(left_us);
    let is_taken = asked.is_some_and(|(abilities, arguments, asked)| {
        let mut restored = Task::restored(task, abilities, arguments, asked);
        restored.record = Some(id);
        insert(shard, (owner, tool), restored, left).is_some()
    });
    if !is_taken && shard.resume(id, &options_of(owner)).is_ok() {
        if let Some(run) = shard.run_of_mut(id) {
            run.guest.task = Some(Rc::new(task.clone()));
        }
        let _ = shard.finish(id, Err(RESTARTED)); // It was just brought back.
    }
}

/// Keeps a task again whose tool has questions. `None` without room.
fn insert<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    (owner, tool): (Principal, &str),
    mut task: Task,
    left: Duration,
) -> Option<Handle> {
    let place = recalled::place_for_task(shard, owner)?;
    let until = shard.now + left;
    let Guests { hub, mcp, .. } = &mut shard.guests;
    for (number, _) in &mut task.asked.open {
        *number = hub.random_number();
    }
    let tool = Arc::new(ToolSpec::new(tool, "")); // The tools are added later.
    let role = Role::Task(Box::new(task));
    let keep = KeptOutput { place: Some(place), ..KeptOutput::new(owner, tool, role) };
    mcp.begin_use(shard.now);
    let handle = mcp.keeps.insert(Box::new(keep)).ok()?;
    let timer = mcp.set_timer(None, Some((Due::Output(handle), until)));
    mcp.keeps.get_mut(handle).expect("it was just made").timer = timer;
    Some(handle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::Version;
    use crate::tool::Question;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let abilities = Abilities { forms: true, sampling_tools: true, ..Abilities::default() };
        let mut context = Context::past(Version::V2025_11_25);
        context.client.abilities = abilities;
        let arguments = json!({"a": [1, "\u{1F622}"], "b": null});
        let schema = json!({"type": "object", "properties": {"n": {"type": "string"}}});
        let form = Question::form("z", "Name?", schema);
        let sample = Question::sample("a", "Go on.", 7);
        let open = vec![(0, form), (0, sample), (0, Question::roots("r"))];
        let answers = json!({"x": {"action": "decline"}}).as_object().unwrap().clone();
        for remembers in [None, Some(json!({"round": 2})), Some(json!("s"))] {
            let asked =
                Asked { open: open.clone(), answers: answers.clone(), remembers, rounds: 3 };
            let text = describe(&context, &arguments, &asked).to_string();
            let read = parse(&serde_json::from_str(&text).unwrap());
            assert_eq!(read, Some((abilities, arguments.clone(), asked)));
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let whole =
            json!({"questions": {"a": {"method": "roots/list"}}, "answers": {}, "rounds": 1});
        assert!(parse(&whole).is_some());
        for (name, value) in [
            ("questions", json!([])),
            ("questions", json!({"a": {"method": "tools/list"}})),
            ("questions", json!({"a": null})),
            ("answers", json!(1)),
            ("rounds", json!(-1)),
            ("rounds", json!(1_u64 << 32)),
        ] {
            let mut wrong = whole.clone();
            wrong[name] = value;
            assert_eq!(parse(&wrong), None, "{wrong}");
        }
        assert_eq!(parse(&Value::Null), None);
    }
}
