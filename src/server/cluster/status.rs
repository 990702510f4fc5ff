//! The numbers of a node, for its operator and for `/metrics`.

use std::time::Duration;

use crate::trace::Latency;

/// The state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// True if the node has its lease.
    pub has_lease: bool,
    /// Time until the others may count the node as lost, less a margin.
    pub lease_left: Duration,
    /// True if another node has its name.
    pub is_name_taken: bool,
    /// Number of nodes that have a lease.
    pub nodes: u64,
    /// Number of executions that are being mirrored.
    pub mirrored: u64,
    /// Bytes that wait for the log.
    pub buffer_bytes: u64,
    /// Bytes of the execution of which most wait for the log.
    pub lag_bytes: u64,
    /// Number of replicas.
    pub replicas: u64,
    /// Running totals.
    pub counters: NodeCounters,
    /// Times from the sending of a record until the log has it.
    pub acks: Box<Latency>,
}

/// The running totals of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Number of executions whose mirrors have ended.
    pub mirrored: u64,
    /// Number of records that the log has of executions of this node.
    pub records: u64,
    /// Number of their bytes.
    pub record_bytes: u64,
    /// Number of chunks that waited for the log for too long, and became a gap.
    pub unwritten: u64,
    /// Number of times that the fate of a record was unknown, and the log had it.
    pub adopted: u64,
    /// Number of times that it had not, so that it was sent again.
    pub again: u64,
    /// Number of executions that somebody else has ended in the log.
    pub fenced: u64,
    /// Number of executions of lost nodes that were ended here.
    pub ends_for_others: u64,
    /// Number of lookups that have found an execution.
    pub found: u64,
    /// Number of lookups that have found nothing.
    pub not_found: u64,
    /// Number of lookups that nobody has answered.
    pub away: u64,
    /// Number of requests for records of other nodes.
    pub gets: u64,
    /// Number of records that came more than once.
    pub repeats: u64,
    /// Number of holes that were found, and read again.
    pub holes: u64,
    /// Number of records that were damaged, or were of a stranger.
    pub corrupt: u64,
    /// Number of times that the connection was lost.
    pub disconnects: u64,
}
