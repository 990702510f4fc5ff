//! The pace of a node: wakes its thread after pauses that are shorter than those of its runtime,
//! which counts in milliseconds.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::mpsc;

use super::driver::{Arrival, News};
use crate::reactor::thread;

/// The way to the thread that sleeps.
pub(super) struct Pace {
    pauses: SyncSender<Duration>,
}

impl Pace {
    /// Starts the thread. It ends with this value.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(wake: mpsc::Sender<Arrival>) -> std::io::Result<Pace> {
        let (pauses, wanted) = sync_channel(1);
        let builder = std::thread::Builder::new().name("cluster-pace".to_owned());
        builder.spawn(move || {
            thread::tighten_timers();
            while let Ok(pause) = wanted.recv() {
                std::thread::sleep(pause);
                let _ = wake.try_send(Arrival::News(News::Wake)); // A full queue wakes it, too.
            }
        })?;
        Ok(Pace { pauses })
    }

    /// Lets the thread of the node be woken after a pause. One pause is under way at a time.
    pub fn wake_after(&self, pause: Duration) {
        let _ = self.pauses.try_send(pause);
    }
}
