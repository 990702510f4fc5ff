//! One call of an upstream's tool, on a thread for tools that block. Its output is published as it
//! comes.

use std::sync::Arc;

use serde_json::Value;

use super::http::{ExchangeError, ExchangeHandler, HttpUpstream, StopExchange};
use super::inbox::{Inbox, Received};
use super::link::{ConnectedUpstream, Upstream, UpstreamTransport};
use super::program::Program;
use crate::limits;
use crate::mcp::Era;
use crate::mcp::upstream::{
    CallNotification, CallOutput, CallResult, Offer, OutputPiece, UnsentRequest, UpstreamCall,
    cancelled,
};
use crate::server::UpstreamCount;
use crate::stream::Kind;
use crate::tool::{OnStop, Output, Report, Stopped, ToolError};
use crate::wire::jsonrpc::ErrorObject;

/// The state of a call, over either transport.
struct CallDriver<'a> {
    upstream: &'a Arc<Upstream>,
    offer: &'a Offer,
    arguments: &'a Value,
    out: &'a mut Output,
    output: CallOutput,
    hook: Option<OnStop>,
}

/// Performs a call.
pub(super) fn run(
    upstream: &Arc<Upstream>,
    offer: &Offer,
    arguments: &Value,
    out: &mut Output,
) -> Result<(), ToolError> {
    upstream.meter.add(UpstreamCount::Calls, 1);
    let output = CallOutput::new(offer.spec.output_schema.is_some());
    let mut caller = CallDriver { upstream, offer, arguments, out, output, hook: None };
    let result = caller.call();
    if let Err(ToolError::Failed(_)) = result {
        upstream.meter.add(UpstreamCount::Failures, 1);
    }
    result
}

impl CallDriver<'_> {
    fn call(&mut self) -> Result<(), ToolError> {
        // A request to an expired session was not handled: repeat it in a new session.
        for is_last in [false, true] {
            let signal = self.out.stop_signal();
            let ready = self.upstream.ready(&|| signal.is_stopped());
            if self.out.is_stopped() {
                return Err(ToolError::Stopped);
            }
            let ready = ready.map_err(|why| self.failure(&why))?;
            match &ready.transport {
                UpstreamTransport::Program(program) => return self.call_program(&ready, program),
                UpstreamTransport::Http(http) => match self.call_http(&ready, http) {
                    Err(ExchangeError::SessionGone) if !is_last => self.upstream.lose(&ready),
                    Err(ExchangeError::SessionGone) => {
                        return Err(self.failure("its session is over"));
                    }
                    Err(ExchangeError::Stopped) => return Err(ToolError::Stopped),
                    Err(
                        ExchangeError::Unreachable(why)
                        | ExchangeError::Refused(why)
                        | ExchangeError::Broken(why),
                    ) => {
                        return Err(self.failure(&why));
                    }
                    Ok(result) => return result,
                },
            }
        }
        unreachable!("the second time is the last")
    }

    fn failure(&self, why: &str) -> ToolError {
        ToolError::Failed(format!("MCP server `{}`: {why}", self.upstream.spec.name))
    }

    fn request(&self, ready: &ConnectedUpstream, token: u64) -> UnsentRequest {
        ready.dialect.call(&UpstreamCall {
            name: &self.offer.name,
            arguments: self.arguments,
            schema: &self.offer.spec.arguments,
            as_task: self.offer.as_task,
            token,
            trace: self.out.trace(),
        })
    }

    /// Performs the call over the standard streams of a program.
    fn call_program(
        &mut self,
        ready: &ConnectedUpstream,
        program: &Arc<Program>,
    ) -> Result<(), ToolError> {
        let call = ProgramRequest::new(program, self.out, true, |id| self.request(ready, id));
        match self.wait_for(&call)? {
            CallResult::Task(task) => {
                // Its progress still has the token of the call (A30).
                let request = ready.dialect.task_result(&task);
                let result = ProgramRequest::new(program, self.out, false, |_| request);
                let passed = self.wait_for(&result);
                if let Err(ToolError::Stopped) = passed {
                    let cancel = ready.dialect.task_cancel(&task);
                    ProgramRequest::new(program, self.out, false, |_| cancel);
                }
                self.conclude(passed?)
            }
            passed => self.conclude(passed),
        }
    }

    /// Publishes notes until the answer comes.
    fn wait_for(&mut self, pending: &ProgramRequest) -> Result<CallResult, ToolError> {
        loop {
            match pending.inbox.take(None) {
                Received::Notification(note) => {
                    if self.publish_note(note).is_err() {
                        pending.cancel();
                        return Err(ToolError::Stopped);
                    }
                }
                Received::Answer(answer) => return Ok(self.output.answered(answer)),
                Received::Gone(how) => return Err(self.failure(&how)),
                Received::Stopped | Received::Late => {
                    pending.cancel();
                    return Err(ToolError::Stopped);
                }
            }
        }
    }

    /// Performs the call over HTTP.
    fn call_http(
        &mut self,
        ready: &ConnectedUpstream,
        http: &Arc<HttpUpstream>,
    ) -> Result<Result<(), ToolError>, ExchangeError> {
        let id = http.new_id();
        let request = self.request(ready, id);
        let answer = self.conduct(ready, http, &request, id)?;
        let passed = match self.output.answered(answer) {
            CallResult::Task(task) => {
                let request = ready.dialect.task_result(&task);
                let answer = self.conduct(ready, http, &request, http.new_id());
                if let Err(ExchangeError::Stopped) = answer {
                    self.hook = None;
                    let mut cancel = Vec::new();
                    ready.dialect.task_cancel(&task).write(&mut cancel, http.new_id());
                    let _ = http.post(&cancel); // The task ends by itself, too.
                }
                self.output.answered(answer?)
            }
            passed => passed,
        };
        Ok(self.conclude(passed))
    }

    fn conduct(
        &mut self,
        ready: &ConnectedUpstream,
        http: &Arc<HttpUpstream>,
        request: &UnsentRequest,
        id: u64,
    ) -> Result<Result<Value, ErrorObject>, ExchangeError> {
        let wait = limits::UPSTREAM_SILENCE_MAX;
        let answer = http.conduct(request, true, id, wait, self);
        self.hook = None;
        if let Err(ExchangeError::Stopped) = answer
            && ready.dialect.era() == Era::Handshake
        {
            // In the other era the end of the exchange cancels the request (B22).
            let mut message = Vec::new();
            cancelled(&mut message, id);
            let _ = http.post(&message); // The request ends by itself, too.
        }
        answer
    }

    fn conclude(&mut self, passed: CallResult) -> Result<(), ToolError> {
        match passed {
            CallResult::Completed(pieces) => Ok(self.publish_all(pieces)?),
            CallResult::Failed(pieces, why) => {
                self.publish_all(pieces)?;
                Err(ToolError::Failed(why))
            }
            CallResult::Task(_) => Err(self.failure("its task has become another task")),
        }
    }

    fn publish_note(&mut self, note: CallNotification) -> Result<(), Stopped> {
        let pieces = self.output.on_notification(note);
        self.publish_all(pieces)
    }

    fn publish_all(&mut self, pieces: Vec<OutputPiece>) -> Result<(), Stopped> {
        pieces.into_iter().try_for_each(|piece| publish(self.out, piece))
    }
}

impl ExchangeHandler for CallDriver<'_> {
    fn opened(&mut self, stop: StopExchange) {
        self.hook = None; // Only one hook at a time.
        self.hook = Some(self.out.on_stop(stop));
    }

    fn take(&mut self, note: CallNotification) -> Result<(), Stopped> {
        self.publish_note(note)
    }

    fn is_stopped(&self) -> bool {
        self.out.is_stopped()
    }
}

fn publish(out: &mut Output, piece: OutputPiece) -> Result<(), Stopped> {
    let mut send = |kind: Kind, bytes: &[u8]| out.send_as(kind, kind as u8, bytes);
    match piece {
        OutputPiece::Text { text, more: false } => send(Kind::Output, text.as_bytes()),
        OutputPiece::Text { text, more: true } => {
            out.send_part(Kind::Output, Kind::Output as u8, text.as_bytes())
        }
        OutputPiece::Block(block) => send(Kind::Content, block.to_string().as_bytes()),
        OutputPiece::Structured(value) => send(Kind::Structured, value.to_string().as_bytes()),
        OutputPiece::Log(line) => send(Kind::Log, line.to_string().as_bytes()),
        OutputPiece::Progress { progress, total, message } => {
            let report = Report::amount(progress, total);
            out.report(match message {
                Some(message) => report.with_message(&message),
                None => report,
            });
            match out.is_stopped() {
                true => Err(Stopped),
                false => Ok(()),
            }
        }
    }
}

/// A request to a program. Dropping it stops the wait for the answer.
struct ProgramRequest {
    program: Arc<Program>,
    inbox: Arc<Inbox>,
    id: u64,
    _hook: OnStop,
}

impl ProgramRequest {
    fn new(
        program: &Arc<Program>,
        out: &Output,
        is_call: bool,
        request: impl FnOnce(u64) -> UnsentRequest,
    ) -> ProgramRequest {
        let inbox = Arc::new(Inbox::default());
        let id = program.begin(&inbox, is_call, request);
        let stopped = Arc::clone(&inbox);
        let hook = out.on_stop(move || stopped.stop());
        ProgramRequest { program: Arc::clone(program), inbox, id, _hook: hook }
    }

    fn cancel(&self) {
        self.program.cancel(self.id);
    }
}

impl Drop for ProgramRequest {
    fn drop(&mut self) {
        self.inbox.close();
        self.program.forget(self.id);
    }
}
