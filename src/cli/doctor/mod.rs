//! `streamdoor doctor`: reports on this machine, the consequences, and possible remedies.

#[cfg(feature = "cluster")]
mod cluster;
mod finding;
mod journal;
mod kernel;
mod leftovers;
mod machine;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::prelude::*;
use streamdoor::memory::named::FOLDER;

use super::cluster::{ClusterOptions, cluster_options_help};
use super::console::{self, print_out};
use super::{CliError, printable};
#[cfg(feature = "cluster")]
pub use cluster::sync as cluster_sync;
#[cfg(feature = "cluster")]
pub use finding::Finding;
pub use kernel::try_io_uring;

pub const HELP: &str = concat!(
    "\
streamdoor doctor: check what this machine offers streamdoor, and suggest improvements

Usage: streamdoor doctor [OPTIONS]

  --door PATH       also check this socket, besides the default one; may be repeated
  --journal DIR     also check this directory, in which a journal is or will be
",
    cluster_options_help!(),
    "  --node NAME       also check if a node of the cluster has this name
  --keep            remove nothing: only report what dead servers left in /dev/shm
  --json            print the findings as JSON
  -h, --help        show this text

It checks io_uring and its operations, futex_waitv, memfd with its seals, pidfd, memory pressure and
cgroup limits, limits of descriptors and of locked memory, /dev/shm, and sockets. It removes named
rings (`serve --named-doors`) of killed servers from /dev/shm: only those of this user, and only if
the kernel reports that no process holds them.

With --journal, it checks who may use the directory, if a process uses it, its file system, the free
space, and the cache of the disk. It measures 200 writes with their syncs, for 2 seconds at most,
in a file without a name.

With --cluster, it checks the server of NATS: its version, JetStream, max_payload, each permission
of a node, the stores, the nodes, and when data is synced. It stores 20 records of 100 bytes for no
execution, and measures that. They stay until the retention of the log is over.

Exit codes: 0 nothing hinders, 1 something hinders (marked BAD), 2 bad usage, 3 this program was
built without clusters.
"
);

const COLUMNS: usize = 100;

#[derive(Debug, Default)]
struct DoctorOptions {
    sockets: Vec<PathBuf>,
    journal: Option<PathBuf>,
    cluster: ClusterOptions,
    node: Option<String>,
    as_json: bool,
    keeps: bool,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<DoctorOptions>, CliError> {
    let mut options = DoctorOptions::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("json") => options.as_json = true,
            Long("keep") => options.keeps = true,
            Long("door") => options.sockets.push(parser.value()?.into()),
            Long("journal") => options.journal = Some(parser.value()?.into()),
            Long("node") => options.node = Some(parser.value()?.string()?),
            Long(name) => {
                let name = name.to_owned();
                if !options.cluster.take(&name, &mut parser)? {
                    return Err(lexopt::Error::UnexpectedOption(format!("--{name}")).into());
                }
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(options))
}

/// Carries out `streamdoor doctor`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    let of_cluster = of_cluster(&options)?;
    let mut findings = kernel::findings();
    findings.extend(machine::findings(&options.sockets));
    findings.extend(leftovers::findings(Path::new(FOLDER), !options.keeps));
    findings.extend(options.journal.iter().flat_map(|folder| journal::findings(folder)));
    findings.extend(of_cluster);
    if options.as_json {
        print_out!("{}", printable::json(&finding::to_json(&findings)));
    } else {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        let release = release.as_deref().map_or("?", str::trim);
        let columns = match io::stdout().is_terminal() {
            true => console::columns(io::stdout()).min(COLUMNS),
            false => COLUMNS,
        };
        print_out!("streamdoor {} on Linux {release}\n", env!("CARGO_PKG_VERSION"));
        print_out!("{}", finding::to_text(&findings, columns));
    }
    match finding::is_hindered(&findings) {
        false => Ok(()),
        true => Err(CliError::Told),
    }
}

/// Returns the findings about the cluster, if one is given.
fn of_cluster(options: &DoctorOptions) -> Result<Vec<finding::Finding>, CliError> {
    if options.cluster.servers.is_empty() {
        return match options.node {
            None => Ok(Vec::new()),
            Some(_) => Err(CliError::Usage("--node: --cluster is not given".to_owned())),
        };
    }
    #[cfg(feature = "cluster")]
    return cluster::findings(&options.cluster, options.node.as_deref());
    #[cfg(not(feature = "cluster"))]
    Err(super::cluster::not_built())
}

/// Returns the time at or below which `percent` of all times lie. There has to be one.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}
