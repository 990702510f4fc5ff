//! The result of another server's call, rebuilt from the chunks that it became: see
//! [`ToolSpec::is_relayed`](crate::tool::ToolSpec::is_relayed).

use serde_json::Value;

use super::call::text_block;
use crate::stream::Kind;

/// Content blocks in their order, and structured content.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Relayed {
    bytes: Vec<u8>,
    /// The complete units, each with its end in `bytes`.
    units: Vec<(Form, usize)>,
    /// The form of the unit that is not complete, if one is open.
    open: Option<Form>,
}

/// The form of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Block,
    Structured,
}

impl Form {
    pub fn of(kind: Kind) -> Form {
        match kind {
            Kind::Content => Form::Block,
            Kind::Structured => Form::Structured,
            _ => Form::Text,
        }
    }
}

impl Relayed {
    pub fn push(&mut self, form: Form, has_more: bool, bytes: &[u8]) {
        if self.open.is_some_and(|open| open != form) {
            self.close(); // A chunk of another form does not continue it.
        }
        self.bytes.extend_from_slice(bytes);
        self.open = Some(form);
        if !has_more {
            self.close();
        }
    }

    fn close(&mut self) {
        self.units.extend(self.open.take().map(|form| (form, self.bytes.len())));
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn units(&self) -> impl Iterator<Item = (Form, &[u8])> {
        let open = self.open.map(|form| (form, self.bytes.len()));
        let mut start = 0;
        self.units.iter().copied().chain(open).map(move |(form, end)| {
            let unit = &self.bytes[start..end];
            start = end;
            (form, unit)
        })
    }

    /// The content of the result. `block` makes a content block of its JSON.
    pub fn content(&self, block: impl Fn(&[u8]) -> Value) -> Vec<Value> {
        let one = |(form, bytes): (Form, &[u8])| match form {
            Form::Text => Some(text_block(&String::from_utf8_lossy(bytes))),
            Form::Block => Some(block(bytes)),
            Form::Structured => None,
        };
        self.units().filter_map(one).collect()
    }

    /// The structured content of the result: the last one, if it is valid JSON.
    pub fn structured(&self) -> Option<Value> {
        let all = self.units().filter(|(form, _)| *form == Form::Structured);
        all.last().and_then(|(_, bytes)| serde_json::from_slice(bytes).ok())
    }

    /// The first unit, if it is text.
    pub fn first_text(&self) -> &[u8] {
        match self.units().next() {
            Some((Form::Text, text)) => text,
            _ => &[],
        }
    }

    /// Returns texts as they are, and all other units as lines of JSON.
    pub fn to_lines(&self) -> Vec<u8> {
        let mut lines = Vec::with_capacity(self.bytes.len() + self.units.len());
        for (form, bytes) in self.units() {
            lines.extend_from_slice(bytes);
            if form != Form::Text {
                lines.push(b'\n');
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn made(pieces: &[(Form, bool, &str)]) -> Relayed {
        let mut relayed = Relayed::default();
        for (form, has_more, text) in pieces {
            relayed.push(*form, *has_more, text.as_bytes());
        }
        relayed
    }

    fn content(relayed: &Relayed) -> Vec<Value> {
        relayed.content(|bytes| serde_json::from_slice(bytes).unwrap())
    }

    #[test]
    fn each_unit_is_a_block_of_its_own() {
        let relayed = made(&[
            (Form::Text, true, "a"),
            (Form::Text, false, "b"),
            (Form::Text, false, "c"),
            (Form::Block, true, "{\"type\""),
            (Form::Block, false, ": \"x\"}"),
            (Form::Text, false, ""),
            (Form::Structured, false, "{\"y\": 1}"),
        ]);
        let expected = [text_block("ab"), text_block("c"), json!({"type": "x"}), text_block("")];
        assert_eq!(content(&relayed), expected);
        assert_eq!(relayed.structured(), Some(json!({"y": 1})));
        assert_eq!(relayed.first_text(), b"ab");
        let lines = String::from_utf8(relayed.to_lines()).unwrap();
        assert_eq!(lines, "abc{\"type\": \"x\"}\n{\"y\": 1}\n");
    }

    #[test]
    fn a_text_that_was_left_open_ends_where_something_else_begins() {
        let relayed = made(&[(Form::Text, true, "a"), (Form::Block, false, "{}")]);
        assert_eq!(content(&relayed), [text_block("a"), json!({})]);
        assert_eq!(content(&made(&[(Form::Text, true, "a")])), [text_block("a")]);
        assert_eq!(relayed.structured(), None);
        assert_eq!(made(&[(Form::Block, false, "{}")]).first_text(), b"");
    }
}
