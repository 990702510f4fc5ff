//! Access to the server, from the settings.

use std::sync::Arc;

use streamdoor::endpoint::{Access, Tokens};
use streamdoor::memory::ClockAnchor;
use streamdoor::reactor::{Clock, ListenAddress, random_bytes};

use super::super::token_file;
use super::CliError;
use super::journal::Secrets;
use super::settings::Settings;

/// The access rules of the settings, before the key of tickets is known.
pub struct AccessRules {
    access: Access,
    tokens: Option<Tokens>,
}

impl AccessRules {
    /// Reads the rules. Only digests of the tokens are kept in memory.
    ///
    /// # Errors
    /// If the token file is wrong. If the settings have no token file, although other machines can
    /// reach the server.
    pub fn of(settings: &Settings) -> Result<AccessRules, CliError> {
        let access = Access::default()
            .with_hosts(settings.allow_host.clone())
            .with_origins(settings.allow_origin.clone());
        if let Some(path) = &settings.token_file.0 {
            let tokens = Some(token_file::tokens(path)?);
            return Ok(AccessRules { access, tokens });
        }
        match settings.listen.iter().find(|address| is_open(address)) {
            None => Ok(AccessRules { access, tokens: None }),
            Some(address) => Err(CliError::Usage(format!(
                "listen: other machines could reach {address} without a token: give --token-file \
                 FILE, with lines of PRINCIPAL TOKEN, or listen on 127.0.0.1, [::1] or unix:PATH"
            ))),
        }
    }

    /// Returns the rules for the clients. With secrets that outlive the server, so do tickets.
    ///
    /// # Errors
    /// If the operating system has no random bytes.
    pub fn with(
        self,
        settings: &Settings,
        secrets: Option<&Secrets>,
    ) -> Result<Arc<Access>, CliError> {
        let AccessRules { access, tokens } = self;
        let Some(tokens) = tokens else { return Ok(Arc::new(access)) };
        let ttl = settings.ticket_ttl.0;
        if let Some(secrets) = secrets {
            let clock = ClockAnchor { wall_us: Clock::wall_us(), mono_ns: Clock::now().nanos() };
            let access = access.with_tokens(tokens, secrets.tickets, ttl);
            return Ok(Arc::new(access.with_wall_clock(clock)));
        }
        let mut ticket_key = [0; 32];
        random_bytes(&mut ticket_key).map_err(|error| {
            CliError::Environment(format!("no random bytes for tickets: {error}"))
        })?;
        Ok(Arc::new(access.with_tokens(tokens, ticket_key, ttl)))
    }
}

/// True if other machines can reach the address.
pub fn is_open(address: &ListenAddress) -> bool {
    matches!(address.resolve(), Ok(ListenAddress::Tcp(tcp)) if !tcp.ip().is_loopback())
}
