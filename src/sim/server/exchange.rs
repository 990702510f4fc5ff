//! One request and its response, over a simulated connection: sent in pieces, read in pieces.

use crate::base::Random;
use crate::reactor::ListenAddress;
use crate::sim::network::SimClient;
use crate::sim::world::{EAGAIN, SimWorld};
use crate::wire::durable::Offset;
use crate::wire::http1::{Method, ResponsePart, ResponseReader};
use crate::wire::sse;

/// A connection with one request on it.
pub(super) struct Exchange {
    client: SimClient,
    unsent: Vec<u8>,
    reader: ResponseReader,
    pub status: Option<u16>,
    /// True if its response is a stream of events.
    pub is_stream: bool,
    /// The session of MCP that it opens.
    pub session: Option<String>,
    /// The headers of the Durable Streams protocol.
    pub said: StreamHeaders,
    /// The body, as far as it came and was not taken.
    pub body: Vec<u8>,
    pub outcome: Option<Outcome>,
}

/// The headers of a response about a Durable Stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamHeaders {
    pub next_offset: Option<Offset>,
    pub is_up_to_date: bool,
    pub is_closed: bool,
}

/// The end of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The response is complete.
    Complete,
    /// The connection ended in the middle of it, or was reset.
    Cut,
}

impl Exchange {
    /// Connects; `None` if too many connections wait, or the listener is closed.
    pub fn begin(world: &SimWorld, address: &ListenAddress, request: &str) -> Option<Exchange> {
        let client = world.connect(address).ok()?;
        let method = match request.split(' ').next() {
            Some("POST") => Method::Post,
            Some("PUT") => Method::Put,
            Some("DELETE") => Method::Delete,
            Some("HEAD") => Method::Head,
            _ => Method::Get,
        };
        let mut reader = ResponseReader::new();
        reader.expect(method);
        let (unsent, body) = (request.as_bytes().to_vec(), Vec::new());
        Some(Exchange {
            client,
            unsent,
            reader,
            status: None,
            is_stream: false,
            session: None,
            said: StreamHeaders::default(),
            body,
            outcome: None,
        })
    }

    /// Sends and receives a piece. A response that is not HTTP is an error.
    pub fn step(&mut self, world: &SimWorld, random: &mut Random) -> Result<(), String> {
        if self.outcome.is_some() {
            return Ok(());
        }
        if !self.unsent.is_empty() {
            let length = random.between(1, self.unsent.len() as u64) as usize;
            if let Ok(count) = world.client_send(self.client, &self.unsent[..length]) {
                self.unsent.drain(..count);
            }
        }
        let mut buffer = vec![0; 1 << random.between(0, 13)];
        match world.client_receive(self.client, &mut buffer) {
            Err(EAGAIN) => Ok(()),
            Err(_) => {
                self.outcome = Some(Outcome::Cut);
                Ok(())
            }
            Ok(0) => {
                world.client_close(self.client);
                self.outcome = Some(match self.reader.finish() {
                    Ok(Some(_)) => Outcome::Complete,
                    Ok(None) | Err(_) => Outcome::Cut,
                });
                Ok(())
            }
            Ok(count) => self.take(&buffer[..count]),
        }
    }

    fn take(&mut self, mut input: &[u8]) -> Result<(), String> {
        loop {
            match self.reader.read(&mut input) {
                Ok(None) => return Ok(()),
                Ok(Some(ResponsePart::Head(head))) => {
                    self.status = Some(head.status.code());
                    let said = |name| head.headers.only(name).ok().flatten();
                    self.is_stream = said("content-type") == Some(sse::MEDIA_TYPE);
                    self.session = said("mcp-session-id").map(str::to_owned);
                    self.said = StreamHeaders {
                        next_offset: said("stream-next-offset").and_then(|text| text.parse().ok()),
                        is_up_to_date: said("stream-up-to-date").is_some(),
                        is_closed: said("stream-closed") == Some("true"),
                    };
                }
                Ok(Some(ResponsePart::Body(bytes))) => self.body.extend_from_slice(bytes),
                Ok(Some(ResponsePart::End)) => self.outcome = Some(Outcome::Complete),
                Err(error) => {
                    let text = String::from_utf8_lossy(input);
                    return Err(format!("not HTTP: {error:?} before {text:?}"));
                }
            }
        }
    }

    /// Leaves, by a close, a finish or a reset.
    pub fn leave(&mut self, world: &SimWorld, random: &mut Random) {
        match random.below(3) {
            0 => world.client_reset(self.client),
            1 => world.client_close(self.client),
            // Only its own direction: the server takes it for gone.
            _ => world.client_finish(self.client),
        }
        if self.outcome.is_none() {
            self.outcome = Some(Outcome::Cut);
        }
    }

    /// Closes the rest of the connection.
    pub fn close(&self, world: &SimWorld) {
        world.client_close(self.client);
    }
}
