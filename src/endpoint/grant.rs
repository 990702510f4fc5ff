//! Grants: the first line of the answer at a door, written by the server and read by the client.
//!
//! A grant is one JSON object on one line. Its member `"door": 1` is the version of all that is
//! shared. Its first byte carries the descriptors, in this order: the ring, the control page, and
//! the client's own page.

use serde_json::Value;

use crate::api::{self, Clocks, Document, Fault, ReadTerms, SeenTotals, spelled};
use crate::base::{ExecutionId, SubscriberId};
use crate::engine::policy::Cursor;
use crate::stream::{Kind, Kinds, Terms, Totals};

/// The version of grants, rings and pages.
pub const DOOR_VERSION: u64 = 1;

/// The right to read an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadGrant {
    /// The execution.
    pub execution: ExecutionId,
    /// The subscriber that the reader is.
    pub subscriber: SubscriberId,
    /// The terms, with defaults filled in.
    pub terms: Terms,
    /// The first chunk to read, and the totals before it.
    pub cursor: Cursor,
    /// The index of the reader's signal slot, behind the control page.
    pub slot: u32,
    /// Wall-clock time at the moment `mono_ns`, in µs. It relates the times of chunks to dates.
    pub wall_us: u64,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub mono_ns: u64,
}

/// The right to be the producer of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceGrant {
    /// The execution.
    pub execution: ExecutionId,
    /// The progress token, if the execution has one.
    pub token: Option<String>,
}

/// The names of an execution, which every grant contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantNames {
    /// The tool that it runs; empty if it has no name.
    pub tool: String,
    /// The progress token, if the execution has one.
    pub token: Option<String>,
}

impl GrantNames {
    /// Reads the names from a line of a server.
    ///
    /// # Errors
    /// [`GrantFault`].
    pub fn parse(line: &[u8]) -> Result<GrantNames, GrantFault> {
        let api::ReadGrant { tool, token, .. } = read(line)?;
        Ok(GrantNames { tool, token })
    }
}

/// The fault of a line that should be a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantFault {
    /// The line is not a JSON object.
    NoObject,
    /// The version is not `DOOR_VERSION`.
    Version,
    /// This field is missing or invalid.
    Field(&'static str),
}

impl ReadGrant {
    /// Returns the grant as JSON. The names of its execution are empty.
    pub fn to_json(&self) -> Value {
        let Terms { policy, limit: limits, kinds } = self.terms;
        let wanted = || Kind::ALL.into_iter().filter(|kind| kinds.contains(*kind)).collect();
        let kinds = (!kinds.is_all()).then(wanted);
        let Totals { chunks, bytes } = self.cursor.seen;
        spelled(&api::ReadGrant {
            door: DOOR_VERSION,
            execution: self.execution,
            subscriber: self.subscriber,
            terms: ReadTerms { policy, limits, kinds },
            next_seq: self.cursor.next_seq,
            seen: SeenTotals { chunks, bytes },
            slot: self.slot,
            clock: Clocks { wall_us: self.wall_us, mono_ns: self.mono_ns },
            tool: String::new(),
            token: None,
        })
    }

    /// Reads a grant from a line of a server.
    ///
    /// # Errors
    /// [`GrantFault`].
    pub fn parse(line: &[u8]) -> Result<ReadGrant, GrantFault> {
        let grant: api::ReadGrant = read(line)?;
        if !(1..=SEQ_MAX).contains(&grant.next_seq) {
            return Err(GrantFault::Field("next_seq"));
        }
        let seen = Totals { chunks: grant.seen.chunks, bytes: grant.seen.bytes };
        Ok(ReadGrant {
            execution: grant.execution,
            subscriber: grant.subscriber,
            terms: terms(grant.terms)?,
            cursor: Cursor::new(grant.next_seq, seen),
            slot: grant.slot,
            wall_us: grant.clock.wall_us,
            mono_ns: grant.clock.mono_ns,
        })
    }
}

/// Upper bound of chunk numbers: no execution has a chunk of a higher number.
const SEQ_MAX: u64 = 1 << 62;

impl ProduceGrant {
    /// Returns the grant as JSON. The name of its execution is empty.
    pub fn to_json(&self) -> Value {
        spelled(&api::ProduceGrant {
            door: DOOR_VERSION,
            execution: self.execution,
            token: self.token.clone(),
            tool: String::new(),
        })
    }

    /// Reads a grant from a line of a server.
    ///
    /// # Errors
    /// [`GrantFault`].
    pub fn parse(line: &[u8]) -> Result<ProduceGrant, GrantFault> {
        let api::ProduceGrant { execution, token, .. } = read(line)?;
        Ok(ProduceGrant { execution, token })
    }
}

/// Reads a grant of this version.
fn read<T: Document>(line: &[u8]) -> Result<T, GrantFault> {
    let Ok(grant @ Value::Object(_)) = serde_json::from_slice(line) else {
        return Err(GrantFault::NoObject);
    };
    if grant["door"].as_u64() != Some(DOOR_VERSION) {
        return Err(GrantFault::Version);
    }
    api::read(grant, "the grant").map_err(|Fault { name, .. }| GrantFault::Field(name))
}

fn terms(terms: ReadTerms) -> Result<Terms, GrantFault> {
    if terms.limits.chunks == 0 {
        return Err(GrantFault::Field("max_chunks"));
    }
    let kinds = terms.kinds.map_or(Kinds::ALL, |kinds| kinds.into_iter().collect());
    // All kinds by name are all kinds.
    let is_all = Kind::ALL.into_iter().all(|kind| kinds.contains(kind));
    let kinds = if is_all { Kinds::ALL } else { kinds };
    Ok(Terms { policy: terms.policy, limit: terms.limits, kinds })
}

impl std::fmt::Display for GrantFault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GrantFault::NoObject => out.write_str("the grant is not a JSON object"),
            GrantFault::Version => {
                write!(out, "the grant does not have version {DOOR_VERSION} of the door protocol")
            }
            GrantFault::Field(name) => {
                write!(out, "`{name}` of the grant is missing or invalid")
            }
        }
    }
}

impl std::error::Error for GrantFault {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::Handle;
    use crate::stream::{LagLimit, Policy};

    fn grant() -> ReadGrant {
        let slot = Handle { index: 3, generation: 9 };
        ReadGrant {
            execution: ExecutionId { shard: 1, slot, nonce: 77 },
            subscriber: SubscriberId(slot),
            terms: Terms {
                policy: Policy::DropOldest,
                limit: LagLimit { chunks: 5, bytes: 1 << 40 },
                kinds: Kinds::NONE.with(Kind::Row).with(Kind::Log),
            },
            cursor: Cursor::new(12, Totals { chunks: 4, bytes: 99 }),
            slot: 63,
            wall_us: 1 << 50,
            mono_ns: u64::MAX,
        }
    }

    #[test]
    fn a_grant_is_read_as_it_was_spelled() {
        let mut grant = grant();
        assert_eq!(ReadGrant::parse(grant.to_json().to_string().as_bytes()), Ok(grant));
        grant.terms.limit.bytes = u64::MAX;
        grant.terms.kinds = Kinds::ALL;
        assert_eq!(ReadGrant::parse(grant.to_json().to_string().as_bytes()), Ok(grant));
        for token in [None, Some("abc".to_owned())] {
            let grant = ProduceGrant { execution: grant.execution, token };
            let line = grant.to_json().to_string();
            assert_eq!(ProduceGrant::parse(line.as_bytes()), Ok(grant));
        }
    }

    #[test]
    fn members_have_their_order() {
        let text = grant().to_json().to_string();
        let limits = r#""limits":{"max_chunks":5,"max_bytes":1099511627776},"#;
        let terms = format!(r#""terms":{{"policy":"drop_oldest",{limits}"#);
        let rest = r#""kinds":["row","log"]},"next_seq":12,"seen":{"chunks":4,"bytes":99},"#;
        let clock = r#""slot":63,"clock":{"wall_us":1125899906842624,"mono_ns":"#;
        assert!(text.contains(&format!("{terms}{rest}{clock}")), "{text}");
        assert!(text.starts_with(r#"{"door":1,"execution":""#), "{text}");
        assert!(text.ends_with(r#"},"tool":""}"#), "{text}");
    }

    #[test]
    fn what_is_no_grant_is_refused_by_name() {
        assert_eq!(ReadGrant::parse(b"[]"), Err(GrantFault::NoObject));
        assert_eq!(ReadGrant::parse(b"\xFF"), Err(GrantFault::NoObject));
        assert_eq!(ProduceGrant::parse(b"{\"door\":2}"), Err(GrantFault::Version));
        let spelled = grant().to_json();
        type Spoil = (&'static str, &'static str, Value);
        let table: [Spoil; 9] = [
            ("/execution", "execution", json!("x")),
            ("/subscriber", "subscriber", json!(1)),
            ("/next_seq", "next_seq", json!(0)),
            ("/next_seq", "next_seq", json!(u64::MAX)),
            ("/slot", "slot", json!(1u64 << 32)),
            ("/seen/chunks", "chunks", json!(-1)),
            ("/terms/limits/max_chunks", "max_chunks", json!(0)),
            ("/terms/kinds", "kinds", json!(["fish"])),
            ("/clock", "clock", Value::Null),
        ];
        for (pointer, field, value) in table {
            let mut wrong = spelled.clone();
            *wrong.pointer_mut(pointer).unwrap() = value;
            let line = wrong.to_string();
            assert_eq!(ReadGrant::parse(line.as_bytes()), Err(GrantFault::Field(field)), "{line}");
        }
    }
}
