//! The parameters of a message.

use serde_core::de::MapAccess;
use serde_json::{Map, Value};

use crate::wire::members::{Members, Place};
use crate::wire::strict::{Form, Strict};

const META: &str = "_meta";

/// The parameters of a message. The members of `_meta` are apart from all others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    meta: Option<Place<Members>>,
    /// All others.
    members: Members,
}

impl Parameters {
    /// Returns the parameter with this name, which is not `_meta`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.members.get(name)
    }

    /// The members of `_meta`; `None` unless it is an object.
    pub(crate) fn meta(&self) -> Option<&Members> {
        match &self.meta {
            Some(Place::Object(meta)) => Some(meta),
            _ => None,
        }
    }

    /// Returns `_meta` and all other parameters.
    pub(crate) fn into_parts(self) -> (Place<Members>, Members) {
        (self.meta.unwrap_or(Place::Other(Value::Null)), self.members)
    }

    /// Returns the parameters as the members of a [`Value`], `_meta` last.
    pub fn into_map(self) -> Map<String, Value> {
        let mut members = self.members.into_map();
        if let Some(meta) = self.meta {
            let meta = match meta {
                Place::Object(meta) => meta.into_map().into(),
                Place::Other(value) => value,
            };
            members.insert(META.to_owned(), meta);
        }
        members
    }
}

impl From<Map<String, Value>> for Parameters {
    fn from(members: Map<String, Value>) -> Parameters {
        let mut members = Members::from(members);
        let meta = members.take(META).map(|meta| match meta {
            Value::Object(meta) => Place::Object(meta.into()),
            other => Place::Other(other),
        });
        Parameters { meta, members }
    }
}

impl Form for Parameters {
    fn read_members<'de, A: MapAccess<'de>>(
        mut source: A,
        inside: Strict<'_>,
    ) -> Result<Parameters, A::Error> {
        let mut parameters = Parameters::default();
        while let Some(name) = source.next_key::<Box<str>>()? {
            let is_twice = if &*name == META {
                let meta = source.next_value_seed(inside.into_type())?;
                parameters.meta.replace(meta).is_some()
            } else {
                let value = source.next_value_seed(inside)?;
                parameters.members.insert(name, value).is_some()
            };
            if is_twice {
                inside.note_name_twice();
            }
        }
        Ok(parameters)
    }
}
