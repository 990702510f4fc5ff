//! Arguments of a tool from the command line: `--arg key=value` and `--args-json`.

use lexopt::ValueExt;
use serde_json::{Map, Value};

use super::CliError;
use super::hints::unknown_name;

/// The values of `--arg` and `--args-json`.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    pairs: Vec<(String, String)>,
    fields: Map<String, Value>,
}

impl Arguments {
    /// Takes the value of the option `--name`. Returns false if it is neither of the two.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        match name {
            "arg" => self.pairs.push(pair(&parser.value()?.string()?)?),
            "args-json" => self.fields.extend(object(&parser.value()?.string()?)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the arguments for the tool whose `schema` describes them.
    ///
    /// # Errors
    /// If the schema excludes the name of an argument. The text begins with the nearest name.
    pub fn merged(self, schema: &Value) -> Result<Value, CliError> {
        let names = self.pairs.iter().map(|(name, _)| name).chain(self.fields.keys());
        for name in names {
            check_name(name, schema).map_err(CliError::Call)?;
        }
        Ok(merged(self.fields, self.pairs, schema))
    }
}

/// Checks the name of an argument if the schema lists the only names.
fn check_name(name: &str, schema: &Value) -> Result<(), String> {
    let known: Vec<&str> = match &schema["properties"] {
        Value::Object(properties) => properties.keys().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let has_other_names =
        schema["additionalProperties"] != false || !schema["patternProperties"].is_null();
    if has_other_names || known.contains(&name) {
        return Ok(());
    }
    let problem = format!("argument `{name}` is unknown");
    Err(match known.is_empty() {
        true => format!("{problem}; the tool has no arguments"),
        false => unknown_name(&problem, name, &known, "arguments are"),
    })
}

/// Splits `key=value`.
fn pair(text: &str) -> Result<(String, String), CliError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(CliError::Usage(format!("--arg {text}: must be KEY=VALUE"))),
    }
}

/// Parses a JSON object.
fn object(text: &str) -> Result<Map<String, Value>, CliError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(CliError::Usage("--args-json: must be a JSON object".to_owned())),
        Err(error) => Err(CliError::Usage(format!("--args-json: {error}"))),
    }
}

/// Returns `fields` with `pairs` inserted over them. If a key occurs twice, the last pair wins.
fn merged(mut fields: Map<String, Value>, pairs: Vec<(String, String)>, schema: &Value) -> Value {
    for (key, text) in pairs {
        let value = value(&schema["properties"][&key], text);
        fields.insert(key, value);
    }
    Value::Object(fields)
}

/// Returns the value of one pair. It is a string if the schema allows one, and otherwise the JSON
/// in `text`. Text that is not JSON stays a string, so that the schema check reports the field.
fn value(schema: &Value, text: String) -> Value {
    let may_be_text = match &schema["type"] {
        Value::String(name) => name == "string",
        Value::Array(names) => names.iter().any(|name| name == "string"),
        _ => false,
    };
    if may_be_text {
        return Value::String(text);
    }
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_has_the_type_that_the_schema_asks_for() {
        let schema = json!({"type": "object", "properties": {
            "text": {"type": "string"},
            "maybe": {"type": ["null", "string"]},
            "count": {"type": "integer"},
            "argv": {"type": "array"},
            "flag": {"type": "boolean"},
        }});
        let cases = [
            ("text=123", json!({"text": "123"})),
            ("text=", json!({"text": ""})),
            ("text=a=b", json!({"text": "a=b"})),
            ("maybe=null", json!({"maybe": "null"})),
            ("count=123", json!({"count": 123})),
            ("count=many", json!({"count": "many"})),
            ("argv=[\"ls\",\"-l\"]", json!({"argv": ["ls", "-l"]})),
            ("flag=true", json!({"flag": true})),
            ("unknown=[1]", json!({"unknown": [1]})),
            ("unknown=[1", json!({"unknown": "[1"})),
        ];
        for (text, expected) in cases {
            let pairs = vec![pair(text).unwrap()];
            assert_eq!(merged(Map::new(), pairs, &schema), expected, "{text}");
        }
        let fields = object(r#"{"count": 1, "text": "a"}"#).unwrap();
        let pairs = ["count=2", "count=3"].map(|text| pair(text).unwrap());
        let expected = json!({"count": 3, "text": "a"});
        assert_eq!(merged(fields, pairs.into(), &schema), expected);
    }

    #[test]
    fn an_unknown_name_is_told_unless_the_schema_allows_others() {
        let properties = json!({"chunks": {}, "delay_ms": {}});
        let closed = json!({"properties": properties, "additionalProperties": false});
        let open = json!({"properties": properties});
        let patterned = json!({"additionalProperties": false, "patternProperties": {"^c": {}}});
        let empty = json!({"additionalProperties": false});
        for (name, schema, expected) in [
            ("chunks", &closed, None),
            ("chunk", &open, None),
            ("chunk", &patterned, None),
            (
                "chunk",
                &closed,
                Some(
                    "argument `chunk` is unknown; did you mean chunks? The arguments are: \
                     chunks, delay_ms",
                ),
            ),
            ("x", &closed, Some("argument `x` is unknown; the arguments are: chunks, delay_ms")),
            ("x", &empty, Some("argument `x` is unknown; the tool has no arguments")),
        ] {
            let pairs = || Arguments {
                pairs: vec![pair(&format!("{name}=1")).unwrap()],
                ..Default::default()
            };
            let fields = || Arguments {
                fields: object(&format!("{{\"{name}\": 1}}")).unwrap(),
                ..Default::default()
            };
            for arguments in [pairs(), fields()] {
                let error = arguments.merged(schema).err().map(|error| error.to_string());
                assert_eq!(error.as_deref(), expected, "{name}");
            }
        }
    }

    #[test]
    fn what_is_no_pair_and_no_object_is_refused() {
        for text in ["", "key", "=value"] {
            assert!(pair(text).is_err(), "{text}");
        }
        for text in ["", "[]", "1", "{", "{\"a\":1} x"] {
            assert!(object(text).is_err(), "{text}");
        }
    }
}
