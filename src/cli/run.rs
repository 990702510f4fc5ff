//! `streamdoor run`: a tool, from the command line. Its results come as it makes them; then the
//! table of what each subscriber saw.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::prelude::*;
use serde_json::{Map, Value as Json};
use streamdoor::engine::{SubscribeSpec, Timeouts};
use streamdoor::shard::ExecuteOptions;
use streamdoor::tool::SubscribeDefaults;

use super::console::{note, say};
use super::options::{Common, TimeLimit};
use super::progress::{Meter, Style};
use super::results::{self, Results};
use super::session::{self, Session, Watcher};
use super::signals::cancel_on_interrupt;
use super::view::{Counter, View, Writer};
use super::{CliError, arguments, parsed};

const HELP: &str = "\
streamdoor run: run a tool, and show its results as they come

Usage: streamdoor run [OPTIONS] TOOL

Arguments of the tool (`streamdoor tools TOOL` lists them):
  --arg KEY=VALUE     one of them; where the tool wants a string, VALUE is one, else JSON
  --args-json JSON    several as a JSON object; --arg goes over them
  --allow-commands    have the tools that run other programs, too

Results:
  --format F          raw: the bytes, as they are
                      ndjson: all events, one JSON object a line
                      table: no chunks, only the table at the end
  --out FILE|-        write them to FILE, or to standard output
  --hash              print the SHA-256 of what each subscriber was given
  --progress          print how far it is, also where standard error is no terminal

  Without --format and --out, a terminal shows what is text in the chunks; a pipe is given the bytes
  (raw); with --hash there is only the table. With --out alone, the format is raw. The table is on
  standard error where chunks are on standard output.

How it runs:
  --subscribers N     how many follow it, each a thread; the first one's results are shown  [1]
  --policy P          what happens when one lags: drop, drop_oldest, buffer, block,
                      conflate, disconnect                        [what the tool says]
  --limit-chunks N    how far it may lag                          [what the policy says]
  --first-chunk-timeout T, --inactivity-timeout T, --timeout T
                      how long until the first chunk, between chunks, and in all:
                      500ms, 30s, 2m, 1h, or none                 [what the tool says]
  --reactor R         auto, uring or mio                          [auto]
  --idle I            spin, backoff or block                      [backoff]
  -h, --help          this text

Ctrl-C (or SIGTERM) stops the tool, and the table is still printed; a second one ends the program.
If who reads the results goes away (`| head -1`), the tool is stopped and that is no failure.

Exit codes: 0 completed, 1 failed, cancelled or timed out, 2 bad usage, 3 the environment lacks
something.
";

/// Whoever reads standard output may take a break: a pager does. The pipe behind it holds the tool
/// back, and that is meant; so the deadline for readers that hold it back is out of the way.
const BLOCK_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3_600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Raw,
    Ndjson,
    Table,
}

impl std::str::FromStr for Format {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Format, &'static str> {
        match text {
            "raw" => Ok(Format::Raw),
            "ndjson" => Ok(Format::Ndjson),
            "table" => Ok(Format::Table),
            _ => Err("must be raw, ndjson or table"),
        }
    }
}

/// Where chunks go.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    Stdout,
    File(PathBuf),
}

#[derive(Debug)]
struct Options {
    tool: String,
    pairs: Vec<(String, String)>,
    fields: Map<String, Json>,
    allow_commands: bool,
    out: Option<PathBuf>,
    format: Option<Format>,
    hash: bool,
    progress: bool,
    first_chunk: Option<TimeLimit>,
    inactivity: Option<TimeLimit>,
    total: Option<TimeLimit>,
    common: Common,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<Options>, CliError> {
    let mut options = Options {
        tool: String::new(),
        pairs: Vec::new(),
        fields: Map::new(),
        allow_commands: false,
        out: None,
        format: None,
        hash: false,
        progress: false,
        first_chunk: None,
        inactivity: None,
        total: None,
        common: Common::new(1),
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("arg") => options.pairs.push(arguments::pair(&parser.value()?.string()?)?),
            Long("args-json") => {
                options.fields.extend(arguments::object(&parser.value()?.string()?)?);
            }
            Long("allow-commands") => options.allow_commands = true,
            Long("out") => options.out = Some(PathBuf::from(parser.value()?)),
            Long("format") => options.format = Some(parsed("format", &mut parser)?),
            Long("hash") => options.hash = true,
            Long("progress") => options.progress = true,
            Long("first-chunk-timeout") => {
                options.first_chunk = Some(parsed("first-chunk-timeout", &mut parser)?);
            }
            Long("inactivity-timeout") => {
                options.inactivity = Some(parsed("inactivity-timeout", &mut parser)?);
            }
            Long("timeout") => options.total = Some(parsed("timeout", &mut parser)?),
            Long(other) => {
                let other = other.to_owned();
                options.common.take(&other, &mut parser)?;
            }
            Value(name) if options.tool.is_empty() => options.tool = name.string()?,
            other => return Err(other.unexpected().into()),
        }
    }
    if options.tool.is_empty() {
        return Err(CliError::Usage("which tool? `streamdoor tools` lists them".to_owned()));
    }
    Ok(Some(options))
}

impl Options {
    /// Where chunks go, and how; see the help text.
    fn view(&self, stdout_is_terminal: bool) -> Result<(Place, View), CliError> {
        let place = match &self.out {
            Some(path) if path == Path::new("-") => Some(Place::Stdout),
            Some(path) => Some(Place::File(path.clone())),
            None => None,
        };
        match (self.format, place) {
            (Some(Format::Table), Some(Place::Stdout)) => {
                let text = "--out -: --format table writes no chunks to standard output";
                Err(CliError::Usage(text.to_owned()))
            }
            (Some(Format::Table), place) => Ok((place.unwrap_or(Place::Nowhere), View::Raw)),
            (Some(Format::Ndjson), place) => Ok((place.unwrap_or(Place::Stdout), View::Ndjson)),
            (Some(Format::Raw), place) => Ok((place.unwrap_or(Place::Stdout), View::Raw)),
            (None, Some(place)) => Ok((place, View::Raw)),
            (None, None) if self.hash => Ok((Place::Nowhere, View::Raw)),
            (None, None) if stdout_is_terminal => Ok((Place::Stdout, View::Terminal)),
            (None, None) => Ok((Place::Stdout, View::Raw)),
        }
    }

    fn timeouts(&self, declared: Timeouts) -> Timeouts {
        let chosen = |limit: Option<TimeLimit>, or| limit.map_or(or, |TimeLimit(limit)| limit);
        Timeouts {
            first_chunk: chosen(self.first_chunk, declared.first_chunk),
            inactivity: chosen(self.inactivity, declared.inactivity),
            total: chosen(self.total, declared.total),
        }
    }

    fn subscribe_spec(&self, declared: SubscribeDefaults) -> SubscribeSpec {
        let policy = self.common.policy.unwrap_or(declared.policy);
        // The tool's limits are meant for the tool's policy.
        let declared = if policy == declared.policy { declared } else { Default::default() };
        SubscribeSpec {
            policy,
            limit_chunks: self.common.limit_chunks.or(declared.limit_chunks),
            limit_bytes: declared.limit_bytes,
            ..Default::default()
        }
    }

    fn style(&self) -> Style {
        match (io::stderr().is_terminal(), self.progress) {
            (true, _) => Style::Bar,
            (false, true) => Style::Lines,
            (false, false) => Style::Off,
        }
    }
}

/// Carries out `streamdoor run`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(mut options) = options(parser)? else {
        say!("{}", HELP.trim_end());
        return Ok(());
    };
    let (place, view) = options.view(io::stdout().is_terminal())?;
    let tools = session::tools(options.allow_commands);
    let spec = session::spec(&tools, &options.tool)?;
    let (fields, pairs) = (std::mem::take(&mut options.fields), std::mem::take(&mut options.pairs));
    let arguments = arguments::merged(fields, pairs, &spec.arguments);
    let prepared = session::prepare(&tools, &options.tool, &arguments)?;
    let execute_options = ExecuteOptions {
        timeouts: Some(options.timeouts(prepared.timeouts)),
        block_deadline: Some(BLOCK_DEADLINE),
        ..Default::default()
    };
    let subscribe_spec = options.subscribe_spec(spec.subscribers);
    // Last of all what can not be taken back: an older file of that name is gone now.
    let file = open(&place)?;
    let Common { subscribers, reactor, idle, .. } = options.common;
    let session = Session::open((reactor, idle), prepared, subscribers, execute_options)?;
    cancel_on_interrupt(session.canceller())?;
    let writer = Writer::new(
        (options.tool.clone(), session.names()),
        Meter::new(options.style()),
        session.canceller(),
        file.map(|file| (file, view)),
    );
    let mut watchers: Vec<Box<dyn Watcher>> = vec![Box::new(writer)];
    watchers.resize_with(subscribers, || Box::new(Counter));
    let head = format!("{} {}; {}", options.tool, session.id(), session.report());
    let (results, took) = session.follow(subscribe_spec, watchers, options.hash)?;
    report(&results, &format!("{head}\n{}", results::table(&results, "ended", took)), &place)
}

fn open(place: &Place) -> Result<Option<File>, CliError> {
    match place {
        Place::Nowhere => Ok(None),
        // Not through the standard library's own buffer: it looks for line ends in all of it.
        Place::Stdout => match io::stdout().as_fd().try_clone_to_owned() {
            Ok(descriptor) => Ok(Some(File::from(descriptor))),
            Err(error) => Err(CliError::Failed(format!("standard output: {error}"))),
        },
        Place::File(path) => match File::create(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) => Err(CliError::Failed(format!("--out {}: {error}", path.display()))),
        },
    }
}

/// Prints the table, and judges. Who reads standard output and has left wants no table either.
fn report(results: &[Results], table: &str, place: &Place) -> Result<(), CliError> {
    let unwritten = results.iter().find_map(|results| results.output.as_ref().err());
    if unwritten.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        return Ok(());
    }
    match place {
        Place::Stdout => note!("{table}"),
        Place::Nowhere | Place::File(_) => say!("{table}"),
    }
    match (unwritten, place) {
        (Some(error), Place::File(path)) => {
            Err(CliError::Failed(format!("--out {}: {error}", path.display())))
        }
        (Some(error), _) => Err(CliError::Failed(format!("standard output: {error}"))),
        (None, _) => results::verdict(results),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(arguments: &[&str], stdout_is_terminal: bool) -> Option<(Place, View)> {
        let arguments = [&["tool"], arguments].concat();
        let parser = lexopt::Parser::from_args(arguments);
        options(parser).unwrap().unwrap().view(stdout_is_terminal).ok()
    }

    #[test]
    fn chunks_go_where_a_user_expects_them() {
        let file = || Place::File(PathBuf::from("file"));
        assert_eq!(view(&[], true), Some((Place::Stdout, View::Terminal)));
        for is_terminal in [false, true] {
            let view = |arguments: &[&str]| view(arguments, is_terminal);
            assert_eq!(view(&["--hash"]), Some((Place::Nowhere, View::Raw)));
            assert_eq!(view(&["--out", "file"]), Some((file(), View::Raw)));
            assert_eq!(view(&["--hash", "--out", "-"]), Some((Place::Stdout, View::Raw)));
            assert_eq!(view(&["--format", "raw"]), Some((Place::Stdout, View::Raw)));
            assert_eq!(view(&["--format", "ndjson"]), Some((Place::Stdout, View::Ndjson)));
            let ndjson = ["--format", "ndjson", "--out", "file"];
            assert_eq!(view(&ndjson), Some((file(), View::Ndjson)));
            assert_eq!(view(&["--format", "table"]), Some((Place::Nowhere, View::Raw)));
            let table = ["--format", "table", "--out", "file"];
            assert_eq!(view(&table), Some((file(), View::Raw)));
            assert_eq!(view(&["--format", "table", "--out", "-"]), None);
        }
        assert_eq!(view(&[], false), Some((Place::Stdout, View::Raw)));
    }
}
