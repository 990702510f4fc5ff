//! `streamdoor call`: runs a tool on a server, as `streamdoor run` runs one locally.

use std::sync::Arc;

use lexopt::prelude::*;
use streamdoor::client::{Client, ExecuteOptions, StartedEvent, Tool};

use super::CliError;
use super::arguments::Arguments;
use super::console::print_out;
use super::hints::unknown_name;
use super::interrupt::Interrupt;
use super::options::TimeoutOptions;
use super::output::OutputOptions;
use super::printable::one_line;
use super::remote::{self, FollowArguments};
use super::server_url::{is_url, not_urls};
use super::signals::stop_on_interrupt;

pub const HELP: &str = "\
streamdoor call: run a tool of a server, and show its results as they arrive

Usage: streamdoor call [OPTIONS] [URL] TOOL

URL is the address of a `streamdoor serve`: http://HOST:PORT, https://HOST:PORT or unix:PATH.
HOST:PORT alone means http. Without URL, it is $STREAMDOOR_URL. Without that too, it is the default
door if a server is there, and else http://127.0.0.1:8808.
  --token-file FILE   the client's token, for a server that requires one: a file that only its
                      owner can read, with a token, or lines of PRINCIPAL TOKEN (the first counts)
                                      [the token in the variable STREAMDOOR_TOKEN, if it is set]
  --cacert FILE       for https: the certificate of the server or of its issuer, in PEM
                                      [the certificates that the system trusts]

Arguments of the tool:
  --arg KEY=VALUE     one argument; VALUE is JSON, or a string if the tool takes a string
  --args-json JSON    several arguments as a JSON object; --arg overrides them

Results:
  --format F          raw: the bytes unchanged
                      ndjson (or json): all events, one JSON object a line
                      text: the chunks as far as a terminal can show them
                      table: no chunks, only the totals at the end
  --out FILE|-        write them to FILE, or to standard output
  --hash              print the SHA-256 of the received bytes
  --progress          print the progress even if standard error is no terminal

  Without --format and --out, a terminal shows the text in the chunks, and a pipe receives the bytes
  (raw); with --hash, only the totals are printed. With --out alone, the format is raw. The totals
  are on standard error if chunks are on standard output.

Subscription:
  --policy P          the behaviour when this reader lags: drop, drop_oldest, buffer, block,
                      conflate, disconnect, replay
                                      [on a terminal the tool's default, elsewhere block]
  --max-chunks N, --max-bytes N
                      how far this reader may lag                 [the policy's default]
  --kinds LIST        only chunks of these kinds: stdout,stderr   [all]
  --coalesce T        the longest time that chunks wait to be sent together: 500us, 2ms
  --reconnects N      reconnect at most N times in a row; 0: never              [16]
  --first-chunk-timeout T, --inactivity-timeout T, --timeout T
                      the longest time until the first chunk, between chunks, and in total:
                      500ms, 30s, 2m, 1h, or none                 [the tool's default]
  -h, --help          show this text

After a broken connection, the client resumes at the same place: nothing arrives twice, and losses
are reported. With block, results are acknowledged once they are written, so that the server keeps
those that a broken connection lost. The totals cover all connections.

Ctrl-C (or SIGTERM) cancels the execution, and the totals are still printed. A second one ends the
program. If the reader of the results exits (`| head -1`), the execution is cancelled, and that is
no failure.

Results in a file or a pipe are whole, unless --policy allows losses. A line then tells them.

Exit codes: 0 completed; 1 failed, cancelled, timed out or detached, or the stream broke off; 2 bad
usage or access denied; 3 the server cannot be reached; 4 chunks are missing from the results.
If the tool runs a program (run_command) and that fails, the exit code is that of the program, or
128 plus the number of the signal that killed it. The last line then begins with
`streamdoor: the tool's program failed`.
";

#[derive(Debug, Default)]
struct CallOptions {
    url: Option<String>,
    tool: String,
    arguments: Arguments,
    output: OutputOptions,
    timeouts: Option<TimeoutOptions>,
    follow: FollowArguments,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<CallOptions>, CliError> {
    let mut options = CallOptions::default();
    let mut timeouts = TimeoutOptions::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long(name) => {
                let name = name.to_owned();
                if timeouts.take(&name, &mut parser)? {
                    options.timeouts = Some(timeouts);
                } else if !(options.arguments.take(&name, &mut parser)?
                    || options.output.take(&name, &mut parser)?
                    || options.follow.take(&name, &mut parser)?)
                {
                    return Err(lexopt::Error::UnexpectedOption(format!("--{name}")).into());
                }
            }
            Value(word) => options.take_word(word.string()?)?,
            other => return Err(other.unexpected().into()),
        }
    }
    match options.tool.as_str() {
        "" => Err(CliError::Usage("no tool is given: add TOOL".to_owned())),
        _ => Ok(Some(options)),
    }
}

impl CallOptions {
    /// Takes the URL or the tool.
    fn take_word(&mut self, word: String) -> Result<(), CliError> {
        if self.url.is_none() && is_url(&word) {
            self.url = Some(word);
        } else if self.tool.is_empty() {
            self.tool = word;
        } else if self.url.is_none() {
            return Err(not_urls(&self.tool, &word));
        } else {
            return Err(lexopt::Error::UnexpectedArgument(word.into()).into());
        }
        Ok(())
    }
}

/// Carries out `streamdoor call`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    options.output.view(false)?; // Wrong output options are reported before anything is done.
    let client = options.follow.client(options.url.as_deref())?;
    let tool = tool(&client, &options.tool)?;
    let arguments = options.arguments.merged(&tool.arguments)?;
    let timeouts = options.timeouts.map(|timeouts| timeouts.over(tool.timeouts));
    let execute = ExecuteOptions { timeouts, ..ExecuteOptions::default() };
    let follow = options.follow.options_for(&options.output);
    let (place, sink) = remote::sink(&options.output, follow.delivery_options.kinds)?;
    let stream = client.call(&tool.name, &arguments, &execute, follow).map_err(remote::failure)?;
    let interrupt = Arc::new(Interrupt::new(client));
    let at_interrupt = Arc::clone(&interrupt);
    stop_on_interrupt(move || at_interrupt.interrupted())?;
    let begun = |started: &StartedEvent| interrupt.begun(started.execution);
    let unwanted = || interrupt.interrupted();
    remote::follow(stream, &options.output, &place, sink, begun, unwanted)
}

/// Finds the tool of that name. The error lists the tools of the server, the nearest one first.
pub fn tool(client: &Client, name: &str) -> Result<Tool, CliError> {
    let mut tools = client.tools().map_err(remote::failure)?;
    match tools.iter().position(|tool| tool.name == name) {
        Some(at) => Ok(tools.swap_remove(at)),
        None => {
            let known: Vec<String> = tools.iter().map(|tool| one_line(&tool.name)).collect();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let problem = format!("unknown tool `{name}`");
            Err(CliError::Call(unknown_name(&problem, name, &known, "server's tools are")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_and_the_tool_are_told_apart_in_any_order() {
        for (words, expected) in [
            (&["tool"][..], Ok((None, "tool"))),
            (&["http://a:1", "tool"], Ok((Some("http://a:1"), "tool"))),
            (&["tool", "unix:/run/x"], Ok((Some("unix:/run/x"), "tool"))),
            (&["localhost:8808", "tool"], Ok((Some("localhost:8808"), "tool"))),
            (&["a:1", "b:2"], Ok((Some("a:1"), "b:2"))),
            (&["a:1"], Err("no tool is given")),
            (&[], Err("no tool is given")),
            (&["localhost", "tool"], Err("neither \"localhost\" nor \"tool\" is a URL")),
            (&["a:1", "tool", "more"], Err("unexpected argument \"more\"")),
        ] {
            match (options(lexopt::Parser::from_args(words)), expected) {
                (Ok(Some(options)), Ok(expected)) => {
                    assert_eq!((options.url.as_deref(), options.tool.as_str()), expected);
                }
                (Err(error), Err(expected)) => {
                    assert!(error.to_string().contains(expected), "{error}");
                }
                (found, _) => panic!("{words:?}: {found:?}"),
            }
        }
    }
}
