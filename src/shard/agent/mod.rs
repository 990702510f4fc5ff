//! Runs of agents, hosted: what a run wishes is carried out here, and what came of it is told to
//! it, in the shard's own turn.
//!
//! A run is an execution like any other, and its chunks are its parts. The model's server is asked
//! over `shard/outgoing`; a tool that the model calls is an execution of its own, of the same
//! owner, which the run follows as a `block` subscriber that takes a few chunks at once. While a
//! reader holds the run back its parts wait, the model's connection is not read and its tools are
//! given no demand: what is kept is what one receive and one window have brought.
//!
//! Nothing here waits for anything, and no turn looks at runs that have no news: what the outside
//! says is queued with the run that it is for ([`Agents`]).
//!
//! Reading order: `job.rs` (what a run is to do), `drive.rs` (one run's news), `tools.rs` (its
//! tools), `publish.rs` (its parts); `specs.rs` are the tools `agent` and `llm_generate` as
//! everybody is told of them, `embed.rs` the way in for Rust programs.
//!
//! Invariants ([`Shard::audit_agents`]):
//! - G1: an exchange is that of one running run, and of its turn.
//! - G2: a tool that a run has started knows the run for as long as it wants to hear of it.
//! - G3: a run that is over has neither.

mod drive;
mod embed;
mod job;
mod publish;
mod settings;
mod specs;
mod tools;

use std::collections::{BTreeMap, VecDeque};

pub use embed::{AgentRun, AgentSteps, AgentStream};
pub(super) use job::Job;
pub use settings::{AgentSettings, ModelError, ModelSettings, ToolChoice};
pub(super) use specs::add_to;

use super::outgoing::{ExchangeId, OutgoingConfig};
use crate::agent::{Run, model};
use crate::base::{ExecutionId, Handle, Instant, Principal, SubscriberId};
use crate::engine::{EndState, Exit, Gap, Kind, Outcome, Progress};
use crate::memory::ChunkHeader;
use crate::reactor::Reactor;
use crate::shard::run::Producer;
use crate::shard::{Call, Chunk, Delivery, Ended, Reported, Shard, Sink};
use crate::tool::{Notes, ToolError};

/// Runs with news, and what belongs to all runs of a shard.
#[derive(Default)]
pub(super) struct Agents {
    pub settings: AgentSettings,
    /// How the servers of models are found and believed.
    pub outgoing: OutgoingConfig,
    /// Runs that are to be looked at: they begin, stop, have room or a deadline.
    due: VecDeque<Handle>,
    /// What tools have said, oldest first.
    said: VecDeque<(Ear, Said)>,
    /// Whose exchanges are.
    exchanges: BTreeMap<Handle, Asked>,
    /// What was received last; its memory goes back and forth.
    body: Vec<u8>,
    /// A part is spelled here.
    scratch: Vec<u8>,
}

/// Whose an exchange is.
#[derive(Clone, Copy, Debug)]
struct Asked {
    exchange: ExchangeId,
    run: Handle,
    turn: u32,
}

/// Who hears what a tool says: this call of this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ear {
    run: Handle,
    call: u32,
}

/// What a tool has said.
#[derive(Debug)]
enum Said {
    Chunk { seq: u64, offset: u64, kind: Kind, more: bool, bytes: Box<[u8]> },
    Gap(Gap),
    Progress { progress: Progress, message: Option<Box<str>>, context: Option<Box<str>> },
    End { outcome: Outcome, exit: Option<Exit>, error: Option<Box<str>> },
}

/// What belongs to an execution that is a run.
pub(super) enum Agent {
    /// It has not begun.
    Waiting(Box<Job>),
    /// It runs.
    Running(Box<Hosted>),
}

/// A run that runs.
pub(super) struct Hosted {
    machine: Run,
    target: model::BaseUrl,
    owner: Principal,
    /// So many levels of agents may be started by it.
    depth: u32,
    /// The model's answer.
    exchange: Option<(u32, ExchangeId)>,
    is_read: bool,
    /// Of its parts only the model's text is published.
    is_plain: bool,
    /// What else there is to say then.
    notes: Notes,
    /// Tools that run.
    calls: Vec<ToolCall>,
    /// A part for which there is no room, and what kind of chunk it is.
    waiting: Option<(ChunkHeader, Box<[u8]>)>,
    /// It was told that it may begin, ...
    has_begun: bool,
    /// ... and that it is to stop.
    is_cancelled: bool,
    /// A hook has panicked.
    failure: Option<ToolError>,
    /// When the engine wakes it.
    wakes_at: Option<Instant>,
}

/// A tool that a run has started.
#[derive(Clone, Copy, Debug)]
struct ToolCall {
    call: u32,
    execution: ExecutionId,
    subscriber: SubscriberId,
    /// Its chunks are parts: it is a run itself.
    has_parts: bool,
    /// What it has said, if it is one.
    said_bytes: u64,
    /// Chunks heard since it was last told how many are wanted.
    heard_count: u32,
    /// It was told that none are.
    is_held: bool,
}

impl Agents {
    pub fn new(settings: AgentSettings, outgoing: OutgoingConfig) -> Agents {
        Agents { settings, outgoing, ..Agents::default() }
    }

    /// Is there anything to be seen to?
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.due.is_empty() || !self.said.is_empty()
    }

    /// A run is to be looked at.
    pub fn note(&mut self, run: Handle) {
        self.due.push_back(run);
    }

    /// A tool has published a chunk.
    pub fn hear_chunk(&mut self, ear: Ear, chunk: &Chunk<'_>) {
        let Chunk { seq, offset, kind, more, data, .. } = *chunk;
        let bytes = data.into();
        self.said.push_back((ear, Said::Chunk { seq, offset, kind, more, bytes }));
    }

    /// A tool has said how far it is.
    fn hear_progress(&mut self, ear: Ear, reported: &Reported<'_>) {
        let progress = reported.progress;
        let [message, context] = [reported.message, reported.context].map(|t| t.map(Box::from));
        self.said.push_back((ear, Said::Progress { progress, message, context }));
    }

    /// A tool has said something that is no chunk.
    pub fn hear(&mut self, ear: Ear, delivery: &Delivery<'_>) {
        match delivery {
            Delivery::Chunk(chunk) => self.hear_chunk(ear, chunk),
            Delivery::Gap(gap) => self.said.push_back((ear, Said::Gap(*gap))),
            Delivery::Progress(reported) => self.hear_progress(ear, reported),
            Delivery::End(ended) => self.hear_end(ear, ended),
        }
    }

    /// A tool has ended.
    pub fn hear_end(&mut self, ear: Ear, ended: &Ended<'_>) {
        let (outcome, error) = match ended.end.state {
            EndState::Ended(outcome) => (outcome, ended.error.map(Box::from)),
            // It is not followed any more: what it still does nobody hears.
            EndState::Detached { reason, .. } => {
                let text = format!("the rest is lost: detached ({})", reason.name());
                (Outcome::Failed, Some(text.into()))
            }
        };
        self.said.push_back((ear, Said::End { outcome, exit: ended.end.exit, error }));
    }

    /// Whose an exchange is, if anybody's.
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
    fn new(machine: Run, target: model::BaseUrl, owner: Principal, is_plain: bool) -> Hosted {
        Hosted {
            machine,
            target,
            owner,
            depth: 0,
            exchange: None,
            is_read: true,
            is_plain,
            notes: Notes::default(),
            calls: Vec::new(),
            waiting: None,
            has_begun: false,
            is_cancelled: false,
            failure: None,
            wakes_at: None,
        }
    }

    /// Is this the turn that its exchange is for?
    fn is_asking(&self, turn: u32) -> bool {
        self.exchange.is_some_and(|(asked, _)| asked == turn)
    }
}

impl<R: Reactor + 'static> Shard<R> {
    /// Runs that run.
    pub(super) fn running_agents(&self) -> impl Iterator<Item = (Handle, &Hosted)> {
        let runs = self.runs.iter().flatten();
        runs.filter_map(|run| match &run.agent {
            Some(Agent::Running(hosted)) => Some((run.handle, &**hosted)),
            Some(Agent::Waiting(_)) | None => None,
        })
    }

    /// Checks every invariant of runs. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub(super) fn audit_agents(&self) {
        let mut exchange_count = 0;
        for (handle, hosted) in self.running_agents() {
            hosted.machine.audit();
            if let Some((turn, exchange)) = hosted.exchange {
                let asked = self.agents.asked(exchange).expect("G1");
                assert!((asked.run, asked.turn) == (handle, turn)); // G1
                exchange_count += 1;
            }
            for ToolCall { call, subscriber, .. } in &hosted.calls {
                let ear = Ear { run: handle, call: *call };
                // It may have ended, which the run is to be told.
                let is_heard = self.agents.said.iter().any(|(other, _)| *other == ear);
                let Sink { subscriber: whose, call, .. } = &self.sinks[subscriber.0.index as usize];
                let is_its = matches!(call, Call::Agent(its) if *its == ear);
                assert!(is_heard || (is_its && *whose == Some(*subscriber))); // G2
            }
        }
        assert_eq!(self.agents.exchanges.len(), exchange_count); // G1
        for run in self.runs.iter().flatten() {
            let is_running = matches!(&run.agent, Some(Agent::Running(_)));
            assert_eq!(is_running, matches!(run.producer, Producer::Agent)); // G3
        }
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
