//! The program under test: started with streams of any kind, spoken to, waited for.

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

/// Both ways to the kernel.
pub const REACTORS: [&str; 2] = ["uring", "mio"];

/// What one standard stream is: the program's side, and ours.
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

/// As Node makes them.
pub fn socket() -> Side {
    let (theirs, ours) = UnixStream::pair().unwrap();
    side(theirs, ours)
}

/// One that does not wait, because somebody has it so.
pub fn restless_socket() -> Side {
    let (theirs, ours) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    side(theirs, ours)
}

/// A running program, with its log on a pipe.
pub struct Program {
    child: Child,
    /// Closed: the end of its input.
    pub input: Option<File>,
    pub output: BufReader<File>,
    /// The same descriptions as its own, to look at their flags.
    shared: Option<[OwnedFd; 2]>,
    flags_before: [OFlags; 2],
}

impl Program {
    /// `None`, and a word about it, where there is no such way to the kernel.
    pub fn start(reactor: &str, arguments: &[&str], input: Side, output: Side) -> Option<Program> {
        if reactor == "uring" && !has_uring() {
            println!("not run: there is no io_uring here");
            return None;
        }
        let shared = [&input.theirs, &output.theirs].map(|fd| fd.try_clone().unwrap());
        let flags_before = flags(&shared);
        let mut command = Command::new(PROGRAM);
        command.args(["stdio", "--reactor", reactor]).args(arguments);
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

    /// Over pipes.
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

    /// The next message; nothing else may be there.
    pub fn next(&mut self) -> Value {
        self.wait_for_output();
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "{:?}", self.child.try_wait());
        message(&line)
    }

    /// Our copy of its output keeps that open: its end is seen here only.
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

    /// Nobody has changed what others may share.
    pub fn check_flags(&self) {
        assert_eq!(flags(self.shared.as_ref().expect("it runs")), self.flags_before);
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Closes its input, unless that was done, and waits: what it said then, and how it ended.
    pub fn finish(mut self) -> (Vec<Value>, ExitStatus, String) {
        self.input = None;
        self.wait()
    }

    /// The same, and its input stays open.
    pub fn wait(mut self) -> (Vec<Value>, ExitStatus, String) {
        self.check_flags();
        self.shared = None; // Else its output had no end.
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        let (status, log) = self.ended();
        (text.lines().map(message).collect(), status, log)
    }

    /// Waits for its end, whatever it says.
    pub fn ended(&mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap(), log)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill(); // Only if a test has failed is it still there.
        let _ = self.child.wait();
    }
}

fn flags(shared: &[OwnedFd; 2]) -> [OFlags; 2] {
    [0, 1].map(|at| fcntl_getfl(shared[at].as_fd()).unwrap())
}

/// A line of the protocol.
pub fn message(line: &str) -> Value {
    let message: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}"));
    assert_eq!(message["jsonrpc"], "2.0", "{line}");
    message
}

pub fn pong(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {}})
}

/// Nothing is said of an orderly end.
#[track_caller]
pub fn assert_quiet_end((said, status, log): (Vec<Value>, ExitStatus, String)) {
    assert_eq!((said.as_slice(), status.code(), log.as_str()), (&[][..], Some(0), ""));
}

fn has_uring() -> bool {
    let output = Command::new(PROGRAM)
        .args(["stdio", "--reactor", "uring"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    output.status.success()
}

/// A path of nobody else; what is there is removed with this value.
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
