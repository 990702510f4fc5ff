//! Tickets: the credentials of a browser's `EventSource`, which cannot send a token.
//!
//! A ticket is part of a URL, and URLs end up in logs and histories. Therefore a ticket opens only
//! the stream of one execution, for one principal, for a limited time. It is 45 bytes in URL-safe
//! base 64: the time of expiry, a mark of the principal's name, and an HMAC. The HMAC covers the
//! time, the name and the id of the execution.
//!
//! With a key and a clock that outlive the server ([`super::Access::with_wall_clock`]), so does a
//! ticket. The numbers of principals do not, so the name counts.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::Tokens;
use crate::base::{ExecutionId, Instant, Principal};
use crate::memory::ClockAnchor;
use crate::wire::base64;

/// Issues and checks tickets.
#[derive(Clone)]
pub(super) struct Tickets {
    /// The HMAC with its key, before any input.
    mac: Hmac<Sha256>,
    ttl: Duration,
    /// The clock of the times of expiry.
    clock: ClockAnchor,
}

const EXPIRY_BYTES: usize = 8;
const MARK_BYTES: usize = 5;
const TAG_BYTES: usize = 32;
const TICKET_BYTES: usize = EXPIRY_BYTES + MARK_BYTES + TAG_BYTES;
const _: () = assert!(TICKET_BYTES.is_multiple_of(3)); // Base 64 needs no padding.

impl Tickets {
    pub fn new(key: &[u8; 32], ttl: Duration) -> Tickets {
        let mac = Hmac::new_from_slice(key).expect("a key may have any length");
        Tickets { mac, ttl, clock: ClockAnchor::default() }
    }

    /// Returns these tickets with times of expiry on this clock, instead of the monotonic one.
    pub fn by_clock(self, clock: ClockAnchor) -> Tickets {
        Tickets { clock, ..self }
    }

    /// The time by the clock of the tickets, in microseconds.
    fn time_us(&self, at: Instant) -> u64 {
        self.clock.wall_us_at(at.nanos())
    }

    /// Returns a ticket for the principal of this name and this execution, valid from now on.
    pub fn issue(&self, name: &str, execution: ExecutionId, now: Instant) -> String {
        // Rounded up, so that the ticket is valid for all of the promised time.
        let expiry_s = (self.time_us(now + self.ttl) + 1).div_ceil(1_000_000);
        let tag = self.tag(expiry_s, name, execution).finalize().into_bytes();
        let mut bytes = Vec::with_capacity(TICKET_BYTES);
        bytes.extend_from_slice(&expiry_s.to_be_bytes());
        bytes.extend_from_slice(&mark_of(name));
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

    /// Returns the principal of a valid ticket for this execution, if the principal has a token.
    /// `None` if the ticket is invalid or has expired.
    pub fn check(
        &self,
        text: &str,
        execution: ExecutionId,
        now: Instant,
        tokens: &Tokens,
    ) -> Option<Principal> {
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
        let (mark, tag) = rest.split_first_chunk::<MARK_BYTES>()?;
        let expiry_s = u64::from_be_bytes(*expiry);
        // In constant time. No content of the ticket is trusted before this check.
        let is_holder = |name: &str| self.tag(expiry_s, name, execution).verify_slice(tag).is_ok();
        let mut holders = tokens.principals().filter(|(_, name)| mark_of(name) == *mark);
        let (principal, _) = holders.find(|(_, name)| is_holder(name))?;
        (self.time_us(now) / 1_000_000 < expiry_s).then_some(principal)
    }

    fn tag(&self, expiry_s: u64, name: &str, execution: ExecutionId) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&expiry_s.to_be_bytes());
        mac.update(execution.to_string().as_bytes()); // Of one length always.
        mac.update(name.as_bytes());
        mac
    }
}

/// Returns the mark by which the principal of a ticket is found.
fn mark_of(name: &str) -> [u8; MARK_BYTES] {
    let digest: [u8; 32] = Sha256::digest(name).into();
    *digest.first_chunk().expect("a digest is longer")
}
