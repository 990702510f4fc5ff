//! The directory of a journal and its files, opened for reading only.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use streamdoor::journal::format::Lsn;
use streamdoor::journal::look::{Look, LookError, ReadFiles};

use super::super::CliError;

const SHARD_BEGINNING: &str = "shard-";
const SEGMENT_ENDING: &str = ".seg";
const SEGMENT_DIGITS: usize = 12;
/// Number of files that stay open.
const OPEN_FILES_MAX: usize = 4;

/// The journal of one shard.
pub struct Shard {
    /// Its directory.
    pub path: PathBuf,
    pub look: Look<SegmentFiles>,
}

/// The file of a segment in the directory of its shard.
pub fn segment_file(shard: &Path, segment_number: u64) -> PathBuf {
    shard.join(segment_name(segment_number))
}

/// Opens the journals of all shards in a directory, or that of the directory itself.
///
/// # Errors
/// [`CliError::Environment`] with a text that begins with the path.
pub fn open(folder: &Path) -> Result<Vec<Shard>, CliError> {
    let mut shards = Vec::new();
    for path in directories(folder).map_err(|error| problem(folder, &error))? {
        match Look::open(SegmentFiles { path: path.clone(), open: Vec::new() }) {
            Ok(look) => shards.push(Shard { path, look }),
            Err(LookError::Empty) => {} // Its server has just begun.
            Err(error) => return Err(failure(&path, &error)),
        }
    }
    match shards.is_empty() {
        false => Ok(shards),
        true => Err(failure(folder, &LookError::Empty)),
    }
}

/// Returns the error for a journal that cannot be read.
pub fn failure(folder: &Path, error: &LookError) -> CliError {
    match error {
        LookError::Io { segment_number: None, error } => problem(folder, error),
        LookError::Io { segment_number: Some(number), error } => {
            problem(&segment_file(folder, *number), error)
        }
        _ => CliError::Environment(format!("{}: {error}", folder.display())),
    }
}

fn problem(path: &Path, error: &io::Error) -> CliError {
    let text = match error.kind() {
        io::ErrorKind::NotFound => "it does not exist".to_owned(),
        io::ErrorKind::NotADirectory => "it is not a directory".to_owned(),
        io::ErrorKind::PermissionDenied => "this user may not read it".to_owned(),
        _ => error.to_string(),
    };
    CliError::Environment(format!("{}: {text}", path.display()))
}

/// The directories of the shards, in order, and the directory itself if it has segments.
///
/// # Errors
/// The error of the directory.
pub fn directories(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut shards = Vec::new();
    let mut has_segments = false;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        has_segments |= segment_of(name).is_some();
        let digits = name.strip_prefix(SHARD_BEGINNING).unwrap_or_default();
        let is_shard = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_shard && entry.file_type()?.is_dir() {
            shards.push(entry.path());
        }
    }
    shards.sort();
    if has_segments {
        shards.insert(0, folder.to_owned());
    }
    Ok(shards)
}

fn segment_name(segment_number: u64) -> String {
    format!("{segment_number:0SEGMENT_DIGITS$}{SEGMENT_ENDING}")
}

/// The number of the segment with this name.
fn segment_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SEGMENT_ENDING)?;
    let is_plain =
        digits.len() == SEGMENT_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| digits.parse().ok()).flatten()
}

/// The segments of one shard.
pub struct SegmentFiles {
    path: PathBuf,
    /// The files that were read last, newest last.
    open: Vec<(u64, File)>,
}

impl SegmentFiles {
    fn file(&mut self, segment_number: u64) -> io::Result<&File> {
        let at = match self.open.iter().position(|(number, _)| *number == segment_number) {
            Some(at) => at,
            None => {
                // A link, or a pipe under the name of a segment, is none of ours.
                let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
                let path = segment_file(&self.path, segment_number);
                let mut options = OpenOptions::new();
                let options = options.read(true).custom_flags(flags.bits().cast_signed());
                let file = options.open(path)?;
                if self.open.len() == OPEN_FILES_MAX {
                    self.open.remove(0);
                }
                self.open.push((segment_number, file));
                self.open.len() - 1
            }
        };
        Ok(&self.open[at].1)
    }
}

impl ReadFiles for SegmentFiles {
    fn segments(&mut self) -> io::Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let Some(number) = entry.file_name().to_str().and_then(segment_of) else { continue };
            match entry.metadata() {
                Ok(metadata) if metadata.is_file() => found.push((number, metadata.len())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // Just removed.
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn read(&mut self, lsn: Lsn, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.file(lsn.segment_number())?;
        let mut read = 0;
        while read < buffer.len() {
            let offset = u64::from(lsn.offset_bytes()) + read as u64;
            match file.read_at(&mut buffer[read..], offset) {
                Ok(0) => break,
                Ok(bytes) => read += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }
}
