//! Screens of `streamdoor top`, `run` and `agent` on terminals of several widths and kinds. A
//! terminal emulator draws them, and the test compares them with the screens that are kept in
//! `kept/`. `UPDATE_SCREENS=1 cargo test --all-features --test screens` keeps the present ones.
//!
//! Times and rates differ at each run. They are replaced before the screen is drawn.
#![cfg(feature = "cli")]

mod documents;
#[path = "../top/fake.rs"]
mod fake;
mod kept;
#[path = "../pty/mod.rs"]
mod pty;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use fake::Fake;
use kept::{Kept, drawn};
use pty::Terminal;

const COLUMNS: [u16; 4] = [40, 60, 80, 120];
const LINES: u16 = 24;

/// The kinds of terminals: a name, `TERM`, and `NO_COLOR`.
const KINDS: [(&str, &str, &str); 4] = [
    ("TERM=xterm-256color", "xterm-256color", ""),
    ("TERM=xterm-256color NO_COLOR=1", "xterm-256color", "1"),
    ("TERM=dumb", "dumb", ""),
    ("TERM=", "", ""),
];

fn program(arguments: &[&str], term: &str, no_color: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.args(arguments).env("TERM", term).env("NO_COLOR", no_color);
    command
}

/// Runs the program to its end and returns its output.
fn output(columns: u16, mut command: Command, code: i32) -> String {
    let terminal = Terminal::open(columns, LINES);
    let program = terminal.start(&mut command);
    assert_eq!(program.end().code(), Some(code), "{}", terminal.text());
    terminal.whole_text()
}

/// Replaces the port of a server, which differs at each run.
fn without_port(text: &str, url: &str) -> String {
    let (address, port) = url.rsplit_once(':').unwrap();
    text.replace(url, &format!("{address}:{}", "0".repeat(port.len())))
}

/// Compares the screens of a program that ends by itself. `url` is in its arguments or empty.
fn screens_of(name: &str, arguments: &[&str], url: &str, code: i32) {
    let mut kept = Kept::new(name);
    for (kind, term, no_color) in KINDS {
        let texts = std::thread::scope(|scope| {
            let run = |columns| move || output(columns, program(arguments, term, no_color), code);
            let runs = COLUMNS.map(|columns| (columns, scope.spawn(run(columns))));
            runs.map(|(columns, run)| (columns, run.join().unwrap()))
        });
        for (columns, text) in texts {
            let text = if url.is_empty() { text } else { without_port(&text, url) };
            if term.is_empty() || term == "dumb" {
                assert!(!text.contains('\x1b'), "{kind}: {text:?}");
            }
            if !no_color.is_empty() {
                assert!(!text.contains("\x1b[3"), "{kind}: {text:?}");
            }
            kept.add(&format!("{kind}, {columns} columns"), &drawn(&text, LINES, columns));
        }
    }
    kept.check();
}

#[test]
fn run_shows_results_and_a_summary() {
    // The second chunk comes so late that a bar is drawn with it.
    let arguments = ["chunks=2", "delay_ms=400", "chunk_size=50"];
    let arguments: Vec<&str> = arguments.iter().flat_map(|one| ["--arg", one]).collect();
    screens_of("run", &[&["run", "slow_data_processor"], &arguments[..]].concat(), "", 0);
}

#[test]
fn run_draws_a_bar_that_fits() {
    let mut kept = Kept::new("run-bar");
    let run = ["run", "slow_data_processor", "--arg", "chunks=2", "--arg", "delay_ms=1000"];
    for columns in COLUMNS {
        let text = output(columns, program(&run, "xterm", ""), 0);
        let bar = text.find("\x1b[?7l[").expect("a bar");
        let end = text[bar..].find("\r\x1b[K").expect("the bar is removed");
        let screen = drawn(&text[..bar + end], LINES, columns);
        kept.add(&format!("TERM=xterm, {columns} columns"), &screen);
    }
    kept.check();
}

#[test]
fn run_shows_only_the_error_if_nothing_ran() {
    let path = "/nowhere/there/is/no/file/of/this/name/that/a/test/could/ever/find.txt";
    let argument = format!("file_path={path}");
    screens_of("run-error", &["run", "process_file", "--arg", &argument], "", 1);
}

/// `streamdoor model-script`. It is killed when this value is dropped.
struct Model {
    child: Child,
    url: String,
}

impl Model {
    fn start() -> Model {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/screens/model.toml");
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        command.arg("model-script").arg(script).args(["--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split_once(" at ").expect(&line).1.trim().to_owned();
        Model { child, url }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn agent_shows_its_calls_in_place() {
    let model = Model::start();
    let arguments = ["--model", "m", "--base-url", &model.url, "--key-env", "none"];
    let tools = ["--allow-commands", "--tools", "run_command", "Find the word."];
    screens_of("agent", &[&["agent"], &arguments[..], &tools[..]].concat(), "", 0);
}

/// Returns the last whole frame of the view.
fn frame(text: &str) -> Option<&str> {
    let end = text.rfind("\x1b[J")? + 3;
    let begin = text[..end].rfind("\x1b[H")?;
    Some(&text[begin..end])
}

#[test]
fn top_fits_its_columns() {
    let mut kept = Kept::new("top");
    let fake = Fake::answering(documents::answer);
    let url = fake.url();
    let top = ["top", &url, "--interval", "50ms"];
    for (kind, term, no_color) in &KINDS[..2] {
        for columns in COLUMNS {
            let terminal = Terminal::open(columns, LINES);
            let program = terminal.start(&mut program(&top, term, no_color));
            let mut keep = |title: &str, key: &str, mark: &str| {
                terminal.press(key.as_bytes());
                let text = terminal.wait(mark, |text| {
                    // The first frame has no rates yet.
                    let is_later = text.matches("\x1b[J").count() > 2;
                    is_later && frame(text).is_some_and(|frame| frame.contains(mark))
                });
                let frame = without_port(frame(&text).unwrap(), &url);
                let screen = drawn(&frame, LINES, columns);
                kept.add(&format!("{kind}, {columns} columns{title}"), &screen);
            };
            keep("", "", "0 chunks/s");
            keep(", sorted by chunks/s", "s", "sort: chunks/s");
            keep(", the subscribers of one execution", "\r", "subscribers of");
            terminal.press(b"q");
            assert_eq!(program.end().code(), Some(0));
        }
    }
    kept.check();
}

#[test]
fn top_prints_lines_where_nothing_can_be_drawn() {
    let fake = Fake::answering(documents::answer);
    let url = fake.url();
    screens_of("top-lines", &["top", &url, "--interval", "50ms", "--once"], &url, 0);
}
