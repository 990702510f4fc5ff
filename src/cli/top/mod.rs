//! `streamdoor top`: the activity of a server, as a view of the whole terminal.
//!
//! One thread takes samples from the server (`sample.rs`). The main thread owns the terminal
//! (`screen.rs`) and draws the samples (`frame.rs`). It thus handles keys and signals while the
//! server is silent. A rate is the growth of a counter between two samples, divided by the time
//! between them.

mod frame;
mod sample;
mod screen;

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use lexopt::prelude::*;
use streamdoor::client::{Client, ClientError};

use super::console::{self, is_dumb, print_out};
use super::options::TimeLimit;
use super::remote::{self, FollowArguments};
use super::{CliError, parsed};
use frame::{Frame, Room, Viewpoint};
use sample::TopSample;
use screen::{Input, Screen};

pub const HELP: &str = "\
streamdoor top: show the state of a server on the whole terminal

Usage: streamdoor top [OPTIONS] [URL]

URL is the address of a `streamdoor serve`: http://HOST:PORT, https://HOST:PORT or unix:PATH.
HOST:PORT alone means http. Without URL, it is $STREAMDOOR_URL. Without that too, it is the default
door if a server is there, and else http://127.0.0.1:8808.
  --door PATH         the same as unix:PATH
  --token-file FILE   the client's token, for a server that requires one: a file that only its
                      owner can read, with a token, or lines of PRINCIPAL TOKEN (the first counts)
                                      [the token in the variable STREAMDOOR_TOKEN, if it is set]
  --cacert FILE       for https: the certificate of the server or of its issuer, in PEM
                                      [the certificates that the system trusts]
  --interval T        the time between two updates: 500ms, 2s, 1m  [1s]
  --once              look twice, an interval apart, and print the state; this is the default if
                      standard output is no terminal
  -h, --help          show this text

Keys: q or Ctrl-C quits; arrows, j, k, PageUp and PageDown choose a row; s changes the order; Enter
shows the subscribers of the execution, and Esc goes back. NO_COLOR is respected. With TERM=dumb or
without TERM, the state is printed once.

  published, delivered   chunks of tools, and those handed to subscribers: each subscriber counts
  missed                 chunks that subscribers did not receive; they were told so
  held back              the times a tool had to wait for a `block` subscriber
  journal                the chunks that go to the disk, and those that it could not take; absent
                         from a server that keeps nothing
  latency                from a chunk's publication until the server has handed it on; only chunks
                         between two updates, estimated from the buckets of the server's metrics
  stalls                 turns of the server's loops that took too long and made everything wait;
                         with the work of these turns, the most frequent first; the requests of
                         this command for the metrics do not count
  lag                    how far subscribers are behind: P50 means that half of them lag at most
                         this far; the table shows the farthest one
  held by N              the tool is waiting for N subscribers now

Exit codes: 0 done; 1 failed; 2 bad usage or access denied; 3 the server cannot be reached.
";

const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
const INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Number of columns if standard output is not a terminal.
const COLUMNS_WITHOUT_TERMINAL: usize = 1_000;

#[derive(Debug)]
struct TopOptions {
    url: Option<String>,
    interval: Duration,
    once: bool,
    follow: FollowArguments,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<TopOptions>, CliError> {
    let mut options = TopOptions {
        url: None,
        interval: INTERVAL_DEFAULT,
        once: false,
        follow: FollowArguments::default(),
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("once") => options.once = true,
            Long("interval") => match parsed("interval", &mut parser)? {
                TimeLimit(Some(interval)) => options.interval = interval.max(INTERVAL_MIN),
                TimeLimit(None) => options.once = true,
            },
            Long("door") => {
                let path = parser.value()?.string()?;
                options.url = Some(format!("unix:{path}"));
            }
            Long(name @ ("token-file" | "cacert")) => {
                let name = name.to_owned();
                options.follow.take(&name, &mut parser)?;
            }
            Value(url) if options.url.is_none() => options.url = Some(url.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(options))
}

/// Carries out `streamdoor top`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    let client = options.follow.client(options.url.as_deref())?;
    let first = TopSample::take(&client).map_err(remote::failure)?;
    match options.once || is_dumb() || !io::stdout().is_terminal() {
        true => once(&client, &first, options.interval),
        false => view(&client, first, options.interval),
    }
}

fn once(client: &Client, first: &TopSample, interval: Duration) -> Result<(), CliError> {
    std::thread::sleep(interval);
    let now = TopSample::take(client).map_err(remote::failure)?;
    let address = client.address().to_string();
    let frame = Frame { address: &address, before: Some(first), now: &now, trouble: None };
    let columns = match io::stdout().is_terminal() {
        true => console::columns(io::stdout()),
        false => COLUMNS_WITHOUT_TERMINAL,
    };
    let room = Room { columns, lines: None };
    let drawn = frame.lines(room, &Viewpoint::default());
    let lines: Vec<String> = drawn.lines.into_iter().map(|(line, _)| line).collect();
    print_out!("{}", lines.join("\n"));
    Ok(())
}

type Looks = Receiver<Result<TopSample, ClientError>>;

/// Starts the thread that takes samples. Each sample makes the stream readable.
fn look(client: &Client, interval: Duration) -> io::Result<(Looks, UnixStream)> {
    let (sender, looks) = channel();
    let (news, mut teller) = UnixStream::pair()?;
    let client = client.clone();
    let looking = move || {
        loop {
            std::thread::sleep(interval);
            let seen = TopSample::take(&client);
            if sender.send(seen).is_err() || teller.write_all(&[0]).is_err() {
                return; // The view has ended.
            }
        }
    };
    std::thread::Builder::new().name("looks".to_owned()).spawn(looking)?;
    Ok((looks, news))
}

fn view(client: &Client, first: TopSample, interval: Duration) -> Result<(), CliError> {
    let (looks, news) = look(client, interval).map_err(|error| {
        CliError::Environment(format!("no thread can be started to read the server: {error}"))
    })?;
    let terminal = |error: io::Error| CliError::Failed(format!("the terminal: {error}"));
    let mut screen = Screen::enter(news).map_err(terminal)?;
    let viewed = View { address: client.address().to_string(), before: None, now: first };
    match viewed.show(&mut screen, &looks, interval) {
        // The terminal is gone, so the error has no other place to go.
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe) => Ok(()),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => Ok(()),
        shown => shown.map_err(terminal),
    }
}

struct View {
    address: String,
    before: Option<TopSample>,
    now: TopSample,
}

impl View {
    fn show(mut self, screen: &mut Screen, looks: &Looks, interval: Duration) -> io::Result<()> {
        let mut trouble: Option<String> = None;
        let mut from = Viewpoint { has_keys: true, ..Viewpoint::default() };
        loop {
            loop {
                match looks.try_recv() {
                    Ok(Ok(sample)) => {
                        self.before = Some(std::mem::replace(&mut self.now, sample));
                        trouble = None;
                    }
                    Ok(Err(error)) => trouble = Some(error.to_string()),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        return Err(io::Error::other("the thread that reads the server has ended"));
                    }
                }
            }
            let (columns, lines) = screen.size();
            let frame = Frame {
                address: &self.address,
                before: self.before.as_ref(),
                now: &self.now,
                trouble: trouble.as_deref(),
            };
            let drawn = frame.lines(Room { columns, lines: Some(lines) }, &from);
            screen.draw(&drawn.lines)?;
            match screen.wait(interval)? {
                Input::Quit => return Ok(()),
                Input::Scroll(rows) => {
                    let last = drawn.row_count.saturating_sub(1);
                    let to = (from.chosen.min(last) as i64).saturating_add(rows);
                    from.chosen = to.clamp(0, last as i64) as usize;
                }
                Input::Sort if from.opened.is_none() => from.sort = from.sort.next(),
                Input::Open if from.opened.is_none() => {
                    (from.opened, from.chosen) = (drawn.execution, 0);
                }
                Input::Back => (from.opened, from.chosen) = (None, 0),
                Input::Sort | Input::Open => {}
                Input::Redraw | Input::Nothing => {}
            }
        }
    }
}
