//! The client of node B: a thread that blocks in a socket, as that of `bench cluster`.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::ID;
use crate::common::Failure;
use crate::common::cluster::{Found, Load, failed, read_log, sample};
use crate::common::machine::now_ns;

/// The text before a payload.
const MARK: &[u8] = b"\ndata: ";
/// The longest wait for a byte. Later, something is broken.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Follows the execution until all chunks have come.
///
/// # Errors
/// [`Failure::Failed`].
pub fn follow(address: SocketAddr, load: &Load) -> Result<Found, Failure> {
    sample(get(address)?, MARK, load.chunks())
}

/// Reads all chunks of an execution that has been written.
///
/// # Errors
/// [`Failure::Failed`].
pub fn catch_up(address: SocketAddr, load: &Load) -> Result<Found, Failure> {
    let begun_ns = now_ns();
    read_log(get(address)?, MARK, load, begun_ns)
}

/// Sends the request, and returns the connection.
fn get(address: SocketAddr) -> Result<TcpStream, Failure> {
    let mut socket = TcpStream::connect(address).map_err(failed)?;
    socket.set_read_timeout(Some(SILENCE_MAX)).map_err(failed)?;
    let head = format!("GET /events/{ID} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).map_err(failed)?;
    Ok(socket)
}
