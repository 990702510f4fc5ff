//! Connections that are not TLS, or that use a version that is too old.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::served::Server;
use crate::world::Identity;

const ALERT: u8 = 0x15;

#[test]
fn what_is_no_tls_is_told_so_and_others_are_served() {
    let identity = Identity::new("garbage");
    for reactor in ["uring", "mio"] {
        let server = identity.serve(&["--reactor", reactor]);
        let mut beside = identity.connect(&server);
        assert_eq!(beside.ask("GET", "/healthz", "").0, 200);
        for garbage in [
            &[0; 600][..],
            &[0xFF; 600],
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xFC\x03\x03garbage in a record that looks right",
        ] {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream.write_all(garbage).unwrap();
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer); // A reset may follow the alert.
            if garbage[0] != 0x16 {
                assert_eq!(answer.first(), Some(&ALERT), "{garbage:?}: {answer:?}");
            }
            assert!(!answer.starts_with(b"HTTP"), "nothing is said in the clear");
        }
        assert_eq!(beside.ask("GET", "/healthz", "").0, 200);
        assert_eq!(identity.connect(&server).ask("GET", "/healthz", "").0, 200);
    }
}

#[test]
fn plain_http_at_a_port_with_tls_is_told_so_in_plain_http() {
    let identity = Identity::new("plain");
    let server = identity.serve(&[]);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(b"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("\"code\":\"plain_on_tls_port\""), "{answer}");
    assert!(answer.contains("use https://") && !answer.contains("slow_data"), "{answer}");
    assert_eq!(server.wait_for("requests_refused")["code"], "plain_on_tls_port");
    assert_eq!(identity.connect(&server).ask("GET", "/healthz", "").0, 200);
}

#[test]
fn a_tls_handshake_at_a_port_without_tls_is_told_so_and_logged() {
    let server = Server::start(&[]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xFC\x03\x03").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("\"code\":\"tls_on_plain_port\""), "{answer}");
    assert!(answer.contains("use http://"), "{answer}");
    assert_eq!(server.wait_for("requests_refused")["code"], "tls_on_plain_port");
}

#[test]
fn a_client_of_tls_1_1_gets_no_connection() {
    let identity = Identity::new("old");
    let server = identity.serve(&[]);
    let run = |version: &str| {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", server.address(), version]);
        // Without this level, openssl would not even offer the version.
        command.args(["-cipher", "DEFAULT:@SECLEVEL=0"]).stdin(Stdio::null());
        command.output().map(|output| {
            let text = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&text).into_owned())
        })
    };
    let Ok((is_connected, text)) = run("-tls1_1") else {
        println!("not run: there is no openssl");
        return;
    };
    assert!(!is_connected, "{text}");
    assert!(text.contains("SSL alert number"), "the server has not said why: {text}");
    let (is_connected, text) = run("-tls1_2").unwrap();
    assert!(is_connected, "{text}");
}
