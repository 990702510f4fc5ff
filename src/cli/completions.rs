//! `streamdoor completions` and `streamdoor man`: scripts for shells and a manual page. Both come
//! from the table of commands and their help texts, so they have no list of their own.

use std::fmt::Write;
use std::str::FromStr;

use lexopt::prelude::*;

use super::console::print_out;
use super::{COMMANDS, CliError, HELP_WORD, VERSION_WORD, hints};

pub const HELP: &str = "\
streamdoor completions: print a script that completes this program's commands in a shell

Usage: streamdoor completions [OPTIONS] bash|zsh|fish

  -h, --help       show this text

To try it: source <(streamdoor completions bash). To keep it:
  bash   streamdoor completions bash > ~/.local/share/bash-completion/completions/streamdoor
  zsh    streamdoor completions zsh > a file _streamdoor in a folder of $fpath
  fish   streamdoor completions fish > ~/.config/fish/completions/streamdoor.fish
";

pub const MAN_HELP: &str = "\
streamdoor man: print the manual page of this program

Usage: streamdoor man [OPTIONS]

  -h, --help       show this text

To read it: streamdoor man | man -l -. To keep it: streamdoor man > streamdoor.1
";

/// The words for the shells.
const SHELLS: &str = "bash zsh fish";

/// A shell that can complete words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl FromStr for Shell {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Shell, &'static str> {
        match text {
            "bash" => Ok(Shell::Bash),
            "zsh" => Ok(Shell::Zsh),
            "fish" => Ok(Shell::Fish),
            _ => Err("must be bash, zsh or fish"),
        }
    }
}

/// Carries out `streamdoor completions`.
pub fn run(mut parser: lexopt::Parser) -> Result<(), CliError> {
    let mut shell = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => {
                print_out!("{}", HELP.trim_end());
                return Ok(());
            }
            Value(word) if shell.is_none() => {
                let word = word.string()?;
                let read = word.parse::<Shell>();
                shell = Some(read.map_err(|error| {
                    let problem = hints::wrong_value::<Shell>(&word, &error);
                    CliError::Usage(format!("{word}: {problem}"))
                })?);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let script = match shell {
        None => return Err(CliError::Usage("no shell is given: bash, zsh or fish".to_owned())),
        Some(Shell::Bash) => bash(),
        Some(Shell::Zsh) => zsh(),
        Some(Shell::Fish) => fish(),
    };
    print_out!("{}", script.trim_end());
    Ok(())
}

/// Carries out `streamdoor man`.
pub fn man(mut parser: lexopt::Parser) -> Result<(), CliError> {
    match parser.next()? {
        None => print_out!("{}", page().trim_end()),
        Some(Short('h') | Long("help")) => print_out!("{}", MAN_HELP.trim_end()),
        Some(other) => return Err(other.unexpected().into()),
    }
    Ok(())
}

/// An option in a help text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HelpOption {
    name: String,
    /// The placeholder of its value, or an empty text.
    value: String,
    about: String,
}

/// Returns the options of a help text, each once.
fn options_of(help: &str) -> Vec<HelpOption> {
    let mut options: Vec<HelpOption> = Vec::new();
    let mut lines = help.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(line) = line.strip_prefix("  ").filter(|line| line.starts_with('-')) else {
            continue;
        };
        let (head, about) = line.split_once("  ").unwrap_or((line, ""));
        let next = lines.peek().map_or("", |next| next.trim());
        let about = if about.is_empty() { next } else { about.trim() };
        let about = about.split_once("  ").map_or(about, |(about, _)| about);
        for one in head.split(", ") {
            let (name, value) = one.split_once([' ', '[']).unwrap_or((one, ""));
            let Some(name) = name.strip_prefix("--") else { continue };
            if options.iter().all(|other| other.name != name) {
                let value = value.trim_matches(['=', ']']).to_owned();
                let (name, about) = (name.to_owned(), about.to_owned());
                options.push(HelpOption { name, value, about });
            }
        }
    }
    // Some options are only in the lines of usage.
    for name in hints::options_of(help) {
        if options.iter().all(|other| other.name != name) {
            let (value, about) = (String::new(), String::new());
            options.push(HelpOption { name: name.to_owned(), value, about });
        }
    }
    options
}

/// Returns the purpose of a command: the first line of its help text.
fn purpose_of(help: &str) -> &str {
    let line = help.lines().next().unwrap_or_default();
    line.split_once(": ").map_or(line, |(_, purpose)| purpose)
}

/// Returns the words that can follow the name of the program.
fn first_words() -> Vec<&'static str> {
    COMMANDS.iter().map(|command| command.name).chain([HELP_WORD, VERSION_WORD]).collect()
}

fn bash() -> String {
    let words = first_words().join(" ");
    let mut cases = String::new();
    for command in &COMMANDS {
        let options = options_of(&(command.help)());
        let options: Vec<String> =
            options.iter().map(|option| format!("--{}", option.name)).collect();
        let _ = writeln!(cases, "        {}) words=\"{}\" ;;", command.name, options.join(" "));
    }
    format!(
        "\
# Completion of streamdoor for bash.
_streamdoor() {{
    local word=\"${{COMP_WORDS[COMP_CWORD]}}\" words=
    COMPREPLY=()
    if [ \"$COMP_CWORD\" -eq 1 ]; then
        COMPREPLY=($(compgen -W \"{words} --help --version\" -- \"$word\"))
        return
    fi
    case \"${{COMP_WORDS[1]}}\" in
        {HELP_WORD}) COMPREPLY=($(compgen -W \"{words}\" -- \"$word\")); return ;;
{cases}    esac
    # Without a reply, bash completes the names of files.
    case \"$word\" in
        -*) COMPREPLY=($(compgen -W \"$words\" -- \"$word\")) ;;
        *) [ \"${{COMP_WORDS[1]}}\" = completions ] &&
            COMPREPLY=($(compgen -W \"{SHELLS}\" -- \"$word\")) ;;
    esac
}}
complete -o bashdefault -o default -F _streamdoor streamdoor
"
    )
}

/// Returns the text in single quotes for a shell. `escaped` get a backslash.
fn quoted(text: &str, escaped: &str) -> String {
    let mut out = String::from("'");
    for c in text.chars() {
        match c {
            '\'' => out.push_str(r"'\''"),
            c => {
                if escaped.contains(c) {
                    out.push('\\');
                }
                out.push(c);
            }
        }
    }
    out.push('\'');
    out
}

fn zsh() -> String {
    let mut names = String::new();
    let mut cases = String::new();
    for command in &COMMANDS {
        let help = (command.help)();
        let entry = format!("{}:{}", command.name, purpose_of(&help));
        let _ = writeln!(names, "        {}", quoted(&entry, ""));
        let _ = writeln!(cases, "        {}) _arguments \\", command.name);
        for HelpOption { name, value, about } in options_of(&help) {
            // A colon ends a part of a description.
            let about: String = about.replace(':', ",");
            let value = if value.is_empty() { String::new() } else { format!(":{value}:_files") };
            let value = value.replace(['[', ']'], "");
            let spec = format!("--{name}[{}]{value}", about.replace('[', "(").replace(']', ")"));
            let _ = writeln!(cases, "            {} \\", quoted(&spec, ""));
        }
        let argument = match command.name {
            "completions" => format!("1:shell:({SHELLS})"),
            _ => "*:argument:_files".to_owned(),
        };
        let _ = writeln!(cases, "            '{argument}' ;;");
    }
    format!(
        "\
#compdef streamdoor
# Completion of streamdoor for zsh.
_streamdoor() {{
    local -a commands
    commands=(
{names}        '{HELP_WORD}:show the help text of a command'
        '{VERSION_WORD}:show the version'
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    local command=\"$words[2]\"
    shift words
    (( CURRENT-- ))
    case \"$command\" in
        {HELP_WORD}) _describe command commands ;;
{cases}    esac
}}
if [ \"$funcstack[1]\" = _streamdoor ]; then
    _streamdoor \"$@\"
else
    compdef _streamdoor streamdoor
fi
"
    )
}

fn fish() -> String {
    let mut out = "# Completion of streamdoor for fish.\n".to_owned();
    for command in &COMMANDS {
        let (name, help) = (command.name, (command.help)());
        let about = quoted(purpose_of(&help), "\\");
        let _ = writeln!(
            out,
            "complete -c streamdoor -f -n __fish_use_subcommand -a {name} -d {about}"
        );
        for HelpOption { name: option, value, about } in options_of(&help) {
            let needs = if value.is_empty() { "" } else { " -r" };
            let about = quoted(&about, "\\");
            let _ = writeln!(
                out,
                "complete -c streamdoor -n '__fish_seen_subcommand_from {name}' -l {option}{needs} \
                 -d {about}"
            );
        }
    }
    for (word, about) in [(HELP_WORD, "show a help text"), (VERSION_WORD, "show the version")] {
        let _ = writeln!(
            out,
            "complete -c streamdoor -f -n __fish_use_subcommand -a {word} -d '{about}'"
        );
    }
    for (command, words) in [("completions", SHELLS), (HELP_WORD, &first_words().join(" "))] {
        let _ = writeln!(
            out,
            "complete -c streamdoor -f -n '__fish_seen_subcommand_from {command}' -a '{words}'"
        );
    }
    out
}

/// Returns the manual page in the language of `man`.
fn page() -> String {
    let mut out = format!(
        ".TH STREAMDOOR 1 \"\" \"streamdoor {}\" \"User Commands\"\n.SH NAME\n{}\n",
        env!("CARGO_PKG_VERSION"),
        roff(&super::HELP.lines().next().unwrap_or_default().replacen(": ", " - ", 1)),
    );
    let body = super::HELP.split_once("\n\n").map_or("", |(_, body)| body);
    let _ = write!(out, ".SH DESCRIPTION\n.nf\n{}\n.fi\n", roff(body.trim_end()));
    for command in &COMMANDS {
        let help = (command.help)();
        let title = roff(&format!("streamdoor {}", command.name)).to_uppercase();
        let _ = write!(out, ".SH \"{title}\"\n.nf\n{}\n.fi\n", roff(help.trim_end()));
    }
    out
}

/// Returns text that `man` shows unchanged.
fn roff(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let shown = line.chars().map(|c| match c {
            '\\' => "\\e".to_owned(),
            '-' => "\\-".to_owned(),
            c if c.is_ascii() => c.to_string(),
            c => format!("\\[u{:04X}]", u32::from(c)),
        });
        let line: String = shown.collect();
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_their_values_and_descriptions() {
        let help = "x\n\n  --arg KEY=VALUE     one argument\n  --mcp [NAME=]COMMAND|URL\n    \
                    also offer\n  --hash              print it       [default]\n\
                    \x20 --a T, --b T    both\n  -h, --help          show this text\n";
        let options = options_of(help);
        let all: Vec<[&str; 3]> =
            options.iter().map(|one| [&*one.name, &*one.value, &*one.about]).collect();
        assert_eq!(
            all,
            [
                ["arg", "KEY=VALUE", "one argument"],
                ["mcp", "[NAME=]COMMAND|URL", "also offer"],
                ["hash", "", "print it"],
                ["a", "T", "both"],
                ["b", "T", "both"],
                ["help", "", "show this text"],
            ]
        );
    }

    #[test]
    fn every_option_that_is_suggested_is_also_completed() {
        for command in &COMMANDS {
            let help = (command.help)();
            let completed = options_of(&help);
            for option in hints::options_of(&help) {
                let is_there = completed.iter().any(|one| one.name == option);
                assert!(is_there, "{} --{option}", command.name);
            }
        }
    }

    #[test]
    fn a_page_says_what_is_there() {
        assert_eq!(roff("a-b\\n\n.x\n'y µ"), "a\\-b\\en\n\\&.x\n\\&'y \\[u00B5]");
        let page = page();
        for command in &COMMANDS {
            let title = format!("STREAMDOOR {}", command.name.to_uppercase().replace('-', "\\-"));
            assert!(page.contains(&format!(".SH \"{title}\"\n")), "{title}");
        }
    }
}
