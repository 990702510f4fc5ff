//! The transfer of chunks from a producer's ring.
//!
//! While a producer's chunks have readers in this process, the execution is *mirrored*. Its chunks
//! are then copied into the private ring, and each copy is checked afterwards. If the private ring
//! has no room, nothing is taken, and the producer's gate stays.
//!
//! Otherwise their bytes stay where readers in other processes read them. Some of these readers
//! need the length or the kind of each chunk from the engine. Then each chunk is examined, and the
//! engine is told of it. Without such a reader, chunks are *passed over*. Only the newest one is
//! examined, and the engine is told of its number and of all bytes. If that does not follow from
//! the chunks before, each chunk is examined after all. That finds the one that breaks a rule.
//!
//! The ring is looked through for passed chunks when a reader comes, when an execution is
//! inspected, and at the end ([`look_back`]). The producer's own totals by kind then count for
//! older chunks, if they add up. When a reader comes in this process, and at the end, what the
//! producer's ring still holds is copied.

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
use crate::stream::{Kind, KindTotals, Totals};

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
#[derive(Clone, Copy, Default)]
pub(in crate::server) struct Progress {
    /// True if every taken chunk is copied into the private ring.
    pub is_mirrored: bool,
    /// True if chunks were passed over since the ring was looked through.
    pub has_passed: bool,
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
const DISAPPEARED: Broken = "a published chunk has disappeared";
const WRONG_TOTAL: Broken = "a chunk has a wrong total of bytes";

/// The facts of some chunks, for the engine.
type Facts = SmallVec<[ChunkFacts; limits::BURST_CHUNKS_MAX as usize]>;

/// Returns a chunk, if it is published.
#[inline]
fn chunk_at(from: &RingReader, seq: u64) -> Result<Option<(Descriptor, Kind)>, Broken> {
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
    Ok(Some((descriptor, kind)))
}

/// Returns the next chunk, if it is published. `total_bytes` is the sum of all chunks before it.
#[inline]
fn next_chunk(
    from: &RingReader,
    seq: u64,
    total_bytes: u64,
) -> Result<Option<(Descriptor, Kind)>, Broken> {
    let Some((descriptor, kind)) = chunk_at(from, seq)? else { return Ok(None) };
    if Some(descriptor.total_bytes) != total_bytes.checked_add(u64::from(descriptor.length)) {
        return Err(WRONG_TOTAL);
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
    /// Passes over the chunks of `from` after chunk `seq`, through the newest one that the gate
    /// admits. Returns their totals with all before, or `None` if there are few, or if the newest
    /// does not follow from chunk `seq`.
    fn leap(&mut self, from: &RingReader, seq: u64, gate: &Gate) -> Option<Totals> {
        assert!(gate.credit_bytes == u64::MAX); // It would depend on each length.
        let ring = from.geometry();
        // What the engine was not told of is not overwritten (S2), so no ring holds more.
        let head_seq = from.head_seq().min(seq + u64::from(ring.slot_count()));
        let head_seq = head_seq.min(gate.credit_seq.saturating_sub(1));
        if head_seq < seq + limits::GUEST_CHUNKS_PASSED_MIN {
            return None;
        }
        let Ok(Some((newest, _))) = chunk_at(from, head_seq) else { return None };
        let between = head_seq - seq - 1;
        let bytes = newest.total_bytes.checked_sub(self.total_bytes)?;
        let bytes_between = bytes.checked_sub(u64::from(newest.length))?;
        let bytes_max = between * u64::from(ring.length_max());
        if bytes_between > bytes_max.min(u64::from(ring.data_bytes())) {
            return None;
        }
        // Clamped to the range that is possible for a correct producer.
        self.tail_seq = from.tail_seq().clamp(self.tail_seq.max(1), head_seq);
        self.total_bytes = newest.total_bytes;
        self.came = newest.published();
        self.has_passed = true;
        Some(Totals { chunks: head_seq, bytes: newest.total_bytes })
    }

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
            Err(_) => return Err(DISAPPEARED),
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
    pass_over(shard, index);
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

/// Takes over many chunks at once, if nobody needs the length or the kind of each.
fn pass_over<R: Reactor + 'static>(shard: &mut ServerShard<R>, index: u32) {
    let Some(run) = shard.runs[index as usize].as_mut() else { return };
    let (handle, gate, seq) = (run.handle, run.allowed(), run.ingested_seq);
    if gate.credit_bytes != u64::MAX || !shard.engine.may_pass_over(handle) {
        return;
    }
    let Some(producer) = run.producer().filter(|producer| !producer.taken.is_mirrored) else {
        return;
    };
    let mut progress = producer.taken;
    let through = producer.reader().and_then(|reader| progress.leap(reader, seq, &gate));
    producer.taken = progress;
    if let Some(through) = through {
        shard.ingest_passed(index, through);
        if progress.came < shard.now {
            shard.engine.handle(Event::ActiveAt(handle, progress.came), shard.now);
        }
    }
}

/// The content of a ring.
struct Found {
    /// Totals of all chunks before.
    before: KindTotals,
    newest: Vec<ChunkFacts>,
}

/// Tells the engine what a producer's ring holds of chunks that were passed over.
///
/// # Errors
/// The rule that the ring breaks. The engine then still knows of no chunk that is held.
pub(in crate::server) fn look_back<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) -> Result<(), Broken> {
    let Some(run) = shard.runs.get_mut(index as usize).and_then(Option::as_mut) else {
        return Ok(());
    };
    let (handle, seq) = (run.handle, run.ingested_seq);
    let Ring::Here(writer) = &run.ring else { return Ok(()) };
    let slot_count = writer.geometry().slot_count();
    let Some(producer) = run.producer().filter(|producer| producer.taken.has_passed) else {
        return Ok(());
    };
    let through = Totals { chunks: seq, bytes: producer.taken.total_bytes };
    let Some(reader) = producer.reader() else { return Ok(()) };
    let Found { before, newest } = look_through(reader, through, slot_count as usize)?;
    producer.taken.has_passed = false;
    shard.tell(Event::Found(handle, &before, &newest));
    Ok(())
}

/// Calls [`look_back`] for a new reader in another process. A producer that breaks a rule fails.
pub(in crate::server) fn look_back_for_reader<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) {
    if let Err(rule) = look_back(shard, index) {
        producer::refuse_producer(shard, index, rule);
    }
}

/// Looks through a ring for the chunks that `through` includes. At most `count_max` are returned.
fn look_through(from: &RingReader, through: Totals, count_max: usize) -> Result<Found, Broken> {
    let held_max = u64::from(from.geometry().slot_count());
    let oldest_seq = (through.chunks + 1).saturating_sub(held_max).max(1);
    for attempt in 1..=MIRROR_ATTEMPTS_MAX {
        let tail = from.tail_totals();
        if tail.is_none() && attempt < MIRROR_ATTEMPTS_MAX {
            // Its writer may have lost the processor in the middle of a change.
            std::thread::yield_now();
            continue;
        }
        let tail_seq = tail.map_or_else(|| from.tail_seq(), |tail| tail.tail_seq);
        let from_seq = tail_seq.clamp(oldest_seq, through.chunks + 1);
        let (gone, mut newest) = match chunks_from(from, from_seq, through) {
            Err(OVERWRITTEN) => continue, // It is none that may not be overwritten.
            found => found?,
        };
        let mut before = tail.filter(|tail| adds_up(&tail.kinds, gone)).map(|tail| tail.kinds);
        let before = before.get_or_insert_with(|| all_of(newest.first(), gone));
        let excess = newest.len().saturating_sub(count_max);
        newest.drain(..excess).for_each(|chunk| before.count(chunk.kind, chunk.length));
        return Ok(Found { before: *before, newest });
    }
    // Not even the tail of a correct producer moves so often.
    Ok(Found { before: all_of(None, through), newest: Vec::new() })
}

/// Returns the chunks of a ring that `through` includes, from chunk `from_seq` on. The totals are
/// those of all chunks before.
fn chunks_from(
    from: &RingReader,
    from_seq: u64,
    through: Totals,
) -> Result<(Totals, Vec<ChunkFacts>), Broken> {
    if from_seq > through.chunks {
        return Ok((through, Vec::new()));
    }
    let (first, _) = chunk_at(from, from_seq)?.ok_or(DISAPPEARED)?;
    let bytes = first.total_bytes.checked_sub(u64::from(first.length)).ok_or(WRONG_TOTAL)?;
    let gone = Totals { chunks: from_seq - 1, bytes };
    if gone.bytes > gone.chunks.saturating_mul(u64::from(from.geometry().length_max())) {
        return Err(WRONG_TOTAL);
    }
    let mut total_bytes = gone.bytes;
    let mut newest = Vec::with_capacity((through.chunks - gone.chunks) as usize);
    for seq in from_seq..=through.chunks {
        let (chunk, kind) = next_chunk(from, seq, total_bytes)?.ok_or(DISAPPEARED)?;
        let Descriptor { length, header, .. } = chunk;
        total_bytes = chunk.total_bytes;
        newest.push(ChunkFacts { length, kind, key: header.key, tail_seq: from_seq });
    }
    if total_bytes == through.bytes { Ok((gone, newest)) } else { Err(WRONG_TOTAL) }
}

/// True if these totals, which a producer has stored, are `all` in sum.
fn adds_up(kinds: &KindTotals, all: Totals) -> bool {
    let (known, unknown) = kinds.each().split_at(Kind::ALL.len());
    let sum = known.iter().try_fold(Totals::ZERO, |sum, totals| {
        let chunks = sum.chunks.checked_add(totals.chunks)?;
        Some(Totals { chunks, bytes: sum.bytes.checked_add(totals.bytes)? })
    });
    sum == Some(all) && unknown.iter().all(|totals| *totals == Totals::ZERO)
}

/// Returns these totals as those of the kind of `chunk`. A producer that died while it changed its
/// totals by kind leaves no better ones.
fn all_of(chunk: Option<&ChunkFacts>, totals: Totals) -> KindTotals {
    let mut kinds = KindTotals::default();
    kinds.add(chunk.map_or(Kind::default(), |chunk| chunk.kind), totals);
    kinds
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
    let looked = look_back(shard, index);
    let Some(run) = shard.runs[index as usize].as_mut() else { return Ok(()) };
    let (handle, engine) = (run.handle, &shard.engine);
    let Some(log) = engine.log(handle) else { return Ok(()) };
    let before = |seq| engine.totals_before(handle, seq);
    let result = run.mirror(shard.now, log, before);
    if let Ring::Here(writer) = &run.ring {
        let tail_seq = writer.tail_seq();
        shard.engine.handle(Event::HeldFrom(handle, tail_seq), shard.now);
    }
    looked.and(result)
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
