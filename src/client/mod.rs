//! Stratum 6: a blocking client of `streamdoor serve`.
//!
//! It speaks HTTP/1.1 over TCP or a Unix socket, and reads streams as server-sent events or as
//! NDJSON. It needs no runtime and starts no thread: each call blocks its caller.
//!
//! ```no_run
//! use serde_json::json;
//! use streamdoor::client::{Client, StreamEvent, ExecuteOptions, FollowOptions};
//!
//! let client = Client::new("http://127.0.0.1:8808")?; // Or `unix:/run/streamdoor.sock`.
//! let arguments = json!({"chunks": 10, "delay_ms": 100});
//! let (execute, follow) = (ExecuteOptions::default(), FollowOptions::default());
//! for event in client.call("slow_data_processor", &arguments, &execute, follow)? {
//!     match event? {
//!         StreamEvent::Started(started) => println!("{} runs", started.execution),
//!         StreamEvent::Chunk(chunk) => println!("{}: {} bytes", chunk.seq, chunk.data.len()),
//!         StreamEvent::Part(part) => println!("part {} of an agent's run", part.seq),
//!         StreamEvent::Gap(gap) => println!("missed {} to {}", gap.from_seq, gap.to_seq),
//!         StreamEvent::Progress(progress) => println!("{:?} done", progress.progress),
//!         StreamEvent::End(ended) => println!("{}", ended.end.state),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`EventStream`] is an iterator. [`EventStream::run`] passes its events to a closure instead.
//! When the connection breaks, the stream reconnects and continues after the last event that it
//! returned. No event is returned twice, and lost chunks are always reported as a gap. A stream
//! that ends without its end event is an error, not a short result.
//!
//! Under `block` a stream acknowledges the chunks that its caller has taken. The server therefore
//! keeps the chunks that may be lost with a connection. At its end the stream compares the totals
//! over all connections with the totals of the execution.
//!
//! Everything that a server sends is checked: lengths against `limits.rs`, fields against
//! their types, and numbers against each other.
//!
//! Deliberately absent: proxies, redirects, compression, cookies.
//!
//! Reading order: [`Client`], [`EventStream`], `order.rs` (the checks of a stream).
//!
//! Tests: beside each file; `tests/client/` against scripted servers, with cut connections;
//! `tests/client_server/` against real servers.
#![forbid(unsafe_code)]

mod acks;
mod address;
mod backoff;
mod connection;
mod documents;
mod error;
mod event;
#[cfg(test)]
mod event_tests;
pub(crate) mod exchange;
mod fields;
mod metrics;
mod order;
#[cfg(test)]
mod order_tests;
pub(crate) mod request;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod wire_event;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::api::{AllProgress, Document, Executions, StateOf, Tools};
use crate::base::ExecutionId;
use crate::endpoint::check_token;
use crate::engine::From;
use crate::limits;
use crate::stream::ExecutionState;
use crate::wire::http1::{Method, is_media_type};

pub use crate::wire::sse::{Reached, SeenTotals};

pub use crate::api::{
    Coalesce, Created, Execution as Status, Json, Links, OrNull, Progress, ProgressOf,
    Subscriber as SubscriberStatus, Subscribers, Summary, Tool,
};
pub use crate::endpoint::front::{FormatError, FrontFormat, SdkVersion, Spelling};
pub use crate::endpoint::{DeliveryOptions, PolicyChoice, StreamFormat, TokenFault};
pub use crate::wire::events::Replay;
pub use crate::wire::http1::Status as HttpStatus;
pub use address::{Address, AddressError};
pub use documents::{Awaited, ExecutionOutput};
pub use error::{ClientError, Cut, ServerRefusal};
pub use event::{ChunkEvent, EndEvent, PartEvent, StartedEvent, StreamEvent};
pub use metrics::Metrics;
pub use request::{ExecuteOptions, FollowOptions};
pub use stream::EventStream;
#[cfg(feature = "tls")]
pub use tls::{Trust, TrustError};

use connection::{ClientConnection, Head, Security, WaitLimit};
use documents::read;
pub(crate) use error::printable;
use request::{ClientRequest, path_piece};

/// A client of one server. Clones share one idle connection for the next request. Each stream has a
/// connection of its own.
///
/// ```no_run
/// use streamdoor::Client;
///
/// let client = Client::new("http://127.0.0.1:8808")?;
/// for tool in client.tools()? {
///     println!("{}: {}", tool.name, tool.description);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    address: Address,
    authority: String,
    /// The token that is sent with each request.
    token: Option<Box<str>>,
    security: Security,
    /// A connection without a request in progress.
    idle: Mutex<Option<ClientConnection>>,
}

impl Client {
    /// Returns a client of the server at `http://HOST:PORT` or `unix:PATH`. It connects with the
    /// first request.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn new(url: &str) -> Result<Client, AddressError> {
        let address: Address = url.parse()?;
        if let Address::Tcp { is_encrypted: true, .. } = address {
            return Err(AddressError::Encrypted);
        }
        Ok(Client::of(address, Security::None))
    }

    /// Returns a client of the server at `https://HOST:PORT`, which must show a certificate that
    /// `trust` accepts.
    ///
    /// # Errors
    /// [`AddressError`]; also if `url` is not an `https://` address.
    #[cfg(feature = "tls")]
    pub fn trusting(url: &str, trust: Trust) -> Result<Client, AddressError> {
        match url.parse()? {
            address @ Address::Tcp { is_encrypted: true, .. } => {
                Ok(Client::of(address, Security::Tls(trust)))
            }
            Address::Tcp { .. } | Address::Unix(_) => Err(AddressError::UnknownScheme),
        }
    }

    fn of(address: Address, security: Security) -> Client {
        let (authority, idle) = (address.authority(), Mutex::new(None));
        Client {
            shared: Arc::new(ClientShared { address, authority, token: None, security, idle }),
        }
    }

    /// Returns a client of the same server that sends this token with each request. The token is
    /// sent as it is, so use an encrypted connection to other machines.
    ///
    /// # Errors
    /// [`TokenFault`] if no server could accept `token`.
    pub fn with_token(&self, token: &str) -> Result<Client, TokenFault> {
        check_token(token)?;
        let (address, authority) = (self.shared.address.clone(), self.shared.authority.clone());
        let security = self.shared.security.clone();
        let (token, idle) = (Some(token.into()), Mutex::new(None));
        Ok(Client { shared: Arc::new(ClientShared { address, authority, token, security, idle }) })
    }

    /// The bytes of a request.
    fn encode(&self, request: &ClientRequest, keeps_alive: bool) -> Vec<u8> {
        request.write(&self.shared.authority, self.shared.token.as_deref(), keeps_alive)
    }

    fn connect(&self) -> Result<ClientConnection, ClientError> {
        ClientConnection::open(&self.shared.address, &self.shared.security)
    }

    /// The address of the server.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Returns the tools of the server.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn tools(&self) -> Result<Vec<Tool>, ClientError> {
        Ok(self.get::<Tools>("/v1/tools")?.tools)
    }

    /// Starts an execution of a tool. The request is not repeated if the connection breaks, because
    /// the tool may already run.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn execute(
        &self,
        tool: &str,
        arguments: &Value,
        options: &ExecuteOptions,
    ) -> Result<Created, ClientError> {
        let body = request::execute(tool, arguments, options);
        let request = ClientRequest::new(Method::Post, "/v1/executions").with_body(&body);
        let (_, value) = self.ask(&request, Duration::ZERO)?;
        read(value)
    }

    /// Starts an execution of a tool, and follows it from its start. A connection that breaks
    /// before the first event is an error, for the same reason as with [`Client::execute`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn call(
        &self,
        tool: &str,
        arguments: &Value,
        options: &ExecuteOptions,
        follow: FollowOptions,
    ) -> Result<EventStream, ClientError> {
        let follow = FollowOptions { from: From::Start, after: None, ..follow };
        let (follow, acks) = follow.acknowledged();
        let body = request::execute(tool, arguments, options);
        let connection = self.open(&request::call(&body, &follow), follow.format)?;
        Ok(EventStream::new(self.clone(), follow, None, connection, acks))
    }

    /// Starts a run of an agent, and follows it from its start. `arguments` are the members of the
    /// body of `POST /v1/agent/stream`: `task`, `tools` and so on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn agent(
        &self,
        arguments: &Value,
        follow: FollowOptions,
    ) -> Result<EventStream, ClientError> {
        let follow = FollowOptions { from: From::Start, after: None, ..follow };
        let (follow, acks) = follow.acknowledged();
        let connection = self.open(&request::agent(arguments, &follow), follow.format)?;
        Ok(EventStream::new(self.clone(), follow, None, connection, acks))
    }

    /// Follows an execution.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn follow(
        &self,
        execution: ExecutionId,
        options: FollowOptions,
    ) -> Result<EventStream, ClientError> {
        let (options, acks) = options.acknowledged();
        let request = request::follow(execution, options.after, &options);
        let connection = self.open(&request, options.format)?;
        Ok(EventStream::new(self.clone(), options, Some(execution), connection, acks))
    }

    /// Returns a summary of each execution, in the order of their creation.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn executions(&self) -> Result<Vec<Summary>, ClientError> {
        let mut page: Executions = self.get("/v1/executions")?;
        let mut all = std::mem::take(&mut page.executions);
        while let Some(next) =
            page.next.filter(|next| next.chars().all(|c| c.is_ascii_alphanumeric()))
        {
            page = self.get(&format!("/v1/executions?after={next}"))?;
            if page.executions.is_empty() {
                break; // A server that promises more for ever.
            }
            all.append(&mut page.executions);
        }
        Ok(all)
    }

    /// Returns the status of an execution and of its subscribers.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn inspect(&self, execution: ExecutionId) -> Result<Status, ClientError> {
        self.get(&format!("/v1/executions/{execution}"))
    }

    /// Returns the progress of all executions that have not ended.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn progress(&self) -> Result<Vec<ProgressOf>, ClientError> {
        Ok(self.get::<AllProgress>("/v1/progress")?.progress)
    }

    /// Returns the server's metrics.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn metrics(&self) -> Result<Metrics, ClientError> {
        let (_, body) =
            self.ask_bytes(&ClientRequest::new(Method::Get, "/metrics"), Duration::ZERO)?;
        Metrics::parse(&body)
    }

    /// Cancels an execution, and returns its present state. It may take a moment to stop. An
    /// execution that has ended does not change.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn cancel(&self, execution: ExecutionId) -> Result<ExecutionState, ClientError> {
        let request = ClientRequest::new(Method::Delete, format!("/v1/executions/{execution}"));
        let (_, value) = self.ask(&request, Duration::ZERO)?;
        Ok(read::<StateOf>(value)?.state)
    }

    /// Returns how an execution ended, and its output. Waits for the end for at most `wait` and at
    /// most `limits::CLIENT_RESULT_WAIT_MAX`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn result(&self, execution: ExecutionId, wait: Duration) -> Result<Awaited, ClientError> {
        let wait_ms = wait.as_nanos().div_ceil(1_000_000);
        let wait_ms = wait_ms.min(limits::CLIENT_RESULT_WAIT_MAX.as_millis()) as u64;
        let target = format!("/v1/executions/{execution}/result?wait_ms={wait_ms}");
        let request = ClientRequest::new(Method::Get, target);
        let (status, value) = self.ask(&request, Duration::from_millis(wait_ms))?;
        Awaited::read(value, status == HttpStatus::OK)
    }

    /// Acknowledges all chunks up to `seq` for a subscriber. A [`EventStream`] under `block` does
    /// this by itself.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn acknowledge(
        &self,
        execution: ExecutionId,
        subscriber: &str,
        seq: u64,
    ) -> Result<(), ClientError> {
        let target = format!("{}/acks", subscriber_path(execution, subscriber));
        let body = serde_json::json!({"seq": seq});
        self.ask(&ClientRequest::new(Method::Post, target).with_body(&body), Duration::ZERO)?;
        Ok(())
    }

    /// Removes a subscriber.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn unsubscribe(&self, execution: ExecutionId, subscriber: &str) -> Result<(), ClientError> {
        let target = subscriber_path(execution, subscriber);
        self.ask(&ClientRequest::new(Method::Delete, target), Duration::ZERO)?;
        Ok(())
    }

    fn get<T: Document>(&self, target: &str) -> Result<T, ClientError> {
        let (_, value) = self.ask(&ClientRequest::new(Method::Get, target), Duration::ZERO)?;
        read(value)
    }

    /// Sends a request and returns its reply in JSON, `null` if the body is empty. The server may
    /// take longer than usual by `wait`.
    fn ask(
        &self,
        request: &ClientRequest,
        wait: Duration,
    ) -> Result<(HttpStatus, Value), ClientError> {
        let (status, body) = self.ask_bytes(request, wait)?;
        if body.is_empty() {
            return Ok((status, Value::Null));
        }
        match serde_json::from_slice(&body) {
            Ok(value) => Ok((status, value)),
            Err(error) => Err(ClientError::protocol(format!("the answer is not JSON: {error}"))),
        }
    }

    /// Sends a request and returns its reply, whatever its media type.
    fn ask_bytes(
        &self,
        request: &ClientRequest,
        wait: Duration,
    ) -> Result<(HttpStatus, Vec<u8>), ClientError> {
        let wait_limit = WaitLimit::for_answer(limits::CLIENT_ANSWER_TIMEOUT + wait);
        let bytes = self.encode(request, true);
        let idle = self.idle().take().filter(|_| request.is_repeatable());
        let asked = match idle.map(|idle| self.ask_on(idle, request, &bytes, wait_limit)) {
            // The server has closed the idle connection: use a new one.
            None | Some(Err(RequestFailure { is_answered: false, .. })) => {
                self.ask_on(self.connect()?, request, &bytes, wait_limit)
            }
            Some(asked) => asked,
        };
        let (head, body) = asked.map_err(|unasked| unasked.error)?;
        match head.status.is_success() {
            true => Ok((head.status, body)),
            false => Err(ClientError::Refused(refused(&head, &body))),
        }
    }

    /// Sends a request on a connection, and keeps the connection for the next request if it can be
    /// reused.
    fn ask_on(
        &self,
        mut connection: ClientConnection,
        request: &ClientRequest,
        bytes: &[u8],
        wait_limit: WaitLimit,
    ) -> Result<(Head, Vec<u8>), RequestFailure> {
        let head = connection.ask(request.method, bytes, wait_limit);
        match head.and_then(|head| Ok((head, connection.body(wait_limit)?))) {
            Ok((head, body)) => {
                if head.keeps_alive && connection.is_clean() {
                    *self.idle() = Some(connection);
                }
                Ok((head, body))
            }
            Err(error) => {
                let is_closed = matches!(error, ClientError::Cut(Cut::Closed | Cut::Failed(_)));
                let is_answered = !is_closed || connection.is_answered();
                Err(RequestFailure { is_answered, error })
            }
        }
    }

    /// Opens a stream: a connection whose response head was read. `None` if the server says that
    /// nothing follows.
    fn open(
        &self,
        request: &ClientRequest,
        format: StreamFormat,
    ) -> Result<Option<ClientConnection>, ClientError> {
        let wait_limit = WaitLimit::for_answer(limits::CLIENT_ANSWER_TIMEOUT);
        let mut connection = self.connect()?;
        let bytes = self.encode(request, false);
        let head = connection.ask(request.method, &bytes, wait_limit)?;
        match head.status {
            HttpStatus::OK if is_media_type(&head.media_type, format.media_type()) => {
                Ok(Some(connection))
            }
            HttpStatus::NO_CONTENT => Ok(None),
            status if status.is_success() => Err(ClientError::protocol(format!(
                "the answer is not {}, but {} {}",
                format.media_type(),
                status.code(),
                printable(&head.media_type)
            ))),
            _ => {
                let body = connection.body(wait_limit)?;
                Err(ClientError::Refused(refused(&head, &body)))
            }
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Option<ClientConnection>> {
        self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Client({})", self.shared.address)
    }
}

/// The failure of a request on one connection.
struct RequestFailure {
    /// False if the connection closed before any byte of the reply.
    is_answered: bool,
    error: ClientError,
}

fn subscriber_path(execution: ExecutionId, subscriber: &str) -> String {
    format!("/v1/executions/{execution}/subscribers/{}", path_piece(subscriber))
}

/// The error of an unsuccessful response.
fn refused(head: &Head, body: &[u8]) -> ServerRefusal {
    ServerRefusal { retry_after: head.retry_after, ..ServerRefusal::read(head.status, body) }
}
