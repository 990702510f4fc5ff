//! The log of a process. Records go in on any thread, and one thread writes them.
//!
//! Records wait in a queue of fixed size, which is allocated at the start. Pushing never waits for
//! the reader of the log. A record that finds no room is dropped and counted. The log reports the
//! number of dropped records as soon as there is room again. Pushing allocates nothing
//! (`tests/allocations.rs`); at most it wakes the writer.
//!
//! Absent: files, rotation, time zones. A supervisor takes the log from standard error.
//!
//! Invariant: records written + records reported as dropped = records pushed. The tests are at the
//! end.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use crate::limits::{LOG_BATCH_BYTES, LOG_CLOSE_WAIT, LOG_RECORDS_MAX};
use crate::memory::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::reactor::Clock;
use crate::trace::log::LogLine;
use crate::trace::{Level, LogFormat, Record};

/// The sending side of a log, for one thread or many. [`Log::off`] writes nothing.
#[derive(Clone, Debug, Default)]
pub struct Log {
    way: Option<Way>,
}

/// The result of [`Log::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogClosed {
    /// Everything was written.
    Whole,
    /// The output took too long. Records were lost.
    InPart,
}

#[derive(Clone, Debug)]
struct Way {
    sender: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
    format: LogFormat,
    /// The place of the level among all levels.
    level: Arc<AtomicU32>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "the queue's slots are allocated once; boxes would not be"
)]
#[derive(Debug)]
enum Message {
    Record(Record),
    /// A complete line, from a caller that may allocate.
    Line(Box<[u8]>),
    /// Checks whether records were dropped.
    Look,
    /// Writes what is queued, answers, and ends the thread.
    Close(SyncSender<()>),
}

impl Log {
    /// Returns a log that discards all records.
    pub fn off() -> Log {
        Log::default()
    }

    /// Starts the thread that writes to `out` all records that are at least as important as
    /// `level`.
    ///
    /// # Errors
    /// The kernel's error if it cannot make a thread.
    pub fn start(
        format: LogFormat,
        level: Level,
        out: impl Write + Send + 'static,
    ) -> io::Result<Log> {
        let (sender, receiver) = sync_channel(LOG_RECORDS_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            receiver,
            dropped: Arc::clone(&dropped),
            dropped_told: 0,
            format,
            lines: Vec::with_capacity(2 * LOG_BATCH_BYTES),
            out,
        };
        std::thread::Builder::new().name("log".to_owned()).spawn(move || writer.run())?;
        let level = Arc::new(AtomicU32::new(level as u32));
        Ok(Log { way: Some(Way { sender, dropped, format, level }) })
    }

    /// Writes from now on all records that are at least as important as `level`.
    pub fn set_level(&self, level: Level) {
        if let Some(way) = &self.way {
            way.level.store(level as u32, Ordering::Relaxed); // It orders nothing.
        }
    }

    /// True if a record of that level would be written.
    pub fn takes(&self, level: Level) -> bool {
        self.way.as_ref().is_some_and(|way| level as u32 <= way.level.load(Ordering::Relaxed))
    }

    /// Records an event. `fill` adds numbers and texts. It is called only if the record will be
    /// written.
    ///
    /// ```
    /// use streamdoor::server::Log;
    /// use streamdoor::server::Level;
    ///
    /// let log = Log::off();
    /// log.record(1_700_000_000_000_000, Level::Info, "connection_closed", |record| {
    ///     record.number("shard", 0).show("peer", &"127.0.0.1:40000");
    /// });
    /// ```
    pub fn record(
        &self,
        wall_us: u64,
        level: Level,
        event: &'static str,
        fill: impl FnOnce(&mut Record),
    ) {
        if self.takes(level) {
            let mut record = Record::new(wall_us, level, event);
            fill(&mut record);
            self.push(Message::Record(record));
        }
    }

    /// Like [`Log::record`], with texts of any length. It allocates, so it is for the start and the
    /// end of the process and for rare events.
    #[doc(hidden)]
    pub fn announce(
        &self,
        wall_us: u64,
        level: Level,
        event: &str,
        fill: impl FnOnce(&mut LogLine<'_>),
    ) {
        let Some(way) = &self.way else { return };
        if self.takes(level) {
            let mut bytes = Vec::new();
            let mut line = LogLine::begin(way.format, &mut bytes, wall_us, level, event);
            fill(&mut line);
            line.end();
            self.push(Message::Line(bytes.into_boxed_slice()));
        }
    }

    /// Number of records that were dropped since the start, because the queue was full.
    pub fn dropped_total(&self) -> u64 {
        self.way.as_ref().map_or(0, |way| way.dropped.load(Ordering::Relaxed))
    }

    /// Waits until everything is written, at most about twice `LOG_CLOSE_WAIT`. Nothing is
    /// written afterwards.
    pub fn close(&self) -> LogClosed {
        const LOOK: Duration = Duration::from_millis(10);
        let Some(way) = &self.way else { return LogClosed::Whole };
        let (sender, receiver) = sync_channel(1);
        let mut message = Message::Close(sender);
        for _ in 0..LOG_CLOSE_WAIT.as_millis() / LOOK.as_millis() {
            match way.sender.try_send(message) {
                Ok(()) => {
                    return match receiver.recv_timeout(LOG_CLOSE_WAIT) {
                        Ok(()) => LogClosed::Whole,
                        Err(_) => LogClosed::InPart,
                    };
                }
                // Another caller was first.
                Err(TrySendError::Disconnected(_)) => return LogClosed::Whole,
                Err(TrySendError::Full(same)) => message = same,
            }
            std::thread::sleep(LOOK);
        }
        LogClosed::InPart
    }

    fn push(&self, message: Message) {
        let Some(way) = &self.way else { return };
        if way.sender.try_send(message).is_ok() {
            return;
        }
        way.dropped.fetch_add(1, Ordering::SeqCst);
        // If there is room by now, the writer may have looked before this one was counted.
        // Otherwise the writer has more to take, and looks again after that.
        let _ = way.sender.try_send(Message::Look);
    }
}

struct Writer<W> {
    receiver: Receiver<Message>,
    dropped: Arc<AtomicU64>,
    dropped_told: u64,
    format: LogFormat,
    lines: Vec<u8>,
    out: W,
}

impl<W: Write> Writer<W> {
    fn run(mut self) {
        while let Ok(message) = self.receiver.recv() {
            let mut answer = self.take(message);
            while answer.is_none() && self.lines.len() < LOG_BATCH_BYTES {
                let Ok(message) = self.receiver.try_recv() else { break };
                answer = self.take(message);
            }
            self.tell_dropped();
            // If the log has no reader any more, the error cannot be reported.
            let _ = self.out.write_all(&self.lines).and_then(|()| self.out.flush());
            self.lines.clear();
            if let Some(answer) = answer {
                drop(self.receiver); // Later records are counted as dropped.
                let _ = answer.send(());
                return;
            }
        }
    }

    fn take(&mut self, message: Message) -> Option<SyncSender<()>> {
        match message {
            Message::Record(record) => record.write_line(self.format, &mut self.lines),
            Message::Line(line) => self.lines.extend_from_slice(&line),
            Message::Look => {}
            Message::Close(answer) => return Some(answer),
        }
        None
    }

    fn tell_dropped(&mut self) {
        let total = self.dropped.load(Ordering::SeqCst);
        if total > self.dropped_told {
            let mut record = Record::new(Clock::wall_us(), Level::Warn, "log_records_dropped");
            record.number("count", total - self.dropped_told).number("total", total);
            record.write_line(self.format, &mut self.lines);
            self.dropped_told = total;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    /// A reader of the log that can stop reading.
    #[derive(Clone, Default)]
    struct Reader {
        read: Arc<Mutex<Read>>,
        changed: Arc<Condvar>,
    }

    #[derive(Default)]
    struct Read {
        is_stopped: bool,
        bytes: Vec<u8>,
    }

    impl Reader {
        fn set_stopped(&self, is_stopped: bool) {
            self.read.lock().unwrap().is_stopped = is_stopped;
            self.changed.notify_all();
        }

        fn lines(&self) -> Vec<serde_json::Value> {
            let bytes = self.read.lock().unwrap().bytes.clone();
            let text = String::from_utf8(bytes).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        }
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let read = self.read.lock().unwrap();
            let mut read = self.changed.wait_while(read, |read| read.is_stopped).unwrap();
            read.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn count_dropped(lines: &[serde_json::Value]) -> u64 {
        let told = lines.iter().filter(|line| line["event"] == "log_records_dropped");
        told.map(|line| line["count"].as_u64().unwrap()).sum()
    }

    #[test]
    fn what_finds_no_room_is_counted_and_told_exactly() {
        let reader = Reader::default();
        reader.set_stopped(true);
        let log = Log::start(LogFormat::Json, Level::Info, reader.clone()).unwrap();
        let pushed = 3 * LOG_RECORDS_MAX as u64;
        for number in 0..pushed {
            log.record(0, Level::Info, "numbered", |record| {
                record.number("number", number);
            });
        }
        let dropped = log.dropped_total();
        // At most one batch was taken before its write was stopped.
        assert!(dropped > 0 && dropped <= pushed - LOG_RECORDS_MAX as u64, "{dropped}");
        reader.set_stopped(false);
        while count_dropped(&reader.lines()) < dropped {
            std::thread::yield_now(); // It is reported without another record.
        }
        log.record(0, Level::Info, "last", |_| {});
        assert_eq!(log.close(), LogClosed::Whole);
        let lines = reader.lines();
        let numbers: Vec<u64> = lines.iter().filter_map(|line| line["number"].as_u64()).collect();
        assert!(numbers.is_sorted());
        assert_eq!(numbers.len() as u64 + dropped, pushed);
        assert_eq!(count_dropped(&lines), dropped);
        assert_eq!(lines.last().unwrap()["event"], "last");
    }

    #[test]
    fn of_many_threads_every_record_is_written_or_told_as_dropped() {
        const THREADS: u64 = 4;
        const EACH: u64 = 20_000;
        let reader = Reader::default();
        let log = Log::start(LogFormat::Json, Level::Info, reader.clone()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let log = log.clone();
                scope.spawn(move || {
                    for number in 0..EACH {
                        log.record(0, Level::Info, "numbered", |record| {
                            record.number("thread", thread).number("number", number);
                        });
                    }
                });
            }
        });
        assert_eq!(log.close(), LogClosed::Whole);
        let lines = reader.lines();
        let written = lines.iter().filter(|line| line["event"] == "numbered").count() as u64;
        assert_eq!(written + count_dropped(&lines), THREADS * EACH);
        assert_eq!(count_dropped(&lines), log.dropped_total());
    }

    #[test]
    fn only_what_matters_enough_is_written_and_nothing_after_the_end() {
        let reader = Reader::default();
        let log = Log::start(LogFormat::Json, Level::Warn, reader.clone()).unwrap();
        log.record(0, Level::Info, "quiet", |_| panic!("the record is not built"));
        log.record(0, Level::Error, "loud", |_| {});
        let long = "x".repeat(1_000);
        log.announce(0, Level::Warn, "announced", |line| line.text("long", &long));
        assert_eq!(log.close(), LogClosed::Whole);
        log.record(0, Level::Error, "late", |_| {});
        assert_eq!(log.close(), LogClosed::Whole);
        let lines = reader.lines();
        let events: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
        assert_eq!(events, ["loud", "announced"]);
        assert_eq!(lines[1]["long"], long);
        assert_eq!(log.dropped_total(), 1);
    }

    #[test]
    fn a_log_that_nobody_reads_holds_up_nobody_for_long() {
        let reader = Reader::default();
        reader.set_stopped(true);
        let log = Log::start(LogFormat::Text, Level::Info, reader.clone()).unwrap();
        for _ in 0..2 * LOG_RECORDS_MAX {
            log.record(0, Level::Info, "e", |_| {});
        }
        assert_eq!(log.close(), LogClosed::InPart);
        reader.set_stopped(false);
    }
}
