//! Tests of real addresses only: IPv6, and the file of a Unix socket. The socket of a dead server
//! is replaced, and every other file is left alone.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use streamdoor::reactor::{
    ListenAddress, ListenError, ListenOptions, ListenerId, Peer, PolledReactor, Reactor,
    SocketEvent, UringReactor,
};

use super::network::fresh_path;

fn for_each_backend(test: fn(&mut dyn Reactor)) {
    test(&mut PolledReactor::new().unwrap());
    match UringReactor::new() {
        Ok(mut reactor) => test(&mut reactor),
        Err(reason) => println!("not run: {reason}"),
    }
}

fn listen(reactor: &mut dyn Reactor, path: &Path) -> Result<ListenerId, ListenError> {
    reactor.listen(&ListenAddress::Unix(path.to_owned()), ListenOptions::default())
}

#[test]
fn a_client_of_ipv6_is_known_by_its_address() {
    for_each_backend(|reactor| {
        let any: ListenAddress = "[::1]:0".parse().unwrap();
        let listener = match reactor.listen(&any, ListenOptions::default()) {
            Ok(listener) => listener,
            Err(reason) => return println!("not run: {reason}"),
        };
        let address = reactor.listen_address(listener).unwrap();
        let ListenAddress::Tcp(internet) = address else { panic!("{address}") };
        assert!(internet.is_ipv6() && internet.port() != 0);
        let client = TcpStream::connect(internet).unwrap();
        loop {
            reactor.wait(None);
            if let Some(SocketEvent::Accepted { peer, .. }) = reactor.next_socket_event() {
                assert_eq!(peer, Peer::Tcp(client.local_addr().unwrap()));
                return;
            }
        }
    });
}

#[test]
fn a_socket_that_nobody_answers_is_replaced_by_one_for_its_owner_alone() {
    for_each_backend(|reactor| {
        let path = fresh_path();
        drop(UnixListener::bind(&path).unwrap()); // A killed server leaves this file.
        assert!(UnixStream::connect(&path).is_err());
        let listener = listen(reactor, &path).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        reactor.close_listener(listener);
        while path.exists() {
            reactor.poll();
        }
        let folder = path.parent().unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let left = fs::read_dir(folder).unwrap().flatten();
        let left = left.filter(|entry| entry.file_name().to_str().unwrap().starts_with(name));
        assert_eq!(left.count(), 0); // No temporary file is left.
    });
}

#[test]
fn a_socket_that_somebody_answers_is_an_error_and_stays() {
    for_each_backend(|reactor| {
        let path = fresh_path();
        let other = UnixListener::bind(&path).unwrap();
        let address = ListenAddress::Unix(path.clone());
        assert_eq!(listen(reactor, &path), Err(ListenError::InUse { address }));
        drop(other.accept().unwrap()); // The reactor's probe for a live server.
        UnixStream::connect(&path).unwrap();
        drop(other);
        fs::remove_file(path).unwrap();
    });
}

#[test]
fn what_is_not_a_socket_stays() {
    for_each_backend(|reactor| {
        let path = fresh_path();
        fs::write(&path, b"precious").unwrap();
        let not_a_socket = ListenError::NotASocket { path: path.clone() };
        assert_eq!(listen(reactor, &path), Err(not_a_socket));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        // A symbolic link is not followed, whatever its target.
        let (link, target) = (fresh_path(), fresh_path());
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let not_a_socket = ListenError::NotASocket { path: link.clone() };
        assert_eq!(listen(reactor, &link), Err(not_a_socket));
        assert!(!target.exists());
        fs::remove_file(path).unwrap();
        fs::remove_file(link).unwrap();
    });
}

#[test]
fn a_file_that_has_become_somebody_elses_is_left_to_them() {
    for_each_backend(|reactor| {
        let path = fresh_path();
        let listener = listen(reactor, &path).unwrap();
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        reactor.close_listener(listener);
        for _ in 0..100 {
            reactor.poll();
        }
        UnixStream::connect(&path).unwrap();
        drop(other);
        fs::remove_file(path).unwrap();
    });
}

#[test]
fn bad_paths_are_refused_in_words() {
    for_each_backend(|reactor| {
        for path in ["x".repeat(108), "with\0zero".to_owned(), String::new()] {
            let path = PathBuf::from(path);
            let bad = ListenError::BadPath { path: path.clone(), bytes_max: 107 };
            assert_eq!(listen(reactor, &path), Err(bad));
        }
        let nowhere = fresh_path().join("no").join("such");
        let error = listen(reactor, &nowhere).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("no/such") && text.contains("bind"), "{text}");
    });
}
