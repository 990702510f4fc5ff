//! What the log is told: who came and went, what ran, who was let go.

use super::super::Shard;
use crate::base::{ExecutionId, Handle, SubscriberId};
use crate::engine::{End, EndState, Verdict};
use crate::memory::Pressure;
use crate::memory::pressure::Diagnosis;
use crate::reactor::{ConnectionId, Peer, Reactor};
use crate::trace::{Level, Record};

impl<R: Reactor + 'static> Shard<R> {
    pub(in crate::shard) fn wall_us(&self) -> u64 {
        self.anchor.wall_us_at(self.now.nanos())
    }

    /// Somebody has connected, or has gone.
    pub(super) fn log_connection(&self, event: &'static str, peer: Peer) {
        self.log.record(self.wall_us(), Level::Debug, event, |record| {
            record.number("shard", self.own_index() as u64).show("peer", &peer);
        });
    }

    /// Memory has become shorter or less so. One line for each change of state, which names the
    /// reading that decided.
    pub(in crate::shard) fn log_pressure(&self, before: Pressure, diagnosis: Diagnosis) {
        let level = if diagnosis.pressure > before { Level::Warn } else { Level::Info };
        self.log.record(self.wall_us(), level, "memory_pressure_changed", |record| {
            record.number("shard", self.own_index() as u64);
            record.show("pressure", &diagnosis.pressure).show("before", &before);
            if let Some(reading) = diagnosis.decided_by {
                record.show("reading", &reading.name());
                record.number("percent", reading.percent().into());
            }
        });
    }

    /// To whom an execution belongs, where everybody has to say who he is.
    fn show_owner(&self, id: ExecutionId, record: &mut Record) {
        let run = self.runs.get(id.slot.index as usize).and_then(Option::as_ref);
        let owner = run.filter(|run| run.id == id).map(|run| run.owner);
        if let Some(name) = owner.and_then(|owner| self.access.name_of(owner)) {
            record.show("principal", &name);
        }
    }

    /// A client has had a tool run.
    pub(super) fn log_started(&mut self, id: ConnectionId, execution: ExecutionId, tool: &str) {
        self.log_started_by(Some(id), execution, tool);
    }

    /// Somebody has, through this connection if that is still there.
    pub(in crate::shard) fn log_started_by(
        &mut self,
        id: Option<ConnectionId>,
        execution: ExecutionId,
        tool: &str,
    ) {
        let peer = id.and_then(|id| Some(self.serve.as_mut()?.connection(id)?.peer));
        self.log.record(self.wall_us(), Level::Info, "execution_started", |record| {
            record.show("execution", &execution).show("tool", &tool);
            self.show_owner(execution, record);
            if let Some(peer) = peer {
                record.show("peer", &peer);
            }
        });
    }

    /// Logs that a tool's thread waited because its gate had not been published.
    pub(in crate::shard) fn log_gate_told_late(&self, index: u32) {
        let Some(run) = &self.runs[index as usize] else { return };
        self.log.record(self.wall_us(), Level::Error, "gate_told_late", |record| {
            record.show("execution", &run.id).number("chunks", run.ingested_seq);
        });
    }

    /// An execution is over.
    pub(in crate::shard) fn log_ended(&self, execution: Handle, verdict: &Verdict) {
        let run = self.runs[execution.index as usize].as_ref();
        let Some(id) = run.map(|run| run.id) else { return };
        self.log.record(self.wall_us(), Level::Info, "execution_ended", |record| {
            record.show("execution", &id).show("state", &verdict.outcome);
            self.show_owner(id, record);
            record.number("chunks", verdict.head_seq);
            if let Some(error) = &verdict.error {
                record.show("error", error);
            }
        });
    }

    /// A subscriber was let go before its execution's end.
    pub(in crate::shard) fn log_detached(
        &self,
        subscriber: SubscriberId,
        execution: Handle,
        end: &End,
    ) {
        let run = self.runs[execution.index as usize].as_ref();
        let Some(id) = run.map(|run| run.id) else { return };
        self.log_let_go(id, subscriber, end);
    }

    /// As [`Shard::log_detached`], of an execution of any shard.
    pub(super) fn log_let_go(&self, id: ExecutionId, subscriber: SubscriberId, end: &End) {
        let EndState::Detached { reason, resume_from } = end.state else { return };
        self.log.record(self.wall_us(), Level::Warn, "subscriber_detached", |record| {
            record.show("execution", &id).show("subscriber", &subscriber);
            record.show("reason", &reason.name()).number("resume_from", resume_from);
            record.number("chunks", end.given.chunks).number("missed_chunks", end.missed.chunks);
        });
    }
}
