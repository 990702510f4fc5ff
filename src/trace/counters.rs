//! Counters of one shard: plain numbers that only grow, owned by the shard's thread.
//!
//! They are not atomic. A reader asks the shard, which copies them out between two turns. The name,
//! the place and the text of a counter are defined once, in the list below, and all output iterates
//! over it. The tests are at the end of this file.

macro_rules! counters {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// The number of times that each event has happened since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $text])+ pub $name: u64,)+
        }

        impl Counters {
            /// The names, in the order of the struct.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];
            /// One sentence about each counter, in the same order.
            pub const TEXTS: &[&str] = &[$(concat!($($text),+)),+];

            /// Adds the counters of another shard.
            pub fn merge(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }

            /// Returns the difference to `earlier`, a copy of the same counters.
            ///
            /// # Panics
            /// If one of them was larger in `earlier`.
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
    /// Counts a chunk that was given to `subscriber_count` subscribers.
    #[inline]
    pub fn count_given(&mut self, subscriber_count: u64, length: u32) {
        self.chunks_delivered += subscriber_count;
        self.bytes_delivered += subscriber_count * u64::from(length);
    }

    /// Counts chunks, with so many bytes together, that were given to `subscriber_count`
    /// subscribers.
    #[inline]
    pub fn count_given_run(&mut self, subscriber_count: u64, chunk_count: u64, byte_count: u64) {
        self.chunks_delivered += subscriber_count * chunk_count;
        self.bytes_delivered += subscriber_count * byte_count;
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
    /// Delivered chunks that readers in other processes report as read from shared memory.
    door_chunks_read,
    /// Delivered payload bytes that readers in other processes report as read from shared memory.
    door_bytes_read,
    /// Chunks encoded for connections, once for each format.
    frames_encoded,
    /// Chunks sent in the encoding that was made for an earlier subscriber.
    frames_reused,
    /// Sends to connections.
    sends,
    /// Connections closed at once because their address has too many.
    connections_over_address,
    /// Connections answered with 503 because every place was taken.
    connections_turned_away,
    /// Connections between two requests that were closed for new ones.
    connections_evicted,
    /// Connections closed because no request arrived.
    connections_idled_out,
    /// TLS handshakes that succeeded.
    tls_handshakes,
    /// TLS connections closed because of invalid data from the peer.
    tls_refusals,
    /// Requests that did not arrive completely in time.
    requests_timed_out,
    /// Requests to models.
    model_exchanges,
    /// Requests to models that failed or broke off.
    model_exchanges_failed,
    /// Requests to models that were sent again, because a kept connection had died.
    model_exchanges_repeated,
    /// Connections to models that were opened, with the TLS handshake if they need one.
    model_connections_opened,
    /// Times that a kept connection to a model was used again.
    model_connections_reused,
    /// Attempts to open a connection to a model that failed.
    model_connections_failed,
    /// Failed resolutions of the names of models' servers.
    model_resolves_failed,
    /// Bytes of requests that were sent to models, before TLS.
    model_bytes_sent,
    /// Bytes of answers that were received from models, after TLS.
    model_bytes_received,
    /// Gaps given to subscribers.
    gaps_delivered,
    /// Chunks counted in gaps given to subscribers.
    chunks_missed,
    /// Payload bytes counted in gaps given to subscribers.
    bytes_missed,
    /// Ends given to subscribers of any kind.
    ends_delivered,
    /// Runs of agents that began.
    agents_started,
    /// Executions opened.
    executions_opened,
    /// Executions that had to wait for a ring.
    executions_queued,
    /// Executions that were refused.
    executions_refused,
    /// Executions that ended completed.
    executions_completed,
    /// Executions that ended failed.
    executions_failed,
    /// Executions that ended cancelled.
    executions_cancelled,
    /// Executions that ended because a time limit was exceeded.
    executions_timed_out,
    /// Ended executions that were forgotten after their retention.
    executions_forgotten,
    /// Ended executions that were forgotten early, to make room.
    executions_evicted,
    /// Tools that panicked, each at the cost of its own execution.
    tools_panicked,
    /// Panics of an embedder's code: of subscribers, observers, calls and prompts.
    callbacks_panicked,
    /// Times that a producer was paused for a block subscriber or for the hold of its ring.
    producers_paused,
    /// Gates that a waiting producer had missed, a fault of the server that it repaired.
    gates_told_late,
    /// Executions that failed because their producer waited although no reader held it back.
    producers_stuck,
    /// Subscribers attached.
    subscribers_attached,
    /// Subscribers that took the place of one whose connection had broken.
    subscribers_resumed,
    /// Subscribers that were refused.
    subscribers_refused,
    /// Subscribers that left by themselves, or were removed by their owners.
    subscribers_detached_left,
    /// Subscribers detached because they lagged.
    subscribers_detached_lag,
    /// Subscribers detached because they held a producer back for too long.
    subscribers_detached_stall,
    /// Subscribers detached because their connections broke and did not come back.
    subscribers_detached_lost,
    /// Subscribers detached by a shutdown.
    subscribers_detached_shutdown,
    /// Subscribers detached to make room, or for an impossible cursor in shared memory.
    subscribers_detached_evicted,
    /// Executions that other processes began to share.
    doors_opened,
    /// Requests at the door refused for lack of a place, of memory or of descriptors.
    doors_refused,
    /// Readers in other processes detached for what they wrote into shared memory.
    door_readers_evicted,
    /// Producers in other processes refused because they broke the rules of their rings.
    door_producers_refused,
    /// Executions that could also be read by name.
    named_doors_opened,
    /// Executions without a name, for lack of a place or of memory, or because it was taken.
    named_doors_refused,
    /// Executions whose file was truncated, so that they can no longer be read by name.
    named_doors_lost,
    /// Progress reports taken from tools.
    progress_reported,
    /// Progress reports given to subscribers.
    progress_delivered,
    /// Progress reports that would have gone backwards. The old number was kept.
    progress_backward,
    /// Turns of the shard's loop.
    turns,
    /// Turns that found nothing to do.
    turns_idle,
    /// Times that the shard returned from a wait in the kernel.
    wakes,
    /// Turns of the shard's loop that took longer than `limits::STALL_THRESHOLD`.
    stalls,
    /// Timers fired.
    timers_fired,
    /// Commands taken from the mailbox.
    mailbox_commands,
    /// Changes of the memory pressure.
    memory_pressure_changes,
    /// Rings that have moved to a larger window, because their producer found no room.
    rings_grown,
    /// Rings that stayed small, because no larger window was free or memory was short.
    ring_growths_refused,
    /// Bytes of rings returned to the kernel.
    ring_bytes_released,
    /// Chunks that the journal has taken.
    journal_chunks_kept,
    /// Payload bytes that the journal has taken.
    journal_bytes_kept,
    /// Chunks that the journal could not take. Late readers are told of them as a gap.
    journal_chunks_missed,
    /// Writes of the journal.
    journal_writes,
    /// Bytes that the journal has written.
    journal_bytes_written,
    /// Syncs of the journal, also those of a write.
    journal_syncs,
    /// Segments that the journal has begun.
    journal_segments_begun,
    /// Segments that the journal has removed.
    journal_segments_removed,
    /// Segments that could not be made or removed.
    journal_segments_failed,
    /// Places that a scrub has found damaged.
    journal_places_corrupt,
}

impl Counters {
    /// The name and the value of each counter, in the order of the struct.
    ///
    /// # Example
    /// ```
    /// let mut counters = streamdoor::readings::Counters::default();
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
