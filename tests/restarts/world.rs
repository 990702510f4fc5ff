//! A folder with a journal and a file to read, and the servers that use it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::served::{self, Server};

/// A folder of its own, which is removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let name = format!("streamdoor-restarts-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path); // From an earlier process with this number.
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of the journal.
    pub fn journal(&self) -> String {
        self.0.join("journal").display().to_string()
    }

    /// Writes a file that no two lines of are the same. Returns its content.
    pub fn write_file(&self, name: &str, bytes: usize) -> Vec<u8> {
        let mut content = Vec::with_capacity(bytes + 32);
        let mut number = 0_u64;
        while content.len() < bytes {
            content
                .extend_from_slice(format!("{number:x} {:x}\n", number * 0x9e37_79b9).as_bytes());
            number += 1;
        }
        content.truncate(bytes);
        std::fs::write(self.0.join(name), &content).unwrap();
        content
    }

    /// Starts a server with the journal of this folder.
    pub fn serve(&self, arguments: &[&str]) -> Server {
        let (journal, root) = (self.journal(), self.0.display().to_string());
        let mut all = vec!["--journal", &journal, "--files-root", &root, "--idle", "block"];
        all.extend(arguments);
        Server::start(&all)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A remaining folder does no harm.
    }
}

/// A response.
pub struct Response {
    pub status: u16,
    /// The head, in lower case.
    pub head: String,
    pub body: Vec<u8>,
}

/// Asks on a connection of its own. `headers` holds further header lines, each with its line end.
pub fn get(server: &Server, path: &str, headers: &str) -> Response {
    send(server, &format!("GET {path}"), headers, "")
}

/// Sends a request with a body, like [`get`].
pub fn post(server: &Server, path: &str, headers: &str, body: &str) -> Response {
    send(server, &format!("POST {path}"), headers, body)
}

/// The head of a request that has this body and whose connection is closed behind the response.
pub fn request_head(request: &str, headers: &str, body: &str) -> String {
    let length = match body.is_empty() {
        true => String::new(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}{length}\r\n")
}

/// Sends a request, such as `PUT /v1/stream/a`.
pub fn send(server: &Server, request: &str, headers: &str, body: &str) -> Response {
    let mut stream = server.connect();
    write!(stream, "{}{body}", request_head(request, headers, body)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    response_of(&answer).expect("a whole response")
}

/// Reads a response; `None` if it is cut.
pub fn response_of(answer: &[u8]) -> Option<Response> {
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(answer[..at].to_vec()).unwrap().to_ascii_lowercase();
    let body = answer[at + 4..].to_vec();
    let is_chunked = head.contains("transfer-encoding: chunked");
    let body = if is_chunked { unchunked(&body)? } else { body };
    let status = head["http/1.1 ".len()..][..3].parse().unwrap();
    Some(Response { status, head, body })
}

fn unchunked(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let at = body.windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(&body[..at]).unwrap();
        let size = usize::from_str_radix(size, 16).expect("a size");
        let rest = &body[at + 2..];
        if size == 0 {
            return (rest == b"\r\n").then_some(whole); // Nothing follows the last chunk.
        }
        whole.extend_from_slice(rest.get(..size)?);
        body = rest.get(size + 2..)?;
    }
}

/// Returns the body of a response with the status 200.
pub fn fetch(server: &Server, path: &str) -> Vec<u8> {
    let Response { status, body, head } = get(server, path, "");
    assert_eq!(status, 200, "{path}: {head} {}", String::from_utf8_lossy(&body));
    body
}

/// Kills a server, and waits until it is gone.
pub fn kill(server: Server) {
    server.signal(Signal::KILL);
    drop(server); // Waits for it.
}

/// Starts an execution. Returns its id.
pub fn execute(server: &Server, body: &Value) -> String {
    let created = server.ask("POST", "/v1/executions", &body.to_string());
    let created: Value = serde_json::from_str(&created).unwrap();
    created["execution"].as_str().unwrap().to_owned()
}

/// Runs a tool to its end. Returns the id of the execution.
pub fn run(server: &Server, tool: &str, arguments: Value) -> String {
    let id = execute(server, &json!({"tool": tool, "arguments": arguments}));
    let events = events(server, &id, "");
    assert_eq!(events.last().unwrap()["event"], "end");
    id
}

/// Follows an execution to its end. Returns its events.
pub fn events(server: &Server, id: &str, query: &str) -> Vec<Value> {
    let path = format!("/v1/executions/{id}/events?format=ndjson{query}");
    let body = String::from_utf8(fetch(server, &path)).unwrap();
    body.lines().filter(|line| !line.is_empty()).map(parsed).collect()
}

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// The status of an execution, and the document about it.
pub fn inspect(server: &Server, id: &str) -> (u16, Value) {
    let (status, body) = served::ask(&server.address, "GET", &format!("/v1/executions/{id}"), "");
    (status, parsed(&body))
}
