//! Subscriptions on the disk.
//!
//! One execution, which has no chunks, has the properties of a subscription and its wake in its
//! description. Others have its links, because a description has a limited length: a link stands in
//! the page that the digest of its path selects. If a page is full, there are twice as many. The
//! executions are taken out of the engine, and stay in the journal.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::state::{Link, Stage, Subscription, Wake};
use super::{Kept, drop_entry, keep_and_act, requests};
use crate::base::{ExecutionId, Principal};
use crate::endpoint::durable::answer_refused;
use crate::endpoint::{Answer, ApiError, WakeBy, Wanted};
use crate::journal::Refused;
use crate::journal::format::Lsn;
use crate::limits;
use crate::reactor::Reactor;
use crate::server::durable::{self, Key};
use crate::server::guests::Guests;
use crate::server::{ServerShard, executions, peers, records};
use crate::shard::Outlet;
use crate::shard::journal::{AmendError, OpenKept};
use crate::stream::Durability;
use crate::tool::{Prepared, ToolSpec, Work};
use crate::wire::http1::Status;

/// The name of the tool of the execution of a subscription, in lists.
const TOOL: &str = "subscription";

/// Returns the digest of the wanted properties of a subscription.
pub(super) fn mark_of(wanted: &Wanted) -> Box<str> {
    let Wanted { delivery, pattern, streams, lease_ms, description } = wanted;
    let delivery = match delivery {
        WakeBy::Webhook(url) => ("webhook", url),
        WakeBy::Stream(path) => ("pull-wake", path),
    };
    let text = json!([delivery.0, delivery.1, pattern, streams, lease_ms, description]);
    let digest = Sha256::digest(text.to_string());
    digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

/// Returns all executions of a subscription.
pub(super) fn executions_of(kept: &Kept) -> Vec<ExecutionId> {
    std::iter::once(kept.execution).chain(kept.pages.iter().copied()).collect()
}

/// Creates a subscription. Returns its place, and the place of its record.
pub(super) fn create<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    key: Key,
    (id, base): (Box<str>, Box<str>),
    wanted: Wanted,
    principal: Principal,
) -> Result<(usize, Lsn), Answer> {
    check(shard, &key).map_err(|error| answer_refused(&error))?;
    let own = peers::own_index(shard) as u8;
    let paths = shard.guests.durable.paths().clone();
    if paths.claim(&key, own) != own {
        let text = "the subscription is being created; try again";
        let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", text);
        return Err(answer_refused(&error.retry_after(limits::BUSY_RETRY_AFTER)));
    }
    // First this, then the look at the streams: none of what moves from now on is missed.
    paths.set_subscriber(own, true);
    let mark = mark_of(&wanted);
    let state = begin(shard, &key, wanted);
    let opened = state.map_err(requests::too_many_links).and_then(|state| {
        let execution = open(shard, principal).map_err(|error| answer_refused(&error))?;
        Ok((state, execution))
    });
    let (state, execution) = match opened {
        Ok(opened) => opened,
        Err(answer) => {
            paths.free(&key, own);
            paths.set_subscriber(own, !shard.guests.subscriptions.all.is_empty());
            return Err(answer);
        }
    };
    let kept = Kept {
        key,
        id,
        base,
        mark,
        created_us: records::wall_us(shard),
        state,
        execution,
        pages: Vec::new(),
        deadline: None,
        sending: None,
        is_queued: false,
    };
    let at = insert(shard, kept);
    match note(shard, at) {
        Ok(lsn) => Ok((at, lsn)),
        Err(refused) => {
            let _ = remove(shard, at);
            Err(super::not_kept(refused))
        }
    }
}

fn begin<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    key: &Key,
    wanted: Wanted,
) -> Result<Subscription, super::state::TooManyLinks> {
    let paths = shard.guests.durable.paths();
    let owner = key.owner.as_deref();
    let matching = match &wanted.pattern {
        Some(pattern) => {
            paths.matching(owner, |path| crate::wire::subscriptions::pattern_matches(pattern, path))
        }
        None => Vec::new(),
    };
    let named = wanted.streams.iter().map(|path| {
        let seen = paths.look_at(&Key { owner: key.owner.clone(), path: path.clone() });
        (path.clone(), seen)
    });
    let named = named.collect();
    Subscription::new(wanted, matching, named)
}

/// Enters a subscription in the table.
fn insert<R: Reactor + 'static>(shard: &mut ServerShard<R>, kept: Kept) -> usize {
    let key = kept.key.clone();
    let subscriptions = &mut shard.guests.subscriptions;
    let at = subscriptions.all.insert(kept);
    subscriptions.by_key.insert(key, at);
    at
}

/// Checks whether this shard can have one more subscription of an owner.
fn check<R: Reactor + 'static>(shard: &ServerShard<R>, key: &Key) -> Result<(), ApiError> {
    if shard.durability_of(None) == Durability::None {
        let text = "subscriptions need a journal, and this server keeps nothing; see --journal";
        return Err(ApiError::new(Status::BAD_REQUEST, "no_journal", text));
    }
    let all = &shard.guests.subscriptions.all;
    let own_count = all.iter().filter(|(_, kept)| kept.key.owner == key.owner).count();
    let most = match all.len() >= limits::SUBSCRIPTIONS_MAX {
        true => limits::SUBSCRIPTIONS_MAX,
        false if own_count < limits::SUBSCRIPTIONS_PER_OWNER_MAX => return Ok(()),
        false => limits::SUBSCRIPTIONS_PER_OWNER_MAX,
    };
    let text = "there are as many subscriptions as there can be";
    let error = ApiError::new(Status::TOO_MANY_REQUESTS, "too_many_executions", text);
    Err(error.limit(most as u64).retry_after(limits::BUSY_RETRY_AFTER))
}

/// Opens an execution that keeps a part of a subscription. Until that is written, it is one that
/// the next start removes.
fn open<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
) -> Result<ExecutionId, ApiError> {
    let mut prepared = Prepared::new(Work::Feed);
    prepared.tool = Some(Arc::new(ToolSpec::new(TOOL, "A subscription to streams.")));
    prepared.need.ring_bytes = limits::DURABLE_RING_BYTES;
    let options = durable::options_of(owner);
    let mut guest =
        Guests::prepare(shard, &prepared.work, &options).map_err(executions::refusal)?;
    guest.described = Some(Box::new(json!({"subscription_page": []})));
    shard.open_execution(prepared, options, guest).map_err(executions::refusal)
}

/// Writes what has changed of a subscription to the journal. Returns the place of the last record.
pub(super) fn note<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
) -> Result<Lsn, Refused> {
    let changed = shard.guests.subscriptions.all[at].state.take_changed();
    let result = note_changed(shard, at, &changed);
    if result.is_err() {
        shard.guests.subscriptions.all[at].state.note_changed(changed);
    }
    result
}

fn note_changed<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    changed: &std::collections::BTreeSet<Box<str>>,
) -> Result<Lsn, Refused> {
    let mut has_all = false;
    loop {
        let kept = &shard.guests.subscriptions.all[at];
        let count = kept.pages.len();
        let mut is_due = vec![has_all; count];
        changed
            .iter()
            .filter(|_| count > 0)
            .for_each(|path| is_due[durable::place_of(path, count)] = true);
        let mut pages = vec![Vec::new(); count];
        let mut bytes = vec![0; count];
        for (path, link) in kept.state.links.iter().filter(|_| count > 0) {
            let page = durable::place_of(path, count);
            if is_due[page] {
                let described = describe_link(path, link);
                bytes[page] += described.to_string().len() + 1;
                pages[page].push(described);
            }
        }
        if count == 0 || bytes.iter().any(|bytes| *bytes > limits::SUBSCRIPTION_PAGE_BYTES_MAX) {
            add_pages(shard, at, (2 * count).max(1))?;
            has_all = true;
            continue;
        }
        let all = kept.pages.iter().copied().zip(pages).zip(is_due);
        let due: Vec<_> = all.filter(|(_, is_due)| *is_due).collect();
        for ((page, links), _) in due {
            let described = json!({"subscription_page": links});
            amend(shard, at, page, described)?;
        }
        let execution = shard.guests.subscriptions.all[at].execution;
        let described = json!({"subscription": describe(&shard.guests.subscriptions.all[at])});
        return amend(shard, at, execution, described);
    }
}

fn amend<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    execution: ExecutionId,
    mut described: Value,
) -> Result<Lsn, Refused> {
    if let Some(owner) = &shard.guests.subscriptions.all[at].key.owner {
        described["owner"] = json!(owner);
    }
    match shard.amend(execution, described) {
        Ok(lsn) => Ok(lsn),
        Err(AmendError::Refused(refused)) => Err(refused),
        // Somebody has cancelled it, and the subscription is gone.
        Err(AmendError::NotFound) => Err(Refused::Broken),
    }
}

/// Adds pages until there are this many.
fn add_pages<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    count: usize,
) -> Result<(), Refused> {
    if count > limits::SUBSCRIPTION_PAGES_MAX {
        return Err(Refused::Full);
    }
    let owner = shard.guests.subscriptions.all[at].key.owner.clone();
    let owner = shard.guests.access.principal_of(owner.as_deref());
    while shard.guests.subscriptions.all[at].pages.len() < count {
        let page = open(shard, owner);
        let page = page.map_err(|_| Refused::Full)?;
        shard.guests.subscriptions.all[at].pages.push(page);
    }
    Ok(())
}

fn describe_link(path: &str, link: &Link) -> Value {
    let Link { is_explicit, is_glob, acked, execution, .. } = link;
    let kind = u8::from(*is_explicit) + 2 * u8::from(*is_glob);
    json!([path, kind, acked, execution.map(|execution| execution.to_string())])
}

fn link_of(described: &Value) -> Option<(Box<str>, Link)> {
    let kind = described[1].as_u64()?;
    let link = Link {
        is_explicit: kind & 1 != 0,
        is_glob: kind & 2 != 0,
        acked: described[2].as_u64()?,
        tail: 0,
        execution: described[3].as_str().and_then(|id| id.parse().ok()),
    };
    Some((described[0].as_str()?.into(), link))
}

fn describe(kept: &Kept) -> Value {
    let Kept { key, id, base, mark, created_us, state, pages, .. } = kept;
    let Wanted { delivery, pattern, lease_ms, description, .. } = &state.wanted;
    let (kind, to) = match delivery {
        WakeBy::Webhook(url) => ("webhook", url),
        WakeBy::Stream(path) => ("pull-wake", path),
    };
    let wake = state.wake.as_ref().map(|wake| {
        let (stage, worker) = match &wake.stage {
            Stage::Sending => ("sending", None),
            Stage::Awaiting => ("awaiting", None),
            Stage::Retrying => ("retrying", None),
            Stage::Offered => ("offered", None),
            Stage::Held(worker) => ("held", Some(worker)),
        };
        json!([wake.id, stage, wake.deadline_us, worker])
    });
    json!({
        "path": key.path,
        "id": id,
        "base": base,
        "mark": mark,
        "created_us": created_us,
        "type": kind,
        "to": to,
        "pattern": pattern,
        "lease_ms": lease_ms,
        "description": description,
        "generation": state.generation,
        "failures": state.failures,
        "wake": wake,
        "pages": pages.iter().map(ExecutionId::to_string).collect::<Vec<_>>(),
    })
}

fn state_of(described: &Value, links: impl Iterator<Item = (Box<str>, Link)>) -> Subscription {
    let text = |value: &Value| value.as_str().map(Box::<str>::from);
    let to = text(&described["to"]).unwrap_or_default();
    let delivery = match described["type"].as_str() {
        Some("webhook") => WakeBy::Webhook(to),
        _ => WakeBy::Stream(to),
    };
    let wanted = Wanted {
        delivery,
        pattern: text(&described["pattern"]),
        streams: Vec::new(),
        lease_ms: described["lease_ms"].as_u64().unwrap_or(limits::SUBSCRIPTION_LEASE_MS_DEFAULT),
        description: text(&described["description"]),
    };
    let wake = &described["wake"];
    let stage = match wake[1].as_str() {
        Some("sending") => Some(Stage::Sending),
        Some("awaiting") => Some(Stage::Awaiting),
        Some("retrying") => Some(Stage::Retrying),
        Some("held") => text(&wake[3]).map(Stage::Held),
        Some(_) => Some(Stage::Offered),
        None => None,
    };
    let wake = stage.and_then(|stage| {
        let (id, deadline_us) = (text(&wake[0])?, wake[2].as_u64());
        Some(Wake { id, stage, deadline_us, snapshot: Vec::new() })
    });
    let generation = described["generation"].as_u64().unwrap_or(0);
    let failures = described["failures"].as_u64().unwrap_or(0) as u32;
    Subscription::restored(wanted, links.collect(), (generation, failures), wake)
}

/// Adds the subscriptions that the journal had at the start, and wakes workers again.
pub(in crate::server) fn fill<R: Reactor + 'static>(shard: &mut ServerShard<R>, open: &[OpenKept]) {
    let own = peers::own_index(shard) as u8;
    let pages = open.iter().filter_map(|kept| {
        let page = kept.opened.guest["subscription_page"].as_array()?;
        Some((kept.id, page))
    });
    // What is left in the end was left by a crash: its subscription was not created, or was
    // removed.
    let mut pages: HashMap<ExecutionId, &Vec<Value>> = pages.collect();
    for OpenKept { id: execution, opened, .. } in open {
        let described = &opened.guest["subscription"];
        if !described.is_object() {
            continue;
        }
        let own_pages = described["pages"].as_array().into_iter().flatten();
        let own_pages: Vec<ExecutionId> =
            own_pages.filter_map(|id| id.as_str()?.parse().ok()).collect();
        let links = own_pages.iter().filter_map(|page| pages.remove(page)).flatten();
        let state = state_of(described, links.filter_map(link_of));
        let text = |name: &str| described[name].as_str().map(Box::from).unwrap_or_default();
        let owner = opened.guest["owner"].as_str().map(Box::from);
        let key = Key { owner, path: text("path") };
        let paths = shard.guests.durable.paths().clone();
        paths.claim(&key, own);
        paths.set_subscriber(own, true);
        let kept = Kept {
            key,
            id: text("id"),
            base: text("base"),
            mark: text("mark"),
            created_us: described["created_us"].as_u64().unwrap_or(0),
            state,
            execution: *execution,
            pages: own_pages,
            deadline: None,
            sending: None,
            is_queued: false,
        };
        let at = insert(shard, kept);
        wake_again(shard, at);
    }
    for execution in pages.into_keys() {
        let _ = end(shard, execution); // The next start tries again.
    }
}

/// Looks at the streams of a subscription after a restart, and wakes its workers.
fn wake_again<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    let now_us = records::wall_us(shard);
    let paths = shard.guests.durable.paths().clone();
    let kept = &mut shard.guests.subscriptions.all[at];
    let owner = kept.key.owner.clone();
    let state = &mut kept.state;
    for (path, seen) in paths.matching(owner.as_deref(), |_| true) {
        state.note_stream(&path, Some(seen));
    }
    let act = state.wake_again(now_us);
    if act.is_some() {
        if keep_and_act(shard, at, act).is_err() {
            let again = shard.now + std::time::Duration::from_secs(1);
            shard.guests.subscriptions.arm(at, Some(again));
        }
    } else {
        super::go_on(shard, at);
    }
}

/// Removes a subscription. Returns the place to which the disk has to be synced.
pub(super) fn remove<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
) -> Result<Lsn, Refused> {
    let all = executions_of(&shard.guests.subscriptions.all[at]);
    let mut last = Lsn(0);
    for (place, execution) in all.into_iter().enumerate() {
        match end(shard, execution) {
            Ok(lsn) => last = lsn.unwrap_or(last),
            // Without its first execution, the next start removes the others.
            Err(refused) if place == 0 => return Err(refused),
            Err(_) => {}
        }
    }
    drop_entry(shard, at);
    Ok(last)
}

/// Ends an execution, and removes it from the journal.
fn end<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) -> Result<Option<Lsn>, Refused> {
    let options = durable::options_of(Principal::NOBODY);
    shard.resume(execution, &options).map_err(|_| Refused::Full)?;
    let _ = shard.finish(execution, Ok(())); // It was just brought back.
    executions::erase(shard, execution)
}
