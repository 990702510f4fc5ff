//! A decoder of events for clients, by the rules of the WHATWG standard.
//!
//! The standard has no limits and no end; a program needs both. Lines and events have a largest
//! size. At the end of the bytes an incomplete event is dropped, as the standard says. The client
//! has to tell from the events themselves whether the stream was complete.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::limits;
use crate::wire::lines::{Line, LineBuffer, TooLong};

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Finds events in bytes that arrive in pieces.
///
/// ```
/// use streamdoor::wire::sse::Decoder;
///
/// let mut decoder = Decoder::new();
/// let mut input = &b"id: 7\r\nevent: gap\r\ndata: a\r\nda"[..];
/// assert!(decoder.read(&mut input)?.is_none()); // All of it is taken: the rest has to come.
/// let mut input = &b"ta:b\r\n\r\n"[..];
/// let message = decoder.read(&mut input)?.expect("it is whole");
/// assert_eq!(message.name(), "gap");
/// assert_eq!(message.data(), "a\nb");
/// assert_eq!(decoder.last_id(), "7");
/// # Ok::<(), streamdoor::wire::sse::DecodeError>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    line: LineBuffer,
    event: EventBuffer,
    /// Number of bytes of a byte order mark at the start of the stream; `None` after the start.
    mark_bytes: Option<usize>,
    /// True if the last line ended in a carriage return. A line feed after it belongs to the same
    /// line end.
    after_return: bool,
    line_bytes_max: usize,
    failed: Option<DecodeError>,
}

/// The fields of an event, collected from its lines.
#[derive(Debug)]
struct EventBuffer {
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// True if the event was returned. The next line discards it.
    given: bool,
    id_next: Vec<u8>,
    id: Vec<u8>,
    retry: Option<Duration>,
    event_bytes_max: usize,
}

/// One event. Bytes that are not UTF-8 are read as U+FFFD.
#[derive(Clone, Copy, Debug)]
pub struct SseEvent<'a> {
    event: &'a EventBuffer,
}

/// The reason why a stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A line is longer than the limit.
    LineTooLong {
        /// The limit, in bytes.
        bytes_max: usize,
    },
    /// The data of an event is longer than the limit.
    EventTooLarge {
        /// The limit, in bytes.
        bytes_max: usize,
    },
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    /// Creates a decoder for lines of up to [`limits::STREAM_LINE_BYTES_MAX`] bytes and events of
    /// up to [`limits::SSE_EVENT_BYTES_MAX`] bytes.
    pub fn new() -> Decoder {
        Decoder::with_limits(limits::STREAM_LINE_BYTES_MAX, limits::SSE_EVENT_BYTES_MAX)
    }

    /// Creates a decoder for lines of up to `line_bytes_max` bytes, and events with up to
    /// `event_bytes_max` bytes of data. A line feed for each line counts as data.
    pub fn with_limits(line_bytes_max: usize, event_bytes_max: usize) -> Decoder {
        Decoder {
            line: LineBuffer::default(),
            event: EventBuffer {
                name: Vec::new(),
                data: Vec::new(),
                has_data: false,
                given: false,
                id_next: Vec::new(),
                id: Vec::new(),
                retry: None,
                event_bytes_max,
            },
            mark_bytes: Some(0),
            after_return: false,
            line_bytes_max,
            failed: None,
        }
    }

    /// Returns the next event that has data. It consumes the bytes of the event from the front of
    /// `input`. `None` means that all of `input` is consumed and more is needed.
    ///
    /// # Errors
    /// [`DecodeError`], and the same for every later call.
    pub fn read<'a>(&'a mut self, input: &mut &[u8]) -> Result<Option<SseEvent<'a>>, DecodeError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        match self.read_lines(input) {
            Ok(false) => Ok(None),
            Ok(true) => Ok(Some(SseEvent { event: &self.event })),
            Err(error) => {
                self.failed = Some(error);
                Err(error)
            }
        }
    }

    /// The last event id, which a client sends in `Last-Event-ID` when it reconnects. An event
    /// without data sets it too. Empty if no event had an id.
    pub fn last_id(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.event.id)
    }

    /// The time that the server wants clients to wait before they reconnect.
    pub fn retry(&self) -> Option<Duration> {
        self.event.retry
    }

    /// Prepares for a new connection. It discards an incomplete event and keeps the last id.
    pub fn reconnect(&mut self) {
        let (id, retry) = (std::mem::take(&mut self.event.id), self.event.retry);
        *self = Decoder::with_limits(self.line_bytes_max, self.event.event_bytes_max);
        self.event.id_next.clone_from(&id);
        self.event.id = id;
        self.event.retry = retry;
    }

    /// Reads lines until one dispatches an event.
    fn read_lines(&mut self, input: &mut &[u8]) -> Result<bool, DecodeError> {
        let bytes_max = self.line_bytes_max;
        loop {
            self.skip_mark(input);
            if self.after_return && !input.is_empty() {
                *input = input.strip_prefix(b"\n").unwrap_or(input);
                self.after_return = false;
            }
            let line = self.line.take(input, bytes_max, |byte| matches!(byte, b'\n' | b'\r'));
            let (line, end) = match line {
                Ok(Some(Line::Here(line, end))) => (line, end),
                Ok(Some(Line::Kept(end))) => (self.line.kept(), end),
                Ok(None) => return Ok(false),
                Err(TooLong) => return Err(DecodeError::LineTooLong { bytes_max }),
            };
            self.after_return = end == b'\r';
            if self.event.take_line(line)? {
                return Ok(true);
            }
        }
    }

    /// Skips a byte order mark at the very beginning. Bytes that only begin like one are part of
    /// the first line.
    fn skip_mark(&mut self, input: &mut &[u8]) {
        while let Some(count) = self.mark_bytes {
            let Some(byte) = input.first() else { return };
            if count < BYTE_ORDER_MARK.len() && *byte == BYTE_ORDER_MARK[count] {
                *input = &input[1..];
                self.mark_bytes = Some(count + 1);
                continue;
            }
            if count < BYTE_ORDER_MARK.len() {
                // Two bytes are never too long for a line, as limits are far larger.
                let mut begun = &BYTE_ORDER_MARK[..count];
                let taken = self.line.take(&mut begun, BYTE_ORDER_MARK.len(), |_| false);
                assert_eq!(taken, Ok(None));
            }
            self.mark_bytes = None;
        }
    }
}

impl EventBuffer {
    /// Interprets a line. Returns true if it dispatches an event.
    fn take_line(&mut self, line: &[u8]) -> Result<bool, DecodeError> {
        if std::mem::take(&mut self.given) {
            self.clear();
        }
        if line.is_empty() {
            return Ok(self.dispatch());
        }
        let (name, value) = match line.iter().position(|&byte| byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                let bytes_max = self.event_bytes_max;
                if value.len() >= bytes_max - self.data.len() {
                    return Err(DecodeError::EventTooLarge { bytes_max });
                }
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
                self.has_data = true;
            }
            b"event" => replace(&mut self.name, value),
            b"id" if !value.contains(&0) => replace(&mut self.id_next, value),
            b"retry" => self.retry = parse_retry(value).or(self.retry),
            _ => {} // Comments have no name; other fields have no meaning.
        }
        Ok(false)
    }

    fn dispatch(&mut self) -> bool {
        replace_from(&mut self.id, &self.id_next);
        self.given = self.has_data;
        if self.has_data {
            self.data.pop(); // The line feed behind the last line.
        } else {
            self.clear();
        }
        self.given
    }

    fn clear(&mut self) {
        self.name.clear();
        self.data.clear();
        self.has_data = false;
    }
}

fn replace(field: &mut Vec<u8>, value: &[u8]) {
    field.clear();
    field.extend_from_slice(value);
}

fn replace_from(field: &mut Vec<u8>, value: &Vec<u8>) {
    if field != value {
        field.clone_from(value);
    }
}

/// Parses digits only. A number beyond 64 bits becomes the largest.
fn parse_retry(value: &[u8]) -> Option<Duration> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let digits = value.iter().map(|digit| u64::from(digit - b'0'));
    let add = |number: u64, digit: u64| number.saturating_mul(10).saturating_add(digit);
    is_number.then(|| Duration::from_millis(digits.fold(0, add)))
}

impl<'a> SseEvent<'a> {
    /// The name of the event; `message` if the server did not name it.
    pub fn name(&self) -> Cow<'a, str> {
        match self.event.name.is_empty() {
            true => Cow::Borrowed("message"),
            false => String::from_utf8_lossy(&self.event.name),
        }
    }

    /// The data, with lines joined by line feeds.
    pub fn data(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(&self.event.data)
    }

    /// The data as the received bytes.
    pub fn data_bytes(&self) -> &'a [u8] {
        &self.event.data
    }

    /// The id of the event, or of the last earlier event with one; empty if none had one.
    pub fn id(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(&self.event.id)
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::LineTooLong { bytes_max } => {
                write!(out, "a line has more than {bytes_max} bytes")
            }
            DecodeError::EventTooLarge { bytes_max } => {
                write!(out, "an event has more than {bytes_max} bytes of data")
            }
        }
    }
}

impl std::error::Error for DecodeError {}
