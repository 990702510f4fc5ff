//! A server of models, as the shard knows it: its addresses, and connections that are kept.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use super::{ExchangeId, Target};
use crate::base::Instant;
use crate::reactor::ConnectionId;

/// See the module's text.
pub(super) struct Site {
    pub target: Target,
    /// The addresses of its name, and until when they are believed.
    pub addresses: Option<(Rc<[SocketAddr]>, Instant)>,
    /// Somebody is asked for them.
    pub is_asked_for: bool,
    /// Who waits for them. Some may have given up.
    pub waiting: Vec<ExchangeId>,
    /// Connections that nobody uses, the last used one last.
    pub kept: Vec<ConnectionId>,
    /// Exchanges and connections that are with it.
    pub user_count: u32,
}

impl Site {
    pub fn new(target: Target) -> Site {
        let literal: Option<IpAddr> = target.host.parse().ok();
        let addresses = literal.map(|ip| {
            let all: Rc<[SocketAddr]> = Rc::new([SocketAddr::new(ip, target.port)]);
            (all, Instant::FAR)
        });
        let (waiting, kept) = Default::default();
        Site { target, addresses, is_asked_for: false, waiting, kept, user_count: 0 }
    }

    /// Its addresses, if they are known.
    pub fn addresses(&self, now: Instant) -> Option<Rc<[SocketAddr]>> {
        let (addresses, until) = self.addresses.as_ref()?;
        (now < *until).then(|| Rc::clone(addresses))
    }
}
