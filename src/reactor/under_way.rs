//! A bound of what is under way on a connection (R27): sent, and not read by the peer's program.
//!
//! TCP confirms bytes that the peer's program has not read. They wait in the peer's kernel, whose
//! window shrinks by as much. The widest window that was seen, less the present one, is therefore
//! about the number of unread bytes. On loopback the peer's own count (FIONREAD) was at most one
//! and a half times of that, also while the kernel made its buffer larger (up to 3.7 MB).
//!
//! A kernel says how wide its window is when it confirms something, and seldom when its program
//! reads (Linux: when the window has doubled). The window is asked for when the bytes that may be
//! sent are used up. If it is too narrow, a few bytes are sent soon as a probe: the answer tells
//! the window of that moment. A peer that reads nothing is probed less and less often.
//!
//! A kernel may make its buffer smaller, too. Then nothing seems to be read any more, although
//! everything is. If several probes leave the window as wide as it was, everything was read.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::base::{Handle, Instant};
use crate::limits::{
    BOUNDED_UNREAD_BYTES_MIN, PROBE_BYTES, PROBES_UNMOVED_MAX, WINDOW_LOOK_AFTER,
    WINDOW_LOOK_AFTER_MAX, WINDOW_SHARE,
};
use crate::reactor::IoError;
use crate::reactor::ends::Ends;

/// A peer's window, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Bytes that the peer's kernel takes.
    pub bytes: u32,
    /// Nothing is under way to that kernel: it has confirmed everything.
    pub is_settled: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct UnderWay {
    /// Bytes that the peer's program may leave unread.
    unread_max: u32,
    /// The widest window that was seen.
    widest: u32,
    /// Bytes that may be sent until the window is asked for again.
    allowed: u32,
    hold: Option<Hold>,
}

/// Nothing may be sent at present.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// The narrowest window since then.
    window: u32,
    look_at: Instant,
    /// The time until the next look. It doubles with each probe.
    pause: Duration,
    /// The number of probes that have left the window as wide as it was.
    unmoved: u32,
}

impl UnderWay {
    /// A bound of so many bytes in all, while nothing is unread.
    pub fn new(bytes: u32, window: Window) -> UnderWay {
        let unread_max = (bytes / WINDOW_SHARE).max(BOUNDED_UNREAD_BYTES_MIN);
        UnderWay { unread_max, widest: window.bytes, allowed: unread_max, hold: None }
    }

    /// Sends as much of `slices` as is allowed, as [`Ends::send`] does. `true` if that was all that
    /// stands in the way of the rest.
    pub fn send(
        &mut self,
        ends: &Ends,
        slices: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
    ) -> (usize, Option<IoError>, bool) {
        let allowed = self.allowed(|| ends.window());
        if allowed == 0 {
            return (0, None, true);
        }
        let mut part = [IoSlice::new(&[])];
        let fitting = fitting(slices, allowed, &mut part);
        let (sent_bytes, error) = ends.send(fitting, descriptors);
        self.sent(sent_bytes);
        let is_fit_sent = error.is_none() && sent_bytes == bytes_of(fitting);
        (sent_bytes, error, is_fit_sent && sent_bytes < bytes_of(slices))
    }

    /// The number of bytes that may be sent now. `look` asks for the window; None: it is known no
    /// more, and the next send says why.
    fn allowed(&mut self, look: impl FnOnce() -> Option<Window>) -> usize {
        if self.allowed == 0 {
            let Some(window) = look() else { return usize::MAX };
            self.see(window);
        }
        self.allowed as usize
    }

    /// This many bytes were sent.
    fn sent(&mut self, bytes: usize) {
        self.allowed = self.allowed.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    fn see(&mut self, window: Window) {
        self.widest = self.widest.max(window.bytes);
        self.allowed = self.unread_max.saturating_sub(self.widest - window.bytes);
    }

    /// No more may be sent for the present: when to look again.
    pub fn hold(&mut self, window: Option<Window>, now: Instant) -> Instant {
        let hold = self.hold.get_or_insert_with(|| Hold {
            window: window.map_or(0, |window| window.bytes),
            look_at: now,
            pause: WINDOW_LOOK_AFTER,
            unmoved: 0,
        });
        hold.look_at = now + hold.pause;
        hold.look_at
    }

    /// Looks whether something may be sent again, if only a probe. If not, when to look again.
    pub fn look(&mut self, window: Option<Window>, now: Instant) -> Result<(), Instant> {
        let (Some(mut hold), Some(window)) = (self.hold, window) else {
            self.hold = None;
            return Ok(());
        };
        if now < hold.look_at {
            return Err(hold.look_at);
        }
        self.see(window);
        if self.allowed > 0 {
            self.hold = None;
            return Ok(());
        }
        if !window.is_settled {
            hold.look_at = now + hold.pause;
            self.hold = Some(hold);
            return Err(hold.look_at);
        }
        hold.unmoved = if window.bytes < hold.window { 0 } else { hold.unmoved + 1 };
        hold.window = hold.window.min(window.bytes);
        if hold.unmoved > PROBES_UNMOVED_MAX {
            self.widest = window.bytes; // The probes were read, and so was everything before them.
            self.see(window);
            self.hold = None;
            return Ok(());
        }
        hold.pause = (hold.pause * 2).min(WINDOW_LOOK_AFTER_MAX);
        self.hold = Some(hold);
        self.allowed = PROBE_BYTES;
        Ok(())
    }
}

/// The connections of a reactor that may send nothing at present.
#[derive(Debug, Default)]
pub(super) struct Held {
    handles: Vec<Handle>,
    look_at: Option<Instant>,
}

impl Held {
    pub fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    pub fn is_due(&self, now: impl FnOnce() -> Instant) -> bool {
        self.look_at.is_some_and(|at| at <= now())
    }

    /// Keeps an eye on one, from then on.
    pub fn add(&mut self, handle: Handle, look_at: Instant) {
        if !self.handles.contains(&handle) {
            self.handles.push(handle);
        }
        self.look_at = Some(self.look_at.map_or(look_at, |at| at.min(look_at)));
    }

    /// Looks at all. `look` says when to look at one again, or None if it is not held any more.
    pub fn look(&mut self, mut look: impl FnMut(Handle) -> Option<Instant>) {
        let mut next: Option<Instant> = None;
        self.handles.retain(|&handle| {
            let again = look(handle);
            next = next.into_iter().chain(again).min();
            again.is_some()
        });
        self.look_at = next;
    }
}

/// The first slices, as many as are allowed; at least a part of the first.
fn fitting<'s>(
    slices: &'s [IoSlice<'s>],
    allowed: usize,
    part: &'s mut [IoSlice<'s>; 1],
) -> &'s [IoSlice<'s>] {
    let mut bytes = 0;
    let fit = slices.iter().take_while(|slice| {
        bytes += slice.len();
        bytes <= allowed
    });
    match (fit.count(), slices.first()) {
        (0, Some(first)) => {
            part[0] = IoSlice::new(&first[..allowed.min(first.len())]);
            part
        }
        (count, _) => &slices[..count],
    }
}

fn bytes_of(slices: &[IoSlice<'_>]) -> usize {
    slices.iter().map(|slice| slice.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: u32 = 40_000;
    const UNREAD_MAX: u32 = BOUND / WINDOW_SHARE;

    /// A peer's kernel. It tells its window when something arrives, before its program reads.
    struct Peer {
        buffer: u32,
        unread: u32,
        told: u32,
    }

    impl Peer {
        fn new(buffer: u32) -> Peer {
            Peer { buffer, unread: 0, told: buffer }
        }

        fn take(&mut self, bytes: u32) {
            self.unread += bytes;
            self.told = self.buffer.saturating_sub(self.unread);
        }

        fn window(&self) -> Option<Window> {
            Some(Window { bytes: self.told, is_settled: true })
        }
    }

    /// Sends all that is allowed.
    fn send_all(under_way: &mut UnderWay, peer: &mut Peer) -> u32 {
        let mut sent = 0;
        loop {
            let allowed = under_way.allowed(|| peer.window()) as u32;
            if allowed == 0 {
                return sent;
            }
            under_way.sent(allowed as usize);
            peer.take(allowed);
            sent += allowed;
        }
    }

    fn bounded(peer: &Peer) -> UnderWay {
        UnderWay::new(BOUND, peer.window().unwrap())
    }

    #[test]
    fn a_peer_that_reads_nothing_is_sent_the_bound_and_probes() {
        let mut peer = Peer::new(1 << 20);
        let mut under_way = bounded(&peer);
        let mut now = Instant::ZERO;
        assert_eq!(send_all(&mut under_way, &mut peer), UNREAD_MAX);
        let mut look_at = under_way.hold(peer.window(), now);
        let mut probes = 0;
        while now.since(Instant::ZERO) < Duration::from_secs(30) {
            now = look_at;
            assert_eq!(under_way.look(peer.window(), now), Ok(()));
            assert_eq!(send_all(&mut under_way, &mut peer), PROBE_BYTES);
            probes += 1;
            look_at = under_way.hold(peer.window(), now);
            assert!(look_at > now);
        }
        assert!((20..40).contains(&probes), "{probes} probes");
    }

    #[test]
    fn a_peer_that_reads_tells_so_when_a_probe_comes() {
        let mut peer = Peer::new(100_000);
        let mut under_way = bounded(&peer);
        send_all(&mut under_way, &mut peer);
        let look_at = under_way.hold(peer.window(), Instant::ZERO);
        assert_eq!(look_at, Instant::ZERO + WINDOW_LOOK_AFTER);
        peer.unread = 0; // It has not said so.
        assert_eq!(under_way.look(peer.window(), Instant::ZERO), Err(look_at)); // Not yet.
        assert_eq!(under_way.look(peer.window(), look_at), Ok(()));
        under_way.sent(PROBE_BYTES as usize);
        peer.take(PROBE_BYTES);
        assert_eq!(send_all(&mut under_way, &mut peer), UNREAD_MAX - PROBE_BYTES);
    }

    #[test]
    fn no_probe_follows_one_that_is_not_confirmed() {
        let mut peer = Peer::new(100_000);
        let mut under_way = bounded(&peer);
        send_all(&mut under_way, &mut peer);
        let mut now = under_way.hold(peer.window(), Instant::ZERO);
        let unsettled = Window { bytes: peer.told, is_settled: false };
        for _ in 0..100 {
            now = under_way.look(Some(unsettled), now).unwrap_err();
        }
    }

    #[test]
    fn the_unread_bytes_stay_bounded_while_the_buffer_grows() {
        let mut peer = Peer::new(100_000);
        let mut under_way = bounded(&peer);
        for _ in 0..100 {
            send_all(&mut under_way, &mut peer);
            assert!(peer.unread <= 2 * UNREAD_MAX, "{} bytes are unread", peer.unread);
            peer.buffer += 1_000;
            peer.unread -= peer.unread.min(UNREAD_MAX / 2);
            peer.take(0);
            send_all(&mut under_way, &mut peer);
            peer.unread = 0;
            peer.take(0);
        }
    }

    #[test]
    fn a_buffer_that_has_become_smaller_holds_nothing_up_for_good() {
        let mut peer = Peer::new(100_000);
        let mut under_way = bounded(&peer);
        send_all(&mut under_way, &mut peer);
        (peer.buffer, peer.unread) = (40_000, 0);
        peer.take(0);
        let mut now = under_way.hold(peer.window(), Instant::ZERO);
        let mut sent = 0;
        while sent < UNREAD_MAX {
            match under_way.look(peer.window(), now) {
                Err(again) => now = again,
                Ok(()) => {
                    sent += send_all(&mut under_way, &mut peer);
                    peer.unread = 0; // It reads all.
                    peer.take(0);
                    now = under_way.hold(peer.window(), now);
                }
            }
            assert!(now.since(Instant::ZERO) < Duration::from_secs(1), "{sent} bytes were sent");
        }
    }

    #[test]
    fn a_connection_without_a_window_any_more_is_not_held() {
        let peer = Peer::new(100_000);
        let mut under_way = bounded(&peer);
        under_way.sent(BOUND as usize);
        under_way.hold(peer.window(), Instant::ZERO);
        assert_eq!(under_way.look(None, Instant::ZERO), Ok(()));
        assert_eq!(under_way.allowed(|| None), usize::MAX);
    }

    #[test]
    fn those_that_are_held_are_looked_at_until_they_are_not() {
        let handle = |index| Handle { index, generation: 0 };
        let at = |nanos| Instant::from_nanos(nanos);
        let mut held = Held::default();
        assert!(!held.is_due(|| at(1_000)));
        held.add(handle(1), at(20));
        held.add(handle(2), at(10));
        held.add(handle(1), at(30));
        assert!(held.is_due(|| at(10)) && !held.is_due(|| at(9)));
        let mut seen = Vec::new();
        held.look(|handle| {
            seen.push(handle.index);
            (handle.index == 1).then_some(at(40))
        });
        assert_eq!((seen, held.look_at()), (vec![1, 2], Some(at(40))));
        held.look(|_| None);
        assert_eq!(held.look_at(), None);
    }

    #[test]
    fn slices_are_cut_to_what_is_allowed() {
        let slices = [IoSlice::new(b"abc"), IoSlice::new(b"defg")];
        let fits = |allowed| {
            let mut part = [IoSlice::new(&[])];
            let fitting = fitting(&slices, allowed, &mut part).iter();
            fitting.flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>()
        };
        assert_eq!(fits(2), b"ab");
        assert_eq!(fits(3), b"abc");
        assert_eq!(fits(6), b"abc");
        assert_eq!(fits(usize::MAX), b"abcdefg");
        let mut part = [IoSlice::new(&[])];
        assert!(fitting(&[], 5, &mut part).is_empty());
    }
}
