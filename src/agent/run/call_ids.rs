//! The ids of calls, which are unique in a run.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::limits;

/// The ids of all calls of a run.
#[derive(Debug, Default)]
pub(super) struct CallIds {
    taken: BTreeSet<Arc<str>>,
    count: u32,
}

impl CallIds {
    /// Number of calls so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the number and the id of the next call: the model's own id if it is usable,
    /// otherwise a generated one.
    pub fn next(&mut self, id: Option<String>) -> (u32, Arc<str>) {
        self.count += 1;
        let id = id.filter(|id| self.is_usable(id)).map_or_else(|| self.generated(), Arc::from);
        self.taken.insert(Arc::clone(&id));
        (self.count, id)
    }

    /// True if an id of the model is short, printable and unique in the run.
    fn is_usable(&self, id: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
        (1..=limits::AGENT_CALL_ID_BYTES_MAX).contains(&id.len())
            && id.bytes().all(is_plain)
            && !self.taken.contains(id)
    }

    fn generated(&self) -> Arc<str> {
        let number = self.count;
        let made_up = std::iter::once(format!("call_{number}"))
            .chain((2..).map(|version| format!("call_{number}_{version}")));
        let mut free = made_up.filter(|id| !self.taken.contains(id.as_str()));
        free.next().expect("there are more numbers than calls").into()
    }

    /// Checks that each call has an id of its own.
    pub fn audit(&self) {
        assert!(self.taken.len() == self.count as usize);
    }
}
