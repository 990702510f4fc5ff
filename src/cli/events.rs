//! What a subscriber is given, here or by a server, as the events that every wire spells.

use streamdoor::client;
use streamdoor::engine::{End, EndState, Exit, Gap, LagLimit, Terms};
use streamdoor::shard::{Chunk, Delivery, Reported};
use streamdoor::wire::events::{self, Event};

/// What stands in every event of an execution, as text.
#[derive(Clone, Debug)]
pub struct Names {
    /// The execution.
    pub execution: String,
    /// What its progress is told under, if it has such a token.
    pub token: Option<String>,
}

/// The first event: what was agreed with a subscriber that has been given nothing yet.
pub fn started<'a>(
    names: &'a Names,
    tool: &'a str,
    subscriber: &'a str,
    terms: Terms,
) -> events::Started<'a> {
    events::Started {
        execution: &names.execution,
        subscriber,
        tool,
        token: names.token.as_deref(),
        policy: terms.policy.name(),
        limits: limits_of(terms.limit),
        from_seq: 1, // The tool waits for its subscribers.
    }
}

fn limits_of(limit: LagLimit) -> events::Limits {
    let bytes = (limit.bytes != u64::MAX).then_some(limit.bytes);
    events::Limits { chunks: limit.chunks, bytes }
}

/// The event of a delivery.
pub fn event<'a>(names: &'a Names, delivery: &Delivery<'a>) -> Event<'a> {
    let execution = names.execution.as_str();
    match delivery {
        Delivery::Chunk(chunk) => Event::Chunk(of_chunk(execution, chunk)),
        Delivery::Gap(gap) => Event::Gap(of_gap(execution, gap)),
        Delivery::Progress(reported) => Event::Progress(of_progress(names, reported)),
        Delivery::End(ended) => Event::End(of_end(execution, &ended.end, ended.error)),
    }
}

/// The event that a server told, once more.
pub fn again<'a>(names: &'a Names, event: &'a client::Event) -> Event<'a> {
    let execution = names.execution.as_str();
    match event {
        client::Event::Started(started) => Event::Started(events::Started {
            execution,
            subscriber: &started.subscriber,
            tool: &started.tool,
            token: names.token.as_deref(),
            policy: started.policy.name(),
            limits: limits_of(started.limit),
            from_seq: started.from_seq,
        }),
        client::Event::Chunk(chunk) => Event::Chunk(events::Chunk {
            execution,
            seq: chunk.seq,
            total_chunks: chunk.total_chunks,
            kind: chunk.kind.name(),
            key: chunk.key,
            offset: chunk.offset,
            data: &chunk.data,
            timestamp_us: chunk.timestamp_us,
            mono_ns: chunk.mono_ns,
        }),
        client::Event::Gap(gap) => Event::Gap(of_gap(execution, gap)),
        client::Event::Progress(progress) => Event::Progress(events::Progress {
            execution,
            token: names.token.as_deref(),
            progress: progress.progress,
            total: progress.total,
            message: progress.message.as_deref(),
            context: progress.context.as_deref(),
        }),
        client::Event::End(ended) => {
            Event::End(of_end(execution, &ended.end, ended.error.as_deref()))
        }
    }
}

fn of_gap<'a>(execution: &'a str, gap: &Gap) -> events::Gap<'a> {
    events::Gap {
        execution,
        from_seq: gap.from_seq,
        to_seq: gap.to_seq,
        chunk_count: gap.chunk_count,
        byte_count: gap.byte_count,
        reason: gap.reason.name(),
    }
}

fn of_chunk<'a>(execution: &'a str, chunk: &Chunk<'a>) -> events::Chunk<'a> {
    events::Chunk {
        execution,
        seq: chunk.seq,
        total_chunks: chunk.chunks_expected,
        kind: chunk.kind.name(),
        key: (chunk.key != chunk.kind as u8).then_some(chunk.key),
        offset: chunk.offset,
        data: chunk.data,
        timestamp_us: chunk.timestamp_us(),
        mono_ns: chunk.published_at.nanos(),
    }
}

fn of_progress<'a>(names: &'a Names, reported: &Reported<'a>) -> events::Progress<'a> {
    events::Progress {
        execution: &names.execution,
        token: names.token.as_deref(),
        progress: reported.progress.progress,
        total: reported.progress.total,
        message: reported.message,
        context: reported.context,
    }
}

fn of_end<'a>(execution: &'a str, end: &End, error: Option<&'a str>) -> events::End<'a> {
    events::End {
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
        duration_us: end.duration_us,
        exit: end.exit.map(|exit| match exit {
            Exit::Code(code) => events::Exit::Code(code),
            Exit::Signal(signal) => events::Exit::Signal(signal),
        }),
        error,
    }
}
