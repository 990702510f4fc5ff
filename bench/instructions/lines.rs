//! Counts the distinct cache lines that one repetition of an operation touches, from the trace of
//! valgrind's lackey.
//!
//! A trace has a line for each instruction and each access to memory. It is read while it comes,
//! and is never stored. `marks.rs` is the traced side. The lines of the kernel are not counted.
//!
//! Objects of the heap, functions and constants begin at any multiple of 16 bytes. Every earlier
//! one of another size moves them, such as the path of the program. A move alone changed the data
//! lines of a chunk that is served from 113 to 119. A count is therefore the mean over the four
//! positions that everything together can have: 114 to 115 in the same runs.

use std::collections::{BTreeMap, HashSet};
use std::io::{Read, Write};
use std::ops::{Range, RangeInclusive};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::marks::Announcement;
use super::operations::Operation;
use crate::common::Failure;

const LINE_BYTES: u64 = 64;
/// The alignment of allocators and linkers. See the module's text.
const UNIT_BYTES: u64 = 16;
const UNITS_PER_LINE: u64 = LINE_BYTES / UNIT_BYTES;
/// Linux gives the main thread a stack of this size.
const STACK_BYTES: u64 = 8 << 20;
/// A write to a pipe costs valgrind more if a reader waits for it. The pipe holds as much as
/// valgrind writes in about 3 ms.
const PAUSE: Duration = Duration::from_millis(1);
const READ_BYTES: usize = 64 << 10;
/// The part of other output that an error shows.
const OTHER_BYTES_MAX: usize = 4 << 10;
/// Number of processes at the same time.
const PROCESSES: usize = 2;

/// Numbers of distinct cache lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// The lines with instructions.
    pub code: u64,
    /// The lines with data outside the stack.
    pub data: u64,
    /// The lines of the stack.
    pub stack: u64,
    /// The part of `data` that is written.
    pub written: u64,
}

impl Lines {
    /// The names of the numbers.
    pub const NAMES: [&str; 4] = ["code", "data", "stack", "written"];

    /// Returns the numbers in the order of their names.
    pub fn numbers(&self) -> [u64; 4] {
        [self.code, self.data, self.stack, self.written]
    }
}

impl From<[u64; 4]> for Lines {
    fn from([code, data, stack, written]: [u64; 4]) -> Lines {
        Lines { code, data, stack, written }
    }
}

fn failed(text: String) -> Failure {
    Failure::Failed(format!("instructions: cache lines: {text}"))
}

/// Returns the cache lines of each operation, by its name.
///
/// # Errors
/// [`Failure::Failed`] with the output of valgrind.
pub fn all(wanted: &[&Operation]) -> Result<BTreeMap<String, Lines>, Failure> {
    let mut counts = BTreeMap::new();
    std::thread::scope(|scope| {
        let part = |first: usize| wanted.iter().skip(first).step_by(PROCESSES);
        let parts = (0..PROCESSES.min(wanted.len())).map(part);
        let started: Vec<_> = parts
            .map(|part| {
                let names: Vec<&str> = part.map(|operation| operation.name).collect();
                scope.spawn(move || traced(&names))
            })
            .collect();
        for thread in started {
            counts.extend(thread.join().expect("the reader does not panic")?);
        }
        Ok::<(), Failure>(())
    })?;
    match wanted.iter().find(|operation| !counts.contains_key(operation.name)) {
        Some(operation) => Err(failed(format!("the trace of {} is not whole", operation.name))),
        None => Ok(counts),
    }
}

/// Traces the operations of these names, in one process.
fn traced(names: &[&str]) -> Result<BTreeMap<String, Lines>, Failure> {
    let mut process = start(names).map_err(|error| failed(format!("valgrind: {error}")))?;
    let mut trace = Trace::default();
    let output = process.stderr.take().expect("it is piped");
    let is_read = read(output, &mut trace);
    let status = process.wait().map_err(|error| failed(error.to_string()))?;
    is_read.map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        let said = String::from_utf8_lossy(&trace.other);
        return Err(failed(format!("{} under valgrind: {status}: {said}", names.join(", "))));
    }
    Ok(trace.counts)
}

/// Starts valgrind. The path of the program and the environment are the same for everyone, because
/// both are in the memory of the process.
fn start(names: &[&str]) -> std::io::Result<Child> {
    let program = std::env::current_exe()?;
    let (Some(folder), Some(file)) = (program.parent(), program.file_name()) else {
        return Err(std::io::Error::other("the path of this program is unknown"));
    };
    let mut command = Command::new("valgrind");
    command.arg("--quiet").args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"]);
    command.arg(std::path::Path::new(".").join(file)).args(["instructions", "trace"]);
    command
        .current_dir(folder)
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn()?;
    // These few bytes fit into the pipe. Dropping the pipe closes it.
    let mut input = process.stdin.take().expect("it is piped");
    match input.write_all(names.join("\n").as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(process), // A process that has ended says why.
    }
}

/// Gives all lines of `output` to `trace`.
fn read(mut output: impl Read, trace: &mut Trace) -> std::io::Result<()> {
    let (mut buffer, mut held) = (vec![0; READ_BYTES], 0);
    loop {
        let length = output.read(&mut buffer[held..])?;
        if length == 0 {
            return Ok(());
        }
        let end = held + length;
        let mut line_start = 0;
        while let Some(length) = buffer[line_start..end].iter().position(|byte| *byte == b'\n') {
            trace.on_line(&buffer[line_start..line_start + length]);
            line_start += length + 1;
        }
        if line_start == 0 && end == buffer.len() {
            return Err(std::io::Error::other("the trace has a line without an end"));
        }
        buffer.copy_within(line_start..end, 0);
        held = end - line_start;
        if length < READ_BYTES / 2 {
            std::thread::sleep(PAUSE);
        }
    }
}

/// The state of a trace.
#[derive(Default)]
struct Trace {
    /// The operation that runs now.
    now: Option<Repeated>,
    /// The operations that have ended.
    counts: BTreeMap<String, Lines>,
    /// The beginning of everything that is no trace.
    other: Vec<u8>,
}

impl Trace {
    fn on_line(&mut self, line: &[u8]) {
        if let Some(access) = line.first_chunk().and_then(kind_of) {
            let Some(repeated) = &mut self.now else { return };
            if line == repeated.mark {
                if let Some(lines) = repeated.on_mark() {
                    let name = std::mem::take(&mut repeated.name);
                    self.counts.insert(name, lines);
                    self.now = None;
                }
            } else if repeated.is_counted()
                && let Some(touched) = touched(line)
            {
                repeated.touched.add(access, touched, &repeated.stack);
            }
            return;
        }
        match std::str::from_utf8(line).ok().and_then(Announcement::parse) {
            Some(announced) => self.now = Some(Repeated::new(announced)),
            None if self.other.len() < OTHER_BYTES_MAX => {
                self.other.extend_from_slice(line);
                self.other.push(b'\n');
            }
            None => {}
        }
    }
}

/// The kind of an access.
#[derive(Clone, Copy)]
enum Access {
    Fetch,
    Load,
    Store,
}

/// Returns the kind of access of a line that begins with these bytes. An instruction that changes
/// memory is a store.
fn kind_of(start: &[u8; 3]) -> Option<Access> {
    match start {
        b"I  " => Some(Access::Fetch),
        b" L " => Some(Access::Load),
        b" S " | b" M " => Some(Access::Store),
        _ => None,
    }
}

/// Returns the units of an access such as ` L 1fff000718,8`.
fn touched(line: &[u8]) -> Option<RangeInclusive<u64>> {
    let (address, size) = std::str::from_utf8(line.get(3..)?).ok()?.split_once(',')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let size: u64 = size.parse().ok()?;
    let last = address.checked_add(size.checked_sub(1)?)?;
    Some(address / UNIT_BYTES..=last / UNIT_BYTES)
}

/// An operation while it is repeated.
struct Repeated {
    name: String,
    /// The line of the trace that is a mark.
    mark: Vec<u8>,
    /// The units that can belong to the stack.
    stack: Range<u64>,
    times: u64,
    marks_seen: u64,
    touched: Touched,
    /// The counts of the second half of the repetitions.
    counts: Vec<Lines>,
}

impl Repeated {
    fn new(announced: Announcement) -> Repeated {
        let Announcement { name, times, mark, stack } = announced;
        Repeated {
            name,
            mark: format!(" S {mark:08x},8").into_bytes(),
            stack: stack.saturating_sub(STACK_BYTES) / UNIT_BYTES
                ..stack.saturating_add(STACK_BYTES) / UNIT_BYTES,
            times,
            marks_seen: 0,
            touched: Touched::default(),
            counts: Vec::new(),
        }
    }

    /// True if the repetition of now is in the second half.
    fn is_counted(&self) -> bool {
        self.marks_seen > self.times / 2
    }

    /// Ends one repetition. Returns the result if it was the last one. The result has the median of
    /// each number, because some repetitions have additional work such as the tick of a timer.
    fn on_mark(&mut self) -> Option<Lines> {
        if self.is_counted() {
            self.counts.push(self.touched.take());
        }
        self.marks_seen += 1;
        if self.marks_seen <= self.times {
            return None;
        }
        let median = |index: usize| {
            let mut numbers: Vec<u64> = self.counts.iter().map(|c| c.numbers()[index]).collect();
            numbers.sort_unstable();
            numbers.get(numbers.len() / 2).copied().unwrap_or(0)
        };
        Some([0, 1, 2, 3].map(median).into())
    }
}

/// The units of [`UNIT_BYTES`] that one repetition touches.
#[derive(Default)]
struct Touched {
    code: HashSet<u64>,
    data: HashSet<u64>,
    stack: HashSet<u64>,
    written: HashSet<u64>,
}

impl Touched {
    fn add(&mut self, access: Access, units: RangeInclusive<u64>, stack: &Range<u64>) {
        for unit in units {
            match access {
                Access::Fetch => self.code.insert(unit),
                _ if stack.contains(&unit) => self.stack.insert(unit),
                Access::Load => self.data.insert(unit),
                Access::Store => {
                    self.written.insert(unit);
                    self.data.insert(unit)
                }
            };
        }
    }

    fn take(&mut self) -> Lines {
        let Touched { code, data, stack, written } = self;
        [code, data, stack, written].map(line_count).into()
    }
}

/// Takes units, and returns the mean number of their lines.
fn line_count(units: &mut HashSet<u64>) -> u64 {
    let mut units: Vec<u64> = units.drain().collect();
    units.sort_unstable();
    let line_of = |unit: u64, position: u64| (unit + position) / UNITS_PER_LINE;
    let at = |position: u64| {
        let is_next = |pair: &[u64]| line_of(pair[0], position) != line_of(pair[1], position);
        let next_count = units.windows(2).filter(|pair| is_next(pair)).count();
        (next_count + usize::from(!units.is_empty())) as u64
    };
    let sum: u64 = (0..UNITS_PER_LINE).map(at).sum();
    (sum + UNITS_PER_LINE / 2) / UNITS_PER_LINE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the counts of a trace of these lines.
    fn counts(trace: &str) -> (BTreeMap<String, Lines>, String) {
        let mut state = Trace::default();
        read(trace.as_bytes(), &mut state).unwrap();
        (state.counts, String::from_utf8(state.other).unwrap())
    }

    const MARK: &str = "I  00401000,7\n S 00500000,8\n";
    const ANNOUNCED: &str = "marks publish 2 500000 1fff000000\n";

    #[test]
    fn only_the_lines_of_repetitions_in_the_second_half_are_counted() {
        let first = "I  00402000,4\n L 00600000,8\n";
        let second =
            "I  00401010,4\n L 00600040,8\n S 1ffefffff8,8\n S 00600080,4\n M 006000c0,4\n";
        let after = "I  00403000,4\n L 00700000,8\n";
        let trace = format!("{first}{ANNOUNCED}{first}{MARK}{first}{MARK}{second}{MARK}{after}");
        let lines = Lines { code: 1, data: 3, stack: 1, written: 2 };
        assert_eq!(counts(&trace), ([("publish".to_owned(), lines)].into(), String::new()));
    }

    #[test]
    fn an_access_across_a_border_touches_both_lines_and_a_line_counts_once() {
        let second = "I  0040103e,4\nI  00401042,4\n L 0060003f,50\n L 0060003f,2\n S 00600040,8\n";
        let trace = format!("{ANNOUNCED}{MARK}{MARK}{second}{MARK}");
        let lines = Lines { code: 2, data: 2, stack: 0, written: 1 };
        assert_eq!(counts(&trace).0["publish"], lines);
    }

    #[test]
    fn a_move_of_everything_does_not_change_the_counts() {
        let mut random = streamdoor::base::Random::new(1);
        let units: Vec<u64> = (0..200).map(|_| random.below(2_000)).collect();
        let counted = |by: u64| line_count(&mut units.iter().map(|unit| unit + by).collect());
        assert!((1..9).all(|by| counted(by) == counted(0)));
        // Neighbours share a line in three of four positions.
        assert_eq!(
            [vec![5], vec![5, 6], vec![5, 9], vec![5, 8, 9]]
                .map(|units| { line_count(&mut units.into_iter().collect()) }),
            [1, 1, 2, 2]
        );
    }

    #[test]
    fn a_trace_that_ends_early_has_no_result_and_other_text_is_kept() {
        let trace = format!("==1== a warning\n{ANNOUNCED}{MARK}{MARK}I  00401000,4\n");
        assert_eq!(counts(&trace), (BTreeMap::new(), "==1== a warning\n".to_owned()));
    }

    #[test]
    fn a_rare_repetition_does_not_change_the_result() {
        let usual = format!("{MARK}I  00402000,4\n").repeat(6);
        let rare = format!("{MARK}I  00402000,4\nI  00403000,4\n");
        let announced = ANNOUNCED.replace(" 2 ", " 7 ");
        let trace = format!("{announced}{usual}{rare}{MARK}");
        // The instruction of the mark itself is in another line.
        assert_eq!(counts(&trace).0["publish"].code, 2);
    }
}
