//! What a shard gets ready while it has nothing to do.

/// Of the size that was asked for last, so much is bought ahead while a shard has nothing to do: an
/// execution that begins then needs no system call for its ring.
pub const RING_RESERVE_BYTES: u32 = 512 << 10;
/// In steps of this size, some 50 µs each: a request that comes meanwhile waits no longer. Larger
/// windows are not bought ahead.
pub const RING_RESTOCK_STEP_BYTES: u32 = 64 << 10;
/// With each such step as much of the heap: more than a call takes that is kept when it has ended
/// (16 KiB, most of it the records of its ring), and less than what `malloc` gives back at once
/// (64 KiB, `FASTBIN_CONSOLIDATION_THRESHOLD` of glibc).
pub const HEAP_AHEAD_BYTES: usize = 32 << 10;
