//! The permissions of a node: the subjects of NATS that it uses, and no more.

use std::fmt;

use super::names::{Names, key};

/// The subjects to which a node may publish, and to which it may subscribe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Subjects of publications.
    pub publish: Vec<String>,
    /// Subjects of subscriptions.
    pub subscribe: Vec<String>,
}

impl Permissions {
    /// The permissions of the node with this name, or of all nodes of a cluster.
    pub fn of(names: &Names, node: Option<&str>) -> Permissions {
        let node = node.unwrap_or("*");
        let answers = format!("{}.>", names.inbox());
        let mut publish = vec![
            names.all_records(),
            names.lease(node),
            key(&names.directory(), ">"),
            names.ask("*"),
            answers.clone(),
        ];
        for stream in names.streams() {
            for verb in ["STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET"] {
                publish.push(format!("$JS.API.{verb}.{stream}"));
            }
        }
        Permissions { publish, subscribe: vec![names.all_live(), names.ask(node), answers] }
    }
}

/// A block for the configuration of a user of nats-server.
impl fmt::Display for Permissions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("permissions {\n")?;
        for (verb, subjects) in [("publish", &self.publish), ("subscribe", &self.subscribe)] {
            writeln!(out, "  {verb}: [")?;
            for subject in subjects {
                writeln!(out, "    \"{subject}\"")?;
            }
            out.write_str("  ]\n")?;
        }
        out.write_str("}")
    }
}
