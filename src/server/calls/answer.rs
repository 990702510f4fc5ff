//! Carries out calls, and answers them.

use std::time::Duration;

use crate::base::{ExecutionId, Principal};
use crate::endpoint::front::bodies;
use crate::endpoint::{
    Answer, ApiError, Call, Execute, FrontRun, FrontWish, Opening, PolicyWish, StreamFormat,
    documents,
};
use crate::engine::{CancelError, NotFound, Start, Status as ExecutionStatus};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::ServerShard;
use crate::server::hub::connection::{Doing, Timer};
use crate::shard::{ExecuteError, ExecuteOptions};
use crate::stream::{Outcome, Policy, State};
use crate::tool::{AGENT, StartError};
use crate::wire::http1::Status;
use crate::wire::write_json;

impl<R: Reactor + 'static> ServerShard<R> {
    /// Carries out a call of a client. Returns true if the reply is complete. Returns false if it
    /// comes later, or if it is a stream that has begun.
    pub(in crate::server) fn carry_out_call(&mut self, id: ConnectionId, call: Call) -> bool {
        let is_draining = self.guests.serve.as_ref().is_some_and(|serve| serve.is_draining);
        let principal = self.principal_of(id);
        match call {
            Call::Execute(_)
            | Call::Follow(_)
            | Call::Output(..)
            | Call::Work(_)
            | Call::ReadDoor(_)
            | Call::Produce(_)
            | Call::Thread(_)
            | Call::Ready
                if is_draining =>
            {
                self.answer_error(id, &ApiError::shutting_down())
            }
            ref call if !self.is_open_to(call, principal) => {
                self.answer_error(id, &NotFound.into())
            }
            Call::Execute(execute) => self.run_tool(id, *execute, principal),
            Call::Follow(follow) => self.follow(id, &follow),
            Call::Output(execution, kinds) => self.send_output(id, execution, kinds),
            Call::Result(execution, wait) => self.await_result(id, execution, wait),
            Call::Executions | Call::AllProgress | Call::Metrics(_) => {
                self.gather(id, call, principal)
            }
            Call::PutVirtualTool(_) | Call::DeleteVirtualTool(_) => {
                self.change_tools(id, call, principal)
            }
            Call::Work(work) => self.let_work(id, *work, principal),
            Call::Deliver(deliver) => self.deliver(id, deliver, principal),
            Call::Mcp(request) => self.answer_mcp(id, *request, principal),
            Call::ReadDoor(door) => self.read_at_door(id, &door),
            Call::Produce(produce) => self.produce_at_door(id, *produce, principal),
            Call::Thread(call) => self.ask_thread(id, *call, principal),
            other => {
                let answer =
                    self.answer_now(&other, principal).unwrap_or_else(|e| Answer::error(&e));
                self.answer(id, &answer)
            }
        }
    }

    /// Answers a call from the tables of this shard.
    fn answer_now(&mut self, call: &Call, principal: Principal) -> Result<Answer, ApiError> {
        let document = match call {
            Call::Tools => documents::tools(self.tool_specs(principal).map(|spec| &**spec)),
            Call::VirtualTools => self.list_virtual_tools(principal),
            Call::Inspect(execution) => self.describe(*execution)?,
            Call::Cancel(execution) => return self.cancel_call(*execution),
            Call::Acknowledge(execution, subscriber, seq) => {
                self.check_subscriber(*execution, *subscriber)?;
                self.acknowledge(*subscriber, *seq)?;
                return Ok(Answer::empty(Status::NO_CONTENT));
            }
            Call::Unsubscribe(execution, subscriber) => {
                self.unfollow(*execution, *subscriber)?;
                return Ok(Answer::empty(Status::NO_CONTENT));
            }
            Call::Progress(token) => {
                let id = self.find_token(*token)?;
                let status = self.inspect(id)?;
                documents::progress(*token, &status, self.engine.progress_texts(id.slot))
            }
            Call::Ready if !self.guests.dead_peers.is_empty() => {
                return Err(ApiError::shards_dead(&self.guests.dead_peers));
            }
            Call::Ready => documents::health("ready"),
            Call::Execute(_)
            | Call::Follow(_)
            | Call::Output(..)
            | Call::Result(..)
            | Call::Executions
            | Call::Metrics(_)
            | Call::AllProgress
            | Call::PutVirtualTool(_)
            | Call::DeleteVirtualTool(_)
            | Call::Work(_)
            | Call::Mcp(_)
            | Call::ReadDoor(_)
            | Call::Produce(_)
            | Call::Thread(_)
            | Call::Deliver(_) => unreachable!("answered elsewhere"),
        };
        Ok(Answer::json(Status::OK, &document))
    }

    pub(in crate::server) fn list_executions(&mut self, principal: Principal) -> serde_json::Value {
        let own = self.runs.iter().flatten().filter(|run| run.guest.owner == principal);
        let ids: Vec<ExecutionId> = own.map(|run| run.id).collect();
        let mut all = Vec::with_capacity(ids.len());
        for id in ids {
            if let Ok(status) = self.inspect(id) {
                all.push((status, self.tool_name(id)));
            }
        }
        documents::executions(all.iter().map(|(status, tool)| (status, tool.as_str())), self.now)
    }

    pub(in crate::server) fn describe(
        &mut self,
        id: ExecutionId,
    ) -> Result<serde_json::Value, ApiError> {
        let subscribers = self.subscribers(id)?;
        let status = self.inspect(id)?;
        let texts = self.engine.progress_texts(id.slot);
        let tool = self.tool_name(id);
        let ticket = self.ticket_for(id);
        let ticket = ticket.as_deref();
        Ok(documents::execution(&status, &tool, texts, &subscribers, ticket, self.now))
    }

    /// Returns the ticket that opens the stream of an execution to its owner, if streams need one.
    fn ticket_for(&self, id: ExecutionId) -> Option<String> {
        let run = self.runs.get(id.slot.index as usize)?.as_ref();
        let owner = run.filter(|run| run.id == id)?.guest.owner;
        self.guests.access.ticket(owner, id, self.now)
    }

    /// Returns the name of the tool of an execution, or an empty string.
    pub(in crate::server) fn tool_name(&self, id: ExecutionId) -> String {
        self.tool_of(id).map(|tool| tool.name.clone()).unwrap_or_default()
    }

    pub(in crate::server) fn cancel_call(&mut self, id: ExecutionId) -> Result<Answer, ApiError> {
        let status = match self.cancel(id) {
            Ok(()) => Status::ACCEPTED,
            Err(CancelError::Ended(_)) => Status::OK, // The execution has ended, as requested.
            Err(error @ CancelError::NotFound) => return Err(error.into()),
        };
        // This may have freed a ring for a queued execution, and removed the cancelled one.
        let state = self.inspect(id).map_or(State::Ended(Outcome::Cancelled), |found| found.state);
        Ok(Answer::json(status, &documents::state(id, state)))
    }

    fn run_tool(&mut self, id: ConnectionId, execute: Execute, owner: Principal) -> bool {
        let front = execute.front.unwrap_or_default();
        let command = front.command;
        if let (Some(_), Some(thread)) = (command, &front.thread_id)
            && self.guests.conversations.is_busy(owner, thread)
        {
            let text = "the last run of this thread has not ended";
            return self.refuse_run(id, command, &ApiError::new(Status::CONFLICT, "busy", text));
        }
        let (mut options, policy) = options_of(execute.opening, owner);
        if matches!((options.start, &execute.stream), (Start::Now, Some(_))) {
            // A client that asks for the stream at once must miss nothing of it.
            options.start = Start::AfterSubscribers { count: 1, deadline: limits::ATTACH_DEADLINE };
        }
        let asked = execute.stream.as_ref().and_then(|(_, wishes)| wishes.policy);
        let asked = asked.or(policy.map(|wish| wish.policy));
        let prepared = self.prepare_tool(owner, &execute.tool, &execute.arguments);
        let opened = prepared.map_err(ExecuteError::Start).and_then(|mut prepared| {
            prepared.trace = execute.trace.clone();
            let of_tool = prepared.tool.as_ref().map(|tool| tool.subscribers.policy);
            let need = &mut prepared.need;
            need.ring_bytes = self.served_ring_bytes(asked.or(of_tool)).max(need.ring_bytes);
            self.execute_prepared(prepared, options)
        });
        let execution = match opened {
            Ok(execution) => execution,
            Err(ExecuteError::Start(StartError::UnknownTool { .. })) if execute.tool == AGENT => {
                let text = "this server has no model, so it runs no agents";
                let error = ApiError::new(Status::NOT_FOUND, "no_model", text);
                return self.refuse_run(id, command, &error);
            }
            Err(error) => return self.refuse_run(id, command, &refusal(error)),
        };
        self.run_mut(execution.slot).guest.policy = policy;
        self.log_started(id, execution, &execute.tool);
        self.enter_thread(execution, owner, &front);
        if let Some((StreamFormat::Front(_), _)) = &execute.stream {
            self.keep_arguments(execution, execute.arguments);
        }
        if let Some((format, wishes)) = execute.stream {
            let wish = FrontWish { passed_over: front.passed_over, ..FrontWish::default() };
            let is_refused = self.follow_new(id, execution, (format, wishes), wish);
            if is_refused {
                let _ = self.cancel(execution); // No client knows its id.
            } else if execute.cancels {
                let serve = self.guests.serve.as_mut().expect("it has connections");
                let stream = serve.connection(id).and_then(|c| c.stream.as_mut());
                stream.expect("it was just begun").cancels = Some(execution);
            }
            return is_refused;
        }
        if let Some(command) = command {
            let answer = bodies::command_carried_out(command, &execution.to_string());
            return self.answer(id, &answer);
        }
        let status = self.inspect(execution).expect("it was just opened");
        let ticket = self.ticket_for(execution);
        let (token, tool) = (status.token, &execute.tool);
        let document = documents::created(execution, token, tool, status.state, ticket.as_deref());
        self.answer(id, &Answer::created(&document, documents::location(execution)))
    }

    /// Keeps the arguments of a tool, if they are short. Parts of an agent tell its arguments.
    fn keep_arguments(&mut self, execution: ExecutionId, arguments: serde_json::Value) {
        let run = self.run_mut(execution.slot);
        if run.names.has_parts {
            return;
        }
        let mut spelled = Vec::new();
        write_json(&mut spelled, &arguments);
        if spelled.len() <= limits::FRONT_ARGUMENTS_BYTES_MAX {
            run.guest.arguments = Some(arguments.into());
        }
    }

    /// Registers a run in its thread, if it has one.
    fn enter_thread(&mut self, execution: ExecutionId, owner: Principal, front: &FrontRun) {
        let Some(thread) = &front.thread_id else { return };
        let run_id = front.run_id.clone();
        let seat = self.guests.conversations.enter(owner, thread, execution, run_id);
        self.run_mut(execution.slot).guest.thread = Some(seat.into());
        self.announce_run(execution, owner, thread);
    }

    /// Answers why a run did not start, in the format of commands if the request was one.
    fn refuse_run(&mut self, id: ConnectionId, command: Option<u64>, error: &ApiError) -> bool {
        if command.is_some() {
            let answer = bodies::command_refused(command, "invalid_argument", &error.message);
            return self.answer(id, &answer);
        }
        let _ = command;
        self.answer_error(id, error)
    }

    /// Returns the minimum size of the ring of an execution that connections follow with this
    /// policy. Returns 0, and the tool's need decides, when leased rings hold half of all memory
    /// and none can be freed.
    pub(in crate::server) fn served_ring_bytes(&self, policy: Option<Policy>) -> u32 {
        let has_half = self.rings.usage().leased_bytes < self.rings.bytes_max() / 2;
        let is_plentiful = has_half || self.engine.can_spare_a_ring();
        match policy {
            _ if !is_plentiful => 0,
            Some(Policy::Block) => limits::RING_REPLAYED_BYTES,
            _ => limits::RING_SERVED_BYTES,
        }
    }

    /// Answers at the end of the execution, or after the time that the client is ready to wait.
    fn await_result(&mut self, id: ConnectionId, execution: ExecutionId, wait: Duration) -> bool {
        let now = self.now;
        match self.inspect(execution) {
            Err(error) => self.answer_error(id, &error.into()),
            Ok(status) if is_complete(&status) => self.give_result(id, status),
            Ok(status) if wait.is_zero() => self.give_state(id, &status),
            Ok(_) => {
                let serve = self.guests.serve.as_mut().expect("it has connections");
                serve.waiting.push((execution, id));
                let connection = serve.connection(id).expect("its request is being answered");
                connection.doing = Doing::Result;
                serve.set_timer(id, Some((Timer::Result, now + wait)));
                false
            }
        }
    }

    fn give_result(&mut self, id: ConnectionId, mut status: ExecutionStatus) -> bool {
        status.state = status.outcome.map_or(status.state, State::Ended);
        let mut data = Vec::new();
        if let Some(run) = self.runs[status.id.slot.index as usize].as_ref() {
            for seq in status.tail_seq.max(1)..=status.head_seq {
                let read = crate::shard::act::read_chunk(run, seq, &mut self.scratch);
                if let Ok((_, payload)) = read {
                    data.extend_from_slice(payload);
                    if run.names.has_parts {
                        data.push(b'\n'); // Each part is one line.
                    }
                }
            }
        }
        self.answer(id, &Answer::json(Status::OK, &documents::result(&status, &data)))
    }

    fn give_state(&mut self, id: ConnectionId, status: &ExecutionStatus) -> bool {
        let document = documents::state(status.id, status.state);
        self.answer(id, &Answer::json(Status::ACCEPTED, &document))
    }

    /// Answers all connections that wait for the end of this execution.
    pub(in crate::server) fn answer_waiting(&mut self, execution: ExecutionId) {
        loop {
            let serve = self.guests.serve.as_mut().expect("a connection waits");
            let found = serve.waiting.iter().position(|(waited_for, _)| *waited_for == execution);
            let Some(at) = found else { return };
            let (_, id) = serve.waiting.swap_remove(at);
            self.answer_waited(id, execution);
        }
    }

    /// Answers a client that has waited long enough.
    pub(in crate::server) fn answer_late(&mut self, id: ConnectionId) {
        let serve = self.guests.serve.as_mut().expect("it has connections");
        let found = serve.waiting.iter().position(|(_, waiting)| *waiting == id);
        let (execution, _) = serve.waiting.swap_remove(found.expect("its timer was armed for it"));
        self.answer_waited(id, execution);
    }

    fn answer_waited(&mut self, id: ConnectionId, execution: ExecutionId) {
        let serve = self.guests.serve.as_mut().expect("it has connections");
        let connection = serve.connection(id).expect("a closed connection waits for nothing");
        connection.doing = Doing::Requests;
        match self.inspect(execution) {
            Err(error) => self.answer_error(id, &error.into()),
            Ok(status) if is_complete(&status) => self.give_result(id, status),
            Ok(status) => self.give_state(id, &status),
        };
        self.guests.serve.as_mut().expect("as above").answered.push(id);
    }

    /// Writes a complete reply. Always returns true.
    pub(in crate::server) fn answer(&mut self, id: ConnectionId, answer: &Answer) -> bool {
        let serve = self.guests.serve.as_mut().expect("it has connections");
        let around = serve.around(&self.guests.access, self.now);
        if let Some(connection) = serve.writable(id) {
            connection.converse(|http, out| http.answer(answer, &around, out));
        }
        true
    }

    /// Writes a complete error reply. Always returns true.
    pub(in crate::server) fn answer_error(&mut self, id: ConnectionId, error: &ApiError) -> bool {
        let serve = self.guests.serve.as_mut().expect("it has connections");
        let around = serve.around(&self.guests.access, self.now);
        if let Some(connection) = serve.writable(id) {
            connection.converse(|http, out| http.answer_error(error, &around, out));
        }
        true
    }
}

/// Returns the options of an execution of `owner`, and the policy of subscribers that choose none.
pub(in crate::server) fn options_of(
    opening: Opening,
    owner: Principal,
) -> (ExecuteOptions, Option<PolicyWish>) {
    let Opening { start, hold, retention, block_deadline, on_stall, timeouts, progress, policy } =
        opening;
    let options = ExecuteOptions {
        start,
        hold,
        retention,
        block_deadline,
        on_stall,
        timeouts,
        progress,
        owner,
    };
    (options, policy)
}

/// Returns the error reply for a tool that was not run.
pub(in crate::server) fn refusal(error: ExecuteError) -> ApiError {
    let text = error.to_string();
    match error {
        ExecuteError::Start(error) => error.into(),
        ExecuteError::Open(error) => error.into(),
        ExecuteError::NoRandomness => {
            ApiError::new(Status::INTERNAL_SERVER_ERROR, "no_randomness", text)
        }
        ExecuteError::ChunkTooLarge { chunk_bytes_max, .. } => {
            ApiError::new(Status::BAD_REQUEST, "chunk_too_large", text)
                .limit(chunk_bytes_max.into())
        }
        ExecuteError::MemoryShort(_) => {
            ApiError::new(Status::SERVICE_UNAVAILABLE, "memory_short", text)
                .retry_after(limits::BUSY_RETRY_AFTER)
        }
    }
}

/// True if its result is complete. Subscribers may still have chunks to read.
fn is_complete(status: &ExecutionStatus) -> bool {
    matches!(status.state, State::Draining | State::Ended(_))
}
