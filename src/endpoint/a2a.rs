//! Requests of the Agent2Agent protocol (A2A), version 1.0: its agent card, and its methods over
//! JSON-RPC and over HTTP with JSON.
//!
//! An execution is a task, with the same id. A context is a thread, which remembers. A message with
//! a value `{"tool": NAME, "arguments": {…}}` runs that tool, and any other message runs an agent.

use serde_json::{Map, Value, json};

use crate::base::ExecutionId;
use crate::endpoint::answer::{Answer, JSON};
use crate::endpoint::ask::{ParsedHead, RoutedRequest};
use crate::endpoint::fields::{Field, Shape};
use crate::endpoint::front::ask::{self, AskError, MessageFault, SentMessage};
use crate::endpoint::front::{FrontFormat, TaskAnswer, bodies};
use crate::endpoint::parameters::Parameters;
use crate::endpoint::routes::{Body, Content, PLAIN, Route};
use crate::endpoint::{
    ApiCall, ApiError, DeliveryOptions, Execute, FrontProtocol, FrontRun, StreamFormat, TaskAsk,
    TaskCall, agent, execute,
};
use crate::engine::NotFound;
use crate::limits;
use crate::trace::TraceContext;
use crate::wire::http1::{Method, Status};

/// The path of JSON-RPC, and the beginning of the paths of HTTP with JSON.
pub(super) const PATH: &str = "/a2a";
/// The media type of HTTP with JSON.
pub(super) const MEDIA_TYPE: &str = "application/a2a+json";
/// The version of the protocol.
pub(crate) const VERSION: &str = "1.0";

/// The states of a task that an execution has.
pub(crate) const TASK_STATES: [&str; 5] = [
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
];
/// The states of a task that no execution has.
const OTHER_STATES: [&str; 3] =
    ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_REJECTED", "TASK_STATE_AUTH_REQUIRED"];

/// Returns the state of a task of this name.
pub fn task_state_named(name: &str) -> Option<&'static str> {
    TASK_STATES.into_iter().chain(OTHER_STATES).find(|state| *state == name)
}

/// A request whose body, or whose query, has the parameters of a method.
#[derive(Debug, PartialEq)]
pub(super) struct A2aRequest {
    /// The method. `None`: the body is a JSON-RPC request that names it.
    method: Option<&'static str>,
    /// The event after which a client comes back.
    since: Option<u64>,
    /// The origin of this server for the client, such as `http://localhost:8808`.
    origin: Box<str>,
    trace: TraceContext,
}

impl A2aRequest {
    /// True if the body is a JSON-RPC request.
    pub fn is_rpc(&self) -> bool {
        self.method.is_none()
    }
}

/// The members of a JSON-RPC request.
const RPC: &[Field] = &[
    Field::new("jsonrpc", Shape::Choice(&["2.0"]), "The version of JSON-RPC.").required(),
    Field::new("id", Shape::Any, "The id that the answer repeats: a text or a number."),
    Field::new(
        "method",
        Shape::Choice(&[
            "GetExtendedAgentCard",
            "SendMessage",
            "SendStreamingMessage",
            "GetTask",
            "ListTasks",
            "CancelTask",
            "SubscribeToTask",
            "CreateTaskPushNotificationConfig",
            "GetTaskPushNotificationConfig",
            "ListTaskPushNotificationConfigs",
            "DeleteTaskPushNotificationConfig",
        ]),
        "The method.",
    )
    .required(),
    Field::new("params", Shape::Any, "The parameters of the method: an object."),
];
/// The members of a message.
const MESSAGE: &[Field] = &[
    Field::new("messageId", Shape::Text { bytes_max: 256 }, "The client's name of it.").required(),
    Field::new("role", Shape::Choice(&["ROLE_USER"]), "The sender.").required(),
    Field::new("parts", Shape::Parts, "Texts, and data: a call is a tool with arguments.")
        .required(),
    Field::new("contextId", Shape::Text { bytes_max: 256 }, "The conversation that goes on."),
    Field::new("taskId", Shape::Text { bytes_max: 256 }, "Always refused: tasks take one message."),
    Field::new("metadata", Shape::Anything, "Options of the run, such as model and tools."),
    Field::new("extensions", Shape::Texts, "No effect."),
    Field::new("referenceTaskIds", Shape::Texts, "No effect."),
];
/// The members of a request to send a message.
const SENT: &[Field] = &[
    Field::new("message", Shape::Members(MESSAGE), "The message.").required(),
    Field::new("configuration", Shape::Anything, "returnImmediately and historyLength."),
    Field::new("metadata", Shape::Anything, "Options of the run, such as model and tools."),
];
const HISTORY: Field = Field::new(
    "historyLength",
    Shape::Number { min: 0, max: i32::MAX as u64 },
    "The maximum number of messages in the history.",
);
/// The query of a search for tasks.
const SEARCHED: &[Field] = &[
    HISTORY,
    Field::new("contextId", Shape::Any, "Only tasks of this context."),
    Field::new("status", Shape::Any, "Only tasks in this state."),
    Field::new("pageSize", Shape::Number { min: 1, max: 100 }, "The maximum number of tasks."),
    Field::new("pageToken", Shape::Any, "`nextPageToken` of the last page."),
    Field::new("statusTimestampAfter", Shape::Any, "Only later changes."),
    Field::new("includeArtifacts", Shape::Choice(&["false"]), "GetTask has the artifacts."),
];
const VERSIONED: &[Field] =
    &[Field::new("A2A-Version", Shape::Choice(&[VERSION]), "The version of the protocol.")
        .required()];

/// The agent card. It needs a token if the server has tokens, because it names tools.
pub(super) const CARD: Route = Route {
    path: "/.well-known/agent-card.json",
    name: "getAgentCard",
    about: "Returns the agent card of A2A.",
    answers: &[(Status::OK, Content::Json("AgentCard"))],
    begin: |request| Ok(ParsedHead::Call(ApiCall::AgentCard(origin(&request.parameters)))),
    ..PLAIN
};

pub(super) const EXTENDED: Route = Route {
    path: "/a2a/extendedAgentCard",
    name: "getExtendedAgentCard",
    about: "Returns the same agent card.",
    headers: VERSIONED,
    answers: &[(Status::OK, Content::Json("AgentCard"))],
    begin: |request| {
        check_version(&request.parameters)?;
        Ok(ParsedHead::Call(ApiCall::AgentCard(origin(&request.parameters))))
    },
    ..PLAIN
};

pub(super) const JSON_RPC: Route = Route {
    method: Method::Post,
    path: PATH,
    name: "callA2a",
    about: "Carries out a method of A2A over JSON-RPC.",
    headers: VERSIONED,
    body: Some(Body { has_others: true, ..Body::new(RPC, limits::CONVERSATION_BODY_BYTES_MAX) }),
    answers: &[(Status::OK, Content::A2a)],
    begin: |request| of_head(request, None),
    ..PLAIN
};

pub(super) const SEND: Route = Route {
    method: Method::Post,
    path: "/a2a/message:send",
    name: "sendMessage",
    about: "Sends a message, and returns its task once that has ended.",
    headers: VERSIONED,
    body: Some(Body { has_others: true, ..Body::new(SENT, limits::CONVERSATION_BODY_BYTES_MAX) }),
    answers: &[(Status::OK, Content::Json("SentTask"))],
    begin: |request| of_head(request, Some("SendMessage")),
    ..PLAIN
};

pub(super) const STREAM: Route = Route {
    method: Method::Post,
    path: "/a2a/message:stream",
    name: "sendStreamingMessage",
    about: "Sends a message, and streams its task.",
    headers: VERSIONED,
    body: Some(Body { has_others: true, ..Body::new(SENT, limits::CONVERSATION_BODY_BYTES_MAX) }),
    answers: &[(Status::OK, Content::Events)],
    begin: |request| of_head(request, Some("SendStreamingMessage")),
    ..PLAIN
};

pub(super) const LIST: Route = Route {
    path: "/a2a/tasks",
    name: "listTasks",
    about: "Lists the tasks, the one that changed last first.",
    query: &[SEARCHED],
    headers: VERSIONED,
    answers: &[(Status::OK, Content::Json("Tasks"))],
    begin: |request| {
        check_version(&request.parameters)?;
        let params = request.parameters.texts(SEARCHED)?;
        let search = ask::read_task_search(params).map_err(wrong_parameter)?;
        Ok(ParsedHead::Call(ApiCall::Tasks(search.into())))
    },
    ..PLAIN
};

pub(super) const GET: Route = Route {
    path: "/a2a/tasks/{task_id}",
    name: "getTask",
    about: "Returns a task as it is now.",
    query: &[&[HISTORY]],
    headers: VERSIONED,
    answers: &[(Status::OK, Content::Json("Task"))],
    begin: |request| {
        let params = request.parameters.texts(&[HISTORY])?;
        let history_max = ask::history_length(&params).map_err(wrong_parameter)?;
        task_call(request, TaskAsk::Get, history_max)
    },
    ..PLAIN
};

pub(super) const CANCEL: Route = Route {
    method: Method::Post,
    path: "/a2a/tasks/{task_id}:cancel",
    name: "cancelTask",
    about: "Cancels a task, and returns it once it has ended.",
    headers: VERSIONED,
    answers: &[(Status::OK, Content::Json("Task"))],
    begin: |request| task_call(request, TaskAsk::Cancel, None),
    ..PLAIN
};

pub(super) const SUBSCRIBE: Route = Route {
    method: Method::Post,
    path: "/a2a/tasks/{task_id}:subscribe",
    name: "subscribeToTask",
    about: "Follows a task: as it is now, and what comes. Behind `Last-Event-ID` nothing is \
            missing.",
    headers: SUBSCRIBED,
    answers: &[(Status::OK, Content::Events)],
    begin: |request| task_call(request, TaskAsk::Subscribe { since: since(request)? }, None),
    ..PLAIN
};

/// The same, as the definition of the service has it.
pub(super) const SUBSCRIBE_BY_GET: Route = Route {
    method: Method::Get,
    name: "followTask",
    about: "Does the same, with the method that the definition of the service has.",
    ..SUBSCRIBE
};
const SUBSCRIBED: &[Field] = &[
    Field::new("A2A-Version", Shape::Choice(&[VERSION]), "The version of the protocol.").required(),
    Field::new("Last-Event-ID", Shape::Cursors, "The number of the last event that came."),
];

fn since(request: &RoutedRequest<'_>) -> Result<Option<u64>, ApiError> {
    request.parameters.last_number()
}

fn task_call(
    request: &RoutedRequest<'_>,
    ask: TaskAsk,
    history_max: Option<usize>,
) -> Result<ParsedHead, ApiError> {
    check_version(&request.parameters)?;
    let execution = request.execution()?;
    let call = TaskCall { execution, ask, reply_to: None, history_max };
    Ok(ParsedHead::Call(ApiCall::Task(call.into())))
}

fn of_head(
    request: &RoutedRequest<'_>,
    method: Option<&'static str>,
) -> Result<ParsedHead, ApiError> {
    check_version(&request.parameters)?;
    let origin = origin(&request.parameters);
    let (since, trace) = (since(request)?, request.parameters.trace());
    Ok(ParsedHead::A2a(A2aRequest { method, since, origin, trace }.into()))
}

/// Checks the version that the client speaks. One that says none speaks 0.3.
fn check_version(parameters: &Parameters<'_>) -> Result<(), ApiError> {
    match parameters.headers().only("a2a-version")? {
        Some(VERSION) => Ok(()),
        _ => {
            let text = "A2A-Version: it must be 1.0";
            let error = ApiError::new(Status::BAD_REQUEST, "unsupported_version", text);
            Err(error.field("a2a-version"))
        }
    }
}

/// Returns the origin of this server for the client. The host was checked.
fn origin(parameters: &Parameters<'_>) -> Box<str> {
    let headers = parameters.headers();
    let scheme = match headers.only("x-forwarded-proto") {
        Ok(Some("https")) => "https",
        _ => "", // That of the listener.
    };
    let host = headers.only("host").ok().flatten();
    format!("{scheme}://{}", host.unwrap_or("localhost")).into()
}

fn wrong_parameter(error: AskError) -> ApiError {
    let text = error.to_string();
    ApiError::new(Status::BAD_REQUEST, "invalid_parameter", text).field(error.field)
}

fn wrong(error: AskError) -> ApiError {
    let text = error.to_string();
    ApiError::new(Status::BAD_REQUEST, "invalid_field", text).field(error.field)
}

/// Returns the call of a request whose body is complete.
pub(super) fn complete(request: A2aRequest, body: &[u8]) -> Result<ApiCall, ApiError> {
    let Value::Object(mut members) = super::body::parse(body)? else {
        let text = "the body must be a JSON object";
        return Err(ApiError::new(Status::BAD_REQUEST, "invalid_body", text));
    };
    let Some(method) = request.method else {
        let is_rpc = members.get("jsonrpc").is_some_and(|version| version == "2.0");
        let method = match members.remove("method") {
            Some(Value::String(method)) if is_rpc => method,
            _ => {
                let text = "the body must be a JSON-RPC 2.0 request";
                return Err(ApiError::new(Status::BAD_REQUEST, "invalid_body", text));
            }
        };
        let reply_to = id_of(&members);
        let params = match members.remove("params") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(params)) => params,
            Some(_) => {
                return Err(wrong(AskError {
                    field: "params".into(),
                    problem: "must be an object",
                }));
            }
        };
        return call_of(&method, params, Some(reply_to), request);
    };
    call_of(method, members, None, request)
}

/// Returns the id of a JSON-RPC request as JSON.
fn id_of(members: &Map<String, Value>) -> Box<str> {
    match members.get("id") {
        Some(id @ (Value::String(_) | Value::Number(_))) => id.to_string().into(),
        _ => "null".into(),
    }
}

/// Returns the id of the JSON-RPC request in a body, for the answer.
pub(super) fn reply_to(body: &[u8]) -> Box<str> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(members)) => id_of(&members),
        _ => "null".into(),
    }
}

fn call_of(
    method: &str,
    params: Map<String, Value>,
    reply_to: Option<Box<str>>,
    request: A2aRequest,
) -> Result<ApiCall, ApiError> {
    let of_task = |ask: TaskAsk| -> Result<ApiCall, ApiError> {
        let history_max = ask::history_length(&params).map_err(wrong)?;
        let execution = ask::task_id(&params).map_err(wrong)?.ok_or(NotFound)?;
        let reply_to = reply_to.clone();
        Ok(ApiCall::Task(TaskCall { execution, ask, reply_to, history_max }.into()))
    };
    match method {
        "SendMessage" => send(params, reply_to, (TaskAnswer::Sent, request.trace)),
        "SendStreamingMessage" => send(params, reply_to, (TaskAnswer::Events, request.trace)),
        "GetTask" => of_task(TaskAsk::Get),
        "CancelTask" => of_task(TaskAsk::Cancel),
        "SubscribeToTask" => of_task(TaskAsk::Subscribe { since: request.since }),
        "ListTasks" => {
            let search = ask::read_task_search(params).map_err(wrong)?;
            Ok(ApiCall::Tasks(search.into()))
        }
        "GetExtendedAgentCard" => Ok(ApiCall::AgentCard(request.origin)),
        "CreateTaskPushNotificationConfig"
        | "GetTaskPushNotificationConfig"
        | "ListTaskPushNotificationConfigs"
        | "DeleteTaskPushNotificationConfig" => Err(no_push()),
        _ => {
            let text = "method: A2A 1.0 has no such method";
            Err(ApiError::new(Status::BAD_REQUEST, "unknown_method", text).field("method"))
        }
    }
}

/// Returns the refusal of a path about notifications, which this server does not send.
pub(super) fn refusal_of(path: &str) -> Option<ApiError> {
    let is_push = path.starts_with("/a2a/tasks/") && path.contains("/pushNotificationConfigs");
    is_push.then(no_push)
}

fn no_push() -> ApiError {
    let text = "this server sends no push notifications: subscribe to the task";
    ApiError::new(Status::BAD_REQUEST, "no_push_notifications", text)
}

/// Reads a request to send a message.
fn send(
    params: Map<String, Value>,
    reply_to: Option<Box<str>>,
    (answer, trace): (TaskAnswer, TraceContext),
) -> Result<ApiCall, ApiError> {
    let sent = ask::read_message(params).map_err(|fault| match fault {
        MessageFault::Wrong(error) => wrong(error),
        MessageFault::Push => no_push(),
        MessageFault::Content(text) => {
            ApiError::new(Status::BAD_REQUEST, "unsupported_content", text)
        }
    })?;
    let SentMessage { text, call, context, task, options, is_immediate, history_max } = sent;
    if let Some(task) = task {
        let execution: ExecutionId = task.parse().map_err(|_| NotFound)?;
        let call = TaskCall { execution, ask: TaskAsk::Continue, reply_to, history_max };
        return Ok(ApiCall::Task(call.into()));
    }
    let is_waited_for = answer == TaskAnswer::Events || !is_immediate;
    let format = StreamFormat::Front(FrontFormat::A2a { answer });
    let stream = is_waited_for.then(|| (format, DeliveryOptions::default()));
    let messages = json!([{ "role": "user", "content": text }]);
    let kept = json!({ "messages": messages });
    let execute = match call {
        Some((tool, arguments)) => {
            let body = json!({ "tool": tool, "arguments": arguments }).to_string();
            execute::execute(body.as_bytes(), stream)?
        }
        None => {
            let mut members: Map<String, Value> =
                options.into_iter().filter(|(name, _)| agent::is_member(name)).collect();
            members.insert("messages".to_owned(), messages);
            agent::run(&members.into(), stream)?
        }
    };
    let thread_id = context.map(|name| bodies::named("contextId", &name)).transpose()?;
    let front = FrontRun {
        thread_id,
        protocol: FrontProtocol::Task,
        kept: Some(kept.into()),
        reply_to,
        history_max,
        ..FrontRun::default()
    };
    let execute = Execute { front: Some(front.into()), trace, ..execute };
    Ok(ApiCall::Execute(execute.into()))
}

/// The words of A2A for an error: the code of JSON-RPC, and the status of HTTP with its name. An
/// error of A2A's own has a name, too.
struct Words(i32, Status, &'static str, Option<&'static str>);

fn words_of(code: &str, status: Status) -> Words {
    let own = |code, name| Words(code, Status::BAD_REQUEST, "FAILED_PRECONDITION", Some(name));
    match code {
        "not_found" => Words(-32001, Status::NOT_FOUND, "NOT_FOUND", Some("TASK_NOT_FOUND")),
        "not_cancelable" => own(-32002, "TASK_NOT_CANCELABLE"),
        "no_push_notifications" => own(-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
        "unsupported_operation" | "busy" | "no_longer_held" if status.code() < 500 => {
            own(-32004, "UNSUPPORTED_OPERATION")
        }
        "unsupported_content" => {
            let name = Some("CONTENT_TYPE_NOT_SUPPORTED");
            Words(-32005, Status::BAD_REQUEST, "INVALID_ARGUMENT", name)
        }
        "unsupported_version" => own(-32009, "VERSION_NOT_SUPPORTED"),
        "malformed_json" => Words(-32700, status, "INVALID_ARGUMENT", None),
        "invalid_body" => Words(-32600, status, "INVALID_ARGUMENT", None),
        "unknown_method" => Words(-32601, status, "NOT_FOUND", None),
        _ => match status.code() {
            400 | 404 | 409 | 422 => Words(-32602, Status::BAD_REQUEST, "INVALID_ARGUMENT", None),
            401 => Words(-32603, status, "UNAUTHENTICATED", None),
            403 => Words(-32603, status, "PERMISSION_DENIED", None),
            429 => Words(-32603, status, "RESOURCE_EXHAUSTED", None),
            503 => Words(-32603, status, "UNAVAILABLE", None),
            _ => Words(-32603, status, "INTERNAL", None),
        },
    }
}

/// Returns an answer in the words of A2A. `reply_to` is the id of the JSON-RPC request that is
/// answered, as JSON.
pub(super) fn spelled(answer: &Answer, reply_to: Option<&str>) -> Option<Answer> {
    let body: Value = match answer.is_refusal() {
        false if reply_to.is_none() || answer.body().is_empty() => return None,
        _ => serde_json::from_slice(answer.body()).ok()?,
    };
    let id = || reply_to.and_then(|id| serde_json::from_str::<Value>(id).ok());
    if !answer.is_refusal() {
        let wrapped = json!({ "jsonrpc": "2.0", "id": id(), "result": body });
        return Some(answer.with_body(JSON, wrapped.to_string().into_bytes()));
    }
    let error = &body["error"];
    let code = error["code"].as_str().unwrap_or_default();
    let Words(number, status, name, own) = words_of(code, answer.status());
    let reason = match own {
        Some(own) => own.to_owned(),
        None if number == -32602 => "INVALID_PARAMS".to_owned(),
        None => code.to_ascii_uppercase(),
    };
    let domain = if own.is_some() { "a2a-protocol.org" } else { env!("CARGO_PKG_NAME") };
    let mut metadata = json!({ "code": code });
    let mut detail: Vec<Value> = Vec::new();
    if let Some(field) = error["field"].as_str() {
        metadata["field"] = field.into();
    }
    detail.push(json!({
        "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason,
        "domain": domain, "metadata": metadata,
    }));
    if let (None, Some(field)) = (own, error["field"].as_str()) {
        detail.push(json!({
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{ "field": field, "description": error["message"] }],
        }));
    }
    let message = &error["message"];
    // A client of JSON-RPC reads the error of a method from an answer that is fine otherwise.
    let is_plain = matches!(number, -32700 | -32600 | -32601)
        || matches!(answer.status().code(), 401 | 403 | 413 | 415 | 429)
        || status.code() >= 500;
    Some(match reply_to {
        Some(_) => {
            let error = json!({ "code": number, "message": message, "data": detail });
            let body = json!({ "jsonrpc": "2.0", "id": id(), "error": error });
            let status = if is_plain { answer.status() } else { Status::OK };
            answer.with_body(JSON, body.to_string().into_bytes()).with_status(status)
        }
        None => {
            let error = json!({
                "code": status.code(), "status": name, "message": message, "details": detail,
            });
            let body = json!({ "error": error }).to_string().into_bytes();
            answer.with_body(JSON, body).with_status(status)
        }
    })
}
