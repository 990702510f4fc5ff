//! A run in this process: on a shard of its own, which other clients may follow.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lexopt::ValueExt;
use serde_json::Value;
use streamdoor::agent::model::Wire;
use streamdoor::base::{ExecutionId, Principal};
use streamdoor::endpoint::{Access, Tokens};
use streamdoor::engine::{Start, SubscribeSpec};
use streamdoor::limits;
use streamdoor::reactor::{AnyReactor, Clock, ListenAddress, ListenError, OpenError, random_bytes};
use streamdoor::server::{
    AgentSettings, GuestConfig, Guests, ModelSettings, Server, ServerConfig, ServerError,
    ServerHandle, ServerShard, ToolChoice,
};
use streamdoor::shard::{Agreed, Delivery, ExecuteError, ExecuteOptions, Names, ShardConfig};
use streamdoor::stream::Policy;
use streamdoor::tool::{AGENT, CommandPolicy, Environment, Files, Variable};
use streamdoor::upstream::Upstreams;

use super::show::Show;
use crate::cli::console::print_err;
use crate::cli::hints::unknown_name;
use crate::cli::options::Common;
use crate::cli::session::Canceller;
use crate::cli::signals::stop_on_interrupt;
use crate::cli::upstreams::McpOptions;
use crate::cli::{CliError, parsed, results};

/// Time that the run waits for its local subscriber, which attaches at once.
const ATTACH_DEADLINE: Duration = Duration::from_secs(30);
/// The deadline for a reader that holds the run back. It is out of reach, because the reader of
/// standard output may pause.
const BLOCK_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3_600);
/// Maximum time that other subscribers are waited for at the end.
const LINGER: Duration = Duration::from_secs(10);
const LINGER_LOOK: Duration = Duration::from_millis(20);
/// Number of connections of other subscribers and of the tools.
const CONNECTIONS_MAX: u32 = 256;
/// The name of the model in the arguments of a run, which has only one model.
const MODEL: &str = "model";

/// The options of a run in this process.
pub struct LocalRun {
    wire: Wire,
    base_url: Option<String>,
    key_env: Option<String>,
    allows_commands: bool,
    command_env: Vec<Variable>,
    mcp: McpOptions,
    files_root: Option<PathBuf>,
    listen: Option<ListenAddress>,
    common: Common,
}

impl Default for LocalRun {
    fn default() -> LocalRun {
        LocalRun {
            wire: Wire::ChatCompletions,
            base_url: None,
            key_env: None,
            allows_commands: false,
            command_env: Vec::new(),
            mcp: McpOptions::default(),
            files_root: None,
            listen: None,
            common: super::common(),
        }
    }
}

impl LocalRun {
    /// Takes the value of the option `--name`. Returns false if it is not one of these.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        match name {
            "wire" => self.wire = super::wire(parser)?,
            "base-url" => self.base_url = Some(parser.value()?.string()?),
            "key-env" => self.key_env = Some(parser.value()?.string()?),
            "allow-commands" => self.allows_commands = true,
            "command-env" => self.command_env.push(parsed(name, parser)?),
            "files-root" => self.files_root = Some(parser.value()?.into()),
            "listen" => self.listen = Some(parsed(name, parser)?),
            "reactor" | "idle" => self.common.take(name, parser)?,
            _ => return self.mcp.take(name, parser),
        }
        Ok(true)
    }

    /// Runs the agent, and shows the run.
    pub fn run(self, model: &str, arguments: Value, mut show: Show) -> Result<(), CliError> {
        let upstreams = self.mcp.start(&self.command_env, &[self.key_variable().to_owned()])?;
        let (server, access) = self.start(model, &upstreams)?;
        let shard = server.handles().next().expect("there is one").clone();
        let owner = match access.is_guarded() {
            true => Principal(1),
            false => Principal::ANYONE,
        };
        check_tools(&shard, &arguments)?;
        let id = execute(&shard, arguments, owner)?;
        let canceller = Canceller::new(&shard, id);
        let at_interrupt = canceller.clone();
        stop_on_interrupt(move || at_interrupt.cancel())?;
        if let Some(address) = server.addresses().first() {
            let now = shard.call(|shard| shard.now()).map_err(lost)?;
            let ticket = access.ticket(owner, id, now).expect("it is guarded");
            print_err!("follow it: {}", command_to_follow(address, id, &ticket));
        }
        let verdict = follow(&shard, id, &canceller, &mut show);
        if !server.addresses().is_empty() {
            wait_for_others(&shard, id);
        }
        server.drain(LINGER);
        upstreams.end();
        let shown = show.close();
        shown.map_err(|error| CliError::Failed(format!("standard output: {error}")))?;
        verdict
    }

    fn start(
        &self,
        model: &str,
        upstreams: &Arc<Upstreams>,
    ) -> Result<(Server, Arc<Access>), CliError> {
        let model = self.model(model)?;
        let access = Arc::new(match &self.listen {
            None => Access::default(),
            Some(address) => guarded(address)?,
        });
        let agents = AgentSettings { models: vec![model], tools: ToolChoice::None };
        let (reactor, idle) = (self.common.reactor, self.common.idle);
        let access_of_shard = Arc::clone(&access);
        let shard = ShardConfig {
            reactor,
            idle,
            guests: GuestConfig { agents, access: access_of_shard, ..Default::default() },
            ..Default::default()
        };
        let config = ServerConfig {
            shards: vec![shard],
            listen: self.listen.iter().cloned().collect(),
            connections_max: CONNECTIONS_MAX,
        };
        let files = match &self.files_root {
            None => Files::Anywhere,
            Some(root) => Files::below(root).map_err(|error| {
                CliError::Environment(format!("--files-root {}: {error}", root.display()))
            })?,
        };
        let key_env = [self.key_variable().to_owned()];
        let environment = Environment::of_process(&self.command_env, &key_env);
        let allows_commands = self.allows_commands;
        let offered = Arc::clone(upstreams);
        let set_up = move |shard: &mut ServerShard| {
            let tools = shard.tools_mut();
            tools.allow_files(files.clone());
            tools.set_environment(environment.clone());
            if allows_commands {
                tools.allow_commands(CommandPolicy::Any);
            }
            offered.add_to(tools);
        };
        let started = Server::start(config, Arc::new(set_up)).map_err(|error| {
            let text = error.to_string();
            match error {
                ServerError::Shard(error)
                    if error.get_ref().is_some_and(|inner| inner.is::<OpenError>()) =>
                {
                    CliError::Environment(text)
                }
                _ => CliError::Failed(text),
            }
        });
        Ok((started?, access))
    }

    fn model(&self, model: &str) -> Result<ModelSettings, CliError> {
        let base_url = self.base_url.as_deref().unwrap_or(match self.wire {
            Wire::ChatCompletions | Wire::Responses => "https://api.openai.com/v1",
            Wire::Messages => "https://api.anthropic.com/v1",
        });
        let variable = self.key_variable();
        let key = std::env::var(variable).ok().filter(|key| !key.is_empty());
        if let (None, Some(asked), false) = (&key, &self.key_env, variable == NO_KEY) {
            return Err(CliError::Environment(format!(
                "--key-env {asked}: this variable has no key; set it, or give --key-env none"
            )));
        }
        if key.is_none() && self.base_url.is_none() {
            return Err(CliError::Environment(format!(
                "the variable {variable} has no key; set it, or use `streamdoor model-script`, \
                 which needs none"
            )));
        }
        let wire = self.wire.to_string();
        let settings = ModelSettings::new(MODEL, &wire, base_url, model, key.as_deref());
        let settings = settings.map_err(|error| {
            CliError::Usage(format!("--base-url {base_url}, --model {model}: {error}"))
        })?;
        let asked = &settings.endpoint.base_url;
        if key.is_some() && self.key_env.is_none() && !asked.is_tls && !is_this_machine(&asked.host)
        {
            return Err(CliError::Usage(format!(
                "--base-url {base_url}: the key in {variable} would be sent unencrypted; use \
                 https, or give --key-env none to send no key, or --key-env {variable} to send it \
                 anyway"
            )));
        }
        Ok(settings)
    }

    fn key_variable(&self) -> &str {
        self.key_env.as_deref().unwrap_or(match self.wire {
            Wire::ChatCompletions | Wire::Responses => "OPENAI_API_KEY",
            Wire::Messages => "ANTHROPIC_API_KEY",
        })
    }
}

fn is_this_machine(host: &str) -> bool {
    let is_loopback = |address: std::net::IpAddr| address.is_loopback();
    host == "localhost" || host.parse().is_ok_and(is_loopback)
}

/// The value of `--key-env` for a model without a key.
const NO_KEY: &str = "none";

/// Returns access rules under which a client with a ticket can follow this run and do nothing else.
/// The tools here can do whatever this user can.
fn guarded(address: &ListenAddress) -> Result<Access, CliError> {
    if matches!(address, ListenAddress::Tcp(address) if !address.ip().is_loopback()) {
        let error = ListenError::Unguarded { address: address.clone() };
        return Err(CliError::Usage(error.to_string()));
    }
    let no_randomness =
        |error| CliError::Environment(format!("no random bytes for tickets: {error}"));
    let (mut token, mut ticket_key) = ([0; 32], [0; 32]);
    random_bytes(&mut token).map_err(no_randomness)?;
    random_bytes(&mut ticket_key).map_err(no_randomness)?;
    let token: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    let tokens = Tokens::read(&format!("me {token}")).expect("it is a line with a token");
    let ttl = limits::AGENT_DURATION_MAX;
    Ok(Access::default().with_tokens(tokens, ticket_key, ttl))
}

fn command_to_follow(address: &ListenAddress, id: ExecutionId, ticket: &str) -> String {
    let path = format!("/v1/executions/{id}/events?ticket={ticket}");
    match address {
        ListenAddress::Tcp(address) => format!("curl -N 'http://{address}{path}'"),
        ListenAddress::Unix(socket) => {
            format!("curl -N --unix-socket '{}' 'http://localhost{path}'", socket.display())
        }
        ListenAddress::Inherited(_) => format!("{address}{path}"), // The server resolves it.
    }
}

fn lost(error: impl std::fmt::Debug) -> CliError {
    CliError::Failed(format!("the shard ended: {error:?}"))
}

/// Fails if the arguments name a tool that is not offered. The error lists those that are.
fn check_tools(shard: &ServerHandle, arguments: &Value) -> Result<(), CliError> {
    let known = shard.call(|shard| -> Vec<String> {
        shard.tools_mut().specs().map(|spec| spec.name.clone()).collect()
    });
    let known = known.map_err(lost)?;
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    match super::named_tools(arguments).find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) => {
            let problem = format!("--tools: unknown tool `{name}`");
            Err(CliError::Usage(unknown_name(&problem, name, &known, "tools are")))
        }
    }
}

fn execute(
    shard: &ServerHandle,
    arguments: Value,
    owner: Principal,
) -> Result<ExecutionId, CliError> {
    let options = ExecuteOptions {
        start: Start::AfterSubscribers { count: 1, deadline: ATTACH_DEADLINE },
        block_deadline: Some(BLOCK_DEADLINE),
        owner,
        ..Default::default()
    };
    match shard.call(move |shard| shard.execute(AGENT, &arguments, options)).map_err(lost)? {
        Ok(id) => Ok(id),
        Err(ExecuteError::Start(error)) => Err(CliError::Call(error.to_string())),
        Err(error) => Err(CliError::Failed(error.to_string())),
    }
}

/// Takes all deliveries up to the end.
fn follow(
    shard: &ServerHandle,
    id: ExecutionId,
    canceller: &Canceller<Guests<AnyReactor>>,
    show: &mut Show,
) -> Result<(), CliError> {
    let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
    let subscribed = shard.subscribe(id, spec);
    let mut subscriber = subscribed
        .map_err(|error| CliError::Failed(format!("the run cannot be followed: {error}")))?;
    let names = Names { has_parts: true, ..Names::new(id, None) };
    let (id, terms) = (subscriber.id(), subscriber.terms());
    let agreed = Agreed { subscriber: id, terms, from_seq: 1, replay: None };
    names.write_started(AGENT, agreed, |event| {
        show.take(event, Clock::now());
    });
    let mut is_unwanted = false;
    loop {
        let delivery = subscriber.next();
        show.take(&delivery.event(&names), Clock::now());
        if let Delivery::End(ended) = &delivery {
            let error = show.failure().or(ended.error);
            return results::verdict_of("the reader", &ended.end, error);
        }
        if show.has_failed() && !std::mem::replace(&mut is_unwanted, true) {
            canceller.cancel(); // Nobody sees its further output.
        }
    }
}

/// Waits until other subscribers have read the end, for at most [`LINGER`].
fn wait_for_others(shard: &ServerHandle, id: ExecutionId) {
    let until = Clock::now() + LINGER;
    let is_followed = || {
        let followers = shard.call(move |shard| shard.subscribers(id).map_or(0, |all| all.len()));
        followers.is_ok_and(|count| count > 0)
    };
    while is_followed() && Clock::now() < until {
        std::thread::sleep(LINGER_LOOK);
    }
}
