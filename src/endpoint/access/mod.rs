//! Who may come in: by which name the server may be called, from which pages it may be asked, and
//! whose token a request has.
//!
//! [`Access`] does not change while it is used. It is asked in one place, when the head of a
//! request was read and before anything else is looked at (`admit.rs`): what is refused there
//! learns neither which paths nor which executions there are.
//!
//! - Names (`hosts.rs`): a page can give its own name our address (DNS rebinding), and then it is
//!   of our origin to a browser. So we answer to loopback names, to addresses that are listened
//!   on, and to names that were configured.
//! - Pages (`hosts.rs`): a browser sends what a page asks for, with or without its permission to
//!   read the answer. So pages of other origins are refused unless they were configured.
//! - Tokens (`tokens.rs`): each stands for a [`Principal`], to whom executions belong.
//! - Tickets (`tickets.rs`): `EventSource` cannot send a token; a ticket opens one stream to it.
//!
//! Tests: beside the files; `matrix_tests.rs`, every route by everything that is refused;
//! `tests/access/`, the same and more of a server.

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
use tickets::Tickets;

pub(super) use admit::{Admission, TICKET};
pub use hosts::{HostError, HostName, Origin, OriginError};
pub use tokens::{TokenFault, Tokens, TokensError, check_token, first_token};

/// Who may come in. Without anything else said: everybody who calls us by a loopback name, and is
/// no page of somebody else's.
///
/// ```
/// use std::time::Duration;
/// use streamdoor::endpoint::{Access, Tokens};
///
/// let tokens = Tokens::read("# for the nightly run\nnightly uJ0yQ3nXw1aC8bE5kR7tZ2mV6pS4dF9h\n")?;
/// let access = Access::default().with_tokens(tokens, [7; 32], Duration::from_secs(3_600));
/// assert!(access.is_guarded());
/// # Ok::<(), streamdoor::endpoint::TokensError>(())
/// ```
#[derive(Clone, Default)]
pub struct Access {
    hosts: Vec<HostName>,
    /// Those that are listened on.
    addresses: Vec<IpAddr>,
    origins: Vec<Origin>,
    guard: Option<Guard>,
}

#[derive(Clone)]
struct Guard {
    tokens: Tokens,
    tickets: Tickets,
}

/// A configured origin, by its place: so that a connection need not keep its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OriginPlace(u8);

impl Access {
    /// Answers to these names, too.
    #[must_use]
    pub fn with_hosts(self, hosts: Vec<HostName>) -> Access {
        Access { hosts, ..self }
    }

    /// Lets pages of these origins ask, and read the answers.
    ///
    /// # Panics
    /// If there are more than [`limits::ORIGINS_MAX`].
    #[must_use]
    pub fn with_origins(self, origins: Vec<Origin>) -> Access {
        assert!(origins.len() <= limits::ORIGINS_MAX);
        Access { origins, ..self }
    }

    /// Asks everybody for one of these tokens. `ticket_key` is what nobody can guess; tickets that
    /// are made with it open a stream for so long.
    #[must_use]
    pub fn with_tokens(self, tokens: Tokens, ticket_key: [u8; 32], ticket_ttl: Duration) -> Access {
        let tickets = Tickets::new(&ticket_key, ticket_ttl);
        Access { guard: Some(Guard { tokens, tickets }), ..self }
    }

    /// Answers to this address, too: it is listened on. Not to one that stands for all of them,
    /// which is nobody's name, though browsers can be made to use it.
    pub fn add_address(&mut self, address: IpAddr) {
        if !address.is_unspecified() && !self.addresses.contains(&address) {
            self.addresses.push(address);
        }
    }

    /// Is everybody asked for a token?
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// How a principal is called; `None` for [`Principal::ANYONE`].
    pub fn name_of(&self, principal: Principal) -> Option<&str> {
        self.guard.as_ref()?.tokens.name_of(principal)
    }

    /// A ticket for the stream of this execution, in this principal's name; `None` where nobody
    /// needs one.
    pub fn ticket(
        &self,
        principal: Principal,
        execution: ExecutionId,
        now: Instant,
    ) -> Option<String> {
        let guard = self.guard.as_ref()?;
        Some(guard.tickets.issue(principal, execution, now))
    }

    /// A configured origin, as answers to its pages name it.
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
