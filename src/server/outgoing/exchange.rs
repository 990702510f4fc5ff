//! One request and its answer, with the deadlines for each part.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::agent::{NetFault, NetFaultKind};
use crate::base::{Handle, Instant};
use crate::engine::wheel::TimerId;
use crate::limits;
use crate::reactor::ConnectionId;
use crate::server::outgoing::{Asker, Deadlines, ResponseEvent};
use crate::wire::http1::Method;

/// The stage of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Stage {
    /// The server's address or the trusted certificates are not known yet.
    Resolving,
    /// A connection is being made.
    Connecting,
    /// The request is being sent, and nothing of an answer has come.
    Asking,
    /// The head of the answer has come.
    Answered,
    /// The end is known, but has not been reported yet.
    Over,
}

/// An exchange. See the module's text.
pub(in crate::server) struct Exchange {
    /// The server.
    pub site: Handle,
    /// The part of the server that it is for.
    pub asker: Asker,
    /// The request, kept until the head of the answer has come because it may be sent again.
    pub request: Vec<u8>,
    pub method: Method,
    deadlines: Deadlines,
    pub stage: Stage,
    started_at: Instant,
    /// The time at which the stage began or the last bytes came.
    pub stage_at: Instant,
    /// The time at which the next address is tried in parallel.
    pub stagger_at: Option<Instant>,
    pub timer: Option<TimerId>,
    /// The addresses of the server, of which `tried_count` were tried.
    pub addresses: Rc<[SocketAddr]>,
    pub tried_count: usize,
    /// Connections that are being made.
    pub dials: SmallVec<[ConnectionId; 2]>,
    /// The error of the last failed attempt.
    pub last_error: Option<String>,
    /// The connection that carries it.
    pub line: Option<ConnectionId>,
    /// True if the request was sent again, which happens once.
    pub was_repeated: bool,
    pub was_sent: bool,
    pub was_received: bool,
    pub is_reading: bool,
    /// The events to report: the head, then bytes of the body, then the end.
    pub head: Option<ResponseEvent>,
    pub body: Vec<u8>,
    pub end: Option<Result<(), NetFault>>,
    /// True if it stands in the list of exchanges with events to report.
    pub is_listed: bool,
}

impl Exchange {
    pub fn new(
        (site, asker): (Handle, Asker),
        request: Vec<u8>,
        deadlines: Deadlines,
        now: Instant,
    ) -> Exchange {
        let method = if request.starts_with(b"HEAD ") { Method::Head } else { Method::Post };
        Exchange {
            site,
            asker,
            request,
            method,
            deadlines,
            stage: Stage::Resolving,
            started_at: now,
            stage_at: now,
            stagger_at: None,
            timer: None,
            addresses: Rc::new([]),
            tried_count: 0,
            dials: SmallVec::new(),
            last_error: None,
            line: None,
            was_repeated: false,
            was_sent: false,
            was_received: false,
            is_reading: true,
            head: None,
            body: Vec::new(),
            end: None,
            is_listed: false,
        }
    }

    /// Returns the time of the next deadline.
    pub fn due_at(&self) -> Instant {
        let stage_due_at = match self.stage {
            Stage::Over => return Instant::FAR,
            Stage::Resolving | Stage::Connecting => self.stage_at + self.deadlines.connect,
            Stage::Asking => self.stage_at + self.deadlines.first_byte,
            Stage::Answered if self.is_reading => self.stage_at + self.deadlines.between_bytes,
            Stage::Answered => Instant::FAR, // The server is not the one that is slow.
        };
        let due_at = stage_due_at.min(self.started_at + self.deadlines.total);
        self.stagger_at.map_or(due_at, |at| at.min(due_at))
    }

    /// Returns the deadline that has passed, with a text, if any.
    pub fn lateness(&self, now: Instant) -> Option<(NetFaultKind, String)> {
        let Deadlines { connect, first_byte, between_bytes, total } = self.deadlines;
        if self.started_at + total <= now {
            let text = format!("the answer was not complete after {total:?}");
            return Some((NetFaultKind::TooSlow, text));
        }
        let (limit, kind) = match self.stage {
            Stage::Over => return None,
            Stage::Answered if !self.is_reading => return None,
            Stage::Resolving => (connect, NetFaultKind::Resolve),
            Stage::Connecting => (connect, NetFaultKind::Connect),
            Stage::Asking => (first_byte, NetFaultKind::FirstByte),
            Stage::Answered => (between_bytes, NetFaultKind::Silent),
        };
        if self.stage_at + limit > now {
            return None;
        }
        let text = match self.stage {
            Stage::Resolving => format!("its address was not known after {limit:?}"),
            Stage::Connecting => format!("no connection was made within {limit:?}"),
            Stage::Asking => format!("no byte of an answer came within {limit:?}"),
            Stage::Answered | Stage::Over => format!("nothing more came within {limit:?}"),
        };
        Some((kind, text))
    }

    /// True if its connection carries it. Before that, received bytes belong to TLS.
    pub fn is_carried(&self) -> bool {
        matches!(self.stage, Stage::Asking | Stage::Answered)
    }

    /// True if it has an event to report.
    pub fn has_news(&self) -> bool {
        self.head.is_some() || !self.body.is_empty() || self.end.is_some()
    }

    /// Takes the next event to report. The bytes of a body are swapped into `body`.
    pub fn poll_response(&mut self, body: &mut Vec<u8>) -> Option<ResponseEvent> {
        if let Some(head) = self.head.take() {
            return Some(head);
        }
        if !self.body.is_empty() {
            std::mem::swap(&mut self.body, body);
            return Some(ResponseEvent::Body);
        }
        let end = self.end.take()?;
        Some(end.map_or_else(ResponseEvent::Broken, |()| ResponseEvent::End))
    }
}

impl fmt::Debug for Exchange {
    /// Shows no bytes: the request holds a key, and the answer is private.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Exchange")
            .field("stage", &self.stage)
            .field("request_bytes", &self.request.len())
            .field("line", &self.line)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Buffers that are not in use.
#[derive(Default)]
pub(in crate::server) struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// Returns an empty buffer.
    pub fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    pub fn give_back(&mut self, mut buffer: Vec<u8>) {
        let is_worth_it = (1..=limits::MODEL_BUFFER_BYTES_MAX).contains(&buffer.capacity());
        if is_worth_it && self.0.len() < limits::MODEL_BUFFERS_KEPT {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}
