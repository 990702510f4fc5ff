//! Unix sockets and pipes: one for each reader, with all bytes through the kernel.
//!
//! Chunks of equal length follow each other. A batch is one write to each reader. A reader reads as
//! many bytes as fit into its buffer, and takes the chunks there. The last one is recognized by its
//! stamp.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::{is_last, last};
use crate::common::door::carrier::{Carrier, Produce, Read, Run};
use crate::common::door::load::{Load, Wait};
use crate::common::receive::Receive;
use crate::common::{BATCH_CHUNKS, Failure};

const BUFFER_BYTES: usize = 1 << 20;
/// The pipe size that an unprivileged process may request.
const PIPE_BYTES: usize = 1 << 20;

fn lacking(error: &dyn std::fmt::Display) -> Failure {
    Failure::Environment(error.to_string())
}

/// The implementation for `peers door --impl pipe`.
pub struct Pipes;

/// Both ends of each pipe. The producer's process inherits the ends for writing.
pub struct PipeHost {
    outputs: Vec<OwnedFd>,
    inputs: Mutex<Vec<Option<File>>>,
}

impl Carrier for Pipes {
    type Host = PipeHost;
    type Producer = Writers;
    type Reader = Stream<File>;

    fn host(load: &Load) -> Result<PipeHost, Failure> {
        let (mut outputs, mut inputs) = (Vec::new(), Vec::new());
        for _ in 0..load.plan.subscribers {
            // They must stay open across exec.
            let (input, output) = pipe_with(PipeFlags::empty()).map_err(|error| lacking(&error))?;
            fcntl_setpipe_size(&output, PIPE_BYTES).map_err(|error| lacking(&error))?;
            outputs.push(output);
            inputs.push(Some(File::from(input)));
        }
        Ok(PipeHost { outputs, inputs: Mutex::new(inputs) })
    }

    fn words(host: &PipeHost) -> Vec<String> {
        host.outputs.iter().map(|output| output.as_raw_fd().to_string()).collect()
    }

    fn producer(load: &Load, words: &[String]) -> Result<(Writers, String), Failure> {
        let opened: io::Result<Vec<Box<dyn Write>>> = words
            .iter()
            .map(|number| {
                let file = File::options().write(true).open(format!("/proc/self/fd/{number}"))?;
                Ok(Box::new(file) as Box<dyn Write>)
            })
            .collect();
        let outputs = opened.map_err(|error| lacking(&error))?;
        Ok((Writers { outputs, batch: Vec::new(), size: load.plan.size_bytes }, "open".into()))
    }

    fn reader(host: &PipeHost, load: &Load, run: &Run<'_>) -> Result<Stream<File>, String> {
        let mut inputs = host.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        let input = inputs[run.index as usize].take().expect("one for each reader");
        Stream::new(load, input).map_err(|error| error.to_string())
    }
}

/// The implementation for `peers door --impl socket`.
pub struct Sockets;

/// The listener, to which the producer connects once for each reader.
pub struct SocketHost {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for SocketHost {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // A remaining file does no harm.
    }
}

impl Carrier for Sockets {
    type Host = SocketHost;
    type Producer = Writers;
    type Reader = Stream<UnixStream>;

    fn host(_: &Load) -> Result<SocketHost, Failure> {
        let name = format!("streamdoor-peers-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).map_err(|error| lacking(&error))?;
        Ok(SocketHost { listener, path })
    }

    fn words(host: &SocketHost) -> Vec<String> {
        vec![host.path.to_string_lossy().into_owned()]
    }

    fn producer(load: &Load, words: &[String]) -> Result<(Writers, String), Failure> {
        let path = words.first().ok_or_else(|| Failure::Usage("--word: a path".into()))?;
        let connect = |_| Ok(Box::new(UnixStream::connect(path)?) as Box<dyn Write>);
        let opened: io::Result<Vec<_>> = (0..load.plan.subscribers).map(connect).collect();
        let outputs = opened.map_err(|error| lacking(&error))?;
        Ok((Writers { outputs, batch: Vec::new(), size: load.plan.size_bytes }, "open".into()))
    }

    fn reader(host: &SocketHost, load: &Load, _: &Run<'_>) -> Result<Stream<UnixStream>, String> {
        let accepted = host.listener.accept().and_then(|(stream, _)| Stream::new(load, stream));
        accepted.map_err(|error| error.to_string())
    }
}

/// The producer's ends.
pub struct Writers {
    outputs: Vec<Box<dyn Write>>,
    batch: Vec<u8>,
    size: usize,
}

impl Produce for Writers {
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32) -> Result<(), String> {
        let bytes = match count {
            1 => payload,
            _ => {
                self.batch.clear();
                (0..count).for_each(|_| self.batch.extend_from_slice(payload));
                &self.batch
            }
        };
        for output in &mut self.outputs {
            output.write_all(bytes).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.publish(&last(self.size), 1)
    }
}

/// A reader's end.
pub struct Stream<T> {
    input: T,
    buffer: Box<[u8]>,
    /// The range of the buffer with unparsed bytes.
    from: usize,
    to: usize,
    size: usize,
    is_over: bool,
}

impl<T: io::Read + AsFd> Stream<T> {
    fn new(load: &Load, input: T) -> io::Result<Stream<T>> {
        if load.wait == Wait::Polled {
            let flags = fcntl_getfl(&input)?;
            fcntl_setfl(&input, flags | OFlags::NONBLOCK)?;
        }
        let size = load.plan.size_bytes;
        let buffer = vec![1; BUFFER_BYTES.max(size)].into_boxed_slice();
        Ok(Stream { input, buffer, from: 0, to: 0, size, is_over: false })
    }

    /// Reads once. Returns false if it would block.
    #[inline(always)]
    fn fill(&mut self) -> Result<bool, String> {
        if self.buffer.len() - self.from < self.size || self.from == self.to {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        match self.input.read(&mut self.buffer[self.to..]) {
            Ok(0) => Err("the producer has ended".into()),
            Ok(count) => {
                self.to += count;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error.to_string()),
        }
    }

    #[inline(always)]
    fn take<R: Receive>(&mut self, receiver: &R) -> u32 {
        let mut count = 0;
        while count < BATCH_CHUNKS && self.to - self.from >= self.size && !self.is_over {
            let payload = &self.buffer[self.from..self.from + self.size];
            self.from += self.size;
            if is_last(payload) {
                self.is_over = true;
            } else {
                receiver.deliver(payload);
                count += 1;
            }
        }
        count
    }
}

impl<T: io::Read + AsFd> Read for Stream<T> {
    #[inline(always)]
    fn poll<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        let mut count = self.take(receiver);
        if count == 0 && !self.is_over && self.fill()? {
            count = self.take(receiver);
        }
        Ok((count > 0 || !self.is_over).then_some(count))
    }

    fn wait<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        loop {
            match self.poll(receiver)? {
                Some(0) => {} // A part of a chunk.
                other => return Ok(other),
            }
        }
    }
}
