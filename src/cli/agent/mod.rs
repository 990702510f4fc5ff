//! `streamdoor agent`: a model that calls tools until its task is done, shown while it happens.

mod local;
mod remote;
mod screen;
#[cfg(test)]
mod screen_tests;
mod show;

use std::io::Read;
use std::time::Duration;

use lexopt::prelude::*;
use serde_json::{Map, Value, json};
use streamdoor::agent::Strategy;
use streamdoor::agent::model::Wire;
use streamdoor::limits;

use super::console::print_out;
use super::options::{Common, TimeLimit};
use super::remote::FollowArguments;
use super::server_url::optional_value;
use super::{CliError, parsed};
use local::LocalRun;
use show::{Show, ShowFormat};

pub const HELP: &str = "\
streamdoor agent: run a model that calls tools until its task is done, and show its progress

Usage: streamdoor agent [OPTIONS] TASK

TASK is the task in words; `-` reads it from standard input.

The model:
  --model M           the model's name at its provider; with --server, its name in the server's
                      settings                          [with --server: the server's first model]
  --base-url URL      the model's address: http(s)://HOST[:PORT]/PATH. The default is OpenAI's or
                      Anthropic's own
  --wire W            the model's protocol: chat (OpenAI's chat completions and compatible ones),
                      responses (OpenAI's) or messages (Anthropic's)                     [chat]
  --key-env NAME      the environment variable that holds the key; none: send no key
                                          [OPENAI_API_KEY, or ANTHROPIC_API_KEY for messages]
  --system TEXT       instructions for the model, before the task
  --max-tokens N      the most tokens of one answer
  --temperature T, --reasoning-effort low|medium|high
                      passed to the model                               [the model's default]

The tools:
  --tools a,b         the tools the model may call; all: every one except agents; none     [none]
  --allow-commands    also offer the tools that run other programs
  --command-env NAME[=VALUE]
                      also pass this environment variable to these programs; may be repeated
  --mcp [NAME=]COMMAND|URL
                      also offer the tools of another MCP server; may be repeated
  --mcp-tools [NAME:]RULES
                      choose and rename its tools, as for `streamdoor serve`
  --files-root DIR    offer only files below DIR                              [all]
  --strategy S        after_turn: run tools when the model has finished its turn; eager: run each
                      tool as soon as its arguments are complete         [after_turn]
  --parallel N        the most tool calls at once

Limits:
  --max-steps N, --max-total-tokens N, --timeout T (90s, 10m, 1h)

Results:
  --format F          text: for people: the model's text on standard output; the rest (reasoning,
                      a line for each tool, totals at the end) on standard error
                      ndjson: all events, one JSON object a line; sse: as server-sent events
  --show-output       with text: also show the whole output of tools, each line with its tool
  --accumulate        repeat all earlier text of the step with each piece of text

Where it runs:
  (nothing)           in this process
  --listen ADDRESS    in this process, and let others follow it: standard error shows the command
                      to do so. ADDRESS:PORT of this machine, or unix:PATH
  --server [URL]      on a streamdoor server: http(s)://HOST:PORT, HOST:PORT or unix:PATH. Without
                      URL, it is the server of `streamdoor call` without URL
  --token-file FILE, --cacert FILE, --reconnects N
                      for --server: the same as for `streamdoor call`, and so is STREAMDOOR_TOKEN
  --reactor R, --idle I
                      the same as for `streamdoor run`
  -h, --help          show this text

Ctrl-C (or SIGTERM) cancels the run: the model's connection is closed, the tools are stopped, and
the totals are still printed. A second one ends the program. The key is read only from the
environment and sent only to the model, and no tool can read it.

Exit codes: 0 completed; 1 failed, cancelled or timed out; 2 bad usage; 3 the environment lacks
something, or the server cannot be reached.
";

/// The options of the command.
#[derive(Default)]
struct AgentOptions {
    task: Option<String>,
    /// The arguments of the run, except its task.
    arguments: Map<String, Value>,
    format: ShowFormat,
    /// True if the whole output of tools is shown.
    shows_output: bool,
    model: Option<String>,
    here: LocalRun,
    /// True if options were given that are only for a run in this process.
    is_here: bool,
    /// True if the run is on a server.
    is_on_server: bool,
    url: Option<String>,
    follow: FollowArguments,
    is_there: bool,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<AgentOptions>, CliError> {
    let mut options = AgentOptions::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long(name) => {
                let name = name.to_owned();
                let is_taken = options.take(&name, &mut parser)?
                    || options.take_argument(&name, &mut parser)?
                    || options.take_place(&name, &mut parser)?;
                if !is_taken {
                    return Err(lexopt::Error::UnexpectedOption(format!("--{name}")).into());
                }
            }
            Value(task) if options.task.is_none() => options.task = Some(task.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    if options.is_on_server && options.is_here {
        let text = "--server: only the server sets the model's address and the limits of tools";
        return Err(CliError::Usage(text.to_owned()));
    }
    if !options.is_on_server && options.is_there {
        let text = "--token-file, --cacert and --reconnects need --server";
        return Err(CliError::Usage(text.to_owned()));
    }
    Ok(Some(options))
}

impl AgentOptions {
    fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        match name {
            "format" => self.format = parsed(name, parser)?,
            "show-output" => self.shows_output = true,
            "model" => self.model = Some(parser.value()?.string()?),
            "server" => {
                self.url = optional_value(parser)?;
                self.is_on_server = true;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes an option that is an argument of the run. Returns false if it is not one of these.
    fn take_argument(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        let field = name.replace('-', "_");
        let value = match name {
            "system" | "reasoning-effort" => json!(parser.value()?.string()?),
            "strategy" => json!(parsed::<Strategy>(name, parser)?.name()),
            "max-tokens" | "max-total-tokens" | "max-steps" | "parallel" => {
                json!(parsed::<u64>(name, parser)?)
            }
            "temperature" => json!(parsed::<f64>(name, parser)?),
            "accumulate" => json!(true),
            "tools" => match parser.value()?.string()?.as_str() {
                "all" => json!("all"),
                "" | "none" => json!([]),
                names => json!(names.split(',').map(str::trim).collect::<Vec<_>>()),
            },
            "timeout" => {
                let TimeLimit(limit) = parsed(name, parser)?;
                let limit = limit.unwrap_or(limits::AGENT_DURATION_MAX);
                self.arguments.insert("timeout_ms".to_owned(), ms(limit).into());
                return Ok(true);
            }
            _ => return Ok(false),
        };
        self.arguments.insert(field, value);
        Ok(true)
    }

    fn take_place(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        if self.here.take(name, parser)? {
            self.is_here = true;
            return Ok(true);
        }
        let is_taken = matches!(name, "token-file" | "cacert" | "reconnects")
            && self.follow.take(name, parser)?;
        self.is_there |= is_taken;
        Ok(is_taken)
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Carries out `streamdoor agent`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    let AgentOptions {
        task, mut arguments, format, shows_output, model, here, url, follow, ..
    } = options;
    let task = match task.as_deref() {
        None => {
            return Err(CliError::Usage(
                "no task is given: add TASK, or `-` to read it from standard input".to_owned(),
            ));
        }
        Some("-") => read_task()?,
        Some(task) => task.to_owned(),
    };
    arguments.insert("task".to_owned(), task.into());
    let show = Show::new(format, shows_output);
    match options.is_on_server {
        true => {
            if let Some(model) = model {
                arguments.insert("model".to_owned(), model.into());
            }
            remote::run(url.as_deref(), &follow, &Value::Object(arguments), show)
        }
        false => {
            let model = model
                .ok_or_else(|| CliError::Usage("no model is given: add --model M".to_owned()))?;
            here.run(&model, Value::Object(arguments), show)
        }
    }
}

/// Returns the tools that the arguments of a run name.
fn named_tools(arguments: &Value) -> impl Iterator<Item = &str> {
    arguments["tools"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn read_task() -> Result<String, CliError> {
    let mut task = String::new();
    let limit = limits::HTTP_BODY_BYTES_MAX;
    let read = std::io::stdin().take(limit).read_to_string(&mut task);
    read.map_err(|error| CliError::Failed(format!("standard input: {error}")))?;
    Ok(task)
}

/// Parses the value of `--wire`.
fn wire(parser: &mut lexopt::Parser) -> Result<Wire, CliError> {
    parsed("wire", parser)
}

/// Returns the default kernel interface and idle behaviour.
fn common() -> Common {
    Common::new(1)
}
