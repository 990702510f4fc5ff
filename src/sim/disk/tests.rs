//! Tests of the simulated disk: what crashes and faults leave behind.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::base::PageBuffer;
use crate::reactor::{DiskAnswer, DiskDone, DiskRequest, DiskSetup, DiskWork, FileId, Reactor};
use crate::sim::reactor::SimReactor;
use crate::sim::world::{SimFaults, SimWorld};

const PAGE: usize = 4_096;
const PAGES: u64 = 16;
const SEEDS: u64 = 200;

fn name(text: &str) -> FileName {
    FileName::new(text).unwrap()
}

/// A reactor on a disk. Another one on the same disk is the next process.
struct Process {
    world: SimWorld,
    reactor: SimReactor,
}

impl Process {
    fn start(disk: &SimDisk) -> Process {
        let world = SimWorld::new(1, SimFaults::NONE);
        world.put_disk(Path::new("/disk"), disk);
        let mut reactor = SimReactor::new(&world);
        reactor.open_disk(DiskSetup::at(Path::new("/disk"))).unwrap();
        Process { world, reactor }
    }

    fn submit(&mut self, work: DiskWork) {
        self.reactor.submit_disk(DiskRequest { token: 0, work }).unwrap();
    }

    fn next(&mut self) -> DiskDone {
        loop {
            if let Some(done) = self.reactor.next_disk_event() {
                return done;
            }
            self.reactor.wait(None);
        }
    }

    fn ask(&mut self, work: DiskWork) -> Result<DiskAnswer, i32> {
        self.submit(work);
        self.next().result.map_err(|error| error.raw_os_error().unwrap())
    }

    fn create(&mut self, text: &str) -> FileId {
        let work = DiskWork::Create { name: name(text), bytes: PAGES * PAGE as u64 };
        let Ok(DiskAnswer::File { file, .. }) = self.ask(work) else { panic!("not made") };
        file
    }

    fn open(&mut self, text: &str) -> FileId {
        let opened = self.ask(DiskWork::Open { name: name(text) });
        let Ok(DiskAnswer::File { file, .. }) = opened else { panic!("{opened:?}") };
        file
    }

    fn read(&mut self, file: FileId, page: u64) -> Result<Vec<u8>, i32> {
        self.read_page(file, page, false)
    }

    fn read_page(&mut self, file: FileId, page: u64, is_fresh: bool) -> Result<Vec<u8>, i32> {
        let (offset, buffer) = (page * PAGE as u64, PageBuffer::new(PAGE));
        self.submit(DiskWork::Read { file, offset, buffer, bytes: PAGE as u32, is_fresh });
        let done = self.next();
        match done.result {
            Ok(DiskAnswer::Bytes(count)) => Ok(done.buffer.unwrap()[..count as usize].to_vec()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.raw_os_error().unwrap()),
        }
    }
}

/// A write of a page that is full of `byte`.
fn page_of(byte: u8, file: FileId, page: u64, sync: bool) -> DiskWork {
    let mut buffer = PageBuffer::new(PAGE);
    buffer.fill(byte);
    DiskWork::Write { file, offset: page * PAGE as u64, buffer, bytes: PAGE as u32, sync }
}

#[test]
fn a_power_cut_keeps_what_was_synced_and_anything_of_the_rest() {
    let mut seen = [0; 3];
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        disk.set_faults(DiskFaults::SLOW);
        let mut process = Process::start(&disk);
        let file = process.create("a");
        for page in 0..PAGES {
            process.ask(page_of(1, file, page, page % 3 == 0)).unwrap();
        }
        process.ask(DiskWork::Sync { file }).unwrap();
        for page in 0..4 {
            process.ask(page_of(2, file, page, false)).unwrap();
        }
        process.ask(page_of(2, file, 9, false)).unwrap();
        process.submit(page_of(2, file, 10, true)); // In flight.
        disk.crash(Crash::Power);
        drop(process);
        let mut process = Process::start(&disk);
        let file = process.open("a");
        for page in 0..PAGES {
            let bytes = process.read(file, page).unwrap();
            for sector in bytes.chunks(SECTOR_BYTES as usize) {
                match sector[0] {
                    byte @ 1..=2 if sector.iter().all(|same| *same == byte) => {
                        seen[byte as usize - 1] += u32::from(page < 4);
                    }
                    _ => seen[2] += 1,
                }
                let may_change = page < 4 || page == 9 || page == 10;
                assert!(may_change || sector.iter().all(|byte| *byte == 1), "SEED={seed} {page}");
            }
        }
        assert_eq!(disk.planted(), []);
        assert_eq!(disk.unsynced_count(), 0);
    }
    println!("old, new, garbage: {seen:?}");
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

#[test]
fn the_end_of_a_process_keeps_all_that_was_written() {
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let mut process = Process::start(&disk);
        let file = process.create("a");
        for page in 0..4 {
            process.ask(page_of(7, file, page, false)).unwrap();
        }
        process.submit(page_of(8, file, 5, false));
        let before = disk.bytes(&name("a")).unwrap();
        disk.crash(Crash::Process);
        let work = DiskWork::List;
        let refused = process.reactor.submit_disk(DiskRequest { token: 0, work });
        assert!(refused.is_err(), "a process that has ended has no disk");
        drop(process);
        let after = disk.bytes(&name("a")).unwrap();
        let untouched = 5 * PAGE;
        assert_eq!(after[..untouched], before[..untouched], "SEED={seed}");
        assert_eq!(after[untouched + PAGE..], before[untouched + PAGE..], "SEED={seed}");
        let whole = after[untouched..untouched + PAGE].chunks(SECTOR_BYTES as usize);
        assert!(whole.into_iter().all(|sector| sector == [0; 512] || sector == [8; 512]));
        assert_eq!(disk.in_flight_count(), 0);
        // The cache stays, and another process may sync it.
        let mut process = Process::start(&disk);
        let file = process.open("a");
        process.ask(DiskWork::Sync { file }).unwrap();
        disk.crash(Crash::Power);
        assert_eq!(disk.bytes(&name("a")).unwrap(), after, "SEED={seed}");
    }
}

#[test]
fn a_sync_that_failed_is_not_made_good_by_the_next() {
    let disk = SimDisk::new(1);
    let mut process = Process::start(&disk);
    let file = process.create("a");
    process.ask(page_of(1, file, 3, true)).unwrap();
    process.ask(page_of(2, file, 3, false)).unwrap();
    disk.fail_nth(FailingOperation::Sync, 1);
    assert_eq!(process.ask(DiskWork::Sync { file }), Err(libc::EIO));
    assert_eq!(process.ask(DiskWork::Sync { file }), Ok(DiskAnswer::Done));
    assert_eq!(process.read(file, 3), Ok(vec![2; PAGE])); // The cache has the new bytes.
    assert_eq!(process.read_page(file, 2, true), Ok(vec![0; PAGE]));
    assert_eq!(process.read_page(file, 3, true), Ok(vec![1; PAGE])); // The disk never got them.
    assert!(disk.is_touched(&name("a"), 3 * 4_096..4 * 4_096));
    assert!(!disk.is_touched(&name("a"), 4 * 4_096..5 * 4_096));
    assert_eq!(disk.planted()[0].kind, FaultKind::SyncError);
    process.ask(page_of(3, file, 3, true)).unwrap();
    disk.crash(Crash::Power);
    assert_eq!(disk.bytes(&name("a")).unwrap()[3 * PAGE], 3); // Written again, it is durable.
}

#[test]
fn a_sync_covers_what_completed_before_it_was_submitted_and_no_more() {
    let disk = SimDisk::new(1);
    let mut process = Process::start(&disk);
    let file = process.create("a");
    process.ask(page_of(1, file, 0, false)).unwrap();
    process.submit(page_of(1, file, 1, false));
    process.submit(DiskWork::Sync { file });
    process.submit(page_of(1, file, 2, true)); // Covers itself as well.
    for _ in 0..3 {
        process.next().result.unwrap();
    }
    assert_eq!(disk.unsynced_count(), 1);
    process.ask(DiskWork::Sync { file }).unwrap();
    assert_eq!(disk.unsynced_count(), 0);
}

#[test]
fn a_power_cut_in_the_midst_of_a_change_of_names_keeps_or_undoes_it() {
    let (mut renamed_count, mut made_count, mut kept_count) = (0, 0, 0);
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        disk.put(&name("a"), b"old");
        disk.put(&name("b"), b"new");
        disk.put(&name("c"), b"gone");
        disk.set_faults(DiskFaults::SLOW);
        let mut process = Process::start(&disk);
        process.submit(DiskWork::Rename { from: name("b"), to: name("a") });
        process.submit(DiskWork::Create { name: name("d"), bytes: 8_192 });
        process.submit(DiskWork::Remove { name: name("c") });
        let until = process.world.now() + Duration::from_millis(seed % 100);
        process.reactor.wait(Some(until));
        disk.crash(Crash::Power);
        let is_renamed = disk.bytes(&name("b")).is_none();
        let expected: &[u8] = if is_renamed { b"new" } else { b"old" };
        assert_eq!(disk.bytes(&name("a")).unwrap(), expected, "SEED={seed}");
        renamed_count += u64::from(is_renamed);
        kept_count += u64::from(disk.bytes(&name("c")).is_some());
        if let Some(bytes) = disk.bytes(&name("d")) {
            assert!(bytes.len() <= 8_192 && bytes.iter().all(|byte| *byte == 0));
            made_count += 1;
        }
    }
    for count in [renamed_count, made_count, kept_count] {
        assert!((SEEDS / 20..SEEDS - SEEDS / 20).contains(&count), "{count} of {SEEDS}");
    }
}

#[test]
fn a_process_that_ends_in_the_midst_of_making_a_file_leaves_a_part_of_it() {
    let mut sizes = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        disk.set_faults(DiskFaults { sync_delay_max: Duration::from_secs(5), ..DiskFaults::NONE });
        let mut process = Process::start(&disk);
        process.submit(DiskWork::Create { name: name("a"), bytes: 8 * SECTOR_BYTES });
        process.reactor.poll();
        disk.crash(Crash::Process);
        let bytes = disk.bytes(&name("a")).expect("its name was there");
        assert!(bytes.iter().all(|byte| *byte == 0));
        sizes.insert(bytes.len() as u64 / SECTOR_BYTES);
        disk.crash(Crash::Power);
        assert!(disk.bytes(&name("a")).is_none_or(|bytes| bytes.len() <= 4_096));
    }
    assert_eq!(sizes, (0..=8).collect(), "in sectors");
}

#[test]
fn names_that_were_changed_are_durable() {
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        disk.set_faults(DiskFaults::SLOW);
        let mut process = Process::start(&disk);
        process.create("a.prep");
        process.create("b");
        let (from, to) = (name("a.prep"), name("a"));
        process.ask(DiskWork::Rename { from, to }).unwrap();
        process.ask(DiskWork::Remove { name: name("b") }).unwrap();
        disk.crash(Crash::Power);
        assert_eq!(disk.names(), [name("a")], "SEED={seed}");
        assert_eq!(disk.bytes(&name("a")).unwrap(), vec![0; PAGES as usize * PAGE]);
    }
}

#[test]
fn a_full_disk_makes_no_file_and_leaves_none() {
    let disk = SimDisk::new(1);
    disk.set_capacity(2 * PAGES * PAGE as u64);
    let mut process = Process::start(&disk);
    disk.fail_nth(FailingOperation::Create, 2);
    process.create("a");
    let more = |text| DiskWork::Create { name: name(text), bytes: PAGES * PAGE as u64 };
    assert_eq!(process.ask(more("b")), Err(libc::ENOSPC));
    process.create("b");
    assert_eq!(process.ask(more("c")), Err(libc::ENOSPC));
    assert_eq!(disk.names(), [name("a"), name("b")]);
    process.ask(DiskWork::Remove { name: name("a") }).unwrap();
    assert_eq!(process.ask(more("c")), Err(libc::ENOSPC)); // It is still open.
    disk.crash(Crash::Process);
    Process::start(&disk).create("c");
}

#[test]
fn each_fault_is_noted_at_the_bytes_that_it_touches() {
    let chances = [
        DiskFaults { lost_chance: 1_000, ..DiskFaults::NONE },
        DiskFaults { misdirect_chance: 1_000, ..DiskFaults::NONE },
        DiskFaults { flip_chance: 1_000, ..DiskFaults::NONE },
        DiskFaults { unreadable_chance: 1_000, ..DiskFaults::NONE },
        DiskFaults { write_error_chance: 1_000, ..DiskFaults::NONE },
        DiskFaults { sync_error_chance: 1_000, ..DiskFaults::NONE },
    ];
    for (seed, faults) in (0..).zip(chances.into_iter().cycle().take(60)) {
        let disk = SimDisk::new(seed);
        let mut process = Process::start(&disk);
        let file = process.create("a");
        for page in 0..PAGES {
            process.ask(page_of(page as u8 + 1, file, page, true)).unwrap();
        }
        disk.set_faults(faults.clone());
        let _ = process.ask(page_of(99, file, 5, true));
        disk.set_faults(DiskFaults::NONE);
        disk.drop_cache();
        let mut wrong_count = 0;
        for page in 0..PAGES {
            let right = vec![if page == 5 { 99 } else { page as u8 + 1 }; PAGE];
            let is_right = process.read(file, page) == Ok(right);
            wrong_count += u64::from(!is_right);
            let range = page * PAGE as u64..(page + 1) * PAGE as u64;
            assert!(is_right || disk.is_touched(&name("a"), range), "SEED={seed} page {page}");
        }
        assert!(!disk.planted().is_empty() || faults.misdirect_chance > 0, "SEED={seed}");
        assert!(wrong_count > 0 || faults.misdirect_chance > 0 || faults.write_error_chance > 0);
    }
}

#[test]
fn a_sector_that_cannot_be_read_can_be_written() {
    let disk = SimDisk::new(1);
    let mut process = Process::start(&disk);
    let file = process.create("a");
    assert!(disk.make_unreadable(&name("a"), 5_000));
    assert!(disk.flip_bit(&name("a"), 9_000, 3));
    assert!(!disk.flip_bit(&name("a"), PAGES * PAGE as u64, 0) && !disk.flip_bit(&name("b"), 0, 0));
    assert_eq!(process.read(file, 0), Ok(vec![0; PAGE]));
    assert_eq!(process.read(file, 1), Err(libc::EIO));
    assert_eq!(process.read(file, 2).unwrap()[9_000 - 2 * PAGE], 8);
    process.ask(page_of(4, file, 1, true)).unwrap();
    assert_eq!(process.read(file, 1), Ok(vec![4; PAGE]));
    disk.fail_nth(FailingOperation::Read, 2);
    assert!(process.read(file, 0).is_ok());
    assert_eq!(process.read(file, 0), Err(libc::EIO));
    disk.fail_nth(FailingOperation::Write, 1);
    assert_eq!(process.ask(page_of(4, file, 1, false)), Err(libc::EIO));
}

#[test]
fn a_disk_that_stands_still_completes_nothing_until_it_goes_on() {
    let disk = SimDisk::new(1);
    let mut process = Process::start(&disk);
    let file = process.create("a");
    disk.hold();
    process.submit(page_of(1, file, 0, true));
    process.submit(DiskWork::List);
    let until = process.world.now() + Duration::from_secs(100);
    process.reactor.wait(Some(until));
    assert_eq!(process.world.now(), until);
    assert_eq!((process.reactor.poll(), disk.in_flight_count()), (0, 2));
    disk.release();
    process.next().result.unwrap();
    process.next().result.unwrap();
    assert!(process.world.now() < until + Duration::from_secs(1));
}

#[test]
fn a_slow_sync_holds_up_neither_reads_nor_writes() {
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let mut process = Process::start(&disk);
        let file = process.create("a");
        let sync_delay_max = Duration::from_secs(5);
        disk.set_faults(DiskFaults { sync_delay_max, ..DiskFaults::NONE });
        process.submit(DiskWork::Sync { file });
        let before = process.world.now();
        process.submit(page_of(1, file, 0, false));
        assert!(matches!(process.next().result, Ok(DiskAnswer::Done)));
        assert_eq!(process.world.now(), before, "SEED={seed}");
    }
}

/// One run with all faults and some crashes. Returns what it saw.
fn run(seed: u64) -> (u64, Vec<PlantedFault>, Vec<String>) {
    let disk = SimDisk::new(seed);
    let mut random = Random::new(seed ^ 1);
    let mut seen = Vec::new();
    for _ in 0..6 {
        let mut process = Process::start(&disk);
        disk.set_faults(match seed % 2 {
            0 => DiskFaults::ALL,
            _ => DiskFaults::drawn(&mut random),
        });
        let work = DiskWork::Create { name: name("a"), bytes: PAGES * PAGE as u64 };
        seen.push(format!("{:?}", process.ask(work)));
        let opened = process.ask(DiskWork::Open { name: name("a") });
        let Ok(DiskAnswer::File { file, .. }) = opened else { continue };
        for _ in 0..40 {
            let (page, sync) = (random.below(PAGES), random.chance(1, 3));
            process.submit(page_of(random.next_u64() as u8, file, page, sync));
            if random.chance(1, 2) {
                seen.push(format!("{:?}", process.next().result));
            }
            seen.push(format!("{:?}", process.read_any(file, page)));
        }
        let crash = if random.chance(1, 2) { Crash::Power } else { Crash::Process };
        disk.crash(crash);
        seen.push(format!("{:x}", disk.image_hash()));
        assert_eq!(disk.image_hash(), disk.image_hash());
    }
    (disk.image_hash(), disk.planted(), seen)
}

impl Process {
    /// Submits a read, and takes any completion.
    fn read_any(&mut self, file: FileId, page: u64) -> Option<u64> {
        let (offset, buffer) = (page * PAGE as u64, PageBuffer::new(PAGE));
        let is_fresh = page.is_multiple_of(2);
        self.submit(DiskWork::Read { file, offset, buffer, bytes: PAGE as u32, is_fresh });
        let done = self.next();
        let mut hash = image::Hash::default();
        hash.add(&done.buffer?);
        Some(hash.0)
    }
}

#[test]
fn equal_seeds_do_the_same_and_others_do_not() {
    let mut hashes = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let once = run(seed);
        assert_eq!(once, run(seed), "SEED={seed}");
        hashes.insert(once.0);
    }
    assert!(hashes.len() > 30, "{}", hashes.len());
}
