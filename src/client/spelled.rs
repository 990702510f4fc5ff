//! Events of the client in the form of the wire, for programs that pass them on.

use super::Event;
use crate::shard::Names;
use crate::shard::events::{of_end, of_gap, of_limit};
use crate::wire::events;

impl Event {
    /// The event in the form that all wire formats share.
    pub fn spelled<'a>(&'a self, names: &'a Names) -> events::Event<'a> {
        let execution = names.execution.as_str();
        match self {
            Event::Started(started) => events::Event::Started(events::Started {
                execution,
                subscriber: &started.subscriber,
                tool: &started.tool,
                token: names.token.as_deref(),
                policy: started.policy.name(),
                limits: of_limit(started.limit),
                from_seq: started.from_seq,
                replay: started.replay,
            }),
            Event::Chunk(chunk) => events::Event::Chunk(events::Chunk {
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
            Event::Part(part) => {
                events::Event::Part(events::Part { seq: part.seq, json: part.json.as_bytes() })
            }
            Event::Gap(gap) => events::Event::Gap(of_gap(execution, gap)),
            Event::Progress(progress) => events::Event::Progress(events::Progress {
                execution,
                token: names.token.as_deref(),
                progress: progress.progress,
                total: progress.total,
                percentage: progress.percentage,
                message: progress.message.as_deref(),
                context: progress.context.as_deref(),
            }),
            Event::End(ended) => {
                events::Event::End(of_end(execution, &ended.end, ended.error.as_deref()))
            }
        }
    }
}
