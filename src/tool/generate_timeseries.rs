//! `generate_timeseries {duration_seconds, sample_rate_hz}`: samples of a known signal, on time.
//!
//! Sample k is due k / rate after the first step. This time is computed from k in integers, so that
//! nothing drifts. The timer wheel wakes the tool at most one tick late, and never early. Due
//! samples are emitted, and none is skipped: a tool that was held back catches up. The samples are
//! k = 0, 1, 2 … while k / rate is less than `duration_seconds`.
//!
//! The signal is a sine of 1 Hz and amplitude 1, with noise of at most ± 0.05 that depends on k
//! alone. The same arguments give the same samples. One chunk is one line:
//! `{"t":0.000300000,"value":0.028217,"index":3}`, where `t` is the due time in seconds, cut to
//! nanoseconds.

use std::io::Write;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Value, json};

use crate::base::{Instant, Random};
use crate::engine::Timeouts;
use crate::limits;
use crate::stream::Kind;
use crate::tool::{
    ArgumentError, Arguments, Context, EmitError, Need, Step, Tool, ToolError, ToolSpec, Work,
};

const DURATION_SECONDS: RangeInclusive<f64> = 0.001..=86_400.0;
const DURATION_SECONDS_DEFAULT: f64 = 10.0;
const RATE_HZ: RangeInclusive<f64> = 0.001..=10_000.0;
const RATE_HZ_DEFAULT: f64 = 100.0;
/// Longest sample with its newline: 20 digits of index, 20 and 9 of time.
const SAMPLE_BYTES_MAX: usize = 96;
/// Typical length of a sample.
const SAMPLE_BYTES_TYPICAL: u64 = 48;
/// Number of samples of one step. 16 take some 10 µs.
const SAMPLES_PER_STEP_MAX: u32 = 16;
/// Number of seconds of samples that the ring holds, for subscribers that lose their core.
const RING_SECONDS: f64 = 0.1;
/// Size of a sample with its descriptor.
const RING_BYTES_PER_SAMPLE: f64 = 112.0;
const RING_BYTES_MAX: u32 = 256 << 10;
const NOISE_SEED: u64 = 0x7135;
const NOISE_AMPLITUDE: f64 = 0.05;

/// The due times of samples, in integers. A rate of 0.001 Hz is exactly 1,000 µHz.
#[derive(Clone, Copy, Debug)]
struct Timetable {
    rate_uhz: u64,
    duration_ns: u64,
}

/// 10^9 ns × 10^6 µHz. The rate in samples per ns is `rate_uhz` divided by this.
const NS_TIMES_UHZ: u128 = 1_000_000_000_000_000;

impl Timetable {
    fn new(duration_seconds: f64, rate_hz: f64) -> Timetable {
        assert!(DURATION_SECONDS.contains(&duration_seconds));
        assert!(RATE_HZ.contains(&rate_hz));
        let duration_ns = (duration_seconds * 1e9).round() as u64;
        Timetable { rate_uhz: (rate_hz * 1e6).round() as u64, duration_ns }
    }

    /// Number of samples that are due before the duration is over.
    fn sample_count(self) -> u64 {
        let scaled = u128::from(self.duration_ns) * u128::from(self.rate_uhz);
        scaled.div_ceil(NS_TIMES_UHZ) as u64
    }

    /// The due time of sample `index` after the first one.
    fn due_ns(self, index: u64) -> u64 {
        (u128::from(index) * NS_TIMES_UHZ / u128::from(self.rate_uhz)) as u64
    }
}

struct GenerateTimeseries {
    timetable: Timetable,
    sample_count: u64,
    /// The next sample.
    index: u64,
    /// The due time of the first sample.
    start: Option<Instant>,
}

pub(super) fn spec() -> ToolSpec {
    let number = |bounds: RangeInclusive<f64>, default: f64, description: &str| {
        json!({
            "type": "number",
            "minimum": bounds.start(),
            "maximum": bounds.end(),
            "default": default,
            "description": description,
        })
    };
    let duration = "The length of the series, in seconds.";
    let rate = "The number of samples per second. Fractions are allowed.";
    ToolSpec {
        arguments: json!({
            "type": "object",
            "properties": {
                "duration_seconds": number(DURATION_SECONDS, DURATION_SECONDS_DEFAULT, duration),
                "sample_rate_hz": number(RATE_HZ, RATE_HZ_DEFAULT, rate),
            },
            "additionalProperties": false,
        }),
        // Two samples may be 1,000 s apart, and the tool cannot hang. Silence means nothing.
        timeouts: Timeouts::NONE,
        ..ToolSpec::new(
            "generate_timeseries",
            "Makes samples of a noisy sine in real time, each one at its time.",
        )
    }
}

pub(super) fn prepare(arguments: &Value, need: Need) -> Result<(Work, Need), ArgumentError> {
    let mut arguments = Arguments::new(arguments)?;
    let duration_seconds =
        decimal(&mut arguments, "duration_seconds", DURATION_SECONDS_DEFAULT, DURATION_SECONDS)?;
    let rate_hz = decimal(&mut arguments, "sample_rate_hz", RATE_HZ_DEFAULT, RATE_HZ)?;
    arguments.finish()?;
    let timetable = Timetable::new(duration_seconds, rate_hz);
    let sample_count = timetable.sample_count();
    let ring_bytes = (rate_hz * RING_SECONDS * RING_BYTES_PER_SAMPLE) as u32;
    let need = Need {
        ring_bytes: ring_bytes.min(RING_BYTES_MAX).max(need.ring_bytes),
        chunk_bytes: SAMPLE_BYTES_MAX as u32,
        estimated_bytes: Some(sample_count * SAMPLE_BYTES_TYPICAL),
    };
    let tool = GenerateTimeseries { timetable, sample_count, index: 0, start: None };
    Ok((Work::Steps(Box::new(tool)), need))
}

/// Takes a number within `bounds`, whole or not.
fn decimal(
    arguments: &mut Arguments,
    field: &str,
    default: f64,
    bounds: RangeInclusive<f64>,
) -> Result<f64, ArgumentError> {
    let Some(value) = arguments.value(field) else { return Ok(default) };
    match value.as_f64() {
        Some(number) if bounds.contains(&number) => Ok(number),
        _ => {
            let (low, high) = (bounds.start(), bounds.end());
            let problem = format!("must be a number from {low} to {high}, not {value}");
            Err(ArgumentError::new(field, problem))
        }
    }
}

/// The signal at `t_ns`, a pure function of its arguments.
fn value_at(t_ns: u64, index: u64) -> f64 {
    let phase = (t_ns % 1_000_000_000) as f64 / 1e9;
    let noise = 2.0 * Random::new(NOISE_SEED ^ index).unit() - 1.0;
    (std::f64::consts::TAU * phase).sin() + NOISE_AMPLITUDE * noise
}

/// Writes one sample as a line of JSON, and returns its length.
fn write_sample(buffer: &mut [u8; SAMPLE_BYTES_MAX], t_ns: u64, index: u64) -> usize {
    let (seconds, nanos) = (t_ns / 1_000_000_000, t_ns % 1_000_000_000);
    let value = value_at(t_ns, index);
    let mut rest = &mut buffer[..];
    writeln!(rest, "{{\"t\":{seconds}.{nanos:09},\"value\":{value:.6},\"index\":{index}}}")
        .expect("the longest sample fits");
    SAMPLE_BYTES_MAX - rest.len()
}

impl GenerateTimeseries {
    /// Emits due samples, at most one step's worth, and returns the next step.
    fn emit_due(&mut self, start: Instant, context: &mut Context<'_>) -> Step {
        let mut buffer = [0; SAMPLE_BYTES_MAX];
        for _ in 0..SAMPLES_PER_STEP_MAX.min(limits::BURST_CHUNKS_MAX) {
            if self.index == self.sample_count {
                return Step::Done;
            }
            let t_ns = self.timetable.due_ns(self.index);
            let due = start + Duration::from_nanos(t_ns);
            if due > context.now() {
                return Step::Sleep(due);
            }
            let length = write_sample(&mut buffer, t_ns, self.index);
            match context.emit_as(Kind::Sample, Kind::Sample as u8, &buffer[..length]) {
                Ok(_) => self.index += 1,
                Err(EmitError::Blocked) => return Step::Blocked,
                Err(EmitError::TooLarge { chunk_bytes_max }) => {
                    let text = format!(
                        "a sample is longer than the longest chunk, {chunk_bytes_max} bytes"
                    );
                    return Step::Failed(ToolError::new(text));
                }
            }
        }
        Step::Again
    }
}

impl Tool for GenerateTimeseries {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        if self.start.is_none() {
            context.expect_total(self.sample_count);
        }
        let start = *self.start.get_or_insert(context.now());
        let index_before = self.index;
        let step = self.emit_due(start, context);
        if self.index > index_before {
            context.progress(self.index as f64, Some(self.sample_count as f64));
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted_as_long_as_they_begin_before_the_end() {
        let count = |duration, rate| Timetable::new(duration, rate).sample_count();
        assert_eq!(count(5.0, 10_000.0), 50_000);
        assert_eq!(count(0.1, 30.0), 3);
        assert_eq!(count(0.101, 30.0), 4);
        assert_eq!(count(0.001, 0.001), 1);
        assert_eq!(count(1_000.0, 0.001), 1);
        assert_eq!(count(1_000.5, 0.001), 2);
        assert_eq!(count(86_400.0, 10_000.0), 864_000_000);
    }

    #[test]
    fn due_times_do_not_drift_in_a_day() {
        let timetable = Timetable::new(86_400.0, 3.0);
        for index in [0, 1, 2, 3, 259_197, 259_199] {
            assert_eq!(timetable.due_ns(index), index * 1_000_000_000 / 3);
        }
        assert_eq!(Timetable::new(1.0, 0.01).due_ns(1), 100_000_000_000);
        let last = Timetable::new(86_400.0, 10_000.0).due_ns(863_999_999);
        assert_eq!(last, 86_399_999_900_000);
    }

    #[test]
    fn the_longest_sample_fits_and_the_same_sample_is_the_same_line() {
        let mut buffer = [0; SAMPLE_BYTES_MAX];
        write_sample(&mut buffer, u64::MAX, u64::MAX);
        let mut lines = [0, 1].map(|_| {
            let length = write_sample(&mut buffer, 250_000_000, 3);
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        });
        assert_eq!(lines[0], lines[1]);
        let sample: Value = serde_json::from_str(lines[0].as_mut_str()).unwrap();
        assert_eq!(sample["t"], 0.25);
        assert_eq!(sample["index"], 3);
        assert!((sample["value"].as_f64().unwrap() - 1.0).abs() <= NOISE_AMPLITUDE);
    }
}
