//! Lists of executions of all nodes: the parts of the others, and the part of this one.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::asks::{self, Ask, Heard};
use super::driver::{Arrival, Driver, News};
use super::seal::Seal;
use crate::api::{self, Summary};
use crate::base::Instant;
use crate::limits;
use crate::server::{Listed, Listing};
use crate::wire::durable::parse_time;

/// The lists that the shards of this node make for others.
#[derive(Default)]
pub(super) struct Lists {
    made: BTreeMap<u64, Made>,
    count: u64,
}

struct Made {
    heard: Heard,
    /// Number of shards that have not answered.
    awaited: usize,
    executions: Vec<Value>,
    until: Instant,
}

impl Lists {
    /// Begins a list that so many shards make. Returns its number; `None` if there are too many.
    pub fn begin(&mut self, heard: Heard, shards: usize, now: Instant) -> Option<u64> {
        self.made.retain(|_, made| made.until > now);
        if self.made.len() >= limits::CLUSTER_LISTS_MAX {
            return None;
        }
        let until = now + limits::CLUSTER_LIST_WAIT;
        self.count += 1;
        self.made.insert(self.count, Made { heard, awaited: shards, executions: vec![], until });
        Some(self.count)
    }

    /// Takes the part of a shard. Returns the question and the answer, if it was the last one.
    pub fn take(&mut self, number: u64, mut part: Vec<Value>) -> Option<(Heard, Value)> {
        let made = self.made.get_mut(&number)?;
        made.executions.append(&mut part);
        made.awaited -= 1;
        if made.awaited > 0 {
            return None;
        }
        let Made { heard, mut executions, .. } = self.made.remove(&number)?;
        executions.sort_by(|one, other| order(one).cmp(&order(other)));
        executions.truncate(limits::CLUSTER_LISTED_MAX as usize + 1);
        Some((heard, json!({ "executions": executions })))
    }
}

/// The order of a list: by the time of creation, and by the id. Times have the same length.
fn order(item: &Value) -> (Option<&str>, Option<&str>) {
    (item["created_at"].as_str(), item["execution"].as_str())
}

/// Asks all other living nodes for their parts of a list, at the same time.
pub(super) fn ask_all(driver: &mut Driver, seal: &Seal, own: &str, listing: Listing) {
    let Listing { shard, ticket, owner, ask } = listing;
    let others = driver.watch().nodes().map(|(node, _)| node).filter(|node| *node != own);
    let others: Vec<Box<str>> = others.map(Box::from).collect();
    let (link, seal, sender, own) =
        (driver.link().clone(), seal.clone(), driver.sender(), Box::from(own));
    tokio::task::spawn_local(async move {
        let ask = Ask::List(owner, ask);
        let asked = others.iter().map(|node| asks::ask(&link, &seal, node, &ask));
        let answers = join_all(asked).await;
        let mut listed = Listed { node: own, executions: Vec::new(), missing: Vec::new() };
        for (node, answer) in others.into_iter().zip(answers) {
            match answer.ok().and_then(|answer| read(&node, answer)) {
                Some(mut part) => listed.executions.append(&mut part),
                None => listed.missing.push(node),
            }
        }
        let _ = sender.send(Arrival::News(News::Listed(shard, ticket, listed))).await;
    });
}

/// Reads the part of a node. `None` if it is not what a node says.
fn read(node: &str, mut answer: Value) -> Option<Vec<Value>> {
    let Value::Array(mut all) = answer["executions"].take() else { return None };
    for item in &mut all {
        item.as_object_mut()?.insert("node".to_owned(), node.into());
        let summary: Summary = api::read(item.clone(), "the list").ok()?;
        parse_time(&summary.created_at)?;
    }
    Some(all)
}
