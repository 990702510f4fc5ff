//! Requests to an upstream other than calls: the agreement on a version, and the list of tools.

use serde_json::Value;

use crate::base::Instant;
use crate::limits;
use crate::mcp::Era;
use crate::mcp::upstream::{
    Dialect, Greeted, Greeting, Listing, Offer, UnofferedTool, UnsentRequest, initialized, shown,
};
use crate::reactor::Clock;
use crate::upstream::UpstreamSpec;
use crate::wire::jsonrpc::ErrorObject;

/// A transport for single requests.
pub(super) trait Transport {
    /// Sends a request, and waits for the answer.
    fn ask(
        &self,
        request: &UnsentRequest,
        deadline: Instant,
    ) -> Result<Result<Value, ErrorObject>, RequestError>;
    /// Sends a notification.
    fn notify(&self, message: Vec<u8>) -> Result<(), String>;
}

/// The reason why no answer came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestError {
    /// No answer came before the deadline.
    Late,
    /// The upstream has ended, for this reason.
    Gone(String),
    /// The upstream refuses such requests. It may accept those of the other era.
    Refused(String),
}

/// The reason why no version was agreed.
pub(super) enum GreetError {
    /// The first request made the server end.
    Upset(String),
    Failed(String),
}

impl GreetError {
    pub fn text(self) -> String {
        let (GreetError::Upset(text) | GreetError::Failed(text)) = self;
        text
    }
}

/// Agrees with a server on a version.
pub(super) fn greet(
    transport: &dyn Transport,
    mut greeting: Greeting,
    mut request: UnsentRequest,
    deadline: Instant,
) -> Result<Dialect, GreetError> {
    let mut was_late = false;
    loop {
        let is_probe = greeting.era() == Era::Stateless;
        let now = Clock::now();
        let until = match is_probe {
            true => deadline.min(now + limits::UPSTREAM_PROBE_DEADLINE),
            false => deadline,
        };
        let text = match transport.ask(&request, until) {
            Ok(answer) => match greeting.answered(&answer) {
                Ok(Greeted::Ask(next)) => {
                    request = next;
                    continue;
                }
                Ok(Greeted::Ready(dialect)) => {
                    if dialect.era() == Era::Handshake {
                        let mut message = Vec::new();
                        initialized(&mut message);
                        transport.notify(message).map_err(GreetError::Failed)?;
                    }
                    return Ok(dialect);
                }
                // A server that was still starting may know the first request after all.
                Err(_) if std::mem::take(&mut was_late) => {
                    (greeting, request) = Greeting::begin(Some(Era::Stateless));
                    continue;
                }
                Err(error) => return Err(GreetError::Failed(error.to_string())),
            },
            Err(RequestError::Gone(how)) if is_probe => return Err(GreetError::Upset(how)),
            Err(RequestError::Gone(how) | RequestError::Refused(how)) => how,
            Err(RequestError::Late) => {
                was_late = is_probe;
                let waited = until.since(now);
                format!("it does not answer `{}` within {waited:.0?}", request.method)
            }
        };
        match greeting.fall_back() {
            Some(next) => request = next,
            None => return Err(GreetError::Failed(text)),
        }
    }
}

/// Gets the list of all tools.
pub(super) fn list(
    transport: &dyn Transport,
    spec: &UpstreamSpec,
    dialect: &Dialect,
    deadline: Instant,
) -> Result<(Vec<Offer>, Vec<UnofferedTool>), String> {
    let mut listing = Listing::new(&spec.prefix, dialect).with_rules(spec.rules.clone());
    if !dialect.has_tools {
        return Ok(listing.finish());
    }
    let mut cursor = None;
    loop {
        let answer = transport.ask(&dialect.list(cursor.as_deref()), deadline);
        let page = match answer {
            Ok(Ok(page)) => page,
            Ok(Err(error)) => {
                return Err(format!("it does not list its tools: {}", shown(&error.message)));
            }
            Err(RequestError::Late) => return Err("it does not list its tools in time".to_owned()),
            Err(RequestError::Gone(text) | RequestError::Refused(text)) => return Err(text),
        };
        match listing.take(&page)? {
            Some(next) => cursor = Some(next),
            None => return Ok(listing.finish()),
        }
    }
}
