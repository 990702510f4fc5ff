//! The runs and executions of a segment that is not sealed yet.
//!
//! Memory for all of it is reserved when the journal is opened, and nothing is allocated later. The
//! runs of one execution are a chain in both directions. Each 64th of them is an anchor, so that a
//! run is found in a few hundred steps.
//!
//! Tests: below.

use super::index::{ExecutionRow, RecordPlace, RunRow};
use crate::limits::{JOURNAL_PARTS_MAX, JOURNAL_ROWS_MAX};

const NONE: u32 = u32::MAX;
/// Number of runs between two anchors of a chain.
const ANCHOR_RUNS: u32 = 64;

const _: () = assert!(JOURNAL_ROWS_MAX < NONE as usize);

/// The runs and executions of a segment.
pub struct Table {
    /// The number of the segment.
    pub segment_number: u64,
    rows: Vec<LinkedRow>,
    /// The executions that have something in the segment.
    pub parts: Vec<Part>,
    /// Number of chunks that are in it.
    pub chunk_count: u64,
    /// The wall-clock time of its last block, in microseconds since 1970.
    pub last_us: u64,
}

struct LinkedRow {
    row: RunRow,
    previous: u32,
    next: u32,
    /// The anchor before it.
    anchor: u32,
}

/// The part of an execution that is in one segment.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The index of the execution in the catalogue.
    pub kept: u32,
    /// The first chunk that was in question when the part began.
    pub first_seq: u64,
    /// The next chunk when the segment was full.
    pub until_seq: u64,
    /// Payload bytes of all chunks before that one.
    pub bytes_until: u64,
    /// The record of its beginning.
    pub opened: RecordPlace,
    /// The record of its end.
    pub ended: RecordPlace,
    /// True if the execution was deleted.
    pub is_deleted: bool,
    first: u32,
    last: u32,
    anchor: u32,
    /// Number of its runs.
    pub run_count: u32,
}

impl Table {
    /// Creates an empty table with all of its memory.
    pub fn new() -> Table {
        Table {
            segment_number: 0,
            rows: Vec::with_capacity(JOURNAL_ROWS_MAX),
            parts: Vec::with_capacity(JOURNAL_PARTS_MAX),
            chunk_count: 0,
            last_us: 0,
        }
    }

    /// Empties the table, for another segment.
    pub fn begin(&mut self, segment_number: u64) {
        self.rows.clear();
        self.parts.clear();
        (self.segment_number, self.chunk_count) = (segment_number, 0);
    }

    /// Number of runs for which there is room, if each belongs to another execution.
    pub fn room(&self) -> usize {
        (JOURNAL_ROWS_MAX - self.rows.len()).min(JOURNAL_PARTS_MAX - self.parts.len())
    }

    /// True if at least 1 ÷ `part` of the table is used.
    pub fn is_used(&self, part: usize) -> bool {
        self.rows.len() >= JOURNAL_ROWS_MAX / part || self.parts.len() >= JOURNAL_PARTS_MAX / part
    }

    /// Number of runs.
    pub fn run_count(&self) -> usize {
        self.rows.len()
    }

    /// Adds an execution. Returns the number of its part.
    pub fn add_part(&mut self, kept: u32, first_seq: u64) -> u32 {
        assert!(self.parts.len() < self.parts.capacity()); // Nothing is allocated.
        let (opened, ended) = (RecordPlace::default(), RecordPlace::default());
        self.parts.push(Part {
            kept,
            first_seq,
            until_seq: first_seq,
            bytes_until: 0,
            opened,
            ended,
            is_deleted: false,
            first: NONE,
            last: NONE,
            anchor: NONE,
            run_count: 0,
        });
        self.parts.len() as u32 - 1
    }

    /// Adds a run behind the last one of its execution.
    pub fn push(&mut self, part: u32, row: RunRow) {
        assert!(self.rows.len() < self.rows.capacity()); // Nothing is allocated.
        let at = self.rows.len() as u32;
        let part = &mut self.parts[part as usize];
        let (previous, anchor) = (part.last, part.anchor);
        if part.run_count.is_multiple_of(ANCHOR_RUNS) {
            part.anchor = at;
        }
        match previous {
            NONE => part.first = at,
            previous => self.rows[previous as usize].next = at,
        }
        part.last = at;
        part.run_count += 1;
        self.rows.push(LinkedRow { row, previous, next: NONE, anchor });
    }

    /// Notes the final size of the newest run.
    pub fn close_last(&mut self, bytes: u32, count: u32) {
        let last = &mut self.rows.last_mut().expect("a run was begun").row;
        assert!(last.count == 0); // It was open.
        (last.bytes, last.count) = (bytes, count);
        self.chunk_count += u64::from(count);
    }

    /// The last run of a part that begins at or before `seq`.
    pub fn find(&self, part: u32, seq: u64) -> Option<&RunRow> {
        self.find_before(part, |row| row.first_seq > seq)
    }

    /// The last run of a part that begins at or before this byte of the payload.
    pub fn find_byte(&self, part: u32, byte: u64) -> Option<&RunRow> {
        self.find_before(part, |row| row.bytes_before > byte)
    }

    /// The last run of a part before all those that `is_behind`.
    fn find_before(&self, part: u32, is_behind: impl Fn(&RunRow) -> bool) -> Option<&RunRow> {
        let mut at = self.parts[part as usize].last;
        loop {
            let linked = self.rows.get(at as usize)?;
            if !is_behind(&linked.row) {
                return Some(&linked.row);
            }
            let is_behind = |at: u32| self.rows.get(at as usize).map(|l| is_behind(&l.row));
            at = match is_behind(linked.anchor) {
                Some(true) => linked.anchor,
                _ => linked.previous,
            };
        }
    }

    /// The first run of a part.
    pub fn first(&self, part: u32) -> Option<&RunRow> {
        self.rows.get(self.parts[part as usize].first as usize).map(|linked| &linked.row)
    }

    /// The executions, for the index. `whole` tells the id, the position behind the part and the
    /// time of the end.
    pub fn execution_rows<'a>(
        &'a self,
        from: usize,
        whole: impl Fn(&Part) -> ExecutionRow + 'a,
    ) -> impl Iterator<Item = ExecutionRow> + 'a {
        let mut run_at: u32 = self.parts[..from].iter().map(|part| part.run_count).sum();
        self.parts[from..].iter().map(move |part| {
            let row = ExecutionRow {
                run_at,
                run_count: part.run_count,
                first_seq: part.first_seq,
                opened: part.opened,
                ended: part.ended,
                is_deleted: part.is_deleted,
                ..whole(part)
            };
            run_at += part.run_count;
            row
        })
    }

    /// Returns the runs in the order of the index, from one on.
    pub fn run_rows(&self, from: &mut RunCursor) -> impl Iterator<Item = RunRow> {
        std::iter::from_fn(move || {
            while from.row == NONE {
                let part = self.parts.get(from.part as usize)?;
                (from.row, from.part) = (part.first, from.part + 1);
            }
            let linked = &self.rows[from.row as usize];
            from.row = linked.next;
            Some(linked.row)
        })
    }
}

impl Default for Table {
    fn default() -> Table {
        Table::new()
    }
}

/// A place in the order of the index.
#[derive(Clone, Copy, Debug)]
pub struct RunCursor {
    part: u32,
    row: u32,
}

impl RunCursor {
    /// The beginning.
    pub const START: RunCursor = RunCursor { part: 0, row: NONE };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;

    fn row(execution: u32, first_seq: u64) -> RunRow {
        RunRow {
            execution,
            offset_bytes: 4096,
            bytes: 0,
            count: 0,
            first_seq,
            bytes_before: 0,
            is_hole: false,
        }
    }

    #[test]
    fn each_chunk_is_found_in_its_run_and_the_index_is_grouped() {
        let mut random = Random::new(7);
        let mut table = Table::new();
        table.begin(3);
        let mut model: Vec<Vec<u64>> = vec![Vec::new(); 5];
        let mut next = [1u64; 5];
        for execution in 0..5 {
            assert_eq!(table.add_part(execution, 1), execution);
        }
        for _ in 0..4_000 {
            let execution = random.below(5) as usize;
            let count = 1 + random.below(9);
            table.push(execution as u32, row(execution as u32, next[execution]));
            table.close_last(80, count as u32);
            model[execution].push(next[execution]);
            next[execution] += count;
        }
        for (execution, firsts) in model.iter().enumerate() {
            for seq in 1..next[execution] {
                let at = firsts.partition_point(|first| *first <= seq) - 1;
                let found = table.find(execution as u32, seq).unwrap();
                assert_eq!((found.first_seq, found.execution), (firsts[at], execution as u32));
            }
            assert_eq!(table.first(execution as u32).unwrap().first_seq, 1);
        }
        assert!(table.find(0, 0).is_none());
        let mut cursor = RunCursor::START;
        let mut read: Vec<RunRow> = table.run_rows(&mut cursor).take(1_000).collect();
        read.extend(table.run_rows(&mut cursor)); // It goes on where it stopped.
        assert_eq!(read.len(), 4_000);
        let rows: Vec<ExecutionRow> = table
            .execution_rows(0, |part| ExecutionRow { execution: part.kept, ..Default::default() })
            .collect();
        for (row, firsts) in rows.iter().zip(&model) {
            let runs = &read[row.run_at as usize..][..row.run_count as usize];
            let found: Vec<u64> = runs.iter().map(|run| run.first_seq).collect();
            assert_eq!(found, *firsts);
        }
        let later: Vec<u32> =
            table.execution_rows(3, |_| ExecutionRow::default()).map(|row| row.run_at).collect();
        assert_eq!(later, [rows[3].run_at, rows[4].run_at]);
    }
}
