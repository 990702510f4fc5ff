//! Documents as bytes, in the spelling of [`crate::wire::json`].

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use crate::wire::json::write_characters;

/// Appends a document.
///
/// # Panics
/// If a member has a name that is not a text.
pub fn write(out: &mut Vec<u8>, document: &impl Serialize) {
    let mut serializer = Serializer::with_formatter(out, Escaping);
    document.serialize(&mut serializer).expect("all names are texts, and a vector takes all");
}

/// Escapes the characters that `serde_json` leaves as they are.
struct Escaping;

impl Formatter for Escaping {
    #[inline]
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if fragment.bytes().all(|byte| byte < 0x7F) {
            return out.write_all(fragment.as_bytes());
        }
        let mut escaped = Vec::with_capacity(fragment.len() + 8);
        write_characters(&mut escaped, fragment);
        out.write_all(&escaped)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::base::Random;
    use crate::wire::json::write_value;

    #[test]
    fn values_are_written_as_by_hand() {
        let mut random = Random::new(1);
        let hostile = "\"\\\n\u{85}\u{9b}\u{2028}\u{2029}\0\u{1f}\u{7f}\u{8}\u{c}ä€😀";
        let hostile: Vec<char> = hostile.chars().collect();
        for round in 0..5_000 {
            let mut text = || -> String {
                let one = |random: &mut Random| match random.below(4) {
                    0 => hostile[random.below(hostile.len() as u64) as usize],
                    1 => char::from_u32(random.below(0x11_0000) as u32).unwrap_or('x'),
                    _ => random.between(0x20, 0x7e) as u8 as char,
                };
                (0..random.below(40)).map(|_| one(&mut random)).collect()
            };
            let (name, words) = (text(), [text(), text()]);
            let mut value = json!({"words": words, "empty": [{}, [], ""], "none": null});
            value[&name] = json!([true, -5, u64::MAX, i64::MIN, 0.1, 447.0, 1e300, f64::NAN]);
            let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
            write(&mut ours, &value);
            write_value(&mut by_hand, &value);
            assert_eq!(String::from_utf8(ours), String::from_utf8(by_hand), "round {round}");
            assert!(matches!(value[&name][7], Value::Null));
        }
    }
}
