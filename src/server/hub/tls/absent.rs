//! The replacement of TLS in a build without it: types that have no values.

use std::io::IoSlice;

use crate::server::hub::buffers::Buffers;

/// The TLS configuration. This build has none.
#[derive(Clone, Copy, Debug)]
pub enum TlsConfig {}

/// The TLS session. This build has none.
#[derive(Debug)]
pub(in crate::server) enum ServerTls {}

/// The result of decrypting some bytes.
#[derive(Debug)]
#[expect(dead_code, reason = "no value is ever made")]
pub(in crate::server) enum Opened {
    More,
    Ready,
    Ended,
    Refused(String),
    Plain,
}

impl ServerTls {
    pub fn new(config: &TlsConfig) -> Box<ServerTls> {
        match *config {}
    }

    pub fn open(&mut self, _: &[u8], _: &mut Vec<u8>) -> Opened {
        match *self {}
    }

    pub fn seal<'a>(&mut self, _: impl Iterator<Item = &'a [u8]>, _: &mut Buffers) -> usize {
        match *self {}
    }

    pub fn must_send_goodbye(&mut self) -> bool {
        match *self {}
    }

    pub fn send<E>(
        &mut self,
        _: &mut Buffers,
        _: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<bool, E> {
        match *self {}
    }

    pub fn waiting_bytes(&self) -> usize {
        match *self {}
    }

    pub fn recycle(self, _: &mut Buffers) {
        match self {}
    }
}
