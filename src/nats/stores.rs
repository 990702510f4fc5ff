//! The stores of a cluster: its stream of records, and its two buckets.
//!
//! `streamdoor cluster init` makes them, with the permissions of an administrator. A node only
//! compares them with what it needs.

use std::time::Duration;

use serde_json::{Value, json};

use super::link::{Link, LinkError};
use super::names::{Names, bucket_stream, key};
use crate::limits::{CLUSTER_LEASE, CLUSTER_RECORDS_MAX};

/// The parts of a configuration without which a node does not work. The others are choices.
const MEMBERS_NEEDED: [&str; 7] = [
    "subjects",
    "retention",
    "discard",
    "max_msgs_per_subject",
    "allow_direct",
    "republish",
    "allow_msg_ttl",
];

/// The choices of an administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stores {
    /// Bytes of all records. The oldest ones go first.
    pub bytes_max: u64,
    /// Time for which records are kept.
    pub retention: Duration,
    /// Number of servers that have each message.
    pub replicas: u8,
}

impl Stores {
    /// The configurations of all streams of a cluster.
    fn configurations(&self, names: &Names) -> [Value; 3] {
        let Stores { bytes_max, retention, replicas } = *self;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let log = json!({
            "name": names.log(),
            "subjects": [names.all_records()],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "num_replicas": replicas,
            "max_bytes": bytes_max,
            "max_age": nanos(retention),
            "max_msgs_per_subject": CLUSTER_RECORDS_MAX,
            "allow_direct": true,
            // Unused: each record has its condition. It is the minimum.
            "duplicate_window": nanos(Duration::from_millis(100)),
            "republish": { "src": names.all_records(), "dest": names.all_live() },
        });
        let bucket = |bucket: String| {
            json!({
                "name": bucket_stream(&bucket),
                "subjects": [key(&bucket, ">")],
                "storage": "file",
                "retention": "limits",
                "discard": "new",
                "num_replicas": replicas,
                "max_msgs_per_subject": 1,
                "allow_direct": true,
                "allow_rollup_hdrs": true,
                "deny_delete": true,
                "allow_msg_ttl": true,
                "subject_delete_marker_ttl": nanos(CLUSTER_LEASE * 10),
            })
        };
        [log, bucket(names.leases()), bucket(names.directory())]
    }

    /// Makes the stores of a cluster, or changes them.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn create(&self, link: &Link) -> Result<(), LinkError> {
        for configuration in self.configurations(link.names()) {
            let name = configuration["name"].as_str().expect("it has a name").to_owned();
            let verb = if link.stream(&name).await?.is_some() { "UPDATE" } else { "CREATE" };
            link.ask_json(format!("$JS.API.STREAM.{verb}.{name}"), &configuration).await?;
        }
        Ok(())
    }
}

/// The differences between the stores of a cluster and what a node needs, a line each.
///
/// # Errors
/// [`LinkError`].
pub async fn differences(link: &Link) -> Result<Vec<String>, LinkError> {
    let any = Stores { bytes_max: 0, retention: Duration::ZERO, replicas: 1 };
    let mut all = Vec::new();
    for wanted in any.configurations(link.names()) {
        let name = wanted["name"].as_str().expect("it has a name");
        let Some(found) = link.stream(name).await? else {
            all.push(format!("there is no stream {name} (streamdoor cluster init makes it)"));
            continue;
        };
        for member in MEMBERS_NEEDED {
            let (wanted, found) = (&wanted[member], &found["config"][member]);
            let is_same = match (wanted, found) {
                (Value::Null, _) => true,
                (Value::Object(wanted), found) => {
                    wanted.iter().all(|(name, value)| found[name.as_str()] == *value)
                }
                (wanted, found) => wanted == found,
            };
            if !is_same {
                all.push(format!("stream {name}: {member} is {found}, and has to be {wanted}"));
            }
        }
    }
    Ok(all)
}
