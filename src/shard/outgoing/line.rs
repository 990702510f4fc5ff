//! One connection to a server of models.

use super::ExchangeId;
use super::tls::Session;
use crate::base::Handle;
use crate::engine::wheel::TimerId;
use crate::reactor::ConnectionId;
use crate::wire::http1::ResponseReader;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// It is being made for this one.
    Dialling(ExchangeId),
    /// It agrees with its peer on keys, for this one.
    Shaking(ExchangeId),
    /// It carries its request, and the answer.
    Carrying(ExchangeId),
    /// The rest of an answer is thrown away.
    Draining,
    /// It waits for the next request.
    Kept,
}

/// See the module's text.
pub(super) struct Line {
    pub id: ConnectionId,
    /// With whom.
    pub site: Handle,
    pub doing: Doing,
    pub session: Option<Box<Session>>,
    pub reader: ResponseReader,
    /// Of the request, so many bytes were given to the kernel, or sealed.
    pub sent_bytes: usize,
    /// And that is all of it.
    pub is_sent: bool,
    /// The kernel takes no more: it says when.
    pub is_blocked: bool,
    /// Nothing can be sent any more; what came before may still be read.
    pub is_broken: bool,
    /// It has carried another exchange before.
    pub was_used: bool,
    /// Something of the present answer has come.
    pub has_answered: bool,
    /// There may be another request after this one.
    pub keeps_alive: bool,
    /// It stands in the list of those that have something to send.
    pub is_touched: bool,
    pub drained_bytes: usize,
    pub timer: Option<TimerId>,
}

impl Line {
    pub fn new(id: ConnectionId, site: Handle, exchange: ExchangeId) -> Line {
        Line {
            id,
            site,
            doing: Doing::Dialling(exchange),
            session: None,
            reader: ResponseReader::new(),
            sent_bytes: 0,
            is_sent: false,
            is_blocked: false,
            is_broken: false,
            was_used: false,
            has_answered: false,
            keeps_alive: false,
            is_touched: false,
            drained_bytes: 0,
            timer: None,
        }
    }

    /// Whose it is.
    pub fn exchange(&self) -> Option<ExchangeId> {
        match self.doing {
            Doing::Dialling(id) | Doing::Shaking(id) | Doing::Carrying(id) => Some(id),
            Doing::Draining | Doing::Kept => None,
        }
    }
}
