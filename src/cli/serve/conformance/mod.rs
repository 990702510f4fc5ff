//! The fixtures that the public conformance suite of MCP expects on a server: tools, prompts and
//! resources. They exist only with `--conformance`. `tools/conformance` runs the suite.
//!
//! Names, texts and schemas are those of the suite. No other part of the server depends on them.
//! Tools that ask the client are in `asking.rs`, tasks in `tasks.rs`, and all other tools in
//! `plain.rs`. Prompts and resources are in `catalog.rs`.

mod asking;
mod catalog;
mod plain;
mod tasks;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use streamdoor::server::{ServerHandle, ServerShard};
use streamdoor::tool::{Output, SpecError, ToolError, ToolSpec, Tools};

/// A PNG of one red pixel, in base64.
const IMAGE: &str = "\
    iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5E\
    rkJggg==";
/// The bytes of that PNG.
const IMAGE_BYTES: &[u8] = b"\
    \x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89\
    \0\0\0\rIDATx\xdac\xfc\xcf\xc0\xf0\x1f\0\x05\x05\x02\0_\xc8\xf1\xd2\
    \0\0\0\0IEND\xaeB`\x82";
/// A WAV without samples, in base64.
const SOUND: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";
/// The tool that is added and removed.
const CHANGING_TOOL: &str = "test_changing_tool";

/// The fixtures on all shards. A change applies to every shard.
#[derive(Clone, Default)]
pub struct Fixtures(Arc<Mutex<Places>>);

#[derive(Default)]
struct Places {
    shards: Vec<ServerHandle>,
    /// True while the changing prompt is in the catalog.
    have_prompts_changed: bool,
}

impl Fixtures {
    /// Adds all fixtures to one shard.
    pub fn add_to(&self, shard: &mut ServerShard) {
        self.places().shards.push(shard.handle());
        shard.set_catalog(catalog::catalog(false));
        let tools = shard.tools_mut();
        plain::add(tools)
            .and_then(|()| asking::add(tools))
            .and_then(|()| tasks::add(tools))
            .and_then(|()| self.add_triggers(tools))
            .expect("the fixtures are described right");
    }

    fn add_triggers(&self, tools: &mut Tools) -> Result<(), SpecError> {
        let fixtures = self.clone();
        let text = "Adds a tool to the list, or removes it.";
        tools.insert_closure(ToolSpec::new("test_trigger_tool_change", text), move |_, out| {
            fixtures.change(change_tools)?;
            say(out, "The list of tools has changed.")
        })?;
        let fixtures = self.clone();
        let text = "Adds a prompt to the list, or removes it.";
        tools.insert_closure(ToolSpec::new("test_trigger_prompt_change", text), move |_, out| {
            let has_changed = {
                let mut places = fixtures.places();
                places.have_prompts_changed = !places.have_prompts_changed;
                places.have_prompts_changed
            };
            fixtures.change(move |shard| shard.set_catalog(catalog::catalog(has_changed)))?;
            say(out, "The list of prompts has changed.")
        })
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `change` on every shard.
    fn change(
        &self,
        change: impl Fn(&mut ServerShard) + Copy + Send + 'static,
    ) -> Result<(), ToolError> {
        let shards = self.places().shards.clone();
        for shard in shards {
            shard.call(change).map_err(|error| format!("a shard: {error:?}"))?;
        }
        Ok(())
    }
}

fn change_tools(shard: &mut ServerShard) {
    let tools = shard.tools_mut();
    if !tools.remove(CHANGING_TOOL) {
        tools
            .insert_closure(ToolSpec::new(CHANGING_TOOL, "Exists only at times."), |_, _| Ok(()))
            .expect("it is described right");
    }
}

/// Returns a tool with these arguments, all of them required.
fn taking(name: &str, description: &str, properties: Value) -> ToolSpec {
    let names: Vec<&String> =
        properties.as_object().into_iter().flat_map(|all| all.keys()).collect();
    let arguments = json!({"type": "object", "properties": properties, "required": names});
    ToolSpec { arguments, ..ToolSpec::new(name, description) }
}

/// Publishes text, which is the whole result.
fn say(out: &mut Output, text: &str) -> Result<(), ToolError> {
    Ok(out.send(text.as_bytes())?)
}
