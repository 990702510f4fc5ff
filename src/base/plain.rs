//! Foreign text made safe to display: it has no effect on a terminal or on the text around it.

/// True if a terminal takes the character as a command, or if it changes the order or the lines of
/// the text around it. These are control characters, bidirectional controls (Unicode Standard Annex
/// 9), and the separators of lines and paragraphs.
pub const fn is_command(c: char) -> bool {
    matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}')
        || is_bidi_control(c)
        || matches!(c, '\u{2028}' | '\u{2029}')
}

/// True if the character changes the direction of the text around it.
pub const fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}')
}

/// Returns the text without commands. Line ends and tabs are removed, too, so the result is one
/// line.
pub fn plain_line(text: &str) -> String {
    text.chars().filter(|&c| !is_command(c)).collect()
}

/// Returns the text without commands, but with its line ends and tabs.
pub fn plain_text(text: &str) -> String {
    text.chars().filter(|&c| is_shown(c)).collect()
}

/// Returns the length of the longest beginning of `bytes` that ends between two characters, if
/// `bytes` is UTF-8 that was cut at its end. Returns the whole length otherwise.
pub fn length_of_whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        Ok(_) | Err(_) => bytes.len(),
    }
}

/// True for the characters that [`plain_text`] keeps.
pub const fn is_shown(c: char) -> bool {
    matches!(c, '\n' | '\t') || !is_command(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_character_that_was_cut_is_left_out() {
        let text = "a\u{e9}\u{20ac}\u{1f980}".as_bytes(); // One, two, three and four bytes.
        let lengths: Vec<usize> =
            (0..=text.len()).map(|until| length_of_whole_characters(&text[..until])).collect();
        assert_eq!(lengths, [0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10]);
        assert_eq!(length_of_whole_characters(b"\xffa\xc3"), 3, "other bytes stay as they are");
        assert_eq!(length_of_whole_characters(b"\xc3"), 1, "something is always left");
    }

    #[test]
    fn commands_go_and_everything_else_stays() {
        let hostile = "a\u{1b}[2J\u{9b}b\u{7f}\r\n\tc\u{202e}d\u{2066}e\u{61c}\u{200f}f\u{2028}g";
        assert_eq!(plain_line(hostile), "a[2Jbcdefg");
        assert_eq!(plain_text(hostile), "a[2Jb\n\tcdefg");
        // Joiners are part of emoji and scripts; a no-break space is a space.
        for kept in ["👩\u{200d}💻", "می\u{200c}خواهم", "عربي", "é\u{a0}\u{ad}€𝄞"]
        {
            assert_eq!(plain_line(kept), kept);
        }
    }

    #[test]
    fn every_control_character_is_a_command() {
        for c in (0..=0x10_ffff).filter_map(char::from_u32) {
            assert!(!c.is_control() || is_command(c), "{c:?}");
        }
        let bidi = "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\
                    \u{2067}\u{2068}\u{2069}";
        assert!(bidi.chars().all(is_bidi_control) && plain_text(bidi).is_empty());
    }
}
