//! The other shards of a server, and replies that gather answers from all of them.

pub(in crate::server) mod join;
pub(in crate::server) mod moves;
pub(in crate::server) mod remote;

use serde_json::Value;
use smallvec::SmallVec;

use crate::base::Principal;
use crate::endpoint::{Answer, ApiError, Call, McpRequest, MetricsFormat, documents};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::guests::Guests;
use crate::server::hub::connection::Doing;
use crate::server::metrics::{ExecutionCounts, ProcessMetrics, ShardMetrics};
use crate::server::{ServerHandle, ServerShard, metrics};
use crate::shard::CallError;
use crate::shard::handle::{Command, Mailbox};
use crate::stream::{Outcome, State};
use crate::trace::Span;
use crate::wire::http1::Status;

/// A reply that is gathered from the answers of all shards.
#[derive(Debug)]
pub(in crate::server) struct Gathering {
    id: ConnectionId,
    format: Option<MetricsFormat>,
    /// The request, if the reply is a list of MCP.
    listed: Option<Box<McpRequest>>,
    /// The span of that request.
    span: Option<Box<Span>>,
    parts: Vec<Part>,
    /// The shards that have not answered.
    awaited: SmallVec<[u8; 8]>,
    /// The final reply, if the other shards only have to be told.
    answer: Option<Answer>,
}

/// The answer of one shard.
#[derive(Debug)]
enum Part {
    /// A document with one list, which is joined with those of the others.
    List(Value),
    /// The metrics of the shard.
    Metrics(Box<ShardMetrics>),
    /// The change was made.
    Done,
}

impl Gathering {
    /// True if it belongs to this connection.
    pub fn is_for(&self, id: ConnectionId) -> bool {
        self.id == id
    }
}

impl<R: Reactor + 'static> ServerShard<R> {
    /// Makes shards that are driven by hand one server, in the order of their numbers. Spawned
    /// shards use [`Shard::set_peers`].
    pub fn introduce(shards: &mut [ServerShard<R>]) {
        let peers: Vec<Mailbox<R, Guests<R>>> = shards.iter().map(ServerShard::mailbox).collect();
        shards.iter_mut().for_each(|shard| shard.guests.peers.clone_from(&peers));
    }
}

impl ServerShard {
    /// Sets the shards of the server, including this one, in the order of their numbers.
    pub fn set_peers(&mut self, peers: &[ServerHandle]) {
        self.guests.peers = peers.iter().map(ServerHandle::to_mailbox).collect();
    }
}

impl<R: Reactor + 'static> ServerShard<R> {
    /// Returns the number of this shard.
    pub(in crate::server) fn own_index(&self) -> usize {
        usize::from(self.engine.limits().shard)
    }

    /// Returns the other shards that live, with their numbers.
    fn other_peers(&self) -> impl Iterator<Item = (u8, &Mailbox<R, Guests<R>>)> {
        let (own, dead) = (self.own_index() as u8, &self.guests.dead_peers);
        let all = (0..).zip(&self.guests.peers); // There are at most `limits::SHARDS_MAX`.
        all.filter(move |(index, _)| *index != own && !dead.contains(index))
    }

    /// Returns the error for a shard that accepts no command.
    pub(in crate::server) fn peer_refusal(&self, peer: usize, error: CallError) -> ApiError {
        if error == CallError::Busy {
            let error =
                ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", "a shard accepts no calls now");
            return error.retry_after(limits::BUSY_RETRY_AFTER);
        }
        ApiError::shards_dead(&[peer as u8])
    }

    /// Notes that another shard has died. Replies no longer wait for it.
    pub(in crate::server) fn note_death(&mut self, peer: u8) {
        if self.guests.dead_peers.contains(&peer) {
            return;
        }
        self.guests.dead_peers.push(peer);
        self.guests.dead_peers.sort_unstable();
        let gatherings = self.guests.serve.iter().flat_map(|serve| &serve.gatherings);
        let waiting = gatherings.filter(|gathering| gathering.awaited.contains(&peer));
        let waiting: Vec<ConnectionId> = waiting.map(|gathering| gathering.id).collect();
        for id in waiting {
            self.take_part(id, peer, None);
        }
    }

    /// Asks all shards. Returns true if the request was answered.
    pub(in crate::server) fn gather(
        &mut self,
        id: ConnectionId,
        call: Call,
        principal: Principal,
    ) -> bool {
        let own_part = self.part_of(&call, principal);
        self.ask_all(id, call, principal, own_part, None)
    }

    /// Makes all other shards repeat a change that was made here. The reply is `answer`. Returns
    /// true if it was given already.
    pub(in crate::server) fn tell_all(
        &mut self,
        id: ConnectionId,
        call: Call,
        principal: Principal,
        answer: Answer,
    ) -> bool {
        self.ask_all(id, call, principal, Part::Done, Some(answer))
    }

    fn ask_all(
        &mut self,
        id: ConnectionId,
        call: Call,
        principal: Principal,
        own_part: Part,
        answer: Option<Answer>,
    ) -> bool {
        let own = self.own_index();
        let (mut awaited, mut dead) = (SmallVec::new(), Vec::new());
        let refused = self.other_peers().find(|(index, peer)| {
            match ask_peer(peer, id, own, (call.clone(), principal)) {
                Ok(()) => awaited.push(*index),
                Err(CallError::Gone | CallError::Panicked) => dead.push(*index),
                Err(CallError::Busy) => return true,
            }
            false
        });
        if let Some(busy) = refused.map(|(index, _)| index) {
            let error = self.peer_refusal(busy.into(), CallError::Busy);
            return self.answer_error(id, &error);
        }
        dead.into_iter().for_each(|peer| self.note_death(peer));
        let (format, listed) = match call {
            Call::Metrics(format) => (Some(format), None),
            Call::Mcp(request) => (None, Some(request)),
            _ => (None, None),
        };
        let parts = vec![own_part];
        let span = self.guests.serve.as_mut().filter(|_| listed.is_some());
        let span = span.and_then(|serve| serve.mcp.take_span());
        let gathering = Gathering { id, format, listed, span, parts, awaited, answer };
        if gathering.awaited.is_empty() {
            return self.answer_gathered(gathering);
        }
        let serve = self.guests.serve.as_mut().expect("it has connections");
        serve.connection(id).expect("its request is being answered").doing = Doing::Elsewhere;
        serve.gatherings.push(gathering);
        false
    }

    /// Returns the answer of this shard for this principal.
    fn part_of(&mut self, call: &Call, principal: Principal) -> Part {
        match call {
            Call::Executions => Part::List(self.list_executions(principal)),
            Call::Metrics(_) => Part::Metrics(Box::new(self.metrics())),
            Call::Mcp(request) => Part::List(self.list_part(request, principal)),
            Call::AllProgress => {
                let engine = &self.engine;
                let own = engine.tokens().filter(|(_, id, _)| self.is_owned(*id, principal));
                Part::List(documents::all_progress(own.map(|(token, id, progress)| {
                    (token, id, progress, engine.progress_texts(id.slot))
                })))
            }
            Call::PutVirtualTool(_) | Call::DeleteVirtualTool(_) => {
                // The first shard accepted the change.
                let _ = self.change_tools_here(call, principal);
                Part::Done
            }
            _ => unreachable!("no other call goes to all shards"),
        }
    }

    /// Takes the answer of another shard, or `None` if it has died.
    fn take_part(&mut self, id: ConnectionId, peer: u8, part: Option<Part>) {
        let Some(serve) = &mut self.guests.serve else { return };
        let Some(at) = serve.gatherings.iter().position(|gathering| gathering.id == id) else {
            return; // The connection that asked is gone.
        };
        let gathering = &mut serve.gatherings[at];
        gathering.parts.extend(part);
        gathering.awaited.retain(|awaited| *awaited != peer);
        if !gathering.awaited.is_empty() {
            return;
        }
        let gathering = serve.gatherings.swap_remove(at);
        if let Some(connection) = serve.connection(id) {
            connection.doing = Doing::Requests;
            self.answer_gathered(gathering);
            self.guests.serve.as_mut().expect("as above").answered.push(id);
        }
    }

    fn answer_gathered(&mut self, gathering: Gathering) -> bool {
        if let Some(answer) = gathering.answer {
            return self.answer(gathering.id, &answer);
        }
        let (mut name, mut list, mut shards) = (String::new(), Vec::new(), Vec::new());
        for part in gathering.parts {
            match part {
                Part::Metrics(metrics) => shards.push(*metrics),
                Part::List(Value::Object(members)) => {
                    for (key, value) in members {
                        let Value::Array(items) = value else {
                            unreachable!("a shard sends lists")
                        };
                        list.extend(items);
                        name = key;
                    }
                }
                Part::List(_) | Part::Done => unreachable!("a shard sends objects"),
            }
        }
        if let Some(request) = gathering.listed {
            return self.answer_listed(gathering.id, &request, list, gathering.span);
        }
        let answer = match gathering.format {
            Some(format) => {
                shards.sort_by_key(|shard| shard.shard);
                let text =
                    metrics::render(format, shards, self.process_metrics(), &self.guests.upstreams);
                Answer::text(Status::OK, format.media_type(), text)
            }
            None => {
                Answer::json(Status::OK, &documents::gathered(name, list, &self.guests.dead_peers))
            }
        };
        self.answer(gathering.id, &answer)
    }

    /// Returns the metrics of this shard.
    fn metrics(&mut self) -> ShardMetrics {
        self.count_all_reads();
        let memory = self.memory();
        let (mut executions, mut subscribers) = (ExecutionCounts::default(), 0);
        for (state, subscriber_count) in self.engine.census() {
            let count = match state {
                State::Queued => &mut executions.queued,
                State::Running => &mut executions.running,
                State::Draining => &mut executions.draining,
                State::Ended(Outcome::Completed) => &mut executions.completed,
                State::Ended(Outcome::Failed) => &mut executions.failed,
                State::Ended(Outcome::Cancelled) => &mut executions.cancelled,
                State::Ended(Outcome::TimedOut) => &mut executions.timed_out,
            };
            *count += 1;
            subscribers += u64::from(subscriber_count);
        }
        let connections =
            self.guests.serve.iter().flat_map(|serve| serve.connections.iter().flatten());
        let (mut streams, mut waiting_bytes) = (0, 0);
        for connection in connections {
            streams += u64::from(connection.stream.is_some());
            waiting_bytes += connection.waiting_bytes() as u64;
        }
        ShardMetrics {
            shard: self.own_index() as u32,
            counters: self.counters(),
            latencies: Box::new(
                self.guests
                    .serve
                    .as_ref()
                    .map(|serve| *serve.deliveries.latencies())
                    .unwrap_or_default(),
            ),
            stalls: Box::new(self.stalls),
            reactor: self.reactor.counters().clone(),
            rings: memory.usage,
            rings_bytes_max: memory.rings_bytes_max,
            pressure: memory.pressure,
            decided_by: memory.decided_by,
            executions,
            subscribers,
            connections: self.connection_count().into(),
            streams,
            waiting_bytes,
            agents: self.running_agents().count() as u64,
            doors: self.door_count(),
            door_bytes: self.door_bytes(),
            mcp: self.guests.serve.as_ref().map(|serve| serve.mcp.metrics()).unwrap_or_default(),
        }
    }

    fn process_metrics(&self) -> ProcessMetrics {
        let shard_count = self.guests.peers.len().max(1) as u64;
        ProcessMetrics {
            connections_max: u64::from(self.guests.socket_limits.connections_max) * shard_count,
            log_records_dropped: self.guests.log.dropped_total(),
            spans_dropped: self.guests.spans.dropped()(),
            shard_count: self.guests.peers.len().max(1) as u32,
            dead_shards: self.guests.dead_peers.iter().map(|peer| u32::from(*peer)).collect(),
        }
    }
}

/// Asks another shard for its part of a call. The answer goes to shard `asker`.
fn ask_peer<R: Reactor + 'static>(
    peer: &Mailbox<R, Guests<R>>,
    id: ConnectionId,
    asker: usize,
    (call, principal): (Call, Principal),
) -> Result<(), CallError> {
    let question = Command::Call(Box::new(move |shard: &mut ServerShard<R>| {
        let (part, peer) = (shard.part_of(&call, principal), shard.own_index() as u8);
        let answer = Command::Call(Box::new(move |shard: &mut ServerShard<R>| {
            shard.take_part(id, peer, Some(part));
        }));
        if let Some(asker) = shard.guests.peers.get(asker) {
            let _ = asker.send(answer); // If it is gone by now, so is the connection.
        }
    }));
    peer.send(question).map_err(|(error, _)| error)
}
