//! The word that says that a producer in another process lives, whether it runs or is stuck.
//!
//! It holds the number of a thread of the producer, and stands in that thread's robust list: when
//! the thread ends, however it ends, the kernel itself writes "the owner has died" there and wakes
//! who waits, before it tears down the memory of the process. For a killed producer of a large ring
//! that is a thousand times sooner than the end of its connection, which stays the proof: a hostile
//! producer can write anything here.
//!
//! The list belongs to the thread, and the C library has one of its own there. So the word is held
//! by a thread that does nothing else ([`OwnerWord::hold`]).
//!
//! - `owner:gated`: a producer that waits for its gate and a server that moves it each store, pass
//!   a full fence, then look.
//!
//! Tests: `shared_tests.rs`.

use std::io;
use std::ptr;

use super::atomic::{AtomicU64, Ordering, fence, full_fence, load_acquire};
use super::segment::Segment;

const OWNER: usize = 0;
const ROOM: usize = 1;
/// A pair of cache lines.
pub(super) const OWNER_WORDS: usize = 16;

/// The producer's side.
#[derive(Clone)]
pub struct OwnerWord {
    segment: Segment,
}

/// The server's side, which believes nothing.
#[derive(Clone)]
pub struct OwnerView {
    segment: Segment,
}

/// How much room a producer has behind its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Enough for a while.
    Enough = 0,
    /// It waits for some.
    None = 1,
    /// Less than half of its ring.
    Short = 2,
}

/// What an owner word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody holds it (yet, or any more).
    Nobody,
    /// A thread holds it; the word as it stands, for [`futex::wait_any`](super::futex::wait_any).
    Lives(u32),
    /// The thread that held it has ended without letting go.
    Died,
}

/// `struct robust_list` in linux/futex.h: the kernel follows `next` until it is back at the head.
#[repr(C)]
struct Link {
    next: *mut Link,
}

/// `struct robust_list_head`.
#[repr(C)]
struct Head {
    list: Link,
    /// From the link of an entry to its futex.
    futex_offset: libc::c_long,
    pending: *mut Link,
}

impl OwnerWord {
    pub(super) fn at(segment: Segment) -> OwnerWord {
        OwnerWord { segment }
    }

    /// Holds the word while `during` runs, on this thread; then lets it go. If this thread ends
    /// first, the kernel says so in the word. Only one thread holds it at a time; it has to be one
    /// that holds no robust mutex of the C library.
    ///
    /// # Errors
    /// What the kernel says; `during` was then not run.
    pub fn hold<R>(&self, during: impl FnOnce() -> R) -> io::Result<R> {
        let word = self.segment.word(OWNER);
        let address = (&raw const *word).cast::<u32>();
        let before = robust_list()?;
        let mut entry = Link { next: ptr::null_mut() };
        let entry = &raw mut entry;
        let futex_offset = (address.addr() as libc::c_long).wrapping_sub(entry.addr() as _);
        let mut head = Head { list: Link { next: entry }, futex_offset, pending: ptr::null_mut() };
        let head = &raw mut head;
        // SAFETY: `entry` is a local of this function, and nothing else refers to it.
        unsafe { (*entry).next = head.cast() };
        set_robust_list(head.cast())?;
        // What the list means is in place before the word says that it is held. Whoever waits is
        // not asked: the kernel always has to wake.
        word.store(u64::from(thread_id() | libc::FUTEX_WAITERS), Ordering::Release);
        let _release = Release { word, before };
        Ok(during())
    }

    /// How much room the producer has behind its gate. After [`Room::None`] it has to look at the
    /// gate once more: it waits for it to move.
    pub fn set_room(&self, room: Room) {
        self.segment.word(ROOM).store(room as u64, Ordering::Relaxed);
        full_fence(); // owner:gated
    }
}

/// Lets the word go, also where a panic passes.
struct Release<'a> {
    word: &'a AtomicU64,
    before: *mut Head,
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.word.store(0, Ordering::Release);
        // The list lies in a frame that is about to end. It cannot fail: it did not before.
        let _ = set_robust_list(self.before);
    }
}

impl OwnerView {
    pub(super) fn at(segment: Segment) -> OwnerView {
        OwnerView { segment }
    }

    /// What the word says: a hint, for a hostile producer writes what it likes.
    pub fn owner(&self) -> Owner {
        let raw = load_acquire(self.segment.word(OWNER)) as u32;
        if raw & libc::FUTEX_OWNER_DIED != 0 {
            Owner::Died
        } else if raw & libc::FUTEX_TID_MASK == 0 {
            Owner::Nobody
        } else {
            Owner::Lives(raw)
        }
    }

    /// The word to sleep on.
    pub fn word(&self) -> &AtomicU64 {
        self.segment.word(OWNER)
    }

    /// Does the producer wait for its gate to move? To be asked after the gate was set and one full
    /// fence.
    pub fn is_gated(&self) -> bool {
        self.segment.word(ROOM).load(Ordering::Relaxed) == Room::None as u64 // owner:gated
    }

    /// Does it wait, or will it have to soon?
    pub fn is_short_of_room(&self) -> bool {
        self.segment.word(ROOM).load(Ordering::Relaxed) != Room::Enough as u64
    }
}

fn thread_id() -> u32 {
    // SAFETY: takes nothing, gives a number, cannot fail.
    let id = unsafe { libc::gettid() };
    id as u32 & libc::FUTEX_TID_MASK
}

/// This thread's list.
fn robust_list() -> io::Result<*mut Head> {
    let mut head: *mut Head = ptr::null_mut();
    let mut bytes = 0usize;
    // SAFETY: the kernel writes a pointer and a length, to two locals of these sizes.
    let result =
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(head) }
}

/// Gives this thread another list. The kernel follows it when the thread ends, with checks of its
/// own: it lies in this process, and stays as long as it is set.
fn set_robust_list(head: *mut Head) -> io::Result<()> {
    fence(Ordering::SeqCst); // What stands in the list is there before it is the list.
    // SAFETY: the kernel notes the address; it looks there when this thread ends.
    let result = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
