//! The arguments of a tool, taken one by one, and the errors about them.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::wire::json::whole_number;

/// An argument is missing, unknown, of another type or out of bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentError {
    /// The name of the argument.
    pub field: String,
    /// The fault.
    pub problem: String,
}

impl ArgumentError {
    /// Returns an error about `field`.
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

/// The arguments of a tool, taken one by one. An argument that is not taken is an error.
///
/// A schema check before makes most of these errors impossible. They exist because nothing is
/// checked without the feature `schema`, and because a schema can be wrong.
pub struct Arguments {
    fields: Map<String, Value>,
}

impl Arguments {
    /// Takes the members of a JSON object. `null` stands for an empty one.
    ///
    /// # Errors
    /// If `arguments` is neither an object nor `null`.
    pub fn new(arguments: &Value) -> Result<Arguments, ArgumentError> {
        match arguments {
            Value::Null => Ok(Arguments { fields: Map::new() }),
            Value::Object(fields) => Ok(Arguments { fields: fields.clone() }),
            _ => Err(ArgumentError::new("arguments", "must be an object")),
        }
    }

    /// Takes a whole number within `bounds`. Returns `default` if it is absent.
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
        match whole_number(&value) {
            Some(number) if bounds.contains(&number) => Ok(number),
            _ => {
                let (low, high) = (bounds.start(), bounds.end());
                let problem = format!("must be a whole number from {low} to {high}, not {value}");
                Err(ArgumentError::new(field, problem))
            }
        }
    }

    /// Takes a required string.
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

    /// Takes a required string that is used where a NUL would end it.
    ///
    /// # Errors
    /// Like [`Arguments::text`], and if it has a NUL.
    pub fn whole_text(&mut self, field: &str) -> Result<String, ArgumentError> {
        without_nul(field, self.text(field)?)
    }

    /// Takes a required path.
    ///
    /// # Errors
    /// Like [`Arguments::whole_text`]: no path can have a NUL.
    pub fn path(&mut self, field: &str) -> Result<PathBuf, ArgumentError> {
        self.whole_text(field).map(PathBuf::from)
    }

    /// Takes an optional path.
    ///
    /// # Errors
    /// If it is empty, not a string, or has a NUL.
    pub fn optional_path(&mut self, field: &str) -> Result<Option<PathBuf>, ArgumentError> {
        let text = self.optional_text(field)?.map(|text| without_nul(field, text)).transpose()?;
        Ok(text.map(PathBuf::from))
    }

    /// Takes an optional boolean. Returns false if it is absent.
    ///
    /// # Errors
    /// If it is not a boolean.
    pub fn flag(&mut self, field: &str) -> Result<bool, ArgumentError> {
        match self.fields.remove(field) {
            None => Ok(false),
            Some(Value::Bool(is_set)) => Ok(is_set),
            Some(other) => {
                Err(ArgumentError::new(field, format!("must be true or false, not {other}")))
            }
        }
    }

    /// Takes an optional string.
    ///
    /// # Errors
    /// If it is empty, or not a string.
    pub fn optional_text(&mut self, field: &str) -> Result<Option<String>, ArgumentError> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(self.fields.remove(field).and(None)),
            Some(_) => self.text(field).map(Some),
        }
    }

    /// Takes an optional value of any type.
    pub fn value(&mut self, field: &str) -> Option<Value> {
        self.fields.remove(field)
    }

    /// Checks that all arguments were taken.
    ///
    /// # Errors
    /// If a field is left: it is unknown.
    pub fn finish(self) -> Result<(), ArgumentError> {
        match self.fields.into_iter().next() {
            Some((field, _)) => Err(ArgumentError::new(field, "is unknown")),
            None => Ok(()),
        }
    }
}

/// Refuses a string with a NUL, where the text after the NUL would be ignored.
pub(super) fn without_nul(field: &str, text: String) -> Result<String, ArgumentError> {
    match text.contains('\0') {
        true => Err(ArgumentError::new(field, "must not contain a NUL character")),
        false => Ok(text),
    }
}
