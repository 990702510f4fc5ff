//! Completion of argument values from a tool's schema, for prompts and for clients that complete
//! while the user types.
//!
//! The values come from `enum`, `const`, `examples`, `default` or the type `boolean`. They are
//! found in the argument's own schema, behind a `$ref` into the same schema, and in `anyOf`,
//! `oneOf` and `allOf`. They are also found in the branch of `if`/`then`/`else` and
//! `dependentSchemas` that the other arguments choose. For an array the items are completed, for an
//! object the names of its properties.

use serde_json::{Map, Value};

use crate::limits;

/// The matching values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// At most `limits::COMPLETION_VALUES_MAX` values.
    pub values: Vec<String>,
    /// Number of all matching values.
    pub total: usize,
}

/// The deepest chain of references and nested schemas that is followed.
const DEPTH_MAX: usize = 16;

/// Completes `argument` (nested ones with dots) with values that begin with `prefix`, given the
/// other arguments. An empty `argument` completes the names of the arguments.
pub(super) fn complete(
    schema: &Value,
    argument: &str,
    prefix: &str,
    others: &Map<String, Value>,
) -> Completion {
    let mut found = Vec::new();
    let walk = Walk { root: schema, others };
    match argument {
        "" => walk.names(schema, &mut found, 0),
        _ => {
            let path: Vec<&str> = argument.split('.').collect();
            walk.down(schema, &path, &mut found, 0);
        }
    }
    let mut values = Vec::new();
    for value in found {
        let text = match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        if text.starts_with(prefix) && !values.contains(&text) {
            values.push(text);
        }
    }
    let total = values.len();
    values.truncate(limits::COMPLETION_VALUES_MAX);
    Completion { values, total }
}

struct Walk<'a> {
    root: &'a Value,
    others: &'a Map<String, Value>,
}

impl<'a> Walk<'a> {
    /// Collects `schema` and the schemas that it refers to, for the other arguments.
    fn parts(&self, schema: &'a Value, into: &mut Vec<&'a Value>, depth: usize) {
        if depth > DEPTH_MAX {
            return;
        }
        into.push(schema);
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str)
            && let Some(target) = pointer.strip_prefix('#').and_then(|p| self.root.pointer(p))
        {
            self.parts(target, into, depth + 1);
        }
        for word in ["allOf", "anyOf", "oneOf"] {
            let branches = schema.get(word).and_then(Value::as_array);
            branches.into_iter().flatten().for_each(|each| self.parts(each, into, depth + 1));
        }
        if let Some(condition) = schema.get("if") {
            let branch = if self.holds(condition) { "then" } else { "else" };
            schema.get(branch).into_iter().for_each(|each| self.parts(each, into, depth + 1));
        }
        let dependent = schema.get("dependentSchemas").and_then(Value::as_object);
        for (name, each) in dependent.into_iter().flatten() {
            if self.others.contains_key(name) {
                self.parts(each, into, depth + 1);
            }
        }
    }

    /// True if the other arguments have the constants that a condition requires.
    fn holds(&self, condition: &Value) -> bool {
        let properties = condition.get("properties").and_then(Value::as_object);
        properties.into_iter().flatten().all(|(name, each)| {
            let Some(value) = self.others.get(name) else { return false };
            let is_const = each.get("const").is_none_or(|wanted| wanted == value);
            let allowed = each.get("enum").and_then(Value::as_array);
            is_const && allowed.is_none_or(|allowed| allowed.contains(value))
        })
    }

    /// Follows `path` through the properties of schemas.
    fn down(&self, schema: &'a Value, path: &[&str], found: &mut Vec<Value>, depth: usize) {
        let Some((name, rest)) = path.split_first() else {
            self.values(schema, found, depth);
            return;
        };
        let mut parts = Vec::new();
        self.parts(schema, &mut parts, depth);
        for part in parts {
            if let Some(property) = part.get("properties").and_then(|all| all.get(name)) {
                self.down(property, rest, found, depth + 1);
            }
        }
    }

    /// Collects the values that a schema lists.
    fn values(&self, schema: &'a Value, found: &mut Vec<Value>, depth: usize) {
        let mut parts = Vec::new();
        self.parts(schema, &mut parts, depth);
        for part in parts {
            let list = |word: &str| part.get(word).and_then(Value::as_array).into_iter().flatten();
            found.extend(list("enum").cloned());
            found.extend(part.get("const").cloned());
            if part.get("type").and_then(Value::as_str) == Some("boolean") {
                found.extend([Value::Bool(true), Value::Bool(false)]);
            }
            found.extend(list("examples").cloned());
            found.extend(part.get("default").cloned());
            if let Some(items) = part.get("items")
                && depth < DEPTH_MAX
            {
                self.values(items, found, depth + 1);
            }
            if part.get("properties").is_some() {
                self.names(part, found, depth + 1);
            }
        }
    }

    /// Collects the names of its properties that are not given yet, required ones first.
    fn names(&self, schema: &'a Value, found: &mut Vec<Value>, depth: usize) {
        let mut parts = Vec::new();
        self.parts(schema, &mut parts, depth);
        let known = |part: &'a Value| part.get("properties").and_then(Value::as_object);
        for is_required_round in [true, false] {
            for part in &parts {
                let required = part.get("required").and_then(Value::as_array);
                let is_required =
                    |name: &String| required.is_some_and(|all| all.iter().any(|each| each == name));
                let names = known(part).into_iter().flat_map(Map::keys);
                let fitting = names.filter(|name| is_required(name) == is_required_round);
                let missing = fitting.filter(|name| !self.others.contains_key(*name));
                found.extend(missing.map(|name| Value::String(name.clone())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values(schema: &Value, argument: &str, prefix: &str, others: Value) -> Vec<String> {
        let Value::Object(others) = others else { panic!("arguments are an object") };
        complete(schema, argument, prefix, &others).values
    }

    #[test]
    fn the_names_of_arguments_are_completed_required_ones_first() {
        let schema = json!({
            "type": "object",
            "properties": {"glob": {}, "root": {}, "pattern": {}},
            "required": ["root", "pattern"],
        });
        assert_eq!(values(&schema, "", "", json!({})), ["root", "pattern", "glob"]);
        assert_eq!(values(&schema, "", "", json!({"root": "."})), ["pattern", "glob"]);
        assert_eq!(values(&schema, "", "g", json!({})), ["glob"]);
    }

    #[test]
    fn enums_constants_booleans_examples_and_defaults_are_values() {
        let schema = json!({"properties": {
            "color": {"enum": ["red", "green", "blue", "grey"]},
            "level": {"type": "integer", "examples": [1, 2], "default": 3},
            "loud": {"type": "boolean"},
            "unit": {"const": "ms"},
            "many": {"type": "array", "items": {"enum": ["a", "b"]}},
        }});
        assert_eq!(values(&schema, "color", "gre", json!({})), ["green", "grey"]);
        assert_eq!(values(&schema, "level", "", json!({})), ["1", "2", "3"]);
        assert_eq!(values(&schema, "loud", "t", json!({})), ["true"]);
        assert_eq!(values(&schema, "unit", "", json!({})), ["ms"]);
        assert_eq!(values(&schema, "many", "", json!({})), ["a", "b"]);
        assert!(values(&schema, "absent", "", json!({})).is_empty());
    }

    #[test]
    fn references_are_followed_and_circles_end() {
        let schema = json!({
            "$defs": {
                "size": {"enum": ["small", "large"]},
                "circle": {"anyOf": [{"$ref": "#/$defs/circle"}, {"const": "out"}]},
            },
            "properties": {
                "box": {"properties": {"size": {"$ref": "#/$defs/size"}}},
                "round": {"$ref": "#/$defs/circle"},
                "nowhere": {"$ref": "#/$defs/missing"},
            },
        });
        assert_eq!(values(&schema, "box.size", "", json!({})), ["small", "large"]);
        assert_eq!(values(&schema, "box", "", json!({})), ["size"]);
        assert_eq!(values(&schema, "round", "", json!({})), ["out"]);
        assert!(values(&schema, "nowhere", "", json!({})).is_empty());
    }

    #[test]
    fn other_arguments_choose_the_branch() {
        let schema = json!({
            "properties": {"mode": {"enum": ["file", "url"]}},
            "if": {"properties": {"mode": {"const": "file"}}},
            "then": {"properties": {"format": {"enum": ["csv", "tsv"]}}},
            "else": {"properties": {"format": {"enum": ["html"]}}},
            "dependentSchemas": {"zip": {"properties": {"level": {"enum": [1, 9]}}}},
        });
        assert_eq!(values(&schema, "format", "", json!({"mode": "file"})), ["csv", "tsv"]);
        assert_eq!(values(&schema, "format", "", json!({"mode": "url"})), ["html"]);
        assert_eq!(values(&schema, "level", "", json!({"zip": true})), ["1", "9"]);
        assert!(values(&schema, "level", "", json!({})).is_empty());
    }

    #[test]
    fn long_lists_are_cut_and_counted() {
        let many: Vec<String> = (0..250).map(|number| format!("v{number}")).collect();
        let schema = json!({"properties": {"value": {"enum": many}}});
        let completion = complete(&schema, "value", "v", &Map::new());
        assert_eq!(completion.values.len(), limits::COMPLETION_VALUES_MAX);
        assert_eq!(completion.total, 250);
    }
}
