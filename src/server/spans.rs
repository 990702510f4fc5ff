//! The spans of answered requests, and the last numbers of each shard, in a queue of fixed size for
//! the exporter.
//!
//! Nothing waits for the exporter. A span that finds no room is dropped and counted. Without a
//! queue no span is made.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::limits::SPANS_MAX;
use crate::memory::atomic::{AtomicU64, Ordering};
use crate::server::metrics::ShardMetrics;
use crate::trace::Span;

/// An item for the exporter.
#[derive(Clone, Debug)]
pub enum Exported {
    /// The span of an answered request.
    Span(Span),
    /// The numbers of a shard at its orderly end.
    LastMetrics(Box<ShardMetrics>),
}

/// The sending side of a queue of spans, for one shard or many.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    way: Option<Way>,
}

#[derive(Clone, Debug)]
struct Way {
    sender: SyncSender<Exported>,
    dropped: Arc<AtomicU64>,
}

impl Spans {
    /// Returns a sink that takes no spans.
    pub fn off() -> Spans {
        Spans::default()
    }

    /// Creates a queue, and returns both sides. The receiver is disconnected once all senders are
    /// dropped.
    ///
    /// ```
    /// use streamdoor::server::{GuestConfig, Spans};
    /// let (spans, receiver) = Spans::queue();
    /// let guests = GuestConfig { spans, ..GuestConfig::default() };
    /// drop(guests);
    /// assert!(receiver.recv().is_err());
    /// ```
    pub fn queue() -> (Spans, Receiver<Exported>) {
        let (sender, receiver) = sync_channel(SPANS_MAX);
        (Spans { way: Some(Way { sender, dropped: Arc::default() }) }, receiver)
    }

    /// True if spans are wanted.
    pub fn is_on(&self) -> bool {
        self.way.is_some()
    }

    /// Queues a span, if there is room.
    pub(in crate::server) fn push(&self, span: Span) {
        let Some(way) = &self.way else { return };
        if way.sender.try_send(Exported::Span(span)).is_err() {
            way.dropped.fetch_add(1, Ordering::Relaxed); // A count that orders nothing.
        }
    }

    /// Queues the last numbers of a shard. Without room, the exporter has earlier ones.
    pub(in crate::server) fn push_last(&self, metrics: impl FnOnce() -> ShardMetrics) {
        if let Some(way) = &self.way {
            let _ = way.sender.try_send(Exported::LastMetrics(Box::new(metrics())));
        }
    }

    /// Returns a function that reads the number of dropped spans and does not keep the queue open.
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
