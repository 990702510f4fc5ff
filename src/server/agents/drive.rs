//! The events of one run. Answers of the model's server, output of tools, stops and deadlines are
//! passed to the run's machine. The machine's actions are carried out.

use crate::agent::{CancelReason, Ended, RunAction, RunEnd, RunEvent, RunMachine};
use crate::base::{Handle, guarded};
use crate::engine::Event as EngineEvent;
use crate::reactor::Reactor;
use crate::server::agents::publish::Published;
use crate::server::agents::{Agent, Asked, Hosted, Job, Said, publish, tools};
use crate::server::outgoing::{Deadlines, ResponseEvent, Target};
use crate::server::{ServerShard, outgoing};
use crate::shard::run::{Producer, Ring};
use crate::stream::Outcome;
use crate::tool::{Report, ToolError, panic_error};
use crate::trace::Duty;
/// Handles all queued events of runs by priority: runs with news (start, stop, room, deadline)
/// first, then output of their tools, then answers of models. A stop therefore reaches a run
/// before the last output of its tools.
pub(in crate::server) fn settle_agents<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    loop {
        if let Some(run) = shard.guests.agents.due.pop_front() {
            shard.did.note(Duty::Agents);
            look_at_agent(shard, run);
        } else if let Some((receiver, said)) = shard.guests.agents.said.pop_front() {
            tell_said(shard, receiver.run, receiver.call, &said);
        } else if !hear_model(shard) {
            return;
        }
    }
}

/// Passes the next answer of a model's server to its run. Returns `false` if none is queued.
fn hear_model<R: Reactor + 'static>(shard: &mut ServerShard<R>) -> bool {
    if shard.guests.agents.exchanges.is_empty() {
        return false; // Then other parts of the shard own the answers.
    }
    let mut body = std::mem::take(&mut shard.guests.agents.body);
    let heard = outgoing::poll_response(shard, &mut body);
    let has_heard = heard.is_some();
    if let Some((exchange, heard)) = heard
        && let Some(Asked { run, turn, .. }) = shard.guests.agents.asked(exchange)
    {
        shard.worked = true;
        let is_over = matches!(heard, ResponseEvent::End | ResponseEvent::Broken(_));
        if is_over {
            shard.guests.agents.forget(exchange);
        }
        with_hosted(shard, run, |shard, hosted| {
            if is_over {
                hosted.exchange = None;
            }
            let event = match &heard {
                ResponseEvent::Head { status, retry_after, retry_after_ms, .. } => {
                    RunEvent::Answered {
                        exchange: turn,
                        status: *status,
                        retry_after: retry_after.as_deref(),
                        retry_after_ms: retry_after_ms.as_deref(),
                    }
                }
                ResponseEvent::Body => RunEvent::Body { exchange: turn, bytes: &body },
                ResponseEvent::End => RunEvent::BodyEnded { exchange: turn },
                ResponseEvent::Broken(fault) => {
                    RunEvent::Broken { exchange: turn, fault: fault.clone() }
                }
            };
            tell_run(shard, run, hosted, event);
        });
    }
    shard.guests.agents.body = body;
    has_heard
}

/// Starts a run that has just been leased a ring.
pub(in crate::server) fn begin_agent<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    let run = shard.run_mut(handle);
    let Some(Agent::Waiting(job)) = run.guest.agent.take() else {
        unreachable!("a run begins once, with its job");
    };
    let Ring::Here(writer) = &run.ring else { unreachable!("it was leased a ring") };
    let part_bytes_max = writer.geometry().length_max() as usize;
    let (id, owner) = (run.id, run.guest.owner);
    run.producer = Producer::Outside;
    run.guest.is_agent = true;
    let mut job = *job;
    job.config.agent_id = id.to_string();
    job.config.part_bytes_max = job.config.part_bytes_max.min(part_bytes_max);
    job.config.seed ^= id.nonce;
    let Job { config, conversation, hooks, depth, is_plain } = job;
    let target = config.endpoint.base_url.clone();
    match RunMachine::new(config, conversation, hooks) {
        Ok(machine) => {
            let hosted = Hosted { depth, ..Hosted::new(machine, target, owner, is_plain) };
            shard.run_mut(handle).guest.agent = Some(Agent::Running(Box::new(hosted)));
            shard.counters.agents_started += 1;
            shard.guests.agents.note(handle);
        }
        Err(error) => shard.producer_ended(handle, Err(ToolError::new(error.to_string()))),
    }
}

/// Handles a run that starts, stops, has room again or has reached a deadline.
fn look_at_agent<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    with_hosted(shard, handle, |shard, hosted| {
        if !std::mem::replace(&mut hosted.has_begun, true) {
            tell_run(shard, handle, hosted, RunEvent::Started);
        }
        let is_stopping = shard.run_mut(handle).stopping;
        if is_stopping && !std::mem::replace(&mut hosted.is_cancelled, true) {
            let reason = match shard.engine.stop_outcome(handle) {
                _ if shard.closing => CancelReason::Shutdown,
                Some(Outcome::TimedOut) => CancelReason::TimedOut,
                _ => CancelReason::Cancelled,
            };
            tell_run(shard, handle, hosted, RunEvent::Cancel(reason));
        } else {
            tell_run(shard, handle, hosted, RunEvent::Tick);
        }
    });
}

/// Passes output of a tool to the run that started it.
fn tell_said<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    run: Handle,
    call: u32,
    said: &Said,
) {
    with_hosted(shard, run, |shard, hosted| tools::tell_tool_said(shard, run, hosted, call, said));
}

/// Takes a running run out of its slot for `look`, lets it continue as far as it can, and puts
/// it back. Ends the run if it is over.
fn with_hosted<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    look: impl FnOnce(&mut ServerShard<R>, &mut Hosted),
) {
    let run = shard.runs[handle.index as usize].as_mut().filter(|run| run.handle == handle);
    let Some(run) = run else { return };
    let Some(Agent::Running(mut hosted)) = run.guest.agent.take_if(|agent| agent.is_running())
    else {
        return;
    };
    look(shard, &mut hosted);
    if let Some(result) = go_on(shard, handle, &mut hosted) {
        end_agent(shard, handle, *hosted, result);
    } else {
        shard.run_mut(handle).guest.agent = Some(Agent::Running(hosted));
    }
}

/// Passes an event to the machine. A panic of a hook, which is foreign code, fails only this
/// run.
pub(in crate::server) fn tell_run<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    hosted: &mut Hosted,
    event: RunEvent<'_>,
) {
    let (now, wall_us) = (shard.now, shard.anchor.wall_us_at(shard.now.nanos()));
    let machine = &mut hosted.machine;
    if let Err(panicked) = guarded(|| machine.handle(event, now, wall_us)) {
        shard.counters.tools_panicked += 1;
        shard.run_mut(handle).has_panicked = true;
        hosted.failure.get_or_insert_with(|| panic_error(&panicked));
    }
}

/// Carries out the run's actions and publishes its parts until the run has to wait. Returns the
/// result if the run has ended and all its parts are published.
fn go_on<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    hosted: &mut Hosted,
) -> Option<Result<(), ToolError>> {
    loop {
        if let Some(failure) = hosted.failure.take() {
            return Some(Err(failure)); // The machine is not used any more.
        }
        while let Some(action) = hosted.machine.next_action() {
            carry_out_for(shard, handle, hosted, action);
        }
        match publish::publish_parts(shard, handle, hosted) {
            Published::Held => break,
            Published::All if hosted.failure.is_some() => {}
            Published::All => match hosted.machine.next_action() {
                Some(action) => carry_out_for(shard, handle, hosted, action),
                None => {
                    if let Some(end) = hosted.machine.is_over() {
                        return Some(result_of(end));
                    }
                    break;
                }
            },
        }
    }
    set_flow(shard, hosted);
    let deadline = hosted.machine.next_deadline();
    if deadline != hosted.wakes_at {
        hosted.wakes_at = deadline;
        if let Some(deadline) = deadline {
            shard.tell(EngineEvent::Sleeping(handle, deadline));
        }
    }
    None
}

fn carry_out_for<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    hosted: &mut Hosted,
    action: RunAction,
) {
    match action {
        RunAction::Ask { exchange: turn, request } => {
            close_exchange(shard, hosted, outgoing::drop_exchange);
            let target = Target {
                is_tls: hosted.target.is_tls,
                host: hosted.target.host.as_str().into(),
                port: hosted.target.port,
            };
            let exchange = outgoing::ask_outside(shard, &target, request, Deadlines::default());
            hosted.exchange = Some((turn, exchange));
            hosted.is_read = true;
            shard.guests.agents.remember(Asked { exchange, run: handle, turn });
        }
        RunAction::HangUp { exchange: turn } if hosted.is_asking(turn) => {
            close_exchange(shard, hosted, outgoing::drop_exchange);
        }
        RunAction::Release { exchange: turn } if hosted.is_asking(turn) => {
            close_exchange(shard, hosted, outgoing::release_exchange);
        }
        RunAction::HangUp { .. } | RunAction::Release { .. } => {} // It has already ended.
        RunAction::Start { call, tool, arguments } => {
            tools::start_tool(shard, handle, hosted, call, &tool, arguments);
        }
        RunAction::Stop { call } => tools::stop_tool(shard, hosted, call),
        RunAction::Report { message } => hosted.updates.push(Report::message(&message)),
    }
}

/// Closes the exchange with the model's server, if one is open.
fn close_exchange<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    hosted: &mut Hosted,
    close: fn(&mut ServerShard<R>, crate::server::outgoing::ExchangeId),
) {
    if let Some((_, exchange)) = hosted.exchange.take() {
        shard.guests.agents.forget(exchange);
        close(shard, exchange);
    }
}

/// Sets the flow of the model's body and of the tools: none while a part waits for room.
fn set_flow<R: Reactor + 'static>(shard: &mut ServerShard<R>, hosted: &mut Hosted) {
    let has_room = hosted.waiting.is_none();
    let is_read = has_room && hosted.machine.wants_body();
    if let Some((_, exchange)) = hosted.exchange
        && is_read != std::mem::replace(&mut hosted.is_read, is_read)
    {
        outgoing::set_exchange_reading(shard, exchange, is_read);
    }
    let takes = has_room && hosted.machine.wants_output();
    tools::set_demands(shard, hosted, takes);
}

/// Ends a run: closes its exchange, stops its tools and reports the result to the engine.
fn end_agent<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    mut hosted: Hosted,
    result: Result<(), ToolError>,
) {
    close_exchange(shard, &mut hosted, outgoing::drop_exchange);
    while let Some(call) = hosted.calls.last().map(|call| call.call) {
        tools::stop_tool(shard, &mut hosted, call);
    }
    shard.run_mut(handle).stopping = false;
    shard.producer_ended(handle, result);
    shard.pump();
}

/// Returns the result that the engine receives for this end.
fn result_of(end: &RunEnd) -> Result<(), ToolError> {
    match &end.how {
        Ended::Completed => Ok(()),
        Ended::Failed(failure) => Err(ToolError::new(failure.to_string())),
        Ended::Cancelled(_) => Err(ToolError::Stopped),
    }
}
