//! What other processes share of an execution: its ring, its control page, a desk slot for each of
//! their readers.
//!
//! An execution whose chunks come from here keeps its private ring, which is leased to others
//! later; its readers in other processes are given a *relay*, a ring of the next larger class that
//! is filled as the engine is told of chunks, and that nobody else ever gets (`relay.rs`). The
//! chunks of a *guest*, a producer in another process (`guest.rs`), are copied out of its ring into
//! the private one if somebody here reads them (`taking.rs`): whatever it writes, everybody here
//! reads honest memory, and its readers in other processes read where it writes. Connections to all
//! of them: `serve/door.rs`.
//!
//! Reading order: [`Door`], [`ProcessSeat`]; `relay.rs`, `guest.rs`, `taking.rs`; `places.rs` (how
//! many), `buyer.rs` (memory), `reads.rs` (how much) and `watcher.rs` (deaths).
//!
//! Invariants ([`Run::audit_door`], [`Shard::audit_doors`]):
//! - D1: a relay, or the ring of a named door, ends where the engine was told to, and holds
//!   everything that the private ring holds of that.
//! - D2: a guest's ring is not looked at before it is sealed, nor is a page; and nobody is given
//!   it before.
//! - D3: what the private ring holds are chunks of the guest, with the same numbers, kinds, lengths
//!   and totals; as long as somebody here reads, all that the engine was told of up to the newest.
//! - D4: a desk slot is taken as long as the connection is there of the reader that has it.
//! - D5: who stands in the list of guests is an execution that its producer may write.

mod buyer;
mod guest;
mod named;
mod places;
mod reads;
pub(super) mod relay;
mod taking;
mod watcher;

pub(super) use guest::Guest;
pub(super) use named::Named;
pub use named::NamedDoors;
pub use places::Doors;
pub(super) use places::Place;

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::Shard;
use super::run::{Producer, Remote, Run, Seat};
use super::serve::Purchase;
use crate::engine::Subscribed;
use crate::limits;
use crate::memory::{
    ControlFile, DeskSlot, DoorMemory, OpenError, ProducerRing, ReaderPageFile, ReaderPageView,
    RingReader,
};
use crate::reactor::{ConnectionId, Reactor};
use reads::Reads;
use relay::Relay;

/// Connections whose processes sleep on them and have to look: a byte is sent to each.
pub(super) type Looks = Rc<RefCell<Vec<ConnectionId>>>;

/// What a shard keeps for all of them.
pub(super) struct DoorsHere {
    /// How many executions other processes share, with the other shards of the server.
    pub places: Doors,
    /// Executions whose chunks another process writes, and may.
    pub guests: Vec<u32>,
    /// That executions can be read by name, too.
    pub named: Option<NamedDoors>,
    /// Memory that is being bought.
    pub purchases: Vec<Purchase>,
    pub purchase_count: u64,
}

/// Memory that was bought, or why it could not be.
pub(super) enum Bought {
    Relay(io::Result<DoorMemory>),
    Ring(io::Result<ProducerRing>),
}

impl DoorsHere {
    pub fn new(places: Doors, named: Option<NamedDoors>) -> DoorsHere {
        let (guests, purchases) = (Vec::new(), Vec::new());
        DoorsHere { places, guests, named, purchases, purchase_count: 0 }
    }
}

/// What other processes share of an execution.
pub(super) struct Door {
    pub behind: Behind,
    pub control: ControlFile,
    /// A bit for each desk slot.
    slots: u64,
    looks: Looks,
    _place: Place,
}

/// Whose ring it is.
pub(super) enum Behind {
    /// Ours.
    Relay(Box<Relay>),
    /// The producer's.
    Guest(Box<Guest>),
}

/// A reader in another process.
pub(super) struct ProcessSeat {
    pub connection: ConnectionId,
    pub slot: DeskSlot,
    page: Page,
    reads: Reads,
    looks: Looks,
}

/// The page of such a reader.
enum Page {
    /// It may not have mapped it yet: nobody looks at it. D2
    Handed {
        file: Option<ReaderPageFile>,
        cursor: u64,
    },
    Mapped(ReaderPageView),
}

const _: () = assert!(limits::DOOR_READERS_PER_EXECUTION_MAX <= u64::BITS);

impl Door {
    /// In this place, for readers that nobody has let in yet.
    pub fn new(behind: Behind, control: ControlFile, looks: Looks, place: Place) -> Door {
        Door { behind, control, slots: 0, looks, _place: place }
    }

    /// Bytes of shared memory that it takes.
    fn bytes(&self) -> u64 {
        let ring_bytes = match &self.behind {
            Behind::Relay(relay) => relay.bytes(),
            Behind::Guest(guest) => guest.bytes(),
        };
        ring_bytes + limits::DOOR_PAGES_BYTES
    }

    /// The ring of a producer in another process, once it can be looked at.
    pub fn guest_reader(&self) -> Option<&RingReader> {
        match &self.behind {
            Behind::Relay(_) => None,
            Behind::Guest(guest) => guest.reader(),
        }
    }

    /// Tells a producer that nothing more is taken, and wakes it.
    fn close_to_producer(&self) {
        self.control.page.close();
        self.control.page.wake_producer();
    }

    /// As [`Door::guest_reader`], what else is known of that producer.
    pub fn guest(&mut self) -> Option<&mut Guest> {
        match &mut self.behind {
            Behind::Relay(_) => None,
            Behind::Guest(guest) => Some(guest),
        }
    }

    /// True if the ring is that of a producer in another process.
    pub fn is_guests(&self) -> bool {
        matches!(&self.behind, Behind::Guest(_))
    }

    /// True if a producer in another process may write.
    pub fn has_guest_begun(&self) -> bool {
        matches!(&self.behind, Behind::Guest(guest) if guest.has_begun)
    }

    /// The descriptor of the ring, for one more reader; `None` if nobody may be given it yet.
    pub fn ring_descriptor(&self) -> Option<io::Result<OwnedFd>> {
        match &self.behind {
            Behind::Relay(relay) => Some(relay.descriptor().try_clone_to_owned()),
            Behind::Guest(guest) => Some(guest.descriptor()?.try_clone_to_owned()),
        }
    }

    /// A desk slot for a reader that comes now, and its number; `None` if all are taken.
    pub fn take_slot(&mut self) -> Option<(u32, DeskSlot)> {
        let slot = self.slots.trailing_ones();
        if slot >= limits::DOOR_READERS_PER_EXECUTION_MAX {
            return None;
        }
        self.slots |= 1 << slot;
        Some((slot, self.control.take_slot(slot)))
    }

    /// The connection of the reader that had it is gone. D4
    pub fn free_slot(&mut self, slot: u32) {
        assert!(self.slots & 1 << slot != 0);
        self.slots &= !(1 << slot);
    }

    /// Does nobody need it any more? `has_ended`: nothing more is produced.
    pub fn is_idle(&self, has_ended: bool) -> bool {
        let is_needed = match &self.behind {
            Behind::Relay(_) => false,
            Behind::Guest(guest) => !has_ended || !guest.is_gone,
        };
        self.slots == 0 && !is_needed
    }

    /// A seat for a reader that is told through this connection.
    pub fn seat(
        &self,
        connection: ConnectionId,
        slot: DeskSlot,
        file: ReaderPageFile,
        subscribed: &Subscribed,
    ) -> ProcessSeat {
        let page = Page::Handed { file: Some(file), cursor: subscribed.cursor.next_seq };
        let (reads, looks) = (Reads::new(subscribed), Rc::clone(&self.looks));
        ProcessSeat { connection, slot, page, reads, looks }
    }

    /// There are chunks: wakes those of its readers that sleep. To be called after one full fence.
    pub fn wake_readers(&self, remotes: &mut [Remote]) {
        let mut is_any_asleep = false;
        for remote in remotes {
            if let Seat::Process(seat) = &mut remote.seat {
                is_any_asleep |= seat.is_asleep();
                seat.end_watch();
            }
        }
        match &self.behind {
            _ if !is_any_asleep => {}
            Behind::Relay(relay) => relay.wake(),
            Behind::Guest(guest) => guest.reader().into_iter().for_each(RingReader::wake),
        }
    }
}

impl ProcessSeat {
    /// Its page, or, while that is not to be looked at, where it stands: at its beginning.
    pub fn page(&mut self) -> Result<&mut ReaderPageView, u64> {
        match &mut self.page {
            Page::Handed { cursor, .. } => Err(*cursor),
            Page::Mapped(view) => Ok(view),
        }
    }

    /// What it says that it missed.
    pub fn missed(&self) -> (u64, u64) {
        match &self.page {
            Page::Handed { .. } => (0, 0),
            Page::Mapped(view) => view.missed(),
        }
    }

    /// It has mapped its page, if it says so for the first time: `true`.
    ///
    /// # Errors
    /// It cannot be believed: it has to go.
    pub fn take_mapped(&mut self) -> Result<bool, OpenError> {
        let Page::Handed { file, cursor } = &mut self.page else { return Ok(false) };
        let cursor = *cursor;
        let Some(file) = file.take() else { return Ok(false) }; // It is on its way out.
        self.page = Page::Mapped(file.close(cursor)?);
        Ok(true)
    }

    /// Does it sleep on its connection, and was not woken yet?
    pub fn has_watch(&self) -> bool {
        matches!(&self.page, Page::Mapped(view) if view.has_watch())
    }

    fn is_asleep(&self) -> bool {
        matches!(&self.page, Page::Mapped(view) if view.is_asleep())
    }

    /// Ends its sleep on its connection, if it sleeps there.
    fn end_watch(&mut self) {
        if let Page::Mapped(view) = &mut self.page
            && view.take_watch()
        {
            self.looks.borrow_mut().push(self.connection);
        }
    }

    /// It was knocked for: ends its sleep. To be called after one full fence.
    pub fn wake(&mut self) {
        if self.is_asleep() {
            self.slot.wake();
        }
        self.end_watch();
    }
}

impl Run {
    /// Checks D1 to D3. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit_door(&self) {
        if let Some(named) = &self.named {
            named.audit(self); // D1
        }
        let Some(door) = &self.door else { return };
        match &door.behind {
            Behind::Relay(relay) => relay.audit(self), // D1
            Behind::Guest(guest) => guest.audit(self), // D2, D3
        }
        let is_elsewhere = |remote: &&Remote| matches!(remote.seat, Seat::Process(_));
        let reader_count = self.remotes.iter().filter(is_elsewhere).count();
        assert!(reader_count <= door.slots.count_ones() as usize); // D4
    }
}

impl<R: Reactor + 'static> Shard<R> {
    /// Bytes of shared memory that other processes have of this shard, or that are being bought.
    pub(super) fn door_bytes(&self) -> u64 {
        let of = |run: &Run| {
            run.door.as_ref().map_or(0, |door| door.bytes())
                + run.named.as_ref().map_or(0, |named| named.bytes())
        };
        let underway = self.doors.purchases.iter().map(Purchase::bytes);
        self.runs.iter().flatten().map(of).chain(underway).sum()
    }

    /// Executions of this shard that other processes share.
    pub(super) fn door_count(&self) -> u64 {
        self.runs.iter().flatten().filter(|run| run.door.is_some()).count() as u64
    }

    /// Checks D5. For tests.
    ///
    /// # Panics
    /// If it does not hold.
    pub(super) fn audit_doors(&self) {
        for index in &self.doors.guests {
            let run = self.runs[*index as usize].as_ref().expect("D5");
            assert!(matches!(run.producer, Producer::Guest)); // D5
        }
    }
}
