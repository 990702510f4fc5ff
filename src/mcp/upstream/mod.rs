//! The other side of the protocol: this program is the client, and another server has the tools.
//!
//! Like the rest of `mcp`, this module has no clock, no connection and no thread: messages go in,
//! and their meaning comes out. The module `crate::upstream` starts programs, connects and waits.
//!
//! | file | contents |
//! |---|---|
//! | `greeting` | the choice of an era and a version, once for each connection |
//! | `dialect` | the form of requests in each version |
//! | `listing` | the pages of a list of tools, and the names of the tools here |
//! | `exchanges` | incoming messages, and the requests that they belong to |
//! | `call_output` | the output of one call, as a tool of this server publishes it |
//!
//! Everything that a server sends is checked. Harmless faults are ignored and counted: a reply to
//! no request, progress after the end, a line that is no message. A fault that harms a call fails
//! that call, with a sentence that names the fault.

mod call_output;
mod dialect;
mod exchanges;
mod greeting;
mod listing;
mod rules;

pub use call_output::{CallOutput, CallResult, OutputPiece};
pub use dialect::{Dialect, UnsentRequest, UpstreamCall, cancelled, initialized};
pub use exchanges::{CallNotification, Exchanges, Ignored, ServerMessage};
pub use greeting::{Greeted, Greeting, GreetingError};
pub use listing::{Listing, Offer, UnofferedTool, own_name};
pub use rules::{ToolRuleError, ToolRules};

use crate::base::plain::is_shown;
use crate::limits;

/// Returns a server's text in a form that is safe to display: without terminal commands, and cut
/// after [`limits::UPSTREAM_ERROR_CHARS_MAX`] characters.
pub fn shown(text: &str) -> String {
    let mut chars = text.chars().filter(|&c| is_shown(c));
    let mut shown: String = chars.by_ref().take(limits::UPSTREAM_ERROR_CHARS_MAX).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}
