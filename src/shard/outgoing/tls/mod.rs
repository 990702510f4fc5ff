//! TLS of a client: whom it believes, and what stands between the bytes of a socket and those of
//! HTTP.
//!
//! Believed is whom the system trusts: its certificates are kept up to date by whoever looks after
//! the machine, organizations add their own there, and `SSL_CERT_FILE` names others. A list that is
//! built in would be as old as the program. They are read when the first connection needs them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::limits;

#[cfg(test)]
mod tests;

/// Who is believed.
#[derive(Clone)]
pub(crate) struct Trusted(Arc<ClientConfig>);

/// Certificates of those who vouch for servers. Nobody else is believed.
#[derive(Clone)]
pub struct Roots(Trusted);

impl Roots {
    /// Those of this file, which are in PEM.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_file(file: &Path) -> io::Result<Roots> {
        let mut text = Vec::new();
        File::open(file)?.take(limits::TLS_FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
        if text.len() as u64 > limits::TLS_FILE_BYTES_MAX {
            let text = format!("it is longer than {} bytes", limits::TLS_FILE_BYTES_MAX);
            return Err(io::Error::other(text));
        }
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let certificates = certificates.map_err(io::Error::other)?;
        Roots::of(certificates).map_err(io::Error::other)
    }

    /// These.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn of(certificates: Vec<CertificateDer<'static>>) -> Result<Roots, String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        trust(roots).map(Roots)
    }

    pub(super) fn trusted(&self) -> Trusted {
        self.0.clone()
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Roots")
    }
}

fn trust(roots: RootCertStore) -> Result<Trusted, String> {
    if roots.is_empty() {
        return Err("no certificate of anybody who could vouch for a server was found".to_owned());
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Trusted(Arc::new(config)))
}

/// Whom the system trusts: read once for the whole process. Takes long.
pub(super) fn trusted_by_system() -> Result<Trusted, String> {
    static SYSTEM: OnceLock<Trusted> = OnceLock::new();
    if let Some(trusted) = SYSTEM.get() {
        return Ok(trusted.clone());
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some that nobody can parse are no reason not to believe the others.
    let (added_count, _) = roots.add_parsable_certificates(found.certs);
    if added_count == 0
        && let Some(error) = found.errors.first()
    {
        return Err(format!("no certificate of the system could be read: {error}"));
    }
    let trusted = trust(roots)?;
    Ok(SYSTEM.get_or_init(|| trusted).clone())
}

/// TLS on one connection.
pub(super) struct Session {
    tls: ClientConnection,
    /// To be sent, from `sent_bytes` on.
    sealed: Vec<u8>,
    sent_bytes: usize,
    is_ready: bool,
    has_ended: bool,
}

/// What came of some bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Opened {
    /// The handshake has just ended.
    pub is_ready: bool,
    /// The peer has said that nothing follows.
    pub has_ended: bool,
    /// Nothing of it is to be believed. Why:
    pub refusal: Option<String>,
}

impl Session {
    /// For a new connection to this host.
    ///
    /// # Errors
    /// It is none.
    pub fn new(trusted: &Trusted, host: &str) -> Result<Box<Session>, String> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let tls = ClientConnection::new(Arc::clone(&trusted.0), name);
        let mut tls = tls.map_err(|error| error.to_string())?;
        tls.set_buffer_limit(None); // What is put in is taken out at once.
        let sealed = Vec::new();
        let mut session = Session { tls, sealed, sent_bytes: 0, is_ready: false, has_ended: false };
        session.collect();
        Ok(Box::new(session))
    }

    /// Opens what has come, and appends it to `out`.
    pub fn open(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Opened {
        let mut opened = Opened::default();
        while !bytes.is_empty() && !self.has_ended && opened.refusal.is_none() {
            let read = self.tls.read_tls(&mut bytes);
            let processed = match read {
                Ok(_) => self.tls.process_new_packets().map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match processed {
                Ok(state) => {
                    self.has_ended = state.peer_has_closed();
                    opened.has_ended = self.has_ended;
                    let there = state.plaintext_bytes_to_read();
                    let taken = self.tls.reader().take(there as u64).read_to_end(out);
                    assert_eq!(taken.ok(), Some(there));
                }
                Err(error) => opened.refusal = Some(error),
            }
        }
        self.collect();
        if self.waiting_bytes() > limits::TLS_SEALED_BYTES_MAX {
            let text = "it asks and asks, and reads nothing".to_owned();
            opened.refusal.get_or_insert(text);
        }
        if !self.is_ready && !self.tls.is_handshaking() {
            self.is_ready = true;
            opened.is_ready = true;
        }
        opened
    }

    /// Takes what rustls has for the peer.
    fn collect(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.sealed).expect("memory takes everything");
        }
    }

    /// Seals the first of these bytes, once everything before is sent. How many?
    pub fn seal(&mut self, bytes: &[u8]) -> usize {
        let portion = &bytes[..bytes.len().min(limits::TLS_SEAL_BYTES)];
        self.tls.writer().write_all(portion).expect("it has no limit");
        self.collect();
        portion.len()
    }

    /// Sends what is sealed. `Ok(false)`: not all of it was taken.
    pub fn send<E>(&mut self, send: impl FnOnce(&[u8]) -> Result<usize, E>) -> Result<bool, E> {
        if self.waiting_bytes() > 0 {
            self.sent_bytes += send(&self.sealed[self.sent_bytes..])?;
        }
        let is_all = self.waiting_bytes() == 0;
        if is_all {
            self.sealed = Vec::new(); // A connection that waits has no buffer.
            self.sent_bytes = 0;
        }
        Ok(is_all)
    }

    fn waiting_bytes(&self) -> usize {
        self.sealed.len() - self.sent_bytes
    }

    /// Has the peer said that nothing follows?
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}
