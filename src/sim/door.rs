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
use crate::shard::reader::link::{Link, LinkParts};
use crate::shard::{Flaw, Subscriber};
use crate::sim::SimShard;
use crate::sim::between::note_relay;
use crate::sim::expect::Held;
use crate::sim::model::ExecutionModel;
use crate::sim::world::SimWorld;
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

    /// Delivers the signals on all lines to the shard.
    pub fn deliver(&self, shard: &mut SimShard) {
        let signals = std::mem::take(&mut *self.lock());
        for signal in signals {
            match signal {
                Signal::Knock(line) => shard.hear_by_hand(line),
                Signal::End(line) => shard.lose_by_hand(line),
            }
        }
    }

    /// Grants a reader access at the door, with a line of its own.
    pub fn read(
        &self,
        shard: &mut SimShard,
        (execution, id): (usize, ExecutionId),
        spec: SubscribeSpec,
        world: &SimWorld,
    ) -> Result<DoorReader, SubscribeError> {
        note_relay(execution);
        let spec = SubscribeSpec { ack_window: None, coalesce: None, ..spec };
        let AtDoor { subscribed, shared, reader_signals, line } = shard.read_by_hand(id, spec)?;
        let (lines, has_left) = (self.clone(), Cell::new(false));
        let link = DoorLink { shared, reader_signals, line, lines, has_left };
        link.ring(); // It has mapped everything.
        Ok(Subscriber::of_link(link, &subscribed, None, world.now()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Signal>> {
        self.0.try_lock().expect("one thread, and nobody holds it across a call")
    }
}

/// The link of a reader at the door.
pub(super) struct DoorLink {
    shared: LinkParts,
    reader_signals: SignalView,
    line: HandLine,
    lines: LifeLines,
    has_left: Cell<bool>,
}

pub(super) type DoorReader = Subscriber<DoorLink>;

impl Link for DoorLink {
    type Fault = Flaw;
    const IS_FOREIGN: bool = true;

    fn shared(&self) -> &LinkParts {
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
