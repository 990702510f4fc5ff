//! Runs a seed twice, the second time without output; both runs must be the same.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a seed twice. `options` are the ones with which `tools/sim` runs it again; `difference`
/// describes how two runs differ.
///
/// # Errors
/// The failure, even if it is a panic, and the command that runs the seed again.
pub(super) fn run_twice<T: PartialEq>(
    options: &str,
    verbose: bool,
    run: impl Fn(bool) -> Result<T, String>,
    difference: impl Fn(&T, &T) -> String,
) -> Result<T, String> {
    let once = |verbose: bool| {
        catch_unwind(AssertUnwindSafe(|| run(verbose))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let words = || panic.downcast_ref::<&str>().map(|&text| text.to_owned());
            Err(text.or_else(words).unwrap_or_else(|| "it panicked without a word".to_owned()))
        })
    };
    let both = once(verbose).and_then(|first| match once(false)? {
        second if second == first => Ok(first),
        second => Err(format!("two runs differ: {}", difference(&first, &second))),
    });
    both.map_err(|text| format!("{text}; run it again: tools/sim {options}"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_differs_fails_or_panics_is_said_and_how_to_see_it_again() {
        let tell = |first: &u8, second: &u8| format!("{first} and {second}");
        assert_eq!(run_twice("--seed 7", true, |_| Ok(1), tell), Ok(1));
        let runs = Cell::new(0);
        let differs = run_twice("--seed 7", false, |_| Ok(runs.replace(runs.get() + 1)), tell);
        let text = "two runs differ: 0 and 1; run it again: tools/sim --seed 7";
        assert_eq!(differs, Err(text.to_owned()));
        let fails = run_twice("--seed 8", false, |_| Err("no".to_owned()), tell);
        assert_eq!(fails, Err("no; run it again: tools/sim --seed 8".to_owned()));
        let panics = run_twice("--seed 9", false, |_| panic!("a word"), tell);
        assert_eq!(panics, Err("a word; run it again: tools/sim --seed 9".to_owned()));
    }
}
