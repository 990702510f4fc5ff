//! What is taken of a guest's ring.
//!
//! As long as somebody here reads them, its chunks are copied into the private ring, each by a copy
//! that is checked afterwards: the execution is *mirrored*. When the private ring takes nothing,
//! nothing is taken, and the guest's gate stands. Otherwise chunks are only looked at: the engine
//! is told what they are, and their bytes stay where readers in other processes read them. Who
//! comes to read them here, and the end, has what the guest's ring holds by then copied first.

use smallvec::SmallVec;

use super::guest::Guest;
use crate::base::Instant;
use crate::engine::{ChunkFacts, Event, Gate, Kind};
use crate::limits;
use crate::memory::{Descriptor, Poll, ReadError, RingReader, RingWriter, Start, WriteError};
use crate::reactor::Reactor;
use crate::shard::Shard;
use crate::shard::run::{Producer, Ring, Run};
use crate::stream::KindTotals;

/// What was taken of a ring.
pub(super) enum Taken {
    /// All that is there.
    All,
    /// There is no room for the next chunk.
    NoRoom,
    /// There is more; others have their turn first.
    Enough,
}

/// How far a guest's ring was taken over.
#[derive(Default)]
pub(super) struct Progress {
    /// The private ring has everything that was taken over.
    pub is_mirrored: bool,
    /// Bytes of all chunks that were taken over.
    total_bytes: u64,
    /// When the newest of them came.
    came: Instant,
    /// The oldest chunk that it held.
    tail_seq: u64,
}

/// How much may be taken.
struct Bounds {
    gate: Gate,
    /// So many chunks at once.
    burst: usize,
    /// So many does the engine's log hold.
    slot_count: u32,
}

/// A rule of rings that a guest has broken.
pub(super) type Broken = &'static str;

const OVERWRITTEN: Broken = "a chunk was overwritten before it was taken";

/// Facts of some chunks.
type Facts = SmallVec<[ChunkFacts; limits::BURST_CHUNKS_MAX as usize]>;

/// The next chunk, if there is one; `total_bytes` are those of all before it.
#[inline]
fn next_chunk(
    from: &RingReader,
    seq: u64,
    total_bytes: u64,
) -> Result<Option<(Descriptor, Kind)>, Broken> {
    let descriptor = match from.poll(seq) {
        Poll::Ready(descriptor) => descriptor,
        Poll::Pending => return Ok(None),
        Poll::Overtaken { .. } => return Err(OVERWRITTEN),
        Poll::Gone => return Err("the ring became another one"),
        Poll::Corrupt => return Err("a chunk lies outside of the ring"),
    };
    let header = descriptor.header;
    let kind = Kind::new(header.kind).ok_or("a chunk is of a kind that there is not")?;
    if usize::from(header.key) >= limits::KEYS_MAX {
        return Err("a chunk has a key that there is not");
    }
    if Some(descriptor.total_bytes) != total_bytes.checked_add(u64::from(descriptor.length)) {
        return Err("a chunk counts bytes that there were not");
    }
    Ok(Some((descriptor, kind)))
}

/// Copies the next chunk of `from` into `to`, if there is one and room for it.
fn copy_chunk(
    from: &RingReader,
    to: &mut RingWriter,
    gate: &Gate,
    now: Instant,
) -> Result<Result<ChunkFacts, Taken>, Broken> {
    let next = next_chunk(from, to.head_seq() + 1, to.total_bytes())?;
    let Some((descriptor, kind)) = next else { return Ok(Err(Taken::All)) };
    let length = descriptor.length as usize;
    if !gate.admits(to.head_seq(), to.total_bytes(), length) {
        return Ok(Err(Taken::NoRoom));
    }
    let room = match to.lend(length, gate.gate_seq) {
        Ok(room) => room,
        Err(WriteError::Gated { .. }) => return Ok(Err(Taken::NoRoom)),
        Err(WriteError::TooLarge { .. }) => return Err("a chunk is longer than its ring takes"),
    };
    match from.copy(&descriptor, room) {
        Ok(()) => {}
        Err(ReadError::Overtaken { .. }) => return Err(OVERWRITTEN),
        Err(_) => return Err("a chunk changed while it was taken"),
    }
    let header = descriptor.header;
    to.publish(header, length, descriptor.published().min(now));
    let (length, key) = (descriptor.length, header.key);
    Ok(Ok(ChunkFacts { length, kind, key, tail_seq: to.tail_seq() }))
}

impl Progress {
    /// Looks at some chunks of `from` behind chunk `seq`, which the engine then is told of.
    fn look_at(
        &mut self,
        from: &RingReader,
        mut seq: u64,
        bounds: &Bounds,
        facts: &mut Facts,
    ) -> Result<Taken, Broken> {
        // Each number that comes from there is brought to where an honest one can be.
        let tail_seq = from.tail_seq();
        while facts.len() < bounds.burst {
            let next = next_chunk(from, seq + 1, self.total_bytes)?;
            let Some((descriptor, kind)) = next else { return Ok(Taken::All) };
            let Descriptor { length, header, .. } = descriptor;
            if !bounds.gate.admits(seq, self.total_bytes, length as usize) {
                return Ok(Taken::NoRoom);
            }
            seq += 1;
            let held_seq = (seq + 1).saturating_sub(u64::from(bounds.slot_count));
            self.tail_seq = tail_seq.clamp(self.tail_seq.max(1), seq).max(held_seq);
            self.total_bytes = descriptor.total_bytes;
            self.came = descriptor.published();
            facts.push(ChunkFacts { length, kind, key: header.key, tail_seq: self.tail_seq });
        }
        Ok(Taken::Enough)
    }
}

impl Run {
    /// Do some of its subscribers, of which there are so many, read its private ring?
    pub(super) fn has_readers_here(&self, subscriber_count: u32) -> bool {
        let elsewhere = self.remotes.iter().filter_map(|remote| remote.process_seat());
        self.named.is_some() || subscriber_count > elsewhere.count() as u32
    }

    /// Takes over some chunks of the guest's ring, as many as the engine takes at once.
    fn take_burst(
        &mut self,
        burst: usize,
        now: Instant,
        facts: &mut Facts,
    ) -> Result<Taken, Broken> {
        let (gate, seq) = (self.allowed(), self.ingested_seq);
        let Run { ring: Ring::Here(writer), door: Some(door), .. } = self else {
            return Ok(Taken::All);
        };
        let Some(Guest { taken, .. }) = door.guest() else { return Ok(Taken::All) };
        let mut progress = std::mem::take(taken);
        let result = match door.guest_reader() {
            None => Ok(Taken::All),
            Some(reader) if !progress.is_mirrored => {
                let slot_count = writer.geometry().slot_count();
                progress.look_at(reader, seq, &Bounds { gate, burst, slot_count }, facts)
            }
            Some(reader) => loop {
                if facts.len() == burst {
                    break Ok(Taken::Enough);
                }
                match copy_chunk(reader, writer, &gate, now) {
                    Ok(Ok(chunk)) => {
                        facts.push(chunk);
                        progress.total_bytes = writer.total_bytes();
                        progress.tail_seq = chunk.tail_seq;
                        progress.came = now;
                    }
                    Ok(Err(taken)) => break Ok(taken),
                    Err(rule) => break Err(rule),
                }
            },
        };
        if let Some(guest) = door.guest() {
            guest.taken = progress;
        }
        result
    }

    /// Copies what was only looked at, as far as the guest's ring holds it still. `before` says
    /// what came before a chunk.
    fn mirror(
        &mut self,
        now: Instant,
        before: impl Fn(u64) -> Option<KindTotals>,
    ) -> Result<(), Broken> {
        let until_seq = self.ingested_seq;
        let Run { ring: Ring::Here(writer), door: Some(door), .. } = self else { return Ok(()) };
        let Some(reader) = door.guest_reader() else { return Ok(()) };
        let mut result = Ok(());
        for _ in 0..MIRROR_ATTEMPTS_MAX {
            let tail_seq = reader.tail_seq().min(until_seq + 1);
            if tail_seq > writer.head_seq() + 1 {
                skip_to(writer, tail_seq, &before);
            }
            result = copy_through(reader, writer, until_seq, now);
            if result != Err(OVERWRITTEN) {
                break; // Nothing that is allowed to be overwritten was.
            }
        }
        if writer.head_seq() < until_seq {
            skip_to(writer, until_seq + 1, &before);
        }
        if let Some(guest) = door.guest() {
            guest.taken.is_mirrored = true;
        }
        if result == Err(OVERWRITTEN) { Ok(()) } else { result }
    }
}

/// A producer overwrites while it is copied: so often it is gone after the tail, at most.
const MIRROR_ATTEMPTS_MAX: u32 = 16;

fn skip_to(writer: &mut RingWriter, seq: u64, before: &impl Fn(u64) -> Option<KindTotals>) {
    let kinds = before(seq).unwrap_or_default();
    writer.skip_to(&Start { seq, total_bytes: kinds.byte_count(), kinds });
}

fn copy_through(
    from: &RingReader,
    to: &mut RingWriter,
    until_seq: u64,
    now: Instant,
) -> Result<(), Broken> {
    while to.head_seq() < until_seq {
        match copy_chunk(from, to, &Gate::OPEN, now)? {
            Ok(_) => {}
            Err(_) => return Err("a chunk is gone that was there"),
        }
    }
    Ok(())
}

impl<R: Reactor + 'static> Shard<R> {
    /// Takes over what a guest has published, and publishes its gate (S2).
    pub(super) fn ingest_guest(&mut self, index: u32) -> Result<Taken, Broken> {
        let ingested = |shard: &Self| shard.runs[index as usize].as_ref().map(|r| r.ingested_seq);
        let before = ingested(self);
        let taken = self.take_of_guest(index);
        if ingested(self) != before
            && let Some(run) = self.runs[index as usize].as_mut()
        {
            run.publish_gate();
        }
        taken
    }

    fn take_of_guest(&mut self, index: u32) -> Result<Taken, Broken> {
        self.choose_mirror(index)?;
        let (mut chunks, mut bytes) = (0, 0);
        loop {
            let run = self.runs[index as usize].as_mut();
            let Some(run) = run.filter(|run| matches!(run.producer, Producer::Guest)) else {
                return Ok(Taken::All);
            };
            let handle = run.handle;
            let burst = self.engine.burst_chunks(handle) as usize;
            let mut facts = SmallVec::new();
            let taken = run.take_burst(burst, self.now, &mut facts);
            if !facts.is_empty() {
                let came = run.guest().map_or(self.now, |guest| guest.taken.came);
                chunks += facts.len() as u32;
                bytes += facts.iter().map(|chunk| u64::from(chunk.length)).sum::<u64>();
                self.worked = true;
                self.ingest_written(index, &facts);
                if came < self.now {
                    self.engine.handle(Event::HeardAt(handle, came), self.now);
                }
            }
            let is_enough =
                chunks >= limits::GUEST_CHUNKS_PER_TURN || bytes >= limits::GUEST_BYTES_PER_TURN;
            match taken {
                // Its own chunks may have been in the way, which the engine knows of by now.
                Ok(Taken::NoRoom) if !facts.is_empty() && !is_enough => {}
                Ok(Taken::Enough) if !is_enough => {}
                taken => return taken,
            }
        }
    }

    /// From now on chunks are copied, or are not, as they are needed.
    fn choose_mirror(&mut self, index: u32) -> Result<(), Broken> {
        let Some(run) = self.runs[index as usize].as_mut() else { return Ok(()) };
        let is_needed = run.has_readers_here(self.engine.subscriber_count(run.handle));
        match run.guest() {
            Some(guest) if guest.taken.is_mirrored != is_needed => match is_needed {
                true => self.mirror_guest(index),
                false => {
                    guest.taken.is_mirrored = false;
                    Ok(())
                }
            },
            _ => Ok(()),
        }
    }

    fn mirror_guest(&mut self, index: u32) -> Result<(), Broken> {
        let Some(run) = self.runs[index as usize].as_mut() else { return Ok(()) };
        let (handle, engine) = (run.handle, &self.engine);
        let before = |seq| engine.totals_before(handle, seq);
        let result = run.mirror(self.now, before);
        if let Ring::Here(writer) = &run.ring {
            let tail_seq = writer.tail_seq();
            self.engine.handle(Event::HeldFrom(handle, tail_seq), self.now);
        }
        result
    }

    /// Somebody here comes to read an execution: what there is of it is copied.
    pub(in crate::shard) fn keep_for_reader(&mut self, index: u32) {
        let run = self.runs.get_mut(index as usize).and_then(Option::as_mut);
        let Some(run) = run.filter(|run| matches!(run.producer, Producer::Guest)) else { return };
        if run.guest().is_some_and(|guest| !guest.taken.is_mirrored)
            && let Err(rule) = self.mirror_guest(index)
        {
            self.refuse_guest(index, rule);
        }
    }

    /// A guest has ended: what there is of it is kept.
    pub(super) fn keep_of_guest(&mut self, index: u32) {
        let run = self.runs[index as usize].as_mut();
        if run.and_then(Run::guest).is_some_and(|guest| !guest.taken.is_mirrored) {
            let _ = self.mirror_guest(index); // What is wrong with it is not there afterwards.
        }
    }
}
