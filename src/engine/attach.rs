//! The life cycle of a subscriber: attached, requesting, acknowledging, lost, reattached, removed.

use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Handle, SubscriberId};
use crate::engine::action::{
    AcknowledgeError, Action, NotFound, Reply, SubscribeError, Subscribed,
};
use crate::engine::admission::{first_cursor, replay_in, terms};
use crate::engine::event::{SubscribeSpec, SubscriberPlace};
use crate::engine::policy::Log;
use crate::engine::subscriber::{ConnectionState, Local, Remote};
use crate::engine::timers::{Timer, note};
use crate::engine::{Engine, Replay, Seat};
use crate::limits;
use crate::stream::{DetachReason, End, EndState, Policy, Totals};

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
        let execution = self.find(id).ok_or(SubscribeError::NotFound)?;
        let of_execution = match spec.place {
            SubscriberPlace::Local => self.limits.subscribers_per_execution_max,
            SubscriberPlace::Remote => limits::READERS_PER_EXECUTION_MAX,
        };
        let there = match spec.place {
            SubscriberPlace::Local => execution.locals.len(),
            SubscriberPlace::Remote => execution.remotes.len(),
        };
        if there as u32 >= of_execution {
            return Err(SubscribeError::TooMany { subscribers_max: of_execution });
        }
        let terms = terms(execution, spec)?;
        let cursor = first_cursor(execution, spec)?.coming_at(execution.log.head_seq());
        assert!(cursor.next_seq > 0);
        assert!(cursor.next_seq <= execution.log.head_seq() + 1);
        assert!(cursor.seen.chunks < cursor.next_seq); // P2: each was counted once.
        let ring = execution.ring_facts();
        let replay = replay_in(ring, spec);
        let seat = Seat { execution: id.slot, place: spec.place, at: there as u32 };
        let Ok(seat) = self.seats.insert(seat) else {
            return Err(SubscribeError::TooMany { subscribers_max: self.limits.subscribers_max });
        };
        assert!(seat.index < self.limits.subscribers_max); // The shard's tables have this size.
        let subscriber = SubscriberId(seat);
        let subscribed = Subscribed { subscriber, execution: id.slot, terms, cursor, replay };
        let now = self.effects.now;
        let e = self.executions.get_mut(id.slot).expect("it was just found");
        match spec.place {
            SubscriberPlace::Remote => {
                e.remotes.push(Remote::new(subscriber, spec, terms, cursor.next_seq, now));
                assert!(e.remotes.len() == there + 1); // Its seat says so.
            }
            SubscriberPlace::Local => {
                let gone = e.log.totals_before_tail(terms.kinds);
                let mut local = Local::new(&subscribed, spec, gone, now);
                local.set_window(ring);
                if !terms.kinds.is_all() {
                    e.log.keep_kind_totals();
                }
                e.locals.push(local);
                assert!(e.locals.len() == there + 1);
            }
        }
        Ok(subscribed)
    }

    /// Handles the consequences of one more subscriber.
    fn attached(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("it was just subscribed to");
        assert!(e.subscriber_count() > 0);
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

    pub(super) fn unsubscribe(&mut self, subscriber: SubscriberId) {
        let result = match self.seats.get(subscriber.0) {
            None => Err(NotFound),
            Some(&seat) => Ok(self.leave(subscriber, seat)),
        };
        self.effects.reply(Reply::Unsubscribed(result));
    }

    fn leave(&mut self, subscriber: SubscriberId, seat: Seat) -> End {
        self.effects.counters.subscribers_detached_left += 1;
        let now = self.effects.now;
        let end = match self.local_mut(subscriber) {
            Some(local) => local.detached(DetachReason::Removed, now),
            None => {
                // A reader on another thread keeps its own totals.
                let e = self.executions.get(seat.execution).expect("a seat's execution lives");
                assert!(e.remotes[seat.at as usize].id == subscriber);
                let resume_from = e.remotes[seat.at as usize].next_seq;
                let state = EndState::Detached { reason: DetachReason::Removed, resume_from };
                let (given, missed, published) = (Totals::ZERO, Totals::ZERO, Totals::ZERO);
                End { state, given, missed, published, duration_us: 0, exit: None }
            }
        };
        self.effects.push(Action::Forget(subscriber));
        self.remove(subscriber);
        end
    }

    /// Detaches one subscriber before its execution ends.
    pub(super) fn detach(&mut self, subscriber: SubscriberId, reason: DetachReason) {
        let seat = *self.seats.get(subscriber.0).expect("a living subscriber");
        self.effects.count_detached(reason);
        let now = self.effects.now;
        let action = match self.local_mut(subscriber) {
            Some(local) => {
                let end = local.detached(reason, now);
                Action::End(subscriber, seat.execution, end)
            }
            None => Action::DetachReader(subscriber, seat.execution, reason),
        };
        self.effects.push(action);
        self.remove(subscriber);
    }

    /// Detaches all subscribers of an execution. Those that have everything are given its own end
    /// instead.
    pub(super) fn detach_all(&mut self, execution: Handle, reason: DetachReason) {
        let e = self.executions.get(execution).expect("a living execution");
        let end_seq = e.closed().then(|| e.log.head_seq() + 1);
        let locals = e.locals.positions().map(|(local, seq)| {
            let is_up = local.connection == ConnectionState::Up;
            (local.id, is_up && Some(seq) == end_seq)
        });
        // A reader on another thread checks that by itself.
        let remotes = e.remotes.iter().map(|remote| (remote.id, false));
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
    pub(super) fn remove(&mut self, subscriber: SubscriberId) {
        let seat = self.seats.remove(subscriber.0).expect("a living subscriber");
        let e = self.executions.get_mut(seat.execution).expect("a seat's execution lives");
        match seat.place {
            SubscriberPlace::Local => {
                let local = &mut e.locals.apart()[seat.at as usize];
                assert!(local.id == subscriber);
                assert!(!local.gone); // It is removed once.
                local.gone = true;
                local.set_plain();
                assert!(local.plain_chunks == 0); // L1: it is given nothing more.
                e.removed = true;
                let timers = [local.detail.coalesce_timer.take(), local.detail.grace_timer.take()];
                timers.into_iter().for_each(|timer| self.effects.disarm(timer));
                if self.scan.is_none_or(|scan| scan.execution != seat.execution) {
                    self.compact(seat.execution);
                }
            }
            SubscriberPlace::Remote => {
                let remote = e.remotes.swap_remove(seat.at as usize);
                assert!(remote.id == subscriber);
                if let Some(moved) = e.remotes.get(seat.at as usize) {
                    let moved = self.seats.get_mut(moved.id.0).expect("a living subscriber");
                    assert!(moved.place == SubscriberPlace::Remote);
                    assert!(moved.at as usize == e.remotes.len()); // It was the last one.
                    moved.at = seat.at;
                }
                self.effects.disarm(remote.grace_timer);
            }
        }
        if !planted(Planted::DetachedStillGates) {
            self.update_gate(seat.execution);
        }
        self.settle(seat.execution);
    }

    /// Closes the holes that removed local subscribers have left in the list.
    pub(super) fn compact(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("a living execution");
        if !e.removed {
            return;
        }
        e.removed = false;
        let count = e.locals.len();
        e.locals.apart().retain(|local| !local.gone);
        assert!(e.locals.len() < count); // The mark is set where one has left.
        for (at, local) in e.locals.without_cursors().iter().enumerate() {
            let seat = self.seats.get_mut(local.id.0).expect("a living subscriber");
            assert!(seat.execution == execution);
            assert!(seat.place == SubscriberPlace::Local);
            assert!(seat.at >= at as u32); // Holes are closed towards the front.
            seat.at = at as u32;
        }
        e.audience_changed();
    }

    pub(super) fn acknowledge(&mut self, subscriber: SubscriberId, seq: u64) {
        if self.remote_mut(subscriber).is_some() {
            self.acknowledge_remote(subscriber, seq);
            return;
        }
        let result = match self.local_mut(subscriber) {
            None => Err(AcknowledgeError::NotFound),
            Some(local) if local.detail.ack_window.is_none() => Err(AcknowledgeError::NotAsked),
            Some(local) if seq >= local.cursor.next_seq => {
                Err(AcknowledgeError::NotGiven { next_seq: local.cursor.next_seq })
            }
            Some(local) => {
                local.acknowledge(seq);
                Ok(())
            }
        };
        if result.is_ok() {
            let seat = *self.seats.get(subscriber.0).expect("it was just found");
            self.mark_dirty(seat.execution);
        }
        self.effects.reply(Reply::Acknowledged(result));
    }

    #[inline]
    pub(super) fn demand(&mut self, subscriber: SubscriberId, count: u32) {
        let Some(seat) = self.seats.get(subscriber.0).copied() else { return };
        let Some(local) = self.local_mut(subscriber) else { return };
        local.demand = count;
        local.set_plain();
        self.mark_dirty(seat.execution);
    }

    pub(super) fn lost(&mut self, subscriber: SubscriberId) {
        if self.remote_mut(subscriber).is_some() {
            self.lost_remote(subscriber);
            return;
        }
        let Some(local) = self.local_mut(subscriber) else { return };
        if local.connection == ConnectionState::Lost {
            return;
        }
        local.connection = ConnectionState::Lost;
        local.set_plain();
        let (replays, blocks) = (local.replays, local.terms.policy == Policy::Block);
        let execution = self.seats.get(subscriber.0).expect("it was just found").execution;
        if replays && self.leave_to_successor(subscriber, execution) {
            return;
        }
        if blocks {
            let timer = self.effects.arm(limits::RECONNECT_GRACE, Timer::Grace(subscriber));
            let local = self.local_mut(subscriber).expect("it was just found");
            note(&mut local.detail.grace_timer, timer);
        } else {
            self.detach(subscriber, DetachReason::Lost);
        }
    }

    pub(super) fn broken(&mut self, subscriber: SubscriberId) {
        if self.seats.get(subscriber.0).is_some() {
            self.detach(subscriber, DetachReason::Lost);
        }
    }

    pub(super) fn reattach(&mut self, subscriber: SubscriberId) {
        let result = match self.local_mut(subscriber) {
            None => Err(NotFound),
            Some(local) => {
                let was_lost = local.is_lost();
                local.connection = ConnectionState::Up;
                local.set_plain();
                let timer = local.detail.grace_timer.take();
                assert!(was_lost || timer.is_none()); // E4
                let (terms, cursor) = (local.terms, local.cursor);
                let (replays, ack_window) = (local.replays, local.detail.ack_window);
                self.effects.disarm(timer);
                let execution = self.seats.get(subscriber.0).expect("it was found").execution;
                self.mark_dirty(execution);
                let e = self.executions.get(execution).expect("a seat's execution lives");
                let replay = replays.then(|| Replay::of(e.ring_facts(), ack_window));
                Ok(Subscribed { subscriber, execution, terms, cursor, replay })
            }
        };
        self.effects.reply(Reply::Reattached(result));
    }
}
