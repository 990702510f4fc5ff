//! Records of the log, and their two formats: text and JSON, one line each.
//!
//! A record is a value of fixed size, which is made and passed on without allocation. Its texts may
//! come from any source. Both formats escape control characters, so that a record is one line and
//! cannot control a terminal. `server/log.rs` carries records to their destination. Tests:
//! `log/tests.rs`.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::str::FromStr;

use crate::base::plain::is_command;
use crate::limits::{LOG_FIELDS_MAX, LOG_TEXT_BYTES_MAX};

macro_rules! words {
    ($($(#[$text:meta])+ $type:ident {
        $($(#[$about:meta])+ $variant:ident = $word:literal,)+
    })+) => {
        $(
            $(#[$text])+
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
            pub enum $type {
                $($(#[$about])+ $variant,)+
            }

            impl $type {
                /// The words of the variants, in their order.
                pub const WORDS: &[&str] = &[$($word),+];
            }

            impl fmt::Display for $type {
                fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                    out.pad($type::WORDS[*self as usize])
                }
            }

            impl FromStr for $type {
                type Err = WordError;
                fn from_str(text: &str) -> Result<$type, WordError> {
                    match text {
                        $($word => Ok($type::$variant),)+
                        _ => Err(WordError { expected: $type::WORDS }),
                    }
                }
            }
        )+
    };
}

words! {
    /// The severity of a record, the most severe first.
    Level {
        /// Something was lost, or does not work.
        Error = "error",
        /// Something is not as it should be, but work continues.
        Warn = "warn",
        /// Information for an operator.
        #[default]
        Info = "info",
        /// Details for an investigation.
        Debug = "debug",
    }
    /// The format of the records.
    LogFormat {
        /// A line for people: time, level, event, `name=value`.
        #[default]
        Text = "text",
        /// A JSON object per line, for programs.
        Json = "json",
    }
}

/// The error for a word that is none of those expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordError {
    expected: &'static [&'static str],
}

impl fmt::Display for WordError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "must be one of {}", self.expected.join(", "))
    }
}

impl std::error::Error for WordError {}

/// A text of at most [`LOG_TEXT_BYTES_MAX`] bytes. A longer one is cut, with `…` at its end.
#[derive(Clone, Copy)]
struct ShortText {
    bytes: [u8; LOG_TEXT_BYTES_MAX],
    length: u8,
    is_cut: bool,
}

impl ShortText {
    const EMPTY: ShortText = ShortText { bytes: [0; LOG_TEXT_BYTES_MAX], length: 0, is_cut: false };

    fn as_str(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.length)];
        std::str::from_utf8(bytes).expect("only whole characters are put in")
    }

    fn append(&mut self, text: &str) {
        let at = usize::from(self.length);
        self.bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        self.length = (at + text.len()) as u8;
    }
}

impl fmt::Write for ShortText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const MARK: &str = "…";
        if self.is_cut {
            return Err(fmt::Error);
        }
        let room_bytes = LOG_TEXT_BYTES_MAX - usize::from(self.length);
        if text.len() <= room_bytes {
            self.append(text);
            return Ok(());
        }
        self.append(&text[..text.floor_char_boundary(room_bytes)]);
        self.length = self.as_str().floor_char_boundary(LOG_TEXT_BYTES_MAX - MARK.len()) as u8;
        self.append(MARK);
        self.is_cut = true;
        Err(fmt::Error) // The value that is displayed may stop.
    }
}

#[derive(Clone, Copy)]
enum Value {
    Number(u64),
    Text(ShortText),
}

/// A log record: an event, its time, and up to `LOG_FIELDS_MAX` numbers and texts.
#[derive(Clone, Copy)]
pub struct Record {
    wall_us: u64,
    level: Level,
    event: &'static str,
    field_count: u8,
    fields: [(&'static str, Value); LOG_FIELDS_MAX],
}

impl Record {
    /// Creates a record of `event` at `wall_us` microseconds since 1970.
    pub fn new(wall_us: u64, level: Level, event: &'static str) -> Record {
        let fields = [("", Value::Number(0)); LOG_FIELDS_MAX];
        Record { wall_us, level, event, field_count: 0, fields }
    }

    /// The severity of the record.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Adds a number.
    ///
    /// # Panics
    /// If the record has `LOG_FIELDS_MAX` fields.
    pub fn number(&mut self, name: &'static str, number: u64) -> &mut Record {
        self.add(name, Value::Number(number))
    }

    /// Adds the text that `shown` displays, cut after `LOG_TEXT_BYTES_MAX` bytes.
    ///
    /// # Panics
    /// If the record has `LOG_FIELDS_MAX` fields.
    pub fn show(&mut self, name: &'static str, shown: &dyn fmt::Display) -> &mut Record {
        let mut text = ShortText::EMPTY;
        let _ = write!(text, "{shown}"); // An error means that it was cut.
        self.add(name, Value::Text(text))
    }

    fn add(&mut self, name: &'static str, value: Value) -> &mut Record {
        assert!(usize::from(self.field_count) < LOG_FIELDS_MAX);
        self.fields[usize::from(self.field_count)] = (name, value);
        self.field_count += 1;
        self
    }

    /// Appends the record as one line.
    pub fn write_line(&self, format: LogFormat, out: &mut Vec<u8>) {
        let mut line = LogLine::begin(format, out, self.wall_us, self.level, self.event);
        for (name, value) in &self.fields[..usize::from(self.field_count)] {
            match value {
                Value::Number(number) => line.number(name, *number),
                Value::Text(text) => line.text(name, text.as_str()),
            }
        }
        line.end();
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = Vec::new();
        self.write_line(LogFormat::Text, &mut line);
        out.write_str(String::from_utf8_lossy(&line).trim_end())
    }
}

/// A line that is being written. It is for callers whose texts are longer than a [`Record`] takes,
/// and that may allocate.
pub struct LogLine<'a> {
    format: LogFormat,
    out: &'a mut Vec<u8>,
}

impl<'a> LogLine<'a> {
    /// Begins a line at the end of `out`.
    pub fn begin(
        format: LogFormat,
        out: &'a mut Vec<u8>,
        wall_us: u64,
        level: Level,
        event: &str,
    ) -> LogLine<'a> {
        match format {
            LogFormat::Text => {
                write_time(out, wall_us);
                append(out, format_args!(" {level:<5} "));
                write_word(out, event);
            }
            LogFormat::Json => {
                out.extend_from_slice(b"{\"time\":\"");
                write_time(out, wall_us);
                out.extend_from_slice(b"\",\"level\":");
                write_quoted(out, Level::WORDS[level as usize]);
                out.extend_from_slice(b",\"event\":");
                write_quoted(out, event);
            }
        }
        LogLine { format, out }
    }

    /// Adds a number.
    pub fn number(&mut self, name: &str, number: u64) {
        self.name(name);
        append(self.out, format_args!("{number}"));
    }

    /// Adds a text in full.
    pub fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        match self.format {
            LogFormat::Text => write_word(self.out, text),
            LogFormat::Json => write_quoted(self.out, text),
        }
    }

    /// Ends the line.
    pub fn end(self) {
        self.out.extend_from_slice(match self.format {
            LogFormat::Text => b"\n",
            LogFormat::Json => b"}\n",
        });
    }

    fn name(&mut self, name: &str) {
        match self.format {
            LogFormat::Text => {
                self.out.push(b' ');
                write_word(self.out, name);
                self.out.push(b'=');
            }
            LogFormat::Json => {
                self.out.push(b',');
                write_quoted(self.out, name);
                self.out.push(b':');
            }
        }
    }
}

/// Writes `text` as it is if it is one plain word, otherwise quoted.
fn write_word(out: &mut Vec<u8>, text: &str) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.,:;/@+*%()[]".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => out.extend_from_slice(text.as_bytes()),
        false => write_quoted(out, text),
    }
}

/// Writes `text` as a JSON string without characters that control a terminal, a line or text
/// direction.
fn write_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for c in text.chars() {
        match c {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            c if is_command(c) => write_escape(out, c),
            c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

fn write_escape(out: &mut Vec<u8>, c: char) {
    append(out, format_args!("\\u{:04x}", u32::from(c)));
}

fn append(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("memory takes everything");
}

/// Formats a time in µs since 1970 as RFC 3339, in UTC, with microseconds.
#[cfg(feature = "server")]
pub fn rfc3339(wall_us: u64) -> String {
    let mut out = Vec::new();
    write_time(&mut out, wall_us);
    String::from_utf8(out).expect("it is ASCII")
}

/// Writes a time in µs since 1970 as RFC 3339, in UTC, with microseconds.
fn write_time(out: &mut Vec<u8>, wall_us: u64) {
    let (seconds, us) = (wall_us / 1_000_000, wall_us % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date_of(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    append(out, format_args!("{year:04}-{month:02}-{day:02}T"));
    append(out, format_args!("{hour:02}:{minute:02}:{second:02}.{us:06}Z"));
}

/// Returns the year, month and day that is `days` after 1970-01-01. Years are counted from March,
/// so that the leap day is their last, in cycles of 400 years.
fn date_of(days: u64) -> (u64, u64, u64) {
    const CYCLE_DAYS: u64 = 146_097;
    let days = days + 719_468; // From 0000-03-01.
    let (cycle, day) = (days / CYCLE_DAYS, days % CYCLE_DAYS);
    let year = (day - day / 1_460 + day / 36_524 - day / (CYCLE_DAYS - 1)) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, is_next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * cycle + year + is_next_year, month, day_of_month)
}

#[cfg(test)]
mod tests;
