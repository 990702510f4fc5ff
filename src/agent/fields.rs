//! Reads JSON objects field by field. Each field has a name and a type, and an error names the
//! field.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

/// The error for a line that is not a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartError(String);

impl fmt::Display for PartError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for PartError {}

/// The fields of an object. A field that is read is taken out of it. Other fields are ignored, and
/// `null` counts as absent.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub fn parse(json: &[u8]) -> Result<Fields, PartError> {
        match serde_json::from_slice(json) {
            Ok(Value::Object(fields)) => Ok(Fields(fields)),
            Ok(_) => Err(PartError("a part must be a JSON object".to_owned())),
            Err(error) => Err(PartError(format!("a part is not JSON: {error}"))),
        }
    }

    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.swap_remove(name).filter(|value| !value.is_null())
    }

    pub fn wrong(name: &str, must: &str) -> PartError {
        PartError(format!("`{name}` of a part must be {must}"))
    }

    fn present<T>(name: &str, value: Option<T>) -> Result<T, PartError> {
        value.ok_or_else(|| PartError(format!("`{name}` of a part is missing")))
    }

    pub fn text_if(&mut self, name: &str) -> Result<Option<String>, PartError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Fields::wrong(name, "a string")),
        }
    }

    pub fn text(&mut self, name: &str) -> Result<String, PartError> {
        Fields::present(name, self.text_if(name)?)
    }

    pub fn number_if(&mut self, name: &str) -> Result<Option<u64>, PartError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(Fields::wrong(name, "a whole number of 64 bits")),
            },
        }
    }

    pub fn number(&mut self, name: &str) -> Result<u64, PartError> {
        Fields::present(name, self.number_if(name)?)
    }

    pub fn small(&mut self, name: &str) -> Result<u32, PartError> {
        let number = self.number(name)?;
        u32::try_from(number).map_err(|_| Fields::wrong(name, "a whole number of 32 bits"))
    }

    pub fn float_if(&mut self, name: &str) -> Result<Option<f64>, PartError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|number| number.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(Fields::wrong(name, "a number")),
            },
        }
    }

    pub fn float(&mut self, name: &str) -> Result<f64, PartError> {
        Fields::present(name, self.float_if(name)?)
    }

    /// Takes a flag; an absent one is false.
    pub fn flag(&mut self, name: &str) -> Result<bool, PartError> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(is_set)) => Ok(is_set),
            Some(_) => Err(Fields::wrong(name, "true or false")),
        }
    }

    pub fn parsed_if<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, PartError> {
        let Some(text) = self.text_if(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Fields::wrong(name, "a valid value"))
    }

    pub fn parsed<T: FromStr>(&mut self, name: &str) -> Result<T, PartError> {
        Fields::present(name, self.parsed_if(name)?)
    }

    /// Takes a text that names one of several values.
    pub fn named<T>(
        &mut self,
        name: &str,
        find: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, PartError> {
        find(&self.text(name)?).ok_or_else(|| Fields::wrong(name, "a known value"))
    }

    pub fn object_if(&mut self, name: &str) -> Result<Option<Fields>, PartError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Fields(fields))),
            Some(_) => Err(Fields::wrong(name, "an object")),
        }
    }

    pub fn object(&mut self, name: &str) -> Result<Fields, PartError> {
        Fields::present(name, self.object_if(name)?)
    }

    pub fn list<T>(
        &mut self,
        name: &str,
        read: impl Fn(Value) -> Result<T, PartError>,
    ) -> Result<Vec<T>, PartError> {
        match self.take(name) {
            Some(Value::Array(items)) => items.into_iter().map(read).collect(),
            Some(_) => Err(Fields::wrong(name, "a list")),
            None => Fields::present(name, None),
        }
    }

    pub fn of_item(name: &str, item: Value) -> Result<Fields, PartError> {
        match item {
            Value::Object(fields) => Ok(Fields(fields)),
            _ => Err(Fields::wrong(name, "a list of objects")),
        }
    }
}
