//! The prompts, resources and resource templates that a server offers beside tools and executions.
//! Embedders fill a catalog, and replace it by another one when it changes.

use std::fmt;

use serde_json::{Map, Value, json};

use super::{ClientCapabilities, McpFault, Version};
use crate::tool::{Asking, Replies};
use crate::wire::base64;

/// Prompts, resources and resource templates. Each name and each address occurs once.
#[derive(Debug, Default)]
pub struct Catalog {
    /// The prompts, identified by name.
    pub prompts: Vec<Prompt>,
    /// The resources, identified by address.
    pub resources: Vec<Resource>,
    /// The templates, identified by address.
    pub templates: Vec<Template>,
}

/// Makes a prompt from its arguments and from the answers to its questions.
pub type Render = Box<
    dyn Fn(&Map<String, Value>, &Replies, &ClientCapabilities) -> Result<Rendered, McpFault>
        + Send
        + Sync,
>;

/// A prompt.
pub struct Prompt {
    /// The name in the protocol.
    pub name: String,
    /// The name for display.
    pub title: Option<String>,
    /// The purpose.
    pub description: String,
    /// The arguments.
    pub arguments: Vec<PromptArgument>,
    /// A JSON Schema of the arguments, which also provides completions.
    pub schema: Option<Value>,
    /// Makes the messages of the prompt.
    pub render: Render,
}

/// An argument of a prompt. Its value is a string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptArgument {
    /// The name in the protocol.
    pub name: String,
    /// The purpose.
    pub description: String,
    /// True if the prompt cannot be made without it.
    pub required: bool,
    /// The values that completion offers, best first; empty if it has no such list.
    pub values: Vec<String>,
}

/// The outcome of rendering a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Rendered {
    /// The messages: an array of `PromptMessage`.
    Messages(Value),
    /// The prompt asks a question first, or refuses.
    Ask(Asking),
}

/// The contents of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Text.
    Text(String),
    /// Bytes of any other type.
    Blob(Vec<u8>),
}

/// A resource.
pub struct Resource {
    /// The address.
    pub uri: String,
    /// The name in the protocol.
    pub name: String,
    /// The name for display.
    pub title: Option<String>,
    /// The description.
    pub description: Option<String>,
    /// The media type.
    pub mime_type: Option<String>,
    /// Reads it.
    pub read: Box<dyn Fn() -> Contents + Send + Sync>,
}

/// Reads the resource that the values of a template's variables name; `None` if it does not exist.
pub type ReadTemplate = Box<dyn Fn(&[(String, String)]) -> Option<Contents> + Send + Sync>;

/// A family of resources whose addresses contain variables.
pub struct Template {
    /// The addresses, with `{variables}`. Each stands for a text without slashes.
    pub uri_template: String,
    /// The name in the protocol.
    pub name: String,
    /// The name for display.
    pub title: Option<String>,
    /// The description.
    pub description: Option<String>,
    /// The media type.
    pub mime_type: Option<String>,
    /// The values that completion offers, by the names of variables.
    pub values: Vec<(String, Vec<String>)>,
    /// Reads one of them.
    pub read: ReadTemplate,
}

impl Catalog {
    /// Returns the prompt of this name.
    pub fn prompt(&self, name: &str) -> Option<&Prompt> {
        self.prompts.iter().find(|prompt| prompt.name == name)
    }

    /// Returns the template with exactly this text.
    pub fn template(&self, uri_template: &str) -> Option<&Template> {
        self.templates.iter().find(|template| template.uri_template == uri_template)
    }

    /// True if this is the address of a resource here. An address of a template may still name no
    /// resource.
    pub fn has(&self, uri: &str) -> bool {
        self.resources.iter().any(|resource| resource.uri == uri)
            || self.templates.iter().any(|template| template.variables_in(uri).is_some())
    }

    /// Reads the resource at an address: an item of the `contents` of `resources/read`.
    pub fn read(&self, uri: &str) -> Option<Value> {
        if let Some(resource) = self.resources.iter().find(|resource| resource.uri == uri) {
            return Some(contents(uri, resource.mime_type.as_deref(), &(resource.read)()));
        }
        self.templates.iter().find_map(|template| {
            let variables = template.variables_in(uri)?;
            let read = (template.read)(&variables)?;
            Some(contents(uri, template.mime_type.as_deref(), &read))
        })
    }
}

/// Returns an item of `contents`.
pub fn contents(uri: &str, mime_type: Option<&str>, read: &Contents) -> Value {
    let mut item = Map::new();
    item.insert("uri".to_owned(), uri.into());
    if let Some(mime_type) = mime_type {
        item.insert("mimeType".to_owned(), mime_type.into());
    }
    match read {
        Contents::Text(text) => item.insert("text".to_owned(), text.as_str().into()),
        Contents::Blob(bytes) => item.insert("blob".to_owned(), encoded(bytes).into()),
    };
    item.into()
}

/// Encodes bytes in base 64.
pub(super) fn encoded(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    base64::write(&mut out, bytes);
    String::from_utf8(out).expect("base 64 is ASCII")
}

impl Prompt {
    /// The prompt as an item of `prompts/list`.
    pub fn to_json(&self, version: Version) -> Value {
        let argument = |argument: &PromptArgument| {
            json!({
                "name": argument.name,
                "description": argument.description,
                "required": argument.required,
            })
        };
        let arguments: Vec<Value> = self.arguments.iter().map(argument).collect();
        let mut document = Map::new();
        document.insert("name".to_owned(), self.name.as_str().into());
        add_title(&mut document, self.title.as_deref(), version);
        document.insert("description".to_owned(), self.description.as_str().into());
        if !arguments.is_empty() {
            document.insert("arguments".to_owned(), arguments.into());
        }
        document.into()
    }

    /// Checks that all required arguments are present (A43).
    ///
    /// # Errors
    /// One is missing.
    pub fn check(&self, arguments: &Map<String, Value>) -> Result<(), McpFault> {
        let is_missing = |argument: &&PromptArgument| {
            argument.required && !arguments.contains_key(&argument.name)
        };
        match self.arguments.iter().find(is_missing) {
            None => Ok(()),
            Some(PromptArgument { name, .. }) => {
                Err(McpFault::invalid_params(format!("the argument `{name}` is missing")))
            }
        }
    }
}

impl Resource {
    /// The resource as an item of `resources/list`.
    pub fn to_json(&self, version: Version) -> Value {
        let mut document = Map::new();
        document.insert("uri".to_owned(), self.uri.as_str().into());
        document.insert("name".to_owned(), self.name.as_str().into());
        add_title(&mut document, self.title.as_deref(), version);
        add(&mut document, "description", self.description.as_deref());
        add(&mut document, "mimeType", self.mime_type.as_deref());
        document.into()
    }
}

impl Template {
    /// The template as an item of `resources/templates/list`.
    pub fn to_json(&self, version: Version) -> Value {
        let mut document = Map::new();
        document.insert("uriTemplate".to_owned(), self.uri_template.as_str().into());
        document.insert("name".to_owned(), self.name.as_str().into());
        add_title(&mut document, self.title.as_deref(), version);
        add(&mut document, "description", self.description.as_deref());
        add(&mut document, "mimeType", self.mime_type.as_deref());
        document.into()
    }

    /// The values of the variables in an address, in order; `None` if the address does not match.
    pub fn variables_in(&self, uri: &str) -> Option<Vec<(String, String)>> {
        variables(&self.uri_template, uri)
    }
}

/// The values of the variables of `template` in `uri`. Each is not empty and contains no slash.
pub(super) fn variables(template: &str, uri: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    let (mut template, mut uri) = (template, uri);
    while let Some((before, rest)) = template.split_once('{') {
        let (name, after) = rest.split_once('}')?;
        uri = uri.strip_prefix(before)?;
        // The value ends at the first place of the text that follows it in the template.
        let next = after.split('{').next().unwrap_or("");
        let end = match next {
            "" => uri.find('/').unwrap_or(uri.len()),
            next => uri.find(next)?,
        };
        let (value, behind) = uri.split_at(end);
        if value.is_empty() || value.contains('/') {
            return None;
        }
        found.push((name.to_owned(), percent_decoded(value)?));
        (template, uri) = (after, behind);
    }
    (template == uri).then_some(found)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, behind) = rest.split_first_chunk::<2>()?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = behind;
    }
    String::from_utf8(bytes).ok()
}

fn add(document: &mut Map<String, Value>, name: &str, text: Option<&str>) {
    if let Some(text) = text {
        document.insert(name.to_owned(), text.into());
    }
}

/// Adds a title, which exists since 2025-06-18.
fn add_title(document: &mut Map<String, Value>, title: Option<&str>, version: Version) {
    add(document, "title", title.filter(|_| version >= Version::V2025_06_18));
}

impl fmt::Debug for Prompt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Prompt({})", self.name)
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Resource({})", self.uri)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Template({})", self.uri_template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::shapes::check;

    fn catalog() -> Catalog {
        let prompt = Prompt {
            name: "p".to_owned(),
            title: Some("P".to_owned()),
            description: "Does.".to_owned(),
            arguments: vec![PromptArgument {
                name: "a".to_owned(),
                description: "d".to_owned(),
                required: true,
                values: vec![],
            }],
            schema: None,
            render: Box::new(|arguments, _, _| {
                let content = json!({"type": "text", "text": arguments["a"]});
                Ok(Rendered::Messages(json!([{"role": "user", "content": content}])))
            }),
        };
        let resource = Resource {
            uri: "test://a".to_owned(),
            name: "a".to_owned(),
            title: Some("A".to_owned()),
            description: Some("d".to_owned()),
            mime_type: Some("image/png".to_owned()),
            read: Box::new(|| Contents::Blob(vec![0xFF, 0xFE])),
        };
        let template = Template {
            uri_template: "test://t/{id}/data".to_owned(),
            name: "t".to_owned(),
            title: None,
            description: None,
            mime_type: None,
            values: vec![],
            read: Box::new(|variables| {
                let (_, id) = &variables[0];
                (id != "none").then(|| Contents::Text(format!("of {id}")))
            }),
        };
        Catalog { prompts: vec![prompt], resources: vec![resource], templates: vec![template] }
    }

    #[test]
    fn what_there_is_is_listed_in_the_words_of_each_version() {
        let catalog = catalog();
        for version in Version::ALL {
            let prompt = catalog.prompts[0].to_json(version);
            let resource = catalog.resources[0].to_json(version);
            check(version, "Prompt", &prompt);
            check(version, "Resource", &resource);
            check(version, "ResourceTemplate", &catalog.templates[0].to_json(version));
            for document in [prompt, resource] {
                assert_eq!(document.get("title").is_some(), version >= Version::V2025_06_18);
            }
        }
        let prompt = catalog.prompts[0].to_json(Version::LATEST);
        assert_eq!(
            prompt["arguments"],
            json!([{"name": "a", "description": "d", "required": true}])
        );
    }

    #[test]
    fn a_resource_is_read_as_text_or_in_base_64_and_what_is_not_there_is_not() {
        // A42, B32.
        let catalog = catalog();
        let blob = catalog.read("test://a").unwrap();
        assert_eq!(blob, json!({"uri": "test://a", "mimeType": "image/png", "blob": "//4="}));
        check(Version::LATEST, "BlobResourceContents", &blob);
        let text = catalog.read("test://t/x%2Fy/data").unwrap();
        assert_eq!(text, json!({"uri": "test://t/x%2Fy/data", "text": "of x/y"}));
        check(Version::LATEST, "TextResourceContents", &text);
        for uri in ["test://b", "test://t/none/data", "test://t//data", "test://t/a/b/data", ""] {
            assert_eq!(catalog.read(uri), None, "{uri}");
        }
        assert!(catalog.has("test://a") && catalog.has("test://t/none/data"));
        assert!(!catalog.has("test://b"));
    }

    #[test]
    fn variables_are_what_stands_in_their_places() {
        let found = |template: &str, uri: &str| {
            let found = variables(template, uri)?;
            Some(found.into_iter().map(|(name, value)| format!("{name}={value}")).collect())
        };
        let table: [(&str, &str, Option<&[&str]>); 12] = [
            ("a:{x}", "a:1", Some(&["x=1"])),
            ("a:{x}", "a:", None),
            ("a:{x}", "a:1/2", None),
            ("a:{x}/{y}", "a:1/2", Some(&["x=1", "y=2"])),
            ("a:{x}-{y}.z", "a:1-2.z", Some(&["x=1", "y=2"])),
            ("a:{x}/z", "a:1/z", Some(&["x=1"])),
            ("a:{x}/z", "a:1/zz", None),
            ("a:b", "a:b", Some(&[])),
            ("a:{x}", "a:%C3%A9", Some(&["x=\u{e9}"])),
            ("a:{x}", "a:%ff", None),
            ("a:{x}", "a:%+1", None),
            ("a:{x}", "a:%4", None),
        ];
        for (template, uri, expected) in table {
            let expected: Option<Vec<String>> =
                expected.map(|all| all.iter().map(|text| (*text).to_owned()).collect());
            assert_eq!(found(template, uri), expected, "{template} {uri}");
        }
    }

    #[test]
    fn a_prompt_needs_its_required_arguments() {
        // A43, B33.
        let catalog = catalog();
        let prompt = catalog.prompt("p").unwrap();
        assert_eq!(prompt.check(&Map::new()).unwrap_err().code, -32_602);
        let arguments: Map<String, Value> = [("a".to_owned(), json!("x"))].into_iter().collect();
        assert_eq!(prompt.check(&arguments), Ok(()));
        let client = ClientCapabilities::default();
        let Ok(Rendered::Messages(messages)) =
            (prompt.render)(&arguments, &Replies::default(), &client)
        else {
            panic!("expected messages");
        };
        let result = json!({"messages": messages, "resultType": "complete"});
        check(Version::LATEST, "GetPromptResult", &result);
        assert!(catalog.prompt("q").is_none());
    }
}
