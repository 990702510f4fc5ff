//! What a subscriber is given, as the events that every wire spells.

use streamdoor::engine::{EndState, Exit};
use streamdoor::shard::{Chunk, Delivery, Ended, Reported, Subscriber};
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
pub fn started(names: &Names, tool: &str, subscriber: &Subscriber, out: &mut Vec<u8>) {
    let terms = subscriber.terms();
    let started = events::Started {
        execution: &names.execution,
        subscriber: &subscriber.id().to_string(),
        tool,
        token: names.token.as_deref(),
        policy: terms.policy.name(),
        limits: events::Limits {
            chunks: terms.limit.chunks,
            bytes: (terms.limit.bytes != u64::MAX).then_some(terms.limit.bytes),
        },
        from_seq: 1, // The tool waits for its subscribers.
    };
    Event::Started(started).write_line(out);
}

/// The event of a delivery.
pub fn event<'a>(names: &'a Names, delivery: &Delivery<'a>) -> Event<'a> {
    let execution = names.execution.as_str();
    match delivery {
        Delivery::Chunk(chunk) => Event::Chunk(of_chunk(execution, chunk)),
        Delivery::Gap(gap) => Event::Gap(events::Gap {
            execution,
            from_seq: gap.from_seq,
            to_seq: gap.to_seq,
            chunk_count: gap.chunk_count,
            byte_count: gap.byte_count,
            reason: gap.reason.name(),
        }),
        Delivery::Progress(reported) => Event::Progress(of_progress(names, reported)),
        Delivery::End(ended) => Event::End(of_end(execution, ended)),
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

fn of_end<'a>(execution: &'a str, ended: &Ended<'a>) -> events::End<'a> {
    let end = &ended.end;
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
        error: ended.error,
    }
}
