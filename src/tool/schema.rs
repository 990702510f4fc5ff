//! The compiled JSON Schema of a tool. Errors name the wrong field.
//!
//! With the feature `schema` the crate `jsonschema` does the work. Without it only `type` and
//! `required` are checked, at any depth. Each tool checks the rest itself when it takes its
//! arguments ([`crate::tool::Arguments`]).

use serde_json::Value;

use crate::tool::ArgumentError;

/// The regular expressions that a schema may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patterns {
    /// All of them, also those with look-around and back-references, which may take very long.
    Any,
    /// Those that take time linear in the text.
    Linear,
}

/// The schema of one tool.
pub(super) struct Schema {
    /// `None` if every value fits.
    #[cfg(feature = "tools")]
    validator: Option<jsonschema::Validator>,
    /// `None` if every value fits.
    #[cfg(not(feature = "tools"))]
    schema: Option<Value>,
}

impl Schema {
    /// A schema that every value fits.
    pub fn any() -> Schema {
        Schema {
            #[cfg(feature = "tools")]
            validator: None,
            #[cfg(not(feature = "tools"))]
            schema: None,
        }
    }

    /// # Errors
    /// The fault of the schema.
    #[cfg(feature = "tools")]
    pub fn compile(schema: &Value, patterns: Patterns) -> Result<Schema, String> {
        let options = jsonschema::options().with_draft(jsonschema::Draft::Draft202012);
        let built = match patterns {
            Patterns::Any => options.build(schema),
            Patterns::Linear => {
                options.with_pattern_options(jsonschema::PatternOptions::regex()).build(schema)
            }
        };
        let validator = built.map_err(|error| error.to_string())?;
        Ok(Schema { validator: Some(validator) })
    }

    /// # Errors
    /// Never fails.
    #[cfg(not(feature = "tools"))]
    pub fn compile(schema: &Value, _patterns: Patterns) -> Result<Schema, String> {
        Ok(Schema { schema: Some(schema.clone()) })
    }

    /// # Errors
    /// The first mismatch, with its field.
    #[cfg(feature = "tools")]
    pub fn check(&self, arguments: &Value) -> Result<(), ArgumentError> {
        let Some(validator) = &self.validator else { return Ok(()) };
        let Some(error) = validator.iter_errors(arguments).next() else { return Ok(()) };
        Err(in_words(&error))
    }

    /// # Errors
    /// The first mismatch, with its field.
    #[cfg(not(feature = "tools"))]
    pub fn check(&self, arguments: &Value) -> Result<(), ArgumentError> {
        self.schema.as_ref().map_or(Ok(()), |schema| plain::check(schema, arguments, ""))
    }
}

#[cfg(feature = "tools")]
fn in_words(error: &jsonschema::ValidationError<'_>) -> ArgumentError {
    use jsonschema::error::ValidationErrorKind;
    let path = error.instance_path().to_string();
    let field = path.trim_start_matches('/').replace('/', ".");
    let within = |name: &str| match field.is_empty() {
        true => name.to_owned(),
        false => format!("{field}.{name}"),
    };
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            ArgumentError::new(within(property.as_str().unwrap_or("?")), "is missing")
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            let name = unexpected.first().map_or("?", String::as_str);
            ArgumentError::new(within(name), "is unknown")
        }
        _ => {
            let field = if field.is_empty() { "arguments".to_owned() } else { field };
            ArgumentError::new(field, error.to_string())
        }
    }
}

/// The checks without the crate.
#[cfg(any(test, not(feature = "tools")))]
mod plain {
    use super::{ArgumentError, Value};

    /// Checks that `value`, at this path, has the declared type and its required members. The depth
    /// of the recursion is that of `value`, which the JSON parser bounds.
    pub fn check(schema: &Value, value: &Value, path: &str) -> Result<(), ArgumentError> {
        let within = |name: &str| match path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        };
        if let Some(names) = wrong_type(schema, value) {
            let field = if path.is_empty() { "arguments" } else { path };
            return Err(ArgumentError::new(field, format!("{value} is not of type {names}")));
        }
        match value {
            Value::Object(members) => {
                let required = schema["required"].as_array().into_iter().flatten();
                let mut required = required.filter_map(Value::as_str);
                if let Some(name) = required.find(|name| !members.contains_key(*name)) {
                    return Err(ArgumentError::new(within(name), "is missing"));
                }
                members.iter().try_for_each(|(name, member)| {
                    check(&schema["properties"][name], member, &within(name))
                })
            }
            Value::Array(items) => {
                let mut numbered = items.iter().enumerate();
                numbered.try_for_each(|(at, item)| {
                    check(&schema["items"], item, &within(&at.to_string()))
                })
            }
            _ => Ok(()),
        }
    }

    /// The declared types, if the value has none of them.
    fn wrong_type(schema: &Value, value: &Value) -> Option<String> {
        let names: Vec<&str> = match &schema["type"] {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => return None,
        };
        let fits = |name: &&str| match *name {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            "number" => value.is_number(),
            "integer" => {
                let is_whole = |number: f64| number.fract() == 0.0;
                value.is_i64() || value.is_u64() || value.as_f64().is_some_and(is_whole)
            }
            _ => true, // No such type exists: ignore it.
        };
        let quoted = || names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>();
        (!names.iter().any(fits)).then(|| quoted().join(", "))
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use serde_json::json;

        #[test]
        fn types_and_required_members_are_checked_at_any_depth() {
            let point = json!({
                "type": "object",
                "properties": {"x": {"type": ["integer", "null"]}},
                "required": ["x"],
            });
            let schema = json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "points": {"type": "array", "items": point},
                    "any": true,
                },
                "required": ["name"],
            });
            let wrong = |value: Value| {
                let error = check(&schema, &value, "").unwrap_err();
                (error.field, error.problem)
            };
            let name = "n";
            let right = json!({"name": name, "points": [{"x": 3.0}, {"x": null}], "any": [1]});
            assert_eq!(check(&schema, &right, ""), Ok(()));
            assert_eq!(wrong(json!({})), ("name".to_owned(), "is missing".to_owned()));
            let text = "3 is not of type \"string\"".to_owned();
            assert_eq!(wrong(json!({"name": 3})), ("name".to_owned(), text));
            assert_eq!(wrong(json!([name])).0, "arguments");
            assert_eq!(wrong(json!({"name": name, "points": {}})).0, "points");
            let half = json!({"name": name, "points": [{"x": 1}, {"x": 1.5}]});
            assert_eq!(wrong(half).0, "points.1.x");
            assert_eq!(wrong(json!({"name": name, "points": [{}]})).0, "points.0.x");
        }
    }
}
