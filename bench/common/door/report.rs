//! The results of `bench door`: text for people, lines of JSON, files for other tools.

use serde_json::{Map, Value, json};

use super::load::{Load, Wait};
use crate::common::machine::{describe, wall_time};
use crate::common::params::Rate;
use crate::common::pressure::Pressure;
use crate::common::report::{Measured, Outcome, PERCENTILES};
use crate::common::{Failure, files};

/// One run of one implementation.
pub struct Found {
    /// The name of the implementation.
    pub implementation: &'static str,
    /// The result of the run.
    pub outcome: Outcome,
}

fn machine_line(load: &Load) -> String {
    let idle = match load.wait {
        Wait::Polled => "producer and readers poll",
        Wait::Blocked => "the producer polls its plan, readers block",
    };
    format!(
        "{}; idle: {idle}; producer on cpu {}, readers on cpu {}",
        describe(),
        load.plan.producer_cpu,
        load.plan.subscribers_cpu
    )
}

/// Returns the load in one line that can be typed as a command.
fn load_line(program: &str, load: &Load) -> String {
    format!("{program} door {}", load.to_arguments().join(" "))
}

/// Returns the report of one run, as text or JSON.
pub fn run_report(program: &str, load: &Load, found: &Found) -> String {
    let load = &load.of(found.implementation);
    let (machine, plan) = (machine_line(load), &load.plan);
    let pressure = Pressure::now(None); // streamdoor's server has a door, and no HTTP.
    if !plan.json {
        let (line, text) = (load_line(program, load), found.outcome.to_text());
        let pressure = pressure.to_text();
        return format!("machine     {machine}\nload        {line}\n{text}{pressure}\n");
    }
    let mut line = Map::new();
    line.insert("bench".into(), json!("door"));
    line.insert("impl".into(), json!(found.implementation));
    line.insert("wait".into(), json!(load.wait_name()));
    line.insert("readers".into(), json!(plan.subscribers));
    line.insert("size_bytes".into(), json!(plan.size_bytes));
    line.insert("rate".into(), json!(plan.rate_name()));
    line.insert("touch".into(), json!(plan.touch_name()));
    line.insert("duration_s".into(), json!(plan.duration.as_secs_f64()));
    line.insert("warmup_s".into(), json!(plan.warmup.as_secs_f64()));
    line.insert("seed".into(), json!(plan.seed));
    line.extend(found.outcome.to_json());
    line.insert("pressure".into(), pressure.to_json());
    line.insert("machine".into(), json!(machine));
    format!("{}\n", Value::Object(line))
}

/// Compares `name` with the floor: the median of its runs over the median of the floor's runs.
/// Empty if only one of them was run.
pub fn ratios(name: &str, runs: &[Found]) -> String {
    let median = |name: &str, value: &dyn Fn(&Measured) -> f64| {
        let own = runs.iter().filter(|found| found.implementation == name);
        let mut values: Vec<f64> = own.map(|found| value(&found.outcome.measured)).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied().filter(|value| *value > 0.0)
    };
    let mut text = String::new();
    let mut line = |label: &str, unit: &str, value: &dyn Fn(&Measured) -> f64| {
        if let (Some(ours), Some(floor)) = (median(name, value), median("floor", value)) {
            let ratio = ours / floor;
            text +=
                &format!("{label:<12}{ratio:>12.2} × floor ({ours:.0}{unit}, {floor:.0}{unit})\n");
        }
    };
    for (label, _, quantile) in PERCENTILES {
        line(label, " ns", &|measured| match measured {
            Measured::Latency { histogram, .. } => histogram.value_at_quantile(quantile) as f64,
            Measured::Throughput { .. } => 0.0,
        });
    }
    line("published", " /s", &|measured| match measured {
        Measured::Latency { .. } => 0.0,
        Measured::Throughput { chunks, elapsed_ns, .. } => {
            *chunks as f64 * 1e9 / (*elapsed_ns).max(1) as f64
        }
    });
    text
}

/// Writes `door-<impl>-<wait>-<readers>x<size>-<rate>` as `.hgrm` and `.hlog` into the directory of
/// `--out`, if given. A later round replaces an earlier one.
///
/// # Errors
/// [`Failure::Failed`], which names the path.
pub fn write_files(program: &str, load: &Load, found: &Found) -> Result<(), Failure> {
    let load = &load.of(found.implementation);
    let plan = &load.plan;
    let (Some(directory), Rate::PerSecond(rate)) = (&plan.out, plan.rate) else {
        return Ok(());
    };
    let Measured::Latency { samples_ns, histogram, .. } = &found.outcome.measured else {
        unreachable!("a rate gives latencies");
    };
    let (name, wait) = (found.implementation, load.wait_name());
    let name = format!("door-{name}-{wait}-{}x{}-{rate}", plan.subscribers, plan.size_bytes);
    let record = files::Record {
        name: &name,
        comments: &[machine_line(load), load_line(program, load)],
        samples_ns,
        histogram,
        deliveries_per_s: u64::from(rate) * u64::from(plan.subscribers),
        start: wall_time() - plan.duration,
    };
    record.write(directory)
}
