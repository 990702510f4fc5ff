//! Hosted runs of agents. In the shard's own turn, the actions of runs are carried out here, and
//! their results are passed back to the runs.
//!
//! A run is an execution like any other, and its chunks are its parts. Requests to the model's
//! server go through `outgoing/`. A tool that the model calls is an execution of its own, of
//! the same owner. The run follows it as a `block` subscriber with a small window of chunks. While
//! a reader holds the run back, its parts wait, the model's connection is not read, and its tools
//! get no demand. The memory kept then is bounded by one receive and one window.
//!
//! Nothing here blocks, and no turn visits runs without news: events from outside are queued with
//! the run that they are for ([`Agents`]).
//!
//! Reading order: `job.rs` (the work of a run), `drive.rs` (the events of one run), `tools.rs` (its
//! tools), `publish.rs` (its parts). `specs.rs` describes the tools `agent` and `llm_generate`.
//! `embed.rs` is the API for Rust programs.
//!
//! Invariants ([`Shard::audit_agents`]):
//! - G1: an exchange belongs to one running run and to that run's current turn.
//! - G2: the sink of a tool that a run has started names the run as long as the run follows it.
//! - G3: a run that is over has neither.

mod drive;
mod embed;
mod job;
mod publish;
mod settings;
mod specs;
mod tools;

use std::collections::{BTreeMap, VecDeque};

pub(in crate::server) use drive::{begin_agent, settle_agents};
pub use embed::{AgentRun, AgentSteps, AgentStream};
pub(in crate::server) use embed::{follow_agent, iterate_agent, start_agent, stream_agent};
pub(in crate::server) use job::{Job, agent_of};
pub use settings::{AgentSettings, ModelError, ModelSettings, ToolChoice};
pub(in crate::server) use specs::add_to;

use crate::agent::{RunMachine, model};
use crate::base::{ExecutionId, Handle, Instant, Principal, SubscriberId};
use crate::memory::ChunkHeader;
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::guests::Destination;
use crate::server::outgoing::ExchangeId;
use crate::shard::run::Producer;
use crate::shard::{Call, Chunk, Delivery, Ended, Reported, Sink};
use crate::stream::{EndState, Exit, Gap, Kind, Outcome, Progress};
use crate::tool::{ToolError, ToolUpdate};

/// Runs with news, and the state that all runs of a shard share.
#[derive(Default)]
pub(in crate::server) struct Agents {
    pub(in crate::server::agents) settings: AgentSettings,
    /// Runs to visit: they start, stop, have room or have reached a deadline.
    due: VecDeque<Handle>,
    /// The output of tools, oldest first.
    said: VecDeque<(AgentReceiver, Said)>,
    /// The open exchanges, with the run that each belongs to.
    exchanges: BTreeMap<Handle, Asked>,
    /// The body bytes received last. The buffer is reused.
    body: Vec<u8>,
    /// The buffer into which a part is encoded.
    scratch: Vec<u8>,
}

/// The run and the turn that an exchange belongs to.
#[derive(Clone, Copy, Debug)]
struct Asked {
    exchange: ExchangeId,
    run: Handle,
    turn: u32,
}

/// The receiver of a tool's output: this call of this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentReceiver {
    run: Handle,
    call: u32,
}

/// One event of a tool's output.
#[derive(Debug)]
pub(in crate::server) enum Said {
    Chunk { seq: u64, offset: u64, kind: Kind, more: bool, bytes: Box<[u8]> },
    Gap(Gap),
    Progress { progress: Progress, message: Option<Box<str>>, context: Option<Box<str>> },
    End { outcome: Outcome, exit: Option<Exit>, error: Option<Box<str>> },
}

/// The state of an execution that is a run of an agent.
pub(in crate::server) enum Agent {
    /// The run has not started.
    Waiting(Box<Job>),
    /// The run is running.
    Running(Box<Hosted>),
}

/// A run that is running.
pub(in crate::server) struct Hosted {
    machine: RunMachine,
    target: model::BaseUrl,
    owner: Principal,
    /// Number of levels of agents that the run may start below itself.
    depth: u32,
    /// The turn and the exchange with the model's server that answers it.
    exchange: Option<(u32, ExchangeId)>,
    is_read: bool,
    /// True if only the model's text is published.
    is_plain: bool,
    /// Reports (such as token usage) that a plain run publishes besides its text.
    updates: ToolUpdate,
    /// Tools that are running.
    calls: Vec<ToolCall>,
    /// A part that has no room yet, with its chunk header.
    waiting: Option<(ChunkHeader, Box<[u8]>)>,
    /// True once the machine has received [`RunEvent::Started`](crate::agent::RunEvent::Started).
    has_begun: bool,
    /// True once the machine has been told to stop.
    is_cancelled: bool,
    /// The error of a hook that has panicked.
    failure: Option<ToolError>,
    /// The deadline at which the engine wakes the run.
    wakes_at: Option<Instant>,
}

/// A tool that a run has started.
#[derive(Clone, Copy, Debug)]
struct ToolCall {
    call: u32,
    execution: ExecutionId,
    subscriber: SubscriberId,
    /// True if the tool's chunks are parts, because it is a run of an agent itself.
    has_parts: bool,
    /// Bytes of text that the tool's model has produced, if it is one.
    said_bytes: u64,
    /// Number of chunks received since the last demand was sent.
    heard_count: u32,
    /// True if the last demand sent was zero.
    is_held: bool,
}

/// Returns the names of the models of this shard's agents.
pub(in crate::server) fn model_names<R: Reactor + 'static>(shard: &ServerShard<R>) -> Vec<String> {
    let models = &shard.guests.agents.settings().models;
    models.iter().map(|model| model.name.clone()).collect()
}

impl Agents {
    pub fn new(settings: AgentSettings) -> Agents {
        Agents { settings, ..Agents::default() }
    }

    /// Returns the models, and the limits of agents.
    pub fn settings(&self) -> &AgentSettings {
        &self.settings
    }

    /// True if runs have news or tools have output.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.due.is_empty() || !self.said.is_empty()
    }

    /// True if a run may have something to handle. Answers of models come at any time.
    #[inline]
    pub fn may_have_news(&self) -> bool {
        self.has_news() || !self.exchanges.is_empty()
    }

    /// Queues a run to be visited.
    pub fn note(&mut self, run: Handle) {
        self.due.push_back(run);
    }

    /// Queues a chunk that a tool has published.
    pub fn hear_chunk(&mut self, receiver: AgentReceiver, chunk: &Chunk<'_>) {
        let Chunk { seq, offset, kind, more, data, .. } = *chunk;
        let bytes = data.into();
        self.said.push_back((receiver, Said::Chunk { seq, offset, kind, more, bytes }));
    }

    /// Queues a progress report of a tool.
    fn hear_progress(&mut self, receiver: AgentReceiver, reported: &Reported<'_>) {
        let progress = reported.progress;
        let [message, context] = [reported.message, reported.context].map(|t| t.map(Box::from));
        self.said.push_back((receiver, Said::Progress { progress, message, context }));
    }

    /// Queues one delivery of a tool.
    pub fn hear(&mut self, receiver: AgentReceiver, delivery: &Delivery<'_>) {
        match delivery {
            Delivery::Chunk(chunk) => self.hear_chunk(receiver, chunk),
            Delivery::Gap(gap) => self.said.push_back((receiver, Said::Gap(*gap))),
            Delivery::Progress(reported) => self.hear_progress(receiver, reported),
            Delivery::End(ended) => self.hear_end(receiver, ended),
        }
    }

    /// Queues the end of a tool.
    pub fn hear_end(&mut self, receiver: AgentReceiver, ended: &Ended<'_>) {
        let (outcome, error) = match ended.end.state {
            EndState::Ended(outcome) => (outcome, ended.error.map(Box::from)),
            // The run has lost its subscription, so the rest of the output cannot be received.
            EndState::Detached { reason, .. } => {
                let text = format!("the rest is lost: detached ({})", reason.name());
                (Outcome::Failed, Some(text.into()))
            }
        };
        self.said.push_back((receiver, Said::End { outcome, exit: ended.end.exit, error }));
    }

    /// Returns the run and the turn of an exchange, if a run owns it.
    fn asked(&self, exchange: ExchangeId) -> Option<Asked> {
        self.exchanges.get(&exchange.0).copied()
    }

    fn remember(&mut self, asked: Asked) {
        self.exchanges.insert(asked.exchange.0, asked);
    }

    fn forget(&mut self, exchange: ExchangeId) {
        self.exchanges.remove(&exchange.0);
    }
}

impl Agent {
    fn is_running(&self) -> bool {
        matches!(self, Agent::Running(_))
    }
}

impl Hosted {
    fn new(
        machine: RunMachine,
        target: model::BaseUrl,
        owner: Principal,
        is_plain: bool,
    ) -> Hosted {
        Hosted {
            machine,
            target,
            owner,
            depth: 0,
            exchange: None,
            is_read: true,
            is_plain,
            updates: ToolUpdate::default(),
            calls: Vec::new(),
            waiting: None,
            has_begun: false,
            is_cancelled: false,
            failure: None,
            wakes_at: None,
        }
    }

    /// True if the exchange belongs to this turn.
    fn is_asking(&self, turn: u32) -> bool {
        self.exchange.is_some_and(|(asked, _)| asked == turn)
    }
}
/// Iterates over all running runs.
pub(in crate::server) fn running_agents<R: Reactor + 'static>(
    shard: &ServerShard<R>,
) -> impl Iterator<Item = (Handle, &Hosted)> {
    let runs = shard.runs.iter().flatten();
    runs.filter_map(|run| match &run.guest.agent {
        Some(Agent::Running(hosted)) => Some((run.handle, &**hosted)),
        Some(Agent::Waiting(_)) | None => None,
    })
}

/// Checks the invariants G1 to G3. For tests.
///
/// # Panics
/// If an invariant does not hold.
pub(in crate::server) fn audit_agents<R: Reactor + 'static>(shard: &ServerShard<R>) {
    let mut exchange_count = 0;
    for (handle, hosted) in running_agents(shard) {
        hosted.machine.audit();
        if let Some((turn, exchange)) = hosted.exchange {
            let asked = shard.guests.agents.asked(exchange).expect("G1");
            assert!((asked.run, asked.turn) == (handle, turn)); // G1
            exchange_count += 1;
        }
        for ToolCall { call, subscriber, .. } in &hosted.calls {
            let receiver = AgentReceiver { run: handle, call: *call };
            // The tool may have ended, which is queued for the run.
            let is_heard = shard.guests.agents.said.iter().any(|(other, _)| *other == receiver);
            let Sink { subscriber: whose, call, .. } = &shard.sinks[subscriber.0.index as usize];
            let is_its = matches!(call, Call::Guest(Destination::Agent(its)) if *its == receiver);
            assert!(is_heard || (is_its && *whose == Some(*subscriber))); // G2
        }
    }
    assert_eq!(shard.guests.agents.exchanges.len(), exchange_count); // G1
    for run in shard.runs.iter().flatten() {
        let is_running = matches!(&run.guest.agent, Some(Agent::Running(_)));
        let is_produced = run.guest.is_agent && matches!(run.producer, Producer::Outside);
        assert_eq!(is_running, is_produced); // G3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_for_which_there_was_no_place_is_remembered_like_any_other() {
        let mut agents = Agents::default();
        let exchange = ExchangeId(Handle { index: u32::MAX, generation: 7 });
        let run = Handle { index: 3, generation: 1 };
        agents.remember(Asked { exchange, run, turn: 2 });
        assert_eq!(agents.asked(exchange).map(|asked| (asked.run, asked.turn)), Some((run, 2)));
        let before = ExchangeId(Handle { generation: 6, ..exchange.0 });
        assert!(agents.asked(before).is_none());
        agents.forget(exchange);
        assert!(agents.asked(exchange).is_none() && agents.exchanges.is_empty());
    }
}
