//! The chunks of one execution, in their order, and an account of what is missing.
//!
//! Each intact run says how many chunks and bytes of each kind precede it. The chunks that are
//! missing between two of them are their difference, less those that were given. This is exact
//! after a filter, too. A loss behind the last intact run is counted from the index, or from the
//! head of its run.

use std::io;

use super::blocks::Piece;
use super::list::place;
use super::rows::Index;
use super::{Look, LookError, ReadFiles, Visitor, read_run};
use crate::journal::block::Run;
use crate::journal::format::{KeptChunk, RunKind};
use crate::journal::index::{ExecutionRow, RecordPlace, RunRow, Trailer};
use crate::stream::{KindTotals, Kinds, Totals};

/// The reason why chunks are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lost {
    /// They are damaged, or lost with what was around them.
    Corrupt,
    /// Their segments were removed.
    Expired,
    /// The journal had no room for them.
    Unwritten,
}

impl Lost {
    /// The word for it, as in a gap.
    pub const fn name(self) -> &'static str {
        match self {
            Lost::Corrupt => "corrupt",
            Lost::Expired => "expired",
            Lost::Unwritten => "unwritten",
        }
    }
}

/// Chunks that are missing between two intact runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The reason.
    pub reason: Lost,
    /// The stretches, each with its first chunk and one past its last. Chunks of other kinds are
    /// among them.
    pub stretches: Vec<(u64, u64)>,
    /// Number of missing chunks of the wanted kinds. Without `is_exact`, it is that of all kinds.
    pub chunks: u64,
    /// Payload bytes of these. `None` if nothing tells.
    pub bytes: Option<u64>,
    /// True if the kinds of the missing chunks are known, or if all kinds are wanted.
    pub is_exact: bool,
}

/// The receiver of chunks.
pub trait Sink {
    /// Takes a chunk of the wanted kinds.
    fn chunk(&mut self, chunk: &KeptChunk<'_>);

    /// Takes a loss. It follows the chunks up to the next intact run.
    fn loss(&mut self, loss: &Loss);

    /// True if the receiver takes nothing more.
    fn is_closed(&self) -> bool;
}

/// The execution and the chunks that are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// The number of the execution in its journal.
    pub number: u32,
    /// The wanted kinds.
    pub kinds: Kinds,
}

/// The sum of what was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The chunks that were given, and their bytes.
    pub given: Totals,
    /// True if the execution has a record of its end.
    pub has_ended: bool,
    /// True if damage follows the last intact run. Without an end, nothing tells if it has hit
    /// chunks of this execution.
    pub is_end_unsure: bool,
}

impl<F: ReadFiles> Look<F> {
    /// Gives the chunks of an execution to `sink`.
    ///
    /// # Errors
    /// [`LookError`].
    pub fn output(&mut self, output: Output, sink: &mut impl Sink) -> Result<Summary, LookError> {
        let is_begun = self.is_complete();
        let mut reader = Reader {
            output,
            sink,
            next_seq: 1,
            is_begun,
            base: KindTotals::default(),
            since: KindTotals::default(),
            lost: Vec::new(),
            end: None,
            summary: Summary::default(),
        };
        self.visit(&mut reader)?;
        reader.finish();
        Ok(reader.summary)
    }
}

struct Reader<'a, S> {
    output: Output,
    sink: &'a mut S,
    next_seq: u64,
    /// True if chunks before the next one cannot have expired.
    is_begun: bool,
    /// The totals before the last intact run, by kind.
    base: KindTotals,
    /// The intact chunks since then.
    since: KindTotals,
    /// The stretches that are missing since then.
    lost: Vec<(u64, u64, Lost)>,
    /// One past the last chunk that an index knows, and the payload bytes before it.
    end: Option<(u64, u64)>,
    summary: Summary,
}

impl<S: Sink> Reader<'_, S> {
    /// Notes that chunks up to one are missing.
    fn miss(&mut self, until_seq: u64, reason: Lost) {
        if until_seq <= self.next_seq {
            return;
        }
        match self.lost.last_mut() {
            Some((_, last, of)) if *last == self.next_seq && *of == reason => *last = until_seq,
            _ => self.lost.push((self.next_seq, until_seq, reason)),
        }
        self.next_seq = until_seq;
    }

    /// Passes an intact run that begins at a chunk, after these totals.
    fn anchor(&mut self, seq: u64, before: &KindTotals) {
        if seq < self.next_seq {
            return;
        }
        let reason = if self.is_begun { Lost::Corrupt } else { Lost::Expired };
        self.miss(seq, reason);
        if !self.lost.is_empty() {
            let kinds = self.output.kinds;
            let known = self.base.of(kinds) + self.since.of(kinds);
            self.tell(before.of(kinds) - known, true);
        }
        self.lost.clear();
        (self.base, self.since) = (*before, KindTotals::default());
        self.summary.is_end_unsure = false;
    }

    /// Tells of the stretches that are missing. All of them together miss `missing`.
    fn tell(&mut self, missing: Totals, is_exact: bool) {
        let mut reasons: Vec<Lost> = self.lost.iter().map(|(_, _, reason)| *reason).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let is_one = reasons.len() == 1;
        for reason in reasons {
            let of_reason = self.lost.iter().filter(|(_, _, of)| *of == reason);
            let stretches: Vec<(u64, u64)> =
                of_reason.map(|(from, until, _)| (*from, *until)).collect();
            let all = stretches.iter().map(|(from, until)| until - from).sum();
            let is_exact = is_exact && is_one && missing.chunks <= all;
            let (chunks, bytes) = match is_exact {
                true => (missing.chunks, Some(missing.bytes)),
                false => (all, None),
            };
            if chunks > 0 {
                self.sink.loss(&Loss { reason, stretches, chunks, bytes, is_exact });
            }
        }
    }

    fn take_run(&mut self, run: &Run<'_>) {
        let header = &run.header;
        if header.execution != self.output.number || self.sink.is_closed() {
            return;
        }
        match header.kind {
            RunKind::Opened => self.is_begun = true,
            RunKind::Carried => self.anchor(header.first_seq, &run.before),
            RunKind::Chunks => {
                self.anchor(header.first_seq, &run.before);
                self.is_begun = true;
                self.take_chunks(run);
            }
            RunKind::Hole => {
                self.anchor(header.first_seq, &run.before);
                self.is_begun = true;
                self.miss(header.first_seq + u64::from(header.count), Lost::Unwritten);
                if let Some(after) = run.position_after() {
                    self.anchor(after.next_seq(), &after.totals);
                }
            }
            RunKind::Ended => {
                self.anchor(header.first_seq, &run.before);
                self.summary.has_ended = true;
            }
            RunKind::Note | RunKind::Deleted => {}
        }
    }

    fn take_chunks(&mut self, run: &Run<'_>) {
        for chunk in run.chunks() {
            match chunk {
                Ok(chunk) if chunk.entry.seq < self.next_seq => {}
                Ok(chunk) => {
                    self.miss(chunk.entry.seq, Lost::Corrupt);
                    self.give(&chunk);
                }
                Err(lost) => self.miss(lost.until_seq, Lost::Corrupt),
            }
        }
    }

    fn give(&mut self, chunk: &KeptChunk<'_>) {
        let entry = &chunk.entry;
        if self.output.kinds.contains(entry.kind) && !self.sink.is_closed() {
            self.sink.chunk(chunk);
            self.summary.given.count(entry.length);
        }
        self.since.count(entry.kind, entry.length);
        self.next_seq = entry.seq + 1;
    }

    /// Takes the run of a row. The run counts only if it agrees with the row.
    fn take_row(&mut self, run: Option<Run<'_>>, row: &RunRow) {
        let is_it = |run: &Run<'_>| {
            let header = &run.header;
            header.execution == row.execution
                && header.first_seq == row.first_seq
                && header.count == row.count
                && (header.kind == RunKind::Hole) == row.is_hole
        };
        if let Some(run) = run.filter(is_it) {
            return self.take_run(&run);
        }
        let is_first = if self.is_begun { Lost::Corrupt } else { Lost::Expired };
        self.miss(row.first_seq, is_first);
        self.is_begun = true;
        let reason = if row.is_hole { Lost::Unwritten } else { Lost::Corrupt };
        self.miss(row.until_seq(), reason);
    }

    /// Passes what an index says about the chunks of a segment.
    fn end_segment(&mut self, row: &ExecutionRow) {
        let reason = if self.is_begun { Lost::Corrupt } else { Lost::Expired };
        self.miss(row.until_seq, reason);
        self.end = Some((row.until_seq, row.bytes_until));
    }

    /// Tells of the chunks that are missing at the end.
    fn finish(&mut self) {
        if self.lost.is_empty() || self.sink.is_closed() {
            return;
        }
        let chunks = self.lost.iter().map(|(from, until, _)| until - from).sum();
        let known = self.base.of(Kinds::ALL) + self.since.of(Kinds::ALL);
        let bytes = match self.end {
            Some((seq, bytes)) if seq == self.next_seq => bytes.checked_sub(known.bytes),
            _ => None,
        };
        let is_exact = bytes.is_some() && self.output.kinds.is_all();
        self.tell(Totals { chunks, bytes: bytes.unwrap_or(0) }, is_exact);
    }
}

impl<F: ReadFiles, S: Sink> Visitor<F> for Reader<'_, S> {
    fn index(&mut self, files: &mut F, index: &Index) -> io::Result<()> {
        let Trailer { journal, segment_number, .. } = index.trailer;
        let number = self.output.number;
        for row in index.executions.iter().filter(|row| row.execution == number) {
            if let Some(RecordPlace { offset_bytes, bytes }) = row.opened.found() {
                let lsn = place(segment_number, offset_bytes);
                let is_opened = |run: Option<Run<'_>>| {
                    run.is_some_and(|run| run.header.kind == RunKind::Opened)
                };
                self.is_begun |= read_run(files, journal, lsn, bytes, is_opened)?;
            }
            for run in index.runs_of(row).unwrap_or_default() {
                if self.sink.is_closed() {
                    return Ok(());
                }
                let lsn = place(segment_number, run.offset_bytes);
                read_run(files, journal, lsn, run.bytes, |read| self.take_row(read, run))?;
            }
            self.end_segment(row);
            if let Some(RecordPlace { offset_bytes, bytes }) = row.ended.found() {
                let lsn = place(segment_number, offset_bytes);
                read_run(files, journal, lsn, bytes, |run| {
                    if let Some(run) = run.filter(|run| run.header.kind == RunKind::Ended) {
                        self.take_run(&run);
                    }
                })?;
                self.summary.has_ended = true;
            }
        }
        Ok(())
    }

    fn gone(&mut self) {
        self.is_begun = false;
    }

    fn piece(&mut self, piece: &Piece<'_>) {
        piece.each_run(&mut |run| match run {
            Ok(run) => self.take_run(&run),
            // The runs behind a damaged header of a block are shown one by one.
            Err(_) => self.summary.is_end_unsure |= !piece.is_header(),
        });
    }

    fn is_done(&self) -> bool {
        self.sink.is_closed()
    }
}
