//! Parts of a running server that can be replaced: tokens and the certificate.

use std::sync::Arc;

use crate::endpoint::{TokenFault, Tokens};
use crate::limits;
use crate::server::hub::TlsConfig;
use crate::server::{ServerHandle, ServerShard};
use crate::shard::CallError;

/// Replaces parts of a running server. Streams and executions go on. A dead shard is passed over.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use streamdoor::server::{Access, GuestConfig, ServerShardConfig, Tokens};
/// use streamdoor::{Server, ServerConfig};
///
/// let tokens = |text| Tokens::read(text).expect("lines of PRINCIPAL TOKEN");
/// let first = tokens("nightly uJ0yQ3nXw1aC8bE5kR7tZ2mV6pS4dF9h\n");
/// let access = Access::default().with_tokens(first, [7; 32], Duration::from_secs(3_600));
/// let guests = GuestConfig { access: Arc::new(access), ..GuestConfig::default() };
/// let config = ServerConfig {
///     shards: vec![ServerShardConfig { guests, ..ServerShardConfig::default() }],
///     listen: vec!["127.0.0.1:0".parse()?],
///     connections_max: 100,
/// };
/// let server = Server::start(config, Arc::new(|_shard| {}))?;
/// server.renewal().set_tokens(tokens("nightly A9sQ3nXw1aC8bE5kR7tZ2mV6pS4dF9hq\n"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Renewal {
    handles: Vec<ServerHandle>,
}

impl Renewal {
    pub(in crate::server) fn new(handles: Vec<ServerHandle>) -> Renewal {
        Renewal { handles }
    }

    /// Replaces all tokens. A principal of the same name keeps its executions. A principal without
    /// a token is refused from now on; its open streams go on.
    ///
    /// # Errors
    /// [`TokenFault::TooManyPrincipals`]. The shards keep the tokens that they had.
    ///
    /// # Panics
    /// If the server was started without tokens.
    pub fn set_tokens(&self, tokens: Tokens) -> Result<(), TokenFault> {
        let tokens = Arc::new(tokens);
        let answers = self.on_each(move |shard| {
            let renewed = Arc::new(shard.guests.access.with_renewed_tokens(&tokens)?);
            shard.guests.access = Arc::clone(&renewed);
            shard.guests.hub.set_access(renewed);
            Ok(())
        });
        answers.into_iter().collect() // All shards have had the same tokens.
    }

    /// Replaces the certificate and its key for connections from now on.
    ///
    /// # Panics
    /// If the server was started without a certificate.
    pub fn set_tls(&self, tls: TlsConfig) {
        self.on_each(move |shard| {
            assert!(shard.guests.tls.is_some(), "the server was started without a certificate");
            shard.guests.tls = Some(tls.clone());
        });
    }

    /// Checks that every living shard takes calls. It returns when all have answered.
    pub fn check(&self) {
        self.on_each(|_| ());
    }

    /// Calls `change` on each living shard, and returns the answers.
    fn on_each<T: Send + 'static>(
        &self,
        change: impl Fn(&mut ServerShard) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let answer_of = |handle| call_when_free(handle, change.clone());
        self.handles.iter().filter_map(answer_of).collect()
    }
}

/// Calls `ask` on a shard once it accepts calls. `None` if the shard has ended.
pub(in crate::server) fn call_when_free<T: Send + 'static>(
    handle: &ServerHandle,
    ask: impl Fn(&mut ServerShard) -> T + Clone + Send + 'static,
) -> Option<T> {
    loop {
        let ask = ask.clone();
        match handle.call(move |shard| ask(shard)) {
            Ok(answer) => return Some(answer),
            Err(CallError::Busy) => std::thread::sleep(limits::DRAIN_LOOK),
            Err(_) => return None,
        }
    }
}
