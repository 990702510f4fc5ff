//! Mappings of files that other processes can truncate.
//!
//! A memfd is sealed against shrinking, but a file with a name cannot be. An access to a page of a
//! mapping whose file has become shorter kills the process with SIGBUS. A write to a page that a
//! full file system has no room for does the same.
//!
//! A guarded mapping survives both. The handler of SIGBUS puts zero pages of its own under all of
//! the mapping, marks it as lost, and the instruction continues. To a reader the zeros are a ring
//! that is gone (its generation is 0). The stores of a writer have no effect elsewhere.
//!
//! The handler is installed with the first guarded mapping, for the whole process and for good. A
//! SIGBUS elsewhere goes to the previous handler. The handler does only what a handler may: loads
//! and stores of atomics, and one system call.
//!
//! Invariants:
//! - G1: a slot that is live describes a mapping that exists. It is made live after `mmap` and
//!   freed before `munmap`. A thread that faults in a mapping keeps the mapping alive meanwhile.
//! - G2: a lost mapping stays lost; its file is not looked at again.
//!
//! Tests: below, `named/tests.rs`.

use std::io;
use std::sync::{Once, OnceLock};

use memmap2::MmapRaw;

use super::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::limits::GUARDED_MAPPINGS_MAX;

/// A mapping and its slot in the table. The fields are dropped in this order (G1).
pub(super) struct Guarded {
    guard: Guard,
    pub(super) mapping: MmapRaw,
}

struct Guard(&'static Slot);

/// The data of one mapping that the handler needs.
struct Slot {
    state: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    is_lost: AtomicBool,
}

const FREE: usize = 0;
const TAKEN: usize = 1;
const LIVE: usize = 2;

const _: () = {
    assert!(FREE != TAKEN);
    assert!(TAKEN != LIVE);
    assert!(LIVE != FREE);
    assert!(GUARDED_MAPPINGS_MAX > 0);
};

static SLOTS: [Slot; GUARDED_MAPPINGS_MAX] = [const { Slot::new() }; GUARDED_MAPPINGS_MAX];
static INSTALL: Once = Once::new();
/// The action for SIGBUS before the handler was installed.
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
    /// If [`GUARDED_MAPPINGS_MAX`] mappings are guarded already, or the handler cannot be
    /// installed.
    pub(super) fn new(mapping: MmapRaw) -> io::Result<Guarded> {
        install()?;
        let free = SLOTS.iter().find(|slot| {
            let taken = Ordering::Acquire;
            slot.state.compare_exchange(FREE, TAKEN, taken, Ordering::Relaxed).is_ok()
        });
        let slot = free.ok_or_else(|| {
            io::Error::other(format!(
                "the maximum of {GUARDED_MAPPINGS_MAX} named rings is reached"
            ))
        })?;
        let start = mapping.as_ptr().expose_provenance();
        assert!(start > 0);
        assert!(mapping.len() > 0); // The handler looks for an address inside.
        slot.start.store(start, Ordering::Relaxed);
        slot.end.store(start + mapping.len(), Ordering::Relaxed);
        slot.is_lost.store(false, Ordering::Relaxed);
        let before = slot.state.swap(LIVE, Ordering::Release); // guard:slot
        assert!(before == TAKEN); // G1: the slot is ours alone.
        Ok(Guarded { guard: Guard(slot), mapping })
    }

    /// True if an access faulted because the file was truncated or the file system is full. Reads
    /// return zero since then.
    pub(super) fn is_lost(&self) -> bool {
        self.guard.0.is_lost.load(Ordering::Acquire) // guard:lost
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let before = self.0.state.swap(FREE, Ordering::Release); // guard:slot
        assert!(before == LIVE); // G1: it is freed once.
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
    // SAFETY: a struct of integers and an optional pointer, for which zeros are a valid value.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: queries only; `before` lives during the call.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // The handler reads it, so it is set before the handler can run.
    if BEFORE.set(before).is_err() {
        return Ok(());
    }
    // SAFETY: as above.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = handle as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `handle` has the signature that SA_SIGINFO requires, and does only what a handler
    // may.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The handler of SIGBUS.
extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO.
    let told = unsafe { &*info };
    let is_fault = told.si_code > 0; // Otherwise a process has sent the signal.
    // SAFETY: a SIGBUS has this field, and the address is only compared.
    let address = unsafe { told.si_addr() }.addr();
    let slot = SLOTS.iter().find(|slot| is_fault && slot.holds(address));
    if !slot.is_some_and(replace) {
        pass_on(signal, info, context);
    }
}

/// Puts zero pages under all of the mapping. Returns true if that worked.
fn replace(slot: &Slot) -> bool {
    let (start, end) = (slot.start.load(Ordering::Relaxed), slot.end.load(Ordering::Relaxed));
    // SAFETY: takes no arguments, and cannot fail.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the location belongs to this thread, and lives as long as the thread.
    let errno_before = unsafe { errno.read() };
    // SAFETY: `start..end` is a mapping of ours (G1), which is replaced as a whole. All access to
    // it is atomic or re-checked, so it may become zero at any moment.
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

/// Passes the signal on to the previous handler.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get().expect("it was set before the handler");
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: as in `install_once`.
            let mut default: libc::sigaction = unsafe { std::mem::zeroed() };
            default.sa_sigaction = libc::SIG_DFL;
            // SAFETY: gives the signal back to the kernel. The instruction faults again, which ends
            // the process.
            unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: the previous owner declared this signature with SA_SIGINFO.
            let handler: Handler = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO the handler has this signature.
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
        assert_eq!(written.word(0).load(Ordering::Relaxed), 7); // Its first page still exists.
        assert!(!written.is_lost());
        assert_eq!(written.word(last).load(Ordering::Relaxed), 0);
        assert!(written.is_lost());
        assert_eq!(written.word(0).load(Ordering::Relaxed), 0); // The whole mapping is lost now.
        written.word(last).store(9, Ordering::Relaxed);
        assert_eq!(written.word(last).load(Ordering::Relaxed), 9);
        assert!(!other.is_lost());
        other.word(last).store(1, Ordering::Relaxed); // A write faults as well.
        assert!(other.is_lost());
    }

    /// Runs the calling test in a child process. Returns its exit status, or `None` inside the
    /// child.
    fn alone() -> Option<std::process::ExitStatus> {
        const CHILD: &str = "STREAMDOOR_TEST_OF_GUARD";
        if std::env::var_os(CHILD).is_some() {
            return None; // This is the child.
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
