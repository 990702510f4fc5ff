//! Subscribers on other threads: they evaluate their policies by themselves, and report their
//! cursors.

use crate::base::{Handle, SubscriberId};
use crate::engine::Engine;
use crate::engine::action::{AcknowledgeError, Action, Reply};
use crate::engine::event::SubscriberPlace;
use crate::engine::policy::Log;
use crate::engine::timers::{Timer, note};
use crate::limits;
use crate::stream::DetachReason;

impl Engine {
    /// Reports the progress to the first reader on another thread. Without such readers progress is
    /// not written to where they see it.
    pub(super) fn report_to_first(&mut self, execution: Handle) {
        let e = self.executions.get(execution).expect("it was just subscribed to");
        assert!(!e.remotes.is_empty());
        if e.remotes.len() == 1
            && e.progress_to_report > 0
            && let Some(progress) = e.tracker.progress()
        {
            self.effects.push(Action::Report(execution, progress));
        }
    }

    /// The execution that a reader on another thread follows; `None` for a local or unknown
    /// subscriber.
    pub fn followed_by_remote(&self, subscriber: SubscriberId) -> Option<Handle> {
        let seat = self.seats.get(subscriber.0)?;
        (seat.place == SubscriberPlace::Remote).then_some(seat.execution)
    }

    /// Handles an acknowledgement of a reader on another thread, up to the cursor that the shard
    /// reported.
    pub(super) fn acknowledge_remote(&mut self, subscriber: SubscriberId, seq: u64) {
        let seat = *self.seats.get(subscriber.0).expect("the caller found it");
        let remote = self.remote_mut(subscriber).expect("as above");
        let next_seq = remote.next_seq;
        let result = match &mut remote.acked_seq {
            None => Err(AcknowledgeError::NotAsked),
            Some(_) if seq >= next_seq => Err(AcknowledgeError::NotGiven { next_seq }),
            Some(acked_seq) => {
                *acked_seq = seq.max(*acked_seq);
                assert!(*acked_seq < next_seq); // Only what was given is acknowledged.
                Ok(())
            }
        };
        self.moved(seat.execution);
        self.effects.reply(Reply::Acknowledged(result));
    }

    /// Handles a moved cursor of a reader on another thread, if the producer or the drain waits for
    /// it.
    fn moved(&mut self, execution: Handle) {
        let e = self.executions.get(execution).expect("a seat's execution lives");
        if e.gated() || e.closed() {
            self.update_gate(execution);
            self.settle(execution);
        }
    }

    /// Handles the loss of the connection that the reader serves. One whose client may come back
    /// keeps its place.
    pub(super) fn lost_remote(&mut self, subscriber: SubscriberId) {
        let remote = self.remote_mut(subscriber).expect("the caller found it");
        if remote.is_lost() {
            return;
        }
        let replays = remote.replays;
        assert!(!replays || remote.gates()); // Others do not hold the ring.
        let execution = self.seats.get(subscriber.0).expect("the caller found it").execution;
        if replays && self.leave_to_successor(subscriber, execution) {
            return;
        }
        if replays {
            let timer = self.effects.arm(limits::RECONNECT_GRACE, Timer::Grace(subscriber));
            let remote = self.remote_mut(subscriber).expect("as above");
            note(&mut remote.grace_timer, timer);
            assert!(remote.is_lost());
        } else {
            self.detach(subscriber, DetachReason::Lost);
        }
    }

    pub(super) fn reader_at(&mut self, subscriber: SubscriberId, next_seq: u64) {
        let Some(seat) = self.seats.get(subscriber.0).copied() else { return };
        if seat.place != SubscriberPlace::Remote {
            return;
        }
        let e = self.executions.get_mut(seat.execution).expect("a seat's execution lives");
        let end_seq = e.log.head_seq() + 1;
        let remote = &mut e.remotes[seat.at as usize];
        assert!(remote.id == subscriber);
        // A reader may be ahead of what the engine was told of a producer on another thread.
        remote.next_seq = remote.next_seq.max(next_seq.min(end_seq));
        assert!(remote.next_seq <= end_seq); // E2: nobody has read what is not published.
        self.moved(seat.execution);
    }

    pub(super) fn reader_wild(&mut self, subscriber: SubscriberId) {
        if let Some(seat) = self.seats.get(subscriber.0)
            && seat.place == SubscriberPlace::Remote
        {
            self.detach(subscriber, DetachReason::Evicted);
        }
    }

    pub(super) fn reader_gone(&mut self, subscriber: SubscriberId) {
        if let Some(seat) = self.seats.get(subscriber.0)
            && seat.place == SubscriberPlace::Remote
        {
            self.effects.counters.subscribers_detached_left += 1;
            self.effects.push(Action::Forget(subscriber));
            self.remove(subscriber);
        }
    }
}
