//! TOML read as a JSON value, for descriptions in files.

use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue};

use crate::limits::JSON_DEPTH_MAX;

/// Reads a whole file.
///
/// # Errors
/// The fault in the text, after the number of its line.
pub fn parse(text: &str) -> Result<Value, String> {
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start).min(text.len());
        let lines_before = text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count();
        format!("line {}: {}", lines_before + 1, error.message())
    })?;
    to_json(&DeValue::Table(table.into_inner()))
}

/// Converts one value.
///
/// # Errors
/// If JSON has no such value, or if it is nested too deep.
pub fn to_json(value: &DeValue<'_>) -> Result<Value, String> {
    at_depth(value, 0)
}

fn at_depth(value: &DeValue<'_>, depth: u32) -> Result<Value, String> {
    if depth > JSON_DEPTH_MAX {
        return Err(format!("is nested deeper than {JSON_DEPTH_MAX}"));
    }
    Ok(match value {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Boolean(value) => Value::from(*value),
        DeValue::Integer(number) => {
            let whole = i64::from_str_radix(number.as_str(), number.radix());
            whole.map_err(|_| "has a number that is too large")?.into()
        }
        DeValue::Float(number) => {
            let number: Result<f64, _> = number.as_str().parse();
            let finite = number.ok().filter(|number| number.is_finite());
            finite.ok_or("has a number that JSON cannot represent")?.into()
        }
        DeValue::Datetime(_) => return Err("has a date, which JSON cannot represent".to_owned()),
        DeValue::Array(values) => {
            let values = values.iter().map(|value| at_depth(value.get_ref(), depth + 1));
            values.collect::<Result<Vec<Value>, String>>()?.into()
        }
        DeValue::Table(entries) => {
            // The members are in the order of the text, which the table itself has lost.
            let mut entries: Vec<_> = entries.iter().collect();
            entries.sort_by_key(|(key, _)| key.span().start);
            let mut members = Map::new();
            for (key, value) in entries {
                let name: &str = key.get_ref();
                members.insert(name.to_owned(), at_depth(value.get_ref(), depth + 1)?);
            }
            members.into()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_file_is_the_value_that_it_spells_in_its_order() {
        let text = "z = 1\na = { y = [1.5, 'x', true], b = 0x10 }\n[[t]]\nq = 1\n[[t]]\n";
        let value = parse(text).unwrap();
        let expected = json!({"z": 1, "a": {"y": [1.5, "x", true], "b": 16}, "t": [{"q": 1}, {}]});
        assert_eq!(value.to_string(), expected.to_string());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = parse("a = 1\nb = \n").unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
        for (text, problem) in [
            ("a = 2020-01-01", "a date"),
            ("a = nan", "JSON cannot represent"),
            ("a = 99999999999999999999", "too large"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
