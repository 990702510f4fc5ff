//! The other shards of a server: what is asked of all of them is gathered.

use serde_json::Value;

use super::super::handle::{Command, Mailbox};
use super::super::{Shard, ShardHandle};
use super::connection::Doing;
use crate::endpoint::{Answer, ApiError, Call, documents};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::wire::http1::Status;

/// An answer that is being put together out of those of all shards.
#[derive(Debug)]
pub(super) struct Gathering {
    id: ConnectionId,
    parts: Vec<Value>,
    missing_count: usize,
}

impl Gathering {
    /// Is it this connection that has asked?
    pub fn is_for(&self, id: ConnectionId) -> bool {
        self.id == id
    }
}

impl Shard {
    /// Makes the shards of one server known to this one, itself among them, in the order of their
    /// numbers.
    pub fn set_peers(&mut self, peers: &[ShardHandle]) {
        self.peers = peers.iter().map(ShardHandle::to_mailbox).collect();
    }
}

impl<R: Reactor + 'static> Shard<R> {
    /// Which shard this is.
    pub(super) fn own_index(&self) -> usize {
        usize::from(self.engine.limits().shard)
    }

    fn other_peers(&self) -> impl Iterator<Item = &Mailbox<R>> {
        let own = self.own_index();
        self.peers.iter().enumerate().filter(move |(index, _)| *index != own).map(|(_, peer)| peer)
    }

    /// Asks all shards. `true`: it is answered.
    pub(super) fn gather(&mut self, id: ConnectionId, call: Call) -> bool {
        let own_part = self.part_of(&call);
        let asked_count = self.other_peers().count();
        let own = self.own_index();
        if !self.other_peers().all(|peer| ask_peer(peer, id, own, call.clone())) {
            let error =
                ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", "a shard takes no calls");
            return self.answer_error(id, &error.retry_after(limits::BUSY_RETRY_AFTER));
        }
        let gathering = Gathering { id, parts: vec![own_part], missing_count: asked_count };
        if asked_count == 0 {
            return self.answer_gathered(&gathering);
        }
        let serve = self.serve.as_mut().expect("it has connections");
        serve.connection(id).expect("its request is being answered").doing = Doing::Elsewhere;
        serve.gatherings.push(gathering);
        false
    }

    /// What this shard has to say.
    fn part_of(&mut self, call: &Call) -> Value {
        match call {
            Call::Executions => self.list_executions(),
            Call::AllProgress => {
                let engine = &self.engine;
                documents::all_progress(engine.tokens().map(|(token, id, progress)| {
                    (token, id, progress, engine.progress_texts(id.slot))
                }))
            }
            _ => unreachable!("no other call is asked of all"),
        }
    }

    /// Another shard has answered.
    fn take_part(&mut self, id: ConnectionId, part: Value) {
        let Some(serve) = &mut self.serve else { return };
        let Some(at) = serve.gatherings.iter().position(|gathering| gathering.id == id) else {
            return; // Who asked has gone.
        };
        let gathering = &mut serve.gatherings[at];
        gathering.parts.push(part);
        gathering.missing_count -= 1;
        if gathering.missing_count > 0 {
            return;
        }
        let gathering = serve.gatherings.swap_remove(at);
        if let Some(connection) = serve.connection(id) {
            connection.doing = Doing::Requests;
            self.answer_gathered(&gathering);
            self.serve.as_mut().expect("as above").answered.push(id);
        }
    }

    fn answer_gathered(&mut self, gathering: &Gathering) -> bool {
        let mut all = Vec::new();
        let mut name = String::new();
        for part in &gathering.parts {
            for (key, value) in part.as_object().expect("ours are objects") {
                name.clone_from(key);
                all.extend(value.as_array().expect("of one list").iter().cloned());
            }
        }
        let document = Value::from_iter([(name, Value::from(all))]);
        self.answer(gathering.id, &Answer::json(Status::OK, &document))
    }
}

/// Asks another shard for its part, to be sent to shard `asker`. Did it take the question?
fn ask_peer<R: Reactor + 'static>(
    peer: &Mailbox<R>,
    id: ConnectionId,
    asker: usize,
    call: Call,
) -> bool {
    let question = Command::Call(Box::new(move |shard: &mut Shard<R>| {
        let part = shard.part_of(&call);
        let answer = Command::Call(Box::new(move |shard: &mut Shard<R>| {
            shard.take_part(id, part);
        }));
        if let Some(asker) = shard.peers.get(asker) {
            let _ = asker.send(answer); // If it is gone by now, so is the connection.
        }
    }));
    peer.send(question).is_ok()
}
