//! Latencies of chunks from their publication until the server has passed them on, by transport.
//! They are counted in fixed buckets.
//!
//! A shard notes the chunks that it gives in a turn. At the turn's end it has written to sockets
//! and woken sleepers, and reads the clock once for all of them. A latency is therefore that of the
//! server, without the kernel, the network and the reader. All memory is allocated at the start.
//! The tests are at the end of this file.

use crate::base::Instant;
use crate::limits::{DELIVERIES_NOTED_MAX, LATENCY_BUCKETS_NS};

const BUCKET_COUNT: usize = LATENCY_BUCKETS_NS.len() + 1; // The last has no bound.

const _: () = {
    let mut at = 1;
    while at < LATENCY_BUCKETS_NS.len() {
        assert!(LATENCY_BUCKETS_NS[at - 1] < LATENCY_BUCKETS_NS[at]); // Sorted, for bisection.
        at += 1;
    }
};

/// The transport that takes chunks from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Streams over HTTP: SSE, NDJSON, WebSocket.
    Stream,
    /// The Model Context Protocol.
    Mcp,
    /// Memory shared with another process, to which the server copies chunks.
    Door,
}

impl Transport {
    /// The names of the transports, in their order.
    pub const NAMES: [&str; 3] = ["stream", "mcp", "door"];
}

/// The latencies of one transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Number of chunks per bucket: at most its bound in `LATENCY_BUCKETS_NS`, and above the one
    /// before. The last bucket is above all bounds.
    pub counts: [u64; BUCKET_COUNT],
    /// Sum of all latencies.
    pub sum_ns: u64,
}

/// The latencies of all transports, in the order of [`Transport::NAMES`].
pub type Latencies = [Latency; Transport::NAMES.len()];

/// The chunks that a shard gives: see the module's text.
#[derive(Debug)]
pub struct Deliveries {
    noted: Vec<Noted>,
    latencies: Latencies,
}

#[derive(Clone, Copy, Debug)]
struct Noted {
    published_at: Instant,
    count: u32,
    transport: Transport,
}

impl Latency {
    /// Records `count` chunks with a latency of `ns`.
    pub fn record(&mut self, ns: u64, count: u32) {
        let bucket = LATENCY_BUCKETS_NS.partition_point(|bound_ns| *bound_ns < ns);
        self.counts[bucket] += u64::from(count);
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(count.into()));
    }

    /// Adds everything that `other` has recorded.
    pub fn merge(&mut self, other: &Latency) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Default for Deliveries {
    fn default() -> Deliveries {
        Deliveries {
            noted: Vec::with_capacity(DELIVERIES_NOTED_MAX),
            latencies: Latencies::default(),
        }
    }
}

impl Deliveries {
    /// Notes that a chunk goes to `count` more readers of this transport. The caller ensures that
    /// there is room; chunks without room are not counted.
    ///
    /// # Example
    /// ```
    /// use streamdoor::base::Instant;
    /// use streamdoor::trace::{Deliveries, Transport};
    /// let mut deliveries = Deliveries::default();
    /// deliveries.note(Instant::from_nanos(100), Transport::Stream, 3);
    /// deliveries.settle(Instant::from_nanos(2_100));
    /// assert_eq!(deliveries.latencies()[0].sum_ns, 6_000);
    /// ```
    #[inline]
    pub fn note(&mut self, published_at: Instant, transport: Transport, count: u32) {
        // Most notes are for the chunk that another reader was just given.
        let newest = self.noted.iter_mut().rev().take(Transport::NAMES.len());
        let is_same =
            |noted: &&mut Noted| (noted.published_at, noted.transport) == (published_at, transport);
        if let Some(same) = { newest }.find(is_same) {
            same.count = same.count.saturating_add(count);
        } else if self.has_room(1) {
            self.noted.push(Noted { published_at, count, transport });
        }
    }

    /// True if `chunk_count` chunks, each for one transport, can be noted before
    /// [`Deliveries::settle`].
    pub fn has_room(&self, chunk_count: usize) -> bool {
        self.noted.len() + chunk_count <= DELIVERIES_NOTED_MAX
    }

    /// True if nothing is noted.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.noted.is_empty()
    }

    /// The number of notes, for [`Deliveries::settle_first`].
    pub fn noted_count(&self) -> usize {
        self.noted.len()
    }

    /// Records everything noted as passed on at `now`.
    pub fn settle(&mut self, now: Instant) {
        self.settle_first(self.noted.len(), now);
    }

    /// Records the first notes as passed on at `now`. The others stay.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn settle_first(&mut self, note_count: usize, now: Instant) {
        for Noted { published_at, count, transport } in self.noted.drain(..note_count) {
            // A producer in another process may claim a publication in the future.
            let ns = now.nanos().saturating_sub(published_at.nanos());
            self.latencies[transport as usize].record(ns, count);
        }
    }

    /// The latencies recorded so far.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_counted_in_the_bucket_whose_bound_it_does_not_pass() {
        let mut latency = Latency::default();
        for (at, bound_ns) in LATENCY_BUCKETS_NS.into_iter().enumerate() {
            latency.record(bound_ns, 1);
            latency.record(bound_ns + 1, 10);
            assert_eq!((latency.counts[at] % 10, latency.counts[at + 1]), (1, 10));
        }
        let mut twice = latency;
        twice.merge(&latency);
        assert_eq!((twice.count(), twice.sum_ns), (2 * latency.count(), 2 * latency.sum_ns));
        assert_eq!((twice.counts[0], twice.counts[1]), (2, 22));
        latency.record(0, 2);
        latency.record(u64::MAX, 3);
        assert_eq!((latency.counts[0], latency.counts[BUCKET_COUNT - 1]), (3, 13));
        assert_eq!(latency.sum_ns, u64::MAX);
    }

    #[test]
    fn what_is_noted_is_measured_when_it_is_settled_and_never_grows() {
        let mut deliveries = Deliveries::default();
        let capacity = deliveries.noted.capacity();
        for number in 0..DELIVERIES_NOTED_MAX as u64 {
            assert!(deliveries.has_room(1));
            deliveries.note(Instant::from_nanos(1_000 + number), Transport::Door, 1);
            deliveries.note(Instant::from_nanos(1_000 + number), Transport::Door, 1);
        }
        assert!(!deliveries.has_room(1));
        deliveries.note(Instant::from_nanos(1), Transport::Door, 2);
        assert!(!deliveries.is_settled());
        assert_eq!(*deliveries.latencies(), Latencies::default());
        deliveries.settle(Instant::from_nanos(1_500));
        assert!(deliveries.is_settled() && deliveries.noted.capacity() == capacity);
        let latency = deliveries.latencies()[Transport::Door as usize];
        assert_eq!(latency.counts[0], 2 * DELIVERIES_NOTED_MAX as u64);
        assert_eq!(latency.sum_ns, 2 * (1..=500).sum::<u64>());
        deliveries.note(Instant::from_nanos(9_000), Transport::Mcp, 1);
        deliveries.settle(Instant::from_nanos(1)); // Published in the future.
        assert_eq!(deliveries.latencies()[Transport::Mcp as usize].sum_ns, 0);
    }
}
