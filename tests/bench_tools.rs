//! The scripts around the benchmarks, as far as they need no build. They draw plots from the output
//! of a run and write summaries from its lines. Every workload of `tools/perf` is one that `bench`
//! accepts.
#![cfg(feature = "cli")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn tool(name: &str) -> PathBuf {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where its package is");
    Path::new(&root).join("tools").join(name)
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

fn bench(words: &str) -> String {
    run(Command::new(env!("CARGO_BIN_EXE_bench")).args(words.split_whitespace()))
}

fn is_there(program: &str) -> bool {
    let found: std::io::Result<Output> = Command::new(program).arg("--version").output();
    let is_there = found.is_ok_and(|output| output.status.success());
    if !is_there {
        println!("not run: {program} is not installed");
    }
    is_there
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("streamdoor-tools-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the number of lines drawn in an SVG. Asserts that all their points are inside the
/// picture.
fn line_count(svg: &str) -> usize {
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    let lines: Vec<&str> = svg.split("<polyline points=\"").skip(1).collect();
    for line in &lines {
        let points = line.split('"').next().expect("there is a first");
        for point in points.split(' ') {
            let (x, y) = point.split_once(',').expect("a point has two numbers");
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((0.0..=900.0).contains(&x) && (0.0..=480.0).contains(&y), "{point} in {svg}");
        }
    }
    lines.len()
}

#[test]
fn a_record_is_drawn_and_summarised() {
    if !is_there("python3") {
        return;
    }
    let folder = Folder::new("record");
    let mut lines = String::new();
    for (implementation, factor) in [("streamdoor", 1), ("floor", 2)] {
        let out = folder.0.join("histograms/inline-3").join(implementation);
        let words = format!(
            "fanout --smoke --impl {implementation} --subscribers 3 --seed {factor} --json \
             --out {}",
            out.display()
        );
        let line = bench(&words);
        let line = line.strip_prefix('{').expect("a line of JSON");
        lines += &format!("{{\"cell\":\"inline-3\",\"round\":1,{line}");
    }
    fs::write(folder.0.join("raw.jsonl"), lines).unwrap();
    let plots = run(Command::new(tool("bench-plots")).arg(&folder.0));
    assert_eq!(plots.lines().count(), 1, "{plots}");
    fs::write(folder.0.join("plots.md"), &plots).unwrap();
    let unmeasured = "- aeron: it is not here\n";
    fs::write(folder.0.join("unmeasured.md"), unmeasured).unwrap();
    let svg = |kind: &str| {
        fs::read_to_string(folder.0.join(format!("plots/inline-3-{kind}.svg"))).expect("drawn")
    };
    assert_eq!(line_count(&svg("percentiles")), 2, "one for each implementation");
    assert_eq!(line_count(&svg("time")), 4, "p50 and p99 of each");
    let summary = Command::new(tool("bench-summary"))
        .args([folder.0.as_os_str(), "tools/bench fanout".as_ref(), "abc".as_ref()])
        .output()
        .expect("python3 is there");
    let summary = String::from_utf8(summary.stdout).unwrap();
    assert!(summary.contains("## inline-3: inline, 3 subscribers, 100 B, 2,000 chunks/s"));
    assert!(summary.contains("| streamdoor | ") && summary.contains("| floor | "), "{summary}");
    let readme = fs::read_to_string(folder.0.join("README.md")).unwrap();
    assert!(readme.contains("revision: abc") && readme.contains("plots/inline-3-time.svg"));
    let pressure = "in percent: cpu ";
    assert!(readme.contains(pressure) && readme.contains("reports unknown\n"), "{readme}");
    assert!(readme.contains(&format!("Not measured:\n{unmeasured}\n`raw.jsonl`")), "{readme}");
}

/// The made-up numbers have a cost that grows by a half, and 2 KiB for each subscriber.
#[test]
fn curves_show_growth_and_the_slope_of_memory() {
    if !is_there("python3") {
        return;
    }
    let folder = Folder::new("curves");
    let line = |count: u64, cost_ns: f64| {
        format!(
            r#"{{"cell":"scale-closures-{count}","round":1,"bench":"fanout","impl":"streamdoor",
            "mode":"inline","subscribers":{count},"size_bytes":100,"rate":"max","touch":"none",
            "duration_s":1.0,"warmup_s":0.1,"chunks_per_s":1.0,"deliveries_per_s":{},
            "preemptions":0,"memory_kib":{},"machine":"none; idle: none"}}"#,
            1e9 / cost_ns,
            10_000 + 2 * count
        )
        .replace('\n', "")
            + "\n"
    };
    let lines = [line(10, 20.0), line(100, 22.0), line(10_000, 30.0)].concat();
    fs::write(folder.0.join("raw.jsonl"), lines).unwrap();
    let summary = run(Command::new(tool("bench-summary")).arg(&folder.0).args(["scale", "abc"]));
    let verdict =
        "- streamdoor: at most 1.50 × from 10 to 10,000 (within 1.5); memory 2.00 KiB each";
    assert!(summary.contains(verdict), "{summary}");
    assert!(summary.contains("| streamdoor | 100 | 22.0 | 1.10 | 10.0 |"), "{summary}");
    let readme = fs::read_to_string(folder.0.join("README.md")).unwrap();
    assert!(readme.contains("in percent: not recorded\n"), "older lines say nothing: {readme}");
}

#[test]
fn a_cell_about_first_notifications_shows_their_times_and_not_the_others() {
    if !is_there("python3") {
        return;
    }
    let folder = Folder::new("first");
    let line = |implementation: &str, first_ns: u64| {
        let times = |ns: u64, preemptions: u64| {
            let keys = ["p50", "p95", "p99", "p99_9", "p99_99", "max"];
            let values: String = keys.iter().map(|key| format!("\"{key}_ns\":{ns},")).collect();
            format!("{values}\"deliveries\":3,\"preemptions\":{preemptions}")
        };
        format!(
            "{{\"cell\":\"first-1000\",\"round\":1,\"bench\":\"mcp\",\
             \"impl\":\"{implementation}\",\"transport\":\"http\",\"sessions\":1,\
             \"size_bytes\":100,\"rate\":\"1000\",\"duration_s\":0.05,\"warmup_s\":0.0,\
             \"idle\":\"backoff\",\"first_pause_s\":0.1,\"first_at_once\":1000,{},\
             \"first\":{{{}}},\"server_cpu_ns_per_chunk\":5.0,\"server_memory_kib\":2048,\
             \"machine\":\"none; idle: none\"}}\n",
            times(7, 0),
            times(first_ns, 4)
        )
    };
    let lines = [line("streamdoor", 3_000), line("floor", 2_000)].concat();
    fs::write(folder.0.join("raw.jsonl"), lines).unwrap();
    let summary = run(Command::new(tool("bench-summary")).arg(&folder.0).args(["mcp", "abc"]));
    let title =
        "## first-1000: http, 1,000 calls at once, after 0.1 s without a call, to the first";
    assert!(summary.contains(title), "{summary}");
    let floor = "| floor | 2,000 | 2,000 | 2,000 | 2,000 | 2,000 | 2,000 \
                 | 1.50 (1.50–1.50) | 1.50 (1.50–1.50) | 2.0 | 4 |";
    assert!(summary.contains(floor), "{summary}");
}

#[test]
fn a_cell_about_the_journal_has_rates_beside_times_and_says_what_was_missed() {
    if !is_there("python3") {
        return;
    }
    let folder = Folder::new("journal");
    let line = |cell: &str, implementation: &str, numbers: &str| {
        format!(
            "{{\"cell\":\"{cell}\",\"round\":1,\"bench\":\"journal\",\
             \"impl\":\"{implementation}\",\"mode\":\"{cell}\",\"in_flight\":64,\
             \"size_bytes\":100,\"duration_s\":1.0,\"warmup_s\":0.1,{numbers},\
             \"missed_chunks\":5,\"preemptions\":3,\"machine\":\"none; idle: none\"}}\n"
        )
    };
    let times = "\"p50_ns\":3000,\"p99_ns\":9000,\"deliveries_per_s\":600.0";
    let half = "\"p50_ns\":2000,\"p99_ns\":3000,\"deliveries_per_s\":1200.0";
    let bulk = "\"deliveries_per_s\":100.0,\"bytes_per_s\":7000000.0";
    let lines = [
        line("publish", "streamdoor", times),
        line("publish", "redis", half),
        line("sustained", "streamdoor", bulk),
    ];
    fs::write(folder.0.join("raw.jsonl"), lines.concat()).unwrap();
    let summary = run(Command::new(tool("bench-summary")).arg(&folder.0).args(["journal", "abc"]));
    for row in [
        "## publish: publish, 100 B, 64 in flight; ns",
        "| streamdoor | 3,000 | 9,000 | 600 | – | – | – | 5 | 3 |",
        "| redis | 2,000 | 3,000 | 1,200 | 1.50 (1.50–1.50) | 3.00 (3.00–3.00) \
         | 0.50 (0.50–0.50) | 5 | 3 |",
        "| implementation | messages/s | MB/s | streamdoor ÷ it, MB/s | missed | preempted |",
        "| streamdoor | 100 | 7 | – | 5 | 3 |",
    ] {
        assert!(summary.contains(row), "{row}: {summary}");
    }
}

#[test]
fn a_cell_about_a_cluster_has_times_or_the_rates_of_a_log() {
    if !is_there("python3") {
        return;
    }
    let folder = Folder::new("cluster");
    let line = |cell: &str, implementation: &str, numbers: &str| {
        format!(
            "{{\"cell\":\"{cell}\",\"round\":1,\"bench\":\"cluster\",\
             \"impl\":\"{implementation}\",\"work\":\"{cell}\",\"rate\":1000,\
             \"size_bytes\":100,\"mib\":16,\"duration_s\":1.0,\"warmup_s\":0.1,{numbers},\
             \"preemptions\":3,\"machine\":\"none; idle: none\"}}\n"
        )
    };
    let times = |ns: u64| {
        let keys = ["p50", "p95", "p99", "p99_9", "p99_99", "max"];
        keys.map(|key| format!("\"{key}_ns\":{ns}")).join(",")
    };
    let rates = |read: f64| format!("\"written_mb_per_s\":20.0,\"mb_per_s\":{read:.1}");
    let lines = [
        line("live", "streamdoor", &times(2_000)),
        line("live", "redis-axum", &times(4_000)),
        line("catch-up", "streamdoor", &rates(300.0)),
        line("catch-up", "nats-axum", &rates(100.0)),
    ];
    fs::write(folder.0.join("raw.jsonl"), lines.concat()).unwrap();
    let summary = run(Command::new(tool("bench-summary")).arg(&folder.0).args(["cluster", "abc"]));
    for row in [
        "## live: live, 100 B, 1,000 chunks/s; ns",
        "| redis-axum | 4,000 | 4,000 | 4,000 | 4,000 | 4,000 | 4,000 \
         | 0.50 (0.50–0.50) | 0.50 (0.50–0.50) | 3 |",
        "## catch-up: catch-up, 100 B, 16 MiB",
        "| streamdoor | 300 | 20 | – | – | 3 |",
        "| nats-axum | 100 | 20 | 3.00 (3.00–3.00) | 1.00 (1.00–1.00) | 3 |",
    ] {
        assert!(summary.contains(row), "{row}: {summary}");
    }
    let readme = fs::read_to_string(folder.0.join("README.md")).unwrap();
    assert!(readme.contains("# Two nodes, measured with `cluster`"), "{readme}");
}

#[test]
fn the_charts_of_the_performance_page_show_the_recorded_run() {
    if is_there("python3") {
        run(Command::new(tool("perf-charts")).arg("--check"));
    }
}

#[test]
fn the_scripts_print_their_help_and_refuse_other_words() {
    if !is_there("python3") {
        return;
    }
    for name in ["bench-plots", "bench-summary", "perf-charts"] {
        let help = run(Command::new(tool(name)).arg("--help"));
        assert!(help.contains(&format!("Usage: tools/{name}")), "{help}");
        let output = Command::new(tool(name)).args(["a", "b", "c", "d"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{name}: {output:?}");
    }
}

#[test]
fn every_workload_is_one_that_bench_takes() {
    let is_alone = std::thread::available_parallelism().is_ok_and(|count| count.get() < 2);
    if !is_there("python3") || is_alone {
        return;
    }
    let help = run(Command::new(tool("perf")).arg("--help"));
    let line = help.lines().find(|line| line.trim_start().starts_with("WORKLOAD ")).unwrap();
    let names = line.split_whitespace().skip(1).map(|name| name.trim_end_matches([',', ':']));
    let names: Vec<&str> = names.take_while(|name| *name != "streamdoor").collect();
    assert!(names.len() > 5, "{help}");
    for name in names.into_iter().filter(|name| cfg!(feature = "server") || *name != "agent") {
        let words = run(Command::new(tool("perf")).args(["--words", name]));
        let text = bench(&format!("{} --smoke", words.trim_end()));
        assert!(text.contains("machine "), "{name}: {text}");
    }
    let unknown = Command::new(tool("perf")).arg("nothing").output().unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
}

#[test]
fn every_path_of_the_benchmarks_has_cells() {
    if !is_there("python3") || !is_there("bash") {
        return;
    }
    let paths =
        ["fanout", "door", "serve", "mcp", "agent", "scale", "overload", "streams", "cluster"];
    for path in paths {
        let cells = run(Command::new(tool("bench")).args([path, "--list"]));
        assert!(cells.lines().all(|line| line.split_whitespace().count() > 1), "{cells}");
        assert!(cells.contains("streamdoor"), "{cells}");
    }
    let cells = run(Command::new(tool("bench")).args(["mcp", "--poll-idle", "--list"]));
    for cell in ["first-idle", "first-1000"] {
        let line = cells.lines().find(|line| line.starts_with(cell)).expect("there is that cell");
        assert!(line.contains("floor floor-reads rmcp rmcp-sessions typescript python"), "{line}");
    }
    let three = run(Command::new(tool("bench")).args(["fanout", "--list", "--only", "=inline-3"]));
    assert!(three.starts_with("inline-3 ") && three.ends_with(" erlang \n"), "{three}");
    let unknown = Command::new(tool("bench")).arg("nothing").output().unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
}

/// The test has a compiler of an LLVM that does not exist, and a cargo that leaves a file behind.
#[test]
fn pgo_builds_nothing_without_the_llvm_profdata_of_the_compiler() {
    use std::os::unix::fs::PermissionsExt;

    if !is_there("bash") {
        return;
    }
    let help = run(Command::new(tool("pgo")).arg("--help"));
    assert!(help.contains("Usage: tools/pgo"), "{help}");
    for words in [&["anything"][..], &["--compare", "0"], &["--out", "/tmp"]] {
        let output = Command::new(tool("pgo")).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
    let folder = Folder::new("pgo");
    let path = folder.0.display();
    let programs = [
        ("cargo", format!("touch {path}/built")),
        ("curl", String::new()),
        ("nproc", "echo 2".to_owned()),
        ("rustc", format!("[ $1 = -vV ] && echo LLVM version: 999.1.0 || echo {path}")),
        ("llvm-profdata", "echo LLVM version 998.1.0".to_owned()),
    ];
    for (name, text) in programs {
        let program = folder.0.join(name);
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new(tool("pgo"))
        .env("PATH", format!("{path}:/usr/bin:/bin"))
        .output()
        .expect("bash is there");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let missing = "llvm-profdata for LLVM 999 is missing: run `rustup component add llvm-tools`";
    assert!(text.contains(missing), "{text}");
    assert!(!folder.0.join("built").exists(), "{output:?}");
}

/// Returns the probe names in the table of the module text of `probes`.
fn probes_described() -> BTreeSet<String> {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where its package is");
    let text = fs::read_to_string(Path::new(&root).join("src/trace/probes.rs")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! | `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned()).collect()
}

#[test]
fn the_program_has_the_probes_that_are_described_and_no_others() {
    if !is_there("readelf") {
        return;
    }
    let notes = run(Command::new("readelf").args(["-n", "-W", env!("CARGO_BIN_EXE_bench")]));
    // After the provider come the name and the address of the `nop`, which is 0 if it was dropped.
    let mut found = BTreeSet::new();
    let mut lines = notes.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line.ends_with("Provider: streamdoor") {
            let name = lines.next().and_then(|line| line.strip_prefix("Name: ")).unwrap();
            let place = lines.next().and_then(|line| line.strip_prefix("Location: 0x")).unwrap();
            let address = place.split(',').next().unwrap();
            assert_ne!(u64::from_str_radix(address, 16), Ok(0), "{name}");
            found.insert(name.to_owned());
        }
    }
    assert_eq!(found, probes_described());
}
