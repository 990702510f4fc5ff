//! The index of a segment: the table of its executions, the table of its runs, and the trailer.
//!
//! ```text
//! segment = header page | blocks | pages of executions | pages of runs | … | trailer page
//! ```
//!
//! The index is written when a segment gets no more blocks. It repeats what the blocks say, so a
//! bad one is built again from them. The trailer is the last page of the segment. Runs are sorted
//! by execution, and by number within an execution. One page of runs thus finds megabytes of
//! chunks.
//!
//! Tests: below; `journal/recovery_tests.rs` compares an index with the blocks.

use super::format::{Damage, Lsn, Reader, Writer, check_sum};
use crate::base::planted::{Planted, planted};
use crate::limits::{JOURNAL_PAGE_BYTES, JOURNAL_PARTS_MAX, JOURNAL_ROWS_MAX};

const PAGE_MAGIC: u32 = u32::from_le_bytes(*b"sdix");
const TRAILER_MAGIC: u64 = u64::from_le_bytes(*b"sdtrailr");
/// Number of bytes of a page before its first row.
const PAGE_HEAD_BYTES: usize = 24;
const PAGE_BYTES: usize = JOURNAL_PAGE_BYTES as usize;
/// Number of bytes of a run in the index.
const RUN_ROW_BYTES: usize = 32;
/// Number of bytes of an execution in the index.
const EXECUTION_ROW_BYTES: usize = 80;
/// Number of runs of a page.
pub const RUNS_PER_PAGE: usize = rows_per_page(RUN_ROW_BYTES);
/// Number of executions of a page.
pub const EXECUTIONS_PER_PAGE: usize = rows_per_page(EXECUTION_ROW_BYTES);
/// Number of bytes of a trailer that have a meaning.
pub(super) const TRAILER_BYTES: usize = 96;
/// Marks the place of a hole. Places of runs are multiples of eight.
const HOLE_BIT: u32 = 1;

const fn rows_per_page(row_bytes: usize) -> usize {
    (PAGE_BYTES - PAGE_HEAD_BYTES - 4) / row_bytes
}

/// A row of an index.
pub trait Row: Sized + Copy {
    /// The number of its table.
    const TABLE: u16;
    /// Number of its bytes.
    const BYTES: usize;

    /// Writes the row.
    fn write(&self, to: &mut Writer<'_>);

    /// Reads a row.
    ///
    /// # Errors
    /// [`Damage::Bounds`].
    fn read(from: &mut Reader<'_>) -> Result<Self, Damage>;
}

/// A run of chunks, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// The number of the execution in this journal.
    pub execution: u32,
    /// The offset of the run in its segment.
    pub offset_bytes: u32,
    /// Number of bytes of the run.
    pub bytes: u32,
    /// Number of its chunks, or of the chunks that are missing.
    pub count: u32,
    /// The first of them.
    pub first_seq: u64,
    /// Payload bytes of all chunks before.
    pub bytes_before: u64,
    /// True if its chunks were not kept.
    pub is_hole: bool,
}

impl RunRow {
    /// Creates the row of a run that begins at a place and has no chunks yet.
    pub fn at(execution: u32, lsn: Lsn) -> RunRow {
        RunRow {
            execution,
            offset_bytes: lsn.offset_bytes(),
            bytes: 0,
            count: 0,
            first_seq: 1,
            bytes_before: 0,
            is_hole: false,
        }
    }

    /// One past the last chunk.
    pub fn until_seq(&self) -> u64 {
        self.first_seq + u64::from(self.count)
    }
}

impl Row for RunRow {
    const TABLE: u16 = 1;
    const BYTES: usize = RUN_ROW_BYTES;

    fn write(&self, to: &mut Writer<'_>) {
        assert!(self.offset_bytes & HOLE_BIT == 0);
        to.u32(self.execution);
        to.u32(self.offset_bytes | if self.is_hole { HOLE_BIT } else { 0 });
        to.u32(self.bytes);
        to.u32(self.count - u32::from(planted(Planted::IndexRowOffByOne)));
        to.u64(self.first_seq);
        to.u64(self.bytes_before);
    }

    fn read(from: &mut Reader<'_>) -> Result<RunRow, Damage> {
        let (execution, place) = (from.u32(), from.u32());
        let row = RunRow {
            execution,
            offset_bytes: place & !HOLE_BIT,
            bytes: from.u32(),
            count: from.u32(),
            first_seq: from.u64(),
            bytes_before: from.u64(),
            is_hole: place & HOLE_BIT != 0,
        };
        let is_bounded = row.first_seq > 0
            && row.count > 0
            && row.first_seq.checked_add(row.count.into()).is_some();
        is_bounded.then_some(row).ok_or(Damage::Bounds)
    }
}

/// The place of a record in its segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordPlace {
    /// The offset in the segment; 0 without such a record.
    pub offset_bytes: u32,
    /// Number of its bytes.
    pub bytes: u32,
}

impl RecordPlace {
    /// The place, if there is such a record.
    pub fn found(self) -> Option<RecordPlace> {
        (self.offset_bytes > 0).then_some(self)
    }
}

/// An execution that has something in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutionRow {
    /// The id of the execution, as its 128 bits.
    pub id: u128,
    /// The number of the execution in this journal.
    pub execution: u32,
    /// The number of its first run in the table of runs.
    pub run_at: u32,
    /// Number of its runs.
    pub run_count: u32,
    /// The first chunk in the segment, or the next one if there is none.
    pub first_seq: u64,
    /// One past the last chunk.
    pub until_seq: u64,
    /// Payload bytes before `until_seq`.
    pub bytes_until: u64,
    /// The record of its beginning, or the repeated one.
    pub opened: RecordPlace,
    /// The record of its end.
    pub ended: RecordPlace,
    /// The wall-clock time of its end, in microseconds since 1970.
    pub ended_us: u64,
    /// Time in seconds for which it is kept after its end; 0 for the time of the journal.
    pub keep_s: u32,
    /// True if it was deleted.
    pub is_deleted: bool,
}

impl Row for ExecutionRow {
    const TABLE: u16 = 2;
    const BYTES: usize = EXECUTION_ROW_BYTES;

    fn write(&self, to: &mut Writer<'_>) {
        to.u64(self.id as u64);
        to.u64((self.id >> 64) as u64);
        to.u32(self.execution);
        to.u32(self.run_at);
        to.u32(self.run_count);
        to.u32(self.keep_s << 1 | u32::from(self.is_deleted));
        to.u64(self.first_seq);
        to.u64(self.until_seq);
        to.u64(self.bytes_until);
        for place in [self.opened, self.ended] {
            to.u32(place.offset_bytes);
            to.u32(place.bytes);
        }
        to.u64(self.ended_us);
    }

    fn read(from: &mut Reader<'_>) -> Result<ExecutionRow, Damage> {
        let id = u128::from(from.u64()) | u128::from(from.u64()) << 64;
        let (execution, run_at, run_count) = (from.u32(), from.u32(), from.u32());
        let word = from.u32();
        let (keep_s, is_deleted) = (word >> 1, word & 1 == 1);
        let (first_seq, until_seq, bytes_until) = (from.u64(), from.u64(), from.u64());
        let mut places = [RecordPlace::default(); 2];
        for place in &mut places {
            *place = RecordPlace { offset_bytes: from.u32(), bytes: from.u32() };
        }
        let ended_us = from.u64();
        let is_bounded = 0 < first_seq && first_seq <= until_seq;
        let [opened, ended] = places;
        let row = ExecutionRow {
            id,
            execution,
            run_at,
            run_count,
            first_seq,
            until_seq,
            bytes_until,
            opened,
            ended,
            ended_us,
            keep_s,
            is_deleted,
        };
        is_bounded.then_some(row).ok_or(Damage::Bounds)
    }
}

/// Writes one page of an index, which stands at `lsn`. Returns the number of rows that it takes.
pub fn encode_page<R: Row>(lsn: Lsn, rows: impl Iterator<Item = R>, page: &mut [u8]) -> usize {
    assert!(page.len() == PAGE_BYTES);
    page.fill(0);
    let rows_max = rows_per_page(R::BYTES);
    let mut out = Writer { bytes: page, at: PAGE_HEAD_BYTES };
    let mut count = 0;
    for row in rows.take(rows_max) {
        row.write(&mut out);
        count += 1;
    }
    assert!(out.at == PAGE_HEAD_BYTES + count * R::BYTES);
    out.at = 0;
    out.u32(PAGE_MAGIC);
    out.u16(R::TABLE);
    out.u16(count as u16);
    out.u64(lsn.0);
    let sum = crc32c::crc32c(&page[..PAGE_BYTES - 4]);
    page[PAGE_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    count
}

/// True if a page of an index stands at `lsn`. No block of its segment is behind it.
pub fn is_page(lsn: Lsn, page: &[u8]) -> bool {
    decode_page::<RunRow>(lsn, page).is_ok() || decode_page::<ExecutionRow>(lsn, page).is_ok()
}

/// Reads the rows of a page that should stand at `lsn`.
///
/// # Errors
/// [`Damage`].
pub fn decode_page<R: Row>(
    lsn: Lsn,
    page: &[u8],
) -> Result<impl Iterator<Item = Result<R, Damage>> + '_, Damage> {
    let page = page.get(..PAGE_BYTES).ok_or(Damage::Short)?;
    let mut from = Reader { bytes: page, at: 0 };
    if from.u32() != PAGE_MAGIC {
        return Err(Damage::Magic);
    }
    check_sum(&page[..PAGE_BYTES - 4], &page[PAGE_BYTES - 4..])?;
    let (table, count) = (from.u16(), usize::from(from.u16()));
    if from.u64() != lsn.0 {
        return Err(Damage::Place);
    }
    if table != R::TABLE || count > rows_per_page(R::BYTES) {
        return Err(Damage::Bounds);
    }
    let mut from = Reader { bytes: page, at: PAGE_HEAD_BYTES };
    Ok((0..count).map(move |_| R::read(&mut from)))
}

/// The last page of a segment that gets no more blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// The random number of the journal.
    pub journal: u128,
    /// The number of the segment.
    pub segment_number: u64,
    /// The offset behind the last block. The index begins there.
    pub data_end_bytes: u32,
    /// Number of executions in the index.
    pub execution_count: u32,
    /// Number of runs in the index.
    pub run_count: u32,
    /// Number of chunks that are in the segment.
    pub chunk_count: u64,
    /// The wall-clock time of its last block, in microseconds since 1970.
    pub last_us: u64,
}

impl Trailer {
    /// Number of pages of executions.
    pub fn execution_pages(&self) -> u32 {
        self.execution_count.div_ceil(EXECUTIONS_PER_PAGE as u32)
    }

    /// Number of pages of the whole index.
    pub fn index_pages(&self) -> u32 {
        self.execution_pages() + self.run_count.div_ceil(RUNS_PER_PAGE as u32)
    }

    /// The place of a page of executions.
    pub fn execution_page(&self, page: u32) -> Lsn {
        let offset_bytes = self.data_end_bytes + page * JOURNAL_PAGE_BYTES;
        Lsn::new(self.segment_number, offset_bytes)
    }

    /// The place of a page of runs.
    pub fn run_page(&self, page: u32) -> Lsn {
        self.execution_page(self.execution_pages() + page)
    }

    /// Writes the trailer to the last page of its segment.
    pub fn encode(&self, page: &mut [u8]) {
        assert!(page.len() == PAGE_BYTES);
        page.fill(0);
        let mut out = Writer { bytes: page, at: 0 };
        out.u64(TRAILER_MAGIC);
        out.u64(self.journal as u64);
        out.u64((self.journal >> 64) as u64);
        out.u64(self.segment_number);
        out.u32(self.data_end_bytes);
        out.u32(self.execution_count);
        out.u32(self.run_count);
        out.u32(0);
        out.u64(self.chunk_count);
        out.u64(self.last_us);
        assert!(out.at <= TRAILER_BYTES - 4);
        let sum = crc32c::crc32c(&page[..TRAILER_BYTES - 4]);
        page[TRAILER_BYTES - 4..TRAILER_BYTES].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads the trailer of a segment of `segment_bytes`.
    ///
    /// # Errors
    /// [`Damage`]. A segment that was not sealed has [`Damage::Magic`].
    pub fn decode(
        journal: u128,
        segment_number: u64,
        segment_bytes: u32,
        page: &[u8],
    ) -> Result<Trailer, Damage> {
        let page = page.get(..TRAILER_BYTES).ok_or(Damage::Short)?;
        let mut from = Reader { bytes: page, at: 0 };
        if from.u64() != TRAILER_MAGIC {
            return Err(Damage::Magic);
        }
        check_sum(&page[..TRAILER_BYTES - 4], &page[TRAILER_BYTES - 4..])?;
        if u128::from(from.u64()) | u128::from(from.u64()) << 64 != journal {
            return Err(Damage::Foreign);
        }
        if from.u64() != segment_number {
            return Err(Damage::Place);
        }
        let (data_end_bytes, execution_count, run_count) = (from.u32(), from.u32(), from.u32());
        from.u32();
        let trailer = Trailer {
            journal,
            segment_number,
            data_end_bytes,
            execution_count,
            run_count,
            chunk_count: from.u64(),
            last_us: from.u64(),
        };
        let is_bounded = data_end_bytes.is_multiple_of(JOURNAL_PAGE_BYTES)
            && data_end_bytes >= JOURNAL_PAGE_BYTES
            && run_count as usize <= JOURNAL_ROWS_MAX
            && execution_count as usize <= 2 * JOURNAL_PARTS_MAX
            && u64::from(data_end_bytes)
                + u64::from(trailer.index_pages() + 1) * u64::from(JOURNAL_PAGE_BYTES)
                <= u64::from(segment_bytes);
        is_bounded.then_some(trailer).ok_or(Damage::Bounds)
    }
}

const _: () = {
    assert!(PAGE_HEAD_BYTES >= 4 + 2 + 2 + 8);
    assert!(RUNS_PER_PAGE > 100);
    assert!(EXECUTIONS_PER_PAGE > 30);
    assert!(RUNS_PER_PAGE <= u16::MAX as usize); // The count of a page is 16 bits.
};

#[cfg(test)]
mod tests {
    use super::*;

    fn run(execution: u32, first_seq: u64) -> RunRow {
        RunRow {
            execution,
            offset_bytes: 4096 + 8 * first_seq as u32,
            bytes: 80,
            count: 1,
            first_seq,
            bytes_before: 10 * first_seq,
            is_hole: first_seq.is_multiple_of(3),
        }
    }

    #[test]
    fn a_page_holds_what_fits_and_is_read_as_written() {
        let lsn = Lsn::new(4, 3 * JOURNAL_PAGE_BYTES);
        let mut page = vec![0xEE; PAGE_BYTES];
        let rows: Vec<RunRow> = (1..=200).map(|seq| run(7, seq)).collect();
        let taken = encode_page(lsn, rows.iter().copied(), &mut page);
        assert_eq!(taken, RUNS_PER_PAGE);
        let read: Result<Vec<RunRow>, Damage> = decode_page(lsn, &page).unwrap().collect();
        assert_eq!(read.unwrap(), rows[..taken]);
        assert_eq!(decode_page::<ExecutionRow>(lsn, &page).err(), Some(Damage::Bounds));
        assert_eq!(decode_page::<RunRow>(lsn.after(8), &page).err(), Some(Damage::Place));
    }

    #[test]
    fn an_execution_is_read_as_written() {
        let row = ExecutionRow {
            id: 5 << 64 | 6,
            execution: 9,
            run_at: 100,
            run_count: 2,
            first_seq: 8,
            until_seq: 90,
            bytes_until: 1 << 40,
            opened: RecordPlace { offset_bytes: 4160, bytes: 64 },
            ended: RecordPlace::default(),
            ended_us: 77,
            keep_s: 86_400,
            is_deleted: true,
        };
        let (lsn, mut page) = (Lsn::new(1, JOURNAL_PAGE_BYTES), vec![0; PAGE_BYTES]);
        assert_eq!(encode_page(lsn, std::iter::once(row), &mut page), 1);
        let read: Vec<_> = decode_page::<ExecutionRow>(lsn, &page).unwrap().collect();
        assert_eq!(read, [Ok(row)]);
    }

    #[test]
    fn every_flipped_bit_of_a_page_and_of_a_trailer_is_found() {
        let lsn = Lsn::new(1, JOURNAL_PAGE_BYTES);
        let mut page = vec![0; PAGE_BYTES];
        encode_page(lsn, (1..=9).map(|seq| run(1, seq)), &mut page);
        for bit in 0..8 * PAGE_BYTES {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_page::<RunRow>(lsn, &page).is_err(), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
        let trailer = Trailer {
            journal: 3 << 64 | 1,
            segment_number: 5,
            data_end_bytes: 8 * JOURNAL_PAGE_BYTES,
            execution_count: 40,
            run_count: 127,
            chunk_count: 9_000,
            last_us: 12,
        };
        trailer.encode(&mut page);
        let segment_bytes = crate::limits::JOURNAL_SEGMENT_BYTES;
        let decode = |page: &[u8]| Trailer::decode(trailer.journal, 5, segment_bytes, page);
        assert_eq!(decode(&page), Ok(trailer));
        for bit in 0..8 * TRAILER_BYTES {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&page).is_err(), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
