//! Tests of named rings: planted files are refused, dead rings are found, truncation kills no
//! process.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{TryRecvError, channel};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::file::HEAD_BYTES;
use super::*;
use crate::base::{Handle, Instant};
use crate::memory::{ChunkHeader, FinalRecord, Poll, ReadError};

const CLASS_BYTES: u32 = 16 << 10;

/// A folder of one test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("streamdoor-named-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path); // Of an earlier process with this number.
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn path(&self, nonce: u64) -> PathBuf {
        self.0.join(name_of(id(nonce)))
    }

    fn create(&self, nonce: u64) -> Result<NamedRing, NamedError> {
        let (anchor, start) = (ClockAnchor::default(), Start::default());
        NamedRing::create(&self.0, id(nonce), CLASS_BYTES, anchor, &start)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn id(nonce: u64) -> ExecutionId {
    ExecutionId { shard: 0, slot: Handle { index: 1, generation: 2 }, nonce }
}

fn publish(ring: &mut NamedRing, payload: &[u8]) -> u64 {
    ring.writer.write(ChunkHeader::default(), payload, Instant::ZERO, u64::MAX).unwrap()
}

fn fault(error: NamedError) -> NamedFault {
    match error {
        NamedError::Fault(fault) => fault,
        other => panic!("{other}"),
    }
}

#[test]
fn a_ring_is_read_by_its_name_and_goes_with_its_owner() {
    let folder = Folder::new("plain");
    let mut ring = folder.create(1).unwrap();
    assert_eq!(ring.path(), folder.path(1));
    let reader = NamedView::open(ring.path()).unwrap();
    publish(&mut ring, b"one");
    let mut buffer = [0; 16];
    assert_eq!(reader.ring.read(1, &mut buffer).unwrap().length, 3);
    assert_eq!(&buffer[..3], b"one");
    ring.control.set_chunks_expected(7);
    assert_eq!(reader.control.chunks_expected(), Some(7));
    assert!(!reader.is_left().unwrap() && !reader.is_lost() && !ring.is_lost());
    let epoch = reader.control.gate_epoch();
    let verdict = std::num::NonZeroU8::new(1).unwrap();
    let totals = crate::stream::KindTotals::default();
    ring.control.finish(&FinalRecord { verdict, head_seq: 1, totals }, "");
    ring.wake_readers();
    assert_ne!(reader.control.gate_epoch(), epoch, "who sleeps is told");
    assert_eq!(reader.control.final_record().unwrap().head_seq, 1);
    drop(ring);
    assert!(reader.is_left().unwrap());
    assert_eq!(reader.ring.read(1, &mut buffer).unwrap().length, 3); // It can still be read.
    assert_eq!(folder.names(), [""; 0]);
}

/// A file in the place of a ring: its name, its creation, and the fault that a reader reports.
type Planted = (&'static str, fn(&Folder, &std::path::Path), NamedFault);

/// All faults but a file of another user, which needs root to create.
const PLANTED: [Planted; 9] = [
    (
        "a symbolic link to a good ring",
        |folder, path| symlink(folder.path(9), path).unwrap(),
        NamedFault::Link,
    ),
    (
        "another name of a good ring",
        |folder, path| std::fs::hard_link(folder.path(9), path).unwrap(),
        NamedFault::Names { count: 2 },
    ),
    (
        "a pipe",
        |_, path| mknodat(CWD, path, FileType::Fifo, Mode::from(0o600), 0).unwrap(),
        NamedFault::Kind,
    ),
    ("a folder", |_, path| std::fs::create_dir(path).unwrap(), NamedFault::Kind),
    (
        "a file of zeros of the right size",
        |folder, path| plant(path, &vec![0; ring_bytes(folder).len()], 0o600),
        NamedFault::Head,
    ),
    (
        "a ring that others may write",
        |folder, path| plant(path, &ring_of(folder, 1), 0o666),
        NamedFault::Mode { mode: 0o666 },
    ),
    (
        "a ring that is too short",
        |folder, path| plant(path, &ring_of(folder, 1)[..12_288], 0o600),
        NamedFault::Size { bytes: 12_288 },
    ),
    (
        "a good ring of another execution",
        |folder, path| plant(path, &ring_bytes(folder), 0o600),
        NamedFault::Epoch,
    ),
    (
        "somebody else's ring",
        |folder, path| {
            plant(path, &ring_of(folder, 1), 0o600);
            chown(path, Some(65_534), Some(65_534)).unwrap();
        },
        NamedFault::Owner { uid: 65_534 },
    ),
];

fn plant(path: &std::path::Path, bytes: &[u8], mode: u32) {
    let mut file = File::create_new(path).unwrap();
    file.write_all(bytes).unwrap();
    file.set_permissions(Permissions::from_mode(mode)).unwrap();
}

/// Returns the bytes of a good ring, that of execution 9.
fn ring_bytes(folder: &Folder) -> Vec<u8> {
    std::fs::read(folder.path(9)).unwrap()
}

/// Returns the bytes of a good ring of another execution.
fn ring_of(folder: &Folder, nonce: u64) -> Vec<u8> {
    let mut bytes = ring_bytes(folder);
    bytes[16..32].copy_from_slice(&id(nonce).to_bits().to_le_bytes());
    bytes
}

#[test]
fn what_was_planted_is_neither_taken_nor_read_nor_removed() {
    let folder = Folder::new("planted");
    let mut good = folder.create(9).unwrap();
    publish(&mut good, b"good");
    // SAFETY: takes no arguments, and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    for (what, put, expected) in PLANTED {
        if matches!(expected, NamedFault::Owner { .. }) && !is_root {
            println!("not run: {what}: only root can plant it");
            continue;
        }
        let path = folder.path(1);
        put(&folder, &path);
        let before = path.symlink_metadata().unwrap();
        assert_eq!(fault(folder.create(1).err().unwrap()), NamedFault::Taken, "{what}");
        assert_eq!(fault(NamedView::open(&path).err().unwrap()), expected, "{what}");
        let verdicts = sweep(&folder.0, true).unwrap();
        let (_, verdict) = verdicts.iter().find(|(name, _)| *name == name_of(id(1))).unwrap();
        match (expected, verdict) {
            // The file is ours, and its owner is gone: its size does not matter.
            (NamedFault::Size { .. }, Verdict::Removed { bytes: 12_288 }) => continue,
            (_, Verdict::Foreign(_)) => {}
            (_, other) => panic!("{what}: {other:?}"),
        }
        let after = path.symlink_metadata().unwrap();
        let facts = |metadata: &std::fs::Metadata| {
            (metadata.len(), metadata.permissions(), metadata.file_type())
        };
        assert_eq!(facts(&before), facts(&after), "{what}");
        match before.is_dir() {
            true => std::fs::remove_dir(&path).unwrap(),
            false => std::fs::remove_file(&path).unwrap(),
        }
    }
    // None of this has harmed the good one.
    let reader = NamedView::open(good.path()).unwrap();
    assert_eq!(reader.ring.read(1, &mut [0; 8]).unwrap().length, 4);
    assert!(!good.is_lost());
    folder.create(1).unwrap();
}

#[test]
fn names_that_no_ring_has_are_not_opened() {
    let folder = Folder::new("names");
    let good = folder.create(9).unwrap();
    for name in ["streamdoor-", "streamdoor-x", "other", "streamdoor-0000"] {
        let path = folder.0.join(name);
        std::fs::hard_link(good.path(), &path).unwrap();
        let refused = NamedView::open(&path).err().unwrap();
        assert_eq!(fault(refused), NamedFault::Name, "{name}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn who_cuts_a_ring_off_kills_neither_its_owner_nor_its_readers() {
    let folder = Folder::new("cut");
    for kept_bytes in [0, HEAD_BYTES, HEAD_BYTES + 2_048] {
        let mut ring = folder.create(1).unwrap();
        publish(&mut ring, b"before");
        let reader = NamedView::open(ring.path()).unwrap();
        let hostile = File::options().write(true).open(ring.path()).unwrap();
        hostile.set_len(kept_bytes).unwrap();
        let payload = [7; 1_000];
        for _ in 0..100 {
            publish(&mut ring, &payload);
            ring.writer.wake();
        }
        assert!(ring.is_lost(), "{kept_bytes}");
        ring.control.set_chunks_expected(1);
        let mut buffer = vec![0; 4_096];
        let mut is_over = false;
        for seq in 1..=101 {
            match reader.ring.read(seq, &mut buffer) {
                Err(ReadError::Gone) => is_over = true,
                // The rest may still be read, as long as it is whole.
                Err(ReadError::Pending | ReadError::Overtaken { .. } | ReadError::Corrupt) => {}
                Err(other) => panic!("{other}"),
                Ok(descriptor) => assert!(descriptor.length as usize <= payload.len()),
            }
        }
        assert!(is_over || !reader.is_lost());
        reader.ring.wait(reader.ring.head_seq(), std::time::Duration::from_millis(1));
        hostile.set_len(HEAD_BYTES + u64::from(CLASS_BYTES)).unwrap(); // As before.
        if reader.is_lost() {
            assert_eq!(reader.ring.poll(1), Poll::Gone);
        }
    }
}

#[test]
fn a_ring_whose_owner_was_killed_is_left_and_then_swept() {
    const CHILD: &str = "STREAMDOOR_TEST_OF_NAMED";
    if let Ok(folder) = std::env::var(CHILD) {
        let folder = std::mem::ManuallyDrop::new(Folder(folder.into()));
        let mut ring = folder.create(1).unwrap();
        publish(&mut ring, b"last words");
        println!("ready");
        std::thread::sleep(std::time::Duration::from_secs(600));
    }
    let folder = Folder::new("killed");
    let name = std::thread::current().name().unwrap().to_owned();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([&name, "--exact", "--nocapture"])
        .env(CHILD, &folder.0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = Vec::new();
    let mut stdout = child.stdout.take().unwrap();
    while !said.windows(5).any(|window| window == b"ready") {
        let mut bytes = [0; 256];
        let count = stdout.read(&mut bytes).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&bytes[..count]);
    }
    let reader = NamedView::open(&folder.path(1)).unwrap();
    assert!(!reader.is_left().unwrap());
    assert!(matches!(sweep(&folder.0, true).unwrap()[..], [(_, Verdict::Held)]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(reader.is_left().unwrap());
    let bytes = HEAD_BYTES + u64::from(CLASS_BYTES);
    let swept = sweep(&folder.0, false).unwrap();
    assert!(matches!(swept[..], [(_, Verdict::Stale { bytes: b })] if b == bytes), "{swept:?}");
    let swept = sweep(&folder.0, true).unwrap();
    assert!(matches!(swept[..], [(_, Verdict::Removed { bytes: b })] if b == bytes), "{swept:?}");
    assert_eq!(folder.names(), [""; 0]);
    let mut buffer = [0; 16];
    assert_eq!(reader.ring.read(1, &mut buffer).unwrap().length, 10);
    assert_eq!(&buffer[..10], b"last words");
}

#[test]
fn what_died_before_its_head_was_written_is_swept_and_other_files_are_not() {
    let folder = Folder::new("begun");
    plant(&folder.path(1), b"", 0o600);
    plant(&folder.path(2), b"somebody's notes", 0o600);
    plant(&folder.0.join("streamdoor-notes"), b"", 0o600);
    plant(&folder.0.join("other"), b"", 0o600);
    let swept = sweep(&folder.0, true).unwrap();
    let removed = swept.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Removed { .. }));
    assert_eq!(removed.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), [name_of(id(1))]);
    assert_eq!((swept.len(), folder.names().len()), (3, 3));
}

#[test]
fn who_sweeps_never_takes_what_somebody_makes_at_that_moment() {
    let folder = Folder::new("races");
    // Dropped when all were created, or when that has failed.
    let (making, made) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let made = made;
            while made.try_recv() != Err(TryRecvError::Disconnected) {
                for (name, verdict) in sweep(&folder.0, true).unwrap() {
                    assert!(!matches!(verdict, Verdict::Foreign(_)), "{name}: {verdict:?}");
                }
            }
        });
        let making = making;
        for nonce in 0..500 {
            let mut ring = folder.create(nonce).unwrap();
            publish(&mut ring, b"x");
            assert!(NamedView::open(ring.path()).is_ok(), "{nonce}");
        }
        drop(making);
    });
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn a_file_system_without_room_says_so_and_keeps_nothing() {
    let folder = Folder::new("full");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=16k", "streamdoor-test"])
        .arg(&folder.0)
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        return println!("not run: a small file system cannot be mounted here");
    }
    let made = folder.create(1);
    let names = folder.names();
    assert!(Command::new("umount").arg(&folder.0).status().unwrap().success());
    match made.err().unwrap() {
        NamedError::Os(error) => assert_eq!(error.kind(), std::io::ErrorKind::StorageFull),
        other => panic!("{other}"),
    }
    assert_eq!(names, [""; 0]);
}
