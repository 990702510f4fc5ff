//! Observes the machine's memory once a second, on one thread for all shards of the process.
//!
//! A running shard never reads these files itself: the kernel takes longer to open a dozen of them
//! than a whole turn may take. It joins the [`Watch`] instead. The watch writes the shard's
//! [`Outlook`] to one atomic word, of which it is the only writer. It wakes the shard when that
//! word has changed. The thread starts with the first member and ends with the last; in between it
//! sleeps.
//!
//! All shards of a process share the memory that a cgroup allows, in equal parts. A shard that
//! joins makes the others' parts smaller. They lease nothing above them from their next turn on,
//! and existing leases stay until they end.
//!
//! Tests: at the end; `shard/memory_tests.rs` with shards; `tests/cgroup.rs` under a real limit.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use super::readings::KernelFiles;
use super::waker::Waker;
use crate::limits::MEMORY_WATCH_INTERVAL;
use crate::memory::atomic::{AtomicU64, Ordering};
use crate::memory::pressure::{Decisive, Diagnosis, THRESHOLDS, rings_bytes_under};
use crate::memory::{Gauge, Pressure, Readings};

/// The state of memory that a shard acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// The state of memory, and the reading that decided it.
    pub diagnosis: Diagnosis,
    /// Maximum of memory for this shard's rings; [`Outlook::NO_LIMIT`] if nothing limits them.
    pub rings_bytes_max: u64,
}

impl Outlook {
    /// The value for no limit. (It lacks some bits, because an outlook is one word.)
    pub const NO_LIMIT: u64 = BYTES_MASK;
    /// The outlook of a machine with plenty of memory.
    pub const CALM: Outlook = Outlook {
        diagnosis: Diagnosis { pressure: Pressure::Normal, decided_by: None, busy_disks: None },
        rings_bytes_max: Outlook::NO_LIMIT,
    };

    /// The outlook of a process with `shard_count` shards, on a machine with these readings.
    pub fn new(diagnosis: Diagnosis, readings: &Readings, shard_count: u64) -> Outlook {
        let all_bytes = readings.cgroup_limit_bytes.map(rings_bytes_under);
        let share_bytes = all_bytes.map(|bytes| (bytes / shard_count.max(1)) & !PRESSURE_MASK);
        let rings_bytes_max = share_bytes.unwrap_or(Outlook::NO_LIMIT).min(Outlook::NO_LIMIT);
        Outlook { diagnosis, rings_bytes_max }
    }

    fn word(self) -> u64 {
        assert!(self.rings_bytes_max & !BYTES_MASK == 0);
        let Diagnosis { pressure, decided_by, busy_disks } = self.diagnosis;
        let readings =
            reading_bits(decided_by) << DECIDED_SHIFT | reading_bits(busy_disks) << DISKS_SHIFT;
        self.rings_bytes_max | pressure as u64 | readings
    }

    fn of_word(word: u64) -> Outlook {
        let pressure = Pressure::of_index((word & PRESSURE_MASK) as u8);
        let pressure = pressure.expect("two bits name one of four");
        let decided_by = reading_of_bits(word >> DECIDED_SHIFT);
        let busy_disks = reading_of_bits(word >> DISKS_SHIFT);
        Outlook {
            diagnosis: Diagnosis { pressure, decided_by, busy_disks },
            rings_bytes_max: word & BYTES_MASK,
        }
    }
}

/// Returns ten bits: the percentage (7), and one more than the row (3).
fn reading_bits(reading: Option<Decisive>) -> u64 {
    reading.map_or(0, |reading| u64::from(reading.percent()) | (reading.row() as u64 + 1) << 7)
}

fn reading_of_bits(bits: u64) -> Option<Decisive> {
    let percent = bits as u8 & Decisive::PERCENT_MAX;
    let row = ((bits >> 7 & 7) as usize).checked_sub(1)?;
    Decisive::new(row, f32::from(percent))
}

// From the lowest bit: the pressure (2), the bytes without their lowest two (42), the reading that
// decided it (10), and the disks (10).
const PRESSURE_MASK: u64 = 3;
const DECIDED_SHIFT: u32 = 44;
const DISKS_SHIFT: u32 = 54;
const BYTES_MASK: u64 = (1 << DECIDED_SHIFT) - 1 - PRESSURE_MASK;
const _: () = {
    assert!(Pressure::ALL.len() as u64 == PRESSURE_MASK + 1);
    assert!(Decisive::PERCENT_MAX == (1 << 7) - 1);
    assert!(THRESHOLDS.len() < 1 << 3);
    assert!(DISKS_SHIFT - DECIDED_SHIFT == 10);
    assert!(u64::BITS - DISKS_SHIFT == 10);
};

/// The place of one shard's outlook.
struct Post {
    word: AtomicU64,
    waker: Waker,
}

/// Reads the kernel's numbers about memory and notifies the shards that have joined.
pub struct Watch {
    root: PathBuf,
    interval: Duration,
    state: Mutex<WatchState>,
    /// Notified when the last member has left.
    deserted: Condvar,
}

#[derive(Default)]
struct WatchState {
    posts: Vec<Arc<Post>>,
    is_running: bool,
    gauge: Gauge,
    readings: Readings,
}

/// One shard's place in a [`Watch`]. Dropping it leaves the watch.
pub struct Member {
    watch: Arc<Watch>,
    post: Arc<Post>,
}

impl Watch {
    /// Makes a watch that reads the files below `root` each `interval`. Most callers want
    /// [`Watch::of_process`].
    pub fn new(root: &Path, interval: Duration) -> Arc<Watch> {
        Arc::new(Watch {
            root: root.to_owned(),
            interval,
            state: Mutex::default(),
            deserted: Condvar::new(),
        })
    }

    /// The watch of this process and this machine.
    pub fn of_process() -> Arc<Watch> {
        static PROCESS: OnceLock<Arc<Watch>> = OnceLock::new();
        let watch = PROCESS.get_or_init(|| Watch::new(Path::new("/"), MEMORY_WATCH_INTERVAL));
        Arc::clone(watch)
    }

    /// Notifies the owner of `waker` from now on. The first member reads the files itself, so an
    /// outlook exists when this returns.
    ///
    /// # Errors
    /// The kernel's error if it cannot make a thread.
    pub(crate) fn join(self: &Arc<Watch>, waker: Waker) -> io::Result<Member> {
        let mut state = self.lock();
        if !state.is_running {
            let mut files = KernelFiles::new(&self.root);
            state.gauge = Gauge::default();
            state.take(&files.read());
            let watch = Arc::clone(self);
            let builder = std::thread::Builder::new().name("memory-watch".to_owned());
            builder.spawn(move || watch.run(&mut files))?;
            state.is_running = true;
        }
        let post = Arc::new(Post { word: AtomicU64::new(Outlook::CALM.word()), waker });
        state.posts.push(Arc::clone(&post));
        state.tell();
        Ok(Member { watch: Arc::clone(self), post })
    }

    /// The last readings; empty while no member has joined.
    pub fn readings(&self) -> Readings {
        self.lock().readings
    }

    /// Runs on the watch's thread until no member is left.
    fn run(&self, files: &mut KernelFiles) {
        let mut state = self.lock();
        loop {
            let is_member = |state: &mut WatchState| !state.posts.is_empty();
            let waited = self.deserted.wait_timeout_while(state, self.interval, is_member);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.posts.is_empty() {
                state.is_running = false;
                state.readings = Readings::default();
                return;
            }
            drop(state); // No thread waits for a file of the kernel.
            let readings = files.read();
            state = self.lock();
            state.take(&readings);
            state.tell();
        }
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchState {
    fn take(&mut self, readings: &Readings) {
        self.readings = *readings;
        self.gauge.observe(readings);
    }

    /// Notifies every member whose outlook has changed.
    fn tell(&self) {
        let count = self.posts.len() as u64;
        let word = Outlook::new(self.gauge.diagnosis(), &self.readings, count).word();
        for post in &self.posts {
            // Under the lock, which orders all writers; readers need no more than the word.
            if post.word.load(Ordering::Relaxed) != word {
                post.word.store(word, Ordering::Relaxed);
                post.waker.wake();
            }
        }
    }
}

impl Member {
    /// The last outlook that the watch has written. Costs one load.
    pub fn outlook(&self) -> Outlook {
        Outlook::of_word(self.post.word.load(Ordering::Relaxed))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.watch.lock();
        state.posts.retain(|post| !Arc::ptr_eq(post, &self.post));
        if state.posts.is_empty() {
            self.watch.deserted.notify_one();
        } else {
            state.tell(); // The others' parts are larger now.
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Watch({}, each {:?})", self.root.display(), self.interval)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Member({:?})", self.outlook())
    }
}

#[cfg(test)]
mod tests {
    use super::super::readings::tests::Tree;
    use super::super::waker::WakeListener;
    use super::*;

    const MIB: u64 = 1 << 20;
    const INTERVAL: Duration = Duration::from_millis(1);

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        for _ in 0..30_000 {
            if is_so() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("never: {what}");
    }

    fn limited(name: &str, limit_bytes: u64) -> Tree {
        let tree = Tree::new(name);
        tree.put("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 8388608 kB\n");
        tree.put("proc/self/cgroup", "0::/\n");
        tree.put("sys/fs/cgroup/memory.max", limit_bytes.to_string());
        tree
    }

    #[test]
    fn an_outlook_goes_through_one_word() {
        for pressure in Pressure::ALL {
            for rings_bytes_max in [0, 4 << 10, 64 * MIB, Outlook::NO_LIMIT] {
                for row in 0..=THRESHOLDS.len() {
                    let decided_by = Decisive::new(row, row as f32 * 40.0); // None at the end.
                    let busy_disks = decided_by.filter(|_| row == 2);
                    let diagnosis = Diagnosis { pressure, decided_by, busy_disks };
                    let outlook = Outlook { diagnosis, rings_bytes_max };
                    assert_eq!(Outlook::of_word(outlook.word()), outlook);
                }
            }
        }
    }

    #[test]
    fn shards_share_a_tenth_of_the_limit() {
        let tree = limited("share", 64 * MIB);
        let watch = Watch::new(&tree.0, INTERVAL);
        let (first_bell, second_bell) =
            (WakeListener::without_doorbell(), WakeListener::without_doorbell());
        let share = |member: &Member| member.outlook().rings_bytes_max;
        let first = watch.join(first_bell.waker()).unwrap();
        let all_bytes = (64 * MIB / 10) & !3;
        assert_eq!(share(&first), all_bytes); // From the moment of the join.
        assert!(first_bell.take());
        let second = watch.join(second_bell.waker()).unwrap();
        assert!(first_bell.take() && second_bell.take());
        assert!(share(&first) + share(&second) <= all_bytes);
        assert!(share(&second) > all_bytes / 3);
        drop(second);
        assert!(first_bell.take());
        assert_eq!(share(&first), all_bytes);
        // The limit changes while we run.
        tree.put("sys/fs/cgroup/memory.max", (32 * MIB).to_string());
        wait_until("a smaller share", || share(&first) == (32 * MIB / 10) & !3);
        tree.put("sys/fs/cgroup/memory.max", "max");
        wait_until("no limit", || first.outlook() == Outlook::CALM);
        assert_eq!(watch.readings().cgroup_limit_bytes, None);
    }

    #[test]
    fn nobody_is_woken_while_nothing_changes() {
        let tree = limited("calm", 64 * MIB);
        let watch = Watch::new(&tree.0, INTERVAL);
        let bell = WakeListener::without_doorbell();
        let member = watch.join(bell.waker()).unwrap();
        assert!(bell.take());
        tree.put("proc/pressure/memory", "some avg10=0.00\nfull avg10=0.00\n");
        wait_until("read again", || watch.readings().memory_some_avg10.is_some());
        assert!(!bell.take());
        tree.put("proc/pressure/memory", "some avg10=99.00\nfull avg10=0.00\n");
        wait_until("pressure", || member.outlook().diagnosis.pressure == Pressure::Survival);
        assert!(bell.take());
        tree.put("proc/pressure/memory", "some avg10=0.00\nfull avg10=0.00\n");
        wait_until("calm again", || member.outlook().diagnosis.pressure == Pressure::Normal);
    }

    #[test]
    fn the_thread_ends_with_its_last_member_and_begins_anew() {
        let tree = limited("ends", 64 * MIB);
        let watch = Watch::new(&tree.0, Duration::from_secs(3_600));
        for _ in 0..3 {
            let bell = WakeListener::without_doorbell();
            let (first, second) =
                (watch.join(bell.waker()).unwrap(), watch.join(bell.waker()).unwrap());
            drop(first);
            assert!(watch.lock().is_running);
            drop(second);
            wait_until("the end of the thread", || !watch.lock().is_running);
        }
        wait_until("nobody holds it any more", || Arc::strong_count(&watch) == 1);
    }
}
