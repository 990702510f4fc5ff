//! Executions of other nodes.
//!
//! A guest reads their log, and feeds what comes into the ring of the *replica*. Subscribers of the
//! replica are given the rest by the guest, too: it answers the questions that a disk would answer
//! ([`Outlet::look_back`]). A replica therefore begins where the log is now, whatever its
//! subscribers want, and one is enough for all of them.
//!
//! A replica has the id of the execution, and the clocks of its owner. In the engine it has another
//! place: `Shard::places` knows it.
//!
//! Tests: `replica_tests.rs`.

use smallvec::SmallVec;

use super::act;
use super::execute;
use super::feed;
use super::journal::{EndedDetails, OpenedDetails, spec_of};
use super::outlet::Outlet;
use super::run::{Producer, Remote, Ring, Run};
use super::{ExecuteError, Names, PublishError, Shard, produce};
use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Guarded, Instant};
use crate::engine::{
    ChunkFacts, Event, NotFound, OpenSpec, ProducerEnd, ProgressSource, Reply, SuspendError,
    Timeouts,
};
use crate::journal::format::KeptChunk;
use crate::limits;
use crate::memory::{ClockAnchor, Start};
use crate::reactor::Reactor;
use crate::stream::{KindTotals, Kinds, Outcome};
use crate::tool::Work;

/// An execution of another node, as its log describes it.
pub(crate) struct Replica {
    pub opened: OpenedDetails,
    /// The wall-clock time of its beginning, in microseconds since 1970.
    pub opened_us: u64,
    /// The size of its ring, in bytes.
    pub ring_bytes: u32,
    /// The longest chunk that its ring has to hold, in bytes.
    pub chunk_bytes: u32,
    /// Number of chunks that its tool will publish, if it has said so.
    pub chunks_expected: Option<u64>,
    /// The totals of all chunks that are in the log already.
    pub before: KindTotals,
    /// The end, if the log has it.
    pub end: Option<EndedDetails>,
}

/// Gives the engine an execution of another node.
pub(super) fn adopt<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    replica: Replica,
) -> Result<(), ExecuteError> {
    let Replica { opened, opened_us, ring_bytes, chunk_bytes, before, end, .. } = replica;
    let OpenedDetails { tool, has_parts, is_relayed, token, anchor, guest, .. } = opened;
    let (ring_bytes, chunk_bytes) = match end {
        None => (ring_bytes, chunk_bytes),
        Some(_) => (limits::RING_CLASS_BYTES[0], 0), // It gets none.
    };
    let mut spec = OpenSpec::new(shard.expected_ring(ring_bytes, chunk_bytes)?);
    spec.retention = shard.retention;
    spec.block_deadline = shard.block_deadline;
    spec.timeouts = Timeouts::NONE;
    spec.progress = ProgressSource::Tool;
    spec.kept = true;
    spec.secret = shard.secrets.draw().map_err(|_| ExecuteError::NoRandomness)?;
    let guest = O::restore(shard, id, &guest);
    let has_panicked = end.as_ref().is_some_and(|end| end.has_panicked);
    let verdict = end.map(|end| end.verdict(before));
    let event = match &verdict {
        Some(verdict) => Event::Revive(spec, verdict),
        None => Event::Resume(spec, &before),
    };
    let Reply::Opened(result) = shard.ask(event) else {
        unreachable!("the reply fits the request");
    };
    let engine_id = result.map_err(ExecuteError::Open)?;
    execute::release_before(shard, engine_id.slot);
    let tool = tool.map(|name| spec_of(shard, &name, (has_parts, is_relayed)));
    let all = before.of(Kinds::ALL);
    let start = Start { seq: all.chunks + 1, total_bytes: all.bytes, kinds: before };
    let opened_at = shard.anchor.moment_of(0, &ClockAnchor { wall_us: opened_us, mono_ns: 0 });
    let token = token.map(String::from);
    let producer = match verdict {
        Some(_) => Producer::Gone,
        None => Producer::Waiting(Guarded::new(Work::Feed)),
    };
    let run = Run {
        handle: engine_id.slot,
        names: Names { has_parts, token, is_replica: true, ..Names::new(id, None) },
        tool,
        opened_at: Instant::from_nanos(opened_at),
        ring_bytes,
        chunk_bytes,
        chunks_expected: replica.chunks_expected,
        ingested_seq: all.chunks,
        has_verdict: verdict.is_some(),
        has_panicked,
        anchor: Some(anchor),
        is_replica: true,
        start: verdict.is_none().then(|| Box::new(start)),
        error: verdict.and_then(|verdict| verdict.error),
        ..Run::new(id, producer, guest)
    };
    shard.runs[engine_id.slot.index as usize] = Some(run);
    shard.places.insert(id, engine_id);
    shard.pump();
    Ok(())
}

/// Publishes the next chunks of a replica, with the times of its owner, as far as there is room.
/// Those that the replica has already are passed. Returns the number of the next chunk.
pub(super) fn feed<'a, R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    chunks: impl Iterator<Item = KeptChunk<'a>>,
) -> Result<u64, PublishError> {
    let run = shard.run_of(id).filter(|run| run.is_replica).ok_or(PublishError::NotFound)?;
    let (index, handle) = (run.handle.index, run.handle);
    let mut next_seq = run.head_seq() + 1;
    let first_seq = next_seq;
    let mut chunks = chunks.skip_while(|chunk| chunk.entry.seq < first_seq).peekable();
    while let Some(first) = chunks.peek() {
        assert!(first.entry.seq == next_seq); // The guest has skipped what is missing.
        let burst = shard.engine.burst_chunks(handle) as usize;
        let mut facts: SmallVec<[ChunkFacts; limits::BURST_CHUNKS_MAX as usize]> = SmallVec::new();
        let (mut refused, mut left_bytes) = (None, burst_bytes(shard, index));
        while facts.len() < burst
            && let Some(chunk) = chunks.peek()
            && (facts.is_empty() || chunk.entry.length <= left_bytes)
        {
            left_bytes = left_bytes.saturating_sub(chunk.entry.length);
            match feed::write_apart(shard, (id, index), chunk) {
                Ok(written) => facts.push(written),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
            chunks.next();
        }
        next_seq += facts.len() as u64;
        if !facts.is_empty() {
            produce::ingest_written(shard, index, &facts);
        }
        match refused {
            None => {}
            Some(PublishError::Blocked) => {
                feed::say_that_it_is_gated(shard, index);
                return Ok(next_seq);
            }
            Some(PublishError::TooLarge { .. }) => {
                let chunk = chunks.next().expect("it was just refused");
                next_seq += 1;
                pass(shard, id, &chunk);
            }
            Some(PublishError::NotFound) => return Err(PublishError::NotFound),
        }
    }
    Ok(next_seq)
}

/// Number of bytes that a burst may have, so that it overwrites nothing of itself: half of a ring.
/// A log can have longer chunks than a tool writes at once.
fn burst_bytes<R: Reactor + 'static, O: Outlet<R>>(shard: &Shard<R, O>, index: u32) -> u32 {
    match shard.runs[index as usize].as_ref().map(|run| &run.ring) {
        Some(Ring::Here(writer)) => writer.geometry().data_bytes() / 2,
        _ => 0,
    }
}

/// Passes a chunk that its ring does not take. Subscribers are given it from the log.
fn pass<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    chunk: &KeptChunk<'_>,
) {
    let handle = shard.run_of(id).expect("it is being fed").handle;
    let before = shard.engine.totals_before(handle, chunk.entry.seq);
    let mut through = before.expect("the engine has it");
    through.count(chunk.entry.kind, chunk.entry.length);
    let _ = skip(shard, id, &through); // It is fed.
}

/// Continues a replica behind chunks that its log does not have. `through` are the totals of all
/// chunks up to the next one, by kind. Returns false if it has no ring yet.
pub(super) fn skip<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    through: &KindTotals,
) -> Result<bool, NotFound> {
    let place = shard.place_of(id).slot.index;
    let run = shard.runs.get_mut(place as usize).and_then(Option::as_mut);
    let run = run.filter(|run| run.id == id && run.is_replica && run.is_fed()).ok_or(NotFound)?;
    let Ring::Here(writer) = &mut run.ring else { return Ok(false) };
    if !matches!(run.producer, Producer::Feed) {
        return Ok(false);
    }
    let all = through.of(Kinds::ALL);
    assert!(all.chunks > run.ingested_seq);
    let held = writer.tail_seq()..=run.ingested_seq + 1;
    run.remotes
        .iter()
        .filter_map(Remote::refill)
        .for_each(|refill| refill.leave_ring(held.clone()));
    writer.skip_to(&Start { seq: all.chunks + 1, total_bytes: all.bytes, kinds: *through });
    run.ingested_seq = all.chunks;
    shard.guests.copy_out(run, all.chunks, &mut shard.scratch);
    let handle = run.handle;
    if run.has_readers_elsewhere() && !shard.published.contains(&place) {
        shard.published.push(place);
    }
    if !planted(Planted::SkipNotTold) {
        shard.tell(Event::Skipped(handle, through));
    }
    shard.pump();
    Ok(true)
}

/// Ends a replica as its log says. Returns false if it has not begun yet.
pub(super) fn end<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    details: &EndedDetails,
) -> Result<bool, NotFound> {
    let place = shard.place_of(id);
    let run = shard.run_of_mut(id).filter(|run| run.is_replica && run.is_fed()).ok_or(NotFound)?;
    if !matches!(run.producer, Producer::Feed) {
        return Ok(false);
    }
    run.producer = Producer::Gone;
    run.has_panicked = details.has_panicked;
    let handle = run.handle;
    assert!(handle == place.slot);
    shard.look_at_clock();
    if let Some(exit) = details.exit {
        shard.tell(Event::Exited(handle, exit));
    }
    let end = match details.outcome {
        Outcome::Completed => ProducerEnd::Done,
        Outcome::Failed => ProducerEnd::Failed(details.error.as_deref().unwrap_or("")),
        Outcome::Cancelled => ProducerEnd::Stopped,
        Outcome::TimedOut => ProducerEnd::TimedOut,
    };
    shard.tell(Event::ProducerEnded(handle, end));
    act::pump(shard);
    Ok(true)
}

/// Takes a replica out of the engine, if nobody follows it.
pub(super) fn dismiss<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
) -> Result<(), SuspendError> {
    let place = shard.place_of(id);
    if !shard.run_of(id).is_some_and(|run| run.is_replica && run.is_fed()) {
        return Err(SuspendError::NotFound);
    }
    let Reply::Suspended(result) = shard.ask(Event::Suspend(place)) else {
        unreachable!("the reply fits the request");
    };
    shard.pump();
    result
}
