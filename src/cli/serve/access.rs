//! Access to the server, from the settings.

use std::sync::Arc;

use streamdoor::endpoint::Access;
use streamdoor::reactor::{ListenAddress, random_bytes};

use super::super::token_file;
use super::CliError;
use super::settings::Settings;

/// Returns the access rules of the settings. Only digests of the tokens are kept in memory.
///
/// # Errors
/// If the token file is wrong. If the settings have no token file, although other machines can
/// reach the server.
pub fn access(settings: &Settings) -> Result<Arc<Access>, CliError> {
    let access = Access::default()
        .with_hosts(settings.allow_host.clone())
        .with_origins(settings.allow_origin.clone());
    let Some(path) = &settings.token_file.0 else {
        return match settings.listen.iter().find(|address| is_open(address)) {
            None => Ok(Arc::new(access)),
            Some(address) => Err(CliError::Usage(format!(
                "listen: other machines could reach {address} without a token: give --token-file \
                 FILE, with lines of PRINCIPAL TOKEN, or listen on 127.0.0.1, [::1] or unix:PATH"
            ))),
        };
    };
    let tokens = token_file::tokens(path)?;
    let mut ticket_key = [0; 32];
    random_bytes(&mut ticket_key)
        .map_err(|error| CliError::Environment(format!("no random bytes for tickets: {error}")))?;
    Ok(Arc::new(access.with_tokens(tokens, ticket_key, settings.ticket_ttl.0)))
}

/// True if other machines can reach the address.
pub fn is_open(address: &ListenAddress) -> bool {
    matches!(address.resolve(), Ok(ListenAddress::Tcp(tcp)) if !tcp.ip().is_loopback())
}
