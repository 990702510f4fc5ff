//! The index of a full segment, on its way to the disk.
//!
//! It is written only after all blocks of the segment are on the disk. A sealed segment therefore
//! has no torn end. One write is under way at a time, so that blocks come first.

use super::catalogue::{Catalogue, Extent};
use super::format::Lsn;
use super::index::{ExecutionRow, Trailer, encode_page};
use super::table::{Part, RunCursor, Table};
use crate::base::PageBuffer;
use crate::limits::JOURNAL_PAGE_BYTES;

/// A segment that is being sealed.
pub struct Sealing {
    /// Its runs and executions.
    pub table: Table,
    /// The facts for its last page.
    pub trailer: Trailer,
    /// Number of pages of the index that were written.
    page_at: u32,
    /// Number of rows of executions that were written.
    execution_at: usize,
    cursor: RunCursor,
    /// True while a write is under way.
    pub is_writing: bool,
    /// True once the trailer was given out.
    pub is_last: bool,
}

/// One write of an index.
pub struct IndexWrite {
    /// The place.
    pub lsn: Lsn,
    /// Number of bytes.
    pub bytes: u32,
    /// True for the trailer, which is the last one. It vouches for all before it, so each write is
    /// on the disk before the next one.
    pub is_last: bool,
}

impl Sealing {
    /// Begins to seal the segment of `table`.
    pub fn new(table: Table, trailer: Trailer) -> Sealing {
        assert!(trailer.segment_number == table.segment_number);
        Sealing {
            table,
            trailer,
            page_at: 0,
            execution_at: 0,
            cursor: RunCursor::START,
            is_writing: false,
            is_last: false,
        }
    }

    /// Fills `buffer` with the next pages.
    pub fn fill(
        &mut self,
        catalogue: &Catalogue,
        segment_bytes: u32,
        buffer: &mut PageBuffer,
    ) -> IndexWrite {
        assert!(!self.is_writing);
        self.is_writing = true;
        let page_bytes = JOURNAL_PAGE_BYTES as usize;
        if self.page_at == self.trailer.index_pages() {
            self.is_last = true;
            self.trailer.encode(&mut buffer[..page_bytes]);
            let offset_bytes = segment_bytes - JOURNAL_PAGE_BYTES;
            let lsn = Lsn::new(self.trailer.segment_number, offset_bytes);
            return IndexWrite { lsn, bytes: JOURNAL_PAGE_BYTES, is_last: true };
        }
        let first = self.page_at;
        for page in buffer.chunks_exact_mut(page_bytes) {
            if self.page_at == self.trailer.index_pages() {
                break;
            }
            let lsn = self.trailer.execution_page(self.page_at);
            if self.page_at < self.trailer.execution_pages() {
                let whole = |part: &Part| whole(catalogue, part);
                let rows = self.table.execution_rows(self.execution_at, whole);
                self.execution_at += encode_page(lsn, rows, page);
            } else {
                let mut cursor = self.cursor;
                encode_page(lsn, self.table.run_rows(&mut cursor), page);
                self.cursor = cursor;
            }
            self.page_at += 1;
        }
        let bytes = (self.page_at - first) * JOURNAL_PAGE_BYTES;
        IndexWrite { lsn: self.trailer.execution_page(first), bytes, is_last: false }
    }
}

/// The facts about an execution that do not depend on the segment.
fn whole(catalogue: &Catalogue, part: &Part) -> ExecutionRow {
    let kept = catalogue.at(part.kept).expect("an execution with a part is in the catalogue");
    ExecutionRow {
        id: kept.id,
        execution: kept.number,
        until_seq: part.until_seq,
        bytes_until: part.bytes_until,
        keep_s: kept.keep_s,
        ended_us: if part.ended.found().is_some() { kept.ended_us } else { 0 },
        ..ExecutionRow::default()
    }
}

/// The runs of a part in its sealed segment; `None` if it has none.
pub fn extent(segment_number: u64, row: &ExecutionRow) -> Option<Extent> {
    (row.run_count > 0).then_some(Extent {
        segment_number,
        first_seq: row.first_seq,
        until_seq: row.until_seq,
        bytes_until: row.bytes_until,
        run_at: row.run_at,
        run_count: row.run_count,
    })
}

/// Tells the executions of a table that their runs are in the index of a sealed segment.
pub fn note_extents(table: &Table, segment_number: u64, catalogue: &mut Catalogue) {
    let rows = table.execution_rows(0, |part| ExecutionRow {
        until_seq: part.until_seq,
        bytes_until: part.bytes_until,
        ..ExecutionRow::default()
    });
    for (row, part) in rows.zip(&table.parts) {
        let kept = catalogue.at_mut(part.kept).expect("a part belongs to an execution");
        kept.sealing_part = None;
        kept.extents.extend(extent(segment_number, &row));
    }
}
