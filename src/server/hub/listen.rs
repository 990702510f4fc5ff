//! The start and the end of a server: listening and draining.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use crate::reactor::{ListenAddress, ListenError, ListenOptions, Reactor};
use crate::server::ServerShard;
use crate::server::guests::Guests;
use crate::server::hub::Hub;

/// Serves HTTP at this address from now on. Returns the address with the port that the kernel
/// chose. An address that other machines can reach requires a token of every client:
/// [`ShardConfig::access`](crate::shard::ShardConfig::access).
pub(in crate::server) fn listen<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    address: &ListenAddress,
    options: ListenOptions,
) -> Result<ListenAddress, ListenError> {
    // An error is reported with the others, when the listener is opened.
    let resolved = address.resolve().unwrap_or_else(|_| address.clone());
    if let ListenAddress::Tcp(tcp) = resolved {
        if !tcp.ip().is_loopback() && !shard.guests.access.is_guarded() {
            return Err(ListenError::Unguarded { address: resolved });
        }
        Arc::make_mut(&mut shard.guests.access).add_address(tcp.ip());
    }
    let opened = open_hub(shard);
    opened.map_err(|error| ListenError::without_sockets(address, &error))?;
    let listener = shard.reactor.listen(address, options)?;
    let hub = &mut shard.guests.hub;
    hub.access = Arc::clone(&shard.guests.access);
    hub.listeners.push(listener);
    Ok(shard.reactor.listen_address(listener).expect("it was just made"))
}

/// Listens at a Unix socket for processes of this machine and of this user. They may share
/// memory with the server, besides everything else. A shard has at most one such socket.
pub(in crate::server) fn listen_at_door<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    path: &Path,
) -> Result<(), ListenError> {
    let address = ListenAddress::Unix(path.to_owned());
    let opened = open_hub(shard);
    opened.map_err(|error| ListenError::without_sockets(&address, &error))?;
    let listener = shard.reactor.listen(&address, ListenOptions::default())?;
    let hub = &mut shard.guests.hub;
    assert!(hub.door.is_none());
    hub.door = Some(listener);
    hub.listeners.push(listener);
    Ok(())
}

/// Closes all listeners. Open connections stay.
pub(in crate::server) fn stop_listening<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let hub = &mut shard.guests.hub;
    hub.door = None;
    for listener in hub.listeners.drain(..) {
        shard.reactor.close_listener(listener);
    }
}

/// Returns the number of open connections.
pub(in crate::server) fn connection_count<R: Reactor + 'static>(shard: &ServerShard<R>) -> u32 {
    shard.guests.hub.connection_count()
}

/// Creates the tables that connections need, at the first call.
pub(in crate::server) fn open_hub<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
) -> std::io::Result<()> {
    if !shard.guests.hub.is_open {
        shard.reactor.open_sockets(shard.guests.socket_limits)?;
        let seed = shard.secrets.draw().map_or(0, |secret| secret.nonce);
        let now = shard.reactor.now();
        let connections_max = shard.guests.socket_limits.connections_max;
        let per_address_max = shard.guests.connections_per_address_max;
        let Guests { access, tally, .. } = &shard.guests;
        let rules = (Arc::clone(access), Rc::clone(tally));
        let hub = Hub::new(connections_max, per_address_max, seed, now, rules);
        shard.guests.hub = Hub { is_open: true, ..hub };
    }
    Ok(())
}
