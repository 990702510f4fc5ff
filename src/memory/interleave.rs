//! Hooks for a simulation: a look in the middle of a write, and a record of wake-ups. Only with the
//! feature `planted`.
//!
//! A simulated world has one thread. Nothing can happen between two steps of one function unless
//! that function offers a place for it. Here a reader looks at a ring whose writer has just copied
//! a payload in, as a reader on another core could at any moment. A wake-up is recorded, because a
//! simulated sleeper does not sleep in the kernel.

use std::cell::RefCell;

use super::atomic::AtomicU64;
use super::reader::RingReader;
use super::writer::RingWriter;

type Look = Box<dyn FnMut(&RingReader)>;

std::thread_local! {
    static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
    static WOKEN: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
}

/// Calls `look` from now on in the middle of every write of this thread, with a reader of its ring.
/// Records wake-ups, too.
pub fn watch(look: impl FnMut(&RingReader) + 'static) {
    LOOK.with_borrow_mut(|slot| *slot = Some(Box::new(look)));
    WOKEN.with_borrow_mut(|slot| *slot = Some(Vec::new()));
}

/// Returns the addresses of the words that were woken since the last call.
pub fn take_woken() -> Vec<usize> {
    WOKEN.with_borrow_mut(|slot| slot.as_mut().map(std::mem::take).unwrap_or_default())
}

/// The name of a word, as in [`take_woken`].
pub fn name_of(word: &AtomicU64) -> usize {
    (&raw const *word).addr()
}

pub(super) fn in_write(writer: &RingWriter) {
    LOOK.with_borrow_mut(|slot| {
        if let Some(look) = slot {
            look(&writer.reader());
        }
    });
}

pub(super) fn note_woken(word: &AtomicU64) {
    WOKEN.with_borrow_mut(|slot| {
        if let Some(woken) = slot {
            woken.push(name_of(word));
        }
    });
}
