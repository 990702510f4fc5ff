//! `streamdoor tools`: lists the tools and their arguments.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use lexopt::prelude::*;
use serde_json::Value as Json;
use streamdoor::tool::ToolSpec;

use super::console::print_out;
use super::printable::json;
use super::upstreams::McpOptions;
use super::{CliError, session};

pub const HELP: &str = "\
streamdoor tools: list the tools and their arguments

Usage: streamdoor tools [OPTIONS] [NAME]

  --json            print them as a JSON array, with the full schemas of the arguments
  --allow-commands  also list the tools that run other programs
  --mcp [NAME=]COMMAND|URL
                    also list the tools of another MCP server; may be repeated
  --mcp-tools [NAME:]RULES
                    choose and rename its tools, as for `streamdoor serve`
  -h, --help        show this text

`streamdoor run NAME --arg KEY=VALUE` runs a tool.
";

/// Carries out `streamdoor tools`.
pub fn run(mut parser: lexopt::Parser) -> Result<(), CliError> {
    let (mut as_json, mut allow_commands, mut wanted) = (false, false, None);
    let mut mcp = McpOptions::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => {
                print_out!("{}", HELP.trim_end());
                return Ok(());
            }
            Long("json") => as_json = true,
            Long("allow-commands") => allow_commands = true,
            Long(name) => {
                let name = name.to_owned();
                if !mcp.take(&name, &mut parser)? {
                    return Err(lexopt::Error::UnexpectedOption(format!("--{name}")).into());
                }
            }
            Value(name) if wanted.is_none() => wanted = Some(name.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let mut tools = session::tools(allow_commands);
    let _upstreams = mcp.add_to(&mut tools)?;
    let specs: Vec<&Arc<ToolSpec>> = match &wanted {
        None => tools.specs().collect(),
        Some(name) => vec![session::spec(&tools, name)?],
    };
    if as_json {
        let array = specs.iter().map(|spec| spec.to_json()).collect();
        print_out!("{}", json(&Json::Array(array)));
    } else {
        let texts: Vec<String> = specs.iter().map(|spec| described(spec)).collect();
        print_out!("{}", texts.join("\n").trim_end());
    }
    Ok(())
}

/// Describes a tool: its name, its purpose, a table of its arguments, and its defaults.
fn described(spec: &ToolSpec) -> String {
    let mut text = format!("{}\n    {}\n", spec.name, spec.description);
    let required = spec.arguments["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|n| n == name));
    let properties = spec.arguments["properties"].as_object();
    let rows: Vec<[String; 4]> = properties
        .into_iter()
        .flatten()
        .map(|(name, schema)| {
            let description = schema["description"].as_str().unwrap_or_default().to_owned();
            [name.clone(), type_of(schema), bounds_of(schema, is_required(name)), description]
        })
        .collect();
    let widths = [0, 1, 2].map(|column| {
        rows.iter().map(|row: &[String; 4]| row[column].chars().count()).max().unwrap_or(0)
    });
    for [name, kind, bounds, description] in &rows {
        let [a, b, c] = widths;
        let line = format!("    {name:<a$}  {kind:<b$}  {bounds:<c$}  {description}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let defaults = spec.subscribers;
    let _ = write!(text, "    subscribers: {}", defaults.policy);
    if let Some(chunks) = defaults.limit_chunks {
        let _ = write!(text, ", at most {chunks} chunks behind");
    }
    let times = spec.timeouts;
    let _ = writeln!(
        text,
        "; timeouts: first chunk {}, inactivity {}, in all {}",
        in_words(times.first_chunk),
        in_words(times.inactivity),
        in_words(times.total)
    );
    text
}

fn in_words(limit: Option<Duration>) -> String {
    limit.map_or_else(|| "none".to_owned(), |duration| format!("{duration:?}"))
}

/// Returns the type of an argument, such as `integer`, `array of string` or `one of a, b`.
fn type_of(schema: &Json) -> String {
    if let Some(values) = schema["enum"].as_array() {
        return format!("one of {}", joined(values, ", "));
    }
    match &schema["type"] {
        Json::String(name) if name == "array" && !schema["items"].is_null() => {
            format!("array of {}", type_of(&schema["items"]))
        }
        Json::String(name) => name.clone(),
        Json::Array(names) => joined(names, " or "),
        _ => "any".to_owned(),
    }
}

fn joined(values: &[Json], separator: &str) -> String {
    let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    values.iter().map(text).collect::<Vec<_>>().join(separator)
}

/// Returns the bounds of an argument: `required` or its default, and its limits.
fn bounds_of(schema: &Json, is_required: bool) -> String {
    let mut words = Vec::new();
    if is_required {
        words.push("required".to_owned());
    }
    let range = |low: &str, high: &str, unit: &str| match (&schema[low], &schema[high]) {
        (Json::Null, Json::Null) => None,
        (low, Json::Null) => Some(format!("at least {low}{unit}")),
        (Json::Null, high) => Some(format!("at most {high}{unit}")),
        (low, high) => Some(format!("{low} to {high}{unit}")),
    };
    words.extend(range("minimum", "maximum", ""));
    words.extend(range("minLength", "maxLength", " characters"));
    words.extend(range("minItems", "maxItems", " items"));
    if let Some(above) = schema.get("exclusiveMinimum") {
        words.push(format!("above {above}"));
    }
    if let Some(default) = schema.get("default") {
        words.push(format!("default {default}"));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tool_is_described_with_everything_that_binds_its_arguments() {
        let spec = ToolSpec {
            arguments: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "minLength": 1, "description": "Which."},
                    "size": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
                    "argv": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    "mode": {"enum": ["a", "b"]},
                    "rate": {"type": ["number", "null"], "exclusiveMinimum": 0},
                    "what": {},
                },
                "required": ["path"],
            }),
            ..ToolSpec::new("name", "What it does.")
        };
        let text = described(&spec);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "name",
                "    What it does.",
                "    path  string           required, at least 1 characters  Which.",
                "    size  integer          1 to 9, default 3",
                "    argv  array of string  at least 1 items",
                "    mode  one of a, b",
                "    rate  number or null   above 0",
                "    what  any",
                "    subscribers: block; timeouts: first chunk 30s, inactivity 30s, in all none",
            ]
        );
    }
}
