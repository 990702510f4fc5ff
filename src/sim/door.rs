//! Simulated readers at the door. Each has a page of its own and reads the relay of its execution,
//! or its producer's ring, as a process does. The lines of readers and producers carry knocks and
//! ends, which may be late.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::base::{ExecutionId, Instant};
use crate::engine::{SubscribeError, SubscribeSpec};
use crate::memory::atomic::AtomicU64;
use crate::memory::{LeaveReason, SignalView};
use crate::server::{AtDoor, HandLine};
use crate::shard::delivery::exit_of_code;
use crate::shard::reader::link::{Link, Shared};
use crate::shard::{Flaw, Subscriber};
use crate::sim::between::note_relay;
use crate::sim::expect::Held;
use crate::sim::model::ExecutionModel;
use crate::sim::run::Sim;
use crate::stream::Exit;

/// A signal on a line.
#[derive(Clone, Copy, Debug)]
enum Signal {
    Knock(HandLine),
    End(HandLine),
}

/// Signals of all lines on their way to the shard, oldest first. One thread uses them, behind a
/// mutex because the scene is.
#[derive(Clone, Default)]
pub(super) struct LifeLines(Arc<Mutex<Vec<Signal>>>);

impl LifeLines {
    pub fn knock(&self, line: HandLine) {
        self.lock().push(Signal::Knock(line));
    }

    pub fn end(&self, line: HandLine) {
        self.lock().push(Signal::End(line));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Signal>> {
        self.0.try_lock().expect("one thread, and nobody holds it across a call")
    }
}

/// The link of a reader at the door.
pub(super) struct DoorLink {
    shared: Shared,
    reader_signals: SignalView,
    line: HandLine,
    lines: LifeLines,
    has_left: Cell<bool>,
}

pub(super) type DoorReader = Subscriber<DoorLink>;

impl Link for DoorLink {
    type Fault = Flaw;
    const IS_FOREIGN: bool = true;

    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn epoch(&self) -> u64 {
        self.reader_signals.epoch()
    }

    fn epoch_word(&self) -> &AtomicU64 {
        self.reader_signals.epoch_word()
    }

    fn detached(&self) -> u32 {
        self.reader_signals.detached()
    }

    fn acked_seq(&self) -> u64 {
        0
    }

    fn fall_asleep(&self) {
        self.shared.page.set_asleep();
    }

    fn wake_up(&self) {
        self.shared.page.set_awake();
    }

    fn sleep_until(&self, deadline: Instant) -> Instant {
        deadline
    }

    fn is_up(&self) -> bool {
        true
    }

    fn ring(&self) {
        self.lines.knock(self.line);
    }

    fn leave(&self, _how: LeaveReason) {
        self.shared.page.set_left();
        if !self.has_left.replace(true) {
            self.lines.end(self.line);
        }
    }

    fn exit(&self) -> Option<Exit> {
        exit_of_code(self.shared.control.exit())
    }

    fn fault(&self, flaw: Flaw) -> Flaw {
        flaw
    }
}

/// The chunks of the execution that are in the ring which the subscriber reads. The ring may hold
/// older chunks than the shard promises. Behind the end it may hold some that the shard did not
/// take.
pub(super) fn held_for<L: Link>(subscriber: &Subscriber<L>, model: &ExecutionModel) -> Held {
    let ring = &subscriber.link().shared().reader;
    Held { tail_seq: ring.tail_seq(), head_seq: ring.head_seq().min(model.head_seq()) }
}

impl Sim {
    /// Grants a reader access at the door.
    pub fn read_at_door(
        &mut self,
        (execution, id): (usize, ExecutionId),
        spec: SubscribeSpec,
        headers_only: bool,
    ) -> Result<DoorReader, SubscribeError> {
        note_relay(execution);
        let spec = SubscribeSpec { ack_window: None, coalesce: None, ..spec };
        let AtDoor { subscribed, shared, reader_signals, line } =
            self.shard.read_by_hand(id, spec)?;
        let (lines, has_left) = (self.lines.clone(), Cell::new(false));
        let link = DoorLink { shared, reader_signals, line, lines, has_left };
        link.ring(); // It has mapped everything.
        let mut reader = Subscriber::of_link(link, &subscribed, None, self.now());
        reader.headers_only(headers_only);
        Ok(reader)
    }

    /// Delivers the signals on all lines to the shard, unless they are late.
    pub fn hear_lines(&mut self) {
        let has_faults = self.shared.lock().has_faults;
        if has_faults && self.random.chance(1, 4) {
            return;
        }
        let signals = std::mem::take(&mut *self.lines.lock());
        for signal in signals {
            match signal {
                Signal::Knock(line) => self.shard.hear_by_hand(line),
                Signal::End(line) => self.shard.lose_by_hand(line),
            }
        }
    }
}
