//! The start of a stream that follows executions of several shards. The shard of the connection
//! asks each of the others for readers of its rings. If one refuses, the whole request is refused,
//! and the accepted readers leave again.
//!
//! The connection waits meanwhile ([`Doing::Joining`]), with a timer, and may be gone when the
//! answer comes. A reader that is then
//! dropped, or lost on its way, counts as a broken connection on its shard. Under `block` its place
//! is kept for a client that reconnects.

use smallvec::SmallVec;

use crate::base::{ExecutionId, Principal};
use crate::endpoint::{ApiError, DeliveryOptions, Follow};
use crate::engine::{Coalesce, From};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor, Waker};
use crate::server::hub::Answered;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::peers::messages::{Question, Subject, ToPeer};
use crate::server::{ServerShard, hub, peers};
use crate::shard::{Names, Subscriber};
use crate::wire::http1::Status;

/// A reader that another shard has accepted.
#[derive(Debug)]
pub struct Joined {
    pub subscriber: Subscriber,
    pub names: Names,
    /// The name of the execution's tool, or an empty string.
    pub tool: String,
    pub coalesce: Option<Coalesce>,
}

/// The answer of another shard for one execution of a request.
#[derive(Debug)]
pub enum Part {
    /// The client has received the end of this execution before.
    SeenToEnd,
    Joined(Box<Joined>),
    Refused(ApiError),
}

impl Part {
    /// Unsubscribes a reader that is not needed, and for which no client will reconnect.
    pub fn dismiss(self) {
        if let Part::Joined(joined) = self {
            joined.subscriber.unsubscribe();
        }
    }
}

/// The answers of all other shards, by the index of the execution in the request.
pub(in crate::server) type Parts = Vec<Option<Part>>;

/// The readers that a shard is asked for.
pub struct Wanted {
    /// The waker of the asking shard's reactor.
    pub(in crate::server) reactor: Waker,
    /// The principal of the request.
    pub(in crate::server) principal: Principal,
    /// The executions, with their indices in the request.
    pub(in crate::server) executions: Vec<(usize, ExecutionId, From)>,
    pub(in crate::server) delivery_options: DeliveryOptions,
    /// The executions whose end the client has received, as its cursors say.
    pub(in crate::server) seen_ends: SmallVec<[ExecutionId; 1]>,
}

impl Wanted {
    /// Returns the executions, with their indices in the request.
    pub fn executions(&self) -> &[(usize, ExecutionId, From)] {
        &self.executions
    }
}

/// A request that waits for readers.
#[derive(Debug)]
pub(in crate::server) struct Joining {
    pub follow: Follow,
    pub parts: Parts,
    /// The shard of each execution.
    pub homes: SmallVec<[usize; 1]>,
}

impl Joining {
    /// Adds the answer of a shard.
    pub fn add(&mut self, parts: Vec<(usize, Part)>) {
        for (at, part) in parts {
            self.parts[at] = Some(part);
        }
    }

    /// Refuses what a shard was asked for, because it has died.
    pub fn refuse(&mut self, peer: u8) {
        let parts = self.parts.iter_mut().zip(&self.homes);
        for (part, _) in parts.filter(|(_, home)| **home == usize::from(peer)) {
            *part = Some(Part::Refused(ApiError::shards_dead(&[peer])));
        }
    }
}

/// Returns the error for a shard that accepts no calls.
pub(in crate::server) fn busy() -> ApiError {
    let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", "a shard accepts no calls now");
    error.retry_after(limits::BUSY_RETRY_AFTER)
}
/// True if the execution lives on another shard of this server.
pub(in crate::server) fn is_apart<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execution: ExecutionId,
) -> bool {
    let home = peers::home_of(shard, execution.shard);
    home != peers::own_index(shard) && home < shard.guests.peers.count()
}

/// Asks the other shards for their parts of a stream. The request waits, or is refused.
pub(in crate::server) fn begin_joining<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    follow: &Follow,
) -> Answered {
    let principal = hub::principal_of(shard, id);
    let ticket = shard.guests.peers.open.draw_ticket();
    let mut awaited = SmallVec::new();
    for home in 0..shard.guests.peers.count() {
        let all = follow.executions.iter().enumerate();
        let executions: Vec<_> = all
            .filter(|(_, (execution, _))| peers::home_of(shard, execution.shard) == home)
            .filter(|(_, (execution, _))| is_apart(shard, *execution))
            .map(|(at, &(execution, from))| (at, execution, from))
            .collect();
        if executions.is_empty() {
            continue;
        }
        let wanted = Wanted {
            reactor: shard.reactor.waker(),
            principal,
            executions,
            delivery_options: follow.delivery_options,
            seen_ends: follow.seen_ends.clone(),
        };
        let own = peers::own_index(shard) as u8;
        let question = ToPeer::Ask(own, ticket, Question::Join(Box::new(wanted)));
        if let Err(error) = peers::send(shard, home, question) {
            let error = peers::peer_refusal(home, error);
            return hub::answer_error(shard, id, &error); // Answers that still come find no entry.
        }
        awaited.push(home as u8);
    }
    let until = shard.now + limits::JOIN_DEADLINE;
    let hub = &mut shard.guests.hub;
    hub.connection(id).expect("its request is being answered").doing = Doing::Joining;
    hub.set_timer(id, Some((Timer::Join, until)));
    let parts = follow.executions.iter().map(|_| None).collect();
    let all = follow.executions.iter();
    let homes = all.map(|(execution, _)| peers::home_of(shard, execution.shard)).collect();
    let joining = Joining { follow: follow.clone(), parts, homes };
    shard.guests.peers.open.insert(ticket, id, awaited, Subject::Join(joining));
    Answered::Later
}
