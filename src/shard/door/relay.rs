//! The relay: a ring for other processes, filled with what the private ring of its execution holds.
//!
//! It is of the next larger class, so that it always holds what the private ring holds, whatever
//! of its bytes is padding and however far ahead it claims: of two rings with a data area of D and
//! of at least 2 D bytes, the larger keeps at least 5/8 of its own, and no chunk has more than D/4.
//! So the gate that slows the private ring's writer is a gate for the relay, and writing into it
//! never fails.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::Behind;
use crate::base::Instant;
use crate::endpoint::ApiError;
use crate::limits;
use crate::memory::{
    ClockAnchor, ControlPage, DoorMemory, OpenError, ReadError, RingWriter, Start,
};
use crate::reactor::Reactor;
use crate::shard::Shard;
use crate::shard::run::{Producer, Remote, Ring, Run, Seat};
use crate::shard::serve::Serve;
use crate::trace::Transport;
use crate::wire::http1::Status;

/// See the module's text.
pub(in crate::shard) struct Relay {
    writer: RingWriter,
    read_only: OwnedFd,
}

/// The private ring has overwritten what was to be copied.
pub(super) struct Overtaken;

impl Relay {
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    pub fn bytes(&self) -> u64 {
        self.writer.geometry().window_bytes() as u64
    }

    /// Wakes everybody who sleeps on its head.
    pub fn wake(&self) {
        self.writer.wake();
    }

    /// A relay of what this ring holds of the chunks through `until_seq`, in this memory, which is
    /// of the ring's class for that.
    pub fn of(
        ring: &Ring,
        until_seq: u64,
        anchor: ClockAnchor,
        memory: DoorMemory,
        scratch: &mut [u8],
    ) -> io::Result<Relay> {
        let class_bytes = memory.class_bytes();
        let mut memory = Some(memory);
        // A tool's thread may overwrite what is copied; but not what the engine was not told of,
        // and it is not told meanwhile: this comes to an end.
        loop {
            let start = start_of(ring);
            let memory = match memory.take() {
                Some(memory) => memory,
                None => DoorMemory::buy(class_bytes)?, // Only what is zero is shared.
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
    pub fn audit(&self, run: &Run) {
        audit(&self.writer, run);
    }
}

/// Copies to `writer` what it has not of the chunks through `until_seq`, and tells when each was
/// published.
pub(super) fn fill(
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
        assert_eq!(written, Ok(seq)); // It holds what the private ring holds.
    }
    Ok(())
}

/// Checks D1 of a copy.
pub(super) fn audit(writer: &RingWriter, run: &Run) {
    writer.audit();
    assert_eq!(writer.head_seq(), run.ingested_seq);
    if let Ring::Here(private) | Ring::Back(private) = &run.ring {
        assert!(writer.tail_seq() <= private.tail_seq());
        let is_even = private.head_seq() == run.ingested_seq;
        assert!(!is_even || writer.total_bytes() == private.total_bytes());
    }
}

/// Where a ring starts that goes on with what this one holds.
fn start_of(ring: &Ring) -> Start {
    let (seq, kinds) = match ring {
        Ring::None => return Start::default(),
        Ring::Here(writer) | Ring::Back(writer) => (writer.tail_seq(), *writer.tail_totals()),
        Ring::Away(reader) => loop {
            // Its writer is in this process, and will not be in the middle of it for long.
            if let Some(tail) = reader.tail_totals() {
                break (tail.tail_seq, tail.kinds);
            }
            std::thread::yield_now();
        },
    };
    Start { seq, total_bytes: kinds.byte_count(), kinds }
}

/// Of which class the relay of this ring is; `None` if there is no ring.
pub(in crate::shard) fn class_for(ring: &Ring) -> Option<u32> {
    let private_bytes = match ring {
        Ring::None => return None,
        Ring::Here(writer) | Ring::Back(writer) => writer.geometry().window_bytes(),
        Ring::Away(reader) => reader.geometry().window_bytes(),
    };
    let mut classes = limits::DOOR_RING_BYTES.into_iter();
    classes.find(|class_bytes| *class_bytes as usize > private_bytes)
}

impl Run {
    /// Other processes are given the chunks through `until_seq`, which the engine is about to be
    /// told of. All that they have of chunks that were made here goes this way.
    #[inline]
    pub fn relay(&mut self, until_seq: u64, scratch: &mut [u8], serve: Option<&mut Serve>) {
        if self.door.is_some() || self.named.is_some() {
            self.hand_on(until_seq, scratch, serve);
        }
    }

    fn hand_on(&mut self, until_seq: u64, scratch: &mut [u8], serve: Option<&mut Serve>) {
        if let Some(door) = &mut self.door
            && let Behind::Relay(relay) = &mut door.behind
        {
            let mut deliveries = serve.map(|serve| &mut serve.deliveries);
            let is_elsewhere = |remote: &&Remote| matches!(remote.seat, Seat::Process(_));
            let reader_count = self.remotes.iter().filter(is_elsewhere).count() as u32;
            let filled = fill(&mut relay.writer, &self.ring, until_seq, scratch, |published_at| {
                if let Some(deliveries) = &mut deliveries {
                    deliveries.note(published_at, Transport::Door, reader_count);
                }
            });
            assert!(filled.is_ok()); // S2: nothing of it may be overwritten before it is told.
        }
        if let Some(named) = &mut self.named {
            named.fill(&self.ring, until_seq, scratch);
        }
    }

    /// What stands in the private control page, for one that others come to see now.
    pub fn copy_page(&self, page: &mut ControlPage, has_attention: bool) {
        let view = self.control.view();
        if let Some(chunk_count) = self.chunks_expected {
            page.set_chunks_expected(chunk_count);
        }
        if let Some(record) = view.progress() {
            page.set_progress(&record);
        }
        page.set_attention(has_attention);
        if let Some(record) = view.final_record() {
            page.set_exit(view.exit());
            page.finish(&record, view.error_text().as_str());
        }
    }
}

impl<R: Reactor + 'static> Shard<R> {
    /// If nobody needs what other processes had of this execution, it is closed, and never used
    /// again. Whoever comes later is given a relay of what the private ring holds.
    pub(in crate::shard) fn close_idle_door(&mut self, index: u32) {
        if let Some(run) = &mut self.runs[index as usize] {
            let has_ended = matches!(run.producer, Producer::Gone);
            run.door.take_if(|door| door.is_idle(has_ended));
        }
    }

    /// Is there memory for one more ring of `class_bytes`, and for a private one of
    /// `private_bytes`? What other processes have counts as the rings do, and both together have
    /// the bounds of the rings.
    pub(in crate::shard) fn check_door_memory(
        &self,
        class_bytes: u32,
        private_bytes: u32,
    ) -> Result<(), ApiError> {
        let bytes_max = self.rings.bytes_max();
        let taken_bytes = self.rings.usage().leased_bytes + self.door_bytes();
        let needed_bytes =
            u64::from(class_bytes) + u64::from(private_bytes) + limits::DOOR_PAGES_BYTES;
        if taken_bytes + needed_bytes <= bytes_max {
            return Ok(());
        }
        let pressure = self.memory().pressure;
        let text = format!(
            "no room for a ring of {class_bytes} bytes that other processes share: {taken_bytes} \
             of {bytes_max} bytes are taken, memory pressure is {pressure}"
        );
        let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "memory_short", text);
        Err(error.limit(bytes_max).retry_after(limits::BUSY_RETRY_AFTER))
    }
}

/// It has no ring.
pub(in crate::shard) fn queued() -> ApiError {
    let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "queued", "it waits for a ring");
    error.retry_after(limits::BUSY_RETRY_AFTER)
}

/// All places are taken.
pub(in crate::shard) fn too_many(places_max: u32) -> ApiError {
    let text = format!("other processes share {places_max} executions already, as many as may be");
    let error = ApiError::new(Status::TOO_MANY_REQUESTS, "too_many_doors", text);
    error.limit(places_max.into()).retry_after(limits::BUSY_RETRY_AFTER)
}

/// The kernel gives nothing: no space in its shared memory, or no descriptors.
pub(in crate::shard) fn no_memory(class_bytes: u32, error: &io::Error) -> ApiError {
    let text = format!("no shared memory for a ring of {class_bytes} bytes: {error}");
    let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "no_shared_memory", text);
    error.retry_after(limits::BUSY_RETRY_AFTER)
}

/// As [`no_memory`], of memory that is there and cannot be sealed.
pub(in crate::shard) fn not_sealed(error: &OpenError) -> String {
    format!("its memory could not be sealed: {error}")
}
