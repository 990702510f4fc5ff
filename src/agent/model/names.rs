//! The names of tools on a wire.
//!
//! OpenAI and Anthropic accept letters, digits, `_` and `-`, and at most 64 of them. Names of tools
//! here also contain dots. The model receives a derived name that its wire accepts, and a name in
//! its answer is translated back. A number is added where derived names coincide.

use std::collections::BTreeMap;

use crate::agent::message::ToolDescription;
use crate::limits;

/// The names of a list of tools, in both directions.
#[derive(Debug, Default)]
pub(super) struct ToolNames {
    to_wire: BTreeMap<String, String>,
    from_wire: BTreeMap<String, String>,
}

impl ToolNames {
    /// Derives the names of a list of tools. Equal lists give equal names.
    pub fn of(tools: &[ToolDescription]) -> ToolNames {
        let mut names = ToolNames::default();
        // Names that the wire accepts stay as they are, whatever comes before them.
        let (plain, other): (Vec<_>, Vec<_>) =
            tools.iter().map(|tool| tool.name.as_str()).partition(|name| is_plain(name));
        for name in plain.into_iter().chain(other) {
            if !names.to_wire.contains_key(name) {
                let wire = names.free_name(name);
                names.from_wire.insert(wire.clone(), name.to_owned());
                names.to_wire.insert(name.to_owned(), wire);
            }
        }
        names
    }

    /// Returns the name for the wire. For a tool that is not in the list (any more) the name is
    /// derived without a number.
    pub fn wire_name(&self, name: &str) -> String {
        self.to_wire.get(name).cloned().unwrap_or_else(|| plain_name(name))
    }

    /// Returns the local name of a tool named by the wire, or the same name if no tool has it.
    pub fn tool_name<'a>(&'a self, wire: &'a str) -> &'a str {
        self.from_wire.get(wire).map_or(wire, String::as_str)
    }

    fn free_name(&self, name: &str) -> String {
        let plain = plain_name(name);
        let numbered = |number: usize| {
            let number = format!("_{number}");
            let room = limits::MODEL_TOOL_NAME_BYTES_MAX - number.len();
            format!("{}{number}", &plain[..plain.len().min(room)])
        };
        let candidates = std::iter::once(plain.clone()).chain((2..).map(numbered));
        let mut free = candidates.filter(|candidate| !self.from_wire.contains_key(candidate));
        free.next().expect("there are more numbers than tools")
    }
}

fn is_plain(name: &str) -> bool {
    let is_plain_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=limits::MODEL_TOOL_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain_byte)
}

fn plain_name(name: &str) -> String {
    let is_plain_char = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let chars = name.chars().map(|c| if is_plain_char(c) { c } else { '_' });
    let plain: String = chars.take(limits::MODEL_TOOL_NAME_BYTES_MAX).collect();
    if plain.is_empty() { "_".to_owned() } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> ToolNames {
        let tool = |name: &&str| ToolDescription {
            name: (*name).to_owned(),
            description: String::new(),
            schema: serde_json::json!({}),
        };
        ToolNames::of(&list.iter().map(tool).collect::<Vec<_>>())
    }

    #[test]
    fn every_tool_is_found_again_by_the_name_that_the_wire_was_told() {
        let long = |end: &str| format!("{}{end}", "a".repeat(70));
        let list = [
            "files.search",
            "files_search",
            "files-search",
            "files.search_2",
            "files_search_2",
            "files:search",
            "ä",
            "ö",
            "",
            "_",
            &long("1"),
            &long("2"),
            &long(""),
        ];
        let names = names(&list);
        let mut wires: Vec<String> = list.iter().map(|name| names.wire_name(name)).collect();
        for (name, wire) in list.iter().zip(&wires) {
            assert!(is_plain(wire), "{name:?}: {wire:?}");
            assert_eq!(names.tool_name(wire), *name);
        }
        assert_eq!(wires[1], "files_search"); // A name that can stay stays.
        wires.sort();
        wires.dedup();
        assert_eq!(wires.len(), list.len());
    }

    #[test]
    fn a_name_of_no_tool_is_what_it_is() {
        let names = names(&["a.b"]);
        assert_eq!(names.tool_name("nothing"), "nothing");
        assert_eq!(names.wire_name("not.there"), "not_there");
    }
}
