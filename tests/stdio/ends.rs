//! Ends of the program: by a signal, without a reader, after a failed write, by a wrong argument.

use std::fs::File;
use std::process::Command;

use crate::program::{Program, REACTORS, Side, assert_quiet_end, input_pipe, output_pipe, socket};

#[test]
fn a_signal_ends_it_in_order() {
    for reactor in REACTORS {
        for name in ["TERM", "INT"] {
            let Some(mut program) = Program::piped(reactor, &[]) else { continue };
            program.ping(1);
            program.signal(name);
            assert_quiet_end(program.wait());
        }
    }
}

#[test]
fn where_nobody_reads_it_ends_quietly() {
    for reactor in REACTORS {
        for output in [output_pipe(), socket()] {
            let Some(mut program) = Program::start(reactor, &[], input_pipe(), output) else {
                continue;
            };
            program.ping(1);
            let null = File::open("/dev/null").unwrap();
            program.output = std::io::BufReader::new(null); // Drops the only reader.
            program.say(br#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
            let (status, log) = program.ended();
            assert_eq!((status.code(), log.as_str()), (Some(0), ""));
        }
    }
}

#[test]
fn what_can_not_be_written_is_told() {
    for reactor in REACTORS {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = Side { theirs: full.into(), ours: File::open("/dev/null").unwrap() };
        let Some(mut program) = Program::start(reactor, &[], input_pipe(), output) else {
            continue;
        };
        program.say(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
        program.input = None;
        let (status, log) = program.ended();
        assert_eq!(status.code(), Some(1));
        assert!(log.contains("standard output: No space left"), "{log}");
    }
}

#[test]
fn words_are_looked_at_and_nothing_is_said_on_the_way_of_the_protocol() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        command.arg("stdio").args(arguments).stdin(std::process::Stdio::null()).output().unwrap()
    };
    for (arguments, expected) in [
        (&["--stdio-settle", "-1"][..], "--stdio-settle"),
        (&["--stdio-settle", "10001ms"], "must be at most 10s"),
        (&["--cpus", "0,1"], "one shard"),
        (&["--listen", "0.0.0.0:0"], "without a token: give --token-file"),
        (&["--lisen", "127.0.0.1:0"], "did you mean --listen?"),
        (&["word"], "word"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(expected), "{said}");
    }
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    assert!(help.contains("--stdio-settle TIME") && help.contains("--files-root"));
    assert!(!help.contains("8808"), "{help}");
    assert!(help.lines().all(|line| line.chars().count() < 100));
    let output = run(&["--log-level", "info", "--log", "json"]);
    assert!(output.status.success() && output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(r#""event":"speaking""#) && said.contains("by a thread"), "{said}");
}
