//! Acknowledgements of a stream under `block`. The server keeps sent chunks until the client
//! acknowledges them.
//!
//! Acknowledgements have a connection of their own, which stays open. Nothing waits for a reply. It
//! is read before the next acknowledgement, and none is sent while one is unanswered. The next one
//! then covers more chunks. A fast stream therefore costs at most one small request per round trip.
//! A slow one costs at most one request per [`QUIET`].
//!
//! A lost acknowledgement costs time only: it is sent again on a new connection.

use std::time::Duration;

use serde_json::json;

use super::connection::{ClientConnection, Head, WaitLimit};
use super::error::ClientError;
use super::request::ClientRequest;
use super::{Client, refused, subscriber_path};
use crate::base::{ExecutionId, Instant};
use crate::limits;
use crate::reactor::Clock;
use crate::wire::http1::Method;

/// An acknowledgement is due once this many chunks were taken ...
const CHUNKS_DUE: u64 = 16;
/// ... or this many bytes were received: a part of what the smallest ring holds.
const BYTES_DUE: usize = 8 << 10;
/// Fewer are acknowledged once nothing has come for this long.
const QUIET: Duration = Duration::from_millis(10);

const _: () = assert!(2 * CHUNKS_DUE < limits::CLIENT_ACK_WINDOW as u64);

/// The acknowledgements of one stream.
#[derive(Debug, Default)]
pub(super) struct Acks {
    /// The path of the subscriber's acknowledgements. Empty while none can be sent.
    target: String,
    connection: Option<ClientConnection>,
    /// The request that is sent and not yet answered.
    asked: Option<OpenRequest>,
    /// The last chunk that the server knows to be acknowledged.
    acked_seq: u64,
    /// Number of bytes received since the last request.
    unacked_bytes: usize,
    /// True if the stream was silent for [`QUIET`] after the last bytes.
    is_quiet: bool,
    /// The earliest time of the next attempt, after one has failed.
    retry_at: Option<Instant>,
}

#[derive(Debug)]
struct OpenRequest {
    seq: u64,
    wait_limit: WaitLimit,
    head: Option<Head>,
}

impl Acks {
    /// Handles the start of a new connection of the stream, which begins with the chunk after
    /// `before_seq`.
    pub fn begin(&mut self, execution: ExecutionId, subscriber: &str, before_seq: u64) {
        self.target = format!("{}/acks", subscriber_path(execution, subscriber));
        self.acked_seq = before_seq;
        self.unacked_bytes = 0;
        if self.asked.take().is_some() {
            self.connection = None; // A reply would concern the previous subscriber.
        }
    }

    /// Handles the loss of the stream's connection. Nothing can be acknowledged until the next one
    /// starts.
    pub fn pause(&mut self) {
        self.target.clear();
    }

    /// Counts received bytes of the stream.
    pub fn received(&mut self, count: usize) {
        self.unacked_bytes += count;
        self.is_quiet = false;
    }

    /// Handles silence for as long as [`Acks::speak`] returned.
    pub fn quiet(&mut self) {
        self.is_quiet = true;
    }

    /// True if an acknowledgement must not wait for bytes that are already here.
    pub fn is_overdue(&self, dealt_seq: u64) -> bool {
        let chunk_count = dealt_seq.saturating_sub(self.acked_seq);
        chunk_count >= 2 * CHUNKS_DUE || self.unacked_bytes >= 2 * BYTES_DUE
    }

    /// Acknowledges `dealt_seq` if an acknowledgement is due. Returns how long the stream may wait
    /// for bytes before it must call again. `None`: without limit.
    pub fn speak(&mut self, client: &Client, dealt_seq: u64) -> Option<Duration> {
        if self.target.is_empty() {
            return None;
        }
        if self.retry_at.is_none_or(|retry_at| retry_at <= Clock::now()) {
            self.retry_at = match self.try_speak(client, dealt_seq) {
                Ok(()) => None,
                Err(_) => {
                    (self.connection, self.asked) = (None, None);
                    Some(Clock::now() + limits::CLIENT_RETRY_MIN)
                }
            };
        }
        let is_said = self.asked.is_none() && self.acked_seq >= dealt_seq;
        (!is_said).then_some(QUIET)
    }

    fn try_speak(&mut self, client: &Client, dealt_seq: u64) -> Result<(), ClientError> {
        if !self.hear()? || dealt_seq <= self.acked_seq {
            return Ok(());
        }
        let is_much = dealt_seq - self.acked_seq >= CHUNKS_DUE || self.unacked_bytes >= BYTES_DUE;
        if !is_much && !self.is_quiet {
            return Ok(());
        }
        let request = ClientRequest::new(Method::Post, self.target.as_str());
        let request = request.with_body(&json!({"seq": dealt_seq}));
        let bytes = client.encode(&request, true);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => client.connect()?,
        };
        connection.send(request.method, &bytes)?;
        self.connection = Some(connection);
        let wait_limit = WaitLimit::for_answer(limits::CLIENT_ANSWER_TIMEOUT);
        self.asked = Some(OpenRequest { seq: dealt_seq, wait_limit, head: None });
        self.unacked_bytes = 0;
        Ok(())
    }

    /// Reads the reply to the last request, if it has come. Returns false while one is missing.
    fn hear(&mut self) -> Result<bool, ClientError> {
        let (Some(asked), Some(connection)) = (&mut self.asked, &mut self.connection) else {
            return Ok(true);
        };
        let Some(head) = connection.poll_answer(&mut asked.head, asked.wait_limit)? else {
            return Ok(false);
        };
        let seq = asked.seq;
        self.asked = None;
        if !head.keeps_alive {
            self.connection = None;
        }
        let refusal = ClientError::Refused(refused(&head, b""));
        if refusal.is_transient() {
            return Err(refusal); // The server is busy: send it again.
        }
        // Accepted, or the subscriber is gone, which the stream reports itself.
        self.acked_seq = self.acked_seq.max(seq);
        Ok(true)
    }
}
