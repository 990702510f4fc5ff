//! A writer of JSON objects, field by field.

use serde_json::Value;

use super::json;

/// An object that is being written. The names of its fields are ours, and need no escapes.
pub(crate) struct Object<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

/// Appends an object with the fields that `fill` writes.
pub(crate) fn write_object(out: &mut Vec<u8>, fill: impl FnOnce(&mut Object<'_>)) {
    out.push(b'{');
    let mut object = Object { out, is_empty: true };
    fill(&mut object);
    out.push(b'}');
}

impl Object<'_> {
    /// Begins a field. The caller appends its value to the returned buffer.
    pub fn name(&mut self, name: &str) -> &mut Vec<u8> {
        if !self.is_empty {
            self.out.push(b',');
        }
        self.is_empty = false;
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    pub fn text(&mut self, name: &str, text: &str) {
        json::write_string(self.name(name), text);
    }

    /// Appends a text in several pieces.
    pub fn texts(&mut self, name: &str, pieces: &[&str]) {
        let out = self.name(name);
        out.push(b'"');
        for piece in pieces {
            json::write_characters(out, piece);
        }
        out.push(b'"');
    }

    pub fn text_if(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    pub fn number(&mut self, name: &str, number: u64) {
        json::write_u64(self.name(name), number);
    }

    pub fn number_if(&mut self, name: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.number(name, number);
        }
    }

    pub fn float(&mut self, name: &str, number: f64) {
        json::write_f64(self.name(name), number);
    }

    pub fn float_if(&mut self, name: &str, number: Option<f64>) {
        if let Some(number) = number {
            self.float(name, number);
        }
    }

    pub fn flag(&mut self, name: &str, is_set: bool) {
        let text: &[u8] = if is_set { b"true" } else { b"false" };
        self.name(name).extend_from_slice(text);
    }

    /// Appends a flag only if it is set.
    pub fn flag_if(&mut self, name: &str, is_set: bool) {
        if is_set {
            self.flag(name, true);
        }
    }

    pub fn value(&mut self, name: &str, value: &Value) {
        json::write_value(self.name(name), value);
    }

    pub fn object(&mut self, name: &str, fill: impl FnOnce(&mut Object<'_>)) {
        write_object(self.name(name), fill);
    }

    pub fn list<T>(&mut self, name: &str, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
        let out = self.name(name);
        out.push(b'[');
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            write(out, item);
        }
        out.push(b']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_commas_between_them_and_what_is_absent_is_left_out() {
        let mut out = Vec::new();
        write_object(&mut out, |object| {
            object.text_if("absent", None);
            object.texts("text", &["a\"", "b"]);
            object.flag_if("unset", false);
            object.flag("flag", false);
            object.number_if("number", Some(7));
            object.object("inner", |_| {});
            object.list("list", &[1, 2], |out, number| json::write_u64(out, *number));
        });
        let expected = r#"{"text":"a\"b","flag":false,"number":7,"inner":{},"list":[1,2]}"#;
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
