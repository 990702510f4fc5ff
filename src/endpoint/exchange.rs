//! A client for tests that sends bytes, cut anywhere, and a server that answers every call.

use std::sync::LazyLock;

use super::*;
use crate::base::{Handle, Instant};
use crate::wire::http1::{Method, ResponsePart, ResponseReader, Status};

pub const DATE: [u8; 29] = *b"Sun, 06 Nov 1994 08:49:37 GMT";

/// The name of the connection.
pub const CONNECTION: Handle = Handle { index: 0, generation: 1 };

/// Access rules for requests that call the server `h`.
pub static ACCESS: LazyLock<Access> =
    LazyLock::new(|| Access::default().with_hosts(vec!["h".parse().unwrap()]));

/// The inputs of a connection besides its bytes.
pub fn around() -> Surroundings<'static> {
    thread_local! {
        /// One for each thread, and for as long as the process.
        static TALLY: &'static Tally = Box::leak(Box::new(Tally::new(false)));
    }
    let tally = TALLY.with(|tally| *tally);
    Surroundings {
        date: DATE,
        now: Instant::from_nanos(0),
        access: &ACCESS,
        tally,
        connection: CONNECTION,
    }
}

/// The calls and the output that some bytes led to.
#[derive(Debug, PartialEq)]
pub struct TestExchange {
    pub calls: Vec<ApiCall>,
    pub out: Vec<u8>,
    pub is_closed: bool,
}

/// Sends `bytes` cut at `cuts`, and then the end of input if `ends`. The answer to a stream has two
/// pieces. Every other call is answered with `204`.
pub fn exchange(bytes: &[u8], cuts: &[usize], ends: bool) -> TestExchange {
    let mut connection = HttpConnection::new();
    let mut got = TestExchange { calls: Vec::new(), out: Vec::new(), is_closed: false };
    let mut from = 0;
    for &to in cuts.iter().chain([&bytes.len()]) {
        let step = connection.receive(&bytes[from..to], &around(), &mut got.out);
        from = to;
        serve(&mut connection, step, &mut got);
    }
    if ends {
        let step = connection.end_input(&around(), &mut got.out);
        serve(&mut connection, step, &mut got);
    }
    assert_eq!(connection.due() == AwaitedEvent::Nothing, got.is_closed);
    got
}

fn serve(connection: &mut HttpConnection, mut step: ConnectionStep, got: &mut TestExchange) {
    loop {
        match step {
            ConnectionStep::Wait => return assert!(connection.wants_bytes() || got.is_closed),
            ConnectionStep::Pause => assert!(connection.due() == AwaitedEvent::Request),
            ConnectionStep::Close => return got.is_closed = true,
            ConnectionStep::Call(call) => {
                assert!(!got.is_closed);
                assert_eq!(connection.due(), AwaitedEvent::Answer);
                answer(connection, &call, &mut got.out);
                got.calls.push(call);
            }
        }
        step = connection.resume(&around(), &mut got.out);
    }
}

fn answer(connection: &mut HttpConnection, call: &ApiCall, out: &mut Vec<u8>) {
    let media_type = match call {
        ApiCall::Follow(follow) => follow.format.media_type(),
        ApiCall::Execute(execute) if execute.stream.is_some() => "text/event-stream",
        ApiCall::Output(..) => BYTES,
        ApiCall::Work(_) => "text/event-stream",
        ApiCall::Mcp(request) if matches!(request.action, McpAction::OpenStream(_)) => {
            "text/event-stream"
        }
        ApiCall::Deliver(deliver) if deliver.is_of_many => return connection.take_part(false),
        _ => return connection.answer(&Answer::empty(Status::NO_CONTENT), &around(), out),
    };
    match connection.begin_stream(media_type, &around(), out) {
        StreamBody::Chunked => out.extend_from_slice(b"4\r\none,\r\n3\r\ntwo\r\n"),
        StreamBody::UntilClose => out.extend_from_slice(b"one,two"),
        StreamBody::None => return,
    }
    connection.end_stream(out);
}

/// Returns the result of sending `bytes`. It must be the same however they are cut.
pub fn exchanged(bytes: &[u8]) -> TestExchange {
    let whole = exchange(bytes, &[], false);
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
    let everywhere: Vec<usize> = (0..bytes.len()).collect();
    assert_eq!(exchange(bytes, &everywhere, false), whole, "{text:?} byte by byte");
    let step = (bytes.len() / 400).max(1);
    for at in (0..bytes.len()).step_by(step) {
        assert_eq!(exchange(bytes, &[at], false), whole, "{text:?} cut at {at}");
    }
    whole
}

/// A response as a client reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Response {
    pub status: u16,
    /// Header names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter().filter(|(other, _)| other == name);
        let value = all.next().map(|(_, value)| value.as_str());
        assert!(all.next().is_none(), "the header {name} occurs twice");
        value
    }

    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some(JSON));
        serde_json::from_slice(&self.body).expect("the media type is JSON")
    }

    /// Does the same as [`Response::error`], for a JSON-RPC error without an id.
    pub fn mcp_error(&self) -> (String, Option<String>, Option<u64>) {
        let document = self.json();
        assert_eq!((&document["jsonrpc"], document.get("id")), (&serde_json::json!("2.0"), None));
        let error = &document["error"];
        assert!(error["code"].is_i64(), "{document}");
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{document}");
        let text = |name: &str| error["data"][name].as_str().map(str::to_owned);
        (text("code").expect("an error has a code"), text("field"), error["data"]["limit"].as_u64())
    }

    /// Returns the code, the field and the limit of an error.
    pub fn error(&self) -> (String, Option<String>, Option<u64>) {
        let document = self.json();
        let mut error = &document["error"];
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{document}");
        if let Some(details) = error["details"].as_array().or(error["data"].as_array()) {
            error = &details[0]["metadata"]; // In the words of A2A.
        }
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (text("code").expect("an error has a code"), text("field"), error["limit"].as_u64())
    }
}

/// Reads the responses to requests with these methods. Nothing may follow them.
pub fn responses(methods: &[Method], out: &[u8], is_closed: bool) -> Vec<Response> {
    let mut input = out;
    let read = |method: &Method| {
        let mut reader = ResponseReader::new();
        reader.expect(*method);
        let mut response = Response::default();
        loop {
            match reader.read(&mut input).expect("the response is valid") {
                Some(ResponsePart::Head(head)) => {
                    response.status = head.status.code();
                    let header = |header: crate::wire::http1::Header<'_>| {
                        let value = String::from_utf8_lossy(header.value).into_owned();
                        (header.name.to_ascii_lowercase(), value)
                    };
                    response.headers = head.headers.iter().map(header).collect();
                }
                Some(ResponsePart::Body(piece)) => response.body.extend_from_slice(piece),
                Some(ResponsePart::End) => return response,
                None => {
                    assert!(is_closed, "{response:?} is cut off");
                    reader.finish().expect("the response may end here");
                    return response;
                }
            }
        }
    };
    let responses = methods.iter().map(read).collect();
    assert!(input.is_empty(), "behind: {:?}", String::from_utf8_lossy(input));
    responses
}

/// Returns the response to a request that needs no call, however it is cut.
pub fn answered(request: &str) -> Response {
    let got = exchanged(request.as_bytes());
    assert_eq!(got.calls, [], "{request}");
    let name = request.split(' ').next().unwrap_or("");
    let method = Method::ALL.into_iter().find(|method| method.name() == name);
    let methods = [method.unwrap_or(Method::Get)];
    responses(&methods, &got.out, got.is_closed).remove(0)
}

/// Returns the call of one request, however it is cut.
pub fn called(request: &str) -> ApiCall {
    let mut got = exchanged(request.as_bytes());
    let out = String::from_utf8_lossy(&got.out).into_owned();
    assert_eq!(got.calls.len(), 1, "{request}: {out}");
    got.calls.remove(0)
}

/// Returns a request without a body.
pub fn get(target: &str) -> String {
    with("GET", target, "")
}

/// Returns a request with these header lines.
pub fn with(method: &str, target: &str, headers: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: h\r\n{headers}\r\n")
}

/// Returns a request with a JSON body.
pub fn post(target: &str, body: &str) -> String {
    let length = body.len();
    let head = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
    with("POST", target, &head) + body
}
