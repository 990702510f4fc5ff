//! The object of a run, from what its ring holds.

use serde_json::Value;

use crate::base::ExecutionId;
use crate::endpoint::front::{Channels, Front, FrontFormat, FrontItem};
use crate::endpoint::{DeliveryOptions, FrontOptions, StreamFormat};
use crate::engine::Status as ExecutionStatus;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::{ServerShard, streams};
use crate::stream::{ExecutionState, Kinds};
use crate::wire::events::{EndEvent, EndState};

/// Returns the object of a run, in a format that is a document.
pub(super) fn document<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    status: &ExecutionStatus,
    format: FrontFormat,
) -> Value {
    let front = streams::front_of(shard, status.id, format, &Channels::default());
    document_of(shard, status, front)
}

/// Does the same with this writer.
pub(super) fn document_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    status: &ExecutionStatus,
    mut front: Front,
) -> Value {
    let (mut out, until_seq) = (Vec::new(), status.head_seq + 1);
    streams::give_held(shard, status, until_seq, Kinds::ALL, |item| front.write(item, &mut out));
    let state = match status.state {
        ExecutionState::Queued => "queued",
        ExecutionState::Running | ExecutionState::Draining => "in_progress",
        ExecutionState::Ended(_) => {
            front.write(FrontItem::End(&end_of(status)), &mut out);
            "failed" // Each end has an object.
        }
    };
    serde_json::from_slice(&out).unwrap_or_else(|_| front.document(state))
}

/// True if the run is over, and only the disk has its beginning.
pub(super) fn is_on_disk<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    status: &ExecutionStatus,
) -> bool {
    let has_history = || shard.run_of(status.id).is_some_and(|run| run.has_history());
    status.state.is_over() && status.tail_seq > 1 && has_history()
}

/// Follows a run from its beginning in this format.
pub(super) fn follow<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    (format, action): (FrontFormat, FrontOptions),
) -> Answered {
    let stream = (StreamFormat::Front(format), DeliveryOptions::default());
    streams::follow_new(shard, id, execution, stream, action)
}

/// Returns the end of an execution, as its followers are told.
fn end_of(status: &ExecutionStatus) -> EndEvent<'_> {
    EndEvent {
        execution: "",
        state: EndState::Ended(status.state.name()),
        chunks: 0,
        bytes: 0,
        missed_chunks: 0,
        missed_bytes: 0,
        execution_chunks: status.totals.chunks,
        execution_bytes: status.totals.bytes,
        duration_us: 0,
        exit: status.exit,
        error: status.error.as_deref(),
    }
}
