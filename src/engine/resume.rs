//! A subscriber that comes back on another connection takes the place that the lost one has kept.

use crate::engine::Engine;
use crate::engine::action::{Action, Subscribed};
use crate::engine::event::{From, Place, SubscribeSpec};
use crate::engine::policy::Policy;

impl Engine {
    /// Lets go the lost subscriber whose place the new one takes: one with the same terms that
    /// stood where the new one begins or behind that, and of these the one that stood next to it.
    /// The new one holds the producer by now: in between nothing is overwritten.
    pub(super) fn take_over(&mut self, new: &Subscribed, spec: &SubscribeSpec) {
        let From::Seq { seq, .. } = spec.from else { return };
        if !spec.replays || spec.policy != Policy::Block || spec.place != Place::Local {
            return;
        }
        let e = self.executions.get(new.execution).expect("it was just subscribed to");
        let fits = e.locals.positions().filter(|(local, next_seq)| {
            local.is_lost() && local.terms == new.terms && *next_seq >= seq
        });
        let nearest = fits.min_by_key(|(_, next_seq)| *next_seq).map(|(local, _)| local.id);
        if let Some(lost) = nearest {
            self.counters.subscribers_resumed += 1;
            self.wishes.push_back(Action::Forget(lost));
            self.remove(lost);
        }
    }
}
