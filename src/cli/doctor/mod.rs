//! `streamdoor doctor`: reports on this machine, the consequences, and possible remedies.

mod finding;
mod kernel;
mod leftovers;
mod machine;

use std::io;
use std::path::{Path, PathBuf};

use lexopt::prelude::*;
use rustix::termios::tcgetwinsize;
use streamdoor::memory::named::FOLDER;

use super::CliError;
use super::console::say;

const HELP: &str = "\
streamdoor doctor: what this machine gives streamdoor, what that means, and what to do about it

Usage: streamdoor doctor [OPTIONS]

  --door PATH       look at this socket, too, beside the default one; may be repeated
  --keep            remove nothing: only tell what dead servers have left in /dev/shm
  --json            print the findings as JSON
  -h, --help        this text

What is looked at: io_uring and its operations, futex_waitv, memfd with its seals, pidfd, memory
pressure and cgroup limits, limits of descriptors and of locked memory, /dev/shm, and sockets. Named
rings (`serve --named-doors`) of servers that were killed are removed from /dev/shm: those of this
user alone, and only if the kernel says that nobody holds them.

Exit codes: 0 all is well enough, 1 something hinders (those marked BAD), 2 bad usage.
";

const COLUMNS: usize = 100;

#[derive(Debug, Default)]
struct Options {
    sockets: Vec<PathBuf>,
    as_json: bool,
    keeps: bool,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<Options>, CliError> {
    let mut options = Options::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("json") => options.as_json = true,
            Long("keep") => options.keeps = true,
            Long("door") => options.sockets.push(parser.value()?.into()),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(options))
}

/// Carries out `streamdoor doctor`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        say!("{}", HELP.trim_end());
        return Ok(());
    };
    let mut findings = kernel::findings();
    findings.extend(machine::findings(&options.sockets));
    findings.extend(leftovers::findings(Path::new(FOLDER), !options.keeps));
    if options.as_json {
        say!("{:#}", finding::to_json(&findings));
    } else {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        let release = release.as_deref().map_or("?", str::trim);
        let columns = tcgetwinsize(io::stdout()).map_or(COLUMNS, |size| size.ws_col.into());
        let columns = columns.min(COLUMNS);
        say!("streamdoor {} on Linux {release}\n", env!("CARGO_PKG_VERSION"));
        say!("{}", finding::to_text(&findings, columns));
    }
    match finding::is_hindered(&findings) {
        false => Ok(()),
        true => Err(CliError::Told),
    }
}
