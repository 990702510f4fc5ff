//! Failures of a query, in words that name the wrong argument.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::tool::Stopped;
use crate::tool::query_database::guard::{BUSY_WAIT, VALUE_BYTES_MAX};
use crate::tool::query_database::spool::STUCK_MAX;

/// The reason why a query did not reach its end.
#[derive(Debug)]
pub(super) enum Failure {
    /// The execution was stopped.
    Stopped,
    /// The query is refused. The text names the argument.
    Refused(String),
    /// The file cannot be queried. The text gives the fault.
    File(String),
    /// Too many rows wait for a stalled reader, while no other process can write to the file.
    Stuck,
    /// An error of SQLite.
    Sqlite(rusqlite::Error),
}

impl From<Stopped> for Failure {
    fn from(_: Stopped) -> Failure {
        Failure::Stopped
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Failure {
        Failure::Sqlite(error)
    }
}

impl Failure {
    /// The text for the subscribers. The important part comes first, because texts are cut.
    pub fn in_words(&self, path: &Path) -> String {
        match self {
            Failure::Stopped => Stopped.to_string(),
            Failure::Refused(text) => text.clone(),
            Failure::File(text) => of_path(text, path),
            Failure::Stuck => {
                let text = format!(
                    "was locked against writers for a reader that took nothing for {STUCK_MAX:?}, \
                     so the query was ended; use WAL mode, in which readers do not lock out writers"
                );
                of_path(&text, path)
            }
            Failure::Sqlite(error) => of_sqlite(error, path),
        }
    }
}

fn of_path(text: &str, path: &Path) -> String {
    format!("`path`: {text}: {}", path.display())
}

fn of_sqlite(error: &rusqlite::Error, path: &Path) -> String {
    use rusqlite::Error;
    let (code, text, offset) = match error {
        Error::SqliteFailure(error, text) => {
            (error.code, text.clone().unwrap_or_else(|| error.to_string()), None)
        }
        Error::SqlInputError { error, msg, offset, .. } => (error.code, msg.clone(), Some(*offset)),
        other => return format!("`query`: {other}"),
    };
    match code {
        ErrorCode::NotADatabase => of_path("is not an SQLite database, or is encrypted", path),
        ErrorCode::DatabaseCorrupt => of_path(&format!("is damaged ({text})"), path),
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::FileLockingProtocolFailed => {
            of_path(&format!("was locked by another connection for {BUSY_WAIT:?} ({text})"), path)
        }
        ErrorCode::CannotOpen | ErrorCode::PermissionDenied => {
            let text = "cannot be opened; check that it can be read, and if it has a write-ahead \
                        log, that its folder can be written to";
            of_path(text, path)
        }
        ErrorCode::ReadOnly => {
            let text = format!(
                "must be repaired by a user with write access before it can be read ({text})"
            );
            of_path(&text, path)
        }
        ErrorCode::SystemIoFailure | ErrorCode::NoLargeFileSupport => {
            of_path(&format!("cannot be read ({text})"), path)
        }
        ErrorCode::TooBig => {
            format!("`query`: {text}; a value has at most {VALUE_BYTES_MAX} bytes")
        }
        ErrorCode::DiskFull => format!("`query`: no space for its temporary files ({text})"),
        ErrorCode::AuthorizationForStatementDenied => {
            format!("`query`: only reading is allowed ({text})")
        }
        _ => match offset {
            Some(offset) => format!("`query`: {text}, at byte {offset}"),
            None => format!("`query`: {text}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn each_code_of_sqlite_has_words_of_its_own_and_names_an_argument() {
        let mut texts = std::collections::BTreeSet::new();
        for (code, field) in [
            (ffi::SQLITE_NOTADB, "`path`"),
            (ffi::SQLITE_CORRUPT, "`path`"),
            (ffi::SQLITE_BUSY, "`path`"),
            (ffi::SQLITE_CANTOPEN, "`path`"),
            (ffi::SQLITE_READONLY_ROLLBACK, "`path`"),
            (ffi::SQLITE_IOERR_READ, "`path`"),
            (ffi::SQLITE_TOOBIG, "`query`"),
            (ffi::SQLITE_FULL, "`query`"),
            (ffi::SQLITE_AUTH, "`query`"),
            (ffi::SQLITE_NOMEM, "`query`"),
            (ffi::SQLITE_ERROR, "`query`"),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            let text = Failure::from(error).in_words("/some.db".as_ref());
            assert!(text.starts_with(field), "{text}");
            assert!(texts.insert(text.clone()), "{text}");
        }
    }
}
