//! Limits of a cluster: records, buffers, and times.

use std::time::Duration;

use super::{JOURNAL_RECORD_BYTES_MAX, RING_CLASS_BYTES_MAX};

/// Bytes of a record that suffice. A record of 512 chunks of 100 bytes has carried most chunks in a
/// second (1.3 million, `floor` of NATS JetStream on one machine).
pub const CLUSTER_RECORD_BYTES: u32 = 64 << 10;
/// Bytes of the first record after a pause. Most records of a slow tool are short.
pub const CLUSTER_RECORD_BYTES_FIRST: u32 = 8 << 10;
/// Maximum number of bytes of a record: one chunk of the maximum length, and what is around it.
pub const CLUSTER_RECORD_BYTES_MAX: u32 = 320 << 10;
/// Bytes of one execution that wait for the log. More of them become a gap.
pub const CLUSTER_PENDING_BYTES_MAX: u32 = 4 << 20;
/// Maximum length of a note, such as progress, or of the details of an end.
pub const CLUSTER_DETAILS_BYTES_MAX: usize = JOURNAL_RECORD_BYTES_MAX;
/// Time after which an answer of the log is not waited for any more.
pub const CLUSTER_ANSWER_WAIT: Duration = Duration::from_secs(1);
/// The first pause before something is tried again. Each one is twice as long as the one before.
pub const CLUSTER_RETRY_FIRST: Duration = Duration::from_millis(50);
/// The longest such pause.
pub const CLUSTER_RETRY_MAX: Duration = Duration::from_secs(2);
/// A reader that has heard nothing for this long looks if something was lost.
pub const CLUSTER_SILENCE: Duration = Duration::from_secs(1);
/// Pause before a reader asks for records again that must be there.
pub const CLUSTER_LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Time for which a node counts as alive after it has renewed its lease, unless another one is
/// chosen.
pub const CLUSTER_LEASE: Duration = Duration::from_secs(6);
/// A lease is renewed this many times while it lasts.
pub const CLUSTER_RENEWALS: u32 = 4;
/// A node counts itself as cut off this long before its lease can be over for others.
pub const CLUSTER_LEASE_MARGIN: Duration = Duration::from_secs(1);
/// Time for which a cluster keeps records, unless another one is chosen.
pub const CLUSTER_RETENTION: Duration = Duration::from_secs(3_600);
/// Maximum length of the name of a node, in bytes.
pub const CLUSTER_NODE_NAME_BYTES_MAX: usize = 32;
/// Maximum length of a text that a node tells of itself, such as its URL, in bytes.
pub const CLUSTER_ABOUT_BYTES_MAX: usize = 256;
/// Maximum length of an entry of the directory, in bytes.
pub const CLUSTER_ENTRY_BYTES_MAX: usize = 16 << 10;
/// Nodes of a cluster.
pub const CLUSTER_NODES_MAX: usize = 64;
/// Records of one execution in the log. One execution can therefore not drive all others out.
pub const CLUSTER_RECORDS_MAX: u32 = 65_536;
/// Records of an answer to a reader, and their bytes.
pub const CLUSTER_PULL_RECORDS: u32 = 256;
/// See [`CLUSTER_PULL_RECORDS`].
pub const CLUSTER_PULL_BYTES: u32 = 256 << 10;
/// Answers that are on their way to a reader of old records at a time.
pub const CLUSTER_PARTS_AHEAD: u32 = 2;
/// Time after which a node looks again which nodes have a lease.
pub const CLUSTER_LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// A connection is asked this often if it still works, and given up when the third question finds
/// the first two without an answer. A node whose server is lost without a word has to reach
/// another one, and renew its lease there, before the lease is over.
pub const CLUSTER_PING: Duration = Duration::from_millis(750);
/// Time for a connection to one server. A lost server is tried again, too, and does not answer.
pub const CLUSTER_CONNECT_WAIT: Duration = Duration::from_secs(1);
/// Executions of other nodes that a shard has at a time.
pub const CLUSTER_REPLICAS_MAX: usize = 256;
/// A replica that nobody has followed for this long is let go.
pub const CLUSTER_REPLICA_IDLE: Duration = Duration::from_secs(10);
/// Executions that a shard looks up in the cluster at a time, and those that it remembers not to
/// be there.
pub const CLUSTER_LOOKUPS_MAX: usize = 256;
/// The pauses before an execution is looked up again. The entry of one that has just begun may not
/// be there yet.
pub const CLUSTER_LOOKUP_PAUSES: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_millis(80), Duration::from_millis(200)];
/// Time for which an execution that was not found is not looked up again.
pub const CLUSTER_LOOKUP_REST: Duration = Duration::from_secs(1);
/// Executions in one part of the list of all nodes. The part of a node fits into one message.
pub const CLUSTER_LISTED_MAX: u32 = 250;
/// Time for which a node waits for the lists of the others.
pub const CLUSTER_LIST_WAIT: Duration = Duration::from_millis(1_500);
/// Lists of other nodes that a node makes at a time.
pub const CLUSTER_LISTS_MAX: usize = 256;
/// Paths of streams that a shard claims at the same time when it begins.
pub const CLUSTER_CLAIMS_AT_START: usize = 64;
/// Time after which NATS forgets that a key was removed.
pub const CLUSTER_REMOVAL: Duration = Duration::from_secs(60);
/// Bytes of a replica that wait for room in its ring. Behind them, nothing more is pulled.
pub const CLUSTER_FEED_BYTES_MAX: usize = 1 << 20;
/// Bytes below which more is pulled again.
pub const CLUSTER_FEED_BYTES_MIN: usize = 256 << 10;
/// Bytes that one turn of a shard feeds to its replicas. A record more may be.
pub const CLUSTER_FEED_BYTES_TURN: usize = 64 << 10;
/// Pause before requests are sent again that the node's thread had no room for.
pub const CLUSTER_SEND_AGAIN: Duration = Duration::from_millis(5);
/// The average time between two looks of the mirror into a ring, at least, and so between two
/// records. A record costs a server of NATS some 170 µs of processor time.
pub const CLUSTER_LINGER: Duration = Duration::from_micros(500);
/// Looks that a mirror saves up while its tool is slower than that.
pub const CLUSTER_LOOKS_SAVED: u32 = 16;
/// Chunks that the mirror takes from one ring before it looks at the next.
pub const CLUSTER_CHUNKS_PER_LOOK: usize = 4_096;
/// Time for which a server of NATS may not have synced what it has acknowledged: its default is two
/// minutes. A node that has connected again looks whether the ends of this time are still there.
pub const CLUSTER_UNSYNCED: Duration = Duration::from_secs(150);
/// Ends that a node remembers for that, and the bytes of their records.
pub const CLUSTER_FINISHED_MAX: usize = 4_096;
/// See [`CLUSTER_FINISHED_MAX`].
pub const CLUSTER_FINISHED_BYTES_MAX: usize = 16 << 20;
/// Bytes of all executions of a node that wait for the log.
pub const CLUSTER_BUFFER_BYTES_MAX: u64 = 64 << 20;
/// Each node that ends executions of a lost one waits up to this long, so that not all do it at the
/// same time.
pub const CLUSTER_CLOSE_JITTER: Duration = Duration::from_millis(250);
/// Time for which a node that stops waits until its logs have their ends.
pub const CLUSTER_STOP_WAIT: Duration = Duration::from_secs(3);
/// Records and answers that wait for a node's driver.
pub const CLUSTER_MAILBOX: usize = 1_024;
/// Bytes of the headers of a stored message, at most. A message of the longest record has to fit
/// into what the server takes.
pub const CLUSTER_HEADERS_BYTES_MAX: u32 = 256;
/// Length of the secret of a cluster, in bytes.
pub const CLUSTER_SECRET_BYTES_MIN: usize = 32;
/// See [`CLUSTER_SECRET_BYTES_MIN`].
pub const CLUSTER_SECRET_BYTES_MAX: usize = 4 << 10;
/// Maximum length of a file with credentials, in bytes.
pub const CLUSTER_CREDENTIALS_BYTES_MAX: usize = 64 << 10;
/// Maximum length of what the monitor of a server says, in bytes.
pub const CLUSTER_MONITOR_BYTES_MAX: usize = 1 << 20;
/// Entries of the directory that a command counts.
pub const CLUSTER_ENTRIES_COUNTED_MAX: usize = 100_000;

const _: () = {
    // A quarter of a lease may have passed before its server was lost. Three questions follow. Then
    // the lost server may be tried first, by each of two addresses: its own and the announced one.
    let lost_ms = 3 * CLUSTER_PING.as_millis() + 2 * CLUSTER_CONNECT_WAIT.as_millis();
    assert!(lost_ms <= CLUSTER_LEASE.as_millis() * 3 / 4);
    assert!(CLUSTER_RECORD_BYTES_FIRST < CLUSTER_RECORD_BYTES);
    // The longest chunk is a quarter of the largest ring.
    let chunk_bytes_max = RING_CLASS_BYTES_MAX / 4;
    assert!(chunk_bytes_max + CLUSTER_RECORD_BYTES_FIRST <= CLUSTER_RECORD_BYTES_MAX);
    assert!(CLUSTER_DETAILS_BYTES_MAX as u32 + CLUSTER_RECORD_BYTES_FIRST <= CLUSTER_RECORD_BYTES);
    assert!(CLUSTER_PENDING_BYTES_MAX >= 8 * CLUSTER_RECORD_BYTES_MAX);
};
