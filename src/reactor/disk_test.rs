//! Tests of disks on real files, on both backends.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::base::PageBuffer;
use crate::limits::DISK_NAME_BYTES_MAX;
use crate::reactor::testing::for_each_backend;
use crate::reactor::uring::Flavor;
use crate::reactor::{
    DiskAnswer, DiskDirectory, DiskDone, DiskRequest, DiskSetup, DiskWork, FileId, FileName,
    Reactor, UringReactor,
};

const PAGE: usize = 4_096;

/// An empty directory of the test with this name.
fn folder(test: &str) -> PathBuf {
    let name = format!("streamdoor-disk-test-{}-{test}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&path); // Of the other backend.
    fs::create_dir(&path).unwrap();
    path
}

fn name(text: &str) -> FileName {
    FileName::new(text).unwrap()
}

fn next(reactor: &mut dyn Reactor) -> DiskDone {
    loop {
        if let Some(done) = reactor.next_disk_event() {
            return done;
        }
        reactor.wait(None);
        reactor.poll();
    }
}

fn ask(reactor: &mut dyn Reactor, work: DiskWork) -> Result<DiskAnswer, i32> {
    reactor.submit_disk(DiskRequest { token: 1, work }).unwrap();
    next(reactor).result.map_err(|error| error.raw_os_error().unwrap())
}

fn file_of(answer: Result<DiskAnswer, i32>) -> FileId {
    let Ok(DiskAnswer::File { file, .. }) = answer else { panic!("{answer:?}") };
    file
}

fn write(file: FileId, offset: u64, byte: u8, bytes: usize, sync: bool) -> DiskWork {
    let mut buffer = PageBuffer::new(bytes.next_multiple_of(PAGE));
    buffer.fill(byte);
    DiskWork::Write { file, offset, buffer, bytes: bytes as u32, sync }
}

fn blocks(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks()
}

#[test]
fn a_new_file_has_room_for_all_its_zeros_and_is_its_owners_alone() {
    for_each_backend(|reactor| {
        let folder = folder("zeros");
        reactor.open_disk(DiskSetup::at(&folder)).unwrap();
        let bytes = (3 << 20) + 4_096;
        let file = file_of(ask(reactor, DiskWork::Create { name: name("a"), bytes }));
        let path = folder.join("a");
        let facts = fs::metadata(&path).unwrap();
        assert_eq!((facts.len(), facts.permissions().mode() & 0o777), (bytes, 0o600));
        assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == 0));
        let before = blocks(&path);
        assert!(before * 512 >= bytes, "{before} blocks: it has holes");
        ask(reactor, write(file, 1 << 20, 7, 1 << 20, true)).unwrap();
        assert_eq!(blocks(&path), before);
        assert_eq!(fs::read(&path).unwrap()[1 << 20..2 << 20], [7; 1 << 20]);
        fs::remove_dir_all(&folder).unwrap();
    });
}

#[test]
fn a_name_never_leads_out_of_the_directory() {
    for_each_backend(|reactor| {
        let folder = folder("names");
        fs::write(folder.join("plain"), "12345").unwrap();
        fs::write(folder.join("not plain"), "").unwrap();
        fs::write(folder.join(".hidden"), "").unwrap();
        fs::write(folder.join("x".repeat(DISK_NAME_BYTES_MAX + 1)), "").unwrap();
        fs::create_dir(folder.join("folder")).unwrap();
        symlink("/etc/hostname", folder.join("link")).unwrap();
        symlink("nowhere", folder.join("hanging")).unwrap();
        reactor.open_disk(DiskSetup::at(&folder)).unwrap();
        let names = vec![(name("plain"), 5)];
        assert_eq!(ask(reactor, DiskWork::List), Ok(DiskAnswer::Names(names.clone())));
        assert_eq!(ask(reactor, DiskWork::List), Ok(DiskAnswer::Names(names)));
        let open = |text| DiskWork::Open { name: name(text) };
        assert_eq!(ask(reactor, open("link")), Err(libc::ELOOP));
        assert_eq!(ask(reactor, open("hanging")), Err(libc::ELOOP));
        assert_eq!(ask(reactor, open("folder")), Err(libc::EISDIR));
        let create = DiskWork::Create { name: name("hanging"), bytes: 0 };
        assert_eq!(ask(reactor, create), Err(libc::EEXIST));
        assert!(!folder.join("nowhere").exists());
        fs::remove_dir_all(&folder).unwrap();
    });
}

#[test]
fn a_directory_may_be_opened_and_checked_by_its_owner() {
    for_each_backend(|reactor| {
        let folder = folder("opened");
        let open = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(&folder);
        let directory = DiskDirectory::Opened(open.unwrap().into());
        let setup = DiskSetup { directory, ..DiskSetup::at(Path::new("")) };
        reactor.open_disk(setup).unwrap();
        let file = file_of(ask(reactor, DiskWork::Create { name: name("a"), bytes: 10 }));
        ask(reactor, write(file, 0, 1, 10, true)).unwrap();
        assert_eq!(fs::read(folder.join("a")).unwrap(), [1; 10]);
        fs::remove_dir_all(&folder).unwrap();
        // It is gone, and what is in it stays usable as long as it is open.
        let create = DiskWork::Create { name: name("b"), bytes: 10 };
        assert_eq!(ask(reactor, create), Err(libc::ENOENT));
        ask(reactor, write(file, 0, 1, 10, true)).unwrap();
        assert_eq!(ask(reactor, DiskWork::List), Ok(DiskAnswer::Names(Vec::new())));
    });
}

#[test]
fn writes_past_the_page_cache_and_through_it_meet_in_one_file() {
    for_each_backend(|reactor| {
        let folder = folder("direct");
        let setup = DiskSetup { is_direct: true, ..DiskSetup::at(&folder) };
        reactor.open_disk(setup).unwrap();
        let bytes = 16 * PAGE as u64;
        let file = file_of(ask(reactor, DiskWork::Create { name: name("a"), bytes }));
        let mut expected = vec![0; 16 * PAGE];
        for (offset, bytes) in [(0, 4 * PAGE), (10, 100), (PAGE, PAGE), (3 * PAGE + 1, 2 * PAGE)] {
            let byte = (offset % 251) as u8 + 1;
            expected[offset..offset + bytes].fill(byte);
            ask(reactor, write(file, offset as u64, byte, bytes, bytes == PAGE)).unwrap();
            assert_eq!(fs::read(folder.join("a")).unwrap(), expected);
        }
        fs::remove_dir_all(&folder).unwrap();
    });
}

#[test]
fn a_write_beyond_the_largest_file_is_an_error_value() {
    for_each_backend(|reactor| {
        let folder = folder("far");
        fs::write(folder.join("a"), [0; 8_192]).unwrap();
        reactor.open_disk(DiskSetup::at(&folder)).unwrap();
        let file = file_of(ask(reactor, DiskWork::Open { name: name("a") }));
        // Beyond the largest file of any file system here.
        let far = i64::MAX as u64 - 8_192;
        for sync in [false, true] {
            let error = ask(reactor, write(file, far, 1, PAGE, sync)).unwrap_err();
            assert!([libc::EFBIG, libc::EINVAL].contains(&error), "{error}");
        }
        assert_eq!(ask(reactor, DiskWork::Sync { file }), Ok(DiskAnswer::Done));
        assert_eq!(fs::metadata(folder.join("a")).unwrap().len(), 8_192);
        fs::remove_dir_all(&folder).unwrap();
    });
}

#[test]
fn a_ring_with_little_room_takes_writes_and_their_syncs_in_steps() {
    for (submissions, completions) in [(1, 2), (2, 4), (4, 8), (256, 512)] {
        let flavors = &Flavor::BEST_FIRST;
        let made = UringReactor::with_queues(submissions, completions, flavors);
        let mut reactor = match made {
            Ok(reactor) => reactor,
            Err(reason) => return println!("not run: {reason}"),
        };
        let folder = folder(&format!("room{submissions}"));
        reactor.open_disk(DiskSetup::at(&folder)).unwrap();
        let bytes = 100 * PAGE as u64;
        let file = file_of(ask(&mut reactor, DiskWork::Create { name: name("a"), bytes }));
        for token in 0..100 {
            let (offset, sync) = (token * PAGE as u64, token % 3 > 0);
            let work = write(file, offset, token as u8 + 1, PAGE, sync);
            reactor.submit_disk(DiskRequest { token, work }).unwrap();
        }
        let mut tokens: Vec<u64> = (0..100)
            .map(|_| next(&mut reactor))
            .map(|done| {
                assert!(matches!(done.result, Ok(DiskAnswer::Done)), "{done:?}");
                done.token
            })
            .collect();
        tokens.sort_unstable();
        assert_eq!(tokens, Vec::from_iter(0..100));
        let written = fs::read(folder.join("a")).unwrap();
        for (page, bytes) in written.chunks(PAGE).enumerate() {
            assert!(bytes.iter().all(|&byte| byte == page as u8 + 1), "{page}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
