//! Accepted connections: accepts, pauses of listeners, and slots for accepted connections.

use std::os::fd::{AsRawFd, OwnedFd};

use super::{Connection, Flight, PendingEvent, UringNet};
use crate::base::Handle;
use crate::limits::{LISTENER_PAUSE, SEND_BUFFER_BYTES};
use crate::reactor::ends::ConnectionEnds;
use crate::reactor::released::SocketHistory;
use crate::reactor::socket_calls::{self as calls, AcceptRefusal};
use crate::reactor::uring_wakes::Purpose;
use crate::reactor::{Clock, ConnectionId, IoError, ListenerId, Peer, SocketCounters};

impl UringNet {
    pub(super) fn on_accept(
        &mut self,
        handle: Handle,
        result: i32,
        has_more: bool,
        counters: &mut SocketCounters,
    ) {
        let arrived = calls::adopt_answer(result);
        let Some(slot) = self.listeners.get_mut(handle) else { return };
        if !has_more {
            slot.accept = Flight::Idle;
        }
        if slot.is_closing {
            // A connection that came too late ends like those in the kernel's queue.
            if !has_more {
                self.listeners.remove(handle);
            }
            return;
        }
        match arrived {
            Ok(fd) => {
                self.arrivals.push_back((handle, fd));
                self.settle_arrivals(counters);
            }
            Err(IoError(libc::ECANCELED)) => {}
            Err(error) => match AcceptRefusal::of(error) {
                AcceptRefusal::Nobody => {}
                AcceptRefusal::Gone => counters.aborted_count += 1,
                AcceptRefusal::Exhausted => {
                    self.pause(handle, counters);
                    counters.exhausted_count += u64::from(calls::is_out_of_descriptors(error));
                    let again = Clock::now() + LISTENER_PAUSE;
                    self.retry_at = Some(self.retry_at.map_or(again, |at| at.min(again)));
                }
            },
        }
        if self.connections.count() == self.connections.capacity() {
            self.pause(handle, counters); // Until one is closed.
        }
        self.want_accept(handle);
    }

    fn want_accept(&mut self, handle: Handle) {
        let Some(slot) = self.listeners.get_mut(handle) else { return };
        if slot.accept == Flight::Idle && !slot.is_paused && !slot.is_closing {
            slot.accept = Flight::Owed;
            self.owed.push_back((Purpose::Accept, handle));
        }
    }

    fn pause(&mut self, handle: Handle, counters: &mut SocketCounters) {
        let Some(slot) = self.listeners.get_mut(handle) else { return };
        if std::mem::replace(&mut slot.is_paused, true) {
            return;
        }
        counters.paused_count += 1;
        match slot.accept {
            Flight::Armed => self.owed.push_back((Purpose::CancelAccept, handle)),
            Flight::Idle | Flight::Owed => slot.accept = Flight::Idle,
        }
    }

    pub(super) fn resume_listeners(&mut self) {
        self.retry_at = None;
        for index in 0..self.listeners.capacity() {
            let Some(slot) = self.listeners.at_mut(index) else { continue };
            if std::mem::take(&mut slot.is_paused) {
                let handle = self.listeners.handle_at(index).expect("the slot is taken");
                self.want_accept(handle);
            }
        }
    }

    /// Gives slots to accepted connections.
    pub(super) fn settle_arrivals(&mut self, counters: &mut SocketCounters) {
        while self.connections.count() < self.connections.capacity() {
            let Some((listener, fd)) = self.arrivals.pop_front() else { return };
            match self.settle_in(listener, fd) {
                Ok((connection, peer)) => {
                    counters.accepted_count += 1;
                    let pending = PendingEvent::Accepted(ListenerId(listener), connection, peer);
                    self.events.push_back(pending);
                }
                Err(_) => counters.aborted_count += 1,
            }
        }
    }

    /// Makes a connection of a descriptor. An error means that its peer has gone.
    fn settle_in(
        &mut self,
        listener: Handle,
        fd: OwnedFd,
    ) -> Result<(ConnectionId, Peer), IoError> {
        let peer = calls::peer(fd.as_raw_fd())?;
        if self.listeners.get(listener).is_some_and(|slot| slot.listener.is_unix()) {
            calls::set_send_buffer(fd.as_raw_fd(), SEND_BUFFER_BYTES)?;
        }
        let slot = Connection::new(ConnectionEnds::of_socket(fd), SocketHistory::none(peer));
        let handle = self.insert(slot).map_err(|_| IoError(libc::EMFILE))?;
        self.want_receive(handle);
        Ok((ConnectionId(handle), peer))
    }
}
