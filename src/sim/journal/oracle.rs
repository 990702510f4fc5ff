//! The oracle: crashes, and the comparison of what is kept with what was promised.

use std::time::Duration;

use super::{Manner, Model, Process, Rest, STEPS, Trial, payload};
use crate::base::{Instant, PageBuffer};
use crate::journal::block::Run;
use crate::journal::format::{BLOCK_HEADER_BYTES, Lsn};
use crate::journal::index::RunRow;
use crate::journal::recovery::Findings;
use crate::journal::{Fault, Found, KeptId, Place, Record, Search};
use crate::limits::{JOURNAL_PAGE_BYTES, JOURNAL_SYNC_INTERVAL};
use crate::reactor::FileName;
use crate::sim::disk::{Crash, DiskFaults, FaultKind, PlantedFault};
use crate::stream::Durability;

/// The result of reading an execution.
#[derive(Default)]
pub(super) struct Reading {
    /// The chunks that were given, in order.
    given: Vec<u64>,
    /// Those that have expired, in order.
    expired: Vec<u64>,
}

impl Model {
    /// True if a flipped bit may have cost all of these chunks.
    fn has_spoiled(&self, from_seq: u64, until_seq: u64) -> bool {
        self.is_spoiled
            || self.spoiled.iter().any(|(first, until)| *first <= from_seq && until_seq <= *until)
    }
}

impl Trial {
    /// Ends the process or the power, and starts again.
    pub(super) fn crash(&mut self) {
        let fault = self.process.journal.fault();
        let is_power = matches!(fault, Some(Fault::Sync(_))) || self.random.chance(1, 2);
        self.restart(if is_power { Crash::Power } else { Crash::Process });
    }

    /// Goes through a crash, and compares what is kept with what was promised.
    pub(super) fn restart(&mut self, crash: Crash) {
        let is_power = crash == Crash::Power;
        self.counts.crashes += 1;
        self.counts.power_cuts += u64::from(is_power);
        self.counts.sealed_segments += self.process.journal.counters().segments;
        self.has_removed |= self.process.has_removed;
        self.disk.crash(crash);
        let (process, recovered) = self.open_again();
        self.process = process;
        self.disk.set_faults(DiskFaults::NONE);
        let (unfinished, findings) = recovered;
        self.check_findings(&findings);
        // What the kernel had and could not sync is gone, even if only the process has ended.
        let planted = self.disk.planted();
        let is_lost = |fault: &PlantedFault| fault.kind == FaultKind::SyncError;
        let has_lost = self.manner == Manner::Lies && planted.len() > self.fault_count
            || planted[self.fault_count..].iter().any(is_lost);
        self.fault_count = planted.len();
        self.check(is_power || has_lost);
        for name in unfinished {
            let Some(id) = self.process.journal.get(name).map(|kept| kept.id) else { continue };
            let is_damaged = self.is_damaged();
            if let Some(model) = self.models.get_mut(&id) {
                assert!(!model.is_end_acknowledged || is_damaged || model.is_spoiled);
                (model.has_ended, model.is_end_acknowledged) = (false, false);
                self.process.running.push((id, name));
            }
        }
        self.note("restarted", self.models.len() as u64);
        self.disk.set_faults(self.faults.clone());
    }

    fn open_again(&mut self) -> (Process, Rest) {
        let may_fail = self.random.chance(1, 2);
        if !may_fail {
            self.disk.set_faults(DiskFaults::NONE);
        }
        let mut opened = Process::open(&self.world, &self.setup);
        // Each operation that was asked to fail does that once.
        for _ in 0..STEPS {
            if opened.is_ok() {
                break;
            }
            self.disk.set_faults(DiskFaults::NONE);
            self.disk.heal_sectors();
            self.disk.crash(Crash::Process); // The attempt may have stopped anywhere.
            opened = Process::open(&self.world, &self.setup);
        }
        opened.unwrap_or_else(|error| panic!("{error}"))
    }

    fn check_findings(&mut self, findings: &Findings) {
        let may_be_corrupt = self.is_damaged() || self.counts.rotten > 0;
        let is_sound = findings.corrupt.is_empty() || may_be_corrupt;
        assert!(is_sound, "no fault was planted: {findings:?}");
        // Runs of an execution whose beginning was removed have no owner.
        let may_have_orphans = may_be_corrupt || self.has_removed;
        assert!(findings.orphan_runs == 0 || may_have_orphans, "runs of nobody: {findings:?}");
        self.counts.torn_bytes += findings.torn_bytes;
        self.counts.walked_segments += findings.walked;
    }

    /// Uses a journal whose disk has failed: it takes nothing, and serves what is on the disk.
    pub(super) fn go_on_broken(&mut self) {
        let running = self.process.running.clone();
        let durable = |process: &Process| -> Vec<Option<u64>> {
            running.iter().map(|(_, name)| process.journal.durable_until(*name)).collect()
        };
        let before = durable(&self.process);
        for _ in 0..2 {
            let missed = self.counts.missed;
            let chunks = self.counts.chunks;
            self.append();
            let moment = self.process.moment();
            for (_, name) in &running {
                assert!(!self.process.journal.end(*name, b"completed", moment));
                let kept = self.process.journal.get(*name).expect("it runs");
                let model = &self.models[&kept.id];
                assert_eq!(kept.published().0, model.kept.len() as u64 + 1);
            }
            assert_eq!(self.counts.missed - missed, self.counts.chunks - chunks);
            self.process.pass(Duration::from_secs(6)); // What was under way is over.
            self.hear();
            assert!(durable(&self.process) == before, "acknowledged after a failure");
        }
        let ids: Vec<u128> = self.models.keys().copied().collect();
        for id in ids {
            let Some(name) = self.process.journal.find(id) else { continue };
            let served = self.read_all(id, name).given;
            self.counts.served_broken += served.len() as u64;
            let model = self.models.get_mut(&id).expect("it was there");
            let is_synced = model.durability == Durability::Synced
                || matches!(self.process.journal.fault(), Some(Fault::Sync(_)));
            model.served = if is_synced { served } else { Vec::new() };
        }
    }

    /// Flips one bit that is on the disk, and starts again.
    pub(super) fn rot(&mut self) {
        if self.process.running.is_empty() {
            return;
        }
        self.append();
        if !self.come_to_rest() {
            return;
        }
        let segment_number = self.process.journal.current_segment();
        let rows = self.rows_of(segment_number);
        if rows.is_empty() {
            return;
        }
        // The header of a block precedes its first run.
        let (_, row) = rows[self.random.below(rows.len() as u64) as usize];
        let from = row.offset_bytes - BLOCK_HEADER_BYTES;
        let mut offset = from + self.random.below(u64::from(BLOCK_HEADER_BYTES + row.bytes)) as u32;
        let is_here = |record: &Record| record.lsn.segment_number() == segment_number;
        let descriptions = self.process.journal.executions().map(|(_, kept)| kept.opened);
        if let Some(record) = descriptions.filter(is_here).last()
            && self.random.chance(1, 4)
        {
            offset = record.lsn.offset_bytes() + self.random.below(record.bytes.into()) as u32;
        }
        for (id, row) in rows {
            if (row.offset_bytes..row.offset_bytes + row.bytes).contains(&offset) {
                let model = self.models.get_mut(&id).expect("it was opened");
                model.spoiled.push((row.first_seq, row.until_seq()));
            }
        }
        let lsn = Lsn::new(segment_number, offset);
        for (_, kept) in self.process.journal.executions() {
            let has = |record: &Record| record.lsn <= lsn && lsn < record.lsn.after(record.bytes);
            if has(&kept.opened) || kept.ended.as_ref().is_some_and(has) {
                self.models.get_mut(&kept.id).expect("it was opened").is_spoiled = true;
            }
        }
        let bit = self.random.below(8) as u32;
        let file = FileName::new(&format!("{segment_number:012}.seg")).expect("digits and a dot");
        assert!(self.disk.flip_bit(&file, offset.into(), bit));
        self.counts.rotten += 1;
        self.restart(Crash::Process);
    }

    /// Waits until everything is on the disk, and a mark behind it. False if the segment has no
    /// room for one.
    fn come_to_rest(&mut self) -> bool {
        let mut blocks = None;
        for _ in 0..8_000 {
            let moment = self.process.moment();
            if blocks.is_none() {
                self.process.journal.flush(moment);
            }
            self.process.pass(Duration::from_millis(2));
            self.hear();
            let journal = &self.process.journal;
            // The age of segments is looked at later.
            let is_later = |at: Instant| at.since(moment.now) > JOURNAL_SYNC_INTERVAL;
            let is_quiet = journal.deadline().is_none_or(is_later);
            let is_at_rest = is_quiet && self.disk.in_flight_count() == 0;
            match blocks {
                None if journal.is_all_synced() => blocks = Some(journal.counters().blocks),
                Some(blocks) if is_at_rest => return journal.counters().blocks > blocks,
                _ => {}
            }
        }
        false
    }

    /// The runs of a segment that is not sealed.
    fn rows_of(&mut self, segment_number: u64) -> Vec<(u128, RunRow)> {
        let journal = &mut self.process.journal;
        let all = journal.executions().map(|(name, kept)| (name, kept.id, kept.published().0));
        let all: Vec<(KeptId, u128, u64)> = all.collect();
        let mut rows = Vec::new();
        for (name, id, next_seq) in all {
            let mut seq = 1;
            while seq < next_seq {
                seq = match journal.locate(name, seq) {
                    Some(Place::Run { segment_number: number, row }) => {
                        if number == segment_number {
                            rows.push((id, row));
                        }
                        row.until_seq()
                    }
                    _ => seq + 1,
                };
            }
        }
        rows
    }

    /// True if the disk was made to lie about something.
    fn is_damaged(&self) -> bool {
        self.manner == Manner::Lies && !self.disk.planted().is_empty()
    }

    /// Compares what is kept with what was acknowledged, and goes on from what is kept.
    fn check(&mut self, has_lost_cache: bool) {
        let ids: Vec<u128> = self.models.keys().copied().collect();
        for id in ids {
            let model = &self.models[&id];
            let is_promised = model.durability == Durability::Synced || !has_lost_cache;
            let Some(name) = self.process.journal.find(id) else {
                let may_be_gone = model.has_ended || model.acknowledged == 0;
                let is_lost = is_promised && !may_be_gone;
                let may_be_lost = self.is_damaged() || model.is_spoiled;
                assert!(!is_lost || may_be_lost, "execution {id} is gone");
                self.counts.lost_executions += u64::from(is_lost);
                self.models.remove(&id);
                continue;
            };
            let kept = self.process.journal.get(name).expect("it was found");
            let (next_seq, has_ended) = (kept.published().0, kept.ended.is_some());
            if is_promised && !self.is_damaged() {
                let is_whole = next_seq >= model.acknowledged
                    || model.has_spoiled(next_seq, model.acknowledged);
                assert!(is_whole, "{id}: {} acknowledged, {next_seq}", model.acknowledged);
                let is_end_lost = model.is_end_acknowledged && !has_ended;
                assert!(!is_end_lost || model.is_spoiled, "the end of {id} is lost");
            }
            assert!(next_seq <= model.kept.len() as u64 + 1, "{id} has chunks of its own");
            assert!(!has_ended || model.has_ended, "{id} has ended by itself");
            let Reading { given, expired } = self.read_all(id, name);
            let is_damaged = self.is_damaged();
            let model = self.models.get_mut(&id).expect("it was opened");
            for seq in model.served.drain(..) {
                let is_there = [&given, &expired].iter().any(|all| all.binary_search(&seq).is_ok());
                assert!(is_there || is_damaged, "{id}: {seq} was served and is lost");
            }
            model.kept.truncate(next_seq as usize - 1);
            model.spoiled.retain(|(first_seq, _)| *first_seq < next_seq);
            (model.acknowledged, model.is_end_acknowledged) = (next_seq, has_ended);
        }
    }

    /// Reads an execution from its first to its last chunk.
    pub(super) fn read_all(&mut self, id: u128, name: KeptId) -> Reading {
        let (mut seq, mut reading) = (1, Reading::default());
        loop {
            let Some(kept) = self.process.journal.get(name) else {
                reading.expired.extend(seq..=self.models[&id].kept.len() as u64);
                return reading; // All of it has expired meanwhile.
            };
            let (next_seq, _) = kept.published();
            if seq >= next_seq {
                return reading;
            }
            let place = self.process.journal.locate(name, seq).expect("it was published");
            let place = match place {
                Place::Search(search) => self.search(name, search),
                place => place,
            };
            let before = seq;
            seq = match place {
                Place::Soon => {
                    assert!(self.process.journal.fault().is_none(), "it never comes");
                    self.process.pass(Duration::from_millis(3));
                    self.hear();
                    continue;
                }
                Place::Hole { until_seq, .. } => {
                    self.check_hole(id, seq, until_seq, next_seq);
                    until_seq
                }
                Place::Expired { until_seq } => {
                    self.counts.expired += until_seq - seq;
                    reading.expired.extend(seq..until_seq);
                    until_seq
                }
                Place::Run { segment_number, row } => {
                    self.read_run(id, name, seq, (segment_number, row), &mut reading);
                    row.until_seq()
                }
                Place::Corrupt { until_seq } => {
                    self.note_corrupt(id, seq, until_seq);
                    until_seq
                }
                Place::Search(_) => unreachable!("it was searched for"),
            };
            assert!(seq > before);
        }
    }

    /// A hole is what was not kept; after a failure also what did not reach the disk, but nothing
    /// that was acknowledged.
    fn check_hole(&self, id: u128, from_seq: u64, until_seq: u64, next_seq: u64) {
        let model = &self.models[&id];
        let is_promise_void = match self.process.journal.fault() {
            None => false,
            Some(Fault::Sync(_)) => model.durability != Durability::Synced,
            Some(Fault::Write(_)) => false,
        };
        let is_failure = self.process.journal.fault().is_some()
            && until_seq == next_seq
            && (from_seq >= model.acknowledged || is_promise_void);
        let kept = &model.kept[from_seq as usize - 1..until_seq as usize - 1];
        let is_hole = kept.iter().all(Option::is_none);
        assert!(is_hole || is_failure, "{id}: {from_seq} is no hole");
    }

    /// Reads a part of a segment; `None` if the disk cannot. A disk that does not lie fails a read
    /// once.
    fn read(&mut self, lsn: Lsn, bytes: u32) -> Option<PageBuffer> {
        let read = self.process.read(lsn, bytes);
        match self.manner {
            Manner::Lies => read,
            Manner::Loud | Manner::Rots => read.or_else(|| self.process.read(lsn, bytes)),
        }
    }

    fn search(&mut self, name: KeptId, mut search: Search) -> Place {
        loop {
            self.counts.index_searches += 1;
            let Some(page) = self.read(search.page(), JOURNAL_PAGE_BYTES) else {
                let seq = search.seq();
                return match self.process.journal.locate(name, seq) {
                    Some(place @ Place::Expired { .. }) => place,
                    None => Place::Expired { until_seq: seq + 1 },
                    Some(_) => search.give_up(),
                };
            };
            match search.on_page(&page) {
                Found::Place(place) => return place,
                Found::Again => {}
            }
        }
    }

    fn note_corrupt(&mut self, id: u128, from_seq: u64, until_seq: u64) {
        let may_be = self.is_damaged() || self.models[&id].has_spoiled(from_seq, until_seq);
        assert!(may_be, "{id}: {from_seq} to {until_seq} is corrupt without a fault");
        self.counts.corrupt += until_seq - from_seq;
        self.note("corrupt", id as u64 ^ from_seq << 20);
    }

    fn read_run(
        &mut self,
        id: u128,
        name: KeptId,
        from_seq: u64,
        at: (u64, RunRow),
        reading: &mut Reading,
    ) {
        let (segment_number, row) = at;
        let (lsn, bytes) = (Lsn::new(segment_number, row.offset_bytes), row.bytes);
        let until_seq = row.until_seq();
        let read = self.read(lsn, bytes);
        let read = read.as_ref().map(|read| &read[..bytes as usize]);
        let run = read.and_then(|read| Run::decode(self.setup.journal, lsn, read).ok());
        let run = run.filter(|run| run.header.execution == name.number);
        let Some(run) = run else {
            // Its segment may have been removed meanwhile.
            return match self.process.journal.locate(name, from_seq) {
                None | Some(Place::Expired { .. }) => {
                    self.counts.expired += until_seq - from_seq;
                    reading.expired.extend(from_seq..until_seq);
                }
                _ => self.note_corrupt(id, from_seq, until_seq),
            };
        };
        for chunk in run.chunks() {
            match chunk {
                Ok(chunk) => {
                    let seq = chunk.entry.seq;
                    let start = self.models[&id].kept[seq as usize - 1].expect("it was kept");
                    let (kind, bytes) = payload(id, seq, start);
                    assert!(chunk.payload == bytes, "{id}: chunk {seq} is wrong");
                    assert_eq!(chunk.entry.kind, kind);
                    reading.given.push(seq);
                    self.counts.given += 1;
                }
                Err(bad) => self.note_corrupt(id, bad.from_seq, bad.until_seq),
            }
        }
    }
}
