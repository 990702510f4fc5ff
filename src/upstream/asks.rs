//! Requests to an upstream other than calls: the agreement on a version, and the list of tools.

use serde_json::Value;

use crate::base::Instant;
use crate::limits;
use crate::mcp::Era;
use crate::mcp::upstream::{
    Asked, Dialect, Greeted, Greeting, Listing, Offer, Turned, initialized, shown,
};
use crate::reactor::Clock;
use crate::wire::jsonrpc::ErrorObject;

/// A transport for single requests.
pub(super) trait Asks {
    /// Sends a request, and waits for the answer.
    fn ask(&self, asked: &Asked, deadline: Instant)
    -> Result<Result<Value, ErrorObject>, NoAnswer>;
    /// Sends a notification.
    fn tell(&self, message: Vec<u8>) -> Result<(), String>;
}

/// The reason why no answer came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// No answer came before the deadline.
    Late,
    /// The upstream has ended, for this reason.
    Gone(String),
    /// The upstream refuses such requests. It may accept those of the other era.
    Refused(String),
}

/// The reason why no version was agreed.
pub(super) enum Ungreeted {
    /// The first request made the server end.
    Upset(String),
    Failed(String),
}

impl Ungreeted {
    pub fn text(self) -> String {
        let (Ungreeted::Upset(text) | Ungreeted::Failed(text)) = self;
        text
    }
}

/// Agrees with a server on a version.
pub(super) fn greet(
    way: &dyn Asks,
    mut greeting: Greeting,
    mut asked: Asked,
    deadline: Instant,
) -> Result<Dialect, Ungreeted> {
    let mut was_late = false;
    loop {
        let is_probe = greeting.era() == Era::Stateless;
        let now = Clock::now();
        let until = match is_probe {
            true => deadline.min(now + limits::UPSTREAM_PROBE_DEADLINE),
            false => deadline,
        };
        let text = match way.ask(&asked, until) {
            Ok(answer) => match greeting.answered(&answer) {
                Ok(Greeted::Ask(next)) => {
                    asked = next;
                    continue;
                }
                Ok(Greeted::Ready(dialect)) => {
                    if dialect.era() == Era::Handshake {
                        let mut message = Vec::new();
                        initialized(&mut message);
                        way.tell(message).map_err(Ungreeted::Failed)?;
                    }
                    return Ok(dialect);
                }
                // A server that was still starting may know the first request after all.
                Err(_) if std::mem::take(&mut was_late) => {
                    (greeting, asked) = Greeting::begin(Some(Era::Stateless));
                    continue;
                }
                Err(error) => return Err(Ungreeted::Failed(error.to_string())),
            },
            Err(NoAnswer::Gone(how)) if is_probe => return Err(Ungreeted::Upset(how)),
            Err(NoAnswer::Gone(how) | NoAnswer::Refused(how)) => how,
            Err(NoAnswer::Late) => {
                was_late = is_probe;
                let waited = until.since(now);
                format!("it does not answer `{}` within {waited:.0?}", asked.method)
            }
        };
        match greeting.fall_back() {
            Some(next) => asked = next,
            None => return Err(Ungreeted::Failed(text)),
        }
    }
}

/// Gets the list of all tools.
pub(super) fn list(
    way: &dyn Asks,
    prefix: &str,
    dialect: &Dialect,
    deadline: Instant,
) -> Result<(Vec<Offer>, Vec<Turned>), String> {
    let mut listing = Listing::new(prefix, dialect);
    if !dialect.has_tools {
        return Ok(listing.finish());
    }
    let mut cursor = None;
    loop {
        let answer = way.ask(&dialect.list(cursor.as_deref()), deadline);
        let page = match answer {
            Ok(Ok(page)) => page,
            Ok(Err(error)) => {
                return Err(format!("it does not list its tools: {}", shown(&error.message)));
            }
            Err(NoAnswer::Late) => return Err("it does not list its tools in time".to_owned()),
            Err(NoAnswer::Gone(text) | NoAnswer::Refused(text)) => return Err(text),
        };
        match listing.take(&page)? {
            Some(next) => cursor = Some(next),
            None => return Ok(listing.finish()),
        }
    }
}
