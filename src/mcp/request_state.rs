//! The state that a tool needs again with the answers to its questions. The client keeps it,
//! sealed. It is accepted only unchanged, from the same principal, for the same call, and in time.
//!
//! The seal is an HMAC over the expiry, the principal, the method, the name, the arguments and the
//! state. A client can read the state. It cannot change it, nor send it with a different call. It
//! can send it twice.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Map, Value};
use sha2::Sha256;

use super::context::Retry;
use super::{Context, McpFault};
use crate::base::{Instant, Principal};
use crate::limits;
use crate::tool::Replies;
use crate::wire::{base64, write_json};

/// Seals states, and opens them.
#[derive(Clone)]
pub struct Seal {
    /// The HMAC, initialised with its key.
    mac: Hmac<Sha256>,
}

/// The principal and the call that a state is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound<'a> {
    /// The principal of the caller.
    pub principal: Principal,
    /// `tools/call`, `prompts/get` or `resources/read`.
    pub method: &'a str,
    /// The name of the tool or prompt, or the address of the resource.
    pub name: &'a str,
    /// The arguments of the call.
    pub arguments: &'a Map<String, Value>,
}

const TAG_BYTES: usize = 32;
const EXPIRY_BYTES: usize = 8;

impl Seal {
    /// Returns a seal with this secret key.
    pub fn new(key: &[u8; 32]) -> Seal {
        Seal { mac: Hmac::new_from_slice(key).expect("a key may have any length") }
    }

    /// Seals a state into the text that the client gets.
    ///
    /// # Errors
    /// The state is too long, or is nested too deeply to be parsed again.
    pub fn seal(&self, bound: Bound<'_>, state: &Value, now: Instant) -> Result<String, McpFault> {
        let state = state.to_string();
        if state.len() > limits::MCP_STATE_BYTES_MAX {
            return Err(McpFault::internal("the state of the tool is too long"));
        }
        if serde_json::from_str::<Value>(&state).is_err() {
            return Err(McpFault::internal("the state of the tool is nested too deeply"));
        }
        let expiry_s = (now + limits::MCP_STATE_TTL).nanos().div_ceil(1_000_000_000);
        let tag = self.tag(bound, expiry_s, state.as_bytes()).finalize().into_bytes();
        let mut bytes = Vec::with_capacity(TAG_BYTES + EXPIRY_BYTES + state.len());
        bytes.extend_from_slice(&tag);
        bytes.extend_from_slice(&expiry_s.to_be_bytes());
        bytes.extend_from_slice(state.as_bytes());
        let mut text = Vec::new();
        base64::write(&mut text, &bytes);
        Ok(String::from_utf8(text).expect("base 64 is ASCII"))
    }

    /// Opens a sealed state.
    ///
    /// # Errors
    /// The text was not sealed here, was sealed for another principal or call, or has expired.
    pub fn open(&self, bound: Bound<'_>, text: &str, now: Instant) -> Result<Value, McpFault> {
        let refused = || McpFault::invalid_params("`requestState` is invalid or has expired");
        let text = Some(text).filter(|text| text.len() <= 2 * limits::MCP_STATE_BYTES_MAX);
        let bytes = text.and_then(base64::read).ok_or_else(refused)?;
        let (tag, rest) = bytes.split_first_chunk::<TAG_BYTES>().ok_or_else(refused)?;
        let (expiry, state) = rest.split_first_chunk::<EXPIRY_BYTES>().ok_or_else(refused)?;
        let expiry_s = u64::from_be_bytes(*expiry);
        // In constant time. No part of the text is trusted before this check.
        self.tag(bound, expiry_s, state).verify_slice(tag).map_err(|_| refused())?;
        if now.nanos() / 1_000_000_000 >= expiry_s {
            return Err(refused());
        }
        Ok(serde_json::from_slice(state).expect("the server wrote the state as JSON"))
    }

    /// The answers and the state of a request that may be a retry.
    ///
    /// # Errors
    /// The state is not valid for this request.
    pub fn replies(
        &self,
        bound: Bound<'_>,
        context: &Context,
        now: Instant,
    ) -> Result<Replies, McpFault> {
        let Retry { answers, request_state } = &context.retry;
        let state = request_state.as_deref().map(|text| self.open(bound, text, now));
        Ok(Replies { answers: answers.clone(), state: state.transpose()? })
    }

    /// Computes the tag. The length of each part precedes it, so two different sequences of parts
    /// never have the same bytes.
    fn tag(&self, bound: Bound<'_>, expiry_s: u64, state: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&expiry_s.to_be_bytes());
        mac.update(&bound.principal.0.to_be_bytes());
        let mut arguments = Vec::new();
        write_object(&mut arguments, bound.arguments);
        for part in [bound.method.as_bytes(), bound.name.as_bytes(), &arguments, state] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }
}

/// Spells equal values alike, because the members of an object have no order. The recursion is as
/// deep as the parsed value.
fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Object(members) => write_object(out, members),
        Value::Array(values) => {
            out.push(b'[');
            for value in values {
                write_value(out, value);
                out.push(b',');
            }
            out.push(b']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            write_json(out, value);
        }
    }
}

fn write_object(out: &mut Vec<u8>, members: &Map<String, Value>) {
    let mut members: Vec<(&String, &Value)> = members.iter().collect();
    members.sort_unstable_by_key(|(name, _)| *name);
    out.push(b'{');
    for (name, value) in members {
        write_json(out, &Value::from(name.as_str()));
        out.push(b':');
        write_value(out, value);
        out.push(b',');
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::mcp::{Version, codes, testing};

    fn bound() -> Bound<'static> {
        static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        let (method, name) = ("tools/call", "delete");
        Bound { principal: Principal(1), method, name, arguments: &NOTHING }
    }

    const NOW: Instant = Instant::from_nanos(1_500_000_000);

    fn seal() -> Seal {
        Seal::new(&[7; 32])
    }

    #[test]
    fn a_state_comes_back_as_it_was() {
        for state in [json!(null), json!({"step": 2, "a": ["\u{e9}\n"]}), json!("x".repeat(5_000))]
        {
            let text = seal().seal(bound(), &state, NOW).unwrap();
            assert_eq!(seal().open(bound(), &text, NOW), Ok(state));
            assert!(text.is_ascii());
        }
    }

    #[test]
    fn a_state_that_was_touched_or_is_somebody_elses_is_refused() {
        // B16.
        let text = seal().seal(bound(), &json!({"is_admin": false}), NOW).unwrap();
        for place in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
            let tampered = String::from_utf8(bytes).unwrap();
            let fault = seal().open(bound(), &tampered, NOW).expect_err(&tampered);
            assert_eq!((fault.code, fault.status), (codes::INVALID_PARAMS, 200));
        }
        for other in [
            Bound { principal: Principal(2), ..bound() },
            Bound { method: "prompts/get", ..bound() },
            Bound { name: "delete2", ..bound() },
            Bound { method: "tools/calld", name: "elete", ..bound() },
        ] {
            assert!(seal().open(other, &text, NOW).is_err(), "{other:?}");
        }
        assert!(Seal::new(&[8; 32]).open(bound(), &text, NOW).is_err());
        for junk in ["", "x", "AAAA", "null", &"A".repeat(1 << 16), &text[..40]] {
            assert!(seal().open(bound(), junk, NOW).is_err(), "{junk}");
        }
    }

    #[test]
    fn a_state_is_for_the_arguments_that_it_was_given_for() {
        // B16.
        let map = |value: Value| value.as_object().unwrap().clone();
        let given = map(json!({"a": 1, "b": {"c": [1, {"d": "x"}], "e": null}}));
        let given_for = Bound { arguments: &given, ..bound() };
        let text = seal().seal(given_for, &json!(1), NOW).unwrap();
        let same = map(json!({"b": {"e": null, "c": [1, {"d": "x"}]}, "a": 1}));
        assert!(seal().open(Bound { arguments: &same, ..bound() }, &text, NOW).is_ok());
        for other in [
            json!({}),
            json!({"a": 1}),
            json!({"a": 2, "b": {"c": [1, {"d": "x"}], "e": null}}),
            json!({"a": 1, "b": {"c": [{"d": "x"}, 1], "e": null}}),
            json!({"a": 1, "b": {"c": [1, {"d": "y"}], "e": null}}),
            json!({"a": 1, "b": {"c": [1, {"d": "x"}], "e": false}}),
            json!({"a": 1, "b": {"c": [1, {"d": "x"}]}}),
            json!({"a": "1", "b": {"c": [1, {"d": "x"}], "e": null}}),
        ] {
            let other = map(other);
            let other_for = Bound { arguments: &other, ..bound() };
            assert!(seal().open(other_for, &text, NOW).is_err(), "{other:?}");
        }
    }

    #[test]
    fn a_state_is_good_for_its_time_and_not_longer() {
        // B16.
        let text = seal().seal(bound(), &json!(1), NOW).unwrap();
        let last = NOW + limits::MCP_STATE_TTL;
        assert!(seal().open(bound(), &text, last).is_ok());
        assert!(seal().open(bound(), &text, last + Duration::from_secs(1)).is_err());
    }

    #[test]
    fn a_state_has_a_limit() {
        let long = json!("x".repeat(limits::MCP_STATE_BYTES_MAX));
        assert_eq!(seal().seal(bound(), &long, NOW).unwrap_err().code, codes::INTERNAL);
        let nested = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
        let text = seal().seal(bound(), &nested(100), NOW).unwrap();
        assert_eq!(seal().open(bound(), &text, NOW), Ok(nested(100)));
        let fault = seal().seal(bound(), &nested(200), NOW).unwrap_err();
        assert_eq!(fault.code, codes::INTERNAL);
    }

    #[test]
    fn a_retry_brings_its_answers_and_its_state_or_is_refused() {
        let text = seal().seal(bound(), &json!({"step": 1}), NOW).unwrap();
        let replies = |state: Value| {
            let params = json!({"inputResponses": {"a": {"b": 1}, "c": 1}, "requestState": state});
            let context = testing::context(Version::LATEST, json!({}), params);
            seal().replies(bound(), &context, NOW)
        };
        let got = replies(text.into()).unwrap();
        assert_eq!((got.answers.len(), got.state), (1, Some(json!({"step": 1}))));
        assert_eq!(replies(Value::Null).unwrap().state, None);
        assert!(replies("forged".into()).is_err());
    }
}
