//! Acknowledgements of a stream under `block`: the server keeps what it has sent until the client
//! says that it has it.
//!
//! They go out on a connection of their own, which stays open. Nobody waits for an answer: it is
//! looked for before the next acknowledgement, and while it has not come none is sent. The next one
//! then says more. So a fast stream costs one small request per round trip at most, and a slow one
//! a request each [`QUIET`] at most.
//!
//! An acknowledgement that is lost costs nothing but time: it is sent again on a new connection.

use std::time::Duration;

use serde_json::json;

use super::connection::{Connection, Head, Patience};
use super::error::ClientError;
use super::request::Request;
use super::{Client, refused, subscriber_path};
use crate::base::{ExecutionId, Instant};
use crate::limits;
use crate::reactor::Clock;
use crate::wire::http1::Method;

/// It is time to acknowledge when so many chunks were taken ...
const CHUNKS_DUE: u64 = 16;
/// ... or so many bytes were received: a part of what the smallest ring keeps.
const BYTES_DUE: usize = 8 << 10;
/// Less than that is acknowledged once nothing has come for so long.
const QUIET: Duration = Duration::from_millis(10);

const _: () = assert!(CHUNKS_DUE < limits::CLIENT_ACK_WINDOW as u64);

/// The acknowledgements of one stream.
#[derive(Debug, Default)]
pub(super) struct Acks {
    /// The path of the subscriber's acknowledgements; empty while it has none to send.
    target: String,
    connection: Option<Connection>,
    /// The request that was sent and is not answered yet.
    asked: Option<Asked>,
    /// The server knows that everything through this chunk was dealt with.
    acked_seq: u64,
    /// Bytes received since the last request.
    unsaid_bytes: usize,
    /// The stream was quiet since then for as long as acknowledgements wait.
    is_quiet: bool,
    /// No attempt is made before this, after one has failed.
    retry_at: Option<Instant>,
}

#[derive(Debug)]
struct Asked {
    seq: u64,
    patience: Patience,
    head: Option<Head>,
}

impl Acks {
    /// A new connection of the stream has started, with the chunk after `before_seq`.
    pub fn begin(&mut self, execution: ExecutionId, subscriber: &str, before_seq: u64) {
        self.target = format!("{}/acks", subscriber_path(execution, subscriber));
        self.acked_seq = before_seq;
        self.unsaid_bytes = 0;
        if self.asked.take().is_some() {
            self.connection = None; // An answer would be of the subscriber before.
        }
    }

    /// The stream's connection is gone: nothing can be acknowledged until the next one starts.
    pub fn pause(&mut self) {
        self.target.clear();
    }

    /// This many bytes of the stream were received.
    pub fn received(&mut self, count: usize) {
        self.unsaid_bytes += count;
        self.is_quiet = false;
    }

    /// Nothing came for as long as [`Acks::speak`] has said.
    pub fn quiet(&mut self) {
        self.is_quiet = true;
    }

    /// Acknowledges `dealt_seq` if it is time to. Returns how long the stream may wait for bytes
    /// before this must be asked again; `None`: for as long as it likes.
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
        let is_much = dealt_seq - self.acked_seq >= CHUNKS_DUE || self.unsaid_bytes >= BYTES_DUE;
        if !is_much && !self.is_quiet {
            return Ok(());
        }
        let request = Request::new(Method::Post, self.target.as_str());
        let request = request.with_body(&json!({"seq": dealt_seq}));
        let bytes = client.spell(&request, true);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => client.connect()?,
        };
        connection.send(request.method, &bytes)?;
        self.connection = Some(connection);
        let patience = Patience::for_answer(limits::CLIENT_ANSWER_TIMEOUT);
        self.asked = Some(Asked { seq: dealt_seq, patience, head: None });
        self.unsaid_bytes = 0;
        Ok(())
    }

    /// Takes the answer to the last request, if it has come. Returns whether none is missing.
    fn hear(&mut self) -> Result<bool, ClientError> {
        let (Some(asked), Some(connection)) = (&mut self.asked, &mut self.connection) else {
            return Ok(true);
        };
        let Some(head) = connection.poll_answer(&mut asked.head, asked.patience)? else {
            return Ok(false);
        };
        let seq = asked.seq;
        self.asked = None;
        if !head.keeps_alive {
            self.connection = None;
        }
        let refusal = ClientError::Refused(refused(&head, b""));
        if refusal.is_transient() {
            return Err(refusal); // The server is busy: it must be said again.
        }
        // It is said; or the subscriber is gone, and then the stream tells.
        self.acked_seq = self.acked_seq.max(seq);
        Ok(true)
    }
}
