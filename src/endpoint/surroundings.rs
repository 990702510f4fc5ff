//! The inputs of a connection besides its bytes.

use crate::base::{Handle, Instant};
use crate::endpoint::{Access, Tally};

/// The inputs of an [`HttpConnection`](crate::endpoint::HttpConnection) besides its bytes. It reads
/// no clock, and decides by itself which requests are admitted.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The current date, as [`crate::wire::http1::http_date`] formats it.
    pub date: [u8; 29],
    /// The current time on the clock by which tickets expire.
    pub now: Instant,
    /// The rules by which requests are admitted.
    pub access: &'a Access,
    /// The counts of answered requests.
    pub tally: &'a Tally,
    /// The name that the shard has given the connection. The log gets it with each answer.
    pub connection: Handle,
}
