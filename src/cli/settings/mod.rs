//! The settings of the server: one table, from which the command line, the file, the help text and
//! `--print-config` come.
//!
//! A setting has one name everywhere: `spin_us` in the file is `--spin-us` on the command line (and
//! `--spin_us` is the same). What stands on the command line wins over the file. The kinds of
//! values are in `kinds.rs`, reading and writing a file in `file.rs`.

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
use streamdoor::tool::{CommandPolicy, Variable};
use streamdoor::trace::{Level, LogFormat};

use super::CliError;
use super::telemetry::Collector;
pub use kinds::{Bytes, Cpus, DoorPath, FilePath, Number, Switch};
use kinds::{Setting, nearest};
pub use mcp_servers::{McpServer, McpServers};
pub use models::{AgentTools, Models};
pub use virtual_tools::VirtualTools;

macro_rules! settings {
    ($($(#[doc = $text:literal])+ $name:ident: $kind:ty = $default:expr;)+) => {
        /// What the server is told.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Settings {
            $($(#[doc = $text])+ pub $name: $kind,)+
        }

        impl Default for Settings {
            fn default() -> Settings {
                Settings { $($name: $default,)+ }
            }
        }

        /// Name and text of each, in their order.
        const TABLE: &[(&str, &[&str])] = &[$((stringify!($name), &[$($text),+])),+];

        impl Settings {
            /// The values, in the order of [`TABLE`].
            fn values(&self) -> [&dyn Setting; TABLE.len()] {
                [$(&self.$name),+]
            }

            /// The same, to be changed.
            fn values_mut(&mut self) -> [&mut dyn Setting; TABLE.len()] {
                [$(&mut self.$name),+]
            }
        }
    };
}

type Seconds = Number<1, { limits::SETTING_SECONDS_MAX }>;
const MILLION: u64 = 1_000_000;

settings! {
    /// Where to listen; may be repeated. ADDRESS:PORT, [IPV6]:PORT or unix:PATH. Port 0: the
    /// kernel chooses.
    listen: Vec<ListenAddress> = vec!["127.0.0.1:8808".parse().expect("it is an address")];
    /// The Unix socket where processes of this machine and user share memory with the server. auto:
    /// streamdoor.sock in $XDG_RUNTIME_DIR, where there is that. off: nowhere.
    door: DoorPath = DoorPath::default();
    /// How many executions they can share at once.
    doors_max: Number<0, { limits::DOORS_CEILING as u64 }> = Number(limits::DOORS_MAX as u64);
    /// A name or an address by which it may be called, beside loopback ones and those that it
    /// listens on; may be repeated.
    allow_host: Vec<HostName> = Vec::new();
    /// An origin whose pages may ask and read the answers, as https://example.com; may be
    /// repeated.
    allow_origin: Vec<Origin> = Vec::new();
    /// Ask everybody for a token: lines of PRINCIPAL TOKEN, in a file that nobody else can read.
    /// Needed to listen where other machines can reach it.
    token_file: FilePath = FilePath::default();
    /// How long a ticket in links.events opens its stream, also to who comes back, in seconds.
    ticket_ttl_s: Seconds = Number(limits::TICKET_TTL.as_secs());
    /// The cores, each with a shard of its own: 0,1 or 0-3. None: one shard, on any core.
    cpus: Cpus = Cpus::default();
    /// The way to the kernel. auto: io_uring where it works, else mio.
    reactor: Choice = Choice::Auto;
    /// What a shard does when there is nothing to do. backoff: poll a while, then block.
    idle: Idle = Idle::Backoff;
    /// How long backoff polls, in microseconds.
    spin_us: Number<0, MILLION> = Number(limits::SPIN_DEFAULT.as_micros() as u64);
    /// Keep all processors out of deep sleep while it runs, so that who blocks wakes some 20 µs
    /// sooner: holds /dev/cpu_dma_latency at 0, which root may. It costs power all the time, and
    /// on a virtual machine the host's patience.
    poll_idle: Switch = Switch(false);
    /// The most that the rings of one shard take; less under a memory limit.
    rings_bytes_max: Bytes<{ 1 << 20 }, { limits::RINGS_BYTES_CEILING }> =
        Bytes(limits::RINGS_BYTES_MAX);
    /// How much of this is bought at the start.
    prealloc_bytes: Bytes<0, { limits::RINGS_BYTES_CEILING }> =
        Bytes(limits::RINGS_PREALLOC_BYTES);
    /// Executions of one shard, running and retained together.
    executions_max: Number<1, { limits::EXECUTIONS_CEILING as u64 }> =
        Number(limits::EXECUTIONS_MAX as u64);
    /// Subscribers of one shard.
    subscribers_max: Number<1, { limits::SUBSCRIBERS_CEILING as u64 }> =
        Number(limits::SUBSCRIBERS_MAX as u64);
    /// Connections of all shards together, each of which has its part; fewer if there are not
    /// enough descriptors. From 90 % on, idle ones make room for new ones.
    connections_max: Number<1, { (1 << 24) - 1 }> = Number(limits::CONNECTIONS_MAX as u64);
    /// Connections to one shard of one address, or of one /64 of IPv6; this machine's own and Unix
    /// sockets do not count.
    connections_per_address: Number<1, { (1 << 24) - 1 }> =
        Number(limits::CONNECTIONS_PER_ADDRESS_MAX as u64);
    /// Let programs of this user read executions by name, too, as files /dev/shm/streamdoor-ID;
    /// those that dead servers have left are removed at the start.
    named_doors: Switch = Switch(false);
    /// The certificate of the server, in PEM, with those of who vouches for it behind. With it and
    /// its key, all that comes over TCP is TLS; Unix sockets have none.
    tls_cert: FilePath = FilePath::default();
    /// Its private key, in PEM, which others may not be able to read.
    tls_key: FilePath = FilePath::default();
    /// Threads of one shard for tools that block.
    tool_threads_max: Number<1, { limits::TOOL_THREADS_CEILING as u64 }> =
        Number(limits::TOOL_THREADS_MAX as u64);
    /// How long an ended execution can still be read, in seconds, if nobody says otherwise.
    retention_s: Seconds = Number(limits::RETENTION.as_secs());
    /// How long a block subscriber may hold a producer back, in seconds, if nobody says otherwise.
    block_deadline_s: Seconds = Number(limits::BLOCK_DEADLINE.as_secs());
    /// How long the server, told to stop, waits until everything was sent, in seconds.
    drain_deadline_s: Number<0, { limits::SETTING_SECONDS_MAX }> =
        Number(limits::DRAIN_DEADLINE.as_secs());
    /// How the log is written, on standard error.
    log: LogFormat = LogFormat::Text;
    /// What is written: error, warn, info or debug, and what matters more.
    log_level: Level = Level::Info;
    /// Have process_file, search_files and query_database, for what is below this folder.
    files_root: FilePath = FilePath::default();
    /// Have run_command, for this program; may be repeated.
    allow_commands: Vec<String> = Vec::new();
    /// Give run_command and the programs of --mcp this environment variable, too: NAME, as the
    /// server has it, or NAME=VALUE; may be repeated. They get no others but PATH, HOME, LANG and a
    /// few of that kind, and never one that has a key.
    command_env: Vec<Variable> = Vec::new();
    /// Send a span of each request of MCP there, as OTLP over HTTP: http://ADDRESS:PORT of this
    /// machine.
    otlp_endpoint: Collector = Collector::default();
    /// Tools whose work is done by clients: in the file, a table [virtual_tools.NAME] for each, of
    /// what PUT /v1/virtual-tools/NAME takes.
    virtual_tools: VirtualTools = VirtualTools::default();
    /// Models that agents and llm_generate ask, the first where none is named; may be repeated,
    /// also as --model. WIRE: chat, responses or messages; KEY_ENV: the variable that has the key.
    /// In the file, a table [models.NAME] for each with wire, base_url, model and key_env.
    models: Models = Models::default();
    /// Another MCP server whose tools are offered here, too: a command that is started, or a URL;
    /// may be repeated. With NAME= before it, its tools are called NAME_tool. In the file, a table
    /// [mcp.NAME] for each with command, args and env, or url and key_env (the variable that has
    /// the key); prefix, timeout_s.
    mcp: McpServers = McpServers::default();
    /// What an agent may call that does not say which tools: none, all, or names with commas.
    agent_tools: AgentTools = AgentTools::default();
}

impl Settings {
    /// From a file, if there is one, and words of the command line: names and values, in order.
    ///
    /// # Errors
    /// The first that is wrong, with its place.
    pub fn new(file: Option<&Path>, words: &[(String, String)]) -> Result<Settings, CliError> {
        let settings = Settings::default().with(file, words)?;
        if settings.listen.is_empty() {
            return Err(CliError::Usage("listen: at least one address is needed".to_owned()));
        }
        Ok(settings)
    }

    /// The same over other defaults, and maybe without an address.
    ///
    /// # Errors
    /// As [`Settings::new`].
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
                value.clear(); // The command line's list takes the place of the file's.
            }
            value
                .read_word(word)
                .map_err(|error| CliError::Usage(format!("--{} {word}: {error}", flag_of(name))))?;
        }
        settings.settle()?;
        Ok(settings)
    }

    /// Looks at what no value says alone.
    fn settle(&mut self) -> Result<(), CliError> {
        let usage = |text: String| Err(CliError::Usage(text));
        if self.tls_cert.0.is_some() != self.tls_key.0.is_some() {
            return usage("tls_cert and tls_key are given together or not at all".to_owned());
        }
        let listeners_max = limits::LISTENERS_MAX as usize;
        if self.listen.len() > listeners_max {
            return usage(format!("listen: there can be {listeners_max} addresses at most"));
        }
        for (at, address) in self.listen.iter().enumerate() {
            let is_chosen = matches!(address, ListenAddress::Tcp(tcp) if tcp.port() == 0);
            if !is_chosen && self.listen[..at].contains(address) {
                return usage(format!("listen: {address} is there twice"));
            }
        }
        self.prealloc_bytes.0 = self.prealloc_bytes.0.min(self.rings_bytes_max.0);
        Ok(())
    }

    /// Shards that there will be.
    pub fn shard_count(&self) -> usize {
        self.cpus.0.len().max(1)
    }

    /// Which commands may be run; `None`: none.
    pub fn commands(&self) -> Option<CommandPolicy> {
        let programs = &self.allow_commands;
        (!programs.is_empty()).then(|| CommandPolicy::Only(programs.clone()))
    }
}

/// `spin-us` of `spin_us`.
fn flag_of(name: &str) -> String {
    name.replace('_', "-")
}

fn place_of(name: &str) -> Option<usize> {
    TABLE.iter().position(|(known, _)| *known == name)
}

/// A setting of that name on the command line: its name in the table.
///
/// # Errors
/// If there is none, with the nearest that there is.
pub fn find_flag(flag: &str) -> Result<&'static str, CliError> {
    let name = match flag {
        "model" => "models".to_owned(), // One at a time.
        _ => flag.replace('-', "_"),
    };
    match place_of(&name) {
        Some(place) => Ok(TABLE[place].0),
        None => {
            let others = ["config", "print_config", "help"];
            let names = TABLE.iter().map(|(name, _)| *name).chain(others);
            let hint = nearest(&name, names).map(|name| format!("; is --{} meant?", flag_of(name)));
            let hint = hint.unwrap_or_default();
            Err(CliError::Usage(format!("--{flag}: there is no such setting{hint}")))
        }
    }
}

/// The value of a flag: what stands behind it, or nothing if it is a switch.
///
/// # Errors
/// If it is missing.
pub fn flag_value(name: &str, parser: &mut lexopt::Parser) -> Result<String, CliError> {
    let place = place_of(name).expect("names were looked up before");
    if Settings::default().values()[place].is_switch() {
        let value = parser.optional_value().map(lexopt::ValueExt::string).transpose()?;
        return Ok(value.unwrap_or_default());
    }
    Ok(lexopt::ValueExt::string(parser.value()?)?)
}

/// Reads one more server, as `--mcp` has it.
///
/// # Errors
/// What is wrong with it.
pub fn read_mcp_server(servers: &mut McpServers, word: &str) -> Result<(), String> {
    servers.read_word(word)
}

/// The part of the help text that is about settings.
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
