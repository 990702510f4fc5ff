//! The reads of a journal for those who follow an execution, and the runs that were read.
//!
//! Absent: the questions that need them (`fetch.rs`).

use std::collections::VecDeque;
use std::io;

use smallvec::SmallVec;

use super::held::HeldRuns;
use crate::base::{Instant, PageBuffer, SubscriberId};
use crate::journal::format::Lsn;
use crate::journal::index::RunRow;
use crate::limits;
use crate::stream::KindTotals;

/// A read that has ended: the number of its question, the result, and the buffer.
pub(super) type Read = (u64, Result<u32, io::ErrorKind>, Option<PageBuffer>);

/// The reads that have ended in one turn.
pub(super) type Finished = SmallVec<[Read; 4]>;

/// The reads of a journal.
pub(super) struct Reads {
    /// Number of reads that are under way.
    pub(super) under_way: usize,
    /// Questions that have to read, and wait for others.
    pub(super) waiting: VecDeque<(u64, Lsn, u32)>,
    /// Questions whose chunk is on its way to the disk.
    pub(super) soon: VecDeque<u64>,
    /// True if some of these may have arrived.
    pub(super) may_have_arrived: bool,
    /// The runs in memory.
    pub(super) runs: HeldRuns,
    /// Questions whose run was read.
    pub(super) ready: VecDeque<u64>,
    /// Buffers for the next runs.
    pub(super) spare: Vec<PageBuffer>,
    /// The places that subscribers have reached on the disk, by the index of a subscriber.
    reached: Vec<Option<Box<Reached>>>,
    /// Bytes that may still be given in this turn.
    pub(super) left_bytes: u32,
    /// Number of chunks that the shard had published in the last turn.
    published_count: u64,
    /// Chunks are expected until then.
    live_until: Instant,
}

/// The place that a subscriber has reached.
struct Reached {
    subscriber: SubscriberId,
    /// The next chunk.
    seq: u64,
    /// The totals of all chunks before it. If the next chunks are lost, these totals may be, too.
    totals: Option<KindTotals>,
    /// The place within its run, if that was given in part.
    within: Option<Within>,
    /// The next runs of a sealed segment, from the page of its index that was read last.
    known: (u64, VecDeque<RunRow>),
}

/// A place within a run. Everything before it in the run is intact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Within {
    /// The run.
    pub(super) lsn: Lsn,
    /// The bytes of its chunks before the place.
    pub(super) offset_bytes: usize,
    /// The payload bytes of all chunks before the place.
    pub(super) total_bytes: u64,
}

impl Default for Reads {
    /// No reads. There is memory for all that may be under way.
    fn default() -> Reads {
        let reads = limits::JOURNAL_READS_MAX;
        Reads {
            under_way: 0,
            waiting: VecDeque::with_capacity(reads),
            soon: VecDeque::with_capacity(reads),
            may_have_arrived: false,
            runs: HeldRuns::default(),
            ready: VecDeque::with_capacity(reads),
            spare: Vec::with_capacity(reads),
            reached: Vec::new(),
            left_bytes: 0,
            published_count: 0,
            live_until: Instant::ZERO,
        }
    }
}

impl Reads {
    /// True if there is something to give, or to look for again.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.ready.is_empty() || self.may_have_arrived && !self.soon.is_empty()
    }

    /// Begins a turn, in which old chunks may be given. The shard has published so many chunks.
    pub(super) fn begin_turn(&mut self, published_count: u64, now: Instant) {
        if std::mem::replace(&mut self.published_count, published_count) != published_count {
            self.live_until = now + limits::JOURNAL_LIVE_TIME;
        }
        self.left_bytes = match now < self.live_until {
            true => limits::JOURNAL_GIVEN_BYTES_LIVE,
            false => limits::JOURNAL_GIVEN_BYTES_MAX,
        };
    }

    pub(super) fn buffer(&mut self, bytes: u32) -> PageBuffer {
        match self.spare.pop() {
            Some(buffer) if buffer.len() >= bytes as usize => buffer,
            spare => {
                self.spare.extend(spare);
                let bytes = bytes.max(limits::JOURNAL_READ_BYTES);
                PageBuffer::new(bytes.next_multiple_of(limits::JOURNAL_PAGE_BYTES) as usize)
            }
        }
    }

    /// Notes that the next chunk of a subscriber is `seq`, with the totals of those before it.
    pub(super) fn note(
        &mut self,
        subscriber: SubscriberId,
        seq: u64,
        totals: Option<KindTotals>,
        within: Option<Within>,
    ) {
        let reached = self.reached_mut(subscriber);
        (reached.seq, reached.totals, reached.within) = (seq, totals, within);
    }

    /// Notes the runs of a segment that a subscriber is given next.
    pub(super) fn note_runs(
        &mut self,
        subscriber: SubscriberId,
        segment_number: u64,
        rows: Vec<RunRow>,
    ) {
        self.reached_mut(subscriber).known = (segment_number, rows.into());
    }

    fn reached_mut(&mut self, subscriber: SubscriberId) -> &mut Reached {
        let index = subscriber.0.index as usize;
        if index >= self.reached.len() {
            self.reached.resize_with(index + 1, || None);
        }
        let place = &mut self.reached[index];
        if place.as_ref().is_none_or(|reached| reached.subscriber != subscriber) {
            let known = (0, VecDeque::new());
            let none = Reached { subscriber, seq: 0, totals: None, within: None, known };
            *place = Some(Box::new(none));
        }
        place.as_mut().expect("it was just made")
    }

    fn reached_at(&self, subscriber: SubscriberId, seq: u64) -> Option<&Reached> {
        let reached = self.reached.get(subscriber.0.index as usize)?.as_deref()?;
        ((reached.subscriber, reached.seq) == (subscriber, seq)).then_some(reached)
    }

    /// True if the subscriber was last given or told of the chunk before `seq`.
    pub(super) fn is_at(&self, subscriber: SubscriberId, seq: u64) -> bool {
        self.reached_at(subscriber, seq).is_some()
    }

    /// The totals of all chunks before `seq`, if the subscriber has reached it.
    pub(super) fn totals_at(&self, subscriber: SubscriberId, seq: u64) -> Option<KindTotals> {
        self.reached_at(subscriber, seq)?.totals
    }

    /// The place of `seq` in the run at `lsn`, if the subscriber has reached it there.
    pub(super) fn within(&self, subscriber: SubscriberId, seq: u64, lsn: Lsn) -> Option<Within> {
        self.reached_at(subscriber, seq)?.within.filter(|within| within.lsn == lsn)
    }

    /// The segment and the run that have `seq`, if the subscriber has learned of it.
    pub(super) fn run_of(&mut self, subscriber: SubscriberId, seq: u64) -> Option<(u64, RunRow)> {
        let reached = self.reached.get_mut(subscriber.0.index as usize)?.as_deref_mut()?;
        let (segment_number, rows) = &mut reached.known;
        if reached.subscriber != subscriber {
            return None;
        }
        while rows.front().is_some_and(|row| row.until_seq() <= seq) {
            rows.pop_front();
        }
        let row = rows.front().filter(|row| row.first_seq <= seq)?;
        Some((*segment_number, *row))
    }

    /// True if the subscriber has reached `seq`.
    pub(super) fn is_past(&self, subscriber: SubscriberId, seq: u64) -> bool {
        let reached = self.reached.get(subscriber.0.index as usize).and_then(Option::as_deref);
        reached.is_some_and(|reached| reached.subscriber == subscriber && reached.seq >= seq)
    }

    /// Takes a buffer back. One for a chunk of unusual length is not kept.
    pub(super) fn give_back(&mut self, buffer: PageBuffer) {
        let is_usual = buffer.len() == limits::JOURNAL_READ_BYTES as usize;
        if is_usual && self.spare.len() < limits::JOURNAL_READS_MAX {
            self.spare.push(buffer);
        }
    }
}
