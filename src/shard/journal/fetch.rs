//! Gives subscribers the chunks that the ring no longer holds, from the disk.
//!
//! The engine asks for a stretch (`Action::Fetch`), and is told what has become of it
//! (`Event::Fetched`). In between, a [`Fetching`] looks for the place of the first chunk, reads its
//! run, and gives what is intact. A turn gives 4 KiB, so that old chunks do not delay new ones, and
//! 64 KiB if none are published. The runs that were given last stay in memory. A subscriber may
//! take a few chunks at a time, and others may read the same stretch.
//!
//! A reader on another thread asks by itself (`shard/reader/refill.rs`), and is answered likewise.
//!
//! The reads are in `reads.rs`, and what cannot be given in `lost.rs`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::files::PartRead;
use super::held::{RunRead, Wanted};
use super::keeping::Keeping;
use super::lost::{
    Loss, answer_lost, look_behind, lose_damaged, lose_hole, not_there, totals_before,
};
use super::reads::{Finished, Within};
use super::recall::{self, RECORD_BIT};
use crate::base::planted::{Planted, planted};
use crate::base::{Handle, PageBuffer, SubscriberId};
use crate::engine::{Event, Fetched};
use crate::journal::block::{Chunks, Run, Unreadable};
use crate::journal::format::{ChunkEntry, KeptChunk, Lsn, RunKind};
use crate::journal::index::RunRow;
use crate::journal::{Found, KeptId, Place, Search, place_of};
use crate::limits;
use crate::memory::{ChunkHeader, ClockAnchor, Descriptor};
use crate::reactor::Reactor;
use crate::shard::act::{self, end_panicked};
use crate::shard::delivery::{Chunk, Delivery};
use crate::shard::outlet::{Giving, Outlet, Question};
use crate::shard::produce;
use crate::shard::reader::refill::{LostStretch, News, Refilled, Wish};
use crate::shard::{Call, Item, KeptItem, Shard};
use crate::stream::{GapReason, KindTotals, Kinds, Totals};

/// One question of the engine, until it is answered.
pub(super) struct Fetching {
    pub(super) subscriber: SubscriberId,
    pub(super) execution: Handle,
    kept: KeptId,
    pub(super) from_seq: u64,
    pub(super) until_seq: u64,
    /// Totals of the chunks of the subscriber's kinds before the first, if it has said so.
    pub(super) seen: Option<Totals>,
    chunks_max: u32,
    pub(super) goal: Goal,
    step: Step,
    /// Totals of the chunks of earlier runs that a reader on another thread was given.
    refilled: Totals,
}

/// The chunk that is looked for, and the reason.
#[derive(Clone, Copy)]
pub(super) enum Goal {
    /// The first chunk of the stretch.
    Chunks,
    /// The totals before the stretch, which is lost.
    Before(Loss),
    /// The totals behind the stretch.
    Behind(Loss),
}

/// The thing that is waited for.
#[derive(Clone, Copy)]
enum Step {
    /// The chunk is on its way to the disk.
    Soon,
    /// A page of an index.
    Page(Search),
    /// A run in memory, or on its way there.
    Run(usize, RunRow),
}

impl Keeping {
    /// Reads a part of a segment for a question, as soon as there are not too many reads.
    pub(super) fn read<R: Reactor>(&mut self, name: u64, lsn: Lsn, bytes: u32, reactor: &mut R) {
        if self.reads.under_way >= limits::JOURNAL_READS_MAX {
            self.reads.waiting.push_back((name, lsn, bytes));
            return;
        }
        self.reads.under_way += 1;
        let buffer = self.reads.buffer(bytes);
        let is_fresh = false;
        self.files.read(PartRead { name, lsn, bytes, buffer, is_fresh }, reactor);
    }

    pub(super) fn fetching(&mut self, name: u64) -> &mut Fetching {
        self.fetches.get_mut(name as usize).expect("a question stays until it is answered")
    }
}

impl Fetching {
    /// The chunk whose place is looked for.
    pub(super) fn seq(&self) -> u64 {
        match self.goal {
            Goal::Chunks => self.from_seq,
            Goal::Before(_) => self.from_seq - 1,
            Goal::Behind(loss) => loss.behind_seq,
        }
    }
}

/// Begins to give a subscriber what the engine has asked for.
#[cold]
pub(crate) fn begin<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    subscriber: SubscriberId,
    execution: Handle,
    seqs: (u64, u64),
    chunks_max: u32,
) {
    let seen = shard.engine.seen_before_fetch(subscriber);
    let (from_seq, until_seq) = seqs;
    ask(shard, Question { subscriber, execution, from_seq, until_seq, chunks_max, seen });
}

/// Begins to answer a question.
fn ask<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, question: Question) {
    let Question { subscriber, execution, from_seq, until_seq, chunks_max, seen } = question;
    let Some(kept) = act::run_mut(shard, execution).kept else {
        return O::look_back(shard, question);
    };
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let (goal, step) = (Goal::Chunks, Step::Soon);
    let refilled = Totals::ZERO;
    let fetching = Fetching {
        subscriber,
        execution,
        kept,
        from_seq,
        until_seq,
        seen,
        chunks_max,
        goal,
        step,
        refilled,
    };
    let name = keeping.fetches.insert(fetching) as u64;
    look(shard, name);
}

/// Answers readers on other threads that have asked for chunks from the disk. Tells the engine of
/// those that have come level, and of those that are so no longer.
#[cold]
pub(crate) fn refill<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let runs = shard.runs.iter().flatten();
    let news = runs.flat_map(|run| run.readers_news().map(|(id, news)| (id, run.handle, news)));
    let news: Vec<(SubscriberId, Handle, News)> = news.collect();
    for (subscriber, execution, News { wish, is_level }) in news {
        if let Some(is_level) = is_level {
            produce::sample_readers(shard, execution.index);
            shard.tell(Event::ReaderLevel(subscriber, is_level));
        }
        let Some(Wish { seq: from_seq, seen }) = wish else { continue };
        let head_seq = act::run_mut(shard, execution).ingested_seq;
        assert!(from_seq <= head_seq); // Nothing else is overwritten (S2).
        let until_seq = head_seq + 1;
        let chunks_max = limits::DELIVERY_CHUNKS_MAX;
        ask(shard, Question { subscriber, execution, from_seq, until_seq, chunks_max, seen });
    }
}

/// Looks for the place of the chunk that a question needs next.
pub(super) fn look<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, name: u64) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let fetching = &keeping.fetches[name as usize];
    let (kept, seq, until_seq) = (fetching.kept, fetching.seq(), fetching.until_seq);
    if let (Goal::Chunks, subscriber) = (fetching.goal, fetching.subscriber)
        && keeping.journal.get(kept).is_some_and(|kept| !kept.is_deleted)
        && let Some((segment_number, row)) = keeping.reads.run_of(subscriber, seq)
    {
        return on_place(shard, name, place_of(segment_number, row));
    }
    // An execution that was deleted has lost everything that it had.
    let gone = Place::Expired { until_seq: until_seq.max(seq + 1) };
    let place = keeping.journal.locate(kept, seq).unwrap_or(gone);
    on_place(shard, name, place);
}

/// Goes on with a question whose place is known.
fn on_place<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, name: u64, place: Place) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let &mut Fetching { refilled, from_seq, .. } = keeping.fetching(name);
    if refilled != Totals::ZERO && !matches!(place, Place::Run { .. }) {
        let result = Fetched::Given { totals: Totals::ZERO, last_seq: 0 };
        return answer(shard, name, from_seq, result); // It need not wait for what follows.
    }
    match place {
        Place::Soon => {
            keeping.fetching(name).step = Step::Soon;
            keeping.reads.soon.push_back(name);
            keeping.is_touched = true; // The journal wants to write it now.
        }
        Place::Search(search) => {
            keeping.fetching(name).step = Step::Page(search);
            keeping.read(name, search.page(), limits::JOURNAL_PAGE_BYTES, &mut shard.reactor);
        }
        Place::Run { segment_number, row }
        | Place::Hole { record: Some((segment_number, row)), .. } => {
            let lsn = Lsn::new(segment_number, row.offset_bytes);
            let (key, wanted) = keeping.reads.runs.want(lsn, name);
            keeping.fetching(name).step = Step::Run(key, row);
            match wanted {
                Wanted::Absent => keeping.read(name, lsn, row.bytes, &mut shard.reactor),
                Wanted::Coming => {}
                Wanted::Here => on_recent(shard, name),
                Wanted::Lent => keeping.reads.ready.push_back(name),
            }
        }
        Place::Hole { until_seq, .. } => not_there(shard, name, GapReason::Unwritten, until_seq),
        Place::Expired { until_seq } => not_there(shard, name, GapReason::Expired, until_seq),
        Place::Corrupt { until_seq } => not_there(shard, name, GapReason::Corrupt, until_seq),
    }
}

/// Goes on with a question whose run is in memory. A few chunks are given at once.
fn on_recent<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, name: u64) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let &mut Fetching { chunks_max, refilled, .. } = keeping.fetching(name);
    let is_small = chunks_max <= limits::DELIVERY_CHUNKS_MAX && refilled == Totals::ZERO;
    match is_small && keeping.reads.left_bytes > 0 {
        true => on_ready(shard, name),
        false => keeping.reads.ready.push_back(name),
    }
}

pub(super) fn answer<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    name: u64,
    until_seq: u64,
    result: Fetched,
) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let Fetching { subscriber, execution, from_seq, .. } = keeping.fetches.remove(name as usize);
    tell(shard, (subscriber, execution), (from_seq, until_seq), result);
}

/// Tells a subscriber what has become of the stretch `from_seq..until_seq` that was asked for.
pub(crate) fn tell<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    (subscriber, execution): (SubscriberId, Handle),
    (from_seq, until_seq): (u64, u64),
    result: Fetched,
) {
    let Call::Refill(refill) = &shard.sinks[subscriber.0.index as usize].call else {
        shard.tell(Event::Fetched { subscriber, from_seq, until_seq, result });
        return;
    };
    refill.finish(match result {
        Fetched::Given { .. } => Refilled::Passed(until_seq),
        Fetched::Lost { reason, totals } => {
            Refilled::Lost(LostStretch { from_seq, until_seq, reason, totals })
        }
    });
    act::run_mut(shard, execution).knock_for(subscriber);
}

/// Takes the reads that have ended. Runs are given later in the turn.
pub(super) fn on_reads<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    finished: Finished,
) {
    for (name, result, buffer) in finished {
        let Some(keeping) = shard.keeping.as_deref_mut() else { return };
        let buffer = buffer.expect("a read has one");
        keeping.reads.under_way -= 1;
        if name & RECORD_BIT != 0 {
            recall::on_record(shard, name, result, &buffer);
            give_back(shard, buffer);
            begin_waiting(shard);
            continue;
        }
        match keeping.fetching(name).step {
            Step::Page(mut search) => {
                let is_whole = result == Ok(limits::JOURNAL_PAGE_BYTES);
                let page = &buffer[..limits::JOURNAL_PAGE_BYTES as usize];
                let found = match is_whole {
                    true => search.on_page(page),
                    false => Found::Place(search.give_up()),
                };
                let place = match found {
                    Found::Again => Place::Search(search),
                    Found::Place(place) => place,
                };
                let &mut Fetching { subscriber, goal, .. } = keeping.fetching(name);
                if let (Place::Run { segment_number, row }, Goal::Chunks) = (place, goal) {
                    let rows = search.runs_from(page, &row, limits::JOURNAL_KNOWN_RUNS);
                    keeping.reads.note_runs(subscriber, segment_number, rows);
                }
                keeping.reads.give_back(buffer);
                if is_there(shard, name) {
                    on_place(shard, name, place);
                }
            }
            Step::Run(key, row) => {
                let read = match result {
                    Ok(bytes) if bytes == row.bytes => RunRead::Whole,
                    Err(io::ErrorKind::NotFound) => RunRead::Removed,
                    Ok(_) | Err(_) => RunRead::Failed,
                };
                let waiting = keeping.reads.runs.arrive(key, read, buffer);
                keeping.reads.ready.extend(waiting);
            }
            Step::Soon => unreachable!("nothing was read for it"),
        }
        begin_waiting(shard);
    }
    if let Some(keeping) = shard.keeping.as_deref_mut() {
        keeping.reads.may_have_arrived = true;
    }
}

fn give_back<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, buffer: PageBuffer) {
    if let Some(keeping) = shard.keeping.as_deref_mut() {
        keeping.reads.give_back(buffer);
    }
}

/// Begins a read that has waited for others to end.
fn begin_waiting<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    if let Some((name, lsn, bytes)) = keeping.reads.waiting.pop_front() {
        keeping.read(name, lsn, bytes, &mut shard.reactor);
    }
}

/// True if the subscriber of a question is still there. Otherwise the question is dropped.
fn is_there<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, name: u64) -> bool {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return false };
    let subscriber = keeping.fetching(name).subscriber;
    let is_there = shard.sinks[subscriber.0.index as usize].subscriber == Some(subscriber);
    if !is_there {
        keeping.fetches.remove(name as usize);
    }
    is_there
}

/// Gives the next runs that were read, as far as a turn may, and looks again for chunks that were
/// on their way.
pub(super) fn give_next<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    if std::mem::take(&mut keeping.reads.may_have_arrived) {
        for _ in 0..keeping.reads.soon.len() {
            look_again(shard);
        }
    }
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    keeping.reads.begin_turn(shard.engine.counters().chunks_published, shard.now);
    while let Some(keeping) = shard.keeping.as_deref_mut()
        && keeping.reads.left_bytes > 0
        && let Some(name) = keeping.reads.ready.pop_front()
    {
        on_ready(shard, name);
    }
}

/// Looks again for a chunk that was on its way to the disk.
fn look_again<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    if let Some(name) = keeping.reads.soon.pop_front()
        && is_there(shard, name)
    {
        look(shard, name);
    }
}

/// Goes on with a question whose run is in memory.
fn on_ready<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, name: u64) {
    shard.worked = true;
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let &mut Fetching { step, subscriber, .. } = keeping.fetching(name);
    let Step::Run(key, row) = step else { unreachable!("a run was read") };
    let (lsn, read, buffer) = keeping.reads.runs.lend(key);
    if is_there(shard, name) {
        on_run(shard, name, (lsn, row), read, &buffer);
    }
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let is_done = keeping.reads.is_past(subscriber, row.until_seq());
    if let Some(buffer) = keeping.reads.runs.give_back(key, buffer, is_done) {
        keeping.reads.give_back(buffer);
    }
}

/// Goes on with a question whose run was read.
fn on_run<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    name: u64,
    (lsn, row): (Lsn, RunRow),
    read: RunRead,
    buffer: &PageBuffer,
) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let &mut Fetching { kept, goal, subscriber, .. } = keeping.fetching(name);
    let is_same = |place: &Place| match place {
        Place::Run { row: other, .. } | Place::Hole { record: Some((_, other)), .. } => {
            *other == row
        }
        _ => false,
    };
    if read == RunRead::Removed {
        let seq = keeping.fetching(name).seq();
        keeping.reads.note_runs(subscriber, 0, Vec::new());
        if !keeping.journal.locate(kept, seq).as_ref().is_some_and(is_same) {
            look(shard, name); // What it held has expired.
            return;
        }
    }
    let is_whole = read == RunRead::Whole;
    let journal = keeping.journal.setup().journal;
    let decoded =
        is_whole.then(|| Run::decode(journal, lsn, &buffer[..row.bytes as usize]).ok()).flatten();
    let fits = |run: &Run<'_>| {
        let RunRow { first_seq, count, .. } = row;
        let header = &run.header;
        let kind = if row.is_hole { RunKind::Hole } else { RunKind::Chunks };
        let of_row = (kind, kept.number, first_seq, count);
        (header.kind, header.execution, header.first_seq, header.count) == of_row
    };
    let Some(run) = decoded.filter(fits) else {
        let reason = if row.is_hole { GapReason::Unwritten } else { GapReason::Corrupt };
        return not_there(shard, name, reason, row.until_seq());
    };
    match goal {
        Goal::Chunks if row.is_hole => lose_hole(shard, name, &run),
        Goal::Chunks => give(shard, name, &run),
        Goal::Before(loss) => {
            let fetching = keeping.fetching(name);
            let before = totals_before(&run, fetching.from_seq);
            look_behind(shard, name, Loss { before, ..loss });
        }
        Goal::Behind(loss) => {
            let behind = totals_before(&run, loss.behind_seq);
            answer_lost(shard, name, &loss, behind);
        }
    }
}

/// The chunks of a run that are being given.
struct Handout<'a> {
    run: Run<'a>,
    chunks: Chunks<'a>,
    from_seq: u64,
    until_seq: u64,
    chunks_max: u64,
    /// It ends at this number of payload bytes of all chunks so far.
    stop_bytes: u64,
    /// Totals of the chunks that were given.
    given: Totals,
    /// The last of them.
    last_seq: u64,
    /// One past the last chunk that was passed.
    passed_until_seq: u64,
    /// The place behind it.
    within: Within,
    /// The totals of all chunks before that place, unless one of them is damaged.
    totals: Option<KindTotals>,
    /// The chunks that ended it because they are damaged.
    damage: Option<Unreadable>,
}

impl<'a> Handout<'a> {
    fn new(keeping: &Keeping, fetching: &Fetching, run: &Run<'a>, bytes_max: u32) -> Handout<'a> {
        let &Fetching { subscriber, from_seq, until_seq, chunks_max, .. } = fetching;
        let (lsn, offset_bytes, total_bytes) = (run.lsn, 0, run.header.bytes_before);
        let begin = Within { lsn, offset_bytes, total_bytes };
        let (chunks, totals, within) = match keeping.reads.within(subscriber, from_seq, lsn) {
            Some(within) => {
                let totals = keeping.reads.totals_at(subscriber, from_seq);
                (run.chunks_from(from_seq, within.offset_bytes), totals, within)
            }
            None => (run.chunks(), Some(run.before), begin),
        };
        Handout {
            run: *run,
            chunks,
            from_seq,
            until_seq,
            chunks_max: chunks_max.into(),
            stop_bytes: within.total_bytes + u64::from(bytes_max),
            given: Totals::ZERO,
            last_seq: 0,
            passed_until_seq: from_seq,
            within,
            totals,
            damage: None,
        }
    }

    /// The next chunk of the stretch.
    #[inline]
    fn next(&mut self) -> Option<KeptChunk<'a>> {
        while self.chunks.next_seq() < self.until_seq
            && self.given.chunks < self.chunks_max
            && (self.within.total_bytes < self.stop_bytes || self.passed_until_seq == self.from_seq)
        {
            match self.chunks.next()? {
                Ok(chunk) => {
                    let ChunkEntry { seq, kind, length, .. } = chunk.entry;
                    self.within.total_bytes += u64::from(length);
                    self.within.offset_bytes = self.run.offset_of(&self.chunks);
                    if let Some(totals) = &mut self.totals {
                        totals.count(kind, length);
                    }
                    if seq >= self.from_seq {
                        self.passed_until_seq = seq + 1;
                        return Some(chunk);
                    }
                }
                // It was told of that before.
                Err(lost) if lost.until_seq <= self.from_seq => {
                    self.within.total_bytes += lost.bytes;
                    self.totals = None;
                }
                Err(lost) => {
                    self.damage = Some(lost);
                    return None;
                }
            }
        }
        None
    }
}

/// Gives the chunks of a run, as many as the subscriber takes and a turn may give. The end of the
/// stretch or a damaged chunk ends it, too.
fn give<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, name: u64, run: &Run<'_>) {
    let Some(keeping) = shard.keeping.as_deref() else { return };
    let fetching = keeping.fetches.get(name as usize).expect("it stays until it is answered");
    let Fetching { subscriber, execution, kept, from_seq, until_seq, .. } = *fetching;
    // A reader on another thread has to ask again for the rest, which takes it longer.
    let is_elsewhere = matches!(shard.sinks[subscriber.0.index as usize].call, Call::Refill(_));
    let bytes_max = if is_elsewhere { u32::MAX } else { keeping.reads.left_bytes };
    let mut handout = Handout::new(keeping, fetching, run, bytes_max);
    let before_bytes = handout.within.total_bytes;
    let is_whole = give_all(shard, (subscriber, execution), |kinds| {
        loop {
            let chunk = handout.next()?;
            let ChunkEntry { seq, kind, length, .. } = chunk.entry;
            if kinds.contains(kind) {
                handout.given.count(length);
                handout.last_seq = seq;
                return Some((chunk, handout.within.total_bytes));
            }
        }
    });
    if !is_whole {
        if let Some(keeping) = shard.keeping.as_deref_mut() {
            keeping.fetches.remove(name as usize);
        }
        return;
    }
    let Handout { given: mut totals, mut last_seq, within, .. } = handout;
    let mut passed_until_seq = handout.passed_until_seq;
    if passed_until_seq == from_seq {
        let lost_until_seq = handout.damage.map_or(from_seq + 1, |lost| lost.until_seq);
        return lose_damaged(shard, name, run, lost_until_seq);
    }
    if let Some(keeping) = shard.keeping.as_deref_mut() {
        keeping.journal.note_read(kept, run.header.first_seq, run.header.bytes_before);
        let reads = &mut keeping.reads;
        reads.note(subscriber, passed_until_seq, handout.totals, Some(within));
        let passed_bytes = u32::try_from(within.total_bytes - before_bytes).unwrap_or(u32::MAX);
        reads.left_bytes = reads.left_bytes.saturating_sub(passed_bytes);
    }
    if planted(Planted::FetchRepeats) && last_seq > from_seq {
        (passed_until_seq, last_seq) = (passed_until_seq - 1, last_seq.min(passed_until_seq - 2));
    }
    if planted(Planted::FetchSkips) && passed_until_seq < until_seq {
        passed_until_seq += 1;
        totals.chunks += 1;
    }
    if is_elsewhere && refill_goes_on(shard, name, passed_until_seq, totals) {
        return look(shard, name);
    }
    answer(shard, name, passed_until_seq, Fetched::Given { totals, last_seq });
}

/// True if the answer to a reader on another thread goes on with the next run. A run can be short,
/// and each question takes both threads a while.
fn refill_goes_on<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    name: u64,
    passed_until_seq: u64,
    given: Totals,
) -> bool {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return false };
    let fetching = keeping.fetching(name);
    fetching.refilled = fetching.refilled + given;
    let Totals { chunks, bytes } = fetching.refilled;
    let has_room = bytes < limits::REFILL_BYTES && chunks < limits::REFILL_CHUNKS && chunks > 0;
    if !has_room || passed_until_seq >= fetching.until_seq {
        return false;
    }
    (fetching.from_seq, fetching.seen) = (passed_until_seq, None);
    let subscriber = fetching.subscriber;
    if let Call::Refill(refill) = &shard.sinks[subscriber.0.index as usize].call {
        refill.pass(passed_until_seq);
    }
    true
}

/// Gives a subscriber the chunks that `next` returns, each with the payload bytes through it. They
/// are of the kinds that `next` is told. Returns false if the subscriber has panicked.
pub(crate) fn give_all<'a, R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    (subscriber, execution): (SubscriberId, Handle),
    mut next: impl FnMut(Kinds) -> Option<(KeptChunk<'a>, u64)>,
) -> bool {
    let kinds = shard.sinks[subscriber.0.index as usize].kinds;
    shard.guests.begin_fan_out(&shard.engine, execution);
    shard.calling = Some(subscriber);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        while let Some((chunk, total_bytes)) = next(kinds) {
            give_chunk(shard, (subscriber, execution), &chunk, total_bytes);
        }
    }));
    if let Err(panic) = outcome {
        end_panicked(shard, panic);
        return false;
    }
    shard.calling = None;
    O::flush_if_due(shard);
    true
}

/// Gives a chunk to a subscriber.
fn give_chunk<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    (subscriber, execution): (SubscriberId, Handle),
    chunk: &KeptChunk<'_>,
    total_bytes: u64,
) {
    let &KeptChunk { ref entry, payload } = chunk;
    let run = shard.runs[execution.index as usize].as_ref().expect("it is followed");
    let clocks = run.anchor.filter(|_| !(run.is_replica && planted(Planted::ForeignClock)));
    let anchor: ClockAnchor = clocks.unwrap_or(shard.anchor);
    let ChunkEntry { seq, mono_ns, length, kind, key, flags } = *entry;
    let header = ChunkHeader { kind: kind as u8, key, flags };
    let descriptor = Descriptor::apart(seq, total_bytes, mono_ns, length, header);
    let chunk = Chunk::new(run.id, run.chunks_expected, &descriptor, payload, anchor);
    let chunk = chunk.expect("its kind was checked when it was read");
    match &mut shard.sinks[subscriber.0.index as usize].call {
        Call::Closure(call) => call(&Delivery::Chunk(chunk)),
        Call::Polled(inbox) => {
            let (id, chunks_expected) = (run.id, run.chunks_expected);
            let bytes = payload.into();
            let item = KeptItem { id, chunks_expected, descriptor, anchor, bytes };
            inbox.borrow_mut().push_back(Item::Kept(Box::new(item)));
        }
        Call::Guest(key) => {
            shard.guests.begin_chunk();
            let giving = Giving {
                reactor: &mut shard.reactor,
                counters: &mut shard.counters,
                engine: &shard.engine,
                execution,
                names: &run.names,
                now: shard.now,
                is_recent: false,
            };
            shard.guests.deliver(*key, subscriber, &chunk, giving);
        }
        Call::Refill(refill) => refill.give(descriptor, payload),
        Call::Nobody => {}
    }
    shard.counters.count_given(1, length);
}
