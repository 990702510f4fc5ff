//! `streamdoor serve` as a process: its log at the start, its stop, and its refusals.
#![cfg(feature = "cli")]

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

/// A server that logs JSON, on a port that the kernel chose.
struct Server {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let mut command = Command::new(PROGRAM);
        command
            .args(["serve", "--journal", "off", "--log", "json", "--listen", "127.0.0.1:0"])
            .args(arguments);
        Server::of(command)
    }

    fn of(mut command: Command) -> Server {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Server { child, log }
    }

    fn next(&mut self) -> Option<Value> {
        let line = self.log.next()?.unwrap();
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}")))
    }

    /// Reads the log up to and including the first event of that name, and returns the records.
    fn until(&mut self, event: &str) -> Vec<Value> {
        let mut records = Vec::new();
        while records.last().is_none_or(|record: &Value| record["event"] != event) {
            records.push(self.next().unwrap_or_else(|| panic!("no {event} after {records:?}")));
        }
        records
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Waits for the end. Returns the exit code and the standard output.
    fn end(mut self) -> (Option<i32>, String) {
        let mut printed = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        (self.child.wait().unwrap().code(), printed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It still runs only if a test has failed.
        let _ = self.child.wait();
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg("serve").args(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refusal(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

/// A temporary file that is removed when the value is dropped.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let name = format!("streamdoor-serve-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        File(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns a whole response as received.
fn get(port: &str, path: &str, accept: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_those_of_all_shards_whichever_is_asked() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        println!("not run: there is only one core");
        return;
    }
    let mut server = Server::start(&["--cpus", "0,1", "--idle", "block", "--log-level", "debug"]);
    let listening = server.until("listening").pop().unwrap();
    let port = listening["address"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    for _ in 0..10 {
        let answer = get(&port, "/metrics", "application/openmetrics-text;version=1.0.0");
        assert!(answer.contains("application/openmetrics-text; version=1.0.0"), "{answer}");
        assert!(answer.ends_with("# EOF\n"), "{answer}");
        for shard in ["0", "1"] {
            let sample =
                format!("\nstreamdoor_executions{{shard=\"{shard}\",state=\"running\"}} 0");
            assert!(answer.contains(&sample), "{sample} in {answer}");
        }
    }
    let opened = server.until("connection_opened").pop().unwrap();
    assert!(opened["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{opened}");
    server.until("connection_closed");
    server.signal("TERM");
    server.until("stopped");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn it_says_what_it_found_then_listens_and_ends_in_order() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&["--idle", "block"]);
        let records = server.until("listening");
        let events: Vec<&str> =
            records.iter().map(|record| record["event"].as_str().unwrap()).collect();
        assert_eq!(events, ["started", "shard", "bill", "listening"]);
        assert_eq!(records[0]["pid"], server.child.id());
        assert!(records[1]["report"].as_str().unwrap().contains("reactor"), "{}", records[1]);
        assert!(records[2]["report"].as_str().unwrap().contains("descriptors"), "{}", records[2]);
        let address = records[3]["address"].as_str().unwrap();
        let address = address.strip_prefix("http://127.0.0.1:").unwrap();
        assert_ne!(address, "0");
        let answer = get(address, "/metrics", "text/plain");
        assert!(answer.contains("\nstreamdoor_connections{shard=\"0\"} 1\n"), "{answer}");
        assert!(answer.contains("version=0.0.4"), "{answer}");
        server.signal(signal);
        let stopping = server.until("stopping").pop().unwrap();
        assert_eq!(stopping["deadline_s"], 10);
        server.until("stopped");
        assert_eq!(server.next(), None);
        assert_eq!(server.end(), (Some(0), String::new()));
    }
}

/// The second signal may come before or after the first has had its effect.
#[test]
fn a_second_signal_is_no_failure_either() {
    for _ in 0..5 {
        let mut server = Server::start(&["--drain-deadline", "60m"]);
        server.until("listening");
        server.signal("TERM");
        server.signal("INT");
        let mut last = Value::Null;
        while let Some(record) = server.next() {
            last = record["event"].clone();
        }
        assert!(
            ["stopped", "stopping", "stopped_at_once"].iter().any(|end| last == *end),
            "{last}"
        );
        assert_eq!(server.end().0, Some(0));
    }
}

#[test]
fn it_listens_on_several_addresses_and_unix_sockets() {
    let path = File::new("socket", "");
    std::fs::remove_file(path.path()).unwrap();
    let unix = format!("unix:{}", path.path());
    let mut server = Server::start(&["--listen", &unix, "--log_level=info", "--reactor", "mio"]);
    let records = server.until("listening");
    assert!(records.iter().any(|record| {
        record["event"] == "shard" && record["report"].as_str().unwrap().contains("mio")
    }));
    assert_eq!(server.until("listening")[0]["address"], unix);
    std::os::unix::net::UnixStream::connect(path.path()).unwrap();
    server.signal("TERM");
    server.until("stopped");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn fewer_descriptors_are_fewer_connections_and_it_says_so() {
    let limited = |count: u32| {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {count} && exec \"$0\" \"$@\"");
        command.args([
            "-c",
            &script,
            PROGRAM,
            "serve",
            "--journal",
            "off",
            "--listen",
            "127.0.0.1:0",
        ]);
        command
    };
    let mut command = limited(300);
    command.args(["--log", "json"]);
    let mut server = Server::of(command);
    let records = server.until("listening");
    let bill = &records[records.len() - 2];
    assert_eq!((&bill["event"], &bill["level"]), (&"bill".into(), &"warn".into()));
    let report = bill["report"].as_str().unwrap();
    assert!(report.contains("300 allowed"), "{report}");
    assert_eq!(bill["connections_max"], 75);
    assert!(report.contains("75 for connections instead of 16384"), "{report}");
    server.signal("TERM");
    server.until("stopped");
    assert_eq!(server.end().0, Some(0));

    let output = limited(64).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("64 descriptors") && said.contains("ulimit -n"), "{said}");
}

#[test]
fn other_processes_of_its_user_cannot_look_into_it() {
    let mut command = Command::new(PROGRAM);
    command
        .args(["serve", "--journal", "off", "--log", "json", "--listen", "127.0.0.1:0"])
        .current_dir("/");
    // Root's own processes prove nothing: their files are root's in any case.
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if is_root {
        command.uid(65_534);
        if Command::new(PROGRAM).arg("--version").uid(65_534).output().is_err() {
            println!("not run: nobody may not run {PROGRAM}");
            return;
        }
    }
    let mut server = Server::of(command);
    server.until("listening");
    // proc(5): the files of a process that is not dumpable belong to root.
    let environ = std::fs::metadata(format!("/proc/{}/environ", server.child.id())).unwrap();
    assert_eq!(environ.uid(), 0);
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn processors_are_kept_out_of_deep_sleep_or_it_says_what_is_missing() {
    const DEVICE: &str = "/dev/cpu_dma_latency";
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE);
    if let Ok(mut device) = opened {
        let mut server = Server::start(&["--poll-idle"]);
        let records = server.until("listening");
        assert!(records.iter().any(|record| record["event"] == "poll_idle"), "{records:?}");
        let mut held_us = [1; 4]; // The lowest value of all holders.
        device.read_exact(&mut held_us).unwrap();
        assert_eq!(i32::from_ne_bytes(held_us), 0);
        server.signal("TERM");
        server.until("stopped");
        assert_eq!(server.end().0, Some(0));
    }
    let mut command = Command::new(PROGRAM);
    command
        .args(["serve", "--journal", "off", "--poll-idle", "--listen", "127.0.0.1:0"])
        .current_dir("/");
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(65_534);
        if Command::new(PROGRAM).arg("--version").uid(65_534).output().is_err() {
            println!("not run: nobody may not run {PROGRAM}");
            return;
        }
    } else if std::fs::File::options().write(true).open(DEVICE).is_ok() {
        return; // This user may open the device.
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("poll_idle: ") && said.contains(DEVICE), "{said}");
}

#[test]
fn settings_come_from_a_file_and_the_command_line_and_are_printed_as_a_file() {
    let defaults = printed(&["--print-config"]);
    assert!(defaults.contains("\nlisten = [\"127.0.0.1:8808\"]\n"), "{defaults}");
    let file =
        File::new("settings", "spin = \"5us\" # short\nlog = \"json\"\nallow_commands = \"ls\"");
    let arguments = ["--config", file.path(), "--log=text", "--cpus", "0", "--print-config"];
    let effective = printed(&arguments);
    for line in ["spin = \"5us\"", "log = \"text\"", "allow_commands = [\"ls\"]", "cpus = \"0\""] {
        assert!(effective.lines().any(|other| other == line), "{line} in\n{effective}");
    }
    let again = File::new("again", &effective);
    assert_eq!(printed(&["--print-config", "--config", again.path()]), effective);
}

#[test]
fn what_is_wrong_is_refused_with_its_name_and_place() {
    let file = File::new("unknown", "log = \"text\"\nspin_ms = 5\n");
    let said = refusal(&["--config", file.path()], 2);
    let expected = "line 2: \"spin_ms\": unknown setting; did you mean `spin`?";
    assert!(said.contains(expected) && said.contains(file.path()), "{said}");
    let said = refusal(&["--spin-ms", "5"], 2);
    assert!(said.contains("unknown option --spin-ms; did you mean --spin?"), "{said}");
    for (arguments, expected) in [
        (&["--idle", "rest"][..], "--idle rest: "),
        (&["--executions-max", "0"], "--executions-max 0: must be a whole number from 1 to"),
        (&["--listen", "localhost:1"], "ADDRESS:PORT"),
        (&["--allow-commands="], "--allow-commands : must not be empty"),
        (&["--config", "/nowhere/at/all"], "--config /nowhere/at/all: "),
        (&["--cpus", "0,0"], "--cpus 0,0: core 0 is given twice"),
        (&["more"], "more"),
    ] {
        let said = refusal(arguments, 2);
        assert!(said.contains(expected), "{said}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = refusal(&["--listen", &address], 1);
    assert!(said.contains(&address) && said.contains("already"), "{said}");
}

#[test]
fn the_help_text_tells_of_every_setting() {
    let help = printed(&["--help"]);
    for line in printed(&["--print-config"]).lines() {
        if let Some((name, _)) = line.split_once(" = ") {
            assert!(help.contains(&format!("--{} ", name.replace('_', "-"))), "{name}");
        }
    }
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
}
