//! TLS for a client: the certificates that it trusts, and its connections.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::limits;

/// The certificates that a client trusts: those of authorities, or of the server itself. The
/// system's certificates are not added.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

/// The reason why certificates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustError {
    /// The file.
    pub file: PathBuf,
    /// The fault of the file.
    pub problem: String,
}

/// An encrypted connection.
pub(super) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

impl Trust {
    /// Trusts the certificates of the system, which are read once per process.
    ///
    /// # Errors
    /// The reason why none can be used.
    pub fn of_system() -> Result<Trust, String> {
        static SYSTEM: OnceLock<Trust> = OnceLock::new();
        if let Some(trust) = SYSTEM.get() {
            return Ok(trust.clone());
        }
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        // Certificates that cannot be parsed are skipped.
        let (added_count, _) = roots.add_parsable_certificates(found.certs);
        if added_count == 0 {
            let error = found.errors.first().map(ToString::to_string).unwrap_or_default();
            return Err(format!("no certificate that the system trusts was found: {error}"));
        }
        let trust = Trust::of(roots)?;
        Ok(SYSTEM.get_or_init(|| trust).clone())
    }

    fn of(roots: RootCertStore) -> Result<Trust, String> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Trust(Arc::new(config)))
    }

    /// Trusts the certificates of this file, which are in PEM.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn from_file(file: &Path) -> Result<Trust, TrustError> {
        let wrong = |problem: String| TrustError { file: file.to_owned(), problem };
        let mut text = Vec::new();
        let opened = File::open(file).map_err(|error| wrong(error.to_string()))?;
        let read = opened.take(limits::TLS_FILE_BYTES_MAX + 1).read_to_end(&mut text);
        read.map_err(|error| wrong(error.to_string()))?;
        if text.len() as u64 > limits::TLS_FILE_BYTES_MAX {
            return Err(wrong(format!("it is longer than {} bytes", limits::TLS_FILE_BYTES_MAX)));
        }
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(wrong("it contains no certificate".to_owned()));
        }
        Trust::of(roots).map_err(wrong)
    }

    /// Performs the handshake, and checks that the server is `host`.
    pub(super) fn connect(&self, host: &str, mut socket: TcpStream) -> io::Result<TlsStream> {
        let bad =
            |error: &dyn fmt::Display| io::Error::new(ErrorKind::InvalidData, error.to_string());
        let name = ServerName::try_from(host.to_owned()).map_err(|error| bad(&error))?;
        let config = Arc::clone(&self.0);
        let mut tls = ClientConnection::new(config, name).map_err(|error| bad(&error))?;
        socket.set_read_timeout(Some(limits::CLIENT_CONNECT_TIMEOUT))?;
        socket.set_write_timeout(Some(limits::CLIENT_CONNECT_TIMEOUT))?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).map_err(in_words)?;
        }
        Ok(StreamOwned::new(tls, socket))
    }
}

/// Returns the error of a handshake with its cause and what helps.
fn in_words(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let advice = match inner {
        Some(rustls::Error::InvalidCertificate(fault)) => advice_on(fault),
        Some(rustls::Error::InvalidMessage(_)) => Some("this port does not speak TLS; use http://"),
        _ => None,
    };
    match (advice, inner) {
        (Some(advice), Some(inner)) => io::Error::new(error.kind(), format!("{advice} ({inner})")),
        _ => error,
    }
}

fn advice_on(fault: &CertificateError) -> Option<&'static str> {
    match fault {
        // A trusted authority of the same name has another key.
        CertificateError::UnknownIssuer
        | CertificateError::BadSignature
        | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => Some(
            "the server's certificate is not from a trusted issuer; trust it, or its issuer, with \
             --cacert FILE",
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Some("the server's certificate is for another host name")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            Some("the server's certificate has expired")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Some("the server's certificate is not valid yet; check the clock")
        }
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => Some(
            "the server's certificate is that of an authority; create one for a server, with \
             openssl req -addext basicConstraints=critical,CA:FALSE",
        ),
        _ => None,
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Trust")
    }
}

impl fmt::Display for TrustError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.file.display(), self.problem)
    }
}

impl std::error::Error for TrustError {}
