//! Opens listeners: TCP and Unix sockets, and handles the socket file that a dead server left.
//!
//! A socket file is a name, not a lock. If `bind` finds one, a connection attempt shows whether a
//! server answers. If none answers, the file is moved aside, tried once more (a server may have
//! started in between), and removed. Any other kind of file stays, and is an error. At the end the
//! file is removed if it is still ours.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::base::{Handle, Pool};
use crate::limits::LISTEN_BACKLOG;
use crate::reactor::socket_calls::{self as calls, RawAddress};
use crate::reactor::{IoError, ListenAddress, ListenError, ListenOptions};

/// The longest path of a socket: `sun_path` less its zero byte.
pub const PATH_BYTES_MAX: usize = 107;

/// A listening socket, and its socket file.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    address: ListenAddress,
    file: Option<FileId>,
    is_inherited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl Listener {
    /// Listens. If `is_blocking`, an accept without special flags would wait.
    ///
    /// # Errors
    /// [`ListenError`]; nothing is left behind then.
    pub fn open(
        address: &ListenAddress,
        options: ListenOptions,
        is_blocking: bool,
    ) -> Result<Listener, ListenError> {
        match address {
            ListenAddress::Tcp(internet) => open_tcp(address, *internet, options, is_blocking),
            ListenAddress::Unix(path) => open_unix(address, path, is_blocking),
            ListenAddress::Inherited(fd) => open_inherited(address, *fd, is_blocking),
        }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The address that it listens on, with the port that the kernel chose.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// True if the socket goes on without this listener, and so does its queue of connections.
    pub fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// True if each connection has to be given the send buffer, which it does not inherit.
    pub fn is_unix(&self) -> bool {
        matches!(self.address, ListenAddress::Unix(_))
    }
}

/// Opens a listener and stores it in `slots`; `make` turns it into a slot.
///
/// # Errors
/// [`ListenError`]; nothing is left behind then.
pub fn open_into<T>(
    slots: &mut Pool<T>,
    address: &ListenAddress,
    options: ListenOptions,
    is_blocking: bool,
    make: impl FnOnce(Listener) -> T,
) -> Result<Handle, ListenError> {
    let listeners_max = slots.capacity();
    let too_many = ListenError::TooMany { listeners_max };
    if slots.count() == listeners_max {
        return Err(too_many);
    }
    let slot = make(Listener::open(address, options, is_blocking)?);
    slots.insert(slot).map_err(|_| too_many)
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let (ListenAddress::Unix(path), Some(file)) = (&self.address, self.file)
            && file_id(path) == Some(file)
        {
            let _ = fs::remove_file(path); // If refused, the next start finds it stale.
        }
    }
}

/// Maps the error of `call` by what the caller can do about it.
fn failed(address: &ListenAddress, call: &'static str, error: IoError) -> ListenError {
    let address = address.clone();
    match error.0 {
        libc::EADDRINUSE => ListenError::InUse { address },
        libc::EACCES | libc::EPERM | libc::EROFS => ListenError::Permission { address },
        libc::EADDRNOTAVAIL => ListenError::NotHere { address },
        _ => ListenError::Failed { address, call, error },
    }
}

fn open_tcp(
    address: &ListenAddress,
    internet: SocketAddr,
    options: ListenOptions,
    is_blocking: bool,
) -> Result<Listener, ListenError> {
    let at = |call| move |error| failed(address, call, error);
    let family = if internet.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = calls::socket(family, is_blocking).map_err(at("socket"))?;
    let raw = fd.as_raw_fd();
    let set = |level, name, value| calls::set_option(raw, level, name, value);
    // A port whose last connections still linger may be taken again; one with a listener may not.
    set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).map_err(at("SO_REUSEADDR"))?;
    if options.shares_port {
        set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).map_err(at("SO_REUSEPORT"))?;
    }
    if internet.is_ipv6() {
        set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1).map_err(at("IPV6_V6ONLY"))?;
    }
    calls::set_stream_options(raw).map_err(at("setsockopt"))?;
    calls::bind(raw, &RawAddress::of(&internet)).map_err(at("bind"))?;
    calls::listen(raw, LISTEN_BACKLOG).map_err(at("listen"))?;
    let bound = calls::local_address(raw).map_err(at("getsockname"))?;
    let bound = bound.to_internet().unwrap_or(internet);
    Ok(Listener { fd, address: ListenAddress::Tcp(bound), file: None, is_inherited: false })
}

/// Duplicates a socket that the process was started with. Its file belongs to its maker.
fn open_inherited(
    address: &ListenAddress,
    fd: RawFd,
    is_blocking: bool,
) -> Result<Listener, ListenError> {
    let at = |call| move |error| failed(address, call, error);
    let fd = calls::duplicate_listener(fd, is_blocking).map_err(at("dup"))?;
    let resolved = address.resolve().map_err(at("getsockname"))?;
    if matches!(resolved, ListenAddress::Tcp(_)) {
        calls::set_stream_options(fd.as_raw_fd()).map_err(at("setsockopt"))?;
    }
    Ok(Listener { fd, address: resolved, file: None, is_inherited: true })
}

fn open_unix(
    address: &ListenAddress,
    path: &Path,
    is_blocking: bool,
) -> Result<Listener, ListenError> {
    let bytes = path.as_os_str().as_bytes();
    // A leading zero byte would be the abstract name space, which has no permissions.
    if bytes.is_empty() || bytes.len() > PATH_BYTES_MAX || bytes.contains(&0) {
        return Err(ListenError::BadPath { path: path.to_owned(), bytes_max: PATH_BYTES_MAX });
    }
    let at = |call| move |error| failed(address, call, error);
    let fd = calls::socket(libc::AF_UNIX, is_blocking).map_err(at("socket"))?;
    let raw_address = RawAddress::of_path(bytes);
    match calls::bind(fd.as_raw_fd(), &raw_address) {
        Err(IoError(libc::EADDRINUSE)) => {
            remove_stale(address, path)?;
            calls::bind(fd.as_raw_fd(), &raw_address).map_err(at("bind"))?;
        }
        result => result.map_err(at("bind"))?,
    }
    let file = file_id(path);
    let listener = Listener { fd, address: address.clone(), file, is_inherited: false };
    let mode = fs::Permissions::from_mode(0o600);
    // This comes before `listen`, so before the first connection is possible.
    fs::set_permissions(path, mode).map_err(|error| failed(address, "chmod", os_error(&error)))?;
    calls::listen(listener.fd(), LISTEN_BACKLOG).map_err(at("listen"))?;
    // Another server that started at the same moment took the file for a stale one.
    if file.is_none() || file_id(path) != file {
        return Err(ListenError::InUse { address: address.clone() });
    }
    Ok(listener)
}

/// Removes the socket file at `path` if no server answers.
fn remove_stale(address: &ListenAddress, path: &Path) -> Result<(), ListenError> {
    let in_use = || ListenError::InUse { address: address.clone() };
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(address, "stat", os_error(&error))),
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    if is_answered(path) {
        return Err(in_use());
    }
    let aside = name_aside(path);
    fs::rename(path, &aside).map_err(|error| failed(address, "rename", os_error(&error)))?;
    if is_answered(&aside) {
        // A server started in between: restore the name, unless it is taken again.
        let _ = fs::hard_link(&aside, path);
        let _ = fs::remove_file(&aside);
        return Err(in_use());
    }
    fs::remove_file(&aside).map_err(|error| failed(address, "unlink", os_error(&error)))
}

/// True if a server listens there. In doubt true: only a file that is known to be stale is removed.
fn is_answered(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > PATH_BYTES_MAX {
        return false; // Only a name aside is that long, and its own name was tried before.
    }
    let Ok(fd) = calls::socket(libc::AF_UNIX, false) else { return true };
    let answer = calls::connect(fd.as_raw_fd(), &RawAddress::of_path(bytes));
    answer != Err(IoError(libc::ECONNREFUSED))
}

fn name_aside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{:x}", std::process::id()));
    PathBuf::from(name)
}

fn file_id(path: &Path) -> Option<FileId> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some(FileId { device: metadata.dev(), inode: metadata.ino() })
}

fn os_error(error: &std::io::Error) -> IoError {
    IoError(error.raw_os_error().unwrap_or(libc::EIO))
}
