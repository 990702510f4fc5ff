//! One connection to a server of models.

use crate::base::Handle;
use crate::engine::wheel::TimerId;
use crate::reactor::ConnectionId;
use crate::server::outgoing::ExchangeId;
use crate::server::outgoing::tls::ClientTls;
use crate::wire::http1::ResponseReader;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Doing {
    /// It is being made for this exchange.
    Dialling(ExchangeId),
    /// The TLS handshake for this exchange is under way.
    Shaking(ExchangeId),
    /// It carries the request and the answer of this exchange.
    Carrying(ExchangeId),
    /// The rest of an answer is being discarded.
    Draining,
    /// It waits for the next request.
    Kept,
}

/// A connection. See the module's text.
pub(in crate::server) struct Line {
    pub id: ConnectionId,
    /// The server.
    pub site: Handle,
    pub doing: Doing,
    pub session: Option<Box<ClientTls>>,
    pub reader: ResponseReader,
    /// Bytes of the request that were given to the kernel or encrypted.
    pub sent_bytes: usize,
    /// True if that is the whole request.
    pub is_sent: bool,
    /// True if the kernel takes no more bytes. It reports when it does.
    pub is_blocked: bool,
    /// True if nothing can be sent any more. Bytes that came before may still be read.
    pub is_broken: bool,
    /// True if it has carried another exchange before.
    pub was_used: bool,
    /// True if bytes of the current answer have come.
    pub has_answered: bool,
    /// True if it may carry another request after this one.
    pub keeps_alive: bool,
    /// True if a send is queued.
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

    /// Returns the exchange that it serves, if any.
    pub fn exchange(&self) -> Option<ExchangeId> {
        match self.doing {
            Doing::Dialling(id) | Doing::Shaking(id) | Doing::Carrying(id) => Some(id),
            Doing::Draining | Doing::Kept => None,
        }
    }
}
