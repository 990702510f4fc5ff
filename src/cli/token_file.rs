//! Token files, and the token of a client. Files are read only if no other user can access them.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use streamdoor::endpoint::{Tokens, first_token};
use streamdoor::limits::TOKEN_FILE_BYTES_MAX;
use streamdoor::reactor::read_private;

use super::CliError;

/// The variable with the token for commands that are given no token file.
const VARIABLE: &str = "STREAMDOOR_TOKEN";

/// The token of a client, and its source. No error has the token.
pub struct ClientToken {
    /// The token.
    pub text: String,
    /// The token file. `None` if the variable has the token.
    file: Option<PathBuf>,
}

impl ClientToken {
    /// Returns the token in the file, else that of the variable. `None` if neither is given.
    pub fn find(file: Option<&Path>) -> Result<Option<ClientToken>, CliError> {
        ClientToken::of(file, std::env::var_os(VARIABLE))
    }

    fn of(
        file: Option<&Path>,
        variable: Option<OsString>,
    ) -> Result<Option<ClientToken>, CliError> {
        let mut token = ClientToken { text: String::new(), file: file.map(Path::to_owned) };
        let text = match (file, variable.filter(|text| !text.is_empty())) {
            (Some(path), _) => read(path)?,
            (None, Some(text)) => {
                text.into_string().map_err(|_| token.problem("it is not UTF-8"))?
            }
            (None, None) => return Ok(None),
        };
        token.text = first_token(&text).map_err(|error| token.problem(error))?.to_owned();
        Ok(Some(token))
    }

    /// Returns the usage error for a problem with the token.
    pub fn problem(&self, error: impl fmt::Display) -> CliError {
        match &self.file {
            Some(path) => problem(path, error),
            None => CliError::Usage(format!("{VARIABLE}: {error}")),
        }
    }
}

/// Reads the tokens of a server.
///
/// # Errors
/// Those of [`read`], or an error that names the wrong line.
pub fn tokens(path: &Path) -> Result<Tokens, CliError> {
    Tokens::read(&read(path)?).map_err(|error| problem(path, error))
}

/// Reads a file that only its owner can access.
///
/// # Errors
/// If others can read or change it, it is too long, or it is not UTF-8.
pub fn read(path: &Path) -> Result<String, CliError> {
    let bytes = read_private(path, TOKEN_FILE_BYTES_MAX).map_err(|error| problem(path, error))?;
    String::from_utf8(bytes).map_err(|_| problem(path, "is not UTF-8"))
}

/// Returns the usage error for a problem with the file.
pub fn problem(path: &Path, problem: impl fmt::Display) -> CliError {
    CliError::Usage(format!("--token-file {}: {problem}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TOKEN: &str = "0123456789abcdefghijklmnopqrstuvwxyz";

    #[test]
    fn the_token_comes_from_the_file_or_else_from_the_variable() {
        let path = std::env::temp_dir().join(format!("streamdoor-token-{}", std::process::id()));
        std::fs::write(&path, format!("ann {TOKEN}-file\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let file = Some(path.as_path());
        for (file, variable, expected) in [
            (file, None, Some(format!("{TOKEN}-file"))),
            (file, Some(TOKEN), Some(format!("{TOKEN}-file"))),
            (None, Some(TOKEN), Some(TOKEN.to_owned())),
            (None, Some(""), None),
            (None, None, None),
        ] {
            let found = ClientToken::of(file, variable.map(OsString::from)).unwrap();
            assert_eq!(found.map(|token| token.text), expected);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn no_error_has_the_token() {
        let secret = "sesame";
        for text in [
            OsString::from(secret),
            OsString::from(format!("{secret} {secret} {secret}")),
            OsString::from(format!("{secret}\u{e9}{TOKEN}")),
            OsString::from_vec([secret.as_bytes(), &[0xff]].concat()),
        ] {
            let error = ClientToken::of(None, Some(text)).err().expect("it is wrong").to_string();
            assert!(error.starts_with("STREAMDOOR_TOKEN: "), "{error}");
            assert!(!error.contains(secret), "{error}");
        }
    }
}
