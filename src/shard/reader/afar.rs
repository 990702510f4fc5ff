//! What a subscriber is to a connection of another shard: it is polled in that shard's turn, sleeps
//! in its reactor, and says when its connection broke.

use super::Subscriber;
use super::link::Near;
use super::log::RingLog;
use crate::base::{ExecutionId, Instant};
use crate::engine::policy::{self, Cursor};
use crate::engine::{Replay, Totals};
use crate::memory::{Left, ProgressRecord, ShortText};
use crate::shard::Delivery;

impl Subscriber {
    /// What it follows.
    pub(in crate::shard) fn execution(&self) -> ExecutionId {
        self.link.shared.id
    }

    /// The chunks that are kept for it in case its connection breaks.
    pub(in crate::shard) fn replay(&self) -> Option<Replay> {
        self.replay
    }

    /// Where it stands.
    pub(in crate::shard) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// As [`Subscriber::poll`], at this time; with the next chunk for it, behind what is given.
    pub(in crate::shard) fn poll_at(&mut self, now: Instant) -> Option<(Delivery<'_>, u64)> {
        self.now = Some(now);
        let Ok(ready) = self.advance();
        let ready = ready?;
        let next_seq = self.cursor.next_seq;
        let Ok(delivery) = self.render(ready);
        Some((delivery, next_seq))
    }

    /// Everything that was given has been dealt with: the shard may know.
    pub(in crate::shard) fn settle(&mut self) {
        if !self.ended {
            self.show_cursor();
        }
    }

    /// What there is for it and it has not been given, if that is chunks and nothing else, and the
    /// newest of them.
    pub(in crate::shard) fn pending(&self) -> Option<(Totals, u64)> {
        let reader = &self.link.shared.reader;
        let (head_seq, tail_seq) = (reader.head_seq(), reader.tail_seq());
        let Cursor { next_seq, seen, .. } = self.cursor;
        let is_over = self.link.shared.control.final_record().is_some() || !self.is_ours();
        if is_over || !(tail_seq..=head_seq).contains(&next_seq) {
            return None;
        }
        let log = RingLog { reader, head_seq, next_seq, seen };
        Some((policy::pending(&self.terms, &self.cursor, &log), head_seq))
    }

    /// Falls asleep in the reactor that its shard knows, unless there is something: `false`. It is
    /// awake again when [`Subscriber::was_roused`] says so; till then it is not polled.
    pub(in crate::shard) fn rest(&mut self) -> bool {
        self.rest_unless(Subscriber::has_news)
    }

    /// As [`Subscriber::rest`], although there are chunks, of which this one is the newest.
    pub(in crate::shard) fn rest_behind(&mut self, head_seq: u64) -> bool {
        self.rest_unless(|subscriber| {
            let Near { shared, desk, .. } = &subscriber.link;
            shared.reader.head_seq() != head_seq || desk.epoch() != subscriber.epoch
        })
    }

    fn rest_unless(&mut self, has_news: impl Fn(&Subscriber) -> bool) -> bool {
        self.link.exchange.doze(self.link.desk.dozes());
        if has_news(self) {
            self.wake_up();
            return false;
        }
        true
    }

    /// Has its shard something for it, since it fell asleep?
    pub(in crate::shard) fn was_roused(&self) -> bool {
        !self.link.desk.dozes().is_set()
    }

    /// It is polled again, whether it was woken or not.
    pub(in crate::shard) fn wake_up(&mut self) {
        self.link.exchange.rouse(self.link.desk.dozes());
    }

    /// From now on its going means that a connection broke: under `block` its place is kept for a
    /// while, for who comes back.
    pub(in crate::shard) fn keep_its_place(&mut self) {
        self.leaves = Left::Lost;
    }

    /// Buys what the first progress needs.
    pub(in crate::shard) fn provide(&mut self) {
        let none = ProgressRecord {
            progress: 0.0,
            total: None,
            reports: 0,
            message: ShortText::new(""),
            context: ShortText::new(""),
        };
        self.record = Some(Box::new(none));
    }

    /// Goes for good.
    pub(in crate::shard) fn unsubscribe(mut self) {
        self.leaves = Left::Done;
    }
}
