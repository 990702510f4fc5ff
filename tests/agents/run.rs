//! `streamdoor agent`: three steps with two tools at once, shown while they happen.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use std::{fs, thread};

use serde_json::{Value, json};

use crate::parts::{deltas, of_lines, of_sse, place_of, places, read};
use crate::pty::Terminal;
use crate::scripted::ModelServer;

/// Number of lines of the file that the search finds, one in ten.
const FOUND: u64 = 2_000;
/// The shell command of the tool, which prints a line at a time.
pub const COMMAND: &str = "for i in 1 2 3 4 5; do echo line $i; sleep 0.5; done";

/// A folder with one large file. It is removed when the value is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("streamdoor-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let line = |n: u64| match n % 10 {
            0 => format!("{n}: a needle in a haystack\n"),
            _ => format!("{n}: hay, and nothing but hay\n"),
        };
        let text: String = (0..10 * FOUND).map(line).collect();
        fs::write(path.join("haystack.txt"), text).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Returns a script of three steps: two tools at once, one tool, and the answer.
pub fn three_steps(folder: &Folder) -> String {
    let root = json!(folder.0).to_string();
    let command = json!(["sh", "-c", COMMAND]).to_string();
    format!(
        r#"
pace = "2ms"
[[turns]]
events = [
  {{ pause = "300ms" }},
  {{ reasoning = "Two things at once." }},
  {{ text = "I look into the files and ask the machine." }},
  {{ call = "search_files", id = "search", arguments = {{ pattern = "needle", root = {root} }} }},
  {{ call = "run_command", id = "command", arguments = {{ argv = {command} }} }},
]
[[turns]]
events = [
  {{ text = "Once more." }},
  {{ call = "run_command", id = "again", arguments = {{ argv = ["echo", "again"] }} }},
]
[[turns]]
events = [
  {{ text = "Done, and the last tool said: ${{result}}" }},
  {{ usage = {{ input_tokens = 100, output_tokens = 20 }} }},
]
"#
    )
}

pub fn agent(model: &ModelServer, arguments: &[&str]) -> Command {
    asking(model, arguments, "find the needles")
}

/// Returns the command `streamdoor agent` with this task.
pub fn asking(model: &ModelServer, arguments: &[&str], task: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.args(["agent", "--model", "demo", "--base-url", &model.base_url]);
    command.args(["--tools", "search_files,run_command", "--allow-commands"]);
    command.args(arguments).arg(task).stdin(Stdio::null());
    command.env_remove("OPENAI_API_KEY").env_remove("ANTHROPIC_API_KEY");
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Asserts everything that holds for the parts of [`three_steps`] for every follower.
pub fn check_three_steps(parts: &[Value]) {
    let seqs: Vec<u64> = parts.iter().map(|part| part["seq"].as_u64().unwrap()).collect();
    assert!(seqs.iter().copied().eq(1..=seqs.len() as u64));
    assert_eq!(
        (&parts[0]["type"], places(parts, "StepStarted").len()),
        (&json!("ExecutionStarted"), 3)
    );
    assert_eq!(parts.last().unwrap()["type"], "ExecutionCompleted");
    assert_eq!(places(parts, "StepCompleted").len(), 3);
    // Token by token: a part for each word.
    let first = "I look into the files and ask the machine.";
    assert_eq!(deltas(parts, "TextDelta", 1), first);
    assert_eq!(deltas(parts, "ReasoningDelta", 1), "Two things at once.");
    let of_first = |part: &&Value| part["type"] == "TextDelta" && part["step_number"] == 1;
    let words = first.split(' ').count();
    assert_eq!(parts.iter().filter(of_first).count(), words);
    // Arguments arrive in pieces.
    for call in ["search", "command", "again"] {
        let pieces = parts
            .iter()
            .filter(|part| part["type"] == "ToolCallArgsDelta" && part["tool_call_id"] == call);
        let pieces: Vec<&str> = pieces.map(|part| part["delta"].as_str().unwrap()).collect();
        let whole = &parts[place_of(parts, "ToolCallArgsCompleted", call)]["arguments"];
        assert!(pieces.len() > 1, "{call}: {pieces:?}");
        assert_eq!(serde_json::from_str::<Value>(&pieces.concat()).unwrap(), *whole);
    }
    // Both tools ran at once: each wrote something before the other was done.
    let of_call = |name: &str, call: &str| -> Vec<usize> {
        places(parts, name).into_iter().filter(|at| parts[*at]["tool_call_id"] == call).collect()
    };
    let search = of_call("ToolOutputChunk", "search");
    let command = of_call("ToolOutputChunk", "command");
    assert!(
        command[0] < place_of(parts, "ToolCallCompleted", "search")
            || search[0] < place_of(parts, "ToolCallCompleted", "command")
    );
    assert!(search[0] < place_of(parts, "ToolCallCompleted", "command"));
    // All output of both is present.
    let said = |chunks: &[usize]| -> String {
        chunks.iter().map(|at| parts[*at]["data"].as_str().unwrap()).collect()
    };
    assert_eq!(said(&command), "line 1\nline 2\nline 3\nline 4\nline 5\n");
    assert!(command.len() >= 3, "it came as it was said: {command:?}");
    assert_eq!(said(&search).matches("needle in").count() as u64, FOUND);
    let execution = &parts[place_of(parts, "ToolCallCompleted", "command")]["execution"];
    assert_eq!(
        (&execution["outcome"], &execution["name"]),
        (&json!("completed"), &json!("run_command"))
    );
    // The model received the output.
    let last = deltas(parts, "TextDelta", 3);
    assert!(last.starts_with("Done, and the last tool said: ") && last.contains("again"), "{last}");
    let state = &parts.last().unwrap()["final_state"];
    assert_eq!((&state["step_count"], &state["tool_call_count"]), (&json!(3), &json!(3)));
}

#[test]
fn three_steps_with_two_tools_at_once_are_told_as_they_happen() {
    let folder = Folder::new("agent-steps");
    let model = ModelServer::following("steps", &three_steps(&folder));
    // All at once, because they mostly wait.
    thread::scope(|scope| {
        for wire in ["chat", "responses", "messages"] {
            let mut command = agent(&model, &["--wire", wire, "--format", "ndjson"]);
            scope.spawn(move || {
                let output = command.output().unwrap();
                succeeded(&output);
                let lines = text(&output.stdout);
                assert!(lines.starts_with("{\"event\":\"started\","), "{lines}");
                let end: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
                assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("completed")));
                check_three_steps(&read(&of_lines(lines)));
            });
        }
    });
}

#[test]
fn tools_can_run_before_the_turn_is_over() {
    let folder = Folder::new("agent-eager");
    let script = three_steps(&folder).replacen(
        "{ call = \"run_command\", id = \"command\"",
        "{ pause = \"5s\" }, { call = \"run_command\", id = \"command\"",
        1,
    );
    let model = ModelServer::following("eager", &script);
    // Chat completions mark the end of a call only by what follows it.
    thread::scope(|scope| {
        for (wire, strategy, is_eager) in [
            ("messages", "eager", true),
            ("responses", "eager", true),
            ("messages", "after_turn", false),
            ("chat", "eager", false),
        ] {
            let arguments = ["--wire", wire, "--strategy", strategy, "--format", "sse"];
            let mut command = agent(&model, &arguments);
            scope.spawn(move || {
                let output = command.output().unwrap();
                succeeded(&output);
                let parts = read(&of_sse(text(&output.stdout)));
                let search = place_of(&parts, "ToolCallCompleted", "search");
                let command = place_of(&parts, "ToolCallStarted", "command");
                // The search takes less than the seconds until the next call.
                assert_eq!(search < command, is_eager, "{wire} {strategy}");
            });
        }
    });
}

#[test]
fn a_pipe_is_given_what_the_model_says_and_the_rest_is_told_beside_it() {
    let folder = Folder::new("agent-pipe");
    let model = ModelServer::following("pipe", &three_steps(&folder));
    let output = agent(&model, &[]).output().unwrap();
    succeeded(&output);
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["I look into the files and ask the machine.", "Once more."]);
    assert!(lines[2].starts_with("Done, and the last tool said: "), "{said}");
    let told = text(&output.stderr);
    for line in ["* search_files {", "+ search_files {", "+ run_command {", "3 steps, 3 calls"] {
        assert!(told.lines().any(|told| told.starts_with(line)), "{line}: {told}");
    }
}

#[test]
fn a_terminal_has_lines_that_are_drawn_in_their_places() {
    let folder = Folder::new("agent-terminal");
    // Both calls of the first step last long enough to be drawn together.
    let root = json!(folder.0).to_string();
    let search = format!(
        "call = \"search_files\", id = \"search\", \
         arguments = {{ pattern = \"needle\", root = {root} }}"
    );
    let script = three_steps(&folder);
    assert!(script.contains(&search), "{script}");
    let wait = "call = \"run_command\", id = \"search\", arguments = { argv = [\"sleep\", \"2\"] }";
    let model = ModelServer::following("terminal", &script.replacen(&search, wait, 1));
    let terminal = Terminal::open(100, 30);
    let program = terminal.start(&mut agent(&model, &[]));
    assert!(program.end().success());
    let text = terminal.wait("the sums", |text| text.contains("3 steps, 3 calls, "));
    assert!(text.contains("\x1b[2mTwo \x1b[0m"), "what it thinks is dim: {text}");
    assert!(text.contains("\x1b[2A\r\x1b[J"), "two lines were drawn again: {text}");
    assert!(text.contains("+ run_command {"), "{text}");
}

#[test]
fn an_interrupt_cancels_the_run_and_the_sums_are_told() {
    let script = "[[turns]]\nevents = [{ text = 'word ', repeat = 1000000, pace = '5ms' }]";
    let model = ModelServer::following("interrupt", script);
    let mut command = agent(&model, &["--format", "ndjson"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let asked = model.requests.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(asked.contains("turn 1"), "{asked}");
    let pid = child.id().to_string();
    std::thread::sleep(Duration::from_millis(100));
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let parts = read(&of_lines(text(&output.stdout)));
    assert_eq!(parts.last().unwrap()["type"], "ExecutionCancelled");
    assert_eq!(places(&parts, "StepCompleted").len(), 1, "the open step is closed");
}

#[test]
fn what_can_not_be_done_is_said_before_anything_is_asked() {
    let model = ModelServer::following("wrong", "[[turns]]\nevents = [{ text = 'x' }]");
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        command.arg("agent").env_remove("OPENAI_API_KEY").stdin(Stdio::null());
        command
    };
    let url = model.base_url.as_str();
    for (arguments, code, words) in [
        (&["--model", "m", "--base-url", url][..], 2, "no task is given"),
        (&["--base-url", url, "task"], 2, "no model is given"),
        (&["--model", "m", "task"], 3, "OPENAI_API_KEY"),
        (&["--model", "m", "--base-url", "nowhere", "task"], 2, "--base-url nowhere"),
        (&["--model", "m", "--base-url", url, "--tools", "none_such", "task"], 2, "none_such"),
        (
            &["--model", "m", "--base-url", url, "--tools", "serch_files", "task"],
            2,
            "did you mean search_files? The tools are: ",
        ),
        (&["--model", "m", "--base-url", url, "--key-env", "NO_SUCH", "task"], 3, "NO_SUCH"),
        (&["--model", "m", "--base-url", url, "--listen", "0.0.0.0:0", "task"], 2, "0.0.0.0"),
        (&["--server", "http://127.0.0.1:1", "--wire", "chat", "task"], 2, "--server"),
        (&["--server", "http://127.0.0.1:1", "task"], 3, "127.0.0.1:1"),
        (&["--model", "m", "--cacert", "x", "task"], 2, "--server"),
    ] {
        let output = command().args(arguments).output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(words), "{arguments:?}: {told}");
    }
    let told = command()
        .args(["--model", "m", "--base-url", "http://192.0.2.1/v1", "task"])
        .env("OPENAI_API_KEY", "sk-secret")
        .output()
        .unwrap();
    let text = text(&told.stderr);
    assert_eq!(told.status.code(), Some(2), "{text}");
    assert!(text.contains("unencrypted") && !text.contains("sk-secret"), "{text}");
    assert!(model.requests.try_recv().is_err());
}
