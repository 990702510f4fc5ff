//! Errors reported by models' servers: in a frame, in a document, or in the body of a refusal.

use std::borrow::Cow;

use serde_json::Value;

use crate::agent::model::value::{number, text};
use crate::agent::model::{ModelFault, Secret};
use crate::base::plain::is_command;
use crate::limits;

/// An error that a server reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReportedError {
    /// Its most specific name; empty if it has none.
    pub code: String,
    /// All of its names for the kind of error.
    kinds: Vec<String>,
    /// The status, if the body contains one.
    status: Option<u16>,
    /// The message as it came: not shortened, with any keys.
    message: String,
}

/// True if a frame or a document reports a failure. `name` is the name of the event.
pub(super) fn is_error(name: &str, value: &Value) -> bool {
    let says_so = match &value["error"] {
        Value::String(error) => !error.is_empty(),
        Value::Object(error) => !error.is_empty(),
        _ => false,
    };
    says_so || name == "error" || value["type"] == "error" || value["object"] == "error"
}

impl ReportedError {
    /// Reads `{"error": {…}}`, `{"error": "…"}` and errors without an envelope.
    pub fn of(value: &Value) -> ReportedError {
        let inner = if value["error"].is_object() { &value["error"] } else { value };
        let words = [&inner["code"], &inner["type"], &inner["status"]].map(text);
        let is_telling = |word: &&str| !word.is_empty() && *word != "error";
        let kinds: Vec<String> = words.into_iter().filter(is_telling).map(short_word).collect();
        let message = [&inner["message"], &value["error"], &inner["detail"]].map(text);
        let message = message.into_iter().find(|message| !message.is_empty()).unwrap_or("");
        let status = [&inner["code"], &inner["status"]].into_iter().find_map(number);
        ReportedError {
            code: kinds.first().cloned().unwrap_or_default(),
            kinds,
            status: status.and_then(|status| u16::try_from(status).ok()),
            message: message.to_owned(),
        }
    }

    /// Returns the message, shortened and without the key.
    pub fn message(&self, key: Option<&Secret>) -> String {
        quote(&self.message, key)
    }

    /// True if a retry does not help. Servers have codes of their own, so the words in them decide:
    /// `insufficient_quota`, `invalid_request_error`, `context_length_exceeded`.
    pub fn is_lasting(&self) -> bool {
        const LASTING: &[&str] = &[
            "authentication",
            "billing",
            "content_filter",
            "content_policy",
            "context_length",
            "forbidden",
            "insufficient",
            "invalid",
            "not_found",
            "permission",
            "safety",
            "too_large",
            "unauthorized",
            "unsupported",
        ];
        let is_lasting = |kind: &String| {
            let kind = kind.to_ascii_lowercase();
            LASTING.iter().any(|word| kind.contains(word))
        };
        self.kinds.iter().any(is_lasting)
    }

    /// Turns the error into the fault of an answer whose status was a success.
    pub fn into_fault(self, key: Option<&Secret>) -> ModelFault {
        let code = match (self.code.as_str(), self.status) {
            ("", Some(status)) => format!("http_{status}"),
            ("", None) => "error".to_owned(),
            (code, _) => code.to_owned(),
        };
        let is_retryable = !self.is_lasting() && self.status.is_none_or(is_passing_status);
        ModelFault::Said { code, message: self.message(key), is_retryable }
    }
}

/// True if the same request can succeed later, judged by its status.
pub(super) fn is_passing_status(status: u16) -> bool {
    matches!(status, 408 | 409 | 425 | 429 | 500..=599)
}

/// Quotes the text of a server for people: without the key, on one line, and shortened.
pub(super) fn quote(text: &str, key: Option<&Secret>) -> String {
    let text = key.map_or(Cow::Borrowed(text), |key| key.scrub(text));
    let mut quoted = String::new();
    for word in text.split(|c: char| c.is_whitespace() || is_command(c)) {
        if word.is_empty() {
            continue;
        }
        if !quoted.is_empty() {
            quoted.push(' ');
        }
        let room = limits::MODEL_ERROR_QUOTE_BYTES_MAX.saturating_sub(quoted.len());
        if word.len() > room {
            quoted.push_str(&word[..word.floor_char_boundary(room)]);
            quoted.push('…');
            break;
        }
        quoted.push_str(word);
    }
    quoted
}

/// Shortens a code, which is a word and not a text.
fn short_word(word: &str) -> String {
    word.chars().filter(|&c| !is_command(c)).take(64).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_of_many_servers_are_understood() {
        let table = [
            (
                json!({"error": {"message": "Slow down.", "type": "requests", "param": null,
                    "code": "rate_limit_exceeded"}}),
                ("rate_limit_exceeded", "Slow down.", true),
            ),
            (
                json!({"error": {"message": "Pay.", "type": "insufficient_quota",
                    "code": "insufficient_quota"}}),
                ("insufficient_quota", "Pay.", false),
            ),
            (
                json!({"type": "error", "error": {"type": "overloaded_error", "message": "Full"}}),
                ("overloaded_error", "Full", true),
            ),
            (
                json!({"type": "error", "code": "server_error", "message": "Oh.", "param": null}),
                ("server_error", "Oh.", true),
            ),
            (
                json!({"error": {"code": 429, "message": "Later", "status": "RESOURCE_EXHAUSTED"}}),
                ("RESOURCE_EXHAUSTED", "Later", true),
            ),
            (
                json!({"error": {"code": 400, "message": "No", "status": "INVALID_ARGUMENT"}}),
                ("INVALID_ARGUMENT", "No", false),
            ),
            (json!({"error": {"code": 503, "message": "x"}}), ("http_503", "x", true)),
            (json!({"error": {"code": 404, "message": "x"}}), ("http_404", "x", false)),
            (json!({"error": "just words"}), ("error", "just words", true)),
            (
                json!({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}),
                ("BadRequestError", "m", false),
            ),
            (json!({"type": "error"}), ("error", "", true)),
        ];
        for (value, (code, message, is_retryable)) in table {
            assert!(is_error("", &value), "{value}");
            let fault = ReportedError::of(&value).into_fault(None);
            let (code, message) = (code.to_owned(), message.to_owned());
            assert_eq!(fault, ModelFault::Said { code, message, is_retryable }, "{value}");
        }
        for value in [json!({}), json!({"error": null}), json!({"error": {}}), json!({"error": ""})]
        {
            assert!(!is_error("message", &value), "{value}");
        }
    }

    #[test]
    fn quotes_are_short_on_one_line_and_without_keys() {
        let key = Secret::new("sk-secret").unwrap();
        assert_eq!(quote("a\n\tb \u{1b}[31m  c", None), "a b [31m c");
        assert_eq!(quote("key sk-secret, sk-secret!", Some(&key)), "key [key], [key]!");
        let long = quote(&"ä".repeat(10_000), None);
        assert!(long.len() <= limits::MODEL_ERROR_QUOTE_BYTES_MAX + '…'.len_utf8());
        assert!(long.ends_with("ä…"));
        // The key is removed before the text is cut, so no part of it remains.
        let filler = "x".repeat(limits::MODEL_ERROR_QUOTE_BYTES_MAX - 4);
        assert!(!quote(&format!("{filler}sk-secret"), Some(&key)).contains("sk-"));
    }
}
