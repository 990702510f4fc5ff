//! Limits of counters, histograms, the log and spans.

use std::time::Duration;

/// Events that a shard's flight recorder holds: 32 KiB.
pub const FLIGHT_EVENTS_MAX: usize = 1_024;
/// Latency above which a value is recorded as this one, and counted separately.
pub const HISTOGRAM_DURATION_MAX: Duration = Duration::from_secs(60);
/// Decimal digits that a histogram keeps of each value.
pub const HISTOGRAM_DIGITS: u8 = 3;
/// Upper bounds of the buckets for latencies: 1, 2.5 and 5 of each decade.
/// The longest are for executions, of which some run for an hour.
pub const LATENCY_BUCKETS_NS: [u64; 30] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    25_000_000_000,
    50_000_000_000,
    100_000_000_000,
    250_000_000_000,
    500_000_000_000,
    1_000_000_000_000,
    2_500_000_000_000,
    5_000_000_000_000,
];
/// Tools of one shard whose ended executions are counted apart, each with its durations.
pub const TOOLS_COUNTED_MAX: usize = 128;
/// Chunks of one turn whose latency is measured at its end. If there are more, some are measured
/// earlier.
pub const DELIVERIES_NOTED_MAX: usize = 1_024;
/// Records that may wait to be written to the log. Further ones are dropped, and counted.
pub const LOG_RECORDS_MAX: usize = 512;
/// Numbers and texts of one record.
pub const LOG_FIELDS_MAX: usize = 8;
/// Bytes of each text of a record. A longer text is cut, and marked as cut.
pub const LOG_TEXT_BYTES_MAX: usize = 64;
/// Bytes of the message of a panic in a user's code. A longer one is cut.
pub const PANIC_TEXT_BYTES_MAX: usize = 1_024;
/// Bytes of log lines after which a batch is written.
pub const LOG_BATCH_BYTES: usize = 64 << 10;
/// Time for which the end of the program waits for the log to be written.
pub const LOG_CLOSE_WAIT: Duration = Duration::from_secs(1);
