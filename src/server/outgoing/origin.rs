//! A server of models: its addresses and its kept connections.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use crate::base::Instant;
use crate::reactor::ConnectionId;
use crate::server::outgoing::{ExchangeId, Target};
use crate::wire::subscriptions::Reach;

/// A server. See the module's text.
pub(in crate::server) struct Origin {
    pub target: Target,
    /// The addresses to which connections may lead.
    pub reach: Reach,
    /// The addresses of its name, and the time until which they are valid.
    pub addresses: Option<(Rc<[SocketAddr]>, Instant)>,
    /// True if the resolver has been asked for them.
    pub is_asked_for: bool,
    /// The exchanges that wait for them. Some may have been dropped.
    pub waiting: Vec<ExchangeId>,
    /// Connections that are not in use, the most recently used one last.
    pub kept: Vec<ConnectionId>,
    /// Number of exchanges and connections that refer to it.
    pub user_count: u32,
}

impl Origin {
    pub fn new(target: Target, reach: Reach) -> Origin {
        let literal: Option<IpAddr> = target.host.parse().ok();
        let literal = literal.filter(|ip| reach.allows(*ip));
        let addresses = literal.map(|ip| {
            let all: Rc<[SocketAddr]> = Rc::new([SocketAddr::new(ip, target.port)]);
            (all, Instant::FAR)
        });
        let (waiting, kept) = Default::default();
        Origin { target, reach, addresses, is_asked_for: false, waiting, kept, user_count: 0 }
    }

    /// Returns its addresses, if they are known and still valid.
    pub fn addresses(&self, now: Instant) -> Option<Rc<[SocketAddr]>> {
        let (addresses, until) = self.addresses.as_ref()?;
        (now < *until).then(|| Rc::clone(addresses))
    }
}
