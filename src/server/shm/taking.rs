//! The transfer of chunks from a producer's ring.
//!
//! While a producer's chunks have readers in this process, the execution is *mirrored*. Its chunks
//! are then copied into the private ring, and each copy is checked afterwards. If the private ring
//! has no room, nothing is taken, and the producer's gate stays.
//!
//! Otherwise chunks are only examined: the engine is told of them, and their bytes stay where
//! readers in other processes read them. When a reader comes in this process, and at the end, what
//! the producer's ring still holds is copied first.

use smallvec::SmallVec;

use crate::base::Instant;
use crate::engine::{ChunkFacts, Event, Gate, Log};
use crate::limits;
use crate::memory::{Descriptor, Poll, ReadError, RingReader, RingWriter, Start, WriteError};
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::guests::{Served, ServedRun};
use crate::server::shm::producer;
use crate::server::shm::producer::OutsideProducer;
use crate::shard::run::{Producer, Ring};
use crate::stream::{Kind, KindTotals};

/// The reason why no more chunks were taken.
pub(in crate::server) enum Taken {
    /// No more are published.
    All,
    /// The next chunk has no room.
    NoRoom,
    /// More are published, but other work of the shard comes first.
    Enough,
}

/// The progress of taking over a producer's ring.
#[derive(Default)]
pub(in crate::server) struct Progress {
    /// True if every taken chunk is copied into the private ring.
    pub is_mirrored: bool,
    /// Bytes of all chunks that were taken over.
    total_bytes: u64,
    /// The time at which the newest of them came.
    came: Instant,
    /// The oldest chunk that the ring held.
    tail_seq: u64,
}

/// The limits of one transfer.
struct Bounds {
    gate: Gate,
    /// Number of chunks that may be taken at once.
    burst: usize,
    /// Number of chunks that the engine's log holds.
    slot_count: u32,
}

/// The rule of rings that a producer has broken.
pub(in crate::server) type Broken = &'static str;

const OVERWRITTEN: Broken = "a chunk was overwritten before it was taken";

/// The facts of some chunks, for the engine.
type Facts = SmallVec<[ChunkFacts; limits::BURST_CHUNKS_MAX as usize]>;

/// Returns the next chunk, if it is published. `total_bytes` is the sum of all chunks before it.
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
        Poll::Gone => return Err("the ring was replaced"),
        Poll::Corrupt => return Err("a chunk lies outside of the ring"),
    };
    let header = descriptor.header;
    let kind = Kind::new(header.kind).ok_or("a chunk has an unknown kind")?;
    if usize::from(header.key) >= limits::KEYS_MAX {
        return Err("a chunk has an unknown key");
    }
    if Some(descriptor.total_bytes) != total_bytes.checked_add(u64::from(descriptor.length)) {
        return Err("a chunk has a wrong total of bytes");
    }
    Ok(Some((descriptor, kind)))
}

/// Copies the next chunk of `from` into `to`, if it is published and has room.
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
        Err(WriteError::TooLarge { .. }) => return Err("a chunk is too long for its ring"),
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
    /// Examines chunks of `from` after chunk `seq` and collects their facts for the engine.
    fn look_at(
        &mut self,
        from: &RingReader,
        mut seq: u64,
        bounds: &Bounds,
        facts: &mut Facts,
    ) -> Result<Taken, Broken> {
        // Each number from the ring is clamped to the range that is possible for a correct
        // producer.
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

impl ServedRun {
    /// True if at least one of its `subscriber_count` subscribers reads the private ring, or if it
    /// has a named door.
    pub(in crate::server) fn has_readers_here(&self, subscriber_count: u32) -> bool {
        let elsewhere = self.remotes.iter().filter_map(|remote| remote.process_seat());
        self.guest.named.is_some() || subscriber_count > elsewhere.count() as u32
    }

    /// Takes over at most `burst` chunks of the producer's ring.
    fn take_burst(
        &mut self,
        burst: usize,
        now: Instant,
        facts: &mut Facts,
    ) -> Result<Taken, Broken> {
        let (gate, seq) = (self.allowed(), self.ingested_seq);
        let ServedRun { ring: Ring::Here(writer), guest: Served { door: Some(door), .. }, .. } =
            self
        else {
            return Ok(Taken::All);
        };
        let Some(OutsideProducer { taken, .. }) = door.producer() else { return Ok(Taken::All) };
        let mut progress = std::mem::take(taken);
        let result = match door.producer_reader() {
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
        if let Some(producer) = door.producer() {
            producer.taken = progress;
        }
        result
    }

    /// Copies the chunks that were only examined, as far as the producer's ring still holds them
    /// and the private ring can. `log` is the engine's, and `before` returns the totals before a
    /// chunk.
    fn mirror(
        &mut self,
        now: Instant,
        log: &impl Log,
        before: impl Fn(u64) -> Option<KindTotals>,
    ) -> Result<(), Broken> {
        let until_seq = self.ingested_seq;
        let ServedRun { ring: Ring::Here(writer), guest: Served { door: Some(door), .. }, .. } =
            self
        else {
            return Ok(());
        };
        let Some(reader) = door.producer_reader() else { return Ok(()) };
        let from_seq = first_that_fits(writer, log);
        let mut result = Ok(());
        for _ in 0..MIRROR_ATTEMPTS_MAX {
            let tail_seq = reader.tail_seq().max(from_seq).min(until_seq + 1);
            if tail_seq > writer.head_seq() + 1 {
                skip_to(writer, tail_seq, &before);
            }
            result = copy_through(reader, writer, until_seq, now);
            if result != Err(OVERWRITTEN) {
                break; // No chunk that may be overwritten was.
            }
        }
        if writer.head_seq() < until_seq {
            skip_to(writer, until_seq + 1, &before);
        }
        if let Some(producer) = door.producer() {
            producer.taken.is_mirrored = true;
        }
        if result == Err(OVERWRITTEN) { Ok(()) } else { result }
    }
}

/// The limit of attempts to copy from the tail, which the producer overwrites meanwhile.
const MIRROR_ATTEMPTS_MAX: u32 = 16;

/// Returns the first of the newest chunks of this log that can be in the ring together. A producer
/// may have a larger ring than that.
fn first_that_fits(writer: &RingWriter, log: &impl Log) -> u64 {
    let (mut seq, mut bytes) = (log.head_seq() + 1, 0);
    while seq > log.tail_seq() {
        bytes += u64::from(log.meta(seq - 1).length) + limits::CHUNK_HEADER_BYTES;
        if bytes > u64::from(writer.geometry().data_bytes()) {
            break;
        }
        seq -= 1;
    }
    seq
}

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
            Err(_) => return Err("a published chunk has disappeared"),
        }
    }
    Ok(())
}
/// Takes over what a producer has published, and publishes its gate (S2).
pub(in crate::server) fn ingest_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) -> Result<Taken, Broken> {
    let ingested =
        |shard: &ServerShard<R>| shard.runs[index as usize].as_ref().map(|r| r.ingested_seq);
    let before = ingested(shard);
    let taken = take_of_producer(shard, index);
    if ingested(shard) != before
        && let Some(run) = shard.runs[index as usize].as_mut()
    {
        run.publish_gate();
    }
    taken
}

fn take_of_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) -> Result<Taken, Broken> {
    choose_mirror(shard, index)?;
    let (mut chunks, mut bytes) = (0, 0);
    loop {
        let run = shard.runs[index as usize].as_mut();
        let Some(run) = run.filter(|run| matches!(run.producer, Producer::Outside)) else {
            return Ok(Taken::All);
        };
        let handle = run.handle;
        let burst = shard.engine.burst_chunks(handle) as usize;
        let mut facts = SmallVec::new();
        let taken = run.take_burst(burst, shard.now, &mut facts);
        if !facts.is_empty() {
            let came = run.producer().map_or(shard.now, |producer| producer.taken.came);
            chunks += facts.len() as u32;
            bytes += facts.iter().map(|chunk| u64::from(chunk.length)).sum::<u64>();
            shard.worked = true;
            shard.ingest_written(index, &facts);
            if came < shard.now {
                shard.engine.handle(Event::ActiveAt(handle, came), shard.now);
            }
        }
        let is_enough =
            chunks >= limits::GUEST_CHUNKS_PER_TURN || bytes >= limits::GUEST_BYTES_PER_TURN;
        match taken {
            // The producer's own chunks may have filled the ring. The engine has been told of them
            // now.
            Ok(Taken::NoRoom) if !facts.is_empty() && !is_enough => {}
            Ok(Taken::Enough) if !is_enough => {}
            taken => return taken,
        }
    }
}

/// Starts or stops the copying of chunks, depending on whether this process has readers.
fn choose_mirror<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) -> Result<(), Broken> {
    let Some(run) = shard.runs[index as usize].as_mut() else { return Ok(()) };
    let is_needed = run.has_readers_here(shard.engine.subscriber_count(run.handle));
    match run.producer() {
        Some(producer) if producer.taken.is_mirrored != is_needed => match is_needed {
            true => mirror_producer(shard, index),
            false => {
                producer.taken.is_mirrored = false;
                Ok(())
            }
        },
        _ => Ok(()),
    }
}

fn mirror_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) -> Result<(), Broken> {
    let Some(run) = shard.runs[index as usize].as_mut() else { return Ok(()) };
    let (handle, engine) = (run.handle, &shard.engine);
    let Some(log) = engine.log(handle) else { return Ok(()) };
    let before = |seq| engine.totals_before(handle, seq);
    let result = run.mirror(shard.now, log, before);
    if let Ring::Here(writer) = &run.ring {
        let tail_seq = writer.tail_seq();
        shard.engine.handle(Event::HeldFrom(handle, tail_seq), shard.now);
    }
    result
}

/// Copies what the producer's ring holds, for a new reader in this process.
pub(in crate::server) fn keep_for_reader<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) {
    let run = shard.runs.get_mut(index as usize).and_then(Option::as_mut);
    let Some(run) = run.filter(|run| matches!(run.producer, Producer::Outside)) else { return };
    if run.producer().is_some_and(|producer| !producer.taken.is_mirrored)
        && let Err(rule) = mirror_producer(shard, index)
    {
        producer::refuse_producer(shard, index, rule);
    }
}

/// Copies what the ring of an ended producer holds, if that was not mirrored.
pub(in crate::server) fn keep_of_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) {
    let run = shard.runs[index as usize].as_mut();
    if run.and_then(ServedRun::producer).is_some_and(|producer| !producer.taken.is_mirrored) {
        let _ = mirror_producer(shard, index); // A chunk that breaks a rule is not copied.
    }
}
