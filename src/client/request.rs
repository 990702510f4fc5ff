//! Requests to a server as bytes: first line, headers, query and body.

use std::fmt::{self, Write as _};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::acks::Acks;
use crate::base::ExecutionId;
use crate::endpoint::{DeliveryOptions, PolicyChoice, StreamFormat};
use crate::engine::{From, Hold, OnStall, ProgressSource, Start, Timeouts};
use crate::limits;
use crate::stream::{Deliver, Durability, Kind, OnFull, Policy};
use crate::wire::http1::Method;
use crate::wire::sse::Reached;

/// Options of a new execution. The server and the tool choose every option that is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecuteOptions {
    /// The terms of subscribers that state no policy.
    pub policy: Option<PolicyChoice>,
    /// The condition for its start.
    pub start: Option<Start>,
    /// The behaviour of its ring before the first reader.
    pub hold: Option<Hold>,
    /// Its limits for silence and for the whole duration.
    pub timeouts: Option<Timeouts>,
    /// The time for which it can be read after its end.
    pub retention: Option<Duration>,
    /// The time for which a `block` subscriber may hold it back.
    pub block_deadline: Option<Duration>,
    /// The consequence once that time is over.
    pub on_stall: Option<OnStall>,
    /// The source of its progress.
    pub progress: Option<ProgressSource>,
    /// The promise for its chunks.
    pub durability: Option<Durability>,
    /// The time at which subscribers are given its chunks.
    pub deliver: Option<Deliver>,
    /// The consequence if the server's disk has no room for a chunk.
    pub on_full: Option<OnFull>,
    /// The time for which it is kept on the server's disk after its end, in whole seconds.
    pub keep: Option<Duration>,
}

/// Options of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowOptions {
    /// The first chunk to read. [`Client::call`](super::Client::call) always begins at the start.
    /// The client does not send `seen` of [`From::Seq`].
    pub from: From,
    /// The position to continue after, from [`Stream::reached`](super::EventStream::reached) of
    /// another stream with the same kinds. It takes precedence over `from`. If it holds counts,
    /// chunks that the server no longer holds are reported as a gap. Otherwise the server refuses
    /// to begin at such a chunk. After the end (`head_seq + 1`) the stream is over at once, without
    /// an event.
    pub after: Option<Reached>,
    /// The format of the stream. Both of our own formats carry the same events. The formats of
    /// front ends are for their own clients. The stream uses server-sent events instead of them.
    pub format: StreamFormat,
    /// The policy, the kinds, and the other terms. Under the policy `block` the stream acknowledges
    /// by itself what its caller has taken. If an acknowledgement window is set here, the caller
    /// acknowledges.
    pub delivery_options: DeliveryOptions,
    /// Number of attempts in a row to reconnect after a break. 0: never.
    pub reconnects_max: u32,
    /// The wait before the first attempt, unless the server gives another time. Each further
    /// attempt waits twice as long.
    pub retry: Duration,
    /// The longest silence of a connection. One on which nothing comes for longer, not even a
    /// heartbeat, counts as broken.
    pub silence_max: Duration,
}

impl Default for FollowOptions {
    fn default() -> FollowOptions {
        FollowOptions {
            from: From::Start,
            after: None,
            format: StreamFormat::Sse,
            delivery_options: DeliveryOptions::default(),
            reconnects_max: limits::CLIENT_RECONNECTS_MAX,
            retry: limits::CLIENT_RETRY_DEFAULT,
            silence_max: limits::CLIENT_SILENCE_MAX,
        }
    }
}

impl FollowOptions {
    /// The options as they are sent. Under `block` the stream acknowledges, unless its caller does.
    pub(super) fn acknowledged(mut self) -> (FollowOptions, Option<Acks>) {
        let delivery_options = &mut self.delivery_options;
        let acknowledges =
            delivery_options.policy == Some(Policy::Block) && delivery_options.ack_window.is_none();
        if acknowledges {
            delivery_options.ack_window = Some(limits::CLIENT_ACK_WINDOW);
        }
        (self, acknowledges.then(Acks::default))
    }

    /// The position after which every chunk must come, if it is known in advance.
    pub(super) fn begin_after(&self) -> Option<Reached> {
        let unseen = |seq| Some(Reached { seq, seen: None, has_ended: false });
        match (self.after, self.from) {
            (Some(reached), _) => Some(reached),
            (None, From::Start) => unseen(0),
            (None, From::Seq { seq, .. }) => unseen(seq.saturating_sub(1)),
            (None, From::Live) => None,
        }
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct ClientRequest {
    pub method: Method,
    pub target: String,
    pub accept: &'static str,
    pub last_event_id: Option<String>,
    pub body: Option<Vec<u8>>,
}

impl ClientRequest {
    /// A request for a reply in JSON.
    pub fn new(method: Method, target: impl Into<String>) -> ClientRequest {
        let (target, accept) = (target.into(), "application/json");
        ClientRequest { method, target, accept, last_event_id: None, body: None }
    }

    pub fn with_body(self, body: &Value) -> ClientRequest {
        ClientRequest { body: Some(body.to_string().into_bytes()), ..self }
    }

    /// True if sending it twice has the same effect as sending it once.
    pub fn is_repeatable(&self) -> bool {
        self.method != Method::Post || self.target.ends_with("/acks")
    }

    /// The bytes of the request to the server `authority`, with `token` if there is one.
    pub fn write(&self, authority: &str, token: Option<&str>, keeps_alive: bool) -> Vec<u8> {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: streamdoor/{}\r\naccept: {}\r\n",
            self.method.name(),
            self.target,
            env!("CARGO_PKG_VERSION"),
            self.accept
        );
        let mut header = |name: &str, value: &dyn fmt::Display| {
            let _ = write!(head, "{name}: {value}\r\n"); // Writing to a string cannot fail.
        };
        if let Some(token) = token {
            header("authorization", &format_args!("Bearer {token}"));
        }
        if let Some(id) = &self.last_event_id {
            header("last-event-id", id);
        }
        if let Some(body) = &self.body {
            header("content-type", &"application/json");
            header("content-length", &body.len());
        }
        if !keeps_alive {
            header("connection", &"close");
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend(self.body.iter().flatten());
        bytes
    }
}

/// `GET` of the events of an execution.
pub(super) fn follow(
    id: ExecutionId,
    after: Option<Reached>,
    options: &FollowOptions,
) -> ClientRequest {
    let mut target = format!("/v1/executions/{id}/events?format={}", name_of(options.format));
    write_delivery_options(&mut target, options);
    ClientRequest {
        accept: options.format.media_type(),
        last_event_id: after.map(|reached| reached.encode(id)),
        ..ClientRequest::new(Method::Get, target)
    }
}

/// `POST` of a new execution, with its stream as the response.
pub(super) fn call(body: &Value, options: &FollowOptions) -> ClientRequest {
    let mut target = format!("/v1/executions?format={}", name_of(options.format));
    write_delivery_options(&mut target, options);
    let accept = options.format.media_type();
    ClientRequest { accept, ..ClientRequest::new(Method::Post, target).with_body(body) }
}

/// `POST` of an agent's run, with its stream as the response.
pub(super) fn agent(body: &Value, options: &FollowOptions) -> ClientRequest {
    let mut target = format!("/v1/agent/stream?format={}", name_of(options.format));
    write_delivery_options(&mut target, options);
    let accept = options.format.media_type();
    ClientRequest { accept, ..ClientRequest::new(Method::Post, target).with_body(body) }
}

fn name_of(format: StreamFormat) -> &'static str {
    match format {
        StreamFormat::Sse | StreamFormat::Front(_) => "sse",
        StreamFormat::Ndjson => "ndjson",
    }
}

/// Appends the terms of a stream to a query that has at least one parameter.
pub(crate) fn write_delivery_options(target: &mut String, options: &FollowOptions) {
    let mut add = |name: &str, value: &dyn fmt::Display| {
        let _ = write!(target, "&{name}={value}");
    };
    match options.from {
        From::Start => {}
        From::Live => add("from", &"live"),
        From::Seq { seq, .. } => add("from", &seq),
    }
    let delivery_options = &options.delivery_options;
    if let Some(policy) = delivery_options.policy {
        add("policy", &policy);
    }
    if let Some(chunks) = delivery_options.limit_chunks {
        add("max_chunks", &chunks);
    }
    if let Some(bytes) = delivery_options.limit_bytes {
        add("max_bytes", &bytes);
    }
    if !delivery_options.kinds.is_all() {
        let kinds = Kind::ALL.into_iter().filter(|kind| delivery_options.kinds.contains(*kind));
        add("kinds", &kinds.map(Kind::name).collect::<Vec<_>>().join(","));
    }
    if let Some(coalesce) = delivery_options.coalesce {
        add("coalesce_us", &coalesce.delay_max.as_micros());
        if coalesce.bytes_max != u64::MAX {
            add("coalesce_bytes", &coalesce.bytes_max);
        }
    }
    if let Some(window) = delivery_options.ack_window {
        add("acks", &window);
    }
}

/// The body that creates an execution.
pub(super) fn execute(tool: &str, arguments: &Value, options: &ExecuteOptions) -> Value {
    let mut body = Map::new();
    body.insert("tool".to_owned(), tool.into());
    body.insert("arguments".to_owned(), arguments.clone());
    set_options(&mut body, options);
    Value::Object(body)
}

/// Sets the members of that body that are options.
pub(crate) fn set_options(body: &mut Map<String, Value>, options: &ExecuteOptions) {
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    set("policy", options.policy.map(policy));
    set(
        "start",
        options.start.map(|start| match start {
            Start::Now => json!("now"),
            Start::AfterSubscribers { count, deadline } => {
                json!({"after_subscribers": count, "deadline_ms": ms(deadline)})
            }
        }),
    );
    set(
        "hold",
        options.hold.map(|hold| match hold {
            Hold::Newest => json!("newest"),
            Hold::UntilRead { deadline } => json!({"until_read_ms": ms(deadline)}),
        }),
    );
    set(
        "timeouts",
        options.timeouts.map(|timeouts| {
            json!({
                "first_chunk_ms": timeouts.first_chunk.map(ms),
                "inactivity_ms": timeouts.inactivity.map(ms),
                "total_ms": timeouts.total.map(ms),
            })
        }),
    );
    set("retention_ms", options.retention.map(|time| ms(time).into()));
    set("block_deadline_ms", options.block_deadline.map(|time| ms(time).into()));
    set(
        "on_stall",
        options.on_stall.map(|on_stall| match on_stall {
            OnStall::Detach => json!("detach"),
            OnStall::Fail => json!("fail"),
        }),
    );
    set(
        "progress",
        options.progress.map(|source| match source {
            ProgressSource::Tool => json!("tool"),
            ProgressSource::Chunks => json!("chunks"),
            ProgressSource::Bytes => json!("bytes"),
        }),
    );
    set("durability", options.durability.map(|durability| durability.name().into()));
    set("deliver", options.deliver.map(|deliver| deliver.name().into()));
    set("on_full", options.on_full.map(|on_full| on_full.name().into()));
    set("keep_s", options.keep.map(|time| time.as_secs().max(1).into()));
}

fn policy(choice: PolicyChoice) -> Value {
    let name = choice.policy.name();
    if choice.limit_chunks.is_none() && choice.limit_bytes.is_none() {
        return name.into();
    }
    let mut object = json!({"name": name});
    if let Some(chunks) = choice.limit_chunks {
        object["max_chunks"] = chunks.into();
    }
    if let Some(bytes) = choice.limit_bytes {
        object["max_bytes"] = bytes.into();
    }
    object
}

/// Whole milliseconds, rounded up, so that a short time does not become zero.
fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A segment of a path, percent-encoded.
pub(crate) fn path_piece(text: &str) -> String {
    let mut piece = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' | b'~' => piece.push(byte.into()),
            b'.' if text.len() > 2 => piece.push('.'), // `.` and `..` have a meaning.
            _ => {
                let _ = write!(piece, "%{byte:02X}");
            }
        }
    }
    piece
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Coalesce;
    use crate::stream::Kinds;
    use crate::wire::sse::SeenTotals;

    #[test]
    fn all_options_are_sent_and_nothing_else() {
        let id: ExecutionId = "0".repeat(26).parse().unwrap();
        let path = format!("/v1/executions/{id}/events?format=");
        let request = follow(id, None, &FollowOptions::default());
        assert_eq!(request.target, format!("{path}sse"));
        assert_eq!(request.last_event_id, None);
        let delivery_options = DeliveryOptions {
            policy: Some(Policy::DropOldest),
            limit_chunks: Some(7),
            limit_bytes: Some(9),
            kinds: Kinds::NONE.with(Kind::Stderr).with(Kind::Stdout),
            coalesce: Some(Coalesce { delay_max: Duration::from_millis(2), bytes_max: 512 }),
            ack_window: Some(3),
        };
        let options = FollowOptions {
            from: From::Seq { seq: 5, seen: None },
            format: StreamFormat::Ndjson,
            delivery_options,
            ..FollowOptions::default()
        };
        let seen = Some(SeenTotals { chunks: 7, bytes: 900 });
        let request = follow(id, Some(Reached { seq: 41, seen, has_ended: false }), &options);
        let query = "ndjson&from=5&policy=drop_oldest&max_chunks=7&max_bytes=9&kinds=stdout,stderr\
                     &coalesce_us=2000&coalesce_bytes=512&acks=3";
        assert_eq!(request.target, format!("{path}{query}"));
        assert_eq!(request.last_event_id, Some(format!("{id}:41:900:7")));
        assert!(request.is_repeatable());
        let options = FollowOptions { from: From::Start, ..options };
        let request = call(&json!({}), &options);
        let query = query.replace("from=5&", "");
        assert_eq!(request.target, format!("/v1/executions?format={query}"));
        assert!(!request.is_repeatable());
    }

    #[test]
    fn a_body_has_what_was_chosen() {
        let arguments = json!({"a": 1});
        let body = execute("t", &arguments, &ExecuteOptions::default());
        assert_eq!(body, json!({"tool": "t", "arguments": {"a": 1}}));
        let limits = (Some(4), None);
        let options = ExecuteOptions {
            policy: Some(PolicyChoice {
                policy: Policy::Block,
                limit_chunks: limits.0,
                limit_bytes: limits.1,
            }),
            start: Some(Start::AfterSubscribers { count: 2, deadline: Duration::from_secs(3) }),
            hold: Some(Hold::UntilRead { deadline: Duration::from_nanos(1) }),
            timeouts: Some(Timeouts { total: Some(Duration::from_secs(9)), ..Timeouts::NONE }),
            retention: Some(Duration::MAX),
            block_deadline: Some(Duration::from_millis(5)),
            on_stall: Some(OnStall::Fail),
            progress: Some(ProgressSource::Bytes),
            durability: Some(Durability::Synced),
            deliver: Some(Deliver::WhenDurable),
            on_full: Some(OnFull::Wait),
            keep: Some(Duration::from_secs(90)),
        };
        let expected = json!({
            "tool": "t",
            "arguments": {"a": 1},
            "policy": {"name": "block", "max_chunks": 4},
            "start": {"after_subscribers": 2, "deadline_ms": 3_000},
            "hold": {"until_read_ms": 1},
            "timeouts": {"first_chunk_ms": null, "inactivity_ms": null, "total_ms": 9_000},
            "retention_ms": u64::MAX,
            "block_deadline_ms": 5,
            "on_stall": "fail",
            "progress": "bytes",
            "durability": "synced",
            "deliver": "when_durable",
            "on_full": "wait",
            "keep_s": 90,
        });
        assert_eq!(execute("t", &arguments, &options), expected);
    }

    #[test]
    fn a_request_is_spelled_so() {
        let request = ClientRequest::new(Method::Delete, "/v1/x");
        let version = env!("CARGO_PKG_VERSION");
        let head = format!(
            "DELETE /v1/x HTTP/1.1\r\nhost: a:1\r\nuser-agent: streamdoor/{version}\r\n\
             accept: application/json\r\n"
        );
        let text = |bytes| String::from_utf8(bytes).unwrap();
        assert_eq!(text(request.write("a:1", None, true)), format!("{head}\r\n"));
        let request =
            ClientRequest { last_event_id: Some("7".into()), ..request }.with_body(&json!([]));
        let rest = "authorization: Bearer T\r\nlast-event-id: 7\r\n\
                    content-type: application/json\r\ncontent-length: 2\r\n\
                    connection: close\r\n\r\n[]";
        assert_eq!(text(request.write("a:1", Some("T"), false)), format!("{head}{rest}"));
    }

    #[test]
    fn a_name_cannot_leave_its_place_in_a_path() {
        assert_eq!(path_piece("s12.3"), "s12.3");
        assert_eq!(path_piece(".."), "%2E%2E");
        assert_eq!(path_piece("a/b?c d\r\n"), "a%2Fb%3Fc%20d%0D%0A");
    }
}
