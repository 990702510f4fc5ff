//! Name resolution. The system's resolver may take long, so threads wait for it. They start with
//! the first name and end a while after the last.
//!
//! They also read the certificates that the system trusts, which the first TLS connection needs.

use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::base::Handle;
use crate::limits;
use crate::reactor::Waker;
use crate::server::outgoing::config::{KnownNames, OutgoingConfig};
use crate::server::outgoing::tls::Trusted;

/// The answer to a question.
pub(in crate::server) enum Found {
    /// The addresses of a site's name, at least one, or the reason for the failure.
    Addresses { site: Handle, result: Result<Vec<SocketAddr>, String> },
    /// The certificates that the system trusts.
    Trusted(Result<Trusted, String>),
}

/// The source of the answers.
pub(in crate::server) enum Resolver {
    Threads { shared: Arc<Shared>, found: Receiver<Found> },
    Fixed { names: KnownNames, found: VecDeque<Found> },
}

enum Question {
    Addresses { site: Handle, host: Box<str>, port: u16 },
    Trusted,
}

pub(in crate::server) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    found: Sender<Found>,
    waker: Waker,
}

#[derive(Default)]
struct State {
    questions: VecDeque<Question>,
    thread_count: usize,
    idle_count: usize,
    is_closed: bool,
}

impl Resolver {
    pub fn new(config: &OutgoingConfig, waker: Waker) -> Resolver {
        if let Some(names) = &config.names {
            return Resolver::Fixed { names: Arc::clone(names), found: VecDeque::new() };
        }
        let (sender, found) = channel();
        let (state, changed) = Default::default();
        let shared = Shared { state, changed, found: sender, waker };
        Resolver::Threads { shared: Arc::new(shared), found }
    }

    /// Asks for the addresses of a name.
    pub fn ask(&mut self, site: Handle, host: &str, port: u16) {
        match self {
            Resolver::Threads { shared, .. } => {
                Shared::ask(shared, Question::Addresses { site, host: host.into(), port });
            }
            Resolver::Fixed { names, found } => {
                let known = names.iter().find(|(name, _)| name.eq_ignore_ascii_case(host));
                let addresses = known.map(|(_, all)| {
                    all.iter().map(|ip| SocketAddr::new(*ip, port)).collect::<Vec<_>>()
                });
                let result = addresses.filter(|all| !all.is_empty());
                let result = result.ok_or_else(|| "no such name".to_owned());
                found.push_back(Found::Addresses { site, result });
            }
        }
    }

    /// Asks for the certificates that the system trusts.
    pub fn ask_whom_to_trust(&mut self) {
        match self {
            Resolver::Threads { shared, .. } => Shared::ask(shared, Question::Trusted),
            Resolver::Fixed { found, .. } => {
                found.push_back(Found::Trusted(crate::server::outgoing::tls::trusted_by_system()));
            }
        }
    }

    /// Returns the next answer, if one is ready.
    pub fn next_found(&mut self) -> Option<Found> {
        match self {
            Resolver::Threads { found, .. } => found.try_recv().ok(),
            Resolver::Fixed { found, .. } => found.pop_front(),
        }
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        if let Resolver::Threads { shared, .. } = self {
            shared.state().is_closed = true;
            shared.changed.notify_all();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(shared: &Arc<Shared>, question: Question) {
        let mut state = shared.state();
        state.questions.push_back(question); // At most one for each site.
        let needs_one = state.questions.len() > state.idle_count;
        if needs_one && state.thread_count < limits::RESOLVER_THREADS_MAX {
            let worker = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("resolver".to_owned());
            match thread.spawn(move || worker.work()) {
                Ok(_) => state.thread_count += 1,
                Err(error) if state.thread_count == 0 => {
                    let question = state.questions.pop_back().expect("it was just put there");
                    drop(state);
                    shared.tell(question.refuse(&format!("no thread could be started: {error}")));
                    return;
                }
                Err(_) => {} // A running thread answers it.
            }
        }
        drop(state);
        shared.changed.notify_one();
    }

    fn tell(&self, found: Found) {
        let _ = self.found.send(found); // Without a receiver, the resolver is gone.
        self.waker.wake();
    }

    fn work(&self) {
        while let Some(question) = self.next_question() {
            self.tell(question.answer());
        }
    }

    /// Waits for a question. Returns `None` if the thread is not needed any more.
    fn next_question(&self) -> Option<Question> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                state.thread_count -= 1;
                return None;
            }
            if let Some(question) = state.questions.pop_front() {
                return Some(question);
            }
            state.idle_count += 1;
            let waited = self.changed.wait_timeout(state, limits::RESOLVER_IDLE);
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle_count -= 1;
            if timeout.timed_out() && state.questions.is_empty() {
                state.thread_count -= 1;
                return None;
            }
        }
    }
}

impl Question {
    fn answer(self) -> Found {
        match self {
            Question::Trusted => Found::Trusted(crate::server::outgoing::tls::trusted_by_system()),
            Question::Addresses { site, host, port } => {
                let found = (&*host, port).to_socket_addrs().map_err(|error| error.to_string());
                let all = found.map(|all| in_turns(all.collect()));
                let result = all.and_then(|all| match all.is_empty() {
                    true => Err("it has no address".to_owned()),
                    false => Ok(all),
                });
                Found::Addresses { site, result }
            }
        }
    }

    fn refuse(self, reason: &str) -> Found {
        match self {
            Question::Trusted => Found::Trusted(Err(reason.to_owned())),
            Question::Addresses { site, .. } => {
                Found::Addresses { site, result: Err(reason.to_owned()) }
            }
        }
    }
}

/// Returns the addresses with the two families taking turns, otherwise in the system's order, which
/// puts the best one first. If one family leads nowhere, the other is tried next.
pub(in crate::server) fn in_turns(all: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_first_v6 = all.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|address| address.is_ipv6() == is_first_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut mixed = Vec::new();
    loop {
        let pair = [first.next(), second.next()];
        if pair == [None, None] {
            mixed.dedup();
            mixed.truncate(limits::MODEL_ADDRESSES_MAX);
            return mixed;
        }
        mixed.extend(pair.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::{PolledReactor, Reactor};

    fn addresses(text: &str) -> Vec<SocketAddr> {
        text.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    #[test]
    fn the_families_take_turns_and_the_system_says_which_is_first() {
        let six_first = "[::1]:1 [::2]:1 [::3]:1 10.0.0.1:1 10.0.0.2:1";
        let mixed = "[::1]:1 10.0.0.1:1 [::2]:1 10.0.0.2:1 [::3]:1";
        assert_eq!(in_turns(addresses(six_first)), addresses(mixed));
        let four_first = "10.0.0.1:1 10.0.0.1:1 [::1]:1";
        assert_eq!(in_turns(addresses(four_first)), addresses("10.0.0.1:1 [::1]:1 10.0.0.1:1"));
        assert_eq!(in_turns(Vec::new()), []);
        let many: Vec<SocketAddr> = (1..100).map(|port| ([127, 0, 0, 1], port).into()).collect();
        assert_eq!(in_turns(many).len(), limits::MODEL_ADDRESSES_MAX);
    }

    #[test]
    fn names_are_asked_for_on_threads_that_wake_the_shard() {
        let mut reactor = PolledReactor::new().unwrap();
        let mut resolver = Resolver::new(&OutgoingConfig::default(), reactor.waker());
        for index in 0..20 {
            let host = if index % 2 == 0 { "localhost" } else { "bad name that nobody has" };
            resolver.ask(Handle { index, generation: 1 }, host, 80);
        }
        let mut seen = [0; 20];
        while seen.contains(&0) {
            reactor.wait(None);
            reactor.poll();
            while let Some(found) = resolver.next_found() {
                let Found::Addresses { site, result } = found else { panic!("not asked for") };
                seen[site.index as usize] += 1;
                assert_eq!(result.is_ok(), site.index % 2 == 0, "{result:?}");
            }
        }
        assert_eq!(seen, [1; 20]);
        let Resolver::Threads { shared, .. } = &resolver else { panic!("there are threads") };
        let shared = Arc::clone(shared);
        assert!(shared.state().thread_count <= limits::RESOLVER_THREADS_MAX);
        drop(resolver);
        while shared.state().thread_count > 0 {
            std::thread::yield_now();
        }
    }
}
