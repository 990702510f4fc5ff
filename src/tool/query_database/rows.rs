//! One row as one line of JSON.
//!
//! | SQLite | JSON |
//! |---|---|
//! | NULL | `null` |
//! | INTEGER | a number, all 64 bits of it (some parsers keep only 53) |
//! | REAL | a number with a point or an exponent; `null` for an infinity, which JSON lacks |
//! | TEXT | a string; bytes that are not UTF-8 become U+FFFD |
//! | BLOB | `{"base64": "…"}`, with padding |
//!
//! The columns keep the order of the query. Since the names in an object are distinct, equal column
//! names get `_2`, `_3` … appended. Nothing is allocated per row once the buffer has grown.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rusqlite::Row;
use rusqlite::types::ValueRef;

/// The text before each value of a row: `{"id":`, `,"name":` …
pub(super) struct RowFormat {
    text: Vec<u8>,
    /// The end of each one in `text`.
    ends: Vec<usize>,
}

impl RowFormat {
    /// The format for columns with these names. At least one is required.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> RowFormat {
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        for name in distinct(names.into_iter().collect()) {
            text.push(if ends.is_empty() { b'{' } else { b',' });
            write_text(&name, &mut text);
            text.push(b':');
            ends.push(text.len());
        }
        assert!(!ends.is_empty());
        RowFormat { text, ends }
    }

    /// Appends `row` and a line end to `line`.
    ///
    /// # Errors
    /// If the row has fewer columns.
    pub fn write(&self, row: &Row<'_>, line: &mut Vec<u8>) -> rusqlite::Result<()> {
        let mut start = 0;
        for (index, &end) in self.ends.iter().enumerate() {
            line.extend_from_slice(&self.text[start..end]);
            write_value(row.get_ref(index)?, line);
            start = end;
        }
        line.extend_from_slice(b"}\n");
        Ok(())
    }
}

/// Makes names distinct by appending `_2`, `_3` … to repeated ones.
fn distinct<'a>(names: Vec<&'a str>) -> Vec<String> {
    let mut taken: BTreeSet<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut seen = BTreeSet::new();
    let mut rename = |name: &str| {
        let free = (2..).map(|number| format!("{name}_{number}")).find(|new| !taken.contains(new));
        let free = free.expect("there are more numbers than columns");
        taken.insert(free.clone());
        free
    };
    let renamed = |name: &'a str| if seen.insert(name) { name.to_owned() } else { rename(name) };
    names.into_iter().map(renamed).collect()
}

fn write_value(value: ValueRef<'_>, line: &mut Vec<u8>) {
    match value {
        ValueRef::Null => line.extend_from_slice(b"null"),
        ValueRef::Integer(number) => in_memory(serde_json::to_writer(line, &number)),
        ValueRef::Real(number) => in_memory(serde_json::to_writer(line, &number)),
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => write_text(text, line),
            Err(_) => write_text(&String::from_utf8_lossy(text), line),
        },
        ValueRef::Blob(bytes) => write_blob(bytes, line),
    }
}

fn write_blob(bytes: &[u8], line: &mut Vec<u8>) {
    line.extend_from_slice(b"{\"base64\":\"");
    let start = line.len();
    let length = base64::encoded_len(bytes.len(), true).expect("SQLite's limit is far below");
    line.resize(start + length, 0);
    let written = BASE64.encode_slice(bytes, &mut line[start..]);
    assert!(written == Ok(length));
    line.extend_from_slice(b"\"}");
}

fn write_text(text: &str, line: &mut Vec<u8>) {
    in_memory(serde_json::to_writer(line, text));
}

fn in_memory(written: serde_json::Result<()>) {
    written.expect("a number or a string, into memory");
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;

    fn line(query: &str) -> String {
        let connection = Connection::open_in_memory().unwrap();
        let mut statement = connection.prepare(query).unwrap();
        let mut rows = statement.query([]).unwrap();
        let row = rows.next().unwrap().unwrap();
        let mut line = Vec::new();
        RowFormat::new(row.as_ref().column_names()).write(row, &mut line).unwrap();
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn each_type_is_json_of_its_own() {
        for (value, json) in [
            ("NULL", "null"),
            ("0", "0"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("9223372036854775807", "9223372036854775807"),
            ("1.0", "1.0"),
            ("0.1", "0.1"),
            ("1e300", "1e+300"),
            ("9e999", "null"),
            ("-9e999", "null"),
            ("''", r#""""#),
            ("'ä \"x\" \\'", r#""ä \"x\" \\""#),
            ("'a' || char(10, 0, 31)", r#""a\n\u0000\u001f""#),
            ("CAST(x'61ff62' AS TEXT)", "\"a\u{fffd}b\""),
            ("x''", r#"{"base64":""}"#),
            ("x'00'", r#"{"base64":"AA=="}"#),
            ("x'fbff'", r#"{"base64":"+/8="}"#),
            ("x'616263'", r#"{"base64":"YWJj"}"#),
        ] {
            assert_eq!(line(&format!("SELECT {value} AS v")), format!("{{\"v\":{json}}}\n"));
        }
    }

    #[test]
    fn a_line_is_json_with_the_columns_in_order_and_no_line_break_within() {
        let line = line("SELECT 1 AS z, 'a' || char(10) || 'b' AS \"quo\"\"te\", x'01' AS a");
        assert_eq!(line, "{\"z\":1,\"quo\\\"te\":\"a\\nb\",\"a\":{\"base64\":\"AQ==\"}}\n");
        assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok());
    }

    #[test]
    fn columns_of_equal_names_are_told_apart() {
        let renamed = distinct(vec!["a", "a", "b", "a_2", "a", "b", "a_2"]);
        assert_eq!(renamed, ["a", "a_3", "b", "a_2", "a_4", "b_2", "a_2_2"]);
        assert_eq!(line("SELECT 1 AS a, 2 AS a"), "{\"a\":1,\"a_2\":2}\n");
    }
}
