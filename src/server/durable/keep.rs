//! The description of a stream on the disk, and streams from before a restart.

use std::sync::Arc;

use serde_json::{Value, json};

use super::marker::KeptMarker;
use super::state::{Before, Closed, Config, Producer, StreamState, Undo};
use super::{Stream, marker, own_index, remove, touch};
use crate::base::ExecutionId;
use crate::cluster::claim::PathName;
use crate::journal::Refused;
use crate::journal::format::Lsn;
use crate::reactor::Reactor;
use crate::server::durable::paths::{Key, StreamHead};
use crate::server::guests::{Guests, ServedRun};
use crate::server::{ServerShard, cluster};
use crate::shard::journal::{AmendError, Described, OpenKept, ResumeError};

/// Returns the description of a stream; nothing for another execution.
pub(in crate::server) fn described<R: Reactor + 'static>(
    guests: &Guests<R>,
    run: &ServedRun,
) -> Option<Value> {
    let at = run.guest.stream?;
    Some(describe(guests, at))
}

fn describe<R: Reactor + 'static>(guests: &Guests<R>, at: usize) -> Value {
    let Stream { key, state, source, origin, .. } = &guests.durable.streams[at];
    let StreamState { config, tail, first_tail, seq, producers, closed, is_gone, voids, undo } =
        state;
    let source = source.map(|at| guests.durable.streams[at].execution.to_string());
    let producer = |Producer { id, epoch, seq }: &Producer| json!([id, epoch, seq]);
    let mut members = json!({
        "path": key.path,
        "type": config.media_type,
        "tail": tail,
        "first_tail": first_tail,
        "origin": origin,
    });
    for (name, value) in [
        ("asked_type", json!(config.asked_type)),
        ("asked_ttl_s", json!(config.asked_ttl_s)),
        ("asked_expires_us", json!(config.asked_expires_us)),
        ("forked_from", json!(config.forked_from)),
        ("ttl_s", json!(config.ttl_s)),
        ("expires_us", json!(config.expires_us)),
        ("source", json!(source)),
        ("anchor", if source.is_some() { json!(config.anchor) } else { Value::Null }),
        ("seq", json!(seq)),
        ("closed", json!(closed.as_ref().map(|closed| json!(closed.by.as_ref().map(producer))))),
        ("gone", if *is_gone { Value::Bool(true) } else { Value::Null }),
    ] {
        if !value.is_null() || (name == "closed" && closed.is_some()) {
            members[name] = value;
        }
    }
    if !producers.is_empty() {
        members["producers"] = producers.iter().map(producer).collect();
    }
    if !voids.is_empty() {
        members["voids"] = json!(voids);
    }
    if let Some(Undo { tail, seq, producer }) = undo {
        let producer = producer.as_ref().map(|Before { id, last }| {
            let (epoch, seq) = last.unzip();
            json!({"id": id, "epoch": epoch, "seq": seq})
        });
        members["undo"] = json!({"tail": tail, "seq": seq, "producer": producer});
    }
    members
}

/// Writes the description of a stream to the journal, before the chunks that it speaks of. Returns
/// its place; `None` if the execution has ended, because its last description says all.
pub(super) fn note<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
) -> Result<Option<Lsn>, Refused> {
    let stream = &shard.guests.durable.streams[at];
    let execution = stream.execution;
    let owner = stream.key.owner.clone();
    let mut guest = json!({"stream": describe(&shard.guests, at)});
    if let Some(owner) = owner {
        guest["owner"] = json!(owner);
    }
    match shard.amend(execution, guest) {
        Ok(lsn) => Ok(Some(lsn)),
        Err(AmendError::Refused(refused)) => Err(refused),
        Err(AmendError::NotFound) => Ok(None),
    }
}

/// Brings the execution of a stream into the engine.
pub(super) fn resume<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
) -> Result<(), ResumeError> {
    let stream = &shard.guests.durable.streams[at];
    let (execution, owner) = (stream.execution, stream.key.owner.clone());
    let owner = shard.guests.access.principal_of(owner.as_deref());
    let options = super::create::options_of(owner);
    shard.resume(execution, &options)?;
    if let Some(run) = shard.run_of_mut(execution) {
        run.guest.stream = Some(at);
    }
    Ok(())
}

/// A stream that the journal had at the start.
pub(in crate::server) struct KeptStream {
    execution: ExecutionId,
    owner: Option<Box<str>>,
    /// Its description.
    described: Value,
    /// Number of its bytes.
    bytes: u64,
    has_ended: bool,
}

/// The streams that the journal had at the start, and the marks of removed ones.
pub(in crate::server) struct KeptStreams {
    streams: Vec<KeptStream>,
    markers: Vec<KeptMarker>,
}

/// Returns the streams among the executions that the journal had at the start.
pub(in crate::server) fn kept_streams(ended: &[Described], open: &[OpenKept]) -> KeptStreams {
    let markers = marker::kept_markers(open);
    let ended = ended.iter().map(|kept| (kept.id, &kept.opened.guest, kept.totals.bytes, true));
    let open = open.iter().map(|kept| (kept.id, &kept.opened.guest, kept.totals.bytes, false));
    let streams = ended.chain(open).filter(|(_, guest, ..)| guest["stream"].is_object());
    let streams = streams.map(|(execution, guest, bytes, has_ended)| KeptStream {
        execution,
        owner: guest["owner"].as_str().map(Box::from),
        described: guest["stream"].clone(),
        bytes,
        has_ended,
    });
    KeptStreams { streams: streams.collect(), markers }
}

/// Adds the streams that the journal had at the start.
pub(in crate::server) fn fill<R: Reactor + 'static>(shard: &mut ServerShard<R>, all: KeptStreams) {
    let KeptStreams { streams: all, markers } = all;
    let (mut sources, mut unborn, mut reverted) = (Vec::new(), Vec::new(), Vec::new());
    for kept in &all {
        match enter(shard, kept) {
            (at, Entered::Unborn) => unborn.push(at),
            (at, Entered::Reverted) => reverted.push(at),
            (_, Entered::Whole) => {}
        }
        let at = shard.guests.durable.by_execution[&kept.execution];
        let source = kept.described["source"].as_str().and_then(|id| id.parse().ok());
        sources.extend(source.map(|source: ExecutionId| (at, source)));
    }
    let durable = &mut shard.guests.durable;
    for (at, source) in sources {
        if let Some(&source) = durable.by_execution.get(&source) {
            durable.streams[at].source = Some(source);
            durable.streams[source].fork_count += 1;
        }
    }
    let streams: Vec<usize> = durable.streams.iter().map(|(at, _)| at).collect();
    let names: Vec<Key> = durable.streams.iter().map(|(_, stream)| stream.key.clone()).collect();
    cluster::claim_kept(shard, names.into_iter().map(PathName::from));
    for at in streams {
        touch(shard, at);
        finish_interrupted(shard, at);
    }
    for KeptMarker { marker, stream } in markers {
        match shard.guests.durable.by_execution.get(&stream) {
            None => marker::remove(shard, marker),
            Some(&at) => {
                let stream = &mut shard.guests.durable.streams[at];
                (stream.state.is_gone, stream.marker) = (true, Some(marker));
                let key = stream.key.clone();
                shard.guests.durable.paths.hide(&key);
            }
        }
    }
    let unused = shard.guests.durable.streams.iter();
    let unused = unused.filter(|(_, stream)| stream.state.is_gone && stream.fork_count == 0);
    let unused: Vec<usize> = unused.map(|(at, _)| at).collect();
    for at in reverted {
        // Appends that follow are not those that the old description speaks of.
        let noted = note(shard, at);
        shard.guests.durable.streams[at].is_undescribed = noted.is_err();
    }
    // The creation of the first ones was not answered. The others have lost their last fork.
    for at in unborn.into_iter().chain(unused) {
        if shard.guests.durable.streams.contains(at) {
            remove::expire(shard, at);
        }
    }
}

/// The state of a stream that the journal had at the start.
enum Entered {
    Whole,
    /// Its last append is not on the disk, or only a part of it is.
    Reverted,
    /// Its first content is not whole.
    Unborn,
}

/// Enters a stream from its description.
fn enter<R: Reactor + 'static>(shard: &mut ServerShard<R>, kept: &KeptStream) -> (usize, Entered) {
    let described = &kept.described;
    let text = |value: &Value| value.as_str().map(Box::from);
    let path: Box<str> = text(&described["path"]).unwrap_or_default();
    let origin = described["origin"].as_u64().unwrap_or(0);
    let mut state = state_of(described);
    let position = origin + kept.bytes;
    let entered = match position {
        position if position < state.first_tail => Entered::Unborn,
        position if position < state.tail => Entered::Reverted,
        _ => Entered::Whole,
    };
    match entered {
        Entered::Whole => state.tail = position,
        Entered::Reverted | Entered::Unborn => state.revert(position),
    }
    if kept.has_ended && state.closed.is_none() {
        state.closed = Some(Closed::default());
    }
    let key = Key { owner: kept.owner.clone(), path };
    let (now, own) = (shard.now, own_index(shard));
    let head = StreamHead::new(kept.execution, origin, state.tail);
    let is_gone = state.is_gone;
    let mut stream = Stream::new(key.clone(), state, kept.execution, origin, now);
    stream.head = Some(Arc::clone(&head));
    let durable = &mut shard.guests.durable;
    let at = durable.streams.insert(stream);
    durable.paths.claim(&key, own);
    if !is_gone {
        durable.paths.show(&key, head);
        durable.note_moved(&key);
    }
    durable.by_key.insert(key, at);
    durable.by_execution.insert(kept.execution, at);
    (at, entered)
}

fn state_of(described: &Value) -> StreamState {
    let text = |value: &Value| value.as_str().map(Box::from);
    let number = |name: &str| described[name].as_u64();
    let producer = |value: &Value| {
        let id = text(&value[0])?;
        Some(Producer { id, epoch: value[1].as_u64()?, seq: value[2].as_u64()? })
    };
    let forked_from = &described["forked_from"];
    let undo = &described["undo"];
    let undone = |value: &Value| {
        let last = value["epoch"].as_u64().zip(value["seq"].as_u64());
        Some(Before { id: text(&value["id"])?, last })
    };
    StreamState {
        config: Config {
            asked_type: text(&described["asked_type"]),
            asked_ttl_s: number("asked_ttl_s"),
            asked_expires_us: number("asked_expires_us"),
            forked_from: text(&forked_from[0])
                .map(|path| (path, forked_from[1].as_u64().unwrap_or(0))),
            media_type: text(&described["type"]).unwrap_or_default(),
            ttl_s: number("ttl_s"),
            expires_us: number("expires_us"),
            anchor: number("anchor").unwrap_or(0),
        },
        tail: number("tail").unwrap_or(0),
        first_tail: number("first_tail").unwrap_or(0),
        seq: text(&described["seq"]),
        producers: described["producers"]
            .as_array()
            .map(|all| all.iter().filter_map(producer).collect())
            .unwrap_or_default(),
        closed: described.get("closed").map(|by| Closed { by: producer(by) }),
        is_gone: described["gone"] == true,
        voids: described["voids"]
            .as_array()
            .map(|all| all.iter().filter_map(|v| v[0].as_u64().zip(v[1].as_u64())).collect())
            .unwrap_or_default(),
        undo: undo.is_object().then(|| Undo {
            tail: undo["tail"].as_u64().unwrap_or(0),
            seq: text(&undo["seq"]),
            producer: undone(&undo["producer"]),
        }),
    }
}

/// Ends the execution of a stream whose last append has closed it, if the end is not on the disk.
fn finish_interrupted<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    let stream = &shard.guests.durable.streams[at];
    let execution = stream.execution;
    let is_open = shard.guests.archive.get(execution).is_none();
    if stream.state.closed.is_some() && is_open && resume(shard, at).is_ok() {
        let _ = shard.finish(execution, Ok(())); // It was just brought back.
    }
}
