//! Interprets a request: finds its route, then reads its head and its body.

use std::borrow::Cow;
use std::sync::LazyLock;

use smallvec::SmallVec;

use crate::base::{ExecutionId, ProgressToken, SubscriberId};
use crate::endpoint::answer::{Answer, ErrorFormat, JSON};
use crate::endpoint::front::bodies::{self, RunAnswer};
use crate::endpoint::lines::LinesBody;
use crate::endpoint::parameters::Parameters;
use crate::endpoint::representation::Selection;
use crate::endpoint::routes::{ROUTES, Route};
use crate::endpoint::tally::RouteAt;
use crate::endpoint::{
    ApiCall, ApiError, Deliver, DeliveryOptions, DurableCall, Execute, McpRequest, ProducerAt,
    StreamFormat, a2a, agent, door, durable, execute, mcp, subscriptions, workers,
};
use crate::engine::NotFound;
use crate::limits;
use crate::tool::is_tool_name;
use crate::trace::TraceContext;
use crate::wire::http1::{DecodeError, Method, RequestHead, Status, is_media_type};

/// The meaning of a request as far as its head tells it.
#[derive(Debug, PartialEq)]
pub(super) enum ParsedHead {
    /// The complete call.
    Call(ApiCall),
    /// The answer: no call is needed.
    Here(Answer),
    /// A tool run, which the body describes. The answer is a stream if a format is given.
    Execute(Option<(StreamFormat, DeliveryOptions)>, TraceContext, Option<Box<str>>),
    /// An agent run, which the body describes. The answer is its stream.
    Agent(agent::StreamOptions, TraceContext),
    /// A response of an agent, which the body describes.
    Respond(TraceContext),
    /// A run of LangGraph's ordinary API, which the body describes. Without a thread the name is
    /// empty.
    Run(Box<str>, RunAnswer, TraceContext),
    /// A request of A2A, which the body describes.
    A2a(Box<a2a::A2aRequest>),
    /// A request about a thread of LangGraph, which the body describes.
    Thread(Box<str>, ThreadBody),
    /// An acknowledgement. The body says through which chunk it goes.
    Acknowledge(ExecutionId, SubscriberId),
    /// The definition of the virtual tool of this name, which is in the body.
    PutVirtualTool(Box<str>),
    /// An execution that another process will write, which the body describes.
    Produce,
    /// An MCP message, which is in the body.
    Mcp(Box<McpRequest>),
    /// A part of a result from the worker of this session, which is in the body.
    Part(Box<str>, Option<ProducerAt>),
    /// A request about a stream. Its body is the content.
    Durable(Box<DurableCall>),
    /// Several parts, one per line. Each line is a call, and is not held back until the body is
    /// complete.
    Parts(Box<LinesBody>),
}

/// The meaning of a body about a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ThreadBody {
    /// The thread that will be created.
    Create,
    /// A LangGraph command.
    Command,
    /// A search for assistants, or their number.
    Assistants { is_count: bool },
    /// A search for threads, or their number.
    Search { is_count: bool },
    /// The wanted part of the history.
    History,
    /// The channels to follow, and the event after which to begin.
    Follow(crate::endpoint::front::FrontFormat),
}

/// The head of a request, with the named parts of its path in their order.
pub(super) struct RoutedRequest<'a> {
    path: Segments<'a>,
    pub parameters: Parameters<'a>,
    /// True for `HEAD`.
    pub is_head: bool,
}

type Segments<'a> = SmallVec<[Cow<'a, str>; 8]>;

/// A request as far as its head tells it.
pub(super) struct Asked {
    pub parsed: ParsedHead,
    /// The maximum length of the body.
    pub body_bytes_max: u64,
    /// The route, if one fits.
    pub route: RouteAt,
    /// The wanted representation, if the route is a document.
    pub selection: Option<Box<Selection>>,
}

impl Asked {
    /// Creates a request that is refused before its route is known. Its body is dropped, so that
    /// the next request can be read.
    pub fn refused(answer: Answer) -> Asked {
        let parsed = ParsedHead::Here(answer);
        let body_bytes_max = limits::HTTP_BODY_BYTES_MAX;
        Asked { parsed, body_bytes_max, route: None, selection: None }
    }
}

/// Returns the meaning of a request as far as its head tells it.
pub(super) fn ask(head: &RequestHead<'_>) -> Asked {
    let words = ErrorFormat::at(head.target.path);
    let refused = |error: ApiError| Asked::refused(Answer::error_in(words, &error));
    if head.target.path == "*" {
        return Asked::refused(allow(Answer::empty(Status::NO_CONTENT), ROUTES));
    }
    if head.target.path.starts_with(durable::PREFIX) && head.method != Method::Options {
        return durable::ask(head);
    }
    let segments: Result<Segments<'_>, DecodeError> =
        head.target.segments().take(SEGMENTS_MAX + 1).collect();
    let segments = match segments {
        Ok(segments) => segments,
        Err(fault) => {
            let text = format!("the path: {fault}");
            return refused(ApiError::new(Status::BAD_REQUEST, "malformed_path", text));
        }
    };
    let here = routes_at(&segments);
    if here.is_empty() {
        let text = "this path does not exist; see /openapi.json for all paths";
        let unknown = || ApiError::new(Status::NOT_FOUND, "unknown_path", text);
        return refused(a2a::refusal_of(head.target.path).unwrap_or_else(unknown));
    }
    let routes = || here.iter().map(|(_, route)| *route);
    if head.method == Method::Options {
        return Asked::refused(allow(Answer::empty(Status::NO_CONTENT), routes()));
    }
    let method = if head.method == Method::Head { Method::Get } else { head.method };
    let Some((at, route)) = here.iter().find(|(_, route)| route.method == method) else {
        let text = format!("this path allows only {}", methods_of(routes()));
        let error = ApiError::new(Status::METHOD_NOT_ALLOWED, "method_not_allowed", text);
        return Asked::refused(allow(Answer::error_in(words, &error), routes()));
    };
    let bytes_max = match &route.body {
        Some(body) => body.bytes_max,
        // Clients of A2A repeat the path in a body.
        None if words == ErrorFormat::A2a => limits::HTTP_SMALL_BODY_BYTES_MAX,
        None => 0,
    };
    let (parsed, body_bytes_max) = match route.begin(head, &segments) {
        Ok(parsed @ ParsedHead::Parts(_)) => (parsed, u64::MAX), // Each line has its own limit.
        Ok(parsed) => (parsed, bytes_max),
        Err(fault) => (ParsedHead::Here(Answer::error_in(words, &fault)), bytes_max),
    };
    let selection = route.document.map(|document| document.select(head.headers).into());
    Asked { parsed, body_bytes_max, route: Some(*at as u8), selection }
}

/// Returns true if anybody may send this request.
pub(super) fn is_open(head: &RequestHead<'_>) -> bool {
    let method = if head.method == Method::Head { Method::Get } else { head.method };
    let is_it = |route: &Route| route.method == method && route.path == head.target.path;
    ROUTES.iter().any(|route| route.is_open && is_it(route)) || subscriptions::is_open(head)
}

/// Returns true if the request has a token of another kind than those of clients.
pub(super) fn has_own_token(head: &RequestHead<'_>) -> bool {
    subscriptions::has_own_token(head)
}

/// Maximum number of parts of a path.
const SEGMENTS_MAX: usize = 8;

/// The beginning of the first part of a path, and the number of its parts. Most routes differ from
/// a path in one of them, and need no closer look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RouteKey {
    first: u64,
    part_count: usize,
}

static ROUTE_KEYS: LazyLock<Vec<RouteKey>> = LazyLock::new(|| {
    let key = |route: &Route| match route.path {
        // The path of a stream has any number of parts.
        durable::ROUTE => RouteKey { part_count: usize::MAX, ..RouteKey::of(["v1"]) },
        "/" => RouteKey::of([]),
        path => RouteKey::of(path[1..].split('/')),
    };
    ROUTES.iter().map(key).collect()
});

impl RouteKey {
    fn of<'p>(parts: impl IntoIterator<Item = &'p str>) -> RouteKey {
        let mut parts = parts.into_iter();
        let mut key = RouteKey { first: 0, part_count: 0 };
        if let Some(first) = parts.next() {
            let mut bytes = [0; 8];
            let length = first.len().min(bytes.len());
            bytes[..length].copy_from_slice(&first.as_bytes()[..length]);
            key = RouteKey { first: u64::from_le_bytes(bytes), part_count: 1 + parts.count() };
        }
        key
    }

    /// True if a route with this key may be at a path with the other one.
    fn may_be_at(self, path: RouteKey) -> bool {
        let has_any_count = self.part_count == usize::MAX;
        self.first == path.first && (has_any_count || self.part_count == path.part_count)
    }
}

/// Returns the routes of a path. A path that is spelled out has no names in it.
fn routes_at(segments: &Segments<'_>) -> SmallVec<[(usize, &'static Route); Method::ALL.len()]> {
    let wanted = RouteKey::of(segments.iter().map(Cow::as_ref));
    let all = ROUTES.iter().enumerate().zip(&*ROUTE_KEYS);
    let all = all.filter(|(_, key)| key.may_be_at(wanted)).map(|(route, _)| route);
    let all = all.filter(|(_, route)| is_at(route.path, segments));
    let mut here: SmallVec<[(usize, &Route); Method::ALL.len()]> = all.collect();
    // A name with an end that is spelled out counts as half a name.
    let names =
        |route: &Route| 2 * route.path.matches('{').count() - route.path.matches("}:").count();
    if let Some(least) = here.iter().map(|(_, route)| names(route)).min() {
        here.retain(|(_, route)| names(route) == least);
    }
    here
}

/// Returns true if the segments match the path of a route.
fn is_at(path: &str, segments: &Segments<'_>) -> bool {
    if path == durable::ROUTE {
        // The path of a stream has any number of parts.
        let [first, second, third, ..] = &segments[..] else { return false };
        return first == "v1" && second == "stream" && third != durable::RESERVED;
    }
    if path == "/" {
        return segments.is_empty();
    }
    let mut rest = path.as_bytes();
    for segment in segments {
        let Some(part) = rest.strip_prefix(b"/") else { return false };
        let behind = match part.first() {
            Some(b'{') if segment.is_empty() => None,
            Some(b'{') => {
                let behind = part.iter().position(|byte| *byte == b'}').map(|end| &part[end + 1..]);
                // A name may have an end that is spelled out, as in `{task}:cancel`.
                let until = behind.map_or(0, |all| all.iter().take_while(|b| **b != b'/').count());
                let end = behind.map(|all| &all[..until]);
                let has_end = end.is_some_and(|end| segment.as_bytes().ends_with(end));
                behind.map(|all| &all[until..]).filter(|_| has_end && segment.len() > until)
            }
            // A slash that was spelled `%2F` does not end a part.
            _ => part.strip_prefix(segment.as_bytes()).filter(|_| !segment.contains('/')),
        };
        match behind {
            Some(behind) if matches!(behind.first(), None | Some(b'/')) => rest = behind,
            _ => return false,
        }
    }
    rest.is_empty()
}

/// Adds the methods that these routes allow.
fn allow<'r>(answer: Answer, routes: impl IntoIterator<Item = &'r Route>) -> Answer {
    answer.allowing(methods_of(routes))
}

/// Returns the methods that the path of a request allows. If no route has this path, it returns all
/// methods.
pub(super) fn methods(head: &RequestHead<'_>) -> String {
    let segments = head.target.segments().take(SEGMENTS_MAX + 1);
    let segments = segments.collect::<Result<Segments<'_>, DecodeError>>().unwrap_or_default();
    let here = routes_at(&segments);
    match here.is_empty() {
        false => methods_of(here.iter().map(|(_, route)| *route)),
        true => methods_of(ROUTES),
    }
}

fn methods_of<'r>(routes: impl IntoIterator<Item = &'r Route>) -> String {
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
    names.join(", ")
}

impl Route {
    fn begin(
        &self,
        head: &RequestHead<'_>,
        segments: &Segments<'_>,
    ) -> Result<ParsedHead, ApiError> {
        let named = self.path[1..].split('/').zip(segments);
        let path = named.filter(|(part, _)| part.starts_with('{')).map(|(part, value)| match part
            .split_once('}')
        {
            Some((_, end)) if !end.is_empty() => {
                Cow::Owned(value.strip_suffix(end).unwrap_or(value).to_owned())
            }
            _ => value.clone(),
        });
        let parameters = Parameters::read(head.target.query, head.headers, self.query)?;
        let is_head = head.method == Method::Head;
        let parsed = (self.begin)(&RoutedRequest { path: path.collect(), parameters, is_head })?;
        if self.body.is_some() {
            check_body(head, matches!(parsed, ParsedHead::Parts(_)))?;
        }
        Ok(parsed)
    }
}

/// Checks that the request has a body of JSON, or of lines of JSON if `has_lines`.
fn check_body(head: &RequestHead<'_>, has_lines: bool) -> Result<(), ApiError> {
    head.require_body()?;
    let unsupported = |field: &str, text: String| {
        let code = "unsupported_media_type";
        ApiError::new(Status::UNSUPPORTED_MEDIA_TYPE, code, format!("{field}: {text}")).field(field)
    };
    let media_type = head.headers.only("content-type")?;
    let is_json = media_type.is_some_and(|media_type| {
        let is_a2a = || is_media_type(media_type, a2a::MEDIA_TYPE);
        is_media_type(media_type, JSON) || head.target.path.starts_with(a2a::PATH) && is_a2a()
    });
    if !is_json && !has_lines {
        return Err(unsupported("content-type", format!("the body must be {JSON}")));
    }
    match head.headers.only("content-encoding")? {
        None | Some("identity") => Ok(()),
        Some(_) => {
            Err(unsupported("content-encoding", "the body must have no encoding".to_owned()))
        }
    }
}

impl RoutedRequest<'_> {
    /// Returns the id of the execution. Text that is not an id results in [`NotFound`].
    pub fn execution(&self) -> Result<ExecutionId, ApiError> {
        Ok(self.path[0].parse().map_err(|_| NotFound)?)
    }

    /// Does the same as [`RoutedRequest::execution`], for this part of the path.
    pub fn execution_at(&self, at: usize) -> Result<ExecutionId, ApiError> {
        Ok(self.path[at].parse().map_err(|_| NotFound)?)
    }

    /// Returns the execution of the response that the path names.
    pub fn response(&self) -> Result<ExecutionId, ApiError> {
        Ok(bodies::response_id(&self.path[0]).ok_or(NotFound)?)
    }

    pub fn subscriber(&self) -> Result<SubscriberId, ApiError> {
        Ok(self.path[1].parse().map_err(|_| NotFound)?)
    }

    pub fn tool_name(&self) -> Result<Box<str>, ApiError> {
        let name = &self.path[0];
        if is_tool_name(name) {
            return Ok(name.as_ref().into());
        }
        let chars_max = limits::TOOL_NAME_CHARS_MAX;
        let text = format!("name: it must be 1 to {chars_max} letters, digits, `_`, `-` and `.`");
        let error = ApiError::new(Status::BAD_REQUEST, "invalid_parameter", text);
        Err(error.field("name").limit(chars_max as u64))
    }

    /// Returns the client's name of a thread.
    pub fn thread(&self) -> Result<Box<str>, ApiError> {
        bodies::named("thread", &self.path[0])
    }

    /// Returns the name of an assistant.
    pub fn assistant(&self) -> Result<Box<str>, ApiError> {
        bodies::named("assistant", &self.path[0])
    }

    pub fn token(&self) -> Result<ProgressToken, ApiError> {
        Ok(self.path[0].parse().map_err(|_| NotFound)?)
    }
}

impl ParsedHead {
    /// Returns the call now that the body is complete, or the answer if no call is needed.
    pub fn complete(self, body: &[u8]) -> Result<ApiCall, Answer> {
        let call = match self {
            ParsedHead::Call(call) => return Ok(call),
            ParsedHead::Here(answer) => return Err(answer),
            ParsedHead::Execute(stream, trace, key) => {
                let key = key.map(|text| execute::key(text, body));
                execute::execute(body, stream)
                    .map(|execute| ApiCall::Execute(Execute { trace, key, ..execute }.into()))
            }
            ParsedHead::Agent(stream, trace) => agent::stream(body, stream)
                .map(|execute| ApiCall::Execute(Execute { trace, ..execute }.into())),
            ParsedHead::Respond(trace) => bodies::respond(body)
                .map(|execute| ApiCall::Execute(Execute { trace, ..execute }.into())),
            ParsedHead::Thread(thread, ThreadBody::Command) => {
                return bodies::command(body, thread);
            }
            ParsedHead::Thread(thread, ThreadBody::Follow(format)) => {
                bodies::follow(body, thread, format)
            }
            ParsedHead::Thread(_, ThreadBody::Create) => bodies::create(body),
            ParsedHead::Thread(_, ThreadBody::Assistants { is_count }) => {
                bodies::search_assistants(body, is_count)
            }
            ParsedHead::Thread(_, ThreadBody::Search { is_count }) => {
                bodies::search_threads(body, is_count)
            }
            ParsedHead::Thread(thread, ThreadBody::History) => bodies::history(body, thread),
            ParsedHead::A2a(request) => a2a::complete(*request, body),
            ParsedHead::Run(thread, how, trace) => bodies::start_run(body, thread, how)
                .map(|execute| ApiCall::Execute(Execute { trace, ..execute }.into())),
            ParsedHead::Acknowledge(id, subscriber) => {
                execute::acknowledge(body).map(|seq| ApiCall::Acknowledge(id, subscriber, seq))
            }
            ParsedHead::Produce => {
                door::produce(body).map(|produce| ApiCall::Produce(produce.into()))
            }
            ParsedHead::PutVirtualTool(name) => {
                workers::put(&name, body).map(|tool| ApiCall::PutVirtualTool(tool.into()))
            }
            ParsedHead::Part(session, producer) => workers::part(body).and_then(|part| {
                let part = workers::numbered(part, producer.as_ref())?;
                let deliver = Deliver { session, part, producer, is_of_many: false };
                Ok(ApiCall::Deliver(deliver.into()))
            }),
            ParsedHead::Mcp(head) => return mcp::complete(*head, body),
            ParsedHead::Durable(call) => return durable::complete(*call, body),
            ParsedHead::Parts(_) => unreachable!("the body is read line by line"),
        };
        call.map_err(|error| Answer::error(&error))
    }
}
