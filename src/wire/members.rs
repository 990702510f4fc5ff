//! Lookup of members of small objects by name.

use serde_json::{Map, Value};

/// Number of members up to which a linear search is cheaper than hashing a name.
const FEW_MEMBERS: usize = 8;

/// Returns the member with this name.
pub(crate) fn member<'v>(members: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    match members.len() <= FEW_MEMBERS {
        true => members.iter().find(|(other, _)| *other == name).map(|(_, value)| value),
        false => members.get(name),
    }
}

/// Removes and returns the member with this name.
pub(crate) fn take_member(members: &mut Map<String, Value>, name: &str) -> Option<Value> {
    member(members, name)?; // Most names are absent.
    members.remove(name)
}
