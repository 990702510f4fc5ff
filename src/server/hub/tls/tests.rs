//! Sessions against rustls as a client, with whole, cut, changed and invalid input.

use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore};

use super::*;

const REQUEST: &[u8] = b"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn configs() -> (TlsConfig, Arc<ClientConfig>) {
    let made = generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let CertifiedKey { cert, signing_key } = made;
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let server = TlsConfig::of(vec![cert.der().clone()], key).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut client = builder.with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    (server, Arc::new(client))
}

/// A session and its client, and the bytes and results that pass between them.
struct Pair {
    session: Box<ServerTls>,
    client: ClientConnection,
    spare: Buffers,
    heard: Vec<u8>,
    told: Vec<Opened>,
}

impl Pair {
    fn new(configs: &(TlsConfig, Arc<ClientConfig>)) -> Pair {
        let name = "localhost".try_into().unwrap();
        Pair {
            session: ServerTls::new(&configs.0),
            client: ClientConnection::new(Arc::clone(&configs.1), name).unwrap(),
            spare: Buffers::new(),
            heard: Vec::new(),
            told: Vec::new(),
        }
    }

    /// Takes the bytes that the client has to send next.
    fn flight(&mut self) -> Vec<u8> {
        let mut flight = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut flight).unwrap();
        }
        flight
    }

    fn tell(&mut self, bytes: &[u8]) {
        match self.session.open(bytes, &mut self.heard) {
            Opened::More => {}
            opened => self.told.push(opened),
        }
    }

    /// Lets the client read all that the server has encrypted.
    fn answer(&mut self) {
        let mut sealed = Vec::new();
        let sent = self.session.send(&mut self.spare, |slices| {
            sealed.extend_from_slice(&slices[0]);
            Ok::<usize, ()>(slices[0].len())
        });
        assert_eq!(sent, Ok(true));
        let mut left = &sealed[..];
        while !left.is_empty() {
            self.client.read_tls(&mut left).unwrap();
            self.client.process_new_packets().unwrap();
        }
    }

    /// Returns the client's first flight, and the one after the reply, with a request.
    fn flights(&mut self) -> [Vec<u8>; 2] {
        let first = self.flight();
        self.tell(&first);
        self.answer();
        self.client.writer().write_all(REQUEST).unwrap();
        [first, self.flight()]
    }
}

#[test]
fn what_goes_in_comes_out_and_both_say_goodbye() {
    let mut pair = Pair::new(&configs());
    let [_, second] = pair.flights();
    pair.tell(&second);
    assert_eq!(pair.heard, REQUEST);
    assert_eq!(pair.told, [Opened::Ready]);
    assert_eq!(pair.client.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(pair.client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    let long: Vec<u8> = (0..3 * limits::TLS_SEAL_BYTES).map(|at| (at % 251) as u8).collect();
    let (mut sealed_bytes, mut read) = (0, Vec::new());
    while sealed_bytes < long.len() {
        let pieces = long[sealed_bytes..].chunks(1_000);
        let portion_bytes = pair.session.seal(pieces, &mut pair.spare);
        assert_eq!(portion_bytes, limits::TLS_SEAL_BYTES);
        let overhead_bytes = pair.session.waiting_bytes() - portion_bytes;
        assert!(overhead_bytes <= limits::TLS_OVERHEAD_BYTES, "{overhead_bytes}");
        sealed_bytes += portion_bytes;
        let mut sealed = Vec::new();
        // The kernel takes a little at a time.
        loop {
            let sent = pair.session.send(&mut pair.spare, |slices| {
                let count = slices[0].len().min(5_000);
                sealed.extend_from_slice(&slices[0][..count]);
                Ok::<usize, ()>(count)
            });
            if sent == Ok(true) {
                break;
            }
        }
        let mut left = &sealed[..];
        while !left.is_empty() {
            pair.client.read_tls(&mut left).unwrap();
            let state = pair.client.process_new_packets().unwrap();
            let there = state.plaintext_bytes_to_read() as u64;
            pair.client.reader().take(there).read_to_end(&mut read).unwrap();
        }
    }
    assert!(read == long);
    assert!(pair.session.must_send_goodbye() && !pair.session.must_send_goodbye());
    pair.answer();
    // The end was announced by an alert.
    assert_eq!(pair.client.reader().read(&mut [0]).unwrap(), 0);
    pair.client.send_close_notify();
    let mut other = Pair::new(&configs());
    let [_, second] = other.flights();
    other.tell(&second);
    other.client.send_close_notify();
    let last = other.flight();
    other.tell(&last);
    assert_eq!(other.told, [Opened::Ready, Opened::Ended]);
}

#[test]
fn it_does_not_matter_how_the_bytes_are_cut() {
    let configs = configs();
    let length = Pair::new(&configs).flights()[1].len();
    let mut without_meaning = 0;
    for at in 0..length {
        let mut pair = Pair::new(&configs);
        let [_, mut second] = pair.flights();
        let Some(byte) = second.get_mut(at) else { continue };
        *byte ^= 0x10;
        pair.tell(&second);
        if pair.heard == REQUEST {
            without_meaning += 1; // The minor version of a record is ignored: RFC 8446, 5.1.
            continue;
        }
        if !matches!(pair.told.last(), Some(Opened::Refused(_))) {
            // The changed byte has made the record longer: send the rest of it.
            pair.tell(&[0x55; 70_000]);
        }
        assert!(pair.heard.is_empty(), "byte {at}");
        assert!(matches!(pair.told.last(), Some(Opened::Refused(_))), "{at}: {:?}", pair.told);
    }
    assert!(without_meaning <= 3, "{without_meaning} of {length}");
}

#[test]
fn plain_http_is_told_from_tls_by_its_first_byte_and_only_there() {
    let (server, client) = configs();
    for cut in [1, REQUEST.len()] {
        let (mut session, mut out) = (ServerTls::new(&server), Vec::new());
        assert_eq!(session.open(&REQUEST[..cut], &mut out), Opened::Plain);
        assert!(out.is_empty() && session.sealed.is_empty(), "an alert would mislead the client");
    }
    let mut pair = Pair::new(&(server, client));
    let [_, second] = pair.flights();
    pair.tell(&second);
    pair.tell(REQUEST);
    assert!(matches!(pair.told.last(), Some(Opened::Refused(_))), "{:?}", pair.told);
}

/// The first message of a client of TLS 1.1: RFC 4346, 7.4.1.2.
fn hello_of_tls_1_1() -> Vec<u8> {
    let mut body = vec![3, 2];
    body.extend_from_slice(&[7; 32]);
    body.extend_from_slice(&[0, 0, 4, 0xC0, 0x13, 0x00, 0x2F, 1, 0]);
    let length = body.len() as u8;
    let mut hello = vec![0x16, 3, 1, 0, length + 4, 1, 0, 0, length];
    hello.extend_from_slice(&body);
    hello
}

#[test]
fn what_is_no_tls_or_an_old_one_is_told_so_with_an_alert() {
    const HANDSHAKE_FAILURE: u8 = 40;
    const PROTOCOL_VERSION: u8 = 70;
    let (server, _) = configs();
    for (name, bytes, alerts) in [
        ("TLS 1.1", hello_of_tls_1_1(), &[HANDSHAKE_FAILURE, PROTOCOL_VERSION][..]),
        ("zeros", vec![0; 100], &[]),
        ("noise", (0..255).collect(), &[]),
        ("a record of nothing", vec![0x17, 3, 3, 0, 1, 0], &[]),
    ] {
        let mut session = ServerTls::new(&server);
        let mut out = Vec::new();
        let opened = session.open(&bytes, &mut out);
        assert!(matches!(opened, Opened::Refused(_)), "{name}: {opened:?}");
        assert_eq!(session.open(&bytes, &mut out), Opened::More, "{name}: reported before");
        assert!(out.is_empty() && !session.must_send_goodbye(), "{name}");
        let sealed = &session.sealed;
        assert_eq!(sealed[0], 0x15, "{name}: an alert: {sealed:?}");
        let alert = sealed[sealed.len() - 1];
        assert!(alerts.is_empty() || alerts.contains(&alert), "{name}: {sealed:?}");
    }
}
