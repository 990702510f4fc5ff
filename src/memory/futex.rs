//! Sleeping on a word of shared memory, across processes.
//!
//! The word is the low half of an atomic u64 (`layout.rs` checks the byte order). Waiting works on
//! read-only mappings. Every wait is bounded, so a hostile page can delay but never block for ever.
//! The kernel compares the expected value, so a wake between the look and the sleep is not lost. No
//! clock is read here.
//! Tests: below (not under miri or loom).

use std::time::Duration;

use smallvec::SmallVec;

use super::atomic::AtomicU64;
use crate::base::Instant;
use crate::limits::{DOORS_CEILING, WAIT_ANY_FALLBACK};

/// The reason why a wait ended. None of them means that a chunk is ready: the caller has to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// Another thread or process called wake.
    Woken,
    /// The word had changed before the sleep began.
    Changed,
    /// The timeout passed.
    TimedOut,
    /// A signal arrived, or the wake was spurious.
    Interrupted,
}

/// Sleeps while the low half of `word` is `seen`, at most `timeout`.
pub fn wait(word: &AtomicU64, seen: u32, timeout: Duration) -> WaitOutcome {
    let Some(address) = futex_address(word) else {
        super::atomic::spin_hint();
        return WaitOutcome::TimedOut;
    };
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    assert!(address.is_aligned()); // The kernel refuses others.
    // SAFETY: FUTEX_WAIT reads one aligned u32 at `address`, inside `word`, and `timeout`.
    let result = unsafe {
        libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAIT, seen, &raw const timeout)
    };
    outcome(result)
}

/// Wakes everyone who waits for the low half of `word`. Returns the number of woken waiters.
pub fn wake_all(word: &AtomicU64) -> u32 {
    #[cfg(any(test, fuzzing))]
    super::interleave::note_woken(word);
    let Some(address) = futex_address(word) else { return 0 };
    // SAFETY: FUTEX_WAKE uses the address as a key only.
    let result = unsafe { libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAKE, i32::MAX) };
    // The address is ours, aligned and mapped. But a file with a name may have been truncated under
    // it. Then nobody waits there, and an access to the page detects it.
    assert!(result >= 0 || last_errno() == libc::EFAULT);
    result.max(0) as u32
}

/// The largest number of words that one thread waits for. It is the kernel's limit.
pub const WAIT_WORDS_MAX: usize = 128;

/// Sleeps while each word's low half is what was seen, at most until `deadline` (CLOCK_MONOTONIC).
/// It does not report which word changed: the caller has to look. A kernel without FUTEX_WAITV
/// waits for the first word alone, at most [`WAIT_ANY_FALLBACK`].
///
/// # Panics
/// If `words` is empty or has more than [`WAIT_WORDS_MAX`] elements.
pub fn wait_any(words: &[(&AtomicU64, u32)], deadline: Instant) -> WaitOutcome {
    assert!((1..=WAIT_WORDS_MAX).contains(&words.len()));
    let mut waiters: SmallVec<[FutexWaiter; 16]> = SmallVec::new();
    for &(word, seen) in words {
        let Some(address) = futex_address(word) else {
            super::atomic::spin_hint();
            return WaitOutcome::TimedOut;
        };
        waiters.push(FutexWaiter {
            value: u64::from(seen),
            address: address.expose_provenance() as u64,
            flags: FUTEX2_SIZE_U32,
            reserved: 0,
        });
    }
    let deadline = libc::timespec {
        tv_sec: (deadline.nanos() / 1_000_000_000) as i64,
        tv_nsec: (deadline.nanos() % 1_000_000_000) as i64,
    };
    // SAFETY: FUTEX_WAITV reads the waiters, one aligned u32 at each address, and `deadline`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            waiters.as_ptr(),
            waiters.len() as u32,
            0u32,
            &raw const deadline,
            libc::CLOCK_MONOTONIC,
        )
    };
    if result < 0 && is_unsupported(last_errno()) {
        let (word, seen) = words[0];
        return wait(word, seen, WAIT_ANY_FALLBACK);
    }
    outcome(result.min(0))
}

/// Returns `Ok` if [`wait_any`] waits for all words on this system, and not for the first
/// alone.
///
/// # Errors
/// The kernel's error if it is older than Linux 5.16, or if a filter forbids the call.
pub fn try_wait_any() -> std::io::Result<()> {
    let (nobody, no_time) = (std::ptr::null::<FutexWaiter>(), std::ptr::null::<libc::timespec>());
    // SAFETY: FUTEX_WAITV refuses to wait for 0 words before it reads anything.
    let result = unsafe {
        libc::syscall(libc::SYS_futex_waitv, nobody, 0u32, 0u32, no_time, libc::CLOCK_MONOTONIC)
    };
    let error = std::io::Error::last_os_error();
    if result >= 0 || error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) }
}

/// One element of the array that `futex_waitv` takes (`struct futex_waitv` in linux/futex.h).
#[repr(C)]
#[derive(Clone, Copy)]
struct FutexWaiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// The flag for a 32-bit futex, shared between processes (linux/futex.h).
const FUTEX2_SIZE_U32: u32 = 2;

const _: () = {
    assert!(size_of::<FutexWaiter>() == 24); // `struct futex_waitv` of the kernel.
    assert!(align_of::<FutexWaiter>() == 8);
    assert!(DOORS_CEILING as usize <= WAIT_WORDS_MAX); // One thread sleeps on a word of each.
    assert!(!WAIT_ANY_FALLBACK.is_zero());
};

/// Returns the address of the low half; `None` under loom and miri, which have no futexes.
fn futex_address(word: &AtomicU64) -> Option<*const u32> {
    if cfg!(any(loom, miri)) { None } else { Some((&raw const *word).cast::<u32>()) }
}

fn outcome(result: libc::c_long) -> WaitOutcome {
    if result >= 0 {
        return WaitOutcome::Woken;
    }
    match last_errno() {
        libc::EAGAIN => WaitOutcome::Changed,
        libc::ETIMEDOUT => WaitOutcome::TimedOut,
        libc::EINTR => WaitOutcome::Interrupted,
        libc::EFAULT => WaitOutcome::Interrupted, // The file was truncated, as in `wake_all`.
        errno => panic!("a futex of ours was refused: errno {errno}"), // EINVAL is a bug.
    }
}

fn is_unsupported(errno: i32) -> bool {
    errno == libc::ENOSYS || errno == libc::EPERM // EPERM: a filter is older than the call.
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::memory::atomic::Ordering;

    #[test]
    fn a_changed_word_is_not_slept_on_and_an_unchanged_one_times_out() {
        let word = AtomicU64::new(5 | 9 << 32);
        assert_eq!(wait(&word, 4, Duration::from_secs(60)), WaitOutcome::Changed);
        assert_eq!(wait(&word, 5, Duration::from_millis(1)), WaitOutcome::TimedOut);
        let other = AtomicU64::new(1);
        let far = Instant::from_nanos(u64::MAX / 4);
        assert_eq!(wait_any(&[(&word, 5), (&other, 0)], far), WaitOutcome::Changed);
        let past = Instant::from_nanos(1);
        assert_eq!(wait_any(&[(&word, 5), (&other, 1)], past), WaitOutcome::TimedOut);
        assert_eq!(wake_all(&word), 0);
    }

    #[test]
    fn a_sleeper_is_woken_by_either_of_two_words() {
        for woken_index in 0..2 {
            let words = [AtomicU64::new(0), AtomicU64::new(0)];
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| {
                    let far = Instant::from_nanos(u64::MAX / 4);
                    while words[woken_index].load(Ordering::Acquire) == 0 {
                        wait_any(&[(&words[0], 0), (&words[1], 0)], far);
                    }
                });
                words[woken_index].store(1, Ordering::Release);
                while !sleeper.is_finished() {
                    wake_all(&words[woken_index]);
                    std::thread::yield_now();
                }
            });
        }
    }
}
