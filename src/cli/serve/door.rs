//! The door of a server: where it is, and what is told of it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use streamdoor::shard::Server;
use streamdoor::trace::Level;

use super::super::settings::{DoorPath, Settings};
use super::{CliError, Ground, tell};

/// Opens the door that the settings ask for. Where they ask for none in particular, there is none
/// if that does not go: the log says why.
///
/// # Errors
/// What was asked for cannot be.
pub fn open(settings: &Settings, ground: &Ground, server: &Server) -> Result<(), CliError> {
    let (path, is_wanted) = match &settings.door {
        DoorPath::Off => return Ok(()),
        DoorPath::At(path) => (path.clone(), true),
        DoorPath::Auto => match default_path() {
            Some(path) => (path, false),
            None => return Ok(()),
        },
    };
    match server.open_door(&path) {
        Ok(()) => {
            tell(&ground.log, Level::Info, "door", |line| {
                line.text("path", &path.display().to_string());
                line.number("doors_max", settings.doors_max.0);
            });
            Ok(())
        }
        Err(error) if is_wanted => Err(CliError::Failed(format!("the door: {error}"))),
        Err(error) => {
            tell(&ground.log, Level::Warn, "door_not_opened", |line| {
                line.text("path", &path.display().to_string());
                line.text("reason", &error.to_string());
            });
            Ok(())
        }
    }
}

/// Where clients look that are told of no other place, if nobody else can put anything there.
fn default_path() -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|name| !name.is_empty())?;
    let folder = PathBuf::from(folder);
    is_private(&folder).then(|| folder.join("streamdoor.sock"))
}

fn is_private(folder: &Path) -> bool {
    let Ok(found) = fs::metadata(folder) else { return false };
    found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0
}
