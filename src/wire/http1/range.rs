//! The range of bytes that a client asks for (RFC 9110, section 14).

use std::ops::Range;

/// One range of bytes of a representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// The bytes from `first` to `last`, counted from 0.
    From {
        /// The first byte.
        first: u64,
        /// The last byte. `None`: the last one of all.
        last: Option<u64>,
    },
    /// This number of bytes at the end.
    Last(u64),
}

/// The error of a range that has no byte of the representation, which is a 416.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchRange;

impl ByteRange {
    /// Parses the value of `Range`. Returns `None` for several ranges, for other units and for a
    /// malformed value. A server then answers with the whole representation.
    ///
    /// ```
    /// use streamdoor::wire::http1::ByteRange;
    ///
    /// let range = ByteRange::parse("bytes=10-19").unwrap();
    /// assert_eq!(range.within(15), Ok(10..15));
    /// assert_eq!(ByteRange::parse("bytes=0-0,-1"), None);
    /// ```
    pub fn parse(text: &str) -> Option<ByteRange> {
        let (unit, range) = text.split_once('=')?;
        let (first, last) = range.trim_matches([' ', '\t']).split_once('-')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        if first.is_empty() {
            return position(last).map(ByteRange::Last);
        }
        let first = position(first)?;
        let last = if last.is_empty() { None } else { Some(position(last)?) };
        let is_ordered = last.is_none_or(|last| first <= last);
        is_ordered.then_some(ByteRange::From { first, last })
    }

    /// Returns the bytes of the range in a representation of this length.
    ///
    /// # Errors
    /// [`NoSuchRange`] if it has none of them.
    pub fn within(self, total_bytes: u64) -> Result<Range<u64>, NoSuchRange> {
        let range = match self {
            ByteRange::From { first, last } => {
                let end = last.map_or(u64::MAX, |last| last.saturating_add(1));
                first..end.min(total_bytes)
            }
            ByteRange::Last(bytes) => total_bytes.saturating_sub(bytes)..total_bytes,
        };
        if range.is_empty() { Err(NoSuchRange) } else { Ok(range) }
    }
}

/// Parses a position. One that exceeds 64 bits is behind every representation.
fn position(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_the_bytes_that_rfc_9110_says() {
        // The representation has 10,000 bytes, as in the examples of section 14.1.2.
        let table: &[(&str, Result<Range<u64>, NoSuchRange>)] = &[
            ("bytes=0-499", Ok(0..500)),
            ("bytes=500-999", Ok(500..1_000)),
            ("bytes=-500", Ok(9_500..10_000)),
            ("bytes=9500-", Ok(9_500..10_000)),
            ("bytes=0-", Ok(0..10_000)),
            ("bytes=0-0", Ok(0..1)),
            ("bytes=9999-9999", Ok(9_999..10_000)),
            ("Bytes=9999-20000", Ok(9_999..10_000)),
            ("bytes=-1", Ok(9_999..10_000)),
            ("bytes=-20000", Ok(0..10_000)),
            ("bytes= 1-2 ", Ok(1..3)),
            ("bytes=1-99999999999999999999999", Ok(1..10_000)),
            ("bytes=1-18446744073709551615", Ok(1..10_000)),
            ("bytes=10000-", Err(NoSuchRange)),
            ("bytes=10000-10001", Err(NoSuchRange)),
            ("bytes=99999999999999999999999-", Err(NoSuchRange)),
            ("bytes=-0", Err(NoSuchRange)),
        ];
        for (text, expected) in table {
            let range = ByteRange::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(range.within(10_000), *expected, "{text}");
        }
        for text in ["bytes=0-", "bytes=-1", "bytes=0-0"] {
            assert_eq!(ByteRange::parse(text).unwrap().within(0), Err(NoSuchRange), "{text}");
        }
    }

    #[test]
    fn what_is_not_one_range_of_bytes_is_ignored() {
        for text in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=2-1",
            "bytes=a-b",
            "bytes=1-b",
            "bytes=+1-2",
            "bytes=0-0,2-2",
            "bytes=0-0,-1",
            "bytes=1",
            "bytes 0-1",
            "lines=0-1",
            "bytes=--1",
            "bytes=1--2",
            "bytes=1 - 2",
            "=0-1",
            "bytes=0-1;x",
        ] {
            assert_eq!(ByteRange::parse(text), None, "{text}");
        }
    }
}
