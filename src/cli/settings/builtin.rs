//! The choice of built-in tools, and of the tools of other MCP servers.

use std::fmt;
use std::str::FromStr;

use streamdoor::mcp::upstream::ToolRules;
use streamdoor::tool::{Files, Tools, is_tool_name};

use super::super::CliError;
use super::super::hints::unknown_name;

/// The built-in tools that are offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Builtin {
    /// The same as `None` with other MCP servers, and as `All` without.
    #[default]
    Auto,
    /// Only those that other settings ask for.
    None,
    /// All.
    All,
    /// These.
    Names(Vec<String>),
}

impl fmt::Display for Builtin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Builtin::Auto => out.write_str("auto"),
            Builtin::None => out.write_str("none"),
            Builtin::All => out.write_str("all"),
            Builtin::Names(names) => out.write_str(&names.join(",")),
        }
    }
}

impl FromStr for Builtin {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Builtin, &'static str> {
        match text {
            "auto" => Ok(Builtin::Auto),
            "none" => Ok(Builtin::None),
            "all" => Ok(Builtin::All),
            names if names.split(',').all(is_tool_name) => {
                Ok(Builtin::Names(names.split(',').map(str::to_owned).collect()))
            }
            _ => Err("must be auto, none, all or names of tools with commas"),
        }
    }
}

impl Builtin {
    /// Returns the names among the `available` tools that are not offered.
    ///
    /// # Errors
    /// If a chosen name is not available.
    pub fn hidden(&self, available: &Tools, has_servers: bool) -> Result<Vec<String>, CliError> {
        let known: Vec<&str> = available.specs().map(|spec| spec.name.as_str()).collect();
        let hidden: Vec<&str> = match self {
            Builtin::All => Vec::new(),
            Builtin::Auto if !has_servers => Vec::new(),
            Builtin::Auto | Builtin::None => {
                let mut unasked = Tools::built_in();
                unasked.allow_files(Files::Nowhere);
                known.into_iter().filter(|name| unasked.spec(name).is_some()).collect()
            }
            Builtin::Names(names) => {
                if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
                    let problem = format!("--builtin: no built-in tool `{name}` is enabled");
                    let text = unknown_name(&problem, name, &known, "enabled ones are");
                    return Err(CliError::Usage(text));
                }
                known.into_iter().filter(|name| !names.iter().any(|one| one == name)).collect()
            }
        };
        Ok(hidden.into_iter().map(str::to_owned).collect())
    }
}

/// A choice of tools of other MCP servers: `[NAME:]RULES`. Without a name it is for all servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpTools {
    /// The name of the server.
    pub server: Option<String>,
    pub rules: ToolRules,
}

impl fmt::Display for McpTools {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Some(server) => write!(out, "{server}:{}", self.rules),
            None => write!(out, "{}", self.rules),
        }
    }
}

impl FromStr for McpTools {
    type Err = String;
    fn from_str(text: &str) -> Result<McpTools, String> {
        let (server, rules) = match text.split_once(':') {
            Some((server, rules)) => (Some(server.to_owned()), rules),
            None => (None, text),
        };
        let rules = rules.parse().map_err(|error| format!("{error}"))?;
        Ok(McpTools { server, rules })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tools_that_nobody_asked_for_are_hidden_by_default() {
        let mut tools = Tools::built_in();
        tools.allow_files(Files::Anywhere);
        let hidden = |text: &str, has_servers| {
            text.parse::<Builtin>().unwrap().hidden(&tools, has_servers).unwrap().join(" ")
        };
        assert_eq!((hidden("auto", false), hidden("all", true)), (String::new(), String::new()));
        for (text, has_servers) in [("auto", true), ("none", false), ("none", true)] {
            let hidden = hidden(text, has_servers);
            assert!(hidden.contains("slow_data_processor"), "{hidden}");
            assert!(!hidden.contains("process_file"), "{hidden}");
        }
        let one = hidden("slow_data_processor", true);
        assert!(one.contains("process_file") && !one.contains("slow_data_processor"), "{one}");
        let unknown: Builtin = "slow_data_procesor".parse().unwrap();
        let error = unknown.hidden(&tools, false).unwrap_err().to_string();
        assert!(error.contains("did you mean slow_data_processor?"), "{error}");
        assert!("a b".parse::<Builtin>().is_err());
    }
}
