//! The directory: what every node knows about an execution.
//!
//! An entry has the key `<tag>.<node>`. The tag stands for the id of the execution. The id is a
//! secret that opens it. Keys and subjects are visible to all who may look at the engine, and a tag
//! tells nothing without the secret of the cluster.
//!
//! Entries come from outside: [`Entry::parse`] checks everything.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use super::claim::PathName;
use super::record::Incarnation;
use crate::base::ExecutionId;
use crate::limits::{CLUSTER_ENTRY_BYTES_MAX, CLUSTER_NODE_NAME_BYTES_MAX, RING_CLASS_BYTES_MAX};

/// The digits of a tag: those of Crockford's base 32, in lower case.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Number of digits of a tag: 128 bits.
pub const TAG_DIGITS: usize = 26;
const LABEL: &[u8] = b"streamdoor cluster tag 1";
const PATH_LABEL: &[u8] = b"streamdoor cluster path 1";

/// The name of an execution in the engine, or of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(Box<str>);

impl Tag {
    /// The tag of an execution in the cluster with this secret.
    pub fn new(secret: &[u8], id: &ExecutionId) -> Tag {
        Tag::of(secret, &[LABEL, id.to_string().as_bytes()])
    }

    /// The tag of the path of a stream in the cluster with this secret.
    pub fn of_path(secret: &[u8], name: &PathName) -> Tag {
        // The length keeps the owner and the path apart.
        let owner = name.owner.as_deref();
        let bytes = owner.map_or(u64::MAX, |owner| owner.len() as u64).to_le_bytes();
        let owner = owner.unwrap_or_default().as_bytes();
        Tag::of(secret, &[PATH_LABEL, &bytes, owner, name.path.as_bytes()])
    }

    fn of(secret: &[u8], parts: &[&[u8]]) -> Tag {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key has any length");
        parts.iter().for_each(|part| mac.update(part));
        let bytes: [u8; 32] = mac.finalize().into_bytes().into();
        let number = u128::from_le_bytes(bytes[..16].try_into().expect("16 bytes"));
        let digit = |at: usize| DIGITS[(number >> (5 * at) & 31) as usize] as char;
        Tag((0..TAG_DIGITS).map(digit).collect())
    }

    /// Reads a tag.
    pub fn parse(text: &str) -> Option<Tag> {
        let is_right = text.len() == TAG_DIGITS && text.bytes().all(|byte| DIGITS.contains(&byte));
        is_right.then(|| Tag(text.into()))
    }

    /// Its digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// True if a node can have this name: letters, digits, `-` and `_`. It is a part of subjects.
pub fn is_node_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=CLUSTER_NODE_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// The state of an execution in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// Its tool runs, if its node lives.
    Running,
    /// The log has its end.
    Ended,
}

/// The entry of an execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The life of the node that runs its tool.
    pub owner: Incarnation,
    /// The state.
    pub state: EntryState,
    /// The name of the principal; `None` if the cluster has no tokens.
    pub principal: Option<Box<str>>,
    /// The time of its beginning, in microseconds since 1970.
    pub opened_us: u64,
    /// The size of its ring, in bytes.
    pub ring_bytes: u32,
    /// The longest chunk that its ring takes, in bytes.
    pub chunk_bytes: u32,
    /// Number of chunks that its tool will publish, once it has said so.
    pub chunks_expected: Option<u64>,
    /// Everything else that a node wants to know of it, as the record of a beginning in a journal
    /// says it.
    pub details: Value,
}

impl Entry {
    /// Returns the text of the entry.
    pub fn to_text(&self) -> String {
        let Entry { owner, state, principal, opened_us, ring_bytes, chunk_bytes, .. } = self;
        let state = if *state == EntryState::Running { "running" } else { "ended" };
        let owner = format!("{:016x}", owner.0);
        json!({
            "version": 1,
            "owner": owner,
            "state": state,
            "principal": principal,
            "opened_us": opened_us,
            "ring_bytes": ring_bytes,
            "chunk_bytes": chunk_bytes,
            "chunks_expected": self.chunks_expected,
            "details": self.details,
        })
        .to_string()
    }

    /// Reads an entry. Unknown members are left out, and `None` is no entry of this version.
    pub fn parse(text: &[u8]) -> Option<Entry> {
        if text.len() > CLUSTER_ENTRY_BYTES_MAX {
            return None;
        }
        let mut entry: Value = serde_json::from_slice(text).ok()?;
        let owner = entry["owner"].as_str().filter(|digits| digits.len() == 16)?;
        let owner = Incarnation(u64::from_str_radix(owner, 16).ok()?);
        let state = match entry["state"].as_str()? {
            "running" => EntryState::Running,
            "ended" => EntryState::Ended,
            _ => return None,
        };
        let principal = match entry.get("principal")? {
            Value::Null => None,
            principal => Some(principal.as_str()?.into()),
        };
        let bytes = |name: &str| {
            let bytes = u32::try_from(entry[name].as_u64()?).ok()?;
            (bytes <= RING_CLASS_BYTES_MAX).then_some(bytes)
        };
        let (ring_bytes, chunk_bytes) = (bytes("ring_bytes")?, bytes("chunk_bytes")?);
        let opened_us = entry["opened_us"].as_u64()?;
        let chunks_expected = entry["chunks_expected"].as_u64();
        (entry["version"] == 1).then_some(())?;
        let details = entry.get_mut("details").filter(|details| details.is_object())?.take();
        Some(Entry {
            owner,
            state,
            principal,
            opened_us,
            ring_bytes,
            chunk_bytes,
            chunks_expected,
            details,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Handle;

    #[test]
    fn a_tag_depends_on_the_secret_and_on_the_whole_id() {
        let slot = Handle { index: 1, generation: 1 };
        let id = |nonce| ExecutionId { shard: 0, slot, nonce };
        let tag = Tag::new(b"secret", &id(7));
        assert_eq!(Tag::parse(tag.as_str()), Some(tag.clone()));
        assert_eq!(Tag::new(b"secret", &id(7)), tag);
        assert_ne!(Tag::new(b"secret", &id(8)), tag);
        assert_ne!(Tag::new(b"other", &id(7)), tag);
        for wrong in ["", "abc", &"u".repeat(TAG_DIGITS), &"A".repeat(TAG_DIGITS)] {
            assert_eq!(Tag::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn paths_of_different_owners_have_different_tags() {
        let tag = |owner: Option<&str>, path: &str| {
            let owner = owner.map(Box::from);
            Tag::of_path(b"secret", &PathName { owner, path: path.into() })
        };
        let all = [(None, "ab"), (Some(""), "ab"), (Some("a"), "b"), (Some("ab"), ""), (None, "b")];
        let tags: std::collections::BTreeSet<Tag> =
            all.iter().map(|(owner, path)| tag(*owner, path)).collect();
        assert_eq!((tags.len(), tag(None, "ab")), (all.len(), tag(None, "ab")));
    }

    #[test]
    fn names_of_nodes_are_parts_of_subjects() {
        assert!(is_node_name("node-1_A"));
        let long = "a".repeat(CLUSTER_NODE_NAME_BYTES_MAX + 1);
        assert!(["", "a.b", "a b", "*", ">", "ä", &long].iter().all(|name| !is_node_name(name)));
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_and_nothing_else_is() {
        let entry = Entry {
            owner: Incarnation(0xAB),
            state: EntryState::Running,
            principal: Some("alice".into()),
            opened_us: 5,
            ring_bytes: 1 << 16,
            chunk_bytes: 1 << 14,
            chunks_expected: Some(3),
            details: json!({ "tool": "slow", "mono_ns": u64::MAX }),
        };
        let other = Entry { principal: None, state: EntryState::Ended, ..entry.clone() };
        for entry in [&entry, &other] {
            assert_eq!(Entry::parse(entry.to_text().as_bytes()).as_ref(), Some(entry));
        }
        let value: Value = serde_json::from_str(&entry.to_text()).unwrap();
        for name in [
            "version",
            "owner",
            "state",
            "principal",
            "opened_us",
            "ring_bytes",
            "chunk_bytes",
            "details",
        ] {
            let mut without = value.clone();
            without.as_object_mut().unwrap().remove(name);
            assert_eq!(Entry::parse(without.to_string().as_bytes()), None, "{name}");
            let mut wrong = value.clone();
            wrong[name] = json!(-1);
            assert_eq!(Entry::parse(wrong.to_string().as_bytes()), None, "{name}");
        }
        let long = " ".repeat(CLUSTER_ENTRY_BYTES_MAX) + &entry.to_text();
        assert_eq!(Entry::parse(long.as_bytes()), None);
    }
}
