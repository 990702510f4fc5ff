//! Sessions of the handshake era: a table of fixed size with unguessable names.
//!
//! A session belongs to its principal and is invisible to others. It is idle if it has no call
//! under way, no stream of its own, and no connection of lines. Idle sessions stand in a line, the
//! longest idle first. That one is removed when its time is up, or when another session needs its
//! place.
//!
//! Invariants ([`Sessions::audit`]):
//! - M1: a name leads to the session that has it, and each session has one.
//! - M2: the line holds the idle sessions and no others.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use crate::base::{Handle, Instant, Pool, Principal};
use crate::limits;
use crate::mcp::McpSession as Machine;
use crate::reactor::ConnectionId;
use crate::server::hub::line::Line;

/// The name of a session: the index of its shard, and a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionName {
    pub shard: u8,
    pub key: u128,
}

impl fmt::Display for SessionName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:02x}{:032x}", self.shard, self.key)
    }
}

impl FromStr for SessionName {
    type Err = ();
    fn from_str(text: &str) -> Result<SessionName, ()> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 34 || !text.bytes().all(is_digit) {
            return Err(()); // A name has only one spelling.
        }
        let (shard, key) = text.split_at(2);
        Ok(SessionName {
            shard: u8::from_str_radix(shard, 16).map_err(|_| ())?,
            key: u128::from_str_radix(key, 16).map_err(|_| ())?,
        })
    }
}

/// One session.
#[derive(Debug)]
pub(in crate::server) struct Session {
    pub name: SessionName,
    pub owner: Principal,
    /// The agreed terms, and the requests that are under way.
    pub machine: Machine,
    /// The stream that it opened with GET.
    pub stream: Option<ConnectionId>,
    /// Its connection of lines.
    pub lines: Option<ConnectionId>,
    /// Number of its calls on this shard.
    pub call_count: usize,
    idle_from: Instant,
}

impl Session {
    /// Returns the connection for messages that belong to no request.
    pub fn outlet(&self) -> Option<ConnectionId> {
        self.stream.or(self.lines)
    }

    fn is_idle(&self) -> bool {
        self.call_count == 0 && self.outlet().is_none()
    }
}

/// The table of sessions. See the module's text.
#[derive(Debug)]
pub(in crate::server) struct Sessions {
    table: Pool<Box<Session>>,
    by_key: HashMap<u128, Handle>,
    idle: Line,
}

/// The table has no place, and no idle session can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct Full;

impl Sessions {
    pub fn new() -> Sessions {
        let places = limits::MCP_SESSIONS_MAX as u32;
        Sessions {
            table: Pool::new(places),
            by_key: HashMap::with_capacity(limits::MCP_SESSIONS_MAX),
            idle: Line::new(places),
        }
    }

    /// Begins a session. Returns the session that was removed for it, if any.
    pub fn open(
        &mut self,
        name: SessionName,
        owner: Principal,
        machine: Machine,
        now: Instant,
        own_max: usize,
    ) -> Result<Option<Box<Session>>, Full> {
        let own = self.table.iter().filter(|(_, session)| session.owner == owner).count();
        let gone = match own >= own_max || self.table.count() == self.table.capacity() {
            true => Some(self.close_idle(owner, own >= own_max).ok_or(Full)?),
            false => None,
        };
        let session = Session {
            name,
            owner,
            machine,
            stream: None,
            lines: None,
            call_count: 0,
            idle_from: now,
        };
        let handle = self.table.insert(Box::new(session)).map_err(|_| Full)?;
        self.by_key.insert(name.key, handle);
        self.idle.append(handle.index);
        Ok(gone)
    }

    /// Removes the session that was idle longest, of this principal or of all.
    fn close_idle(&mut self, owner: Principal, is_own: bool) -> Option<Box<Session>> {
        let is_it =
            |index: &u32| self.table.at(*index).is_some_and(|s| !is_own || s.owner == owner);
        let index = self.idle.iter().find(is_it)?;
        let name = self.table.at(index)?.name;
        self.close(name)
    }

    fn handle(&self, name: SessionName) -> Option<Handle> {
        let handle = *self.by_key.get(&name.key)?;
        (self.table.get(handle)?.name == name).then_some(handle)
    }

    /// Returns the session of this name.
    pub fn get(&mut self, name: SessionName) -> Option<&mut Session> {
        let handle = self.handle(name)?;
        self.table.get_mut(handle).map(|session| &mut **session)
    }

    /// Returns the session of this name, if it belongs to this principal.
    pub fn of(&mut self, name: SessionName, owner: Principal) -> Option<&mut Session> {
        self.get(name).filter(|session| session.owner == owner)
    }

    /// Notes that a session was used, or that its use is over.
    pub fn touch(&mut self, name: SessionName, now: Instant) {
        let Some(handle) = self.handle(name) else { return };
        let Some(session) = self.table.get_mut(handle) else { return };
        session.idle_from = now;
        match session.is_idle() {
            true => self.idle.append(handle.index),
            false => self.idle.leave(handle.index),
        }
    }

    /// Removes a session.
    pub fn close(&mut self, name: SessionName) -> Option<Box<Session>> {
        let handle = self.handle(name)?;
        self.idle.leave(handle.index);
        self.by_key.remove(&name.key);
        self.table.remove(handle)
    }

    /// Removes one session that was idle for [`limits::MCP_SESSION_IDLE`], if any.
    pub fn expire(&mut self, now: Instant) -> Option<Box<Session>> {
        if self.next_deadline().is_none_or(|deadline| deadline > now) {
            return None;
        }
        let name = self.table.at(self.idle.first()?)?.name;
        self.close(name)
    }

    /// Returns the time at which the next idle session expires.
    pub fn next_deadline(&self) -> Option<Instant> {
        let first = self.table.at(self.idle.first()?)?;
        Some(first.idle_from + limits::MCP_SESSION_IDLE)
    }

    /// Iterates over all sessions.
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.table.iter().map(|(_, session)| &**session)
    }

    /// Checks the invariants M1 and M2. For tests.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn audit(&self) {
        assert_eq!(self.by_key.len(), self.table.count() as usize);
        let mut idle_count = 0;
        for (handle, session) in self.table.iter() {
            assert_eq!(self.handle(session.name), Some(handle)); // M1
            idle_count += usize::from(session.is_idle());
        }
        let in_line: Vec<u32> = self.idle.iter().collect();
        assert_eq!(in_line.len(), idle_count); // M2
        let is_idle = |index: &u32| self.table.at(*index).is_some_and(|session| session.is_idle());
        assert!(in_line.iter().all(is_idle));
    }
}
