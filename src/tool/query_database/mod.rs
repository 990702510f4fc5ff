//! `query_database {path, query, parameters, batch_size}`: streams the rows of a query of an SQLite
//! file as they are found, as JSON lines.
//!
//! A thread of the pool runs `sqlite3_step`, and sends rows between the steps. `guard.rs` decides
//! which queries are allowed: one statement that only reads one file. `rows.rs` defines the format
//! of a row. `failure.rs` puts errors into words.
//!
//! The shard stops a running statement with `sqlite3_interrupt` on cancellation and timeout
//! ([`Output::on_stop`]). The signal is lost on a connection that runs nothing, because SQLite
//! clears it with the first statement that starts. A second statement, the anchor, therefore stays
//! at its only row while the query may run.
//!
//! In every journal mode but WAL, other processes cannot write to the file while a query runs. A
//! slow reader does not prolong that: up to 64 MiB of rows wait for it outside of the file
//! ([`spool`]). A query with more rows takes as long as its reader. It is abandoned if the reader
//! takes nothing for 3 s.
//!
//! A batch is sent when it is full, or when a row comes [`FLUSH_AFTER`] after the last sent one. A
//! limit follows from that: rows before a long pause wait for the first row after it.
//!
//! Tests: in the files beside this one, and `tests/query_database/`, through a shard.

mod failure;
mod guard;
mod parameters;
mod rows;
mod spool;

use std::path::PathBuf;
use std::time::Duration;

use rusqlite::{Connection, Row};
use serde_json::{Value, json};

use crate::base::Instant;
use crate::engine::Timeouts;
use crate::limits;
use crate::stream::Policy;
use crate::tool::{
    ArgumentError, Arguments, Files, Need, Output, SubscribeDefaults, ToolError, ToolSpec, Work,
};
use failure::Failure;
use guard::Guard;
use parameters::Parameters;
use rows::RowFormat;
use spool::Spool;

const BATCH_ROWS_DEFAULT: u64 = 100;
const BATCH_ROWS_MAX: u64 = 10_000;
/// The size of a row of a few columns as JSON. The ring is chosen so that a chunk holds about one
/// batch of them.
const ROW_BYTES_TYPICAL: u64 = 128;
/// The longest query. A generated one with some thousand values fits.
const QUERY_BYTES_MAX: usize = 256 << 10;
/// A row that comes this long after the last sent one is sent at once.
const FLUSH_AFTER: Duration = Duration::from_millis(50);
/// A sort or a grouping is silent until it is done, so this is longer than for other tools.
const SILENCE_MAX: Duration = Duration::from_secs(120);

pub(super) fn spec() -> ToolSpec {
    let description = "Runs one read-only SQL query on an SQLite file, and streams its rows as \
                       they are found. Each row is a line: a JSON object with the columns in \
                       order. BLOBs are {\"base64\": \"…\"}; columns with equal names get the \
                       suffixes _2, _3 …";
    ToolSpec {
        arguments: arguments_schema(),
        timeouts: Timeouts {
            first_chunk: Some(SILENCE_MAX),
            inactivity: Some(SILENCE_MAX),
            total: None,
        },
        subscribers: SubscribeDefaults { policy: Policy::Block, ..Default::default() },
        ..ToolSpec::new("query_database", description)
    }
}

fn arguments_schema() -> Value {
    let scalar = json!({"type": ["null", "boolean", "number", "string"]});
    json!({
        "type": "object",
        "properties": {
            "path": {
                "type": "string",
                "minLength": 1,
                "description": "The path of the SQLite file: absolute, or relative to the folder \
                                of the program.",
            },
            "query": {
                "type": "string",
                "minLength": 1,
                "maxLength": QUERY_BYTES_MAX,
                "description": "One read-only statement: SELECT, WITH, VALUES, EXPLAIN, or a \
                                PRAGMA such as table_info.",
            },
            "parameters": {
                "type": ["array", "object"],
                "items": scalar,
                "additionalProperties": scalar,
                "maxItems": guard::PARAMETERS_MAX,
                "maxProperties": guard::PARAMETERS_MAX,
                "description": "The values of the query's placeholders: a list for `?`, an object \
                                for `:name`, `@name` and `$name`.",
            },
            "batch_size": {
                "type": "integer",
                "minimum": 1,
                "maximum": BATCH_ROWS_MAX,
                "default": BATCH_ROWS_DEFAULT,
                "description": "The most rows of one chunk. A chunk has fewer rows if its size or \
                                time limit is reached first.",
            },
        },
        "required": ["path", "query"],
        "additionalProperties": false,
    })
}

/// The arguments of one execution.
struct QueryArguments {
    path: PathBuf,
    query: String,
    parameters: Parameters,
    batch_rows: u64,
}

pub(super) fn prepare(
    arguments: &Value,
    need: Need,
    files: &Files,
) -> Result<(Work, Need), ArgumentError> {
    let mut arguments = Arguments::new(arguments)?;
    let request = QueryArguments {
        path: arguments.path("path")?,
        query: arguments.whole_text("query")?,
        parameters: Parameters::new(arguments.value("parameters"))?,
        batch_rows: arguments.number("batch_size", BATCH_ROWS_DEFAULT, 1..=BATCH_ROWS_MAX)?,
    };
    arguments.finish()?;
    if request.query.len() > QUERY_BYTES_MAX {
        let problem = format!("must not be longer than {QUERY_BYTES_MAX} bytes");
        return Err(ArgumentError::new("query", problem));
    }
    let [_, _, smallest, .., largest] = limits::RING_CLASS_BYTES;
    // A chunk is at most a quarter of its ring.
    let ring_bytes = (request.batch_rows * ROW_BYTES_TYPICAL * 4) as u32;
    let ring_bytes = ring_bytes.clamp(smallest, largest);
    let files = files.clone();
    let work = Work::Thread(Box::new(move |out| stream(&files, &request, out)));
    Ok((work, Need { ring_bytes, ..need }))
}

fn stream(files: &Files, request: &QueryArguments, out: &mut Output) -> Result<(), ToolError> {
    // The file is closed and its lock released before the remaining rows wait for the reader.
    let rows = Guard::open(files, &request.path, out.stop_signal())
        .and_then(|guard| query(&guard, request, out));
    let drained = rows.and_then(|(spool, row_count)| {
        spool.drain(out)?;
        out.progress(row_count as f64, Some(row_count as f64));
        Ok(())
    });
    match drained {
        Ok(()) => Ok(()),
        Err(_) if out.is_stopped() => Err(ToolError::Stopped), // It was interrupted.
        Err(failure) => Err(ToolError::new(failure.in_words(&request.path))),
    }
}

/// Runs the query. Returns its unsent rows, and the number of all rows.
fn query(
    guard: &Guard,
    request: &QueryArguments,
    out: &mut Output,
) -> Result<(Spool, u64), Failure> {
    // Dropped in reverse order: nothing interrupts a connection that is being closed.
    let interrupt = guard.connection().get_interrupt_handle();
    let _on_stop = out.on_stop(move || interrupt.interrupt());
    let mut anchor = anchor(guard.connection())?;
    let mut anchor_rows = anchor.query([])?;
    anchor_rows.next()?;
    if out.is_stopped() {
        return Err(Failure::Stopped); // Stopped before the anchor held the interrupt.
    }
    let mut statement = guard.prepare(&request.query)?;
    request.parameters.bind(&mut statement)?;
    let mut rows = statement.raw_query();
    let spool = Spool::new(guard.locks_others_out());
    let mut batch = Batch::new(out, spool, request.batch_rows);
    // Another process can change the columns before the first row, but not after it.
    let Some(row) = guard.said(rows.next())? else { return batch.finish() };
    let format = RowFormat::new(row.as_ref().column_names());
    batch.push(&format, row)?;
    while let Some(row) = guard.said(rows.next())? {
        batch.push(&format, row)?;
    }
    batch.finish()
}

/// A statement with one row, which does not read the file.
fn anchor(connection: &Connection) -> rusqlite::Result<rusqlite::Statement<'_>> {
    connection.prepare("SELECT 1")
}

/// Rows that are sent together.
struct Batch<'a> {
    out: &'a mut Output,
    spool: Spool,
    rows_max: u64,
    bytes_max: usize,
    /// Complete lines.
    buffer: Vec<u8>,
    row_count: u64,
    total_count: u64,
    sent_at: Option<Instant>,
    reported_at: Option<Instant>,
}

impl<'a> Batch<'a> {
    fn new(out: &'a mut Output, spool: Spool, rows_max: u64) -> Batch<'a> {
        let bytes_max = out.chunk_bytes_max() as usize;
        Batch {
            out,
            spool,
            rows_max,
            bytes_max,
            buffer: Vec::with_capacity(2 * bytes_max),
            row_count: 0,
            total_count: 0,
            sent_at: None,
            reported_at: None,
        }
    }

    fn push(&mut self, format: &RowFormat, row: &Row<'_>) -> Result<(), Failure> {
        let before_bytes = self.buffer.len();
        format.write(row, &mut self.buffer)?;
        if self.buffer.len() > self.bytes_max && before_bytes > 0 {
            self.send(before_bytes)?; // One chunk holds the earlier rows.
        }
        self.row_count += 1;
        self.total_count += 1;
        let now = self.out.now();
        let is_late = self.sent_at.is_none_or(|sent_at| now.since(sent_at) >= FLUSH_AFTER);
        if is_late || self.row_count >= self.rows_max || self.buffer.len() >= self.bytes_max {
            self.send(self.buffer.len())?;
        }
        Ok(())
    }

    /// Sends the first `length` bytes, which hold all counted rows.
    fn send(&mut self, length: usize) -> Result<(), Failure> {
        self.spool.send(self.out, &self.buffer[..length])?;
        self.buffer.drain(..length);
        self.buffer.shrink_to(2 * self.bytes_max); // A giant row's room is not kept.
        self.row_count = 0;
        let now = self.out.now(); // Read after sending: a slow reader does not make rows late.
        self.sent_at = Some(now);
        if self
            .reported_at
            .is_none_or(|reported_at| now.since(reported_at) >= limits::PROGRESS_INTERVAL)
        {
            self.reported_at = Some(now);
            self.out.progress(self.total_count as f64, None);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(Spool, u64), Failure> {
        if !self.buffer.is_empty() {
            self.send(self.buffer.len())?;
        }
        Ok((self.spool, self.total_count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_argument_is_named() {
        for (arguments, field) in [
            (json!({"query": "SELECT 1"}), "path"),
            (json!({"path": "", "query": "SELECT 1"}), "path"),
            (json!({"path": "a\0b", "query": "SELECT 1"}), "path"),
            (json!({"path": 1, "query": "SELECT 1"}), "path"),
            (json!({"path": "a"}), "query"),
            (json!({"path": "a", "query": ""}), "query"),
            (json!({"path": "a", "query": "SELECT 1\0; SELECT 2"}), "query"),
            (json!({"path": "a", "query": "ä".repeat(QUERY_BYTES_MAX / 2 + 1)}), "query"),
            (json!({"path": "a", "query": "SELECT 1", "batch_size": 0}), "batch_size"),
            (json!({"path": "a", "query": "SELECT 1", "batch_size": 10_001}), "batch_size"),
            (json!({"path": "a", "query": "SELECT 1", "parameters": 1}), "parameters"),
            (json!({"path": "a", "query": "SELECT 1", "parameters": [[]]}), "parameters.0"),
            (json!({"path": "a", "query": "SELECT 1", "limit": 1}), "limit"),
        ] {
            let error = prepare(&arguments, Need::default(), &Files::Anywhere).unwrap_err();
            assert_eq!(error.field, field, "{error}");
        }
    }

    #[test]
    fn a_typical_batch_fits_one_chunk_and_the_ring_is_one_that_exists() {
        let classes = limits::RING_CLASS_BYTES;
        for (batch_size, ring_bytes) in [(1, classes[2]), (100, classes[2]), (10_000, classes[4])] {
            let arguments = json!({"path": "a", "query": "SELECT 1", "batch_size": batch_size});
            let (_, need) = prepare(&arguments, Need::default(), &Files::Anywhere).unwrap();
            assert_eq!(need.ring_bytes, ring_bytes);
        }
    }

    #[test]
    fn an_interrupt_that_comes_before_the_first_step_is_lost_but_for_the_anchor() {
        let connection = Connection::open_in_memory().unwrap();
        let step_once_interrupted = || {
            let mut statement = connection.prepare("SELECT 1")?;
            let mut rows = statement.query([])?;
            connection.get_interrupt_handle().interrupt();
            Ok::<bool, rusqlite::Error>(rows.next()?.is_some())
        };
        assert_eq!(step_once_interrupted(), Ok(true));
        let mut anchor = anchor(&connection).unwrap();
        let mut anchor_rows = anchor.query([]).unwrap();
        anchor_rows.next().unwrap();
        let error = step_once_interrupted().unwrap_err();
        assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::OperationInterrupted));
    }
}
