//! Executions that go on after a restart.
//!
//! They are fed by hand and opened with `goes_on`. A start does not end them. Their description
//! and their chunks stay in the journal, and their owner brings them into the engine when it needs
//! them ([`resume`]). The ring then begins behind the last kept chunk, and everything before comes
//! from the disk. Nothing is read for that. One that nobody follows can leave the engine without an
//! end ([`suspend`]). The end of a process does not end them either, be it a crash or not.
//!
//! The owner keeps its own state in the description, and changes it with [`amend`], whether the
//! execution is in the engine or not. The last record counts. A record that was appended before a
//! chunk is on the disk if the chunk is.
//!
//! An execution keeps the clocks of the process that has opened it. The times of later chunks are
//! converted to them before they are kept ([`ClockAnchor::moment_of`]).
//!
//! In the engine such an execution has another place than its id says: see `recall.rs`.
//!
//! Tests: `goes_on_tests.rs`.

use serde_json::Value;

use super::details::{GoesOn, OpenedDetails};
use super::keeping::Keeping;
use super::late::{Late, ingest_late};
use super::recall::spec_of;
use crate::base::{ExecutionId, Guarded, Instant};
use crate::engine::{Event, Hold, OpenSpec, ProgressSource, Reply, SuspendError, Timeouts};
use crate::journal::format::Lsn;
use crate::journal::{Fault, Journal, KeptId, Living, Refused};
use crate::memory::{ClockAnchor, Start};
use crate::reactor::Reactor;
use crate::shard::outlet::Outlet;
use crate::shard::run::{Producer, Run};
use crate::shard::{ExecuteError, ExecuteOptions, Names, Shard, execute};
use crate::stream::{Durability, Totals};
use crate::tool::Work;

/// An execution in the journal that goes on and has not ended.
#[allow(dead_code, reason = "only guests with streams of their own use it")]
#[derive(Clone, Debug)]
pub(crate) struct OpenKept {
    pub id: ExecutionId,
    /// The wall-clock time of its beginning, in microseconds since 1970.
    pub opened_us: u64,
    pub opened: OpenedDetails,
    /// The totals of all its chunks.
    pub totals: Totals,
}

/// The reason why an execution was not resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResumeError {
    /// Give up: it is not kept, has ended, or does not go on.
    NotFound,
    /// Wait, or give up: the shard has no place, no memory or no disk for it now.
    Refused(ExecuteError),
}

/// The reason why a description was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AmendError {
    /// Give up: it is not kept, or has ended.
    NotFound,
    /// Wait, or give up: the journal takes no record now, or not this one.
    Refused(Refused),
}

/// The description of an open execution; `None` if a restart ends it.
pub(super) fn goes_on_of(journal: &Journal, kept: KeptId) -> Option<OpenedDetails> {
    let kept = journal.get(kept).filter(|kept| kept.ended.is_none())?;
    let opened = OpenedDetails::decode(&kept.living.as_ref()?.details);
    opened.goes_on.is_some().then_some(opened)
}

/// The executions that go on and have not ended.
pub(crate) fn open_kept(keeping: &Keeping) -> Vec<OpenKept> {
    let open = keeping.journal.executions().filter_map(|(name, kept)| {
        let opened = goes_on_of(&keeping.journal, name)?;
        let Living { opened_us, position, .. } = **kept.living.as_ref()?;
        let id = ExecutionId::from_bits(kept.id);
        Some(OpenKept { id, opened_us, opened, totals: position.all })
    });
    open.collect()
}

/// Payload bytes of all chunks of an execution.
pub(crate) fn published_bytes(keeping: &Keeping, kept: KeptId) -> Option<u64> {
    keeping.journal.get(kept).map(|kept| kept.published().1)
}

/// The name and the state of an execution that has not ended.
fn open_one(journal: &Journal, id: ExecutionId) -> Option<(KeptId, &Living)> {
    let name = journal.find(id.to_bits())?;
    let kept = journal.get(name).filter(|kept| kept.ended.is_none())?;
    Some((name, kept.living.as_ref()?))
}

/// True if a record of an execution is kept as promised; an error if it never will be.
#[allow(dead_code, reason = "only guests with streams of their own use it")]
pub(crate) fn is_amended(keeping: &Keeping, id: ExecutionId, lsn: Lsn) -> Result<bool, Fault> {
    let name = keeping.journal.find(id.to_bits());
    match keeping.journal.fault() {
        Some(fault) => Err(fault),
        None => Ok(name.is_some_and(|name| keeping.journal.is_kept_at(name, lsn))),
    }
}

/// True if the disk keeps all of an open execution as promised.
#[allow(dead_code, reason = "only guests with streams of their own use it")]
fn keeps_all(journal: &Journal, name: KeptId) -> bool {
    let Some(living) = journal.get(name).and_then(|kept| kept.living.as_ref()) else {
        return false;
    };
    let amended = living.amended_until;
    let is_amended = amended == Lsn(0) || journal.is_kept_at(name, Lsn(amended.0 - 1));
    let is_durable = journal.durable_until(name) == Some(living.position.next_seq());
    living.missing.is_none() && is_durable && is_amended
}

/// Brings an execution into the engine that goes on. See [`Shard::resume`].
pub(crate) fn resume<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    options: &ExecuteOptions,
) -> Result<(), ResumeError> {
    if let Some(run) = shard.run_of(id) {
        return if run.is_fed() { Ok(()) } else { Err(ResumeError::NotFound) };
    }
    let keeping = shard.keeping.as_deref().ok_or(ResumeError::NotFound)?;
    let (name, living) = open_one(&keeping.journal, id).ok_or(ResumeError::NotFound)?;
    let opened = goes_on_of(&keeping.journal, name).ok_or(ResumeError::NotFound)?;
    if keeping.journal.fault().is_some() {
        return Err(ResumeError::Refused(ExecuteError::NotKept(Refused::Broken)));
    }
    let Living { durability, position, opened_us, .. } = *living;
    let start =
        Start { seq: position.next_seq(), total_bytes: position.all.bytes, kinds: position.totals };
    let found = Found { id, name, durability, start, opened_us };
    bring_in(shard, &found, opened, options).map_err(ResumeError::Refused)
}

/// An execution that is being resumed.
struct Found {
    id: ExecutionId,
    name: KeptId,
    durability: Durability,
    /// Everything before its next chunk.
    start: Start,
    opened_us: u64,
}

fn bring_in<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    found: &Found,
    opened: OpenedDetails,
    options: &ExecuteOptions,
) -> Result<(), ExecuteError> {
    let OpenedDetails { tool, has_parts, is_relayed, anchor, goes_on, guest, .. } = opened;
    let GoesOn { ring_bytes, chunk_bytes, deliver, on_full } = goes_on.expect("it goes on");
    let &Found { id, name, durability, start, opened_us } = found;
    let is_late = execute::is_told_late((deliver, on_full), durability)?;
    let mut spec = OpenSpec::new(shard.expected_ring(ring_bytes, chunk_bytes)?);
    spec.hold = Hold::Newest; // Everything is on disk.
    spec.retention = options.retention.unwrap_or(shard.retention);
    spec.block_deadline = options.block_deadline.unwrap_or(shard.block_deadline);
    spec.on_stall = options.on_stall;
    spec.timeouts = options.timeouts.unwrap_or(Timeouts::NONE);
    spec.progress = options.progress.unwrap_or(ProgressSource::Tool);
    spec.kept = true;
    spec.secret = shard.secrets.draw().map_err(|_| ExecuteError::NoRandomness)?;
    let guest = O::restore(shard, id, &guest);
    let Reply::Opened(result) = shard.ask(Event::Resume(spec, &start.kinds)) else {
        unreachable!("the reply fits the request");
    };
    let engine_id = result.map_err(ExecuteError::Open)?;
    execute::release_before(shard, engine_id.slot);
    let tool = tool.map(|name| spec_of(shard, &name, (has_parts, is_relayed)));
    let head_seq = start.seq - 1;
    let full_max = execute::full_max(options, true, spec.block_deadline);
    let late = is_late.then(|| Late::new((deliver, on_full), full_max, head_seq));
    let opened_at = shard.anchor.moment_of(0, &ClockAnchor { wall_us: opened_us, mono_ns: 0 });
    let run = Run {
        handle: engine_id.slot,
        names: Names { has_parts, ..Names::new(id, None) },
        tool,
        timeouts: spec.timeouts,
        opened_at: Instant::from_nanos(opened_at),
        ring_bytes,
        chunk_bytes,
        ingested_seq: head_seq,
        kept: Some(name),
        late: late.map(Box::new),
        anchor: Some(anchor),
        goes_on: true,
        start: Some(Box::new(start)),
        ..Run::new(id, Producer::Waiting(Guarded::new(Work::Feed)), guest)
    };
    shard.runs[engine_id.slot.index as usize] = Some(run);
    shard.places.insert(id, engine_id);
    shard.pump();
    Ok(())
}

/// Takes an execution out of the engine that goes on. See [`Shard::suspend`].
#[allow(dead_code, reason = "only guests with streams of their own use it")]
pub(crate) fn suspend<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
) -> Result<(), SuspendError> {
    let place = shard.place_of(id);
    let Some(run) = shard.run_of(id).filter(|run| run.goes_on && run.is_fed()) else {
        return Err(SuspendError::NotFound);
    };
    let (Some(name), Some(keeping)) = (run.kept, shard.keeping.as_deref()) else {
        return Err(SuspendError::NotFound);
    };
    if run.ingested_seq < run.head_seq() || !keeps_all(&keeping.journal, name) {
        return Err(SuspendError::NotDurable);
    }
    let Reply::Suspended(result) = shard.ask(Event::Suspend(place)) else {
        unreachable!("the reply fits the request");
    };
    if result.is_ok()
        && let Some(keeping) = shard.keeping.as_deref_mut()
    {
        keeping.holed.retain(|other| *other != name); // No tool waits for it.
    }
    shard.pump();
    result
}

/// Changes the description of an open execution. See [`Shard::amend`].
pub(crate) fn amend<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    guest: Value,
) -> Result<Lsn, AmendError> {
    if shard.run_of(id).is_some_and(|run| run.is_end_recorded) {
        return Err(AmendError::NotFound); // Its end waits for room.
    }
    let keeping = shard.keeping.as_deref_mut().ok_or(AmendError::NotFound)?;
    let (name, living) = open_one(&keeping.journal, id).ok_or(AmendError::NotFound)?;
    let opened = OpenedDetails { guest, ..OpenedDetails::decode(&living.details) };
    keeping.is_touched = true;
    let moment = keeping.moment(shard.now);
    let amended = keeping.journal.amend(name, &opened.encode(), moment);
    let lsn = amended.map_err(AmendError::Refused)?;
    keeping.await_promise(name);
    Ok(lsn)
}

/// Keeps executions open that go on, because the process ends. One whose producer has ended gets
/// its end now.
pub(crate) fn leave_open<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let mut ending = Vec::new();
    for run in shard.runs.iter_mut().flatten().filter(|run| run.goes_on) {
        run.stays_open = run.is_fed();
        if !run.stays_open && run.late.is_some() {
            ending.push(run.handle.index);
        }
    }
    for index in ending {
        ingest_late(shard, index);
        shard.pump();
    }
}
