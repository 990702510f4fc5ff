//! Idempotency keys. A client that has lost the answer to a request repeats the request with the
//! same key. It then gets the execution that the first request has begun.
//!
//! The keys of a principal are its own. A key lives as long as its execution can be found. All
//! requests with one key and one tool go to one shard ([`super::home_of_named`]). The header is
//! that of draft-ietf-httpapi-idempotency-key-header-07.

use std::collections::HashMap;

use crate::base::{ExecutionId, Principal};
use crate::endpoint::IdempotencyKey;
use crate::engine::Hold;

/// The keys of one shard, with their executions.
#[derive(Debug, Default)]
pub struct Keys {
    executions: HashMap<(Principal, Box<str>), Begun>,
}

/// The first request with a key.
#[derive(Clone, Copy, Debug)]
struct Begun {
    execution: ExecutionId,
    digest: u64,
    hold: Hold,
}

/// The meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Found {
    /// The key is new, or its execution is forgotten.
    Nothing,
    /// The same request has begun this execution.
    Execution(ExecutionId, Hold),
    /// Another request has used the key.
    OtherRequest,
}

impl Keys {
    /// Looks a key up. `is_known` tells whether the principal can still find an execution.
    pub(in crate::server) fn find(
        &self,
        principal: Principal,
        key: &IdempotencyKey,
        is_known: impl Fn(Principal, ExecutionId) -> bool,
    ) -> Found {
        let begun = self.executions.get(&(principal, key.text.clone()));
        match begun.filter(|begun| is_known(principal, begun.execution)) {
            None => Found::Nothing,
            Some(begun) if begun.digest != key.digest => Found::OtherRequest,
            Some(begun) => Found::Execution(begun.execution, begun.hold),
        }
    }

    /// Notes the execution that a request with a key has begun. If there are as many keys as
    /// executions, those of forgotten executions are dropped.
    pub(in crate::server) fn note(
        &mut self,
        principal: Principal,
        key: IdempotencyKey,
        (execution, hold): (ExecutionId, Hold),
        executions_max: usize,
        is_known: impl Fn(Principal, ExecutionId) -> bool,
    ) {
        if self.executions.len() >= executions_max {
            self.executions.retain(|(owner, _), begun| is_known(*owner, begun.execution));
        }
        let IdempotencyKey { text, digest } = key;
        self.executions.insert((principal, text), Begun { execution, digest, hold });
        assert!(self.executions.len() <= executions_max); // Each has an execution of its own.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Handle;

    fn execution(index: u32) -> ExecutionId {
        ExecutionId { shard: 0, slot: Handle { index, generation: 1 }, nonce: 7 }
    }

    fn key(text: &str, digest: u64) -> IdempotencyKey {
        IdempotencyKey { text: text.into(), digest }
    }

    #[test]
    fn a_key_means_one_request_of_one_principal() {
        let mut keys = Keys::default();
        let (ann, bob) = (Principal(1), Principal(2));
        let found = Found::Execution(execution(3), Hold::Newest);
        keys.note(ann, key("a", 5), (execution(3), Hold::Newest), 8, |_, _| true);
        assert_eq!(keys.find(ann, &key("a", 5), |_, _| true), found);
        assert_eq!(keys.find(ann, &key("a", 6), |_, _| true), Found::OtherRequest);
        assert_eq!(keys.find(bob, &key("a", 5), |_, _| true), Found::Nothing);
        assert_eq!(keys.find(ann, &key("b", 5), |_, _| true), Found::Nothing);
        assert_eq!(keys.find(ann, &key("a", 5), |_, _| false), Found::Nothing, "it is forgotten");
    }

    #[test]
    fn there_are_no_more_keys_than_executions() {
        let mut keys = Keys::default();
        for index in 0..100 {
            let is_known = |_, id: ExecutionId| id.slot.index + 4 > index;
            let begun = (execution(index), Hold::Newest);
            keys.note(Principal(1), key(&index.to_string(), 0), begun, 4, is_known);
            assert!(keys.executions.len() <= 4);
        }
    }

    #[test]
    fn a_full_table_keeps_the_keys_of_every_principal() {
        let mut keys = Keys::default();
        let (ann, bob) = (Principal(1), Principal(2));
        // The execution of a principal has its number.
        let is_known = |owner: Principal, id: ExecutionId| id.slot.index == u32::from(owner.0);
        keys.note(ann, key("a", 5), (execution(1), Hold::Newest), 3, is_known);
        keys.note(ann, key("old", 5), (execution(9), Hold::Newest), 3, is_known);
        keys.note(ann, key("older", 5), (execution(8), Hold::Newest), 3, is_known);
        keys.note(bob, key("b", 5), (execution(2), Hold::Newest), 3, is_known);
        assert_eq!(keys.executions.len(), 2, "the keys of forgotten executions are gone");
        let found = |number| Found::Execution(execution(number), Hold::Newest);
        assert_eq!(keys.find(ann, &key("a", 5), is_known), found(1));
        assert_eq!(keys.find(bob, &key("b", 5), is_known), found(2));
    }
}
