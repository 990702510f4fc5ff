//! Readers and producers at the door without a connection. They are for the simulator, which has no
//! sockets that carry descriptors and no thread that buys memory.
//!
//! Everything but the connection is as at a real door: the relay, the producer's ring, the control
//! page, the page and the slot of each. The caller carries the two signals of a line: a knock, and
//! its end.

use std::os::fd::OwnedFd;

use crate::base::{ExecutionId, Handle};
use crate::engine::{SubscribeError, SubscribeSpec, Subscribed};
use crate::memory::{
    ClockAnchor, ControlView, DoorMemory, ProducerRing, ReaderPage, RingReader, SignalView,
};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::ServerShard;
use crate::server::shm::lines::{Descriptors, Side, of_producer};
use crate::server::shm::{lines, purchase, relay};
use crate::shard::growth::grow_whole;
use crate::shard::reader::link::LinkParts;
use crate::shard::{ExecuteError, ExecuteOptions};

/// The line of such a reader or producer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandLine {
    execution: ExecutionId,
    side: Side,
}

/// The memory that such a reader has mapped, and its line.
pub(crate) struct AtDoor {
    pub subscribed: Subscribed,
    pub shared: LinkParts,
    pub reader_signals: SignalView,
    pub line: HandLine,
}

/// The memory that such a producer maps (its ring, the control page, its own page), and its line.
pub(crate) struct ProducerAtDoor {
    pub memory: [OwnedFd; 3],
    pub line: HandLine,
}

/// The panic message if the system lacks something. A simulation never runs short.
const ENOUGH: &str = "a simulation has enough memory and places";

/// A connection id that no reactor assigns.
const NO_CONNECTION: ConnectionId = ConnectionId(Handle { index: u32::MAX, generation: 0 });
impl<R: Reactor + 'static> ServerShard<R> {
    /// Attaches a reader that has no connection. The caller has to knock once, as after mapping
    /// memory.
    ///
    /// # Errors
    /// [`SubscribeError`]. [`SubscribeError::NotYet`] if the execution has no ring.
    ///
    /// # Panics
    /// If the system runs out of memory, or all configured places are in use.
    pub(crate) fn read_by_hand(
        &mut self,
        id: ExecutionId,
        spec: SubscribeSpec,
    ) -> Result<AtDoor, SubscribeError> {
        grow_whole(self, id);
        let run = self.run_of(id).ok_or(SubscribeError::NotFound)?;
        if run.guest.door.is_none() {
            let class = relay::class_for(&run.ring);
            let class_bytes = class.ok_or(SubscribeError::NotYet { next_seq: 1 })?;
            let memory = DoorMemory::buy(class_bytes).expect(ENOUGH);
            let place = purchase::place_at_door(self).expect(ENOUGH);
            purchase::open_relay(self, id, memory, place).expect(ENOUGH);
        }
        let granted = grant_by_hand(self, id, spec);
        relay::close_idle_door_of(self, id);
        granted
    }

    /// Opens an execution for a producer that has no connection, with a ring of `class_bytes`. The
    /// caller has to knock once, as after mapping memory. `None` if the execution has ended at
    /// once.
    ///
    /// # Errors
    /// [`ExecuteError`].
    ///
    /// # Panics
    /// See [`Shard::read_by_hand`].
    pub(crate) fn produce_by_hand(
        &mut self,
        class_bytes: u32,
        options: ExecuteOptions,
    ) -> Result<(ExecutionId, Option<ProducerAtDoor>), ExecuteError> {
        let ring = ProducerRing::create(class_bytes, self.anchor).expect(ENOUGH);
        let place = purchase::place_at_door(self).expect(ENOUGH);
        let (door, descriptors) =
            lines::door_of_producer(self, NO_CONNECTION, ring, place).expect(ENOUGH);
        let prepared = of_producer("by hand", class_bytes, None);
        let execution = lines::open_for_producer(self, prepared, options, door)?;
        let line = HandLine { execution, side: Side::OutsideProducer };
        let has_door = self.run_mut(execution.slot).guest.door.is_some();
        Ok((execution, has_door.then(|| ProducerAtDoor { memory: three(descriptors), line })))
    }

    /// True if the producer on this line was told to begin.
    pub(crate) fn has_begun_by_hand(&mut self, line: HandLine) -> bool {
        let run = self.runs[line.execution.slot.index as usize].as_mut();
        let run = run.filter(|run| run.id == line.execution);
        let producer = run.and_then(|run| run.guest.door.as_mut()?.producer());
        producer.is_some_and(|producer| producer.has_begun)
    }

    /// True if chunks of the producer on this line were passed over and not looked at since.
    pub(crate) fn has_passed_by_hand(&mut self, line: HandLine) -> bool {
        let run = self.runs[line.execution.slot.index as usize].as_mut();
        let run = run.filter(|run| run.id == line.execution);
        let producer = run.and_then(|run| run.guest.door.as_mut()?.producer());
        producer.is_some_and(|producer| producer.taken.has_passed)
    }

    /// Handles a knock on such a line.
    pub(crate) fn hear_by_hand(&mut self, line: HandLine) {
        lines::hear_knock(self, line.execution, line.side);
    }

    /// Ends such a line.
    pub(crate) fn lose_by_hand(&mut self, line: HandLine) {
        lines::lose_line(self, line.execution, line.side);
        self.pump();
    }
}

fn grant_by_hand<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    spec: SubscribeSpec,
) -> Result<AtDoor, SubscribeError> {
    // The execution has a door now. Before a producer has mapped its ring, nothing can be
    // shared.
    let memory = lines::share_with_reader(shard, id);
    let memory = memory.map_err(|_| SubscribeError::NotYet { next_seq: 1 })?;
    let subscribed = lines::subscribe_at_door(shard, id, spec)?;
    let seated = lines::seat_reader(shard, NO_CONNECTION, &subscribed, memory);
    let (grant, descriptors) = seated.expect("every subscriber has a slot");
    let [ring, control, page] = three(descriptors);
    let reader = RingReader::open(ring).expect("the ring is ours");
    let (control, reader_signals) =
        ControlView::open(control, grant.slot).expect("the page is ours");
    let page = ReaderPage::open(page).expect("the page is ours");
    let anchor = ClockAnchor { wall_us: grant.wall_us, mono_ns: grant.mono_ns };
    let shared = LinkParts { id, reader, control, page, anchor };
    let side = Side::Reader { subscriber: grant.subscriber, slot: grant.slot };
    Ok(AtDoor { subscribed, shared, reader_signals, line: HandLine { execution: id, side } })
}

fn three(descriptors: Descriptors) -> [OwnedFd; 3] {
    <[_; 3]>::try_from(descriptors.into_vec()).expect("a ring and two pages")
}
