//! Files with secrets: they are read only if no other user can access them.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The permissions of the group and of all others.
const OTHERS: u32 = 0o077;
/// The permission of the group to read.
const GROUP_READS: u32 = 0o040;
const ROOT: u32 = 0;

/// True if a file of `owner` with this mode is safe for a process of the user `own`. Root may let a
/// group read it: systemd passes credentials to the user of a service in this way.
fn is_private(mode: u32, owner: u32, own: u32) -> bool {
    let allowed = if owner == ROOT && own != ROOT { GROUP_READS } else { 0 };
    mode & OTHERS & !allowed == 0
}

/// Reads a file that only its owner can access.
///
/// # Errors
/// The kernel's error, or a text: others can read or change the file, or it is too long.
pub fn read_private(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // The mode is that of the opened file, even if the path now names another file.
    let metadata = file.metadata()?;
    // SAFETY: it has no arguments, and cannot fail.
    let own = unsafe { libc::geteuid() };
    if !is_private(metadata.mode(), metadata.uid(), own) {
        let mode = metadata.mode() & 0o777;
        let text = format!("its mode is {mode:03o}: others can use it (chmod 600)");
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    match bytes.len() > bytes_max {
        true => Err(io::Error::other(format!("is longer than {bytes_max} bytes"))),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_may_let_a_group_read_the_secrets_of_another_user() {
        for (mode, owner, own, expected) in [
            (0o100_600, 1_000, 1_000, true),
            (0o100_400, ROOT, ROOT, true),
            (0o100_440, ROOT, 1_000, true),
            (0o100_440, ROOT, ROOT, false),
            (0o100_440, 1_000, 1_000, false),
            (0o100_460, ROOT, 1_000, false),
            (0o100_444, ROOT, 1_000, false),
        ] {
            assert_eq!(is_private(mode, owner, own), expected, "{mode:o} {owner} {own}");
        }
    }
}
