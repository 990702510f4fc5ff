//! Subscriptions to streams of the Durable Streams protocol. A subscription wakes workers when its
//! streams have more, by a webhook or by a message in another stream. Its workers acknowledge what
//! they have processed.
//!
//! A subscription lives on one shard, and its streams on any. The table of all paths shows it the
//! ends of them. A request is answered, and workers are told, once the disk has what led to it.
//!
//! - `state.rs`: one subscription, without a clock, a socket and a disk.
//! - `keys.rs`: the signatures and tokens; `keep.rs`: subscriptions on the disk.
//! - `requests.rs`: the requests; `deliver.rs`: webhooks and messages.
//!
//! Invariants:
//! - U1: each subscription stands in the table of deadlines once, or not at all.
//! - U2: nothing leaves the shard before the disk has it.

mod deliver;
mod keep;
mod keys;
mod requests;
mod state;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

pub(in crate::server) use deliver::wake_here;
pub(in crate::server) use keep::fill;
pub(in crate::server) use requests::{answer, home_of};
use slab::Slab;

use crate::base::{ExecutionId, Handle, Instant};
use crate::endpoint::Answer;
use crate::journal::Refused;
use crate::journal::format::Lsn;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::durable::Key;
use crate::server::hub::Answered;
use crate::server::outgoing::ExchangeId;
use crate::server::subscriptions::keys::Keys;
use crate::server::subscriptions::state::{Act, Noted, Subscription};
use crate::server::{ServerShard, executions, hub, outgoing, peers, records};
use crate::shard::ExecuteError;
use crate::wire::subscriptions::Networks;

/// The subscriptions of a shard. See the module's text.
#[derive(Debug, Default)]
pub(in crate::server) struct Subscriptions {
    all: Slab<Kept>,
    by_key: HashMap<Key, usize>,
    secret: Option<[u8; 32]>,
    /// The networks that webhooks may reach, although they are not public.
    networks: Networks,
    /// The keys, once one was needed.
    keys: Option<Rc<Keys>>,
    deadlines: BTreeSet<(Instant, usize)>,
    /// The things that wait for the disk, in the order of their records.
    waiting: VecDeque<Waiting>,
    /// The webhooks that are under way, with their subscriptions.
    exchanges: BTreeMap<Handle, usize>,
    /// The subscriptions whose webhooks wait for one of these.
    queued: VecDeque<usize>,
    /// The body bytes received last. The buffer is reused.
    body: Vec<u8>,
}

/// A subscription and its places.
#[derive(Debug)]
struct Kept {
    key: Key,
    id: Box<str>,
    /// The start of the URLs of this server, as the creator has named it.
    base: Box<str>,
    /// A digest of the properties that its creator wanted.
    mark: Box<str>,
    created_us: u64,
    state: Subscription,
    /// The execution that keeps it.
    execution: ExecutionId,
    /// The executions that keep its links.
    pages: Vec<ExecutionId>,
    deadline: Option<Instant>,
    sending: Option<Sending>,
    is_queued: bool,
}

/// A webhook that is under way.
#[derive(Debug)]
struct Sending {
    exchange: ExchangeId,
    wake_id: Box<str>,
    /// The body of the answer, once its head says that the webhook was accepted.
    answer: Option<Vec<u8>>,
}

/// A thing that waits for the disk.
#[derive(Debug)]
struct Waiting {
    /// The subscription, and the execution that keeps it.
    at: usize,
    execution: ExecutionId,
    /// The place of the record.
    lsn: Lsn,
    then: Then,
}

/// The thing to do when the disk has a record.
#[derive(Debug)]
enum Then {
    Answer(ConnectionId, Answer),
    /// Tells the workers of this wake.
    Tell(Box<str>, Act),
    /// Takes executions out of the engine, which has no use for them.
    Rest(Vec<ExecutionId>),
    /// Answers that it was removed.
    Removed(ConnectionId),
}

impl Subscriptions {
    /// Creates the table of a shard, which has no subscriptions yet.
    pub fn new(secret: Option<[u8; 32]>, networks: Networks) -> Subscriptions {
        Subscriptions { secret, networks, ..Subscriptions::default() }
    }

    /// True if there is a subscription, or something waits for the disk.
    #[inline]
    pub fn has_any(&self) -> bool {
        !self.all.is_empty() || !self.waiting.is_empty()
    }

    /// Returns the time at which the next subscription has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Sets the time at which a subscription has something to do.
    fn arm(&mut self, at: usize, deadline: Option<Instant>) {
        let before = std::mem::replace(&mut self.all[at].deadline, deadline);
        if let Some(before) = before {
            self.deadlines.remove(&(before, at));
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, at)); // U1
        }
    }
}

/// Returns the keys of subscriptions.
fn keys<R: Reactor + 'static>(shard: &mut ServerShard<R>) -> Result<Rc<Keys>, ()> {
    let subscriptions = &mut shard.guests.subscriptions;
    if let Some(keys) = &subscriptions.keys {
        return Ok(Rc::clone(keys));
    }
    let secret = match subscriptions.secret {
        Some(secret) => secret,
        None => {
            let mut drawn = [0; 32];
            crate::reactor::random_bytes(&mut drawn).map_err(|_| ())?;
            drawn
        }
    };
    let keys = Rc::new(Keys::new(&secret));
    subscriptions.keys = Some(Rc::clone(&keys));
    Ok(keys)
}

/// Finds a subscription. One that the disk does not have any more goes first.
fn find<R: Reactor + 'static>(shard: &mut ServerShard<R>, key: &Key) -> Option<usize> {
    let at = *shard.guests.subscriptions.by_key.get(key)?;
    let execution = shard.guests.subscriptions.all[at].execution;
    if !shard.keeps(execution) || shard.guests.archive.get(execution).is_some() {
        drop_entry(shard, at);
        return None;
    }
    Some(at)
}

/// Goes on with everything that waits: for streams, for the disk, and for receivers of webhooks.
pub(in crate::server) fn settle<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    look_at_news(shard);
    deliver::hear_receivers(shard);
    settle_waiting(shard);
}

/// Looks at the streams that have moved.
fn look_at_news<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let own = peers::own_index(shard) as u8;
    let paths = shard.guests.durable.paths().clone();
    if !paths.has_news(own) {
        return;
    }
    shard.worked = true;
    let mut touched = BTreeSet::new();
    for (key, seen) in paths.take_news(own) {
        for (at, kept) in &mut shard.guests.subscriptions.all {
            if kept.key.owner == key.owner {
                let has_changed = kept.state.note_stream(&key.path, seen) == Noted::Changed;
                let wakes = kept.state.wake.is_none() && kept.state.is_pending(&key.path);
                if has_changed || wakes {
                    touched.insert(at);
                }
            }
        }
    }
    for at in touched {
        go_on(shard, at);
    }
}

/// Handles the deadlines of subscriptions: leases that have expired, and webhooks to repeat.
pub(in crate::server) fn fire_deadlines<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let now = shard.now;
    while let Some(&(deadline, at)) = shard.guests.subscriptions.deadlines.first()
        && deadline <= now
    {
        shard.worked = true;
        shard.guests.subscriptions.arm(at, None);
        go_on(shard, at);
    }
}

/// Begins or ends a wake of a subscription if it is time, and keeps what has changed.
fn go_on<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    if change(shard, at).is_err() {
        // The disk takes nothing now. Everything is kept with the next change.
        let again = shard.now + Duration::from_secs(1);
        shard.guests.subscriptions.arm(at, Some(again));
    }
}

/// Keeps what has changed of a subscription, after a wake was begun or ended. Returns the place of
/// the record, and true if a wake has begun.
fn change<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
) -> Result<(Lsn, bool), Refused> {
    let now_us = records::wall_us(shard);
    let Ok(keys) = keys(shard) else { return Err(Refused::Broken) };
    let kept = &mut shard.guests.subscriptions.all[at];
    let execution = kept.execution;
    let act = kept.state.advance(now_us, |number| keys.wake_id(execution, number, now_us));
    keep_and_act(shard, at, act)
}

/// Keeps a subscription. The action is done when the disk has that.
fn keep_and_act<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    act: Option<Act>,
) -> Result<(Lsn, bool), Refused> {
    let kept = &shard.guests.subscriptions.all[at];
    let wake_id = kept.state.wake.as_ref().map(|wake| wake.id.clone());
    let sending = kept.sending.as_ref().map(|sending| &sending.wake_id);
    let is_over = sending.is_some() && sending != wake_id.as_ref();
    let page_count = kept.pages.len();
    let (execution, deadline_us) = (kept.execution, kept.state.deadline_us());
    if is_over {
        deliver::hang_up(shard, at);
    }
    let (now, now_us) = (shard.now, records::wall_us(shard));
    let deadline = deadline_us.map(|deadline_us| {
        now + Duration::from_micros(deadline_us.saturating_sub(now_us).min(1 << 40))
    });
    shard.guests.subscriptions.arm(at, deadline);
    let lsn = keep::note(shard, at)?;
    let new_pages = shard.guests.subscriptions.all[at].pages[page_count..].to_vec();
    if !new_pages.is_empty() {
        wait_for_disk(shard, (at, execution), lsn, Then::Rest(new_pages));
    }
    let has_begun = act.is_some();
    if let (Some(act), Some(wake_id)) = (act, wake_id) {
        wait_for_disk(shard, (at, execution), lsn, Then::Tell(wake_id, act));
    }
    Ok((lsn, has_begun))
}

/// Makes something wait for the disk.
fn wait_for_disk<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    (at, execution): (usize, ExecutionId),
    lsn: Lsn,
    then: Then,
) {
    shard.hurry_kept(execution);
    shard.guests.subscriptions.waiting.push_back(Waiting { at, execution, lsn, then });
}

/// Answers a request about a subscription, once the disk has its record.
fn answer_when_kept<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    (at, lsn): (usize, Lsn),
    answer: Answer,
) -> Answered {
    let execution = shard.guests.subscriptions.all[at].execution;
    wait_for_disk(shard, (at, execution), lsn, Then::Answer(id, answer));
    hub::wait(shard, id)
}

/// Does what has waited for the disk.
fn settle_waiting<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    while let Some(next) = shard.guests.subscriptions.waiting.front() {
        let (execution, lsn) = (next.execution, next.lsn);
        let is_kept = match &next.then {
            Then::Removed(_) => shard.is_synced_to(lsn),
            // A subscription that was removed meanwhile waits for nothing.
            _ if !shard.keeps(execution) => Ok(true),
            _ => shard.is_amended(execution, lsn),
        };
        if is_kept == Ok(false) {
            return;
        }
        shard.worked = true;
        let next = shard.guests.subscriptions.waiting.pop_front().expect("it was just there");
        let all = &shard.guests.subscriptions.all;
        let is_there = all.get(next.at).is_some_and(|kept| kept.execution == next.execution);
        match (next.then, is_kept) {
            (Then::Answer(id, _) | Then::Removed(id), Err(refused)) => {
                hub::answer_waiting(shard, id, &not_kept(refused));
            }
            (Then::Answer(id, answer), Ok(_)) => {
                let answer = if is_there { answer } else { requests::unknown() };
                hub::answer_waiting(shard, id, &answer);
            }
            (Then::Removed(id), Ok(_)) => {
                hub::answer_waiting(shard, id, &requests::done());
            }
            (Then::Tell(wake_id, act), Ok(_)) if is_there => {
                deliver::tell(shard, next.at, &wake_id, act);
            }
            (Then::Rest(all), Ok(_)) => {
                for execution in all {
                    let _ = shard.suspend(execution); // It stays in the engine otherwise.
                }
            }
            (Then::Tell(..) | Then::Rest(_), _) => {}
        }
    }
}

fn not_kept(refused: Refused) -> Answer {
    let error = executions::refusal(ExecuteError::NotKept(refused));
    crate::endpoint::durable::answer_refused(&error)
}

/// Removes a subscription from the table.
fn drop_entry<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    deliver::hang_up(shard, at);
    let own = peers::own_index(shard) as u8;
    let subscriptions = &mut shard.guests.subscriptions;
    subscriptions.arm(at, None);
    subscriptions.queued.retain(|other| *other != at);
    let kept = subscriptions.all.remove(at);
    subscriptions.by_key.remove(&kept.key);
    let is_last = subscriptions.all.is_empty();
    let paths = shard.guests.durable.paths();
    paths.free(&kept.key, own);
    if is_last {
        paths.set_subscriber(own, false);
    }
}

const _: () = assert!(limits::WEBHOOKS_MAX < limits::MODEL_EXCHANGES_SPARE as usize);

/// Drops the webhook of a subscription, if one is under way.
fn drop_exchange<R: Reactor + 'static>(shard: &mut ServerShard<R>, exchange: ExchangeId) {
    shard.guests.subscriptions.exchanges.remove(&exchange.0);
    outgoing::drop_exchange(shard, exchange);
}
