//! Shards that have ended. If a shard dies, its server goes on with the others. They report it in
//! `/readyz`, `/metrics` and lists, and [`ShardEnds`] reports it to the program. Tests:
//! `ends_tests.rs`.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::base::Panicked;
use crate::limits;
use crate::server::ServerHandle;
use crate::server::peers::ToPeer;
use crate::shard::CallError;
use crate::shard::handle::Command;

/// The end of one shard of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardEnd {
    /// The number of the shard.
    pub shard: u32,
    /// The message of the panic that killed it. `None` if it ended as requested.
    pub panic: Option<String>,
}

/// The ends of the shards of one server, in order. A clone continues where the original is.
#[derive(Clone, Debug, Default)]
pub struct ShardEnds {
    shared: Arc<Shared>,
    taken_count: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ends: Vec<ShardEnd>,
    handles: Vec<ServerHandle>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // Nothing inside is half done.
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state().ends.fmt(out)
    }
}

impl ShardEnds {
    /// Waits for the next end.
    pub fn wait(&mut self) -> ShardEnd {
        let mut state = self.shared.state();
        loop {
            if let Some(end) = state.ends.get(self.taken_count) {
                self.taken_count += 1;
                return end.clone();
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// True if a shard has died of a panic.
    pub fn has_death(&self) -> bool {
        self.shared.state().ends.iter().any(|end| end.panic.is_some())
    }

    /// Sets the shards that are told when another one of them dies.
    pub(in crate::server) fn introduce(&self, handles: Vec<ServerHandle>) {
        self.shared.state().handles = handles;
    }

    /// Records that a shard has ended, and tells the others if it has died.
    pub(in crate::server) fn add(&self, shard: u8, died: Option<Panicked>) {
        let mut state = self.shared.state();
        let panic = died.map(|panicked| panicked.text().to_owned());
        let others = match panic {
            Some(_) => state.handles.clone(),
            None => Vec::new(),
        };
        state.ends.push(ShardEnd { shard: shard.into(), panic });
        drop(state);
        self.shared.changed.notify_all();
        for (index, other) in others.iter().enumerate() {
            if index != usize::from(shard) {
                tell_death(other, shard);
            }
        }
    }
}

fn tell_death(other: &ServerHandle, dead: u8) {
    let mut command = Command::Message(ToPeer::Died(dead));
    while let Err((CallError::Busy, refused)) = other.to_mailbox().send(command) {
        command = refused;
        std::thread::sleep(limits::DRAIN_LOOK);
    }
}
