//! The state of a journal from its files alone.
//!
//! A segment with a sound trailer and index is taken from these. Any other one is walked block by
//! block, and its index is written again. If blocks at its end are missing, later segments do not
//! count either: their first block says where this one should end. Nothing is ever written behind
//! blocks of an earlier process: the journal goes on in a fresh segment.
//!
//! A bad block has one of two causes. If some later block or header says that everything up to a
//! place behind it was on the disk, the disk has damaged it. The rest of the segment then counts,
//! and the stretch is reported as corrupt. If none says so, it is the torn end of the last writes.
//! Then the segment ends before it, and whatever stands behind it is never used.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;

use super::block::{Position, Run};
use super::catalogue::{Catalogue, Kept, KeptId, Living, Record};
use super::commit::TouchHint;
use super::format::{Damage, Lsn, RunKind, SegmentHeader};
use super::index::{ExecutionRow, RecordPlace, RunRow, Trailer, decode_page};
use super::machine::Journal;
use super::records::{Ended, Opened};
use super::seal::{self, Sealing};
use super::segments::Sealed;
use super::table::Table;
use super::walk::{Place, Rest, Walk, read_whole};
use super::{Moment, Setup};
use crate::base::PageBuffer;
use crate::limits::{
    JOURNAL_BLOCK_BYTES_MAX, JOURNAL_EXECUTIONS_MAX, JOURNAL_PAGE_BYTES, JOURNAL_ROWS_MAX,
    JOURNAL_SEGMENT_BYTES,
};
use crate::stream::{Durability, Kind, Totals};

/// The files of a journal, for somebody who can wait for each access.
pub trait Files {
    /// The numbers and sizes of all segments, in any order. Unfinished ones are not among them.
    ///
    /// # Errors
    /// The error of the directory.
    fn segments(&mut self) -> io::Result<Vec<(u64, u64)>>;

    /// Reads into `buffer` what the disk has. A page cache may have other bytes, after a sync that
    /// failed. Returns fewer bytes only at the end of the segment.
    ///
    /// # Errors
    /// The error of the file.
    fn read(&mut self, lsn: Lsn, buffer: &mut [u8]) -> io::Result<usize>;

    /// Notes that these bytes are read soon, after those that were noted before. They can be on
    /// their way meanwhile.
    fn expect(&mut self, _lsn: Lsn, _bytes: usize) {}

    /// Writes whole pages.
    ///
    /// # Errors
    /// The error of the file.
    fn write(&mut self, lsn: Lsn, bytes: &[u8]) -> io::Result<()>;

    /// Syncs a segment.
    ///
    /// # Errors
    /// The error of the file.
    fn sync(&mut self, segment_number: u64) -> io::Result<()>;

    /// Makes a segment with this header, and syncs it, and its name. It takes the file of the
    /// segment `empty`, which is none any more. Without one, it makes a file of zeros.
    ///
    /// # Errors
    /// The error of the directory or of a file.
    fn create(&mut self, header: &SegmentHeader, empty: Option<u64>) -> io::Result<()>;

    /// Removes a segment.
    ///
    /// # Errors
    /// The error of the directory.
    fn remove(&mut self, segment_number: u64) -> io::Result<()>;
}

/// The reason why a journal cannot be opened.
#[derive(Debug)]
pub enum RecoveryError {
    /// A file or the directory failed.
    Io(io::Error),
    /// A segment belongs to another journal, or to another shard.
    Foreign {
        /// The number of the segment.
        segment_number: u64,
    },
    /// A newer version of this program has written a segment.
    Version {
        /// The number of the segment.
        segment_number: u64,
        /// Its version.
        version: u16,
    },
    /// No header can be read, although there are segments.
    NoHeader,
}

/// The findings of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Number of segments that count.
    pub segments: u64,
    /// Number of these that were walked block by block.
    pub walked: u64,
    /// Bytes from the first bad block on that were the torn end of the last writes.
    /// In segments behind a lost one, it is a lower bound.
    pub torn_bytes: u64,
    /// Stretches that the disk has damaged.
    pub corrupt: Vec<(Lsn, Lsn)>,
    /// Runs whose execution is not known, because the record of its beginning is damaged.
    pub orphan_runs: u64,
    /// Indexes and trailers that were damaged.
    pub bad_indexes: u64,
}

/// The content of the files of a journal.
pub struct Contents {
    /// The random number of the journal.
    pub journal: u128,
    catalogue: Catalogue,
    sealed: VecDeque<Sealed>,
    /// The number that no segment has had yet.
    next_segment: u64,
    oldest: u64,
    by_number: HashMap<u32, u32>,
    positions: HashMap<u32, Position>,
    /// Walked segments whose index has to be written: their tables and trailers.
    to_seal: Vec<(Table, Trailer, u32)>,
    /// Segments without any block that counts.
    empty: Vec<Empty>,
    /// The contents of segments that were looked through.
    pub(super) rests: BTreeMap<u64, Rest>,
    /// That of [`Setup`].
    pub(super) unsynced_bytes_max: u32,
    /// The number and the end of the last segment that counts.
    pub(super) last_end: Option<(u64, u32)>,
    /// True once a segment has lost its end.
    pub(super) is_cut: bool,
    /// The findings.
    pub findings: Findings,
}

/// A segment without any block that counts.
struct Empty {
    number: u64,
    /// The size of its file, if it has nothing but zeros behind its header.
    zeros_bytes: u64,
}

/// A journal that can go on.
pub struct Recovered {
    /// The journal, in a fresh segment.
    pub journal: Journal,
    /// Executions without an end.
    pub unfinished: Vec<KeptId>,
    /// The findings.
    pub findings: Findings,
}

/// Opens the journal of a shard, or makes one. `setup.journal` is the random number of a new one.
///
/// # Errors
/// [`RecoveryError`]. It can be tried again: nothing that was readable is changed.
pub fn recover(
    files: &mut impl Files,
    setup: &Setup,
    moment: Moment,
) -> Result<Recovered, RecoveryError> {
    setup.assert_sound();
    let mut contents = Contents::read(files, setup)?;
    contents.seal_walked(files)?;
    // A trailer may be known to the kernel only. The next segment vouches for everything before.
    for sealed in contents.sealed.iter().rev().take(UNSURE_SEGMENTS) {
        files.sync(sealed.number)?;
    }
    // The one that was prepared for the next blocks when the process ended.
    let is_spare = |empty: &mut Empty| empty.zeros_bytes == u64::from(setup.segment_bytes);
    let spare = contents.empty.pop_if(is_spare).map(|empty| empty.number);
    for empty in &contents.empty {
        files.remove(empty.number)?;
    }
    let Contents { journal, next_segment, oldest, .. } = contents;
    let previous_end =
        contents.sealed.back().map(|last| Lsn::new(last.number, last.data_end_bytes));
    let header = SegmentHeader {
        journal,
        shard: setup.shard,
        segment_number: next_segment,
        segment_bytes: setup.segment_bytes,
        oldest_segment: oldest,
        synced: Lsn::new(next_segment, 0),
        previous_end: previous_end.unwrap_or(Lsn(0)),
        wall_us: moment.wall_us,
        mono_ns: moment.now.nanos(),
    };
    files.create(&header, spare)?;
    let unfinished = contents.revive(files)?;
    let Contents { catalogue, sealed, findings, .. } = contents;
    let setup = Setup { journal, ..*setup };
    let journal = Journal::new(setup, catalogue, sealed, next_segment, moment.now);
    Ok(Recovered { journal, unfinished, findings })
}

/// Number of segments whose trailer may not be on the disk: the next but one is begun only after
/// that.
const UNSURE_SEGMENTS: usize = 3;

impl Contents {
    /// Reads a journal without changing it. `setup.journal` is the random number if there is none.
    ///
    /// # Errors
    /// [`RecoveryError`].
    pub fn read(files: &mut impl Files, setup: &Setup) -> Result<Contents, RecoveryError> {
        let mut found = files.segments()?;
        found.sort_unstable();
        let headers = read_headers(files, &found, setup.shard)?;
        let known = headers.iter().flatten().next();
        if known.is_none() && found.len() > 1 {
            return Err(RecoveryError::NoHeader);
        }
        let journal = known.map_or(setup.journal, |header| header.journal);
        let oldest = headers.iter().flatten().map(|header| header.oldest_segment).max();
        let next_segment = found.last().map_or(1, |(number, _)| number + 1);
        let mut contents = Contents {
            journal,
            catalogue: Catalogue::default(),
            sealed: VecDeque::new(),
            next_segment,
            // Without a readable header, all of them count.
            oldest: oldest.or(found.first().map(|first| first.0)).unwrap_or(next_segment),
            by_number: HashMap::new(),
            positions: HashMap::new(),
            to_seal: Vec::new(),
            empty: Vec::new(),
            rests: BTreeMap::new(),
            unsynced_bytes_max: setup.unsynced_bytes_max,
            last_end: None,
            is_cut: false,
            findings: Findings::default(),
        };
        for (at, &(number, file_bytes)) in found.iter().enumerate() {
            if number < contents.oldest {
                // Its removal did not reach the disk.
                contents.empty.push(Empty { number, zeros_bytes: 0 });
                continue;
            }
            let later = || headers[at + 1..].iter().flatten();
            let synced = later().map(|header| header.synced).max().unwrap_or(Lsn(0));
            let mut ends = later().map(|header| header.previous_end);
            let end = ends.find(|end| end.segment_number() == number && *end > Lsn(0));
            let bytes =
                headers[at].map_or_else(|| whole_pages(file_bytes), |head| head.segment_bytes);
            contents.read_segment(
                files,
                Place { number, bytes, end, later: &found[at + 1..] },
                file_bytes,
                synced,
            )?;
        }
        Ok(contents)
    }

    /// The executions.
    pub fn executions(&self) -> impl Iterator<Item = (KeptId, &Kept)> {
        self.catalogue.iter().filter(|(_, kept)| !kept.is_deleted)
    }

    /// The runs of the segments that were walked, with the numbers of these.
    #[cfg(test)]
    pub(super) fn walked_rows(&self) -> Vec<(u64, RunRow)> {
        let rows = self.to_seal.iter().flat_map(|(table, ..)| {
            let mut cursor = super::table::RunCursor::START;
            let rows: Vec<RunRow> = table.run_rows(&mut cursor).collect();
            rows.into_iter().map(|row| (table.segment_number, row))
        });
        rows.collect()
    }

    fn read_segment(
        &mut self,
        files: &mut impl Files,
        place: Place<'_>,
        file_bytes: u64,
        synced: Lsn,
    ) -> Result<(), RecoveryError> {
        let (number, segment_bytes) = (place.number, place.bytes);
        match self.read_index(files, number, segment_bytes) {
            Ok(()) => {
                self.findings.segments += 1;
                return Ok(());
            }
            Err(IndexError::Io(error)) => return Err(RecoveryError::Io(error)),
            Err(IndexError::Damaged(Damage::Magic)) => {}
            Err(IndexError::Damaged(_)) => self.findings.bad_indexes += 1,
        }
        let mut walk = Walk::new(self, place, synced);
        walk.run(files)?;
        let Walk { table, end_bytes, is_blank, .. } = walk;
        self.findings.walked += 1;
        if end_bytes == JOURNAL_PAGE_BYTES {
            self.last_end = Some((number, end_bytes));
            let zeros_bytes = if is_blank { file_bytes } else { 0 };
            self.empty.push(Empty { number, zeros_bytes });
            return Ok(());
        }
        self.findings.segments += 1;
        self.finish_walk(table, end_bytes, segment_bytes);
        Ok(())
    }

    /// Takes a segment from its index.
    fn read_index(
        &mut self,
        files: &mut impl Files,
        number: u64,
        segment_bytes: u32,
    ) -> Result<(), IndexError> {
        let mut page = PageBuffer::new(JOURNAL_PAGE_BYTES as usize);
        let at = Lsn::new(number, segment_bytes - JOURNAL_PAGE_BYTES);
        read_whole(files, at, &mut page)?;
        let trailer = Trailer::decode(self.journal, number, segment_bytes, &page)?;
        let mut rows: Vec<ExecutionRow> = Vec::new();
        for at in 0..trailer.execution_pages() {
            let lsn = trailer.execution_page(at);
            read_whole(files, lsn, &mut page)?;
            for row in decode_page::<ExecutionRow>(lsn, &page)? {
                rows.push(row?);
            }
        }
        // The pages of runs are checked when they are used.
        let run_count: u64 = rows.iter().map(|row| u64::from(row.run_count)).sum();
        if rows.len() != trailer.execution_count as usize
            || run_count != u64::from(trailer.run_count)
        {
            return Err(IndexError::Damaged(Damage::Bounds));
        }
        for row in &rows {
            self.take_row(&trailer, row);
        }
        self.take_sealed(&trailer);
        Ok(())
    }

    fn take_sealed(&mut self, trailer: &Trailer) {
        self.last_end = Some((trailer.segment_number, trailer.data_end_bytes));
        self.sealed.push_back(Sealed {
            number: trailer.segment_number,
            last_us: trailer.last_us,
            execution_pages: trailer.execution_pages(),
            index_pages: trailer.index_pages(),
            data_end_bytes: trailer.data_end_bytes,
        });
    }

    fn take_row(&mut self, trailer: &Trailer, row: &ExecutionRow) {
        let number = trailer.segment_number;
        let record = |place: RecordPlace| Record {
            lsn: Lsn::new(number, place.offset_bytes),
            bytes: place.bytes,
        };
        let opened = row.opened.found().map(record);
        let Some(index) = self.known(row.execution, row.id, opened) else {
            self.findings.orphan_runs += u64::from(row.run_count);
            return;
        };
        let kept = self.catalogue.at_mut(index).expect("it is known");
        (kept.next_seq, kept.bytes) = (row.until_seq, row.bytes_until);
        if let Some(place) = row.ended.found() {
            (kept.ended, kept.ended_us) = (Some(record(place)), row.ended_us);
        }
        kept.keep_s = row.keep_s;
        kept.is_deleted |= row.is_deleted;
        kept.extents.extend(seal::extent(number, row));
        self.positions.remove(&row.execution);
    }

    /// The execution with this number, which is added if the record of its beginning is there.
    fn known(&mut self, number: u32, id: u128, opened: Option<Record>) -> Option<u32> {
        self.catalogue.skip_numbers(number);
        if let Some(&index) = self.by_number.get(&number) {
            if let Some(opened) = opened {
                self.catalogue.at_mut(index)?.opened = opened;
            }
            return Some(index);
        }
        let opened = opened?;
        let is_taken = self.catalogue.find(id).is_some();
        if is_taken || self.by_number.len() == JOURNAL_EXECUTIONS_MAX {
            return None;
        }
        let name = self.catalogue.insert(Kept::new(id, number, opened));
        self.by_number.insert(number, name.index);
        Some(name.index)
    }

    fn finish_walk(&mut self, mut table: Table, end_bytes: u32, segment_bytes: u32) {
        for part in &mut table.parts {
            let kept = self.catalogue.at_mut(part.kept).expect("a part belongs to an execution");
            kept.part = None;
            (part.until_seq, part.bytes_until) = (kept.next_seq, kept.bytes);
        }
        let trailer = Trailer {
            journal: self.journal,
            segment_number: table.segment_number,
            data_end_bytes: end_bytes,
            execution_count: table.parts.len() as u32,
            run_count: table.run_count() as u32,
            chunk_count: table.chunk_count,
            last_us: table.last_us,
        };
        // A file without a readable header may be too short for its index.
        let needed_bytes = end_bytes + (trailer.index_pages() + 1) * JOURNAL_PAGE_BYTES;
        let segment_bytes = segment_bytes.max(needed_bytes);
        seal::note_extents(&table, trailer.segment_number, &mut self.catalogue);
        self.take_sealed(&trailer);
        self.to_seal.push((table, trailer, segment_bytes));
    }

    /// Writes the indexes of the segments that were walked.
    fn seal_walked(&mut self, files: &mut impl Files) -> Result<(), RecoveryError> {
        let mut buffer = PageBuffer::new(JOURNAL_BLOCK_BYTES_MAX as usize);
        for (table, trailer, segment_bytes) in std::mem::take(&mut self.to_seal) {
            let mut sealing = Sealing::new(table, trailer);
            loop {
                let write = sealing.fill(&self.catalogue, segment_bytes, &mut buffer);
                sealing.is_writing = false;
                files.write(write.lsn, &buffer[..write.bytes as usize])?;
                files.sync(trailer.segment_number)?;
                if write.is_last {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Makes executions without an end go on, as far as that they can be ended.
    fn revive(&mut self, files: &mut impl Files) -> Result<Vec<KeptId>, RecoveryError> {
        let is_unfinished = |kept: &Kept| kept.ended.is_none() && !kept.is_deleted;
        let all = self.catalogue.iter().filter(|(_, kept)| is_unfinished(kept));
        let names: Vec<KeptId> = all.map(|(name, _)| name).collect();
        for &name in &names {
            let position = match self.positions.get(&name.number) {
                Some(position) => *position,
                None => self.last_position(files, name)?,
            };
            let opened = self.catalogue.get(name).expect("it was just there").opened;
            let (durability, opened_us, details) = read_opened(files, self.journal, opened)?;
            let kept = self.catalogue.get_mut(name).expect("it was just there");
            kept.living = Some(Box::new(Living {
                durability,
                position,
                missing: None,
                written_seq: kept.next_seq,
                synced_seq: kept.next_seq,
                is_end_awaited: false,
                is_news: false,
                opened_us,
                details,
                amended_until: Lsn(0),
                hint: TouchHint::default(),
            }));
        }
        Ok(names)
    }

    /// The position behind the last chunk of an execution whose runs are all in sealed segments.
    fn last_position(
        &mut self,
        files: &mut impl Files,
        name: KeptId,
    ) -> Result<Position, RecoveryError> {
        let kept = self.catalogue.get(name).expect("the caller has it");
        let all = Totals { chunks: kept.next_seq - 1, bytes: kept.bytes };
        if kept.next_seq == 1 {
            return Ok(Position::new(name.number));
        }
        let is_it = |position: &Position| position.all == all;
        let opened = kept.opened;
        let found = match self.read_last_run(files, name)?.filter(is_it) {
            Some(position) => Some(position),
            // Its chunks have expired, and its description was carried over them.
            None => self.read_run(files, opened.lsn, opened.bytes, name)?.filter(is_it),
        };
        Ok(found.unwrap_or_else(|| {
            // The run is damaged, and with it the kinds of its chunks. All count as output.
            let mut position = Position::new(name.number);
            position.totals.add(Kind::Output, all);
            position.all = all;
            position
        }))
    }

    fn read_last_run(
        &self,
        files: &mut impl Files,
        name: KeptId,
    ) -> Result<Option<Position>, RecoveryError> {
        let kept = self.catalogue.get(name).expect("the caller has it");
        let Some(extent) = kept.extents.last() else { return Ok(None) };
        let Ok(at) =
            self.sealed.binary_search_by_key(&extent.segment_number, |sealed| sealed.number)
        else {
            return Ok(None);
        };
        let last = extent.run_at + extent.run_count - 1;
        let page_at = last / super::index::RUNS_PER_PAGE as u32;
        let sealed = &self.sealed[at];
        let offset_bytes =
            sealed.data_end_bytes + (sealed.execution_pages + page_at) * JOURNAL_PAGE_BYTES;
        let lsn = Lsn::new(extent.segment_number, offset_bytes);
        let mut page = PageBuffer::new(JOURNAL_PAGE_BYTES as usize);
        read_whole(files, lsn, &mut page)?;
        let Ok(rows) = decode_page::<RunRow>(lsn, &page) else { return Ok(None) };
        let row = rows.flatten().filter(|row| row.execution == name.number).last();
        let Some(row) = row else { return Ok(None) };
        self.read_run(files, Lsn::new(extent.segment_number, row.offset_bytes), row.bytes, name)
    }

    /// The position behind a run of an execution, if it is one and intact.
    fn read_run(
        &self,
        files: &mut impl Files,
        lsn: Lsn,
        bytes: u32,
        name: KeptId,
    ) -> Result<Option<Position>, RecoveryError> {
        if bytes > JOURNAL_BLOCK_BYTES_MAX {
            return Ok(None);
        }
        let mut bytes = vec![0; bytes as usize];
        read_whole(files, lsn, &mut bytes)?;
        let run = Run::decode(self.journal, lsn, &bytes).ok();
        Ok(run.filter(|run| run.header.execution == name.number).and_then(|r| r.position_after()))
    }
}

impl Contents {
    pub(super) fn take_run(&mut self, table: &mut Table, segment_number: u64, run: &Run<'_>) {
        let header = &run.header;
        let record = Record { lsn: run.lsn, bytes: header.bytes };
        let opened = match header.kind {
            RunKind::Opened | RunKind::Carried => run.body().and_then(Opened::decode).ok(),
            _ => None,
        };
        let id = opened.map_or(0, |opened| opened.id);
        let Some(index) = self.known(header.execution, id, opened.map(|_| record)) else {
            self.findings.orphan_runs += 1;
            return;
        };
        let is_full = table.run_count() == JOURNAL_ROWS_MAX;
        let kept = self.catalogue.at_mut(index).expect("it is known");
        kept.keep_s = opened.map_or(kept.keep_s, |opened| opened.terms.keep_s);
        let is_chunks = matches!(header.kind, RunKind::Chunks | RunKind::Hole);
        if is_chunks && (header.first_seq < kept.next_seq || is_full) || kept.ended.is_some() {
            self.findings.orphan_runs += u64::from(header.kind != RunKind::Deleted);
            kept.is_deleted |= header.kind == RunKind::Deleted;
            if header.kind != RunKind::Deleted {
                return; // It repeats something, which no run of ours does.
            }
        }
        if header.kind == RunKind::Carried && header.first_seq > kept.next_seq {
            // The chunks before were in segments that were removed.
            (kept.next_seq, kept.bytes) = (header.first_seq, header.bytes_before);
            self.positions.extend(run.position_after().map(|at| (header.execution, at)));
        }
        let part = *kept.part.get_or_insert_with(|| table.add_part(index, kept.next_seq));
        let place = RecordPlace { offset_bytes: record.lsn.offset_bytes(), bytes: record.bytes };
        match header.kind {
            RunKind::Chunks | RunKind::Hole => {
                take_chunks(table, part, kept, run);
                match run.position_after() {
                    Some(position) => {
                        kept.bytes = position.all.bytes;
                        self.positions.insert(header.execution, position);
                    }
                    None => {
                        self.positions.remove(&header.execution);
                    }
                }
            }
            RunKind::Opened | RunKind::Carried => table.parts[part as usize].opened = place,
            RunKind::Ended => {
                if let Ok(ended) = run.body().and_then(Ended::decode) {
                    table.parts[part as usize].ended = place;
                    (kept.ended, kept.ended_us) = (Some(record), ended.ended_us);
                    (kept.next_seq, kept.bytes) = (header.first_seq, header.bytes_before);
                }
            }
            RunKind::Deleted => {
                table.parts[part as usize].is_deleted = true;
                kept.is_deleted = true;
            }
            RunKind::Note => {}
        }
        assert!(table.segment_number == segment_number);
    }
}

fn take_chunks(table: &mut Table, part: u32, kept: &mut Kept, run: &Run<'_>) {
    let header = &run.header;
    let row = RunRow {
        execution: header.execution,
        offset_bytes: run.lsn.offset_bytes(),
        bytes: 0,
        count: 0,
        first_seq: header.first_seq,
        bytes_before: header.bytes_before,
        is_hole: header.kind == RunKind::Hole,
    };
    table.push(part, row);
    table.close_last(header.bytes, header.count);
    kept.next_seq = header.first_seq + u64::from(header.count);
}

fn read_headers(
    files: &mut impl Files,
    found: &[(u64, u64)],
    shard: u16,
) -> Result<Vec<Option<SegmentHeader>>, RecoveryError> {
    let mut headers: Vec<Option<SegmentHeader>> = Vec::with_capacity(found.len());
    let mut page = PageBuffer::new(JOURNAL_PAGE_BYTES as usize);
    for &(number, _) in found.iter().rev() {
        read_whole(files, Lsn::new(number, 0), &mut page)?;
        let header = match SegmentHeader::decode(&page) {
            Ok(header) => header,
            Err(Damage::Version(version)) => {
                return Err(RecoveryError::Version { segment_number: number, version });
            }
            Err(_) => {
                headers.push(None);
                continue;
            }
        };
        let first = headers.iter().flatten().next();
        let is_foreign = first.is_some_and(|first| first.journal != header.journal);
        if is_foreign || header.shard != shard {
            return Err(RecoveryError::Foreign { segment_number: number });
        }
        let header = (header.segment_number == number).then_some(header);
        headers.push(header);
    }
    headers.reverse();
    Ok(headers)
}

/// The size of a segment whose header says nothing, from the size of its file.
pub(crate) fn whole_pages(file_bytes: u64) -> u32 {
    let bytes = file_bytes.min(JOURNAL_SEGMENT_BYTES.into()) as u32;
    (bytes / JOURNAL_PAGE_BYTES * JOURNAL_PAGE_BYTES).max(2 * JOURNAL_PAGE_BYTES)
}

fn read_opened(
    files: &mut impl Files,
    journal: u128,
    record: Record,
) -> Result<(Durability, u64, Box<[u8]>), RecoveryError> {
    let mut bytes = vec![0; record.bytes.min(JOURNAL_BLOCK_BYTES_MAX) as usize];
    read_whole(files, record.lsn, &mut bytes)?;
    let run = Run::decode(journal, record.lsn, &bytes);
    let opened = run.and_then(|run| match run.header.kind {
        RunKind::Opened | RunKind::Carried => Opened::decode(run.body()?),
        _ => Err(Damage::Bounds),
    });
    Ok(match opened {
        Ok(opened) => (opened.terms.durability, opened.opened_us, opened.details.into()),
        Err(_) => (Durability::Synced, 0, Box::default()),
    })
}

/// The reason why an index is not used.
enum IndexError {
    Io(io::Error),
    Damaged(Damage),
}

impl From<io::Error> for IndexError {
    fn from(error: io::Error) -> IndexError {
        IndexError::Io(error)
    }
}

impl From<Damage> for IndexError {
    fn from(damage: Damage) -> IndexError {
        IndexError::Damaged(damage)
    }
}

impl From<io::Error> for RecoveryError {
    fn from(error: io::Error) -> RecoveryError {
        RecoveryError::Io(error)
    }
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryError::Io(error) => error.fmt(out),
            RecoveryError::Foreign { segment_number } => {
                write!(out, "segment {segment_number} belongs to another journal")
            }
            RecoveryError::Version { segment_number, version } => {
                let text = "was written by a newer version of this program";
                write!(out, "segment {segment_number} {text} (format {version})")
            }
            RecoveryError::NoHeader => out.write_str("no segment has a readable header"),
        }
    }
}

impl std::error::Error for RecoveryError {}
