//! Looking into JSON that may be anything: what is not there, or something else, is empty.

use std::borrow::Cow;

use serde_json::Value;

use crate::agent::model::ModelFault;

/// A text; empty if it is none.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// The items of an array; none if it is none.
pub(super) fn each(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A whole number that is not negative, also one that somebody spelled as text or as a fraction.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            let number =
                number.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0)?;
            Some(number as u64)
        }),
        Value::String(digits) => digits.parse().ok(),
        _ => None,
    }
}

/// The place of something among `limit` of its kind, from 0; none is beyond the last.
///
/// # Errors
/// [`ModelFault::TooLong`].
pub(super) fn place(
    value: &Value,
    what: &'static str,
    limit: usize,
) -> Result<Option<u64>, ModelFault> {
    match number(value) {
        Some(place) if place >= limit as u64 => Err(ModelFault::TooLong { what, limit }),
        place => Ok(place),
    }
}

/// A text of JSON, or the JSON itself where it should be a text; nothing for `null`.
pub(super) fn whole(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        Value::Null => Cow::Borrowed(""),
        other => Cow::Owned(other.to_string()),
    }
}
