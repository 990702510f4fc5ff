//! Questions of nodes to each other: to cancel an execution, or to list executions.
//!
//! Any user of NATS who may send such a message could end any execution, and an answer has ids of
//! executions, which are secrets. Both are therefore sealed (`seal.rs`).

use async_nats::Message;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::driver::{Arrival, News};
use super::link::{Link, LinkError};
use super::seal::{Drawn, Seal};
use crate::cluster::directory::Tag;
use crate::endpoint::ListAsk;
use crate::limits;

/// Number of times that a node is asked to cancel an execution, until it answers.
const ATTEMPTS: u32 = 5;
/// The longest question that is read.
const QUESTION_BYTES_MAX: usize = 4_096;

/// A question to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Cancel the execution with this tag.
    Cancel(Tag),
    /// List the executions of this principal.
    List(Option<Box<str>>, Box<ListAsk>),
}

impl Ask {
    fn to_json(&self) -> Value {
        match self {
            Ask::Cancel(tag) => json!({ "cancel": tag.as_str() }),
            Ask::List(owner, ask) => json!({ "list": ask.to_json(), "owner": owner }),
        }
    }

    fn of_json(value: &Value) -> Option<Ask> {
        if let Some(tag) = value["cancel"].as_str() {
            return Some(Ask::Cancel(Tag::parse(tag)?));
        }
        let ask = ListAsk::of_json(value.get("list")?)?;
        Some(Ask::List(value["owner"].as_str().map(Box::from), ask.into()))
    }
}

/// A question that another node has asked.
pub(super) struct Heard {
    message: Message,
    drawn: Drawn,
}

impl Heard {
    /// Answers it. An answer that gets lost is asked for again.
    pub fn answer(self, link: &Link, seal: &Seal, body: &Value) {
        let (Heard { message, drawn }, link) = (self, link.clone());
        if let Some((bytes, _)) = seal.close(&of_answer(&drawn), body) {
            tokio::task::spawn_local(async move { link.answer(&message, bytes).await });
        }
    }
}

fn of_question(node: &str) -> Vec<u8> {
    [b"ask ", node.as_bytes()].concat()
}

fn of_answer(drawn: &Drawn) -> Vec<u8> {
    [b"answer ", &drawn[..]].concat()
}

/// Asks a node once.
pub(super) async fn ask(
    link: &Link,
    seal: &Seal,
    node: &str,
    ask: &Ask,
) -> Result<Value, LinkError> {
    let sealed = seal.close(&of_question(node), &ask.to_json());
    let (bytes, drawn) =
        sealed.ok_or_else(|| LinkError::Unknown("there are no random bytes".to_owned()))?;
    let answer = link.ask_node(node, bytes).await?;
    let opened = seal.open(&of_answer(&drawn), &answer);
    opened.map(|(value, _)| value).ok_or_else(|| LinkError::Strange("a broken seal".to_owned()))
}

/// Asks a node to cancel an execution, until it answers or several attempts have failed.
pub(super) fn cancel(link: Link, seal: Seal, node: Box<str>, tag: Tag) {
    tokio::task::spawn_local(async move {
        let mut pause = limits::CLUSTER_RETRY_FIRST;
        for _ in 0..ATTEMPTS {
            if ask(&link, &seal, &node, &Ask::Cancel(tag.clone())).await.is_ok() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    });
}

/// Starts the task that hears what this node is asked.
pub(super) fn hear(link: Link, (node, seal): (Box<str>, Seal), sender: mpsc::Sender<Arrival>) {
    tokio::task::spawn_local(async move {
        loop {
            // The client subscribes again by itself after a lost connection.
            let Ok(mut asks) = link.hear_asks(&node).await else {
                tokio::time::sleep(limits::CLUSTER_RETRY_MAX).await;
                continue;
            };
            while let Some(message) = asks.next().await {
                let Some((ask, drawn)) = read(&seal, &node, &message.payload) else { continue };
                let news = News::Asked(ask, Heard { message, drawn });
                let _ = sender.send(Arrival::News(news)).await;
            }
        }
    });
}

/// Reads a question for this node; `None` if it is none, or of somebody who does not know the
/// secret.
fn read(seal: &Seal, node: &str, bytes: &[u8]) -> Option<(Ask, Drawn)> {
    if bytes.len() > QUESTION_BYTES_MAX {
        return None;
    }
    let (value, drawn) = seal.open(&of_question(node), bytes)?;
    Some((Ask::of_json(&value)?, drawn))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::directory::TAG_DIGITS;
    use crate::endpoint::ListScope;

    #[test]
    fn a_question_is_of_somebody_who_knows_the_secret_and_for_one_node() {
        let tag = Tag::parse(&"a".repeat(TAG_DIGITS)).unwrap();
        let list = ListAsk { limit: 7, scope: ListScope::Cluster, ..ListAsk::default() };
        let seal = Seal::new(b"secret");
        for ask in [
            Ask::Cancel(tag),
            Ask::List(None, list.clone().into()),
            Ask::List(Some("ann".into()), list.into()),
        ] {
            let (bytes, drawn) = seal.close(&of_question("a"), &ask.to_json()).unwrap();
            assert_eq!(read(&seal, "a", &bytes), Some((ask, drawn)));
            assert_eq!(read(&seal, "b", &bytes), None);
            assert_eq!(read(&Seal::new(b"other"), "a", &bytes), None);
        }
        let mut wrong: Vec<Value> = ["1", "{}", "[]", r#"{"cancel":"a"}"#, r#"{"list":{}}"#]
            .map(|text| serde_json::from_str(text).unwrap())
            .to_vec();
        wrong.push(json!({ "cancel": "x".repeat(2 * QUESTION_BYTES_MAX) }));
        for wrong in wrong {
            let (bytes, _) = seal.close(&of_question("a"), &wrong).unwrap();
            assert_eq!(read(&seal, "a", &bytes), None, "{wrong:.20}");
        }
    }
}
