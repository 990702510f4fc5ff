//! The rules for Rust files. Each takes a path and a text, and returns findings.

use crate::source::{Path, Token, paths, tokens, without_comments_and_strings};

/// The strata of the modules. A module may import modules with strictly lower numbers, and those in
/// [`IMPORTS_SIDEWAYS`].
pub const STRATA: &[(&str, u32)] = &[
    ("base", 0),
    ("trace", 0),
    ("stream", 0),
    ("engine", 1),
    ("memory", 1),
    ("wire", 1),
    ("tool", 2),
    ("reactor", 2),
    ("journal", 2),
    ("shard", 3),
    ("mcp", 3),
    ("agent", 3),
    ("api", 3),
    ("cluster", 3),
    ("endpoint", 4),
    ("server", 5),
    ("client", 6),
    ("door", 6),
    ("upstream", 6),
    ("nats", 6),
    ("sim", 7),
    ("cli", 7), // In the program, not in the library.
];
/// Imports that are allowed although the numbers are equal.
const IMPORTS_SIDEWAYS: &[(&str, &str)] =
    &[("trace", "base"), ("door", "client"), ("upstream", "client")];
/// Imports that are forbidden although the number is lower: these machines never see the kernel.
const IMPORTS_FORBIDDEN: &[(&str, &str)] = &[
    ("mcp", "reactor"),
    ("agent", "reactor"),
    ("api", "reactor"),
    ("endpoint", "reactor"),
    ("cluster", "reactor"),
];
/// The module that every module may import and that imports none.
pub const LIMITS: &str = "limits";

/// Files and folders that may contain `unsafe`, and their tests.
const UNSAFE_AT_HOME: &[&str] = &[
    "src/memory/",
    "src/reactor/",
    "src/tool/child.rs", // Code between fork and exec: `pre_exec` is unsafe.
    "bench/common/machine.rs",
    "bench/door/ring.rs",
    "bench/floor/bell.rs",
    "bench/floor/ring.rs",
    "bench/peers/src/timer.rs", // Since 1.54, tokio takes a descriptor in an unsafe call.
    "bench/peers/src/tokio_broadcast.rs",
    "tests/door_kills/step.rs",       // Steps another process, by ptrace.
    "tests/counting/mod.rs",          // A global allocator is unsafe by its trait.
    "tests/door/raw.rs",              // Shared memory, without our checks.
    "src/sim/contract/",              // Descriptors and limits of the process.
    "tests/serve_clients/refused.rs", // A seccomp filter for a server.
    "tools/c/src/",                   // C passes pointers.
    "tests/ring_process.rs",          // Attacks a ring through raw system calls.
];
/// Files and folders that may name the standard library's atomics.
const ATOMICS_AT_HOME: &[&str] =
    &["src/memory/atomic.rs", "src/reactor/waker.rs", "src/sim/", "tests/", "bench/"];
/// The core. Its code is the same with every set of features.
const CORE: &[&str] =
    &["src/base/", "src/engine/", "src/memory/", "src/reactor/", "src/shard/", "src/stream/"];
/// Folders whose code must not depend on a random seed of the process.
const DETERMINISTIC: &[&str] = &["src/engine/", "src/sim/"];

const FILE_LINES_MAX: usize = 800;
const LINE_COLUMNS_MAX: usize = 100;

/// A violation of a rule, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: String,
    pub line: usize,
    pub text: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}:{}: {}", self.path, self.line, self.text)
    }
}

/// One Rust file, parsed once for all rules.
pub struct File<'a> {
    path: &'a str,
    text: &'a str,
    tokens: Vec<Token>,
    paths: Vec<Path>,
}

impl<'a> File<'a> {
    /// `path` is relative to the root of the repository, with slashes.
    pub fn new(path: &'a str, text: &'a str) -> File<'a> {
        let tokens = tokens(&without_comments_and_strings(text));
        let paths = paths(&tokens, module_depth(path));
        File { path, text, tokens, paths }
    }

    /// All violations in this file.
    pub fn findings(&self) -> Vec<Finding> {
        let rules = [
            File::imports,
            File::head,
            File::size,
            File::unsafe_code,
            File::unfinished,
            File::atomics,
            File::random_seeds,
            File::features,
        ];
        rules.iter().flat_map(|rule| rule(self)).collect()
    }

    fn finding(&self, line: usize, text: impl Into<String>) -> Finding {
        Finding { path: self.path.to_string(), line, text: text.into() }
    }

    fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    fn imports(&self) -> Vec<Finding> {
        let Some(module) = module_of(self.path) else { return Vec::new() };
        let known = module == LIMITS || stratum_of(module).is_some();
        if !known {
            return vec![self.finding(1, format!("`{module}` has no place in STRATA"))];
        }
        let from_root = self.paths.iter().filter(|path| path.names[0] == "crate");
        from_root
            .filter_map(|path| {
                let target = path.names.get(1).map_or("", String::as_str);
                let wrong = import_error(module, target)?;
                Some(self.finding(path.line, format!("`{}`: {wrong}", path.names.join("::"))))
            })
            .collect()
    }

    fn head(&self) -> Vec<Finding> {
        match self.text.starts_with("//! ") {
            true => Vec::new(),
            false => vec![self.finding(1, "begins without a `//!` text that says its job")],
        }
    }

    fn size(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let line_count = self.text.lines().count();
        if line_count > FILE_LINES_MAX {
            let text = format!("{line_count} lines, {FILE_LINES_MAX} at most: split it by concern");
            findings.push(self.finding(line_count, text));
        }
        for (number, line) in self.text.lines().enumerate() {
            let columns = line.chars().count();
            let linked = line.contains("//") && line.contains("://");
            if columns > LINE_COLUMNS_MAX && !linked {
                let text = format!("{columns} columns, {LINE_COLUMNS_MAX} at most");
                findings.push(self.finding(number + 1, text));
            }
        }
        findings
    }

    fn unsafe_code(&self) -> Vec<Finding> {
        if self.is_in(UNSAFE_AT_HOME) {
            return Vec::new();
        }
        self.each_token(&["unsafe"], "`unsafe` lives in src/memory and src/reactor")
    }

    fn unfinished(&self) -> Vec<Finding> {
        // Each mark is in two parts, so that this file does not find itself.
        let marks = [
            concat!("TO", "DO"),
            concat!("FIX", "ME"),
            concat!("to", "do!"),
            concat!("unimple", "mented!"),
            concat!("#[ig", "nore"),
        ];
        let mut findings = Vec::new();
        for (number, line) in self.text.lines().enumerate() {
            for mark in marks.iter().filter(|mark| line.contains(**mark)) {
                findings.push(self.finding(number + 1, format!("`{mark}` is left over")));
            }
        }
        findings
    }

    fn atomics(&self) -> Vec<Finding> {
        if self.is_in(ATOMICS_AT_HOME) {
            return Vec::new();
        }
        let named = |path: &&Path| path.names.windows(2).any(|pair| pair == ["sync", "atomic"]);
        let text = "atomics go through src/memory/atomic.rs, so that loom can take their place";
        self.paths.iter().filter(named).map(|path| self.finding(path.line, text)).collect()
    }

    fn random_seeds(&self) -> Vec<Finding> {
        if !self.is_in(DETERMINISTIC) {
            return Vec::new();
        }
        let names = ["HashMap", "HashSet", "RandomState", "DefaultHasher"];
        self.each_token(&names, "its order differs from run to run: equal seeds must do the same")
    }

    fn features(&self) -> Vec<Finding> {
        if !self.is_in(CORE) {
            return Vec::new();
        }
        let asks = |line: &str| line.trim_start().starts_with("#") && line.contains("feature = ");
        let lines = self.text.lines().enumerate().filter(|(_, line)| asks(line));
        let text = "the core knows no features: guests come through `Outlet`";
        lines.map(|(number, _)| self.finding(number + 1, text)).collect()
    }

    fn each_token(&self, names: &[&str], wrong: &str) -> Vec<Finding> {
        let named = self.tokens.iter().filter(|token| names.contains(&token.text.as_str()));
        named.map(|token| self.finding(token.line, format!("`{}`: {wrong}", token.text))).collect()
    }
}

fn stratum_of(module: &str) -> Option<u32> {
    STRATA.iter().find(|(name, _)| *name == module).map(|(_, stratum)| *stratum)
}

/// The top-level module of a file. `None` for crate roots and files outside of `src`.
fn module_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("src/")?;
    let module = inside.split('/').next()?;
    let module = module.strip_suffix(".rs").unwrap_or(module);
    (!matches!(module, "lib" | "main" | "internals")).then_some(module)
}

/// The number of modules around the items of a file: 1 for `src/engine/mod.rs`, 2 for
/// `src/engine/wheel.rs`, 0 for a crate root.
fn module_depth(path: &str) -> usize {
    let Some(inside) = path.strip_prefix("src/") else { return 0 };
    let parts = inside.trim_end_matches(".rs").split('/');
    parts.filter(|part| !matches!(*part, "mod" | "lib" | "main")).count()
}

fn import_error(module: &str, target: &str) -> Option<String> {
    let pair = (module, target);
    if target == module || target == LIMITS || IMPORTS_SIDEWAYS.contains(&pair) {
        return None;
    }
    let Some(target_stratum) = stratum_of(target) else {
        return Some("name the module that it lives in".to_string());
    };
    let stratum = stratum_of(module);
    if IMPORTS_FORBIDDEN.contains(&pair) || stratum.is_none_or(|own| target_stratum >= own) {
        return Some(match stratum {
            Some(own) => format!("{module} ({own}) must not know {target} ({target_stratum})"),
            None => format!("{module} imports nobody"),
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(path: &str, text: &str) -> Vec<usize> {
        File::new(path, text).findings().iter().map(|finding| finding.line).collect()
    }

    /// The lines with findings in `text`, behind a valid first line.
    fn wrong_lines(path: &str, text: &str) -> Vec<usize> {
        let mut lines = lines_of(path, &format!("//! Job.\n{text}"));
        lines.dedup(); // One statement can have two findings.
        lines
    }

    #[test]
    fn an_import_upwards_or_sideways_is_found() {
        for (path, text) in [
            ("src/engine/a.rs", "use crate::shard::Shard;"),
            ("src/engine/a.rs", "use crate::memory::Ring;"),
            ("src/engine/a.rs", "use crate::{limits, sim::World};"),
            ("src/engine/a.rs", "fn f() -> crate::reactor::Uring { g() }"),
            ("src/engine/mod.rs", "use super::memory::Ring;"),
            ("src/engine/a.rs", "use super::super::memory::Ring;"),
            ("src/engine/a.rs", "use crate::Engine;"),
            ("src/engine/a.rs", "use crate as root;"),
            ("src/engine/a.rs", "use crate::*;"),
            ("src/engine/a.rs", "use crate::{self as root};"),
            ("src/base/a.rs", "use crate::trace::Counters;"),
            ("src/mcp/mod.rs", "use crate::reactor::Reactor;"),
            ("src/endpoint/a/b.rs", "use crate::reactor::Reactor;"),
            ("src/limits.rs", "use crate::base::Instant;"),
            ("src/helpers.rs", ""),
            ("src/helpers/mod.rs", ""),
        ] {
            let expected = if text.is_empty() { 1 } else { 2 };
            assert_eq!(wrong_lines(path, text), [expected], "{path}: {text}");
        }
    }

    #[test]
    fn an_import_downwards_is_not_found() {
        for (path, text) in [
            ("src/engine/a.rs", "use crate::base::{Instant, Pool};\nuse crate::limits::X;"),
            ("src/engine/a.rs", "use crate::engine::b::C;\nuse super::b::C;"),
            ("src/engine/a.rs", "mod tests { use super::super::b::C; }"),
            ("src/engine/a.rs", "// crate::shard is told later\nlet x = \"crate::shard\";"),
            ("src/trace/a.rs", "use crate::base::Instant;"),
            ("src/sim/a.rs", "use crate::shard::Shard;"),
            ("src/lib.rs", "pub use crate::shard::Shard;"),
            ("tests/a.rs", "use crate::helpers::x;"),
        ] {
            assert_eq!(wrong_lines(path, text), [], "{path}: {text}");
        }
    }

    #[test]
    fn a_file_without_text_at_its_head_is_found() {
        assert_eq!(lines_of("tests/a.rs", "fn main() {}"), [1]);
        assert_eq!(lines_of("tests/a.rs", ""), [1]);
        assert_eq!(lines_of("tests/a.rs", "//! Job."), []);
    }

    #[test]
    fn long_files_and_long_lines_are_found() {
        assert_eq!(wrong_lines("tests/a.rs", &"\n".repeat(FILE_LINES_MAX)), [801]);
        assert_eq!(wrong_lines("tests/a.rs", &"\n".repeat(FILE_LINES_MAX - 1)), []);
        assert_eq!(wrong_lines("tests/a.rs", &format!("// {}", "ä".repeat(97))), []);
        assert_eq!(wrong_lines("tests/a.rs", &format!("// {}", "ä".repeat(98))), [2]);
        let link = format!("// https://example.org/{}", "a".repeat(100));
        assert_eq!(wrong_lines("tests/a.rs", &link), []);
    }

    #[test]
    fn unsafe_code_away_from_home_is_found() {
        let text = "fn f() { unsafe { g() } }";
        assert_eq!(wrong_lines("src/engine/a.rs", text), [2]);
        assert_eq!(wrong_lines("src/memory/a.rs", text), []);
        assert_eq!(wrong_lines("src/engine/a.rs", "#![forbid(unsafe_code)] // no unsafe"), []);
    }

    #[test]
    fn what_is_left_over_is_found_in_code_and_comments() {
        for text in
            [concat!("// TO", "DO later"), concat!("to", "do!()"), concat!("#[ig", "nore = \"x\"]")]
        {
            assert_eq!(wrong_lines("bench/a.rs", text), [2], "{text}");
        }
    }

    #[test]
    fn atomics_away_from_home_are_found() {
        for text in [
            "use std::sync::atomic::AtomicU64;",
            "use std::sync::{Arc, atomic};",
            "use std::{fmt, sync::atomic::{AtomicU32, Ordering}};",
            "static X: core::sync::atomic::AtomicU8 = f();",
            "use std::sync; fn f(x: sync::atomic::AtomicU8) {}",
        ] {
            assert_eq!(wrong_lines("src/shard/a.rs", text), [2], "{text}");
            assert_eq!(wrong_lines("src/memory/atomic.rs", text), [], "{text}");
        }
        assert_eq!(wrong_lines("src/shard/a.rs", "use crate::memory::atomic::AtomicU64;"), []);
    }

    #[test]
    fn a_feature_in_the_core_is_found() {
        for text in ["#[cfg(feature = \"server\")]", "    #[cfg(all(test, feature = \"tls\"))]"] {
            assert_eq!(wrong_lines("src/shard/a.rs", text), [2], "{text}");
            assert_eq!(wrong_lines("src/server/a.rs", text), [], "{text}");
        }
        assert_eq!(wrong_lines("src/shard/a.rs", "// with feature = \"x\"\n#[cfg(test)]"), []);
    }

    #[test]
    fn maps_with_a_random_seed_are_found_where_runs_must_repeat() {
        assert_eq!(wrong_lines("src/sim/a.rs", "use std::collections::HashMap;"), [2]);
        assert_eq!(wrong_lines("src/shard/a.rs", "use std::collections::HashMap;"), []);
    }
}
