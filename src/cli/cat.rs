//! `streamdoor cat`: reads an execution through a door.

use std::sync::Arc;

use lexopt::prelude::*;
use streamdoor::base::{ExecutionId, Instant, SubscriberId};
use streamdoor::client::ExecuteOptions;
use streamdoor::door::{Door, DoorError, DoorReader, NamedReader, ReadOptions};
use streamdoor::reactor::Clock;
use streamdoor::shard::{Agreed, Delivery, Names};
use streamdoor::stream::{End, Terms};
use streamdoor::tool::AGENT;
use streamdoor::trace::Histogram;

use super::arguments::Arguments;
use super::console::print_out;
use super::doors::{self, DoorArguments};
use super::interrupt::Interrupt;
use super::options::TimeoutOptions;
use super::output::OutputOptions;
use super::printable::one_line;
use super::remote::{self, KindList};
use super::results::{self, Checksum, LastWords, Results};
use super::signals::stop_on_interrupt;
use super::sink::Sink;
use super::watch::Begin;
use super::{CliError, call, parsed};

pub const HELP: &str = "\
streamdoor cat: read an execution through a door: memory that is shared with the server

Usage: streamdoor cat [OPTIONS] EXECUTION              read an existing one, from its start
       streamdoor cat [OPTIONS] --tool NAME            run a tool, and read its results
       streamdoor cat [OPTIONS] --named EXECUTION      by its name in /dev/shm, without the server

  --door PATH         the socket of the server's door   [$XDG_RUNTIME_DIR/streamdoor.sock]
  --token-file FILE   the client's token, for a server that requires one: a file that only its
                      owner can read, with a token, or lines of PRINCIPAL TOKEN (the first counts)
                                      [the token in the variable STREAMDOOR_TOKEN, if it is set]

Arguments of the tool:
  --arg KEY=VALUE     one argument; VALUE is JSON, or a string if the tool takes a string
  --args-json JSON    several arguments as a JSON object; --arg overrides them
  --first-chunk-timeout T, --inactivity-timeout T, --timeout T
                      the longest time until the first chunk, between chunks, and in total:
                      500ms, 30s, 2m, 1h, or none                 [the tool's default]

Subscription:
  --from F            start: with the first chunk; live: with the next one; or a chunk's number
                                                                  [start]
  --policy P          the behaviour when this reader lags: drop, drop_oldest, buffer, block,
                      conflate, disconnect, replay
                                      [on a terminal the execution's default, elsewhere block]
  --max-chunks N, --max-bytes N
                      how far this reader may lag                 [the policy's default]
  --kinds LIST        only chunks of these kinds: stdout,stderr   [all]

Results:
  --format F          raw: the bytes unchanged
                      ndjson (or json): all events, one JSON object a line
                      text: the chunks as far as a terminal can show them
                      table: no chunks, only the table at the end
  --out FILE|-        write them to FILE, or to standard output
  --stats             print a table at the end: the chunks, the losses and the latencies
  --hash              print the SHA-256 of the received bytes
  --progress          print the progress even if standard error is no terminal
  -h, --help          show this text

  Without --format and --out, a terminal shows the text in the chunks, and a pipe receives the bytes
  (raw); with --hash, only the checksum is printed. The table and the checksum are on standard error
  if chunks are on standard output. The last line on standard error sums up. Latencies
  are from the publication of a chunk until this reader has it.

Ctrl-C ends the program. With --tool it cancels the execution, and the summary is still printed;
a second one ends the program. If the reader of the results exits (`| head -1`), that is no failure,
and an execution that --tool started is cancelled. With `block`, a slow reader of the results slows
the tool.

--named works with a server that has --named-doors. The server does not know this reader, so nobody
waits for it: the policy can be neither block nor disconnect, and all kinds are read.

Results in a file or a pipe are whole, unless --policy or --named allows losses. A line then tells
them.

Exit codes: 0 completed; 1 failed, cancelled, timed out or detached, or the server has gone; 2 bad
usage or access denied; 3 no server was found; 4 chunks are missing from the results.
If the tool runs a program (run_command) and that fails, the exit code is that of the program, or
128 plus the number of the signal that killed it. The last line then begins with
`streamdoor: the tool's program failed`.
";

#[derive(Debug, Default)]
struct CatOptions {
    execution: Option<String>,
    tool: Option<String>,
    by_name: bool,
    stats: bool,
    arguments: Arguments,
    timeouts: Option<TimeoutOptions>,
    output: OutputOptions,
    door: DoorArguments,
    read: ReadOptions,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<CatOptions>, CliError> {
    let mut options = CatOptions::default();
    let (mut timeouts, mut has_from) = (TimeoutOptions::default(), false);
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("stats") => options.stats = true,
            Long("named") => options.by_name = true,
            Long("tool") => options.tool = Some(parser.value()?.string()?),
            Long("from") => {
                options.read.from = parsed::<Begin>("from", &mut parser)?.0;
                has_from = true;
            }
            Long("policy") => options.read.policy = Some(parsed("policy", &mut parser)?),
            Long("max-chunks") => {
                options.read.limit_chunks = Some(parsed("max-chunks", &mut parser)?);
            }
            Long("max-bytes") => options.read.limit_bytes = Some(parsed("max-bytes", &mut parser)?),
            Long("kinds") => options.read.kinds = parsed::<KindList>("kinds", &mut parser)?.0,
            Long(name) => {
                let name = name.to_owned();
                if timeouts.take(&name, &mut parser)? {
                    options.timeouts = Some(timeouts);
                } else if !(options.arguments.take(&name, &mut parser)?
                    || options.output.take(&name, &mut parser)?
                    || options.door.take(&name, &mut parser)?)
                {
                    return Err(lexopt::Error::UnexpectedOption(format!("--{name}")).into());
                }
            }
            Value(id) if options.execution.is_none() => options.execution = Some(id.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let usage = |text: &str| Err(CliError::Usage(text.to_owned()));
    match (&options.execution, &options.tool) {
        (None, None) => usage("no execution is given: add EXECUTION, or --tool NAME"),
        (Some(_), Some(_)) => usage("EXECUTION and --tool NAME cannot be given together"),
        (_, Some(_)) if has_from => usage("--from: a tool is always read from its start"),
        (_, Some(_)) if options.by_name => {
            usage("--named: only a server runs a tool; leave out --tool")
        }
        (Some(_), None) if options.timeouts.is_some() => usage("timeouts need --tool NAME"),
        _ => Ok(Some(options)),
    }
}

/// Carries out `streamdoor cat`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(mut options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    options.output.view(false)?; // Wrong output options are reported before anything is done.
    if !options.by_name {
        options.read.policy = options.output.policy(options.read.policy);
    }
    let opened = match options.execution.take() {
        Some(id) if options.by_name => by_name(&id, &options)?,
        Some(id) => through_door(remote::execution(&id)?, &options)?,
        None => of_tool(&mut options)?,
    };
    let (place, sink) = remote::sink(&options.output, options.read.kinds)?;
    let label = opened.terms.policy.to_string();
    let mut taker = Taker {
        sink,
        names: opened.names,
        checksum: Checksum::new(options.output.hash),
        latency: Histogram::default(),
        end: None,
    };
    let began = Clock::now();
    taker.begin(&opened.tool, opened.subscriber, &opened.terms, opened.from_seq);
    let read = taker.take_all(opened.source);
    let took = Clock::now().since(began);
    let output = taker.sink.close();
    read.map_err(doors::failure)?;
    let Some((end, error)) = taker.end else {
        // The reader of the results has gone, so no table is printed.
        if let Some(interrupt) = opened.interrupt {
            interrupt.interrupted();
        }
        return place.conclude(output.as_ref().err(), LastWords::default(), Ok(()));
    };
    let verdict = results::verdict_of("the reader", &end, error.as_deref());
    let verdict = verdict
        .and_then(|()| results::whole(options.output.is_kept(), opened.terms.policy, end.missed));
    let sha256 = taker.checksum.finish();
    let unwritten = output.as_ref().err().map(|error| std::io::Error::from(error.kind()));
    let results = Results { label, latency: taker.latency, end, error, sha256, output };
    let summary = results::summary(&end, took);
    let results = [results];
    let report = if options.stats || options.output.is_table() {
        let head = format!("{} {}: {}", opened.tool, opened.execution, end.state);
        format!("{}\n{}", head.trim_start(), results::table(&results, "policy", took))
    } else {
        results::checksums(&results)
    };
    place.conclude(unwritten.as_ref(), LastWords { report, summary }, verdict)
}

/// The opened execution, and everything known about it.
struct Opened {
    source: DeliverySource,
    execution: ExecutionId,
    tool: String,
    names: Names,
    subscriber: SubscriberId,
    terms: Terms,
    from_seq: u64,
    /// Cancels the execution if this command started it.
    interrupt: Option<Arc<Interrupt>>,
}

/// The source of the deliveries.
enum DeliverySource {
    Door(DoorReader),
    Name(NamedReader),
}

impl DeliverySource {
    fn poll(&mut self) -> Result<Option<Delivery<'_>>, DoorError> {
        match self {
            DeliverySource::Door(reader) => reader.poll(),
            DeliverySource::Name(reader) => reader.poll(),
        }
    }

    fn next(&mut self) -> Result<Option<Delivery<'_>>, DoorError> {
        match self {
            DeliverySource::Door(reader) => reader.next(),
            DeliverySource::Name(reader) => reader.next(),
        }
    }
}

fn by_name(id: &str, options: &CatOptions) -> Result<Opened, CliError> {
    let execution = remote::execution(id)?;
    let reader = NamedReader::open(execution, &options.read).map_err(|error| match error {
        DoorError::NoServer { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            CliError::Environment(format!(
                "no execution is named {execution} in /dev/shm: it has ended, or its server runs \
                 without --named-doors"
            ))
        }
        error => doors::failure(error),
    })?;
    Ok(Opened {
        execution,
        tool: String::new(), // The name does not tell the tool.
        names: Names::new(execution, None),
        subscriber: reader.id(),
        terms: reader.terms(),
        from_seq: reader.next_seq(),
        source: DeliverySource::Name(reader),
        interrupt: None,
    })
}

fn through_door(execution: ExecutionId, options: &CatOptions) -> Result<Opened, CliError> {
    open(&options.door.open()?, execution, &options.read)
}

fn open(door: &Door, execution: ExecutionId, read: &ReadOptions) -> Result<Opened, CliError> {
    let reader = door.read(&execution.to_string(), read).map_err(doors::failure)?;
    let client = door.client().map_err(doors::failure)?;
    let status = client.inspect(execution).map_err(remote::failure)?;
    Ok(Opened {
        execution,
        tool: one_line(&status.tool),
        names: Names { has_parts: status.tool == AGENT, ..Names::new(execution, status.token) },
        subscriber: reader.id(),
        terms: reader.terms(),
        from_seq: reader.next_seq(),
        source: DeliverySource::Door(reader),
        interrupt: None,
    })
}

/// Runs the tool, and cancels the execution on Ctrl-C.
fn of_tool(options: &mut CatOptions) -> Result<Opened, CliError> {
    let door = options.door.open()?;
    let client = door.client().map_err(doors::failure)?;
    let name = options.tool.take().unwrap_or_default();
    let tool = call::tool(&client, &name)?;
    let arguments = std::mem::take(&mut options.arguments).merged(&tool.arguments)?;
    let timeouts = options.timeouts.map(|timeouts| timeouts.over(tool.timeouts));
    let execute = ExecuteOptions { timeouts, ..ExecuteOptions::default() };
    let interrupt = Arc::new(Interrupt::new(client.clone()));
    let at_interrupt = Arc::clone(&interrupt);
    stop_on_interrupt(move || at_interrupt.interrupted())?;
    let created = client.execute(&tool.name, &arguments, &execute).map_err(remote::failure)?;
    interrupt.begun(created.execution);
    let opened = open(&door, created.execution, &options.read)?;
    Ok(Opened { interrupt: Some(interrupt), ..opened })
}

/// Passes deliveries to the output.
struct Taker {
    sink: Sink,
    names: Names,
    checksum: Checksum,
    latency: Histogram,
    end: Option<(End, Option<String>)>,
}

impl Taker {
    fn begin(&mut self, tool: &str, subscriber: SubscriberId, terms: &Terms, from_seq: u64) {
        let Taker { sink, names, .. } = self;
        let agreed = Agreed { subscriber, terms: *terms, from_seq, replay: None };
        names.write_started(tool, agreed, |event| {
            sink.take(event, false, Instant::ZERO);
        });
    }

    /// Takes all deliveries up to the end, or until the output fails.
    fn take_all(&mut self, mut source: DeliverySource) -> Result<(), DoorError> {
        loop {
            if let Some(delivery) = source.poll()? {
                self.take(&delivery);
            } else {
                // The output so far is shown before this blocks.
                self.sink.flush();
                if self.sink.has_failed() {
                    return Ok(());
                }
                match source.next()? {
                    Some(delivery) => self.take(&delivery),
                    None => return Ok(()),
                }
            }
            if self.end.is_some() || self.sink.has_failed() {
                return Ok(());
            }
        }
    }

    fn take(&mut self, delivery: &Delivery<'_>) {
        let now = Clock::now();
        let mut more = false;
        match delivery {
            Delivery::Chunk(chunk) => {
                more = chunk.more;
                self.latency.record(now.since(chunk.published_at).as_nanos() as u64);
                self.checksum.update(chunk.data);
            }
            Delivery::Gap(_) | Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                self.end = Some((ended.end, ended.error.map(one_line)));
            }
        }
        self.sink.take(&delivery.event(&self.names), more, now);
    }
}
