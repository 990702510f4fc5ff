//! `streamdoor serve`: a server, from its settings to its orderly end.
//!
//! All output goes to the log, on standard error: what was found at the start, the addresses once
//! it listens, and how it ended. Only `--print-config` and `--help` use standard output.

mod access;
mod banner;
mod budget;
mod cluster;
mod conformance;
mod door;
mod journal;
mod reload;
mod service;

use std::io;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use lexopt::prelude::*;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use streamdoor::endpoint::Access;
use streamdoor::engine::EngineLimits;
use streamdoor::memory::{RingPoolConfig, heap, named};
use streamdoor::reactor::thread::PollIdle;
use streamdoor::reactor::{Clock, Idle, ListenAddress, OpenError};
use streamdoor::server::{
    AgentSettings, Doors, Drained, GuestConfig, Log, NamedDoors, Server, ServerConfig, ServerError,
    ServerShard, ServerShardConfig, SetUp, ShardEnds, TlsConfig,
};
use streamdoor::shard::{JournalError, ShardConfig};
use streamdoor::stream::Durability;
use streamdoor::tool::{Environment, Files, Tools};
use streamdoor::trace::Level;
use streamdoor::trace::log::LogLine;
use streamdoor::upstream::Upstreams;

use super::console::print_out;
use super::settings::{self, McpServer, Settings, find_flag};
use super::signals::{Hangups, on_interrupt};
use super::telemetry::Exporter;
use super::{CliError, upstreams};
use access::{AccessRules, is_open};
pub use budget::{DescriptorLimit, ResourceBudget};
use cluster::{ClusterNode, ClusterSetup};
pub use conformance::Fixtures;
use journal::JournalState;
use reload::{Reloader, SettingsSource};
use service::ServiceManager;

const HELP_HEAD: &str = "\
streamdoor serve: let clients run tools and follow them, over HTTP

Usage: streamdoor serve [OPTIONS]

  --config FILE                   read settings from a TOML file: the names below, with _ for -
  --print-config                  print the settings as such a file, and exit
  --conformance                   also offer the tools, prompts and resources that the public
                                  conformance suite of MCP needs: see tools/conformance
  -h, --help                      show this text

Settings, which override those of the file:
";

const HELP_TAIL: &str = "
SIGHUP reads the token file, the certificate with its key, and log_level again. Streams go on.
SIGTERM and Ctrl-C stop the server in order: it accepts no more connections, stops all executions,
and tells subscribers `detached: shutdown`. Until the deadline, it still sends pending events and
replies. A second signal, half a second later or more, ends it at once.

Under a service manager such as systemd, the server tells when it is ready, reloads and stops
(NOTIFY_SOCKET), answers its watchdog (WATCHDOG_USEC), and serves at the sockets that it is given
instead of those of listen (LISTEN_FDS).

Exit codes: 0 stopped, 1 failed, 2 bad usage, 3 the environment lacks something.
";

enum Command {
    Help,
    PrintConfig(Settings),
    Serve(Settings, SettingsSource, Option<Fixtures>),
}

fn command(mut parser: lexopt::Parser) -> Result<Command, CliError> {
    let (mut file, mut is_print, mut fixtures, mut words) = (None, false, None, Vec::new());
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("config") if file.is_some() => {
                return Err(CliError::Usage("--config: give one file only".to_owned()));
            }
            Long("config") => file = Some(PathBuf::from(parser.value()?)),
            Long("print-config" | "print_config") => is_print = true,
            Long("conformance") => fixtures = Some(Fixtures::default()),
            Long(flag) => {
                let name = find_flag(flag)?;
                words.push((name.to_owned(), settings::flag_value(name, &mut parser)?));
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let source = SettingsSource { file, words };
    let settings = source.read()?;
    Ok(match is_print {
        true => Command::PrintConfig(settings),
        false => Command::Serve(settings, source, fixtures),
    })
}

/// Returns the help text.
pub fn help() -> String {
    format!("{HELP_HEAD}{}{HELP_TAIL}", settings::help(&Settings::default()))
}

/// Carries out `streamdoor serve`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    match command(parser).map_err(|error| error.in_log(settings::asked_format()))? {
        Command::Help => print_out!("{}", help().trim_end()),
        Command::PrintConfig(settings) => print_out!("{}", settings.to_toml()),
        Command::Serve(settings, source, fixtures) => {
            let format = settings.log;
            return serve(settings, source, fixtures).map_err(|error| error.in_log(format));
        }
    }
    Ok(())
}

/// The parts that exist before the server starts, over HTTP and over standard streams alike.
pub struct ServerSetup {
    pub access: Arc<Access>,
    /// Taken by the server that starts.
    cluster: Option<ClusterSetup>,
    journal: JournalState,
    pub budget: ResourceBudget,
    pub log: Log,
    /// Held while the server runs.
    poll_idle: Option<PollIdle>,
    /// Receives a message when the server has to end. A signal or the owner of `ender` sends it.
    pub stop: Receiver<()>,
    pub ender: Sender<()>,
}

impl ServerSetup {
    pub fn prepare(settings: &Settings) -> Result<ServerSetup, CliError> {
        if settings.shard_count() == 1 {
            heap::share_one_heap(); // Before the threads of the log and of the signals begin.
        }
        // Core dumps must not contain streamed data, and other processes of this user must not
        // attach.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|error| CliError::Environment(format!("PR_SET_DUMPABLE: {error}")))?;
        let rules = AccessRules::of(settings)?;
        let budget = ResourceBudget::new(settings, DescriptorLimit::raise())?;
        let poll_idle = match settings.poll_idle.0 {
            true => Some(
                PollIdle::hold()
                    .map_err(|error| CliError::Environment(format!("poll_idle: {error}")))?,
            ),
            false => None,
        };
        let started = Log::start(settings.log, settings.log_level, io::stderr());
        let log = started.map_err(|error| CliError::Environment(format!("the log: {error}")))?;
        let journal = JournalState::open(settings)?;
        let cluster = ClusterSetup::of(settings)?;
        let is_kept = cluster.is_some() && journal.folder().is_some();
        if settings.durability == Durability::Replicated && !is_kept {
            let text = "durability: replicated needs --cluster and a journal";
            return Err(CliError::Environment(text.to_owned()));
        }
        // What one node issues, all accept.
        let secrets = cluster.as_ref().map(ClusterSetup::secrets);
        let secrets = secrets.or_else(|| journal.folder().map(|folder| folder.secrets));
        let access = rules.with(settings, secrets.as_ref())?;
        let (ender, stop) = channel();
        let (at_once, by_signal) = (log.clone(), ender.clone());
        on_interrupt(
            move || {
                let _ = by_signal.send(()); // If nobody receives it, the server is ending.
            },
            move || {
                log_event(&at_once, Level::Warn, "stopped_at_once", |_| {});
                at_once.close();
                exit(0);
            },
        )?;
        Ok(ServerSetup { access, cluster, journal, budget, log, poll_idle, stop, ender })
    }
}

fn serve(
    mut settings: Settings,
    source: SettingsSource,
    fixtures: Option<Fixtures>,
) -> Result<(), CliError> {
    if let Some(sockets) = service::inherited_sockets()? {
        settings.listen = sockets;
    }
    let manager = ServiceManager::of_environment()?;
    let hangups = Hangups::catch()?;
    let mut setup = ServerSetup::prepare(&settings)?;
    let served = start(&settings, &mut setup, fixtures).and_then(|started| {
        let RunningServer { server, node, exporter, upstreams } = started;
        let reloader = Reloader {
            source,
            settings: settings.clone(),
            renewal: server.renewal(),
            log: setup.log.clone(),
            service: manager.clone(),
        };
        hangups.serve(move || reloader.reload())?;
        let served = serve_until_stopped(&settings, &setup, server, manager.as_ref());
        drop(node);
        upstreams.end();
        exporter.finish();
        served
    });
    setup.log.close();
    served
}

/// Serves until told to stop, and then ends in order.
fn serve_until_stopped(
    settings: &Settings,
    setup: &ServerSetup,
    server: Server,
    manager: Option<&ServiceManager>,
) -> Result<(), CliError> {
    announce(settings, setup, &server);
    let door = door::open(settings, setup, &server)?;
    banner::print(settings, setup, &server, &door);
    if let Some(manager) = manager {
        manager.start_watchdog(server.renewal())?;
        manager.tell_ready();
    }
    let (ends, shard_count) = (server.ends(), server.handles().count());
    watch_shards(server.ends(), shard_count, setup)?;
    let _ = setup.stop.recv();
    if let Some(manager) = manager {
        manager.tell_stopping();
    }
    let log = &setup.log;
    let deadline = settings.drain_deadline.0;
    log_event(log, Level::Info, "stopping", |line| line.number("deadline_s", deadline.as_secs()));
    let (level, drained) = match server.drain(deadline) {
        Drained::Whole => (Level::Info, "all"),
        Drained::InPart => (Level::Warn, "in part"),
    };
    log_event(log, level, "stopped", |line| line.text("drained", drained));
    match ends.has_death() {
        true => Err(CliError::Failed(
            "a shard has died; see the log for its number and the reason".to_owned(),
        )),
        false => Ok(()),
    }
}

/// Ends the server once its last shard has died.
fn watch_shards(
    mut ends: ShardEnds,
    shard_count: usize,
    setup: &ServerSetup,
) -> Result<(), CliError> {
    let ender = setup.ender.clone();
    let watch = move || {
        (0..shard_count).for_each(|_| _ = ends.wait()); // Each has logged the reason.
        let _ = ender.send(()); // If nobody receives it, the server is ending.
    };
    let spawned = std::thread::Builder::new().name("shards".to_owned()).spawn(watch);
    spawned.map(drop).map_err(|error| CliError::Environment(format!("a thread: {error}")))
}

/// A running server, and the parts that belong to it.
pub struct RunningServer {
    pub server: Server,
    /// Ended after the server, so that the cluster has the ends of its executions.
    pub node: Option<ClusterNode>,
    pub exporter: Exporter,
    /// Ended after the server.
    pub upstreams: Arc<Upstreams>,
}

/// Starts the server. This is the only place that turns settings into its configuration.
pub fn start(
    settings: &Settings,
    setup: &mut ServerSetup,
    fixtures: Option<Fixtures>,
) -> Result<RunningServer, CliError> {
    let ServerSetup { access, cluster, journal, budget, log, .. } = setup;
    let upstreams = upstreams(settings, log)?;
    if settings.named_doors.0 {
        sweep(log);
    }
    let interval = settings.otlp_metrics_interval.0;
    let (spans, exporter) = Exporter::start(&settings.otlp_endpoint, interval, log)?;
    let mut shards = shards(settings, access, journal, log);
    let meters = upstreams.meters();
    for shard in &mut shards {
        (shard.guests.spans, shard.guests.upstreams) = (spans.clone(), Arc::clone(&meters));
    }
    drop(spans); // The queue ends with the shards.
    if let Some(tls) = read_tls(settings)? {
        #[cfg(not(feature = "tls"))]
        match tls {}
        #[cfg(feature = "tls")]
        shards.iter_mut().for_each(|shard| shard.guests.tls = Some(tls.clone()));
    }
    {
        let agents = agents(settings)?;
        shards.iter_mut().for_each(|shard| shard.guests.agents = agents.clone());
    }
    let cluster = cluster.take();
    if let Some(cluster) = &cluster {
        cluster.prepare(&mut shards);
    }
    let config = ServerConfig {
        shards,
        listen: settings.listen.clone(),
        connections_max: budget.connections_max,
    };
    let commands = settings.commands();
    let virtual_tools = settings.virtual_tools.all();
    let files = files(settings)?;
    let hidden = hidden(settings, &built_in(settings)?)?;
    let environment = Environment::of_process(&settings.command_env, &keys(settings));
    let offered = Arc::clone(&upstreams);
    let set_up_tools = move |shard: &mut ServerShard| {
        shard.tools_mut().allow_files(files.clone());
        shard.tools_mut().set_environment(environment.clone());
        if let Some(policy) = &commands {
            shard.tools_mut().allow_commands(policy.clone());
        }
        for name in &hidden {
            shard.tools_mut().remove(name);
        }
        for tool in &virtual_tools {
            shard.add_virtual_tool(tool.clone()).expect("it was checked when it was read");
        }
        if let Some(fixtures) = &fixtures {
            fixtures.add_to(shard);
        }
        offered.add_to(shard.tools_mut());
    };
    let server = start_shards(config, Arc::new(set_up_tools), journal)?;
    let is_tls = settings.tls_cert.0.is_some();
    let node = cluster.map(|cluster| cluster.start(&server, log, is_tls)).transpose()?;
    upstreams.follow(server.handles().cloned().collect());
    exporter.watch(server.meter());
    heap::trim(); // The schemas of tools and the documents were made from much that is freed.
    Ok(RunningServer { server, node, exporter, upstreams })
}

/// Starts the shards. If the default journal cannot be opened, they keep nothing on disk.
fn start_shards(
    config: ServerConfig,
    set_up: SetUp,
    journal: &mut JournalState,
) -> Result<Server, CliError> {
    let mut without_journal = config.clone();
    let mut started = Server::start(config, Arc::clone(&set_up));
    if let Err(ServerError::Shard(error)) = &started
        && is_of::<JournalError>(error)
        && journal.give_up(&error.to_string())
    {
        without_journal.shards.retain(|shard| shard.guests.listens);
        without_journal.shards.iter_mut().for_each(|shard| shard.journal = None);
        started = Server::start(without_journal, set_up);
    }
    started.map_err(|error| {
        let text = format!("the server did not start: {error}");
        match error {
            ServerError::Shard(error)
                if is_of::<OpenError>(&error) || is_of::<JournalError>(&error) =>
            {
                CliError::Environment(text)
            }
            _ => CliError::Failed(text),
        }
    })
}

/// True if the error comes from one of this type.
fn is_of<E: std::error::Error + Send + Sync + 'static>(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<E>())
}

/// Reads the certificate and its key, if the settings name them.
fn read_tls(settings: &Settings) -> Result<Option<TlsConfig>, CliError> {
    let (Some(certificate), Some(key)) = (&settings.tls_cert.0, &settings.tls_key.0) else {
        return Ok(None);
    };
    #[cfg(feature = "tls")]
    {
        let read = TlsConfig::from_files(certificate, key);
        read.map(Some).map_err(|error| CliError::Environment(format!("TLS: {error}")))
    }
    #[cfg(not(feature = "tls"))]
    {
        let (certificate, key) = (certificate.display(), key.display());
        let text = format!("TLS with {certificate} and {key}: this program has no TLS support");
        Err(CliError::Environment(text))
    }
}

/// Returns the variables that hold keys. Neither commands nor other servers get them.
fn keys(settings: &Settings) -> Vec<String> {
    let of_servers = settings.mcp.0.iter().filter_map(McpServer::key_variable);
    settings.models.keys().into_iter().chain(of_servers.map(str::to_owned)).collect()
}

/// Starts the other servers whose tools are offered. Returns once all of them are ready.
fn upstreams(settings: &Settings, log: &Log) -> Result<Arc<Upstreams>, CliError> {
    let variables = (&*settings.command_env, &*settings.models.keys());
    let started = upstreams::start((&settings.mcp, &settings.mcp_tools), variables, log)?;
    let mut own = built_in(settings)?;
    for name in hidden(settings, &own)? {
        own.remove(&name);
    }
    let virtual_tools = settings.virtual_tools.all();
    let is_virtual = |name: &str| virtual_tools.iter().any(|tool| tool.spec.name == name);
    upstreams::check(&started, &own, is_virtual)?;
    Ok(Arc::new(started))
}

/// Returns the built-in tools that the settings enable.
fn built_in(settings: &Settings) -> Result<Tools, CliError> {
    let mut tools = Tools::built_in();
    tools.allow_files(files(settings)?);
    if let Some(policy) = settings.commands() {
        tools.allow_commands(policy);
    }
    Ok(tools)
}

/// Returns the enabled tools that are not offered.
fn hidden(settings: &Settings, available: &Tools) -> Result<Vec<String>, CliError> {
    settings.builtin.hidden(available, !settings.mcp.0.is_empty())
}

/// Returns the models with their keys, which are read from the environment only.
pub fn agents(settings: &Settings) -> Result<AgentSettings, CliError> {
    let problem = |name: &str, text: &str| CliError::Environment(format!("models.{name}: {text}"));
    let mut models = Vec::new();
    for model in &settings.models.0 {
        let key = match model.key_env.as_str() {
            "" => None,
            variable => Some(std::env::var(variable).map_err(|_| {
                problem(&model.name, &format!("the variable {variable} has no key; set it"))
            })?),
        };
        let known = model.with_key(key.as_deref());
        models.push(known.map_err(|text| problem(&model.name, &text))?);
    }
    let tools = settings.agent_tools.0.parse();
    let tools = tools.map_err(|error| CliError::Usage(format!("agent_tools: {error}")))?;
    Ok(AgentSettings { models, tools })
}

/// Removes the named rings that killed servers left in /dev/shm.
fn sweep(log: &Log) {
    let found = match named::sweep(Path::new(named::FOLDER), true) {
        Ok(found) => found,
        Err(error) => {
            let error = error.to_string();
            return log_event(log, Level::Warn, "named_doors_not_swept", |line| {
                line.text("error", &error);
            });
        }
    };
    for (name, verdict) in found {
        match verdict {
            named::Verdict::Held | named::Verdict::Stale { .. } => {}
            named::Verdict::Removed { bytes } => {
                log_event(log, Level::Info, "named_door_swept", |line| {
                    line.text("name", &name);
                    line.number("bytes", bytes);
                });
            }
            named::Verdict::Foreign(why) => {
                log_event(log, Level::Warn, "named_door_foreign", |line| {
                    line.text("name", &name);
                    line.text("error", &why.to_string());
                })
            }
        }
    }
}

/// Returns the readable files: none, or those below a folder.
fn files(settings: &Settings) -> Result<Files, CliError> {
    let Some(root) = &settings.files_root.0 else { return Ok(Files::Nowhere) };
    let problem = |error| CliError::Environment(format!("files_root {}: {error}", root.display()));
    Files::below(root).map_err(problem)
}

/// Returns the settings of all shards. Those that are more than the settings name have what an
/// earlier server with more shards has left.
fn shards(
    settings: &Settings,
    access: &Arc<Access>,
    journal: &JournalState,
    log: &Log,
) -> Vec<ServerShardConfig> {
    let listening_count = settings.shard_count();
    let kept_count = journal.folder().map_or(0, |folder| folder.shard_count);
    let shard_count = listening_count.max(kept_count);
    let doors_max = settings.doors_max.0 as u32; // Its type limits it.
    let doors = Doors::new(doors_max);
    let named_doors = settings.named_doors.0.then(|| NamedDoors::new(doors_max));
    let one = |shard: usize| ShardConfig {
        engine: EngineLimits {
            shard: shard as u8, // At most `limits::SHARDS_MAX`.
            executions_max: settings.executions_max.0 as u32,
            subscribers_max: settings.subscribers_max.0 as u32,
            ..EngineLimits::default()
        },
        rings: RingPoolConfig {
            prealloc_bytes: settings.prealloc_bytes.0,
            bytes_max: settings.rings_bytes_max.0,
            ..RingPoolConfig::default()
        },
        reactor: settings.reactor,
        idle: if shard < listening_count { settings.idle } else { Idle::Block },
        spin: settings.spin.0,
        cpu: settings.cpus.0.get(shard).copied(),
        retention: settings.retention.0,
        block_deadline: settings.block_deadline.0,
        tool_threads_max: settings.tool_threads_max.0 as usize,
        guests: GuestConfig {
            doors: doors.clone(),
            named_doors: named_doors.clone(),
            log: log.clone(),
            logs_requests: settings.access_log.0,
            access: Arc::clone(access),
            connections_per_address_max: settings.connections_per_address.0 as u32,
            mcp_key: journal.folder().map(|folder| folder.secrets.mcp),
            // Other keys are derived from it, each with a label.
            webhook_networks: settings.webhook_network.iter().copied().collect(),
            subscription_key: journal.folder().map(|folder| folder.secrets.tickets),
            listens: shard < listening_count,
            ..Default::default()
        },
        journal: journal.folder().map(|folder| folder.config(settings, shard_count)),
        ..ShardConfig::default()
    };
    (0..shard_count).map(one).collect()
}

/// Logs what was found, the resources, and finally the addresses.
pub fn announce(settings: &Settings, setup: &ServerSetup, server: &Server) {
    let ServerSetup { journal, budget, log, poll_idle, .. } = setup;
    log_event(log, Level::Info, "started", |line| {
        line.text("version", env!("CARGO_PKG_VERSION"));
        line.number("pid", u64::from(std::process::id()));
    });
    for (shard, report) in server.reports().iter().enumerate() {
        log_event(log, Level::Info, "shard", |line| {
            line.number("shard", shard as u64);
            match settings.cpus.0.get(shard) {
                Some(cpu) => line.number("cpu", *cpu as u64),
                None => line.text("cpu", "any"),
            }
            line.text("idle", &settings.idle.to_string());
            line.text("report", &report.to_string());
        });
    }
    journal::announce(settings, journal, server, log);
    if poll_idle.is_some() {
        log_event(log, Level::Info, "poll_idle", |line| {
            line.text("report", "no processor may enter deep sleep");
        });
    }
    let level = if budget.is_shrunk() { Level::Warn } else { Level::Info };
    log_event(log, level, "bill", |line| {
        line.number("connections_max", u64::from(budget.connections_max));
        line.text("report", &budget.to_string());
    });
    for program in missing_commands(settings) {
        log_event(log, Level::Warn, "command_not_found", |line| line.text("program", program));
    }
    let is_tls = settings.tls_cert.0.is_some();
    for address in server.addresses() {
        if is_open(address) && !is_tls {
            let report = "other machines can reach this address, and tokens and results are sent \
                          unencrypted";
            log_event(log, Level::Warn, "open_to_others", |line| {
                line.text("address", &address.to_string());
                line.text("report", report);
            });
        }
        log_event(log, Level::Info, "listening", |line| {
            line.text("address", &shown(address, is_tls))
        });
    }
}

/// Returns the allowed commands that are not on the machine.
fn missing_commands(settings: &Settings) -> impl Iterator<Item = &String> {
    settings.allow_commands.iter().filter(|program| !is_installed(program))
}

/// True if the program is a file at its path, or in a folder of `PATH`.
fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    match program.contains('/') {
        true => Path::new(program).is_file(),
        false => std::env::split_paths(&folders).any(|folder| folder.join(program).is_file()),
    }
}

/// Returns the address as a URL, or as `unix:PATH`.
fn shown(address: &ListenAddress, is_tls: bool) -> String {
    match address {
        ListenAddress::Tcp(tcp) if is_tls => format!("https://{tcp}"),
        ListenAddress::Tcp(tcp) => format!("http://{tcp}"),
        _ => address.to_string(),
    }
}

pub fn log_event(log: &Log, level: Level, event: &str, fill: impl FnOnce(&mut LogLine<'_>)) {
    log.announce(Clock::wall_us(), level, event, fill);
}
