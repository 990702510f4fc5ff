//! `streamdoor model-script`: a model server whose replies come from a script file, for tests and
//! demonstrations.

mod serve;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use lexopt::prelude::*;
use streamdoor::agent::script::{FORMAT, Script, ScriptedModel};
use streamdoor::limits::SCRIPT_BYTES_MAX;
use streamdoor::reactor::{Choice, ListenAddress, ListenError};

use super::console::print_out;
use super::signals::stop_on_interrupt;
use super::{CliError, parsed};
use serve::Serving;

const HELP: &str = "\
streamdoor model-script: serve a model whose answers come from a script

Usage: streamdoor model-script [OPTIONS] FILE

It speaks OpenAI's chat completions (POST /v1/chat/completions), OpenAI's Responses (POST
/v1/responses) and Anthropic's Messages (POST /v1/messages), as streams and as plain answers, and
GET /v1/models. FILE sets its answers, their speed, and its failures.

  --listen ADDRESS    listen on ADDRESS:PORT (port 0: any free one) or unix:PATH
                                                                        [127.0.0.1:8809]
  --quiet             print no line for each request on standard error
  --check             read FILE, and exit
  --reactor R         auto, uring or mio                                [auto]
  -h, --help          show this text

The first line on standard output is its address. Ctrl-C (or SIGTERM) ends it. An address that other
machines can reach is refused unless the script requires a key.

Exit codes: 0 stopped, 1 failed, 2 bad usage or a wrong script, 3 the environment lacks something.

";

const LISTEN: &str = "127.0.0.1:8809";

struct ModelScriptOptions {
    file: Option<PathBuf>,
    listen: ListenAddress,
    is_quiet: bool,
    is_check: bool,
    reactor: Choice,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<ModelScriptOptions>, CliError> {
    let listen = LISTEN.parse().expect("it is one");
    let (file, reactor) = (None, Choice::Auto);
    let mut options =
        ModelScriptOptions { file, listen, is_quiet: false, is_check: false, reactor };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("listen") => options.listen = parsed("listen", &mut parser)?,
            Long("quiet") => options.is_quiet = true,
            Long("check") => options.is_check = true,
            Long("reactor") => options.reactor = parsed("reactor", &mut parser)?,
            Value(path) if options.file.is_none() => options.file = Some(path.into()),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(options))
}

/// Returns the help text.
pub fn help() -> String {
    format!("{HELP}{FORMAT}")
}

/// Carries out `streamdoor model-script`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print_out!("{}", help().trim_end());
        return Ok(());
    };
    let file =
        options.file.ok_or_else(|| CliError::Usage("no script is given: add FILE".to_owned()))?;
    let script = read(&file)?;
    if options.is_check {
        print_out!("{}: {} turns", file.display(), script.turns.len());
        return Ok(());
    }
    if is_reachable(&options.listen) && script.key.is_none() {
        let error = ListenError::Unguarded { address: options.listen };
        return Err(CliError::Usage(error.to_string()));
    }
    let model = ScriptedModel::new(script);
    let mut serving = Serving::open(options.reactor, &options.listen, model, options.is_quiet)?;
    let (stop, stopped) = mpsc::channel();
    let waker = serving.waker();
    stop_on_interrupt(move || {
        let _ = stop.send(()); // The server may have ended by itself.
        waker.wake();
    })?;
    match serving.address() {
        ListenAddress::Tcp(address) => print_out!("{} at http://{address}/v1", file.display()),
        address => print_out!("{} at {address}", file.display()),
    }
    serving.run(&stopped);
    Ok(())
}

fn is_reachable(address: &ListenAddress) -> bool {
    matches!(address, ListenAddress::Tcp(address) if !address.ip().is_loopback())
}

fn read(path: &Path) -> Result<Script, CliError> {
    let problem = |text: String| CliError::Usage(format!("{}: {text}", path.display()));
    let file = File::open(path).map_err(|error| problem(error.to_string()))?;
    let mut text = String::new();
    let limit = SCRIPT_BYTES_MAX as u64 + 1;
    file.take(limit).read_to_string(&mut text).map_err(|error| problem(error.to_string()))?;
    if text.len() > SCRIPT_BYTES_MAX {
        return Err(problem(format!("is longer than {SCRIPT_BYTES_MAX} bytes")));
    }
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let read = if is_json { Script::from_json(&text) } else { Script::from_toml(&text) };
    read.map_err(|error| problem(error.to_string()))
}
