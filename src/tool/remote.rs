//! Tools that clients execute: their description here, and the contents of one call. The shard
//! finds a worker for a call, and publishes the output of that worker.

use std::time::Duration;

use serde_json::Value;

use crate::limits;
use crate::tool::{SpecError, ToolSpec};

/// A tool that clients execute.
#[derive(Clone, Debug, PartialEq)]
pub struct VirtualTool {
    /// The public description.
    pub spec: ToolSpec,
    /// The gathering of small parts of its results, if it is wanted.
    pub gather: Option<Gather>,
}

/// The gathering of small parts into larger chunks. Each part waits for more, up to a delay and a
/// number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// The longest wait of the first part.
    pub delay_max: Duration,
    /// Number of bytes that are sent without further waiting.
    pub bytes_max: u32,
}

/// A call for a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteCall {
    /// The checked arguments.
    pub arguments: Value,
    /// The gathering of small parts of its results, if it is wanted.
    pub gather: Option<Gather>,
}

impl VirtualTool {
    /// Checks that its schema validates arguments in time linear in their size. Tools of the
    /// program are trusted to do so. A tool that came over a connection is not.
    ///
    /// # Errors
    /// The part of the schema that takes too long, or never ends.
    pub fn check_cost(&self) -> Result<(), SpecError> {
        check_cost(&self.spec.arguments)
            .map_err(|problem| SpecError { tool: self.spec.name.clone(), problem })
    }
}

/// Checks that an untrusted schema validates values in time linear in their size.
pub(super) fn check_cost(schema: &Value) -> Result<(), String> {
    let mut left = limits::VIRTUAL_SCHEMA_PARTS_MAX;
    spread(schema, schema, &mut left, 0)
}

/// Counts the parts of a schema, with each reference replaced by its target. A schema that refers
/// to itself, directly or indirectly, never ends.
fn spread(root: &Value, part: &Value, left: &mut u32, depth: u32) -> Result<(), String> {
    let too_many = || {
        let most = limits::VIRTUAL_SCHEMA_PARTS_MAX;
        format!(
            "its schema has more than {most} parts, counted with each reference replaced by its \
             target"
        )
    };
    *left = left.checked_sub(1).ok_or_else(too_many)?;
    if depth > limits::JSON_DEPTH_MAX {
        return Err("its schema refers to itself, or is nested too deeply".to_owned());
    }
    match part {
        Value::Array(parts) => {
            parts.iter().try_for_each(|part| spread(root, part, left, depth + 1))
        }
        Value::Object(members) => {
            for word in ["$dynamicRef", "$recursiveRef", "$id", "$anchor", "$dynamicAnchor"] {
                if members.get(word).is_some_and(Value::is_string) {
                    return Err(format!("its schema has `{word}`, which is not supported"));
                }
            }
            if let Some(Value::String(reference)) = members.get("$ref") {
                let pointer = reference.strip_prefix('#');
                let target = pointer.and_then(|pointer| root.pointer(pointer));
                let missing =
                    || format!("its schema refers to {reference:?}, which it does not contain");
                spread(root, target.ok_or_else(missing)?, left, depth + 1)?;
            }
            members.values().try_for_each(|part| spread(root, part, left, depth + 1))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(schema: Value) -> Result<(), String> {
        let spec = ToolSpec { arguments: schema, ..ToolSpec::new("t", "Tests.") };
        VirtualTool { spec, gather: None }.check_cost().map_err(|error| error.problem)
    }

    #[test]
    fn schemas_that_end_are_taken() {
        let plain = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"type": "string"}}});
        assert_eq!(checked(plain), Ok(()));
        // As names of arguments these keywords have no special meaning.
        let names = json!({"type": "object", "properties": {"$ref": {"type": "string"},
            "$id": {"type": "integer"}}});
        assert_eq!(checked(names), Ok(()));
    }

    #[test]
    fn schemas_that_take_for_ever_are_refused() {
        for schema in [
            json!({"type": "object", "$ref": "#"}),
            json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"},
                "b": {"not": {"$ref": "#/$defs/a"}}}}),
            json!({"properties": {"a": {"$ref": "#"}}}),
            json!({"$dynamicRef": "#a"}),
            json!({"$id": "x", "type": "object"}),
            json!({"$ref": "https://example.org/schema"}),
            json!({"$ref": "#/nowhere"}),
        ] {
            assert!(checked(schema.clone()).is_err(), "{schema}");
        }
        // Each refers twice to the next: 2^40 parts.
        let mut definitions = serde_json::Map::new();
        for index in 0..40 {
            let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
            definitions.insert(format!("d{index}"), json!({"allOf": [next, next]}));
        }
        definitions.insert("d40".into(), json!({"type": "object"}));
        assert!(checked(json!({"$ref": "#/$defs/d0", "$defs": definitions})).is_err());
    }
}
