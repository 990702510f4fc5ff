//! The journal in the turn of a shard: what is kept, and when the shard is told of it.
//!
//! [`Keeping`] is the shard's only owner of its journal. A chunk is appended when the engine is
//! told of it ([`Keeping::append`]). The disk is looked after once a turn, after everything that
//! subscribers wait for was sent ([`end_turn`]). Reads of old chunks are in `fetch.rs`.
//!
//! Invariants:
//! - W1: each chunk of a kept execution is appended before the engine is told of it, or a hole is
//!   recorded.
//! - W2: no subscriber is told of an end before the disk keeps it, unless the disk has failed.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use slab::Slab;

use super::config::JournalConfig;
use super::details::{EndedDetails, GoesOn, OpenedDetails};
use super::fetch::{self, Fetching};
use super::files::{Completed, JournalFiles, PartRead};
use super::goes_on::goes_on_of;
use super::late;
use super::logged::{self, Logs};
use super::open::open_journal;
use super::reads::{self, Reads};
use super::recall::Archive;
use super::status::{JournalError, JournalStatus};
use crate::base::{ExecutionId, Handle, Instant};
use crate::engine::{Event, Verdict};
use crate::journal::format::{ChunkEntry, Lsn};
use crate::journal::records::Terms;
use crate::journal::recovery::{Findings, Recovered};
use crate::journal::scrub::ScrubRead;
use crate::journal::{Append, Fault, Journal, KeptId, Moment, Refused, Scrub, Setup};
use crate::limits;
use crate::memory::{ClockAnchor, Descriptor};
use crate::reactor::{Claim, DiskDirectory, DiskSetup, Reactor, claim_directory};
use crate::shard::act::{self, read_chunk};
use crate::shard::outlet::Outlet;
use crate::shard::{Shard, ShardConfig};
use crate::stream::{Durability, Kind};
use crate::tool::{SyncError, SyncWish, ToolSpec};
use crate::trace::{self, Duty};

/// The journal of a shard, and what waits for its disk.
pub(crate) struct Keeping {
    pub(super) journal: Journal,
    pub(super) files: JournalFiles,
    /// The promise for executions whose options name none.
    durability: Durability,
    /// The clocks by which the times of chunks are told. It never changes.
    anchor: ClockAnchor,
    /// The clocks at the last look at the wall clock.
    seen: ClockAnchor,
    /// Ends that the disk does not keep yet.
    ends: Vec<Ending>,
    /// The number of writes, syncs and other wishes of the journal that the disk has done.
    pub done_count: u64,
    /// Tools that wait for the disk.
    waiting: Vec<Waiting>,
    /// Executions whose engine is told late, and that the disk has to move for.
    pub(super) late: Vec<Handle>,
    /// The time at which one of them may have waited for too long.
    pub(super) full_until: Option<Instant>,
    /// The replicated executions.
    pub logs: Logs,
    /// Executions with chunks that were not kept, since their tools waited last.
    pub(super) holed: Vec<KeptId>,
    pub(super) fetches: Slab<Fetching>,
    pub(super) reads: Reads,
    pub(super) archive: Archive,
    scrub: Option<Scrub>,
    /// True if the disk has something to do at the end of this turn.
    pub(super) is_touched: bool,
    /// True after the executions were told that the disk has failed.
    has_told_fault: bool,
    opened: Opened,
    _claim: Option<Claim>,
}

/// The directory of a journal, which no other process uses.
pub(crate) struct Claimed {
    directory: OwnedFd,
    claim: Claim,
}

/// Claims the directory of a shard's journal, if the shard has one.
pub(crate) fn claim<G>(config: &ShardConfig<G>) -> io::Result<Option<Claimed>> {
    let Some(journal) = &config.journal else { return Ok(None) };
    let path = journal.directory_of(config.engine.shard);
    let (directory, claim) = claim_directory(&path).map_err(|error| failure(&path, &error))?;
    Ok(Some(Claimed { directory, claim }))
}

fn failure(path: &Path, error: &dyn fmt::Display) -> io::Error {
    io::Error::other(JournalError(format!("the journal in {}: {error}", path.display())))
}

/// The state of the journal when it was opened.
#[derive(Clone, Debug, Default)]
struct Opened {
    findings: Findings,
    restarted: u64,
}

/// An end on its way to the disk.
struct Ending {
    execution: Handle,
    kept: KeptId,
    /// The description, until there is room for the record.
    details: Option<Vec<u8>>,
    /// True if its subscribers rely on the disk, whatever its durability is.
    is_late: bool,
}

/// A tool that waits until its chunks are on disk.
struct Waiting {
    execution: Handle,
    kept: KeptId,
    wish: SyncWish,
}

impl Keeping {
    /// Opens the journal of a shard. Executions that were running when their process ended are
    /// failed, and that is on the disk when this returns. `journal` is the random number of a new
    /// journal. A directory that was not claimed is one of a simulation.
    pub fn open<R: Reactor>(
        reactor: &mut R,
        config: &JournalConfig,
        claimed: Option<Claimed>,
        shard: u8,
        journal: u128,
    ) -> io::Result<Keeping> {
        let path = config.directory_of(shard);
        let failed = |error: &dyn std::fmt::Display| failure(&path, error);
        let setup = Setup {
            journal,
            shard: shard.into(),
            segment_bytes: config.segment_bytes,
            bytes_max: config.bytes_max,
            age_us_max: config.retention.as_micros().min(u64::MAX.into()) as u64,
            unsynced_bytes_max: limits::JOURNAL_UNSYNCED_BYTES_MAX,
        };
        let (directory, claim) = match claimed {
            Some(Claimed { directory, claim }) => (DiskDirectory::Opened(directory), Some(claim)),
            None => (DiskDirectory::Path(path.clone()), None),
        };
        let is_direct = config.is_direct;
        let disk = DiskSetup { directory, is_direct, ..DiskSetup::at(&path) };
        let opened = open_journal(reactor, disk, &setup).map_err(|error| failed(&error))?;
        let (Recovered { journal, unfinished, findings }, files) = opened;
        let anchor = ClockAnchor { wall_us: reactor.wall_us(), mono_ns: reactor.now().nanos() };
        let goes_on = |kept: &KeptId| goes_on_of(&journal, *kept).is_some();
        let unfinished: Vec<KeptId> = unfinished.into_iter().filter(|id| !goes_on(id)).collect();
        let restarted = unfinished.len() as u64;
        let mut keeping = Keeping {
            journal,
            files,
            durability: config.durability,
            anchor,
            seen: anchor,
            ends: Vec::new(),
            done_count: 0,
            waiting: Vec::new(),
            late: Vec::with_capacity(limits::EXECUTIONS_MAX as usize),
            full_until: None,
            logs: Logs::default(),
            holed: Vec::with_capacity(limits::EXECUTIONS_MAX as usize), // Appending adds to it.
            fetches: Slab::with_capacity(limits::JOURNAL_READS_MAX),
            reads: Reads::default(),
            archive: Archive::default(),
            scrub: config.scrub.map(|period| Scrub::new(period, reactor.now())),
            is_touched: true,
            has_told_fault: false,
            opened: Opened { findings, restarted },
            _claim: claim,
        };
        keeping.logs.leave(&keeping.journal, &unfinished);
        keeping.end_unfinished(&unfinished, reactor).map_err(|error| failed(&error))?;
        Ok(keeping)
    }

    /// Records the end of executions that were running, and waits for the disk. Nothing else runs.
    fn end_unfinished<R: Reactor>(
        &mut self,
        unfinished: &[KeptId],
        reactor: &mut R,
    ) -> io::Result<()> {
        let details = EndedDetails::restarted().encode();
        let mut left = unfinished.iter();
        let mut next = left.next();
        loop {
            let now = reactor.now();
            let moment = self.moment(now);
            while let Some(&kept) = next
                && self.journal.end(kept, &details, moment)
            {
                next = left.next();
            }
            if self.journal.fault().is_none() && next.is_none() {
                self.journal.flush(moment);
            }
            self.look_after_disk(reactor, now);
            match self.journal.fault() {
                Some(fault) => return Err(io::Error::other(fault_text(fault))),
                None if next.is_none() && self.journal.is_all_synced() => return Ok(()),
                None => reactor.wait(self.journal.deadline()),
            };
            reactor.poll();
            let now = reactor.now();
            assert!(self.take_completions(reactor, now).is_empty()); // Nobody reads yet.
        }
    }

    /// The clocks by which the times of chunks are told.
    pub fn anchor(&self) -> ClockAnchor {
        self.anchor
    }

    /// The time on both clocks.
    pub(super) fn moment(&self, now: Instant) -> Moment {
        Moment { now, wall_us: self.seen.wall_us_at(now.nanos()) }
    }

    /// The promise for the chunks of an execution with this option.
    pub fn durability(&self, option: Option<Durability>) -> Durability {
        option.unwrap_or(self.durability)
    }

    /// Begins to keep an execution.
    pub fn begin(
        &mut self,
        id: ExecutionId,
        terms: Terms,
        (tool, token): (Option<&ToolSpec>, Option<&str>),
        (goes_on, guest): (Option<GoesOn>, Value),
        now: Instant,
    ) -> Result<KeptId, Refused> {
        let has_parts = tool.is_some_and(|tool| tool.has_parts);
        let is_relayed = tool.is_some_and(|tool| tool.is_relayed);
        let tool = tool.map(|tool| tool.name.as_str().into());
        let (token, anchor) = (token.map(Box::from), self.anchor);
        let opened = OpenedDetails { tool, has_parts, is_relayed, token, anchor, goes_on, guest };
        let details = opened.encode();
        self.is_touched = true;
        let kept = self.journal.open(id.to_bits(), terms, &details, self.moment(now))?;
        if terms.durability == Durability::Replicated {
            self.logs.begin(kept);
        }
        Ok(kept)
    }

    /// Appends a chunk of an execution with these clocks. If there is no room, the chunk counts as
    /// missing.
    #[inline]
    pub(super) fn append(
        &mut self,
        (kept, anchor): (KeptId, Option<ClockAnchor>),
        descriptor: &Descriptor,
        payload: &[u8],
        moment: Moment,
    ) {
        self.is_touched = true;
        let entry = self.entry_of(descriptor, anchor);
        let appended = self.journal.append(kept, &entry, payload, moment);
        if appended == Append::Missed && !self.holed.contains(&kept) {
            self.holed.push(kept);
        }
    }

    /// Appends a chunk. Returns false without room, and nothing has happened then.
    pub(super) fn try_append(
        &mut self,
        (kept, anchor): (KeptId, Option<ClockAnchor>),
        descriptor: &Descriptor,
        payload: &[u8],
        moment: Moment,
    ) -> bool {
        self.is_touched = true;
        let entry = self.entry_of(descriptor, anchor);
        self.journal.try_append(kept, &entry, payload, moment)
    }

    /// The head of a chunk, with its time on the clocks of its execution.
    #[inline]
    fn entry_of(&self, descriptor: &Descriptor, anchor: Option<ClockAnchor>) -> ChunkEntry {
        let mono_ns = match anchor {
            None => descriptor.mono_ns,
            Some(anchor) => anchor.moment_of(descriptor.mono_ns, &self.anchor),
        };
        ChunkEntry {
            seq: descriptor.seq,
            mono_ns,
            length: descriptor.length,
            kind: Kind::new(descriptor.header.kind).expect("this process wrote it"),
            key: descriptor.header.key,
            flags: descriptor.header.flags,
        }
    }

    /// Notes that subscribers wait until the promise for what was appended is kept.
    pub(super) fn await_promise(&mut self, kept: KeptId) {
        if !is_synced(&self.journal, kept) {
            self.journal.await_write(); // A sync is awaited anyway.
        }
    }

    /// Lets the shard look at executions that wait for room at this time.
    pub(super) fn look_again_at(&mut self, until: Instant) {
        self.full_until = Some(self.full_until.map_or(until, |other| other.min(until)));
    }

    /// Answers tools whose chunks are on disk, or cannot get there.
    pub(super) fn answer_waiting(&mut self) {
        let Keeping { journal, waiting, holed, logs, .. } = self;
        waiting.retain(|Waiting { kept, wish, .. }| {
            let is_logged = logs.until_seq(*kept).is_none_or(|until| until > wish.seq);
            let synced_until = journal.synced_until(*kept);
            let is_synced = is_logged && synced_until.is_some_and(|until| until > wish.seq);
            if !is_synced && journal.fault().is_none() {
                return true;
            }
            let is_whole = is_synced && !holed.contains(kept);
            holed.retain(|other| other != kept);
            let answer = if is_whole { Ok(()) } else { Err(SyncError::NotKept) };
            let _ = wish.answer.try_send(answer); // The tool may have panicked meanwhile.
            false
        });
    }

    /// Lets the tool of an execution go on that is being stopped.
    pub fn stop_waiting(&mut self, execution: Handle) {
        self.waiting.retain(|waiting| waiting.execution != execution);
    }

    /// The last chunk for which the promise is kept; 0 before the first.
    pub fn durable_seq(&self, kept: KeptId) -> Option<u64> {
        self.durable_until(kept).map(|until_seq| until_seq.max(1) - 1)
    }

    /// One past that chunk.
    pub(super) fn durable_until(&self, kept: KeptId) -> Option<u64> {
        let until_seq = self.journal.durable_until(kept)?;
        Some(self.logs.until_seq(kept).map_or(until_seq, |logged| until_seq.min(logged)))
    }

    /// Has everything so far written at once, because somebody waits for it.
    pub fn write_soon(&mut self) {
        self.is_touched = true;
        self.journal.await_write();
    }

    /// The wall-clock time of a recorded end, in microseconds since 1970.
    pub fn ended_us(&self, kept: KeptId) -> Option<u64> {
        let kept = self.journal.get(kept)?;
        kept.ended.map(|_| kept.ended_us)
    }

    /// A chunk at or before this byte of the payload, and the payload bytes before it.
    pub fn seek(&self, kept: KeptId, byte: u64) -> Option<(u64, u64)> {
        self.journal.seek(kept, byte)
    }

    /// Deletes an ended execution, whether the engine still has it or not. Returns the place to
    /// which the disk has to be synced; `None` if nothing of it is kept.
    ///
    /// # Errors
    /// [`Refused::Broken`]: the disk failed. [`Refused::Full`]: the disk takes no record at the
    /// moment, be it of the end of the execution or of its deletion.
    pub fn delete(&mut self, id: ExecutionId, now: Instant) -> Result<Option<Lsn>, Refused> {
        let Some(kept) = self.journal.find(id.to_bits()) else { return Ok(None) };
        if self.journal.fault().is_some() {
            return Err(Refused::Broken);
        }
        if self.journal.get(kept).is_some_and(|kept| kept.ended.is_none()) {
            return Err(Refused::Full); // It is over, but its end waits for room.
        }
        self.is_touched = true;
        let moment = self.moment(now);
        if !self.journal.delete(kept, moment) {
            return Err(Refused::Full);
        }
        Ok(Some(self.journal.appended_lsn()))
    }

    /// True if everything before this place is on the disk; an error if it never will be.
    pub fn is_synced_to(&self, lsn: Lsn) -> Result<bool, Fault> {
        match self.journal.fault() {
            Some(fault) => Err(fault),
            None => Ok(self.journal.is_synced_to(lsn)),
        }
    }

    /// True if the execution is kept.
    pub fn keeps(&self, id: ExecutionId) -> bool {
        self.journal.find(id.to_bits()).is_some()
    }

    /// The ids of all executions.
    pub fn executions(&self) -> Vec<ExecutionId> {
        self.journal.executions().map(|(_, kept)| ExecutionId::from_bits(kept.id)).collect()
    }

    /// The state of the journal.
    pub fn status(&self) -> JournalStatus {
        let Opened { findings, restarted } = &self.opened;
        JournalStatus {
            executions: self.journal.executions().count() as u64,
            restarted: *restarted,
            segments_found: findings.segments,
            torn_bytes: findings.torn_bytes,
            corrupt_stretches: findings.corrupt.len() as u64,
            fault: self.journal.fault(),
            counters: *self.journal.counters(),
            scrubbed: self.scrub.as_ref().map(Scrub::scrubbed).unwrap_or_default(),
        }
    }

    /// Adds the counters of the journal to those of its shard.
    pub fn add_counters(&self, to: &mut trace::Counters) {
        let counters = self.journal.counters();
        let scrubbed = self.scrub.as_ref().map(Scrub::scrubbed).unwrap_or_default();
        to.journal_chunks_kept += counters.chunks;
        to.journal_bytes_kept += counters.bytes;
        to.journal_chunks_missed += counters.missed_chunks;
        to.journal_writes += counters.blocks;
        to.journal_bytes_written += counters.block_bytes;
        to.journal_syncs += counters.syncs;
        to.journal_segments_begun += counters.segments;
        to.journal_segments_removed += counters.removed_segments;
        to.journal_segments_failed += counters.failures;
        to.journal_places_corrupt += scrubbed.corrupt_places;
    }

    /// The time of the next thing to do for the disk.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        match self.is_touched || self.reads.has_news() {
            true => Some(now),
            false => {
                let scrub = self.scrub.as_ref().and_then(|scrub| scrub.deadline(&self.journal));
                [self.journal.deadline(), scrub, self.full_until].into_iter().flatten().min()
            }
        }
    }

    /// True if there is nothing to do for the disk now.
    #[inline]
    pub fn is_quiet(&self, now: Instant) -> bool {
        self.deadline(now).is_none_or(|deadline| deadline > now)
    }

    /// Closes the block of the turn if it is due, and passes the wishes of the journal on.
    fn look_after_disk<R: Reactor>(&mut self, reactor: &mut R, now: Instant) {
        if self.journal.is_look_due(now) {
            self.seen = ClockAnchor { wall_us: reactor.wall_us(), mono_ns: now.nanos() };
        }
        let moment = self.moment(now);
        for kept in &self.holed {
            let is_awaited = self.waiting.iter().any(|waiting| waiting.kept == *kept);
            // Nothing may follow that would do so.
            self.journal.record_missing(*kept, is_awaited, moment);
        }
        if !self.waiting.is_empty() {
            self.journal.await_sync();
        }
        self.journal.turn(moment);
        while let Some(wish) = self.journal.poll_wish(moment) {
            self.files.carry_out(wish, reactor);
        }
        self.is_touched = false;
    }

    /// Reads the next piece of the scrub, if it is due.
    fn look_after_scrub<R: Reactor>(&mut self, reactor: &mut R, now: Instant) {
        let Some(scrub) = &mut self.scrub else { return };
        if let Some(ScrubRead { lsn, bytes, buffer }) = scrub.poll(&self.journal, now) {
            let (name, is_fresh) = (SCRUB_NAME, true);
            self.files.read(PartRead { name, lsn, bytes, buffer, is_fresh }, reactor);
        }
    }

    /// Takes what the disk has done. Returns the reads of others than the scrub.
    pub(super) fn take_completions<R: Reactor>(
        &mut self,
        reactor: &mut R,
        now: Instant,
    ) -> reads::Finished {
        let moment = self.moment(now);
        let mut reads = reads::Finished::new();
        while let Some(done) = reactor.next_disk_event() {
            self.is_touched = true;
            self.files.hurry(self.journal.is_next_urgent());
            for completed in self.files.on_done(done, reactor) {
                match completed {
                    Completed::Wish { token, result, buffer, synced } => {
                        self.done_count += 1;
                        self.journal.on_done(token, result, buffer, synced, moment);
                    }
                    Completed::Read { name: SCRUB_NAME, result, buffer } => {
                        let scrub = self.scrub.as_mut().expect("it has asked for it");
                        scrub.on_read(result, buffer.expect("a read has one"), &self.journal);
                    }
                    Completed::Read { name, result, buffer } => reads.push((name, result, buffer)),
                }
            }
        }
        reads
    }

    /// Records ends that found no room before. Returns the executions whose end is kept, with
    /// `true`, and those whose end can no longer be kept.
    fn settle_ends(&mut self, moment: Moment) -> Vec<(Handle, bool)> {
        let Keeping { journal, ends, holed, .. } = self;
        let has_failed = journal.fault().is_some();
        let mut settled = Vec::new();
        ends.retain_mut(|ending| {
            if has_failed {
                let is_promised = ending.is_late || is_synced(journal, ending.kept);
                settled.push((ending.execution, !is_promised));
                return false;
            }
            if let Some(details) = &ending.details
                && journal.end(ending.kept, details, moment)
            {
                ending.details = None;
                journal.await_write(); // Subscribers and clients wait for the end.
            }
            let is_kept = ending.details.is_none() && journal.is_end_kept(ending.kept);
            if is_kept {
                holed.retain(|kept| *kept != ending.kept); // Nobody waits for it any more.
                settled.push((ending.execution, true));
            }
            !is_kept
        });
        settled
    }
}

/// The name of the reads of the scrub.
const SCRUB_NAME: u64 = u64::MAX;

pub(super) fn is_synced(journal: &Journal, kept: KeptId) -> bool {
    let living = journal.get(kept).and_then(|kept| kept.living.as_ref());
    living.is_some_and(|living| living.durability.is_synced())
}

fn fault_text(fault: Fault) -> String {
    match fault {
        Fault::Write(kind) => format!("the disk of the journal has failed: a write: {kind}"),
        Fault::Sync(kind) => format!("the disk of the journal has failed: a sync: {kind}"),
    }
}

/// The time at which the engine is told of chunks that were published.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Telling {
    /// Now: the journal has taken them.
    Now,
    /// When the journal has them: [`super::ingest_late`].
    Late,
}

/// Appends the chunks of an execution through `until_seq`, before the engine is told of them (W1).
#[inline(never)]
pub(crate) fn keep_chunks<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    until_seq: u64,
) -> Telling {
    let run = shard.runs[index as usize].as_ref().expect("it publishes");
    if run.late.is_some() {
        return Telling::Late;
    }
    let (Some(kept), Some(keeping)) = (run.kept, shard.keeping.as_deref_mut()) else {
        return Telling::Now;
    };
    let moment = keeping.moment(shard.now);
    for seq in run.ingested_seq + 1..=until_seq {
        // Nothing is overwritten that the engine was not told of (S2).
        let Ok((descriptor, payload)) = read_chunk(run, seq, &mut shard.scratch) else {
            panic!("chunk {seq} of {} was overwritten before the engine knew of it", run.id);
        };
        keeping.append((kept, run.anchor), &descriptor, payload, moment);
    }
    Telling::Now
}

/// Keeps the end that the engine has decided. The engine is told once it is on the disk (W2).
pub(crate) fn keep_end<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
    verdict: &Verdict,
) {
    if act::run_in(&mut shard.runs, execution).kept.is_none() {
        return shard.tell(Event::EndKept(execution)); // The journal has refused all of it.
    }
    if logged::send_end(shard, execution, verdict) {
        return; // The disk gets it behind the log.
    }
    record_end(shard, execution, verdict);
    settle_ends(shard);
}

/// Records an end, unless that was done before.
pub(crate) fn record_end<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
    verdict: &Verdict,
) {
    let run = act::run_in(&mut shard.runs, execution);
    let (Some(kept), Some(keeping)) = (run.kept, shard.keeping.as_deref_mut()) else { return };
    if run.stays_open {
        return; // The process ends, and the execution goes on in the next one.
    }
    if !std::mem::replace(&mut run.is_end_recorded, true) {
        let details = Some(EndedDetails::of(verdict, run.has_panicked).encode());
        let is_late = late::fails_with_disk(run);
        keeping.logs.forget(kept);
        keeping.ends.push(Ending { execution, kept, details, is_late });
        keeping.is_touched = true;
    }
}

/// Lets a tool wait for the disk.
pub(crate) fn await_sync<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
    wish: SyncWish,
) {
    let run = act::run_in(&mut shard.runs, execution);
    let (Some(kept), Some(keeping)) = (run.kept, shard.keeping.as_deref_mut()) else {
        let _ = wish.answer.try_send(Err(SyncError::NotKept)); // The tool may be gone.
        return;
    };
    keeping.waiting.push(Waiting { execution, kept, wish });
    keeping.is_touched = true;
}

/// Tells the engine of ends that the disk keeps, or cannot keep.
pub(super) fn settle_ends<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    if keeping.ends.is_empty() {
        return;
    }
    let moment = keeping.moment(shard.now);
    let settled = keeping.settle_ends(moment);
    let text = keeping.journal.fault().map(fault_text).unwrap_or_default();
    for (execution, is_kept) in settled {
        match is_kept {
            true => shard.tell(Event::EndKept(execution)),
            false => shard.tell(Event::NotKept(execution, &text)),
        }
    }
}

/// Takes what the disk has done since the last turn.
pub(crate) fn on_disk_events<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let finished = keeping.take_completions(&mut shard.reactor, shard.now);
    if !keeping.is_touched {
        return;
    }
    shard.did.note(Duty::Disk);
    shard.worked = true;
    fetch::on_reads(shard, finished);
    hear(shard);
}

/// Passes the news of the journal on: durable chunks, kept ends, and a disk that has failed.
fn hear<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    while let Some(keeping) = shard.keeping.as_deref_mut()
        && let Some(name) = keeping.journal.poll_news()
    {
        if let Some(kept) = keeping.journal.get(name) {
            let id = ExecutionId::from_bits(kept.id);
            O::on_kept(shard, id);
        }
    }
    late::look_again(shard);
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    keeping.answer_waiting();
    if let Some(fault) = keeping.journal.fault()
        && !std::mem::replace(&mut keeping.has_told_fault, true)
    {
        tell_fault(shard, fault);
    }
    settle_ends(shard);
    act::pump(shard);
}

/// Fails the executions whose chunks were promised to be synced, and those that wait for the disk.
/// The others go on without a disk.
#[cold]
fn tell_fault<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, fault: Fault) {
    let text = fault_text(fault);
    let keeping = shard.keeping.as_deref().expect("its disk has failed");
    let runs = shard.runs.iter().flatten();
    let promised = |kept| is_synced(&keeping.journal, kept);
    let decided = |kept| keeping.logs.is_end_awaited(kept); // The log decides how it ends.
    let runs = runs.filter(|run| !run.kept.is_some_and(decided));
    let all = runs.filter(|run| late::fails_with_disk(run) || run.kept.is_some_and(promised));
    let all: Vec<Handle> = all.map(|run| run.handle).collect();
    for execution in all {
        shard.tell(Event::NotKept(execution, &text));
    }
}

/// Looks after the disk at the end of a turn, and gives what was read from it.
pub(crate) fn end_turn<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    if !keeping.is_quiet(shard.now) {
        do_disk_duties(shard);
    }
}

#[inline(never)] // Its stack would be that of each turn, also without a journal.
fn do_disk_duties<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    shard.did.note(Duty::Disk);
    if keeping.full_until.is_some_and(|until| until <= shard.now) {
        late::look_again(shard);
    }
    fetch::give_next(shard);
    settle_ends(shard);
    act::pump(shard);
    if let Some(keeping) = shard.keeping.as_deref_mut() {
        keeping.answer_waiting();
        keeping.look_after_disk(&mut shard.reactor, shard.now);
        keeping.look_after_scrub(&mut shard.reactor, shard.now);
    }
}

/// Writes everything that was appended, and waits for the disk, for at most this time.
pub(crate) fn shut_down<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let until = shard.reactor.now() + SHUTDOWN_WAIT;
    loop {
        settle_ends(shard);
        act::pump(shard);
        let Some(keeping) = shard.keeping.as_deref_mut() else { return };
        let now = shard.reactor.now();
        if keeping.journal.fault().is_none() {
            let moment = keeping.moment(now);
            keeping.journal.flush(moment);
        }
        keeping.look_after_disk(&mut shard.reactor, now);
        let is_done = keeping.ends.is_empty() && keeping.journal.is_all_synced();
        if is_done || keeping.journal.fault().is_some() || now >= until {
            return;
        }
        let deadline = keeping.journal.deadline().map_or(until, |deadline| deadline.min(until));
        shard.reactor.wait(Some(deadline));
        shard.reactor.poll();
        let now = shard.reactor.now();
        let finished = keeping.take_completions(&mut shard.reactor, now);
        drop(finished); // No reader is left.
    }
}

/// Time for which a shard that ends waits for its disk.
const SHUTDOWN_WAIT: Duration = limits::JOURNAL_SHUTDOWN_WAIT;

impl fmt::Debug for Keeping {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Keeping({:?})", self.journal)
    }
}
