//! The members of a message, each read into its field as it comes. A map of them would cost more
//! than all the rest of a short message.

use std::collections::BTreeSet;
use std::fmt;

use serde_core::Deserializer;
use serde_core::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Parameters;
use crate::wire::members::Place;
use crate::wire::strict::{Found, Strict, Unreadable};

/// The members of a message. Unknown members are read and dropped.
#[derive(Debug, Default)]
pub(super) struct Envelope<'t> {
    pub jsonrpc: Option<&'t RawValue>,
    /// The id as it is spelled, because the reply repeats it unchanged.
    pub id: Option<&'t RawValue>,
    pub method: Option<Value>,
    pub params: Option<Place<Parameters>>,
    pub result: Option<Value>,
    pub error: Option<Value>,
}

impl<'t> Envelope<'t> {
    /// Reads a text that begins like an object.
    ///
    /// # Errors
    /// [`Unreadable`] if the text is refused.
    pub fn read(text: &'t str) -> Result<Envelope<'t>, Unreadable> {
        let found = Found::default();
        let mut source = serde_json::Deserializer::from_str(text);
        let envelope = source.deserialize_map(Members(&found));
        found.verdict(envelope.and_then(|envelope| source.end().map(|()| envelope)))
    }
}

struct Members<'f>(&'f Found);

impl<'t> Visitor<'t> for Members<'_> {
    type Value = Envelope<'t>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut members: A) -> Result<Envelope<'t>, A::Error> {
        let Members(found) = self;
        let inside = Strict::new(found).inside()?;
        let mut envelope = Envelope::default();
        let mut others = BTreeSet::new();
        while let Some(name) = members.next_key_seed(NameSeed)? {
            let is_twice = match name {
                Name::Jsonrpc => envelope.jsonrpc.replace(spelled(&mut members, inside)?).is_some(),
                Name::Id => envelope.id.replace(spelled(&mut members, inside)?).is_some(),
                Name::Method => envelope.method.replace(members.next_value_seed(inside)?).is_some(),
                Name::Params => {
                    let params = members.next_value_seed(inside.into_type())?;
                    envelope.params.replace(params).is_some()
                }
                Name::Result => envelope.result.replace(members.next_value_seed(inside)?).is_some(),
                Name::Error => envelope.error.replace(members.next_value_seed(inside)?).is_some(),
                Name::Other(name) => {
                    members.next_value_seed(inside)?;
                    !others.insert(name)
                }
            };
            if is_twice {
                found.note_name_twice();
            }
        }
        Ok(envelope)
    }
}

/// Returns the next value as it is spelled. The parser skips a raw value without a close check of
/// the range of a number or of surrogate halves. They are checked here.
fn spelled<'t, A: MapAccess<'t>>(
    members: &mut A,
    inside: Strict<'_>,
) -> Result<&'t RawValue, A::Error> {
    let raw: &RawValue = members.next_value()?;
    let text = raw.get();
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_integer =
        digits.len() <= DIGITS_SAFE && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain_text = text.starts_with('"') && !text.contains('\\');
    if !is_integer && !is_plain_text {
        let mut source = serde_json::Deserializer::from_str(text);
        inside.deserialize(&mut source).map_err(A::Error::custom)?;
    }
    Ok(raw)
}

/// Number of digits that always fit into 64 bits.
const DIGITS_SAFE: usize = 18;

/// The name of a member of a message.
enum Name {
    Jsonrpc,
    Id,
    Method,
    Params,
    Result,
    Error,
    Other(Box<str>),
}

struct NameSeed;

impl<'t> DeserializeSeed<'t> for NameSeed {
    type Value = Name;

    fn deserialize<D: Deserializer<'t>>(self, source: D) -> Result<Name, D::Error> {
        source.deserialize_str(self)
    }
}

impl Visitor<'_> for NameSeed {
    type Value = Name;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Name, E> {
        Ok(match name {
            "jsonrpc" => Name::Jsonrpc,
            "id" => Name::Id,
            "method" => Name::Method,
            "params" => Name::Params,
            "result" => Name::Result,
            "error" => Name::Error,
            other => Name::Other(other.into()),
        })
    }
}
