//! The bodies of records: the beginning and the end of an execution, and holes.

use super::format::{Damage, Reader, TOTAL_MAX, Writer};
use crate::limits::{KEEP_S_MAX, KINDS_MAX};
use crate::stream::{Durability, Kind, KindTotals, Totals};

/// Number of bytes of a record's body before its details.
pub const FIXED_BYTES: usize = 32;

/// The promises for an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The promise for its chunks.
    pub durability: Durability,
    /// Time in seconds for which it is kept after its end; 0 for the time of the journal. Until
    /// then, nothing of it is removed for its age. At most [`KEEP_S_MAX`].
    pub keep_s: u32,
}

impl From<Durability> for Terms {
    fn from(durability: Durability) -> Terms {
        Terms { durability, keep_s: 0 }
    }
}

/// The beginning of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The id of the execution, as its 128 bits.
    pub id: u128,
    /// The promises for it.
    pub terms: Terms,
    /// The wall-clock time, in microseconds since 1970.
    pub opened_us: u64,
    /// Everything else. The journal does not look at it.
    pub details: &'a [u8],
}

/// The end of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended<'a> {
    /// The id of the execution, as its 128 bits.
    pub id: u128,
    /// The wall-clock time, in microseconds since 1970.
    pub ended_us: u64,
    /// Everything else. The journal does not look at it.
    pub details: &'a [u8],
}

impl<'a> Opened<'a> {
    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Terms { durability, keep_s } = self.terms;
        let word = u64::from(keep_s) << 32 | durability as u64;
        fixed(out, self.id, word, self.opened_us, self.details);
    }

    /// Reads a body.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(body: &'a [u8]) -> Result<Opened<'a>, Damage> {
        let (id, word, opened_us, details) = split(body)?;
        let (keep_s, word) = ((word >> 32) as u32, word as u32);
        let durability = Durability::ALL.into_iter().find(|each| *each as u32 == word);
        let durability = durability.filter(|_| keep_s <= KEEP_S_MAX).ok_or(Damage::Bounds)?;
        Ok(Opened { id, terms: Terms { durability, keep_s }, opened_us, details })
    }
}

impl<'a> Ended<'a> {
    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        fixed(out, self.id, 0, self.ended_us, self.details);
    }

    /// Reads a body.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(body: &'a [u8]) -> Result<Ended<'a>, Damage> {
        let (id, _, ended_us, details) = split(body)?;
        Ok(Ended { id, ended_us, details })
    }
}

/// Chunks that were published and not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The totals behind the hole, by kind.
    pub after: KindTotals,
}

impl Hole {
    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for totals in self.after.each() {
            out.extend_from_slice(&totals.chunks.to_le_bytes());
            out.extend_from_slice(&totals.bytes.to_le_bytes());
        }
    }

    /// Reads a body.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(body: &[u8]) -> Result<Hole, Damage> {
        if body.len() != 16 * KINDS_MAX {
            return Err(Damage::Bounds);
        }
        let mut from = Reader { bytes: body, at: 0 };
        let mut after = KindTotals::default();
        for kind in Kind::ALL {
            let totals = Totals { chunks: from.u64(), bytes: from.u64() };
            if totals.chunks > TOTAL_MAX || totals.bytes > TOTAL_MAX {
                return Err(Damage::Bounds);
            }
            after.add(kind, totals);
        }
        Ok(Hole { after })
    }
}

fn fixed(out: &mut Vec<u8>, id: u128, word: u64, time_us: u64, details: &[u8]) {
    let mut bytes = [0; FIXED_BYTES];
    let mut to = Writer { bytes: &mut bytes, at: 0 };
    to.u64(id as u64);
    to.u64((id >> 64) as u64);
    to.u64(word);
    to.u64(time_us);
    out.extend_from_slice(&bytes);
    out.extend_from_slice(details);
}

fn split(body: &[u8]) -> Result<(u128, u64, u64, &[u8]), Damage> {
    let (fixed, details) = body.split_at_checked(FIXED_BYTES).ok_or(Damage::Short)?;
    let mut from = Reader { bytes: fixed, at: 0 };
    let id = u128::from(from.u64()) | u128::from(from.u64()) << 64;
    Ok((id, from.u64(), from.u64(), details))
}
