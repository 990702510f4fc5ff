//! Seeds, one or many: each is run twice, and both runs must be the same.

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use crate::sim::coverage::Coverage;
use crate::sim::run::Sim;
pub use crate::sim::run::Summary;

/// Runs one seed twice; `verbose` prints every step of the first run.
///
/// # Errors
/// What is wrong, and how to run the seed again.
pub fn run_seed(seed: u64, verbose: bool) -> Result<Summary, String> {
    let again = |text: String| {
        format!("seed {seed}: {text}; run it again: tools/sim --seed {seed} --verbose")
    };
    let first = run_once(seed, verbose).map_err(again)?;
    let second = run_once(seed, false).map_err(again)?;
    if first != second {
        return Err(again(difference(&first, &second)));
    }
    Ok(first)
}

fn difference(first: &Summary, second: &Summary) -> String {
    format!(
        "two runs differ: {} and {} actions with the hashes {:x} and {:x}, given {:x} and {:x}",
        first.action_count,
        second.action_count,
        first.actions_hash,
        second.actions_hash,
        first.given_hash,
        second.given_hash
    )
}

fn run_once(seed: u64, verbose: bool) -> Result<Summary, String> {
    catch_unwind(AssertUnwindSafe(|| Sim::new(seed, verbose).run(seed))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
            .unwrap_or_else(|| "it panicked without a word".into())
    })
}
