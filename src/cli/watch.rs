//! `streamdoor watch`: lists the executions of a server with their progress, or follows one.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

use lexopt::prelude::*;
use streamdoor::client::{Client, Progress, ProgressOf, Summary};
use streamdoor::engine::From;

use super::console::print_out;
use super::options::TimeLimit;
use super::output::OutputOptions;
use super::printable::one_line;
use super::remote::{self, FollowArguments};
use super::server_url::{is_url, not_urls};
use super::{CliError, parsed};

pub const HELP: &str = "\
streamdoor watch: list the executions of a server, or follow one of them

Usage: streamdoor watch [OPTIONS] [URL]             list the executions and their progress
       streamdoor watch [OPTIONS] [URL] EXECUTION   show the results of one as they arrive

URL is the address of a `streamdoor serve`: http://HOST:PORT, https://HOST:PORT or unix:PATH.
HOST:PORT alone means http. Without URL, it is $STREAMDOOR_URL. Without that too, it is the default
door if a server is there, and else http://127.0.0.1:8808.
  --token-file FILE   the client's token, for a server that requires one: a file that only its
                      owner can read, with a token, or lines of PRINCIPAL TOKEN (the first counts)
                                      [the token in the variable STREAMDOOR_TOKEN, if it is set]
  --cacert FILE       for https: the certificate of the server or of its issuer, in PEM
                                      [the certificates that the system trusts]

On a terminal, the list is updated until Ctrl-C; elsewhere it is printed once.
  --interval T        the time between two updates                [1s]
  --once              print the list once, even on a terminal

One execution:
  --from F            start: with the first chunk; live: with the next one; or a chunk's number
                                                                  [start]
  --policy P          the behaviour when this reader lags: drop, drop_oldest, buffer, block,
                      conflate, disconnect, replay
                                      [on a terminal the execution's default, elsewhere block]
  --max-chunks N, --max-bytes N
                      how far this reader may lag                 [the policy's default]
  --kinds LIST        only chunks of these kinds: stdout,stderr   [all]
  --coalesce T        the longest time that chunks wait to be sent together: 500us, 2ms
  --reconnects N      reconnect at most N times in a row; 0: never              [16]
  --format F, --out FILE|-, --hash, --progress
                      the same as for `streamdoor call`
  -h, --help          show this text

After a broken connection, the client resumes at the same place. With block, results are
acknowledged once they are written. Results in a file or a pipe are whole, unless --policy allows
losses. A line then tells them. That includes chunks that were gone before this client connected,
unless --from begins after them. Ctrl-C ends the program, not the execution.

Exit codes: 0 completed; 1 failed, cancelled, timed out or detached, or the stream broke off; 2 bad
usage or access denied; 3 the server cannot be reached; 4 chunks are missing from the results.
If the tool runs a program (run_command) and that fails, the exit code is that of the program, or
128 plus the number of the signal that killed it. The last line then begins with
`streamdoor: the tool's program failed`.
";

const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct WatchOptions {
    url: Option<String>,
    execution: Option<String>,
    interval: Duration,
    once: bool,
    from: Begin,
    output: OutputOptions,
    follow: FollowArguments,
}

/// The position at which to begin.
#[derive(Clone, Copy, Debug, Default)]
pub struct Begin(pub From);

impl std::str::FromStr for Begin {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Begin, &'static str> {
        Ok(Begin(match text {
            "start" => From::Start,
            "live" => From::Live,
            _ => match text.parse() {
                Ok(seq) if seq > 0 => From::Seq { seq, seen: None },
                _ => return Err("must be start, live or the number of a chunk"),
            },
        }))
    }
}

fn options(mut parser: lexopt::Parser) -> Result<Option<WatchOptions>, CliError> {
    let mut options = WatchOptions {
        url: None,
        execution: None,
        interval: INTERVAL_DEFAULT,
        once: false,
        from: Begin::default(),
        output: OutputOptions::default(),
        follow: FollowArguments::default(),
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("once") => options.once = true,
            Long("from") => options.from = parsed("from", &mut parser)?,
            Long("interval") => match parsed("interval", &mut parser)? {
                TimeLimit(Some(interval)) => options.interval = interval,
                TimeLimit(None) => options.once = true,
            },
            Long(name) => {
                let name = name.to_owned();
                if !(options.output.take(&name, &mut parser)?
                    || options.follow.take(&name, &mut parser)?)
                {
                    return Err(lexopt::Error::UnexpectedOption(format!("--{name}")).into());
                }
            }
            Value(word) => options.take_word(word.string()?)?,
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(options))
}

impl WatchOptions {
    /// Takes the URL or the id of the execution.
    fn take_word(&mut self, word: String) -> Result<(), CliError> {
        match &self.execution {
            _ if self.url.is_none() && is_url(&word) => self.url = Some(word),
            None => self.execution = Some(word),
            Some(earlier) if self.url.is_none() => return Err(not_urls(earlier, &word)),
            Some(_) => return Err(lexopt::Error::UnexpectedArgument(word.into()).into()),
        }
        Ok(())
    }
}

/// Carries out `streamdoor watch`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    let client = options.follow.client(options.url.as_deref())?;
    match &options.execution {
        None => list(&client, &options),
        Some(id) => follow(&client, id, &options),
    }
}

fn follow(client: &Client, id: &str, options: &WatchOptions) -> Result<(), CliError> {
    let id = remote::execution(id)?;
    let mut follow = options.follow.options_for(&options.output);
    follow.from = options.from.0;
    let kinds = follow.delivery_options.kinds;
    let stream = client.follow(id, follow).map_err(remote::failure)?;
    let (place, sink) = remote::sink(&options.output, kinds)?;
    remote::follow(stream, &options.output, &place, sink, |_| {}, || {})
}

fn list(client: &Client, options: &WatchOptions) -> Result<(), CliError> {
    let is_renewed = io::stdout().is_terminal() && !options.once;
    loop {
        let executions = client.executions().map_err(remote::failure)?;
        let progress = client.progress().map_err(remote::failure)?;
        let table = table(&executions, &progress);
        if !is_renewed {
            print_out!("{table}");
            return Ok(());
        }
        clear();
        print_out!("{}\n{table}", client.address());
        std::thread::sleep(options.interval);
    }
}

/// Moves to the top left of the terminal and clears everything after it.
fn clear() {
    const CLEAR: &str = "\x1b[H\x1b[J";
    let _ = io::stdout().write_all(CLEAR.as_bytes()); // The next line reports an error.
}

/// Returns the table, with columns as wide as their contents.
fn table(executions: &[Summary], progress: &[ProgressOf]) -> String {
    const TITLES: [&str; 8] =
        ["execution", "tool", "state", "chunks", "bytes", "subscribers", "age", "progress"];
    let rows = executions.iter().map(|summary| {
        let of = progress.iter().find(|progress| progress.execution == summary.execution);
        [
            summary.execution.to_string(),
            one_line(&summary.tool),
            summary.state.name().to_owned(),
            summary.chunks.to_string(),
            summary.bytes.to_string(),
            summary.subscribers.to_string(),
            format!("{:.1} s", summary.age_ms as f64 / 1_000.0),
            of.and_then(|of| of.progress.as_ref()).map_or_else(String::new, in_words),
        ]
    });
    let rows: Vec<[String; 8]> = std::iter::once(TITLES.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 8] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let _ = match column {
                3..=6 => write!(line, "{cell:>width$}  "), // Numbers.
                _ => write!(line, "{cell:<width$}  "),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.truncate(text.trim_end().len());
    text
}

/// Returns progress such as `30 % (3 of 10) reading`.
fn in_words(progress: &Progress) -> String {
    let mut text = match progress.total.filter(|total| *total > 0.0) {
        Some(total) => {
            let percentage = (100.0 * progress.progress / total).clamp(0.0, 100.0);
            format!("{percentage:.0} % ({} of {total})", progress.progress)
        }
        None => progress.progress.to_string(),
    };
    if let Some(message) = &progress.message {
        text.push(' ');
        text.push_str(&one_line(message));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use streamdoor::stream::{ExecutionState, Outcome};

    #[test]
    fn the_url_and_the_execution_are_told_apart() {
        for (words, expected) in [
            (&[][..], Ok((None, None))),
            (&["unix:/run/x"], Ok((Some("unix:/run/x"), None))),
            (&["localhost:8808", "id"], Ok((Some("localhost:8808"), Some("id")))),
            (&["id"], Ok((None, Some("id")))),
            (&["localhost", "id"], Err("neither \"localhost\" nor \"id\" is a URL")),
            (&["a:1", "id", "more"], Err("unexpected argument \"more\"")),
        ] {
            match (options(lexopt::Parser::from_args(words)), expected) {
                (Ok(Some(options)), Ok(expected)) => {
                    assert_eq!((options.url.as_deref(), options.execution.as_deref()), expected);
                }
                (Err(error), Err(expected)) => {
                    assert!(error.to_string().contains(expected), "{error}");
                }
                (found, _) => panic!("{words:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn executions_are_listed_with_their_progress() {
        let id = |digit: &str| digit.repeat(26).parse().unwrap();
        let summary = |digit: &str, tool: &str, state| Summary {
            execution: id(digit),
            thread: None,
            node: None,
            tool: tool.to_owned(),
            state,
            chunks: 12,
            bytes: 3_456,
            subscribers: 1,
            age_ms: 1_250,
            created_at: String::new(),
            ended_at: None,
        };
        let executions = [
            summary("0", "search_files", ExecutionState::Running),
            summary("1", "a\x1b[2Jb", ExecutionState::Ended(Outcome::TimedOut)),
        ];
        let (total, message, context) = (Some(10.0), Some("read\ning".to_owned()), None);
        let progress = Progress { progress: 3.0, total, percentage: Some(30.0), message, context };
        let (token, execution) = ("0".repeat(39).parse().unwrap(), id("0"));
        let progress = [ProgressOf { token, execution, progress: Some(progress) }];
        let zeros = "0".repeat(26);
        let ones = "1".repeat(26);
        let expected = format!(
            "execution                   tool          state      chunks  bytes  subscribers    \
             age  progress\n\
             {zeros}  search_files  running        12   3456            1  1.2 s  \
             30 % (3 of 10) read ing\n\
             {ones}  a^[[2Jb       timed_out      12   3456            1  1.2 s"
        );
        assert_eq!(table(&executions, &progress), expected);
    }
}
