//! The result of a run, as text for people and as one line of JSON for `tools/bench`.
//!
//! Percentiles come from one HDR histogram over all deliveries of all subscribers. It has 3
//! significant digits and is exact below 2,048 ns.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::machine::describe;
use super::params::{Fanout, Mode};
use super::pressure::Pressure;

/// The percentiles of every report: name in text, key in JSON, quantile.
pub const PERCENTILES: [(&str, &str, f64); 5] = [
    ("p50", "p50_ns", 0.5),
    ("p95", "p95_ns", 0.95),
    ("p99", "p99_ns", 0.99),
    ("p99.9", "p99_9_ns", 0.999),
    ("p99.99", "p99_99_ns", 0.9999),
];

/// The result of one run.
pub struct Outcome {
    /// The measured values.
    pub measured: Measured,
    /// Number of preemptions by the kernel during the run. If it is not zero, doubt the result.
    pub preemptions: u64,
}

/// The measured values.
pub enum Measured {
    /// The result of a planned load.
    Latency {
        /// Number of chunks published and counted.
        chunks: u64,
        /// One sample per delivery, in the order of the deliveries.
        samples_ns: Vec<u32>,
        /// The histogram of all `samples_ns`.
        histogram: Histogram<u64>,
    },
    /// The result of a load without a plan.
    Throughput {
        /// Number of chunks published and counted.
        chunks: u64,
        /// Number of deliveries counted.
        deliveries: u64,
        /// The time from the end of the warm-up until the last delivery.
        elapsed_ns: u64,
    },
}

/// Returns a histogram with fixed bounds that holds every 32-bit sample.
pub fn histogram_of(samples_ns: &[u32]) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, u64::from(u32::MAX), 3)
        .expect("the bounds are constants that hdrhistogram accepts");
    for &sample in samples_ns {
        histogram.record(u64::from(sample)).expect("the bounds cover 32 bits");
    }
    histogram
}

impl Measured {
    /// Returns the result for `samples_ns`, which must not include those of the warm-up.
    pub fn latency(chunks: u64, samples_ns: &[u32], subscribers: u32) -> Measured {
        assert_eq!(samples_ns.len() as u64, chunks * u64::from(subscribers));
        let histogram = histogram_of(samples_ns);
        Measured::Latency { chunks, samples_ns: samples_ns.to_vec(), histogram }
    }

    fn to_json(&self) -> Map<String, Value> {
        let mut numbers = Map::new();
        match self {
            Measured::Latency { chunks, histogram, .. } => {
                numbers.insert("chunks".into(), json!(chunks));
                numbers.extend(latency_json(histogram));
            }
            Measured::Throughput { chunks, deliveries, elapsed_ns } => {
                let rate = |count| json!(per_second(count, *elapsed_ns).round());
                numbers.insert("chunks".into(), json!(chunks));
                numbers.insert("deliveries".into(), json!(deliveries));
                numbers.insert("chunks_per_s".into(), rate(*chunks));
                numbers.insert("deliveries_per_s".into(), rate(*deliveries));
            }
        }
        numbers
    }

    fn to_text(&self) -> String {
        match self {
            Measured::Latency { chunks, histogram, .. } => {
                format!("{}{}", counts_text(*chunks, histogram.len()), latency_text(histogram))
            }
            Measured::Throughput { chunks, deliveries, elapsed_ns } => format!(
                "{}{:<12}{:>12.3} million/s\n{:<12}{:>12.3} million/s\n",
                counts_text(*chunks, *deliveries),
                "published",
                per_second(*chunks, *elapsed_ns) / 1e6,
                "delivered",
                per_second(*deliveries, *elapsed_ns) / 1e6,
            ),
        }
    }
}

impl Outcome {
    /// Returns the numbers as JSON. Keys have units.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut numbers = self.measured.to_json();
        numbers.insert("preemptions".into(), json!(self.preemptions));
        numbers
    }

    /// Returns the numbers as lines of text: a name, spaces, a number, a unit.
    pub fn to_text(&self) -> String {
        format!("{}{:<12}{:>12}\n", self.measured.to_text(), "preempted", self.preemptions)
    }
}

fn per_second(count: u64, elapsed_ns: u64) -> f64 {
    count as f64 * 1e9 / elapsed_ns.max(1) as f64
}

fn counts_text(chunks: u64, deliveries: u64) -> String {
    format!("{:<12}{chunks:>12}\n{:<12}{deliveries:>12}\n", "chunks", "deliveries")
}

/// Returns the percentiles, the maximum and the mean of `histogram` as JSON.
pub fn latency_json(histogram: &Histogram<u64>) -> Map<String, Value> {
    let mut numbers = Map::new();
    for (_, key, quantile) in PERCENTILES {
        numbers.insert(key.into(), json!(histogram.value_at_quantile(quantile)));
    }
    numbers.insert("max_ns".into(), json!(histogram.max()));
    numbers.insert("mean_ns".into(), json!(histogram.mean().round()));
    numbers.insert("deliveries".into(), json!(histogram.len()));
    numbers
}

/// Returns the same as lines of text.
pub fn latency_text(histogram: &Histogram<u64>) -> String {
    let mut text = String::new();
    for (name, _, quantile) in PERCENTILES {
        text += &format!("{name:<12}{:>12} ns\n", histogram.value_at_quantile(quantile));
    }
    text += &format!("{:<12}{:>12} ns\n", "max", histogram.max());
    text += &format!("{:<12}{:>12.0} ns\n", "mean", histogram.mean());
    text
}

/// Returns one line on the machine, the way in which receivers wait, and the pinning.
pub fn machine_line(params: &Fanout) -> String {
    let pinning = match params.mode {
        Mode::Inline => format!("producer and subscribers on cpu {}", params.producer_cpu),
        Mode::Threads | Mode::Blocked => format!(
            "producer on cpu {}, subscribers on cpu {}",
            params.producer_cpu, params.subscribers_cpu
        ),
    };
    let idle = match params.mode {
        Mode::Inline | Mode::Threads => "both sides poll",
        Mode::Blocked => "the producer polls its plan, subscribers sleep",
    };
    format!("{}; idle: {idle}; {pinning}", describe())
}

/// Returns the load in one line.
pub fn load_line(program: &str, params: &Fanout) -> String {
    format!(
        "{program} fanout --impl {} --mode {} --subscribers {} --size {} --rate {} --touch {} \
         --duration {} --warmup {} --seed {}",
        params.implementation,
        params.mode_name(),
        params.subscribers,
        params.size_bytes,
        params.rate_name(),
        params.touch_name(),
        params.duration.as_secs_f64(),
        params.warmup.as_secs_f64(),
        params.seed,
    )
}

/// Returns the whole report of one `fanout`, as text or JSON. `memory_kib` is the peak memory of
/// the measured process.
pub fn fanout_report(program: &str, params: &Fanout, outcome: &Outcome, memory_kib: u64) -> String {
    let pressure = Pressure::now(None);
    if !params.json {
        let (machine, load) = (machine_line(params), load_line(program, params));
        let head = format!("machine     {machine}\nload        {load}\n");
        return head + &outcome.to_text() + &pressure.to_text();
    }
    let mut line = Map::new();
    line.insert("bench".into(), json!("fanout"));
    line.insert("impl".into(), json!(params.implementation));
    line.insert("mode".into(), json!(params.mode_name()));
    line.insert("subscribers".into(), json!(params.subscribers));
    line.insert("size_bytes".into(), json!(params.size_bytes));
    line.insert("rate".into(), json!(params.rate_name()));
    line.insert("touch".into(), json!(params.touch_name()));
    line.insert("duration_s".into(), json!(params.duration.as_secs_f64()));
    line.insert("warmup_s".into(), json!(params.warmup.as_secs_f64()));
    line.insert("seed".into(), json!(params.seed));
    line.extend(outcome.to_json());
    line.insert("memory_kib".into(), json!(memory_kib));
    line.insert("pressure".into(), pressure.to_json());
    line.insert("machine".into(), json!(machine_line(params)));
    format!("{}\n", Value::Object(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_samples_are_what_they_are() {
        let samples: Vec<u32> = (1..=1_000).collect();
        let outcome = Outcome { measured: Measured::latency(500, &samples, 2), preemptions: 0 };
        let numbers = outcome.to_json();
        for (key, value) in [("p50_ns", 500), ("p99_ns", 990), ("max_ns", 1_000), ("chunks", 500)] {
            assert_eq!(numbers[key], value, "{key}");
        }
        assert!(outcome.to_text().contains("p99.9                999 ns"), "{}", outcome.to_text());
    }

    #[test]
    fn throughput_is_per_second() {
        let (chunks, deliveries, elapsed_ns) = (100, 200, 500_000_000);
        let numbers = Measured::Throughput { chunks, deliveries, elapsed_ns }.to_json();
        assert_eq!(numbers["chunks_per_s"], 200.0);
        assert_eq!(numbers["deliveries_per_s"], 400.0);
    }
}
