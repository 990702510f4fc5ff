//! Questions of nodes to each other: to cancel an execution.
//!
//! Any user of NATS who may send such a message could end any execution. Each message therefore has
//! a code that only those can make who know the secret of the cluster. The execution is named by
//! its tag, because its id is a secret, too.

use std::fmt::Write;
use std::sync::Arc;

use futures_util::StreamExt;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::mpsc;

use super::driver::{Arrival, News};
use super::link::Link;
use crate::cluster::directory::Tag;
use crate::limits;

const LABEL: &[u8] = b"streamdoor cluster cancel 1";
/// Number of times that an answer is waited for.
const ATTEMPTS: u32 = 5;
/// The longest message that is read.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// The wish that a node cancels an execution.
pub(super) struct CancelAsk {
    tag: Tag,
    code: String,
}

impl CancelAsk {
    /// The wish of somebody who knows the secret.
    pub fn new(secret: &[u8], node: &str, tag: Tag) -> CancelAsk {
        CancelAsk { code: code_of(secret, node, &tag), tag }
    }

    fn to_json(&self) -> Value {
        json!({ "version": 1, "cancel": self.tag.as_str(), "code": self.code })
    }

    /// Reads a wish for this node; `None` if it is none, or of somebody who does not know the
    /// secret.
    fn parse(bytes: &[u8], secret: &[u8], node: &str) -> Option<Tag> {
        let value: Value = (bytes.len() <= MESSAGE_BYTES_MAX)
            .then(|| serde_json::from_slice(bytes).ok())
            .flatten()
            .filter(|value: &Value| value["version"] == 1)?;
        let tag = Tag::parse(value["cancel"].as_str()?)?;
        let mac = mac_of(secret, node, &tag);
        let code = bytes_of(value["code"].as_str()?)?;
        mac.verify_slice(&code).ok().map(|()| tag)
    }
}

fn mac_of(secret: &[u8], node: &str, tag: &Tag) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key has any length");
    for part in [LABEL, node.as_bytes(), b"\n", tag.as_str().as_bytes()] {
        mac.update(part);
    }
    mac
}

fn code_of(secret: &[u8], node: &str, tag: &Tag) -> String {
    let code = mac_of(secret, node, tag).finalize().into_bytes();
    code.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // A string takes everything.
        text
    })
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Asks a node, until it answers or several attempts have failed.
pub(super) fn send(link: Link, node: Box<str>, ask: CancelAsk) {
    tokio::task::spawn_local(async move {
        let mut pause = limits::CLUSTER_RETRY_FIRST;
        for _ in 0..ATTEMPTS {
            if link.ask_node(&node, &ask.to_json()).await.is_ok() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    });
}

/// Starts the task that hears what this node is asked.
pub(super) fn hear(
    link: Link,
    (node, secret): (Box<str>, Arc<[u8]>),
    sender: mpsc::Sender<Arrival>,
) {
    tokio::task::spawn_local(async move {
        loop {
            // The client subscribes again by itself after a lost connection.
            let Ok(mut asks) = link.hear_asks(&node).await else {
                tokio::time::sleep(limits::CLUSTER_RETRY_MAX).await;
                continue;
            };
            while let Some(message) = asks.next().await {
                let Some(tag) = CancelAsk::parse(&message.payload, &secret, &node) else {
                    continue;
                };
                let _ = sender.send(Arrival::News(News::Cancel(tag))).await;
                link.answer(&message, &json!({ "version": 1 })).await;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::directory::TAG_DIGITS;

    #[test]
    fn a_wish_is_of_somebody_who_knows_the_secret_and_for_one_node() {
        let tag = Tag::parse(&"a".repeat(TAG_DIGITS)).unwrap();
        let text = CancelAsk::new(b"secret", "a", tag.clone()).to_json().to_string();
        let parse =
            |text: &str, secret: &[u8], node: &str| CancelAsk::parse(text.as_bytes(), secret, node);
        assert_eq!(parse(&text, b"secret", "a"), Some(tag));
        assert_eq!(parse(&text, b"other", "a"), None);
        assert_eq!(parse(&text, b"secret", "b"), None);
        let another = text.replace(&"a".repeat(TAG_DIGITS), &"b".repeat(TAG_DIGITS));
        assert_eq!(parse(&another, b"secret", "a"), None);
        for wrong in ["", "{}", "[]", &"x".repeat(2 * MESSAGE_BYTES_MAX)] {
            assert_eq!(parse(wrong, b"secret", "a"), None, "{wrong:.20}");
        }
    }
}
