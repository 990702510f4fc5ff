//! The other side of the protocol: we are the client, and somebody else's server has the tools.
//!
//! As the rest of `mcp` it has no clock, no connection and no thread: messages go in, what they say
//! comes out. Who starts programs, connects and waits is the module `upstream`.
//!
//! | file | what it knows |
//! |---|---|
//! | `greeting` | which era and which version both speak: asked for once, for each connection |
//! | `dialect` | how requests are spelled in a version |
//! | `listing` | tools as they are listed, page by page, and what they are called here |
//! | `hearing` | messages that come, and to which of our requests they belong |
//! | `passing` | what comes of one call, as what a tool of ours publishes |
//!
//! Everything that a server says is checked. What breaks a rule without harm to anybody (an answer
//! that nobody waits for, progress behind the end, a line that is no message) is ignored and
//! counted; what harms a call fails that call, with a sentence that says how.

mod dialect;
mod greeting;
mod hearing;
mod listing;
mod passing;

pub use dialect::{Asked, Call, Dialect, cancelled, initialized};
pub use greeting::{Greeted, Greeting, GreetingError};
pub use hearing::{Exchanges, Heard, Ignored, Note};
pub use listing::{Listing, Offer, Turned, own_name};
pub use passing::{Passed, Passing, Piece};

use crate::base::plain::is_shown;
use crate::limits;

/// What a server wrote, fit to be shown: without commands for terminals, and not without end.
pub fn shown(text: &str) -> String {
    let mut chars = text.chars().filter(|&c| is_shown(c));
    let mut shown: String = chars.by_ref().take(limits::UPSTREAM_ERROR_CHARS_MAX).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}
