//! A subscriber that comes back on another connection takes the place that the lost one has kept.

use crate::engine::Engine;
use crate::engine::action::{Action, Subscribed};
use crate::engine::event::{From, SubscribeSpec};
use crate::engine::policy::Policy;

impl Engine {
    /// Lets go the lost subscriber whose place the new one takes: one with the same terms that
    /// stood where the new one begins or behind that, and of these the one that stood next to it.
    /// The new one holds the producer by now: in between nothing is overwritten.
    pub(super) fn take_over(&mut self, new: &Subscribed, spec: &SubscribeSpec) {
        let From::Seq { seq, .. } = spec.from else { return };
        if !spec.replays || spec.policy != Policy::Block {
            return;
        }
        let e = self.executions.get(new.execution).expect("it was just subscribed to");
        let locals = e.locals.positions().filter(|(local, _)| local.is_lost());
        let locals = locals.map(|(local, next_seq)| (local.id, local.terms, next_seq));
        let remotes = e.remotes.iter().filter(|remote| remote.is_lost());
        let remotes = remotes.map(|remote| (remote.id, remote.terms, remote.next_seq));
        let fits = locals
            .chain(remotes)
            .filter(|(_, terms, next_seq)| *terms == new.terms && *next_seq >= seq);
        if let Some((lost, ..)) = fits.min_by_key(|(.., next_seq)| *next_seq) {
            self.counters.subscribers_resumed += 1;
            self.wishes.push_back(Action::Forget(lost));
            self.remove(lost);
        }
    }
}
