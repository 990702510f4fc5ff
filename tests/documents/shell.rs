//! Blocks of shell commands, run as a whole in a scratch folder with the built program.
//!
//! Fixed addresses and folders of a text are replaced. `prelude.sh` has the functions that stand in
//! for commands, and starts a server if the block does not.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::pages::{Block, blocks, root};
use crate::ports;

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");
const PRELUDE: &str = "tests/documents/prelude.sh";
/// The time limit of a block, in seconds.
const RUN_SECONDS_MAX: &str = "100";
/// Programs that a machine may lack. A block that calls one of them is then not run.
const PROGRAMS: &[&str] =
    &["curl", "man", "openssl", "node", "python3", "jq", "grep", "nats-server"];
/// The line that separates the outputs of a block's commands.
const MARK: &str = "\u{1e}";
/// A stand-in for the MCP servers of others: a program of this name answers as one.
const OTHER_SERVERS: &[&str] = &["npx", "uvx"];
const OTHER_SERVER: &str = "tests/documents/mcp_server.sh";
/// The server that stands in for one that others reach over HTTP.
const WEB_SERVER: &str = "\
builtin = 'none'
door = 'off'
[virtual_tools.search_web]
description = 'Searches.'
input_schema = { type = 'object' }
";

/// A scratch folder, removed with this value.
pub struct Scratch {
    pub folder: PathBuf,
    ports: [u16; 4],
}

/// Returns whether the program is on this machine, and prints a note if not.
pub fn is_there(program: &str, block: &Block) -> bool {
    let found = std::env::var_os("PATH").is_some_and(|paths| {
        std::env::split_paths(&paths).any(|folder| folder.join(program).exists())
    });
    if !found {
        println!("not run: {}: {program} is not on this machine", block.place());
    }
    found
}

/// Returns the files that a page shows: blocks whose first line is a comment with a file name.
fn files_of(page: &str) -> Vec<(String, String)> {
    let Ok(text) = fs::read_to_string(root().join(page)) else { return Vec::new() };
    let named = |block: Block| {
        let name = block.text.lines().next()?.strip_prefix("# ")?;
        let is_file = block.language == "python" && name.ends_with(".py");
        is_file.then(|| (name.to_owned(), block.text.clone()))
    };
    blocks(page, &text).into_iter().filter_map(named).collect()
}

impl Scratch {
    /// Creates the folder, with the files that the texts name.
    pub fn new(block: &Block) -> Scratch {
        let place = block.place().replace(['/', ':', '.'], "-");
        let folder = std::env::temp_dir().join(format!("sd-{}-{place}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        for name in ["bin", "log", "etc/systemd/system", "usr/bin", "target/dist"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::create_dir(folder.join("run")).unwrap();
        fs::set_permissions(folder.join("run"), fs::Permissions::from_mode(0o700)).unwrap();
        for name in ["tools", "src"] {
            symlink(root().join(name), folder.join(name)).unwrap();
        }
        for name in ["README.md", "Cargo.toml"] {
            fs::copy(root().join(name), folder.join(name)).unwrap();
        }
        symlink(PROGRAM, folder.join("bin/streamdoor")).unwrap();
        symlink(PROGRAM, folder.join("target/dist/streamdoor")).unwrap();
        let lines = (0..2_000).map(|n| match n % 100 {
            0 => format!("{n}: an error\n"),
            _ => format!("{n}: nothing special\n"),
        });
        let log: String = lines.collect();
        for name in ["big.log", "big.iso", "log/syslog"] {
            fs::write(folder.join(name), &log).unwrap();
        }
        fs::write(folder.join("web.toml"), WEB_SERVER).unwrap();
        let stand_in = root().join(OTHER_SERVER);
        for name in OTHER_SERVERS {
            symlink(&stand_in, folder.join("bin").join(name)).unwrap();
        }
        let token = format!("ops {}\n", "0123456789abcdef".repeat(2));
        fs::write(folder.join("etc/tokens"), token).unwrap();
        fs::set_permissions(folder.join("etc/tokens"), fs::Permissions::from_mode(0o600)).unwrap();
        let scratch = Scratch { folder, ports: [(); 4].map(|()| ports::free()) };
        for (name, text) in files_of(&block.page) {
            fs::write(scratch.folder.join(name), scratch.substituted(&text)).unwrap();
        }
        scratch
    }

    /// The fixed addresses and folders of the texts, and those of this test.
    fn replacements(&self) -> [(&'static str, String); 13] {
        let [port, model_port, other_port, nats_port] = self.ports;
        let folder = self.folder.to_str().expect("names are plain");
        [
            ("127.0.0.1:8808", format!("127.0.0.1:{port}")),
            ("localhost:8808", format!("localhost:{port}")),
            ("127.0.0.1:8809", format!("127.0.0.1:{model_port}")),
            ("127.0.0.1:11434", format!("127.0.0.1:{model_port}")),
            ("127.0.0.1:4222", format!("127.0.0.1:{nats_port}")),
            ("https://example.com/mcp", format!("http://127.0.0.1:{other_port}/mcp")),
            ("/run/streamdoor.sock", format!("{folder}/run/streamdoor.sock")),
            ("/tmp/door.sock", format!("{folder}/run/door.sock")),
            ("/etc/streamdoor", format!("{folder}/etc")),
            ("/etc/systemd/system", format!("{folder}/etc/systemd/system")),
            ("/usr/bin/streamdoor", format!("{folder}/usr/bin/streamdoor")),
            ("/var/log", format!("{folder}/log")),
            (" /srv", format!(" {folder}")),
        ]
    }

    /// Replaces the fixed addresses and folders of a text by those of this test.
    pub fn substituted(&self, text: &str) -> String {
        let replacements = self.replacements();
        replacements.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// Undoes [`Scratch::substituted`] in an output.
    fn restored(&self, text: &str) -> String {
        let replacements = self.replacements();
        replacements.iter().fold(text.to_owned(), |text, (from, to)| text.replace(to, from))
    }

    /// Runs a script. `shown` is the text that decides which servers are needed.
    fn run(&self, script: &str, shown: &str) -> Output {
        let [port, model_port, other_port, nats_port] = self.ports;
        let path = self.folder.join("block.sh");
        fs::write(&path, script).unwrap();
        let mut command = Command::new("timeout"); // From coreutils; it ends children, too.
        command.args(["--kill-after=10", RUN_SECONDS_MAX, "bash"]);
        command.arg(root().join(PRELUDE)).arg(&path).current_dir(&self.folder);
        command.stdin(Stdio::null()).env_remove("STREAMDOOR_URL").env_remove("STREAMDOOR_TOKEN");
        let path = format!("{}/bin:{}", self.folder.display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("HOME", &self.folder).env("PROGRAM", PROGRAM);
        command.env("XDG_RUNTIME_DIR", self.folder.join("run"));
        command.env("STREAMDOOR_URL", format!("http://127.0.0.1:{port}"));
        command.env("PORT", port.to_string()).env("MODEL_PORT", model_port.to_string());
        command.env("OTHER_PORT", other_port.to_string());
        command.env("NATS_PORT", nats_port.to_string());
        command.env("TERM", "dumb").env("NO_COLOR", "1").env("LANG", "C.UTF-8");
        let is_served = shown.lines().any(|line| line.starts_with("streamdoor serve"));
        let needs_model = shown.contains("127.0.0.1:8809") || shown.contains("127.0.0.1:11434");
        if !is_served {
            let needs_id = has_placeholder(shown) && !shown.contains("streamdoor pipe");
            command.env("FIXTURE", if needs_id { "executed" } else { "started" });
        }
        let is_node = shown.contains("--listen 127.0.0.1:8809");
        if needs_model && !is_node && !shown.contains("streamdoor model-script") {
            command.env("MODEL_FIXTURE", "1");
        }
        if shown.contains("https://example.com/mcp") {
            command.env("OTHER_FIXTURE", "1");
        }
        command.output().expect("bash and timeout can be run")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The words that stand for the id of an execution.
const PLACEHOLDERS: &[&str] = &["ID", "EXECUTION"];

fn has_placeholder(text: &str) -> bool {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.split(|c| !is_of_word(c)).any(|word| PLACEHOLDERS.contains(&word))
}

/// Puts the id of the newest execution in the place of `ID`, also inside of quotes.
fn with_ids(line: &str) -> String {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let (mut out, mut word, mut quote) = (String::new(), String::new(), None);
    for c in line.chars().chain(['\n']) {
        if is_of_word(c) {
            word.push(c);
            continue;
        }
        match (PLACEHOLDERS.contains(&word.as_str()), quote) {
            (false, _) => out.push_str(&word),
            (true, Some('\'')) => out.push_str("'\"$(newest)\"'"),
            (true, _) => out.push_str("$(newest)"),
        }
        word.clear();
        out.push(c);
        match quote {
            None if c == '\'' || c == '"' => quote = Some(c),
            Some(open) if open == c => quote = None,
            _ => {}
        }
    }
    out.trim_end().to_owned()
}

/// Rewrites a command: ids, and servers that listen before the next command runs.
///
/// # Errors
/// A server in the foreground, with commands behind it.
fn rewritten(command: &str, is_last: bool) -> Result<String, String> {
    let is_server =
        ["streamdoor serve ", "streamdoor serve\n", "streamdoor model-script ", "nats-server "]
            .iter()
            .any(|start| format!("{command}\n").starts_with(start));
    if !is_server || ["--print-config", "--help", "--check"].iter().any(|o| command.contains(o)) {
        return Ok(with_ids(command));
    }
    let bare = command.split(" #").next().expect("a part").trim_end();
    let foreground = bare.strip_suffix(" &");
    if foreground.is_none() && !is_last {
        return Err(format!("`{bare}` runs until it is stopped: end it with `&`"));
    }
    let bare = foreground.unwrap_or(bare);
    Ok(match bare.split_once(" 2> ") {
        Some((bare, log)) => format!("LOG={log} {bare}"),
        None => bare.to_owned(),
    })
}

/// Returns the commands of a text. A command may continue on further lines.
pub fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut command = String::new();
    for line in text.lines() {
        command.push_str(line);
        let is_whole = !line.ends_with('\\') && command.matches('\'').count().is_multiple_of(2);
        if is_whole && !command.trim().is_empty() {
            commands.push(std::mem::take(&mut command));
        } else if !command.is_empty() {
            command.push('\n');
        }
    }
    assert!(command.is_empty(), "a command has no end: {command}");
    commands
}

fn lacks_program(block: &Block) -> bool {
    if block.text.contains("nats-server -js") && !cfg!(feature = "cluster") {
        println!("not run: {}: the program was built without clusters", block.place());
        return true;
    }
    let words: Vec<&str> = block.text.split(|c: char| c.is_whitespace() || c == '(').collect();
    let named = PROGRAMS.iter().filter(|program| words.contains(program));
    named.filter(|program| !is_there(program, block)).count() > 0
}

fn said(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}{}", texts[0], texts[1])
}

/// Runs a block of commands. Each must succeed. Returns what they print, or `None` if a program is
/// not on this machine.
///
/// # Errors
/// The text for the person who runs the test.
pub fn run(block: &Block) -> Result<Option<String>, String> {
    if lacks_program(block) {
        return Ok(None);
    }
    let scratch = Scratch::new(block);
    let text = scratch.substituted(&block.text);
    let commands = commands(&text);
    let count = commands.len();
    let lines =
        commands.iter().enumerate().map(|(at, command)| rewritten(command, at + 1 == count));
    let script = lines.collect::<Result<Vec<String>, String>>()?.join("\n") + "\n";
    let output = scratch.run(&script, &block.text);
    match output.status.success() {
        true => Ok(Some(said(&output))),
        false => Err(format!("{}:\n{script}\n{}", output.status, said(&output))),
    }
}

/// One command of a session, and the output that the page shows.
struct Step {
    command: String,
    shown: Vec<String>,
}

/// Returns the steps of a session: lines behind `$`, and the output of each.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), shown: Vec::new() });
            continue;
        }
        let step = steps.last_mut().expect("a session begins with `$`");
        match step.command.ends_with('\\') {
            true => step.command += &format!("\n{line}"),
            false => step.shown.push(line.to_owned()),
        }
    }
    steps
}

/// Runs a session, and compares the output of each command. In the page, `…` stands for any text,
/// and on a line of its own for any number of lines. A command may fail.
///
/// # Errors
/// The difference, for the person who runs the test.
pub fn compare(block: &Block) -> Result<(), String> {
    if lacks_program(block) {
        return Ok(());
    }
    let scratch = Scratch::new(block);
    let steps = steps(&block.text);
    // A session may show refused requests.
    let mut script = "set +e\ncurl() { command curl --max-time 60 \"$@\"; }\n".to_owned();
    for (at, step) in steps.iter().enumerate() {
        let command = rewritten(&scratch.substituted(&step.command), at + 1 == steps.len())?;
        script += &format!("{{ {command}\n}} 2>&1\necho '{MARK}'\n");
    }
    let commands: Vec<&str> = steps.iter().map(|step| step.command.as_str()).collect();
    let output = scratch.run(&script, &commands.join("\n"));
    let said = scratch.restored(&said(&output));
    let mut outputs = said.split(MARK).map(|printed| printed.trim_start_matches('\n'));
    for step in &steps {
        let printed = outputs.next().unwrap_or_default();
        let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
        let shown: Vec<&str> = step.shown.iter().map(|line| line.trim_end()).collect();
        if !lines_match(&shown, &lines) {
            let shown = shown.join("\n");
            let command = &step.command;
            return Err(format!("`{command}` prints\n{printed}\nbut the page shows\n{shown}"));
        }
    }
    Ok(())
}

fn lines_match(shown: &[&str], lines: &[&str]) -> bool {
    match (shown.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((&"…", rest)), None) => lines_match(rest, lines),
        (Some((&"…", rest)), Some((_, later))) => {
            lines_match(rest, lines) || lines_match(shown, later)
        }
        (Some((first, rest)), Some((line, later))) => {
            text_matches(first, line) && lines_match(rest, later)
        }
        _ => false,
    }
}

/// Returns whether a line is as shown, where `…` stands for any text.
fn text_matches(shown: &str, line: &str) -> bool {
    let Some((start, rest)) = shown.split_once('…') else { return shown == line };
    let Some(line) = line.strip_prefix(start) else { return false };
    let ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
    ends.into_iter().any(|at| text_matches(rest, &line[at..]))
}

#[test]
fn an_output_that_differs_is_found() {
    let lines = ["one 17 two", "three", "four"];
    assert!(lines_match(&["one … two", "…"], &lines));
    assert!(lines_match(&["…", "four"], &lines));
    assert!(!lines_match(&["one … two", "three"], &lines));
    assert!(!lines_match(&["one … three", "…"], &lines));
    assert!(!lines_match(&["…", "five"], &lines));
}

#[test]
fn a_placeholder_becomes_the_id_of_the_newest_execution() {
    assert_eq!(with_ids("a ID b"), "a $(newest) b");
    assert_eq!(with_ids("a 'x/ID/y' \"ID\""), "a 'x/'\"$(newest)\"'/y' \"$(newest)\"");
    assert_eq!(with_ids("X-Session-ID BID"), "X-Session-ID BID");
}

#[test]
fn a_server_in_front_of_other_commands_is_found() {
    assert!(rewritten("streamdoor serve --door off", false).is_err());
    assert_eq!(
        rewritten("streamdoor serve --door off", true).unwrap(),
        "streamdoor serve --door off"
    );
    assert_eq!(rewritten("streamdoor serve &   # x", false).unwrap(), "streamdoor serve");
}
