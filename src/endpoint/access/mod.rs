//! Admission of requests: the host names of the server, the origins of pages, and bearer tokens.
//!
//! [`Access`] does not change while it is used. It is consulted in one place (`admit.rs`), after
//! the head of a request was read and before anything else is examined. A refused request therefore
//! learns neither which paths nor which executions exist.
//!
//! - Host names (`hosts.rs`): a page can point its own name to our address (DNS rebinding), and a
//!   browser then takes it for our origin. Therefore only loopback names, addresses that are
//!   listened on, and configured names are accepted.
//! - Origins (`hosts.rs`): a browser sends the requests of a page even if the page may not read the
//!   answers. Therefore pages of other origins are refused unless their origin is configured.
//! - Tokens (`tokens.rs`): each stands for a [`Principal`], which owns executions.
//! - Tickets (`tickets.rs`): `EventSource` cannot send a token. A ticket opens one stream to it.
//!
//! Tests: beside the files. `matrix_tests.rs` tests every route with everything that is refused.
//! `tests/access/` tests the same and more with a server.

mod admit;
mod hosts;
#[cfg(test)]
mod matrix_tests;
#[cfg(test)]
mod ticket_tests;
mod tickets;
mod tokens;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::base::{ExecutionId, Instant, Principal};
use crate::limits;
use crate::memory::ClockAnchor;
use tickets::Tickets;

pub(super) use admit::{Admission, TICKET};
pub use hosts::{HostError, HostName, Origin, OriginError};
pub use tokens::{TokenFault, Tokens, TokensError, check_token, first_token};

/// The rules of admission. By default, every request is admitted whose host is a loopback name,
/// except those of pages of other origins.
///
/// ```
/// use std::time::Duration;
/// use streamdoor::server::{Access, Tokens};
///
/// let tokens = Tokens::read("# for the nightly run\nnightly uJ0yQ3nXw1aC8bE5kR7tZ2mV6pS4dF9h\n")?;
/// let access = Access::default().with_tokens(tokens, [7; 32], Duration::from_secs(3_600));
/// assert!(access.is_guarded());
/// # Ok::<(), streamdoor::server::TokensError>(())
/// ```
#[derive(Clone, Default)]
pub struct Access {
    hosts: Vec<HostName>,
    /// The addresses that are listened on.
    addresses: Vec<IpAddr>,
    origins: Vec<Origin>,
    guard: Option<Guard>,
}

#[derive(Clone)]
struct Guard {
    tokens: Tokens,
    tickets: Tickets,
}

/// The index of a configured origin. A connection keeps it instead of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OriginPlace(u8);

impl Access {
    /// Accepts these host names, too.
    #[must_use]
    pub fn with_hosts(self, hosts: Vec<HostName>) -> Access {
        Access { hosts, ..self }
    }

    /// Admits pages of these origins, and lets them read the answers.
    ///
    /// # Panics
    /// If there are more than `limits::ORIGINS_MAX`.
    #[must_use]
    pub fn with_origins(self, origins: Vec<Origin>) -> Access {
        assert!(origins.len() <= limits::ORIGINS_MAX);
        Access { origins, ..self }
    }

    /// Requires one of these tokens from every client. `ticket_key` must be secret. Tickets made
    /// with it open a stream for `ticket_ttl`.
    #[must_use]
    pub fn with_tokens(self, tokens: Tokens, ticket_key: [u8; 32], ticket_ttl: Duration) -> Access {
        let tickets = Tickets::new(&ticket_key, ticket_ttl);
        Access { guard: Some(Guard { tokens, tickets }), ..self }
    }

    /// Lets tickets expire by the wall clock. If their key outlives the server, so do they.
    /// `clock` relates the clocks of now.
    #[must_use]
    pub fn with_wall_clock(self, clock: ClockAnchor) -> Access {
        let timed = |Guard { tokens, tickets }| Guard { tokens, tickets: tickets.by_clock(clock) };
        Access { guard: self.guard.map(timed), ..self }
    }

    /// Returns these rules with other tokens. A principal of the same name stays the same. A
    /// principal without a token is refused, and so are its tickets.
    ///
    /// # Errors
    /// [`TokenFault::TooManyPrincipals`], if too many principals have had a token since the start.
    ///
    /// # Panics
    /// If no tokens were required before.
    pub fn with_renewed_tokens(&self, next: &Tokens) -> Result<Access, TokenFault> {
        let Guard { tokens, tickets } = self.guard.as_ref().expect("tokens were required");
        let guard = Guard { tokens: tokens.replaced_by(next)?, tickets: tickets.clone() };
        Ok(Access { guard: Some(guard), ..self.clone() })
    }

    /// Accepts this address as a host name, because it is listened on. The unspecified address is
    /// ignored: it is no server's name, though browsers can be made to use it.
    pub fn add_address(&mut self, address: IpAddr) {
        if !address.is_unspecified() && !self.addresses.contains(&address) {
            self.addresses.push(address);
        }
    }

    /// Returns true if every client needs a token.
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Returns the name of a principal; `None` for [`Principal::ANYONE`].
    pub fn name_of(&self, principal: Principal) -> Option<&str> {
        self.guard.as_ref()?.tokens.name_of(principal)
    }

    /// Returns the principal of this name; [`Principal::ANYONE`] for no name on a server that
    /// requires no tokens. All others are [`Principal::NOBODY`], which owns nothing that a caller
    /// can find.
    pub fn principal_of(&self, name: Option<&str>) -> Principal {
        match (&self.guard, name) {
            (None, None) => Principal::ANYONE,
            (Some(guard), Some(name)) => guard.tokens.named(name).unwrap_or(Principal::NOBODY),
            (None, Some(_)) | (Some(_), None) => Principal::NOBODY,
        }
    }

    /// Returns a ticket for the stream of this execution, on behalf of this principal. `None` if no
    /// tokens are required, or if the principal has no name.
    pub fn ticket(
        &self,
        principal: Principal,
        execution: ExecutionId,
        now: Instant,
    ) -> Option<String> {
        let guard = self.guard.as_ref()?;
        Some(guard.tickets.issue(guard.tokens.name_of(principal)?, execution, now))
    }

    /// Returns a configured origin as a header value.
    pub(super) fn origin(&self, place: OriginPlace) -> Option<&str> {
        self.origins.get(usize::from(place.0)).map(Origin::as_str)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = out.debug_struct("Access");
        all.field("hosts", &self.hosts).field("addresses", &self.addresses);
        all.field("origins", &self.origins).field("is_guarded", &self.is_guarded()).finish()
    }
}
