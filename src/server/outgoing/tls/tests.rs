//! Exchanges over TLS, with certificates made by the test.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;
use crate::agent::NetFaultKind;
use crate::server::outgoing::tests::*;
use crate::server::outgoing::{OutgoingConfig, Target};

type Stream = StreamOwned<ServerConnection, TcpStream>;

/// Returns a server that has a certificate for `name`, and a config that trusts it.
fn serve_tls(
    name: &str,
    script: impl Fn(usize, &mut Stream) + Send + Sync + 'static,
) -> (Target, OutgoingConfig) {
    let made = generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let CertifiedKey { cert, signing_key } = made;
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let mut config = builder.with_single_cert(vec![cert.der().clone()], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let to = serve(move |number, stream| {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        script(number, &mut StreamOwned::new(connection, stream));
    });
    let names: Vec<(Box<str>, Vec<std::net::IpAddr>)> = vec![
        ("localhost".into(), vec![[127, 0, 0, 1].into()]),
        ("elsewhere".into(), vec![[127, 0, 0, 1].into()]),
    ];
    let roots = Some(Roots::of(vec![cert.der().clone()]).unwrap());
    let config = OutgoingConfig { names: Some(names.into()), roots };
    (Target { is_tls: true, host: "localhost".into(), ..to }, config)
}

fn goodbye(stream: &mut Stream) {
    stream.conn.send_close_notify();
    _ = stream.flush();
}

#[test]
fn what_is_said_over_tls_is_heard_and_its_connection_is_used_again() {
    with_both(|make| {
        let long = "a long answer of many records ".repeat(20_000);
        let expected = long.clone();
        let (to, config) = serve_tls("localhost", move |_, stream| {
            while let Some(request) = read_request(stream) {
                assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
                assert!(request.len() > 3 << 20);
                say(stream, answer(&long));
            }
        });
        let mut asker = make(config);
        for _ in 0..3 {
            let id = asker.send(&to, request(&to, &vec![b'q'; 3 << 20]), SLOW);
            let got = asker.wait(id);
            assert!(got.whole() == (200, &*expected));
        }
        let counters = asker.counters();
        assert_eq!((counters.model_connections_opened, counters.model_connections_reused), (1, 2));
    });
}

#[test]
fn who_is_not_who_he_should_be_gets_nothing() {
    with_both(|make| {
        let read = Tally::default();
        let read_of = read.clone();
        let (to, config) = serve_tls("localhost", move |_, stream| {
            let mut piece = [0; 100];
            read_of.add(stream.read(&mut piece).unwrap_or(0) as u64);
        });
        let (_, stranger) = serve_tls("localhost", |_, _| {});
        let mut asker = make(config);
        let wrong = asker.fetch(&Target { host: "elsewhere".into(), ..to.clone() });
        assert_eq!(wrong.kind(), Some(NetFaultKind::Tls), "{wrong:?}");
        let mut asker = make(stranger);
        let fault = asker.fetch(&to).end.unwrap().unwrap_err();
        assert_eq!(fault.kind, NetFaultKind::Tls);
        assert!(!fault.was_sent && !fault.kind.is_retryable());
        assert!(fault.text.contains("certificate"), "{fault}");
        let mut asker = make(OutgoingConfig::default()); // The system does not trust it.
        let fault = asker.fetch(&to).end.unwrap().unwrap_err();
        assert_eq!(fault.kind, NetFaultKind::Tls, "{fault}");
        assert_eq!(read.get(), 0);
    });
}

#[test]
fn who_speaks_no_tls_is_told_apart() {
    with_both(|make| {
        let (_, config) = serve_tls("localhost", |_, _| {});
        let mut asker = make(config);
        let plain = serve(|_, mut stream| {
            say(&mut stream, "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
            wait_for_end(&mut stream);
        });
        let got = asker.fetch(&Target { is_tls: true, ..plain });
        assert_eq!(got.kind(), Some(NetFaultKind::Tls), "{got:?}");
        let mute = serve(|_, _| {});
        let got = asker.fetch(&Target { is_tls: true, ..mute });
        assert_eq!(got.kind(), Some(NetFaultKind::Connect), "{got:?}");
    });
}

#[test]
fn an_end_without_a_goodbye_is_not_the_end_of_an_answer() {
    with_both(|make| {
        for is_polite in [true, false] {
            let (to, config) = serve_tls("localhost", move |_, stream| {
                read_request(stream);
                say(stream, "HTTP/1.1 200 OK\r\n\r\nall of it, perhaps");
                if is_polite {
                    goodbye(stream);
                }
            });
            let got = make(config).fetch(&to);
            assert_eq!(got.body, b"all of it, perhaps");
            let kind = if is_polite { None } else { Some(NetFaultKind::Broken) };
            assert_eq!(got.kind(), kind, "{got:?}");
        }
    });
}

#[test]
fn a_kept_connection_that_said_goodbye_is_not_used() {
    with_both(|make| {
        let (to, config) = serve_tls("localhost", |_, stream| {
            read_request(stream);
            say(stream, answer("one"));
            goodbye(stream);
            wait_for_end(stream);
        });
        let mut asker = make(config);
        for _ in 0..3 {
            assert_eq!(asker.fetch(&to).whole(), (200, "one"));
        }
        // The close may have come too late to be noticed. The exchange was then repeated.
        let counters = asker.counters();
        assert_eq!(counters.model_connections_opened, 3);
        assert_eq!(counters.model_exchanges_repeated, counters.model_connections_reused);
    });
}

#[test]
fn files_of_certificates_are_looked_at() {
    let path = std::env::temp_dir().join(format!("streamdoor-roots-{}.pem", std::process::id()));
    assert!(Roots::from_file(&path).is_err());
    std::fs::write(&path, "nothing").unwrap();
    let error = Roots::from_file(&path).unwrap_err().to_string();
    assert!(error.contains("no certificate"), "{error}");
    let made = generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(&path, made.cert.pem()).unwrap();
    assert_eq!(format!("{:?}", Roots::from_file(&path).unwrap()), "Roots");
    std::fs::remove_file(&path).unwrap();
}
