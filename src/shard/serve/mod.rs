//! The server: connections in the shard's turn.
//!
//! A connection that follows an execution is a subscriber of the shard's own thread, like a
//! closure. What it is given is queued, and sent at the end of the turn, or earlier when that is
//! enough for a send: one send for each connection. While the kernel takes no more, the subscriber
//! asks for nothing (`Demand` 0), and its policy decides in the engine what becomes of it.
//!
//! Reading order: [`Serve`], the tables; `connection.rs` and `stream.rs`, one of them; `frames.rs`,
//! what they share; then what the shard does with them: `admit.rs` (who comes in), `receive.rs`
//! (bytes in), `answer.rs` (calls), `owner.rs` (whose what is), `follow.rs` and `attached.rs`
//! (streams), `front.rs` and `threads.rs` (those of front ends), `deliver.rs` (what is given and
//! sent), `clock.rs` (deadlines), `moves.rs` and `peers.rs` (other shards), `server.rs` (all of
//! them), `tell.rs` (the log), `tls/` (what stands before the HTTP machine where there is TLS).
//! Tools whose work is done by clients: `virtual_tools.rs`, `workers.rs` (tables), `open_call.rs`
//! (one call, a machine), `calls.rs`.
//! Processes that share memory: `door.rs`.
//! The Model Context Protocol: `mcp/`, which has a text and invariants of its own.
//! Tests: beside `frames.rs`; `sim/server/`, in simulated time; `tests/serve*`, with real clients.
//!
//! Invariants ([`Serve::audit`]):
//! - V1: a connection's place is its place in the reactor, and its generation too.
//! - V2: the engine was told to give a subscriber nothing if and only if its connection is blocked.
//! - V3: between two turns nothing is queued but for connections that are blocked.
//! - V4: in the line of those who make room for others stand those who have no request under way,
//!   and nobody else.
//!
//! What a connection follows on another shard it reads from there by itself: `join.rs` (how that
//! begins) and `remote.rs` (how it goes on), which has invariants of its own.

mod addresses;
mod admit;
mod answer;
mod attached;
mod buffers;
#[cfg(any(test, fuzzing))]
mod by_hand;
mod calls;
mod clock;
mod connection;
mod deliver;
mod door;
mod ends;
mod follow;
mod frames;
mod front;
mod join;
mod line;
mod listen;
mod mcp;
mod moves;
mod open_call;
mod owner;
mod peers;
mod purchase;
mod receive;
mod remote;
mod server;
mod stream;
mod tell;
mod threads;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls/absent.rs"]
mod tls;
mod virtual_tools;
mod workers;

#[cfg(any(test, fuzzing))]
pub(crate) use by_hand::{AtDoor, HandLine, ProducerAtDoor};
pub(super) use deliver::Giving;
pub(super) use door::LastWord;
pub use ends::{ShardEnd, ShardEnds};
pub(super) use mcp::Ear;
pub use mcp::LineOptions;
pub(super) use mcp::McpSetUp;
pub(super) use moves::Moving;
pub(super) use open_call::OpenCall;
pub(super) use purchase::Purchase;
pub use server::{Server, ServerConfig, ServerError, SetUp};
pub(super) use stream::Source;
pub use tls::TlsConfig;
#[cfg(feature = "tls")]
pub use tls::TlsError;
pub(super) use workers::Workers;

use std::sync::Arc;
use std::time::Duration;

use super::door::Looks;
use crate::base::{ExecutionId, Instant, Random, SubscriberId};
use crate::endpoint::{Access, Due, Surroundings};
use crate::engine::wheel::Wheel;
use crate::limits;
use crate::reactor::{ConnectionId, ListenerId, Peer};
use crate::trace::Deliveries;
use crate::wire::http1::http_date;
use buffers::Buffers;
use connection::{Connection, Doing, Timer};
use frames::{ENCODINGS, Frame, Frames};
use remote::Remotes;

/// Connections and what belongs to them.
pub(super) struct Serve {
    /// By the place of the connection in the reactor.
    connections: Vec<Option<Box<Connection>>>,
    connection_count: u32,
    listeners: Vec<ListenerId>,
    /// Where other processes share memory.
    door: Option<ListenerId>,
    /// Connections whose processes sleep on them and have to look.
    looks: Looks,
    /// What this turn gives away.
    pub(in crate::shard) deliveries: Deliveries,
    frames: Frames,
    /// The chunk that is being given, as far as it was encoded.
    current: [Option<Frame>; ENCODINGS],
    /// Who has something to send, in the order in which it came.
    touched: Vec<u32>,
    /// Since the last flush: how many chunks were queued, and how many bytes of frames.
    queued_events: u32,
    queued_bytes: usize,
    /// A connection has as much to send as may be under way on it.
    is_flush_urged: bool,
    /// What all connections wait to send.
    aside_bytes: usize,
    /// What all bodies have that have not come whole.
    body_bytes: usize,
    /// Buffers that nobody needs now.
    spare: Buffers,
    /// What the engine is to be told: how much a subscriber takes from now on.
    demands: Vec<(SubscriberId, u32)>,
    /// And whose connection has taken a part of what it was given.
    moved: Vec<SubscriberId>,
    /// Connections that turned out to be broken.
    broken: Vec<ConnectionId>,
    /// Connections to which everything was sent that there will be.
    finished: Vec<ConnectionId>,
    /// Connections whose answer is complete: the next request may be there already.
    answered: Vec<ConnectionId>,
    /// A connection through which a worker takes calls can be told more again.
    has_free_worker: bool,
    /// Who waits for the end of an execution.
    waiting: Vec<(ExecutionId, ConnectionId)>,
    /// Executions of which that has come.
    ended: Vec<ExecutionId>,
    /// Answers that other shards have a part in.
    gatherings: Vec<peers::Gathering>,
    /// Connections that follow a thread of a front end's, which has no run now.
    idle_threads: Vec<ConnectionId>,
    /// Streams that other shards have a part in, and have not said yet which.
    joinings: join::Joinings,
    /// What connections follow on other shards.
    remotes: Remotes,
    timers: Wheel<(ConnectionId, Timer)>,
    /// Who may come in, for heads that are written while something is given.
    access: Arc<Access>,
    mcp: mcp::Mcp,
    /// How many connections there can be.
    places: admit::Places,
    /// How many each address has.
    addresses: addresses::Addresses,
    /// Who has no request under way.
    waiting_line: line::Line,
    untold: admit::Untold,
    random: Random,
    date: [u8; 29],
    date_s: u64,
    /// No new requests: the server is to end.
    is_draining: bool,
}

impl Serve {
    pub fn new(
        connections_max: u32,
        per_address_max: u32,
        seed: u64,
        now: Instant,
        access: Arc<Access>,
        mcp: mcp::Mcp,
    ) -> Serve {
        let mut random = Random::new(seed);
        let addresses =
            addresses::Addresses::new(connections_max, per_address_max, random.next_u64());
        Serve {
            connections: Vec::new(),
            connection_count: 0,
            listeners: Vec::new(),
            door: None,
            looks: Looks::default(),
            deliveries: Deliveries::default(),
            frames: Frames::new(limits::FRAME_CACHE_BYTES),
            current: [None; ENCODINGS],
            touched: Vec::with_capacity(256),
            queued_events: 0,
            queued_bytes: 0,
            is_flush_urged: false,
            aside_bytes: 0,
            body_bytes: 0,
            spare: Buffers::new(),
            demands: Vec::with_capacity(256),
            moved: Vec::with_capacity(256),
            broken: Vec::new(),
            finished: Vec::new(),
            answered: Vec::new(),
            has_free_worker: false,
            waiting: Vec::new(),
            ended: Vec::new(),
            gatherings: Vec::new(),
            idle_threads: Vec::new(),
            joinings: join::Joinings::default(),
            remotes: Remotes::default(),
            timers: Wheel::new(connections_max, now),
            access,
            mcp,
            places: admit::Places::new(connections_max),
            addresses,
            waiting_line: line::Line::new(connections_max),
            untold: admit::Untold::default(),
            random,
            date: http_date(0),
            date_s: 0,
            is_draining: false,
        }
    }

    /// The connection of this name, if it is still there.
    #[inline]
    fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(id.0.index as usize)?.as_deref_mut()?;
        (connection.id == id).then_some(connection)
    }

    /// As [`Serve::connection`], with a buffer, and to be flushed: it is about to be written to.
    #[inline]
    fn writable(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(id.0.index as usize)?.as_deref_mut()?;
        if connection.id != id {
            return None;
        }
        connection.borrow_buffer(&mut self.spare);
        if !connection.is_touched {
            connection.is_touched = true;
            self.touched.push(id.0.index);
        }
        Some(connection)
    }

    fn accept(&mut self, id: ConnectionId, peer: Peer, now: Instant) {
        let index = id.0.index as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        assert!(self.connections[index].is_none()); // V1
        self.connections[index] = Some(Box::new(Connection::new(id, peer, now)));
        self.connection_count += 1;
        self.addresses.add(&peer);
        self.waiting_line.append(id.0.index);
        // Bought here, because a chunk buys nothing.
        let count = self.connection_count as usize;
        self.touched.reserve(count.saturating_sub(self.touched.len()));
        self.demands.reserve(count.saturating_sub(self.demands.len()));
        self.moved.reserve(count.saturating_sub(self.moved.len()));
        self.spare.provide(count);
        self.set_timer(id, Some((Timer::Request, now + limits::REQUEST_DEADLINE)));
    }

    /// Takes a connection out of the tables. What it was doing is the caller's to end.
    fn forget(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
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
            Doing::Elsewhere => self.gatherings.retain(|gathering| !gathering.is_for(id)),
            Doing::Joining => self.joinings.abandon(id),
            Doing::Stream => self.idle_threads.retain(|idle| *idle != id),
            Doing::Requests
            | Doing::Part(_)
            | Doing::Mcp
            | Doing::Door
            | Doing::Moving(_)
            | Doing::Closing => {}
        }
        Some(connection)
    }

    /// Sets the timer of a connection anew, or none.
    fn set_timer(&mut self, id: ConnectionId, timer: Option<(Timer, Instant)>) {
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

    /// How long a browser waits before it comes back: each another time.
    fn retry(&mut self) -> Duration {
        limits::RETRY.mul_f64(1.0 + self.random.below(1_000) as f64 / 1_000.0)
    }

    /// When a stream shows for the first time that it lives.
    fn first_beat(&mut self) -> Duration {
        limits::KEEP_ALIVE.mul_f64(0.5 + self.random.below(500) as f64 / 1_000.0)
    }

    /// The time for heads, as HTTP spells it.
    fn set_date(&mut self, wall_us: u64) {
        let unix_s = wall_us / 1_000_000;
        if unix_s != self.date_s {
            self.date_s = unix_s;
            self.date = http_date(unix_s);
        }
    }

    /// What the HTTP machines of connections have to know.
    fn around<'a>(&self, access: &'a Access, now: Instant) -> Surroundings<'a> {
        Surroundings { date: self.date, now, access }
    }

    /// When its next timer is due.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        let chunks = clock::earlier(self.remotes.next_deadline(), self.mcp.next_deadline());
        clock::earlier(self.timers.next_deadline(), chunks)
    }

    /// Is there anything to be sent, or to follow from what was?
    #[inline]
    fn has_work(&self) -> bool {
        !(self.touched.is_empty()
            && self.demands.is_empty()
            && self.moved.is_empty()
            && self.broken.is_empty()
            && self.finished.is_empty()
            && self.ended.is_empty()
            && self.answered.is_empty()
            && self.looks.borrow().is_empty()
            && !self.mcp.has_news())
    }

    /// Connections there are.
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
            matches!(c.doing, Doing::Requests) && c.http.due() == Due::Request && !c.is_last
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
        self.audit_mcp();
        self.audit_lines();
        self.remotes.audit(&self.connections);
        let connections = self.connections.iter().flatten();
        let joining = connections.filter(|c| matches!(c.doing, Doing::Joining));
        self.joinings.audit(joining.count());
    }
}
