//! Stratum 3: executions beyond one machine. Machines that know no network.
//!
//! Each execution has a log in a distributed engine: records, in the order in which they were
//! stored. Its owner, the node that runs its tool, writes them. Every node reads them, from the
//! beginning and then live. These machines use six verbs of that engine. Four are for logs: *store
//! if the log ends here*, *the last record*, *records behind a place*, and *listen*. Two are for
//! leases: *create* and *renew*.
//!
//! Absent: the engine itself, the network, clocks and threads. `now` goes in, wishes come out, and
//! answers go in. Everything that comes from the engine is outside, and is checked.
//!
//! Reading order:
//!
//! - [`record`]: the bytes of a record.
//! - [`mirror`]: the owner's way into the log. [`follow`]: the readers' way out of it.
//! - [`history`]: readers of old records. [`seek`]: the places of a log from which somebody can
//!   read on.
//! - [`piece`]: parts of a log on their way to another thread.
//! - [`member`]: leases. [`closer`]: the end of an execution whose node was lost.
//! - [`directory`]: what every node knows about an execution. [`claim`]: the node of a path.
//!
//! Promises:
//! - C1: the log of an execution is written by one life of one node, and then has one end.
//! - C2: all who follow the log get the same chunks, the same gaps and the same end.
//!
//! Both hold as long as the engine keeps what it has acknowledged. If it does not, no reader is
//! given a wrong chunk, and each still gets one end.
//!
//! Tests: beside the code; `sim/cluster` runs nodes on a log that fails.

pub mod claim;
pub mod closer;
pub mod directory;
pub mod follow;
pub mod history;
pub mod member;
pub mod mirror;
pub mod piece;
pub mod record;
mod retry;
pub mod seek;
