//! Streams of the Durable Streams protocol. A stream is an execution whose chunks come over the
//! network. Everything that reads executions reads streams, too.
//!
//! A stream needs the journal, because the protocol promises that what was answered is kept. Its
//! engine is told of a chunk when the disk has it. An append is answered at the same time.
//!
//! - `state.rs`: one stream, without a clock and a disk; `keep.rs`: its description on the disk.
//! - `paths.rs`: the shard of each path.
//! - `create.rs`, `append.rs`, `read.rs`, `remove.rs`: the requests; `reader.rs`: one reader.
//!   `replies.rs`: the replies that several readers get. `fork.rs` finds the place at which a fork
//!   leaves its source. `delayed.rs`: creations that wait for room.
//! - `rest.rs`: streams that nobody uses leave the engine.
//!
//! Positions count the payload bytes of the execution. A fork goes on counting where it leaves its
//! source, so an offset means the same in both.
//!
//! Invariants:
//! - Q1: an append is answered after everything before it, and once it is kept.
//! - Q2: appends to one stream are published one after the other. An append begins when the journal
//!   has all chunks of the one before, because its description precedes its own chunks only.
//! - Q3: a stream with forks keeps its execution and its path, even after its removal.

mod append;
mod create;
mod delayed;
mod fork;
mod keep;
mod marker;
mod paths;
mod read;
pub(in crate::server) mod reader;
mod remove;
mod replies;
mod rest;
mod state;
#[cfg(test)]
mod state_tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

pub(in crate::server) use append::{append_wake, settle};
pub(in crate::server) use create::options_of;
pub(in crate::server) use keep::{described, fill, kept_streams};
pub use paths::StreamPaths;
pub(in crate::server) use paths::{Key, Seen, claim};
pub(in crate::server) use read::{answer_late, go_on};
pub(in crate::server) use remove::fire_deadlines;
pub(in crate::server) use rest::has_freed_place;
use slab::Slab;

use crate::base::{ExecutionId, Handle, Instant, Principal};
use crate::endpoint::{Answer, ApiError, Appended, DurableAsk, DurableCall, DurableHeaders};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::durable::create::Counted;
use crate::server::durable::delayed::Delayed;
use crate::server::durable::paths::StreamHead;
use crate::server::durable::reader::{Part, Parts, Tail};
use crate::server::durable::replies::Replies;
use crate::server::durable::state::StreamState;
use crate::server::hub::Answered;
use crate::server::peers::ToPeer;
use crate::server::{ServerShard, executions, hub, peers};
use crate::wire::http1::Status;

/// The streams of a shard. See the module's text.
#[derive(Debug, Default)]
pub(in crate::server) struct Durable {
    streams: Slab<Stream>,
    by_key: HashMap<Key, usize>,
    by_execution: HashMap<ExecutionId, usize>,
    /// The paths of all shards.
    paths: StreamPaths,
    /// Streams that have to be looked at, because the disk or a ring has moved.
    busy: Vec<usize>,
    deadlines: BTreeSet<(Instant, usize)>,
    /// Streams whose executions are in the engine, with the time of a use, the oldest first.
    present: VecDeque<(usize, Instant)>,
    /// Creations that wait for room, the first one first.
    delayed: VecDeque<Delayed>,
    /// The number of things that the disk had done when they were last tried.
    done_count: u64,
    replies: Replies,
    /// Removals whose answers wait for the disk.
    removals: Vec<remove::Removal>,
    /// The shards that have to look at streams which have moved, one bit each.
    untold: u64,
}

/// One stream.
#[derive(Debug)]
struct Stream {
    key: Key,
    state: StreamState,
    execution: ExecutionId,
    /// The stream that it begins with, and the position at which its own bytes begin.
    source: Option<usize>,
    origin: u64,
    /// Number of streams that begin with this one.
    fork_count: u32,
    /// True if the last description on the disk is of an append that a crash has cut off.
    is_undescribed: bool,
    /// The execution whose record says that this stream was removed after its end.
    marker: Option<ExecutionId>,
    tail: Rc<Tail>,
    /// The same for all shards, once there is an execution.
    head: Option<Arc<StreamHead>>,
    /// The append that is being published, and those that wait for it.
    publishing: Option<Box<Publishing>>,
    waiting: VecDeque<(Option<ConnectionId>, Box<Appended>)>,
    /// The answers that wait for the disk.
    unconfirmed: VecDeque<Unconfirmed>,
    is_busy: bool,
    /// True if it is in the list of those that are in the engine.
    is_listed: bool,
    used_at: Instant,
    deadline: Option<Instant>,
}

impl Stream {
    /// Creates a stream. Everything of it so far is shown.
    fn new(
        key: Key,
        state: StreamState,
        execution: ExecutionId,
        origin: u64,
        now: Instant,
    ) -> Stream {
        let tail = Rc::new(Tail::default());
        tail.position.set(state.tail);
        tail.shown.set(state.tail);
        tail.is_closed.set(state.closed.is_some());
        tail.voids.replace(state.voids.clone());
        Stream {
            key,
            state,
            execution,
            source: None,
            origin,
            fork_count: 0,
            is_undescribed: false,
            marker: None,
            tail,
            head: None,
            publishing: None,
            waiting: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            is_busy: false,
            is_listed: false,
            used_at: now,
            deadline: None,
        }
    }

    /// Gives back the memory of lists that are empty while nobody uses the stream.
    fn release_memory(&mut self) {
        self.waiting.shrink_to_fit();
        self.unconfirmed.shrink_to_fit();
        self.tail.ends.borrow_mut().shrink_to_fit();
    }
}

/// An append that is being published.
#[derive(Debug)]
struct Publishing {
    connection: Option<ConnectionId>,
    /// True if it wakes no subscription.
    is_silent: bool,
    answer: Answer,
    body: Vec<u8>,
    /// The places of the messages that are left in the body, the last one first.
    left: Vec<Range<usize>>,
    /// Number of bytes of the first of them that are published.
    published_bytes: usize,
    closes: bool,
}

/// An answer that waits for the disk.
#[derive(Debug)]
struct Unconfirmed {
    /// `None` if the connection has gone.
    connection: Option<ConnectionId>,
    answer: Answer,
    /// The last chunk before it.
    seq: u64,
    position: u64,
    /// True if it waits for the end of the execution.
    is_end: bool,
    /// True if it wakes no subscription.
    is_silent: bool,
}

impl Durable {
    /// Creates the table of a shard, which has no streams yet.
    pub fn new(paths: StreamPaths) -> Durable {
        Durable { paths, ..Durable::default() }
    }

    /// True if the disk or a ring has moved for somebody, or a creation or a removal waits for the
    /// disk. Also true if a reader has ended that others may wait for.
    #[inline]
    pub fn is_busy(&self) -> bool {
        let has_waiting = !self.removals.is_empty() || !self.delayed.is_empty();
        let has_moved = !self.busy.is_empty() || self.replies.has_ended();
        has_moved || has_waiting || self.untold != 0
    }

    /// Returns the time at which the next stream may end, or leave the engine, or at which the next
    /// creation is refused.
    pub fn next_deadline(&self) -> Option<Instant> {
        let expires_at = self.deadlines.first().map(|(at, _)| *at);
        let refused_at = self.delayed.front().and_then(|delayed| delayed.until);
        let next = hub::clock::earlier(expires_at, self.next_rest());
        hub::clock::earlier(next, refused_at)
    }

    /// Returns the executions that have the parts of a stream, which have to be here to read it.
    pub fn executions_of(&self, owner: Option<&str>, path: &str) -> Vec<ExecutionId> {
        let key = Key { owner: owner.map(Box::from), path: path.into() };
        let Some(&at) = self.by_key.get(&key) else { return Vec::new() };
        let mut all = vec![self.streams[at].execution];
        let mut next = self.streams[at].source;
        while let Some(at) = next {
            all.push(self.streams[at].execution);
            next = self.streams[at].source;
        }
        all
    }

    /// Notes that the disk keeps more of an execution.
    #[inline]
    pub fn note_kept(&mut self, execution: ExecutionId) {
        if !self.by_execution.is_empty()
            && let Some(&at) = self.by_execution.get(&execution)
            && !self.streams[at].unconfirmed.is_empty()
        {
            self.make_busy(at);
        }
    }

    /// Notes that an execution has ended. If it is one of a stream, nothing is appended any more.
    pub fn note_ended(&mut self, execution: ExecutionId) {
        let Some(&at) = self.by_execution.get(&execution) else { return };
        self.make_busy(at);
        let stream = &mut self.streams[at];
        // The end of a removed stream is not its own.
        stream.tail.is_closed.set(!stream.state.is_gone);
        if stream.state.closed.is_none() {
            stream.state.closed = Some(state::Closed::default());
        }
    }

    /// Returns the number of creations that wait for room.
    #[cfg(test)]
    pub fn delayed_count(&self) -> usize {
        self.delayed.len()
    }

    /// The paths of all shards.
    pub fn paths(&self) -> &StreamPaths {
        &self.paths
    }

    /// Notes that a stream has moved or is gone. Subscriptions look at it.
    fn note_moved(&mut self, key: &Key) {
        self.untold |= self.paths.note_moved(key);
    }

    fn make_busy(&mut self, at: usize) {
        if !std::mem::replace(&mut self.streams[at].is_busy, true) {
            self.busy.push(at);
        }
    }

    /// The parts of a stream from `position` on, the last one first.
    fn parts_from(&self, at: usize, position: u64) -> Parts {
        let mut parts = Parts::new();
        let (mut next, mut until) = (Some(at), u64::MAX);
        while let Some(at) = next {
            let Stream { execution, origin, source, .. } = self.streams[at];
            // A fork may leave its source before the own bytes of that begin.
            if origin < until {
                parts.push(Part { execution, origin, until });
            }
            until = until.min(origin);
            // A part that ends where the reader begins has nothing for it.
            next = source.filter(|_| position < until);
        }
        parts
    }
}

/// Carries out a request about a stream.
pub(in crate::server) fn answer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: DurableCall,
    principal: Principal,
) -> Answered {
    if let Some(node) = paths::elsewhere(shard, id, &call, principal) {
        let answer = crate::endpoint::durable::answer_elsewhere(&call, node);
        return hub::answer(shard, id, &answer);
    }
    if let Some(execution) = call.execution() {
        return match call.ask {
            DurableAsk::Read(ask) => read::read_execution(shard, id, execution, &ask, principal),
            DurableAsk::Describe => read::describe_execution(shard, id, execution, principal),
            _ => {
                let text = "the output of an execution is written by its tool";
                let error = ApiError::new(Status::METHOD_NOT_ALLOWED, "method_not_allowed", text);
                let headers = DurableHeaders::default().with("allow", "GET, HEAD, OPTIONS");
                hub::answer(shard, id, &Answer::error(&error).with_headers(headers))
            }
        };
    }
    if !matches!(call.ask, DurableAsk::Read(_) | DurableAsk::Describe) && shard.has_failed_disk() {
        return refuse(shard, id, &not_kept(crate::journal::Refused::Broken));
    }
    match fork::wanted(shard, &call, principal) {
        Some(wanted) => fork::count(shard, id, wanted, (call, principal)),
        None => carry_out(shard, id, call, principal, (None, None)),
    }
}

/// Returns the error for a stream that was removed, although others begin with it.
fn is_gone() -> ApiError {
    let text = "the stream was removed, and others still begin with it";
    ApiError::new(Status::GONE, "stream_gone", text)
}

/// Carries out a request. `counted` is the place at which a fork leaves its source, if messages
/// were counted for it. `until` is the time at which a creation is refused that has waited for
/// room.
fn carry_out<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    mut call: DurableCall,
    principal: Principal,
    (counted, until): (Counted, Option<Instant>),
) -> Answered {
    let key = key_of(shard, principal, call.path.clone());
    let found = find(shard, &key);
    if let DurableAsk::Create(creation) = &mut call.ask {
        let about = (call.host.as_deref(), &*call.raw_path, principal);
        let wanted = (key.clone(), found);
        let created = create::create(shard, id, wanted, (creation, counted), about);
        let answered = created.unwrap_or_else(|| {
            delayed::delay(shard, Delayed { id, call, principal, counted, until })
        });
        if answered.is_now() {
            paths::give_back(shard, key);
        }
        return answered;
    }
    let ask = call.ask;
    let is_there = found.is_some_and(|at| !shard.guests.durable.streams[at].state.is_gone);
    if ask == DurableAsk::Delete
        && !is_there
        && let Some(answered) = remove::join(shard, id, &key)
    {
        return answered;
    }
    let Some(at) = found else { return refuse(shard, id, &crate::engine::NotFound.into()) };
    if shard.guests.durable.streams[at].state.is_gone {
        return refuse(shard, id, &is_gone());
    }
    match ask {
        DurableAsk::Create(_) => unreachable!("it was handled above"),
        DurableAsk::Control(_) => unreachable!("subscriptions answer it"),
        DurableAsk::Append(appended) => append::append(shard, id, at, appended),
        DurableAsk::Read(ask) => read::read(shard, id, at, &ask),
        DurableAsk::Describe => read::describe(shard, id, at),
        DurableAsk::Delete => remove::remove(shard, id, at),
    }
}

/// Returns the shard of the stream that a request names. `None` if any shard can answer.
pub(in crate::server) fn home_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    call: &DurableCall,
    principal: Principal,
) -> Option<usize> {
    let paths = &shard.guests.durable.paths;
    if let Some(home) = paths.find(&key_of(shard, principal, call.path.clone())) {
        return Some(home.into());
    }
    let DurableAsk::Create(creation) = &call.ask else { return None };
    if let Some(fork) = &creation.fork {
        let source = key_of(shard, principal, fork.source.clone());
        return paths.find(&source).map(usize::from);
    }
    Some(home_of_new(shard, &call.path))
}

/// Returns the shard for something new at this path.
pub(in crate::server) fn home_of_new<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    path: &str,
) -> usize {
    let shards = shard.guests.peers.listening_count().max(1);
    place_of(path, shards)
}

/// Returns the place of a path among `count` places.
pub(in crate::server) fn place_of(path: &str, count: usize) -> usize {
    let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3) // FNV-1a.
    });
    (hash >> 16) as usize % count
}

fn key_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    principal: Principal,
    path: Box<str>,
) -> Key {
    Key { owner: shard.guests.access.name_of(principal).map(Box::from), path }
}

/// Finds a stream. One that has expired, or that the disk does not have any more, goes first.
fn find<R: Reactor + 'static>(shard: &mut ServerShard<R>, key: &Key) -> Option<usize> {
    let at = *shard.guests.durable.by_key.get(key)?;
    let Stream { execution, .. } = shard.guests.durable.streams[at];
    if !shard.keeps(execution) {
        remove::drop_entry(shard, at);
        return None;
    }
    if is_expired(shard, at) {
        remove::expire(shard, at);
    }
    shard.guests.durable.by_key.get(key).copied()
}

fn is_expired<R: Reactor + 'static>(shard: &ServerShard<R>, at: usize) -> bool {
    let stream = &shard.guests.durable.streams[at];
    stream.deadline.is_some_and(|deadline| deadline <= shard.now) && !stream.state.is_gone
}

/// Notes that a stream was used. Its time to live begins again.
fn touch<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    let (now, wall_us) = (shard.now, wall_us(shard));
    let durable = &mut shard.guests.durable;
    let stream = &mut durable.streams[at];
    stream.used_at = now;
    let config = &stream.state.config;
    let ttl = config.ttl_s.map(|ttl_s| now + std::time::Duration::from_secs(ttl_s.min(1 << 32)));
    let expires = config.expires_us.map(|expires_us| {
        now + std::time::Duration::from_micros(expires_us.saturating_sub(wall_us).min(1 << 52))
    });
    let deadline = ttl.or(expires).filter(|_| !stream.state.is_gone);
    if let Some(before) = std::mem::replace(&mut stream.deadline, deadline) {
        durable.deadlines.remove(&(before, at));
    }
    if let Some(deadline) = deadline {
        durable.deadlines.insert((deadline, at));
    }
}

fn wall_us<R: Reactor + 'static>(shard: &ServerShard<R>) -> u64 {
    shard.anchor.wall_us_at(shard.now.nanos())
}

fn refuse<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    error: &ApiError,
) -> Answered {
    hub::answer(shard, id, &crate::endpoint::durable::answer_refused(error))
}

/// Returns the error for a stream whose disk has failed or is full.
fn not_kept(refused: crate::journal::Refused) -> ApiError {
    executions::refusal(crate::shard::ExecuteError::NotKept(refused))
}

/// Notes that there may be room for more of a stream.
pub(in crate::server) fn note_room<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: Handle,
) {
    let id = shard.run_mut(execution).id;
    let durable = &mut shard.guests.durable;
    if let Some(&at) = durable.by_execution.get(&id) {
        durable.make_busy(at);
    }
}

/// Tells the shards with subscriptions that streams have moved. One that takes no messages now is
/// told later.
fn tell_moved<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let untold = std::mem::take(&mut shard.guests.durable.untold);
    for peer in (0..u64::BITS as usize).filter(|peer| untold & 1 << peer != 0) {
        if peer == peers::own_index(shard) {
            continue; // It looks at the end of this turn.
        }
        if peers::send(shard, peer, ToPeer::StreamsMoved) == Err(crate::shard::CallError::Busy) {
            shard.guests.durable.untold |= 1 << peer;
        }
    }
}

fn own_index<R: Reactor + 'static>(shard: &ServerShard<R>) -> u8 {
    peers::own_index(shard) as u8
}
