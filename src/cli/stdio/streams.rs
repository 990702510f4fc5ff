//! Connects the standard streams to the shard.
//!
//! The shard itself reads and writes a pipe or a socket, without another thread in between. Files
//! and terminals need blocking calls: a thread that reads or writes, with a socket to the shard.
//! Nothing here changes a flag of a descriptor, because the parent process may share it.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread::Builder;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use streamdoor::limits;
use streamdoor::reactor::{HalfConnection, ReleasedSocket};

/// The threads that copy bytes, if any are needed.
pub struct Carriers {
    is_reading: bool,
    /// Receives the result of the writing thread.
    written: Option<Receiver<io::Result<()>>>,
}

/// Returns the standard streams as a connection for a shard.
///
/// # Errors
/// If descriptors or threads are lacking.
pub fn open() -> io::Result<(ReleasedSocket, Carriers)> {
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let mut carriers = Carriers { is_reading: false, written: None };
    let input = match HalfConnection::to_read(stdin.as_fd()) {
        Ok(end) => end,
        Err(_) => {
            let (end, socket) = HalfConnection::pair()?;
            let from = File::from(stdin.as_fd().try_clone_to_owned()?);
            Builder::new().name("stdin".to_owned()).spawn(move || carry_in(from, socket))?;
            carriers.is_reading = true;
            end
        }
    };
    let output = match HalfConnection::to_write(stdout.as_fd()) {
        Ok(end) => end,
        Err(_) => {
            let (end, socket) = HalfConnection::pair()?;
            let to = File::from(stdout.as_fd().try_clone_to_owned()?);
            let (sender, receiver) = channel();
            Builder::new().name("stdout".to_owned()).spawn(move || {
                let _ = sender.send(carry_out(socket, to)); // Nobody may wait for it.
            })?;
            carriers.written = Some(receiver);
            end
        }
    };
    Ok((ReleasedSocket::of_ends(input, output), carriers))
}

impl Carriers {
    /// Waits until all bytes from the shard are written. Returns the write error, unless the reader
    /// has gone away.
    pub fn finish(self, deadline: Duration) -> io::Result<()> {
        match self.written.and_then(|written| written.recv_timeout(deadline).ok()) {
            Some(Err(error)) if error.kind() != ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Carriers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = |has_thread| if has_thread { "by a thread" } else { "by the shard" };
        let (input, output) = (way(self.is_reading), way(self.written.is_some()));
        write!(out, "input is read {input}, output is written {output}")
    }
}

/// Copies bytes from standard input to the shard, until either has ended.
fn carry_in(mut from: File, mut to: UnixStream) {
    let mut buffer = vec![0; limits::STDIO_CARRY_BYTES];
    // A terminal whose other side was closed returns an error, which is an end, too.
    while let Ok(count @ 1..) = read(&mut from, &mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write); // The shard may have closed its end.
}

/// Copies bytes from the shard to standard output, until either has ended.
fn carry_out(mut from: UnixStream, mut to: File) -> io::Result<()> {
    let mut buffer = vec![0; limits::STDIO_CARRY_BYTES];
    loop {
        // If the shard closes its end with unread input, the socket is reset.
        let count = from.read(&mut buffer).unwrap_or(0);
        if count == 0 {
            return Ok(());
        }
        if let Err(error) = write_all(&mut to, &buffer[..count]) {
            let _ = from.shutdown(Shutdown::Both); // Tells the shard.
            return Err(error);
        }
    }
}

/// Reads once. Blocks even if another process has made the descriptor non-blocking.
fn read(from: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait(from.as_fd(), PollFlags::IN)?;
            }
            result => return result,
        }
    }
}

/// Writes all bytes. Blocks even if another process has made the descriptor non-blocking.
fn write_all(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait(to.as_fd(), PollFlags::OUT)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait(fd: BorrowedFd<'_>, flags: PollFlags) -> io::Result<()> {
    match poll(&mut [PollFd::new(&fd, flags)], None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_wait_is_waited_for() {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut near = File::from(std::os::fd::OwnedFd::from(near));
        let bytes = vec![7; 1 << 20];
        let expected = bytes.clone();
        let other = std::thread::spawn(move || {
            let mut far = far;
            far.write_all(b"go").unwrap();
            let mut got = vec![0; expected.len()];
            far.read_exact(&mut got).unwrap();
            assert!(got == expected);
        });
        let mut buffer = [0; 4];
        assert_eq!(read(&mut near, &mut buffer).unwrap(), 2);
        write_all(&mut near, &bytes).unwrap();
        other.join().unwrap();
        assert_eq!(read(&mut near, &mut buffer).unwrap(), 0);
    }

    #[test]
    fn a_writer_that_fails_tells_the_shard_and_the_end() {
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let (mut shard, socket) = UnixStream::pair().unwrap();
        let writing = std::thread::spawn(move || carry_out(socket, full()));
        shard.write_all(b"x").unwrap();
        assert_eq!(shard.read(&mut [0]).unwrap(), 0); // Its end was ended.
        let error = writing.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }
}
