//! One call of an upstream's tool, on a thread for tools that block. Its output is published as it
//! comes.

use std::sync::Arc;

use serde_json::Value;

use super::inbox::{Inbox, Told};
use super::link::{Ready, Upstream, Way};
use super::program::Program;
use super::site::{Customer, Fail, Stop, Web};
use crate::limits;
use crate::mcp::Era;
use crate::mcp::upstream::{Asked, Call, Note, Offer, Passed, Passing, Piece, cancelled};
use crate::server::UpstreamCount;
use crate::stream::Kind;
use crate::tool::{OnStop, Output, Report, Stopped, ToolError};
use crate::wire::jsonrpc::ErrorObject;

/// The state of a call, over either transport.
struct Caller<'a> {
    upstream: &'a Arc<Upstream>,
    offer: &'a Offer,
    arguments: &'a Value,
    out: &'a mut Output,
    passing: Passing,
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
    let passing = Passing::new(offer.spec.output_schema.is_some());
    let mut caller = Caller { upstream, offer, arguments, out, passing, hook: None };
    let result = caller.call();
    if let Err(ToolError::Failed(_)) = result {
        upstream.meter.add(UpstreamCount::Failures, 1);
    }
    result
}

impl Caller<'_> {
    fn call(&mut self) -> Result<(), ToolError> {
        // A request to an expired session was not handled: repeat it in a new session.
        for is_last in [false, true] {
            let signal = self.out.stop_signal();
            let ready = self.upstream.ready(&|| signal.is_stopped());
            if self.out.is_stopped() {
                return Err(ToolError::Stopped);
            }
            let ready = ready.map_err(|why| self.failure(&why))?;
            match &ready.way {
                Way::Program(program) => return self.call_program(&ready, program),
                Way::Web(web) => match self.call_web(&ready, web) {
                    Err(Fail::SessionGone) if !is_last => self.upstream.lose(&ready),
                    Err(Fail::SessionGone) => return Err(self.failure("its session is over")),
                    Err(Fail::Stopped) => return Err(ToolError::Stopped),
                    Err(Fail::Unreachable(why) | Fail::Refused(why) | Fail::Broken(why)) => {
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

    fn asked(&self, ready: &Ready, token: u64) -> Asked {
        ready.dialect.call(&Call {
            name: &self.offer.name,
            arguments: self.arguments,
            schema: &self.offer.spec.arguments,
            as_task: self.offer.as_task,
            token,
            trace: self.out.trace(),
        })
    }

    /// Performs the call over the standard streams of a program.
    fn call_program(&mut self, ready: &Ready, program: &Arc<Program>) -> Result<(), ToolError> {
        let call = Begun::new(program, self.out, true, |id| self.asked(ready, id));
        match self.wait_for(&call)? {
            Passed::Task(task) => {
                // Its progress still has the token of the call (A30).
                let asked = ready.dialect.task_result(&task);
                let result = Begun::new(program, self.out, false, |_| asked);
                let passed = self.wait_for(&result);
                if let Err(ToolError::Stopped) = passed {
                    let cancel = ready.dialect.task_cancel(&task);
                    Begun::new(program, self.out, false, |_| cancel);
                }
                self.conclude(passed?)
            }
            passed => self.conclude(passed),
        }
    }

    /// Publishes notes until the answer comes.
    fn wait_for(&mut self, begun: &Begun) -> Result<Passed, ToolError> {
        loop {
            match begun.inbox.take(None) {
                Told::Note(note) => {
                    if self.publish_note(note).is_err() {
                        begun.cancel();
                        return Err(ToolError::Stopped);
                    }
                }
                Told::Answer(answer) => return Ok(self.passing.answered(answer)),
                Told::Gone(how) => return Err(self.failure(&how)),
                Told::Stopped | Told::Late => {
                    begun.cancel();
                    return Err(ToolError::Stopped);
                }
            }
        }
    }

    /// Performs the call over HTTP.
    fn call_web(&mut self, ready: &Ready, web: &Arc<Web>) -> Result<Result<(), ToolError>, Fail> {
        let id = web.new_id();
        let asked = self.asked(ready, id);
        let answer = self.conduct(ready, web, &asked, id)?;
        let passed = match self.passing.answered(answer) {
            Passed::Task(task) => {
                let asked = ready.dialect.task_result(&task);
                let answer = self.conduct(ready, web, &asked, web.new_id());
                if let Err(Fail::Stopped) = answer {
                    self.hook = None;
                    let mut cancel = Vec::new();
                    ready.dialect.task_cancel(&task).write(&mut cancel, web.new_id());
                    let _ = web.post(&cancel); // The task ends by itself, too.
                }
                self.passing.answered(answer?)
            }
            passed => passed,
        };
        Ok(self.conclude(passed))
    }

    fn conduct(
        &mut self,
        ready: &Ready,
        web: &Arc<Web>,
        asked: &Asked,
        id: u64,
    ) -> Result<Result<Value, ErrorObject>, Fail> {
        let wait = limits::UPSTREAM_SILENCE_MAX;
        let answer = web.conduct(asked, true, id, wait, self);
        self.hook = None;
        if let Err(Fail::Stopped) = answer
            && ready.dialect.era() == Era::Handshake
        {
            // In the other era the end of the exchange cancels the request (B22).
            let mut message = Vec::new();
            cancelled(&mut message, id);
            let _ = web.post(&message); // The request ends by itself, too.
        }
        answer
    }

    fn conclude(&mut self, passed: Passed) -> Result<(), ToolError> {
        match passed {
            Passed::Completed(pieces) => Ok(self.publish_all(pieces)?),
            Passed::Failed(pieces, why) => {
                self.publish_all(pieces)?;
                Err(ToolError::Failed(why))
            }
            Passed::Task(_) => Err(self.failure("its task has become another task")),
        }
    }

    fn publish_note(&mut self, note: Note) -> Result<(), Stopped> {
        let pieces = self.passing.hear(note);
        self.publish_all(pieces)
    }

    fn publish_all(&mut self, pieces: Vec<Piece>) -> Result<(), Stopped> {
        pieces.into_iter().try_for_each(|piece| publish(self.out, piece))
    }
}

impl Customer for Caller<'_> {
    fn opened(&mut self, stop: Stop) {
        self.hook = None; // Only one hook at a time.
        self.hook = Some(self.out.on_stop(stop));
    }

    fn take(&mut self, note: Note) -> Result<(), Stopped> {
        self.publish_note(note)
    }

    fn is_stopped(&self) -> bool {
        self.out.is_stopped()
    }
}

fn publish(out: &mut Output, piece: Piece) -> Result<(), Stopped> {
    let mut send = |kind: Kind, bytes: &[u8]| out.send_as(kind, kind as u8, bytes);
    match piece {
        Piece::Text { text, more: false } => send(Kind::Output, text.as_bytes()),
        Piece::Text { text, more: true } => {
            out.send_part(Kind::Output, Kind::Output as u8, text.as_bytes())
        }
        Piece::Block(block) => send(Kind::Content, block.to_string().as_bytes()),
        Piece::Structured(value) => send(Kind::Json, value.to_string().as_bytes()),
        Piece::Log(line) => send(Kind::Log, line.to_string().as_bytes()),
        Piece::Progress { progress, total, message } => {
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
struct Begun {
    program: Arc<Program>,
    inbox: Arc<Inbox>,
    id: u64,
    _hook: OnStop,
}

impl Begun {
    fn new(
        program: &Arc<Program>,
        out: &Output,
        is_call: bool,
        asked: impl FnOnce(u64) -> Asked,
    ) -> Begun {
        let inbox = Arc::new(Inbox::default());
        let id = program.begin(&inbox, is_call, asked);
        let stopped = Arc::clone(&inbox);
        let hook = out.on_stop(move || stopped.stop());
        Begun { program: Arc::clone(program), inbox, id, _hook: hook }
    }

    fn cancel(&self) {
        self.program.cancel(self.id);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.inbox.close();
        self.program.forget(self.id);
    }
}
