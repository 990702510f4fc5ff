//! TLS on a connection: the layer between the bytes of its socket and those of its HTTP machine.
//!
//! Received bytes are decrypted as they come. Only the beginning of an incomplete record is kept
//! here. Bytes to send are encrypted in portions, and only when the kernel takes bytes. Bytes that
//! a slow reader does not take therefore wait unencrypted, and at most one portion waits encrypted.
//! A connection without TLS has no session, and a flush checks for one once.
//!
//! Renegotiation does not exist (rustls has none). 0-RTT is off, because others could replay it.
//! Tests: `tests.rs`; `tests/tls/`, with curl and openssl.

mod files;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{IoSlice, Read, Write};

pub use files::{TlsConfig, TlsError};
use rustls::ServerConnection;

use crate::limits;
use crate::server::hub::buffers::Buffers;

/// The TLS state of one connection. See the module's text.
pub(in crate::server) struct ServerTls {
    tls: ServerConnection,
    /// Encrypted bytes. Those from `sent_bytes` on have to be sent.
    sealed: Vec<u8>,
    sent_bytes: usize,
    /// True if a closing alert was sent or the session has failed.
    is_over: bool,
    has_begun: bool,
    was_told_of: bool,
}

/// The result of decrypting some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::server) enum Opened {
    /// The connection goes on.
    More,
    /// The handshake has just ended. The connection goes on.
    Ready,
    /// The peer has closed its side.
    Ended,
    /// The bytes are invalid, and the peer is told so with an alert. Holds the reason.
    Refused(String),
    /// The first bytes are a request of plain HTTP, which no TLS record begins with. There is no
    /// session.
    Plain,
}

impl ServerTls {
    /// Creates the session of a new connection.
    pub fn new(config: &TlsConfig) -> Box<ServerTls> {
        let mut tls = config.connection();
        tls.set_buffer_limit(None); // Each write is encrypted and collected at once.
        let sealed = Vec::new();
        Box::new(ServerTls {
            tls,
            sealed,
            sent_bytes: 0,
            is_over: false,
            has_begun: false,
            was_told_of: false,
        })
    }

    /// Decrypts received bytes, and appends the result to `out`.
    pub fn open(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Opened {
        if self.is_over {
            return Opened::More; // This was reported before.
        }
        if !std::mem::replace(&mut self.has_begun, true)
            && bytes.first().is_some_and(u8::is_ascii_uppercase)
        {
            return Opened::Plain;
        }
        let mut has_ended = false;
        let mut refusal = None;
        while !bytes.is_empty() && !has_ended && refusal.is_none() {
            let read = self.tls.read_tls(&mut bytes);
            let processed = match read {
                Ok(_) => self.tls.process_new_packets().map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match processed {
                Ok(state) => {
                    has_ended = state.peer_has_closed();
                    let there = state.plaintext_bytes_to_read();
                    let taken = self.tls.reader().take(there as u64).read_to_end(out);
                    assert_eq!(taken.ok(), Some(there));
                }
                Err(error) => refusal = Some(error),
            }
        }
        self.collect();
        if self.waiting_bytes() > limits::TLS_SEALED_BYTES_MAX {
            refusal.get_or_insert_with(|| "the peer sends and sends, and reads nothing".to_owned());
        }
        match refusal {
            Some(refusal) => {
                self.is_over = true;
                Opened::Refused(refusal)
            }
            None if has_ended => Opened::Ended,
            None if !self.was_told_of && !self.tls.is_handshaking() => {
                self.was_told_of = true;
                Opened::Ready
            }
            None => Opened::More,
        }
    }

    /// Takes the bytes that rustls has for the peer.
    fn collect(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.sealed).expect("a vector takes all bytes");
        }
    }

    /// Encrypts up to [`limits::TLS_SEAL_BYTES`] bytes. Returns how many.
    pub fn seal<'a>(
        &mut self,
        slices: impl Iterator<Item = &'a [u8]>,
        spare: &mut Buffers,
    ) -> usize {
        let mut left = limits::TLS_SEAL_BYTES;
        let mut portion: smallvec::SmallVec<[IoSlice<'_>; 16]> = smallvec::SmallVec::new();
        for slice in slices {
            let slice = &slice[..slice.len().min(left)];
            left -= slice.len();
            if !slice.is_empty() {
                portion.push(IoSlice::new(slice));
            }
            if left == 0 {
                break;
            }
        }
        let total = limits::TLS_SEAL_BYTES - left;
        if total > 0 {
            if self.sealed.capacity() == 0 {
                self.sealed = spare.large(total + limits::TLS_OVERHEAD_BYTES);
            }
            let taken = self.tls.writer().write_vectored(&portion);
            assert_eq!(taken.ok(), Some(total)); // The writer has no limit.
            self.collect();
        }
        total
    }

    /// Sends a closing alert, unless the session is over already. Returns true if bytes have to be
    /// sent now.
    pub fn must_send_goodbye(&mut self) -> bool {
        if std::mem::replace(&mut self.is_over, true) {
            return false;
        }
        self.tls.send_close_notify();
        self.collect();
        self.waiting_bytes() > 0
    }

    /// Sends encrypted bytes. Returns `Ok(false)` if not all of them were taken.
    pub fn send<E>(
        &mut self,
        spare: &mut Buffers,
        send: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<bool, E> {
        if self.waiting_bytes() > 0 {
            self.sent_bytes += send(&[IoSlice::new(&self.sealed[self.sent_bytes..])])?;
        }
        let is_all = self.waiting_bytes() == 0;
        if is_all {
            spare.give_back(std::mem::take(&mut self.sealed));
            self.sent_bytes = 0;
        }
        Ok(is_all)
    }

    /// Returns the number of encrypted bytes that were not sent.
    pub fn waiting_bytes(&self) -> usize {
        self.sealed.len() - self.sent_bytes
    }

    /// Returns its memory to `spare`.
    pub fn recycle(self, spare: &mut Buffers) {
        spare.give_back(self.sealed);
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerTls { is_over, .. } = self;
        out.debug_struct("ServerTls").field("is_over", is_over).finish_non_exhaustive()
    }
}
