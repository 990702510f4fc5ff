//! Brings back executions that only the journal remembers, so that they can be followed.
//!
//! The two records of the execution are read from the disk, which takes some turns. Then the engine
//! gets an execution that has ended and holds nothing: its subscribers are given everything from
//! the disk. It is forgotten again after its retention, and can be brought back again.
//!
//! In the engine it has another place than its id says. [`Archive`] knows that place.

use std::collections::HashMap;
use std::io;

use super::details::{EndedDetails, OpenedDetails};
use super::keeping::Keeping;
use crate::base::{ExecutionId, PageBuffer};
use crate::engine::{Engine, Event, NotFound, OpenSpec, Reply, Verdict};
use crate::journal::block::Run as KeptRun;
use crate::journal::format::{Lsn, RunKind};
use crate::journal::records;
use crate::journal::{KeptId, Record};
use crate::limits;
use crate::memory::{Geometry, Lease, RingReader, RingWriter, Start};
use crate::reactor::Reactor;
use crate::shard::outlet::{GuestRun, Outlet};
use crate::shard::run::{Producer, Run};
use crate::shard::{ExecuteOptions, Shard, execute};
use crate::stream::{Kind, KindTotals, Kinds, Totals};
use crate::tool::Work;

/// The answer to [`Shard::recall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// The execution can be followed now.
    Here,
    /// The execution is being read from the disk. Ask again after the next turn.
    Soon,
}

/// Returns a ring that has forgotten the chunks of an ended execution which has no ring any more. A
/// reader on another thread then looks for all of them on the disk.
pub(crate) fn forgotten_ring<X: GuestRun>(run: &Run<X>, engine: &Engine) -> Option<RingReader> {
    let verdict = engine.verdict(run.handle).filter(|_| run.has_verdict)?;
    run.kept?;
    let lease = Lease::heap(Geometry::of_class(limits::RING_CLASS_BYTES[0]));
    let Verdict { head_seq, totals: kinds, .. } = verdict;
    let total_bytes = kinds.of(Kinds::ALL).bytes;
    let start = Start { seq: head_seq + 1, total_bytes, kinds };
    let anchor = run.anchor.unwrap_or_default();
    Some(RingWriter::starting(lease, anchor, &start).reader())
}

/// The executions that were brought back, and those that are on their way.
#[derive(Default)]
pub(super) struct Archive {
    /// The id of the engine for the id that everybody else knows.
    here: HashMap<ExecutionId, ExecutionId>,
    on_their_way: Vec<Recalling>,
}

/// An execution whose records are read.
struct Recalling {
    id: ExecutionId,
    kept: KeptId,
    /// The end and the totals of all chunks, once they are read.
    end: Option<(EndedDetails, KindTotals)>,
    /// Number of reads that have failed.
    failed_count: u32,
}

/// Number of times that a record is read before it counts as damaged.
const ATTEMPTS_MAX: u32 = 3;

impl Archive {
    /// The id of the engine for an execution that was brought back.
    pub fn find(&self, id: ExecutionId) -> Option<ExecutionId> {
        self.here.get(&id).copied()
    }

    /// Forgets an execution that the engine has forgotten.
    pub fn forget(&mut self, id: ExecutionId) {
        self.here.remove(&id);
    }
}

/// The names of reads for records have this bit. The other bits are the number of the execution in
/// the journal.
pub(super) const RECORD_BIT: u64 = 1 << 63;

/// Brings an execution back. See [`Shard::recall`].
pub(crate) fn recall<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
) -> Result<Recall, NotFound> {
    if shard.engine.is_known(id) {
        return Ok(Recall::Here);
    }
    let keeping = shard.keeping.as_deref_mut().ok_or(NotFound)?;
    if keeping.archive.here.contains_key(&id) {
        return Ok(Recall::Here);
    }
    let kept = keeping.journal.find(id.to_bits()).ok_or(NotFound)?;
    let ended = keeping.journal.get(kept).and_then(|kept| kept.ended).ok_or(NotFound)?;
    if !keeping.archive.on_their_way.iter().any(|recalling| recalling.kept == kept) {
        keeping.archive.on_their_way.push(Recalling { id, kept, end: None, failed_count: 0 });
        keeping.read_record(kept, ended, &mut shard.reactor);
    }
    Ok(Recall::Soon)
}

impl Keeping {
    fn read_record<R: Reactor>(&mut self, kept: KeptId, record: Record, reactor: &mut R) {
        let name = RECORD_BIT | u64::from(kept.number);
        self.read(name, record.lsn, record.bytes, reactor);
    }
}

/// Takes a record that was read. Goes on with the other one, or brings the execution back.
pub(super) fn on_record<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    name: u64,
    result: Result<u32, io::ErrorKind>,
    buffer: &PageBuffer,
) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let number = name & !RECORD_BIT;
    let journal = keeping.journal.setup().journal;
    let recallings = &mut keeping.archive.on_their_way;
    let found = recallings.iter().position(|each| u64::from(each.kept.number) == number);
    let at = found.expect("its record was asked for");
    let kept_id = recallings[at].kept;
    let Some(kept) = keeping.journal.get(kept_id).filter(|kept| !kept.is_deleted) else {
        recallings.swap_remove(at); // It was removed meanwhile.
        return;
    };
    let (record, opened) = (kept.ended.expect("it has ended"), kept.opened);
    let published = kept.published();
    let bytes = result.map_or(&[][..], |bytes| &buffer[..bytes as usize]);
    if result.is_err() && recallings[at].failed_count + 1 < ATTEMPTS_MAX {
        recallings[at].failed_count += 1;
        let record = if recallings[at].end.is_none() { record } else { opened };
        keeping.read_record(kept_id, record, &mut shard.reactor);
        return;
    }
    if recallings[at].end.is_none() {
        recallings[at].end = Some(end_of(journal, record.lsn, bytes, kept_id, published));
        keeping.read_record(kept_id, opened, &mut shard.reactor);
        return;
    }
    let recalling = recallings.swap_remove(at);
    let opened = opened_of(journal, opened.lsn, bytes, kept_id);
    bring_back(shard, recalling, opened);
}

/// Reads the record of an end. If it is damaged, everything that was published counts as output.
fn end_of(
    journal: u128,
    lsn: Lsn,
    bytes: &[u8],
    kept: KeptId,
    (next_seq, payload_bytes): (u64, u64),
) -> (EndedDetails, KindTotals) {
    let run =
        KeptRun::decode(journal, lsn, bytes).ok().filter(|run| is_of(run, RunKind::Ended, kept));
    let body = run.as_ref().and_then(|run| run.body().ok());
    let details = body.and_then(|body| records::Ended::decode(body).ok()).map(|end| end.details);
    let all = Totals { chunks: next_seq - 1, bytes: payload_bytes };
    let totals = run.map(|run| run.before).filter(|before| before.of(Kinds::ALL) == all);
    let totals = totals.unwrap_or_else(|| {
        let mut totals = KindTotals::default();
        totals.add(Kind::Output, all);
        totals
    });
    (EndedDetails::decode(details.unwrap_or_default()), totals)
}

fn opened_of(journal: u128, lsn: Lsn, bytes: &[u8], kept: KeptId) -> OpenedDetails {
    let run =
        KeptRun::decode(journal, lsn, bytes).ok().filter(|run| is_of(run, RunKind::Opened, kept));
    let body = run.as_ref().and_then(|run| run.body().ok());
    let details = body.and_then(|body| records::Opened::decode(body).ok()).map(|all| all.details);
    OpenedDetails::decode(details.unwrap_or_default())
}

fn is_of(run: &KeptRun<'_>, kind: RunKind, kept: KeptId) -> bool {
    (run.header.kind, run.header.execution) == (kind, kept.number)
}

/// Gives the engine an execution that has ended.
fn bring_back<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    recalling: Recalling,
    opened: OpenedDetails,
) {
    let Recalling { id, kept, end, .. } = recalling;
    let (details, totals) = end.expect("it was read first");
    let verdict = details.verdict(totals);
    let Ok(secret) = shard.secrets.draw() else { return };
    let ring_bytes = limits::RING_CLASS_BYTES[0];
    let Ok(ring) = shard.expected_ring(ring_bytes, 0) else { return };
    let spec = OpenSpec { kept: true, secret, retention: shard.retention, ..OpenSpec::new(ring) };
    let options = ExecuteOptions::default();
    let Ok(guest) = O::prepare(shard, &Work::Feed, &options) else { return };
    let Reply::Opened(Ok(engine_id)) = shard.ask(Event::Revive(spec, &verdict)) else {
        return; // There is no place. The next question tries again.
    };
    execute::release_before(shard, engine_id.slot);
    let Verdict { error, head_seq, .. } = verdict;
    let tool = opened.tool.and_then(|name| shard.tools.spec(&name).cloned());
    let run = Run {
        handle: engine_id.slot,
        tool,
        opened_at: shard.now,
        ingested_seq: head_seq,
        error,
        kept: Some(kept),
        is_end_recorded: true,
        has_verdict: true,
        anchor: Some(opened.anchor),
        ..Run::new(id, Producer::Gone, guest)
    };
    shard.runs[engine_id.slot.index as usize] = Some(run);
    let keeping = shard.keeping.as_deref_mut().expect("it has just been read from it");
    keeping.archive.here.insert(id, engine_id);
    shard.pump();
}
