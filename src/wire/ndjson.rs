//! NDJSON, `application/x-ndjson`: one compact JSON value, then a line feed.
//!
//! The encoder is [`crate::wire::events::WireEvent::write_line`]. An event is a line, the same for
//! all subscribers, without a prefix or suffix. [`Decoder`] finds the lines again. The end of the
//! bytes does not mean that a stream is complete; only its `end` event does. A client has to check
//! that it saw one.

use std::fmt;

use super::lines::{Line, LineBuffer, TooLong};
use crate::limits;

/// The media type of NDJSON in requests and responses.
pub const MEDIA_TYPE: &str = "application/x-ndjson";

/// Finds lines in bytes that arrive in pieces.
///
/// ```
/// use streamdoor::wire::ndjson::Decoder;
///
/// let mut decoder = Decoder::new();
/// let mut input = &b"{\"a\":1}\n{\"b\""[..];
/// assert_eq!(decoder.read(&mut input)?, Some(&b"{\"a\":1}"[..]));
/// assert_eq!(decoder.read(&mut input)?, None); // All of it is taken: the rest has to come.
/// let mut input = &b":2}\r\n"[..];
/// assert_eq!(decoder.read(&mut input)?, Some(&b"{\"b\":2}"[..]));
/// decoder.finish()?;
/// # Ok::<(), streamdoor::wire::ndjson::DecodeError>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    line: LineBuffer,
    line_bytes_max: usize,
    failed: Option<DecodeError>,
}

/// The reason why bytes are not the lines of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A line is longer than the limit.
    LineTooLong {
        /// The limit, in bytes.
        bytes_max: usize,
    },
    /// The bytes ended within a line.
    Truncated,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    /// Creates a decoder for lines of up to [`limits::STREAM_LINE_BYTES_MAX`] bytes.
    pub fn new() -> Decoder {
        Decoder::with_limit(limits::STREAM_LINE_BYTES_MAX)
    }

    /// Creates a decoder for lines of up to `line_bytes_max` bytes, including a carriage return at
    /// the end.
    pub fn with_limit(line_bytes_max: usize) -> Decoder {
        Decoder { line: LineBuffer::default(), line_bytes_max, failed: None }
    }

    /// Returns the next line that is not empty, without its end. It consumes the bytes of the line
    /// from the front of `input`. `None` means that all of `input` is consumed and more is needed.
    ///
    /// # Errors
    /// [`DecodeError::LineTooLong`], and the same for every later call.
    pub fn read<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<&'a [u8]>, DecodeError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let bytes_max = self.line_bytes_max;
        loop {
            match self.line.take(input, bytes_max, |byte| byte == b'\n') {
                Ok(None) => return Ok(None),
                Ok(Some(Line::Here(line, _))) if !content(line).is_empty() => {
                    return Ok(Some(content(line)));
                }
                Ok(Some(Line::Kept(_))) if !content(self.line.kept()).is_empty() => {
                    return Ok(Some(content(self.line.kept())));
                }
                Ok(Some(_)) => {} // Blank lines are skipped.
                Err(TooLong) => {
                    let error = DecodeError::LineTooLong { bytes_max };
                    self.failed = Some(error);
                    return Err(error);
                }
            }
        }
    }

    /// Checks the end of the stream, after which no more bytes come.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if the bytes ended within a line; an earlier error.
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.failed {
            Some(error) => Err(error),
            None if self.line.has_begun() => Err(DecodeError::Truncated),
            None => Ok(()),
        }
    }
}

/// Removes a carriage return, as some programs end their lines with CR LF.
fn content(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

impl fmt::Display for DecodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::LineTooLong { bytes_max } => {
                write!(out, "a line has more than {bytes_max} bytes")
            }
            DecodeError::Truncated => out.write_str("the stream ended within a line"),
        }
    }
}

impl std::error::Error for DecodeError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;
    use crate::wire::events::{GapEvent, WireEvent};

    /// A stream, its lines, and its end.
    type Case<'a> = (&'a [u8], &'a [&'a [u8]], Result<(), DecodeError>);

    /// Returns the lines of `bytes`, which arrive cut at `cuts`, and the end.
    fn decoded(bytes: &[u8], cuts: &[usize]) -> (Vec<Vec<u8>>, Result<(), DecodeError>) {
        let mut decoder = Decoder::with_limit(100);
        let mut lines = Vec::new();
        let mut from = 0;
        for &to in cuts.iter().chain([&bytes.len()]) {
            let mut input = &bytes[from..to];
            from = to;
            loop {
                match decoder.read(&mut input) {
                    Ok(Some(line)) => lines.push(line.to_vec()),
                    Ok(None) => break,
                    Err(error) => {
                        assert_eq!(decoder.read(&mut &b"{}\n"[..]), Err(error));
                        return (lines, Err(error));
                    }
                }
            }
            assert!(input.is_empty());
        }
        (lines, decoder.finish())
    }

    #[test]
    fn lines_are_the_same_however_they_are_cut() {
        let long = [&[b'x'; 100][..], b"\n"].concat();
        let too_long = [&[b'x'; 101][..], b"\n"].concat();
        let error = DecodeError::LineTooLong { bytes_max: 100 };
        let table: &[Case<'_>] = &[
            (b"", &[], Ok(())),
            (b"{}\n[]\n", &[b"{}", b"[]"], Ok(())),
            (b"\n\r\n{}\r\n\n\n1\n\r\n", &[b"{}", b"1"], Ok(())),
            (b"a\rb\n\r\r\n", &[b"a\rb", b"\r"], Ok(())),
            (b"{}\n{\"a\":", &[b"{}"], Err(DecodeError::Truncated)),
            (&long, &[&long[..100]], Ok(())),
            (&too_long, &[], Err(error)),
            (&too_long[..101], &[], Err(error)),
        ];
        for (bytes, lines, end) in table {
            let expected = (lines.iter().map(|line| line.to_vec()).collect(), *end);
            assert_eq!(decoded(bytes, &[]), expected);
            assert_eq!(decoded(bytes, &(0..bytes.len()).collect::<Vec<_>>()), expected);
            for at in 0..bytes.len() {
                assert_eq!(decoded(bytes, &[at]), expected, "cut at {at}");
            }
        }
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let mut random = Random::new(1);
        for round in 0..300 {
            let mut text = || -> String {
                let length = random.below(30);
                (0..length).filter_map(|_| char::from_u32(random.below(0x3000) as u32)).collect()
            };
            let texts: Vec<String> = (0..round % 5).map(|_| text()).collect();
            let mut bytes = Vec::new();
            for reason in &texts {
                let (from_seq, to_seq, chunk_count, byte_count) = (1, 2, 2, 20);
                let execution = "";
                WireEvent::Gap(GapEvent {
                    execution,
                    from_seq,
                    to_seq,
                    chunk_count,
                    byte_count,
                    reason,
                })
                .write_line(&mut bytes);
            }
            let mut decoder = Decoder::new();
            let mut reasons = Vec::new();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let piece_bytes = random.between(1, rest.len().min(40) as u64) as usize;
                let (mut input, behind) = rest.split_at(piece_bytes);
                rest = behind;
                while let Some(line) = decoder.read(&mut input).unwrap() {
                    let value: serde_json::Value = serde_json::from_slice(line).unwrap();
                    reasons.push(value["reason"].as_str().unwrap().to_owned());
                }
            }
            assert_eq!(decoder.finish(), Ok(()));
            assert_eq!(reasons, texts, "round {round}");
        }
    }
}
