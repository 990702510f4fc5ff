//! What there is to offer beside tools and executions: prompts, resources, templates of resources.
//! Embedders fill it; when it is to change, another one takes its place.

use std::fmt;

use serde_json::{Map, Value, json};

use super::{ClientCapabilities, Fault, Version};
use crate::tool::{Asking, Replies};
use crate::wire::base64;

/// What there is beside tools and executions. Each name and each address is there once.
#[derive(Debug, Default)]
pub struct Catalog {
    /// By name.
    pub prompts: Vec<Prompt>,
    /// By address.
    pub resources: Vec<Resource>,
    /// By address.
    pub templates: Vec<Template>,
}

/// Makes a prompt of its arguments, and of what was asked for meanwhile.
pub type Render = Box<
    dyn Fn(&Map<String, Value>, &Replies, &ClientCapabilities) -> Result<Rendered, Fault>
        + Send
        + Sync,
>;

/// A prompt.
pub struct Prompt {
    /// What it is called by.
    pub name: String,
    /// What it is called where people read.
    pub title: Option<String>,
    /// What it is for.
    pub description: String,
    /// What it takes.
    pub arguments: Vec<PromptArgument>,
    /// A JSON Schema of its arguments, by which they are completed too.
    pub schema: Option<Value>,
    /// Makes it.
    pub render: Render,
}

/// An argument of a prompt: a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptArgument {
    /// What it is called by.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Is there nothing without it?
    pub required: bool,
    /// What it may be, best first; empty if it may be anything.
    pub values: Vec<String>,
}

/// What has become of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Rendered {
    /// Its messages: an array of `PromptMessage`.
    Messages(Value),
    /// It asks first, or refuses.
    Ask(Asking),
}

/// What a resource holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Text.
    Text(String),
    /// Anything else.
    Blob(Vec<u8>),
}

/// A resource.
pub struct Resource {
    /// Its address.
    pub uri: String,
    /// Its name.
    pub name: String,
    /// Its name where people read.
    pub title: Option<String>,
    /// What it is.
    pub description: Option<String>,
    /// Of which type.
    pub mime_type: Option<String>,
    /// Reads it.
    pub read: Box<dyn Fn() -> Contents + Send + Sync>,
}

/// Reads what the variables of a template say; `None`: there is nothing.
pub type ReadTemplate = Box<dyn Fn(&[(String, String)]) -> Option<Contents> + Send + Sync>;

/// Resources whose addresses follow from variables.
pub struct Template {
    /// Their addresses, with `{variables}` that stand for a text without slashes each.
    pub uri_template: String,
    /// Their name.
    pub name: String,
    /// Their name where people read.
    pub title: Option<String>,
    /// What they are.
    pub description: Option<String>,
    /// Of which type.
    pub mime_type: Option<String>,
    /// What variables may be, by their names; for completion.
    pub values: Vec<(String, Vec<String>)>,
    /// Reads one.
    pub read: ReadTemplate,
}

impl Catalog {
    /// The prompt of this name.
    pub fn prompt(&self, name: &str) -> Option<&Prompt> {
        self.prompts.iter().find(|prompt| prompt.name == name)
    }

    /// The template that is spelled so.
    pub fn template(&self, uri_template: &str) -> Option<&Template> {
        self.templates.iter().find(|template| template.uri_template == uri_template)
    }

    /// Is this the address of something here? A template's may still lead to nothing.
    pub fn has(&self, uri: &str) -> bool {
        self.resources.iter().any(|resource| resource.uri == uri)
            || self.templates.iter().any(|template| template.variables_in(uri).is_some())
    }

    /// What is at an address: an item of the `contents` of `resources/read`.
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

/// An item of `contents`.
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

/// Bytes in base 64.
pub(super) fn encoded(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    base64::write(&mut out, bytes);
    String::from_utf8(out).expect("its digits are ASCII")
}

impl Prompt {
    /// As `prompts/list` has it.
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

    /// A43: are all arguments there that it needs?
    ///
    /// # Errors
    /// One is missing.
    pub fn check(&self, arguments: &Map<String, Value>) -> Result<(), Fault> {
        let is_missing = |argument: &&PromptArgument| {
            argument.required && !arguments.contains_key(&argument.name)
        };
        match self.arguments.iter().find(is_missing) {
            None => Ok(()),
            Some(PromptArgument { name, .. }) => {
                Err(Fault::invalid_params(format!("the argument `{name}` is missing")))
            }
        }
    }
}

impl Resource {
    /// As `resources/list` has it.
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
    /// As `resources/templates/list` has it.
    pub fn to_json(&self, version: Version) -> Value {
        let mut document = Map::new();
        document.insert("uriTemplate".to_owned(), self.uri_template.as_str().into());
        document.insert("name".to_owned(), self.name.as_str().into());
        add_title(&mut document, self.title.as_deref(), version);
        add(&mut document, "description", self.description.as_deref());
        add(&mut document, "mimeType", self.mime_type.as_deref());
        document.into()
    }

    /// What the variables are in an address, in their order; `None` if it is none of these.
    pub fn variables_in(&self, uri: &str) -> Option<Vec<(String, String)>> {
        variables(&self.uri_template, uri)
    }
}

/// What the variables of `template` are in `uri`: texts that are not empty, and without a slash.
pub(super) fn variables(template: &str, uri: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    let (mut template, mut uri) = (template, uri);
    while let Some((before, rest)) = template.split_once('{') {
        let (name, after) = rest.split_once('}')?;
        uri = uri.strip_prefix(before)?;
        // The text up to what comes next in the template: there its first place is meant.
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

/// Titles are there since 2025-06-18.
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
            panic!("it asks nothing");
        };
        let result = json!({"messages": messages, "resultType": "complete"});
        check(Version::LATEST, "GetPromptResult", &result);
        assert!(catalog.prompt("q").is_none());
    }
}
