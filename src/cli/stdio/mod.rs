//! `streamdoor stdio`: the server of one MCP client, which starts this program. They exchange
//! messages over the standard streams. With `--listen`, the server also serves others over HTTP.
//!
//! Standard output carries only the protocol. The log is on standard error. `streams.rs` connects
//! the standard streams to the shard.

mod streams;

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;
use streamdoor::limits;
use streamdoor::reactor::ReleasedSocket;
use streamdoor::server::{LineOptions, Log, Server};
use streamdoor::trace::Level;

use super::console::print_out;
use super::options::{Span, spelled};
use super::serve::{Fixtures, RunningServer, ServerSetup, announce, log_event, start};
use super::settings::{self, AutoPath, Builtin, Number, Settings, find_flag};
use super::{CliError, parsed};
use streams::{Carriers, open};

const HELP_HEAD: &str = "\
streamdoor stdio: serve the client that started this program, as its MCP server

Usage: streamdoor stdio [OPTIONS]

  --stdio-settle TIME             send the reply to a call this time after its last notification,
                                  for clients that drop what arrives together with it [0]
  --conformance                   also offer the tools, prompts and resources of the public
                                  conformance suite
  --config FILE                   read settings from a TOML file: the names below, with _ for -
  -h, --help                      show this text

Settings, which override those of the file:
";

const HELP_TAIL: &str = "
Standard input and standard output carry JSON-RPC messages, one a line. With --listen, others can
follow executions over HTTP, and run tools. The program ends with standard input, or with SIGTERM
or Ctrl-C: running executions are cancelled, and pending replies are still written. A second signal
ends it at once.

Exit codes: 0 ended, 1 failed, 2 bad usage, 3 the environment lacks something.
";

/// Returns the defaults. The client waits for the start, and shows log records to its user as
/// trouble.
fn defaults() -> Settings {
    Settings {
        listen: Vec::new(),
        journal: AutoPath::Off,
        connections_max: Number(limits::STDIO_CONNECTIONS_MAX),
        builtin: Builtin::None,
        log_level: Level::Warn,
        ..Settings::default()
    }
}

enum Command {
    Help,
    Serve { settings: Box<Settings>, settle: Duration, fixtures: Option<Fixtures> },
}

fn command(mut parser: lexopt::Parser) -> Result<Command, CliError> {
    let (mut file, mut settle, mut words) = (None, Duration::ZERO, Vec::new());
    let mut fixtures = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("config") if file.is_some() => {
                return Err(CliError::Usage("--config: give one file only".to_owned()));
            }
            Long("config") => file = Some(PathBuf::from(parser.value()?)),
            Long("stdio-settle" | "stdio_settle") => settle = settle_time(&mut parser)?,
            Long("conformance") => fixtures = Some(Fixtures::default()),
            Long(flag) => {
                let name = find_flag(flag)?;
                words.push((name.to_owned(), settings::flag_value(name, &mut parser)?));
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let settings = Box::new(defaults().with(file.as_deref(), &words)?);
    match settings.cpus.0.len() {
        0 | 1 => Ok(Command::Serve { settings, settle, fixtures }),
        _ => Err(CliError::Usage("cpus: stdio has one shard; give one core only".to_owned())),
    }
}

fn settle_time(parser: &mut lexopt::Parser) -> Result<Duration, CliError> {
    let Span(settle) = parsed("stdio-settle", parser)?;
    if settle <= limits::STDIO_SETTLE_MAX {
        return Ok(settle);
    }
    let (settle, max) = (spelled(settle), spelled(limits::STDIO_SETTLE_MAX));
    Err(CliError::Usage(format!("--stdio-settle {settle}: must be at most {max}")))
}

/// Returns the help text.
pub fn help() -> String {
    format!("{HELP_HEAD}{}{HELP_TAIL}", settings::help(&defaults()))
}

/// Carries out `streamdoor stdio`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    match command(parser).map_err(|error| error.in_log(settings::asked_format()))? {
        Command::Help => {
            print_out!("{}", help().trim_end());
            Ok(())
        }
        Command::Serve { settings, settle, fixtures } => {
            serve(&settings, settle, fixtures).map_err(|error| error.in_log(settings.log))
        }
    }
}

fn serve(
    settings: &Settings,
    settle: Duration,
    fixtures: Option<Fixtures>,
) -> Result<(), CliError> {
    // This comes first: after `ServerSetup::prepare`, /proc shows nothing of this process.
    let streams =
        open().map_err(|error| CliError::Environment(format!("the standard streams: {error}")))?;
    let mut setup = ServerSetup::prepare(settings)?;
    let spoken = start(settings, &mut setup, fixtures).and_then(|started| {
        let RunningServer { server, node, exporter, upstreams } = started;
        let spoken = speak(settings, settle, &setup, server, streams);
        drop(node);
        upstreams.end();
        exporter.finish();
        spoken
    });
    setup.log.close();
    spoken
}

/// Exchanges messages with the client until either side ends.
fn speak(
    settings: &Settings,
    settle: Duration,
    setup: &ServerSetup,
    server: Server,
    (socket, carriers): (ReleasedSocket, Carriers),
) -> Result<(), CliError> {
    let ended = setup.ender.clone();
    let on_end: Box<dyn FnOnce() + Send> = Box::new(move || {
        let _ = ended.send(()); // If nobody receives it, the server is already ending.
    });
    let options = LineOptions { settle, on_end: Some(on_end) };
    let shard = server.handles().next().expect("there is one").clone();
    match shard.call(move |shard| shard.open_lines(socket, options)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(CliError::Failed(format!("the standard streams: {error}"))),
        Err(error) => return Err(CliError::Failed(format!("the shard ended: {error:?}"))),
    }
    announce(settings, setup, &server);
    let streams = carriers.to_string();
    log_event(&setup.log, Level::Info, "speaking", |line| line.text("streams", &streams));
    let _ = setup.stop.recv();
    end(settings, server, carriers, &setup.log)
}

/// Ends in order: replies are still sent and written, until the deadline passes.
fn end(settings: &Settings, server: Server, carriers: Carriers, log: &Log) -> Result<(), CliError> {
    let deadline = settings.drain_deadline.0;
    log_event(log, Level::Info, "stopping", |line| line.number("deadline_s", deadline.as_secs()));
    server.drain(deadline);
    let written = carriers.finish(deadline);
    log_event(log, Level::Info, "stopped", |_| {});
    written.map_err(|error| CliError::Failed(format!("standard output: {error}")))
}
