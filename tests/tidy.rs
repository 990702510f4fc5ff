//! Text rules as a test: strata, heads, sizes, where `unsafe` and atomics live, links, numbers.
//!
//! `tests/tidy/` has the rules, and the tests that show them fail. This file applies them to the
//! repository. Rules that rustfmt or clippy can check are left to them (functions of at most 70
//! lines: `.clippy.toml`).

use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/english.rs"]
mod english;
#[path = "tidy/guests.rs"]
mod guests;
#[path = "tidy/impls.rs"]
mod impls;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/source.rs"]
mod source;

use rules::Finding;

/// The length above which files are listed for a second look.
const FILE_LINES_AIM: usize = 400;
/// The folder of the source that holds pages and no code.
const GUIDE: &str = "guide";
/// The entries of the top level, besides licences and dot-files. `target` is cargo's.
const TOP_LEVEL: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "src",
    "bench",
    "tests",
    "tools",
    "PERF.md",
    "README.md",
    "target",
];

/// Returns the root that cargo names at run time. A compiled-in path could belong to another
/// checkout that shares the target folder.
fn root() -> PathBuf {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where its package is");
    PathBuf::from(root)
}

/// Returns every Rust file of the repository: its path from the root with slashes, and its text.
fn rust_files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in ["src", "bench", "tests", "tools"] {
        collect_rust_files(&root().join(folder), &mut files);
    }
    files.sort();
    files
}

fn collect_rust_files(folder: &Path, files: &mut Vec<(String, String)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("a folder can be listed").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("names are plain");
        if path.is_dir() && name != "target" && name != "runs" {
            collect_rust_files(&path, files);
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).expect("a Rust file is UTF-8");
            let inside = path.strip_prefix(root()).expect("it was found below the root");
            files.push((inside.to_str().expect("names are plain").to_string(), text));
        }
    }
}

fn assert_none(findings: &[Finding]) {
    let list: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(list.is_empty(), "{} findings:\n{}", list.len(), list.join("\n"));
}

#[test]
fn every_rust_file_keeps_the_rules() {
    let files = rust_files();
    assert!(files.len() > 10, "only {} files found", files.len());
    let findings: Vec<Finding> =
        files.iter().flat_map(|(path, text)| rules::File::new(path, text).findings()).collect();
    for (path, text) in &files {
        let line_count = text.lines().count();
        if line_count > FILE_LINES_AIM {
            println!("note: {path} has {line_count} lines, the aim is {FILE_LINES_AIM}");
        }
    }
    assert_none(&findings);
}

#[test]
fn the_guests_of_a_server_keep_their_borders() {
    let files = rust_files();
    assert_none(
        &files.iter().flat_map(|(path, text)| guests::findings(path, text)).collect::<Vec<_>>(),
    );
}

#[test]
fn no_type_has_its_methods_in_many_files() {
    assert_none(&impls::findings(&rust_files()));
}

#[test]
fn doc_comments_are_plain_english() {
    let mut findings = Vec::new();
    for (path, text) in rust_files() {
        let wrong = english::wrong_sentences(&text).into_iter();
        findings.extend(wrong.map(|(line, text)| Finding { path: path.clone(), line, text }));
    }
    assert_none(&findings);
}

#[test]
fn every_folder_of_the_source_has_its_place_in_the_strata() {
    for entry in fs::read_dir(root().join("src")).expect("there is a source folder") {
        let path = entry.expect("a folder can be listed").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("names are plain");
        let is_stratum = rules::STRATA.iter().any(|(module, _)| *module == name);
        let known = is_stratum || name == rules::LIMITS || name == GUIDE;
        assert!(known || !path.is_dir(), "src/{name} has no place in STRATA");
    }
}

#[test]
fn every_number_in_perf_md_comes_from_a_recorded_run() {
    let text = fs::read_to_string(root().join("PERF.md")).expect("PERF.md is there");
    assert!(text.lines().count() <= 200, "PERF.md has {} lines", text.lines().count());
}

#[test]
fn the_top_level_holds_what_a_visitor_expects() {
    for entry in fs::read_dir(root()).expect("the root can be listed") {
        let name = entry.expect("a folder can be listed").file_name();
        let name = name.to_str().expect("names are plain");
        let known = TOP_LEVEL.contains(&name) || name.starts_with("LICENSE-");
        assert!(known || name.starts_with('.'), "`{name}` does not belong on the top level");
    }
}
