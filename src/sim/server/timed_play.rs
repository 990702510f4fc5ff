//! The passage of time for plays against simulated shards.

use std::time::Duration;

use crate::base::Instant;
use crate::sim::world::SimWorld;

/// Turns after which a play that still finds work is left alone.
const TURNS_MAX: u32 = 64;
/// Maximum of deadlines in one passage of time. Later ones wait for the next passage.
const STOPS_MAX: u32 = 100;

/// A play whose time passes only on request.
pub(super) trait TimedPlay {
    fn world(&mut self) -> &SimWorld;

    /// Does all work that is due now, once. Returns true if any work was done.
    fn turn_once(&mut self) -> bool;

    fn next_deadline(&mut self) -> Option<Instant>;

    /// Sleeps until then, or until an earlier event.
    fn park(&mut self, until: Instant);

    /// Does all work that is due now, and the work that follows from it.
    fn turn(&mut self) {
        for _ in 0..TURNS_MAX {
            if !self.turn_once() {
                break;
            }
        }
    }

    /// Lets time pass, with a turn at each deadline.
    fn pass(&mut self, nanos: u64) {
        let until = self.world().now() + Duration::from_nanos(nanos);
        for _ in 0..STOPS_MAX {
            let due = self.next_deadline().filter(|&due| due <= until);
            let horizon = due.unwrap_or(until);
            self.world().set_horizon(Some(horizon));
            self.park(horizon);
            self.world().set_horizon(None);
            self.turn();
            if self.world().now() >= until {
                return;
            }
        }
        let world = self.world();
        world.advance_to(until.max(world.now()));
        self.turn();
    }
}
