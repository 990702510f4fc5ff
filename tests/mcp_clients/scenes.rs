//! The commands for each client, and their expected results.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::driver::{Called, Driver};
use crate::served::Server;

const CHUNKS: u64 = 20;
const CHUNK_BYTES: u64 = 40;
/// Number of calls that run at once.
const CALLS: u64 = 50;
/// Time that a command works before it writes its file.
const WORK: Duration = Duration::from_secs(4);

/// The transport between a client and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Http,
    Stdio,
}

/// One way to run a client.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// `legacy`, `auto` or a version.
    pub mode: &'static str,
    pub transport: Transport,
    /// True if the client may lose notifications that come together with a reply. A delay before
    /// the reply prevents the loss.
    pub is_hasty: bool,
}

impl Way {
    /// True if the protocol version has a handshake.
    fn is_legacy(self) -> bool {
        self.mode == "legacy"
    }
}

/// A server, and the folder in which commands write their files.
pub struct House {
    pub server: Server,
    folder: PathBuf,
    /// Files that a stopped command must not have written, each with what stopped it.
    forbidden: Vec<(String, PathBuf)>,
}

impl House {
    pub fn new(name: &str) -> House {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("mcp-clients-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let root = folder.to_str().unwrap().to_owned();
        let server =
            Server::start(&["--conformance", "--allow-commands", "sh", "--files-root", &root]);
        House { server, folder, forbidden: Vec::new() }
    }

    /// The arguments with which a client reaches the server over this transport.
    fn target(&self, way: Way, settle_ms: u32) -> Vec<String> {
        let root = self.folder.to_str().unwrap();
        match way.transport {
            Transport::Http => vec![format!("http://{}/mcp", self.server.address())],
            Transport::Stdio => {
                let program = env!("CARGO_BIN_EXE_streamdoor");
                let settle = format!("{settle_ms}ms");
                ["--", program, "stdio", "--stdio-settle", &settle, "--allow-commands", "sh"]
                    .into_iter()
                    .chain(["--builtin", "all", "--files-root", root])
                    .map(str::to_owned)
                    .collect()
            }
        }
    }

    /// Arguments of a command that prints a line, works for [`WORK`], and writes this file.
    fn work(&self, file: &Path) -> Value {
        let seconds = WORK.as_secs();
        let script = format!("echo started; sleep {seconds}; echo late > {}", file.display());
        json!({"argv": ["sh", "-c", script], "cwd": self.folder})
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Checks that no stopped command has gone on.
    fn assert_stopped(&self) {
        if !self.forbidden.is_empty() {
            std::thread::sleep(WORK + WORK / 2);
        }
        for (who, file) in &self.forbidden {
            assert!(!file.exists(), "{who}: its work has gone on");
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs all scenes with a client, in all of its ways. `command` gives the program, to which the
/// mode and the target are added.
pub fn play(name: &str, ways: &[Way], command: impl Fn() -> Command) {
    let mut house = House::new(name);
    for &way in ways {
        let who = format!("{name} {} {:?}", way.mode, way.transport);
        let start = |house: &House, settle_ms| {
            let mut command = command();
            command.arg(way.mode).args(house.target(way, settle_ms));
            Driver::start(&who, &mut command)
        };
        // A hasty client must have read the last notification before its reply comes.
        let mut driver = start(&house, if way.is_hasty { 1_000 } else { 25 });
        let version = if way.is_legacy() { "2025-11-25" } else { "2026-07-28" };
        assert_eq!(driver.connect(), version, "{who}");
        lists(&who, &mut driver);
        is_told_everything(&who, &mut driver, way);
        is_cancelled(&who, &mut driver, &mut house);
        calls_many_at_once(&who, &mut driver);
        driver.close();
        comes_back(&who, &mut driver, way);
        driver.close();
        driver.assert_quiet(way.transport == Transport::Stdio && way.is_hasty);
        driver.connect();
        is_killed(&who, driver, &mut house, way);
        if way.transport == Transport::Stdio && way.is_hasty {
            let mut driver = start(&house, 0);
            driver.connect();
            is_told_in_order(&who, &mut driver);
            driver.close(); // Not quiet: it reports what it has dropped.
        }
    }
    house.assert_stopped();
}

fn lists(who: &str, driver: &mut Driver) {
    let tools = driver.tools();
    for name in ["run_command", "slow_data_processor", "stream_open", "stream_read"] {
        assert!(tools.iter().any(|tool| tool == name), "{who}: no {name} in {tools:?}");
    }
    assert!(tools.is_sorted(), "{who}: {tools:?}");
}

fn slow() -> Value {
    json!({"chunks": CHUNKS, "delay_ms": 5, "chunk_size": CHUNK_BYTES})
}

fn chunk(seq: u64) -> String {
    let text = format!("chunk {seq} of {CHUNKS} ");
    format!("{text:.<width$}\n", width = CHUNK_BYTES as usize - 1)
}

/// Checks what holds for every call with progress: the result is whole, and the progress only
/// grows.
fn assert_whole(who: &str, called: &Called) {
    let whole: String = (1..=CHUNKS).map(chunk).collect();
    assert_eq!((called.failed, &called.text), (false, &whole), "{who}");
    let token = called.meta["progressToken"].as_str().unwrap_or_default();
    assert!(token.len() >= 32, "{who}: {}", called.meta);
    assert!(called.meta["dev.streamdoor/execution"].is_string(), "{who}: {}", called.meta);
    for pair in called.progress.windows(2) {
        assert!(pair[0].progress < pair[1].progress, "{who}: {:?}", called.progress);
    }
    for told in &called.progress {
        assert!(told.total.is_none_or(|total| total == CHUNKS as f64), "{who}: {told:?}");
    }
}

fn is_told_everything(who: &str, driver: &mut Driver, way: Way) {
    let called = driver.call("slow_data_processor", slow());
    assert_whole(who, &called);
    let told: String = called.progress.iter().map(|told| told.message.as_str()).collect();
    match way.transport {
        Transport::Http => assert_eq!(told, called.text, "{who}: {:?}", called.progress),
        Transport::Stdio => {
            // The last chunk may be in the result only.
            let without_last = called.text.len() - CHUNK_BYTES as usize;
            let is_beginning = called.text.starts_with(&told) && told.len() >= without_last;
            assert!(is_beginning, "{who}: {:?}", called.progress);
        }
    }
}

/// Without a pause before the reply, notifications may be lost but not reordered.
fn is_told_in_order(who: &str, driver: &mut Driver) {
    let called = driver.call("slow_data_processor", slow());
    assert_whole(who, &called);
    let mut rest = called.text.as_str();
    for told in &called.progress {
        let at = rest.find(&told.message);
        let at = at.unwrap_or_else(|| panic!("{who}: {told:?} in {:?}", called.progress));
        rest = &rest[at + told.message.len()..];
    }
}

fn is_cancelled(who: &str, driver: &mut Driver, house: &mut House) {
    let file = house.file(&format!("{who} cancelled").replace(' ', "-"));
    let call = driver.begin("run_command", house.work(&file));
    driver.hear(call, "started");
    driver.cancel(call);
    let error = driver.error(call);
    assert!(!error.is_empty(), "{who}");
    house.forbidden.push((format!("{who}, cancelled"), file));
}

fn calls_many_at_once(who: &str, driver: &mut Driver) {
    // The length of a result identifies its call.
    let given = |number: u64| json!({"chunks": 1, "delay_ms": 0, "chunk_size": 20 + number});
    let calls: Vec<u64> =
        (0..CALLS).map(|number| driver.begin("slow_data_processor", given(number))).collect();
    for (number, call) in calls.into_iter().enumerate() {
        let called = driver.finish(call);
        assert_eq!(called.text.len(), 20 + number, "{who}: {called:?}");
    }
}

fn comes_back(who: &str, driver: &mut Driver, way: Way) {
    driver.connect();
    let called = driver.call("slow_data_processor", slow());
    assert_whole(who, &called);
    if way.is_legacy() && way.transport == Transport::Http {
        // The server closes the stream of this call. The client fetches the result on another
        // stream.
        let called = driver.call("test_reconnection", json!({}));
        assert_eq!(called.text, "Reconnection test completed successfully.", "{who}");
    }
}

/// A lost connection stops a call of the stateless era, and every call over standard streams. With
/// a handshake over HTTP, the call goes on.
fn is_killed(who: &str, mut driver: Driver, house: &mut House, way: Way) {
    let file = house.file(&format!("{who} killed").replace(' ', "-"));
    let call = driver.begin("run_command", house.work(&file));
    driver.hear(call, "started");
    driver.kill();
    if way.is_legacy() && way.transport == Transport::Http {
        while !file.exists() {
            std::thread::sleep(Duration::from_millis(20));
        }
    } else {
        house.forbidden.push((format!("{who}, killed"), file));
    }
}
