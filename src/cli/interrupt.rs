//! Ctrl-C for a command that started an execution on a server. The execution is cancelled, even if
//! the signal comes before its id is known.

use std::process::exit;
use std::sync::{Mutex, PoisonError};

use streamdoor::base::ExecutionId;
use streamdoor::client::Client;

use super::console::print_err;

/// Cancels the execution on request, once its id is known.
pub struct Interrupt {
    client: Client,
    state: Mutex<InterruptState>,
}

#[derive(Clone, Copy, Default)]
struct InterruptState {
    execution: Option<ExecutionId>,
    is_wanted: bool,
    /// True once the request to cancel was sent.
    is_cancelled: bool,
}

impl Interrupt {
    pub fn new(client: Client) -> Interrupt {
        Interrupt { client, state: Mutex::default() }
    }

    fn change(&self, change: impl FnOnce(&mut InterruptState)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        let InterruptState { execution, is_wanted, is_cancelled } = *state;
        state.is_cancelled |= is_wanted && execution.is_some();
        drop(state); // Cancelling takes a while.
        if let (Some(execution), true, false) = (execution, is_wanted, is_cancelled)
            && let Err(error) = self.client.cancel(execution)
        {
            print_err!("streamdoor: the execution was not cancelled: {error}");
            exit(1);
        }
    }

    /// Records the id of the execution. Cancels it if that was requested before.
    pub fn begun(&self, execution: ExecutionId) {
        self.change(|state| state.execution = Some(execution));
    }

    /// Requests that the execution is cancelled.
    pub fn interrupted(&self) {
        self.change(|state| state.is_wanted = true);
    }
}
