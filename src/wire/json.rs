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
    write_checked(out, text.as_bytes(), true).expect("a string is text");
}

/// The error of bytes that are not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotText;

/// Appends bytes like [`write_characters`], if they are text. ASCII is checked and copied in one
/// pass.
///
/// # Errors
/// [`NotText`]; nothing is written.
pub(crate) fn write_text(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), NotText> {
    write_checked(out, bytes, false)
}

/// Appends the characters of a text. The flag is true if the bytes are known to be valid.
fn write_checked(out: &mut Vec<u8>, bytes: &[u8], is_valid: bool) -> Result<(), NotText> {
    let plain = plain_bytes(bytes);
    if plain < bytes.len() {
        return write_mixed(out, bytes, plain, is_valid);
    }
    out.extend_from_slice(bytes);
    Ok(())
}

/// Does the same for a text whose byte at `at` is the first one that is not plain.
fn write_mixed(
    out: &mut Vec<u8>,
    bytes: &[u8],
    mut at: usize,
    mut is_valid: bool,
) -> Result<(), NotText> {
    let before = out.len();
    let mut written = 0; // `out` contains everything before `written`.
    while let Some(&first) = bytes.get(at) {
        if first >= 0x80 && !is_valid {
            // Everything before is ASCII, so the rest can be checked alone.
            if std::str::from_utf8(&bytes[at..]).is_err() {
                out.truncate(before);
                return Err(NotText);
            }
            is_valid = true;
        }
        let length = char_length(first);
        let char_bytes = &bytes[at..at + length];
        if needs_escape(char_bytes) {
            out.extend_from_slice(&bytes[written..at]);
            write_escape(out, char_bytes);
            written = at + length;
        }
        at += length;
        at += plain_bytes(&bytes[at..]);
    }
    out.extend_from_slice(&bytes[written..]);
    Ok(())
}

/// Number of bytes that two registers of the smallest vector unit hold.
const MANY: usize = 32;

/// Number of plain bytes at the beginning: see [`is_plain`].
fn plain_bytes(bytes: &[u8]) -> usize {
    if bytes.first().is_none_or(|first| *first >= 0x80) {
        return 0; // Text in other scripts has many such characters in a row.
    }
    let mut rest = bytes;
    while let Some((many, behind)) = rest.split_first_chunk::<MANY>()
        && are_plain(many)
    {
        rest = behind;
    }
    if rest.len() < MANY && (rest.is_empty() || is_end_plain(bytes)) {
        return bytes.len();
    }
    while let Some((eight, behind)) = rest.split_first_chunk() {
        let others = others(u64::from_le_bytes(*eight));
        if others != 0 {
            return bytes.len() - rest.len() + (others.trailing_zeros() / 8) as usize;
        }
        rest = behind;
    }
    match bytes.last_chunk() {
        // The bytes before `rest` are plain. So this is the first other byte, or the end.
        Some(eight) => {
            let others = others(u64::from_le_bytes(*eight));
            bytes.len() - 8 + (others.trailing_zeros() / 8) as usize
        }
        None => plain_bytes_of_few(bytes),
    }
}

/// Does the same for fewer than eight bytes.
#[inline]
fn plain_bytes_of_few(bytes: &[u8]) -> usize {
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let [first, last] = [first, last].map(|four| u64::from(u32::from_le_bytes(*four)));
        if others(first << 32 | last) == 0 {
            return bytes.len();
        }
    }
    bytes.iter().take_while(|byte| is_plain(**byte)).count()
}

/// True if the last [`MANY`] bytes are plain, or all of at least half as many.
#[inline]
fn is_end_plain(bytes: &[u8]) -> bool {
    const HALF: usize = MANY / 2;
    if let Some(many) = bytes.last_chunk::<MANY>() {
        return are_plain(many);
    }
    let (first, last) = (bytes.first_chunk::<HALF>(), bytes.last_chunk::<HALF>());
    first.is_some_and(are_plain) && last.is_some_and(are_plain)
}

/// True if [`is_plain`] holds for all bytes, in a form that the compiler vectorizes.
#[inline]
fn are_plain<const COUNT: usize>(bytes: &[u8; COUNT]) -> bool {
    let mut others = 0u8;
    for byte in bytes {
        others |= u8::from(!is_plain(*byte));
    }
    others == 0
}

/// True for ASCII without control characters, quotes and backslashes.
#[inline]
fn is_plain(byte: u8) -> bool {
    (0x20..DELETE).contains(&byte) & (byte != b'"') & (byte != b'\\')
}

/// Returns a word that is 0 if all bytes of `word` are plain. Otherwise its lowest bit is in the
/// lowest byte that is not.
#[inline]
fn others(word: u64) -> u64 {
    // A byte's high bit ends up set if the byte is below the bound, or above one that is.
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word;
    let is_control = below(word, 0x20);
    let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (word | is_control | is(b'"') | is(b'\\') | is(DELETE)) & HIGH_BITS
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
        let first = |word: u64| others(word).trailing_zeros() as usize / 8; // 8 if all are plain.
        for place in 0..8 {
            for byte in 0..=u8::MAX {
                let mut bytes = [b'a'; 8];
                bytes[place] = byte;
                let plain = matches!(byte, 0x20..0x7F) && byte != b'"' && byte != b'\\';
                assert_eq!(is_plain(byte), plain, "{byte:#x}");
                let expected = if plain { 8 } else { place };
                assert_eq!(first(u64::from_le_bytes(bytes)), expected, "{byte:#x} at {place}");
            }
        }
        let mut random = Random::new(2);
        for _ in 0..100_000 {
            let bytes = random.next_u64().to_le_bytes().map(|byte| byte & 0x7F);
            let is_other = |&b: &u8| b.is_ascii_control() || b == b'"' || b == b'\\';
            let expected = bytes.iter().position(is_other).unwrap_or(8);
            assert_eq!(first(u64::from_le_bytes(bytes)), expected, "{bytes:?}");
        }
    }

    /// Appends text one character after the other, unlike the code under test.
    fn model(bytes: &[u8]) -> Option<String> {
        let text = String::from_utf8(bytes.to_vec()).ok()?;
        let mut out = String::new();
        for character in text.chars() {
            match character {
                '"' => out += "\\\"",
                '\\' => out += "\\\\",
                '\n' => out += "\\n",
                '\r' => out += "\\r",
                '\t' => out += "\\t",
                '\u{8}' => out += "\\b",
                '\u{c}' => out += "\\f",
                c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                    out += &format!("\\u{:04x}", c as u32);
                }
                c => out.push(c),
            }
        }
        Some(out)
    }

    #[track_caller]
    fn assert_like_model(bytes: &[u8]) {
        let mut out = b"before".to_vec();
        let result = write_text(&mut out, bytes);
        let expected = model(bytes);
        assert_eq!(result.is_ok(), expected.is_some(), "{bytes:?}");
        let written = String::from_utf8(out).unwrap();
        let written = written.strip_prefix("before").unwrap();
        assert_eq!(written, expected.as_deref().unwrap_or(""), "{bytes:?}");
        if let Some(expected) = expected {
            let text = std::str::from_utf8(bytes).unwrap();
            assert_eq!(spelled(|out| write_characters(out, text)), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_special_character_is_found_at_each_place_of_a_text() {
        let ascii = (0..0x20).chain([b'"', b'\\', 0x7F]).map(|byte| vec![byte]);
        let characters =
            ["\u{80}", "\u{9f}", "\u{a0}", "\u{2028}", "\u{2029}", "\u{202a}", "\u{1f980}"];
        let invalid: [&[u8]; 9] = [
            b"\x80",
            b"\xBF",
            b"\xC0\x80",
            b"\xC2",
            b"\xE2\x80",
            b"\xED\xA0\x80",
            b"\xF0\x9F\xA6",
            b"\xF5",
            b"\xFF",
        ];
        let specials: Vec<Vec<u8>> = ascii
            .chain(characters.map(|text| text.as_bytes().to_vec()))
            .chain(invalid.map(<[u8]>::to_vec))
            .collect();
        for length in 0..=70 {
            let plain: Vec<u8> =
                (b'!'..=b'~').filter(|b| is_plain(*b)).cycle().take(length).collect();
            assert_like_model(&plain);
            for place in 0..=length {
                for special in &specials {
                    let (front, back) = plain.split_at(place);
                    assert_like_model(&[front, special, back].concat());
                }
            }
        }
    }

    #[test]
    fn random_bytes_are_written_as_by_the_model() {
        const PARTS: [&[u8]; 12] = [
            b"0123456789abcdefghijklmnopqrstuvwxyz",
            b"eight by",
            b"a",
            b" ",
            b"\n",
            b"\"",
            b"\\",
            b"\x7F",
            "\u{e9}".as_bytes(),
            "\u{85}".as_bytes(),
            "\u{2028}\u{20ac}".as_bytes(),
            "\u{1f980}".as_bytes(),
        ];
        for seed in 0..50_000 {
            let mut random = Random::new(seed);
            let mut bytes = Vec::new();
            for _ in 0..random.below(8) {
                bytes.extend_from_slice(PARTS[random.below(PARTS.len() as u64) as usize]);
            }
            assert_like_model(&bytes);
            // One wrong byte or a cut makes most texts with other characters invalid.
            if !bytes.is_empty() {
                let place = random.below(bytes.len() as u64) as usize;
                assert_like_model(&bytes[..place]);
                assert_like_model(&bytes[place..]);
                bytes[place] = random.next_u64() as u8;
                assert_like_model(&bytes);
            }
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
