//! `streamdoor cluster forget`: frees the paths of a node that does not come back.

use streamdoor::cluster::directory::is_node_name;
use streamdoor::nats::link::{Link, LinkError};

use super::super::CliError;
use super::super::console::print_out;
use super::super::words::counted;
use super::{ClusterOptions, refused, with_link};

/// Frees the paths of a node without a lease.
pub fn run(options: &ClusterOptions, node: &str) -> Result<(), CliError> {
    if !is_node_name(node) {
        return Err(CliError::Usage(format!("forget {node:?}: no node has such a name")));
    }
    let freed = with_link(options, async |link| {
        if link.read_lease(node).await.map_err(refused)?.is_some() {
            let text = format!("the node {node} has a lease: stop it, and wait until that is over");
            return Err(CliError::Failed(text));
        }
        free(link, node).await.map_err(refused)
    })?;
    let verb = if freed == 1 { "is" } else { "are" };
    print_out!("{} of the node {node} {verb} free", counted(freed, "path"));
    Ok(())
}

/// Removes the claims of a node. Returns their number.
async fn free(link: &Link, node: &str) -> Result<u64, LinkError> {
    let (mut freed, mut behind) = (0, 0);
    loop {
        let (claims, last, is_all) = link.claims(behind).await?;
        for (tag, _, place) in claims.into_iter().filter(|(_, holder, _)| **holder == *node) {
            link.remove_claim(&tag, place).await?;
            freed += 1;
        }
        if is_all {
            return Ok(freed);
        }
        behind = last;
    }
}
