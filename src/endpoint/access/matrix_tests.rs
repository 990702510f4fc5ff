//! Tests of every route with everything that is refused. They use the route table, so a new route
//! is covered.

use std::time::Duration;

use serde_json::{Map, Value};

use super::*;
use crate::endpoint::call_tests::{id, token as progress_token};
use crate::endpoint::exchange::{CONNECTION, DATE, Response, responses};
use crate::endpoint::fields::{Field, Shape};
use crate::endpoint::routes::{PATH_FIELDS, ROUTES, Route};
use crate::endpoint::{
    Answer, ApiCall, ConnectionStep, HttpConnection, StreamBody, Surroundings, Tally, durable,
};
use crate::wire::http1::{Method, Status};

const ANN: &str = "Authorization: Bearer ann-0123456789abcdef0123456789abcdef";
const BOB: &str = "Authorization: Bearer bob-0123456789abcdef0123456789abcdef";
const WRONG: &str = "Authorization: Bearer eve-0123456789abcdef0123456789abcdef";
const PAGE: &str = "https://app.example";
/// An MCP message that wants no answer.
const NOTIFICATION: &str = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#;
/// A LangGraph command that is carried out.
const RUN_START: &str =
    r#"{"id":1,"method":"run.start","params":{"assistant_id":"agent","input":"x"}}"#;
const TTL: Duration = Duration::from_secs(100);

fn guarded() -> Access {
    let text = [ANN, BOB].map(|line| line.replace("Authorization: Bearer ", "p ") + "\n");
    let text = text.concat().replacen("p ann", "ann ann", 1).replacen("p bob", "bob bob", 1);
    Access::default().with_origins(vec![PAGE.parse().unwrap()]).with_tokens(
        Tokens::read(&text).unwrap(),
        [3; 32],
        TTL,
    )
}

/// One request. Unless a test changes it, everything in it is valid.
#[derive(Clone, Debug)]
struct Asking {
    method: Method,
    target: String,
    host: &'static str,
    headers: Vec<String>,
    body: Option<(&'static str, String)>,
}

impl Asking {
    fn new(method: Method, target: impl Into<String>) -> Asking {
        let (target, host, headers) = (target.into(), "localhost:8808", vec![ANN.to_owned()]);
        Asking { method, target, host, headers, body: None }
    }

    /// Returns a valid request for this route.
    fn of(route: &Route) -> Asking {
        let mut target = route.path.to_owned();
        for field in PATH_FIELDS {
            let value = example(&field.shape);
            let value = value.as_str().expect("the example of a path field is a text");
            target = target.replace(&format!("{{{}}}", field.name), value);
        }
        assert!(!target.contains('{'), "{}: a field has no example", route.path);
        let required = |field: &&Field| field.is_required;
        for field in route.query.iter().copied().flatten().filter(required) {
            target += &format!("?{}={}", field.name, example(&field.shape).as_str().unwrap());
        }
        let body = route.body.as_ref().map(|body| {
            let members: Map<String, Value> = (body.fields.iter().filter(required))
                .map(|field| (field.name.to_owned(), example(&field.shape)))
                .collect();
            let body = match route.path {
                "/mcp" => NOTIFICATION.to_owned(), // Its members depend on the kind of message.
                "/langgraph/threads/{thread}/commands" => RUN_START.to_owned(),
                _ => Value::from(members).to_string(),
            };
            ("application/json", body)
        });
        let content = || ("text/plain", "content".to_owned());
        let is_stream = route.path == durable::ROUTE && route.method == Method::Post;
        let body = body.or_else(|| is_stream.then(content));
        let mut asking = Asking { body, ..Asking::new(route.method, target) };
        for field in route.headers.iter().filter(required) {
            let value = example(&field.shape);
            let value = value.as_str().expect("the example of a header is a text");
            asking.headers.push(format!("{}: {value}", field.name));
        }
        asking
    }

    /// True if anybody may send it.
    fn is_open(&self) -> bool {
        let is_read = matches!(self.method, Method::Get | Method::Head);
        is_read && ["/healthz", "/readyz"].contains(&self.target.as_str())
    }

    fn with(&self, line: &str) -> Asking {
        let mut changed = self.clone();
        changed.headers.push(line.to_owned());
        changed
    }

    fn without_token(&self) -> Asking {
        let mut stranger = self.clone();
        stranger.headers.retain(|line| !line.starts_with("Authorization: "));
        stranger
    }

    fn bytes(&self) -> Vec<u8> {
        let Asking { method, target, host, headers, body } = self;
        let mut text = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n");
        headers.iter().for_each(|line| text += &format!("{line}\r\n"));
        match body {
            None => text += "\r\n",
            Some((media_type, body)) => {
                if !media_type.is_empty() {
                    text += &format!("Content-Type: {media_type}\r\n");
                }
                text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
            }
        }
        text.into_bytes()
    }

    /// Returns the calls that the request becomes, each with its principal, and the answer.
    fn ask(&self, access: &Access) -> (Vec<(ApiCall, Principal)>, Response) {
        self.ask_at(access, Instant::from_nanos(0))
    }

    fn ask_at(&self, access: &Access, now: Instant) -> (Vec<(ApiCall, Principal)>, Response) {
        let tally = Tally::new(false);
        let connection = CONNECTION;
        let around = Surroundings { date: DATE, now, access, tally: &tally, connection };
        let last = Asking::new(Method::Get, "/v1/tools");
        let bytes = [self.bytes(), last.bytes()].concat();
        let (mut calls, out) = converse(&around, &[&bytes]);
        let each: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(converse(&around, &each), (calls.clone(), out.clone()), "{self:?}");
        // The request that follows is neither lost nor taken for another one.
        let asks = if access.is_guarded() { Principal(1) } else { Principal::ANYONE };
        assert_eq!(calls.pop(), Some((ApiCall::Tools, asks)), "{self:?}");
        let response = responses(&[self.method, Method::Get], &out, false).remove(0);
        (calls, response)
    }

    /// Checks that the request is refused with this status and code, without a call.
    fn is_refused(&self, access: &Access, status: u16, code: &str) -> Response {
        let (calls, response) = self.ask(access);
        assert_eq!(calls, [], "{self:?}");
        assert_eq!(response.status, status, "{self:?}: {response:?}");
        if self.method != Method::Head {
            let found = match self.target.split('?').next() {
                Some("/mcp") => response.mcp_error().0,
                _ => response.error().0,
            };
            assert_eq!(found, code, "{self:?}");
        }
        response
    }
}

fn converse(around: &Surroundings<'_>, pieces: &[&[u8]]) -> (Vec<(ApiCall, Principal)>, Vec<u8>) {
    let (mut connection, mut calls, mut out) = (HttpConnection::new(), Vec::new(), Vec::new());
    for piece in pieces {
        let mut step = connection.receive(piece, around, &mut out);
        while let ConnectionStep::Call(call) = step {
            match call {
                ApiCall::Follow(_) | ApiCall::Output(..) => {
                    let body = connection.begin_stream("text/event-stream", around, &mut out);
                    if body != StreamBody::None {
                        connection.end_stream(&mut out);
                    }
                }
                _ => connection.answer(&Answer::empty(Status::NO_CONTENT), around, &mut out),
            }
            calls.push((call, connection.principal()));
            step = connection.resume(around, &mut out);
        }
    }
    (calls, out)
}

/// Returns the smallest value of a shape.
fn example(shape: &Shape) -> Value {
    match shape {
        Shape::Number { min, .. } => (*min).into(),
        Shape::Choice(choices) => choices[0].into(),
        Shape::Text { .. } | Shape::Cursors | Shape::Ticket => "x".into(),
        Shape::Execution | Shape::Executions => id(1).to_string().into(),
        Shape::Response => format!("resp_{}", id(1)).into(),
        Shape::Subscriber => "s7.2".into(),
        Shape::Token => progress_token().to_string().into(),
        Shape::Kinds => "stdout".into(),
        Shape::StreamMode | Shape::StreamModes => "values".into(),
        Shape::Parts => serde_json::json!([{"text": "x"}]),
        Shape::Anything => serde_json::json!({"type": "object"}), // A schema, too.
        Shape::Any | Shape::ToolName | Shape::ToolNames | Shape::Session => "x".into(),
        Shape::AgentTools | Shape::Texts => serde_json::json!(["x"]),
        Shape::Messages => serde_json::json!([{"role": "user", "content": "x"}]),
        Shape::Flag => true.into(),
        Shape::Real => 0.5.into(),
        Shape::Whole => 1.into(),
        Shape::Members(fields) => {
            let required = fields.iter().filter(|field| field.is_required);
            required.map(|field| (field.name.to_owned(), example(&field.shape))).collect()
        }
        Shape::Either(shapes) => example(&shapes[0]),
        Shape::Place => format!("20260102030405678901{}", id(1)).into(),
        Shape::Null => Value::Null,
    }
}

/// The routes without those about subscriptions, which have tokens and bodies of their own.
fn plain_routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(|route| !route.path.starts_with("/v1/stream/__ds/"))
}

/// Returns requests for each route with each method, and for paths and methods that do not exist.
fn everything() -> Vec<Asking> {
    let mut all = Vec::new();
    for route in plain_routes() {
        let asking = Asking::of(route);
        for method in Method::ALL {
            let body = asking.body.clone().filter(|_| method == route.method);
            all.push(Asking { method, body, ..asking.clone() });
        }
    }
    for path in ["/", "/nowhere", "/v1/executions/x/events", "/%2e%2e", "//", "/%zz"] {
        all.extend(Method::ALL.map(|method| Asking::new(method, path)));
    }
    all.push(Asking::new(Method::Options, "*"));
    all
}

#[test]
fn who_has_a_token_is_let_in_everywhere() {
    let access = guarded();
    for route in plain_routes() {
        let asking = Asking::of(route);
        for asking in [asking.clone(), asking.with("Origin: http://localhost:8808")] {
            let (calls, response) = asking.ask(&access);
            let is_called = matches!(&calls[..], [(_, Principal(1))]);
            assert!(is_called || response.status == 200, "{asking:?}: {response:?}");
            assert_eq!(response.header("access-control-allow-origin"), None);
        }
    }
}

#[test]
fn whoever_may_not_come_in_is_refused_by_every_route_and_method() {
    let access = guarded();
    let ticket = access.ticket(Principal(1), id(2), Instant::from_nanos(0)).unwrap();
    let mut unauthorized = Vec::new();
    for good in everything().into_iter().filter(|asking| !asking.is_open()) {
        let evil = Asking { host: "evil.example:8808", ..good.clone() };
        evil.is_refused(&access, 403, "host_not_allowed");
        let origins =
            ["https://evil.example", "null", "http://localhost:3000", "https://app.example:444"];
        for origin in origins {
            let asking = good.with(&format!("Origin: {origin}"));
            let response = asking.is_refused(&access, 403, "origin_not_allowed");
            assert_eq!(response.header("access-control-allow-origin"), None);
            // A preflight request of such a page is refused, too.
            let asking = good.without_token().with(&format!("Origin: {origin}"));
            let preflight = asking.with("Access-Control-Request-Method: POST");
            let response = preflight.is_refused(&access, 403, "origin_not_allowed");
            assert_eq!(response.header("access-control-allow-methods"), None);
        }
        good.with("Sec-Fetch-Site: cross-site").is_refused(&access, 403, "origin_not_allowed");
        let both = good.with("Origin: http://localhost:8808").with("sec-fetch-site: Cross-Site");
        both.is_refused(&access, 403, "origin_not_allowed");
        good.with(BOB).is_refused(&access, 400, "invalid_header");

        let stranger = good.without_token();
        let response = stranger.is_refused(&access, 401, "unauthorized");
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
        let basic = ANN.replace("Bearer", "Basic");
        for line in
            [WRONG, "Authorization: Bearer", "Authorization: ", &basic, &ANN[..ANN.len() - 1]]
        {
            let wrong = stranger.with(line).is_refused(&access, 401, "unauthorized");
            let challenge = "Bearer error=\"invalid_token\"";
            assert_eq!(wrong.header("www-authenticate"), Some(challenge));
            assert_eq!(wrong.body, response.body);
        }
        if good.method != Method::Head {
            unauthorized.push(response.body);
        }
        if good.target != "*" {
            let sign = if good.target.contains('?') { '&' } else { '?' };
            let target = format!("{}{sign}ticket={ticket}", good.target);
            Asking { target, ..stranger }.is_refused(&access, 401, "unauthorized");
        }
    }
    unauthorized.sort();
    unauthorized.dedup(); // One document, and the same as an error of JSON-RPC and of A2A.
    assert_eq!(unauthorized.len(), 3, "all refusals must have the same body");
}

/// Probes of service managers and load balancers have no token, and ask by address.
#[test]
fn a_probe_needs_no_token_and_no_name() {
    let access = guarded();
    let probes = everything().into_iter().filter(Asking::is_open);
    assert_eq!(probes.clone().count(), 4);
    for probe in probes.map(|probe| probe.without_token()) {
        for probe in [probe.clone(), Asking { host: "10.0.0.7:8808", ..probe.clone() }] {
            let (calls, response) = probe.ask(&access);
            let is_called = matches!(&calls[..], [(ApiCall::Ready, Principal::ANYONE)]);
            assert!(is_called || response.status == 200, "{probe:?}: {response:?}");
        }
        probe.with(WRONG).is_refused(&access, 401, "unauthorized");
        probe.with("Sec-Fetch-Site: cross-site").is_refused(&access, 403, "origin_not_allowed");
        let page = probe.with("Origin: https://evil.example");
        page.is_refused(&access, 403, "origin_not_allowed");
        let ticket = Asking { target: format!("{}?ticket=x", probe.target), ..probe };
        ticket.is_refused(&access, 401, "unauthorized");
    }
}

#[test]
fn a_body_is_json_or_refused_with_or_without_tokens() {
    let bodies = ROUTES.iter().filter(|route| route.body.is_some());
    assert!(bodies.clone().count() >= 2);
    for route in bodies {
        let good = Asking::of(route);
        let body = good.body.as_ref().unwrap().1.clone();
        let of_type = |media_type| {
            let body = Some((media_type, body.clone()));
            Asking { body, ..good.clone() }
        };
        for access in [guarded(), Access::default()] {
            let foreign = [
                "text/plain",
                "text/plain; charset=application/json",
                "application/x-www-form-urlencoded",
                "multipart/form-data; boundary=x",
                "application/jsonx",
                "application/json, text/plain",
                "",
            ];
            for media_type in foreign {
                of_type(media_type).is_refused(&access, 415, "unsupported_media_type");
            }
        }
        let access = guarded();
        for media_type in ["application/json; charset=utf-8", "Application/JSON"] {
            assert_eq!(of_type(media_type).ask(&access).0.len(), 1, "{media_type}");
        }
    }
}

#[test]
fn pages_of_configured_origins_may_ask_and_read_the_answers() {
    let access = guarded();
    let page =
        |asking: Asking| asking.with(&format!("Origin: {PAGE}")).with("Sec-Fetch-Site: cross-site");
    let assert_readable = |response: &Response| {
        assert_eq!(response.header("access-control-allow-origin"), Some(PAGE));
        let vary = response.header("vary").unwrap();
        assert!(vary.split(", ").any(|name| name == "origin"), "{vary}");
        assert_eq!(response.header("access-control-allow-credentials"), None);
    };
    for route in plain_routes() {
        let asking = page(Asking::of(route));
        let (calls, response) = asking.ask(&access);
        assert!(calls.len() == 1 || response.status == 200, "{asking:?}: {response:?}");
        assert_readable(&response);
        let stranger = page(Asking::of(route).without_token());
        match route.is_open {
            true => assert_readable(&stranger.ask(&access).1),
            false => assert_readable(&stranger.is_refused(&access, 401, "unauthorized")),
        }
        // A browser sends the preflight request without a token.
        let asked = Asking { method: Method::Options, body: None, ..stranger };
        let preflight = asked.with("Access-Control-Request-Method: POST");
        let (calls, response) = preflight.ask(&access);
        assert_eq!((calls.len(), response.status), (0, 204));
        assert_readable(&response);
        let methods = response.header("access-control-allow-methods").unwrap();
        assert!(methods.split(", ").any(|method| method == route.method.name()), "{methods}");
        let headers = "authorization, content-type, last-event-id, x-session-id, mcp-session-id, \
                      mcp-protocol-version, mcp-method, mcp-name, traceparent, tracestate, \
                      baggage, idempotency-key, if-none-match, range, if-range, stream-seq, \
                      stream-ttl, stream-expires-at, stream-closed, stream-forked-from, \
                      stream-fork-offset, stream-fork-sub-offset, producer-id, producer-epoch, \
                      producer-seq";
        assert_eq!(response.header("access-control-allow-headers"), Some(headers));
        assert!(response.header("access-control-max-age").is_some());
        assert_readable(&asked.is_refused(&access, 401, "unauthorized"));
    }
    let nowhere = page(Asking::new(Method::Options, "/nowhere").without_token());
    let (_, response) = nowhere.with("Access-Control-Request-Method: GET").ask(&access);
    assert_eq!(response.status, 204, "the page may read the reply");
    assert_readable(&page(Asking::new(Method::Get, "/nowhere")).is_refused(
        &access,
        404,
        "unknown_path",
    ));
}

#[test]
fn a_ticket_opens_the_stream_of_its_execution_and_nothing_else() {
    let access = guarded();
    let begin = Instant::from_nanos(0);
    let ticket = access.ticket(Principal(2), id(1), begin).unwrap();
    let events = |id: ExecutionId, query: &str| {
        Asking::new(Method::Get, format!("/v1/executions/{id}/events{query}")).without_token()
    };
    let shown = format!("?ticket={ticket}");
    let opens = [
        events(id(1), &shown),
        events(id(1), &format!("?policy=block&ticket={ticket}&from=live")),
        events(id(1), &shown).with(&format!("Last-Event-ID: {}:4:100", id(1))),
        events(id(1), &shown).with(&format!("Origin: {PAGE}")).with("Sec-Fetch-Site: cross-site"),
        Asking { method: Method::Head, ..events(id(1), &shown) },
    ];
    for asking in &opens {
        for now in [begin, begin + TTL / 2] {
            let (calls, response) = asking.ask_at(&access, now);
            assert!(
                matches!(calls[..], [(ApiCall::Follow(_), Principal(2))]),
                "{asking:?}: {calls:?}"
            );
            assert_eq!(response.status, 200);
        }
        let (calls, response) = asking.ask_at(&access, begin + TTL + Duration::from_secs(1));
        assert_eq!((calls.len(), response.status), (0, 401), "the ticket has expired");
    }
    let refused = [
        events(id(2), &shown),
        events(id(1), ""),
        events(id(1), "?ticket="),
        events(id(1), &format!("{shown}&ticket={ticket}")),
        events(id(1), &format!("?ticket={}", "A".repeat(ticket.len()))),
        events(id(1), &shown).with(WRONG),
        Asking::new(Method::Get, format!("/v1/%65xecutions/{}/events{shown}", id(1)))
            .without_token(),
        Asking::new(Method::Get, format!("/v1/executions/{}/output{shown}", id(1))).without_token(),
        Asking::new(Method::Get, format!("/v1/events{shown}&executions={}", id(1))).without_token(),
        Asking { method: Method::Delete, ..events(id(1), &shown) },
        Asking { method: Method::Post, ..events(id(1), &shown) },
    ];
    for asking in refused {
        asking.is_refused(&access, 401, "unauthorized");
    }
    events(id(1), &shown).with("Origin: null").is_refused(&access, 403, "origin_not_allowed");
    // A token takes precedence over a ticket.
    let (calls, _) = events(id(2), &shown).with(ANN).ask(&access);
    assert!(matches!(calls[..], [(ApiCall::Follow(_), Principal(1))]));
}

#[test]
fn who_asks_is_said_anew_by_each_request() {
    let access = guarded();
    let tally = Tally::new(false);
    let (date, now) = (DATE, Instant::from_nanos(0));
    let connection = CONNECTION;
    let around = Surroundings { date, now, access: &access, tally: &tally, connection };
    let tools = Asking::new(Method::Get, "/v1/tools").without_token();
    let requests = [ANN, BOB, WRONG, BOB, ANN].map(|line| tools.with(line).bytes()).concat();
    let (calls, out) = converse(&around, &[&requests]);
    let asked: Vec<Principal> = calls.into_iter().map(|(_, principal)| principal).collect();
    assert_eq!(asked, [1, 2, 2, 1].map(Principal));
    let statuses = responses(&[Method::Get; 5], &out, false).into_iter().map(|r| r.status);
    assert_eq!(statuses.collect::<Vec<_>>(), [204, 204, 401, 204, 204]);
}

#[test]
fn where_nobody_is_asked_for_a_token_there_are_no_tickets_and_everybody_is_the_same() {
    let access = Access::default();
    assert_eq!(access.ticket(Principal::ANYONE, id(1), Instant::from_nanos(0)), None);
    assert_eq!(access.name_of(Principal::ANYONE), None);
    let tally = Tally::new(false);
    let (date, now) = (DATE, Instant::from_nanos(0));
    let connection = CONNECTION;
    let around = Surroundings { date, now, access: &access, tally: &tally, connection };
    let tools = Asking::new(Method::Get, "/v1/tools");
    for asking in [tools.clone(), tools.without_token()] {
        let (calls, _) = converse(&around, &[&asking.bytes()]);
        assert_eq!(calls, [(ApiCall::Tools, Principal::ANYONE)]);
    }
    let (calls, out) = converse(&around, &[&tools.with(BOB).bytes()]);
    assert_eq!((calls.len(), responses(&[Method::Get], &out, false)[0].status), (0, 400));
    // HTTP/1.0 may omit the host.
    let (calls, _) = converse(&around, &[b"GET /v1/tools HTTP/1.0\r\n\r\n"]);
    assert_eq!(calls.len(), 1);
    let (calls, out) =
        converse(&around, &[b"GET /v1/tools HTTP/1.0\r\nOrigin: http://localhost\r\n\r\n"]);
    assert_eq!((calls.len(), responses(&[Method::Get], &out, true)[0].status), (0, 403));
}
