//! The choice of a server's tools: which are offered, and under which names.

use std::fmt;
use std::str::FromStr;

/// The tools of one server that are offered. The default offers all of them.
///
/// ```
/// use streamdoor::mcp::upstream::ToolRules;
/// let rules: ToolRules = "read,look=search".parse().unwrap();
/// assert_eq!(rules.name_of("read"), Some("read"));
/// assert_eq!(rules.name_of("search"), Some("look"));
/// assert_eq!(rules.name_of("delete"), None);
/// let rules: ToolRules = "!delete".parse().unwrap();
/// assert_eq!((rules.name_of("read"), rules.name_of("delete")), (Some("read"), None));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolRules(Vec<Rule>);

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// `*` offers all other tools.
    Others,
    /// `NAME` or `NEW=NAME` offers a tool, under another name if it is given.
    Offer { name: String, new_name: Option<String> },
    /// `!NAME` hides a tool.
    Hide(String),
}

/// The fault of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolRuleError(String);

impl fmt::Display for ToolRuleError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a rule is NAME, !NAME, NEW=NAME or *, not {:?}", self.0)
    }
}

impl std::error::Error for ToolRuleError {}

impl ToolRules {
    /// Adds a rule.
    ///
    /// # Errors
    /// The text is no rule.
    pub fn add(&mut self, text: &str) -> Result<(), ToolRuleError> {
        let rule = match (text, text.strip_prefix('!'), text.split_once('=')) {
            ("*", ..) => Rule::Others,
            (_, Some(name), _) => Rule::Hide(name.to_owned()),
            (_, _, Some((new_name, name))) => {
                Rule::Offer { name: name.to_owned(), new_name: Some(new_name.to_owned()) }
            }
            (name, ..) => Rule::Offer { name: name.to_owned(), new_name: None },
        };
        let is_whole = match &rule {
            Rule::Others => true,
            Rule::Hide(name) => !name.is_empty(),
            Rule::Offer { name, new_name } => {
                !name.is_empty() && new_name.as_ref().is_none_or(|name| !name.is_empty())
            }
        };
        if !is_whole {
            return Err(ToolRuleError(text.to_owned()));
        }
        self.0.push(rule);
        Ok(())
    }

    /// Adds the rules of `others` behind these.
    pub fn extend(&mut self, others: &ToolRules) {
        self.0.extend_from_slice(&others.0);
    }

    /// True if no rule is given, so that all tools are offered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the name under which the tool is offered, before the prefix. `None` if the tool is
    /// hidden. Rules that only hide tools offer all others.
    pub fn name_of<'a>(&'a self, tool: &'a str) -> Option<&'a str> {
        let is_hidden = self.0.iter().any(|rule| matches!(rule, Rule::Hide(name) if name == tool));
        if is_hidden {
            return None;
        }
        let offered = self.0.iter().find_map(|rule| match rule {
            Rule::Offer { name, new_name } if name == tool => {
                Some(new_name.as_deref().unwrap_or(tool))
            }
            _ => None,
        });
        let has_choice = self.0.iter().any(|rule| matches!(rule, Rule::Offer { .. }));
        let has_others = !has_choice || self.0.contains(&Rule::Others);
        offered.or(has_others.then_some(tool))
    }

    /// Returns the tools that rules name.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|rule| match rule {
            Rule::Others => None,
            Rule::Offer { name, .. } | Rule::Hide(name) => Some(name.as_str()),
        })
    }

    /// Returns each rule as text.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(Rule::to_string).collect()
    }
}

impl FromStr for ToolRules {
    type Err = ToolRuleError;
    fn from_str(text: &str) -> Result<ToolRules, ToolRuleError> {
        let mut rules = ToolRules::default();
        text.split(',').try_for_each(|rule| rules.add(rule.trim()))?;
        Ok(rules)
    }
}

impl fmt::Display for ToolRules {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.texts().join(","))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Others => out.write_str("*"),
            Rule::Hide(name) => write!(out, "!{name}"),
            Rule::Offer { name, new_name: None } => out.write_str(name),
            Rule::Offer { name, new_name: Some(new_name) } => write!(out, "{new_name}={name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_choose_and_rename_tools() {
        let names = |rules: &str| {
            let rules: ToolRules = rules.parse().unwrap();
            ["a", "b", "c"].map(|tool| rules.name_of(tool).unwrap_or("-").to_owned()).join(" ")
        };
        for (rules, expected) in [
            ("*", "a b c"),
            ("a", "a - -"),
            ("a,b", "a b -"),
            ("!a", "- b c"),
            ("!a,!b", "- - c"),
            ("a,b,!b", "a - -"),
            ("x=a", "x - -"),
            ("x=a,*", "x b c"),
            ("x=a,*,!c", "x b -"),
        ] {
            assert_eq!(names(rules), expected, "{rules}");
            let read: ToolRules = rules.parse().unwrap();
            assert_eq!(read.to_string(), rules);
        }
        assert_eq!(ToolRules::default().name_of("a"), Some("a"));
        for wrong in ["", "a,,b", "!", "=a", "x="] {
            assert!(wrong.parse::<ToolRules>().is_err(), "{wrong:?}");
        }
    }
}
