//! Requests of LangGraph's ordinary API: assistants, threads and their runs.
//!
//! A run is an execution of the tool `agent`, and its id is that of the execution. An assistant is
//! a model of this server, or `agent` for the first one.

use crate::base::ExecutionId;
use crate::endpoint::ask::{ParsedHead, RoutedRequest, ThreadBody};
use crate::endpoint::fields::{Field, Preset, Shape};
use crate::endpoint::front::bodies::RunAnswer;
use crate::endpoint::parameters::{LAST_EVENT_NUMBER, TRACE};
use crate::endpoint::routes::{Body, Content, PLAIN, Route};
use crate::endpoint::threads::thread_call;
use crate::endpoint::{ApiCall, ApiError, AssistantsAsk, ResponseAsk, ResponseCall, ThreadAsk};
use crate::limits;
use crate::wire::http1::{Method, Status};

/// The members of a request for a run that the server reads. Its clients send others.
const RUN: &[Field] = &[
    Field::new(
        "assistant_id",
        Shape::Text { bytes_max: 256 },
        "The name of one of the server's models, or `agent` for the first one.",
    )
    .required(),
    Field::new(
        "input",
        Shape::Either(&[Shape::Text { bytes_max: 1 << 20 }, Shape::Anything]),
        "The input: an object with `messages`, or a text.",
    )
    .required(),
    Field::new(
        "stream_mode",
        Shape::Either(&[Shape::StreamMode, Shape::Texts, Shape::Null]),
        "The events of the stream: values, updates, messages, messages-tuple, tools, custom.",
    ),
    Field::new(
        "on_disconnect",
        Shape::Either(&[Shape::Choice(&["continue", "cancel"]), Shape::Null]),
        "The consequence for the run when its stream breaks. Default: continue.",
    ),
    Field::new(
        "config",
        Shape::Either(&[Shape::Anything, Shape::Null]),
        "Its member `configurable` has options of the run.",
    ),
    Field::new("context", Shape::Either(&[Shape::Anything, Shape::Null]), "Options of the run."),
    Field::new(
        "metadata",
        Shape::Either(&[Shape::Anything, Shape::Null]),
        "An object that the run shows.",
    ),
];
/// The members of a search.
const SEARCHED: &[Field] = &[
    Field::new(
        "limit",
        Shape::Either(&[Shape::Number { min: 0, max: u64::MAX }, Shape::Null]),
        "The maximum number of entries. Default: 10.",
    ),
    Field::new(
        "offset",
        Shape::Either(&[Shape::Number { min: 0, max: u64::MAX }, Shape::Null]),
        "The number of entries to leave out.",
    ),
];
/// The query of a request that follows a run.
const FOLLOWED: &[Field] = &[
    Field::new(
        "stream_mode",
        Shape::StreamModes,
        "The events of the stream, as in the request for the run. Default: values.",
    ),
    CANCELS,
];
const CANCELS: Field = Field::new(
    "cancel_on_disconnect",
    Shape::Choice(&["false", "true", "0", "1"]),
    "Cancels the run when this connection breaks.",
);
const RUN_STATES: &[&str] = &["pending", "running", "success", "error", "timeout", "interrupted"];
/// The query of a list of runs.
const LISTED: &[Field] = &[
    Field::new("limit", Shape::Number { min: 0, max: u64::MAX }, "No effect: one run is known."),
    Field::new("offset", Shape::Number { min: 0, max: u64::MAX }, "The number to leave out.")
        .or(Preset::Number(0)),
    Field::new("status", Shape::Choice(RUN_STATES), "Only runs with this status."),
];

/// A request that starts a run.
const START: Route = Route {
    method: Method::Post,
    headers: TRACE,
    body: Some(Body { has_others: true, ..Body::new(RUN, limits::CONVERSATION_BODY_BYTES_MAX) }),
    ..PLAIN
};
/// A search.
const SEARCH: Route = Route {
    method: Method::Post,
    body: Some(Body { has_others: true, ..Body::new(SEARCHED, limits::HTTP_SMALL_BODY_BYTES_MAX) }),
    ..PLAIN
};

pub(super) const SEARCH_ASSISTANTS: Route = Route {
    path: "/langgraph/assistants/search",
    name: "searchAssistants",
    about: "Lists the assistants: `agent`, and each model of the server.",
    answers: &[(Status::OK, Content::Json("Assistants"))],
    begin: |_| Ok(ParsedHead::Thread(Box::default(), ThreadBody::Assistants { is_count: false })),
    ..SEARCH
};

pub(super) const COUNT_ASSISTANTS: Route = Route {
    path: "/langgraph/assistants/count",
    name: "countAssistants",
    about: "Returns the number of assistants.",
    answers: &[(Status::OK, Content::Json("Count"))],
    begin: |_| Ok(ParsedHead::Thread(Box::default(), ThreadBody::Assistants { is_count: true })),
    ..SEARCH
};

pub(super) const GET_ASSISTANT: Route = Route {
    path: "/langgraph/assistants/{assistant}",
    name: "getAssistant",
    about: "Returns an assistant.",
    answers: &[(Status::OK, Content::Json("Assistant"))],
    begin: |request| {
        let name = request.assistant()?;
        Ok(ParsedHead::Call(ApiCall::Assistants(AssistantsAsk::Get(name).into())))
    },
    ..PLAIN
};

pub(super) const SEARCH_THREADS: Route = Route {
    path: "/langgraph/threads/search",
    name: "searchThreads",
    about: "Lists the threads that have a run, the newest first.",
    answers: &[(Status::OK, Content::Json("Threads"))],
    begin: |_| Ok(ParsedHead::Thread(Box::default(), ThreadBody::Search { is_count: false })),
    ..SEARCH
};

pub(super) const COUNT_THREADS: Route = Route {
    path: "/langgraph/threads/count",
    name: "countThreads",
    about: "Returns the number of threads that have a run.",
    answers: &[(Status::OK, Content::Json("Count"))],
    begin: |_| Ok(ParsedHead::Thread(Box::default(), ThreadBody::Search { is_count: true })),
    ..SEARCH
};

pub(super) const DELETE_THREAD: Route = Route {
    method: Method::Delete,
    path: "/langgraph/threads/{thread}",
    name: "deleteThread",
    about: "Removes everything that is kept of a thread whose run has ended.",
    answers: &[(Status::NO_CONTENT, Content::Empty)],
    begin: |request| thread_call(request, ThreadAsk::Forget),
    ..PLAIN
};

pub(super) const HISTORY: Route = Route {
    path: "/langgraph/threads/{thread}/history",
    name: "getThreadHistory",
    about: "Returns the states of a thread. The server keeps the newest one.",
    answers: &[(Status::OK, Content::Json("ThreadStates"))],
    begin: |request| Ok(ParsedHead::Thread(request.thread()?, ThreadBody::History)),
    ..SEARCH
};

pub(super) const LIST_RUNS: Route = Route {
    path: "/langgraph/threads/{thread}/runs",
    name: "listThreadRuns",
    about: "Lists the runs of a thread. The server knows the newest one.",
    query: &[LISTED],
    answers: &[(Status::OK, Content::Json("Runs"))],
    begin: |request| {
        let (offset, status) = request.parameters.listed_runs()?;
        thread_call(request, ThreadAsk::Runs { offset, status })
    },
    ..PLAIN
};

pub(super) const BEGIN: Route = Route {
    path: "/langgraph/threads/{thread}/runs",
    name: "createThreadRun",
    about: "Starts a run on a thread.",
    answers: &[(Status::OK, Content::Json("Run"))],
    begin: |request| start(request, RunAnswer::Begin),
    ..START
};

pub(super) const STREAM: Route = Route {
    path: "/langgraph/threads/{thread}/runs/stream",
    name: "streamThreadRun",
    about: "Starts a run on a thread, and streams it.",
    answers: &[(Status::OK, Content::Events)],
    begin: |request| start(request, RunAnswer::Stream),
    ..START
};

pub(super) const WAIT: Route = Route {
    path: "/langgraph/threads/{thread}/runs/wait",
    name: "waitForThreadRun",
    about: "Starts a run on a thread, and returns the state at its end.",
    answers: &[(Status::OK, Content::Json("Values"))],
    begin: |request| start(request, RunAnswer::Wait),
    ..START
};

pub(super) const BEGIN_ALONE: Route = Route {
    path: "/langgraph/runs",
    name: "createRun",
    about: "Starts a run without a thread.",
    answers: &[(Status::OK, Content::Json("Run"))],
    begin: |request| Ok(start_alone(request, RunAnswer::Begin)),
    ..START
};

pub(super) const STREAM_ALONE: Route = Route {
    path: "/langgraph/runs/stream",
    name: "streamRun",
    about: "Starts a run without a thread, and streams it.",
    answers: &[(Status::OK, Content::Events)],
    begin: |request| Ok(start_alone(request, RunAnswer::Stream)),
    ..START
};

pub(super) const WAIT_ALONE: Route = Route {
    path: "/langgraph/runs/wait",
    name: "waitForRun",
    about: "Starts a run without a thread, and returns the state at its end.",
    answers: &[(Status::OK, Content::Json("Values"))],
    begin: |request| Ok(start_alone(request, RunAnswer::Wait)),
    ..START
};

pub(super) const FOLLOW: Route = Route {
    path: "/langgraph/threads/{thread}/runs/{execution}/stream",
    name: "followThreadRunEvents",
    about: "Follows a run, from its beginning or behind the event that the client has.",
    query: &[FOLLOWED],
    headers: LAST_EVENT_NUMBER,
    answers: &[(Status::OK, Content::Events)],
    begin: |request| follow(request, request.execution_at(1)?),
    ..PLAIN
};

pub(super) const FOLLOW_ALONE: Route = Route {
    path: "/langgraph/runs/{execution}/stream",
    name: "followRunEvents",
    about: "Follows a run, from its beginning or behind the event that the client has.",
    query: &[FOLLOWED],
    headers: LAST_EVENT_NUMBER,
    answers: &[(Status::OK, Content::Events)],
    begin: |request| follow(request, request.execution()?),
    ..PLAIN
};

pub(super) const JOIN: Route = Route {
    path: "/langgraph/threads/{thread}/runs/{execution}/join",
    name: "joinThreadRun",
    about: "Returns the state of a thread at the end of a run.",
    query: &[&[CANCELS]],
    answers: &[(Status::OK, Content::Json("Values"))],
    begin: |request| {
        let follow = request.parameters.joined(request.execution_at(1)?)?;
        Ok(ParsedHead::Call(ApiCall::Follow(follow.into())))
    },
    ..PLAIN
};

pub(super) const GET_RUN: Route = Route {
    path: "/langgraph/threads/{thread}/runs/{execution}",
    name: "getThreadRun",
    about: "Returns a run.",
    answers: &[(Status::OK, Content::Json("Run"))],
    begin: |request| {
        let call = ResponseCall { execution: request.execution_at(1)?, ask: ResponseAsk::Run };
        Ok(ParsedHead::Call(ApiCall::Response(call)))
    },
    ..PLAIN
};

pub(super) const DELETE_RUN: Route = Route {
    method: Method::Delete,
    path: "/langgraph/threads/{thread}/runs/{execution}",
    name: "deleteThreadRun",
    about: "Removes everything that is kept of a run that has ended.",
    answers: &[(Status::NO_CONTENT, Content::Empty)],
    begin: |request| Ok(ParsedHead::Call(ApiCall::Forget(request.execution_at(1)?))),
    ..PLAIN
};

fn start(request: &RoutedRequest<'_>, how: RunAnswer) -> Result<ParsedHead, ApiError> {
    Ok(ParsedHead::Run(request.thread()?, how, request.parameters.trace()))
}

fn start_alone(request: &RoutedRequest<'_>, how: RunAnswer) -> ParsedHead {
    ParsedHead::Run(Box::default(), how, request.parameters.trace())
}

fn follow(request: &RoutedRequest<'_>, execution: ExecutionId) -> Result<ParsedHead, ApiError> {
    let follow = request.parameters.run_followed(execution)?;
    Ok(ParsedHead::Call(ApiCall::Follow(follow.into())))
}
