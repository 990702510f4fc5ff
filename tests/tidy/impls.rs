//! The rule against types that grow without end: the methods of a type stand in few files.

use std::collections::{BTreeMap, BTreeSet};

use crate::rules::Finding;
use crate::source::{Token, tokens, without_comments_and_strings};

/// Maximum number of files with methods of one type.
const FILES_MAX: usize = 3;

/// The types whose methods stand in too many of these files (path and text), at each last file.
pub fn findings(files: &[(String, String)]) -> Vec<Finding> {
    let mut places: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    for (path, text) in files {
        let Some(inside) = path.strip_prefix("src/") else { continue };
        if path.contains("tests") {
            continue;
        }
        let area = inside.split('/').next().expect("a path has a first part");
        for name in types_with_methods(&tokens(&without_comments_and_strings(text))) {
            places.entry((area.to_string(), name)).or_default().insert(path);
        }
    }
    let mut findings = Vec::new();
    for ((area, name), paths) in &places {
        if paths.len() > FILES_MAX {
            let path = paths.last().expect("a type is somewhere").to_string();
            let text = format!(
                "`{name}` of {area} has methods in {} files, {FILES_MAX} at most: give the module \
                 its own type",
                paths.len()
            );
            findings.push(Finding { path, line: 1, text });
        }
    }
    findings
}

/// The types of the inherent `impl` blocks. Implementations of traits do not count.
fn types_with_methods(tokens: &[Token]) -> Vec<String> {
    let mut names = Vec::new();
    for place in 0..tokens.len() {
        let begins_item = place == 0
            || matches!(tokens[place - 1].text.as_str(), "}" | ";" | "]" | "{" | "unsafe");
        if tokens[place].text != "impl" || !begins_item {
            continue;
        }
        let mut at = place + 1;
        if text_at(tokens, at) == "<" {
            at = behind_generics(tokens, at);
        }
        let Some(open) = tokens[at..].iter().position(|token| token.text == "{") else { continue };
        let head = &tokens[at..at + open];
        if !head.iter().any(|token| token.text == "for") {
            // The last name of the path before its generics.
            let generic =
                head.iter().position(|token| matches!(token.text.as_str(), "<" | "where"));
            let name = &head[..generic.unwrap_or(head.len())];
            names.extend(name.last().map(|token| token.text.clone()));
        }
    }
    names
}

fn text_at(tokens: &[Token], place: usize) -> &str {
    tokens.get(place).map_or("", |token| token.text.as_str())
}

/// The place behind the `<…>` that begins at `open`. An arrow's `>` closes nothing.
fn behind_generics(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for place in open..tokens.len() {
        match tokens[place].text.as_str() {
            "<" => depth += 1,
            ">" if text_at(tokens, place - 1) != "-" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return place + 1;
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Vec<(String, String)> {
        texts.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect()
    }

    #[test]
    fn methods_in_a_fourth_file_are_found() {
        let three = [
            ("src/a/b.rs", "impl Big { fn f() {} }"),
            ("src/a/c.rs", "impl<R: F<fn() -> u8>> Big<R> where R: X { fn g() {} }\nimpl Big {}"),
            ("src/a/d.rs", "#[cfg(test)]\nimpl super::Big {}"),
            ("src/a/d_tests.rs", "impl Big {}"),
            ("src/a/e.rs", "impl Drop for Big { } fn f(x: impl Big) {} // impl Big {}"),
            ("src/b/b.rs", "impl Big {}"),
        ];
        assert_eq!(findings(&files(&three)), []);
        let mut four = three.to_vec();
        four.push(("src/a/f.rs", "struct Other;\nimpl<'a> Big {}"));
        let found = findings(&files(&four));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "src/a/f.rs");
    }
}
