//! Stratum 6: a client of `streamdoor serve`, for programs that block.
//!
//! It speaks HTTP/1.1 over TCP or a Unix socket, and reads streams as server-sent events or as
//! NDJSON. There is no runtime and no thread: whoever calls waits.
//!
//! ```no_run
//! use serde_json::json;
//! use streamdoor::client::{Client, Event, ExecuteOptions, FollowOptions};
//!
//! let client = Client::new("http://127.0.0.1:8808")?; // Or `unix:/run/streamdoor.sock`.
//! let arguments = json!({"chunks": 10, "delay_ms": 100});
//! let (execute, follow) = (ExecuteOptions::default(), FollowOptions::default());
//! for event in client.call("slow_data_processor", &arguments, &execute, follow)? {
//!     match event? {
//!         Event::Started(started) => println!("{} runs", started.execution),
//!         Event::Chunk(chunk) => println!("chunk {}: {} bytes", chunk.seq, chunk.data.len()),
//!         Event::Part(part) => println!("part {} of an agent's run", part.seq),
//!         Event::Gap(gap) => println!("missed {} to {}", gap.from_seq, gap.to_seq),
//!         Event::Progress(progress) => println!("{:?} done", progress.progress),
//!         Event::End(ended) => println!("{}", ended.end.state),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Stream`] is an iterator, and hands its events to a closure with [`Stream::run`]. When the
//! connection breaks, it comes back by itself and goes on behind what was given last: nothing is
//! given twice, and nothing is lost without a gap that says so. A stream that ends without its end
//! event is an error, and not a short result.
//!
//! Under `block` a stream acknowledges what its caller has taken, so that the server keeps what may
//! have got lost with a connection. At its end it compares what came over all connections with what
//! the execution has published.
//!
//! Whatever a server says is checked: lengths against [`crate::limits`], fields against their
//! types, numbers against each other.
//!
//! Absent on purpose: proxies, redirects, compression, cookies.
//!
//! Reading order: [`Client`], [`Stream`], `order.rs` (what is checked of a stream).
//! Tests: beside each file; `tests/client/` against servers that follow a script, and cut;
//! `tests/client_server/` against real ones.
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
mod spelled;
mod stream;
#[cfg(feature = "tls")]
mod tls;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::base::ExecutionId;
use crate::endpoint::{StreamFormat, TokenFault, check_token};
use crate::engine::{From, State};
use crate::limits;
use crate::wire::http1::{Method, Status as HttpStatus, is_media_type};

pub use crate::wire::sse::{Reached, Seen};

pub use address::{Address, AddressError};
pub use documents::{
    Awaited, Created, Output, ProgressOf, Status, SubscriberStatus, Summary, Tool,
};
pub use error::{ClientError, Cut, Refused};
pub use event::{Chunk, Ended, Event, Progress, Started};
pub use metrics::Metrics;
pub use request::{ExecuteOptions, FollowOptions};
pub use stream::Stream;
#[cfg(feature = "tls")]
pub use tls::{Trust, TrustError};

use connection::{Connection, Head, Patience, Security};
use documents::answer;
pub(crate) use error::printable;
use fields::Fields;
use request::{Request, path_piece};

/// A server, from outside. Clones share the connection that is kept for the next request; each
/// stream has one of its own.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    address: Address,
    authority: String,
    /// What is shown with each request.
    token: Option<Box<str>>,
    security: Security,
    /// A connection on which nothing is under way.
    idle: Mutex<Option<Connection>>,
}

impl Client {
    /// Of the server at `http://HOST:PORT` or `unix:PATH`. Connects when something is asked.
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

    /// Of the server at `https://HOST:PORT`, if it is the one that `trust` vouches for.
    ///
    /// # Errors
    /// [`AddressError`]; also if it is no `https://`, which nobody can vouch for.
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
        Client { shared: Arc::new(Shared { address, authority, token: None, security, idle }) }
    }

    /// The same, who shows this token with each request. It is sent as it is, so it should not go
    /// to other machines but through something that encrypts it.
    ///
    /// # Errors
    /// [`TokenFault`]: it is no token that a server could know.
    pub fn with_token(&self, token: &str) -> Result<Client, TokenFault> {
        check_token(token)?;
        let (address, authority) = (self.shared.address.clone(), self.shared.authority.clone());
        let security = self.shared.security.clone();
        let (token, idle) = (Some(token.into()), Mutex::new(None));
        Ok(Client { shared: Arc::new(Shared { address, authority, token, security, idle }) })
    }

    /// A request, as it is sent.
    fn spell(&self, request: &Request, keeps_alive: bool) -> Vec<u8> {
        request.write(&self.shared.authority, self.shared.token.as_deref(), keeps_alive)
    }

    fn connect(&self) -> Result<Connection, ClientError> {
        Connection::open(&self.shared.address, &self.shared.security)
    }

    /// Where the server is.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Which tools there are.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn tools(&self) -> Result<Vec<Tool>, ClientError> {
        self.get("/v1/tools")?.each("tools", Tool::read)
    }

    /// Runs a tool. It is not asked a second time if the connection breaks: then nobody knows
    /// whether it runs.
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
        let request = Request::new(Method::Post, "/v1/executions").with_body(&body);
        let (_, value) = self.ask(&request, Duration::ZERO)?;
        Created::read(answer(value)?)
    }

    /// Runs a tool, and follows it from its start. Until its first event has come, a connection
    /// that breaks is an error, for the same reason as with [`Client::execute`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn call(
        &self,
        tool: &str,
        arguments: &Value,
        options: &ExecuteOptions,
        follow: FollowOptions,
    ) -> Result<Stream, ClientError> {
        let follow = FollowOptions { from: From::Start, after: None, ..follow };
        let (follow, acks) = follow.acknowledged();
        let body = request::execute(tool, arguments, options);
        let connection = self.open(&request::call(&body, &follow), follow.format)?;
        Ok(Stream::new(self.clone(), follow, None, connection, acks))
    }

    /// Runs an agent, and follows it from its start. `arguments` are the members of the body of
    /// `POST /v1/agent/stream`: `task`, `tools` and so on.
    ///
    /// # Errors
    /// [`ClientError`].
    #[cfg(feature = "agent")]
    pub fn agent(&self, arguments: &Value, follow: FollowOptions) -> Result<Stream, ClientError> {
        let follow = FollowOptions { from: From::Start, after: None, ..follow };
        let (follow, acks) = follow.acknowledged();
        let connection = self.open(&request::agent(arguments, &follow), follow.format)?;
        Ok(Stream::new(self.clone(), follow, None, connection, acks))
    }

    /// Follows an execution.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn follow(
        &self,
        execution: ExecutionId,
        options: FollowOptions,
    ) -> Result<Stream, ClientError> {
        let (options, acks) = options.acknowledged();
        let request = request::follow(execution, options.after, &options);
        let connection = self.open(&request, options.format)?;
        Ok(Stream::new(self.clone(), options, Some(execution), connection, acks))
    }

    /// Which executions there are.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn executions(&self) -> Result<Vec<Summary>, ClientError> {
        self.get("/v1/executions")?.each("executions", Summary::read)
    }

    /// What an execution is doing, and who follows it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn inspect(&self, execution: ExecutionId) -> Result<Status, ClientError> {
        Status::read(self.get(&format!("/v1/executions/{execution}"))?)
    }

    /// How far all are that have not ended.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn progress(&self) -> Result<Vec<ProgressOf>, ClientError> {
        self.get("/v1/progress")?.each("progress", ProgressOf::read)
    }

    /// What the server tells of itself in numbers.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn metrics(&self) -> Result<Metrics, ClientError> {
        let (_, body) = self.ask_bytes(&Request::new(Method::Get, "/metrics"), Duration::ZERO)?;
        Metrics::parse(&body)
    }

    /// Makes an execution stop, which may take it a moment. Where is it now? One that has ended is
    /// left as it is.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn cancel(&self, execution: ExecutionId) -> Result<State, ClientError> {
        let request = Request::new(Method::Delete, format!("/v1/executions/{execution}"));
        let (_, value) = self.ask(&request, Duration::ZERO)?;
        documents::state_of(value)
    }

    /// How an execution ended and what it gave; waits for its end, up to `wait` or
    /// [`limits::CLIENT_RESULT_WAIT_S_MAX`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn result(&self, execution: ExecutionId, wait: Duration) -> Result<Awaited, ClientError> {
        let wait_s = wait.as_millis().div_ceil(1_000);
        let wait_s = wait_s.min(limits::CLIENT_RESULT_WAIT_S_MAX.into()) as u64;
        let target = format!("/v1/executions/{execution}/result?wait_s={wait_s}");
        let request = Request::new(Method::Get, target);
        let (status, value) = self.ask(&request, Duration::from_secs(wait_s))?;
        Awaited::read(answer(value)?, status == HttpStatus::OK)
    }

    /// Says that a subscriber has dealt with everything up to chunk `seq`. A [`Stream`] under
    /// `block` does that by itself.
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
        self.ask(&Request::new(Method::Post, target).with_body(&body), Duration::ZERO)?;
        Ok(())
    }

    /// Lets a subscriber go.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn unsubscribe(&self, execution: ExecutionId, subscriber: &str) -> Result<(), ClientError> {
        let target = subscriber_path(execution, subscriber);
        self.ask(&Request::new(Method::Delete, target), Duration::ZERO)?;
        Ok(())
    }

    fn get(&self, target: &str) -> Result<Fields, ClientError> {
        let (_, value) = self.ask(&Request::new(Method::Get, target), Duration::ZERO)?;
        answer(value)
    }

    /// Asks for an answer in JSON, which the server may take `wait` longer for than usual. `null`
    /// if it is empty.
    fn ask(&self, request: &Request, wait: Duration) -> Result<(HttpStatus, Value), ClientError> {
        let (status, body) = self.ask_bytes(request, wait)?;
        if body.is_empty() {
            return Ok((status, Value::Null));
        }
        match serde_json::from_slice(&body) {
            Ok(value) => Ok((status, value)),
            Err(error) => Err(ClientError::protocol(format!("the answer is not JSON: {error}"))),
        }
    }

    /// Asks for an answer of any kind.
    fn ask_bytes(
        &self,
        request: &Request,
        wait: Duration,
    ) -> Result<(HttpStatus, Vec<u8>), ClientError> {
        let patience = Patience::for_answer(limits::CLIENT_ANSWER_TIMEOUT + wait);
        let bytes = self.spell(request, true);
        let idle = self.idle().take().filter(|_| request.is_repeatable());
        let asked = match idle.map(|idle| self.ask_on(idle, request, &bytes, patience)) {
            // The server has closed it meanwhile: it takes a new one.
            None | Some(Err(Unasked { is_answered: false, .. })) => {
                self.ask_on(self.connect()?, request, &bytes, patience)
            }
            Some(asked) => asked,
        };
        let (head, body) = asked.map_err(|unasked| unasked.error)?;
        match head.status.is_success() {
            true => Ok((head.status, body)),
            false => Err(ClientError::Refused(refused(&head, &body))),
        }
    }

    /// Asks on a connection, and keeps it for the next request if that may be.
    fn ask_on(
        &self,
        mut connection: Connection,
        request: &Request,
        bytes: &[u8],
        patience: Patience,
    ) -> Result<(Head, Vec<u8>), Unasked> {
        let head = connection.ask(request.method, bytes, patience);
        match head.and_then(|head| Ok((head, connection.body(patience)?))) {
            Ok((head, body)) => {
                if head.keeps_alive && connection.is_clean() {
                    *self.idle() = Some(connection);
                }
                Ok((head, body))
            }
            Err(error) => {
                let is_closed = matches!(error, ClientError::Cut(Cut::Closed | Cut::Failed(_)));
                let is_answered = !is_closed || connection.is_answered();
                Err(Unasked { is_answered, error })
            }
        }
    }

    /// Opens a stream: a connection of which the head is read; `None` if there is nothing to come.
    fn open(
        &self,
        request: &Request,
        format: StreamFormat,
    ) -> Result<Option<Connection>, ClientError> {
        let patience = Patience::for_answer(limits::CLIENT_ANSWER_TIMEOUT);
        let mut connection = self.connect()?;
        let bytes = self.spell(request, false);
        let head = connection.ask(request.method, &bytes, patience)?;
        match head.status {
            HttpStatus::OK if is_media_type(&head.media_type, format.media_type()) => {
                Ok(Some(connection))
            }
            HttpStatus::NO_CONTENT => Ok(None),
            status if status.is_success() => Err(ClientError::protocol(format!(
                "the answer is no {}, but {} {}",
                format.media_type(),
                status.code(),
                printable(&head.media_type)
            ))),
            _ => {
                let body = connection.body(patience)?;
                Err(ClientError::Refused(refused(&head, &body)))
            }
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Option<Connection>> {
        self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Client({})", self.shared.address)
    }
}

/// Why a connection gave no answer.
struct Unasked {
    /// It was not just closed before anything came.
    is_answered: bool,
    error: ClientError,
}

fn subscriber_path(execution: ExecutionId, subscriber: &str) -> String {
    format!("/v1/executions/{execution}/subscribers/{}", path_piece(subscriber))
}

/// What a response without success says; a proxy's says less.
fn refused(head: &Head, body: &[u8]) -> Refused {
    let (status, retry_after) = (head.status, head.retry_after);
    let said = || -> Result<Refused, ClientError> {
        let mut error = Fields::parse("the error", body)?.object("error")?;
        Ok(Refused {
            status,
            code: printable(&error.text("code")?),
            message: printable(&error.text("message")?),
            field: error.text_if("field")?.map(|field| printable(&field)),
            limit: error.number_if("limit")?,
            retry_after,
        })
    };
    said().unwrap_or_else(|_| Refused {
        status,
        code: String::new(),
        message: String::new(),
        field: None,
        limit: None,
        retry_after,
    })
}
