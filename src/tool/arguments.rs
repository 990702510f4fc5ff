//! A tool's arguments, taken one by one, and what is wrong with one of them.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_json::{Map, Value};

/// An argument is missing, unknown, of another type or out of bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentError {
    /// Which.
    pub field: String,
    /// What about it.
    pub problem: String,
}

impl ArgumentError {
    /// `field` has a problem.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> ArgumentError {
        ArgumentError { field: field.into(), problem: problem.into() }
    }
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "argument `{}`: {}", self.field, self.problem)
    }
}

impl std::error::Error for ArgumentError {}

/// A tool's arguments, taken one by one; what nobody takes is an error.
///
/// A schema that was checked before makes most of these errors impossible. They are there all the
/// same: without the feature `schema` nothing was checked, and a schema can be wrong.
pub struct Arguments {
    fields: Map<String, Value>,
}

impl Arguments {
    /// From a JSON object; `null` is the empty one.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn new(arguments: &Value) -> Result<Arguments, ArgumentError> {
        match arguments {
            Value::Null => Ok(Arguments { fields: Map::new() }),
            Value::Object(fields) => Ok(Arguments { fields: fields.clone() }),
            _ => Err(ArgumentError::new("arguments", "must be an object")),
        }
    }

    /// A whole number within `bounds`, or `default` if there is none.
    ///
    /// # Errors
    /// If it is not a whole number, or out of bounds.
    pub fn number(
        &mut self,
        field: &str,
        default: u64,
        bounds: RangeInclusive<u64>,
    ) -> Result<u64, ArgumentError> {
        let Some(value) = self.fields.remove(field) else { return Ok(default) };
        match value.as_u64() {
            Some(number) if bounds.contains(&number) => Ok(number),
            _ => {
                let (low, high) = (bounds.start(), bounds.end());
                let problem = format!("must be a whole number from {low} to {high}, not {value}");
                Err(ArgumentError::new(field, problem))
            }
        }
    }

    /// A string that must be there.
    ///
    /// # Errors
    /// If it is missing, empty, or not a string.
    pub fn text(&mut self, field: &str) -> Result<String, ArgumentError> {
        match self.fields.remove(field) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text),
            Some(Value::String(_)) => Err(ArgumentError::new(field, "must not be empty")),
            Some(other) => Err(ArgumentError::new(field, format!("must be a string, not {other}"))),
            None => Err(ArgumentError::new(field, "is missing")),
        }
    }

    /// A string that must be there, and goes to where a NUL would end it.
    ///
    /// # Errors
    /// As [`Arguments::text`]; and if it has a NUL.
    pub fn whole_text(&mut self, field: &str) -> Result<String, ArgumentError> {
        without_nul(field, self.text(field)?)
    }

    /// A path that must be there.
    ///
    /// # Errors
    /// As [`Arguments::whole_text`]: no path can have a NUL.
    pub fn path(&mut self, field: &str) -> Result<PathBuf, ArgumentError> {
        self.whole_text(field).map(PathBuf::from)
    }

    /// A path, if it is there.
    ///
    /// # Errors
    /// If it is empty, not a string, or has a NUL.
    pub fn optional_path(&mut self, field: &str) -> Result<Option<PathBuf>, ArgumentError> {
        let text = self.optional_text(field)?.map(|text| without_nul(field, text)).transpose()?;
        Ok(text.map(PathBuf::from))
    }

    /// Yes or no; no, if it is not there.
    ///
    /// # Errors
    /// If it is neither.
    pub fn flag(&mut self, field: &str) -> Result<bool, ArgumentError> {
        match self.fields.remove(field) {
            None => Ok(false),
            Some(Value::Bool(is_set)) => Ok(is_set),
            Some(other) => {
                Err(ArgumentError::new(field, format!("must be true or false, not {other}")))
            }
        }
    }

    /// A string, if it is there.
    ///
    /// # Errors
    /// If it is empty, or not a string.
    pub fn optional_text(&mut self, field: &str) -> Result<Option<String>, ArgumentError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(self.fields.remove(field).and(None)),
            Some(_) => self.text(field).map(Some),
        }
    }

    /// Any value, if it is there: for what is neither a number nor a string.
    pub fn value(&mut self, field: &str) -> Option<Value> {
        self.fields.remove(field)
    }

    /// Ends the taking.
    ///
    /// # Errors
    /// If a field was not taken: it is unknown.
    pub fn finish(self) -> Result<(), ArgumentError> {
        match self.fields.into_iter().next() {
            Some((field, _)) => Err(ArgumentError::new(field, "is unknown")),
            None => Ok(()),
        }
    }
}

/// A string that goes to where a NUL would end it: what stands behind that would not be seen.
pub(super) fn without_nul(field: &str, text: String) -> Result<String, ArgumentError> {
    match text.contains('\0') {
        true => Err(ArgumentError::new(field, "must not contain a NUL character")),
        false => Ok(text),
    }
}
