//! Streams: a request becomes one or several subscribers, and the reply consists of their events.

use smallvec::SmallVec;

use crate::base::{ExecutionId, SubscriberId};
use crate::endpoint::{
    Answer, ApiError, DeliveryOptions, Follow, FrontOptions, PayloadPart, StreamBody, StreamFormat,
    Surroundings,
};
use crate::engine::{From, SubscribeError, SubscribeSpec, Subscribed};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::guests::{Destination, Guests};
use crate::server::hub::Answered;
use crate::server::hub::connection::{Connection, Doing, Timer, kernel_bytes_for};
use crate::server::hub::frames::Encoding;
use crate::server::hub::stream::{Source, Stream, Window};
use crate::server::peers::join::{Part, Parts};
use crate::server::streams::attached::{AllAttached, Attached};
use crate::server::streams::front::FrontState;
use crate::server::streams::{attached, front};
use crate::server::{ServerShard, executions, hub, peers};
use crate::shard::{Call as SinkCall, Delivery, Ended};
use crate::wire::http1::Status;

/// Answers with a stream, or with an error.
pub(in crate::server) fn follow<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    follow: &Follow,
) -> Answered {
    if let StreamFormat::Front(format) = follow.format {
        return front::follow_front(shard, id, follow, format);
    }
    if follow.executions.iter().any(|(execution, _)| peers::is_apart(shard, *execution)) {
        return peers::begin_joining(shard, id, follow);
    }
    follow_with(shard, id, follow, Parts::new())
}

/// Answers with a stream, after the other shards have sent their parts.
pub(in crate::server) fn follow_with<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    follow: &Follow,
    mut parts: Parts,
) -> Answered {
    look_for_ends(shard, follow, &mut parts);
    // Executes pending actions, which may name subscriber slots that are used next.
    shard.pump();
    let mut attached = AllAttached::new();
    for (at, &(execution, from)) in follow.executions.iter().enumerate() {
        let next = match parts.get_mut(at).and_then(Option::take) {
            Some(Part::Refused(error)) => Err(error),
            Some(Part::SeenToEnd) => Ok(Attached::over(from, follow.delivery_options.kinds)),
            Some(Part::Joined(joined)) => Ok(Attached::There(joined)),
            None => {
                let spec = executions::spec_of(shard, execution, &follow.delivery_options, from);
                let result = attach_connection(shard, execution, spec, id);
                result.map(Attached::Here).map_err(ApiError::from)
            }
        };
        match next {
            Ok(next) => attached.push((execution, next)),
            Err(error) => {
                attached::detach_all_of(shard, attached, parts);
                return hub::answer_error(shard, id, &error);
            }
        }
    }
    if !attached.iter().any(|(_, attached)| attached.is_open()) {
        return hub::answer(shard, id, &Answer::empty(Status::NO_CONTENT));
    }
    let encoding = match follow.format {
        StreamFormat::Sse => Encoding::Sse,
        StreamFormat::Ndjson => Encoding::Ndjson,
        StreamFormat::Front(_) => unreachable!("another function follows it"),
    };
    let head = StreamHead::of(encoding, follow.format.media_type());
    let is_combined = follow.is_combined;
    begin(shard, id, StreamHead { is_combined, ..head }, attached)
}

/// Finds the executions of this shard whose ends a resuming client has received. This precedes
/// all subscriptions, because it executes the engine's actions.
fn look_for_ends<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    follow: &Follow,
    parts: &mut Parts,
) {
    parts.resize_with(follow.executions.len(), || None);
    for (at, (execution, _)) in follow.executions.iter().enumerate() {
        let is_seen = parts[at].is_none() && follow.seen_ends.contains(execution);
        if is_seen && is_over(shard, *execution) {
            parts[at] = Some(Part::SeenToEnd);
        }
    }
}

/// Answers with the stream of a new execution. It waits for its subscriber, unless the request
/// says when it starts.
pub(in crate::server) fn follow_new<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    (format, delivery_options): (StreamFormat, DeliveryOptions),
    front: FrontOptions,
) -> Answered {
    let executions = SmallVec::from_elem((execution, From::Start), 1);
    let (is_combined, seen_ends) = (false, SmallVec::new());
    let follow = Follow { executions, is_combined, seen_ends, format, delivery_options, front };
    self::follow(shard, id, &follow)
}

/// Subscribes a connection. Nothing is delivered before its reply has begun, because no action
/// is executed in between.
pub(in crate::server) fn attach_connection<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    spec: SubscribeSpec,
    id: ConnectionId,
) -> Result<Subscribed, SubscribeError> {
    shard.attach_at_once(execution, spec, Destination::Connection(id))
}

/// Writes the head and the first events of a stream.
pub(in crate::server) fn begin<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    head: StreamHead,
    attached: AllAttached,
) -> Answered {
    let now = shard.now;
    let Guests { hub, peers, access, tally, .. } = &mut shard.guests;
    let around = hub.around(id, (access, tally), now);
    let (retry, beat) = (hub.retry(), hub.first_beat());
    let connection = hub.writable(id).expect("its request is being answered");
    let body = head.begin(connection, &around);
    let StreamHead { encoding, is_combined, front, payload, .. } = head;
    if body == StreamBody::None {
        attached::detach_all_of(shard, attached, Parts::new());
        return Answered::Now;
    }
    let followed = attached.iter().map(|(execution, attached)| attached.followed(*execution));
    let mut stream = Box::new(Stream {
        encoding,
        body,
        is_combined,
        followed: followed.collect(),
        open_count: attached.iter().filter(|(_, attached)| attached.is_open()).count() as u32,
        cancels: None,
        front,
        window: payload.map(|payload| payload.1),
        gathered: None,
        reader: None,
    });
    if encoding == Encoding::Sse {
        connection.write(|out| stream.write_retry(out, retry));
    }
    let mut kernel_bytes = kernel_bytes_for(None);
    for (_, attached) in &attached {
        let Some(agreed) = attached.agreed() else { continue };
        kernel_bytes = kernel_bytes.min(kernel_bytes_for(agreed.replay));
        let (names, tool) = match attached {
            Attached::There(joined) => (&joined.names, joined.tool.as_str()),
            Attached::Over { .. } => unreachable!("it has no terms"),
            Attached::Here(subscribed) => {
                let run = shard.runs[subscribed.execution.index as usize].as_ref();
                let run = run.expect("it was just subscribed to");
                (&run.names, run.tool.as_ref().map_or("", |tool| tool.name.as_str()))
            }
        };
        names.write_started(tool, agreed, |event| {
            connection.write(|out| stream.write_event(out, event, true));
        });
    }
    let takes = connection.takes;
    for (followed, (_, attached)) in stream.followed.iter_mut().zip(attached) {
        followed.source = match attached {
            Attached::There(joined) => Some(peers.remotes_mut().insert(*joined, id)),
            Attached::Here(subscribed) => {
                if !takes {
                    hub.set_demand(subscribed.subscriber, 0);
                }
                Some(Source::Here(subscribed.subscriber))
            }
            Attached::Over { .. } => None,
        };
    }
    if stream.followed.iter().any(|f| matches!(f.source, Some(Source::There(_)))) {
        hub.provide_small_buffer();
    }
    let connection = hub.connection(id).expect("as above");
    connection.doing = Doing::Stream;
    connection.bound_sending(kernel_bytes, &mut shard.reactor);
    connection.stream = Some(stream);
    hub.set_timer(id, Some((Timer::Beat, now + beat)));
    hub::tell_demands(shard);
    Answered::Later
}

/// Notes that an execution is cancelled when the stream of this connection breaks.
pub(in crate::server) fn cancel_with<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
) {
    let hub = &mut shard.guests.hub;
    if let Some(stream) = hub.connection(id).and_then(|connection| connection.stream.as_mut()) {
        stream.cancels = Some(execution);
    }
}

/// Detaches a subscriber. The caller has to name both ids.
pub(in crate::server) fn unfollow<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    subscriber: SubscriberId,
) -> Result<(), ApiError> {
    executions::check_subscriber(shard, execution, subscriber)?;
    let index = subscriber.0.index as usize;
    let followed_by = match shard.sinks.get(index).map(|sink| &sink.call) {
        Some(SinkCall::Guest(Destination::Connection(id))) => Some(*id),
        _ => None,
    };
    let end = shard.unsubscribe(subscriber)?;
    // Without an end its connection would wait for ever.
    if let Some(id) = followed_by {
        let delivery = Delivery::End(Ended { end, error: None });
        let place = shard.place_of(execution).slot.index;
        let run = shard.runs[place as usize].as_ref();
        let hub = &mut shard.guests.hub;
        hub.tell_here(id, subscriber, run, &delivery);
    }
    Ok(())
}

/// The format of a stream.
#[derive(Debug)]
pub(in crate::server) struct StreamHead {
    pub encoding: Encoding,
    pub media_type: &'static str,
    /// The headers besides those of every stream.
    pub headers: &'static [(&'static str, &'static str)],
    /// The headers that depend on the execution.
    pub own_headers: Vec<(&'static str, String)>,
    /// True if the request named executions as a list.
    pub is_combined: bool,
    pub front: Option<Box<FrontState>>,
    /// The part of a payload that the body is, if its length is known.
    pub payload: Option<Box<(PayloadPart, Window)>>,
}

impl StreamHead {
    /// Writes the head of the answer.
    fn begin(&self, connection: &mut Connection, around: &Surroundings<'_>) -> StreamBody {
        let own = self.own_headers.iter().map(|(name, value)| (*name, value.as_str()));
        let headers = self.headers.iter().copied().chain(own);
        connection.converse(|http, out| match &self.payload {
            Some(payload) => http.begin_payload(&payload.0, around, out),
            None => http.begin_stream_with(self.media_type, headers, around, out),
        })
    }

    pub fn of(encoding: Encoding, media_type: &'static str) -> StreamHead {
        StreamHead {
            encoding,
            media_type,
            headers: &[],
            own_headers: Vec::new(),
            is_combined: false,
            front: None,
            payload: None,
        }
    }
}

/// True if an execution publishes nothing more.
pub(in crate::server) fn is_over<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) -> bool {
    shard.inspect(execution).is_ok_and(|status| status.state.is_over())
}
