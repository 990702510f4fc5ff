//! Every fenced block of the pages is run, or parsed, or is an exception with a reason.

use std::process::Command;

use crate::pages::{Block, all_blocks, blocks};
use crate::{parsed, shell};

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

/// Blocks that are not run: the page, a part of the block, and the reason. Their commands and
/// options are checked against the help texts all the same.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("README.md", "tools/test", "runs all tests, this one included"),
    ("PERF.md", "tools/bench", "measures for some minutes"),
    ("src/guide/contributing.md", "tools/test", "runs all tests, this one included"),
    ("src/guide/agents.md", "OPENAI_API_KEY", "needs an account of a model's provider"),
    ("src/guide/operations.md", "docker build", "needs Docker"),
    ("src/guide/cluster.md", "docker compose", "needs Docker"),
    ("src/guide/operations.md", "tools/package", "builds the profile `dist`, and installs it"),
    ("src/guide/operations.md", "tools/pgo", "builds the profile `dist` twice"),
    ("src/guide/shared_memory.md", "tools/c/Cargo.toml", "tools/c/tests builds and runs the same"),
];

/// Texts that a block must print when it runs: the page, a part of the block, and the text.
const PRINTED: &[(&str, &str, &str)] = &[
    ("README.md", "slow_data_processor", "event: end"),
    ("README.md", "streamdoor demo", "an error"),
    ("src/guide/cluster.md", "nats-server", "\"state\":\"completed\""),
    ("src/guide/http.md", "streamdoor serve &", "event: end"),
    ("src/guide/http.md", "policy=conflate", "\"state\":\"completed\""),
    ("src/guide/http.md", "idempotency-key", "\"executions\":["),
    ("src/guide/workers.md", "worker.py", "step 3"),
    ("src/guide/workers.md", "tool-results", "\"state\":\"completed\""),
    ("src/guide/agents.md", "model-script", "It streams the results of tools"),
    ("src/guide/command_line.md", "search_files", "an error"),
    ("src/guide/shared_memory.md", "streamdoor pipe", "sha256"),
];

/// Blocks that run at the same time.
const THREADS: usize = 2;

fn matches(entry: (&str, &str), block: &Block) -> bool {
    block.page == entry.0 && block.text.contains(entry.1)
}

/// Runs or parses a block.
///
/// # Errors
/// The text for the person who runs the test.
fn check(block: &Block) -> Result<(), String> {
    if EXCEPTIONS.iter().any(|(page, part, _)| matches((page, part), block)) {
        return Ok(());
    }
    match block.language.as_str() {
        "sh" => check_commands(block),
        "console" => shell::compare(block),
        "json" => parsed::json(block),
        "toml" => parsed::toml(block),
        "ini" => parsed::unit(block),
        "js" | "tsx" => parsed::javascript(block),
        "python" => parsed::python(block),
        "c" => parsed::c(block),
        "yaml" => parsed::yaml(block),
        // A test of the documentation: `every_page_of_the_guide_is_in_the_documentation`.
        "rust" if block.page.starts_with("src/guide/") => Ok(()),
        language => Err(format!("no test runs or parses blocks of `{language}`")),
    }
}

fn check_commands(block: &Block) -> Result<(), String> {
    let Some(said) = shell::run(block)? else { return Ok(()) };
    let expected = PRINTED.iter().filter(|(page, part, _)| matches((page, part), block));
    for (_, _, text) in expected {
        if !said.contains(text) {
            return Err(format!("{text:?} is not in what it prints:\n{said}"));
        }
    }
    Ok(())
}

/// Returns the findings of all blocks.
fn findings(blocks: &[Block]) -> Vec<String> {
    let parts = blocks.chunks(blocks.len().div_ceil(THREADS));
    std::thread::scope(|scope| {
        let checked = parts.map(|part| {
            scope.spawn(|| {
                let wrong = part.iter().filter_map(|block| Some((block, check(block).err()?)));
                wrong.map(|(block, text)| format!("{}: {text}", block.place())).collect::<Vec<_>>()
            })
        });
        let checked: Vec<_> = checked.collect();
        checked.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn every_block_of_the_pages_works() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let blocks = all_blocks();
    let blocks: Vec<Block> = blocks.into_iter().filter(|b| b.place().contains(&only)).collect();
    assert!(!only.is_empty() || blocks.len() > 40, "only {} blocks were found", blocks.len());
    let findings = findings(&blocks);
    assert!(findings.is_empty(), "{} findings:\n\n{}", findings.len(), findings.join("\n\n"));
}

#[test]
fn every_exception_and_every_printed_text_has_its_block() {
    let blocks = all_blocks();
    for (page, part, text) in EXCEPTIONS.iter().chain(PRINTED) {
        let is_there = blocks.iter().any(|block| matches((page, part), block));
        assert!(is_there, "{page} has no block with {part:?} ({text})");
    }
}

#[test]
fn a_block_of_no_class_and_wrong_blocks_are_found() {
    let wrong = ["```", "```rust,ignore", "```json\n{", "```toml\nretentoin = '1s'"];
    let commands = ["```sh\nstreamdoor serv", "```console\n$ echo a\nb", "```console\n$ echo a\na"];
    let texts = [&wrong[..], &commands[..]].concat();
    let text = texts.iter().map(|block| format!("{block}\n```\n")).collect::<String>();
    let wrong: Vec<usize> = blocks("src/guide/x.md", &text)
        .iter()
        .filter(|block| check(block).is_err())
        .map(|block| block.line)
        .collect();
    assert_eq!(wrong, [1, 3, 5, 8, 11, 14]);
}

/// Returns each command of streamdoor in a block, with its long options.
fn named(block: &Block) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    if block.language != "sh" {
        return found;
    }
    for line in shell::commands(&block.text) {
        let line = line.replace("\\\n", " ");
        let line = line.split(" #").next().expect("a part").split('|').next().expect("a part");
        let mut words = line.split_whitespace();
        let Some("streamdoor") = words.next() else { continue };
        let Some(command) = words.next().filter(|word| !word.starts_with('-')) else { continue };
        let options = words.filter(|word| word.starts_with("--") && word.len() > 2);
        let options = options.map(|word| word.split('=').next().expect("a part").to_owned());
        found.push((command.to_owned(), options.collect()));
    }
    found
}

#[test]
fn every_command_and_option_of_the_pages_is_in_the_help() {
    let commands: Vec<_> = all_blocks().iter().flat_map(named).collect();
    assert!(commands.len() > 20, "{commands:?}");
    for (command, options) in commands {
        let output = Command::new(PROGRAM).args([command.as_str(), "--help"]).output().unwrap();
        let help = String::from_utf8(output.stdout).expect("help is text");
        assert!(output.status.success(), "`streamdoor {command}` is not known");
        for option in options {
            let is_known = parsed::help_has(&help, &option);
            assert!(is_known, "`streamdoor {command} {option}` is not in the help");
        }
    }
}
