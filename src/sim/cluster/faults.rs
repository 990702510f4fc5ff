//! The side of the engine in the simulated cluster: requests, and the faults of everything.

use std::time::Duration;

use super::node::Life;
use super::{Answer, ClusterTrial, Event, PULL_RECORDS, Request, Who};
use crate::base::planted::{Planted, planted};
use crate::base::{Instant, Random};
use crate::cluster::follow;
use crate::cluster::member::{self, Held};
use crate::cluster::mirror::Last;
use crate::limits::{CLUSTER_LEASE, CLUSTER_RECORD_BYTES};

/// Time between two faults, at most.
const FAULT_EVERY: Duration = Duration::from_millis(1_500);

/// The manners of the engine and of the network.
pub struct Manners {
    pub delay_max: Duration,
    /// Chances per mille.
    pub loss: u64,
    pub refusal: u64,
    pub stale: u64,
    pub forgets: bool,
    pub damages: bool,
    pub discards: bool,
    /// Bytes that may wait in a mirror.
    pub pending_bytes: u32,
}

impl Manners {
    pub fn drawn(random: &mut Random) -> Manners {
        let keeps = random.chance(1, 2);
        let mut one_of = |count| !keeps && random.chance(1, count);
        let (forgets, damages, discards) = (one_of(2), one_of(3), one_of(3));
        Manners {
            delay_max: Duration::from_micros(random.between(100, 400_000)),
            loss: random.below(80),
            refusal: random.below(100),
            stale: random.below(400),
            forgets,
            damages,
            discards,
            pending_bytes: [1, 3, 64][random.below(3) as usize] * CLUSTER_RECORD_BYTES,
        }
    }

    /// True if the engine keeps what it has acknowledged.
    pub fn keeps(&self) -> bool {
        !self.forgets && !self.damages && !self.discards
    }
}

impl ClusterTrial {
    /// The engine carries out a request. Returns its answer, if it gives one.
    pub(super) fn serve(&mut self, node: usize, who: Who, request: Request) -> Option<Answer> {
        let is_away = self.engine.is_away(self.now);
        match request {
            Request::Read { execution, wish } => self.serve_reader(node, execution, wish),
            _ if is_away => self.random.chance(1, 2).then_some(Answer::Failed),
            Request::Look { execution } => {
                let last = self.engine.last(execution);
                let last = last.map(|(place, message)| Last::read(place, &message.bytes));
                Some(Answer::Looked(last.map(Box::new)))
            }
            Request::Store { execution, expected, bytes } => {
                if self.strikes(self.manners.refusal) {
                    return Some(Answer::Failed);
                }
                let is_unconditional = match who {
                    Who::Closer(_) => planted(Planted::CloserWithoutCondition),
                    _ => planted(Planted::StoreWithoutCondition),
                };
                let expected = (!is_unconditional).then_some(expected);
                match self.engine.store(execution, expected, &bytes) {
                    Ok(place) => {
                        self.publish_again(execution, place);
                        Some(Answer::Stored(place))
                    }
                    Err(_) => Some(Answer::Failed),
                }
            }
            Request::Lease { wish } => {
                let until = self.now + CLUSTER_LEASE;
                let by = self.nodes[node].incarnation;
                let revision = match wish {
                    member::Wish::Create => None,
                    member::Wish::Renew { revision } => Some(revision),
                    member::Wish::Read => {
                        let held = self.engine.leases.get(&node).map(|(held, _)| *held);
                        return Some(Answer::Held(held));
                    }
                };
                match self.engine.lease(node, revision, by, until) {
                    Ok(revision) => {
                        self.tell_news(node, Some(Held { revision, by }));
                        Some(Answer::Written(revision))
                    }
                    Err(()) => Some(Answer::Failed),
                }
            }
        }
    }

    fn serve_reader(
        &mut self,
        node: usize,
        execution: usize,
        wish: follow::Wish,
    ) -> Option<Answer> {
        match wish {
            follow::Wish::Listen => {
                self.engine.listeners.insert((node, execution));
                Some(Answer::Listening)
            }
            follow::Wish::Unlisten => {
                self.engine.listeners.remove(&(node, execution));
                None
            }
            follow::Wish::Pull { from_leader: true, .. } if self.engine.is_away(self.now) => None,
            follow::Wish::Pull { behind, from_leader } => {
                let head = self.engine.head();
                let is_stale = !from_leader && self.strikes(self.manners.stale);
                let visible =
                    if is_stale { head - self.random.below(head.min(6) + 1) } else { head };
                self.count("stale", is_stale.into());
                let count = if from_leader { 1 } else { PULL_RECORDS };
                Some(Answer::Pulled(self.engine.pull(execution, behind, visible, count)))
            }
        }
    }

    /// Sends a stored record to those who listen.
    fn publish_again(&mut self, execution: usize, place: u64) {
        let message = self.engine.messages[&place].clone();
        for node in 0..self.nodes.len() {
            let is_heard = self.engine.listeners.contains(&(node, execution));
            if !is_heard || self.strikes(self.manners.loss) {
                continue;
            }
            let copies = if self.strikes(50) { 2 } else { 1 };
            for _ in 0..copies {
                let (delay, link, message) = (self.delay(), self.nodes[node].link, message.clone());
                self.after(delay, Event::Heard { node, link, execution, place, message });
            }
        }
    }

    pub(super) fn fault(&mut self) {
        if self.is_healed() {
            return;
        }
        let pause = self.random.below(FAULT_EVERY.as_micros() as u64);
        self.after(Duration::from_micros(pause), Event::Fault);
        let at = self.random.below(self.nodes.len() as u64) as usize;
        let until = self.now + Duration::from_millis(self.random.between(1, 9_000));
        match self.random.below(12) {
            0 | 1 if self.nodes[at].life == Life::Running => self.cut(at, until),
            2 if self.nodes[at].life == Life::Running => {
                self.nodes[at].life = Life::Frozen(until);
                self.count("froze", 1);
                self.say(|| format!("node {at} freezes"));
            }
            3 if self.random.chance(1, 3) => {
                self.nodes[at].life = Life::Dead(until);
                self.nodes[at].link = self.random.next_u64();
                self.engine.listeners.retain(|(node, _)| *node != at);
                self.count("died", 1);
                self.say(|| format!("node {at} dies"));
            }
            4 | 5 => {
                let time = Duration::from_millis(self.random.between(1, 6_000));
                self.engine.go_away(self.now, time);
                self.count("leader away", 1);
            }
            6 | 7 if self.manners.forgets => {
                let has_forgotten = self.engine.forget(&mut self.random);
                self.count("forgot", has_forgotten.into());
            }
            8 | 9 if self.manners.damages => {
                let is_damaged = self.engine.damage(&mut self.random);
                self.count("damaged", is_damaged.into());
            }
            10 if self.manners.discards => {
                let has_discarded = self.engine.discard(&mut self.random);
                self.count("discarded", has_discarded.into());
            }
            _ => {}
        }
    }

    fn cut(&mut self, at: usize, until: Instant) {
        let node = &mut self.nodes[at];
        (node.link, node.cut_until) = (self.random.next_u64(), Some(until));
        self.engine.listeners.retain(|(node, _)| *node != at);
        self.count("cut", 1);
        self.say(|| format!("node {at} is cut off"));
    }
}
