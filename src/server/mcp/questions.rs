//! Tools that have questions before they run. In the stateless era, the client sends its request
//! again, with its answers. In the handshake era, the questions go out on the stream of the call.
//! The answers are messages of their own, and their ids lead to the call.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::Handle;
use crate::limits;
use crate::mcp::request_state::Bound;
use crate::mcp::results::Results;
use crate::mcp::{Era, questions};
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::guests::Guests;
use crate::server::mcp::answer::{Reply, Source};
use crate::server::mcp::call::{Asks, Stage};
use crate::server::mcp::tools::ToolCall;
use crate::server::mcp::{Due, answer, ask, listen, open_streams, tasks, tools};
use crate::tool::{Asking, Question, Replies};
use crate::wire::jsonrpc::{self, ErrorObject, Id};

/// The limit of rounds of questions for one call of a tool.
const ROUNDS_MAX: u32 = 64;

/// Returns the id of a question: the handle of its call and a number.
pub(in crate::server) fn name_of(handle: Handle, number: u64) -> String {
    format!("{:x}.{:x}.{number:x}", handle.index, handle.generation)
}

fn parse_name(id: &Id) -> Option<(Handle, u64)> {
    let text = id.as_text()?;
    let mut parts = text.split('.');
    let mut part = || u64::from_str_radix(parts.next()?, 16).ok();
    let (index, generation, number) = (part()?, part()?, part()?);
    let handle = Handle { index: index.try_into().ok()?, generation: generation.try_into().ok()? };
    Some((handle, number))
}
/// Puts the questions of a tool to its client. Returns `None` if the call is answered later.
pub(in crate::server) fn put_questions<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    call: ToolCall,
    asked: Vec<Question>,
    state: Option<Value>,
) -> Option<Reply> {
    let ToolCall { context, spec, arguments, .. } = call;
    if context.version.era() == Era::Stateless {
        let server = ask::server_info(shard);
        let results = Results::new(context.version, &server);
        let arguments = arguments.as_object().expect("it was read as one");
        let (method, name) = ("tools/call", &*spec.name);
        let bound = Bound { principal: source.owner, method, name, arguments };
        return Some(ask::input_required(shard, bound, &context, &results, &asked, state));
    }
    if let Err(fault) = questions::check(context.version, &context.client, &asked) {
        return Some(Err(fault));
    }
    let asks = Asks { spec, arguments, answers: Map::new(), state, open: Vec::new(), rounds: 0 };
    let handle = match answer::open_call(shard, source, context, Stage::Asks(Box::new(asks))) {
        Ok(handle) => handle,
        Err(fault) => return Some(Err(fault)),
    };
    send_questions(shard, handle, asked);
    None
}

/// Sends questions on the stream of their call.
fn send_questions<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    asked: Vec<Question>,
) {
    let now = shard.now;
    let Guests { hub, mcp, .. } = &mut shard.guests;
    for question in asked {
        let number = hub.random_number();
        let Some(call) = mcp.calls.get_mut(handle) else { return };
        let params = questions::params(call.context.version, &question);
        let method = question.method.name();
        let Stage::Asks(asks) = &mut call.stage else { return };
        asks.open.push((number, question));
        let name = name_of(handle, number);
        mcp.say(hub, handle, |out| jsonrpc::write_request(out, &name, method, &params));
    }
    let Some(call) = mcp.calls.get_mut(handle) else { return };
    let armed = call.timer.take();
    let until = now + limits::MCP_ASK_DEADLINE;
    let timer = mcp.set_timer(armed, Some((Due::Call(handle), until)));
    mcp.calls.get_mut(handle).expect("it was just there").timer = timer;
}

/// Repeats the open questions for a client that has come back.
pub(in crate::server) fn ask_open_again<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get_mut(handle) else { return };
    let Stage::Asks(asks) = &mut call.stage else { return };
    let open = std::mem::take(&mut asks.open);
    send_questions(shard, handle, open.into_iter().map(|(_, question)| question).collect());
}

/// Handles a client's answer to a question.
pub(in crate::server) fn hear_reply<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    id: &Id,
    result: Result<Value, ErrorObject>,
) {
    let Some((handle, number)) = parse_name(id) else { return };
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get_mut(handle) else { return };
    if call.asker != source.asker || call.owner != source.owner {
        return; // It is not the asker's call.
    }
    match &mut call.stage {
        Stage::Asks(asks) => {
            let Some(at) = asks.open.iter().position(|(open, _)| *open == number) else {
                return;
            };
            let (_, question) = asks.open.swap_remove(at);
            match result {
                Ok(answer) => _ = asks.answers.insert(question.key, answer),
                Err(error) => {
                    let text = format!("{} was refused: {}", question.method.name(), error.message);
                    let reply =
                        open_streams::refusal(shard, &listen::call_context(shard, handle), &text);
                    answer::answer_call(shard, handle, reply);
                    return;
                }
            }
            if asks.open.is_empty() {
                ask_again(shard, handle);
            }
        }
        Stage::Awaits(keep) => {
            let keep = *keep;
            tasks::hear_task_reply(shard, keep, number, result);
        }
        _ => {}
    }
}

/// Runs a tool whose questions were all answered, or sends its further questions.
fn ask_again<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get_mut(handle) else { return };
    let Stage::Asks(asks) = &mut call.stage else { return };
    asks.rounds += 1;
    let is_endless = asks.rounds > ROUNDS_MAX;
    let answers = std::mem::take(&mut asks.answers);
    let replies = Replies { answers, state: asks.state.take() };
    let tool_call = ToolCall {
        owner: call.owner,
        context: Box::new(call.context.clone()),
        spec: Arc::clone(&asks.spec),
        arguments: asks.arguments.clone(),
        replies,
    };
    if is_endless {
        let text = format!("the tool has asked more than {ROUNDS_MAX} times");
        let reply = open_streams::refusal(shard, &tool_call.context, &text);
        return answer::answer_call(shard, handle, reply);
    }
    match tools::ask_tool(shard, &tool_call) {
        Err(reply) => answer::answer_call(shard, handle, reply),
        Ok(Asking::Refuse(text)) => {
            let reply = open_streams::refusal(shard, &listen::call_context(shard, handle), &text);
            answer::answer_call(shard, handle, reply);
        }
        Ok(Asking::Run) => match tools::prepare_call(shard, &tool_call) {
            Err(reply) => answer::answer_call(shard, handle, reply),
            Ok(prepared) => {
                let mcp = &mut shard.guests.mcp;
                let call = mcp.calls.get_mut(handle).expect("as above");
                let armed = call.timer.take();
                mcp.set_timer(armed, None);
                tools::run_for(shard, handle, tool_call.spec, prepared);
            }
        },
        Ok(Asking::Ask { questions: asked, state }) => {
            let context = &tool_call.context;
            if let Err(fault) = questions::check(context.version, &context.client, &asked) {
                return answer::answer_call(shard, handle, Err(fault));
            }
            let mcp = &mut shard.guests.mcp;
            let call = mcp.calls.get_mut(handle).expect("as above");
            let Stage::Asks(asks) = &mut call.stage else { return };
            asks.state = state;
            match asked.is_empty() {
                true => ask_again(shard, handle),
                false => send_questions(shard, handle, asked),
            }
        }
    }
}
