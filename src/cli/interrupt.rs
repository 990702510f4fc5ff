//! Ctrl-C for who has started an execution of a server: it is cancelled, perhaps before it is known
//! which it is.

use std::process::exit;
use std::sync::{Mutex, PoisonError};

use streamdoor::base::ExecutionId;
use streamdoor::client::Client;

use super::console::note;

/// Cancels the execution when somebody wants it.
pub struct Interrupt {
    client: Client,
    state: Mutex<InterruptState>,
}

#[derive(Clone, Copy, Default)]
struct InterruptState {
    execution: Option<ExecutionId>,
    is_wanted: bool,
    /// That was done already.
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
        drop(state); // Cancelling takes its time.
        if let (Some(execution), true, false) = (execution, is_wanted, is_cancelled)
            && let Err(error) = self.client.cancel(execution)
        {
            note!("streamdoor: the execution was not cancelled: {error}");
            exit(1);
        }
    }

    /// It is this one.
    pub fn begun(&self, execution: ExecutionId) {
        self.change(|state| state.execution = Some(execution));
    }

    /// It is to be cancelled.
    pub fn interrupted(&self) {
        self.change(|state| state.is_wanted = true);
    }
}
