//! The certificate and the key of a server, out of their files.

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

/// With what a server shows who it is: one for all of its shards, so that a client can come back to
/// any of them with its ticket.
#[derive(Clone)]
pub struct TlsConfig(Arc<ServerConfig>);

/// Why a certificate or a key cannot be used.
#[derive(Debug)]
pub enum TlsError {
    /// Make it readable.
    Unreadable {
        /// Which file.
        file: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// Give another file: this is no certificate or key.
    TooLong {
        /// Which file.
        file: PathBuf,
        /// The limit.
        bytes_max: u64,
    },
    /// Give a file that is whole, in PEM.
    Malformed {
        /// Which file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Give the file with the certificate, and those of who vouches for it behind.
    NoCertificate {
        /// Which file.
        file: PathBuf,
    },
    /// Give the file with the private key, without a password.
    NoKey {
        /// Which file.
        file: PathBuf,
    },
    /// `chmod o= FILE`, and think about who has read it.
    ReadableByOthers {
        /// Which file.
        file: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Give the two that belong together.
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's.
        key: PathBuf,
    },
    /// Something about them is not supported.
    Refused {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's.
        key: PathBuf,
        /// What.
        problem: String,
    },
}

impl TlsConfig {
    /// Reads a certificate, with those of who vouches for it behind, and its key, both in PEM.
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

    pub(super) fn of(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<TlsConfig, rustls::Error> {
        // The provider is named: nothing depends on what else in the process has chosen one.
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.ticketer = ring::Ticketer::new()?;
        config.max_early_data_size = 0;
        Ok(TlsConfig(Arc::new(config)))
    }

    pub(super) fn connection(&self) -> ServerConnection {
        ServerConnection::new(Arc::clone(&self.0)).expect("what is wrong was found at the start")
    }
}

/// All of a file that is small. With `is_secret` others may not be able to read it.
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
        out.write_str("TlsConfig") // Not its key.
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
                write!(out, "{}: there is no certificate in it", file.display())
            }
            TlsError::NoKey { file } => {
                write!(out, "{}: there is no private key without a password in it", file.display())
            }
            TlsError::ReadableByOthers { file, mode } => write!(
                out,
                "{}: others can read or change this private key (mode {mode:04o}); chmod o= it",
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
