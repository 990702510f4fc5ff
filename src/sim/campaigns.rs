//! The seeded simulator: a real shard in a world of virtual time, faults and an oracle.
//!
//! `cargo test` runs a few seeds; `tools/sim` runs many, or repeats one. `campaign` reads these
//! environment variables:
//!
//! - `SIM_SEEDS`: the number of seeds.
//! - `SIM_FIRST_SEED`: the first seed.
//! - `SIM_SEED`: the only seed to run.
//! - `SIM_VERBOSE`: prints every step of that seed.
//! - `SIM_STATS`: prints how often each thing happened.
//! - `SIM_PLANTED` (with the feature `planted`): the number of the bug that has to be found.
//! - `SIM_HASHES`: a file to which each campaign appends a line for each seed, with the campaign,
//!   the seed and the hash of all actions.

use std::sync::Mutex;

use crate::reactor::Clock;
use crate::sim::campaign::{Coverage, Summary, run_seed};
#[cfg(feature = "server")]
use crate::sim::server::streams_run::run_streams_seed;
#[cfg(feature = "server")]
use crate::sim::server::{SeedSummary, run_agent_seed, run_server_seed};

const SEEDS_BY_DEFAULT: u64 = 100;
/// The same for a campaign whose seeds take long.
const LONG_SEEDS_BY_DEFAULT: u64 = 12;
/// Number of seeds from which on everything that can happen must have happened.
const SEEDS_FOR_COVERAGE: u64 = 100;
/// Number of failures after which the remaining seeds are not run.
const FAILURES_MAX: usize = 10;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// Appends the hash of each seed to the file that `SIM_HASHES` names.
fn note_hashes(what: &str, hashes: &[(u64, u64)]) {
    let Some(file) = std::env::var_os("SIM_HASHES") else { return };
    let mut hashes = hashes.to_vec();
    hashes.sort_unstable();
    let lines: String =
        hashes.iter().map(|(seed, hash)| format!("{what} {seed} {hash:016x}\n")).collect();
    let mut file = std::fs::File::options().create(true).append(true).open(file).unwrap();
    std::io::Write::write_all(&mut file, lines.as_bytes()).unwrap();
}

/// The sums over many seeds.
#[derive(Default)]
struct Totals {
    hashes: Vec<(u64, u64)>,
    actions: u64,
    steps: u64,
    executions: u64,
    subscribers: u64,
    chunks: u64,
    elapsed_seconds: f64,
    coverage: Coverage,
    failures: Vec<String>,
}

impl Totals {
    fn add(&mut self, seed: u64, summary: &Summary) {
        self.hashes.push((seed, summary.actions_hash));
        self.actions += summary.action_count;
        self.steps += summary.step_count;
        self.executions += summary.execution_count;
        self.subscribers += summary.subscriber_count;
        self.chunks += summary.counters.chunks_published;
        self.elapsed_seconds += summary.elapsed.as_secs_f64();
        self.coverage.merge(&summary.coverage);
    }
}

/// Runs the seeds on all cores, each seed on one thread, until `may_go_on` says no. It is told of
/// the result of each.
fn each_seed<T: Send>(
    first: u64,
    count: u64,
    run: impl Fn(u64) -> T + Sync,
    may_go_on: impl FnMut(u64, T) -> bool + Send,
) {
    let (next, may_go_on) = (Mutex::new(first), Mutex::new(may_go_on));
    let take = || {
        let mut next = next.lock().unwrap();
        let seed = *next;
        *next += 1;
        (seed < first + count).then_some(seed)
    };
    let work = || {
        while let Some(seed) = take() {
            let result = run(seed);
            if !may_go_on.lock().unwrap()(seed, result) {
                return;
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}

/// Runs the seeds, until too many have failed.
fn run_seeds(first: u64, count: u64) -> Totals {
    let mut totals = Totals::default();
    let run = |seed| run_seed(seed, false);
    each_seed(first, count, run, |seed, result| {
        match result {
            Ok(summary) => totals.add(seed, &summary),
            Err(text) => totals.failures.push(text),
        }
        totals.failures.len() < FAILURES_MAX
    });
    totals
}

/// Runs the seeds until one fails. Returns its number and its failure.
fn first_failure(
    first: u64,
    count: u64,
    run: impl Fn(u64) -> Result<(), String> + Sync,
) -> Option<(u64, String)> {
    let mut failures = Vec::new();
    each_seed(first, count, run, |seed, result| {
        failures.extend(result.err().map(|text| (seed, text)));
        failures.is_empty()
    });
    failures.into_iter().min()
}

/// The simulator with a journal on a disk that is slow, fails, lies and loses its power.
#[test]
fn journal_campaign() {
    over_seeds("journal", SEEDS_BY_DEFAULT, |seed, verbose| {
        let summary = crate::sim::journal::run_journal_seed(seed, verbose)?;
        Ok((summary.hash, summary.happened))
    });
}

/// The simulator with a shard and its journal, on such a disk.
#[test]
fn kept_campaign() {
    over_seeds("kept", SEEDS_BY_DEFAULT, |seed, verbose| {
        let summary = crate::sim::kept::run_kept_seed(seed, verbose)?;
        Ok((summary.hash, summary.happened))
    });
}

/// Plants a bug and runs seeds until one finds it. Panics if none of `count` seeds does.
fn hunt(number: u64, first: u64, count: u64) {
    let bug = u8::try_from(number).ok().and_then(crate::base::planted::plant);
    let bug = bug.unwrap_or_else(|| panic!("no bug has the number {number}"));
    // A seed that finds the bug panics with a message, which is only noise here.
    std::panic::set_hook(Box::new(|_| {}));
    let failure = if bug.is_of_journal() {
        let run = |seed| crate::sim::journal::run_journal_seed(seed, false).map(|_| ());
        first_failure(first, count, run)
    } else if bug.is_of_kept() {
        let run = |seed| crate::sim::kept::run_kept_seed(seed, false).map(|_| ());
        first_failure(first, count, run)
    } else if bug.is_of_streams() {
        first_failure(first, count, run_streams)
    } else if bug.is_of_replicas() {
        first_failure(first, count, run_replicas)
    } else if bug.is_of_cluster() {
        first_failure(first, count, run_cluster)
    } else {
        first_failure(first, count, |seed| run_seed(seed, false).map(|_| ()))
    };
    drop(std::panic::take_hook());
    match failure {
        Some((_, text)) => println!("planted bug {number} ({bug:?}) was found: {text}"),
        None => panic!("planted bug {number} ({bug:?}) was not found by {count} seeds"),
    }
}

#[test]
fn campaign() {
    if let Some(bug) = number("SIM_PLANTED") {
        let count = number("SIM_SEEDS").unwrap_or(1_000);
        hunt(bug, number("SIM_FIRST_SEED").unwrap_or(1), count);
        return;
    }
    if let Some(seed) = number("SIM_SEED") {
        let summary = run_seed(seed, number("SIM_VERBOSE").is_some());
        let summary = summary.unwrap_or_else(|text| panic!("{text}"));
        println!("{summary:#?}");
        return;
    }
    let count = number("SIM_SEEDS").unwrap_or(SEEDS_BY_DEFAULT);
    let first = number("SIM_FIRST_SEED").unwrap_or(1);
    let started_at = Clock::now();
    let totals = run_seeds(first, count);
    let seconds = Clock::now().since(started_at).as_secs_f64();
    if number("SIM_STATS").is_some() {
        println!("{}", totals.coverage);
    }
    println!(
        "{count} seeds, each twice, in {seconds:.1} s ({:.0} seeds/s): {} actions, {} steps, \
         {} executions, {} subscribers, {} chunks, {:.0} virtual seconds",
        count as f64 / seconds,
        totals.actions,
        totals.steps,
        totals.executions,
        totals.subscribers,
        totals.chunks,
        totals.elapsed_seconds
    );
    assert!(totals.failures.is_empty(), "{}", totals.failures.join("\n"));
    note_hashes("shard", &totals.hashes);
    if count >= SEEDS_FOR_COVERAGE {
        let missing = totals.coverage.missing();
        assert!(missing.is_empty(), "never happened in {count} seeds: {missing:?}");
    }
}

#[test]
fn another_seed_is_another_run() {
    let hashes: Vec<u64> =
        (1..=5).map(|seed| run_seed(seed, false).expect("it passes").actions_hash).collect();
    let mut distinct = hashes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), hashes.len(), "{hashes:x?}");
}

#[test]
fn every_seed_is_large_enough_to_mean_something() {
    for seed in 1..=10 {
        let summary = run_seed(seed, false).expect("it passes");
        assert!(summary.action_count >= 2_000, "SEED={seed}");
        assert!(summary.execution_count >= 8, "SEED={seed}");
        assert!(summary.subscriber_count >= 32, "SEED={seed}");
    }
}

/// The events of a seed, each with its count.
type Happened = Vec<(&'static str, u64)>;

/// The simulator with the whole server.
#[cfg(feature = "server")]
#[test]
fn server_campaign() {
    over_seeds("server", SEEDS_BY_DEFAULT, |seed, verbose| summed(run_server_seed(seed, verbose)?));
}

/// The simulator with agent runs on the server, and a model server that misbehaves.
#[cfg(feature = "server")]
#[test]
fn agent_campaign() {
    over_seeds("agents", SEEDS_BY_DEFAULT, |seed, verbose| summed(run_agent_seed(seed, verbose)?));
}

/// The simulator with Durable Streams on a server with a journal, and crashes.
#[cfg(feature = "server")]
#[test]
fn streams_campaign() {
    over_seeds("streams", LONG_SEEDS_BY_DEFAULT, |seed, verbose| {
        summed(run_streams_seed(seed, verbose)?)
    });
}

#[cfg(feature = "server")]
fn run_streams(seed: u64) -> Result<(), String> {
    run_streams_seed(seed, false).map(|_| ())
}

/// The simulator with the nodes of a cluster, and a model of the distributed engine.
#[cfg(feature = "server")]
#[test]
fn cluster_campaign() {
    over_seeds("cluster", SEEDS_BY_DEFAULT, |seed, verbose| {
        let summary = crate::sim::cluster::run_cluster_seed(seed, verbose)?;
        Ok((summary.hash, summary.happened))
    });
}

/// The simulator with a shard that follows executions of other nodes.
#[cfg(feature = "server")]
#[test]
fn replica_campaign() {
    over_seeds("replicas", SEEDS_BY_DEFAULT, |seed, verbose| {
        let summary = crate::sim::replica::run_replica_seed(seed, verbose)?;
        Ok((summary.hash, summary.happened))
    });
}

#[cfg(feature = "server")]
fn run_replicas(seed: u64) -> Result<(), String> {
    crate::sim::replica::run_replica_seed(seed, false).map(|_| ())
}

#[cfg(not(feature = "server"))]
fn run_replicas(_: u64) -> Result<(), String> {
    Err("the replicas are a part of the server".to_owned())
}

#[cfg(feature = "server")]
fn run_cluster(seed: u64) -> Result<(), String> {
    crate::sim::cluster::run_cluster_seed(seed, false).map(|_| ())
}

#[cfg(not(feature = "server"))]
fn run_cluster(_: u64) -> Result<(), String> {
    Err("the cluster is a part of the server".to_owned())
}

#[cfg(not(feature = "server"))]
fn run_streams(_: u64) -> Result<(), String> {
    Err("the streams are a part of the server".to_owned())
}

#[cfg(feature = "server")]
fn summed(summary: SeedSummary) -> Result<(u64, Happened), String> {
    Ok((summary.actions_hash, summary.happened))
}

/// Runs the seeds on all cores. `run` returns the hash of a seed and its events.
fn over_seeds(
    what: &str,
    by_default: u64,
    run: impl Fn(u64, bool) -> Result<(u64, Happened), String> + Sync,
) {
    let verbose = number("SIM_VERBOSE").is_some();
    if let Some(seed) = number("SIM_SEED") {
        let summary = run(seed, verbose).unwrap_or_else(|text| panic!("{text}"));
        println!("{:#?}", summary.1);
        return;
    }
    let count = number("SIM_SEEDS").unwrap_or(by_default);
    let first = number("SIM_FIRST_SEED").unwrap_or(1);
    let next = Mutex::new(first);
    let happened: Mutex<Happened> = Mutex::default();
    let hashes: Mutex<Vec<(u64, u64)>> = Mutex::default();
    let failures: Mutex<Vec<String>> = Mutex::default();
    let work = || {
        loop {
            let seed = {
                let mut next = next.lock().unwrap();
                *next += 1;
                *next - 1
            };
            if seed >= first + count || failures.lock().unwrap().len() >= FAILURES_MAX {
                return;
            }
            match run(seed, verbose) {
                Err(text) => failures.lock().unwrap().push(text),
                Ok((hash, of_seed)) => {
                    hashes.lock().unwrap().push((seed, hash));
                    let mut happened = happened.lock().unwrap();
                    if happened.is_empty() {
                        *happened = of_seed;
                    } else {
                        happened.iter_mut().zip(of_seed).for_each(|(a, b)| a.1 += b.1);
                    }
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (happened, failures) = (happened.into_inner().unwrap(), failures.into_inner().unwrap());
    println!("{count} seeds of {what}, each twice: {happened:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    note_hashes(what, &hashes.into_inner().unwrap());
    if count >= SEEDS_FOR_COVERAGE {
        let missing: Vec<&str> =
            happened.iter().filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect();
        assert!(missing.is_empty(), "never happened in {count} seeds: {missing:?}");
    }
}
