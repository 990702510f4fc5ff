//! `streamdoor top` on a pseudo terminal and in a pipe. It shows the state of a real server and
//! restores the terminal. Texts of a server cannot control the terminal.
#![cfg(feature = "cli")]

mod fake;
#[path = "../pty/mod.rs"]
mod pty;
#[path = "../served/mod.rs"]
mod served;

use std::process::Command;

use fake::Fake;
use pty::Terminal;
use serde_json::json;
use served::Server;

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

fn top(url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.args(["top", url, "--interval", "50ms"]).env("TERM", "xterm").env_remove("NO_COLOR");
    command
}

fn url(server: &Server) -> String {
    format!("http://{}", server.address())
}

/// The chunks per second in a row of an execution. 0 if the row shows none.
fn rate(row: &str) -> f64 {
    let cells =
        row.split_once("slow_data_proces").and_then(|(_, cells)| cells.split_once("running"));
    let rate = cells.and_then(|(_, cells)| cells.split_whitespace().next()?.parse().ok());
    rate.unwrap_or(0.0)
}

/// Removes the control sequences of the view itself.
fn without_own_sequences(text: &str) -> String {
    let mut text = text.to_owned();
    for own in [
        "\x1b[?1049h",
        "\x1b[?1049l",
        "\x1b[?25h",
        "\x1b[?25l",
        "\x1b[?7h",
        "\x1b[?7l",
        "\x1b[H",
        "\x1b[K",
        "\x1b[J",
        "\x1b[7m",
        "\x1b[1m",
        "\x1b[2m",
        "\x1b[31m",
        "\x1b[m",
        "\r",
        "\n",
    ] {
        text = text.replace(own, "");
    }
    text
}

#[test]
fn it_shows_what_runs_and_gives_the_terminal_back() {
    let server = Server::start(&["--idle", "block"]);
    let body =
        json!({"tool": "slow_data_processor", "arguments": {"chunks": 1_000_000, "delay_ms": 2}});
    let events = server.execute(&body);
    let _follower = server.follow(&events);
    let terminal = Terminal::open(160, 24);
    let before = terminal.modes();
    for way_out in ["q", "\x03", "TERM", "HUP", "INT", "QUIT"] {
        terminal.forget();
        let program = terminal.start(&mut top(&url(&server)));
        // The first frame does not count, because it has no rate yet.
        terminal.wait("a rate", |text| {
            let last = text.rsplit("\x1b[H").find(|frame| frame.ends_with("\x1b[J"));
            last.is_some_and(|frame| frame.lines().any(|row| rate(row) > 0.0))
        });
        assert_ne!(terminal.modes(), before, "keys are still echoed");
        match way_out.len() {
            1 => terminal.press(way_out.as_bytes()),
            _ => program.signal(way_out),
        }
        assert_eq!(program.end().code(), Some(0), "{way_out}");
        assert_eq!(terminal.modes(), before, "{way_out}");
        let text = terminal.wait("the old screen", |text| text.ends_with(LEAVE));
        assert_eq!((text.matches(ENTER).count(), text.matches(LEAVE).count()), (1, 1));
        assert!(text.contains("published") && text.contains("P99"), "{text}");
    }
}

#[test]
fn it_stops_and_goes_on_with_the_terminal_in_order() {
    let server = Server::start(&["--idle", "block"]);
    let terminal = Terminal::open(100, 20);
    let before = terminal.modes();
    for key in [true, false] {
        terminal.forget();
        let program = terminal.start(&mut top(&url(&server)));
        terminal.wait("a frame", |text| text.contains("no executions"));
        match key {
            true => terminal.press(b"\x1a"),
            false => program.signal("TSTP"),
        }
        program.wait_for_state('T');
        assert_eq!(terminal.modes(), before);
        terminal.wait("the old screen", |text| text.ends_with(LEAVE));
        program.signal("CONT");
        terminal.wait("its own again", |text| text.matches(ENTER).count() == 2);
        terminal.press(b"q");
        assert_eq!(program.end().code(), Some(0));
        assert_eq!(terminal.modes(), before);
    }
}

#[test]
fn it_follows_the_size_of_the_terminal() {
    let server = Server::start(&["--idle", "block"]);
    let terminal = Terminal::open(120, 30);
    let program = terminal.start(&mut top(&url(&server)));
    terminal.wait("a frame", |text| text.contains("no executions"));
    for (columns, lines) in [(40, 6), (1, 1), (200, 50)] {
        terminal.resize(columns, lines);
        program.signal("WINCH");
        terminal.forget();
        let fits = |frame: &str| {
            let plain = frame.replace('\r', "");
            let rows = plain.split('\n').map(|row| without_own_sequences(row).chars().count());
            rows.clone().count() <= lines.into() && rows.max().unwrap_or(0) <= columns.into()
        };
        terminal.wait("a frame that fits", |text| {
            let mut frames = text.rsplit("\x1b[H").filter(|frame| frame.ends_with("\x1b[J"));
            frames.next().is_some_and(fits)
        });
    }
    terminal.press(b"q");
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn no_server_commands_the_terminal_and_one_that_goes_is_told_of() {
    let fake = Fake::start();
    let terminal = Terminal::open(150, 24);
    let program = terminal.start(&mut top(&fake.url()));
    let text = terminal.wait("the execution", |text| text.contains("00000000000000000000000000"));
    let foreign = without_own_sequences(&text);
    // The last frame may be incomplete.
    let foreign = foreign.trim_end_matches(|c: char| c == '\x1b' || "[?1049".contains(c));
    assert!(foreign.chars().all(|c| !c.is_control() && c != '\u{202e}'), "{foreign:?}");
    assert!(foreign.contains("evil"), "{foreign:?}");
    drop(fake);
    terminal.wait("that it is gone", |text| text.contains("**"));
    terminal.press(b"q");
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn in_a_pipe_it_looks_twice_and_prints_what_it_has_seen() {
    let name = format!("streamdoor-top-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let unix = format!("unix:{}", path.display());
    let server = Server::start(&["--listen", &unix]);
    let body =
        json!({"tool": "slow_data_processor", "arguments": {"chunks": 1_000_000, "delay_ms": 2}});
    let _follower = server.follow(&server.execute(&body));
    let door = path.display().to_string();
    for arguments in [&[unix.as_str()][..], &["--door", &door], &[&url(&server), "--once"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        let output = command.args(["top", "--interval", "1s"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains('\x1b'), "{text}");
        assert!(text.lines().any(|row| rate(row) > 0.0), "{text}");
        assert!(text.contains("executions   1 running"), "{text}");
        assert!(text.contains("pressure "), "{text}");
        assert!(text.contains("\nstalls       ") && text.contains(" since the start"), "{text}");
    }
    drop(server);
    let _ = std::fs::remove_file(&path); // A killed server leaves the file.
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    let output = command.args(["top", "--door", &door]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
}
