//! The tools of a run: executions of their own, which the run follows.
//!
//! A run takes a few chunks of a tool at once ([`limits::AGENT_TOOL_WINDOW_CHUNKS`]). It asks for
//! more when it has handled half of them. While the run is held back it asks for none, and the
//! tool, which is followed under `block`, waits.

use serde_json::Value;

use crate::agent::{Body, Partial, RunEvent, RunPart, ToolProgress};
use crate::base::{ExecutionId, Handle, SubscriberId};
use crate::engine::{Event as EngineEvent, Start, SubscribeSpec};
use crate::limits;
use crate::reactor::Reactor;
use crate::server::agents::{AgentReceiver, Hosted, Said, ToolCall, drive};
use crate::server::guests::Destination;
use crate::server::{ServerShard, records, workers};
use crate::shard::{Call, ExecuteOptions};
use crate::stream::{Kind, Kinds, OnFull, Policy};
use crate::tool::AGENT;
use crate::wire::json::whole_number;

const WINDOW: u32 = limits::AGENT_TOOL_WINDOW_CHUNKS;
/// Starts a tool for a run and passes the run the result.
pub(in crate::server) fn start_tool<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    hosted: &mut Hosted,
    call: u32,
    tool: &str,
    arguments: Value,
) {
    match try_start_tool(shard, handle, hosted, call, tool, arguments) {
        Ok((execution, subscriber)) => {
            let has_parts = shard.run_mut(execution.slot).names.has_parts;
            hosted.calls.push(ToolCall {
                call,
                execution,
                subscriber,
                has_parts,
                said_bytes: 0,
                heard_count: 0,
                is_held: false,
            });
            drive::tell_run(shard, handle, hosted, RunEvent::ToolStarted { call, execution });
        }
        Err(text) => {
            drive::tell_run(shard, handle, hosted, RunEvent::ToolRefused { call, text: &text });
        }
    }
}

fn try_start_tool<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    hosted: &Hosted,
    call: u32,
    tool: &str,
    mut arguments: Value,
) -> Result<(ExecutionId, SubscriberId), String> {
    if tool == AGENT {
        let Some(depth) = hosted.depth.checked_sub(1) else {
            return Err("this run is not allowed to start agents".to_owned());
        };
        let wanted = whole_number(&arguments["depth"]).unwrap_or(depth.into());
        arguments["depth"] = wanted.min(depth.into()).into();
    }
    let prepared = workers::prepare_tool(shard, hosted.owner, tool, &arguments);
    let mut prepared = prepared.map_err(|error| error.to_string())?;
    prepared.trace = shard.run_mut(handle).trace.clone();
    let options = ExecuteOptions {
        // The run misses no chunk, and nothing else starts the execution.
        start: Start::AfterSubscribers { count: 1, deadline: limits::ATTACH_DEADLINE },
        // The run's own readers decide how long it is held back.
        block_deadline: Some(limits::EXECUTION_DURATION_MAX),
        on_full: OnFull::Pause,
        owner: hosted.owner,
        ..ExecuteOptions::default()
    };
    let opened = shard.execute_prepared(prepared, options);
    let execution = opened.map_err(|error| error.to_string())?;
    records::log_started_by(shard, None, execution, tool);
    let policy = Policy::Block;
    let kinds = Kinds::RAW; // A model reads a result once (A35).
    let spec = SubscribeSpec { policy, demand: WINDOW, kinds, ..SubscribeSpec::default() };
    let receiver = AgentReceiver { run: handle, call };
    let attached = shard.attach(execution, spec, |_| Call::Guest(Destination::Agent(receiver)));
    shard.pump();
    match attached {
        Ok(subscribed) => Ok((execution, subscribed.subscriber)),
        Err(error) => {
            let _ = shard.cancel(execution);
            Err(error.to_string())
        }
    }
}

/// Stops a tool. The run receives nothing more of it.
pub(in crate::server) fn stop_tool<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    hosted: &mut Hosted,
    call: u32,
) {
    let Some(at) = hosted.calls.iter().position(|other| other.call == call) else { return };
    let ToolCall { execution, subscriber, .. } = hosted.calls.swap_remove(at);
    let _ = shard.unsubscribe(subscriber); // It may have ended already.
    let _ = shard.cancel(execution);
}

/// Passes output of a tool to its run.
pub(in crate::server) fn tell_tool_said<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    hosted: &mut Hosted,
    call: u32,
    said: &Said,
) {
    let Some(at) = hosted.calls.iter().position(|other| other.call == call) else { return };
    match said {
        Said::Chunk { seq, offset, kind, more, bytes, .. } => {
            hosted.calls[at].heard_count += 1;
            let (seq, offset, more) = (*seq, *offset, *more);
            match hosted.calls[at].has_parts {
                false => {
                    let kind = *kind;
                    let event = RunEvent::ToolChunk { call, seq, offset, kind, bytes, more };
                    drive::tell_run(shard, handle, hosted, event);
                }
                true => tell_part(shard, handle, hosted, at, seq, bytes),
            }
        }
        Said::Gap(gap) => {
            drive::tell_run(shard, handle, hosted, RunEvent::ToolGap { call, gap: *gap })
        }
        Said::Progress { progress, message, context } => {
            let progress = ToolProgress {
                progress: progress.progress,
                total: progress.total,
                percentage: progress.percentage(),
                message: message.as_deref(),
                context: context.as_deref(),
            };
            drive::tell_run(shard, handle, hosted, RunEvent::ToolProgress { call, progress });
        }
        Said::End { outcome, exit, error } => {
            hosted.calls.swap_remove(at);
            let (outcome, exit, error) = (*outcome, *exit, error.as_deref());
            drive::tell_run(
                shard,
                handle,
                hosted,
                RunEvent::ToolEnded { call, outcome, exit, error },
            );
        }
    }
}

/// Handles a part of a tool that is a run itself: the text of its model is the tool's output.
fn tell_part<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    hosted: &mut Hosted,
    at: usize,
    seq: u64,
    json: &[u8],
) {
    let Ok(RunPart { body: Body::Partial(Partial::TextDelta { delta: text, .. }), .. }) =
        RunPart::parse(json)
    else {
        return;
    };
    let ToolCall { call, said_bytes: offset, .. } = hosted.calls[at];
    hosted.calls[at].said_bytes += text.len() as u64;
    let (bytes, more) = (text.as_bytes(), false);
    let event = RunEvent::ToolChunk { call, seq, offset, kind: Kind::Text, bytes, more };
    drive::tell_run(shard, handle, hosted, event);
}

/// Updates the demand for the tools of a run: none if the run takes no output, else a window.
pub(in crate::server) fn set_demands<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    hosted: &mut Hosted,
    takes: bool,
) {
    let mut is_told = false;
    for call in &mut hosted.calls {
        let demand = match (takes, call.is_held) {
            (false, false) => 0,
            (true, true) => WINDOW,
            (true, false) if call.heard_count >= WINDOW / 2 => WINDOW,
            (true, false) | (false, true) => continue,
        };
        call.is_held = !takes;
        call.heard_count = 0;
        shard.tell(EngineEvent::Demand(call.subscriber, demand));
        is_told = true;
    }
    if is_told {
        shard.pump();
    }
}
