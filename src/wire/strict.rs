//! JSON texts of strangers, read so that no two programs could read them in two ways.
//!
//! Refused is what is no JSON, an object that has one name twice, and, because it is of no use to
//! anybody, what is nested deeper than [`limits::JSON_DEPTH_MAX`].

use std::fmt;

use serde_json::Value;

use crate::limits;

/// Why a text was not read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// It is no JSON: how so.
    NotJson(serde_json::Error),
    /// It is nested too deep.
    TooDeep,
    /// One of its objects has one name twice.
    NameTwice,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::NotJson(error) => write!(out, "is not JSON: {error}"),
            Unreadable::TooDeep => {
                write!(out, "is nested deeper than {}", limits::JSON_DEPTH_MAX)
            }
            Unreadable::NameTwice => out.write_str("has an object with one name twice"),
        }
    }
}

/// Reads a text.
///
/// # Errors
/// [`Unreadable`].
pub(crate) fn read(text: &[u8]) -> Result<Value, Unreadable> {
    let outline = Outline::of(text);
    if outline.depth > limits::JSON_DEPTH_MAX {
        return Err(Unreadable::TooDeep);
    }
    let value: Value = serde_json::from_slice(text).map_err(Unreadable::NotJson)?;
    // Of members with one name the parser keeps one.
    match count_members(&value) == outline.colon_count {
        true => Ok(value),
        false => Err(Unreadable::NameTwice),
    }
}

/// What can be said of a JSON text without reading it; of what is no JSON it says something.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outline {
    depth: u32,
    /// Outside of strings: one for each member of each object.
    colon_count: usize,
}

impl Outline {
    fn of(text: &[u8]) -> Outline {
        let mut outline = Outline::default();
        let (mut depth, mut in_string, mut is_escaped) = (0u32, false, false);
        for byte in text {
            if in_string {
                in_string = is_escaped || *byte != b'"';
                is_escaped = !is_escaped && *byte == b'\\';
                continue;
            }
            match byte {
                b'"' => in_string = true,
                b':' => outline.colon_count += 1,
                b'{' | b'[' => {
                    depth += 1;
                    outline.depth = outline.depth.max(depth);
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        outline
    }
}

fn count_members(value: &Value) -> usize {
    match value {
        Value::Object(members) => {
            members.len() + members.values().map(count_members).sum::<usize>()
        }
        Value::Array(values) => values.iter().map(count_members).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_one_name_twice_is_refused_wherever_it_is() {
        let good = [
            r#"{}"#,
            r#"{"a":1,"b":{"a":1},"c":[{"a":1},{"a":1}]}"#,
            r#"{"a:":":","\"":":\"","\\":"\\"}"#,
            r#"[":",":\\",{"a":":"}]"#,
            r#"":""#,
        ];
        for text in good {
            assert!(read(text.as_bytes()).is_ok(), "{text}");
        }
        let bad = [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"x":[{"a":{},"b":1,"a":{}}]}"#,
            r#"{"":1,"":2}"#,
        ];
        for text in bad {
            assert!(matches!(read(text.as_bytes()), Err(Unreadable::NameTwice)), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_or_too_deep_is_refused() {
        let depth_max = limits::JSON_DEPTH_MAX as usize;
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(nested(depth_max).as_bytes()).is_ok());
        let too_deep = read(nested(depth_max + 1).as_bytes());
        assert!(matches!(too_deep, Err(Unreadable::TooDeep)));
        assert!(read(format!("\"{}\"", "[".repeat(depth_max + 1)).as_bytes()).is_ok());
        for bad in [&b""[..], b"{", b"{} {}", b"{\"a\"}", b"\"\xff\"", b"nul", b"1e999", b"{'a':1}"]
        {
            let unread = read(bad);
            let text = String::from_utf8_lossy(bad);
            assert!(matches!(unread, Err(Unreadable::NotJson(_))), "{text}");
        }
        assert!(matches!(read("[".repeat(1 << 20).as_bytes()), Err(Unreadable::TooDeep)));
    }
}
