//! Finds the end of a JSON object that comes in pieces, without parsing or storing it.

/// The state of an object's text that was read so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectOutline {
    state: OutlineState,
    depth: u32,
    is_in_string: bool,
    is_after_backslash: bool,
    /// True if the object contains anything between its braces.
    has_content: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum OutlineState {
    /// Only white space was read.
    #[default]
    Blank,
    Inside,
    Whole,
    /// The text is no object, or continues after one.
    Other,
}

impl ObjectOutline {
    /// Reads the next piece.
    pub fn read(&mut self, piece: &str) {
        piece.bytes().for_each(|byte| self.read_byte(byte));
    }

    /// True if only white space was read.
    pub fn is_blank(&self) -> bool {
        self.state == OutlineState::Blank
    }

    /// True if the text is an object with content whose last brace was read. An empty object does
    /// not count as whole: some servers send `{}` first, as a placeholder.
    pub fn is_whole(&self) -> bool {
        self.state == OutlineState::Whole && self.has_content
    }

    fn read_byte(&mut self, byte: u8) {
        let is_space = byte.is_ascii_whitespace();
        match self.state {
            OutlineState::Blank | OutlineState::Whole if is_space => {}
            OutlineState::Blank if byte == b'{' => {
                self.state = OutlineState::Inside;
                self.depth = 1;
            }
            OutlineState::Inside => self.read_inside(byte, is_space),
            OutlineState::Blank | OutlineState::Whole | OutlineState::Other => {
                self.state = OutlineState::Other
            }
        }
    }

    fn read_inside(&mut self, byte: u8, is_space: bool) {
        self.has_content |= !is_space && byte != b'}';
        if self.is_in_string {
            let is_escaped = std::mem::take(&mut self.is_after_backslash);
            match byte {
                _ if is_escaped => {}
                b'\\' => self.is_after_backslash = true,
                b'"' => self.is_in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.is_in_string = true,
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    self.state = OutlineState::Whole;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_whole_behind_its_last_brace_and_no_sooner() {
        let text = r#" {"a": "}\"\\", "b": [{"c": {}}, "\u007d"], "d": -1} "#;
        let whole_from = text.trim_end().len();
        for cut in 0..=text.len() {
            let mut outline = ObjectOutline::default();
            outline.read(&text[..cut]);
            assert_eq!(outline.is_whole(), cut >= whole_from, "{}", &text[..cut]);
            assert_eq!(outline.is_blank(), cut <= 1);
        }
    }

    #[test]
    fn what_may_go_on_or_is_no_object_is_never_whole() {
        for text in ["{}", " { } ", "1", "null", "[]", "\"{}\"", "{\"a\":1}{", "{}{\"a\":1}", "}"] {
            let mut outline = ObjectOutline::default();
            outline.read(text);
            assert!(!outline.is_whole(), "{text}");
        }
    }
}
