//! The door: connections of processes of this machine that share memory with the server.
//!
//! A connection there can make every request, and two more: to read the ring of an execution, and
//! to write one. The descriptors of a grant go with the first bytes of the reply. The reply then
//! stays open as a *line*. Its end proves that the other process is gone. Received bytes are
//! knocks: any of them ask the server to look. Sent bytes are a line of JSON now and then, or a
//! single newline that wakes a process which sleeps on the connection.
//!
//! Invariant L1: every connection that is a line has exactly one entry in its execution, or none if
//! that is gone. The entry is a reader with a signal slot, or the producer.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::{ExecutionId, Guarded, Handle, Principal, SubscriberId};
use crate::endpoint::{
    ApiError, Produce, ProduceGrant, ReadDoor, ReadGrant, StreamBody, documents,
};
use crate::engine::{
    Event, NotFound, Reply, SubscribeError, SubscribeSpec, Subscribed, SubscriberPlace, Verdict,
};
use crate::limits;
use crate::memory::{ControlFile, Geometry, ProducerRing, ReaderPageFile, WildCursor};
use crate::reactor::{ConnectionId, Peer, Reactor};
use crate::server::executions::{options_of, refusal};
use crate::server::hub::connection::{Connection, Doing, Timer};
use crate::server::hub::{Answered, Hub};
use crate::server::shm::{
    Behind, Door, OutsideProducer, Place as DoorPlace, WakeList, producer, purchase, reads, relay,
    taking,
};
use crate::server::{ServerShard, executions, hub, records};
use crate::shard::run::{Producer, Remote, Seat};
use crate::shard::{ExecuteError, ExecuteOptions};
use crate::stream::DetachReason;
use crate::tool::{Need, Prepared, ToolSpec, Work};
use crate::trace::{Level, TraceContext};
use crate::wire::http1::{Status, begin_chunk, end_chunk};
use crate::wire::{ndjson, write_json};

/// The grant that turns a connection into a line.
#[derive(Debug)]
pub(in crate::server) struct Line {
    pub execution: ExecutionId,
    pub side: Side,
    body: StreamBody,
    /// True if the last message was sent.
    is_over: bool,
}

/// The process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Side {
    Reader { subscriber: SubscriberId, slot: u32 },
    OutsideProducer,
}

/// Descriptors that go with the first byte that is sent.
pub(in crate::server) type Descriptors = SmallVec<[OwnedFd; 3]>;

/// The reason why a process gets no more messages.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) enum LastWord<'a> {
    /// The subscriber was detached.
    Detached(DetachReason),
    /// The execution has ended.
    Ended(&'a Verdict),
}

/// A grant that was not sent yet.
pub(in crate::server) struct Grant {
    line: Line,
    document: serde_json::Value,
    descriptors: Descriptors,
}

impl LastWord<'_> {
    fn document(&self) -> serde_json::Value {
        match self {
            LastWord::Detached(reason) => documents::door_detached(*reason),
            LastWord::Ended(verdict) => {
                documents::door_ended(verdict.outcome, verdict.error.as_deref(), verdict.exit)
            }
        }
    }
}

impl Line {
    fn write(&self, connection: &mut Connection, document: &serde_json::Value) {
        connection.write(|out| {
            let open = (self.body == StreamBody::Chunked).then(|| begin_chunk(out));
            write_json(out, document);
            out.push(b'\n');
            if let Some(open) = open {
                end_chunk(out, open);
            }
        });
    }

    fn write_look(&self, connection: &mut Connection) {
        connection.write(|out| {
            let open = (self.body == StreamBody::Chunked).then(|| begin_chunk(out));
            out.push(b'\n');
            if let Some(open) = open {
                end_chunk(out, open);
            }
        });
    }
}

/// Returns the run of a producer whose ring is of this class. Its private ring is as large as that,
/// as far as private rings go, and takes the same chunks.
pub(in crate::server) fn of_producer(
    name: &str,
    class_bytes: u32,
    estimated_bytes: Option<u64>,
) -> Prepared {
    let spec = ToolSpec::new(name, "A producer in another process.");
    let need = Need {
        ring_bytes: class_bytes.min(limits::RING_CLASS_BYTES_MAX),
        chunk_bytes: Geometry::of_class(class_bytes).length_max(),
        estimated_bytes,
    };
    Prepared {
        timeouts: spec.timeouts,
        progress: spec.progress,
        tool: Some(Arc::new(spec)),
        work: Guarded::new(Work::Feed),
        need,
        trace: TraceContext::default(),
    }
}

/// True if a client may connect at the door: a process of the server's own user or of root.
pub(in crate::server) fn is_of_house(peer: &Peer) -> bool {
    let own = rustix::process::geteuid().as_raw();
    matches!(peer, Peer::Unix { uid, .. } if *uid == own || *uid == 0)
}

/// Sends a message on a line, if its last message was not sent yet.
fn tell_line(hub: &mut Hub, id: ConnectionId, document: &serde_json::Value) {
    let Some(connection) = hub.writable(id) else { return };
    let Some(line) = connection.line.take() else { return };
    if !line.is_over {
        line.write(connection, document);
    }
    connection.line = Some(line);
}

/// Wakes processes that sleep on their connections. A process with output left to read does not
/// sleep for long.
pub(in crate::server) fn wake_lines(hub: &mut Hub) {
    let looks = Rc::clone(hub.looks());
    for id in looks.borrow_mut().drain(..) {
        let is_quiet = hub.connection(id).is_some_and(|c| c.line.is_some() && !c.has_pieces());
        if is_quiet && let Some(connection) = hub.writable(id) {
            let line = connection.line.take().expect("it was just there");
            if !line.is_over {
                line.write_look(connection);
            }
            connection.line = Some(line);
        }
    }
}

/// Checks L1 on the side of the connection. For tests.
///
/// # Panics
/// If it does not hold.
pub(in crate::server) fn audit_lines(hub: &Hub) {
    for connection in hub.connections() {
        let is_line = matches!(connection.doing, Doing::Door);
        assert!(!is_line || connection.line.is_some()); // L1
        assert!(connection.descriptors.is_none() || connection.line.is_some());
    }
}
/// Refuses a request that is allowed at the door only. Returns true if it was refused.
fn is_elsewhere<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) -> bool {
    let connection = shard.guests.hub.connection(id);
    if connection.is_some_and(|connection| connection.is_at_door) {
        return false;
    }
    let text = "memory is shared only at the server's door, a Unix socket: see --door";
    let error = ApiError::new(Status::FORBIDDEN, "not_at_the_door", text);
    hub::answer_error(shard, id, &error).is_now()
}

/// Lets another process read a ring. Its line begins, or the request is refused.
pub(in crate::server) fn read_at_door<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    door: &ReadDoor,
) -> Answered {
    if is_elsewhere(shard, id) {
        return Answered::Now;
    }
    let granted = match purchase::awaits_relay(shard, id, door) {
        Ok(true) => return Answered::Later,
        Ok(false) => grant_reader(shard, id, door),
        Err(error) => Err(error),
    };
    if granted.is_err() {
        relay::close_idle_door_of(shard, door.execution);
    }
    match granted {
        Ok(grant) => begin_line(shard, id, grant),
        Err(error) => refuse_at_door(shard, id, &error),
    }
}

/// Lets another process write a ring. Returns the same as [`Shard::read_at_door`].
pub(in crate::server) fn produce_at_door<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    produce: Produce,
    owner: Principal,
) -> Answered {
    if is_elsewhere(shard, id) {
        return Answered::Now;
    }
    match purchase::await_ring(shard, id, produce, owner) {
        Ok(()) => Answered::Later,
        Err(error) => refuse_at_door(shard, id, &error),
    }
}

pub(in crate::server) fn refuse_at_door<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    error: &ApiError,
) -> Answered {
    shard.counters.doors_refused += 1;
    hub::answer_error(shard, id, error)
}

pub(in crate::server) fn looks<R: Reactor + 'static>(shard: &ServerShard<R>) -> WakeList {
    match shard.guests.hub.is_open() {
        true => Rc::clone(shard.guests.hub.looks()),
        false => WakeList::default(), // Without a connection nobody sleeps on one.
    }
}

pub(in crate::server) fn grant_reader<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    asked: &ReadDoor,
) -> Result<Grant, ApiError> {
    let execution = asked.execution;
    let shared = share_with_reader(shard, execution)?;
    let spec = executions::spec_of(shard, execution, &asked.delivery_options, asked.from);
    let subscribed = subscribe_at_door(shard, execution, spec)?;
    let (grant, descriptors) = seat_reader(shard, id, &subscribed, shared)?;
    let tool = executions::tool_name(shard, execution);
    let names = &shard.run_mut(subscribed.execution).names;
    let document = documents::granted(grant.to_json(), &tool, names.token.as_deref());
    let side = Side::Reader { subscriber: grant.subscriber, slot: grant.slot };
    let line = Line { execution, side, body: StreamBody::Chunked, is_over: false };
    Ok(Grant { line, document, descriptors })
}

/// Returns the place of an execution. A replica is in another place than its id says. A line may
/// last longer than it.
pub(in crate::server) fn index_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execution: ExecutionId,
) -> Option<u32> {
    shard.run_of(execution).map(|run| run.handle.index)
}

/// Returns descriptors of the ring and the control page of an execution, for one more reader.
pub(in crate::server) fn share_with_reader<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) -> Result<[OwnedFd; 2], ApiError> {
    let Some(index) = index_of(shard, execution) else { return Err(NotFound.into()) };
    producer::take_over_producer(shard, index);
    shard.ingest(index); // The reader may see more than the engine was told.
    shard.pump();
    taking::look_back_for_reader(shard, index);
    let run = shard.runs[index as usize].as_ref().filter(|run| run.id == execution);
    let Some(run) = run else { return Err(NotFound.into()) };
    let Some(door) = &run.guest.door else { return Err(relay::queued()) };
    let no_memory = |error: std::io::Error| relay::no_memory(run.ring_bytes, &error);
    let ring = door.ring_descriptor().ok_or_else(not_yet)?.map_err(no_memory)?;
    let control = door.control.descriptor().try_clone_to_owned().map_err(no_memory)?;
    Ok([ring, control])
}

pub(in crate::server) fn subscribe_at_door<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    spec: SubscribeSpec,
) -> Result<Subscribed, SubscribeError> {
    let place = SubscriberPlace::Remote;
    let spec = SubscribeSpec { place, replays: false, reads_disk: false, ..spec };
    let execution = shard.place_of(execution);
    let Reply::Subscribed(result) = shard.ask(Event::Subscribe(execution, spec)) else {
        unreachable!("the answer fits the question");
    };
    result
}

/// Gives a new subscriber a slot and a page. Returns its grant and the memory that it has to
/// map.
pub(in crate::server) fn seat_reader<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    subscribed: &Subscribed,
    [ring, control]: [OwnedFd; 2],
) -> Result<(ReadGrant, Descriptors), ApiError> {
    let (slot, page) = take_seat(shard, id, subscribed).inspect_err(|_| {
        shard.tell(Event::ReaderGone(subscribed.subscriber));
        shard.pump();
    })?;
    let own_clocks = shard.anchor;
    let run = shard.run_mut(subscribed.execution);
    let anchor = run.ring_clocks().unwrap_or(own_clocks);
    let grant = ReadGrant {
        execution: run.id,
        subscriber: subscribed.subscriber,
        terms: subscribed.terms,
        cursor: subscribed.cursor,
        slot,
        wall_us: anchor.wall_us,
        mono_ns: anchor.mono_ns,
    };
    Ok((grant, SmallVec::from_iter([ring, control, page])))
}

/// Gives a new subscriber its slot and its page.
fn take_seat<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    connection: ConnectionId,
    subscribed: &Subscribed,
) -> Result<(u32, OwnedFd), ApiError> {
    let cursor = subscribed.cursor.next_seq;
    let run = shard.run_mut(subscribed.execution);
    let window_bytes = run.ring_bytes;
    let no_memory = |error: std::io::Error| relay::no_memory(window_bytes, &error);
    let file = ReaderPageFile::create(cursor).map_err(no_memory)?;
    let descriptor = file.descriptor().try_clone_to_owned().map_err(no_memory)?;
    let door = run.guest.door.as_mut().expect("the caller has opened it");
    let (number, slot) = door.take_slot().ok_or_else(too_many_readers)?;
    let seat = door.seat(connection, slot, file, subscribed);
    let seat = Seat::Process(Box::new(seat));
    run.remotes.push(Remote { subscriber: subscribed.subscriber, seat });
    run.count_direct_readers();
    shard.pump();
    Ok((number, descriptor))
}

/// Opens an execution whose chunks another process writes into this ring.
pub(in crate::server) fn grant_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    produce: Produce,
    owner: Principal,
    (ring, place): (ProducerRing, DoorPlace),
) -> Result<Grant, ApiError> {
    let Produce { name, estimated_bytes, opening, .. } = produce;
    let class_bytes = ring.reader().geometry().window_bytes() as u32;
    let no_memory = |error: std::io::Error| relay::no_memory(class_bytes, &error);
    let (door, descriptors) = door_of_producer(shard, id, ring, place).map_err(no_memory)?;
    let (options, policy) = options_of(opening, owner);
    let prepared = of_producer(&name, class_bytes, estimated_bytes);
    let execution = open_for_producer(shard, prepared, options, door).map_err(refusal)?;
    let run = shard.run_mut(execution.slot);
    run.guest.policy = policy;
    if run.guest.door.is_none() {
        let text = run.error.as_deref().unwrap_or("the execution ended before it began").to_owned();
        let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "memory_short", text);
        return Err(error.retry_after(limits::BUSY_RETRY_AFTER));
    }
    records::log_started(shard, id, execution, &name);
    shard.counters.doors_opened += 1;
    let token = shard.run_mut(execution.slot).names.token.clone();
    let grant = ProduceGrant { execution, token };
    let document = documents::granted(grant.to_json(), &name, None);
    let line =
        Line { execution, side: Side::OutsideProducer, body: StreamBody::Chunked, is_over: false };
    Ok(Grant { line, document, descriptors })
}

/// Returns a door for a producer with this ring, and the descriptors that the producer has to
/// map.
pub(in crate::server) fn door_of_producer<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ConnectionId,
    ring: ProducerRing,
    place: DoorPlace,
) -> std::io::Result<(Door, Descriptors)> {
    let producer = OutsideProducer::new(ring, id)?;
    let control = ControlFile::create()?;
    let mut descriptors = Descriptors::new();
    let [ring, page] = producer.to_map();
    for descriptor in [ring, control.descriptor(), page] {
        descriptors.push(descriptor.as_fd().try_clone_to_owned()?);
    }
    Ok((
        Door::new(Behind::OutsideProducer(Box::new(producer)), control, looks(shard), place),
        descriptors,
    ))
}

/// Opens an execution for a producer ([`of_producer`]). It has a door unless it has ended at once.
pub(in crate::server) fn open_for_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    prepared: Prepared,
    options: ExecuteOptions,
    mut door: Door,
) -> Result<ExecutionId, ExecuteError> {
    // The private ring is as large as it may be from the beginning.
    let options = ExecuteOptions { grows: false, ..options };
    let execution = shard.execute_prepared(prepared, options)?;
    if shard.run_mut(execution.slot).has_verdict {
        return Ok(execution);
    }
    shard.tell_page(execution.slot.index, false, &mut door.control.page);
    let run = shard.run_mut(execution.slot);
    run.guest.door = Some(Box::new(door));
    if let Producer::Feed = run.producer {
        run.producer = Producer::Outside; // It was started meanwhile.
        producer::let_producer_begin(shard, execution.slot);
    }
    Ok(execution)
}

/// Answers with a grant, and begins a line. Always returns false.
pub(in crate::server) fn begin_line<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    grant: Grant,
) -> Answered {
    let Grant { mut line, document, descriptors } = grant;
    let hub = &mut shard.guests.hub;
    let around = hub.around(id, (&shard.guests.access, &shard.guests.tally), shard.now);
    let connection = hub.writable(id).expect("its request is being answered");
    line.body =
        connection.converse(|http, out| http.begin_stream(ndjson::MEDIA_TYPE, &around, out));
    line.write(connection, &document);
    connection.doing = Doing::Door;
    connection.descriptors = Some(Box::new(descriptors));
    connection.line = Some(Box::new(line));
    shard.pump();
    Answered::Later
}

/// Tells a producer that it may begin.
pub(in crate::server) fn say_go<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    connection: ConnectionId,
) {
    let hub = &mut shard.guests.hub;
    tell_line(hub, connection, &documents::door_go());
}

/// True if sleeping processes have to be woken.
pub(in crate::server) fn has_lines_to_wake<R: Reactor + 'static>(shard: &ServerShard<R>) -> bool {
    !shard.guests.hub.looks().borrow().is_empty()
}

/// Handles bytes that were received on a line.
pub(in crate::server) fn hear_at_door<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    let hub = &mut shard.guests.hub;
    let Some(connection) = hub.connection(id) else { return };
    let Some(line) = connection.line.as_ref().filter(|line| !line.is_over) else { return };
    let (execution, side) = (line.execution, line.side);
    hear_knock(shard, execution, side);
}

/// Handles a knock from the other end of a line.
pub(in crate::server) fn hear_knock<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    side: Side,
) {
    let Some(index) = index_of(shard, execution) else { return };
    let run = shard.runs[index as usize].as_mut().filter(|run| run.id == execution);
    let Some(run) = run else { return };
    match side {
        Side::OutsideProducer => producer::hear_producer(shard, index),
        Side::Reader { subscriber, .. } => {
            let mut remotes = run.remotes.iter_mut();
            let remote = remotes.find(|remote| remote.subscriber == subscriber);
            let Some(Remote { seat: Seat::Process(seat), .. }) = remote else { return };
            match seat.take_mapped() {
                Ok(true) => seat.wake(), // It may sleep already, unnoticed.
                Ok(false) if shard.watched.contains(&index) => {
                    shard.sample_readers(index);
                    shard.pump();
                    knock_again(shard, execution, subscriber);
                }
                Ok(false) => {}
                Err(error) => {
                    shard.counters.door_readers_evicted += 1;
                    let text = relay::not_sealed(&error);
                    log_evicted_for(shard, execution, subscriber, &text);
                    shard.tell(Event::ReaderWild(subscriber));
                }
            }
        }
    }
    shard.pump();
}

/// Knocks for a reader again, if its position is still needed. A reader reports its position
/// once for each knock.
fn knock_again<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    subscriber: SubscriberId,
) {
    let Some(index) = index_of(shard, execution) else { return };
    if shard.watched.contains(&index)
        && let Some(run) = &mut shard.runs[index as usize]
    {
        run.knock_for(subscriber);
    }
}

/// Ends a line whose connection is gone.
pub(in crate::server) fn lose_line<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    side: Side,
) {
    let Some(index) = index_of(shard, execution) else { return };
    if matches!(side, Side::Reader { .. }) {
        reads::count_reads(shard, index); // The last count for this reader.
    }
    let run = shard.runs[index as usize].as_mut().filter(|run| run.id == execution);
    let Some(run) = run else { return };
    match side {
        Side::OutsideProducer => {
            producer::lose_producer(shard, index);
            relay::close_idle_door(shard, index);
        }
        Side::Reader { subscriber, slot } => {
            run.remotes.retain(|remote| remote.subscriber != subscriber);
            if let Some(door) = &mut run.guest.door {
                door.free_slot(slot);
            }
            run.count_direct_readers();
            relay::close_idle_door(shard, index);
            shard.tell(Event::ReaderGone(subscriber));
        }
    }
}

/// Sends the last message to another process, and closes the connection when that was read.
pub(in crate::server) fn end_line<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    word: LastWord<'_>,
) {
    let now = shard.now;
    let hub = &mut shard.guests.hub;
    let Some(connection) = hub.writable(id) else { return };
    let Some(mut line) = connection.line.take() else { return };
    if !line.is_over {
        line.is_over = true;
        line.write(connection, &word.document());
        connection.converse(|http, out| http.end_stream(out));
        connection.is_last = true;
    }
    connection.line = Some(line);
    hub.set_timer(id, Some((Timer::Linger, now + limits::LINGER)));
}

/// Tells the processes that share an execution that it has ended. Readers leave when they have
/// read all of it.
pub(in crate::server) fn tell_end_at_door<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: Handle,
    verdict: &Verdict,
) {
    shard.guests.doors.forget_producer(execution.index);
    let run = shard.run_mut(execution);
    let producer = run.dismiss_producer();
    let mut readers: SmallVec<[ConnectionId; 8]> = SmallVec::new();
    for remote in &run.remotes {
        if let Seat::Process(seat) = &remote.seat {
            readers.push(seat.connection);
        }
    }
    let word = LastWord::Ended(verdict);
    let hub = &mut shard.guests.hub;
    for id in readers {
        tell_line(hub, id, &word.document());
    }
    if let Some(id) = producer {
        end_line(shard, id, word);
    }
    relay::close_idle_door(shard, execution.index);
}

/// Logs that a reader in another process was evicted, because its cursor is impossible.
pub(in crate::server) fn log_evicted<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    index: u32,
    subscriber: SubscriberId,
    wild: &WildCursor,
) {
    if let Some(run) = &shard.runs[index as usize] {
        log_evicted_for(shard, run.id, subscriber, &wild.to_string());
    }
}

fn log_evicted_for<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execution: ExecutionId,
    subscriber: SubscriberId,
    reason: &str,
) {
    shard.guests.log.record(
        records::wall_us(shard),
        Level::Warn,
        "door_reader_evicted",
        |record| {
            record.show("execution", &execution).show("subscriber", &subscriber);
            record.show("reason", &reason);
        },
    );
}

/// Logs that a producer in another process has broken a rule.
pub(in crate::server) fn log_refused_producer<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    index: u32,
    rule: &str,
) {
    let Some(run) = &shard.runs[index as usize] else { return };
    shard.guests.log.record(
        records::wall_us(shard),
        Level::Warn,
        "door_producer_refused",
        |record| {
            record.show("execution", &run.id).show("reason", &rule);
        },
    );
}

fn not_yet() -> ApiError {
    let text = "the producer has not mapped its ring yet";
    let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "not_yet", text);
    error.retry_after(limits::BUSY_RETRY_AFTER)
}

fn too_many_readers() -> ApiError {
    let most = limits::DOOR_READERS_PER_EXECUTION_MAX;
    let text = format!("{most} other processes read this execution already, the maximum");
    let error = ApiError::new(Status::TOO_MANY_REQUESTS, "too_many_readers", text);
    error.limit(most.into()).retry_after(limits::BUSY_RETRY_AFTER)
}
