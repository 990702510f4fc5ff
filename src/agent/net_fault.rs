//! Why an exchange with a model's server came to nothing, as far as the network can say. A plain
//! value: the shard's HTTP client makes it, the run decides what follows.

use std::fmt;

/// What went wrong, by what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetFaultKind {
    /// Its name has no address, or nobody could say. Asking again may help.
    Resolve,
    /// Nobody answered at any of its addresses, or in time. Asking again may help.
    Connect,
    /// It is not who it should be, or speaks no TLS that we do. Somebody has to look.
    Tls,
    /// The connection broke before the answer was whole. Asking again may help.
    Broken,
    /// No byte of an answer came in time. Asking again may help.
    FirstByte,
    /// The answer stopped in the middle. Asking again may help.
    Silent,
    /// The whole took too long.
    TooSlow,
    /// What came is no HTTP that we understand. Somebody has to look.
    Malformed,
    /// It is longer than what anybody would read.
    TooLong,
    /// It points elsewhere; redirects are not followed. Somebody has to look.
    Redirected,
    /// It is compressed although nobody asked for that.
    Compressed,
    /// This machine is out of places, descriptors or memory. Asking again later may help.
    Exhausted,
}

impl NetFaultKind {
    /// Its name for machines.
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

    /// May the same request go better in a while?
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

/// An exchange that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetFault {
    /// By what can be done about it.
    pub kind: NetFaultKind,
    /// In words; names the host, never a byte of the request.
    pub text: String,
    /// Anything of the request was given to the kernel: it may have been read.
    pub was_sent: bool,
    /// Anything of an answer came.
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
