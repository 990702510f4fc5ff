//! The names of everything that a cluster has in NATS.
//!
//! `sd1` is the version of all of it: subjects, records and entries.

use crate::cluster::directory::{Tag, is_node_name};

/// The names of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    cluster: Box<str>,
}

impl Names {
    /// The names of the cluster with this name; `None` if a cluster cannot have it. The rules are
    /// those of a node's name.
    pub fn new(cluster: &str) -> Option<Names> {
        is_node_name(cluster).then(|| Names { cluster: cluster.into() })
    }

    /// The name of the cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The stream with the records.
    pub fn log(&self) -> String {
        format!("sd1_{}_log0", self.cluster)
    }

    /// The subject of the records of an execution.
    pub fn records(&self, tag: &Tag) -> String {
        format!("sd1.{}.c0.{}", self.cluster, tag.as_str())
    }

    /// All subjects with records.
    pub fn all_records(&self) -> String {
        format!("sd1.{}.c0.>", self.cluster)
    }

    /// The subject to which the server sends the records of an execution once more when they are
    /// stored.
    pub fn live(&self, tag: &Tag) -> String {
        format!("sd1.{}.l0.{}", self.cluster, tag.as_str())
    }

    /// All such subjects.
    pub fn all_live(&self) -> String {
        format!("sd1.{}.l0.>", self.cluster)
    }

    /// The bucket with the leases of nodes.
    pub fn leases(&self) -> String {
        format!("sd1_{}_nodes", self.cluster)
    }

    /// The bucket with the entries of executions.
    pub fn directory(&self) -> String {
        format!("sd1_{}_dir", self.cluster)
    }

    /// The subject of a node's lease.
    pub fn lease(&self, node: &str) -> String {
        key(&self.leases(), node)
    }

    /// The beginning of the subjects of all entries.
    pub fn all_entries(&self) -> String {
        key(&self.directory(), "")
    }

    /// The subjects of the entries of all executions of a node, or of all nodes (`*`).
    pub fn entries(&self, node: &str) -> String {
        key(&self.directory(), &format!("*.{node}"))
    }

    /// The subject of the entry of an execution of a node.
    pub fn entry(&self, tag: &Tag, node: &str) -> String {
        key(&self.directory(), &format!("{}.{node}", tag.as_str()))
    }

    /// The subject of the claim of a path. No node has the name `=`.
    pub fn claim(&self, tag: &Tag) -> String {
        self.entry(tag, "=")
    }

    /// The subjects of all claims.
    pub fn all_claims(&self) -> String {
        self.entries("=")
    }

    /// The subject of requests to a node.
    pub fn ask(&self, node: &str) -> String {
        format!("sd1.{}.ask.{node}", self.cluster)
    }

    /// The beginning of the subjects of answers. They are the cluster's own, so that no other user
    /// of the server hears them.
    pub fn inbox(&self) -> String {
        format!("sd1.{}.inbox", self.cluster)
    }

    /// The streams of the cluster: the log, and those below its two buckets.
    pub fn streams(&self) -> [String; 3] {
        [self.log(), bucket_stream(&self.leases()), bucket_stream(&self.directory())]
    }
}

/// The stream below a bucket.
pub fn bucket_stream(bucket: &str) -> String {
    format!("KV_{bucket}")
}

/// The subject of a key of a bucket.
pub fn key(bucket: &str, key: &str) -> String {
    format!("$KV.{bucket}.{key}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::directory::TAG_DIGITS;

    #[test]
    fn names_are_those_of_the_cluster() {
        let names = Names::new("blue").unwrap();
        let tag = Tag::parse(&"a".repeat(TAG_DIGITS)).unwrap();
        assert_eq!(names.records(&tag), format!("sd1.blue.c0.{}", tag.as_str()));
        assert_eq!(names.live(&tag), format!("sd1.blue.l0.{}", tag.as_str()));
        assert_eq!(names.entry(&tag, "n1"), format!("$KV.sd1_blue_dir.{}.n1", tag.as_str()));
        assert_eq!(names.lease("n1"), "$KV.sd1_blue_nodes.n1");
        assert_eq!(bucket_stream(&names.leases()), "KV_sd1_blue_nodes");
        assert!(["", "a.b", "a b", "*"].iter().all(|name| Names::new(name).is_none()));
    }
}
