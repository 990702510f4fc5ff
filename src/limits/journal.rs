//! The journal: a log on disk below the rings.

use std::time::Duration;

use super::{DELIVERY_BYTES_MAX, DELIVERY_CHUNKS_MAX, RING_CLASS_BYTES_MAX};

/// Size of the pages of a journal. None is written twice.
pub const JOURNAL_PAGE_BYTES: u32 = 4 << 10;
/// Size of the segments of a journal, unless another one is chosen. It is also the maximum.
pub const JOURNAL_SEGMENT_BYTES: u32 = 64 << 20;
/// Minimum size of the segments of a journal. Chunks of a quarter of it may find no room.
pub const JOURNAL_SEGMENT_BYTES_MIN: u32 = 128 << 10;
/// Maximum size of a block of a journal.
pub const JOURNAL_BLOCK_BYTES_MAX: u32 = 512 << 10;
/// Number of blocks that are filled or on their way to the disk. Each has a buffer of its own. The
/// last blocks of a segment are short, and four of them are written at a time.
pub const JOURNAL_BLOCKS_MAX: usize = 16;
/// Number of writes that are under way at the same time.
pub const JOURNAL_WRITES_MAX: usize = 4;
/// Number of blocks that are not on disk yet.
pub const JOURNAL_UNSYNCED_BLOCKS_MAX: usize = 256;
/// Size of the blocks that are not on disk yet. The kernel takes blocks faster than the disk does.
/// It is part of the format: a start looks only so far behind a torn block.
pub const JOURNAL_UNSYNCED_BYTES_MAX: u32 = 16 << 20;
/// Number of runs in a segment. A segment with more short runs ends early. A chunk of 100 bytes
/// that is a run of its own takes 200, so that such runs fill 50 MiB.
pub const JOURNAL_ROWS_MAX: usize = 1 << 18;
/// Number of executions that a journal keeps.
pub const JOURNAL_EXECUTIONS_MAX: usize = 1 << 17;
/// Number of executions that have something in a segment. Those that were removed count, too.
pub const JOURNAL_PARTS_MAX: usize = 2 * JOURNAL_EXECUTIONS_MAX;
/// Maximum length of the description of an execution or of its end.
pub const JOURNAL_RECORD_BYTES_MAX: usize = 32 << 10;
/// Part of a segment that only records may use: the ends of executions, and holes.
pub const JOURNAL_RECORD_RESERVE_BYTES: u32 = 256 << 10;
/// Bytes of zeros that are written at once into a segment that is being made.
pub const JOURNAL_FILL_BYTES: u32 = 1 << 20;
/// A block with this many bytes goes to the disk, unless many wait for a sync.
pub const JOURNAL_GATHER_BYTES: u32 = 64 << 10;
/// A producer that pauses for the disk goes on without it after this time without any room.
pub const JOURNAL_PAUSE: Duration = Duration::from_secs(2);
/// A chunk goes to the disk at the latest after this time.
pub const JOURNAL_WRITE_DELAY: Duration = Duration::from_millis(5);
/// Without anybody who waits for it, a sync follows a write after this time.
pub const JOURNAL_SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// After a sync without a successor, a mark is written after this time.
pub const JOURNAL_MARK_DELAY: Duration = Duration::from_millis(10);
/// A segment that could not be made, or that has to go and cannot, is tried again after this time.
pub const JOURNAL_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Maximum size of all segments of a shard together, unless another one is chosen.
pub const JOURNAL_BYTES_MAX: u64 = 10 << 30;
/// Time for which ended executions are kept, unless another one is chosen.
pub const JOURNAL_RETENTION: Duration = Duration::from_secs(86_400);
/// Time in seconds for which an execution can ask to be kept after its end: 68 years.
pub const KEEP_S_MAX: u32 = i32::MAX as u32;
/// Nothing is removed for its age before this time has passed since the start.
pub const JOURNAL_SETTLING_TIME: Duration = Duration::from_secs(600);
/// The age of the oldest segment is looked at after this time at the latest.
pub const JOURNAL_LOOK_INTERVAL: Duration = Duration::from_secs(3_600);
/// Number of reads that are under way at the same time. Each has a buffer.
pub const JOURNAL_READS_MAX: usize = 64;
/// Payload bytes of an answer to a reader on another thread, which a run more may follow. Each
/// answer takes both threads a turn, and a run of small chunks is short.
pub const REFILL_BYTES: u64 = 64 << 10;
/// Chunks of such an answer.
pub const REFILL_CHUNKS: u64 = 1_024;
/// Size of the buffer of a read. A run with a chunk that is longer has a buffer of its own.
pub const JOURNAL_READ_BYTES: u32 = 68 << 10;
/// Bytes of old chunks that a shard gives in one turn, unless one chunk is longer.
pub const JOURNAL_GIVEN_BYTES_MAX: u32 = 64 << 10;
/// The same while chunks are published, because these wait for the end of such a turn. At the
/// median they take 5 µs with 4 KiB, and took 24 µs with 64.
pub const JOURNAL_GIVEN_BYTES_LIVE: u32 = 4 << 10;
/// After a chunk was published, more of them are expected for this time.
pub const JOURNAL_LIVE_TIME: Duration = Duration::from_millis(10);
/// The next runs that a subscriber knows from a page of an index.
pub const JOURNAL_KNOWN_RUNS: usize = 32;
/// Bytes of a sealed segment that a scrub reads at once, unless one block is longer.
pub const JOURNAL_SCRUB_BYTES: u32 = 64 << 10;
/// Bytes that a scrub reads in a second.
pub const JOURNAL_SCRUB_RATE: u64 = 20 << 20;
/// Time between the beginnings of two scrubs.
pub const JOURNAL_SCRUB_PERIOD: Duration = Duration::from_secs(86_400);
/// Payload bytes between two chunks of a sealed segment whose places stay in memory.
pub const JOURNAL_LANDMARK_BYTES: u64 = 64 << 10;
/// Number of runs that stay in memory after they were given.
pub const JOURNAL_RECENT_RUNS: usize = 16;
/// A shard that ends waits for its disk for at most this time.
pub const JOURNAL_SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

const _: () = {
    assert!(JOURNAL_READ_BYTES.is_multiple_of(JOURNAL_PAGE_BYTES));
    assert!(JOURNAL_GIVEN_BYTES_LIVE < JOURNAL_GIVEN_BYTES_MAX);
    assert!(JOURNAL_FILL_BYTES.is_multiple_of(JOURNAL_PAGE_BYTES));
    assert!(JOURNAL_READ_BYTES as u64 > DELIVERY_BYTES_MAX);
    assert!(JOURNAL_READS_MAX < super::DISK_OPERATIONS_MAX as usize);
    assert!(JOURNAL_SEGMENT_BYTES_MIN <= JOURNAL_SEGMENT_BYTES);
    assert!(JOURNAL_SEGMENT_BYTES.is_power_of_two()); // A place is a segment and an offset.
    assert!(JOURNAL_BLOCK_BYTES_MAX < JOURNAL_SEGMENT_BYTES / 16);
    assert!(JOURNAL_RECORD_RESERVE_BYTES < JOURNAL_SEGMENT_BYTES / 16);
    assert!(JOURNAL_BLOCK_BYTES_MAX as u64 >= 2 * DELIVERY_BYTES_MAX);
    assert!(JOURNAL_BLOCK_BYTES_MAX >= RING_CLASS_BYTES_MAX / 2); // The longest chunk fits.
    assert!(JOURNAL_RECORD_BYTES_MAX < JOURNAL_BLOCK_BYTES_MAX as usize / 2);
    assert!(JOURNAL_RECORD_BYTES_MAX < JOURNAL_RECORD_RESERVE_BYTES as usize / 4);
    assert!(JOURNAL_GATHER_BYTES < JOURNAL_BLOCK_BYTES_MAX);
    assert!(JOURNAL_WRITES_MAX < JOURNAL_BLOCKS_MAX); // One is filled meanwhile.
    assert!(JOURNAL_WRITE_DELAY.as_nanos() < JOURNAL_SYNC_INTERVAL.as_nanos());
    assert!(JOURNAL_RETRY_DELAY.as_nanos() < JOURNAL_LOOK_INTERVAL.as_nanos());
    assert!(DELIVERY_CHUNKS_MAX > 0);
};
