//! The program in a real cgroup with a limit of 64 MiB. It streams more than the limit, and its
//! rings stay below a tenth of it. If no cgroup can be made (no permission, no memory controller),
//! the test prints that it was not run.
#![cfg(feature = "cli")]

#[allow(dead_code, reason = "not every test needs all of it")]
mod limited;

use std::fs;
use std::io::Write;
use std::process::{Command, Output};

use limited::{Cgroup, LIMIT_BYTES};
use sha2::{Digest, Sha256};
use streamdoor::base::Random;

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");
const FILE_BYTES: usize = 100 << 20;

/// Runs a program in the cgroup.
fn run(cgroup: &Cgroup, program: &str, arguments: &[&str]) -> Output {
    let launcher = cgroup.launcher();
    let mut command = Command::new(&launcher[0]);
    command.args(&launcher[1..]).arg(program).args(arguments);
    command.output().expect("there is a shell")
}

/// Returns the number before ` MiB` that follows `words`.
fn mib_after(text: &str, words: &str) -> f64 {
    let rest = text.split_once(words).unwrap_or_else(|| panic!("no {words:?} in {text}")).1;
    let number = rest.split_once(" MiB").expect("a size").0;
    number.trim().parse().unwrap_or_else(|_| panic!("{number:?} in {text}"))
}

fn assert_small(text: &str) {
    let rings_mib = mib_after(text, "rings take at most");
    let touched_mib = mib_after(text, " MiB),");
    assert!(mib_after(text, "the cgroup's limit is") == 64.0, "{text}");
    assert!(rings_mib <= 6.4 && rings_mib > 6.0, "{text}");
    assert!(touched_mib <= rings_mib, "{text}");
}

#[test]
fn the_program_runs_in_64_mib_and_its_rings_in_a_tenth_of_that() {
    let Some(cgroup) = Cgroup::new() else {
        println!("not run: no cgroup with a memory limit can be made here");
        return;
    };
    let path = std::env::temp_dir().join(format!("streamdoor-cgroup-{}", std::process::id()));
    let mut bytes = vec![0; FILE_BYTES];
    Random::new(1).fill(&mut bytes);
    fs::File::create(&path).and_then(|mut file| file.write_all(&bytes)).unwrap();
    let digest = Sha256::digest(&bytes);
    let expected: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    drop(bytes);
    // The copy is made in the cgroup, so that its page cache counts for the cgroup and fills it.
    let copy = path.with_extension("copy");
    let (path, copy) = (path.to_str().unwrap(), copy.to_str().unwrap());
    assert!(run(&cgroup, "cp", &[path, copy]).status.success());
    fs::remove_file(path).unwrap();

    let of_file = run(&cgroup, PROGRAM, &["demo", "--file", copy, "--subscribers", "4"]);
    fs::remove_file(copy).unwrap();
    let text = String::from_utf8_lossy(&of_file.stdout).into_owned();
    let error = String::from_utf8_lossy(&of_file.stderr).into_owned();
    assert!(of_file.status.success(), "{}: {text} {error}", of_file.status);
    assert_eq!(text.matches(&expected).count(), 4, "{text}");
    assert_small(&text);

    let arguments = ["demo", "--chunks", "20000", "--delay", "0", "--policy", "block"];
    let of_chunks = run(&cgroup, PROGRAM, &[&arguments[..], &["--process", "0"]].concat());
    let text = String::from_utf8_lossy(&of_chunks.stdout).into_owned();
    assert!(of_chunks.status.success(), "{}: {text}", of_chunks.status);
    assert_eq!(text.matches("completed: 20,000 chunks, 0 missed").count(), 3, "{text}");
    assert_small(&text);

    let peak_bytes = cgroup.number(&["memory.max_usage_in_bytes", "memory.peak"]);
    println!("peak of the cgroup: {peak_bytes:?} bytes of {LIMIT_BYTES}");
    for line in text.lines().filter(|line| line.contains("[memory]") || line.contains("peak")) {
        println!("{line}");
    }
}
