//! Links between the pages, and the size of README.md.

use std::collections::BTreeSet;

use crate::pages::{Page, pages, prose, read, root};

const README_LINES_MAX: usize = 200;
const README_WORDS_MAX: usize = 1_300;

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

#[test]
fn readme_is_short() {
    let text = read(&root().join("README.md"));
    let (line_count, word_count) = (text.lines().count(), text.split_whitespace().count());
    assert!(line_count <= README_LINES_MAX, "README.md has {line_count} lines");
    assert!(word_count <= README_WORDS_MAX, "README.md has {word_count} words");
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
