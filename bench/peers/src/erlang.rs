//! Erlang: a gen_server that sends to its subscribers, in a virtual machine of its own (inline).
//!
//! `bench/peers/erlang/fanout.erl` is that program, and describes the use of Erlang. It gets the
//! common plan as a file, and writes a file with its raw latencies. Here they are counted, checked
//! and reported as those of other peers. The virtual machine inherits the cpu of this thread.
//! Mailboxes lose nothing and never hold a sender back, so a flat-out run would measure something
//! else.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::Failure;
use crate::common::drive::{Received, judge};
use crate::common::machine::pin_thread;
use crate::common::params::{Fanout, Mode, Rate};
use crate::common::report::Outcome;
use crate::common::source::{Arrivals, Tally};

const SCRIPT: &str = include_str!("../erlang/fanout.erl");
/// Number of values before the latencies: deliveries, the sum of their stamps, preemptions, KiB of
/// memory.
const HEAD_NUMBERS: usize = 4;
/// Variables that would change the virtual machine's defaults.
const FLAGS: [&str; 3] = ["ERL_AFLAGS", "ERL_FLAGS", "ERL_ZFLAGS"];

/// Runs the load of `params`. Returns the outcome, and the memory of the virtual machine in KiB.
///
/// # Errors
/// [`Failure`]; [`Failure::Environment`] if `escript` is not installed.
pub fn measure(params: &Fanout) -> Result<(Outcome, u64), Failure> {
    let only = |text: &str| Err(Failure::Usage(format!("--impl erlang {text}")));
    let Rate::PerSecond(rate) = params.rate else {
        return only("does not support --rate max, because mailboxes are unbounded");
    };
    if params.mode != Mode::Inline {
        return only("needs --mode inline");
    }
    if params.payload.is_some() {
        return only("does not support --payload: the payload is always an Erlang binary");
    }
    let (plan, tally) = plan(params, rate);
    let folder = Folder::new()?;
    folder.write("plan", &plan)?;
    folder.write("fanout.erl", SCRIPT.as_bytes())?;
    pin_thread(params.producer_cpu)?;
    run(params, &folder.0)?;
    let path = folder.0.join("result");
    let result = std::fs::read(&path).map_err(|error| failed(&path, &error))?;
    let (received, memory_kib) = read(&result, params.samples()).map_err(Failure::Failed)?;
    Ok((judge(params, tally, received, 0)?, memory_kib))
}

/// Returns the times at which chunks are due, as 64-bit numbers. They are also the stamps, because
/// the script's clock has another origin.
fn plan(params: &Fanout, rate: u32) -> (Vec<u8>, Tally) {
    let (warmup_chunks, counted_chunks) = params.chunks(rate);
    let published_chunks = warmup_chunks + counted_chunks;
    let mut arrivals = Arrivals::new(rate, params.seed);
    let (mut bytes, mut stamp_sum) = (Vec::new(), 0u64);
    for _ in 0..published_chunks {
        let offset_ns = arrivals.next_ns();
        stamp_sum = stamp_sum.wrapping_add(offset_ns);
        bytes.extend_from_slice(&offset_ns.to_le_bytes());
    }
    // The times are used only for throughput.
    (bytes, Tally { published_chunks, stamp_sum, warmup_chunks, start_ns: 0, end_ns: 0 })
}

fn run(params: &Fanout, folder: &Path) -> Result<(), Failure> {
    let mut command = Command::new("escript");
    command.args(["fanout.erl", "plan", "result"]);
    command.args([params.subscribers.to_string(), params.size_bytes.to_string()]);
    command.arg(params.touch_name()).current_dir(folder).stdin(Stdio::null());
    for name in FLAGS {
        command.env_remove(name);
    }
    let output = command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::Environment("escript: is not installed".into()),
        _ => Failure::Environment(format!("escript: {error}")),
    })?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        return Err(Failure::Failed(format!("escript: {}: {}", output.status, said.trim())));
    }
    Ok(())
}

/// Parses the script's result, if it is complete.
fn read(result: &[u8], sample_count: usize) -> Result<(Received, u64), String> {
    let expected_bytes = (HEAD_NUMBERS + sample_count) * 8;
    let (numbers, rest) = result.as_chunks::<8>();
    if result.len() != expected_bytes || !rest.is_empty() {
        return Err(format!("erlang: {} bytes instead of {expected_bytes}", result.len()));
    }
    let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
    let mut next = || numbers.next().expect("the length is right");
    let (count, stamp_sum, preemptions, memory_kib) = (next(), next(), next(), next());
    let samples_ns = numbers.map(|latency_ns| u32::try_from(latency_ns).unwrap_or(u32::MAX));
    let samples_ns = samples_ns.collect();
    Ok((Received { count, stamp_sum, end_ns: 0, preemptions, samples_ns }, memory_kib))
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("{}: {error}", path.display()))
}

/// A temporary folder. It is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, Failure> {
        let name = format!("streamdoor-bench-erlang-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).map_err(|error| failed(&path, &error))?;
        Ok(Folder(path))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).map_err(|error| failed(&path, &error))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A remaining folder does no harm.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    #[test]
    fn a_result_is_read_if_it_is_whole() {
        let bytes = result(&[2, 30, 4, 5_000, 700, 1 << 40]);
        let (received, memory_kib) = read(&bytes, 2).unwrap();
        assert_eq!((received.count, received.stamp_sum, received.preemptions), (2, 30, 4));
        assert_eq!((received.samples_ns, memory_kib), (vec![700, u32::MAX], 5_000));
        for short in [&bytes[..0], &bytes[..40], &bytes[..47]] {
            let text = read(short, 2).err().unwrap();
            assert!(text.ends_with("bytes instead of 48"), "{text}");
        }
    }

    #[test]
    fn every_subscriber_is_given_every_chunk_and_what_is_missed_is_a_failure() {
        let mut params = Fanout::new("erlang").unwrap();
        params.subscribers = 3;
        params.rate = Rate::PerSecond(2_000);
        params.duration = std::time::Duration::from_millis(50);
        params.warmup = std::time::Duration::from_millis(10);
        match measure(&params) {
            Err(Failure::Environment(text)) => println!("not run: {text}"),
            other => {
                let numbers = other.unwrap().0.to_json();
                assert_eq!(
                    (&numbers["chunks"], &numbers["deliveries"]),
                    (&100.into(), &300.into())
                );
                assert!(numbers["p50_ns"].as_u64() > Some(0), "{numbers:?}");
            }
        }
        let (_, tally) = plan(&params, 2_000);
        let stamp_sum = 3 * tally.stamp_sum;
        let missed =
            Received { count: 359, stamp_sum, end_ns: 0, preemptions: 0, samples_ns: vec![] };
        let text = judge(&params, tally, missed, 0).err().unwrap().to_string();
        assert!(text.starts_with("359 deliveries instead of 360"), "{text}");
    }
}
