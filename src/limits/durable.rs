//! Streams of the Durable Streams protocol.

use std::time::Duration;

use super::{JOURNAL_RECORD_BYTES_MAX, RING_SERVED_BYTES};

/// Bytes of one append.
pub const DURABLE_APPEND_BYTES_MAX: u64 = 16 << 20;
/// Bytes of an append that is one chunk for sure.
pub const DURABLE_CHUNK_BYTES: usize = 1 << 10;
/// Bytes of the path of a stream.
pub const DURABLE_PATH_BYTES_MAX: usize = 512;
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
/// Replies of one shard that are kept for other readers, and their bytes.
pub const DURABLE_REPLIES_MAX: usize = 64;
/// See [`DURABLE_REPLIES_MAX`].
pub const DURABLE_REPLIES_BYTES_MAX: usize = 8 << 20;
/// Requests of one shard that wait for the reply of another reader. More read for themselves.
pub const DURABLE_READERS_WAITING_MAX: usize = 16_384;
/// Places of one shard from which a reply was read and not kept. The next reply from one of them is
/// kept.
pub const DURABLE_PLACES_MAX: usize = 256;
/// Time for which a long poll waits. The clients' own tests allow up to 3 s.
pub const DURABLE_POLL: Duration = Duration::from_secs(2);
/// Appends to one stream that wait for the disk. One more is answered with 503. Creations of one
/// shard that wait for room; one more is answered with 507.
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
/// Time for which a creation or a removal waits for room on the disk before it is refused.
pub const DURABLE_ROOM_WAIT: Duration = Duration::from_secs(2);
/// Time by which a stream outlives its end if appends are still under way.
pub const DURABLE_POSTPONED: Duration = Duration::from_millis(20);
/// Forks between a stream and the one that it begins with in the end.
pub const DURABLE_FORKS_MAX: usize = 64;

const _: () = {
    let names = DURABLE_PATH_BYTES_MAX + DURABLE_TYPE_BYTES_MAX + 3 * DURABLE_SEQ_BYTES_MAX;
    let producers = DURABLE_PRODUCERS_MAX * (2 * DURABLE_PRODUCER_BYTES_MAX + 64);
    assert!(2 * names + producers < JOURNAL_RECORD_BYTES_MAX); // A description fits.
};

/// Subscriptions of one shard.
pub const SUBSCRIPTIONS_MAX: usize = 4_096;
/// Subscriptions of one principal on one shard.
pub const SUBSCRIPTIONS_PER_OWNER_MAX: usize = 1_024;
/// Bytes of the name of a subscription, or of a worker.
pub const SUBSCRIPTION_ID_BYTES_MAX: usize = 256;
/// Bytes of the pattern of a subscription.
pub const SUBSCRIPTION_PATTERN_BYTES_MAX: usize = 1_024;
/// Bytes of the URL of a webhook.
pub const SUBSCRIPTION_URL_BYTES_MAX: usize = 2_048;
/// Bytes of the description of a subscription.
pub const SUBSCRIPTION_TEXT_BYTES_MAX: usize = 1_024;
/// Bytes of a request about a subscription.
pub const SUBSCRIPTION_BODY_BYTES_MAX: u64 = 256 << 10;
/// The times for which a worker may be silent, in milliseconds: the least and the most. Source:
/// section 6.2 of the protocol.
pub const SUBSCRIPTION_LEASE_MS: (u64, u64) = (1_000, 600_000);
/// The time for which a worker may be silent by default, in milliseconds.
pub const SUBSCRIPTION_LEASE_MS_DEFAULT: u64 = 30_000;
/// Time for which the token of a wake is valid.
pub const SUBSCRIPTION_TOKEN_TTL: Duration = Duration::from_secs(3_600);
/// Answers of one shard about subscriptions that wait for the disk.
pub const SUBSCRIPTION_WAITING_MAX: usize = 4_096;
/// Webhooks of one shard that are under way. Others wait for one of these.
pub const WEBHOOKS_MAX: usize = 32;
/// Bytes of the answer of a webhook. The rest of a longer one is not read.
pub const WEBHOOK_ANSWER_BYTES_MAX: usize = 64 << 10;
/// Time for a webhook, with its answer.
pub const WEBHOOK_DEADLINE: Duration = Duration::from_secs(30);
/// The delays before a webhook is repeated, in milliseconds: the first and the longest. Source:
/// section 7.1 of the protocol.
pub const WEBHOOK_RETRY_MS: (u64, u64) = (1_000, 60_000);
/// Bytes of the paths of the streams of a subscription, with 72 more for each: 16,384 streams with
/// paths of 56 bytes.
pub const SUBSCRIPTION_LINKS_BYTES_MAX: usize = 2 << 20;
/// Bytes of the links that one execution keeps.
pub const SUBSCRIPTION_PAGE_BYTES_MAX: usize = 20 << 10;
/// Executions that keep the links of a subscription. Digests of paths select them, so some have
/// more than others.
pub const SUBSCRIPTION_PAGES_MAX: usize = 256;

const _: () = {
    let texts = SUBSCRIPTION_URL_BYTES_MAX
        + SUBSCRIPTION_TEXT_BYTES_MAX
        + SUBSCRIPTION_PATTERN_BYTES_MAX
        + 4 * SUBSCRIPTION_ID_BYTES_MAX;
    assert!(2 * texts < JOURNAL_RECORD_BYTES_MAX / 2); // A description fits, with its pages.
    assert!(SUBSCRIPTION_PAGE_BYTES_MAX < JOURNAL_RECORD_BYTES_MAX);
    let pages_bytes = SUBSCRIPTION_PAGES_MAX * SUBSCRIPTION_PAGE_BYTES_MAX;
    assert!(2 * SUBSCRIPTION_LINKS_BYTES_MAX <= pages_bytes);
    assert!(2 * DURABLE_PATH_BYTES_MAX < SUBSCRIPTION_PAGE_BYTES_MAX / 4);
};
