//! The operations of `/openapi.json` as requests, with names of something or of nothing.

use serde_json::{Map, Value, json};
use streamdoor::base::{ExecutionId, ProgressToken};

use crate::test_server::Asking;

/// The names in paths, queries and bodies.
pub struct Names {
    pub execution: String,
    response: String,
    token: String,
    subscriber: String,
}

impl Names {
    /// Returns the names of an execution from the reply to its owner.
    pub fn of(created: &Value, subscriber: &str) -> Names {
        let text = |name: &str| created[name].as_str().unwrap().to_owned();
        Names {
            execution: text("execution"),
            response: format!("resp_{}", text("execution")),
            token: text("token"),
            subscriber: subscriber.to_owned(),
        }
    }

    /// Returns the names of an execution that never existed, but could have.
    pub fn never(&self) -> Names {
        let mut execution: ExecutionId = self.execution.parse().unwrap();
        execution.nonce ^= 1 << 40;
        let mut token: ProgressToken = self.token.parse().unwrap();
        token.secret ^= 1 << 40;
        let subscriber = self.subscriber.clone();
        let (execution, token) = (execution.to_string(), token.to_string());
        Names { response: format!("resp_{execution}"), execution, token, subscriber }
    }

    fn value(&self, name: &str) -> &str {
        match name {
            "execution" | "executions" | "task_id" => &self.execution,
            "response" => &self.response,
            "subscriber" => &self.subscriber,
            "token" => &self.token,
            "name" => "tool",
            "thread" => "thread",
            "assistant" => "agent",
            "stream" => "path/of/a/stream",
            "subscription" => "subscription",
            other => panic!("what is an example of {other}?"),
        }
    }
}

/// Returns the request of an operation with these names, and true if it refers to any of them.
fn asking(path: &str, method: &str, operation: &Value, names: &Names) -> (Asking, bool) {
    let mut parts = Vec::new();
    let mut is_about_something = false;
    for part in path.split('/') {
        match part.strip_prefix('{').and_then(|part| part.split_once('}')) {
            Some((name, end)) => {
                // Those belong to each principal separately.
                is_about_something |=
                    !matches!(name, "name" | "thread" | "assistant" | "stream" | "subscription");
                parts.push(format!("{}{end}", names.value(name)));
            }
            None => parts.push(part.to_owned()),
        }
    }
    let mut target = parts.join("/");
    let mut headers = Vec::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap();
        match parameter["in"].as_str() {
            _ if parameter["required"] != true => {}
            Some("header") => {
                let value = example(&parameter["schema"]);
                headers.push(format!("{name}: {}", value.as_str().expect("it is a text")));
            }
            _ => {
                is_about_something = true;
                target += &format!("?{name}={}", names.value(name));
            }
        }
    }
    let asking = Asking::new(&method.to_uppercase(), &target);
    let asking = headers.iter().fold(asking, |asking, line| asking.header(line));
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    match schema.is_null() {
        true => (asking, is_about_something),
        // The members of an MCP message depend on its method.
        false if path == "/mcp" => {
            let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
            (asking.body(&ping), is_about_something)
        }
        false => (asking.body(&example(schema)), is_about_something),
    }
}

/// Returns the smallest value that a schema allows.
fn example(schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some("object") => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let members: Map<String, Value> = required
                .iter()
                .map(|name| name.as_str().unwrap())
                .map(|name| (name.to_owned(), example(&schema["properties"][name])))
                .collect();
            members.into()
        }
        Some("string") => schema["enum"][0].as_str().unwrap_or("x").into(),
        Some("integer") => schema["minimum"].as_u64().unwrap_or(1).into(),
        Some("array") => json!([]),
        None => "x".into(), // Any value.
        other => panic!("what is an example of {other:?}?"),
    }
}

/// Returns the request of each operation with these names, without those that anybody may send.
pub fn operations(document: &Value, names: &Names) -> Vec<(Asking, bool)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let is_open = operation["security"] == json!([]);
            if method != "parameters" && !is_open {
                all.push(asking(path, method, operation, names));
            }
        }
    }
    assert!(all.len() >= 16, "{} operations", all.len());
    all
}
