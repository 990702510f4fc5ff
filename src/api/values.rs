//! The values in documents: numbers, texts, ids, and names of states, policies and kinds.

use std::borrow::Cow;
use std::time::Duration;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::rows::{Fault, Member, documents};
use crate::base::{ExecutionId, ProgressToken, SubscriberId};
use crate::engine::{SubscriberPlace, Timeouts};
use crate::stream::{
    DetachReason, ExecutionState, Exit, GapReason, Kind, LagLimit, Outcome, Policy,
};

/// Gives types of `serde` a noun, a check and a schema.
macro_rules! plain {
    ($($type:ty: $noun:literal, $fits:expr, $schema:tt;)+) => { $(
        impl Member for $type {
            const NOUN: &'static str = $noun;

            fn schema() -> Value {
                json!($schema)
            }

            fn fault(value: &Value, name: &'static str, of: &'static str) -> Option<Fault> {
                (!$fits(value)).then(|| Fault::of_member(value, name, of, Self::NOUN))
            }
        }
    )+ };
}

plain! {
    String: "a string", Value::is_string, {"type": "string"};
    Cow<'_, str>: "a string", Value::is_string, {"type": "string"};
    bool: "true or false", Value::is_boolean, {"type": "boolean"};
    u8: "a number in its range", fits::<u8>, {"type": "integer", "minimum": 0};
    u32: "a number in its range", fits::<u32>, {"type": "integer", "minimum": 0};
    i32: "a number of 32 bits", fits::<i32>, {"type": "integer"};
    i64: "a whole number", Value::is_i64, {"type": "integer"};
    u64: "a whole number of 64 bits", Value::is_u64, {"type": "integer", "minimum": 0};
    f64: "a number", Value::is_number, {"type": "number"};
    Map<String, Value>: "a JSON object", Value::is_object, {
        "type": "object", "additionalProperties": true
    };
    Value: "a JSON value", is_some, {};
    Json: "a JSON value", is_some, {};
    OrNull<u32>: "a number in its range", fits::<OrNull<u32>>, {
        "type": ["integer", "null"], "minimum": 0
    };
    OrNull<u64>: "a whole number of 64 bits", fits::<OrNull<u64>>, {
        "type": ["integer", "null"], "minimum": 0
    };
}

/// True unless the value is `null`, which counts as absent.
fn is_some(value: &Value) -> bool {
    !value.is_null()
}

/// True if the value can be read as `T`.
fn fits<T: DeserializeOwned>(value: &Value) -> bool {
    T::deserialize(value).is_ok()
}

impl<T: Member> Member for Option<T> {
    const NOUN: &'static str = T::NOUN;
    const IS_OPTIONAL: bool = true;

    fn schema() -> Value {
        T::schema()
    }

    fn is_absent(&self) -> bool {
        self.is_none()
    }

    fn fault(value: &Value, name: &'static str, of: &'static str) -> Option<Fault> {
        match value {
            Value::Null => None,
            _ => T::fault(value, name, of),
        }
    }
}

impl<T: Member> Member for Vec<T> {
    const NOUN: &'static str = "an array";

    fn schema() -> Value {
        json!({"type": "array", "items": T::schema()})
    }

    fn fault(value: &Value, name: &'static str, of: &'static str) -> Option<Fault> {
        match value {
            Value::Array(values) => values.iter().find_map(|value| T::fault(value, name, of)),
            _ => Some(Fault::of_member(value, name, of, Self::NOUN)),
        }
    }
}

/// A value that is written as `null` if it is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OrNull<T>(pub Option<T>);

/// Any JSON value, as its text. A text that is not JSON is a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json(pub String);

impl std::ops::Deref for Json {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_str::<Value>(&self.0) {
            Ok(value) => value.serialize(out),
            Err(_) => out.serialize_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Json, D::Error> {
        Ok(Json(Value::deserialize(from)?.to_string()))
    }
}

/// Writes a number, whole numbers without a fraction.
pub(super) fn number<S: Serializer>(
    number: &(impl Copy + Into<Option<f64>>),
    out: S,
) -> Result<S::Ok, S::Error> {
    const EXACT_BELOW: f64 = (1u64 << 53) as f64;
    match (*number).into() {
        None => out.serialize_none(),
        Some(number) if number.fract() == 0.0 && number.abs() < EXACT_BELOW => {
            out.serialize_i64(number as i64)
        }
        Some(number) => out.serialize_f64(number),
    }
}

/// Reads a value from its text.
fn from_text<'de, T, D: Deserializer<'de>>(
    from: D,
    find: impl FnOnce(&str) -> Option<T>,
) -> Result<T, D::Error> {
    let text = Cow::<str>::deserialize(from)?;
    find(&text).ok_or_else(|| D::Error::custom("the text stands for no value"))
}

/// Returns what is wrong with a value that stands for one of `T` in its text.
fn fault_of_text<T: Member>(value: &Value, name: &'static str, of: &'static str) -> Option<Fault> {
    match value {
        _ if fits::<T>(value) => None,
        Value::String(text) => {
            let text = format!("`{name}` of {of} cannot be \"{text}\"");
            Some(Fault { name, text })
        }
        _ => Some(Fault::of_member(value, name, of, T::NOUN)),
    }
}

/// Values whose text is an id.
macro_rules! ids {
    ($($type:ty: $pattern:literal;)+) => { $(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                from_text(from, |text| text.parse().ok())
            }
        }

        impl Member for $type {
            const NOUN: &'static str = "a string";

            fn schema() -> Value {
                json!({"type": "string", "pattern": $pattern})
            }

            fn fault(value: &Value, name: &'static str, of: &'static str) -> Option<Fault> {
                fault_of_text::<$type>(value, name, of)
            }
        }
    )+ };
}

ids! {
    ExecutionId: "^[0-9a-hjkmnp-tv-z]{26}$";
    ProgressToken: "^[0-9a-hjkmnp-tv-z]{39}$";
    SubscriberId: "^s[0-9]+\\.[0-9]+$";
}

/// Values that have names.
macro_rules! names {
    ($($type:ident: $name:expr, $all:expr;)+) => { $(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.serialize_str($name(*self))
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                from_text(from, |text| $all.into_iter().find(|value| $name(*value) == text))
            }
        }

        impl Member for $type {
            const NOUN: &'static str = "a string";

            fn schema() -> Value {
                let names = $all.map($name);
                json!({"type": "string", "enum": names})
            }

            fn fault(value: &Value, name: &'static str, of: &'static str) -> Option<Fault> {
                fault_of_text::<$type>(value, name, of)
            }
        }
    )+ };
}

names! {
    Policy: Policy::name, Policy::ALL;
    Kind: Kind::name, Kind::ALL;
    Outcome: Outcome::name, Outcome::ALL;
    ExecutionState: ExecutionState::name, ExecutionState::ALL;
    DetachReason: DetachReason::name, DetachReason::ALL;
    GapReason: GapReason::name, GapReason::ALL;
    SubscriberPlace: place_name, [SubscriberPlace::Local, SubscriberPlace::Remote];
    Encoding: encoding_name, [Encoding::Text, Encoding::Base64];
}

fn place_name(place: SubscriberPlace) -> &'static str {
    match place {
        SubscriberPlace::Local => "local",
        SubscriberPlace::Remote => "remote",
    }
}

/// The encoding of a payload in a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The payload is UTF-8, and the document contains it as it is.
    Text,
    /// The document contains the payload in base 64.
    Base64,
}

fn encoding_name(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Text => "text",
        Encoding::Base64 => "base64",
    }
}

impl Serialize for Exit {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_map([match *self {
            Exit::Code(code) => ("code", code),
            Exit::Signal(signal) => ("signal", signal),
        }])
    }
}

impl<'de> Deserialize<'de> for Exit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Exit, D::Error> {
        let members = Map::<String, Value>::deserialize(from)?;
        let number = |name| Option::<i32>::deserialize(members.get(name).unwrap_or(&Value::Null));
        match (number("code"), number("signal")) {
            (Ok(Some(code)), Ok(None)) => Ok(Exit::Code(code)),
            (Ok(None), Ok(Some(signal))) => Ok(Exit::Signal(signal)),
            _ => Err(D::Error::custom("the exit is not a code or a signal")),
        }
    }
}

impl Member for Exit {
    const NOUN: &'static str = "a code or a signal";

    fn schema() -> Value {
        json!({"$ref": "#/components/schemas/Exit"})
    }

    fn fault(value: &Value, name: &'static str, of: &'static str) -> Option<Fault> {
        let mut members = ["code", "signal"].into_iter();
        let number = |member| Option::<i32>::fault(&value[member], member, name);
        members.find_map(number).or_else(|| {
            (!fits::<Exit>(value)).then(|| Fault::of_member(value, name, of, Self::NOUN))
        })
    }
}

/// Returns the schema of an exit.
pub(super) fn exit_schema() -> Value {
    let one = |name: &str| {
        json!({
            "type": "object",
            "properties": {name: {"type": "integer"}},
            "required": [name],
        })
    };
    json!({"oneOf": [one("code"), one("signal")]})
}

documents! {
    /// The limit of the lag of a subscriber, in chunks and in bytes.
    struct Limits: "Limits" {
        /// Number of chunks.
        max_chunks: u32,
        /// Number of bytes. Without it, only chunks count.
        max_bytes: Option<u64>,
    }

    /// The time limits of a call. `null` means no limit.
    struct TimeLimits: "TimeLimits" {
        /// Time from the start to the first chunk, in milliseconds.
        first_chunk_ms: OrNull<u64>,
        /// Time from each chunk to the next, in milliseconds.
        inactivity_ms: OrNull<u64>,
        /// Time from the start to the end, in milliseconds.
        total_ms: OrNull<u64>,
    }
}

/// Values that are written as another document.
macro_rules! written_as {
    ($($type:ty => $document:ty;)+) => { $(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                <$document>::from(*self).serialize(out)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                <$document>::deserialize(from).map(<$type>::from)
            }
        }

        impl Member for $type {
            const NOUN: &'static str = <$document>::NOUN;

            fn schema() -> Value {
                <$document as Member>::schema()
            }

            fn fault(value: &Value, name: &'static str, of: &'static str) -> Option<Fault> {
                <$document as Member>::fault(value, name, of)
            }
        }
    )+ };
}

written_as! {
    LagLimit => Limits;
    Timeouts => TimeLimits;
}

#[doc(hidden)]
impl From<LagLimit> for Limits {
    fn from(limit: LagLimit) -> Limits {
        let max_bytes = Some(limit.bytes).filter(|bytes| *bytes < u64::MAX);
        Limits { max_chunks: limit.chunks, max_bytes }
    }
}

#[doc(hidden)]
impl From<Limits> for LagLimit {
    fn from(limits: Limits) -> LagLimit {
        LagLimit { chunks: limits.max_chunks, bytes: limits.max_bytes.unwrap_or(u64::MAX) }
    }
}

#[doc(hidden)]
impl From<Timeouts> for TimeLimits {
    fn from(timeouts: Timeouts) -> TimeLimits {
        let ms = |timeout: Option<Duration>| OrNull(timeout.map(|time| time.as_millis() as u64));
        TimeLimits {
            first_chunk_ms: ms(timeouts.first_chunk),
            inactivity_ms: ms(timeouts.inactivity),
            total_ms: ms(timeouts.total),
        }
    }
}

#[doc(hidden)]
impl From<TimeLimits> for Timeouts {
    fn from(limits: TimeLimits) -> Timeouts {
        let time = |ms: OrNull<u64>| ms.0.map(Duration::from_millis);
        Timeouts {
            first_chunk: time(limits.first_chunk_ms),
            inactivity: time(limits.inactivity_ms),
            total: time(limits.total_ms),
        }
    }
}
