//! Interprets a refusal: whether the same request can succeed later, and when.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::agent::model::Secret;
use crate::agent::model::reported_error::{ReportedError, is_passing_status, quote};
use crate::limits;
use crate::wire::http1::parse_http_date;

/// An answer with a status other than 2xx.
#[derive(Clone, Copy, Debug)]
pub struct RefusalBody<'a> {
    /// The HTTP status.
    pub status: u16,
    /// The value of the header `retry-after`: seconds, or a date.
    pub retry_after: Option<&'a str>,
    /// The value of the header `retry-after-ms`, which takes precedence.
    pub retry_after_ms: Option<&'a str>,
    /// The body or its beginning. At most [`limits::MODEL_ERROR_BYTES_MAX`] bytes of it are read.
    pub body: &'a [u8],
}

/// The refusal of a model's server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRefusal {
    /// The HTTP status.
    pub status: u16,
    /// The server's name for the failure, e.g. `rate_limit_exceeded`; e.g. `http_503` if it gave
    /// none.
    pub code: String,
    /// The server's message, shortened and without keys.
    pub message: String,
    /// True if the same request can succeed later.
    pub is_retryable: bool,
    /// The delay from now that the server asked for, if any.
    pub retry_after: Option<Duration>,
}

/// Interprets an answer that is a refusal. A date in `retry-after` is compared with `wall_us`, the
/// time of day in µs since 1970. `key` is removed from quoted text.
///
/// ```
/// use streamdoor::agent::model::{RefusalBody, fault_of_response};
///
/// let body = br#"{"error": {"type": "rate_limit_error", "message": "Slow down."}}"#;
/// let retry_after = Some("2");
/// let answered = RefusalBody { status: 429, retry_after, retry_after_ms: None, body };
/// let refused = fault_of_response(&answered, None, 0);
/// assert!(refused.is_retryable);
/// assert_eq!(refused.retry_after, Some(std::time::Duration::from_secs(2)));
/// assert_eq!(refused.to_string(), "the model's server refuses with 429: Slow down.");
/// ```
pub fn fault_of_response(
    answered: &RefusalBody<'_>,
    key: Option<&Secret>,
    wall_us: u64,
) -> ModelRefusal {
    let RefusalBody { status, body, .. } = *answered;
    let body = &body[..body.len().min(limits::MODEL_ERROR_BYTES_MAX)];
    let body = String::from_utf8_lossy(body);
    let said = match serde_json::from_str::<Value>(&body) {
        Ok(value) => Some(ReportedError::of(value.get(0).unwrap_or(&value))),
        Err(_) => None, // A page of a proxy, or nothing.
    };
    let is_lasting = said.as_ref().is_some_and(ReportedError::is_lasting);
    let is_passing = is_passing_status(status);
    ModelRefusal {
        status,
        code: match said.as_ref().map(|said| said.code.as_str()) {
            None | Some("") => format!("http_{status}"),
            Some(code) => code.to_owned(),
        },
        message: match &said {
            Some(said) => said.message(key),
            None => quote(&body, key),
        },
        // The server's codes only tell an exhausted quota from a busy server. Some servers call an
        // internal failure an invalid request.
        is_retryable: is_passing && !(status == 429 && is_lasting),
        retry_after: retry_after(answered, wall_us),
    }
}

fn retry_after(answered: &RefusalBody<'_>, wall_us: u64) -> Option<Duration> {
    let number = |text: &str| {
        let number: f64 = text.trim().parse().ok()?;
        (number.is_finite() && number >= 0.0).then_some(number)
    };
    if let Some(ms) = answered.retry_after_ms.and_then(number) {
        return Duration::try_from_secs_f64(ms / 1_000.0).ok();
    }
    let text = answered.retry_after?;
    if let Some(seconds) = number(text) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let until_us = parse_http_date(text.trim())?.saturating_mul(1_000_000);
    Some(Duration::from_micros(until_us.saturating_sub(wall_us)))
}

impl fmt::Display for ModelRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelRefusal { status, code, message, .. } = self;
        write!(out, "the model's server refuses with {status}")?;
        match message.is_empty() {
            true if code.starts_with("http_") => Ok(()),
            true => write!(out, ": {code}"),
            false => write!(out, ": {message}"),
        }
    }
}

impl std::error::Error for ModelRefusal {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> ModelRefusal {
        let body = body.as_bytes();
        let answered = RefusalBody { status, retry_after: None, retry_after_ms: None, body };
        fault_of_response(&answered, None, 0)
    }

    #[test]
    fn the_status_says_whether_asking_again_can_help() {
        for status in [408, 409, 425, 429, 500, 502, 503, 504, 520, 529, 599] {
            assert!(refused(status, "").is_retryable, "{status}");
            assert_eq!(refused(status, "").code, format!("http_{status}"));
        }
        for status in [301, 307, 400, 401, 402, 403, 404, 405, 413, 415, 418, 422, 451] {
            assert!(!refused(status, "").is_retryable, "{status}");
        }
    }

    #[test]
    fn a_quota_that_is_used_up_is_no_busy_minute() {
        let openai = r#"{"error":{"message":"You exceeded your current quota.",
            "type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#;
        assert!(!refused(429, openai).is_retryable);
        assert_eq!(refused(429, openai).code, "insufficient_quota");
        let busy = r#"{"error":{"message":"Limit 3, used 3.","type":"requests",
            "code":"rate_limit_exceeded"}}"#;
        assert!(refused(429, busy).is_retryable);
        // An internal failure, reported as an invalid request.
        let failed = r#"{"error":{"message":"?","type":"invalid_request_error"}}"#;
        assert!(refused(500, failed).is_retryable);
        assert!(!refused(400, failed).is_retryable);
    }

    #[test]
    fn bodies_of_all_sorts_say_what_they_can() {
        let table = [
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                "overloaded_error",
                "Overloaded",
            ),
            (
                r#"[{"error":{"code":503,"message":"Later","status":"UNAVAILABLE"}}]"#,
                "UNAVAILABLE",
                "Later",
            ),
            (r#"{"detail":"Not here"}"#, "http_503", "Not here"),
            (r#"{"error":"model is loading"}"#, "http_503", "model is loading"),
            (
                "<html>\n<title>503</title>\n</html>",
                "http_503",
                "<html> <title>503</title> </html>",
            ),
            ("", "http_503", ""),
            ("[]", "http_503", ""),
            ("null", "http_503", ""),
        ];
        for (body, code, message) in table {
            let refused = refused(503, body);
            assert_eq!((refused.code.as_str(), refused.message.as_str()), (code, message));
        }
    }

    #[test]
    fn no_key_is_quoted() {
        let key = Secret::new("sk-very-secret").unwrap();
        for body in [
            r#"{"error":{"message":"Incorrect API key: sk-very-secret."}}"#,
            "What is Bearer sk-very-secret?",
        ] {
            let answered = RefusalBody {
                status: 401,
                retry_after: None,
                retry_after_ms: None,
                body: body.as_bytes(),
            };
            let refused = fault_of_response(&answered, Some(&key), 0);
            assert!(!format!("{refused:?} {refused}").contains("very"), "{refused:?}");
            assert!(refused.message.contains("[key]"));
        }
    }

    #[test]
    fn servers_say_when_in_four_ways() {
        let wall_us = 784_111_777 * 1_000_000 - 1_500_000;
        let table = [
            (Some("7"), None, Some(7_000)),
            (Some(" 0.25 "), None, Some(250)),
            (Some("7"), Some("120"), Some(120)),
            (Some("Sun, 06 Nov 1994 08:49:37 GMT"), None, Some(1_500)),
            (Some("Sun, 06 Nov 1994 08:49:30 GMT"), None, Some(0)),
            (Some("7"), Some("soon"), Some(7_000)),
            (Some("-1"), None, None),
            (Some("1e300"), None, None),
            (Some("NaN"), None, None),
            (Some("tomorrow"), None, None),
            (None, None, None),
        ];
        for (retry_after, retry_after_ms, expected_ms) in table {
            let answered = RefusalBody { status: 429, retry_after, retry_after_ms, body: b"" };
            let refused = fault_of_response(&answered, None, wall_us);
            let expected = expected_ms.map(Duration::from_millis);
            assert_eq!(refused.retry_after, expected, "{retry_after:?} {retry_after_ms:?}");
        }
    }
}
