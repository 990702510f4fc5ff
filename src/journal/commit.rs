//! Group commit: blocks that are filled, on their way to the disk, and on it.
//!
//! No timer decides when a sync begins. While one is under way, the next block is filled. The
//! sync that begins when that one ends serves everybody who waits.
//!
//! Places move through four states: `appended`, submitted, `written`, `synced`. Everything before
//! `written` was taken by the kernel, and everything before `synced` is on the disk.
//!
//! Invariants:
//! - C1: no page is written twice. Blocks follow each other in a segment.
//! - C2: a sync covers writes that were completed before it was submitted, and nothing else. A
//!   write that is durable by itself follows a place that is synced.
//! - C3: the `synced` that a block carries was true when the block was closed.
//! - C4: after a failed write or sync, nothing more is written.
//! - C5: no block begins further behind the place that is synced than a limit and one mark.

use std::collections::VecDeque;

use super::block::{Block, Stamp};
use super::format::{BLOCK_HEADER_BYTES, BlockKind, Lsn};
use super::runs::ClosedRun;
use super::{Moment, Wish, WishToken};
use crate::base::planted::{Planted, planted};
use crate::base::{Instant, PageBuffer};
use crate::limits::{
    JOURNAL_BLOCK_BYTES_MAX, JOURNAL_BLOCKS_MAX, JOURNAL_GATHER_BYTES, JOURNAL_MARK_DELAY,
    JOURNAL_PAGE_BYTES, JOURNAL_SYNC_INTERVAL, JOURNAL_UNSYNCED_BLOCKS_MAX, JOURNAL_WRITE_DELAY,
    JOURNAL_WRITES_MAX,
};

/// Progress of an execution with one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The index of the execution in the catalogue.
    pub kept: u32,
    /// One past its last chunk in the block.
    pub until_seq: u64,
    /// True if the end of the execution is in the block.
    pub ends: bool,
}

/// A block on its way.
struct Flight {
    lsn: Lsn,
    bytes: u32,
    touched: Vec<Touch>,
    state: FlightState,
    /// True if somebody waits until it is on the disk.
    is_awaited: bool,
    is_mark: bool,
}

enum FlightState {
    Queued(PageBuffer),
    Writing,
    Written,
}

/// A sync that is under way.
struct SyncFlight {
    /// Everything before it is on the disk afterwards.
    until: Lsn,
}

/// The block that is being filled.
struct OpenBlock {
    block: Block,
    touched: Vec<Touch>,
    since: Instant,
    is_awaited: bool,
    is_urgent: bool,
    /// True if it is in the part of a segment that only ends and holes may use.
    is_reserve: bool,
}

/// The level that some executions have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The kernel has it.
    Written,
    /// It is on the disk.
    Synced,
}

/// The blocks of a journal that are not on the disk.
pub struct Commit {
    journal: u128,
    buffers: Vec<PageBuffer>,
    lists: Vec<Vec<Touch>>,
    open: Option<OpenBlock>,
    flights: VecDeque<Flight>,
    /// Size of the blocks in `flights`.
    flying_bytes: u32,
    /// The maximum of that, but for a mark.
    flying_bytes_max: u32,
    /// The number of the first flight.
    first_serial: u64,
    writing: usize,
    next: Lsn,
    /// The end of the segment before, in pages; 0 if an earlier process has finished it.
    previous_pages: u16,
    written: Lsn,
    synced: Lsn,
    sync: Option<SyncFlight>,
    /// Segments before the present one that are not wholly on the disk: the places of their ends.
    ends: VecDeque<Lsn>,
    /// The time at which the oldest block was written that is not on the disk.
    dirty_since: Option<Instant>,
    mark_at: Option<Instant>,
}

impl Commit {
    /// Begins at `start`, the first place of a segment behind its header. Everything before is on
    /// the disk.
    pub fn new(journal: u128, start: Lsn, unsynced_bytes_max: u32) -> Commit {
        let buffer = |_| PageBuffer::new(JOURNAL_BLOCK_BYTES_MAX as usize);
        let touched = || Vec::with_capacity(TOUCHES_MAX);
        Commit {
            journal,
            buffers: (0..JOURNAL_BLOCKS_MAX).map(buffer).collect(),
            lists: std::iter::repeat_with(touched).take(LISTS).collect(),
            open: None,
            flights: VecDeque::with_capacity(LISTS),
            flying_bytes: 0,
            flying_bytes_max: unsynced_bytes_max,
            first_serial: 0,
            writing: 0,
            next: start,
            previous_pages: 0,
            written: start,
            synced: start,
            sync: None,
            ends: VecDeque::with_capacity(4),
            dirty_since: None,
            mark_at: None,
        }
    }

    /// The place of the next block.
    pub fn next_lsn(&self) -> Lsn {
        self.next
    }

    /// Everything before this place was taken by the kernel.
    pub fn written(&self) -> Lsn {
        self.written
    }

    /// Everything before this place is on the disk.
    pub fn synced(&self) -> Lsn {
        self.synced
    }

    /// The block that is being filled.
    #[inline]
    pub fn open_block(&mut self) -> Option<&mut Block> {
        self.open.as_mut().map(|open| &mut open.block)
    }

    /// True if everything that was appended is on the disk.
    pub fn is_all_synced(&self) -> bool {
        self.open.is_none() && self.flights.iter().all(|flight| flight.is_mark)
    }

    /// Takes a free buffer for an index. Some stay for blocks.
    pub fn take_buffer(&mut self) -> Option<PageBuffer> {
        if self.buffers.len() > 2 { self.buffers.pop() } else { None }
    }

    /// Takes a buffer back.
    pub fn give_back(&mut self, buffer: PageBuffer) {
        assert!(self.buffers.len() < JOURNAL_BLOCKS_MAX);
        self.buffers.push(buffer);
    }

    /// True if a block can begin.
    pub fn can_begin(&self) -> bool {
        !self.buffers.is_empty() && !self.lists.is_empty()
    }

    /// Size of the largest block that may begin now, because the ones before are not on the disk.
    pub fn free_bytes(&self) -> u32 {
        self.flying_bytes_max.saturating_sub(self.flying_bytes)
    }

    /// True if the block that is being filled is in the part of a segment that only ends and holes
    /// may use.
    #[inline]
    pub fn is_in_reserve(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_reserve)
    }

    /// Begins a block of at most `room_bytes`.
    pub fn begin(&mut self, room_bytes: u32, is_reserve: bool, now: Instant) {
        assert!(self.open.is_none());
        let buffer = self.buffers.pop().expect("the caller has checked it");
        let touched = self.lists.pop().expect("the caller has checked it");
        let block = Block::new(self.journal, buffer, room_bytes, self.next);
        let (is_awaited, is_urgent) = (false, false);
        let open = OpenBlock { block, touched, since: now, is_awaited, is_urgent, is_reserve };
        self.open = Some(open);
        self.mark_at = None;
    }

    /// True if a block is being filled.
    pub fn has_open(&self) -> bool {
        self.open.is_some()
    }

    /// True if [`Commit::touch`] has room for this execution. It has to be closed otherwise.
    #[inline]
    pub fn can_touch(&self, hint: &TouchHint) -> bool {
        let Some(open) = &self.open else { return true };
        hint.block == open.block.lsn() || open.touched.len() < open.touched.capacity()
    }

    /// Notes that an execution has something new in the open block.
    #[inline]
    pub fn touch(&mut self, touch: Touch, is_awaited: bool, hint: &mut TouchHint) {
        let open = self.open.as_mut().expect("something was appended to it");
        open.is_awaited |= is_awaited;
        let lsn = open.block.lsn();
        if hint.block == lsn {
            let known = &mut open.touched[hint.at as usize];
            assert!(known.kept == touch.kept);
            *known = Touch { ends: known.ends | touch.ends, ..touch };
            return;
        }
        assert!(open.touched.len() < open.touched.capacity()); // Nothing is allocated.
        *hint = TouchHint { block: lsn, at: open.touched.len() as u32 };
        open.touched.push(touch);
    }

    /// Notes that somebody waits for what was appended.
    pub fn await_sync(&mut self) {
        match (&mut self.open, self.flights.back_mut()) {
            (Some(open), _) => open.is_awaited = true,
            (None, Some(last)) => last.is_awaited = true,
            (None, None) => {}
        }
    }

    /// Notes that a reader waits for what was appended.
    pub fn hurry(&mut self) {
        if let Some(open) = &mut self.open {
            open.is_urgent = true;
        }
    }

    /// Closes the open block, if there is one, so that it is written. Returns its last run, if
    /// that was open.
    pub fn close(&mut self, moment: Moment) -> Option<ClosedRun> {
        let mut open = self.open.take()?;
        let closed = open.block.runs.close_run();
        if open.block.is_empty() {
            let (buffer, _) = open.block.close(&self.stamp(BlockKind::Mark, moment));
            self.buffers.push(buffer);
            self.lists.push(open.touched);
            return closed;
        }
        let stamp = self.stamp(BlockKind::Data, moment);
        self.enqueue(open.block, &stamp, open.touched, open.is_awaited);
        closed
    }

    fn stamp(&self, kind: BlockKind, moment: Moment) -> Stamp {
        let Moment { now, wall_us } = moment;
        let is_first = self.next.offset_bytes() == JOURNAL_PAGE_BYTES;
        let previous_pages = if is_first { self.previous_pages } else { 0 };
        let mut synced = self.synced; // C3
        if planted(Planted::SyncedTooFar) {
            let next = self.flights.iter().find(|flight| flight.end() > synced);
            synced = next.map_or(synced, Flight::end);
        }
        Stamp { kind, synced, previous_pages, wall_us, mono_ns: now.nanos() }
    }

    fn enqueue(&mut self, block: Block, stamp: &Stamp, touched: Vec<Touch>, is_awaited: bool) {
        let lsn = block.lsn();
        assert!(lsn == self.next); // C1
        let (buffer, bytes) = block.close(stamp);
        self.next = lsn.after(bytes);
        self.flying_bytes += bytes;
        let is_mark = stamp.kind == BlockKind::Mark;
        let state = FlightState::Queued(buffer);
        self.flights.push_back(Flight { lsn, bytes, touched, state, is_awaited, is_mark });
    }

    /// True if the open block should be closed at the end of this turn.
    pub fn is_due(&self, now: Instant) -> bool {
        let Some(open) = &self.open else { return false };
        if open.block.is_empty() || self.writing == JOURNAL_WRITES_MAX {
            return false;
        }
        let is_quiet = self.sync.is_none() && self.writing == 0;
        open.is_urgent
            || open.block.bytes() >= self.gather_bytes()
            || open.is_awaited && is_quiet
            || now >= open.since + JOURNAL_WRITE_DELAY
    }

    /// The size from which on a block is closed. The number of blocks that are not on the disk is
    /// limited, so they are longer while a sync takes its time.
    fn gather_bytes(&self) -> u32 {
        let quarters = self.flights.len() / (JOURNAL_UNSYNCED_BLOCKS_MAX / 4);
        JOURNAL_GATHER_BYTES << quarters.min(3)
    }

    /// Writes a mark if one is due, and if the segment has room for it.
    pub fn mark(&mut self, has_room: bool, moment: Moment) {
        let is_due = self.mark_at.is_some_and(|at| moment.now >= at);
        if !has_room {
            self.mark_at = None;
        } else if is_due && self.open.is_none() && self.can_begin() && self.flights.is_empty() {
            self.begin(JOURNAL_PAGE_BYTES, true, moment.now);
            let open = self.open.take().expect("it was just begun");
            let stamp = self.stamp(BlockKind::Mark, moment);
            self.enqueue(open.block, &stamp, open.touched, true);
        }
    }

    /// The time at which [`Commit::is_due`], a sync or a mark is due without any other event.
    pub fn deadline(&self) -> Option<Instant> {
        let open = self.open.as_ref().filter(|open| !open.block.is_empty());
        let write =
            open.filter(|_| self.writing < JOURNAL_WRITES_MAX).map(|open| match open.is_urgent {
                true => open.since, // A reader waits.
                false => open.since + JOURNAL_WRITE_DELAY,
            });
        let sync = self.dirty_since.filter(|_| self.sync.is_none());
        let sync = sync.map(|since| since + JOURNAL_SYNC_INTERVAL);
        let mark = self.mark_at.filter(|_| self.open.is_none() && self.flights.is_empty());
        [write, sync, mark].into_iter().flatten().min()
    }

    /// Moves to another segment, whose first block begins at `start`.
    pub fn roll(&mut self, start: Lsn) {
        assert!(self.open.is_none());
        assert!(start.segment_number() == self.next.segment_number() + 1);
        if self.synced < self.next {
            self.ends.push_back(self.next);
        }
        if self.synced == self.next {
            self.synced = start;
        }
        if self.written == self.next {
            self.written = start;
        }
        self.previous_pages = (self.next.offset_bytes() / JOURNAL_PAGE_BYTES) as u16;
        self.next = start;
    }

    /// The next write or sync, if one should begin.
    pub fn poll_wish(&mut self, now: Instant) -> Option<Wish> {
        if let Some(wish) = self.poll_write() {
            return Some(wish);
        }
        if self.sync.is_some() || self.written <= self.synced {
            return None;
        }
        let is_old = self.dirty_since.is_some_and(|since| now >= since + JOURNAL_SYNC_INTERVAL);
        // Without anybody who waits, one sync covers the writes under way too.
        let is_wanted = self.is_crowded()
            || self.flights.iter().any(|flight| flight.is_awaited && flight.end() <= self.written)
            || self.writing == 0 && (is_old || !self.ends.is_empty());
        if !is_wanted {
            return None;
        }
        let mut until = self.written; // C2
        if planted(Planted::SyncBeforeWritten) {
            let under_way = self.flights.iter().take_while(|flight| !flight.is_queued());
            until = under_way.last().map_or(until, Flight::end).max(until);
        }
        until = self.ends.front().map_or(until, |end| until.min(*end));
        assert!(until > self.synced);
        self.sync = Some(SyncFlight { until });
        Some(Wish::Sync { segment_number: self.synced.segment_number() })
    }

    fn is_crowded(&self) -> bool {
        self.flights.len() >= JOURNAL_UNSYNCED_BLOCKS_MAX / 2
            || self.flying_bytes >= self.flying_bytes_max / 4
    }

    fn poll_write(&mut self) -> Option<Wish> {
        if self.writing == JOURNAL_WRITES_MAX {
            return None;
        }
        let at = self.flights.iter().position(Flight::is_queued)?;
        let is_last = at + 1 == self.flights.len();
        let is_alone = is_last && self.writing == 0 && self.sync.is_none() && self.ends.is_empty();
        let is_planted = planted(Planted::WriteCoversEarlier);
        let flight = &mut self.flights[at];
        let state = std::mem::replace(&mut flight.state, FlightState::Writing);
        let FlightState::Queued(buffer) = state else { unreachable!("it was just found") };
        let (lsn, bytes) = (flight.lsn, flight.bytes);
        // C2: such a write covers only itself.
        let sync = flight.is_awaited && is_alone && (self.synced == lsn || is_planted);
        if sync {
            self.sync = Some(SyncFlight { until: lsn.after(bytes) });
        }
        self.writing += 1;
        let serial = self.first_serial + at as u64;
        Some(Wish::Write { token: WishToken::Block(serial), lsn, buffer, bytes, sync })
    }

    /// Handles the success of a write.
    pub fn on_written(&mut self, serial: u64, buffer: PageBuffer, synced: bool, now: Instant) {
        self.give_back(buffer);
        assert!(self.writing > 0);
        self.writing -= 1;
        let at = (serial - self.first_serial) as usize;
        let flight = &mut self.flights[at];
        assert!(matches!(flight.state, FlightState::Writing)); // C1
        flight.state = FlightState::Written;
        if !flight.is_mark {
            self.dirty_since.get_or_insert(now);
        }
        if synced {
            self.on_synced(now);
        }
    }

    /// A planted bug: forgets a sync that has failed.
    pub fn sync_again(&mut self) {
        self.sync = None;
    }

    /// Handles the success of a sync.
    pub fn on_synced(&mut self, now: Instant) {
        let SyncFlight { until } = self.sync.take().expect("it was asked for");
        assert!(until > self.synced);
        self.synced = until;
        if self.ends.front() == Some(&until) {
            self.ends.pop_front();
            self.synced = Lsn::new(until.segment_number() + 1, JOURNAL_PAGE_BYTES);
        }
        let synced = self.synced;
        let rest = self.flights.iter().filter(|flight| flight.lsn >= synced && !flight.is_mark);
        self.dirty_since = rest.filter(|flight| flight.is_written()).map(|_| now).next();
        // A mark needs no other one.
        let is_data = |flight: &Flight| !flight.is_mark && flight.end() <= synced;
        if self.flights.iter().any(is_data) {
            self.mark_at = Some(now + JOURNAL_MARK_DELAY);
        }
    }

    /// Passes over the blocks that were written and that are on the disk, in order. `reached` is
    /// told of their executions, once for each level.
    pub fn settle(&mut self, mut reached: impl FnMut(Level, &Touch)) {
        for flight in &self.flights {
            if !flight.is_written() {
                break;
            }
            if flight.end() > self.written {
                flight.touched.iter().for_each(|touch| reached(Level::Written, touch));
                self.written = flight.end();
            }
        }
        self.written = self.written.max(self.synced); // A roll moves it beyond a segment's end.
        while let Some(first) = self.flights.front() {
            let is_past = first.end() <= self.synced;
            if !(first.is_written() && (is_past || first.is_mark)) {
                break;
            }
            let mut flight = self.flights.pop_front().expect("it was just there");
            self.first_serial += 1;
            self.flying_bytes -= flight.bytes;
            if is_past {
                flight.touched.iter().for_each(|touch| reached(Level::Synced, touch));
            }
            flight.touched.clear();
            self.lists.push(flight.touched);
        }
    }
}

impl Flight {
    fn end(&self) -> Lsn {
        self.lsn.after(self.bytes)
    }

    fn is_written(&self) -> bool {
        matches!(self.state, FlightState::Written)
    }

    fn is_queued(&self) -> bool {
        matches!(self.state, FlightState::Queued(_))
    }
}

/// The place of an execution in the list of the open block.
#[derive(Clone, Copy, Debug, Default)]
pub struct TouchHint {
    block: Lsn,
    at: u32,
}

/// Number of executions in one block.
const TOUCHES_MAX: usize = 1_024;
/// Number of blocks that have a list: those that are filled, and those that are not on the disk.
const LISTS: usize = JOURNAL_UNSYNCED_BLOCKS_MAX;

const _: () = {
    assert!(JOURNAL_UNSYNCED_BLOCKS_MAX >= 2 * JOURNAL_BLOCKS_MAX);
    assert!(BLOCK_HEADER_BYTES < JOURNAL_PAGE_BYTES); // A mark is one page.
};
