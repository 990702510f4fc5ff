//! The methods of a subscriber that serves a connection of another shard. It is polled in that
//! shard's turn, sleeps in that shard's reactor, and reports when its connection broke.

use std::sync::Arc;

use super::Subscriber;
use super::link::ThreadLink;
use super::log::RingLog;
use crate::base::Instant;
use crate::engine::Replay;
use crate::engine::policy::{self, Cursor};
use crate::memory::{LeaveReason, ProgressRecord, ReaderSignals, ShortText};
use crate::shard::Delivery;
use crate::stream::Totals;

impl Subscriber {
    /// The chunks that are kept for it in case its connection breaks.
    pub(crate) fn replay(&self) -> Option<Replay> {
        self.replay
    }

    /// The cursor.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Like [`Subscriber::poll`], at the time `now`. Also returns the next chunk after the
    /// delivery.
    pub(crate) fn poll_at(&mut self, now: Instant) -> Option<(Delivery<'_>, u64)> {
        self.now = Some(now);
        let Ok(ready) = self.advance();
        let ready = ready?;
        let next_seq = self.cursor.next_seq;
        let Ok(delivery) = self.render(ready);
        Some((delivery, next_seq))
    }

    /// Shows the cursor to the shard, because everything that was given has been processed.
    pub(crate) fn settle(&mut self) {
        if !self.ended {
            self.show_cursor();
        }
    }

    /// Returns the totals of the chunks that are due, and the newest of them. `None` if something
    /// other than chunks may be due.
    pub(crate) fn pending(&self) -> Option<(Totals, u64)> {
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

    /// Falls asleep in the reactor that its shard knows. Returns false if something has come.
    /// Otherwise it is not polled until [`Subscriber::was_woken`] returns true.
    pub(crate) fn rest(&mut self) -> bool {
        self.rest_unless(Subscriber::has_news)
    }

    /// Like [`Subscriber::rest`], although there are chunks, the newest of which is `head_seq`.
    pub(crate) fn rest_behind(&mut self, head_seq: u64) -> bool {
        self.rest_unless(|subscriber| {
            let ThreadLink { shared, reader_signals, .. } = &subscriber.link;
            shared.reader.head_seq() != head_seq || reader_signals.epoch() != subscriber.epoch
        })
    }

    fn rest_unless(&mut self, has_news: impl Fn(&Subscriber) -> bool) -> bool {
        self.link.exchange.sleep_in_reactor(self.link.reader_signals.reactor_sleep());
        if has_news(self) {
            self.wake_up();
            return false;
        }
        true
    }

    /// The words that end its sleep.
    pub(crate) fn signals(&self) -> Arc<ReaderSignals> {
        Arc::clone(&self.link.reader_signals)
    }

    /// True if its shard has ended its sleep.
    pub(crate) fn was_woken(&self) -> bool {
        !self.link.reader_signals.reactor_sleep().is_set()
    }

    /// Ends its sleep, because it is polled again.
    pub(crate) fn wake_up(&mut self) {
        self.link.exchange.end_reactor_sleep(self.link.reader_signals.reactor_sleep());
    }

    /// Sets that its drop means a broken connection. Under `block` its place is then kept for a
    /// while, for a client that comes back.
    pub(crate) fn keep_its_place(&mut self) {
        self.leaves = LeaveReason::Lost;
    }

    /// Allocates what the first progress needs.
    pub(crate) fn provide(&mut self) {
        let none = ProgressRecord {
            progress: 0.0,
            total: None,
            reports: 0,
            message: ShortText::new(""),
            context: ShortText::new(""),
        };
        self.record = Some(Box::new(none));
    }

    /// Unsubscribes for good.
    pub(crate) fn unsubscribe(mut self) {
        self.leaves = LeaveReason::Done;
    }
}
