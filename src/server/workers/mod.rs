//! The tables of virtual tools: the tools, the workers, and the calls of each worker.
//!
//! Each principal has a [`Workshop`] of tools, workers, and calls that wait for a worker. Every
//! shard knows the tools, so that lists and checks work everywhere. Workers and calls live on one
//! shard, which follows from the principal's number.
//!
//! Invariants ([`Workers::audit`]):
//! - W1: a worker that is not connected has calls, and a deadline by which it has to reconnect.
//! - W2: a call is with one worker or waits for one, and no longer than its execution lives.
//! - W3: no worker has more than [`limits::CALLS_PER_WORKER_MAX`] calls.

mod calls;
pub(in crate::server) mod kept;
pub(in crate::server) mod open_call;
pub(in crate::server) mod virtual_tools;

use std::collections::{BTreeMap, VecDeque};

pub(in crate::server) use calls::{
    audit_calls, begin_call, deliver, end_workers, fire_worker_deadlines, forget_part, let_work,
    lose_worker, note_call_ended, refuse_part, settle_calls,
};
pub(in crate::server) use virtual_tools::{
    add_virtual_tool, change_tools, change_tools_here, is_virtual, list_virtual_tools,
    may_call_virtual, prepare_tool, tool_specs,
};

use crate::base::{ExecutionId, Instant, Principal};
use crate::limits;
use crate::reactor::ConnectionId;
use crate::server::workers::virtual_tools::VirtualTools;
use crate::stream::Outcome;

/// A time, with a number that distinguishes deadlines of the same time.
pub(in crate::server) type Deadline = (Instant, u64);

/// The workshops of all principals, and their deadlines. See the module's text.
#[derive(Debug, Default)]
pub(in crate::server) struct Workers {
    /// The tools of all principals, from the settings.
    pub(in crate::server::workers) configured: VirtualTools,
    workshops: BTreeMap<Principal, Workshop>,
    /// The parts that wait for room or behind other parts: the call, and the connection.
    pub(in crate::server::workers) parts: Vec<(ExecutionId, ConnectionId)>,
    /// Calls for which there may be room again.
    roomy: Vec<ExecutionId>,
    /// Calls that have ended. The outcome is `None` if the worker itself has reported the end.
    ended: Vec<(ExecutionId, Principal, Option<Outcome>)>,
    /// True if an entry of these three lists has to be handled, or a waiting call may find a
    /// worker.
    has_news: bool,
    /// The principals whose tools have changed.
    changed: Vec<Principal>,
    deadlines: BTreeMap<Deadline, Due>,
    deadline_count: u64,
}

/// An expired deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) enum Due {
    /// This worker did not reconnect in time.
    Back(Principal, Box<str>),
    /// This worker did not come back in time after a restart.
    Restarted(Principal, Box<str>),
    /// Parts of this call were gathered for long enough.
    Gathered(ExecutionId),
}

/// The virtual tools, workers and waiting calls of one principal.
#[derive(Debug, Default)]
pub(in crate::server) struct Workshop {
    pub tools: VirtualTools,
    workers: BTreeMap<Box<str>, Worker>,
    /// Calls that no worker has, oldest first, with the name of their tool.
    waiting: VecDeque<(ExecutionId, Box<str>)>,
}

/// A client that does work.
#[derive(Debug)]
pub(in crate::server) struct Worker {
    /// The connection that gets its calls. `None` while it is disconnected.
    pub connection: Option<ConnectionId>,
    /// The tools whose calls it takes. `None` means all.
    tools: Option<Vec<Box<str>>>,
    pub calls: Vec<ExecutionId>,
    deadline: Option<Deadline>,
}

/// The reason why a worker was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum EnterError {
    /// A worker of this name is connected.
    Present,
    /// The principal has the maximum number of workers.
    TooMany,
}

impl Workers {
    /// Returns the tools that this principal can call besides those that are built in: first those
    /// of the settings, then its own.
    pub fn tools(&self, principal: Principal) -> impl Iterator<Item = &VirtualTools> {
        let own = self.workshops.get(&principal).map(|workshop| &workshop.tools);
        [&self.configured].into_iter().chain(own)
    }

    pub fn workshop(&mut self, principal: Principal) -> &mut Workshop {
        self.workshops.entry(principal).or_default()
    }

    /// Returns the worker of this name, if it is known.
    pub fn worker(&mut self, principal: Principal, name: &str) -> Option<&mut Worker> {
        self.workshops.get_mut(&principal)?.workers.get_mut(name)
    }

    /// Checks whether a worker of this name may connect.
    pub fn may_enter(&self, principal: Principal, name: &str) -> Result<(), EnterError> {
        let Some(workshop) = self.workshops.get(&principal) else { return Ok(()) };
        match workshop.workers.get(name) {
            Some(worker) if worker.connection.is_some() => Err(EnterError::Present),
            None if workshop.workers.len() >= limits::WORKERS_PER_PRINCIPAL_MAX => {
                Err(EnterError::TooMany)
            }
            _ => Ok(()),
        }
    }

    /// Connects a worker for the first time or again. Returns its calls. The caller has checked
    /// [`Workers::may_enter`].
    pub fn enter(
        &mut self,
        principal: Principal,
        name: &str,
        tools: Option<Vec<Box<str>>>,
        connection: ConnectionId,
    ) -> Vec<ExecutionId> {
        let workshop = self.workshops.entry(principal).or_default();
        let new = || Worker { connection: None, tools: None, calls: Vec::new(), deadline: None };
        let worker = workshop.workers.entry(name.into()).or_insert_with(new);
        assert!(worker.connection.is_none());
        worker.connection = Some(connection);
        worker.tools = tools;
        if let Some(deadline) = worker.deadline.take() {
            self.deadlines.remove(&deadline);
        }
        self.has_news = true;
        worker.calls.clone()
    }

    /// Notes that the connection of a worker has ended. A worker without calls is forgotten.
    pub fn leave(&mut self, principal: Principal, name: &str, now: Instant) {
        let workshop = self.workshop(principal);
        let Some(worker) = workshop.workers.get_mut(name) else { return };
        worker.connection = None;
        if worker.calls.is_empty() {
            workshop.workers.remove(name);
            return;
        }
        let deadline = self.arm(now + limits::WORKER_GRACE, Due::Back(principal, name.into()));
        self.worker(principal, name).expect("it was just there").deadline = Some(deadline);
    }

    /// Expects a worker of an earlier process back until this time, with one of its calls.
    pub fn expect(&mut self, principal: Principal, name: &str, call: ExecutionId, until: Instant) {
        let workers = &mut self.workshop(principal).workers;
        if let Some(worker) = workers.get_mut(name) {
            return worker.calls.push(call);
        }
        let due = Due::Restarted(principal, name.into());
        let deadline = Some(self.arm(until, due));
        let worker = Worker { connection: None, tools: None, calls: vec![call], deadline };
        self.workshop(principal).workers.insert(name.into(), worker);
    }

    /// Forgets a worker that did not reconnect. Returns its calls.
    pub fn dismiss(&mut self, principal: Principal, name: &str) -> Vec<ExecutionId> {
        let worker = self.workshop(principal).workers.remove(name);
        worker.map_or(Vec::new(), |worker| {
            assert!(worker.connection.is_none());
            worker.calls
        })
    }

    /// Adds a call, which waits for a worker.
    pub fn begin(&mut self, principal: Principal, call: ExecutionId, tool: &str) {
        self.workshop(principal).waiting.push_back((call, tool.into()));
        self.has_news = true;
    }

    /// Notes that there may be room for more of this call.
    pub fn note_room(&mut self, call: ExecutionId) {
        if !self.roomy.contains(&call) {
            self.roomy.push(call);
        }
        self.has_news = true;
    }

    /// Notes that a call has ended. The outcome is `None` if its worker has reported the end.
    pub fn note_ended(&mut self, call: ExecutionId, owner: Principal, outcome: Option<Outcome>) {
        self.ended.push((call, owner, outcome));
        self.has_news = true;
    }

    /// Notes that a worker may take calls again.
    #[inline]
    pub fn note_free(&mut self) {
        self.has_news = true;
    }

    #[inline]
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Notes that the tools of a principal have changed.
    pub fn note_changed(&mut self, principal: Principal) {
        if !self.changed.contains(&principal) {
            self.changed.push(principal);
        }
    }

    /// True if the tools of a principal have changed.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns a principal whose tools have changed.
    pub fn poll_changed(&mut self) -> Option<Principal> {
        self.changed.pop()
    }

    pub fn take_ended(&mut self) -> Option<(ExecutionId, Principal, Option<Outcome>)> {
        self.ended.pop()
    }

    pub fn take_roomy(&mut self) -> Option<ExecutionId> {
        self.roomy.pop()
    }

    /// Removes a call that has ended. Returns the connection of its worker, if it has one.
    pub fn remove_call(&mut self, owner: Principal, call: ExecutionId) -> Option<ConnectionId> {
        let workshop = self.workshops.get_mut(&owner)?;
        workshop.waiting.retain(|(waiting, _)| *waiting != call);
        let mut all = workshop.workers.iter_mut();
        let (name, worker) = all.find(|(_, worker)| worker.calls.contains(&call))?;
        worker.calls.retain(|other| *other != call);
        if worker.connection.is_none() && worker.calls.is_empty() {
            let name = name.clone();
            let deadline = worker.deadline.take().expect("W1");
            workshop.workers.remove(&name);
            self.deadlines.remove(&deadline);
            return None;
        }
        worker.connection
    }

    /// Assigns the next waiting call to the connected worker with the fewest calls that can take
    /// it. `is_free` tells whether a connection can be sent more.
    pub fn assign(
        &mut self,
        mut is_free: impl FnMut(ConnectionId) -> bool,
    ) -> Option<(ExecutionId, Box<str>, ConnectionId)> {
        for workshop in self.workshops.values_mut() {
            let has_room = |worker: &Worker| {
                worker.connection.is_some() && worker.calls.len() < limits::CALLS_PER_WORKER_MAX
            };
            if !workshop.workers.values().any(has_room) {
                continue; // Its calls have to wait.
            }
            for at in 0..workshop.waiting.len() {
                let (call, tool) = &workshop.waiting[at];
                let takes = |worker: &Worker| {
                    worker.tools.as_ref().is_none_or(|tools| tools.contains(tool))
                };
                let able = workshop.workers.iter_mut().filter(|(_, worker)| {
                    let is_able = has_room(worker) && takes(worker);
                    is_able && worker.connection.is_some_and(&mut is_free)
                });
                let Some((name, worker)) = able.min_by_key(|(_, worker)| worker.calls.len()) else {
                    continue;
                };
                let connection = worker.connection.expect("it is free");
                let (call, name) = (*call, name.clone());
                worker.calls.push(call);
                workshop.waiting.remove(at);
                return Some((call, name, connection));
            }
        }
        self.has_news = false;
        None
    }

    /// Sets a deadline.
    pub fn arm(&mut self, at: Instant, due: Due) -> Deadline {
        self.deadline_count += 1;
        let deadline = (at, self.deadline_count);
        self.deadlines.insert(deadline, due);
        deadline
    }

    pub fn disarm(&mut self, deadline: Deadline) {
        self.deadlines.remove(&deadline);
    }

    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns the next deadline that has expired.
    pub fn pop_due(&mut self, now: Instant) -> Option<Due> {
        let entry = self.deadlines.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// Returns the connections of all workers.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        let workers = self.workshops.values().flat_map(|workshop| workshop.workers.values());
        workers.filter_map(|worker| worker.connection)
    }

    /// Checks every invariant. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit(&self, is_open: impl Fn(ExecutionId) -> bool) {
        let mut all: Vec<ExecutionId> = Vec::new();
        for workshop in self.workshops.values() {
            all.extend(workshop.waiting.iter().map(|(call, _)| *call));
            for worker in workshop.workers.values() {
                let is_gone = worker.connection.is_none();
                assert!(is_gone == worker.deadline.is_some()); // W1
                assert!(!is_gone || !worker.calls.is_empty());
                assert!(worker.calls.len() <= limits::CALLS_PER_WORKER_MAX); // W3
                all.extend(&worker.calls);
            }
        }
        let count = all.len();
        all.sort_unstable_by_key(|call| call.slot.index);
        all.dedup();
        assert_eq!(all.len(), count); // W2
        assert!(self.has_news || all.into_iter().all(is_open));
    }
}
