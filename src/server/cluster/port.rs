//! The line between a shard and the thread of its node: values in both directions.

use std::fmt;

use serde_json::Value;

use super::status::NodeStatus;
use crate::base::ExecutionId;
use crate::cluster::claim::PathName;
use crate::cluster::directory::Entry;
use crate::cluster::follow::Landmark;
use crate::cluster::piece::Piece;
use crate::cluster::record::Incarnation;
use crate::endpoint::{Elsewhere, ListAsk};
use crate::reactor::{ConnectionId, Waker};
use crate::server::ServerHandle;
use crate::server::peers::{Ticket, ToPeer};
use crate::shard::journal::LogNews;
use crate::shard::{CallError, Subscriber};
use crate::stream::KindTotals;

/// The way of a shard to the thread of its node.
pub trait ClusterLine: Send + Sync + fmt::Debug {
    /// Sends a request. Never blocks.
    ///
    /// # Errors
    /// The request, if there is no room for it now.
    fn send(&self, request: ToCluster) -> Result<(), ToCluster>;

    /// Wakes the thread, for the readers of rings that sleep there.
    fn waker(&self) -> Waker;

    /// The numbers of the node, a second old at most.
    fn status(&self) -> NodeStatus {
        NodeStatus::default()
    }
}

/// The name of a reader of old chunks, unique among those of its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReaderName {
    /// The shard.
    pub shard: u8,
    /// The number.
    pub number: u64,
}

/// A request of a shard.
pub enum ToCluster {
    /// Mirror an execution of this node.
    Mirror(Box<Mirrored>),
    /// The mirror may read more of an execution.
    Show {
        /// The execution.
        execution: ExecutionId,
        /// The last chunk that it may read.
        through_seq: u64,
    },
    /// Store the end of an execution that is mirrored, behind all its chunks.
    End {
        /// The execution.
        execution: ExecutionId,
        /// The description of the end.
        details: Box<[u8]>,
        /// The totals of all chunks.
        published: Box<KindTotals>,
    },
    /// Find an execution. The answer is [`FromCluster::Located`].
    Locate {
        /// The shard that asks.
        shard: u8,
        /// The execution.
        execution: ExecutionId,
    },
    /// Follow the log of an execution from a place on.
    Follow {
        /// The shard that has the replica.
        shard: u8,
        /// The execution.
        execution: ExecutionId,
        /// The life of the node that runs its tool.
        owner: Incarnation,
        /// The place.
        from: Box<Landmark>,
    },
    /// A replica has room for more, or has none.
    SetRoom {
        /// The execution.
        execution: ExecutionId,
        /// True if it has room.
        has_room: bool,
    },
    /// Follow the log no more.
    Unfollow {
        /// The execution.
        execution: ExecutionId,
    },
    /// Read old chunks. Each answer is a part, and the next one comes on [`ToCluster::ReadMore`].
    Read {
        /// The name of the reader.
        reader: ReaderName,
        /// The execution.
        execution: ExecutionId,
        /// The life of the node that runs its tool.
        owner: Incarnation,
        /// The first chunk.
        from_seq: u64,
        /// The place in the log behind the last record to read.
        until: Box<Landmark>,
    },
    /// Read the next part.
    ReadMore(ReaderName),
    /// Read no more.
    StopReading(ReaderName),
    /// List executions of all nodes. The answer is [`FromCluster::Listed`].
    List(Box<Listing>),
    /// The answer to [`FromCluster::List`].
    Listed {
        /// The number of the list.
        number: u64,
        /// The executions, each as a summary.
        executions: Vec<Value>,
    },
    /// Let the owner cancel an execution.
    Cancel {
        /// The execution.
        execution: ExecutionId,
        /// The name of the owner.
        node: Box<str>,
    },
    /// Find out which node has the path of a stream, or change that. The answer is
    /// [`FromCluster::Claimed`].
    Claim {
        /// The shard that asks.
        shard: u8,
        /// The connection whose request waits for the answer, if there is one.
        asker: Option<ConnectionId>,
        /// The path.
        name: Box<PathName>,
        /// The wish.
        wish: ClaimWish,
    },
}

/// A list of executions of all nodes that is wanted.
pub struct Listing {
    /// The shard that asks.
    pub shard: u8,
    /// The question that waits for it.
    pub ticket: Ticket,
    /// The name of the principal whose executions are listed.
    pub owner: Option<Box<str>>,
    /// The request.
    pub ask: Box<ListAsk>,
}

/// The parts of all other nodes in a list of executions.
#[derive(Debug)]
pub struct Listed {
    /// The name of the node that has asked.
    pub node: Box<str>,
    /// The executions of the others, each as a summary with the name of its node.
    pub executions: Vec<Value>,
    /// The nodes that have not answered.
    pub missing: Vec<Box<str>>,
}

/// A wish about the path of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimWish {
    /// Find the node that has it.
    Look,
    /// Give it to this node, if no other one has it.
    Take,
    /// Free it, if this node has it.
    Free,
}

/// The node that has a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// None.
    Free,
    /// This one.
    Here,
    /// Another one. It has a URL if it lives.
    By(Elsewhere),
    /// The cluster does not answer.
    Unknown,
}

/// An execution to mirror.
pub struct Mirrored {
    /// The execution.
    pub execution: ExecutionId,
    /// Its entry. The node's thread sets the owner.
    pub entry: Entry,
    /// The reader of its ring; `None` if it has none, and only its end will be stored.
    pub subscriber: Option<Subscriber>,
    /// True if its shard waits for the log ([`FromCluster::Logged`]), and sends its end.
    pub is_replicated: bool,
    /// The last chunk that the mirror may read; `None`: it may read all. [`ToCluster::Show`] raises
    /// it, and the shard sends the end.
    pub through_seq: Option<u64>,
}

/// A message to a shard.
pub enum FromCluster {
    /// The answer to [`ToCluster::Locate`].
    Located {
        /// The execution.
        execution: ExecutionId,
        /// The answer.
        located: Located,
    },
    /// Parts of a log that is followed.
    Given {
        /// The execution.
        execution: ExecutionId,
        /// The parts, in order.
        pieces: Vec<Piece>,
        /// The place behind them.
        at: Box<Landmark>,
    },
    /// Old chunks for a reader.
    Old {
        /// The name of the reader.
        reader: ReaderName,
        /// The parts, in order.
        pieces: Vec<Piece>,
        /// True if nothing follows them.
        is_all: bool,
    },
    /// News of the log of an execution that is replicated.
    Logged {
        /// The execution.
        execution: ExecutionId,
        /// The news.
        news: LogNews,
    },
    /// The node is cut off, and others will end its executions. It has to end them itself.
    CutOff,
    /// Cancel an execution of this node, for another node.
    Cancel {
        /// The execution.
        execution: ExecutionId,
    },
    /// List executions of this shard for another node. The answer is [`ToCluster::Listed`].
    List {
        /// The number of the list.
        number: u64,
        /// The name of the principal whose executions are listed.
        owner: Option<Box<str>>,
        /// The request.
        ask: Box<ListAsk>,
    },
    /// The answer to [`ToCluster::List`].
    Listed {
        /// The question that waits for it.
        ticket: Ticket,
        /// The answer.
        listed: Listed,
    },
    /// The answer to [`ToCluster::Claim`].
    Claimed {
        /// The connection whose request waits for the answer, if there is one.
        asker: Option<ConnectionId>,
        /// The path.
        name: Box<PathName>,
        /// The wish.
        wish: ClaimWish,
        /// The node that has it.
        holder: Holder,
    },
}

impl FromCluster {
    /// Its name, for logs.
    pub fn name(&self) -> &'static str {
        match self {
            FromCluster::Located { .. } => "located",
            FromCluster::Given { .. } => "given",
            FromCluster::Old { .. } => "old",
            FromCluster::Logged { .. } => "logged",
            FromCluster::CutOff => "cut_off",
            FromCluster::Cancel { .. } => "cancel",
            FromCluster::Claimed { .. } => "claimed",
            FromCluster::List { .. } => "list",
            FromCluster::Listed { .. } => "listed",
        }
    }
}

impl ServerHandle {
    /// Sends a message of the cluster to the shard.
    ///
    /// # Errors
    /// [`CallError`], and the message.
    #[doc(hidden)]
    pub fn tell_cluster(
        &self,
        message: Box<FromCluster>,
    ) -> Result<(), (CallError, Box<FromCluster>)> {
        self.tell(ToPeer::Cluster(message)).map_err(|(error, message)| match message {
            ToPeer::Cluster(message) => (error, message),
            _ => unreachable!("the refused message comes back"),
        })
    }
}

/// The result of a look at the directory.
pub enum Located {
    /// No node has such an execution.
    Nowhere,
    /// The cluster does not answer.
    Away,
    /// It is there.
    Found(Box<Found>),
}

/// An execution that was found.
pub struct Found {
    /// The node that runs its tool.
    pub node: Elsewhere,
    /// Its entry.
    pub entry: Entry,
    /// The place behind everything that its log has.
    pub at: Landmark,
    /// The details of its end, if its log has the end.
    pub end: Option<Box<[u8]>>,
}
