//! The parts that brokers share: a process of its own, and messages of equal length.
//!
//! A broker is started for one run, on a port of its own, on the cpu of the readers. These sleep
//! while no message is ready. The producer, which polls its plan, has the other cpu for itself.
//! With polled readers, no cpu would be left, so readers of brokers only block.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::is_last;
use crate::common::door::carrier::Read;
use crate::common::door::load::{Load, Wait};
use crate::common::machine::{now_ns, pin_thread};
use crate::common::receive::Receive;
use crate::common::{BATCH_CHUNKS, Failure};

const START_NS_MAX: u64 = 10_000_000_000;
const BUFFER_BYTES: usize = 1 << 20;

/// A broker that listens. It is killed when this is dropped.
pub struct Process {
    process: Child,
    /// The port on which it listens.
    pub port: u16,
}

impl Process {
    /// Starts `program`, with the arguments for a port.
    ///
    /// # Errors
    /// [`Failure::Environment`] if it is not installed or does not listen, [`Failure::Usage`] if
    /// readers would poll.
    pub fn start(
        load: &Load,
        program: &str,
        words: impl Fn(u16) -> Vec<String>,
    ) -> Result<Process, Failure> {
        if load.wait == Wait::Polled {
            return Err(Failure::Usage("--wait: readers of brokers must block".into()));
        }
        pin_thread(load.plan.subscribers_cpu)?; // The broker inherits it.
        Process::spawn(program, words)
    }

    /// Starts `program` on the cpu of the caller, with the arguments for a port.
    ///
    /// # Errors
    /// [`Failure::Environment`] if it is not installed or does not listen.
    pub fn spawn(
        program: impl AsRef<Path>,
        words: impl Fn(u16) -> Vec<String>,
    ) -> Result<Process, Failure> {
        let program = program.as_ref();
        let lacking = |text| Failure::Environment(format!("{}: {text}", program.display()));
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| it.local_addr());
        let port = free.map_err(|error| lacking(error.to_string()))?.port();
        let mut command = Command::new(program);
        command.args(words(port)).stdin(Stdio::null()).stdout(Stdio::null());
        let process =
            command.stderr(Stdio::null()).spawn().map_err(|error| match error.kind() {
                ErrorKind::NotFound => lacking("is not installed".into()),
                _ => lacking(error.to_string()),
            })?;
        let mut broker = Process { process, port };
        let deadline_ns = now_ns() + START_NS_MAX;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Ok(Some(status)) = broker.process.try_wait() {
                return Err(lacking(format!("ended at once ({status}); is this version too old?")));
            }
            if now_ns() > deadline_ns {
                return Err(lacking("does not listen".into()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(broker)
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Connects to a broker.
///
/// # Errors
/// A text for the user.
pub fn connect(port: u16) -> Result<TcpStream, String> {
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(in_words)?;
    socket.set_nodelay(true).map_err(in_words)?;
    Ok(socket)
}

/// Returns the error text of an I/O error in this file.
pub fn in_words(error: std::io::Error) -> String {
    format!("the broker: {error}")
}

/// Writes `bytes` and reads until the received bytes end with `answer`.
///
/// # Errors
/// A text for the user.
pub fn ask(socket: &mut TcpStream, bytes: &[u8], answer: &[u8]) -> Result<(), String> {
    socket.write_all(bytes).map_err(in_words)?;
    let (mut came, mut buffer) = (Vec::new(), [0; 4_096]);
    while !came.ends_with(answer) {
        match socket.read(&mut buffer).map_err(in_words)? {
            0 => return Err(format!("the broker has ended: {}", String::from_utf8_lossy(&came))),
            count => came.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(())
}

/// Messages that differ only in their payloads, one after the other.
pub struct Frames {
    socket: TcpStream,
    /// The bytes before each payload; `\r\n` follows it.
    head: Vec<u8>,
    size: usize,
    buffer: Box<[u8]>,
    /// The range of the buffer with unparsed bytes.
    from: usize,
    to: usize,
    is_over: bool,
}

impl Frames {
    /// Returns the messages of a connection that has subscribed.
    pub fn new(socket: TcpStream, head: Vec<u8>, size: usize) -> Frames {
        let buffer = vec![1; BUFFER_BYTES.max(2 * (head.len() + size + 2))].into_boxed_slice();
        Frames { socket, head, size, buffer, from: 0, to: 0, is_over: false }
    }

    #[inline(always)]
    fn take<R: Receive>(&mut self, receiver: &R) -> Result<u32, String> {
        let (head, mut count) = (self.head.len(), 0);
        let whole = head + self.size + 2;
        while count < BATCH_CHUNKS && self.to - self.from >= whole && !self.is_over {
            let frame = &self.buffer[self.from..self.from + whole];
            if !frame.starts_with(&self.head) {
                let text = String::from_utf8_lossy(&frame[..frame.len().min(60)]);
                return Err(format!("the broker replied {text}"));
            }
            let payload = &frame[head..head + self.size];
            self.from += whole;
            if is_last(payload) {
                self.is_over = true;
            } else {
                receiver.deliver(payload);
                count += 1;
            }
        }
        Ok(count)
    }

    fn fill(&mut self) -> Result<(), String> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        match self.socket.read(&mut self.buffer[self.to..]) {
            Ok(0) => return Err("the broker has ended".into()),
            Ok(count) => self.to += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(in_words(error)),
        }
        Ok(())
    }
}

impl Read for Frames {
    /// Takes only messages that are already buffered.
    fn poll<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        let count = self.take(receiver)?;
        Ok((count > 0 || !self.is_over).then_some(count))
    }

    fn wait<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        loop {
            match self.poll(receiver)? {
                Some(0) => self.fill()?,
                other => return Ok(other),
            }
        }
    }
}
