//! Events of the client in the form of the wire, for programs that pass them on.

use super::StreamEvent;
use crate::shard::Names;
use crate::shard::events::{of_end, of_gap, of_limit};
use crate::wire::events;

impl StreamEvent {
    /// The event in the form that all wire formats share.
    #[doc(hidden)]
    pub fn to_wire<'a>(&'a self, names: &'a Names) -> events::WireEvent<'a> {
        let execution = names.execution.as_str();
        match self {
            StreamEvent::Started(started) => events::WireEvent::Started(events::StartedEvent {
                execution,
                subscriber: &started.subscriber,
                tool: &started.tool,
                token: names.token.as_deref(),
                policy: started.policy.name(),
                limits: of_limit(started.limit),
                from_seq: started.from_seq,
                replay: started.replay,
            }),
            StreamEvent::Chunk(chunk) => events::WireEvent::Chunk(events::ChunkEvent {
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
            StreamEvent::Part(part) => events::WireEvent::Part(events::PartEvent {
                seq: part.seq,
                json: part.json.as_bytes(),
            }),
            StreamEvent::Gap(gap) => events::WireEvent::Gap(of_gap(execution, gap)),
            StreamEvent::Progress(progress) => events::WireEvent::Progress(events::ProgressEvent {
                execution,
                token: names.token.as_deref(),
                progress: progress.progress,
                total: progress.total,
                percentage: progress.percentage,
                message: progress.message.as_deref(),
                context: progress.context.as_deref(),
            }),
            StreamEvent::End(ended) => {
                events::WireEvent::End(of_end(execution, &ended.end, ended.error.as_deref()))
            }
        }
    }
}
