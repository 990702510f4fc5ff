//! The tools that a server lists, page by page, and their names here.
//!
//! A tool that cannot be offered is left out, with the reason. A malformed list is an error.

use serde_json::{Map, Value};

use super::dialect::Dialect;
use super::rules::ToolRules;
use super::shown;
use crate::base::plain::plain_text;
use crate::limits;
use crate::mcp::headers;
use crate::tool::{ToolSpec, is_tool_name};

/// One tool of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The name of the tool on its server.
    pub name: String,
    /// The tool as it is offered here, under its own name or an adapted one.
    pub spec: ToolSpec,
    /// True if the server runs it only as a task of the handshake era.
    pub as_task: bool,
}

/// A tool that is not offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnofferedTool {
    /// The name of the tool on its server, as far as it can be displayed.
    pub name: String,
    /// The reason.
    pub reason: String,
}

/// The list of a server's tools, while its pages come.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The prefix of the tools' names here.
    prefix: String,
    rules: ToolRules,
    /// The names of all tools that the server has, if rules name tools.
    named: Vec<String>,
    has_tasks: bool,
    offers: Vec<Offer>,
    unoffered: Vec<UnofferedTool>,
    cursors: Vec<String>,
}

impl Listing {
    /// Returns an empty list of a server's tools. If `prefix` is not empty, their names here are
    /// `prefix`, `_` and their own names.
    pub fn new(prefix: &str, dialect: &Dialect) -> Listing {
        Listing {
            prefix: prefix.to_owned(),
            rules: ToolRules::default(),
            named: Vec::new(),
            has_tasks: dialect.has_tasks,
            offers: Vec::new(),
            unoffered: Vec::new(),
            cursors: Vec::new(),
        }
    }

    /// Offers only the tools that these rules choose.
    pub fn with_rules(self, rules: ToolRules) -> Listing {
        Listing { rules, ..self }
    }

    /// Takes a page. Returns the cursor of the next one, if one exists.
    ///
    /// # Errors
    /// The page is no page of a list of tools, or the list has no end.
    pub fn take(&mut self, page: &Value) -> Result<Option<String>, String> {
        let tools = page.get("tools").and_then(Value::as_array);
        let tools = tools.ok_or("its `tools` are not a list")?;
        for tool in tools {
            if let Err(unoffered) = self.offer(tool) {
                // The number of names left out is limited too.
                if self.unoffered.len() < limits::UPSTREAM_TOOLS_MAX {
                    self.unoffered.push(unoffered);
                }
            }
        }
        let cursor = match page.get("nextCursor") {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(cursor)) => cursor.clone(),
            Some(_) => return Err("its `nextCursor` is not a string".to_owned()),
        };
        if self.cursors.contains(&cursor) || self.cursors.len() >= limits::UPSTREAM_PAGES_MAX {
            return Err("its list of tools does not end".to_owned());
        }
        self.cursors.push(cursor.clone());
        Ok(Some(cursor))
    }

    /// All offered tools, in the order of their names here, and those that are left out.
    pub fn finish(mut self) -> (Vec<Offer>, Vec<UnofferedTool>) {
        let unknown = self.rules.named().filter(|name| !self.named.iter().any(|one| one == name));
        let reason = "a rule names it, but its server does not have it";
        self.unoffered.extend(unknown.map(|name| UnofferedTool {
            name: shown(name).chars().take(limits::TOOL_NAME_CHARS_MAX).collect(),
            reason: reason.to_owned(),
        }));
        self.offers.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        (self.offers, self.unoffered)
    }

    fn offer(&mut self, tool: &Value) -> Result<(), UnofferedTool> {
        let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
        let turn = |reason: &str| UnofferedTool {
            name: shown(name).chars().take(limits::TOOL_NAME_CHARS_MAX).collect(),
            reason: reason.to_owned(),
        };
        if name.is_empty() {
            return Err(turn("it has no name"));
        }
        if self.rules.named().any(|named| named == name) {
            self.named.push(name.to_owned());
        }
        let rules = self.rules.clone();
        let Some(chosen_name) = rules.name_of(name) else { return Ok(()) };
        if self.offers.len() >= limits::UPSTREAM_TOOLS_MAX {
            return Err(turn("its server has too many tools"));
        }
        if tool.to_string().len() > limits::UPSTREAM_TOOL_BYTES_MAX {
            return Err(turn("its description is too long"));
        }
        let Some(Value::Object(schema)) = tool.get("inputSchema") else {
            return Err(turn("it has no schema for its arguments"));
        };
        let as_task = tool.pointer("/execution/taskSupport").and_then(Value::as_str);
        let as_task = as_task == Some("required");
        if as_task && !self.has_tasks {
            return Err(turn("it runs only as a task, which its server does not support"));
        }
        let spec = ToolSpec {
            arguments: with_plain_texts(Value::Object(of_object(schema))),
            title: text(tool, "title").or_else(|| text(tool.get("annotations")?, "title")),
            output_schema: object(tool, "outputSchema").map(with_plain_texts),
            annotations: object(tool, "annotations").map(with_plain_texts).into(),
            is_relayed: true,
            ..ToolSpec::new(
                own_name(&self.prefix, chosen_name),
                text(tool, "description").unwrap_or_default(),
            )
        };
        if let Err(problem) = headers::declared(&spec.arguments) {
            return Err(turn(&problem));
        }
        if self.offers.iter().any(|other| other.name == name) {
            return Err(turn("its server has two tools of this name"));
        }
        if let Some(other) = self.offers.iter().find(|other| other.spec.name == spec.name) {
            let other = shown(&other.name);
            return Err(turn(&format!("it would have the same name here as `{other}`")));
        }
        self.offers.push(Offer { name: name.to_owned(), spec, as_task });
        Ok(())
    }
}

fn text(value: &Value, name: &str) -> Option<String> {
    Some(plain_text(value.get(name)?.as_str()?))
}

/// Makes the texts for people ([`TEXTS`]) in a schema or in annotations plain. Data such as
/// constants, examples and patterns stays as it is. A parsed JSON value is not deep, so the
/// recursion is bounded.
fn with_plain_texts(mut value: Value) -> Value {
    make_texts_plain(&mut value);
    value
}

/// Members of schemas and annotations that people and models read.
const TEXTS: [&str; 3] = ["title", "description", "$comment"];
/// Members whose values are data.
const DATA: [&str; 5] = ["const", "default", "enum", "examples", "pattern"];

fn make_texts_plain(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(text) if TEXTS.contains(&&**name) => *text = plain_text(text),
                    _ if DATA.contains(&&**name) => {}
                    _ => make_texts_plain(member),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_texts_plain),
        _ => {}
    }
}

fn object(value: &Value, name: &str) -> Option<Value> {
    value.get(name).filter(|member| member.is_object()).cloned()
}

/// Declares the arguments an object, if the schema declares no type.
fn of_object(schema: &Map<String, Value>) -> Map<String, Value> {
    let mut schema = schema.clone();
    if !schema.contains_key("type") {
        schema.insert("type".to_owned(), "object".into());
    }
    schema
}

/// Returns the name of a server's tool here: `prefix_name`. Characters that no name here can have
/// become `_`. A name that is too long is cut, and eight hexadecimal digits distinguish it from
/// others.
///
/// ```
/// use streamdoor::mcp::upstream::own_name;
/// assert_eq!(own_name("", "get-sum"), "get-sum");
/// assert_eq!(own_name("files", "fs/read"), "files_fs_read");
/// assert_eq!(own_name("", &"x".repeat(70)).len(), 64);
/// ```
pub fn own_name(prefix: &str, name: &str) -> String {
    let whole = match prefix {
        "" => name.to_owned(),
        prefix => format!("{prefix}_{name}"),
    };
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let can_be_had: String = whole.chars().map(|c| if is_name_char(c) { c } else { '_' }).collect();
    if is_tool_name(&can_be_had) || can_be_had.is_empty() {
        return can_be_had;
    }
    // FNV-1a gives a name the same digits in every run.
    let hash = whole
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let front = &can_be_had[..limits::TOOL_NAME_CHARS_MAX - 9];
    format!("{front}_{hash:08x}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mcp::Version;

    fn dialect(has_tasks: bool) -> Dialect {
        Dialect {
            version: Version::LATEST_HANDSHAKE,
            server: "s 1".to_owned(),
            has_tools: true,
            notifies_changes: false,
            has_tasks,
        }
    }

    fn tool(name: &str) -> Value {
        json!({"name": name, "inputSchema": {"type": "object"}})
    }

    #[test]
    fn rules_choose_tools_and_their_names() {
        let rules = "read,look=search,gone".parse().unwrap();
        let mut listing = Listing::new("up", &dialect(false)).with_rules(rules);
        let tools = json!([tool("read"), tool("search"), tool("delete")]);
        assert_eq!(listing.take(&json!({"tools": tools})), Ok(None));
        let (offers, unoffered) = listing.finish();
        let names: Vec<_> = offers.iter().map(|offer| (&*offer.name, &*offer.spec.name)).collect();
        assert_eq!(names, [("search", "up_look"), ("read", "up_read")]);
        let names: Vec<&str> = unoffered.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["gone"], "a hidden tool is no fault");
    }

    fn listed(tools: Value) -> (Vec<String>, Vec<UnofferedTool>) {
        let mut listing = Listing::new("", &dialect(false));
        assert_eq!(listing.take(&json!({ "tools": tools })), Ok(None));
        let (offers, unoffered) = listing.finish();
        (offers.into_iter().map(|offer| offer.spec.name).collect(), unoffered)
    }

    #[test]
    fn texts_of_a_tool_turn_no_direction_and_its_data_is_untouched() {
        let unoffered = "a\u{202e}b\u{2066}c\u{200f}";
        let tool = serde_json::json!({
            "name": "t", "title": unoffered, "description": unoffered,
            "inputSchema": {"type": "object", "title": unoffered, "properties": {
                "description": {"type": "string", "description": unoffered, "default": unoffered,
                    "enum": [unoffered, {"description": unoffered}]},
            }},
            "outputSchema": {"type": "object", "description": unoffered},
            "annotations": {"title": unoffered, "readOnlyHint": true},
        });
        let page = serde_json::json!({"tools": [tool]});
        let mut listing = Listing::new("", &dialect(false));
        assert_eq!(listing.take(&page), Ok(None));
        let (offers, turned_away) = listing.finish();
        assert!(turned_away.is_empty(), "{turned_away:?}");
        let spec = &offers[0].spec;
        assert_eq!((spec.title.as_deref(), &*spec.description), (Some("abc"), "abc"));
        let of_member = &spec.arguments["properties"]["description"];
        assert_eq!(
            (&spec.arguments["title"], &of_member["description"]),
            (&"abc".into(), &"abc".into())
        );
        assert_eq!(
            (&of_member["default"], &of_member["enum"][0]),
            (&unoffered.into(), &unoffered.into())
        );
        assert_eq!(of_member["enum"][1]["description"], unoffered);
        assert_eq!(spec.output_schema.as_ref().unwrap()["description"], "abc");
        assert!(
            !serde_json::to_string(&spec.to_json()["annotations"]).unwrap().contains('\u{202e}')
        );
    }

    #[test]
    fn all_pages_make_one_list_in_the_order_of_its_names() {
        let mut listing = Listing::new("up", &dialect(true));
        let first = json!({"tools": [tool("b/c")], "nextCursor": ""});
        assert_eq!(listing.take(&first), Ok(Some(String::new()))); // B35: it is valid.
        let described = json!({"name": "a", "title": "A", "description": "x\u{1b}[1m\ny",
            "inputSchema": {"properties": {}}, "outputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true}, "execution": {"taskSupport": "required"}});
        assert_eq!(listing.take(&json!({"tools": [described], "nextCursor": null})), Ok(None));
        let (offers, unoffered) = listing.finish();
        assert_eq!(unoffered, []);
        let names: Vec<_> = offers.iter().map(|o| (&*o.name, &*o.spec.name, o.as_task)).collect();
        assert_eq!(names, [("a", "up_a", true), ("b/c", "up_b_c", false)]);
        let spec = &offers[0].spec;
        assert_eq!(spec.arguments, json!({"properties": {}, "type": "object"}));
        assert_eq!(spec.output_schema, Some(json!({"type": "object"})));
        assert_eq!(spec.annotations, json!({"readOnlyHint": true}));
        assert_eq!((spec.title.as_deref(), &*spec.description), (Some("A"), "x[1m\ny"));
        assert!(spec.is_relayed);
    }

    #[test]
    fn what_cannot_be_offered_is_left_out_with_the_reason() {
        let long = "d".repeat(limits::UPSTREAM_TOOL_BYTES_MAX);
        let schema = json!({"type": "object", "properties": {"a": {"x-mcp-header": "a b"}}});
        for (bad, words) in [
            (json!(1), "no name"),
            (json!({"inputSchema": {"type": "object"}}), "no name"),
            (json!({"name": ["a"], "inputSchema": {"type": "object"}}), "no name"),
            (json!({"name": "a"}), "no schema"),
            (json!({"name": "a", "inputSchema": []}), "no schema"),
            (json!({"name": "a", "inputSchema": {"type": "object"}, "description": long}), "long"),
            (json!({"name": "a", "inputSchema": schema}), "x-mcp-header"),
            (tool("good"), "two tools of this name"),
            (
                json!({"name": "t", "inputSchema": {}, "execution": {"taskSupport": "required"}}),
                "task",
            ),
        ] {
            let (names, unoffered) = listed(json!([tool("good"), bad]));
            assert_eq!(names, ["good"], "{words}");
            assert!(unoffered[0].reason.contains(words), "{unoffered:?}");
        }
        let (names, unoffered) = listed(json!([tool("a/b"), tool("a b"), tool("c")]));
        assert_eq!(names, ["a_b", "c"]);
        assert!(unoffered[0].reason.contains("`a/b`"), "{unoffered:?}");
        let many: Vec<Value> = (0..2_000).map(|number| tool(&format!("t{number}"))).collect();
        let (names, unoffered) = listed(many.into());
        assert_eq!(names.len(), limits::UPSTREAM_TOOLS_MAX);
        assert_eq!(unoffered.len(), limits::UPSTREAM_TOOLS_MAX);
    }

    #[test]
    fn a_list_that_makes_no_sense_or_has_no_end_is_an_error() {
        for page in [json!({}), json!({"tools": {}}), json!({"tools": [], "nextCursor": 1})] {
            assert!(Listing::new("", &dialect(false)).take(&page).is_err(), "{page}");
        }
        let mut listing = Listing::new("", &dialect(false));
        let again = json!({"tools": [], "nextCursor": "x"});
        assert_eq!(listing.take(&again), Ok(Some("x".to_owned())));
        assert!(listing.take(&again).unwrap_err().contains("does not end"));
        let mut listing = Listing::new("", &dialect(false));
        let endless = (0..).find_map(|number: usize| {
            let page = json!({"tools": [], "nextCursor": number.to_string()});
            listing.take(&page).err().map(|error| (number, error))
        });
        assert_eq!(endless.unwrap().0, limits::UPSTREAM_PAGES_MAX);
    }

    #[test]
    fn names_are_the_same_in_every_run_and_can_be_had_here() {
        let long = own_name("prefix", &"é/".repeat(80));
        assert!(is_tool_name(&long), "{long}");
        assert_eq!(long, own_name("prefix", &"é/".repeat(80)));
        assert_ne!(long, own_name("prefix", &"é/".repeat(81)));
        assert_eq!(own_name("", &"x".repeat(64)), "x".repeat(64));
    }
}
