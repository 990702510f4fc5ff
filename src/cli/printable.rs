//! Foreign text made safe for a terminal. Every text that a command prints passes this module.
//!
//! Control characters are shown as `^[` and the like. Other characters that command a terminal, or
//! that change the direction of text, are shown by their number: `<U+202E>`. Text that has passed
//! once is not changed by passing again.

use std::fmt::Write;

use serde_json::Value;
use streamdoor::base::plain::is_command;

/// Returns text that cannot control a terminal. Line ends and tabs stay.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            '\0'..' ' | '\x7f' => out.extend(['^', char::from(c as u8 ^ 0x40)]),
            _ if is_command(c) => {
                let _ = write!(out, "<U+{:04X}>", u32::from(c));
            }
            _ => out.push(c),
        }
    }
    out
}

/// Like [`printable`], but line ends and tabs become spaces, so the result is one line.
pub fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

/// Returns JSON text with the same meaning that cannot control a terminal. In JSON such characters
/// occur in strings only, except for line ends.
pub fn printable_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push(c),
            _ if is_command(c) => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            _ => out.push(c),
        }
    }
    out
}

/// Returns the value as indented JSON that cannot control a terminal.
pub fn json(value: &Value) -> String {
    printable_json(&format!("{value:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\x1b[2J\x07\u{9b}31m\r\u{7f}\n\tb\u{202e}c\u{2066}\u{61c}\u{2028}";

    #[test]
    fn what_would_command_a_terminal_is_shown() {
        let shown = "a^[[2J^G<U+009B>31m^M^?\n\tb<U+202E>c<U+2066><U+061C><U+2028>";
        assert_eq!(printable(HOSTILE), shown);
        assert_eq!(printable(shown), shown);
        assert_eq!(one_line(HOSTILE), shown.replace(['\n', '\t'], " "));
        for kept in ["👩\u{200d}💻", "می\u{200c}خواهم", "عربي", "é\u{a0}\u{ad}€𝄞"]
        {
            assert_eq!(printable(kept), kept);
        }
    }

    #[test]
    fn json_keeps_its_meaning_and_commands_nothing() {
        let value = serde_json::json!({HOSTILE: [HOSTILE, 1]});
        let text = json(&value);
        assert!(text.chars().all(|c| c == '\n' || !is_command(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
