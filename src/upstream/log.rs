//! The log records of an upstream, at a bounded rate, and the number of suppressed ones.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::base::Instant;
use crate::limits;
use crate::reactor::Clock;
use crate::server::Log;
use crate::trace::Level;
use crate::trace::log::LogLine;

/// The log of one upstream.
#[derive(Debug)]
pub(super) struct UpstreamLog {
    log: Log,
    upstream: String,
    second: Mutex<RateWindow>,
}

/// The counts of the present second.
#[derive(Debug, Default)]
struct RateWindow {
    since: Option<Instant>,
    written: u32,
    suppressed: u64,
}

impl UpstreamLog {
    pub fn new(log: Log, upstream: &str) -> UpstreamLog {
        UpstreamLog { log, upstream: upstream.to_owned(), second: Mutex::default() }
    }

    /// Logs an event that an upstream cannot cause at any rate.
    pub fn event(&self, level: Level, event: &str, fill: impl FnOnce(&mut LogLine<'_>)) {
        self.log.announce(Clock::wall_us(), level, event, |line| {
            line.text("upstream", &self.upstream);
            fill(line);
        });
    }

    /// Logs a text of the upstream, at most [`limits::UPSTREAM_RECORDS_PER_S`] times a second.
    pub fn quote(&self, level: Level, event: &str, fill: impl FnOnce(&mut LogLine<'_>)) {
        if !self.log.takes(level) {
            return;
        }
        let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Clock::now();
        if second.since.is_none_or(|since| now.since(since) >= Duration::from_secs(1)) {
            let suppressed = std::mem::take(&mut second.suppressed);
            (second.since, second.written) = (Some(now), 0);
            if suppressed > 0 {
                self.event(Level::Warn, "upstream_untold", |line| {
                    line.number("records", suppressed)
                });
            }
        }
        if second.written >= limits::UPSTREAM_RECORDS_PER_S {
            second.suppressed += 1;
            return;
        }
        second.written += 1;
        drop(second);
        self.event(level, event, fill);
    }
}
