//! The deliveries to a subscriber as events, which every wire format spells in its own way.

use super::{Chunk, Delivery, Reported};
use crate::base::{ExecutionId, ProgressToken, SubscriberId};
use crate::engine::Replay;
use crate::limits;
use crate::stream::{End, EndState, Gap, LagLimit, Terms};
use crate::tool::ToolSpec;
use crate::wire::events::{self, WireEvent};

/// The names of an execution as text, which its events contain.
#[derive(Clone, Debug)]
pub struct Names {
    /// The id of the execution.
    pub execution: String,
    /// The progress token, if the execution has one.
    pub token: Option<String>,
    /// True for an agent's run: its chunks are parts.
    pub has_parts: bool,
    /// True for an execution of another node. Its chunks have the times of that node's clock.
    pub is_replica: bool,
}

/// The terms that were agreed with a subscriber, for its first event.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    /// The id of the subscriber.
    pub subscriber: SubscriberId,
    /// The policy, the lag limit and the kinds.
    pub terms: Terms,
    /// The first chunk that the subscriber will be given or told of in a gap.
    pub from_seq: u64,
    /// The chunks that are kept for it in case its connection breaks.
    pub replay: Option<Replay>,
}

impl Names {
    /// Creates the names of this execution.
    pub fn new(execution: ExecutionId, token: Option<ProgressToken>) -> Names {
        let token = token.map(|token| token.to_string());
        Names { execution: execution.to_string(), token, has_parts: false, is_replica: false }
    }

    /// Adjusts the names to the tool that the execution runs.
    pub(super) fn of_tool(mut self, tool: Option<&ToolSpec>) -> Names {
        self.has_parts = tool.is_some_and(|tool| tool.has_parts);
        self
    }

    /// Returns a chunk of this execution as an event.
    #[inline]
    #[doc(hidden)]
    pub fn event<'a>(&'a self, chunk: &Chunk<'a>) -> WireEvent<'a> {
        match self.has_parts {
            true => WireEvent::Part(events::PartEvent { seq: chunk.seq, json: chunk.data }),
            false => WireEvent::Chunk(chunk.event(&self.execution)),
        }
    }

    /// Calls `write` with the first event, which says what was agreed with a subscriber.
    pub fn write_started(&self, tool: &str, agreed: Agreed, write: impl FnOnce(&WireEvent<'_>)) {
        let Agreed { subscriber, terms, from_seq, replay } = agreed;
        let started = events::StartedEvent {
            execution: &self.execution,
            subscriber: &subscriber.to_string(),
            tool,
            token: self.token.as_deref(),
            policy: terms.policy.name(),
            limits: of_limit(terms.limit),
            from_seq,
            replay: replay.map(|replay| events::Replay {
                chunks: replay.chunks,
                bytes: replay.bytes,
                until_acknowledged: replay.until_acknowledged,
                grace_ms: limits::RECONNECT_GRACE.as_millis() as u64,
            }),
        };
        write(&WireEvent::Started(started));
    }
}

impl<'a> Delivery<'a> {
    /// Returns the delivery as an event.
    #[doc(hidden)]
    pub fn event(&self, names: &'a Names) -> WireEvent<'a> {
        let execution = names.execution.as_str();
        match self {
            Delivery::Chunk(chunk) => names.event(chunk),
            Delivery::Gap(gap) => WireEvent::Gap(of_gap(execution, gap)),
            Delivery::Progress(reported) => WireEvent::Progress(of_progress(names, reported)),
            Delivery::End(ended) => WireEvent::End(of_end(execution, &ended.end, ended.error)),
        }
    }
}

impl<'a> Chunk<'a> {
    /// Returns the chunk as an event. `execution` is the id of the execution as text.
    #[inline]
    #[doc(hidden)]
    pub fn event(&self, execution: &'a str) -> events::ChunkEvent<'a> {
        events::ChunkEvent {
            execution,
            seq: self.seq,
            total_chunks: self.chunks_expected,
            kind: self.kind.name(),
            key: (self.key != self.kind as u8).then_some(self.key),
            offset: self.offset,
            data: self.data,
            timestamp_us: self.timestamp_us(),
            mono_ns: self.published_at.nanos(),
        }
    }
}

pub(crate) fn of_limit(limit: LagLimit) -> events::Limits {
    let bytes = (limit.bytes != u64::MAX).then_some(limit.bytes);
    events::Limits { chunks: limit.chunks, bytes }
}

pub(crate) fn of_gap<'a>(execution: &'a str, gap: &Gap) -> events::GapEvent<'a> {
    events::GapEvent {
        execution,
        from_seq: gap.from_seq,
        to_seq: gap.to_seq,
        chunk_count: gap.chunk_count,
        byte_count: gap.byte_count,
        reason: gap.reason.name(),
    }
}

fn of_progress<'a>(names: &'a Names, reported: &Reported<'a>) -> events::ProgressEvent<'a> {
    events::ProgressEvent {
        execution: &names.execution,
        token: names.token.as_deref(),
        progress: reported.progress.progress,
        total: reported.progress.total,
        percentage: reported.progress.percentage(),
        message: reported.message,
        context: reported.context,
    }
}

pub(crate) fn of_end<'a>(
    execution: &'a str,
    end: &End,
    error: Option<&'a str>,
) -> events::EndEvent<'a> {
    events::EndEvent {
        execution,
        state: match end.state {
            EndState::Ended(outcome) => events::EndState::Ended(outcome.name()),
            EndState::Detached { reason, resume_from } => {
                events::EndState::Detached { reason: reason.name(), resume_from }
            }
        },
        chunks: end.given.chunks,
        bytes: end.given.bytes,
        missed_chunks: end.missed.chunks,
        missed_bytes: end.missed.bytes,
        execution_chunks: end.published.chunks,
        execution_bytes: end.published.bytes,
        duration_us: end.duration_us,
        exit: end.exit,
        error,
    }
}
