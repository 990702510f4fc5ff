//! JSON objects from a server, read field by field. Each field is checked against its type, and
//! errors name the field.

use std::str::FromStr;

use serde_json::{Map, Value};

use super::error::{ClientError, printable};
use crate::api::{self, Document};

/// The fields of an object. Reading a field takes it out. Unknown fields are ignored, and `null`
/// counts as absent.
pub(super) struct Fields {
    /// The name of the object, for errors.
    of: &'static str,
    fields: Map<String, Value>,
}

impl Fields {
    /// Parses a JSON text.
    pub fn parse(of: &'static str, json: &[u8]) -> Result<Fields, ClientError> {
        match serde_json::from_slice(json) {
            Ok(value) => Fields::new(of, value),
            Err(error) => Err(ClientError::protocol(format!("{of} is not JSON: {error}"))),
        }
    }

    /// Takes the fields of a value, which must be an object.
    pub fn new(of: &'static str, value: Value) -> Result<Fields, ClientError> {
        match value {
            Value::Object(fields) => Ok(Fields { of, fields }),
            _ => Err(ClientError::protocol(format!("{of} is not a JSON object"))),
        }
    }

    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.swap_remove(name).filter(|value| !value.is_null())
    }

    /// The error of a field that is not what it must be.
    pub fn wrong(&self, name: &str, must: &str) -> ClientError {
        ClientError::protocol(format!("`{name}` of {} is not {must}", self.of))
    }

    fn present<T>(&self, name: &str, value: Option<T>) -> Result<T, ClientError> {
        let of = self.of;
        value.ok_or_else(|| ClientError::protocol(format!("`{name}` of {of} is missing")))
    }

    pub fn text_if(&mut self, name: &str) -> Result<Option<String>, ClientError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "a string")),
        }
    }

    pub fn text(&mut self, name: &str) -> Result<String, ClientError> {
        let text = self.text_if(name)?;
        self.present(name, text)
    }

    pub fn number_if(&mut self, name: &str) -> Result<Option<u64>, ClientError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(name, "a whole number of 64 bits")),
            },
        }
    }

    pub fn number(&mut self, name: &str) -> Result<u64, ClientError> {
        let number = self.number_if(name)?;
        self.present(name, number)
    }

    pub fn float_if(&mut self, name: &str) -> Result<Option<f64>, ClientError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|number| number.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(name, "a number")),
            },
        }
    }

    pub fn float(&mut self, name: &str) -> Result<f64, ClientError> {
        let number = self.float_if(name)?;
        self.present(name, number)
    }

    /// A field that is parsed from its text.
    pub fn parsed_if<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, ClientError> {
        self.named_if(name, |text| text.parse().ok())
    }

    /// The same for a required field.
    pub fn parsed<T: FromStr>(&mut self, name: &str) -> Result<T, ClientError> {
        let value = self.parsed_if(name)?;
        self.present(name, value)
    }

    /// A field whose text is the name of a value.
    pub fn named_if<T>(
        &mut self,
        name: &str,
        find: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ClientError> {
        let Some(text) = self.text_if(name)? else { return Ok(None) };
        match find(&text) {
            Some(value) => Ok(Some(value)),
            None => {
                let text = printable(&text);
                let of = self.of;
                Err(ClientError::protocol(format!("`{name}` of {of} cannot be \"{text}\"")))
            }
        }
    }

    /// The same for a required field.
    pub fn named<T>(
        &mut self,
        name: &str,
        find: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ClientError> {
        let value = self.named_if(name, find)?;
        self.present(name, value)
    }

    /// All fields as a document, with one that was taken out before.
    pub fn document<T: Document>(mut self, name: &str, value: String) -> Result<T, ClientError> {
        self.fields.insert(name.to_owned(), value.into());
        api::read(Value::Object(self.fields), self.of)
            .map_err(|fault| ClientError::protocol(printable(&fault.text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields {
        let json = br#"{"text": "a", "number": 300, "float": 1.5, "flag": true, "none": null,
                        "list": [{"at": 1}], "object": {"at": 1}, "minus": -1}"#;
        Fields::parse("a thing", json).unwrap()
    }

    #[test]
    fn fields_have_their_types() {
        let mut fields = fields();
        assert_eq!(fields.text("text").unwrap(), "a");
        assert_eq!(fields.number("number").unwrap(), 300);
        assert_eq!(fields.float("float").unwrap(), 1.5);
        assert_eq!(fields.text_if("none").unwrap(), None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        type Read = fn(&mut Fields) -> Option<ClientError>;
        let table: &[(Read, &str)] = &[
            (|f| f.text("none").err(), "`none` of a thing is missing"),
            (|f| f.text("number").err(), "`number` of a thing is not a string"),
            (|f| f.number("minus").err(), "`minus` of a thing is not a whole number of 64 bits"),
            (|f| f.number("float").err(), "`float` of a thing is not a whole number of 64 bits"),
            (|f| f.parsed::<u8>("text").err(), "`text` of a thing cannot be \"a\""),
        ];
        for (read, expected) in table {
            let error = read(&mut fields()).expect(expected).to_string();
            assert_eq!(error, format!("the server breaks the rules: {expected}"));
        }
        for json in [&b"[]"[..], b"", b"{", b"{\"a\":\"\xFF\"}", b"1e999999"] {
            assert!(Fields::parse("a thing", json).is_err());
        }
        let deep = "[".repeat(100_000);
        assert!(Fields::parse("a thing", deep.as_bytes()).is_err());
    }
}
