//! Counts of the chunks and bytes that readers in other processes have read. The server delivers
//! nothing to them, so it counts their reported positions minus what they report as missed. It does
//! so whenever the counters are asked for, and when a reader leaves.
//!
//! The result is a claim of the readers. It never exceeds what they could have read since they
//! came, and no counter ever falls. The engine does not use it.

use crate::engine::Subscribed;
use crate::engine::policy::{Log, totals_before};
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::guests::ServedRemote;
use crate::server::shm::{ProcessSeat, taking};
use crate::shard::run::Seat;
use crate::stream::{Kinds, Totals};

/// The counts of one reader.
pub(in crate::server) struct Reads {
    kinds: Kinds,
    /// The totals before its first chunk.
    before: Totals,
    counted: Totals,
}

impl Reads {
    pub fn new(subscribed: &Subscribed) -> Reads {
        let Subscribed { terms, cursor, .. } = subscribed;
        Reads { kinds: terms.kinds, before: cursor.seen, counted: Totals::ZERO }
    }
}

impl ProcessSeat {
    /// Returns what it has read since the last call, of the chunks that the engine was told of.
    /// Returns zero while it is behind the ring's oldest chunk: that is counted when it has caught
    /// up.
    fn newly_read(&mut self, log: &impl Log) -> Totals {
        let Ok(page) = self.page() else { return Totals::ZERO };
        let next_seq = page.cursor_seen().min(log.head_seq() + 1);
        if next_seq < log.tail_seq() {
            return Totals::ZERO;
        }
        let (missed_chunks, missed_bytes) = self.missed();
        let Reads { kinds, before, counted } = &mut self.reads;
        let passed = totals_before(*kinds, next_seq, log);
        let read = |passed: u64, before: u64, missed: u64, counted: &mut u64| {
            let read = passed.saturating_sub(before).saturating_sub(missed);
            let newly = read.saturating_sub(*counted);
            *counted += newly;
            newly
        };
        Totals {
            chunks: read(passed.chunks, before.chunks, missed_chunks, &mut counted.chunks),
            bytes: read(passed.bytes, before.bytes, missed_bytes, &mut counted.bytes),
        }
    }
}
/// Counts what other processes have read of an execution since the last count.
pub(in crate::server) fn count_reads<R: Reactor + 'static>(shard: &mut ServerShard<R>, index: u32) {
    let run = shard.runs[index as usize].as_ref();
    if run.is_none_or(|run| run.remotes.is_empty()) {
        return;
    }
    let _ = taking::look_back(shard, index); // The bytes before each position are needed.
    let Some(run) = &mut shard.runs[index as usize] else { return };
    let Some(log) = shard.engine.log(run.handle) else { return };
    let mut newly = Totals::ZERO;
    for at in 0..run.remotes.len() {
        if matches!(run.remotes[at].seat, Seat::Process(_)) {
            let _ = run.sample_reader(at); // An impossible position is ignored.
        }
        if let Seat::Process(seat) = &mut run.remotes[at].seat {
            let Totals { chunks, bytes } = seat.newly_read(log);
            newly = Totals { chunks: newly.chunks + chunks, bytes: newly.bytes + bytes };
        }
    }
    add_reads(shard, newly);
}

/// Calls [`Shard::count_reads`] for all executions.
pub(in crate::server) fn count_all_reads<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    for index in 0..shard.runs.used_count() {
        count_reads(shard, index);
    }
}

/// Counts what a removed reader has read since the last count.
pub(in crate::server) fn count_last_reads<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
    remote: &mut ServedRemote,
) {
    let _ = taking::look_back(shard, index);
    let Some(run) = &shard.runs[index as usize] else { return };
    let Some(log) = shard.engine.log(run.handle) else { return };
    let producer = run.guest.door.as_ref().and_then(|door| door.producer_reader());
    let _ = remote
        .sample(|seq| seq <= log.head_seq() || producer.is_some_and(|reader| reader.has_been(seq)));
    if let Seat::Process(seat) = &mut remote.seat {
        let newly = seat.newly_read(log);
        add_reads(shard, newly);
    }
}

fn add_reads<R: Reactor + 'static>(shard: &mut ServerShard<R>, newly: Totals) {
    let counters = &mut shard.counters;
    counters.chunks_delivered += newly.chunks;
    counters.bytes_delivered += newly.bytes;
    counters.door_chunks_read += newly.chunks;
    counters.door_bytes_read += newly.bytes;
}
