//! The payload of an execution as it is: all of it or a part, once it has completed. It comes from
//! the ring, or piece by piece from the disk. Until then it is a stream.

use smallvec::SmallVec;

use crate::base::ExecutionId;
use crate::endpoint::{
    Answer, ApiError, BYTES, DeliveryOptions, OutputAsk, PayloadPart, PolicyChoice, StreamBody,
    documents,
};
use crate::engine::{From, Status as ExecutionStatus};
use crate::limits;
use crate::memory::ChunkHeader;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::hub::connection::Doing;
use crate::server::hub::frames::Encoding;
use crate::server::hub::stream::{Followed, Gathered, Purpose, Source, Stream, Window};
use crate::server::streams::attached::Attached;
use crate::server::streams::follow::{StreamHead, attach_connection, begin};
use crate::server::{ServerShard, hub};
use crate::shard::act::read_chunk;
use crate::stream::{Kind, Kinds, Outcome, Policy, Totals};
use crate::wire::http1::Status;

/// Answers with the payload of an execution. The body of a stream is cut if bytes were lost.
pub(in crate::server) fn send_output<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    ask: &OutputAsk,
) -> Answered {
    // The ring may overwrite chunks before the subscription. Without a disk the stream then has a
    // gap, and is cut.
    let status = match shard.inspect(execution) {
        Err(error) => return hub::answer_error(shard, id, &error.into()),
        Ok(status) => status,
    };
    let is_kept = shard.run_of(execution).is_some_and(|run| run.has_history());
    if status.tail_seq > 1 && !is_kept {
        return hub::answer_error(shard, id, &beginning_is_gone(&status));
    }
    let is_complete = status.outcome == Some(Outcome::Completed);
    if is_complete
        && let (payload, true) = held_payload(shard, &status, |header| {
            let is_wanted = |kind: Kind| ask.kinds.contains(kind);
            Kind::new(header.kind).is_some_and(is_wanted)
        })
    {
        return hub::answer(shard, id, &Answer::payload(execution, payload, ask));
    }
    let head = StreamHead::of(Encoding::Output, BYTES);
    if is_complete && is_kept {
        return send_kept(shard, id, execution, ask, head);
    }
    let policy = if is_kept { Policy::Replay } else { Policy::Block };
    let head = StreamHead { headers: &[("accept-ranges", "none")], ..head };
    send_from(shard, id, execution, (policy, ask.kinds), (From::Start, head))
}

/// Answers with the payload of a completed execution from the disk. Its length is known.
fn send_kept<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    ask: &OutputAsk,
    head: StreamHead,
) -> Answered {
    let run = shard.run_of(execution).expect("the caller found it");
    let verdict = shard.engine.verdict(run.handle).expect("it has completed");
    let (wanted, all) = (verdict.totals.of(ask.kinds), verdict.totals.of(Kinds::ALL));
    let line_ends = if run.names.has_parts { wanted.chunks } else { 0 };
    let part = match PayloadPart::of(execution, wanted.bytes + line_ends, ask) {
        Ok(part) => part,
        Err(answer) => return hub::answer(shard, id, &answer),
    };
    if part.bytes.is_empty() {
        return hub::answer(shard, id, &Answer::payload(execution, Vec::new(), ask));
    }
    // Other kinds and line ends are in between, and only the disk's own count is known.
    let place = match wanted == all && line_ends == 0 {
        true => shard.seek_kept(execution, part.bytes.start),
        false => None,
    };
    let (seq, before_bytes) = place.unwrap_or((1, 0));
    let from = from_place((seq, before_bytes));
    let window = Window {
        skip_bytes: part.bytes.start - before_bytes,
        left_bytes: part.bytes.end - part.bytes.start,
    };
    let head = StreamHead { payload: Some(Box::new((part, window))), ..head };
    send_from(shard, id, execution, (Policy::Replay, ask.kinds), (from, head))
}

/// Returns the start of a subscription at a chunk, with the payload bytes before it.
fn from_place((seq, bytes): (u64, u64)) -> From {
    match seq {
        1 => From::Start,
        seq => From::Seq { seq, seen: Some(Totals { chunks: seq - 1, bytes }) },
    }
}

fn send_from<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    (policy, kinds): (Policy, Kinds),
    (from, head): (From, StreamHead),
) -> Answered {
    let delivery_options =
        DeliveryOptions { policy: Some(policy), kinds, ..DeliveryOptions::default() };
    let spec = delivery_options.spec(PolicyChoice::default(), from);
    match attach_connection(shard, execution, spec, id) {
        Err(error) => hub::answer_error(shard, id, &error.into()),
        Ok(subscribed) => {
            let attached = SmallVec::from_iter([(execution, Attached::Here(subscribed))]);
            begin(shard, id, head, attached)
        }
    }
}

/// Gathers the payload of an ended execution from the disk, and answers the request with it.
pub(in crate::server) fn gather_kept<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    status: ExecutionStatus,
    purpose: Purpose,
) -> Answered {
    let delivery_options =
        DeliveryOptions { policy: Some(Policy::Replay), ..DeliveryOptions::default() };
    let execution = status.id;
    // No more than the end is needed.
    let first_byte = status.totals.bytes.saturating_sub(limits::RESULT_KEPT_BYTES_MAX as u64);
    let place = shard.seek_kept(execution, first_byte).unwrap_or((1, 0));
    let spec = delivery_options.spec(PolicyChoice::default(), from_place(place));
    let subscribed = match attach_connection(shard, execution, spec, id) {
        Err(error) => return hub::answer_error(shard, id, &error.into()),
        Ok(subscribed) => subscribed,
    };
    let followed = Attached::Here(subscribed).followed(execution);
    let source = Some(Source::Here(subscribed.subscriber));
    let stream = Stream {
        encoding: Encoding::Output,
        body: StreamBody::None,
        is_combined: false,
        followed: SmallVec::from_iter([Followed { source, ..followed }]),
        open_count: 1,
        cancels: None,
        front: None,
        window: None,
        gathered: Some(Box::new(Gathered::new(status, purpose))),
        reader: None,
    };
    let hub = &mut shard.guests.hub;
    let connection = hub.connection(id).expect("its request is being answered");
    connection.doing = Doing::Stream;
    connection.stream = Some(Box::new(stream));
    hub.set_timer(id, None);
    Answered::Later
}

/// Ends a body of a known length that is complete, although its execution may go on. Returns a
/// payload that was gathered for a run, which the caller begins.
pub(in crate::server) fn end_whole<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) -> Option<Gathered> {
    let connection = shard.guests.hub.writable(id)?;
    let mut stream = connection.stream.take_if(|stream| stream.is_whole())?;
    connection.doing = Doing::Requests;
    let gathered = stream.gathered.take();
    if gathered.is_none() {
        connection.converse(|http, out| http.end_stream(out));
    }
    for followed in &stream.followed {
        if let Some(Source::Here(subscriber)) = followed.source {
            let _ = shard.unsubscribe(subscriber); // It may have just ended.
        }
    }
    let gathered = gathered.map(|gathered| *gathered);
    if let Some(Gathered { purpose: Purpose::Run(_), .. }) = gathered {
        return gathered;
    }
    if let Some(gathered) = gathered {
        let document = documents::result(&gathered.status, gathered.data());
        hub::answer(shard, id, &Answer::json(Status::OK, &document));
    }
    shard.guests.hub.resume_later(id);
    None
}

/// Returns the payload that the ring holds, the oldest chunk first, and true if no chunk is
/// missing. Each part of an agent's run is one line. Chunks that `is_wanted` refuses are left out.
pub(in crate::server) fn held_payload<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    status: &ExecutionStatus,
    is_wanted: impl Fn(ChunkHeader) -> bool,
) -> (Vec<u8>, bool) {
    let mut payload = Vec::new();
    let place = shard.place_of(status.id).slot.index;
    let Some(run) = shard.runs[place as usize].as_ref() else {
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
