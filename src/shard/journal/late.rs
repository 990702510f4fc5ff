//! Executions that wait for the disk: `deliver: when_durable`, `on_full: wait` and
//! `on_full: pause`.
//!
//! Their engine is told late. The head of the ring runs ahead of what the engine knows.
//! [`ingest_late`] appends as many chunks as the journal has room for, and tells the engine of
//! those that may be given. It is called when the producer has published, and when the disk has
//! moved. Nothing is overwritten that the engine was not told of (S2). A full ring therefore makes
//! the producer wait, as a slow reader does.
//!
//! An execution is given up when the disk fails, and when the journal has no room for its next
//! chunk for the block deadline. It fails then. Under `when_durable` its last chunks are dropped,
//! because nobody may see them. Otherwise they count as missing on the disk, because readers on
//! other threads may have seen them. Under `pause` it goes on instead, and no more is waited for.
//! An execution that goes on after a restart waits for room for its whole life, unless it has a
//! deadline of its own.
//!
//! Invariants:
//! - W3: the engine knows no chunk that the journal does not have, or counts as missing. Under
//!   `when_durable` it knows none that is not durable.
//! - W4: the engine is told the end of the producer after the last chunk. A cancelled execution
//!   ends when its chunks are told, as every end waits for the disk (W2).

use std::time::Duration;

use super::keeping::Keeping;
use crate::base::planted::{Planted, planted};
use crate::base::{Handle, Instant};
use crate::engine::Event;
use crate::journal::KeptId;
use crate::limits;
use crate::reactor::Reactor;
use crate::shard::act::{self, read_chunk};
use crate::shard::outlet::{GuestRun, Outlet};
use crate::shard::run::{Ring, Run};
use crate::shard::{Shard, produce};
use crate::stream::{Deliver, OnFull};
use crate::tool::ToolError;

/// The wait of an execution for the disk.
pub struct Late {
    deliver: Deliver,
    /// Time for which the journal may have no room for a chunk.
    full_max: Duration,
    /// True if the execution fails after this time, and with the disk.
    can_fail: bool,
    /// The last chunk that the journal has, or counts as missing.
    appended_seq: u64,
    /// The newest chunk at the last look.
    seen_seq: u64,
    /// The last chunk that the engine will be told of, once the execution is given up.
    last_seq: u64,
    /// The time since which the journal has no room for the next chunk, or the log of the cluster
    /// has not moved.
    full_since: Option<Instant>,
    /// One past the last chunk that the log had at the last look, if it is awaited.
    logged_until: Option<u64>,
    is_given_up: bool,
    /// True if it is in the list of those that the disk has to move for.
    is_listed: bool,
    end: LateEnd,
}

/// The end of a producer whose chunks are told late.
enum LateEnd {
    /// It goes on.
    Unknown,
    /// The engine is told when it knows all chunks.
    Known(Result<(), ToolError>),
    /// Nothing follows.
    Told,
}

impl Late {
    /// The wait of an execution whose chunks through `head_seq` the engine knows.
    pub(crate) fn new(
        (deliver, on_full): (Deliver, OnFull),
        full_max: Duration,
        head_seq: u64,
    ) -> Late {
        let can_fail = on_full != OnFull::Pause || deliver == Deliver::WhenDurable;
        let full_max = if can_fail { full_max } else { limits::JOURNAL_PAUSE };
        Late {
            deliver,
            full_max,
            can_fail,
            appended_seq: head_seq,
            seen_seq: head_seq,
            last_seq: u64::MAX,
            full_since: None,
            logged_until: None,
            is_given_up: false,
            is_listed: false,
            end: LateEnd::Unknown,
        }
    }

    /// Notes that nothing more is waited for. `durable_seq` is the last durable chunk.
    fn give_up(&mut self, durable_seq: Option<u64>) {
        self.is_given_up = true;
        if self.deliver == Deliver::WhenDurable {
            self.last_seq = durable_seq.map_or(self.appended_seq, |seq| seq.min(self.appended_seq));
        }
    }
}

/// True if an execution fails when the disk does, whatever its durability is.
pub(crate) fn fails_with_disk<X: GuestRun>(run: &Run<X>) -> bool {
    run.late.as_ref().is_some_and(|late| late.can_fail)
}

/// True if nothing more is waited for.
pub(super) fn is_given_up<X: GuestRun>(run: &Run<X>) -> bool {
    run.late.as_ref().is_some_and(|late| late.is_given_up)
}

/// True if only durable chunks may be seen, so that nobody else may look into the ring.
pub(crate) fn shows_only_durable<X: GuestRun>(run: &Run<X>) -> bool {
    run.late.as_ref().is_some_and(|late| late.deliver == Deliver::WhenDurable)
}

/// True if the journal has all chunks of an execution, or counts them as missing.
pub(crate) fn has_recorded<X: GuestRun>(run: &Run<X>) -> bool {
    run.late.as_ref().is_none_or(|late| late.appended_seq >= run.head_seq())
}

/// Checks what can be checked of W3 and W4 without the journal.
pub(crate) fn audit_late<X: GuestRun>(run: &Run<X>) {
    let Some(late) = run.late.as_deref() else { return };
    assert!(run.ingested_seq <= late.appended_seq);
    assert!(late.appended_seq <= run.head_seq());
    // A tool's thread may have published since the last look.
    let is_behind = run.ingested_seq < late.seen_seq.min(late.last_seq);
    assert!(!is_behind || late.is_listed || matches!(late.end, LateEnd::Told));
    assert!(is_behind || !matches!(late.end, LateEnd::Known(_)));
}

/// Appends what was published, and tells the engine what may be given by now.
#[cold]
pub(crate) fn ingest_late<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, index: u32) {
    let Some(run) = shard.runs[index as usize].as_mut() else { return };
    let (handle, was_blocked, told_seq) = (run.handle, run.blocked, run.ingested_seq);
    let Some(until_seq) = append(shard, index) else { return };
    produce::ingest_through(shard, index, |_| until_seq);
    let run = shard.runs[index as usize].as_ref().filter(|run| run.handle == handle);
    let Some(run) = run else { return };
    let gate = run.gate;
    if run.ingested_seq > told_seq && was_blocked {
        shard.tell(Event::DiskMoved(handle));
        act::set_gate(shard, handle, gate); // It looks again.
    }
    tell_end_if_due(shard, handle);
}

/// Appends what there is room for. Returns the last chunk that the engine may be told of; `None`
/// once it was told the end.
fn append<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, index: u32) -> Option<u64> {
    let run = shard.runs[index as usize].as_mut()?;
    let (handle, head_seq) = (run.handle, run.head_seq());
    let late = run.late.as_deref_mut().expect("it is told late");
    if let LateEnd::Told = late.end {
        return None;
    }
    let is_active = std::mem::replace(&mut late.seen_seq, head_seq) < head_seq;
    let (Some(kept), Some(keeping)) = (run.kept, shard.keeping.as_deref_mut()) else {
        return Some(head_seq); // The process ends, and nobody is left.
    };
    let is_over = keeping.journal.fault().is_some() || keeping.logs.is_over(kept);
    if is_over && !late.is_given_up {
        late.give_up(keeping.durable_seq(kept));
    }
    append_chunks(run, keeping, kept, &mut shard.scratch, shard.now);
    let late = run.late.as_deref_mut().expect("it is told late");
    let is_overdue = late.is_overdue(kept, head_seq, shard.now, keeping);
    let (full_seq, full_max, can_fail) = (late.appended_seq + 1, late.full_max, late.can_fail);
    let logged_until = late.logged_until;
    if is_overdue {
        late.give_up(logged_until.and_then(|_| keeping.durable_seq(kept)));
        append_chunks(run, keeping, kept, &mut shard.scratch, shard.now);
    }
    let until_seq = last_to_tell(run, keeping, kept);
    list_if_waiting(run, keeping, until_seq);
    let wakes = run.has_readers_elsewhere() && !shard.published.contains(&index);
    if is_active && wakes && keeping.logs.has(kept) {
        shard.published.push(index); // The log has to move before the engine is told.
    }
    if is_active {
        let tail_seq = tail_seq(&run.ring);
        shard.tell(Event::HeldFrom(handle, tail_seq)); // Newer chunks have taken older ones' place.
        shard.tell(Event::ActiveAt(handle, shard.now)); // Its producer is not silent.
    }
    if is_overdue && can_fail {
        let text = match logged_until {
            None => {
                format!("journal_full: there was no room for chunk {full_seq} within {full_max:?}")
            }
            Some(seq) => format!(
                "cluster_away: the log of the cluster did not take chunk {seq} within {full_max:?}"
            ),
        };
        shard.tell(Event::NotKept(handle, &text));
    }
    Some(until_seq)
}

impl Late {
    /// Looks whether the journal has had no room for the next chunk for too long. The log of the
    /// cluster may stand still for as long.
    fn is_overdue(
        &mut self,
        kept: KeptId,
        head_seq: u64,
        now: Instant,
        keeping: &mut Keeping,
    ) -> bool {
        let logged_until = keeping.logs.until_seq(kept).filter(|until| *until <= self.appended_seq);
        if std::mem::replace(&mut self.logged_until, logged_until) != logged_until {
            self.full_since = None;
        }
        let is_waiting = self.appended_seq < head_seq || logged_until.is_some();
        if self.is_given_up || !is_waiting {
            self.full_since = None;
            return false;
        }
        let until = *self.full_since.get_or_insert(now) + self.full_max;
        keeping.look_again_at(until);
        until <= now
    }
}

/// Appends chunks to the journal, until it has no room. The others count as missing if the
/// execution was given up.
fn append_chunks<X: GuestRun>(
    run: &mut Run<X>,
    keeping: &mut Keeping,
    kept: KeptId,
    scratch: &mut [u8],
    now: Instant,
) {
    let late = run.late.as_deref().expect("it is told late");
    let (before_seq, is_given_up) = (late.appended_seq, late.is_given_up);
    let until_seq = run.head_seq().min(late.last_seq);
    let moment = keeping.moment(now);
    let mut appended_seq = before_seq;
    while appended_seq < until_seq && !run.is_end_recorded {
        // Nothing is overwritten that the engine was not told of (S2).
        let Ok((descriptor, payload)) = read_chunk(run, appended_seq + 1, scratch) else {
            panic!("a chunk of {} was overwritten before the engine knew of it", run.id);
        };
        if is_given_up {
            keeping.append((kept, run.anchor), &descriptor, payload, moment);
        } else if !keeping.try_append((kept, run.anchor), &descriptor, payload, moment) {
            break;
        }
        appended_seq += 1;
    }
    let late = run.late.as_deref_mut().expect("it is told late");
    late.appended_seq = appended_seq;
    if appended_seq > before_seq && late.logged_until.is_none() {
        late.full_since = None;
    }
}

/// The last chunk that the engine may be told of (W3).
fn last_to_tell<X: GuestRun>(run: &Run<X>, keeping: &mut Keeping, kept: KeptId) -> u64 {
    let late = run.late.as_deref().expect("it is told late");
    let shows_all = late.deliver == Deliver::AtOnce || planted(Planted::ShownBeforeDurable);
    let durable_seq = match shows_all {
        true => late.appended_seq,
        false => keeping.durable_seq(kept).unwrap_or(0).min(late.appended_seq),
    };
    if durable_seq < late.appended_seq {
        keeping.await_promise(kept);
    }
    durable_seq.min(late.last_seq).max(run.ingested_seq)
}

/// Lists an execution that the disk has to move for.
fn list_if_waiting<X: GuestRun>(run: &mut Run<X>, keeping: &mut Keeping, until_seq: u64) {
    let head_seq = run.head_seq();
    let late = run.late.as_deref_mut().expect("it is told late");
    if until_seq < head_seq.min(late.last_seq) && !std::mem::replace(&mut late.is_listed, true) {
        keeping.late.push(run.handle);
    }
}

fn tail_seq(ring: &Ring) -> u64 {
    match ring {
        Ring::Here(writer) | Ring::Back(writer) => writer.tail_seq(),
        Ring::Away(reader) => reader.tail_seq(),
        Ring::None => unreachable!("an execution with chunks has a ring"),
    }
}

/// Keeps the end of a producer, until the engine knows all its chunks (W4).
pub(crate) fn end_late<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
    result: Result<(), ToolError>,
) {
    let late = act::run_mut(shard, execution).late.as_deref_mut().expect("it is told late");
    if let LateEnd::Unknown = late.end {
        late.end = LateEnd::Known(result); // A stop after it changes nothing.
    }
    ingest_late(shard, execution.index);
}

/// Tells the engine the end of a producer, if it knows all chunks, or if nobody is left.
fn tell_end_if_due<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, execution: Handle) {
    let is_closing = shard.closing;
    let run = act::run_mut(shard, execution);
    let (head_seq, told_seq) = (run.head_seq(), run.ingested_seq);
    let late = run.late.as_deref_mut().expect("it is told late");
    if told_seq < head_seq.min(late.last_seq) && !is_closing {
        return;
    }
    if let LateEnd::Known(_) = late.end
        && let LateEnd::Known(result) = std::mem::replace(&mut late.end, LateEnd::Told)
    {
        produce::tell_end(shard, execution, &result);
    }
}

/// Looks again at all executions that wait for the disk, because it has moved, or because one of
/// them has waited for too long.
pub(super) fn look_again<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    keeping.full_until = None;
    for at in (0..keeping.late.len()).rev() {
        let Some(keeping) = shard.keeping.as_deref() else { return };
        let Some(&handle) = keeping.late.get(at) else { continue };
        let is_there = |run: &&mut Run<O::Run>| run.handle == handle;
        if shard.runs[handle.index as usize].as_mut().filter(is_there).is_some() {
            ingest_late(shard, handle.index);
        }
        let run = shard.runs[handle.index as usize].as_mut().filter(is_there);
        if run.is_none_or(|run| !still_waits(run))
            && let Some(keeping) = shard.keeping.as_deref_mut()
        {
            keeping.late.swap_remove(at);
        }
    }
}

/// True if an execution stays in the list.
fn still_waits<X: GuestRun>(run: &mut Run<X>) -> bool {
    let (head_seq, told_seq) = (run.head_seq(), run.ingested_seq);
    let late = run.late.as_deref_mut().expect("it is told late");
    let is_over = matches!(late.end, LateEnd::Told);
    late.is_listed = told_seq < head_seq.min(late.last_seq) && !is_over;
    late.is_listed
}
