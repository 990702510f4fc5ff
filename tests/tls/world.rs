//! A certificate for each test, a server that uses it, and a client that trusts it.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::served::Server;

/// A folder with a certificate and its key. It is removed when this value is dropped.
pub struct Identity {
    folder: PathBuf,
}

impl Identity {
    pub fn new(name: &str) -> Identity {
        let name = format!("streamdoor-tls-{name}-{}", std::process::id());
        let identity = Identity { folder: std::env::temp_dir().join(name) };
        std::fs::create_dir(&identity.folder).unwrap();
        identity.renew();
        identity
    }

    /// Replaces the certificate and the key.
    pub fn renew(&self) {
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
        std::fs::write(self.certificate(), cert.pem()).unwrap();
        self.write_key(&signing_key.serialize_pem(), 0o600);
    }

    pub fn write_key(&self, text: &str, mode: u32) {
        std::fs::write(self.key(), text).unwrap();
        std::fs::set_permissions(self.key(), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn certificate(&self) -> PathBuf {
        self.folder.join("cert.pem")
    }

    pub fn key(&self) -> PathBuf {
        self.folder.join("key.pem")
    }

    pub fn serve(&self, more: &[&str]) -> Server {
        let (certificate, key) = (self.certificate(), self.key());
        let mut arguments = vec!["--tls-cert", certificate.to_str().unwrap()];
        arguments.extend(["--tls-key", key.to_str().unwrap()]);
        arguments.extend(more);
        Server::start(&arguments)
    }

    pub fn connect(&self, server: &Server) -> TlsClient {
        let text = std::fs::read(self.certificate()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&text).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(server.address()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        TlsClient { stream: StreamOwned::new(tls, socket), kept: Vec::new() }
    }
}

impl Identity {
    /// A folder of its own with the certificate of another one.
    pub fn copy_of(other: &Identity, name: &str) -> Identity {
        let copy = Identity::new(name);
        std::fs::copy(other.certificate(), copy.certificate()).unwrap();
        copy
    }

    /// True if the server shows the certificate of this identity.
    pub fn has_certificate_of(&self, server: &Server) -> bool {
        let mut client = self.connect(server);
        client.stream.flush().is_ok() && !client.stream.conn.is_handshaking()
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A client with one connection.
pub struct TlsClient {
    pub stream: StreamOwned<ClientConnection, TcpStream>,
    kept: Vec<u8>,
}

impl TlsClient {
    pub fn send(&mut self, method: &str, path: &str, body: &str) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(request.as_bytes()).unwrap();
    }

    /// Reads the next line, without its line end.
    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.kept.windows(2).position(|two| two == b"\r\n") {
                let line = self.kept.drain(..end + 2).collect::<Vec<u8>>();
                return String::from_utf8(line[..end].to_vec()).unwrap();
            }
            assert!(self.fill(), "it ended in the middle");
        }
    }

    /// Reads more bytes. Returns false after a clean end with close_notify.
    pub fn fill(&mut self) -> bool {
        let mut buffer = [0; 32 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(count) => {
                    self.kept.extend_from_slice(&buffer[..count]);
                    return count > 0;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        while self.kept.len() < count {
            assert!(self.fill(), "it ended in the middle");
        }
        self.kept.drain(..count).collect()
    }

    /// Reads a response and returns its status. `each` is called with the pieces of its body.
    pub fn receive(&mut self, mut each: impl FnMut(&[u8])) -> u16 {
        let first = self.line();
        let (mut length, mut is_chunked) = (0, false);
        loop {
            let line = self.line();
            match line.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap(),
                Some(("transfer-encoding", value)) => is_chunked = value == "chunked",
                Some(_) => {}
                None => break,
            }
        }
        if !is_chunked {
            each(&self.take(length));
        }
        while is_chunked {
            let count = usize::from_str_radix(&self.line(), 16).unwrap();
            each(&self.take(count));
            assert_eq!(self.line(), "");
            is_chunked = count > 0;
        }
        first.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> (u16, Value) {
        self.send(method, path, body);
        let mut bytes = Vec::new();
        let status = self.receive(|piece| bytes.extend_from_slice(piece));
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    /// Opens an execution and returns its id.
    pub fn execute(&mut self, body: &Value) -> String {
        let (status, created) = self.ask("POST", "/v1/executions", &body.to_string());
        assert_eq!(status, 201, "{created}");
        created["execution"].as_str().unwrap().to_owned()
    }
}
