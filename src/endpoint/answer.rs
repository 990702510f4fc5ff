//! Whole answers: a status, what is in it, and how it is written.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::Value;

use crate::endpoint::ApiError;
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
    location: Option<String>,
    allow: Option<String>,
    retry_after: Option<Duration>,
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
        Answer { location: Some(location.into()), ..Answer::json(Status::CREATED, document) }
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
            location: None,
            allow: None,
            retry_after: None,
        }
    }

    /// Why it was not done.
    pub fn error(error: &ApiError) -> Answer {
        let retry_after = error.retry_after;
        Answer { retry_after, ..Answer::json(error.status, &error.to_json()) }
    }

    /// Which methods there are.
    pub(super) fn allowing(self, methods: String) -> Answer {
        Answer { allow: Some(methods), ..self }
    }

    /// What kind of answer it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// What is in it.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    pub(super) fn write(&self, manner: Manner, date: &[u8; 29], out: &mut Vec<u8>) {
        let mut head = ResponseHead::begin(out, self.status, date);
        let retry_after = self.retry_after.map(|delay| {
            let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
            seconds.max(1).to_string()
        });
        let no_store = self.media_type.map(|_| "no-store");
        for (name, value) in [
            ("content-type", self.media_type),
            ("cache-control", no_store),
            ("location", self.location.as_deref()),
            ("allow", self.allow.as_deref()),
            ("retry-after", retry_after.as_deref()),
            ("connection", manner.says_keep_alive()),
        ] {
            if let Some(value) = value {
                head.header(name, value).expect("ours are one line each");
            }
        }
        head.finish(Framing::Length(self.body.len() as u64), manner.keeps_alive);
        if !manner.is_head && !self.status.is_bodiless() {
            out.extend_from_slice(&self.body);
        }
    }
}

impl Manner {
    /// HTTP/1.0 closes unless both sides say that they do not.
    pub fn says_keep_alive(self) -> Option<&'static str> {
        (self.is_old && self.keeps_alive).then_some("keep-alive")
    }
}
