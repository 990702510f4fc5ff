//! The index of a sealed segment, as a whole.

use std::io;

use super::blocks::read_whole;
use super::{ReadFiles, Segment};
use crate::journal::format::{Damage, Lsn};
use crate::journal::index::{ExecutionRow, Row, RunRow, Trailer, decode_page};
use crate::limits::JOURNAL_PAGE_BYTES;

/// The index of a sealed segment.
pub(super) struct Index {
    pub trailer: Trailer,
    pub executions: Vec<ExecutionRow>,
    /// The runs, by execution and number.
    pub runs: Vec<RunRow>,
}

/// The reason why an index is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexError {
    /// The segment is not sealed.
    Open,
    /// The trailer is damaged.
    Trailer(Damage),
    /// The page at an offset is damaged.
    Page(u32, Damage),
    /// The trailer and the pages do not agree.
    Counts,
}

impl Index {
    /// The runs of an execution. `None` if its row is wrong.
    pub(super) fn runs_of(&self, row: &ExecutionRow) -> Option<&[RunRow]> {
        let from = row.run_at as usize;
        let runs = self.runs.get(from..from.checked_add(row.run_count as usize)?)?;
        runs.iter().all(|run| run.execution == row.execution).then_some(runs)
    }
}

/// Reads the index of a segment. A damaged one is read twice, since it may just be written.
pub(super) fn read_index(
    files: &mut impl ReadFiles,
    journal: u128,
    segment: &Segment,
) -> io::Result<Result<Index, IndexError>> {
    match read_once(files, journal, segment)? {
        Err(IndexError::Open) => Ok(Err(IndexError::Open)),
        Err(_) => read_once(files, journal, segment),
        index => Ok(index),
    }
}

fn read_once(
    files: &mut impl ReadFiles,
    journal: u128,
    segment: &Segment,
) -> io::Result<Result<Index, IndexError>> {
    let bytes = segment.bytes();
    let mut page = [0; JOURNAL_PAGE_BYTES as usize];
    read_whole(files, Lsn::new(segment.number, bytes - JOURNAL_PAGE_BYTES), &mut page)?;
    let trailer = match Trailer::decode(journal, segment.number, bytes, &page) {
        Ok(trailer) => trailer,
        Err(Damage::Magic) if page.iter().all(|byte| *byte == 0) => {
            return Ok(Err(IndexError::Open));
        }
        Err(damage) => return Ok(Err(IndexError::Trailer(damage))),
    };
    let (mut executions, mut runs) = (Vec::new(), Vec::new());
    let execution_pages = trailer.execution_pages();
    for at in 0..trailer.index_pages() {
        let lsn = trailer.execution_page(at);
        read_whole(files, lsn, &mut page)?;
        let read = match at < execution_pages {
            true => take_rows(lsn, &page, &mut executions),
            false => take_rows(lsn, &page, &mut runs),
        };
        if let Err(damage) = read {
            return Ok(Err(IndexError::Page(lsn.offset_bytes(), damage)));
        }
    }
    let is_whole = executions.len() == trailer.execution_count as usize
        && runs.len() == trailer.run_count as usize;
    let index = Index { trailer, executions, runs };
    let is_whole = is_whole && index.executions.iter().all(|row| index.runs_of(row).is_some());
    Ok(is_whole.then_some(index).ok_or(IndexError::Counts))
}

fn take_rows<R: Row>(lsn: Lsn, page: &[u8], rows: &mut Vec<R>) -> Result<(), Damage> {
    for row in decode_page(lsn, page)? {
        rows.push(row?);
    }
    Ok(())
}
