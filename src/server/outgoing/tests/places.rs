//! Servers' places: names, several addresses, and addresses without a server.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::*;
use crate::reactor::SocketLimits;
use crate::server::outgoing;

fn names(all: &[(&str, &[IpAddr])]) -> OutgoingConfig {
    let all = all.iter().map(|(name, ips)| (Box::from(*name), ips.to_vec())).collect::<Vec<_>>();
    OutgoingConfig { names: Some(Arc::from(all)), ..OutgoingConfig::default() }
}

fn hello() -> Target {
    serve(|_, mut stream| {
        while read_request(&mut stream).is_some() {
            say(&mut stream, answer("hello"));
        }
    })
}

#[test]
fn the_system_is_asked_for_names_and_remembers_none() {
    with_both(|make| {
        let to = Target { host: "localhost".into(), ..hello() };
        let mut asker = make(OutgoingConfig::default());
        let ids: Vec<_> = (0..50).map(|_| asker.ask(&to, SLOW)).collect();
        for id in ids {
            assert_eq!(asker.wait(id).whole(), (200, "hello"));
        }
        let nobody = Target { host: "no name at all".into(), ..to };
        let fault = asker.fetch(&nobody).end.unwrap().unwrap_err();
        assert_eq!(fault.kind, NetFaultKind::Resolve);
        assert!(fault.text.contains("no name at all"), "{fault}");
        let id = asker.ask(&nobody, SLOW);
        outgoing::drop_exchange(&mut asker.shard, id); // Before the answer.
        asker.got.remove(&id);
        asker.turn();
        assert!(asker.counters().model_resolves_failed >= 1);
    });
}

#[test]
fn the_next_address_is_tried_when_one_is_refused_or_silent() {
    with_both(|make| {
        let to = hello();
        // Nothing listens on ::1 at this port.
        let refused: &[IpAddr] = &[Ipv6Addr::LOCALHOST.into(), [127, 0, 0, 1].into()];
        let nowhere: &[IpAddr] = &[[255, 255, 255, 255].into(), [127, 0, 0, 1].into()];
        let nobody: &[IpAddr] = &[[255, 255, 255, 255].into(), Ipv6Addr::LOCALHOST.into()];
        let all = [("refused", refused), ("nowhere", nowhere), ("nobody", nobody)];
        let mut asker = make(names(&all));
        for name in ["refused", "nowhere"] {
            let got = asker.fetch(&Target { host: name.into(), ..to.clone() });
            assert_eq!(got.whole(), (200, "hello"), "{name}");
        }
        assert_eq!(asker.counters().model_connections_failed, 2);
        let got = asker.fetch(&Target { host: "nobody".into(), ..to.clone() });
        assert_eq!(got.kind(), Some(NetFaultKind::Connect), "{got:?}");
        let got = asker.fetch(&Target { host: "other".into(), ..to.clone() });
        assert_eq!(got.kind(), Some(NetFaultKind::Resolve), "{got:?}");
    });
}

#[test]
fn an_address_that_says_nothing_is_overtaken_by_the_next() {
    with_both(|make| {
        let to = hello();
        // A full queue, at the same port of another address of this machine.
        let Ok(listener) = TcpListener::bind(("127.0.0.2", to.port)) else {
            return println!("not run: the port is taken there");
        };
        rustix::net::listen(&listener, 0).unwrap();
        let silent = listener.local_addr().unwrap();
        let mut queue = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&silent, Duration::from_millis(100)) {
            queue.push(stream);
        }
        let both: &[IpAddr] = &[silent.ip(), [127, 0, 0, 1].into()];
        let mut asker = make(names(&[("both", both)]));
        let to = Target { host: "both".into(), ..to };
        assert_eq!(asker.fetch(&to).whole(), (200, "hello"));
        let connections = crate::reactor::Reactor::connection_count(asker.shard.reactor_mut());
        assert_eq!(connections, 1); // The slower connection is closed.
    });
}

#[test]
fn without_a_place_an_exchange_says_so() {
    let sockets = Some(SocketLimits { connections_max: 2, listeners_max: 1 });
    let config = ShardConfig { sockets, ..ShardConfig::default() };
    let (shard, _) = ServerShard::open(config).unwrap();
    let mut asker = Asker { shard, got: BTreeMap::new(), buffer: Vec::new() };
    let mute = serve(|_, mut stream| wait_for_end(&mut stream));
    let (one, two) = (asker.ask(&mute, SLOW), asker.ask(&mute, SLOW));
    let three = asker.ask(&mute, SLOW);
    let fault = asker.wait(three).end.unwrap().unwrap_err();
    assert_eq!(fault.kind, NetFaultKind::Exhausted);
    assert!(fault.kind.is_retryable() && !fault.was_sent, "{fault}");
    assert!(asker.got[&one].end.is_none() && asker.got[&two].end.is_none());
    outgoing::drop_exchange(&mut asker.shard, one);
    asker.until("a place", |asker| {
        let id = asker.ask(&mute, SLOW);
        asker.turn();
        asker.got[&id].end.is_none()
    });
}

#[test]
fn without_certificates_to_believe_in_or_tls_https_is_refused() {
    if cfg!(feature = "tls") {
        return println!("not run: TLS is built in, and its tests are elsewhere");
    }
    let mut asker = Asker::new(Choice::Mio, OutgoingConfig::default());
    let to = Target { is_tls: true, ..hello() };
    let fault = asker.fetch(&to).end.unwrap().unwrap_err();
    assert_eq!(fault.kind, NetFaultKind::Tls);
    assert!(fault.text.contains("feature `tls`"), "{fault}");
}
