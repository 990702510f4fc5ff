//! A server with made-up documents. By default, all texts contain control sequences for the
//! terminal.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

const EVIL: &str = "evil\x1b]0;title\x07\x1b[2J\x1b[?1049l\r\n\u{9b}31m\u{202e}\u{0}end";

pub struct Fake {
    address: std::net::SocketAddr,
    connections: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Fake {
    /// Starts a server whose texts contain control sequences.
    pub fn start() -> Fake {
        Fake::answering(answer)
    }

    /// Starts a server that answers with the document that `answer` returns for a path.
    pub fn answering(answer: fn(&str) -> String) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(Mutex::new(Some(Vec::new())));
        let kept = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                match kept.lock().unwrap().as_mut() {
                    Some(kept) => kept.push(stream.try_clone().unwrap()),
                    None => return, // The listener is dropped, too.
                }
                std::thread::spawn(move || serve(stream, answer));
            }
        });
        Fake { address, connections }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let connections = self.connections.lock().unwrap().take().unwrap();
        connections.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        let _ = TcpStream::connect(self.address); // Wakes the listener, which ends.
    }
}

/// Answers the requests of a connection until it is closed.
fn serve(mut stream: TcpStream, answer: fn(&str) -> String) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    while let Some(Ok(first)) = lines.next() {
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        for line in lines.by_ref() {
            if line.is_ok_and(|line| line.is_empty()) {
                break;
            }
        }
        let body = answer(&path);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        if stream.write_all(format!("{head}{body}").as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(path: &str) -> String {
    let id = "0".repeat(26);
    let subscriber = json!({
        "subscriber": EVIL, "place": "local", "policy": "drop", "limits": {"max_chunks": 10},
        "next_seq": 1, "lag_chunks": u64::MAX, "lag_bytes": u64::MAX, "missed_chunks": u64::MAX,
        "missed_bytes": u64::MAX, "holds_back": true, "lost": false, "age_ms": u64::MAX,
    });
    let document: Value = match path {
        "/metrics" => {
            return format!(
                "{EVIL_METRICS}streamdoor_subscribers{{shard=\"{}\"}} 1e308\n\
                 streamdoor_published_bytes_total{{shard=\"0\"}} NaN\n",
                "\u{202e}\u{1b}[2J"
            );
        }
        "/v1/executions" => json!({"executions": [{
            "execution": id, "tool": EVIL, "state": "running", "chunks": u64::MAX,
            "bytes": u64::MAX, "subscribers": u64::MAX, "age_ms": u64::MAX, "created_at": EVIL,
        }]}),
        "/v1/progress" => json!({"progress": [{
            "token": "0".repeat(39), "execution": id,
            "progress": {"progress": 1.0, "total": 10.0, "message": EVIL, "context": EVIL},
        }]}),
        _ => json!({
            "execution": id, "tool": EVIL, "state": "running", "chunks": 1, "bytes": 1,
            "head_seq": 1, "tail_seq": 1, "held_back": true, "held_back_by": [EVIL], "age_ms": 1,
            "created_at": EVIL,
            "subscribers": [subscriber], "error": EVIL,
            "links": {"self": EVIL, "events": EVIL, "result": EVIL, "output": EVIL},
        }),
    };
    document.to_string()
}

const EVIL_METRICS: &str = "# HELP streamdoor_x \x1b[2J\n";
