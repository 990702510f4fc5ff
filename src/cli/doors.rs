//! What `cat` and `pipe` have in common: which door, who we are, and as whose fault an error
//! counts.

use std::path::PathBuf;

use streamdoor::door::{Door, DoorError};
use streamdoor::endpoint::first_token;

use super::{CliError, remote, token_file};

/// What the options say.
#[derive(Clone, Debug, Default)]
pub struct DoorArguments {
    path: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

impl DoorArguments {
    /// Takes the value of the option `--name`, if it is one of these.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        match name {
            "door" => self.path = Some(parser.value()?.into()),
            "token-file" => self.token_file = Some(parser.value()?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The door that is meant.
    pub fn open(&self) -> Result<Door, CliError> {
        let path = self.path.clone().or_else(Door::default_path).ok_or_else(|| {
            let text = "which door? --door PATH (there is no XDG_RUNTIME_DIR to look for one in)";
            CliError::Usage(text.to_owned())
        })?;
        let door = Door::open(path).map_err(failure)?;
        let Some(path) = &self.token_file else { return Ok(door) };
        let text = token_file::read(path)?;
        let token = first_token(&text).map_err(|error| token_file::problem(path, error))?;
        door.with_token(token).map_err(|error| token_file::problem(path, error))
    }
}

/// As whose fault an error counts.
pub fn failure(error: DoorError) -> CliError {
    let text = remote::printable(&error.to_string());
    match &error {
        DoorError::NoServer { .. } => {
            CliError::Environment(format!("{text} (is `streamdoor serve` running? see `doctor`)"))
        }
        DoorError::Refused(refused) => remote::no(refused),
        DoorError::Unfit(_) => CliError::Call(text),
        _ => CliError::Failed(text),
    }
}
