//! Files for other tools. A `.hgrm` is the text table of HdrHistogram, in microseconds. An `.hlog`
//! is an HDR interval log, version 2, compressed, with ten histograms per second, in nanoseconds.
//!
//! Intervals are cut by the order of deliveries, `rate × subscribers` a second. Near a cut, the
//! same chunk may be in neighbouring intervals for two subscribers.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use super::Failure;
use super::params::{Fanout, Rate};
use super::report::{Measured, Outcome, histogram_of, load_line, machine_line};

/// Number of rows of the table before the distance to 1 is halved.
const TICKS_PER_HALF_DISTANCE: u32 = 5;
/// Intervals per second of an interval log. They show changes even within a run of one second.
const INTERVALS_PER_S: usize = 10;

/// Writes `<impl>-<mode>-<subscribers>x<size>-<rate>.hgrm` and `.hlog` into `params.out`. Does
/// nothing without that directory or without latencies. `end` is the wall time after the run.
///
/// # Errors
/// [`Failure::Failed`], which names the path.
pub fn write(
    program: &str,
    params: &Fanout,
    outcome: &Outcome,
    end: SystemTime,
) -> Result<(), Failure> {
    let (Some(directory), Rate::PerSecond(rate)) = (&params.out, params.rate) else {
        return Ok(());
    };
    let Measured::Latency { samples_ns, histogram, .. } = &outcome.measured else {
        unreachable!("a rate gives latencies");
    };
    let name = format!(
        "{}-{}-{}x{}-{rate}",
        params.implementation,
        params.mode_name(),
        params.subscribers,
        params.size_bytes
    );
    let record = Record {
        name: &name,
        comments: &[machine_line(params), load_line(program, params)],
        samples_ns,
        histogram,
        deliveries_per_s: u64::from(rate) * u64::from(params.subscribers),
        start: end - params.duration,
    };
    record.write(directory)
}

/// The latencies of one run.
pub struct Record<'a> {
    /// The name of the files without the extension.
    pub name: &'a str,
    /// The lines at the head of the interval log.
    pub comments: &'a [String],
    /// The samples in the order of deliveries.
    pub samples_ns: &'a [u32],
    /// The histogram of all `samples_ns`.
    pub histogram: &'a Histogram<u64>,
    /// Number of deliveries per second, by which intervals are cut.
    pub deliveries_per_s: u64,
    /// The time at which the run began.
    pub start: SystemTime,
}

impl Record<'_> {
    /// Writes both files into `directory`, which is created if necessary.
    ///
    /// # Errors
    /// [`Failure::Failed`], which names the path.
    pub fn write(&self, directory: &Path) -> Result<(), Failure> {
        write_table(directory, self.name, self.histogram)?;
        let deliveries_per_s = self.deliveries_per_s as usize;
        let log = interval_log(self.samples_ns, deliveries_per_s, self.start, self.comments);
        create(&directory.join(format!("{}.hlog", self.name)), |path| fs::write(path, &log))
    }
}

/// Writes `name.hgrm` into `directory`, which is created if necessary.
///
/// # Errors
/// [`Failure::Failed`], which names the path.
pub fn write_table(
    directory: &Path,
    name: &str,
    histogram: &Histogram<u64>,
) -> Result<(), Failure> {
    create(directory, |directory| fs::create_dir_all(directory))?;
    let table = directory.join(format!("{name}.hgrm"));
    create(&table, |path| fs::write(path, percentile_table(histogram)))
}

fn create(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), Failure> {
    make(path).map_err(|error| Failure::Failed(format!("cannot write {}: {error}", path.display())))
}

/// Returns the table that HdrHistogram's plotters read.
fn percentile_table(histogram: &Histogram<u64>) -> String {
    let us = |nanos: f64| nanos / 1_000.0;
    let mut text = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    for step in histogram.iter_quantiles(TICKS_PER_HALF_DISTANCE) {
        let (value, quantile) = (step.value_iterated_to() as f64, step.quantile_iterated_to());
        let count = histogram.count_between(0, step.value_iterated_to());
        let _ = write!(text, "{:>12.3} {quantile:>14.12} {count:>10}", us(value));
        // The last line has no distance to 1. By convention it has no number there.
        let _ = match quantile < 1.0 {
            true => writeln!(text, " {:>14.2}", 1.0 / (1.0 - quantile)),
            false => writeln!(text),
        };
    }
    let deviation = us(histogram.stdev());
    let _ = writeln!(
        text,
        "#[Mean    = {:>12.3}, StdDeviation   = {deviation:>12.3}]\n\
         #[Max     = {:>12.3}, Total count    = {:>12}]\n\
         #[Buckets = {:>12}, SubBuckets     = {:>12}]",
        us(histogram.mean()),
        us(histogram.max() as f64),
        histogram.len(),
        histogram.buckets(),
        2_048, // For 3 significant digits.
    );
    text
}

/// Returns the interval log, with one histogram for each tenth of a second of deliveries.
fn interval_log(
    samples_ns: &[u32],
    deliveries_per_s: usize,
    start: SystemTime,
    comments: &[String],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    for comment in comments {
        builder.add_comment(comment);
    }
    builder.with_start_time(start).with_base_time(start);
    let mut log = builder
        .begin_log_with(&mut bytes, &mut serializer)
        .expect("writing into memory does not fail");
    let seconds = |count: usize| Duration::from_secs_f64(count as f64 / deliveries_per_s as f64);
    let interval_deliveries = (deliveries_per_s / INTERVALS_PER_S).max(1);
    for (number, samples) in samples_ns.chunks(interval_deliveries).enumerate() {
        let (start, duration) = (seconds(number * interval_deliveries), seconds(samples.len()));
        log.write_histogram(&histogram_of(samples), start, duration, None)
            .expect("a histogram of 32-bit values fits the format");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use std::time::UNIX_EPOCH;

    #[test]
    fn the_interval_log_can_be_read_back_and_holds_every_sample() {
        let samples: Vec<u32> = (1..=25).collect();
        let bytes = interval_log(&samples, 100, UNIX_EPOCH, &["a comment".into()]);
        let mut counts = Vec::new();
        for entry in IntervalLogIterator::new(&bytes) {
            if let LogEntry::Interval(interval) = entry.unwrap() {
                let text = base64_decode(interval.encoded_histogram());
                let histogram: Histogram<u64> =
                    Deserializer::new().deserialize(&mut text.as_slice()).unwrap();
                counts.push((interval.start_timestamp().as_millis(), histogram.len()));
            }
        }
        assert_eq!(counts, [(0, 10), (100, 10), (200, 5)]);
        assert!(bytes.starts_with(b"#a comment\n"), "{}", String::from_utf8_lossy(&bytes));
    }

    /// Decodes base64 in the standard alphabet. The input comes from the writer above.
    fn base64_decode(text: &str) -> Vec<u8> {
        const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
        for byte in text.trim_end_matches('=').bytes() {
            let digit = ALPHABET.iter().position(|&b| b == byte).unwrap();
            bits = bits << 6 | digit as u32;
            count += 6;
            if count >= 8 {
                count -= 8;
                bytes.push((bits >> count) as u8);
            }
        }
        bytes
    }

    #[test]
    fn the_percentile_table_ends_with_everything() {
        let histogram = histogram_of(&[1_000, 2_000, 3_000, 4_000]);
        let table = percentile_table(&histogram);
        let rows: Vec<Vec<&str>> = table
            .lines()
            .skip(2)
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows[rows.len() - 1], ["4.001", "1.000000000000", "4"], "{table}");
        assert!(table.contains("Total count    =            4]"), "{table}");
    }
}
