//! Completion of arguments: for tools and prompts from their schemas, for resource templates from
//! the values of their variables.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::McpFault;
use super::ask::{Complete, CompletionTarget};
use super::catalog::{Catalog, Prompt, Template};
use crate::limits;
use crate::tool::{Completion, ToolSpec};

/// The sources of values.
pub struct Sources<'a> {
    /// The prompts and templates.
    pub catalog: &'a Catalog,
    /// Finds a tool that the client may call.
    pub tool: &'a dyn Fn(&str) -> Option<Arc<ToolSpec>>,
    /// Returns the ids of the client's own executions, in order.
    pub executions: &'a dyn Fn() -> Vec<String>,
}

/// The template for the state of one execution.
pub const EXECUTION_TEMPLATE: &str = "streamdoor://executions/{id}";
/// The template for all output of one execution so far.
pub const OUTPUT_TEMPLATE: &str = "streamdoor://executions/{id}/output";

/// True if the values are ids of executions.
pub fn asks_for_executions(wanted: &Complete) -> bool {
    let CompletionTarget::Resource(uri) = &wanted.target else { return false };
    [EXECUTION_TEMPLATE, OUTPUT_TEMPLATE].contains(&uri.as_str()) && wanted.argument == "id"
}

/// Returns the values that complete an argument.
///
/// # Errors
/// The owner of the argument does not exist, or has no such argument (A39, B34).
pub fn complete(wanted: &Complete, sources: &Sources<'_>) -> Result<Completion, McpFault> {
    let unknown = |sort: &str, name: &str| {
        McpFault::invalid_params(format!("the {sort} `{name}` does not exist"))
    };
    match &wanted.target {
        CompletionTarget::Tool(name) => match (sources.tool)(name) {
            Some(spec) => of_schema(&spec.arguments, wanted),
            None => Err(unknown("tool", name)),
        },
        CompletionTarget::Prompt(name) => {
            match (sources.catalog.prompt(name), (sources.tool)(name)) {
                (Some(prompt), _) => of_prompt(prompt, wanted),
                (None, Some(spec)) => of_schema(&spec.arguments, wanted),
                (None, None) => Err(unknown("prompt", name)),
            }
        }
        CompletionTarget::Resource(_) if asks_for_executions(wanted) => {
            Ok(that_begin(&(sources.executions)(), &wanted.value))
        }
        CompletionTarget::Resource(uri)
            if [EXECUTION_TEMPLATE, OUTPUT_TEMPLATE].contains(&uri.as_str()) =>
        {
            let text = format!("{uri} has no variable `{}`", wanted.argument);
            Err(McpFault::invalid_params(text))
        }
        CompletionTarget::Resource(uri) => match sources.catalog.template(uri) {
            Some(template) => of_template(template, wanted),
            None if sources.catalog.has(uri) => Ok(Completion::default()),
            None => Err(unknown("resource", uri)),
        },
    }
}

/// Completes an argument by a schema, in which other arguments may select a part. Those arrive as
/// strings. A string that spells a number or a boolean is compared as such.
fn of_schema(schema: &Value, wanted: &Complete) -> Result<Completion, McpFault> {
    let others: Map<String, Value> =
        wanted.context.iter().map(|(name, value)| (name.clone(), plain(value))).collect();
    let spec = ToolSpec { arguments: schema.clone(), ..ToolSpec::new("schema", "") };
    Ok(spec.complete(&wanted.argument, &wanted.value, &others))
}

/// Returns the number or boolean that a string spells; otherwise the value unchanged.
fn plain(value: &Value) -> Value {
    let read = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    read.filter(|read| read.is_number() || read.is_boolean()).unwrap_or_else(|| value.clone())
}

fn of_prompt(prompt: &Prompt, wanted: &Complete) -> Result<Completion, McpFault> {
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
            Err(McpFault::invalid_params(text))
        }
    }
}

fn of_template(template: &Template, wanted: &Complete) -> Result<Completion, McpFault> {
    let argument = &wanted.argument;
    if let Some((_, values)) = template.values.iter().find(|(name, _)| name == argument) {
        return Ok(that_begin(values, &wanted.value));
    }
    match template.uri_template.contains(&format!("{{{argument}}}")) {
        true => Ok(Completion::default()),
        false => {
            let uri = &template.uri_template;
            Err(McpFault::invalid_params(format!("{uri} has no variable `{argument}`")))
        }
    }
}

/// Returns the values that begin with `prefix`, followed by those that begin with it in another
/// case.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mcp::catalog::{Contents, PromptArgument, Rendered};

    fn prompt(name: &str, values: &[&str], schema: Option<Value>) -> Prompt {
        let argument = PromptArgument {
            name: "a".to_owned(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
            ..Default::default()
        };
        Prompt {
            name: name.to_owned(),
            title: None,
            description: String::new(),
            arguments: vec![argument],
            schema,
            render: Box::new(|_, _, _| Ok(Rendered::Messages(json!([])))),
        }
    }

    fn catalog() -> Catalog {
        let languages = json!({
            "type": "object",
            "properties": {"a": {}, "loud": {"type": "boolean"}},
            "if": {"properties": {"loud": {"const": true}}},
            "then": {"properties": {"a": {"enum": ["HEY", "HO"]}}},
            "else": {"properties": {"a": {"enum": ["hey"]}}},
        });
        let template = Template {
            uri_template: "test://{color}/{free}".to_owned(),
            name: "t".to_owned(),
            title: None,
            description: None,
            mime_type: None,
            values: vec![("color".to_owned(), vec!["red".to_owned(), "rose".to_owned()])],
            read: Box::new(|_| Some(Contents::Text(String::new()))),
        };
        Catalog {
            prompts: vec![
                prompt("list", &["Paris", "park", "Paros", "Rome"], None),
                prompt("schema", &[], Some(languages)),
                prompt("free", &[], None),
            ],
            resources: vec![],
            templates: vec![template],
        }
    }

    fn ask(
        target: CompletionTarget,
        argument: &str,
        value: &str,
        context: Value,
    ) -> Result<Vec<String>, i64> {
        let spec = ToolSpec {
            arguments: json!({"type": "object", "properties": {
                "size": {"enum": [1, 2, 10]}, "name": {"examples": ["ann", "bob"]},
            }}),
            ..ToolSpec::new("tool", "")
        };
        let tool = |name: &str| (name == "tool").then(|| Arc::new(spec.clone()));
        let executions = || vec!["01a".to_owned(), "01b".to_owned(), "02c".to_owned()];
        let catalog = catalog();
        let sources = Sources { catalog: &catalog, tool: &tool, executions: &executions };
        let (argument, value) = (argument.to_owned(), value.to_owned());
        let context = context.as_object().unwrap().clone();
        let wanted = Complete { target, argument, value, context };
        let found = complete(&wanted, &sources).map_err(|fault| fault.code)?;
        assert_eq!(found.total, found.values.len());
        Ok(found.values)
    }

    fn values(target: CompletionTarget, argument: &str, value: &str) -> Vec<String> {
        ask(target, argument, value, json!({})).unwrap()
    }

    #[test]
    fn values_come_from_lists_schemas_templates_and_executions() {
        // A39, B34.
        let prompt = |name: &str| CompletionTarget::Prompt(name.to_owned());
        let resource = |uri: &str| CompletionTarget::Resource(uri.to_owned());
        assert_eq!(values(prompt("list"), "a", "Par"), ["Paris", "Paros", "park"]);
        assert_eq!(values(prompt("list"), "a", "x"), [""; 0]);
        assert_eq!(values(prompt("free"), "a", ""), [""; 0]);
        assert_eq!(values(CompletionTarget::Tool("tool".to_owned()), "size", "1"), ["1", "10"]);
        assert_eq!(values(prompt("tool"), "name", ""), ["ann", "bob"]);
        assert_eq!(values(resource("test://{color}/{free}"), "color", "ro"), ["rose"]);
        assert_eq!(values(resource("test://{color}/{free}"), "free", "ro"), [""; 0]);
        assert_eq!(values(resource("test://red/x"), "any", ""), [""; 0]);
        for template in [EXECUTION_TEMPLATE, OUTPUT_TEMPLATE] {
            assert_eq!(values(resource(template), "id", "01"), ["01a", "01b"]);
        }
    }

    #[test]
    fn other_arguments_choose_what_fits_though_they_come_as_texts() {
        let schema = || CompletionTarget::Prompt("schema".to_owned());
        assert_eq!(ask(schema(), "a", "", json!({"loud": "true"})).unwrap(), ["HEY", "HO"]);
        assert_eq!(ask(schema(), "a", "", json!({"loud": "false"})).unwrap(), ["hey"]);
    }

    #[test]
    fn what_is_not_there_cannot_be_completed() {
        // A39: −32602.
        for (target, argument) in [
            (CompletionTarget::Prompt("none".to_owned()), "a"),
            (CompletionTarget::Prompt("list".to_owned()), "b"),
            (CompletionTarget::Tool("none".to_owned()), "a"),
            (CompletionTarget::Resource("test://none".to_owned()), "a"),
            (CompletionTarget::Resource("test://{color}/{free}".to_owned()), "shape"),
            (CompletionTarget::Resource(EXECUTION_TEMPLATE.to_owned()), "name"),
        ] {
            assert_eq!(ask(target.clone(), argument, "", json!({})), Err(-32_602), "{target:?}");
        }
    }

    #[test]
    fn at_most_a_hundred_values_are_given_and_all_are_counted() {
        // A39.
        let all: Vec<String> = (0..250).map(|number| format!("v{number}")).collect();
        let found = that_begin(&all, "v");
        assert_eq!((found.values.len(), found.total), (limits::COMPLETION_VALUES_MAX, 250));
    }
}
