//! A server with exactly the permissions of a node: a node works, and may do nothing else.

use std::cell::RefCell;

use futures_util::StreamExt;
use serde_json::json;
use streamdoor::cluster::directory::Tag;
use streamdoor::cluster::follow::Landmark;
use streamdoor::cluster::member::About;
use streamdoor::cluster::mirror::Standing;
use streamdoor::cluster::record::Incarnation;
use streamdoor::nats::connect::{Checked, ConnectSettings};
use streamdoor::nats::driver::Driver;
use streamdoor::nats::names::Names;
use streamdoor::nats::permissions::Permissions;
use streamdoor::nats::stores::differences;

use super::server::NatsServer;
use super::{LEASE, STORES, Seen, names, on_one_thread, publish, tag, until};

/// Starts a server with an administrator and the user `node` with these permissions.
fn server_with(permissions: &Permissions) -> Option<NatsServer> {
    NatsServer::start_with(&format!(
        "jetstream {{ store_dir: DIRECTORY }}
         authorization {{ users: [
           {{ user: admin, password: admin }}
           {{ user: node, password: node, {permissions} }}
         ] }}"
    ))
}

fn checked(server: &NatsServer, user: &str) -> Checked {
    let servers = vec![server.url_of(&format!("{user}:{user}"))];
    let settings = ConnectSettings { servers, cluster: "test".into(), ..Default::default() };
    settings.check().expect("they are right")
}

async fn node(server: &NatsServer, name: &str, incarnation: u64) -> Driver {
    let Checked { servers, options, names } = checked(server, "node");
    let owner = (name, Incarnation(incarnation), About::default(), LEASE);
    Driver::connect(servers, options, names, owner).await.expect("it connects")
}

fn scratch() -> Tag {
    Tag::parse("0123456789abcdefghjkmnpqrs").expect("a tag")
}

#[test]
fn a_node_works_with_its_permissions_alone() {
    let Some(server) = server_with(&Permissions::of(&names(), None)) else { return };
    on_one_thread(async {
        let (admin, _) = checked(&server, "admin").connect().await.expect("it connects");
        STORES.create(&admin).await.expect("the stores");
        let (mut owner, mut other) = (node(&server, "a", 1).await, node(&server, "b", 2).await);
        let (tag, seen) = (tag(9), RefCell::new(Seen::default()));
        other.follow(&tag, Incarnation(1), Landmark::start());
        publish(&mut owner, &tag, 100);
        let mut has_ended = false;
        until(&mut [&mut owner, &mut other], &seen, |nodes, seen| {
            let sees = nodes[1].watch().is_alive("a", Incarnation(1));
            if sees && seen.next.get(&tag) == Some(&101) && !has_ended {
                nodes[0].mirror(&tag).push_end(b"completed");
                has_ended = true;
            }
            seen.has_ended(&tag) && nodes[0].mirror(&tag).standing() == Standing::Ended
        })
        .await;
        let link = other.link();
        assert_eq!(differences(link).await.unwrap(), Vec::<String>::new());
        // From the leader, too.
        assert!(link.last(&tag).await.unwrap().is_some());
        assert_eq!(link.pull(&tag, 0, true).await.unwrap().messages.len(), 1);
        // An entry of the directory, and an answer to a request.
        let Checked { servers, options, .. } = checked(&server, "node");
        let client = options.connect(servers).await.unwrap();
        let mut asked = client.subscribe(names().ask("a")).await.unwrap();
        client.publish(names().entry(&tag, "a"), "{}".into()).await.unwrap();
        let replying = client.clone();
        tokio::task::spawn_local(async move {
            let request = asked.next().await.unwrap();
            replying.publish(request.reply.unwrap(), "done".into()).await.unwrap();
        });
        let answer = client.request(names().ask("a"), "cancel".into()).await;
        assert_eq!(&answer.unwrap().payload[..], b"done");
        assert_eq!(link.executions().await.unwrap().unknown, 1);
        assert_eq!(link.nodes_seen().await.unwrap().len(), 2);
    });
}

/// True if the server refuses a publication or a subscription of this user.
async fn is_refused(server: &NatsServer, subject: &str) -> bool {
    let names = Names::new("test").expect("a name");
    let only = |publish: &[&str], subscribe: &[&str]| Permissions {
        publish: publish.iter().map(|subject| (*subject).to_owned()).collect(),
        subscribe: subscribe.iter().map(|subject| (*subject).to_owned()).collect(),
    };
    let (link, complaints) = checked(server, "node").connect().await.expect("it connects");
    assert_eq!(*link.names(), names);
    let tried = only(&[subject], &[subject]);
    link.lacking(&tried, &complaints, &scratch()).await.unwrap().len() == 2
}

#[test]
fn everything_else_is_forbidden() {
    let Some(server) = server_with(&Permissions::of(&names(), Some("a"))) else { return };
    on_one_thread(async {
        let (admin, _) = checked(&server, "admin").connect().await.expect("it connects");
        STORES.create(&admin).await.expect("the stores");
        let [log, nodes, directory] = names().streams();
        let foreign = Names::new("other").expect("a name");
        let mut forbidden = vec![
            foreign.all_records(),
            foreign.ask("a"),
            foreign.lease("a"),
            names().lease("b"),
            "_INBOX.>".to_owned(),
            "$SYS.>".to_owned(),
            "$JS.API.INFO".to_owned(),
            "$JS.API.STREAM.NAMES".to_owned(),
        ];
        for stream in [&log, &nodes, &directory] {
            for verb in ["CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE", "SNAPSHOT"] {
                forbidden.push(format!("$JS.API.STREAM.{verb}.{stream}"));
            }
            forbidden.push(format!("$JS.API.CONSUMER.CREATE.{stream}"));
        }
        for subject in forbidden {
            assert!(is_refused(&server, &subject).await, "{subject}");
        }
        // Its own permissions are tried without an effect.
        let (link, complaints) = checked(&server, "node").connect().await.expect("it connects");
        let own = Permissions::of(&names(), Some("a"));
        assert_eq!(link.lacking(&own, &complaints, &scratch()).await.unwrap(), []);
        let all = Permissions::of(&names(), None);
        let lacking = link.lacking(&all, &complaints, &scratch()).await.unwrap();
        let (lease, ask) = (names().lease("*"), names().ask("*"));
        assert_eq!(lacking, [("publish", lease), ("subscribe", ask)]);
        for stream in names().streams() {
            let about = admin.stream(&stream).await.unwrap().expect("it exists");
            assert_eq!(about["state"]["messages"], json!(0), "{stream}");
        }
    });
}
