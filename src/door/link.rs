//! The link from a subscriber to a server in another process. Its state is in files that both have
//! mapped, and its signal is the life line.

use std::cell::Cell;

use super::connection::LifeLine;
use crate::base::Instant;
use crate::limits;
use crate::memory::atomic::AtomicU64;
use crate::memory::{LeaveReason, SignalView};
use crate::reactor::Clock;
use crate::shard::Flaw;
use crate::shard::delivery::exit_of_code;
use crate::shard::reader::link::{Link, LinkParts};
use crate::stream::Exit;

/// A [`Link`] to a server in another process, over shared memory and a life line.
pub struct DoorLink {
    pub(super) shared: LinkParts,
    pub(super) reader_signals: SignalView,
    pub(super) line: LifeLine,
    /// The file of the ring: its device and its inode. Each reader maps it for itself.
    pub(super) ring_file: (u64, u64),
    /// The flaw that was found. Nothing is delivered after it.
    pub(super) flaw: Cell<Option<Flaw>>,
}

impl Link for DoorLink {
    type Fault = Flaw;
    const IS_FOREIGN: bool = true;

    #[inline]
    fn shared(&self) -> &LinkParts {
        &self.shared
    }

    fn reads_like(&self, other: &DoorLink) -> bool {
        self.shared.id == other.shared.id && self.ring_file == other.ring_file
    }

    #[inline]
    fn epoch(&self) -> u64 {
        self.reader_signals.epoch()
    }

    fn epoch_word(&self) -> &AtomicU64 {
        self.reader_signals.epoch_word()
    }

    #[inline]
    fn detached(&self) -> u32 {
        self.reader_signals.detached()
    }

    #[inline]
    fn acked_seq(&self) -> u64 {
        0 // The cursor is the only position here.
    }

    fn fall_asleep(&self) {
        self.shared.page.set_asleep();
    }

    fn wake_up(&self) {
        self.shared.page.set_awake();
    }

    fn sleep_until(&self, deadline: Instant) -> Instant {
        (Clock::now() + limits::DOOR_SLEEP_MAX).min(deadline)
    }

    fn is_up(&self) -> bool {
        self.line.is_up()
    }

    fn ring(&self) {
        self.line.knock();
    }

    fn leave(&self, _how: LeaveReason) {
        if self.line.is_ours() {
            self.shared.page.set_left();
            self.line.knock();
        }
    }

    fn exit(&self) -> Option<Exit> {
        exit_of_code(self.shared.control.exit())
    }

    #[cold]
    fn fault(&self, flaw: Flaw) -> Flaw {
        self.flaw.set(Some(flaw));
        flaw
    }
}
