//! The table of all HTTP requests. Requests are matched against it, and `/openapi.json` is
//! generated from it.

use crate::endpoint::answer::{Answer, JSON};
use crate::endpoint::ask::{Asked, Request};
use crate::endpoint::fields::{Field, Shape};
use crate::endpoint::lines::Lines;
use crate::endpoint::parameters::SPELLED;
use crate::endpoint::parameters::{
    DOOR_WISHES, EXECUTIONS, FORMAT, FROM, FROM_ALL, KINDS, LAST_EVENT_ID, METRICS_TYPES, SESSION,
    STREAM, TICKETS, TRACE, WAIT, WISHES, WORKER_TOOLS,
};
use crate::endpoint::{
    ApiError, Call, Work, agent, documents, door, execute, mcp, openapi, workers,
};
use crate::endpoint::{
    StreamFormat, ThreadAsk, ThreadCall,
    ask::ThreadBody,
    front::{self, bodies},
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
    pub summary: &'static str,
    /// The parameters in the query string, in groups.
    pub query: &'static [&'static [Field]],
    pub headers: &'static [Field],
    pub body: Option<Body>,
    /// The possible successful answers. Every other answer is an [`ApiError`].
    pub answers: &'static [(Status, Content)],
    /// Reads the head of the request.
    pub begin: fn(&Request<'_>) -> Result<Asked, ApiError>,
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
    const fn new(fields: &'static [Field], bytes_max: u64) -> Body {
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
        "What a client calls a conversation. Everybody has threads of his own.",
    )
    .required(),
    Field::new("execution", Shape::Execution, "The execution's id.").required(),
    Field::new("subscriber", Shape::Subscriber, "The subscriber's id.").required(),
    Field::new("token", Shape::Token, "A progress token.").required(),
    Field::new("name", Shape::ToolName, "What a tool is called.").required(),
];

const PLAIN: Route = Route {
    method: Method::Get,
    path: "",
    name: "",
    summary: "",
    query: &[],
    headers: &[],
    body: None,
    answers: &[],
    begin: |_| Err(NotFound.into()),
};

/// The format for a client that rejoins a thread without naming one.
const AI_SDK: StreamFormat =
    StreamFormat::Front(front::Format::AiSdk { sdk: front::SdkVersion::V5 });

const THREAD: &[Field] = &[Field::new(
    "thread_id",
    Shape::Text { bytes_max: limits::THREAD_ID_BYTES_MAX as u64 },
    "What it is to be called; absent: as the server likes.",
)];
const COMMAND: &[Field] = &[
    Field::new("id", Shape::Whole, "What the answer refers to.").required(),
    Field::new("method", Shape::Text { bytes_max: 64 }, "Which command.").required(),
    Field::new("params", Shape::Anything, "What it takes."),
];
const FOLLOWED: &[Field] = &[
    Field::new(
        "channels",
        Shape::Texts,
        "Which: messages, tools, lifecycle, custom, custom:NAME; nothing is said on others.",
    )
    .required(),
    Field::new("since", Shape::Whole, "The number of the last event that the client has."),
];

/// The parameter of a request for a state. It has no effect.
const OF_SUBGRAPHS: &[Field] =
    &[Field::new("subgraphs", Shape::Choice(&["true", "false"]), "There are none here.")];

/// The parameters of a request that cancels a run. They have no effect.
const CANCELLED: &[Field] = &[
    Field::new("wait", Shape::Number { min: 0, max: 1 }, "The answer never waits for the end."),
    Field::new("action", Shape::Choice(&["interrupt", "rollback"]), "What is there stays."),
];

const FOLLOW_THREAD: Route = Route {
    body: Some(Body { has_others: true, ..Body::new(FOLLOWED, limits::HTTP_SMALL_BODY_BYTES_MAX) }),
    answers: &[(Status::OK, Content::Events)],
    begin: |request| {
        let format = request.parameters.langgraph()?;
        Ok(Asked::Thread(request.thread()?, ThreadBody::Follow(format)))
    },
    ..PLAIN
};

fn thread_call(request: &Request<'_>, ask: ThreadAsk) -> Result<Asked, ApiError> {
    Ok(Asked::Call(Call::Thread(ThreadCall { thread: request.thread()?, ask }.into())))
}

/// All routes.
pub(super) const ROUTES: &[Route] = &[
    Route {
        path: "/v1/tools",
        name: "listTools",
        summary: "Which tools there are.",
        answers: &[(Status::OK, Content::Json("Tools"))],
        begin: |_| Ok(Asked::Call(Call::Tools)),
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/v1/executions",
        name: "execute",
        summary: "Runs a tool. With `stream` the answer is its stream.",
        query: &[STREAM, WISHES],
        headers: TRACE,
        body: Some(Body::new(execute::EXECUTE, limits::HTTP_BODY_BYTES_MAX)),
        answers: &[(Status::CREATED, Content::Json("Created")), (Status::OK, Content::Events)],
        begin: |request| {
            let parameters = &request.parameters;
            Ok(Asked::Execute(parameters.stream()?, parameters.trace()))
        },
    },
    Route {
        method: Method::Post,
        path: "/v1/agent/stream",
        name: "runAgent",
        summary: "Runs an agent, whose parts are the answer: an execution of the tool `agent`.",
        query: &[FORMAT, WISHES],
        headers: TRACE,
        body: Some(Body {
            has_others: true,
            ..Body::new(agent::STREAMED, limits::CONVERSATION_BODY_BYTES_MAX)
        }),
        answers: &[(Status::OK, Content::Events)],
        begin: |request| {
            let parameters = &request.parameters;
            let said = parameters.format_said()?;
            let own = said.map_or_else(|| parameters.format(), Ok)?;
            let stream = agent::Stream { said, own, wishes: parameters.wishes()? };
            Ok(Asked::Agent(stream, parameters.trace()))
        },
    },
    Route {
        path: "/v1/agent/stream/{thread}/stream",
        name: "rejoinThread",
        summary: "Follows the run of a thread from its start; 204 if none is under way.",
        query: &[FORMAT, WISHES],
        answers: &[(Status::OK, Content::Events), (Status::NO_CONTENT, Content::Empty)],
        begin: |request| {
            let parameters = &request.parameters;
            let format = parameters.format_said()?.unwrap_or(AI_SDK);
            let ask = ThreadAsk::Rejoin(format, parameters.wishes()?);
            Ok(Asked::Call(Call::Thread(ThreadCall { thread: request.thread()?, ask }.into())))
        },
        ..PLAIN
    },
    Route {
        method: Method::Delete,
        path: "/v1/agent/stream/{thread}",
        name: "cancelThread",
        summary: "Makes the run of a thread stop: 202, or 200 if it had ended already.",
        answers: &[
            (Status::ACCEPTED, Content::Json("State")),
            (Status::OK, Content::Json("State")),
        ],
        begin: |request| {
            let (thread, ask) = (request.thread()?, ThreadAsk::Cancel);
            Ok(Asked::Call(Call::Thread(ThreadCall { thread, ask }.into())))
        },
        ..PLAIN
    },
    Route {
        path: "/v1/executions",
        name: "listExecutions",
        summary: "Which executions there are, running and retained.",
        answers: &[(Status::OK, Content::Json("Executions"))],
        begin: |_| Ok(Asked::Call(Call::Executions)),
        ..PLAIN
    },
    Route {
        path: "/v1/executions/{execution}",
        name: "inspectExecution",
        summary: "What an execution is doing, and how each of its subscribers stands.",
        answers: &[(Status::OK, Content::Json("Execution"))],
        begin: |request| Ok(Asked::Call(Call::Inspect(request.execution()?))),
        ..PLAIN
    },
    Route {
        method: Method::Delete,
        path: "/v1/executions/{execution}",
        name: "cancelExecution",
        summary: "Makes an execution stop: 202, or 200 if it had ended already.",
        answers: &[
            (Status::ACCEPTED, Content::Json("State")),
            (Status::OK, Content::Json("State")),
        ],
        begin: |request| Ok(Asked::Call(Call::Cancel(request.execution()?))),
        ..PLAIN
    },
    Route {
        path: "/v1/executions/{execution}/result",
        name: "getResult",
        summary: "How an execution ended, and what it gave; 202 if it has not ended in time.",
        query: &[WAIT],
        answers: &[
            (Status::OK, Content::Json("Result")),
            (Status::ACCEPTED, Content::Json("State")),
        ],
        begin: |request| {
            let (id, wait) = (request.execution()?, request.parameters.wait()?);
            Ok(Asked::Call(Call::Result(id, wait)))
        },
        ..PLAIN
    },
    Route {
        path: "/v1/executions/{execution}/output",
        name: "getOutput",
        summary: "The payload of an execution as it is, from the start; cut off if it fails.",
        query: &[KINDS],
        answers: &[(Status::OK, Content::Bytes)],
        begin: |request| {
            let (id, kinds) = (request.execution()?, request.parameters.kinds()?);
            Ok(Asked::Call(Call::Output(id, kinds)))
        },
        ..PLAIN
    },
    Route {
        path: "/v1/executions/{execution}/events",
        name: "followExecution",
        summary: "Follows an execution; 204 if its end was seen already.",
        query: &[FORMAT, FROM, WISHES, TICKETS],
        headers: LAST_EVENT_ID,
        answers: &[(Status::OK, Content::Events), (Status::NO_CONTENT, Content::Empty)],
        begin: |request| {
            let follow = request.parameters.follow(request.execution()?)?;
            Ok(Asked::Call(Call::Follow(follow.into())))
        },
        ..PLAIN
    },
    Route {
        path: "/v1/events",
        name: "followExecutions",
        summary: "Follows several executions on one connection, until all have ended.",
        query: &[EXECUTIONS, FORMAT, FROM_ALL, WISHES],
        headers: LAST_EVENT_ID,
        answers: &[(Status::OK, Content::Events), (Status::NO_CONTENT, Content::Empty)],
        begin: |request| Ok(Asked::Call(Call::Follow(request.parameters.follow_listed()?.into()))),
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/v1/executions/{execution}/subscribers/{subscriber}/acks",
        name: "acknowledge",
        summary: "Says how far a subscriber with acknowledgements has come.",
        body: Some(Body::new(execute::ACKNOWLEDGE, limits::HTTP_SMALL_BODY_BYTES_MAX)),
        answers: &[(Status::NO_CONTENT, Content::Empty)],
        begin: |request| Ok(Asked::Acknowledge(request.execution()?, request.subscriber()?)),
        ..PLAIN
    },
    Route {
        method: Method::Delete,
        path: "/v1/executions/{execution}/subscribers/{subscriber}",
        name: "unsubscribe",
        summary: "Lets a subscriber go.",
        answers: &[(Status::NO_CONTENT, Content::Empty)],
        begin: |request| {
            let (id, subscriber) = (request.execution()?, request.subscriber()?);
            Ok(Asked::Call(Call::Unsubscribe(id, subscriber)))
        },
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/v1/executions/{execution}/door",
        name: "readDoor",
        summary: "Another process reads the ring itself. At the door alone: with descriptors.",
        query: &[FROM, DOOR_WISHES],
        answers: &[(Status::OK, Content::DoorLines)],
        begin: |request| {
            let door = request.parameters.read_door(request.execution()?)?;
            Ok(Asked::Call(Call::ReadDoor(door.into())))
        },
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/v1/door/executions",
        name: "produceAtDoor",
        summary: "Another process writes the ring itself. At the door alone: with descriptors.",
        body: Some(Body::new(door::PRODUCE, limits::HTTP_SMALL_BODY_BYTES_MAX)),
        answers: &[(Status::OK, Content::DoorLines)],
        begin: |_| Ok(Asked::Produce),
        ..PLAIN
    },
    Route {
        path: "/v1/progress",
        name: "listProgress",
        summary: "How far all executions are that have not ended.",
        answers: &[(Status::OK, Content::Json("AllProgress"))],
        begin: |_| Ok(Asked::Call(Call::AllProgress)),
        ..PLAIN
    },
    Route {
        path: "/v1/progress/{token}",
        name: "getProgress",
        summary: "How far the execution of a token is.",
        answers: &[(Status::OK, Content::Json("TokenProgress"))],
        begin: |request| Ok(Asked::Call(Call::Progress(request.token()?))),
        ..PLAIN
    },
    Route {
        path: "/v1/virtual-tools",
        name: "listVirtualTools",
        summary: "Which tools there are whose work is done by clients.",
        answers: &[(Status::OK, Content::Json("VirtualTools"))],
        begin: |_| Ok(Asked::Call(Call::VirtualTools)),
        ..PLAIN
    },
    Route {
        method: Method::Put,
        path: "/v1/virtual-tools/{name}",
        name: "putVirtualTool",
        summary: "Adds a tool whose work is done by clients, or replaces it. What runs goes on.",
        body: Some(Body::new(workers::VIRTUAL_TOOL, limits::VIRTUAL_TOOL_BYTES_MAX)),
        answers: &[
            (Status::CREATED, Content::Json("VirtualTool")),
            (Status::OK, Content::Json("VirtualTool")),
        ],
        begin: |request| Ok(Asked::PutVirtualTool(request.tool_name()?)),
        ..PLAIN
    },
    Route {
        method: Method::Delete,
        path: "/v1/virtual-tools/{name}",
        name: "deleteVirtualTool",
        summary: "Takes such a tool away. What runs of it goes on.",
        answers: &[(Status::NO_CONTENT, Content::Empty)],
        begin: |request| Ok(Asked::Call(Call::DeleteVirtualTool(request.tool_name()?))),
        ..PLAIN
    },
    Route {
        path: "/v1/tool-calls/stream",
        name: "takeCalls",
        summary: "A worker is given calls of virtual tools, as server-sent events.",
        query: &[WORKER_TOOLS],
        headers: SESSION,
        answers: &[(Status::OK, Content::WorkerEvents)],
        begin: |request| {
            let tools = request.parameters.worker_tools()?;
            let session = request.parameters.session()?;
            Ok(Asked::Call(Call::Work(Work { session, tools }.into())))
        },
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/v1/tool-results/stream",
        name: "deliverResult",
        summary: "A worker delivers a part of a result, or, on lines, many. Without room it waits.",
        headers: SESSION,
        body: Some(Body { takes_lines: true, ..Body::new(workers::PART, limits::PART_BYTES_MAX) }),
        answers: &[(Status::OK, Content::Json("Delivered"))],
        begin: |request| {
            let session = request.parameters.session()?;
            Ok(match request.parameters.has_lines() {
                true => Asked::Parts(Lines::new(session).into()),
                false => Asked::Part(session),
            })
        },
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/mcp",
        name: "sayMcp",
        summary: "A message of the Model Context Protocol: a request, a notification or an answer.",
        headers: mcp::SAID,
        body: Some(Body::new(mcp::MESSAGE, limits::MCP_BODY_BYTES_MAX)),
        answers: &[(Status::OK, Content::Mcp), (Status::ACCEPTED, Content::Empty)],
        begin: |request| Ok(Asked::Mcp(mcp::said(request.parameters.headers())?.into())),
        ..PLAIN
    },
    Route {
        path: "/mcp",
        name: "hearMcp",
        summary: "What a session of that protocol is told beside its answers, or more of a stream.",
        headers: mcp::HEARD,
        answers: &[(Status::OK, Content::Mcp)],
        begin: |request| Ok(Asked::Call(mcp::heard(request.parameters.headers())?)),
        ..PLAIN
    },
    Route {
        method: Method::Delete,
        path: "/mcp",
        name: "leaveMcp",
        summary: "Ends a session of that protocol. What it runs is stopped.",
        headers: mcp::LEFT,
        answers: &[(Status::NO_CONTENT, Content::Empty)],
        begin: |request| Ok(Asked::Call(mcp::left(request.parameters.headers())?)),
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/langgraph/threads",
        name: "createThread",
        summary: "Names a thread for a client of LangGraph. It comes to be with its first run.",
        body: Some(Body {
            has_others: true,
            ..Body::new(THREAD, limits::HTTP_SMALL_BODY_BYTES_MAX)
        }),
        answers: &[(Status::OK, Content::Json("Thread"))],
        begin: |_| Ok(Asked::Thread(Box::default(), ThreadBody::Create)),
        ..PLAIN
    },
    Route {
        path: "/langgraph/threads/{thread}",
        name: "getThread",
        summary: "A thread, as a client of LangGraph knows it.",
        answers: &[(Status::OK, Content::Json("Thread"))],
        begin: |request| thread_call(request, ThreadAsk::Describe),
        ..PLAIN
    },
    Route {
        path: "/langgraph/threads/{thread}/state",
        name: "getThreadState",
        summary: "What came of the last run of a thread.",
        query: &[OF_SUBGRAPHS],
        answers: &[(Status::OK, Content::Json("ThreadState"))],
        begin: |request| {
            request.parameters.check_subgraphs()?;
            thread_call(request, ThreadAsk::State)
        },
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/langgraph/threads/{thread}/commands",
        name: "commandThread",
        summary: "A command of LangGraph's protocol: run.start.",
        body: Some(Body {
            has_others: true,
            ..Body::new(COMMAND, limits::CONVERSATION_BODY_BYTES_MAX)
        }),
        answers: &[(Status::OK, Content::Json("CommandAnswer"))],
        begin: |request| Ok(Asked::Thread(request.thread()?, ThreadBody::Command)),
        ..PLAIN
    },
    Route {
        method: Method::Post,
        path: "/langgraph/threads/{thread}/stream",
        name: "followThread",
        summary: "Follows a thread, run after run, until the client goes.",
        query: &[SPELLED],
        ..FOLLOW_THREAD
    },
    Route {
        method: Method::Post,
        path: "/langgraph/threads/{thread}/stream/events",
        name: "followThreadEvents",
        summary: "The same, where clients of LangGraph ask for it.",
        query: &[SPELLED],
        ..FOLLOW_THREAD
    },
    Route {
        method: Method::Post,
        path: "/langgraph/threads/{thread}/runs/{execution}/cancel",
        name: "cancelThreadRun",
        summary: "Makes a run stop, as clients of LangGraph ask for it.",
        query: &[CANCELLED],
        answers: &[
            (Status::ACCEPTED, Content::Json("State")),
            (Status::OK, Content::Json("State")),
        ],
        begin: |request| {
            request.parameters.check_cancelled()?;
            Ok(Asked::Call(Call::Cancel(request.execution_at(1)?)))
        },
        ..PLAIN
    },
    Route {
        path: "/langgraph/info",
        name: "getLangGraphInfo",
        summary: "What clients of LangGraph may count on.",
        answers: &[(Status::OK, Content::Json("LangGraphInfo"))],
        begin: |_| Ok(Asked::Here(Answer::json(Status::OK, &bodies::about()))),
        ..PLAIN
    },
    Route {
        path: "/metrics",
        name: "getMetrics",
        summary: "What has happened so far, in numbers, for Prometheus.",
        answers: &[(Status::OK, Content::Text(METRICS_TYPES))],
        begin: |request| Ok(Asked::Call(Call::Metrics(request.parameters.metrics_format()))),
        ..PLAIN
    },
    Route {
        path: "/healthz",
        name: "getHealth",
        summary: "Does the server live?",
        answers: &[(Status::OK, Content::Json("Health"))],
        begin: |_| Ok(Asked::Here(Answer::json(Status::OK, &documents::health("ok")))),
        ..PLAIN
    },
    Route {
        path: "/readyz",
        name: "getReadiness",
        summary: "May clients be sent here? 503 if the server stops or a shard of it has died.",
        answers: &[(Status::OK, Content::Json("Health"))],
        begin: |_| Ok(Asked::Call(Call::Ready)),
        ..PLAIN
    },
    Route {
        path: "/openapi.json",
        name: "getDescription",
        summary: "This description.",
        answers: &[(Status::OK, Content::Json("Description"))],
        begin: |_| Ok(Asked::Here(Answer::text(Status::OK, JSON, openapi::document()))),
        ..PLAIN
    },
];
