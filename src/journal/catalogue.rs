//! The executions of a journal: where each begins, where its chunks are, and how it ended.

use std::collections::HashMap;

use slab::Slab;
use smallvec::SmallVec;

use super::block::Position;
use super::commit::TouchHint;
use super::format::Lsn;
use super::landmarks::Landmarks;
use crate::limits::JOURNAL_EXECUTIONS_MAX;
use crate::stream::{Durability, Kind, Kinds, Totals};

/// The name of a kept execution in its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeptId {
    /// The place in the catalogue.
    pub index: u32,
    /// The number of the execution in this journal. It is never assigned again.
    pub number: u32,
}

/// The runs of an execution in a sealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The number of the segment.
    pub segment_number: u64,
    /// The first chunk in it.
    pub first_seq: u64,
    /// One past the last chunk in it.
    pub until_seq: u64,
    /// Payload bytes of all chunks before that one.
    pub bytes_until: u64,
    /// The number of its first run in the index of the segment.
    pub run_at: u32,
    /// Number of its runs.
    pub run_count: u32,
}

/// The place of a record: of the beginning or of the end of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place.
    pub lsn: Lsn,
    /// Number of its bytes.
    pub bytes: u32,
}

/// An execution that a journal keeps.
#[derive(Debug)]
pub struct Kept {
    /// The id of the execution, as its 128 bits.
    pub id: u128,
    /// The number of the execution in this journal.
    pub number: u32,
    /// The next chunk.
    pub next_seq: u64,
    /// Payload bytes of all chunks.
    pub bytes: u64,
    /// The record of its beginning.
    pub opened: Record,
    /// The record of its end.
    pub ended: Option<Record>,
    /// The wall-clock time of its end, in microseconds since 1970.
    pub ended_us: u64,
    /// Time in seconds for which it is kept after its end; 0 for the time of the journal.
    pub keep_s: u32,
    /// True if it was deleted.
    pub is_deleted: bool,
    /// Its runs in sealed segments, in order.
    pub extents: SmallVec<[Extent; 1]>,
    /// The chunks in them that were read.
    pub landmarks: Landmarks,
    /// Its part of the present segment.
    pub part: Option<u32>,
    /// Its part of the segment that is being sealed.
    pub sealing_part: Option<u32>,
    /// The state that only a running execution has.
    pub living: Option<Box<Living>>,
}

/// The state of an execution that goes on.
#[derive(Debug)]
pub struct Living {
    /// The promise for its chunks.
    pub durability: Durability,
    /// The totals of all chunks before the next one.
    pub position: Position,
    /// Chunks at the end that were not kept, and that no record tells of yet.
    pub missing: Option<Missing>,
    /// One past the last chunk that the kernel has.
    pub written_seq: u64,
    /// One past the last chunk that is on the disk.
    pub synced_seq: u64,
    /// True after the record of its end was appended, until it is kept as promised.
    pub is_end_awaited: bool,
    /// True if it is in the list of news.
    pub(super) is_news: bool,
    /// The wall-clock time at which it was opened, in microseconds since 1970.
    pub opened_us: u64,
    /// Its description, for the segments to come.
    pub details: Box<[u8]>,
    /// The end of the record that has changed the description last; 0 if none has.
    pub amended_until: Lsn,
    pub(super) hint: TouchHint,
}

/// Chunks that were published and not kept.
#[derive(Clone, Copy, Debug)]
pub struct Missing {
    /// The position before the first of them.
    pub before: Position,
    /// Number of them.
    pub count: u64,
}

impl Missing {
    /// The part that one record can tell of: its number of chunks, and the position behind it.
    /// `after` is the position behind all of them. The parts of a long hole take one kind after the
    /// other, because nobody knows the kinds of single chunks that are missing.
    pub fn first_part(&self, after: &Position) -> (u32, Position) {
        let Ok(count) = u32::try_from(self.count) else {
            let mut totals = self.before.totals;
            let mut left = u64::from(u32::MAX);
            for kind in Kind::ALL {
                let (from, until) = (totals[kind as usize], after.totals[kind as usize]);
                let chunks = (until.chunks - from.chunks).min(left);
                // The last chunks of a kind bring all of its bytes.
                let is_last = from.chunks + chunks == until.chunks;
                let bytes = if is_last { until.bytes - from.bytes } else { 0 };
                totals.add(kind, Totals { chunks, bytes });
                left -= chunks;
            }
            assert!(left == 0);
            let all = totals.of(Kinds::ALL);
            return (u32::MAX, Position { totals, all, ..self.before });
        };
        (count, *after)
    }
}

impl Living {
    /// The next chunk that the journal has no record of.
    #[inline]
    pub fn recorded_seq(&self) -> u64 {
        self.missing.as_ref().map_or(&self.position, |missing| &missing.before).next_seq()
    }
}

impl Kept {
    /// Creates an execution without chunks.
    pub fn new(id: u128, number: u32, opened: Record) -> Kept {
        Kept {
            id,
            number,
            next_seq: 1,
            bytes: 0,
            opened,
            ended: None,
            ended_us: 0,
            keep_s: 0,
            is_deleted: false,
            extents: SmallVec::new(),
            landmarks: Landmarks::default(),
            part: None,
            sealing_part: None,
            living: None,
        }
    }

    /// The time until which it is kept, in microseconds since 1970. `None` if it has none of its
    /// own. It is unknown before the end, and counts as the last one.
    pub fn until_us(&self) -> Option<u64> {
        if self.keep_s == 0 || self.is_deleted {
            return None;
        }
        let keep_us = 1_000_000 * u64::from(self.keep_s);
        Some(self.ended.map_or(u64::MAX, |_| self.ended_us.saturating_add(keep_us)))
    }

    /// The next chunk, and the payload bytes of all before it.
    pub fn published(&self) -> (u64, u64) {
        match &self.living {
            Some(living) => (living.position.next_seq(), living.position.all.bytes),
            None => (self.next_seq, self.bytes),
        }
    }

    /// The next chunk that the journal has no record of, and the payload bytes of all before it.
    pub fn recorded(&self) -> (u64, u64) {
        let Some(living) = &self.living else { return (self.next_seq, self.bytes) };
        let position = living.missing.as_ref().map_or(&living.position, |missing| &missing.before);
        (position.next_seq(), position.all.bytes)
    }

    /// The extent that has a chunk, or the first one behind it.
    pub fn extent(&self, seq: u64) -> Option<&Extent> {
        let at = self.extents.partition_point(|extent| extent.until_seq <= seq);
        self.extents.get(at)
    }
}

/// All executions of a journal.
#[derive(Debug, Default)]
pub struct Catalogue {
    kept: Slab<Kept>,
    by_id: HashMap<u128, u32>,
    last_number: u32,
}

impl Catalogue {
    /// True if it takes no more executions.
    pub fn is_full(&self) -> bool {
        self.kept.len() == JOURNAL_EXECUTIONS_MAX || self.last_number == u32::MAX
    }

    /// The number of the next execution.
    pub fn next_number(&self) -> u32 {
        self.last_number + 1
    }

    /// Adds an execution. Its number must be new.
    pub fn insert(&mut self, kept: Kept) -> KeptId {
        assert!(self.kept.len() < JOURNAL_EXECUTIONS_MAX);
        self.last_number = self.last_number.max(kept.number);
        let (id, number) = (kept.id, kept.number);
        let index = self.kept.insert(kept) as u32;
        let before = self.by_id.insert(id, index);
        assert!(before.is_none()); // An id names one execution.
        KeptId { index, number }
    }

    /// Finds an execution.
    pub fn find(&self, id: u128) -> Option<KeptId> {
        let index = *self.by_id.get(&id)?;
        Some(KeptId { index, number: self.kept[index as usize].number })
    }

    /// The execution with this name; `None` if it is not kept any more.
    pub fn get(&self, name: KeptId) -> Option<&Kept> {
        self.kept.get(name.index as usize).filter(|kept| kept.number == name.number)
    }

    /// The same as [`Catalogue::get`], mutable.
    #[inline]
    pub fn get_mut(&mut self, name: KeptId) -> Option<&mut Kept> {
        self.kept.get_mut(name.index as usize).filter(|kept| kept.number == name.number)
    }

    /// The execution at a place.
    pub fn at(&self, index: u32) -> Option<&Kept> {
        self.kept.get(index as usize)
    }

    /// The same as [`Catalogue::at`], mutable.
    pub fn at_mut(&mut self, index: u32) -> Option<&mut Kept> {
        self.kept.get_mut(index as usize)
    }

    /// All executions with their names.
    pub fn iter(&self) -> impl Iterator<Item = (KeptId, &Kept)> + Clone {
        self.kept
            .iter()
            .map(|(index, kept)| (KeptId { index: index as u32, number: kept.number }, kept))
    }

    /// The same as [`Catalogue::iter`], mutable and without the names.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Kept> {
        self.kept.iter_mut().map(|(_, kept)| kept)
    }

    /// Forgets an execution.
    pub fn remove(&mut self, name: KeptId) {
        assert!(self.get(name).is_some());
        let kept = self.kept.remove(name.index as usize);
        self.by_id.remove(&kept.id);
    }

    /// Notes that numbers up to this one were assigned.
    pub fn skip_numbers(&mut self, last_number: u32) {
        self.last_number = self.last_number.max(last_number);
    }
}
