//! `search_files` through the public interface. It finds the same matches as `grep -rn`, in a
//! source tree and in a tree of odd files. Nothing in a tree makes it hang or fail.
#![cfg(feature = "tools")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::engine::{Start, SubscribeSpec};
use streamdoor::limits;
use streamdoor::shard::{Delivery, ExecuteOptions, Shard, ShardConfig, ShardThread};
use streamdoor::stream::{EndState, Kind, Outcome, Policy};

/// The result of one search.
#[derive(Debug)]
struct Found {
    matches: Vec<Value>,
    problems: Vec<Value>,
    state: EndState,
    error: Option<String>,
    progress: f64,
}

/// The (path, line, text) of each match.
type Hits = BTreeSet<(String, u64, String)>;

impl Found {
    fn hits(&self) -> Hits {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let hit = |found: &Value| {
            (text(&found["path"]), found["line"].as_u64().unwrap(), text(&found["text"]))
        };
        self.matches.iter().map(hit).collect()
    }

    fn problem_with(&self, name: &str) -> Option<&str> {
        let about = |problem: &&Value| problem["path"].as_str().is_some_and(|p| p.ends_with(name));
        self.problems.iter().find(about).and_then(|problem| problem["problem"].as_str())
    }
}

fn shard() -> ShardThread {
    Shard::spawn(ShardConfig::default(), |_| {}).unwrap().0
}

fn options() -> ExecuteOptions {
    let start = Start::AfterSubscribers { count: 1, deadline: Duration::from_secs(60) };
    ExecuteOptions { start, ..Default::default() }
}

fn search(arguments: Value) -> Found {
    let shard = shard();
    let id = shard.execute("search_files", arguments, options()).unwrap();
    let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
    let mut subscriber = shard.subscribe(id, spec).unwrap();
    let (mut lines, mut kinds, mut progress) = (Vec::new(), Vec::new(), 0.0);
    let mut line = Vec::new();
    let (state, error) = loop {
        match subscriber.next() {
            Delivery::Chunk(chunk) => {
                line.extend_from_slice(chunk.data);
                if !chunk.more {
                    assert_eq!(line.last(), Some(&b'\n'));
                    lines.push(serde_json::from_slice::<Value>(&line).expect("each is JSON"));
                    kinds.push(chunk.kind);
                    line.clear();
                }
            }
            Delivery::Gap(gap) => panic!("a `block` subscriber missed {gap:?}"),
            Delivery::Progress(reported) => progress = reported.progress.progress,
            Delivery::End(ended) => break (ended.end.state, ended.error.map(str::to_owned)),
        }
    };
    let (mut matches, mut problems) = (Vec::new(), Vec::new());
    for (line, kind) in lines.into_iter().zip(kinds) {
        match kind {
            Kind::Match => matches.push(line),
            Kind::Log => problems.push(line),
            other => panic!("a chunk of kind {other}"),
        }
    }
    Found { matches, problems, state, error, progress }
}

/// Returns the matches of `grep -rn`, or `None` if no grep with these options exists.
fn grep(root: &Path, pattern: &str, options: &[&str]) -> Option<Hits> {
    let mut command = Command::new("grep");
    command.env("LC_ALL", "C").args(["-rnIZ", "-E"]).args(options).arg("-e").arg(pattern);
    let output = command.arg(root).output().ok()?;
    if !matches!(output.status.code(), Some(0 | 1)) && output.stdout.is_empty() {
        return None;
    }
    let mut hits = Hits::new();
    // A name may contain newlines. It ends with NUL; number, colon and line follow.
    let mut rest = &output.stdout[..];
    let mut until = |end: u8| {
        let length = rest.iter().position(|&byte| byte == end)?;
        let text = String::from_utf8_lossy(&rest[..length]).into_owned();
        rest = &rest[length + 1..];
        Some(text)
    };
    while let Some(path) = until(0) {
        let number = until(b':').expect("a number, then a colon").parse().unwrap();
        hits.insert((path, number, until(b'\n').expect("each line ends")));
    }
    Some(hits)
}

/// A temporary folder that is removed when the value is dropped.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Tree {
        let name = format!("streamdoor-search-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Tree(path)
    }

    fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.0.join(name.as_ref())
    }

    fn write(&self, name: impl AsRef<OsStr>, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn arguments(&self, more: Value) -> Value {
        let mut arguments = json!({"root": self.0, "pattern": "needle"});
        for (name, value) in more.as_object().unwrap() {
            arguments[name] = value.clone();
        }
        arguments
    }

    /// Returns the paths of the files with matches, relative to the tree.
    fn files(&self, found: &Found) -> Vec<String> {
        let inside = |(path, _, _): (String, u64, String)| {
            path.strip_prefix(&format!("{}/", self.0.display())).unwrap().to_owned()
        };
        found.hits().into_iter().map(inside).collect()
    }

    fn fifo(&self, name: &str) {
        let made = Command::new("mkfifo").arg(self.path(name)).status().unwrap();
        assert!(made.success());
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::set_permissions(self.path("locked"), fs::Permissions::from_mode(0o700));
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn in_this_source_tree_it_finds_what_grep_finds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for pattern in ["fn [a-z_]+\\(", "^use ", "\\{$", "unsafe|SAFETY", "[0-9]{4,}", "zzz+y"] {
        let arguments = json!({
            "root": root, "pattern": pattern, "no_ignore": true, "hidden": true,
        });
        let found = search(arguments);
        assert_eq!(found.state, EndState::Ended(Outcome::Completed));
        assert!(found.problems.is_empty(), "{:?}", found.problems);
        assert_eq!(found.matches.len(), found.hits().len(), "each line once");
        let Some(expected) = grep(&root, pattern, &[]) else {
            println!("not run: there is no GNU grep");
            return;
        };
        assert_eq!(found.hits(), expected, "{pattern}");
        let files = expected.iter().map(|(path, _, _)| path).collect::<BTreeSet<_>>().len();
        assert!(found.progress >= files as f64);
    }
}

#[test]
fn in_a_tree_of_odd_things_it_finds_what_grep_finds() {
    let tree = Tree::new("odd");
    tree.write("plain.txt", "one needle\nnone\nneedle two\r\nlast needle without an end");
    tree.write("empty", "");
    tree.write(".hidden/needle", "needle\n");
    tree.write("a b\tc\n\"d\"/new\nline", "a needle in an odd name\n");
    tree.write(OsStr::from_bytes(b"not-\xff-utf8"), b"needle \xfe\xff in bytes\n");
    tree.write("ünïcode/☃", "☃ needle ☃\n");
    tree.write("binary", b"needle\0needle\n");
    tree.write("-e", "needle\n");
    let deep: PathBuf = std::iter::repeat_n("d", 200).collect();
    tree.write(deep.join("bottom"), "needle\n");
    tree.write("many", "needle\nhay\n".repeat(10_000));
    symlink("nowhere", tree.path("broken")).unwrap();
    symlink("plain.txt", tree.path("link")).unwrap();
    symlink(".", tree.path("loop")).unwrap();
    tree.fifo("pipe");
    let found = search(tree.arguments(json!({"hidden": true, "no_ignore": true})));
    assert_eq!(found.state, EndState::Ended(Outcome::Completed));
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    // grep includes the carriage return of a line that ends with CR LF.
    let Some(mut expected) = grep(&tree.0, "needle", &["--devices=skip"]) else {
        println!("not run: there is no GNU grep");
        return;
    };
    let with_end = expected.iter().find(|(_, _, text)| text.ends_with('\r')).cloned().unwrap();
    expected.remove(&with_end);
    expected.insert((with_end.0, with_end.1, with_end.2.trim_end().to_owned()));
    assert_eq!(found.hits(), expected);
    assert_eq!(found.matches.len(), expected.len());
    let lossy = found.matches.iter().find(|found| found["text_is_lossy"] == true).unwrap();
    assert_eq!(lossy["path_is_lossy"], true);
    assert_eq!((&lossy["line"], &lossy["column"]), (&json!(1), &json!(1)));
}

#[test]
fn what_is_ignored_hidden_or_left_out_by_a_glob_is_not_searched() {
    let tree = Tree::new("ignored");
    tree.write(".gitignore", "*.log\n/target/\n!keep.log\n");
    for name in
        ["a.rs", "b.txt", "c.log", "keep.log", "target/d.rs", ".e.rs", "sub/f.rs", "sub/g.log"]
    {
        tree.write(name, "a needle\n");
    }
    tree.write("sub/.ignore", "h.rs\n");
    tree.write("sub/h.rs", "a needle\n");
    for (more, expected) in [
        (json!({}), "a.rs b.txt keep.log sub/f.rs"),
        (json!({"hidden": true}), ".e.rs a.rs b.txt keep.log sub/f.rs"),
        (
            json!({"no_ignore": true}),
            "a.rs b.txt c.log keep.log sub/f.rs sub/g.log sub/h.rs target/d.rs",
        ),
        (json!({"glob": "*.rs"}), "a.rs sub/f.rs"),
        (json!({"glob": "!*.rs"}), "b.txt keep.log"),
        (json!({"glob": "sub/**"}), "sub/f.rs"),
        (json!({"glob": ["*.rs", "!sub"]}), "a.rs"),
        (json!({"glob": "!*"}), ""),
        (json!({"ignore_case": true, "pattern": "NEEDLE", "glob": "a.*"}), "a.rs"),
        (json!({"pattern": "NEEDLE"}), ""),
        (json!({"fixed_strings": true, "pattern": "n.*e"}), ""),
    ] {
        let found = search(tree.arguments(more.clone()));
        assert_eq!(found.state, EndState::Ended(Outcome::Completed), "{found:?}");
        assert_eq!(tree.files(&found).join(" "), expected, "{more}");
    }
}

#[test]
fn matches_come_in_the_order_of_the_names() {
    let tree = Tree::new("order");
    for name in ["b", "a/z", "a/a", "c/b/a", "c/a", "B"] {
        tree.write(name, "needle 1\nneedle 2\n");
    }
    let found = search(tree.arguments(json!({})));
    let order: Vec<String> = found
        .matches
        .iter()
        .filter(|found| found["line"] == 1)
        .map(|found| found["path"].as_str().unwrap().rsplit_once("order/").unwrap().1.to_owned())
        .collect();
    assert_eq!(order, ["B", "a/a", "a/z", "b", "c/a", "c/b/a"]);
}

#[test]
fn long_lines_are_cut_around_the_match_and_endless_ones_end_their_file_only() {
    let tree = Tree::new("long");
    let long = format!("{}needle{}\n", "x".repeat(1 << 20), "y".repeat(1 << 20));
    tree.write("long", format!("before needle\n{long}after needle\n"));
    tree.write("endless", vec![b'x'; limits::SEARCH_LINE_BYTES_MAX + (1 << 20)]);
    tree.write("late-nul", [&b"needle\n".repeat(5_000)[..], b"\0", &b"needle\n"[..]].concat());
    tree.write(
        "utf-16",
        [
            &b"\xff\xfe"[..],
            &"needle\n".encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>(),
        ]
        .concat(),
    );
    tree.write("z", "needle\n");
    let found = search(tree.arguments(json!({})));
    assert_eq!(found.state, EndState::Ended(Outcome::Completed));
    let of = |name: &str| {
        let named = |found: &&Value| found["path"].as_str().unwrap().ends_with(name);
        found.matches.iter().filter(named).collect::<Vec<_>>()
    };
    let cut = of("/long")[1];
    assert_eq!(cut["text"].as_str().unwrap().len(), limits::SEARCH_TEXT_BYTES_MAX);
    assert!(cut["text"].as_str().unwrap().contains("needle"));
    assert_eq!((&cut["text_is_cut"], &cut["column"]), (&json!(true), &json!((1 << 20) + 1)));
    assert!(cut["text_column"].as_u64().unwrap() <= 1 << 20);
    assert_eq!(of("/long").len(), 3);
    assert!(found.problem_with("endless").unwrap().contains("limit"), "{:?}", found.problems);
    assert!(found.problem_with("late-nul").unwrap().contains("binary from byte 35000"));
    assert_eq!(of("utf-16").len(), 1);
    assert_eq!(of("/z").len(), 1, "the search has gone on");
}

#[test]
fn what_can_not_be_read_is_told_and_the_search_goes_on() {
    let tree = Tree::new("unreadable");
    tree.write("locked/a", "needle\n");
    tree.write("z", "needle\n");
    fs::set_permissions(tree.path("locked"), fs::Permissions::from_mode(0o000)).unwrap();
    let is_root = fs::read_dir(tree.path("locked")).is_ok();
    let found = search(tree.arguments(json!({})));
    assert_eq!(found.state, EndState::Ended(Outcome::Completed));
    assert!(tree.files(&found).contains(&"z".to_owned()));
    if is_root {
        println!("not run: this user may read everything");
    } else {
        assert!(found.problem_with("locked").unwrap().contains("denied"), "{found:?}");
    }
    // Even root cannot read this regular file from its beginning.
    let root = format!("/proc/{}/task", std::process::id());
    let found = search(json!({"root": root, "pattern": "needle", "glob": "mem"}));
    assert_eq!(found.state, EndState::Ended(Outcome::Completed));
    assert!(found.problem_with("/mem").is_some(), "{found:?}");
}

#[test]
fn an_ignore_file_that_is_a_pipe_is_not_waited_for() {
    let tree = Tree::new("pipes");
    tree.write("sub/a", "needle\n");
    tree.write("z", "needle\n");
    tree.fifo("sub/.gitignore");
    let found = search(tree.arguments(json!({})));
    assert_eq!(tree.files(&found), ["z"]);
    assert!(found.problem_with("/sub").unwrap().contains("not a regular file"));
    let found = search(tree.arguments(json!({"no_ignore": true})));
    assert_eq!(tree.files(&found), ["sub/a", "z"]);
}

#[test]
fn a_root_that_can_not_be_walked_fails_with_its_name() {
    let tree = Tree::new("roots");
    tree.write("file", "needle\n");
    for (root, problem) in
        [(tree.path("nothing"), "No such file"), (tree.path("file"), "is not a directory")]
    {
        let found = search(json!({"root": root, "pattern": "needle"}));
        assert_eq!(found.state, EndState::Ended(Outcome::Failed));
        let error = found.error.unwrap();
        assert!(error.starts_with("`root` ") && error.contains(problem), "{error}");
    }
}

/// Cancels a search when `until` returns true, and asserts that its thread is released. A second
/// search needs that thread, because the shard has only one.
fn cancel_and_search_again(arguments: Value, until: impl Fn(&Delivery<'_>) -> bool) {
    let config = ShardConfig { tool_threads_max: 1, ..Default::default() };
    let (shard, _) = Shard::spawn(config, |_| {}).unwrap();
    let tree = Tree::new("again");
    tree.write("a", "needle\n");
    let id = shard.execute("search_files", arguments, options()).unwrap();
    let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
    let mut subscriber = shard.subscribe(id, spec).unwrap();
    let mut cancelled = false;
    let state = loop {
        let delivery = subscriber.next();
        if let Delivery::End(ended) = delivery {
            break ended.end.state;
        }
        if !cancelled && until(&delivery) {
            cancelled = true;
            shard.cancel(id).unwrap();
        }
    };
    assert_eq!(state, EndState::Ended(Outcome::Cancelled));
    let id = shard.execute("search_files", tree.arguments(json!({})), options()).unwrap();
    let mut subscriber = shard.subscribe(id, spec).unwrap();
    while !matches!(subscriber.next(), Delivery::End(_)) {}
}

#[test]
fn a_cancellation_reaches_it_between_two_matches_of_a_big_file() {
    let tree = Tree::new("big-file");
    tree.write("big", "needle\n".repeat(1 << 20)); // Far more than fits its ring.
    cancel_and_search_again(tree.arguments(json!({})), |delivery| {
        matches!(delivery, Delivery::Chunk(_))
    });
}

#[test]
fn a_cancellation_reaches_it_where_nothing_matches() {
    let tree = Tree::new("big-tree");
    tree.write("big", "some hay\n".repeat(4 << 20));
    for number in 0..5_000 {
        // One file under many names: reading some 200 GB takes minutes.
        fs::hard_link(tree.path("big"), tree.path(format!("big{number}"))).unwrap();
    }
    cancel_and_search_again(tree.arguments(json!({})), |delivery| {
        matches!(delivery, Delivery::Progress(_))
    });
}
