//! The prompts and resources of the suite.

use serde_json::{Map, Value, json};
use streamdoor::mcp::catalog::{
    Catalog, Contents, Prompt, PromptArgument, Rendered, Resource, Template,
};
use streamdoor::tool::{Asking, Replies};

use super::asking::{filled_in, form, is_declined};
use super::{IMAGE, IMAGE_BYTES};

/// Renders a prompt from its arguments and from the replies of the client.
type Say = fn(&Map<String, Value>, &Replies) -> Rendered;

/// Returns the catalog. The changing prompt is part of it if `has_changed` is set.
pub fn catalog(has_changed: bool) -> Catalog {
    let mut prompts = prompts();
    if has_changed {
        let say: Say = |_, _| said(&[text("This prompt exists only at times.")]);
        prompts.insert(0, prompt("test_changing_prompt", "Exists only at times.", &[], say));
    }
    Catalog { prompts, resources: resources(), templates: vec![template()] }
}

fn prompts() -> Vec<Prompt> {
    let table: [(&str, &str, &[&str], Say); 5] = [
        ("test_input_required_result_prompt", "Asks for a context first.", &[], |_, replies| {
            match filled_in(replies, "user_context", "context") {
                Some(context) => said(&[text(&format!("Use this context: {context}"))]),
                None if is_declined(replies, "user_context") => {
                    let refusal = "Without a context there is no prompt.";
                    Rendered::Ask(Asking::Refuse(refusal.to_owned()))
                }
                None => {
                    let message = "What context should the prompt use?";
                    let questions = vec![form("user_context", message, "context", "string")];
                    Rendered::Ask(Asking::Ask { questions, state: None })
                }
            }
        }),
        (
            "test_prompt_with_arguments",
            "Repeats its arguments.",
            &["arg1", "arg2"],
            |arguments, _| {
                let [first, second] = ["arg1", "arg2"].map(|name| argument(arguments, name));
                said(&[text(&format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))])
            },
        ),
        (
            "test_prompt_with_embedded_resource",
            "Contains a resource.",
            &["resourceUri"],
            |arguments, _| {
                let resource = json!({
                    "uri": argument(arguments, "resourceUri"),
                    "mimeType": "text/plain",
                    "text": "Embedded resource content for testing.",
                });
                let block = json!({"type": "resource", "resource": resource});
                said(&[block, text("Please process the embedded resource above.")])
            },
        ),
        ("test_prompt_with_image", "Contains a picture.", &[], |_, _| {
            let image = json!({"type": "image", "data": IMAGE, "mimeType": "image/png"});
            said(&[image, text("Please analyze the image above.")])
        }),
        ("test_simple_prompt", "Returns the same text each time.", &[], |_, _| {
            said(&[text("This is a simple prompt for testing.")])
        }),
    ];
    table
        .into_iter()
        .map(|(name, description, names, say)| prompt(name, description, names, say))
        .collect()
}

fn prompt(name: &str, description: &str, names: &[&str], say: Say) -> Prompt {
    let argument = |name: &&str| PromptArgument {
        name: (*name).to_owned(),
        description: "A text for testing.".to_owned(),
        required: true,
        values: ["test", "testing", "text"].map(str::to_owned).to_vec(),
    };
    Prompt {
        name: name.to_owned(),
        title: None,
        description: description.to_owned(),
        arguments: names.iter().map(argument).collect(),
        schema: None,
        render: Box::new(move |arguments, replies, _| Ok(say(arguments, replies))),
    }
}

fn argument<'a>(arguments: &'a Map<String, Value>, name: &str) -> &'a str {
    arguments.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Returns one message of the user for each block.
fn said(blocks: &[Value]) -> Rendered {
    let message = |block: &Value| json!({"role": "user", "content": block});
    Rendered::Messages(blocks.iter().map(message).collect())
}

fn resources() -> Vec<Resource> {
    let text = |text: &str| Contents::Text(text.to_owned());
    let table = [
        ("static-binary", "A picture.", "image/png", Contents::Blob(IMAGE_BYTES.to_vec())),
        (
            "static-text",
            "A text.",
            "text/plain",
            text("This is the content of the static text resource."),
        ),
        (
            "watched-resource",
            "A text that can be subscribed to.",
            "text/plain",
            text("Watched resource content"),
        ),
    ];
    let resource =
        |(name, description, mime_type, contents): (&str, &str, &str, Contents)| Resource {
            uri: format!("test://{name}"),
            name: name.to_owned(),
            title: None,
            description: Some(description.to_owned()),
            mime_type: Some(mime_type.to_owned()),
            read: Box::new(move || contents.clone()),
        };
    table.into_iter().map(resource).collect()
}

fn template() -> Template {
    Template {
        uri_template: "test://template/{id}/data".to_owned(),
        name: "template".to_owned(),
        title: None,
        description: Some("Data for any id.".to_owned()),
        mime_type: Some("application/json".to_owned()),
        values: vec![("id".to_owned(), vec!["123".to_owned()])],
        read: Box::new(|variables| {
            let (_, id) = variables.first()?;
            let data =
                json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            Some(Contents::Text(data.to_string()))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_suite_reads_is_there() {
        let catalog = catalog(true);
        let read = catalog.read("test://template/123/data").unwrap();
        let data = r#"{"id":"123","templateTest":true,"data":"Data for ID: 123"}"#;
        assert_eq!(read["text"], data);
        assert_eq!(read["mimeType"], "application/json");
        assert_eq!(catalog.read("test://static-binary").unwrap()["blob"], IMAGE);
        assert_eq!(catalog.read("test://template//data"), None);
        let names: Vec<&str> = catalog.prompts.iter().map(|prompt| prompt.name.as_str()).collect();
        assert!(names.is_sorted(), "{names:?}");
        assert!(catalog.resources.is_sorted_by_key(|resource| &resource.uri));
    }
}
