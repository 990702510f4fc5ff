//! The subcommands and the parts that they share: usage texts, errors and exit codes.

mod agent;
mod arguments;
mod call;
mod cat;
#[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "options are read in any case"))]
mod cluster;
mod completions;
mod console;
mod demo;
mod doctor;
mod doors;
mod hints;
mod interrupt;
mod journal;
mod model_script;
mod options;
mod output;
mod pipe;
mod printable;
mod progress;
mod remote;
mod results;
mod run;
mod serve;
mod server_url;
mod session;
mod settings;
mod signals;
mod sink;
mod stdio;
mod telemetry;
mod terminal;
mod token_file;
mod tools;
mod top;
mod upstreams;
mod version;
mod view;
mod watch;
mod words;

use std::fmt;
use std::process::ExitCode;

use lexopt::prelude::*;
use streamdoor::server::Log;
use streamdoor::trace::{Level, LogFormat};

use console::{print_err, print_out};

const HELP: &str = "\
streamdoor: stream the results of tools to many subscribers while the tools still run

Usage: streamdoor COMMAND [OPTIONS]

Commands:
  run       run a tool, and show its results as they arrive
  serve     let clients run tools and follow them, over HTTP
  stdio     serve the client that started this program, as its MCP server
  tools     list the tools and their arguments
  demo      compare what subscribers with different policies receive from one tool
  call      run a tool of a server, and show its results as they arrive
  watch     list the executions of a server, or follow one of them
  cat       read an execution through a door: memory that is shared with the server
  pipe      turn standard input into an execution, through a door
  top       show the state of a server on the whole terminal: rates, lag, losses
  agent     run a model that calls tools until its task is done, and show its progress
  model-script
            serve a model whose answers come from a file
  journal   list the executions of a journal, read one of them, or check all files
  cluster   make the stores of a cluster in NATS, or show its state
  doctor    check what this machine offers streamdoor, and suggest improvements
  completions
            print a script that completes commands in bash, zsh or fish
  man       print the manual page

Options:
  -h, --help       show this text; `streamdoor help COMMAND` shows a command's, and so does
                   `streamdoor COMMAND --help`
  -V, --version    show the version, and what this program and machine support

Exit codes: 0 done, 1 failed, 2 bad usage, 3 the environment lacks something, or the server cannot
be reached, 4 chunks are missing from the results.
";

/// The reason why a command failed.
#[derive(Debug)]
pub enum CliError {
    /// The command line is wrong.
    Usage(String),
    /// No command is given. The help text of the program tells the commands.
    NoCommand,
    /// The command has no such option.
    UnknownOption(String),
    /// The call of the tool is wrong: its name or an argument.
    Call(String),
    /// The command was carried out and failed.
    Failed(String),
    /// A program that the tool ran has failed, with this exit code.
    Exited(String, u8),
    /// The execution completed, but chunks are missing from its results.
    Incomplete(String),
    /// The machine lacks something. The text says what, and how to get it.
    Environment(String),
    /// The command failed, and its output has already said everything about it.
    Told,
    /// A server failed whose log is JSON: the error is a record of the log.
    Logged(Box<CliError>),
}

impl CliError {
    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            CliError::Failed(_) | CliError::Told => 1,
            CliError::Usage(_)
            | CliError::NoCommand
            | CliError::UnknownOption(_)
            | CliError::Call(_) => 2,
            CliError::Environment(_) => 3,
            CliError::Incomplete(_) => 4,
            CliError::Exited(_, code) => *code,
            CliError::Logged(error) => return error.exit_code(),
        })
    }

    /// Returns the error as a record of a log in this format.
    fn in_log(self, format: LogFormat) -> CliError {
        match format {
            LogFormat::Json => CliError::Logged(Box::new(self)),
            LogFormat::Text => self,
        }
    }

    /// Adds to the error for an unknown option the nearest one that the command's help text has.
    fn suggesting(self, help: &str) -> CliError {
        match self {
            CliError::UnknownOption(option) => {
                CliError::Usage(hints::unknown_option(&option, help))
            }
            CliError::Logged(error) => CliError::Logged(Box::new(error.suggesting(help))),
            other => other,
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CliError::Usage(text) => write!(out, "{text} (see --help)"),
            CliError::NoCommand => out.write_str("no command is given (see --help)"),
            CliError::UnknownOption(option) => {
                write!(out, "unknown option {option} (see --help)")
            }
            CliError::Call(text)
            | CliError::Failed(text)
            | CliError::Exited(text, _)
            | CliError::Incomplete(text)
            | CliError::Environment(text) => out.write_str(text),
            CliError::Told => out.write_str("failed"),
            CliError::Logged(error) => error.fmt(out),
        }
    }
}

impl From<lexopt::Error> for CliError {
    fn from(error: lexopt::Error) -> CliError {
        match error {
            lexopt::Error::UnexpectedOption(option) => CliError::UnknownOption(option),
            other => CliError::Usage(other.to_string()),
        }
    }
}

/// Prints the error on standard error, unless the output has already said everything.
pub fn complain(error: &CliError) {
    match error {
        CliError::Told => {}
        CliError::Logged(error) => {
            let log = Log::start(LogFormat::Json, Level::Error, std::io::stderr());
            let Ok(log) = log else { return print_err!("streamdoor: {error}") };
            serve::log_event(&log, Level::Error, "failed", |line| {
                line.text("error", &error.to_string());
            });
            log.close();
        }
        CliError::NoCommand => print_err!("{}", HELP.trim_end()),
        _ => print_err!("streamdoor: {error}"),
    }
}

/// A command of the program.
struct Command {
    name: &'static str,
    help: fn() -> String,
    run: fn(lexopt::Parser) -> Result<(), CliError>,
}

/// The commands, in the order of the help text.
const COMMANDS: [Command; 17] = [
    Command { name: "run", help: || run::HELP.to_owned(), run: run::run },
    Command { name: "serve", help: serve::help, run: serve::run },
    Command { name: "stdio", help: stdio::help, run: stdio::run },
    Command { name: "tools", help: || tools::HELP.to_owned(), run: tools::run },
    Command { name: "demo", help: || demo::HELP.to_owned(), run: demo::run },
    Command { name: "call", help: || call::HELP.to_owned(), run: call::run },
    Command { name: "watch", help: || watch::HELP.to_owned(), run: watch::run },
    Command { name: "cat", help: || cat::HELP.to_owned(), run: cat::run },
    Command { name: "pipe", help: || pipe::HELP.to_owned(), run: pipe::run },
    Command { name: "top", help: || top::HELP.to_owned(), run: top::run },
    Command { name: "agent", help: || agent::HELP.to_owned(), run: agent::run },
    Command { name: "model-script", help: model_script::help, run: model_script::run },
    Command { name: "journal", help: || journal::HELP.to_owned(), run: journal::run },
    Command { name: "cluster", help: || cluster::HELP.to_owned(), run: cluster::run },
    Command { name: "doctor", help: || doctor::HELP.to_owned(), run: doctor::run },
    Command { name: "completions", help: || completions::HELP.to_owned(), run: completions::run },
    Command { name: "man", help: || completions::MAN_HELP.to_owned(), run: completions::man },
];

/// The words that are no [`COMMANDS`] but can be given in their place.
const HELP_WORD: &str = "help";
const VERSION_WORD: &str = "version";

/// Carries out the command line.
pub fn run() -> Result<(), CliError> {
    signals::survive_file_limits()?;
    carry_out(lexopt::Parser::from_env())
}

fn carry_out(mut parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(argument) = parser.next()? else { return Err(CliError::NoCommand) };
    match argument {
        Short('h') | Long("help") => print_out!("{}", HELP.trim_end()),
        Short('V') | Long("version") => print_out!("{}", version::text()),
        Value(word) if word == HELP_WORD => print_out!("{}", help(parser)?.trim_end()),
        Value(word) if word == VERSION_WORD => {
            no_more(&mut parser)?;
            print_out!("{}", version::text());
        }
        Value(word) => {
            let command = find(&word.to_string_lossy())?;
            return (command.run)(parser).map_err(|error| error.suggesting(&(command.help)()));
        }
        other => return Err(CliError::from(other.unexpected()).suggesting(HELP)),
    }
    Ok(())
}

/// Finds the command of that name. The error names the nearest one.
fn find(name: &str) -> Result<&'static Command, CliError> {
    COMMANDS.iter().find(|command| command.name == name).ok_or_else(|| {
        let names = COMMANDS.iter().map(|command| command.name).chain([HELP_WORD, VERSION_WORD]);
        let hint = hints::did_you_mean(hints::nearest(name, names));
        CliError::Usage(format!("unknown command {name:?}{hint}"))
    })
}

/// Returns the help text that `streamdoor help [COMMAND]` prints.
fn help(mut parser: lexopt::Parser) -> Result<String, CliError> {
    let text = match parser.next()? {
        Some(Value(word)) if word != HELP_WORD && word != VERSION_WORD => {
            (find(&word.to_string_lossy())?.help)()
        }
        None | Some(Value(_) | Short('h') | Long("help")) => HELP.to_owned(),
        Some(other) => return Err(CliError::from(other.unexpected()).suggesting(HELP)),
    };
    no_more(&mut parser)?;
    Ok(text)
}

/// Fails if the command line continues.
fn no_more(parser: &mut lexopt::Parser) -> Result<(), CliError> {
    match parser.next()? {
        None => Ok(()),
        Some(more) => Err(more.unexpected().into()),
    }
}

/// Parses the value of the option `--option`. The usage error names the option and the value.
fn parsed<T>(option: &str, parser: &mut lexopt::Parser) -> Result<T, CliError>
where
    T: std::str::FromStr,
    T::Err: fmt::Display + 'static,
{
    let text = parser.value()?.string()?;
    text.parse().map_err(|error| {
        let problem = hints::wrong_value::<T>(&text, &error);
        CliError::Usage(format!("--{option} {text}: {problem}"))
    })
}

#[cfg(test)]
mod tests;
