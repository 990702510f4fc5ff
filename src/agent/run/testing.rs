//! Support for tests: models that say given things over a real wire, and a driver. The driver
//! checks every action and every part.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::agent::model::{Endpoint, Wire};
use crate::agent::order::Order;
use crate::agent::{
    Config, Fold, Hooks, Message, NoHooks, RunAction, RunEvent, RunMachine, RunPart, RunState,
    Strategy, ToolDescription,
};
use crate::base::{Instant, Random};

pub const WALL_US: u64 = 1_700_000_000_000_000;

/// One scripted turn of a model.
#[derive(Clone, Debug, Default)]
pub struct ScriptedTurn {
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<ScriptedCall>,
    /// The finish reason, as Chat Completions spells it.
    pub finish: &'static str,
    pub tokens: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
pub struct ScriptedCall {
    pub id: Option<String>,
    pub name: String,
    pub arguments: String,
}

impl ScriptedTurn {
    pub fn text(text: &str) -> ScriptedTurn {
        ScriptedTurn { text: text.to_owned(), finish: "stop", ..ScriptedTurn::default() }
    }

    pub fn calls(calls: &[(&str, &str, &str)]) -> ScriptedTurn {
        let calls = calls.iter().map(|&(id, name, arguments)| ScriptedCall {
            id: Some(id.to_owned()),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        });
        ScriptedTurn { calls: calls.collect(), finish: "tool_calls", ..ScriptedTurn::default() }
    }

    pub fn finish(mut self, finish: &'static str) -> ScriptedTurn {
        self.finish = finish;
        self
    }

    pub fn tokens(mut self, input: u64, output: u64) -> ScriptedTurn {
        self.tokens = Some((input, output));
        self
    }

    fn usage(&self) -> Option<Value> {
        let (input, output) = self.tokens?;
        Some(json!({"prompt_tokens": input, "completion_tokens": output}))
    }

    /// Returns the turn as a stream, in deltas of random length.
    pub fn stream(&self, random: &mut Random) -> Vec<u8> {
        let mut out = Vec::new();
        let mut delta = |delta: Value| {
            let frame = json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
            out.extend(format!("data: {frame}\n\n").bytes());
        };
        delta(json!({"role": "assistant", "content": ""}));
        for piece in pieces(&self.reasoning, random) {
            delta(json!({"reasoning_content": piece}));
        }
        for piece in pieces(&self.text, random) {
            delta(json!({"content": piece}));
        }
        for (index, call) in self.calls.iter().enumerate() {
            let function = json!({"name": call.name, "arguments": ""});
            let first = json!({"index": index, "id": call.id, "type": "function",
                "function": function});
            delta(json!({"tool_calls": [first]}));
            for piece in pieces(&call.arguments, random) {
                let next = json!({"index": index, "function": {"arguments": piece}});
                delta(json!({"tool_calls": [next]}));
            }
        }
        let last = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]});
        out.extend(format!("data: {last}\n\n").bytes());
        if let Some(usage) = self.usage() {
            let frame = json!({"choices": [], "usage": usage});
            out.extend(format!("data: {frame}\n\n").bytes());
        }
        out.extend(b"data: [DONE]\n\n");
        out
    }

    /// Returns the turn as one document, from a provider that does not stream.
    pub fn plain(&self) -> Vec<u8> {
        let calls = self.calls.iter().enumerate().map(|(index, call)| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"index": index, "id": call.id, "type": "function", "function": function})
        });
        let mut message = json!({"role": "assistant", "content": self.text});
        if !self.calls.is_empty() {
            message["tool_calls"] = calls.collect();
        }
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        let choice = json!({"index": 0, "message": message, "finish_reason": self.finish});
        let mut document = json!({"object": "chat.completion", "choices": [choice]});
        if let Some(usage) = self.usage() {
            document["usage"] = usage;
        }
        document.to_string().into_bytes()
    }
}

/// Cuts `text` into pieces at random characters.
fn pieces<'a>(text: &'a str, random: &mut Random) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let length = random.between(1, 1 + rest.len() as u64 / 2) as usize;
        let at = rest.ceil_char_boundary(length);
        let (piece, behind) = rest.split_at(at);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

pub fn config() -> Config {
    let base_url = "http://127.0.0.1:9/v1".parse().unwrap();
    let (wire, model) = (Wire::ChatCompletions, "a-model".to_owned());
    let mut config = Config::new("run-1", Endpoint { wire, base_url, model, key: None });
    config.tools = ["read", "list", "wait.long"].map(tool).to_vec();
    config
}

pub fn tool(name: &str) -> ToolDescription {
    let description = format!("What {name} does.");
    ToolDescription { name: name.to_owned(), description, schema: json!({"type": "object"}) }
}

/// Drives a run, checks its output and keeps it.
pub struct Driver {
    pub run: RunMachine,
    pub now: Instant,
    pub parts: Vec<RunPart>,
    pub actions: Vec<RunAction>,
    /// The bodies of all requests.
    pub asked: Vec<Value>,
    /// The open exchange.
    pub open: Option<u32>,
    /// The running tools, by call.
    pub running: BTreeMap<u32, String>,
    order: Order,
    fold: Fold,
    config: Config,
    exchanges: BTreeSet<u32>,
    calls: BTreeSet<u32>,
    scratch: Vec<u8>,
}

impl Driver {
    pub fn new(config: Config) -> Driver {
        Driver::with(config, vec![Message::User("Do it.".to_owned())], Box::new(NoHooks))
    }

    pub fn with(config: Config, messages: Vec<Message>, hooks: Box<dyn Hooks + Send>) -> Driver {
        let run = RunMachine::new(config.clone(), messages, hooks).unwrap();
        Driver {
            run,
            now: Instant::ZERO,
            parts: Vec::new(),
            actions: Vec::new(),
            asked: Vec::new(),
            open: None,
            running: BTreeMap::new(),
            order: Order::default(),
            fold: Fold::default(),
            config,
            exchanges: BTreeSet::new(),
            calls: BTreeSet::new(),
            scratch: Vec::new(),
        }
    }

    /// Creates a driver whose run has started.
    pub fn begun(config: Config) -> Driver {
        let mut driver = Driver::new(config);
        driver.feed(RunEvent::Started);
        driver
    }

    pub fn wall_us(&self) -> u64 {
        WALL_US + self.now.nanos() / 1_000
    }

    /// Passes an event to the run and takes all actions and parts.
    pub fn feed(&mut self, event: RunEvent<'_>) {
        self.feed_only(event);
        self.take_parts();
    }

    /// Passes an event to the run and takes all actions. Its parts wait.
    pub fn feed_only(&mut self, event: RunEvent<'_>) {
        let wall_us = self.wall_us();
        match &event {
            RunEvent::BodyEnded { exchange } | RunEvent::Broken { exchange, .. }
                if self.open == Some(*exchange) =>
            {
                self.open = None;
            }
            RunEvent::ToolEnded { call, .. } | RunEvent::ToolRefused { call, .. } => {
                self.running.remove(call);
            }
            _ => {}
        }
        self.run.handle(event, self.now, wall_us);
        self.run.audit();
        while let Some(action) = self.run.next_action() {
            self.check(&action);
            self.actions.push(action);
        }
        if self.run.is_over().is_some() {
            assert_eq!((self.open, self.running.len()), (None, 0), "the end leaves something");
        }
    }

    pub fn take_parts(&mut self) {
        while let Some(part) = self.run.next_part() {
            self.take_part(part);
        }
    }

    pub fn take_part(&mut self, part: RunPart) {
        self.order.take(&part).unwrap();
        self.scratch.clear();
        part.write_json(&mut self.scratch);
        assert!(self.scratch.len() <= self.config.part_bytes_max, "{} is too long", part.name());
        let is_line = !self.scratch.iter().any(|byte| *byte < b' ');
        assert!(is_line, "{} is not one line", part.name());
        let read = RunPart::parse(&self.scratch).unwrap();
        assert_eq!(read, part);
        self.fold.take(&read);
        self.parts.push(part);
    }

    fn check(&mut self, action: &RunAction) {
        match action {
            RunAction::Ask { exchange, request } => {
                assert_eq!(self.open, None, "two turns are open");
                assert!(self.exchanges.insert(*exchange), "a turn's number twice");
                self.open = Some(*exchange);
                let body = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
                self.asked.push(serde_json::from_slice(&request[body..]).unwrap());
            }
            RunAction::HangUp { exchange } | RunAction::Release { exchange } => {
                assert_eq!(self.open.take(), Some(*exchange), "it is not open");
            }
            RunAction::Start { call, tool, arguments } => {
                assert!(self.calls.insert(*call), "a call's number twice");
                assert!(arguments.is_object());
                assert!(self.config.tools.iter().any(|known| known.name == *tool));
                if self.config.strategy == Strategy::AfterTurn {
                    assert_eq!(self.open, None, "a tool starts while the model speaks");
                }
                self.running.insert(*call, tool.clone());
                assert!(self.running.len() <= self.config.parallel_calls_max as usize);
            }
            RunAction::Stop { call } => {
                assert!(self.running.remove(call).is_some(), "it does not run");
            }
            RunAction::Report { message } => {
                assert!(!message.is_empty() && self.open.is_none(), "{message}");
            }
        }
    }

    pub fn head(&mut self, status: u16, retry_after: Option<&str>) {
        let exchange = self.open.unwrap();
        self.feed(RunEvent::Answered { exchange, status, retry_after, retry_after_ms: None });
    }

    /// Delivers the model's whole answer, and the end of the body if that is still expected.
    pub fn answer(&mut self, said: &ScriptedTurn) {
        let exchange = self.open.unwrap();
        self.head(200, None);
        let body = said.stream(&mut Random::new(1));
        self.feed(RunEvent::Body { exchange, bytes: &body });
        if self.open == Some(exchange) {
            self.feed(RunEvent::BodyEnded { exchange });
        }
    }

    pub fn wait(&mut self, duration: std::time::Duration) {
        self.now += duration;
        self.feed(RunEvent::Tick);
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.parts.iter().map(RunPart::name).collect()
    }

    /// Returns the state that a client folds from the parts. It equals the state of the run.
    pub fn state(&self) -> &RunState {
        assert_eq!(self.fold.state(), self.run.state());
        self.fold.state()
    }

    /// The calls that were started, in order.
    pub fn started(&self) -> Vec<u32> {
        let started = |action: &RunAction| match action {
            RunAction::Start { call, .. } => Some(*call),
            _ => None,
        };
        self.actions.iter().filter_map(started).collect()
    }

    /// The parts of this type.
    pub fn all(&self, name: &str) -> Vec<&RunPart> {
        self.parts.iter().filter(|part| part.name() == name).collect()
    }

    /// The messages of the newest request.
    pub fn last_asked(&self) -> &[Value] {
        self.asked.last().unwrap()["messages"].as_array().unwrap()
    }
}
