//! Token files. They are read only if no other user can access them.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use streamdoor::limits::TOKEN_FILE_BYTES_MAX;

use super::CliError;

/// The permissions of the group and of all others.
const OTHERS: u32 = 0o077;

/// Reads a file that only its owner can access.
///
/// # Errors
/// If others can read or change it, it is too long, or it is not UTF-8.
pub fn read(path: &Path) -> Result<String, CliError> {
    let problem = |text: String| problem(path, text);
    let file = File::open(path).map_err(|error| problem(error.to_string()))?;
    // The mode is that of the opened file, even if the path now names another file.
    let mode = file.metadata().map_err(|error| problem(error.to_string()))?.permissions().mode();
    if mode & OTHERS != 0 {
        let mode = mode & 0o777;
        return Err(problem(format!("its mode is {mode:03o}: others can use it (chmod 600)")));
    }
    let mut bytes = Vec::new();
    let limit = TOKEN_FILE_BYTES_MAX as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(|error| problem(error.to_string()))?;
    if bytes.len() > TOKEN_FILE_BYTES_MAX {
        return Err(problem(format!("is longer than {TOKEN_FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| problem("is not UTF-8".to_owned()))
}

/// Returns the usage error for a problem with the file.
pub fn problem(path: &Path, problem: impl fmt::Display) -> CliError {
    CliError::Usage(format!("--token-file {}: {problem}", path.display()))
}
