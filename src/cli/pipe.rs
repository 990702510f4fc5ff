//! `streamdoor pipe`: publishes standard input as an execution, through a door.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use lexopt::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use streamdoor::client::ExecuteOptions;
use streamdoor::door::{DoorError, DoorWriter, ProduceOptions, WriteError};
use streamdoor::endpoint::PolicyChoice;
use streamdoor::engine::Hold;
use streamdoor::limits;
use streamdoor::stream::{Kind, Policy};

use super::console::{print_err, print_out};
use super::doors::{self, DoorArguments};
use super::interrupt::Interrupt;
use super::options::TimeLimit;
use super::signals::stop_on_interrupt;
use super::words::counted;
use super::{CliError, parsed};

pub const HELP: &str = "\
streamdoor pipe: turn standard input into an execution, through a door

Usage: PROGRAM | streamdoor pipe [OPTIONS] NAME

NAME is the tool name in lists of executions. The execution's id is printed on standard output at
once. Others follow it with `streamdoor cat ID`, over HTTP, or through MCP, like any other.

  --door PATH         the socket of the server's door   [$XDG_RUNTIME_DIR/streamdoor.sock]
  --token-file FILE   the client's token, for a server that requires one: a file that only its
                      owner can read, with a token, or lines of PRINCIPAL TOKEN (the first counts)
                                      [the token in the variable STREAMDOOR_TOKEN, if it is set]

  --as F              bytes: a chunk is what can be read at once
                      lines: a chunk is a line, with its end      [bytes]
  --chunk-bytes N     the longest chunk; a longer line is split   [32768]
  --kind K            the kind of the chunks: output, stdout, stderr, log, row, json …   [output]
  --policy P          the default policy of readers: drop, drop_oldest, buffer, block, conflate,
                      disconnect, replay                          [block]
  --hold T            keep the beginning until somebody reads, at most this long: 30s, 5m, or none;
                      a full ring slows PROGRAM for this time     [30s]
  --inactivity-timeout T
                      the longest time without input              [none]
  -h, --help          show this text

A reader with `block` slows this program, which then slows PROGRAM: input is read only when there is
room for it. Ctrl-C (or SIGTERM) cancels the execution; a second one ends the program. If the
execution is cancelled, this program ends, and PROGRAM gets SIGPIPE at its next write.

Exit codes: 0 completed; 1 failed, cancelled or timed out, or the server has gone; 2 bad usage or
access denied; 3 no server was found.
";

const CHUNK_BYTES_DEFAULT: u32 = 32 << 10; // The size of the reads of the sift seed.
const CHUNK_BYTES_MAX: u32 = 256 << 10;
/// While no input arrives, the command checks at this interval whether the execution was stopped.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Cut {
    #[default]
    Bytes,
    Lines,
}

impl std::str::FromStr for Cut {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Cut, &'static str> {
        match text {
            "bytes" => Ok(Cut::Bytes),
            "lines" => Ok(Cut::Lines),
            _ => Err("must be bytes or lines"),
        }
    }
}

#[derive(Debug)]
struct PipeOptions {
    name: String,
    door: DoorArguments,
    cut: Cut,
    chunk_bytes: u32,
    kind: Kind,
    policy: Policy,
    hold: TimeLimit,
    inactivity: TimeLimit,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<PipeOptions>, CliError> {
    let mut options = PipeOptions {
        name: String::new(),
        door: DoorArguments::default(),
        cut: Cut::default(),
        chunk_bytes: CHUNK_BYTES_DEFAULT,
        kind: Kind::Output,
        policy: Policy::Block,
        hold: TimeLimit(Some(limits::ATTACH_DEADLINE)),
        inactivity: TimeLimit(None),
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("as") => options.cut = parsed("as", &mut parser)?,
            Long("chunk-bytes") => options.chunk_bytes = parsed("chunk-bytes", &mut parser)?,
            Long("kind") => options.kind = parsed("kind", &mut parser)?,
            Long("policy") => options.policy = parsed("policy", &mut parser)?,
            Long("hold") => options.hold = parsed("hold", &mut parser)?,
            Long("inactivity-timeout") => {
                options.inactivity = parsed("inactivity-timeout", &mut parser)?;
            }
            Long(name) => {
                let name = name.to_owned();
                if !options.door.take(&name, &mut parser)? {
                    return Err(lexopt::Error::UnexpectedOption(format!("--{name}")).into());
                }
            }
            Value(name) if options.name.is_empty() => options.name = name.string()?,
            other => return Err(other.unexpected().into()),
        }
    }
    if options.name.is_empty() {
        return Err(CliError::Usage("no name is given: add NAME".to_owned()));
    }
    if !(1..=CHUNK_BYTES_MAX).contains(&options.chunk_bytes) {
        let chunk_bytes = options.chunk_bytes;
        let text = format!("--chunk-bytes {chunk_bytes}: must be from 1 to {CHUNK_BYTES_MAX}");
        return Err(CliError::Usage(text));
    }
    Ok(Some(options))
}

/// Carries out `streamdoor pipe`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    // The buffer of the standard library is bypassed: bytes are read straight into the ring.
    let input = io::stdin().as_fd().try_clone_to_owned();
    let input = File::from(input.map_err(|error| CliError::Failed(unread(&error)))?);
    let door = options.door.open()?;
    let client = door.client().map_err(doors::failure)?;
    let interrupt = Arc::new(Interrupt::new(client));
    let at_interrupt = Arc::clone(&interrupt);
    stop_on_interrupt(move || at_interrupt.interrupted())?;
    let writer = door.produce(&options.name, &wanted(&options, &input)).map_err(doors::failure)?;
    let execution = writer.execution();
    interrupt.begun(execution);
    print_out!("{execution}");
    let mut feed = Feed::new(writer, &options);
    match feed.take_all(input) {
        Ok(()) => {
            feed.writer.complete().map_err(doors::failure)?;
            let (chunks, bytes) = (counted(feed.chunks, "chunk"), counted(feed.bytes, "byte"));
            print_err!("completed: {chunks}, {bytes}");
            Ok(())
        }
        Err(Stop::Unread(error)) => {
            let text = unread(&error);
            feed.writer.fail(&text).map_err(doors::failure)?;
            Err(CliError::Failed(text))
        }
        Err(Stop::Unwanted(error)) => Err(doors::failure(DoorError::from(error))),
    }
}

fn unread(error: &io::Error) -> String {
    format!("standard input: {error}")
}

/// Returns the options of the execution that the command requests.
fn wanted(options: &PipeOptions, input: &File) -> ProduceOptions {
    // The size of a file is known in advance.
    let size = input.metadata().ok().filter(|found| found.is_file()).map(|found| found.size());
    let mut execution = ExecuteOptions {
        policy: Some(PolicyChoice {
            policy: options.policy,
            limit_chunks: None,
            limit_bytes: None,
        }),
        hold: Some(match options.hold.0 {
            Some(deadline) => Hold::UntilRead { deadline },
            None => Hold::Newest,
        }),
        ..ExecuteOptions::default()
    };
    execution.timeouts = Some(streamdoor::engine::Timeouts {
        first_chunk: options.inactivity.0,
        inactivity: options.inactivity.0,
        total: None,
    });
    ProduceOptions {
        ring_bytes: None,
        chunk_bytes: Some(options.chunk_bytes),
        estimated_bytes: size,
        execution,
    }
}

/// The reason why reading ended early.
enum Stop {
    /// Standard input failed.
    Unread(io::Error),
    /// The execution accepts no more chunks.
    Unwanted(WriteError),
}

impl From<WriteError> for Stop {
    fn from(error: WriteError) -> Stop {
        Stop::Unwanted(error)
    }
}

/// Copies standard input into the ring.
struct Feed {
    writer: DoorWriter,
    cut: Cut,
    kind: Kind,
    chunk_bytes: usize,
    chunks: u64,
    bytes: u64,
}

impl Feed {
    fn new(writer: DoorWriter, options: &PipeOptions) -> Feed {
        let chunk_bytes = options.chunk_bytes.min(writer.chunk_bytes_max()) as usize;
        let PipeOptions { cut, kind, .. } = *options;
        Feed { writer, cut, kind, chunk_bytes, chunks: 0, bytes: 0 }
    }

    fn take_all(&mut self, input: File) -> Result<(), Stop> {
        match self.cut {
            Cut::Bytes => self.take_bytes(input),
            Cut::Lines => self.take_lines(input),
        }
    }

    /// Publishes the result of each read as one chunk. The bytes are read straight into the ring.
    fn take_bytes(&mut self, mut input: File) -> Result<(), Stop> {
        loop {
            self.wait_for(&input)?;
            let room = self.writer.lend(self.chunk_bytes)?;
            let count = match input.read(room) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(Stop::Unread(error)),
            };
            self.writer.publish(self.kind, self.kind as u8, count);
            self.count(count);
        }
    }

    /// Publishes each line as one chunk. A line that is longer than a chunk is split.
    fn take_lines(&mut self, mut input: File) -> Result<(), Stop> {
        let mut buffer = vec![0; 2 * self.chunk_bytes];
        let mut filled = 0;
        loop {
            self.wait_for(&input)?;
            let count = match input.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(Stop::Unread(error)),
            };
            filled += count;
            let sent = self.send_lines(&buffer[..filled])?;
            buffer.copy_within(sent..filled, 0);
            filled -= sent;
        }
        // The last line may lack its line end.
        for piece in buffer[..filled].chunks(self.chunk_bytes) {
            self.send(piece)?;
        }
        Ok(())
    }

    /// Sends all whole lines, and pieces of lines that are too long for one chunk. Returns the
    /// number of bytes sent.
    fn send_lines(&mut self, bytes: &[u8]) -> Result<usize, Stop> {
        let mut sent = 0;
        loop {
            let rest = &bytes[sent..];
            let within = &rest[..rest.len().min(self.chunk_bytes)];
            let length = match within.iter().position(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                None if within.len() == self.chunk_bytes => self.chunk_bytes,
                None => return Ok(sent),
            };
            self.send(&rest[..length])?;
            sent += length;
        }
    }

    fn send(&mut self, chunk: &[u8]) -> Result<(), Stop> {
        self.writer.send_as(self.kind, self.kind as u8, chunk)?;
        self.count(chunk.len());
        Ok(())
    }

    fn count(&mut self, bytes: usize) {
        self.chunks += 1;
        self.bytes += bytes as u64;
    }

    /// Waits until the input is readable. Fails if the execution was stopped.
    fn wait_for(&self, input: &File) -> Result<(), Stop> {
        let time = Timespec::try_from(LOOK_INTERVAL).expect("it is short");
        loop {
            let mut watched = [PollFd::new(input, PollFlags::IN)];
            match poll(&mut watched, Some(&time)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(Stop::Unread(error.into())),
            }
            if self.writer.is_stopped() {
                return Err(Stop::Unwanted(WriteError::Stopped(None)));
            }
        }
    }
}

/// True if the read has to be tried again.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Option<PipeOptions>, CliError> {
        options(lexopt::Parser::from_args(arguments))
    }

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let options = read(&["build", "--as", "lines", "--kind", "log", "--hold", "5s"]);
        let options = options.unwrap().unwrap();
        assert_eq!((options.cut, options.kind), (Cut::Lines, Kind::Log));
        assert_eq!((options.policy, options.hold.0), (Policy::Block, Some(Duration::from_secs(5))));
        for wrong in [
            &[][..],
            &["a", "b"],
            &["a", "--as", "words"],
            &["a", "--chunk-bytes", "0"],
            &["a", "--chunk-bytes", "262145"],
            &["a", "--policy", "later"],
            &["a", "--other", "1"],
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        assert!(read(&["--help"]).unwrap().is_none());
    }
}
