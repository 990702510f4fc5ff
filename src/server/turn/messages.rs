//! The messages of other shards: each is passed to the guest that it is for.

use crate::reactor::Reactor;
use crate::server::cluster::FromCluster;
use crate::server::peers::join::Wanted;
use crate::server::peers::{Answer, NODES, Part, Question, Subject, Ticket, ToPeer};
use crate::server::turn::{moves, parts, recall};
use crate::server::{ServerShard, calls, cluster, mcp, peers, shm, streams, subscriptions};

/// Handles a message.
pub(in crate::server) fn on_message<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    message: ToPeer,
) {
    match message {
        ToPeer::Arrive(moving) => moves::take_in(shard, *moving),
        ToPeer::Ask(asker, ticket, question) => match question {
            Question::Part(call, principal) => {
                let part = parts::part_of(shard, &call, principal);
                answer(shard, asker, ticket, Answer::Part(part));
            }
            Question::Join(wanted) => {
                if let Some(wanted) = recall::ready_join(shard, asker, ticket, wanted) {
                    join(shard, asker, ticket, &wanted);
                }
            }
        },
        ToPeer::Answer(peer, ticket, answer) => take_answer(shard, peer, ticket, answer),
        ToPeer::RunBegan(principal, thread) => calls::cut_waiting(shard, principal, &thread),
        ToPeer::RequestOver(session, id) => mcp::finish_here(shard, session, &id),
        ToPeer::Cancel(session, id) => mcp::cancel_here(shard, session, &id),
        ToPeer::SessionEnded(session) => mcp::end_far_session(shard, session),
        ToPeer::Notify(session, bytes) => mcp::tell_session_here(shard, session, &bytes),
        ToPeer::Bought(number, bought) => shm::take_in_memory(shard, number, *bought),
        ToPeer::Cluster(message) => match *message {
            FromCluster::Listed { ticket, listed } => {
                take_answer(shard, NODES, ticket, Answer::Part(Part::Nodes(Some(listed))));
            }
            message => cluster::on_message(shard, message),
        },
        ToPeer::StreamsMoved => {} // The turn looks at them at its end.
        ToPeer::Wake(key, message) => subscriptions::wake_here(shard, &key, message),
        ToPeer::Died(peer) => {
            shard.guests.peers.bury(peer);
            settle_deaths(shard);
        }
    }
}

/// Answers another shard that wants readers.
pub(in crate::server) fn join<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    asker: u8,
    ticket: Ticket,
    wanted: &Wanted,
) {
    let joined = streams::join_for(shard, wanted);
    answer(shard, asker, ticket, Answer::Joined(joined));
}

fn answer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    asker: u8,
    ticket: Ticket,
    answer: Answer,
) {
    let own = peers::own_index(shard) as u8;
    // If it takes no message, its connection waits in vain, or is gone. Readers that are dropped
    // here count as broken connections.
    let _ = peers::send(shard, asker.into(), ToPeer::Answer(own, ticket, answer));
}

fn take_answer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    peer: u8,
    ticket: Ticket,
    answer: Answer,
) {
    // Without an entry, the connection that asked is gone.
    match (shard.guests.peers.subject(ticket, peer), answer) {
        (Some(Subject::Gather(gathering)), Answer::Part(part)) => gathering.add(part),
        (Some(Subject::Join(joining)), Answer::Joined(parts)) => joining.add(parts),
        (None, _) => return,
        (Some(_), _) => unreachable!("the answer fits the question"),
    }
    finish(shard, peer, ticket);
}

/// Answers the connection that asked, if this answer was the last one.
fn finish<R: Reactor + 'static>(shard: &mut ServerShard<R>, peer: u8, ticket: Ticket) {
    match shard.guests.peers.answered(ticket, peer) {
        Some((id, Subject::Gather(gathering))) => parts::on_complete(shard, id, gathering),
        Some((id, Subject::Join(joining))) => streams::on_joined(shard, id, joining),
        None => {}
    }
}

/// Refuses the lists for which the other nodes have not answered in time.
pub(in crate::server) fn give_up_lists<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    while let Some(ticket) = cluster::take_late_list(shard) {
        take_answer(shard, NODES, ticket, Answer::Part(Part::Nodes(None)));
    }
}

/// Settles the questions to shards that have died. Nothing waits for them any more.
pub(in crate::server) fn settle_deaths<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    while let Some((peer, ticket)) = shard.guests.peers.poll_lost_question() {
        if let Some(Subject::Join(joining)) = shard.guests.peers.subject(ticket, peer) {
            joining.refuse(peer);
        }
        finish(shard, peer, ticket);
    }
}
