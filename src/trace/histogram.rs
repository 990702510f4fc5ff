//! Latency histogram: `hdrhistogram` with fixed bounds.
//!
//! The constructor allocates all memory. Recording never allocates, resizes or fails. A value above
//! the bound counts as the bound, is counted separately, and still shows in the exact maximum. The
//! output is text that HdrHistogram's own tools read: `.hgrm` and the interval log. It has no
//! clock: nanoseconds are arguments. The tests are at the end of this file.

use std::time::Duration;
use std::{fmt, io};

use crate::limits::{HISTOGRAM_DIGITS, HISTOGRAM_DURATION_MAX};

/// Lines of a `.hgrm` per halving of the distance to 100 %, the value of HdrHistogram's tools.
const TICKS_PER_HALF: u32 = 5;
const NS_PER_US: f64 = 1_000.0;

/// A histogram of durations, in nanoseconds.
///
/// # Example
/// ```
/// let mut latency = streamdoor::trace::Histogram::default();
/// for ns in 1..=10_000 {
///     latency.record(ns);
/// }
/// assert_eq!(latency.summary().max_ns, 10_000);
/// assert_eq!(latency.summary().p50_ns / 10, 500);
/// ```
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: hdrhistogram::Histogram<u64>,
    clamped_count: u64,
    max_ns: u64,
}

/// The usual statistics of a histogram. `Display` prints them on one line, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Number of recorded values.
    pub count: u64,
    /// Mean of the values.
    pub mean_ns: f64,
    /// The 50th percentile: half of the values are at most this.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 95th percentile.
    pub p95_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p99_9_ns: u64,
    /// The 99.99th percentile.
    pub p99_99_ns: u64,
    /// The longest value, exactly, even if it was above the bound.
    pub max_ns: u64,
    /// Number of values above the bound.
    pub clamped_count: u64,
}

impl Histogram {
    /// Creates a histogram of 1 ns to `bound` whose values keep `digits` decimal digits.
    ///
    /// Up to 60 s, 3 digits take 216 KiB and 2 digits 30 KiB.
    ///
    /// # Panics
    /// If `bound` is below 2 ns or above 2^62 ns, or `digits` is not 1 to 5.
    pub fn new(bound: Duration, digits: u8) -> Histogram {
        assert!(bound.as_nanos() >= 2);
        assert!(bound.as_nanos() <= 1 << 62);
        assert!((1..=5).contains(&digits));
        let buckets = hdrhistogram::Histogram::new_with_bounds(1, bound.as_nanos() as u64, digits)
            .expect("bounds were checked");
        assert!(!buckets.is_auto_resize());
        Histogram { buckets, clamped_count: 0, max_ns: 0 }
    }

    /// Records one value.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Records one value `count` times.
    #[inline]
    pub fn record_many(&mut self, ns: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.max_ns = self.max_ns.max(ns);
        let bound_ns = self.buckets.high();
        if ns > bound_ns {
            self.clamped_count += count;
        }
        self.buckets.saturating_record_n(ns.min(bound_ns), count);
    }

    /// Adds the values that `other` recorded.
    ///
    /// # Panics
    /// If the two were built with different bounds or digits.
    pub fn merge(&mut self, other: &Histogram) {
        assert_eq!(self.buckets.high(), other.buckets.high());
        assert_eq!(self.buckets.sigfig(), other.buckets.sigfig());
        self.buckets.add(&other.buckets).expect("the same bounds hold the same values");
        self.clamped_count += other.clamped_count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Removes all values, and keeps the memory.
    pub fn reset(&mut self) {
        self.buckets.reset();
        self.clamped_count = 0;
        self.max_ns = 0;
    }

    /// Number of recorded values.
    pub fn count(&self) -> u64 {
        self.buckets.len()
    }

    /// The smallest value that at least `percent` % of all values do not exceed; 0 if empty.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        self.buckets.value_at_percentile(percent).min(self.max_ns)
    }

    /// Returns the usual statistics.
    pub fn summary(&self) -> Summary {
        Summary {
            count: self.count(),
            mean_ns: self.buckets.mean(),
            p50_ns: self.percentile_ns(50.0),
            p90_ns: self.percentile_ns(90.0),
            p95_ns: self.percentile_ns(95.0),
            p99_ns: self.percentile_ns(99.0),
            p99_9_ns: self.percentile_ns(99.9),
            p99_99_ns: self.percentile_ns(99.99),
            max_ns: self.max_ns,
            clamped_count: self.clamped_count,
        }
    }

    /// Writes the percentile distribution as a `.hgrm` file in µs, in the format of HdrHistogram's
    /// plotter and of its Java `outputPercentileDistribution`.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn write_hgrm(&self, out: &mut impl io::Write) -> io::Result<()> {
        let heads = ("Value", "Percentile", "TotalCount", "1/(1-Percentile)");
        writeln!(out, "{:>12} {:>14} {:>10} {:>14}\n", heads.0, heads.1, heads.2, heads.3)?;
        let mut count = 0;
        for step in self.buckets.iter_quantiles(TICKS_PER_HALF) {
            count += step.count_since_last_iteration();
            let value_us = step.value_iterated_to() as f64 / NS_PER_US;
            let quantile = step.quantile_iterated_to();
            write!(out, "{value_us:>12.3} {quantile:>14.12} {count:>10}")?;
            match quantile < 1.0 {
                true => writeln!(out, " {:>14.2}", 1.0 / (1.0 - quantile))?,
                false => writeln!(out)?,
            }
        }
        let (mean_us, stdev_us) =
            (self.buckets.mean() / NS_PER_US, self.buckets.stdev() / NS_PER_US);
        let (max_us, total) = (self.buckets.max() as f64 / NS_PER_US, self.count());
        let sub_buckets = (2 * 10u32.pow(u32::from(self.buckets.sigfig()))).next_power_of_two();
        let buckets = self.buckets.buckets();
        writeln!(out, "#[Mean    = {mean_us:>12.3}, StdDeviation   = {stdev_us:>12.3}]")?;
        writeln!(out, "#[Max     = {max_us:>12.3}, Total count    = {total:>12}]")?;
        writeln!(out, "#[Buckets = {buckets:>12}, SubBuckets     = {sub_buckets:>12}]")
    }
}

impl Default for Histogram {
    /// A histogram of 1 ns to 60 s with three digits.
    fn default() -> Histogram {
        Histogram::new(HISTOGRAM_DURATION_MAX, HISTOGRAM_DIGITS)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "n {}  mean {:.3}", self.count, self.mean_ns / NS_PER_US)?;
        let percentiles = [
            ("p50", self.p50_ns),
            ("p90", self.p90_ns),
            ("p95", self.p95_ns),
            ("p99", self.p99_ns),
            ("p99.9", self.p99_9_ns),
            ("p99.99", self.p99_99_ns),
            ("max", self.max_ns),
        ];
        for (name, ns) in percentiles {
            write!(out, "  {name} {}.{:03}", ns / 1_000, ns % 1_000)?;
        }
        write!(out, " µs")?;
        if self.clamped_count > 0 {
            write!(out, " ({} above the bound)", self.clamped_count)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;

    #[test]
    fn percentiles_are_right_to_three_digits() {
        let mut histogram = Histogram::default();
        let mut random = Random::new(1);
        let mut values: Vec<u64> = (0..100_000).map(|_| 1 << random.below(35)).collect();
        values.iter_mut().for_each(|value| *value += random.below(*value));
        values.iter().for_each(|&value| histogram.record(value));
        values.sort_unstable();
        let summary = histogram.summary();
        for (percent, got) in [(50, summary.p50_ns), (90, summary.p90_ns), (99, summary.p99_ns)] {
            let exact = values[values.len() * percent / 100 - 1];
            assert!(got.abs_diff(exact) <= exact / 1_000, "p{percent}: {got} for {exact}");
        }
        assert_eq!(summary.max_ns, *values.last().unwrap());
        assert_eq!(summary.count, 100_000);
    }

    #[test]
    fn what_is_above_the_bound_is_clamped_and_counted_and_shows_as_the_maximum() {
        let mut histogram = Histogram::new(Duration::from_secs(1), 2);
        let buckets_before = histogram.buckets.distinct_values();
        for ns in [0, 1, 1_000_000_000, 1_000_000_001, u64::MAX] {
            histogram.record(ns);
        }
        histogram.record_many(5, 0);
        let summary = histogram.summary();
        assert_eq!((summary.count, summary.clamped_count), (5, 2));
        assert_eq!(summary.max_ns, u64::MAX);
        assert!(summary.p90_ns.abs_diff(1_000_000_000) <= 10_000_000);
        assert_eq!(histogram.buckets.distinct_values(), buckets_before);
        histogram.reset();
        assert_eq!(histogram.summary(), Histogram::new(Duration::from_secs(1), 2).summary());
    }

    #[test]
    fn a_merge_is_as_if_both_had_been_recorded_in_one() {
        let (mut one, mut two, mut both) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        for ns in 1..10_000 {
            one.record(ns);
            two.record(ns * 10_000_000);
            both.record(ns);
            both.record(ns * 10_000_000);
        }
        one.merge(&two);
        assert_eq!(one.summary(), both.summary());
        assert!(one.summary().clamped_count > 0);
    }

    #[test]
    fn a_summary_is_printed_on_one_line_in_microseconds() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.summary().max_ns, 0);
        histogram.record_many(1_500, 3);
        let expected = "n 3  mean 1.500  p50 1.500  p90 1.500  p95 1.500  p99 1.500  \
                        p99.9 1.500  p99.99 1.500  max 1.500 µs";
        assert_eq!(histogram.summary().to_string(), expected);
    }

    #[test]
    fn a_percentile_distribution_has_the_form_that_plotters_read() {
        let mut histogram = Histogram::default();
        (1..=1_000).for_each(|us| histogram.record(us * 1_000));
        let mut text = Vec::new();
        histogram.write_hgrm(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "       Value     Percentile TotalCount 1/(1-Percentile)");
        assert_eq!(lines[1], "");
        assert_eq!(lines[2], "       1.000 0.000000000000          1           1.00");
        let rows = &lines[2..lines.len() - 3];
        let number = |row: &str, column| -> f64 {
            row.split_whitespace().nth(column).unwrap().parse().unwrap()
        };
        for pair in rows.windows(2) {
            assert!((0..3).all(|column| number(pair[0], column) <= number(pair[1], column)));
        }
        let last = rows[rows.len() - 1];
        assert_eq!((number(last, 1), number(last, 2)), (1.0, 1_000.0));
        assert_eq!(last.split_whitespace().count(), 3);
        assert!(lines[lines.len() - 2].starts_with("#[Max     =     1000.447, Total count"));
    }
}
