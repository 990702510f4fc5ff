//! Replies that gather the parts of all shards, and changes that all shards make.

use serde_json::Value;
use smallvec::SmallVec;

use crate::base::Principal;
use crate::endpoint::{
    Answer as Reply, ApiCall, ApiError, ListAsk, McpRequest, MetricsFormat, TaskSearch,
};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::cluster::Listed;
use crate::server::hub::Answered;
use crate::server::hub::connection::Doing;
use crate::server::metrics::ShardMetrics;
use crate::server::peers::messages::{NODES, Question, Subject, Ticket, ToPeer};
use crate::server::{ServerShard, hub, peers};
use crate::shard::CallError;
use crate::trace::Span;

/// A reply that is gathered from the answers of all shards.
#[derive(Debug)]
pub(in crate::server) struct Gathering {
    pub purpose: Purpose,
    pub parts: Vec<Part>,
    /// True if the other nodes of the cluster have a part, too.
    has_nodes: bool,
}

/// The reply that is made of the parts.
#[derive(Debug)]
pub(in crate::server) enum Purpose {
    /// The final reply. The other shards only have to make the same change.
    Told(Reply),
    /// A document with one list.
    List,
    /// A part of the list of executions.
    Executions(Box<ListAsk>),
    /// A page of tasks of A2A.
    Tasks(Box<TaskSearch>),
    /// The metrics, in this format.
    Metrics(MetricsFormat),
    /// The answer to this request of MCP for a list, with its span.
    McpList(Box<McpRequest>, Option<Box<Span>>),
}

/// The answer of one shard.
#[derive(Debug)]
pub enum Part {
    /// A document with one list, which is joined with those of the others.
    List(Value),
    /// The executions of all other nodes; `None`: the cluster does not answer.
    Nodes(Option<Listed>),
    /// The metrics of the shard.
    Metrics(Box<ShardMetrics>),
    /// The change was made.
    Done,
}

impl Part {
    /// The kind of the part.
    pub fn name(&self) -> &'static str {
        match self {
            Part::List(_) => "list",
            Part::Nodes(_) => "nodes",
            Part::Metrics(_) => "metrics",
            Part::Done => "done",
        }
    }
}

impl Gathering {
    /// Begins with the part of this shard.
    pub fn new(purpose: Purpose, own_part: Part) -> Gathering {
        Gathering { purpose, parts: vec![own_part], has_nodes: false }
    }

    /// Waits for the part of the other nodes, which the caller of [`ask_all`] has to ask for.
    pub fn with_nodes(self) -> Gathering {
        Gathering { has_nodes: true, ..self }
    }

    /// Adds the part of a shard.
    pub fn add(&mut self, part: Part) {
        self.parts.push(part);
    }
}

/// Joins the lists of all shards. Returns the name of the list and its items.
pub(in crate::server) fn join_lists(parts: Vec<Part>) -> (String, Vec<Value>) {
    let (mut name, mut list) = (String::new(), Vec::new());
    for part in parts {
        let Part::List(Value::Object(members)) = part else {
            unreachable!("a shard sends objects")
        };
        for (key, value) in members {
            let Value::Array(items) = value else { unreachable!("a shard sends lists") };
            list.extend(items);
            name = key;
        }
    }
    (name, list)
}

/// The state of a question to all other shards.
pub(in crate::server) enum Asked {
    /// The connection waits for their answers.
    Waits(Ticket),
    /// No other shard answers, so the parts are complete.
    Complete(Gathering),
    /// A shard accepts no calls now.
    Refused(ApiError),
}

/// Asks all other shards for their parts of a reply.
pub(in crate::server) fn ask_all<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: &ApiCall,
    principal: Principal,
    gathering: Gathering,
) -> Asked {
    let ticket = shard.guests.peers.open.draw_ticket();
    let own = peers::own_index(shard) as u8;
    let (mut awaited, mut dead) = (SmallVec::new(), Vec::new());
    for peer in 0..shard.guests.peers.count() as u8 {
        if peer == own || shard.guests.peers.dead().contains(&peer) {
            continue;
        }
        let question = ToPeer::Ask(own, ticket, Question::Part(call.clone(), principal));
        match peers::send(shard, peer.into(), question) {
            Ok(()) => awaited.push(peer),
            Err(CallError::Gone | CallError::Panicked | CallError::OwnThread) => dead.push(peer),
            Err(CallError::Busy) => {
                return Asked::Refused(peers::peer_refusal(peer.into(), CallError::Busy));
            }
        }
    }
    dead.into_iter().for_each(|peer| shard.guests.peers.bury(peer));
    if gathering.has_nodes {
        awaited.push(NODES);
    }
    if awaited.is_empty() {
        return Asked::Complete(gathering);
    }
    let hub = &mut shard.guests.hub;
    hub.connection(id).expect("its request is being answered").doing = Doing::Elsewhere;
    shard.guests.peers.open.insert(ticket, id, awaited, Subject::Gather(gathering));
    Asked::Waits(ticket)
}

/// Makes all other shards repeat a change that was made here. The reply is `answer`.
pub(in crate::server) fn tell_all<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: &ApiCall,
    principal: Principal,
    answer: Reply,
) -> Answered {
    let gathering = Gathering::new(Purpose::Told(answer.clone()), Part::Done);
    match ask_all(shard, id, call, principal, gathering) {
        Asked::Waits(_) => Answered::Later,
        Asked::Complete(_) => hub::answer(shard, id, &answer),
        Asked::Refused(error) => hub::answer_error(shard, id, &error),
    }
}
