//! A client process that is controlled by the test. It reads commands and writes its events, each
//! as a line of JSON.
//!
//! The commands `{"do": "connect" | "list" | "close"}` are answered by `{"done": …}`. The others
//! are `{"do": "call", "id", "tool", "given"}` and `{"do": "cancel", "id"}`. Their events are lines
//! `{"call": id, …}`: with `progress` for each notification, and with `text` or `error` at the end.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

/// Time limit for one event: a client that hangs must not hang the test.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Driver {
    name: String,
    child: Child,
    orders: ChildStdin,
    lines: Receiver<Value>,
    /// Events that were received and not yet consumed.
    heard: Vec<Value>,
    next_call: u64,
}

/// The result of a call.
#[derive(Debug)]
pub struct Called {
    pub text: String,
    pub failed: bool,
    pub meta: Value,
    /// Progress notifications that came before the result, in order.
    pub progress: Vec<Progress>,
}

#[derive(Debug)]
pub struct Progress {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: String,
}

impl Driver {
    pub fn start(name: &str, command: &mut Command) -> Driver {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let orders = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let heard = serde_json::from_str(&line).unwrap_or_else(|_| json!({"said": line}));
                if sender.send(heard).is_err() {
                    return; // The test is over.
                }
            }
        });
        let (heard, next_call) = (Vec::new(), 0);
        Driver { name: name.to_owned(), child, orders, lines, heard, next_call }
    }

    fn order(&mut self, order: &Value) {
        writeln!(self.orders, "{order}").unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Removes and returns the first wanted line. Waits for it if necessary.
    fn wait(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.heard.iter().position(&is_wanted) {
            return self.heard.remove(at);
        }
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                panic!("{}: no {what} among {:#?}", self.name, self.heard)
            };
            if is_wanted(&line) {
                return line;
            }
            self.heard.push(line);
        }
    }

    /// Sends a command that has one reply, and returns the reply.
    fn have(&mut self, what: &str) -> Value {
        self.order(&json!({ "do": what }));
        let done = self.wait(what, |line| line["done"] == what);
        assert_eq!(done.get("error"), None, "{}: {what}", self.name);
        done
    }

    /// Connects and returns the protocol version that was negotiated.
    pub fn connect(&mut self) -> String {
        self.have("connect")["version"].as_str().unwrap_or_default().to_owned()
    }

    pub fn tools(&mut self) -> Vec<String> {
        let done = self.have("list");
        let names = done["tools"].as_array().expect("a list of tools");
        names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    pub fn close(&mut self) {
        self.have("close");
    }

    /// Begins a call and returns its number.
    pub fn begin(&mut self, tool: &str, given: Value) -> u64 {
        let id = self.next_call;
        self.next_call += 1;
        self.order(&json!({"do": "call", "id": id, "tool": tool, "given": given}));
        id
    }

    pub fn cancel(&mut self, call: u64) {
        self.order(&json!({"do": "cancel", "id": call}));
    }

    /// Waits for a notification of this call whose message contains `text`.
    pub fn hear(&mut self, call: u64, text: &str) {
        self.wait(text, |line| {
            let message = line["message"].as_str().unwrap_or_default();
            line["call"] == call && message.contains(text)
        });
    }

    /// Waits until a call has failed on the client's side, and drops its other events.
    pub fn error(&mut self, call: u64) -> String {
        let line = self.wait("error", |line| line["call"] == call && !line["error"].is_null());
        self.heard.retain(|line| line["call"] != call);
        line["error"].as_str().unwrap().to_owned()
    }

    /// Waits for the reply to a call.
    pub fn finish(&mut self, call: u64) -> Called {
        let is_last = |line: &Value| !line["text"].is_null() || !line["error"].is_null();
        let last = self.wait("answer", |line| line["call"] == call && is_last(line));
        assert!(last["error"].is_null(), "{}: {last}", self.name);
        // Events of this call that come later stay in `heard`, where `assert_quiet` finds them.
        let (mine, others) =
            std::mem::take(&mut self.heard).into_iter().partition(|line| line["call"] == call);
        self.heard = others;
        let progress = |line: &Value| Progress {
            progress: line["progress"].as_f64().unwrap_or(f64::NAN),
            total: line["total"].as_f64(),
            message: line["message"].as_str().unwrap_or_default().to_owned(),
        };
        let mine: Vec<Value> = mine;
        Called {
            text: last["text"].as_str().unwrap().to_owned(),
            failed: last["failed"] == true,
            meta: last["meta"].clone(),
            progress: mine.iter().map(progress).collect(),
        }
    }

    pub fn call(&mut self, tool: &str, given: Value) -> Called {
        let call = self.begin(tool, given);
        self.finish(call)
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Checks that no unconsumed event is left: no notification behind its reply, and no trouble of
    /// the client.
    ///
    /// A hasty client has trouble of its own: it drops notifications that it reads together with
    /// their reply. On a busy machine these are all that came within one turn of its loop.
    pub fn assert_quiet(&mut self, is_hasty: bool) {
        self.heard.extend(self.lines.try_iter());
        let is_its_own = |heard: &Value| {
            let trouble = heard["trouble"].as_str().unwrap_or_default();
            is_hasty && trouble.contains("progress notification for an unknown token")
        };
        self.heard.retain(|heard| !is_its_own(heard));
        assert!(self.heard.is_empty(), "{}: {:#?}", self.name, self.heard);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
