//! Receives into buffers that the kernel chooses, and the bytes that are held during a pause.

use io_uring::cqueue;

use super::{Flight, Lent, PendingEvent, UringNet, live};
use crate::base::Handle;
use crate::reactor::uring_wakes::Purpose;
use crate::reactor::{ConnectionId, IoError, SocketCounters};

impl UringNet {
    pub(super) fn on_receive(
        &mut self,
        handle: Handle,
        result: i32,
        flags: u32,
        counters: &mut SocketCounters,
    ) {
        let buffer = cqueue::buffer_select(flags).filter(|number| self.buffers.take(*number));
        let is_over = !cqueue::more(flags);
        let slot = self.connections.get_mut(handle);
        let id = ConnectionId(handle);
        let mut is_kept = false;
        if let Some(slot) = slot {
            if is_over {
                slot.receive = Flight::Idle;
            }
            match (u32::try_from(result), buffer) {
                _ if slot.is_closing => {}
                (Ok(0), _) => {
                    slot.history.has_ended = true;
                    self.events.push_back(PendingEvent::Ended(id, None));
                }
                (Ok(size_bytes), Some(buffer)) => {
                    is_kept = true;
                    counters.received_bytes += u64::from(size_bytes);
                    self.events.push_back(PendingEvent::Received { id, buffer, size_bytes });
                }
                (Ok(_), None) => {
                    // The bytes are in no buffer of ours, so nothing can be trusted.
                    slot.history.has_ended = true;
                    self.events.push_back(PendingEvent::Ended(id, Some(IoError(libc::EIO))));
                }
                (Err(_), _) => match -result {
                    libc::ENOBUFS => counters.starved_count += 1,
                    libc::ECANCELED | libc::EINTR | libc::EAGAIN => {}
                    code => {
                        slot.history.has_ended = true;
                        self.events.push_back(PendingEvent::Ended(id, Some(IoError(code))));
                    }
                },
            }
        }
        if let (false, Some(number)) = (is_kept, buffer) {
            self.give_back(number);
        }
        if is_over {
            self.want_receive(handle);
            self.settle(handle, counters);
        }
    }

    /// Starts receiving if that is wanted and not under way.
    pub(super) fn want_receive(&mut self, handle: Handle) {
        let Some(slot) = self.connections.get_mut(handle) else { return };
        let is_over = slot.history.has_ended || slot.is_closing || slot.is_releasing;
        if is_over || slot.is_connecting || !slot.is_receiving || slot.receive != Flight::Idle {
            return;
        }
        if self.buffers.has_free() {
            slot.receive = Flight::Owed;
            self.owed.push_back((Purpose::Receive, handle));
        } else {
            self.starved.push_back(handle); // Until a buffer is given back.
        }
    }

    pub(super) fn give_back(&mut self, number: u16) {
        self.buffers.give_back(number);
        while let Some(handle) = self.starved.pop_front() {
            self.want_receive(handle);
        }
    }

    /// True if received bytes go to the owner now. Otherwise they are held, or dropped after a
    /// close.
    pub(super) fn keep(&mut self, id: ConnectionId, buffer: u16, size_bytes: u32) -> bool {
        match live(&mut self.connections, id) {
            Some(slot) if slot.is_receiving && slot.held.is_empty() => return true,
            Some(slot) => {
                slot.held.extend_from_slice(self.buffers.bytes(buffer, size_bytes));
                if slot.is_receiving {
                    self.events.push_front(PendingEvent::Held(id)); // In order: behind the older.
                }
            }
            None => {}
        }
        self.give_back(buffer);
        false
    }

    pub(super) fn lend_held(&mut self, id: ConnectionId) -> bool {
        let Some(slot) = live(&mut self.connections, id) else { return false };
        if !slot.is_receiving || slot.held.is_empty() {
            return false;
        }
        self.lent = Lent::Held(id, std::mem::take(&mut slot.held));
        true
    }
}
