//! Steps of other threads between two steps of one function, as other cores take them in a real
//! world. A reader reads a ring in the middle of a write, and a reader falls asleep while the shard
//! goes on. Only with the feature `planted`; without it this module does nothing.

/// The sleep state of a reader on another thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReaderSleep {
    #[default]
    Awake,
    /// It has begun to fall asleep.
    LyingDown,
    /// It sleeps on these words.
    Asleep([usize; 2]),
}

mod looks {
    use std::cell::{Cell, RefCell};

    use super::ReaderSleep;
    use crate::memory::interleave;
    use crate::memory::reader::RingReader;
    use crate::sim::model::fill_payload;
    use crate::sim::stage::Stage;
    use crate::sim::watcher::{Seat, Watcher, Watchers};

    std::thread_local! {
        static WRITING: Cell<u32> = const { Cell::new(0) };
        /// Executions with a relay, which the shard writes whenever it takes chunks over.
        static RELAYED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
        static WRONG: RefCell<Option<String>> = const { RefCell::new(None) };
    }

    /// Sets the execution whose ring is written from here on. Returns the one before.
    pub fn set_writing(execution: usize) -> usize {
        WRITING.replace(execution as u32) as usize
    }

    /// Notes that the written ring may be a relay of this execution, too.
    #[cfg(feature = "server")]
    pub fn note_relay(execution: usize) {
        RELAYED.with_borrow_mut(|all| all.push(execution as u32));
    }

    /// Reads the oldest chunks, as a reader does. It must get their bytes, or an error that they
    /// are gone.
    fn look(reader: &RingReader) {
        let number = WRITING.get();
        let mut buffer = vec![0; reader.geometry().length_max() as usize];
        let mut expected = buffer.clone();
        let tail_seq = reader.tail_seq();
        for seq in tail_seq..(tail_seq + 4).min(reader.head_seq() + 1) {
            let Ok(descriptor) = reader.read(seq, &mut buffer) else { continue };
            let length = descriptor.length as usize;
            let mut is_of = |number: u32| {
                fill_payload(number, seq, &mut expected[..length]);
                buffer[..length] == expected[..length]
            };
            let is_right =
                is_of(number) || RELAYED.with_borrow(|all| all.iter().any(|&n| is_of(n)));
            if !is_right {
                let text = format!("chunk {seq} of {number} was read while it was overwritten");
                WRONG.set(Some(text));
            }
        }
    }

    /// Installs the reader for the steps in between.
    pub fn watch_between() {
        WRONG.set(None);
        RELAYED.take();
        interleave::watch(look);
    }

    impl Watchers {
        /// Wakes the watchers that were woken. A watcher that still sleeps must have no reason to
        /// be awake.
        pub fn check_between(&mut self) -> Result<(), String> {
            if let Some(text) = WRONG.take() {
                return Err(text);
            }
            let woken = interleave::take_woken();
            for watcher in &mut self.list {
                let (ReaderSleep::Asleep(words), Seat::Remote(reader)) =
                    (watcher.rest, &mut watcher.seat)
                else {
                    continue;
                };
                if words.iter().any(|word| woken.contains(word)) {
                    reader.rise();
                    watcher.rest = ReaderSleep::Awake;
                } else if reader.has_news() {
                    return Err(format!("subscriber {} sleeps, and has news", watcher.follower));
                }
            }
            Ok(())
        }
    }

    impl Watcher {
        /// Lets a reader that has nothing to do begin to fall asleep, if it is of another thread.
        pub fn lie_down(&mut self, stage: &mut Stage) {
            if let Seat::Remote(reader) = &mut self.seat
                && stage.random.chance(1, 4)
                && reader.lie_down()
            {
                self.rest = ReaderSleep::LyingDown;
                stage.shared.lock().coverage.count("reader fell asleep");
            }
        }

        /// True if it sleeps. One that has begun to fall asleep does so now, unless it finds news.
        pub fn sleeps(&mut self) -> bool {
            match (self.rest, &mut self.seat) {
                (ReaderSleep::LyingDown, Seat::Remote(reader)) => {
                    self.rest = reader.doze().map_or(ReaderSleep::Awake, ReaderSleep::Asleep);
                    self.rest != ReaderSleep::Awake
                }
                (rest, _) => rest != ReaderSleep::Awake,
            }
        }
    }
}

#[cfg(feature = "server")]
pub(super) use looks::note_relay;
pub(super) use looks::{set_writing, watch_between};
