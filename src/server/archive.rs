//! The executions of a shard that have ended and are kept on its disk, as clients see them.
//!
//! The engine forgets an execution some time after its end, and the journal keeps it. This table
//! has the owner, the description and the thread of each. Nothing has to be read for a list, a
//! thread or a refusal. The table is filled at the start from the records in the journal, and
//! whenever a kept execution ends. An entry whose execution the journal has removed counts for
//! nothing, and goes when the table is full of such entries.
//!
//! An execution that is a task of the Model Context Protocol is found by the id of the task, too,
//! until its time is over. A progress token finds its execution.
//!
//! Owners are kept by name. A name without a token is nobody's, and so is an execution without an
//! owner on a server that requires tokens.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::base::{ExecutionId, Principal, ProgressToken};
use crate::endpoint::documents::Dates;
use crate::endpoint::{Access, ListPlace, PolicyChoice};
use crate::engine::Verdict;
use crate::mcp::{McpFault, Version};
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::conversations::{Conversations, Place, Seat};
use crate::server::durable;
use crate::server::guests::{Guests, Served, ServedRun};
use crate::server::workers::kept;
use crate::shard::journal::{Described, RESTARTED};
use crate::stream::{Kinds, Outcome, Totals};

/// The executions that have ended and are kept. See the module's text.
#[derive(Debug, Default)]
pub(in crate::server) struct Archive {
    entries: HashMap<ExecutionId, Entry>,
    /// The executions of each owner, in the order of lists.
    owned: BTreeMap<Option<Box<str>>, BTreeSet<ListPlace>>,
    /// The executions of tasks, by the ids of the tasks.
    tasks: HashMap<Box<str>, ExecutionId>,
    /// The executions of progress tokens.
    tokens: HashMap<ProgressToken, ExecutionId>,
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
    /// True if it has ended without a result of its tool: the tool has panicked, or the process has
    /// ended before.
    pub is_fault: bool,
    /// Its place in a thread of a front end's client.
    seat: Option<Rc<Seat>>,
    /// The task that it carries out.
    pub task: Option<Rc<KeptTask>>,
    /// Its progress token, if it has one.
    token: Option<ProgressToken>,
}

/// A task of the Model Context Protocol, as the record of its execution describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) struct KeptTask {
    /// The id of the task.
    pub name: Box<str>,
    /// The version of the protocol in which its result is spelled.
    pub version: Version,
    /// The time of its creation, in microseconds since 1970.
    pub created_us: u64,
    /// The time from its creation during which it is kept.
    pub ttl_ms: u64,
    /// The reply, if it has ended before its tool ran.
    pub reply: Option<Result<Value, McpFault>>,
}

impl KeptTask {
    pub fn to_json(&self) -> Value {
        let KeptTask { name, version, created_us, ttl_ms, reply } = self;
        let version = version.text();
        let mut members =
            json!({"id": name, "version": version, "created_us": created_us, "ttl_ms": ttl_ms});
        match reply {
            None => {}
            Some(Ok(result)) => members["result"] = result.clone(),
            Some(Err(fault)) => {
                (members["fault"], members["status"]) = (fault.to_json(), fault.status.into());
            }
        }
        members
    }

    pub fn parse(members: &Value) -> Option<KeptTask> {
        let status = || members["status"].as_u64().and_then(|status| u16::try_from(status).ok());
        let fault = || Some(McpFault::parse(members.get("fault")?)?.status(status()?));
        let result = members.get("result").cloned().map(Ok);
        Some(KeptTask {
            name: members["id"].as_str()?.into(),
            version: Version::parse(members["version"].as_str()?)?,
            created_us: members["created_us"].as_u64()?,
            ttl_ms: members["ttl_ms"].as_u64()?,
            reply: result.or_else(|| fault().map(Err)),
        })
    }

    /// The time in microseconds for which it is still kept; `None` if its time is over.
    pub fn left_us(&self, now_us: u64) -> Option<u64> {
        let until_us = self.created_us.saturating_add(self.ttl_ms.saturating_mul(1_000));
        until_us.checked_sub(now_us).filter(|left_us| *left_us > 0)
    }
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
            let is_fault = ended.has_panicked || ended.error.as_deref() == Some(RESTARTED);
            let task = KeptTask::parse(&guest["task"]).map(Rc::new);
            let token = opened.token.and_then(|token| token.parse().ok());
            let entry = Entry { owner, tool, outcome, totals, dates, is_fault, seat, task, token };
            self.insert(id, entry);
        }
        self.look_at = (2 * self.entries.len()).max(ENTRIES_MIN);
    }

    /// Returns an execution, whether the journal still has it or not.
    pub fn get(&self, id: ExecutionId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// Returns the execution of a task and the task, until its time is over.
    pub fn task(&self, name: &str, now_us: u64) -> Option<(ExecutionId, &Rc<KeptTask>)> {
        let id = *self.tasks.get(name)?;
        let task = self.entries.get(&id)?.task.as_ref()?;
        task.left_us(now_us).map(|_| (id, task))
    }

    /// Returns the execution of a progress token.
    pub fn of_token(&self, token: ProgressToken) -> Option<ExecutionId> {
        self.tokens.get(&token).copied()
    }

    /// Removes an execution.
    pub fn forget(&mut self, id: ExecutionId) {
        let Some(entry) = self.entries.remove(&id) else { return };
        let place = entry.place(id);
        let Entry { owner, task, token, .. } = entry;
        if let Some(places) = self.owned.get_mut(&owner) {
            places.remove(&place);
            if places.is_empty() {
                self.owned.remove(&owner);
            }
        }
        if let Some(task) = task
            && self.tasks.get(&task.name) == Some(&id)
        {
            self.tasks.remove(&task.name);
        }
        if let Some(token) = token {
            self.tokens.remove(&token);
        }
    }

    fn insert(&mut self, id: ExecutionId, entry: Entry) {
        self.forget(id);
        if let Some(task) = &entry.task {
            // The record of its questions may still be there when its tool runs.
            let other = self.tasks.get(&task.name).and_then(|id| self.entries.get(id));
            if other.is_none_or(|other| other.dates.created_us <= entry.dates.created_us) {
                self.tasks.insert(task.name.clone(), id);
            }
        }
        if let Some(token) = entry.token {
            self.tokens.insert(token, id);
        }
        let place = entry.place(id);
        match self.owned.get_mut(&entry.owner) {
            Some(places) => drop(places.insert(place)),
            None => drop(self.owned.insert(entry.owner.clone(), BTreeSet::from([place]))),
        }
        self.entries.insert(id, entry);
    }

    /// Returns the executions of an owner behind a place, in the order of lists, whether the
    /// journal still has them or not.
    pub fn of_owner(
        &self,
        owner: Option<&str>,
        after: Option<ListPlace>,
    ) -> impl Iterator<Item = (ExecutionId, &Entry)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let places = self.owned.get(&owner.map(Box::from)).into_iter();
        let places = places.flat_map(move |places| places.range((from, Bound::Unbounded)));
        places.map(|place| (place.execution, &self.entries[&place.execution]))
    }

    /// Returns the executions of all tasks, whether the journal still has them or not.
    pub fn tasks(&self) -> impl Iterator<Item = (ExecutionId, &Entry)> {
        self.tasks.values().map(|id| (*id, &self.entries[id]))
    }
}

impl Entry {
    /// True if it belongs to this principal.
    pub fn is_owned_by(&self, principal: Principal, access: &Access) -> bool {
        access.principal_of(self.owner.as_deref()) == principal
    }

    /// The client's name of its conversation.
    pub fn thread(&self) -> Option<&str> {
        self.seat.as_ref().map(|seat| seat.thread_id())
    }

    fn place(&self, execution: ExecutionId) -> ListPlace {
        ListPlace { created_us: self.dates.created_us, execution }
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
    verdict: &Verdict,
) {
    let now_us = shard.anchor.wall_us_at(shard.now.nanos());
    let run = shard.runs[index as usize].as_ref().filter(|run| run.kept.is_some());
    let Some(run) = run else { return };
    let ended_us = shard.kept_ended_us(run.id).unwrap_or(now_us);
    let (id, created_us) = (run.id, shard.anchor.wall_us_at(run.opened_at.nanos()));
    let entry = Entry {
        owner: shard.guests.access.name_of(run.guest.owner).map(Box::from),
        tool: run.tool.as_ref().map(|tool| tool.name.as_str().into()).unwrap_or_default(),
        outcome: verdict.outcome,
        totals: verdict.totals.of(Kinds::ALL),
        dates: Dates { created_us, ended_us: Some(ended_us) },
        is_fault: run.has_panicked || verdict.error.as_deref() == Some(RESTARTED),
        seat: run.guest.thread.clone(),
        task: run.guest.task.clone(),
        token: run.names.token.as_ref().and_then(|token| token.parse().ok()),
    };
    let archive = &mut shard.guests.archive;
    archive.insert(id, entry);
    if archive.entries.len() >= archive.look_at.max(ENTRIES_MIN) {
        let mut archive = std::mem::take(archive);
        let gone: Vec<ExecutionId> =
            archive.entries.keys().filter(|id| !shard.keeps(**id)).copied().collect();
        for id in gone {
            archive.forget(id);
        }
        archive.look_at = (2 * archive.entries.len()).max(ENTRIES_MIN);
        shard.guests.archive = archive;
    }
}

/// Returns the members of a record about an execution: see [`restored`].
pub(in crate::server) fn described<R: Reactor + 'static>(
    guests: &Guests<R>,
    run: &ServedRun,
) -> Value {
    let Served { owner, policy, thread, arguments, task, .. } = &run.guest;
    let mut members = json!({});
    if let Some(stream) = durable::described(guests, run) {
        members["stream"] = stream;
    }
    if let Some(kept) = &run.guest.described {
        members = (**kept).clone();
    }
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
    // A record has room for short ones only.
    let bytes_max = crate::limits::FRONT_ARGUMENTS_BYTES_MAX;
    if let Some(arguments) = arguments.as_ref().filter(|all| all.to_string().len() <= bytes_max) {
        members["arguments"] = (**arguments).clone();
    }
    if let Some(task) = task {
        members["task"] = task.to_json();
    }
    if let Some(call) = kept::described(run) {
        members["call"] = call;
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
        task: archive.get(id).and_then(|entry| entry.task.clone()),
        ..Served::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Handle;

    #[test]
    fn the_executions_of_an_owner_are_in_the_order_of_lists() {
        let mut archive = Archive::default();
        let slot = Handle { index: 1, generation: 1 };
        let id = |nonce: u64| ExecutionId { shard: 0, slot, nonce };
        let entry = |owner: Option<&str>, created_us: u64| Entry {
            owner: owner.map(Box::from),
            tool: "t".into(),
            outcome: Outcome::Completed,
            totals: Totals::default(),
            dates: Dates { created_us, ended_us: Some(created_us) },
            is_fault: false,
            seat: None,
            task: None,
            token: None,
        };
        for (nonce, owner, created_us) in [
            (1, Some("a"), 9),
            (2, Some("a"), 3),
            (3, None, 4),
            (4, Some("b"), 1),
            (5, Some("a"), 3),
        ] {
            archive.insert(id(nonce), entry(owner, created_us));
        }
        archive.insert(id(1), entry(Some("a"), 2)); // The same one again.
        let listed = |archive: &Archive, owner: Option<&str>, after: Option<ListPlace>| {
            let all = archive.of_owner(owner, after);
            all.map(|(id, entry)| (entry.dates.created_us, id)).collect::<Vec<_>>()
        };
        let mut threes = [id(2), id(5)];
        threes.sort();
        let all = [(2, id(1)), (3, threes[0]), (3, threes[1])];
        assert_eq!(listed(&archive, Some("a"), None), all);
        for (at, (created_us, execution)) in all.into_iter().enumerate() {
            let after = Some(ListPlace { created_us, execution });
            assert_eq!(listed(&archive, Some("a"), after), all[at + 1..]);
        }
        assert_eq!(listed(&archive, None, None), [(4, id(3))]);
        assert_eq!(listed(&archive, Some("c"), None), []);
        for nonce in 1..=5 {
            archive.forget(id(nonce));
        }
        assert!(archive.owned.is_empty() && archive.entries.is_empty());
    }

    #[test]
    fn a_task_is_found_by_its_id_until_its_time_is_over() {
        let version = Version::V2025_11_25;
        let task =
            KeptTask { name: "00ab".into(), version, created_us: 7_000, ttl_ms: 3, reply: None };
        assert_eq!(KeptTask::parse(&task.to_json()), Some(task.clone()));
        assert_eq!(KeptTask::parse(&json!({"id": "00ab", "version": "2025-11-25"})), None);
        let fault = McpFault::new(-32_021, "no").status(400).data(json!({"a": 1}));
        for reply in [Ok(json!({"content": []})), Err(McpFault::internal("i")), Err(fault)] {
            let task = KeptTask { reply: Some(reply), ..task.clone() };
            assert_eq!(KeptTask::parse(&task.to_json()), Some(task));
        }
        let id = ExecutionId { shard: 0, slot: Handle { index: 1, generation: 1 }, nonce: 7 };
        let entry = |created_us, token| Entry {
            owner: None,
            tool: "t".into(),
            outcome: Outcome::Completed,
            totals: Totals::default(),
            dates: Dates { created_us, ended_us: Some(7_100) },
            is_fault: false,
            seat: None,
            task: Some(Rc::new(task.clone())),
            token,
        };
        let token = ProgressToken { shard: 0, slot: id.slot, secret: 5 };
        let mut archive = Archive::default();
        archive.insert(id, entry(7_000, Some(token)));
        let found = |archive: &Archive, now_us| archive.task("00ab", now_us).map(|(id, _)| id);
        assert_eq!((found(&archive, 9_999), found(&archive, 10_000)), (Some(id), None));
        // The record of its questions was opened earlier, and may be noted later.
        let record = ExecutionId { nonce: 8, ..id };
        archive.insert(record, entry(6_999, None));
        assert_eq!(found(&archive, 9_999), Some(id));
        archive.forget(record);
        assert_eq!(found(&archive, 9_999), Some(id));
        assert!(archive.task("00ac", 9_999).is_none());
        assert_eq!(archive.of_token(token), Some(id));
        archive.forget(id);
        assert_eq!(found(&archive, 9_999), None);
        assert!(archive.tasks.is_empty() && archive.tokens.is_empty());
    }
}
