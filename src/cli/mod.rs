//! The subcommands and the parts that they share: usage texts, errors and exit codes.

mod agent;
mod arguments;
mod call;
mod cat;
mod console;
mod demo;
mod doctor;
mod doors;
mod interrupt;
mod model_script;
mod options;
mod output;
mod pipe;
mod progress;
mod remote;
mod results;
mod run;
mod serve;
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
mod view;
mod watch;

use std::fmt;
use std::process::ExitCode;

use lexopt::prelude::*;

use console::{print_err, print_out};

const HELP: &str = "\
streamdoor: stream the results of tools to many subscribers while the tools still run

Usage: streamdoor COMMAND [OPTIONS]

Commands:
  run       run a tool, and show its results as they arrive
  serve     let clients run tools and follow them, over HTTP
  stdio     serve the client that started this program, as its MCP server
  tools     list the tools and their arguments
  demo      run a slow tool or stream a file with several subscribers, and show their latencies
  call      run a tool of a server, and show its results as they arrive
  watch     list the executions of a server, or follow one of them
  cat       read an execution through a door: memory that is shared with the server
  pipe      turn standard input into an execution, through a door
  top       show the state of a server on the whole terminal: rates, lag, losses
  agent     run a model that calls tools until its task is done, and show its progress
  model-script
            serve a model whose answers come from a file
  doctor    check what this machine offers streamdoor, and suggest improvements

Options:
  -h, --help       show this text; `streamdoor COMMAND --help` shows a command's
  -V, --version    show the version

Exit codes: 0 done, 1 failed, 2 bad usage, 3 the environment lacks something, or the server cannot
be reached, 4 chunks are missing from the results.
";

/// The reason why a command failed.
#[derive(Debug)]
pub enum CliError {
    /// The command line is wrong.
    Usage(String),
    /// The call of the tool is wrong: its name or an argument.
    Call(String),
    /// The command was carried out and failed.
    Failed(String),
    /// The execution completed, but chunks are missing from its results.
    Incomplete(String),
    /// The machine lacks something. The text says what, and how to get it.
    Environment(String),
    /// The command failed, and its output has already said everything about it.
    Told,
}

impl CliError {
    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            CliError::Failed(_) | CliError::Told => 1,
            CliError::Usage(_) | CliError::Call(_) => 2,
            CliError::Environment(_) => 3,
            CliError::Incomplete(_) => 4,
        })
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CliError::Usage(text) => write!(out, "{text} (see --help)"),
            CliError::Call(text)
            | CliError::Failed(text)
            | CliError::Incomplete(text)
            | CliError::Environment(text) => out.write_str(text),
            CliError::Told => out.write_str("failed"),
        }
    }
}

impl From<lexopt::Error> for CliError {
    fn from(error: lexopt::Error) -> CliError {
        CliError::Usage(error.to_string())
    }
}

/// Prints the error on standard error, unless the output has already said everything.
pub fn complain(error: &CliError) {
    if !matches!(error, CliError::Told) {
        print_err!("streamdoor: {error}");
    }
}

/// Carries out the command line.
pub fn run() -> Result<(), CliError> {
    signals::survive_file_limits()?;
    let mut parser = lexopt::Parser::from_env();
    let Some(argument) = parser.next()? else {
        return Err(CliError::Usage("no command is given".to_owned()));
    };
    match argument {
        Short('h') | Long("help") => {
            print_out!("{}", HELP.trim_end());
            Ok(())
        }
        Short('V') | Long("version") => {
            print_out!("streamdoor {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Value(command) => match command.to_str() {
            Some("run") => run::run(parser),
            Some("tools") => tools::run(parser),
            Some("demo") => demo::run(parser),
            Some("serve") => serve::run(parser),
            Some("stdio") => stdio::run(parser),
            Some("call") => call::run(parser),
            Some("watch") => watch::run(parser),
            Some("cat") => cat::run(parser),
            Some("pipe") => pipe::run(parser),
            Some("doctor") => doctor::run(parser),
            Some("top") => top::run(parser),
            Some("agent") => agent::run(parser),
            Some("model-script") => model_script::run(parser),
            Some("help") => {
                print_out!("{}", HELP.trim_end());
                Ok(())
            }
            _ => Err(CliError::Usage(format!("unknown command {command:?}"))),
        },
        other => Err(other.unexpected().into()),
    }
}

/// Parses the value of the option `--option`. The usage error names the option and the value.
fn parsed<T>(option: &str, parser: &mut lexopt::Parser) -> Result<T, CliError>
where
    T: std::str::FromStr,
    T::Err: fmt::Display,
{
    let text = parser.value()?.string()?;
    text.parse().map_err(|error| CliError::Usage(format!("--{option} {text}: {error}")))
}
