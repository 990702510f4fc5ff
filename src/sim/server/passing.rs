//! How time passes for those who play against simulated shards.

use std::time::Duration;

use crate::base::Instant;
use crate::sim::world::SimWorld;

/// Turns until whoever still finds work is taken to find it for ever.
const TURNS_MAX: u32 = 64;
/// Deadlines at most on the way; what is still due then has to wait for the next time.
const STOPS_MAX: u32 = 100;

/// A play, whose time passes only when it is let.
pub(super) trait Passing {
    fn world(&mut self) -> &SimWorld;

    /// Everybody does what is to be done now. Was there anything?
    fn turn_once(&mut self) -> bool;

    fn next_deadline(&mut self) -> Option<Instant>;

    /// Sleeps until then, or until something happens before.
    fn park(&mut self, until: Instant);

    /// Everybody does what is to be done, and what comes of it.
    fn turn(&mut self) {
        for _ in 0..TURNS_MAX {
            if !self.turn_once() {
                break;
            }
        }
    }

    /// Lets time pass, with a turn whenever somebody has something to do.
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
