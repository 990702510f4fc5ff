//! Requests about subscriptions to streams, at `/v1/stream/__ds/…`: from bytes to values.
//!
//! Errors have the codes of the protocol. Its clients know these, so they are in no table here.

use serde_json::{Map, Value};

use crate::endpoint::answer::{Answer, JSON};
use crate::endpoint::ask::{Asked, ParsedHead};
use crate::endpoint::durable::DurableHeaders;
use crate::endpoint::routes::{Content, PLAIN, ROUTES, Route};
use crate::endpoint::{DurableAsk, DurableCall, durable};
use crate::limits;
use crate::wire::http1::{Method, RequestHead, Status};
use crate::wire::json::whole_number;
use crate::wire::strict;
use crate::wire::subscriptions::decode_path;

/// The start of the paths of these requests.
pub(super) const PREFIX: &str = "/v1/stream/__ds/";
/// The paths of the routes.
pub(super) const KEYS_ROUTE: &str = "/v1/stream/__ds/jwks.json";
pub(super) const ROUTE: &str = "/v1/stream/__ds/subscriptions/{subscription}";
pub(super) const LINKS_ROUTE: &str = "/v1/stream/__ds/subscriptions/{subscription}/streams";
pub(super) const LINK_ROUTE: &str = "/v1/stream/__ds/subscriptions/{subscription}/streams/{stream}";
pub(super) const CALLBACK_ROUTE: &str = "/v1/stream/__ds/subscriptions/{subscription}/callback";
pub(super) const CLAIM_ROUTE: &str = "/v1/stream/__ds/subscriptions/{subscription}/claim";
pub(super) const ACK_ROUTE: &str = "/v1/stream/__ds/subscriptions/{subscription}/ack";
pub(super) const RELEASE_ROUTE: &str = "/v1/stream/__ds/subscriptions/{subscription}/release";
/// The path of the keys in the table of all paths, which has no such entry.
const KEYS_PATH: &str = "__ds/jwks.json";

// The entries of the table of routes.
pub(super) const GET_KEYS: Route = Route {
    path: KEYS_ROUTE,
    name: "getWebhookKeys",
    about: "Returns the public keys of webhooks, as a JSON Web Key Set (Durable Streams).",
    answers: &[(Status::OK, Content::Text(&["application/jwk-set+json"]))],
    is_open: true,
    ..PLAIN
};
pub(super) const CREATE: Route = Route {
    method: Method::Put,
    path: ROUTE,
    name: "createSubscription",
    about: "Creates a subscription, or returns 200 if there is the same one (Durable Streams). \
              It wakes workers, by webhook or by a stream, when streams have more.",
    answers: &[(Status::CREATED, Content::Bytes), (Status::OK, Content::Bytes)],
    ..PLAIN
};
pub(super) const DESCRIBE: Route = Route {
    path: ROUTE,
    name: "getSubscription",
    about: "Describes a subscription (Durable Streams).",
    answers: &[(Status::OK, Content::Bytes)],
    ..PLAIN
};
pub(super) const DELETE: Route = Route {
    method: Method::Delete,
    path: ROUTE,
    name: "deleteSubscription",
    about: "Removes a subscription (Durable Streams).",
    answers: &[(Status::NO_CONTENT, Content::Empty)],
    ..PLAIN
};
pub(super) const LINK: Route = Route {
    method: Method::Post,
    path: LINKS_ROUTE,
    name: "addToSubscription",
    about: "Adds streams to a subscription (Durable Streams).",
    answers: &[(Status::NO_CONTENT, Content::Empty)],
    ..PLAIN
};
pub(super) const UNLINK: Route = Route {
    method: Method::Delete,
    path: LINK_ROUTE,
    name: "removeFromSubscription",
    about: "Removes a stream from a subscription (Durable Streams). It stays if the pattern \
              matches.",
    answers: &[(Status::NO_CONTENT, Content::Empty)],
    ..PLAIN
};
pub(super) const CALLBACK: Route = Route {
    method: Method::Post,
    path: CALLBACK_ROUTE,
    name: "finishWebhook",
    about: "Acknowledges by the token of a webhook (Durable Streams).",
    answers: &[(Status::OK, Content::Bytes)],
    is_open: true,
    ..PLAIN
};
pub(super) const CLAIM: Route = Route {
    method: Method::Post,
    path: CLAIM_ROUTE,
    name: "claimSubscription",
    about: "Takes the work of a pull-wake subscription (Durable Streams).",
    answers: &[(Status::OK, Content::Bytes)],
    ..PLAIN
};
pub(super) const ACK: Route = Route {
    method: Method::Post,
    path: ACK_ROUTE,
    name: "acknowledgeClaim",
    about: "Acknowledges by the token of a claim, and keeps it (Durable Streams).",
    answers: &[(Status::OK, Content::Bytes)],
    is_open: true,
    ..PLAIN
};
pub(super) const RELEASE: Route = Route {
    method: Method::Post,
    path: RELEASE_ROUTE,
    name: "releaseClaim",
    about: "Gives a claim up (Durable Streams).",
    answers: &[(Status::NO_CONTENT, Content::Empty)],
    is_open: true,
    ..PLAIN
};

/// The code of a malformed request.
pub const INVALID_REQUEST: &str = "INVALID_REQUEST";
/// The code of a subscription that does not exist.
pub const NOT_FOUND: &str = "SUBSCRIPTION_NOT_FOUND";

/// A request about a subscription.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// The name of the subscription.
    pub id: Box<str>,
    /// The request.
    pub action: ControlAction,
    /// The token of the wake, which says more than the token of a client.
    pub token: Option<Box<str>>,
}

/// The request about a subscription.
#[derive(Clone, Debug, PartialEq)]
pub enum ControlAction {
    /// Returns the public keys of webhooks.
    Keys,
    /// Creates the subscription. The value comes with the body.
    Create(Box<Wanted>),
    /// Describes the subscription.
    Describe,
    /// Removes the subscription.
    Delete,
    /// Adds streams.
    Link(Vec<Box<str>>),
    /// Removes a stream that was added.
    Unlink(Box<str>),
    /// Takes the work that is there, for the worker of this name.
    Claim(Box<str>),
    /// Acknowledges, by the token of a webhook.
    Callback(Acks),
    /// Acknowledges, by the token of a claim.
    Ack(Acks),
    /// Gives a claim up.
    Release(Acks),
}

/// The wanted properties of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The way in which workers are woken.
    pub delivery: WakeBy,
    /// The pattern of the paths of its streams.
    pub pattern: Option<Box<str>>,
    /// The paths of further streams, sorted, none of them twice.
    pub streams: Vec<Box<str>>,
    /// The time for which a worker may be silent, in milliseconds.
    pub lease_ms: u64,
    /// A text for people.
    pub description: Option<Box<str>>,
}

/// The way in which workers are woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeBy {
    /// A request to this URL.
    Webhook(Box<str>),
    /// A message in the stream with this path.
    Stream(Box<str>),
}

impl Default for WakeBy {
    fn default() -> WakeBy {
        WakeBy::Stream(Box::default())
    }
}

/// The positions that a worker has processed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acks {
    /// The name of the wake.
    pub wake_id: Box<str>,
    /// The number of the wake.
    pub generation: u64,
    /// The streams, each with the text of its offset.
    pub acks: Vec<(Box<str>, Box<str>)>,
    /// True if the worker has finished.
    pub is_done: bool,
}

impl ControlAction {
    /// True if the request has the token of a wake, and no token of a client.
    pub fn has_own_token(&self) -> bool {
        matches!(
            self,
            ControlAction::Callback(_) | ControlAction::Ack(_) | ControlAction::Release(_)
        )
    }
}

/// Returns the answer for a refused request, in the form of the protocol.
pub fn answer_refused(status: Status, code: &str, message: &str) -> Answer {
    answer_json(status, &error_document(code, message))
}

fn error_document(code: &str, message: &str) -> Value {
    serde_json::json!({"error": {"code": code, "message": message}})
}

/// Adds the headers of a JSON document.
fn described(headers: DurableHeaders) -> DurableHeaders {
    headers.with("content-type", JSON).with("cache-control", "no-store")
}

/// Returns an answer with a JSON document.
pub fn answer_json(status: Status, document: &Value) -> Answer {
    let headers = described(DurableHeaders::default());
    Answer::durable(status, headers, document.to_string().into_bytes())
}

fn invalid(text: &str) -> Answer {
    answer_refused(Status::BAD_REQUEST, INVALID_REQUEST, text)
}

/// Returns the meaning of a request at `path`, which follows [`PREFIX`].
pub(super) fn ask(head: &RequestHead<'_>) -> Asked {
    let route = route_of(head);
    let asked = |parsed| Asked {
        parsed,
        body_bytes_max: limits::SUBSCRIPTION_BODY_BYTES_MAX,
        route: route.map(|at| at as u8),
        selection: None,
    };
    let control = match read(head) {
        Ok(control) => control,
        Err(answer) => return asked(ParsedHead::Here(answer)),
    };
    let path = match control.action {
        ControlAction::Keys => KEYS_PATH.into(),
        _ => format!("__ds/subscriptions/{}", control.id).into(),
    };
    asked(ParsedHead::Durable(Box::new(DurableCall {
        path,
        raw_path: head.target.path.into(),
        raw_query: head.target.query.into(),
        host: head.headers.only("host").ok().flatten().map(Box::from),
        ask: DurableAsk::Control(Box::new(control)),
    })))
}

/// True if the request has a token of its own, and none of a client.
pub(super) fn has_own_token(head: &RequestHead<'_>) -> bool {
    let Some(rest) = head.target.path.strip_prefix(PREFIX) else { return false };
    let last = rest.rsplit('/').next();
    let is_one = matches!(last, Some("callback" | "ack" | "release"));
    is_one && head.method == Method::Post && rest.matches('/').count() == 2
}

/// True if anybody may send the request.
pub(super) fn is_open(head: &RequestHead<'_>) -> bool {
    has_own_token(head) || (is_read(head.method) && head.target.path == KEYS_ROUTE)
}

fn is_read(method: Method) -> bool {
    matches!(method, Method::Get | Method::Head)
}

fn route_of(head: &RequestHead<'_>) -> Option<usize> {
    let rest = head.target.path.strip_prefix(PREFIX)?;
    let path = match rest.splitn(4, '/').collect::<Vec<_>>()[..] {
        ["jwks.json"] => KEYS_ROUTE,
        ["subscriptions", _] => ROUTE,
        ["subscriptions", _, "streams"] => LINKS_ROUTE,
        ["subscriptions", _, "streams", _] => LINK_ROUTE,
        ["subscriptions", _, "callback"] => CALLBACK_ROUTE,
        ["subscriptions", _, "claim"] => CLAIM_ROUTE,
        ["subscriptions", _, "ack"] => ACK_ROUTE,
        ["subscriptions", _, "release"] => RELEASE_ROUTE,
        _ => return None,
    };
    let method = if head.method == Method::Head { Method::Get } else { head.method };
    let is_it = |route: &Route| route.path == path && route.method == method;
    ROUTES.iter().position(is_it)
}

/// Reads everything of a request but its body.
fn read(head: &RequestHead<'_>) -> Result<Control, Answer> {
    let unknown = || {
        let text = "this path does not exist below __ds";
        answer_refused(Status::NOT_FOUND, "NOT_FOUND", text)
    };
    let rest = head.target.path.strip_prefix(PREFIX).ok_or_else(unknown)?;
    let parts: Vec<&str> = rest.splitn(4, '/').collect();
    let (acks, method) = (Acks::default, head.method);
    let (id, action) = match (&parts[..], method) {
        (["jwks.json"], _) if is_read(method) => ("", ControlAction::Keys),
        (["subscriptions", id], Method::Put) => (*id, ControlAction::Create(Box::default())),
        (["subscriptions", id], _) if is_read(method) => (*id, ControlAction::Describe),
        (["subscriptions", id], Method::Delete) => (*id, ControlAction::Delete),
        (["subscriptions", id, "streams"], Method::Post) => (*id, ControlAction::Link(Vec::new())),
        (["subscriptions", id, "streams", path], Method::Delete) => {
            let path = decode_path(path).ok_or_else(|| invalid("the path of the stream"))?;
            (*id, ControlAction::Unlink(stream_path(&path)?))
        }
        (["subscriptions", id, "callback"], Method::Post) => (*id, ControlAction::Callback(acks())),
        (["subscriptions", id, "claim"], Method::Post) => (*id, ControlAction::Claim("".into())),
        (["subscriptions", id, "ack"], Method::Post) => (*id, ControlAction::Ack(acks())),
        (["subscriptions", id, "release"], Method::Post) => (*id, ControlAction::Release(acks())),
        _ if route_of_any_method(rest) => {
            let text = "this path does not allow this method";
            let document = error_document("METHOD_NOT_ALLOWED", text);
            let headers = described(durable::allowing(head));
            let body = document.to_string().into_bytes();
            return Err(Answer::durable(Status::METHOD_NOT_ALLOWED, headers, body));
        }
        _ => return Err(unknown()),
    };
    let token = match action.has_own_token() {
        true => Some(own_token(head)?),
        false => None,
    };
    let id = match action {
        ControlAction::Keys => Box::default(),
        _ => name_of(id)?,
    };
    Ok(Control { id, action, token })
}

fn route_of_any_method(rest: &str) -> bool {
    let path = format!("{PREFIX}{rest}");
    path == KEYS_ROUTE || rest.starts_with("subscriptions/")
}

fn own_token(head: &RequestHead<'_>) -> Result<Box<str>, Answer> {
    let text = head.headers.only("authorization").ok().flatten();
    let token = text.and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    token.filter(|token| !token.is_empty()).map(Box::from).ok_or_else(|| {
        let text = "the token of the wake is missing: Authorization: Bearer TOKEN";
        answer_refused(Status::UNAUTHORIZED, "TOKEN_INVALID", text)
    })
}

fn name_of(id: &str) -> Result<Box<str>, Answer> {
    let id = decode_path(id).filter(|id| {
        let is_short = (1..=limits::SUBSCRIPTION_ID_BYTES_MAX).contains(&id.len());
        is_short && !id.contains(char::is_control)
    });
    let bytes_max = limits::SUBSCRIPTION_ID_BYTES_MAX;
    let text = format!("the id of a subscription has 1 to {bytes_max} characters");
    id.map(Into::into).ok_or_else(|| invalid(&text))
}

/// Returns the path of a stream without slashes at its ends.
fn stream_path(path: &str) -> Result<Box<str>, Answer> {
    let path = path.trim_matches('/');
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_fine = path.len() <= limits::DURABLE_PATH_BYTES_MAX
        && path.split('/').all(is_part)
        && !path.contains(|c: char| c.is_control() || c == '\\')
        && path.split('/').next() != Some("__ds");
    if is_fine { Ok(path.into()) } else { Err(invalid("a path of a stream is malformed")) }
}

/// Reads the body of a request.
pub(super) fn complete(control: &mut Control, body: &[u8]) -> Result<(), Answer> {
    match &mut control.action {
        ControlAction::Create(wanted) => **wanted = wanted_of(&object(body)?)?,
        ControlAction::Link(streams) => {
            let body = object(body)?;
            *streams = streams_of(&body)?.ok_or_else(|| invalid("streams: it is missing"))?;
        }
        ControlAction::Claim(worker) => {
            let body = object(body)?;
            let bytes_max = limits::SUBSCRIPTION_ID_BYTES_MAX;
            let name = text_of(&body, "worker", bytes_max)?.filter(|name| !name.is_empty());
            *worker = name.ok_or_else(|| invalid("worker: it is missing"))?;
        }
        ControlAction::Callback(acks) | ControlAction::Ack(acks) | ControlAction::Release(acks) => {
            *acks = acks_of(&object(body)?)?;
        }
        ControlAction::Keys
        | ControlAction::Describe
        | ControlAction::Delete
        | ControlAction::Unlink(_) => {}
    }
    Ok(())
}

fn object(body: &[u8]) -> Result<Map<String, Value>, Answer> {
    match strict::read(body) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => Err(invalid("the body must be a JSON object")),
        Err(fault) => Err(invalid(&format!("the body {fault}"))),
    }
}

/// Returns a member that is a text. `null` counts as absent.
fn text_of(
    body: &Map<String, Value>,
    name: &str,
    bytes_max: usize,
) -> Result<Option<Box<str>>, Answer> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= bytes_max => Ok(Some(text.as_str().into())),
        Some(_) => Err(invalid(&format!("{name}: it must be a text of at most {bytes_max} bytes"))),
    }
}

fn streams_of(body: &Map<String, Value>) -> Result<Option<Vec<Box<str>>>, Answer> {
    let malformed = || invalid("streams: it must be a list of paths");
    let all = match body.get("streams") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(all)) => all,
        Some(_) => return Err(malformed()),
    };
    let paths = all.iter().map(|path| stream_path(path.as_str().ok_or_else(malformed)?));
    let mut paths = paths.collect::<Result<Vec<_>, Answer>>()?;
    paths.sort_unstable();
    paths.dedup();
    Ok(Some(paths))
}

fn wanted_of(body: &Map<String, Value>) -> Result<Wanted, Answer> {
    let kind = text_of(body, "type", 16)?;
    let delivery = match kind.as_deref() {
        Some("webhook") => {
            let webhook = body.get("webhook").and_then(Value::as_object);
            let webhook = webhook.ok_or_else(|| invalid("webhook: it is missing"))?;
            let url = text_of(webhook, "url", limits::SUBSCRIPTION_URL_BYTES_MAX)?;
            let url = url.ok_or_else(|| invalid("webhook.url: it is missing"))?;
            WakeBy::Webhook(url)
        }
        Some("pull-wake") => {
            let path = text_of(body, "wake_stream", limits::DURABLE_PATH_BYTES_MAX)?;
            let path = path.ok_or_else(|| invalid("wake_stream: it is missing"))?;
            WakeBy::Stream(stream_path(&path)?)
        }
        _ => return Err(invalid("type: it must be webhook or pull-wake")),
    };
    let pattern = text_of(body, "pattern", limits::SUBSCRIPTION_PATTERN_BYTES_MAX)?;
    let pattern = pattern.map(|pattern| Box::<str>::from(pattern.trim_matches('/')));
    if pattern.as_deref().is_some_and(|pattern| pattern.split('/').any(str::is_empty)) {
        return Err(invalid("pattern: a part of it is empty"));
    }
    let streams = streams_of(body)?.unwrap_or_default();
    if pattern.is_none() && streams.is_empty() {
        return Err(invalid("a subscription needs a pattern or streams"));
    }
    let (least, most) = limits::SUBSCRIPTION_LEASE_MS;
    let lease_ms = match body.get("lease_ttl_ms") {
        None | Some(Value::Null) => limits::SUBSCRIPTION_LEASE_MS_DEFAULT,
        Some(number) => whole_number(number)
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| invalid(&format!("lease_ttl_ms: it must be {least} to {most}")))?,
    };
    let description = text_of(body, "description", limits::SUBSCRIPTION_TEXT_BYTES_MAX)?;
    Ok(Wanted { delivery, pattern, streams, lease_ms, description })
}

fn acks_of(body: &Map<String, Value>) -> Result<Acks, Answer> {
    let wake_id = text_of(body, "wake_id", limits::SUBSCRIPTION_ID_BYTES_MAX)?;
    let generation = body.get("generation").and_then(whole_number);
    let is_done = match body.get("done") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(is_done)) => *is_done,
        Some(_) => return Err(invalid("done: it must be true or false")),
    };
    let acks = match body.get("acks") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(acks)) => acks,
        Some(_) => return Err(invalid("acks: it must be a list")),
    };
    let ack = |ack: &Value| {
        let path = ack.get("stream").or_else(|| ack.get("path")).and_then(Value::as_str);
        let offset = ack.get("offset").and_then(Value::as_str);
        Some((path?.trim_matches('/').into(), offset?.into()))
    };
    let acks = acks.iter().map(ack).collect::<Option<Vec<_>>>();
    Ok(Acks {
        wake_id: wake_id.ok_or_else(|| invalid("wake_id: it is missing"))?,
        generation: generation.ok_or_else(|| invalid("generation: it is missing"))?,
        acks: acks.ok_or_else(|| invalid("acks: each needs a stream and an offset"))?,
        is_done,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Result<Wanted, Answer> {
        wanted_of(&object(text.as_bytes())?)
    }

    fn code(answer: &Answer) -> String {
        let body: Value = serde_json::from_slice(answer.body()).unwrap();
        body["error"]["code"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_subscription_is_read_with_its_defaults() {
        let text = r#"{"type":"pull-wake","streams":["/b/","a","b"],"wake_stream":"/w"}"#;
        let expected = Wanted {
            delivery: WakeBy::Stream("w".into()),
            pattern: None,
            streams: vec!["a".into(), "b".into()],
            lease_ms: 30_000,
            description: None,
        };
        assert_eq!(wanted(text), Ok(expected));
    }

    #[test]
    fn malformed_bodies_are_refused() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"type":"mail","pattern":"a"}"#,
            r#"{"type":"pull-wake","pattern":"a"}"#,
            r#"{"type":"pull-wake","wake_stream":"w"}"#,
            r#"{"type":"pull-wake","wake_stream":"w","streams":[]}"#,
            r#"{"type":"pull-wake","wake_stream":"w","streams":"a"}"#,
            r#"{"type":"pull-wake","wake_stream":"w","streams":["a/../b"]}"#,
            r#"{"type":"pull-wake","wake_stream":"w","streams":["__ds/a"]}"#,
            r#"{"type":"pull-wake","wake_stream":"w","pattern":"a//b"}"#,
            r#"{"type":"pull-wake","wake_stream":"w","pattern":"a","pattern":"b"}"#,
            r#"{"type":"pull-wake","wake_stream":"w","pattern":"a","lease_ttl_ms":999}"#,
            r#"{"type":"pull-wake","wake_stream":"w","pattern":"a","lease_ttl_ms":600001}"#,
            r#"{"type":"webhook","pattern":"a"}"#,
            r#"{"type":"webhook","pattern":"a","webhook":{}}"#,
        ] {
            assert_eq!(wanted(text).map_err(|answer| code(&answer)), Err(INVALID_REQUEST.into()));
        }
    }

    #[test]
    fn acks_need_all_their_members() {
        let read = |text: &str| acks_of(&object(text.as_bytes())?);
        let text = r#"{"wake_id":"w","generation":3,"acks":[{"path":"/a","offset":"1"}]}"#;
        let acks = read(text).unwrap();
        assert_eq!((acks.generation, acks.is_done), (3, false));
        assert_eq!(acks.acks, [("a".into(), "1".into())]);
        for text in [
            r#"{"generation":3}"#,
            r#"{"wake_id":"w"}"#,
            r#"{"wake_id":"w","generation":-1}"#,
            r#"{"wake_id":"w","generation":1,"done":1}"#,
            r#"{"wake_id":"w","generation":1,"acks":{}}"#,
            r#"{"wake_id":"w","generation":1,"acks":[{"stream":"a"}]}"#,
            r#"{"wake_id":"w","generation":1,"acks":[{"offset":"a"}]}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
