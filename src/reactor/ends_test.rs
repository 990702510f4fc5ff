//! Tests of connections made of descriptors that others share: both backends, pipes and sockets.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::reactor::testing::for_each_backend;
use crate::reactor::{
    ConnectionId, HalfConnection, PolledReactor, Reactor, ReleasedSocket, SendError, SocketEvent,
    UringReactor,
};

/// The descriptors that a program is given, and the ends that its parent keeps.
struct Given {
    input: OwnedFd,
    output: OwnedFd,
    writer: File,
    reader: File,
}

fn pipes() -> Given {
    let ((input, writer), (reader, output)) = (io::pipe().unwrap(), io::pipe().unwrap());
    let (writer, reader) = (OwnedFd::from(writer), OwnedFd::from(reader));
    let (input, output) = (input.into(), output.into());
    Given { input, output, writer: writer.into(), reader: reader.into() }
}

fn sockets() -> Given {
    let (input, writer) = UnixStream::pair().unwrap();
    let (reader, output) = UnixStream::pair().unwrap();
    let (writer, reader) = (OwnedFd::from(writer), OwnedFd::from(reader));
    let (input, output) = (input.into(), output.into());
    Given { input, output, writer: writer.into(), reader: reader.into() }
}

const KINDS: [fn() -> Given; 2] = [pipes, sockets];

impl Given {
    fn adopt(&self, reactor: &mut dyn Reactor) -> ConnectionId {
        let input = HalfConnection::to_read(self.input.as_fd()).unwrap();
        let output = HalfConnection::to_write(self.output.as_fd()).unwrap();
        assert!(input.is_shared() && output.is_shared());
        reactor.adopt(ReleasedSocket::of_ends(input, output)).unwrap()
    }
}

fn flags(fd: RawFd) -> libc::c_int {
    // SAFETY: takes numbers.
    unsafe { libc::fcntl(fd, libc::F_GETFL) }
}

#[derive(Debug, PartialEq)]
enum Seen {
    Bytes(Vec<u8>),
    Ended,
    Writable,
}

/// Waits for the next event of the only connection.
fn next(reactor: &mut dyn Reactor) -> Seen {
    loop {
        if let Some(event) = reactor.next_socket_event() {
            return match event {
                SocketEvent::Received { bytes, .. } => Seen::Bytes(bytes.to_vec()),
                SocketEvent::Ended { error: None, .. } => Seen::Ended,
                SocketEvent::Writable { .. } => Seen::Writable,
                other => panic!("{other:?}"),
            };
        }
        reactor.wait(None);
        reactor.poll();
    }
}

fn assert_nothing_comes(reactor: &mut dyn Reactor) {
    let until = reactor.now() + Duration::from_millis(5);
    let blocked_before = reactor.counters().blocked_count;
    while reactor.now() < until {
        reactor.wait(Some(until));
        reactor.poll();
        assert!(reactor.next_socket_event().is_none());
    }
    assert!(reactor.counters().blocked_count <= blocked_before + 3, "it did not sleep");
}

fn send(reactor: &mut dyn Reactor, id: ConnectionId, bytes: &[u8]) -> Result<usize, SendError> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    reactor.send(id, &[IoSlice::new(first), IoSlice::new(second)])
}

#[test]
fn bytes_come_and_go_and_the_flags_stay() {
    for_each_backend(|reactor| {
        for kind in KINDS {
            let mut given = kind();
            let before = [&given.input, &given.output].map(|fd| flags(fd.as_raw_fd()));
            let id = given.adopt(reactor);
            assert_nothing_comes(reactor);
            for round in 0..3 {
                given.writer.write_all(format!("asked {round}").as_bytes()).unwrap();
                assert_eq!(next(reactor), Seen::Bytes(format!("asked {round}").into_bytes()));
                assert_eq!(send(reactor, id, b"answered"), Ok(8));
                let mut got = [0; 8];
                given.reader.read_exact(&mut got).unwrap();
                assert_eq!(&got, b"answered");
            }
            given.writer.write_all(b"last").unwrap();
            drop(given.writer);
            assert_eq!(next(reactor), Seen::Bytes(b"last".to_vec()));
            assert_eq!(next(reactor), Seen::Ended);
            assert_nothing_comes(reactor);
            assert_eq!(send(reactor, id, b"so long"), Ok(7));
            let after = [&given.input, &given.output].map(|fd| flags(fd.as_raw_fd()));
            assert_eq!(before, after);
            reactor.close(id);
            // Others that share the descriptor may go on: it was not shut down.
            File::from(given.output).write_all(b"!").unwrap();
            let mut got = [0; 8];
            given.reader.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"so long!");
        }
    });
}

#[test]
fn what_a_full_pipe_does_not_take_goes_later_and_in_order() {
    for_each_backend(|reactor| {
        for kind in KINDS {
            let mut given = kind();
            let id = given.adopt(reactor);
            let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(|n| n.to_le_bytes()).collect();
            let mut at = send(reactor, id, &bytes).unwrap();
            assert!(at > 0 && at < bytes.len());
            assert_eq!(send(reactor, id, &bytes[at..]), Ok(0));
            assert_nothing_comes(reactor);
            let expected = bytes.clone();
            let reading = std::thread::spawn(move || {
                let mut got = vec![0; expected.len()];
                given.reader.read_exact(&mut got).unwrap();
                assert!(got == expected);
                given.writer // Still open until here.
            });
            while at < bytes.len() {
                assert_eq!(next(reactor), Seen::Writable);
                at += send(reactor, id, &bytes[at..]).unwrap();
            }
            drop(reading.join().unwrap());
            assert_eq!(next(reactor), Seen::Ended);
            reactor.close(id);
        }
    });
}

#[test]
fn a_reader_that_is_gone_is_an_error_of_the_send() {
    for_each_backend(|reactor| {
        for kind in KINDS {
            let Given { input, output, writer, reader } = kind();
            let given = Given { input, output, writer, reader: reader.try_clone().unwrap() };
            let id = given.adopt(reactor);
            drop((given.reader, reader));
            let sent = send(reactor, id, b"x");
            assert!(matches!(sent, Err(SendError::Broken(error)) if error.0 == libc::EPIPE));
            reactor.close(id);
        }
    });
}

#[test]
fn a_shared_socket_may_be_one_that_does_not_wait() {
    for_each_backend(|reactor| {
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let input = HalfConnection::to_read(near.as_fd()).unwrap();
        let output = HalfConnection::to_write(near.as_fd()).unwrap();
        let id = reactor.adopt(ReleasedSocket::of_ends(input, output)).unwrap();
        assert_nothing_comes(reactor); // The socket is not polled again and again either.
        far.write_all(b"ping").unwrap();
        assert_eq!(next(reactor), Seen::Bytes(b"ping".to_vec()));
        assert_nothing_comes(reactor);
        reactor.close(id);
        drop(near);
    });
}

#[test]
fn an_end_of_our_own_is_ended_with_the_connection() {
    for_each_backend(|reactor| {
        let ((input, mut into), (output, mut out)) =
            (HalfConnection::pair().unwrap(), HalfConnection::pair().unwrap());
        let id = reactor.adopt(ReleasedSocket::of_ends(input, output)).unwrap();
        into.write_all(b"in").unwrap();
        assert_eq!(next(reactor), Seen::Bytes(b"in".to_vec()));
        assert_eq!(send(reactor, id, b"out"), Ok(3));
        reactor.close(id);
        let mut got = String::new();
        out.read_to_string(&mut got).unwrap();
        assert_eq!(got, "out");
    });
}

#[test]
fn what_can_not_be_waited_for_is_refused() {
    let refused = |fd: BorrowedFd<'_>| {
        assert!(HalfConnection::to_read(fd).is_err());
        assert!(HalfConnection::to_write(fd).is_err());
    };
    refused(File::open("/dev/null").unwrap().as_fd());
    refused(File::open("/proc/self/status").unwrap().as_fd());
    refused(std::os::unix::net::UnixDatagram::unbound().unwrap().as_fd());
}

#[test]
fn it_may_move_to_a_reactor_of_the_other_kind() {
    let Ok(mut uring) = UringReactor::new() else { return println!("not run: no io_uring") };
    let mut polled = PolledReactor::new().unwrap();
    for kind in KINDS {
        let mut given = kind();
        let mut id = given.adopt(&mut polled);
        for round in 0..4 {
            let (from, to): (&mut dyn Reactor, &mut dyn Reactor) = match round % 2 {
                0 => (&mut polled, &mut uring),
                _ => (&mut uring, &mut polled),
            };
            from.release(id);
            given.writer.write_all(b"on the way").unwrap();
            let (mut bytes, mut released) = (Vec::new(), None);
            while released.is_none() {
                from.wait(None);
                from.poll();
                while let Some(event) = from.next_socket_event() {
                    match event {
                        SocketEvent::Received { bytes: more, .. } => bytes.extend_from_slice(more),
                        SocketEvent::Released { socket, .. } => released = Some(socket),
                        other => panic!("{other:?}"),
                    }
                }
            }
            id = to.adopt(released.unwrap()).unwrap();
            while bytes.len() < 10 {
                let Seen::Bytes(more) = next(to) else { panic!("no bytes") };
                bytes.extend_from_slice(&more);
            }
            assert_eq!(bytes, b"on the way");
        }
        polled.close(id);
    }
}
