//! Clients of the formats, as strict as the real ones. Each reads a stream as it comes, and
//! refuses what the real client refuses. The result is a [`SeenStream`], which is the same type for
//! all formats.
//!
//! The rules are those of `ai` 5.0.0, 6.0.0 and 7.0.0 (strict objects, known chunks only), of
//! `@ag-ui/client` 1.0.0 (`verify`), and of `langchain-protocol` 0.0.20. Those of Responses are in
//! `openai` 7, those of runs in `langgraph-sdk` 0.4.14, and those of tasks in `a2a-sdk` 1.3.
//! Additional rules: nothing is left open, and nothing is ended twice.

mod a2a;
mod ag_ui;
mod ai_sdk;
mod graph;
mod langgraph;
mod responses;

use serde_json::Value;

use super::{FrontFormat, Spelling};
use crate::base::Random;
use crate::wire::sse::Decoder;

/// The content of a stream as a client read it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenStream {
    pub steps: Vec<SeenStep>,
    pub end: SeenEnd,
    /// Number of gaps that the client received.
    pub gap_count: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenStep {
    pub text: String,
    pub reasoning: String,
    pub calls: Vec<SeenCall>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenCall {
    pub id: String,
    pub name: String,
    /// The arguments; a text if they are not an object.
    pub arguments: Value,
    /// The output, joined from its pieces.
    pub pieces: String,
    /// The result or the error of the call.
    pub result: Option<Result<String, String>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum SeenEnd {
    /// The stream has no end.
    #[default]
    None,
    Completed,
    Failed(String),
    Cancelled,
    Detached,
}

impl SeenStream {
    /// Removes empty steps, because not every format has them.
    pub fn without_silence(mut self) -> SeenStream {
        self.steps.retain(|step| *step != SeenStep::default());
        self
    }

    pub fn call(&self, id: &str) -> Option<&SeenCall> {
        self.steps.iter().flat_map(|step| &step.calls).find(|call| call.id == id)
    }

    /// Returns the call of this id, which must exist.
    fn known(&mut self, id: &Value) -> Result<&mut SeenCall, String> {
        let calls = self.steps.iter_mut().flat_map(|step| &mut step.calls);
        calls.into_iter().find(|call| *id == *call.id).ok_or(format!("the call {id} is unknown"))
    }
}

/// A client of one format.
pub struct Checker {
    decoder: Decoder,
    client: FrontClient,
}

enum FrontClient {
    AiSdk(ai_sdk::AiSdkClient),
    AgUi(ag_ui::AgUiClient),
    LangGraph(langgraph::LangGraphClient),
    Graph(Box<graph::GraphClient>),
    A2a(Box<a2a::A2aClient>),
    Responses(Box<responses::ResponsesClient>),
}

impl Checker {
    pub fn new(format: FrontFormat) -> Checker {
        let client = match format {
            FrontFormat::AiSdk { sdk } => FrontClient::AiSdk(ai_sdk::AiSdkClient::new(sdk)),
            FrontFormat::AgUi => FrontClient::AgUi(ag_ui::AgUiClient::default()),
            FrontFormat::LangGraph { spelling } => {
                FrontClient::LangGraph(langgraph::LangGraphClient::new(spelling == Spelling::Camel))
            }
            FrontFormat::Graph { .. } => FrontClient::Graph(Box::default()),
            FrontFormat::A2a { .. } => FrontClient::A2a(Box::default()),
            FrontFormat::Responses { .. } => FrontClient::Responses(Box::default()),
        };
        Checker { decoder: Decoder::new(), client }
    }

    /// Reads bytes, cut into pieces of random sizes.
    pub fn read(&mut self, bytes: &[u8], random: &mut Random) -> Result<(), String> {
        if bytes.contains(&b'\r') {
            // One client searches for line feeds only.
            return Err("the stream contains a carriage return".to_owned());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let size = 1 + random.below(rest.len().min(700) as u64) as usize;
            let (mut piece, behind) = rest.split_at(size);
            rest = behind;
            while let Some(message) = self.decoder.read(&mut piece).map_err(|e| e.to_string())? {
                let (name, data) = (message.name().into_owned(), message.data().into_owned());
                let id = self.decoder.last_id().to_string();
                self.message(&name, &id, &data).map_err(|error| format!("{error}: {data}"))?;
            }
        }
        Ok(())
    }

    fn message(&mut self, name: &str, id: &str, data: &str) -> Result<(), String> {
        if let FrontClient::AiSdk(client) = &mut self.client
            && data == "[DONE]"
        {
            return client.done();
        }
        let json: Value = serde_json::from_str(data).map_err(|error| error.to_string())?;
        let may_be_list = matches!(self.client, FrontClient::Graph(_));
        if !(json.is_object() || may_be_list && json.is_array()) {
            return Err("the data is not an object".to_owned());
        }
        match &mut self.client {
            FrontClient::AiSdk(client) => client.chunk(&json),
            FrontClient::AgUi(client) => client.event(&json),
            FrontClient::LangGraph(client) => client.event(name, id, &json),
            FrontClient::Graph(client) => client.event(name, id, &json),
            FrontClient::A2a(client) => client.event(id, &json),
            FrontClient::Responses(client) => client.event(name, &json),
        }
    }

    /// Cuts the connection and opens a new one. The application keeps what it has.
    pub fn reconnect(&mut self) {
        self.decoder = Decoder::new();
        match &mut self.client {
            FrontClient::AiSdk(client) => client.reconnect(),
            FrontClient::AgUi(client) => client.reconnect(),
            // Their state outlives connections.
            FrontClient::LangGraph(_)
            | FrontClient::Graph(_)
            | FrontClient::A2a(_)
            | FrontClient::Responses(_) => {}
        }
    }

    /// Ends the stream.
    pub fn finish(self) -> Result<SeenStream, String> {
        match self.client {
            FrontClient::AiSdk(client) => client.finish(),
            FrontClient::AgUi(client) => client.finish(),
            FrontClient::LangGraph(client) => client.finish(),
            FrontClient::Graph(client) => client.finish(),
            FrontClient::A2a(client) => client.finish(),
            FrontClient::Responses(client) => client.finish(),
        }
    }
}

/// Returns a field that must be a string.
fn text<'a>(json: &'a Value, name: &str) -> Result<&'a str, String> {
    json[name].as_str().ok_or(format!("`{name}` is not a string"))
}

/// Returns a field that must be a string that is not empty.
fn some_text<'a>(json: &'a Value, name: &str) -> Result<&'a str, String> {
    let text = text(json, name)?;
    require(!text.is_empty(), &format!("`{name}` is empty"))?;
    Ok(text)
}

fn require(is_so: bool, otherwise: &str) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(otherwise.to_owned()) }
}

/// Returns arguments as a client has them. Text that is not an object stays text.
pub fn arguments(text: &str) -> Value {
    let value = serde_json::from_str(text).ok().filter(Value::is_object);
    value.unwrap_or_else(|| text.to_owned().into())
}
