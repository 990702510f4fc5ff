//! An upstream that is a program: its process, and the three threads for its standard streams.
//!
//! The process leads a session of its own. It has no terminal, and Ctrl-C does not reach it. Its
//! descendants end with it, also those that have left its session ([`Mark`]). Its environment is
//! chosen ([`Environment`]), not inherited. The reader thread starts the process and reaps it. If
//! this process dies in any way, the kernel kills the program.
//!
//! Many requests run at once. The messages for each go into its [`Inbox`]. Callers never wait for
//! the program to read. A writer thread holds unread requests, up to a limit. Reading therefore
//! never waits for writing, and the two sides cannot deadlock.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde_json::Value;

use super::inbox::{Inbox, Received};
use super::link::ConnectionEvents;
use super::log::UpstreamLog;
use super::transport::{RequestError, Transport};
use crate::base::Instant;
use crate::limits;
use crate::mcp::upstream::{Exchanges, ServerMessage, UnsentRequest, cancelled, shown};
use crate::reactor::Clock;
use crate::server::{UpstreamCount, UpstreamMeter};
use crate::tool::{Environment, Mark, lead_session_while_we_live};
use crate::trace::Level;
use crate::wire::jsonrpc::ErrorObject;
use crate::wire::{LineSplitter, Split};

/// A process that runs or has ended.
pub(super) struct Program {
    mark: Mark,
    state: Mutex<ProgramState>,
    ended: Condvar,
    exchanges: Mutex<Exchanges<Arc<Inbox>>>,
    outbox: Outbox,
    meter: UpstreamMeter,
    log: Arc<UpstreamLog>,
    events: Arc<dyn ConnectionEvents>,
}

struct ProgramState {
    /// `None` before the start, and after it was reaped, when its id may belong to another process.
    child: Option<Child>,
    /// The end of the process as a sentence. Open requests are told the same.
    over: Option<String>,
}

/// The lines that the program has not read yet.
#[derive(Default)]
struct Outbox {
    state: Mutex<Unsent>,
    changed: Condvar,
}

#[derive(Default)]
struct Unsent {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    is_closed: bool,
}

/// The reason why reading has ended.
enum ReadEnd {
    /// The standard output has ended.
    Ended,
    Failed(io::Error),
    TooLong,
}

/// The command of a program.
pub(super) struct ProgramCommand<'a> {
    pub words: &'a [String],
    pub variables: &'a [(String, String)],
    pub environment: &'a Environment,
}

impl Program {
    /// Starts the program.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn spawn(
        start: &ProgramCommand<'_>,
        meter: UpstreamMeter,
        log: Arc<UpstreamLog>,
        events: Arc<dyn ConnectionEvents>,
    ) -> io::Result<Arc<Program>> {
        let mut command = Command::new(&start.words[0]);
        command.args(&start.words[1..]);
        command.env_clear().envs(start.environment.variables());
        command.envs(start.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mark = Mark::new();
        lead_session_while_we_live(&mut command, mark);
        let program = Arc::new(Program {
            mark,
            state: Mutex::new(ProgramState { child: None, over: None }),
            ended: Condvar::new(),
            exchanges: Mutex::default(),
            outbox: Outbox::default(),
            meter,
            log,
            events,
        });
        let (started, starts) = mpsc::sync_channel(1);
        let reading = Arc::clone(&program);
        thread("mcp-read").spawn(move || match reading.start(command) {
            Ok(stdout) => {
                let _ = started.send(Ok(())); // The caller waits for it.
                reading.read(stdout);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        })?;
        starts.recv().expect("it says what has come of it")?;
        Ok(program)
    }

    /// Starts the process and the two other threads. It runs on the reader thread.
    fn start(self: &Arc<Self>, mut command: Command) -> io::Result<ChildStdout> {
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        let pid = child.id();
        self.state().child = Some(child);
        self.log.event(Level::Info, "upstream_started", |line| {
            line.number("pid", u64::from(pid));
        });
        self.meter.add(UpstreamCount::Starts, 1);
        let spawned = self.spawn_threads(stdin, stderr);
        if spawned.is_err() {
            let how = self.wait_for_end(&ReadEnd::Ended);
            self.conclude(how);
        }
        spawned.map(|()| stdout)
    }

    fn spawn_threads(self: &Arc<Self>, stdin: ChildStdin, stderr: ChildStderr) -> io::Result<()> {
        let (writing, log) = (Arc::clone(self), Arc::clone(&self.log));
        thread("mcp-stderr").spawn(move || log_stderr(stderr, &log))?;
        thread("mcp-write").spawn(move || writing.write(stdin)).map(drop)
    }

    fn state(&self) -> MutexGuard<'_, ProgramState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exchanges(&self) -> MutexGuard<'_, Exchanges<Arc<Inbox>>> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the process has ended.
    pub fn is_over(&self) -> bool {
        self.state().over.is_some()
    }

    /// Sends a request that `request` makes from its id. The answer goes to this inbox.
    pub fn begin(
        &self,
        inbox: &Arc<Inbox>,
        is_call: bool,
        request: impl FnOnce(u64) -> UnsentRequest,
    ) -> u64 {
        let id = self.exchanges().open(Arc::clone(inbox), is_call);
        // The thread that ends all requests has taken it from the table, or finds it there.
        if let Some(how) = &self.state().over {
            inbox.gone(how);
        }
        let mut line = Vec::new();
        request(id).write(&mut line, id);
        self.send(line);
        id
    }

    /// Stops waiting for the answer to this request.
    pub fn forget(&self, id: u64) {
        self.exchanges().close(id);
    }

    /// Like [`Program::forget`], and cancels the request at the program.
    pub fn cancel(&self, id: u64) {
        if self.exchanges().close(id).is_some() {
            let mut line = Vec::new();
            cancelled(&mut line, id);
            self.send(line);
        }
    }

    /// Queues a message. If too many bytes are unread, the program is killed.
    pub fn send(&self, mut line: Vec<u8>) {
        line.push(b'\n');
        let mut unsent = self.outbox.state.lock().unwrap_or_else(PoisonError::into_inner);
        if unsent.is_closed {
            return;
        }
        if unsent.bytes + line.len() > limits::UPSTREAM_UNSENT_BYTES_MAX && unsent.bytes > 0 {
            unsent.is_closed = true;
            drop(unsent);
            self.outbox.changed.notify_all();
            self.log.event(Level::Warn, "upstream_deaf", |line| {
                line.number("unsent_bytes_max", limits::UPSTREAM_UNSENT_BYTES_MAX as u64);
            });
            self.signal(Signal::KILL);
            return;
        }
        unsent.bytes += line.len();
        unsent.lines.push_back(line);
        drop(unsent);
        self.outbox.changed.notify_all();
    }

    /// The loop of the writer thread.
    fn write(&self, mut stdin: ChildStdin) {
        loop {
            let unsent = self.outbox.state.lock().unwrap_or_else(PoisonError::into_inner);
            let is_idle = |unsent: &mut Unsent| unsent.lines.is_empty() && !unsent.is_closed;
            let waited = self.outbox.changed.wait_while(unsent, is_idle);
            let mut unsent = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(line) = unsent.lines.pop_front() else { return };
            drop(unsent);
            if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
                self.outbox.close(); // The reader thread finds the end, too.
                return;
            }
            self.meter.add(UpstreamCount::SentBytes, line.len() as u64);
            let mut unsent = self.outbox.state.lock().unwrap_or_else(PoisonError::into_inner);
            unsent.bytes = unsent.bytes.saturating_sub(line.len());
        }
    }

    /// The loop of the reader thread.
    fn read(&self, mut stdout: ChildStdout) {
        let why = self.read_lines(&mut stdout);
        drop(stdout);
        let how = self.wait_for_end(&why);
        self.conclude(how);
    }

    fn read_lines(&self, stdout: &mut ChildStdout) -> ReadEnd {
        let mut splitter = LineSplitter::new(limits::UPSTREAM_MESSAGE_BYTES_MAX);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = match stdout.read(&mut buffer) {
                Ok(0) => return ReadEnd::Ended,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return ReadEnd::Failed(error),
            };
            self.meter.add(UpstreamCount::ReceivedBytes, count as u64);
            let mut input = &buffer[..count];
            while let Some(split) = splitter.next(&mut input) {
                match split {
                    Split::Line(line) => self.on_line(line),
                    Split::TooLong => return ReadEnd::TooLong,
                }
            }
        }
    }

    fn on_line(&self, line: &[u8]) {
        let incoming = self.exchanges().on_message(line);
        match incoming {
            ServerMessage::Answer(inbox, answer) => inbox.answer(answer),
            ServerMessage::Notification(inbox, note) => inbox.put(note, line.len()),
            ServerMessage::Reply(reply) => self.send(reply),
            ServerMessage::ToolsChanged => self.events.tools_changed(),
            ServerMessage::Log(said) => self.log.quote(Level::Info, "upstream_said", |line| {
                line.text("level", &shown(said["level"].as_str().unwrap_or_default()));
                line.text("data", &shown(&text_of(&said["data"])));
            }),
            ServerMessage::Ignored(why) => {
                self.meter.add(UpstreamCount::Ignored, 1);
                self.log.quote(Level::Debug, "upstream_ignored", |record| {
                    record.text("why", &format!("{why:?}"));
                    let beginning = &line[..line.len().min(256)];
                    record.text("message", &shown(&String::from_utf8_lossy(beginning)));
                });
            }
        }
    }

    /// Kills the rest of the group, reaps the process (U3), and returns its end as a sentence.
    fn wait_for_end(&self, why: &ReadEnd) -> String {
        self.outbox.close();
        if let ReadEnd::Ended = why {
            self.wait_until_dead(limits::UPSTREAM_LINGER);
        }
        self.signal(Signal::TERM);
        self.wait_until_dead(limits::UPSTREAM_LINGER);
        // Kill the rest of its group. The leader is not reaped yet, so no other process has their
        // id.
        self.signal(Signal::KILL);
        self.mark.kill_all();
        self.wait_until_dead(limits::UPSTREAM_GRACE);
        let status = self.state().child.take().and_then(|mut child| child.wait().ok());
        let ended = match status {
            Some(status) => status.to_string(), // Like `exit status: 1` or `signal: 9 (SIGKILL)`.
            None => "status unknown".to_owned(),
        };
        match why {
            ReadEnd::Ended => format!("it has ended ({ended})"),
            ReadEnd::Failed(error) => format!("it cannot be read: {error}"),
            ReadEnd::TooLong => {
                let bytes_max = limits::UPSTREAM_MESSAGE_BYTES_MAX;
                format!("it was ended, because it wrote a line longer than {bytes_max} bytes")
            }
        }
    }

    fn wait_until_dead(&self, time_max: Duration) {
        let until = Clock::now() + time_max;
        while self.lives() && Clock::now() < until {
            std::thread::sleep(limits::UPSTREAM_LOOK);
        }
    }

    /// True if the first process still runs. This does not reap it.
    fn lives(&self) -> bool {
        let state = self.state();
        let Some(child) = &state.child else { return false };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(Pid::from_child(child)), options), Ok(None))
    }

    /// Signals its group if its id is still valid, and its processes outside of the group.
    fn signal(&self, signal: Signal) {
        let Some(group) = self.state().child.as_ref().map(Pid::from_child) else { return };
        // Errors mean that no process is left.
        let _ = kill_process_group(group, signal);
        self.mark.signal_outside(group, signal);
    }

    /// Reports the end to the upstream and to all open requests.
    fn conclude(&self, how: String) {
        self.log.event(Level::Info, "upstream_ended", |line| line.text("how", &how));
        self.state().over = Some(how.clone());
        self.ended.notify_all();
        // First the upstream, so that the next calls of the waiting threads find a new program.
        self.events.is_over();
        let waiting: Vec<Arc<Inbox>> = self.exchanges().close_all().collect();
        waiting.iter().for_each(|inbox| inbox.gone(&how));
    }

    /// Ends the program in three steps: its standard input is closed, then SIGTERM, then SIGKILL.
    pub fn end(&self) {
        self.outbox.close();
        // Messages that no caller takes do not block the reader.
        let waiting: Vec<Arc<Inbox>> = self.exchanges().close_all().collect();
        waiting.iter().for_each(|inbox| {
            inbox.gone("the server that asks it ends");
        });
        if self.wait_over(limits::UPSTREAM_GRACE) {
            return;
        }
        self.signal(Signal::TERM);
        if self.wait_over(limits::UPSTREAM_LINGER) {
            return;
        }
        self.signal(Signal::KILL);
        self.wait_over(limits::UPSTREAM_GRACE);
    }

    fn wait_over(&self, time_max: Duration) -> bool {
        let is_running = |state: &mut ProgramState| state.over.is_none();
        let waited = self.ended.wait_timeout_while(self.state(), time_max, is_running);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.over.is_some()
    }
}

impl Transport for Arc<Program> {
    fn ask(
        &self,
        request: &UnsentRequest,
        deadline: Instant,
    ) -> Result<Result<Value, ErrorObject>, RequestError> {
        let inbox = Arc::new(Inbox::default());
        let id = self.begin(&inbox, false, |_| request.clone());
        let told = inbox.take(Some(deadline));
        self.forget(id);
        match told {
            Received::Answer(answer) => Ok(answer),
            Received::Gone(how) => Err(RequestError::Gone(how)),
            Received::Late | Received::Stopped | Received::Notification(_) => {
                Err(RequestError::Late)
            }
        }
    }

    fn notify(&self, message: Vec<u8>) -> Result<(), String> {
        self.send(message);
        Ok(())
    }
}

impl Outbox {
    fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        self.changed.notify_all();
    }
}

fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.to_owned())
}

/// The loop of the thread that logs the lines of the standard error.
fn log_stderr(mut stderr: ChildStderr, log: &UpstreamLog) {
    let mut splitter = LineSplitter::new(limits::UPSTREAM_STDERR_BYTES_MAX);
    let mut buffer = vec![0; 8 << 10];
    let tell = |text: &[u8]| {
        log.quote(Level::Info, "upstream_stderr", |line| {
            line.text("text", &shown(&String::from_utf8_lossy(text)));
        });
    };
    loop {
        let count = match stderr.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let mut input = &buffer[..count];
        while let Some(split) = splitter.next(&mut input) {
            match split {
                Split::Line(line) => tell(line),
                Split::TooLong => tell(b"(a line that is too long)"),
            }
        }
    }
    if let Some(line) = splitter.end() {
        tell(line);
    }
}

/// A string as it is, any other value as JSON.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
