//! The fields of an event, appended to the caller's buffer. Nothing allocates.
//!
//! Text from outside cannot end a line. Data is split at line ends of any kind, and names with one
//! are refused (CVE-2026-29085, CVE-2026-33128).

use std::fmt;
use std::time::Duration;

use crate::wire::events::WireEvent;
use crate::wire::json;

/// The blank line that dispatches an event.
pub const END: &[u8] = b"\n";
/// An empty comment, which shows that the connection lives. It is complete, without [`END`].
pub const KEEP_ALIVE: &[u8] = b":\n\n";

/// The error of a name with a line feed, a carriage return or a NUL, which clients would misread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldError;

/// Appends the part of `event` that all its subscribers share: its name, and itself as JSON.
#[inline]
pub fn write_event(out: &mut Vec<u8>, event: &WireEvent<'_>) {
    if let WireEvent::Chunk(_) = event {
        out.extend_from_slice(b"event: chunk\ndata: ");
    } else {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(event.name().as_bytes());
        out.extend_from_slice(b"\ndata: ");
    }
    event.write_json(out); // One line: our JSON has no line ends of any kind.
    out.push(b'\n');
}

/// Appends an `event:` line. Without one an event is a `message`.
///
/// # Errors
/// [`FieldError`]; nothing is written.
pub fn write_name(out: &mut Vec<u8>, name: &str) -> Result<(), FieldError> {
    if name.bytes().any(|byte| matches!(byte, b'\n' | b'\r' | 0)) {
        return Err(FieldError);
    }
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    Ok(())
}

/// Appends any text as `data:` lines. A client joins them with line feeds, so the kind of line end
/// in the text is lost. JSON does not lose it.
pub fn write_data(out: &mut Vec<u8>, text: &str) {
    write_lines(out, b"data: ", text.as_bytes());
}

/// Appends any text as comments, which clients skip.
pub fn write_comment(out: &mut Vec<u8>, text: &str) {
    write_lines(out, b": ", text.as_bytes());
}

/// Appends a `retry:` line: the time to wait before a reconnect. Give each connection a different
/// one, or all clients reconnect at once.
pub fn write_retry(out: &mut Vec<u8>, wait: Duration) {
    out.extend_from_slice(b"retry: ");
    json::write_u64(out, u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    out.push(b'\n');
}

/// Appends each line with its field name. A line feed, a carriage return, or CR LF ends one line.
fn write_lines(out: &mut Vec<u8>, field: &[u8], mut text: &[u8]) {
    loop {
        out.extend_from_slice(field);
        let end = text.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let Some(end) = end else {
            out.extend_from_slice(text);
            out.push(b'\n');
            return;
        };
        out.extend_from_slice(&text[..end]);
        out.push(b'\n');
        let is_pair = text[end..].starts_with(b"\r\n");
        text = &text[end + if is_pair { 2 } else { 1 }..];
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the name of an event must not contain a line feed, carriage return or NUL")
    }
}

impl std::error::Error for FieldError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::events::ProgressEvent;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = b"|".to_vec();
        write(&mut out);
        String::from_utf8(out).unwrap().strip_prefix('|').unwrap().to_owned()
    }

    #[test]
    fn an_event_is_spelled_so() {
        let event = WireEvent::Progress(ProgressEvent {
            execution: "0abc",
            token: None,
            progress: 1.0,
            total: None,
            percentage: None,
            message: Some("a\r\nb\u{2028}"),
            context: None,
        });
        assert_eq!(
            written(|out| write_event(out, &event)),
            "event: progress\ndata: {\"event\":\"progress\",\"execution\":\"0abc\",\
             \"progress\":1,\"message\":\"a\\r\\nb\\u2028\"}\n"
        );
    }

    #[test]
    fn data_cannot_end_a_line() {
        let table = [
            ("", "data: \n"),
            ("plain", "data: plain\n"),
            (" spaces kept", "data:  spaces kept\n"),
            ("a\nb", "data: a\ndata: b\n"),
            ("a\r\nb", "data: a\ndata: b\n"),
            ("a\rb", "data: a\ndata: b\n"),
            ("a\n\rb", "data: a\ndata: \ndata: b\n"),
            ("a\n\nid: 7\n\n", "data: a\ndata: \ndata: id: 7\ndata: \ndata: \n"),
            ("\r\n", "data: \ndata: \n"),
            ("\u{2028}\u{85}\0", "data: \u{2028}\u{85}\0\n"), // None of these ends a line.
        ];
        for (text, expected) in table {
            assert_eq!(written(|out| write_data(out, text)), expected, "{text:?}");
        }
        assert_eq!(written(|out| write_comment(out, "a\revent: x")), ": a\n: event: x\n");
    }

    #[test]
    fn names_that_would_end_a_line_are_refused() {
        for name in ["a\nb", "a\r", "\0", "x\r\ndata: y"] {
            assert_eq!(written(|out| assert_eq!(write_name(out, name), Err(FieldError))), "");
        }
        assert_eq!(written(|out| write_name(out, "ping").unwrap()), "event: ping\n");
    }

    #[test]
    fn retry_is_in_milliseconds() {
        assert_eq!(written(|out| write_retry(out, Duration::from_micros(2_999))), "retry: 2\n");
        assert!(written(|out| write_retry(out, Duration::MAX)).starts_with("retry: 1844"));
    }
}
