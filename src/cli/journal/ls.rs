//! `streamdoor journal ls`: the executions of a journal.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use streamdoor::base::ExecutionId;
use streamdoor::journal::look::{Listed, Missing};
use streamdoor::shard::journal::EndedDetails;
use streamdoor::stream::Exit;
use streamdoor::trace::rfc3339;

use super::super::CliError;
use super::super::console::print_out;
use super::super::printable::{one_line, printable_json};
use super::super::words::{counted, in_units};
use super::folder;

const TITLES: [&str; 8] =
    ["execution", "state", "opened", "durability", "chunks", "bytes", "missing", "error"];

/// An execution, and what the record of its end says. No text exceeds the limit of the engine.
struct Row {
    listed: Listed,
    end: Option<EndedDetails>,
}

/// The sums of all shards.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    segments: u64,
    bytes: u64,
    executions: u64,
    nameless: u64,
}

/// Prints the executions of the journal in `folder`.
pub fn run(folder: &Path, as_json: bool) -> Result<(), CliError> {
    let mut totals = Totals::default();
    let mut all: Vec<Row> = Vec::new();
    for mut shard in folder::open(folder)? {
        let (segments, bytes) = shard.look.size();
        let failed = |error| folder::failure(&shard.path, &error);
        let listing = shard.look.list().map_err(failed)?;
        totals.segments += segments;
        totals.bytes += bytes;
        totals.executions += listing.executions.len() as u64;
        totals.nameless += listing.nameless;
        for listed in listing.executions {
            let end = shard.look.end_details(&listed, EndedDetails::decode).map_err(failed)?;
            all.push(Row { listed, end });
        }
    }
    all.sort_by_key(|row| row.listed.opened_us.unwrap_or(0)); // Stable: shard by shard.
    if as_json {
        for row in &all {
            print_out!("{}", printable_json(&document(row).to_string()));
        }
        let Totals { segments, bytes, executions, nameless } = totals;
        let sums = json!({"segments": segments, "bytes": bytes, "executions": executions,
            "nameless": nameless});
        print_out!("{sums}");
        return Ok(());
    }
    if !all.is_empty() {
        print_out!("{}", table(&all));
    }
    print_out!("{}", in_words(totals));
    Ok(())
}

/// Returns the outcome. `ended` stands for one that cannot be read.
fn state(row: &Row) -> &'static str {
    match &row.end {
        Some(end) => end.outcome.name(),
        None if row.listed.ended_us.is_some() => "ended",
        None => "unfinished",
    }
}

fn error(row: &Row) -> Option<&str> {
    row.end.as_ref().and_then(|end| end.error.as_deref())
}

fn document(row: &Row) -> Value {
    let listed = &row.listed;
    let Missing { unwritten, corrupt, expired } = listed.missing;
    let (exit_code, exit_signal) = match row.end.as_ref().and_then(|end| end.exit) {
        Some(Exit::Code(code)) => (Some(code), None),
        Some(Exit::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    json!({
        "execution": ExecutionId::from_bits(listed.id).to_string(),
        "state": state(row),
        "error": error(row),
        "exit_code": exit_code,
        "exit_signal": exit_signal,
        "opened_at": listed.opened_us.map(rfc3339),
        "ended_at": listed.ended_us.map(rfc3339),
        "durability": listed.terms.map(|terms| terms.durability.name()),
        "keep_s": listed.terms.and_then(|terms| (terms.keep_s > 0).then_some(terms.keep_s)),
        "chunks": listed.chunks,
        "bytes": listed.bytes,
        "missing": {"unwritten": unwritten, "corrupt": corrupt, "expired": expired},
    })
}

/// Returns the table, with columns as wide as their contents.
fn table(all: &[Row]) -> String {
    let rows = all.iter().map(|row| {
        let listed = &row.listed;
        let durability = listed.terms.map_or("?", |terms| terms.durability.name());
        [
            ExecutionId::from_bits(listed.id).to_string(),
            state(row).to_owned(),
            listed.opened_us.map_or_else(|| "?".to_owned(), seconds),
            durability.to_owned(),
            listed.chunks.to_string(),
            listed.bytes.to_string(),
            missing(&listed.missing),
            one_line(error(row).unwrap_or_default()),
        ]
    });
    let rows: Vec<[String; 8]> = std::iter::once(TITLES.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let _ = match column {
                4..=5 => write!(line, "{cell:>width$}  "), // Numbers.
                _ => write!(line, "{cell:<width$}  "),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.truncate(text.trim_end().len());
    text
}

/// Returns a time in UTC, in whole seconds.
fn seconds(wall_us: u64) -> String {
    rfc3339(wall_us / 1_000_000 * 1_000_000).replace(".000000Z", "Z")
}

/// Returns the reasons and counts of missing chunks: `3 corrupt, 1 unwritten`, or nothing.
fn missing(missing: &Missing) -> String {
    let Missing { unwritten, corrupt, expired } = missing;
    let counts = [(corrupt, "corrupt"), (unwritten, "unwritten"), (expired, "expired")];
    let parts = counts.iter().filter(|(count, _)| **count > 0);
    parts.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

fn in_words(totals: Totals) -> String {
    let Totals { segments, bytes, executions, nameless } = totals;
    let segments = counted(segments, "segment");
    let mut text = format!("{segments}, {}, ", in_units(bytes as f64));
    text += &counted(executions, "execution");
    if nameless > 0 {
        text += &format!(", and parts of {nameless} more without a readable id");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use streamdoor::journal::records::Terms;
    use streamdoor::stream::{Durability, Outcome};

    #[test]
    fn executions_are_listed_with_their_ends_and_with_what_is_missing() {
        let listed = Listed {
            id: 0,
            number: 1,
            terms: Some(Terms { durability: Durability::Synced, keep_s: 60 }),
            opened_us: Some(1_764_265_522_999_999),
            ended_us: Some(1_764_265_523_000_000),
            ended: None,
            chunks: 12,
            bytes: 3_456,
            missing: Missing::default(),
        };
        let end = |outcome, error: Option<&str>, exit| EndedDetails {
            outcome,
            error: error.map(Box::from),
            exit,
            has_panicked: false,
        };
        let broken = Listed {
            id: 1,
            terms: None,
            opened_us: None,
            ended_us: None,
            missing: Missing { unwritten: 2, corrupt: 1, expired: 0 },
            ..listed.clone()
        };
        let of = |id, end| Row { listed: Listed { id, ..listed.clone() }, end };
        let hostile = "no\n\x1b[2J\u{202e}way";
        let rows = [
            of(0, Some(end(Outcome::Completed, None, Some(Exit::Code(0))))),
            Row { listed: broken, end: None },
            of(2, Some(end(Outcome::Failed, Some(hostile), Some(Exit::Signal(9))))),
            of(3, None),
        ];
        let zeros = "0".repeat(25);
        let expected = format!(
            "execution                   state       opened                durability  chunks  \
             bytes  missing                 error\n\
             {zeros}0  completed   2025-11-27T17:45:22Z  synced          12   3456\n\
             {zeros}1  unfinished  ?                     ?               12   3456  \
             1 corrupt, 2 unwritten\n\
             {zeros}2  failed      2025-11-27T17:45:22Z  synced          12   3456  \
             \x20                       no ^[[2J<U+202E>way\n\
             {zeros}3  ended       2025-11-27T17:45:22Z  synced          12   3456"
        );
        assert_eq!(table(&rows), expected);
        let documents = rows.each_ref().map(document);
        assert_eq!(documents[0]["opened_at"], "2025-11-27T17:45:22.999999Z");
        assert_eq!(documents[0]["exit_code"], 0);
        assert_eq!(documents[1]["missing"]["unwritten"], 2);
        assert_eq!(documents[1]["durability"], Value::Null);
        assert_eq!(documents[2]["exit_signal"], 9);
        let text = printable_json(&documents[2].to_string());
        assert!(text.is_ascii() && !text.contains(['\n', '\x1b']), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["error"], hostile);
        assert_eq!(documents[3]["error"], Value::Null);
        let totals = Totals { segments: 3, bytes: 192 << 20, executions: 1, nameless: 0 };
        assert_eq!(in_words(totals), "3 segments, 192.0 MiB, 1 execution");
    }
}
