//! The memory of an execution that other processes share: its ring, its control page, and a desk
//! slot for each of their readers.
//!
//! An execution whose chunks are produced in this process keeps its private ring, which is later
//! leased to other executions. Its readers in other processes get a *relay* (`relay.rs`). That is a
//! ring of the next larger class, filled as the engine is told of chunks, and never leased again.
//!
//! An *outside producer* (`producer.rs`) is a producer in another process. Its chunks are copied
//! out of its ring into the private ring if they have readers in this process (`taking.rs`). Those
//! readers read only memory that the producer cannot change. Readers in other processes read the
//! producer's ring. The connections to all these processes: `lines.rs`.
//!
//! Reading order: [`Door`], [`ProcessSeat`]; `relay.rs`, `producer.rs`, `taking.rs`. Then
//! `places.rs` (the number of doors), `buyer.rs` (their memory), `reads.rs` (counts of reads) and
//! `watcher.rs` (deaths of producers).
//!
//! Invariants ([`Run::audit_door`], [`Shard::audit_doors`]):
//! - D1: a relay, or the ring of a named door, ends with the last chunk that the engine was told
//!   of. It holds every chunk up to there that the private ring holds.
//! - D2: a producer's ring and a page are not read before they are sealed, and no reader gets them
//!   before that.
//! - D3: the private ring holds chunks of the producer, with the same numbers, kinds, lengths and
//!   totals. While a reader in this process exists, it ends with the newest chunk that the engine
//!   was told of. It may hold fewer than the producer's ring, which can be larger.
//!   Chunks that were passed over are looked at before anybody here or a new reader needs them.
//! - D4: a signal slot stays taken as long as the connection of its reader exists.
//! - D5: an execution in the list of producers has a producer in another process that may write.

mod buyer;
#[cfg(any(test, fuzzing))]
pub(in crate::server) mod by_hand;
pub(in crate::server) mod lines;
mod named;
mod places;
mod producer;
pub(in crate::server) mod purchase;
mod reads;
pub(in crate::server) mod relay;
mod taking;
mod watcher;

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

pub(in crate::server) use lines::{
    end_line, has_lines_to_wake, hear_at_door, log_evicted, lose_line, produce_at_door,
    read_at_door, tell_end_at_door,
};
pub use named::NamedDoors;
pub(in crate::server) use named::{Named, close_lost_named, end_named, open_named};
pub use places::Doors;
pub(in crate::server) use places::Place;
pub(in crate::server) use producer::{
    OutsideProducer, can_sleep, let_producer_begin, rise, take_over_producers,
    take_over_urgent_producers,
};
pub(in crate::server) use purchase::take_in_memory;
use reads::Reads;
pub(in crate::server) use reads::{count_all_reads, count_last_reads};
use relay::Relay;
pub(in crate::server) use taking::{keep_for_reader, look_back};

use crate::engine::Subscribed;
use crate::limits;
use crate::memory::{
    ControlFile, DoorMemory, OpenError, ProducerRing, ReaderPageFile, ReaderPageView, RingReader,
    SignalSlot,
};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::ServerShard;
use crate::server::guests::{ServedRemote, ServedRun};
use crate::server::shm::purchase::Purchase;
use crate::shard::run::{Producer, Seat};

/// Connections whose processes sleep on them and have chunks to read. Each is sent one byte.
pub(in crate::server) type WakeList = Rc<RefCell<Vec<ConnectionId>>>;

/// The state that all doors of a shard share.
pub(in crate::server) struct DoorsHere {
    /// The limit of shared executions, common to all shards of the server.
    pub(in crate::server::shm) places: Doors,
    /// Executions whose chunks a producer in another process may write.
    pub(in crate::server::shm) producers: Vec<u32>,
    /// The folder and limit of named doors, if executions have them.
    pub(in crate::server::shm) named: Option<NamedDoors>,
    /// Memory that is being allocated.
    pub(in crate::server::shm) purchases: Vec<Purchase>,
    pub(in crate::server::shm) purchase_count: u64,
}

/// The allocated memory, or the reason for the failure.
pub enum Bought {
    Relay(io::Result<DoorMemory>),
    Ring(io::Result<ProducerRing>),
}

impl DoorsHere {
    pub fn new(places: Doors, named: Option<NamedDoors>) -> DoorsHere {
        let (producers, purchases) = (Vec::new(), Vec::new());
        DoorsHere { places, producers, named, purchases, purchase_count: 0 }
    }

    /// Returns whether a producer in another process may write chunks.
    #[inline]
    pub fn has_producers(&self) -> bool {
        !self.producers.is_empty()
    }

    /// True if executions have named doors.
    pub fn has_named(&self) -> bool {
        self.named.is_some()
    }

    /// Notes that no other process writes the chunks of this execution any more.
    pub fn forget_producer(&mut self, execution: u32) {
        self.producers.retain(|&producer| producer != execution);
    }
}

/// The memory of an execution that other processes share.
pub(in crate::server) struct Door {
    pub behind: Behind,
    pub control: ControlFile,
    /// A bit for each signal slot, set while it is taken.
    slots: u64,
    looks: WakeList,
    _place: Place,
}

/// The ring that other processes read.
pub(in crate::server) enum Behind {
    /// A relay, which this process writes.
    Relay(Box<Relay>),
    /// The ring of a producer in another process.
    OutsideProducer(Box<OutsideProducer>),
}

/// A reader in another process.
pub struct ProcessSeat {
    pub connection: ConnectionId,
    pub slot: SignalSlot,
    page: Page,
    reads: Reads,
    looks: WakeList,
}

/// The page of a reader in another process.
enum Page {
    /// The reader may not have mapped it yet, so it is not read. (D2)
    Handed {
        file: Option<ReaderPageFile>,
        cursor: u64,
    },
    Mapped(ReaderPageView),
}

const _: () = assert!(limits::DOOR_READERS_PER_EXECUTION_MAX <= u64::BITS);

impl Door {
    /// Returns a door in this place that has no readers yet.
    pub fn new(behind: Behind, control: ControlFile, looks: WakeList, place: Place) -> Door {
        Door { behind, control, slots: 0, looks, _place: place }
    }

    /// Returns the number of bytes of shared memory that it takes.
    fn bytes(&self) -> u64 {
        let ring_bytes = match &self.behind {
            Behind::Relay(relay) => relay.bytes(),
            Behind::OutsideProducer(producer) => producer.bytes(),
        };
        ring_bytes + limits::DOOR_PAGES_BYTES
    }

    /// Returns the ring of a producer in another process, once it may be read.
    pub fn producer_reader(&self) -> Option<&RingReader> {
        match &self.behind {
            Behind::Relay(_) => None,
            Behind::OutsideProducer(producer) => producer.reader(),
        }
    }

    /// Tells a producer that nothing more is taken, and wakes it.
    fn close_to_producer(&self) {
        self.control.page.close();
        self.control.page.wake_producer();
    }

    /// Returns the state of a producer in another process.
    pub fn producer(&mut self) -> Option<&mut OutsideProducer> {
        match &mut self.behind {
            Behind::Relay(_) => None,
            Behind::OutsideProducer(producer) => Some(producer),
        }
    }

    /// True if the ring is that of a producer in another process.
    pub fn is_for_producer(&self) -> bool {
        matches!(&self.behind, Behind::OutsideProducer(_))
    }

    /// True if a producer in another process may write.
    pub fn has_producer_begun(&self) -> bool {
        matches!(&self.behind, Behind::OutsideProducer(producer) if producer.has_begun)
    }

    /// Returns a descriptor of the ring for one more reader; `None` if no reader may have it yet.
    pub fn ring_descriptor(&self) -> Option<io::Result<OwnedFd>> {
        match &self.behind {
            Behind::Relay(relay) => Some(relay.descriptor().try_clone_to_owned()),
            Behind::OutsideProducer(producer) => Some(producer.descriptor()?.try_clone_to_owned()),
        }
    }

    /// Takes a free signal slot for a new reader and returns it with its number; `None` if all are
    /// taken.
    pub fn take_slot(&mut self) -> Option<(u32, SignalSlot)> {
        let slot = self.slots.trailing_ones();
        if slot >= limits::DOOR_READERS_PER_EXECUTION_MAX {
            return None;
        }
        self.slots |= 1 << slot;
        Some((slot, self.control.take_slot(slot)))
    }

    /// Frees the signal slot of a reader whose connection is closed. (D4)
    pub fn free_slot(&mut self, slot: u32) {
        assert!(self.slots & 1 << slot != 0);
        self.slots &= !(1 << slot);
    }

    /// True if nothing needs it any more. `has_ended` says that the execution produces nothing
    /// more.
    pub fn is_idle(&self, has_ended: bool) -> bool {
        let is_needed = match &self.behind {
            Behind::Relay(_) => false,
            Behind::OutsideProducer(producer) => !has_ended || !producer.is_gone,
        };
        self.slots == 0 && !is_needed
    }

    /// Returns a seat for a reader that is notified through this connection.
    pub fn seat(
        &self,
        connection: ConnectionId,
        slot: SignalSlot,
        file: ReaderPageFile,
        subscribed: &Subscribed,
    ) -> ProcessSeat {
        let page = Page::Handed { file: Some(file), cursor: subscribed.cursor.next_seq };
        let (reads, looks) = (Reads::new(subscribed), Rc::clone(&self.looks));
        ProcessSeat { connection, slot, page, reads, looks }
    }

    /// Wakes the sleeping readers of new chunks. The caller has executed one full fence before.
    pub fn wake_readers(&self, remotes: &mut [ServedRemote]) {
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
            Behind::OutsideProducer(producer) => {
                producer.reader().into_iter().for_each(RingReader::wake)
            }
        }
    }
}

impl ProcessSeat {
    /// Returns its page, or, as long as that may not be read, the first chunk of its subscription.
    pub fn page(&mut self) -> Result<&mut ReaderPageView, u64> {
        match &mut self.page {
            Page::Handed { cursor, .. } => Err(*cursor),
            Page::Mapped(view) => Ok(view),
        }
    }

    /// Returns the numbers of chunks and bytes that it reports as missed.
    pub fn missed(&self) -> (u64, u64) {
        match &self.page {
            Page::Handed { .. } => (0, 0),
            Page::Mapped(view) => view.missed(),
        }
    }

    /// Seals and opens its page when it first reports that it has mapped it. Returns `true` then.
    ///
    /// # Errors
    /// The page cannot be trusted: the reader has to be removed.
    pub fn take_mapped(&mut self) -> Result<bool, OpenError> {
        let Page::Handed { file, cursor } = &mut self.page else { return Ok(false) };
        let cursor = *cursor;
        let Some(file) = file.take() else { return Ok(false) }; // It is being removed.
        self.page = Page::Mapped(file.close(cursor)?);
        Ok(true)
    }

    /// True if it sleeps on its connection and was not woken yet.
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

    /// Wakes a reader whose signal slot was signalled. The caller has executed one full fence
    /// before.
    pub fn wake(&mut self) {
        if self.is_asleep() {
            self.slot.wake();
        }
        self.end_watch();
    }
}

impl ServedRun {
    pub(in crate::server) fn producer(&mut self) -> Option<&mut OutsideProducer> {
        self.guest.door.as_mut()?.producer()
    }

    /// Tells a producer that no chunk after those published by now is taken. Returns `false` if it
    /// has not begun and so has published nothing.
    pub fn must_await_producer(&mut self) -> bool {
        let ingested_seq = self.ingested_seq;
        let Some(door) = &mut self.guest.door else { return false };
        door.close_to_producer();
        let head_seq = door.producer_reader().map_or(0, RingReader::head_seq);
        let Some(producer) = door.producer().filter(|producer| producer.has_begun) else {
            return false;
        };
        // No ring holds more, whatever the producer claims.
        let held_max = u64::from(producer.ring.reader().geometry().slot_count());
        producer.shut_seq = head_seq.min(ingested_seq + held_max);
        producer.is_urgent = true;
        true
    }

    /// Tells a producer whose execution has ended that nothing more is taken. Returns its
    /// connection.
    pub fn dismiss_producer(&mut self) -> Option<ConnectionId> {
        let door = self.guest.door.as_mut()?;
        let connection = door.producer()?.connection;
        door.close_to_producer();
        Some(connection)
    }

    /// Tells a producer how many processes read its ring directly and have to be woken by it.
    fn count_direct_readers(&mut self) {
        let is_elsewhere = |remote: &&ServedRemote| matches!(remote.seat, Seat::Process(_));
        let count = self.remotes.iter().filter(is_elsewhere).count();
        if let Some(door) = &mut self.guest.door
            && door.producer().is_some()
        {
            door.control.page.set_direct_readers(count as u32);
        }
    }

    /// Checks D1 to D3. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit_door(&self) {
        if let Some(named) = &self.guest.named {
            named.audit(self); // D1
        }
        let Some(door) = &self.guest.door else { return };
        match &door.behind {
            Behind::Relay(relay) => relay.audit(self), // D1
            Behind::OutsideProducer(producer) => producer.audit(self), // D2, D3
        }
        let is_elsewhere = |remote: &&ServedRemote| matches!(remote.seat, Seat::Process(_));
        let reader_count = self.remotes.iter().filter(is_elsewhere).count();
        assert!(reader_count <= door.slots.count_ones() as usize); // D4
    }
}
/// Returns the bytes of shared memory that doors of this shard take, allocations under way
/// included.
pub(in crate::server) fn door_bytes<R: Reactor + 'static>(shard: &ServerShard<R>) -> u64 {
    let of = |run: &ServedRun| {
        run.guest.door.as_ref().map_or(0, |door| door.bytes())
            + run.guest.named.as_ref().map_or(0, |named| named.bytes())
    };
    let underway = shard.guests.doors.purchases.iter().map(Purchase::bytes);
    shard.runs.iter().flatten().map(of).chain(underway).sum()
}

/// Returns the number of this shard's executions that other processes share.
pub(in crate::server) fn door_count<R: Reactor + 'static>(shard: &ServerShard<R>) -> u64 {
    shard.runs.iter().flatten().filter(|run| run.guest.door.is_some()).count() as u64
}

/// Checks D5. For tests.
///
/// # Panics
/// If it does not hold.
pub(in crate::server) fn audit_doors<R: Reactor + 'static>(shard: &ServerShard<R>) {
    for index in &shard.guests.doors.producers {
        let run = shard.runs[*index as usize].as_ref().expect("D5");
        assert!(matches!(run.producer, Producer::Outside)); // D5
    }
}
