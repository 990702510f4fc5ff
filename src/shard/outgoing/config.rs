//! How the servers of models are found, and whom to believe that he is one.

use std::net::IpAddr;
use std::sync::Arc;

/// Names, and the addresses of each.
pub type KnownNames = Arc<[(Box<str>, Vec<IpAddr>)]>;

/// How the servers of models are found and believed. By default the system is asked for both.
#[derive(Clone, Debug, Default)]
pub struct OutgoingConfig {
    /// The addresses of all names that there are, for worlds of their own. `None`: the system knows
    /// them.
    pub names: Option<KnownNames>,
    /// Who has to vouch for a server. `None`: whoever the system trusts, or the file that
    /// `SSL_CERT_FILE` names.
    #[cfg(feature = "tls")]
    pub roots: Option<super::tls::Roots>,
}
