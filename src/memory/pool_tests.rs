//! Tests of the pool of windows, and of descriptors that are not rings. All need mmap, so not under
//! miri.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::memfd::{DOOR_SEALS, Memfd};
use super::*;
use crate::base::{Instant, Random};
use crate::limits::RING_CLASS_BYTES;

const KIB: u32 = 1 << 10;
const MIB: u64 = 1 << 20;

fn pool(prealloc_bytes: u64, bytes_max: u64) -> RingPool {
    RingPool::new(RingPoolConfig { prealloc_bytes, bytes_max, ..RingPoolConfig::default() })
        .unwrap()
}

fn write(writer: &mut RingWriter, payload: &[u8]) -> u64 {
    writer.write(ChunkHeader::default(), payload, Instant::ZERO, u64::MAX).unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn ten_thousand_small_rings_work_at_once() {
    let mut pool = pool(0, 64 * MIB);
    let mut writers: Vec<RingWriter> = (0..10_000)
        .map(|_| RingWriter::new(pool.lease(4 * KIB, 1).unwrap(), ClockAnchor::default()))
        .collect();
    for (number, writer) in writers.iter_mut().enumerate() {
        for _ in 0..20 {
            write(writer, &(number as u64).to_le_bytes());
        }
    }
    for (number, writer) in writers.iter().enumerate() {
        assert_eq!(writer.payload(20), (number as u64).to_le_bytes());
        assert_eq!(writer.payload(writer.tail_seq()), (number as u64).to_le_bytes());
    }
    assert_eq!(pool.usage().leased_bytes, 10_000 * 4096);
    for writer in writers {
        pool.give_back(writer.into_lease());
    }
    pool.audit();
    assert_eq!(pool.usage().leased_count, 0);
    let committed_bytes = pool.usage().committed_bytes;
    assert_eq!(pool.release_idle(), committed_bytes);
    assert_eq!(pool.usage().committed_bytes, 0);
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn half_of_what_is_bought_at_the_start_is_for_common_rings() {
    for (common_bytes, class_bytes) in
        [(16 * KIB, 16 * KIB), (17 * KIB, 64 * KIB), (u32::MAX, RING_CLASS_BYTES[4])]
    {
        let config =
            RingPoolConfig { prealloc_bytes: 16 * MIB, common_bytes, ..RingPoolConfig::default() };
        let mut pool = RingPool::new(config).unwrap();
        assert_eq!(pool.usage().committed_bytes, 16 * MIB);
        let purchases_total = pool.usage().purchases_total;
        let leases: Vec<Lease> = (0..8 * MIB / u64::from(class_bytes))
            .map(|_| pool.lease(class_bytes, 1).unwrap())
            .collect();
        assert_eq!(pool.usage().purchases_total, purchases_total, "{common_bytes}");
        let one_more = pool.lease(class_bytes, 1).unwrap();
        assert_eq!(pool.usage().purchases_total, purchases_total + 1, "{common_bytes}");
        leases.into_iter().chain([one_more]).for_each(|lease| pool.give_back(lease));
        pool.audit();
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn the_smallest_class_that_fits_is_leased() {
    let mut pool = pool(0, 16 * MIB);
    let mut class_of = |need_bytes: u32, chunk_bytes: u32| {
        let lease = pool.lease(need_bytes, chunk_bytes).unwrap();
        let window_bytes = lease.window_bytes() as u32;
        pool.give_back(lease);
        window_bytes
    };
    assert_eq!(class_of(0, 0), 4 * KIB);
    assert_eq!(class_of(4 * KIB, 704), 4 * KIB);
    assert_eq!(class_of(4 * KIB + 1, 0), 16 * KIB);
    assert_eq!(class_of(0, 705), 16 * KIB); // A quarter of 2,944 bytes, less a header of 32.
    assert_eq!(class_of(u32::MAX, 0), 1024 * KIB); // A ring holds the end of a long result.
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn pressure_caps_the_class_but_not_below_the_declared_chunk() {
    let mut pool = pool(0, 16 * MIB);
    pool.set_largest_class(16 * KIB);
    let lease = pool.lease(1024 * KIB, 100).unwrap();
    assert_eq!(lease.window_bytes() as u32, 16 * KIB);
    let refused = pool.lease(0, 5_000);
    let chunk_bytes_max = Geometry::of_class(16 * KIB).length_max();
    assert!(
        matches!(refused, Err(LeaseError::TooLarge { chunk_bytes: 5_000, chunk_bytes_max: found })
            if found == chunk_bytes_max)
    );
    pool.give_back(lease);
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn a_full_pool_falls_to_smaller_classes_and_then_says_so() {
    let mut pool = pool(0, MIB);
    let large = pool.lease(512 * KIB, 0).unwrap();
    assert!(matches!(pool.lease(0, 0), Err(LeaseError::Exhausted { leased_bytes: MIB, .. })));
    pool.give_back(large);
    // The idle megabyte is released to the kernel, which makes room for other sizes.
    let mut leases: Vec<Lease> = (0..3).map(|_| pool.lease(256 * KIB, 0).unwrap()).collect();
    pool.audit();
    let small = pool.lease(1024 * KIB, 0).unwrap(); // No megabyte is left: 256 KiB is the best.
    assert_eq!(small.window_bytes() as u32, 256 * KIB);
    leases.push(small);
    let refused = pool.lease(1024 * KIB, 1_000);
    assert!(matches!(refused, Err(LeaseError::Exhausted { window_bytes, .. })
        if window_bytes == 16 * KIB));
    for lease in leases {
        pool.give_back(lease);
    }
    pool.audit();
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn the_warmest_window_is_leased_first_and_its_old_readers_are_told() {
    let mut pool = pool(4 * MIB, 16 * MIB);
    let first = RingWriter::new(pool.lease(0, 0).unwrap(), ClockAnchor::default());
    let mut second = RingWriter::new(pool.lease(0, 0).unwrap(), ClockAnchor::default());
    write(&mut second, b"second");
    let (first_reader, second_reader) = (first.reader(), second.reader());
    pool.give_back(first.into_lease());
    pool.give_back(second.into_lease());
    assert!(matches!(second_reader.poll(1), Poll::Ready(_))); // Not yet leased again.
    let next = RingWriter::new(pool.lease(0, 0).unwrap(), ClockAnchor::default());
    assert_eq!(second_reader.poll(1), Poll::Gone);
    assert_eq!(first_reader.poll(1), Poll::Pending);
    pool.give_back(next.into_lease());
    pool.release_idle();
    assert_eq!(first_reader.poll(1), Poll::Gone);
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn a_mapping_outlives_its_pool_while_somebody_reads() {
    let mut pool = pool(0, 2 * MIB);
    let mut writer = RingWriter::new(pool.lease(0, 0).unwrap(), ClockAnchor::default());
    write(&mut writer, b"still here");
    let reader = writer.reader();
    pool.give_back(writer.into_lease());
    drop(pool);
    let mut buffer = [0; 64];
    assert_eq!(reader.read(1, &mut buffer).unwrap().length, 10);
    assert_eq!(&buffer[..10], b"still here");
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn random_leases_keep_the_books_balanced() {
    let seed: u64 = std::env::var("SEED").map_or(1, |text| text.parse().unwrap());
    let mut random = Random::new(seed);
    let mut pool = pool(MIB, 4 * MIB);
    let mut held: Vec<(RingWriter, u64)> = Vec::new();
    for step in 0..5_000u64 {
        match random.below(20) {
            0 => drop(pool.release_idle()),
            1 => pool.set_largest_class(RING_CLASS_BYTES[random.below(5) as usize]),
            2 => pool.set_pressure(Pressure::ALL[random.below(4) as usize]),
            3 => drop(pool.set_bytes_max(random.below(5 * MIB))),
            4 if pool.has_excess() => drop(pool.release_step()),
            5..14 if !held.is_empty() => {
                let (writer, tag) = held.swap_remove(random.below(held.len() as u64) as usize);
                assert_eq!(writer.payload(1), tag.to_le_bytes(), "SEED={seed} step={step}");
                pool.give_back(writer.into_lease());
            }
            _ => {
                let need_bytes = 1 << random.between(8, 20);
                let may_lease = pool.bytes_max() - pool.usage().leased_bytes.min(pool.bytes_max());
                let committed_bytes = pool.usage().committed_bytes;
                if let Ok(lease) = pool.lease(need_bytes, 16) {
                    assert!(lease.window_bytes() as u64 <= may_lease, "SEED={seed} step={step}");
                    assert!(lease.window_bytes() as u32 <= pool.largest_class_bytes());
                    let bought = pool.usage().committed_bytes > committed_bytes;
                    assert!(!bought || pool.usage().committed_bytes <= pool.bytes_max());
                    let mut writer = RingWriter::new(lease, ClockAnchor::default());
                    assert_eq!(writer.reader().poll(1), Poll::Pending, "SEED={seed} step={step}");
                    write(&mut writer, &step.to_le_bytes());
                    held.push((writer, step));
                }
            }
        }
        pool.audit();
    }
    let generations: std::collections::BTreeSet<u64> =
        held.iter().map(|(writer, _)| writer.generation()).collect();
    assert_eq!(generations.len(), held.len(), "SEED={seed}");
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn a_small_limit_shrinks_the_largest_class_to_what_fits() {
    for (bytes_max, class_bytes) in [
        (4 * 1_024, 4 * KIB),
        (MIB / 10, 64 * KIB), // A cgroup of 1 MiB.
        (4 * MIB / 10, 256 * KIB),
        (64 * MIB / 10, 1024 * KIB),
    ] {
        let mut pool = pool(bytes_max / 4, bytes_max);
        assert_eq!(pool.largest_class_bytes(), class_bytes);
        let lease = pool.lease(u32::MAX, 0).unwrap();
        assert_eq!(lease.window_bytes() as u32, class_bytes);
        let chunk_bytes = Geometry::of_class(class_bytes).length_max() + 1;
        if class_bytes < 1024 * KIB {
            let refused = pool.lease(0, chunk_bytes);
            assert!(matches!(refused, Err(LeaseError::TooLarge { .. })));
        }
        pool.audit();
        assert!(pool.usage().committed_bytes <= bytes_max);
        pool.give_back(lease);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn a_limit_that_moves_is_kept_to_and_never_leaves_the_reserved_space() {
    let mut pool = pool(0, 8 * MIB);
    assert_eq!(pool.set_bytes_max(u64::MAX), 8 * MIB);
    assert_eq!(pool.set_bytes_max(0), 4 * 1_024);
    assert_eq!(pool.largest_class_bytes(), 4 * KIB);
    pool.set_bytes_max(4 * MIB);
    let mut leases: Vec<Lease> = (0..4).map(|_| pool.lease(1024 * KIB, 0).unwrap()).collect();
    pool.give_back(leases.pop().unwrap());
    pool.set_bytes_max(2 * MIB);
    assert!(pool.has_excess());
    // One is idle, but is not leased again: three are leased already.
    assert!(matches!(pool.lease(0, 0), Err(LeaseError::Exhausted { .. })));
    let step_bytes = u64::from(crate::limits::RING_RELEASE_STEP_BYTES);
    for _ in 0..MIB / step_bytes {
        assert!(pool.has_excess());
        assert_eq!(pool.release_step(), step_bytes);
        pool.audit();
    }
    assert!(!pool.has_excess());
    pool.give_back(leases.pop().unwrap());
    pool.give_back(leases.pop().unwrap());
    pool.audit();
    while pool.has_excess() {
        assert!(pool.release_step() > 0);
    }
    assert_eq!(pool.usage().committed_bytes, 2 * MIB); // Idle, and kept without pressure.
    pool.set_bytes_max(8 * MIB);
    leases.extend((0..7).map(|_| pool.lease(1024 * KIB, 0).unwrap()));
    assert_eq!(pool.usage().committed_bytes, 8 * MIB);
    for lease in leases {
        pool.give_back(lease);
    }
    pool.audit();
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn a_large_window_that_goes_in_parts_is_gone_for_its_readers_at_once_and_can_be_had_again() {
    let mut pool = pool(0, 2 * MIB);
    let mut writer = RingWriter::new(pool.lease(1024 * KIB, 0).unwrap(), ClockAnchor::default());
    write(&mut writer, b"before");
    let reader = writer.reader();
    pool.give_back(writer.into_lease());
    assert!(matches!(reader.poll(1), Poll::Ready(_)));
    pool.set_pressure(Pressure::Elevated);
    pool.release_step();
    pool.audit();
    assert_eq!(reader.poll(1), Poll::Gone);
    pool.set_pressure(Pressure::Normal); // With the window half gone.
    let mut leases: Vec<RingWriter> = Vec::new();
    for number in 0..2u64 {
        let lease = pool.lease(1024 * KIB, 0).unwrap();
        assert_eq!(lease.window_bytes() as u32, 1024 * KIB);
        leases.push(RingWriter::new(lease, ClockAnchor::default()));
        write(&mut leases[number as usize], &number.to_le_bytes());
        pool.audit();
    }
    assert_eq!(pool.file_bytes(), 2 * MIB);
    assert_eq!(reader.poll(1), Poll::Gone);
    for (number, writer) in leases.into_iter().enumerate() {
        assert_eq!(writer.payload(1), (number as u64).to_le_bytes());
        pool.give_back(writer.into_lease());
    }
    pool.audit();
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn under_pressure_idle_pages_really_go_back_and_only_what_is_leased_is_bought() {
    let mut pool = pool(8 * MIB, 16 * MIB);
    let lease = pool.lease(16 * KIB, 0).unwrap();
    assert_eq!(pool.file_bytes(), 8 * MIB);
    pool.set_pressure(Pressure::Elevated);
    let mut steps = 0;
    while pool.has_excess() {
        assert_eq!(pool.release_step() % 4_096, 0);
        pool.audit();
        steps += 1;
    }
    assert!(steps >= 7 * MIB / u64::from(crate::limits::RING_RELEASE_STEP_BYTES));
    assert_eq!(pool.file_bytes(), u64::from(16 * KIB)); // By the kernel's own count.
    assert_eq!(pool.usage().committed_bytes, u64::from(16 * KIB));
    assert_eq!(pool.usage().released_bytes_total, 8 * MIB - u64::from(16 * KIB));
    let second = pool.lease(16 * KIB, 0).unwrap();
    assert_eq!(pool.file_bytes(), u64::from(32 * KIB));
    pool.give_back(second);
    assert!(pool.has_excess());
    pool.set_pressure(Pressure::Normal);
    assert!(!pool.has_excess()); // It may stay for the next one.
    pool.give_back(lease);
    pool.audit();
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn what_runs_out_is_bought_ahead_and_a_lease_then_buys_nothing() {
    let mut pool = pool(0, 4 * MIB);
    let mut leases = Vec::new();
    for _ in 0..40 {
        leases.push(pool.lease(64 * KIB, 0).unwrap());
        while pool.is_scarce() {
            let committed_bytes = pool.usage().committed_bytes;
            assert!(pool.restock_step());
            let step_bytes = u64::from(crate::limits::RING_RESTOCK_STEP_BYTES);
            assert!(pool.usage().committed_bytes <= committed_bytes + step_bytes);
            pool.audit();
        }
        let usage = pool.usage();
        let idle_bytes = usage.committed_bytes - usage.leased_bytes;
        assert_eq!(idle_bytes, u64::from(crate::limits::RING_RESERVE_BYTES));
        leases.push(pool.lease(64 * KIB, 0).unwrap());
        assert_eq!(pool.usage().purchases_total, usage.purchases_total);
        pool.give_back(leases.pop().unwrap());
    }
    // Nothing is bought ahead above the limit, while memory is short, or in large classes.
    pool.set_bytes_max(pool.usage().committed_bytes);
    leases.push(pool.lease(64 * KIB, 0).unwrap());
    let committed_bytes = pool.usage().committed_bytes;
    assert!(!pool.restock_step());
    assert!(!pool.is_scarce());
    pool.set_bytes_max(4 * MIB);
    pool.set_pressure(Pressure::Elevated);
    leases.push(pool.lease(64 * KIB, 0).unwrap());
    assert!(!pool.restock_step());
    assert!(!pool.is_scarce());
    assert_eq!(pool.usage().committed_bytes, committed_bytes);
    pool.set_pressure(Pressure::Normal);
    leases.push(pool.lease(256 * KIB, 0).unwrap());
    assert!(!pool.is_scarce());
    leases.into_iter().for_each(|lease| pool.give_back(lease));
    pool.audit();
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn a_pool_that_cannot_work_is_refused_at_start() {
    for (prealloc_bytes, bytes_max) in [(0, 4 * 1_024 - 1), (3 * MIB, 2 * MIB)] {
        let config = RingPoolConfig { prealloc_bytes, bytes_max, ..RingPoolConfig::default() };
        let error = RingPool::new(config).err().unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn a_door_ring_can_be_opened_read_only_by_whoever_has_its_descriptor() {
    let anchor = ClockAnchor { wall_us: 5, mono_ns: 6 };
    let mut door = DoorRing::create(16 * KIB, anchor).unwrap();
    write(&mut door.writer, b"hello");
    let metadata = File::from(door.descriptor().try_clone_to_owned().unwrap()).metadata().unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(metadata.len(), u64::from(16 * KIB));
    assert_eq!(metadata.blocks() * 512, metadata.len()); // Allocated, not only promised.
    let reader = RingReader::open(door.descriptor().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(reader.anchor(), anchor);
    let mut buffer = [0; 64];
    assert_eq!(reader.read(1, &mut buffer).unwrap().length, 5);
    write(&mut door.writer, b"more"); // The writer's older mapping stays writable.
    assert_eq!(reader.read(2, &mut buffer).unwrap().length, 4);
}

#[test]
#[cfg_attr(miri, ignore = "needs mmap")]
fn descriptors_that_are_not_sealed_rings_are_refused() {
    let pipe = std::io::pipe().unwrap().0;
    let refused = RingReader::open(OwnedFd::from(pipe));
    assert!(matches!(refused, Err(OpenError::NotSealed { found: 0, .. })));
    let directory = File::open("/").unwrap();
    assert!(matches!(
        RingReader::open(directory.into()),
        Err(OpenError::NotSealed { found: 0, .. })
    ));
    let device = File::open("/dev/zero").unwrap();
    assert!(matches!(RingReader::open(device.into()), Err(OpenError::NotSealed { found: 0, .. })));

    let memfd = |bytes: u64, seals: i32| {
        let memfd = Memfd::create(c"test").unwrap();
        memfd.allocate(0, bytes).unwrap();
        memfd.seal(seals).unwrap();
        memfd.reopen_read_only().unwrap()
    };
    // Without the seal against new writers, or the one that protects the seals.
    for missing in [libc::F_SEAL_SHRINK, libc::F_SEAL_GROW, libc::F_SEAL_FUTURE_WRITE] {
        let refused = RingReader::open(memfd(4096, DOOR_SEALS & !missing));
        assert!(matches!(refused, Err(OpenError::NotSealed { .. })));
    }
    let refused = RingReader::open(memfd(4096, DOOR_SEALS & !libc::F_SEAL_SEAL));
    assert!(matches!(refused, Err(OpenError::NotSealed { .. })));
    let refused = RingReader::open(memfd(8192, DOOR_SEALS));
    assert!(matches!(refused, Err(OpenError::WrongSize { bytes: 8192 })));
    let refused = RingReader::open(memfd(4096, DOOR_SEALS));
    assert!(matches!(refused, Err(OpenError::Header(HeaderFault::Magic))));
}
