//! The results of `bench mcp`: text for people, lines of JSON, files for other tools.

use serde_json::{Map, Value, json};

use super::{Found, Mcp};
use crate::common::machine::{describe, wall_time};
use crate::common::params::Rate;
use crate::common::report::{Measured, PERCENTILES, latency_json};
use crate::common::{Failure, files};

fn machine_line(mcp: &Mcp) -> String {
    format!(
        "{}; idle: server {}, receiver polls; server on cpu {}, receiver on cpu {}",
        describe(),
        mcp.load.idle,
        mcp.load.cpu,
        mcp.client_cpu
    )
}

/// Returns the load in one line that can be typed as a command.
fn load_line(mcp: &Mcp, found: &Found) -> String {
    let mut words = mcp.load.to_arguments();
    for own in ["--batch", "--cpu", "--format", "--executions", "--connections"] {
        let at = words.iter().position(|word| word == own).expect("every load has them");
        words.drain(at..at + 2);
    }
    let Mcp { transport, client_cpu, load, .. } = mcp;
    let (cpu, sessions) = (load.cpu, load.connections);
    let (name, words, first) = (found.implementation, words.join(" "), mcp.first.words());
    format!(
        "bench mcp --only {name} --transport {transport} --cpus {cpu},{client_cpu} --sessions \
         {sessions} {first} {words}"
    )
}

/// Returns the processor time of the server for one notification of one chunk.
fn cpu_ns_per_chunk(found: &Found) -> f64 {
    (found.used.cpu_s * 1e9 / found.received.given_chunks.max(1) as f64).round()
}

/// Returns the report of one run, as text or JSON.
pub fn run_report(mcp: &Mcp, found: &Found) -> String {
    let (machine, load) = (machine_line(mcp), load_line(mcp, found));
    let (received, used) = (&found.received, &found.used);
    if !mcp.json {
        let mut text = format!("machine     {machine}\nload        {load}\n");
        text += &received.outcome.to_text();
        let first = |quantile| found.first.histogram.value_at_quantile(quantile);
        text += &format!("{:<12}{:>12} ns\n", "first-p50", first(0.5));
        text += &format!("{:<12}{:>12} ns\n", "first-p99", first(0.99));
        text += &format!("{:<12}{:>12} ns\n", "first-max", found.first.histogram.max());
        text += &format!("{:<12}{:>12}\n", "missed", received.missed_chunks);
        text += &format!("{:<12}{:>12.3} s\n", "server-cpu", used.cpu_s);
        text += &format!("{:<12}{:>12.0} ns\n", "per-chunk", cpu_ns_per_chunk(found));
        text += &format!("{:<12}{:>12} KiB\n", "server-peak", used.memory_kib);
        return text + &found.pressure.to_text() + "\n";
    }
    let mut line = Map::new();
    line.insert("bench".into(), json!("mcp"));
    line.insert("impl".into(), json!(found.implementation));
    line.insert("transport".into(), json!(mcp.transport));
    line.insert("sessions".into(), json!(mcp.load.connections));
    line.insert("size_bytes".into(), json!(mcp.load.size_bytes));
    line.insert("rate".into(), json!(mcp.load.rate_name()));
    line.insert("idle".into(), json!(mcp.load.idle.to_string()));
    line.insert("reactor".into(), json!(mcp.load.reactor.to_string()));
    line.insert("duration_s".into(), json!(mcp.load.duration.as_secs_f64()));
    line.insert("warmup_s".into(), json!(mcp.load.warmup.as_secs_f64()));
    line.insert("seed".into(), json!(mcp.load.seed));
    line.extend(received.outcome.to_json());
    line.insert("first_pause_s".into(), json!(mcp.first.pause.as_secs_f64()));
    line.insert("first_at_once".into(), json!(mcp.first.at_once));
    let mut first = latency_json(&found.first.histogram);
    first.insert("preemptions".into(), json!(found.first.preemptions));
    line.insert("first".into(), Value::Object(first));
    line.insert("missed_chunks".into(), json!(received.missed_chunks));
    line.insert("server_cpu_s".into(), json!((used.cpu_s * 1e6).round() / 1e6));
    line.insert("server_cpu_ns_per_chunk".into(), json!(cpu_ns_per_chunk(found)));
    line.insert("server_memory_kib".into(), json!(used.memory_kib));
    line.insert("pressure".into(), found.pressure.to_json());
    line.insert("machine".into(), json!(machine));
    format!("{}\n", Value::Object(line))
}

/// The floors with which streamdoor is compared.
const FLOORS: [&str; 2] = ["floor", "floor-reads"];

/// Compares streamdoor with each floor: the median of its runs over the median of the floor's runs.
/// Empty if only one of them was run.
pub fn ratios(runs: &[Found]) -> String {
    let median = |name: &str, value: &dyn Fn(&Found) -> u64| {
        let mut values: Vec<u64> =
            runs.iter().filter(|found| found.implementation == name).map(value).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().filter(|value| *value > 0)
    };
    let mut text = String::new();
    let mut line = |name: &str, value: &dyn Fn(&Found) -> u64| {
        for floor in FLOORS {
            if let (Some(ours), Some(its)) = (median("streamdoor", value), median(floor, value)) {
                let ratio = ours as f64 / its as f64;
                text += &format!("{name:<12}{ratio:>12.2} × {floor} ({ours} ns, {its} ns)\n");
            }
        }
    };
    for (name, _, quantile) in PERCENTILES {
        line(name, &|found| match &found.received.outcome.measured {
            Measured::Latency { histogram, .. } => histogram.value_at_quantile(quantile),
            Measured::Throughput { .. } => 0,
        });
    }
    let rate = |name: &str| {
        median(name, &|found| match &found.received.outcome.measured {
            Measured::Throughput { deliveries, elapsed_ns, .. } => {
                (*deliveries as f64 * 1e9 / (*elapsed_ns).max(1) as f64) as u64
            }
            Measured::Latency { .. } => 0,
        })
    };
    let rates = FLOORS.map(|floor| (floor, rate("streamdoor").zip(rate(floor))));
    line("first-p50", &|found| found.first.histogram.value_at_quantile(0.5));
    line("first-p99", &|found| found.first.histogram.value_at_quantile(0.99));
    for (floor, rates) in rates {
        if let Some((ours, its)) = rates {
            let ratio = ours as f64 / its as f64;
            text += &format!("{:<12}{ratio:>12.2} × {floor} ({ours} /s, {its} /s)\n", "delivered");
        }
    }
    text
}

/// Writes `mcp-<impl>-<transport>-<sessions>-<size>-<rate>` as `.hgrm` and `.hlog` into the
/// directory of `--out`, if given. A later round replaces an earlier one. If first notifications
/// are the subject, only their `.hgrm` is written: `mcp-first-…`.
///
/// # Errors
/// [`Failure::Failed`], which names the path.
pub fn write_files(mcp: &Mcp, found: &Found) -> Result<(), Failure> {
    if let (Some(directory), true) = (&mcp.out, mcp.first.is_the_question()) {
        let (name, at_once) = (found.implementation, mcp.first.at_once.max(1));
        let name = format!("mcp-first-{name}-{}-{at_once}", mcp.transport);
        return files::write_table(directory, &name, &found.first.histogram);
    }
    let (Some(directory), Rate::PerSecond(rate)) = (&mcp.out, mcp.load.rate) else {
        return Ok(());
    };
    let Measured::Latency { samples_ns, histogram, .. } = &found.received.outcome.measured else {
        unreachable!("a rate gives latencies");
    };
    let load = &mcp.load;
    let (name, transport) = (found.implementation, mcp.transport);
    let name = format!("mcp-{name}-{transport}-{}-{}-{rate}", load.connections, load.size_bytes);
    let record = files::Record {
        name: &name,
        comments: &[machine_line(mcp), load_line(mcp, found)],
        samples_ns,
        histogram,
        deliveries_per_s: rate.into(),
        start: wall_time() - load.duration,
    };
    record.write(directory)
}
