//! Access to JSON of unknown shape: a value that is missing or of another type counts as empty.

use std::borrow::Cow;

use serde_json::Value;

use crate::agent::model::ModelFault;

/// Returns a text; empty if the value is no text.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// Returns the items of an array; none if the value is no array.
pub(super) fn each(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns a whole number that is not negative, even if it is written as text or as a fraction.
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

/// Returns the index of an item, from 0; `None` if the value is no number.
///
/// # Errors
/// [`ModelFault::TooLong`] if the index is not below `limit`.
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

/// Returns a text, or the JSON of a value that should be a text; empty for `null`.
pub(super) fn whole(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        Value::Null => Cow::Borrowed(""),
        other => Cow::Owned(other.to_string()),
    }
}
