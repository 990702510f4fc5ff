//! What clients ask for, as values: a request that was read, understood and checked as far as that
//! goes without knowing which executions there are.

use std::time::Duration;

use serde_json::Value;
use smallvec::SmallVec;

use crate::base::{ExecutionId, ProgressToken, SubscriberId};
use crate::endpoint::{McpRequest, front};
use crate::engine::{
    Coalesce, From, Hold, Kind, Kinds, OnStall, Policy, ProgressSource, Start, SubscribeSpec,
    Timeouts,
};
use crate::tool::{Report, VirtualTool};
use crate::trace::TraceContext;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Which tools there are.
    Tools,
    /// Run a tool.
    Execute(Box<Execute>),
    /// Which executions there are.
    Executions,
    /// What an execution is doing.
    Inspect(ExecutionId),
    /// Make it stop.
    Cancel(ExecutionId),
    /// How it ended, and what it gave; to be answered at its end, or after so long.
    Result(ExecutionId, Duration),
    /// Its payload as it is, and nothing else.
    Output(ExecutionId, Kinds),
    /// Follow one execution, or several.
    Follow(Box<Follow>),
    /// A subscriber with acknowledgements has dealt with everything through a chunk.
    Acknowledge(ExecutionId, SubscriberId, u64),
    /// A subscriber is to be let go.
    Unsubscribe(ExecutionId, SubscriberId),
    /// How far the execution of this token is.
    Progress(ProgressToken),
    /// How far all are that have not ended.
    AllProgress,
    /// What has happened so far, in numbers.
    Metrics(MetricsFormat),
    /// May clients be sent here?
    Ready,
    /// Which tools of the client's there are whose work is done by clients.
    VirtualTools,
    /// Add one, or replace the one of its name.
    PutVirtualTool(Box<VirtualTool>),
    /// Take the one of this name away.
    DeleteVirtualTool(Box<str>),
    /// A worker is there, and takes calls.
    Work(Box<Work>),
    /// A worker has a part of a result.
    Deliver(Box<Deliver>),
    /// Something of the Model Context Protocol.
    Mcp(Box<McpRequest>),
    /// The ring of an execution, to be read by another process.
    ReadDoor(Box<ReadDoor>),
    /// A ring, to be written by another process.
    Produce(Box<Produce>),
    /// Something about a thread of a front end's.
    Thread(Box<ThreadCall>),
}

/// Something about a thread: a conversation, under the name that its client gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadCall {
    /// The name. Everybody has threads of his own.
    pub thread: Box<str>,
    /// What.
    pub ask: ThreadAsk,
}

/// What is asked about a thread.
#[derive(Clone, Debug, PartialEq)]
pub enum ThreadAsk {
    /// Follow the run that is under way, from its start.
    Rejoin(StreamFormat, Wishes),
    /// Make it stop.
    Cancel,
    /// LangGraph: follow all that is said on it, run after run.
    Follow(front::Format, FrontWish),
    /// LangGraph: what came of it so far.
    State,
    /// LangGraph: that there is such a thread; one without a name gets one.
    Describe,
}

/// What the client of a front end says of a run that it starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrontRun {
    /// Its name of the conversation.
    pub thread_id: Option<Box<str>>,
    /// Its name of the run.
    pub run_id: Option<Box<str>>,
    /// Tools that it would carry out itself.
    pub passed_over: Vec<String>,
    /// The answer is the one to LangGraph's command of this number.
    pub command: Option<u64>,
}

/// How another process wants to read the ring of an execution.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadDoor {
    /// Which.
    pub execution: ExecutionId,
    /// Its first chunk.
    pub from: From,
    /// What it is owed.
    pub wishes: Wishes,
}

/// An execution whose chunks another process is to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Produce {
    /// What it is called.
    pub name: Box<str>,
    /// Bytes of the ring.
    pub ring_bytes: u32,
    /// The longest chunk that must fit, or 0.
    pub chunk_bytes: u32,
    /// About how many payload bytes there will be, if that is known.
    pub estimated_bytes: Option<u64>,
    /// The rest is as of any execution.
    pub opening: Opening,
}

/// What is said of an execution whatever it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Opening {
    /// What its subscribers get that do not say what they want; `None`: what the tool says.
    pub policy: Option<PolicyWish>,
    /// When it starts.
    pub start: Start,
    /// What its ring does before anybody reads.
    pub hold: Hold,
    /// How long it may be silent, and may take; `None`: what the tool says.
    pub timeouts: Option<Timeouts>,
    /// How long it can be read after its end.
    pub retention: Option<Duration>,
    /// How long a `block` subscriber may hold it back.
    pub block_deadline: Option<Duration>,
    /// What happens then.
    pub on_stall: OnStall,
    /// Where its progress comes from; `None`: what the tool says.
    pub progress: Option<ProgressSource>,
}

/// A worker that takes calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// What it calls itself.
    pub session: Box<str>,
    /// Of these tools alone; `None`: of all.
    pub tools: Option<Vec<Box<str>>>,
}

/// A part of a result, from a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Deliver {
    /// What the worker calls itself.
    pub session: Box<str>,
    /// The part.
    pub part: Part,
    /// It is one of several in one body: it is answered with [`HttpConnection::take_part`] if it
    /// was taken, and with an answer to all of them if not.
    ///
    /// [`HttpConnection::take_part`]: crate::endpoint::HttpConnection::take_part
    pub is_of_many: bool,
}

/// What a worker says about one call at once, in the order in which it applies.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The call, which is called as its execution is.
    pub call: ExecutionId,
    /// Which part of it this is, from 1 on; `None`: the next.
    pub seq: Option<u64>,
    /// What comes next of the result.
    pub content: Option<(Kind, Vec<u8>)>,
    /// How far it is.
    pub progress: Option<Report>,
    /// It is the last one: the work is done, or has failed with this text.
    pub end: Option<Result<(), Box<str>>>,
}

/// A tool to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Execute {
    /// Its name.
    pub tool: String,
    /// An object.
    pub arguments: Value,
    /// How it is run.
    pub opening: Opening,
    /// The answer is the stream itself.
    pub stream: Option<(StreamFormat, Wishes)>,
    /// It is cancelled if that stream breaks.
    pub cancels: bool,
    /// What it is a part of.
    pub trace: TraceContext,
    /// What the client of a front end says of it.
    pub front: Option<Box<FrontRun>>,
}

/// A policy with its limits; `None`: what the policy says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyWish {
    /// What happens when a subscriber lags.
    pub policy: Policy,
    /// How far it may lag, in chunks.
    pub limit_chunks: Option<u32>,
    /// How far it may lag, in bytes.
    pub limit_bytes: Option<u64>,
}

/// Executions to be followed on one connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Follow {
    /// Which, and where each begins; at least one, none of them twice.
    pub executions: SmallVec<[(ExecutionId, From); 1]>,
    /// They were asked for together: each event's `id:` says how far all of them are.
    pub is_combined: bool,
    /// The client has been here before: it comes with the cursor of what it saw last.
    pub resumes: bool,
    /// As what it comes.
    pub format: StreamFormat,
    /// How it is followed.
    pub wishes: Wishes,
    /// What the client of a front end wants beside that.
    pub front: FrontWish,
}

/// What the client of a front end wants of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrontWish {
    /// The last event that it has, by its number.
    pub since: Option<u64>,
    /// Of which channels.
    pub channels: front::Channels,
    /// Tools that it would carry out itself: nothing here calls them, and it is told so.
    pub passed_over: Vec<String>,
}

/// How a client wants to follow an execution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wishes {
    /// What happens when it lags; `None`: what the execution or its tool says.
    pub policy: Option<Policy>,
    /// How far it may lag, in chunks.
    pub limit_chunks: Option<u32>,
    /// How far it may lag, in bytes.
    pub limit_bytes: Option<u64>,
    /// Which kinds it wants.
    pub kinds: Kinds,
    /// Chunks wait for company.
    pub coalesce: Option<Coalesce>,
    /// Nothing is sent beyond the last acknowledged chunk and so many more.
    pub ack_window: Option<u32>,
}

/// As what a stream comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamFormat {
    /// Server-sent events.
    Sse,
    /// A JSON object a line.
    Ndjson,
    /// As a front end reads it.
    Front(front::Format),
}

/// As what metrics come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The older text of Prometheus, 0.0.4.
    Prometheus,
}

impl Call {
    /// The number of the shard that has to answer; `None` where any can, or none can alone, or
    /// where that depends on who asks.
    pub fn home(&self) -> Option<u8> {
        match self {
            Call::Inspect(id)
            | Call::Cancel(id)
            | Call::Result(id, _)
            | Call::Output(id, _)
            | Call::Acknowledge(id, ..)
            | Call::Unsubscribe(id, _) => Some(id.shard),
            Call::Deliver(deliver) => Some(deliver.part.call.shard),
            Call::Progress(token) => Some(token.shard),
            Call::ReadDoor(door) => Some(door.execution.shard),
            Call::Mcp(request) => request.home(),
            Call::Follow(follow) => {
                // Where most of what is followed lives, and of several such where the first does.
                let shards = || follow.executions.iter().map(|(id, _)| id.shard);
                let count_of = |shard: u8| shards().filter(|&other| other == shard).count();
                shards().rev().max_by_key(|&shard| count_of(shard))
            }
            Call::Tools
            | Call::Execute(_)
            | Call::Executions
            | Call::AllProgress
            | Call::Metrics(_)
            | Call::Ready
            | Call::VirtualTools
            | Call::PutVirtualTool(_)
            | Call::DeleteVirtualTool(_)
            | Call::Produce(_)
            | Call::Thread(_)
            | Call::Work(_) => None,
        }
    }
}

impl Default for Wishes {
    fn default() -> Wishes {
        Wishes {
            policy: None,
            limit_chunks: None,
            limit_bytes: None,
            kinds: Kinds::ALL,
            coalesce: None,
            ack_window: None,
        }
    }
}

impl Wishes {
    /// As the engine wants it, with what applies where a wish is silent. A limit of `default` goes
    /// with its policy only.
    pub fn spec(&self, default: PolicyWish, from: From) -> SubscribeSpec {
        let policy = self.policy.unwrap_or(default.policy);
        let default = if policy == default.policy { default } else { PolicyWish::default() };
        SubscribeSpec {
            policy,
            limit_chunks: self.limit_chunks.or(default.limit_chunks),
            limit_bytes: self.limit_bytes.or(default.limit_bytes),
            kinds: self.kinds,
            from,
            ack_window: self.ack_window,
            coalesce: self.coalesce,
            ..SubscribeSpec::default()
        }
    }
}

impl StreamFormat {
    /// How a response says what it is.
    pub fn media_type(self) -> &'static str {
        match self {
            StreamFormat::Sse | StreamFormat::Front(_) => crate::wire::sse::MEDIA_TYPE,
            StreamFormat::Ndjson => crate::wire::ndjson::MEDIA_TYPE,
        }
    }
}
