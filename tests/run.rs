//! `streamdoor run` and `streamdoor tools` as a user runs them: outputs, formats and exit codes,
//! signals, broken pipes, and files of every kind.
#![cfg(feature = "cli")]

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;
use sha2::{Digest, Sha256};
use streamdoor::base::Random;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> Output {
    program(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it prints UTF-8")
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A temporary file that is removed when the value is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, bytes: &[u8]) -> Temporary {
        let name = format!("streamdoor-run-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, bytes).unwrap();
        Temporary(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the file as an argument of `process_file`.
    fn argument(&self) -> String {
        format!("--arg=file_path={}", self.0.display())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn random_bytes(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Random::new(length as u64).fill(&mut bytes);
    bytes
}

/// Returns (ended, chunks, missed) of each row of the table.
fn rows(text: &str) -> Vec<(String, u64, u64)> {
    let table = text.lines().skip_while(|line| !line.starts_with("subscriber ")).skip(1);
    let words = table.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .take_while(|words| words.len() >= 12 && words[0].parse::<u32>().is_ok())
        .filter_map(|words| {
            // The end state may be two words. Each of the four times has a number and a unit.
            let numbers = words.len() - 10;
            let ended = words[1..numbers].join(" ");
            Some((ended, words[numbers].parse().ok()?, words[numbers + 1].parse().ok()?))
        })
        .collect()
}

fn peak_memory_mib(text: &str) -> f64 {
    let (_, after) = text.split_once("peak memory ").expect("the peak is printed");
    after.split(' ').next().unwrap().parse().unwrap()
}

fn events(output: &[u8]) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    text(output).lines().map(parse).collect()
}

#[test]
fn a_file_reaches_four_subscribers_whole_in_bounded_memory() {
    let bytes = random_bytes(32 << 20);
    let file = Temporary::new("four", &bytes);
    let output = output(&[
        "run",
        "process_file",
        &file.argument(),
        "--subscribers=4",
        "--policy=block",
        "--hash",
        "--stats",
    ]);
    let text = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(text.matches(&sha256(&bytes)).count(), 4, "{text}");
    assert_eq!(rows(&text), vec![("completed".to_owned(), 1_024, 0); 4], "{text}");
    assert!(text.contains("MiB/s") && peak_memory_mib(&text) < 64.0, "{text}");
}

#[test]
fn raw_output_is_the_bytes_wherever_it_goes_and_the_summary_is_elsewhere() {
    let bytes = random_bytes(3 << 20);
    let (file, out) = (Temporary::new("raw", &bytes), Temporary::new("raw-out", b"older"));
    let run = ["run", "process_file", &file.argument()];
    for options in [&["--format", "raw", "--out", "-"][..], &["--out=-"], &[]] {
        let output = output(&[&run[..], options].concat());
        assert!(output.status.success());
        assert_eq!(output.stdout, bytes, "{options:?}");
        let stderr = text(&output.stderr);
        assert_eq!(stderr.lines().count(), 1, "{options:?}: {stderr}");
        assert!(stderr.starts_with("completed: 96 chunks, 3,145,728 bytes in "), "{stderr}");
    }
    let output = output(&[&run[..], &["--stats"]].concat());
    assert_eq!((output.stdout == bytes, rows(&text(&output.stderr)).len()), (true, 1));
    let path = out.path().to_str().unwrap();
    for (options, row_count) in [
        (&["--out", path][..], 0),
        (&["--stats", "--out", path], 2),
        (&["--format=table", "--out", path], 2),
    ] {
        fs::write(out.path(), b"older").unwrap();
        let output = crate::output(&[&run[..], options, &["--subscribers", "2"]].concat());
        assert!(output.status.success() && text(&output.stderr).starts_with("completed: "));
        assert_eq!(fs::read(out.path()).unwrap(), bytes, "{options:?}");
        let stdout = text(&output.stdout);
        assert_eq!((rows(&stdout).len(), stdout.is_empty()), (row_count, row_count == 0));
    }
}

#[test]
fn ndjson_is_a_line_an_event_and_they_add_up() {
    let mut bytes = random_bytes(100_000);
    bytes[..50_000].fill(b'a'); // The first chunks are text, the others are not.
    let file = Temporary::new("ndjson", &bytes);
    let chunk_size = "--arg=chunk_size=1000";
    let run = ["run", "process_file", &file.argument(), chunk_size, "--format", "ndjson"];
    let output = output(&run);
    assert!(output.status.success());
    let events = events(&output.stdout);
    let (started, end) = (&events[0], events.last().unwrap());
    assert_eq!((&started["event"], &started["from_seq"]), (&"started".into(), &1.into()));
    assert_eq!((&started["tool"], &started["policy"]), (&"process_file".into(), &"block".into()));
    assert!(started["token"].as_str().unwrap().len() >= 32, "{started}");
    let chunks: Vec<&Value> = events.iter().filter(|event| event["event"] == "chunk").collect();
    let mut read = 0;
    for (at, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["seq"], at + 1);
        assert_eq!(chunk["offset"], read, "{chunk}");
        assert_eq!(chunk["kind"], "output");
        // The total travels beside the chunks, so the first chunks can overtake it.
        assert!(chunk["total_chunks"].is_null() || chunk["total_chunks"] == 100, "{chunk}");
        let is_text = chunk["encoding"] == "text";
        assert_eq!(is_text, at < 50, "{chunk}");
        let length = chunk["data"].as_str().unwrap().len();
        read += if is_text { length } else { 1_000.min(length) };
        assert_eq!(length, if is_text { 1_000 } else { 1_336 });
    }
    assert_eq!((chunks.len(), read), (100, 100_000));
    assert_eq!(events.iter().filter(|event| event["event"] == "end").count(), 1);
    assert_eq!((&end["state"], &end["chunks"]), (&"completed".into(), &100.into()), "{end}");
    assert_eq!((&end["bytes"], &end["missed_chunks"]), (&100_000.into(), &0.into()), "{end}");
    let progress: Vec<f64> = events.iter().filter_map(|e| e["percentage"].as_f64()).collect();
    assert!(progress.is_sorted() && progress.last() == Some(&100.0), "{progress:?}");
    let times: Vec<u64> = chunks.iter().filter_map(|chunk| chunk["mono_ns"].as_u64()).collect();
    assert!(times.len() == 100 && times.is_sorted());
    assert!(events.iter().all(|event| event["execution"] == started["execution"]));
}

#[test]
fn under_every_policy_what_was_given_and_missed_is_all_there_was() {
    for policy in ["drop", "drop_oldest", "buffer", "block", "conflate", "disconnect", "replay"] {
        let arguments = ["--arg=chunks=3000", "--arg=delay_ms=0", "--policy", policy];
        let run = ["run", "slow_data_processor", "--format=ndjson", "--subscribers=2"];
        let output = output(&[&run[..], &arguments].concat());
        let events = events(&output.stdout);
        let mut next_seq = 1;
        for event in &events {
            let (from, to) = match event["event"].as_str().unwrap() {
                "chunk" => (event["seq"].as_u64(), event["seq"].as_u64()),
                "gap" => (event["from_seq"].as_u64(), event["to_seq"].as_u64()),
                _ => continue,
            };
            assert_eq!(from, Some(next_seq), "{policy}: {event}");
            next_seq = to.unwrap() + 1;
        }
        let end = events.last().unwrap();
        let sum = end["chunks"].as_u64().unwrap() + end["missed_chunks"].as_u64().unwrap();
        assert_eq!(sum, next_seq - 1, "{policy}: {end}");
        match end["state"].as_str().unwrap() {
            "detached" => assert_eq!((policy, &end["reason"]), ("disconnect", &"lag".into())),
            state => assert_eq!((state, sum), ("completed", 3_000), "{policy}"),
        }
        if policy == "block" {
            assert_eq!(end["missed_chunks"], 0);
            let stderr = text(&output.stderr);
            assert!(stderr.starts_with("completed: 3,000 chunks, 300,000 bytes in"), "{stderr}");
            assert!(!stderr.contains("missed"), "{stderr}");
        }
    }
}

/// Starts a slow tool, and waits for its first chunk.
fn slow() -> (Child, BufReader<ChildStdout>) {
    let arguments = ["--arg=chunks=10000", "--arg=delay_ms=20", "--format=ndjson"];
    let mut command = program(&[&["run", "slow_data_processor"][..], &arguments].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("\"chunk\"") {
        line.clear();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended before its first chunk");
    }
    (child, stdout)
}

#[test]
fn an_interrupted_run_ends_in_order_and_is_still_reported() {
    for signal in ["INT", "TERM"] {
        let (child, mut stdout) = slow();
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "SIG{signal}: {stderr}");
        let end: Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
        assert_eq!((&end["event"], &end["state"]), (&"end".into(), &"cancelled".into()));
        let chunks = end["chunks"].as_u64().unwrap();
        let counted = if chunks == 1 { "1 chunk".to_owned() } else { format!("{chunks} chunks") };
        assert!(stderr.starts_with(&format!("cancelled: {counted}, ")), "{stderr}");
        assert!(stderr.contains("the execution was cancelled"), "{stderr}");
    }
}

#[test]
fn an_interrupt_ends_a_command_with_all_its_children() {
    // The command has two children that would stay. The mark in a command line identifies
    // survivors.
    let mark = format!("streamdoor-test-{}", std::process::id());
    let script = "sh -c 'sleep 1000' $0 & sleep 1000 & echo ready; wait";
    let arguments = serde_json::json!({"argv": ["sh", "-c", script, mark]}).to_string();
    let run = ["run", "run_command", "--allow-commands", "--args-json", &arguments];
    let mut command = program(&[&run[..], &["--format", "raw"]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let groups = groups_of(&mark);
    assert!(!groups.is_empty(), "the command runs");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("cancelled: 1 chunk, 6 bytes in "), "{stderr}");
    let left = || -> Vec<String> {
        processes().filter(|(_, group, _)| groups.contains(group)).map(|p| p.2).collect()
    };
    let mut attempts = 0..3_000; // A minute: a killed process takes a moment to disappear.
    while !left().is_empty() {
        assert!(attempts.next().is_some(), "{:?}", left());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn the_exit_code_of_a_failed_program_is_the_exit_code() {
    for (script, code, words) in [
        ("exit 0", 0, "completed: "),
        ("exit 2", 2, "the tool's program failed: exit code 2\n"),
        ("exit 77", 77, "the tool's program failed: exit code 77\n"),
        ("kill -9 $$", 137, "the tool's program failed: killed by signal 9 (SIGKILL)\n"),
    ] {
        let arguments = serde_json::json!({"argv": ["sh", "-c", script]}).to_string();
        let run = ["run", "run_command", "--allow-commands", "--args-json", &arguments];
        let output = program(&run).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{script}: {stderr}");
        assert!(stderr.contains(words), "{script}: {stderr}");
    }
    // The program's own exit code 2 has another text.
    let output = program(&["run", "run_command"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!text(&output.stderr).contains("the tool's program"), "{output:?}");
}

/// Returns the number, group and command line of every process that is no zombie.
fn processes() -> impl Iterator<Item = (u32, u32, String)> {
    let folders = std::fs::read_dir("/proc").unwrap().flatten();
    folders.filter_map(|folder| {
        let pid = folder.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(folder.path().join("stat")).ok()?;
        let mut fields = stat[stat.rfind(')')? + 2..].split(' ');
        let (state, _parent, group) = (fields.next()?, fields.next()?, fields.next()?);
        let command = std::fs::read(folder.path().join("cmdline")).ok()?;
        (state != "Z").then_some((pid, group.parse().ok()?, text(&command).replace('\0', " ")))
    })
}

/// Returns the process groups of the command lines that contain `mark`, except the program's own.
fn groups_of(mark: &str) -> Vec<u32> {
    let marked = processes().filter(|(_, _, command)| command.contains(mark));
    marked.filter(|(.., command)| !command.contains("--args-json")).map(|p| p.1).collect()
}

#[test]
fn a_second_interrupt_ends_the_program_although_its_reader_does_not_read() {
    let file = Temporary::new("second", &vec![0; 8 << 20]);
    let mut command = program(&["run", "process_file", &file.argument(), "--out", "-"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap(); // It runs, and will wait for the pipe.
    let pid = child.id().to_string();
    let mut attempts = 0..500; // Ten seconds.
    let code = loop {
        if attempts.next().is_none() {
            child.kill().unwrap();
            panic!("interrupts have no effect");
        }
        // Two pending signals can merge into one, so another is sent until the program ends.
        assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
        std::thread::sleep(std::time::Duration::from_millis(20));
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
    };
    assert_eq!(code, Some(1));
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(stderr.contains("interrupted again"), "{stderr}");
}

#[test]
fn a_reader_who_leaves_ends_the_run_quietly() {
    let file = Temporary::new("pipe", &b"a line\n".repeat(2 << 20));
    for options in [&["--format", "raw"][..], &["--format", "ndjson", "--subscribers", "3"]] {
        let run = ["run", "process_file", &file.argument()];
        let mut command = program(&[&run[..], options].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let output = child.wait_with_output().unwrap(); // The pipe is closed, as by `head -1`.
        assert_eq!(output.status.code(), Some(0), "{options:?}");
        assert_eq!(text(&output.stderr), "", "{options:?}");
    }
}

#[test]
fn a_full_device_is_a_failure_that_names_the_file() {
    let file = Temporary::new("full", &vec![b'a'; 1 << 20]);
    let output = output(&["run", "process_file", &file.argument(), "--out", "/dev/full"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("--out /dev/full: No space left"), "{stderr}");
}

#[test]
fn bad_usage_names_what_is_wrong_and_exits_with_2() {
    let cases: [(&[&str], &str); 21] = [
        (&["run"], "no tool is given"),
        (&["run", "nothing"], "unknown tool `nothing`; the tools are:"),
        (&["run", "slow_data_processor", "more"], "more"),
        (&["run", "slow_data_processor", "--arg", "chunks"], "--arg chunks: must be KEY=VALUE"),
        (&["run", "slow_data_processor", "--arg", "chunks=-1"], "argument `chunks`"),
        (&["run", "slow_data_processor", "--arg", "chunks=ten"], "argument `chunks`"),
        (
            &["run", "slow_data_processor", "--arg", "chunk=1"],
            "argument `chunk` is unknown; did you mean chunks? The arguments are:",
        ),
        (
            &["run", "slow_data_procesor"],
            "unknown tool `slow_data_procesor`; did you mean slow_data_processor? The tools are:",
        ),
        (&["run", "process_file"], "argument `file_path`: is missing"),
        (&["run", "process_file", "--arg", "file_path="], "argument `file_path`"),
        (&["run", "process_file", "--args-json", "[]"], "--args-json"),
        (&["run", "process_file", "--args-json", "{"], "--args-json"),
        (&["run", "process_file", "--args-json", "{\"file_path\": 1}"], "argument `file_path`"),
        (&["run", "slow_data_processor", "--policy", "polite"], "unknown policy"),
        (&["run", "slow_data_processor", "--subscribers", "0"], "--subscribers"),
        (&["run", "slow_data_processor", "--max-chunks", "9999999"], "--max-chunks"),
        (&["run", "slow_data_processor", "--timeout", "30"], "--timeout 30: must be"),
        (&["run", "slow_data_processor", "--format", "xml"], "--format xml: must be"),
        (&["run", "slow_data_processor", "--format", "table", "--out", "-"], "--out -"),
        (&["tools", "nothing"], "unknown tool `nothing`"),
        (&["tools", "--frobnicate"], "--frobnicate"),
    ];
    for (arguments, words) in cases {
        let output = output(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words) && output.stdout.is_empty(), "{arguments:?}: {stderr}");
    }
}

#[test]
fn bad_usage_leaves_an_older_output_file_alone() {
    let out = Temporary::new("older", b"precious");
    let path = out.path().to_str().unwrap();
    let output = output(&["run", "slow_data_processor", "--arg=chunks=x", "--out", path]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read(out.path()).unwrap(), b"precious");
}

#[test]
fn what_can_not_be_read_fails_with_its_name_and_nothing_else() {
    let file = Temporary::new("unreadable", b"secret");
    fs::set_permissions(file.path(), Permissions::from_mode(0o000)).unwrap();
    let is_root = File::open(file.path()).is_ok();
    if is_root {
        println!("not run: root reads every file");
    }
    let name = file.path().to_str().unwrap();
    let cases = [("/nonexistent/file", "No such file"), ("/", "is a directory")];
    for (path, problem) in cases.into_iter().chain((!is_root).then_some((name, "denied"))) {
        let output = output(&["run", "process_file", "--arg", &format!("file_path={path}")]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(path) && stderr.contains(problem), "{stderr}");
        assert!(stderr.lines().count() == 1 && output.stdout.is_empty(), "{stderr}");
    }
}

/// Streams a file and returns all bytes received. Changes the file after the first bytes, while the
/// full pipe holds the tool back.
fn changed_on_the_way(file: &Temporary, change: impl FnOnce(&Path)) -> Vec<u8> {
    let mut command = program(&["run", "process_file", &file.argument(), "--out=-"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut received = vec![0; 1 << 20];
    stdout.read_exact(&mut received).unwrap();
    change(file.path());
    stdout.read_to_end(&mut received).unwrap();
    assert!(child.wait().unwrap().success());
    received
}

#[test]
fn a_file_that_grows_is_read_to_its_new_end() {
    let (mut bytes, more) = (random_bytes(8 << 20), random_bytes(1 << 20));
    let file = Temporary::new("grows", &bytes);
    let received = changed_on_the_way(&file, |path| {
        File::options().append(true).open(path).unwrap().write_all(&more).unwrap();
    });
    bytes.extend_from_slice(&more);
    assert!(received == bytes, "{} bytes of {}", received.len(), bytes.len());
}

#[test]
fn a_file_that_vanishes_is_read_to_its_end_and_one_that_is_cut_to_there() {
    let bytes = random_bytes(8 << 20);
    let file = Temporary::new("vanishes", &bytes);
    let received = changed_on_the_way(&file, |path| fs::remove_file(path).unwrap());
    assert!(received == bytes, "{} bytes of {}", received.len(), bytes.len());
    let file = Temporary::new("shrinks", &bytes);
    let received = changed_on_the_way(&file, |path| {
        File::options().write(true).open(path).unwrap().set_len(1 << 20).unwrap();
    });
    assert!(received.len() < bytes.len() && bytes.starts_with(&received));
}

#[test]
fn progress_is_told_without_a_terminal_where_it_is_asked_for() {
    let run = ["run", "slow_data_processor", "--arg=chunks=5", "--arg=delay_ms=0"];
    let quiet = output(&run);
    assert!(!text(&quiet.stderr).contains("progress:"));
    let told = output(&[&run[..], &["--progress"]].concat());
    let stderr = text(&told.stderr);
    assert!(stderr.contains("progress: 100 % (5 of 5), 500 bytes"), "{stderr}");
    assert!(!stderr.contains('\x1b'), "{stderr}");
}

#[test]
fn a_timeout_ends_the_run_with_its_reason() {
    let cases: [(&[&str], &str); 2] = [
        (&["--arg=chunks=2", "--timeout=2s"], "within 2s"),
        (&["--arg=chunks=2", "--inactivity-timeout=1s"], "within 1s"),
    ];
    for (options, words) in cases {
        let run = ["run", "slow_data_processor", "--arg=delay_ms=3600000"];
        let output = output(&[&run[..], options].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with("timed_out: 1 chunk, 100 bytes in "), "{stderr}");
        assert!(stderr.lines().last().unwrap().contains(words), "{stderr}");
    }
}

#[test]
fn tools_are_listed_in_words_and_as_json() {
    let words = text(&output(&["tools"]).stdout);
    for word in ["process_file", "file_path", "required", "slow_data_processor", "default 200"] {
        assert!(words.contains(word), "{word}: {words}");
    }
    let one = text(&output(&["tools", "process_file"]).stdout);
    assert!(one.contains("file_path") && !one.contains("slow_data_processor"), "{one}");
    let all: Value = serde_json::from_slice(&output(&["tools", "--json"]).stdout).unwrap();
    let names: Vec<&str> =
        all.as_array().unwrap().iter().flat_map(|t| t["name"].as_str()).collect();
    assert!(names.is_sorted() && names.contains(&"process_file"), "{names:?}");
    for tool in all.as_array().unwrap() {
        assert_eq!(tool["input_schema"]["type"], "object", "{tool}");
        assert!(!tool["description"].as_str().unwrap().is_empty(), "{tool}");
    }
}
