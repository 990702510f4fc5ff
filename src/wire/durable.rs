//! The Durable Streams protocol: offsets, cursors, times, JSON arrays and events, as its clients
//! spell them.
//!
//! Source: `PROTOCOL.md` of durable-streams/durable-streams, 1.0 draft of 3 June 2026.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::de::IgnoredAny;

use super::json::write_string;
use super::{base64, digits};
use crate::limits;
use crate::wire::http1::parse_http_date;

/// A position in a stream: the number of bytes before it.
///
/// Clients compare offsets as text. They have 33 characters, so that the order of the text is the
/// order of the bytes.
///
/// ```
/// use streamdoor::wire::durable::Offset;
///
/// assert_eq!(Offset(5).to_string(), "0000000000000000_0000000000000005");
/// assert_eq!("0000000000000000_0000000000000005".parse(), Ok(Offset(5)));
/// assert!("5".parse::<Offset>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offset(pub u64);

/// Number of digits of each of the two numbers of an offset.
const OFFSET_DIGITS: usize = 16;
/// The largest position that an offset can have.
pub const OFFSET_MAX: u64 = 9_999_999_999_999_999;

impl fmt::Display for Offset {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016}_{:016}", 0, self.0)
    }
}

/// The text is no offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnOffset;

impl FromStr for Offset {
    type Err = NotAnOffset;

    fn from_str(text: &str) -> Result<Offset, NotAnOffset> {
        let (first, second) = text.split_once('_').ok_or(NotAnOffset)?;
        for part in [first, second] {
            if part.len() != OFFSET_DIGITS || !part.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(NotAnOffset);
            }
        }
        // The first number of every stream is 0. Another one is behind every position.
        let first: u64 = first.parse().map_err(|_| NotAnOffset)?;
        let second = second.parse().map_err(|_| NotAnOffset)?;
        Ok(Offset(if first == 0 { second } else { u64::MAX }))
    }
}

/// Returns a number of decimal digits up to 2^53 - 1, as headers of the protocol have them.
pub fn parse_number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_plain && *number < 1 << 53)
}

/// Does the same as [`parse_number`], without leading zeros.
pub fn parse_exact_number(text: &str) -> Option<u64> {
    parse_number(text).filter(|_| text == "0" || !text.starts_with('0'))
}

/// Returns the cursor of a reply: a number that changes with the time, so that caches do not serve
/// an old reply for ever. It is larger than the one of the client. `random` spreads clients.
///
/// Source: section 8.1 of the protocol: intervals of 20 s since 9 October 2024.
pub fn cursor(wall_us: u64, of_client: Option<u64>, random: u64) -> u64 {
    const EPOCH_S: u64 = 1_728_432_000;
    const INTERVAL_S: u64 = 20;
    const JITTER_S: u64 = 3_600;
    let now = (wall_us / 1_000_000).saturating_sub(EPOCH_S) / INTERVAL_S;
    match of_client {
        Some(cursor) if cursor >= now => {
            cursor + (1 + random % JITTER_S).div_ceil(INTERVAL_S).max(1)
        }
        _ => now,
    }
}

/// Returns the time of an RFC 3339 text, in µs since 1970. `None` if it is none, or before 1970.
pub fn parse_time(text: &str) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    let mut rest = rest.strip_prefix(['T', 't'])?;
    let number = |text: &str, length: usize| -> Option<u64> {
        let is_plain = text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_plain)
    };
    let mut parts = date.split('-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let clock = rest.get(..8)?;
    rest = &rest[8..];
    let mut parts = clock.split(':');
    let (hours, minutes, seconds) =
        (number(parts.next()?, 2)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let mut fraction_us = 0;
    if let Some(behind) = rest.strip_prefix('.') {
        let end = behind.bytes().position(|byte| !byte.is_ascii_digit())?;
        if end == 0 {
            return None;
        }
        let micros = &behind[..end.min(6)];
        fraction_us = micros.parse::<u64>().ok()? * 10_u64.pow(6 - micros.len() as u32);
        rest = &behind[end..];
    }
    let ahead_s = match rest.strip_prefix(['+', '-']) {
        None if matches!(rest, "Z" | "z") => 0,
        None => return None,
        Some(zone) => {
            let (hours, minutes) = zone.split_once(':')?;
            let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let seconds = ((hours * 60 + minutes) * 60) as i64;
            if rest.starts_with('+') { seconds } else { -seconds }
        }
    };
    // The parser of HTTP dates knows the days of each month.
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = MONTHS.get((month as usize).checked_sub(1)?)?;
    if hours > 23 || minutes > 59 || seconds > 59 || year < 1970 {
        return None;
    }
    let at_s = WEEKDAYS.iter().find_map(|weekday| {
        parse_http_date(&format!("{weekday}, {day:02} {month} {year} {clock} GMT"))
    })?;
    let at_s = at_s.checked_add_signed(-ahead_s)?;
    at_s.checked_mul(1_000_000)?.checked_add(fraction_us)
}

const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The reason why a body is no JSON for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotJson;

/// Splits a JSON body into messages: the elements of an array, or the value itself. Returns the
/// place of each in the body, without the white space around it.
///
/// # Errors
/// [`NotJson`]: the body is not JSON, or nested deeper than [`limits::JSON_DEPTH_MAX`] levels.
pub fn messages(body: &[u8]) -> Result<Vec<Range<usize>>, NotJson> {
    std::str::from_utf8(body).map_err(|_| NotJson)?;
    serde_json::from_slice::<IgnoredAny>(body).map_err(|_| NotJson)?;
    let whole = trimmed(body, 0..body.len());
    let is_array = body[whole.start] == b'[';
    let inside = if is_array { whole.start + 1..whole.end - 1 } else { whole.clone() };
    let (mut depth, mut depth_max, mut is_in_text, mut is_escaped) = (0_u32, 0, false, false);
    let mut ends = Vec::new();
    for at in inside.clone() {
        match body[at] {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in_text => is_escaped = true,
            b'"' => is_in_text = !is_in_text,
            _ if is_in_text => {}
            b'[' | b'{' => {
                depth += 1;
                depth_max = depth_max.max(depth);
            }
            b']' | b'}' => depth -= 1,
            b',' if depth == 0 => ends.push(at),
            _ => {}
        }
    }
    if depth_max >= limits::JSON_DEPTH_MAX {
        return Err(NotJson);
    }
    if !is_array {
        return Ok(vec![whole]);
    }
    if trimmed(body, inside.clone()).is_empty() {
        return Ok(Vec::new());
    }
    ends.push(inside.end);
    let mut from = inside.start;
    let message = |end: usize| trimmed(body, std::mem::replace(&mut from, end + 1)..end);
    Ok(ends.into_iter().map(message).collect())
}

/// Returns a part of a text without the white space around it.
fn trimmed(text: &[u8], part: Range<usize>) -> Range<usize> {
    let from_start = text[part.clone()].trim_ascii_start();
    let start = part.end - from_start.len();
    start..start + from_start.trim_ascii_end().len()
}

/// The way in which the bytes of a stream are written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Text: `text/*`.
    Text,
    /// Messages of JSON: `application/json`.
    Json,
    /// Bytes of any kind. Events have them as base64.
    Bytes,
}

impl Mode {
    /// Returns the mode of streams with this media type.
    ///
    /// ```
    /// use streamdoor::wire::durable::Mode;
    ///
    /// assert_eq!(Mode::of("Application/JSON; charset=utf-8"), Mode::Json);
    /// assert_eq!(Mode::of("text/plain"), Mode::Text);
    /// assert_eq!(Mode::of("image/png"), Mode::Bytes);
    /// ```
    pub fn of(media_type: &str) -> Mode {
        let essence = essence(media_type);
        let is_text = essence.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("text/"));
        match essence.eq_ignore_ascii_case("application/json") {
            true => Mode::Json,
            false if is_text => Mode::Text,
            false => Mode::Bytes,
        }
    }
}

/// Returns a media type without its parameters.
pub fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

/// Writes the event with a piece of a stream. A piece of JSON is the text between the brackets of
/// an array.
pub fn write_data(out: &mut Vec<u8>, mode: Mode, piece: &[u8]) {
    out.extend_from_slice(b"event: data\n");
    match mode {
        Mode::Bytes => {
            out.extend_from_slice(b"data:");
            base64::write(out, piece);
            out.push(b'\n');
        }
        // JSON has no line ends but white space.
        Mode::Json => {
            out.extend_from_slice(b"data:[");
            let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
            out.extend(piece.iter().map(|byte| if is_end(byte) { b' ' } else { *byte }));
            out.extend_from_slice(b"]\n");
        }
        Mode::Text => {
            let text = String::from_utf8_lossy(piece);
            let mut rest = &*text;
            loop {
                let end = rest.find(['\r', '\n']);
                out.extend_from_slice(b"data:");
                out.extend_from_slice(&rest.as_bytes()[..end.unwrap_or(rest.len())]);
                out.push(b'\n');
                let Some(end) = end else { break };
                let is_pair = rest[end..].starts_with("\r\n");
                rest = &rest[end + 1 + usize::from(is_pair)..];
            }
        }
    }
    out.push(b'\n');
}

/// The content of a control event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// The position behind everything that was sent.
    pub next: Offset,
    /// The cursor; absent once the stream is closed.
    pub cursor: Option<u64>,
    /// True if the client has everything.
    pub is_up_to_date: bool,
    /// True if nothing follows.
    pub is_closed: bool,
}

/// Writes a control event.
pub fn write_control(out: &mut Vec<u8>, control: &Control) {
    out.extend_from_slice(b"event: control\ndata:{\"streamNextOffset\":");
    write_string(out, &control.next.to_string());
    if let Some(cursor) = control.cursor {
        out.extend_from_slice(b",\"streamCursor\":\"");
        digits::write_u64(out, cursor);
        out.push(b'"');
    }
    for (is_set, name) in [
        (control.is_up_to_date, &b",\"upToDate\":true"[..]),
        (control.is_closed, b",\"streamClosed\":true"),
    ] {
        if is_set {
            out.extend_from_slice(name);
        }
    }
    out.extend_from_slice(b"}\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_ordered_as_text() {
        for (text, offset) in [
            ("0000000000000000_0000000000000000", Some(0)),
            ("0000000000000000_9999999999999999", Some(OFFSET_MAX)),
            ("9999999999999999_9999999999999999", Some(u64::MAX)),
            ("0000000000000000_000000000000000", None),
            ("0000000000000000_+000000000000001", None),
            ("0000000000000000-0000000000000000", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), offset.map(Offset), "{text}");
        }
        assert!(Offset(9).to_string() < Offset(10).to_string());
    }

    #[test]
    fn numbers_are_digits() {
        assert_eq!(parse_number("007"), Some(7));
        assert_eq!(parse_number("9007199254740991"), Some((1 << 53) - 1));
        for text in ["", "-1", "+1", "1e3", "1abc", "0xyz", "9007199254740992", " 1"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
        assert_eq!(parse_exact_number("0"), Some(0));
        assert_eq!(parse_exact_number("05"), None);
    }

    #[test]
    fn cursors_grow() {
        let at = |seconds: u64| (1_728_432_000 + seconds) * 1_000_000;
        assert_eq!(cursor(at(0), None, 0), 0);
        assert_eq!(cursor(at(59), Some(1), 0), 2);
        for random in [0, 19, 20, 3_599, u64::MAX] {
            let next = cursor(at(40), Some(2), random);
            assert!((3..=182).contains(&next), "{next}");
        }
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        for (text, us) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1970-01-01T01:00:00.25+01:00", Some(250_000)),
            ("2024-02-29T12:00:00.123456789z", Some(1_709_208_000_123_456)),
            ("2023-02-29T12:00:00Z", None),
            ("2024-13-01T00:00:00Z", None),
            ("2024-01-01T24:00:00Z", None),
            ("2024-01-01T00:00:60Z", None),
            ("2024-01-01T00:00:00", None),
            ("2024-01-01T00:00:00.Z", None),
            ("2024-01-01 00:00:00Z", None),
            ("tomorrow", None),
            ("", None),
        ] {
            assert_eq!(parse_time(text), us, "{text}");
        }
    }

    #[test]
    fn arrays_are_split_into_messages() {
        let split = |text: &'static str| -> Result<Vec<&str>, NotJson> {
            let found = messages(text.as_bytes())?;
            Ok(found.into_iter().map(|message| &text[message]).collect())
        };
        assert_eq!(split(" [ 1, {\"a\":[1,2],\"b\":\"],\\\"\"} ,[] ] ").unwrap().len(), 3);
        assert_eq!(split("[[1,2],3]").unwrap(), ["[1,2]", "3"]);
        assert_eq!(split(" {\"a\":1} ").unwrap(), ["{\"a\":1}"]);
        assert_eq!(split("\"[\"").unwrap(), ["\"[\""]);
        assert_eq!(split("[ ]").unwrap(), [""; 0]);
        for text in ["", "[", "[1,]", "{ invalid }", "1 2", "[1] x"] {
            assert_eq!(split(text), Err(NotJson), "{text}");
        }
        assert_eq!(messages(b"\"\xff\""), Err(NotJson));
        let depth = limits::JSON_DEPTH_MAX as usize;
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(messages(nested(depth).as_bytes()).is_ok());
        assert_eq!(messages(nested(depth + 1).as_bytes()), Err(NotJson));
    }

    #[test]
    fn events_cannot_be_forged() {
        let written = |mode, piece: &[u8]| {
            let mut out = Vec::new();
            write_data(&mut out, mode, piece);
            String::from_utf8(out).unwrap()
        };
        let forged = b"a\r\n\r\nevent: control\rb\n";
        let text = "event: data\ndata:a\ndata:\ndata:event: control\ndata:b\ndata:\n\n";
        assert_eq!(written(Mode::Text, forged), text);
        assert_eq!(written(Mode::Json, b"{\n}"), "event: data\ndata:[{ }]\n\n");
        assert_eq!(written(Mode::Bytes, b"\0\n"), "event: data\ndata:AAo=\n\n");
        assert_eq!(written(Mode::Text, b""), "event: data\ndata:\n\n");
    }

    #[test]
    fn a_control_event_has_what_holds() {
        let mut out = Vec::new();
        let control =
            Control { next: Offset(3), cursor: Some(7), is_up_to_date: true, is_closed: false };
        write_control(&mut out, &control);
        let text = "event: control\ndata:{\"streamNextOffset\":\
                    \"0000000000000000_0000000000000003\",\"streamCursor\":\"7\",\
                    \"upToDate\":true}\n\n";
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }
}
