//! The word that tells whether a producer in another process lives, even when it is stuck.
//!
//! It holds the number of a thread of the producer, and is an entry of that thread's robust list.
//! When the thread ends in any way, the kernel itself writes "the owner has died" there and wakes
//! the waiters. It does so before it tears down the memory of the process. For a killed producer of
//! a large ring that is a thousand times sooner than the end of its connection. The end of the
//! connection remains the proof, because a hostile producer can write anything here.
//!
//! The list belongs to the thread, and the C library keeps one of its own there. Therefore a thread
//! that does nothing else holds the word ([`OwnerWord::hold`]).
//!
//! - `owner:gated`: both sides store, pass a full fence, then look. One side is a producer that
//!   waits for its gate, the other a server that moves it.
//!
//! Tests: `shared_tests.rs`.

use std::{io, ptr};

use super::atomic::{AtomicU64, Ordering, fence, full_fence, load_acquire};
use super::layout::assert_ascending;
use super::segment::Segment;

const OWNER: usize = 0;
const ROOM: usize = 1;
/// Number of words: a pair of cache lines.
pub(super) const OWNER_WORDS: usize = 16;

const _: () = {
    assert_ascending(&[OWNER, ROOM, OWNER_WORDS]);
    assert!((OWNER_WORDS * 8).is_multiple_of(128)); // No other word is near.
    // The kernel follows these structs, as linux/futex.h lays them out.
    assert!(size_of::<RobustList>() == size_of::<usize>());
    assert!(size_of::<RobustListHead>() == 3 * size_of::<usize>());
    assert!(std::mem::offset_of!(RobustListHead, list) == 0);
    assert!(std::mem::offset_of!(RobustListHead, futex_offset) == size_of::<usize>());
    assert!(std::mem::offset_of!(RobustListHead, pending) == 2 * size_of::<usize>());
    // The state of a fresh page, which is zero.
    assert!(Room::Enough as u64 == 0);
    // The mark of a dead owner is no part of a thread's number.
    assert!(libc::FUTEX_OWNER_DIED & libc::FUTEX_TID_MASK == 0);
    assert!(libc::FUTEX_WAITERS & libc::FUTEX_TID_MASK == 0);
};

/// The producer's side.
#[derive(Clone)]
pub struct OwnerWord {
    segment: Segment,
}

/// The server's side, which checks everything it reads.
#[derive(Clone)]
pub struct OwnerView {
    segment: Segment,
}

/// The room that a producer has behind its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Enough for a while.
    Enough = 0,
    /// None: the producer waits for room.
    None = 1,
    /// Less than half of its ring.
    Short = 2,
}

/// The content of an owner word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No thread holds it (yet, or any more).
    Nobody,
    /// A thread holds it. The value is the word itself, for
    /// [`futex::wait_any`](super::futex::wait_any).
    Lives(u32),
    /// The thread that held it has ended without releasing it.
    Died,
}

/// The `struct robust_list` of linux/futex.h. The kernel follows `next` until it is back at the
/// head.
#[repr(C)]
struct RobustList {
    next: *mut RobustList,
}

/// The `struct robust_list_head` of linux/futex.h.
#[repr(C)]
struct RobustListHead {
    list: RobustList,
    /// The distance from the link of an entry to its futex.
    futex_offset: libc::c_long,
    pending: *mut RobustList,
}

impl OwnerWord {
    pub(super) fn at(segment: Segment) -> OwnerWord {
        assert!(segment.bytes() >= OWNER_WORDS * 8);
        OwnerWord { segment }
    }

    /// Holds the word on this thread while `during` runs, then releases it. If this thread ends
    /// first, the kernel marks the word. Only one thread holds it at a time. That thread must not
    /// hold a robust mutex of the C library.
    ///
    /// # Errors
    /// The kernel's error. `during` has not run in that case.
    pub fn hold<R>(&self, during: impl FnOnce() -> R) -> io::Result<R> {
        let word = self.segment.word(OWNER);
        let address = (&raw const *word).cast::<u32>();
        assert!(address.is_aligned()); // The kernel passes over others.
        let before = robust_list()?;
        let mut entry = RobustList { next: ptr::null_mut() };
        let entry = &raw mut entry;
        let futex_offset = (address.addr() as libc::c_long).wrapping_sub(entry.addr() as _);
        let mut head = RobustListHead {
            list: RobustList { next: entry },
            futex_offset,
            pending: ptr::null_mut(),
        };
        let head = &raw mut head;
        // SAFETY: `entry` is a local of this function, and nothing else refers to it.
        unsafe { (*entry).next = head.cast() };
        set_robust_list(head.cast())?;
        // The list is complete before the word says that it is held. FUTEX_WAITERS is always set,
        // so the kernel always wakes.
        word.store(u64::from(thread_id() | libc::FUTEX_WAITERS), Ordering::Release);
        let _release = Release { word, before };
        Ok(during())
    }

    /// Stores the room that the producer has behind its gate. After [`Room::None`] it has to look
    /// at the gate once more before it waits.
    pub fn set_room(&self, room: Room) {
        self.segment.word(ROOM).store(room as u64, Ordering::Relaxed);
        full_fence(); // owner:gated
    }
}

/// Releases the word, also during a panic.
struct Release<'a> {
    word: &'a AtomicU64,
    before: *mut RobustListHead,
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.word.store(0, Ordering::Release);
        // The list is in a stack frame that is about to end. The call does not fail: it succeeded
        // before.
        let _ = set_robust_list(self.before);
    }
}

impl OwnerView {
    pub(super) fn at(segment: Segment) -> OwnerView {
        assert!(segment.bytes() >= OWNER_WORDS * 8);
        OwnerView { segment }
    }

    /// The content of the word. It is only a hint, because a hostile producer writes anything.
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

    /// True if the producer waits for its gate to move. Call it after the gate was set and one full
    /// fence.
    pub fn is_gated(&self) -> bool {
        self.segment.word(ROOM).load(Ordering::Relaxed) == Room::None as u64 // owner:gated
    }

    /// True if the producer waits for room, or will have to soon.
    pub fn is_short_of_room(&self) -> bool {
        self.segment.word(ROOM).load(Ordering::Relaxed) != Room::Enough as u64
    }
}

fn thread_id() -> u32 {
    // SAFETY: takes no arguments, returns a number, cannot fail.
    let id = unsafe { libc::gettid() };
    id as u32 & libc::FUTEX_TID_MASK
}

/// Returns the robust list of this thread.
fn robust_list() -> io::Result<*mut RobustListHead> {
    let mut head: *mut RobustListHead = ptr::null_mut();
    let mut bytes = 0usize;
    // SAFETY: the kernel writes a pointer and a length, to two locals of these sizes.
    let result =
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(head) }
}

/// Sets the robust list of this thread. The kernel follows it when the thread ends, with checks of
/// its own. The list is in this process, and has to exist for as long as it is set.
fn set_robust_list(head: *mut RobustListHead) -> io::Result<()> {
    fence(Ordering::SeqCst); // The content of the list is stored before it is set.
    // SAFETY: the kernel stores the address; it reads the list when this thread ends.
    let result =
        unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<RobustListHead>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
