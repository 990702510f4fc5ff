//! The headers of the stateless era. They let an intermediary route a request without reading its
//! body, so they have to agree with the body.
//!
//! A tool can have arguments in headers too: those properties of its schema that have
//! `x-mcp-header`.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::McpFault;
use super::ask::name_parameter;
use crate::tool::ToolSpec;
use crate::wire::base64;
use crate::wire::jsonrpc::Parameters;

/// The headers of a request.
#[derive(Clone, Copy)]
pub struct Headers<'a> {
    /// `MCP-Protocol-Version`
    pub version: Option<&'a str>,
    /// `Mcp-Method`
    pub method: Option<&'a str>,
    /// `Mcp-Name`
    pub name: Option<&'a str>,
    /// Returns any other header by its name, in any case: `Mcp-Param-…`.
    pub other: &'a dyn Fn(&str) -> Option<&'a str>,
}

/// The maximum length of a name behind `Mcp-Param-`.
const PARAM_NAME_CHARS_MAX: usize = 64;
/// The maximum depth of arguments in headers.
const PARAM_DEPTH_MAX: usize = 16;

impl Headers<'_> {
    /// Checks the header of the version (B23).
    pub(super) fn check_version(&self, body: &str) -> Result<(), McpFault> {
        check("MCP-Protocol-Version", self.version, plain, body)
    }

    /// Checks the header of the method (B24).
    pub(super) fn check_method(&self, body: &str) -> Result<(), McpFault> {
        check("Mcp-Method", self.method, plain, body)
    }

    /// Checks the header of the name, for methods that name one object (B24).
    pub(super) fn check_name(&self, method: &str, params: &Parameters) -> Result<(), McpFault> {
        let Some(parameter) = name_parameter(method) else { return Ok(()) };
        match params.get(parameter).and_then(Value::as_str) {
            Some(body) => check("Mcp-Name", self.name, decode, body),
            None if self.name.is_none() => Ok(()), // The fault is in the body.
            None => Err(mismatch("Mcp-Name", "has a value, but the body has none")),
        }
    }

    /// Checks the headers of the arguments (B25).
    pub(super) fn check_params(
        &self,
        params: &Parameters,
        spec_of: &dyn Fn(&str) -> Option<Arc<ToolSpec>>,
    ) -> Result<(), McpFault> {
        let Some(name) = params.get("name").and_then(Value::as_str) else { return Ok(()) };
        let Some(spec) = spec_of(name) else { return Ok(()) };
        // A wrong declaration is ignored, because clients do not use it either.
        let Ok(declared) = declared(&spec.arguments) else { return Ok(()) };
        let arguments = params.get("arguments").unwrap_or(&Value::Null);
        for Declared { name, path } in declared {
            let header = format!("Mcp-Param-{name}");
            let body = path.iter().try_fold(arguments, |value, name| value.get(name));
            let body = body.unwrap_or(&Value::Null);
            match (self.other)(&header) {
                None if body.is_null() => {}
                None => return Err(mismatch(&header, "is missing")),
                Some(_) if body.is_null() => {
                    return Err(mismatch(&header, "has a value, but the body has none"));
                }
                Some(value) if says(&decode(&header, value)?, body) => {}
                Some(_) => return Err(mismatch(&header, "differs from the body")),
            }
        }
        Ok(())
    }
}

fn mismatch(header: &str, problem: &str) -> McpFault {
    McpFault::header_mismatch(format!("the header `{header}` {problem}"))
}

fn check(
    header: &str,
    value: Option<&str>,
    read: for<'v> fn(&str, &'v str) -> Result<Cow<'v, str>, McpFault>,
    body: &str,
) -> Result<(), McpFault> {
    let value = value.ok_or_else(|| mismatch(header, "is missing"))?;
    match read(header, value)? == body {
        true => Ok(()),
        false => Err(mismatch(header, "differs from the body")),
    }
}

/// Returns a header's value as it is written, without blanks around it.
fn plain<'v>(header: &str, value: &'v str) -> Result<Cow<'v, str>, McpFault> {
    let value = value.trim_matches([' ', '\t']);
    match value.bytes().all(|byte| matches!(byte, b'\t' | 0x20..0x7F)) {
        true => Ok(value.into()),
        false => Err(mismatch(header, "has invalid characters")),
    }
}

/// Decodes a header's value: the plain text, or text in base 64.
fn decode<'v>(header: &str, value: &'v str) -> Result<Cow<'v, str>, McpFault> {
    let value = plain(header, value)?;
    let encoded = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let Some(encoded) = encoded else { return Ok(value) };
    let decoded = base64::read(encoded).and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.map(Cow::Owned).ok_or_else(|| mismatch(header, "is not a text in base 64"))
}

/// True if the text of a header denotes this value. Numbers may be spelled in several ways.
fn says(text: &str, value: &Value) -> bool {
    match value {
        Value::String(value) => text == value,
        Value::Bool(value) => text == if *value { "true" } else { "false" },
        Value::Number(number) => match (text.parse::<i64>(), number.as_i64()) {
            (Ok(said), Some(number)) => said == number,
            _ => {
                let is_number = text
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E'));
                is_number && text.parse::<f64>().is_ok_and(|said| Some(said) == number.as_f64())
            }
        },
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

/// An argument that stands in a header too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The header's name, behind `Mcp-Param-`.
    pub name: String,
    /// The path to the argument: names of properties, outermost first.
    pub path: Vec<String>,
}

/// Returns the arguments that a tool's schema declares for headers.
///
/// # Errors
/// The fault of a declaration. Clients do not list a tool that has one.
pub fn declared(schema: &Value) -> Result<Vec<Declared>, String> {
    let mut found = Vec::new();
    let mut path = Vec::new();
    walk(schema, &mut path, &mut found)?;
    let wish_count = count_wishes(schema, 0);
    if wish_count != found.len() {
        return Err("`x-mcp-header` is allowed only in a property of the arguments".to_owned());
    }
    for (at, one) in found.iter().enumerate() {
        if found[..at].iter().any(|other| other.name.eq_ignore_ascii_case(&one.name)) {
            return Err(format!("`x-mcp-header`: {} occurs twice", one.name));
        }
    }
    Ok(found)
}

fn walk(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Declared>) -> Result<(), String> {
    if path.len() > PARAM_DEPTH_MAX {
        return Ok(());
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (property, each) in properties.into_iter().flatten() {
        path.push(property.clone());
        if let Some(wish) = each.get("x-mcp-header") {
            let name = wish.as_str().filter(|name| is_token(name)).ok_or_else(|| {
                format!("`x-mcp-header` of `{}` is not a header name", path.join("."))
            })?;
            let is_plain = matches!(
                each.get("type").and_then(Value::as_str),
                Some("string" | "integer" | "boolean")
            );
            if !is_plain {
                let path = path.join(".");
                return Err(format!(
                    "`{path}` must be a string, integer or boolean to be a header value"
                ));
            }
            found.push(Declared { name: name.to_owned(), path: path.clone() });
        }
        walk(each, path, found)?;
        path.pop();
    }
    Ok(())
}

/// Number of `x-mcp-header` members in a schema, at any place. A property of that name does not
/// count.
fn count_wishes(schema: &Value, depth: usize) -> usize {
    if depth > 2 * PARAM_DEPTH_MAX {
        return 0;
    }
    match schema {
        Value::Object(members) => {
            let own = usize::from(members.contains_key("x-mcp-header"));
            let inner = members.iter().map(|(name, value)| match (name.as_str(), value) {
                (
                    "properties" | "$defs" | "definitions" | "patternProperties"
                    | "dependentSchemas",
                    _,
                ) => {
                    let each = value.as_object().into_iter().flatten();
                    each.map(|(_, schema)| count_wishes(schema, depth + 1)).sum()
                }
                ("enum" | "const" | "default" | "examples", _) => 0,
                _ => count_wishes(value, depth + 1),
            });
            own + inner.sum::<usize>()
        }
        Value::Array(values) => values.iter().map(|value| count_wishes(value, depth + 1)).sum(),
        _ => 0,
    }
}

/// True if `name` is a token (RFC 9110, 5.6.2) of at most 64 characters.
fn is_token(name: &str) -> bool {
    let is_token_char = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    (1..=PARAM_NAME_CHARS_MAX).contains(&name.len()) && name.chars().all(is_token_char)
}
