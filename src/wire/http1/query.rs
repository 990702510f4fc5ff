//! Query strings: names and values, decoded once, each read by its name and type.
//!
//! Every error names the field and the permitted values. Nothing is guessed. A repeated name where
//! one is expected, an unknown name, and a number out of range are errors.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use smallvec::SmallVec;

use super::target::{DecodeError, decode};
use crate::limits;

/// The names and values of a query string.
///
/// ```
/// use streamdoor::wire::http1::Query;
///
/// let query = Query::parse("executions=a,b&max_chunks=10&format=sse")?;
/// query.refuse_others(&["executions", "max_chunks", "format", "from"])?;
/// assert_eq!(query.number("max_chunks", 1..=1_000)?, Some(10));
/// assert_eq!(query.choice("format", &["sse", "ndjson"])?, Some("sse"));
/// assert_eq!(query.list("executions").collect::<Vec<_>>(), ["a", "b"]);
/// assert_eq!(query.text("from")?, None);
/// let error = query.number("max_chunks", 100..=1_000).unwrap_err();
/// assert_eq!(error.to_string(), "max_chunks: it must be a number from 100 to 1000");
/// # Ok::<(), streamdoor::wire::http1::QueryError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Query<'a> {
    pairs: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 8]>,
}

/// The error of a query string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError {
    /// The name of the field; empty if the fault concerns the whole query string.
    pub field: String,
    /// The fault of the field.
    pub fault: QueryFault,
}

/// The fault of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryFault {
    /// It cannot be decoded.
    Undecodable(DecodeError),
    /// The number of fields exceeds [`limits::HTTP_QUERY_PAIRS_MAX`].
    TooMany,
    /// The field occurs more than once.
    Repeated,
    /// No such field is known.
    Unknown,
    /// The value is not a number from the first to the second.
    NotANumber(u64, u64),
    /// The value is none of these.
    NotAChoice(&'static [&'static str]),
    /// The value is neither `true` nor `false`.
    NotABool,
}

impl<'a> Query<'a> {
    /// Parses `a=b&c=d`; `+` and `%20` are spaces.
    ///
    /// # Errors
    /// [`QueryFault::Undecodable`] and [`QueryFault::TooMany`].
    pub fn parse(text: &'a str) -> Result<Query<'a>, QueryError> {
        let mut pairs = SmallVec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            if pairs.len() == limits::HTTP_QUERY_PAIRS_MAX {
                return Err(error("", QueryFault::TooMany));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let undecodable = |fault| error(name, QueryFault::Undecodable(fault));
            let decoded_name = decode(name, true).map_err(undecodable)?;
            pairs.push((decoded_name, decode(value, true).map_err(undecodable)?));
        }
        Ok(Query { pairs })
    }

    /// Checks that the query has no fields but `known`.
    ///
    /// # Errors
    /// [`QueryFault::Unknown`] for the first unknown field.
    pub fn refuse_others(&self, known: &[&str]) -> Result<(), QueryError> {
        match self.pairs.iter().find(|(name, _)| !known.contains(&&**name)) {
            Some((name, _)) => Err(error(name, QueryFault::Unknown)),
            None => Ok(()),
        }
    }

    /// Returns all values of a name, in order.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.pairs.iter().filter(move |(other, _)| other == name).map(|(_, value)| &**value)
    }

    /// Returns all values of a name, which may be repeated, or have several values separated by
    /// commas. Empty values are omitted.
    pub fn list(&self, name: &str) -> impl Iterator<Item = &str> {
        self.all(name).flat_map(|value| value.split(',')).filter(|part| !part.is_empty())
    }

    /// Returns the only value of a name.
    ///
    /// # Errors
    /// [`QueryFault::Repeated`] if the name occurs more than once.
    pub fn text(&self, name: &str) -> Result<Option<&str>, QueryError> {
        let mut values = self.all(name);
        let value = values.next();
        match values.next() {
            Some(_) => Err(error(name, QueryFault::Repeated)),
            None => Ok(value),
        }
    }

    /// Returns an integer in `range`, written in digits only.
    ///
    /// # Errors
    /// [`QueryFault::NotANumber`], [`QueryFault::Repeated`].
    pub fn number(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, QueryError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(error(name, QueryFault::NotANumber(*range.start(), *range.end()))),
        }
    }

    /// Returns one of `choices`.
    ///
    /// # Errors
    /// [`QueryFault::NotAChoice`], [`QueryFault::Repeated`].
    pub fn choice(
        &self,
        name: &str,
        choices: &'static [&'static str],
    ) -> Result<Option<&'static str>, QueryError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match choices.iter().find(|choice| **choice == text) {
            Some(choice) => Ok(Some(choice)),
            None => Err(error(name, QueryFault::NotAChoice(choices))),
        }
    }

    /// Returns `true` or `false`. A name without a value is `true`.
    ///
    /// # Errors
    /// [`QueryFault::NotABool`], [`QueryFault::Repeated`].
    pub fn flag(&self, name: &str) -> Result<Option<bool>, QueryError> {
        match self.text(name)? {
            None => Ok(None),
            Some("true" | "") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(error(name, QueryFault::NotABool)),
        }
    }
}

fn error(field: &str, fault: QueryFault) -> QueryError {
    QueryError { field: field.to_owned(), fault }
}

impl fmt::Display for QueryError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(out, "{}: ", self.field)?;
        }
        match &self.fault {
            QueryFault::Undecodable(fault) => fault.fmt(out),
            QueryFault::TooMany => {
                write!(out, "the query has more than {} fields", limits::HTTP_QUERY_PAIRS_MAX)
            }
            QueryFault::Repeated => out.write_str("it occurs more than once"),
            QueryFault::Unknown => out.write_str("it is not a known field"),
            QueryFault::NotANumber(low, high) => {
                write!(out, "it must be a number from {low} to {high}")
            }
            QueryFault::NotAChoice(choices) => {
                write!(out, "it must be one of {}", choices.join(", "))
            }
            QueryFault::NotABool => out.write_str("it must be true or false"),
        }
    }
}

impl std::error::Error for QueryError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_decoded_once() {
        let query = Query::parse("a=1&&b=x+y%20z&a=%2B2&c&=e&d=%253D&f=g=h&").unwrap();
        assert_eq!(query.all("a").collect::<Vec<_>>(), ["1", "+2"]);
        assert_eq!(query.text("b").unwrap(), Some("x y z"));
        assert_eq!(query.text("c").unwrap(), Some(""));
        assert_eq!(query.text("").unwrap(), Some("e"));
        assert_eq!(query.text("d").unwrap(), Some("%3D"));
        assert_eq!(query.text("f").unwrap(), Some("g=h"));
        assert_eq!(query.text("g").unwrap(), None);
        assert_eq!(query.text("a").unwrap_err().fault, QueryFault::Repeated);
    }

    #[test]
    fn errors_name_the_field_and_what_it_may_be() {
        let choices: &[&str] = &["sse", "ndjson"];
        let check = |text: &str| -> Result<(), QueryError> {
            let query = Query::parse(text)?;
            query.refuse_others(&["n", "f", "b"])?;
            query.number("n", 1..=10)?;
            query.choice("f", &["sse", "ndjson"])?;
            query.flag("b").map(|_| ())
        };
        assert_eq!(check("n=10&f=ndjson&b"), Ok(()));
        let number = || QueryFault::NotANumber(1, 10);
        let table = [
            ("n=0", "n", number()),
            ("n=11", "n", number()),
            ("n=", "n", number()),
            ("n=-1", "n", number()),
            ("n=%2B1", "n", number()),
            ("n=1.0", "n", number()),
            ("n=0x1", "n", number()),
            ("n=+1", "n", number()), // The `+` is a space.
            ("n=99999999999999999999999", "n", number()),
            ("n=1&n=1", "n", QueryFault::Repeated),
            ("f=SSE", "f", QueryFault::NotAChoice(choices)),
            ("b=yes", "b", QueryFault::NotABool),
            ("x=1", "x", QueryFault::Unknown),
            ("N=1", "N", QueryFault::Unknown),
            ("n=%", "n", QueryFault::Undecodable(DecodeError::BadEscape)),
            ("n=%ff", "n", QueryFault::Undecodable(DecodeError::NotUtf8)),
            ("n=%00", "n", QueryFault::Undecodable(DecodeError::ControlCharacter)),
            ("%zz=1", "%zz", QueryFault::Undecodable(DecodeError::BadEscape)),
        ];
        for (text, field, fault) in table {
            assert_eq!(check(text), Err(error(field, fault)), "{text}");
        }
        let many = "a&".repeat(65);
        assert_eq!(Query::parse(&many).unwrap_err(), error("", QueryFault::TooMany));
        assert!(Query::parse(&many[2..]).is_ok());
        assert_eq!(check("f=x").unwrap_err().to_string(), "f: it must be one of sse, ndjson");
    }
}
