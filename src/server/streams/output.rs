//! The payload of an execution as it is: all that its ring holds, or a part of it, once it has
//! completed. Until then it is a stream.

use smallvec::SmallVec;

use crate::base::ExecutionId;
use crate::endpoint::{Answer, ApiError, BYTES, DeliveryOptions, OutputAsk, PolicyChoice};
use crate::engine::{From, Status as ExecutionStatus};
use crate::memory::ChunkHeader;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::hub::frames::Encoding;
use crate::server::streams::attached::Attached;
use crate::server::streams::follow::{StreamHead, attach_connection, begin};
use crate::server::{ServerShard, hub};
use crate::shard::act::read_chunk;
use crate::stream::{Kind, Outcome, Policy};
use crate::wire::http1::Status;

/// Answers with the payload of an execution. The body of a stream is cut if bytes were lost.
pub(in crate::server) fn send_output<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    ask: &OutputAsk,
) -> Answered {
    // The ring may overwrite chunks before the subscription. The stream then has a gap, and is
    // cut.
    let status = match shard.inspect(execution) {
        Err(error) => return hub::answer_error(shard, id, &error.into()),
        Ok(status) => status,
    };
    if status.tail_seq > 1 {
        return hub::answer_error(shard, id, &beginning_is_gone(&status));
    }
    if status.outcome == Some(Outcome::Completed)
        && let (payload, true) = held_payload(shard, &status, |header| {
            let is_wanted = |kind: Kind| ask.kinds.contains(kind);
            Kind::new(header.kind).is_some_and(is_wanted)
        })
    {
        return hub::answer(shard, id, &Answer::payload(execution, payload, ask));
    }
    let delivery_options = DeliveryOptions {
        policy: Some(Policy::Block),
        kinds: ask.kinds,
        ..DeliveryOptions::default()
    };
    let spec = delivery_options.spec(PolicyChoice::default(), From::Start);
    match attach_connection(shard, execution, spec, id) {
        Err(error) => hub::answer_error(shard, id, &error.into()),
        Ok(subscribed) => {
            let attached = SmallVec::from_iter([(execution, Attached::Here(subscribed))]);
            let head = StreamHead::of(Encoding::Output, BYTES);
            begin(shard, id, StreamHead { headers: &[("accept-ranges", "none")], ..head }, attached)
        }
    }
}

/// Returns the payload that the ring holds, the oldest chunk first, and true if no chunk is
/// missing. Each part of an agent's run is one line. Chunks that `is_wanted` refuses are left out.
pub(in crate::server) fn held_payload<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    status: &ExecutionStatus,
    is_wanted: impl Fn(ChunkHeader) -> bool,
) -> (Vec<u8>, bool) {
    let mut payload = Vec::new();
    let Some(run) = shard.runs[status.id.slot.index as usize].as_ref() else {
        return (payload, status.head_seq == 0);
    };
    let mut is_whole = status.tail_seq <= 1;
    for seq in status.tail_seq.max(1)..=status.head_seq {
        let Ok((descriptor, data)) = read_chunk(run, seq, &mut shard.scratch) else {
            is_whole = false;
            continue;
        };
        if is_wanted(descriptor.header) {
            payload.extend_from_slice(data);
            if run.names.has_parts {
                payload.push(b'\n');
            }
        }
    }
    (payload, is_whole)
}

/// Returns the error for an execution whose ring no longer holds its first chunk.
fn beginning_is_gone(status: &ExecutionStatus) -> ApiError {
    let (id, oldest) = (status.id, status.tail_seq);
    let text = format!(
        "the ring no longer holds the chunks before {oldest}; read \
         /v1/executions/{id}/events?from={oldest}, or /v1/executions/{id}/result at its end"
    );
    ApiError::new(Status::GONE, "no_longer_held", text).limit(oldest)
}
