//! A tool's JSON Schema, compiled once, and what is wrong with arguments in words of one field.
//!
//! With the feature `schema` that is the crate `jsonschema`. Without it schemas are only texts, and
//! each tool checks its own arguments as it takes them ([`crate::tool::Arguments`]).

use serde_json::Value;

use crate::tool::ArgumentError;

/// Which regular expressions a schema may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patterns {
    /// All that there are, also those that look around or back, and may take very long.
    Any,
    /// Those whose time grows with the text and no faster.
    Linear,
}

/// The schema of one tool.
pub(super) struct Schema {
    /// `None`: anything fits.
    #[cfg(feature = "schema")]
    validator: Option<jsonschema::Validator>,
}

impl Schema {
    /// That everything fits.
    pub fn any() -> Schema {
        Schema {
            #[cfg(feature = "schema")]
            validator: None,
        }
    }

    /// # Errors
    /// What is wrong with the schema.
    #[cfg(feature = "schema")]
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
    /// None.
    #[cfg(not(feature = "schema"))]
    pub fn compile(_schema: &Value, _patterns: Patterns) -> Result<Schema, String> {
        Ok(Schema {})
    }

    /// # Errors
    /// The first thing that is wrong, with the field that it is about.
    #[cfg(feature = "schema")]
    pub fn check(&self, arguments: &Value) -> Result<(), ArgumentError> {
        let Some(validator) = &self.validator else { return Ok(()) };
        let Some(error) = validator.iter_errors(arguments).next() else { return Ok(()) };
        Err(in_words(&error))
    }

    /// # Errors
    /// None.
    #[cfg(not(feature = "schema"))]
    pub fn check(&self, _arguments: &Value) -> Result<(), ArgumentError> {
        Ok(())
    }
}

#[cfg(feature = "schema")]
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
