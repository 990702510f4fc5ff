//! Values for an argument that somebody types: of a tool or a prompt by their schemas, of a
//! template of resources by what its variables may be.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Fault;
use super::ask::{Complete, Target};
use super::catalog::{Catalog, Prompt, Template};
use crate::limits;
use crate::tool::{Completion, ToolSpec};

/// Where values are looked for.
pub struct Sources<'a> {
    /// Prompts and templates.
    pub catalog: &'a Catalog,
    /// The tools that the client may call.
    pub tool: &'a dyn Fn(&str) -> Option<Arc<ToolSpec>>,
    /// Ids of the client's own executions, in order.
    pub executions: &'a dyn Fn() -> Vec<String>,
}

/// The state of one execution, and ...
pub const EXECUTION_TEMPLATE: &str = "streamdoor://executions/{id}";
/// ... all of its output so far.
pub const OUTPUT_TEMPLATE: &str = "streamdoor://executions/{id}/output";

/// What fits.
///
/// # Errors
/// There is no such thing, or it has no such argument (A39, B34).
pub fn complete(wanted: &Complete, sources: &Sources<'_>) -> Result<Completion, Fault> {
    let unknown = |sort: &str, name: &str| {
        Fault::invalid_params(format!("there is no {sort} `{name}` to complete an argument of"))
    };
    match &wanted.target {
        Target::Tool(name) => match (sources.tool)(name) {
            Some(spec) => of_schema(&spec.arguments, wanted),
            None => Err(unknown("tool", name)),
        },
        Target::Prompt(name) => match (sources.catalog.prompt(name), (sources.tool)(name)) {
            (Some(prompt), _) => of_prompt(prompt, wanted),
            (None, Some(spec)) => of_schema(&spec.arguments, wanted),
            (None, None) => Err(unknown("prompt", name)),
        },
        Target::Resource(uri) if [EXECUTION_TEMPLATE, OUTPUT_TEMPLATE].contains(&uri.as_str()) => {
            match wanted.argument.as_str() {
                "id" => Ok(that_begin(&(sources.executions)(), &wanted.value)),
                other => Err(Fault::invalid_params(format!("{uri} has no variable `{other}`"))),
            }
        }
        Target::Resource(uri) => match sources.catalog.template(uri) {
            Some(template) => of_template(template, wanted),
            None if sources.catalog.has(uri) => Ok(Completion::default()),
            None => Err(unknown("resource", uri)),
        },
    }
}

/// By a schema, which other arguments may choose a part of. Those come as texts; where a schema
/// compares them with numbers or truths, they are that.
fn of_schema(schema: &Value, wanted: &Complete) -> Result<Completion, Fault> {
    let others: Map<String, Value> =
        wanted.context.iter().map(|(name, value)| (name.clone(), plain(value))).collect();
    let spec = ToolSpec { arguments: schema.clone(), ..ToolSpec::new("schema", "") };
    Ok(spec.complete(&wanted.argument, &wanted.value, &others))
}

/// What a text says, if that is a number or a truth.
fn plain(value: &Value) -> Value {
    let read = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    read.filter(|read| read.is_number() || read.is_boolean()).unwrap_or_else(|| value.clone())
}

fn of_prompt(prompt: &Prompt, wanted: &Complete) -> Result<Completion, Fault> {
    let argument = prompt.arguments.iter().find(|argument| argument.name == wanted.argument);
    match (argument, &prompt.schema) {
        (Some(argument), _) if !argument.values.is_empty() => {
            Ok(that_begin(&argument.values, &wanted.value))
        }
        (_, Some(schema)) => of_schema(schema, wanted),
        (Some(_), None) => Ok(Completion::default()),
        (None, None) => {
            let (argument, name) = (&wanted.argument, &prompt.name);
            let text = format!("the prompt `{name}` has no argument `{argument}`");
            Err(Fault::invalid_params(text))
        }
    }
}

fn of_template(template: &Template, wanted: &Complete) -> Result<Completion, Fault> {
    let argument = &wanted.argument;
    if let Some((_, values)) = template.values.iter().find(|(name, _)| name == argument) {
        return Ok(that_begin(values, &wanted.value));
    }
    match template.uri_template.contains(&format!("{{{argument}}}")) {
        true => Ok(Completion::default()),
        false => {
            let uri = &template.uri_template;
            Err(Fault::invalid_params(format!("{uri} has no variable `{argument}`")))
        }
    }
}

/// Those that begin so come first; those that begin so in other letters, behind them.
fn that_begin(values: &[String], prefix: &str) -> Completion {
    let lower = prefix.to_lowercase();
    let exact = values.iter().filter(|value| value.starts_with(prefix));
    let alike = values
        .iter()
        .filter(|value| !value.starts_with(prefix) && value.to_lowercase().starts_with(&lower));
    let mut values: Vec<String> = exact.chain(alike).cloned().collect();
    let total = values.len();
    values.truncate(limits::COMPLETION_VALUES_MAX);
    Completion { values, total }
}
