//! The output of a search: lines of JSON for matches and problems, and its progress.
//!
//! The shapes are described in `search_files.rs`.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink, SinkFinish, SinkMatch};

use crate::limits;
use crate::stream::Kind;
use crate::tool::{Output, Stopped};

/// Number of bytes before the first match in a line that is cut.
const TEXT_BEFORE_MATCH_BYTES: usize = 128;
/// Number of bytes of one file between two progress reports.
const BYTES_PER_REPORT: u64 = 16 << 20;

/// The output for lines of JSON, and the progress of the search.
pub(super) struct Report<'a> {
    pub out: &'a mut Output,
    /// The real path of the root, and the given one, which is shown instead.
    root: &'a Path,
    given: &'a Path,
    line: Vec<u8>,
    /// Number of searched files.
    pub file_count: u64,
}

impl<'a> Report<'a> {
    pub fn new(out: &'a mut Output, root: &'a Path, given: &'a Path) -> Report<'a> {
        Report { out, root, given, line: Vec::new(), file_count: 0 }
    }

    pub fn progress(&mut self) {
        self.out.progress(self.file_count as f64, None);
    }

    /// Reports an error of the walk.
    pub fn problem_of_walk(&mut self, error: &ignore::Error) -> Result<(), Stopped> {
        self.problem(path_of(error), &problem_of(error))
    }

    /// Reports something that could not be searched.
    pub fn problem(
        &mut self,
        path: Option<&Path>,
        problem: &dyn std::fmt::Display,
    ) -> Result<(), Stopped> {
        self.line.clear();
        self.line.push(b'{');
        if let Some(path) = path {
            write_path(&mut self.line, &shown(self.root, self.given, path));
            self.line.push(b',');
        }
        self.line.extend_from_slice(b"\"problem\":");
        write_text(&mut self.line, &problem.to_string());
        self.line.extend_from_slice(b"}\n");
        self.out.send_as(Kind::Log, Kind::Log as u8, &self.line)
    }

    /// Sends a match: `line` without its end, and the first match at byte `at`.
    fn found(&mut self, path: &Path, number: u64, line: &[u8], at: usize) -> Result<(), Stopped> {
        let part = whole_characters(line, part_around(line.len(), at));
        let text = String::from_utf8_lossy(&line[part.clone()]);
        self.line.clear();
        self.line.push(b'{');
        write_path(&mut self.line, &shown(self.root, self.given, path));
        write!(self.line, ",\"line\":{number},\"column\":{},\"text\":", at + 1)
            .expect("memory takes everything");
        write_text(&mut self.line, &text);
        if matches!(text, Cow::Owned(_)) {
            self.line.extend_from_slice(b",\"text_is_lossy\":true");
        }
        if part.len() < line.len() {
            write!(self.line, ",\"text_is_cut\":true,\"text_column\":{}", part.start + 1)
                .expect("memory takes everything");
        }
        self.line.extend_from_slice(b"}\n");
        self.out.send_as(Kind::Match, Kind::Match as u8, &self.line)
    }
}

/// The bytes that are shown of a line with its first match at `at`.
fn part_around(length: usize, at: usize) -> Range<usize> {
    if length <= limits::SEARCH_TEXT_BYTES_MAX {
        return 0..length;
    }
    let from = at.saturating_sub(TEXT_BEFORE_MATCH_BYTES);
    let from = from.min(length - limits::SEARCH_TEXT_BYTES_MAX);
    from..from + limits::SEARCH_TEXT_BYTES_MAX
}

/// Shrinks `part` so that it cuts no character at its ends.
fn whole_characters(line: &[u8], part: Range<usize>) -> Range<usize> {
    let is_inside = |&at: &usize| matches!(line.get(at), Some(0x80..=0xBF));
    let from = (part.start..part.start + 4).find(|at| !is_inside(at)).unwrap_or(part.start);
    let until = (part.end - 3.min(part.len())..=part.end).rev().find(|at| !is_inside(at));
    match part.start {
        0 => 0..until.unwrap_or(part.end),
        _ => from..until.unwrap_or(part.end),
    }
}

/// The path as it is shown: below `given` instead of below `root`.
fn shown<'a>(root: &Path, given: &Path, path: &'a Path) -> Cow<'a, Path> {
    match path.strip_prefix(root) {
        _ if root == given => Cow::Borrowed(path),
        Ok(rest) if rest.as_os_str().is_empty() => Cow::Owned(given.to_owned()),
        Ok(rest) => Cow::Owned(given.join(rest)),
        Err(_) => Cow::Borrowed(path),
    }
}

/// Appends `"path":"…"`, and if the path is not UTF-8 a flag that says so.
fn write_path(line: &mut Vec<u8>, path: &Path) {
    let text = path.to_string_lossy();
    line.extend_from_slice(b"\"path\":");
    write_text(line, &text);
    if matches!(text, Cow::Owned(_)) {
        line.extend_from_slice(b",\"path_is_lossy\":true");
    }
}

fn write_text(line: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(line, text).expect("text is JSON and memory takes everything");
}

/// A reader that fails once the search is stopped, and reports progress in large files.
pub(super) struct Stoppable<'a, 'b, R> {
    reader: R,
    report: &'a RefCell<Report<'b>>,
    until_report: u64,
}

impl<'a, 'b, R> Stoppable<'a, 'b, R> {
    pub fn new(reader: R, report: &'a RefCell<Report<'b>>) -> Stoppable<'a, 'b, R> {
        Stoppable { reader, report, until_report: 0 }
    }
}

impl<R: Read> Read for Stoppable<'_, '_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut report = self.report.borrow_mut();
        if report.out.is_stopped() {
            return Err(io::Error::other(Stopped));
        }
        let length = self.reader.read(buffer)?;
        self.until_report += length as u64;
        if self.until_report >= BYTES_PER_REPORT {
            self.until_report = 0;
            report.progress();
        }
        Ok(length)
    }
}

/// The matches of one file.
pub(super) struct Matches<'a, 'b> {
    pub path: &'a Path,
    pub matcher: &'a RegexMatcher,
    pub report: &'a RefCell<Report<'b>>,
}

impl Sink for Matches<'_, '_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let line = found.bytes();
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let at = self.matcher.find(found.bytes()).ok().flatten().map_or(0, |at| at.start());
        let number = found.line_number().expect("the searcher counts lines");
        let sent = self.report.borrow_mut().found(self.path, number, line, at.min(line.len()));
        Ok(sent.is_ok())
    }

    fn finish(&mut self, _: &Searcher, finish: &SinkFinish) -> io::Result<()> {
        if let Some(at) = finish.binary_byte_offset() {
            let problem = format!("is binary from byte {at} on; the rest was not searched");
            // If the search was stopped, the caller finds that out itself.
            let _ = self.report.borrow_mut().problem(Some(self.path), &problem);
        }
        Ok(())
    }
}

/// The path that an error of the walk is about.
fn path_of(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithLineNumber { err, .. } => {
            path_of(err)
        }
        ignore::Error::Partial(errors) => errors.iter().find_map(path_of),
        _ => None,
    }
}

/// The text of an error of the walk, without the path.
fn problem_of(error: &ignore::Error) -> String {
    match error {
        ignore::Error::WithPath { err, .. } | ignore::Error::WithDepth { err, .. } => {
            problem_of(err)
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_shown_of_a_line_holds_the_match_and_is_never_too_long() {
        let max = limits::SEARCH_TEXT_BYTES_MAX;
        assert_eq!(part_around(0, 0), 0..0);
        assert_eq!(part_around(max, max - 1), 0..max);
        for (length, at) in [(max + 1, 0), (max + 1, max), (10 * max, 5 * max), (10 * max, 9)] {
            let part = part_around(length, at);
            assert_eq!(part.len(), max);
            assert!(part.contains(&at), "{at} of {length}: {part:?}");
            assert!(part.end <= length);
        }
    }

    #[test]
    fn a_line_is_not_cut_within_a_character() {
        for shift in 0..4 {
            let line = format!("{}{}", "x".repeat(shift), "𝄞".repeat(2_000));
            for at in [0, 2_000 + shift, line.len() - 4] {
                let at = line.floor_char_boundary(at);
                let part = whole_characters(line.as_bytes(), part_around(line.len(), at));
                assert!(line.get(part.clone()).is_some(), "{part:?} of {shift}");
                assert!(part.contains(&at));
                assert!(part.len() + 6 >= limits::SEARCH_TEXT_BYTES_MAX);
            }
        }
        assert_eq!(whole_characters(&[0x80; 10], 2..8), 2..8);
        assert_eq!(whole_characters(b"", 0..0), 0..0);
    }
}
