//! Where spans of answered requests go: a queue of fixed size, which whoever sends them away reads.
//!
//! Nothing waits for that: a span that finds no room is dropped and counted. Without a queue none
//! is made.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::limits::SPANS_MAX;
use crate::memory::atomic::{AtomicU64, Ordering};
use crate::trace::Span;

/// The way into a queue of spans, for one shard or many.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    way: Option<Way>,
}

#[derive(Clone, Debug)]
struct Way {
    sender: SyncSender<Span>,
    dropped: Arc<AtomicU64>,
}

impl Spans {
    /// Nobody wants any.
    pub fn off() -> Spans {
        Spans::default()
    }

    /// A queue, and its other end, which has no more once all ways into it are gone.
    ///
    /// ```
    /// use streamdoor::shard::{ShardConfig, Spans};
    /// let (spans, receiver) = Spans::queue();
    /// let config = ShardConfig { spans, ..Default::default() };
    /// drop(config);
    /// assert!(receiver.recv().is_err());
    /// ```
    pub fn queue() -> (Spans, Receiver<Span>) {
        let (sender, receiver) = sync_channel(SPANS_MAX);
        (Spans { way: Some(Way { sender, dropped: Arc::default() }) }, receiver)
    }

    /// Are there to be any?
    pub fn is_on(&self) -> bool {
        self.way.is_some()
    }

    /// Puts one in, if there is room.
    pub(in crate::shard) fn push(&self, span: Span) {
        let Some(way) = &self.way else { return };
        if way.sender.try_send(span).is_err() {
            way.dropped.fetch_add(1, Ordering::Relaxed); // A count; nothing hangs on it.
        }
    }

    /// A look at how many were dropped, which does not hold the queue open.
    pub fn dropped(&self) -> impl Fn() -> u64 + Send + use<> {
        let dropped = self.way.as_ref().map(|way| Arc::clone(&way.dropped));
        move || dropped.as_ref().map_or(0, |dropped| dropped.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted() {
        let (spans, receiver) = Spans::queue();
        let dropped = spans.dropped();
        for _ in 0..SPANS_MAX + 3 {
            spans.push(Span::default());
        }
        assert_eq!(dropped(), 3);
        drop(spans);
        assert_eq!(receiver.iter().count(), SPANS_MAX);
        let off = Spans::off();
        off.push(Span::default());
        assert!(!off.is_on() && off.dropped()() == 0);
    }
}
