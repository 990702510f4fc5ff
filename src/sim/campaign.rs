//! Seeds, one or many: each runs twice, and both runs must be the same.

pub use crate::sim::coverage::Coverage;
use crate::sim::run::Sim;
pub use crate::sim::run::Summary;
use crate::sim::twice::run_twice;

/// Runs one seed twice; `verbose` prints every step of the first run.
///
/// # Errors
/// The failure, and the command that runs the seed again.
pub fn run_seed(seed: u64, verbose: bool) -> Result<Summary, String> {
    let options = format!("--seed {seed} --verbose");
    let run = |verbose| Ok(Sim::new(seed, verbose).run(seed));
    run_twice(&options, verbose, run, difference).map_err(|text| format!("seed {seed}: {text}"))
}

fn difference(first: &Summary, second: &Summary) -> String {
    format!(
        "{} and {} actions with the hashes {:x} and {:x}, given {:x} and {:x}",
        first.action_count,
        second.action_count,
        first.actions_hash,
        second.actions_hash,
        first.given_hash,
        second.given_hash
    )
}
