//! `search_files {root, pattern, glob}`: lines of a tree of files that match a regular expression.
//!
//! ripgrep's libraries do the work: `ignore` walks, `grep-regex` matches, `grep-searcher` finds the
//! lines. Every matching line is one chunk of kind `match`, in the order of a walk that takes the
//! names of each folder sorted by their bytes: one thread, so that two runs give the same chunks.
//! (Several threads would be faster, and would interleave; who wants that runs several searches.)
//!
//! A match is a line of JSON, `{"path":"src/a.rs","line":7,"column":3,"text":"…"}`:
//! - `path` begins with `root` as it was given, so that it can be handed to another tool. What is
//!   not UTF-8 in it becomes U+FFFD, and `"path_is_lossy":true` stands behind it.
//! - `line` and `column` count from 1; a column is a byte of the line, the first match's first.
//! - `text` is the line without its end. What is not UTF-8 becomes U+FFFD: `"text_is_lossy":true`.
//!   Of a line above [`limits::SEARCH_TEXT_BYTES_MAX`] it is the part around the first match:
//!   `"text_is_cut":true`, and `"text_column"` says where it begins.
//!
//! What could not be searched is a line of kind `log`, `{"path":"…","problem":"…"}`, and the search
//! goes on. A file with a NUL byte near its beginning is binary and passed over; where one comes
//! later the search of that file ends, and says so. `.gitignore` and `.ignore` files count, within
//! `root` and above it (where files are confined: within it only), also outside of a repository;
//! git's own settings do not. Symbolic links are
//! not followed, and only regular files are opened: no pipe and no device is waited for.

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

use crate::engine::Policy;
use crate::limits;
use crate::tool::search_report::{Matches, Report, Stoppable};
use crate::tool::{
    ArgumentError, Arguments, Files, Need, Output, Stopped, SubscribeDefaults, ToolError, ToolSpec,
    Work,
};

/// A file with a NUL byte among its first bytes is passed over.
const HEAD_BYTES: usize = 8 << 10;
/// Progress is told after so many things found in the tree.
const ENTRIES_PER_REPORT: u64 = 64;
/// Matches are small; this ring holds some hundreds, and takes the longest in one piece.
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
        "Which files, as a line of a .gitignore has it: `*.rs`, `src/**`; with `!` in front, ",
        "which not. Or a list of these, of which the last one that fits counts.",
    );
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
    let plan = Plan { root, pattern, globs, fixed_strings, ignore_case, hidden, no_ignore };
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

/// Is it written right? Cheap: a shard waits for the answer. What only compiling finds, which can
/// take 100 ms, is found on the search's own thread.
fn check_pattern(pattern: &str, fixed_strings: bool) -> Result<(), ArgumentError> {
    let error = |problem| Err(ArgumentError::new("pattern", problem));
    check_length("pattern", pattern)?;
    if pattern.contains('\n') {
        return error("holds the end of a line, and lines are searched one by one".to_owned());
    }
    if fixed_strings {
        return Ok(());
    }
    match regex_syntax::ast::parse::Parser::new().parse(pattern) {
        Ok(_) => Ok(()),
        Err(problem) => error(problem.to_string()),
    }
}

/// As [`check_pattern`], of a glob.
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
struct Plan {
    root: PathBuf,
    pattern: String,
    globs: Vec<String>,
    fixed_strings: bool,
    ignore_case: bool,
    hidden: bool,
    no_ignore: bool,
}

/// What is searched for, and where, compiled.
struct Search {
    files: Files,
    /// As it was given.
    given: PathBuf,
    /// Where that is.
    root: PathBuf,
    matcher: RegexMatcher,
    filter: Override,
    hidden: bool,
    no_ignore: bool,
}

/// Folders that the walk did not enter, for it would not have come out.
type Refused = Arc<Mutex<Vec<PathBuf>>>;

impl Plan {
    fn matcher(&self) -> Result<RegexMatcher, ArgumentError> {
        RegexMatcherBuilder::new()
            .fixed_strings(self.fixed_strings)
            .case_insensitive(self.ignore_case)
            .multi_line(true) // `^` and `$` are the ends of a line.
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
    fn new(files: Files, plan: Plan) -> Result<Search, ToolError> {
        let wrong = |error: ArgumentError| ToolError::new(error.to_string());
        let matcher = plan.matcher().map_err(wrong)?;
        let placed = files.place(&plan.root);
        let root = placed
            .map_err(|error| ToolError::new(format!("`root` {}: {error}", plan.root.display())))?;
        let filter = plan.filter(&root).map_err(wrong)?;
        let Plan { root: given, hidden, no_ignore, .. } = plan;
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
        let refused = Refused::default();
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
                reporting.progress(); // Also where there are many folders and few files.
            }
            tell_refused(&refused, &mut reporting)?;
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
        tell_refused(&refused, &mut reporting)?;
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
            .parents(!no_ignore && parents && !self.files.is_confined())
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

fn tell_refused(refused: &Refused, report: &mut Report<'_>) -> Result<(), Stopped> {
    let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
    refused.drain(..).try_for_each(|path| report.problem(Some(&path), &STRANGE_IGNORE_FILE))
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
fn begin(opened: io::Result<File>) -> io::Result<Option<(io::Cursor<Vec<u8>>, File)>> {
    let file = opened?;
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&file).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    let is_utf16 = head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff");
    if head.contains(&0) && !is_utf16 {
        return Ok(None); // UTF-16 with a mark is made UTF-8 by the searcher.
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
            let plan = Plan { root, pattern, globs, fixed_strings, ignore_case, hidden, no_ignore };
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
