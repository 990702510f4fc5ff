//! Limits of what the server sends: frames, flushes, and bytes that the kernel did not accept.

use super::RING_CLASS_BYTES;

/// Bytes of a chunk as one event: the longest one, fully escaped, and its frame.
pub const FRAME_BYTES_MAX: usize =
    6 * (RING_CLASS_BYTES[RING_CLASS_BYTES.len() - 1] as usize / 4) + (4 << 10);
/// Bytes of one shard's cache of encoded chunks: the distance between several readers of the
/// largest ring, in two formats.
pub const FRAME_CACHE_BYTES: usize = 8 << 20;
/// Maximum number of encoded chunks in this cache.
pub const FRAME_CACHE_FRAMES: usize = 1 << 14;
/// Number of events that are enough for a send. Later ones wait for the next send.
pub const FLUSH_EVENTS: u32 = 64;
/// Number of followers that are sent to, 5 µs each on loopback, before a look for something else.
pub const FOLLOWERS_PER_LOOK: u32 = 4;
/// Maximum number of followers that are sent to at the end of a turn.
pub const FOLLOWERS_PER_TURN: u32 = 64;
/// Number of bytes of events that are enough for a send.
pub const FLUSH_BYTES: usize = 64 << 10;
/// Initial size of a connection's buffer for its own bytes: a head, or the gaps and the progress of
/// one flush.
pub const BUFFER_BYTES: usize = 4 << 10;
/// Bytes of a body from which on several replies share it. A shorter one is copied.
pub const SHARED_BYTES_MIN: usize = 16 << 10;
/// Size of the buffer for a flush of short events that was not sent yet, and for the bytes behind
/// it.
pub const CARRY_BYTES: usize = FLUSH_BYTES + BUFFER_BYTES;
/// Number of free buffers of each size that are kept for reuse: for own bytes, and for bytes that
/// the kernel did not accept.
pub const CARRIES_KEPT: usize = 64;
/// The largest such buffer that is kept.
pub const CARRY_KEPT_BYTES_MAX: usize = 256 << 10;
/// Unsent bytes of all connections of one shard. A connection that would need more is dropped.
pub const CARRIES_BYTES_MAX: usize = 256 << 20;

const _: () = {
    assert!(BUFFER_BYTES < FLUSH_BYTES && FLUSH_BYTES <= CARRY_KEPT_BYTES_MAX); // Two sizes.
    assert!(FOLLOWERS_PER_TURN.is_multiple_of(FOLLOWERS_PER_LOOK));
    assert!(FRAME_CACHE_FRAMES.is_power_of_two()); // An index is a mask.
    assert!(FRAME_CACHE_BYTES >= 2 * FRAME_BYTES_MAX); // One is sent while the next is encoded.
};
