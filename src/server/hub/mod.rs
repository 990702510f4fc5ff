//! The hub: connections in the shard's turn.
//!
//! A connection that follows an execution is a subscriber on the shard's own thread, like a
//! closure. Its chunks are queued. One send for each connection follows at the end of the turn, or
//! earlier if enough bytes are queued. If there are many followers, later turns send to the others
//! (`rounds.rs`). While the kernel takes no more, the connection's demand is 0
//! ([`Event::Demand`](crate::engine::Event::Demand)), and its policy decides in the engine.
//!
//! Reading order:
//! - [`Hub`], the tables; `connection.rs` and `stream.rs`, one connection; `frames.rs`, the cache
//!   that connections share.
//! - `admit.rs` (the rules for new connections), `receive.rs` (received bytes), `answer.rs`
//!   (complete replies).
//! - `deliver.rs` (queueing and sending), `rounds.rs` (the line of followers), `clock.rs`
//!   (deadlines).
//! - `tls/`, the layer below the HTTP machine, if TLS is on.
//!
//! Tests: beside `frames.rs`; `sim/server/`, in simulated time; `tests/serve*`, with real clients.
//!
//! Invariants ([`Hub::audit`]):
//! - V1: a connection has the same slot and generation here as in the reactor.
//! - V2: a subscriber's demand in the engine is 0 if and only if its connection is blocked.
//! - V3: between two turns, bytes are queued only for blocked connections, and for followers in
//!   the line.
//! - V4: the line of evictable connections holds exactly those without a request under way.
//!
//! The hub calls no other guest. Its consequences go up as values ([`HubEvent`]), and `turn/`
//! handles them. Readers of other shards' rings are in `peers/remote.rs`, with invariants of their
//! own.

pub(in crate::server) mod addresses;
pub(in crate::server) mod admit;
mod answer;
pub(in crate::server) mod buffers;
pub(in crate::server) mod clock;
pub(in crate::server) mod connection;
pub(in crate::server) mod deliver;
pub(in crate::server) mod frames;
pub(in crate::server) mod line;
mod listen;
mod receive;
mod rounds;
pub(in crate::server) mod stream;
#[cfg(feature = "tls")]
pub(in crate::server) mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls/absent.rs"]
pub(in crate::server) mod tls;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub(in crate::server) use admit::Verdict;
pub(in crate::server) use answer::{
    Answered, answer, answer_error, answer_waiting, has_reader, principal_of, scheme_of, wait,
};
use buffers::Buffers;
pub(in crate::server) use clock::settle_connection;
use connection::{Connection, Doing, Timer};
pub(in crate::server) use deliver::{
    Beat, make_room_for_deliveries, settle_deliveries, tell_demands,
};
use frames::{ENCODINGS, Frame, Frames, Key};
pub(in crate::server) use listen::{
    connection_count, listen, listen_at_door, open_hub, stop_listening,
};
use rounds::{Queued, Rounds, sends_per_look};
pub use tls::TlsConfig;
#[cfg(feature = "tls")]
pub use tls::TlsError;

use crate::base::{ExecutionId, Instant, Random, SubscriberId};
use crate::endpoint::{Access, AwaitedEvent, Surroundings, Tally};
use crate::engine::wheel::Wheel;
use crate::limits;
use crate::reactor::{ConnectionId, ListenerId, Peer};
use crate::server::durable::reader::SharedEvent;
use crate::server::shm::WakeList;
use crate::trace::Deliveries;
use crate::wire::http1::http_date;

/// The answer to a request to drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Draining {
    Begins,
    Already,
}

/// A consequence of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum HubEvent {
    /// The connection is broken and has to be dropped.
    Broken(ConnectionId),
    /// The connection has sent its last byte.
    Finished(ConnectionId),
    /// The execution has ended, and connections wait for its result.
    Ended(ExecutionId),
    /// The body of a known length is complete.
    Whole(ConnectionId),
    /// The connection has a complete reply. Its next request may have arrived already.
    Answered(ConnectionId),
}

/// The connections of a shard and their tables.
pub(in crate::server) struct Hub {
    /// Indexed by the connection's slot in the reactor.
    connections: Vec<Option<Box<Connection>>>,
    connection_count: u32,
    listeners: Vec<ListenerId>,
    /// The listener at which other processes share memory.
    door: Option<ListenerId>,
    /// Connections of sleeping processes that have to be woken with a byte.
    looks: WakeList,
    /// The deliveries of this turn, for the latency metrics.
    deliveries: Deliveries,
    frames: Frames,
    /// The frames of the chunk that is being delivered, one for each encoding that was needed.
    current: [Option<Frame>; ENCODINGS],
    /// The last event for readers of Durable Streams that several can share, and its frame.
    event: Option<(Key, SharedEvent, Frame)>,
    /// The chunk that was counted last as queued.
    counted: Option<Key>,
    /// Connections with something to send at the end of this turn, in the order in which they got
    /// it.
    touched: Vec<u32>,
    /// The followers of streams with something to send.
    rounds: Rounds,
    /// The number of queued chunks, and of bytes of their frames.
    queued: Queued,
    /// True if a connection has as much to send as may be under way on it.
    is_flush_urged: bool,
    /// Bytes that all connections together wait to send.
    aside_bytes: usize,
    /// Bytes of all incomplete request bodies.
    body_bytes: usize,
    /// Buffers that are not in use.
    spare: Buffers,
    /// Demands to pass to the engine: the number of chunks that a subscriber takes from now on.
    demands: Vec<(SubscriberId, u32)>,
    /// Subscribers to report to the engine, because their connection has sent a part of their
    /// bytes.
    moved: Vec<SubscriberId>,
    /// Broken connections, to be dropped.
    broken: Vec<ConnectionId>,
    /// Connections that have sent their last byte.
    finished: Vec<ConnectionId>,
    /// Connections with a complete reply. Their next request may have arrived already.
    answered: Vec<ConnectionId>,
    /// Connections whose body of a known length is complete, before the end of its execution.
    whole: Vec<ConnectionId>,
    /// The number of workers' connections that have become able to take more calls.
    free_workers: u32,
    /// Connections that wait for the end of an execution.
    waiting: Vec<(ExecutionId, ConnectionId)>,
    /// Executions of this table that have ended.
    ended: Vec<ExecutionId>,
    /// Connections that follow a front end's thread which has no run now.
    idle_threads: Vec<ConnectionId>,
    /// Readers of other shards' rings whose connections take bytes again, by their slots.
    released: Vec<u32>,
    timers: Wheel<(ConnectionId, Timer)>,
    /// The access rules, for heads that are written during a delivery.
    access: Arc<Access>,
    /// The counts of answered requests, for the same heads.
    tally: Rc<Tally>,
    /// The admission limits.
    places: admit::Places,
    /// The number of connections of each address.
    addresses: addresses::Addresses,
    /// Connections without a request under way, the longest waiting first.
    waiting_line: line::Line,
    untold: admit::RefusedCount,
    random: Random,
    date: [u8; 29],
    date_s: u64,
    /// True if the server drains: it takes no new requests.
    is_draining: bool,
    /// True once the reactor has sockets.
    is_open: bool,
    /// True if the execution whose chunks are being delivered has no other follower.
    is_alone: bool,
}

impl Hub {
    /// Replaces the access rules.
    pub(in crate::server) fn set_access(&mut self, access: Arc<Access>) {
        self.access = access;
    }

    /// Creates the tables of a shard that has no connections yet, and no room for any.
    pub fn closed(now: Instant) -> Hub {
        Hub::new(0, 0, 0, now, (Arc::default(), Rc::new(Tally::new(false))))
    }

    pub fn new(
        connections_max: u32,
        per_address_max: u32,
        seed: u64,
        now: Instant,
        (access, tally): (Arc<Access>, Rc<Tally>),
    ) -> Hub {
        let mut random = Random::new(seed);
        let addresses =
            addresses::Addresses::new(connections_max, per_address_max, random.next_u64());
        Hub {
            connections: Vec::new(),
            connection_count: 0,
            listeners: Vec::new(),
            door: None,
            looks: WakeList::default(),
            deliveries: Deliveries::default(),
            frames: Frames::new(limits::FRAME_CACHE_BYTES),
            current: [None; ENCODINGS],
            event: None,
            counted: None,
            touched: Vec::with_capacity(256),
            rounds: Rounds::new(sends_per_look(seed)),
            queued: Queued::default(),
            is_flush_urged: false,
            aside_bytes: 0,
            body_bytes: 0,
            spare: Buffers::new(),
            demands: Vec::with_capacity(256),
            moved: Vec::with_capacity(256),
            broken: Vec::new(),
            finished: Vec::new(),
            answered: Vec::new(),
            whole: Vec::new(),
            free_workers: 0,
            waiting: Vec::new(),
            ended: Vec::new(),
            idle_threads: Vec::new(),
            released: Vec::with_capacity(256),
            timers: Wheel::new(connections_max, now),
            access,
            tally,
            places: admit::Places::new(connections_max),
            addresses,
            waiting_line: line::Line::new(connections_max),
            untold: admit::RefusedCount::default(),
            random,
            date: http_date(0),
            date_s: 0,
            is_draining: false,
            is_open: false,
            is_alone: false,
        }
    }

    /// Sets the number of followers that are sent to before a look for something else.
    #[cfg(test)]
    pub fn set_followers_per_look(&mut self, count: u32) {
        self.rounds = Rounds::new(count);
    }

    /// Draws a random number.
    pub fn draw(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// True if the server drains: it takes no new requests.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// True if it listens at an address.
    pub fn is_listening(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Begins to drain. Returns what it did before.
    pub fn begin_draining(&mut self) -> Draining {
        match std::mem::replace(&mut self.is_draining, true) {
            true => Draining::Already,
            false => Draining::Begins,
        }
    }

    /// True if this is the listener at which other processes share memory.
    pub fn is_door(&self, listener: ListenerId) -> bool {
        self.door == Some(listener)
    }

    /// Returns a consequence of the last flush, or of what was noted since. `None` if nothing is
    /// left to handle.
    pub fn poll_event(&mut self) -> Option<HubEvent> {
        if let Some(id) = self.broken.pop() {
            return Some(HubEvent::Broken(id));
        }
        if let Some(id) = self.finished.pop() {
            return Some(HubEvent::Finished(id));
        }
        if let Some(execution) = self.ended.pop() {
            return Some(HubEvent::Ended(execution));
        }
        if let Some(id) = self.whole.pop() {
            return Some(HubEvent::Whole(id));
        }
        self.answered.pop().map(HubEvent::Answered)
    }

    /// Returns an expired timer of a connection.
    pub fn poll_timer(&mut self, now: Instant) -> Option<(ConnectionId, Timer)> {
        let (id, timer) = self.timers.pop_expired(now)?;
        self.connection(id).expect("a closed connection has no timer").timer = None;
        Some((id, timer))
    }

    /// Decides about a new connection.
    pub fn judge(&self, now: Instant) -> Verdict {
        // A connection that was answered in this turn stands at the end, with its answer not sent
        // yet. Nobody stands behind it.
        let first = self.waiting_line.first();
        let first = first.and_then(|at| self.connections[at as usize].as_deref());
        self.places.judge(self.connection_count, first, now)
    }

    /// Puts a connection into the line of those without a request, or takes it out.
    pub fn settle_place(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.connection(id) else { return };
        match connection.is_between_requests() {
            true => {
                connection.idle_from = now;
                self.waiting_line.append(id.0.index);
            }
            false => self.waiting_line.leave(id.0.index),
        }
    }

    /// Returns the connections that wait for a request: those that have had one, and the new ones.
    pub fn waiting(&self) -> (Vec<ConnectionId>, Vec<ConnectionId>) {
        let waiting = self.waiting_line.iter();
        let waiting = waiting.map(|index| self.connections[index as usize].as_ref().expect("V4"));
        let (used, new): (Vec<&Connection>, Vec<&Connection>) = waiting
            .map(|connection| &**connection)
            .partition(|connection| connection.http.arrival().heads > 0);
        let ids = |connections: Vec<&Connection>| connections.iter().map(|c| c.id).collect();
        (ids(used), ids(new))
    }

    /// Drops a connection at the end of the turn.
    pub fn lose(&mut self, id: ConnectionId) {
        self.broken.push(id);
    }

    /// Takes the number of workers' connections that have become able to take more calls.
    pub fn take_free_workers(&mut self) -> u32 {
        std::mem::take(&mut self.free_workers)
    }

    /// Notes that an execution has ended. Connections that wait for its result are answered at the
    /// end of the turn.
    pub fn note_ended(&mut self, execution: ExecutionId) {
        if self.waiting.iter().any(|(waited_for, _)| *waited_for == execution) {
            self.ended.push(execution);
        }
    }

    /// Recycles the buffers of a connection that was removed.
    pub fn recycle(&mut self, connection: Box<Connection>) {
        connection.recycle(&mut self.spare);
    }

    /// Makes sure that a small buffer is there for a reader of another shard's ring.
    pub fn provide_small_buffer(&mut self) {
        self.spare.provide_small();
    }

    /// Counts a refused connection. Returns the number of those that were not logged yet, if it is
    /// time for a record.
    pub fn count_refused(&mut self, now: Instant) -> Option<u64> {
        self.untold.count(now)
    }

    /// True if this address may have one connection more.
    pub fn has_room_for(&self, peer: &Peer) -> bool {
        self.addresses.has_room(peer)
    }

    /// Returns all connections.
    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().flatten().map(|connection| &**connection)
    }

    /// Returns the connection with this id, to read.
    pub fn connection_at(&self, id: ConnectionId) -> Option<&Connection> {
        let connection = self.connections.get(id.0.index as usize)?.as_deref()?;
        (connection.id == id).then_some(connection)
    }

    /// Returns the access rules, and the counts of answered requests.
    pub fn rules(&self) -> (Arc<Access>, Rc<Tally>) {
        (Arc::clone(&self.access), Rc::clone(&self.tally))
    }

    /// Queues a connection with a complete reply, whose next request may have arrived already.
    pub fn resume_later(&mut self, id: ConnectionId) {
        self.answered.push(id);
    }

    /// Sets the number of chunks that a subscriber is given from the end of this turn on.
    pub fn set_demand(&mut self, subscriber: SubscriberId, chunk_count: u32) {
        self.demands.push((subscriber, chunk_count));
    }

    /// Makes a connection wait for the end of an execution.
    pub fn wait_for(&mut self, execution: ExecutionId, id: ConnectionId) {
        self.waiting.push((execution, id));
    }

    /// Returns a connection that waits for the end of this execution. It waits no longer.
    pub fn take_waiting_for(&mut self, execution: ExecutionId) -> Option<ConnectionId> {
        let at = self.waiting.iter().position(|(waited_for, _)| *waited_for == execution)?;
        Some(self.waiting.swap_remove(at).1)
    }

    /// Returns the execution that a connection waits for. It waits no longer.
    pub fn take_waiting(&mut self, id: ConnectionId) -> Option<ExecutionId> {
        let at = self.waiting.iter().position(|(_, waiting)| *waiting == id)?;
        Some(self.waiting.swap_remove(at).0)
    }

    /// Adds a connection that follows a front end's thread which has no run now.
    pub fn add_idle_thread(&mut self, id: ConnectionId) {
        self.idle_threads.push(id);
    }

    /// True if a process sleeps on its connection and has to be woken with a byte.
    #[inline]
    pub fn has_sleepers(&self) -> bool {
        !self.looks.borrow().is_empty()
    }

    /// True if readers of other shards' rings wait for their release.
    #[inline]
    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Takes the slots of readers whose connections take bytes again.
    pub fn take_released(&mut self) -> impl Iterator<Item = u32> {
        self.released.drain(..)
    }

    /// Takes the connections that follow threads without a run.
    pub fn take_idle_threads(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.idle_threads)
    }

    /// Returns a random number.
    pub fn random_number(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// Returns the deliveries of this turn.
    pub fn deliveries_mut(&mut self) -> &mut Deliveries {
        &mut self.deliveries
    }

    /// Returns the latencies of all deliveries so far.
    pub fn latencies(&self) -> &crate::trace::Latencies {
        self.deliveries.latencies()
    }

    /// Returns the connections whose processes have to be woken with a byte.
    pub fn looks(&self) -> &WakeList {
        &self.looks
    }

    /// Prepares for the delivery of chunks of one execution. `is_alone` is true if it has one
    /// follower.
    pub fn begin_fan_out(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
    }

    /// True if the execution whose chunks are being delivered has one follower.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Counts queued chunks and their bytes. With `is_urged`, they are sent before more are queued.
    pub fn note_queued(&mut self, chunk_count: u32, bytes: usize, is_urged: bool) {
        self.queued.events += chunk_count;
        self.queued.bytes += bytes;
        self.is_flush_urged |= is_urged;
    }

    /// Gives a connection a large buffer, for output that it writes itself.
    pub fn borrow_large_buffer(&mut self, id: ConnectionId) {
        if let Some(connection) = &mut self.connections[id.0.index as usize]
            && connection.id == id
        {
            connection.borrow_large_buffer(&mut self.spare);
        }
    }

    /// True once the reactor has sockets.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns the connection with this id, if it is still open.
    #[inline]
    pub(in crate::server) fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(id.0.index as usize)?.as_deref_mut()?;
        (connection.id == id).then_some(connection)
    }

    /// Returns the connection with this id, for a caller that is about to write. The connection
    /// gets a buffer and is put into the list of the next flush, or into the line of followers.
    #[inline]
    pub(in crate::server) fn writable(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(id.0.index as usize)?.as_deref_mut()?;
        if connection.id != id {
            return None;
        }
        connection.borrow_buffer(&mut self.spare);
        if !connection.is_touched {
            connection.is_touched = true;
            match connection.doing {
                Doing::Stream => self.rounds.append(id.0.index),
                _ => self.touched.push(id.0.index),
            }
        }
        Some(connection)
    }

    pub(in crate::server) fn accept(&mut self, id: ConnectionId, peer: Peer, now: Instant) {
        let index = id.0.index as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        assert!(self.connections[index].is_none()); // V1
        self.connections[index] = Some(Box::new(Connection::new(id, peer, now)));
        self.connection_count += 1;
        self.addresses.add(&peer);
        self.waiting_line.append(id.0.index);
        // Reserved here, because the delivery of a chunk allocates nothing.
        let count = self.connection_count as usize;
        self.touched.reserve(count.saturating_sub(self.touched.len()));
        self.rounds.reserve(count);
        self.demands.reserve(count.saturating_sub(self.demands.len()));
        self.moved.reserve(count.saturating_sub(self.moved.len()));
        self.released.reserve(count.saturating_sub(self.released.len()));
        self.spare.provide(count);
        let deadline = match self.is_draining {
            true => limits::DRAIN_FIRST_REQUEST,
            false => limits::REQUEST_DEADLINE,
        };
        self.set_timer(id, Some((Timer::Request, now + deadline)));
    }

    /// Removes a connection from the tables. The caller ends what it was doing.
    pub(in crate::server) fn forget(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        self.connection(id)?;
        self.set_timer(id, None);
        let connection = self.connections[id.0.index as usize].take()?;
        self.connection_count -= 1;
        self.addresses.remove(&connection.peer);
        self.waiting_line.leave(id.0.index);
        self.aside_bytes -= connection.aside_bytes;
        self.body_bytes -= connection.body_bytes;
        match connection.doing {
            Doing::Result => self.waiting.retain(|(_, waiting)| *waiting != id),
            Doing::Stream => self.idle_threads.retain(|idle| *idle != id),
            Doing::Requests
            | Doing::Elsewhere
            | Doing::Joining
            | Doing::Recalling(_)
            | Doing::Part(_)
            | Doing::Mcp
            | Doing::Door
            | Doing::Moving(_)
            | Doing::Closing => {}
        }
        Some(connection)
    }

    /// Sets the timer of a connection, or removes it.
    pub(in crate::server) fn set_timer(
        &mut self,
        id: ConnectionId,
        timer: Option<(Timer, Instant)>,
    ) {
        let Some(connection) = self.connections.get_mut(id.0.index as usize) else { return };
        let Some(connection) = connection.as_deref_mut().filter(|c| c.id == id) else { return };
        if let Some((_, armed)) = connection.timer.take() {
            self.timers.cancel(armed);
        }
        if let Some((timer, at)) = timer {
            let at = if timer == Timer::Beat { clock::beat_at(at) } else { at };
            let armed = self.timers.arm(at, (id, timer)).expect("there is one for each connection");
            connection.timer = Some((timer, armed));
        }
    }

    /// Returns the time that a browser waits before it reconnects. It varies at random.
    pub(in crate::server) fn retry(&mut self) -> Duration {
        limits::RETRY.mul_f64(1.0 + self.random.below(1_000) as f64 / 1_000.0)
    }

    /// Returns the time until the first keep-alive of a stream. It varies at random.
    pub(in crate::server) fn first_beat(&mut self) -> Duration {
        limits::KEEP_ALIVE.mul_f64(0.5 + self.random.below(500) as f64 / 1_000.0)
    }

    /// Sets the date of response heads.
    pub(in crate::server) fn set_date(&mut self, wall_us: u64) {
        let unix_s = wall_us / 1_000_000;
        if unix_s != self.date_s {
            self.date_s = unix_s;
            self.date = http_date(unix_s);
        }
    }

    /// Returns the inputs that the HTTP machine of this connection needs besides its bytes.
    pub(in crate::server) fn around<'a>(
        &self,
        id: ConnectionId,
        (access, tally): (&'a Access, &'a Tally),
        now: Instant,
    ) -> Surroundings<'a> {
        Surroundings { date: self.date, now, access, tally, connection: id.0 }
    }

    /// Returns the time at which the next timer expires.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// True if something has to be sent, or a flush has left something to do.
    #[inline]
    pub(in crate::server) fn has_work(&self) -> bool {
        !(self.touched.is_empty()
            && !self.rounds.may_send()
            && self.demands.is_empty()
            && self.moved.is_empty()
            && self.released.is_empty()
            && self.broken.is_empty()
            && self.finished.is_empty()
            && self.ended.is_empty()
            && self.answered.is_empty()
            && self.whole.is_empty()
            && !self.has_sleepers())
    }

    /// Returns the number of open connections.
    pub fn connection_count(&self) -> u32 {
        self.connection_count
    }

    /// Checks every invariant. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit(&self) {
        self.timers.audit();
        let mut count = 0;
        for (index, connection) in self.connections.iter().enumerate() {
            let Some(connection) = connection else { continue };
            count += 1;
            assert_eq!(connection.id.0.index as usize, index); // V1
            connection.audit();
            assert!(!connection.has_pieces() || connection.is_blocked || connection.is_touched);
        }
        assert_eq!(count, self.connection_count);
        let waits = |c: &Connection| {
            matches!(c.doing, Doing::Requests)
                && c.http.due() == AwaitedEvent::Request
                && !c.is_last
        };
        let mut in_line = vec![false; self.connections.len()];
        self.waiting_line.iter().for_each(|index| in_line[index as usize] = true);
        for (is_in_line, connection) in in_line.iter().zip(&self.connections) {
            let expected = connection.as_deref().is_some_and(|c| waits(c) && !c.is_blocked);
            assert_eq!(*is_in_line, expected, "{connection:?}"); // V4
        }
        let connections = self.connections.iter().flatten();
        let aside_bytes: usize = connections.map(|connection| connection.aside_bytes).sum();
        assert_eq!(aside_bytes, self.aside_bytes);
        let connections = self.connections.iter().flatten();
        let body_bytes: usize = connections.map(|connection| connection.body_bytes).sum();
        assert_eq!(body_bytes, self.body_bytes);
        for (_, id) in &self.waiting {
            let connection = self.connections[id.0.index as usize].as_ref();
            assert!(connection.is_some_and(|connection| connection.id == *id));
        }
        for connection in self.connections.iter().flatten() {
            let is_listed = self.idle_threads.contains(&connection.id);
            let stream = connection.stream.as_ref().filter(|_| !connection.is_aborted);
            let waits = stream.is_some_and(|stream| stream.waits_on_thread());
            assert!(is_listed == waits || connection.is_aborted); // T1
        }
    }
}
