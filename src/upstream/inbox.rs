//! The received messages of one request, until the requesting thread takes them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::base::Instant;
use crate::limits;
use crate::mcp::upstream::CallNotification;
use crate::reactor::Clock;
use crate::wire::jsonrpc::ErrorObject;

/// The queue of messages for one request.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct InboxState {
    notes: VecDeque<(CallNotification, usize)>,
    waiting_bytes: usize,
    answer: Option<Result<Value, ErrorObject>>,
    gone: Option<String>,
    is_stopped: bool,
    /// True once no message is taken any more.
    is_closed: bool,
}

/// The result of a wait for a message.
#[derive(Debug, PartialEq)]
pub(super) enum Received {
    Notification(CallNotification),
    Answer(Result<Value, ErrorObject>),
    /// The upstream has ended, for this reason.
    Gone(String),
    /// The caller was stopped.
    Stopped,
    /// The deadline has passed.
    Late,
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a note of this size. Waits until there is room (U2).
    pub fn put(&self, note: CallNotification, bytes: usize) {
        let bytes_max = limits::UPSTREAM_WAITING_BYTES_MAX;
        let is_full = |state: &mut InboxState| {
            state.waiting_bytes > 0
                && state.waiting_bytes + bytes > bytes_max
                && !state.is_closed
                && !state.is_stopped
        };
        let waited = self.changed.wait_while(self.state(), is_full);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed || state.is_stopped {
            return;
        }
        state.waiting_bytes += bytes;
        state.notes.push_back((note, bytes));
        drop(state);
        self.changed.notify_all();
    }

    pub fn answer(&self, answer: Result<Value, ErrorObject>) {
        self.state().answer = Some(answer);
        self.changed.notify_all();
    }

    pub fn gone(&self, how: &str) {
        self.state().gone = Some(how.to_owned());
        self.changed.notify_all();
    }

    /// Ends the wait, because the call was stopped. A shard may call this.
    pub fn stop(&self) {
        self.state().is_stopped = true;
        self.changed.notify_all();
    }

    /// Drops all notes, and refuses further ones.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.notes.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the next message, and returns it in order.
    pub fn take(&self, deadline: Option<Instant>) -> Received {
        let mut state = self.state();
        loop {
            if state.is_stopped {
                return Received::Stopped;
            }
            if let Some((note, bytes)) = state.notes.pop_front() {
                state.waiting_bytes -= bytes;
                drop(state);
                self.changed.notify_all();
                return Received::Notification(note);
            }
            if let Some(answer) = state.answer.take() {
                return Received::Answer(answer);
            }
            if let Some(how) = &state.gone {
                return Received::Gone(how.clone());
            }
            state = match deadline {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.since(Clock::now());
                    if left.is_zero() {
                        return Received::Late;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn note(number: u64) -> CallNotification {
        CallNotification::Partial { seq: Some(number), content: Vec::new() }
    }

    #[test]
    fn notes_come_before_the_answer_and_that_before_the_end() {
        let inbox = Inbox::default();
        inbox.gone("dead");
        inbox.answer(Ok(Value::Null));
        inbox.put(note(1), 1);
        assert_eq!(inbox.take(None), Received::Notification(note(1)));
        assert_eq!(inbox.take(None), Received::Answer(Ok(Value::Null)));
        assert_eq!(inbox.take(None), Received::Gone("dead".to_owned()));
        inbox.stop();
        assert_eq!(inbox.take(None), Received::Stopped);
        let late = Clock::now() + Duration::from_millis(1);
        assert_eq!(Inbox::default().take(Some(late)), Received::Late);
    }

    #[test]
    fn whoever_brings_too_much_waits_until_it_is_taken_or_not_wanted() {
        let inbox = Arc::new(Inbox::default());
        // A note larger than the whole room is accepted if the inbox is empty.
        inbox.put(note(0), 2 * limits::UPSTREAM_WAITING_BYTES_MAX);
        let (sender, receiver) = std::sync::mpsc::channel();
        let bringing = Arc::clone(&inbox);
        let thread = std::thread::spawn(move || {
            for number in 1..3 {
                bringing.put(note(number), limits::UPSTREAM_WAITING_BYTES_MAX);
                sender.send(number).unwrap();
            }
        });
        assert!(receiver.recv_timeout(Duration::from_millis(20)).is_err());
        assert_eq!(inbox.take(None), Received::Notification(note(0)));
        assert_eq!(receiver.recv(), Ok(1));
        assert!(receiver.recv_timeout(Duration::from_millis(20)).is_err());
        inbox.close();
        assert_eq!(receiver.recv(), Ok(2));
        thread.join().unwrap();
    }
}
