//! `search_files {root, pattern, glob}`: lines of a tree of files that match a regular expression.
//!
//! ripgrep's libraries do the work: `ignore` walks, `grep-regex` matches, `grep-searcher` finds the
//! lines. Every matching line is one chunk of kind `match`, in the order of a walk that takes the
//! names of each folder sorted by their bytes: one thread, so that two runs give the same chunks.
//! (Several threads would be faster, and would interleave; who wants that runs several searches.)
//!
//! A match is a line of JSON, `{"path":"src/a.rs","line":7,"column":3,"text":"…"}`:
//! - `path` begins with `root` as it was given, so that it can be handed to another tool. What in it
//!   is not UTF-8 becomes U+FFFD, and `"path_is_lossy":true` stands behind it.
//! - `line` and `column` count from 1; a column is a byte of the line, the first match's first.
//! - `text` is the line without its end. What is not UTF-8 becomes U+FFFD: `"text_is_lossy":true`.
//!   Of a line above [`limits::SEARCH_TEXT_BYTES_MAX`] it is the part around the first match:
//!   `"text_is_cut":true`, and `"text_column"` says where it begins.
//!
//! What could not be searched is a line of kind `log`, `{"path":"…","problem":"…"}`, and the search
//! goes on. A file with a NUL byte near its beginning is binary and passed over; where one comes
//! later the search of that file ends, and says so. `.gitignore` and `.ignore` files count, within
//! `root` and above it, also outside of a repository; git's own settings do not. Symbolic links are
//! not followed, and only regular files are opened: no pipe and no device is waited for.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkFinish, SinkMatch};
use ignore::overrides::{Override, OverrideBuilder};
use ignore::{DirEntry, Walk, WalkBuilder};
use serde_json::{Value, json};

use crate::engine::{Kind, Policy};
use crate::limits;
use crate::tool::{
    ArgumentError, Arguments, Need, Output, Stopped, SubscribeDefaults, ToolError, ToolSpec, Work,
};

/// A file with a NUL byte among its first bytes is passed over.
const HEAD_BYTES: usize = 8 << 10;
/// Of a line that is cut, this much stands before the first match.
const TEXT_BEFORE_MATCH_BYTES: usize = 128;
/// Progress is told after so many things found in the tree, and bytes of one file.
const ENTRIES_PER_REPORT: u64 = 64;
const BYTES_PER_REPORT: u64 = 16 << 20;
/// Matches are small; this ring holds some hundreds, and takes the longest in one piece.
const RING_BYTES: u32 = 64 << 10;
const IGNORE_FILES: [&str; 2] = [".gitignore", ".ignore"];

pub(super) fn spec() -> ToolSpec {
    let text = |description: &str| json!({"type": "string", "description": description});
    let switch = |description: &str| json!({"type": "boolean", "default": false, "description": description});
    let glob = "Which files, as a line of a .gitignore: `*.rs`, `src/**`; with `!` in front, which \
                not. Or a list of these, of which the last one that fits counts.";
    ToolSpec {
        arguments: json!({
            "type": "object",
            "properties": {
                "root": text("Which folder."),
                "pattern": text("What to look for in each line: a regular expression."),
                "glob": {
                    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                    "description": glob,
                },
                "fixed_strings": switch("The pattern is no regular expression but plain text."),
                "ignore_case": switch("Capital and small letters are the same."),
                "hidden": switch("Also files and folders whose names begin with a dot."),
                "no_ignore": switch("Also what .gitignore and .ignore files name."),
            },
            "required": ["root", "pattern"],
            "additionalProperties": false,
        }),
        subscribers: SubscribeDefaults { policy: Policy::Block, ..Default::default() },
        ..ToolSpec::new("search_files", "Finds the lines of a tree of files that match a pattern.")
    }
}

pub(super) fn prepare(arguments: &Value, need: Need) -> Result<(Work, Need), ArgumentError> {
    let mut arguments = Arguments::new(arguments)?;
    let root = PathBuf::from(arguments.text("root")?);
    let pattern = arguments.text("pattern")?;
    let globs = globs(&mut arguments)?;
    let fixed_strings = switch(&mut arguments, "fixed_strings")?;
    let ignore_case = switch(&mut arguments, "ignore_case")?;
    let hidden = switch(&mut arguments, "hidden")?;
    let no_ignore = switch(&mut arguments, "no_ignore")?;
    arguments.finish()?;
    let matcher = matcher(&pattern, fixed_strings, ignore_case)?;
    let filter = filter(&root, &globs)?;
    let search = Search { root, matcher, filter, hidden, no_ignore };
    let work = Work::Thread(Box::new(move |out| search.run(out)));
    Ok((work, Need { ring_bytes: need.ring_bytes.max(RING_BYTES), ..need }))
}

fn switch(arguments: &mut Arguments, field: &str) -> Result<bool, ArgumentError> {
    match arguments.value(field) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(on),
        Some(other) => {
            Err(ArgumentError::new(field, format!("must be true or false, not {other}")))
        }
    }
}

fn globs(arguments: &mut Arguments) -> Result<Vec<String>, ArgumentError> {
    let values = match arguments.value("glob") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(values)) => values,
        Some(value) => vec![value],
    };
    if values.len() > limits::SEARCH_GLOBS_MAX {
        let problem = format!("has {} globs, above {}", values.len(), limits::SEARCH_GLOBS_MAX);
        return Err(ArgumentError::new("glob", problem));
    }
    let text = |value| match value {
        Value::String(text) => Ok(text),
        other => Err(ArgumentError::new("glob", format!("must be a string, not {other}"))),
    };
    values.into_iter().map(text).collect()
}

fn matcher(
    pattern: &str,
    fixed_strings: bool,
    ignore_case: bool,
) -> Result<RegexMatcher, ArgumentError> {
    if pattern.len() > limits::SEARCH_PATTERN_BYTES_MAX {
        let (length, length_max) = (pattern.len(), limits::SEARCH_PATTERN_BYTES_MAX);
        let problem = format!("has {length} bytes, above {length_max}");
        return Err(ArgumentError::new("pattern", problem));
    }
    RegexMatcherBuilder::new()
        .fixed_strings(fixed_strings)
        .case_insensitive(ignore_case)
        .multi_line(true) // `^` and `$` are the ends of a line.
        .line_terminator(Some(b'\n'))
        .size_limit(limits::SEARCH_REGEX_BYTES_MAX)
        .dfa_size_limit(limits::SEARCH_REGEX_BYTES_MAX)
        .build(pattern)
        .map_err(|error| ArgumentError::new("pattern", error.to_string()))
}

fn filter(root: &Path, globs: &[String]) -> Result<Override, ArgumentError> {
    let mut builder = OverrideBuilder::new(root);
    for glob in globs {
        if glob.len() > limits::SEARCH_PATTERN_BYTES_MAX {
            let (length, length_max) = (glob.len(), limits::SEARCH_PATTERN_BYTES_MAX);
            let problem = format!("has {length} bytes, above {length_max}");
            return Err(ArgumentError::new("glob", problem));
        }
        builder.add(glob).map_err(|error| ArgumentError::new("glob", error.to_string()))?;
    }
    builder.build().map_err(|error| ArgumentError::new("glob", error.to_string()))
}

/// What is searched for, and where.
struct Search {
    root: PathBuf,
    matcher: RegexMatcher,
    filter: Override,
    hidden: bool,
    no_ignore: bool,
}

/// Folders that the walk did not enter, for it would not have come out.
type Refused = Arc<Mutex<Vec<PathBuf>>>;

impl Search {
    fn run(&self, out: &mut Output) -> Result<(), ToolError> {
        let failed = |problem: &dyn std::fmt::Display| {
            ToolError::new(format!("`root` {}: {problem}", self.root.display()))
        };
        let metadata = std::fs::metadata(&self.root).map_err(|error| failed(&error))?;
        if !metadata.is_dir() {
            return Err(failed(&"is not a directory"));
        }
        if !self.no_ignore && has_strange_ignore_file(&self.root) {
            return Err(failed(&STRANGE_IGNORE_FILE));
        }
        let refused = Refused::default();
        let mut searcher = SearcherBuilder::new()
            .line_number(true)
            .heap_limit(Some(limits::SEARCH_LINE_BYTES_MAX))
            .binary_detection(BinaryDetection::quit(0))
            .build();
        let report = RefCell::new(Report { out, line: Vec::new(), file_count: 0 });
        for (entry_count, entry) in (1..).zip(self.walk(&refused)) {
            let mut reporting = report.borrow_mut();
            if reporting.out.is_stopped() {
                return Err(ToolError::Stopped);
            }
            if entry_count % ENTRIES_PER_REPORT == 0 {
                reporting.progress(); // Also where there are many folders and few files.
            }
            reporting.refused(&refused)?;
            match entry {
                Err(error) => reporting.problem_of_walk(&error)?,
                Ok(entry) => {
                    if let Some(error) = entry.error() {
                        reporting.problem_of_walk(error)?;
                    }
                    drop(reporting);
                    self.visit(&entry, &mut searcher, &report)?;
                }
            }
        }
        let mut reporting = report.borrow_mut();
        reporting.refused(&refused)?;
        reporting.progress();
        Ok(())
    }

    fn visit(
        &self,
        entry: &DirEntry,
        searcher: &mut Searcher,
        report: &RefCell<Report<'_>>,
    ) -> Result<(), Stopped> {
        let is_file = entry.file_type().is_some_and(|file_type| file_type.is_file());
        if is_file && !self.filter.matched(entry.path(), false).is_ignore() {
            self.search_file(entry.path(), searcher, report)?;
            report.borrow_mut().file_count += 1;
        }
        Ok(())
    }

    fn walk(&self, refused: &Refused) -> Walk {
        let (filter, refused) = (self.filter.clone(), Arc::clone(refused));
        let no_ignore = self.no_ignore;
        // Above the root, too, nobody waits for a pipe.
        let above = self.root.canonicalize().unwrap_or_default();
        let parents = !above.ancestors().skip(1).any(has_strange_ignore_file);
        WalkBuilder::new(&self.root)
            .hidden(!self.hidden)
            .parents(!no_ignore && parents)
            .ignore(!no_ignore)
            .git_ignore(!no_ignore)
            .require_git(false)
            .git_exclude(false)
            .git_global(false)
            .follow_links(false)
            .sort_by_file_name(|one, other| one.cmp(other))
            .filter_entry(move |entry| {
                // Not as the walk's own overrides, which would overrule .gitignore; and files are
                // left to the loop, which looks whether it is stopped.
                if !entry.file_type().is_some_and(|file_type| file_type.is_dir()) {
                    return true;
                }
                if filter.matched(entry.path(), true).is_ignore() {
                    return false;
                }
                let is_refused = !no_ignore && has_strange_ignore_file(entry.path());
                if is_refused {
                    let path = entry.path().to_owned();
                    refused.lock().unwrap_or_else(PoisonError::into_inner).push(path);
                }
                !is_refused
            })
            .build()
    }

    fn search_file(
        &self,
        path: &Path,
        searcher: &mut Searcher,
        report: &RefCell<Report<'_>>,
    ) -> Result<(), Stopped> {
        let (head, rest) = match open(path) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(()), // Binary.
            Err(error) => return report.borrow_mut().problem(Some(path), &error),
        };
        let reader = Stoppable { reader: head.chain(rest), report, until_report: 0 };
        let sink = Matches { path, matcher: &self.matcher, report };
        let searched = searcher.search_reader(&self.matcher, reader, sink);
        let mut report = report.borrow_mut();
        match searched {
            _ if report.out.is_stopped() => Err(Stopped),
            Ok(()) => Ok(()),
            Err(error) => report.problem(Some(path), &error),
        }
    }
}

const STRANGE_IGNORE_FILE: &str = "has a .gitignore or .ignore that is no regular file";

/// `ignore` opens these and reads them to their end, whatever they are: of a named pipe that is
/// never.
fn has_strange_ignore_file(folder: &Path) -> bool {
    IGNORE_FILES.iter().any(|name| {
        std::fs::metadata(folder.join(name))
            .is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
    })
}

/// The beginning of a file and the rest of it; `None` if it is binary.
fn open(path: &Path) -> io::Result<Option<(io::Cursor<Vec<u8>>, File)>> {
    // It was a regular file when the walk saw it. If it is something else now, nobody waits for it.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is no longer a regular file"));
    }
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&file).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    let is_utf16 = head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff");
    if head.contains(&0) && !is_utf16 {
        return Ok(None); // UTF-16 with a mark is made UTF-8 by the searcher.
    }
    Ok(Some((io::Cursor::new(head), file)))
}

/// Which path an error of the walk is about.
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

/// What it is about, without the path.
fn problem_of(error: &ignore::Error) -> String {
    match error {
        ignore::Error::WithPath { err, .. } | ignore::Error::WithDepth { err, .. } => {
            problem_of(err)
        }
        _ => error.to_string(),
    }
}

/// Where lines of JSON go, and how far the search is.
struct Report<'a> {
    out: &'a mut Output,
    line: Vec<u8>,
    file_count: u64,
}

impl Report<'_> {
    fn progress(&mut self) {
        self.out.progress(self.file_count as f64, None);
    }

    fn refused(&mut self, refused: &Refused) -> Result<(), Stopped> {
        let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.drain(..).try_for_each(|path| self.problem(Some(&path), &STRANGE_IGNORE_FILE))
    }

    fn problem_of_walk(&mut self, error: &ignore::Error) -> Result<(), Stopped> {
        self.problem(path_of(error), &problem_of(error))
    }

    fn problem(
        &mut self,
        path: Option<&Path>,
        problem: &dyn std::fmt::Display,
    ) -> Result<(), Stopped> {
        self.line.clear();
        self.line.push(b'{');
        if let Some(path) = path {
            write_path(&mut self.line, path);
            self.line.push(b',');
        }
        self.line.extend_from_slice(b"\"problem\":");
        write_text(&mut self.line, &problem.to_string());
        self.line.extend_from_slice(b"}\n");
        self.out.send_as(Kind::Log, Kind::Log as u8, &self.line)
    }

    /// `line` without its end.
    fn found(&mut self, path: &Path, number: u64, line: &[u8], at: usize) -> Result<(), Stopped> {
        let part = part_around(line.len(), at);
        let text = String::from_utf8_lossy(&line[part.clone()]);
        self.line.clear();
        self.line.push(b'{');
        write_path(&mut self.line, path);
        write!(self.line, ",\"line\":{number},\"column\":{},\"text\":", at + 1)
            .expect("memory takes everything");
        write_text(&mut self.line, &text);
        if matches!(text, std::borrow::Cow::Owned(_)) {
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

/// Which bytes are shown of a line with its first match at `at`.
fn part_around(length: usize, at: usize) -> Range<usize> {
    if length <= limits::SEARCH_TEXT_BYTES_MAX {
        return 0..length;
    }
    let from = at.saturating_sub(TEXT_BEFORE_MATCH_BYTES);
    let from = from.min(length - limits::SEARCH_TEXT_BYTES_MAX);
    from..from + limits::SEARCH_TEXT_BYTES_MAX
}

/// `"path":"…"`.
fn write_path(line: &mut Vec<u8>, path: &Path) {
    let text = path.to_string_lossy();
    line.extend_from_slice(b"\"path\":");
    write_text(line, &text);
    if matches!(text, std::borrow::Cow::Owned(_)) {
        line.extend_from_slice(b",\"path_is_lossy\":true");
    }
}

fn write_text(line: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(line, text).expect("text is JSON and memory takes everything");
}

/// A file that ends with an error once the search is stopped, and says that it is being read.
struct Stoppable<'a, 'b, R> {
    reader: R,
    report: &'a RefCell<Report<'b>>,
    until_report: u64,
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
struct Matches<'a, 'b> {
    path: &'a Path,
    matcher: &'a RegexMatcher,
    report: &'a RefCell<Report<'b>>,
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
            let problem = format!("is binary from byte {at} on: not searched from there");
            // If it was stopped, who called finds that out.
            let _ = self.report.borrow_mut().problem(Some(self.path), &problem);
        }
        Ok(())
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

    fn field(arguments: Value) -> (String, String) {
        let error = prepare(&arguments, Need::default()).map(|_| ()).unwrap_err();
        (error.field, error.problem)
    }

    #[test]
    fn each_bad_argument_is_named_before_anything_starts() {
        assert_eq!(field(json!({"pattern": "a"})).0, "root");
        assert_eq!(field(json!({"root": "/"})).0, "pattern");
        let unclosed = field(json!({"root": "/", "pattern": "a(b"}));
        assert!(unclosed.0 == "pattern" && unclosed.1.contains("unclosed group"), "{unclosed:?}");
        assert_eq!(field(json!({"root": "/", "pattern": "a\nb"})).0, "pattern");
        let large = field(json!({"root": "/", "pattern": "(\\w{1000}){1000}"}));
        assert!(large.0 == "pattern" && large.1.contains("size limit"), "{large:?}");
        assert_eq!(field(json!({"root": "/", "pattern": "a".repeat(100_000)})).0, "pattern");
        assert_eq!(field(json!({"root": "/", "pattern": "a", "glob": "{a,b"})).0, "glob");
        assert_eq!(field(json!({"root": "/", "pattern": "a", "glob": ["a", 1]})).0, "glob");
        let many = vec!["a"; limits::SEARCH_GLOBS_MAX + 1];
        assert_eq!(field(json!({"root": "/", "pattern": "a", "glob": many})).0, "glob");
        assert_eq!(field(json!({"root": "/", "pattern": "a", "hidden": 1})).0, "hidden");
        assert_eq!(field(json!({"root": "/", "pattern": "a", "x": 1})).0, "x");
    }
}
