//! The reads of a journal for those who follow an execution, and the runs that were read.
//!
//! Absent: the questions that need them (`fetch.rs`).

use std::collections::VecDeque;
use std::io;

use smallvec::SmallVec;

use crate::base::{PageBuffer, SubscriberId};
use crate::journal::format::Lsn;
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
    /// Runs that were read and not given yet.
    pub(super) ready: VecDeque<Ready>,
    /// The runs that were given last, the newest at the end. No page is written twice, so each
    /// stays what it is.
    pub(super) recent: VecDeque<(Lsn, PageBuffer)>,
    /// Buffers for the next runs.
    pub(super) spare: Vec<PageBuffer>,
    /// The places that subscribers have reached on the disk, by the index of a subscriber.
    pub(super) reached: Vec<Option<Box<Reached>>>,
}

/// The place that a subscriber has reached, and the totals of all chunks before it. If the next
/// chunks are lost, these totals may be, too.
pub(super) struct Reached {
    subscriber: SubscriberId,
    seq: u64,
    totals: KindTotals,
}

/// A run that was read.
pub(super) struct Ready {
    pub(super) name: u64,
    pub(super) lsn: Lsn,
    pub(super) bytes: u32,
    pub(super) read: RunRead,
    pub(super) buffer: PageBuffer,
}

/// The result of the read of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RunRead {
    Whole,
    /// Its segment is gone.
    Removed,
    Failed,
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
            ready: VecDeque::with_capacity(reads),
            recent: VecDeque::with_capacity(limits::JOURNAL_RECENT_RUNS),
            spare: Vec::with_capacity(reads),
            reached: Vec::new(),
        }
    }
}

impl Reads {
    /// True if there is something to give, or to look for again.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.ready.is_empty() || self.may_have_arrived && !self.soon.is_empty()
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

    pub(super) fn note_totals(&mut self, subscriber: SubscriberId, seq: u64, totals: KindTotals) {
        let index = subscriber.0.index as usize;
        if index >= self.reached.len() {
            self.reached.resize_with(index + 1, || None);
        }
        let reached = Reached { subscriber, seq, totals };
        match &mut self.reached[index] {
            Some(before) => **before = reached,
            none => *none = Some(Box::new(reached)),
        }
    }

    pub(super) fn totals_at(&self, subscriber: SubscriberId, seq: u64) -> Option<KindTotals> {
        let reached = self.reached.get(subscriber.0.index as usize)?.as_ref()?;
        let fits = (reached.subscriber, reached.seq) == (subscriber, seq);
        fits.then_some(reached.totals)
    }

    /// Takes a run out that was read lately.
    pub(super) fn take_recent(&mut self, lsn: Lsn) -> Option<PageBuffer> {
        let at = self.recent.iter().position(|(other, _)| *other == lsn)?;
        self.recent.remove(at).map(|(_, buffer)| buffer)
    }

    /// Remembers a run that was read. The one that was used longest ago makes room.
    pub(super) fn remember(&mut self, lsn: Lsn, buffer: PageBuffer) {
        if self.recent.len() == limits::JOURNAL_RECENT_RUNS
            && let Some((_, oldest)) = self.recent.pop_front()
        {
            self.give_back(oldest);
        }
        self.recent.push_back((lsn, buffer));
    }

    /// Takes a buffer back. One for a chunk of unusual length is not kept.
    pub(super) fn give_back(&mut self, buffer: PageBuffer) {
        let is_usual = buffer.len() == limits::JOURNAL_READ_BYTES as usize;
        if is_usual && self.spare.len() < limits::JOURNAL_READS_MAX {
            self.spare.push(buffer);
        }
    }
}
