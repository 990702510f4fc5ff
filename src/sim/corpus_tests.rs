//! Checks the fuzzer's corpus again without the fuzzer: the inputs that it kept, and all that ever
//! failed. `tools/fuzz` looks for more.

#[path = "../../tests/fuzz/src/lib.rs"]
mod fuzz;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use fuzz::{CHECKS, Check};
use streamdoor::base::Random;

/// Returns the folder of the fuzzer's package.
fn folder() -> PathBuf {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where its package is");
    PathBuf::from(root).join("tests/fuzz")
}

/// Returns the kept inputs of a target, sorted by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = folder().join("corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("a folder can be listed").path();
            let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
            (name, fs::read(path).expect("a corpus is files"))
        })
        .collect();
    inputs.sort();
    inputs
}

/// Checks one input, and prints it if the check fails.
fn check(target: &str, name: &str, check: Check, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(input))) {
        eprintln!("{target}: {name}: {}", input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn what_is_kept_is_still_right() {
    for (target, check_input) in CHECKS {
        let inputs = corpus(target);
        assert!(!inputs.is_empty(), "{target} has no corpus");
        for (name, input) in &inputs {
            check(target, name, *check_input, input);
        }
        let bytes: usize = inputs.iter().map(|(_, input)| input.len()).sum();
        println!("{target}: {} inputs, {bytes} bytes", inputs.len());
    }
}

/// Checks each kept input with a few bytes changed. This is no fuzzer, but it runs everywhere.
#[test]
fn what_is_nearly_as_kept_is_right_as_well() {
    let mut random = Random::new(1);
    for (target, check_input) in CHECKS {
        for (name, input) in corpus(target) {
            let mut input = input;
            for _ in 0..random.between(1, 3) {
                let at = random.below(input.len() as u64 + 1) as usize;
                let end = (at + random.below(3) as usize).min(input.len());
                let piece = random.next_u64().to_le_bytes();
                input.splice(at..end, piece[..random.below(4) as usize].iter().copied());
            }
            check(target, &name, *check_input, &input);
        }
    }
}

#[test]
fn every_target_is_one_of_the_fuzzer_and_has_its_dictionary() {
    let manifest = include_str!("../../tests/fuzz/Cargo.toml");
    let count = manifest.matches("[[bin]]").count();
    assert_eq!(count, CHECKS.len());
    for (target, _) in CHECKS {
        assert!(manifest.contains(&format!("path = \"targets/{target}.rs\"")), "{target}");
        assert!(folder().join(format!("dictionaries/{target}.dict")).is_file(), "{target}");
    }
}
