//! A cluster (`--cluster URLS`): its server, permissions, stores and nodes, and its syncs.
//!
//! Nothing is changed, but for some short records of no execution. The log removes them when their
//! time is over.

use std::time::Duration;

use streamdoor::cluster::directory::{TAG_DIGITS, Tag, is_node_name};
use streamdoor::nats::connect::{Complaints, blocking};
use streamdoor::nats::inspect::{
    Executions, Node, PAYLOAD_BYTES_NEEDED, Server, Sync, VERSION_MIN, server_time, sync_of,
};
use streamdoor::nats::link::{Link, LinkError};
use streamdoor::nats::permissions::Permissions;
use streamdoor::nats::stores::differences;
use streamdoor::reactor::{Clock, random_bytes};

use super::super::CliError;
use super::super::cluster::ClusterOptions;
use super::super::options::spelled;
use super::super::words::{counted, time};
use super::finding::{Finding, Level};
use super::percentile;

/// The difference of two clocks from which it is told. An answer of NATS takes a part of it.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(1);
/// Number of records that are stored and measured.
const MEASURED: usize = 20;
const STORES_ADVICE: &str = "Use `streamdoor cluster init` with the choices of this cluster.";

/// Returns all findings about a cluster. `node` is the name that a new node wants.
///
/// # Errors
/// The usage error for an option that is wrong.
pub fn findings(options: &ClusterOptions, node: Option<&str>) -> Result<Vec<Finding>, CliError> {
    if let Some(node) = node.filter(|node| !is_node_name(node)) {
        let text = format!("--node {node:?}: must be at most 32 letters, digits, - and _");
        return Err(CliError::Usage(text));
    }
    let checked = options.check()?;
    let wrong = |error: std::io::Error| CliError::Environment(error.to_string());
    let scratch = scratch().map_err(wrong)?;
    blocking(async {
        let mut findings = Vec::new();
        let shown = checked.shown();
        match checked.connect().await {
            Err(error) => findings.push(unreachable(&shown, &error)),
            Ok((link, complaints)) => {
                findings.extend(server(&link.server()));
                if findings.iter().all(|finding| finding.level != Level::Hindrance) {
                    let permissions = permissions(&link, &complaints, node, &scratch).await;
                    findings.push(permissions);
                    findings.extend(stores(&link, node, &scratch).await);
                }
                findings.push(sync(options.monitor.as_deref()).await);
            }
        }
        findings
    })
    .map_err(wrong)
}

/// A tag of no execution.
fn scratch() -> std::io::Result<Tag> {
    let mut bytes = [0; TAG_DIGITS];
    random_bytes(&mut bytes)?;
    let digits: String = bytes.iter().map(|byte| char::from(b'0' + byte % 10)).collect();
    Ok(Tag::parse(&digits).expect("they are digits of a tag"))
}

fn unreachable(servers: &str, error: &LinkError) -> Finding {
    let means = "A node serves its own executions alone, and nobody follows them elsewhere.";
    Finding::bad("cluster server", format!("{servers}: {error}"), means)
        .advise("Start nats-server there, or correct --cluster, its user, or --cluster-tls-ca.")
}

/// Checks what the server says of itself.
fn server(server: &Server) -> Vec<Finding> {
    let (major, minor) = VERSION_MIN;
    let Server { version, payload_bytes_max, has_jetstream } = server;
    let found = format!("nats-server {version} answers");
    let mut findings = vec![match server.is_new_enough() {
        true => Finding::good("cluster server", found, "It has everything that a node needs."),
        false => {
            let means = "It is too old: it has no times to live, and no batches of records.";
            Finding::bad("cluster server", found, means)
                .advise(format!("Install nats-server {major}.{minor} or newer."))
        }
    }];
    if !has_jetstream {
        let means = "Nothing can be stored.";
        findings.push(
            Finding::bad("cluster jetstream", "JetStream is off", means)
                .advise("Start nats-server with `-js`, or with a block `jetstream`."),
        );
    }
    let found = format!("a message has {payload_bytes_max} bytes at most (max_payload)");
    findings.push(match *payload_bytes_max >= PAYLOAD_BYTES_NEEDED {
        true => Finding::good("cluster payload", found, "The longest record fits."),
        false => {
            let means = format!("The longest record needs {PAYLOAD_BYTES_NEEDED} bytes.");
            Finding::bad("cluster payload", found, means)
                .advise("Set `max_payload: 1MB`, which is the default, on every server.")
        }
    });
    findings
}

/// Tries each permission of a node.
async fn permissions(
    link: &Link,
    complaints: &Complaints,
    node: Option<&str>,
    scratch: &Tag,
) -> Finding {
    const SUBJECT: &str = "cluster permissions";
    let needed = Permissions::of(link.names(), node);
    let count = needed.publish.len() + needed.subscribe.len();
    let means = "A node does not work with this user.";
    match link.lacking(&needed, complaints, scratch).await {
        Ok(lacking) if lacking.is_empty() => {
            let found = format!("the user has all {count} that a node needs");
            Finding::good(SUBJECT, found, "A node works with this user.")
        }
        Ok(lacking) => {
            let all: Vec<String> =
                lacking.iter().map(|(verb, subject)| format!("{verb} {subject}")).collect();
            let found = format!("the user lacks {} of {count}: {}", all.len(), all.join(", "));
            Finding::bad(SUBJECT, found, means).advise(
                "Give the user the permissions that `streamdoor cluster init` prints. If it is for \
                 one node, name that node with --node.",
            )
        }
        Err(error) => Finding::bad(SUBJECT, error.to_string(), means)
            .advise("Look into the log of nats-server."),
    }
}

/// Checks the stores, and everything in them.
async fn stores(link: &Link, node: Option<&str>, scratch: &Tag) -> Vec<Finding> {
    const SUBJECT: &str = "cluster stores";
    let name = link.names().cluster();
    let means = "A node of this cluster does not work.";
    let [log, ..] = link.names().streams();
    let about = match (differences(link).await, link.stream(&log).await) {
        (Ok(_), Ok(None)) => {
            let found = format!("there are no stores of the cluster {name}");
            let advice =
                "Make them with `streamdoor cluster init`, or correct --cluster-name.".to_owned();
            return vec![Finding::bad(SUBJECT, found, means).advise(advice)];
        }
        (Ok(differences), Ok(Some(_))) if !differences.is_empty() => {
            let bad = |line| Finding::bad(SUBJECT, line, means).advise(STORES_ADVICE);
            return differences.into_iter().map(bad).collect();
        }
        (Ok(_), Ok(Some(about))) => about,
        (Err(error), _) | (_, Err(error)) => return vec![unread(SUBJECT, &error)],
    };
    let found = format!("the stream and the buckets of the cluster {name} are there");
    let mut findings = vec![Finding::good(SUBJECT, found, "They are as a node needs them.")];
    findings.push(replicas(about["config"]["num_replicas"].as_u64().unwrap_or(1)));
    findings.extend(server_time(&about).map(|theirs_us| clock(theirs_us, Clock::wall_us())));
    findings.push(acks(link, scratch).await);
    match (link.nodes_seen().await, link.executions().await) {
        (Ok(nodes), Ok(executions)) => {
            findings.extend(node.map(|node| taken(&nodes, node)));
            findings.push(lost(&nodes, &executions));
            findings.extend(apart(&nodes));
        }
        (Err(error), _) | (_, Err(error)) => findings.push(unread("cluster nodes", &error)),
    }
    findings
}

fn unread(subject: &'static str, error: &LinkError) -> Finding {
    let means = "Without a permission, NATS does not answer.";
    Finding::bad(subject, error.to_string(), means)
        .advise("See the permissions above, or look into the log of nats-server.")
}

fn replicas(count: u64) -> Finding {
    const SUBJECT: &str = "cluster replicas";
    let found = format!("each record is on {}", counted(count, "server"));
    match count {
        ..=1 => {
            let means = "While that server is away, nothing is stored and nobody follows another \
                         node. If its disk is lost, so are the records.";
            let advice = "Use three servers, and `streamdoor cluster init --replicas 3`.";
            Finding::note(SUBJECT, found, means).advise(advice)
        }
        _ => Finding::good(SUBJECT, found, "One of them can be lost."),
    }
}

/// Compares the clock of this machine with that of the server, which has just answered.
fn clock(theirs_us: u64, ours_us: u64) -> Finding {
    const SUBJECT: &str = "cluster clock";
    let apart = Duration::from_micros(ours_us.abs_diff(theirs_us));
    if apart < CLOCK_SKEW_MAX {
        let found = format!("this machine and NATS agree, within {}", time(apart));
        return Finding::good(SUBJECT, found, "Times are the same on all nodes.");
    }
    let side = if ours_us > theirs_us { "ahead of" } else { "behind" };
    let found = format!("this machine is {} {side} NATS", time(apart));
    let means = "Links end too early or too late at other nodes, and the times of executions \
                 differ. Leases do not: the clock of NATS alone counts for them.";
    Finding::note(SUBJECT, found, means)
        .advise("Let both machines take their time from the same servers (NTP).")
}

async fn acks(link: &Link, scratch: &Tag) -> Finding {
    const SUBJECT: &str = "cluster acks";
    match link.measure(scratch, MEASURED).await {
        Ok(times) => {
            let found = format!(
                "a round trip takes {} (p50), {} (p99); a record is stored after {} (p50), {} \
                 (p99 of {MEASURED})",
                time(percentile(&times.round_trip, 50)),
                time(percentile(&times.round_trip, 99)),
                time(percentile(&times.ack, 50)),
                time(percentile(&times.ack, 99)),
            );
            let means = "A follower on another node waits that long for each chunk, and a durable \
                         execution for each of its acknowledgements.";
            Finding::good(SUBJECT, found, means)
        }
        Err(error) => Finding::bad(SUBJECT, error.to_string(), "No record can be stored.")
            .advise("Look into the log of nats-server: a disk may be full."),
    }
}

/// Says when a server syncs, and what a power cut takes.
pub async fn sync(monitor: Option<&str>) -> Finding {
    const SUBJECT: &str = "cluster sync";
    let about = match monitor {
        Some(monitor) => {
            sync_of(monitor).await.map(Some).map_err(|error| format!("{monitor}: {error}"))
        }
        None => Ok(None),
    };
    match about {
        Ok(Some(Sync::Always)) => {
            let means = "A power cut takes nothing that this server has acknowledged.";
            Finding::good(SUBJECT, "the server syncs before it acknowledges", means)
        }
        Ok(Some(Sync::Every(interval))) => {
            let means = "A power cut takes what this server has acknowledged since. Copies on \
                         other servers stay.";
            let found = format!("the server syncs every {}", spelled(interval));
            Finding::note(SUBJECT, found, means).advise(
                "Set `sync_interval: always` in the block `jetstream` of each server if that is \
                 too much. Each record then waits for the disk.",
            )
        }
        Ok(None) => {
            let means = "The default of NATS is every 2 minutes. A power cut takes what a server \
                         has acknowledged since.";
            Finding::note(SUBJECT, "not told, because a server says it to its monitor only", means)
                .advise("Give --cluster-monitor http://HOST:8222 (`nats-server -m 8222`).")
        }
        Err(error) => {
            let means = "It is unknown what a power cut takes.";
            Finding::note(SUBJECT, error, means).advise("Correct --cluster-monitor.")
        }
    }
}

/// Checks the name that a new node wants.
fn taken(nodes: &[Node], node: &str) -> Finding {
    const SUBJECT: &str = "cluster node";
    match nodes.iter().find(|other| *other.name == *node) {
        None => Finding::good(SUBJECT, format!("no node is called {node}"), "The name is free."),
        Some(other) => {
            let age = other.renewed.map_or("?".to_owned(), time);
            let life = other.held.by.0;
            let found = format!("{life:016x} is called {node}, and renewed its lease {age} ago");
            Finding::bad(SUBJECT, found, "A second node with this name does not start.")
                .advise("Choose another --node, or stop that one. Its lease ends by itself.")
        }
    }
}

/// Checks that all nodes have tokens, or none has. Returns nothing if that is so.
fn apart(nodes: &[Node]) -> Option<Finding> {
    let names = |is_guarded: bool| -> Vec<&str> {
        let all = nodes.iter().filter(|node| node.about.is_guarded == Some(is_guarded));
        all.map(|node| &*node.name).collect()
    };
    let (guarded, open) = (names(true), names(false));
    if guarded.is_empty() || open.is_empty() {
        return None;
    }
    let found = format!("with tokens: {}; without: {}", guarded.join(", "), open.join(", "));
    let means = "The ones do not find the executions of the others.";
    let finding = Finding::bad("cluster tokens", found, means);
    Some(finding.advise("Start all nodes with the same --token-file."))
}

/// Checks the executions whose node is gone.
fn lost(nodes: &[Node], executions: &Executions) -> Finding {
    const SUBJECT: &str = "cluster nodes";
    let lost = executions
        .running
        .iter()
        .filter(|((name, life), _)| nodes.iter().all(|node| !node.is(name, *life)));
    let lost: Vec<String> = lost
        .map(|((name, _), count)| format!("{name} ({})", counted(*count, "execution")))
        .collect();
    let alive: Vec<&str> = nodes.iter().map(|node| &*node.name).collect();
    let count = counted(alive.len() as u64, "node");
    let alive = match alive.is_empty() {
        true => format!("{count} alive"),
        false => format!("{count} alive: {}", alive.join(", ")),
    };
    if lost.is_empty() {
        let means = "No execution has lost its node.";
        return Finding::good(SUBJECT, alive, means);
    }
    let found = format!("{alive}; without a lease: {}", lost.join(", "));
    let means = "These executions run no more, and have no end yet.";
    Finding::note(SUBJECT, found, means)
        .advise("Start a node. It notices them, and writes their ends.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_wrong_is_told_with_its_side() {
        const S: u64 = 1_000_000;
        assert_eq!(clock(1_000 * S, 1_000 * S + 30_000).level, Level::Good);
        for (ours_us, expected) in
            [(1_090 * S, "90.00 s ahead of NATS"), (910 * S, "90.00 s behind NATS")]
        {
            let finding = clock(1_000 * S, ours_us);
            assert_eq!(finding.level, Level::Note);
            assert!(format!("{finding:?}").contains(expected), "{finding:?}");
        }
    }
}
