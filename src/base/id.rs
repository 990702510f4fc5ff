//! Names that leave our hands: each carries a generation (and an execution a nonce), so that what
//! comes back stale or guessed is "not found" and never something else (invariant A5).

use std::fmt;
use std::str::FromStr;

use crate::base::pool::Handle;

/// One run of one tool. Printed as 26 characters of Crockford's base 32 (lower case), 128 bits.
///
/// The 64-bit nonce makes an id unguessable; index and generation make its look-up O(1).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExecutionId {
    /// Which shard holds it.
    pub shard: u8,
    /// Where in that shard's table (24 bits are printed).
    pub slot: Handle,
    /// Random bits drawn when the execution was opened.
    pub nonce: u64,
}

/// One subscriber of one shard. Not secret: it is only ever used together with an execution.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SubscriberId(pub Handle);

/// The text is not the id of any execution of any version of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdError;

const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const TEXT_CHARS: usize = 26;

impl ExecutionId {
    fn to_bits(self) -> u128 {
        assert!(self.slot.index < 1 << 24); // `limits::EXECUTIONS_MAX` is far below.
        let place = u64::from(self.shard) << 56
            | u64::from(self.slot.index) << 32
            | u64::from(self.slot.generation);
        // The place is hidden behind the nonce, so that ids of neighbours do not look alike.
        u128::from(place ^ self.nonce.rotate_left(17)) << 64 | u128::from(self.nonce)
    }

    fn from_bits(bits: u128) -> ExecutionId {
        let nonce = bits as u64;
        let place = (bits >> 64) as u64 ^ nonce.rotate_left(17);
        let slot = Handle { index: (place >> 32) as u32 & 0xFF_FFFF, generation: place as u32 };
        ExecutionId { shard: (place >> 56) as u8, slot, nonce }
    }
}

impl fmt::Display for ExecutionId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.to_bits();
        let mut text = [0u8; TEXT_CHARS];
        for (place, digit) in text.iter_mut().enumerate() {
            let shift = 5 * (TEXT_CHARS - 1 - place);
            *digit = DIGITS[(bits >> shift) as usize & 31];
        }
        out.write_str(std::str::from_utf8(&text).expect("base 32 is ASCII"))
    }
}

impl fmt::Debug for ExecutionId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl FromStr for ExecutionId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<ExecutionId, ParseIdError> {
        if text.len() != TEXT_CHARS {
            return Err(ParseIdError);
        }
        let mut bits = 0u128;
        for (place, byte) in text.bytes().enumerate() {
            let digit = DIGITS.iter().position(|&d| d == byte).ok_or(ParseIdError)?;
            if place == 0 && digit > 7 {
                return Err(ParseIdError); // 26 digits hold 130 bits, an id has 128.
            }
            bits = bits << 5 | digit as u128;
        }
        Ok(ExecutionId::from_bits(bits))
    }
}

impl fmt::Display for ParseIdError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "an execution id has {TEXT_CHARS} characters of 0-9 and a-z without i, l, o, u")
    }
}

impl std::error::Error for ParseIdError {}

impl fmt::Display for SubscriberId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "s{}.{}", self.0.index, self.0.generation)
    }
}

impl fmt::Debug for SubscriberId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    #[test]
    fn an_id_survives_being_printed_and_parsed() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            let bits = random.next_u64();
            let slot = Handle { index: bits as u32 & 0xFF_FFFF, generation: (bits >> 32) as u32 };
            let id = ExecutionId { shard: bits as u8, slot, nonce: random.next_u64() };
            let text = id.to_string();
            assert_eq!(text.len(), TEXT_CHARS);
            assert_eq!(text.parse(), Ok(id), "{text}");
        }
    }

    #[test]
    fn what_is_not_an_id_is_refused() {
        let long = "0".repeat(27);
        let wide = format!("8{}", "0".repeat(25));
        let foreign = format!("{}i", "0".repeat(25));
        for text in ["", "0", &long, &wide, &foreign, "ÄÄÄÄÄÄÄÄÄÄÄÄÄ"] {
            assert_eq!(text.parse::<ExecutionId>(), Err(ParseIdError), "{text}");
        }
    }
}
