//! Calls of tools: prepared, run, followed, and answered with their output.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::{ExecutionId, Handle, Principal};
use crate::endpoint::Wishes;
use crate::engine::{
    Event, From, Reply as EngineReply, Start, SubscribeError, SubscribeSpec, Subscribed,
};
use crate::limits;
use crate::mcp::door::DoorCall;
use crate::mcp::results::Results;
use crate::mcp::tasks::{self, Placement};
use crate::mcp::{CallMeta, Context, Era, Fault, Version};
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::guests::Destination;
use crate::server::hub::connection::kernel_bytes_for;
use crate::server::mcp::Ear;
use crate::server::mcp::answer::{Reply, Source};
use crate::server::mcp::call::{Asker, Outlet, Stage};
use crate::server::mcp::keep::{Keep, Role};
use crate::shard::{Call as SinkCall, ExecuteError, ExecuteOptions, Sink};
use crate::stream::{Kind, Kinds, Policy};
use crate::tool::{Asking, Prepared, Replies, StartError, TaskSupport, ToolSpec};
use crate::trace::Code;

/// A call of a tool: the tool, the asker, the arguments, and the answers to its questions so far.
pub(in crate::server) struct ToolCall {
    pub source: Source,
    pub context: Box<Context>,
    pub spec: Arc<ToolSpec>,
    pub arguments: Value,
    pub replies: Replies,
}

/// A prepared execution, or the reply if it cannot run.
pub(in crate::server) type Started = Result<Prepared, Reply>;

impl<R: Reactor + 'static> ServerShard<R> {
    /// Calls a tool. Returns `None` if the call is answered later.
    pub(in crate::server) fn call_tool(
        &mut self,
        source: Source,
        context: Box<Context>,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Option<Reply> {
        if let Some(call) = DoorCall::parse(name, &arguments) {
            return self.use_door(source, context, call);
        }
        let Some(spec) = self.tool_spec(source.owner, name) else {
            return Some(Err(Fault::invalid_params(format!("unknown tool: {name}"))));
        };
        let as_task = match tasks::placement(&context, spec.task_support) {
            Ok(placement) => placement == Placement::Task,
            Err(fault) => return Some(Err(fault)),
        };
        let replies = match self.replies_of(&source, &context, name, &arguments) {
            Ok(replies) => replies,
            Err(fault) => return Some(Err(fault)),
        };
        let arguments = Value::Object(arguments);
        let call = ToolCall { source, context, spec, arguments, replies };
        // The task asks the tool's questions, unless no task may exist before they are answered.
        let asks_first = call.spec.task_support == TaskSupport::Required
            && call.context.version.era() == Era::Stateless;
        if as_task && !asks_first {
            return Some(self.begin_task(call));
        }
        match self.ask_tool(&call) {
            Err(reply) => Some(reply),
            Ok(Asking::Run) if as_task => Some(self.begin_task(call)),
            Ok(Asking::Run) => self.run_tool_call(call),
            Ok(Asking::Ask { questions, state }) => self.put_questions(call, questions, state),
            Ok(Asking::Refuse(text)) => Some(self.refusal(&call.context, &text)),
        }
    }

    /// Asks a tool what it does with its arguments and the answers so far.
    pub(in crate::server) fn ask_tool(&mut self, call: &ToolCall) -> Result<Asking, Reply> {
        let name = &call.spec.name;
        if self.is_virtual(call.source.owner, name) {
            return Ok(Asking::Run);
        }
        let abilities = call.context.client.abilities;
        let asking = self.tools.asking(name, &call.arguments, &call.replies, abilities);
        let asking = self.note_start(asking);
        asking.map_err(|error| self.start_error(&call.context, &error))
    }

    /// Prepares a call to run. Returns the reply if that is impossible.
    pub(in crate::server) fn prepare_call(&mut self, call: &ToolCall) -> Started {
        let (owner, name) = (call.source.owner, &call.spec.name);
        let prepared = match self.is_virtual(owner, name) {
            true => self.prepare_tool(owner, name, &call.arguments),
            false => {
                let prepared = self.tools.prepare_with(name, &call.arguments, &call.replies);
                self.note_start(prepared)
            }
        };
        let mut prepared = prepared.map_err(|error| self.start_error(&call.context, &error))?;
        prepared.trace = call.context.trace.clone();
        Ok(prepared)
    }

    /// Returns the reply for wrong arguments (A36) or an unknown tool.
    fn start_error(&self, context: &Context, error: &StartError) -> Reply {
        match error {
            StartError::UnknownTool { name, .. } => {
                Err(Fault::invalid_params(format!("unknown tool: {name}")))
            }
            StartError::Argument(_) | StartError::Asks { .. } => {
                self.refusal(context, &error.to_string())
            }
            StartError::Panicked { .. } => Err(Fault::internal(error.to_string())),
        }
    }

    /// Runs a tool that has everything it needs.
    pub(in crate::server) fn run_tool_call(&mut self, call: ToolCall) -> Option<Reply> {
        let prepared = match self.prepare_call(&call) {
            Ok(prepared) => prepared,
            Err(reply) => return Some(reply),
        };
        let ToolCall { source, context, spec, .. } = call;
        let estimated_bytes = prepared.need.estimated_bytes.unwrap_or(0);
        let is_long = estimated_bytes > limits::MCP_RESULT_BYTES_MAX as u64;
        if context.wants_stream.unwrap_or(is_long) {
            return Some(self.open_door(&source, &context, spec, prepared));
        }
        let handle = match self.open_call(source, context, Stage::Begins) {
            Ok(handle) => handle,
            Err(fault) => return Some(Err(fault)),
        };
        self.run_for(handle, spec, prepared);
        None
    }

    /// Runs a tool for a call in the table. If that fails, the error is the answer.
    pub(in crate::server) fn run_for(
        &mut self,
        handle: Handle,
        spec: Arc<ToolSpec>,
        prepared: Prepared,
    ) {
        let serve = self.guests.serve.as_mut().expect("it has calls");
        let Some(call) = serve.mcp.calls.get(handle) else { return };
        let (owner, outlet, asker) = (call.owner, call.outlet, call.asker);
        let version = call.context.version;
        let is_streamed = call.context.wants_stream == Some(false);
        let wants_chunks =
            call.context.progress_token.is_some() || call.context.partial_token.is_some();
        let kinds = match (wants_chunks, call.level) {
            (true, _) => Some(Kinds::ALL),
            (false, Some(_)) => Some(Kinds::NONE.with(Kind::Log)),
            (false, None) => None,
        };
        let is_session = matches!(asker, Asker::Session(_)) && outlet.connection().is_some();
        let is_primed = is_session && version == Version::V2025_11_25;
        let polls = spec.polls && is_primed && !matches!(outlet, Outlet::Lines(_));
        let kept = self.keep_output(owner, Arc::clone(&spec), Role::Answer(handle), prepared, 1);
        let keep = match kept {
            Ok(keep) => keep,
            Err(error) => {
                let server = self.server_info();
                let reply = execute_error(&Results::new(version, &server), &error);
                self.answer_call(handle, reply);
                return;
            }
        };
        let serve = self.guests.serve.as_mut().expect("as above");
        let kept = serve.mcp.keeps.get_mut(keep).expect("it was just made");
        kept.is_streamed = is_streamed;
        let execution = kept.execution.expect("it runs");
        serve.mcp.calls.get_mut(handle).expect("as above").stage = Stage::Runs(keep);
        self.log_started_by(outlet.connection(), execution, &spec.name);
        if let Some(kinds) = kinds {
            self.attach_notifier(handle, execution, From::Start, kinds);
        }
        if polls || (wants_chunks && is_primed) {
            self.guests.serve.as_mut().expect("as above").prime(handle);
        }
        if polls {
            self.send_away(handle);
        }
        self.pump();
    }

    /// Runs a tool and keeps its output.
    pub(in crate::server) fn keep_output(
        &mut self,
        owner: Principal,
        spec: Arc<ToolSpec>,
        role: Role,
        prepared: Prepared,
        subscriber_count: u32,
    ) -> Result<Handle, ExecuteError> {
        let retention = match &role {
            Role::Task(task) => Some(task.ttl().min(limits::EXECUTION_DURATION_MAX)),
            Role::Answer(_) | Role::Door => None,
        };
        let execution = self.open_kept(owner, prepared, subscriber_count, retention)?;
        let keep = Keep { execution: Some(execution), ..Keep::new(owner, spec, role) };
        let serve = self.guests.serve.as_mut().expect("it was asked");
        let keep = serve.mcp.keeps.insert(Box::new(keep));
        let Ok(keep) = keep else {
            let _ = self.cancel(execution);
            return Err(ExecuteError::Open(crate::engine::OpenError::TooMany {
                executions_max: limits::MCP_KEEPS_MAX,
            }));
        };
        self.attach_keep(keep, execution, From::Start);
        Ok(keep)
    }

    /// Opens an execution whose output is kept, before it produces any.
    pub(in crate::server) fn open_kept(
        &mut self,
        owner: Principal,
        mut prepared: Prepared,
        subscriber_count: u32,
        retention: Option<std::time::Duration>,
    ) -> Result<ExecutionId, ExecuteError> {
        let deadline = limits::ATTACH_DEADLINE;
        let options = ExecuteOptions {
            start: Start::AfterSubscribers { count: subscriber_count, deadline },
            retention,
            owner,
            ..ExecuteOptions::default()
        };
        let policy = prepared.tool.as_ref().map(|tool| tool.subscribers.policy);
        let ring_bytes = &mut prepared.need.ring_bytes;
        *ring_bytes = self.served_ring_bytes(policy).max(*ring_bytes);
        self.execute_prepared(prepared, options)
    }

    /// Subscribes a keep to all output from there on.
    pub(in crate::server) fn attach_keep(
        &mut self,
        keep: Handle,
        execution: ExecutionId,
        from: From,
    ) {
        let spec = SubscribeSpec { policy: Policy::Block, from, ..SubscribeSpec::default() };
        let subscribed = self.attach_ear(execution, spec, Ear::Keep(keep));
        let token = self.token_of(execution);
        let serve = self.guests.serve.as_mut().expect("it keeps");
        let Some(kept) = serve.mcp.keeps.get_mut(keep) else { return };
        kept.token = token;
        match subscribed {
            Ok(subscribed) => kept.subscriber = Some(subscribed.subscriber),
            Err(error) => {
                kept.fail(&error.to_string());
                serve.mcp.note(crate::server::mcp::News::Keep(keep));
            }
        }
    }

    /// Subscribes a call to the output from there on, for notifications.
    pub(in crate::server) fn attach_notifier(
        &mut self,
        handle: Handle,
        execution: ExecutionId,
        from: From,
        kinds: Kinds,
    ) {
        let wishes = Wishes { kinds, ..Wishes::default() };
        let spec = self.spec_of(execution, &wishes, from);
        let attached = match self.attach_ear(execution, spec, Ear::Call(handle)) {
            Err(SubscribeError::NoLongerHeld { tail_seq }) => {
                let from = From::Seq { seq: tail_seq, seen: None };
                self.attach_ear(execution, SubscribeSpec { from, ..spec }, Ear::Call(handle))
            }
            attached => attached,
        };
        let Ok(subscribed) = attached else { return }; // The answer is complete without it.
        let notifier = subscribed.subscriber;
        let serve = self.guests.serve.as_mut().expect("it has calls");
        let Some(call) = serve.mcp.calls.get_mut(handle) else { return };
        call.notifier = Some(notifier);
        call.is_cut_short = false;
        // Only the client of a session can come back.
        let replay = subscribed.replay.filter(|_| matches!(call.asker, Asker::Session(_)));
        let Some(id) = call.outlet.connection() else { return };
        let Some(connection) = serve.connection(id) else { return };
        connection.bound_sending(kernel_bytes_for(replay), &mut self.reactor);
        let takes = connection.takes;
        if let Some(link) = &mut connection.mcp {
            link.feeds.push(notifier);
        }
        if !takes {
            self.tell(Event::Demand(notifier, 0));
        }
    }

    /// Attaches a subscriber of the protocol. It gets nothing before the next pump.
    fn attach_ear(
        &mut self,
        execution: ExecutionId,
        spec: SubscribeSpec,
        ear: Ear,
    ) -> Result<Subscribed, SubscribeError> {
        self.keep_for_reader(execution.slot.index);
        let EngineReply::Subscribed(result) = self.ask_at_once(Event::Subscribe(execution, spec))
        else {
            unreachable!("the answer fits the question");
        };
        let subscribed = result?;
        let (subscriber, kinds) = (subscribed.subscriber, subscribed.terms.kinds);
        let index = subscriber.0.index;
        let sink = Sink {
            subscriber: Some(subscriber),
            kinds,
            call: SinkCall::Guest(Destination::Mcp(ear)),
        };
        self.sinks[index as usize] = sink;
        self.record(Code::SubscriberAttached, index.into(), subscribed.execution.index.into());
        Ok(subscribed)
    }
}

/// Returns the reply to a call whose execution was refused.
pub(in crate::server) fn execute_error(results: &Results<'_>, error: &ExecuteError) -> Reply {
    match error {
        ExecuteError::NoRandomness => Err(Fault::internal(error.to_string())),
        _ => Ok(results.call_refused(&error.to_string(), CallMeta::default())),
    }
}
