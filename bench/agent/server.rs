//! `bench agent server`: streamdoor's server with one model, as a process of its own.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use lexopt::ValueExt;
use streamdoor::reactor::ListenAddress;
use streamdoor::server::{
    AgentSettings, GuestConfig, ModelSettings, Server, ServerConfig, ToolChoice,
};
use streamdoor::shard::ShardConfig;

use crate::common::machine::allow_descriptors;
use crate::common::params::usage;
use crate::common::serve::child;
use crate::common::serve::load::Load;
use crate::common::{Failure, print};

/// The name of the model, in the settings and in requests.
pub const MODEL: &str = "demo";

const HELP: &str = "\
bench agent server: run streamdoor's server with one model, for one run

Listens on a free port of 127.0.0.1, and prints it. `bench agent` runs it.

Usage: bench agent server --model ADDRESS [options]

  --cpu N             pin it to cpu N (the first allowed)
  --child             reply to each line of standard input with the usage so far; exit at its end
";
const DESCRIPTORS_OTHER: u64 = 64;

/// Parses the options of a child process between a model and its readers.
///
/// # Errors
/// [`Failure`].
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    help: &str,
) -> Result<Option<(Load, SocketAddr)>, Failure> {
    let (mut model, mut is_child) = (None, false);
    let load = Load::parse(arguments, |name, parser| match name {
        "child" => {
            is_child = true;
            Ok(true)
        }
        "model" => {
            let text = parser.value().map_err(usage)?.string().map_err(usage)?;
            let parsed = text.parse::<SocketAddr>();
            model = Some(parsed.map_err(|error| Failure::Usage(format!("--model: {error}")))?);
            Ok(true)
        }
        _ => Ok(false),
    })?;
    let Some(load) = load else {
        print(help);
        return Ok(None);
    };
    let model = model
        .ok_or_else(|| Failure::Usage("--model: the address of the model is needed".to_owned()))?;
    if is_child {
        child::answer_standard_input();
    }
    Ok(Some((load, model)))
}

/// Runs `bench agent server` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some((load, model)) = parse(arguments, HELP)? else { return Ok(()) };
    // Each run has a connection to its model, and one to its reader.
    allow_descriptors(2 * u64::from(load.connections) + DESCRIPTORS_OTHER)?;
    let failed = |text: String| Failure::Environment(text);
    let base_url = format!("http://{model}/v1");
    let model = ModelSettings::new(MODEL, "chat", &base_url, MODEL, None)
        .map_err(|error| failed(error.to_string()))?;
    let mut shard = ShardConfig {
        reactor: load.reactor,
        idle: load.idle,
        cpu: Some(load.cpu),
        guests: GuestConfig {
            agents: AgentSettings { models: vec![model], tools: ToolChoice::None },
            ..Default::default()
        },
        ..Default::default()
    };
    let limits = &mut shard.engine;
    limits.executions_max = limits.executions_max.max(load.connections);
    limits.subscribers_max = limits.subscribers_max.max(load.connections);
    let config = ServerConfig {
        shards: vec![shard],
        listen: vec![ListenAddress::Tcp((Ipv4Addr::LOCALHOST, 0).into())],
        connections_max: 2 * load.connections + load.connections / 16 + 32,
    };
    let started = Server::start(config, Arc::new(|_| {}));
    let server = started.map_err(|error| failed(error.to_string()))?;
    let [ListenAddress::Tcp(address)] = server.addresses() else {
        unreachable!("it was told to listen there")
    };
    child::announce(*address);
    loop {
        std::thread::park(); // The end of standard input ends the process.
    }
}
