//! The table of all HTTP requests. Requests are matched against it, and `/openapi.json` is
//! generated from it.

use std::sync::LazyLock;

use crate::endpoint::answer::{Answer, JSON};
use crate::endpoint::ask::{ParsedHead, RoutedRequest};
use crate::endpoint::fields::{Field, Preset, Shape};
use crate::endpoint::front::{self, bodies};
use crate::endpoint::lines::LinesBody;
use crate::endpoint::parameters::{
    DOOR_WISHES, EXECUTIONS, FORMAT, FROM, FROM_ALL, IF_NONE_MATCH, KEY_AND_TRACE, KINDS,
    LAST_EVENT_ID, LISTED, METRICS_TYPES, RANGES, SESSION, SESSION_AND_PRODUCER, STREAM, TICKETS,
    TRACE, WAIT, WISHES, WORKER_TOOLS,
};
use crate::endpoint::representation::{Document, StaticDocument};
use crate::endpoint::{
    ApiCall, ApiError, StreamFormat, ThreadAsk, ThreadCall, Work, a2a, agent, documents, door,
    durable, execute, graph, mcp, openapi, responses, subscriptions, threads, workers,
};
use crate::engine::NotFound;
use crate::limits;
use crate::wire::http1::{Method, Status};

/// One kind of request.
#[derive(Debug)]
pub(super) struct Route {
    pub method: Method,
    /// The path template. Parts in braces are names of [`PATH_FIELDS`].
    pub path: &'static str,
    /// The operation id in the description, for generated clients.
    pub name: &'static str,
    /// The purpose. Its first sentence is the summary in the description.
    pub about: &'static str,
    /// The parameters in the query string, in groups.
    pub query: &'static [&'static [Field]],
    pub headers: &'static [Field],
    pub body: Option<Body>,
    /// The possible successful answers. Every other answer is an [`ApiError`].
    pub answers: &'static [(Status, Content)],
    /// True if anybody may send it, without a token and to any host name: probes of service
    /// managers and load balancers have neither.
    pub is_open: bool,
    /// The properties of the document in the answer, if the server makes it itself. Only these
    /// answers are compressed.
    pub document: Option<Document>,
    /// Reads the head of the request.
    pub begin: fn(&RoutedRequest<'_>) -> Result<ParsedHead, ApiError>,
}

/// The body of a request: a JSON object.
#[derive(Debug)]
pub(super) struct Body {
    pub fields: &'static [Field],
    pub bytes_max: u64,
    /// True if the body may have several objects, one per line, each of at most `bytes_max`.
    pub takes_lines: bool,
    /// True if clients of front ends may send their own bodies, with members of their choice.
    pub has_others: bool,
}

impl Body {
    pub const fn new(fields: &'static [Field], bytes_max: u64) -> Body {
        Body { fields, bytes_max, takes_lines: false, has_others: false }
    }
}

/// The content of an answer.
#[derive(Debug)]
pub(super) enum Content {
    Empty,
    /// A JSON document; its schema has this name.
    Json(&'static str),
    /// Events, in any format of a stream.
    Events,
    /// The events for a worker.
    WorkerEvents,
    /// The lines for another process that shares memory.
    DoorLines,
    /// JSON-RPC messages: one as JSON, or several as events.
    Mcp,
    /// The same, of A2A.
    A2a,
    /// A payload as it is.
    Bytes,
    /// Text of one of these types.
    Text(&'static [&'static str]),
}

/// The parameters in paths.
pub(super) const PATH_FIELDS: &[Field] = &[
    Field::new(
        "thread",
        Shape::Text { bytes_max: limits::THREAD_ID_BYTES_MAX as u64 },
        "The client's name of a conversation. Each principal has its own threads.",
    )
    .required(),
    Field::new("execution", Shape::Execution, "The execution's id.").required(),
    Field::new("task_id", Shape::Execution, "The id of a task, which is that of its execution.")
        .required(),
    Field::new(
        "response",
        Shape::Response,
        "The id of a response: `resp_` and the id of its execution.",
    )
    .required(),
    Field::new(
        "assistant",
        Shape::Text { bytes_max: limits::THREAD_ID_BYTES_MAX as u64 },
        "The name of a model of this server, or `agent` for the first one.",
    )
    .required(),
    Field::new("subscriber", Shape::Subscriber, "The subscriber's id.").required(),
    Field::new("token", Shape::Token, "A progress token.").required(),
    Field::new("name", Shape::ToolName, "The name of a tool.").required(),
    Field::new(
        "subscription",
        Shape::Text { bytes_max: limits::SUBSCRIPTION_ID_BYTES_MAX as u64 },
        "The client's name of a subscription. Each principal has its own subscriptions.",
    )
    .required(),
    Field::new(
        "stream",
        Shape::Text { bytes_max: limits::DURABLE_PATH_BYTES_MAX as u64 },
        "The path of a stream, of any number of parts. Each principal has its own streams. \
         `executions/ID` is the output of an execution.",
    )
    .required(),
];

/// The answer of a node of a cluster that does not have the stream: its address at another one.
const ELSEWHERE: (Status, Content) = (Status::TEMPORARY_REDIRECT, Content::Empty);

pub(super) const PLAIN: Route = Route {
    method: Method::Get,
    path: "",
    name: "",
    about: "",
    query: &[],
    headers: &[],
    body: None,
    answers: &[],
    is_open: false,
    document: None,
    begin: |_| Err(NotFound.into()),
};

/// The format for a client that rejoins a thread without naming one.
const AI_SDK: StreamFormat =
    StreamFormat::Front(front::FrontFormat::AiSdk { sdk: front::SdkVersion::V5 });

/// The parameter of a request that ends an execution.
const FORGET: &[Field] = &[Field::new(
    "forget",
    Shape::Choice(&["false", "true"]),
    "True to remove what is kept of an execution that has ended.",
)
.or(Preset::Text("false"))];
/// The request headers that determine a document with several media types.
const BY_TYPE: &str = "accept, accept-encoding";

/// The answers at the root: a page for people, and a document for programs.
static PAGE: LazyLock<StaticDocument> = LazyLock::new(|| {
    StaticDocument::new("text/html; charset=utf-8", include_bytes!("index.html").as_slice())
});
static INDEX: LazyLock<StaticDocument> = LazyLock::new(|| {
    let answer = Answer::json(Status::OK, &documents::index());
    StaticDocument::new(JSON, answer.body().to_vec())
});

/// Compresses the documents that never change, before a shard serves them.
pub(crate) fn prepare_documents() {
    for document in [&*PAGE, &*INDEX, openapi::document()] {
        document.prepare();
    }
}

/// All routes.
pub(super) const ROUTES: &[Route] = &[
    Route {
        path: "/v1/tools",
        name: "listTools",
        about: "Lists all tools.",
        headers: IF_NONE_MATCH,
        answers: &[(Status::OK, Content::Json("Tools")), (Status::NOT_MODIFIED, Content::Empty)],
        document: Some(Document { has_etag: true, ..Document::PLAIN }),
        begin: |_| Ok(ParsedHead::Call(ApiCall::Tools)),
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/v1/executions",
        name: "createExecution",
        about: "Runs a tool. With `format`, the reply is the stream of its execution.",
        query: &[STREAM, WISHES],
        headers: KEY_AND_TRACE,
        body: Some(Body::new(execute::EXECUTE, limits::HTTP_BODY_BYTES_MAX)),
        answers: &[(Status::CREATED, Content::Json("Created")), (Status::OK, Content::Events)],
        begin: |request| {
            let parameters = &request.parameters;
            let (stream, key) = (parameters.stream()?, parameters.key()?);
            Ok(ParsedHead::Execute(stream, parameters.trace(), key))
        },
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/v1/agent/stream",
        name: "runAgent",
        about: "Runs an agent as an execution of the tool `agent`. The reply streams its parts.",
        query: &[FORMAT, WISHES],
        headers: TRACE,
        body: Some(Body {
            has_others: true,
            ..Body::new(agent::STREAMED, limits::CONVERSATION_BODY_BYTES_MAX)
        }),
        answers: &[(Status::OK, Content::Events)],
        begin: |request| {
            let parameters = &request.parameters;
            let said = parameters.explicit_format()?;
            let own = said.map_or_else(|| parameters.format(), Ok)?;
            let stream = agent::StreamOptions {
                said,
                own,
                delivery_options: parameters.delivery_options()?,
            };
            Ok(ParsedHead::Agent(stream, parameters.trace()))
        },
        ..PLAIN
    },
    responses::CREATE,
    responses::GET,
    responses::CANCEL,
    responses::INPUT,
    responses::DELETE,
    Route {
        path: "/v1/agent/stream/{thread}/stream",
        name: "followThreadRun",
        about: "Follows the run of a thread from its start. Returns 204 if no run is active.",
        query: &[FORMAT, WISHES],
        answers: &[(Status::OK, Content::Events), (Status::NO_CONTENT, Content::Empty)],
        begin: |request| {
            let parameters = &request.parameters;
            let format = parameters.explicit_format()?.unwrap_or(AI_SDK);
            let ask = ThreadAsk::Rejoin(format, parameters.delivery_options()?);
            Ok(ParsedHead::Call(ApiCall::Thread(
                ThreadCall { thread: request.thread()?, ask }.into(),
            )))
        },
        ..PLAIN
    },
    Route {
        method: Method::Delete,
        path: "/v1/agent/stream/{thread}",
        name: "cancelThreadRun",
        about: "Cancels the run of a thread. Returns 202, or 200 if it had ended already.",
        answers: &[
            (Status::ACCEPTED, Content::Json("State")),
            (Status::OK, Content::Json("State")),
        ],
        begin: |request| {
            let (thread, ask) = (request.thread()?, ThreadAsk::Cancel);
            Ok(ParsedHead::Call(ApiCall::Thread(ThreadCall { thread, ask }.into())))
        },
        ..PLAIN
    },
    Route {
        path: "/v1/executions",
        name: "listExecutions",
        about: "Lists executions, running and retained, in the order of their creation.",
        query: &[LISTED],
        answers: &[(Status::OK, Content::Json("Executions"))],
        document: Some(Document::PLAIN),
        begin: |request| {
            Ok(ParsedHead::Call(ApiCall::Executions(request.parameters.listed()?.into())))
        },
        ..PLAIN
    },
    Route {
        path: "/v1/executions/{execution}",
        name: "inspectExecution",
        about: "Returns the state of an execution and of each of its subscribers.",
        answers: &[(Status::OK, Content::Json("Execution"))],
        begin: |request| Ok(ParsedHead::Call(ApiCall::Inspect(request.execution()?))),
        ..PLAIN
    },
    Route {
        method: Method::Delete,
        path: "/v1/executions/{execution}",
        name: "cancelExecution",
        about: "Cancels an execution. Returns 202, or 200 if it had ended already. With `forget`, \
                  it removes an execution that has ended, and returns 204 once the disk has \
                  forgotten it.",
        query: &[FORGET],
        answers: &[
            (Status::ACCEPTED, Content::Json("State")),
            (Status::OK, Content::Json("State")),
            (Status::NO_CONTENT, Content::Empty),
        ],
        begin: |request| {
            let id = request.execution()?;
            Ok(ParsedHead::Call(match request.parameters.forgets()? {
                true => ApiCall::Forget(id),
                false => ApiCall::Cancel(id),
            }))
        },
        ..PLAIN
    },
    Route {
        path: "/v1/executions/{execution}/result",
        name: "getResult",
        about: "Returns the outcome and the output of an execution, or 202 if it has not ended \
                  in time.",
        query: &[WAIT],
        answers: &[
            (Status::OK, Content::Json("Result")),
            (Status::ACCEPTED, Content::Json("State")),
        ],
        begin: |request| {
            let (id, wait) = (request.execution()?, request.parameters.wait()?);
            Ok(ParsedHead::Call(ApiCall::Result(id, wait)))
        },
        ..PLAIN
    },
    Route {
        path: "/v1/executions/{execution}/output",
        name: "getOutput",
        about: "Returns the raw payload of an execution from the start. It is cut off if the \
                  execution fails. Ranges of it are available once the execution has completed, if \
                  its ring holds all of it.",
        query: &[KINDS],
        headers: RANGES,
        answers: &[
            (Status::OK, Content::Bytes),
            (Status::PARTIAL_CONTENT, Content::Bytes),
            (Status::NOT_MODIFIED, Content::Empty),
        ],
        begin: |request| {
            let id = request.execution()?;
            let ask = request.parameters.output(id, request.is_head)?;
            Ok(ParsedHead::Call(ApiCall::Output(id, ask.into())))
        },
        ..PLAIN
    },
    Route {
        path: "/v1/executions/{execution}/events",
        name: "followExecution",
        about: "Follows an execution. Returns 204 if the client has already seen its end.",
        query: &[FORMAT, FROM, WISHES, TICKETS],
        headers: LAST_EVENT_ID,
        answers: &[(Status::OK, Content::Events), (Status::NO_CONTENT, Content::Empty)],
        begin: |request| {
            let follow = request.parameters.follow(request.execution()?)?;
            Ok(ParsedHead::Call(ApiCall::Follow(follow.into())))
        },
        ..PLAIN
    },
    Route {
        path: "/v1/events",
        name: "followExecutions",
        about: "Follows several executions on one connection, until all have ended.",
        query: &[EXECUTIONS, FORMAT, FROM_ALL, WISHES],
        headers: LAST_EVENT_ID,
        answers: &[(Status::OK, Content::Events), (Status::NO_CONTENT, Content::Empty)],
        begin: |request| {
            Ok(ParsedHead::Call(ApiCall::Follow(request.parameters.follow_listed()?.into())))
        },
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/v1/executions/{execution}/subscribers/{subscriber}/acks",
        name: "acknowledgeChunks",
        about: "Acknowledges chunks, for a subscriber with acknowledgements.",
        body: Some(Body::new(execute::ACKNOWLEDGE, limits::HTTP_SMALL_BODY_BYTES_MAX)),
        answers: &[(Status::NO_CONTENT, Content::Empty)],
        begin: |request| Ok(ParsedHead::Acknowledge(request.execution()?, request.subscriber()?)),
        ..PLAIN
    },
    Route {
        method: Method::Delete,
        path: "/v1/executions/{execution}/subscribers/{subscriber}",
        name: "removeSubscriber",
        about: "Removes a subscriber.",
        answers: &[(Status::NO_CONTENT, Content::Empty)],
        begin: |request| {
            let (id, subscriber) = (request.execution()?, request.subscriber()?);
            Ok(ParsedHead::Call(ApiCall::Unsubscribe(id, subscriber)))
        },
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/v1/executions/{execution}/door",
        name: "readSharedRing",
        about: "Lets another process read the ring of an execution. Works only at the door, with \
                  descriptors.",
        query: &[FROM, DOOR_WISHES],
        answers: &[(Status::OK, Content::DoorLines)],
        begin: |request| {
            let door = request.parameters.read_door(request.execution()?)?;
            Ok(ParsedHead::Call(ApiCall::ReadDoor(door.into())))
        },
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/v1/door/executions",
        name: "createSharedExecution",
        about: "Lets another process write the ring of a new execution. Works only at the door, \
                  with descriptors.",
        body: Some(Body::new(door::PRODUCE, limits::HTTP_SMALL_BODY_BYTES_MAX)),
        answers: &[(Status::OK, Content::DoorLines)],
        begin: |_| Ok(ParsedHead::Produce),
        ..PLAIN
    },
    Route {
        path: "/v1/progress",
        name: "listProgress",
        about: "Returns the progress of all executions that have not ended.",
        answers: &[(Status::OK, Content::Json("AllProgress"))],
        document: Some(Document::PLAIN),
        begin: |_| Ok(ParsedHead::Call(ApiCall::AllProgress)),
        ..PLAIN
    },
    Route {
        path: "/v1/progress/{token}",
        name: "getProgress",
        about: "Returns the progress of the execution with this token.",
        answers: &[(Status::OK, Content::Json("TokenProgress"))],
        begin: |request| Ok(ParsedHead::Call(ApiCall::Progress(request.token()?))),
        ..PLAIN
    },
    Route {
        path: "/v1/virtual-tools",
        name: "listVirtualTools",
        about: "Lists all virtual tools. Workers carry out their calls.",
        headers: IF_NONE_MATCH,
        answers: &[
            (Status::OK, Content::Json("VirtualTools")),
            (Status::NOT_MODIFIED, Content::Empty),
        ],
        document: Some(Document { has_etag: true, ..Document::PLAIN }),
        begin: |_| Ok(ParsedHead::Call(ApiCall::VirtualTools)),
        ..PLAIN
    },
    Route {
        method: Method::Put,
        path: "/v1/virtual-tools/{name}",
        name: "putVirtualTool",
        about: "Adds or replaces a virtual tool. Running calls continue.",
        body: Some(Body::new(workers::VIRTUAL_TOOL, limits::VIRTUAL_TOOL_BYTES_MAX)),
        answers: &[
            (Status::CREATED, Content::Json("VirtualTool")),
            (Status::OK, Content::Json("VirtualTool")),
        ],
        begin: |request| Ok(ParsedHead::PutVirtualTool(request.tool_name()?)),
        ..PLAIN
    },
    Route {
        method: Method::Delete,
        path: "/v1/virtual-tools/{name}",
        name: "deleteVirtualTool",
        about: "Removes a virtual tool. Running calls continue.",
        answers: &[(Status::NO_CONTENT, Content::Empty)],
        begin: |request| Ok(ParsedHead::Call(ApiCall::DeleteVirtualTool(request.tool_name()?))),
        ..PLAIN
    },
    Route {
        path: "/v1/tool-calls/stream",
        name: "streamToolCalls",
        about: "Streams calls of virtual tools to a worker, as server-sent events.",
        query: &[WORKER_TOOLS],
        headers: SESSION,
        answers: &[(Status::OK, Content::WorkerEvents)],
        begin: |request| {
            let tools = request.parameters.worker_tools()?;
            let session = request.parameters.session()?;
            Ok(ParsedHead::Call(ApiCall::Work(Work { session, tools }.into())))
        },
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/v1/tool-results/stream",
        name: "deliverToolResult",
        about: "Delivers one part of a result, or many parts, one per line. Waits while there is \
                  no room.",
        headers: SESSION_AND_PRODUCER,
        body: Some(Body { takes_lines: true, ..Body::new(workers::PART, limits::PART_BYTES_MAX) }),
        answers: &[(Status::OK, Content::Json("Delivered"))],
        begin: |request| {
            let session = request.parameters.session()?;
            Ok(match request.parameters.has_lines() {
                true => ParsedHead::Parts(LinesBody::new(session).into()),
                false => ParsedHead::Part(session, request.parameters.producer()?),
            })
        },
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/mcp",
        name: "sendMcpMessage",
        about: "Receives a message of the Model Context Protocol: a request, a notification or a \
                  response.",
        headers: mcp::MESSAGE_HEADERS,
        body: Some(Body::new(mcp::MESSAGE, limits::MCP_BODY_BYTES_MAX)),
        answers: &[(Status::OK, Content::Mcp), (Status::ACCEPTED, Content::Empty)],
        begin: |request| {
            Ok(ParsedHead::Mcp(mcp::message_head(request.parameters.headers())?.into()))
        },
        ..PLAIN
    },
    Route {
        path: "/mcp",
        name: "streamMcpMessages",
        about: "Streams the messages of an MCP session that are not replies, or resumes a \
                  stream.",
        headers: mcp::STREAM_HEADERS,
        answers: &[(Status::OK, Content::Mcp)],
        begin: |request| Ok(ParsedHead::Call(mcp::open_stream(request.parameters.headers())?)),
        ..PLAIN
    },
    Route {
        method: Method::Delete,
        path: "/mcp",
        name: "endMcpSession",
        about: "Ends an MCP session. Everything that it runs is stopped.",
        headers: mcp::END_HEADERS,
        answers: &[(Status::NO_CONTENT, Content::Empty)],
        begin: |request| Ok(ParsedHead::Call(mcp::end_session(request.parameters.headers())?)),
        ..PLAIN
    },
    threads::CREATE,
    threads::GET,
    threads::STATE,
    threads::COMMANDS,
    threads::STREAM,
    threads::STREAM_EVENTS,
    threads::CANCEL_RUN,
    a2a::CARD,
    a2a::EXTENDED,
    a2a::JSON_RPC,
    a2a::SEND,
    a2a::STREAM,
    a2a::LIST,
    a2a::GET,
    a2a::CANCEL,
    a2a::SUBSCRIBE,
    a2a::SUBSCRIBE_BY_GET,
    graph::SEARCH_ASSISTANTS,
    graph::COUNT_ASSISTANTS,
    graph::GET_ASSISTANT,
    graph::SEARCH_THREADS,
    graph::COUNT_THREADS,
    graph::DELETE_THREAD,
    graph::HISTORY,
    graph::LIST_RUNS,
    graph::BEGIN,
    graph::STREAM,
    graph::WAIT,
    graph::FOLLOW,
    graph::JOIN,
    graph::GET_RUN,
    graph::DELETE_RUN,
    graph::BEGIN_ALONE,
    graph::STREAM_ALONE,
    graph::WAIT_ALONE,
    graph::FOLLOW_ALONE,
    Route {
        path: "/langgraph/info",
        name: "getLangGraphInfo",
        about: "Returns the version and the supported features, for LangGraph clients.",
        answers: &[(Status::OK, Content::Json("LangGraphInfo"))],
        begin: |_| Ok(ParsedHead::Here(Answer::json(Status::OK, &bodies::about()))),
        ..PLAIN
    },
    subscriptions::GET_KEYS,
    subscriptions::CREATE,
    subscriptions::DESCRIBE,
    subscriptions::DELETE,
    subscriptions::LINK,
    subscriptions::UNLINK,
    subscriptions::CALLBACK,
    subscriptions::CLAIM,
    subscriptions::ACK,
    subscriptions::RELEASE,
    Route {
        method: Method::Put,
        path: durable::ROUTE,
        name: "createStream",
        about: "Creates a stream, or returns 200 if there is the same one (Durable Streams).",
        headers: durable::CREATED,
        answers: &[(Status::CREATED, Content::Empty), (Status::OK, Content::Empty), ELSEWHERE],
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: durable::ROUTE,
        name: "appendToStream",
        about: "Appends the body to a stream, closes it, or both (Durable Streams). With a \
                  producer, an append returns 200, and a repeated one 204.",
        headers: durable::APPENDED,
        answers: &[(Status::NO_CONTENT, Content::Empty), (Status::OK, Content::Empty), ELSEWHERE],
        ..PLAIN
    },
    Route {
        path: durable::ROUTE,
        name: "readStream",
        about: "Returns a part of a stream, waits for more, or follows it (Durable Streams). HEAD \
                  returns its properties.",
        query: &[durable::READ],
        headers: IF_NONE_MATCH,
        answers: &[
            (Status::OK, Content::Bytes),
            (Status::NO_CONTENT, Content::Empty),
            (Status::NOT_MODIFIED, Content::Empty),
            ELSEWHERE,
        ],
        ..PLAIN
    },
    Route {
        method: Method::Delete,
        path: durable::ROUTE,
        name: "deleteStream",
        about: "Removes a stream (Durable Streams).",
        answers: &[(Status::NO_CONTENT, Content::Empty), ELSEWHERE],
        ..PLAIN
    },
    Route {
        path: "/metrics",
        name: "getMetrics",
        about: "Returns the metrics of the server, for Prometheus.",
        answers: &[(Status::OK, Content::Text(METRICS_TYPES))],
        document: Some(Document { vary: BY_TYPE, has_etag: false }),
        begin: |request| {
            Ok(ParsedHead::Call(ApiCall::Metrics(request.parameters.metrics_format())))
        },
        ..PLAIN
    },
    Route {
        path: "/",
        name: "getIndex",
        about: "Returns the paths to begin with, or a page of them for a browser.",
        headers: IF_NONE_MATCH,
        answers: &[(Status::OK, Content::Json("Index")), (Status::NOT_MODIFIED, Content::Empty)],
        document: Some(Document { vary: BY_TYPE, has_etag: true }),
        begin: |request| {
            Ok(ParsedHead::Here(Answer::document(match request.parameters.wants_page() {
                true => &PAGE,
                false => &INDEX,
            })))
        },
        ..PLAIN
    },
    Route {
        path: "/v1/version",
        name: "getVersion",
        about: "Returns the name and the version of the program.",
        answers: &[(Status::OK, Content::Json("Version"))],
        begin: |_| Ok(ParsedHead::Here(Answer::json(Status::OK, &documents::version()))),
        ..PLAIN
    },
    Route {
        path: "/healthz",
        name: "getHealth",
        about: "Returns 200 while the server is alive.",
        answers: &[(Status::OK, Content::Json("Health"))],
        is_open: true,
        begin: |_| Ok(ParsedHead::Here(Answer::json(Status::OK, &documents::health("ok")))),
        ..PLAIN
    },
    Route {
        path: "/readyz",
        name: "getReadiness",
        about: "Returns 200 if clients may be sent here, or 503 if the server is stopping, a \
                  shard has died, or the disk of the journal has failed.",
        answers: &[(Status::OK, Content::Json("Health"))],
        is_open: true,
        begin: |_| Ok(ParsedHead::Call(ApiCall::Ready)),
        ..PLAIN
    },
    Route {
        path: "/openapi.json",
        name: "getOpenApi",
        about: "Returns this description.",
        headers: IF_NONE_MATCH,
        answers: &[
            (Status::OK, Content::Json("Description")),
            (Status::NOT_MODIFIED, Content::Empty),
        ],
        document: Some(Document { has_etag: true, ..Document::PLAIN }),
        begin: |_| Ok(ParsedHead::Here(Answer::document(openapi::document()))),
        ..PLAIN
    },
];
