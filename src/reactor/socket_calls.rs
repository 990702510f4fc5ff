//! The system calls of sockets: one function each, no state. None of them waits.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::mem::{offset_of, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::limits::{
    KEEPALIVE_COUNT, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, SEND_BUFFER_BYTES, SEND_SLICES_MAX,
    TCP_NOT_SENT_BYTES,
};
use crate::reactor::{IoError, Peer};

/// An address of any family in the kernel's format.
pub struct RawAddress {
    pub storage: libc::sockaddr_storage,
    pub size_bytes: libc::socklen_t,
}

impl RawAddress {
    pub fn empty() -> RawAddress {
        // SAFETY: plain integers, for which all zero is a value.
        let storage = unsafe { std::mem::zeroed::<libc::sockaddr_storage>() };
        RawAddress { storage, size_bytes: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    pub fn of(address: &SocketAddr) -> RawAddress {
        let mut raw = RawAddress::empty();
        match address {
            SocketAddr::V4(address) => {
                let value = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                raw.fill(value);
            }
            SocketAddr::V6(address) => {
                let value = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                raw.fill(value);
            }
        }
        raw
    }

    /// The address of a Unix socket. `path` has to be shorter than `sun_path`.
    pub fn of_path(path: &[u8]) -> RawAddress {
        // SAFETY: plain integers, for which all zero is a value.
        let mut value = unsafe { std::mem::zeroed::<libc::sockaddr_un>() };
        value.sun_family = libc::AF_UNIX as libc::sa_family_t;
        assert!(path.len() < value.sun_path.len());
        for (place, byte) in value.sun_path.iter_mut().zip(path) {
            *place = *byte as libc::c_char;
        }
        let mut raw = RawAddress::empty();
        raw.fill(value);
        raw
    }

    fn fill<T>(&mut self, value: T) {
        assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>());
        // SAFETY: the storage is larger, as asserted, and aligned for every kind of address.
        unsafe { std::ptr::from_mut(&mut self.storage).cast::<T>().write(value) };
        self.size_bytes = size_of::<T>() as libc::socklen_t;
    }

    /// The internet address in it, or `None` if it is of another family.
    pub fn to_internet(&self) -> Option<SocketAddr> {
        let start = std::ptr::from_ref(&self.storage);
        let family = i32::from(self.storage.ss_family);
        let is_whole = |size_bytes: usize| self.size_bytes as usize >= size_bytes;
        if family == libc::AF_INET && is_whole(size_of::<libc::sockaddr_in>()) {
            // SAFETY: the family says that it is one; smaller than the storage, and aligned.
            let value = unsafe { start.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(value.sin_addr.s_addr));
            return Some(SocketAddrV4::new(ip, u16::from_be(value.sin_port)).into());
        }
        if family == libc::AF_INET6 && is_whole(size_of::<libc::sockaddr_in6>()) {
            // SAFETY: as above.
            let value = unsafe { start.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(value.sin6_addr.s6_addr);
            let (flow, scope) = (value.sin6_flowinfo, value.sin6_scope_id);
            return Some(SocketAddrV6::new(ip, u16::from_be(value.sin6_port), flow, scope).into());
        }
        None
    }
}

impl RawAddress {
    /// The path in it, or `None` if it is of another family or has no path.
    pub fn to_path(&self) -> Option<PathBuf> {
        if i32::from(self.storage.ss_family) != libc::AF_UNIX {
            return None;
        }
        let size_bytes = (self.size_bytes as usize).min(size_of::<libc::sockaddr_un>());
        let at = offset_of!(libc::sockaddr_un, sun_path);
        // SAFETY: the storage is larger than each address, and all of it is initialized.
        let all = unsafe {
            let start = std::ptr::from_ref(&self.storage).cast::<u8>();
            std::slice::from_raw_parts(start, size_bytes)
        };
        let path = all.get(at..)?.split(|byte| *byte == 0).next()?;
        (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path)))
    }
}

fn checked(code: libc::c_int) -> Result<libc::c_int, IoError> {
    if code < 0 { Err(IoError::last()) } else { Ok(code) }
}

/// Makes a stream socket, closed on exec. `is_blocking` concerns only calls without MSG_DONTWAIT.
pub fn socket(family: libc::c_int, is_blocking: bool) -> Result<OwnedFd, IoError> {
    let flags = libc::SOCK_CLOEXEC | if is_blocking { 0 } else { libc::SOCK_NONBLOCK };
    // SAFETY: takes numbers.
    let fd = checked(unsafe { libc::socket(family, libc::SOCK_STREAM | flags, 0) })?;
    // SAFETY: just made, and not owned elsewhere.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Duplicates a listening stream socket of any owner. The duplicate and the original are closed on
/// exec. `is_blocking` holds for both, because they share it.
///
/// # Errors
/// `EBADF` and `ENOTSOCK`, or `EINVAL` for a socket that does not listen or is no stream.
pub fn duplicate_listener(fd: RawFd, is_blocking: bool) -> Result<OwnedFd, IoError> {
    let is_listening = option(fd, libc::SO_ACCEPTCONN)? != 0;
    if !is_listening || option(fd, libc::SO_TYPE)? != libc::SOCK_STREAM {
        return Err(IoError(libc::EINVAL));
    }
    // SAFETY: takes numbers; the descriptor was just seen to be a socket.
    checked(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: as above.
    let flags = checked(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    let nonblocking = if is_blocking { 0 } else { libc::O_NONBLOCK };
    let flags = flags & !libc::O_NONBLOCK | nonblocking;
    // SAFETY: as above.
    checked(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) })?;
    // SAFETY: as above.
    let own = checked(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?;
    // SAFETY: just made, and not owned elsewhere.
    Ok(unsafe { OwnedFd::from_raw_fd(own) })
}

pub fn bind(fd: RawFd, address: &RawAddress) -> Result<(), IoError> {
    let start = std::ptr::from_ref(&address.storage).cast();
    // SAFETY: an address of the given size, only read.
    checked(unsafe { libc::bind(fd, start, address.size_bytes) }).map(drop)
}

/// Begins to connect. On a non-blocking socket, `Err(EINPROGRESS)` or `Err(EAGAIN)` if it would
/// wait.
pub fn connect(fd: RawFd, address: &RawAddress) -> Result<(), IoError> {
    let start = std::ptr::from_ref(&address.storage).cast();
    // SAFETY: an address of the given size, only read.
    checked(unsafe { libc::connect(fd, start, address.size_bytes) }).map(drop)
}

pub fn listen(fd: RawFd, backlog: u32) -> Result<(), IoError> {
    // SAFETY: takes numbers.
    checked(unsafe { libc::listen(fd, backlog as libc::c_int) }).map(drop)
}

/// Takes the next connection of a non-blocking listener. The new descriptor is blocking: calls here
/// pass MSG_DONTWAIT. The connection may move to io_uring, which waits by itself only for blocking
/// descriptors.
pub fn accept(fd: RawFd) -> Result<OwnedFd, IoError> {
    let flags = libc::SOCK_CLOEXEC;
    let none = std::ptr::null_mut::<libc::sockaddr>();
    // SAFETY: no address is asked for, so nothing is written.
    let fd = checked(unsafe { libc::accept4(fd, none, std::ptr::null_mut(), flags) })?;
    // SAFETY: just made, and not owned elsewhere.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The connection in io_uring's answer to an accept.
pub fn adopt_answer(result: i32) -> Result<OwnedFd, IoError> {
    if result < 0 {
        return Err(IoError(-result));
    }
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// The address that a socket is bound to.
pub fn local_address(fd: RawFd) -> Result<RawAddress, IoError> {
    let mut raw = RawAddress::empty();
    let start = std::ptr::from_mut(&mut raw.storage).cast();
    // SAFETY: room for any address, and its size.
    checked(unsafe { libc::getsockname(fd, start, &mut raw.size_bytes) })?;
    Ok(raw)
}

/// The other end of a socket. An error means that it has gone already.
pub fn peer(fd: RawFd) -> Result<Peer, IoError> {
    let mut raw = RawAddress::empty();
    let start = std::ptr::from_mut(&mut raw.storage).cast();
    // SAFETY: room for any address, and its size.
    checked(unsafe { libc::getpeername(fd, start, &mut raw.size_bytes) })?;
    if let Some(address) = raw.to_internet() {
        return Ok(Peer::Tcp(address));
    }
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut size_bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let start = std::ptr::from_mut(&mut credentials).cast();
    // SAFETY: room for the credentials, and its size.
    checked(unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, start, &mut size_bytes)
    })?;
    Ok(Peer::Unix { pid: credentials.pid, uid: credentials.uid, gid: credentials.gid })
}

/// The error of a socket since the last call, which clears it.
pub fn pending_error(fd: RawFd) -> Result<(), IoError> {
    match option(fd, libc::SO_ERROR)? {
        0 => Ok(()),
        code => Err(IoError(code)),
    }
}

/// A peer with the rights of this process.
pub fn own_process() -> Peer {
    // SAFETY: takes nothing, and never fails.
    let uid = unsafe { libc::getuid() };
    // SAFETY: as above.
    let gid = unsafe { libc::getgid() };
    Peer::Unix { pid: 0, uid, gid }
}

pub fn set_option(fd: RawFd, level: i32, name: i32, value: i32) -> Result<(), IoError> {
    let start = std::ptr::from_ref(&value).cast();
    let size_bytes = size_of::<i32>() as libc::socklen_t;
    // SAFETY: an int, as all options that are set here; only read.
    checked(unsafe { libc::setsockopt(fd, level, name, start, size_bytes) }).map(drop)
}

/// Sets the options that accepted TCP connections inherit. They send without delay, show slowness
/// early, bound the memory, and end a connection whose peer's machine is gone.
pub fn set_stream_options(fd: RawFd) -> Result<(), IoError> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, TCP_NOT_SENT_BYTES as i32)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_IDLE_S as i32)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S as i32)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEPALIVE_COUNT as i32)?;
    set_send_buffer(fd, SEND_BUFFER_BYTES)
}

/// Sets the send buffer. Unix sockets do not inherit it: theirs belongs to the side that connected.
pub fn set_send_buffer(fd: RawFd, bytes: u32) -> Result<(), IoError> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)
}

/// Sends the bytes that the kernel takes at once: all of `slices`, or less, or nothing. Also
/// returns the error that then came, which the kernel may not report twice. EAGAIN is no error.
/// `once` is [`send_once`] for sockets and [`write_once`] for non-blocking descriptors.
pub fn send(
    fd: RawFd,
    slices: &[IoSlice<'_>],
    once: impl Fn(RawFd, &[IoSlice<'_>]) -> Result<usize, IoError>,
) -> (usize, Option<IoError>) {
    let mut sent_bytes = 0;
    let mut rest = slices;
    let mut skip_bytes = 0; // Bytes of the first slice of `rest` that were sent already.
    loop {
        while rest.first().is_some_and(|slice| slice.len() == skip_bytes) {
            rest = &rest[1..];
            skip_bytes = 0;
        }
        let Some(first) = rest.first() else { return (sent_bytes, None) };
        let moved = match skip_bytes {
            0 => once(fd, &rest[..rest.len().min(SEND_SLICES_MAX)]),
            _ => once(fd, &[IoSlice::new(&first[skip_bytes..])]),
        };
        // Goes on after a short send, until the kernel says EAGAIN: only then does it promise an
        // event.
        let mut moved_bytes = match moved {
            Ok(0) | Err(IoError(libc::EAGAIN)) => return (sent_bytes, None),
            Ok(moved_bytes) => moved_bytes,
            Err(IoError(libc::EINTR)) => continue,
            Err(error) => return (sent_bytes, Some(error)),
        };
        sent_bytes += moved_bytes;
        while let Some(slice) = rest.first() {
            let left_bytes = slice.len() - skip_bytes;
            if moved_bytes < left_bytes {
                skip_bytes += moved_bytes;
                break;
            }
            moved_bytes -= left_bytes;
            rest = &rest[1..];
            skip_bytes = 0;
        }
    }
}

/// One try of [`send`] on a socket.
pub fn send_once(fd: RawFd, slices: &[IoSlice<'_>]) -> Result<usize, IoError> {
    // SAFETY: plain pointers and integers, for which all zero is a value.
    let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
    // `IoSlice` has the layout of `iovec`; the kernel only reads through these pointers.
    message.msg_iov = slices.as_ptr().cast_mut().cast();
    message.msg_iovlen = slices.len() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the slices are alive during the call, which does not outlive itself.
    let moved = unsafe { libc::sendmsg(fd, &message, flags) };
    usize::try_from(moved).map_err(|_| IoError::last())
}

/// The same as [`send_once`], with descriptors, which go with the first byte. TCP drops them.
pub fn send_once_with(
    fd: RawFd,
    slices: &[IoSlice<'_>],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, IoError> {
    let mut control = DescriptorMessage::of(descriptors)?;
    // SAFETY: plain pointers and integers, for which all zero is a value.
    let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
    message.msg_iov = slices.as_ptr().cast_mut().cast(); // As in `send_once`.
    message.msg_iovlen = slices.len() as _;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = control.size_bytes() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: slices and control message are alive during the call, which does not outlive itself.
    let moved = unsafe { libc::sendmsg(fd, &message, flags) };
    usize::try_from(moved).map_err(|_| IoError::last())
}

/// Descriptors as a control message, in the layout of `CMSG_FIRSTHDR` and `CMSG_DATA`.
#[repr(C)]
struct DescriptorMessage {
    header: libc::cmsghdr,
    descriptors: [RawFd; DESCRIPTORS_SENT_MAX],
    count: usize,
}

/// The most descriptors that one message takes.
pub const DESCRIPTORS_SENT_MAX: usize = 4;

const _: () = {
    // The data follows the header at its alignment, which is right behind it.
    assert!(size_of::<libc::cmsghdr>().is_multiple_of(align_of::<libc::cmsghdr>()));
    assert!(std::mem::offset_of!(DescriptorMessage, descriptors) == size_of::<libc::cmsghdr>());
};

impl DescriptorMessage {
    fn of(descriptors: &[BorrowedFd<'_>]) -> Result<DescriptorMessage, IoError> {
        let count = descriptors.len();
        if count > DESCRIPTORS_SENT_MAX {
            return Err(IoError(libc::EINVAL));
        }
        let mut raw = [-1; DESCRIPTORS_SENT_MAX];
        for (place, descriptor) in raw.iter_mut().zip(descriptors) {
            *place = descriptor.as_raw_fd();
        }
        // SAFETY: plain integers, for which all zero is a value.
        let mut header = unsafe { std::mem::zeroed::<libc::cmsghdr>() };
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        header.cmsg_len = (size_of::<libc::cmsghdr>() + count * size_of::<RawFd>()) as _;
        Ok(DescriptorMessage { header, descriptors: raw, count })
    }

    /// The size with the padding of the last word.
    fn size_bytes(&self) -> usize {
        let data_bytes = self.count * size_of::<RawFd>();
        size_of::<libc::cmsghdr>() + data_bytes.next_multiple_of(align_of::<libc::cmsghdr>())
    }
}

/// One try of [`send`] on a non-blocking descriptor.
pub fn write_once(fd: RawFd, slices: &[IoSlice<'_>]) -> Result<usize, IoError> {
    let count = slices.len() as libc::c_int; // At most `SEND_SLICES_MAX`.
    // SAFETY: `IoSlice` has the layout of `iovec`; the slices are alive during the call.
    let moved = unsafe { libc::writev(fd, slices.as_ptr().cast(), count) };
    usize::try_from(moved).map_err(|_| IoError::last())
}

/// Receives the available bytes from a socket. `Ok(0)`: the end.
pub fn receive(fd: RawFd, into: &mut [u8]) -> Result<usize, IoError> {
    loop {
        // SAFETY: these bytes are ours alone during the call.
        let moved =
            unsafe { libc::recv(fd, into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) };
        match usize::try_from(moved).map_err(|_| IoError::last()) {
            Err(IoError(libc::EINTR)) => {}
            result => return result,
        }
    }
}

/// Reads the available bytes from a non-blocking descriptor. `Ok(0)`: the end.
pub fn read(fd: RawFd, into: &mut [u8]) -> Result<usize, IoError> {
    loop {
        // SAFETY: these bytes are ours alone during the call.
        let moved = unsafe { libc::read(fd, into.as_mut_ptr().cast(), into.len()) };
        match usize::try_from(moved).map_err(|_| IoError::last()) {
            Err(IoError(libc::EINTR)) => {}
            result => return result,
        }
    }
}

/// Makes reads and writes of an open file description blocking or not. Only for one that is not
/// shared.
pub fn set_blocking(fd: RawFd, is_blocking: bool) {
    let flags = if is_blocking { 0 } else { libc::O_NONBLOCK };
    // SAFETY: takes numbers. Access mode and close-on-exec are not among these flags.
    let _ = unsafe { libc::fcntl(fd, libc::F_SETFL, flags) };
}

/// True if the socket is a stream of bytes.
pub fn is_stream(fd: RawFd) -> Result<bool, IoError> {
    Ok(option(fd, libc::SO_TYPE)? == libc::SOCK_STREAM)
}

/// An integer option that every socket has.
fn option(fd: RawFd, name: i32) -> Result<i32, IoError> {
    let mut value: libc::c_int = 0;
    let mut size_bytes = size_of::<libc::c_int>() as libc::socklen_t;
    let start = std::ptr::from_mut(&mut value).cast();
    // SAFETY: room for an int, and its size.
    checked(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, start, &mut size_bytes) })?;
    Ok(value)
}

/// Ends one direction or both. A peer that has gone already is no error.
pub fn shutdown(fd: &impl AsRawFd, how: libc::c_int) {
    // SAFETY: takes numbers.
    let _ = unsafe { libc::shutdown(fd.as_raw_fd(), how) };
}

/// The reaction to a refused accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptRefusal {
    /// No connection waits.
    Nobody,
    /// That one connection is gone. Try the next.
    Gone,
    /// Nothing left for a new connection. Try later.
    Exhausted,
}

impl AcceptRefusal {
    /// Classifies an error. An unexpected one counts as exhaustion: a later try, without a spin.
    pub fn of(error: IoError) -> AcceptRefusal {
        match error.0 {
            libc::EAGAIN => AcceptRefusal::Nobody,
            // accept(2): callers must treat errors of the new connection like EAGAIN.
            libc::EINTR
            | libc::ECONNABORTED
            | libc::EPROTO
            | libc::ENOPROTOOPT
            | libc::EPERM
            | libc::ENETDOWN
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ENONET
            | libc::EOPNOTSUPP => AcceptRefusal::Gone,
            _ => AcceptRefusal::Exhausted,
        }
    }
}

/// True if the error says that descriptors are used up.
pub fn is_out_of_descriptors(error: IoError) -> bool {
    matches!(error.0, libc::EMFILE | libc::ENFILE)
}
