//! The readers of `bench agent`: each follows one run, and looks only for stamps.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::json;

use super::model::MARK;
use super::server::MODEL;
use crate::common::Failure;
use crate::common::serve::plan::STAMP_DIGITS;

/// Maximum number of bytes of one read.
pub const READ_BYTES: usize = 256 << 10;

/// The way in which a run is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Part by part, from streamdoor.
    Stream,
    /// Step by step, from streamdoor.
    Iterate,
    /// The model's own bytes, through a straight pipe.
    Pipe,
}

/// A reader.
pub struct Reader {
    /// The socket, which does not block.
    pub socket: TcpStream,
    stamps: Stamps,
    /// Number of deltas received.
    pub heard: u64,
    /// True once the last step or the last byte was received.
    pub has_ended: bool,
    /// The text that marks the end, and the number of its bytes seen.
    end: &'static [u8],
    end_seen: usize,
}

impl Reader {
    /// Connects, and sends the request for run `index`.
    ///
    /// # Errors
    /// [`Failure::Failed`].
    pub fn ask(address: SocketAddr, way: Way, index: usize) -> Result<Reader, Failure> {
        let task = format!("run {index}");
        let (target, body) = match way {
            Way::Pipe => {
                let messages = json!([{"role": "user", "content": task}]);
                let body = json!({"model": MODEL, "stream": true, "messages": messages});
                ("/v1/chat/completions", body)
            }
            Way::Stream => ("/v1/agent/stream", json!({"task": task})),
            Way::Iterate => ("/v1/agent/stream?kinds=json", json!({"task": task})),
        };
        let (body, end) = (body.to_string(), way.end());
        let length = body.len();
        let request = format!(
            "POST {target} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             accept: text/event-stream\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let connected = (|| {
            let mut socket = TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            socket.write_all(request.as_bytes())?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })();
        let socket = connected.map_err(|error: std::io::Error| {
            Failure::Failed(format!("run {index}: {address}: {error}"))
        })?;
        let stamps = Stamps::default();
        Ok(Reader { socket, stamps, heard: 0, has_ended: false, end, end_seen: 0 })
    }

    /// Reads once and returns the number of bytes. Calls `heard` with the stamp of each delta.
    ///
    /// # Errors
    /// [`Failure::Failed`] if the connection ends before the run has ended.
    #[inline]
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        mut heard: impl FnMut(u64),
    ) -> Result<usize, Failure> {
        let count = match self.socket.read(buffer) {
            Ok(0) if !self.has_ended => {
                return Err(Failure::Failed("a run's stream ended too early".to_owned()));
            }
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(Failure::Failed(format!("a run's stream: {error}"))),
        };
        let bytes = &buffer[..count];
        self.stamps.find(bytes, |stamp_ns| {
            self.heard += 1;
            heard(stamp_ns);
        });
        self.look_for_end(bytes);
        Ok(count)
    }

    #[inline]
    fn look_for_end(&mut self, bytes: &[u8]) {
        // The text begins with a byte that occurs nowhere else in it.
        let first = self.end[0];
        let mut rest = bytes;
        while !rest.is_empty() && !self.has_ended {
            if self.end_seen == 0 {
                match rest.iter().position(|byte| *byte == first) {
                    Some(at) => rest = &rest[at..],
                    None => return,
                }
            }
            match rest[0] == self.end[self.end_seen] {
                true => {
                    self.end_seen += 1;
                    rest = &rest[1..];
                }
                false => {
                    // A byte that does not match may still be the first one.
                    rest = if self.end_seen == 0 { &rest[1..] } else { rest };
                    self.end_seen = 0;
                }
            }
            self.has_ended = self.end_seen == self.end.len();
        }
    }
}

impl Way {
    /// Returns a text that occurs only at the end of a run.
    fn end(self) -> &'static [u8] {
        match self {
            Way::Stream | Way::Iterate => b"ExecutionCompleted",
            Way::Pipe => b"[DONE]",
        }
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Stream => "stream",
            Way::Iterate => "iterate",
            Way::Pipe => "pipe",
        }
    }
}

/// Finds stamps in bytes that arrive in pieces.
#[derive(Default)]
struct Stamps {
    /// Number of digits still to come. At 0, a mark is searched.
    left: usize,
    value: u64,
}

impl Stamps {
    #[inline]
    fn find(&mut self, mut bytes: &[u8], mut found: impl FnMut(u64)) {
        while !bytes.is_empty() {
            if self.left == 0 {
                let Some(at) = bytes.iter().position(|byte| *byte == MARK) else { return };
                bytes = &bytes[at + 1..];
                (self.left, self.value) = (STAMP_DIGITS, 0);
                continue;
            }
            let taken = self.left.min(bytes.len());
            for digit in &bytes[..taken] {
                self.value = self.value.wrapping_mul(10).wrapping_add(u64::from(digit & 15));
            }
            self.left -= taken;
            bytes = &bytes[taken..];
            if self.left == 0 {
                found(self.value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_wherever_the_bytes_are_cut() {
        let text = b"x@00000000000000000007the@00000000000000000123";
        for cut in 0..text.len() {
            let (mut stamps, mut found) = (Stamps::default(), Vec::new());
            for piece in [&text[..cut], &text[cut..]] {
                stamps.find(piece, |stamp| found.push(stamp));
            }
            assert_eq!(found, [7, 123], "{cut}");
        }
    }
}
