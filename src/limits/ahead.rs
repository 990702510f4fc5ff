//! Limits of the memory that a shard prepares while it is idle.

/// Memory of free rings, of the size that was requested last, that an idle shard prepares. An
/// execution that then begins needs no system call for its ring.
pub const RING_RESERVE_BYTES: u32 = 512 << 10;
/// Size of the steps of that preparation, some 50 µs each, which is the longest delay of a request
/// in the meantime. Larger windows are not prepared.
pub const RING_RESTOCK_STEP_BYTES: u32 = 64 << 10;
/// Heap memory that is prepared with each such step. It is more than an ended call keeps (16 KiB,
/// mostly the records of its ring). It is less than `malloc` returns at once (64 KiB,
/// `FASTBIN_CONSOLIDATION_THRESHOLD` of glibc).
pub const HEAP_AHEAD_BYTES: usize = 32 << 10;
