//! Open streams: outputs that clients read piece by piece, with the server's own tools. A stream
//! has the id of its execution. A client that names an execution without a stream opens one, with
//! what is still held.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::{ExecutionId, Handle, Instant, Principal};
use crate::engine::{Event, From};
use crate::limits;
use crate::mcp::results::Results;
use crate::mcp::streams::{self, ReadError, StreamCall, StreamWindow};
use crate::mcp::{CallMeta, CallResult, Context, Rest};
use crate::reactor::Reactor;
use crate::server::mcp::answer::{Reply, Source};
use crate::server::mcp::call::Stage;
use crate::server::mcp::kept_output::{Content, KeptOutput, Role};
use crate::server::mcp::tools::{ToolCall, execute_error};
use crate::server::mcp::{Due, answer, ask, listen, receive, settle, tools};
use crate::server::places::{Place, PlaceKind};
use crate::server::{ServerShard, executions, records};
use crate::tool::{Asking, Prepared, Replies, ToolSpec};
/// Carries out a call of one of the stream's tools. Returns `None` if it is answered later.
pub(in crate::server) fn use_stream<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    context: Box<Context>,
    call: Result<StreamCall, String>,
) -> Option<Reply> {
    let server = ask::server_info(shard);
    let results = Results::new(context.version, &server);
    let refused = |text: &str| Some(Ok(results.call_refused(text, CallMeta::default()).into()));
    match call {
        Err(problem) => refused(&problem),
        Ok(StreamCall::Open { tool, arguments }) => {
            Some(open_stream(shard, source, context, &tool, arguments))
        }
        Ok(StreamCall::Read { stream_id, offset }) => {
            match find_stream(shard, source.owner, &stream_id, offset) {
                Err(problem) => refused(&problem),
                Ok(keep) => read_stream(shard, source, context, keep, offset),
            }
        }
        Ok(StreamCall::Close { stream_id }) => {
            match find_stream(shard, source.owner, &stream_id, None) {
                Err(problem) => refused(&problem),
                Ok(keep) => {
                    let total_bytes = close_stream(shard, keep);
                    let value = streams::closed(&stream_id, total_bytes);
                    Some(Ok(results.call_value(&value, CallMeta::default()).into()))
                }
            }
        }
    }
}

fn open_stream<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    context: Box<Context>,
    tool: &str,
    arguments: Map<String, Value>,
) -> Reply {
    let server = ask::server_info(shard);
    let results = Results::new(context.version, &server);
    let refused = |text: &str| Ok(results.call_refused(text, CallMeta::default()).into());
    let Some(spec) = receive::tool_spec(shard, source.owner, tool) else {
        return refused(&format!("argument `tool`: unknown tool `{tool}`"));
    };
    let (arguments, replies) = (Value::Object(arguments), Replies::default());
    let owner = source.owner;
    let call = ToolCall { owner, context: context.clone(), spec, arguments, replies };
    match tools::ask_tool(shard, &call) {
        Ok(Asking::Run) => {}
        Ok(_) => return refused("this tool has questions before it runs: call it directly"),
        Err(reply) => return reply,
    }
    let prepared = match tools::prepare_call(shard, &call) {
        Ok(prepared) => prepared,
        Err(reply) => return reply,
    };
    match begin_stream(shard, source, &context, call.spec, prepared) {
        Err(reply) => reply,
        Ok((id, spec)) => {
            let value = streams::opened(&id.to_string(), &spec.name);
            let (token, events) = names_of(shard, id);
            let id = id.to_string();
            Ok(results.call_value(&value, meta_of(&id, token.as_deref(), events.as_deref())).into())
        }
    }
}

/// Runs a tool whose result is a stream, and answers its call at once.
pub(in crate::server) fn open_with<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: &Source,
    context: &Context,
    spec: Arc<ToolSpec>,
    prepared: Prepared,
) -> Reply {
    match begin_stream(shard, *source, context, spec, prepared) {
        Ok((id, spec)) => Ok(stream_result(shard, context, id, &spec, &[]).into()),
        Err(reply) => reply,
    }
}

fn begin_stream<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    context: &Context,
    spec: Arc<ToolSpec>,
    prepared: Prepared,
) -> Result<(ExecutionId, Arc<ToolSpec>), Reply> {
    let (owner, version) = (source.owner, context.version);
    let place =
        place_for_stream(shard, owner).map_err(|problem| refusal(shard, context, &problem))?;
    let kept = tools::keep_output(shard, owner, Arc::clone(&spec), Role::Stream, prepared, 1);
    let keep = kept.map_err(|error| {
        let server = ask::server_info(shard);
        execute_error(&Results::new(version, &server), &error)
    })?;
    set_stream_timer(shard, keep);
    let mcp = &mut shard.guests.mcp;
    let kept = mcp.keeps.get_mut(keep).expect("it was just made");
    kept.place = Some(place);
    let execution = kept.execution.expect("it runs");
    records::log_started_by(shard, source.outlet.connection(), execution, &spec.name);
    shard.pump();
    Ok((execution, spec))
}

/// Returns the reply to a call that was not run, with the problem as its text.
pub(in crate::server) fn refusal<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    context: &Context,
    problem: &str,
) -> Reply {
    let server = ask::server_info(shard);
    Ok(Results::new(context.version, &server).call_refused(problem, CallMeta::default()).into())
}

/// Takes a place for a stream of this principal. Streams that were read to their ends, or not for a
/// long time, still exist without a place. If these are too many, the oldest is closed.
fn place_for_stream<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
) -> Result<Place, String> {
    let place = take_stream_place(shard, owner)?;
    let mcp = &mut shard.guests.mcp;
    let is_own = |keep: &KeptOutput| matches!(keep.role, Role::Stream) && keep.owner == owner;
    let own: Vec<_> = mcp.keeps.iter().filter(|(_, keep)| is_own(keep)).collect();
    let idle = own.iter().filter(|(_, keep)| keep.place.is_none());
    let oldest = idle.min_by_key(|(_, keep)| (!keep.is_done(), keep.idle_until));
    let is_full = own.len() >= limits::MCP_STREAMS_PER_PRINCIPAL_MAX;
    if let Some(handle) = oldest.filter(|_| is_full).map(|(handle, _)| *handle) {
        settle::forget_keep(shard, handle);
    }
    Ok(place)
}

fn take_stream_place<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    owner: Principal,
) -> Result<Place, String> {
    let most = limits::MCP_STREAMS_PER_PRINCIPAL_MAX;
    let place = shard.guests.mcp.places.take(PlaceKind::Streams, owner, most);
    place.ok_or_else(|| format!("{most} streams are open already: close one with stream_close"))
}

/// Takes a place for a stream that is read again, unless its tool has ended.
fn count_again<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) -> Result<(), String> {
    let mcp = &mut shard.guests.mcp;
    let keep = mcp.keeps.get(handle).expect("it was just found");
    let is_counted = keep.place.is_some() || keep.over.is_some();
    let owner = keep.owner;
    if !is_counted {
        let place = take_stream_place(shard, owner)?;
        let mcp = &mut shard.guests.mcp;
        mcp.keeps.get_mut(handle).expect("as above").place = Some(place);
    }
    Ok(())
}

/// Returns the stream of this name if it belongs to this principal, opening it if needed. If the
/// disk has all of it, a client goes on where it was.
fn find_stream<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
    stream_id: &str,
    offset: Option<u64>,
) -> Result<Handle, String> {
    let unknown = || "argument `stream_id`: unknown stream".to_owned();
    let id = stream_id.parse::<ExecutionId>().map_err(|_| unknown())?;
    if !executions::is_owned(shard, id, owner) {
        return Err(unknown());
    }
    let mcp = &mut shard.guests.mcp;
    let is_it = |keep: &KeptOutput| matches!(keep.role, Role::Stream) && keep.execution == Some(id);
    if let Some((handle, _)) = mcp.keeps.iter().find(|(_, keep)| is_it(keep)) {
        return Ok(handle);
    }
    let spec = shard.tool_of(id).cloned().ok_or_else(unknown)?;
    let place = Some(place_for_stream(shard, owner)?);
    let is_kept = shard.run_of(id).is_some_and(|run| run.has_history());
    let goes_on_at = offset.filter(|_| is_kept).unwrap_or(0);
    let keep = KeptOutput {
        execution: Some(id),
        place,
        content: Content::Window(StreamWindow::going_on_at(goes_on_at)),
        ..KeptOutput::new(owner, spec, Role::Stream)
    };
    let mcp = &mut shard.guests.mcp;
    let keep = mcp.keeps.insert(Box::new(keep));
    let keep = keep.map_err(|_| "too many streams are open".to_owned())?;
    shard.pump();
    tools::attach_keep(shard, keep, id, From::Start);
    set_stream_timer(shard, keep);
    shard.pump();
    Ok(keep)
}

/// Restarts the timers of a stream. It keeps its place for as long as a `block` subscriber may
/// hold its producer back. After that it only exists for a client that comes back.
fn set_stream_timer<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let idle_until = shard.now + limits::MCP_STREAM_IDLE;
    let counted_until = idle_until.min(shard.now + shard.block_deadline);
    let mcp = &mut shard.guests.mcp;
    let Some(keep) = mcp.keeps.get_mut(handle) else { return };
    keep.idle_until = idle_until;
    arm_stream(shard, handle, counted_until);
}

fn arm_stream<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle, until: Instant) {
    let mcp = &mut shard.guests.mcp;
    let Some(keep) = mcp.keeps.get_mut(handle) else { return };
    let armed = keep.timer.take();
    let timer = mcp.set_timer(armed, Some((Due::Output(handle), until)));
    mcp.keeps.get_mut(handle).expect("it was just there").timer = timer;
}

/// Takes the place of a stream that was not read for a while. At the second deadline it is
/// closed, and its tool stopped, unless the tool continues without it or is one of another node.
pub(in crate::server) fn stream_is_due<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    let now = shard.now;
    let mcp = &mut shard.guests.mcp;
    let Some(keep) = mcp.keeps.get_mut(handle) else { return };
    if keep.has_readers() {
        return set_stream_timer(shard, handle); // A client is reading.
    }
    keep.place = None;
    let (idle_until, is_let_go) = (keep.idle_until, keep.is_let_go());
    if now < idle_until {
        return arm_stream(shard, handle, idle_until);
    }
    let execution = keep.execution.filter(|_| !is_let_go);
    forget_stream(shard, handle);
    let is_own = |id: &ExecutionId| shard.run_of(*id).is_some_and(|run| !run.is_replica);
    let execution = execution.filter(is_own);
    if let Some(execution) = execution {
        let _ = shard.cancel(execution); // It may have ended.
    }
}

fn read_stream<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    context: Box<Context>,
    keep: Handle,
    offset: Option<u64>,
) -> Option<Reply> {
    if let Err(problem) = count_again(shard, keep) {
        return Some(refusal(shard, &context, &problem));
    }
    set_stream_timer(shard, keep);
    if let Some(reply) = read_now(shard, &context, keep, offset, false) {
        return Some(reply);
    }
    let handle = match answer::open_call(shard, source, context, Stage::Reads(keep, offset)) {
        Ok(handle) => handle,
        Err(fault) => return Some(Err(fault)),
    };
    let until = shard.now + limits::MCP_READ_WAIT;
    let mcp = &mut shard.guests.mcp;
    let timer = mcp.set_timer(None, Some((Due::Call(handle), until)));
    mcp.calls.get_mut(handle).expect("it was just opened").timer = timer;
    mcp.keeps.get_mut(keep).expect("it was just read").readers.push(handle);
    None
}

/// Returns the answer to a read. Returns `None` if the read has to wait.
fn read_now<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    context: &Context,
    handle: Handle,
    offset: Option<u64>,
    is_late: bool,
) -> Option<Reply> {
    let server = ask::server_info(shard);
    let results = Results::new(context.version, &server);
    let mcp = &mut shard.guests.mcp;
    let meta = CallMeta::default();
    let Some(keep) = mcp.keeps.get_mut(handle) else {
        return Some(Ok(results.call_refused("the stream was closed", meta).into()));
    };
    let id = keep.execution.expect("a stream has an execution").to_string();
    if keep.missed_bytes > 0 {
        let text = format!("the first {} bytes are no longer held", keep.missed_bytes);
        keep.missed_bytes = 0; // It is reported once.
        return Some(Ok(results.call_refused(&text, meta).into()));
    }
    let problem = keep.over.as_ref().and_then(crate::server::mcp::kept_output::Over::problem);
    let is_let_go = keep.is_let_go();
    let window = keep.window().expect("a stream has a window");
    let value = match window.read(offset) {
        Ok(reading) => {
            let mut value = reading.to_json(&id);
            if let Some(problem) = problem.filter(|_| reading.is_done || is_let_go) {
                value["error"] = problem.into();
            }
            value
        }
        Err(ReadError::Empty) if !is_late => return None,
        Err(ReadError::Empty) => streams::timed_out(&id, window),
        Err(error) => {
            let text = streams::read_problem(error).unwrap_or_default();
            return Some(Ok(results.call_refused(&text, meta).into()));
        }
    };
    if keep.is_done() {
        keep.place = None;
    }
    if let (Some(asked_count), Some(subscriber)) = (keep.ask_after_read(), keep.subscriber) {
        shard.tell(Event::Demand(subscriber, asked_count));
    }
    Some(Ok(results.call_value(&value, meta).into()))
}

/// Answers a read that has waited, if it can be answered now.
pub(in crate::server) fn answer_read<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    keep: Handle,
    offset: Option<u64>,
    is_late: bool,
) {
    let context = listen::call_context(shard, handle);
    let Some(reply) = read_now(shard, &context, keep, offset, is_late) else { return };
    let mcp = &mut shard.guests.mcp;
    if let Some(keep) = mcp.keeps.get_mut(keep) {
        keep.readers.retain(|reader| *reader != handle);
    }
    answer::answer_call(shard, handle, reply);
    shard.pump();
}

/// Answers waiting reads in order, as long as the stream has something new.
pub(in crate::server) fn settle_readers<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    loop {
        let mcp = &mut shard.guests.mcp;
        let Some(keep) = mcp.keeps.get_mut(handle) else { return };
        let Some(&reader) = keep.readers.first() else { return };
        let offset = match mcp.calls.get(reader).map(|call| &call.stage) {
            Some(Stage::Reads(_, offset)) => *offset,
            _ => {
                keep.readers.remove(0); // The call is gone.
                continue;
            }
        };
        answer_read(shard, reader, handle, offset, false);
        let mcp = &mut shard.guests.mcp;
        let keep = mcp.keeps.get(handle);
        if keep.is_none_or(|keep| keep.readers.first() == Some(&reader)) {
            return; // It still waits.
        }
    }
}

/// Closes a stream and returns the bytes that its stream had so far.
fn close_stream<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) -> u64 {
    let mcp = &mut shard.guests.mcp;
    let Some(keep) = mcp.keeps.get_mut(handle) else { return 0 };
    let total = keep.window().map_or(0, |window| window.total_written());
    let execution = keep.execution;
    forget_stream(shard, handle);
    if let Some(execution) = execution {
        let _ = shard.cancel(execution); // It may have ended.
    }
    total
}

/// Closes a stream and refuses the reads that wait.
pub(in crate::server) fn forget_stream<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    let mcp = &mut shard.guests.mcp;
    let Some(keep) = mcp.keeps.get_mut(handle) else { return };
    let readers = std::mem::take(&mut keep.readers);
    settle::forget_keep(shard, handle);
    for reader in readers {
        let context = listen::call_context(shard, reader);
        let reply = refusal(shard, &context, "the stream was closed");
        answer::answer_call(shard, reader, reply);
    }
}

/// Answers a call with a stream because its result is too long for an answer.
pub(in crate::server) fn answer_with_stream<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: Handle,
    handle: Handle,
) {
    let context = listen::call_context(shard, call);
    let mcp = &mut shard.guests.mcp;
    let Some(keep) = mcp.keeps.get_mut(handle) else { return };
    let (owner, execution) = (keep.owner, keep.execution.expect("it runs"));
    let place = match place_for_stream(shard, owner) {
        Ok(place) => place,
        Err(problem) => {
            let text = format!("the result is too long for an answer, and {problem}");
            settle::forget_keep(shard, handle);
            let _ = shard.cancel(execution);
            let reply = refusal(shard, &context, &text);
            return answer::answer_call(shard, call, reply);
        }
    };
    let mcp = &mut shard.guests.mcp;
    let keep = mcp.keeps.get_mut(handle).expect("as above");
    (keep.role, keep.place) = (Role::Stream, Some(place));
    let spec = Arc::clone(&keep.tool);
    let beginning = std::mem::take(&mut keep.beginning);
    set_stream_timer(shard, handle);
    let result = stream_result(shard, &context, execution, &spec, &beginning);
    answer::answer_call(shard, call, Ok(result.into()));
}

/// Returns the answer to a call whose result is a stream.
pub(in crate::server) fn stream_result<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    context: &Context,
    id: ExecutionId,
    spec: &ToolSpec,
    beginning: &[u8],
) -> CallResult {
    let server = ask::server_info(shard);
    let results = Results::new(context.version, &server);
    let (token, events) = names_of(shard, id);
    let name = id.to_string();
    let meta = meta_of(&name, token.as_deref(), events.as_deref());
    results.call_in_part(beginning, Rest::Stream(&name), spec, meta)
}

/// Returns the progress token of an execution, and the URL path of its native stream.
pub(in crate::server) fn names_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
) -> (Option<String>, Option<String>) {
    (token_of(shard, id), events_of(shard, id))
}

/// Returns the progress token of an execution; `None` if the execution is forgotten.
pub(in crate::server) fn token_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
) -> Option<String> {
    shard.run_of(id)?.names.token.clone()
}

/// Returns the URL path of the native stream; `None` without HTTP, or if the execution is
/// forgotten.
pub(in crate::server) fn events_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
) -> Option<String> {
    let run = shard.run_of(id)?;
    let has_http = shard.guests.hub.is_listening();
    has_http.then(|| {
        let path = format!("/v1/executions/{id}/events");
        match shard.guests.access.ticket(run.guest.owner, id, shard.now) {
            Some(ticket) => format!("{path}?ticket={ticket}"),
            None => path,
        }
    })
}

pub(in crate::server) fn meta_of<'a>(
    execution: &'a str,
    progress_token: Option<&'a str>,
    events: Option<&'a str>,
) -> CallMeta<'a> {
    CallMeta { progress_token, execution, events }
}
