//! Requests at the door that wait for memory (`buyer.rs`).
//!
//! Memory that is being bought counts from the beginning, and has its place. Requests to read an
//! execution whose relay is being bought wait for the same memory. Nothing was promised: all
//! conditions are checked again when the memory is there.

use smallvec::SmallVec;

use crate::base::{ExecutionId, Principal};
use crate::endpoint::{ApiError, Produce, ReadDoor};
use crate::limits;
use crate::memory::{ControlFile, DoorMemory, ProducerRing};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::executions::refusal;
use crate::server::guests::ServedRun;
use crate::server::hub::connection::Doing;
use crate::server::peers::ToPeer;
use crate::server::shm::{Behind, Bought, Door, Place, lines, producer, relay};
use crate::server::{ServerShard, hub};
use crate::shard::CallError;
use crate::shard::growth::grow_whole;
use crate::shard::handle::Command;

/// Memory that is being bought, and the requests that wait for it.
pub(in crate::server) struct Purchase {
    number: u64,
    class_bytes: u32,
    wanted: Wanted,
    place: Place,
}

enum Wanted {
    /// A relay of this execution, for these requests.
    Relay { execution: ExecutionId, waiting: SmallVec<[(ConnectionId, ReadDoor); 1]> },
    /// A ring for a producer.
    Ring { connection: ConnectionId, produce: Box<Produce>, owner: Principal },
}

impl Purchase {
    /// Returns its size in bytes, including the pages that go with it.
    pub fn bytes(&self) -> u64 {
        u64::from(self.class_bytes) + limits::DOOR_PAGES_BYTES
    }
}
/// Makes a request to read wait, if its relay has to be bought first. Returns false if it need
/// not wait.
pub(in crate::server) fn awaits_relay<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    connection: ConnectionId,
    asked: &ReadDoor,
) -> Result<bool, ApiError> {
    let execution = asked.execution;
    let underway =
        shard.guests.doors.purchases.iter_mut().find_map(|purchase| match &mut purchase.wanted {
            Wanted::Relay { execution: its, waiting } if *its == execution => Some(waiting),
            _ => None,
        });
    if let Some(waiting) = underway {
        waiting.push((connection, asked.clone()));
        wait_at_door(shard, connection);
        return Ok(true);
    }
    grow_whole(shard, execution); // The relay stays as large as it is.
    let run = shard.run_of(execution).filter(|run| run.guest.door.is_none());
    let Some(class_bytes) = run.and_then(|run| relay::class_for(&run.ring)) else {
        return Ok(false);
    };
    let place = place_at_door(shard)?;
    relay::check_door_memory(shard, class_bytes, 0)?;
    let waiting = SmallVec::from_iter([(connection, asked.clone())]);
    let wanted = Wanted::Relay { execution, waiting };
    wait_at_door(shard, connection);
    purchase(shard, class_bytes, wanted, place, move || {
        Bought::Relay(DoorMemory::buy(class_bytes))
    });
    Ok(true)
}

/// Makes a request to produce wait until memory for its ring is there.
pub(in crate::server) fn await_ring<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    connection: ConnectionId,
    produce: Produce,
    owner: Principal,
) -> Result<(), ApiError> {
    let place = place_at_door(shard)?;
    let ring = shard.expected_ring(produce.ring_bytes, produce.chunk_bytes).map_err(refusal)?;
    let private_bytes = ring.slot_count * limits::RING_BYTES_PER_SLOT;
    let class_bytes = class_for_producer(private_bytes, produce.ring_bytes);
    relay::check_door_memory(shard, class_bytes, private_bytes)?;
    let anchor = shard.anchor;
    let wanted = Wanted::Ring { connection, produce: Box::new(produce), owner };
    wait_at_door(shard, connection);
    purchase(shard, class_bytes, wanted, place, move || {
        Bought::Ring(ProducerRing::create(class_bytes, anchor))
    });
    Ok(())
}

/// Returns the class of a producer's ring. It is that of the private ring, unless the largest
/// private ring is smaller than what was asked for.
fn class_for_producer(private_bytes: u32, ring_bytes: u32) -> u32 {
    if private_bytes < limits::RING_CLASS_BYTES_MAX {
        return private_bytes; // Enough, or all that the pressure allows.
    }
    let holds = |class_bytes: &u32| *class_bytes >= private_bytes.max(ring_bytes);
    limits::DOOR_RING_BYTES.into_iter().find(holds).unwrap_or(limits::DOOR_RING_BYTES_MAX)
}

pub(in crate::server) fn place_at_door<R: Reactor + 'static>(
    shard: &ServerShard<R>,
) -> Result<Place, ApiError> {
    let places = &shard.guests.doors.places;
    places.take().ok_or_else(|| relay::too_many(places.places_max()))
}

fn wait_at_door<R: Reactor + 'static>(shard: &mut ServerShard<R>, connection: ConnectionId) {
    let hub = &mut shard.guests.hub;
    let connection = hub.connection(connection).expect("its request is being answered");
    connection.doing = Doing::Elsewhere;
}

fn purchase<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    class_bytes: u32,
    wanted: Wanted,
    place: Place,
    buy: impl FnOnce() -> Bought + Send + 'static,
) {
    shard.guests.doors.purchase_count += 1;
    let number = shard.guests.doors.purchase_count;
    shard.guests.doors.purchases.push(Purchase { number, class_bytes, wanted, place });
    let mailbox = shard.mailbox();
    shard.guests.doors.places.buy(Box::new(move || {
        let bought = buy();
        let mut command = Command::Message(ToPeer::Bought(number, Box::new(bought)));
        while let Err((CallError::Busy, refused)) = mailbox.send(command) {
            command = refused;
            std::thread::sleep(limits::DOOR_LOOK_INTERVAL);
        }
    }));
}

/// Answers the requests that wait for this memory. `bought` may be an error.
pub(in crate::server) fn take_in_memory<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    number: u64,
    bought: Bought,
) {
    let mut purchases = shard.guests.doors.purchases.iter();
    let at = purchases.position(|purchase| purchase.number == number).expect("it was ordered");
    let Purchase { class_bytes, wanted, place, .. } = shard.guests.doors.purchases.swap_remove(at);
    match (wanted, bought) {
        (Wanted::Relay { execution, waiting }, Bought::Relay(memory)) => {
            let opened = memory
                .map_err(|error| relay::no_memory(class_bytes, &error))
                .and_then(|memory| open_relay(shard, execution, memory, place));
            for (connection, asked) in waiting {
                if is_awaited(shard, connection) {
                    let opened = opened.clone();
                    let granted =
                        opened.and_then(|()| lines::grant_reader(shard, connection, &asked));
                    answer_at_door(shard, connection, granted);
                }
            }
            relay::close_idle_door_of(shard, execution);
        }
        (Wanted::Ring { connection, produce, owner }, Bought::Ring(ring)) => {
            if is_awaited(shard, connection) {
                let granted =
                    ring.map_err(|error| relay::no_memory(class_bytes, &error)).and_then(|ring| {
                        lines::grant_producer(shard, connection, *produce, owner, (ring, place))
                    });
                answer_at_door(shard, connection, granted);
            }
        }
        _ => unreachable!("the memory is of the ordered kind"),
    }
}

/// Ends the waiting of a connection. Returns false if it is gone or does not wait.
fn is_awaited<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) -> bool {
    let connection = shard.guests.hub.connection(id);
    let connection = connection.filter(|found| matches!(found.doing, Doing::Elsewhere));
    connection.map(|found| found.doing = Doing::Requests).is_some()
}

fn answer_at_door<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    granted: Result<crate::server::shm::lines::Grant, ApiError>,
) {
    let is_draining = shard.guests.hub.is_draining();
    let is_answered = match granted {
        Ok(_) if is_draining => hub::answer_error(shard, id, &ApiError::shutting_down()),
        Ok(grant) => lines::begin_line(shard, id, grant),
        Err(error) => lines::refuse_at_door(shard, id, &error),
    };
    if is_answered.is_now() {
        shard.guests.hub.resume_later(id);
    }
}

/// Makes an execution shared through a relay in this memory, if that is still possible.
pub(in crate::server) fn open_relay<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    memory: DoorMemory,
    place: Place,
) -> Result<(), ApiError> {
    // The waiting requests find the reason themselves.
    let Some(index) = lines::index_of(shard, execution) else { return Ok(()) };
    producer::take_over_producer(shard, index);
    shard.ingest(index); // The reader may see more than the engine was told.
    shard.pump();
    let (anchor, looks) = (shard.anchor, lines::looks(shard));
    let has_attention = shard.watched.contains(&index);
    let class_bytes = memory.class_bytes();
    let run = shard.runs[index as usize].as_mut().filter(|run| run.id == execution);
    let has_place = |run: &&mut ServedRun| relay::class_for(&run.ring) == Some(class_bytes);
    // The waiting requests find the reason themselves.
    let Some(run) = run.filter(has_place) else { return Ok(()) };
    let anchor = run.ring_clocks().unwrap_or(anchor);
    let relay = relay::Relay::of(&run.ring, run.ingested_seq, anchor, memory, &mut shard.scratch);
    let no_memory = |error: std::io::Error| relay::no_memory(class_bytes, &error);
    let relay = relay.map_err(no_memory)?;
    let mut control = ControlFile::create().map_err(no_memory)?;
    shard.tell_page(index, has_attention, &mut control.page);
    let door = Box::new(Door::new(Behind::Relay(Box::new(relay)), control, looks, place));
    let run = shard.run_of_mut(execution).expect("it was just there");
    run.guest.door = Some(door);
    shard.counters.doors_opened += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_producers_ring_is_the_private_one_or_goes_beyond_the_largest() {
        for (private_bytes, ring_bytes, class_bytes) in [
            (4 << 10, 1, 4 << 10),
            (256 << 10, 8 << 20, 256 << 10), // Memory is short.
            (1 << 20, 300 << 10, 1 << 20),   // For its longest chunk.
            (1 << 20, 1 << 20, 1 << 20),
            (1 << 20, (1 << 20) + 1, 2 << 20),
            (1 << 20, 3 << 20, 4 << 20),
            (1 << 20, 8 << 20, 8 << 20),
            (1 << 20, u32::MAX, 8 << 20),
        ] {
            assert_eq!(class_for_producer(private_bytes, ring_bytes), class_bytes);
        }
    }
}
