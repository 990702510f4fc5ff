//! The parts that all streaming servers of `bench serve` share: streamdoor, the floor and the
//! peers.
//!
//! [`load`] has the options: the load and its connections. [`plan`] decides when each chunk is due.
//! [`event`] formats it. By [`child`], a server exchanges lines with the process that measures it.
//! A server serves one run: it waits for all connections, publishes, and sends the end. The
//! receiver is not here: all servers have the same one, in `bench/serve`.

pub mod child;
pub mod event;
pub mod load;
pub mod plan;
