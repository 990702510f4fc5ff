//! Calls of tools: prepared, run, followed, and answered with their output.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::{ExecutionId, Handle, Principal};
use crate::endpoint::DeliveryOptions;
use crate::engine::{Event, From, Start, SubscribeError, SubscribeSpec};
use crate::limits;
use crate::mcp::results::Results;
use crate::mcp::streams::StreamCall;
use crate::mcp::tasks::{self, Placement};
use crate::mcp::{CallMeta, Context, Era, McpFault, Version};
use crate::reactor::Reactor;
use crate::server::archive::KeptTask;
use crate::server::guests::{Destination, Guests};
use crate::server::hub::connection::kernel_bytes_for;
use crate::server::mcp::answer::{Reply, Source};
use crate::server::mcp::call::{Asker, Outlet, Stage};
use crate::server::mcp::kept_output::{KeptOutput, Role};
use crate::server::mcp::{McpReceiver, answer, ask, open_streams, questions, receive, result};
use crate::server::{ServerShard, executions, records, workers};
use crate::shard::{ExecuteError, ExecuteOptions, Outlet as _};
use crate::stream::{Kind, Kinds, OnFull, Policy};
use crate::tool::{Asking, Prepared, Replies, StartError, TaskSupport, ToolSpec};

/// A call of a tool: its principal, the tool, the arguments, and the answers to its questions so
/// far.
pub(in crate::server) struct ToolCall {
    pub owner: Principal,
    pub context: Box<Context>,
    pub spec: Arc<ToolSpec>,
    pub arguments: Value,
    pub replies: Replies,
}

/// A prepared execution, or the reply if it cannot run.
pub(in crate::server) type Started = Result<Prepared, Reply>;
/// Calls a tool. Returns `None` if the call is answered later.
pub(in crate::server) fn call_tool<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    context: Box<Context>,
    name: &str,
    arguments: Map<String, Value>,
) -> Option<Reply> {
    if let Some(call) = StreamCall::parse(name, &arguments) {
        return open_streams::use_stream(shard, source, context, call);
    }
    let Some(spec) = receive::tool_spec(shard, source.owner, name) else {
        return Some(Err(McpFault::invalid_params(format!("unknown tool: {name}"))));
    };
    let as_task = match tasks::placement(&context, spec.task_support) {
        Ok(placement) => placement == Placement::Task,
        Err(fault) => return Some(Err(fault)),
    };
    let replies = match ask::replies_of(shard, &source, &context, name, &arguments) {
        Ok(replies) => replies,
        Err(fault) => return Some(Err(fault)),
    };
    let arguments = Value::Object(arguments);
    let call = ToolCall { owner: source.owner, context, spec, arguments, replies };
    // The task asks the tool's questions, unless no task may exist before they are answered.
    let asks_first = call.spec.task_support == TaskSupport::Required
        && call.context.version.era() == Era::Stateless;
    if as_task && !asks_first {
        return Some(crate::server::mcp::tasks::begin_task(shard, call));
    }
    match ask_tool(shard, &call) {
        Err(reply) => Some(reply),
        Ok(Asking::Run) if as_task => Some(crate::server::mcp::tasks::begin_task(shard, call)),
        Ok(Asking::Run) => run_tool_call(shard, source, call),
        Ok(Asking::Ask { questions, state }) => {
            questions::put_questions(shard, source, call, questions, state)
        }
        Ok(Asking::Refuse(text)) => Some(open_streams::refusal(shard, &call.context, &text)),
    }
}

/// Asks a tool what it does with its arguments and the answers so far.
pub(in crate::server) fn ask_tool<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: &ToolCall,
) -> Result<Asking, Reply> {
    let name = &call.spec.name;
    if workers::is_virtual(shard, call.owner, name) {
        return Ok(Asking::Run);
    }
    let abilities = call.context.client.abilities;
    let asking = shard.tools.asking(name, &call.arguments, &call.replies, abilities);
    let asking = shard.note_start(asking);
    asking.map_err(|error| start_error(shard, &call.context, &error))
}

/// Prepares a call to run. Returns the reply if that is impossible.
pub(in crate::server) fn prepare_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: &ToolCall,
) -> Started {
    let (owner, name) = (call.owner, &call.spec.name);
    let prepared = match workers::is_virtual(shard, owner, name) {
        true => workers::prepare_tool(shard, owner, name, &call.arguments),
        false => {
            let prepared = shard.tools.prepare_with(name, &call.arguments, &call.replies);
            shard.note_start(prepared)
        }
    };
    let mut prepared = prepared.map_err(|error| start_error(shard, &call.context, &error))?;
    prepared.trace = call.context.trace.clone();
    Ok(prepared)
}

/// Returns the reply for wrong arguments (A36) or an unknown tool.
fn start_error<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    context: &Context,
    error: &StartError,
) -> Reply {
    match error {
        StartError::UnknownTool { name, .. } => {
            Err(McpFault::invalid_params(format!("unknown tool: {name}")))
        }
        StartError::Argument(_) | StartError::Asks { .. } => {
            open_streams::refusal(shard, context, &error.to_string())
        }
        StartError::Panicked { .. } => Err(McpFault::internal(error.to_string())),
    }
}

/// Runs a tool that has everything it needs.
pub(in crate::server) fn run_tool_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    call: ToolCall,
) -> Option<Reply> {
    let prepared = match prepare_call(shard, &call) {
        Ok(prepared) => prepared,
        Err(reply) => return Some(reply),
    };
    let ToolCall { context, spec, .. } = call;
    let estimated_bytes = prepared.need.estimated_bytes.unwrap_or(0);
    let is_long = estimated_bytes > limits::MCP_RESULT_BYTES_MAX as u64;
    if context.wants_stream.unwrap_or(is_long) {
        return Some(open_streams::open_with(shard, &source, &context, spec, prepared));
    }
    let handle = match answer::open_call(shard, source, context, Stage::Begins) {
        Ok(handle) => handle,
        Err(fault) => return Some(Err(fault)),
    };
    run_for(shard, handle, spec, prepared);
    None
}

/// Runs a tool for a call in the table. If that fails, the error is the answer.
pub(in crate::server) fn run_for<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    spec: Arc<ToolSpec>,
    prepared: Prepared,
) {
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get(handle) else { return };
    let (owner, outlet, asker) = (call.owner, call.outlet, call.asker);
    let version = call.context.version;
    let is_streamed = call.context.wants_stream == Some(false);
    let wants_chunks =
        call.context.progress_token.is_some() || call.context.partial_token.is_some();
    let kinds = match (wants_chunks, call.level) {
        (true, _) => Some(Kinds::ALL),
        (false, Some(_)) => Some(Kinds::NONE.with(Kind::Log)),
        (false, None) => None,
    };
    let is_session = matches!(asker, Asker::Session(_)) && outlet.connection().is_some();
    let is_primed = is_session && version == Version::V2025_11_25;
    let polls = spec.polls && is_primed && !matches!(outlet, Outlet::Lines(_));
    let kept = keep_output(shard, owner, Arc::clone(&spec), Role::Answer(handle), prepared, 1);
    let keep = match kept {
        Ok(keep) => keep,
        Err(error) => {
            let server = ask::server_info(shard);
            let reply = execute_error(&Results::new(version, &server), &error);
            answer::answer_call(shard, handle, reply);
            return;
        }
    };
    let mcp = &mut shard.guests.mcp;
    let kept = mcp.keeps.get_mut(keep).expect("it was just made");
    kept.is_streamed = is_streamed;
    let execution = kept.execution.expect("it runs");
    mcp.calls.get_mut(handle).expect("as above").stage = Stage::Runs(keep);
    records::log_started_by(shard, outlet.connection(), execution, &spec.name);
    if let Some(kinds) = kinds {
        attach_notifier(shard, handle, execution, From::Start, kinds);
    }
    if polls || (wants_chunks && is_primed) {
        shard.guests.mcp.prime(&mut shard.guests.hub, handle);
    }
    if polls {
        result::send_away(shard, handle);
    }
    shard.pump();
}

/// Runs a tool and keeps its output.
pub(in crate::server) fn keep_output<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
    spec: Arc<ToolSpec>,
    role: Role,
    prepared: Prepared,
    subscriber_count: u32,
) -> Result<Handle, ExecuteError> {
    let calls = &shard.guests.mcp.calls;
    let grows = match role {
        Role::Answer(handle) => calls.get(handle).is_some_and(|call| call.is_heard_once()),
        Role::Task(_) | Role::Stream | Role::Resource => false,
    };
    let execution = open_kept(shard, owner, prepared, subscriber_count, None, grows)?;
    let keep = KeptOutput { execution: Some(execution), ..KeptOutput::new(owner, spec, role) };
    let mcp = &mut shard.guests.mcp;
    let keep = mcp.keeps.insert(Box::new(keep));
    let Ok(keep) = keep else {
        let _ = shard.cancel(execution);
        return Err(ExecuteError::Open(crate::engine::OpenError::TooMany {
            executions_max: limits::MCP_KEEPS_MAX,
        }));
    };
    attach_keep(shard, keep, execution, From::Start);
    Ok(keep)
}

/// Opens an execution whose output is kept, before it produces any.
pub(in crate::server) fn open_kept<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
    mut prepared: Prepared,
    subscriber_count: u32,
    task: Option<KeptTask>,
    grows: bool,
) -> Result<ExecutionId, ExecuteError> {
    let deadline = limits::ATTACH_DEADLINE;
    let options = ExecuteOptions {
        start: Start::AfterSubscribers { count: subscriber_count, deadline },
        grows,
        on_full: OnFull::Pause,
        owner,
        ..ExecuteOptions::default()
    };
    // Where nobody comes back, nothing is kept for that.
    let policy = prepared.tool.as_ref().map(|tool| tool.subscribers.policy).filter(|_| !grows);
    let ring_bytes = &mut prepared.need.ring_bytes;
    *ring_bytes = executions::served_ring_bytes(shard, policy).max(*ring_bytes);
    let mut guest = Guests::prepare(shard, &prepared.work, &options)?;
    guest.task = task.map(Rc::new);
    shard.open_execution(prepared, options, guest)
}

/// Subscribes a keep to all output from there on.
pub(in crate::server) fn attach_keep<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    keep: Handle,
    execution: ExecutionId,
    from: From,
) {
    let totals = shard.inspect(execution).map(|status| status.totals).unwrap_or_default();
    let kept = shard.guests.mcp.keeps.get_mut(keep);
    let demand = kept.map_or(0, |kept| kept.ask_first(totals));
    let spec = SubscribeSpec { policy: Policy::Block, from, demand, ..SubscribeSpec::default() };
    let subscribed =
        shard.attach_at_once(execution, spec, Destination::Mcp(McpReceiver::Output(keep)));
    let token = open_streams::token_of(shard, execution);
    let mcp = &mut shard.guests.mcp;
    let Some(kept) = mcp.keeps.get_mut(keep) else { return };
    kept.token = token;
    match subscribed {
        Ok(subscribed) => kept.subscriber = Some(subscribed.subscriber),
        Err(error) => {
            kept.fail(&error.to_string());
            mcp.note(crate::server::mcp::News::Output(keep));
        }
    }
}

/// Subscribes a call to the output from there on, for notifications.
pub(in crate::server) fn attach_notifier<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    execution: ExecutionId,
    from: From,
    kinds: Kinds,
) {
    let delivery_options = DeliveryOptions { kinds, ..DeliveryOptions::default() };
    let mut spec = executions::spec_of(shard, execution, &delivery_options, from);
    let call = shard.guests.mcp.calls.get(handle);
    // Only the client of a session can come back.
    spec.replays &= call.is_some_and(|call| !call.is_heard_once());
    let receiver = Destination::Mcp(McpReceiver::Call(handle));
    let attached = match shard.attach_at_once(execution, spec, receiver) {
        Err(SubscribeError::NoLongerHeld { tail_seq }) => {
            let from = From::Seq { seq: tail_seq, seen: None };
            shard.attach_at_once(execution, SubscribeSpec { from, ..spec }, receiver)
        }
        attached => attached,
    };
    let Ok(subscribed) = attached else { return }; // The answer is complete without it.
    let notifier = subscribed.subscriber;
    let Guests { hub, mcp, .. } = &mut shard.guests;
    let Some(call) = mcp.calls.get_mut(handle) else { return };
    call.notifier = Some(notifier);
    call.is_cut_short = false;
    let Some(id) = call.outlet.connection() else { return };
    let Some(connection) = hub.connection(id) else { return };
    connection.bound_sending(kernel_bytes_for(subscribed.replay), &mut shard.reactor);
    let takes = connection.takes;
    if let Some(link) = &mut connection.mcp {
        link.feeds.push(notifier);
    }
    if !takes {
        shard.tell(Event::Demand(notifier, 0));
    }
}

/// Returns the reply to a call whose execution was refused.
pub(in crate::server) fn execute_error(results: &Results<'_>, error: &ExecuteError) -> Reply {
    match error {
        ExecuteError::NoRandomness => Err(McpFault::internal(error.to_string())),
        _ => Ok(results.call_refused(&error.to_string(), CallMeta::default()).into()),
    }
}
