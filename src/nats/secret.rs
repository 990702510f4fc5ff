//! The secret of a cluster, which all its nodes have: a file that only its owner can read.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::limits::{CLUSTER_SECRET_BYTES_MAX, CLUSTER_SECRET_BYTES_MIN};
use crate::reactor::{random_bytes, read_private};

/// Reads the secret. White space around it does not count.
///
/// # Errors
/// The kernel's error, or a text: others can read the file, or the secret is too short or too long.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = read_private(path, CLUSTER_SECRET_BYTES_MAX)?;
    let secret = bytes.trim_ascii();
    if secret.len() < CLUSTER_SECRET_BYTES_MIN {
        let text = format!("the secret is shorter than {CLUSTER_SECRET_BYTES_MIN} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    Ok(secret.to_vec())
}

/// The purpose of the key that seals what clients of MCP keep for a server.
pub const MCP_STATE: &str = "streamdoor cluster mcp state 1";

/// The purpose of the key of tickets.
pub const TICKETS: &str = "streamdoor cluster tickets 1";

/// The purpose of the key that seals what nodes say to each other.
pub const ASKS: &str = "streamdoor cluster asks 1";

/// Returns a key for a purpose. All nodes have the same ones.
pub fn derived(secret: &[u8], purpose: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key has any length");
    mac.update(purpose.as_bytes());
    mac.finalize().into_bytes().into()
}

/// The origin of the secret in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// The file was made, with a new secret.
    New,
    /// The file was there.
    Found,
}

/// Makes the file with random bytes in hexadecimal, if it does not exist. A file that is there is
/// only read.
///
/// # Errors
/// Those of [`read`], or the kernel's error.
pub fn make(path: &Path) -> io::Result<Made> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = match file {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return read(path).map(|_| Made::Found);
        }
        file => file?,
    };
    let mut bytes = [0; CLUSTER_SECRET_BYTES_MIN];
    random_bytes(&mut bytes)?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(file, "{digits}")?;
    file.sync_all().map(|()| Made::New)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_is_for_its_owner() {
        let name = format!("streamdoor-secret-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        assert_eq!(read(&path).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(make(&path).unwrap(), Made::New);
        let secret = read(&path).unwrap();
        assert_eq!(secret.len(), 2 * CLUSTER_SECRET_BYTES_MIN);
        assert_eq!(make(&path).unwrap(), Made::Found);
        assert_eq!(read(&path).unwrap(), secret);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        assert_eq!(make(&path).unwrap_err().kind(), ErrorKind::PermissionDenied);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&path, format!(" {} \n", "x".repeat(31))).unwrap();
        assert_eq!(make(&path).unwrap_err().kind(), ErrorKind::InvalidData);
        std::fs::remove_file(&path).unwrap();
    }
}
