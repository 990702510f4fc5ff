//! The handshake era: a client and the terms agreed with it, from `initialize` on.
//!
//! A state machine without a clock or a connection: messages go in, and requests come out. The
//! shard keeps the session, its deadline and its owner. A lost connection does not end a session.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::ask::{Ask, ClientNotification, Incoming, is_method};
use super::client::{ClientCapabilities, ClientInfo};
use super::context::{Asker, Context, Level};
use super::{Era, McpFault, ServerInfo, Version};
use crate::limits;
use crate::wire::jsonrpc::{Id, Parameters, RpcMessage};

/// The message that the session expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
    /// `initialize` was answered; the client has not confirmed that it has read the result.
    ExpectInitialized,
    /// Any message.
    Operating,
}

/// One client of this era.
#[derive(Clone, Debug)]
pub struct McpSession {
    state: SessionState,
    version: Version,
    client: ClientCapabilities,
    client_info: ClientInfo,
    lists_tasks: bool,
    level: Level,
    active: BTreeSet<Id>,
    subscriptions: BTreeSet<String>,
}

impl McpSession {
    /// Opens a session by its first request, and returns the result of that request too.
    ///
    /// # Errors
    /// The request is not `initialize`, or its parameters are wrong.
    pub fn open(
        request: &RpcMessage,
        server: &ServerInfo,
    ) -> Result<(McpSession, Value), McpFault> {
        let params = match request {
            RpcMessage::Request { method, params, .. } if method == "initialize" => params,
            _ => return Err(McpFault::invalid_request("the first request must be `initialize`")),
        };
        let wrong = |problem: &str| McpFault::invalid_params(problem.to_owned()).status(400);
        let requested = params.get("protocolVersion").and_then(Value::as_str);
        let requested = requested.ok_or_else(|| wrong("`protocolVersion` is not a string"))?;
        let capabilities = params.get("capabilities");
        let capabilities = capabilities.ok_or_else(|| wrong("`capabilities` are missing"))?;
        let client_info = params.get("clientInfo");
        let client_info = client_info.ok_or_else(|| wrong("`clientInfo` is missing"))?;
        let version = Version::negotiate(requested);
        let session = McpSession {
            state: SessionState::ExpectInitialized,
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

    /// Checks a message of this session. An admitted request is active until
    /// [`McpSession::finish`].
    ///
    /// # Errors
    /// The error reply to the sender; the session is unchanged.
    pub fn receive(
        &mut self,
        message: RpcMessage,
        version_header: Option<&str>,
    ) -> Result<Incoming, McpFault> {
        check_version(version_header)?;
        match message {
            RpcMessage::Request { id, method, params } => self.request(id, &method, params),
            RpcMessage::Notification { method, params } => {
                Ok(Incoming::Notification(self.told(ClientNotification::parse(&method, &params))))
            }
            RpcMessage::Response { id: Some(id), result } => Ok(Incoming::Reply { id, result }),
            // The client could not parse a message of this server. Nothing can be done about it.
            RpcMessage::Response { id: None, .. } => {
                Ok(Incoming::Notification(ClientNotification::Other))
            }
        }
    }

    fn request(&mut self, id: Id, method: &str, params: Parameters) -> Result<Incoming, McpFault> {
        if method == "initialize" {
            return Err(McpFault::invalid_request("the session is already initialized"));
        }
        let is_listed = method != "tasks/list" || self.lists_tasks;
        if !is_method(method, self.version) || !is_listed {
            return Err(McpFault::method_not_found(method, Era::Handshake));
        }
        if self.active.contains(&id) {
            return Err(McpFault::invalid_request("a request with this `id` is still active"));
        }
        let count_max = limits::MCP_REQUESTS_PER_SESSION_MAX;
        if self.active.len() >= count_max {
            let text =
                format!("{count_max} requests of this session are active, which is the limit");
            return Err(McpFault::busy(text).status(429));
        }
        let asker = Asker {
            id: id.clone(),
            version: self.version,
            client: self.client.clone(),
            client_info: Some(self.client_info.clone()),
            log_level: Some(self.level),
        };
        let (context, params) = Context::take(asker, params)?;
        let ask = Ask::parse(method, params, &context)?;
        if let Ask::SetLevel(level) = ask {
            self.level = level;
        }
        self.active.insert(id);
        Ok(Incoming::Ask(Box::new(context), ask))
    }

    fn told(&mut self, told: ClientNotification) -> ClientNotification {
        match told {
            ClientNotification::Initialized => {
                self.state = SessionState::Operating;
                ClientNotification::Initialized
            }
            // The reply may have been sent already (A31).
            ClientNotification::Cancelled { id, .. } if !self.active.contains(&id) => {
                ClientNotification::Other
            }
            told => told,
        }
    }

    /// Ends a request that was answered, or never will be.
    pub fn finish(&mut self, id: &Id) {
        self.active.remove(id);
    }

    /// Subscribes the client to changes of a resource.
    ///
    /// # Errors
    /// The session has too many subscriptions.
    pub fn subscribe(&mut self, uri: &str) -> Result<(), McpFault> {
        let count_max = limits::MCP_SUBSCRIPTIONS_MAX;
        if self.subscriptions.len() >= count_max && !self.subscriptions.contains(uri) {
            let text = format!("this session has {count_max} subscriptions, which is the limit");
            return Err(McpFault::busy(text).status(429));
        }
        self.subscriptions.insert(uri.to_owned());
        Ok(())
    }

    /// Ends a subscription. Returns `false` if the client had none to this resource.
    pub fn unsubscribe(&mut self, uri: &str) -> bool {
        self.subscriptions.remove(uri)
    }

    /// True if the client is subscribed to changes of this resource.
    pub fn is_subscribed(&self, uri: &str) -> bool {
        self.subscriptions.contains(uri)
    }

    /// The addresses of all resources that the client is subscribed to.
    pub fn subscriptions(&self) -> impl Iterator<Item = &str> {
        self.subscriptions.iter().map(String::as_str)
    }

    /// The agreed version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The client's capabilities.
    pub fn client(&self) -> &ClientCapabilities {
        &self.client
    }

    /// The client's name and version.
    pub fn client_info(&self) -> &ClientInfo {
        &self.client_info
    }

    /// True if the client has read the result of `initialize`. The server sends no request before
    /// that (A3).
    pub fn is_initialized(&self) -> bool {
        self.state == SessionState::Operating
    }

    /// The lowest level of log messages that are sent.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Number of its requests that are active.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }
}

/// Checks the version header, if one is present (A24). It has to name a version of this era. If it
/// is not the agreed version, the agreed one still applies.
fn check_version(header: Option<&str>) -> Result<(), McpFault> {
    let Some(header) = header else { return Ok(()) };
    let header = header.trim_matches([' ', '\t']);
    let known = Version::parse(header).filter(|version| version.era() == Era::Handshake);
    match known {
        Some(_) => Ok(()),
        None => {
            let text =
                "the header `MCP-Protocol-Version` does not name a version that has sessions";
            Err(McpFault::invalid_request(text))
        }
    }
}
