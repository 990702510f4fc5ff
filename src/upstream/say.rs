//! The log records of an upstream, at a bounded rate, and the number of suppressed ones.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::base::Instant;
use crate::limits;
use crate::reactor::Clock;
use crate::server::Log;
use crate::trace::Level;
use crate::trace::log::Line;

/// The log of one upstream.
#[derive(Debug)]
pub(super) struct Say {
    log: Log,
    upstream: String,
    second: Mutex<Second>,
}

/// The counts of the present second.
#[derive(Debug, Default)]
struct Second {
    since: Option<Instant>,
    told: u32,
    untold: u64,
}

impl Say {
    pub fn new(log: Log, upstream: &str) -> Say {
        Say { log, upstream: upstream.to_owned(), second: Mutex::default() }
    }

    /// Logs an event that an upstream cannot cause at any rate.
    pub fn event(&self, level: Level, event: &str, fill: impl FnOnce(&mut Line<'_>)) {
        self.log.announce(Clock::wall_us(), level, event, |line| {
            line.text("upstream", &self.upstream);
            fill(line);
        });
    }

    /// Logs a text of the upstream, at most [`limits::UPSTREAM_RECORDS_PER_S`] times a second.
    pub fn quote(&self, level: Level, event: &str, fill: impl FnOnce(&mut Line<'_>)) {
        if !self.log.takes(level) {
            return;
        }
        let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Clock::now();
        if second.since.is_none_or(|since| now.since(since) >= Duration::from_secs(1)) {
            let untold = std::mem::take(&mut second.untold);
            (second.since, second.told) = (Some(now), 0);
            if untold > 0 {
                self.event(Level::Warn, "upstream_untold", |line| line.number("records", untold));
            }
        }
        if second.told >= limits::UPSTREAM_RECORDS_PER_S {
            second.untold += 1;
            return;
        }
        second.told += 1;
        drop(second);
        self.event(level, event, fill);
    }
}
