//! A subscriber on another thread. It evaluates its policy by itself, and reports its cursor.

use crate::base::{Instant, SubscriberId};
use crate::engine::action::AcknowledgeError;
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
    /// Creates a subscriber with these terms, whose first chunk is `next_seq`.
    pub fn new(
        id: SubscriberId,
        spec: &SubscribeSpec,
        terms: Terms,
        next_seq: u64,
        since: Instant,
    ) -> Remote {
        assert!(spec.place == SubscriberPlace::Remote);
        assert!(terms.limit.chunks > 0);
        assert!(next_seq > 0);
        Remote {
            id,
            terms,
            next_seq,
            since,
            gone: false,
            replays: spec.replays && spec.policy == Policy::Block,
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
        self.terms.policy == Policy::Block && !self.gone
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
