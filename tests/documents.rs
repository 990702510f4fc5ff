//! Tests of the pages: README.md, PERF.md and the guide. They read files and need no server.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const README_LINES_MAX: usize = 200;

/// A page: its path and its text.
struct Page {
    path: PathBuf,
    text: String,
}

fn root() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the package"))
}

fn page(path: PathBuf) -> Page {
    let text = fs::read_to_string(&path).expect("a page is text");
    Page { path, text }
}

/// Returns README.md, PERF.md and all pages of the guide.
fn pages() -> Vec<Page> {
    let guide = fs::read_dir(root().join("src/guide")).expect("there is a guide");
    let paths = guide.map(|entry| entry.expect("a folder can be listed").path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let mut paths: Vec<PathBuf> = paths.filter(is_page).collect();
    assert!(paths.len() > 10, "the guide has {} pages", paths.len());
    paths.extend([root().join("README.md"), root().join("PERF.md")]);
    paths.into_iter().map(page).collect()
}

/// Returns the fenced blocks: the language, and the text.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            match open.take() {
                Some(block) => blocks.push(block),
                None => open = Some((language.trim().to_string(), String::new())),
            }
        } else if let Some((_, block)) = &mut open {
            block.push_str(line);
            block.push('\n');
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// Returns the lines outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    })
}

/// Returns the anchors of a page: those of its headings, as GitHub makes them, and explicit ones.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(text) {
        if let Some((_, rest)) = line.split_once("<a id=\"") {
            anchors.insert(rest.split('"').next().expect("a part").to_string());
        }
        let heading = line.trim_start_matches('#');
        if heading.len() < line.len() && heading.starts_with(' ') {
            let kept = heading.trim().to_lowercase();
            let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            anchors.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    anchors
}

/// Returns the targets of the links, without code. A link may continue on the next line.
fn targets(text: &str) -> Vec<String> {
    let prose = prose(text).collect::<Vec<_>>().join("\n");
    let prose = prose.split('`').step_by(2).collect::<String>();
    let starts = prose.split("](").skip(1);
    let targets = starts.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.map(|target| target.split_whitespace().next().unwrap_or("").to_string()).collect()
}

/// Returns why the link leads nowhere, if it does.
fn broken_link(page: &Page, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = page.path.parent().expect("a page is in a folder");
    let path = folder.join(file);
    let finding = |what| Some(format!("{}: {what}: {target}", page.path.display()));
    if !file.is_empty() && !path.exists() {
        return finding("no such file");
    }
    if anchor.is_empty() {
        return None;
    }
    let known = if file.is_empty() { anchors(&page.text) } else { anchors(&read(&path)) };
    if known.contains(anchor) { None } else { finding("no such heading") }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a page is text")
}

#[test]
fn readme_is_short() {
    let line_count = read(&root().join("README.md")).lines().count();
    assert!(line_count <= README_LINES_MAX, "README.md has {line_count} lines");
}

#[test]
fn every_relative_link_and_anchor_resolves() {
    let mut link_count = 0;
    let mut findings = Vec::new();
    for page in pages() {
        for target in targets(&page.text) {
            link_count += 1;
            findings.extend(broken_link(&page, &target));
        }
    }
    assert!(link_count > 10, "only {link_count} links were found");
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn a_link_without_a_file_or_heading_is_found() {
    let text = "# One two\n[a](#one-two) [b](#three) [c](no-such-file.md)".to_string();
    let page = Page { path: root().join("README.md"), text };
    let targets = targets(&page.text);
    let broken: Vec<_> = targets.iter().filter(|t| broken_link(&page, t).is_some()).collect();
    assert_eq!(broken, ["#three", "no-such-file.md"]);
}

#[test]
fn every_page_of_the_guide_is_in_the_documentation() {
    let library = read(&root().join("src/lib.rs"));
    for page in pages().iter().filter(|page| page.path.starts_with(root().join("src/guide"))) {
        let name = page.path.file_name().and_then(|name| name.to_str()).expect("names are plain");
        let included = format!("include_str!(\"guide/{name}\")");
        assert!(library.contains(&included), "src/lib.rs does not include {name}");
    }
}

#[test]
fn every_block_of_json_is_json() {
    let mut block_count = 0;
    for page in pages() {
        let blocks = blocks(&page.text);
        for (_, block) in blocks.iter().filter(|(language, _)| language == "json") {
            block_count += 1;
            let parsed = serde_json::from_str::<serde_json::Value>(block);
            assert!(parsed.is_ok(), "{}: {parsed:?}\n{block}", page.path.display());
        }
    }
    assert!(block_count > 1, "only {block_count} blocks were found");
}

/// Returns each command of streamdoor in the shell blocks of a page, with its long options.
#[cfg(feature = "cli")]
fn commands(text: &str) -> Vec<(String, Vec<String>)> {
    let mut commands = Vec::new();
    for (_, block) in blocks(text).iter().filter(|(language, _)| language == "sh") {
        for line in block.replace("\\\n", " ").lines() {
            let line = line.split(" #").next().expect("a part").split('|').next().expect("a part");
            let mut words = line.split_whitespace();
            let Some("streamdoor") = words.next() else { continue };
            let Some(command) = words.next() else { continue };
            let options = words.filter(|word| word.starts_with("--") && word.len() > 2);
            let options = options.map(|word| word.split('=').next().expect("a part").to_string());
            commands.push((command.to_string(), options.collect()));
        }
    }
    commands
}

#[cfg(feature = "cli")]
#[test]
fn every_command_and_option_that_readme_names_is_in_the_help() {
    let commands = commands(&read(&root().join("README.md")));
    assert!(commands.len() > 2, "{commands:?}");
    for (command, options) in commands {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        let output = program.args([command.as_str(), "--help"]).output().expect("it can be run");
        let help = String::from_utf8(output.stdout).expect("help is text");
        assert!(output.status.success(), "`streamdoor {command}` is not known");
        for option in options {
            let is_known = help.split_whitespace().any(|word| word.trim_matches(',') == option);
            assert!(is_known, "`streamdoor {command} {option}` is not in the help");
        }
    }
}

/// Compares a page with the text that the program knows, or writes it if `UPDATE_GUIDE` is set.
#[cfg(feature = "server")]
fn assert_generated(name: &str, text: &str) {
    let path = root().join("src/guide").join(name);
    if std::env::var_os("UPDATE_GUIDE").is_some() {
        fs::write(&path, text).expect("the guide can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let help = "UPDATE_GUIDE=1 cargo test --all-features --test documents writes it anew";
    assert!(found == text, "{name} is not what the program says; {help}");
}

#[cfg(feature = "server")]
#[test]
fn the_page_of_error_codes_is_that_of_the_source() {
    let mut text = "\
# Errors

An error of the HTTP API is a JSON object: `{\"error\": {\"code\": …, \"message\": …}}`. `code` is
for programs and stays the same. `message` is for people and names the cause. Some errors also have
`field`, the part of the request that is wrong, and `limit`, the allowed value. With status 429 or
503, the header `Retry-After` says when another attempt is worth it.

This page is generated from the source.

| status | code | cause | what helps |
|---:|---|---|---|
"
    .to_owned();
    for row in streamdoor::endpoint::ERROR_CODES {
        let status = row.status.code();
        text += &format!("| {status} | `{}` | {} | {} |\n", row.code, row.cause, row.fix);
    }
    assert_generated("errors.md", &text);
}

#[cfg(feature = "cli")]
#[test]
fn the_page_of_settings_is_that_of_the_program() {
    let program = env!("CARGO_BIN_EXE_streamdoor");
    let printed = std::process::Command::new(program).args(["serve", "--print-config"]).output();
    let printed = String::from_utf8(printed.expect("the program starts").stdout).unwrap();
    let text = format!(
        "\
# Configuration

`streamdoor serve --config FILE` reads settings from a TOML file. Each setting is also an option:
`retention` in the file is `--retention` on the command line, which is stronger. `streamdoor stdio`
takes the same settings. `streamdoor serve --config FILE --print-config` checks a file.

This page is generated. It is what `streamdoor serve --print-config` prints: every setting with its
meaning and its default.

```toml
{printed}```
"
    );
    assert_generated("configuration.md", &text);
}
