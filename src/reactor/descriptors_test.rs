//! Tests of descriptors that go with the first byte of a send, on both backends.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::reactor::socket_calls::DESCRIPTORS_SENT_MAX;
use crate::reactor::testing::for_each_backend;
use crate::reactor::{
    ConnectionId, HalfConnection, Reactor, ReleasedSocket, SendError, SocketEvent,
};

/// A connection, the socket that reads what it sends, and the socket that keeps its input open.
fn connection(reactor: &mut dyn Reactor) -> (ConnectionId, UnixStream, UnixStream) {
    let ((input, keeper), (output, reader)) =
        (HalfConnection::pair().unwrap(), HalfConnection::pair().unwrap());
    let id = reactor.adopt(ReleasedSocket::of_ends(input, output)).unwrap();
    (id, reader, keeper)
}

/// Receives once, with the descriptors that came.
fn receive(from: &UnixStream, into: &mut [u8]) -> (usize, Vec<OwnedFd>) {
    let mut piece = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut control = [0_u64; 16];
    // SAFETY: plain pointers and integers, for which all zero is a value.
    let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the buffers are ours alone during the call.
    let count =
        unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    assert!(count >= 0, "{}", io::Error::last_os_error());
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has filled the message in.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if !header.is_null() {
        // SAFETY: it points into `control`.
        let header = unsafe { header.read_unaligned() };
        assert_eq!((header.cmsg_level, header.cmsg_type), (libc::SOL_SOCKET, libc::SCM_RIGHTS));
        let fd_count = (header.cmsg_len as usize - size_of::<libc::cmsghdr>()) / 4;
        let words = &control[size_of::<libc::cmsghdr>() / 8..];
        for at in 0..fd_count {
            let raw = (words[at / 2] >> (32 * (at % 2))) as u32 as RawFd;
            // SAFETY: the kernel has just made it, for us alone.
            descriptors.push(unsafe { OwnedFd::from_raw_fd(raw) });
        }
    }
    (count as usize, descriptors)
}

#[test]
fn descriptors_come_with_the_first_byte_and_are_of_the_same_files() {
    for_each_backend(|reactor| {
        let (id, reader, _keeper) = connection(reactor);
        for count in 1..=DESCRIPTORS_SENT_MAX {
            let pipes: Vec<_> = (0..count).map(|_| io::pipe().unwrap()).collect();
            let sent: Vec<BorrowedFd<'_>> =
                pipes.iter().map(|(reader, _)| reader.as_fd()).collect();
            let slices = [IoSlice::new(b"fir"), IoSlice::new(b"st")];
            assert_eq!(reactor.send_with_descriptors(id, &slices, &sent), Ok(5));
            assert_eq!(reactor.send(id, &[IoSlice::new(b"then")]), Ok(4));
            let mut bytes = [0; 1];
            let (got, descriptors) = receive(&reader, &mut bytes);
            assert_eq!((got, &bytes, descriptors.len()), (1, b"f", count));
            for (at, (descriptor, (_, writer))) in descriptors.into_iter().zip(pipes).enumerate() {
                (&writer).write_all(&[at as u8]).unwrap();
                File::from(descriptor).read_exact(&mut bytes).unwrap();
                assert_eq!(bytes, [at as u8]);
            }
            let mut rest = [0; 8];
            let mut got = 0;
            while got < rest.len() {
                let (count, none) = receive(&reader, &mut rest[got..]);
                assert!(none.is_empty());
                got += count;
            }
            assert_eq!(&rest, b"irstthen");
        }
    });
}

#[test]
fn where_no_byte_can_be_sent_no_descriptor_is() {
    for_each_backend(|reactor| {
        let (id, reader, _keeper) = connection(reactor);
        let (pipe, _writer) = io::pipe().unwrap();
        let filling = vec![7; 1 << 20];
        let mut filled = 0;
        loop {
            match reactor.send(id, &[IoSlice::new(&filling)]).unwrap() {
                0 => break,
                count => filled += count,
            }
        }
        let last = [IoSlice::new(b"!")];
        assert_eq!(reactor.send_with_descriptors(id, &last, &[pipe.as_fd()]), Ok(0));
        let mut piece = vec![0; 64 << 10];
        while filled > 0 {
            let (count, none) = receive(&reader, &mut piece);
            assert!(none.is_empty());
            filled -= count;
        }
        while reactor.send_with_descriptors(id, &last, &[pipe.as_fd()]).unwrap() == 0 {
            reactor.poll();
            let event = reactor.next_socket_event();
            assert!(matches!(event, None | Some(SocketEvent::Writable { .. })), "{event:?}");
        }
        let (count, descriptors) = receive(&reader, &mut piece);
        assert_eq!((count, piece[0], descriptors.len()), (1, b'!', 1));
    });
}

#[test]
fn what_carries_none_says_so() {
    for_each_backend(|reactor| {
        let ((_reader, output), (input, _writer)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let (input, output) = (
            HalfConnection::to_read(input.as_fd()).unwrap(),
            HalfConnection::to_write(output.as_fd()).unwrap(),
        );
        let id = reactor.adopt(ReleasedSocket::of_ends(input, output)).unwrap();
        let (pipe, _end) = io::pipe().unwrap();
        let slices = [IoSlice::new(b"x")];
        let refused = reactor.send_with_descriptors(id, &slices, &[pipe.as_fd()]);
        assert!(matches!(refused, Err(SendError::Broken(_))), "{refused:?}");
        let (id, _reader, _keeper) = connection(reactor);
        let too_many = vec![pipe.as_fd(); DESCRIPTORS_SENT_MAX + 1];
        let refused = reactor.send_with_descriptors(id, &slices, &too_many);
        assert!(matches!(refused, Err(SendError::Broken(_))), "{refused:?}");
    });
}
