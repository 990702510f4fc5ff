//! A subscriber on another thread. It evaluates its policy by itself, and reports its cursor. It
//! reports, too, when it comes level, and when it is given chunks from the disk.

use crate::base::{Instant, SubscriberId};
use crate::engine::action::{AcknowledgeError, Subscribed};
use crate::engine::event::{SubscribeSpec, SubscriberPlace};
use crate::engine::resume::Successor;
use crate::engine::wheel::TimerId;
use crate::stream::{DetachReason, End, EndState, Policy, Terms, Totals};

/// A subscriber on another thread, whose cursor the engine watches.
#[derive(Debug)]
pub(super) struct Remote {
    pub id: SubscriberId,
    pub terms: Terms,
    /// The cursor when it was last reported. By now it can only be further.
    pub next_seq: u64,
    pub since: Instant,
    /// The time at which it came level, if it read from the disk, or at which it attached.
    pub level_at: Instant,
    /// True while it is not level: it is given everything, and gates nobody.
    pub is_away: bool,
    pub gone: bool,
    /// True if its client may come back for the chunks that it was given last.
    pub replays: bool,
    /// The last acknowledged chunk; `None` without acknowledgements.
    pub acked_seq: Option<u64>,
    /// The grace timer of a broken connection. The subscriber keeps its place until the timer
    /// fires.
    pub grace_timer: Option<TimerId>,
    pub successor: Option<Successor>,
}

impl Remote {
    /// Creates a subscriber that was given nothing.
    pub fn new(subscribed: &Subscribed, spec: &SubscribeSpec, now: Instant) -> Remote {
        let Subscribed { subscriber, terms, cursor, replay, .. } = *subscribed;
        let next_seq = cursor.next_seq;
        assert!(spec.place == SubscriberPlace::Remote);
        assert!(terms.limit.chunks > 0);
        assert!(next_seq > 0);
        assert!(replay.is_none() || terms.policy == Policy::Block); // Others do not hold the ring.
        Remote {
            id: subscriber,
            terms,
            next_seq,
            since: now,
            level_at: now,
            is_away: cursor.is_away(),
            gone: false,
            replays: replay.is_some(),
            acked_seq: spec.ack_window.map(|_| next_seq - 1),
            grace_timer: None,
            successor: None,
        }
    }

    /// True if its connection is broken.
    pub fn is_lost(&self) -> bool {
        self.grace_timer.is_some()
    }

    /// True if it may hold its producer back.
    pub fn gates(&self) -> bool {
        self.terms.policy == Policy::Block && !self.gone && !self.is_away
    }

    /// Takes the cursor that the reader has reported; `end_seq` is one past the newest chunk. The
    /// reader may be ahead of what the engine was told of a producer on another thread.
    pub fn move_to(&mut self, next_seq: u64, end_seq: u64) {
        self.next_seq = self.next_seq.max(next_seq.min(end_seq));
        assert!(self.next_seq <= end_seq); // E2: nobody has read what is not published.
    }

    /// Takes an acknowledgement of all chunks through `seq`, up to the reported cursor.
    ///
    /// # Errors
    /// If the reader does not acknowledge, or was not given that chunk.
    pub fn acknowledge(&mut self, seq: u64) -> Result<(), AcknowledgeError> {
        let next_seq = self.next_seq;
        match &mut self.acked_seq {
            None => Err(AcknowledgeError::NotAsked),
            Some(_) if seq >= next_seq => Err(AcknowledgeError::NotGiven { next_seq }),
            Some(acked_seq) => {
                *acked_seq = seq.max(*acked_seq);
                assert!(*acked_seq < next_seq); // Only what was given is acknowledged.
                Ok(())
            }
        }
    }

    /// Creates the final report of a reader that was removed. It keeps its own totals.
    pub fn removed(&self) -> End {
        let resume_from = self.next_seq;
        let state = EndState::Detached { reason: DetachReason::Removed, resume_from };
        let (given, missed, published) = (Totals::ZERO, Totals::ZERO, Totals::ZERO);
        End { state, given, missed, published, duration_us: 0, exit: None }
    }
}
