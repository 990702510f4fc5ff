//! The values for the placeholders of a query.

use std::collections::BTreeMap;

use rusqlite::Statement;
use rusqlite::types::Value as SqlValue;
use serde_json::Value;

use crate::tool::ArgumentError;
use crate::tool::query_database::failure::Failure;
use crate::tool::query_database::guard::PARAMETERS_MAX;

const FIELD: &str = "parameters";

/// The argument `parameters`.
#[derive(Debug, PartialEq)]
pub(super) enum Parameters {
    /// Values for `?`, in order.
    Positional(Vec<SqlValue>),
    /// Values for `:name`, `@name` and `$name`.
    Named(BTreeMap<String, SqlValue>),
}

impl Parameters {
    /// # Errors
    /// If it is neither a list nor an object, too long, or not made of scalars.
    pub fn new(argument: Option<Value>) -> Result<Parameters, ArgumentError> {
        let (parameters, count) = match argument {
            None => (Parameters::Positional(Vec::new()), 0),
            Some(Value::Array(values)) => {
                let count = values.len();
                let values = values.into_iter().enumerate();
                let values = values.map(|(at, value)| sql_value(value, at));
                (Parameters::Positional(values.collect::<Result<_, _>>()?), count)
            }
            Some(Value::Object(fields)) => {
                let count = fields.len();
                let mut values = BTreeMap::new();
                for (name, value) in fields {
                    let value = sql_value(value, &name)?;
                    values.insert(name, value);
                }
                (Parameters::Named(values), count)
            }
            Some(_) => return Err(ArgumentError::new(FIELD, "must be a list or an object")),
        };
        if count > PARAMETERS_MAX {
            let problem = format!("must have at most {PARAMETERS_MAX} values");
            return Err(ArgumentError::new(FIELD, problem));
        }
        Ok(parameters)
    }

    /// Binds a value to every placeholder.
    ///
    /// # Errors
    /// If a placeholder has no value, or a value has no placeholder.
    pub fn bind(&self, statement: &mut Statement<'_>) -> Result<(), Failure> {
        match self {
            Parameters::Positional(values) => bind_positional(values, statement),
            Parameters::Named(values) => bind_named(values, statement),
        }
    }
}

fn bind_positional(values: &[SqlValue], statement: &mut Statement<'_>) -> Result<(), Failure> {
    let (expected, given) = (statement.parameter_count(), values.len());
    if expected != given {
        let text = format!("`{FIELD}`: the query takes {expected} values, but {given} were given");
        return Err(Failure::Refused(text));
    }
    for (at, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(at + 1, value)?;
    }
    Ok(())
}

fn bind_named(
    values: &BTreeMap<String, SqlValue>,
    statement: &mut Statement<'_>,
) -> Result<(), Failure> {
    let mut unused: BTreeMap<&str, &SqlValue> =
        values.iter().map(|(name, value)| (name.as_str(), value)).collect();
    for index in 1..=statement.parameter_count() {
        let placeholder = statement.parameter_name(index).map(str::to_owned);
        let Some(name) = placeholder.as_deref().and_then(|name| name.get(1..)) else {
            let text = format!("`{FIELD}`: must be a list, because the query has a `?`");
            return Err(Failure::Refused(text));
        };
        let Some(value) = values.get(name) else {
            return Err(Failure::Refused(format!("`{FIELD}.{name}`: is missing")));
        };
        statement.raw_bind_parameter(index, value)?;
        unused.remove(name);
    }
    match unused.first_key_value() {
        None => Ok(()),
        Some((name, _)) => {
            Err(Failure::Refused(format!("`{FIELD}.{name}`: the query has no such placeholder")))
        }
    }
}

fn sql_value(value: Value, at: impl std::fmt::Display) -> Result<SqlValue, ArgumentError> {
    let problem = match value {
        Value::Null => return Ok(SqlValue::Null),
        Value::Bool(truth) => return Ok(SqlValue::Integer(i64::from(truth))),
        Value::String(text) => return Ok(SqlValue::Text(text)),
        Value::Number(number) => match (number.as_i64(), number.is_u64(), number.as_f64()) {
            (Some(integer), ..) => return Ok(SqlValue::Integer(integer)),
            (None, false, Some(real)) => return Ok(SqlValue::Real(real)),
            _ => "must fit a signed integer of 64 bits",
        },
        Value::Array(_) | Value::Object(_) => "must be a number, a string, a boolean or null",
    };
    Err(ArgumentError::new(format!("{FIELD}.{at}"), problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;
    use serde_json::json;

    /// The values that the query's only row returns, or the error.
    fn bound(query: &str, parameters: Value) -> Result<Vec<SqlValue>, String> {
        let parameters = Parameters::new(Some(parameters)).map_err(|error| error.to_string())?;
        let connection = Connection::open_in_memory().unwrap();
        let mut statement = connection.prepare(query).unwrap();
        let in_words = |failure: Failure| failure.in_words("some.db".as_ref());
        parameters.bind(&mut statement).map_err(in_words)?;
        let column_count = statement.column_count();
        let mut rows = statement.raw_query();
        let row = rows.next().unwrap().unwrap();
        Ok((0..column_count).map(|index| row.get(index).unwrap()).collect())
    }

    #[test]
    fn a_list_is_for_question_marks_and_an_object_for_names() {
        let expected = vec![
            SqlValue::Integer(i64::MIN),
            SqlValue::Real(0.5),
            SqlValue::Text("ä\0".to_owned()),
            SqlValue::Integer(1),
            SqlValue::Null,
        ];
        let list = json!([i64::MIN, 0.5, "ä\0", true, null]);
        assert_eq!(bound("SELECT ?, ?, ?, ?, ?", list), Ok(expected.clone()));
        let object = json!({"e": null, "d": true, "c": "ä\0", "b": 0.5, "a": i64::MIN});
        assert_eq!(bound("SELECT :a, @b, $c, :d, :e WHERE :a < 0", object), Ok(expected));
    }

    #[test]
    fn each_mistake_is_named() {
        for (query, parameters, named) in [
            ("SELECT ?", json!([]), "takes 1 values, but 0 were given"),
            ("SELECT 1", json!([1]), "takes 0 values, but 1 were given"),
            ("SELECT :a", json!({}), "`parameters.a`: is missing"),
            ("SELECT :a", json!({"a": 1, "b": 2}), "`parameters.b`: the query has no such"),
            ("SELECT ?", json!({"a": 1}), "must be a list"),
            ("SELECT ?", json!([[1]]), "`parameters.0`: must be a number"),
            ("SELECT ?", json!([u64::MAX]), "`parameters.0`: must fit"),
            ("SELECT :a", json!({"a": {}}), "`parameters.a`: must be a number"),
            ("SELECT 1", json!("x"), "`parameters`: must be a list or an object"),
            ("SELECT 1", json!(vec![0; PARAMETERS_MAX + 1]), "must have at most"),
        ] {
            let error = bound(query, parameters).unwrap_err();
            assert!(error.contains(named), "{query}: {error}");
        }
    }
}
