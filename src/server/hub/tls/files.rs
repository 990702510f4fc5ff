//! The certificate and the key of a server, read from their files.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{InconsistentKeys, ServerConfig, ServerConnection};

use crate::limits;

/// The certificate and the key of a server. All shards share one, so that a client can resume with
/// its ticket at any of them.
#[derive(Clone)]
pub struct TlsConfig(Arc<ServerConfig>);

/// The reason why a certificate or a key cannot be used.
#[derive(Debug)]
pub enum TlsError {
    /// The file cannot be read.
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The file is too long for a certificate or a key. Give another one.
    TooLong {
        /// The file.
        file: PathBuf,
        /// The maximum number of bytes.
        bytes_max: u64,
    },
    /// The file is damaged, or it is not PEM.
    Malformed {
        /// The file.
        file: PathBuf,
        /// The reason.
        problem: String,
    },
    /// The file holds no certificate. Give the file with the certificate, followed by its chain.
    NoCertificate {
        /// The file.
        file: PathBuf,
    },
    /// The file holds no private key. Give the file with the private key, without a password.
    NoKey {
        /// The file.
        file: PathBuf,
    },
    /// Other users can read or change the private key. Run `chmod o= FILE`, and consider that they
    /// may have read it.
    ReadableByOthers {
        /// The file.
        file: PathBuf,
        /// The file's permissions.
        mode: u32,
    },
    /// The certificate and the key do not belong together.
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The library does not support the certificate or the key.
    Refused {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The reason.
        problem: String,
    },
}

impl TlsConfig {
    /// Reads a certificate, followed by its chain, and its key. Both files are PEM.
    ///
    /// # Errors
    /// [`TlsError`], which names the file.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<TlsConfig, TlsError> {
        let malformed = |file: &Path, error: pem::Error| {
            let problem = error.to_string();
            TlsError::Malformed { file: file.to_owned(), problem }
        };
        let text = read(certificate, false)?;
        let chain: Result<Vec<CertificateDer<'static>>, pem::Error> =
            CertificateDer::pem_slice_iter(&text).collect();
        let chain = chain.map_err(|error| malformed(certificate, error))?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate { file: certificate.to_owned() });
        }
        let private = match PrivateKeyDer::from_pem_slice(&read(key, true)?) {
            Ok(private) => private,
            Err(pem::Error::NoItemsFound) => {
                return Err(TlsError::NoKey { file: key.to_owned() });
            }
            Err(error) => return Err(malformed(key, error)),
        };
        TlsConfig::of(chain, private).map_err(|error| {
            let (certificate, key) = (certificate.to_owned(), key.to_owned());
            match error {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    TlsError::Mismatch { certificate, key }
                }
                other => TlsError::Refused { certificate, key, problem: other.to_string() },
            }
        })
    }

    pub(in crate::server) fn of(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<TlsConfig, rustls::Error> {
        // The provider is explicit. A choice of other code in this process has no effect.
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.ticketer = ring::Ticketer::new()?;
        config.max_early_data_size = 0;
        Ok(TlsConfig(Arc::new(config)))
    }

    pub(in crate::server) fn connection(&self) -> ServerConnection {
        ServerConnection::new(Arc::clone(&self.0))
            .expect("the configuration was checked at the start")
    }
}

/// Reads a whole file of limited length. With `is_secret` other users may have no access to it.
fn read(file: &Path, is_secret: bool) -> Result<Vec<u8>, TlsError> {
    let unreadable = |error| TlsError::Unreadable { file: file.to_owned(), error };
    let opened = File::open(file).map_err(unreadable)?;
    if is_secret {
        let mode = opened.metadata().map_err(unreadable)?.permissions().mode();
        if mode & 0o007 != 0 {
            return Err(TlsError::ReadableByOthers { file: file.to_owned(), mode: mode & 0o777 });
        }
    }
    let bytes_max = limits::TLS_FILE_BYTES_MAX;
    let mut bytes = Vec::new();
    opened.take(bytes_max + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > bytes_max {
        return Err(TlsError::TooLong { file: file.to_owned(), bytes_max });
    }
    Ok(bytes)
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("TlsConfig") // The key is never printed.
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Unreadable { file, error } => write!(out, "{}: {error}", file.display()),
            TlsError::TooLong { file, bytes_max } => {
                write!(out, "{}: it is longer than {bytes_max} bytes", file.display())
            }
            TlsError::Malformed { file, problem } => {
                write!(out, "{}: it is not PEM: {problem}", file.display())
            }
            TlsError::NoCertificate { file } => {
                write!(out, "{}: it holds no certificate", file.display())
            }
            TlsError::NoKey { file } => {
                write!(out, "{}: it holds no private key without a password", file.display())
            }
            TlsError::ReadableByOthers { file, mode } => write!(
                out,
                "{}: others can read or change this private key (mode {mode:04o}): run chmod o=",
                file.display()
            ),
            TlsError::Mismatch { certificate, key } => write!(
                out,
                "{}: this private key does not belong to the certificate in {}",
                key.display(),
                certificate.display()
            ),
            TlsError::Refused { certificate, key, problem } => write!(
                out,
                "{} and {}: they cannot be used: {problem}",
                certificate.display(),
                key.display()
            ),
        }
    }
}

impl std::error::Error for TlsError {}
