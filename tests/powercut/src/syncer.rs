//! A tool on a thread of its own that syncs after each chunk, when it is told to go on.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use streamdoor::base::ExecutionId;
use streamdoor::shard::{ExecuteOptions, Shard};
use streamdoor::stream::Durability;
use streamdoor::tool::{Need, Prepared, SyncError, Work};

use crate::keeper::chunk;

/// Each step sends a chunk and syncs, and reports before and after that.
enum Report {
    Syncing,
    Synced(Result<(), SyncError>),
}

/// The time between two turns of the shard.
const PAUSE: Duration = Duration::from_millis(1);

pub struct Syncer {
    pub id: ExecutionId,
    steps: Sender<()>,
    reports: Receiver<Report>,
}

impl Syncer {
    pub fn start(shard: &mut Shard, durability: Durability) -> Syncer {
        let (id_sender, ids) = channel();
        let (steps, step_receiver) = channel::<()>();
        let (report, reports) = channel();
        let work = Work::Thread(Box::new(move |out| {
            let Ok(id) = ids.recv() else { return Ok(()) };
            for seq in 1.. {
                if step_receiver.recv().is_err() {
                    break;
                }
                let (kind, bytes) = chunk(id, seq);
                out.send_as(kind, 0, &bytes)?;
                // The test may have failed meanwhile.
                let _ = report.send(Report::Syncing);
                let _ = report.send(Report::Synced(out.sync()));
            }
            Ok(())
        }));
        let need = Need { ring_bytes: 4 << 10, ..Default::default() };
        let prepared = Prepared { need, ..Prepared::new(work) };
        let options = ExecuteOptions { durability: Some(durability), ..Default::default() };
        let id = shard.execute_prepared(prepared, options).unwrap();
        id_sender.send(id).unwrap();
        Syncer { id, steps, reports }
    }

    /// Lets the tool send its next chunk. Returns once that is sent.
    pub fn go_on(&self, shard: &mut Shard) {
        self.steps.send(()).unwrap();
        assert!(matches!(self.report(shard), Report::Syncing));
    }

    /// Waits until the tool is told whether its chunks are on the disk.
    pub fn result(&self, shard: &mut Shard) -> Result<(), SyncError> {
        match self.report(shard) {
            Report::Synced(result) => result,
            Report::Syncing => panic!("it has no step to do"),
        }
    }

    fn report(&self, shard: &mut Shard) -> Report {
        loop {
            shard.turn();
            if let Ok(report) = self.reports.recv_timeout(PAUSE) {
                return report;
            }
        }
    }
}
