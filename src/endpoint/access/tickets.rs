//! Tickets: the credentials of a browser's `EventSource`, which cannot send a token.
//!
//! A ticket is part of a URL, and URLs end up in logs and histories. Therefore a ticket opens only
//! the stream of one execution, for one principal, for a limited time. It is 42 bytes in URL-safe
//! base 64: the time of expiry, the principal, and an HMAC. The HMAC covers these two and the id of
//! the execution. The key is drawn when the server starts, so no ticket outlives the server.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::base::{ExecutionId, Instant, Principal};
use crate::wire::base64;

/// Issues and checks tickets.
#[derive(Clone)]
pub(super) struct Tickets {
    /// The HMAC with its key, before any input.
    mac: Hmac<Sha256>,
    ttl: Duration,
}

const EXPIRY_BYTES: usize = 8;
const PRINCIPAL_BYTES: usize = 2;
const TAG_BYTES: usize = 32;
const TICKET_BYTES: usize = EXPIRY_BYTES + PRINCIPAL_BYTES + TAG_BYTES;
const _: () = assert!(TICKET_BYTES.is_multiple_of(3)); // Base 64 needs no padding.

impl Tickets {
    pub fn new(key: &[u8; 32], ttl: Duration) -> Tickets {
        let mac = Hmac::new_from_slice(key).expect("a key may have any length");
        Tickets { mac, ttl }
    }

    /// Returns a ticket for this principal and this execution, valid from now on.
    pub fn issue(&self, principal: Principal, execution: ExecutionId, now: Instant) -> String {
        // Rounded up, so that the ticket is valid for all of the promised time.
        let expiry_s = (now + self.ttl).nanos().div_ceil(1_000_000_000);
        let tag = self.tag(expiry_s, principal, execution).finalize().into_bytes();
        let mut bytes = Vec::with_capacity(TICKET_BYTES);
        bytes.extend_from_slice(&expiry_s.to_be_bytes());
        bytes.extend_from_slice(&principal.0.to_be_bytes());
        bytes.extend_from_slice(&tag);
        let mut text = Vec::new();
        base64::write(&mut text, &bytes);
        let digit = |byte: u8| match byte {
            b'+' => '-',
            b'/' => '_',
            other => char::from(other),
        };
        text.into_iter().map(digit).collect()
    }

    /// Returns the principal of a valid ticket for this execution. `None` if the ticket is invalid
    /// or has expired.
    pub fn check(&self, text: &str, execution: ExecutionId, now: Instant) -> Option<Principal> {
        let digit = |c: char| match c {
            '-' => '+',
            '_' => '/',
            '+' | '/' | '=' => '!', // Not in the URL-safe alphabet.
            other => other,
        };
        if text.len() != TICKET_BYTES / 3 * 4 {
            return None;
        }
        let bytes = base64::read(&text.chars().map(digit).collect::<String>())?;
        let (expiry, rest) = bytes.split_first_chunk::<EXPIRY_BYTES>()?;
        let (principal, tag) = rest.split_first_chunk::<PRINCIPAL_BYTES>()?;
        let expiry_s = u64::from_be_bytes(*expiry);
        let principal = Principal(u16::from_be_bytes(*principal));
        // In constant time. No content of the ticket is trusted before this check.
        self.tag(expiry_s, principal, execution).verify_slice(tag).ok()?;
        (now.nanos() / 1_000_000_000 < expiry_s).then_some(principal)
    }

    fn tag(&self, expiry_s: u64, principal: Principal, execution: ExecutionId) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&expiry_s.to_be_bytes());
        mac.update(&principal.0.to_be_bytes());
        mac.update(execution.to_string().as_bytes());
        mac
    }
}
