//! The listeners: their accepts, their pauses, and the connections that they have accepted.
//!
//! A listener is paused while no slot is free, and for a while after descriptors ran out. Entries
//! that the kernel has to get go into `owed`, the queue that all of [`super`] shares.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use io_uring::{opcode, squeue, types};

use super::{Flight, Owed, arm};
use crate::base::{Handle, Instant, Pool};
use crate::limits::LISTENER_PAUSE;
use crate::reactor::listener::{self, Listener};
use crate::reactor::socket_calls::{self as calls, AcceptRefusal};
use crate::reactor::uring_wakes::Purpose;
use crate::reactor::{
    Clock, IoError, ListenAddress, ListenError, ListenOptions, ListenerId, SocketCounters,
};

struct ListenerSlot {
    listener: Listener,
    accept: Flight,
    is_paused: bool,
    is_closing: bool,
}

/// A connection that was accepted and has no slot yet.
pub(super) struct Arrival {
    pub listener: Handle,
    pub fd: OwnedFd,
    pub is_unix: bool,
}

/// The listeners of a [`super::UringNet`].
pub(super) struct Listeners {
    slots: Pool<ListenerSlot>,
    /// Accepted while no slot was free, and kept until one is.
    arrivals: VecDeque<(Handle, OwnedFd)>,
    retry_at: Option<Instant>,
}

impl Listeners {
    pub fn new(listeners_max: u32) -> Listeners {
        Listeners { slots: Pool::new(listeners_max), arrivals: VecDeque::new(), retry_at: None }
    }

    /// True if no listener holds a slot.
    pub fn is_empty(&self) -> bool {
        self.slots.count() == 0
    }

    /// The end of a pause because of lacking descriptors.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Opens a listener, and begins to accept.
    pub fn open(
        &mut self,
        address: &ListenAddress,
        options: ListenOptions,
        owed: &mut Owed,
    ) -> Result<ListenerId, ListenError> {
        let accept = Flight::Owed;
        let slot =
            |listener| ListenerSlot { listener, accept, is_paused: false, is_closing: false };
        let handle = listener::open_into(&mut self.slots, address, options, true, slot)?;
        owed.push_back((Purpose::Accept, handle));
        Ok(ListenerId(handle))
    }

    /// The address of a listener that was not closed.
    pub fn address(&self, id: ListenerId) -> Option<ListenAddress> {
        let slot = self.slots.get(id.0).filter(|slot| !slot.is_closing)?;
        Some(slot.listener.address().clone())
    }

    /// Closes a listener, and the connections without a slot that it has accepted. Those of an
    /// inherited socket still arrive.
    pub fn close(&mut self, id: ListenerId, owed: &mut Owed) {
        let Some(slot) = self.slots.get_mut(id.0) else { return };
        slot.is_closing = true;
        if !slot.listener.is_inherited() {
            self.arrivals.retain(|(listener, _)| *listener != id.0);
        }
        match slot.accept {
            Flight::Armed => owed.push_back((Purpose::CancelAccept, id.0)),
            Flight::Idle | Flight::Owed => drop(self.slots.remove(id.0)),
        }
    }

    /// Closes all listeners: for the drop.
    pub fn close_all(&mut self, owed: &mut Owed) {
        for index in 0..self.slots.capacity() {
            if let Some(handle) = self.slots.handle_at(index) {
                self.close(ListenerId(handle), owed);
            }
        }
        self.arrivals.clear();
    }

    /// The entry of an accept that is owed; `None` if it is not wanted any more.
    pub fn entry(&mut self, handle: Handle) -> Option<squeue::Entry> {
        let slot = self.slots.get_mut(handle)?;
        let fd = types::Fd(slot.listener.fd());
        arm(&mut slot.accept)?;
        Some(opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build())
    }

    /// True if the kernel has the accept of this listener.
    pub fn is_armed(&self, handle: Handle) -> bool {
        self.slots.get(handle).is_some_and(|slot| slot.accept == Flight::Armed)
    }

    /// Takes one answer to an accept. A connection that it brings is among the arrivals then.
    pub fn on_answer(
        &mut self,
        handle: Handle,
        result: i32,
        has_more: bool,
        owed: &mut Owed,
        counters: &mut SocketCounters,
    ) {
        let arrived = calls::adopt_answer(result);
        let Some(slot) = self.slots.get_mut(handle) else { return };
        if !has_more {
            slot.accept = Flight::Idle;
        }
        if slot.is_closing {
            // A connection that came too late ends like those in the kernel's queue. The queue of
            // an inherited socket does not end, and this connection has left it.
            if let (Ok(fd), true) = (arrived, slot.listener.is_inherited()) {
                self.arrivals.push_back((handle, fd));
            }
            if !has_more {
                self.slots.remove(handle);
            }
            return;
        }
        match arrived {
            Ok(fd) => self.arrivals.push_back((handle, fd)),
            Err(IoError(libc::ECANCELED)) => {}
            Err(error) => match AcceptRefusal::of(error) {
                AcceptRefusal::Nobody => {}
                AcceptRefusal::Gone => counters.aborted_count += 1,
                AcceptRefusal::Exhausted => {
                    self.pause(handle, owed, counters);
                    counters.exhausted_count += u64::from(calls::is_out_of_descriptors(error));
                    let again = Clock::now() + LISTENER_PAUSE;
                    self.retry_at = Some(self.retry_at.map_or(again, |at| at.min(again)));
                }
            },
        }
    }

    /// Takes out the connection that was accepted first.
    pub fn next_arrival(&mut self) -> Option<Arrival> {
        let (listener, fd) = self.arrivals.pop_front()?;
        let is_unix = self.slots.get(listener).is_some_and(|slot| slot.listener.is_unix());
        Some(Arrival { listener, fd, is_unix })
    }

    /// True while an accepted connection has no slot.
    pub fn has_arrivals(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// Accepts further, unless that is under way, or the listener is paused or closed.
    pub fn want_accept(&mut self, handle: Handle, owed: &mut Owed) {
        let Some(slot) = self.slots.get_mut(handle) else { return };
        if slot.accept == Flight::Idle && !slot.is_paused && !slot.is_closing {
            slot.accept = Flight::Owed;
            owed.push_back((Purpose::Accept, handle));
        }
    }

    /// Accepts no more, until [`Listeners::resume`].
    pub fn pause(&mut self, handle: Handle, owed: &mut Owed, counters: &mut SocketCounters) {
        let slot = self.slots.get_mut(handle).filter(|slot| !slot.is_closing);
        let Some(slot) = slot else { return };
        if std::mem::replace(&mut slot.is_paused, true) {
            return;
        }
        counters.paused_count += 1;
        match slot.accept {
            Flight::Armed => owed.push_back((Purpose::CancelAccept, handle)),
            Flight::Idle | Flight::Owed => slot.accept = Flight::Idle,
        }
    }

    /// Ends the pauses of all listeners.
    pub fn resume(&mut self, owed: &mut Owed) {
        self.retry_at = None;
        for index in 0..self.slots.capacity() {
            let Some(slot) = self.slots.at_mut(index) else { continue };
            if std::mem::take(&mut slot.is_paused) {
                let handle = self.slots.handle_at(index).expect("the slot is taken");
                self.want_accept(handle, owed);
            }
        }
    }
}
