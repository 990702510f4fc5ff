//! The command `bench instructions`: counts the instructions of hot operations and compares them
//! with recorded counts.
//!
//! On a shared machine, times differ from run to run. The number of instructions does not. One
//! process repeats an operation (`operations.rs`) under valgrind's callgrind, and a second process
//! repeats it more often. The difference belongs to the operation alone, without the start and the
//! setup (`count.rs`). `records.rs` reads, writes and compares files of counts. `counts.toml`
//! belongs to the build of the tests, and `tools/test` checks it. `dist.toml` belongs to the
//! shipped build.

mod count;
mod operations;
mod records;
mod served;

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::{Arg, Parser};

use crate::common::params::{number, text, usage};
use crate::common::{Failure, print};
use operations::{ALL, Operation};
use records::Records;

const TIMES_MAX: u64 = 10_000_000;

const HELP: &str = "\
bench instructions: count the instructions of hot operations, with valgrind's callgrind

Usage: bench instructions [options]
       bench instructions run NAME --times N     run one N times; this is what is counted

  --check FILE        compare with FILE; fail if the count of an operation differs by more than the
                      tolerance, if one is not recorded, or if a recorded one does not exist
  --record FILE       write the counts to FILE
  --only WORDS        count only operations whose names contain one of these, such as
                      encode,publish
  --help

To record again after an intended change of the costs, for the profile that tools/test compares and
for the profile dist:
  cargo run --profile test --all-features --bin bench -- \\
      instructions --record bench/instructions/counts.toml
  cargo run --profile dist --bin bench -- instructions --record bench/instructions/dist.toml

Counts are only comparable for one compiler and one profile. With others, or without valgrind,
nothing is compared, and the last line reports it (\"not run: …\").
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
    if !count::has_valgrind() {
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
    let counts = count::all(wanted)?;
    match (task, recorded) {
        (Task::Record(path), _) => {
            let records = Records { made_by, counts, ..Records::empty() };
            records.write(path)?;
            print(&records.to_text());
            Ok(())
        }
        (_, None) => {
            print(&Records { made_by, counts, ..Records::empty() }.to_text());
            Ok(())
        }
        (_, Some(recorded)) => {
            let is_whole = wanted.len() == ALL.len();
            let (report, is_good) = recorded.compare(&counts, is_whole);
            print(&report);
            let text = "the numbers of instructions have changed; if this is intended, record them \
                        again (see --help)";
            if is_good { Ok(()) } else { Err(Failure::Failed(text.into())) }
        }
    }
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
