//! Agents for Rust programs: runs on the program's own shard, followed part by part or step by
//! step.
//!
//! [`AgentSteps`] is built on [`AgentStream`]: it folds the same parts into the state after each
//! step.

use crate::agent::{Config, Fold, Folded, Hooks, Message, NoHooks, RunPart, RunState};
use crate::base::{ExecutionId, Guarded};
use crate::engine::{SubscribeError, SubscribeSpec};
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::agents::{Agent, Job};
use crate::server::guests::Served;
use crate::shard::{Delivery, ExecuteError, ExecuteOptions, Polled};
use crate::stream::Policy;
use crate::tool::{AgentCall, Prepared, StartError, Work};

/// A run of an agent that a program assembles itself: the model needs no settings, and hooks are
/// possible.
pub struct AgentRun {
    /// The limits and the model of the run. The shard sets `agent_id` from the execution's id and
    /// lowers `part_bytes_max` to what the ring takes.
    pub config: Config,
    /// The conversation so far. The last message is the task.
    pub conversation: Vec<Message>,
    /// The hooks through which the program observes and steers the run.
    pub hooks: Box<dyn Hooks + Send>,
}

impl AgentRun {
    /// Returns a run of this task without hooks.
    pub fn new(config: Config, task: impl Into<String>) -> AgentRun {
        let conversation = vec![Message::User(task.into())];
        AgentRun { config, conversation, hooks: Box::new(NoHooks) }
    }
}

/// The parts of a run, in order.
#[derive(Debug)]
pub struct AgentStream {
    polled: Polled,
    execution: ExecutionId,
}

/// The states of a run after each of its steps.
#[derive(Debug)]
pub struct AgentSteps {
    stream: AgentStream,
    fold: Fold,
}

/// Starts a run. Its tools are tools of this shard ([`Shard::tools_mut`]). The model may call
/// only the tools that the config describes.
pub(in crate::server) fn start_agent<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    run: AgentRun,
    options: ExecuteOptions,
) -> Result<ExecutionId, ExecuteError> {
    let AgentRun { config, conversation, hooks } = run;
    let spec = crate::server::agents::specs::agent(&shard.guests.agents.settings);
    let call = AgentCall::Run(serde_json::Value::Null);
    let mut prepared = Prepared::new(Work::Agent(Box::new(call)));
    (prepared.need, prepared.timeouts) = (spec.need, spec.timeouts);
    prepared.tool = Some(spec.into());
    let hooks = Guarded::new(hooks);
    let job = Job { config, conversation, hooks, depth: 0, is_plain: false };
    crate::server::agents::job::checked(&job.config)
        .map_err(|error| ExecuteError::Start(StartError::Argument(error)))?;
    let agent = Some(Agent::Waiting(Box::new(job)));
    let guest = Served { owner: options.owner, agent, ..Served::default() };
    shard.open_execution(prepared, options, guest)
}

/// Starts a run and follows it part by part. [`AgentStream::next`] runs the shard between two
/// parts.
pub(in crate::server) fn stream_agent<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    run: AgentRun,
    options: ExecuteOptions,
) -> Result<AgentStream, ExecuteError> {
    let execution = start_agent(shard, run, options)?;
    Ok(follow_agent(shard, execution).expect("it was just started and has no subscribers"))
}

/// Starts a run and follows it step by step.
pub(in crate::server) fn iterate_agent<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    run: AgentRun,
    options: ExecuteOptions,
) -> Result<AgentSteps, ExecuteError> {
    let stream = stream_agent(shard, run, options)?;
    Ok(AgentSteps { stream, fold: Fold::default() })
}

/// Follows a run that is already running, from the oldest part that its ring still holds.
pub(in crate::server) fn follow_agent<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) -> Result<AgentStream, SubscribeError> {
    let spec = SubscribeSpec { policy: Policy::Block, ..SubscribeSpec::default() };
    Ok(AgentStream { polled: shard.subscribe_polled(execution, spec)?, execution })
}

impl AgentStream {
    /// Returns the execution of the run. Others can follow it too, and it can be cancelled.
    pub fn execution(&self) -> ExecutionId {
        self.execution
    }

    /// Returns the next part if it has been published. Does not run the shard.
    pub fn poll<R: Reactor + 'static>(&mut self, shard: &mut ServerShard<R>) -> Option<RunPart> {
        loop {
            match shard.poll(&mut self.polled)? {
                Delivery::Chunk(chunk) => {
                    return Some(RunPart::parse(chunk.data).expect("a run's chunks are parts"));
                }
                Delivery::Gap(_) | Delivery::Progress(_) | Delivery::End(_) => {}
            }
        }
    }

    /// Returns the next part, running the shard until it is published; `None` after the last one.
    pub fn next<R: Reactor + 'static>(&mut self, shard: &mut ServerShard<R>) -> Option<RunPart> {
        loop {
            let part = self.poll(shard);
            if part.is_some() || self.polled.is_done() {
                return part;
            }
            if !shard.turn() {
                shard.park(None);
            }
        }
    }
}

impl AgentSteps {
    /// Returns the execution of the run. Others can follow it too, and it can be cancelled.
    pub fn execution(&self) -> ExecutionId {
        self.stream.execution()
    }

    /// Returns the state after the next step, running the shard until then. The last state also
    /// holds how the run ended. `None` after the last one.
    pub fn next<R: Reactor + 'static>(&mut self, shard: &mut ServerShard<R>) -> Option<RunState> {
        while let Some(part) = self.stream.next(shard) {
            if self.fold.take(&part) != Folded::Nothing {
                return Some(self.fold.state().clone());
            }
        }
        None
    }
}
