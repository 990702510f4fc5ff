//! The load: the times at which chunks are due. The producer calls [`Source::next`] until it
//! returns `None`.
//!
//! [`OpenLoop`] plans every send time in advance, independently of the implementation's speed. It
//! stamps the payload with the *planned* time. A producer that falls behind thus makes late chunks,
//! not fewer samples. Gaps are uniform in [0.5, 1.5] / rate, from [`Arrivals`], which servers use,
//! too. Exact pacing would lock onto the kernel's tick. Exponential gaps would measure queueing of
//! bursts. [`FlatOut`] runs as fast as possible, with one clock read per batch. Both run on the
//! producer's thread.

use std::time::Duration;

use streamdoor::base::Random;

use super::BATCH_CHUNKS;
use super::machine::now_ns;

/// Bytes at the start of every payload: the planned send time, or the number of the batch.
pub const STAMP_BYTES: usize = 8;
/// Time between the start of a run and its first chunk. By then, every thread is spinning.
const LEAD: Duration = Duration::from_millis(1);

/// Decides what to publish and when.
pub trait Source {
    /// Waits until a chunk is due. Returns a payload, and how many chunks of it to publish, at most
    /// [`BATCH_CHUNKS`]. Returns `None` after the last.
    fn next(&mut self) -> Option<(&[u8], u32)>;
    /// Returns the totals of the load, once [`Source::next`] has returned `None`.
    fn tally(&self) -> Tally;
}

/// The totals of a load.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    /// Number of chunks, including the warm-up.
    pub published_chunks: u64,
    /// The sum of all stamps, wrapping. Each subscriber must have seen the same sum.
    pub stamp_sum: u64,
    /// Number of chunks of the warm-up.
    pub warmup_chunks: u64,
    /// The end of the warm-up.
    pub start_ns: u64,
    /// The time at which the last chunk was due, or at which the last call ended the load.
    pub end_ns: u64,
}

/// Returns a payload of `size_bytes`, at least a stamp. Its bytes are random, so that no
/// compression and no `memset` could make them.
pub fn payload(size_bytes: usize, seed: u64) -> Box<[u8]> {
    assert!(size_bytes >= STAMP_BYTES); // `params` refuses smaller ones.
    let mut bytes = vec![0; size_bytes].into_boxed_slice();
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// The times at which chunks are due after the start of a run. The gaps depend on rate and seed
/// alone.
#[derive(Clone, Debug)]
pub struct Arrivals {
    random: Random,
    gap_ns_min: u64,
    gap_ns_span: u64,
    offset_ns: u64,
}

impl Arrivals {
    /// Returns arrivals with `rate` chunks a second on average.
    pub fn new(rate: u32, seed: u64) -> Arrivals {
        assert!(rate > 0);
        let mean_ns = 1_000_000_000 / u64::from(rate);
        let random = Random::new(seed);
        Arrivals { random, gap_ns_min: mean_ns / 2, gap_ns_span: mean_ns + 1, offset_ns: 0 }
    }

    /// Returns the nanoseconds from the start to the next chunk.
    #[inline(always)]
    pub fn next_ns(&mut self) -> u64 {
        self.offset_ns += self.gap_ns_min + self.random.below(self.gap_ns_span);
        self.offset_ns
    }
}

/// Chunks at planned times.
pub struct OpenLoop {
    arrivals: Arrivals,
    payload: Box<[u8]>,
    /// The time from which the arrivals count.
    origin_ns: u64,
    planned_ns: u64,
    start_ns: u64,
    published_chunks: u64,
    total_chunks: u64,
    warmup_chunks: u64,
    stamp_sum: u64,
}

impl OpenLoop {
    /// Returns a load of `warmup_chunks` and then `counted_chunks`, with `rate` a second on
    /// average.
    pub fn new(rate: u32, warmup_chunks: u64, counted_chunks: u64, size: usize, seed: u64) -> Self {
        OpenLoop {
            arrivals: Arrivals::new(rate, seed),
            payload: payload(size, seed),
            origin_ns: 0,
            planned_ns: 0,
            start_ns: 0,
            published_chunks: 0,
            total_chunks: warmup_chunks + counted_chunks,
            warmup_chunks,
            stamp_sum: 0,
        }
    }

    /// Sets the start of the plan. By default it is shortly after the first call of `next`.
    pub fn begin_at(&mut self, origin_ns: u64) {
        self.origin_ns = origin_ns;
    }
}

impl Source for OpenLoop {
    #[inline(always)]
    fn next(&mut self) -> Option<(&[u8], u32)> {
        if self.published_chunks == self.total_chunks {
            return None;
        }
        if self.origin_ns == 0 {
            self.origin_ns = now_ns() + LEAD.as_nanos() as u64;
        }
        self.planned_ns = self.origin_ns + self.arrivals.next_ns();
        if self.published_chunks == self.warmup_chunks {
            self.start_ns = self.planned_ns;
        }
        self.published_chunks += 1;
        self.stamp_sum = self.stamp_sum.wrapping_add(self.planned_ns);
        self.payload[..STAMP_BYTES].copy_from_slice(&self.planned_ns.to_le_bytes());
        while now_ns() < self.planned_ns {}
        Some((&self.payload, 1))
    }

    fn tally(&self) -> Tally {
        Tally {
            published_chunks: self.published_chunks,
            stamp_sum: self.stamp_sum,
            warmup_chunks: self.warmup_chunks,
            start_ns: self.start_ns,
            end_ns: self.planned_ns,
        }
    }
}

/// Batches without a pause, for a limited time.
pub struct FlatOut {
    payload: Box<[u8]>,
    warmup: Duration,
    duration: Duration,
    batch_count: u64,
    warmup_chunks: u64,
    stamp_sum: u64,
    warmup_end_ns: u64,
    deadline_ns: u64,
    start_ns: u64,
    end_ns: u64,
}

impl FlatOut {
    /// Returns a load that runs flat out for `warmup`, which is not counted, and then for
    /// `duration`.
    pub fn new(warmup: Duration, duration: Duration, size_bytes: usize, seed: u64) -> FlatOut {
        FlatOut {
            payload: payload(size_bytes, seed),
            warmup,
            duration,
            batch_count: 0,
            warmup_chunks: 0,
            stamp_sum: 0,
            warmup_end_ns: 0,
            deadline_ns: u64::MAX, // Until the warm-up is over.
            start_ns: 0,
            end_ns: 0,
        }
    }
}

impl Source for FlatOut {
    #[inline(always)]
    fn next(&mut self) -> Option<(&[u8], u32)> {
        let now = now_ns();
        if self.batch_count == 0 {
            self.warmup_end_ns = now + self.warmup.as_nanos() as u64;
        }
        if self.start_ns == 0 && now >= self.warmup_end_ns {
            // Counted from here and not from the plan: a stall in the warm-up costs no counted
            // time.
            self.start_ns = now;
            self.deadline_ns = now + self.duration.as_nanos() as u64;
            self.warmup_chunks = self.batch_count * u64::from(BATCH_CHUNKS);
        }
        if now >= self.deadline_ns {
            self.end_ns = now;
            return None;
        }
        self.batch_count += 1;
        let weight = self.batch_count.wrapping_mul(u64::from(BATCH_CHUNKS));
        self.stamp_sum = self.stamp_sum.wrapping_add(weight);
        self.payload[..STAMP_BYTES].copy_from_slice(&self.batch_count.to_le_bytes());
        Some((&self.payload, BATCH_CHUNKS))
    }

    fn tally(&self) -> Tally {
        Tally {
            published_chunks: self.batch_count * u64::from(BATCH_CHUNKS),
            stamp_sum: self.stamp_sum,
            warmup_chunks: self.warmup_chunks,
            start_ns: self.start_ns,
            end_ns: self.end_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(seed: u64) -> Vec<u64> {
        let mut source = OpenLoop::new(1_000_000, 0, 1_000, STAMP_BYTES, seed);
        let mut stamps = Vec::new();
        while let Some((payload, count)) = source.next() {
            assert_eq!(count, 1);
            stamps.push(u64::from_le_bytes(payload[..STAMP_BYTES].try_into().unwrap()));
            assert!(now_ns() >= stamps[stamps.len() - 1]);
        }
        assert_eq!(source.tally().published_chunks, 1_000);
        assert_eq!(source.tally().stamp_sum, stamps.iter().fold(0, |a: u64, &b| a.wrapping_add(b)));
        stamps
    }

    #[test]
    fn gaps_are_jittered_around_the_mean_and_depend_on_the_seed_alone() {
        let gaps = |seed| stamps(seed).windows(2).map(|w| w[1] - w[0]).collect::<Vec<u64>>();
        let first = gaps(7);
        assert_eq!(first, gaps(7));
        assert_ne!(first, gaps(8));
        assert!(first.iter().all(|gap| (500..=1_500).contains(gap)), "seed 7: {first:?}");
        let mean = first.iter().sum::<u64>() / first.len() as u64;
        assert!((900..1_100).contains(&mean), "seed 7: mean gap {mean} ns");
    }

    #[test]
    fn flat_out_counts_whole_batches_and_sums_their_stamps() {
        let brief = Duration::from_micros(100);
        let mut source = FlatOut::new(brief, brief, STAMP_BYTES, 1);
        let (mut chunks, mut sum) = (0, 0u64);
        while let Some((payload, count)) = source.next() {
            let stamp = u64::from_le_bytes(payload[..STAMP_BYTES].try_into().unwrap());
            chunks += u64::from(count);
            sum += stamp * u64::from(count);
        }
        let tally = source.tally();
        assert_eq!((tally.published_chunks, tally.stamp_sum), (chunks, sum));
        assert!(tally.warmup_chunks <= tally.published_chunks);
        assert!(tally.end_ns >= tally.start_ns);
    }
}
