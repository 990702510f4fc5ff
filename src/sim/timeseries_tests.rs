//! `generate_timeseries` through the public interface: every sample arrives in order, at its own
//! exact time, never early. In simulated time it is at most one tick of the wheel late. In real
//! time the test prints the lateness.
#![cfg(feature = "tools")]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::base::Instant;
use streamdoor::engine::{Hold, SubscribeSpec};
use streamdoor::limits;
use streamdoor::memory::RingPoolConfig;
use streamdoor::reactor::{Idle, Reactor};
use streamdoor::shard::{Delivery, ExecuteError, ExecuteOptions, Shard, ShardConfig, outcome_of};
use streamdoor::sim::reactor::{POLL_COST, SimReactor};
use streamdoor::sim::world::{SimFaults, SimWorld};
use streamdoor::stream::{Kind, Outcome, Policy};
use streamdoor::tool::StartError;
use streamdoor::trace::Histogram;

/// A received sample.
#[derive(Clone, Debug)]
struct Sample {
    seq: u64,
    kind: Kind,
    chunks_expected: Option<u64>,
    published_at: Instant,
    line: String,
}

impl Sample {
    fn new(chunk: &streamdoor::shard::Chunk<'_>) -> Sample {
        Sample {
            seq: chunk.seq,
            kind: chunk.kind,
            chunks_expected: chunk.chunks_expected,
            published_at: chunk.published_at,
            line: String::from_utf8(chunk.data.to_vec()).expect("a sample is text"),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.line).expect("a sample is JSON")
    }

    /// Returns `t` of the line, in ns.
    fn t_ns(&self) -> u64 {
        let text = self.line.strip_prefix("{\"t\":").expect("`t` comes first");
        let (text, _) = text.split_once(',').expect("there is more");
        let (seconds, nanos) = text.split_once('.').expect("nine digits of it");
        assert_eq!(nanos.len(), 9);
        seconds.parse::<u64>().unwrap() * 1_000_000_000 + nanos.parse::<u64>().unwrap()
    }
}

fn options() -> ExecuteOptions {
    let hold = Hold::UntilRead { deadline: Duration::from_secs(60) };
    ExecuteOptions { hold, ..Default::default() }
}

fn everything() -> SubscribeSpec {
    SubscribeSpec { policy: Policy::Block, ..Default::default() }
}

/// Runs the tool on a shard over `reactor`, driven by hand on this thread.
fn run_on<R: Reactor + 'static>(reactor: R, arguments: &Value) -> Vec<Sample> {
    let rings = RingPoolConfig { prealloc_bytes: 0, ..Default::default() };
    let config = ShardConfig { rings, idle: Idle::Block, seed: Some(1), ..Default::default() };
    let mut shard = Shard::with_reactor(reactor, config).unwrap();
    let id = shard.execute("generate_timeseries", arguments, options()).unwrap();
    let samples = Rc::new(RefCell::new(Vec::new()));
    let ended = Rc::new(RefCell::new(None));
    let (list, end) = (Rc::clone(&samples), Rc::clone(&ended));
    let subscribed = shard.subscribe(id, everything(), move |delivery| match delivery {
        Delivery::Chunk(chunk) => list.borrow_mut().push(Sample::new(chunk)),
        Delivery::Gap(gap) => panic!("a `block` subscriber missed {gap:?}"),
        Delivery::Progress(_) => {}
        Delivery::End(ended) => *end.borrow_mut() = outcome_of(&ended.end),
    });
    subscribed.unwrap();
    while ended.borrow().is_none() {
        if !shard.turn() {
            shard.park(None);
        }
    }
    assert_eq!(*ended.borrow(), Some(Outcome::Completed));
    samples.take()
}

fn in_simulated_time(arguments: &Value) -> Vec<Sample> {
    let world = SimWorld::new(1, SimFaults::NONE);
    run_on(SimReactor::new(&world), arguments)
}

/// Returns the allowed lateness: one tick of the wheel, and two turns of the loop. The timer fires
/// in the first turn, and the tool is stepped in the second. A turn is one poll in that world.
fn late_max() -> Duration {
    Duration::from_nanos(1 << limits::WHEEL_TICK_SHIFT) + 2 * POLL_COST
}

/// Asserts everything but the lateness of each sample, which it returns.
fn lateness_of(samples: &[Sample], count: u64, due_ns: impl Fn(u64) -> u64) -> Vec<Duration> {
    assert_eq!(samples.len() as u64, count);
    let Some(first) = samples.first() else { return Vec::new() };
    let start = first.published_at; // The first sample is due when the tool is first stepped.
    let late = |(index, sample): (u64, &Sample)| {
        assert_eq!(sample.seq, index + 1);
        assert_eq!(sample.kind, Kind::Sample);
        assert_eq!(sample.chunks_expected, Some(count));
        assert_eq!(sample.t_ns(), due_ns(index), "sample {index}");
        assert!(sample.line.ends_with(&format!("\"index\":{index}}}\n")), "{}", sample.line);
        let due = start + Duration::from_nanos(sample.t_ns());
        assert!(sample.published_at >= due, "sample {index} is early");
        sample.published_at.since(due)
    };
    (0..).zip(samples).map(late).collect()
}

/// Test 7 of the second issue. It prints the lateness, which depends on the other load of the
/// machine.
#[test]
fn at_10_khz_for_5_s_every_sample_comes_in_order_and_none_early() {
    let (shard, report) = Shard::spawn(ShardConfig::default(), |_| {}).unwrap();
    let arguments = json!({"duration_seconds": 5, "sample_rate_hz": 10_000});
    let id = shard.execute("generate_timeseries", arguments, options()).unwrap();
    let mut subscriber = shard.subscribe(id, everything()).unwrap();
    let mut samples = Vec::with_capacity(50_000);
    let end = loop {
        match subscriber.next() {
            Delivery::Chunk(chunk) => samples.push(Sample::new(&chunk)),
            Delivery::Gap(gap) => panic!("a `block` subscriber missed {gap:?}"),
            Delivery::Progress(reported) => assert_eq!(reported.progress.total, Some(50_000.0)),
            Delivery::End(ended) => break ended.end,
        }
    };
    assert_eq!(outcome_of(&end), Some(Outcome::Completed));
    let mut lateness = Histogram::default();
    for late in lateness_of(&samples, 50_000, |index| index * 100_000) {
        lateness.record(late.as_nanos() as u64);
    }
    let mut jitter = Histogram::default();
    for pair in samples.windows(2) {
        let apart_ns = pair[1].published_at.since(pair[0].published_at).as_nanos() as u64;
        jitter.record(apart_ns.abs_diff(100_000));
    }
    println!("10,000 Hz for 5 s, {report}");
    println!("lateness: {}", lateness.summary());
    println!("jitter (distance to the sample before, off 100 µs): {}", jitter.summary());
}

#[test]
fn in_simulated_time_no_sample_is_later_than_a_tick_of_the_wheel() {
    for (duration, rate, count) in
        [(5.0, 10_000.0, 50_000), (1.0, 3.0, 3), (1_000.0, 0.01, 10), (0.5, 9_999.999, 5_000)]
    {
        let arguments = json!({"duration_seconds": duration, "sample_rate_hz": rate});
        let samples = in_simulated_time(&arguments);
        let rate_uhz = (rate * 1e6_f64).round() as u128;
        let due_ns = |index: u64| (u128::from(index) * 1_000_000_000_000_000 / rate_uhz) as u64;
        let latest = lateness_of(&samples, count, due_ns).into_iter().max().unwrap();
        assert!(latest <= late_max(), "at {rate} Hz one is {latest:?} late");
    }
}

#[test]
fn the_same_arguments_give_the_same_samples_and_they_are_a_noisy_sine() {
    let arguments = json!({"duration_seconds": 2, "sample_rate_hz": 50.5});
    let (one, other) = (in_simulated_time(&arguments), in_simulated_time(&arguments));
    assert_eq!(one.len(), 101);
    for (one, other) in one.iter().zip(&other) {
        assert_eq!(one.line, other.line);
        let sample = one.json();
        let (t, value) = (sample["t"].as_f64().unwrap(), sample["value"].as_f64().unwrap());
        let off = (value - (std::f64::consts::TAU * t).sin()).abs();
        assert!(off <= 0.050_001, "{off} away from the sine: {}", one.line);
    }
    assert!(one.iter().any(|sample| sample.json()["value"].as_f64().unwrap() > 0.9));
}

/// The tool is held back until its subscriber reads, and then emits all samples that are due.
#[test]
fn a_tool_that_was_held_back_skips_nothing() {
    let world = SimWorld::new(1, SimFaults::NONE);
    let rings = RingPoolConfig { prealloc_bytes: 0, ..Default::default() };
    let config = ShardConfig { rings, idle: Idle::Block, seed: Some(1), ..Default::default() };
    let mut shard = Shard::with_reactor(SimReactor::new(&world), config).unwrap();
    let arguments = json!({"duration_seconds": 1, "sample_rate_hz": 10_000});
    let id = shard.execute("generate_timeseries", &arguments, options()).unwrap();
    let mut polled = shard.subscribe_polled(id, everything()).unwrap();
    let until = shard.now() + Duration::from_millis(700);
    while world.now() < until {
        if !shard.turn() {
            shard.park(Some(until));
        }
    }
    assert!(shard.inspect(id).unwrap().gated, "the ring is full");
    let mut samples = Vec::new();
    let outcome = loop {
        match shard.poll(&mut polled) {
            Some(Delivery::Chunk(chunk)) => samples.push(Sample::new(&chunk)),
            Some(Delivery::End(ended)) => break outcome_of(&ended.end),
            Some(_) => {}
            None => {
                if !shard.turn() {
                    shard.park(None);
                }
            }
        }
    };
    assert_eq!(outcome, Some(Outcome::Completed));
    let lateness = lateness_of(&samples, 10_000, |index| index * 100_000);
    assert!(lateness.iter().any(|late| *late > Duration::from_millis(100)), "it was held back");
    assert!(*lateness.last().unwrap() <= late_max(), "it has caught up");
}

#[test]
fn each_bad_argument_is_named() {
    let config = ShardConfig {
        rings: RingPoolConfig { prealloc_bytes: 0, ..Default::default() },
        ..Default::default()
    };
    let (mut shard, _) = Shard::new(config).unwrap();
    for (field, arguments) in [
        ("duration_seconds", json!({"duration_seconds": 0})),
        ("duration_seconds", json!({"duration_seconds": 1e9})),
        ("duration_seconds", json!({"duration_seconds": "1"})),
        ("sample_rate_hz", json!({"sample_rate_hz": 10_000.1})),
        ("sample_rate_hz", json!({"sample_rate_hz": -1})),
        ("sample_rate_hz", json!({"sample_rate_hz": null})),
        ("rate", json!({"rate": 1})),
    ] {
        let error = shard.execute("generate_timeseries", &arguments, options()).unwrap_err();
        let ExecuteError::Start(StartError::Argument(error)) = error else { panic!("{error}") };
        assert_eq!(error.field, field, "{arguments}");
    }
}
