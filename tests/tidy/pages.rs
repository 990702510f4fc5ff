//! The rule for Markdown pages: numbers have a recorded run. `tests/documents/` checks links.

use std::collections::BTreeSet;

use crate::rules::Finding;

/// The folder of the recorded runs. Each run has a folder of its own.
pub const RUNS: &str = "bench/runs/";

/// Table rows with numbers in a section that names no recorded run, and names of runs that do not
/// exist. A section inherits the runs of the sections around it.
pub fn unfounded_numbers(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let finding = |line, text| Finding { path: path.to_string(), line, text };
    let mut findings = Vec::new();
    let mut sections: Vec<(usize, bool)> = vec![(0, false)]; // Level of the heading; has runs.
    let mut rows: Vec<usize> = Vec::new();
    let flush = |rows: &mut Vec<usize>, sections: &[(usize, bool)], findings: &mut Vec<_>| {
        let founded = sections.iter().any(|section| section.1);
        let unfounded = rows.drain(..).filter(|_| !founded);
        let text = format!("numbers in a section that names no run of `{RUNS}`");
        findings.extend(unfounded.map(|line| finding(line, text.clone())));
    };
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        let level = if fenced { 0 } else { line.chars().take_while(|c| *c == '#').count() };
        if level > 0 {
            flush(&mut rows, &sections, &mut findings);
            sections.retain(|section| section.0 < level);
            sections.push((level, false));
        }
        for name in run_names(line) {
            if exists(&format!("{RUNS}{name}")) {
                sections.last_mut().expect("the page is a section").1 = true;
            } else {
                findings.push(finding(number + 1, format!("`{RUNS}{name}` is not there")));
            }
        }
        if !fenced && line.trim_start().starts_with('|') && line.contains(|c: char| c.is_numeric())
        {
            rows.push(number + 1);
        }
    }
    flush(&mut rows, &sections, &mut findings);
    findings
}

/// The recorded runs that a line names. A placeholder `<…>` is not a name.
fn run_names(line: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    let names = line.split(RUNS).skip(1).map(|rest| {
        let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        rest[..length].trim_end_matches('.')
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_recorded_run_are_found() {
        let good = "# P\n## Method\n| a | b |\n|---|---|\n## A\nIn `bench/runs/one/`.\n\
                    ### B\n| x | 1.5 |\n";
        let exists = |path: &str| path == "bench/runs/one";
        assert_eq!(unfounded_numbers("PERF.md", good, exists), []);
        let bad = format!("{good}## C\n| y | 2 |\nSee bench/runs/two.\n");
        let lines: Vec<usize> =
            unfounded_numbers("PERF.md", &bad, exists).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [11, 10]);
    }

    #[test]
    fn the_pattern_of_a_name_is_not_a_name() {
        assert!(run_names("`bench/runs/<date>-<topic>/` holds it").is_empty());
        assert_eq!(run_names("(bench/runs/a-b/, bench/runs/c.)").len(), 2);
    }
}
