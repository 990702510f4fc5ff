//! Other MCP servers whose tools this server offers. The file has `[mcp.NAME]`. The command line
//! has `COMMAND`, `URL`, `NAME=COMMAND` or `NAME=URL`. Neither contains a key: the settings name
//! the environment variable that holds it.

use std::time::Duration;

use streamdoor::limits::{UPSTREAM_CALL_DEADLINE, UPSTREAM_CALL_DEADLINE_MAX, UPSTREAMS_MAX};
use streamdoor::mcp::upstream::ToolRules;
use streamdoor::tool::Environment;
use streamdoor::upstream::{Key, UpstreamPlace, UpstreamSpec, words_of};
use toml::de::DeValue;

use super::super::CliError;
use super::super::hints::unknown_name;
use super::super::options::{duration, spelled};
use super::builtin::McpTools;
use super::kinds::{Setting, quoted};
use super::named::{Named, push, read_tables};

/// The servers, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct McpServers(pub Vec<McpServer>);

/// The description of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct McpServer {
    /// The name in the log.
    pub name: String,
    /// The prefix of its tools, without the `_` that follows it; may be empty.
    prefix: String,
    /// The program and its arguments. Empty if the server has a URL.
    words: Vec<String>,
    /// Environment variables of the program.
    env: Vec<(String, String)>,
    url: String,
    /// The environment variable that holds the key.
    key_env: String,
    /// The choice of its tools.
    rules: ToolRules,
    /// Time limit of a call, or `None` for the default.
    timeout: Option<Duration>,
}

const FIELDS: &str = "command, args, env, url, key_env, prefix, tools, timeout";
/// Maximum length of a name.
const NAME_CHARS_MAX: usize = 32;

impl McpServer {
    /// Returns the specification of the server. `key` comes from the environment. Programs get
    /// `environment`.
    pub fn spec(&self, key: Option<Key>, environment: Environment) -> UpstreamSpec {
        let place = match self.url.as_str() {
            "" => {
                let (words, variables) = (self.words.clone(), self.env.clone());
                UpstreamPlace::Program { words, variables, environment }
            }
            url => UpstreamPlace::Url { url: url.to_owned(), key },
        };
        UpstreamSpec {
            name: self.name.clone(),
            prefix: self.prefix.clone(),
            rules: self.rules.clone(),
            place,
            call_deadline: self.timeout.unwrap_or(UPSTREAM_CALL_DEADLINE),
        }
    }

    /// Returns the environment variable that holds its key, if it has a key.
    pub fn key_variable(&self) -> Option<&str> {
        (!self.key_env.is_empty()).then_some(self.key_env.as_str())
    }

    fn to_toml(&self) -> String {
        let mut fields = Vec::new();
        if let Some((program, args)) = self.words.split_first() {
            fields.push(format!("command = {}", quoted(&as_word(program))));
            let args: Vec<String> = args.iter().map(|arg| quoted(arg)).collect();
            if !args.is_empty() {
                fields.push(format!("args = [{}]", args.join(", ")));
            }
        }
        if !self.env.is_empty() {
            let variable =
                |(name, value): &(String, String)| format!("{} = {}", quoted(name), quoted(value));
            let variables: Vec<String> = self.env.iter().map(variable).collect();
            fields.push(format!("env = {{ {} }}", variables.join(", ")));
        }
        for (name, text) in [("url", &self.url), ("key_env", &self.key_env)] {
            if !text.is_empty() {
                fields.push(format!("{name} = {}", quoted(text)));
            }
        }
        if self.prefix != self.name {
            fields.push(format!("prefix = {}", quoted(&self.prefix)));
        }
        if !self.rules.is_empty() {
            let rules: Vec<String> = self.rules.texts().iter().map(|rule| quoted(rule)).collect();
            fields.push(format!("tools = [{}]", rules.join(", ")));
        }
        if let Some(timeout) = self.timeout {
            fields.push(format!("timeout = {}", quoted(&spelled(timeout))));
        }
        format!("{} = {{ {} }}", quoted(&self.name), fields.join(", "))
    }
}

/// Returns a word of a command line, in quotes if necessary.
fn as_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./@:+=,%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Splits `NAME=…`. The name is `None` if the word has none.
fn split_name(word: &str) -> (Option<&str>, &str) {
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    };
    match word.split_once('=') {
        Some((name, rest)) if is_name(name) => (Some(name), rest),
        _ => (None, word),
    }
}

/// Returns a name for a server without one: its host, its program, or the script that an
/// interpreter runs.
fn name_for(server: &McpServer) -> String {
    const INTERPRETERS: [&str; 9] =
        ["npx", "uvx", "bunx", "node", "bun", "deno", "python", "python3", "uv"];
    let last_piece = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let source = match server.words.split_first() {
        None => {
            let rest = server.url.split_once("://").map_or("", |(_, rest)| rest);
            rest.split(['/', ':', '?']).next().unwrap_or_default().to_owned()
        }
        Some((program, args)) => {
            let program = last_piece(program);
            let is_interpreter = INTERPRETERS.contains(&program.as_str());
            let of_args = args.iter().find(|arg| !arg.starts_with('-')).map(|arg| last_piece(arg));
            of_args.filter(|_| is_interpreter).unwrap_or(program)
        }
    };
    let is_name_char = |c: &char| c.is_ascii_alphanumeric() || "_-.".contains(*c);
    let name: String = source.chars().filter(is_name_char).take(NAME_CHARS_MAX - 4).collect();
    if name.is_empty() { "mcp".to_owned() } else { name }
}

impl McpServers {
    /// Fails if a choice of tools is for a server that is not among these.
    pub fn check_choices(&self, choices: &[McpTools]) -> Result<(), CliError> {
        let known: Vec<&str> = self.0.iter().map(|server| server.name.as_str()).collect();
        for name in choices.iter().filter_map(|choice| choice.server.as_deref()) {
            if !known.contains(&name) {
                let problem = format!("mcp_tools: no server is named `{name}`");
                return Err(CliError::Usage(unknown_name(&problem, name, &known, "servers are")));
            }
        }
        Ok(())
    }
}

impl Named for McpServer {
    const TABLES: &'static str = "servers by name: [mcp.NAME]";
    const COUNT_MAX: usize = UPSTREAMS_MAX;

    fn of_name(name: &str) -> McpServer {
        let (name, prefix) = (name.to_owned(), name.to_owned());
        McpServer { name, prefix, ..McpServer::default() }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set(&mut self, field: &str, value: &DeValue<'_>) -> Result<(), String> {
        let text = || value.as_str().map(str::to_owned).ok_or("is not a text in quotes");
        match field {
            "command" => {
                let words = words_of(&text()?).map_err(|error| error.to_string())?;
                self.words.splice(0..0, words);
            }
            "args" => {
                let args = value.as_array().ok_or("is not a list of texts")?;
                for arg in args.iter() {
                    let arg = arg.get_ref().as_str().ok_or("is not a list of texts")?;
                    self.words.push(arg.to_owned());
                }
            }
            "env" => {
                let DeValue::Table(variables) = value else {
                    return Err("is not a table of texts".to_owned());
                };
                for (name, value) in variables.iter() {
                    let value = value.get_ref().as_str().ok_or("is not a table of texts")?;
                    self.env.push((name.get_ref().to_string(), value.to_owned()));
                }
                self.env.sort();
            }
            "url" => self.url = text()?,
            "key_env" => self.key_env = text()?,
            "prefix" => self.prefix = text()?,
            "tools" => {
                let rules = value.as_array().ok_or("is not a list of texts")?;
                for rule in rules.iter() {
                    let rule = rule.get_ref().as_str().ok_or("is not a list of texts")?;
                    self.rules.add(rule).map_err(|error| format!("is wrong: {error}"))?;
                }
            }
            "timeout" => {
                let time = value.as_str().and_then(duration).filter(|time| !time.is_zero());
                self.timeout = Some(time.ok_or("is not a time in quotes, as \"60s\"")?);
            }
            _ => return Err(format!("is not one of {FIELDS}")),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let problem = |text: &str| Err(format!("{}: {text}", self.name));
        let is_variable = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if self.words.is_empty() == self.url.is_empty() {
            return problem("give either a command or a url");
        }
        if !self.key_env.chars().all(is_variable) {
            return problem("key_env must be the name of a variable, not a key");
        }
        if self.url.is_empty() && !self.key_env.is_empty() {
            return problem("key_env needs a url; give a command its env");
        }
        if !self.url.is_empty() && !self.env.is_empty() {
            return problem("env needs a command");
        }
        if self.timeout.is_some_and(|timeout| timeout > UPSTREAM_CALL_DEADLINE_MAX) {
            let most = spelled(UPSTREAM_CALL_DEADLINE_MAX);
            return problem(&format!("timeout must be at most {most}"));
        }
        // The rules for the URL depend on whether the server has a key.
        let key = self.key_variable().map(|_| Key::new("k").expect("it could be one"));
        let spec = self.spec(key, Environment::default());
        spec.check().map_err(|error| format!("{}: {error}", self.name))
    }
}

impl Setting for McpServers {
    fn placeholder(&self) -> String {
        "[NAME=]COMMAND|URL".to_owned()
    }

    fn read_word(&mut self, word: &str) -> Result<(), String> {
        let (name, rest) = split_name(word);
        let mut server = McpServer::default();
        match rest.starts_with("http://") || rest.starts_with("https://") {
            true => server.url = rest.to_owned(),
            false => server.words = words_of(rest).map_err(|error| error.to_string())?,
        }
        match name {
            Some(name) => (server.name, server.prefix) = (name.to_owned(), name.to_owned()),
            None => {
                let name = name_for(&server);
                let is_taken = |name: &String| self.0.iter().any(|other| other.name == *name);
                let more = (2..).map(|number| format!("{name}-{number}"));
                let mut all = std::iter::once(name.clone()).chain(more);
                server.name = all.find(|name| !is_taken(name)).expect("there is always another");
            }
        }
        push(&mut self.0, server)
    }

    fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String> {
        self.0 = read_tables(value)?;
        Ok(())
    }

    fn to_toml(&self) -> String {
        let servers: Vec<String> = self.0.iter().map(McpServer::to_toml).collect();
        match servers.is_empty() {
            true => "{}".to_owned(),
            false => format!("{{ {} }}", servers.join(", ")),
        }
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn of_words(words: &[&str]) -> Result<McpServers, String> {
        let mut servers = McpServers::default();
        words.iter().try_for_each(|word| servers.read_word(word))?;
        Ok(servers)
    }

    #[test]
    fn servers_of_the_command_line_are_printed_as_a_file_and_read_again() {
        let words = [
            "npx -y @modelcontextprotocol/server-everything",
            "npx -y @modelcontextprotocol/server-everything stdio",
            "files='/a b/server' --root 'it''s \"x\"'",
            "https://example.com/mcp?x=1",
            "near=http://127.0.0.1:3001/mcp",
        ];
        let servers = of_words(&words).unwrap();
        let names: Vec<_> = servers.0.iter().map(|s| (&*s.name, &*s.prefix)).collect();
        assert_eq!(
            names,
            [
                ("server-everything", ""),
                ("server-everything-2", ""),
                ("files", "files"),
                ("example.com", ""),
                ("near", "near"),
            ]
        );
        assert_eq!(servers.0[2].words, ["/a b/server", "--root", "its \"x\""]);
        let mut again = Settings::default();
        again.read_toml(&format!("mcp = {}", servers.to_toml())).unwrap();
        assert_eq!(again.mcp, servers);
    }

    #[test]
    fn a_table_has_what_other_programs_have_in_theirs() {
        let text = "[mcp.git]\nargs = ['--repository', 'a b']\ncommand = 'uvx mcp-server-git'\n\
                    timeout = '5s'\ntools = ['log', '!push', 'see=show']\n\
                    [mcp.git.env]\nB = '2'\nA = '1'\n\
                    [mcp.far]\nurl = 'https://h/mcp'\nkey_env = 'FAR_KEY'\nprefix = ''\n";
        let mut settings = Settings::default();
        settings.read_toml(text).unwrap();
        let [git, far] = &settings.mcp.0[..] else { panic!("{:?}", settings.mcp) };
        assert_eq!(git.words, ["uvx", "mcp-server-git", "--repository", "a b"]);
        assert_eq!(git.env, [("A".into(), "1".into()), ("B".into(), "2".into())]);
        assert_eq!(git.spec(None, Environment::default()).call_deadline, Duration::from_secs(5));
        assert_eq!(git.rules.to_string(), "log,!push,see=show");
        assert_eq!((&*git.prefix, &*far.prefix), ("git", ""));
        assert_eq!(far.key_variable(), Some("FAR_KEY"));
        let mut again = Settings::default();
        again.read_toml(&settings.to_toml()).unwrap();
        assert_eq!(again, settings);
    }

    #[test]
    fn what_is_wrong_with_one_is_said() {
        for (text, problem) in [
            ("mcp = 1", "must be tables"),
            ("[mcp.a]", "a command or a url"),
            ("[mcp.a]\ncommand = 'x'\nurl = 'http://h'", "either a command or a url"),
            ("[mcp.a]\ncommand = 'x'\nkey_env = 'K'", "needs a url"),
            ("[mcp.a]\nurl = 'http://127.0.0.1'\nkey_env = 'sk-123'", "not a key"),
            ("[mcp.a]\nurl = 'http://example.com'\nkey_env = 'K'", "use https"),
            ("[mcp.a]\ncommand = 'x'\ntimeout = '0s'", "\"timeout\" is not a time"),
            ("[mcp.a]\ncommand = 'x'\ntimeout = 5", "\"timeout\" is not a time"),
            ("[mcp.a]\ncommand = 'x'\ntimeout = '999999h'", "at most"),
            ("[mcp.a]\ncommand = 'x'\ntools = ['!']", "a rule is NAME"),
            ("[mcp.a]\ncommand = 'x'\nfoo = 0", "is not one of command"),
            ("[mcp.a]\ncommand = \"'x\"", "is not closed"),
            ("[mcp.'a b']\ncommand = 'x'", "a name is"),
            ("[mcp.a]\nurl = 'ftp://h'", "its URL"),
        ] {
            let error = Settings::default().read_toml(text).unwrap_err();
            assert!(error.contains(problem) && !error.contains("sk-"), "{text}: {error}");
        }
        assert!(of_words(&["a=x", "a=y"]).unwrap_err().contains("twice"));
        assert!(of_words(&[""]).is_err());
    }
}
