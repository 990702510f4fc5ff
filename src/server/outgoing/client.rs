//! The state machine: exchanges, and the connections that carry them.
//!
//! Events of sockets and timers change these tables at once. Calls of the reactor are queued as
//! [`Act`]s. [`Outgoing::settle`] makes them when no bytes of the reactor are borrowed.
//!
//! Invariants ([`Outgoing::audit`]):
//! - O1: a connection stands at its index of the reactor. A connection that serves an exchange is
//!   known to that exchange, and the other way round.
//! - O2: kept connections are those in the lists of their sites, and each has a timer.
//! - O3: an exchange has a timer until its end is known, and no connection from then on.
//! - O4: each exchange that has an event to report stands in `news` once.

use std::collections::VecDeque;

use crate::agent::{NetFault, NetFaultKind};
use crate::base::{Handle, Instant, Pool};
use crate::engine::wheel::Wheel;
use crate::limits;
use crate::reactor::{
    ConnectAddress, ConnectError, ConnectionId, IoError, Reactor, SocketEvent, Waker,
};
use crate::server::outgoing::config::OutgoingConfig;
use crate::server::outgoing::exchange::{Exchange, Spare, Stage};
use crate::server::outgoing::line::{Doing, Line};
use crate::server::outgoing::origin::Origin;
use crate::server::outgoing::resolve::{Found, Resolver};
use crate::server::outgoing::tls::{ClientTls, Trusted};
use crate::server::outgoing::{
    ASKERS, Asker, Belongs, Deadlines, ExchangeId, ResponseEvent, Target,
};
use crate::trace::Counters;
use crate::wire::subscriptions::Reach;

/// A call that the owner makes on the reactor.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) enum Act {
    Dial(ExchangeId),
    Send(ConnectionId),
    Receive(ConnectionId, bool),
    Close(ConnectionId),
}

#[derive(Clone, Copy, Debug)]
enum Timer {
    Exchange(ExchangeId),
    /// The timer of a connection that is kept or drained.
    Line(ConnectionId),
}

/// The certificates that are trusted.
enum Trust {
    Unknown,
    AskedFor,
    Known(Trusted),
}

/// The exchanges and connections of a shard. See the module's text.
pub(in crate::server) struct Outgoing {
    resolver: Resolver,
    /// Number of questions that the resolver has not answered.
    question_count: u32,
    trust: Trust,
    /// The exchanges that wait for the certificates. Some may have been dropped.
    waiting_for_trust: Vec<ExchangeId>,
    pub(in crate::server::outgoing) sites: Pool<Origin>,
    pub(in crate::server::outgoing) exchanges: Pool<Exchange>,
    /// The connections, by their indices in the reactor.
    pub(in crate::server::outgoing) lines: Vec<Option<Box<Line>>>,
    pub(in crate::server::outgoing) kept_count: usize,
    pub(in crate::server::outgoing) drained_count: usize,
    timers: Wheel<Timer>,
    /// The exchanges that have an event to report, for each part of the server.
    news: [VecDeque<ExchangeId>; ASKERS],
    /// The failures of exchanges for which no place was free.
    refused: [VecDeque<(ExchangeId, NetFault)>; ASKERS],
    refused_count: u32,
    pub(in crate::server::outgoing) acts: VecDeque<Act>,
    /// Scratch space for decrypted bytes. Empty outside of `on_received`.
    pub(in crate::server::outgoing) opened: Vec<u8>,
    pub(in crate::server::outgoing) spare: Spare,
    pub(in crate::server::outgoing) counters: Counters,
}

impl Outgoing {
    /// Returns the tables for a shard with this limit of executions.
    pub fn new(
        config: &OutgoingConfig,
        executions_max: u32,
        waker: Waker,
        now: Instant,
    ) -> Outgoing {
        #[cfg(feature = "tls")]
        let trusted = config.roots.as_ref().map(crate::server::outgoing::tls::Roots::trusted);
        #[cfg(not(feature = "tls"))]
        let trusted = None;
        let exchanges_max = executions_max + limits::MODEL_EXCHANGES_SPARE;
        let others_max = limits::MODEL_KEPT_MAX + limits::MODEL_DRAINED_MAX;
        let timers_max = exchanges_max + others_max as u32;
        Outgoing {
            resolver: Resolver::new(config, waker),
            question_count: 0,
            trust: trusted.map_or(Trust::Unknown, Trust::Known),
            waiting_for_trust: Vec::new(),
            sites: Pool::new(limits::MODEL_SITES_MAX),
            exchanges: Pool::new(exchanges_max),
            lines: Vec::new(),
            kept_count: 0,
            drained_count: 0,
            timers: Wheel::new(timers_max, now),
            news: Default::default(),
            refused: Default::default(),
            refused_count: 0,
            acts: VecDeque::new(),
            opened: Vec::new(),
            spare: Spare::default(),
            counters: Counters::default(),
        }
    }

    pub(in crate::server) fn line(&mut self, id: ConnectionId) -> Option<&mut Line> {
        let line = self.lines.get_mut(id.0.index as usize)?.as_deref_mut()?;
        (line.id == id).then_some(line)
    }

    pub(in crate::server) fn exchange(&mut self, id: ExchangeId) -> Option<&mut Exchange> {
        self.exchanges.get_mut(id.0)
    }

    /// Starts an exchange. Failures are reported by [`Outgoing::poll_response`].
    pub fn ask(
        &mut self,
        (to, reach): (&Target, &Reach),
        request: Vec<u8>,
        deadlines: Deadlines,
        (asker, now): (Asker, Instant),
    ) -> ExchangeId {
        self.counters.model_exchanges += 1;
        let begun = self.site_of(to, reach).and_then(|site| {
            let exchange = Exchange::new((site, asker), request, deadlines, now);
            Some((site, ExchangeId(self.exchanges.insert(exchange).ok()?)))
        });
        let Some((site, id)) = begun else { return self.refuse(to, asker) };
        self.sites.get_mut(site).expect("just found").user_count += 1;
        if !self.use_kept(id, now) {
            self.locate(id, now);
        }
        id
    }

    /// Queues the failure of an exchange that has no place, under an id that nothing else has.
    fn refuse(&mut self, to: &Target, asker: Asker) -> ExchangeId {
        self.refused_count = self.refused_count.wrapping_add(1);
        let id = ExchangeId(Handle { index: u32::MAX, generation: self.refused_count });
        let text = format!("{to}: this shard has too many exchanges under way");
        let kind = NetFaultKind::Exhausted;
        let fault = NetFault { kind, text, was_sent: false, was_received: false };
        self.refused[asker as usize].push_back((id, fault));
        self.counters.model_exchanges_failed += 1;
        id
    }

    fn site_of(&mut self, to: &Target, reach: &Reach) -> Option<Handle> {
        let is_it = |site: &Origin| site.target == *to && site.reach == *reach;
        let known = self.sites.iter().find(|(_, site)| is_it(site));
        if let Some((handle, _)) = known {
            return Some(handle);
        }
        if self.sites.count() == self.sites.capacity() {
            let is_unused = |site: &Origin| site.user_count == 0 && !site.is_asked_for;
            let (unused, _) = self.sites.iter().find(|(_, site)| is_unused(site))?;
            self.sites.remove(unused);
        }
        self.sites.insert(Origin::new(to.clone(), reach.clone())).ok()
    }

    /// Gives an exchange the most recently used connection that is kept, if any.
    fn use_kept(&mut self, id: ExchangeId, now: Instant) -> bool {
        let exchange = self.exchanges.get_mut(id.0).expect("it has just begun");
        let site = self.sites.get_mut(exchange.site).expect("it has users");
        let Some(connection) = site.kept.pop() else { return false };
        self.kept_count -= 1;
        let line = self.lines[connection.0.index as usize].as_deref_mut();
        let line = line.expect("a kept connection exists"); // O2
        if let Some(timer) = line.timer.take() {
            self.timers.cancel(timer);
        }
        line.was_used = true;
        line.has_answered = false;
        line.is_sent = false;
        line.sent_bytes = 0;
        self.counters.model_connections_reused += 1;
        self.carry(connection, id, now);
        true
    }

    /// Makes a connection carry an exchange.
    pub(in crate::server) fn carry(
        &mut self,
        connection: ConnectionId,
        id: ExchangeId,
        now: Instant,
    ) {
        let exchange = self.exchanges.get_mut(id.0).expect("it has a connection");
        exchange.stage = Stage::Asking;
        exchange.stage_at = now;
        exchange.line = Some(connection);
        let (method, is_reading) = (exchange.method, exchange.is_reading);
        let line = self.line(connection).expect("it carries");
        line.doing = Doing::Carrying(id);
        line.reader.expect(method);
        if !is_reading {
            self.acts.push_back(Act::Receive(connection, false));
        }
        self.touch(connection);
        self.arm(id);
    }

    /// Queues a send on a connection.
    pub(in crate::server) fn touch(&mut self, connection: ConnectionId) {
        let Some(line) = self.line(connection) else { return };
        if !std::mem::replace(&mut line.is_touched, true) {
            self.acts.push_back(Act::Send(connection));
        }
    }

    /// Finds the server's address and the trusted certificates, then dials.
    pub(in crate::server) fn locate(&mut self, id: ExchangeId, now: Instant) {
        let exchange = self.exchanges.get_mut(id.0).expect("the exchange exists");
        let handle = exchange.site;
        let site = self.sites.get_mut(handle).expect("it has users");
        exchange.stage = Stage::Resolving;
        let is_trust_missing = site.target.is_tls && !matches!(self.trust, Trust::Known(_));
        if is_trust_missing {
            self.waiting_for_trust.push(id);
            if matches!(self.trust, Trust::Unknown) {
                self.trust = Trust::AskedFor;
                self.question_count += 1;
                self.resolver.ask_whom_to_trust();
            }
        } else if let Some(addresses) = site.addresses(now) {
            exchange.addresses = addresses;
            exchange.tried_count = 0;
            exchange.stage = Stage::Connecting;
            self.acts.push_back(Act::Dial(id));
        } else {
            site.waiting.push(id);
            if !std::mem::replace(&mut site.is_asked_for, true) {
                self.question_count += 1;
                self.resolver.ask(handle, &site.target.host, site.target.port);
            }
        }
        self.arm(id);
    }

    fn on_found(&mut self, found: Found, now: Instant) {
        self.question_count -= 1;
        let (waiting, fault) = match found {
            Found::Trusted(result) => {
                let fault = result.as_ref().err().cloned();
                self.trust = result.map_or(Trust::Unknown, Trust::Known);
                let waiting = std::mem::take(&mut self.waiting_for_trust);
                (waiting, fault.map(|text| (NetFaultKind::Tls, text)))
            }
            Found::Addresses { site, result } => {
                let site = self.sites.get_mut(site).expect("a site with an open question stays");
                site.is_asked_for = false;
                let reach = &site.reach;
                let result = result.and_then(|mut all| {
                    all.retain(|address| reach.allows(address.ip()));
                    match all.is_empty() {
                        true => Err("it has no address that may be used".to_owned()),
                        false => Ok(all),
                    }
                });
                let fault = result.as_ref().err().cloned();
                let until = now + limits::MODEL_ADDRESSES_KEPT;
                site.addresses = result.ok().map(|all| (all.into(), until));
                self.counters.model_resolves_failed += u64::from(fault.is_some());
                let waiting = std::mem::take(&mut site.waiting);
                (waiting, fault.map(|text| (NetFaultKind::Resolve, text)))
            }
        };
        for id in waiting {
            let is_waiting = |exchange: &mut Exchange| exchange.stage == Stage::Resolving;
            match &fault {
                _ if !self.exchange(id).is_some_and(is_waiting) => {} // Dropped or failed.
                Some((kind, text)) => self.fail(id, *kind, text),
                None => self.locate(id, now),
            }
        }
    }

    /// Connects to the next address. Fails the exchange if none is left and no attempt is under
    /// way.
    fn dial(&mut self, id: ExchangeId, reactor: &mut impl Reactor, now: Instant) {
        let Some(exchange) = self.exchanges.get_mut(id.0) else { return };
        if exchange.stage != Stage::Connecting || exchange.line.is_some() {
            return;
        }
        exchange.stagger_at = None;
        let mut kind = NetFaultKind::Connect;
        while let Some(address) = exchange.addresses.get(exchange.tried_count) {
            exchange.tried_count += 1;
            match reactor.connect(&ConnectAddress::Tcp(*address)) {
                Ok(connection) => {
                    exchange.dials.push(connection);
                    let has_more = exchange.tried_count < exchange.addresses.len();
                    exchange.stagger_at = has_more.then(|| now + limits::MODEL_CONNECT_STAGGER);
                    let site = exchange.site;
                    self.add_line(Line::new(connection, site, id));
                    self.arm(id);
                    return;
                }
                Err(error) => {
                    self.counters.model_connections_failed += 1;
                    let is_full = matches!(error, ConnectError::TooMany { .. });
                    exchange.last_error = Some(error.to_string());
                    kind = NetFaultKind::Exhausted;
                    if is_full {
                        break;
                    }
                }
            }
        }
        if exchange.dials.is_empty() {
            let text = exchange.last_error.take();
            self.fail(id, kind, text.as_deref().unwrap_or("it has no address"));
        }
    }

    fn add_line(&mut self, line: Line) {
        let index = line.id.0.index as usize;
        if index >= self.lines.len() {
            self.lines.resize_with(index + 1, || None);
        }
        assert!(self.lines[index].is_none()); // O1
        self.sites.get_mut(line.site).expect("it has users").user_count += 1;
        self.lines[index] = Some(Box::new(line));
    }

    /// Closes a connection and forgets it.
    pub(in crate::server) fn remove_line(&mut self, connection: ConnectionId) {
        if self.line(connection).is_none() {
            return;
        }
        let line = self.lines[connection.0.index as usize].take().expect("it is there");
        if let Some(timer) = line.timer {
            self.timers.cancel(timer);
        }
        let site = self.sites.get_mut(line.site).expect("it has users");
        site.user_count -= 1;
        match line.doing {
            Doing::Kept => {
                site.kept.retain(|kept| *kept != connection);
                self.kept_count -= 1;
            }
            Doing::Draining => self.drained_count -= 1,
            Doing::Dialling(_) | Doing::Shaking(_) | Doing::Carrying(_) => {}
        }
        self.acts.push_back(Act::Close(connection));
    }

    /// Handles an event of a socket, if the socket is one of these connections.
    pub fn hear(&mut self, event: &SocketEvent<'_>, now: Instant) -> Belongs {
        let connection = match event {
            SocketEvent::Connected { connection, .. }
            | SocketEvent::Received { connection, .. }
            | SocketEvent::Ended { connection, .. }
            | SocketEvent::Writable { connection } => *connection,
            SocketEvent::Accepted { .. } | SocketEvent::Released { .. } => {
                return Belongs::Elsewhere;
            }
        };
        let Some(line) = self.line(connection) else { return Belongs::Elsewhere };
        match event {
            SocketEvent::Connected { .. } => self.on_connected(connection, now),
            SocketEvent::Received { bytes, .. } => self.on_received(connection, bytes, now),
            SocketEvent::Ended { error, .. } => self.on_ended(connection, *error, now),
            _ => {
                line.is_blocked = false;
                self.touch(connection);
            }
        }
        Belongs::Here
    }

    fn on_connected(&mut self, connection: ConnectionId, now: Instant) {
        let line = self.line(connection).expect("it was just there");
        let Doing::Dialling(id) = line.doing else { unreachable!("a connection is made once") };
        let exchange = self.exchanges.get_mut(id.0).expect("an exchange outlives its connections");
        exchange.stagger_at = None;
        exchange.line = Some(connection);
        let target = &self.sites.get(exchange.site).expect("it has users").target;
        let session = match &self.trust {
            Trust::Known(trusted) if target.is_tls => Some(ClientTls::new(trusted, &target.host)),
            _ => None,
        };
        for other in std::mem::take(&mut exchange.dials) {
            if other != connection {
                self.remove_line(other);
            }
        }
        match session {
            None => {
                self.counters.model_connections_opened += 1;
                self.carry(connection, id, now);
            }
            Some(Ok(session)) => {
                let line = self.line(connection).expect("it was just there");
                line.session = Some(session);
                line.doing = Doing::Shaking(id);
                self.touch(connection);
            }
            Some(Err(text)) => self.fail(id, NetFaultKind::Tls, &text),
        }
    }

    /// Handles a connection attempt that has failed.
    pub(in crate::server) fn on_refused(
        &mut self,
        connection: ConnectionId,
        id: ExchangeId,
        error: IoError,
    ) {
        self.counters.model_connections_failed += 1;
        self.remove_line(connection);
        let exchange = self.exchanges.get_mut(id.0).expect("an exchange outlives its connections");
        exchange.dials.retain(|dial| *dial != connection);
        exchange.last_error = Some(error.to_string());
        self.acts.push_back(Act::Dial(id)); // Tries the next address or fails the exchange.
    }

    /// Ends an exchange with a failure.
    pub(in crate::server) fn fail(&mut self, id: ExchangeId, kind: NetFaultKind, text: &str) {
        self.counters.model_exchanges_failed += 1;
        let exchange = self.exchanges.get_mut(id.0).expect("the exchange exists");
        let target = &self.sites.get(exchange.site).expect("it has users").target;
        let text = format!("{target}: {text}");
        let (was_sent, was_received) = (exchange.was_sent, exchange.was_received);
        self.end(id, Err(NetFault { kind, text, was_sent, was_received }));
    }

    /// Ends an exchange and closes its connection, if it still has one.
    pub(in crate::server) fn end(&mut self, id: ExchangeId, end: Result<(), NetFault>) {
        let exchange = self.exchanges.get_mut(id.0).expect("the exchange exists");
        exchange.end = Some(end);
        exchange.stage = Stage::Over;
        exchange.request = Vec::new();
        self.let_go(id);
        self.list(id);
    }

    /// Takes the timer and the connections from an exchange.
    fn let_go(&mut self, id: ExchangeId) {
        let exchange = self.exchanges.get_mut(id.0).expect("the exchange exists");
        exchange.stagger_at = None;
        let timer = exchange.timer.take();
        let dials = std::mem::take(&mut exchange.dials);
        let connections = dials.into_iter().chain(exchange.line.take());
        if let Some(timer) = timer {
            self.timers.cancel(timer);
        }
        for connection in connections {
            self.remove_line(connection);
        }
    }

    /// Queues an exchange if it has an event to report.
    pub(in crate::server) fn list(&mut self, id: ExchangeId) {
        let exchange = self.exchanges.get_mut(id.0).expect("the exchange exists");
        if exchange.has_news() && !std::mem::replace(&mut exchange.is_listed, true) {
            self.news[exchange.asker as usize].push_back(id);
        }
    }

    /// Replaces the timer of an exchange.
    pub(in crate::server) fn arm(&mut self, id: ExchangeId) {
        let exchange = self.exchanges.get_mut(id.0).expect("the exchange exists");
        if let Some(timer) = exchange.timer.take() {
            self.timers.cancel(timer);
        }
        let due_at = exchange.due_at();
        if exchange.stage != Stage::Over {
            let armed = self.timers.arm(due_at, Timer::Exchange(id));
            exchange.timer = Some(armed.expect("the wheel has room for each"));
        }
    }

    /// Sets the timer of a connection that is kept or drained.
    pub(in crate::server) fn arm_line(&mut self, connection: ConnectionId, at: Instant) {
        let armed = self.timers.arm(at, Timer::Line(connection));
        let armed = armed.expect("the wheel has room for each");
        let line = self.line(connection).expect("it is there");
        if let Some(before) = line.timer.replace(armed) {
            self.timers.cancel(before);
        }
    }

    /// Returns the counters of exchanges. All others are zero.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the time of the next deadline.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Handles expired deadlines: some in this turn, the rest in the next ones.
    pub fn fire(&mut self, now: Instant) {
        for _ in 0..limits::MODEL_DEADLINES_PER_TURN {
            let Some(timer) = self.timers.pop_expired(now) else { return };
            let id = match timer {
                Timer::Line(connection) => {
                    let line = self.line(connection).expect("a closed connection has no timer");
                    line.timer = None;
                    self.remove_line(connection);
                    continue;
                }
                Timer::Exchange(id) => id,
            };
            let exchange = self.exchanges.get_mut(id.0).expect("a removed exchange has no timer");
            exchange.timer = None;
            if let Some((kind, text)) = exchange.lateness(now) {
                let text = match exchange.last_error.take() {
                    Some(error) => format!("{text}: {error}"),
                    None => text,
                };
                self.fail(id, kind, &text);
                continue;
            }
            if exchange.stagger_at.is_some_and(|at| at <= now) {
                exchange.stagger_at = None;
                self.acts.push_back(Act::Dial(id));
            }
            self.arm(id);
        }
    }

    /// Makes the queued calls of the reactor and takes the resolver's answers.
    pub fn settle(&mut self, reactor: &mut impl Reactor, now: Instant) {
        loop {
            while let Some(act) = self.acts.pop_front() {
                match act {
                    Act::Dial(id) => self.dial(id, reactor, now),
                    Act::Send(connection) => self.send(connection, reactor),
                    Act::Close(connection) => reactor.close(connection),
                    Act::Receive(connection, is_receiving) => {
                        if self.line(connection).is_some() {
                            reactor.set_receiving(connection, is_receiving);
                        }
                    }
                }
            }
            if self.question_count == 0 {
                return;
            }
            let Some(found) = self.resolver.next_found() else { return };
            self.on_found(found, now);
        }
    }

    /// Returns the next event of an exchange. See [`super::poll_response`].
    pub fn poll_response(
        &mut self,
        asker: Asker,
        body: &mut Vec<u8>,
    ) -> Option<(ExchangeId, ResponseEvent)> {
        body.clear();
        let asker = asker as usize;
        if let Some((id, fault)) = self.refused[asker].pop_front() {
            return Some((id, ResponseEvent::Broken(fault)));
        }
        loop {
            let news = &mut self.news[asker];
            let id = *news.front()?;
            let Some(exchange) = self.exchanges.get_mut(id.0) else {
                news.pop_front(); // It was dropped.
                continue;
            };
            match exchange.poll_response(body) {
                Some(heard @ (ResponseEvent::End | ResponseEvent::Broken(_))) => {
                    news.pop_front();
                    self.remove_exchange(id);
                    return Some((id, heard));
                }
                Some(heard) => return Some((id, heard)),
                None => {
                    exchange.is_listed = false;
                    self.spare.give_back(std::mem::take(&mut exchange.body));
                    news.pop_front();
                }
            }
        }
    }

    fn remove_exchange(&mut self, id: ExchangeId) {
        self.let_go(id);
        let exchange = self.exchanges.remove(id.0).expect("the exchange exists");
        self.sites.get_mut(exchange.site).expect("it has users").user_count -= 1;
        self.spare.give_back(exchange.body);
    }

    /// Drops an exchange and closes its connection.
    pub fn drop_exchange(&mut self, id: ExchangeId) {
        self.refused.iter_mut().for_each(|all| all.retain(|(refused, _)| *refused != id));
        if self.exchange(id).is_some() {
            self.remove_exchange(id);
        }
    }

    /// Drops an exchange whose answer holds nothing more of interest. The rest of the answer is
    /// drained if possible, so that the connection can be kept.
    pub fn release_exchange(&mut self, id: ExchangeId, now: Instant) {
        let Some(exchange) = self.exchange(id) else { return };
        let has_head = exchange.stage == Stage::Answered;
        if let (true, Some(connection)) = (has_head, exchange.line) {
            let has_room = self.drained_count < limits::MODEL_DRAINED_MAX;
            let line = self.line(connection).expect("it carries");
            if has_room && line.keeps_alive && line.is_sent && !line.is_broken {
                line.doing = Doing::Draining;
                line.drained_bytes = 0;
                self.drained_count += 1;
                self.arm_line(connection, now + limits::MODEL_DRAIN_DEADLINE);
                self.acts.push_back(Act::Receive(connection, true));
                self.exchange(id).expect("it was just there").line = None;
            }
        }
        self.drop_exchange(id);
    }

    pub fn set_reading(&mut self, id: ExchangeId, is_reading: bool, now: Instant) {
        let Some(exchange) = self.exchange(id) else { return };
        if std::mem::replace(&mut exchange.is_reading, is_reading) == is_reading {
            return;
        }
        let has_answer = exchange.stage == Stage::Answered;
        if has_answer {
            exchange.stage_at = now; // From here on, the time is the server's again.
        }
        if let Some(connection) = exchange.line.filter(|_| exchange.is_carried()) {
            self.acts.push_back(Act::Receive(connection, is_reading));
        }
        if has_answer {
            self.arm(id);
        }
    }

    /// Closes all connections. For the end of a shard.
    pub fn close_all(&mut self) {
        let ids: Vec<ExchangeId> = self.exchanges.iter().map(|(id, _)| ExchangeId(id)).collect();
        for id in ids {
            self.drop_exchange(id);
        }
        let connections: Vec<_> = self.lines.iter().flatten().map(|line| line.id).collect();
        for connection in connections {
            self.remove_line(connection);
        }
    }

    /// Checks the invariants O1 to O4. For tests.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn audit(&self) {
        self.timers.audit();
        let (mut kept_count, mut drained_count) = (0, 0);
        for (index, line) in self.lines.iter().enumerate() {
            let Some(line) = line else { continue };
            assert_eq!(line.id.0.index as usize, index); // O1
            let site = self.sites.get(line.site).expect("it has users");
            assert_eq!(site.kept.contains(&line.id), line.doing == Doing::Kept); // O2
            kept_count += usize::from(line.doing == Doing::Kept);
            drained_count += usize::from(line.doing == Doing::Draining);
            let Some(id) = line.exchange() else {
                assert!(line.timer.is_some()); // O2
                continue;
            };
            let exchange = self.exchanges.get(id.0).expect("an exchange outlives its connections");
            let is_known = exchange.line == Some(line.id) || exchange.dials.contains(&line.id);
            assert!(is_known); // O1
        }
        assert_eq!((kept_count, drained_count), (self.kept_count, self.drained_count));
        for (handle, exchange) in self.exchanges.iter() {
            let is_over = exchange.stage == Stage::Over;
            assert_eq!(exchange.timer.is_none(), is_over); // O3
            assert!(!is_over || exchange.line.is_none() && exchange.dials.is_empty()); // O3
            let news = &self.news[exchange.asker as usize];
            let listed = news.iter().filter(|id| id.0 == handle).count();
            assert_eq!(listed, usize::from(exchange.is_listed)); // O4
            assert!(exchange.is_listed || !exchange.has_news()); // O4
        }
        let users: u32 = self.sites.iter().map(|(_, site)| site.user_count).sum();
        let line_count = self.lines.iter().flatten().count() as u32;
        assert_eq!(users, self.exchanges.count() + line_count);
    }
}
