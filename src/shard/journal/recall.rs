//! Brings back executions that only the journal remembers, so that they can be followed.
//!
//! The two records of the execution are read from the disk, which takes some turns. Then the engine
//! gets an execution that has ended and holds nothing: its subscribers are given everything from
//! the disk. It is forgotten again after its retention, and can be brought back again.
//!
//! In the engine it has another place than its id says: `Shard::places` knows it.

use std::io;
use std::sync::Arc;

use super::details::{EndedDetails, OpenedDetails};
use super::goes_on::{self, ResumeError};
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
use crate::shard::{ExecuteOptions, Names, Shard, execute};
use crate::stream::{Kind, KindTotals, Kinds, Totals};
use crate::tool::ToolSpec;

/// The answer to [`Shard::recall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// The execution can be followed now.
    Here,
    /// The execution is being read from the disk. Ask again after the next turn.
    Soon,
    /// The shard has no place for it, or no memory. Ask again when others have ended.
    Later,
}

/// Returns a ring that has forgotten the chunks of an ended execution which has no ring any more. A
/// reader on another thread then looks for all of them on the disk.
pub(crate) fn forgotten_ring<X: GuestRun>(run: &Run<X>, engine: &Engine) -> Option<RingReader> {
    let verdict = engine.verdict(run.handle).filter(|_| run.has_verdict)?;
    if !run.has_history() {
        return None;
    }
    let lease = Lease::heap(Geometry::of_class(limits::RING_CLASS_BYTES[0]));
    let Verdict { head_seq, totals: kinds, .. } = verdict;
    let total_bytes = kinds.of(Kinds::ALL).bytes;
    let start = Start { seq: head_seq + 1, total_bytes, kinds };
    let anchor = run.anchor.unwrap_or_default();
    Some(RingWriter::starting(lease, anchor, &start).reader())
}

/// The executions that are on their way from the disk.
#[derive(Default)]
pub(super) struct Archive {
    on_their_way: Vec<Recalling>,
    /// Executions that found no place, until they are asked for again.
    without_place: Vec<ExecutionId>,
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

/// The names of reads for records have this bit. The other bits are the number of the execution in
/// the journal.
pub(super) const RECORD_BIT: u64 = 1 << 63;

/// Brings an execution back. See [`Shard::recall`].
pub(crate) fn recall<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
) -> Result<Recall, NotFound> {
    if shard.engine.is_known(id) || shard.places.contains_key(&id) {
        return Ok(Recall::Here);
    }
    let keeping = shard.keeping.as_deref_mut().ok_or(NotFound)?;
    let without_place = &mut keeping.archive.without_place;
    if let Some(at) = without_place.iter().position(|other| *other == id) {
        without_place.swap_remove(at);
        return Ok(Recall::Later);
    }
    let kept = keeping.journal.find(id.to_bits()).ok_or(NotFound)?;
    let Some(ended) = keeping.journal.get(kept).and_then(|kept| kept.ended) else {
        return match goes_on::resume(shard, id, &ExecuteOptions::default()) {
            Ok(()) => Ok(Recall::Here),
            Err(ResumeError::NotFound) => Err(NotFound),
            Err(ResumeError::Refused(_)) => Ok(Recall::Later),
        };
    };
    if !keeping.archive.on_their_way.iter().any(|recalling| recalling.kept == kept) {
        keeping.archive.on_their_way.push(Recalling { id, kept, end: None, failed_count: 0 });
        keeping.read_record(kept, ended, &mut shard.reactor);
    }
    Ok(Recall::Soon)
}

/// The descriptions of an ended execution that the journal keeps.
pub(crate) struct Described {
    pub id: ExecutionId,
    /// The wall-clock time of its beginning, in microseconds since 1970.
    pub opened_us: u64,
    pub opened: OpenedDetails,
    /// The wall-clock time of its end, in microseconds since 1970.
    pub ended_us: u64,
    pub ended: EndedDetails,
    /// The totals of all its chunks.
    pub totals: Totals,
}

impl Keeping {
    /// Reads the descriptions of all executions that have ended. Nothing else runs meanwhile.
    pub fn describe_all<R: Reactor>(&mut self, reactor: &mut R) -> Vec<Described> {
        let all = self.journal.executions();
        let all: Vec<(KeptId, Record, Record)> =
            all.filter_map(|(id, kept)| Some((id, kept.opened, kept.ended?))).collect();
        let mut opened: Vec<Option<(OpenedDetails, u64)>> = all.iter().map(|_| None).collect();
        let mut ended: Vec<Option<(EndedDetails, KindTotals)>> = all.iter().map(|_| None).collect();
        let journal = self.journal.setup().journal;
        let (mut begun, mut left) = (0, 2 * all.len());
        while left > 0 {
            while begun < 2 * all.len() && self.reads.under_way < limits::JOURNAL_READS_MAX {
                let (_, beginning, end) = all[begun / 2];
                let record = if begun % 2 == 0 { beginning } else { end };
                self.read(begun as u64, record.lsn, record.bytes, reactor);
                begun += 1;
            }
            reactor.wait(None);
            reactor.poll();
            let now = reactor.now();
            for (name, result, buffer) in self.take_completions(reactor, now) {
                (self.reads.under_way, left) = (self.reads.under_way - 1, left - 1);
                let buffer = buffer.expect("a read has one");
                // A record that cannot be read counts as damaged.
                let bytes = result.map_or(&[][..], |bytes| &buffer[..bytes as usize]);
                let at = name as usize / 2;
                let (id, beginning, end) = all[at];
                match name % 2 {
                    0 => opened[at] = Some(opened_of(journal, beginning.lsn, bytes, id)),
                    _ => {
                        let published = self.published(id);
                        ended[at] = Some(end_of(journal, end.lsn, bytes, id, published));
                    }
                }
                self.reads.give_back(buffer);
            }
        }
        let read = all.iter().zip(opened.into_iter().zip(ended));
        let described = read.filter_map(|(&(kept, ..), (opened, ended))| {
            let ((opened, opened_us), (ended, totals)) = (opened?, ended?);
            let kept = self.journal.get(kept)?;
            let (id, ended_us) = (ExecutionId::from_bits(kept.id), kept.ended_us);
            let totals = totals.of(Kinds::ALL);
            Some(Described { id, opened_us, opened, ended_us, ended, totals })
        });
        described.collect()
    }

    /// The next chunk of an execution, and the payload bytes of all before it.
    fn published(&self, kept: KeptId) -> (u64, u64) {
        self.journal.get(kept).expect("nothing removes it meanwhile").published()
    }

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
    let (opened, _) = opened_of(journal, opened.lsn, bytes, kept_id);
    let id = recalling.id;
    if bring_back(shard, recalling, opened).is_none()
        && let Some(keeping) = shard.keeping.as_deref_mut()
    {
        keeping.archive.without_place.push(id);
    }
}

/// Reads the record of an end. If it is damaged, everything that was published counts as output.
fn end_of(
    journal: u128,
    lsn: Lsn,
    bytes: &[u8],
    kept: KeptId,
    (next_seq, payload_bytes): (u64, u64),
) -> (EndedDetails, KindTotals) {
    let run = KeptRun::decode(journal, lsn, bytes);
    let run = run.ok().filter(|run| is_of(run, &[RunKind::Ended], kept));
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

/// Reads the record of a beginning. Returns the description, and the time in µs since 1970.
fn opened_of(journal: u128, lsn: Lsn, bytes: &[u8], kept: KeptId) -> (OpenedDetails, u64) {
    let kinds = [RunKind::Opened, RunKind::Carried];
    let run = KeptRun::decode(journal, lsn, bytes).ok().filter(|run| is_of(run, &kinds, kept));
    let body = run.as_ref().and_then(|run| run.body().ok());
    let opened = body.and_then(|body| records::Opened::decode(body).ok());
    let opened_us = opened.map_or(0, |opened| opened.opened_us);
    (OpenedDetails::decode(opened.map_or(&[], |opened| opened.details)), opened_us)
}

fn is_of(run: &KeptRun<'_>, kinds: &[RunKind], kept: KeptId) -> bool {
    kinds.contains(&run.header.kind) && run.header.execution == kept.number
}

/// The tool of an execution from the disk.
pub(crate) fn spec_of<R: Reactor + 'static, O: Outlet<R>>(
    shard: &Shard<R, O>,
    name: &str,
    (has_parts, is_relayed): (bool, bool),
) -> Arc<ToolSpec> {
    match shard.tools.spec(name) {
        Some(tool) => Arc::clone(tool),
        // It is offered no more, or by somebody else.
        None => Arc::new(ToolSpec { has_parts, is_relayed, ..ToolSpec::new(name, "") }),
    }
}

/// Gives the engine an execution that has ended. `None` if there is no place for it.
fn bring_back<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    recalling: Recalling,
    opened: OpenedDetails,
) -> Option<()> {
    let Recalling { id, kept, end, .. } = recalling;
    let (details, totals) = end.expect("it was read first");
    let has_panicked = details.has_panicked;
    let verdict = details.verdict(totals);
    let secret = shard.secrets.draw().ok()?;
    let ring_bytes = limits::RING_CLASS_BYTES[0];
    let ring = shard.expected_ring(ring_bytes, 0).ok()?;
    let spec = OpenSpec { kept: true, secret, retention: shard.retention, ..OpenSpec::new(ring) };
    let OpenedDetails { tool, has_parts, is_relayed, token, anchor, guest, .. } = opened;
    let guest = O::restore(shard, id, &guest);
    let Reply::Opened(Ok(engine_id)) = shard.ask(Event::Revive(spec, &verdict)) else {
        return None;
    };
    execute::release_before(shard, engine_id.slot);
    let Verdict { error, head_seq, .. } = verdict;
    let tool = tool.map(|name| spec_of(shard, &name, (has_parts, is_relayed)));
    let run = Run {
        handle: engine_id.slot,
        names: Names { has_parts, token: token.map(String::from), ..Names::new(id, None) },
        tool,
        opened_at: shard.now,
        ingested_seq: head_seq,
        error,
        kept: Some(kept),
        is_end_recorded: true,
        has_verdict: true,
        has_panicked,
        anchor: Some(anchor),
        ..Run::new(id, Producer::Gone, guest)
    };
    shard.runs[engine_id.slot.index as usize] = Some(run);
    shard.places.insert(id, engine_id);
    shard.pump();
    Some(())
}
