//! Whole answers: a status, what is in it, and how it is written.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::Value;

use crate::endpoint::access::OriginPlace;
use crate::endpoint::{ApiError, Surroundings, mcp};
use crate::limits;
use crate::wire::http1::{Framing, ResponseHead, Status};
use crate::wire::write_json;

/// How JSON is called.
pub const JSON: &str = "application/json";

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    status: Status,
    /// `None`: it has no body.
    media_type: Option<&'static str>,
    body: Cow<'static, [u8]>,
    retry_after: Option<Duration>,
    beside: Beside,
}

/// What else the head of an answer says; none says two of these.
#[derive(Clone, Debug, PartialEq)]
enum Beside {
    Nothing,
    /// Where it is.
    Location(String),
    /// The session of MCP that was begun.
    Session(String),
    /// Which methods there are.
    Allow(String),
    /// What would have to be shown.
    Challenge(&'static str),
    /// Which methods a page may use.
    Preflight(String),
}

/// What an answer has to know of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manner {
    /// To `HEAD`: all of the head, nothing of the body.
    pub is_head: bool,
    /// HTTP/1.0: it has no chunks, and closes unless it says otherwise.
    pub is_old: bool,
    /// There may be another request.
    pub keeps_alive: bool,
    /// What its client understands.
    pub words: Words,
    /// Of which origin the page is that asks, if it is another than ours.
    pub origin: Option<OriginPlace>,
}

/// In which words something is told that went wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Words {
    /// As [`ApiError`] spells it.
    #[default]
    Own,
    /// As a message of JSON-RPC that answers none: its client may read nothing else.
    JsonRpc,
}

impl Words {
    /// Those that are understood at this path.
    pub fn at(path: &str) -> Words {
        if path == mcp::PATH { Words::JsonRpc } else { Words::Own }
    }
}

impl Answer {
    /// A document.
    pub fn json(status: Status, document: &Value) -> Answer {
        let mut body = Vec::with_capacity(256);
        write_json(&mut body, document);
        body.push(b'\n'); // For who reads it in a terminal.
        Answer { media_type: Some(JSON), body: body.into(), ..Answer::empty(status) }
    }

    /// Something was made, and is there.
    pub fn created(document: &Value, location: impl Into<String>) -> Answer {
        let beside = Beside::Location(location.into());
        Answer { beside, ..Answer::json(Status::CREATED, document) }
    }

    /// Something else than JSON.
    pub fn text(
        status: Status,
        media_type: &'static str,
        body: impl Into<Cow<'static, [u8]>>,
    ) -> Answer {
        Answer { media_type: Some(media_type), body: body.into(), ..Answer::empty(status) }
    }

    /// Nothing but a status.
    pub fn empty(status: Status) -> Answer {
        Answer {
            status,
            media_type: None,
            body: Cow::Borrowed(&[]),
            retry_after: None,
            beside: Beside::Nothing,
        }
    }

    /// Why it was not done.
    pub fn error(error: &ApiError) -> Answer {
        let retry_after = error.retry_after;
        Answer { retry_after, ..Answer::json(error.status, &error.to_json()) }
    }

    /// As [`Answer::error`], in these words.
    pub(super) fn error_in(words: Words, error: &ApiError) -> Answer {
        match words {
            Words::Own => Answer::error(error),
            Words::JsonRpc => {
                let retry_after = error.retry_after;
                let body = mcp::error_body(error);
                Answer { retry_after, ..Answer::text(error.status, JSON, body) }
            }
        }
    }

    /// As it is, with the name of the session that it begins.
    #[must_use]
    pub fn in_session(self, session: String) -> Answer {
        Answer { beside: Beside::Session(session), ..self }
    }

    /// Nobody was shown to us whom we know. Whether nothing was, or what is wrong, makes no
    /// difference but in `challenge`.
    pub(super) fn unauthorized(words: Words, challenge: &'static str) -> Answer {
        let text = "a token is needed: Authorization: Bearer TOKEN";
        let error = ApiError::new(Status::UNAUTHORIZED, "unauthorized", text);
        Answer { beside: Beside::Challenge(challenge), ..Answer::error_in(words, &error) }
    }

    /// A page may ask, with these methods.
    pub(super) fn preflight(methods: String) -> Answer {
        Answer { beside: Beside::Preflight(methods), ..Answer::empty(Status::NO_CONTENT) }
    }

    /// Which methods there are.
    pub(super) fn allowing(self, methods: String) -> Answer {
        Answer { beside: Beside::Allow(methods), ..self }
    }

    /// What kind of answer it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// What is in it.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    pub(super) fn write(&self, manner: Manner, around: &Surroundings<'_>, out: &mut Vec<u8>) {
        let mut head = ResponseHead::begin(out, self.status, &around.date);
        let retry_after = self.retry_after.map(|delay| {
            let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
            seconds.max(1).to_string()
        });
        let no_store = self.media_type.map(|_| "no-store");
        let beside = match &self.beside {
            Beside::Location(location) => Some(("location", location.as_str())),
            Beside::Session(session) => Some(("mcp-session-id", session.as_str())),
            Beside::Allow(methods) => Some(("allow", methods.as_str())),
            Beside::Challenge(challenge) => Some(("www-authenticate", *challenge)),
            Beside::Preflight(methods) => Some(("access-control-allow-methods", methods.as_str())),
            Beside::Nothing => None,
        };
        let (beside_name, beside_value) = beside.unzip();
        for (name, value) in [
            ("content-type", self.media_type),
            ("cache-control", no_store),
            (beside_name.unwrap_or_default(), beside_value),
            ("retry-after", retry_after.as_deref()),
            ("connection", manner.says_keep_alive()),
        ] {
            if let Some(value) = value {
                head.header(name, value).expect("ours are one line each");
            }
        }
        manner.write_origin(around, &mut head);
        if let Beside::Preflight(_) = &self.beside {
            let max_age_s = limits::PREFLIGHT_MAX_AGE.as_secs().to_string();
            let headers = ("access-control-allow-headers", HEADERS_OF_PAGES);
            for (name, value) in [headers, ("access-control-max-age", &max_age_s)] {
                head.header(name, value).expect("ours are one line each");
            }
        }
        head.finish(Framing::Length(self.body.len() as u64), manner.keeps_alive);
        if !manner.is_head && !self.status.is_bodiless() {
            out.extend_from_slice(&self.body);
        }
    }
}

/// What a page may send beside what it always may.
const HEADERS_OF_PAGES: &str = "authorization, content-type, last-event-id, x-session-id, \
    mcp-session-id, mcp-protocol-version, mcp-method, mcp-name, traceparent, tracestate, baggage";

impl Manner {
    /// Of the last answer on a connection.
    pub const LAST: Manner = Manner {
        is_head: false,
        is_old: false,
        keeps_alive: false,
        words: Words::Own,
        origin: None,
    };

    /// Lets the page read the answer that asks for it. Its cookies are none of ours, so they are
    /// not asked for.
    pub fn write_origin(self, around: &Surroundings<'_>, head: &mut ResponseHead<'_>) {
        let Some(origin) = self.origin.and_then(|place| around.access.origin(place)) else {
            return;
        };
        for (name, value) in [
            ("access-control-allow-origin", origin),
            ("access-control-expose-headers", "location, retry-after, mcp-session-id"),
            ("vary", "origin"),
        ] {
            head.header(name, value).expect("ours are one line each");
        }
    }

    /// HTTP/1.0 closes unless both sides say that they do not.
    pub fn says_keep_alive(self) -> Option<&'static str> {
        (self.is_old && self.keeps_alive).then_some("keep-alive")
    }
}
