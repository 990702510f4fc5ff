//! Bodies of requests: JSON objects with known members, each read by its field.
//!
//! JSON that two programs could read in two ways is refused: `wire/strict.rs`.

use serde_json::{Map, Value};

use crate::endpoint::ApiError;
use crate::endpoint::fields::{Field, Shape};
use crate::limits;
use crate::wire::http1::{QueryError, QueryFault, Status};
use crate::wire::json::whole_number;
use crate::wire::strict::{self, Unreadable};

/// Reads a body.
///
/// # Errors
/// The body is not JSON, is nested too deeply, or has a name twice in one object.
pub(super) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    strict::read(body).map_err(|unreadable| {
        let text = format!("the body {unreadable}");
        let error = ApiError::new(Status::BAD_REQUEST, "malformed_json", text);
        match unreadable {
            Unreadable::TooDeep => error.limit(limits::JSON_DEPTH_MAX.into()),
            Unreadable::NotJson(_) | Unreadable::NameTwice => error,
        }
    })
}

/// An object that has only known members.
#[derive(Debug)]
pub(super) struct Members<'v> {
    members: &'v Map<String, Value>,
    fields: &'static [Field],
    /// The name of this object in the body; empty for the whole body.
    path: &'static str,
}

impl<'v> Members<'v> {
    /// Reads a whole body.
    ///
    /// # Errors
    /// The body is not an object, has an unknown member, or lacks a required one.
    pub fn of(body: &'v Value, fields: &'static [Field]) -> Result<Members<'v>, ApiError> {
        match body {
            Value::Object(members) => Members::checked(members, fields, ""),
            _ => {
                let text = "the body must be a JSON object";
                Err(ApiError::new(Status::BAD_REQUEST, "invalid_body", text))
            }
        }
    }

    fn checked(
        members: &'v Map<String, Value>,
        fields: &'static [Field],
        path: &'static str,
    ) -> Result<Members<'v>, ApiError> {
        let object = Members { members, fields, path };
        let is_known = |name: &str| fields.iter().any(|field| field.name == name);
        if let Some(unknown) = members.keys().find(|name| !is_known(name)) {
            return Err(object.fault(unknown, QueryFault::Unknown));
        }
        match fields.iter().find(|field| field.is_required && !members.contains_key(field.name)) {
            Some(missing) => {
                let field = object.full_name(missing.name);
                let text = format!("{field}: it is missing");
                let error = ApiError::new(Status::BAD_REQUEST, "missing_field", text);
                Err(error.field(field))
            }
            None => Ok(object),
        }
    }

    /// Returns the member of this name as it is.
    pub fn get(&self, name: &str) -> Option<&'v Value> {
        self.members.get(name)
    }

    /// Returns a whole number within the bounds of its field.
    pub fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let (min, max) = self.field(name).shape.number().expect("the field has this shape");
        match whole_number(value).filter(|number| (min..=max).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.fault(name, QueryFault::NotANumber(min, max))),
        }
    }

    /// Returns a number, whole or not.
    pub fn real(&self, name: &str) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(self.error(name, "it must be a number")),
        }
    }

    /// Returns a boolean; false if it is absent.
    pub fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.error(name, "it must be true or false")),
        }
    }

    /// Returns a text within the bounds of its field.
    pub fn text(&self, name: &str) -> Result<Option<&'v str>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Shape::Text { bytes_max } = self.field(name).shape else {
            unreachable!("the field has this shape");
        };
        let is_right = |text: &&str| (1..=bytes_max).contains(&(text.len() as u64));
        match value.as_str().filter(is_right) {
            Some(text) => Ok(Some(text)),
            None => {
                let problem = format!("it must be a text of 1 to {bytes_max} bytes");
                Err(self.error(name, &problem).limit(bytes_max))
            }
        }
    }

    /// Returns one of the choices of its field.
    pub fn choice(&self, name: &str) -> Result<Option<&'static str>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let shape = &self.field(name).shape;
        let choices = shape.choices().expect("the field has this shape");
        if let Some(choice) = choices.iter().find(|choice| value.as_str() == Some(**choice)) {
            return Ok(Some(choice));
        }
        let Some(members) = shape.members() else {
            return Err(self.fault(name, QueryFault::NotAChoice(choices)));
        };
        let members: Vec<&str> = members.iter().map(|field| field.name).collect();
        let (choices, members) = (choices.join(", "), members.join(", "));
        let problem = format!("it must be one of {choices}, or an object with {members}");
        Err(self.error(name, &problem))
    }

    /// Returns an object with the members of its field; `None` if it is absent or not an object.
    pub fn members(&self, name: &'static str) -> Result<Option<Members<'v>>, ApiError> {
        let Some(Value::Object(members)) = self.get(name) else { return Ok(None) };
        let fields = self.field(name).shape.members().expect("the field has this shape");
        Members::checked(members, fields, name).map(Some)
    }

    /// Returns the error for a member that is invalid.
    pub fn error(&self, name: &str, problem: &str) -> ApiError {
        let field = self.full_name(name);
        let text = format!("{field}: {problem}");
        ApiError::new(Status::BAD_REQUEST, "invalid_field", text).field(field)
    }

    /// Returns the error for a member with the same text that a parameter gets.
    fn fault(&self, name: &str, fault: QueryFault) -> ApiError {
        let code = if fault == QueryFault::Unknown { "unknown_field" } else { "invalid_field" };
        ApiError { code, ..QueryError { field: self.full_name(name), fault }.into() }
    }

    fn full_name(&self, name: &str) -> String {
        match self.path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        }
    }

    fn field(&self, name: &str) -> &'static Field {
        let mut fields = self.fields.iter();
        fields.find(|field| field.name == name).expect("the field is declared")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_told_with_its_reason_and_its_limit() {
        let depth_max = limits::JSON_DEPTH_MAX as usize;
        let deep = format!("{}{}", "[".repeat(depth_max + 1), "]".repeat(depth_max + 1));
        let table = [
            (deep.as_str(), Some(limits::JSON_DEPTH_MAX.into()), "deeper than 64"),
            ("{", None, "is not JSON"),
            (r#"{"a":1,"a":2}"#, None, "a repeated name"),
        ];
        for (body, limit, words) in table {
            let error = parse(body.as_bytes()).unwrap_err();
            assert_eq!((error.code, error.limit), ("malformed_json", limit), "{body}");
            assert!(error.message.contains(words), "{error}");
        }
        assert!(parse(br#"{"a":{"a":1}}"#).is_ok());
    }
}
