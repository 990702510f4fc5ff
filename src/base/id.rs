//! Ids that leave the process. Each carries a generation, and an execution's id also a nonce. A
//! stale or guessed id is therefore "not found" and never names something else (invariant A5).

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::base::pool::Handle;

/// The id of one run of one tool. It is printed as 26 characters of Crockford's base 32 (lower
/// case), 128 bits.
///
/// The 64-bit nonce makes an id unguessable. The index and the generation make its look-up O(1).
///
/// ```
/// use streamdoor::{ExecutionId, errors::ParseIdError};
///
/// assert_eq!("no id".parse::<ExecutionId>(), Err(ParseIdError));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExecutionId {
    /// The shard that holds the execution.
    pub shard: u8,
    /// The slot in that shard's table (24 bits of its index are printed).
    #[doc(hidden)]
    pub slot: Handle,
    /// Random bits drawn when the execution was opened.
    pub nonce: u64,
}

/// The capability to read the progress of one execution. It is printed as 39 characters of the same
/// digits: 64 bits of place, masked, and 128 unguessable bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgressToken {
    /// The shard that holds the execution.
    pub shard: u8,
    /// The slot in that shard's table (24 bits of its index are printed).
    #[doc(hidden)]
    pub slot: Handle,
    /// Random bits drawn when the execution was opened.
    pub secret: u128,
}

/// The id of one subscriber of one shard. It is not secret, because it is only used with an
/// execution.
///
/// ```
/// use streamdoor::{SubscriberId, errors::ParseIdError};
///
/// assert_eq!("no id".parse::<SubscriberId>(), Err(ParseIdError));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriberId(#[doc(hidden)] pub Handle);

/// The error for a text that is not an id of any version of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdError;

const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const TEXT_CHARS: usize = 26;
const PLACE_CHARS: usize = 13;
const TOKEN_CHARS: usize = PLACE_CHARS + TEXT_CHARS;

impl ExecutionId {
    /// Returns the id as the number that is printed. It differs for each execution.
    pub fn to_bits(self) -> u128 {
        let place = place_bits(self.shard, self.slot);
        // The nonce masks the place, so that ids of neighbours do not look alike.
        u128::from(place ^ self.nonce.rotate_left(17)) << 64 | u128::from(self.nonce)
    }

    /// Returns the id that prints as this number.
    pub fn from_bits(bits: u128) -> ExecutionId {
        let nonce = bits as u64;
        let (shard, slot) = place_of((bits >> 64) as u64 ^ nonce.rotate_left(17));
        ExecutionId { shard, slot, nonce }
    }
}

/// The order of the texts.
impl Ord for ExecutionId {
    fn cmp(&self, other: &ExecutionId) -> Ordering {
        self.to_bits().cmp(&other.to_bits())
    }
}

impl PartialOrd for ExecutionId {
    fn partial_cmp(&self, other: &ExecutionId) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for ExecutionId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.to_bits();
        out.write_str(std::str::from_utf8(&digits::<TEXT_CHARS>(bits)).expect("it is ASCII"))
    }
}

/// Returns the lowest `5 * CHARS` bits as text.
fn digits<const CHARS: usize>(bits: u128) -> [u8; CHARS] {
    std::array::from_fn(|place| {
        let shift = 5 * (CHARS - 1 - place);
        DIGITS[(bits >> shift) as usize & 31]
    })
}

/// Parses `text` as a number of at most `bit_count` bits.
fn number(text: &[u8], bit_count: u32) -> Result<u128, ParseIdError> {
    let mut bits = 0u128;
    for (place, byte) in text.iter().enumerate() {
        let digit = DIGITS.iter().position(|d| d == byte).ok_or(ParseIdError)?;
        if place == 0 && digit >> (bit_count as usize - 5 * (text.len() - 1)) != 0 {
            return Err(ParseIdError); // The first digit has fewer bits.
        }
        bits = bits << 5 | digit as u128;
    }
    Ok(bits)
}

fn place_bits(shard: u8, slot: Handle) -> u64 {
    assert!(slot.index < 1 << 24); // `limits::EXECUTIONS_MAX` is far below.
    u64::from(shard) << 56 | u64::from(slot.index) << 32 | u64::from(slot.generation)
}

fn place_of(bits: u64) -> (u8, Handle) {
    let slot = Handle { index: (bits >> 32) as u32 & 0xFF_FFFF, generation: bits as u32 };
    ((bits >> 56) as u8, slot)
}

impl fmt::Display for ProgressToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = place_bits(self.shard, self.slot) ^ (self.secret as u64).rotate_left(17);
        let mut text = [0; TOKEN_CHARS];
        text[..PLACE_CHARS].copy_from_slice(&digits::<PLACE_CHARS>(hidden.into()));
        text[PLACE_CHARS..].copy_from_slice(&digits::<TEXT_CHARS>(self.secret));
        out.write_str(std::str::from_utf8(&text).expect("it is ASCII"))
    }
}

impl fmt::Debug for ProgressToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl FromStr for ProgressToken {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<ProgressToken, ParseIdError> {
        if text.len() != TOKEN_CHARS {
            return Err(ParseIdError);
        }
        let (place, secret) = text.as_bytes().split_at(PLACE_CHARS);
        let secret = number(secret, 128)?;
        let (shard, slot) = place_of(number(place, 64)? as u64 ^ (secret as u64).rotate_left(17));
        Ok(ProgressToken { shard, slot, secret })
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
        Ok(ExecutionId::from_bits(number(text.as_bytes(), 128)?))
    }
}

impl fmt::Display for ParseIdError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "an execution id has {TEXT_CHARS} characters of 0-9 and a-z without i, l, o, u; a \
             progress token {TOKEN_CHARS}; a subscriber is s1.2"
        )
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

impl FromStr for SubscriberId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<SubscriberId, ParseIdError> {
        let (index, generation) =
            text.strip_prefix('s').and_then(|text| text.split_once('.')).ok_or(ParseIdError)?;
        let number = |digits: &str| {
            // Only the printed form is accepted: no sign, no leading zeros.
            let is_plain = digits == "0" || !digits.starts_with(['+', '-', '0']);
            digits.parse().ok().filter(|_| is_plain).ok_or(ParseIdError)
        };
        let slot = Handle { index: number(index)?, generation: number(generation)? };
        Ok(SubscriberId(slot))
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
    fn a_token_survives_being_printed_and_parsed() {
        let mut random = Random::new(2);
        for _ in 0..10_000 {
            let bits = random.next_u64();
            let slot = Handle { index: bits as u32 & 0xFF_FFFF, generation: (bits >> 32) as u32 };
            let secret = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
            let token = ProgressToken { shard: bits as u8, slot, secret };
            let text = token.to_string();
            assert!(text.len() >= 32 && text.bytes().all(|byte| DIGITS.contains(&byte)));
            assert_eq!(text.parse(), Ok(token), "{text}");
        }
        let wide = format!("g{}", "0".repeat(TOKEN_CHARS - 1));
        for text in ["", "0", &"0".repeat(TOKEN_CHARS + 1), &wide] {
            assert_eq!(text.parse::<ProgressToken>(), Err(ParseIdError), "{text}");
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
    #[test]
    fn a_subscriber_survives_being_printed_and_parsed() {
        for (index, generation) in [(0, 0), (7, 1), (16_383, u32::MAX), (u32::MAX, 9)] {
            let id = SubscriberId(Handle { index, generation });
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let bad = ["", "s", "s1", "1.2", "s1.", "s.1", "s01.2", "s1.02", "s+1.2", "s1.-2", "S1.2"];
        for text in bad.into_iter().chain(["s1.2.3", "s 1.2", "s1.4294967296", "s١.2"]) {
            assert_eq!(text.parse::<SubscriberId>(), Err(ParseIdError), "{text}");
        }
    }
}
