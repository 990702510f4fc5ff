//! The command line as a whole: commands, their options, and suggestions for unknown words.

use lexopt::Parser;

use super::*;

fn error_of(arguments: &[&str]) -> CliError {
    let parser = Parser::from_args(arguments);
    carry_out(parser).expect_err(&format!("{arguments:?} is refused"))
}

#[test]
fn every_command_is_in_the_help_text_and_has_one_of_its_own() {
    let listed = HELP.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let listed = listed.filter(|line| !line.starts_with("   "));
    let listed: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(listed, COMMANDS.map(|command| command.name));
    for command in &COMMANDS {
        let help = help(Parser::from_args([command.name])).unwrap();
        assert!(help.starts_with(&format!("streamdoor {}: ", command.name)), "{help}");
    }
    for arguments in [&[][..], &["help"], &["version"], &["--help"]] {
        assert_eq!(help(Parser::from_args(arguments)).unwrap(), HELP, "{arguments:?}");
    }
}

/// An unknown option follows the one that is tried, so that no command does anything.
#[test]
fn every_option_of_a_help_text_is_one_that_the_command_takes() {
    const UNKNOWN: &str = "--no-such-option";
    for Command { name, help, run } in &COMMANDS {
        let help = help();
        let options: Vec<&str> =
            hints::options_of(&help).filter(|option| *option != "help").collect();
        assert!(!options.is_empty() || ["completions", "man"].contains(name), "{name}");
        for option in options {
            // The option takes the second word as its value if it needs one.
            let arguments = [&format!("--{option}"), UNKNOWN, UNKNOWN];
            match run(Parser::from_args(arguments)) {
                Err(CliError::UnknownOption(unknown)) => {
                    assert_eq!(unknown, UNKNOWN, "{name} --{option}")
                }
                Err(CliError::Usage(text)) => {
                    assert!(text.starts_with(&format!("--{option}")), "{name}: {text}")
                }
                other => panic!("{name} --{option}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_mistyped_word_is_told_with_the_nearest_one() {
    for (arguments, expected) in [
        (&["completions"][..], "no shell is given: bash, zsh or fish"),
        (&["serv"][..], "unknown command \"serv\"; did you mean serve?"),
        (&["hlep"], "unknown command \"hlep\"; did you mean help?"),
        (&["frobnicate"], "unknown command \"frobnicate\""),
        (&["help", "serv"], "unknown command \"serv\"; did you mean serve?"),
        (&["help", "run", "serve"], "unexpected argument \"serve\""),
        (&["version", "run"], "unexpected argument \"run\""),
        (&["--versoin"], "unknown option --versoin; did you mean --version?"),
        (&["run", "--polcy", "drop"], "unknown option --polcy; did you mean --policy?"),
        (&["call", "--token-fil", "x"], "unknown option --token-fil; did you mean --token-file?"),
        (&["watch", "--onse"], "unknown option --onse; did you mean --once?"),
        (&["cat", "--nmaed"], "unknown option --nmaed; did you mean --named?"),
        (
            &["pipe", "--chunk-byte", "1"],
            "unknown option --chunk-byte; did you mean --chunk-bytes?",
        ),
        (&["top", "--intervall", "1s"], "unknown option --intervall; did you mean --interval?"),
        (&["agent", "--modle", "m"], "unknown option --modle; did you mean --model?"),
        (&["serve", "--spin-ms", "5"], "unknown option --spin-ms; did you mean --spin?"),
        (&["stdio", "--lisen", "x"], "unknown option --lisen; did you mean --listen?"),
        (&["tools", "--jsn"], "unknown option --jsn; did you mean --json?"),
        (&["doctor", "--kep"], "unknown option --kep; did you mean --keep?"),
        (&["doctor", "--node", "a"], "--node: --cluster is not given"),
        (&["cluster"], "no server is given: --cluster nats://HOST:PORT"),
        (&["cluster", "--clustr", "x"], "unknown option --clustr; did you mean --cluster?"),
        (&["cluster", "inti"], "must be status, init or forget; did you mean init?"),
        (&["cluster", "init", "--cluster", "x"], "--max-bytes is not given"),
        (&["cluster", "init", "--max-bytes", "8G"], "--max-bytes: must be 1048576 to"),
        (&["cluster", "init", "--replicas", "2"], "--replicas 2: must be 1, 3 or 5"),
        (&["cluster", "init", "--retention", "1s"], "--retention: must be a time from 60s to"),
        (&["cluster", "status", "--replicas", "3"], "--replicas: only `init` takes it"),
        (&["cluster", "init", "--json"], "--json: only `status` takes it"),
        (&["journal", "--jsno"], "unknown option --jsno; did you mean --json?"),
        (&["journal", "verfy", "x"], "must be ls, cat or verify; did you mean verify?"),
        (&["journal"], "no action is given: ls, cat or verify"),
        (&["journal", "ls"], "no directory is given"),
        (&["journal", "cat", "x"], "no execution is given"),
        (&["journal", "ls", "x", "y"], "unexpected argument \"y\""),
        (&["journal", "cat", "x", "--json", "y"], "--json: `cat` writes bytes"),
        (&["model-script", "--quite"], "unknown option --quite; did you mean --quiet?"),
        (&["demo", "--frobnicate"], "unknown option --frobnicate"),
        (&["demo", "-x"], "unknown option -x"),
        (&["agent", "--strategy", "eagre"], "did you mean eager?"),
        (&["run", "--format", "jsn"], "--format jsn: must be raw, ndjson (or json)"),
        (&["run", "--format", "jsn"], "; did you mean json?"),
        (&["run", "--policy", "blok"], "; did you mean block?"),
        (&["serve", "--reactor", "urng"], "; did you mean uring?"),
        (&["serve", "--log-level", "wran"], "; did you mean warn?"),
        (&["demo", "--chunks", "-1"], "--chunks -1: must be a number from 0 to 1844"),
        (&["demo", "--delay", "1500us"], "--delay 1500us: must be whole milliseconds"),
        (&["demo", "--process", "1ms,x"], "--process 1ms,x: each must be a number followed by"),
        (&["demo", "--subscribers", "0"], "--subscribers 0: must be from 1 to"),
        (&["pipe", "--chunk-bytes", "0", "x"], "--chunk-bytes 0: must be from 1 to"),
        (&["stdio", "--stdio-settle", "99999s"], "--stdio-settle 99999s: must be at most 10s"),
    ] {
        let error = error_of(arguments);
        assert!(error.to_string().contains(expected), "{arguments:?}: {error}");
        assert_eq!(error.exit_code(), ExitCode::from(2), "{arguments:?}");
    }
    assert!(matches!(error_of(&[]), CliError::NoCommand));
}
