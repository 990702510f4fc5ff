//! One upstream and its state: down, starting, up or ended. The first caller that needs it starts
//! it. Other callers wait for that start.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::http::HttpUpstream;
use super::log::UpstreamLog;
use super::program::{Program, ProgramCommand};
use super::spec::{UpstreamPlace, UpstreamSpec};
use super::transport::{GreetError, Transport, greet, list};
use crate::base::Instant;
use crate::limits;
use crate::mcp::Era;
use crate::mcp::upstream::{Dialect, Greeting, Offer, UnofferedTool, shown};
use crate::reactor::Clock;
use crate::server::{Log, UpstreamMeter};
use crate::trace::Level;

/// One upstream.
pub(super) struct Upstream {
    pub spec: UpstreamSpec,
    pub meter: UpstreamMeter,
    pub log: Arc<UpstreamLog>,
    state: Mutex<UpstreamState>,
    changed: Condvar,
    /// The callback for changes of its tools.
    on_change: Mutex<Option<OnChange>>,
    is_listing: Mutex<bool>,
}

/// The callback for changes of an upstream's tools. Its second argument is the former tools.
pub(super) type OnChange = Arc<dyn Fn(&Arc<Upstream>, &[Offer]) + Send + Sync>;

struct UpstreamState {
    link: LinkState,
    /// The era of the last connection.
    known: Option<Era>,
    offers: Arc<[Offer]>,
    /// Number of starts in a row without a long connection.
    failures: u32,
    /// The earliest time of the next start.
    not_before: Option<Instant>,
    up_since: Option<Instant>,
}

enum LinkState {
    Down,
    Starting,
    Connected(Arc<ConnectedUpstream>),
    /// Ended for good.
    Ended,
}

/// A connected upstream.
pub(super) struct ConnectedUpstream {
    pub dialect: Dialect,
    pub transport: UpstreamTransport,
}

/// The transport to an upstream.
#[derive(Clone)]
pub(super) enum UpstreamTransport {
    Program(Arc<Program>),
    Http(Arc<HttpUpstream>),
}

/// The events that a connection reports to its upstream.
pub(super) trait ConnectionEvents: Send + Sync {
    /// The server says that its tools have changed.
    fn tools_changed(&self);
    /// The connection has ended.
    fn is_over(&self);
}

impl Upstream {
    pub fn new(spec: UpstreamSpec, log: Log) -> Arc<Upstream> {
        let state = UpstreamState {
            link: LinkState::Down,
            known: None,
            offers: Arc::default(),
            failures: 0,
            not_before: None,
            up_since: None,
        };
        Arc::new(Upstream {
            meter: UpstreamMeter::new(&spec.name),
            log: Arc::new(UpstreamLog::new(log, &spec.name)),
            spec,
            state: Mutex::new(state),
            changed: Condvar::new(),
            on_change: Mutex::default(),
            is_listing: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, UpstreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tools of the upstream, under the names that they have here.
    pub fn offers(&self) -> Arc<[Offer]> {
        Arc::clone(&self.state().offers)
    }

    /// Sets the callback for changes of its tools.
    pub fn set_on_change(&self, on_change: OnChange) {
        *self.on_change.lock().unwrap_or_else(PoisonError::into_inner) = Some(on_change);
    }

    /// Waits until the upstream is connected or the caller is stopped. Starts the upstream if
    /// necessary.
    ///
    /// # Errors
    /// The reason why it is not connected.
    pub fn ready(
        self: &Arc<Upstream>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Arc<ConnectedUpstream>, String> {
        const LOOK: Duration = Duration::from_millis(20);
        let mut state = self.state();
        loop {
            if is_stopped() {
                return Err("it was stopped before it started".to_owned());
            }
            let wait = match &state.link {
                LinkState::Connected(ready) => return Ok(Arc::clone(ready)),
                LinkState::Ended => return Err("its server was stopped".to_owned()),
                LinkState::Starting => LOOK,
                LinkState::Down => {
                    let now = Clock::now();
                    match state.not_before.filter(|at| *at > now) {
                        Some(at) => at.since(now).min(LOOK),
                        None => {
                            state.link = LinkState::Starting;
                            break;
                        }
                    }
                }
            };
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let known = state.known;
        drop(state);
        let started = self.start(known);
        self.take_start(started)
    }

    /// Handles the outcome of a start.
    fn take_start(
        self: &Arc<Upstream>,
        started: Result<(ConnectedUpstream, Vec<Offer>), String>,
    ) -> Result<Arc<ConnectedUpstream>, String> {
        let mut state = self.state();
        let taken = match started {
            Ok((ready, offers)) => {
                let ready = Arc::new(ready);
                if matches!(state.link, LinkState::Ended) {
                    drop(state);
                    ready.transport.end();
                    return Err("its server was stopped".to_owned());
                }
                state.known = Some(ready.dialect.era());
                state.up_since = Some(Clock::now());
                // It may have ended already, before the link was up to record that.
                state.link = match &ready.transport {
                    UpstreamTransport::Program(program) if program.is_over() => LinkState::Down,
                    _ => LinkState::Connected(Arc::clone(&ready)),
                };
                if matches!(state.link, LinkState::Down) {
                    state.back_off();
                }
                drop(state);
                self.take_offers(offers);
                Ok(ready)
            }
            Err(text) => {
                if !matches!(state.link, LinkState::Ended) {
                    state.link = LinkState::Down;
                }
                state.back_off();
                drop(state);
                Err(text)
            }
        };
        self.changed.notify_all();
        taken
    }

    /// Starts the upstream, and gets its list of tools.
    fn start(
        self: &Arc<Upstream>,
        known: Option<Era>,
    ) -> Result<(ConnectedUpstream, Vec<Offer>), String> {
        let deadline = Clock::now() + limits::UPSTREAM_START_DEADLINE;
        let (dialect, transport) = self.connect(known, deadline)?;
        let listed = list(&*transport.transport(), &self.spec, &dialect, deadline);
        let (offers, unoffered) = match listed {
            Ok(listed) => listed,
            Err(text) => {
                transport.end();
                return Err(text);
            }
        };
        self.log.event(Level::Info, "upstream_ready", |line| {
            line.text("server", &dialect.server);
            line.text("version", dialect.version.text());
            line.number("tools", offers.len() as u64);
        });
        self.log_unoffered(&unoffered);
        transport.listen(&dialect);
        Ok((ConnectedUpstream { dialect, transport }, offers))
    }

    fn connect(
        self: &Arc<Upstream>,
        known: Option<Era>,
        deadline: Instant,
    ) -> Result<(Dialect, UpstreamTransport), String> {
        match &self.spec.place {
            UpstreamPlace::Url { url, key } => {
                let events = self.events();
                let (meter, log) = (self.meter.clone(), Arc::clone(&self.log));
                let http = HttpUpstream::new(url, key.clone(), meter, log, events)?;
                let (greeting, request) = Greeting::begin(known);
                let dialect =
                    greet(&http, greeting, request, deadline).map_err(GreetError::text)?;
                http.agree(&dialect);
                Ok((dialect, UpstreamTransport::Http(http)))
            }
            UpstreamPlace::Program { .. } => {
                let program = self.spawn()?;
                let (greeting, request) = Greeting::begin(known);
                match greet(&program, greeting, request, deadline) {
                    Ok(dialect) => Ok((dialect, UpstreamTransport::Program(program))),
                    // Some programs end on an unknown request: try again without it.
                    Err(GreetError::Upset(_)) => {
                        program.end();
                        let program = self.spawn()?;
                        let (greeting, request) = Greeting::begin(Some(Era::Handshake));
                        match greet(&program, greeting, request, deadline) {
                            Ok(dialect) => Ok((dialect, UpstreamTransport::Program(program))),
                            Err(error) => {
                                program.end();
                                Err(error.text())
                            }
                        }
                    }
                    Err(error) => {
                        program.end();
                        Err(error.text())
                    }
                }
            }
        }
    }

    fn spawn(self: &Arc<Upstream>) -> Result<Arc<Program>, String> {
        let UpstreamPlace::Program { words, variables, environment } = &self.spec.place else {
            unreachable!("the caller has looked")
        };
        let start = ProgramCommand { words, variables, environment };
        let (meter, log) = (self.meter.clone(), Arc::clone(&self.log));
        let spawned = Program::spawn(&start, meter, log, self.events());
        spawned.map_err(|error| format!("`{}` cannot be started: {error}", shown(&words[0])))
    }

    fn events(self: &Arc<Upstream>) -> Arc<dyn ConnectionEvents> {
        Arc::new(WeakReporter(Arc::downgrade(self)))
    }

    fn log_unoffered(&self, unoffered: &[UnofferedTool]) {
        for UnofferedTool { name, reason } in unoffered {
            self.log.quote(Level::Warn, "upstream_tool_left_out", |line| {
                line.text("tool", name);
                line.text("reason", reason);
            });
        }
    }

    /// Sets its tools, and reports the change if they differ.
    fn take_offers(self: &Arc<Upstream>, offers: Vec<Offer>) {
        let mut state = self.state();
        if *state.offers == *offers {
            return;
        }
        let before = std::mem::replace(&mut state.offers, offers.into());
        drop(state);
        let on_change = self.on_change.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(on_change) = on_change {
            on_change(self, &before);
        }
    }

    /// Drops this connection: the next call starts the upstream or greets it again.
    pub fn lose(&self, ready: &Arc<ConnectedUpstream>) {
        let mut state = self.state();
        if matches!(&state.link, LinkState::Connected(up) if Arc::ptr_eq(up, ready)) {
            state.link = LinkState::Down;
        }
    }

    fn is_over(&self) {
        let mut state = self.state();
        let is_its_own = match &state.link {
            LinkState::Connected(ready) => {
                matches!(&ready.transport, UpstreamTransport::Program(program) if program.is_over())
            }
            LinkState::Down | LinkState::Starting | LinkState::Ended => false,
        };
        if is_its_own {
            state.link = LinkState::Down;
            state.back_off();
        }
    }

    /// Gets the list of its tools again. A new thread does it, because the caller may be the
    /// reader.
    fn list_again(self: &Arc<Upstream>) {
        let mut is_listing = self.is_listing.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_listing, true) {
            return; // That thread has not asked yet.
        }
        drop(is_listing);
        let upstream = Arc::clone(self);
        let thread = std::thread::Builder::new().name("mcp-list".to_owned());
        let spawned = thread.spawn(move || {
            std::thread::sleep(limits::UPSTREAM_LOOK); // Frequent changes cause one request.
            *upstream.is_listing.lock().unwrap_or_else(PoisonError::into_inner) = false;
            let ready = match &upstream.state().link {
                LinkState::Connected(ready) => Arc::clone(ready),
                LinkState::Down | LinkState::Starting | LinkState::Ended => return,
            };
            let deadline = Clock::now() + limits::UPSTREAM_ANSWER_DEADLINE;
            let spec = &upstream.spec;
            match list(&*ready.transport.transport(), spec, &ready.dialect, deadline) {
                Ok((offers, unoffered)) => {
                    upstream.log.event(Level::Info, "upstream_tools_changed", |line| {
                        line.number("tools", offers.len() as u64);
                    });
                    upstream.log_unoffered(&unoffered);
                    upstream.take_offers(offers);
                }
                Err(text) => upstream.log.event(Level::Warn, "upstream_not_listed", |line| {
                    line.text("error", &text);
                }),
            }
        });
        if spawned.is_err() {
            *self.is_listing.lock().unwrap_or_else(PoisonError::into_inner) = false;
        }
    }

    /// Ends the upstream for good.
    pub fn end(&self) {
        let link = std::mem::replace(&mut self.state().link, LinkState::Ended);
        self.changed.notify_all();
        if let LinkState::Connected(ready) = link {
            ready.transport.end();
        }
    }
}

impl UpstreamState {
    /// Delays the next start, longer after each failure.
    fn back_off(&mut self) {
        let now = Clock::now();
        if self.up_since.is_some_and(|since| now.since(since) >= limits::UPSTREAM_CALM) {
            self.failures = 0;
        }
        let wait = limits::UPSTREAM_RETRY * (1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.up_since = None;
        self.not_before = Some(now + wait.min(limits::UPSTREAM_RETRY_MAX));
    }
}

impl UpstreamTransport {
    fn transport(&self) -> Box<dyn Transport> {
        match self {
            UpstreamTransport::Program(program) => Box::new(Arc::clone(program)),
            UpstreamTransport::Http(http) => Box::new(Arc::clone(http)),
        }
    }

    /// Requests notifications of changed tools, if the server supports them.
    fn listen(&self, dialect: &Dialect) {
        if !dialect.notifies_changes {
            return;
        }
        match self {
            UpstreamTransport::Program(program) if dialect.era() == Era::Stateless => {
                let inbox = Arc::default();
                program.begin(&inbox, false, |_| dialect.listen());
            }
            UpstreamTransport::Program(_) => {} // It sends them unasked.
            UpstreamTransport::Http(http) => http.listen(dialect),
        }
    }

    fn end(&self) {
        match self {
            UpstreamTransport::Program(program) => program.end(),
            UpstreamTransport::Http(http) => http.end(),
        }
    }
}

/// A reporter that does not keep its upstream alive.
struct WeakReporter(Weak<Upstream>);

impl ConnectionEvents for WeakReporter {
    fn tools_changed(&self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.list_again();
        }
    }

    fn is_over(&self) {
        if let Some(upstream) = self.0.upgrade() {
            upstream.is_over();
            upstream.changed.notify_all();
        }
    }
}
