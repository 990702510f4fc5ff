//! Tasks: calls whose results are fetched later. A task is a keep with an unguessable name, from
//! its start until its time is up. It passes on the questions of its tool.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::base::{ExecutionId, Handle, Principal};
use crate::limits;
use crate::mcp::cursor::{self, List};
use crate::mcp::results::Results;
use crate::mcp::tasks::{self, Detail, TaskState};
use crate::mcp::{Context, Era, META_TASK, McpFault, Version, notify, questions};
use crate::reactor::Reactor;
use crate::server::archive::KeptTask;
use crate::server::guests::Guests;
use crate::server::mcp::answer::{Replied, Reply, Source};
use crate::server::mcp::call::Stage;
use crate::server::mcp::kept_output::{KeptOutput, Role};
use crate::server::mcp::tools::{ToolCall, execute_error};
use crate::server::mcp::{
    Due, answer, ask, listen, open_streams, recalled, receive, result, settle, task_record, tools,
};
use crate::server::places::PlaceKind;
use crate::server::{ServerShard, peers, records};
use crate::shard::ExecuteError;
use crate::shard::journal::RESTARTED;
use crate::stream::Outcome;
use crate::tool::{Abilities, Asking, Question, Replies};
use crate::wire::jsonrpc::{self, ErrorObject};

/// The state of a task.
#[derive(Debug)]
pub(in crate::server) struct Task {
    pub name: String,
    pub state: TaskState,
    /// True if its execution had ended before the task was in memory: see `recalled.rs`.
    is_recalled: bool,
    /// The context of the call that became the task.
    pub context: Box<Context>,
    pub arguments: Value,
    created_us: u64,
    updated_us: u64,
    ttl_ms: u64,
    pub asked: Asked,
    /// The execution that keeps its record until its tool runs: see `task_record.rs`.
    pub record: Option<ExecutionId>,
    /// The reply to the call that became the task.
    pub reply: Option<Result<Value, McpFault>>,
}

/// The questions of a tool before it runs.
#[derive(Debug, Default, PartialEq)]
pub(in crate::server) struct Asked {
    /// The open questions, each with its number in the handshake era.
    pub open: Vec<(u64, Question)>,
    /// The answers to the current questions.
    pub answers: Map<String, Value>,
    /// The state that the tool wants back.
    pub remembers: Option<Value>,
    /// Number of times that the tool was asked.
    pub rounds: u32,
}

/// The limit of rounds of questions for one task.
const ROUNDS_MAX: u32 = 64;

impl Task {
    /// Returns a task whose execution has ended and is kept, before its output was read. Such a
    /// task was in this state since this time.
    pub fn recalled(kept: &KeptTask, (state, updated_us): (TaskState, u64)) -> Task {
        let is_over = kept.reply.is_some(); // There is no output to read.
        Task {
            name: kept.name.to_string(),
            state: if is_over { state } else { TaskState::Working },
            is_recalled: true,
            context: Box::new(Context::past(kept.version)),
            arguments: Value::Null,
            created_us: kept.created_us,
            updated_us: if is_over { updated_us } else { kept.created_us },
            ttl_ms: kept.ttl_ms,
            asked: Asked::default(),
            record: None,
            reply: kept.reply.clone(),
        }
    }

    /// Returns a task whose tool had questions when the last process ended.
    pub fn restored(kept: &KeptTask, abilities: Abilities, arguments: Value, asked: Asked) -> Task {
        let mut context = Context::past(kept.version);
        context.client.abilities = abilities;
        Task {
            state: TaskState::InputRequired,
            is_recalled: false,
            context: Box::new(context),
            arguments,
            asked,
            ..Task::recalled(kept, (TaskState::InputRequired, kept.created_us))
        }
    }

    /// True for a task whose execution had ended before the task was in memory.
    pub fn is_recalled(&self) -> bool {
        self.is_recalled
    }

    /// Returns the description for the record of its execution.
    pub fn kept(&self) -> KeptTask {
        KeptTask {
            name: self.name.as_str().into(),
            version: self.context.version,
            created_us: self.created_us,
            ttl_ms: self.ttl_ms,
            reply: None,
        }
    }

    fn document(&self) -> tasks::Task<'_> {
        tasks::Task {
            id: &self.name,
            state: self.state,
            message: None,
            created_us: self.created_us,
            updated_us: self.updated_us,
            ttl_ms: Some(self.ttl_ms),
        }
    }

    /// Calls `look` with the details that a task of the stateless era has besides its state.
    fn with_detail<T>(&self, look: impl FnOnce(Detail<'_>) -> T) -> T {
        match (&self.state, &self.reply) {
            (TaskState::InputRequired, _) => {
                let asked: Vec<Question> =
                    self.asked.open.iter().map(|(_, question)| question.clone()).collect();
                look(Detail::Questions(&questions::requests(&asked)))
            }
            (TaskState::Completed, Some(Ok(result))) => look(Detail::Result(result)),
            (TaskState::Failed, Some(Err(fault))) => look(Detail::Fault(fault)),
            _ => look(Detail::None),
        }
    }
}
/// Starts a task for a call. The description of the task is the reply.
pub(in crate::server) fn begin_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: ToolCall,
) -> Reply {
    let ToolCall { owner, context, spec, arguments, replies } = call;
    let most = limits::MCP_TASKS_MAX;
    let place = shard.guests.mcp.places.take(PlaceKind::Tasks, owner, most);
    let full = || McpFault::busy(format!("{most} tasks exist already"));
    let place = Some(place.ok_or_else(full)?);
    let secret =
        shard.secrets.draw().map_err(|_| McpFault::internal("the system gave no randomness"))?;
    let name = format!("{:02x}{:032x}", peers::own_index(shard), secret.token);
    let created_us = records::wall_us(shard);
    let ttl_ms = tasks::ttl_ms(&context);
    let task = Task {
        name,
        state: TaskState::Working,
        is_recalled: false,
        context,
        arguments,
        created_us,
        updated_us: created_us,
        ttl_ms,
        asked: Asked { answers: replies.answers, remembers: replies.state, ..Asked::default() },
        record: None,
        reply: None,
    };
    let now = shard.now;
    let keep = KeptOutput { place, ..KeptOutput::new(owner, spec, Role::Task(Box::new(task))) };
    let mcp = &mut shard.guests.mcp;
    let full = |_| McpFault::busy("too many tasks exist");
    let handle = mcp.keeps.insert(Box::new(keep)).map_err(full)?;
    let until = now + Duration::from_millis(ttl_ms);
    let timer = mcp.set_timer(None, Some((Due::Output(handle), until)));
    mcp.keeps.get_mut(handle).expect("it was just made").timer = timer;
    advance_task(shard, handle);
    let server = ask::server_info(shard);
    let mcp = &mut shard.guests.mcp;
    let Some(task) = mcp.task(handle) else {
        return Err(McpFault::internal("the task is gone"));
    };
    Ok(Results::new(task.context.version, &server).task_created(&task.document()).into())
}

/// Runs the tool of a task, or asks its questions first.
fn advance_task<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let Some(keep) = shard.guests.mcp.keeps.get(handle) else { return };
    let owner = keep.owner;
    // After a restart, only the name of the tool is known.
    let found = receive::tool_spec(shard, owner, &keep.tool.name);
    let spec = found.unwrap_or_else(|| Arc::clone(&keep.tool));
    let Some(task) = shard.guests.mcp.task_mut(handle) else { return };
    if task.is_recalled {
        return; // Its tool has run.
    }
    task.asked.rounds += 1;
    let is_endless = task.asked.rounds > ROUNDS_MAX;
    let answers = std::mem::take(&mut task.asked.answers);
    let replies = Replies { answers, state: task.asked.remembers.take() };
    let call = ToolCall {
        owner,
        context: task.context.clone(),
        spec,
        arguments: task.arguments.clone(),
        replies,
    };
    if is_endless {
        let text = format!("the tool has asked more than {ROUNDS_MAX} times");
        let reply = open_streams::refusal(shard, &call.context, &text);
        return finish_task(shard, handle, reply, Outcome::Failed);
    }
    match tools::ask_tool(shard, &call) {
        Err(reply) => finish_task(shard, handle, reply, Outcome::Failed),
        Ok(Asking::Refuse(text)) => {
            let reply = open_streams::refusal(shard, &call.context, &text);
            finish_task(shard, handle, reply, Outcome::Failed);
        }
        Ok(Asking::Run) => match tools::prepare_call(shard, &call) {
            Err(reply) => finish_task(shard, handle, reply, Outcome::Failed),
            Ok(prepared) => run_task(shard, handle, &call, prepared),
        },
        Ok(Asking::Ask { questions: asked, state }) => {
            let context = &call.context;
            if let Err(fault) = questions::check(context.version, &context.client, &asked) {
                return finish_task(shard, handle, Err(fault), Outcome::Failed);
            }
            let Guests { hub, mcp, .. } = &mut shard.guests;
            let is_nothing = asked.is_empty();
            let open: Vec<(u64, Question)> =
                asked.into_iter().map(|question| (hub.random_number(), question)).collect();
            let Some(task) = mcp.task_mut(handle) else { return };
            (task.asked.open, task.asked.remembers) = (open, state);
            if is_nothing {
                return advance_task(shard, handle);
            }
            if let Err(error) = task_record::keep(shard, handle) {
                return refuse_task(shard, handle, call.context.version, &error);
            }
            set_task_state(shard, handle, TaskState::InputRequired);
            send_task_questions(shard, handle);
        }
    }
}

fn run_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    call: &ToolCall,
    prepared: crate::tool::Prepared,
) {
    let kept = shard.guests.mcp.task(handle).map(Task::kept);
    match tools::open_kept(shard, call.owner, prepared, 1, kept, false) {
        Err(error) => refuse_task(shard, handle, call.context.version, &error),
        Ok(execution) => {
            let mcp = &mut shard.guests.mcp;
            if let Some(keep) = mcp.keeps.get_mut(handle) {
                keep.set_tool(&call.spec);
                keep.execution = Some(execution);
            }
            task_record::remove(shard, handle);
            tools::attach_keep(shard, handle, execution, crate::engine::From::Start);
            records::log_started_by(shard, None, execution, &call.spec.name);
            set_task_state(shard, handle, TaskState::Working);
            shard.write_kept_soon(); // The client is told the id of the task.
            shard.pump();
        }
    }
}

/// Finishes a task that has no room for an execution.
fn refuse_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    version: Version,
    error: &ExecuteError,
) {
    let server = ask::server_info(shard);
    let reply = execute_error(&Results::new(version, &server), error);
    finish_task(shard, handle, reply, Outcome::Failed);
}

fn set_task_state<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    state: TaskState,
) {
    let now_us = records::wall_us(shard);
    set_task_state_at(shard, handle, state, now_us);
}

/// Sets the state of a task that has changed at this wall-clock time.
fn set_task_state_at<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    state: TaskState,
    at_us: u64,
) {
    let mcp = &mut shard.guests.mcp;
    let Some(task) = mcp.task_mut(handle) else { return };
    if task.state != state {
        task.state = state;
        task.updated_us = at_us.max(task.created_us);
        if !task.is_recalled() {
            tell_task(shard, handle);
        }
    }
}

/// Finishes a task whose execution has ended.
pub(in crate::server) fn settle_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    let mcp = &mut shard.guests.mcp;
    let Some(keep) = mcp.keeps.get(handle) else { return };
    let (Some(over), Role::Task(task)) = (&keep.over, &keep.role) else { return };
    if task.reply.is_some() {
        return;
    }
    let (outcome, context) = (over.outcome(), task.context.clone());
    // In the stateless era a task fails only without a result of its tool (B38).
    let is_cut = context.version.era() == Era::Stateless && over.is_cut();
    let reply = match is_cut {
        true => Err(McpFault::internal(RESTARTED)),
        false => result::result_of(shard, handle, &context),
    };
    finish_task(shard, handle, reply, outcome);
}

/// Stores the reply of a task and sends it to the calls that wait.
fn finish_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    reply: Reply,
    outcome: Outcome,
) {
    let execution = shard.guests.mcp.keeps.get(handle).and_then(|keep| keep.execution);
    let is_error = reply.as_ref().is_ok_and(Replied::is_error);
    let reply = reply.map(Replied::into_value);
    // The record of the end says the same time after a restart.
    let recorded_us = match execution {
        Some(execution) => shard.kept_ended_us(execution),
        None => task_record::end(shard, handle, &reply, outcome),
    };
    let at_us = recorded_us.unwrap_or_else(|| records::wall_us(shard));
    let mcp = &mut shard.guests.mcp;
    let Some(task) = mcp.task_mut(handle) else { return };
    let state = match (&reply, outcome) {
        _ if task.state.is_terminal() => task.state,
        (_, Outcome::Cancelled) => TaskState::Cancelled,
        (Err(_), _) => TaskState::Failed,
        (Ok(_), _) => TaskState::of_result(task.context.version, is_error),
    };
    task.reply = Some(reply);
    task.asked.open.clear();
    set_task_state_at(shard, handle, state, at_us);
    answer_awaiting(shard, handle);
}

/// Answers the calls that wait for the result of a task.
fn answer_awaiting<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let mcp = &mut shard.guests.mcp;
    let Some(task) = mcp.task(handle) else { return };
    let Some(reply) = task.reply.clone() else { return };
    let name = task.name.clone();
    for call in mcp.awaiting(handle) {
        let reply = of_task(shard, &name, reply.clone(), &listen::call_context(shard, call));
        answer::answer_call(shard, call, reply);
    }
}

fn of_task<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    name: &str,
    reply: Result<Value, McpFault>,
    context: &Context,
) -> Reply {
    let server = ask::server_info(shard);
    Ok(Results::new(context.version, &server).task_result(name, &reply?).into())
}

/// Returns the task of this name, if it belongs to this principal.
pub(in crate::server) fn find_task<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    owner: Principal,
    name: &str,
) -> Result<Handle, McpFault> {
    let mcp = &shard.guests.mcp;
    let is_it = |keep: &KeptOutput| match &keep.role {
        Role::Task(task) => keep.owner == owner && task.name == name,
        Role::Answer(_) | Role::Stream | Role::Resource => false,
    };
    let found = mcp.keeps.iter().find(|(_, keep)| is_it(keep));
    found.map(|(handle, _)| handle).ok_or_else(McpFault::task_not_found)
}

pub(in crate::server) fn get_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
    context: &Context,
    name: &str,
) -> Reply {
    let handle = find_task(shard, owner, name)?;
    let server = ask::server_info(shard);
    let results = Results::new(context.version, &server);
    let mcp = &mut shard.guests.mcp;
    let task = mcp.task(handle).ok_or_else(McpFault::task_not_found)?;
    Ok(task.with_detail(|detail| results.task(&task.document(), detail)).into())
}

pub(in crate::server) fn task_result<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    context: Box<Context>,
    name: &str,
) -> Option<Reply> {
    let handle = match find_task(shard, source.owner, name) {
        Ok(handle) => handle,
        Err(fault) => return Some(Err(fault)),
    };
    let mcp = &mut shard.guests.mcp;
    let reply = mcp.task(handle).and_then(|task| task.reply.clone());
    if let Some(reply) = reply {
        return Some(of_task(shard, name, reply, &context));
    }
    if let Err(fault) = answer::open_call(shard, source, context, Stage::Awaits(handle)) {
        return Some(Err(fault));
    }
    send_task_questions(shard, handle);
    None
}

/// Returns this principal's tasks on this shard as items of a list.
pub(in crate::server) fn task_items<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    owner: Principal,
    version: Version,
) -> Vec<Value> {
    let Guests { mcp, archive, access, .. } = &shard.guests;
    let own = mcp.keeps.iter().filter(|(_, keep)| keep.owner == owner);
    let own = own.filter_map(|(_, keep)| match &keep.role {
        Role::Task(task) => Some((&*task.name, task.document())),
        Role::Answer(_) | Role::Stream | Role::Resource => None,
    });
    let mut all: HashMap<&str, tasks::Task<'_>> = HashMap::new();
    let now_us = records::wall_us(shard);
    for (id, entry) in archive.tasks() {
        if let Some(task) = &entry.task
            && entry.is_owned_by(owner, access)
            && task.left_us(now_us).is_some()
            && shard.keeps(id)
        {
            all.insert(&task.name, recalled::document(entry, task));
        }
    }
    all.extend(own);
    all.values().map(|task| task.to_json(version).into()).collect()
}

pub(in crate::server) fn cancel_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
    context: &Context,
    name: &str,
) -> Reply {
    let handle = find_task(shard, owner, name)?;
    let server = ask::server_info(shard);
    let results = Results::new(context.version, &server);
    let mcp = &mut shard.guests.mcp;
    let keep = mcp.keeps.get(handle).ok_or_else(McpFault::task_not_found)?;
    let Role::Task(task) = &keep.role else { return Err(McpFault::task_not_found()) };
    let execution = keep.execution.filter(|_| keep.over.is_none());
    if !task.state.is_terminal() {
        let context = task.context.clone();
        set_task_state(shard, handle, TaskState::Cancelled);
        match execution {
            Some(execution) => _ = shard.cancel(execution),
            None => {
                let reply = open_streams::refusal(shard, &context, "the task was cancelled");
                finish_task(shard, handle, reply, Outcome::Cancelled);
            }
        }
    } else if context.version.era() == Era::Handshake {
        let text = format!("the task is already {}", task.state.name());
        return Err(McpFault::invalid_params(text));
    }
    let mcp = &mut shard.guests.mcp;
    let task = mcp.task(handle).ok_or_else(McpFault::task_not_found)?;
    Ok(results.task_cancelled(&task.document()).into())
}

pub(in crate::server) fn update_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
    context: &Context,
    name: &str,
    answers: Map<String, Value>,
) -> Reply {
    let handle = find_task(shard, owner, name)?;
    let mcp = &mut shard.guests.mcp;
    let task = mcp.task_mut(handle).ok_or_else(McpFault::task_not_found)?;
    for (key, answer) in answers {
        task.hear(&key, answer);
    }
    go_on_if_answered(shard, handle);
    let server = ask::server_info(shard);
    Ok(Results::new(context.version, &server).empty().into())
}

fn go_on_if_answered<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let mcp = &mut shard.guests.mcp;
    let Some(task) = mcp.task(handle) else { return };
    if task.state != TaskState::InputRequired {
        return;
    }
    if task.asked.open.is_empty() {
        set_task_state(shard, handle, TaskState::Working);
        return advance_task(shard, handle);
    }
    let _ = task_record::keep(shard, handle); // Its record has the answers now.
}

/// Sends a task's questions, in the handshake era, on the stream of a call that waits for its
/// result.
fn send_task_questions<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.awaiting(handle).first().copied() else { return };
    let Some(task) = mcp.task(handle) else { return };
    let (version, name) = (task.context.version, task.name.clone());
    if version.era() == Era::Stateless {
        return;
    }
    for (number, question) in task.asked.open.clone() {
        let mut params = questions::params(version, &question);
        params["_meta"][META_TASK] = json!({ "taskId": name });
        let id = crate::server::mcp::questions::name_of(call, number);
        let method = question.method.name();
        let Guests { hub, mcp, .. } = &mut shard.guests;
        mcp.say(hub, call, |out| jsonrpc::write_request(out, &id, method, &params));
    }
}

/// Handles a client's answer to a question of a task.
pub(in crate::server) fn hear_task_reply<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    number: u64,
    result: Result<Value, ErrorObject>,
) {
    let mcp = &mut shard.guests.mcp;
    let Some(task) = mcp.task_mut(handle) else { return };
    let found = task.asked.open.iter().find(|(open, _)| *open == number);
    let Some((_, question)) = found.cloned() else { return };
    match result {
        Ok(answer) => {
            task.hear(&question.key, answer);
            go_on_if_answered(shard, handle);
        }
        Err(error) => {
            let text = format!("{} was refused: {}", question.method.name(), error.message);
            let context = task.context.clone();
            let reply = open_streams::refusal(shard, &context, &text);
            finish_task(shard, handle, reply, Outcome::Failed);
        }
    }
}

/// Notifies the calls that listen to a task of its change.
fn tell_task<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let Guests { hub, mcp, .. } = &mut shard.guests;
    let Some(keep) = mcp.keeps.get(handle) else { return };
    let (owner, Role::Task(task)) = (keep.owner, &keep.role) else { return };
    let version = task.context.version;
    let mut messages = Vec::new();
    for (call, id) in mcp.listeners_of_task(owner, &task.name) {
        let mut bytes = Vec::new();
        let document = task.document();
        task.with_detail(|detail| {
            notify::task(&mut bytes, version, &document, detail, Some(&id));
        });
        messages.push((call, bytes));
    }
    for (call, bytes) in messages {
        mcp.notify(hub, call, |out| out.extend_from_slice(&bytes));
    }
}

/// Removes a task whose time is up.
pub(in crate::server) fn forget_task<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    let awaiting = shard.guests.mcp.awaiting(handle);
    if shard.guests.mcp.task(handle).is_some_and(|task| !task.state.is_terminal()) {
        task_record::remove(shard, handle);
    }
    settle::forget_keep(shard, handle);
    for call in awaiting {
        answer::answer_call(shard, call, Err(McpFault::task_not_found()));
    }
}

/// Returns a page of tasks.
pub(in crate::server) fn page(
    results: &Results<'_>,
    mut items: Vec<Value>,
    cursor: Option<&str>,
) -> Reply {
    let key_of = |item: &Value| item["taskId"].as_str().unwrap_or_default().to_owned();
    items.sort_by_key(key_of);
    Ok(results.tasks(cursor::page(List::Tasks, items, key_of, cursor)?).into())
}

impl Task {
    /// Takes an answer, if it belongs to an open question.
    fn hear(&mut self, key: &str, answer: Value) {
        let Asked { open, answers, .. } = &mut self.asked;
        if let Some(at) = open.iter().position(|(_, question)| question.key == key) {
            open.remove(at);
            answers.insert(key.to_owned(), answer);
        }
    }
}
