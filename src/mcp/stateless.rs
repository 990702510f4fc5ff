//! The stateless era: each request declares its client and the client's capabilities, and the
//! server keeps no state between two requests.
//!
//! A lost connection ends its request. The server sends no requests. A call of a tool that asks a
//! question is answered with `input_required`, and the client sends the call again.

use std::sync::Arc;

use serde_json::Value;

use super::ask::{Ask, ClientNotification, Incoming, is_method};
use super::client::{ClientCapabilities, ClientInfo};
use super::context::{
    Asker, Context, Level, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, META_VERSION,
};
use super::headers::Headers;
use super::{Era, McpFault, Version};
use crate::tool::ToolSpec;
use crate::wire::jsonrpc::{Parameters, RpcMessage};
use crate::wire::members::Members;

/// Returns the era of a message (C1 to C3, B14). Its `_meta` decides, or else the version header of
/// HTTP.
pub fn era_of(message: &RpcMessage, version_header: Option<&str>) -> Era {
    let params = match message {
        RpcMessage::Request { params, .. } | RpcMessage::Notification { params, .. } => {
            Some(params)
        }
        RpcMessage::Response { .. } => None,
    };
    let meta = params.and_then(Parameters::meta);
    let is_modern =
        |meta: &Members| meta.get(META_VERSION).is_some() || meta.get(META_CAPABILITIES).is_some();
    if meta.is_some_and(is_modern) || version_header.is_some_and(is_later) {
        return Era::Stateless;
    }
    Era::Handshake
}

/// True if `header` is a date after the last version with a handshake. It may be an unknown
/// version, whose request gets an error that lists the known ones.
fn is_later(header: &str) -> bool {
    let header = header.trim_matches([' ', '\t']);
    let is_date = header.len() == 10
        && header.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    is_date && header > Version::LATEST_HANDSHAKE.text()
}

/// Admits a message of this era. `headers` are present over HTTP only. `spec_of` finds the tools
/// that this client may call.
///
/// # Errors
/// The message is not admitted. The error is the reply to its sender.
pub fn admit(
    message: RpcMessage,
    headers: Option<&Headers<'_>>,
    spec_of: &dyn Fn(&str) -> Option<Arc<ToolSpec>>,
) -> Result<Incoming, McpFault> {
    let (id, method, params) = match message {
        RpcMessage::Request { id, method, params } => (id, method, params),
        RpcMessage::Notification { method, params } => {
            return Ok(Incoming::Notification(ClientNotification::parse(&method, &params)));
        }
        RpcMessage::Response { .. } => {
            return Err(McpFault::invalid_request(
                "this server sends no requests, so it accepts no responses",
            ));
        }
    };
    let version = version_of(&params, headers)?;
    let DeclaredClient { client, client_info, log_level } = DeclaredClient::of(&params)?;
    if let Some(headers) = headers {
        headers.check_method(&method)?;
    }
    if !is_method(&method, version) {
        return Err(McpFault::method_not_found(&method, Era::Stateless));
    }
    if let Some(headers) = headers {
        headers.check_name(&method, &params)?;
        if method == "tools/call" {
            headers.check_params(&params, spec_of)?;
        }
    }
    if method == "tasks/update" && !params.get("inputResponses").is_some_and(Value::is_object) {
        return Err(McpFault::invalid_params("`inputResponses` is not an object"));
    }
    let asker = Asker { id, version, client, client_info, log_level };
    let (context, params) = Context::take(asker, params)?;
    let ask = Ask::parse(&method, params, &context)?;
    Ok(Incoming::Ask(Box::new(context), ask))
}

fn missing(name: &str) -> McpFault {
    McpFault::invalid_params(format!("`{name}` of `_meta` is missing or invalid")).status(400)
}

/// Returns the version of a request. It is checked before all else, because another version may
/// spell the rest differently.
fn version_of(params: &Parameters, headers: Option<&Headers<'_>>) -> Result<Version, McpFault> {
    let said = params.meta().and_then(|meta| meta.get(META_VERSION)).and_then(Value::as_str);
    let said = said.ok_or_else(|| missing(META_VERSION))?;
    if let Some(headers) = headers {
        headers.check_version(said)?;
    }
    let version = Version::parse(said).filter(|known| known.era() == Era::Stateless);
    version.ok_or_else(|| McpFault::unsupported_version(said))
}

/// The data that a request declares about its client.
struct DeclaredClient {
    client: ClientCapabilities,
    client_info: Option<ClientInfo>,
    log_level: Option<Level>,
}

impl DeclaredClient {
    /// Reads the data from `_meta`.
    ///
    /// # Errors
    /// A required member is missing or malformed (B3).
    fn of(params: &Parameters) -> Result<DeclaredClient, McpFault> {
        let meta = params.meta().ok_or_else(|| missing(META_CAPABILITIES))?;
        let client = meta.get(META_CAPABILITIES).ok_or_else(|| missing(META_CAPABILITIES))?;
        let client = ClientCapabilities::parse(client).map_err(|fault| fault.status(400))?;
        let given = |name: &str| meta.get(name).filter(|value| !value.is_null());
        let client_info = given(META_CLIENT).map(ClientInfo::parse).transpose();
        let log_level = given(META_LOG_LEVEL).map(Level::of).transpose()?;
        let client_info = client_info.map_err(|fault| fault.status(400))?;
        Ok(DeclaredClient { client, client_info, log_level })
    }
}
