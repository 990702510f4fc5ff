//! The page of troubleshooting: its headings have texts of the program.

use std::fs;
use std::path::Path;

use crate::pages::{prose, read, root};

/// Adds the text of the Rust files below a folder. Strings that continue on the next line are
/// joined.
fn add_source(folder: &Path, source: &mut String) {
    for entry in fs::read_dir(folder).expect("there is a source") {
        let path = entry.expect("a folder can be listed").path();
        if path.is_dir() {
            add_source(&path, source);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = read(&path);
            let mut parts = text.split("\\\n");
            source.push_str(parts.next().expect("a part"));
            parts.for_each(|part| source.push_str(part.trim_start()));
        }
    }
}

#[test]
fn the_symptoms_are_texts_of_the_program() {
    let mut source = String::new();
    add_source(&root().join("src"), &mut source);
    let page = read(&root().join("src/guide/troubleshooting.md"));
    let headings: Vec<&str> = prose(&page).filter(|line| line.starts_with("###")).collect();
    let texts = headings.iter().flat_map(|heading| heading.split('`').skip(1).step_by(2));
    // A record of the log has `reason=stall`; the source has its two parts.
    let parts: Vec<&str> = texts.flat_map(|text| text.split(['…', '='])).map(str::trim).collect();
    assert!(parts.len() > 15, "{parts:?}");
    for part in parts {
        assert!(source.contains(part), "the program never says `{part}`");
    }
}
