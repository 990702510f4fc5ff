//! Every field of every request with values out of its bounds. The requests are generated from the
//! tables by which requests are read, so no field is forgotten.

use serde_json::{Value, json};

use super::call_tests::id;
use super::exchange::{answered, post, with};
use super::fields::{Field, Shape};
use super::routes::{ROUTES, Route};
use super::{door, execute, workers};

/// Sends some bad values for each field of the query of each route.
#[test]
fn every_parameter_has_its_bounds() {
    let mut checked = 0;
    for route in ROUTES {
        for field in route.query.iter().copied().flatten() {
            for value in bad_values(&field.shape) {
                let target = filled(route, field.name, &value);
                let request = match &route.body {
                    Some(_) => post(&target, r#"{"tool":"t"}"#),
                    None => with(route.method.name(), &target, ""),
                };
                let version = "\r\nA2A-Version: 1.0\r\n";
                let response = answered(&request.replacen("\r\n", version, 1));
                let (code, named, _) = response.error();
                let got = (response.status, code.as_str(), named.as_deref());
                assert_eq!(got, (400, "invalid_parameter", Some(field.name)), "{request}");
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "{checked}");
}

/// Returns the target of a route with one parameter set, and with the others that it needs.
fn filled(route: &Route, name: &str, value: &str) -> String {
    let path = route.path.replace("{execution}", &id(1).to_string());
    let needed = match route.path {
        "/v1/events" if name != "executions" => format!("executions={}&", id(1)),
        "/v1/executions" if route.body.is_some() && name != "format" => "format=sse&".to_owned(),
        _ => String::new(),
    };
    format!("{path}?{needed}{name}={value}")
}

fn bad_values(shape: &Shape) -> Vec<String> {
    let texts = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    match shape {
        Shape::Number { min, max } => {
            let mut values: Vec<String> = texts(&["", "x", "-1", "1.0", "%2B1", "0x1", "null"]);
            values.extend(min.checked_sub(1).map(|low| low.to_string()));
            values.push((u128::from(*max) + 1).to_string());
            values
        }
        Shape::Choice(choices) => {
            let mut values: Vec<String> = texts(&["", "x"]);
            values.push(choices[0].to_uppercase());
            values
        }
        Shape::Kinds => texts(&["", ",", "x", "STDOUT", "output,x"]),
        // Without a name it is as if it were absent, as one client spells that.
        Shape::StreamModes => texts(&["x", "Values", "values,x"]),
        Shape::Executions => texts(&["x", "x,y"]),
        Shape::ToolName => texts(&["", ",", "a%20b", "%C3%A4"]),
        Shape::Place => texts(&["", "x", "0", "20260102030405678901"]),
        Shape::ToolNames => texts(&["", ",", "a%20b", "a,a", "%C3%A4"]),
        Shape::Text { .. } | Shape::Any => Vec::new(), // Of streams: tests/restarts/streams.rs.
        Shape::Ticket => Vec::new(), // Checked before all others: access/matrix_tests.rs.
        Shape::Either(_) => texts(&["", "x", "-1", "0"]),
        other => panic!("no query parameter has the shape {other:?}"),
    }
}

/// Sends some bad values for each member of each body.
#[test]
fn every_member_of_a_body_has_its_bounds() {
    let executions = bad_bodies(execute::EXECUTE, &json!({ "tool": "t" }));
    assert!(executions.len() > 100, "{}", executions.len());
    let acks = format!("/v1/executions/{}/subscribers/s1.1/acks", id(1));
    let acknowledgements = bad_bodies(execute::ACKNOWLEDGE, &json!({ "seq": 1 }));
    let executions = executions.iter().map(|bad| ("/v1/executions", bad));
    let acknowledgements = acknowledgements.iter().map(|bad| (acks.as_str(), bad));
    for (target, (path, body)) in executions.chain(acknowledgements) {
        assert_refused_field(&post(target, &body.to_string()), path);
    }
    let tool = json!({"description": "d", "input_schema": {"type": "object"}});
    for (path, body) in bad_bodies(workers::VIRTUAL_TOOL, &tool) {
        let request = post("/v1/virtual-tools/t", &body.to_string());
        assert_refused_field(&request.replacen("POST", "PUT", 1), &path);
    }
    for (path, body) in bad_bodies(door::PRODUCE, &json!({ "name": "n" })) {
        assert_refused_field(&post("/v1/door/executions", &body.to_string()), &path);
    }
    let part = json!({ "tool_call_id": id(1).to_string() });
    for (path, body) in bad_bodies(workers::PART, &part) {
        let request = post("/v1/tool-results/stream", &body.to_string());
        assert_refused_field(&request.replacen("Host: h", "Host: h\r\nX-Session-ID: s", 1), &path);
    }
}

fn assert_refused_field(request: &str, path: &str) {
    let response = answered(request);
    let (code, field, _) = response.error();
    let got = (response.status, code.as_str(), field.as_deref());
    assert_eq!(got, (400, "invalid_field", Some(path)), "{request}");
}

/// Returns bodies that each have one invalid member, with the path of that member.
pub fn bad_bodies(fields: &'static [Field], good: &Value) -> Vec<(String, Value)> {
    let mut bodies = Vec::new();
    for field in fields {
        for value in bad_json(&field.shape) {
            let mut body = good.clone();
            body[field.name] = value;
            bodies.push((field.name.to_owned(), body));
        }
        // The other members that the object of this member needs.
        let inner_good = match field.name {
            "policy" => json!({ "name": "drop" }),
            "start" => json!({ "after_subscribers": 1 }),
            "progress" => json!({ "progress": 1 }),
            _ => json!({}),
        };
        for (path, inner) in bad_bodies(field.shape.members().unwrap_or(&[]), &inner_good) {
            let mut body = good.clone();
            body[field.name] = inner;
            bodies.push((format!("{}.{path}", field.name), body));
        }
    }
    bodies
}

fn bad_json(shape: &Shape) -> Vec<Value> {
    let has_null = matches!(shape, Shape::Either(shapes)
        if shapes.iter().any(|shape| matches!(shape, Shape::Null)));
    let mut values = vec![json!([]), json!(true), json!(1.5), json!(-1), json!("x\0y")];
    match shape {
        Shape::Any => return Vec::new(),
        Shape::Flag => values.retain(|value| !value.is_boolean()),
        Shape::Real => values.retain(|value| !value.is_number()),
        _ => {}
    }
    if !has_null {
        values.push(Value::Null);
    }
    if let Some((min, max)) = shape.number() {
        values.extend(min.checked_sub(1).map(Value::from));
        values.extend(max.checked_add(1).map(Value::from));
        values.extend([json!("1"), json!({})]);
    } else if let Shape::Text { .. } = shape {
        values.retain(|value| !value.is_string());
        values.push("".into());
    }
    values
}
