//! Calls: the requests of clients as values. They were parsed and validated as far as that is
//! possible without knowing which executions exist.

use std::time::Duration;

use serde_json::Value;
use smallvec::SmallVec;

use crate::base::{ExecutionId, ProgressToken, SubscriberId};
use crate::endpoint::{DurableCall, ListAsk, McpRequest, ProducerAt, front};
use crate::engine::{
    Coalesce, From, Hold, OnStall, ProgressSource, Start, SubscribeSpec, Timeouts,
};
use crate::stream::{Durability, Kind, Kinds, OnFull, Policy};
use crate::tool::{Report, VirtualTool};
use crate::trace::TraceContext;
use crate::wire::http1::ByteRange;

/// A request of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiCall {
    /// Lists the tools.
    Tools,
    /// Runs a tool.
    Execute(Box<Execute>),
    /// Lists executions.
    Executions(Box<ListAsk>),
    /// Describes an execution.
    Inspect(ExecutionId),
    /// Cancels an execution.
    Cancel(ExecutionId),
    /// Removes everything that is kept of an ended execution.
    Forget(ExecutionId),
    /// Returns how an execution ended, and its output. The answer waits for the end, at most for
    /// this duration.
    Result(ExecutionId, Duration),
    /// Returns the payload of an execution as it is, and nothing else.
    Output(ExecutionId, Box<OutputAsk>),
    /// Follows one execution, or several.
    Follow(Box<Follow>),
    /// Acknowledges everything through a chunk for a subscriber with acknowledgements.
    Acknowledge(ExecutionId, SubscriberId, u64),
    /// Detaches a subscriber.
    Unsubscribe(ExecutionId, SubscriberId),
    /// Returns the progress of the execution of this token.
    Progress(ProgressToken),
    /// Returns the progress of all executions that have a token and have not ended.
    AllProgress,
    /// Returns the metrics of the server.
    Metrics(MetricsFormat),
    /// Returns whether clients may be sent to this server.
    Ready,
    /// Lists the virtual tools of the client, whose calls are carried out by workers.
    VirtualTools,
    /// Adds a virtual tool, or replaces the one with its name.
    PutVirtualTool(Box<VirtualTool>),
    /// Removes the virtual tool of this name.
    DeleteVirtualTool(Box<str>),
    /// Connects a worker, which takes calls.
    Work(Box<Work>),
    /// Delivers a part of a result from a worker.
    Deliver(Box<Deliver>),
    /// A request of the Model Context Protocol.
    Mcp(Box<McpRequest>),
    /// Grants another process the right to read the ring of an execution.
    ReadDoor(Box<ReadDoor>),
    /// Creates an execution whose ring another process writes.
    Produce(Box<Produce>),
    /// A request about a thread of a front end.
    Thread(Box<ThreadCall>),
    /// A request about a response.
    Response(ResponseCall),
    /// A search for assistants.
    Assistants(Box<AssistantsAsk>),
    /// A request about a task of A2A.
    Task(Box<TaskCall>),
    /// A search for tasks of A2A.
    Tasks(Box<TaskSearch>),
    /// Returns the agent card of A2A, for a client that knows this server by this origin. Without a
    /// scheme, that of the listener is meant.
    AgentCard(Box<str>),
    /// A request of the Durable Streams protocol.
    Durable(Box<DurableCall>),
}

/// The wanted part of the payload of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputAsk {
    /// The kinds of chunks whose payload is wanted.
    pub kinds: Kinds,
    /// The wanted bytes, once the execution has ended; `None`: all.
    pub range: Option<ByteRange>,
    /// True if the client has the payload of the ended execution.
    pub is_known: bool,
}

/// A request about a thread: a conversation under the name that its client gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadCall {
    /// The name of the thread. Each principal has its own threads.
    pub thread: Box<str>,
    /// The request.
    pub ask: ThreadAsk,
}

/// The request about a thread.
#[derive(Clone, Debug, PartialEq)]
pub enum ThreadAsk {
    /// Follows the current run from its start.
    Rejoin(StreamFormat, DeliveryOptions),
    /// Cancels the current run.
    Cancel,
    /// LangGraph: follows all runs of the thread, one after the other.
    Follow(front::FrontFormat, FrontOptions),
    /// LangGraph: returns the state that the runs led to so far, alone or in a list.
    State {
        /// True for a list, as clients want the history.
        is_listed: bool,
    },
    /// LangGraph: lists the runs that the server knows, which is the newest one.
    Runs {
        /// The number of runs to leave out.
        offset: u64,
        /// Only runs with this status.
        status: Option<&'static str>,
    },
    /// LangGraph: removes what is kept of the newest run.
    Forget,
    /// LangGraph: lists the threads, or counts them. The call names no thread.
    Search(ThreadSearch),
    /// LangGraph: returns the description of the thread. A thread without a name gets one.
    Describe,
}

/// A search for threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadSearch {
    /// The names of the threads; `None`: all.
    pub names: Option<Vec<Box<str>>>,
    /// True for threads with a run that has not ended, false for others; `None`: both.
    pub is_busy: Option<bool>,
    /// The number of threads to leave out.
    pub offset: usize,
    /// The maximum number of threads; `None`: only their number is wanted.
    pub limit: Option<usize>,
}

/// A request about a task of A2A: an execution, as its clients know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskCall {
    /// The execution.
    pub execution: ExecutionId,
    /// The request.
    pub ask: TaskAsk,
    /// The id of the JSON-RPC request that is answered, as JSON.
    pub reply_to: Option<Box<str>>,
    /// The maximum number of messages in the history.
    pub history_max: Option<usize>,
}

/// The request about a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskAsk {
    /// Returns the task as it is now.
    Get,
    /// Cancels it, and returns it.
    Cancel,
    /// Follows it.
    Subscribe {
        /// The number of the last event that the client has.
        since: Option<u64>,
    },
    /// Sends it a further message, which no task takes.
    Continue,
}

/// A search for tasks of A2A.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSearch {
    /// Only tasks of this context.
    pub context: Option<Box<str>>,
    /// Only tasks in this state.
    pub state: Option<&'static str>,
    /// The maximum number of tasks.
    pub page_size: usize,
    /// The time of the last change, and the id, of the task before this page.
    pub after: Option<(u64, ExecutionId)>,
    /// Only tasks that have changed since then, in microseconds since 1970.
    pub since_us: Option<u64>,
}

impl TaskSearch {
    /// Reads the text of a place in the list. `None` if no place has this text.
    pub fn place(text: &str) -> Option<(u64, ExecutionId)> {
        let (us, execution) = text.split_once('-')?;
        Some((us.parse().ok()?, execution.parse().ok()?))
    }
}

/// A search for the assistants of LangGraph clients: the models of this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssistantsAsk {
    /// Returns the assistant of this name.
    Get(Box<str>),
    /// Lists those that have this name, or all of them.
    Search {
        /// The name.
        name: Option<Box<str>>,
        /// The number of assistants to leave out.
        offset: usize,
        /// The maximum number of assistants; `None`: only their number is wanted.
        limit: Option<usize>,
    },
}

/// Details of a run that the client of a front end starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrontRun {
    /// The client's name of the conversation.
    pub thread_id: Option<Box<str>>,
    /// The client's name of the run.
    pub run_id: Option<Box<str>>,
    /// Names of tools that the client would carry out itself.
    pub passed_over: Vec<String>,
    /// The protocol of the request, and of its answer.
    pub protocol: FrontProtocol,
    /// The run whose conversation goes on. In a thread it is the newest one.
    pub previous: Option<ExecutionId>,
    /// The members that each answer repeats, and the conversation, for protocols in which the
    /// server remembers it.
    pub kept: Option<Box<serde_json::Value>>,
    /// The messages of the previous run, once they were read from the disk.
    pub remembered: Option<Vec<serde_json::Value>>,
    /// Responses: true if only the events of its specification are sent.
    pub is_plain: bool,
    /// A2A: the id of the JSON-RPC request that is answered, as JSON.
    pub reply_to: Option<Box<str>>,
    /// A2A: the maximum number of messages in the history.
    pub history_max: Option<usize>,
}

/// The protocol in which the client of a front end starts a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrontProtocol {
    /// The server's own, which AI SDK and AG-UI use, too. The client sends the whole conversation.
    #[default]
    Own,
    /// A LangGraph command, with its number. The thread remembers.
    Command(u64),
    /// LangGraph's ordinary API. The thread remembers.
    Run,
    /// The Responses API. A response remembers.
    Response,
    /// A2A. The context remembers.
    Task,
}

impl Execute {
    /// Returns the thread whose conversation the run goes on with, if the server remembers it.
    pub fn remembering_thread(&self) -> Option<&str> {
        let front = self.front.as_ref().filter(|front| front.protocol.has_threads())?;
        front.thread_id.as_deref()
    }
}

impl FrontProtocol {
    /// True if a run goes on with the conversation of the thread's last one.
    pub fn has_threads(self) -> bool {
        matches!(self, FrontProtocol::Command(_) | FrontProtocol::Run | FrontProtocol::Task)
    }

    /// Returns the number of the command, if it is one.
    pub fn command(self) -> Option<u64> {
        match self {
            FrontProtocol::Command(id) => Some(id),
            _ => None,
        }
    }
}

/// A request about a response: an execution, as clients of the Responses API know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseCall {
    /// The execution.
    pub execution: ExecutionId,
    /// The request.
    pub ask: ResponseAsk,
}

/// The request about a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseAsk {
    /// Returns the response as it is now.
    Retrieve,
    /// Follows the events.
    Follow {
        /// The number of the last event that the client has.
        after: Option<u64>,
        /// True if only the events of the specification are sent.
        is_plain: bool,
    },
    /// Cancels it, and returns it.
    Cancel,
    /// Returns it as a run of LangGraph's ordinary API.
    Run,
    /// Returns the items of its input.
    InputItems {
        /// True if the oldest one comes first.
        is_ascending: bool,
    },
}

/// The request of another process to read the ring of an execution.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadDoor {
    /// The execution to read.
    pub execution: ExecutionId,
    /// The first chunk to read.
    pub from: From,
    /// The delivery options.
    pub delivery_options: DeliveryOptions,
}

/// The request to create an execution whose chunks another process writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Produce {
    /// The name of the execution, as a tool would have one.
    pub name: Box<str>,
    /// The size of the ring, in bytes.
    pub ring_bytes: u32,
    /// The length of the longest chunk that must fit, in bytes, or 0.
    pub chunk_bytes: u32,
    /// The estimated number of payload bytes, if it is known.
    pub estimated_bytes: Option<u64>,
    /// The options that every execution has.
    pub opening: Opening,
}

/// The options of an execution that do not depend on what it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Opening {
    /// The policy of subscribers that do not choose one; `None`: the default of the tool.
    pub policy: Option<PolicyChoice>,
    /// The condition under which the execution starts.
    pub start: Start,
    /// The handling of chunks before anybody reads.
    pub hold: Hold,
    /// The limits of silence and of duration; `None`: those of the tool.
    pub timeouts: Option<Timeouts>,
    /// The time for which it can be read after its end.
    pub retention: Option<Duration>,
    /// The time for which a `block` subscriber may hold it back.
    pub block_deadline: Option<Duration>,
    /// The reaction when that time is over.
    pub on_stall: OnStall,
    /// The source of its progress; `None`: the one of the tool.
    pub progress: Option<ProgressSource>,
    /// The promise for its chunks; `None`: the one of the server.
    pub durability: Option<Durability>,
    /// The time at which subscribers are given its chunks.
    pub deliver: crate::stream::Deliver,
    /// The consequence if the disk has no room; `None`: a pause.
    pub on_full: Option<OnFull>,
    /// The time for which it is kept after its end; `None`: the one of the server.
    pub keep: Option<Duration>,
}

/// A worker that takes calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The name that the worker gave itself.
    pub session: Box<str>,
    /// The tools whose calls it takes; `None`: all virtual tools.
    pub tools: Option<Vec<Box<str>>>,
}

/// A part of a result, delivered by a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Deliver {
    /// The name that the worker gave itself.
    pub session: Box<str>,
    /// The part.
    pub part: DeliveredPart,
    /// The producer, and the number of the part in it. The number of the part follows from it.
    pub producer: Option<ProducerAt>,
    /// True if the part is one of several in one body. If it is accepted,
    /// [`HttpConnection::take_part`] answers it. If not, one error answers the whole body.
    ///
    /// [`HttpConnection::take_part`]: crate::endpoint::HttpConnection::take_part
    pub is_of_many: bool,
}

/// The content of one delivery for a call. Its members apply in the order of the fields.
#[derive(Clone, Debug, PartialEq)]
pub struct DeliveredPart {
    /// The call. Its id is the one of its execution.
    pub call: ExecutionId,
    /// The number of the part in its call, from 1 on; `None`: the next one.
    pub seq: Option<u64>,
    /// The next piece of the result.
    pub content: Option<(Kind, Vec<u8>)>,
    /// The progress of the call.
    pub progress: Option<Report>,
    /// The end of the call, if this is the last part: success, or an error text.
    pub end: Option<Result<(), Box<str>>>,
}

/// A request to run a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Execute {
    /// The name of the tool.
    pub tool: String,
    /// The arguments: an object.
    pub arguments: Value,
    /// The options of the execution.
    pub opening: Opening,
    /// The format and the options of the stream, if the answer is the stream itself.
    pub stream: Option<(StreamFormat, DeliveryOptions)>,
    /// True if the execution is cancelled when the connection of that stream breaks.
    pub cancels: bool,
    /// The trace that the execution belongs to.
    pub trace: TraceContext,
    /// Details that the client of a front end gave.
    pub front: Option<Box<FrontRun>>,
    /// The key that a repeated request has, too.
    pub key: Option<IdempotencyKey>,
}

/// A key that the client gives to a request, so that it can repeat the request safely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The key, without quotes.
    pub text: Box<str>,
    /// A hash of the body. The same key with another body is an error.
    pub digest: u64,
}

/// A policy with its limits. A limit of `None` means the default of the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyChoice {
    /// The handling of a subscriber that lags.
    pub policy: Policy,
    /// The maximum lag in chunks.
    pub limit_chunks: Option<u32>,
    /// The maximum lag in bytes.
    pub limit_bytes: Option<u64>,
}

/// A request to follow executions on one connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Follow {
    /// The executions, and where each begins. At least one; none of them twice.
    pub executions: SmallVec<[(ExecutionId, From); 1]>,
    /// True if the executions were requested as a list. Each event's `id:` then holds the cursors
    /// of all of them.
    pub is_combined: bool,
    /// The executions whose end the client has received, as its cursors say.
    pub seen_ends: SmallVec<[ExecutionId; 1]>,
    /// The format of the stream.
    pub format: StreamFormat,
    /// The delivery options.
    pub delivery_options: DeliveryOptions,
    /// Further options for the format of a front end.
    pub front: FrontOptions,
}

/// Options of a stream in the format of a front end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrontOptions {
    /// The number of the last event that the client has.
    pub since: Option<u64>,
    /// The channels to send.
    pub channels: front::Channels,
    /// Names of tools that the client would carry out itself. The server does not call them, and
    /// says so in the stream.
    pub passed_over: Vec<String>,
    /// Responses: true if only the events of its specification are sent. Some clients refuse
    /// others.
    pub is_plain: bool,
    /// True if the execution is cancelled when the connection breaks.
    pub cancels: bool,
    /// A2A: the id of the JSON-RPC request that is answered, as JSON.
    pub reply_to: Option<Box<str>>,
    /// A2A: the maximum number of messages in the history.
    pub history_max: Option<usize>,
}

/// Delivery options of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeliveryOptions {
    /// The handling of a lag; `None`: the default of the execution or its tool.
    pub policy: Option<Policy>,
    /// The maximum lag in chunks.
    pub limit_chunks: Option<u32>,
    /// The maximum lag in bytes.
    pub limit_bytes: Option<u64>,
    /// The kinds of chunks to deliver.
    pub kinds: Kinds,
    /// The limits of coalescing, if small chunks are gathered before they are sent.
    pub coalesce: Option<Coalesce>,
    /// The number of chunks that may be sent beyond the last acknowledged one.
    pub ack_window: Option<u32>,
}

/// The format of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamFormat {
    /// Server-sent events.
    Sse,
    /// One JSON object per line.
    Ndjson,
    /// The format of a front end.
    Front(front::FrontFormat),
}

/// The format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The older text format of Prometheus, 0.0.4.
    Prometheus,
}

impl ApiCall {
    /// Returns the number of the shard that must answer. `None` if any shard can, if no shard can
    /// alone, or if it depends on the caller.
    pub fn home(&self) -> Option<u8> {
        match self {
            ApiCall::Deliver(deliver) => Some(deliver.part.call.shard),
            ApiCall::Progress(token) => Some(token.shard),
            ApiCall::Mcp(request) => request.home(),
            ApiCall::Follow(follow) => {
                // The shard of most of the executions; if several have equally many, the first one
                // listed.
                let shards = || follow.executions.iter().map(|(id, _)| id.shard);
                let count_of = |shard: u8| shards().filter(|&other| other == shard).count();
                shards().rev().max_by_key(|&shard| count_of(shard))
            }
            call => call.execution().map(|id| id.shard),
        }
    }

    /// Returns the executions that the call names, and that have to exist.
    pub fn executions(&self) -> SmallVec<[ExecutionId; 1]> {
        match self {
            ApiCall::Follow(follow) => follow.executions.iter().map(|(id, _)| *id).collect(),
            ApiCall::Mcp(request) => request.execution().into_iter().collect(),
            call => call.execution().into_iter().collect(),
        }
    }

    /// Returns the one execution that a request of the HTTP API names, and that has to exist.
    fn execution(&self) -> Option<ExecutionId> {
        match self {
            ApiCall::Inspect(id)
            | ApiCall::Cancel(id)
            | ApiCall::Forget(id)
            | ApiCall::Result(id, _)
            | ApiCall::Output(id, _)
            | ApiCall::Acknowledge(id, ..)
            | ApiCall::Unsubscribe(id, _) => Some(*id),
            ApiCall::ReadDoor(door) => Some(door.execution),
            ApiCall::Response(call) => Some(call.execution),
            ApiCall::Task(call) => Some(call.execution),
            ApiCall::Execute(execute) => execute.front.as_ref().and_then(|front| front.previous),
            ApiCall::Follow(_)
            | ApiCall::Mcp(_)
            | ApiCall::Progress(_)
            | ApiCall::Deliver(_)
            | ApiCall::Tools
            | ApiCall::Executions(_)
            | ApiCall::AllProgress
            | ApiCall::Metrics(_)
            | ApiCall::Ready
            | ApiCall::VirtualTools
            | ApiCall::PutVirtualTool(_)
            | ApiCall::DeleteVirtualTool(_)
            | ApiCall::Produce(_)
            | ApiCall::Thread(_)
            | ApiCall::Assistants(_)
            | ApiCall::Tasks(_)
            | ApiCall::AgentCard(_)
            | ApiCall::Work(_) => None,
            ApiCall::Durable(call) => call.execution(),
        }
    }
}

impl Default for DeliveryOptions {
    fn default() -> DeliveryOptions {
        DeliveryOptions {
            policy: None,
            limit_chunks: None,
            limit_bytes: None,
            kinds: Kinds::ALL,
            coalesce: None,
            ack_window: None,
        }
    }
}

impl DeliveryOptions {
    /// Returns the subscription for the engine, with `default` for what the client did not choose.
    /// The limits of `default` apply only together with its policy.
    pub fn spec(&self, default: PolicyChoice, from: From) -> SubscribeSpec {
        let policy = self.policy.unwrap_or(default.policy);
        let default = if policy == default.policy { default } else { PolicyChoice::default() };
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
    /// Returns the media type for the `Content-Type` of the stream.
    pub fn media_type(self) -> &'static str {
        match self {
            StreamFormat::Sse | StreamFormat::Front(_) => crate::wire::sse::MEDIA_TYPE,
            StreamFormat::Ndjson => crate::wire::ndjson::MEDIA_TYPE,
        }
    }
}
