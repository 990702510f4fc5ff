//! The traced side of `bench instructions`: marks the repetitions of operations in the trace.
//!
//! Valgrind's lackey cannot be told where a repetition begins. Each repetition therefore begins
//! with a store to one address. A line in the trace announces this address for each operation.
//! (`lines.rs` reads the trace.)
//!
//! The number of lines depends on the positions of objects in the heap and of frames in the stack.
//! Each operation therefore runs in a fork of the same process and begins at a page of the stack.

use std::fmt;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use super::operations::{self, ALL, Operation};
use crate::common::{Failure, machine};

const PAGE_BYTES: usize = 4096;
/// Capacity that suffices for the names of all operations.
const NAMES_BYTES: usize = 4096;
const _: () = assert!(ALL.len() * 64 < NAMES_BYTES);
/// The first word of an announcement.
const ANNOUNCED: &str = "marks";

/// The store to this number is the mark. No other code uses it.
static MARK: AtomicU64 = AtomicU64::new(0);

/// The numbers of the repetitions.
pub struct Repetitions {
    next: u64,
    times: u64,
}

/// Returns the numbers below `times`. Marks the beginning of each repetition, and the end of the
/// last one. This takes few instructions, because they are in the counts, too.
pub fn repetitions(times: u64) -> Repetitions {
    Repetitions { next: 0, times }
}

impl Iterator for Repetitions {
    type Item = u64;

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        let number = self.next;
        MARK.store(number, Ordering::Relaxed);
        self.next = number.wrapping_add(1);
        (number < self.times).then_some(number)
    }
}

/// The announcement of one operation in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The name of the operation.
    pub name: String,
    /// The number of repetitions.
    pub times: u64,
    /// The address of the mark.
    pub mark: u64,
    /// An address in the stack.
    pub stack: u64,
}

impl fmt::Display for Announcement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Announcement { name, times, mark, stack } = self;
        write!(formatter, "{ANNOUNCED} {name} {times} {mark:x} {stack:x}")
    }
}

impl Announcement {
    /// Reads a line. Returns `None` for every other text.
    pub fn parse(line: &str) -> Option<Announcement> {
        let mut words = line.split_whitespace();
        let _ = words.next().filter(|word| *word == ANNOUNCED)?;
        let name = words.next()?.to_owned();
        let times = words.next()?.parse().ok()?;
        let mut address = || u64::from_str_radix(words.next()?, 16).ok();
        Some(Announcement { name, times, mark: address()?, stack: address()? })
    }
}

/// Runs `bench instructions trace`: the operations whose names are on the lines of standard input.
///
/// The names are no arguments, because arguments of another length would move the heap. The
/// operations without a shard run first, so that the preparations of a shard do not slow them down.
///
/// # Errors
/// [`Failure`] if an operation fails.
pub fn trace() -> Result<(), Failure> {
    let names = read_names().map_err(|error| Failure::Usage(format!("trace: {error}")))?;
    let is_wanted = |operation: &&Operation| names.lines().any(|name| name == operation.name);
    let wanted = |has_shard: bool| {
        ALL.iter().filter(move |operation| operation.has_shard == has_shard).filter(is_wanted)
    };
    for operation in wanted(false) {
        machine::in_child(|| run(operation))?;
    }
    if wanted(true).next().is_some() {
        // The first shard of a process compiles schemas, which takes most of a trace.
        operations::publish(1).map_err(Failure::Environment)?;
    }
    for operation in wanted(true) {
        machine::in_child(|| run(operation))?;
    }
    Ok(())
}

fn read_names() -> std::io::Result<String> {
    let mut names = String::with_capacity(NAMES_BYTES);
    let mut input = std::io::stdin().lock();
    while input.read_line(&mut names)? > 0 {}
    Ok(names)
}

#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Runs one operation, with all its frames below the beginning of a page.
#[inline(never)]
fn run(operation: &Operation) -> Result<(), String> {
    let mut page = Page([0; PAGE_BYTES]);
    let stack = black_box(&mut page).0.as_ptr() as u64;
    let (name, times) = (operation.name.to_owned(), operation.times_traced);
    let mark = MARK.as_ptr() as u64;
    let line = format!("{}\n", Announcement { name, times, mark, stack });
    // One call, so that it is one line of the trace.
    std::io::stderr().write_all(line.as_bytes()).map_err(|error| error.to_string())?;
    (operation.run)(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_read_as_it_was_written() {
        let name = "publish".to_owned();
        let announced = Announcement { name, times: 128, mark: 0x4a_0000, stack: 0x1f_fff0_0000 };
        assert_eq!(Announcement::parse(&announced.to_string()), Some(announced));
        for other in ["", "marks", "marks publish 128 4a0000", "==17== marks publish 1 1 1"] {
            assert_eq!(Announcement::parse(other), None, "{other}");
        }
    }

    #[test]
    fn repetitions_have_the_numbers_of_a_range() {
        assert_eq!(repetitions(3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(repetitions(0).count(), 0);
    }
}
