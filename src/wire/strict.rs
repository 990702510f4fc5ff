//! A strict reader of foreign JSON texts, which no two programs could read in two ways.
//!
//! It refuses texts that are not JSON, and objects with the same name twice. It also refuses
//! nesting deeper than [`limits::JSON_DEPTH_MAX`], because it has no use.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde_core::Deserializer;
use serde_core::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::members::Place;
use crate::limits;

/// The reason why a text was not read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// It is not JSON. The parser's error says why.
    NotJson(serde_json::Error),
    /// It is nested too deep.
    TooDeep,
    /// One of its objects has the same name twice.
    NameTwice,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::NotJson(error) => write!(out, "is not JSON: {error}"),
            Unreadable::TooDeep => {
                write!(out, "is nested deeper than {}", limits::JSON_DEPTH_MAX)
            }
            Unreadable::NameTwice => out.write_str("has an object with a repeated name"),
        }
    }
}

/// Reads a text.
///
/// # Errors
/// [`Unreadable`] if the text is refused.
pub(crate) fn read(text: &[u8]) -> Result<Value, Unreadable> {
    let found = Found::default();
    let mut source = serde_json::Deserializer::from_slice(text);
    let value = Strict::new(&found).deserialize(&mut source);
    found.verdict(value.and_then(|value| source.end().map(|()| value)))
}

/// Faults that the parser itself does not report.
#[derive(Debug, Default)]
pub(crate) struct Found {
    is_too_deep: Cell<bool>,
    has_name_twice: Cell<bool>,
}

impl Found {
    /// Records a name that occurred twice. The reading continues, because the text may not be JSON.
    pub fn note_name_twice(&self) {
        self.has_name_twice.set(true);
    }

    /// Returns the result of a text that was read.
    ///
    /// # Errors
    /// [`Unreadable`] if the parser failed or a fault was recorded.
    pub fn verdict<T>(&self, read: Result<T, serde_json::Error>) -> Result<T, Unreadable> {
        match read {
            _ if self.is_too_deep.get() => Err(Unreadable::TooDeep),
            Err(error) => Err(Unreadable::NotJson(error)),
            Ok(_) if self.has_name_twice.get() => Err(Unreadable::NameTwice),
            Ok(value) => Ok(value),
        }
    }
}

/// A form of the members of an object. Its values are read by the reader of the elements.
pub(crate) trait Form: Sized {
    /// Reads the members, and records names that occur twice.
    ///
    /// # Errors
    /// The error of the source.
    fn read_members<'de, A: MapAccess<'de>>(
        source: A,
        inside: Strict<'_>,
    ) -> Result<Self, A::Error>;
}

/// A result of the reader: a tree, or an object in another form.
pub(crate) trait Read: Form {
    fn of_leaf(value: Value) -> Self;
}

impl Read for Value {
    fn of_leaf(value: Value) -> Value {
        value
    }
}

impl Form for Value {
    fn read_members<'de, A: MapAccess<'de>>(
        mut source: A,
        inside: Strict<'_>,
    ) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = source.next_key::<String>()? {
            if object.insert(name, source.next_value_seed(inside)?).is_some() {
                inside.note_name_twice();
            }
        }
        Ok(Value::Object(object))
    }
}

impl<F: Form> Read for Place<F> {
    fn of_leaf(value: Value) -> Place<F> {
        Place::Other(value)
    }
}

impl<F: Form> Form for Place<F> {
    fn read_members<'de, A: MapAccess<'de>>(
        source: A,
        inside: Strict<'_>,
    ) -> Result<Place<F>, A::Error> {
        F::read_members(source, inside).map(Place::Object)
    }
}

/// A reader of one value, which records the faults that a [`Value`] does not show.
pub(crate) struct Strict<'f, T = Value> {
    found: &'f Found,
    /// Number of arrays and objects that it may still open.
    depth_left: u32,
    result: PhantomData<T>,
}

impl<T> Clone for Strict<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Strict<'_, T> {}

impl<'f> Strict<'f> {
    /// Creates the reader of a whole text.
    pub fn new(found: &'f Found) -> Strict<'f> {
        Strict { found, depth_left: limits::JSON_DEPTH_MAX, result: PhantomData }
    }

    /// Returns the reader of the same value as another type.
    pub fn into_type<T>(self) -> Strict<'f, T> {
        Strict { found: self.found, depth_left: self.depth_left, result: PhantomData }
    }

    /// Records a name that occurred twice.
    pub fn note_name_twice(self) {
        self.found.note_name_twice();
    }
}

impl<'f, T> Strict<'f, T> {
    /// Creates the reader of the elements of an array or object.
    ///
    /// # Errors
    /// An error of the source's type if the nesting is too deep.
    pub fn inside<E: Error>(self) -> Result<Strict<'f>, E> {
        match self.depth_left.checked_sub(1) {
            Some(depth_left) => Ok(Strict { found: self.found, depth_left, result: PhantomData }),
            None => {
                self.found.is_too_deep.set(true);
                Err(E::custom("it is nested too deeply"))
            }
        }
    }
}

impl<'de, T: Read> DeserializeSeed<'de> for Strict<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<T, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de, T: Read> Visitor<'de> for Strict<'_, T> {
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::of_leaf(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<T, E> {
        Ok(T::of_leaf(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<T, E> {
        Ok(T::of_leaf(Value::Number(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<T, E> {
        Ok(T::of_leaf(Value::Number(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<T, E> {
        Ok(T::of_leaf(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<T, E> {
        Ok(T::of_leaf(Value::String(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<T, A::Error> {
        let inside = self.inside()?;
        let mut array = Vec::new();
        while let Some(value) = values.next_element_seed(inside)? {
            array.push(value);
        }
        Ok(T::of_leaf(Value::Array(array)))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<T, A::Error> {
        T::read_members(members, self.inside()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_one_name_twice_is_refused_wherever_it_is() {
        let good = [
            r#"{}"#,
            r#"{"a":1,"b":{"a":1},"c":[{"a":1},{"a":1}]}"#,
            r#"{"a:":":","\"":":\"","\\":"\\"}"#,
            r#"[":",":\\",{"a":":"}]"#,
            r#"":""#,
        ];
        for text in good {
            assert!(read(text.as_bytes()).is_ok(), "{text}");
        }
        let bad = [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"x":[{"a":{},"b":1,"a":{}}]}"#,
            r#"{"":1,"":2}"#,
        ];
        for text in bad {
            assert!(matches!(read(text.as_bytes()), Err(Unreadable::NameTwice)), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_or_too_deep_is_refused() {
        let depth_max = limits::JSON_DEPTH_MAX as usize;
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(nested(depth_max).as_bytes()).is_ok());
        let too_deep = read(nested(depth_max + 1).as_bytes());
        assert!(matches!(too_deep, Err(Unreadable::TooDeep)));
        assert!(read(format!("\"{}\"", "[".repeat(depth_max + 1)).as_bytes()).is_ok());
        for bad in [&b""[..], b"{", b"{} {}", b"{\"a\"}", b"\"\xff\"", b"nul", b"1e999", b"{'a':1}"]
        {
            let unread = read(bad);
            let text = String::from_utf8_lossy(bad);
            assert!(matches!(unread, Err(Unreadable::NotJson(_))), "{text}");
        }
        assert!(matches!(read("[".repeat(1 << 20).as_bytes()), Err(Unreadable::TooDeep)));
    }
}
