//! The name resolution and the trusted certificates for connections to models' servers.

use std::net::IpAddr;
use std::sync::Arc;

/// Host names with the addresses of each.
pub type KnownNames = Arc<[(Box<str>, Vec<IpAddr>)]>;

/// The name resolution and the trusted certificates for connections to models' servers. By default,
/// both are the system's.
#[derive(Clone, Debug, Default)]
pub struct OutgoingConfig {
    /// The addresses of all names, for simulated networks. `None` uses the system's resolver.
    pub names: Option<KnownNames>,
    /// The certificates that vouch for servers. `None` uses those that the system trusts, or the
    /// file that `SSL_CERT_FILE` names.
    #[cfg(feature = "tls")]
    pub roots: Option<crate::server::outgoing::tls::Roots>,
}
