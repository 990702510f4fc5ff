//! The life cycle of a subscriber: attached, requesting, acknowledging, lost, reattached, removed.

use std::ops::Range;

use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Handle, SubscriberId};
use crate::engine::action::{
    AcknowledgeError, Action, NotFound, Reply, SubscribeError, Subscribed,
};
use crate::engine::admission::{first_cursor, reads_from_disk, replay_in, terms, with_level};
use crate::engine::deliver::NoDelivery;
use crate::engine::event::{Fetched, From, SubscribeSpec, SubscriberPlace};
use crate::engine::policy::Log;
use crate::engine::remote::Remote;
use crate::engine::resume::{Predecessor, Successor};
use crate::engine::subscriber::{ConnectionState, Local, Overtaken};
use crate::engine::timers::{Timer, fired, note};
use crate::engine::{Engine, Replay};
use crate::limits;
use crate::stream::{DetachReason, End, Policy};
use crate::trace::Counters;

impl Engine {
    pub(super) fn subscribe(&mut self, id: ExecutionId, spec: &SubscribeSpec) {
        let result = self.try_subscribe(id, spec);
        match &result {
            Ok(subscribed) => {
                self.effects.counters.subscribers_attached += 1;
                self.attached(subscribed.execution);
                if spec.place == SubscriberPlace::Remote {
                    self.report_to_first(subscribed.execution);
                }
                self.take_over(subscribed, spec);
            }
            Err(_) => self.effects.counters.subscribers_refused += 1,
        }
        self.effects.reply(Reply::Subscribed(result));
    }

    fn try_subscribe(
        &mut self,
        id: ExecutionId,
        spec: &SubscribeSpec,
    ) -> Result<Subscribed, SubscribeError> {
        if self.shutting_down {
            return Err(SubscribeError::ShuttingDown);
        }
        let execution = self.registry.find(id).ok_or(SubscribeError::NotFound)?;
        let of_execution = match spec.place {
            SubscriberPlace::Local => self.limits.subscribers_per_execution_max,
            SubscriberPlace::Remote => limits::READERS_PER_EXECUTION_MAX,
        };
        let there = match spec.place {
            SubscriberPlace::Local => execution.audience.locals.len(),
            SubscriberPlace::Remote => execution.audience.remotes.len(),
        };
        if there as u32 >= of_execution {
            return Err(SubscribeError::TooMany { subscribers_max: of_execution });
        }
        let terms = terms(execution, spec)?;
        let cursor = with_level(first_cursor(execution, spec)?, execution, spec, &terms);
        assert!(cursor.next_seq > 0);
        assert!(cursor.next_seq <= execution.log.head_seq() + 1);
        assert!(cursor.seen.chunks < cursor.next_seq); // P2: each was counted once.
        let ring = execution.ring_facts();
        // What is on disk need not be kept in the ring as well.
        let replay = replay_in(ring, spec).filter(|_| !reads_from_disk(execution, spec));
        let Some(subscriber) = self.registry.add(id.slot, spec.place, there) else {
            return Err(SubscribeError::TooMany { subscribers_max: self.limits.subscribers_max });
        };
        let subscribed = Subscribed { subscriber, execution: id.slot, terms, cursor, replay };
        let now = self.effects.now;
        let e = self.registry.living_mut(id.slot);
        match spec.place {
            SubscriberPlace::Remote => {
                e.audience.remotes.push(Remote::new(&subscribed, spec, now));
                assert!(e.audience.remotes.len() == there + 1); // Its seat says so.
            }
            SubscriberPlace::Local => {
                let gone = e.log.totals_before_tail(terms.kinds);
                let mut local = Local::new(&subscribed, spec, gone, now);
                local.set_window(ring);
                if !terms.kinds.is_all() {
                    e.log.keep_kind_totals();
                }
                e.audience.locals.push(local);
                assert!(e.audience.locals.len() == there + 1);
            }
        }
        Ok(subscribed)
    }

    /// Handles the consequences of one more subscriber.
    fn attached(&mut self, execution: Handle) {
        let e = self.registry.living_mut(execution);
        assert!(e.audience.count() > 0);
        e.audience_changed();
        let hold = e.timers.hold.take();
        assert!(!e.holds()); // Its first reader is there.
        self.effects.disarm(hold);
        if !planted(Planted::LateJoinerNotGated) {
            self.update_gate(execution);
        }
        self.mark_dirty(execution);
        self.start_if_due(execution);
    }

    /// Reports the progress to the first reader on another thread. Without such readers progress is
    /// not written to where they see it.
    fn report_to_first(&mut self, execution: Handle) {
        let e = self.registry.living(execution);
        assert!(!e.audience.remotes.is_empty());
        if e.audience.remotes.len() == 1
            && e.progress.to_report() > 0
            && let Some(progress) = e.progress.newest()
        {
            self.effects.push(Action::Report(execution, progress));
        }
    }

    /// Gives the new subscriber the place of an old one. A lost one is removed at once; otherwise
    /// the new one becomes its successor. The new one holds the producer already, so nothing is
    /// overwritten in between.
    fn take_over(&mut self, new: &Subscribed, spec: &SubscribeSpec) {
        let From::Seq { seq, .. } = spec.from else { return };
        if !spec.replays || spec.policy != Policy::Block {
            return;
        }
        let audience = &self.registry.living(new.execution).audience;
        match audience.predecessor(new, seq, self.effects.now) {
            None => {}
            Some(Predecessor::Lost(old)) => self.resumed(old),
            Some(Predecessor::Connected(old)) => {
                let successor = Successor::new(old, self.effects.now);
                self.registry.set_successor(new.subscriber, Some(successor));
            }
        }
    }

    /// Removes a lost subscriber whose client has come back already. Returns false if it has no
    /// successor.
    fn leave_to_successor(&mut self, lost: SubscriberId, execution: Handle) -> bool {
        let audience = &self.registry.living(execution).audience;
        let Some(new) = audience.successor(lost, self.effects.now) else { return false };
        self.registry.set_successor(new, None);
        self.resumed(lost);
        true
    }

    fn resumed(&mut self, lost: SubscriberId) {
        let execution = self.registry.execution_of(lost).expect("it keeps its place");
        self.effects.counters.subscribers_resumed += 1;
        self.effects.push(Action::Forget(lost, execution));
        self.remove(lost);
        let Counters { subscribers_resumed, subscribers_attached, .. } = self.effects.counters;
        assert!(subscribers_resumed <= subscribers_attached);
    }

    pub(super) fn unsubscribe(&mut self, subscriber: SubscriberId) {
        let now = self.effects.now;
        let end = match self.registry.local_mut(subscriber) {
            Some(local) => Some(local.detached(DetachReason::Removed, now)),
            None => self.registry.remote_mut(subscriber).map(|remote| remote.removed()),
        };
        if end.is_some() {
            self.left(subscriber);
        }
        self.effects.reply(Reply::Unsubscribed(end.ok_or(NotFound)));
    }

    /// Detaches one subscriber before its execution ends.
    pub(super) fn detach(&mut self, subscriber: SubscriberId, reason: DetachReason) {
        let execution = self.registry.execution_of(subscriber).expect("a living subscriber");
        self.effects.count_detached(reason);
        let now = self.effects.now;
        let action = match self.registry.local_mut(subscriber) {
            Some(local) => Action::End(subscriber, execution, local.detached(reason, now)),
            None => Action::DetachReader(subscriber, execution, reason),
        };
        self.effects.push(action);
        self.remove(subscriber);
    }

    /// Ends a subscriber that has everything, after the execution's end.
    fn end(&mut self, subscriber: SubscriberId) {
        let execution = self.registry.execution_of(subscriber).expect("a living subscriber");
        let e = self.registry.living(execution);
        let outcome = e.outcome.expect("only after the end is one caught up");
        let (exit, end_seq) = (e.exit, e.log.head_seq() + 1);
        let kinds = self.registry.local(subscriber).expect("it is being walked over").terms.kinds;
        // Not the totals that the cursor has passed: a client that came back may have supplied
        // those.
        let published = e.log.totals_through_head(kinds);
        let now = self.effects.now;
        let local = self.registry.local_mut(subscriber).expect("as above");
        let has_all = local.cursor.next_seq == end_seq;
        assert!(has_all || planted(Planted::EndBeforeLastChunk)); // The end comes last.
        let end = End { published, ..local.ended(outcome, exit, now) };
        self.effects.count_end();
        self.effects.push(Action::End(subscriber, execution, end));
        self.remove(subscriber);
    }

    /// Handles a subscriber that gets no chunk and no gap now.
    pub(super) fn rest(&mut self, subscriber: SubscriberId, rest: NoDelivery) {
        match rest {
            NoDelivery::Coalesce => {
                let local = self.registry.local_mut(subscriber).expect("it is being walked over");
                let coalescing = local.detail.coalescing.as_mut().expect("it coalesces");
                if coalescing.timer.is_none() {
                    let delay_max = coalescing.spec.delay_max;
                    let timer = self.effects.arm(delay_max, Timer::Coalesce(subscriber));
                    note(&mut coalescing.timer, timer);
                }
            }
            NoDelivery::Disconnect => self.detach(subscriber, DetachReason::Lag),
            NoDelivery::Level => self.come_level(subscriber),
            NoDelivery::CaughtUp => self.end(subscriber),
        }
    }

    /// Detaches all subscribers of an execution. Those that have everything are given its own end
    /// instead.
    pub(super) fn detach_all(&mut self, execution: Handle, reason: DetachReason) {
        let e = self.registry.living(execution);
        let end_seq = e.closed().then(|| e.log.head_seq() + 1);
        let locals = e.audience.locals.positions().map(|(local, seq)| {
            let is_up = local.connection == ConnectionState::Up;
            (local.id, is_up && Some(seq) == end_seq)
        });
        // A reader on another thread checks that by itself.
        let remotes = e.audience.remotes.iter().map(|remote| (remote.id, false));
        let all: Vec<(SubscriberId, bool)> = locals.chain(remotes).collect();
        for (subscriber, has_all) in all {
            match has_all {
                true => self.end(subscriber),
                false => self.detach(subscriber, reason),
            }
        }
        assert!(self.subscriber_count(execution) == 0);
    }

    /// Removes a subscriber from its execution, and updates the gate and the drain that it held up.
    fn remove(&mut self, subscriber: SubscriberId) {
        let execution = self.registry.remove(subscriber, &mut self.effects);
        if !self.deliveries.is_walking(execution) {
            self.registry.compact(execution);
        }
        if !planted(Planted::DetachedStillGates) {
            self.update_gate(execution);
        }
        self.settle(execution);
    }

    pub(super) fn acknowledge(&mut self, subscriber: SubscriberId, seq: u64) {
        let execution = self.registry.execution_of(subscriber);
        let result = if let Some(remote) = self.registry.remote_mut(subscriber) {
            let result = remote.acknowledge(seq);
            self.moved(execution.expect("it was just found"));
            result
        } else if let Some(local) = self.registry.local_mut(subscriber) {
            let result = local.acknowledge(seq);
            if result.is_ok() {
                self.mark_dirty(execution.expect("it was just found"));
            }
            result
        } else {
            Err(AcknowledgeError::NotFound)
        };
        self.effects.reply(Reply::Acknowledged(result));
    }

    #[inline]
    pub(super) fn demand(&mut self, subscriber: SubscriberId, count: u32) {
        let Some(execution) = self.registry.execution_of(subscriber) else { return };
        let Some(local) = self.registry.local_mut(subscriber) else { return };
        local.demand = count;
        local.set_plain();
        self.mark_dirty(execution);
    }

    /// Turns chunks that were overwritten before their delivery into a gap `from_seq..=to_seq`. The
    /// subscriber continues behind it.
    pub(super) fn overtaken(&mut self, subscriber: SubscriberId, from_seq: u64, to_seq: u64) {
        let Some((e, at)) = self.registry.local_seat(subscriber) else { return };
        let local = &mut e.audience.locals.apart()[at];
        assert!(local.id == subscriber);
        match local.overtaken(from_seq, to_seq, &e.log) {
            Overtaken::Disconnect => return self.detach(subscriber, DetachReason::Lag),
            Overtaken::NothingMissed => {}
            Overtaken::Gap(gap) => {
                self.effects.count_gap(&gap);
                self.effects.push_first(Action::Gap(subscriber, e.handle(), gap));
            }
            Overtaken::Fetch(fetch) => {
                self.effects.push(fetch.action(subscriber, e.handle()));
                e.audience_changed();
                e.update_gate(&mut self.effects); // It gates nobody until it is level again.
            }
        }
        self.deliveries.mark(e.handle(), e);
    }

    /// Takes the answer of the disk. A subscriber that has left meanwhile is told nothing more.
    pub(super) fn fetched(&mut self, subscriber: SubscriberId, seqs: Range<u64>, result: Fetched) {
        let Some((e, at)) = self.registry.local_seat(subscriber) else { return };
        let local = &mut e.audience.locals.apart()[at];
        assert!(local.id == subscriber);
        if let Some(gap) = local.fetched(seqs, result, &e.log) {
            self.effects.count_gap(&gap);
            self.effects.push(Action::Gap(subscriber, e.handle(), gap));
        }
        self.deliveries.mark(e.handle(), e);
    }

    /// Handles a subscriber that has come level: under `block` it gates the producer from now on,
    /// and under `disconnect` it may be ended.
    fn come_level(&mut self, subscriber: SubscriberId) {
        let now = self.effects.now;
        let (e, at) = self.registry.local_seat(subscriber).expect("it is being walked over");
        e.audience.locals.apart()[at].detail.level_at = now;
        e.audience_changed();
        e.update_gate(&mut self.effects);
    }

    /// Handles the loss of the connection of a subscriber. One whose client may come back keeps
    /// its place for a while.
    pub(super) fn lost(&mut self, subscriber: SubscriberId) {
        let Some(execution) = self.registry.execution_of(subscriber) else { return };
        let (replays, blocks) = if let Some(remote) = self.registry.remote_mut(subscriber) {
            if remote.is_lost() {
                return;
            }
            assert!(!remote.replays || remote.gates()); // Others do not hold the ring.
            (remote.replays, remote.replays)
        } else {
            let local = self.registry.local_mut(subscriber).expect("it has a seat");
            if local.is_lost() {
                return;
            }
            local.connection = ConnectionState::Lost;
            local.set_plain();
            (local.replays, local.terms.policy == Policy::Block)
        };
        // A client that comes back to an execution on disk finds everything there.
        let blocks = blocks && (replays || !self.registry.living(execution).log.is_kept());
        if replays && self.leave_to_successor(subscriber, execution) {
            return;
        }
        if blocks {
            let timer = self.effects.arm(limits::RECONNECT_GRACE, Timer::Grace(subscriber));
            note(self.registry.grace_timer_mut(subscriber), timer);
        } else {
            self.detach(subscriber, DetachReason::Lost);
        }
    }

    pub(super) fn broken(&mut self, subscriber: SubscriberId) {
        if self.registry.execution_of(subscriber).is_some() {
            self.detach(subscriber, DetachReason::Lost);
        }
    }

    pub(super) fn connection_moved(&mut self, subscriber: SubscriberId) {
        let now = self.effects.now;
        if let Some(local) = self.registry.local_mut(subscriber) {
            local.detail.moved_at = now;
        }
    }

    pub(super) fn reattach(&mut self, subscriber: SubscriberId) {
        let result = self.try_reattach(subscriber).ok_or(NotFound);
        self.effects.reply(Reply::Reattached(result));
    }

    fn try_reattach(&mut self, subscriber: SubscriberId) -> Option<Subscribed> {
        let execution = self.registry.execution_of(subscriber)?;
        let local = self.registry.local_mut(subscriber)?;
        let was_lost = local.is_lost();
        local.connection = ConnectionState::Up;
        local.set_plain();
        let timer = local.detail.grace_timer.take();
        assert!(was_lost || timer.is_none()); // E4
        let (terms, cursor) = (local.terms, local.cursor);
        let (replays, ack_window) = (local.replays, local.detail.ack_window);
        self.effects.disarm(timer);
        self.mark_dirty(execution);
        let ring = self.registry.living(execution).ring_facts();
        let replay = replays.then(|| Replay::of(ring, ack_window));
        Some(Subscribed { subscriber, execution, terms, cursor, replay })
    }

    /// Handles chunks that have waited long enough to be coalesced.
    pub(super) fn coalesced(&mut self, subscriber: SubscriberId) {
        let execution = self.registry.execution_of(subscriber).expect("a timer's subscriber lives");
        let local = self.registry.local_mut(subscriber).expect("only a local one coalesces");
        assert!(local.coalesces);
        fired(&mut local.detail.coalescing.as_mut().expect("it coalesces").timer);
        local.flush = true;
        self.mark_dirty(execution);
    }

    /// Handles the end of the grace of a broken connection.
    pub(super) fn grace_over(&mut self, subscriber: SubscriberId) {
        fired(self.registry.grace_timer_mut(subscriber));
        let local = self.registry.local(subscriber);
        assert!(local.is_none_or(Local::is_lost));
        self.detach(subscriber, DetachReason::Lost);
    }

    /// Handles a moved cursor of a reader on another thread, if the producer or the drain waits for
    /// it.
    fn moved(&mut self, execution: Handle) {
        let e = self.registry.living(execution);
        if e.gated() || e.closed() {
            self.update_gate(execution);
            self.settle(execution);
        }
    }

    pub(super) fn reader_at(&mut self, subscriber: SubscriberId, next_seq: u64) {
        let Some(execution) = self.registry.followed_by_remote(subscriber) else { return };
        let end_seq = self.registry.living(execution).log.head_seq() + 1;
        let remote = self.registry.remote_mut(subscriber).expect("it is a remote one");
        remote.move_to(next_seq, end_seq);
        self.moved(execution);
    }

    /// Handles a reader on another thread that has come level, or is no longer. Under `block` it
    /// gates the producer while it is level.
    pub(super) fn reader_level(&mut self, subscriber: SubscriberId, is_level: bool) {
        let Some(execution) = self.registry.followed_by_remote(subscriber) else { return };
        let now = self.effects.now;
        let remote = self.registry.remote_mut(subscriber).expect("it is a remote one");
        assert!(is_level || !remote.replays); // What the ring keeps is not on disk.
        (remote.is_away, remote.level_at) = (!is_level, now);
        self.update_gate(execution);
        self.settle(execution);
    }

    pub(super) fn reader_wild(&mut self, subscriber: SubscriberId) {
        if self.registry.followed_by_remote(subscriber).is_some() {
            self.detach(subscriber, DetachReason::Evicted);
        }
    }

    pub(super) fn reader_gone(&mut self, subscriber: SubscriberId) {
        if self.registry.followed_by_remote(subscriber).is_some() {
            self.left(subscriber);
        }
    }

    /// Removes a subscriber that has left by itself.
    fn left(&mut self, subscriber: SubscriberId) {
        let execution = self.registry.execution_of(subscriber).expect("it was just found");
        self.effects.counters.subscribers_detached_left += 1;
        self.effects.push(Action::Forget(subscriber, execution));
        self.remove(subscriber);
    }
}
