//! The journal of a server: its directory, its key, and what is left of servers with more shards.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use streamdoor::limits;
use streamdoor::reactor::{Claim, claim_directory, random_bytes};
use streamdoor::server::Server;
use streamdoor::shard::{JournalConfig, JournalStatus};
use streamdoor::trace::Level;

use super::super::journal::directories;
use super::super::settings::{AutoPath, Settings};
use super::{CliError, Log, log_event};

/// The journal of a server that starts.
pub enum JournalState {
    /// It is in this directory.
    Open(Folder),
    /// The settings want none.
    Off,
    /// The default one cannot be used, for this reason.
    Closed(String),
}

/// The directory of a journal, which no other server uses.
pub struct Folder {
    pub path: PathBuf,
    /// The secrets that have to outlive the server.
    pub secrets: Secrets,
    /// Number of shards that have a directory in it.
    pub shard_count: usize,
    /// True if nobody has named the directory.
    pub is_default: bool,
    _claim: Claim,
}

/// The secrets of a server that outlive it.
#[derive(Clone, Copy)]
pub struct Secrets {
    /// The key of tickets.
    pub tickets: [u8; 32],
    /// The key of what clients of MCP keep for the server.
    pub mcp: [u8; 32],
}

/// The file with the secrets.
const KEY_FILE: &str = "key";
const KEY_BYTES: usize = 64;

impl JournalState {
    /// Opens the directory of the settings. Without the default one, the server keeps nothing on
    /// disk.
    ///
    /// # Errors
    /// If a directory was named and cannot be used.
    pub fn open(settings: &Settings) -> Result<JournalState, CliError> {
        let (path, is_default) = match &settings.journal {
            AutoPath::Off => return Ok(JournalState::Off),
            AutoPath::At(path) => (path.clone(), false),
            AutoPath::Auto => match default_path() {
                Some(path) => (path, true),
                None => {
                    let reason = "neither STATE_DIRECTORY nor HOME is set".to_owned();
                    return Ok(JournalState::Closed(reason));
                }
            },
        };
        match Folder::open(path.clone(), is_default) {
            Ok(folder) if folder.shard_count > limits::SHARDS_MAX => {
                let most = limits::SHARDS_MAX;
                let text = format!("it has more than {most} directories of shards");
                refused(&path, is_default, &text)
            }
            Ok(folder) => Ok(JournalState::Open(folder)),
            Err(error) => refused(&path, is_default, &error.to_string()),
        }
    }

    /// The directory, if the server has one.
    pub fn folder(&self) -> Option<&Folder> {
        match self {
            JournalState::Open(folder) => Some(folder),
            JournalState::Off | JournalState::Closed(_) => None,
        }
    }

    /// Goes on without a journal after this error, if nobody has named its directory.
    pub fn give_up(&mut self, error: &str) -> bool {
        let is_default = self.folder().is_some_and(|folder| folder.is_default);
        if is_default {
            *self = JournalState::Closed(error.to_owned());
        }
        is_default
    }
}

fn refused(path: &Path, is_default: bool, error: &str) -> Result<JournalState, CliError> {
    let text = format!("the journal in {}: {error}", path.display());
    match is_default {
        true => Ok(JournalState::Closed(text)),
        false => Err(CliError::Environment(text)),
    }
}

/// Logs what the journal of a server has, or why there is none.
pub fn announce(settings: &Settings, journal: &JournalState, server: &Server, log: &Log) {
    let folder = match journal {
        JournalState::Open(folder) => folder,
        JournalState::Off => return,
        JournalState::Closed(reason) => {
            return log_event(log, Level::Warn, "journal_not_opened", |line| {
                line.text("reason", reason);
                line.text("consequence", "nothing survives a restart");
                line.text("advice", "--journal DIR names a directory, and --journal off none");
            });
        }
    };
    let called = server.handles().map(|shard| shard.call(|shard| shard.journal()));
    let found: Vec<JournalStatus> = called.filter_map(|status| status.ok().flatten()).collect();
    let sum = |number: fn(&JournalStatus) -> u64| found.iter().map(number).sum();
    log_event(log, Level::Info, "journal", |line| {
        line.text("path", &folder.path.display().to_string());
        line.text("durability", settings.durability.name());
        line.number("bytes_max", settings.journal_bytes.0);
        line.number("retention_s", settings.journal_retention.0.as_secs());
        line.number("executions", sum(|status| status.executions));
        line.number("restarted", sum(|status| status.restarted));
        line.number("segments", sum(|status| status.segments_found));
        line.number("torn_bytes", sum(|status| status.torn_bytes));
        line.number("corrupt_stretches", sum(|status| status.corrupt_stretches));
        if folder.is_default {
            line.text("advice", "--journal off keeps nothing on disk");
        }
    });
}

/// Returns the directory without a setting: the one of the service manager, or the user's.
fn default_path() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(of_service) = variable("STATE_DIRECTORY") {
        // Several are separated by colons.
        let first = of_service.into_string().ok()?.split(':').next()?.to_owned();
        return Some(PathBuf::from(first).join("journal"));
    }
    let of_user = match variable("XDG_STATE_HOME").map(PathBuf::from) {
        Some(path) if path.is_absolute() => path,
        _ => PathBuf::from(variable("HOME")?).join(".local/state"),
    };
    Some(of_user.join("streamdoor"))
}

impl Folder {
    fn open(path: PathBuf, is_default: bool) -> io::Result<Folder> {
        if let Some(parent) = path.parent().filter(|_| is_default) {
            std::fs::create_dir_all(parent)?;
        }
        let (_, claim) = claim_directory(&path)?;
        let secrets = Secrets::kept_in(&path)?;
        let shard_count = shard_count(&path)?;
        Ok(Folder { path, secrets, shard_count, is_default, _claim: claim })
    }

    /// The settings of the journal of each shard.
    pub fn config(&self, settings: &Settings, shard_count: usize) -> JournalConfig {
        let bytes_max = settings.journal_bytes.0 / shard_count as u64;
        JournalConfig {
            durability: settings.durability,
            bytes_max,
            retention: settings.journal_retention.0,
            segment_bytes: segment_bytes(bytes_max),
            scrub: Some(settings.journal_scrub.0).filter(|period| !period.is_zero()),
            ..JournalConfig::at(&self.path)
        }
    }
}

/// Returns the size of the segments of a journal of this size. Whole segments are removed, and a
/// start begins a new one.
fn segment_bytes(bytes_max: u64) -> u32 {
    let part = (bytes_max / 64).clamp(1 << 20, limits::JOURNAL_SEGMENT_BYTES.into());
    1 << part.ilog2()
}

/// Returns one more than the largest number of a directory of a shard.
fn shard_count(path: &Path) -> io::Result<usize> {
    let number = |path: &PathBuf| -> Option<usize> {
        path.file_name()?.to_str()?.strip_prefix("shard-")?.parse().ok()
    };
    let all = directories(path)?;
    Ok(all.iter().filter_map(number).max().map_or(0, |number| number + 1))
}

impl Secrets {
    /// Reads the secrets in this directory. They are drawn if there are none.
    fn kept_in(folder: &Path) -> io::Result<Secrets> {
        let path = folder.join(KEY_FILE);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("its key: {error}"));
        let mut bytes = [0; KEY_BYTES];
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
            Ok(file) => read_key(file, &mut bytes).map_err(named)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                random_bytes(&mut bytes)?;
                write_key(folder, &path, &bytes).map_err(named)?;
            }
            Err(error) => return Err(named(error)),
        }
        let (tickets, mcp) = bytes.split_at(KEY_BYTES / 2);
        let key = |half: &[u8]| half.try_into().expect("it is a half");
        Ok(Secrets { tickets: key(tickets), mcp: key(mcp) })
    }
}

fn read_key(mut file: File, bytes: &mut [u8; KEY_BYTES]) -> io::Result<()> {
    let metadata = file.metadata()?;
    let is_ours = metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0;
    if !metadata.is_file() || !is_ours || metadata.len() != KEY_BYTES as u64 {
        let text = format!("it is no file of {KEY_BYTES} bytes that only its owner can read");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    file.read_exact(bytes)
}

/// Writes the key so that a crash leaves all of it or nothing.
fn write_key(folder: &Path, path: &Path, bytes: &[u8; KEY_BYTES]) -> io::Result<()> {
    let unfinished = path.with_extension("prep");
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600).custom_flags(flags);
    let mut file = options.open(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&unfinished, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn segments_are_small_parts_of_their_journal() {
        for (bytes_max, segment) in [(1 << 20, 1 << 20), (1 << 30, 16 << 20), (1 << 40, 64 << 20)] {
            assert_eq!(segment_bytes(bytes_max), segment);
        }
        assert_eq!(segment_bytes((1 << 30) / 3), 4 << 20);
    }

    #[test]
    fn secrets_are_drawn_once_and_are_for_their_owner() {
        let name = format!("streamdoor-key-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let folder = Folder::open(path.clone(), false).unwrap();
        let Secrets { tickets, mcp } = folder.secrets;
        assert_ne!(tickets, mcp);
        assert_eq!(folder.shard_count, 0);
        let held = Folder::open(path.clone(), false).err().unwrap();
        assert_eq!(held.kind(), io::ErrorKind::ResourceBusy);
        drop(folder);
        std::fs::create_dir(path.join("shard-03")).unwrap();
        let folder = Folder::open(path.clone(), false).unwrap();
        assert_eq!((folder.secrets.tickets, folder.secrets.mcp), (tickets, mcp));
        assert_eq!(folder.shard_count, 4);
        drop(folder);
        let key = path.join(KEY_FILE);
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
        let text = Folder::open(path.clone(), false).err().unwrap().to_string();
        assert!(text.contains("its key: it is no file of 64 bytes"), "{text}");
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&key, b"short").unwrap();
        assert!(Folder::open(path.clone(), false).is_err());
        std::fs::remove_dir_all(&path).unwrap();
    }
}
