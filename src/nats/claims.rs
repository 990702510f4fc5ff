//! Claims of paths: which node has a path, asked of the leader of the directory.
//!
//! The wishes about one path are carried out one after the other, in the order of the shards'
//! requests. A path that was freed and is wanted again is therefore claimed in the end.

use std::collections::{BTreeMap, VecDeque};

use super::driver::{Arrival, Driver, News};
use super::link::{Link, LinkError};
use crate::cluster::claim::PathName;
use crate::cluster::directory::Tag;
use crate::endpoint::Elsewhere;
use crate::reactor::ConnectionId;
use crate::server::{ClaimWish, Holder};

/// Number of times that a wish is tried, while other nodes change the claim.
const ATTEMPTS: u32 = 5;
/// The code of NATS for a message that is not the next one of its subject.
const NOT_NEXT: [u64; 2] = [10_071, 10_164];

/// A wish of a shard.
pub(super) struct Asked {
    pub shard: u8,
    pub asker: Option<ConnectionId>,
    pub name: PathName,
    pub wish: ClaimWish,
}

/// The wishes of the shards of a node.
#[derive(Default)]
pub(super) struct Claims {
    /// The first wish of each path is being carried out.
    asked: BTreeMap<Tag, VecDeque<Asked>>,
}

impl Claims {
    /// Takes a wish. It begins now if it is the only one about its path.
    pub fn push(&mut self, driver: &Driver, node: &str, tag: Tag, asked: Asked) {
        let wish = asked.wish;
        let waiting = self.asked.entry(tag.clone()).or_default();
        waiting.push_back(asked);
        if waiting.len() == 1 {
            begin(driver, node, tag, wish);
        }
    }

    /// Takes the first wish of a path, which was carried out, and begins the next.
    pub fn take_done(&mut self, driver: &Driver, node: &str, tag: Tag) -> Option<Asked> {
        let waiting = self.asked.get_mut(&tag)?;
        let done = waiting.pop_front();
        match waiting.front().map(|next| next.wish) {
            Some(wish) => begin(driver, node, tag, wish),
            None => _ = self.asked.remove(&tag),
        }
        done
    }
}

fn begin(driver: &Driver, node: &str, tag: Tag, wish: ClaimWish) {
    let (link, sender, node) = (driver.link().clone(), driver.sender(), Box::<str>::from(node));
    tokio::task::spawn_local(async move {
        let holder = carry_out(&link, &node, &tag, wish).await.unwrap_or(Holder::Unknown);
        let _ = sender.send(Arrival::News(News::Claimed(tag, holder))).await;
    });
}

/// Carries out a wish of a node.
async fn carry_out(
    link: &Link,
    node: &str,
    tag: &Tag,
    wish: ClaimWish,
) -> Result<Holder, LinkError> {
    for _ in 0..ATTEMPTS {
        let (holder, last) = link.read_claim(tag).await?;
        let is_own = holder.as_deref() == Some(node);
        let written = match (wish, holder) {
            (_, Some(holder)) if !is_own => {
                let about = link.read_about(&holder).await?;
                let url = about.and_then(|about| about.url);
                return Ok(Holder::By(Elsewhere { node: holder, url }));
            }
            (ClaimWish::Take, None) => {
                link.write_claim(tag, node, last).await.map(|()| Holder::Here)
            }
            (ClaimWish::Free, Some(_)) => link.remove_claim(tag, last).await.map(|()| Holder::Free),
            (_, Some(_)) => return Ok(Holder::Here),
            (ClaimWish::Look | ClaimWish::Free, None) => return Ok(Holder::Free),
        };
        match written {
            Err(LinkError::Refused { code, .. }) if NOT_NEXT.contains(&code) => {}
            written => return written,
        }
    }
    Ok(Holder::Unknown)
}
