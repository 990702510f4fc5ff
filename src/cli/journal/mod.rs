//! `streamdoor journal`: looks at the journal of a server. It changes nothing and takes no lock.

mod cat;
mod folder;
mod ls;
mod verify;

use std::path::PathBuf;

use lexopt::prelude::*;
use streamdoor::stream::Kinds;

pub use folder::directories;

use super::console::print_out;
use super::remote::{self, KindList};
use super::{CliError, hints, parsed};

pub const HELP: &str = "\
streamdoor journal: list the executions of a journal, read one of them, or check all files

Usage: streamdoor journal [OPTIONS] ls DIR              list the executions
       streamdoor journal [OPTIONS] cat DIR EXECUTION   write the results of one, as bytes
       streamdoor journal [OPTIONS] verify DIR          check every checksum

  --json            ls, verify: print one JSON object a line
  --kinds LIST      cat: only chunks of these kinds: stdout,stderr   [all but structured]
  -h, --help        show this text

DIR is the directory of a journal, or that of one of its shards. Its files are only read. A server
may write them meanwhile. What it was writing when it was killed, or when the power failed, is no
damage.

`ls` prints a line for each execution. The state is the outcome, with the error of a failure:
`restarted` is the error of an execution that ran when its process ended. `unfinished` means that no
end was recorded: the execution runs, or its server was killed. `ended` means that the outcome
cannot be read. `missing` counts chunks that are lost: `unwritten` (the journal had no room),
`corrupt` (the disk has damaged them), `expired` (removed with old segments). It trusts the index of
a full segment, so only `verify` and `cat` find each damaged chunk. The last line sums up.

`cat` writes the chunks to standard output. A terminal shows the text in them. Standard error tells
which chunks are missing, and why.

`verify` prints a line for each fault: the file, the offset, and what is wrong.

Exit codes: 0 done; 1 `verify` has found a fault, chunks are missing from the results of `cat`, or
the journal has no such execution; 2 bad usage; 3 DIR cannot be read, or it is no journal.
";

/// The part of the command that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Ls,
    Cat,
    Verify,
}

const ACTIONS: [(&str, Action); 3] =
    [("ls", Action::Ls), ("cat", Action::Cat), ("verify", Action::Verify)];

#[derive(Debug, Default)]
struct JournalOptions {
    action: Option<Action>,
    folder: Option<PathBuf>,
    execution: Option<String>,
    as_json: bool,
    kinds: Option<Kinds>,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<JournalOptions>, CliError> {
    let mut options = JournalOptions::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("json") => options.as_json = true,
            Long("kinds") => options.kinds = Some(parsed::<KindList>("kinds", &mut parser)?.0),
            Value(word) if options.action.is_none() => {
                options.action = Some(action(&word.string()?)?);
            }
            Value(word) if options.folder.is_none() => options.folder = Some(word.into()),
            Value(word) if options.action == Some(Action::Cat) && options.execution.is_none() => {
                options.execution = Some(word.string()?);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(options))
}

fn action(word: &str) -> Result<Action, CliError> {
    let found = ACTIONS.iter().find(|(name, _)| *name == word);
    found.map(|(_, action)| *action).ok_or_else(|| {
        let names = ACTIONS.iter().map(|(name, _)| *name);
        let hint = hints::did_you_mean(hints::nearest(word, names));
        CliError::Usage(format!("unknown action {word:?}: must be ls, cat or verify{hint}"))
    })
}

/// Carries out `streamdoor journal`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    let usage = |text: &str| CliError::Usage(text.to_owned());
    let action = options.action.ok_or_else(|| usage("no action is given: ls, cat or verify"))?;
    let folder = options.folder.ok_or_else(|| usage("no directory is given"))?;
    if action == Action::Cat && options.as_json {
        return Err(usage("--json: `cat` writes bytes"));
    }
    if action != Action::Cat && options.kinds.is_some() {
        return Err(usage("--kinds: only `cat` takes it"));
    }
    match action {
        Action::Ls => ls::run(&folder, options.as_json),
        Action::Verify => verify::run(&folder, options.as_json),
        Action::Cat => {
            let id = options.execution.ok_or_else(|| usage("no execution is given"))?;
            let kinds = options.kinds.unwrap_or(Kinds::RAW);
            cat::run(&folder, remote::execution(&id)?, kinds)
        }
    }
}
