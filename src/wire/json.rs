//! JSON values, appended to a buffer.
//!
//! Strings are escaped here and not by `serde_json`, for two reasons. First, this code is faster on
//! the common case of many plain characters in a row. Second, it escapes all control characters,
//! and U+2028 and U+2029. JSON permits those from U+007F on unescaped. Some line readers (Python's
//! `splitlines`) end a line at some of them, and some terminals execute others as commands. With
//! the escapes, an event is one line for every reader and harmless to display.

use serde_json::Value;

pub(crate) use super::digits::{write_i64, write_u64};

const ONES: u64 = 0x0101_0101_0101_0101;
const DELETE: u8 = 0x7F;
const HIGH_BITS: u64 = ONES << 7;
/// The bound below which a double holds every integer exactly.
const EXACT_BELOW: f64 = (1u64 << 53) as f64;

/// Returns a whole number that is not negative. `447.0` and `4.47e2` are whole numbers, too: many
/// programs write every number as a double. From 2^53 on a double may have been rounded, so only
/// plain digits are taken there.
pub(crate) fn whole_number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let double = value.as_f64().filter(|double| (0.0..EXACT_BELOW).contains(double))?;
        (double.fract() == 0.0).then_some(double as u64)
    })
}

/// Appends a string, with its quotes.
pub(crate) fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    write_characters(out, text);
    out.push(b'"');
}

/// Appends the characters between a string's quotes, or a part of them.
pub(crate) fn write_characters(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let (mut at, mut written) = (0, 0); // `out` contains everything before `written`.
    while at < bytes.len() {
        if bytes[at..].first_chunk().is_some_and(are_plain) {
            at += MANY;
            continue;
        }
        if bytes[at..].first_chunk().is_some_and(|eight| is_plain(u64::from_le_bytes(*eight))) {
            at += 8;
            continue;
        }
        let length = char_length(bytes[at]);
        let char_bytes = &bytes[at..at + length];
        if needs_escape(char_bytes) {
            out.extend_from_slice(&bytes[written..at]);
            write_escape(out, char_bytes);
            written = at + length;
        }
        at += length;
    }
    out.extend_from_slice(&bytes[written..]);
}

/// Number of bytes that two registers of the smallest vector unit hold.
const MANY: usize = 32;

/// True if [`is_plain`] holds for all bytes, in a form that the compiler vectorizes.
#[inline]
fn are_plain(many: &[u8; MANY]) -> bool {
    let mut others = 0u8;
    for byte in many {
        let is_other = !(0x20..DELETE).contains(byte) | (*byte == b'"') | (*byte == b'\\');
        others |= u8::from(is_other);
    }
    others == 0
}

/// True if these eight bytes are ASCII, without control characters, quotes and backslashes.
#[inline]
fn is_plain(word: u64) -> bool {
    // A byte's high bit ends up set if the byte is below the bound, or above one that is.
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word;
    let is_control = below(word, 0x20);
    let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (word | is_control | is(b'"') | is(b'\\') | is(DELETE)) & HIGH_BITS == 0
}

/// Number of bytes of the character that begins with `first`, in valid UTF-8.
#[inline]
fn char_length(first: u8) -> usize {
    match first {
        0..0xC0 => 1,
        0xC0..0xE0 => 2,
        0xE0..0xF0 => 3,
        0xF0.. => 4,
    }
}

#[inline]
fn needs_escape(char_bytes: &[u8]) -> bool {
    matches!(
        char_bytes,
        [0..0x20 | b'"' | b'\\' | DELETE] | [0xC2, 0x80..0xA0] | [0xE2, 0x80, 0xA8 | 0xA9]
    )
}

fn write_escape(out: &mut Vec<u8>, char_bytes: &[u8]) {
    let short: &[u8] = match *char_bytes {
        [b'"'] => b"\\\"",
        [b'\\'] => b"\\\\",
        [b'\n'] => b"\\n",
        [b'\r'] => b"\\r",
        [b'\t'] => b"\\t",
        [0x08] => b"\\b",
        [0x0C] => b"\\f",
        [0xE2, 0x80, 0xA8] => b"\\u2028",
        [0xE2, 0x80, 0xA9] => b"\\u2029",
        [control] | [0xC2, control] => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            out.extend_from_slice(b"\\u00");
            out.extend([control >> 4, control & 15].map(|digit| DIGITS[digit as usize]));
            return;
        }
        _ => unreachable!("all characters to escape are handled above"),
    };
    out.extend_from_slice(short);
}

/// Appends a number in the shortest form that reads as the same number, without an empty fraction.
/// Infinities and NaN become `null`, because JSON cannot represent them.
pub(crate) fn write_f64(out: &mut Vec<u8>, number: f64) {
    let whole = number as i64; // It differs if the number is not whole or too large.
    if whole as f64 == number && whole.unsigned_abs() < EXACT_BELOW as u64 {
        write_i64(out, whole);
    } else {
        serde_json::to_writer(out, &number).expect("writing to a vector cannot fail");
    }
}

/// Appends any value.
pub(crate) fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::String(text) => write_string(out, text),
        Value::Array(values) => {
            out.push(b'[');
            for (at, value) in values.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_value(out, value);
            }
            out.push(b']');
        }
        Value::Object(fields) => {
            out.push(b'{');
            for (at, (name, value)) in fields.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_string(out, name);
                out.push(b':');
                write_value(out, value);
            }
            out.push(b'}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            serde_json::to_writer(out, value).expect("writing to a vector cannot fail");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_may_be_written_as_doubles_that_are_exact() {
        let number = |text: &str| whole_number(&serde_json::from_str(text).unwrap());
        let table = [
            ("447", Some(447)),
            ("447.0", Some(447)),
            ("4.47e2", Some(447)),
            ("0.0", Some(0)),
            ("-0.0", Some(0)),
            ("9007199254740991.0", Some((1 << 53) - 1)),
            ("18446744073709551615", Some(u64::MAX)),
            ("9007199254740992.0", None),
            ("9007199254740993.0", None), // It would be rounded.
            ("1e300", None),
            ("18446744073709551616", None),
            ("447.5", None),
            ("-1", None),
            ("-1.0", None),
            (r#""447""#, None),
            ("null", None),
        ];
        for (text, expected) in table {
            assert_eq!(number(text), expected, "{text}");
        }
    }
    use crate::base::Random;

    fn spelled(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    #[test]
    fn what_would_break_a_string_or_a_line_is_escaped_and_nothing_else() {
        let cases = [
            ("", r#""""#),
            ("plain, and a bit longer than a word", r#""plain, and a bit longer than a word""#),
            ("\"\\/", r#""\"\\/""#),
            ("\n\r\t\u{8}\u{c}", r#""\n\r\t\b\f""#),
            ("\0\u{b}\u{1b}\u{1f}", r#""\u0000\u000b\u001b\u001f""#),
            ("\u{7e}\u{7f}\u{80}\u{9b}\u{a0}", "\"~\\u007f\\u0080\\u009b\u{a0}\""),
            ("a\u{85}b\u{2028}c\u{2029}d", r#""a\u0085b\u2028c\u2029d""#),
            ("\u{2027}\u{202a}…€", "\"\u{2027}\u{202a}…€\""),
            ("ä€😀\u{10ffff}\u{fffd}", "\"ä€😀\u{10ffff}\u{fffd}\""),
            ("1234567\"12345678\\", r#""1234567\"12345678\\""#),
        ];
        for (text, expected) in cases {
            assert_eq!(spelled(|out| write_string(out, text)), expected);
        }
    }

    #[test]
    fn every_string_is_read_back_as_it_was_and_is_one_line() {
        let mut random = Random::new(1);
        let hostile = ['"', '\\', '\n', '\u{85}', '\u{2028}', '\u{2029}', '\0', '\u{1f}', '\u{7f}'];
        for round in 0..20_000 {
            let length = random.below(40);
            let text: String = (0..length)
                .map(|_| match random.below(8) {
                    0 => hostile[random.below(hostile.len() as u64) as usize],
                    1 => char::from_u32(random.below(0x11_0000) as u32).unwrap_or('\u{d7ff}'),
                    _ => random.between(0x20, 0x7e) as u8 as char,
                })
                .collect();
            let json = spelled(|out| write_string(out, &text));
            let back: String = serde_json::from_str(&json).unwrap();
            assert_eq!(back, text, "round {round}");
            let is_escaped = |c: char| c.is_control() || "\u{2028}\u{2029}".contains(c);
            assert!(!json.contains(is_escaped), "round {round}: {json}");
        }
    }

    #[test]
    fn a_word_is_plain_exactly_if_each_of_its_bytes_is() {
        for place in 0..8 {
            for byte in 0..=u8::MAX {
                let mut bytes = [b'a'; 8];
                bytes[place] = byte;
                let plain = matches!(byte, 0x20..0x7F) && byte != b'"' && byte != b'\\';
                assert_eq!(is_plain(u64::from_le_bytes(bytes)), plain, "{byte:#x} at {place}");
            }
        }
        let mut random = Random::new(2);
        for _ in 0..100_000 {
            let bytes = random.next_u64().to_le_bytes().map(|byte| byte & 0x7F);
            let plain = bytes.iter().all(|&b| !b.is_ascii_control() && b != b'"' && b != b'\\');
            assert_eq!(is_plain(u64::from_le_bytes(bytes)), plain, "{bytes:?}");
        }
    }

    #[test]
    fn numbers_are_short_and_exact() {
        assert_eq!(spelled(|out| write_u64(out, u64::MAX)), "18446744073709551615");
        assert_eq!(spelled(|out| write_i64(out, i64::MIN)), "-9223372036854775808");
        let cases = [
            (0.0, "0"),
            (-0.0, "0"),
            (3.0, "3"),
            (-7.0, "-7"),
            (0.1, "0.1"),
            (1.0 / 3.0, "0.3333333333333333"),
            (9_007_199_254_740_991.0, "9007199254740991"),
            (f64::NAN, "null"),
            (f64::INFINITY, "null"),
            (f64::NEG_INFINITY, "null"),
        ];
        for (number, expected) in cases {
            assert_eq!(spelled(|out| write_f64(out, number)), expected);
        }
        for number in [f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, 1e21, 2f64.powi(53), -1e-7] {
            let back: f64 = serde_json::from_str(&spelled(|out| write_f64(out, number))).unwrap();
            assert_eq!(back, number);
        }
    }

    #[test]
    fn a_value_is_read_back_as_it_was_and_is_one_line() {
        let text = r#"{"a\u2028":[1,-2,0.5,1e300,"b\u0085\n",{}],"c":{"d":null,"e":true},"f":[]}"#;
        let value: Value = serde_json::from_str(text).unwrap();
        let json = spelled(|out| write_value(out, &value));
        assert!(!json.contains(['\u{85}', '\u{2028}', '\n']), "{json}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
    }

    #[test]
    fn every_finite_number_is_read_back_as_it_was() {
        let mut random = Random::new(3);
        for _ in 0..100_000 {
            let number = f64::from_bits(random.next_u64());
            let json = spelled(|out| write_f64(out, number));
            if !number.is_finite() {
                assert_eq!(json, "null");
                continue;
            }
            assert_eq!(json.parse::<f64>().unwrap(), number, "{json}");
            // Our reader rounds correctly too, with the feature `float_roundtrip`.
            let read: Value = serde_json::from_str(&json).unwrap();
            assert_eq!(read.as_f64(), Some(number), "{json}");
        }
    }
}
