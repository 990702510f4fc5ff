//! The disk as the one file of a FUSE file system, in a process of its own, and its commands.
//!
//! The process that uses the disk may be killed while it waits for the disk. If it served the disk
//! itself, it would wait for ever. Commands come on the standard input, one a line. Each is
//! answered with a line `done`, and an answer. The process ends with its standard input.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};
use streamdoor::base::Random;

use crate::disk::{Disk, Life};
use crate::role::say;

/// A test that fails may never release a disk that stands still.
const STILL_MAX: Duration = Duration::from_secs(20);
const WRITE_BYTES_MAX: u32 = 1 << 20;

struct State {
    disk: Disk,
    /// True while every operation waits.
    is_still: bool,
    /// Minimum time of a flush, and the most that chance adds.
    flush_min: Duration,
    flush_max: Duration,
    random: Random,
}

struct Shared {
    state: Mutex<State>,
    moves: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    /// The disk, as soon as it moves.
    fn moving(&self) -> MutexGuard<'_, State> {
        let is_still = |state: &mut State| state.is_still;
        let waited = self.moves.wait_timeout_while(self.lock(), STILL_MAX, is_still);
        let (mut state, _) = waited.expect("nobody panics with it");
        state.is_still = false;
        state
    }
}

/// The file system. Its root is the file.
struct Image(Arc<Shared>);

impl Filesystem for Image {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let set = config.set_max_write(WRITE_BYTES_MAX);
        set.map(|_| ()).map_err(|_| std::io::ErrorKind::InvalidInput.into())
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let size = self.0.lock().disk.bytes();
        let attributes = FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4_096,
            flags: 0,
        };
        reply.attr(&Duration::MAX, &attributes);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let life = self.0.lock().disk.life_count();
        reply.opened(FileHandle(life), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        life: FileHandle,
        offset: u64,
        bytes: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.moving().disk.read(life.0, offset, bytes) {
            Ok(bytes) => reply.data(bytes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        life: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.moving().disk.write(life.0, offset, bytes) {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok(); // The close of a descriptor.
    }

    /// Other operations go on during a flush, which takes some time.
    fn fsync(&self, _: &Request, _: INodeNo, life: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.0.moving();
        let Ok(sectors) = state.disk.begin_flush(life.0) else { return reply.error(Errno::EIO) };
        let max_us = state.flush_max.as_micros() as u64;
        let delay = state.flush_min + Duration::from_micros(state.random.below(max_us));
        let shared = Arc::clone(&self.0);
        let end = move || {
            std::thread::sleep(delay);
            match shared.moving().disk.end_flush(life.0, sectors) {
                Ok(()) => reply.ok(),
                Err(_) => reply.error(Errno::EIO),
            }
        };
        std::thread::spawn(end);
    }
}

/// Serves a disk of this size as the file `image`, until the standard input ends.
pub fn serve(image: &Path, bytes: usize) {
    let (flush_min, flush_max, random) = (Duration::ZERO, Duration::ZERO, Random::new(0));
    let disk = Disk::new(bytes);
    let state = State { disk, is_still: false, flush_min, flush_max, random };
    let shared = Arc::new(Shared { state: Mutex::new(state), moves: Condvar::new() });
    let system = Image(Arc::clone(&shared));
    let session = fuser::spawn_mount(system, image, &fuser::Config::default()).unwrap();
    say("done serving");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        say(&format!("done {}", obey(&shared, &words)));
    }
    drop(session);
}

/// Carries out a command. Returns the answer.
fn obey(shared: &Shared, words: &[&str]) -> bool {
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let mut state = shared.lock();
    match *words {
        ["on", seed, sector_bytes, cut_at] => {
            let (seed, sector_bytes) = (number(seed), number(sector_bytes) as usize);
            state.random = Random::new(seed);
            let cut_at = Some(number(cut_at)).filter(|at| *at > 0);
            state.disk.turn_on(Life { seed, sector_bytes, cut_at });
        }
        ["cut"] if state.disk.is_on() => state.disk.cut(),
        ["cut"] => {}
        ["cut-in", count] => state.disk.cut_in(number(count)),
        ["flush-us", us] => state.flush_min = Duration::from_micros(number(us)),
        ["flush-max-us", us] => state.flush_max = Duration::from_micros(number(us)),
        ["fail-flush"] => state.disk.fail_flush(),
        ["fail-write", text] => state.disk.fail_write_of(bytes_of(text)),
        ["keeps", text] => return state.disk.keeps(&bytes_of(text)),
        ["stand-still"] => state.is_still = true,
        ["go-on"] => {
            shared.moves.notify_all();
            return std::mem::take(&mut state.is_still);
        }
        _ => panic!("no command: {words:?}"),
    }
    true
}

fn bytes_of(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits");
    (0..text.len()).step_by(2).map(digits).collect()
}
