//! The relay: a ring for other processes, filled from the private ring of its execution.
//!
//! It is of the next larger class, so it always holds what the private ring holds. That is true for
//! any padding and for any claim of the writer. Take two rings with data areas of D and of at least
//! 2 D bytes. The larger keeps at least 5/8 of its own area, and no chunk has more than D/4. The
//! gate that slows the private ring's writer therefore suffices for the relay, and no write to it
//! fails.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::base::{ExecutionId, Instant};
use crate::endpoint::ApiError;
use crate::limits;
use crate::memory::{ClockAnchor, DoorMemory, OpenError, ReadError, RingWriter, Start};
use crate::reactor::Reactor;
use crate::server::guests::{ServedRemote, ServedRun};
use crate::server::hub::Hub;
use crate::server::shm::{Behind, lines};
use crate::server::{ServerShard, shm};
use crate::shard::run::{Producer, Ring, Seat};
use crate::trace::Transport;
use crate::wire::http1::Status;

/// A relay. See the module's text.
pub(in crate::server) struct Relay {
    writer: RingWriter,
    read_only: OwnedFd,
}

/// The private ring has overwritten a chunk that was still to be copied.
pub(in crate::server) struct Overtaken;

impl Relay {
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    pub fn bytes(&self) -> u64 {
        self.writer.geometry().window_bytes() as u64
    }

    /// Wakes all readers that sleep on its head.
    pub fn wake(&self) {
        self.writer.wake();
    }

    /// Returns a relay in this memory, filled with the chunks through `until_seq` that the ring
    /// holds. The memory is of the class for this ring ([`class_for`]).
    pub fn of(
        ring: &Ring,
        until_seq: u64,
        anchor: ClockAnchor,
        memory: DoorMemory,
        scratch: &mut [u8],
    ) -> io::Result<Relay> {
        let class_bytes = memory.class_bytes();
        let mut memory = Some(memory);
        // A tool's thread may overwrite chunks while they are copied, but only those that the
        // engine was told of. It is told of none meanwhile, so the loop ends.
        loop {
            let start = start_of(ring);
            let memory = match memory.take() {
                Some(memory) => memory,
                None => DoorMemory::buy(class_bytes)?, // Only zeroed memory is shared.
            };
            let (writer, read_only) = memory.into_ring(anchor, &start).into_parts();
            let mut relay = Relay { writer, read_only };
            if relay.fill(ring, until_seq, scratch).is_ok() {
                return Ok(relay);
            }
        }
    }

    fn fill(&mut self, ring: &Ring, until_seq: u64, scratch: &mut [u8]) -> Result<(), Overtaken> {
        fill(&mut self.writer, ring, until_seq, scratch, |_| {})
    }

    /// Checks D1.
    pub fn audit(&self, run: &ServedRun) {
        audit(&self.writer, run);
    }
}

/// Copies the chunks through `until_seq` that `writer` does not have yet. Calls `tell` with the
/// time at which each was published.
pub(in crate::server) fn fill(
    writer: &mut RingWriter,
    ring: &Ring,
    until_seq: u64,
    scratch: &mut [u8],
    mut tell: impl FnMut(Instant),
) -> Result<(), Overtaken> {
    let tail_seq = match ring {
        Ring::None => return Ok(()),
        Ring::Here(private) | Ring::Back(private) => private.tail_seq(),
        Ring::Away(reader) => reader.tail_seq(),
    };
    for seq in writer.head_seq() + 1..=until_seq {
        let (descriptor, data) = match ring {
            Ring::Here(private) | Ring::Back(private) if private.is_held(seq) => private.chunk(seq),
            Ring::Away(reader) => match reader.read(seq, scratch) {
                Ok(descriptor) => (descriptor, &scratch[..descriptor.length as usize]),
                Err(ReadError::Overtaken { .. }) => return Err(Overtaken),
                Err(error) => panic!("chunk {seq} of our own ring: {error}"),
            },
            Ring::None | Ring::Here(_) | Ring::Back(_) => return Err(Overtaken),
        };
        let written = writer.write(descriptor.header, data, descriptor.published(), tail_seq);
        tell(descriptor.published());
        assert_eq!(written, Ok(seq)); // The relay holds all that the private ring holds.
    }
    Ok(())
}

/// Begins a copy anew, if its ring was begun anew behind chunks that it never had.
fn follow_skip(writer: &mut RingWriter, ring: &Ring) {
    let start = start_of(ring);
    if start.seq > writer.head_seq() + 1 {
        writer.skip_to(&start);
    }
}

/// Checks D1 for a copy.
pub(in crate::server) fn audit(writer: &RingWriter, run: &ServedRun) {
    writer.audit();
    assert_eq!(writer.head_seq(), run.ingested_seq);
    if let Ring::Here(private) | Ring::Back(private) = &run.ring {
        assert!(writer.tail_seq() <= private.tail_seq());
        let is_even = private.head_seq() == run.ingested_seq;
        assert!(!is_even || writer.total_bytes() == private.total_bytes());
    }
}

/// Returns the start of a copy that begins with the oldest chunk of this ring.
fn start_of(ring: &Ring) -> Start {
    let (seq, kinds) = match ring {
        Ring::None => return Start::default(),
        Ring::Here(writer) | Ring::Back(writer) => (writer.tail_seq(), *writer.tail_totals()),
        Ring::Away(reader) => loop {
            // The writer is in this process, and a write takes it only a moment.
            if let Some(tail) = reader.tail_totals() {
                break (tail.tail_seq, tail.kinds);
            }
            std::thread::yield_now();
        },
    };
    Start { seq, total_bytes: kinds.byte_count(), kinds }
}

/// Returns the class of the relay for this ring; `None` if the execution has no ring.
pub(in crate::server) fn class_for(ring: &Ring) -> Option<u32> {
    let private_bytes = match ring {
        Ring::None => return None,
        Ring::Here(writer) | Ring::Back(writer) => writer.geometry().window_bytes(),
        Ring::Away(reader) => reader.geometry().window_bytes(),
    };
    let mut classes = limits::DOOR_RING_BYTES.into_iter();
    classes.find(|class_bytes| *class_bytes as usize > private_bytes)
}

impl ServedRun {
    /// Copies the chunks through `until_seq` to other processes, before the engine is told of them.
    /// All chunks produced here reach other processes this way.
    pub(in crate::server) fn relay(&mut self, until_seq: u64, scratch: &mut [u8], hub: &mut Hub) {
        if let Some(door) = &mut self.guest.door
            && let Behind::Relay(relay) = &mut door.behind
        {
            if self.is_replica {
                follow_skip(&mut relay.writer, &self.ring);
            }
            let deliveries = hub.deliveries_mut();
            let is_elsewhere = |remote: &&ServedRemote| matches!(remote.seat, Seat::Process(_));
            // The times of a replica are those of another machine.
            let reader_count = match self.is_replica {
                true => 0,
                false => self.remotes.iter().filter(is_elsewhere).count() as u32,
            };
            let filled = fill(&mut relay.writer, &self.ring, until_seq, scratch, |published_at| {
                deliveries.note(published_at, Transport::Door, reader_count);
            });
            assert!(filled.is_ok()); // S2: no chunk is overwritten before the engine is told.
        }
        if let Some(named) = &mut self.guest.named {
            named.fill(&self.ring, until_seq, scratch);
        }
    }
}

/// Closes the door of an execution if nothing needs it. It is never used again: a later reader
/// gets a relay of what the private ring holds.
pub(in crate::server) fn close_idle_door<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) {
    if let Some(run) = &mut shard.runs[index as usize] {
        let has_ended = matches!(run.producer, Producer::Gone);
        run.guest.door.take_if(|door| door.is_idle(has_ended));
    }
}

/// Closes the door of this execution, if it is there and nothing needs its door.
pub(in crate::server) fn close_idle_door_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) {
    if let Some(index) = lines::index_of(shard, execution) {
        close_idle_door(shard, index);
    }
}

/// Checks that memory is left for one more ring of `class_bytes` and a private ring of
/// `private_bytes`. Memory of doors counts like that of rings, and the limit of the rings
/// applies to the sum.
pub(in crate::server) fn check_door_memory<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    class_bytes: u32,
    private_bytes: u32,
) -> Result<(), ApiError> {
    let bytes_max = shard.rings.bytes_max();
    let taken_bytes = shard.rings.usage().leased_bytes + shm::door_bytes(shard);
    let needed_bytes = u64::from(class_bytes) + u64::from(private_bytes) + limits::DOOR_PAGES_BYTES;
    if taken_bytes + needed_bytes <= bytes_max {
        return Ok(());
    }
    let pressure = shard.memory().pressure;
    let text = format!(
        "no room for a ring of {class_bytes} bytes that other processes share: {taken_bytes} \
         of {bytes_max} bytes are taken, memory pressure is {pressure}"
    );
    let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "memory_short", text);
    Err(error.limit(bytes_max).retry_after(limits::BUSY_RETRY_AFTER))
}

/// Returns the error for an execution that has no ring yet.
pub(in crate::server) fn queued() -> ApiError {
    let error =
        ApiError::new(Status::SERVICE_UNAVAILABLE, "queued", "the execution waits for a ring");
    error.retry_after(limits::BUSY_RETRY_AFTER)
}

/// Returns the error that all places are taken.
pub(in crate::server) fn too_many(places_max: u32) -> ApiError {
    let text = format!("other processes already share {places_max} executions, the limit");
    let error = ApiError::new(Status::TOO_MANY_REQUESTS, "too_many_doors", text);
    error.limit(places_max.into()).retry_after(limits::BUSY_RETRY_AFTER)
}

/// Returns the error that the kernel gave no shared memory or no descriptor.
pub(in crate::server) fn no_memory(class_bytes: u32, error: &io::Error) -> ApiError {
    let text = format!("no shared memory for a ring of {class_bytes} bytes: {error}");
    let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "no_shared_memory", text);
    error.retry_after(limits::BUSY_RETRY_AFTER)
}

/// Returns the text for memory that could not be sealed.
pub(in crate::server) fn not_sealed(error: &OpenError) -> String {
    format!("its memory could not be sealed: {error}")
}
