//! The end of a turn: events of keeps and calls are handled, and answers are given.

use crate::base::Handle;
use crate::engine::Event;
use crate::mcp::Era;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::ServerShard;
use crate::server::mcp::call::{Asker, Outlet, Stage};
use crate::server::mcp::keep::Role;
use crate::server::mcp::{Due, Link, News, Part};

impl<R: Reactor + 'static> ServerShard<R> {
    /// Handles all queued events. Gathered notifications are written in the flush.
    pub(in crate::server) fn settle_mcp(&mut self) {
        let now = self.now;
        loop {
            let Some(serve) = &mut self.guests.serve else { return };
            serve.mcp.now = now;
            match serve.mcp.news.pop() {
                None => return,
                Some(News::Keep(keep)) => self.settle_keep(keep),
                Some(News::Call(call)) => self.settle_call(call),
                Some(News::Changed(list, principal)) => self.tell_changed(list, principal),
                Some(News::Look) => self.tell_updates(),
            }
        }
    }

    fn settle_keep(&mut self, handle: Handle) {
        let serve = self.guests.serve.as_ref().expect("it keeps");
        let Some(keep) = serve.mcp.keeps.get(handle) else { return };
        let run = keep.execution.and_then(|id| self.known_run(id));
        let has_panicked = run.is_some_and(|run| run.has_panicked);
        let serve = self.guests.serve.as_mut().expect("as above");
        let keep = serve.mcp.keeps.get_mut(handle).expect("as above");
        keep.has_panicked |= has_panicked;
        match &keep.role {
            Role::Answer(call) => {
                let call = *call;
                if keep.is_a_door() {
                    self.answer_with_door(call, handle);
                } else {
                    self.settle_call(call);
                }
            }
            Role::Door => self.settle_readers(handle),
            Role::Task(_) => self.settle_task(handle),
        }
    }

    /// Answers a call if its output is complete and all its notifications were sent.
    fn settle_call(&mut self, handle: Handle) {
        let serve = self.guests.serve.as_mut().expect("it has calls");
        let Some(call) = serve.mcp.calls.get(handle) else { return };
        match &call.stage {
            Stage::Runs(keep) => {
                let keep = *keep;
                let Some(kept) = serve.mcp.keeps.get(keep) else { return };
                if kept.over.is_none() || call.notifier.is_some() {
                    return;
                }
                let execution = kept.execution;
                let reply = self.result_of(keep, &self.call_context(handle));
                let serve = self.guests.serve.as_mut().expect("as above");
                serve.mcp.calls.get_mut(handle).expect("it was just there").ran = execution;
                self.forget_keep(keep);
                self.answer_call(handle, reply);
            }
            // With a timer, it settles, and is sent when that is over.
            Stage::Answered(bytes) if call.notifier.is_none() && call.timer.is_none() => {
                let bytes = bytes.to_vec();
                self.say_answer(handle, bytes);
            }
            _ => {}
        }
    }

    /// Removes a keep that is not needed any more.
    pub(in crate::server) fn forget_keep(&mut self, handle: Handle) {
        let serve = self.guests.serve.as_mut().expect("it keeps");
        let Some(mut keep) = serve.mcp.keeps.remove(handle) else { return };
        serve.mcp.set_timer(keep.timer.take(), None);
        if let Some(subscriber) = keep.subscriber {
            self.pump(); // Earlier actions come first.
            self.ask_at_once(Event::Unsubscribe(subscriber));
        }
    }

    /// Handles the loss of a connection. In the handshake era, its call continues. In the stateless
    /// era, the loss cancels the call.
    pub(in crate::server) fn lose_link(&mut self, id: ConnectionId, link: Link) {
        match link.part {
            Part::Session(name) => self.lose_stream(name),
            Part::Lines(lines) => self.lose_lines(id, *lines),
            Part::Call(handle) => {
                let Some(serve) = &mut self.guests.serve else { return };
                let Some(call) = serve.mcp.calls.get_mut(handle) else { return };
                match call.asker {
                    Asker::Session(_) if call.context.version.era() == Era::Handshake => {
                        self.mute(handle);
                        self.settle_detached(handle);
                    }
                    Asker::Session(_) | Asker::Alone(_) => {
                        call.outlet = Outlet::Nowhere;
                        self.cancel_mcp(handle);
                    }
                }
            }
        }
    }

    /// Settles a call that has lost its connection. A call that only waits is closed.
    fn settle_detached(&mut self, handle: Handle) {
        let serve = self.guests.serve.as_mut().expect("it has calls");
        let Some(call) = serve.mcp.calls.get(handle) else { return };
        match &call.stage {
            Stage::Runs(_) | Stage::Answered(_) => serve.mcp.note(News::Call(handle)),
            Stage::Asks(_) => {} // The client comes back, or the time is up.
            Stage::Awaits(_) | Stage::Reads(..) | Stage::Listens(_) | Stage::Begins => {
                self.close_call(handle);
            }
        }
    }

    /// Handles expired deadlines.
    pub(in crate::server) fn fire_mcp_deadlines(&mut self) {
        let now = self.now;
        loop {
            let Some(serve) = &mut self.guests.serve else { return };
            serve.mcp.kept.expire(now);
            if let Some(session) = serve.mcp.sessions.expire(now) {
                serve.mcp.counts.sessions_idled_out += 1;
                serve.mcp.forget_session(session.name);
                continue;
            }
            let Some(due) = serve.mcp.timers.pop_expired(now) else { return };
            self.worked = true;
            match due {
                Due::Call(handle) => self.call_is_due(handle),
                Due::Keep(handle) => self.keep_is_due(handle),
                Due::Look => self.look_at_resources(),
            }
        }
    }

    fn call_is_due(&mut self, handle: Handle) {
        let serve = self.guests.serve.as_mut().expect("it has calls");
        let Some(call) = serve.mcp.calls.get_mut(handle) else { return };
        call.timer = None;
        match &call.stage {
            Stage::Asks(_) => {
                let text = "the client has not answered the tool's questions";
                let reply = self.refusal(&self.call_context(handle), text);
                self.answer_call(handle, reply);
            }
            Stage::Reads(keep, offset) => {
                let (keep, offset) = (*keep, *offset);
                self.answer_read(handle, keep, offset, true);
            }
            Stage::Answered(bytes) => {
                let bytes = bytes.to_vec(); // The settling of lines is over.
                self.say_answer(handle, bytes);
            }
            Stage::Runs(_) => serve.tell_held(handle),
            Stage::Awaits(_) | Stage::Listens(_) | Stage::Begins => {}
        }
    }

    fn keep_is_due(&mut self, handle: Handle) {
        let serve = self.guests.serve.as_mut().expect("it keeps");
        let Some(keep) = serve.mcp.keeps.get_mut(handle) else { return };
        keep.timer = None;
        let execution = keep.execution;
        match &keep.role {
            Role::Door => self.door_is_due(handle),
            Role::Task(_) => {
                self.forget_task(handle);
                if let Some(execution) = execution {
                    let _ = self.cancel(execution);
                }
            }
            Role::Answer(_) => {}
        }
    }
}
