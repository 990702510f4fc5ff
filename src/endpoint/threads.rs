//! Requests of LangGraph's streams of threads: threads, commands, and what follows them.

use crate::endpoint::ask::{ParsedHead, RoutedRequest, ThreadBody};
use crate::endpoint::fields::{Field, Shape};
use crate::endpoint::parameters::SPELLED;
use crate::endpoint::routes::{Body, Content, PLAIN, Route};
use crate::endpoint::{ApiCall, ApiError, ThreadAsk, ThreadCall};
use crate::limits;
use crate::wire::http1::{Method, Status};

const THREAD: &[Field] = &[Field::new(
    "thread_id",
    Shape::Either(&[Shape::Text { bytes_max: limits::THREAD_ID_BYTES_MAX as u64 }, Shape::Null]),
    "The name of the thread. Default: a name that the server chooses.",
)];
const COMMAND: &[Field] = &[
    Field::new("id", Shape::Number { min: 0, max: u64::MAX }, "The number that the reply repeats.")
        .required(),
    Field::new("method", Shape::Text { bytes_max: 64 }, "The name of the command.").required(),
    Field::new("params", Shape::Anything, "The parameters of the command."),
];
const FOLLOWED: &[Field] = &[
    Field::new(
        "channels",
        Shape::Texts,
        "The channels to follow: messages, tools, lifecycle, custom, custom:NAME. Others are \
         ignored.",
    )
    .required(),
    Field::new(
        "since",
        Shape::Either(&[Shape::Number { min: 0, max: u64::MAX }, Shape::Null]),
        "The number of the last event that the client has.",
    ),
];

/// The parameter of a request for a state. It has no effect.
const OF_SUBGRAPHS: &[Field] = &[Field::new(
    "subgraphs",
    Shape::Choice(&["true", "false"]),
    "No effect: runs have no subgraphs.",
)];

/// The parameters of a request that cancels a run. They have no effect.
const CANCELLED: &[Field] = &[
    Field::new(
        "wait",
        Shape::Number { min: 0, max: 1 },
        "No effect: the reply never waits for the end.",
    ),
    Field::new(
        "action",
        Shape::Choice(&["interrupt", "rollback"]),
        "No effect: the existing output is kept.",
    ),
];

const FOLLOW_THREAD: Route = Route {
    body: Some(Body { has_others: true, ..Body::new(FOLLOWED, limits::HTTP_SMALL_BODY_BYTES_MAX) }),
    answers: &[(Status::OK, Content::Events)],
    begin: |request| {
        let format = request.parameters.langgraph()?;
        Ok(ParsedHead::Thread(request.thread()?, ThreadBody::Follow(format)))
    },
    ..PLAIN
};

pub(super) const CREATE: Route = Route {
    method: Method::Post,
    path: "/langgraph/threads",
    name: "createThread",
    about: "Names a thread for a LangGraph client. The first run creates the thread.",
    body: Some(Body { has_others: true, ..Body::new(THREAD, limits::HTTP_SMALL_BODY_BYTES_MAX) }),
    answers: &[(Status::OK, Content::Json("Thread"))],
    begin: |_| Ok(ParsedHead::Thread(Box::default(), ThreadBody::Create)),
    ..PLAIN
};

pub(super) const GET: Route = Route {
    path: "/langgraph/threads/{thread}",
    name: "getThread",
    about: "Returns a thread in the form of the LangGraph protocol.",
    answers: &[(Status::OK, Content::Json("Thread"))],
    begin: |request| thread_call(request, ThreadAsk::Describe),
    ..PLAIN
};

pub(super) const STATE: Route = Route {
    path: "/langgraph/threads/{thread}/state",
    name: "getThreadState",
    about: "Returns the result of the last run of a thread.",
    query: &[OF_SUBGRAPHS],
    answers: &[(Status::OK, Content::Json("ThreadState"))],
    begin: |request| {
        request.parameters.check_subgraphs()?;
        thread_call(request, ThreadAsk::State { is_listed: false })
    },
    ..PLAIN
};

pub(super) const COMMANDS: Route = Route {
    method: Method::Post,
    path: "/langgraph/threads/{thread}/commands",
    name: "sendThreadCommand",
    about: "Carries out a command of the LangGraph protocol: run.start.",
    body: Some(Body {
        has_others: true,
        ..Body::new(COMMAND, limits::CONVERSATION_BODY_BYTES_MAX)
    }),
    answers: &[(Status::OK, Content::Json("CommandAnswer"))],
    begin: |request| Ok(ParsedHead::Thread(request.thread()?, ThreadBody::Command)),
    ..PLAIN
};

pub(super) const STREAM: Route = Route {
    method: Method::Post,
    path: "/langgraph/threads/{thread}/stream",
    name: "streamThread",
    about: "Follows a thread, run after run, until the client disconnects.",
    query: &[SPELLED],
    ..FOLLOW_THREAD
};

pub(super) const STREAM_EVENTS: Route = Route {
    method: Method::Post,
    path: "/langgraph/threads/{thread}/stream/events",
    name: "streamThreadEvents",
    about: "Does the same at the path that LangGraph clients use.",
    query: &[SPELLED],
    ..FOLLOW_THREAD
};

pub(super) const CANCEL_RUN: Route = Route {
    method: Method::Post,
    path: "/langgraph/threads/{thread}/runs/{execution}/cancel",
    name: "cancelLangGraphRun",
    about: "Cancels a run, at the path that LangGraph clients use.",
    query: &[CANCELLED],
    answers: &[(Status::ACCEPTED, Content::Json("State")), (Status::OK, Content::Json("State"))],
    begin: |request| {
        request.parameters.check_cancelled()?;
        Ok(ParsedHead::Call(ApiCall::Cancel(request.execution_at(1)?)))
    },
    ..PLAIN
};

pub(super) fn thread_call(
    request: &RoutedRequest<'_>,
    ask: ThreadAsk,
) -> Result<ParsedHead, ApiError> {
    Ok(ParsedHead::Call(ApiCall::Thread(ThreadCall { thread: request.thread()?, ask }.into())))
}
