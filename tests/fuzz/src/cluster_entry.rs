//! Any bytes as an entry of a cluster's directory, and as a tag or a node's name. An entry that is
//! taken is read again as it was.

use streamdoor::cluster::directory::{Entry, Tag, is_node_name};

/// Checks any bytes.
///
/// # Panics
/// If an entry changes when it is written and read.
pub fn check(data: &[u8]) {
    if let Some(entry) = Entry::parse(data) {
        assert_eq!(Entry::parse(entry.to_text().as_bytes()), Some(entry));
    }
    let text = String::from_utf8_lossy(data);
    if let Some(tag) = Tag::parse(&text) {
        assert_eq!(tag.as_str(), text);
    }
    if is_node_name(&text) {
        // It is a token of a subject.
        assert!(!text.contains(['.', '*', '>', ' ']));
    }
}
