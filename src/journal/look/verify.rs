//! A check of every byte that counts: headers, blocks, padding, runs, chunks, records, indexes and
//! trailers. An index has to agree with the blocks, and a run with the one before it.
//!
//! The torn end of the last writes is normal. It is counted, and no fault.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;

use super::blocks::{Piece, Scope, Walked, read_whole, walk};
use super::rows::{Index, IndexError, read_index};
use super::{Look, LookError, ReadFiles, Segment};
use crate::journal::block::{Position, Run, is_padded};
use crate::journal::format::{
    ALIGN_BYTES, CHUNK_ENTRY_BYTES, Damage, Lsn, RunKind, SEGMENT_HEADER_BYTES, chunk_bytes,
};
use crate::journal::index::{ExecutionRow, RecordPlace, RunRow, TRAILER_BYTES};
use crate::journal::records::{Ended, Opened};
use crate::journal::runs::RECORD_HEAD_BYTES;
use crate::limits::JOURNAL_PAGE_BYTES;

/// A fault of a journal, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The number of the segment.
    pub segment_number: u64,
    /// The offset in its file.
    pub offset_bytes: u64,
    /// The fault.
    pub wrong: Wrong,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The segment does not exist, although earlier and later ones do.
    Absent,
    /// The file is shorter than its header says.
    FileLength {
        /// The length in the header.
        expected_bytes: u32,
    },
    /// The header of the segment is damaged.
    SegmentHeader(Damage),
    /// The header of a block is damaged, or all of the block.
    Block {
        /// The damage.
        damage: Damage,
        /// Number of bytes that cannot be read because of it.
        bytes: u64,
    },
    /// A block has another number of runs than its header says.
    RunCount {
        /// The number in the header.
        expected: u32,
        /// The number of runs.
        found: u32,
    },
    /// A run is damaged.
    Run {
        /// The damage.
        damage: Damage,
        /// Number of bytes that cannot be read because of it.
        bytes: u64,
    },
    /// Chunks are damaged.
    Chunks {
        /// The number of the execution in its journal.
        execution: u32,
        /// The first chunk.
        from_seq: u64,
        /// One past the last.
        until_seq: u64,
        /// The damage of the first.
        damage: Damage,
    },
    /// A record is damaged.
    Record(RunKind, Damage),
    /// Bytes that should be zero are not.
    Padding,
    /// A run does not continue the one before of its execution.
    Order {
        /// The number of the execution in its journal.
        execution: u32,
        /// The first chunk that the run should have.
        expected_seq: u64,
        /// The first chunk that it has.
        found_seq: u64,
    },
    /// The totals before a run are not those of the runs before.
    Totals {
        /// The number of the execution in its journal.
        execution: u32,
    },
    /// The trailer is damaged.
    Trailer(Damage),
    /// A page of the index is damaged.
    IndexPage(Damage),
    /// The trailer, the executions and the runs of an index do not agree.
    IndexCounts,
    /// A row of the index has no such run or record in the blocks.
    IndexRow {
        /// The number of the execution in its journal.
        execution: u32,
    },
    /// The index has no row for a run.
    NoIndexRow {
        /// The number of the execution in its journal.
        execution: u32,
    },
}

impl Wrong {
    /// The number of the execution in its journal, if the fault belongs to one.
    pub fn execution(&self) -> Option<u32> {
        match self {
            Wrong::Chunks { execution, .. }
            | Wrong::Order { execution, .. }
            | Wrong::Totals { execution }
            | Wrong::IndexRow { execution }
            | Wrong::NoIndexRow { execution } => Some(*execution),
            _ => None,
        }
    }
}

/// The sums over everything that was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Segments.
    pub segments: u64,
    /// Blocks.
    pub blocks: u64,
    /// Runs, records included.
    pub runs: u64,
    /// Chunks.
    pub chunks: u64,
    /// Bytes of all of this.
    pub bytes: u64,
    /// Bytes behind the end: the torn end of the last writes, or writes under way.
    pub torn_bytes: u64,
    /// Faults.
    pub faults: u64,
}

/// Checks a journal. Each fault is told to `tell` when it is found.
///
/// # Errors
/// [`LookError`].
pub fn verify<F: ReadFiles>(
    look: &mut Look<F>,
    tell: &mut dyn FnMut(&Fault),
) -> Result<Sums, LookError> {
    let (sums, positions) = (Sums::default(), HashMap::new());
    let mut check = Check { sums, tell, segment_number: 0, positions, seen: Seen::default() };
    let mut last_end: Option<(u64, u32)> = None;
    for at in 0..look.segments.len() {
        let segment = look.segments[at];
        check.begin(at.checked_sub(1).map(|before| look.segments[before].number), &segment);
        let later = &look.segments[at + 1..];
        let (journal, segment) = (look.journal, &segment);
        let scope = Scope { journal, segment, later, last_end, sealed_end: None };
        match check.segment(&mut look.files, scope) {
            Ok(walked) if walked.is_cut => break,
            Ok(walked) => last_end = Some((segment.number, walked.end_bytes)),
            Err(error) if look.is_gone(segment.number, &error) => check.positions.clear(),
            Err(error) => {
                return Err(LookError::Io { segment_number: Some(segment.number), error });
            }
        }
    }
    Ok(check.sums)
}

struct Check<'a> {
    sums: Sums,
    tell: &'a mut dyn FnMut(&Fault),
    segment_number: u64,
    /// The positions of the executions behind their last intact run.
    positions: HashMap<u32, Position>,
    seen: Seen,
}

/// The runs of a segment, to be compared with its index.
#[derive(Default)]
struct Seen {
    rows: Vec<RunRow>,
    /// The execution and the kind of each record, by its offset, with its size.
    records: HashMap<u32, (u32, RunKind, u32)>,
    /// The offsets of stretches that cannot be read.
    rotten: Vec<(u32, u32)>,
}

impl Check<'_> {
    fn fault(&mut self, offset_bytes: impl Into<u64>, wrong: Wrong) {
        let segment_number = self.segment_number;
        self.sums.faults += 1;
        (self.tell)(&Fault { segment_number, offset_bytes: offset_bytes.into(), wrong });
    }

    fn begin(&mut self, before: Option<u64>, segment: &Segment) {
        if let Some(before) = before.filter(|before| before + 1 < segment.number) {
            self.segment_number = before + 1;
            self.fault(0u64, Wrong::Absent);
            self.positions.clear();
        }
        self.segment_number = segment.number;
        self.seen = Seen::default();
    }

    fn segment(&mut self, files: &mut impl ReadFiles, scope: Scope<'_>) -> io::Result<Walked> {
        let segment = scope.segment;
        self.sums.segments += 1;
        match segment.header {
            Err(damage) => self.fault(0u64, Wrong::SegmentHeader(damage)),
            Ok(header) if segment.file_bytes < header.segment_bytes.into() => {
                let expected_bytes = header.segment_bytes;
                self.fault(segment.file_bytes, Wrong::FileLength { expected_bytes });
            }
            Ok(_) => self.page_padding(files, 0, SEGMENT_HEADER_BYTES)?,
        }
        self.sums.bytes += u64::from(JOURNAL_PAGE_BYTES);
        let index = read_index(files, scope.journal, segment)?;
        let last_page = segment.bytes() - JOURNAL_PAGE_BYTES;
        match index {
            Ok(_) => self.page_padding(files, last_page, TRAILER_BYTES)?,
            Err(IndexError::Open) => {}
            Err(IndexError::Trailer(damage)) => self.fault(last_page, Wrong::Trailer(damage)),
            Err(IndexError::Page(at, damage)) => self.fault(at, Wrong::IndexPage(damage)),
            Err(IndexError::Counts) => self.fault(last_page, Wrong::IndexCounts),
        }
        let index = index.ok();
        let sealed_end = index.as_ref().map(|index| index.trailer.data_end_bytes);
        let walked = walk(files, Scope { sealed_end, ..scope }, &mut |piece| self.piece(&piece))?;
        self.sums.torn_bytes += walked.torn_bytes;
        if let Some(index) = index {
            let pages = index.trailer.index_pages() + 1;
            self.sums.bytes += u64::from(pages) * u64::from(JOURNAL_PAGE_BYTES);
            self.compare(&index, last_page);
        }
        Ok(walked)
    }

    /// Checks that the rest of a page is zero.
    fn page_padding(
        &mut self,
        files: &mut impl ReadFiles,
        at: u32,
        used_bytes: usize,
    ) -> io::Result<()> {
        let mut page = [0; JOURNAL_PAGE_BYTES as usize];
        read_whole(files, Lsn::new(self.segment_number, at), &mut page)?;
        if let Some(bad) = page[used_bytes..].iter().position(|byte| *byte != 0) {
            self.fault(at + (used_bytes + bad) as u32, Wrong::Padding);
        }
        Ok(())
    }

    fn piece(&mut self, piece: &Piece<'_>) {
        match piece {
            Piece::Block { header, bytes, .. } => {
                self.sums.blocks += 1;
                self.sums.bytes += u64::from(header.bytes);
                let mut run_count = 0;
                piece.each_run(&mut |run| match run {
                    Ok(run) => {
                        run_count += 1;
                        let at = (run.lsn.0 - header.lsn.0) as usize;
                        self.run(&run, &bytes[at..at + run.header.bytes as usize]);
                    }
                    Err(rot) => {
                        let bytes = rot.until.0 - rot.from.0;
                        self.rotten(rot.from, rot.until);
                        self.fault(
                            rot.from.offset_bytes(),
                            Wrong::Run { damage: rot.damage, bytes },
                        );
                    }
                });
                let at = header.lsn.offset_bytes();
                let is_rotten = self.seen.rotten.last().is_some_and(|(from, _)| *from >= at);
                if run_count != header.run_count && !is_rotten {
                    let (expected, found) = (header.run_count, run_count);
                    self.fault(at, Wrong::RunCount { expected, found });
                }
                if !is_padded(header, bytes) {
                    self.fault(at + header.used_bytes, Wrong::Padding);
                }
            }
            Piece::Run(run) => self.run(run, &[]),
            Piece::Rot(rot) => {
                let bytes = rot.until.0 - rot.from.0;
                self.sums.bytes += bytes;
                if !piece.is_header() {
                    self.rotten(rot.from, rot.until);
                }
                self.fault(rot.from.offset_bytes(), Wrong::Block { damage: rot.damage, bytes });
            }
        }
    }

    /// Notes a stretch that cannot be read. Any execution may have lost runs in it.
    fn rotten(&mut self, from: Lsn, until: Lsn) {
        let length = (until.0 - from.0) as u32;
        self.seen.rotten.push((from.offset_bytes(), from.offset_bytes() + length));
        self.positions.clear();
    }

    /// Checks a run. `bytes` are those of the run, if its block has a sound header.
    fn run(&mut self, run: &Run<'_>, bytes: &[u8]) {
        let header = &run.header;
        let at = run.lsn.offset_bytes();
        self.sums.runs += 1;
        let has_position = header.kind != RunKind::Deleted; // A deletion begins at no chunk.
        if has_position {
            self.order(run);
        }
        let after = match header.kind {
            RunKind::Chunks => self.chunks(run, bytes),
            kind => {
                let record = run.body().and_then(|body| match kind {
                    RunKind::Opened | RunKind::Carried => Opened::decode(body).map(|_| body),
                    RunKind::Ended => Ended::decode(body).map(|_| body),
                    RunKind::Hole if run.position_after().is_none() => Err(Damage::Bounds),
                    _ => Ok(body),
                });
                match record {
                    Ok(body) => {
                        let used = header.head_bytes() + RECORD_HEAD_BYTES + body.len() as u32;
                        self.padding(at, bytes, used as usize, header.bytes as usize);
                    }
                    Err(damage) => self.fault(at, Wrong::Record(kind, damage)),
                }
                self.seen.records.insert(at, (header.execution, kind, header.bytes));
                run.position_after()
            }
        };
        match after {
            _ if !has_position => {}
            Some(position) => drop(self.positions.insert(header.execution, position)),
            None => drop(self.positions.remove(&header.execution)),
        }
        if matches!(header.kind, RunKind::Chunks | RunKind::Hole) {
            self.seen.rows.push(RunRow {
                execution: header.execution,
                offset_bytes: at,
                bytes: header.bytes,
                count: header.count,
                first_seq: header.first_seq,
                bytes_before: header.bytes_before,
                is_hole: header.kind == RunKind::Hole,
            });
        }
    }

    /// Checks that a run continues the one before.
    fn order(&mut self, run: &Run<'_>) {
        let header = &run.header;
        let execution = header.execution;
        if let Some(position) = self.positions.get(&execution) {
            let (expected_seq, found_seq) = (position.next_seq(), header.first_seq);
            let at = run.lsn.offset_bytes();
            if expected_seq != found_seq {
                self.fault(at, Wrong::Order { execution, expected_seq, found_seq });
            } else if position.totals != run.before {
                self.fault(at, Wrong::Totals { execution });
            }
        }
    }

    /// Checks the chunks of a run. Returns the position behind it, if all of them are intact.
    fn chunks(&mut self, run: &Run<'_>, bytes: &[u8]) -> Option<Position> {
        let (execution, lsn) = (run.header.execution, run.lsn);
        let mut at = run.header.head_bytes() as usize;
        let mut is_known = true; // Behind a damaged chunk, no place is.
        let mut position = run.position_before();
        for chunk in run.chunks() {
            match chunk {
                Ok(chunk) => {
                    self.sums.chunks += 1;
                    position.pass(&chunk.entry);
                    if is_known {
                        let length = chunk.entry.length;
                        let used = at + (CHUNK_ENTRY_BYTES + length) as usize;
                        let end = at + chunk_bytes(length) as usize;
                        self.padding(lsn.offset_bytes(), bytes, used, end);
                        at = end;
                    }
                }
                Err(lost) => {
                    let (from_seq, until_seq) = (lost.from_seq, lost.until_seq);
                    let damage = lost.damage;
                    let wrong = Wrong::Chunks { execution, from_seq, until_seq, damage };
                    self.fault(lsn.offset_bytes() + at as u32, wrong);
                    is_known = false;
                }
            }
        }
        if is_known && bytes.get(at..).is_some_and(|rest| !rest.is_empty()) {
            self.fault(lsn.offset_bytes() + at as u32, Wrong::Padding);
        }
        is_known.then_some(position)
    }

    /// Checks that bytes of a run are zero.
    fn padding(&mut self, run_at: u32, bytes: &[u8], from: usize, until: usize) {
        let padding = bytes.get(from..until.min(bytes.len())).unwrap_or(&[]);
        if let Some(bad) = padding.iter().position(|byte| *byte != 0) {
            self.fault(run_at + (from + bad) as u32, Wrong::Padding);
        }
    }

    /// Compares the index of a segment with its blocks.
    fn compare(&mut self, index: &Index, trailer_at: u32) {
        let seen = std::mem::take(&mut self.seen);
        let by_offset: HashMap<u32, &RunRow> =
            seen.rows.iter().map(|row| (row.offset_bytes, row)).collect();
        let is_rotten =
            |at: u32| seen.rotten.iter().any(|(from, until)| (*from..*until).contains(&at));
        let mut indexed: HashSet<u32> = HashSet::new();
        for row in &index.runs {
            indexed.insert(row.offset_bytes);
            let is_same = by_offset.get(&row.offset_bytes).is_some_and(|found| *found == row);
            if !is_same && !is_rotten(row.offset_bytes) {
                let execution = row.execution;
                self.fault(row.offset_bytes, Wrong::IndexRow { execution });
            }
        }
        let mut executions: HashSet<u32> = HashSet::new();
        for row in &index.executions {
            executions.insert(row.execution);
            let is_record = |place: RecordPlace, kinds: [RunKind; 2]| {
                let Some(place) = place.found() else { return true };
                is_rotten(place.offset_bytes)
                    || seen.records.get(&place.offset_bytes).is_some_and(
                        |(execution, kind, bytes)| {
                            *execution == row.execution
                                && kinds.contains(kind)
                                && *bytes == place.bytes
                        },
                    )
            };
            let is_right = is_record(row.opened, [RunKind::Opened, RunKind::Carried])
                && is_record(row.ended, [RunKind::Ended; 2])
                && is_in_order(index, row);
            if !is_right {
                self.fault(trailer_at, Wrong::IndexRow { execution: row.execution });
            }
        }
        // An execution that had expired when the index was built again has no rows.
        for row in seen.rows.iter().filter(|row| executions.contains(&row.execution)) {
            if !indexed.contains(&row.offset_bytes) {
                let execution = row.execution;
                self.fault(row.offset_bytes, Wrong::NoIndexRow { execution });
            }
        }
        let chunk_count: u64 = index.runs.iter().map(|row| u64::from(row.count)).sum();
        if chunk_count != index.trailer.chunk_count {
            self.fault(trailer_at, Wrong::IndexCounts);
        }
    }
}

/// True if the runs of an execution are sorted, and within the bounds that its row has.
fn is_in_order(index: &Index, row: &ExecutionRow) -> bool {
    let runs = index.runs_of(row).unwrap_or_default();
    let is_sorted = runs.windows(2).all(|pair| pair[0].until_seq() <= pair[1].first_seq);
    let is_within = runs.first().is_none_or(|run| row.first_seq <= run.first_seq)
        && runs.last().is_none_or(|run| run.until_seq() <= row.until_seq);
    is_sorted && is_within
}

const _: () = assert!(ALIGN_BYTES.is_power_of_two()); // The padding of a chunk ends there.

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Absent => out.write_str("the segment is absent"),
            Wrong::FileLength { expected_bytes } => {
                write!(out, "the file ends here; its header says {expected_bytes} bytes")
            }
            Wrong::SegmentHeader(damage) => write!(out, "the header of the segment {damage}"),
            Wrong::Block { damage, bytes } => {
                write!(out, "the header of a block {damage} ({bytes} bytes)")
            }
            Wrong::RunCount { expected, found } => {
                write!(out, "the block has {found} runs; its header says {expected}")
            }
            Wrong::Run { damage, bytes } => {
                write!(out, "the header of a run {damage} ({bytes} bytes)")
            }
            Wrong::Chunks { execution, from_seq, until_seq, damage } => {
                let last = until_seq - 1;
                match *from_seq == last {
                    true => write!(out, "chunk {last} of execution {execution} {damage}"),
                    false => write!(
                        out,
                        "chunks {from_seq} to {last} of execution {execution}: the first {damage}"
                    ),
                }
            }
            Wrong::Record(kind, damage) => write!(out, "the record `{kind:?}` {damage}"),
            Wrong::Padding => out.write_str("a byte that should be zero is not"),
            Wrong::Order { execution, expected_seq, found_seq } => write!(
                out,
                "the run of execution {execution} begins with chunk {found_seq} instead of \
                 {expected_seq}"
            ),
            Wrong::Totals { execution } => {
                write!(out, "the totals of execution {execution} are not those of its runs before")
            }
            Wrong::Trailer(damage) => write!(out, "the trailer {damage}"),
            Wrong::IndexPage(damage) => write!(out, "the page of the index {damage}"),
            Wrong::IndexCounts => out.write_str("the index has other counts than the trailer"),
            Wrong::IndexRow { execution } => {
                write!(
                    out,
                    "the index says something else of execution {execution} than the blocks"
                )
            }
            Wrong::NoIndexRow { execution } => {
                write!(out, "the index lacks this run of execution {execution}")
            }
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Short => out.write_str("is cut off"),
            Damage::Magic => out.write_str("does not begin as it should"),
            Damage::Checksum => out.write_str("has a wrong checksum"),
            Damage::Place => out.write_str("belongs to another place"),
            Damage::Foreign => out.write_str("belongs to another journal"),
            Damage::Version(version) => write!(out, "has the newer format {version}"),
            Damage::Bounds => out.write_str("has a number out of bounds"),
        }
    }
}
