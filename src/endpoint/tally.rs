//! Counts of the answered requests of one shard, by route and status, and the answers for its log.
//!
//! One thread owns a tally. Its connections write to it while they write their answers, so it is
//! changed through a shared reference. Absent: peers, clocks and the log, which the shard knows.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use crate::base::{Handle, Instant};
use crate::endpoint::Surroundings;
use crate::endpoint::routes::ROUTES;
use crate::limits;
use crate::trace::Latency;
use crate::wire::http1::{Method, Status};

/// The route of a request, by its place. `None` if no route fits.
pub(super) type RouteAt = Option<u8>;

const _: () = assert!(ROUTES.len() < u8::MAX as usize);

/// Counts of answered requests: see the module's text.
///
/// ```
/// use streamdoor::endpoint::Tally;
///
/// let tally = Tally::new(false);
/// assert!(tally.counts().routes.is_empty());
/// ```
#[derive(Debug)]
pub struct Tally {
    /// By place of the route; the last is for requests without one.
    routes: RefCell<Box<[RouteCounts]>>,
    refusals: RefCell<Vec<Refusals>>,
    /// The answers that [`Tally::poll_answered`] returns.
    answered: RefCell<VecDeque<AnsweredRequest>>,
    /// True if the log gets all answers, and not only the refusals.
    logs_all: bool,
}

/// The refusals with one code.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    code: &'static str,
    count: u64,
    /// Number of refusals since the last one for the log.
    untold_count: u64,
    /// The earliest time of the next one for the log.
    next_at: Instant,
}

/// The answers of one route, by status in the order of their first answer.
type RouteCounts = Vec<(Status, Latency)>;

/// An answer for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnsweredRequest {
    /// The connection of the request.
    pub connection: Handle,
    /// The method. `None` if no route fits.
    pub method: Option<Method>,
    /// The path of the route, with names in braces. Empty if no route fits.
    pub route: &'static str,
    /// The requested path, if the request was refused for its head. It is cut.
    pub path: Option<Box<str>>,
    /// The status.
    pub status: Status,
    /// The code of the error. Empty if it is none.
    pub code: &'static str,
    /// Number of refusals with this code since the last one for the log. It is 0 if the log gets
    /// the answer for its request alone.
    pub refused_count: u64,
    /// The time from the head of the request to the head of the answer.
    pub took: Duration,
}

/// The counts of a shard's requests.
#[derive(Clone, Debug, Default)]
pub struct RequestCounts {
    /// The routes with requests.
    pub routes: Vec<RequestsOfRoute>,
    /// Number of refusals by the code of their error.
    pub refusals: Vec<(&'static str, u64)>,
}

/// The requests of one route.
#[derive(Clone, Debug)]
pub struct RequestsOfRoute {
    /// The method, in capitals. Empty if no route fits.
    pub method: &'static str,
    /// The path of the route, with names in braces. Empty if no route fits.
    pub route: &'static str,
    /// The times from the head of a request to the head of its answer, by status.
    pub by_status: Vec<(Status, Latency)>,
}

impl Tally {
    /// Creates a tally without counts. With `logs_all`, the log gets all answers.
    pub fn new(logs_all: bool) -> Tally {
        Tally {
            routes: RefCell::new(vec![RouteCounts::new(); ROUTES.len() + 1].into()),
            refusals: RefCell::default(),
            answered: RefCell::new(VecDeque::with_capacity(limits::ANSWERS_TO_LOG_MAX)),
            logs_all,
        }
    }

    /// Counts an answer. Refusals with one code are logged together, once in
    /// [`limits::REFUSALS_LOG_INTERVAL`]. An answer that finds no room is not logged.
    pub(super) fn count(
        &self,
        &Surroundings { connection, now, .. }: &Surroundings<'_>,
        (route, began): (RouteAt, Option<Instant>),
        status: Status,
        error: Option<(&'static str, Option<&str>)>,
    ) {
        let took = began.map_or(Duration::ZERO, |began| now.since(began));
        let place = route.map_or(ROUTES.len(), usize::from);
        self.record(place, status, took);
        let code = error.map_or("", |(code, _)| code);
        let refused_count = if code.is_empty() { 0 } else { self.count_refusal(code, now) };
        let mut answered = self.answered.borrow_mut();
        let is_logged = self.logs_all || refused_count > 0;
        if is_logged && answered.len() < limits::ANSWERS_TO_LOG_MAX {
            let route = route.map(|at| &ROUTES[usize::from(at)]);
            answered.push_back(AnsweredRequest {
                connection,
                method: route.map(|route| route.method),
                route: route.map_or("", |route| route.path),
                path: error.and_then(|(_, path)| path).map(Box::from),
                status,
                code,
                refused_count,
                took,
            });
        }
    }

    fn record(&self, place: usize, status: Status, took: Duration) {
        let by_status = &mut self.routes.borrow_mut()[place];
        let at = by_status.iter().position(|(known, _)| *known == status).unwrap_or_else(|| {
            by_status.push((status, Latency::default()));
            by_status.len() - 1
        });
        by_status[at].1.record(took.as_nanos() as u64, 1);
    }

    /// Counts a refusal. Returns the number for the log, or 0 if it is too early.
    fn count_refusal(&self, code: &'static str, now: Instant) -> u64 {
        let mut refusals = self.refusals.borrow_mut();
        let at = refusals.iter().position(|known| known.code == code).unwrap_or_else(|| {
            refusals.push(Refusals { code, count: 0, untold_count: 0, next_at: Instant::ZERO });
            refusals.len() - 1
        });
        let refused = &mut refusals[at];
        refused.count += 1;
        refused.untold_count += 1;
        if now < refused.next_at {
            return 0;
        }
        refused.next_at = now + limits::REFUSALS_LOG_INTERVAL;
        std::mem::take(&mut refused.untold_count)
    }

    /// True if the log gets all answers.
    pub fn logs_all(&self) -> bool {
        self.logs_all
    }

    /// Returns the next answer for the log.
    pub fn poll_answered(&self) -> Option<AnsweredRequest> {
        self.answered.borrow_mut().pop_front()
    }

    /// True if [`Tally::poll_answered`] returns an answer.
    #[inline]
    pub fn has_answered(&self) -> bool {
        !self.answered.borrow().is_empty()
    }

    /// Returns all counts.
    pub fn counts(&self) -> RequestCounts {
        let counts = self.routes.borrow();
        let routes = counts.iter().enumerate().filter_map(|(place, by_status)| {
            let (method, route) = match ROUTES.get(place) {
                Some(route) => (route.method.name(), route.path),
                None => ("", ""),
            };
            let has_any = !by_status.is_empty();
            has_any.then(|| RequestsOfRoute { method, route, by_status: by_status.clone() })
        });
        let refusals = self.refusals.borrow();
        let refusals = refusals.iter().map(|refused| (refused.code, refused.count)).collect();
        RequestCounts { routes: routes.collect(), refusals }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::exchange::around;

    #[test]
    fn refusals_with_one_code_are_told_together() {
        let tally = Tally::new(false);
        let at = |ms| Instant::from_nanos(1 << 40) + Duration::from_millis(ms);
        let refuse = |code, ms| {
            let error = Some((code, Some("/nowhere")));
            let around = Surroundings { now: at(ms), ..around() };
            tally.count(&around, (None, Some(at(0))), Status::NOT_FOUND, error);
            tally.poll_answered().map(|answered| (answered.code, answered.refused_count))
        };
        assert_eq!(refuse("a", 0), Some(("a", 1)));
        assert_eq!(refuse("b", 1), Some(("b", 1)), "each code has its own interval");
        assert_eq!((refuse("a", 2), refuse("a", 999)), (None, None));
        assert_eq!(refuse("a", 1_000), Some(("a", 3)));
        let counts = tally.counts();
        assert_eq!(counts.refusals, [("a", 4), ("b", 1)]);
        assert_eq!(counts.routes.len(), 1);
        let [(status, durations)] = counts.routes[0].by_status[..] else { panic!("{counts:?}") };
        assert_eq!((status, durations.count()), (Status::NOT_FOUND, 5));
        assert_eq!(durations.sum_ns, (2 + 999 + 1_000 + 1) * 1_000_000);
    }

    #[test]
    fn every_request_is_logged_only_if_that_is_wanted() {
        for logs_all in [false, true] {
            let tally = Tally::new(logs_all);
            let began = Instant::from_nanos(5);
            for _ in 0..2 * limits::ANSWERS_TO_LOG_MAX {
                let connection = Handle { index: 7, generation: 1 };
                let around = Surroundings { now: Instant::from_nanos(9), connection, ..around() };
                tally.count(&around, (Some(0), Some(began)), Status::OK, None);
            }
            let answered: Vec<_> = std::iter::from_fn(|| tally.poll_answered()).collect();
            assert_eq!(answered.len(), if logs_all { limits::ANSWERS_TO_LOG_MAX } else { 0 });
            assert!(answered.iter().all(|one| one.took == Duration::from_nanos(4)));
            assert!(answered.iter().all(|one| one.connection.index == 7));
            assert!(answered.iter().all(|one| one.route == ROUTES[0].path));
            let of_route = &tally.counts().routes[0];
            let [(Status::OK, durations)] = of_route.by_status[..] else { panic!("{of_route:?}") };
            assert_eq!(durations.count(), 2 * limits::ANSWERS_TO_LOG_MAX as u64);
        }
    }
}
