//! Counters of one shard: plain numbers that only grow, owned by the shard's thread.
//!
//! No atomics: whoever wants to see them asks the shard, which copies them out between two turns.
//! A counter's name, place and text stand once, in the list below; everything that prints them
//! iterates. The tests are at the end of this file.

macro_rules! counters {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// How often each thing happened since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $text])+ pub $name: u64,)+
        }

        impl Counters {
            /// The names, in the order of the struct.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];
            /// One sentence on each, in the same order.
            pub const TEXTS: &[&str] = &[$(concat!($($text),+)),+];

            /// Adds those of another shard.
            pub fn merge(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }

            /// What was counted since `earlier`, a copy of the same counters.
            ///
            /// # Panics
            /// If one of them was larger then.
            pub fn since(&self, earlier: &Counters) -> Counters {
                Counters { $($name: self.$name.checked_sub(earlier.$name).expect("only grow"),)+ }
            }

            fn values(&self) -> [u64; Counters::NAMES.len()] {
                [$(self.$name),+]
            }
        }
    };
}

impl Counters {
    /// A chunk was given to so many subscribers.
    #[inline]
    pub fn count_given(&mut self, subscriber_count: u64, length: u32) {
        self.chunks_delivered += subscriber_count;
        self.bytes_delivered += subscriber_count * u64::from(length);
    }
}

counters! {
    /// Chunks that producers published.
    chunks_published,
    /// Payload bytes that producers published.
    bytes_published,
    /// Chunks given to subscribers.
    chunks_delivered,
    /// Payload bytes given to subscribers.
    bytes_delivered,
    /// Of these, chunks that readers in other processes read from shared memory, as they say.
    door_chunks_read,
    /// Of these, payload bytes that readers in other processes read from shared memory.
    door_bytes_read,
    /// Chunks encoded for connections, once for each format.
    frames_encoded,
    /// Chunks that were encoded already, for somebody who was given them earlier.
    frames_reused,
    /// Sends to connections.
    sends,
    /// Connections closed at once because their address has too many.
    connections_over_address,
    /// Connections told 503 because every place was taken.
    connections_turned_away,
    /// Connections between two requests that were closed for new ones.
    connections_evicted,
    /// Connections closed because no request came.
    connections_idled_out,
    /// Handshakes of TLS that succeeded.
    tls_handshakes,
    /// Connections of TLS that were broken off because of what came on them.
    tls_refusals,
    /// Requests that were not there in time.
    requests_timed_out,
    /// Requests that were to be sent to models.
    model_exchanges,
    /// Of these, such as came to nothing or broke off.
    model_exchanges_failed,
    /// Of these, such as were sent again, because a kept connection had died.
    model_exchanges_repeated,
    /// Connections to models that were opened, and agreed on keys if they had to.
    model_connections_opened,
    /// Times that a kept connection to a model was used again.
    model_connections_reused,
    /// Tries to open a connection to a model that came to nothing.
    model_connections_failed,
    /// Names of models' servers that had no address, or nobody could say.
    model_resolves_failed,
    /// Bytes of requests that were sent to models, before TLS.
    model_bytes_sent,
    /// Bytes of answers that came from models, after TLS.
    model_bytes_received,
    /// Gaps given to subscribers.
    gaps_delivered,
    /// Chunks that gaps given to subscribers stand for.
    chunks_missed,
    /// Payload bytes that gaps given to subscribers stand for.
    bytes_missed,
    /// Ends given to subscribers of any kind.
    ends_delivered,
    /// Runs of agents that began.
    agents_started,
    /// Executions opened.
    executions_opened,
    /// Executions that had to wait for a ring.
    executions_queued,
    /// Executions refused because nothing was left for them.
    executions_refused,
    /// Executions that ended completed.
    executions_completed,
    /// Executions that ended failed.
    executions_failed,
    /// Executions that ended cancelled.
    executions_cancelled,
    /// Executions that ended because a deadline passed.
    executions_timed_out,
    /// Ended executions whose retention ran out.
    executions_forgotten,
    /// Ended executions that made room before their retention ran out.
    executions_evicted,
    /// Tools that panicked, each at the cost of its own execution.
    tools_panicked,
    /// Panics of an embedder's code: of subscribers, observers, calls and prompts.
    callbacks_panicked,
    /// Times that a producer was paused for a block subscriber.
    producers_paused,
    /// Gates that a waiting producer had not been told of: a fault of the server, which it mended.
    gates_told_late,
    /// Executions that failed because their producer waited although nobody held it back.
    producers_stuck,
    /// Subscribers attached.
    subscribers_attached,
    /// Subscribers that took the place of one whose connection had broken.
    subscribers_resumed,
    /// Subscribers refused because a limit was reached.
    subscribers_refused,
    /// Subscribers that left by themselves, or were removed by their owners.
    subscribers_detached_left,
    /// Subscribers detached because they lagged.
    subscribers_detached_lag,
    /// Subscribers detached because they stood still.
    subscribers_detached_stall,
    /// Subscribers detached because their connections broke and did not come back.
    subscribers_detached_lost,
    /// Subscribers detached by a shutdown.
    subscribers_detached_shutdown,
    /// Subscribers detached to make room, or for what they wrote into shared memory.
    subscribers_detached_evicted,
    /// Executions that other processes came to share.
    doors_opened,
    /// Requests at the door refused for want of a place, of memory or of descriptors.
    doors_refused,
    /// Readers in other processes let go for what they wrote into shared memory.
    door_readers_evicted,
    /// Producers in other processes that broke the rules of their rings.
    door_producers_refused,
    /// Executions that could be read by name, too.
    named_doors_opened,
    /// Executions without a name, for want of a place or of memory, or because it was taken.
    named_doors_refused,
    /// Executions whose file was cut off, so that nobody can read it by name any more.
    named_doors_lost,
    /// Progress reports taken from tools.
    progress_reported,
    /// Progress reports given to subscribers.
    progress_delivered,
    /// Progress reports that would have gone backwards; the old number stood.
    progress_backward,
    /// Turns of the shard's loop.
    turns,
    /// Turns that found nothing to do.
    turns_idle,
    /// Times that the shard came back from a wait in the kernel.
    wakes,
    /// Turns of the shard's loop that took longer than `limits::STALL_THRESHOLD`.
    stalls,
    /// Timers fired.
    timers_fired,
    /// Commands taken from the mailbox.
    mailbox_commands,
    /// Times that the memory pressure became another one.
    memory_pressure_changes,
    /// Bytes of rings given back to the kernel.
    ring_bytes_released,
}

impl Counters {
    /// Name and value of each counter, in the order of the struct.
    ///
    /// # Example
    /// ```
    /// let mut counters = streamdoor::trace::Counters::default();
    /// counters.turns += 2;
    /// let turns = counters.iter().find(|&(name, _)| name == "turns");
    /// assert_eq!(turns, Some(("turns", 2)));
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Counters::NAMES.iter().copied().zip(self.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_a_name_and_a_text_of_its_own() {
        assert_eq!(Counters::NAMES.len(), Counters::TEXTS.len());
        assert_eq!(Counters::NAMES.len() * size_of::<u64>(), size_of::<Counters>());
        for (place, name) in Counters::NAMES.iter().enumerate() {
            assert!(!Counters::NAMES[..place].contains(name), "{name}");
            assert!(Counters::TEXTS[place].trim().ends_with('.'), "{name}");
        }
    }

    #[test]
    fn what_is_merged_can_be_told_apart_again() {
        let first = Counters { turns: 3, chunks_published: 7, ..Counters::default() };
        let mut sum = Counters { turns: 1, timers_fired: 1, ..Counters::default() };
        sum.merge(&first);
        assert_eq!((sum.turns, sum.chunks_published, sum.timers_fired), (4, 7, 1));
        assert_eq!(sum.since(&first).turns, 1);
        assert_eq!(sum.iter().map(|(_, value)| value).sum::<u64>(), 12);
        assert_eq!(sum.iter().next(), Some(("chunks_published", 7)));
    }
}
