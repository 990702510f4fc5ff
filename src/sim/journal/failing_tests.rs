//! A fixed work of the journal, with each operation of the disk failing once.

use std::path::Path;
use std::time::Duration;

use super::{Counts, DIRECTORY, Manner, Process, Trial, setup};
use crate::base::Random;
use crate::journal::Setup;
use crate::limits::JOURNAL_SEGMENT_BYTES_MIN;
use crate::sim::disk::{Crash, FailingOperation, SimDisk};
use crate::sim::world::{SimFaults, SimWorld};

const TURNS: u32 = 120;

/// A journal whose small segments are made, sealed and removed within a few appends.
fn small() -> Setup {
    let segment_bytes = JOURNAL_SEGMENT_BYTES_MIN;
    Setup { segment_bytes, bytes_max: 4 * u64::from(segment_bytes), ..setup(1) }
}

/// Does the same work each time, with two crashes in the middle and one at the end. Returns its
/// counts, and true if the operation that had to fail came.
fn work(operation: FailingOperation, nth: u64) -> (Counts, bool) {
    let mut trial = Trial::new(small(), Manner::Loud, [3, 4], Random::new(5));
    trial.disk.fail_nth(operation, nth);
    for turn in 0..TURNS {
        match turn % 24 {
            0 | 1 | 9 => trial.open(),
            13 | 21 => trial.end(),
            15 => trial.read_one(),
            17 => trial.process.pass(Duration::from_millis(1_200)),
            23 if turn == 47 => trial.restart(Crash::Process),
            23 if turn == 95 => trial.restart(Crash::Power),
            _ => trial.append(),
        }
        trial.process.pass(Duration::from_micros(500));
        trial.settle();
    }
    trial.restart(Crash::Power);
    trial.restart(Crash::Process); // What a recovery has written is read again.
    let has_come = trial.disk.failing_count() == 0;
    (trial.counts, has_come)
}

#[test]
fn the_nth_operation_of_the_disk_may_fail_for_every_n() {
    let mut sum = Counts::default();
    for operation in FailingOperation::ALL {
        let mut nth = 1;
        loop {
            let (counts, has_come) = work(operation, nth);
            assert_eq!(counts.corrupt, 0, "{operation:?} {nth}");
            sum.given += counts.given;
            sum.ends += counts.ends;
            sum.expired += counts.expired;
            sum.disk_failures += counts.disk_failures;
            if !has_come {
                assert!(nth > 1, "no {operation:?} happens");
                assert_eq!(counts.disk_failures, 0);
                assert!(counts.sealed_segments > 3 && counts.acknowledged > 0 && counts.ends > 0);
                break;
            }
            nth += 1;
        }
        println!("{} times the nth {operation:?} failed", nth - 1);
    }
    println!("{sum:?}");
    assert!(sum.disk_failures > 0 && sum.given > 0 && sum.ends > 0 && sum.expired > 0);
}

#[test]
fn a_journal_can_be_made_after_the_nth_operation_of_the_first_attempt_has_failed() {
    let mut failures = 0;
    for operation in FailingOperation::ALL {
        for nth in 1.. {
            let world = SimWorld::new(1, SimFaults::NONE);
            let disk = SimDisk::new(nth);
            world.put_disk(Path::new(DIRECTORY), &disk);
            disk.fail_nth(operation, nth);
            let first = Process::open(&world, &small());
            if disk.failing_count() > 0 {
                assert!(first.is_ok());
                break;
            }
            assert!(first.is_err(), "{operation:?} {nth}");
            drop(first);
            disk.crash(if nth % 2 == 0 { Crash::Power } else { Crash::Process });
            let (process, (unfinished, _)) = Process::open(&world, &small()).expect("it is empty");
            assert!(unfinished.is_empty() && process.journal.executions().count() == 0);
            failures += 1;
        }
    }
    println!("{failures} failures of the first attempt");
    assert!(failures >= 4); // A list, a file, its header, its name.
}
