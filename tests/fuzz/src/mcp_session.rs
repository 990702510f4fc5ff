//! Any messages into the state machines of both eras, as lines of standard input carry them. Each
//! request is answered once, and nothing else is. A refused message changes nothing.
//!
//! A line that begins with `!` is no message: it is an event beside them.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use streamdoor::limits;
use streamdoor::mcp::{
    self, Ask, ClientNotification, Context, Era, Headers, Incoming, McpFault, McpSession,
    ServerInfo, Version, codes,
};
use streamdoor::tool::ToolSpec;
use streamdoor::wire::jsonrpc::{self, Id, RpcMessage};

use super::jsonrpc_lines::check_line;

const STATUSES: [u16; 5] = [200, 400, 404, 429, 503];
const CODES: [i64; 9] = [
    codes::INVALID_REQUEST,
    codes::METHOD_NOT_FOUND,
    codes::INVALID_PARAMS,
    codes::INTERNAL,
    codes::RESOURCE_NOT_FOUND,
    codes::HEADER_MISMATCH,
    codes::MISSING_CAPABILITY,
    codes::UNSUPPORTED_VERSION,
    codes::BUSY,
];

/// Checks a sequence of messages.
pub fn check(data: &[u8]) {
    let server = ServerInfo { lists_tasks: data.len() % 2 == 1, ..ServerInfo::default() };
    let mut host = Host { server, ..Host::default() };
    for line in data.split(|&byte| byte == b'\n') {
        match line.split_first() {
            Some((b'!', command)) => host.happen(command),
            _ => host.hear(line),
        }
    }
    while !host.open.is_empty() {
        host.answer_open(0);
    }
    assert_eq!(host.asked_count, host.answered_count);
}

/// The owner of a session, which replies as a shard does.
#[derive(Default)]
struct Host {
    server: ServerInfo,
    session: Option<McpSession>,
    subscribed: BTreeSet<String>,
    /// The accepted requests, and whether they belong to the session.
    open: Vec<(Id, bool)>,
    /// The HTTP headers of the next message: its version, its method, its name.
    headers: Option<[String; 3]>,
    asked_count: usize,
    answered_count: usize,
}

impl Host {
    /// Executes an event: a reply is ready, the next message has headers, or many requests come.
    fn happen(&mut self, command: &[u8]) {
        match command.split_first() {
            Some((b'h', rest)) => {
                let text = String::from_utf8_lossy(rest);
                let mut parts = text.split('|').map(str::to_owned);
                self.headers = Some([(); 3].map(|()| parts.next().unwrap_or_default()));
            }
            Some((b'*', _)) => self.fill(),
            Some((digit, _)) if !self.open.is_empty() => {
                self.answer_open(usize::from(*digit) % self.open.len());
            }
            _ => {}
        }
    }

    fn answer_open(&mut self, at: usize) {
        let (id, is_of_session) = self.open.remove(at);
        if is_of_session {
            self.session.as_mut().expect("it has asked").finish(&id);
        }
        self.answer(&id, Ok(&json!({"done": true})));
        self.check_active();
    }

    /// Writes the one reply to a request, and checks it.
    fn answer(&mut self, id: &Id, reply: Result<&Value, &McpFault>) {
        self.answered_count += 1;
        assert!(self.answered_count <= self.asked_count, "{id} is answered twice");
        let mut out = Vec::new();
        match reply {
            Ok(result) => jsonrpc::write_result(&mut out, id, result),
            Err(fault) => fault.write(&mut out, Some(id)),
        }
        check_line(&out);
        let Ok(RpcMessage::Response { id: Some(answered), result }) = jsonrpc::parse(&out) else {
            panic!("no answer: {}", out.escape_ascii());
        };
        assert_eq!(answered.as_json(), id.as_json());
        assert_eq!(result.is_ok(), reply.is_ok());
    }

    fn hear(&mut self, line: &[u8]) {
        let Ok(message) = jsonrpc::parse(line) else { return };
        let headers = self.headers.take();
        let version = headers.as_ref().map(|headers| headers[0].clone());
        let id = match &message {
            RpcMessage::Request { id, .. } => {
                self.asked_count += 1;
                Some(id.clone())
            }
            RpcMessage::Notification { .. } | RpcMessage::Response { .. } => None,
        };
        let incoming = match mcp::era_of(&message, version.as_deref()) {
            Era::Stateless => admit(&message, headers.as_ref()),
            Era::Handshake if self.session.is_some() => self.receive(&message, version.as_deref()),
            Era::Handshake => return self.open_session(&message, id),
        };
        match (incoming, id) {
            (Ok(Incoming::Ask(context, ask)), Some(id)) => {
                self.check_ask(&context, &ask);
                assert_eq!(context.id.as_json(), id.as_json());
                self.open.push((id, context.version.era() == Era::Handshake));
                self.check_active();
            }
            (Err(fault), Some(id)) => {
                check_fault(&fault);
                self.answer(&id, Err(&fault));
            }
            (Err(fault), None) => check_fault(&fault), // An HTTP status, or nothing.
            (Ok(Incoming::Notification(_) | Incoming::Reply { .. }), None) => {}
            (incoming, id) => panic!("{id:?}: {incoming:?}"),
        }
    }

    fn open_session(&mut self, message: &RpcMessage, id: Option<Id>) {
        match (McpSession::open(message, &self.server), id) {
            (Ok((session, result)), Some(id)) => {
                assert!(
                    matches!(message, RpcMessage::Request { method, .. } if method == "initialize")
                );
                let version = session.version();
                assert_eq!(version.era(), Era::Handshake);
                assert_eq!(result["protocolVersion"], version.text());
                assert!(!session.is_initialized() && session.active_count() == 0);
                self.session = Some(session);
                self.answer(&id, Ok(&result));
            }
            (Err(fault), Some(id)) => {
                check_fault(&fault);
                self.answer(&id, Err(&fault));
            }
            (Err(_), None) => {}
            (Ok(_), None) => panic!("a session begins with what nobody answers"),
        }
    }

    /// Passes a message to the session. Asserts that a refused one changes nothing, and that states
    /// only go forward.
    fn receive(
        &mut self,
        message: &RpcMessage,
        version: Option<&str>,
    ) -> Result<Incoming, McpFault> {
        let session = self.session.as_mut().expect("it was opened");
        let before = session.clone();
        let incoming = session.receive(message.clone(), version);
        assert_eq!(session.version(), before.version());
        assert_eq!(session.client_info(), before.client_info());
        assert!(session.is_initialized() || !before.is_initialized(), "it went back");
        let is_active = |id: &Id| self.open.iter().any(|(open, own)| *own && open == id);
        match &incoming {
            Ok(Incoming::Notification(ClientNotification::Initialized)) => {
                assert!(session.is_initialized())
            }
            Ok(Incoming::Notification(ClientNotification::Cancelled { id, .. })) => {
                assert!(is_active(id))
            }
            Ok(Incoming::Ask(context, ask)) => {
                assert!(!is_active(&context.id), "{} is under way", context.id);
                let RpcMessage::Request { method, .. } = message else { panic!("{ask:?}") };
                assert!(method != "initialize");
                let is_level = matches!(ask, Ask::SetLevel(level) if *level == session.level());
                assert!(is_level || session.level() == before.level());
                return incoming;
            }
            _ => {}
        }
        let state = |session: &McpSession| {
            let is_ready = session.is_initialized() && before.is_initialized();
            (session.level(), session.active_count(), is_ready)
        };
        assert_eq!(state(session), state(&before));
        if !matches!(incoming, Ok(Incoming::Notification(ClientNotification::Initialized))) {
            assert_eq!(session.is_initialized(), before.is_initialized());
        }
        incoming
    }

    fn check_active(&self) {
        let active_count = self.open.iter().filter(|(_, is_of_session)| *is_of_session).count();
        assert_eq!(self.session.as_ref().map_or(0, McpSession::active_count), active_count);
        assert!(active_count <= limits::MCP_REQUESTS_PER_SESSION_MAX);
    }

    /// Sends more requests at once than a session may have.
    fn fill(&mut self) {
        if self.session.is_none() || self.asked_count > limits::MCP_REQUESTS_PER_SESSION_MAX {
            return;
        }
        for number in 0..=limits::MCP_REQUESTS_PER_SESSION_MAX {
            self.hear(
                format!(r#"{{"jsonrpc":"2.0","id":"f{number}","method":"ping"}}"#).as_bytes(),
            );
        }
        let session = self.session.as_ref().expect("it is there");
        assert_eq!(session.active_count(), limits::MCP_REQUESTS_PER_SESSION_MAX);
    }

    /// Asserts that an accepted request is of its version and within its bounds.
    fn check_ask(&mut self, context: &Context, ask: &Ask) {
        let short = |id: &Id| id.as_json().len() <= limits::MCP_ID_BYTES_MAX;
        assert!(context.progress_token.as_ref().is_none_or(short));
        assert!(context.partial_token.is_none() || context.client.partial_results);
        assert!(context.task.is_none() || context.version == Version::V2025_11_25);
        let is_handshake = context.version.era() == Era::Handshake;
        if is_handshake {
            assert_eq!(context.retry, Default::default());
        }
        match ask {
            Ask::Ping | Ask::SetLevel(_) => assert!(is_handshake),
            Ask::Subscribe { uri } => {
                assert!(is_handshake);
                let session = self.session.as_mut().expect("it asks");
                let is_full = self.subscribed.len() >= limits::MCP_SUBSCRIPTIONS_MAX;
                assert!(session.subscribe(uri).is_ok() || is_full);
                self.subscribed.extend(session.is_subscribed(uri).then(|| uri.clone()));
            }
            Ask::Unsubscribe { uri } => {
                assert!(is_handshake);
                let session = self.session.as_mut().expect("it asks");
                assert_eq!(session.unsubscribe(uri), self.subscribed.remove(uri));
            }
            Ask::ListTasks { .. } => {
                assert_eq!(context.version, Version::V2025_11_25);
                assert!(self.server.lists_tasks);
            }
            Ask::TaskResult { .. } => assert_eq!(context.version, Version::V2025_11_25),
            Ask::Discover | Ask::Listen(_) | Ask::UpdateTask { .. } => assert!(!is_handshake),
            Ask::CallTool { name, .. } | Ask::GetPrompt { name, .. } => {
                assert!((1..=limits::MCP_ID_BYTES_MAX).contains(&name.len()));
            }
            Ask::ReadResource { uri } => {
                assert!(uri.contains(':') && uri.len() <= limits::MCP_URI_BYTES_MAX);
            }
            _ => {}
        }
        if let Some(session) = &self.session {
            assert!(session.subscriptions().eq(self.subscribed.iter().map(String::as_str)));
        }
    }
}

/// Passes a message to the stateless era. Asserts that a second pass gives the same result.
fn admit(message: &RpcMessage, headers: Option<&[String; 3]>) -> Result<Incoming, McpFault> {
    let other = |name: &str| (name.eq_ignore_ascii_case("Mcp-Param-Color")).then_some("red");
    let said = |text: &'_ String| -> Option<String> { (!text.is_empty()).then(|| text.clone()) };
    let parts = headers.map(|headers| [0, 1, 2].map(|at| said(&headers[at])));
    let headers = parts.as_ref().map(|[version, method, name]| Headers {
        version: version.as_deref(),
        method: method.as_deref(),
        name: name.as_deref(),
        other: &other,
    });
    let spec_of = |name: &str| (name == "paint").then(|| Arc::new(paint()));
    let incoming = mcp::admit(message.clone(), headers.as_ref(), &spec_of);
    assert_eq!(mcp::admit(message.clone(), headers.as_ref(), &spec_of), incoming);
    if let Ok(Incoming::Ask(context, _)) = &incoming {
        assert_eq!(context.version.era(), Era::Stateless);
        let RpcMessage::Request { method, params, .. } = message else { panic!("{message:?}") };
        check_headers(headers.as_ref(), context, method, &params.clone().into_map());
        // A transport without headers accepts the message, too.
        assert!(mcp::admit(message.clone(), None, &spec_of).is_ok());
    }
    let is_reply = matches!(message, RpcMessage::Response { .. });
    assert!(!is_reply || incoming.is_err(), "it has asked nothing");
    incoming
}

/// Asserts that accepted headers agree with the body.
fn check_headers(
    headers: Option<&Headers<'_>>,
    context: &Context,
    method: &str,
    params: &Map<String, Value>,
) {
    let Some(headers) = headers else { return };
    let said = |header: Option<&str>| header.map(|text| text.trim_matches([' ', '\t']).to_owned());
    assert_eq!(said(headers.version).as_deref(), Some(context.version.text()));
    assert_eq!(said(headers.method).as_deref(), Some(method));
    if method == "tools/call" && params["name"] == "paint" {
        assert_eq!(params["arguments"]["color"], "red");
    }
    let is_encoded = headers.name.is_some_and(|name| name.contains("=?base64?"));
    if method == "tools/call" && !is_encoded {
        assert_eq!(said(headers.name).as_deref(), params["name"].as_str());
    }
}

/// Returns a tool with an argument in a header.
fn paint() -> ToolSpec {
    let color = json!({"type": "string", "x-mcp-header": "Color"});
    let arguments = json!({"type": "object", "properties": {"color": color}});
    ToolSpec { arguments, ..ToolSpec::new("paint", "Paints.") }
}

fn check_fault(fault: &McpFault) {
    assert!(STATUSES.contains(&fault.status) && CODES.contains(&fault.code), "{fault:?}");
    assert!(!fault.message.is_empty() && fault.code != codes::INTERNAL, "{fault:?}");
}
