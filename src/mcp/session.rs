//! The handshake era: a client and what was agreed with it, from `initialize` on.
//!
//! A machine without a clock or a connection: messages go in, what they ask comes out. Where the
//! session is kept, how long, and whose it is, is for the shard to know. A lost connection does
//! not end it.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::ask::{Ask, Incoming, Told, is_method};
use super::client::{ClientCapabilities, ClientInfo};
use super::context::{Asker, Context, Level};
use super::{Era, Fault, ServerInfo, Version};
use crate::limits;
use crate::wire::jsonrpc::{Id, Message};

/// What the session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// `initialize` was answered; the client has not said that it has read the answer.
    ExpectInitialized,
    /// Anything.
    Operating,
}

/// One client of this era.
#[derive(Clone, Debug)]
pub struct Session {
    state: State,
    version: Version,
    client: ClientCapabilities,
    client_info: ClientInfo,
    lists_tasks: bool,
    level: Level,
    active: BTreeSet<Id>,
    subscriptions: BTreeSet<String>,
}

impl Session {
    /// Opens one by its first request; gives the result of that too.
    ///
    /// # Errors
    /// It is not `initialize`, or not a right one.
    pub fn open(request: &Message, server: &ServerInfo) -> Result<(Session, Value), Fault> {
        let params = match request {
            Message::Request { method, params, .. } if method == "initialize" => params,
            _ => return Err(Fault::invalid_request("the first request is `initialize`")),
        };
        let wrong = |problem: &str| Fault::invalid_params(problem.to_owned()).status(400);
        let requested = params.get("protocolVersion").and_then(Value::as_str);
        let requested = requested.ok_or_else(|| wrong("`protocolVersion` is not a string"))?;
        let capabilities = params.get("capabilities");
        let capabilities = capabilities.ok_or_else(|| wrong("`capabilities` are missing"))?;
        let client_info = params.get("clientInfo");
        let client_info = client_info.ok_or_else(|| wrong("`clientInfo` is missing"))?;
        let version = Version::negotiate(requested);
        let session = Session {
            state: State::ExpectInitialized,
            version,
            client: ClientCapabilities::parse(capabilities).map_err(|fault| fault.status(400))?,
            client_info: ClientInfo::parse(client_info).map_err(|fault| fault.status(400))?,
            lists_tasks: server.lists_tasks,
            level: Level::Info,
            active: BTreeSet::new(),
            subscriptions: BTreeSet::new(),
        };
        let mut result = json!({
            "protocolVersion": version.text(),
            "capabilities": server.capabilities(version),
            "serverInfo": server.implementation(version),
        });
        if let Some(instructions) = &server.instructions {
            result["instructions"] = instructions.as_str().into();
        }
        Ok((session, result))
    }

    /// What a message of this session asks or tells. A request that is let in is active until
    /// [`Session::finish`].
    ///
    /// # Errors
    /// What its sender is told; nothing has changed.
    pub fn receive(
        &mut self,
        message: Message,
        version_header: Option<&str>,
    ) -> Result<Incoming, Fault> {
        check_version(version_header)?;
        match message {
            Message::Request { id, method, params } => self.request(id, &method, params),
            Message::Notification { method, params } => {
                Ok(Incoming::Told(self.told(Told::parse(&method, &params))))
            }
            Message::Response { id: Some(id), result } => Ok(Incoming::Reply { id, result }),
            // It could not read something of ours. There is nothing to be done about it.
            Message::Response { id: None, .. } => Ok(Incoming::Told(Told::Other)),
        }
    }

    fn request(
        &mut self,
        id: Id,
        method: &str,
        mut params: Map<String, Value>,
    ) -> Result<Incoming, Fault> {
        if method == "initialize" {
            return Err(Fault::invalid_request("`initialize` was answered before"));
        }
        let is_listed = method != "tasks/list" || self.lists_tasks;
        if !is_method(method, self.version) || !is_listed {
            return Err(Fault::method_not_found(method, Era::Handshake));
        }
        if self.active.contains(&id) {
            return Err(Fault::invalid_request("a request with this `id` is still under way"));
        }
        let count_max = limits::MCP_REQUESTS_PER_SESSION_MAX;
        if self.active.len() >= count_max {
            let text = format!("{count_max} requests of this session are under way");
            return Err(Fault::busy(text).status(429));
        }
        let asker = Asker {
            id: id.clone(),
            version: self.version,
            client: self.client.clone(),
            client_info: Some(self.client_info.clone()),
            log_level: Some(self.level),
        };
        let context = Context::take(asker, &mut params)?;
        let ask = Ask::parse(method, params, &context)?;
        if let Ask::SetLevel(level) = ask {
            self.level = level;
        }
        self.active.insert(id);
        Ok(Incoming::Ask(Box::new(context), ask))
    }

    fn told(&mut self, told: Told) -> Told {
        match told {
            Told::Initialized => {
                self.state = State::Operating;
                Told::Initialized
            }
            // A31: its answer may be on its way already.
            Told::Cancelled { id, .. } if !self.active.contains(&id) => Told::Other,
            told => told,
        }
    }

    /// A request was answered, or will not be.
    pub fn finish(&mut self, id: &Id) {
        self.active.remove(id);
    }

    /// Notes that the client wants to be told of changes of a resource.
    ///
    /// # Errors
    /// There are too many.
    pub fn subscribe(&mut self, uri: &str) -> Result<(), Fault> {
        let count_max = limits::MCP_SUBSCRIPTIONS_MAX;
        if self.subscriptions.len() >= count_max && !self.subscriptions.contains(uri) {
            let text = format!("this session has {count_max} subscriptions");
            return Err(Fault::busy(text).status(429));
        }
        self.subscriptions.insert(uri.to_owned());
        Ok(())
    }

    /// Notes that it does not any more. `false` if it did not.
    pub fn unsubscribe(&mut self, uri: &str) -> bool {
        self.subscriptions.remove(uri)
    }

    /// Does it want to be told of changes of this resource?
    pub fn is_subscribed(&self, uri: &str) -> bool {
        self.subscriptions.contains(uri)
    }

    /// Of which resources it wants to be told.
    pub fn subscriptions(&self) -> impl Iterator<Item = &str> {
        self.subscriptions.iter().map(String::as_str)
    }

    /// What was agreed upon.
    pub fn version(&self) -> Version {
        self.version
    }

    /// What the client can do.
    pub fn client(&self) -> &ClientCapabilities {
        &self.client
    }

    /// Who it is.
    pub fn client_info(&self) -> &ClientInfo {
        &self.client_info
    }

    /// Has the client read the answer to `initialize`? Before it has it is asked nothing (A3).
    pub fn is_initialized(&self) -> bool {
        self.state == State::Operating
    }

    /// Log messages below this are not sent.
    pub fn level(&self) -> Level {
        self.level
    }

    /// How many of its requests are under way.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }
}

/// A24: what is there has to be a version of this era. That of another than was agreed upon is let
/// through: what was agreed upon holds.
fn check_version(header: Option<&str>) -> Result<(), Fault> {
    let Some(header) = header else { return Ok(()) };
    let header = header.trim_matches([' ', '\t']);
    let known = Version::parse(header).filter(|version| version.era() == Era::Handshake);
    match known {
        Some(_) => Ok(()),
        None => {
            let text = "the header `MCP-Protocol-Version` names no version of this session";
            Err(Fault::invalid_request(text))
        }
    }
}
