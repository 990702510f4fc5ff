//! The thread that serves a scripted model: its connections and their deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use streamdoor::agent::script::{ScriptConnection, ScriptedModel};
use streamdoor::base::Instant;
use streamdoor::reactor::{
    AnyReactor, Choice, Clock, ConnectionId, ListenAddress, ListenOptions, Reactor, SocketEvent,
    Waker, open,
};

use super::CliError;
use crate::cli::console::print_err;

/// Time that a client has to close its connection after the last byte of the reply.
const LINGER: Duration = Duration::from_secs(1);

/// A listener and its connections.
pub struct Serving {
    reactor: AnyReactor,
    address: ListenAddress,
    model: ScriptedModel,
    is_quiet: bool,
    clients: BTreeMap<ConnectionId, ScriptClient>,
    /// The deadlines of the connections, and the connections to be served in this turn.
    due: BTreeSet<(Instant, ConnectionId)>,
    touched: BTreeSet<ConnectionId>,
}

#[derive(Default)]
struct ScriptClient {
    connection: ScriptConnection,
    /// The deadline of this connection in `due`.
    due_at: Option<Instant>,
    /// True once the whole reply was sent.
    is_finished: bool,
}

impl Serving {
    /// Listens on the address. Serves no connection yet.
    pub fn open(
        choice: Choice,
        listen: &ListenAddress,
        model: ScriptedModel,
        is_quiet: bool,
    ) -> Result<Serving, CliError> {
        let opened = open(choice).map_err(|error| CliError::Environment(error.to_string()));
        let (mut reactor, _) = opened?;
        let listener = reactor
            .listen(listen, ListenOptions::default())
            .map_err(|error| CliError::Failed(error.to_string()))?;
        let address = reactor.listen_address(listener).expect("just opened");
        let (clients, due, touched) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Ok(Serving { reactor, address, model, is_quiet, clients, due, touched })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// Returns the handle that makes [`Serving::run`] check whether it has to stop.
    pub fn waker(&self) -> Waker {
        self.reactor.waker()
    }

    /// Serves until a message on `stopped` arrives.
    pub fn run(&mut self, stopped: &Receiver<()>) {
        while stopped.try_recv().is_err() {
            let until = self.due.first().map(|(at, _)| *at);
            self.reactor.wait(until);
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.reactor.poll();
        let now = (Clock::now(), Clock::wall_us());
        while let Some(event) = self.reactor.next_socket_event() {
            let connection = match event {
                SocketEvent::Accepted { connection, .. } => {
                    self.clients.insert(connection, ScriptClient::default());
                    continue;
                }
                SocketEvent::Received { connection, bytes } => {
                    if let Some(client) = self.clients.get_mut(&connection)
                        && !client.is_finished
                    {
                        client.connection.receive(&mut self.model, bytes, now);
                    }
                    connection
                }
                // A client does not half-close before the reply, so the end of its data is a
                // disconnect.
                SocketEvent::Ended { connection, .. } => {
                    self.reactor.close(connection);
                    self.forget(connection);
                    continue;
                }
                SocketEvent::Writable { connection } => connection,
                SocketEvent::Released { .. } | SocketEvent::Connected { .. } => {
                    unreachable!("none is given away, and nobody else is asked")
                }
            };
            self.touched.insert(connection);
        }
        while let Some((at, connection)) = self.due.first().copied() {
            if at > now.0 {
                break;
            }
            self.due.pop_first();
            if let Some(client) = self.clients.get_mut(&connection) {
                client.due_at = None;
                self.touched.insert(connection);
            }
        }
        while let Some(connection) = self.touched.pop_first() {
            self.serve(connection, now);
        }
        while let Some(text) = self.model.next_note() {
            if !self.is_quiet {
                print_err!("{text}");
            }
        }
    }

    /// Sends the bytes that are due on a connection.
    fn serve(&mut self, id: ConnectionId, now: (Instant, u64)) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.is_finished {
            self.reactor.close(id); // The linger time is over.
            return self.forget(id);
        }
        loop {
            client.connection.turn(&mut self.model, now);
            let unsent = client.connection.unsent();
            if unsent.is_empty() {
                break;
            }
            match self.reactor.send(id, &[IoSlice::new(unsent)]) {
                Ok(sent) => client.connection.sent(sent),
                Err(_) => {
                    self.reactor.close(id);
                    return self.forget(id);
                }
            }
            if !client.connection.unsent().is_empty() {
                break; // `Writable` follows.
            }
        }
        let mut due_at = client.connection.next_deadline();
        if client.connection.is_over() {
            client.is_finished = true;
            self.reactor.finish(id);
            due_at = Some(now.0 + LINGER);
        }
        if client.due_at != due_at {
            if let Some(at) = std::mem::replace(&mut client.due_at, due_at) {
                self.due.remove(&(at, id));
            }
            self.due.extend(due_at.map(|at| (at, id)));
        }
    }

    fn forget(&mut self, id: ConnectionId) {
        let Some(client) = self.clients.remove(&id) else { return };
        if let Some(at) = client.due_at {
            self.due.remove(&(at, id));
        }
        client.connection.end(&mut self.model);
    }
}
