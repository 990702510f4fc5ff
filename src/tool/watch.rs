//! The supervision of a running command: its output is passed on, and it is ended on time.
//!
//! One thread runs one loop. It waits for either pipe or the end of the command for at most 20 ms.
//! Then it reads once from each ready pipe, and checks if the next phase is due.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;

use crate::base::Instant;
use crate::limits;
use crate::stream::{Exit, Kind};
use crate::tool::process::Group;
use crate::tool::{Output, Stopped, ToolError};

/// The size of one read of a pipe. It is small, so that the two pipes take turns.
const READ_BYTES: usize = 8 << 10;

/// The phase of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The command runs.
    Running,
    /// The command has ended. The processes that it left behind may write until this time.
    Lingering(Instant),
    /// The whole group was told to end, and is killed at this time.
    Ending(Instant),
    /// The whole group was killed. A process that was not found and holds the pipes open is waited
    /// for until this time.
    Killed(Instant),
}

/// A running command, and the two pipes that it writes to.
pub(super) struct Watch {
    group: Group,
    pipes: [Pipe; 2],
    phase: Phase,
    exit: Option<Exit>,
    /// True if the execution was stopped: no more output is wanted.
    stopped: bool,
}

impl Watch {
    pub fn new(mut group: Group, chunk_bytes_max: u32) -> Watch {
        let (stdout, stderr) = group.take_pipes();
        let buffer_bytes = READ_BYTES.min(chunk_bytes_max as usize);
        let pipes = [
            Pipe::new(stdout, Kind::Stdout, buffer_bytes),
            Pipe::new(stderr, Kind::Stderr, buffer_bytes),
        ];
        Watch { group, pipes, phase: Phase::Running, exit: None, stopped: false }
    }

    /// Passes on the output of the command until it and all its descendants are gone.
    ///
    /// # Errors
    /// [`ToolError::Stopped`], or the error of the kernel. All processes are gone then, too.
    pub fn run(mut self, out: &mut Output) -> Result<Exit, ToolError> {
        let mut looked_at = Instant::ZERO;
        loop {
            let now = out.now();
            self.stopped |= out.is_stopped();
            // This costs a system call and a lock, which a flood does not pay at each read.
            if now.since(looked_at) >= limits::COMMAND_LOOK || self.pipes_have_ended() {
                looked_at = now;
                self.stopped |= self.group.is_closing();
                self.exit = self.group.exit()?;
            }
            if self.exit.is_some() && self.pipes_have_ended() {
                break;
            }
            if !self.advance(now) {
                break;
            }
            let fds = self.pipes.each_ref().map(|pipe| pipe.fd.as_ref());
            let ready = self.group.wait(fds, self.exit.is_some(), limits::COMMAND_LOOK)?;
            if ready == [false; 2] {
                looked_at = Instant::ZERO; // Silent, or ended: look again at once.
            }
            for (pipe, is_ready) in self.pipes.iter_mut().zip(ready) {
                if is_ready {
                    self.stopped |= pipe.pass_on(out, self.stopped)?.is_err();
                }
            }
        }
        for pipe in &mut self.pipes {
            self.stopped |= pipe.send_kept(out, self.stopped).is_err();
        }
        if !self.group.kill() {
            let text = "the programs that it started multiply faster than they can be killed";
            return Err(ToolError::new(text));
        }
        match self.exit {
            Some(exit) if !self.stopped => Ok(exit),
            _ => Err(ToolError::Stopped), // Only a stop kills a leader that still runs.
        }
    }

    fn pipes_have_ended(&self) -> bool {
        self.pipes.iter().all(|pipe| pipe.fd.is_none())
    }

    /// Enters the next phase if it is due. Returns false once nothing more is waited for.
    fn advance(&mut self, now: Instant) -> bool {
        let is_over = match self.phase {
            Phase::Running => self.stopped,
            Phase::Lingering(until) => self.stopped || now >= until,
            Phase::Ending(until) | Phase::Killed(until) => now >= until,
        };
        match self.phase {
            Phase::Running if !is_over && self.exit.is_some() => {
                self.phase = Phase::Lingering(now + limits::COMMAND_LINGER);
            }
            Phase::Running | Phase::Lingering(_) if is_over => {
                self.group.terminate();
                self.phase = Phase::Ending(now + limits::COMMAND_GRACE);
            }
            Phase::Ending(_) if is_over => {
                self.group.kill();
                self.phase = Phase::Killed(now + limits::COMMAND_LINGER);
            }
            Phase::Killed(_) => return !is_over,
            _ => {}
        }
        true
    }
}

/// One pipe that a command writes to.
struct Pipe {
    /// `None` after its end.
    fd: Option<OwnedFd>,
    kind: Kind,
    buffer: Box<[u8]>,
    /// Number of bytes at the start of the buffer that belong to an incomplete character.
    kept_bytes: usize,
}

impl Pipe {
    fn new(fd: Option<OwnedFd>, kind: Kind, buffer_bytes: usize) -> Pipe {
        let buffer = vec![0; buffer_bytes].into_boxed_slice();
        Pipe { fd, kind, buffer, kept_bytes: 0 }
    }

    /// Reads once, without waiting because the pipe is ready, and sends one chunk.
    ///
    /// # Errors
    /// The error of the kernel. The inner error says that the execution was stopped.
    fn pass_on(&mut self, out: &mut Output, discard: bool) -> io::Result<Result<(), Stopped>> {
        let Some(fd) = self.fd.take() else { return Ok(Ok(())) };
        let mut file = File::from(fd);
        let read = file.read(&mut self.buffer[self.kept_bytes..]);
        let length = match read {
            Ok(0) => return Ok(self.send_kept(out, discard)), // The file is closed here.
            Ok(length) => self.kept_bytes + length,
            Err(error) if error.kind() == ErrorKind::Interrupted => self.kept_bytes,
            Err(error) => return Err(error),
        };
        self.fd = Some(file.into());
        let whole = length - cut_bytes(&self.buffer[..length]);
        let sent = match discard || whole == 0 {
            true => Ok(()),
            false => out.send_as(self.kind, self.kind as u8, &self.buffer[..whole]),
        };
        self.buffer.copy_within(whole..length, 0);
        self.kept_bytes = length - whole;
        Ok(sent)
    }

    /// Sends the start of a character whose rest never came.
    fn send_kept(&mut self, out: &mut Output, discard: bool) -> Result<(), Stopped> {
        let kept = &self.buffer[..std::mem::take(&mut self.kept_bytes)];
        match discard || kept.is_empty() {
            true => Ok(()),
            false => out.send_as(self.kind, self.kind as u8, kept),
        }
    }
}

/// Number of bytes at the end that start an incomplete character of UTF-8.
fn cut_bytes(bytes: &[u8]) -> usize {
    for (index, &byte) in bytes.iter().rev().take(3).enumerate() {
        let character_bytes = match byte {
            0x80..=0xBF => continue, // In the middle of one.
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => 1,
        };
        let there = index + 1;
        return if there < character_bytes { there } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_character_that_is_not_whole_is_kept_back() {
        for text in ["a", "ä", "€", "𝄞", "x€"] {
            let bytes = text.as_bytes();
            assert_eq!(cut_bytes(bytes), 0, "{text}");
            let before = text.char_indices().last().unwrap().0;
            for cut in before + 1..bytes.len() {
                assert_eq!(cut_bytes(&bytes[..cut]), cut - before, "{text} cut at {cut}");
            }
        }
        assert_eq!(cut_bytes(b""), 0);
        assert_eq!(cut_bytes(b"\xff\xff"), 0);
        assert_eq!(cut_bytes(b"\x80\x80\x80\x80"), 0);
    }
}
