//! An upstream over HTTP. Each request is an exchange of its own. Its answer is one message or a
//! stream of messages.
//!
//! In the handshake era a stream may break before its answer, and is resumed after its last event.
//! In the stateless era such a request is lost. The server reports changes of its tools on another
//! stream, which a thread of its own follows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::Value;

use super::asks::{Asks, NoAnswer};
use super::link::News;
use super::say::Say;
use super::spec::Key;
use crate::base::Instant;
use crate::client::ClientError;
use crate::client::exchange::{Exchange, Header, Site};
use crate::limits;
use crate::mcp::Era;
use crate::mcp::upstream::{Asked, Dialect, Exchanges, Heard, Note, shown};
use crate::reactor::Clock;
use crate::server::{UpstreamCount, UpstreamMeter};
use crate::tool::Stopped;
use crate::trace::Level;
use crate::wire::http1::Method;
use crate::wire::jsonrpc::ErrorObject;
use crate::wire::sse;

/// A server at a URL.
pub(super) struct Web {
    site: Site,
    key: Option<Key>,
    meter: UpstreamMeter,
    say: Arc<Say>,
    news: Arc<dyn News>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The version header of every message, once a version is agreed.
    version: Option<Header>,
    is_handshake: bool,
    session: Option<String>,
    next_id: u64,
    /// Closes the stream of notifications.
    stop_listening: Option<Stop>,
    is_ended: bool,
}

/// A function that ends an exchange from another thread.
pub(super) type Stop = Box<dyn Fn() + Send>;

/// The caller of an exchange.
pub(super) trait Customer {
    /// Called when an exchange has begun. `stop` ends it.
    fn opened(&mut self, stop: Stop);
    /// Takes a message that comes before the answer.
    fn take(&mut self, note: Note) -> Result<(), Stopped>;
    /// True if the caller does not want the answer any more.
    fn is_stopped(&self) -> bool;
}

/// The reason why no answer came.
#[derive(Debug)]
pub(super) enum Fail {
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

impl Web {
    /// # Errors
    /// The fault of the URL.
    pub fn new(
        url: &str,
        key: Option<Key>,
        meter: UpstreamMeter,
        say: Arc<Say>,
        news: Arc<dyn News>,
    ) -> Result<Arc<Web>, String> {
        let site = Site::parse(url).map_err(|error| error.to_string())?;
        let state = Mutex::new(State { next_id: 1, ..State::default() });
        Ok(Arc::new(Web { site, key, meter, say, news, state }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
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

    fn open(&self) -> Result<(Exchange, Stop), Fail> {
        let unreachable = |error: ClientError| Fail::Unreachable(error.to_string());
        let exchange = Exchange::open(&self.site).map_err(unreachable)?;
        let stop: Stop = Box::new(exchange.stopper().map_err(unreachable)?);
        Ok((exchange, stop))
    }

    /// Sends a request, and passes everything before the answer to the customer.
    pub fn conduct(
        &self,
        asked: &Asked,
        is_call: bool,
        id: u64,
        wait: Duration,
        customer: &mut dyn Customer,
    ) -> Result<Result<Value, ErrorObject>, Fail> {
        let mut body = Vec::new();
        asked.write(&mut body, id);
        let mut exchanges = Exchanges::starting_at(id);
        exchanges.open((), is_call);
        let (mut exchange, stop) = self.open()?;
        customer.opened(stop);
        let had_session = self.state().session.is_some();
        self.meter.add(UpstreamCount::SentBytes, body.len() as u64);
        let headers = self.headers(&asked.headers);
        let status = exchange.ask(&self.site, Method::Post, &headers, Some(&body), wait);
        let status = status.map_err(|error| broken(&error, customer))?;
        if asked.method == "initialize" && status == 200 {
            self.state().session = exchange.session().map(str::to_owned);
        }
        match status {
            200 if exchange.is("text/event-stream") => {
                self.follow(exchange, exchanges, wait, customer)
            }
            404 if had_session && asked.method != "server/discover" => Err(Fail::SessionGone),
            status => self.single(&mut exchange, &mut exchanges, status, (wait, customer)),
        }
    }

    /// Reads an answer that is one message. A refusal may be one, too.
    fn single(
        &self,
        exchange: &mut Exchange,
        exchanges: &mut Exchanges<()>,
        status: u16,
        (wait, customer): (Duration, &mut dyn Customer),
    ) -> Result<Result<Value, ErrorObject>, Fail> {
        let body = exchange.body(wait, limits::UPSTREAM_MESSAGE_BYTES_MAX);
        let body = body.map_err(|error| broken(&error, customer))?;
        self.meter.add(UpstreamCount::ReceivedBytes, body.len() as u64);
        if let Heard::Answer((), answer) = exchanges.hear(&body) {
            return Ok(answer);
        }
        // The error for an unreadable request has no id.
        let said: Option<Value> = serde_json::from_slice(&body).ok();
        let message = said.as_ref().and_then(|said| said.pointer("/error/message")?.as_str());
        Err(Fail::Refused(match (status, message) {
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
        customer: &mut dyn Customer,
    ) -> Result<Result<Value, ErrorObject>, Fail> {
        let bytes_max = limits::UPSTREAM_MESSAGE_BYTES_MAX;
        let mut decoder = sse::Decoder::with_limits(bytes_max, bytes_max);
        for _ in 0..=limits::UPSTREAM_RESUMES_MAX {
            let read = self.read_stream(&mut exchange, &mut decoder, wait, |web, bytes| {
                web.hear(&mut exchanges, bytes, customer)
            });
            let why = match read {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => "the server has closed the stream before its reply".to_owned(),
                Err(fail @ (Fail::Stopped | Fail::Refused(_))) => return Err(fail),
                Err(Fail::Broken(why) | Fail::Unreachable(why)) => why,
                Err(Fail::SessionGone) => unreachable!("a stream says nothing of sessions"),
            };
            let last_id = decoder.last_id().into_owned();
            if customer.is_stopped() {
                return Err(Fail::Stopped);
            }
            if last_id.is_empty() || !self.state().is_handshake || !is_header(&last_id) {
                return Err(Fail::Broken(why));
            }
            let pause = decoder.retry().unwrap_or(limits::CLIENT_RETRY_DEFAULT);
            self.pause(pause.min(limits::UPSTREAM_RESUME_MAX), customer)?;
            decoder.reconnect();
            exchange = self.resume(last_id, wait, customer)?;
        }
        Err(Fail::Broken("its stream broke off too often".to_owned()))
    }

    /// Resumes a stream of the handshake era (A22).
    fn resume(
        &self,
        last_id: String,
        wait: Duration,
        customer: &mut dyn Customer,
    ) -> Result<Exchange, Fail> {
        let (mut exchange, stop) = self.open()?;
        customer.opened(stop);
        let mut more = vec![("last-event-id".to_owned(), last_id)];
        more.extend(self.state().version.clone());
        let status = exchange.ask(&self.site, Method::Get, &self.headers(&more), None, wait);
        match status.map_err(|error| broken(&error, customer))? {
            200 if exchange.is("text/event-stream") => Ok(exchange),
            status => Err(Fail::Broken(format!(
                "its stream broke off, and the server replies to the reconnect with status {status}"
            ))),
        }
    }

    fn pause(&self, pause: Duration, customer: &dyn Customer) -> Result<(), Fail> {
        let until = Clock::now() + pause;
        while Clock::now() < until {
            if customer.is_stopped() {
                return Err(Fail::Stopped);
            }
            std::thread::sleep(limits::UPSTREAM_LOOK.min(until.since(Clock::now())));
        }
        Ok(())
    }

    /// Reads a stream until `hear` returns a value. `None` if the stream ends before.
    fn read_stream<T>(
        &self,
        exchange: &mut Exchange,
        decoder: &mut sse::Decoder,
        wait: Duration,
        mut hear: impl FnMut(&Web, &[u8]) -> Result<Option<T>, Fail>,
    ) -> Result<Option<T>, Fail> {
        let mut received = Vec::new();
        loop {
            received.clear();
            let goes_on = exchange.receive(wait, &mut received);
            let goes_on = goes_on.map_err(|error| Fail::Broken(error.to_string()))?;
            self.meter.add(UpstreamCount::ReceivedBytes, received.len() as u64);
            let mut input = &received[..];
            loop {
                let message = decoder.read(&mut input);
                let message = message.map_err(|error| Fail::Refused(error.to_string()))?;
                let Some(message) = message else { break };
                if !message.data_bytes().trim_ascii().is_empty()
                    && let Some(all) = hear(self, message.data_bytes())?
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
    fn hear(
        &self,
        exchanges: &mut Exchanges<()>,
        bytes: &[u8],
        customer: &mut dyn Customer,
    ) -> Result<Option<Result<Value, ErrorObject>>, Fail> {
        match exchanges.hear(bytes) {
            Heard::Answer((), answer) => return Ok(Some(answer)),
            Heard::Note((), note) => customer.take(note).map_err(|Stopped| Fail::Stopped)?,
            Heard::Reply(reply) => drop(self.post(&reply)), // If it is lost, the server asks again.
            Heard::ToolsChanged => self.news.tools_changed(),
            Heard::Log(_) => {}
            Heard::Ignored(why) => {
                self.meter.add(UpstreamCount::Ignored, 1);
                self.say.quote(Level::Debug, "upstream_ignored", |record| {
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
            let status = exchange.ask(&self.site, Method::Post, &headers, Some(message), wait);
            status.map_err(|error| Fail::Broken(error.to_string()))
        });
        match told {
            Ok(200..=299) => Ok(()),
            Ok(status) => Err(format!("the server replies with status {status}")),
            Err(Fail::Unreachable(why) | Fail::Broken(why)) => Err(why),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    /// Follows the server's notifications on a thread of its own.
    pub fn listen(self: &Arc<Web>, dialect: &Dialect) {
        let (web, dialect) = (Arc::downgrade(self), dialect.clone());
        let thread = std::thread::Builder::new().name("mcp-listen".to_owned());
        let spawned = thread.spawn(move || {
            let mut pause = limits::CLIENT_RETRY_DEFAULT;
            let mut is_first = true;
            while let Some(web) = Weak::upgrade(&web) {
                let began = Clock::now();
                if let Err(Fail::Refused(_) | Fail::SessionGone) =
                    web.listen_once(&dialect, is_first)
                {
                    return; // It sends none, which is no error.
                }
                if web.state().is_ended {
                    return;
                }
                drop(web); // No drop waits for this thread.
                if Clock::now().since(began) > limits::CLIENT_CALM {
                    pause = limits::CLIENT_RETRY_DEFAULT;
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(limits::CLIENT_RETRY_MAX);
                is_first = false;
            }
        });
        if let Err(error) = spawned {
            self.say.event(Level::Warn, "upstream_unheard", |line| {
                line.text("error", &error.to_string());
            });
        }
    }

    fn listen_once(&self, dialect: &Dialect, is_first: bool) -> Result<(), Fail> {
        let wait = limits::UPSTREAM_SILENCE_MAX;
        let (mut exchange, stop) = self.open()?;
        let mut state = self.state();
        if state.is_ended {
            return Err(Fail::Stopped);
        }
        state.stop_listening = Some(stop);
        drop(state);
        let id = self.new_id();
        let mut exchanges = Exchanges::starting_at(id);
        exchanges.open((), false);
        let broken = |error: ClientError| Fail::Broken(error.to_string());
        let status = match dialect.era() {
            Era::Stateless => {
                let asked = dialect.listen();
                let mut body = Vec::new();
                asked.write(&mut body, id);
                let headers = self.headers(&asked.headers);
                exchange.ask(&self.site, Method::Post, &headers, Some(&body), wait)
            }
            Era::Handshake => {
                let headers = self.headers(dialect.version_header().as_slice());
                exchange.ask(&self.site, Method::Get, &headers, None, wait)
            }
        };
        match status.map_err(broken)? {
            200 if exchange.is("text/event-stream") => {}
            status => return Err(Fail::Refused(status.to_string())),
        }
        if !is_first {
            self.news.tools_changed(); // They may have changed meanwhile.
        }
        let bytes_max = limits::UPSTREAM_MESSAGE_BYTES_MAX;
        let mut decoder = sse::Decoder::with_limits(bytes_max, bytes_max);
        let mut nobody = Nobody;
        self.read_stream(&mut exchange, &mut decoder, wait, |web, bytes| {
            web.hear(&mut exchanges, bytes, &mut nobody)
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
            let _ = exchange.ask(&self.site, Method::Delete, &headers, None, LEAVE);
        }
    }
}

/// A customer without a caller: it drops all messages.
struct Nobody;

impl Customer for Nobody {
    fn opened(&mut self, _stop: Stop) {}

    fn take(&mut self, _note: Note) -> Result<(), Stopped> {
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        false
    }
}

impl Asks for Arc<Web> {
    fn ask(
        &self,
        asked: &Asked,
        deadline: Instant,
    ) -> Result<Result<Value, ErrorObject>, NoAnswer> {
        let wait = deadline.since(Clock::now());
        let id = self.new_id();
        match self.conduct(asked, false, id, wait, &mut Nobody) {
            Ok(answer) => Ok(answer),
            Err(Fail::Unreachable(why)) => Err(NoAnswer::Gone(why)),
            Err(Fail::SessionGone) => Err(NoAnswer::Gone("its session is over".to_owned())),
            Err(Fail::Broken(_)) if deadline <= Clock::now() => Err(NoAnswer::Late),
            Err(Fail::Refused(why) | Fail::Broken(why)) => Err(NoAnswer::Refused(why)),
            Err(Fail::Stopped) => Err(NoAnswer::Late),
        }
    }

    fn tell(&self, message: Vec<u8>) -> Result<(), String> {
        self.post(&message)
    }
}

fn broken(error: &ClientError, customer: &dyn Customer) -> Fail {
    match customer.is_stopped() {
        true => Fail::Stopped,
        false => Fail::Broken(error.to_string()),
    }
}

fn is_discover(headers: &[Header]) -> bool {
    headers.iter().any(|(name, value)| name == "mcp-method" && value == "server/discover")
}

/// True if the text can be sent in a header.
fn is_header(text: &str) -> bool {
    text.len() <= limits::MCP_URI_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}
