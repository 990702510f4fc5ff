//! Grants: the first line of the answer at a door, written by the server and read by the client.
//!
//! A grant is one JSON object on one line. Its member `"door": 1` is the version of all that is
//! shared. Its first byte carries the descriptors, in this order: the ring, the control page, and
//! the client's own page.

use serde_json::{Map, Value, json};

use crate::base::{ExecutionId, SubscriberId};
use crate::engine::policy::Cursor;
use crate::stream::{Kind, Kinds, LagLimit, Terms, Totals};

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
    /// The index of the reader's desk slot, behind the control page.
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
        let grant = object(line)?;
        let text = |name: &'static str| match grant.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(GrantFault::Field(name)),
        };
        Ok(GrantNames { tool: text("tool")?.unwrap_or_default(), token: text("token")? })
    }
}

/// The fault of a line that should be a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantFault {
    /// The line is not a JSON object.
    NoObject,
    /// The version is not [`DOOR_VERSION`].
    Version,
    /// This field is missing or invalid.
    Field(&'static str),
}

impl ReadGrant {
    /// Returns the grant as JSON.
    pub fn spelled(&self) -> Value {
        let Terms { policy, limit, kinds } = self.terms;
        let mut limits = json!({"chunks": limit.chunks});
        if limit.bytes != u64::MAX {
            limits["bytes"] = limit.bytes.into();
        }
        let mut terms = json!({"policy": policy.name(), "limits": limits});
        if !kinds.is_all() {
            let names = Kind::ALL.into_iter().filter(|kind| kinds.contains(*kind)).map(Kind::name);
            terms["kinds"] = names.collect();
        }
        json!({
            "door": DOOR_VERSION,
            "execution": self.execution.to_string(),
            "subscriber": self.subscriber.to_string(),
            "terms": terms,
            "next_seq": self.cursor.next_seq,
            "seen": {"chunks": self.cursor.seen.chunks, "bytes": self.cursor.seen.bytes},
            "slot": self.slot,
            "clock": {"wall_us": self.wall_us, "mono_ns": self.mono_ns},
        })
    }

    /// Reads a grant from a line of a server.
    ///
    /// # Errors
    /// [`GrantFault`].
    pub fn parse(line: &[u8]) -> Result<ReadGrant, GrantFault> {
        let grant = object(line)?;
        let next_seq = number(&grant, "next_seq")?;
        if !(1..=SEQ_MAX).contains(&next_seq) {
            return Err(GrantFault::Field("next_seq"));
        }
        let seen = within(&grant, "seen")?;
        let seen = Totals { chunks: number(seen, "chunks")?, bytes: number(seen, "bytes")? };
        let clock = within(&grant, "clock")?;
        Ok(ReadGrant {
            execution: parsed(&grant, "execution")?,
            subscriber: parsed(&grant, "subscriber")?,
            terms: terms(within(&grant, "terms")?)?,
            cursor: Cursor::new(next_seq, seen),
            slot: u32::try_from(number(&grant, "slot")?).map_err(|_| GrantFault::Field("slot"))?,
            wall_us: number(clock, "wall_us")?,
            mono_ns: number(clock, "mono_ns")?,
        })
    }
}

/// Upper bound of chunk numbers: no execution has a chunk of a higher number.
const SEQ_MAX: u64 = 1 << 62;

impl ProduceGrant {
    /// Returns the grant as JSON.
    pub fn spelled(&self) -> Value {
        let mut grant = json!({"door": DOOR_VERSION, "execution": self.execution.to_string()});
        if let Some(token) = &self.token {
            grant["token"] = token.as_str().into();
        }
        grant
    }

    /// Reads a grant from a line of a server.
    ///
    /// # Errors
    /// [`GrantFault`].
    pub fn parse(line: &[u8]) -> Result<ProduceGrant, GrantFault> {
        let token = GrantNames::parse(line)?.token;
        Ok(ProduceGrant { execution: parsed(&object(line)?, "execution")?, token })
    }
}

fn object(line: &[u8]) -> Result<Map<String, Value>, GrantFault> {
    let Ok(Value::Object(grant)) = serde_json::from_slice(line) else {
        return Err(GrantFault::NoObject);
    };
    match grant.get("door").and_then(Value::as_u64) {
        Some(DOOR_VERSION) => Ok(grant),
        _ => Err(GrantFault::Version),
    }
}

fn number(object: &Map<String, Value>, name: &'static str) -> Result<u64, GrantFault> {
    object.get(name).and_then(Value::as_u64).ok_or(GrantFault::Field(name))
}

fn parsed<T: std::str::FromStr>(
    object: &Map<String, Value>,
    name: &'static str,
) -> Result<T, GrantFault> {
    let text = object.get(name).and_then(Value::as_str);
    text.and_then(|text| text.parse().ok()).ok_or(GrantFault::Field(name))
}

fn within<'a>(
    object: &'a Map<String, Value>,
    name: &'static str,
) -> Result<&'a Map<String, Value>, GrantFault> {
    object.get(name).and_then(Value::as_object).ok_or(GrantFault::Field(name))
}

fn terms(terms: &Map<String, Value>) -> Result<Terms, GrantFault> {
    let limits = within(terms, "limits")?;
    let chunks = u32::try_from(number(limits, "chunks")?).ok().filter(|chunks| *chunks > 0);
    let bytes = match limits.get("bytes") {
        None => u64::MAX,
        Some(_) => number(limits, "bytes")?,
    };
    let kinds = match terms.get("kinds") {
        None => Kinds::ALL,
        Some(Value::Array(names)) => {
            let named = names.iter().map(|name| name.as_str()?.parse::<Kind>().ok());
            let kinds = named.collect::<Option<Kinds>>().ok_or(GrantFault::Field("kinds"))?;
            let is_all = Kind::ALL.into_iter().all(|kind| kinds.contains(kind));
            if is_all { Kinds::ALL } else { kinds }
        }
        Some(_) => return Err(GrantFault::Field("kinds")),
    };
    let limit = LagLimit { chunks: chunks.ok_or(GrantFault::Field("chunks"))?, bytes };
    Ok(Terms { policy: parsed(terms, "policy")?, limit, kinds })
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
    use super::*;
    use crate::base::Handle;
    use crate::stream::Policy;

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
        assert_eq!(ReadGrant::parse(grant.spelled().to_string().as_bytes()), Ok(grant));
        grant.terms.limit.bytes = u64::MAX;
        grant.terms.kinds = Kinds::ALL;
        assert_eq!(ReadGrant::parse(grant.spelled().to_string().as_bytes()), Ok(grant));
        for token in [None, Some("abc".to_owned())] {
            let grant = ProduceGrant { execution: grant.execution, token };
            let line = grant.spelled().to_string();
            assert_eq!(ProduceGrant::parse(line.as_bytes()), Ok(grant));
        }
    }

    #[test]
    fn what_is_no_grant_is_refused_by_name() {
        assert_eq!(ReadGrant::parse(b"[]"), Err(GrantFault::NoObject));
        assert_eq!(ReadGrant::parse(b"\xFF"), Err(GrantFault::NoObject));
        assert_eq!(ProduceGrant::parse(b"{\"door\":2}"), Err(GrantFault::Version));
        let spelled = grant().spelled();
        type Spoil = (&'static str, &'static str, Value);
        let table: [Spoil; 9] = [
            ("/execution", "execution", json!("x")),
            ("/subscriber", "subscriber", json!(1)),
            ("/next_seq", "next_seq", json!(0)),
            ("/next_seq", "next_seq", json!(u64::MAX)),
            ("/slot", "slot", json!(1u64 << 32)),
            ("/seen/chunks", "chunks", json!(-1)),
            ("/terms/limits/chunks", "chunks", json!(0)),
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
