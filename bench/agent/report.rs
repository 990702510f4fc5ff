//! The results of `bench agent`: text for people, lines of JSON, files for other tools.

use serde_json::{Map, Value, json};

use super::reader::Way;
use super::{Agent, Found};
use crate::common::machine::{describe, wall_time};
use crate::common::params::Rate;
use crate::common::report::{Measured, PERCENTILES, latency_json};
use crate::common::{Failure, files};

fn machine_line(agent: &Agent) -> String {
    format!(
        "{}; idle: {} in between, both ends poll; in between on cpu {}, both ends on cpu {}",
        describe(),
        agent.load.idle,
        agent.load.cpu,
        agent.ends_cpu
    )
}

/// Returns the load in one line that can be typed as a command.
fn load_line(agent: &Agent, found: &Found) -> String {
    let mut words = agent.load.to_arguments();
    for own in ["--batch", "--cpu", "--format", "--executions", "--connections"] {
        let at = words.iter().position(|word| word == own).expect("every load has them");
        words.drain(at..at + 2);
    }
    let Agent { ends_cpu, load, mode, .. } = agent;
    let (cpu, runs) = (load.cpu, load.connections);
    let (mode, only, words) = (mode.name(), name(found.way), words.join(" "));
    format!("bench agent --mode {mode} --only {only} --cpus {cpu},{ends_cpu} --runs {runs} {words}")
}

fn name(way: Way) -> &'static str {
    match way {
        Way::Stream | Way::Iterate => "streamdoor",
        Way::Pipe => "pipe",
    }
}

/// Returns the processor time of the process between the ends for one delta.
fn cpu_ns_per_delta(found: &Found) -> f64 {
    (found.used.cpu_s * 1e9 / found.deltas.max(1) as f64).round()
}

/// Returns the memory of the process between the ends for one run.
fn kib_per_run(agent: &Agent, found: &Found) -> f64 {
    let more_kib = found.used.memory_kib.saturating_sub(found.memory_before_kib);
    (more_kib as f64 / f64::from(agent.load.connections) * 10.0).round() / 10.0
}

/// Returns the report of one run, as text or JSON.
pub fn run_report(agent: &Agent, found: &Found) -> String {
    let (machine, load) = (machine_line(agent), load_line(agent, found));
    let end = |quantile| found.end.value_at_quantile(quantile);
    if !agent.json {
        let mut text = format!("machine     {machine}\nload        {load}\n");
        text += &found.outcome.to_text();
        let (fastest, slowest) = found.run_means_ns;
        text += &format!("{:<12}{:>12} ns, mean\n", "fastest-run", fastest);
        text += &format!("{:<12}{:>12} ns, mean\n", "slowest-run", slowest);
        text += &format!("{:<12}{:>12} ns\n", "end-p50", end(0.5));
        text += &format!("{:<12}{:>12} ns\n", "end-p99", end(0.99));
        text += &format!("{:<12}{:>12.3} s\n", "cpu", found.used.cpu_s);
        text += &format!("{:<12}{:>12.0} ns\n", "per-delta", cpu_ns_per_delta(found));
        text += &format!("{:<12}{:>12} KiB\n", "peak", found.used.memory_kib);
        text += &format!("{:<12}{:>12.1} KiB\n", "per-run", kib_per_run(agent, found));
        return text + &found.pressure.to_text() + "\n";
    }
    let mut line = Map::new();
    line.insert("bench".into(), json!("agent"));
    line.insert("impl".into(), json!(name(found.way)));
    line.insert("mode".into(), json!(agent.mode.name()));
    line.insert("runs".into(), json!(agent.load.connections));
    line.insert("size_bytes".into(), json!(agent.load.size_bytes));
    line.insert("rate".into(), json!(agent.load.rate_name()));
    line.insert("idle".into(), json!(agent.load.idle.to_string()));
    line.insert("reactor".into(), json!(agent.load.reactor.to_string()));
    line.insert("duration_s".into(), json!(agent.load.duration.as_secs_f64()));
    line.insert("warmup_s".into(), json!(agent.load.warmup.as_secs_f64()));
    line.insert("seed".into(), json!(agent.load.seed));
    line.extend(found.outcome.to_json());
    line.insert("fastest_run_mean_ns".into(), json!(found.run_means_ns.0));
    line.insert("slowest_run_mean_ns".into(), json!(found.run_means_ns.1));
    line.insert("end".into(), Value::Object(latency_json(&found.end)));
    line.insert("cpu_s".into(), json!((found.used.cpu_s * 1e6).round() / 1e6));
    line.insert("cpu_ns_per_delta".into(), json!(cpu_ns_per_delta(found)));
    line.insert("memory_kib".into(), json!(found.used.memory_kib));
    line.insert("memory_kib_per_run".into(), json!(kib_per_run(agent, found)));
    line.insert("pressure".into(), found.pressure.to_json());
    line.insert("machine".into(), json!(machine));
    format!("{}\n", Value::Object(line))
}

/// Returns the cost that streamdoor adds to the pipe: the difference and the ratio of the medians
/// of their runs. Empty if only one of them was run.
pub fn added(all: &[Found]) -> String {
    let median = |wanted: &str, value: &dyn Fn(&Found) -> u64| {
        let mut values: Vec<u64> =
            all.iter().filter(|found| name(found.way) == wanted).map(value).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().filter(|value| *value > 0)
    };
    let mut text = String::new();
    for (name, _, quantile) in PERCENTILES {
        let value = |found: &Found| match &found.outcome.measured {
            Measured::Latency { histogram, .. } => histogram.value_at_quantile(quantile),
            Measured::Throughput { .. } => 0,
        };
        if let (Some(ours), Some(pipe)) = (median("streamdoor", &value), median("pipe", &value)) {
            let (added, ratio) = (ours as i64 - pipe as i64, ours as f64 / pipe as f64);
            let label = format!("added-{name}");
            text +=
                &format!("{label:<14}{added:>10} ns ({ours} ns, {ratio:.2} × pipe's {pipe} ns)\n");
        }
    }
    let rate = |found: &Found| match &found.outcome.measured {
        Measured::Throughput { deliveries, elapsed_ns, .. } => {
            (*deliveries as f64 * 1e9 / (*elapsed_ns).max(1) as f64) as u64
        }
        Measured::Latency { .. } => 0,
    };
    if let (Some(ours), Some(pipe)) = (median("streamdoor", &rate), median("pipe", &rate)) {
        let ratio = ours as f64 / pipe as f64;
        text += &format!("deltas/s      {ours:>10} ({ratio:.2} × pipe's {pipe})\n");
    }
    text
}

/// Writes `agent-<impl>-<mode>-<runs>-<size>-<rate>` as `.hgrm` and `.hlog` into the directory of
/// `--out`, if given. A later round replaces an earlier one.
///
/// # Errors
/// [`Failure::Failed`], which names the path.
pub fn write_files(agent: &Agent, found: &Found) -> Result<(), Failure> {
    let (Some(directory), Rate::PerSecond(rate)) = (&agent.out, agent.load.rate) else {
        return Ok(());
    };
    let Measured::Latency { samples_ns, histogram, .. } = &found.outcome.measured else {
        return Ok(()); // Steps alone give no series.
    };
    let load = &agent.load;
    let (name, mode) = (name(found.way), agent.mode.name());
    let name = format!("agent-{name}-{mode}-{}-{}-{rate}", load.connections, load.size_bytes);
    let record = files::Record {
        name: &name,
        comments: &[machine_line(agent), load_line(agent, found)],
        samples_ns,
        histogram,
        deliveries_per_s: rate.into(),
        start: wall_time() - load.duration,
    };
    record.write(directory)
}
