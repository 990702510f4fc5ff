//! Other MCP servers whose tools commands offer beside their own: starts them from the settings.

use std::sync::Arc;

use streamdoor::server::Log;
use streamdoor::tool::{Environment, Tools, Variable};
use streamdoor::upstream::{Key, UpstreamSpec, Upstreams, UpstreamsError};

use super::CliError;
use super::settings::{McpServer, McpServers, McpTools, read_mcp_server, read_mcp_tools};

/// Names of tools that exist without an entry in a table of tools.
const RESERVED: [&str; 6] =
    ["agent", "llm_generate", "run_command", "stream_open", "stream_read", "stream_close"];

/// Starts the servers. Their programs get the variables `asked`, but none of `secret` and none that
/// holds the key of a server.
pub fn start(
    (servers, choices): (&McpServers, &[McpTools]),
    (asked, secret): (&[Variable], &[String]),
    log: &Log,
) -> Result<Upstreams, CliError> {
    let keys = servers.0.iter().filter_map(McpServer::key_variable).map(str::to_owned);
    let secret: Vec<String> = secret.iter().cloned().chain(keys).collect();
    let environment = Environment::of_process(asked, &secret);
    let specs: Result<Vec<UpstreamSpec>, CliError> = servers
        .0
        .iter()
        .map(|server| {
            let problem =
                |text: &str| CliError::Environment(format!("mcp.{}: {text}", server.name));
            let key = match server.key_variable() {
                None => None,
                Some(variable) => {
                    let text = std::env::var(variable);
                    let text = text.map_err(|_| {
                        problem(&format!("the variable {variable} has no key; set it"))
                    })?;
                    Some(Key::new(&text).map_err(|error| problem(&error.to_string()))?)
                }
            };
            let mut spec = server.spec(key, environment.clone());
            let is_for =
                |choice: &&McpTools| choice.server.as_ref().is_none_or(|name| *name == server.name);
            choices.iter().filter(is_for).for_each(|choice| spec.rules.extend(&choice.rules));
            Ok(spec)
        })
        .collect();
    Upstreams::start(specs?, log).map_err(|error| in_words(&error))
}

/// Checks that the tools of the servers clash neither with other tools nor with reserved names.
pub fn check(
    upstreams: &Upstreams,
    own: &Tools,
    is_taken: impl Fn(&str) -> bool,
) -> Result<(), CliError> {
    let is_taken =
        |name: &str| own.spec(name).is_some() || RESERVED.contains(&name) || is_taken(name);
    upstreams.check_names(is_taken).map_err(|error| in_words(&error))
}

fn in_words(error: &UpstreamsError) -> CliError {
    let text = format!("mcp.{error}");
    match error {
        UpstreamsError::Start { .. } => CliError::Environment(text),
        UpstreamsError::Spec { .. } | UpstreamsError::Names(_) | UpstreamsError::Clash { .. } => {
            CliError::Usage(text)
        }
    }
}

/// The options `--mcp` and `--mcp-tools` of a command that runs something locally.
#[derive(Default)]
pub struct McpOptions {
    servers: McpServers,
    choices: Vec<McpTools>,
}

impl McpOptions {
    /// Takes the option `--name` and its value. Returns false if it is not one of these.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        let mut word = || Ok::<_, CliError>(lexopt::ValueExt::string(parser.value()?)?);
        let (word, read) = match name {
            "mcp" => {
                let word = word()?;
                let read = read_mcp_server(&mut self.servers, &word);
                (word, read)
            }
            "mcp-tools" => {
                let word = word()?;
                let read = read_mcp_tools(&mut self.choices, &word);
                (word, read)
            }
            _ => return Ok(false),
        };
        read.map_err(|error| CliError::Usage(format!("--{name} {word}: {error}")))?;
        Ok(true)
    }

    /// Starts the servers, and adds their tools to `tools`.
    pub fn add_to(&self, tools: &mut Tools) -> Result<Arc<Upstreams>, CliError> {
        self.servers.check_choices(&self.choices)?;
        let upstreams = start((&self.servers, &self.choices), (&[], &[]), &Log::off())?;
        check(&upstreams, tools, |_| false)?;
        upstreams.add_to(tools);
        Ok(Arc::new(upstreams))
    }

    /// Starts the servers. Their programs get the variables `asked`, and never those in `secret`.
    pub fn start(&self, asked: &[Variable], secret: &[String]) -> Result<Arc<Upstreams>, CliError> {
        self.servers.check_choices(&self.choices)?;
        let upstreams = start((&self.servers, &self.choices), (asked, secret), &Log::off())?;
        check(&upstreams, &Tools::built_in(), |_| false)?;
        Ok(Arc::new(upstreams))
    }
}
