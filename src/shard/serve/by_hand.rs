//! Readers at the door without a connection: for the simulator, which has no sockets that carry
//! descriptors and no thread that buys memory.
//!
//! Everything but the connection is as at a real door: the relay, the control page, the reader's
//! own page and slot. The caller carries the two signals of a line: a knock, and its end.

use super::super::Shard;
use super::super::door::relay;
use super::door::Side;
use crate::base::{ExecutionId, Handle};
use crate::engine::{SubscribeError, SubscribeSpec, Subscribed};
use crate::memory::{ControlView, DeskView, DoorMemory, ReaderPage, RingReader};
use crate::reactor::{ConnectionId, Reactor};
use crate::shard::Shared;

/// The line of such a reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandLine {
    execution: ExecutionId,
    side: Side,
}

/// The memory that such a reader has mapped, and its line.
pub(crate) struct AtDoor {
    pub subscribed: Subscribed,
    pub shared: Shared,
    pub desk: DeskView,
    pub line: HandLine,
}

/// No reactor gives this name to a connection.
const NO_CONNECTION: ConnectionId = ConnectionId(Handle { index: u32::MAX, generation: 0 });

impl<R: Reactor + 'static> Shard<R> {
    /// Lets a reader in that has no connection. It has to knock once, as it has mapped its memory.
    ///
    /// # Errors
    /// [`SubscribeError`]; without a ring [`SubscribeError::NotYet`].
    ///
    /// # Panics
    /// If the system or the configured doors run out: a simulation has enough of both.
    pub(crate) fn read_by_hand(
        &mut self,
        id: ExecutionId,
        spec: SubscribeSpec,
    ) -> Result<AtDoor, SubscribeError> {
        const ENOUGH: &str = "there is memory and room for every reader of a simulation";
        let run = self.runs.get(id.slot.index as usize).and_then(Option::as_ref);
        let run = run.filter(|run| run.id == id).ok_or(SubscribeError::NotFound)?;
        if run.door.is_none() {
            let class = relay::class_for(&run.ring);
            let class_bytes = class.ok_or(SubscribeError::NotYet { next_seq: 1 })?;
            let memory = DoorMemory::buy(class_bytes).expect(ENOUGH);
            let place = self.place_at_door().expect(ENOUGH);
            self.open_relay(id, memory, place).expect(ENOUGH);
        }
        let granted = self.grant_by_hand(id, spec);
        self.close_idle_door(id.slot.index);
        granted
    }

    fn grant_by_hand(
        &mut self,
        id: ExecutionId,
        spec: SubscribeSpec,
    ) -> Result<AtDoor, SubscribeError> {
        let memory = self.share_with_reader(id).expect("it has a door");
        let subscribed = self.subscribe_at_door(id, spec)?;
        let seated = self.seat_reader(NO_CONNECTION, &subscribed, memory);
        let (grant, parcel) = seated.expect("there is a slot for every subscriber");
        let parcel = <[_; 3]>::try_from(parcel.into_vec());
        let [ring, control, page] = parcel.expect("a ring and two pages");
        let reader = RingReader::open(ring).expect("the ring is ours");
        let (control, desk) = ControlView::open(control, grant.slot).expect("the page is ours");
        let page = ReaderPage::open(page).expect("the page is ours");
        let shared = Shared { id, reader, control, page, anchor: self.anchor };
        let side = Side::Reader { subscriber: grant.subscriber, slot: grant.slot };
        Ok(AtDoor { subscribed, shared, desk, line: HandLine { execution: id, side } })
    }

    /// Hears a knock on such a line.
    pub(crate) fn hear_by_hand(&mut self, line: HandLine) {
        self.hear_knock(line.execution, line.side);
    }

    /// Ends such a line.
    pub(crate) fn lose_by_hand(&mut self, line: HandLine) {
        self.lose_line(line.execution, line.side);
        self.pump();
    }
}
