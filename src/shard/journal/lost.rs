//! Stretches that the disk cannot give: gaps with exact counts.
//!
//! The totals before a stretch and behind it are read from the neighbouring runs, and those of a
//! hole from its record. If these are damaged too, or if the subscriber begins within the stretch,
//! the counts are an upper bound of the chunks, and no bytes. One that comes from the ring knows
//! what is before the stretch, because it was told of all of that.

use super::fetch::{Fetching, Goal, answer, look};
use super::reads::Reads;
use crate::engine::{Fetched, Log};
use crate::journal::block::Run;
use crate::journal::format::RunKind;
use crate::reactor::Reactor;
use crate::shard::Shard;
use crate::shard::outlet::Outlet;
use crate::stream::{GapReason, KindTotals, Totals};

/// A stretch that cannot be given.
#[derive(Clone, Copy)]
pub(super) struct Loss {
    pub(super) reason: GapReason,
    pub(super) until_seq: u64,
    /// The totals of all chunks before the stretch, if the disk has told them.
    pub(super) before: Option<KindTotals>,
    /// A chunk behind the stretch. The totals before it are looked for.
    pub(super) behind_seq: u64,
    /// The totals of the chunks between the stretch and that chunk.
    pub(super) between: KindTotals,
}

impl Loss {
    /// True if one gap tells of this stretch and of the next one, which is lost for `reason`.
    pub(super) fn goes_on(&self, reason: GapReason) -> bool {
        self.reason == reason && reason != GapReason::Corrupt && self.behind_seq == self.until_seq
    }
}

/// Goes on with a question if its chunk, and those before `until_seq`, cannot be read.
pub(super) fn not_there<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    name: u64,
    reason: GapReason,
    until_seq: u64,
) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let fetching = keeping.fetching(name);
    assert!(until_seq > fetching.seq());
    let until_seq = until_seq.min(fetching.until_seq);
    match fetching.goal {
        Goal::Chunks => {
            let (behind_seq, between) = (until_seq, KindTotals::default());
            lose(shard, name, Loss { reason, until_seq, before: None, behind_seq, between });
        }
        Goal::Before(loss) => look_behind(shard, name, loss),
        Goal::Behind(loss) if loss.goes_on(reason) && until_seq > loss.until_seq => {
            look_behind(shard, name, Loss { until_seq, behind_seq: until_seq, ..loss });
        }
        Goal::Behind(loss) => answer_lost(shard, name, &loss, None),
    }
}

/// Finds out the totals of a stretch that cannot be given.
pub(super) fn lose<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    name: u64,
    mut loss: Loss,
) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let fetching = keeping.fetching(name);
    let (subscriber, from_seq) = (fetching.subscriber, fetching.from_seq);
    if from_seq == 1 {
        loss.before = Some(KindTotals::default());
    }
    loss.before = loss.before.or_else(|| keeping.reads.totals_at(subscriber, from_seq));
    let fetching = &keeping.fetches[name as usize];
    if loss.before.is_some() || told_before(&keeping.reads, fetching).is_some() {
        look_behind(shard, name, loss);
    } else {
        keeping.fetching(name).goal = Goal::Before(loss);
        look(shard, name);
    }
}

/// Totals of the chunks of a subscriber's kinds before a question, if it comes from the ring. Then
/// it was told of all of them.
fn told_before(reads: &Reads, fetching: &Fetching) -> Option<Totals> {
    let Fetching { subscriber, from_seq, seen, .. } = *fetching;
    seen.filter(|_| !reads.is_at(subscriber, from_seq))
}

/// Finds out the totals behind a stretch that cannot be given. The engine knows them as far as the
/// ring reaches back.
pub(super) fn look_behind<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    name: u64,
    loss: Loss,
) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let fetching = keeping.fetching(name);
    fetching.goal = Goal::Behind(loss);
    match shard.engine.kind_totals_before(fetching.execution, loss.behind_seq) {
        Some(behind) => answer_lost(shard, name, &loss, Some(behind)),
        None => look(shard, name),
    }
}

/// Tells the engine that a stretch cannot be given.
pub(super) fn answer_lost<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    name: u64,
    loss: &Loss,
    behind: Option<KindTotals>,
) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let fetching = &keeping.fetches[name as usize];
    let told = told_before(&keeping.reads, fetching);
    let &Fetching { subscriber, from_seq, .. } = fetching;
    let kinds = shard.sinks[subscriber.0.index as usize].kinds;
    let &Loss { reason, until_seq, before, between, .. } = loss;
    let after = behind.and_then(|behind| behind.checked_sub(&between));
    keeping.reads.note(subscriber, until_seq, after, None);
    let chunks = until_seq - from_seq;
    let before = before.map(|before| before.of(kinds)).or(told);
    let lost = after.zip(before).and_then(|(after, before)| after.of(kinds).checked_sub(before));
    // All of them come from files. No more chunks can be lost than there are.
    let totals = lost.filter(|totals| totals.chunks <= chunks);
    let totals = totals.unwrap_or(Totals { chunks, bytes: 0 });
    answer(shard, name, until_seq, Fetched::Lost { reason, totals });
}

/// The totals of all chunks before `seq`, if the chunks of the run before it are intact. A hole has
/// them before its first chunk and behind its last one.
pub(super) fn totals_before(run: &Run<'_>, seq: u64) -> Option<KindTotals> {
    if seq == run.header.first_seq {
        return Some(run.before);
    }
    if run.header.kind == RunKind::Hole {
        let behind = run.position_after()?;
        return (behind.next_seq() == seq).then_some(behind.totals);
    }
    let mut totals = run.before;
    for chunk in run.chunks() {
        let entry = chunk.ok()?.entry;
        if entry.seq >= seq {
            return Some(totals);
        }
        totals.count(entry.kind, entry.length);
    }
    Some(totals)
}

/// Loses the chunks of a hole, from the first of the stretch on. Its record says how many.
pub(super) fn lose_hole<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    name: u64,
    run: &Run<'_>,
) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let &mut Fetching { execution, from_seq, until_seq, .. } = keeping.fetching(name);
    let hole_until_seq = run.header.first_seq + u64::from(run.header.count);
    // The ring may have moved on. It knows the totals before the chunks that it holds.
    let tail_seq = shard.engine.log(execution).map_or(0, Log::tail_seq);
    let until_seq = until_seq.max(tail_seq).min(hole_until_seq);
    let before = totals_before(run, from_seq);
    let (behind_seq, between) = (until_seq, KindTotals::default());
    let loss = Loss { reason: GapReason::Unwritten, until_seq, before, behind_seq, between };
    match totals_before(run, until_seq) {
        Some(behind) if before.is_some() => answer_lost(shard, name, &loss, Some(behind)),
        _ => lose(shard, name, loss),
    }
}

/// Loses the chunks of a run from the first of the stretch to before `until_seq`, which are
/// damaged. The totals behind them follow from the next run, and from what is intact in this one.
pub(super) fn lose_damaged<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    name: u64,
    run: &Run<'_>,
    until_seq: u64,
) {
    let Some(keeping) = shard.keeping.as_deref_mut() else { return };
    let &mut Fetching { from_seq, until_seq: asked_until_seq, .. } = keeping.fetching(name);
    let run_until_seq = run.header.first_seq + u64::from(run.header.count);
    let mut between = KindTotals::default();
    let mut is_intact_behind = until_seq <= asked_until_seq;
    for chunk in run.chunks() {
        match chunk {
            Ok(chunk) if chunk.entry.seq >= until_seq => {
                between.count(chunk.entry.kind, chunk.entry.length);
            }
            Err(lost) if lost.from_seq >= until_seq => is_intact_behind = false,
            Ok(_) | Err(_) => {}
        }
    }
    let before = (run.header.first_seq <= from_seq).then(|| totals_before(run, from_seq)).flatten();
    let (until_seq, behind_seq, between) = match is_intact_behind {
        true => (until_seq, run_until_seq, between),
        false => {
            let until_seq = run_until_seq.min(asked_until_seq);
            (until_seq, until_seq, KindTotals::default())
        }
    };
    let reason = GapReason::Corrupt;
    lose(shard, name, Loss { reason, until_seq, before, behind_seq, between });
}
