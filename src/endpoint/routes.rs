//! Everything that can be asked for over HTTP, in one table: requests are told apart by it, and
//! `/openapi.json` is written from it.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::base::{ExecutionId, ProgressToken, SubscriberId};
use crate::endpoint::answer::{Answer, JSON};
use crate::endpoint::fields::{Field, Shape};
use crate::endpoint::parameters::{
    EXECUTIONS, FORMAT, FROM, FROM_ALL, KINDS, LAST_EVENT_ID, METRICS_TYPES, Parameters, STREAM,
    WAIT, WISHES,
};
use crate::endpoint::{ApiError, Call, StreamFormat, Wishes, documents, execute, openapi};
use crate::engine::NotFound;
use crate::limits;
use crate::wire::http1::{DecodeError, Method, RequestHead, Status, is_media_type};

/// One of the things that can be asked for.
#[derive(Debug)]
pub(super) struct Route {
    pub method: Method,
    /// Parts in braces are names out of [`PATH_FIELDS`].
    pub path: &'static str,
    /// What it is called, for programs that are made from the description.
    pub name: &'static str,
    pub summary: &'static str,
    /// The parameters in the query string, in groups.
    pub query: &'static [&'static [Field]],
    pub headers: &'static [Field],
    pub body: Option<Body>,
    /// What is answered if all goes well; else it is an [`ApiError`].
    pub answers: &'static [(Status, Content)],
    /// Reads what the head asks for.
    begin: fn(&Request<'_>) -> Result<Asked, ApiError>,
}

/// The body of a request: a JSON object.
#[derive(Debug)]
pub(super) struct Body {
    pub fields: &'static [Field],
    pub bytes_max: u64,
}

/// What is in an answer.
#[derive(Debug)]
pub(super) enum Content {
    Empty,
    /// A document; its schema has this name.
    Json(&'static str),
    /// Events, in either format.
    Events,
    /// A payload, as it is.
    Bytes,
    /// Text of one of these types.
    Text(&'static [&'static str]),
}

/// What is known behind the head of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Asked {
    /// All of it.
    Call(Call),
    /// The answer.
    Here(Answer),
    /// What to run is in the body; perhaps the answer is a stream.
    Execute(Option<(StreamFormat, Wishes)>),
    /// How far the acknowledgement goes is in the body.
    Acknowledge(ExecutionId, SubscriberId),
}

/// The head of a request, with the parts of its path that have names, in their order.
struct Request<'a> {
    path: Segments<'a>,
    parameters: Parameters<'a>,
}

type Segments<'a> = SmallVec<[Cow<'a, str>; 8]>;

/// Parts of paths.
pub(super) const PATH_FIELDS: &[Field] = &[
    Field::new("execution", Shape::Execution, "The execution's id.").required(),
    Field::new("subscriber", Shape::Subscriber, "The subscriber's id.").required(),
    Field::new("token", Shape::Token, "A progress token.").required(),
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

/// All of them.
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
        body: Some(Body { fields: execute::EXECUTE, bytes_max: limits::HTTP_BODY_BYTES_MAX }),
        answers: &[(Status::CREATED, Content::Json("Created")), (Status::OK, Content::Events)],
        begin: |request| Ok(Asked::Execute(request.parameters.stream()?)),
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
        query: &[FORMAT, FROM, WISHES],
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
        body: Some(Body {
            fields: execute::ACKNOWLEDGE,
            bytes_max: limits::HTTP_SMALL_BODY_BYTES_MAX,
        }),
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
        summary: "May clients be sent here? 503 if not.",
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

/// What a request asks for, as far as its head says it, and how long its body may be.
pub(super) fn ask(head: &RequestHead<'_>) -> (Asked, u64) {
    let error = |error: ApiError| Asked::Here(Answer::error(&error));
    // Of a request that is refused the body is dropped, so that the next one can be read.
    let dropped_max = limits::HTTP_BODY_BYTES_MAX;
    if head.target.path == "*" {
        return (Asked::Here(allow(Answer::empty(Status::NO_CONTENT), ROUTES)), dropped_max);
    }
    let segments: Result<Segments<'_>, DecodeError> =
        head.target.segments().take(SEGMENTS_MAX + 1).collect();
    let segments = match segments {
        Ok(segments) => segments,
        Err(fault) => {
            let text = format!("the path: {fault}");
            let fault = ApiError::new(Status::BAD_REQUEST, "malformed_path", text);
            return (error(fault), dropped_max);
        }
    };
    let here = || ROUTES.iter().filter(|route| is_at(route.path, &segments));
    if here().next().is_none() {
        let text = "there is nothing at this path; /openapi.json says what there is";
        return (error(ApiError::new(Status::NOT_FOUND, "unknown_path", text)), dropped_max);
    }
    if head.method == Method::Options {
        return (Asked::Here(allow(Answer::empty(Status::NO_CONTENT), here())), dropped_max);
    }
    let method = if head.method == Method::Head { Method::Get } else { head.method };
    let Some(route) = here().find(|route| route.method == method) else {
        let text = format!("{} is not allowed here", head.method);
        let error = ApiError::new(Status::METHOD_NOT_ALLOWED, "method_not_allowed", text);
        return (Asked::Here(allow(Answer::error(&error), here())), dropped_max);
    };
    let bytes_max = route.body.as_ref().map_or(0, |body| body.bytes_max);
    match route.begin(head, &segments) {
        Ok(asked) => (asked, bytes_max),
        Err(fault) => (error(fault), bytes_max),
    }
}

/// No path has more parts.
const SEGMENTS_MAX: usize = 8;

fn is_at(path: &str, segments: &Segments<'_>) -> bool {
    let mut parts = path[1..].split('/');
    let is_it = |part: &str, segment: &str| match part.starts_with('{') {
        true => !segment.is_empty(),
        false => part == segment,
    };
    let are_equal =
        segments.iter().all(|segment| parts.next().is_some_and(|part| is_it(part, segment)));
    are_equal && parts.next().is_none()
}

/// With the methods that the routes of a path have.
fn allow<'r>(answer: Answer, routes: impl IntoIterator<Item = &'r Route>) -> Answer {
    let mut has = [false; Method::ALL.len()];
    let mut add = |method: Method| has[method as usize] = true;
    add(Method::Options);
    for route in routes {
        add(route.method);
        if route.method == Method::Get {
            add(Method::Head);
        }
    }
    let methods = Method::ALL.into_iter().filter(|method| has[*method as usize]);
    let names: Vec<&str> = methods.map(Method::name).collect();
    answer.allowing(names.join(", "))
}

impl Route {
    fn begin(&self, head: &RequestHead<'_>, segments: &Segments<'_>) -> Result<Asked, ApiError> {
        let named = self.path[1..].split('/').zip(segments);
        let path = named.filter(|(part, _)| part.starts_with('{')).map(|(_, value)| value.clone());
        let parameters = Parameters::read(head.target.query, head.headers, self.query)?;
        let asked = (self.begin)(&Request { path: path.collect(), parameters })?;
        if self.body.is_some() {
            head.require_body()?;
            let media_type = head.headers.only("content-type")?;
            if !media_type.is_some_and(|media_type| is_media_type(media_type, JSON)) {
                let text = format!("content-type: a body here is {JSON}");
                let code = "unsupported_media_type";
                let error = ApiError::new(Status::UNSUPPORTED_MEDIA_TYPE, code, text);
                return Err(error.field("content-type"));
            }
        }
        Ok(asked)
    }
}

impl Request<'_> {
    /// What is no id is the id of nothing.
    fn execution(&self) -> Result<ExecutionId, ApiError> {
        Ok(self.path[0].parse().map_err(|_| NotFound)?)
    }

    fn subscriber(&self) -> Result<SubscriberId, ApiError> {
        Ok(self.path[1].parse().map_err(|_| NotFound)?)
    }

    fn token(&self) -> Result<ProgressToken, ApiError> {
        Ok(self.path[0].parse().map_err(|_| NotFound)?)
    }
}

impl Asked {
    /// The call, or the answer if there is one already, now that the body is there.
    pub fn complete(self, body: &[u8]) -> Result<Call, Answer> {
        let call = match self {
            Asked::Call(call) => return Ok(call),
            Asked::Here(answer) => return Err(answer),
            Asked::Execute(stream) => {
                execute::execute(body, stream).map(|execute| Call::Execute(execute.into()))
            }
            Asked::Acknowledge(id, subscriber) => {
                execute::acknowledge(body).map(|seq| Call::Acknowledge(id, subscriber, seq))
            }
        };
        call.map_err(|error| Answer::error(&error))
    }
}
