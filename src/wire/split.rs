//! Messages on lines, as in JSON-RPC over standard streams. A line that is too long is reported
//! once, and the next line is read as usual.
//!
//! Lines end with LF. A CR before it is removed, and blank lines are skipped.

use super::lines::{Line, LineBuffer};

/// Splits a stream of bytes into lines. It has no memory of its own while lines come whole, and
/// holds at most one line otherwise.
///
/// ```
/// use streamdoor::wire::{LineSplitter, Split};
/// let mut splitter = LineSplitter::new(8);
/// let mut input = &b"{\"a\"\n\nmuch too long\nb"[..];
/// assert_eq!(splitter.next(&mut input), Some(Split::Line(b"{\"a\"")));
/// assert_eq!(splitter.next(&mut input), Some(Split::TooLong));
/// assert_eq!(splitter.next(&mut input), None); // All was taken.
/// let mut input = &b"c\n"[..];
/// assert_eq!(splitter.next(&mut input), Some(Split::Line(b"bc")));
/// ```
#[derive(Debug)]
pub struct LineSplitter {
    line: LineBuffer,
    bytes_max: usize,
    /// True while the rest of a line that was too long is skipped.
    is_skipping: bool,
}

/// The content of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split<'a> {
    /// The line, without its end.
    Line(&'a [u8]),
    /// The line is too long. It is reported once, as soon as that is known.
    TooLong,
}

impl LineSplitter {
    /// Creates a splitter for lines of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> LineSplitter {
        LineSplitter { line: LineBuffer::default(), bytes_max, is_skipping: false }
    }

    /// Consumes bytes from the front of `input`, up to the end of the next line or of the input.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Option<Split<'s>> {
        self.skip(input);
        let is_kept = loop {
            match self.line.take(input, self.bytes_max, |byte| byte == b'\n') {
                Ok(None) => return None,
                Ok(Some(Line::Here(line, _))) if is_blank(line) => {}
                Ok(Some(Line::Here(line, _))) => return Some(Split::Line(without_cr(line))),
                Ok(Some(Line::Kept(_))) if is_blank(self.line.kept()) => {}
                Ok(Some(Line::Kept(_))) => break true,
                Err(_) => break false,
            }
        };
        if is_kept {
            return Some(Split::Line(without_cr(self.line.kept())));
        }
        self.line = LineBuffer::default();
        self.is_skipping = true;
        self.skip(input);
        Some(Split::TooLong)
    }

    /// Skips the rest of a line that was too long.
    fn skip(&mut self, input: &mut &[u8]) {
        if self.is_skipping {
            let end = input.iter().position(|&byte| byte == b'\n');
            self.is_skipping = end.is_none();
            *input = &input[end.map_or(input.len(), |end| end + 1)..];
        }
    }

    /// Ends the stream. Returns the last line if it has no end.
    pub fn end(&mut self) -> Option<&[u8]> {
        let has_begun = self.line.has_begun() && !std::mem::take(&mut self.is_skipping);
        let line = without_cr(self.line.kept());
        (has_begun && !is_blank(line)).then_some(line)
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.trim_ascii().is_empty()
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of these pieces (`None` if too long), and the last one without an end.
    fn split(pieces: &[&[u8]], bytes_max: usize) -> (Vec<Option<Vec<u8>>>, Option<Vec<u8>>) {
        let (mut splitter, mut found) = (LineSplitter::new(bytes_max), Vec::new());
        for piece in pieces {
            let mut input = *piece;
            while let Some(split) = splitter.next(&mut input) {
                found.push(match split {
                    Split::Line(line) => Some(line.to_vec()),
                    Split::TooLong => None,
                });
            }
            assert!(input.is_empty(), "the input must be consumed");
        }
        (found, splitter.end().map(<[u8]>::to_vec))
    }

    #[test]
    fn however_it_is_cut_the_same_lines_come_out() {
        let text = b"one\r\n\n  \ntwo\n0123456789\n\n0123456789abcdefgh\nthree\n012345678\nfo\rur";
        let expected = split(&[text], 9);
        let line = |text: &[u8]| Some(text.to_vec());
        let lines = [line(b"one"), line(b"two"), None, None, line(b"three"), line(b"012345678")];
        assert_eq!(expected, (lines.to_vec(), line(b"fo\rur")));
        for first in 0..text.len() {
            for second in first..text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(split(&pieces, 9), expected, "{first} {second}");
            }
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(split(&bytes, 9), expected);
    }

    #[test]
    fn at_the_end_only_a_line_that_has_begun_is_one() {
        for (text, rest) in [
            ("", None),
            ("a\n", None),
            ("a\n \t", None),
            ("a\nb\r", Some("b")),
            ("0123456789", None),
        ] {
            let (_, end) = split(&[text.as_bytes()], 9);
            assert_eq!(end.as_deref(), rest.map(str::as_bytes), "{text:?}");
        }
    }

    #[test]
    fn of_what_is_too_long_nothing_is_kept() {
        let mut splitter = LineSplitter::new(1 << 10);
        let piece = [b'x'; 1_000];
        let mut long_count = 0;
        for _ in 0..1_000 {
            let mut input = &piece[..];
            while let Some(split) = splitter.next(&mut input) {
                assert_eq!(split, Split::TooLong);
                long_count += 1;
            }
            assert!(splitter.line.kept().len() <= 1 << 10);
        }
        assert_eq!(long_count, 1);
    }
}
