//! The executions of a shard that have ended and are kept on its disk, as clients see them.
//!
//! The engine forgets an execution some time after its end, and the journal keeps it. This table
//! has the owner, the description and the thread of each. Nothing has to be read for a list, a
//! thread or a refusal. The table is filled at the start from the records in the journal, and
//! whenever a kept execution ends. An entry whose execution the journal has removed counts for
//! nothing, and goes when the table is full of such entries.
//!
//! Owners are kept by name. A name without a token is nobody's, and so is an execution without an
//! owner on a server that requires tokens.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::base::{ExecutionId, Principal};
use crate::endpoint::documents::Dates;
use crate::endpoint::{Access, PolicyChoice};
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::conversations::{Conversations, Place, Seat};
use crate::server::guests::{Guests, Served, ServedRun};
use crate::shard::journal::Described;
use crate::stream::{Outcome, Totals};

/// The executions that have ended and are kept. See the module's text.
#[derive(Debug, Default)]
pub(in crate::server) struct Archive {
    entries: HashMap<ExecutionId, Entry>,
    /// Number of entries with which the next look for removed executions is due.
    look_at: usize,
}

/// An execution that has ended and is kept.
#[derive(Debug)]
pub(in crate::server) struct Entry {
    owner: Option<Box<str>>,
    pub tool: Box<str>,
    pub outcome: Outcome,
    pub totals: Totals,
    pub dates: Dates,
    /// Its place in a thread of a front end's client.
    seat: Option<Rc<Seat>>,
}

/// Number of entries below which nothing is looked for.
const ENTRIES_MIN: usize = 1_024;

impl Archive {
    /// Adds the executions that the journal had at the start.
    pub fn fill(&mut self, all: Vec<Described>, access: &Access, conversations: &Conversations) {
        for Described { id, opened_us, opened, ended_us, ended, totals } in all {
            let guest = &opened.guest;
            let owner = guest["owner"].as_str().map(Box::from);
            let principal = access.principal_of(owner.as_deref());
            let seat = place_in_thread(guest).map(|(thread, ordinal)| {
                let run_id = guest["run"].as_str().map(Box::from);
                let place = Place { ordinal, begun_us: opened_us };
                Rc::new(conversations.enter_again(principal, thread, id, run_id, place))
            });
            let dates = Dates { created_us: opened_us, ended_us: Some(ended_us) };
            let (tool, outcome) = (opened.tool.unwrap_or_default(), ended.outcome);
            self.entries.insert(id, Entry { owner, tool, outcome, totals, dates, seat });
        }
        self.look_at = (2 * self.entries.len()).max(ENTRIES_MIN);
    }

    /// Returns an execution, whether the journal still has it or not.
    pub fn get(&self, id: ExecutionId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// Removes an execution.
    pub fn forget(&mut self, id: ExecutionId) {
        self.entries.remove(&id);
    }

    /// Returns all executions, whether the journal still has them or not.
    pub fn iter(&self) -> impl Iterator<Item = (ExecutionId, &Entry)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }
}

impl Entry {
    /// True if it belongs to this principal.
    pub fn is_owned_by(&self, principal: Principal, access: &Access) -> bool {
        access.principal_of(self.owner.as_deref()) == principal
    }
}

/// Returns the name of the thread of an execution, and the number of runs before it.
fn place_in_thread(guest: &Value) -> Option<(&str, u32)> {
    let ordinal = guest["ordinal"].as_u64().and_then(|ordinal| u32::try_from(ordinal).ok());
    Some((guest["thread"].as_str()?, ordinal.unwrap_or(0)))
}

/// Notes a kept execution that has just ended.
pub(in crate::server) fn note_ended<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
    outcome: Outcome,
    totals: Totals,
) {
    let now_us = shard.anchor.wall_us_at(shard.now.nanos());
    let run = shard.runs[index as usize].as_ref().filter(|run| run.kept.is_some());
    let Some(run) = run else { return };
    let (id, created_us) = (run.id, shard.anchor.wall_us_at(run.opened_at.nanos()));
    let entry = Entry {
        owner: shard.guests.access.name_of(run.guest.owner).map(Box::from),
        tool: run.tool.as_ref().map(|tool| tool.name.as_str().into()).unwrap_or_default(),
        outcome,
        totals,
        dates: Dates { created_us, ended_us: Some(now_us) },
        seat: run.guest.thread.clone(),
    };
    let archive = &mut shard.guests.archive;
    archive.entries.insert(id, entry);
    if archive.entries.len() >= archive.look_at.max(ENTRIES_MIN) {
        let mut entries = std::mem::take(&mut archive.entries);
        entries.retain(|id, _| shard.keeps(*id));
        let look_at = (2 * entries.len()).max(ENTRIES_MIN);
        shard.guests.archive = Archive { entries, look_at };
    }
}

/// Returns the members of a record about an execution: see [`restored`].
pub(in crate::server) fn described<R: Reactor + 'static>(
    guests: &Guests<R>,
    run: &ServedRun,
) -> Value {
    let Served { owner, policy, thread, arguments, .. } = &run.guest;
    let mut members = json!({});
    if let Some(name) = guests.access.name_of(*owner) {
        members["owner"] = name.into();
    }
    if let Some(PolicyChoice { policy, limit_chunks, limit_bytes }) = policy {
        let limits = json!({"max_chunks": limit_chunks, "max_bytes": limit_bytes});
        (members["policy"], members["limits"]) = (policy.name().into(), limits);
    }
    if let Some(seat) = thread {
        members["thread"] = seat.thread_id().into();
        members["ordinal"] = seat.ordinal.into();
        members["run"] = seat.run_id.as_deref().into();
    }
    if let Some(arguments) = arguments {
        members["arguments"] = (**arguments).clone();
    }
    members
}

/// Returns the state of an execution that was brought back, from the members of its record.
pub(in crate::server) fn restored<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
    members: &Value,
) -> Served {
    let Guests { access, archive, .. } = &shard.guests;
    let policy = members["policy"].as_str().and_then(|name| name.parse().ok());
    let policy = policy.map(|policy| {
        let limit = |name: &str| members["limits"][name].as_u64();
        let limit_chunks = limit("max_chunks").and_then(|chunks| u32::try_from(chunks).ok());
        PolicyChoice { policy, limit_chunks, limit_bytes: limit("max_bytes") }
    });
    Served {
        owner: access.principal_of(members["owner"].as_str()),
        policy,
        arguments: members.get("arguments").map(|arguments| Box::new(arguments.clone())),
        thread: archive.get(id).and_then(|entry| entry.seat.clone()),
        ..Served::default()
    }
}
