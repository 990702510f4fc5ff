//! The deliveries: which local subscribers are given which chunks next.
//!
//! A publish only marks its execution. A delivery is computed when the shard requests the next
//! action, by walking the subscribers of one execution in order. Each walk starts one subscriber
//! further, so that none is always last.

use std::collections::VecDeque;

use crate::base::{Handle, Pool, SubscriberId};
use crate::engine::EngineLimits;
use crate::engine::action::Action;
use crate::engine::effects::Effects;
use crate::engine::execution::Execution;
use crate::engine::policy::{Cursor, Log};
use crate::engine::subscriber::{ConnectionState, Next};
use crate::stream::Totals;

/// A walk over the local subscribers of one execution.
#[derive(Clone, Copy, Debug)]
struct Scan {
    execution: Handle,
    at: u32,
    remaining: u32,
}

impl Scan {
    #[inline]
    fn advance(&mut self, count: u32) {
        assert!(self.at < count); // No subscriber leaves the list during a walk.
        self.at += 1;
        if self.at == count {
            self.at = 0;
        }
        self.remaining -= 1;
    }
}

/// The content of an [`Action::Deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanOut {
    /// The execution that published the chunks.
    pub execution: Handle,
    /// The first chunk.
    pub from_seq: u64,
    /// One past the last chunk.
    pub until_seq: u64,
    /// True if some recipient does not want all kinds.
    pub filters: bool,
}

impl FanOut {
    /// Describes the delivery of a range of chunks to subscribers that take all kinds. `end_seq` is
    /// one past the newest chunk.
    #[inline]
    fn of(execution: Handle, range: (u64, u64), end_seq: u64) -> FanOut {
        let (from_seq, until_seq) = range;
        assert!(from_seq < until_seq);
        assert!(until_seq <= end_seq); // Nothing that is not published is given.
        FanOut { execution, from_seq, until_seq, filters: false }
    }
}

/// The work for the next execution whose subscribers have something pending.
enum NextScan {
    /// No execution has anything pending.
    Nothing,
    /// All subscribers are given the same chunks.
    Delivery,
    /// Each subscriber has to be asked.
    Walk,
}

/// The result of one step of the deliveries.
pub(super) enum Step {
    /// No execution has anything pending.
    Nothing,
    /// Recipients of the same chunks were found: `Deliveries::fan_out`, `Deliveries::recipients`.
    Deliver,
    /// A subscriber has another action queued, or nothing. The walk continues.
    Told,
    /// A subscriber gets nothing now, for a reason that has consequences.
    Rest(SubscriberId, NoDelivery),
    /// All subscribers of the execution were asked.
    Done(Handle),
}

/// The reason why a subscriber gets nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoDelivery {
    Coalesce,
    Disconnect,
    Level,
    CaughtUp,
}

/// The executions whose local subscribers may have something pending, and the delivery that was
/// found last.
#[derive(Debug)]
pub(super) struct Deliveries {
    /// Executions whose local subscribers may have something pending.
    dirty: VecDeque<Handle>,
    scan: Option<Scan>,
    /// The current `Deliver`, and the subscribers that it goes to.
    fan_out: FanOut,
    recipients: Vec<SubscriberId>,
    /// Set if the delivery goes to all local subscribers of its execution, beginning with this one.
    /// `recipients` is not used then.
    abreast_from: Option<u32>,
    /// True if `fan_out` was made up with its publication, and was not taken yet.
    is_made_up: bool,
}

impl Deliveries {
    /// Allocates memory for all executions, and for a delivery to all subscribers of one.
    pub fn new(limits: &EngineLimits) -> Deliveries {
        Deliveries {
            dirty: VecDeque::with_capacity(limits.executions_max as usize),
            scan: None,
            fan_out: FanOut {
                execution: Handle { index: 0, generation: 0 },
                from_seq: 0,
                until_seq: 0,
                filters: false,
            },
            recipients: Vec::with_capacity(limits.subscribers_per_execution_max as usize),
            abreast_from: None,
            is_made_up: false,
        }
    }

    /// Notes that the execution's local subscribers may have something pending.
    #[inline]
    pub fn mark(&mut self, execution: Handle, e: &mut Execution) {
        if !e.dirty && !e.audience.locals.is_empty() {
            e.dirty = true;
            self.dirty.push_back(execution);
        }
    }

    /// True if no execution has anything pending.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.scan.is_none() && self.dirty.is_empty() && !self.is_made_up
    }

    /// True if a delivery was made up that has to be taken before the next event.
    #[inline]
    pub fn is_made_up(&self) -> bool {
        self.is_made_up
    }

    /// Takes the delivery that was made up.
    #[inline]
    pub fn take_made_up(&mut self) {
        assert!(std::mem::take(&mut self.is_made_up)); // Each is carried out once.
    }

    /// Makes up the delivery of what was just published, if it is the only one and goes to all
    /// local subscribers. [`Deliveries::step`] returns it.
    #[inline]
    pub fn make_up(&mut self, execution: Handle, e: &mut Execution) -> bool {
        assert!(self.is_idle()); // It would come before others.
        self.is_made_up = self.deliver_abreast(execution, e);
        self.is_made_up
    }

    /// Moves all local subscribers over what is pending, if they are abreast.
    #[inline]
    fn deliver_abreast(&mut self, execution: Handle, e: &mut Execution) -> bool {
        if e.outcome.is_some() || e.gated() {
            return false;
        }
        let Some(range) = e.audience.locals.advance(&e.log) else { return false };
        let end_seq = e.log.head_seq() + 1;
        self.fan_out = FanOut::of(execution, range, end_seq);
        self.abreast_from = Some(e.audience.next_turn());
        if range.1 < end_seq {
            e.dirty = true; // The rest follows in a later turn.
            self.dirty.push_back(execution);
        }
        true
    }

    /// True while the subscribers of this execution are being asked. None leaves the list then.
    pub fn is_walking(&self, execution: Handle) -> bool {
        self.scan.is_some_and(|scan| scan.execution == execution)
    }

    /// The delivery that was found last.
    #[inline]
    pub fn fan_out(&self) -> &FanOut {
        &self.fan_out
    }

    /// The subscribers that the last delivery goes to.
    #[inline]
    pub fn recipients<'a>(&'a self, executions: &'a Pool<Execution>) -> &'a [SubscriberId] {
        match self.abreast_from {
            None => &self.recipients,
            Some(first) => {
                let execution = executions.get(self.fan_out.execution);
                execution.expect("chunks are being given").audience.locals.names(first)
            }
        }
    }

    /// True if the last delivery goes to all local subscribers of its execution, which are abreast.
    #[cfg(test)]
    pub fn is_abreast(&self) -> bool {
        self.abreast_from.is_some()
    }

    /// Looks for the next delivery, up to the next consequence for the engine.
    #[inline]
    pub fn step(&mut self, executions: &mut Pool<Execution>, effects: &mut Effects) -> Step {
        if std::mem::take(&mut self.is_made_up) {
            return Step::Deliver;
        }
        if self.scan.is_none() {
            match self.begin_scan(executions) {
                NextScan::Nothing => return Step::Nothing,
                NextScan::Delivery => return Step::Deliver,
                NextScan::Walk => {}
            }
        }
        self.walk(executions, effects)
    }

    #[inline]
    fn begin_scan(&mut self, executions: &mut Pool<Execution>) -> NextScan {
        loop {
            let Some(execution) = self.dirty.pop_front() else { return NextScan::Nothing };
            let Some(e) = executions.get_mut(execution) else { continue };
            assert!(e.dirty); // It is in the list once.
            e.dirty = false;
            let count = e.audience.locals.len() as u32;
            if count == 0 {
                continue;
            }
            if self.deliver_abreast(execution, e) {
                return NextScan::Delivery;
            }
            let turn = e.audience.next_turn();
            self.scan = Some(Scan { execution, at: turn, remaining: count });
            return NextScan::Walk;
        }
    }

    /// Asks the subscribers one by one, and gathers those that are owed the same chunks. Stops at
    /// one that is owed something else, or when all were asked.
    fn walk(&mut self, executions: &mut Pool<Execution>, effects: &mut Effects) -> Step {
        let scan = self.scan.as_mut().expect("the caller began it");
        let execution = scan.execution;
        let Some(e) = executions.get_mut(execution) else { return self.finish() };
        let ended = e.outcome.is_some();
        let count = e.audience.locals.len() as u32;
        let (tail_seq, end_seq) = (e.log.tail_seq(), e.log.head_seq() + 1);
        // The walk may pass a subscriber at once only if nothing else is pending for it.
        let progress_to_report = if ended { u64::MAX } else { e.progress.to_report() };
        self.recipients.clear();
        self.abreast_from = None;
        let locals = e.audience.locals.apart();
        // The chunks that were gathered for, and the new cursor of a subscriber that takes all of
        // them.
        let mut gathered = (0, 0);
        let (mut plain_from, mut plain_end) = (0, Cursor::new(0, Totals::ZERO));
        let mut filters = false;
        while scan.remaining > 0 {
            let local = &mut locals[scan.at as usize];
            let next_seq = local.cursor.next_seq;
            let is_cut;
            let given = if local.takes_all(end_seq) && next_seq >= tail_seq {
                if plain_from != next_seq {
                    plain_from = next_seq;
                    plain_end = e.log.cursor_before(e.log.delivery_end(next_seq));
                }
                let range = (next_seq, plain_end.next_seq);
                if !self.recipients.is_empty() && range != gathered {
                    break;
                }
                local.cursor = plain_end;
                local.fresh = false;
                is_cut = range.1 < end_seq;
                range
            } else if local.gone || local.connection == ConnectionState::Lost {
                scan.advance(count); // It is given nothing now, not even the end.
                continue;
            } else if !self.recipients.is_empty() {
                break; // The gathered ones come first. The slow path needs a walk of its own.
            } else {
                match local.next(&e.log, ended) {
                    Next::Deliver { from_seq, until_seq, is_cut: has_rest } => {
                        filters = !local.terms.kinds.is_all();
                        is_cut = has_rest;
                        (from_seq, until_seq)
                    }
                    // A walk of its own asks the subscriber behind it.
                    next => return tell(scan, e, next, effects),
                }
            };
            gathered = given;
            self.recipients.push(local.id);
            let has_more = given.1 < end_seq || local.progress_reported < progress_to_report;
            if has_more && !is_cut {
                break; // It is asked again after this delivery.
            }
            if is_cut && !e.dirty {
                e.dirty = true; // The rest follows when all others have had their turn.
                self.dirty.push_back(execution);
            }
            scan.advance(count);
        }
        if self.recipients.is_empty() {
            return self.finish();
        }
        assert!(self.recipients.len() <= count as usize);
        if scan.remaining == 0 && !ended && !e.gated() && !e.audience.has_holes() {
            self.scan = None; // The end of this walk has no consequences.
            // A subscriber that was given only a part was not told of progress.
            if gathered.1 == end_seq && self.recipients.len() == count as usize {
                e.audience.locals.align();
            }
        }
        self.fan_out = FanOut { filters, ..FanOut::of(execution, gathered, end_seq) };
        Step::Deliver
    }

    /// Ends the walk: all subscribers were asked.
    fn finish(&mut self) -> Step {
        let scan = self.scan.take().expect("a walk goes on");
        Step::Done(scan.execution)
    }
}

/// Queues the action, other than a delivery, for the subscriber that the walk is at.
fn tell(scan: &mut Scan, e: &mut Execution, next: Next, effects: &mut Effects) -> Step {
    let execution = scan.execution;
    let count = e.audience.locals.len() as u32;
    let local = &mut e.audience.locals.apart()[scan.at as usize];
    let subscriber = local.id;
    if let Next::Gap(gap) = next {
        effects.count_gap(&gap);
        effects.push(Action::Gap(subscriber, execution, gap));
        return Step::Told;
    }
    if let Next::Fetch(fetch) = next {
        effects.push(fetch.action(subscriber, execution));
        return Step::Told;
    }
    if next == Next::Level {
        return Step::Rest(subscriber, NoDelivery::Level);
    }
    if local.progress_reported < e.progress.to_report()
        && let Some(progress) = e.progress.newest()
    {
        assert!(progress.report_count >= e.progress.to_report()); // Reports are only ever added.
        local.progress_reported = progress.report_count; // It may be ahead of the others.
        effects.push(Action::Progress(subscriber, execution, progress));
        return Step::Told;
    }
    scan.advance(count);
    match next {
        Next::Coalesce => Step::Rest(subscriber, NoDelivery::Coalesce),
        Next::Disconnect => Step::Rest(subscriber, NoDelivery::Disconnect),
        Next::CaughtUp => Step::Rest(subscriber, NoDelivery::CaughtUp),
        Next::Level => unreachable!("handled above"),
        Next::Nothing | Next::Deliver { .. } | Next::Fetch(_) | Next::Gap(_) => Step::Told,
    }
}
