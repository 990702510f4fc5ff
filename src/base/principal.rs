//! Who asks: a number that stands for a name, so that it can be compared and copied for nothing.

use std::fmt;

/// Somebody to whom executions can belong. The names behind the numbers are the server's to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(pub u16);

impl Principal {
    /// Whoever comes where nobody has to say who he is. Those who have to are numbered from 1 on.
    pub const ANYONE: Principal = Principal(0);
}

impl fmt::Display for Principal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "p{}", self.0)
    }
}
