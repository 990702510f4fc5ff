//! The result of `bench serve`: text for people, one line of JSON for `tools/bench`, files for
//! other tools.

use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::{Found, Serve};
use crate::common::machine::describe;
use crate::common::params::Rate;
use crate::common::report::Measured;
use crate::common::{Failure, files};

/// Returns one line on the machine and the pinning.
fn machine_line(serve: &Serve) -> String {
    format!(
        "{}; idle: server {}, receiver polls; server on cpu {}, receiver on cpu {}",
        describe(),
        serve.load.idle,
        serve.load.cpu,
        serve.client_cpu
    )
}

/// Returns the load in one line that can be typed as a command.
fn load_line(serve: &Serve) -> String {
    let mut words = serve.load.to_arguments();
    // The server's own options: `--impl` and `--cpus` have the same effect.
    for own in ["--batch", "--cpu"] {
        let at = words.iter().position(|word| word == own).expect("every load has them");
        words.drain(at..at + 2);
    }
    let (cpu, client_cpu) = (serve.load.cpu, serve.client_cpu);
    let implementation = serve.implementation;
    format!("bench serve --impl {implementation} --cpus {cpu},{client_cpu} {}", words.join(" "))
}

/// Returns the processor time of the server for one delivery.
fn cpu_ns_per_delivery(found: &Found) -> f64 {
    let deliveries = found.received.given_chunks.max(1);
    (found.used.cpu_s * 1e9 / deliveries as f64).round()
}

/// Returns the whole report, as text or JSON.
pub fn serve_report(serve: &Serve, found: &Found) -> String {
    let (machine, load) = (machine_line(serve), load_line(serve));
    let used = &found.used;
    if !serve.json {
        let mut text = format!("machine     {machine}\nload        {load}\n");
        text += &found.received.outcome.to_text();
        text += &format!("{:<12}{:>12}\n", "missed", found.received.missed_chunks);
        text += &format!("{:<12}{:>12.3} s\n", "server-cpu", used.cpu_s);
        text += &format!("{:<12}{:>12.0} ns\n", "per-delivery", cpu_ns_per_delivery(found));
        text += &format!("{:<12}{:>12} KiB\n", "server-peak", used.memory_kib);
        return text + &found.pressure.to_text();
    }
    let mut line = Map::new();
    line.insert("bench".into(), json!("serve"));
    line.insert("impl".into(), json!(serve.implementation));
    line.insert("connections".into(), json!(serve.load.connections));
    line.insert("executions".into(), json!(serve.load.executions));
    line.insert("size_bytes".into(), json!(serve.load.size_bytes));
    line.insert("rate".into(), json!(serve.load.rate_name()));
    line.insert("format".into(), json!(serve.load.format.to_string()));
    line.insert("idle".into(), json!(serve.load.idle.to_string()));
    line.insert("reactor".into(), json!(serve.load.reactor.to_string()));
    line.insert("duration_s".into(), json!(serve.load.duration.as_secs_f64()));
    line.insert("warmup_s".into(), json!(serve.load.warmup.as_secs_f64()));
    line.insert("seed".into(), json!(serve.load.seed));
    line.extend(found.received.outcome.to_json());
    line.insert("missed_chunks".into(), json!(found.received.missed_chunks));
    line.insert("server_cpu_s".into(), json!((used.cpu_s * 1e6).round() / 1e6));
    line.insert("server_cpu_ns_per_delivery".into(), json!(cpu_ns_per_delivery(found)));
    line.insert("server_memory_kib".into(), json!(used.memory_kib));
    line.insert("pressure".into(), found.pressure.to_json());
    line.insert("machine".into(), json!(machine));
    format!("{}\n", Value::Object(line))
}

/// Writes `serve-<impl>-<format>-<connections>x<executions>-<size>-<rate>` as `.hgrm` and `.hlog`
/// into the directory of `--out`. Does nothing without that directory or without latencies. `end`
/// is the wall time after the run.
///
/// # Errors
/// [`Failure::Failed`], which names the path.
pub fn write_files(serve: &Serve, found: &Found, end: SystemTime) -> Result<(), Failure> {
    let (Some(directory), Rate::PerSecond(rate)) = (&serve.out, serve.load.rate) else {
        return Ok(());
    };
    let Measured::Latency { samples_ns, histogram, .. } = &found.received.outcome.measured else {
        unreachable!("a rate gives latencies");
    };
    let load = &serve.load;
    let name = format!(
        "serve-{}-{}-{}x{}-{}-{rate}",
        serve.implementation, load.format, load.connections, load.executions, load.size_bytes
    );
    let record = files::Record {
        name: &name,
        comments: &[machine_line(serve), load_line(serve)],
        samples_ns,
        histogram,
        deliveries_per_s: u64::from(rate) * u64::from(load.followers()),
        start: end - load.duration,
    };
    record.write(directory)
}
