//! The parts that `cat` and `pipe` share: the choice of the door, the token, and errors as
//! [`CliError`].

use std::path::PathBuf;

use streamdoor::door::{Door, DoorError};

use super::printable::one_line;
use super::token_file::ClientToken;
use super::{CliError, remote};

/// The options `--door` and `--token-file`.
#[derive(Clone, Debug, Default)]
pub struct DoorArguments {
    path: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

impl DoorArguments {
    /// Takes the value of the option `--name`. Returns false if it is neither of the two.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        match name {
            "door" => self.path = Some(parser.value()?.into()),
            "token-file" => self.token_file = Some(parser.value()?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Opens the door at the given path, or else at the default path.
    pub fn open(&self) -> Result<Door, CliError> {
        let path = self.path.clone().or_else(Door::default_path).ok_or_else(|| {
            let text = "no door is given, and XDG_RUNTIME_DIR is not set: add --door PATH";
            CliError::Usage(text.to_owned())
        })?;
        let door = Door::open(path).map_err(failure)?;
        match ClientToken::find(self.token_file.as_deref())? {
            Some(token) => door.with_token(&token.text).map_err(|error| token.problem(error)),
            None => Ok(door),
        }
    }
}

/// Returns the [`CliError`] for an error of a door, with the exit code of its cause.
pub fn failure(error: DoorError) -> CliError {
    let text = one_line(&error.to_string());
    match &error {
        DoorError::NoServer { .. } => {
            CliError::Environment(format!("{text} (is `streamdoor serve` running? see `doctor`)"))
        }
        DoorError::Refused(refused) => remote::no(refused),
        DoorError::Unfit(_) => CliError::Call(text),
        _ => CliError::Failed(text),
    }
}
