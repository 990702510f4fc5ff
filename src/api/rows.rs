//! Documents as rows. One list of members makes the type, the JSON and the JSON Schema.
//!
//! A row has the text of the member, its name and its type. A member of the type [`Option`] may be
//! absent; all others are required.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// A value in a document.
pub trait Member: DeserializeOwned {
    /// A noun for the values of this type, for error texts: `a string`.
    const NOUN: &'static str;
    /// True if documents may lack a member of this type.
    const IS_OPTIONAL: bool = false;

    /// Returns the JSON Schema of the values.
    fn schema() -> Value;

    /// True if a document with this value is written without it.
    fn is_absent(&self) -> bool {
        false
    }

    /// Returns what is wrong with `value`, the member `name` of the object `of`. The value of a
    /// member that is absent is `null`.
    fn fault(value: &Value, name: &'static str, of: &'static str) -> Option<Fault>;
}

/// A JSON object of the API.
pub trait Document: Member {
    /// The name of its schema in the OpenAPI document.
    const TITLE: &'static str;
    /// The purpose of the document.
    const ABOUT: &'static str;
    /// The members, in the order in which they are written.
    const ROWS: &'static [Row];
}

/// The description of one member.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name in JSON.
    pub name: &'static str,
    /// The purpose of the member.
    pub about: &'static str,
    /// True if the member may be absent.
    pub is_optional: bool,
    /// The schema of the values.
    pub schema: fn() -> Value,
    /// [`Member::fault`] of the values.
    pub fault: fn(&Value, &'static str, &'static str) -> Option<Fault>,
}

impl Row {
    /// Returns the schema of the values, with the purpose of the member.
    pub fn described(&self) -> Value {
        let mut schema = (self.schema)();
        schema["description"] = self.about.trim().into();
        schema
    }
}

/// The reason why a JSON value is not a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The member that is missing or wrong, or the name of an object that is none.
    pub name: &'static str,
    /// The reason. It contains texts of the value, which may be hostile.
    pub text: String,
}

impl Fault {
    /// The fault of the member `name` of the object `of`, which must be `noun`.
    pub(super) fn of_member(
        value: &Value,
        name: &'static str,
        of: &'static str,
        noun: &str,
    ) -> Fault {
        let text = match value {
            Value::Null => format!("`{name}` of {of} is missing"),
            _ => format!("`{name}` of {of} is not {noun}"),
        };
        Fault { name, text }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl std::error::Error for Fault {}

/// Reads a document. `of` is its name in error texts. Unknown members are ignored, and `null`
/// counts as absent.
///
/// # Errors
/// [`Fault`] names the member that is missing or wrong.
pub fn read<T: Document>(value: Value, of: &'static str) -> Result<T, Fault> {
    // The rows are checked first, because the errors of `serde` name no member.
    match fault_of_object::<T>(&value, of) {
        Some(fault) => Err(fault),
        None => T::deserialize(value)
            .map_err(|error| Fault { name: of, text: format!("{of}: {error}") }),
    }
}

/// Returns what is wrong with an object.
pub(super) fn fault_of_object<T: Document>(value: &Value, of: &'static str) -> Option<Fault> {
    let Value::Object(members) = value else {
        return Some(Fault { name: of, text: format!("{of} is not a JSON object") });
    };
    T::ROWS.iter().find_map(|row| {
        let value = members.get(row.name).unwrap_or(&Value::Null);
        (row.fault)(value, row.name, of)
    })
}

/// Returns a reference to the schema of a document.
pub(super) fn reference<T: Document>() -> Value {
    json!({"$ref": format!("#/components/schemas/{}", T::TITLE)})
}

/// Returns the schema of a document.
pub fn schema<T: Document>() -> Value {
    object(T::ABOUT, T::ROWS)
}

/// Returns the schema of an object with these members. It allows others, because later versions may
/// add members.
pub(super) fn object(about: &str, rows: impl IntoIterator<Item = &'static Row>) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for row in rows {
        properties.insert(row.name.to_owned(), row.described());
        if !row.is_optional {
            required.push(row.name);
        }
    }
    let mut schema = json!({
        "type": "object",
        "description": about.trim(),
        "properties": properties,
    });
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// Makes documents from their rows:
///
/// ```text
/// /// The purpose of the document.
/// struct Name: "TITLE" {
///     /// The purpose of the member.
///     #[serde(serialize_with = "number")]   // Options for `serde`, if needed.
///     field("json name"): Type => schema(), // Name and schema, if they are not those of `Type`.
/// }
/// ```
macro_rules! documents {
    ($(
        $(#[doc = $about:literal])+
        struct $document:ident $(<$life:lifetime>)?: $title:literal {
            $(
                $(#[doc = $text:literal])+
                $(#[serde($($option:tt)+)])?
                $field:ident $(($name:literal))?: $type:ty $(=> $schema:expr)?,
            )+
        }
    )+) => { $(
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $document $(<$life>)? {
            $(
                $(#[doc = $text])+
                #[serde(skip_serializing_if = "crate::api::Member::is_absent")]
                $(#[serde(rename = $name)])?
                $(#[serde($($option)+)])?
                pub $field: $type,
            )+
        }

        impl $(<$life>)? crate::api::Document for $document $(<$life>)? {
            const TITLE: &'static str = $title;
            const ABOUT: &'static str = concat!($($about),+);
            const ROWS: &'static [crate::api::Row] = &[$(crate::api::Row {
                name: crate::api::rows::given!($($name)?; stringify!($field)),
                about: concat!($($text),+),
                is_optional: <$type as crate::api::Member>::IS_OPTIONAL,
                schema: crate::api::rows::given!(
                    $(|| $schema)?; <$type as crate::api::Member>::schema
                ),
                fault: <$type as crate::api::Member>::fault,
            }),+];
        }

        impl $(<$life>)? crate::api::Member for $document $(<$life>)? {
            const NOUN: &'static str = "an object";

            fn schema() -> serde_json::Value {
                crate::api::rows::reference::<Self>()
            }

            fn fault(
                value: &serde_json::Value,
                name: &'static str,
                of: &'static str,
            ) -> Option<crate::api::Fault> {
                match value {
                    serde_json::Value::Null => {
                        Some(crate::api::Fault::of_member(value, name, of, Self::NOUN))
                    }
                    _ => crate::api::rows::fault_of_object::<Self>(value, name),
                }
            }
        }
    )+

        /// Returns the schemas of these documents by name.
        pub(super) fn schemas() -> Vec<(&'static str, serde_json::Value)> {
            vec![$(($title, crate::api::schema::<$document>())),+]
        }
    };
}

/// The first of two expressions, if it is given.
macro_rules! given {
    (; $other:expr) => {
        $other
    };
    ($first:expr; $other:expr) => {
        $first
    };
}

pub(super) use documents;
pub(super) use given;
