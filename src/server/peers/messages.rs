//! The messages between the shards of a server: a closed set of values.
//!
//! A shard answers for its own tables only, so it asks the others. Each question has a ticket and
//! one entry in the table of open questions. The entry stays until all shards that were asked have
//! answered, or until its connection waits no longer. An answer without an entry is dropped.
//!
//! A simulation can read each message on its way, delay it or refuse it ([`Courier`]).
//!
//! Invariants ([`OpenQuestions::audit`]):
//! - Q1: every connection that waits for other shards has exactly one entry, with at least one
//!   answer missing.
//! - Q2: no two entries have the same ticket.

use std::fmt;

use smallvec::SmallVec;

use crate::base::Principal;
use crate::endpoint::ApiCall;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::cluster::FromCluster;
use crate::server::durable::Key;
use crate::server::mcp::SessionName;
use crate::server::peers::gather::{self, Gathering};
use crate::server::peers::join::{self, Joining};
use crate::server::peers::moves::Moving;
use crate::server::shm::Bought;
use crate::server::{ServerShard, peers};
use crate::shard::CallError;
use crate::shard::handle::Command;
use crate::wire::jsonrpc::Id;

/// A message to a shard.
pub enum ToPeer {
    /// A connection moves to the shard.
    Arrive(Box<Moving>),
    /// A question, with the number of the asking shard.
    Ask(u8, Ticket, Question),
    /// The answer of this shard.
    Answer(u8, Ticket, Answer),
    /// A run of a front end's thread has begun on another shard.
    RunBegan(Principal, Box<str>),
    /// A request of a session of the Model Context Protocol is over.
    RequestOver(SessionName, Id),
    /// A session has cancelled a request.
    Cancel(SessionName, Id),
    /// A session has ended.
    SessionEnded(SessionName),
    /// A notification for a session, as its bytes.
    Notify(SessionName, Vec<u8>),
    /// Memory that the shard has ordered, by the number of the order.
    Bought(u64, Box<Bought>),
    /// A message of the thread that has the connection to the cluster.
    Cluster(Box<FromCluster>),
    /// Streams have moved that subscriptions of the shard may wait for.
    StreamsMoved,
    /// A message about a wake, for the stream of this owner and this path.
    Wake(Box<Key>, Vec<u8>),
    /// This shard has died.
    Died(u8),
}

/// The number of a question, unique among those of the asking shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The number of the other nodes of the cluster, which answer like one more shard.
pub const NODES: u8 = u8::MAX;

/// A question to another shard.
pub enum Question {
    /// The shard's part of a reply, or a change to repeat.
    Part(ApiCall, Principal),
    /// Readers of its rings.
    Join(Box<join::Wanted>),
}

/// An answer to a question.
pub enum Answer {
    /// The shard's part of a reply.
    Part(gather::Part),
    /// The readers, by the index of the execution in the request.
    Joined(Vec<(usize, join::Part)>),
}

/// The questions that other shards have not answered.
#[derive(Debug, Default)]
pub(in crate::server) struct OpenQuestions {
    list: Vec<Open>,
    ticket_last: u64,
}

/// An open question.
#[derive(Debug)]
struct Open {
    ticket: Ticket,
    /// The connection that waits.
    connection: ConnectionId,
    /// The shards that have not answered.
    awaited: SmallVec<[u8; 8]>,
    subject: Subject,
}

/// The request that the answers are for.
#[derive(Debug)]
pub(in crate::server) enum Subject {
    /// A reply that is gathered from the parts of all shards.
    Gather(Gathering),
    /// A stream that follows executions of several shards.
    Join(Joining),
}

impl OpenQuestions {
    /// Returns the ticket of the next question.
    pub fn draw_ticket(&mut self) -> Ticket {
        self.ticket_last += 1;
        Ticket(self.ticket_last)
    }

    /// Adds a question that these shards have been asked.
    pub fn insert(
        &mut self,
        ticket: Ticket,
        connection: ConnectionId,
        awaited: SmallVec<[u8; 8]>,
        subject: Subject,
    ) {
        assert!(!awaited.is_empty()); // Q1
        assert!(self.list.iter().all(|open| open.connection != connection)); // Q1
        self.list.push(Open { ticket, connection, awaited, subject });
    }

    /// Returns the subject of a question that waits for this shard.
    pub fn subject(&mut self, ticket: Ticket, peer: u8) -> Option<&mut Subject> {
        let open = self.list.iter_mut().find(|open| open.ticket == ticket)?;
        open.awaited.contains(&peer).then_some(&mut open.subject)
    }

    /// Notes that a shard has answered. Returns the question if it was the last one.
    pub fn answered(&mut self, ticket: Ticket, peer: u8) -> Option<(ConnectionId, Subject)> {
        let at = self.list.iter().position(|open| open.ticket == ticket)?;
        let awaited = &mut self.list[at].awaited;
        awaited.retain(|awaited| *awaited != peer);
        if !awaited.is_empty() {
            return None;
        }
        let Open { connection, subject, .. } = self.list.swap_remove(at);
        Some((connection, subject))
    }

    /// Returns the tickets of all questions that wait for this shard.
    pub fn awaiting(&self, peer: u8) -> Vec<Ticket> {
        let waiting = self.list.iter().filter(|open| open.awaited.contains(&peer));
        waiting.map(|open| open.ticket).collect()
    }

    /// Removes the question of a connection that waits no longer.
    pub fn abandon(&mut self, connection: ConnectionId) {
        if let Some(at) = self.list.iter().position(|open| open.connection == connection) {
            drop(self.list.swap_remove(at));
        }
    }

    /// Returns the number of connections that wait for readers.
    fn joining_count(&self) -> usize {
        self.list.iter().filter(|open| matches!(open.subject, Subject::Join(_))).count()
    }

    /// True if a reply waits for the parts of other shards.
    #[cfg(test)]
    pub fn is_gathering(&self) -> bool {
        self.list.len() > self.joining_count()
    }

    /// Checks Q1 and Q2, for this number of connections that wait for readers. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit(&self, joining_count: usize) {
        assert_eq!(self.joining_count(), joining_count); // Q1
        for (at, open) in self.list.iter().enumerate() {
            assert!(!open.awaited.is_empty()); // Q1
            let others = &self.list[at + 1..];
            assert!(others.iter().all(|other| other.connection != open.connection)); // Q1
            assert!(others.iter().all(|other| other.ticket != open.ticket)); // Q2
        }
    }
}

/// Sends a message to another shard, and wakes it.
///
/// # Errors
/// The reason, if the shard takes no messages now or has died. The message is dropped.
pub(in crate::server) fn send<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    peer: usize,
    message: ToPeer,
) -> Result<(), CallError> {
    #[cfg(any(test, fuzzing))]
    let message = match shard.guests.peers.carry(peer, message) {
        Carried::Now(message) => message,
        Carried::Later => return Ok(()),
        Carried::Refused => return Err(CallError::Busy),
    };
    let mailbox = shard.guests.peers.mailbox(peer).ok_or(CallError::Gone)?;
    mailbox.send(Command::Message(message)).map_err(|(error, _)| error)
}

/// The fate of a message in a simulation.
#[cfg(any(test, fuzzing))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is sent at once.
    Now,
    /// It is sent after this number of turns of the sender.
    Later(u32),
    /// It is refused, as by a shard whose mailbox is full.
    Refused,
}

/// Decides about each message to the shard with this number.
#[cfg(any(test, fuzzing))]
pub(crate) type Courier = Box<dyn FnMut(usize, &ToPeer) -> Fate>;

/// The result of giving a message to the courier.
#[cfg(any(test, fuzzing))]
pub(super) enum Carried {
    Now(ToPeer),
    Later,
    Refused,
}

/// Lets a courier decide about all messages of this shard, except connections that move.
#[cfg(any(test, fuzzing))]
pub(crate) fn set_courier<R: Reactor + 'static>(shard: &mut ServerShard<R>, courier: Courier) {
    shard.guests.peers.courier = Some(courier);
}

/// Sends the delayed messages whose time has come. For each turn of a simulation.
#[cfg(any(test, fuzzing))]
pub(in crate::server) fn send_late<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    for (peer, message) in shard.guests.peers.take_late() {
        shard.worked = true;
        if let Some(mailbox) = shard.guests.peers.mailbox(peer) {
            let _ = mailbox.send(Command::Message(message));
        }
    }
}

/// Shows what was said, but no addresses of memory: equal simulations say the same.
impl fmt::Debug for ToPeer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ToPeer::Arrive(moving) => write!(out, "Arrive({:?})", moving.call()),
            ToPeer::Ask(asker, ticket, Question::Part(call, principal)) => {
                write!(out, "Ask({asker}, {ticket:?}, {call:?}, {principal:?})")
            }
            ToPeer::Ask(asker, ticket, Question::Join(wanted)) => {
                write!(out, "Ask({asker}, {ticket:?}, {:?})", wanted.executions())
            }
            ToPeer::Answer(peer, ticket, Answer::Part(part)) => {
                write!(out, "Answer({peer}, {ticket:?}, {})", part.name())
            }
            ToPeer::Answer(peer, ticket, Answer::Joined(parts)) => {
                write!(out, "Answer({peer}, {ticket:?}, {} readers)", parts.len())
            }
            ToPeer::RunBegan(principal, thread) => write!(out, "RunBegan({principal:?}, {thread})"),
            ToPeer::RequestOver(session, id) => write!(out, "RequestOver({session}, {id:?})"),
            ToPeer::Cancel(session, id) => write!(out, "Cancel({session}, {id:?})"),
            ToPeer::SessionEnded(session) => write!(out, "SessionEnded({session})"),
            ToPeer::Notify(session, bytes) => {
                write!(out, "Notify({session}, {} bytes)", bytes.len())
            }
            ToPeer::Bought(number, _) => write!(out, "Bought({number})"),
            ToPeer::Cluster(message) => write!(out, "Cluster({})", message.name()),
            ToPeer::StreamsMoved => out.write_str("StreamsMoved"),
            ToPeer::Wake(key, message) => {
                write!(out, "Wake({:?}, {} bytes)", key.path, message.len())
            }
            ToPeer::Died(peer) => write!(out, "Died({peer})"),
        }
    }
}

/// Sends a message to all other shards. Those that take no messages now have none of it.
pub(in crate::server) fn send_all<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    message: impl Fn() -> ToPeer,
) {
    for peer in 0..shard.guests.peers.count() {
        if peer != peers::own_index(shard) {
            let _ = send(shard, peer, message());
        }
    }
}
