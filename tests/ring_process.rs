//! A ring across processes. A child with only the read-only descriptor of a sealed ring reads a
//! million chunks while the writer overtakes it. The child cannot change one byte.
//!
//! The child is this test binary again. It runs [`child_entry`] with the ring as stdin. Child and
//! parent derive every payload from its number.
#![cfg(not(any(loom, miri)))]

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use memmap2::{MmapOptions, UncheckedAdvice};
use streamdoor::base::{Instant, Random};
use streamdoor::memory::atomic::spin_hint;
use streamdoor::memory::{
    ChunkHeader, ClockAnchor, DoorRing, Poll, ReadError, RingReader, RingWriter,
};

const CHUNKS: u64 = 1_000_000;
const CLASS_BYTES: u32 = 64 << 10; // 256 slots.
/// Number of chunks at which the child starts to read. Most of them are overwritten by then.
const HEAD_START: u64 = 5_000;
const LENGTH_MAX: usize = 300;
const ROLE: &str = "STREAMDOOR_TEST_RING_CHILD";

/// Fills `buffer` with the payload of chunk `seq` and returns its length.
fn fill_pattern(seq: u64, buffer: &mut [u8; LENGTH_MAX]) -> usize {
    let mut random = Random::new(seq);
    let length = random.below(LENGTH_MAX as u64 + 1) as usize;
    random.fill(&mut buffer[..length]);
    length
}

fn write_chunk(writer: &mut RingWriter) {
    let seq = writer.head_seq() + 1;
    let mut payload = [0; LENGTH_MAX];
    let length = fill_pattern(seq, &mut payload);
    let header = ChunkHeader { kind: (seq % 16) as u8, key: (seq % 64) as u8, flags: seq as u16 };
    let written = writer.write(header, &payload[..length], Instant::from_nanos(seq), u64::MAX);
    assert_eq!(written, Ok(seq));
}

fn bytes_of(descriptor: impl AsFd) -> Vec<u8> {
    let file = File::from(descriptor.as_fd().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_process_with_the_sealed_descriptor_reads_every_byte_right_and_can_change_none() {
    let mut door = DoorRing::create(CLASS_BYTES, ClockAnchor::default()).unwrap();
    for _ in 0..10 {
        write_chunk(&mut door.writer);
    }
    let bytes_before = bytes_of(door.descriptor());
    assert_eq!(bytes_before.len(), CLASS_BYTES as usize);

    let ring = door.descriptor().try_clone_to_owned().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child_entry", "--exact", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::from(ring))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut answer = |word: &str| loop {
        let line = lines.next().unwrap_or_else(|| panic!("the child ended without {word:?}"));
        if let Some(rest) = line.strip_prefix(word) {
            break rest.to_owned();
        }
    };

    pin_to_core(0);
    // By now the child has tried every way to change these bytes.
    answer("ready");
    assert!(bytes_of(door.descriptor()) == bytes_before, "the child changed the ring");

    while door.writer.head_seq() < CHUNKS {
        write_chunk(&mut door.writer);
    }
    let counts: Vec<u64> =
        answer("counts ").split_whitespace().map(|text| text.parse().unwrap()).collect();
    let [received, missed, gaps] = counts[..] else { panic!("{counts:?}") };
    assert_eq!(received + missed, CHUNKS);
    assert!(received > 0);
    assert!(gaps > 0); // Overtaken at least once, before its first chunk.
    println!("received {received}, missed {missed} in {gaps} gaps");
    assert!(child.wait().unwrap().success());
}

/// The child process's entry point. It is no test of its own.
#[test]
fn child_entry() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    pin_to_core(1);
    let ring = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    try_to_change(ring.try_clone().unwrap());
    let reader = RingReader::open(ring).unwrap();
    say("ready");
    while reader.head_seq() < HEAD_START {
        spin_hint();
    }
    let (received, missed, gaps) = read_all(&reader);
    say(&format!("counts {received} {missed} {gaps}"));
}

/// Prints a line of its own: the test harness may have left an unfinished one.
fn say(text: &str) {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "\n{text}").unwrap();
    stdout.flush().unwrap();
}

/// Pins writer and reader to different cores. They then also meet in the middle of a copy, not only
/// at a switch of the scheduler. On a machine with one core they share it.
fn pin_to_core(core_index: usize) {
    // SAFETY: the set is plain data; all zeros is the empty set.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the set, and is given its size.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&cores), &raw mut cores) };
    assert_eq!(result, 0);
    let core_count = libc::CPU_SETSIZE as usize;
    // SAFETY: `core` is below the size of the set.
    let is_allowed = |core: &usize| unsafe { libc::CPU_ISSET(*core, &cores) };
    let allowed: Vec<usize> = (0..core_count).filter(is_allowed).collect();
    // SAFETY: as above.
    let mut chosen: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: every allowed core is below the size of the set.
    unsafe { libc::CPU_SET(allowed[core_index % allowed.len()], &mut chosen) };
    // SAFETY: the kernel reads the set, and is given its size.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&chosen), &raw const chosen) };
    assert_eq!(result, 0);
}

fn read_all(reader: &RingReader) -> (u64, u64, u64) {
    let mut buffer = vec![0; reader.geometry().length_max() as usize];
    let mut expected = [0; LENGTH_MAX];
    let (mut received, mut missed, mut gaps, mut cursor) = (0, 0, 0, 1);
    while cursor <= CHUNKS {
        match reader.read(cursor, &mut buffer) {
            Ok(descriptor) => {
                let length = fill_pattern(cursor, &mut expected);
                assert_eq!(&buffer[..descriptor.length as usize], &expected[..length]);
                assert_eq!(descriptor.seq, cursor);
                assert_eq!(descriptor.mono_ns, cursor);
                assert_eq!(u64::from(descriptor.header.kind), cursor % 16);
                assert_eq!(descriptor.header.flags, cursor as u16);
                received += 1;
                cursor += 1;
            }
            Err(ReadError::Pending) => spin_hint(),
            Err(ReadError::Overtaken { tail_seq }) => {
                assert!(tail_seq > cursor && tail_seq <= CHUNKS);
                missed += tail_seq - cursor;
                gaps += 1;
                cursor = tail_seq;
            }
            Err(error) => panic!("chunk {cursor}: {error}"),
        }
    }
    assert!(matches!(reader.poll(CHUNKS + 1), Poll::Pending));
    (received, missed, gaps)
}

/// Tries every way in which a process with the descriptor could change the bytes, and asserts that
/// all fail. Root can reopen the file for writing in spite of mode 0600, but the seals still hold.
fn try_to_change(ring: OwnedFd) {
    let file = File::from(ring);
    assert_no_way_to_write(&file);
    let mapping = MmapOptions::new().map_raw_read_only(&file).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: changes the protection of a mapping that nothing else uses.
    let result = unsafe { libc::mprotect(mapping.as_mut_ptr().cast(), mapping.len(), protection) };
    assert_eq!(result, -1);
    // SAFETY: no reference into the mapping exists.
    assert!(unsafe { mapping.unchecked_advise(UncheckedAdvice::Remove) }.is_err());

    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    if let Ok(reopened) = OpenOptions::new().read(true).write(true).open(&path) {
        assert_no_way_to_write(&reopened);
    }
    assert!(OpenOptions::new().write(true).truncate(true).open(&path).is_err());
    assert_eq!(file.metadata().unwrap().len(), u64::from(CLASS_BYTES));
}

fn assert_no_way_to_write(file: &File) {
    assert!(file.write_at(b"evil", 0).is_err());
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(u64::from(CLASS_BYTES) * 2).is_err());
    assert!(MmapOptions::new().map_raw(file).is_err());
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes numbers only; the descriptor is open as long as `file`.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), punch, 0, 4096) };
    assert_eq!(result, -1);
    // SAFETY: takes numbers only.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    assert_eq!(result, -1);
}
