//! Disks: R28 to R36. Faults and crashes are tested beside the simulator's disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use streamdoor::base::{Handle, PageBuffer, Random};
use streamdoor::reactor::{
    DiskAnswer, DiskDone, DiskRequest, DiskSetup, DiskWork, FileId, FileName, Reactor, SocketEvent,
};
use streamdoor::sim::disk::{DiskFaults, SimDisk};
use streamdoor::sim::world::SimWorld;

use super::network::{Network, Server, SocketKind};
use super::worlds::*;

const PAGE: usize = 4_096;
const NOBODY: FileId = FileId(Handle { index: 0, generation: 7 });

/// An empty directory that is removed at the end.
pub struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // The simulator's is no real one.
    }
}

/// The surroundings of a disk.
pub trait DiskWorld: Network {
    fn folder(&self, seed: u64) -> Folder;
}

fn fresh_path() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("streamdoor-disk-{}-{number}", std::process::id());
    std::env::temp_dir().join(name)
}

impl<R: Reactor> DiskWorld for Real<R>
where
    Real<R>: Network,
{
    fn folder(&self, _seed: u64) -> Folder {
        let path = fresh_path();
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl DiskWorld for SimWorld {
    fn folder(&self, seed: u64) -> Folder {
        let (path, disk) = (fresh_path(), SimDisk::new(seed));
        if seed % 2 == 1 {
            disk.set_faults(DiskFaults::SLOW);
        }
        self.put_disk(&path, &disk);
        Folder(path)
    }
}

fn name(text: &str) -> FileName {
    FileName::new(text).unwrap()
}

/// A reactor with a disk, and the steps of the tests.
struct Files<R> {
    reactor: R,
}

impl<R: Reactor> Files<R> {
    fn open<W: ContractWorld<R = R>>(world: &W, path: &Path, is_direct: bool) -> Files<R> {
        Files::with(world, DiskSetup { is_direct, ..DiskSetup::at(path) })
    }

    fn with<W: ContractWorld<R = R>>(world: &W, setup: DiskSetup) -> Files<R> {
        let mut reactor = world.reactor();
        reactor.open_disk(setup).unwrap();
        Files { reactor }
    }

    fn submit(&mut self, token: u64, work: DiskWork) {
        self.reactor.submit_disk(DiskRequest { token, work }).expect("few are in flight");
    }

    fn next(&mut self) -> DiskDone {
        loop {
            if let Some(done) = self.reactor.next_disk_event() {
                return done;
            }
            self.reactor.wait(None);
            self.reactor.poll();
        }
    }

    /// Carries out one operation, while no other is in flight.
    fn ask(&mut self, work: DiskWork) -> DiskDone {
        self.submit(u64::MAX, work);
        let done = self.next();
        assert_eq!(done.token, u64::MAX);
        done
    }

    fn answer(&mut self, work: DiskWork) -> DiskAnswer {
        self.ask(work).result.expect("nothing is wrong with it")
    }

    fn errno(&mut self, work: DiskWork) -> i32 {
        let error = self.ask(work).result.expect_err("something is wrong with it");
        error.raw_os_error().expect("as the kernel gives it")
    }

    fn create(&mut self, text: &str, bytes: u64) -> FileId {
        match self.answer(DiskWork::Create { name: name(text), bytes }) {
            DiskAnswer::File { file, bytes: size } if size == bytes => file,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, file: FileId, offset: u64, bytes: &[u8], sync: bool) {
        let answer = self.answer(write(file, offset, bytes, sync));
        assert_eq!(answer, DiskAnswer::Done);
    }

    /// Reads what the page cache has and what the disk has, which is the same.
    fn read(&mut self, file: FileId, offset: u64, bytes: usize) -> Vec<u8> {
        let [cached, fresh] = [false, true].map(|fresh| {
            let mut work = read(file, offset, bytes);
            if let DiskWork::Read { is_fresh, .. } = &mut work {
                *is_fresh = fresh;
            }
            let done = self.ask(work);
            let Ok(DiskAnswer::Bytes(count)) = done.result else { panic!("{done:?}") };
            done.buffer.expect("it comes back")[..count as usize].to_vec()
        });
        assert!(cached == fresh, "{bytes} bytes at {offset}");
        fresh
    }

    fn names(&mut self) -> Vec<(String, u64)> {
        let DiskAnswer::Names(names) = self.answer(DiskWork::List) else { panic!("no names") };
        names.into_iter().map(|(name, bytes)| (name.to_string(), bytes)).collect()
    }
}

fn buffer_for(bytes: usize) -> PageBuffer {
    PageBuffer::new(bytes.next_multiple_of(PAGE))
}

fn write(file: FileId, offset: u64, bytes: &[u8], sync: bool) -> DiskWork {
    let mut buffer = buffer_for(bytes.len());
    buffer[..bytes.len()].copy_from_slice(bytes);
    DiskWork::Write { file, offset, buffer, bytes: bytes.len() as u32, sync }
}

fn read(file: FileId, offset: u64, bytes: usize) -> DiskWork {
    DiskWork::Read { file, offset, buffer: buffer_for(bytes), bytes: bytes as u32, is_fresh: false }
}

pub fn a_file_gives_back_what_was_written_to_it<W: DiskWorld>(world: &W, seed: u64) {
    for is_direct in [false, true] {
        let folder = world.folder(seed);
        let mut files = Files::open(world, &folder.0, is_direct);
        let mut expected = vec![0; 64 * PAGE];
        let file = files.create("a.seg", expected.len() as u64);
        assert_eq!(files.read(file, 0, expected.len()), expected);
        let places = [(0, 1), (3, 2), (17, 30), (63, 1)].map(|(page, n)| (page * PAGE, n * PAGE));
        for (at, (offset, bytes)) in places.into_iter().chain([(5, 7), (4_000, 9_999)]).enumerate()
        {
            let text = pattern(seed + at as u64, bytes);
            expected[offset..offset + bytes].copy_from_slice(&text);
            files.write(file, offset as u64, &text, at % 2 == 0);
            assert_eq!(files.read(file, offset as u64, bytes), text, "{offset} {is_direct}");
        }
        assert_eq!(files.answer(DiskWork::Sync { file }), DiskAnswer::Done);
        assert_eq!(files.read(file, 0, expected.len()), expected);
        assert_eq!(files.answer(DiskWork::Close { file }), DiskAnswer::Done);
        drop(files);
        let mut files = Files::open(world, &folder.0, !is_direct);
        let answer = files.answer(DiskWork::Open { name: name("a.seg") });
        let DiskAnswer::File { file, bytes } = answer else { panic!("{answer:?}") };
        assert_eq!(bytes, expected.len() as u64);
        assert_eq!(files.read(file, 0, expected.len()), expected);
    }
}

pub fn every_request_completes_once_and_gives_its_buffer_back<W: DiskWorld>(world: &W, seed: u64) {
    let folder = world.folder(seed);
    let mut files = Files::open(world, &folder.0, seed.is_multiple_of(2));
    let mut random = Random::new(seed);
    let file = files.create("a", 32 * PAGE as u64);
    let mut addresses = BTreeMap::new();
    for token in 0..100 {
        let file = if random.chance(1, 10) { NOBODY } else { file };
        let (offset, bytes) = (random.below(40) * PAGE as u64, random.below(3 * PAGE as u64));
        let buffer = PageBuffer::new(2 * PAGE);
        let address = buffer.as_ptr();
        let (bytes, sync) = (bytes as u32, random.chance(1, 2));
        let work = match random.below(6) {
            0 | 1 => DiskWork::Read { file, offset, buffer, bytes, is_fresh: sync },
            2 | 3 => DiskWork::Write { file, offset, buffer, bytes, sync },
            4 => DiskWork::Sync { file },
            _ => DiskWork::Open { name: name(["a", "b"][sync as usize]) },
        };
        let has_buffer = matches!(work, DiskWork::Read { .. } | DiskWork::Write { .. });
        addresses.insert(token, has_buffer.then_some(address));
        files.submit(token, work);
    }
    while !addresses.is_empty() {
        let done = files.next();
        let address = addresses.remove(&done.token).expect("once each");
        assert_eq!(done.buffer.as_ref().map(|buffer| buffer.as_ptr()), address, "{done:?}");
    }
    assert!(files.reactor.next_disk_event().is_none());
    while poll_all(&mut files.reactor) > 0 {} // Ends: only a wake-up may be left.
}

pub fn a_read_at_the_end_of_a_file_has_fewer_bytes<W: DiskWorld>(world: &W, seed: u64) {
    let folder = world.folder(seed);
    let mut files = Files::open(world, &folder.0, false);
    let file = files.create("short", 0);
    assert_eq!(files.read(file, 0, PAGE), b"");
    let text = pattern(seed, 5_000);
    files.write(file, 0, &text, true);
    assert_eq!(files.read(file, 0, 2 * PAGE), text);
    assert_eq!(files.read(file, 4_096, PAGE), text[4_096..]);
    assert_eq!(files.read(file, 4_999, 1), text[4_999..]);
    for offset in [5_000, 5_001, 1 << 40] {
        assert_eq!(files.read(file, offset, PAGE), b"");
    }
    assert_eq!(files.names(), [("short".to_string(), 5_000)]);
}

pub fn what_does_not_exist_is_an_error_value<W: DiskWorld>(world: &W, seed: u64) {
    let folder = world.folder(seed);
    let mut files = Files::open(world, &folder.0, false);
    let file = files.create("here", PAGE as u64);
    let (here, gone) = (|| name("here"), || name("gone"));
    for work in [
        DiskWork::Open { name: gone() },
        DiskWork::Remove { name: gone() },
        DiskWork::Rename { from: gone(), to: here() },
    ] {
        assert_eq!(files.errno(work), libc::ENOENT);
    }
    let work = DiskWork::Create { name: here(), bytes: PAGE as u64 };
    assert_eq!(files.errno(work), libc::EEXIST);
    for work in [
        write(NOBODY, 0, b"x", true),
        read(NOBODY, 0, 1),
        DiskWork::Sync { file: NOBODY },
        DiskWork::Close { file: NOBODY },
    ] {
        assert_eq!(files.errno(work), libc::EBADF);
    }
    for (offset, bytes) in [(0, 0), (0, PAGE as u32 + 1), (u64::MAX, 1), (i64::MAX as u64, 1)] {
        let buffer = PageBuffer::new(PAGE);
        let work = DiskWork::Read { file, offset, buffer, bytes, is_fresh: bytes == 0 };
        assert_eq!(files.errno(work), libc::EINVAL, "{offset} {bytes}");
        let buffer = PageBuffer::new(PAGE);
        let work = DiskWork::Write { file, offset, buffer, bytes, sync: false };
        assert_eq!(files.errno(work), libc::EINVAL, "{offset} {bytes}");
    }
    assert_eq!(files.read(file, 0, PAGE), vec![0; PAGE]);
    assert_eq!(files.answer(DiskWork::Remove { name: here() }), DiskAnswer::Done);
    assert_eq!(files.names(), []);
}

pub fn a_closed_file_names_nothing_and_what_was_in_flight_completes<W: DiskWorld>(
    world: &W,
    seed: u64,
) {
    let folder = world.folder(seed);
    let mut files = Files::open(world, &folder.0, false);
    let file = files.create("a", 8 * PAGE as u64);
    let text = pattern(seed, PAGE);
    for page in 0..8 {
        files.submit(page, write(file, page * PAGE as u64, &text, page == 7));
    }
    files.submit(8, DiskWork::Close { file });
    files.submit(9, read(file, 0, PAGE));
    let mut left: BTreeSet<u64> = (0..10).collect();
    while !left.is_empty() {
        let done = files.next();
        assert!(left.remove(&done.token));
        assert_eq!(done.result.is_ok(), done.token != 9, "{}", done.token);
    }
    for _ in 0..20 {
        let again = files.create("b", PAGE as u64); // Has the same slot.
        assert_ne!(again, file);
        assert_eq!(files.errno(read(file, 0, PAGE)), libc::EBADF);
        assert_eq!(files.answer(DiskWork::Remove { name: name("b") }), DiskAnswer::Done);
        assert_eq!(files.answer(DiskWork::Close { file: again }), DiskAnswer::Done);
    }
    let DiskAnswer::File { file, .. } = files.answer(DiskWork::Open { name: name("a") }) else {
        panic!("no file")
    };
    assert_eq!(files.read(file, 0, 8 * PAGE), text.repeat(8));
}

pub fn a_rename_replaces_and_a_list_tells<W: DiskWorld>(world: &W, seed: u64) {
    let folder = world.folder(seed);
    let mut files = Files::open(world, &folder.0, false);
    let (first, second) = (files.create("a.prep", PAGE as u64), files.create("b", 0));
    files.write(first, 0, b"first", true);
    files.write(second, 0, b"second", true);
    let size = |bytes: usize| bytes as u64;
    let expected = [("a.prep".to_string(), size(PAGE)), ("b".to_string(), 6)];
    assert_eq!(files.names(), expected);
    let work = DiskWork::Rename { from: name("a.prep"), to: name("b") };
    assert_eq!(files.answer(work), DiskAnswer::Done);
    assert_eq!(files.names(), [("b".to_string(), size(PAGE))]);
    assert_eq!(files.read(first, 0, 5), b"first"); // By the same name as before.
    assert_eq!(files.read(second, 0, 9), b"second"); // It has no name, and is open.
    let answer = files.answer(DiskWork::Open { name: name("b") });
    let DiskAnswer::File { file, bytes } = answer else { panic!("{answer:?}") };
    assert_eq!((files.read(file, 0, 5), bytes), (b"first".to_vec(), size(PAGE)));
    assert_eq!(files.answer(DiskWork::Remove { name: name("b") }), DiskAnswer::Done);
    assert_eq!(files.names(), []);
    assert_eq!(files.read(file, 0, 5), b"first");
}

pub fn no_more_operations_than_allowed_are_in_flight<W: DiskWorld>(world: &W, seed: u64) {
    let folder = world.folder(seed);
    let setup = DiskSetup { in_flight_max: 4, ..DiskSetup::at(&folder.0) };
    let mut files = Files::with(world, setup);
    let file = files.create("a", PAGE as u64);
    for token in 0..4 {
        files.submit(token, if token == 2 { read(NOBODY, 0, 1) } else { read(file, 0, 1) });
    }
    for _ in 0..10 {
        let mut work = read(file, 0, 1);
        if let DiskWork::Read { buffer, .. } = &mut work {
            buffer[0] = 9;
        }
        let back = files.reactor.submit_disk(DiskRequest { token: 4, work }).unwrap_err();
        let DiskWork::Read { buffer, .. } = back.work else { panic!("{back:?}") };
        assert_eq!((back.token, buffer[0]), (4, 9));
        files.reactor.poll(); // A completion that was not taken counts.
    }
    let mut taken = BTreeSet::from([files.next().token]);
    files.submit(4, read(file, 0, 1));
    assert!(files.reactor.submit_disk(DiskRequest { token: 5, work: DiskWork::List }).is_err());
    taken.extend((0..4).map(|_| files.next().token));
    assert_eq!(taken, (0..5).collect());
    assert!(files.reactor.next_disk_event().is_none());
}

pub fn no_more_files_than_allowed_are_open<W: DiskWorld>(world: &W, seed: u64) {
    let folder = world.folder(seed);
    let mut files = Files::with(world, DiskSetup { files_max: 2, ..DiskSetup::at(&folder.0) });
    let first = files.create("a", 0);
    for (token, text) in (0..).zip(["b", "c", "d"]) {
        files.submit(token, DiskWork::Create { name: name(text), bytes: 0 });
    }
    let mut made = 0;
    for _ in 0..3 {
        match files.next().result {
            Ok(answer) => made += u64::from(matches!(answer, DiskAnswer::File { .. })),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EMFILE)),
        }
    }
    assert_eq!(made, 1);
    assert_eq!(files.names().len(), 2);
    assert_eq!(files.errno(DiskWork::Open { name: name("a") }), libc::EMFILE);
    assert_eq!(files.answer(DiskWork::Close { file: first }), DiskAnswer::Done);
    let gone = files.errno(DiskWork::Open { name: name("gone") });
    assert_eq!(gone, libc::ENOENT); // Its place is free again.
    files.create("e", 0);
    assert_eq!(files.errno(DiskWork::Create { name: name("f"), bytes: 0 }), libc::EMFILE);
}

pub fn a_completion_ends_a_wait_and_is_counted_until_it_is_taken<W: DiskWorld>(
    world: &W,
    seed: u64,
) {
    let folder = world.folder(seed);
    let mut files = Files::open(world, &folder.0, false);
    let file = files.create("a", PAGE as u64);
    for work in [
        DiskWork::List,
        DiskWork::Sync { file },
        write(file, 0, b"x", false),
        write(file, 0, b"y", true),
        read(file, 0, 1),
        read(NOBODY, 0, 1),
    ] {
        files.submit(1, work);
        let never = files.reactor.now() + Duration::from_secs(1_000_000);
        loop {
            files.reactor.wait(Some(never)); // Hangs if the completion does not end it.
            if files.reactor.poll() > 0 && files.reactor.poll() > 0 {
                break; // Twice: not a wake-up alone.
            }
        }
        files.reactor.wait(None);
        assert!(files.reactor.poll() >= 1);
        assert_eq!(files.reactor.next_disk_event().map(|done| done.token), Some(1));
        assert!(files.reactor.next_disk_event().is_none());
    }
    while poll_all(&mut files.reactor) > 0 {} // Ends: only a wake-up may be left.
    let until = files.reactor.now() + Duration::from_millis(2);
    files.reactor.wait(Some(until));
    assert!(files.reactor.now() >= until);
}

pub fn wakes_and_completions_do_not_hide_each_other<W: DiskWorld>(world: &W, seed: u64) {
    let folder = world.folder(seed);
    let mut files = Files::open(world, &folder.0, false);
    let mut random = Random::new(seed);
    for round in 0..100 {
        let woken = files.reactor.counters().woken_count;
        let delay = Duration::from_nanos(random.below(50_000));
        world.wake_later(files.reactor.waker(), delay);
        files.submit(round, DiskWork::List);
        let done = files.next();
        assert_eq!((done.token, done.result.is_ok()), (round, true));
        while files.reactor.counters().woken_count == woken {
            files.reactor.wait(None); // Hangs if a wake-up is lost.
            files.reactor.poll();
        }
    }
}

pub fn a_disk_and_sockets_serve_one_reactor<W: DiskWorld>(world: &W, seed: u64) {
    let folder = world.folder(seed);
    let mut server = Server::new(world, SocketKind::Unix, 4);
    let (client, id) = server.meet(world);
    let reactor = &mut server.reactor;
    reactor.open_disk(DiskSetup::at(&folder.0)).unwrap();
    for token in 0..20 {
        world.client_send(&client, b"x").unwrap();
        reactor.submit_disk(DiskRequest { token, work: DiskWork::List }).unwrap();
        let (mut received, mut completed) = (0, 0);
        while received + completed < 2 {
            reactor.wait(None);
            reactor.poll();
            while let Some(event) = reactor.next_socket_event() {
                let SocketEvent::Received { connection, bytes } = event else {
                    panic!("{event:?}")
                };
                assert_eq!((connection, bytes), (id, &b"x"[..]));
                received += 1;
            }
            while let Some(done) = reactor.next_disk_event() {
                assert_eq!(done.token, token);
                completed += 1;
            }
        }
        assert_eq!((received, completed), (1, 1));
    }
}

pub fn a_reactor_has_one_disk_or_none<W: DiskWorld>(world: &W, seed: u64) {
    let mut reactor = world.reactor();
    let request = DiskRequest { token: 3, work: DiskWork::List };
    let back = reactor.submit_disk(request).unwrap_err();
    assert_eq!(back.token, 3);
    assert!(reactor.next_disk_event().is_none());
    let missing = reactor.open_disk(DiskSetup::at(&fresh_path())).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    let folder = world.folder(seed);
    for (in_flight_max, files_max) in [(0, 1), (1, 0), (129, 1), (1, 257)] {
        let setup = DiskSetup { in_flight_max, files_max, ..DiskSetup::at(&folder.0) };
        let error = reactor.open_disk(setup).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
    reactor.open_disk(DiskSetup::at(&folder.0)).unwrap();
    let error = reactor.open_disk(DiskSetup::at(&folder.0)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    reactor.submit_disk(DiskRequest { token: 3, work: DiskWork::List }).unwrap();
    let mut files = Files { reactor };
    assert!(files.next().result.is_ok());
}

/// Many operations at once on pages of their own, against a model.
pub fn operations_in_disorder_lose_no_byte<W: DiskWorld>(world: &W, seed: u64) {
    const PAGES: usize = 64;
    let folder = world.folder(seed);
    let mut files = Files::open(world, &folder.0, seed.is_multiple_of(2));
    let mut random = Random::new(seed);
    let size = (PAGES * PAGE) as u64;
    let names = ["a", "b"].map(|text| files.create(text, size));
    let mut model = [vec![0u8; PAGES * PAGE], vec![0u8; PAGES * PAGE]];
    let mut in_flight: BTreeMap<u64, (usize, usize, Option<Vec<u8>>)> = BTreeMap::new();
    for token in 0..600 {
        let (which, page) = (random.below(2) as usize, random.below(PAGES as u64) as usize);
        let is_busy = |(file, busy, _): &(usize, usize, _)| *file == which && *busy == page;
        let (file, offset) = (names[which], (page * PAGE) as u64);
        let (written, work) = match random.below(4) {
            0 => (None, read(file, offset, PAGE)),
            1 => (None, DiskWork::Sync { file }),
            luck => {
                let bytes = if luck == 2 { PAGE } else { 1 + random.below(PAGE as u64) as usize };
                let text = pattern(random.next_u64(), bytes);
                (Some(text.clone()), write(file, offset, &text, random.chance(1, 4)))
            }
        };
        while in_flight.len() > 20 || in_flight.values().any(is_busy) {
            take(&mut files, &mut in_flight, &mut model);
        }
        in_flight.insert(token, (which, page, written));
        files.submit(token, work);
    }
    while !in_flight.is_empty() {
        take(&mut files, &mut in_flight, &mut model);
    }
    for (file, expected) in names.into_iter().zip(&model) {
        assert_eq!(&files.read(file, 0, PAGES * PAGE), expected);
    }
}

fn take<R: Reactor>(
    files: &mut Files<R>,
    in_flight: &mut BTreeMap<u64, (usize, usize, Option<Vec<u8>>)>,
    model: &mut [Vec<u8>; 2],
) {
    let done = files.next();
    let (which, page, written) = in_flight.remove(&done.token).expect("once each");
    let place = &mut model[which][page * PAGE..][..PAGE];
    match (done.result.unwrap(), written) {
        (DiskAnswer::Bytes(count), None) => {
            assert_eq!(count as usize, PAGE);
            assert_eq!(&done.buffer.unwrap()[..], place);
        }
        (DiskAnswer::Done, written) => {
            let text = written.unwrap_or_default();
            place[..text.len()].copy_from_slice(&text);
        }
        other => panic!("{other:?}"),
    }
}

pub fn a_dropped_reactor_carries_out_what_it_took_and_leaks_nothing<W: DiskWorld>(
    world: &W,
    seed: u64,
) {
    let folder = world.folder(seed);
    let fds_before = open_fds();
    let text = pattern(seed, PAGE);
    for polls in 0..3 {
        let mut files = Files::open(world, &folder.0, polls == 1);
        let name_of = |what: &str| name(&format!("{what}{polls}"));
        let file = files.create(name_of("a").as_str(), 16 * PAGE as u64);
        for page in 0..16 {
            files.submit(page, write(file, page * PAGE as u64, &text, page % 2 == 0));
        }
        files.submit(16, DiskWork::Create { name: name_of("b"), bytes: PAGE as u64 });
        files.submit(17, DiskWork::Sync { file });
        for _ in 0..polls {
            files.reactor.poll();
        }
        drop(files);
        assert_eq!(open_fds(), fds_before);
        let mut files = Files::open(world, &folder.0, false);
        let answer = files.answer(DiskWork::Open { name: name_of("a") });
        let DiskAnswer::File { file, .. } = answer else { panic!("{answer:?}") };
        assert_eq!(files.read(file, 0, 16 * PAGE), text.repeat(16));
        assert_eq!(files.names().len(), 2 * (polls + 1));
    }
    drop(folder);
    assert_eq!(open_fds(), fds_before);
}
