//! Reads streams: replies with a part of one, replies that wait for more, and events.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::append::look_at_shown;
use super::reader::{Goal, Part, Parts, Reader, Tail};
use super::replies::{Place, Waiting};
use super::rest::make_present;
use super::{Stream, fork, is_gone, refuse, touch, wall_us};
use crate::base::{ExecutionId, Principal};
use crate::endpoint::durable::{BASE64_HEADERS, HEADERS};
use crate::endpoint::{
    Answer, ApiError, BYTES, DeliveryOptions, DurableHeaders, Live, PolicyChoice, ReadAsk,
    ReadFrom, StreamBody,
};
use crate::engine::{From, NotFound, Subscribed};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::hub::frames::Encoding;
use crate::server::hub::stream::{Followed, Source, Stream as HubStream};
use crate::server::peers::join;
use crate::server::streams::attached::Attached;
use crate::server::streams::follow::{StreamHead, attach_connection, begin};
use crate::server::{ServerShard, executions, hub};
use crate::stream::{Policy, Totals};
use crate::wire::durable::{self, Mode, Offset};
use crate::wire::http1::Status;
use crate::wire::sse;

/// A stream, or an execution that is read like one.
struct Readable {
    stream: Option<usize>,
    tail: Rc<Tail>,
    media_type: Box<str>,
    /// The execution whose name is in the entity tags.
    execution: ExecutionId,
    /// The end of what may be read now.
    shown: u64,
    is_closed: bool,
}

impl Readable {
    fn mode(&self) -> Mode {
        Mode::of(&self.media_type)
    }

    /// Returns the headers of a reply that ends at `next`. `is_all` is true at the end.
    fn headers(&self, next: u64, is_all: bool) -> DurableHeaders {
        DurableHeaders::default()
            .with("content-type", self.media_type.clone())
            .with("stream-next-offset", Offset(next).to_string())
            .with_flag("stream-up-to-date", is_all)
            .with_flag("stream-closed", is_all && self.is_closed)
    }

    /// Returns the cursor of a reply that ends at `next`, for a client that waits for more.
    fn cursor(&self, next: u64, live: Option<u64>) -> Option<String> {
        let is_closed = next >= self.shown && self.is_closed;
        live.filter(|_| !is_closed).map(|cursor| cursor.to_string())
    }

    /// Returns the headers that describe it.
    fn properties(&self) -> DurableHeaders {
        DurableHeaders::default()
            .with("content-type", self.media_type.clone())
            .with("stream-next-offset", Offset(self.shown).to_string())
            .with("cache-control", "no-store")
            .with_flag("stream-closed", self.is_closed)
    }

    /// Returns the body of a reply with these messages.
    fn body(&self, mut messages: Vec<u8>) -> Vec<u8> {
        if self.mode() == Mode::Json {
            messages.insert(0, b'[');
            messages.push(b']');
        }
        messages
    }
}

/// Returns a stream as it is now.
fn readable<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) -> Readable {
    let shown = look_at_shown(shard, at);
    let stream = &shard.guests.durable.streams[at];
    let Stream { tail, state, execution, publishing, unconfirmed, .. } = stream;
    let is_ending = publishing.as_ref().is_some_and(|publishing| publishing.closes)
        || unconfirmed.iter().any(|next| next.is_end);
    let is_over = shard.run_of(*execution).is_none_or(|run| run.has_verdict);
    Readable {
        stream: Some(at),
        tail: Rc::clone(tail),
        media_type: state.config.media_type.clone(),
        execution: *execution,
        shown,
        is_closed: state.closed.is_some() && (is_over || !is_ending),
    }
}

/// Answers with a part of a stream, or follows it.
pub(super) fn read<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    at: usize,
    ask: &ReadAsk,
) -> Answered {
    if let Err(error) = make_present(shard, at) {
        return refuse(shard, id, &error);
    }
    touch(shard, at);
    let readable = readable(shard, at);
    let parts = |shard: &ServerShard<R>, position| shard.guests.durable.parts_from(at, position);
    read_from(shard, id, readable, (ask, None), parts)
}

/// Answers with a part of the output of an execution, or follows it.
pub(super) fn read_execution<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    ask: &ReadAsk,
    principal: Principal,
) -> Answered {
    match readable_execution(shard, execution, principal) {
        Err(error) => refuse(shard, id, &error),
        Ok(readable) => read_from(shard, id, readable, (ask, Some(principal)), |_, _| {
            Parts::from_iter([Part { execution, origin: 0, until: u64::MAX }])
        }),
    }
}

fn readable_execution<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    principal: Principal,
) -> Result<Readable, ApiError> {
    if !executions::is_owned(shard, execution, principal) {
        return Err(NotFound.into());
    }
    let status = shard.inspect(execution)?;
    let tail = Rc::new(Tail::default());
    tail.position.set(status.totals.bytes);
    tail.shown.set(u64::MAX); // No crash cuts off what its readers are given.
    tail.is_closed.set(status.state.is_over());
    let stream = shard.guests.durable.by_execution.get(&execution).copied();
    let media_type = match stream {
        Some(at) => shard.guests.durable.streams[at].state.config.media_type.clone(),
        None => BYTES.into(),
    };
    let is_closed = status.state.is_over();
    let shown = status.totals.bytes;
    Ok(Readable { stream: None, tail, media_type, execution, shown, is_closed })
}

fn read_from<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    readable: Readable,
    (ask, principal): (&ReadAsk, Option<Principal>),
    parts: impl Fn(&ServerShard<R>, u64) -> Parts,
) -> Answered {
    let position = match ask.from {
        ReadFrom::Start => 0,
        ReadFrom::Now => readable.shown,
        ReadFrom::At(Offset(position)) => position,
    };
    if position > readable.tail.position.get() {
        let text = "offset: the stream is not that long";
        let error = ApiError::new(Status::BAD_REQUEST, "invalid_parameter", text);
        return refuse(shard, id, &error.field("offset"));
    }
    let cursor = durable::cursor(wall_us(shard), ask.cursor, shard.guests.hub.draw());
    let is_at_end = position >= readable.shown;
    let goal = match ask.live {
        Some(Live::Sse) => Goal::Events { says_closed: false },
        Some(Live::LongPoll) if is_at_end && readable.is_closed => {
            let headers = readable.headers(position, true).with("cache-control", "no-store");
            let answer = Answer::durable(Status::NO_CONTENT, headers, Vec::new());
            return hub::answer(shard, id, &answer);
        }
        None if is_at_end => return answer_empty(shard, id, &readable, ask, position),
        live => {
            let is_live = live.is_some();
            let until = if is_at_end { position + 1 } else { readable.shown };
            Goal::Reply { start: position, until, is_live }
        }
    };
    let place = Place { stream: readable.stream, execution: readable.execution, start: position };
    let is_shared = ask.live != Some(Live::Sse) && !is_at_end;
    let mut may_lead = is_shared;
    if is_shared {
        let replies = &mut shard.guests.durable.replies;
        if let Some(reply) = replies.find(&place, readable.shown).cloned() {
            let live = ask.live.map(|_| cursor);
            let answer =
                answer_with(&readable, (position, reply.end), live, &ask.known, reply.body);
            return hub::answer(shard, id, &answer);
        }
        may_lead = !replies.is_read(&place);
        if !may_lead && replies.may_wait(ask) {
            replies.wait(&place, Waiting { id, ask: ask.clone(), principal });
            return hub::wait(shard, id);
        }
    }
    let parts = parts(shard, position);
    if parts.last().is_none_or(|part| part.origin > position) {
        return refuse(shard, id, &is_lost()); // The source was kept no longer.
    }
    let stream = (readable.stream, Rc::clone(&readable.tail));
    let mut reader = Reader::new(stream, readable.mode(), position, parts, goal);
    reader.cursor = cursor;
    match ask.live {
        Some(Live::Sse) => follow(shard, id, reader, &readable),
        live => {
            reader.known.clone_from(&ask.known);
            gather(shard, id, reader, live.is_some(), may_lead.then_some(place))
        }
    }
}

/// Answers a client that has everything.
fn answer_empty<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    readable: &Readable,
    ask: &ReadAsk,
    position: u64,
) -> Answered {
    let headers = readable.headers(position, true);
    let tag = etag(readable.execution, position, position, readable.is_closed);
    let answer = match ask.from {
        ReadFrom::Now => {
            let headers = headers.with("cache-control", "no-store");
            Answer::durable(Status::OK, headers, readable.body(Vec::new()))
        }
        _ if is_known(&ask.known, &tag) => not_modified(headers, tag),
        _ => {
            let headers = headers.with("cache-control", "no-cache").with("etag", tag);
            Answer::durable(Status::OK, headers, readable.body(Vec::new()))
        }
    };
    hub::answer(shard, id, &answer)
}

fn not_modified(headers: DurableHeaders, tag: String) -> Answer {
    let headers = headers.with("cache-control", "no-cache").with("etag", tag);
    Answer::durable(Status::NOT_MODIFIED, headers, Vec::new())
}

fn etag(execution: ExecutionId, start: u64, end: u64, is_closed: bool) -> String {
    let closed = if is_closed { ":c" } else { "" };
    format!("\"{execution}:{start}:{end}{closed}\"")
}

fn is_known(known: &[Box<str>], tag: &str) -> bool {
    known.iter().any(|known| &**known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

/// Subscribes a connection to the present part of a reader.
fn attach<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    reader: &Reader,
) -> Result<(ExecutionId, Subscribed), ApiError> {
    let part = *reader.parts.last().expect("a reader has a part");
    let execution = part.execution;
    if let Some(&at) = shard.guests.durable.by_execution.get(&execution) {
        make_present(shard, at)?;
    }
    let status = match shard.inspect(execution) {
        // It has ended and was recalled, and another execution has taken its place.
        Err(NotFound) if shard.keeps(execution) => return Err(join::busy()),
        status => status?,
    };
    let byte = reader.position - part.origin;
    let from = match byte {
        0 => From::Start,
        byte if byte >= status.totals.bytes => {
            let seen = Some(Totals { chunks: status.head_seq, ..status.totals });
            From::Seq { seq: status.head_seq + 1, seen }
        }
        byte => match shard.seek_kept(execution, byte) {
            None | Some((1, _)) => From::Start,
            Some((seq, bytes)) => From::Seq { seq, seen: Some(Totals { chunks: seq - 1, bytes }) },
        },
    };
    let options = DeliveryOptions { policy: Some(Policy::Replay), ..DeliveryOptions::default() };
    let spec = options.spec(PolicyChoice::default(), from);
    Ok((execution, attach_connection(shard, execution, spec, id)?))
}

/// Answers with events.
fn follow<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    mut reader: Reader,
    readable: &Readable,
) -> Answered {
    // Executes pending actions, which may name subscriber slots that are used next.
    shard.pump();
    let (execution, subscribed) = match attach(shard, id, &reader) {
        Ok(attached) => attached,
        Err(error) => return refuse(shard, id, &error),
    };
    let headers = match reader.mode {
        Mode::Bytes => BASE64_HEADERS,
        Mode::Text | Mode::Json => HEADERS,
    };
    let head = StreamHead { headers, ..StreamHead::of(Encoding::Durable, sse::MEDIA_TYPE) };
    let attached = SmallVec::from_iter([(execution, Attached::Here(subscribed))]);
    let answered = begin(shard, id, head, attached);
    let hub = &mut shard.guests.hub;
    let Some(connection) = hub.writable(id) else { return answered };
    let Some(mut stream) = connection.stream.take() else { return answered };
    if reader.position >= readable.shown {
        let body = stream.body;
        connection.write(|out| reader.write_position(body, out));
    }
    stream.reader = Some(Box::new(reader));
    connection.stream = Some(stream);
    answered
}

/// Makes a connection wait for a reply with what is there, or with what comes next. Others may wait
/// for a reply from `place`.
pub(super) fn gather<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    mut reader: Reader,
    is_live: bool,
    place: Option<Place>,
) -> Answered {
    shard.pump();
    let (execution, subscribed) = match attach(shard, id, &reader) {
        Ok(attached) => attached,
        Err(error) => return refuse(shard, id, &error),
    };
    let connection = shard.guests.hub.connection(id).expect("its request is being answered");
    // Others must not wait for a client that does not read its last reply.
    if let Some(place) = place
        && connection.takes
        && !connection.has_pieces()
    {
        reader.lead = Some(shard.guests.durable.replies.lead(place));
    }
    let stream = HubStream {
        encoding: Encoding::Durable,
        body: StreamBody::None,
        is_combined: false,
        followed: SmallVec::from_iter([followed(execution, subscribed)]),
        open_count: 1,
        cancels: None,
        front: None,
        window: None,
        gathered: None,
        reader: Some(Box::new(reader)),
    };
    let until = is_live.then(|| (Timer::Poll, shard.now + limits::DURABLE_POLL));
    let hub = &mut shard.guests.hub;
    let connection = hub.connection(id).expect("its request is being answered");
    connection.doing = Doing::Stream;
    connection.stream = Some(Box::new(stream));
    hub.set_timer(id, until);
    Answered::Later
}

fn followed(execution: ExecutionId, subscribed: Subscribed) -> Followed {
    let source = Some(Source::Here(subscribed.subscriber));
    Followed { source, ..Attached::Here(subscribed).followed(execution) }
}

/// Goes on with a reader that has read its part, or answers with what it has.
pub(in crate::server) fn go_on<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) {
    let Some(connection) = shard.guests.hub.connection(id) else { return };
    let Some(mut stream) = connection.stream.take_if(|stream| stream.is_whole()) else { return };
    let reader = stream.reader.as_deref_mut().expect("the caller has looked");
    if reader.is_lost && !reader.has_reply() {
        return cut(shard, id, &stream);
    }
    if !reader.is_lost && !reader.is_reply_whole() && reader.is_at_border() {
        detach(shard, &stream);
        let reader = stream.reader.as_deref_mut().expect("as above");
        reader.parts.pop();
        match attach(shard, id, reader) {
            Ok((execution, subscribed)) => {
                stream.followed = SmallVec::from_iter([followed(execution, subscribed)]);
                stream.open_count = 1;
                let connection = shard.guests.hub.connection(id).expect("it was just there");
                connection.stream = Some(stream);
                shard.pump();
                return;
            }
            Err(_) if !reader.has_reply() => return cut(shard, id, &stream),
            Err(_) => {}
        }
    }
    answer(shard, id, stream);
}

/// Ends a stream of events in the middle. Its client comes again, and is told why.
fn cut<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId, stream: &HubStream) {
    detach(shard, stream);
    let connection = shard.guests.hub.writable(id).expect("the caller has found it");
    (connection.is_last, connection.is_aborted) = (true, true);
}

/// Answers a long poll for which nothing has come.
pub(in crate::server) fn answer_late<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    let Some(connection) = shard.guests.hub.connection(id) else { return };
    if let Some(stream) = connection.stream.take_if(|stream| stream.reader.is_some()) {
        answer(shard, id, stream);
    }
}

pub(super) fn detach<R: Reactor + 'static>(shard: &mut ServerShard<R>, stream: &HubStream) {
    for followed in &stream.followed {
        if let Some(Source::Here(subscriber)) = followed.source {
            let _ = shard.unsubscribe(subscriber); // It may have just ended.
        }
    }
}

/// Answers with what a reader has.
fn answer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    mut stream: Box<HubStream>,
) {
    let mut reader = stream.reader.take().expect("the caller has looked");
    if let Some(forking) = reader.forking.take() {
        return fork::go_on(shard, id, &stream, &reader, *forking);
    }
    let execution = reader.parts.first().expect("a reader has a part").execution;
    let answer = reply(shard, *reader, execution);
    stop_waiting(shard, id);
    hub::answer(shard, id, &answer);
    detach(shard, &stream);
    shard.guests.hub.resume_later(id);
}

/// True if a connection still waits for its request to be carried out. It waits no longer.
pub(super) fn has_waited<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) -> bool {
    let connection = shard.guests.hub.connection(id);
    let waits = connection.is_some_and(|connection| matches!(connection.doing, Doing::Elsewhere));
    if waits {
        stop_waiting(shard, id);
    }
    waits
}

/// Makes a connection take an answer that has waited for a reader.
pub(super) fn stop_waiting<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) {
    let hub = &mut shard.guests.hub;
    hub.connection(id).expect("the caller has found it").doing = Doing::Requests;
    hub.set_timer(id, None);
}

fn reply<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    mut reader: Reader,
    execution: ExecutionId,
) -> Answer {
    let Goal::Reply { start, is_live, .. } = reader.goal else {
        unreachable!("only a reply is answered so")
    };
    let found = match reader.stream {
        Some(at) => {
            let stream = shard.guests.durable.streams.get(at);
            let is_there = stream.is_some_and(|stream| stream.execution == execution);
            is_there.then(|| readable(shard, at))
        }
        None => {
            let owner = shard.run_of(execution).map(|run| run.guest.owner);
            owner.and_then(|owner| readable_execution(shard, execution, owner).ok())
        }
    };
    let Some(found) = found else {
        return crate::endpoint::durable::answer_refused(&NotFound.into());
    };
    if reader.is_lost && reader.position == start {
        return crate::endpoint::durable::answer_refused(&is_lost());
    }
    let (next, messages) = (reader.position, reader.whole());
    let live = is_live.then_some(reader.cursor);
    if messages.is_empty() && is_live {
        let headers = found.headers(next, next >= found.shown);
        let headers = headers.with_some("stream-cursor", found.cursor(next, live));
        let headers = headers.with("cache-control", "no-store");
        return Answer::durable(Status::NO_CONTENT, headers, Vec::new());
    }
    let body = Arc::new(found.body(messages));
    let place = Place { stream: reader.stream, execution, start };
    shard.guests.durable.replies.note(place, next, &body);
    answer_with(&found, (start, next), live, &reader.known, body)
}

/// Returns an answer with a part of a stream. `live` is the cursor of a long poll.
fn answer_with(
    readable: &Readable,
    (start, next): (u64, u64),
    live: Option<u64>,
    known: &[Box<str>],
    body: Arc<Vec<u8>>,
) -> Answer {
    let is_all = next >= readable.shown;
    let headers = readable.headers(next, is_all);
    let headers = headers.with_some("stream-cursor", readable.cursor(next, live));
    let tag = etag(readable.execution, start, next, is_all && readable.is_closed);
    if is_known(known, &tag) {
        return not_modified(headers, tag);
    }
    let caching =
        if is_all { "no-cache" } else { "private, max-age=60, stale-while-revalidate=300" };
    let headers = headers.with("cache-control", caching).with("etag", tag);
    Answer::durable_shared(headers, body)
}

/// Goes on with the requests whose reply another reader was to read.
pub(super) fn settle<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    while let Some((place, all)) = shard.guests.durable.replies.take_ended() {
        for Waiting { id, ask, principal } in all {
            if !has_waited(shard, id) {
                continue; // It is closing, or gone.
            }
            if read_again(shard, id, place, &ask, principal).is_now() {
                shard.guests.hub.resume_later(id);
            }
        }
    }
}

fn read_again<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    place: Place,
    ask: &ReadAsk,
    principal: Option<Principal>,
) -> Answered {
    if let Some(principal) = principal {
        return read_execution(shard, id, place.execution, ask, principal);
    }
    let at = place.stream.expect("it is a stream otherwise");
    match shard.guests.durable.streams.get(at) {
        Some(stream) if stream.execution == place.execution && !stream.state.is_gone => {
            read(shard, id, at, ask)
        }
        Some(stream) if stream.execution == place.execution => refuse(shard, id, &is_gone()),
        _ => refuse(shard, id, &NotFound.into()),
    }
}

/// Returns the error for a position that is not on disk any more.
pub(super) fn is_lost() -> ApiError {
    let text = "offset: the disk does not have the stream from there any more";
    ApiError::new(Status::GONE, "no_longer_held", text).field("offset")
}

/// Answers with the properties of a stream.
pub(super) fn describe<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    at: usize,
) -> Answered {
    let readable = readable(shard, at);
    let config = &shard.guests.durable.streams[at].state.config;
    let headers = readable
        .properties()
        .with_some("stream-ttl", config.ttl_s.map(|ttl_s| ttl_s.to_string()))
        .with_some("stream-expires-at", config.expires_us.map(crate::trace::rfc3339));
    hub::answer(shard, id, &Answer::durable(Status::OK, headers, Vec::new()))
}

/// Answers with the properties of an execution that is read like a stream.
pub(super) fn describe_execution<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    principal: Principal,
) -> Answered {
    match readable_execution(shard, execution, principal) {
        Err(error) => refuse(shard, id, &error),
        Ok(readable) => {
            let headers = readable.properties();
            hub::answer(shard, id, &Answer::durable(Status::OK, headers, Vec::new()))
        }
    }
}
