//! The identity of a caller: a number that stands for a name, cheap to compare and to copy.

use std::fmt;

/// A caller that can own executions. Only the server knows the name behind the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(pub u16);

impl Principal {
    /// The caller of a server without authentication. Authenticated callers have numbers from 1 on.
    pub const ANYONE: Principal = Principal(0);
    /// The owner of executions whose owner is not known any more. It is no caller.
    pub const NOBODY: Principal = Principal(u16::MAX);
}

impl fmt::Display for Principal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "p{}", self.0)
    }
}
