//! Files of tokens: read only if nobody else can.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use streamdoor::limits::TOKEN_FILE_BYTES_MAX;

use super::CliError;

/// Permissions of the group and of all others.
const OTHERS: u32 = 0o077;

/// What stands in a file that is its owner's alone.
///
/// # Errors
/// If others can read or change it, or it is too long, or no text.
pub fn read(path: &Path) -> Result<String, CliError> {
    let problem = |text: String| problem(path, text);
    let file = File::open(path).map_err(|error| problem(error.to_string()))?;
    // Of what was opened, whatever stands at that path by now.
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

/// What is wrong with it.
pub fn problem(path: &Path, problem: impl fmt::Display) -> CliError {
    CliError::Usage(format!("--token-file {}: {problem}", path.display()))
}
