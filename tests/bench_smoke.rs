//! The benchmark programs run, at a size that fits into a test, and print what `tools/bench` reads.
//! These tests say nothing about speed.
#![cfg(feature = "cli")]

use std::process::{Command, Output};

fn bench(words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(words.split_whitespace())
        .output()
        .expect("the program was built for this test")
}

/// Returns the standard output of a run that must succeed.
fn text(words: &str) -> String {
    let output = bench(words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "bench {words}: {:?} {errors}", output.status);
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// Returns the number after `name` at the start of a line.
fn number(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("no line {name} in\n{text}"));
    line.split_whitespace().nth(1).unwrap().parse().unwrap_or_else(|_| panic!("{line}"))
}

fn two_cpus() -> bool {
    std::thread::available_parallelism().is_ok_and(|count| count.get() >= 2)
}

fn modes() -> &'static [&'static str] {
    if two_cpus() { &["inline", "threads"] } else { &["inline"] }
}

#[test]
fn every_subscriber_is_given_every_chunk_and_percentiles_are_in_order() {
    for mode in modes() {
        let text = text(&format!("fanout --smoke --impl floor --subscribers 3 --mode {mode}"));
        assert!(text.starts_with("machine "), "{text}");
        assert!(text.contains("on cpu "), "{text}");
        let chunks = number(&text, "chunks");
        assert_eq!(chunks, 100.0, "2,000 a second for 0.05 s: {text}");
        assert_eq!(number(&text, "deliveries"), chunks * 3.0, "{text}");
        let names = ["p50", "p95", "p99", "p99.9", "p99.99", "max"];
        let values = names.map(|name| number(&text, name));
        assert!(values.is_sorted(), "{text}");
        assert!(values[0] > 0.0, "{text}");
    }
}

#[test]
fn subscribers_of_a_shard_with_a_journal_are_given_every_chunk() {
    for implementation in ["written", "synced"] {
        for mode in modes() {
            let words = format!("fanout --smoke --impl {implementation} --subscribers 3");
            let text = text(&format!("{words} --mode {mode}"));
            assert_eq!(number(&text, "deliveries"), 300.0, "{text}");
        }
    }
}

#[test]
fn subscribers_that_sleep_are_given_every_chunk() {
    if !two_cpus() {
        assert_eq!(bench("fanout --smoke --mode blocked").status.code(), Some(3));
        return;
    }
    for implementation in ["streamdoor", "floor"] {
        for words in ["--subscribers 1", "--subscribers 3 --touch none --size 1024"] {
            let words = format!("fanout --smoke --mode blocked --impl {implementation} {words}");
            let found = text(&words);
            assert!(found.contains("subscribers sleep"), "{found}");
            assert!(found.contains("--rate 1000 "), "slow enough to sleep: {found}");
            let (chunks, deliveries) = (number(&found, "chunks"), number(&found, "deliveries"));
            let subscribers = if words.contains("--subscribers 3") { 3.0 } else { 1.0 };
            assert_eq!((chunks, deliveries), (50.0, 50.0 * subscribers), "{found}");
            let values = ["p50", "p99", "max"].map(|name| number(&found, name));
            assert!(values[0] > 0.0 && values.is_sorted(), "{found}");
            let found = text(&format!("{words} --rate max"));
            let chunks = number(&found, "chunks");
            assert!(chunks > 0.0, "{found}");
            assert_eq!(number(&found, "deliveries"), chunks * subscribers, "{found}");
        }
    }
}

#[test]
fn flat_out_counts_chunks_and_deliveries() {
    for mode in modes() {
        let words = format!("fanout --smoke --rate max --impl floor --subscribers 2 --mode {mode}");
        let text = text(&words);
        assert_eq!(number(&text, "deliveries"), number(&text, "chunks") * 2.0, "{text}");
        assert!(number(&text, "published") > 0.0, "{text}");
    }
}

#[test]
fn json_is_one_line_that_parses_and_agrees_with_itself() {
    let text = text("fanout --smoke --impl floor --subscribers 2 --touch none --json");
    assert_eq!(text.lines().count(), 1, "{text}");
    let line: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(line["impl"], "floor");
    assert_eq!(line["mode"], "inline");
    assert_eq!(line["deliveries"], 200, "{text}");
    assert!(line["p50_ns"].as_u64() <= line["p99_99_ns"].as_u64(), "{text}");
    assert!(line["machine"].as_str().is_some_and(|machine| machine.contains("Linux")));
    assert!(line["pressure"].get("cpu_some_avg10").is_some(), "null if it is not counted: {line}");
    assert_eq!(line["pressure"]["server_level"], serde_json::Value::Null, "there is no server");
}

#[test]
fn the_floor_of_the_machine_is_reported_in_full() {
    if !two_cpus() {
        assert_eq!(bench("floor --smoke").status.code(), Some(3));
        return;
    }
    let line: serde_json::Value =
        serde_json::from_str(&text("floor --smoke --json")).expect("JSON");
    assert!(line["clock_read_ns"].as_f64() > Some(0.0));
    for part in ["cache_line_round_trip", "ring_inline", "ring_threads"] {
        assert!(line[part]["p50_ns"].as_u64() > Some(0), "{part}: {line}");
    }
    for part in ["ring_inline_max", "ring_threads_max"] {
        assert!(line[part]["deliveries_per_s"].as_f64() > Some(0.0), "{part}: {line}");
    }
}

#[test]
fn histogram_files_are_written_where_asked() {
    let directory = std::env::temp_dir().join(format!("streamdoor-bench-{}", std::process::id()));
    text(&format!("fanout --smoke --impl floor --out {}", directory.display()));
    for (name, start) in [("hgrm", "       Value"), ("hlog", "#")] {
        let path = directory.join(format!("floor-inline-1x100-2000.{name}"));
        let written = std::fs::read_to_string(&path).expect("it was asked for");
        assert!(written.starts_with(start), "{}: {written}", path.display());
    }
    std::fs::remove_dir_all(&directory).expect("nobody else has this directory");
}

#[test]
fn a_server_gives_every_connection_every_chunk_and_latencies_are_in_order() {
    if !two_cpus() {
        assert_eq!(bench("serve --smoke").status.code(), Some(3));
        return;
    }
    for (words, deliveries) in [
        ("--impl floor --connections 1 --idle block", 50.0),
        ("--impl floor --connections 6 --executions 3 --format ndjson --reactor mio", 51.0 * 2.0),
        ("--impl floor --connections 16 --size 5000 --idle spin", 50.0 * 16.0),
        ("--connections 1 --idle block", 50.0),
        ("--connections 6 --executions 3 --format ndjson --reactor mio", 51.0 * 2.0),
        ("--connections 16 --size 5000 --idle spin", 50.0 * 16.0),
    ] {
        let text = text(&format!("serve --smoke {words}"));
        assert_eq!(number(&text, "deliveries"), deliveries, "1,000 a second for 0.05 s: {text}");
        assert_eq!(number(&text, "missed"), 0.0, "{text}");
        let values = ["p50", "p99", "max", "server-peak"].map(|name| number(&text, name));
        assert!(values[0] > 0.0 && values[..3].is_sorted() && values[3] > 0.0, "{text}");
    }
}

#[test]
fn calls_of_mcp_are_told_every_chunk_and_compared_with_the_floor() {
    if !two_cpus() {
        assert_eq!(bench("mcp --smoke").status.code(), Some(3));
        return;
    }
    for words in [
        "--transport http --sessions 1",
        "--transport http --sessions 5 --idle block --reactor mio",
        "--transport pipe --sessions 5 --size 3000",
        "--transport socket --sessions 2 --idle spin --reactor mio",
    ] {
        let text = text(&format!("mcp --smoke --first 3 --rounds 1 {words}"));
        for run in text.split("machine ").skip(1) {
            let delivered = number(run, "deliveries") + number(run, "missed");
            assert_eq!(delivered, number(run, "chunks"), "{words}: {run}");
            assert!(number(run, "first-p50") > 0.0 && number(run, "p50") > 0.0, "{run}");
        }
        assert_eq!(text.matches("machine ").count(), 3, "{text}");
        for floor in ["× floor (", "× floor-reads ("] {
            let compared = text.lines().filter(|line| line.contains(floor));
            let names: Vec<&str> = compared.filter_map(|line| line.split(' ').next()).collect();
            assert!(names.contains(&"p50") && names.contains(&"first-p50"), "{floor}: {text}");
        }
    }
}

#[test]
fn first_notifications_are_timed_after_a_pause_and_of_calls_at_once() {
    if !two_cpus() {
        return;
    }
    for (words, calls) in [
        ("--first 3 --first-pause 0.01 --transport http", 3),
        ("--first 2 --first-pause 0.01 --transport pipe", 2),
        ("--first 50 --first-at-once 30", 60),
        ("--first 1 --first-at-once 40 --first-pause 0.01 --idle block --sessions 3", 40),
        ("--first 1 --first-at-once 8 --only floor --idle spin", 8),
        ("--first 3 --only floor-reads", 3),
        ("--first 1 --first-at-once 8 --only floor-reads", 8),
    ] {
        let text = text(&format!("mcp --smoke --rounds 1 --json {words}"));
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let first = &line["first"];
            assert_eq!(first["deliveries"], calls, "{words}: {line}");
            let values = ["p50_ns", "p99_ns", "max_ns"].map(|name| first[name].as_u64());
            assert!(values[0] > Some(0) && values.is_sorted(), "{words}: {line}");
            assert_eq!(line["deliveries"], line["chunks"], "the rest is as ever: {line}");
        }
        assert!(!text.is_empty());
    }
    let directory = std::env::temp_dir().join(format!("streamdoor-first-{}", std::process::id()));
    let out = directory.display();
    text(&format!("mcp --smoke --rounds 1 --first 1 --first-at-once 9 --only floor --out {out}"));
    let table = std::fs::read_to_string(directory.join("mcp-first-floor-http-9.hgrm"));
    assert!(table.expect("it was asked for").contains("Total count    =            9]"));
    std::fs::remove_dir_all(&directory).expect("nobody else has this directory");
}

/// A slow `block` reader loses nothing and slows the tool down. A slow `drop` reader loses chunks,
/// which its gaps count. No other reader loses anything.
#[test]
fn slow_readers_hold_the_tool_back_or_lose_alone() {
    if !two_cpus() {
        assert_eq!(bench("overload --smoke").status.code(), Some(3));
        return;
    }
    let run = |words: &str| -> serde_json::Value {
        let words = format!("overload --json --warmup 0 --duration 0.4 {words}");
        serde_json::from_str(&text(&words)).expect("JSON")
    };
    let block = run("--policy block --slow-bytes 200000");
    let number = |half: &str, name: &str| block[half][name].as_f64().expect("a number");
    for half in ["alone", "beside"] {
        assert_eq!(number(half, "missed_fast_chunks") + number(half, "missed_slow_chunks"), 0.0);
    }
    let (alone, beside) = ("alone", "beside");
    let published = |half| number(half, "published_chunks");
    assert!(published(beside) < published(alone), "{block}");
    let drop = run("--policy drop --rate 20000 --slow 2 --slow-bytes 50000");
    for half in [alone, beside] {
        let number = |name: &str| drop[half][name].as_u64().expect("a number");
        let given = drop[half]["fast"]["deliveries"].as_u64().expect("a number");
        let all = given + number("missed_fast_chunks");
        assert_eq!(number("published_chunks"), 8_000, "{half}: what was planned: {drop}");
        assert_eq!(all, 4 * 8_000, "{half}: given, or told of: {drop}");
    }
    assert!(drop[beside]["missed_slow_chunks"].as_u64() > Some(0), "{drop}");
}

#[test]
fn notifications_flat_out_are_counted() {
    if !two_cpus() {
        assert_eq!(bench("mcp --smoke").status.code(), Some(3));
        return;
    }
    for transport in ["http --sessions 3", "pipe", "http --only floor-16"] {
        let words = format!("mcp --smoke --first 3 --rounds 1 --rate max --transport {transport}");
        for line in text(&format!("{words} --json")).lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert!(line["deliveries_per_s"].as_f64() > Some(0.0), "{transport}: {line}");
            let has_level = line["impl"] == "streamdoor" && line["transport"] == "http";
            assert_eq!(line["pressure"]["server_level"].is_u64(), has_level, "{line}");
        }
    }
}

#[test]
fn readers_in_another_process_get_every_chunk_and_are_compared_with_the_floor() {
    if !two_cpus() {
        assert_eq!(bench("door --smoke").status.code(), Some(3));
        return;
    }
    for (words, readers) in [
        ("--readers 1", 1.0),
        ("--readers 3 --touch none --size 1024", 3.0),
        ("--readers 2 --size 32768", 2.0),
        ("--readers 1 --wait blocked --touch none", 1.0),
        ("--readers 3 --wait blocked --size 5000", 3.0),
    ] {
        let text = text(&format!("door --smoke --rounds 1 {words}"));
        let chunks = if words.contains("blocked") { 50.0 } else { 100.0 };
        for run in text.split("machine ").skip(1) {
            assert_eq!(number(run, "chunks"), chunks, "{words}: {run}");
            assert_eq!(number(run, "deliveries"), chunks * readers, "{words}: {run}");
            let values = ["p50", "p99", "max"].map(|name| number(run, name));
            assert!(values[0] > 0.0 && values.is_sorted(), "{words}: {run}");
        }
        assert_eq!(text.matches("machine ").count(), 2, "{text}");
        assert!(text.contains("× floor"), "{text}");
    }
}

#[test]
fn a_producer_flat_out_is_read_whole_in_another_process() {
    if !two_cpus() {
        assert_eq!(bench("door --smoke").status.code(), Some(3));
        return;
    }
    for words in ["--readers 2", "--wait blocked --touch none", "--size 32768 --touch none"] {
        let text = text(&format!("door --smoke --rounds 1 --rate max --json {words}"));
        assert_eq!(text.lines().count(), 2, "{text}");
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(line["bench"], "door");
            assert!(line["chunks_per_s"].as_f64() > Some(0.0), "{line}");
            let readers = line["readers"].as_u64().expect("a number");
            assert_eq!(line["deliveries"].as_u64(), line["chunks"].as_u64().map(|n| n * readers));
        }
    }
}

#[test]
fn a_server_flat_out_counts_deliveries_in_one_line_of_json() {
    if !two_cpus() {
        assert_eq!(bench("serve --smoke").status.code(), Some(3));
        return;
    }
    for implementation in ["streamdoor", "floor", "floor-64"] {
        let words = format!("serve --smoke --rate max --connections 3 --impl {implementation}");
        let line: serde_json::Value =
            serde_json::from_str(&text(&format!("{words} --json"))).expect("JSON");
        assert_eq!(line["impl"], implementation);
        assert!(line["deliveries_per_s"].as_f64() > Some(0.0), "{line}");
        assert!(line["server_memory_kib"].as_u64() > Some(0), "{line}");
        assert_eq!(line["missed_chunks"], 0, "{line}");
        let has_level = line["pressure"]["server_level"].is_u64();
        assert_eq!(has_level, implementation == "streamdoor", "{line}");
    }
}

#[test]
fn the_latencies_of_a_server_are_written_where_asked() {
    if !two_cpus() {
        assert_eq!(bench("serve --smoke").status.code(), Some(3));
        return;
    }
    let name = format!("streamdoor-bench-serve-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    text(&format!("serve --smoke --impl floor --connections 2 --out {}", directory.display()));
    for ending in ["hgrm", "hlog"] {
        let path = directory.join(format!("serve-floor-sse-2x1-100-1000.{ending}"));
        assert!(path.exists(), "{}", path.display());
    }
    std::fs::remove_dir_all(&directory).expect("nobody else has this directory");
}

#[test]
#[cfg(feature = "server")]
fn runs_of_agents_are_measured_beside_a_pipe() {
    if !two_cpus() {
        assert_eq!(bench("agent --smoke").status.code(), Some(3));
        return;
    }
    for (words, marks) in [
        ("", &["added-p50 ", "end-p50 ", "per-run "][..]),
        ("--runs 3", &["added-p50 "]),
        ("--mode iterate", &["end-p50 "]),
        ("--rate max --runs 2", &["deltas/s "]),
    ] {
        let text = text(&format!("agent --smoke --rounds 1 {words}"));
        for mark in marks {
            assert!(text.contains(mark), "{words}: {text}");
        }
    }
    let line = text("agent --smoke --rounds 1 --only streamdoor --runs 2 --json");
    let found: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&found["impl"], &found["runs"]), (&"streamdoor".into(), &2.into()));
    assert_eq!(found["deliveries"], found["chunks"], "{line}");
}

/// Runs the soak and the idle benchmark, and checks the table and the drawing that they write.
#[test]
fn a_soak_and_an_idle_server_are_looked_at_drawn_and_written() {
    let folder = std::env::temp_dir().join(format!("streamdoor-soak-{}", std::process::id()));
    let place = folder.display();
    let text = crate::text(&format!("soak --smoke --reactor mio --out {place}"));
    assert_eq!(number(&text, "executions"), 120.0);
    let table = std::fs::read_to_string(folder.join("soak-mio.csv")).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!((rows.len(), rows[0][1], rows[5][1]), (1 + 5, "executions", "120"), "{table}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{table}");
    assert!(rows[1..].iter().all(|row| row[2].parse::<u64>().unwrap() > 0), "{table}");
    let drawing = std::fs::read_to_string(folder.join("soak-mio.svg")).unwrap();
    assert!(drawing.starts_with("<svg") && drawing.matches("<polyline").count() == 4);
    let text = crate::text(&format!("idle --smoke --out {place}"));
    assert!(number(&text, "seconds") >= 1.0);
    assert!(number(&text, "rings_committed_kib_min") > 0.0, "{text}");
    assert_eq!(number(&text, "pressure_changes"), 0.0, "{text}");
    assert!(folder.join("idle-uring.csv").exists());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn instructions_and_cache_lines_are_compared_with_what_is_recorded() {
    let path = std::env::temp_dir().join(format!("streamdoor-counts-{}.toml", std::process::id()));
    let of = |task: &str| format!("instructions --only encode-ndjson --{task} {}", path.display());
    let said = text(&of("record"));
    if said.contains("not run: ") {
        println!("{said}");
        return;
    }
    let check = || bench(&of("check"));
    assert_eq!(check().status.code(), Some(0), "{:?}", check());
    let recorded = std::fs::read_to_string(&path).expect("it was written");
    let count = number(&said.replace(" = ", " "), "encode-ndjson");
    assert!(count > 100.0, "{said}");
    let (_, lines) = recorded.split_once("code = ").expect("lines were recorded");
    let (lines, _) = lines.split_once(',').expect("other lines were recorded, too");
    let number: u64 = lines.parse().expect("it is a number");
    assert!(number > 10, "{said}");
    let instructions = |factor: f64| (format!("{count:.1}"), format!("{:.1}", factor * count));
    let code = |number: u64| (format!("code = {lines},"), format!("code = {number},"));
    for (from, to) in [instructions(0.9), instructions(1.1), code(number + 20), code(number - 10)] {
        std::fs::write(&path, recorded.replace(&from, &to)).expect("it can be written again");
        let output = check();
        assert_eq!(output.status.code(), Some(1), "{to}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("CHANGED"), "{output:?}");
    }
    let other = recorded.replace("rustc ", "rustc 0");
    std::fs::write(&path, other).expect("it can be written again");
    assert!(text(&of("check")).contains("not run: "), "another compiler's counts say nothing");
    std::fs::remove_file(&path).expect("it is there");
}

/// The files are in the build directory. A sync is only one on a disk.
#[test]
fn a_journal_is_measured_beside_the_floor_and_nothing_is_missed() {
    let folder = std::env::temp_dir().join(format!("streamdoor-log-{}", std::process::id()));
    let place = folder.display();
    for (words, rate) in [
        ("--mode publish --out {}", "deliveries_per_s"),
        ("--mode publish --in-flight 64 --impl direct", "deliveries_per_s"),
        ("--mode publish --in-flight 64 --impl floor", "deliveries_per_s"),
        ("--mode publish --impl floor-buffered", "deliveries_per_s"),
        ("--mode sustained --size 1024", "bytes_per_s"),
        ("--mode sustained --size 32768 --impl floor", "bytes_per_s"),
        ("--mode replay --size 1024", "bytes_per_s"),
        ("--mode replay --size 32768 --impl floor", "bytes_per_s"),
        ("--mode live --size 1024", "p50_ns"),
        ("--mode many", "deliveries_per_s"),
        ("--mode first --size 1024", "p50_ns"),
        ("--mode recovery --size 1024", "p50_ns"),
    ] {
        let words = format!("journal --smoke --json {}", words.replace("{}", &place.to_string()));
        let output = bench(&words);
        if output.status.code() == Some(3) {
            println!("not run: {}", String::from_utf8_lossy(&output.stderr));
            return;
        }
        assert!(output.status.success(), "{words}: {output:?}");
        let line: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(line[rate].as_f64() > Some(0.0), "{words}: {line}");
        let is_flat_out = words.contains("sustained");
        assert!(is_flat_out || line["missed_chunks"] == 0, "{words}: {line}");
        let kept = line["deliveries"].as_u64().zip(line["missed_chunks"].as_u64());
        assert_eq!(kept.map(|(kept, missed)| kept + missed), line["chunks"].as_u64(), "{line}");
    }
    for ending in ["hgrm", "hlog"] {
        let path = folder.join(format!("journal-streamdoor-1x100.{ending}"));
        assert!(path.exists(), "{}", path.display());
    }
    std::fs::remove_dir_all(&folder).expect("nobody else has this directory");
}

#[test]
fn help_is_given_and_bad_usage_exits_with_2() {
    for words in [
        "--help",
        "floor --help",
        "fanout --help",
        "serve --help",
        "floor tcp --help",
        "server --help",
        "mcp --help",
        "agent --help",
        "agent pipe --help",
        "agent server --help",
        "door --help",
        "door producer --help",
        "door server --help",
        "mcp floor --help",
        "mcp server --help",
        "instructions --help",
        "overload --help",
        "journal --help",
    ] {
        assert!(text(words).contains("--"), "{words}");
    }
    for words in [
        "",
        "nonsense",
        "fanout --impl nonsense",
        "fanout --subscribers 0",
        "fanout --size 1",
        "fanout --mode asleep",
        "fanout --mode blocked --impl written",
        "fanout --rate",
        "floor --rate max",
        "floor --subscribers 2",
        "floor tcp --size 19",
        "serve --impl nonsense",
        "serve --connections 4 --executions 3",
        "serve --impl axum",
        "serve --batch 16",
        "door --readers 0",
        "door --wait asleep",
        "door --impl iceoryx2",
        "door server",
        "agent --mode batch",
        "agent --runs 0",
        "agent --format sse",
        "agent server",
        "agent pipe --model nowhere",
        "overload --policy conflate",
        "overload --slow 0",
        "journal --in-flight 65",
        "mcp --only rmcp",
        "mcp --peer sh",
        "mcp --transport carrier",
        "mcp --format ndjson",
        "mcp --first-pause soon",
        "mcp --first-at-once 1001",
        "mcp --transport pipe --first-at-once 2",
        "mcp floor --first-at-once 0",
        "mcp --connections 4",
        "instructions --only nothing",
        "instructions --check nowhere.toml",
        "instructions run publish",
        "instructions trace publish",
        "instructions run nothing --times 1",
    ] {
        let output = bench(words);
        assert_eq!(output.status.code(), Some(2), "bench {words}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.starts_with("bench: ") && errors.contains("--help"), "{words}: {errors}");
    }
}

#[test]
fn streams_gives_help_and_refuses_other_words() {
    assert!(text("streams --help").contains("--work NAME"));
    for words in ["--work nothing", "--impl nobody", "--in-flight 0", "--size 16", "more"] {
        let output = bench(&format!("streams {words}"));
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--help"), "{words}");
    }
}

#[test]
fn every_work_of_streams_is_measured() {
    for words in ["append --streams 3 --in-flight 2", "fanout --readers 3 --rate 200", "catch-up"] {
        let words = format!("streams --work {words} --mib 1 --duration 0.05 --warmup 0 --json");
        let line: serde_json::Value = serde_json::from_str(&text(&words)).expect("JSON");
        let numbers = ["appends_per_s", "missed_deliveries", "mb_per_s"].map(|name| &line[name]);
        match line["work"].as_str().unwrap() {
            "append" => assert!(numbers[0].as_f64() > Some(0.0), "{line}"),
            "fanout" => {
                let told = (numbers[1].as_f64(), line["deliveries"].as_u64());
                assert_eq!(told, (Some(0.0), Some(30)), "{line}");
            }
            _ => assert!(numbers[2].as_f64() > Some(0.0), "{line}"),
        }
        assert!(line["p50_ns"].as_u64() <= line["max_ns"].as_u64(), "{line}");
    }
}

#[cfg(feature = "cluster")]
#[test]
fn cluster_gives_help_refuses_other_words_and_says_that_a_program_is_missing() {
    let help = text("cluster --help");
    assert!(help.contains("--work NAME") && help.contains("\n  --rate R "), "{help}");
    for words in [
        "--work nothing",
        "--impl nobody",
        "--impl alone",
        "--impl streamdoor-events",
        "--size 15",
        "--rate 0",
        "--linger-us 99",
        "--impl floor --work fan-out",
        "--readers 0",
        "more",
    ] {
        let output = bench(&format!("cluster {words}"));
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--help"), "{words}");
    }
    assert_eq!(bench("cluster --nats ./no/such/program").status.code(), Some(3));
}
