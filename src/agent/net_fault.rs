//! The network faults of an exchange with a model's server. They are plain values: the shard's HTTP
//! client creates them, and the run decides how to proceed.

use std::fmt;

/// The kind of a network fault, grouped by the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetFaultKind {
    /// The host name has no address, or name resolution failed or timed out. A retry may help.
    Resolve,
    /// No address of the server accepted a connection in time. A retry may help.
    Connect,
    /// The server is not trusted, or it supports no TLS that this client supports. A person has to
    /// act.
    Tls,
    /// The connection broke before the answer was complete. A retry may help.
    Broken,
    /// No byte of an answer came in time. A retry may help.
    FirstByte,
    /// The answer stopped in the middle. A retry may help.
    Silent,
    /// The whole exchange took too long.
    TooSlow,
    /// The answer is not HTTP that this client understands. A person has to act.
    Malformed,
    /// The answer is longer than the limit.
    TooLong,
    /// The server redirects the request; redirects are not followed. A person has to act.
    Redirected,
    /// The answer is compressed, although the request did not allow it.
    Compressed,
    /// This machine is out of slots, descriptors or memory. A later retry may help.
    Exhausted,
}

impl NetFaultKind {
    /// Returns the name of the kind for machines.
    pub fn code(self) -> &'static str {
        match self {
            NetFaultKind::Resolve => "model_unresolved",
            NetFaultKind::Connect => "model_unreachable",
            NetFaultKind::Tls => "model_untrusted",
            NetFaultKind::Broken => "model_connection_broken",
            NetFaultKind::FirstByte => "model_first_byte_timeout",
            NetFaultKind::Silent => "model_silence_timeout",
            NetFaultKind::TooSlow => "model_total_timeout",
            NetFaultKind::Malformed => "model_answer_malformed",
            NetFaultKind::TooLong => "model_answer_too_long",
            NetFaultKind::Redirected => "model_redirect",
            NetFaultKind::Compressed => "model_answer_compressed",
            NetFaultKind::Exhausted => "model_no_connection",
        }
    }

    /// True if the same request can succeed later.
    pub fn is_retryable(self) -> bool {
        match self {
            NetFaultKind::Resolve
            | NetFaultKind::Connect
            | NetFaultKind::Broken
            | NetFaultKind::FirstByte
            | NetFaultKind::Silent
            | NetFaultKind::Exhausted => true,
            NetFaultKind::Tls
            | NetFaultKind::TooSlow
            | NetFaultKind::Malformed
            | NetFaultKind::TooLong
            | NetFaultKind::Redirected
            | NetFaultKind::Compressed => false,
        }
    }
}

/// An exchange that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetFault {
    /// The kind of the fault.
    pub kind: NetFaultKind,
    /// The description. It names the host and contains no byte of the request.
    pub text: String,
    /// True if any byte of the request was given to the kernel. The server may have read it.
    pub was_sent: bool,
    /// True if any byte of an answer was received.
    pub was_received: bool,
}

impl fmt::Display for NetFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl std::error::Error for NetFault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_happened_and_whether_to_ask_again() {
        let text = "api.example:443: connection refused".to_owned();
        let kind = NetFaultKind::Connect;
        let fault = NetFault { kind, text, was_sent: false, was_received: false };
        assert_eq!(fault.to_string(), "api.example:443: connection refused");
        assert!(fault.kind.is_retryable() && !NetFaultKind::Tls.is_retryable());
        assert_eq!(fault.kind.code(), "model_unreachable");
    }
}
