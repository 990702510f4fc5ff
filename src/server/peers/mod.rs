//! The other shards of a server: what they are asked and told, and the readers of their rings.
//!
//! `messages.rs` is all that shards say to each other, with the table of open questions.
//! `gather.rs` asks all shards for their parts of a reply. `join.rs` asks for readers of executions
//! that live elsewhere, and `remote.rs` polls them. `moves.rs` lets a connection go to the shard
//! that answers it. `turn/` handles what comes from the other shards.

pub(in crate::server) mod gather;
pub(in crate::server) mod join;
pub(in crate::server) mod messages;
pub(in crate::server) mod moves;
pub(in crate::server) mod remote;

pub(in crate::server) use gather::{
    Asked, Gathering, Part, Purpose, ask_all, join_lists, tell_all,
};
pub(in crate::server) use join::{begin_joining, is_apart};
pub use messages::Ticket;
pub(in crate::server) use messages::{Answer, NODES, Question, Subject, ToPeer, send, send_all};
pub(in crate::server) use moves::begin_move;

use crate::endpoint::ApiError;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::guests::Guests;
use crate::server::hub::Hub;
use crate::server::hub::connection::Doing;
use crate::server::peers::messages::OpenQuestions;
use crate::server::peers::remote::Remotes;
use crate::server::{ServerHandle, ServerShard};
use crate::shard::CallError;
use crate::shard::handle::Mailbox;
use crate::wire::http1::Status;

/// The shards of a server, as one of them sees them.
pub(in crate::server) struct Peers<R: Reactor + 'static> {
    /// The mailboxes of all shards, its own included.
    mailboxes: Vec<Mailbox<R, Guests<R>>>,
    /// Number of shards that listen: the first ones.
    listening_count: usize,
    /// True if ids can be those of other nodes, with numbers of shards that this server lacks.
    is_node: bool,
    /// The numbers of the shards that have died, in order.
    dead: Vec<u8>,
    /// Those of them whose open questions are not settled.
    mourned: Vec<u8>,
    open: OpenQuestions,
    /// The readers of other shards' rings.
    remotes: Remotes,
    #[cfg(any(test, fuzzing))]
    courier: Option<messages::Courier>,
    /// Messages that the courier delays, with the number of turns that are left.
    #[cfg(any(test, fuzzing))]
    late: Vec<(u32, usize, ToPeer)>,
}

impl<R: Reactor + 'static> Peers<R> {
    /// Creates the table of a shard that is alone. `is_node` is true on a node of a cluster.
    pub fn new(is_node: bool) -> Peers<R> {
        Peers {
            mailboxes: Vec::new(),
            listening_count: 0,
            is_node,
            dead: Vec::new(),
            mourned: Vec::new(),
            open: OpenQuestions::default(),
            remotes: Remotes::default(),
            #[cfg(any(test, fuzzing))]
            courier: None,
            #[cfg(any(test, fuzzing))]
            late: Vec::new(),
        }
    }

    /// Returns the number of shards, or 0 if the shard is alone.
    pub fn count(&self) -> usize {
        self.mailboxes.len()
    }

    /// Returns the number of shards that listen, or 0 if the shard is alone. The names of new
    /// things select one of these.
    pub fn listening_count(&self) -> usize {
        self.listening_count
    }

    /// Returns the numbers of the shards that have died.
    pub fn dead(&self) -> &[u8] {
        &self.dead
    }

    /// Returns the readers of other shards' rings.
    #[inline]
    pub fn remotes(&self) -> &Remotes {
        &self.remotes
    }

    /// Returns the readers of other shards' rings, to change them.
    #[inline]
    pub fn remotes_mut(&mut self) -> &mut Remotes {
        &mut self.remotes
    }

    /// Returns the mailbox of a shard.
    pub fn mailbox(&self, peer: usize) -> Option<&Mailbox<R, Guests<R>>> {
        self.mailboxes.get(peer)
    }

    /// Gives a message to the courier, if there is one. A message stays behind delayed ones to the
    /// same shard, as in a mailbox.
    #[cfg(any(test, fuzzing))]
    fn carry(&mut self, peer: usize, message: ToPeer) -> messages::Carried {
        use messages::{Carried, Fate};
        let Some(courier) = &mut self.courier else { return Carried::Now(message) };
        let before = self.late.iter().filter(|(_, to, _)| *to == peer).map(|(turns, ..)| *turns);
        match (courier(peer, &message), before.max()) {
            (Fate::Refused, _) => return Carried::Refused,
            (Fate::Now, None) => return Carried::Now(message),
            (Fate::Now, Some(turns)) => self.late.push((turns, peer, message)),
            (Fate::Later(turns), before) => {
                self.late.push((turns.max(before.unwrap_or(0)), peer, message));
            }
        }
        Carried::Later
    }

    /// Takes the delayed messages whose time has come, one turn later than at the last call.
    #[cfg(any(test, fuzzing))]
    fn take_late(&mut self) -> Vec<(usize, ToPeer)> {
        self.late.iter_mut().for_each(|(turns, ..)| *turns = turns.saturating_sub(1));
        let due = self.late.extract_if(.., |(turns, ..)| *turns == 0);
        due.map(|(_, peer, message)| (peer, message)).collect()
    }

    /// True if messages are delayed.
    #[cfg(any(test, fuzzing))]
    pub fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Notes that a shard has died. The questions to it are settled later.
    pub fn bury(&mut self, peer: u8) {
        if !self.dead.contains(&peer) {
            self.dead.push(peer);
            self.dead.sort_unstable();
            self.mourned.push(peer);
        }
    }

    /// True if the questions to a shard that has died are not settled.
    #[inline]
    pub fn has_mourned(&self) -> bool {
        !self.mourned.is_empty()
    }

    /// Returns a question to a shard that has died, with the number of that shard. It is open for
    /// the other shards only, or complete.
    pub fn poll_lost_question(&mut self) -> Option<(u8, Ticket)> {
        while let Some(peer) = self.mourned.last().copied() {
            match self.open.awaiting(peer).first() {
                Some(ticket) => return Some((peer, *ticket)),
                None => _ = self.mourned.pop(),
            }
        }
        None
    }

    /// Returns the subject of a question that waits for this shard.
    pub fn subject(&mut self, ticket: Ticket, peer: u8) -> Option<&mut Subject> {
        self.open.subject(ticket, peer)
    }

    /// Notes that a shard has answered. Returns the question if it was the last one.
    pub fn answered(&mut self, ticket: Ticket, peer: u8) -> Option<(ConnectionId, Subject)> {
        self.open.answered(ticket, peer)
    }

    /// Removes the open question of a connection that waits no longer.
    pub fn abandon(&mut self, connection: crate::reactor::ConnectionId) {
        self.open.abandon(connection);
    }

    /// True if a reply waits for the parts of other shards.
    #[cfg(test)]
    pub fn is_gathering(&self) -> bool {
        self.open.is_gathering()
    }

    /// Checks the open questions and the readers, against these connections. For tests.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn audit(&self, hub: &Hub) {
        let joining = hub.connections().filter(|c| matches!(c.doing, Doing::Joining));
        self.open.audit(joining.count());
        self.remotes.audit(hub);
    }
}

/// Makes shards that are driven by hand one server, in the order of their numbers. Spawned
/// shards use [`set_peers`].
pub(in crate::server) fn introduce<R: Reactor + 'static>(shards: &mut [ServerShard<R>]) {
    let peers: Vec<Mailbox<R, Guests<R>>> = shards.iter().map(ServerShard::mailbox).collect();
    for shard in shards {
        shard.guests.peers.mailboxes.clone_from(&peers);
        shard.guests.peers.listening_count = peers.len();
    }
}

/// Sets the shards of the server, including this one, in the order of their numbers. The first
/// `listening_count` of them listen.
pub(in crate::server) fn set_peers(
    shard: &mut ServerShard,
    peers: &[ServerHandle],
    listening_count: usize,
) {
    shard.guests.peers.listening_count = listening_count;
    shard.guests.peers.mailboxes = peers.iter().map(ServerHandle::to_mailbox).collect();
}

/// Returns the number of this shard.
pub(in crate::server) fn own_index<R: Reactor + 'static>(shard: &ServerShard<R>) -> usize {
    usize::from(shard.engine.limits().shard)
}

/// Returns the shard for the executions whose ids have this number of a shard. The ids of other
/// nodes of a cluster can have numbers that this server does not have.
pub(in crate::server) fn home_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    number: u8,
) -> usize {
    let (number, count) = (usize::from(number), shard.guests.peers.count());
    match number < count || count == 0 || !shard.guests.peers.is_node {
        true => number,
        false => number % count,
    }
}

/// Returns the error for a shard that accepts no command.
pub(in crate::server) fn peer_refusal(peer: usize, error: CallError) -> ApiError {
    if error == CallError::Busy {
        let error =
            ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", "a shard accepts no calls now");
        return error.retry_after(limits::BUSY_RETRY_AFTER);
    }
    ApiError::shards_dead(&[peer as u8])
}
