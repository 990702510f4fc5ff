//! The data that a server declares about itself: its name and its capabilities.

use serde_json::{Map, Value, json};

use super::client::TASKS_EXTENSION;
use super::{Era, Version};
use crate::wire::object::write_object;

/// The data that a server declares about itself. It is the same for all clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// The program's name.
    pub name: String,
    /// The version.
    pub version: String,
    /// The name for display.
    pub title: Option<String>,
    /// The instructions that a model should read before it uses the tools.
    pub instructions: Option<String>,
    /// True if the server has prompts.
    pub has_prompts: bool,
    /// True if clients are notified when the list of tools changes.
    pub tells_tools: bool,
    /// True if clients are notified when the list of prompts changes.
    pub tells_prompts: bool,
    /// True if clients are notified when the list of resources changes.
    pub tells_resources: bool,
    /// True if a client may list its tasks, because clients are identified (A46).
    pub lists_tasks: bool,
}

impl Default for ServerInfo {
    fn default() -> ServerInfo {
        ServerInfo {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            title: None,
            instructions: None,
            has_prompts: false,
            tells_tools: true,
            tells_prompts: true,
            tells_resources: false,
            lists_tasks: false,
        }
    }
}

impl ServerInfo {
    /// The `Implementation` of this version.
    pub fn implementation(&self, version: Version) -> Value {
        let mut document = json!({ "name": self.name, "version": self.version });
        if let Some(title) = self.title.as_ref().filter(|_| version >= Version::V2025_06_18) {
            document["title"] = title.as_str().into();
        }
        document
    }

    /// Appends the `Implementation` of this version.
    pub(super) fn write(&self, out: &mut Vec<u8>, version: Version) {
        write_object(out, |document| {
            document.text("name", &self.name);
            document.text("version", &self.version);
            let title = self.title.as_deref();
            document.text_if("title", title.filter(|_| version >= Version::V2025_06_18));
        });
    }

    /// The `ServerCapabilities` of this version.
    pub fn capabilities(&self, version: Version) -> Value {
        let mut document = Map::new();
        let mut add = |name: &str, value: Value| document.insert(name.to_owned(), value);
        let tells = |is_told: bool| if is_told { json!({"listChanged": true}) } else { json!({}) };
        if version >= Version::V2025_03_26 {
            add("completions", json!({}));
        }
        add("logging", json!({}));
        if self.has_prompts {
            add("prompts", tells(self.tells_prompts));
        }
        let mut resources = tells(self.tells_resources);
        resources["subscribe"] = true.into();
        add("resources", resources);
        add("tools", tells(self.tells_tools));
        match version.era() {
            Era::Stateless => {
                add("extensions", json!({ TASKS_EXTENSION: {} }));
            }
            Era::Handshake if version == Version::V2025_11_25 => {
                let mut tasks = json!({ "cancel": {}, "requests": { "tools": { "call": {} } } });
                if self.lists_tasks {
                    tasks["list"] = json!({});
                }
                add("tasks", tasks);
            }
            Era::Handshake => {}
        }
        document.into()
    }
}
