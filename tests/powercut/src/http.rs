//! A client of HTTP on plain sockets: requests with replies, and streams of events.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A server that says nothing for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The reply to a request.
pub struct Reply {
    pub status: u16,
    /// The head, in lower case.
    head: String,
    pub body: Vec<u8>,
}

impl Reply {
    /// The value of a header, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The text behind `before`, up to `end`. Enough for the documents here, which escape nothing.
pub fn between<'a>(text: &'a str, before: &str, end: char) -> Option<&'a str> {
    text[text.find(before)? + before.len()..].split(end).next()
}

/// A number behind `before`.
pub fn number(text: &str, before: &str) -> Option<u64> {
    let rest = &text[text.find(before)? + before.len()..];
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// A client with one connection, which it opens again if it has to.
pub struct Client {
    address: String,
    stream: Option<BufReader<TcpStream>>,
}

fn connect(address: &str) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    Ok(BufReader::new(stream))
}

fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

impl Client {
    pub fn new(address: &str) -> Client {
        Client { address: address.to_owned(), stream: None }
    }

    /// Sends a request. `headers` holds further header lines, each with its line end.
    ///
    /// # Errors
    /// The connection broke. The server may have done what it was asked for.
    pub fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> io::Result<Reply> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(&self.address)?,
        };
        stream.get_mut().write_all(&request(method, path, headers, body))?;
        let head = read_head(&mut stream)?;
        let status = status_of(&head)?;
        let mut body = Vec::new();
        if method != "HEAD" && ![204, 304].contains(&status) {
            if header(&head, "transfer-encoding").is_some() {
                Pieces { stream: &mut stream, left: 0, is_over: false }.read_to_end(&mut body)?;
            } else {
                let length = header(&head, "content-length").and_then(|text| text.parse().ok());
                let length: u64 = length.ok_or(ErrorKind::InvalidData)?;
                let read = stream.by_ref().take(length).read_to_end(&mut body);
                if body.len() as u64 != length {
                    let text = format!("{} of {length} bytes, {read:?}: {head}", body.len());
                    return Err(io::Error::other(text));
                }
            }
        }
        if header(&head, "connection") != Some("close") {
            self.stream = Some(stream);
        }
        Ok(Reply { status, head, body })
    }
}

fn read_head(stream: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head.to_ascii_lowercase().replace("\r\n", "\n"))
}

fn status_of(head: &str) -> io::Result<u16> {
    let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
    status.ok_or_else(|| ErrorKind::InvalidData.into())
}

/// A body in chunked encoding. A body that breaks off is an error.
struct Pieces<S> {
    stream: S,
    left: u64,
    is_over: bool,
}

impl<S: BufRead> Read for Pieces<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.is_over {
            return Ok(0);
        }
        if self.left == 0 {
            let size = self.line()?;
            self.left = u64::from_str_radix(&size, 16).map_err(|_| ErrorKind::InvalidData)?;
            if self.left == 0 {
                self.line()?;
                self.is_over = true;
                return Ok(0);
            }
        }
        let count = bytes.len().min(self.left as usize);
        let count = self.stream.read(&mut bytes[..count])?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        if self.left == 0 {
            self.line()?;
        }
        Ok(count)
    }
}

impl<S: BufRead> Pieces<S> {
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

/// The lines of a stream of events.
pub struct Lines {
    pub status: u16,
    /// The body of a reply that is no stream.
    pub refusal: String,
    lines: Option<io::Lines<BufReader<Pieces<BufReader<TcpStream>>>>>,
}

impl Lines {
    /// Opens a stream. Another status than 200 has no lines.
    ///
    /// # Errors
    /// The connection broke.
    pub fn open(address: &str, path: &str, headers: &str) -> io::Result<Lines> {
        let mut stream = connect(address)?;
        stream.get_mut().write_all(&request("GET", path, headers, b""))?;
        let head = read_head(&mut stream)?;
        let status = status_of(&head)?;
        if status != 200 {
            let length = header(&head, "content-length").and_then(|text| text.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut body)?;
            let refusal = String::from_utf8_lossy(&body).into_owned();
            return Ok(Lines { status, refusal, lines: None });
        }
        let pieces = Pieces { stream, left: 0, is_over: false };
        let lines = Some(BufReader::new(pieces).lines());
        Ok(Lines { status, refusal: String::new(), lines })
    }
}

impl Iterator for Lines {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<io::Result<String>> {
        self.lines.as_mut()?.next()
    }
}
