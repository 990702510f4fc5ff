//! Members of small objects, found by their names.

use serde_json::{Map, Value};

/// Up to so many members are looked at one by one: that is less than hashing a name.
const FEW_MEMBERS: usize = 8;

/// The member of this name.
pub(crate) fn member<'v>(members: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    match members.len() <= FEW_MEMBERS {
        true => members.iter().find(|(other, _)| *other == name).map(|(_, value)| value),
        false => members.get(name),
    }
}

/// Takes the member of this name out.
pub(crate) fn take_member(members: &mut Map<String, Value>, name: &str) -> Option<Value> {
    member(members, name)?; // Most of what is looked for is not there.
    members.remove(name)
}
