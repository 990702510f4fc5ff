//! What a connection's machine has to know beside its bytes.

use crate::base::Instant;
use crate::endpoint::Access;

/// What a connection's machine has to know beside its bytes: it reads no clock, and decides by
/// itself who may come in.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// [`crate::wire::http1::http_date`] of now.
    pub date: [u8; 29],
    /// Now, on the clock that tickets expire by.
    pub now: Instant,
    /// Who may come in.
    pub access: &'a Access,
}
