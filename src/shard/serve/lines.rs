//! Placeholder.

use std::io::IoSlice;
use std::time::Duration;

use super::super::Shard;
use crate::limits;
use crate::reactor::{AdoptError, ConnectionId, Reactor, ReleasedSocket, SocketEvent};
use crate::wire::{LineSplitter, Split};

/// How the standard streams are served.
pub struct LineOptions {
    /// Between the last notification of a call and its answer.
    pub settle: Duration,
    /// Called once the connection is gone.
    pub on_end: Box<dyn FnOnce() + Send>,
}

pub(super) struct Lines {
    id: ConnectionId,
    splitter: LineSplitter,
    out: Vec<u8>,
    has_ended: bool,
    on_end: Option<Box<dyn FnOnce() + Send>>,
}

impl<R: Reactor + 'static> Shard<R> {
    /// Serves MCP on lines.
    ///
    /// # Errors
    /// The reactor's.
    pub fn open_lines(
        &mut self,
        socket: ReleasedSocket,
        options: LineOptions,
    ) -> Result<(), AdoptError> {
        self.open_serve().expect("placeholder");
        let id = self.reactor.adopt(socket)?;
        let lines = Lines {
            id,
            splitter: LineSplitter::new(limits::MCP_LINE_BYTES_MAX),
            out: Vec::new(),
            has_ended: false,
            on_end: Some(options.on_end),
        };
        self.serve.as_mut().unwrap().lines = Some(lines);
        Ok(())
    }
}

fn answer(line: &[u8], out: &mut Vec<u8>) {
    let error = |code, text: &str| {
        format!("{{\"jsonrpc\":\"2.0\",\"error\":{{\"code\":{code},\"message\":\"{text}\"}}}}\n")
    };
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(line) else {
        return out.extend_from_slice(error(-32700, "no JSON").as_bytes());
    };
    let id = &value["id"];
    if value["method"] == "ping" {
        out.extend_from_slice(
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}\n").as_bytes(),
        );
    } else {
        out.extend_from_slice(error(-32600, "what").as_bytes());
    }
}

impl Lines {
    /// Is the event ours? Then what is to be sent was sent, as far as that goes.
    pub fn take<R: Reactor>(&mut self, event: &SocketEvent<'_>) -> bool {
        match event {
            SocketEvent::Received { connection, bytes } if *connection == self.id => {
                let mut input = *bytes;
                while let Some(split) = self.splitter.next(&mut input) {
                    match split {
                        Split::Line(line) => answer(line, &mut self.out),
                        Split::TooLong => answer(b"", &mut self.out),
                    }
                }
                true
            }
            SocketEvent::Ended { connection, .. } if *connection == self.id => {
                if let Some(line) = self.splitter.end() {
                    answer(line, &mut self.out);
                }
                self.has_ended = true;
                true
            }
            SocketEvent::Writable { connection } => *connection == self.id,
            _ => false,
        }
    }

    pub fn flush<R: Reactor>(&mut self, reactor: &mut R) {
        if !self.out.is_empty() {
            match reactor.send(self.id, &[IoSlice::new(&self.out)]) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(_) => {
                    self.has_ended = true;
                    self.out.clear();
                }
            }
        }
        if self.has_ended && self.out.is_empty() {
            reactor.close(self.id);
            if let Some(on_end) = self.on_end.take() {
                on_end();
            }
        }
    }
}
