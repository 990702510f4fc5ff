//! The members of small objects, which are found by comparing names. Hashing a name costs more.

use serde_core::de::MapAccess;
use serde_json::{Map, Value};

use super::strict::{Form, Strict};

/// Number of members up to which a linear search is cheaper than hashing a name.
const FEW_MEMBERS: usize = 8;
/// Number of members up to which they are a list. A search among more takes too long.
const LISTED_MEMBERS: usize = 2 * FEW_MEMBERS;

/// Returns the member with this name.
pub(crate) fn member<'v>(members: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    match members.len() <= FEW_MEMBERS {
        true => members.iter().find(|(other, _)| *other == name).map(|(_, value)| value),
        false => members.get(name),
    }
}

/// Removes and returns the member with this name. The other members keep their order.
pub(crate) fn take_member(members: &mut Map<String, Value>, name: &str) -> Option<Value> {
    member(members, name)?; // Most names are absent.
    members.shift_remove(name)
}

/// The members of an object in their order, without hashes while they are few.
#[derive(Clone, Debug)]
pub(crate) enum Members {
    /// The members, each with its name. No name occurs twice.
    Few(Vec<(Box<str>, Value)>),
    Many(Map<String, Value>),
}

impl Default for Members {
    fn default() -> Members {
        Members::Few(Vec::new())
    }
}

impl Members {
    /// Returns the member with this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Members::Few(few) => few.iter().find(|(other, _)| **other == *name).map(|(_, it)| it),
            Members::Many(many) => many.get(name),
        }
    }

    /// Returns the member with this name.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        match self {
            Members::Few(few) => {
                few.iter_mut().find(|(other, _)| **other == *name).map(|(_, it)| it)
            }
            Members::Many(many) => many.get_mut(name),
        }
    }

    /// Removes and returns the member with this name.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        match self {
            Members::Few(few) => {
                let at = few.iter().position(|(other, _)| **other == *name)?;
                Some(few.remove(at).1)
            }
            Members::Many(many) => take_member(many, name),
        }
    }

    /// Adds a member. Returns the previous value of this name, if it had one.
    pub fn insert(&mut self, name: Box<str>, value: Value) -> Option<Value> {
        let few = match self {
            Members::Few(few) => few,
            Members::Many(many) => return many.insert(name.into(), value),
        };
        if let Some((_, before)) = few.iter_mut().find(|(other, _)| *other == name) {
            return Some(std::mem::replace(before, value));
        }
        if few.len() < LISTED_MEMBERS {
            few.push((name, value));
            return None;
        }
        let mut many = std::mem::take(self).into_map();
        many.insert(name.into(), value);
        *self = Members::Many(many);
        None
    }

    /// Returns the members as the members of a [`Value`].
    pub fn into_map(self) -> Map<String, Value> {
        match self {
            Members::Few(few) => few.into_iter().map(|(name, it)| (name.into(), it)).collect(),
            Members::Many(many) => many,
        }
    }

    fn len(&self) -> usize {
        match self {
            Members::Few(few) => few.len(),
            Members::Many(many) => many.len(),
        }
    }

    /// All members.
    fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        let (few, many) = match self {
            Members::Few(few) => (few.as_slice(), None),
            Members::Many(many) => (&[][..], Some(many)),
        };
        let many = many.into_iter().flatten().map(|(name, value)| (name.as_str(), value));
        few.iter().map(|(name, value)| (&**name, value)).chain(many)
    }
}

impl PartialEq for Members {
    fn eq(&self, other: &Members) -> bool {
        self.len() == other.len() && self.iter().all(|(name, value)| other.get(name) == Some(value))
    }
}

impl From<Map<String, Value>> for Members {
    fn from(members: Map<String, Value>) -> Members {
        match members.len() <= LISTED_MEMBERS {
            true => Members::Few(members.into_iter().map(|(name, it)| (name.into(), it)).collect()),
            false => Members::Many(members),
        }
    }
}

impl Form for Members {
    fn read_members<'de, A: MapAccess<'de>>(
        mut source: A,
        inside: Strict<'_>,
    ) -> Result<Members, A::Error> {
        let mut members = Members::default();
        while let Some(name) = source.next_key()? {
            if members.insert(name, source.next_value_seed(inside)?).is_some() {
                inside.note_name_twice();
            }
        }
        Ok(members)
    }
}

/// A value that is expected to be an object, and the form of its members if it is one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place<O> {
    Object(O),
    /// Any other value.
    Other(Value),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_found_by_their_names_however_many_they_are() {
        for count in [0, 1, LISTED_MEMBERS - 1, LISTED_MEMBERS, LISTED_MEMBERS + 1, 1_000] {
            let mut members = Members::default();
            for number in 0..count {
                assert_eq!(members.insert(format!("n{number}").into(), number.into()), None);
            }
            assert_eq!(matches!(members, Members::Few(_)), count <= LISTED_MEMBERS, "{count}");
            let map: Map<String, Value> =
                (0..count).map(|number| (format!("n{number}"), number.into())).collect();
            assert_eq!(members.clone().into_map(), map);
            assert_eq!(Members::from(map), members);
            for number in 0..count {
                let name = format!("n{number}");
                assert_eq!(members.insert(name.as_str().into(), json!("b")), Some(number.into()));
                *members.get_mut(&name).unwrap() = json!("c");
                assert_eq!(members.get(&name), Some(&json!("c")));
                assert_eq!(members.take(&name), Some(json!("c")));
                assert_eq!((members.take(&name), members.get(&name)), (None, None));
            }
            assert_eq!(members, Members::default());
        }
    }
}
