//! Streams of the Durable Streams protocol.

use std::time::Duration;

use super::{JOURNAL_RECORD_BYTES_MAX, RING_SERVED_BYTES};

/// Bytes of one append.
pub const DURABLE_APPEND_BYTES_MAX: u64 = 16 << 20;
/// Bytes of an append that is one chunk for sure.
pub const DURABLE_CHUNK_BYTES: usize = 1 << 10;
/// Bytes of the path of a stream.
pub const DURABLE_PATH_BYTES_MAX: usize = 1_024;
/// Bytes of a media type of a stream.
pub const DURABLE_TYPE_BYTES_MAX: usize = 256;
/// Bytes of the name of a producer.
pub const DURABLE_PRODUCER_BYTES_MAX: usize = 128;
/// Bytes of the text by which appends are ordered.
pub const DURABLE_SEQ_BYTES_MAX: usize = 256;
/// Producers of a stream that are remembered. The one that was silent for longest is forgotten
/// first. All of them are in the description of the stream on disk.
pub const DURABLE_PRODUCERS_MAX: usize = 64;
/// Bytes of a reply with a part of a stream, unless one append is longer. The client asks again for
/// the rest.
pub const DURABLE_REPLY_BYTES: usize = 256 << 10;
/// Time for which a long poll waits. The clients' own tests allow up to 3 s.
pub const DURABLE_POLL: Duration = Duration::from_secs(2);
/// Appends to one stream that wait for the disk. One more is answered with 503.
pub const DURABLE_WAITING_MAX: usize = 1_024;
/// Streams of one shard.
pub const DURABLE_STREAMS_MAX: usize = 1 << 17;
/// Size of the ring of a stream, to which it grows.
pub const DURABLE_RING_BYTES: u32 = RING_SERVED_BYTES;
/// Time after which a stream without readers and appends leaves the memory of the engine.
pub const DURABLE_IDLE: Duration = Duration::from_secs(10);
/// Time for which the engine has a stream after its end.
pub const DURABLE_RETENTION: Duration = Duration::from_secs(5);
/// Streams that leave the engine in one turn.
pub const DURABLE_RESTS_PER_TURN: usize = 64;
/// Streams that are looked at to find one that can leave the engine.
pub const DURABLE_LOOKS_MAX: usize = 256;
/// Time for which a removal waits for the disk before it is refused.
pub const DURABLE_REMOVAL_WAIT: Duration = Duration::from_secs(2);
/// Time by which a stream outlives its end if appends are still under way.
pub const DURABLE_POSTPONED: Duration = Duration::from_millis(20);
/// Forks between a stream and the one that it begins with in the end.
pub const DURABLE_FORKS_MAX: usize = 64;

const _: () = {
    let names = DURABLE_PATH_BYTES_MAX + DURABLE_TYPE_BYTES_MAX + 3 * DURABLE_SEQ_BYTES_MAX;
    let producers = DURABLE_PRODUCERS_MAX * (2 * DURABLE_PRODUCER_BYTES_MAX + 64);
    assert!(2 * names + producers < JOURNAL_RECORD_BYTES_MAX); // A description fits.
};
