//! Agent runs embedded in a program: on the program's own shard, over real sockets, with a scripted
//! model.
#![cfg(feature = "server")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use streamdoor::agent::order::Order;
use streamdoor::agent::script::{Script, ScriptConnection, ScriptedModel};
use streamdoor::agent::{
    Body, Config, Ended, Fold, Folded, Hooks, Partial, RunPart, RunState, StepChoice, StepState,
    ToolDescription,
};
use streamdoor::base::Instant;
use streamdoor::reactor::Clock;
use streamdoor::server::{AgentRun, ModelSettings, ServerShard};
use streamdoor::shard::{ExecuteOptions, ShardConfig};
use streamdoor::tool::ToolSpec;

/// Serves a script on threads until the test process ends. Returns the address.
fn serve(script: &str) -> SocketAddr {
    let script = Script::from_toml(script).expect("it is a script");
    let model = Arc::new(Mutex::new(ScriptedModel::new(script)));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for peer in listener.incoming().flatten() {
            let model = Arc::clone(&model);
            std::thread::spawn(move || talk(peer, &model));
        }
    });
    address
}

fn time() -> (Instant, u64) {
    (Clock::now(), Clock::wall_us())
}

/// Serves one connection of the model's server until it closes.
fn talk(mut peer: TcpStream, model: &Mutex<ScriptedModel>) {
    let mut connection = ScriptConnection::new();
    peer.set_read_timeout(Some(Duration::from_millis(1))).expect("it is not zero");
    let mut buffer = [0; 4_096];
    while !connection.is_over() {
        match peer.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => connection.receive(&mut model.lock().unwrap(), &buffer[..count], time()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
        connection.turn(&mut model.lock().unwrap(), time());
        let unsent = connection.unsent().to_vec();
        if peer.write_all(&unsent).is_err() {
            return;
        }
        connection.sent(unsent.len());
    }
}

const SCRIPT: &str = r#"
tokens = "words"
[[turns]]
events = [
  { text = "I have to add first." },
  { call = "add", arguments = { a = 2, b = 3 } },
  { call = "add", arguments = { a = 4, b = 5 } },
]
[[turns]]
events = [{ text = "That is ${result}." }]
"#;

/// Returns a shard with a tool that adds numbers.
fn shard() -> ServerShard {
    let (mut shard, _report) = ServerShard::open(ShardConfig::default()).expect("a shard");
    let number = json!({"type": "integer"});
    let spec = ToolSpec {
        arguments: json!({"type": "object", "properties": {"a": number, "b": number}}),
        ..ToolSpec::new("add", "Adds.")
    };
    let add = |arguments: &serde_json::Value, out: &mut streamdoor::tool::Output| {
        let sum = arguments["a"].as_i64().unwrap_or(0) + arguments["b"].as_i64().unwrap_or(0);
        Ok(out.send(sum.to_string().as_bytes())?)
    };
    shard.tools_mut().insert_closure(spec, add).expect("it is right");
    shard
}

fn run_at(address: SocketAddr, shard: &mut ServerShard) -> AgentRun {
    let base_url = format!("http://{address}/v1");
    let model = ModelSettings::new("m", "chat", &base_url, "demo", None).expect("it is right");
    let mut config = Config::new("", model.endpoint);
    let spec = shard.tools_mut().spec("add").expect("it was added");
    config.tools = vec![ToolDescription {
        name: spec.name.clone(),
        description: spec.description.clone(),
        schema: spec.arguments.clone(),
    }];
    AgentRun::new(config, "Add.")
}

#[test]
fn stepping_gives_the_same_states_as_putting_the_parts_together() {
    let mut shard = shard();
    let address = serve(SCRIPT);
    let run = run_at(address, &mut shard);
    let mut stream = shard.stream_agent(run, ExecuteOptions::default()).expect("it starts");
    let (mut fold, mut order, mut streamed) = (Fold::default(), Order::default(), Vec::new());
    let mut last: Option<RunPart> = None;
    while let Some(part) = stream.next(&mut shard) {
        order.take(&part).expect("parts come in their order");
        if fold.take(&part) != Folded::Nothing {
            streamed.push(fold.state().without_times());
        }
        last = Some(part);
    }
    assert!(last.as_ref().is_some_and(RunPart::is_end), "{last:?}");
    let run = run_at(serve(SCRIPT), &mut shard); // A new server restarts the call ids.
    let mut steps = shard.iterate_agent(run, ExecuteOptions::default()).expect("it starts");
    let mut iterated: Vec<RunState> = Vec::new();
    while let Some(state) = steps.next(&mut shard) {
        iterated.push(state.without_times());
    }
    for state in streamed.iter_mut().chain(&mut iterated) {
        state.agent_id.clear(); // Each run has its own id.
    }
    assert_eq!(streamed, iterated);
    let end = iterated.last().expect("there are steps");
    assert_eq!(end.text(), "That is 9.");
    assert_eq!(end.tool_call_count(), 2);
    assert!(matches!(end.end.as_ref().expect("it is over").how, Ended::Completed));
    shard.audit();
}

struct StopsAfterFirst(Arc<Mutex<u32>>);

impl Hooks for StopsAfterFirst {
    fn after_part(&mut self, _part: &RunPart) {
        *self.0.lock().unwrap() += 1;
    }

    fn after_step(&mut self, _state: &RunState, step: &StepState) -> StepChoice {
        assert_eq!(step.number, 1);
        StepChoice::Stop("enough".to_owned())
    }
}

struct Panics;

impl Hooks for Panics {
    fn after_step(&mut self, _state: &RunState, _step: &StepState) -> StepChoice {
        panic!("by its own fault");
    }
}

#[test]
fn hooks_steer_a_run_and_the_panic_of_one_fails_its_own_run_alone() {
    let mut shard = shard();
    let address = serve(SCRIPT);
    let count = Arc::new(Mutex::new(0));
    let hooks = Box::new(StopsAfterFirst(Arc::clone(&count)));
    let run = AgentRun { hooks, ..run_at(address, &mut shard) };
    let mut stream = shard.stream_agent(run, ExecuteOptions::default()).expect("it starts");
    let mut parts = 0;
    while stream.next(&mut shard).is_some() {
        parts += 1;
    }
    assert_eq!(*count.lock().unwrap(), parts);
    let run = AgentRun { hooks: Box::new(Panics), ..run_at(address, &mut shard) };
    let mut broken = shard.stream_agent(run, ExecuteOptions::default()).expect("it starts");
    let good = run_at(address, &mut shard);
    let mut good = shard.iterate_agent(good, ExecuteOptions::default()).expect("it starts");
    while broken.next(&mut shard).is_some() {}
    let status = shard.inspect(broken.execution()).expect("it is retained");
    assert!(status.error.is_some_and(|text| text.contains("by its own fault")));
    let mut last = None;
    while let Some(state) = good.next(&mut shard) {
        last = Some(state);
    }
    assert_eq!(last.expect("it has steps").text(), "That is 9.");
    shard.audit();
}

#[test]
fn many_runs_at_once_do_not_wait_for_each_other() {
    const RUNS: usize = 30;
    let mut shard = shard();
    let script = "pace = '2ms'\n[[turns]]\nevents = [{ text = 'word ', repeat = 20 }]\n";
    let address = serve(script);
    let mut streams = Vec::new();
    for _ in 0..RUNS {
        let run = run_at(address, &mut shard);
        streams.push(shard.stream_agent(run, ExecuteOptions::default()).expect("it starts"));
    }
    let (mut texts, mut ends) = (vec![0; RUNS], 0);
    let mut began_before_any_end = [false; RUNS];
    while ends < RUNS {
        for (at, stream) in streams.iter_mut().enumerate() {
            while let Some(part) = stream.poll(&mut shard) {
                began_before_any_end[at] |= ends == 0;
                ends += usize::from(part.is_end());
                if let Body::Partial(Partial::TextDelta { delta, .. }) = &part.body {
                    texts[at] += delta.len();
                }
            }
        }
        if ends < RUNS && !shard.turn() {
            shard.park(None);
        }
    }
    assert!(texts.iter().all(|bytes| *bytes == 20 * 5), "{texts:?}");
    assert!(began_before_any_end.iter().all(|began| *began), "somebody had to wait");
    shard.audit();
}
