//! JSON-RPC 2.0, as the Model Context Protocol uses it: one message at a time, never a batch.
//!
//! The other side chooses its ids, and receives them byte for byte as it sent them. [`Malformed`]
//! describes a message that cannot be read, as far as it could be read.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

use serde_json::Value;
use serde_json::value::RawValue;

use self::envelope::Envelope;
pub use self::parameters::Parameters;
use super::json;
use super::members::Place;
use super::strict::{self, Unreadable};
use crate::limits;

/// The error code for a message that is not JSON, not UTF-8, or nested too deep.
pub const PARSE_ERROR: i64 = -32_700;
/// The error code for JSON that is not a message.
pub const INVALID_REQUEST: i64 = -32_600;

/// The id of a request: a text or an integer, with the spelling of its sender.
///
/// ```
/// use streamdoor::wire::jsonrpc::Id;
/// let id = Id::of_text("a\u{e9}");
/// assert_eq!((id.as_json(), id.as_text().as_deref()), ("\"a\u{e9}\"", Some("a\u{e9}")));
/// assert_eq!(Id::of_number(0).as_json(), "0");
/// ```
#[derive(Clone)]
pub struct Id {
    raw: Box<str>,
    /// The canonical spelling, which is the same for all equal ids; `None` if `raw` is canonical.
    canonical: Option<Box<str>>,
}

impl Id {
    /// Makes an id of a number.
    pub fn of_number(number: u64) -> Id {
        Id { raw: number.to_string().into(), canonical: None }
    }

    /// Makes an id of a text.
    pub fn of_text(text: &str) -> Id {
        Id { raw: canonical(text), canonical: None }
    }

    /// Makes an id of a value that was read. `None` unless it is a text or an integer of 64 bits,
    /// and its spelling is at most [`limits::MCP_ID_BYTES_MAX`] bytes long.
    pub fn of_value(value: &Value) -> Option<Id> {
        let id = match value {
            Value::String(text) => Id::of_text(text),
            Value::Number(number) if number.is_i64() || number.is_u64() => {
                Id { raw: number.to_string().into(), canonical: None }
            }
            _ => return None,
        };
        (id.raw.len() <= limits::MCP_ID_BYTES_MAX).then_some(id)
    }

    /// Makes an id from its spelling in a message that is known to be JSON.
    fn of_raw(raw: &str) -> Option<Id> {
        if raw.len() > limits::MCP_ID_BYTES_MAX {
            return None;
        }
        if raw.starts_with('"') {
            let spelled = match raw.contains('\\') {
                true => Some(canonical(&serde_json::from_str::<String>(raw).ok()?)),
                false => None,
            };
            return Some(Id { raw: raw.into(), canonical: spelled });
        }
        let digits = raw.strip_prefix('-').unwrap_or(raw);
        let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_whole.then(|| Id { raw: raw.into(), canonical: None })
    }

    /// The id in JSON, as it was spelled.
    pub fn as_json(&self) -> &str {
        &self.raw
    }

    /// The content of the id, if it is a text.
    pub fn as_text(&self) -> Option<String> {
        self.raw
            .starts_with('"')
            .then(|| serde_json::from_str(&self.raw).expect("an id is valid JSON"))
    }

    /// The id as a JSON value.
    pub fn to_value(&self) -> Value {
        serde_json::from_str(&self.raw).expect("an id is valid JSON")
    }

    fn key(&self) -> &str {
        self.canonical.as_deref().unwrap_or(&self.raw)
    }
}

fn canonical(text: &str) -> Box<str> {
    serde_json::to_string(text).expect("a text is valid JSON").into()
}

impl PartialEq for Id {
    fn eq(&self, other: &Id) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Id {}

impl PartialOrd for Id {
    fn partial_cmp(&self, other: &Id) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Id {
    fn cmp(&self, other: &Id) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.raw)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.raw)
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub enum RpcMessage {
    /// A call that needs a reply.
    Request {
        /// The id for its reply.
        id: Id,
        /// The method to call.
        method: String,
        /// The parameters; empty if they are absent.
        params: Parameters,
    },
    /// A message that needs no reply.
    Notification {
        /// The method that names the event.
        method: String,
        /// The parameters; empty if they are absent.
        params: Parameters,
    },
    /// The reply to a request of ours.
    Response {
        /// The id of that request; absent if the other side could not read it.
        id: Option<Id>,
        /// The result, an object, or the error.
        result: Result<Value, ErrorObject>,
    },
}

/// The error in a reply.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorObject {
    /// The code, for programs.
    pub code: i64,
    /// The text, for people.
    pub message: String,
    /// Further details.
    pub data: Option<Value>,
}

/// The error of a message that cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Malformed {
    /// The id for an error reply; absent if it could not be read, and if the message is itself a
    /// reply.
    pub id: Option<Id>,
    /// The code of the error reply: [`PARSE_ERROR`] or [`INVALID_REQUEST`].
    pub code: i64,
    /// The fault of the message.
    pub message: String,
    /// True if the message looks like a reply. A reply gets no reply.
    pub is_response: bool,
}

impl fmt::Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Malformed {}

/// Reads one message.
///
/// # Errors
/// [`Malformed`] if the bytes are not a valid message.
pub fn parse(bytes: &[u8]) -> Result<RpcMessage, Malformed> {
    let unreadable =
        |code, message: String| Malformed { id: None, code, message, is_response: false };
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(unreadable(PARSE_ERROR, "the message is not UTF-8".to_owned()));
    };
    let refused = |error: Unreadable| {
        let is_json = matches!(error, Unreadable::NameTwice);
        let code = if is_json { INVALID_REQUEST } else { PARSE_ERROR };
        unreadable(code, format!("the message {error}"))
    };
    if text.trim_ascii_start().starts_with('{') {
        return message(Envelope::read(text).map_err(refused)?);
    }
    match strict::read(bytes).map_err(refused)? {
        Value::Array(_) => Err(unreadable(
            INVALID_REQUEST,
            "batches are not supported; send messages one by one".to_owned(),
        )),
        _ => Err(unreadable(INVALID_REQUEST, "the message is not an object".to_owned())),
    }
}

/// Returns the number of the request that this message replies to. It also accepts replies that
/// [`parse`] refuses. Their members may be nested to any depth, because they are not examined.
pub fn answered_number(bytes: &[u8]) -> Option<u64> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_slice(bytes).ok()?;
    let id = members.get("id").filter(|_| !members.contains_key("method"))?;
    id.get().parse().ok()
}

fn message(envelope: Envelope<'_>) -> Result<RpcMessage, Malformed> {
    let Envelope { jsonrpc, id, method, params, result, error: problem } = envelope;
    let has_answer = result.is_some() || problem.is_some();
    let is_response = method.is_none() && has_answer;
    // An error may have the id `null` for a request that could not be read.
    let is_null = is_response && id.is_some_and(|id| id.get() == "null");
    let id = id.map(|id| Id::of_raw(id.get()));
    let error = |problem: &str| Malformed {
        id: if is_response { None } else { id.clone().flatten() },
        code: INVALID_REQUEST,
        message: problem.to_owned(),
        is_response,
    };
    if !jsonrpc.is_some_and(|version| is_text(version.get(), "2.0")) {
        return Err(error("`jsonrpc` is not \"2.0\""));
    }
    if matches!(id, Some(None)) && !is_null {
        let chars_max = limits::MCP_ID_BYTES_MAX;
        let text = format!("`id` is not a string of at most {chars_max} bytes or an integer");
        return Err(error(&text));
    }
    if is_response {
        let result = response(result, problem).map_err(error)?;
        let id = id.flatten();
        if id.is_none() && result.is_ok() {
            let message = "a result has no `id`".to_owned();
            return Err(Malformed { id, code: INVALID_REQUEST, message, is_response });
        }
        return Ok(RpcMessage::Response { id, result });
    }
    let method = match method {
        Some(Value::String(method)) => method,
        Some(_) => return Err(error("`method` is not a string")),
        None => return Err(error("it has no `method`, `result` or `error`")),
    };
    if has_answer {
        return Err(error("it has a `method` and a `result` or `error`"));
    }
    let params = match params {
        Some(Place::Object(params)) => params,
        // Some libraries write `null` for absent members.
        None | Some(Place::Other(Value::Null)) => Parameters::default(),
        Some(Place::Other(_)) => return Err(error("`params` is not an object")),
    };
    Ok(match id.flatten() {
        Some(id) => RpcMessage::Request { id, method, params },
        None => RpcMessage::Notification { method, params },
    })
}

/// True if this JSON value, as it was spelled, is this text.
fn is_text(raw: &str, text: &str) -> bool {
    let inside = raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inside == Some(text)
        || (raw.contains('\\') && serde_json::from_str::<String>(raw).is_ok_and(|it| it == text))
}

fn response(
    result: Option<Value>,
    error: Option<Value>,
) -> Result<Result<Value, ErrorObject>, &'static str> {
    match (result, error) {
        (Some(result), None) if result.is_object() => Ok(Ok(result)),
        (Some(_), None) => Err("`result` is not an object"),
        (None, Some(Value::Object(mut error))) => {
            let code = error.get("code").and_then(Value::as_i64);
            let code = code.ok_or("`error.code` is not an integer")?;
            let Some(Value::String(message)) = error.remove("message") else {
                return Err("`error.message` is not a string");
            };
            Ok(Err(ErrorObject { code, message, data: error.remove("data") }))
        }
        (None, Some(_)) => Err("`error` is not an object"),
        (Some(_), Some(_)) => Err("it has a `result` and an `error`"),
        (None, None) => unreachable!("the caller has checked that one is present"),
    }
}

/// Appends the reply to a request.
pub fn write_result(out: &mut Vec<u8>, id: &Id, result: &Value) {
    write_reply(out, id, |out| json::write_value(out, result));
}

/// Appends the reply to a request, whose result is JSON already.
pub(crate) fn write_spelled_result(out: &mut Vec<u8>, id: &Id, result: &[u8]) {
    write_reply(out, id, |out| out.extend_from_slice(result));
}

fn write_reply(out: &mut Vec<u8>, id: &Id, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.as_json().as_bytes());
    out.extend_from_slice(b",\"result\":");
    write(out);
    out.push(b'}');
}

/// Appends an error reply. It has no id if the request could not be read.
pub fn write_error(
    out: &mut Vec<u8>,
    id: Option<&Id>,
    code: i64,
    message: &str,
    data: Option<&Value>,
) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",");
    if let Some(id) = id {
        out.extend_from_slice(b"\"id\":");
        out.extend_from_slice(id.as_json().as_bytes());
        out.push(b',');
    }
    out.extend_from_slice(b"\"error\":{\"code\":");
    json::write_i64(out, code);
    out.extend_from_slice(b",\"message\":");
    json::write_string(out, message);
    if let Some(data) = data {
        out.extend_from_slice(b",\"data\":");
        json::write_value(out, data);
    }
    out.extend_from_slice(b"}}");
}

/// Appends a notification. It has no parameters if `params` is `null`.
pub fn write_notification(out: &mut Vec<u8>, method: &str, params: &Value) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":");
    write_call(out, method, params);
}

/// Appends a request of ours, whose id is a text.
pub fn write_request(out: &mut Vec<u8>, id: &str, method: &str, params: &Value) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    json::write_string(out, id);
    out.extend_from_slice(b",\"method\":");
    write_call(out, method, params);
}

/// Appends a request of ours, whose id is a number.
pub fn write_numbered_request(out: &mut Vec<u8>, id: u64, method: &str, params: &Value) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    json::write_u64(out, id);
    out.extend_from_slice(b",\"method\":");
    write_call(out, method, params);
}

fn write_call(out: &mut Vec<u8>, method: &str, params: &Value) {
    json::write_string(out, method);
    if !params.is_null() {
        out.extend_from_slice(b",\"params\":");
        json::write_value(out, params);
    }
    out.push(b'}');
}

mod envelope;
mod parameters;
#[cfg(test)]
mod tests;
