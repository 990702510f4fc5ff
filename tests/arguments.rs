//! Every bad argument of every tool is refused with the name of its field, before anything runs.
//!
//! The bad values are derived from each tool's own schema, so new tools and arguments are covered
//! automatically. A second test lists bad values that no schema can express.

use serde_json::{Map, Value, json};
use streamdoor::tool::{StartError, ToolSpec, Tools};

/// Returns all tools of the enabled features, and their expected number.
fn tools() -> (Tools, usize) {
    #[cfg_attr(not(feature = "tools"), expect(unused_mut, reason = "there are no commands"))]
    let mut tools = Tools::built_in();
    #[cfg(feature = "tools")]
    tools.allow_commands(streamdoor::tool::CommandPolicy::Any);
    let of_tools = if cfg!(feature = "tools") { 3 } else { 0 };
    (tools, 2 + of_tools + usize::from(cfg!(feature = "sqlite")))
}

/// Returns valid arguments: a value for each one that the tool requires.
fn right(spec: &ToolSpec) -> Map<String, Value> {
    let required = spec.arguments["required"].as_array().cloned().unwrap_or_default();
    let names = required.iter().map(|name| name.as_str().unwrap().to_owned());
    names.map(|name| (name.clone(), some_value(&spec.arguments["properties"][&name]))).collect()
}

/// Returns any value that fits the schema.
fn some_value(schema: &Value) -> Value {
    let is = |kind: &str| match &schema["type"] {
        Value::String(text) => text == kind,
        Value::Array(all) => all.iter().any(|each| each == kind),
        _ => false,
    };
    match () {
        () if is("integer") => schema.get("minimum").cloned().unwrap_or(json!(1)),
        () if is("number") => schema.get("maximum").cloned().unwrap_or(json!(1.0)),
        () if is("string") => json!("."),
        () if is("array") => json!([some_value(&schema["items"])]),
        () if is("object") => json!({}),
        () if is("boolean") => json!(true),
        () => panic!("a property without a type: {schema}"),
    }
}

/// Returns values that do not fit the schema, each with its fault.
fn wrong_values(schema: &Value) -> Vec<(&'static str, Value)> {
    let mut wrong = vec![("another type", json!({"no": ["such", "thing"]}))];
    if schema["type"] == "object" {
        wrong = vec![("another type", json!("no such thing"))];
    }
    if schema["type"] != "boolean" {
        wrong.push(("a boolean", json!(true)));
    }
    if let Some(minimum) = schema["minimum"].as_f64() {
        wrong.push(("too small", json!(minimum - 1.0)));
    }
    if let Some(maximum) = schema["maximum"].as_f64() {
        wrong.push(("too large", json!(maximum * 2.0)));
    }
    if schema["type"] == "integer" {
        wrong.push(("half a number", json!(1.5)));
        wrong.push(("a number as text", json!("1")));
    }
    if schema["minLength"].as_u64() == Some(1) {
        wrong.push(("empty", json!("")));
    }
    if let Some(length_max) = schema["maxLength"].as_u64() {
        wrong.push(("too long", json!("x".repeat(length_max as usize + 1))));
    }
    if schema["minItems"].as_u64() == Some(1) {
        wrong.push(("no items", json!([])));
    }
    wrong
}

fn refused_field(tools: &Tools, tool: &str, arguments: &Value) -> String {
    match tools.prepare(tool, arguments) {
        Err(StartError::Argument(error)) => {
            assert!(!error.problem.is_empty());
            error.field
        }
        Err(other) => panic!("{tool} {arguments}: {other}"),
        Ok(_) => panic!("{tool} took {arguments}"),
    }
}

#[test]
fn each_argument_of_each_tool_is_refused_by_name() {
    let (tools, tool_count) = tools();
    let mut count = 0;
    for spec in tools.specs() {
        let tool = spec.name.as_str();
        let right = right(spec);
        tools.prepare(tool, &Value::Object(right.clone())).unwrap_or_else(|error| {
            panic!("{tool} refuses {right:?}, which should be right: {error}");
        });
        let Value::Object(properties) = &spec.arguments["properties"] else {
            panic!("{tool} describes no arguments");
        };
        for (name, schema) in properties {
            assert!(schema["description"].is_string(), "{tool}.{name} is not described");
            for (what, value) in wrong_values(schema) {
                let mut arguments = right.clone();
                arguments.insert(name.clone(), value.clone());
                let field = refused_field(&tools, tool, &Value::Object(arguments));
                let is_named = field == *name || field.starts_with(&format!("{name}."));
                assert!(is_named, "{tool}.{name} is {what} ({value}), and `{field}` was named");
                count += 1;
            }
        }
        for name in right.keys() {
            let mut arguments = right.clone();
            arguments.remove(name);
            assert_eq!(refused_field(&tools, tool, &Value::Object(arguments)), *name);
            count += 1;
        }
        let mut arguments = right.clone();
        arguments.insert("no_such_argument".to_owned(), json!(1));
        assert_eq!(
            refused_field(&tools, tool, &Value::Object(arguments)),
            "no_such_argument",
            "{tool}"
        );
        for not_an_object in [json!([]), json!("text"), json!(7), json!(true)] {
            assert_eq!(refused_field(&tools, tool, &not_an_object), "arguments", "{tool}");
        }
        count += 5;
    }
    assert_eq!(tools.specs().count(), tool_count);
    assert!(count > 16 * tool_count, "{count} bad arguments were tried");
}

#[test]
fn what_no_schema_can_say_is_refused_by_name_too() {
    let (tools, _) = tools();
    let field = |tool: &str, arguments: Value| refused_field(&tools, tool, &arguments);
    assert_eq!(field("process_file", json!({"file_path": "a\u{0}b"})), "file_path");
    if cfg!(feature = "tools") {
        let search = |arguments| field("search_files", arguments);
        assert_eq!(search(json!({"root": ".", "pattern": "("})), "pattern");
        assert_eq!(search(json!({"root": ".", "pattern": "x", "glob": "a[b"})), "glob");
        assert_eq!(search(json!({"root": "a\u{0}b", "pattern": "x"})), "root");
        let run = |arguments| field("run_command", arguments);
        assert_eq!(run(json!({"argv": ["a\u{0}b"]})), "argv.0");
        assert_eq!(run(json!({"argv": [""]})), "argv.0");
        assert_eq!(run(json!({"argv": ["true"], "env": {"A=B": "c"}})), "env.A=B");
    }
    if cfg!(feature = "sqlite") {
        let arguments = json!({"path": "a\u{0}b", "query": "select 1"});
        assert_eq!(field("query_database", arguments), "path");
    }
}

#[test]
fn a_tool_that_nobody_allowed_is_not_there() {
    let error = Tools::built_in().prepare("run_command", &json!({"argv": ["true"]})).unwrap_err();
    assert!(matches!(error, StartError::UnknownTool { .. }), "{error}");
}
