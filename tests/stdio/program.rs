//! The program under test, with standard streams of any kind.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

/// Both reactors.
pub const REACTORS: [&str; 2] = ["uring", "mio"];

/// One standard stream: the program's side and the test's side.
pub struct Side {
    pub theirs: OwnedFd,
    pub ours: File,
}

fn side(theirs: impl Into<OwnedFd>, ours: impl Into<OwnedFd>) -> Side {
    Side { theirs: theirs.into(), ours: File::from(ours.into()) }
}

pub fn input_pipe() -> Side {
    let (reader, writer) = std::io::pipe().unwrap();
    side(reader, writer)
}

pub fn output_pipe() -> Side {
    let (reader, writer) = std::io::pipe().unwrap();
    side(writer, reader)
}

/// A socket pair, as Node uses for standard streams.
pub fn socket() -> Side {
    let (theirs, ours) = UnixStream::pair().unwrap();
    side(theirs, ours)
}

/// A socket pair whose program side is in non-blocking mode already.
pub fn restless_socket() -> Side {
    let (theirs, ours) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    side(theirs, ours)
}

/// A running program, with its log in a pipe.
pub struct Program {
    child: Child,
    /// The input. Closing it ends the program's input.
    pub input: Option<File>,
    pub output: BufReader<File>,
    /// The program's own open file descriptions, to check their flags.
    shared: Option<[OwnedFd; 2]>,
    flags_before: [OFlags; 2],
}

impl Program {
    /// Starts the program. Prints a line and returns `None` if this reactor is not available.
    pub fn start(reactor: &str, arguments: &[&str], input: Side, output: Side) -> Option<Program> {
        if reactor == "uring" && !has_uring() {
            println!("not run: there is no io_uring here");
            return None;
        }
        let shared = [&input.theirs, &output.theirs].map(|fd| fd.try_clone().unwrap());
        let flags_before = flags(&shared);
        let mut command = Command::new(PROGRAM);
        command.args(["stdio", "--builtin", "all", "--reactor", reactor]).args(arguments);
        command.stdin(input.theirs).stdout(output.theirs).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        Some(Program {
            child,
            input: Some(input.ours),
            output: BufReader::new(output.ours),
            shared: Some(shared),
            flags_before,
        })
    }

    /// Starts the program over pipes.
    pub fn piped(reactor: &str, arguments: &[&str]) -> Option<Program> {
        Program::start(reactor, arguments, input_pipe(), output_pipe())
    }

    pub fn say(&mut self, line: &[u8]) {
        let input = self.input.as_mut().expect("it is open");
        input.write_all(&[line, b"\n"].concat()).unwrap();
    }

    pub fn ask(&mut self, id: u64, method: &str, params: Value) {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.say(request.to_string().as_bytes());
    }

    /// Waits for the next message. Panics if the line is not a message.
    pub fn next(&mut self) -> Value {
        self.wait_for_output();
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "{:?}", self.child.try_wait());
        message(&line)
    }

    /// Waits for output. The test's own copy of the output keeps it open, so only the process shows
    /// its end.
    fn wait_for_output(&mut self) {
        const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        while self.output.buffer().is_empty() {
            let mut wanted = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            if poll(&mut wanted, Some(&LOOK)).unwrap() > 0 {
                return;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it said nothing, and has ended: {ended:?}");
        }
    }

    pub fn ping(&mut self, id: u64) {
        self.ask(id, "ping", json!({}));
        assert_eq!(self.next(), pong(id));
    }

    /// Checks that the flags of the open file descriptions, which other processes may share, are
    /// unchanged.
    pub fn check_flags(&self) {
        assert_eq!(flags(self.shared.as_ref().expect("it runs")), self.flags_before);
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Closes the input and waits. Returns the remaining messages, the exit status and the log.
    pub fn finish(mut self) -> (Vec<Value>, ExitStatus, String) {
        self.input = None;
        self.wait()
    }

    /// Like [`Program::finish`], with the input left open.
    pub fn wait(mut self) -> (Vec<Value>, ExitStatus, String) {
        self.check_flags();
        self.shared = None; // Otherwise the output would never end.
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        let (status, log) = self.ended();
        (text.lines().map(message).collect(), status, log)
    }

    /// Waits until the program has ended. Returns its exit status and its log.
    pub fn ended(&mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap(), log)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It is still there only if a test has failed.
        let _ = self.child.wait();
    }
}

fn flags(shared: &[OwnedFd; 2]) -> [OFlags; 2] {
    [0, 1].map(|at| fcntl_getfl(shared[at].as_fd()).unwrap())
}

/// Parses a line of the protocol.
pub fn message(line: &str) -> Value {
    let message: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}"));
    assert_eq!(message["jsonrpc"], "2.0", "{line}");
    message
}

pub fn pong(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {}})
}

/// Checks that the program ended with success and wrote nothing, neither messages nor a log.
#[track_caller]
pub fn assert_quiet_end((said, status, log): (Vec<Value>, ExitStatus, String)) {
    assert_eq!((said.as_slice(), status.code(), log.as_str()), (&[][..], Some(0), ""));
}

fn has_uring() -> bool {
    let output = Command::new(PROGRAM)
        .args(["stdio", "--builtin", "all", "--reactor", "uring"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    output.status.success()
}

/// A unique path. The file there is removed when this value is dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let name = format!("streamdoor-stdio-{}-{name}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
