//! The tables of all executions and of the seats of their subscribers.

use crate::base::{ExecutionId, Handle, Pool, SubscriberId};
use crate::engine::EngineLimits;
use crate::engine::effects::Effects;
use crate::engine::event::SubscriberPlace;
use crate::engine::execution::Execution;
use crate::engine::remote::Remote;
use crate::engine::resume::Successor;
use crate::engine::subscriber::Local;
use crate::engine::wheel::TimerId;

/// The place of a subscriber in the lists of its execution.
#[derive(Clone, Copy, Debug)]
struct Seat {
    execution: Handle,
    place: SubscriberPlace,
    /// The index into the execution's list of that place.
    at: u32,
}

/// The executions of a shard, and the seats of their subscribers.
#[derive(Debug)]
pub(super) struct Registry {
    pub executions: Pool<Execution>,
    seats: Pool<Seat>,
}

impl Registry {
    pub fn new(limits: &EngineLimits) -> Registry {
        Registry {
            executions: Pool::new(limits.executions_max),
            seats: Pool::new(limits.subscribers_max),
        }
    }

    /// Returns the execution of an id that came from outside. Its nonce must match, too.
    pub fn find(&self, id: ExecutionId) -> Option<&Execution> {
        self.executions.get(id.slot).filter(|execution| execution.id == id)
    }

    /// Returns an execution that our own state names.
    #[inline]
    pub fn living(&self, execution: Handle) -> &Execution {
        self.executions.get(execution).expect("a living execution")
    }

    /// Returns an execution that our own state names: an execution with a subscriber, a timer or a
    /// place in a list lives.
    #[inline]
    pub fn living_mut(&mut self, execution: Handle) -> &mut Execution {
        self.executions.get_mut(execution).expect("a living execution")
    }

    /// The execution of a subscriber; `None` for an unknown subscriber.
    #[inline]
    pub fn execution_of(&self, subscriber: SubscriberId) -> Option<Handle> {
        self.seats.get(subscriber.0).map(|seat| seat.execution)
    }

    /// The execution that a reader on another thread follows; `None` for a local or unknown
    /// subscriber.
    pub fn followed_by_remote(&self, subscriber: SubscriberId) -> Option<Handle> {
        let seat = self.seats.get(subscriber.0)?;
        (seat.place == SubscriberPlace::Remote).then_some(seat.execution)
    }

    /// Returns a local subscriber, whose cursor may be out of date.
    pub fn local(&self, subscriber: SubscriberId) -> Option<&Local> {
        let seat = self.seats.get(subscriber.0)?;
        if seat.place != SubscriberPlace::Local {
            return None;
        }
        let e = self.executions.get(seat.execution).expect("a seat's execution lives");
        let local = &e.audience.locals.without_cursors()[seat.at as usize];
        assert!(local.id == subscriber);
        Some(local)
    }

    pub fn local_mut(&mut self, subscriber: SubscriberId) -> Option<&mut Local> {
        let (e, at) = self.local_seat(subscriber)?;
        let local = &mut e.audience.locals.apart()[at];
        assert!(local.id == subscriber);
        Some(local)
    }

    pub fn remote_mut(&mut self, subscriber: SubscriberId) -> Option<&mut Remote> {
        let seat = self.seats.get(subscriber.0)?;
        if seat.place != SubscriberPlace::Remote {
            return None;
        }
        let e = self.executions.get_mut(seat.execution).expect("a seat's execution lives");
        let remote = &mut e.audience.remotes[seat.at as usize];
        assert!(remote.id == subscriber);
        Some(remote)
    }

    /// Returns the execution of a local subscriber, and the index of the subscriber in its list.
    pub fn local_seat(&mut self, subscriber: SubscriberId) -> Option<(&mut Execution, usize)> {
        let seat = self.seats.get(subscriber.0)?;
        if seat.place != SubscriberPlace::Local {
            return None;
        }
        let e = self.executions.get_mut(seat.execution).expect("a seat's execution lives");
        Some((e, seat.at as usize))
    }

    /// The place of the grace timer of a subscriber, whose connection is broken.
    pub fn grace_timer_mut(&mut self, subscriber: SubscriberId) -> &mut Option<TimerId> {
        match self.followed_by_remote(subscriber) {
            Some(_) => &mut self.remote_mut(subscriber).expect("as above").grace_timer,
            None => {
                let local = self.local_mut(subscriber).expect("a living subscriber");
                &mut local.detail.grace_timer
            }
        }
    }

    /// Sets or removes the claim of a subscriber to the place of an older one.
    pub fn set_successor(&mut self, subscriber: SubscriberId, successor: Option<Successor>) {
        // No subscriber continues itself.
        assert!(successor.is_none_or(|successor| successor.of() != subscriber));
        if let Some(remote) = self.remote_mut(subscriber) {
            remote.successor = successor;
        } else {
            let local = self.local_mut(subscriber).expect("a living subscriber");
            local.detail.successor = successor.map(Box::new);
        }
    }

    /// Makes a seat for the subscriber that will be put at index `at`. Returns its name; `None` if
    /// all seats are taken.
    pub fn add(
        &mut self,
        execution: Handle,
        place: SubscriberPlace,
        at: usize,
    ) -> Option<SubscriberId> {
        let seat = Seat { execution, place, at: at as u32 };
        let seat = self.seats.insert(seat).ok()?;
        assert!(seat.index < self.seats.capacity()); // The shard's tables have this size.
        Some(SubscriberId(seat))
    }

    /// Removes the seat of a subscriber. A local one leaves a hole in its list, which
    /// [`Registry::compact`] closes. Returns its execution.
    pub fn remove(&mut self, subscriber: SubscriberId, effects: &mut Effects) -> Handle {
        let seat = self.seats.remove(subscriber.0).expect("a living subscriber");
        let e = self.executions.get_mut(seat.execution).expect("a seat's execution lives");
        match seat.place {
            SubscriberPlace::Local => {
                let timers = e.audience.leave_hole(seat.at, subscriber);
                timers.into_iter().for_each(|timer| effects.disarm(timer));
            }
            SubscriberPlace::Remote => {
                let remotes = &mut e.audience.remotes;
                let remote = remotes.swap_remove(seat.at as usize);
                assert!(remote.id == subscriber);
                if let Some(moved) = remotes.get(seat.at as usize) {
                    let moved = self.seats.get_mut(moved.id.0).expect("a living subscriber");
                    assert!(moved.place == SubscriberPlace::Remote);
                    assert!(moved.at as usize == remotes.len()); // It was the last one.
                    moved.at = seat.at;
                }
                effects.disarm(remote.grace_timer);
            }
        }
        seat.execution
    }

    /// Closes the holes that removed local subscribers have left in the list.
    pub fn compact(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("a living execution");
        if !e.audience.close_holes() {
            return;
        }
        for (at, local) in e.audience.locals.without_cursors().iter().enumerate() {
            let seat = self.seats.get_mut(local.id.0).expect("a living subscriber");
            assert!(seat.execution == execution);
            assert!(seat.place == SubscriberPlace::Local);
            assert!(seat.at >= at as u32); // Holes are closed towards the front.
            seat.at = at as u32;
        }
        e.audience_changed();
    }

    /// Checks each execution, and that each subscriber has the seat that names it.
    pub fn audit(&self) {
        for (handle, execution) in self.executions.iter() {
            assert_eq!(execution.id.slot, handle);
            execution.audit();
            for (at, local) in execution.audience.locals.without_cursors().iter().enumerate() {
                if !local.gone {
                    let seat = self.seats.get(local.id.0).expect("a subscriber has a seat");
                    assert_eq!((seat.execution, seat.at), (handle, at as u32));
                    assert_eq!(seat.place, SubscriberPlace::Local);
                }
            }
            for (at, remote) in execution.audience.remotes.iter().enumerate() {
                let seat = self.seats.get(remote.id.0).expect("a subscriber has a seat");
                assert_eq!((seat.execution, seat.at), (handle, at as u32));
                assert_eq!(seat.place, SubscriberPlace::Remote);
            }
        }
        for (_, seat) in self.seats.iter() {
            assert!(self.executions.get(seat.execution).is_some());
        }
    }
}
