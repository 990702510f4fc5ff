//! The settings of the server. One table defines the command line, the file, the help text and the
//! output of `--print-config`.
//!
//! A setting has one name everywhere. For example, `log_level` in the file is `--log-level` on the
//! command line, where `--log_level` means the same. The command line wins over the file. The kinds
//! of values are in `kinds.rs`. Reading and writing a file is in `file.rs`.

mod builtin;
mod file;
mod kinds;
mod mcp_servers;
mod models;
mod named;
mod virtual_tools;

use std::path::Path;

use streamdoor::endpoint::{HostName, Origin};
use streamdoor::limits;
use streamdoor::reactor::{Choice, Idle, ListenAddress};
use streamdoor::stream::Durability;
use streamdoor::tool::{CommandPolicy, Variable};
use streamdoor::trace::{Level, LogFormat};
use streamdoor::wire::subscriptions::Network;

use super::CliError;
use super::telemetry::Collector;
pub use builtin::{Builtin, McpTools};
pub use kinds::{
    AutoPath, Bytes, Cpus, FilePath, Isolated, Name, Number, ServerUrl, Setting, Switch, Time,
};
pub use mcp_servers::{McpServer, McpServers};
pub use models::{AgentTools, Models};
pub use virtual_tools::VirtualTools;

macro_rules! settings {
    ($($(#[doc = $text:literal])+ $name:ident: $kind:ty = $default:expr;)+) => {
        /// The settings of the server.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Settings {
            $($(#[doc = $text])+ pub $name: $kind,)+
        }

        impl Default for Settings {
            fn default() -> Settings {
                Settings { $($name: $default,)+ }
            }
        }

        /// The name and the description of each setting, in their order.
        const TABLE: &[(&str, &[&str])] = &[$((stringify!($name), &[$($text),+])),+];

        impl Settings {
            /// Returns the values, in the order of [`TABLE`].
            fn values(&self) -> [&dyn Setting; TABLE.len()] {
                [$(&self.$name),+]
            }

            /// Returns the values to be changed, in the order of [`TABLE`].
            fn values_mut(&mut self) -> [&mut dyn Setting; TABLE.len()] {
                [$(&mut self.$name),+]
            }
        }
    };
}

const SECOND_US: u64 = 1_000_000;
const TIME_MAX_US: u64 = limits::SETTING_SECONDS_MAX * SECOND_US;
/// A time of at least one second.
type LongTime = Time<SECOND_US, TIME_MAX_US>;

settings! {
    /// Listen on this address; may be repeated. ADDRESS:PORT, [IPV6]:PORT or unix:PATH. With port
    /// 0, the kernel chooses one.
    listen: Vec<ListenAddress> = vec!["127.0.0.1:8808".parse().expect("it is an address")];
    /// The Unix socket where processes of this machine and user share memory with the server. With
    /// auto: streamdoor.sock in $XDG_RUNTIME_DIR, if that is set. With off: none.
    door: AutoPath = AutoPath::default();
    /// The directory of the journal, in which executions outlive the server. With auto: the
    /// service manager's $STATE_DIRECTORY, or streamdoor in $XDG_STATE_HOME (~/.local/state). If
    /// another server uses that, nothing is kept on disk. With off: nothing is.
    journal: AutoPath = AutoPath::default();
    /// The promise for chunks, unless the call sets another. With none, they end with the server.
    /// With written, they survive a crash of it. With synced, they survive a power cut. With
    /// replicated, the log of the cluster has them, too.
    durability: Durability = Durability::Written;
    /// The most disk space of the journal. The oldest executions go first.
    journal_bytes: Bytes<{ 16 << 20 }, { 1 << 50 }> = Bytes(1 << 30);
    /// The time that the journal keeps an execution after its end.
    journal_retention: LongTime = Time(limits::JOURNAL_RETENTION);
    /// The time between two checks of everything that the journal has. With 0, there are none.
    journal_scrub: Time<0, TIME_MAX_US> = Time(limits::JOURNAL_SCRUB_PERIOD);
    /// Be a node of the cluster at these servers of NATS: nats://HOST:PORT or tls://HOST:PORT; may
    /// be repeated. Every node then serves the executions of all. See streamdoor cluster --help.
    cluster: Vec<ServerUrl> = Vec::new();
    /// The name of the cluster. Empty: default.
    cluster_name: Name = Name::default();
    /// The name of this node in the cluster. Empty: the name of this machine.
    node: Name = Name::default();
    /// The file with the secret of the cluster, which all its nodes have. Only its owner may be
    /// able to read it.
    cluster_secret_file: FilePath = FilePath::default();
    /// The file with the credentials of this node for NATS: a JWT and the seed of an nkey.
    cluster_credentials_file: FilePath = FilePath::default();
    /// The file with the certificates that the servers of NATS are trusted by. Empty: those of the
    /// system.
    cluster_tls_ca: FilePath = FilePath::default();
    /// The URL that other nodes give their clients for what only this node can do. Empty: the first
    /// TCP address that it listens on, unless that stands for all addresses of the machine.
    cluster_advertise: ServerUrl = ServerUrl::default();
    /// The time for which the others count this node as alive after its last sign of life.
    cluster_lease: Time<{ 2 * SECOND_US }, { 60 * SECOND_US }> = Time(limits::CLUSTER_LEASE);
    /// The average time between two records of an execution in the log of the cluster, at least. 16
    /// more may follow a pause. A shorter time costs more processor time.
    cluster_linger: Time<100, SECOND_US> = Time(limits::CLUSTER_LINGER);
    /// The behaviour of a node that cannot renew its lease. All others are told that its executions
    /// have failed. serve: they go on for its own clients. stop: they fail here, too.
    cluster_isolated: Isolated = Isolated::Serve;
    /// The most executions that can be shared through the door at once.
    doors_max: Number<0, { limits::DOORS_CEILING as u64 }> = Number(limits::DOORS_MAX as u64);
    /// Accept this name or address as the server's host, beside loopback ones and those it listens
    /// on; may be repeated.
    allow_host: Vec<HostName> = Vec::new();
    /// Let pages of this origin send requests and read the replies, as https://example.com; may be
    /// repeated.
    allow_origin: Vec<Origin> = Vec::new();
    /// Let webhooks of subscriptions reach this network, as 10.0.0.0/8; may be repeated. Without
    /// any, they reach the public Internet over https, and this machine over http.
    webhook_network: Vec<Network> = Vec::new();
    /// Require a token from every client: lines of PRINCIPAL TOKEN, in a file that only its owner
    /// can read. Needed to listen where other machines can reach the server.
    token_file: FilePath = FilePath::default();
    /// The lifetime of a ticket in links.events. Until then it also opens the stream again after a
    /// reconnect.
    ticket_ttl: LongTime = Time(limits::TICKET_TTL);
    /// The cores, each with a shard of its own: 0,1 or 0-3. None: one shard, on any core.
    cpus: Cpus = Cpus::default();
    /// The kernel interface. auto: io_uring where it works, else mio.
    reactor: Choice = Choice::Auto;
    /// The behaviour of a shard without work. backoff: poll for a while, then block.
    idle: Idle = Idle::Backoff;
    /// The time that backoff polls.
    spin: Time<0, SECOND_US> = Time(limits::SPIN_DEFAULT);
    /// Keep all processors out of deep sleep while the server runs, so that blocked threads wake
    /// about 20 µs sooner. Holds /dev/cpu_dma_latency at 0, which needs root. It always costs
    /// power, and on a virtual machine it also loads the host.
    poll_idle: Switch = Switch(false);
    /// The most memory for the rings of one shard; less under a memory limit.
    rings_bytes_max: Bytes<{ 1 << 20 }, { limits::RINGS_BYTES_CEILING }> =
        Bytes(limits::RINGS_BYTES_MAX);
    /// The memory for the rings of one shard that is allocated at the start.
    prealloc_bytes: Bytes<0, { limits::RINGS_BYTES_CEILING }> =
        Bytes(limits::RINGS_PREALLOC_BYTES);
    /// The most executions of one shard, running and retained together.
    executions_max: Number<1, { limits::EXECUTIONS_CEILING as u64 }> =
        Number(limits::EXECUTIONS_MAX as u64);
    /// The most subscribers of one shard.
    subscribers_max: Number<1, { limits::SUBSCRIBERS_CEILING as u64 }> =
        Number(limits::SUBSCRIBERS_MAX as u64);
    /// The most connections of all shards together, divided equally among them. Fewer if there are
    /// not enough descriptors. From 90 % on, idle connections are closed for new ones.
    connections_max: Number<1, { (1 << 24) - 1 }> = Number(limits::CONNECTIONS_MAX as u64);
    /// The most connections to one shard from one address, or from one /64 of IPv6. Connections
    /// from this machine and over Unix sockets do not count.
    connections_per_address: Number<1, { (1 << 24) - 1 }> =
        Number(limits::CONNECTIONS_PER_ADDRESS_MAX as u64);
    /// Let programs of this user also read executions by name, as files /dev/shm/streamdoor-ID.
    /// Files that dead servers left behind are removed at the start.
    named_doors: Switch = Switch(false);
    /// Log every request, and not only the refused ones.
    access_log: Switch = Switch(false);
    /// The certificate chain of the server, in PEM, its own certificate first. With it and tls_key,
    /// all TCP connections use TLS; Unix sockets do not.
    tls_cert: FilePath = FilePath::default();
    /// The private key of the certificate, in PEM; others must not be able to read it.
    tls_key: FilePath = FilePath::default();
    /// The most threads of one shard for tools that block.
    tool_threads_max: Number<1, { limits::TOOL_THREADS_CEILING as u64 }> =
        Number(limits::TOOL_THREADS_MAX as u64);
    /// The time that an ended execution can still be read, unless the call sets another.
    retention: LongTime = Time(limits::RETENTION);
    /// The time that a block subscriber may hold a producer back, unless the call sets another.
    block_deadline: LongTime = Time(limits::BLOCK_DEADLINE);
    /// The time that a stopping server waits until everything is sent.
    drain_deadline: Time<0, TIME_MAX_US> = Time(limits::DRAIN_DEADLINE);
    /// The format of the log on standard error.
    log: LogFormat = LogFormat::Text;
    /// The least important level that is logged: error, warn, info or debug.
    log_level: Level = Level::Info;
    /// Offer process_file, search_files and query_database for files below this folder.
    files_root: FilePath = FilePath::default();
    /// Offer run_command for this program; may be repeated.
    allow_commands: Vec<String> = Vec::new();
    /// Pass this environment variable to run_command and to the programs of --mcp: NAME, as the
    /// server has it, or NAME=VALUE; may be repeated. Otherwise they get only PATH, HOME, LANG and
    /// a few like them, and never one that holds a key.
    command_env: Vec<Variable> = Vec::new();
    /// Send a span of each MCP request, and the metrics, to this collector, as OTLP over HTTP:
    /// http://ADDRESS:PORT of this machine. Its paths are /v1/traces and /v1/metrics.
    otlp_endpoint: Collector = Collector::default();
    /// The time between two exports of the metrics to the collector. With 0, it gets spans only.
    otlp_metrics_interval: Time<0, TIME_MAX_US> = Time(limits::METRICS_EXPORT_INTERVAL);
    /// Tools whose work is done by clients. In the file, a table [virtual_tools.NAME] for each,
    /// with the fields of PUT /v1/virtual-tools/NAME.
    virtual_tools: VirtualTools = VirtualTools::default();
    /// Models for agents and llm_generate; may be repeated, also as --model. The first is the
    /// default. WIRE: chat, responses or messages; KEY_ENV: the variable that holds the key. In the
    /// file, a table [models.NAME] for each with wire, base_url, model and key_env.
    models: Models = Models::default();
    /// Offer the tools of another MCP server, given as a command or a URL; may be repeated. With
    /// NAME= before it, its tools are called NAME_tool. In the file, a table [mcp.NAME] for each:
    /// command, args and env, or url and key_env; also prefix and timeout, as "60s". The variable
    /// that key_env names holds the key.
    mcp: McpServers = McpServers::default();
    /// Offer only these tools of the servers of mcp: [NAME:]RULES, with commas between the rules;
    /// may be repeated. TOOL offers a tool, NEW=TOOL offers it under another name, !TOOL hides it,
    /// and * offers all others. NAME: before it is for one server. In the file also as tools, a
    /// list of rules in [mcp.NAME].
    mcp_tools: Vec<McpTools> = Vec::new();
    /// Offer these built-in tools: all, none, or names with commas. auto: none with mcp, else all.
    /// With none, only those that files_root and allow_commands ask for.
    builtin: Builtin = Builtin::default();
    /// The tools for an agent whose call names none: none, all, or names with commas.
    agent_tools: AgentTools = AgentTools::default();
}

impl Settings {
    /// Reads the settings from a file, if given, and then from the names and values of the command
    /// line.
    ///
    /// # Errors
    /// The first error, with its place.
    pub fn new(file: Option<&Path>, words: &[(String, String)]) -> Result<Settings, CliError> {
        let settings = Settings::default().with(file, words)?;
        if settings.listen.is_empty() {
            return Err(CliError::Usage("listen: at least one address is needed".to_owned()));
        }
        Ok(settings)
    }

    /// Reads the settings over other defaults. The result may have no address to listen on.
    ///
    /// # Errors
    /// The same as those of [`Settings::new`].
    pub fn with(
        self,
        file: Option<&Path>,
        words: &[(String, String)],
    ) -> Result<Settings, CliError> {
        let mut settings = self;
        if let Some(path) = file {
            settings.read_file(path)?;
        }
        for (at, (name, word)) in words.iter().enumerate() {
            let place = place_of(name).expect("names were looked up before");
            let mut values = settings.values_mut();
            let value = &mut values[place];
            if words[..at].iter().all(|(earlier, _)| earlier != name) {
                value.clear(); // A list on the command line replaces that of the file.
            }
            value
                .read_word(word)
                .map_err(|error| CliError::Usage(format!("--{} {word}: {error}", flag_of(name))))?;
        }
        settings.settle()?;
        Ok(settings)
    }

    /// Checks rules that concern several settings, and lowers `prealloc_bytes` to
    /// `rings_bytes_max`.
    fn settle(&mut self) -> Result<(), CliError> {
        let usage = |text: String| Err(CliError::Usage(text));
        if self.tls_cert.0.is_some() != self.tls_key.0.is_some() {
            return usage("tls_cert and tls_key must be given together".to_owned());
        }
        let listeners_max = limits::LISTENERS_MAX as usize;
        if self.listen.len() > listeners_max {
            return usage(format!("listen: at most {listeners_max} addresses can be given"));
        }
        for (at, address) in self.listen.iter().enumerate() {
            let is_chosen = matches!(address, ListenAddress::Tcp(tcp) if tcp.port() == 0);
            if !is_chosen && self.listen[..at].contains(address) {
                return usage(format!("listen: {address} is given twice"));
            }
        }
        self.prealloc_bytes.0 = self.prealloc_bytes.0.min(self.rings_bytes_max.0);
        self.mcp.check_choices(&self.mcp_tools)?;
        Ok(())
    }

    /// Returns the number of shards.
    pub fn shard_count(&self) -> usize {
        self.cpus.0.len().max(1)
    }

    /// Returns the commands that may be run, or `None` if no command may be run.
    pub fn commands(&self) -> Option<CommandPolicy> {
        let programs = &self.allow_commands;
        (!programs.is_empty()).then(|| CommandPolicy::Only(programs.clone()))
    }
}

/// Returns the format of the log that the command line of this process asks for. It is known before
/// the settings are read.
pub fn asked_format() -> LogFormat {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let is_flag = |word: &std::ffi::OsString| word == "--log";
    let is_json = words.windows(2).any(|pair| is_flag(&pair[0]) && pair[1] == "json")
        || words.iter().any(|word| word == "--log=json");
    if is_json { LogFormat::Json } else { LogFormat::Text }
}

/// Returns the flag of a setting: `log-level` for `log_level`.
fn flag_of(name: &str) -> String {
    name.replace('_', "-")
}

fn place_of(name: &str) -> Option<usize> {
    TABLE.iter().position(|(known, _)| *known == name)
}

/// Returns the name in the table of the setting with this flag.
///
/// # Errors
/// If no such setting exists.
pub fn find_flag(flag: &str) -> Result<&'static str, CliError> {
    let name = match flag {
        "model" => "models".to_owned(), // The flag adds one model.
        _ => flag.replace('-', "_"),
    };
    let place = place_of(&name).ok_or_else(|| CliError::UnknownOption(format!("--{flag}")))?;
    Ok(TABLE[place].0)
}

/// Reads the value of a flag. The value of a switch may be absent.
///
/// # Errors
/// If a required value is missing.
pub fn flag_value(name: &str, parser: &mut lexopt::Parser) -> Result<String, CliError> {
    let place = place_of(name).expect("names were looked up before");
    if Settings::default().values()[place].is_switch() {
        let value = parser.optional_value().map(lexopt::ValueExt::string).transpose()?;
        return Ok(value.unwrap_or_default());
    }
    Ok(lexopt::ValueExt::string(parser.value()?)?)
}

/// Reads one more server from a value of `--mcp`.
///
/// # Errors
/// The problem with the value.
pub fn read_mcp_server(servers: &mut McpServers, word: &str) -> Result<(), String> {
    servers.read_word(word)
}

/// Reads one more choice from a value of `--mcp-tools`.
///
/// # Errors
/// The problem with the value.
pub fn read_mcp_tools(choices: &mut Vec<McpTools>, word: &str) -> Result<(), String> {
    choices.read_word(word)
}

/// Returns the part of the help text that describes the settings.
pub fn help(defaults: &Settings) -> String {
    const COLUMN: usize = 34;
    let mut out = String::new();
    for ((name, text), value) in TABLE.iter().zip(defaults.values()) {
        let flag = format!("  --{} {}", flag_of(name), value.placeholder());
        let default = match value.to_toml() {
            none if none == "[]" || none == "{}" || none == "\"\"" => String::new(),
            toml => format!(" [{}]", toml.trim_matches(['[', ']']).replace('"', "")),
        };
        let text = text.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ") + &default;
        let mut line = format!("{:COLUMN$}", flag.trim_end().to_owned() + "  ");
        for word in text.split(' ') {
            if line.chars().count() + word.chars().count() > 99 {
                out += line.trim_end();
                out.push('\n');
                line = " ".repeat(COLUMN);
            }
            line += word;
            line.push(' ');
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests;
