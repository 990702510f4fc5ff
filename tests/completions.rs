//! The completion scripts and the manual page, as shells and `man` read them. A shell that is not
//! installed is not tried.
#![cfg(feature = "cli")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

fn printed(arguments: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program with this input. Prints a line and returns `None` if it is not installed.
fn fed(program: &str, arguments: &[&str], input: &str) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        println!("not run: {program} is not installed");
        return None;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Some(child.wait_with_output().unwrap())
}

/// Returns the words with which bash completes the last one of `words`.
fn completed(words: &[&str]) -> Option<Vec<String>> {
    let script = printed(&["completions", "bash"]);
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let script = format!(
        "{script}\ncomplete -p streamdoor >/dev/null || exit 1\nCOMP_WORDS=({})\nCOMP_CWORD={}\n\
         _streamdoor\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        quoted.join(" "),
        words.len() - 1
    );
    let output = fed("bash", &["--norc"], &script)?;
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

#[test]
fn bash_completes_commands_options_and_shells() {
    for (words, expected) in [
        (&["streamdoor", "ser"][..], &["serve"][..]),
        (&["streamdoor", "mo"], &["model-script"]),
        (&["streamdoor", "help", "wa"], &["watch"]),
        (&["streamdoor", "run", "--pol"], &["--policy"]),
        (&["streamdoor", "run", "slow", "--max-c"], &["--max-chunks"]),
        (&["streamdoor", "serve", "--drain"], &["--drain-deadline"]),
        (&["streamdoor", "top", "--policy"], &[]),
        (&["streamdoor", "completions", ""], &["bash", "zsh", "fish"]),
        (&["streamdoor", "run", "file"], &[]),
    ] {
        match completed(words) {
            None => return,
            Some(found) => assert_eq!(found, expected, "{words:?}"),
        }
    }
}

#[test]
fn every_shell_can_read_its_script() {
    let shells = [("bash", &["-n"][..]), ("zsh", &["-n"]), ("fish", &["--no-execute"])];
    for (shell, arguments) in shells {
        let script = printed(&["completions", shell]);
        assert!(script.contains("drain-deadline") && script.contains("model-script"), "{script}");
        if let Some(output) = fed(shell, arguments, &script) {
            assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {output:?}");
        }
    }
}

/// The lines that every shell completes, each with words that it must offer and one that it must
/// not.
const LINES: [(&str, &[&str], &str); 6] = [
    ("streamdoor ser", &["serve"], "run"),
    ("streamdoor mo", &["model-script"], "serve"),
    ("streamdoor help wa", &["watch"], "serve"),
    ("streamdoor run --pol", &["--policy"], "--listen"),
    ("streamdoor serve --drain", &["--drain-deadline"], "--policy"),
    ("streamdoor completions ", &["bash", "zsh", "fish"], "serve"),
];

#[test]
fn fish_completes_a_line() {
    let script = printed(&["completions", "fish"]);
    for (line, expected, other) in LINES {
        let input = format!("{script}\ncomplete --do-complete '{line}'\n");
        let Some(output) = fed("fish", &["--no-config"], &input) else { return };
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let found: Vec<&str> = text.lines().filter_map(|line| line.split('\t').next()).collect();
        assert!(expected.iter().all(|word| found.contains(word)), "{line}: {text}");
        assert!(!found.contains(&other), "{line}: {text}");
    }
}

/// Zsh completes only what a person types, so a shell runs on a terminal of its own (zpty).
#[test]
fn zsh_completes_a_line() {
    let folder = std::env::temp_dir().join(format!("streamdoor-zsh-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("_streamdoor"), printed(&["completions", "zsh"])).unwrap();
    for (line, expected, other) in LINES {
        let input = ZSH.replace("FOLDER", folder.to_str().unwrap()).replace("LINE", line);
        let Some(output) = fed("zsh", &["-f"], &input) else { return };
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let found: Vec<&str> = text.split_whitespace().collect();
        assert!(expected.iter().all(|word| found.contains(word)), "{line}: {text}");
        assert!(!found.contains(&other), "{line}: {text}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Types a line and a tab into a shell, and prints what it then shows. A key of its own tells that
/// the tab has been handled.
const ZSH: &str = r#"
zmodload zsh/zpty || exit 1
export TERM=dumb
zpty inner zsh -f -i
zpty -w inner "PS1=; fpath=('FOLDER' \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w inner "ended() { print; print EN''DED }; zle -N ended; bindkey '^Xe' ended; LISTMAX=1000"
zpty -w inner "print rea''dy"
zpty -r -m inner text '*ready*'
zpty -n -w inner "LINE"$'\t'$'\C-Xe'
zpty -r -m inner text '*ENDED*'
print -r -- "$text"
zpty -d inner
"#;

#[test]
fn an_unknown_shell_is_told_the_known_ones() {
    let output = Command::new(PROGRAM).args(["completions", "bahs"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("must be bash, zsh or fish; did you mean bash?"), "{said}");
}

#[test]
fn the_manual_page_has_every_command_and_no_fault() {
    let page = printed(&["man"]);
    assert!(page.starts_with(".TH STREAMDOOR 1 ") && page.contains(".SH \"STREAMDOOR SERVE\"\n"));
    let is_request = |line: &&str| line.starts_with('.');
    let known = [".TH", ".SH", ".nf", ".fi"];
    for line in page.lines().filter(is_request) {
        assert!(known.iter().any(|request| line.starts_with(request)), "{line}");
    }
    if let Some(output) = fed("groff", &["-man", "-Tutf8", "-ww"], &page) {
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("--drain-deadline"), "{text}");
    }
}
