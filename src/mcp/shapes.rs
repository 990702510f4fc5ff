//! For tests: checks that a document has the shape that the schema of its version requires.
//!
//! The shapes of a server's messages in both newest versions are in `shapes/*.txt`, one a line. A
//! line lists members with their types, and `!` marks the required ones. Members that are not
//! listed may be anything, as in the schemas.

use serde_json::Value;

use super::{Era, Version};

/// Panics if `document` does not have this shape in the era of `version`.
pub fn check(version: Version, shape: &str, document: &Value) {
    let shapes = Shapes::of(version);
    if let Err(problem) = shapes.check(shape, document, shape) {
        panic!("{}: {problem}\n{document:#}", version.text());
    }
}

/// Checks bytes in the same way. They have to be one line of JSON, which is returned.
pub fn check_bytes(version: Version, shape: &str, bytes: &[u8]) -> Value {
    let text = std::str::from_utf8(bytes).expect("the message is UTF-8");
    assert!(!text.contains(|c: char| c.is_control() || "\u{2028}\u{2029}".contains(c)), "{text}");
    let document = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    check(version, shape, &document);
    document
}

struct Shapes {
    text: &'static str,
}

impl Shapes {
    fn of(version: Version) -> Shapes {
        let text = match version.era() {
            Era::Handshake => include_str!("shapes/2025-11-25.txt"),
            Era::Stateless => include_str!("shapes/2026-07-28.txt"),
        };
        Shapes { text }
    }

    fn definition(&self, name: &str) -> &'static str {
        let mut lines = self.text.lines().filter_map(|line| line.split_once(' '));
        lines
            .find(|(shape, _)| *shape == name)
            .unwrap_or_else(|| panic!("the shape {name} is missing"))
            .1
    }

    fn check(&self, of_type: &str, value: &Value, place: &str) -> Result<(), String> {
        let choices = split(of_type, '|');
        if choices.len() > 1 {
            let mut problems = Vec::new();
            for choice in choices {
                match self.check(choice, value, place) {
                    Ok(()) => return Ok(()),
                    Err(problem) => problems.push(problem),
                }
            }
            return Err(problems.join("\n or "));
        }
        let is_right = match of_type {
            "any" => true,
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "object" => value.is_object(),
            "null" => value.is_null(),
            _ => return self.check_compound(of_type, value, place),
        };
        is_right.then_some(()).ok_or_else(|| format!("{place} is not {of_type}"))
    }

    fn check_compound(&self, of_type: &str, value: &Value, place: &str) -> Result<(), String> {
        let inside = || &of_type[1..of_type.len() - 1];
        let wrong = || format!("{place} is not {of_type}");
        match of_type.as_bytes()[0] {
            b'\'' => (value == inside()).then_some(()).ok_or_else(wrong),
            b'#' => {
                let number: i64 = of_type[1..].parse().expect("a type with # has a number");
                (value.as_i64() == Some(number)).then_some(()).ok_or_else(wrong)
            }
            b'[' => {
                let items = value.as_array().ok_or_else(wrong)?.iter().enumerate();
                let mut items = items.map(|(at, item)| (format!("{place}[{at}]"), item));
                items.try_for_each(|(place, item)| self.check(inside(), item, &place))
            }
            b'{' => {
                let members = value.as_object().ok_or_else(wrong)?.iter();
                let mut members = members.map(|(name, value)| (format!("{place}.{name}"), value));
                members.try_for_each(|(place, value)| self.check(inside(), value, &place))
            }
            _ => self.check_named(self.definition(of_type), value, place),
        }
    }

    fn check_named(&self, definition: &str, value: &Value, place: &str) -> Result<(), String> {
        if let Some(choices) = definition.strip_prefix("= ") {
            return self.check(choices, value, place);
        }
        let members = value.as_object().ok_or_else(|| format!("{place} is not an object"))?;
        let fields = definition.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        for field in split(fields.expect("a definition is in braces").trim(), ',') {
            let (name, of_type) =
                field.trim().split_once(": ").expect("a member has a name and a type");
            let (name, is_required) = match name.strip_suffix('!') {
                Some(name) => (name, true),
                None => (name, false),
            };
            match members.get(name) {
                Some(value) => self.check(of_type, value, &format!("{place}.{name}"))?,
                None if is_required => return Err(format!("{place}.{name} is missing")),
                None => {}
            }
        }
        Ok(())
    }
}

/// Splits `text` at `at`, but not inside brackets.
fn split(text: &str, at: char) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (place, c) in text.char_indices() {
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            c if c == at && depth == 0 => {
                parts.push(&text[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_has_another_shape_is_found() {
        let shapes = Shapes::of(Version::LATEST);
        let good = json!({"content": [{"type": "text", "text": ""}], "resultType": "complete"});
        assert_eq!(shapes.check("CallToolResult", &good, "it"), Ok(()));
        for (path, value, problem) in [
            ("/content", json!({}), "it.content is not ["),
            ("/content/0/text", json!(1), "it.content[0].text is not string"),
            ("/content/0/type", json!("image"), "it.content[0].data is missing"),
            ("/resultType", json!(null), "it.resultType is not string"),
        ] {
            let mut bad = good.clone();
            *bad.pointer_mut(path).unwrap() = value;
            let found = shapes.check("CallToolResult", &bad, "it").unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }
}
