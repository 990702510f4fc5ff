//! Chunks by hand: the owner of an execution publishes, reports and finishes it on the shard's own
//! thread.

use std::fmt;

use smallvec::SmallVec;

use super::outlet::Outlet;
use super::run::{Producer, Ring, Run};
use super::{Shard, act, give, growth, produce};
use crate::base::{ExecutionId, Handle, Instant};
use crate::engine::{ChunkFacts, Gate, NotFound};
use crate::journal::format::{ChunkEntry, KeptChunk};
use crate::limits;
use crate::memory::{CHUNK_MORE, ChunkHeader, Descriptor, RingWriter, WriteError};
use crate::reactor::Reactor;
use crate::stream::Kind;
use crate::tool::{Report, ToolError, ToolUpdate, Work};

/// The reason why a chunk was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishError {
    /// Give up: the execution does not exist, has ended, or is not fed by hand.
    NotFound,
    /// Wait: a `block` subscriber has to read first, or the first subscriber has to come
    /// ([`Hold`](crate::engine::Hold)), or the execution has not begun yet. Under
    /// [`OnFull::Wait`](crate::stream::OnFull) and
    /// [`Deliver::WhenDurable`](crate::stream::Deliver) the disk may have to move first.
    Blocked,
    /// Split it: it is longer than a chunk of this ring may be.
    TooLarge {
        /// The maximum, in bytes.
        chunk_bytes_max: u32,
    },
}

/// Publishes a chunk of an execution that is fed by hand, and gives it to the subscribers of
/// this thread. Returns its number.
#[inline]
pub(super) fn publish<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    kind: Kind,
    payload: &[u8],
) -> Result<u64, PublishError> {
    let now = shard.reactor.now();
    publish_at(shard, id, kind, kind as u8, payload, now)
}

/// Like [`Shard::publish`], at the time `now`, which is stored in the chunk, and with a key
/// below 64.
#[inline]
pub(super) fn publish_at<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    kind: Kind,
    key: u8,
    payload: &[u8],
    now: Instant,
) -> Result<u64, PublishError> {
    assert!((key as usize) < limits::KEYS_MAX);
    let header = ChunkHeader { kind: kind as u8, key, flags: 0 };
    shard.now = shard.now.max(now);
    let index = id.slot.index;
    let (gate, writer) = match fed_writer(shard, id, index) {
        Ok(found) => found,
        Err(error) => return publish_elsewhere(shard, id, (header, payload, now), error),
    };
    match write_within(gate, writer, header, payload, now) {
        Ok(descriptor) => {
            let tail_seq = writer.tail_seq();
            let facts = ChunkFacts { length: descriptor.length, kind, key, tail_seq };
            if produce::tell_of_written(shard, index, &[facts]) && shard.observer.is_none() {
                give::give_at_once(shard, index, &descriptor, &[payload]);
            } else {
                act::pump_if_due(shard);
            }
            shard.deadline_stale |= shard.engine.take_has_armed();
            Ok(descriptor.seq)
        }
        Err(PublishError::NotFound) => Err(PublishError::NotFound),
        Err(PublishError::Blocked | PublishError::TooLarge { .. }) => {
            let payload = std::slice::from_ref(&payload);
            publish_each(shard, id, header, payload, now).map_err(|(_, error)| error)
        }
    }
}

/// Publishes a chunk of an execution that has another place than its id says, if there is one. The
/// path of all others has no look for that.
#[cold]
fn publish_elsewhere<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    (header, payload, now): (ChunkHeader, &[u8], Instant),
    error: PublishError,
) -> Result<u64, PublishError> {
    if index_of(shard, id) == id.slot.index {
        return Err(error);
    }
    publish_each(shard, id, header, &[payload], now).map_err(|(_, error)| error)
}

/// Publishes several chunks, and only then gives them to the subscribers of this thread. This
/// is less work for each chunk. Returns the number of the last one.
pub(super) fn publish_batch<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    kind: Kind,
    payloads: &[&[u8]],
    now: Instant,
) -> Result<u64, (usize, PublishError)> {
    let header = ChunkHeader { kind: kind as u8, key: kind as u8, flags: 0 };
    publish_each(shard, id, header, payloads, now)
}

pub(super) fn publish_each<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    header: ChunkHeader,
    payloads: &[&[u8]],
    now: Instant,
) -> Result<u64, (usize, PublishError)> {
    shard.now = shard.now.max(now);
    let index = index_of(shard, id);
    let mut count = 0;
    while count < payloads.len() {
        match write_burst(shard, (id, index), header, &payloads[count..], now) {
            Ok(written) => count += written,
            Err(PublishError::Blocked) if look_for_room(shard, index) => {}
            Err(PublishError::TooLarge { .. })
                if growth::grow_for_chunk(shard, index, payloads[count].len()) => {}
            Err(error) => return Err((count, error)),
        }
    }
    let run = shard.runs[index as usize].as_ref();
    Ok(run.map_or(0, Run::head_seq))
}

/// Writes at least one chunk, and at most as many as the engine takes at once. Tells the
/// engine. Returns their number.
pub(super) fn write_burst<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    (id, index): (ExecutionId, u32),
    header: ChunkHeader,
    payloads: &[&[u8]],
    now: Instant,
) -> Result<usize, PublishError> {
    let handle = shard.runs.get(index as usize).and_then(Option::as_ref).map(|run| run.handle);
    let burst = handle.map_or(1, |handle| shard.engine.burst_chunks(handle)) as usize;
    let (gate, writer) = fed_writer(shard, id, index)?;
    let kind = Kind::new(header.kind).expect("the header was made from a kind");
    let mut facts: SmallVec<[ChunkFacts; limits::BURST_CHUNKS_MAX as usize]> = SmallVec::new();
    let mut first = None;
    let payloads = &payloads[..payloads.len().min(burst)];
    while facts.len() < payloads.len() {
        match write_run_within(gate, writer, header, &payloads[facts.len()..], now) {
            Ok((descriptor, count)) => {
                let tail_seq = writer.tail_seq();
                let run = &payloads[facts.len()..facts.len() + count];
                let facts_of = |payload: &&[u8]| ChunkFacts {
                    length: payload.len() as u32,
                    kind,
                    key: header.key,
                    tail_seq,
                };
                facts.extend(run.iter().map(facts_of));
                first.get_or_insert(descriptor);
            }
            Err(error) if first.is_none() => return Err(error),
            Err(_) => break, // It comes again, if it does, after these are ingested.
        }
    }
    if let Some(first) = first {
        ingest_burst(shard, index, &first, payloads, &facts);
    }
    Ok(facts.len())
}

#[inline(never)] // The path of a single chunk is separate from it.
pub(super) fn ingest_burst<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    first: &Descriptor,
    payloads: &[&[u8]],
    facts: &[ChunkFacts],
) {
    if produce::tell_of_written(shard, index, facts) && shard.observer.is_none() {
        give::give_at_once(shard, index, first, payloads);
    } else {
        act::pump_if_due(shard);
    }
    shard.deadline_stale |= shard.engine.take_has_armed();
}

/// The index of an execution in the tables. It is not the one of its id if it was brought back from
/// the disk.
#[inline]
fn index_of<R: Reactor + 'static, O: Outlet<R>>(shard: &Shard<R, O>, id: ExecutionId) -> u32 {
    let run = shard.runs.get(id.slot.index as usize).and_then(Option::as_ref);
    match run.is_some_and(|run| run.id == id) {
        true => id.slot.index,
        false => index_elsewhere(shard, id),
    }
}

#[cold]
fn index_elsewhere<R: Reactor + 'static, O: Outlet<R>>(
    shard: &Shard<R, O>,
    id: ExecutionId,
) -> u32 {
    shard.place_of(id).slot.index
}

/// Returns the writer of an execution that is fed by hand, and its gate.
#[inline]
fn fed_writer<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    index: u32,
) -> Result<(Gate, &mut RingWriter), PublishError> {
    let run = shard.runs.get_mut(index as usize).and_then(Option::as_mut);
    let run = run.filter(|run| run.id == id).ok_or(PublishError::NotFound)?;
    let gate = run.allowed();
    match (&run.producer, &mut run.ring) {
        (Producer::Feed, Ring::Here(writer)) => Ok((gate, writer)),
        (Producer::Waiting(work), _) if matches!(**work, Work::Feed) => Err(PublishError::Blocked),
        _ => Err(PublishError::NotFound),
    }
}

/// Looks for room when the gate is shut. Readers that have moved or left have rung, and are
/// handled without waiting for the next turn. Otherwise the engine is told, once. Returns true
/// if the gate has changed.
pub(super) fn look_for_room<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
) -> bool {
    if growth::grow_for_history(shard, index) {
        return true;
    }
    let allowed = |shard: &Shard<R, O>| shard.runs[index as usize].as_ref().map(Run::allowed);
    let before = allowed(shard);
    if shard.reactor.poll() > 0 {
        shard.answer_bell();
        act::pump(shard);
    }
    say_that_it_is_gated(shard, index);
    allowed(shard) != before || growth::grow(shard, index)
}

/// Tells the engine that there is no room, once for each time that the gate is shut.
pub(super) fn say_that_it_is_gated<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
) {
    let run = shard.runs.get_mut(index as usize).and_then(Option::as_mut);
    let stops_here = run.is_some_and(|run| {
        let has_begun = !matches!(run.producer, Producer::Waiting(_));
        has_begun && !std::mem::replace(&mut run.blocked, true)
    });
    if stops_here {
        produce::ask_for_room(shard, index);
    }
}

/// Publishes as much of a payload as there is room for, in pieces that the ring takes. All but
/// the last piece are flagged `more`. Returns the number of bytes that were published. The
/// kernel is not asked for moved readers: the caller will be told when there is room again.
///
/// # Errors
/// [`PublishError::NotFound`]; the execution may have ended after a part was published.
pub(super) fn publish_pieces<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    kind: Kind,
    payload: &[u8],
) -> Result<usize, PublishError> {
    let (index, now) = (index_of(shard, id), shard.now);
    let mut taken = 0;
    while taken < payload.len() {
        growth::grow_for_chunk(shard, index, payload.len() - taken);
        let (_, writer) = fed_writer(shard, id, index)?;
        let piece_bytes_max = writer.geometry().length_max() as usize;
        let rest = &payload[taken..];
        let piece = &rest[..rest.len().min(piece_bytes_max)];
        let flags = if piece.len() < rest.len() { CHUNK_MORE } else { 0 };
        let header = ChunkHeader { kind: kind as u8, key: kind as u8, flags };
        match write_burst(shard, (id, index), header, &[piece], now) {
            Ok(_) => taken += piece.len(),
            Err(PublishError::Blocked) if growth::grow_for_history(shard, index) => {}
            Err(PublishError::Blocked) => {
                let allowed =
                    |shard: &Shard<R, O>| shard.runs[index as usize].as_ref().map(Run::allowed);
                let before = allowed(shard);
                say_that_it_is_gated(shard, index);
                if allowed(shard) == before && !growth::grow(shard, index) {
                    break;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// Ends an execution that is fed by hand: as completed with `Ok`, as failed with an error text.
pub(super) fn finish<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    result: Result<(), &str>,
) -> Result<(), NotFound> {
    let handle = fed_handle(shard, id)?;
    shard.look_at_clock();
    produce::producer_ended(shard, handle, result.map_err(ToolError::new));
    act::pump(shard);
    Ok(())
}

/// Announces the total number of chunks of an execution that is fed by hand.
pub(super) fn expect_total<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    chunk_count: u64,
) -> Result<(), NotFound> {
    let updates = ToolUpdate { chunks_expected: Some(chunk_count), ..Default::default() };
    note_fed(shard, id, &updates)
}

/// Reports the progress of an execution that is fed by hand.
pub(super) fn report<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    report: Report,
) -> Result<(), NotFound> {
    let mut updates = ToolUpdate::default();
    updates.push(report);
    note_fed(shard, id, &updates)
}

pub(super) fn note_fed<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    updates: &ToolUpdate,
) -> Result<(), NotFound> {
    let handle = fed_handle(shard, id)?;
    shard.look_at_clock();
    produce::pass_on(shard, handle, updates);
    act::pump(shard);
    Ok(())
}

/// Returns the handle of an execution that is fed by hand.
fn fed_handle<R: Reactor + 'static, O: Outlet<R>>(
    shard: &Shard<R, O>,
    id: ExecutionId,
) -> Result<Handle, NotFound> {
    let run = shard.run_of(id).filter(|run| matches!(run.producer, Producer::Feed));
    run.map(|run| run.handle).ok_or(NotFound)
}

/// Writes one chunk of a log, with the time that it has there. The engine is not told.
pub(super) fn write_apart<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    (id, index): (ExecutionId, u32),
    chunk: &KeptChunk<'_>,
) -> Result<ChunkFacts, PublishError> {
    let ChunkEntry { mono_ns, kind, key, flags, .. } = chunk.entry;
    let header = ChunkHeader { kind: kind as u8, key, flags };
    let (gate, writer) = fed_writer(shard, id, index)?;
    let written_at = Instant::from_nanos(mono_ns);
    let descriptor = write_within(gate, writer, header, chunk.payload, written_at)?;
    let tail_seq = writer.tail_seq();
    Ok(ChunkFacts { length: descriptor.length, kind, key, tail_seq })
}

/// Writes one chunk, if the gate admits it.
#[inline(always)] // Descriptors are large and should not be moved.
fn write_within(
    gate: Gate,
    writer: &mut RingWriter,
    header: ChunkHeader,
    payload: &[u8],
    now: Instant,
) -> Result<Descriptor, PublishError> {
    if !gate.admits(writer.head_seq(), writer.total_bytes(), payload.len()) {
        return Err(PublishError::Blocked);
    }
    writer.append(header, payload, now, gate.gate_seq).map_err(PublishError::of)
}

/// Writes as many chunks as the gate admits, and the ring takes at once. That is one at least.
#[inline]
fn write_run_within(
    gate: Gate,
    writer: &mut RingWriter,
    header: ChunkHeader,
    payloads: &[&[u8]],
    now: Instant,
) -> Result<(Descriptor, usize), PublishError> {
    let (head_seq, total_bytes) = (writer.head_seq(), writer.total_bytes());
    let count = gate.admits_some(head_seq, total_bytes, payloads[0].len(), payloads.len());
    if count == 0 {
        return Err(PublishError::Blocked);
    }
    writer.append_run(header, &payloads[..count], now, gate.gate_seq).map_err(PublishError::of)
}

impl PublishError {
    fn of(error: WriteError) -> PublishError {
        match error {
            WriteError::Gated { .. } => PublishError::Blocked,
            WriteError::TooLarge { length_max, .. } => {
                PublishError::TooLarge { chunk_bytes_max: length_max }
            }
        }
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::NotFound => out.write_str("no execution with this id is fed by hand"),
            PublishError::Blocked => out.write_str(
                "wait for a `block` subscriber, for the first subscriber, for the disk, or for the \
                 execution to begin",
            ),
            PublishError::TooLarge { chunk_bytes_max } => {
                write!(out, "a chunk of this ring may have at most {chunk_bytes_max} bytes")
            }
        }
    }
}

impl std::error::Error for PublishError {}
