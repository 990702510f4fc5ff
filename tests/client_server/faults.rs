//! `streamdoor call` and `streamdoor watch` under `block`, through proxies that cut, reset,
//! truncate and delay. If their output is whole, they exit 0. If it has
//! a hole, they say its size and exit 4. If it ends early, they exit 1.
//!
//! `STREAMDOOR_FAULT_RUNS=500 cargo nextest run --all-features -E 'test(faulty_networks)'` makes
//! more runs, and `STREAMDOOR_FAULT_SEED=1000` makes others. `--no-capture` shows their results.

use std::process::Output;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;
use streamdoor::base::Random;
use streamdoor::client::{Client, ExecuteOptions};
use streamdoor::engine::Start;

use crate::commands::{Serve, output, said};
use crate::proxy::{Fault, Proxy};

const RUNS_DEFAULT: u64 = 24;
/// Number of threads. They mostly wait to reconnect.
const THREADS: u64 = 8;
const FILE_BYTES: usize = 300_000;
/// Number of connections of one run that may have a fault; later ones have none.
const FAULTS_MAX: u64 = 6;

/// Returns a number from the environment, or `default`.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("it is a number"))
}

fn fault(random: &mut Random) -> Fault {
    // Within a head, within the first events, and further on.
    let bits = random.between(7, 18);
    let bytes = random.between(1, 1 << bits) as usize;
    match random.below(8) {
        0..=2 => Fault::Cut(bytes),
        3 | 4 => Fault::Reset(bytes),
        5 => Fault::Truncate(bytes),
        6 => Fault::Delay(Duration::from_micros(random.between(100, 1_000))),
        _ => Fault::Nothing,
    }
}

/// Returns `bytes` as the programs print it.
fn grouped(bytes: usize) -> String {
    match (bytes / 1_000, bytes % 1_000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{thousands},{rest:03}"),
    }
}

/// The results of all runs.
#[derive(Debug, Default)]
struct Sums {
    whole: u64,
    broken_and_whole: u64,
    failed: u64,
    with_holes: u64,
    acks: usize,
}

/// Executes one run. Returns its output and the number of its acknowledgements.
fn run(serve: &Serve, path: &str, random: &mut Random) -> (Output, usize) {
    let chunk_bytes = [100, 1_000, 4_096, 7_777][random.below(4) as usize];
    let mut faults: Vec<Fault> =
        (0..random.between(1, FAULTS_MAX)).map(|_| fault(random)).collect();
    let arguments = json!({"file_path": path, "chunk_size": chunk_bytes});
    if random.chance(1, 2) {
        faults.insert(0, Fault::Nothing); // The list of tools cannot be resumed.
        let proxy = Proxy::faulty(&serve.url, faults);
        let arguments = arguments.to_string();
        let options = ["--args-json", &arguments, "--policy", "block", "--format", "raw"];
        let called = output(&[&["call", &proxy.url, "process_file"], &options[..]].concat());
        return (called, proxy.acks());
    }
    let proxy = Proxy::faulty(&serve.url, faults);
    let start = Start::AfterSubscribers { count: 1, deadline: Duration::from_secs(60) };
    let execute = ExecuteOptions { start: Some(start), ..ExecuteOptions::default() };
    let client = Client::new(&serve.url).unwrap();
    let created = client.execute("process_file", &arguments, &execute).unwrap();
    let execution = created.execution.to_string();
    let options = ["--policy", "block", "--format", "raw"];
    let watched = output(&[&["watch", &proxy.url, &execution], &options[..]].concat());
    (watched, proxy.acks())
}

#[test]
fn calls_and_watches_through_faulty_networks_are_whole_or_fail() {
    let serve = Serve::start(&[]);
    let path = std::env::temp_dir().join(format!("streamdoor-faults-{}", std::process::id()));
    let content: Vec<u8> = (0..FILE_BYTES).map(|at| (at % 251) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let runs = setting("STREAMDOOR_FAULT_RUNS", RUNS_DEFAULT);
    let first_seed = setting("STREAMDOOR_FAULT_SEED", 1);
    let sums = Mutex::new(Sums::default());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (serve, path, content, sums) = (&serve, path.to_str().unwrap(), &content, &sums);
            scope.spawn(move || {
                for seed in (first_seed + thread..first_seed + runs).step_by(THREADS as usize) {
                    let (printed, acks) = run(serve, path, &mut Random::new(seed));
                    let words = said(&printed);
                    let is_whole = printed.stdout == *content;
                    let mut sums = sums.lock().unwrap();
                    sums.acks += acks;
                    match printed.status.code() {
                        Some(0) if is_whole => {
                            sums.whole += 1;
                            sums.broken_and_whole += u64::from(words.contains("broke"));
                            let all = format!(", {} bytes in ", grouped(FILE_BYTES));
                            assert!(words.contains(&all), "seed {seed}: {words}");
                        }
                        Some(1) if !words.is_empty() => {
                            println!("seed {seed}: {words}");
                            sums.failed += 1;
                        }
                        // The machine was so slow that the server gave up a reader's place.
                        Some(4) => {
                            println!("seed {seed}: {words}");
                            let missed = grouped(FILE_BYTES - printed.stdout.len());
                            let told =
                                format!(" are missing from the results, with {missed} bytes");
                            assert!(!is_whole && words.contains(&told), "seed {seed}: {words}");
                            sums.with_holes += 1;
                        }
                        code => {
                            let bytes = printed.stdout.len();
                            panic!("seed {seed}: exit code {code:?} after {bytes} bytes: {words}");
                        }
                    }
                }
            });
        }
    });
    std::fs::remove_file(&path).unwrap();
    let sums = sums.into_inner().unwrap();
    println!("{sums:?}");
    assert_eq!(sums.whole + sums.failed + sums.with_holes, runs, "{sums:?}");
    assert!(sums.whole > 0 && sums.acks > 0, "{sums:?}");
}
