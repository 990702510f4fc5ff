//! TLS on a connection: what stands between the bytes of its socket and those of its HTTP machine.
//!
//! What comes is opened as it comes, and nothing of it is kept here but the beginning of a record.
//! What goes is sealed in portions when the kernel takes bytes, and no earlier: what a slow reader
//! does not take waits as it would without TLS, and of sealed bytes there is one portion at most.
//! A connection without TLS has no session, and asks once a flush whether it has one.
//!
//! Renegotiation does not exist (rustls has none); 0-RTT is off, as it could be repeated by others.
//! Tests: at the end; `tests/tls/`, with curl and openssl.

mod files;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{IoSlice, Read, Write};

use rustls::ServerConnection;

pub use files::{TlsConfig, TlsError};

use super::buffers::Buffers;
use crate::limits;

/// See the module's text.
pub(super) struct Session {
    tls: ServerConnection,
    /// To be sent, from `sent_bytes` on.
    sealed: Vec<u8>,
    sent_bytes: usize,
    /// It was said that nothing follows, or why nothing does.
    is_over: bool,
    was_told_of: bool,
}

/// What came of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// There may be more.
    More,
    /// The handshake has just ended; there may be more.
    Ready,
    /// The peer has said that nothing follows.
    Ended,
    /// Nothing of it is to be believed; the peer is told so. Why:
    Refused(String),
}

impl Session {
    /// For a new connection.
    pub fn new(config: &TlsConfig) -> Box<Session> {
        let mut tls = config.connection();
        tls.set_buffer_limit(None); // What is put in is taken out at once.
        let sealed = Vec::new();
        Box::new(Session { tls, sealed, sent_bytes: 0, is_over: false, was_told_of: false })
    }

    /// Opens what has come, and appends it to `out`.
    pub fn open(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Opened {
        if self.is_over {
            return Opened::More; // It was told.
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
            refusal.get_or_insert_with(|| "it asks and asks, and reads nothing".to_owned());
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

    /// Takes what rustls has for the peer.
    fn collect(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.sealed).expect("memory takes everything");
        }
    }

    /// Seals bytes, not more than [`limits::TLS_SEAL_BYTES`] of them. How many?
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
            assert_eq!(taken.ok(), Some(total)); // It has no limit.
            self.collect();
        }
        total
    }

    /// Says that nothing follows, unless something like that was said. Is there something to be
    /// sent now?
    pub fn say_goodbye(&mut self) -> bool {
        if std::mem::replace(&mut self.is_over, true) {
            return false;
        }
        self.tls.send_close_notify();
        self.collect();
        self.waiting_bytes() > 0
    }

    /// Sends what is sealed. `Ok(false)`: not all of it was taken.
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

    /// Sealed, and not sent.
    pub fn waiting_bytes(&self) -> usize {
        self.sealed.len() - self.sent_bytes
    }

    /// Gives its memory back.
    pub fn recycle(self, spare: &mut Buffers) {
        spare.give_back(self.sealed);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Session { is_over, .. } = self;
        out.debug_struct("Session").field("is_over", is_over).finish_non_exhaustive()
    }
}
