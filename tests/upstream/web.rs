//! An MCP server over HTTP whose tools behave as their names say. It is of the handshake era, with
//! sessions that end, streams that break off, and invalid responses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

/// The key that every request must have.
pub const KEY: &str = "sesame";

/// The state of the server.
#[derive(Debug, Default)]
pub struct ServerState {
    /// Number of sessions that were opened.
    pub sessions: u64,
    /// The id of the open session.
    session: Option<String>,
    /// Ids of the requests that were cancelled.
    pub cancelled: Vec<u64>,
    /// Number of sessions that were deleted by the client.
    pub left: u64,
    /// Number of streams that the client closed before their end.
    pub closed: u64,
    /// The request whose stream was broken off and will be resumed.
    broken: Option<Value>,
    /// True if the server has one more tool.
    has_more: bool,
}

/// A server. It runs until the test process ends.
pub struct Web {
    heard: Arc<Mutex<ServerState>>,
    pub port: u16,
}

struct Request {
    method: String,
    headers: Vec<(String, String)>,
    body: Value,
}

impl Request {
    fn read(stream: &TcpStream) -> Option<Request> {
        let mut reader = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let method = lines[0].split(' ').next().unwrap().to_owned();
        let headers: Vec<(String, String)> = lines[1..]
            .iter()
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let request = Request { method, headers, body: Value::Null };
        let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        Some(Request { body: serde_json::from_slice(&body).unwrap_or_default(), ..request })
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

impl Web {
    pub fn start() -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard: Arc<Mutex<ServerState>> = Arc::default();
        let for_all = Arc::clone(&heard);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, heard) = (stream.unwrap(), Arc::clone(&for_all));
                std::thread::spawn(move || {
                    if let Some(request) = Request::read(&stream) {
                        Answering { stream, heard }.answer(&request);
                    }
                });
            }
        });
        Web { heard, port }
    }

    pub fn heard(&self) -> MutexGuard<'_, ServerState> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the state satisfies `what`.
    pub fn wait(&self, what: impl Fn(&ServerState) -> bool) {
        while !what(&self.heard()) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

struct Answering {
    stream: TcpStream,
    heard: Arc<Mutex<ServerState>>,
}

impl Answering {
    fn heard(&self) -> MutexGuard<'_, ServerState> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn head(&mut self, status: &str, headers: &str) -> bool {
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n");
        self.stream.write_all(head.as_bytes()).is_ok()
    }

    fn whole(&mut self, status: &str, media_type: &str, headers: &str, body: &str) {
        let length = body.len();
        let more = format!("Content-Type: {media_type}\r\nContent-Length: {length}\r\n{headers}");
        self.head(status, &more);
        let _ = self.stream.write_all(body.as_bytes());
    }

    fn json(&mut self, status: &str, headers: &str, body: &Value) {
        self.whole(status, "application/json; charset=utf-8", headers, &body.to_string());
    }

    fn result(&mut self, id: &Value, result: Value) {
        self.json("200 OK", "", &json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    fn begin_stream(&mut self) {
        self.head("200 OK", "Content-Type: text/event-stream\r\n");
    }

    fn event(&mut self, id: Option<&str>, message: &Value) -> bool {
        let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
        let event = format!("{id}data: {message}\n\n");
        self.stream.write_all(event.as_bytes()).is_ok()
    }

    fn answer(&mut self, request: &Request) {
        if request.header("authorization") != Some(&format!("Bearer {KEY}")) {
            return self.whole("401 Unauthorized", "text/html", "", "<h1>Who are you?</h1>");
        }
        let method = request.body["method"].as_str().unwrap_or_default();
        let session = self.heard().session.clone();
        let is_in = session.is_some() && request.header("mcp-session-id") == session.as_deref();
        match (&*request.method, method) {
            ("POST", "server/discover") => {
                let error = json!({"code": -32_000, "message": "no session"});
                self.json("400 Bad Request", "", &json!({"jsonrpc": "2.0", "error": error}));
            }
            ("POST", "initialize") => self.initialize(request),
            ("POST" | "GET" | "DELETE", _) if !is_in => {
                self.whole("404 Not Found", "text/plain", "", "no such session");
            }
            ("POST", "notifications/cancelled") => {
                let id = request.body["params"]["requestId"].as_u64().unwrap();
                self.heard().cancelled.push(id);
                self.head("202 Accepted", "Content-Length: 0\r\n");
            }
            ("POST", "tools/list") => self.list(&request.body["id"]),
            ("POST", "tools/call") => self.call(request),
            ("POST", _) => drop(self.head("202 Accepted", "Content-Length: 0\r\n")),
            ("GET", _) => match request.header("last-event-id") {
                Some(last) => self.go_on(last),
                None => self.tell_news(),
            },
            ("DELETE", _) => {
                self.heard().left += 1;
                self.head("200 OK", "Content-Length: 0\r\n");
            }
            other => panic!("{other:?}"),
        }
    }

    fn initialize(&mut self, request: &Request) {
        let mut heard = self.heard();
        heard.sessions += 1;
        let session = format!("session-{}", heard.sessions);
        heard.session = Some(session.clone());
        drop(heard);
        let result = json!({"protocolVersion": "2025-11-25", "serverInfo": {"name": "web",
            "version": "1"}, "capabilities": {"tools": {"listChanged": true}}});
        let message = json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result});
        self.json("200 OK", &format!("Mcp-Session-Id: {session}\r\n"), &message);
    }

    fn list(&mut self, id: &Value) {
        let mut names =
            vec!["echo", "expire", "resume", "cut", "page", "nothing", "slow", "flood", "change"];
        if self.heard().has_more {
            names.push("added");
        }
        let schema = json!({"type": "object"});
        let tool = |name: &&str| json!({"name": name, "inputSchema": schema});
        let tools: Vec<Value> = names.iter().map(tool).collect();
        self.result(id, json!({ "tools": tools }));
    }

    fn call(&mut self, request: &Request) {
        assert_eq!(request.header("mcp-protocol-version"), Some("2025-11-25"));
        let (id, params) = (&request.body["id"], &request.body["params"]);
        let token = &params["_meta"]["progressToken"];
        let text = |text: &str| json!({"content": [{"type": "text", "text": text}]});
        let partial = |seq: u64, said: &str| {
            let content = json!([{"type": "text", "text": said}]);
            let params = json!({"partialResultToken": token, "seq": seq, "content": content});
            json!({"jsonrpc": "2.0", "method": "notifications/tools/partial_result",
                "params": params})
        };
        match params["name"].as_str().unwrap() {
            "echo" | "added" => self.result(id, text("here")),
            "expire" => {
                self.heard().session = None;
                self.result(id, text("the session is over"));
            }
            "resume" => {
                self.begin_stream();
                let _ = self.stream.write_all(b"id: primed\nretry: 10\ndata:\n\n");
                self.event(Some("one"), &partial(0, "one "));
                self.heard().broken = Some(request.body.clone());
            }
            "cut" => {
                self.begin_stream();
                self.event(None, &partial(0, "half of a resu"));
            }
            "page" => self.whole("502 Bad Gateway", "text/html", "", "<h1>Bad gateway</h1>"),
            "nothing" => drop(self.head("202 Accepted", "Content-Length: 0\r\n")),
            "slow" | "flood" => {
                let is_flood = params["name"] == "flood";
                self.begin_stream();
                let said = if is_flood { "flood ".repeat(1_000) } else { "x".to_owned() };
                let mut seq = 0;
                while self.event(None, &partial(seq, &said)) {
                    seq += 1;
                    if !is_flood {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
                self.heard().closed += 1;
            }
            "change" => {
                self.heard().has_more = true;
                self.result(id, text("there is one more"));
            }
            other => panic!("{other} is none of its tools"),
        }
    }

    /// Sends the rest of the stream that was broken off.
    fn go_on(&mut self, last: &str) {
        assert_eq!(last, "one");
        let broken = self.heard().broken.take().expect("something was");
        let result = json!({"content": [{"type": "text", "text": "one two"}]});
        self.begin_stream();
        self.event(Some("two"), &json!({"jsonrpc": "2.0", "id": broken["id"], "result": result}));
    }

    /// Sends the notification for a changed tool list, once the list has changed.
    fn tell_news(&mut self) {
        self.begin_stream();
        while !self.heard().has_more {
            std::thread::sleep(Duration::from_millis(2));
        }
        let method = "notifications/tools/list_changed";
        self.event(None, &json!({"jsonrpc": "2.0", "method": method}));
        while self.stream.write_all(b": \n\n").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
