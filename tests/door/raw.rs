//! A door client without the library: the connection, the grant and the descriptors. Also gives
//! access to shared memory, word by word, with whatever rights the kernel grants.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::Value;

/// A grant: the open connection, the first document, and the descriptors (ring, control page,
/// page).
pub struct Grant {
    pub line: UnixStream,
    pub document: Value,
    pub descriptors: Vec<OwnedFd>,
}

/// Requests a door. `token` authenticates the client to a server with principals.
///
/// # Errors Returns the reply if it is a refusal, else what was received before the connection
/// closed.
pub fn ask(path: &Path, target: &str, body: &str, token: Option<&str>) -> Result<Grant, String> {
    let mut stream = UnixStream::connect(path).map_err(|error| error.to_string())?;
    let length = body.len();
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    write!(
        stream,
        "POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{token}\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .map_err(|error| error.to_string())?;
    let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
    loop {
        let count = receive(&stream, &mut bytes, &mut descriptors).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes);
        let grant = text.lines().find(|line| line.starts_with("{\"door\":1"));
        if let (Some(grant), 3) = (grant, descriptors.len())
            && text.ends_with("\r\n")
        {
            let document = serde_json::from_str(grant).unwrap();
            return Ok(Grant { line: stream, document, descriptors });
        }
        let is_refused = !text.starts_with("HTTP/1.1 200") && text.contains("\r\n\r\n{");
        if is_refused || count == 0 {
            return Err(text.into_owned());
        }
    }
}

/// Receives bytes and descriptors.
pub fn receive(
    stream: &UnixStream,
    bytes: &mut Vec<u8>,
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut piece = [0; 4_096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut piece)];
    let count = recvmsg(stream, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(all) = message {
            descriptors.extend(all);
        }
    }
    bytes.extend_from_slice(&piece[..count]);
    Ok(count)
}

/// A shared mapping of a whole file.
pub struct Memory {
    map: MmapRaw,
}

impl Memory {
    pub fn writable(file: impl AsFd) -> io::Result<Memory> {
        let map = MmapOptions::new().map_raw(file.as_fd().as_raw_fd())?;
        Ok(Memory { map })
    }

    pub fn readable(file: impl AsFd) -> io::Result<Memory> {
        let map = MmapOptions::new().map_raw_read_only(file.as_fd().as_raw_fd())?;
        Ok(Memory { map })
    }

    pub fn word_count(&self) -> usize {
        self.map.len() / 8
    }

    fn word(&self, number: usize) -> *mut u64 {
        assert!(number < self.word_count());
        // SAFETY: the word is inside of the mapping, as just checked.
        unsafe { self.map.as_mut_ptr().cast::<u64>().add(number) }
    }

    pub fn load(&self, number: usize) -> u64 {
        // SAFETY: the word is mapped for reading and aligned; others write whole words.
        unsafe { self.word(number).read_volatile() }
    }

    /// Stores a word. The file must be mapped for writing.
    pub fn store(&self, number: usize, value: u64) {
        // SAFETY: as in `load`. Others may see the word at any moment, which is intended.
        unsafe { self.word(number).write_volatile(value) }
    }

    /// Returns a copy of the whole memory.
    pub fn bytes(&self) -> Vec<u8> {
        (0..self.word_count()).flat_map(|number| self.load(number).to_ne_bytes()).collect()
    }

    /// Removes the pages from the file, as far as the kernel permits it.
    pub fn remove_pages(&self) -> io::Result<()> {
        // SAFETY: a removed page reads as zero, which is a valid word.
        unsafe { self.map.unchecked_advise(UncheckedAdvice::Remove) }
    }

    /// Tries to make a read-only mapping writable.
    pub fn make_writable(file: impl AsFd) -> io::Result<()> {
        // SAFETY: nothing is read through the mapping.
        let map = unsafe { MmapOptions::new().map(file.as_fd().as_raw_fd())? };
        map.make_mut().map(drop)
    }
}
