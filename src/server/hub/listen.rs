//! The start and the end of a server: listening and draining.

use std::path::Path;
use std::sync::Arc;

use crate::reactor::{ConnectionId, ListenAddress, ListenError, ListenOptions, Reactor};
use crate::server::ServerShard;
use crate::server::hub::Serve;
use crate::server::hub::connection::Doing;
use crate::server::mcp::Mcp;

impl<R: Reactor + 'static> ServerShard<R> {
    /// Serves HTTP at this address from now on. Returns the address with the port that the kernel
    /// chose. An address that other machines can reach requires a token of every client:
    /// [`ShardConfig::access`](crate::shard::ShardConfig::access).
    ///
    /// # Errors
    /// [`ListenError`]. Nothing is left behind.
    ///
    /// ```
    /// use streamdoor::reactor::ListenOptions;
    /// use streamdoor::shard::{Shard, ShardConfig};
    /// let (mut shard, _) = ServerShard::open(ShardConfig::default())?;
    /// let address = shard.listen(&"127.0.0.1:0".parse()?, ListenOptions::default())?;
    /// println!("http://{address}/v1/tools");
    /// shard.turn(); // ... and so on, or `shard.run()`.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listen(
        &mut self,
        address: &ListenAddress,
        options: ListenOptions,
    ) -> Result<ListenAddress, ListenError> {
        if let ListenAddress::Tcp(tcp) = address {
            if !tcp.ip().is_loopback() && !self.guests.access.is_guarded() {
                return Err(ListenError::Unguarded { address: address.clone() });
            }
            Arc::make_mut(&mut self.guests.access).add_address(tcp.ip());
        }
        let opened = self.open_serve();
        opened.map_err(|error| ListenError::without_sockets(address, &error))?;
        let listener = self.reactor.listen(address, options)?;
        let serve = self.guests.serve.as_mut().expect("it was just made");
        serve.access = Arc::clone(&self.guests.access);
        serve.listeners.push(listener);
        Ok(self.reactor.listen_address(listener).expect("it was just made"))
    }

    /// Listens at a Unix socket for processes of this machine and of this user. They may share
    /// memory with the server, besides everything else. A shard has at most one such socket.
    ///
    /// # Errors
    /// [`ListenError`]. Nothing is left behind.
    ///
    /// # Panics
    /// If the shard listens at such a socket already.
    pub fn listen_at_door(&mut self, path: &Path) -> Result<(), ListenError> {
        let address = ListenAddress::Unix(path.to_owned());
        let opened = self.open_serve();
        opened.map_err(|error| ListenError::without_sockets(&address, &error))?;
        let listener = self.reactor.listen(&address, ListenOptions::default())?;
        let serve = self.guests.serve.as_mut().expect("it was just made");
        assert!(serve.door.is_none());
        serve.door = Some(listener);
        serve.listeners.push(listener);
        Ok(())
    }

    /// Creates the tables that connections need, at the first call.
    pub(in crate::server) fn open_serve(&mut self) -> std::io::Result<()> {
        if self.guests.serve.is_none() {
            self.reactor.open_sockets(self.guests.socket_limits)?;
            let seed = self.secrets.draw().map_or(0, |secret| secret.nonce);
            let now = self.reactor.now();
            let connections_max = self.guests.socket_limits.connections_max;
            let per_address_max = self.guests.connections_per_address_max;
            let access = Arc::clone(&self.guests.access);
            let mcp = Mcp::new(self.own_index() as u8, now);
            let serve = Serve::new(connections_max, per_address_max, seed, now, access, mcp);
            self.guests.serve = Some(Box::new(serve));
        }
        Ok(())
    }

    /// Closes all listeners. Open connections stay.
    pub fn stop_listening(&mut self) {
        let Some(serve) = &mut self.guests.serve else { return };
        serve.door = None;
        for listener in serve.listeners.drain(..) {
            self.reactor.close_listener(listener);
        }
    }

    /// Returns the number of open connections.
    pub fn connection_count(&self) -> u32 {
        self.guests.serve.as_ref().map_or(0, |serve| serve.connection_count())
    }

    /// Begins to end the server. It accepts no more connections, stops what runs, and tells
    /// subscribers `detached: shutdown`. Pending output is still sent: call [`ServerShard::turn`] until
    /// [`Shard::connection_count`] is 0, or until a deadline of the caller.
    pub fn drain(&mut self) {
        let Some(serve) = &mut self.guests.serve else { return };
        if std::mem::replace(&mut serve.is_draining, true) {
            return;
        }
        self.stop_listening();
        self.shut_down();
        self.flush_connections();
        self.end_workers();
        self.end_mcp();
        self.end_threads();
        let serve = self.guests.serve.as_ref().expect("it was just there");
        let connections = serve.connections.iter().flatten();
        let told = connections.filter(|c| matches!(c.doing, Doing::Closing) && c.has_read_all());
        let told: Vec<ConnectionId> = told.map(|connection| connection.id).collect();
        for id in told {
            self.drop_connection(id);
        }
        self.flush_connections(); // From now on this closes connections that wait for a request.
    }

    /// Closes the connections without a request while the server drains.
    pub(in crate::server) fn close_idle(&mut self) {
        while let Some(serve) = &mut self.guests.serve
            && serve.is_draining
            && let Some(index) = serve.waiting_line.first()
        {
            let id = serve.connections[index as usize].as_ref().expect("V4").id;
            self.drop_connection(id);
        }
    }

    /// Sends what can be sent and closes all connections. For the end of a shard.
    pub(in crate::server) fn close_connections(&mut self) {
        self.flush_connections();
        let connections =
            self.guests.serve.iter().flat_map(|serve| serve.connections.iter().flatten());
        let all: Vec<ConnectionId> = connections.map(|connection| connection.id).collect();
        for id in all {
            self.drop_connection(id);
        }
    }
}
