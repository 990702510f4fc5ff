//! The command `bench instructions`: counts the instructions of hot operations, and the distinct
//! cache lines that they touch, and compares them with recorded counts.
//!
//! On a shared machine, times differ from run to run. The number of instructions does not. One
//! process repeats an operation (`operations.rs`) under valgrind's callgrind, and a second process
//! repeats it more often. The difference belongs to the operation alone, without the start and the
//! setup (`count.rs`). The cache lines come from a trace of valgrind's lackey, in which the process
//! marks each repetition (`marks.rs`, `lines.rs`). `records.rs` reads, writes and compares files of
//! counts. `counts.toml` belongs to the build of the tests, and `tools/test` checks it. `dist.toml`
//! belongs to the shipped build.

mod count;
mod lines;
mod marks;
mod operations;
mod records;
mod served;

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::{Arg, Parser};

use crate::common::params::{number, text, usage};
use crate::common::{Failure, print};
use operations::{ALL, Operation};
use records::{Counts, Records};

const TIMES_MAX: u64 = 10_000_000;

const HELP: &str = "\
bench instructions: count the instructions of hot operations, with valgrind's callgrind, and the
distinct cache lines of one repetition, with its lackey

Usage: bench instructions [options]
       bench instructions run NAME --times N     run one N times; its instructions are counted
       bench instructions trace                  run those whose names are on the lines of standard
                                                 input; their cache lines are counted

  --check FILE        compare with FILE; fail if a count of an operation differs by more than the
                      tolerance, if one is not recorded, or if a recorded one does not exist
  --record FILE       write the counts to FILE
  --only WORDS        count only operations whose names contain one of these, such as
                      encode,publish
  --help

A cache line has 64 bytes. Lines of the code, of the data and of the stack are counted apart, and
the written lines of the data once more. A count is the median of the last repetitions, and the
mean of the four positions that memory can have in lines. The lines that the kernel touches are not
in it.

To record again after an intended change of the costs, for the profile that tools/test compares and
for the profile dist:
  cargo run --profile counts --all-features --bin bench -- \\
      instructions --record bench/instructions/counts.toml
  cargo run --profile dist --bin bench -- instructions --record bench/instructions/dist.toml

Counts are only comparable for one compiler and one profile. With others, or without valgrind,
nothing is compared, and the last line reports it (\"not run: …\"). Without lackey, only the
instructions are counted, and the last line reports that. Valgrind chooses the addresses of a
process, so that their random choice by the kernel does not change the counts.
";

/// The use of the counts.
enum Task {
    Print,
    Check(PathBuf),
    Record(PathBuf),
}

/// Runs `bench instructions` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter().peekable();
    if arguments.next_if(|word| word == "run").is_some() {
        return run_one(arguments);
    }
    if arguments.next_if(|word| word == "trace").is_some() {
        return match arguments.next() {
            None => marks::trace(),
            Some(word) => Err(Failure::Usage(format!("trace: {word:?} is not expected"))),
        };
    }
    let (mut task, mut words) = (Task::Print, Vec::new());
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Arg::Long("help") | Arg::Short('h') => {
                print(&format!("{HELP}{}", listed()));
                return Ok(());
            }
            Arg::Long("check") => task = Task::Check(parser.value().map_err(usage)?.into()),
            Arg::Long("record") => task = Task::Record(parser.value().map_err(usage)?.into()),
            Arg::Long("only") => {
                let text = text(&mut parser, "--only")?;
                words = text.split(',').map(str::to_owned).collect();
            }
            other => return Err(usage(other.unexpected())),
        }
    }
    let is_wanted = |operation: &&Operation| {
        words.is_empty() || words.iter().any(|word| operation.name.contains(word.as_str()))
    };
    let wanted: Vec<&Operation> = ALL.iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        return Err(Failure::Usage(format!(
            "--only {}: no operation has such a name",
            words.join(",")
        )));
    }
    carry_out(&task, &wanted)
}

fn carry_out(task: &Task, wanted: &[&Operation]) -> Result<(), Failure> {
    let recorded = match task {
        Task::Check(path) => Some(Records::read(path)?),
        Task::Print | Task::Record(_) => None,
    };
    if !count::has_tool("callgrind") {
        print("not run: valgrind is not installed\n");
        return Ok(());
    }
    let made_by = count::made_by()?;
    if let Some(recorded) = &recorded
        && recorded.made_by != made_by
    {
        let theirs = &recorded.made_by;
        print(&format!("not run: the counts are of {theirs}, and this program is of {made_by}\n"));
        return Ok(());
    }
    let needs_lines = recorded.as_ref().is_none_or(|recorded| recorded.counts.lines.is_some());
    let has_lackey = count::has_tool("lackey");
    let whole: Vec<&Operation> = wanted.iter().copied().filter(|it| it.part.is_none()).collect();
    let lines = (needs_lines && has_lackey).then(|| lines::all(&whole)).transpose()?;
    let counts = Counts { instructions: count::all(wanted)?, lines };
    let is_good = match recorded {
        Some(recorded) => {
            let (report, is_good) = recorded.compare(&counts, wanted.len() == ALL.len());
            print(&report);
            is_good
        }
        None => {
            let records = Records::new(made_by, counts);
            if let Task::Record(path) = task {
                records.write(path)?;
            }
            print(&records.to_text());
            true
        }
    };
    if !is_good {
        let text = "the numbers of instructions or cache lines have changed; if this is intended, \
                    record them again (see --help)";
        return Err(Failure::Failed(text.into()));
    }
    if needs_lines && !has_lackey {
        print("not run: valgrind has no tool lackey, so cache lines were not counted\n");
    }
    Ok(())
}

/// Runs `bench instructions run`, whose instructions are counted.
fn run_one(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let (mut operation, mut times) = (None, None);
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Arg::Value(name) if operation.is_none() => {
                let found = ALL.iter().find(|operation| name == operation.name);
                let unknown = || Failure::Usage(format!("{name:?} is not an operation"));
                operation = Some(found.ok_or_else(unknown)?);
            }
            Arg::Long("times") => times = Some(number(&mut parser, "--times", 1, TIMES_MAX)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    let (Some(operation), Some(times)) = (operation, times) else {
        return Err(Failure::Usage("run: the name of an operation and --times are needed".into()));
    };
    (operation.run)(times).map_err(Failure::Environment)
}

fn listed() -> String {
    let mut text = String::from("\nOperations:\n");
    for Operation { name, what, .. } in ALL {
        text += &format!("  {name:<20}{what}\n");
    }
    text
}
