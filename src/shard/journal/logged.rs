//! Executions whose chunks the log of a cluster takes, too: `durability: replicated`.
//!
//! They are told late ([`super::late`]): a chunk counts as durable when the disk and the log have
//! it. The end goes to the log first, and to the disk behind it. After a crash between the two, the
//! log decides.
//!
//! An end waits for the log for as long as it takes. One that was told too early could differ from
//! the one that the log gets in the end. If somebody else has ended the execution in the log, it
//! fails here, too.
//!
//! Invariants:
//! - W5: the engine knows no chunk and no end that the log does not have, unless the execution was
//!   given up and fails.

use std::collections::{HashMap, HashSet};

use crate::base::{ExecutionId, Handle};
use crate::engine::{Event, Verdict};
use crate::journal::{Journal, Kept, KeptId};
use crate::reactor::Reactor;
use crate::shard::Shard;
use crate::shard::act;
use crate::shard::outlet::Outlet;
use crate::stream::{Durability, Outcome};

use super::details::EndedDetails;
use super::keeping;
use super::late;

/// The error text of an execution that somebody else has ended.
const ENDED_BY_OTHERS: &str = "its node was lost to the cluster, which has ended it";

/// The error text of one that was stopped, and whose last chunks the log did not take.
const GIVEN_UP: &str = "cluster_away: the log of the cluster did not take its last chunks";

/// The replicated executions of a shard.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    open: HashMap<KeptId, Logged>,
    /// Those that were running when their process ended: the log knows how.
    left: HashSet<u128>,
}

/// The part of an execution that the log has.
#[derive(Debug, Default)]
struct Logged {
    /// The last chunk.
    through_seq: u64,
    end: LoggedEnd,
}

#[derive(Debug, Default)]
enum LoggedEnd {
    /// It was not decided yet.
    #[default]
    Open,
    /// The log will get this one.
    Awaited(Box<Verdict>),
    /// The log has it, or nobody waits for that any more.
    Over,
    /// The log has the end of somebody else.
    Another,
}

/// News of the log of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogNews {
    /// It has all chunks through this one.
    Has(u64),
    /// It has the end.
    HasEnd,
    /// It has the end of somebody else.
    HasAnotherEnd,
}

impl Logs {
    /// Notes an execution that begins.
    pub fn begin(&mut self, kept: KeptId) {
        self.open.insert(kept, Logged::default());
    }

    /// Notes that the end of an execution goes to the disk.
    pub fn forget(&mut self, kept: KeptId) {
        self.open.remove(&kept);
    }

    /// Notes the executions of a journal that were running when their process ended.
    pub fn leave(&mut self, journal: &Journal, unfinished: &[KeptId]) {
        let open = unfinished.iter().filter_map(|kept| journal.get(*kept));
        let is_replicated = |kept: &&Kept| {
            let living = kept.living.as_ref();
            living.is_some_and(|living| living.durability == Durability::Replicated)
        };
        self.left.extend(open.filter(is_replicated).map(|kept| kept.id));
    }

    /// True if the log knows better than the disk how an execution has ended.
    pub fn is_left(&self, id: ExecutionId) -> bool {
        self.left.contains(&id.to_bits())
    }

    /// One past the last chunk that the log has; `None` for an execution that is not replicated.
    pub fn until_seq(&self, kept: KeptId) -> Option<u64> {
        self.open.get(&kept).map(|logged| logged.through_seq + 1)
    }

    /// True for an open execution that is replicated.
    pub fn has(&self, kept: KeptId) -> bool {
        self.open.contains_key(&kept)
    }

    /// True if somebody else has ended an execution in the log, which takes nothing more of it.
    pub fn is_over(&self, kept: KeptId) -> bool {
        self.open.get(&kept).is_some_and(|logged| matches!(logged.end, LoggedEnd::Another))
    }

    /// True while an end is on its way to the log.
    pub fn is_end_awaited(&self, kept: KeptId) -> bool {
        self.open.get(&kept).is_some_and(|logged| matches!(logged.end, LoggedEnd::Awaited(_)))
    }
}

/// Sends the end that the engine has decided to the log, if the execution is replicated. Returns
/// true if the engine is told later.
pub(super) fn send_end<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
    verdict: &Verdict,
) -> bool {
    let run = act::run_in(&mut shard.runs, execution);
    let is_given_up = late::is_given_up(run);
    let mut details = EndedDetails::of(verdict, run.has_panicked);
    let (Some(kept), Some(keeping)) = (run.kept, shard.keeping.as_deref_mut()) else {
        return false;
    };
    let Some(logged) = keeping.logs.open.get_mut(&kept) else { return false };
    match logged.end {
        LoggedEnd::Open => {}
        LoggedEnd::Awaited(_) | LoggedEnd::Over => return false,
        LoggedEnd::Another => {
            shard.tell(Event::NotKept(execution, ENDED_BY_OTHERS));
            return true;
        }
    }
    if !is_given_up {
        logged.end = LoggedEnd::Awaited(Box::new(verdict.clone()));
        O::log_end(shard, execution, &details, verdict);
        return true;
    }
    // Whatever the log gets in the end: it is a failure.
    logged.end = LoggedEnd::Over;
    let has_failed = details.outcome == Outcome::Failed;
    if !has_failed {
        (details.outcome, details.error) = (Outcome::Failed, Some(GIVEN_UP.into()));
    }
    O::log_end(shard, execution, &details, verdict);
    if !has_failed {
        shard.tell(Event::NotKept(execution, GIVEN_UP));
    }
    !has_failed
}

/// Takes news of the log.
pub(crate) fn on_logged<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    news: LogNews,
) {
    let Some(run) = shard.run_of(id) else { return };
    let handle = run.handle;
    let (Some(kept), Some(keeping)) = (run.kept, shard.keeping.as_deref_mut()) else { return };
    let Some(logged) = keeping.logs.open.get_mut(&kept) else { return };
    match news {
        LogNews::Has(seq) => {
            logged.through_seq = logged.through_seq.max(seq);
            O::on_kept(shard, id);
            late::ingest_late(shard, handle.index);
            if let Some(keeping) = shard.keeping.as_deref_mut() {
                keeping.answer_waiting();
            }
        }
        LogNews::HasEnd => {
            if let LoggedEnd::Awaited(verdict) = std::mem::replace(&mut logged.end, LoggedEnd::Over)
            {
                keeping::record_end(shard, handle, &verdict);
                keeping::settle_ends(shard);
            }
        }
        LogNews::HasAnotherEnd => {
            logged.end = LoggedEnd::Another;
            shard.tell(Event::NotKept(handle, ENDED_BY_OTHERS));
        }
    }
    act::pump(shard);
}
