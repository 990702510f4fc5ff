//! One SQLite file, open for reading only, whatever the query contains.
//!
//! Neither the query nor the file is trusted. The defences, in the order in which they act:
//!
//! 1. The name is made absolute, so that `file:…?mode=rwc` and `:memory:` are names of files.
//! 2. The file is opened read-only, and `query_only` is on.
//! 3. Risky features of a file are off: triggers, functions with effects in its schema, and pages
//!    that contradict themselves. Extensions are off by default.
//! 4. The authorizer checks each part of a statement while it is compiled ([`refusal_of`]).
//! 5. A statement that is not read-only, or returns no columns, is not run. Only this stops VACUUM.
//! 6. SQLite's own limits bound the cost of a query before its first row. Only the timeouts bound
//!    temporary files, which a sort larger than the page cache needs.
//!
//! One write remains. A file in WAL mode gets an empty log and an index beside it (`-wal`, `-shm`)
//! if no other process has it open. SQLite cannot read it otherwise.
//!
//! The file must not be opened except through SQLite. Closing another handle would drop the locks
//! that this process holds on the file through other connections.
//!
//! Tests: `guard_tests.rs`.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::{Batch, Connection, OpenFlags, Statement};

use crate::tool::query_database::QUERY_BYTES_MAX;
use crate::tool::query_database::failure::Failure;
use crate::tool::{Files, StopSignal};

/// Most values for the placeholders of one query.
pub(super) const PARAMETERS_MAX: usize = 1_000;
/// The longest value or row. Its JSON can be six times as long, and is in memory once.
pub(super) const VALUE_BYTES_MAX: usize = 16 << 20;
/// The longest wait for a writer's lock.
pub(super) const BUSY_WAIT: Duration = Duration::from_secs(2);
const BUSY_WAIT_STEP: Duration = Duration::from_millis(5);

const LIMITS: [(Limit, usize); 10] = [
    (Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX),
    (Limit::SQLITE_LIMIT_SQL_LENGTH, QUERY_BYTES_MAX),
    // The compiler recurses over these, on a thread with a stack of 2 MiB.
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 400),
    (Limit::SQLITE_LIMIT_PARSER_DEPTH, 400),
    (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100),
    (Limit::SQLITE_LIMIT_VDBE_OP, 1_000_000),
    (Limit::SQLITE_LIMIT_ATTACHED, 0),
    // Matching takes quadratic time, and does not check for interrupts.
    (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
    (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, PARAMETERS_MAX),
    (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
];

/// The switches of a connection. `true` turns one on.
const SWITCHES: [(DbConfig, bool); 7] = [
    (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
    (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
    (DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, false),
    (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
    (DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, false),
    (DbConfig::SQLITE_DBCONFIG_ENABLE_ATTACH_CREATE, false),
    (DbConfig::SQLITE_DBCONFIG_ENABLE_ATTACH_WRITE, false),
];

/// Functions that reach outside of the file. SQLite's own builds have only the first two. The
/// others are those of its shell, in case a local SQLite has them.
const FUNCTIONS_REFUSED: [&str; 6] =
    ["load_extension", "fts3_tokenizer", "readfile", "writefile", "edit", "eval"];
/// Pragmas that only read. Full-text search uses the first two by itself.
const PRAGMAS: [&str; 16] = [
    "data_version",
    "page_size",
    "application_id",
    "collation_list",
    "compile_options",
    "database_list",
    "encoding",
    "foreign_key_check",
    "freelist_count",
    "function_list",
    "integrity_check",
    "module_list",
    "page_count",
    "quick_check",
    "table_list",
    "user_version",
];
/// Pragmas that only read even with a value, which names their subject.
const PRAGMAS_ABOUT: [&str; 10] = [
    "foreign_key_check",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "integrity_check",
    "quick_check",
    "table_info",
    "table_list",
    "table_xinfo",
];
/// Suffixes of the tables that an R-tree writes to. It compiles these statements as soon as it is
/// opened for reading.
const RTREE_TABLES: [&str; 3] = ["_node", "_parent", "_rowid"];

/// A connection that can only read.
pub(super) struct Guard {
    connection: Connection,
    /// The first refusal of the authorizer since the last check.
    refused: Arc<Mutex<Option<String>>>,
    locks_others_out: bool,
}

impl Guard {
    /// Opens a file.
    ///
    /// # Errors
    /// The fault of the file.
    pub fn open(files: &Files, path: &Path, stop: StopSignal) -> Result<Guard, Failure> {
        let in_words = |error: std::io::Error| Failure::File(error.to_string());
        let path = files.place(path).map_err(in_words)?;
        let metadata = std::fs::metadata(&path).map_err(in_words)?;
        if metadata.is_dir() {
            return Err(Failure::File("is a directory".to_owned()));
        }
        if !metadata.is_file() {
            return Err(Failure::File("is not a regular file".to_owned())); // A pipe would block.
        }
        let path = std::path::absolute(path).map_err(in_words)?;
        let mut flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if files.is_confined() {
            flags |= OpenFlags::SQLITE_OPEN_NOFOLLOW; // Its real path has no link.
        }
        let mut connection = Connection::open_with_flags(path, flags)?;
        harden(&connection)?;
        let mut waited = Duration::ZERO;
        connection.busy_handler(Some(move |attempt| {
            waited = if attempt == 0 { Duration::ZERO } else { waited + BUSY_WAIT_STEP };
            std::thread::sleep(BUSY_WAIT_STEP);
            waited < BUSY_WAIT && !stop.is_stopped()
        }))?;
        let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
        let locks_others_out = !mode.eq_ignore_ascii_case("wal");
        let refused = Arc::new(Mutex::new(None));
        let refused_there = Arc::clone(&refused);
        connection.authorizer(Some(move |context: AuthContext<'_>| {
            let Some(refusal) = refusal_of(&context.action) else { return Authorization::Allow };
            lock(&refused_there).get_or_insert(refusal);
            Authorization::Deny
        }))?;
        Ok(Guard { connection, refused, locks_others_out })
    }

    /// The connection, for statements of this program.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// True if no other process can write to the file while a statement runs.
    pub fn locks_others_out(&self) -> bool {
        self.locks_others_out
    }

    /// Compiles `query`, which must be one statement that only reads.
    ///
    /// # Errors
    /// The fault of the query.
    pub fn prepare(&self, query: &str) -> Result<Statement<'_>, Failure> {
        let refused = |text: &str| Err(Failure::Refused(format!("`query`: {text}")));
        // `Connection::prepare` would compile all following statements, each within the one before.
        let mut statements = Batch::new(&self.connection, query);
        let Some(statement) = self.said(statements.next())? else {
            return refused("is empty; give one statement");
        };
        if !matches!(statements.next(), Ok(None)) {
            return refused("has more than one statement; give one statement only");
        }
        lock(&self.refused).take(); // A virtual table was refused something that it can do without.
        if statement.column_count() == 0 || !statement.readonly() {
            return refused("only reading is allowed, and this statement returns no rows");
        }
        Ok(statement)
    }

    /// A result of SQLite, with our reason if our authorizer refused the statement.
    pub fn said<T>(&self, answer: rusqlite::Result<T>) -> Result<T, Failure> {
        answer.map_err(|error| match lock(&self.refused).take() {
            Some(what) => Failure::Refused(format!("`query`: only reading is allowed, not {what}")),
            None => Failure::Sqlite(error),
        })
    }
}

fn lock(refused: &Mutex<Option<String>>) -> MutexGuard<'_, Option<String>> {
    refused.lock().unwrap_or_else(PoisonError::into_inner)
}

fn harden(connection: &Connection) -> rusqlite::Result<()> {
    for (switch, is_on) in SWITCHES {
        connection.set_db_config(switch, is_on)?;
    }
    for (limit, most) in LIMITS {
        connection.set_limit(limit, i32::try_from(most).expect("limits are small"))?;
    }
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "mmap_size", 0) // A file that shrinks would kill the process.
}

/// The name of `action`, if it is not allowed.
fn refusal_of(action: &AuthAction<'_>) -> Option<String> {
    let is_in = |names: &[&str], name: &str| names.iter().any(|n| n.eq_ignore_ascii_case(name));
    let write_to = |table: &str| {
        let is_own = RTREE_TABLES.iter().any(|suffix| table.ends_with(suffix));
        let is_schema = table.starts_with("sqlite_");
        match (is_own, is_schema) {
            (true, _) => None, // Only compiled: `Guard::prepare` refuses to run one.
            (false, true) => Some("a change of the schema (CREATE, DROP, ALTER …)".to_owned()),
            (false, false) => Some(format!("a change of table {table}")),
        }
    };
    let refused = match *action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => return None,
        AuthAction::Function { function_name } if !is_in(&FUNCTIONS_REFUSED, function_name) => {
            return None;
        }
        AuthAction::Pragma { pragma_name, pragma_value: None } if is_in(&PRAGMAS, pragma_name) => {
            return None;
        }
        AuthAction::Pragma { pragma_name, .. } if is_in(&PRAGMAS_ABOUT, pragma_name) => {
            return None;
        }
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::Update { table_name, .. } => return write_to(table_name),
        AuthAction::Function { function_name } => format!("the function {function_name}"),
        AuthAction::Pragma { pragma_name, pragma_value: None } => format!("PRAGMA {pragma_name}"),
        AuthAction::Pragma { pragma_name, pragma_value: Some(value) } => {
            format!("PRAGMA {pragma_name} = {value}")
        }
        AuthAction::Attach { .. } => "ATTACH".to_owned(),
        AuthAction::Detach { .. } => "DETACH".to_owned(),
        AuthAction::Transaction { .. } => "a transaction (BEGIN, COMMIT, ROLLBACK)".to_owned(),
        AuthAction::Savepoint { .. } => "a savepoint".to_owned(),
        AuthAction::Analyze { .. } => "ANALYZE".to_owned(),
        AuthAction::Reindex { .. } => "REINDEX".to_owned(),
        AuthAction::Unknown { code, .. } => format!("SQLite action {code}"),
        _ => "a change of the schema (CREATE, DROP, ALTER …)".to_owned(),
    };
    Some(refused)
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
