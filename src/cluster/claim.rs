//! Claims: the node that has the stream at a path.
//!
//! A path belongs to one node at a time. The claim is written behind the last message of the path
//! only, so of two nodes that want it one gets it. It stays until the stream is removed. The key of
//! a claim is `<tag>.=`: no node has such a name.
//!
//! Claims come from outside: [`Claim::parse`] checks everything.

use serde_json::{Value, json};

use super::directory::is_node_name;
use crate::limits::CLUSTER_ENTRY_BYTES_MAX;

/// The path of a stream, and the name of its owner. Each principal has paths of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathName {
    /// The name of the principal; `None` if the cluster has no tokens.
    pub owner: Option<Box<str>>,
    /// The path.
    pub path: Box<str>,
}

/// The claim of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The node that has the path.
    pub node: Box<str>,
}

impl Claim {
    /// Returns the text of the claim.
    pub fn to_text(&self) -> String {
        json!({ "version": 1, "node": self.node }).to_string()
    }

    /// Reads a claim. Unknown members are left out, and `None` is no claim of this version.
    pub fn parse(text: &[u8]) -> Option<Claim> {
        if text.len() > CLUSTER_ENTRY_BYTES_MAX {
            return None;
        }
        let claim: Value = serde_json::from_slice(text).ok()?;
        let node = claim["node"].as_str().filter(|node| is_node_name(node))?;
        (claim["version"] == 1).then(|| Claim { node: node.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_read_as_it_was_written_and_nothing_else_is() {
        let claim = Claim { node: "a".into() };
        assert_eq!(Claim::parse(claim.to_text().as_bytes()), Some(claim));
        let long =
            format!("{}{}", " ".repeat(CLUSTER_ENTRY_BYTES_MAX), r#"{"version":1,"node":"a"}"#);
        let wrong =
            ["", "{}", r#"{"version":2,"node":"a"}"#, r#"{"version":1,"node":"a.b"}"#, &long];
        assert!(wrong.iter().all(|text| Claim::parse(text.as_bytes()).is_none()));
    }
}
