//! TLS for clients: the trusted certificates, and the layer between a socket's bytes and HTTP.
//!
//! The certificates of the system are trusted. The system's administrator keeps them up to date,
//! organizations add their own, and `SSL_CERT_FILE` names others. A built-in list would be as old
//! as the program. They are read when the first connection needs them.

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

/// The client's configuration with the trusted certificates.
#[derive(Clone)]
pub(crate) struct Trusted(Arc<ClientConfig>);

/// Certificates of authorities that vouch for servers. No other certificates are trusted.
#[derive(Clone)]
pub struct Roots(Trusted);

impl Roots {
    /// Reads the certificates in this PEM file.
    ///
    /// # Errors
    /// The file cannot be read, is too long, or holds no valid certificate.
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

    /// Returns the trust in these certificates.
    ///
    /// # Errors
    /// A certificate is not valid, or none was given.
    pub(crate) fn of(certificates: Vec<CertificateDer<'static>>) -> Result<Roots, String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        trust(roots).map(Roots)
    }

    pub(in crate::server) fn trusted(&self) -> Trusted {
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
        return Err("no certificate of an authority was found".to_owned());
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Trusted(Arc::new(config)))
}

/// Returns the trust in the system's certificates, read once for the whole process. May take long.
pub(in crate::server) fn trusted_by_system() -> Result<Trusted, String> {
    static SYSTEM: OnceLock<Trusted> = OnceLock::new();
    if let Some(trusted) = SYSTEM.get() {
        return Ok(trusted.clone());
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Certificates that cannot be parsed do not affect the others.
    let (added_count, _) = roots.add_parsable_certificates(found.certs);
    if added_count == 0
        && let Some(error) = found.errors.first()
    {
        return Err(format!("no certificate of the system could be read: {error}"));
    }
    let trusted = trust(roots)?;
    Ok(SYSTEM.get_or_init(|| trusted).clone())
}

/// The TLS session of one connection.
pub(in crate::server) struct ClientTls {
    tls: ClientConnection,
    /// Encrypted bytes to send, from `sent_bytes` on.
    sealed: Vec<u8>,
    sent_bytes: usize,
    is_ready: bool,
    has_ended: bool,
}

/// The result of decrypting some bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::server) struct Opened {
    /// True if the handshake has just ended.
    pub is_ready: bool,
    /// True if the peer has closed its side.
    pub has_ended: bool,
    /// The reason why the session cannot be trusted, if so.
    pub refusal: Option<String>,
}

impl ClientTls {
    /// Returns the session of a new connection to this host.
    ///
    /// # Errors
    /// The host is not a valid name or address.
    pub fn new(trusted: &Trusted, host: &str) -> Result<Box<ClientTls>, String> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let tls = ClientConnection::new(Arc::clone(&trusted.0), name);
        let mut tls = tls.map_err(|error| error.to_string())?;
        tls.set_buffer_limit(None); // Each piece is taken out at once.
        let sealed = Vec::new();
        let mut session =
            ClientTls { tls, sealed, sent_bytes: 0, is_ready: false, has_ended: false };
        session.collect();
        Ok(Box::new(session))
    }

    /// Decrypts received bytes and appends the result to `out`.
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
            let text = "the peer does not read the replies of TLS".to_owned();
            opened.refusal.get_or_insert(text);
        }
        if !self.is_ready && !self.tls.is_handshaking() {
            self.is_ready = true;
            opened.is_ready = true;
        }
        opened
    }

    /// Collects the bytes that rustls has for the peer.
    fn collect(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.sealed).expect("memory takes everything");
        }
    }

    /// Encrypts the first of these bytes, once all earlier ones are sent. Returns their number.
    pub fn seal(&mut self, bytes: &[u8]) -> usize {
        let portion = &bytes[..bytes.len().min(limits::TLS_SEAL_BYTES)];
        self.tls.writer().write_all(portion).expect("it has no limit");
        self.collect();
        portion.len()
    }

    /// Sends encrypted bytes. Returns `Ok(false)` if not all were taken.
    pub fn send<E>(&mut self, send: impl FnOnce(&[u8]) -> Result<usize, E>) -> Result<bool, E> {
        if self.waiting_bytes() > 0 {
            self.sent_bytes += send(&self.sealed[self.sent_bytes..])?;
        }
        let is_all = self.waiting_bytes() == 0;
        if is_all {
            self.sealed = Vec::new(); // A waiting connection has no buffer.
            self.sent_bytes = 0;
        }
        Ok(is_all)
    }

    fn waiting_bytes(&self) -> usize {
        self.sealed.len() - self.sent_bytes
    }

    /// True if the peer has closed its side.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}
