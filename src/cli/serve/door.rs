//! The door of a server: its path, and its log records.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use streamdoor::server::Server;
use streamdoor::trace::Level;

use super::super::settings::{AutoPath, Settings};
use super::{CliError, ServerSetup, log_event};

/// The door of a running server.
pub enum DoorState {
    /// It is at this path.
    Open(PathBuf),
    /// The settings want none.
    Off,
    /// It could not be opened, for this reason.
    Closed(String),
}

/// Opens the door of the settings. If the default door cannot be opened, the server runs without
/// one, and the log says why.
///
/// # Errors
/// If a door was requested by path and cannot be opened.
pub fn open(
    settings: &Settings,
    setup: &ServerSetup,
    server: &Server,
) -> Result<DoorState, CliError> {
    let (path, is_wanted) = match &settings.door {
        AutoPath::Off => return Ok(DoorState::Off),
        AutoPath::At(path) => (path.clone(), true),
        AutoPath::Auto => match default_path() {
            None => {
                let reason = "XDG_RUNTIME_DIR is not set";
                log_event(&setup.log, Level::Info, "door_not_opened", |line| {
                    line.text("reason", reason);
                });
                return Ok(DoorState::Closed(reason.to_owned()));
            }
            Some(path) => (path, false),
        },
    };
    let fault = if is_wanted { None } else { fault_of(path.parent().expect("it is in a folder")) };
    let opened = match fault {
        Some(fault) => Err(fault),
        None => server.open_door(&path).map_err(|error| error.to_string()),
    };
    match opened {
        Ok(()) => {
            log_event(&setup.log, Level::Info, "door", |line| {
                line.text("path", &path.display().to_string());
                line.number("doors_max", settings.doors_max.0);
            });
            Ok(DoorState::Open(path))
        }
        Err(error) if is_wanted => Err(CliError::Failed(format!("the door: {error}"))),
        Err(error) => {
            log_event(&setup.log, Level::Warn, "door_not_opened", |line| {
                line.text("path", &path.display().to_string());
                line.text("reason", &error);
            });
            Ok(DoorState::Closed(error))
        }
    }
}

/// Returns the path that clients use by default.
fn default_path() -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|name| !name.is_empty())?;
    Some(PathBuf::from(folder).join("streamdoor.sock"))
}

/// Returns the reason why the folder is not safe: others may write to it, or its state is unknown.
fn fault_of(folder: &Path) -> Option<String> {
    let fault = match fs::metadata(folder) {
        _ if !folder.is_absolute() => "is not an absolute path".to_owned(),
        Err(error) => format!("cannot be read: {error}"),
        Ok(found) if !found.is_dir() => "is not a directory".to_owned(),
        Ok(found) if found.uid() != geteuid().as_raw() => "belongs to another user".to_owned(),
        Ok(found) if found.mode() & 0o022 != 0 => "is writable by others".to_owned(),
        Ok(_) => return None,
    };
    Some(format!("XDG_RUNTIME_DIR {fault}"))
}
