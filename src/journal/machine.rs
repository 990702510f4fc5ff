//! The machine: appends, wishes for the disk, and their results.

use std::collections::VecDeque;
use std::fmt;
use std::io;

use super::age::AgeClock;
use super::answers::{Append, Counters, Fault, Refused};
use super::block::Position;
use super::catalogue::{Catalogue, Kept, KeptId, Living, Missing, Record};
use super::commit::{Commit, Level, Touch, TouchHint};
use super::format::{
    BLOCK_HEADER_BYTES, CHUNK_ENTRY_BYTES, ChunkEntry, Lsn, RUN_HEADER_BYTES, RunKind,
    SegmentHeader, chunk_bytes,
};
use super::index::{EXECUTIONS_PER_PAGE, RUNS_PER_PAGE, RecordPlace, RunRow, Trailer};
use super::records::{Ended, FIXED_BYTES, Hole, Opened, Terms};
use super::runs::Appended;
use super::seal::{self, Sealing};
use super::segments::{Next, Sealed, Segments};
use super::table::Table;
use super::{Moment, Setup, Wish, WishToken};
use crate::base::planted::{Planted, planted};
use crate::base::{Instant, PageBuffer};
use crate::limits::{
    JOURNAL_BLOCK_BYTES_MAX, JOURNAL_PAGE_BYTES, JOURNAL_RECORD_BYTES_MAX,
    JOURNAL_RECORD_RESERVE_BYTES, KEEP_S_MAX, KINDS_MAX,
};
use crate::stream::Durability;

/// The journal of one shard.
pub struct Journal {
    pub(super) setup: Setup,
    pub(super) catalogue: Catalogue,
    pub(super) commit: Commit,
    /// The runs and executions of the present segment.
    pub(super) table: Table,
    pub(super) sealing: Option<Sealing>,
    /// The table for the next segment, while nothing is sealed.
    spare: Option<Table>,
    pub(super) segments: Segments,
    pub(super) ages: AgeClock,
    /// The time after which the first ended execution is removed for its own time, in microseconds
    /// since 1970.
    pub(super) overdue_us: Option<u64>,
    fault: Option<Fault>,
    /// Executions of which something has reached the disk, each at most once.
    news: VecDeque<KeptId>,
    counters: Counters,
    pub(super) scratch: Vec<u8>,
}

/// The part of a segment that only records may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reserve {
    Keep,
    Use,
}

/// The minimum size of a block of chunks. A smaller rest of a segment stays empty.
const BLOCK_BYTES_MIN: u32 = 64 << 10;
/// The minimum size of a run, in bytes.
const RUN_BYTES_MIN: u32 = RUN_HEADER_BYTES + 8;

impl Journal {
    /// Begins in a fresh segment, `first`, which is on the disk with its header. `catalogue` and
    /// `sealed` are what the segments before have.
    pub fn new(
        setup: Setup,
        catalogue: Catalogue,
        sealed: VecDeque<Sealed>,
        first: u64,
        now: Instant,
    ) -> Journal {
        setup.assert_sound();
        let seen_us = sealed.iter().map(|sealed| sealed.last_us).max();
        let (mut table, spare) = (Table::new(), Table::new());
        table.begin(first);
        let mut journal = Journal {
            setup,
            catalogue,
            commit: Commit::new(
                setup.journal,
                Lsn::new(first, JOURNAL_PAGE_BYTES),
                setup.unsynced_bytes_max,
            ),
            table,
            sealing: None,
            spare: Some(spare),
            segments: Segments::new(sealed, first),
            ages: AgeClock::new(now, seen_us.unwrap_or(0)),
            overdue_us: None,
            fault: None,
            news: VecDeque::with_capacity(64),
            counters: Counters::default(),
            scratch: Vec::with_capacity(JOURNAL_RECORD_BYTES_MAX + FIXED_BYTES),
        };
        journal.plan_removals();
        journal
    }

    /// The properties of the journal.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The running totals.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The number of the segment that is being filled.
    pub fn current_segment(&self) -> u64 {
        self.segments.current
    }

    /// True while the next segment is being made.
    pub fn is_preparing(&self) -> bool {
        self.segments.next == Next::Preparing
    }

    /// The failure of the disk, if it has failed.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Begins to keep an execution. `details` describe it to the
    /// readers of the journal.
    ///
    /// # Errors
    /// [`Refused`]; nothing was appended then.
    pub fn open(
        &mut self,
        id: u128,
        terms: impl Into<Terms>,
        details: &[u8],
        moment: Moment,
    ) -> Result<KeptId, Refused> {
        let terms @ Terms { durability, keep_s } = terms.into();
        assert!(durability != Durability::None);
        assert!(keep_s <= KEEP_S_MAX);
        if details.len() > JOURNAL_RECORD_BYTES_MAX - FIXED_BYTES {
            return Err(Refused::TooLong);
        }
        if self.fault.is_some() {
            return Err(Refused::Broken);
        }
        if self.catalogue.is_full() {
            return Err(Refused::TooMany);
        }
        let number = self.catalogue.next_number();
        let position = Position::new(number);
        let opened = Opened { id, terms, opened_us: moment.wall_us, details };
        self.scratch.clear();
        opened.encode(&mut self.scratch);
        let placed = self.put_record(RunKind::Opened, &position, 0, Reserve::Keep, moment);
        let (lsn, bytes) = placed.ok_or(Refused::Full)?;
        let living = Living {
            durability,
            position,
            missing: None,
            written_seq: 0,
            synced_seq: 0,
            is_end_awaited: false,
            is_news: false,
            opened_us: moment.wall_us,
            details: details.into(),
            amended_until: Lsn(0),
            hint: TouchHint::default(),
        };
        let living = Some(Box::new(living));
        let kept = Kept { living, keep_s, ..Kept::new(id, number, Record { lsn, bytes }) };
        let name = self.catalogue.insert(kept);
        let part = self.part_of(name);
        self.table.parts[part as usize].opened = place(lsn, bytes);
        self.touch(name, durability.is_synced(), false);
        Ok(name)
    }

    /// Appends a chunk of a running execution. It has to be the next one.
    #[inline]
    pub fn append(
        &mut self,
        name: KeptId,
        entry: &ChunkEntry,
        payload: &[u8],
        moment: Moment,
    ) -> Append {
        if self.try_append(name, entry, payload, moment) {
            return Append::Kept;
        }
        self.counters.missed_chunks += 1;
        let living = self.living(name);
        let before = living.position;
        living.missing.get_or_insert(Missing { before, count: 0 }).count += 1;
        living.position.pass(entry);
        Append::Missed
    }

    /// Like [`Journal::append`], but without room nothing happens, and the result is false.
    #[inline]
    pub fn try_append(
        &mut self,
        name: KeptId,
        entry: &ChunkEntry,
        payload: &[u8],
        moment: Moment,
    ) -> bool {
        // A hole is recorded when the chunk behind it has room, or it would be one of many.
        let has_room = (self.living(name).missing.is_none()
            || self.has_chunk_room(entry.length, moment))
            && self.put_missing(name, moment)
            && self.put_chunk(name, entry, payload, moment);
        if has_room {
            self.counters.chunks += 1;
            self.counters.bytes += u64::from(entry.length);
        }
        has_room
    }

    /// Records the chunks of an execution that are missing, if there is room for that now. It uses
    /// the room for records only if somebody waits (`is_awaited`). An append and the end record
    /// them by themselves.
    pub fn record_missing(&mut self, name: KeptId, is_awaited: bool, moment: Moment) {
        let is_missing =
            |kept: &Kept| kept.living.as_ref().is_some_and(|living| living.missing.is_some());
        let is_running = |kept: &&Kept| kept.ended.is_none();
        if self.catalogue.get(name).filter(is_running).is_some_and(is_missing)
            && (is_awaited || self.has_chunk_room(0, moment))
        {
            self.put_missing(name, moment);
        }
    }

    /// Records the end of a running execution. Returns false if there is no room for it now; the
    /// caller then tries again. After a [`Journal::fault`] it is false forever: the end will not be
    /// kept, and there is nothing to wait for.
    pub fn end(&mut self, name: KeptId, details: &[u8], moment: Moment) -> bool {
        assert!(details.len() <= JOURNAL_RECORD_BYTES_MAX - FIXED_BYTES);
        if !self.put_missing(name, moment) {
            return false;
        }
        let living = self.living(name);
        let (position, is_awaited) = (living.position, living.durability.is_synced());
        let id = self.catalogue.get(name).expect("it is running").id;
        self.scratch.clear();
        Ended { id, ended_us: moment.wall_us, details }.encode(&mut self.scratch);
        let placed = self.put_record(RunKind::Ended, &position, 0, Reserve::Use, moment);
        let Some((lsn, bytes)) = placed else { return false };
        let part = self.part_of(name);
        self.table.parts[part as usize].ended = place(lsn, bytes);
        self.touch(name, is_awaited, true);
        let kept = self.catalogue.get_mut(name).expect("it is running");
        assert!(kept.ended.is_none()); // D6
        (kept.ended, kept.ended_us) = (Some(Record { lsn, bytes }), moment.wall_us);
        (kept.next_seq, kept.bytes) = kept.published();
        kept.living.as_mut().expect("it is running").is_end_awaited = true;
        if let Some(until_us) = kept.until_us() {
            self.plan_removal(until_us, moment);
        }
        true
    }

    /// Notes that somebody waits until everything so far is on the disk.
    pub fn await_sync(&mut self) {
        self.commit.await_sync();
    }

    /// Notes that somebody waits until the kernel has everything so far.
    pub fn await_write(&mut self) {
        self.commit.hurry();
    }

    /// Ends a turn of the shard: closes the block if it is due, and looks after the segments.
    pub fn turn(&mut self, moment: Moment) {
        if self.fault.is_some() {
            return;
        }
        if self.commit.is_due(moment.now) {
            self.close_block(moment);
        }
        let has_room = self.room_bytes(Reserve::Keep) >= JOURNAL_PAGE_BYTES;
        self.commit.mark(has_room, moment);
        if self.is_look_due(moment.now) {
            self.look(moment);
        }
        if self.segments.is_over(&self.setup, &self.ages) {
            self.retain(moment);
        }
    }

    /// The time at which [`Journal::turn`] has something to do without any other event.
    pub fn deadline(&self) -> Option<Instant> {
        if self.fault.is_some() {
            return None;
        }
        let retry = match self.segments.next {
            Next::Failed { retry_at } => Some(retry_at),
            _ => None,
        };
        [self.commit.deadline(), retry, self.look_at()].into_iter().flatten().min()
    }

    /// Closes the open block, so that all that was appended goes to the disk.
    pub fn flush(&mut self, moment: Moment) {
        if self.fault.is_some() {
            return; // Nothing is written any more.
        }
        self.commit.await_sync();
        self.close_block(moment);
    }

    /// True if everything that was appended is on the disk.
    pub fn is_all_synced(&self) -> bool {
        self.commit.is_all_synced()
    }

    /// The next thing to ask of the disk.
    pub fn poll_wish(&mut self, moment: Moment) -> Option<Wish> {
        if self.fault.is_some() {
            return None;
        }
        if self.segments.wants_next(self.is_used(4), moment.now) {
            self.segments.next = Next::Preparing;
            return Some(Wish::Prepare { header: self.header(moment) });
        }
        if let Some(wish) = self.commit.poll_wish(moment.now) {
            if let Wish::Write { bytes, .. } = wish {
                self.counters.blocks += 1;
                self.counters.block_bytes += u64::from(bytes);
            }
            self.counters.syncs += u64::from(!matches!(wish, Wish::Write { sync: false, .. }));
            return Some(wish);
        }
        if let Some(segment_number) = self.segments.to_remove.take() {
            self.segments.is_removing = true;
            return Some(Wish::Remove { segment_number });
        }
        self.poll_seal()
    }

    fn header(&self, moment: Moment) -> SegmentHeader {
        SegmentHeader {
            journal: self.setup.journal,
            shard: self.setup.shard,
            segment_number: self.segments.current + 1,
            segment_bytes: self.setup.segment_bytes,
            oldest_segment: self.segments.oldest,
            synced: self.commit.synced(),
            previous_end: Lsn(0),
            wall_us: moment.wall_us,
            mono_ns: moment.now.nanos(),
        }
    }

    fn poll_seal(&mut self) -> Option<Wish> {
        let sealing = self.sealing.as_mut().filter(|sealing| !sealing.is_writing)?;
        let is_on_disk = self.commit.synced().segment_number() > sealing.trailer.segment_number;
        if !is_on_disk {
            return None;
        }
        let mut buffer = self.commit.take_buffer()?;
        let write = sealing.fill(&self.catalogue, self.setup.segment_bytes, &mut buffer);
        let (token, lsn, bytes) = (WishToken::Index, write.lsn, write.bytes);
        Some(Wish::Write { token, lsn, buffer, bytes, sync: true })
    }

    /// Takes the result of a wish, with the buffer of a write.
    pub fn on_done(
        &mut self,
        token: WishToken,
        result: Result<(), io::ErrorKind>,
        buffer: Option<PageBuffer>,
        synced: bool,
        moment: Moment,
    ) {
        if let Some(before) = self.fault {
            // No success is believed any more. A failed sync after a failed write is worse.
            if let (Fault::Write(_), Err(kind)) = (before, result) {
                self.fault = Some(Fault::of(token, kind, synced).unwrap_or(before));
            }
            return;
        }
        match (token, result) {
            (WishToken::Block(serial), Ok(())) => {
                let buffer = buffer.expect("a write has one");
                self.commit.on_written(serial, buffer, synced, moment.now);
            }
            (WishToken::Sync, Ok(())) => self.commit.on_synced(moment.now),
            (WishToken::Index, Ok(())) => {
                self.commit.give_back(buffer.expect("a write has one"));
                self.sealed_more(moment);
            }
            (WishToken::Prepare, Ok(())) => {
                self.segments.next = Next::Ready;
                self.counters.segments += 1;
            }
            (WishToken::Remove, result) => {
                self.segments.is_removing = false;
                match result {
                    Ok(()) => self.counters.removed_segments += 1,
                    Err(_) => self.counters.failures += 1, // The next start removes it.
                }
            }
            (WishToken::Prepare, Err(_)) => {
                self.counters.failures += 1;
                self.segments.failed(moment.now);
            }
            (WishToken::Sync, Err(_)) if planted(Planted::SyncRetried) => self.commit.sync_again(),
            (WishToken::Sync | WishToken::Block(_) | WishToken::Index, Err(kind)) => {
                self.fault = Fault::of(token, kind, synced);
            }
        }
        if self.fault.is_none() {
            self.settle();
        }
    }

    /// An execution that has moved on the disk since it was returned last.
    pub fn poll_news(&mut self) -> Option<KeptId> {
        let name = self.news.pop_front()?;
        if let Some(living) = self.catalogue.get_mut(name).and_then(|kept| kept.living.as_mut()) {
            living.is_news = false;
        }
        Some(name)
    }

    /// One past the last chunk for which the promise of the execution is kept.
    pub fn durable_until(&self, name: KeptId) -> Option<u64> {
        let kept = self.catalogue.get(name)?;
        let Some(living) = &kept.living else { return Some(kept.next_seq) };
        Some(match living.durability {
            Durability::None | Durability::Written => living.written_seq,
            Durability::Synced | Durability::Replicated => living.synced_seq,
        })
    }

    /// One past the last chunk that is synced, or was recorded as missing by a synced record.
    pub fn synced_until(&self, name: KeptId) -> Option<u64> {
        let kept = self.catalogue.get(name)?;
        Some(kept.living.as_ref().map_or(kept.next_seq, |living| living.synced_seq))
    }

    /// True if the end of an execution is kept as promised.
    pub fn is_end_kept(&self, name: KeptId) -> bool {
        self.catalogue.get(name).is_some_and(|kept| kept.ended.is_some() && kept.living.is_none())
    }

    fn settle(&mut self) {
        let Journal { commit, catalogue, news, .. } = self;
        commit.settle(|level, touch| {
            let Some(kept) = catalogue.at_mut(touch.kept) else { return };
            let name = KeptId { index: touch.kept, number: kept.number };
            let Some(living) = &mut kept.living else { return };
            let is_reached = match level {
                Level::Written => {
                    living.written_seq = living.written_seq.max(touch.until_seq);
                    if planted(Planted::AckBeforeSync) {
                        living.synced_seq = living.synced_seq.max(touch.until_seq);
                    }
                    living.durability == Durability::Written || planted(Planted::AckBeforeSync)
                }
                Level::Synced => {
                    living.synced_seq = living.synced_seq.max(touch.until_seq);
                    living.durability.is_synced()
                }
            };
            if is_reached && !living.is_news {
                living.is_news = true;
                news.push_back(name);
            }
            if touch.ends && (is_reached || planted(Planted::EndKeptBeforeSync)) {
                assert!(living.is_end_awaited);
                kept.living = None;
            }
        });
    }

    fn living(&mut self, name: KeptId) -> &mut Living {
        let kept = self.catalogue.get_mut(name).expect("a running execution is kept");
        assert!(kept.ended.is_none()); // Nothing follows the end.
        kept.living.as_mut().expect("a running execution lives")
    }

    /// Records the chunks that are missing. Returns false if there is no room for that.
    #[inline]
    fn put_missing(&mut self, name: KeptId, moment: Moment) -> bool {
        if self.fault.is_some() {
            return false;
        }
        match self.living(name).missing {
            None => true,
            Some(_) if planted(Planted::HoleNotRecorded) => {
                self.living(name).missing = None;
                true
            }
            Some(_) => self.put_hole(name, moment),
        }
    }

    #[cold]
    fn put_hole(&mut self, name: KeptId, moment: Moment) -> bool {
        while let Some(missing) = self.living(name).missing {
            if !self.put_part_of_hole(name, &missing, moment) {
                return false;
            }
        }
        true
    }

    fn put_part_of_hole(&mut self, name: KeptId, missing: &Missing, moment: Moment) -> bool {
        let (count, behind) = missing.first_part(&self.living(name).position);
        self.scratch.clear();
        Hole { after: behind.totals }.encode(&mut self.scratch);
        let before = &missing.before;
        let placed = self.put_record(RunKind::Hole, before, count, Reserve::Use, moment);
        let Some((lsn, bytes)) = placed else { return false };
        let row = RunRow {
            first_seq: before.next_seq(),
            bytes_before: before.all.bytes,
            is_hole: true,
            ..RunRow::at(name.number, lsn)
        };
        self.begin_run(name, row);
        self.table.close_last(bytes, count);
        let rest = missing.count - u64::from(count);
        let rest = (rest > 0).then_some(Missing { before: behind, count: rest });
        self.living(name).missing = rest;
        self.touch(name, false, false);
        true
    }

    /// Appends a chunk. Returns false if there is no room.
    #[inline]
    fn put_chunk(
        &mut self,
        name: KeptId,
        entry: &ChunkEntry,
        payload: &[u8],
        moment: Moment,
    ) -> bool {
        loop {
            if !self.leave_reserve(moment) {
                return false;
            }
            let kept = self.catalogue.get_mut(name).expect("a running execution is kept");
            let living = kept.living.as_mut().expect("a running execution lives");
            if !self.commit.can_touch(&living.hint) {
                self.close_block(moment);
                continue;
            }
            let Some(block) = self.commit.open_block() else {
                if !self.has_chunk_room(entry.length, moment) {
                    return false;
                }
                continue;
            };
            let bytes_before = living.position.all.bytes;
            let Ok(appended) = block.runs.append_chunk(&mut living.position, entry, payload) else {
                self.close_block(moment);
                continue;
            };
            if let Appended::Began { lsn, closed } = appended {
                if let Some(closed) = closed {
                    self.table.close_last(closed.bytes, closed.count);
                }
                let first_seq = entry.seq;
                let row = RunRow { first_seq, bytes_before, ..RunRow::at(name.number, lsn) };
                self.begin_run(name, row);
            }
            let is_awaited = self.living(name).durability.is_synced();
            self.touch(name, is_awaited, false);
            return true;
        }
    }

    fn begin_run(&mut self, name: KeptId, row: RunRow) {
        let part = self.part_from(name, row.first_seq);
        self.table.push(part, row);
    }

    /// Appends the record whose body is in `scratch`. Returns its place, or `None` without room.
    pub(super) fn put_record(
        &mut self,
        kind: RunKind,
        position: &Position,
        count: u32,
        reserve: Reserve,
        moment: Moment,
    ) -> Option<(Lsn, u32)> {
        if self.fault.is_some() {
            return None;
        }
        loop {
            if !self.commit.can_touch(&TouchHint::default()) {
                self.close_block(moment);
            }
            if reserve == Reserve::Keep && !self.leave_reserve(moment) {
                return None;
            }
            let Some(block) = self.commit.open_block() else {
                let bytes = RUN_HEADER_BYTES + TOTALS_BYTES_MAX + 16 + self.scratch.len() as u32;
                if !self.begin_block(bytes, reserve, moment) {
                    return None;
                }
                continue;
            };
            if let Some(closed) = block.runs.close_run() {
                self.table.close_last(closed.bytes, closed.count);
            }
            match block.runs.append_record(kind, position, count, &self.scratch) {
                Ok(placed) => return Some(placed),
                Err(_) => self.close_block(moment),
            }
        }
    }

    /// The part of an execution in the present segment.
    pub(super) fn part_of(&mut self, name: KeptId) -> u32 {
        let first_seq = self.catalogue.get(name).expect("it is kept").recorded().0;
        self.part_from(name, first_seq)
    }

    fn part_from(&mut self, name: KeptId, first_seq: u64) -> u32 {
        let kept = self.catalogue.get_mut(name).expect("it is kept");
        *kept.part.get_or_insert_with(|| self.table.add_part(name.index, first_seq))
    }

    pub(super) fn touch(&mut self, name: KeptId, is_awaited: bool, ends: bool) {
        let kept = self.catalogue.get_mut(name).expect("it is kept");
        let living = kept.living.as_mut().expect("it lives");
        let until_seq = living.recorded_seq();
        let touch = Touch { kept: name.index, until_seq, ends };
        self.commit.touch(touch, is_awaited, &mut living.hint);
    }

    fn close_block(&mut self, moment: Moment) {
        let moment = Moment { wall_us: self.ages.wall_us(moment), ..moment };
        if let Some(closed) = self.commit.close(moment) {
            self.table.close_last(closed.bytes, closed.count);
        }
        self.table.last_us = moment.wall_us;
    }

    /// True if the open block, or one that begins now, takes chunks.
    fn has_chunk_room(&mut self, length: u32, moment: Moment) -> bool {
        let bytes = RUN_HEADER_BYTES + TOTALS_BYTES_MAX + chunk_bytes(length);
        self.leave_reserve(moment)
            && (self.commit.has_open() || self.begin_block(bytes, Reserve::Keep, moment))
    }

    /// Closes the open block if it is in the reserve and the next segment is ready. Returns false
    /// if it stays there.
    #[inline]
    fn leave_reserve(&mut self, moment: Moment) -> bool {
        if !self.commit.is_in_reserve() {
            return true;
        }
        if self.can_roll() {
            self.close_block(moment);
        }
        !self.commit.is_in_reserve()
    }

    fn can_roll(&self) -> bool {
        self.segments.next == Next::Ready && self.sealing.is_none() && self.spare.is_some()
    }

    /// Begins a block with room for a run of `run_bytes`. Returns false if there is none.
    fn begin_block(&mut self, run_bytes: u32, reserve: Reserve, moment: Moment) -> bool {
        if self.fault.is_some() || !self.commit.can_begin() {
            return false;
        }
        let needed_bytes = (BLOCK_HEADER_BYTES + run_bytes).next_multiple_of(JOURNAL_PAGE_BYTES);
        assert!(needed_bytes <= JOURNAL_BLOCK_BYTES_MAX);
        let free_bytes = self.commit.free_bytes();
        if free_bytes < needed_bytes {
            return false; // C5
        }
        let floor_bytes = needed_bytes.max(BLOCK_BYTES_MIN.min(self.setup.segment_bytes / 32));
        let mut room_bytes = self.room_bytes(Reserve::Keep);
        if room_bytes < floor_bytes && self.roll() {
            room_bytes = self.room_bytes(Reserve::Keep);
        }
        let is_reserve = room_bytes < needed_bytes && reserve == Reserve::Use;
        if is_reserve {
            room_bytes = self.room_bytes(Reserve::Use);
        }
        if room_bytes < needed_bytes {
            self.counters.roll_waits += 1;
            return false;
        }
        self.commit.begin(room_bytes.min(free_bytes), is_reserve, moment.now);
        true
    }

    /// Size of the largest block for which the present segment has room, with its index.
    fn room_bytes(&self, reserve: Reserve) -> u32 {
        let pages = |runs: usize, parts: usize| {
            runs / RUNS_PER_PAGE + parts / EXECUTIONS_PER_PAGE + 3 // With the trailer.
        };
        let parts = self.table.parts.len();
        let index_bytes = pages(self.table.run_count(), parts) as u32 * JOURNAL_PAGE_BYTES;
        let used_bytes = self.commit.next_lsn().offset_bytes() + index_bytes;
        let reserved_bytes = match reserve {
            Reserve::Keep => JOURNAL_RECORD_RESERVE_BYTES.min(self.setup.segment_bytes / 16),
            Reserve::Use => 0,
        };
        let left_bytes = self.setup.segment_bytes.saturating_sub(used_bytes + reserved_bytes);
        // The index of a block of the shortest runs is longer than the block itself.
        let room_bytes = (left_bytes / 4).min(self.table.room() as u32 * RUN_BYTES_MIN);
        room_bytes.min(JOURNAL_BLOCK_BYTES_MAX) / JOURNAL_PAGE_BYTES * JOURNAL_PAGE_BYTES
    }

    /// Moves to the next segment. Returns false if it is not ready.
    fn roll(&mut self) -> bool {
        if !self.can_roll() {
            return false;
        }
        let Some(mut table) = self.spare.take() else { return false };
        let end = self.commit.next_lsn();
        let next = self.segments.current + 1;
        table.begin(next);
        let full = std::mem::replace(&mut self.table, table);
        self.commit.roll(Lsn::new(next, JOURNAL_PAGE_BYTES));
        (self.segments.current, self.segments.next) = (next, Next::Absent);
        self.seal(full, end);
        true
    }

    fn seal(&mut self, mut full: Table, end: Lsn) {
        for (at, part) in full.parts.iter_mut().enumerate() {
            let kept = self.catalogue.at_mut(part.kept).expect("a part belongs to an execution");
            assert!(kept.part == Some(at as u32));
            assert!(kept.sealing_part.is_none());
            (kept.part, kept.sealing_part) = (None, Some(at as u32));
            (part.until_seq, part.bytes_until) = kept.recorded();
        }
        let trailer = Trailer {
            journal: self.setup.journal,
            segment_number: end.segment_number(),
            data_end_bytes: end.offset_bytes(),
            execution_count: full.parts.len() as u32,
            run_count: full.run_count() as u32,
            chunk_count: full.chunk_count,
            last_us: full.last_us,
        };
        self.sealing = Some(Sealing::new(full, trailer));
    }

    /// Goes on after a part of an index was written.
    fn sealed_more(&mut self, moment: Moment) {
        let sealing = self.sealing.as_mut().expect("an index was written");
        sealing.is_writing = false;
        if !sealing.is_last {
            return;
        }
        let Sealing { table, trailer, .. } = self.sealing.take().expect("it was just there");
        seal::note_extents(&table, trailer.segment_number, &mut self.catalogue);
        self.segments.sealed.push_back(Sealed {
            number: trailer.segment_number,
            last_us: trailer.last_us,
            execution_pages: trailer.execution_pages(),
            index_pages: trailer.index_pages(),
            data_end_bytes: trailer.data_end_bytes,
        });
        self.spare = Some(table);
        if self.segments.sealed.len() == 1 {
            self.plan_look(moment);
        }
    }
}

/// Number of bytes of the totals of all kinds.
const TOTALS_BYTES_MAX: u32 = 16 * KINDS_MAX as u32;

const _: () = {
    // The longest chunk fits in a block of its own.
    assert!(CHUNK_ENTRY_BYTES + RUN_HEADER_BYTES + TOTALS_BYTES_MAX < JOURNAL_PAGE_BYTES);
    assert!(BLOCK_BYTES_MIN <= JOURNAL_RECORD_RESERVE_BYTES);
};

pub(super) fn place(lsn: Lsn, bytes: u32) -> RecordPlace {
    RecordPlace { offset_bytes: lsn.offset_bytes(), bytes }
}

impl fmt::Debug for Journal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Journal")
            .field("setup", &self.setup)
            .field("next", &self.commit.next_lsn())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
