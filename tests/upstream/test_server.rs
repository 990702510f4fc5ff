//! A streamdoor server with upstream servers behind it, as its clients see it.

use std::path::PathBuf;

use serde_json::{Value, json};
use streamdoor::client::{Client, ExecuteOptions, FollowOptions, StreamEvent};
use streamdoor::endpoint::DeliveryOptions;
use streamdoor::engine::Timeouts;
use streamdoor::stream::Policy;

use crate::roles::ROLE;
use crate::served::Server;

/// A folder for one test. It is removed when this value is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let name = format!("upstream-{}-{name}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Writes a settings file and returns its path.
    pub fn settings(&self, text: &str) -> String {
        let path = self.0.join("settings.toml");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The settings table of a scripted server.
pub fn scripted(name: &str, script: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let program = json!(format!("'{}'", program.display()));
    format!(
        "[mcp.{name}]\ncommand = {program}\nprefix = ''\ntimeout = '20s'\n\
         args = ['roles::plays_its_role', '--exact', '--nocapture']\n\
         env = {{ {ROLE} = '{script}' }}\n"
    )
}

/// Options of a subscriber that misses nothing, even on a busy machine.
pub fn waited_for() -> FollowOptions {
    let delivery_options =
        DeliveryOptions { policy: Some(Policy::Block), ..DeliveryOptions::default() };
    FollowOptions { delivery_options, ..FollowOptions::default() }
}

/// A streamdoor server with upstream servers behind it.
pub struct TestServer {
    pub server: Server,
    pub client: Client,
    _folder: Folder,
}

impl TestServer {
    pub fn scripted(script: &str) -> TestServer {
        TestServer::with(script, &scripted("up", script), &[])
    }

    pub fn with(name: &str, settings: &str, arguments: &[&str]) -> TestServer {
        TestServer::by(&[], name, settings, arguments)
    }

    /// Starts the server through a launcher.
    pub fn by(launcher: &[String], name: &str, settings: &str, arguments: &[&str]) -> TestServer {
        let folder = Folder::new(name);
        let file = folder.settings(settings);
        let mut all = vec!["--config", &file];
        all.extend_from_slice(arguments);
        let server = Server::start_by(launcher, &all);
        let client = Client::new(&format!("http://{}", server.address())).unwrap();
        TestServer { server, client, _folder: folder }
    }

    /// Calls a tool and follows the call to its end.
    pub fn call(&self, tool: &str, arguments: Value) -> Called {
        self.call_with(tool, arguments, ExecuteOptions::default())
    }

    /// Like [`TestServer::call`], with time limits.
    pub fn call_within(&self, tool: &str, timeouts: Timeouts) -> Called {
        let options = ExecuteOptions { timeouts: Some(timeouts), ..ExecuteOptions::default() };
        self.call_with(tool, json!({}), options)
    }

    fn call_with(&self, tool: &str, arguments: Value, options: ExecuteOptions) -> Called {
        let stream = self.client.call(tool, &arguments, &options, waited_for());
        let stream = stream.unwrap_or_else(|error| panic!("{tool}: {error}"));
        let mut called = Called::default();
        for event in stream {
            called.take(event.unwrap_or_else(|error| panic!("{tool}: {error}")));
        }
        called
    }

    /// The value of a counter of the upstream servers.
    pub fn metric(&self, name: &str) -> u64 {
        self.server.metric(&format!("streamdoor_upstream_{name}_total"))
    }
}

/// The result of a call.
#[derive(Debug, Default)]
pub struct Called {
    pub state: String,
    pub error: String,
    /// The text of all chunks of the kind `output`.
    pub text: String,
    /// All other chunks: kind and payload.
    pub others: Vec<(String, String)>,
    pub messages: Vec<String>,
    pub ends: u32,
    /// Number of gaps. A flood leaves some.
    pub gaps: u32,
}

impl Called {
    pub fn take(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Chunk(chunk) => {
                let text = String::from_utf8(chunk.data.to_vec()).unwrap();
                match chunk.kind.name() {
                    "output" => self.text.push_str(&text),
                    kind => self.others.push((kind.to_owned(), text)),
                }
            }
            StreamEvent::Progress(progress) => self.messages.extend(progress.message),
            StreamEvent::End(ended) => {
                self.ends += 1;
                self.state = ended.end.state.to_string();
                self.error = ended.error.unwrap_or_default();
            }
            StreamEvent::Started(_) => {}
            StreamEvent::Part(part) => panic!("{part:?}"),
            StreamEvent::Gap(_) => self.gaps += 1,
        }
    }

    /// Checks that the call ended once, in this state and with `words` in its error.
    pub fn assert_ended(&self, state: &str, words: &str) {
        assert_eq!((self.ends, &*self.state), (1, state), "{self:?}");
        assert!(self.gaps == 0 || state == "timed_out", "{self:?}");
        assert!(self.error.contains(words), "{self:?}");
    }
}
