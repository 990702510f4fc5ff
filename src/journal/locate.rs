//! Finds executions, and the place of a chunk: in a segment that is being filled, or behind the
//! index of a full one.

use super::answers::Fault;
use super::catalogue::{Kept, KeptId};
use super::format::{Damage, Lsn};
use super::index::{RUNS_PER_PAGE, RunRow, decode_page};
use super::machine::Journal;
use super::table::Table;
use crate::base::planted::{Planted, planted};
use crate::limits::JOURNAL_PAGE_BYTES;
use crate::stream::Durability;

/// The place of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The chunk is on its way to the disk. It can be read after the next write.
    Soon,
    /// The run that has it.
    Run {
        /// The number of the segment.
        segment_number: u64,
        /// The run.
        row: RunRow,
    },
    /// An index has to be read first.
    Search(Search),
    /// The chunk was published and not kept. After a [`Fault`], chunks that did not reach the disk
    /// count as such.
    Hole {
        /// One past the last chunk of the hole.
        until_seq: u64,
        /// The segment and the row of the record of the hole, if there is one. It has the totals
        /// before and behind the hole.
        record: Option<(u64, RunRow)>,
    },
    /// The chunk was removed because of its age, or to make room.
    Expired {
        /// The first chunk behind it that is kept.
        until_seq: u64,
    },
    /// The chunk should be there, and no run has it.
    Corrupt {
        /// The first chunk behind it that a run has.
        until_seq: u64,
    },
}

/// A search in the index of a sealed segment. Each page that it reads halves the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    segment_number: u64,
    execution: u32,
    seq: u64,
    until_seq: u64,
    /// The offset of the first page of runs.
    runs_offset_bytes: u32,
    low_page: u32,
    high_page: u32,
}

/// The result of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The place of the chunk.
    Place(Place),
    /// Another page has to be read.
    Again,
}

impl Search {
    /// The place of the page that has to be read next.
    pub fn page(&self) -> Lsn {
        let middle = self.low_page + (self.high_page - self.low_page) / 2;
        let offset_bytes = self.runs_offset_bytes + middle * JOURNAL_PAGE_BYTES;
        Lsn::new(self.segment_number, offset_bytes)
    }

    /// The chunk that is looked for.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The result if the page cannot be read.
    pub fn give_up(&self) -> Place {
        Place::Corrupt { until_seq: self.until_seq }
    }

    /// Looks at that page.
    pub fn on_page(&mut self, page: &[u8]) -> Found {
        let corrupt = Found::Place(Place::Corrupt { until_seq: self.until_seq });
        self.look_at(page).unwrap_or(corrupt)
    }

    /// The run `row` of a page that was looked at, and those that follow it without a gap. There
    /// are at most `rows_max`.
    pub fn runs_from(&self, page: &[u8], row: &RunRow, rows_max: usize) -> Vec<RunRow> {
        let mut next_seq = row.first_seq;
        let rows = decode_page::<RunRow>(self.page(), page).into_iter().flatten();
        let mut runs: Vec<RunRow> = rows
            .filter_map(Result::ok)
            .filter(|row| row.execution == self.execution)
            .skip_while(|other| other != row)
            .take_while(|row| std::mem::replace(&mut next_seq, row.until_seq()) == row.first_seq)
            .take(rows_max)
            .collect();
        runs.shrink_to_fit();
        runs
    }

    /// The segment that is searched.
    pub fn segment_number(&self) -> u64 {
        self.segment_number
    }

    fn look_at(&mut self, page: &[u8]) -> Result<Found, Damage> {
        let middle = self.low_page + (self.high_page - self.low_page) / 2;
        let mut before: Option<RunRow> = None;
        let mut behind: Option<RunRow> = None;
        for row in decode_page::<RunRow>(self.page(), page)? {
            let row = row?;
            if row.execution != self.execution {
                continue;
            }
            if row.first_seq <= self.seq {
                before = Some(row);
            } else {
                behind.get_or_insert(row);
            }
        }
        match (before, behind) {
            (Some(row), _) if self.seq < row.until_seq() => {
                return Ok(Found::Place(place_of(self.segment_number, row)));
            }
            (None, Some(_)) if middle > self.low_page => self.high_page = middle - 1,
            (Some(_), None) if middle < self.high_page => self.low_page = middle + 1,
            (None, None) if middle < self.high_page => self.low_page = middle + 1,
            (_, Some(row)) => {
                return Ok(Found::Place(Place::Corrupt { until_seq: row.first_seq }));
            }
            _ => return Ok(Found::Place(Place::Corrupt { until_seq: self.until_seq })),
        }
        Ok(Found::Again)
    }
}

/// The place of the chunks of a row.
pub fn place_of(segment_number: u64, row: RunRow) -> Place {
    match row.is_hole {
        true => Place::Hole { until_seq: row.until_seq(), record: Some((segment_number, row)) },
        false => Place::Run { segment_number, row },
    }
}

impl Journal {
    /// The execution with this id, unless it was deleted or has expired.
    pub fn find(&self, id: u128) -> Option<KeptId> {
        let name = self.catalogue.find(id)?;
        let kept = self.catalogue.get(name)?;
        (!kept.is_deleted && !self.has_expired(kept)).then_some(name)
    }

    /// An execution.
    pub fn get(&self, name: KeptId) -> Option<&Kept> {
        self.catalogue.get(name)
    }

    /// All executions.
    pub fn executions(&self) -> impl Iterator<Item = (KeptId, &Kept)> {
        self.catalogue.iter().filter(|(_, kept)| !kept.is_deleted && !self.has_expired(kept))
    }

    /// True if the segment with its description is gone.
    fn has_expired(&self, kept: &Kept) -> bool {
        kept.opened.lsn.segment_number() < self.segments.oldest
    }

    /// The place of chunk `seq` of an execution; `None` if it was not published yet, or if the
    /// execution is not kept.
    pub fn locate(&mut self, name: KeptId, seq: u64) -> Option<Place> {
        let kept = self.catalogue.get(name).filter(|kept| !kept.is_deleted)?;
        let (next_seq, _) = kept.published();
        if seq >= next_seq || seq == 0 {
            return None;
        }
        if let Some(missing) = kept.living.as_ref().and_then(|living| living.missing.as_ref())
            && seq >= missing.before.next_seq()
        {
            return Some(Place::Hole { until_seq: next_seq, record: None });
        }
        if let Some((segment_number, row, until_seq)) = self.find_unsealed(kept, seq) {
            if Lsn::new(segment_number, row.offset_bytes) >= self.readable_until(kept) {
                return Some(self.unreadable(next_seq));
            }
            return Some(match seq < row.until_seq() {
                true => place_of(segment_number, row),
                false => Place::Corrupt { until_seq },
            });
        }
        let Some(extent) = kept.extent(seq) else {
            let sealing = self.sealing.as_ref();
            let in_sealing = sealing.and_then(|s| self.first_in(&s.table, kept.sealing_part));
            let until_seq = in_sealing.or_else(|| self.first_in(&self.table, kept.part));
            return Some(self.before_first(kept.extents.is_empty(), until_seq.unwrap_or(next_seq)));
        };
        if seq < extent.first_seq {
            let is_first = Some(extent) == kept.extents.first();
            return Some(self.before_first(is_first, extent.first_seq));
        }
        let Some(sealed) = self.segments.find(extent.segment_number) else {
            return Some(Place::Expired { until_seq: extent.until_seq });
        };
        let (first, last) = (extent.run_at, extent.run_at + extent.run_count - 1);
        let runs_offset_bytes = sealed.data_end_bytes + sealed.execution_pages * JOURNAL_PAGE_BYTES;
        Some(Place::Search(Search {
            segment_number: extent.segment_number,
            execution: name.number,
            seq,
            until_seq: extent.until_seq,
            runs_offset_bytes,
            low_page: first / RUNS_PER_PAGE as u32,
            high_page: last / RUNS_PER_PAGE as u32,
        }))
    }

    /// A chunk at or before this byte of the payload, and the payload bytes of all chunks before
    /// it. It is at most one segment away, and near if somebody has read what is there. `None` if
    /// what is before it was not kept.
    pub fn seek(&self, name: KeptId, byte: u64) -> Option<(u64, u64)> {
        let kept = self.catalogue.get(name).filter(|kept| !kept.is_deleted)?;
        let at = kept.extents.partition_point(|extent| extent.bytes_until <= byte);
        let before = at.checked_sub(1).map(|before| &kept.extents[before]);
        let (seq, bytes) = before.map_or((1, 0), |extent| (extent.until_seq, extent.bytes_until));
        if let Some(extent) = kept.extents.get(at) {
            let near = kept.landmarks.before(byte).filter(|(seq, _)| *seq >= extent.first_seq);
            return near.or_else(|| (extent.first_seq == seq).then_some((seq, bytes)));
        }
        let sealing = self.sealing.as_ref().map(|sealing| (&sealing.table, kept.sealing_part));
        let tables = [Some((&self.table, kept.part)), sealing].into_iter().flatten();
        let rows = tables.filter_map(|(table, part)| table.find_byte(part?, byte));
        let row = rows.max_by_key(|row| row.first_seq);
        row.map(|row| (row.first_seq, row.bytes_before)).or(before.map(|_| (seq, bytes)))
    }

    /// Notes that somebody has read the run that begins with the chunk `seq` and this byte of the
    /// payload. [`Journal::seek`] finds it in a sealed segment then.
    pub fn note_read(&mut self, name: KeptId, seq: u64, byte: u64) {
        if let Some(kept) = self.catalogue.get_mut(name)
            && kept.extents.last().is_some_and(|last| seq < last.until_seq)
        {
            kept.landmarks.note(seq, byte);
        }
    }

    /// The first chunk that can be read, at the time of this call.
    pub fn first_seq(&self, name: KeptId) -> Option<u64> {
        let kept = self.catalogue.get(name)?;
        let sealing = self.sealing.as_ref();
        let in_sealing = sealing.and_then(|s| self.first_in(&s.table, kept.sealing_part));
        let in_tables = in_sealing.or_else(|| self.first_in(&self.table, kept.part));
        let first = kept.extents.first().map(|extent| extent.first_seq);
        Some(first.or(in_tables).unwrap_or(kept.published().0))
    }

    fn first_in(&self, table: &Table, part: Option<u32>) -> Option<u64> {
        table.first(part?).map(|row| row.first_seq)
    }

    /// Chunks before the first one that is kept have expired; others are lost.
    fn before_first(&self, is_first: bool, until_seq: u64) -> Place {
        match is_first {
            true => Place::Expired { until_seq },
            false => Place::Corrupt { until_seq },
        }
    }

    /// The last run that begins at or before `seq` in a segment that is not sealed. It comes with
    /// the number of the segment, and with the first chunk behind it.
    fn find_unsealed(&self, kept: &Kept, seq: u64) -> Option<(u64, RunRow, u64)> {
        let (next_seq, _) = kept.published();
        if let Some(row) = kept.part.and_then(|part| self.table.find(part, seq)) {
            return Some((self.table.segment_number, *row, next_seq));
        }
        let table = &self.sealing.as_ref()?.table;
        let row = table.find(kept.sealing_part?, seq)?;
        let until_seq = self.first_in(&self.table, kept.part).unwrap_or(next_seq);
        Some((table.segment_number, *row, until_seq))
    }

    /// Everything before this place can be read.
    ///
    /// After a failed sync, the kernel may show bytes that the disk does not have. After a failed
    /// write, an execution has what it was promised: nothing is synced any more.
    fn readable_until(&self, kept: &Kept) -> Lsn {
        let durability = kept.living.as_ref().map(|living| living.durability);
        match self.fault() {
            None => self.commit.written(),
            Some(Fault::Write(_)) if !durability.is_some_and(Durability::is_synced) => {
                self.commit.written()
            }
            Some(_) if planted(Planted::UnsyncedServed) => self.commit.written(),
            Some(Fault::Write(_) | Fault::Sync(_)) => self.commit.synced(),
        }
    }

    /// The place of a chunk that cannot be read. After a fault it never will be, and neither will
    /// those behind it.
    fn unreadable(&mut self, next_seq: u64) -> Place {
        if self.fault().is_some() {
            return Place::Hole { until_seq: next_seq, record: None };
        }
        self.commit.hurry();
        Place::Soon
    }
}
