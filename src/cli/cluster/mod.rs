//! `streamdoor cluster`: makes the stores of a cluster, and shows its state.

#[cfg(feature = "cluster")]
mod forget;
#[cfg(feature = "cluster")]
mod init;
mod options;
#[cfg(feature = "cluster")]
mod status;

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

pub use options::ClusterOptions;
pub(in crate::cli) use options::cluster_options_help;

use super::console::print_out;
use super::settings::{Bytes, Setting, Time};
use super::{CliError, hints, parsed};

pub const HELP: &str = concat!(
    "\
streamdoor cluster: make the stores of a cluster in NATS, or show its state

Usage: streamdoor cluster [OPTIONS] --cluster URLS [status]
       streamdoor cluster [OPTIONS] --cluster URLS --max-bytes BYTES init
       streamdoor cluster [OPTIONS] --cluster URLS forget NODE

",
    cluster_options_help!(),
    "  --max-bytes BYTES
                    init: bytes of all records, as 8GiB; the oldest ones go first
  --replicas N      init: number of servers that have each record: 1, 3 or 5    [1]
  --retention TIME  init: time for which records are kept, as 30m               [1h]
  --secret-file FILE
                    init: make this file with a new secret, if it does not exist
  --json            status: print the state as JSON
  -h, --help        show this text

A cluster needs NATS 2.11 or newer, with JetStream. Every server that is not on this machine needs
TLS. A URL can have a user and a password: nats://USER:PASSWORD@HOST.

`init` makes the stream of records and two buckets, or changes them to these choices. NATS removes
the oldest records where the new limits are smaller. It needs the permissions of an administrator of
JetStream. It prints the permissions that a node needs, for the configuration of NATS. The secret
belongs on every node, in a file that only its user can read.

`status` shows the nodes with their leases, the log, the executions, and each difference between the
stores and what a node needs.

`forget` is for a node that does not come back. The paths of its Durable Streams are free then, and
other nodes can create streams there. A node that has a lease is refused.

Exit codes: 0 done; 1 NATS refuses, or the stores are missing or differ; 2 bad usage; 3 no server is
reached, or it lacks something.
"
);

/// The part of the command that is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Action {
    #[default]
    Status,
    Init,
    Forget,
}

const ACTIONS: [(&str, Action); 3] =
    [("status", Action::Status), ("init", Action::Init), ("forget", Action::Forget)];

/// Bytes of a log.
type LogBytes = Bytes<{ 1 << 20 }, { 1 << 50 }>;
/// The retention of a log, from a minute to 30 days.
type Retention = Time<60_000_000, 2_592_000_000_000>;

#[derive(Debug)]
struct Options {
    action: Option<Action>,
    /// forget: the name of the node.
    node: Option<String>,
    cluster: ClusterOptions,
    max_bytes: Option<LogBytes>,
    replicas: Option<u8>,
    retention: Retention,
    has_retention: bool,
    secret_file: Option<PathBuf>,
    as_json: bool,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<Options>, CliError> {
    let mut options = Options {
        action: None,
        node: None,
        cluster: ClusterOptions::default(),
        max_bytes: None,
        replicas: None,
        retention: Time(Duration::from_secs(3_600)),
        has_retention: false,
        secret_file: None,
        as_json: false,
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("json") => options.as_json = true,
            Long("max-bytes") => {
                let bytes = options.max_bytes.insert(Bytes(0));
                read("max-bytes", bytes, &mut parser)?;
            }
            Long("retention") => {
                read("retention", &mut options.retention, &mut parser)?;
                options.has_retention = true;
            }
            Long("replicas") => options.replicas = Some(replicas(&mut parser)?),
            Long("secret-file") => options.secret_file = Some(parser.value()?.into()),
            Long(name) => {
                let name = name.to_owned();
                if !options.cluster.take(&name, &mut parser)? {
                    return Err(lexopt::Error::UnexpectedOption(format!("--{name}")).into());
                }
            }
            Value(word) if options.action.is_none() => {
                options.action = Some(action(&word.string()?)?);
            }
            Value(word) if options.action == Some(Action::Forget) && options.node.is_none() => {
                options.node = Some(word.string()?);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(options))
}

/// Reads the value of an option into a setting.
fn read(
    option: &str,
    setting: &mut impl Setting,
    parser: &mut lexopt::Parser,
) -> Result<(), CliError> {
    let word = parser.value()?.string()?;
    setting.read_word(&word).map_err(|error| CliError::Usage(format!("--{option}: {error}")))
}

fn replicas(parser: &mut lexopt::Parser) -> Result<u8, CliError> {
    match parsed("replicas", parser)? {
        count @ (1 | 3 | 5) => Ok(count),
        count => Err(CliError::Usage(format!("--replicas {count}: must be 1, 3 or 5"))),
    }
}

fn action(word: &str) -> Result<Action, CliError> {
    let found = ACTIONS.iter().find(|(name, _)| *name == word);
    found.map(|(_, action)| *action).ok_or_else(|| {
        let names = ACTIONS.iter().map(|(name, _)| *name);
        let hint = hints::did_you_mean(hints::nearest(word, names));
        CliError::Usage(format!("unknown action {word:?}: must be status, init or forget{hint}"))
    })
}

/// Carries out `streamdoor cluster`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    let usage = |text: &str| Err(CliError::Usage(text.to_owned()));
    let of_init = [
        ("--max-bytes", options.max_bytes.is_some()),
        ("--replicas", options.replicas.is_some()),
        ("--retention", options.has_retention),
        ("--secret-file", options.secret_file.is_some()),
    ];
    match options.action.unwrap_or_default() {
        Action::Init | Action::Forget if options.as_json => {
            return usage("--json: only `status` takes it");
        }
        Action::Init if options.max_bytes.is_none() => {
            return usage("--max-bytes is not given: NATS keeps so many bytes of records");
        }
        Action::Forget if options.node.is_none() => {
            return usage("forget: the name of the node is not given");
        }
        Action::Status | Action::Forget => {
            if let Some((name, _)) = of_init.iter().find(|(_, is_given)| *is_given) {
                return usage(&format!("{name}: only `init` takes it"));
            }
        }
        Action::Init => {}
    }
    if options.cluster.servers.is_empty() {
        return usage("no server is given: --cluster nats://HOST:PORT");
    }
    carry_out(options)
}

#[cfg(feature = "cluster")]
fn carry_out(options: Options) -> Result<(), CliError> {
    match options.action.unwrap_or_default() {
        Action::Init => init::run(&options),
        Action::Status => status::run(&options.cluster, options.as_json),
        Action::Forget => forget::run(&options.cluster, &options.node.expect("it was checked")),
    }
}

/// Refuses, because this program knows no NATS.
#[cfg(not(feature = "cluster"))]
fn carry_out(_: Options) -> Result<(), CliError> {
    Err(not_built())
}

/// The error of a program that was built without the feature.
#[cfg(not(feature = "cluster"))]
pub fn not_built() -> CliError {
    let text = "this program was built without clusters: cargo build --release --features cluster";
    CliError::Environment(text.to_owned())
}

/// Connects to a server that has everything that a cluster needs, and runs the work of a command.
#[cfg(feature = "cluster")]
fn with_link<T>(
    options: &ClusterOptions,
    work: impl AsyncFnOnce(&streamdoor::nats::link::Link) -> Result<T, CliError>,
) -> Result<T, CliError> {
    use streamdoor::nats::connect::blocking;
    use streamdoor::nats::inspect::{Server, VERSION_MIN};

    let checked = options.check()?;
    let done = blocking(async {
        let shown = checked.shown();
        let away = |error| CliError::Environment(format!("{shown}: {error}"));
        let (link, _) = checked.connect().await.map_err(away)?;
        let server = link.server();
        let Server { version, has_jetstream, .. } = &server;
        if !server.is_new_enough() {
            let (major, minor) = VERSION_MIN;
            let text = format!("nats-server {version} is too old: use {major}.{minor} or newer");
            return Err(CliError::Environment(text));
        }
        if !has_jetstream {
            let text = "JetStream is off: start nats-server with -js";
            return Err(CliError::Environment(text.to_owned()));
        }
        work(&link).await
    });
    done.map_err(|error| CliError::Environment(error.to_string()))?
}

/// The error of a request that NATS has not carried out.
#[cfg(feature = "cluster")]
fn refused(error: streamdoor::nats::link::LinkError) -> CliError {
    use streamdoor::nats::link::LinkError;
    match error {
        LinkError::Refused { .. } | LinkError::Strange(_) => CliError::Failed(error.to_string()),
        LinkError::Unknown(_) => CliError::Environment(format!(
            "{error} (without a permission, NATS does not answer: `streamdoor doctor --cluster` \
             tries each)"
        )),
    }
}
