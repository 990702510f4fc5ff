//! `search_files {root, pattern, glob}`: finds the lines in a tree of files that match a regular
//! expression.
//!
//! ripgrep's libraries do the work: `ignore` walks, `grep-regex` matches, and `grep-searcher` finds
//! the lines. Each matching line is one chunk of kind `match`. The walk visits the names of each
//! folder sorted by their bytes. One thread does it, so two runs give the same chunks. Several
//! threads would be faster, but would interleave their chunks. Several searches can run at the same
//! time instead.
//!
//! A match is a line of JSON, `{"path":"src/a.rs","line":7,"column":3,"text":"…"}`:
//! - `path` begins with `root` as it was given, so that another tool accepts it. Bytes that are not
//!   UTF-8 become U+FFFD, and `"path_is_lossy":true` follows.
//! - `line` and `column` count from 1. A column is a byte of the line: the first byte of the first
//!   match.
//! - `text` is the line without its end. Bytes that are not UTF-8 become U+FFFD:
//!   `"text_is_lossy":true`. A line above [`limits::SEARCH_TEXT_BYTES_MAX`] is cut to the part
//!   around the first match: `"text_is_cut":true`, and `"text_column"` is the column where that
//!   part begins.
//!
//! A file or folder that cannot be searched is reported as a line of kind `log`,
//! `{"path":"…","problem":"…"}`, and the search continues. A file with a NUL byte near its
//! beginning is binary and is skipped. A NUL byte further on ends the search of that file, which is
//! reported. `.gitignore` and `.ignore` files are obeyed within `root`, and above it unless files
//! are confined. They are obeyed outside of a repository, too. Git's own settings are ignored.
//! Symbolic links are not followed. Only regular files are opened, so that no pipe and no device is
//! waited for.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use ignore::overrides::{Override, OverrideBuilder};
use ignore::{DirEntry, Walk, WalkBuilder};
use serde_json::{Value, json};

use crate::limits;
use crate::stream::Policy;
use crate::tool::search_report::{Matches, Report, Stoppable};
use crate::tool::{
    ArgumentError, Arguments, Files, Need, Output, Stopped, SubscribeDefaults, ToolError, ToolSpec,
    Work,
};

/// A file with a NUL byte in this many first bytes is skipped.
const HEAD_BYTES: usize = 8 << 10;
/// Number of entries of the tree between two progress reports.
const ENTRIES_PER_REPORT: u64 = 64;
/// Matches are small. The ring holds some hundreds, and the longest one in one chunk.
const RING_BYTES: u32 = 64 << 10;
const IGNORE_FILES: [&str; 2] = [".gitignore", ".ignore"];

pub(super) fn spec() -> ToolSpec {
    let text = |description: &str| json!({"type": "string", "description": description});
    let switch = |description: &str| {
        json!({
            "type": "boolean",
            "default": false,
            "description": description,
        })
    };
    let glob = concat!(
        "The files to search, as in a .gitignore: `*.rs`, `src/**`; `!` in front excludes files. ",
        "In a list, the last pattern that matches a file counts.",
    );
    ToolSpec {
        arguments: json!({
            "type": "object",
            "properties": {
                "root": text("The folder to search."),
                "pattern": text("The regular expression to find in each line."),
                "glob": {
                    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                    "description": glob,
                },
                "fixed_strings": switch("Treat the pattern as plain text instead of a regular \
                                         expression."),
                "ignore_case": switch("Ignore the case of letters."),
                "hidden": switch("Also search files and folders with names that begin with a dot."),
                "no_ignore": switch("Also search what .gitignore and .ignore files exclude."),
            },
            "required": ["root", "pattern"],
            "additionalProperties": false,
        }),
        subscribers: SubscribeDefaults { policy: Policy::Block, ..Default::default() },
        ..ToolSpec::new("search_files", "Finds the lines of a tree of files that match a pattern.")
    }
}

pub(super) fn prepare(
    arguments: &Value,
    need: Need,
    files: &Files,
) -> Result<(Work, Need), ArgumentError> {
    let mut arguments = Arguments::new(arguments)?;
    let root = arguments.path("root")?;
    let pattern = arguments.text("pattern")?;
    let globs = globs(&mut arguments)?;
    let fixed_strings = arguments.flag("fixed_strings")?;
    let ignore_case = arguments.flag("ignore_case")?;
    let hidden = arguments.flag("hidden")?;
    let no_ignore = arguments.flag("no_ignore")?;
    arguments.finish()?;
    check_pattern(&pattern, fixed_strings)?;
    globs.iter().try_for_each(|glob| check_glob(glob))?;
    let plan = SearchPlan { root, pattern, globs, fixed_strings, ignore_case, hidden, no_ignore };
    let files = files.clone();
    let work = Work::Thread(Box::new(move |out| Search::new(files, plan)?.run(out)));
    Ok((work, Need { ring_bytes: need.ring_bytes.max(RING_BYTES), ..need }))
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

/// Checks the syntax of the pattern. This is cheap, because a shard waits for it. Errors that only
/// compiling finds, which can take 100 ms, are found on the thread of the search.
fn check_pattern(pattern: &str, fixed_strings: bool) -> Result<(), ArgumentError> {
    let error = |problem| Err(ArgumentError::new("pattern", problem));
    check_length("pattern", pattern)?;
    if pattern.contains('\n') {
        return error("contains the end of a line, but lines are searched one by one".to_owned());
    }
    if fixed_strings {
        return Ok(());
    }
    match regex_syntax::ast::parse::Parser::new().parse(pattern) {
        Ok(_) => Ok(()),
        Err(problem) => error(problem.to_string()),
    }
}

/// The same for a glob.
fn check_glob(glob: &str) -> Result<(), ArgumentError> {
    check_length("glob", glob)?;
    match globset::Glob::new(glob.strip_prefix('!').unwrap_or(glob)) {
        Ok(_) => Ok(()),
        Err(error) => Err(ArgumentError::new("glob", error.to_string())),
    }
}

fn check_length(field: &str, text: &str) -> Result<(), ArgumentError> {
    let (length, length_max) = (text.len(), limits::SEARCH_PATTERN_BYTES_MAX);
    match length > length_max {
        true => Err(ArgumentError::new(field, format!("has {length} bytes, above {length_max}"))),
        false => Ok(()),
    }
}

/// The arguments.
struct SearchPlan {
    root: PathBuf,
    pattern: String,
    globs: Vec<String>,
    fixed_strings: bool,
    ignore_case: bool,
    hidden: bool,
    no_ignore: bool,
}

/// A compiled search.
struct Search {
    files: Files,
    /// The root as it was given.
    given: PathBuf,
    /// The real path of the root.
    root: PathBuf,
    matcher: RegexMatcher,
    filter: Override,
    hidden: bool,
    no_ignore: bool,
}

/// The folders that the walk did not enter because of their ignore files, where it would hang.
type RefusedFolders = Arc<Mutex<Vec<PathBuf>>>;

impl SearchPlan {
    fn matcher(&self) -> Result<RegexMatcher, ArgumentError> {
        RegexMatcherBuilder::new()
            .fixed_strings(self.fixed_strings)
            .case_insensitive(self.ignore_case)
            .multi_line(true) // `^` and `$` match at the ends of a line.
            .line_terminator(Some(b'\n'))
            .size_limit(limits::SEARCH_REGEX_BYTES_MAX)
            .dfa_size_limit(limits::SEARCH_REGEX_BYTES_MAX)
            .build(&self.pattern)
            .map_err(|error| ArgumentError::new("pattern", error.to_string()))
    }

    fn filter(&self, root: &Path) -> Result<Override, ArgumentError> {
        let error = |error: ignore::Error| ArgumentError::new("glob", error.to_string());
        let mut builder = OverrideBuilder::new(root);
        for glob in &self.globs {
            builder.add(glob).map_err(error)?;
        }
        builder.build().map_err(error)
    }
}

impl Search {
    fn new(files: Files, plan: SearchPlan) -> Result<Search, ToolError> {
        let wrong = |error: ArgumentError| ToolError::new(error.to_string());
        let matcher = plan.matcher().map_err(wrong)?;
        let placed = files.place(&plan.root);
        let root = placed
            .map_err(|error| ToolError::new(format!("`root` {}: {error}", plan.root.display())))?;
        let filter = plan.filter(&root).map_err(wrong)?;
        let SearchPlan { root: given, hidden, no_ignore, .. } = plan;
        Ok(Search { files, given, root, matcher, filter, hidden, no_ignore })
    }

    fn run(&self, out: &mut Output) -> Result<(), ToolError> {
        let failed = |problem: &dyn std::fmt::Display| {
            ToolError::new(format!("`root` {}: {problem}", self.given.display()))
        };
        let metadata = std::fs::metadata(&self.root).map_err(|error| failed(&error))?;
        if !metadata.is_dir() {
            return Err(failed(&"is not a directory"));
        }
        if !self.no_ignore && has_strange_ignore_file(&self.root) {
            return Err(failed(&STRANGE_IGNORE_FILE));
        }
        let refused = RefusedFolders::default();
        let mut searcher = SearcherBuilder::new()
            .line_number(true)
            .heap_limit(Some(limits::SEARCH_LINE_BYTES_MAX))
            .binary_detection(BinaryDetection::quit(0))
            .build();
        let report = RefCell::new(Report::new(out, &self.root, &self.given));
        for (entry_count, entry) in (1..).zip(self.walk(&refused)) {
            let mut reporting = report.borrow_mut();
            if reporting.out.is_stopped() {
                return Err(ToolError::Stopped);
            }
            if entry_count % ENTRIES_PER_REPORT == 0 {
                reporting.progress(); // Also in trees of many folders and few files.
            }
            report_refused(&refused, &mut reporting)?;
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
        report_refused(&refused, &mut reporting)?;
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

    fn walk(&self, refused: &RefusedFolders) -> Walk {
        let (filter, refused) = (self.filter.clone(), Arc::clone(refused));
        let no_ignore = self.no_ignore;
        // The same check above the root: no ignore file there may be a pipe.
        let above = self.root.canonicalize().unwrap_or_default();
        let parents = !above.ancestors().skip(1).any(has_strange_ignore_file);
        WalkBuilder::new(&self.root)
            .hidden(!self.hidden)
            .parents(!no_ignore && parents && !self.files.is_confined())
            .ignore(!no_ignore)
            .git_ignore(!no_ignore)
            .require_git(false)
            .git_exclude(false)
            .git_global(false)
            .follow_links(false)
            .sort_by_file_name(|one, other| one.cmp(other))
            .filter_entry(move |entry| {
                // The walk's own overrides would overrule .gitignore. Files are left to the loop,
                // which checks if it was stopped.
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
        let (head, rest) = match begin(self.files.open_again(path)) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(()), // Binary.
            Err(error) => return report.borrow_mut().problem(Some(path), &error),
        };
        let reader = Stoppable::new(head.chain(rest), report);
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

fn report_refused(refused: &RefusedFolders, report: &mut Report<'_>) -> Result<(), Stopped> {
    let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
    refused.drain(..).try_for_each(|path| report.problem(Some(&path), &STRANGE_IGNORE_FILE))
}

const STRANGE_IGNORE_FILE: &str = "has a .gitignore or .ignore that is not a regular file";

/// True if an ignore file of the folder is neither a file nor a folder. `ignore` would read it to
/// its end, which a named pipe may never reach.
fn has_strange_ignore_file(folder: &Path) -> bool {
    IGNORE_FILES.iter().any(|name| {
        std::fs::metadata(folder.join(name))
            .is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
    })
}

/// Reads the beginning of a file. Returns it with the rest of the file, or `None` if the file is
/// binary.
fn begin(opened: io::Result<File>) -> io::Result<Option<(io::Cursor<Vec<u8>>, File)>> {
    let file = opened?;
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&file).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    let is_utf16 = head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff");
    if head.contains(&0) && !is_utf16 {
        return Ok(None); // The searcher converts UTF-16 with a byte order mark.
    }
    Ok(Some((io::Cursor::new(head), file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_compiling_finds_names_its_argument_too() {
        for pattern in ["(\\w{1000}){1000}", "\\p{No_such_class}"] {
            check_pattern(pattern, false).unwrap();
            let (globs, pattern) = (Vec::new(), pattern.to_owned());
            let (root, fixed_strings, ignore_case) = (PathBuf::from("/"), false, false);
            let (hidden, no_ignore) = (false, false);
            let plan =
                SearchPlan { root, pattern, globs, fixed_strings, ignore_case, hidden, no_ignore };
            let error = Search::new(Files::Anywhere, plan).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with("argument `pattern`: "), "{error}");
        }
    }

    fn field(arguments: Value) -> (String, String) {
        let prepared = prepare(&arguments, Need::default(), &Files::Anywhere);
        let error = prepared.map(|_| ()).unwrap_err();
        (error.field, error.problem)
    }

    #[test]
    fn each_bad_argument_is_named_before_anything_starts() {
        assert_eq!(field(json!({"pattern": "a"})).0, "root");
        assert_eq!(field(json!({"root": "/"})).0, "pattern");
        let unclosed = field(json!({"root": "/", "pattern": "a(b"}));
        assert!(unclosed.0 == "pattern" && unclosed.1.contains("unclosed group"), "{unclosed:?}");
        assert_eq!(field(json!({"root": "/", "pattern": "a\nb"})).0, "pattern");
        assert_eq!(field(json!({"root": "/", "pattern": "a".repeat(100_000)})).0, "pattern");
        assert_eq!(field(json!({"root": "/", "pattern": "a", "glob": "{a,b"})).0, "glob");
        assert_eq!(field(json!({"root": "/", "pattern": "a", "glob": ["a", 1]})).0, "glob");
        let many = vec!["a"; limits::SEARCH_GLOBS_MAX + 1];
        assert_eq!(field(json!({"root": "/", "pattern": "a", "glob": many})).0, "glob");
        assert_eq!(field(json!({"root": "/", "pattern": "a", "hidden": 1})).0, "hidden");
        assert_eq!(field(json!({"root": "/", "pattern": "a", "x": 1})).0, "x");
    }
}
