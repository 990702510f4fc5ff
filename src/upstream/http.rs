//! An upstream over HTTP. Each request is an exchange of its own. Its answer is one message or a
//! stream of messages.
//!
//! In the handshake era a stream may break before its answer, and is resumed after its last event.
//! In the stateless era such a request is lost. The server reports changes of its tools on another
//! stream, which a thread of its own follows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::Value;

use super::link::ConnectionEvents;
use super::log::UpstreamLog;
use super::spec::Key;
use super::transport::{RequestError, Transport};
use crate::base::Instant;
use crate::client::ClientError;
use crate::client::exchange::{Exchange, Header, ServerUrl};
use crate::limits;
use crate::mcp::Era;
use crate::mcp::upstream::{
    CallNotification, Dialect, Exchanges, ServerMessage, UnsentRequest, shown,
};
use crate::reactor::Clock;
use crate::server::{UpstreamCount, UpstreamMeter};
use crate::tool::Stopped;
use crate::trace::Level;
use crate::wire::http1::Method;
use crate::wire::jsonrpc::ErrorObject;
use crate::wire::sse;

/// A server at a URL.
pub(super) struct HttpUpstream {
    server: ServerUrl,
    key: Option<Key>,
    meter: UpstreamMeter,
    log: Arc<UpstreamLog>,
    events: Arc<dyn ConnectionEvents>,
    state: Mutex<HttpUpstreamState>,
}

#[derive(Default)]
struct HttpUpstreamState {
    /// The version header of every message, once a version is agreed.
    version: Option<Header>,
    is_handshake: bool,
    session: Option<String>,
    next_id: u64,
    /// Closes the stream of notifications.
    stop_listening: Option<StopExchange>,
    is_ended: bool,
}

/// A function that ends an exchange from another thread.
pub(super) type StopExchange = Box<dyn Fn() + Send>;

/// The caller of an exchange.
pub(super) trait ExchangeHandler {
    /// Called when an exchange has begun. `stop` ends it.
    fn opened(&mut self, stop: StopExchange);
    /// Takes a message that comes before the answer.
    fn take(&mut self, note: CallNotification) -> Result<(), Stopped>;
    /// True if the caller does not want the answer any more.
    fn is_stopped(&self) -> bool;
}

/// The reason why no answer came.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The session has expired: the request was not handled.
    SessionGone,
    /// No connection could be made: the request was not sent.
    Unreachable(String),
    /// The server refuses such requests.
    Refused(String),
    /// The request may have been handled, but no answer came.
    Broken(String),
    /// The caller was stopped.
    Stopped,
}

impl HttpUpstream {
    /// # Errors
    /// The fault of the URL.
    pub fn new(
        url: &str,
        key: Option<Key>,
        meter: UpstreamMeter,
        log: Arc<UpstreamLog>,
        events: Arc<dyn ConnectionEvents>,
    ) -> Result<Arc<HttpUpstream>, String> {
        let server = ServerUrl::parse(url).map_err(|error| error.to_string())?;
        let state = Mutex::new(HttpUpstreamState { next_id: 1, ..HttpUpstreamState::default() });
        Ok(Arc::new(HttpUpstream { server, key, meter, log, events, state }))
    }

    fn state(&self) -> MutexGuard<'_, HttpUpstreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the agreed version.
    pub fn agree(&self, dialect: &Dialect) {
        self.meter.add(UpstreamCount::Starts, 1);
        let mut state = self.state();
        state.version = dialect.version_header();
        state.is_handshake = dialect.era() == Era::Handshake;
    }

    /// Returns an id that is unique in this session.
    pub fn new_id(&self) -> u64 {
        let mut state = self.state();
        state.next_id += 1;
        state.next_id - 1
    }

    fn headers(&self, more: &[Header]) -> Vec<Header> {
        let mut headers =
            vec![("accept".to_owned(), "application/json, text/event-stream".to_owned())];
        if let Some(key) = &self.key {
            headers.push(("authorization".to_owned(), key.bearer()));
        }
        let state = self.state();
        if let Some(session) = state.session.as_ref().filter(|_| !is_discover(more)) {
            headers.push(("mcp-session-id".to_owned(), session.clone()));
        }
        drop(state);
        headers.extend_from_slice(more);
        headers
    }

    fn open(&self) -> Result<(Exchange, StopExchange), ExchangeError> {
        let unreachable = |error: ClientError| ExchangeError::Unreachable(error.to_string());
        let exchange = Exchange::open(&self.server).map_err(unreachable)?;
        let stop: StopExchange = Box::new(exchange.stopper().map_err(unreachable)?);
        Ok((exchange, stop))
    }

    /// Sends a request, and passes everything before the answer to the handler.
    pub fn conduct(
        &self,
        request: &UnsentRequest,
        is_call: bool,
        id: u64,
        wait: Duration,
        handler: &mut dyn ExchangeHandler,
    ) -> Result<Result<Value, ErrorObject>, ExchangeError> {
        let mut body = Vec::new();
        request.write(&mut body, id);
        let mut exchanges = Exchanges::starting_at(id);
        exchanges.open((), is_call);
        let (mut exchange, stop) = self.open()?;
        handler.opened(stop);
        let had_session = self.state().session.is_some();
        self.meter.add(UpstreamCount::SentBytes, body.len() as u64);
        let headers = self.headers(&request.headers);
        let status = exchange.ask(&self.server, Method::Post, &headers, Some(&body), wait);
        let status = status.map_err(|error| broken(&error, handler))?;
        if request.method == "initialize" && status == 200 {
            self.state().session = exchange.session().map(str::to_owned);
        }
        match status {
            200 if exchange.is("text/event-stream") => {
                self.follow(exchange, exchanges, wait, handler)
            }
            404 if had_session && request.method != "server/discover" => {
                Err(ExchangeError::SessionGone)
            }
            status => self.single(&mut exchange, &mut exchanges, status, (wait, handler)),
        }
    }

    /// Reads an answer that is one message. A refusal may be one, too.
    fn single(
        &self,
        exchange: &mut Exchange,
        exchanges: &mut Exchanges<()>,
        status: u16,
        (wait, handler): (Duration, &mut dyn ExchangeHandler),
    ) -> Result<Result<Value, ErrorObject>, ExchangeError> {
        let body = exchange.body(wait, limits::UPSTREAM_MESSAGE_BYTES_MAX);
        let body = body.map_err(|error| broken(&error, handler))?;
        self.meter.add(UpstreamCount::ReceivedBytes, body.len() as u64);
        if let ServerMessage::Answer((), answer) = exchanges.on_message(&body) {
            return Ok(answer);
        }
        // The error for an unreadable request has no id.
        let said: Option<Value> = serde_json::from_slice(&body).ok();
        let message = said.as_ref().and_then(|said| said.pointer("/error/message")?.as_str());
        Err(ExchangeError::Refused(match (status, message) {
            (_, Some(message)) => {
                format!("the server replies with status {status}: {}", shown(message))
            }
            (200..=299, None) => "the server has sent an invalid reply".to_owned(),
            (401 | 403, None) => format!("the server requires a key ({status})"),
            (status, None) => format!("the server replies with status {status}"),
        }))
    }

    /// Reads an answer that is a stream, and resumes it.
    fn follow(
        &self,
        mut exchange: Exchange,
        mut exchanges: Exchanges<()>,
        wait: Duration,
        handler: &mut dyn ExchangeHandler,
    ) -> Result<Result<Value, ErrorObject>, ExchangeError> {
        let bytes_max = limits::UPSTREAM_MESSAGE_BYTES_MAX;
        let mut decoder = sse::Decoder::with_limits(bytes_max, bytes_max);
        for _ in 0..=limits::UPSTREAM_RESUMES_MAX {
            let read = self.read_stream(&mut exchange, &mut decoder, wait, |http, bytes| {
                http.on_message(&mut exchanges, bytes, handler)
            });
            let why = match read {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => "the server has closed the stream before its reply".to_owned(),
                Err(fail @ (ExchangeError::Stopped | ExchangeError::Refused(_))) => {
                    return Err(fail);
                }
                Err(ExchangeError::Broken(why) | ExchangeError::Unreachable(why)) => why,
                Err(ExchangeError::SessionGone) => {
                    unreachable!("a stream says nothing of sessions")
                }
            };
            let last_id = decoder.last_id().into_owned();
            if handler.is_stopped() {
                return Err(ExchangeError::Stopped);
            }
            if last_id.is_empty() || !self.state().is_handshake || !is_header(&last_id) {
                return Err(ExchangeError::Broken(why));
            }
            let pause = decoder.retry().unwrap_or(limits::CLIENT_RETRY_DEFAULT);
            self.pause(pause.min(limits::UPSTREAM_RESUME_MAX), handler)?;
            decoder.reconnect();
            exchange = self.resume(last_id, wait, handler)?;
        }
        Err(ExchangeError::Broken("its stream broke off too often".to_owned()))
    }

    /// Resumes a stream of the handshake era (A22).
    fn resume(
        &self,
        last_id: String,
        wait: Duration,
        handler: &mut dyn ExchangeHandler,
    ) -> Result<Exchange, ExchangeError> {
        let (mut exchange, stop) = self.open()?;
        handler.opened(stop);
        let mut more = vec![("last-event-id".to_owned(), last_id)];
        more.extend(self.state().version.clone());
        let status = exchange.ask(&self.server, Method::Get, &self.headers(&more), None, wait);
        match status.map_err(|error| broken(&error, handler))? {
            200 if exchange.is("text/event-stream") => Ok(exchange),
            status => Err(ExchangeError::Broken(format!(
                "its stream broke off, and the server replies to the reconnect with status {status}"
            ))),
        }
    }

    fn pause(&self, pause: Duration, handler: &dyn ExchangeHandler) -> Result<(), ExchangeError> {
        let until = Clock::now() + pause;
        while Clock::now() < until {
            if handler.is_stopped() {
                return Err(ExchangeError::Stopped);
            }
            std::thread::sleep(limits::UPSTREAM_LOOK.min(until.since(Clock::now())));
        }
        Ok(())
    }

    /// Reads a stream until `on_message` returns a value. `None` if the stream ends before.
    fn read_stream<T>(
        &self,
        exchange: &mut Exchange,
        decoder: &mut sse::Decoder,
        wait: Duration,
        mut on_message: impl FnMut(&HttpUpstream, &[u8]) -> Result<Option<T>, ExchangeError>,
    ) -> Result<Option<T>, ExchangeError> {
        let mut received = Vec::new();
        loop {
            received.clear();
            let goes_on = exchange.receive(wait, &mut received);
            let goes_on = goes_on.map_err(|error| ExchangeError::Broken(error.to_string()))?;
            self.meter.add(UpstreamCount::ReceivedBytes, received.len() as u64);
            let mut input = &received[..];
            loop {
                let message = decoder.read(&mut input);
                let message = message.map_err(|error| ExchangeError::Refused(error.to_string()))?;
                let Some(message) = message else { break };
                if !message.data_bytes().trim_ascii().is_empty()
                    && let Some(all) = on_message(self, message.data_bytes())?
                {
                    return Ok(Some(all));
                }
            }
            if !goes_on {
                return Ok(None);
            }
        }
    }

    /// Handles one message of a request's stream.
    fn on_message(
        &self,
        exchanges: &mut Exchanges<()>,
        bytes: &[u8],
        handler: &mut dyn ExchangeHandler,
    ) -> Result<Option<Result<Value, ErrorObject>>, ExchangeError> {
        match exchanges.on_message(bytes) {
            ServerMessage::Answer((), answer) => return Ok(Some(answer)),
            ServerMessage::Notification((), note) => {
                handler.take(note).map_err(|Stopped| ExchangeError::Stopped)?
            }
            ServerMessage::Reply(reply) => drop(self.post(&reply)), // The server asks again.
            ServerMessage::ToolsChanged => self.events.tools_changed(),
            ServerMessage::Log(_) => {}
            ServerMessage::Ignored(why) => {
                self.meter.add(UpstreamCount::Ignored, 1);
                self.log.quote(Level::Debug, "upstream_ignored", |record| {
                    record.text("why", &format!("{why:?}"));
                    let beginning = &bytes[..bytes.len().min(256)];
                    record.text("message", &shown(&String::from_utf8_lossy(beginning)));
                });
            }
        }
        Ok(None)
    }

    /// Sends a message without an answer.
    pub fn post(&self, message: &[u8]) -> Result<(), String> {
        let version = self.state().version.clone();
        let told = self.open().and_then(|(mut exchange, _)| {
            let headers = self.headers(version.as_slice());
            let wait = limits::UPSTREAM_ANSWER_DEADLINE;
            self.meter.add(UpstreamCount::SentBytes, message.len() as u64);
            let status = exchange.ask(&self.server, Method::Post, &headers, Some(message), wait);
            status.map_err(|error| ExchangeError::Broken(error.to_string()))
        });
        match told {
            Ok(200..=299) => Ok(()),
            Ok(status) => Err(format!("the server replies with status {status}")),
            Err(ExchangeError::Unreachable(why) | ExchangeError::Broken(why)) => Err(why),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    /// Follows the server's notifications on a thread of its own.
    pub fn listen(self: &Arc<HttpUpstream>, dialect: &Dialect) {
        let (http, dialect) = (Arc::downgrade(self), dialect.clone());
        let thread = std::thread::Builder::new().name("mcp-listen".to_owned());
        let spawned = thread.spawn(move || {
            let mut pause = limits::CLIENT_RETRY_DEFAULT;
            let mut is_first = true;
            while let Some(http) = Weak::upgrade(&http) {
                let began = Clock::now();
                if let Err(ExchangeError::Refused(_) | ExchangeError::SessionGone) =
                    http.listen_once(&dialect, is_first)
                {
                    return; // It sends none, which is no error.
                }
                if http.state().is_ended {
                    return;
                }
                drop(http); // No drop waits for this thread.
                if Clock::now().since(began) > limits::CLIENT_CALM {
                    pause = limits::CLIENT_RETRY_DEFAULT;
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(limits::CLIENT_RETRY_MAX);
                is_first = false;
            }
        });
        if let Err(error) = spawned {
            self.log.event(Level::Warn, "upstream_unheard", |line| {
                line.text("error", &error.to_string());
            });
        }
    }

    fn listen_once(&self, dialect: &Dialect, is_first: bool) -> Result<(), ExchangeError> {
        let wait = limits::UPSTREAM_SILENCE_MAX;
        let (mut exchange, stop) = self.open()?;
        let mut state = self.state();
        if state.is_ended {
            return Err(ExchangeError::Stopped);
        }
        state.stop_listening = Some(stop);
        drop(state);
        let id = self.new_id();
        let mut exchanges = Exchanges::starting_at(id);
        exchanges.open((), false);
        let broken = |error: ClientError| ExchangeError::Broken(error.to_string());
        let status = match dialect.era() {
            Era::Stateless => {
                let request = dialect.listen();
                let mut body = Vec::new();
                request.write(&mut body, id);
                let headers = self.headers(&request.headers);
                exchange.ask(&self.server, Method::Post, &headers, Some(&body), wait)
            }
            Era::Handshake => {
                let headers = self.headers(dialect.version_header().as_slice());
                exchange.ask(&self.server, Method::Get, &headers, None, wait)
            }
        };
        match status.map_err(broken)? {
            200 if exchange.is("text/event-stream") => {}
            status => return Err(ExchangeError::Refused(status.to_string())),
        }
        if !is_first {
            self.events.tools_changed(); // They may have changed meanwhile.
        }
        let bytes_max = limits::UPSTREAM_MESSAGE_BYTES_MAX;
        let mut decoder = sse::Decoder::with_limits(bytes_max, bytes_max);
        let mut nobody = IgnoreMessages;
        self.read_stream(&mut exchange, &mut decoder, wait, |http, bytes| {
            http.on_message(&mut exchanges, bytes, &mut nobody)
        })?;
        Ok(())
    }

    /// Closes the notifications, and deletes the session on the server.
    pub fn end(&self) {
        const LEAVE: Duration = Duration::from_secs(1);
        let mut state = self.state();
        state.is_ended = true;
        let stop = state.stop_listening.take();
        let version = state.version.clone();
        let has_session = state.session.is_some();
        drop(state);
        if let Some(stop) = stop {
            stop();
        }
        if has_session && let Ok((mut exchange, _)) = self.open() {
            let headers = self.headers(version.as_slice());
            // Without this request the server lets the session expire.
            let _ = exchange.ask(&self.server, Method::Delete, &headers, None, LEAVE);
        }
    }
}

/// A handler without a caller: it drops all messages.
struct IgnoreMessages;

impl ExchangeHandler for IgnoreMessages {
    fn opened(&mut self, _stop: StopExchange) {}

    fn take(&mut self, _note: CallNotification) -> Result<(), Stopped> {
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        false
    }
}

impl Transport for Arc<HttpUpstream> {
    fn ask(
        &self,
        request: &UnsentRequest,
        deadline: Instant,
    ) -> Result<Result<Value, ErrorObject>, RequestError> {
        let wait = deadline.since(Clock::now());
        let id = self.new_id();
        match self.conduct(request, false, id, wait, &mut IgnoreMessages) {
            Ok(answer) => Ok(answer),
            Err(ExchangeError::Unreachable(why)) => Err(RequestError::Gone(why)),
            Err(ExchangeError::SessionGone) => {
                Err(RequestError::Gone("its session is over".to_owned()))
            }
            Err(ExchangeError::Broken(_)) if deadline <= Clock::now() => Err(RequestError::Late),
            Err(ExchangeError::Refused(why) | ExchangeError::Broken(why)) => {
                Err(RequestError::Refused(why))
            }
            Err(ExchangeError::Stopped) => Err(RequestError::Late),
        }
    }

    fn notify(&self, message: Vec<u8>) -> Result<(), String> {
        self.post(&message)
    }
}

fn broken(error: &ClientError, handler: &dyn ExchangeHandler) -> ExchangeError {
    match handler.is_stopped() {
        true => ExchangeError::Stopped,
        false => ExchangeError::Broken(error.to_string()),
    }
}

fn is_discover(headers: &[Header]) -> bool {
    headers.iter().any(|(name, value)| name == "mcp-method" && value == "server/discover")
}

/// True if the text can be sent in a header.
fn is_header(text: &str) -> bool {
    text.len() <= limits::MCP_URI_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}
