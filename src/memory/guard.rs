//! Mappings of files that somebody else can cut off.
//!
//! A memfd is sealed against shrinking; a file with a name cannot be. Whoever touches a page of a
//! mapping whose file has become shorter is killed by SIGBUS, and so is who writes to a page that a
//! full file system has no room for. A guarded mapping survives both: the handler of SIGBUS puts
//! zero pages of its own under all of it, notes that it is lost, and the instruction goes on. To a
//! reader zeros are a ring that is gone (its generation is 0); a writer writes into nothing.
//!
//! The handler is installed with the first guarded mapping, for the whole process and for good. A
//! SIGBUS elsewhere goes to whom it went before. It does what a handler may: loads and stores of
//! atomics, and one system call.
//!
//! Invariants:
//! - G1: a slot that is live describes a mapping that exists: it is made live after `mmap` and
//!   freed before `munmap`; who faults in a mapping keeps it alive meanwhile.
//! - G2: once lost, always lost: the file is not looked at again.
//!
//! Tests: below, `named/tests.rs`.

use std::io;
use std::sync::{Once, OnceLock};

use memmap2::MmapRaw;

use super::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::limits::GUARDED_MAPPINGS_MAX;

/// A mapping, and its place in the table. Freed in this order: G1.
pub(super) struct Guarded {
    guard: Guard,
    pub(super) mapping: MmapRaw,
}

struct Guard(&'static Slot);

/// What the handler has to know of one mapping.
struct Slot {
    state: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    is_lost: AtomicBool,
}

const FREE: usize = 0;
const TAKEN: usize = 1;
const LIVE: usize = 2;

static SLOTS: [Slot; GUARDED_MAPPINGS_MAX] = [const { Slot::new() }; GUARDED_MAPPINGS_MAX];
static INSTALL: Once = Once::new();
/// Who had SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

impl Slot {
    const fn new() -> Slot {
        Slot {
            state: AtomicUsize::new(FREE),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        }
    }

    fn holds(&self, address: usize) -> bool {
        self.state.load(Ordering::Acquire) == LIVE // guard:slot
            && (self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed))
                .contains(&address)
    }
}

impl Guarded {
    /// Guards `mapping`.
    ///
    /// # Errors
    /// If there are [`GUARDED_MAPPINGS_MAX`] already, or the handler cannot be installed.
    pub(super) fn new(mapping: MmapRaw) -> io::Result<Guarded> {
        install()?;
        let free = SLOTS.iter().find(|slot| {
            let taken = Ordering::Acquire;
            slot.state.compare_exchange(FREE, TAKEN, taken, Ordering::Relaxed).is_ok()
        });
        let slot = free.ok_or_else(|| {
            io::Error::other(format!("there are {GUARDED_MAPPINGS_MAX} named rings already"))
        })?;
        let start = mapping.as_ptr().expose_provenance();
        slot.start.store(start, Ordering::Relaxed);
        slot.end.store(start + mapping.len(), Ordering::Relaxed);
        slot.is_lost.store(false, Ordering::Relaxed);
        slot.state.store(LIVE, Ordering::Release); // guard:slot
        Ok(Guarded { guard: Guard(slot), mapping })
    }

    /// Was the file cut off, or the file system full? What is read since then is zero.
    pub(super) fn is_lost(&self) -> bool {
        self.guard.0.is_lost.load(Ordering::Acquire) // guard:lost
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.state.store(FREE, Ordering::Release); // guard:slot
    }
}

fn install() -> io::Result<()> {
    let mut installed = Ok(());
    INSTALL.call_once(|| installed = install_once());
    match BEFORE.get() {
        Some(_) => installed,
        None => Err(installed.err().unwrap_or_else(|| io::Error::other("SIGBUS is not ours"))),
    }
}

fn install_once() -> io::Result<()> {
    // SAFETY: a struct of integers and an optional pointer, of which zeros are a value.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; `before` lives during the call.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // Before the handler can run, which looks at it.
    if BEFORE.set(before).is_err() {
        return Ok(());
    }
    // SAFETY: as above.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = handle as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `handle` has the signature that SA_SIGINFO asks for, and does what a handler may.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What happens at a SIGBUS.
extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO.
    let told = unsafe { &*info };
    let is_fault = told.si_code > 0; // Else somebody has sent it.
    // SAFETY: of a SIGBUS the field is there; the address is only compared.
    let address = unsafe { told.si_addr() }.addr();
    let slot = SLOTS.iter().find(|slot| is_fault && slot.holds(address));
    if !slot.is_some_and(replace) {
        pass_on(signal, info, context);
    }
}

/// Puts zero pages under all of the mapping. Did that work?
fn replace(slot: &Slot) -> bool {
    let (start, end) = (slot.start.load(Ordering::Relaxed), slot.end.load(Ordering::Relaxed));
    // SAFETY: takes nothing, and cannot fail.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's own, and lives as long as the thread.
    let errno_before = unsafe { errno.read() };
    // SAFETY: `start..end` is a mapping of ours (G1), which is replaced as a whole; all access to
    // it is atomic or re-checked, so that it may become zero at any moment.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::with_exposed_provenance_mut(start),
            end - start,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    // SAFETY: as above.
    unsafe { errno.write(errno_before) };
    slot.is_lost.store(true, Ordering::Release); // guard:lost
    mapped != libc::MAP_FAILED
}

/// To whoever had it before us.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get().expect("it was set before the handler");
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: as in `install_once`.
            let mut default: libc::sigaction = unsafe { std::mem::zeroed() };
            default.sa_sigaction = libc::SIG_DFL;
            // SAFETY: gives the signal back to the kernel; the instruction faults again, and that
            // ends the process.
            unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: whoever installed it said with SA_SIGINFO that it has this signature.
            let handler: Handler = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO it has this one.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use memmap2::MmapOptions;

    use super::super::segment::Segment;
    use super::*;

    const PAGE_BYTES: usize = 4096;

    fn file(name: &str, bytes: u64) -> File {
        let path = std::env::temp_dir().join(format!("streamdoor-{name}-{}", std::process::id()));
        let options = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        options.set_permissions(Permissions::from_mode(0o600)).unwrap();
        options.set_len(bytes).unwrap();
        options
    }

    #[test]
    fn a_file_that_is_cut_off_reads_as_zeros_and_takes_what_is_written() {
        let file = file("guard", 4 * PAGE_BYTES as u64);
        let map = || Segment::guarded(MmapOptions::new().map_raw(&file).unwrap()).unwrap();
        let (written, other) = (map(), map());
        let last = 4 * PAGE_BYTES / 8 - 1;
        written.word(0).store(7, Ordering::Relaxed);
        written.word(last).store(8, Ordering::Relaxed);
        assert_eq!(other.word(last).load(Ordering::Relaxed), 8);
        assert!(!written.is_lost());
        file.set_len(PAGE_BYTES as u64).unwrap();
        assert_eq!(written.word(0).load(Ordering::Relaxed), 7); // Its first page is still there.
        assert!(!written.is_lost());
        assert_eq!(written.word(last).load(Ordering::Relaxed), 0);
        assert!(written.is_lost());
        assert_eq!(written.word(0).load(Ordering::Relaxed), 0); // All of it is gone now.
        written.word(last).store(9, Ordering::Relaxed);
        assert_eq!(written.word(last).load(Ordering::Relaxed), 9);
        assert!(!other.is_lost());
        other.word(last).store(1, Ordering::Relaxed); // A write faults as well.
        assert!(other.is_lost());
    }

    /// The child of a test: the same test in a process of its own.
    fn alone() -> Option<std::process::ExitStatus> {
        const CHILD: &str = "STREAMDOOR_TEST_OF_GUARD";
        if std::env::var_os(CHILD).is_some() {
            return None; // This is it.
        }
        let name = std::thread::current().name().unwrap().to_owned();
        let mut command = Command::new(std::env::current_exe().unwrap());
        Some(command.args([&name, "--exact"]).env(CHILD, "1").output().unwrap().status)
    }

    #[test]
    fn a_slot_is_free_again_and_the_table_has_an_end() {
        if let Some(status) = alone() {
            return assert!(status.success(), "{status}");
        }
        let file = file("slots", PAGE_BYTES as u64);
        let map = || Segment::guarded(MmapOptions::new().map_raw(&file).unwrap());
        for _ in 0..2 * GUARDED_MAPPINGS_MAX {
            map().unwrap();
        }
        let all: Vec<Segment> = (0..GUARDED_MAPPINGS_MAX).map(|_| map().unwrap()).collect();
        let refused = map().err().unwrap();
        assert!(refused.to_string().contains("named rings"), "{refused}");
        drop(all);
        map().unwrap();
    }

    #[test]
    fn a_fault_elsewhere_still_kills() {
        if let Some(status) = alone() {
            return assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
        }
        let file = file("elsewhere", PAGE_BYTES as u64);
        let map = || MmapOptions::new().map_raw(&file).unwrap();
        let _guarded = Segment::guarded(map()).unwrap();
        let unguarded = Segment::mapped(map());
        file.set_len(0).unwrap();
        unguarded.word(0).load(Ordering::Relaxed);
    }
}
